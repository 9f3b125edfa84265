"""Predictions and the quiz of chapter 26."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

ranks = Prediction(
    "W has 768 × 192 numbers. A is (r, 192) and B is (768, r), both drawn at random.",
    setup="""
import torch
torch.manual_seed(0)
def update(r):
    return torch.randn(768, r, dtype=torch.float64) @ torch.randn(r, 192, dtype=torch.float64)
def rank(x):
    return int(torch.linalg.matrix_rank(x))
""",
    asks=[
        Ask(
            "the rank of B A for r = 8",
            truth="rank(update(8))",
            why="At most r, and at random it is r.",
        ),
        Ask(
            "the rank of B A for r = 400",
            truth="rank(update(400))",
            why="No matrix has a higher rank than its smaller side, 192: beyond it A and B only cost more.",
        ),
        Ask(
            "merged, and then a second adapter of r = 8 is trained and merged: the rank of the whole change",
            truth="rank(update(8) + update(8))",
            why="Ranks add up to at most 16. Merging and beginning again is one way to a higher rank.",
        ),
        Ask(
            "the smallest r at which A and B have as many numbers as W, or more",
            truth="next(r for r in range(1, 400) if r * (768 + 192) >= 768 * 192)",
            why="r · (in + out) reaches in · out at 153.6, four fifths of the full rank.",
        ),
    ],
)

first_step = Prediction(
    "The loss is some function of x Aᵀ Bᵀ. Is the gradient zero in the first backward pass?",
    setup=(
        "import torch\n"
        "def grads(A, B):\n"
        "    A, B = A.requires_grad_(), B.requires_grad_()\n"
        "    (torch.ones(5, 6) @ A.T @ B.T - 1).square().sum().backward()\n"
        "    return bool((A.grad == 0).all()), bool((B.grad == 0).all())\n"
        "torch.manual_seed(0)\n"
        "A, B = torch.randn(2, 6), torch.randn(4, 2)\n"
    ),
    asks=[
        Ask(
            "A random, B zero: is A's gradient zero?",
            truth="grads(A.clone(), 0 * B)[0]",
            why="It has B as a factor. A does not move in the first step.",
        ),
        Ask(
            "A random, B zero: is B's gradient zero?",
            truth="grads(A.clone(), 0 * B)[1]",
            why="It has x Aᵀ as a factor, which is random. After B has moved, A has a gradient, too.",
        ),
        Ask(
            "A zero, B zero: is B's gradient zero?",
            truth="grads(0 * A, 0 * B)[1]",
            why="x Aᵀ is zero, and so is A's own gradient: no step ever leaves this point.",
        ),
    ],
)

saved = Prediction(
    "Adapters are on the linear layers of the last of six blocks, and on nothing else. The rest is frozen.",
    setup="""
import torch
from course_utils.meters import measure
from course_utils.reference.gpt2 import GPT2, GPT2Config
from course_utils.reference.lora import inject_lora
model = GPT2(GPT2Config(97, 16, 24, 6, 3, 0.0))
inject_lora(model, ["h.5.attn.c_attn", "h.5.mlp.c_fc"], r=2)
seen = {}
for i in (0, 4, 5):
    model.transformer.h[i].register_forward_hook(lambda m, a, out, i=i: seen.update({i: out.requires_grad}))
model(torch.zeros(1, 8, dtype=torch.long))
""",
    asks=[
        Ask(
            "does block 0 save anything for backward?",
            truth="seen[0]",
            why="Nothing that enters it or is in it requires a gradient, so autograd records nothing.",
        ),
        Ask(
            "does block 4's output require a gradient?",
            truth="seen[4]",
            why="Block 4 is below the lowest adapter.",
        ),
        Ask(
            "does block 5's output require a gradient?",
            truth="seen[5]",
            why="A and B are in it. From here up to the loss, backward has to pass.",
        ),
    ],
)

preferences = Prediction(
    "β = 1, one pair. The reference gives both answers a log-probability of −20.",
    setup="""
