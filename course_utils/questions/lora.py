"""Predictions and the quiz of chapter 26."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

how_many = Prediction(
    "GPT-2's c_attn has in = 768 and out = 2304, and the model has 12 of them. How many numbers?",
    asks=[
        Ask("one W", truth="768 * 2304", why="in · out, all of it frozen."),
        Ask("A of rank 8", truth="8 * 768", why="(r, in)."),
        Ask("B of rank 8", truth="8 * 2304", why="(out, r)."),
        Ask(
            "all 12 adapters of rank 8",
            truth="12 * 8 * (768 + 2304)",
            why="r · (in + out) each: 0.24 % of the model's 124,439,808.",
        ),
        Ask(
            "the rank from which A and B are no smaller than W",
            truth="768 * 2304 // (768 + 2304)",
            why="r · (in + out) = in · out at r = 576.",
        ),
    ],
)

first_step = Prediction(
    "A is random and B is zero. Before the first step, after one backward pass:",
    setup=(
        "import torch\n"
        "from torch import nn\n"
        "from course_utils.reference.lora import LoRALinear\n"
        "torch.manual_seed(0)\n"
        "layer = LoRALinear(nn.Linear(4, 3), r=2, alpha=4.0)\n"
        "x = torch.randn(5, 4)\n"
        "layer(x).square().sum().backward()"
    ),
    code=(
        "layer = LoRALinear(nn.Linear(4, 3), r=2, alpha=4.0)\nlayer(x).square().sum().backward()"
    ),
    asks=[
        Ask(
            "is lora_A's gradient zero?",
            truth="bool((layer.lora_A.grad == 0).all())",
            why="It has B as a factor, and B is zero: A does not move in the first step.",
        ),
        Ask(
            "is lora_B's gradient zero?",
            truth="bool((layer.lora_B.grad == 0).all())",
            why="It has x Aᵀ as a factor, which is random: B moves, and from then on A does too.",
        ),
        Ask(
            "is there a gradient for W?",
            truth="layer.base_layer.weight.grad is not None",
            why="W is frozen: its gradient, the largest of the three, is never computed.",
        ),
        Ask(
            "layer.scaling",
            truth="layer.scaling",
            why="α / r = 4 / 2.",
        ),
    ],
)

four_bits = Prediction(
    "A weight matrix of 4096 × 4096 in NF4, blocks of 64. How many bytes?",
    asks=[
        Ask("its codes", truth="4096 * 4096 // 2", why="Two codes a byte: 8 MiB."),
        Ask(
            "its scales in float32",
            truth="4096 * 4096 // 64 * 4",
            why="One for 64 weights: half a bit a weight.",
        ),
        Ask(
            "its scales in eight bits, without their own scales",
            truth="4096 * 4096 // 64",
            why="Double quantisation: a quarter of that.",
        ),
        Ask(
            "the same matrix in bfloat16",
            truth="4096 * 4096 * 2",
            why="Two bytes a weight: 32 MiB.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "You double r from 8 to 16 and leave α = 16. What happens to s?",
            choices=[
                Choice(
                    "It falls from 2 to 1.",
                    right=True,
                    why="s = α / r: 16 / 8 before, 16 / 16 now.",
                ),
                Choice("It stays at 16.", why="α alone is not the scale: it is divided by r."),
                Choice("It falls by √2.", why="That is rsLoRA, where s = α / √r."),
            ],
        ),
        Question(
            "Why not start A and B both at zero?",
            choices=[
                Choice(
                    "The update would not be zero at first.",
                    why="It would: the product of zeros is zero.",
                ),
                Choice(
                    "Each one's gradient has the other as a factor: both would stay zero for good.",
                    right=True,
                    why="It is a stationary point: no gradient leads away from it.",
                ),
                Choice(
                    "The optimizer divides by their norm.",
                    why="No optimizer of chapter 10 does that; a zero gradient alone is enough.",
                ),
            ],
        ),
        Question(
            "What does LoRA not save, compared with full fine-tuning?",
            choices=[
                Choice("AdamW's two moments.", why="They exist for trained parameters only."),
                Choice(
                    "The gradients of W.",
                    why="W is frozen: none is computed or kept.",
                ),
                Choice(
                    "Most of the activations that are saved for backward.",
                    right=True,
                    why="Backward still runs through every layer down to the first adapter. What is "
                    "saved for W's gradient alone, x, is needed for A's.",
                ),
            ],
        ),
        Question(
            "You fine-tune on questions and answers, and the loss falls fast; the model then answers with "
            "more questions. What is likely?",
            choices=[
                Choice(
                    "The prompts were not masked: it learned to write them.",
                    right=True,
                    why="Prompts, often longer and more alike than answers, dominate the mean.",
                ),
                Choice(
                    "r was too small.",
                    why="Then the loss would fall slowly, and the answers would be bad answers.",
                ),
                Choice(
                    "The adapters were merged twice.",
                    why="That would disturb every output, not turn answers into questions.",
                ),
            ],
        ),
        Question(
            "NF4 or sixteen equal steps: when do the equal steps win?",
            choices=[
                Choice(
                    "When one weight in a block is very large, and all others lie near zero.",
                    why="Then most weights are near zero, where NF4 has more levels.",
                ),
                Choice(
                    "When the numbers of a block are spread evenly between its extremes.",
                    right=True,
                    why="NF4's levels follow the normal distribution; for a uniform one equal steps are best.",
                ),
                Choice(
                    "Never: NF4's levels are optimal.",
                    why="They are made for one distribution, and do not minimise the squared error even for that.",
                ),
            ],
        ),
    ]
)
