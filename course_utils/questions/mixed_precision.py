"""Predictions and the quiz of chapter 13."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

rounded = Prediction(
    "What is left of a number? Ten bits of mantissa and five of exponent in FP16; seven and eight in BF16.",
    code="x = torch.tensor([1.0009765625, 1e-8, 65519.0, 70000.0])  # the first is 1 + 2**-10",
    asks=[
        Ask(
            "x[0].half() == x[0]",
            truth="bool(x[0].half() == x[0])",
            why="2⁻¹⁰ is FP16's last place at 1.",
        ),
        Ask(
            "x[0].bfloat16().item()",
            truth="x[0].bfloat16().item()",
            why="BF16's last place at 1 is 2⁻⁷: the nearest value is 1.",
        ),
        Ask(
            "x[1].half() == 0",
            truth="bool(x[1].half() == 0)",
            why="Less than half of 2⁻²⁴, FP16's smallest (subnormal) number.",
        ),
        Ask(
            "x[1].bfloat16() == 0",
            truth="bool(x[1].bfloat16() == 0)",
            why="BF16 has FP32's exponents: 1e-8 is an ordinary number.",
        ),
        Ask(
            "x[2].half().item()",
            truth="x[2].half().item()",
            why="65504 is the largest, and 65519 is nearer to it than to where the next would be.",
        ),
        Ask(
            "x[3].half().isinf()",
            truth="bool(x[3].half().isinf())",
            why="From 65520 on, half a step beyond the largest, a cast to FP16 gives inf.",
        ),
    ],
)

autocast_cpu = Prediction(
    "The dtype of each result, on the CPU.",
    setup=(
        "import torch.nn.functional as F\n"
        "def under(f):\n"
        "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "        return f().dtype"
    ),
    code=(
        "x, w = torch.ones(4, 4), torch.ones(4, 4)  # float32\n"
        "y = torch.ones(4, 4, dtype=torch.bfloat16)\n"
        "# each line under torch.autocast('cpu', dtype=torch.bfloat16)"
    ),
    asks=[
        Ask(
            "x @ w",
            truth="under(lambda: x @ w)",
            why="Matrix products are what autocast casts down.",
        ),
        Ask("x * w", truth="under(lambda: x * w)", why="Elementwise: float32 in, float32 out."),
        Ask("x + y", truth="under(lambda: x + y)", why="Two dtypes meet: the wider one wins."),
        Ask(
            "F.softmax(y, dim=-1)",
            truth="under(lambda: F.softmax(y, dim=-1))",
            why="On a CPU softmax is on no list. On CUDA it would be float32.",
        ),
        Ask(
            "F.mse_loss(y, y)",
            truth="under(lambda: F.mse_loss(y, y))",
            why="Losses are cast up to float32 on both.",
        ),
        Ask(
            "w.dtype afterwards",
            truth="w.dtype",
            why="Autocast casts copies. The weights themselves stay float32: they are the master weights.",
        ),
    ],
)

saved_bytes = Prediction(
    "A GELU keeps its input for backward. How many bytes does autograd save for the whole line, parameters not counted?",
    setup=(
        "from course_utils import measure\n"
        "import torch.nn.functional as F\n"
        "lin = torch.nn.Linear(64, 256, bias=False)\n"
        "x = torch.ones(128, 64)\n"
        "def saved(low):\n"
        "    with measure(parameters=False) as cost:\n"
        "        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=low):\n"
        "            F.gelu(lin(x))\n"
        "    return cost.bytes_saved"
    ),
    code="F.gelu(lin(x))  # x: (128, 64) float32, lin: Linear(64, 256)",
    asks=[
        Ask(
            "in float32",
            truth="saved(False)",
            why="lin keeps x, 128·64·4 bytes; the GELU its input, 128·256·4.",
        ),
        Ask(
            "under autocast to bfloat16",
            truth="saved(True)",
            why="Both again, at 2 bytes: lin keeps the cast copy of x. The weight's copy is not needed, since x wants no gradient.",
        ),
    ],
)

scale_moves = Prediction(
    "Five steps, of which the second overflows. Which scale does each run with? Step 1: 1024.",
    setup=(
        "from course_utils.reference.mixed_precision import loss_scale_history\n"
        "h = loss_scale_history([1.0, float('inf'), 1.0, 1.0, 1.0], 1024.0, 2)[0]"
    ),
    code="scaler = torch.amp.GradScaler('cpu', init_scale=1024.0, growth_interval=2)",
    asks=[
        Ask("at step 2", truth="h[1]", why="One good step is not two."),
        Ask("at step 3", truth="h[2]", why="Step 2 was skipped, and the scale halved."),
        Ask("at step 4", truth="h[3]", why="The count started again at 0: one good step so far."),
        Ask("at step 5", truth="h[4]", why="Two good steps in a row: it doubles."),
    ],
)

lost_updates = Prediction(
    "Ten thousand steps of 0.001, down from 1.0. Where does each end, to one decimal?",
    setup=(
        "w = torch.tensor(1.0).bfloat16()\n"
        "for _ in range(100):\n"
        "    w = w - 0.001\n"
        "naive = w.item()"
    ),
    code="# a BF16 number near 1 has steps of 2**-8 below it, that is 0.0039",
    asks=[
        Ask(
            "a BF16 weight, updated in BF16",
            truth="round(naive, 1)",
            why="0.001 is less than half a step: 1 - 0.001 rounds back to 1, every time.",
        ),
        Ask(
            "an FP32 master",
            truth="round(1 - 10_000 * 0.001, 1)",
            why="It adds up: 1 - 10 = -9.",
        ),
    ],
)

fp8_products = Prediction(
    "FP8 E4M3 has three bits of mantissa and ends at 448.",
    code="a = torch.tensor([0.0009, 17.0, 300.0])",
    setup=(
        "def e4m3(x):\n"
        "    return torch.tensor(x).to(torch.float8_e4m3fn).item()\n"
        "small = e4m3(0.0009 * 2.0**18) / 2.0**18"
    ),
    asks=[
        Ask(
            "0.0009 without a scale",
            truth="e4m3(0.0009)",
            why="The smallest value above 0 is 2⁻⁹, 0.00195, and 0.0009 is less than half of it.",
        ),
        Ask(
            "17.0",
            truth="e4m3(17.0)",
            why="Between 16 and 32 the step is 2. A tie: the even mantissa wins.",
        ),
        Ask(
            "300.0",
            truth="e4m3(300.0)",
            why="Between 256 and 512 the step is 32: 288 is nearer than 320.",
        ),
        Ask(
            "0.0009 at a scale of 2¹⁸ is off by less than 5 %",
            truth="abs(small - 0.0009) < 0.05 * 0.0009",
            why="As a normal number it keeps its three bits: at most 1/16 off, here less.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "You train `model.half()` without autocast, but with a well-chosen loss scale. What still goes wrong that autocast, with its FP32 weights, avoids?",
            choices=[
                Choice(
                    "Updates smaller than half a step of the FP16 weight are lost.",
                    right=True,
                    why="There are no float32 master weights to collect them. A loss scale does not help: the update is unscaled again before it is applied.",
                ),
                Choice(
                    "Small gradients underflow to zero in the backward pass.",
                    why="They would without a loss scale, which mends exactly that.",
                ),
                Choice(
                    "Matrix products cannot run in FP16.",
                    why="They can, and autocast runs them there too.",
                ),
            ],
        ),
        Question(
            "You train with SGD. The scale is 2¹⁶, the true gradient norm 0.5, max_norm 1, and you clip before `unscale_`. What happens?",
            choices=[
                Choice(
                    "Nothing is clipped: 0.5 is below the bound.",
                    why="The norm that clipping sees is that of the scaled gradients, 32768.",
                ),
                Choice(
                    "The step is 32768 times too small.",
                    right=True,
                    why="The scaled norm, 32768, is clipped to 1; unscaling then divides by 2¹⁶. A true norm of 2⁻¹⁶ is left of 0.5.",
                ),
                Choice("The step is skipped.", why="Only inf or NaN skips, and there is none."),
            ],
        ),
        Question(
            "Why does BF16 usually need no GradScaler?",
            choices=[
                Choice("It has more mantissa bits than FP16.", why="It has fewer, 7 against 10."),
                Choice(
                    "It has FP32's eight exponent bits, so gradients neither vanish nor overflow earlier than there.",
                    right=True,
                    why="Its smallest normal number is that of FP32, 2⁻¹²⁶. It pays in precision.",
                ),
                Choice(
                    "Autocast scales the loss by itself.",
                    why="Autocast chooses dtypes and never touches the loss.",
                ),
            ],
        ),
        Question(
            "A run in FP16 skips every step, and its scale has fallen to 2⁻³⁰. What is most likely?",
            choices=[
                Choice(
                    "The scale starts too high for this model, and is still on its way to where gradients fit.",
                    why="From 2¹⁶ that took 46 halvings. True gradients of ordinary size would fit long before.",
                ),
                Choice(
                    "growth_interval is too long.",
                    why="That decides how fast it grows after good steps, and there are none.",
                ),
                Choice(
                    "There is an inf or NaN that no scale removes, in the forward pass for example.",
                    right=True,
                    why="A NaN times any scale is NaN. Look at the loss and the activations, not at the scaler.",
                ),
            ],
        ),
        Question(
            "You multiply in FP8 with delayed scaling, and a tensor is suddenly 50 times larger than its remembered amax. What does a good implementation do with it?",
            choices=[
                Choice(
                    "It saturates at the largest finite value, and the new amax enters the history.",
                    right=True,
                    why="The step is off, but finite, and the next scale knows better.",
                ),
                Choice(
                    "It gives inf, so that the GradScaler skips the step.",
                    why="E4M3 has no inf, and one large activation need not cost a step.",
                ),
                Choice(
                    "It takes the new amax, makes a scale of it, and starts the product of this step again.",
                    why="A scale from the tensor itself is current scaling, which reads the tensor twice; delayed scaling exists to avoid that.",
                ),
            ],
        ),
    ]
)