import math
def loss(chosen, rejected):
    return math.log1p(math.exp(-((chosen + 20) - (rejected + 20))))
""",
    asks=[
        Ask(
            "the policy gives both −20: the loss, to two digits",
            truth="round(loss(-20, -20), 2)",
            why="The margin is 0, and −ln σ(0) = ln 2.",
        ),
        Ask(
            "the policy gives both −35: the loss, to two digits",
            truth="round(loss(-35, -35), 2)",
            why="The loss sees the difference alone. Both answers have become nearly impossible, and it is as before.",
        ),
        Ask(
            "chosen −25, rejected −40: is the loss below the first one?",
            truth="loss(-25, -40) < loss(-20, -20)",
            why="The margin is 15, although the chosen answer is less likely than before training.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "An adapter was trained with r = 8 and α = 16. A program loads its A and B, but takes α = 8. What comes "
            "of it?",
            choices=[
                Choice(
                    "Nothing changes: A and B hold the whole update.",
                    why="They hold B A. The factor s = α / r is applied on the way, and is in the config alone.",
                ),
                Choice(
                    "The shapes do not fit, and loading raises an error.",
                    why="Shapes depend on r. α is in no shape, which is why the slip is silent.",
                ),
                Choice(
                    "The update is half as strong, and no error is raised.",
                    right=True,
                    why="s is 1 in place of 2.",
                ),
            ],
        ),
        Question(
            "In a full fine-tuning's ΔW the first 8 of 192 singular values hold much of the norm. What follows for LoRA?",
            choices=[
                Choice(
                    "Little, before a control: pretraining's own updates may look the same.",
                    right=True,
                    why="Here continued pretraining's are far from random, too. And LoRA searches for its own update, which need not be near that ΔW.",
                ),
                Choice(
                    "Rank 8 will do: what it leaves out is too small to matter for the loss.",
                    why="The norm of what is left out does not say what it does to the loss.",
                ),
                Choice(
                    "The new task is simpler than pretraining: its update needs few directions.",
                    why="Continued pretraining's update has a spectrum like it.",
                ),
            ],
        ),
        Question(
            "A model of 24 blocks has adapters in all of them, and saves too much for backward. What helps most?",
            choices=[
                Choice(
                    "A smaller rank in each block: what is saved is proportional to r.",
                    why="Only x Aᵀ is. The rest, activations of full width, stays.",
                ),
                Choice(
                    "Adapters in the upper blocks only, or checkpointing of the blocks.",
                    right=True,
                    why="Below the lowest adapter nothing is saved; checkpointing computes it again. Fewer targets in each block help, too: a frozen layer without an adapter keeps no x.",
                ),
                Choice(
                    "Frozen weights in NF4: what is saved shrinks as the weights do.",
                    why="That shrinks the weights. Activations are as large as before.",
                ),
            ],
        ),
        Question(
            "After instruction tuning, each answer begins right and is followed by more text without end. What is the "
            "likeliest slip?",
            choices=[
                Choice(
                    "The end token is not among the answers' tokens in the loss.",
                    right=True,
                    why="Left out of the data or masked as padding, it is never learned.",
                ),
                Choice(
                    "The prompts are in the loss, so the model learned to write them.",
                    why="It would still have learned the end token, which comes after each answer.",
                ),
                Choice(
                    "The learning rate is too small, so the answers are half learned.",
                    why="Then their beginnings would be wrong as often as their ends.",
                ),
            ],
        ),
        Question(
            "In a run of DPO the margins grow to 20, the loss falls to nearly 0, and the answers get worse. How can "
            "that be?",
            choices=[
                Choice(
                    "The reference was not detached: it has followed the policy.",
                    why="Then the margins would hardly grow, since both would move together.",
                ),
                Choice(
                    "The log-probabilities were summed where a mean was due.",
                    why="DPO is about whole answers, whose log-probability is a sum.",
                ),
                Choice(
                    "The loss sees differences: both answers can become unlikely.",
                    right=True,
                    why="The rejected one only has to fall further. Probability goes to answers in no pair.",
                ),
            ],
        ),
    ]
)
