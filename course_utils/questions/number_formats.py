"""Predictions and the quiz of chapter 4."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

patterns = Prediction(
    "FP8 E4M3: one sign bit, four exponent bits with bias 7, three mantissa bits. Which numbers?",
    setup="from course_utils.reference.number_formats import decode_float\n"
    "def e4m3(bits):\n    return decode_float(bits, 4, 3, 'fn')",
    asks=[
        Ask(
            "`0 0111 000`",
            truth="e4m3(0b0_0111_000)",
            why="The field 7 is the exponent 0, and the fraction is 0: 1.0.",
        ),
        Ask(
            "`1 1000 100`",
            truth="e4m3(0b1_1000_100)",
            why="Minus, exponent 1, and 1 + 4/8: −1.5 · 2.",
        ),
        Ask("`0 0111 001`", truth="e4m3(0b0_0111_001)", why="The next number after 1: 1 + 1/8."),
        Ask(
            "`0 0000 100`",
            truth="e4m3(0b0_0000_100)",
            why="Subnormal: 4/8 without a leading one, times 2⁻⁶, that is 2⁻⁷ = 0.0078125.",
        ),
    ],
)

plus_one = Prediction(
    "Is `x + 1 == x`, if all is computed in this format?",
    setup="def stuck(n, dtype):\n    x = torch.tensor(n, dtype=dtype)\n    return bool(x + 1 == x)",
    asks=[
        Ask(
            "x = 128 in BF16",
            truth="stuck(128.0, torch.bfloat16)",
            why="From 128 to 256 the step of BF16 is 1: 129 is a number.",
        ),
        Ask(
            "x = 256 in BF16",
            truth="stuck(256.0, torch.bfloat16)",
            why="The step is 2. 257 is a tie, and 256 is even.",
        ),
        Ask(
            "x = 2048 in FP16",
            truth="stuck(2048.0, torch.float16)",
            why="Ten mantissa bits: the step becomes 2 at 2¹¹.",
        ),
        Ask(
            "x = 2²⁴ − 1 in FP32",
            truth="stuck(2.0**24 - 1, torch.float32)",
            why="Below 2²⁴ the step is 1, so 2²⁴ is reached.",
        ),
        Ask(
            "x = 2²⁴ in FP64",
            truth="stuck(2.0**24, torch.float64)",
            why="FP64 counts in ones up to 2⁵³.",
        ),
    ],
)

rounded = Prediction(
    "What does a cast give?",
    code="half = torch.float16\nbrain = torch.bfloat16",
    asks=[
        Ask(
            "`torch.tensor(2049.0).to(half).item()`",
            truth="torch.tensor(2049.0).half().item()",
            why="Halfway between 2048 and 2050. 2048 has the even mantissa.",
        ),
        Ask(
            "`torch.tensor(2051.0).to(half).item()`",
            truth="torch.tensor(2051.0).half().item()",
            why="Halfway between 2050 and 2052. 2052 has the even mantissa.",
        ),
        Ask(
            "`torch.tensor(65519.0).to(half).item()`",
            truth="torch.tensor(65519.0).half().item()",
            why="Nearer to 65504 than to 65536, where the next step would be.",
        ),
        Ask(
            "`torch.tensor(65520.0).to(half).item()`",
            truth="torch.tensor(65520.0).half().item()",
            why="A tie between 65504 and 65536 goes to the even one, which FP16 lacks: `inf`.",
        ),
        Ask(
            "`torch.tensor(518.0).to(brain).item()`",
            truth="torch.tensor(518.0).bfloat16().item()",
            why="Halfway between 516 and 520, that is 129 and 130 steps of 4. 130 is even.",
        ),
    ],
)

block_bits = Prediction(
    "How many bits does a number take, its share of the block's scale included?",
    asks=[
        Ask(
            "MXFP8: 8-bit elements, an 8-bit scale for 32",
            truth="8 + 8 / 32",
            why="8 bits of scale over 32 numbers is a quarter of a bit.",
        ),
        Ask(
            "MXFP4: 4-bit elements, an 8-bit scale for 32",
            truth="4 + 8 / 32",
            why="The same quarter on four bits.",
        ),
        Ask(
            "NVFP4: 4-bit elements, an 8-bit scale for 16",
            truth="4 + 8 / 16",
            why="Half the block, so twice the share. The one FP32 scale of the tensor does not count.",
        ),
    ],
)

integers = Prediction(
    "Integers do not round; they wrap around or change their type.",
    code="a = torch.tensor([200, 100], dtype=torch.uint8)\ni = torch.tensor([127, -128], dtype=torch.int8)",
    asks=[
        Ask(
            "`(a[0] + a[1]).item()`",
            truth="(a[0] + a[1]).item()",
            why="300 − 256: the sum of two uint8 is uint8.",
        ),
        Ask(
            "`a.sum().item()`",
            truth="a.sum().item()",
            why="A sum over an axis, or over all, is computed in int64.",
        ),
        Ask(
            "`(i[0] + 1).item()`",
            truth="(i[0] + 1).item()",
            why="127 is the largest int8; the next pattern is the smallest.",
        ),
        Ask(
            "`i[1].abs().item()`",
            truth="i[1].abs().item()",
            why="+128 is no int8, so the negation wraps around to itself.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A model's weights are BF16 and the learning rate makes updates of about 1/1000 of a weight. What happens with rounding to nearest?",
            choices=[
                Choice(
                    "Most updates change nothing.",
                    right=True,
                    why="Half a step of BF16 is between 1/512 and 1/256 of the weight. An update of 1/1000 is less and rounds away.",
                ),
                Choice(
                    "They are applied, with a relative error of 2⁻⁸.",
                    why="The *sum* has that error, and it is larger than the update.",
                ),
                Choice(
                    "They underflow to 0 before they are added.",
                    why="BF16 has FP32's range: 1e-3 times a weight is far from its smallest number.",
                ),
                Choice("They overflow.", why="Nothing here is large."),
            ],
        ),
        Question(
            "FP8 E4M3 and E5M2 both have eight bits. Which is the usual choice for gradients of activations, and why?",
            choices=[
                Choice(
                    "E5M2: one more exponent bit.",
                    right=True,
                    why="Micikevicius et al. (2022) take E5M2 for gradients, whose sizes vary more, and E4M3 for weights and activations. With a scale for each block, E4M3 is often used for all three.",
                ),
                Choice(
                    "E4M3: it has no infinities.",
                    why="That is true of it, and lets it reach 448. It is not a reason to give up range.",
                ),
                Choice(
                    "E5M2: it is more exact.",
                    why="It has two mantissa bits, E4M3 has three: its steps are twice as large.",
                ),
            ],
        ),
        Question(
            "A dot product of BF16 numbers has 4096 terms. Which error dominates if the sum is kept in FP32 and rounded to BF16 at the end?",
            choices=[
                Choice(
                    "The rounding of the products.",
                    why="A product of two BF16 numbers has at most 16 significant bits: FP32 holds it exactly, if it is in range.",
                ),
                Choice(
                    "The rounding of the running total.",
                    why="It is about 2⁻²⁴ an addition; the last rounding is 2⁻⁹.",
                ),
                Choice(
                    "The last rounding, to BF16.",
                    right=True,
                    why="In the chapter's measurement the sum was right to about 10⁻⁶ before it, and to about 10⁻³ after it.",
                ),
            ],
        ),
        Question(
            "Why is the largest x subtracted in log-sum-exp, and not some other large number?",
            choices=[
                Choice("It makes the result exact.", why="Sums and logarithms still round."),
                Choice(
                    "Then no exponential exceeds 1, and one of them is 1.",
                    right=True,
                    why="So nothing overflows, and the sum is at least 1, so its log is not that of 0.",
                ),
                Choice(
                    "Any other number gives another result.",
                    why="In exact arithmetic every c gives the same result.",
                ),
            ],
        ),
        Question(
            "One number of a tensor of thousands is ten million times larger than the rest. Which format keeps the most of the others?",
            choices=[
                Choice(
                    "INT8 with one scale for the tensor",
                    why="All others are far below half a step: they become 0.",
                ),
                Choice(
                    "E4M3 with one scale for the tensor",
                    why="From 448 down to 2⁻⁹ is a factor of 229,376. Ten million is more.",
                ),
                Choice(
                    "MXFP8",
                    right=True,
                    why="Only the 31 neighbours in the outlier's block share its scale. All other blocks have their own.",
                ),
                Choice(
                    "NVFP4",
                    why="Each block has a scale, but in E4M3, relative to one for the tensor. The other blocks' scales are too small for E4M3 and become 0.",
                ),
            ],
        ),
    ]
)
