"""Predictions and the quiz of chapter 23."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

counting = Prediction(
    "How many parameters does it have, and what changes them?",
    code="count = lambda D, L, V=50257, C=1024: V * D + C * D + L * (12 * D * D + 13 * D) + 2 * D",
    asks=[
        Ask(
            "the embedding's share of GPT-2's 124 M, in percent",
            truth="round(100 * 50257 * 768 / count(768, 12))",
            why="38.6 of 124.4 million. Untied, the head would hold as many again.",
        ),
        Ask(
            "from 12 heads to 24 of half the width: more parameters",
            truth="False",
            why="The heads share D features among them: q, k and v have D × D each, however they are split.",
        ),
        Ask(
            "twice as many blocks: parameters added, in millions",
            truth="round((count(768, 24) - count(768, 12)) / 1e6)",
            why="12 D² + 13 D in each of the twelve: 7.09 million.",
        ),
        Ask(
            "a context of 2,048 in place of 1,024: parameters added",
            truth="count(768, 12, C=2048) - count(768, 12)",
            why="1,024 more rows of wpe, of 768 each. Attention has no parameter for a position.",
        ),
    ],
)

transposed = Prediction(
    "A checkpoint's matrix is not transposed. Does loading with copy_ complain?",
    code="D = 768\nfits = lambda shape: shape == shape[::-1]",
    asks=[
        Ask(
            "attn.c_attn.weight",
            truth="not fits((D, 3 * D))",
            why="(768, 2304) does not fit (2304, 768).",
        ),
        Ask(
            "attn.c_proj.weight",
            truth="not fits((D, D))",
            why="It is square: any transposition fits, and the model talks nonsense.",
        ),
        Ask(
            "mlp.c_fc.weight",
            truth="not fits((D, 4 * D))",
            why="(768, 3072) does not fit (3072, 768).",
        ),
        Ask(
            "mlp.c_proj.weight",
            truth="not fits((4 * D, D))",
            why="Neither does (3072, 768) fit (768, 3072).",
        ),
    ],
)

first_loss = Prediction(
    "Before the first step: a model that has learnt nothing. What is the loss in nats, if every token gets the same probability?",
    code="import math",
    asks=[
        Ask(
            "with 50,257 tokens, to one decimal",
            truth="round(math.log(50257), 1)",
            why="ln 50,257 = 10.825: each token has 1/V, so the loss is ln V. A fresh model's logits are small, not equal, and its loss is a little higher.",
        ),
        Ask(
            "with 256 tokens, to one decimal",
            truth="round(math.log(256), 1)",
            why="ln 256 = 5.545: eight bits in nats.",
        ),
        Ask(
            "a fresh GPT-2 with twice the blocks starts at about twice the distance from ln V",
            truth="False",
            why="The last norm sets the size of what the head reads, whatever the blocks do.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "Why do the two c_proj of a block start with σ = 0.02 / √(2 L)?",
            choices=[
                Choice(
                    "So that their gradients are smaller.",
                    why="A matrix's gradient is made of what it reads and of what comes back to it, not of its own values.",
                ),
                Choice(
                    "So that 2 L branches together add as much variance as one unscaled would.",
                    right=True,
                    why="Variances of independent terms add up: 2 L · σ² / (2 L).",
                ),
                Choice(
                    "Because they are the widest matrices.",
                    why="c_fc is as wide, and is not scaled.",
                ),
                Choice(
                    "So that the softmax stays soft.",
                    why="That is what √d is for.",
                ),
            ],
        ),
        Question(
            "By mistake the state_dict of a tied GPT-2 is loaded into an untied one. What gives it away?",
            choices=[
                Choice(
                    "38.6 million parameters too many, and an lm_head.weight in named_parameters.",
                    right=True,
                    why="Until the first step the outputs agree; then the two copies drift apart.",
                ),
                Choice(
                    "Logits that differ at once.",
                    why="Both names hold the same values after loading.",
                ),
                Choice(
                    "An error from load_state_dict.",
                    why="A module's state_dict has a tied weight under both names, so that strict loading is content. (A safetensors file has it once, and then it does complain.)",
                ),
            ],
        ),
        Question(
            "Your training loss falls to 0.1 within minutes on a text whose entropy must be far higher. What do you look at first?",
            choices=[
                Choice(
                    "The learning rate.",
                    why="No learning rate beats the entropy of the text.",
                ),
                Choice(
                    "The initialisation.",
                    why="It decides how training starts, not what can be known.",
                ),
                Choice(
                    "Weight decay, which must have been left out for so low a loss.",
                    why="It would rather raise the training loss.",
                ),
                Choice(
                    "Whether a position can see the token that it is to predict.",
                    right=True,
                    why="A mask that is off by one, or targets that are not shifted. (Or the model has seen so little text that it knows it by heart: look at the validation loss.)",
                ),
            ],
        ),
        Question(
            "Logits of size 5 agree with transformers' within 0.003, and not within 0.0001. Which is the likeliest?",
            choices=[
                Choice(
                    "attn.c_proj is not transposed.",
                    why="Then they would be far apart, by more than 0.003.",
                ),
                Choice(
                    "The exact GELU in place of its tanh form.",
                    right=True,
                    why="Off by at most 0.0005 for each hidden feature, in every block: small, and not rounding.",
                ),
                Choice(
                    "The masks attn.bias were left out.",
                    why="They are no weights: is_causal does the same.",
                ),
                Choice(
                    "float32 rounds differently in a fused kernel than step by step.",
                    why="That gives some 0.000002 for logits of this size: see above.",
                ),
            ],
        ),
        Question(
            "Seeds alone move the loss of one model by 0.05. In one run a new part lowers it by 0.03. What is known?",
            choices=[
                Choice(
                    "That the part helps a little, in a model of this size.",
                    why="Another seed of the old model may be as low.",
                ),
                Choice(
                    "That the part does no harm, and can be kept in.",
                    why="A harm of 0.02 would look the same in one run.",
                ),
                Choice(
                    "Nothing so far: seeds alone do as much. Run several of each.",
                    right=True,
                    why="A difference counts once it is larger than the spread of the runs that it is taken from.",
                ),
                Choice(
                    "That more steps would make the difference clear.",
                    why="They may, or may make it vanish: a longer run has seeds, too.",
                ),
            ],
        ),
    ]
)
