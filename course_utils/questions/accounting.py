"""Predictions and the quiz of chapter 5."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

COUNT = """
from torch.utils.flop_counter import FlopCounterMode

def counted(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()
"""

products = Prediction(
    "How many FLOPs does FlopCounterMode report for each line?",
    setup=COUNT,
    code="x, w = torch.ones(8, 16), torch.ones(32, 16, requires_grad=True)",
    asks=[
        Ask(
            "x @ w.T",
            truth="counted(lambda: x @ w.T)",
            why="8 · 32 elements, each a sum of 16 products: 2 · 8 · 16 · 32.",
        ),
        Ask(
            "(x @ w.T).sum().backward(), forward and backward",
            truth="counted(lambda: (x @ w.T).sum().backward())",
            why="x needs no gradient, so backward has one product, for w. With forward that makes two.",
        ),
        Ask(
            "x[0] + x[1]",
            truth="counted(lambda: x[0] + x[1])",
            why="An addition of two rows is elementwise, and the counter has no formula for it.",
        ),
        Ask(
            "torch.bmm(torch.ones(4, 8, 16), torch.ones(4, 16, 8))",
            truth="counted(lambda: torch.bmm(torch.ones(4, 8, 16), torch.ones(4, 16, 8)))",
            why="Four products of 2 · 8 · 16 · 8.",
        ),
    ],
)

six_n = Prediction(
    "A GPT-2 of width 768 has 12 blocks, a vocabulary of 50,257 and a tied head. A training step of one "
    "sequence; what happens to its FLOPs? Answer with the factor.",
    setup="""
from course_utils.reference.accounting import transformer_flops

def factor(part, **change):
    sizes = {"n_layer": 12, "n_embd": 768, "vocab": 50257, "context": 1024, "batch": 1}
    flops = lambda s: sum(v for k, v in transformer_flops(**s).items() if part in ("all", k))
    return flops(sizes | change) / flops(sizes)
""",
    asks=[
        Ask(
            "the whole step, with a batch of 8",
            truth="factor('all', batch=8)",
            why="Every part is proportional to the number of sequences.",
        ),
        Ask(
            "the MLPs, with twice the context",
            truth="factor('mlp', context=2048)",
            why="A linear layer does the same for every token, and there are twice as many.",
        ),
        Ask(
            "attention's two products, with twice the context",
            truth="factor('attention', context=2048)",
            why="A score for each query and key, and there are twice as many of both.",
        ),
        Ask(
            "the MLPs, with twice the width",
            truth="factor('mlp', n_embd=1536)",
            why="Both axes of each weight double.",
        ),
        Ask(
            "attention's two products, with twice the width",
            truth="factor('attention', n_embd=1536)",
            why="There are as many scores as before. Each is a sum over twice as many features, and weights · v has "
            "twice as many columns.",
        ),
    ],
)

sixteen_bytes = Prediction(
    "How many bytes does each trained parameter take when the optimizer steps? The optimizer is AdamW, but "
    "for the last line.",
    setup="from course_utils.reference.accounting import training_memory\n"
    "def each(**settings):\n    return sum(training_memory(1, **settings).values())",
    asks=[
        Ask(
            "float32",
            truth="each()",
            why="4 for the parameter, 4 for its gradient, 2 · 4 of state.",
        ),
        Ask(
            "float32 parameters under bfloat16 autocast",
            truth="each(precision='bf16 mixed')",
            why="Autocast casts in the forward pass. Parameters, gradients and state stay float32.",
        ),
        Ask(
            "bfloat16 with a float32 master copy and state",
            truth="each(precision='bf16 master')",
            why="2 + 2, then 4 for the master copy and 2 · 4 of state.",
        ),
        Ask(
            "everything in bfloat16",
            truth="each(precision='bf16')",
            why="2 + 2 + 2 · 2.",
        ),
        Ask(
            "float32 and plain SGD",
            truth="each(optimizer='sgd')",
            why="4 + 4. Without momentum SGD keeps no state.",
        ),
    ],
)

napkin = Prediction(
    "An H100 computes 989.4 TFLOP/s in bfloat16, reads 3.35 TB/s, and has 80 GB.",
    setup="from course_utils.reference.accounting import days_to_train",
    asks=[
        Ask(
            "How many days, rounded to a whole number, do 70 billion parameters take on 15 trillion tokens, with "
            "1,024 H100 at 40 % MFU?",
            truth="round(days_to_train(70 * 10**9, 15 * 10**12, 1024, 989.4e12, 0.4))",
            why="6 · 70 · 10⁹ · 15 · 10¹² = 6.3 · 10²⁴ FLOPs, at 1,024 · 0.4 · 989.4 · 10¹² FLOP/s.",
        ),
        Ask(
            "How many billion parameters has the largest model whose 16 bytes a parameter fit on 8 H100, split "
            "evenly?",
            truth="8 * 80 // 16",
            why="640 GB over 16 bytes. Nothing is left for activations.",
        ),
        Ask(
            "How many milliseconds, to one decimal, does one token take at least through a model of 10 billion "
            "parameters in bfloat16, on one H100?",
            truth="round(1e3 * 2 * 10**10 / 3.35e12, 1)",
            why="20 GB of weights have to be read, at 3.35 TB/s. The arithmetic takes 0.02 ms.",
        ),
    ],
)

which_bound = Prediction(
    "An H100 computes 989.4 TFLOP/s in bfloat16 and reads 3.35 TB/s. Its ridge is at 295 FLOPs a byte. Is each operation "
    "compute-bound (yes) or memory-bound (no)?",
    setup="from course_utils.reference.accounting import matmul_intensity\n"
    "ridge = 989.4e12 / 3.35e12",
    asks=[
        Ask(
            "a product of two 4096 × 4096 matrices",
            truth="matmul_intensity(4096, 4096, 4096) > ridge",
            why="4096 / 3 = 1365 FLOPs a byte.",
        ),
        Ask(
            "a product of two 512 × 512 matrices",
            truth="matmul_intensity(512, 512, 512) > ridge",
            why="512 / 3 = 171: a small square product waits for memory.",
        ),
        Ask(
            "one token through a 4096 × 4096 layer",
            truth="matmul_intensity(1, 4096, 4096) > ridge",
            why="Each weight is read for one multiply-add: 1 FLOP a byte.",
        ),
        Ask(
            "256 tokens through a 4096 × 4096 layer",
            truth="matmul_intensity(256, 4096, 4096) > ridge",
            why="About as many FLOPs a byte as there are tokens, a little fewer: 228.",
        ),
        Ask(
            "attention scores of one head: (4096, 64) times (64, 4096)",
            truth="matmul_intensity(4096, 64, 4096) > ridge",
            why="62: the result is large and each element a short sum. Flash attention never writes it.",
        ),
    ],
)

quiz = Quiz(
    questions=[
        Question(
            "A training step of a transformer costs about 6 · N FLOPs a token. Where do the 6 come from?",
            choices=[
                Choice(
                    "2 for forward, 4 for backward.",
                    "A multiply-add is two FLOPs; backward has a product for the weights and one for the inputs.",
                    right=True,
                ),
                Choice(
                    "3 for forward, 3 for backward.",
                    "Backward has two products where forward has one.",
                ),
                Choice(
                    "2 for forward, 2 for backward, 2 for the optimizer.",
                    "The optimizer works once a step, not once a token. With many tokens in a step that is little.",
                ),
                Choice(
                    "4 for forward, 2 for backward.",
                    "Forward has one product, and it takes 2 FLOPs a weight.",
                ),
            ],
        ),
        Question(
            "FlopCounterMode reports the same number for your model with attention and without it. "
            "What is likely?",
            choices=[
                Choice(
                    "The fused attention kernel has no formula, and counts 0.",
                    "On a CPU, torch 2.13 has none for its flash kernel. Count under the MATH back end, or "
                    "register one.",
                    right=True,
                ),
                Choice(
                    "Attention is elementwise, and costs nothing.",
                    "It is two matrix products, quadratic in the context.",
                ),
                Choice(
                    "The counter leaves causal attention out.",
                    "Where it has a formula, it counts causal attention in full.",
                ),
            ],
        ),
        Question(
            "A GPU computes 1000 TFLOP/s and reads 4 TB/s. An operation does 50 FLOPs a byte. What is the "
            "most that it can reach?",
            choices=[
                Choice(
                    "200 TFLOP/s.",
                    "50 FLOPs a byte times 4 TB/s: memory decides, far left of the ridge at 250.",
                    right=True,
                ),
                Choice("1000 TFLOP/s.", "Only from 250 FLOPs a byte on."),
                Choice(
                    "50 TFLOP/s.", "The intensity is not the speed: multiply it by the bandwidth."
                ),
                Choice("4 TFLOP/s.", "That would be one FLOP a byte."),
            ],
        ),
        Question(
            "You switch on activation checkpointing. Tokens a second fall by a quarter. What of MFU?",
            choices=[
                Choice(
                    "It falls by a quarter.",
                    "MFU counts the model's own FLOPs for each token, and these have not changed. So it is "
                    "proportional to tokens a second.",
                    right=True,
                ),
                Choice(
                    "It stays the same: the GPU is as busy as before.",
                    "That is hardware FLOPs utilization, which counts what is computed twice.",
                ),
                Choice(
                    "It rises, since more FLOPs are computed.",
                    "MFU leaves recomputation out: it trains on no more tokens.",
                ),
            ],
        ),
        Question(
            "Data-parallel training on 8 GPUs with a ring all-reduce. You go to 64 GPUs with the same batch "
            "on each. What does each GPU send in a step?",
            choices=[
                Choice(
                    "About 1.1 times as much.",
                    "2 · (n − 1) / n of the gradients: 1.75 times their bytes with 8, 1.97 with 64.",
                    right=True,
                ),
                Choice(
                    "8 times as much.",
                    "There are about 8 times as many messages, but each is an eighth as long.",
                ),
                Choice(
                    "An eighth.",
                    "The chunks are shorter, but a rank sends one in each of 2 · (n − 1) steps.",
                ),
            ],
        ),
    ],
)
