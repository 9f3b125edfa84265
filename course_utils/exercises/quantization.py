"""Exercises of chapter 27, quantization: integers with a scale, products of them, four bits, GPTQ, a layer."""
# mypy: ignore-errors

from typing import ClassVar

import torch
from hypothesis import strategies as st
from torch import nn

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes.chapters import quantization as driving
from course_utils.reference import quantization
from course_utils.reference.quantization import dequantize, spread

INF = float("inf")
BF16, F64 = torch.bfloat16, torch.float64
SCALES = (0.25, 0.5, 1.0, 0.1875, 0.40625)
"""Steps that float32 has exactly, and of which it has many multiples."""


def normal(*shape, dtype=torch.float32, seed=0):
    """Fixed standard normal numbers, for cases without draws."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def integers(*shape, low=-128, high=127, dtype=torch.int8, seed=0):
    """Fixed integers from low to high."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=generator).to(dtype)


def drawn_integers(draw, shape, low, high, dtype=torch.int8):
    return integers(*shape, low=low, high=high, dtype=dtype, seed=draw(st.integers(0, 9999)))


def whole(*values):
    return torch.tensor(values, dtype=torch.int8)


def half_steps(*steps):
    """For each of these steps the numbers halfway between its multiples, as near as float32 comes to them."""
    scale = torch.tensor(steps)[:, None]
    return (torch.arange(-40, 40) + 0.5) * scale, scale


def zeros_like(scale):
    return torch.zeros(scale.shape, dtype=torch.int32)


def zero(value=0):
    return torch.tensor(value, dtype=torch.int32)


# ------------------------------------------------------------------------------ affine_qparams

affine_qparams = Exercise(
    quantization.affine_qparams,
    title="Scale and zero point",
    difficulty=1,
    minutes=15,
    points=2,
    hints=(
        "First extend each range to 0: low is at most 0, high at least 0. `clamp` does it.",
        "There are qmax − qmin steps between the integers; the scale is what one step is worth.",
        "The zero point is the integer at which 0 lies: qmin − low / scale, rounded.",
        ("edge cases", "What is the scale of a tensor of zeros? It must not be 0: it divides."),
    ),
)


@affine_qparams.by_hand
def _():
    yield (
        call(torch.tensor(-1.0), torch.tensor(3.0), 0, 4),
        (torch.tensor(1.0), zero(1)),
    )
    yield (
        call(torch.tensor([-2.0, 1.0]), torch.tensor([2.0, 4.0]), -4, 4),
        (torch.tensor([0.5, 0.5]), torch.tensor([0, -4], dtype=torch.int32)),
    )
    yield (
        call(torch.tensor(-4.0), torch.tensor(-2.0), 0, 8),
        (torch.tensor(0.5), zero(8)),
    )
    yield (
        call(torch.tensor(-3.5), torch.tensor(1.0), -8, 7, True),
        (torch.tensor(0.5), zero(0)),
    )


RANGES = ((-128, 127), (0, 255), (-8, 7), (-7, 7), (0, 15), (3, 10))


@affine_qparams.cases
def _(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    ends = [draw(draws.tensors(shape, scale=2.0)) for _ in range(2)]
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    qmin, qmax = draw(st.sampled_from(RANGES))
    symmetric = qmin <= -qmax < 0 and draw(st.booleans())
    yield call(low, high, qmin, qmax, symmetric)


@affine_qparams.edge
def _():
    one = torch.tensor(1.0)
    yield call(torch.zeros(2), torch.zeros(2), -128, 127), "zeros alone"
    yield call(torch.zeros(2), torch.zeros(2), -128, 127, True), "zeros alone, symmetric"
    yield call(torch.full((3,), 2.5), torch.full((3,), 2.5), 0, 255), "a constant above 0"
    yield call(torch.full((3,), -2.5), torch.full((3,), -2.5), 0, 255), "a constant below 0"
    yield call(torch.tensor([0.5, -3.0]), torch.tensor([2.0, -1.0]), -8, 7, True), "one sign"
    yield call(torch.tensor([-3.0, -1.0]), torch.tensor([1.0, 3.0]), -7, 7, True), "−7 to 7"
    yield call(torch.tensor(-1e-6), torch.tensor(2e-6), 0, 255), "a small range"
    yield (
        call(torch.tensor(-4.2e-43), torch.tensor(0.0), 0, 255),
        "so small that the scale is inexact",
    )
    yield (
        call(torch.tensor([-1.1, -2.3], dtype=BF16), torch.tensor([0.7, 3.1], dtype=BF16), 0, 255),
        ("bfloat16"),
    )
    yield call(normal(3, dtype=F64) - 2, normal(3, dtype=F64) + 2, -128, 127), "float64"
    yield call(normal(0), normal(0), -128, 127), "no channel"
    yield (
        call(torch.zeros(0, 3, device="meta"), torch.zeros(0, 3, device="meta"), 0, 15),
        ("no channel, on another device than the default one"),
    )
    yield call(torch.tensor(-0.5), torch.tensor(3.5), 0, 4), "a tie: the zero point is even"
    yield call(torch.tensor(-2.5), torch.tensor(1.5), 0, 4), "another tie"
    yield call(torch.tensor(-0.5), torch.tensor(3.5), 1, 5), "a tie, and qmin is odd"
    yield (
        call(draws.scattered(-normal(2, 3).abs()), draws.scattered(normal(2, 3).abs()), 0, 15),
        ("not contiguous"),
    )
    yield call(-one, one, -1, 1, True), "three integers"
    yield call(-one, one, 5, 5), "one integer is no range"
    yield call(-one, one, 7, -8), "qmin above qmax"
    yield call(-one, one, 0, 255, True), "symmetric, and no negative integers"
    yield call(-one, one, -7, 8, True), "symmetric, and −8 is missing"
    yield call(-one, one, -8, 0, True), "symmetric, and no positive integers"


ONE_END = (
    "You extend the range to 0 at one end only. One below 0 needs its high raised, one above 0 its low "
    "lowered."
)
INSTEAD_OF_ONE = (
    "Where a scale would be 0 you put a small number in its place. It is 1: any number that comes there "
    "later would be divided by the small one."
)
IN_LOWS_DTYPE = "You compute in the dtype of `low`. Turn low and high to float32 first: the scale is computed in it."
affine_qparams.slips(
    {
        replace(
            ".clamp(max=0.0)", "", ".clamp(min=0.0)", ""
        ): "You do not extend a range of one sign to 0. Then 0 has no integer of its own, and padding becomes "
        "noise.",
        replace(".clamp(min=0.0)", ""): ONE_END,
        replace(".clamp(max=0.0)", ""): ONE_END,
        replace(
            "(qmax - qmin)", "(qmax - qmin + 1)"
        ): "You divide by the number of integers. Between them there is one step fewer.",
        replace(
            "qmin - low / scale", "qmin + low / scale"
        ): "The sign of low / scale is wrong: low is negative, and the zero point lies above qmin.",
        replace(
            "qmin - low / scale", "-low / scale"
        ): "Your zero point counts from 0. The integers begin at qmin.",
        replace(
            ").round().clamp(qmin, qmax).int()", ").clamp(qmin, qmax).int()"
        ): "You cut the zero point off instead of rounding it. Round to the nearest, halves to even.",
        replace(
            "(qmin - low / scale).round()", "(qmin - low / scale + 0.5).floor()"
        ): "You round halves up. `torch.round` rounds them to the even integer.",
        replace(
            "(qmin - low / scale).round()", "(qmin - (low / scale).round())"
        ): "You round low / scale by itself. Round the whole, qmin − low / scale: with an odd qmin a half goes the "
        "other way.",
        replace(
            ".round().clamp(qmin, qmax).int()", ".round().clamp(qmin, qmax)"
        ): "Your zero point is a float. It is an integer, int32.",
        replace(
            "scale = torch.where(scale == 0, 1.0, scale)", ""
        ): "For a tensor of zeros your scale is 0, and x / scale is NaN. It is 1 there.",
        replace(
            "scale = torch.where(scale == 0, 1.0, scale)",
            "scale = torch.where(scale == 0, 1e-7, scale)",
        ): INSTEAD_OF_ONE,
        replace(
            "scale = torch.where(scale == 0, 1.0, scale)",
            "scale = torch.where(scale == 0, torch.finfo(torch.float32).eps, scale)",
        ): INSTEAD_OF_ONE,
        replace(
            "scale = torch.where(scale == 0, 1.0, scale)", "scale = scale.clamp(min=1e-5)"
        ): "You keep the scale from being small. A small range has a small scale; only one that would be 0 "
        "is 1.",
        replace(
            "torch.maximum(-low, high) / qmax", "torch.maximum(-low, high) / ((qmax - qmin) / 2)"
        ): "You divide by half the number of steps. With −8 to 7 that is 7.5, an integer that is not there: "
        "the largest number must reach qmax.",
        replace(
            "torch.maximum(-low, high) / qmax", "torch.maximum(-low, high) / max(-qmin, qmax)"
        ): "You divide by the larger of −qmin and qmax. The largest positive number must reach qmax, the lesser "
        "of the two.",
        replace(
            "torch.maximum(-low, high) / qmax", "high / qmax"
        ): "Your symmetric scale looks at `high` alone. The larger of |low| and |high| decides.",
        replace(
            "torch.maximum(-low, high) / qmax", "(high - low) / (2 * qmax)"
        ): "Your symmetric scale is half of the range. A range that is not centred then loses its far end: "
        "take the larger of |low| and |high|.",
        replace(
            "torch.zeros_like(scale, dtype=torch.int32)",
            "torch.full_like(scale, qmin + (qmax - qmin) // 2, dtype=torch.int32)",
        ): "You put the symmetric zero point in the middle of the integers. It is 0.",
        replace(
            "if qmin >= qmax:", "if False:"
        ): "You take any qmin and qmax. qmin < qmax, else raise ValueError.",
        replace(
            "if qmin >= qmax:", "if qmin > qmax:"
        ): "You take qmin = qmax. There is no step between "
        "one integer and itself: raise ValueError.",
        replace(
            "symmetric and not qmin <= -qmax < 0", "False"
        ): "You do not check the integers of a symmetric range: unless qmin ≤ −qmax < 0, raise ValueError.",
        replace(
            "qmin <= -qmax < 0", "qmin == -qmax < 0"
        ): "You refuse −128 to 127 for a symmetric range. One integer more below is allowed.",
        replace(
            "low, high = low.float().clamp(max=0.0), high.float().clamp(min=0.0)",
            "low, high = low.clamp(max=0.0), high.clamp(min=0.0)",
        ): IN_LOWS_DTYPE,
        replace(
            "low, high = low.float().clamp(max=0.0), high.float().clamp(min=0.0)",
            "low, high = low.clamp(max=0.0), high.clamp(min=0.0)",
            "return scale, torch.zeros_like(scale, dtype=torch.int32)",
            "return scale.float(), torch.zeros_like(scale, dtype=torch.int32)",
            "return scale, (qmin - low / scale)",
            "return scale.float(), (qmin - low / scale)",
        ): IN_LOWS_DTYPE,
        replace(
            "low.float().clamp(max=0.0)", "low.float().clamp_(max=0.0)"
        ): "You write into `low`, which belongs to the caller. Use `clamp`.",
        replace(
            ".round().clamp(qmin, qmax).int()", ".round().int()"
        ): "Your zero point can leave the range of the integers where the scale is inexact. Clamp it.",
    }
)


@affine_qparams.mistake(
    "You take one range for all channels. Each element of `low` and `high` has its own scale."
)
def _(low, high, qmin, qmax, symmetric=False):
    if low.numel():
        low, high = low.amin().expand(low.shape), high.amax().expand(high.shape)
    return quantization.affine_qparams(low, high, qmin, qmax, symmetric)


@affine_qparams.alternative("minimum and maximum with zeros")
def _(low, high, qmin, qmax, symmetric=False):
    if not qmin < qmax or (symmetric and (qmax <= 0 or -qmax < qmin)):
        raise ValueError("integers")
    none = torch.zeros_like(low, dtype=torch.float32)
    below, above = torch.minimum(low.float(), none), torch.maximum(high.float(), none)
    if symmetric:
        scale, points = torch.stack((below, above)).abs().amax(0) / qmax, none
    else:
        scale, points = (above - below) / (qmax - qmin), None
    scale = scale.masked_fill(scale == 0, 1.0)
    if points is None:
        points = torch.clamp(torch.round(qmin - below / scale), min=qmin, max=qmax)
    return scale, points.to(torch.int32)


# ------------------------------------------------------------------------------ quantize, dequantize

quantize = Exercise(
    (quantization.quantize, quantization.dequantize),
    title="To integers and back",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.one_of,
    hints=(
        "`spread(scale, x.shape)` gives each number the scale of its block, whatever the blocks are.",
        "Round first, add the zero point then: both orders differ where x / scale is halfway.",
        "Clamp before you turn to int8: a cast wraps, 130 becomes −126.",
        (
            "edge cases",
            "On the way back q − zero point can leave int8: −100 − 100. Turn q to int32 first.",
        ),
    ),
)


@quantize.by_hand
def _():
    x = torch.tensor([-1.0, -0.25, 0.0, 0.75, 1.25, 100.0])
    yield (call("quantize", x, torch.tensor(0.5), zero(1), -8, 7), whole(-1, 1, 1, 3, 3, 7))
    q, scale = whole(-1, 1, 7), torch.tensor(0.5)
    yield call("dequantize", q, scale, zero(1)), torch.tensor([-1.0, 0.0, 3.0])
    rows = torch.tensor([[1.0, 2.0, 4.0, 6.0], [1.0, 2.0, 4.0, 6.0]])
    scales = torch.tensor([[1.0, 2.0], [0.5, 4.0]])
    yield (
        call("quantize", rows, scales, zeros_like(scales), -8, 7),
        torch.tensor([[1, 2, 2, 3], [2, 4, 1, 2]], dtype=torch.int8),
    )


def blocks_drawn(draw):
    """A shape, and a shape of parameters that fits it."""
    counts = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 3)))]
    sizes = [draw(st.integers(1, 3)) for _ in counts]
    shape = tuple(n * size for n, size in zip(counts, sizes, strict=True))
    params = [n if draw(st.booleans()) else 1 for n in counts]
    return shape, tuple(params[draw(st.integers(0, len(params))) :])


def scales_drawn(draw, shape):
    size = torch.Size(shape).numel()
    values = [draw(st.sampled_from(SCALES)) for _ in range(size)]
    return torch.tensor(values).view(shape)


@quantize.cases(40)
def _(draw):
    shape, params = blocks_drawn(draw)
    x = draw(draws.tensors(shape, scale=3.0)).mul(8).round() / 8
    scale = scales_drawn(draw, params)
    qmin, qmax, dtype = draw(
        st.sampled_from(((-128, 127, torch.int8), (-8, 7, torch.int8), (0, 15, torch.uint8)))
    )
    points = drawn_integers(draw, params, max(qmin, -20), min(qmax, 20), torch.int32)
    yield call("quantize", x, scale, points, qmin, qmax, dtype)


@quantize.cases(10)
def _(draw):
    x, scale = half_steps(
        *draw(st.lists(st.floats(0.015625, 9.0, width=32), min_size=1, max_size=4))
    )
    n = draw(st.integers(1, 40))
    yield call("quantize", x[:, 40 - n : 40 + n], scale, zeros_like(scale), -128, 127)


@quantize.cases(20)
def _(draw):
    shape, params = blocks_drawn(draw)
    scale = scales_drawn(draw, params)
    points = drawn_integers(draw, params, -128, 127, torch.int32)
    dtype = draw(st.sampled_from((torch.float32, BF16)))
    yield call("dequantize", drawn_integers(draw, shape, -128, 127), scale, points, dtype)


@quantize.edge
def _():
    half, x = torch.tensor(0.5), normal(4, 4, seed=3) * 4
    column = torch.tensor([[0.25], [0.5], [1.0], [2.0]])
    ties = torch.tensor([-1.25, -0.75, -0.25, 0.25, 0.75, 1.25])
    yield (
        call("quantize", x, column, zeros_like(column), -8, 7),
        "a scale a row; as many rows as columns",
    )
    yield call("quantize", x, column.T, zeros_like(column.T), -8, 7), "a scale a column"
    yield call("quantize", ties, half, zero(0), -8, 7), "halves go to the even integer"
    yield call("quantize", ties, half, zero(3), -8, 7), "halves, and an odd zero point"
    x_halves, steps = half_steps(0.1, 0.3, 0.0925194, 1.7)
    yield (
        call("quantize", x_halves, steps, zeros_like(steps), -128, 127),
        "halfway between two integers: x / scale, and not x · (1 / scale)",
    )
    yield call("quantize", torch.tensor([-INF, INF, 1e30]), half, zero(5), -128, 127), "infinities"
    yield (
        call("quantize", torch.tensor([-100.0, 100.0]), half, zero(0), -7, 7),
        "a range narrower than int8",
    )
    yield (
        call("quantize", torch.tensor([70.0, 40.0]), half, zero(60), -128, 127),
        "the zero point leads beyond",
    )
    yield call("quantize", x, half, zero(200), 0, 255, torch.uint8), "uint8"
    yield call("quantize", x * 100, half, zero(0), -(2**15), 2**15 - 1, torch.int16), "int16"
    yield (
        call(
            "quantize",
            normal(64, dtype=BF16, seed=1) * 20,
            torch.tensor(0.1875),
            zero(0),
            -128,
            127,
        ),
        ("bfloat16"),
    )
    yield call("quantize", x.double(), half.double(), zero(1), -8, 7), "float64"
    nearly = torch.tensor([0.25 + 2**-40, 0.75 - 2**-40], dtype=F64)
    yield call("quantize", nearly, half, zero(0), -8, 7), "float64, which float32 takes for halves"
    yield call("quantize", x, half.bfloat16(), zero(1), -8, 7), "a scale in bfloat16"
    yield call("quantize", draws.scattered(x), column, zeros_like(column), -8, 7), "not contiguous"
    yield call("quantize", normal(0, 4), torch.ones(1, 2), torch.zeros(1, 2).int(), -8, 7), "no row"
    yield (
        call("quantize", normal(6, 5), torch.ones(6, 2), torch.zeros(6, 2).int(), -8, 7),
        ("groups that do not fit: an error"),
    )
    yield (
        call("quantize", normal(6), torch.ones(2, 6), torch.zeros(2, 6).int(), -8, 7),
        ("more axes than x: an error"),
    )
    meta = torch.zeros(2, 6, device="meta")
    yield (
        call("quantize", meta, meta[:, :2], meta[:, :2].int(), -8, 7),
        "on another device than the default one",
    )
    both = normal(64, dtype=BF16, seed=1) * 20
    step = torch.tensor(0.1875, dtype=BF16)
    yield call("quantize", both, step, zero(0), -128, 127), "x and scale in bfloat16"
    q = whole(-128, -100, 0, 100, 127)
    yield call("dequantize", q, half, zero(100)), "differences beyond int8"
    yield call("dequantize", q, half, zero(-128)), "the least zero point"
    yield call("dequantize", q, half, zero(100).to(torch.int8)), "a zero point in int8"
    yield call("dequantize", q.view(torch.uint8), half, zero(200)), "uint8"
    yield call("dequantize", q, torch.tensor(0.1), zero(3), BF16), "to bfloat16, rounded once"
    yield call("dequantize", q, torch.tensor(0.1, dtype=BF16), zero(3)), "from a scale in bfloat16"
    yield call("dequantize", q, torch.tensor(0.1), zero(3), F64), "to float64"
    yield (
        call("dequantize", draws.scattered(integers(4, 4)), column, zeros_like(column)),
        "not contiguous",
    )
    yield call("dequantize", integers(0, 4), torch.ones(1, 1), torch.zeros(1, 1).int()), "no row"
    yield (
        call("dequantize", integers(6, 5), torch.ones(6, 2), torch.zeros(6, 2).int()),
        "groups that do not fit: an error",
    )
    yield (
        call("dequantize", integers(6), torch.ones(2, 6), torch.zeros(2, 6).int()),
        "more axes than q: an error",
    )


quantize.contract(
    contracts.constant_kernels(
        [
            call(
                "quantize", normal(rows, 24), torch.ones(rows, n), torch.zeros(rows, n).int(), -8, 7
            )
            for rows, n in ((2, 3), (30, 3), (30, 12))
        ],
        says="no Python loop over rows, blocks or elements, and no NumPy",
        prepare=driving.one_called,
    )
)
quantize.contract(
    contracts.constant_kernels(
        [
            call("dequantize", integers(rows, 24), torch.ones(rows, n), torch.zeros(rows, n).int())
            for rows, n in ((2, 3), (30, 3), (30, 12))
        ],
        says="`dequantize` likewise: no Python loop over rows, blocks or elements, and no NumPy",
        prepare=driving.one_called,
    )
)
TILED = (
    "You repeat the scales as a whole, a b a b. Neighbours share one, a a b b: `repeat_interleave`, or "
    "`spread`."
)
RECIPROCAL = (
    "You multiply by 1 / scale. That rounds twice, and where x lies halfway between two integers another one "
    "can come out: divide x by the scale."
)
LEVELS = "(x.float() / spread(scale, x.shape)).round() + spread(zero_point, x.shape)"
BACK = "steps = q.int() - spread(zero_point, q.shape)"
WIDE_X = "x.to(torch.promote_types(x.dtype, torch.float32))"
IN_FLOAT64 = "float64 stays float64 with you. It is float32 that is asked for: near a half the integers differ."
quantize.slips(
    {
        replace(
            ".round() + spread(zero_point, x.shape)", ".round() - spread(zero_point, x.shape)"
        ): "You subtract the zero point on the way to integers. There it is added; on the way back it is "
        "subtracted.",
        replace(
            LEVELS,
            "(x.float() / spread(scale, x.shape) + spread(zero_point, x.shape)).round()",
        ): "You round after the zero point was added. With an odd zero point halves then go the other way: "
        "round x / scale.",
        replace(
            "x.float() / spread(scale, x.shape)", "x.float() * spread(1 / scale.float(), x.shape)"
        ): RECIPROCAL,
        replace(
            "x.float() / spread(scale, x.shape)", "x.float() * (1 / spread(scale.float(), x.shape))"
        ): RECIPROCAL,
        replace(
            "x.float() / spread(scale, x.shape)",
            "(x.double() / spread(scale.double(), x.shape))",
            "return levels.clamp",
            "levels = levels.float()\n    return levels.clamp",
        ): "You divide in float64. It is float32 that is asked for: halfway between two integers they differ.",
        replace("x.float()", WIDE_X): IN_FLOAT64,
        replace(
            ".round() +", ".trunc() +"
        ): "You cut the fraction off instead of rounding to the nearest.",
        replace(
            LEVELS,
            "(x.float() / spread(scale, x.shape) + 0.5).floor() + spread(zero_point, x.shape)",
        ): "You round halves up. They go to the even integer, as `torch.round` does it.",
        replace(
            LEVELS,
            "(x.float() / spread(scale, x.shape)).round().clamp(qmin, qmax) + "
            "spread(zero_point, x.shape)",
            "levels.clamp(qmin, qmax).to(dtype)",
            "levels.to(dtype)",
        ): "You clamp before the zero point is added. The sum has to lie in [qmin, qmax].",
        replace(
            "levels.clamp(qmin, qmax).to(dtype)", "levels.to(dtype)"
        ): "You do not clamp. A cast to int8 wraps: 130 becomes −126.",
        replace(
            "levels.clamp(qmin, qmax).to(dtype)", "levels.to(dtype).clamp(qmin, qmax)"
        ): "You cast before you clamp. The cast wraps, and then it is too late.",
        replace(
            "(x.float() / spread(scale, x.shape)).round() +",
            "(x.float() / spread(scale, x.shape)).round().int() +",
        ): "You turn x / scale to integers before you clamp. An infinity, or 1e30, has no int32, and wraps.",
        replace(
            "levels.clamp(qmin, qmax)",
            "levels.clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max)",
        ): "You clamp to the range of the dtype. qmin and qmax may be narrower, as they are for four bits in "
        "an int8.",
        replace(
            "x.float() / spread", "x.float() * spread"
        ): "You multiply by the scale on the way to integers. Divide; on the way back it is multiplied.",
        replace(
            "levels.clamp(qmin, qmax).to(dtype)", "levels.clamp(qmin, qmax).to(torch.int8)"
        ): "Your integers are always int8. The result has the dtype that is asked for.",
        replace(
            "x.float() / spread(scale, x.shape)", "x / spread(scale, x.shape).to(x.dtype)"
        ): "You divide in x's dtype. bfloat16 has eight bits, and rounds the quotient before you do: turn x "
        "to float32.",
        replace(
            "x.float() / spread(scale, x.shape)",
            "x.float().div_(spread(scale, x.shape))",
        ): "You divide in place. `float()` of a float32 tensor is that tensor: you write over the caller's x.",
        replace(
            "spread(scale, x.shape)).round()",
            "spread(scale[..., 0] if scale.ndim == x.ndim == 2 and scale.size(1) == 1 and "
            "scale.size(0) == x.size(1) else scale, x.shape).float()).round()",
        ): "You lay the scales of the rows along the columns. A scale of shape (out, 1) is one for each row; "
        "without its axis of size 1 it broadcasts the other way.",
        replace(
            "spread(scale, x.shape)).round()",
            "(scale if scale.ndim < x.ndim else scale.repeat([a // max(b, 1) for a, b in "
            "zip(x.shape, scale.shape)])).float()).round()",
        ): TILED,
        replace(
            BACK,
            "if scale.ndim > q.ndim:\n        return ((q.int() - zero_point) * scale.float()).to(dtype)\n    "
            + BACK,
        ): "Your `dequantize` takes parameters with more axes than q. They do not fit, though they would broadcast: "
        "raise ValueError.",
        replace(
            BACK,
            "if scale.ndim and q.size(-1) % scale.size(-1):\n        raise RuntimeError(q.shape)\n    "
            + BACK,
        ): "Groups that do not fit end in torch's RuntimeError in your `dequantize`. Raise ValueError there, too.",
        replace(
            BACK, "steps = q.int() + spread(zero_point, q.shape)"
        ): "You add the zero point on the way back. There it is subtracted.",
        replace(
            BACK, "steps = q - spread(zero_point, q.shape).to(q.dtype)"
        ): "You subtract in q's dtype. −100 − 100 is no int8, and wraps: turn q to int32 first.",
        replace(
            "(steps * spread(scale, q.shape).float()).to(dtype)",
            "(q.int() * spread(scale, q.shape).float() - spread(zero_point, q.shape)).to(dtype)",
        ): "You subtract the zero point from the scaled number. It is an integer: subtract it from q, then "
        "scale.",
        replace(
            "(steps * spread(scale, q.shape).float()).to(dtype)",
            "steps * spread(scale, q.shape).float()",
        ): "You return float32 whatever dtype is asked for.",
        replace(
            "(steps * spread(scale, q.shape).float()).to(dtype)",
            "steps.to(dtype) * spread(scale, q.shape).to(dtype)",
        ): "You multiply in the result's dtype. Compute the product in float32, and round it once.",
    }
)


def tiled(params, shape):
    """What `spread` gives, but each axis repeated as a whole."""
    spread(params, shape)  # refuses what does not fit
    sizes = (1,) * (len(shape) - params.ndim) + tuple(params.shape)
    return params.repeat([size // max(n, 1) for n, size in zip(sizes, shape, strict=True)])


def quantize_tiled(x, scale, zero_point, qmin, qmax, dtype=torch.int8):
    levels = (x.float() / tiled(scale, x.shape)).round() + tiled(zero_point, x.shape)
    return levels.clamp(qmin, qmax).to(dtype)


def dequantize_tiled(q, scale, zero_point, dtype=torch.float32):
    steps = q.int() - tiled(zero_point, q.shape)
    return (steps * tiled(scale, q.shape).float()).to(dtype)


quantize.mistake(TILED)(quantize_tiled, dequantize_tiled)


def quantize_by_rows(x, scale, zero_point, qmin, qmax, dtype=torch.int8):
    if scale.ndim != x.ndim or x.ndim < 2 or scale.size(0) != x.size(0) or not x.numel():
        return quantization.quantize(x, scale, zero_point, qmin, qmax, dtype)
    rows = zip(x, scale, zero_point, strict=True)
    return torch.stack([quantization.quantize(*row, qmin, qmax, dtype) for row in rows])


def dequantize_by_rows(q, scale, zero_point, dtype=torch.float32):
    if scale.ndim != q.ndim or q.ndim < 2 or scale.size(0) != q.size(0) or not q.numel():
        return quantization.dequantize(q, scale, zero_point, dtype)
    rows = zip(q, scale, zero_point, strict=True)
    return torch.stack([quantization.dequantize(*row, dtype) for row in rows])


for pair in (
    (quantize_by_rows, dequantize),
    (quantization.quantize, dequantize_by_rows),
    (quantize_by_rows, dequantize_by_rows),
):
    quantize.mistake("The values are right, but Python goes through the rows.", cost=True)(*pair)


def quantize_unfolded(x, scale, zero_point, qmin, qmax, dtype=torch.int8):
    """Other words: a loop over axes that doubles nothing, and where in place of clamp."""
    level = torch.round(x.to(torch.float32) / spread(scale, x.shape).to(torch.float32))
    level = spread(zero_point, x.shape) + level
    level = torch.where(level < qmin, float(qmin), level)
    return torch.where(level > qmax, float(qmax), level).to(dtype)


def dequantize_unfolded(q, scale, zero_point, dtype=torch.float32):
    """In float64 until the product, which is then rounded to float32 and to the dtype."""
    steps = q.double() - spread(zero_point, q.shape).double()
    return (steps.float() * spread(scale, q.shape).to(torch.float32)).to(dtype)


quantize.alternative("where in place of clamp, differences in float64")(
    quantize_unfolded, dequantize_unfolded
)


# ------------------------------------------------------------------------------ MinMaxObserver

MinMaxObserver = Exercise(
    quantization.MinMaxObserver,
    title="An observer",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.observed,
    hints=(
        "Begin with low = +∞ and high = −∞: any number then extends the range.",
        "`x.amin(axes, keepdim=True)` takes several axes: all but the one that has ranges of its own.",
        "`axis % x.ndim` makes a negative axis positive.",
        ("edge cases", "amin of no element raises: a batch without elements changes nothing."),
    ),
)


@MinMaxObserver.by_hand
def _():
    inf, x = torch.tensor(INF), torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    low, high = torch.tensor(-2.0), torch.tensor(3.0)
    yield (
        call({}, ("observe", x)),
        {
            "new": {"low": inf, "high": -inf, "requires grad": False},
            "step 1 (observe): returns": None,
            "step 1 (observe): range": {"low": low, "high": high, "requires grad": False},
        },
    )
    columns = {"low": torch.tensor([[1.0, -2.0]]), "high": torch.tensor([[3.0, 0.5]])}
    yield (
        call({"axis": 1}, ("observe", x)),
        {
            "new": {"low": inf, "high": -inf, "requires grad": False},
            "step 1 (observe): returns": None,
            "step 1 (observe): range": columns | {"requires grad": False},
        },
    )


@MinMaxObserver.cases(25)
def _(draw):
    ndim = draw(st.integers(1, 3))
    axis = draw(st.sampled_from((None, *range(-ndim, ndim))))
    C, steps = draw(st.integers(1, 4)), []
    for _ in range(draw(st.integers(1, 3))):
        shape = [draw(st.integers(1, 3)) for _ in range(ndim)]
        if axis is not None:
            shape[axis] = C
        steps.append(("observe", draw(draws.tensors(tuple(shape), scale=2.0))))
    asked = draw(st.sampled_from(((-128, 127), (0, 15), (-8, 7, True))))
    build = draw(st.sampled_from(({}, {"axis": None}))) if axis is None else {"axis": axis}
    yield call(build, *steps, ("qparams", *asked))


@MinMaxObserver.edge
def _():
    x = normal(2, 3, 4)
    asked = ("qparams", -128, 127)
    yield call({}, asked), "nothing was seen"
    yield call({"axis": 0}, asked, ("observe", x), asked), "nothing was seen at first"
    yield call({}, ("observe", x), ("observe", x / 2), asked), "a smaller range changes nothing"
    yield call({}, ("observe", x.abs() + 1), asked), "positive numbers alone: `low` is theirs"
    yield (
        call({}, ("observe", x), asked, ("observe", 9 * x), asked),
        "it goes on after it was asked",
    )
    yield call({"axis": 2}, ("observe", x), ("observe", -3 * x), asked), "channels, twice"
    yield call({"axis": -2}, ("observe", x), asked), "a negative axis"
    yield call({"axis": 0}, ("observe", normal(4)), asked), "one axis, and it is the channels'"
    yield call({}, ("observe", x), ("observe", normal(0, 3)), asked), "no element"
    yield call({"axis": 1}, ("observe", normal(0, 3)), asked), "no element, and nothing before"
    yield call({}, ("observe", normal(5, dtype=BF16)), asked), "bfloat16"
    yield call({"axis": 1}, ("observe", normal(2, 3, dtype=F64)), asked), "float64"
    yield (
        call({"axis": 1}, ("observe", x.clone().requires_grad_()), asked),
        "numbers with a gradient",
    )
    yield call({"axis": 1}, ("observe", draws.scattered(x)), asked), "not contiguous"
    yield call({}, ("observe", torch.tensor(2.5)), asked), "a single number, of no axis"


OF_NOTHING = "A batch without elements raises: it has no smallest number. It changes nothing."
IN_XS_DTYPE = "Your range has the dtype of x. It is float32."
MinMaxObserver.slips(
    {
        replace(
            "torch.minimum(self.low.to(x.device), low)",
            "low",
            "torch.maximum(self.high.to(x.device), high)",
            "high",
        ): "You keep the range of the last batch alone. Extend the range that there is.",
        replace(
            "self.low = torch.tensor(torch.inf)",
            "self.low = torch.tensor(0.0)",
            "self.high = torch.tensor(-torch.inf)",
            "self.high = torch.tensor(0.0)",
        ): "You begin at 0, so the range always contains it. Begin with +∞ and −∞; `affine_qparams` extends "
        "to 0.",
        replace(
            "if self.axis is None or i != self.axis % x.ndim",
            "if self.axis is None or i == self.axis % x.ndim",
        ): "You take the extremes along the channels. They are what is left; reduce over all other axes.",
        replace(
            "i != self.axis % x.ndim", "i != self.axis"
        ): "A negative axis is compared with positive numbers and never found. Take it modulo the number of "
        "axes.",
        replace(
            " if axes else (x, x)", ""
        ): "With one axis, the channels', there is nothing to reduce, and an empty list of axes means all of "
        "them to `amin`.",
        replace(
            "keep = self.axis is not None", "keep = False"
        ): "You drop the other axes. With them, of size 1, the scale fits `quantize`.",
        replace(
            "keep = self.axis is not None", "keep = True"
        ): "Your range of a whole tensor has axes. Without an axis it has none.",
        replace(
            "x.detach().float()", "x.float()"
        ): "Your range carries a graph, and with it the memory of every batch. Detach x.",
        replace("x.detach().float()", "x.detach()"): IN_XS_DTYPE,
        replace(
            "x.detach().float()",
            "x.detach()",
            "self.low = torch.minimum(self.low.to(x.device), low)",
            "self.low = torch.minimum(self.low.to(low), low)",
            "self.high = torch.maximum(self.high.to(x.device), high)",
            "self.high = torch.maximum(self.high.to(high), high)",
        ): IN_XS_DTYPE,
        replace("if x.numel() == 0:", "if False:"): OF_NOTHING,
        replace(
            "if x.numel() == 0:",
            "if False:",
            "(x.amin(axes, keep), x.amax(axes, keep)) if axes else (x, x)",
            "x.aminmax() if not keep else (x.amin(axes, keep), x.amax(axes, keep)) if axes else (x, x)",
        ): OF_NOTHING,
        replace(
            "if bool((self.low > self.high).any()):", "if False:"
        ): "You give parameters before anything was seen, of an infinite range. Raise ValueError.",
        replace(
            "self.axis = axis",
            "self.axis, self.seen = axis, False",
            "if x.numel() == 0:",
            "self.seen = True\n        if x.numel() == 0:",
            "if bool((self.low > self.high).any()):",
            "if not self.seen:",
        ): "A batch without elements counts as seen in your code, and the range is still infinite. Before there was a "
        "number raise ValueError.",
        replace(
            "affine_qparams(self.low, self.high, qmin, qmax, symmetric)",
            "affine_qparams(self.low, self.high, qmin, qmax)",
        ): "You do not pass `symmetric` on.",
        replace(
            "x.amax(axes, keep)", "x.abs().amax(axes, keep)"
        ): "Your `high` is the largest magnitude. A range has two ends of its own.",
        replace(
            "        return affine_qparams(",
            "        self.low, self.high = self.low.clamp(max=0.0), self.high.clamp(min=0.0)\n"
            "        return affine_qparams(",
        ): "To be asked changes your range. `qparams` only reads it.",
        replace(
            "torch.minimum(self.low.to(x.device), low)",
            "self.low * 0.9 + low * 0.1 if self.low.isfinite().all() else low",
        ): "You keep a moving average. This observer keeps the extremes.",
    }
)


@MinMaxObserver.mistake(
    "Your ranges are attributes of the class, shared by all observers. Set them in __init__."
)
class _(quantization.MinMaxObserver):
    _shared: ClassVar[dict] = {}

    def __init__(self, axis=None):
        self._shared.clear()
        super().__init__(axis)

    @property
    def low(self):
        return self._shared["low"]

    @low.setter
    def low(self, value):
        self._shared["low"] = value

    @property
    def high(self):
        return self._shared["high"]

    @high.setter
    def high(self, value):
        self._shared["high"] = value


@MinMaxObserver.alternative("channels first, flattened; None until then")
class _:
    def __init__(self, axis=None):
        self.axis, self.seen = axis, False
        self.low, self.high = torch.full((), INF), torch.full((), -INF)

    @torch.no_grad()
    def observe(self, x):
        if not x.numel():
            return
        if self.axis is None:
            low, high = x.min().float(), x.max().float()
        else:
            rows = x.movedim(self.axis, 0).reshape(x.shape[self.axis], -1)
            shape = [1] * x.ndim
            shape[self.axis] = -1
            low, high = (end.float().view(shape) for end in torch.aminmax(rows, dim=1))
        self.low = torch.minimum(low, self.low) if self.seen else low
        self.high = torch.maximum(high, self.high) if self.seen else high
        self.seen = True

    def qparams(self, qmin, qmax, symmetric=False):
        if not self.seen:
            raise ValueError("nothing seen")
        return quantization.affine_qparams(self.low, self.high, qmin, qmax, symmetric)


# ------------------------------------------------------------------------------ fake_quantize

fake_quantize = Exercise(
    quantization.fake_quantize,
    title="A gradient through the rounding",
    difficulty=2,
    minutes=20,
    points=3,
    gradients=("x",),
    hints=(
        "Compute the value without a graph: x / scale, rounded, plus the zero point, clamped, and back.",
        "z − z.detach() is 0 and has the gradient 1. Add it, where a gradient should pass, to the value.",
        "Where was x clamped? Where the rounded level was below qmin or above qmax.",
        (
            "edge cases",
            "∞ − ∞ is NaN: choose with `torch.where` before you subtract, not after.",
        ),
    ),
)


@fake_quantize.by_hand
def _():
    x = torch.tensor([-9.0, -1.0, -0.3, 0.25, 0.75, 9.0])
    yield (
        call(x, torch.tensor(0.5), zero(0), -2, 2),
        torch.tensor([-1.0, -1.0, -0.5, 0.0, 1.0, 1.0]),
    )
    yield (
        call(x, torch.tensor(0.5), zero(1), -2, 2),
        torch.tensor([-1.5, -1.0, -0.5, 0.0, 0.5, 0.5]),
    )


@fake_quantize.cases
def _(draw):
    shape, params = blocks_drawn(draw)
    x = draw(draws.tensors(shape, scale=3.0)).mul(8).round() / 8
    qmin, qmax = draw(st.sampled_from(((-8, 7), (-2, 1), (0, 15), (-128, 127))))
    points = drawn_integers(draw, params, max(qmin, -5), min(qmax, 5), torch.int32)
    yield call(x, scales_drawn(draw, params), points, qmin, qmax)


@fake_quantize.edge
def _():
    half = torch.tensor(0.5)
    column = torch.tensor([[0.25], [0.5], [1.0], [2.0]])
    x = normal(4, 4, seed=3) * 4
    yield call(x, column, zeros_like(column), -8, 7), "as many rows as columns"
    yield call(torch.tensor([-INF, INF, 0.3]), half, zero(0), -8, 7), "infinities"
    yield (
        call(torch.tensor([3.7, 3.75, 3.8, -4.2, -4.25, -4.3]), half, zero(0), -8, 7),
        "at the ends",
    )
    yield call(torch.tensor([1e8, 3e8, 5e8]), torch.tensor(1e8), zero(0), -8, 7), "large numbers"
    yield call(torch.tensor([1.0, 7e-4]), torch.tensor(1e-3), zero(0), -8, 7), "small steps"
    beyond = torch.tensor([1e38, -1e38, 0.002])
    yield call(beyond, torch.tensor(1e-3), zero(0), -8, 7), "x / scale is infinite, and x is not"
    x_halves, steps = half_steps(0.1, 0.3, 0.0925194, 1.7)
    yield (
        call(x_halves, steps, zeros_like(steps), -128, 127),
        "halfway between two integers: x / scale, and not x · (1 / scale)",
    )
    yield call(10 * x, half, zero(128), 0, 255), "levels from 0 to 255"
    yield call(40 * x, half, zero(0), -(2**15), 2**15 - 1), "levels of 16 bits"
    yield call(x.bfloat16(), torch.tensor(0.1875), zero(1), -8, 7), "bfloat16"
    long = normal(64, dtype=BF16, seed=1) * 20
    yield call(long, torch.tensor(0.1875), zero(0), -128, 127), "bfloat16, and many levels"
    halves = torch.tensor(
        [0.75390625, -0.75390625, 1.0], dtype=BF16
    )  # 2.507 steps; bfloat16 says 2.5
    yield (
        call(halves, torch.tensor(0.30078125, dtype=BF16), zero(0), -8, 7),
        "x and scale in bfloat16",
    )
    yield call(x.double(), half, zero(1), -8, 7), "float64"
    nearly = torch.tensor([0.25 + 2**-40, 0.75 - 2**-40], dtype=F64)
    yield call(nearly, half, zero(0), -8, 7), "float64, which float32 takes for halves"
    yield call(x.double(), torch.tensor(0.1), zero(0), -80, 70), "float64, and products of float32"
    yield call(normal(0, 4), torch.ones(1, 2), torch.zeros(1, 2).int(), -8, 7), "no row"
    yield call(draws.scattered(x), column, zeros_like(column), -8, 7), "not contiguous"
    yield call(normal(6, 5), torch.ones(6, 2), torch.zeros(6, 2).int(), -8, 7), "an error"
    meta = torch.zeros(2, 6, device="meta")
    yield (
        call(meta, meta[:, :2], meta[:, :2].int(), -8, 7),
        "on another device than the default one",
    )


@fake_quantize.edge
def _():
    half = torch.tensor(0.5)
    for x, points, why in (
        ([3.7, 3.75, 3.8, -4.2, -4.25, -4.3], 0, "gradients at the ends"),
        ([-INF, INF, 0.3, 4.0], 0, "gradients at infinities"),
        ([1.0, 2.0, 3.0, 4.0, -5.0, -6.0], 3, "gradients, and a zero point"),
    ):
        given = {
            "x": torch.tensor(x),
            "scale": half,
            "zero_point": zero(points),
            "qmin": -8,
            "qmax": 7,
        }
        yield call(**given).on("edge cases", grad=("x",)), why
    yield call(**given).on("edge cases", grad=("x", "scale")), "the scale gets no gradient"


PASSED = "value + (passed - passed.detach())"
CHOSEN = "passed = torch.where(inside, x, 0.0)"
AT_THE_ENDS = "You stop the gradient at an end of the range. The ends belong to it."
EVERYWHERE = (
    "Your gradient passes where x was clamped, too. There it is zero: moving x changes nothing."
)
INT8_LEVELS = (
    "Your integers have eight bits, int8 unless `quantize` is told otherwise, and larger levels wrap. "
    "[qmin, qmax] may need more: ask for int32."
)
ROUNDED_SUM = (
    "x + (value − x) is not exactly the value where x was clamped: both sums round, and at ∞ they are "
    "NaN. Add to the value what is 0 and carries the gradient, x − x.detach()."
)
fake_quantize.slips(
    {
        replace(
            "return " + PASSED, "return value"
        ): "No gradient reaches x. Rounding has the derivative 0 almost everywhere; pass the gradient "
        "straight through.",
        replace(
            "passed = torch.where(inside, x, 0.0)", "passed = torch.where(x.isfinite(), x, 0.0)"
        ): EVERYWHERE,
        replace(
            "(level >= qmin) & (level <= qmax)", "(level > qmin) & (level < qmax)"
        ): AT_THE_ENDS,
        replace(
            "(level >= qmin) & (level <= qmax)", "(level >= qmin) & (level < qmax)"
        ): AT_THE_ENDS,
        replace(
            "(level >= qmin) & (level <= qmax)", "(level > qmin) & (level <= qmax)"
        ): AT_THE_ENDS,
        replace(
            "passed = torch.where(inside, x, 0.0)", "passed = torch.where(inside, x / scale, 0.0)"
        ): "Your gradient is divided by the scale. The value was scaled back, so the factors cancel: the "
        "gradient passes unchanged.",
        replace(
            CHOSEN, "passed = torch.where(inside, x * spread(scale, x.shape).to(x.dtype), 0.0)"
        ): "Your gradient is multiplied by the scale. x was divided by it before, so the factors cancel: the "
        "gradient passes unchanged.",
        replace(
            "passed = torch.where(inside, x, 0.0)",
            "inside = (x >= (qmin - zero_point) * scale) & (x <= (qmax - zero_point) * scale) "
            "if scale.ndim == 0 else inside\n    passed = torch.where(inside, x, 0.0)",
        ): "You ask whether x itself lies in the range. What rounds into it was not clamped: ask the rounded "
        "level.",
        replace(
            "inside = (level >= qmin) & (level <= qmax)",
            "at = x.float() / spread(scale, x.shape) + spread(zero_point, x.shape)\n"
            "        inside = (at >= qmin) & (at <= qmax)",
        ): "You ask whether x itself lies in the range. What rounds into it was not clamped: ask the rounded "
        "level.",
        replace(
            "level = (x.float() / spread(scale, x.shape)).round() + spread(zero_point, x.shape)",
            "level = (x.float() / spread(scale, x.shape)).round()",
            "inside = (level >= qmin) & (level <= qmax)",
            "inside = (level >= qmin) & (level <= qmax)\n        level = level + spread(zero_point, x.shape)",
        ): "You ask the level without its zero point whether it was clamped. The integer is what is clamped.",
        replace(
            "dequantize(level.clamp(qmin, qmax).int(), scale, zero_point, x.dtype)",
            "dequantize(level.int(), scale, zero_point, x.dtype)",
        ): "You do not clamp the value.",
        replace(
            PASSED, "x + (value - x).detach()"
        ): "x + (value − x) is not exactly the value: the sum rounds. And the gradient passes where x was "
        "clamped, too.",
        replace(
            CHOSEN,
            "passed = torch.where(inside, x, x.detach())",
            PASSED,
            "passed + (value - passed).detach()",
        ): ROUNDED_SUM,
        replace(
            "dequantize(level.clamp(qmin, qmax).int(), scale, zero_point, x.dtype)",
            "dequantize(quantize(x, scale, zero_point, qmin, qmax), scale, zero_point, x.dtype)",
        ): INT8_LEVELS,
        replace(
            "dequantize(level.clamp(qmin, qmax).int(), scale, zero_point, x.dtype)",
            "dequantize(quantize(x, scale, zero_point, qmin, qmax, torch.uint8 if qmin >= 0 else "
            "torch.int8), scale, zero_point, x.dtype)",
        ): INT8_LEVELS,
        replace(
            "dequantize(level.clamp(qmin, qmax).int(), scale, zero_point, x.dtype)",
            "dequantize(quantize(x, scale, zero_point, qmin, qmax, torch.int8 if qmax <= 127 else "
            "torch.uint8), scale, zero_point, x.dtype)",
        ): INT8_LEVELS,
        replace(
            "passed = torch.where(inside, x, 0.0)",
            "passed = x * inside",
        ): "You multiply by the mask. ∞ · 0 is NaN: choose with `torch.where`.",
        replace(
            "scale, zero_point, x.dtype)", "scale, zero_point)"
        ): "You return float32 for half precision. The result has the dtype of x.",
        replace(
            "(x.float() / spread(scale, x.shape)).round() + spread(zero_point, x.shape)",
            "(x.float() / spread(scale, x.shape) + spread(zero_point, x.shape)).round()",
        ): "You round after the zero point was added. `quantize` rounds before: halves differ.",
        replace(
            "x.float() / spread(scale, x.shape)", "x.float() * spread(1 / scale.float(), x.shape)"
        ): RECIPROCAL,
        replace(
            "x.float() / spread(scale, x.shape)", "x / spread(scale, x.shape).to(x.dtype)"
        ): "You divide in x's dtype, and the level differs from that of `quantize`. Turn x to float32 first.",
        replace("x.float()", WIDE_X): IN_FLOAT64,
        replace(
            "dequantize(level.clamp(qmin, qmax).int(), scale, zero_point, x.dtype)",
            "((level.clamp(qmin, qmax).int() - spread(zero_point, x.shape)) * spread(scale, x.shape)"
            ".to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)",
        ): "You multiply float64 in float64. `dequantize` computes the product in float32, and the values are "
        "exactly its own.",
        replace(
            "    with torch.no_grad():\n        level", "    if True:\n        level"
        ): "A gradient reaches the scale, by which the integers are multiplied. It gets none: compute the value without "
        "a graph, or detach the scale.",
        replace(
            "dequantize(level.clamp(qmin, qmax).int(), scale, zero_point, x.dtype)",
            "level.clamp(qmin, qmax).to(x.dtype)",
        ): "You return the integers. The result is what they stand for.",
    }
)


@fake_quantize.mistake(EVERYWHERE)
def _(x, scale, zero_point, qmin, qmax):
    class Everywhere(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return quantization.fake_quantize(x, scale, zero_point, qmin, qmax)

        @staticmethod
        def backward(ctx, grad):
            return grad

    return Everywhere.apply(x)


@fake_quantize.mistake(
    "Only your rounding passes the gradient on, and x / scale − itself is NaN where it is infinite. A "
    "graph through x / scale also reaches the scale. Compute the value without a graph, choose with "
    "`torch.where` where the gradient passes, and subtract then."
)
def _(x, scale, zero_point, qmin, qmax):
    steps, points = spread(scale, x.shape), spread(zero_point, x.shape)
    level = x.float() / steps
    level = level.round().detach() + (level - level.detach()) + points
    return ((level.clamp(qmin, qmax) - points) * steps).to(x.dtype)


@fake_quantize.alternative("an autograd Function")
def _(x, scale, zero_point, qmin, qmax):
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            level = torch.round(x.float() / spread(scale, x.shape)) + spread(zero_point, x.shape)
            ctx.save_for_backward((level >= qmin).logical_and(level <= qmax))
            return dequantize(level.clamp(qmin, qmax).int(), scale, zero_point, x.dtype)

        @staticmethod
        def backward(ctx, grad):
            return torch.where(ctx.saved_tensors[0], grad, torch.zeros_like(grad))

    return Straight.apply(x)


@fake_quantize.alternative("quantize and dequantize, and masked_fill")
def _(x, scale, zero_point, qmin, qmax):
    q = quantization.quantize(x.detach(), scale, zero_point, qmin, qmax, torch.int32)
    level = torch.round(x.detach().float() / spread(scale, x.shape)) + spread(zero_point, x.shape)
    y = dequantize(q, scale.detach(), zero_point, x.dtype)
    kept = x.masked_fill(level.clamp(qmin, qmax) != level, 0.0)
    return y + (kept - kept.detach())


# ------------------------------------------------------------------------------ int8_matmul

int8_matmul = Exercise(
    quantization.int8_matmul,
    title="A product of integers",
    difficulty=3,
    minutes=35,
    points=5,
    hints=(
        "Write (x − x_zero)(w − w_zero) out and sum over the features: four terms, one of them x wᵀ.",
        "The other three need the sums of x's rows, the sums of w's rows, and the number of features.",
        "`x.int() @ w.int().T` sums in int32. A float32 has 24 bits.",
        (
            "edge cases",
            "`w.sum(1)` of int8 is int64: fine. What is of w lies along the columns: (1, out).",
        ),
        (
            "contracts",
            "No matrix of differences or of floats as large as w is needed: the zero points come in through "
            "sums.",
        ),
    ),
)


def product_case(N, features, out, seed=0, xs=None, ws=None, x_zeros=None, w_zeros=None):
    """Two matrices of integers, with parameters for each row unless they are given."""
    x, w = integers(N, features, seed=seed), integers(out, features, seed=seed + 1)
    x_scale = torch.tensor(SCALES).repeat(N)[:N, None] if xs is None else xs
    w_scale = torch.tensor(SCALES[::-1]).repeat(out)[:out, None] if ws is None else ws
    x_zero = integers(N, 1, dtype=torch.int32, seed=seed + 2) if x_zeros is None else x_zeros
    w_zero = integers(out, 1, dtype=torch.int32, seed=seed + 3) if w_zeros is None else w_zeros
    return call(x, x_scale, x_zero, w, w_scale, w_zero)


def none(rows=1):
    return torch.zeros(rows, 1, dtype=torch.int32)


@int8_matmul.by_hand
def _():
    x, w = (
        torch.stack([whole(1, 2), whole(3, -4)]),
        torch.stack([whole(5, 6), whole(-7, 8), whole(0, 1)]),
    )
    one, two = torch.ones(1, 1), torch.full((1, 1), 2.0)
    yield (
        call(x, one, none(), w, two, none()),
        2.0 * torch.tensor([[17.0, 9.0, 2.0], [-9.0, -53.0, -4.0]]),
    )
    yield (
        call(x, one, none() + 1, w, one, none() - 1),
        torch.tensor([[7.0, 9.0, 2.0], [-23.0, -57.0, -8.0]]),
    )


@int8_matmul.cases
def _(draw):
    N, features, out = draw(draws.distinct_sizes(3, 1, 7))
    kinds = [draw(st.integers(0, 2)) for _ in range(2)]
    given = {}
    for name, kind in zip(("x", "w"), kinds, strict=True):
        if kind == 0:
            given[f"{name}_zeros"] = none()
        elif kind == 1:
            given |= {f"{name}s": torch.full((1, 1), 0.25), f"{name}_zeros": none() - 7}
    yield product_case(N, features, out, seed=draw(st.integers(0, 999)), **given)


def cancelling(features, x_zero):
    """Rows whose products are large and cancel, but for small numbers."""
    half = features // 2
    a, b = integers(2, half, low=100), integers(3, half, low=100, seed=1)
    x, w = torch.cat((a, a), 1), torch.cat((b, -b), 1)
    w[:, 0] -= whole(1, 2, 3)
    return call(x, torch.ones(1, 1), none() + x_zero, w, torch.ones(1, 1), none())


def small_of_large(features):
    """Products that are small, while each of the four terms is far beyond 2²⁴."""
    x = torch.full((3, features), 127, dtype=torch.int8)
    w = torch.where(torch.arange(features) % 2 == 0, -98, -101).repeat(2, 1).to(torch.int8)
    for row in range(3):
        x[row, : 2 * row + 1] -= 1
    w[1, 0] = -93
    return call(x, torch.ones(1, 1), none() + 127, w, torch.ones(1, 1), none() - 100)


@int8_matmul.edge
def _():
    yield product_case(4, 4, 4), "square"
    yield product_case(1, 6, 5), "one row"
    yield product_case(3, 1, 5), "one feature"
    yield product_case(0, 4, 3), "no row"
    yield product_case(2, 0, 3), "no feature"
    yield product_case(2, 3, 1, x_zeros=none(), w_zeros=none()), "both symmetric"
    lowest = torch.full((2, 4000), -128, dtype=torch.int8)
    far = none() + 127
    yield call(lowest, torch.ones(1, 1), far, lowest[:1], torch.ones(1, 1), far), "the largest sums"
    yield cancelling(33_000, -100), "sums beyond 2²⁴ that cancel: float32 would lose the ones"
    yield cancelling(33_000, 0), "the same, and symmetric"
    yield small_of_large(20_000), "each of the four terms is beyond 2²⁴, and their sum is small"
    x, x_scale, x_zero, w, w_scale, w_zero = product_case(3, 6, 5).args
    yield (
        call(draws.scattered(x), x_scale, x_zero, draws.scattered(w), w_scale, w_zero),
        "not contiguous",
    )
    meta = [given.to("meta") for given in (x, x_scale, x_zero, w, w_scale, w_zero)]
    yield call(*meta), "on another device than the default one"


int8_matmul.contract(
    contracts.largest_tensor(
        [product_case(8, 96, 160), product_case(64, 16, 24), product_case(4, 512, 48)],
        limit=lambda case: max(
            4 * case.args[0].numel(),
            4 * case.args[3].numel(),
            8 * len(case.args[0]) * len(case.args[3]),
        ),
        says="neither matrix is dequantized: no tensor is made that has more bytes than the larger matrix "
        "in int32, or than the result in int64, whichever is more",
    )
)
int8_matmul.contract(
    contracts.constant_kernels(
        [product_case(*sizes) for sizes in ((2, 4, 3), (16, 4, 3), (16, 4, 20), (16, 40, 20))],
        says="no Python loop over rows, columns or features, and no NumPy",
    )
)
FIRST_TERM = "total = x.int() @ w.int().T"
X_TERM = "total = total - x_zero * w.sum(1)"
W_TERM = "total = total - w_zero.T * x.sum(1, keepdim=True)"
LAST_TERM = "total = total + features * x_zero * w_zero.T"
IN_FLOAT32 = (
    "You sum products of floats. Their sum can need 31 bits, and float32 has 24: multiply integers, and "
    "let the scales come in when the sum is done."
)
OF_ALL = "You sum a whole matrix for a zero point's term. Each row has a sum of its own: over the features."
FLOAT_TOO_SOON = (
    "You turn a sum to float32 before the zero points' terms are off. Each term can be beyond 2²⁴, where "
    "float32 skips integers, though all of them together are small: add in int32 up to the end."
)
int8_matmul.slips(
    {
        replace(
            X_TERM, "", W_TERM, "", LAST_TERM, ""
        ): "You leave the zero points out. An integer stands for (q − zero point) · scale.",
        replace(
            LAST_TERM, ""
        ): "The term features · x_zero · w_zero is missing: it was subtracted twice, by "
        "the other two.",
        replace(
            LAST_TERM, "total = total + x_zero * w_zero.T"
        ): "x_zero · w_zero comes once for each feature. Multiply by their number.",
        replace(
            LAST_TERM, "total = total - features * x_zero * w_zero.T"
        ): "The last term has the wrong sign: minus times minus.",
        replace(
            X_TERM, ""
        ): "The zero point of x is missing: it takes off x_zero times the sum of each row of w.",
        replace(
            W_TERM, ""
        ): "The zero point of w is missing: it takes off w_zero times the sum of each row of x.",
        replace(
            X_TERM, "", LAST_TERM, ""
        ): "You take x's zero point for 0. Two terms have it: x_zero times the sum of w's row, and "
        "features · x_zero · w_zero.",
        replace(
            W_TERM, "", LAST_TERM, ""
        ): "You take w's zero point for 0. Two terms have it: w_zero times the sum of x's row, and "
        "features · x_zero · w_zero.",
        replace(
            "x_zero * w.sum(1)",
            "x_zero * x.sum(1, keepdim=True)",
            "w_zero.T * x.sum(1, keepdim=True)",
            "w_zero.T * w.sum(1)",
        ): "Each zero point meets the sum of its own matrix. It multiplies the other's: Σ x_zero · w.",
        replace("w.sum(1)", "w.sum()"): OF_ALL,
        replace("x.sum(1, keepdim=True)", "x.sum()"): OF_ALL,
        replace("w.sum(1)", "w.sum()", "x.sum(1, keepdim=True)", "x.sum()"): OF_ALL,
        replace(
            "x_zero * w.sum(1)",
            "x_zero * w.sum(1).to(torch.int8)",
            "x.sum(1, keepdim=True)",
            "x.sum(1, keepdim=True).to(torch.int8)",
        ): "Your sums of rows are int8, and wrap. Sum in int32.",
        replace(
            FIRST_TERM, "total = (x @ w.T).int()"
        ): "You multiply in int8: each sum wraps at 128. Sum in int32.",
        replace(FIRST_TERM, "total = (x.float() @ w.float().T).int()"): IN_FLOAT32,
        replace(FIRST_TERM, "total = (x.int() @ w.int().T).float()"): FLOAT_TOO_SOON,
        replace(LAST_TERM, "total = total.float() + features * x_zero * w_zero.T"): FLOAT_TOO_SOON,
        replace(
            FIRST_TERM, "total = (x.to(torch.int16) @ w.to(torch.int16).T).int()"
        ): "You sum in int16. Three products of int8 can leave it: sum in int32.",
        replace("* x_scale * w_scale.T", "* x_scale"): "The scale of w is missing.",
        replace("* x_scale * w_scale.T", "* w_scale.T"): "The scale of x is missing.",
        replace(
            "* x_scale * w_scale.T",
            "* (x_scale.T if len(x_scale) == total.size(1) else x_scale) * "
            "(w_scale if len(w_scale) == total.size(0) else w_scale.T)",
        ): "The scales of x's rows are laid along the columns, those of w's along the rows. Row i of the "
        "result has x's scale i, column j w's scale j.",
        replace(
            "total * x_scale * w_scale.T", "total * x_scale.int() * w_scale.T.int()"
        ): "You turn the scales to integers. Only the sum is one; then it becomes a float.",
    }
)


@int8_matmul.mistake(
    "The values are right, but both matrices are dequantized, to float64 so that the sums come out. Four "
    "terms of integers need no such copy.",
    cost=True,
)
def _(x, x_scale, x_zero, w, w_scale, w_zero):
    X, W = (x.double() - x_zero) * x_scale.double(), (w.double() - w_zero) * w_scale.double()
    return (X @ W.T).float()


@int8_matmul.mistake(IN_FLOAT32)
def _(x, x_scale, x_zero, w, w_scale, w_zero):
    return ((x.int() - x_zero) * x_scale) @ ((w.int() - w_zero) * w_scale).T


@int8_matmul.mistake(IN_FLOAT32)
def _(x, x_scale, x_zero, w, w_scale, w_zero):
    return ((x.float() - x_zero) @ (w.float() - w_zero).T) * x_scale * w_scale.T


@int8_matmul.mistake(
    "The values are right, but you make a product of shape (N, out, features) and sum it. A matrix product "
    "sums as it goes: `x.int() @ w.int().T`.",
    cost=True,
)
def _(x, x_scale, x_zero, w, w_scale, w_zero):
    products = (x.int() - x_zero)[:, None] * (w.int() - w_zero)
    return products.sum(-1) * x_scale * w_scale.T


@int8_matmul.mistake(
    "You subtract the zero points in int8. −100 − 100 is no int8, and wraps: turn x and w to int32 first."
)
def _(x, x_scale, x_zero, w, w_scale, w_zero):
    X, W = (x - x_zero.to(torch.int8)).int(), (w - w_zero.to(torch.int8)).int()
    return (X @ W.T) * x_scale * w_scale.T


@int8_matmul.mistake("The values are right, but Python goes through the rows.", cost=True)
def _(x, x_scale, x_zero, w, w_scale, w_zero):
    N = len(x)
    if N == 0:
        return quantization.int8_matmul(x, x_scale, x_zero, w, w_scale, w_zero)
    scales, points = x_scale.expand(N, 1), x_zero.expand(N, 1)
    rows = [
        quantization.int8_matmul(
            x[i : i + 1], scales[i : i + 1], points[i : i + 1], w, w_scale, w_zero
        )
        for i in range(N)
    ]
    return torch.cat(rows)


@int8_matmul.alternative("differences in int32, multiplied as integers")
def _(x, x_scale, x_zero, w, w_scale, w_zero):
    products = (x.to(torch.int32) - x_zero) @ (w.to(torch.int32) - w_zero).mT
    return products * x_scale * w_scale.mT


@int8_matmul.alternative("einsum in int32, corrections in int64")
def _(x, x_scale, x_zero, w, w_scale, w_zero):
    total = torch.einsum("ni,oi->no", x.int(), w.int()).long()
    columns, rows = w.sum(1)[None], x.sum(1)[:, None]
    left = x.shape[1] * w_zero.long().T - columns
    total = total + x_zero * left - rows * w_zero.T
    return total.to(torch.float32) * (x_scale * w_scale.T)


# ------------------------------------------------------------------------------ smooth_scales

smooth_scales = Exercise(
    quantization.smooth_scales,
    title="Range, moved from inputs to weights",
    difficulty=2,
    minutes=15,
    points=2,
    hints=(
        "The largest |W| of an input feature is over the rows: `weight.abs().amax(0)`.",
        "s = largest ** alpha / weights ** (1 − alpha), feature by feature.",
        ("edge cases", "0 / 0 and 1 / 0: a feature with no inputs or no weights has s = 1."),
    ),
)


@smooth_scales.by_hand
def _():
    weight = torch.tensor([[1.0, -0.25, 2.0], [-4.0, 0.125, 1.0]])
    largest = torch.tensor([1.0, 64.0, 2.0])
    yield call(largest, weight), torch.tensor([0.5, 16.0, 1.0])
    yield call(largest, weight, 1.0), largest
    yield call(largest, weight, 0.0), torch.tensor([0.25, 4.0, 0.5])


@smooth_scales.cases
def _(draw):
    out, features = draw(draws.distinct_sizes(2, 1, 7))
    largest = draw(draws.tensors((features,), scale=5.0)).abs()
    yield call(
        largest,
        draw(draws.tensors((out, features))),
        draw(st.sampled_from((0.0, 0.25, 0.5, 0.8, 1.0))),
    )


@smooth_scales.edge
def _():
    weight, largest = normal(4, 4), normal(4, seed=1).abs() * 10
    gone = torch.tensor([1.0, 0.0, 1.0, 0.0])
    yield call(largest, weight), "square"
    yield call(largest * gone, weight), "features without inputs"
    yield call(largest, weight * gone), "features without weights"
    yield call(largest * gone, weight, 0.0), "features without inputs, α = 0"
    yield call(largest, weight * gone, 1.0), "features without weights, α = 1"
    yield call(largest * gone, weight * gone, 1.0), "features without both, α = 1"
    yield call(largest * gone, weight * gone, 0.0), "features without both, α = 0"
    yield call(largest, -weight.abs()), "negative weights"
    yield call(largest.bfloat16(), weight.bfloat16(), 0.7), "bfloat16"
    yield call(largest.double(), weight.double(), 0.7), "float64"
    yield call(largest, draws.scattered(weight), 0.7), "not contiguous"
    yield call(largest, weight, -0.1), "alpha below 0"
    yield call(largest, weight, 1.1), "alpha above 1"


OF_RESULT = (
    "You look for features without inputs or weights in the result. It does not always show them: 0⁰ is "
    "1, 0 divided by something is 0. Ask which of the two ranges are 0."
)
WITHOUT_WEIGHTS = (
    "A feature without weights gets an s that is infinite, or huge where you keep the weights from 0. Its s "
    "is 1."
)
RATIO = "s = inputs**alpha / weights ** (1 - alpha)"
smooth_scales.slips(
    {
        replace(
            RATIO, "s = weights**alpha / inputs ** (1 - alpha)"
        ): "Inputs and weights are exchanged: s divides the inputs, so it grows with them.",
        replace(
            RATIO, "s = inputs ** (1 - alpha) / weights**alpha"
        ): "α and 1 − α are exchanged. α = 1 moves all of the inputs' range into the weights.",
        replace(
            RATIO, "s = inputs**alpha * weights ** (1 - alpha)"
        ): "You multiply by the weights' range. "
        "Divide: large weights leave less room for what comes from the inputs.",
        replace(
            RATIO, "s = (inputs / weights) ** alpha"
        ): "Both have the exponent α. The weights have 1 − α.",
        replace(
            ".abs().amax(0)", ".amax(0)"
        ): "You take the largest weight. The largest magnitude counts.",
        replace(
            ".abs().amax(0)", ".abs().amax(1 if weight.size(0) == weight.size(1) else 0)"
        ): "You take the largest weight of each output. s is of input features: over the rows.",
        replace(
            ".abs().amax(0)", ".abs().mean(0)"
        ): "You take the mean |W| of a feature. It is the largest.",
        replace(
            ".abs().amax(0)", ".abs().amax().expand(weight.size(1))"
        ): "You take the largest of all weights. Each input feature has its own.",
        replace(
            "return torch.where((inputs == 0) | (weights == 0), 1.0, s)",
            "s = torch.where((inputs == 0) | (weights == 0), 1.0, s)\n    return s / s.mean()",
        ): "You divide s by its mean. The formula fixes how large it is.",
        replace(
            "torch.where((inputs == 0) | (weights == 0), 1.0, s)", "s"
        ): "A feature with no inputs or no weights gets 0, ∞ or NaN. Its s is 1.",
        replace(
            "torch.where((inputs == 0) | (weights == 0), 1.0, s)",
            "torch.where(s.isfinite() & (s > 0), s, 1.0)",
        ): OF_RESULT,
        replace(
            "torch.where((inputs == 0) | (weights == 0), 1.0, s)",
            "torch.where(s.isfinite(), s, 1.0)",
        ): OF_RESULT,
        replace(
            "(inputs == 0) | (weights == 0)", "weights == 0"
        ): "A feature without inputs gets s = 0, and you divide by it. Its s is 1.",
        replace("(inputs == 0) | (weights == 0)", "inputs == 0"): WITHOUT_WEIGHTS,
        replace(
            "(inputs == 0) | (weights == 0)",
            "inputs == 0",
            ".abs().amax(0)",
            ".abs().amax(0).clamp(min=1e-5)",
        ): WITHOUT_WEIGHTS,
        replace(
            "(inputs == 0) | (weights == 0)",
            "inputs == 0",
            ".abs().amax(0)",
            ".abs().amax(0).clamp(min=1e-8)",
        ): WITHOUT_WEIGHTS,
        replace(
            "if not 0 <= alpha <= 1:", "if False:"
        ): "You take any alpha. It is from 0 to 1, else raise ValueError.",
        **{
            replace(
                "largest.float()",
                f"largest.float().clamp(min={tiny})",
                ".abs().amax(0)",
                f".abs().amax(0).clamp(min={tiny})",
            ): "You put a small number in place of inputs and weights that are 0, and s is made of it. "
            "The s of such a feature is 1."
            for tiny in ("1e-5", "1e-8", "1e-12", "1e-20")
        },
        replace(
            "if not 0 <= alpha <= 1:", "if not 0 < alpha < 1:"
        ): "You refuse α = 0 and α = 1. Both are allowed: all of the range goes to one side.",
        replace(
            "largest.float(), weight.float()", "largest, weight"
        ): "You compute in the dtype of the arguments. s is float32.",
    }
)


@smooth_scales.alternative("logarithms")
def _(largest, weight, alpha=0.5):
    if alpha < 0 or alpha > 1:
        raise ValueError("alpha")
    with torch.no_grad():
        w = (
            torch.linalg.vector_norm(weight.float(), ord=INF, dim=0)
            if len(weight)
            else weight.sum(0)
        )
        x = largest.to(torch.float32)
        live = (x > 0) & (w > 0)
        log = (
            alpha * x.masked_fill(~live, 1.0).log() - (1 - alpha) * w.masked_fill(~live, 1.0).log()
        )
        return log.exp()


# ------------------------------------------------------------------------------ pack_int4

pack_int4 = Exercise(
    (quantization.pack_int4, quantization.unpack_int4),
    title="Two in a byte",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.one_of,
    formats={"uint8": "#04x"},
    hints=(
        "`q & 15` keeps the low four bits. Of −1, which is 0xFF, it keeps 0xF.",
        "Shift in uint8: `q.view(torch.uint8)` has the same bytes, and no sign that shifts in.",
        "To bring the sign back: 8 to 15 stand for −8 to −1. (h ^ 8) − 8 does it, in int8.",
        "Two tensors of (…, n / 2) become one of (…, n): stack them on a new last axis, and flatten.",
    ),
)


@pack_int4.by_hand
def _():
    q = whole(1, 2, -1, 7, -8, 0)
    packed = torch.tensor([0x12, 0xF7, 0x80], dtype=torch.uint8)
    yield call("pack_int4", q), packed
    yield call("unpack_int4", packed), q


@pack_int4.cases
def _(draw):
    shape = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        shape[-1] *= 2
        yield call("pack_int4", drawn_integers(draw, shape, -8, 7))
    else:
        yield call("unpack_int4", drawn_integers(draw, shape, 0, 255, torch.uint8))


@pack_int4.edge
def _():
    every = torch.arange(256).to(torch.uint8)
    pairs = torch.stack([every.int() // 16 - 8, every.int() % 16 - 8], dim=1).to(torch.int8)
    yield call("unpack_int4", every), "every byte"
    yield call("pack_int4", pairs), "every pair"
    yield call("pack_int4", integers(4, 4, low=-8, high=7)), "square"
    yield call("pack_int4", draws.scattered(integers(3, 4, 6, low=-8, high=7))), "not contiguous"
    yield call("pack_int4", integers(6, 4, low=-8, high=7).T), "transposed"
    yield (
        call("unpack_int4", draws.scattered(integers(3, 4, low=0, high=255, dtype=torch.uint8))),
        ("not contiguous"),
    )
    yield call("pack_int4", integers(3, 0)), "no column"
    yield call("pack_int4", integers(0, 4)), "no row"
    yield call("unpack_int4", integers(0, 4, dtype=torch.uint8, low=0)), "no row"
    yield call("pack_int4", integers(5, low=-8, high=7)), "an odd length: an error"
    yield call("pack_int4", integers(2, 3, low=-8, high=7)), "odd rows of an even number: an error"
    yield (
        call("pack_int4", torch.zeros(2, 4, dtype=torch.int8, device="meta")),
        ("on another device than the default one"),
    )
    yield (
        call("unpack_int4", torch.zeros(2, 4, dtype=torch.uint8, device="meta")),
        ("on another device than the default one"),
    )


pack_int4.contract(
    contracts.constant_kernels(
        [
            call("pack_int4", integers(rows, n, low=-8, high=7))
            for rows, n in ((2, 4), (20, 4), (20, 40))
        ],
        says="no Python loop over rows or elements, and no NumPy",
        prepare=driving.one_called,
    )
)
OFFSET = "You store q + 8. Two's complement is asked for: the low four bits as they are, −1 as 0xF."
SIGN_AND_SIZE = "You store a sign and a magnitude. Two's complement is asked for: the low four bits of the int8 as they are."
PACK = "halves[..., ::2] << 4 | halves[..., 1::2]"
HALVES = "torch.stack((packed >> 4, packed & 15), dim=-1).flatten(-2)"
pack_int4.slips(
    {
        replace(
            PACK, "halves[..., 1::2] << 4 | halves[..., ::2]"
        ): "The first of two goes into the high half of the byte; yours is in the low one.",
        replace(
            PACK,
            "halves[..., 1::2] << 4 | halves[..., ::2]",
            "(packed >> 4, packed & 15)",
            "(packed & 15, packed >> 4)",
        ): "The first of two goes into the high half of the byte; both your functions have it in the low one.",
        replace(
            "q.view(torch.uint8) & 15", "q.view(torch.uint8)"
        ): "You do not cut to four bits. −1 is 0xFF, and its upper ones cover the neighbour: & 15.",
        replace("q.view(torch.uint8) & 15", "(q + 8).view(torch.uint8)"): OFFSET,
        replace(
            "q.view(torch.uint8) & 15",
            "(q + 8).view(torch.uint8)",
            "return (halves ^ 8) - 8",
            "return halves - 8",
        ): OFFSET,
        replace(
            "halves = q.view(torch.uint8) & 15",
            "halves = q.bitwise_and_(15).view(torch.uint8)",
        ): "You mask in place (`&=`, `bitwise_and_`), and so write over the caller's q. `q & 15` is a new tensor.",
        replace(
            "q.view(torch.uint8) & 15",
            "(q.abs() & 7 | (q < 0).to(torch.int8) << 3).view(torch.uint8)",
        ): SIGN_AND_SIZE,
        replace(
            "q.view(torch.uint8) & 15",
            "(q.abs() & 7 | (q < 0).to(torch.int8) << 3).view(torch.uint8)",
            "return (halves ^ 8) - 8",
            "return torch.where(halves > 7, -(halves & 7), halves)",
        ): SIGN_AND_SIZE,
        replace(
            PACK, "halves.flatten()[::2] << 4 | halves.flatten()[1::2]"
        ): "You flatten. The axes in front stay as they are.",
        replace(
            PACK,
            "halves[..., : q.size(-1) // 2] << 4 | halves[..., q.size(-1) // 2 :]",
        ): "You pair the first half of a row with the second. Neighbours share a byte.",
        replace(
            "if q.size(-1) % 2:", "if q.numel() % 2:"
        ): "You ask whether the number of all elements is "
        "odd. A row must be even: no byte has parts of two rows.",
        replace(
            '        raise ValueError(f"two share a byte; came {q.size(-1)}")\n',
            "        q = F.pad(q, (0, 1))\n",
        ): "You pad an odd row. Raise ValueError: nobody knows later that a number was added.",
        replace(
            "return (halves ^ 8) - 8", "return halves"
        ): "Your numbers come back as 0 to 15. From 8 on they stand for −8 to −1.",
        replace(
            "return (halves ^ 8) - 8", "return torch.where(halves > 8, halves - 16, halves)"
        ): "0x8 comes back as 8. It stands for −8: what is 8 or more is negative.",
        replace(
            "return (halves ^ 8) - 8", "return halves - 8"
        ): "You subtract 8 from all. Two's complement: "
        "0 to 7 stay as they are, 8 to 15 are −8 to −1.",
        replace(
            ".flatten(-2).to(torch.int8)", ".flatten(-2).int()"
        ): "You return int32. The numbers of four bits are held in int8.",
        replace(
            "(packed >> 4, packed & 15)", "(packed & 15, packed >> 4)"
        ): "You take the low half first. The first of two is in the high half.",
        replace(
            HALVES, "torch.cat((packed >> 4, packed & 15), dim=-1)"
        ): "You put all high halves before all low ones. They alternate: stack, then flatten.",
        replace(
            "halves = q.view(torch.uint8) & 15",
            "halves = q & 15",
            PACK,
            f"({PACK}).view(torch.int8)",
        ): "Your bytes are int8. They are uint8.",
        replace(
            "torch.stack((packed >> 4,", "torch.stack((packed.view(torch.int8) >> 4 & 7,"
        ): "You lose the sign of the first: its upper bit counts.",
    }
)


def pack_by_rows(q):
    rows = q.reshape(-1, q.size(-1)) if q.numel() else q
    if q.ndim < 2 or not q.numel() or q.size(-1) % 2:
        return quantization.pack_int4(q)
    return torch.stack([quantization.pack_int4(row) for row in rows]).view(*q.shape[:-1], -1)


pack_int4.mistake("The values are right, but Python goes through the rows.", cost=True)(
    pack_by_rows, quantization.unpack_int4
)


def pack_of_two_axes(q):
    rows, n = q.shape
    return quantization.pack_int4(q).view(rows, n // 2)


def unpack_of_two_axes(packed):
    rows, half = packed.shape
    return quantization.unpack_int4(packed).view(rows, 2 * half)


pack_int4.mistake(
    "You take for granted that there are two axes. There may be any number: index the last with `...`."
)(pack_of_two_axes, unpack_of_two_axes)


def pack_by_factors(q):
    if q.size(-1) % 2:
        raise ValueError("odd")
    halves = (q.int() & 15).view(*q.shape[:-1], q.size(-1) // 2, 2)
    return (halves * torch.tensor([16, 1])).sum(-1).to(torch.uint8)


pack_int4.mistake(
    "You make a tensor of factors on the default device. The argument may be on another: make it there, "
    "with `device=q.device`."
)(pack_by_factors, quantization.unpack_int4)


def pack_by_sums(q):
    """Arithmetic in int32: modulo 16, times 16, a sum."""
    *front, n = q.shape
    if n % 2 == 1:
        raise ValueError("odd")
    pairs = q.int().remainder(16).reshape(*front, n // 2, 2)
    return (pairs[..., 0] * 16 + pairs[..., 1]).to(torch.uint8)


def unpack_by_shifts(packed):
    """Arithmetic shifts of int8 bring the sign along."""
    signed = packed.view(torch.int8)
    both = torch.empty(*packed.shape, 2, dtype=torch.int8, device=packed.device)
    both[..., 0] = signed >> 4
    both[..., 1] = (signed << 4) >> 4
    return both.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


pack_int4.alternative("sums in int32, and shifts that keep the sign")(
    pack_by_sums, unpack_by_shifts
)


# ------------------------------------------------------------------------------ gptq

gptq = Exercise(
    quantization.gptq,
    title="GPTQ: rounding that is paid back",
    difficulty=3,
    minutes=45,
    points=6,
    hints=(
        "Copy the weight to float64; you will change the copy. Damp a copy of the Hessian, too.",
        "`torch.linalg.cholesky(inverse, upper=True)` gives U with Uᵀ U = inverse. It is computed once.",
        "In step j: q = round(column / its scales), clamped; error = (column − q · scales) / U[j, j].",
        "Then `left[:, j + 1 :] -= error[:, None] * U[j, j + 1 :]`: columns behind j, all rows at once.",
        (
            "edge cases",
            "`spread(scale, weight.shape).expand(weight.shape)` has the scale of each weight, for rows and "
            "for groups.",
        ),
    ),
)


def gram(features, rows, seed=0, mix=0.7):
    """Xᵀ X of inputs whose features are correlated."""
    x = normal(rows, features, dtype=F64, seed=seed)
    return ((x + mix * x.sum(1, keepdim=True)).T @ (x + mix * x.sum(1, keepdim=True))).float()


def gptq_case(out, features, groups=1, rows=None, seed=0, limits=(-8, 7), step=0.21, **given):
    weight = normal(out, features, seed=seed)
    scale = step * (1 + 0.1 * torch.arange(float(out * groups)).view(out, groups))
    hessian = gram(features, rows or 3 * features, seed + 1)
    return call(weight, hessian, scale, *limits, **given)


@gptq.by_hand
def _():
    one = torch.ones(1, 1)
    weight, hessian = torch.tensor([[0.4, 0.4]]), torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    yield call(weight, torch.eye(2), one, -8, 7, damp=0.0), torch.tensor([[0, 0]], dtype=torch.int8)
    # H⁻¹ is [[1, −0.9], [−0.9, 1]] / 0.19: the second column gets 0.4 · 0.9 = 0.36 more
    yield call(weight, hessian, one, -8, 7, damp=0.0), torch.tensor([[0, 1]], dtype=torch.int8)


@gptq.cases(25)
def _(draw):
    out, features = draw(st.integers(1, 4)), 2 * draw(st.integers(1, 4))
    groups = draw(st.sampled_from([n for n in (1, 2, features) if features % n == 0]))
    yield gptq_case(
        out,
        features,
        groups,
        seed=draw(st.integers(0, 999)),
        limits=draw(st.sampled_from(((-8, 7), (-4, 3), (-2, 1)))),
        step=draw(st.sampled_from((0.21, 0.47, 0.9))),
        **draw(st.sampled_from(({}, {"damp": 0.1}))),
    )


@gptq.edge
def _():
    yield gptq_case(6, 6, groups=3), "square, in groups"
    yield gptq_case(5, 8, rows=3), "fewer inputs than features: damping makes it invertible"
    yield gptq_case(4, 1), "one column"
    yield gptq_case(0, 4), "no row"
    yield gptq_case(3, 8, limits=(-2, 1), step=0.1), "most are clamped"
    weight, hessian, scale, *rest = gptq_case(4, 6).args
    yield call(weight.bfloat16(), hessian.bfloat16().float(), scale.bfloat16(), *rest), "bfloat16"
    yield call(weight.double(), hessian.double(), scale.double(), *rest), "float64"
    yield call(draws.scattered(weight), draws.scattered(hessian), scale, *rest), "not contiguous"
    yield call(weight, hessian, torch.tensor(0.3), *rest), "one scale for all"
    yield call(weight, hessian * 1e6, scale, *rest), "a large Hessian"
    dead = hessian.clone()
    dead[2], dead[:, 2] = 0.0, 0.0
    yield call(weight, dead, scale, *rest), "a feature that is always 0"
    few = normal(3, 8, seed=5).mul(4).round()
    nearly = call(normal(3, 8), few.T @ few, torch.full((3, 1), 0.4), -8, 7, damp=1e-7)
    yield nearly, "hardly any damping: float32 is not enough"
    big = torch.full((1, 4), 1e9)
    yield call(big, torch.eye(4), torch.ones(1, 1), -8, 7), "a column far beyond the range"
    halves = torch.tensor([[0.5, 1.5, -0.5, -1.5]])
    yield call(halves, torch.eye(4), torch.ones(1, 1), -8, 7), "halves go to the even integer"


gptq.contract(
    contracts.constant_kernels(
        [gptq_case(rows, 6) for rows in (2, 64)],
        says="no Python loop over rows, and no NumPy: as many operations for 64 rows as for 2",
    )
)
IN_SINGLE = (
    "You compute in float32. The Hessian may be nearly singular, and its inverse then has no digit right, or "
    "is not positive: compute in float64."
)
DAMP_ALL = "You damp by the mean of all elements of the Hessian. It is that of its diagonal."
DAMP_ITSELF = "You add damp itself. It is relative: times the mean of the diagonal."
DAMPED = "add_(damp * H.diagonal().mean())"
LOSE = "left[:, j:] -= error[:, None] * U[j, j:]"
gptq.slips(
    {
        replace(
            LOSE, "pass"
        ): "Every column is rounded as it was at first. Either nothing is taken off the "
        "columns behind it (of a lower triangular factor those elements are 0: ask for upper=True), or you "
        "round the original weight in place of what is left of it.",
        replace(
            LOSE, "left[:, j:] += error[:, None] * U[j, j:]"
        ): "The sign is wrong: the columns behind lose error · U[j, k].",
        replace(
            "(left[:, j] - codes[:, j] * steps[:, j]) / U[j, j]",
            "left[:, j] - codes[:, j] * steps[:, j]",
        ): ("You do not divide the error by U[j, j]."),
        replace(
            "/ U[j, j]",
            "/ inverse[j, j]",
            LOSE,
            "left[:, j + 1 :] -= error[:, None] * inverse[j, j + 1 :]",
        ): "You use the inverse of the whole Hessian in every step. A column that is done can no longer "
        "change: take U, whose rows know that.",
        replace(
            "inverse = torch.cholesky_inverse(torch.linalg.cholesky(H))", "inverse = H"
        ): "You factor the Hessian itself. It is the inverse that tells how to pay back.",
        replace(
            "U = torch.linalg.cholesky(inverse, upper=True)",
            "U = torch.linalg.cholesky(H).inverse().T",
        ): (
            "Your factor of the inverse comes from that of H, and is another one: L⁻ᵀ L⁻¹ is upper times "
            "lower. U is the Cholesky factor of the inverse."
        ),
        replace(
            "error = (left[:, j] - codes", "error = (weight[:, j].double() - codes"
        ): "Your error is that of the weight as it was. It is that of the column as it is by then.",
        replace(
            ".round().clamp(qmin, qmax)", ".round()"
        ): "You do not clamp the integers to [qmin, qmax].",
        replace(
            "/ steps[:, j]).round()", "/ steps[:, j] + 0.5).floor()"
        ): "You round halves up. They go to the even integer, as `torch.round` does it.",
        replace(
            "codes[:, j] = (left[:, j] / steps[:, j]).round().clamp(qmin, qmax)",
            "level = (left[:, j] / steps[:, j]).round()\n        codes[:, j] = level.clamp(qmin, qmax)",
            "error = (left[:, j] - codes[:, j] * steps[:, j]) / U[j, j]",
            "error = (left[:, j] - level * steps[:, j]) / U[j, j]",
        ): "Your error does not know that the integer was clamped. It is the column less what is stored.",
        replace(DAMPED, "add_(damp)"): DAMP_ITSELF,
        replace(
            DAMPED,
            "add_(damp)",
            "torch.cholesky_inverse(torch.linalg.cholesky(H))",
            "torch.linalg.inv(H)",
        ): DAMP_ITSELF,
        replace(
            DAMPED, "add_(0)"
        ): "You do not damp. With few inputs, or a feature that is always 0, "
        "the Hessian has no inverse.",
        replace(
            DAMPED, "add_(damp * H.diagonal().max())"
        ): "You damp by the largest element of the diagonal. It is the mean.",
        replace(DAMPED, "add_(damp * H.mean())"): DAMP_ALL,
        replace(
            DAMPED,
            "add_(damp * H.mean())",
            "torch.cholesky_inverse(torch.linalg.cholesky(H))",
            "torch.linalg.inv(H)",
        ): DAMP_ALL,
        replace(
            "weight.double().clone()", "weight.double()"
        ): "You write over the caller's weight where it is "
        "float64 already: `.double()` is then no copy.",
        replace(
            "hessian.double().clone()", "hessian.double()"
        ): "You damp the caller's Hessian where it is float64 already: `.double()` is then no copy.",
        replace(
            "weight.double().clone()",
            "weight.float().clone()",
            "hessian.double().clone()",
            "hessian.float().clone()",
            ".double().expand",
            ".float().expand",
        ): IN_SINGLE,
        replace(
            "weight.double().clone()",
            "weight.float().clone()",
            "hessian.double().clone()",
            "hessian.float().clone()",
            ".double().expand",
            ".float().expand",
            "torch.cholesky_inverse(torch.linalg.cholesky(H))",
            "torch.linalg.inv(H)",
        ): IN_SINGLE,
        replace(
            "codes[:, j] * steps[:, j]) /", "codes[:, j]) /"
        ): "You subtract the integer from the column. "
        "Subtract what it stands for: times its scale.",
        replace(
            ".double().expand(weight.shape)", ".double()"
        ): "`spread` leaves an axis of size 1 as it is, and there is no column j in it. Give each weight its own "
        "scale: `.expand(weight.shape)`.",
        replace(
            "steps = spread(scale, weight.shape)",
            "steps = spread(scale[..., :1] if scale.ndim == 2 else scale, weight.shape)",
        ): "You use the first group's scale for the whole row. Each group has its own.",
    }
)


@gptq.mistake(
    "You take the columns in the order of the Hessian's diagonal (act_order). Here they go from left to right."
)
def _(weight, hessian, scale, qmin, qmax, damp=0.01):
    order = hessian.diagonal().argsort(descending=True)
    full = spread(scale, weight.shape).expand(weight.shape)
    codes = quantization.gptq(
        weight[:, order], hessian[order][:, order], full[:, order], qmin, qmax, damp
    )
    return codes[:, order.argsort()]


@gptq.mistake("The values are right, but Python goes through the rows.", cost=True)
def _(weight, hessian, scale, qmin, qmax, damp=0.01):
    full = spread(scale, weight.shape).expand(weight.shape)
    if not len(weight):
        return quantization.gptq(weight, hessian, scale, qmin, qmax, damp)
    rows = zip(weight, full, strict=True)
    return torch.cat(
        [quantization.gptq(w[None], hessian, s[None], qmin, qmax, damp) for w, s in rows]
    )


@gptq.alternative("least squares of the columns that are left, solved anew in each step")
def _(weight, hessian, scale, qmin, qmax, damp=0.01):
    n = weight.shape[1]
    H = hessian.to(F64, copy=True)
    H.diagonal().add_(damp * H.diagonal().mean())
    w, steps = weight.to(F64, copy=True), spread(scale, weight.shape).to(F64).expand(weight.shape)
    chosen = []
    for j in range(n):
        q = torch.clamp(torch.round(w[:, j] / steps[:, j]), qmin, qmax)
        chosen.append(q.to(torch.int8))
        d = q * steps[:, j] - w[:, j]
        if j + 1 < n:  # min over e of (d, e) H (d, e)ᵀ: e = −d H[j, rest] H[rest, rest]⁻¹
            e = torch.linalg.solve(H[j + 1 :, j + 1 :], H[j + 1 :, j : j + 1])[:, 0]
            w[:, j + 1 :] -= d[:, None] * e
    return torch.stack(chosen, dim=1)


@gptq.alternative("the inverse, reduced by a column in each step")
def _(weight, hessian, scale, qmin, qmax, damp=0.01):
    H = hessian.double()
    inverse = torch.linalg.inv(
        H + torch.diag(torch.full((len(H),), float(damp * H.diag().mean())).double())
    )
    w, steps = (
        weight.double() + 0.0,
        spread(scale, weight.shape).double() + torch.zeros(weight.shape),
    )
    out = torch.zeros(weight.shape, dtype=torch.int8)
    for j in range(weight.shape[1]):
        out[:, j] = (w[:, j] / steps[:, j]).round().clamp(qmin, qmax).to(torch.int8)
        e = (w[:, j] - steps[:, j] * out[:, j]) / inverse[j, j]
        w = w - torch.outer(e, inverse[j])
        inverse = inverse - torch.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    return out


# ------------------------------------------------------------------------------ QuantizedLinear

QuantizedLinear = Exercise(
    quantization.QuantizedLinear,
    title="A linear layer in four bits",
    difficulty=3,
    minutes=40,
    points=6,
    probe=probes.four_bit_layer,
    formats={"uint8": "#04x"},
    hints=(
        "The weight as (out, groups, group_size): `weight.unflatten(1, (-1, group_size))`.",
        "Round the scale to bfloat16 first, and quantize with the rounded one: it is what will multiply.",
        "`register_buffer` keeps what moves with the module and is saved, and does not train.",
        "In forward: unpack, dequantize to x's dtype, `F.linear`. Keep nothing.",
        (
            "edge cases",
            "A group of zeros has the scale 1. Small weights can have a scale that rounds to 0.",
        ),
    ),
)


@QuantizedLinear.by_hand
def _():
    weight = torch.tensor([[7.0, -3.5, 1.5, 0.0], [0.0, 0.0, -1.75, 0.75]])
    bias, x = torch.tensor([1.0, -1.0]), torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    yield (
        call(weight, bias, 2, x),
        {
            "the layer's weight is as it was": True,
            "buffers": {
                "packed": torch.tensor([[0x7C, 0x70], [0x00, 0x93]], dtype=torch.uint8),
                "scale": torch.tensor([[1.0, 1.5 / 7], [1.0, 0.25]], dtype=BF16),
            },
            "trained": [],
        },
    )


def layer_case(
    out, features, group, *inputs, bias=True, dtype=torch.float32, seed=0, spreadout=0.3
):
    weight = (spreadout * normal(out, features, seed=seed)).to(dtype)
    made = normal(out, dtype=dtype, seed=seed + 1) if bias else None
    xs = [normal(*shape, features, dtype=dtype, seed=seed + 2) for shape in inputs]
    return call(weight, made, group, *xs)


@QuantizedLinear.cases(20)
def _(draw):
    group, groups, out = (
        2 * draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 5)),
    )
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    yield layer_case(
        out,
        group * groups,
        group,
        shape,
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 999)),
        spreadout=draw(st.sampled_from((0.02, 1.0))),
    )


@QuantizedLinear.edge
def _():
    yield layer_case(4, 64, None, (2,)), "groups of 32 are the default"
    yield layer_case(6, 6, 2, (6,)), "square"
    yield layer_case(3, 8, 4, (2, 3), (5,)), "two calls of different lengths"
    yield layer_case(3, 8, 8, (0,)), "no row"
    yield layer_case(3, 8, 4, (2,), dtype=BF16), "bfloat16"
    yield layer_case(3, 8, 4, (2,), dtype=F64), "float64"
    weight, bias, group, x = layer_case(3, 8, 4, (2,)).args
    yield call(weight, bias, group, x, x.bfloat16(), x.double()), "inputs of three dtypes"
    yield call(draws.scattered(weight), bias, group, draws.scattered(x)), "not contiguous"
    yield call(torch.zeros(2, 4), None, 2, normal(1, 4)), "zeros alone"
    yield call(1e-40 * weight, bias, group, x), "weights so small that the scale rounds to 0"
    yield call(1e30 * weight, None, group, x), "large weights"
    coarse = torch.tensor([[1.0, 0.9322, 0.5, -0.2146], [1.0117, 0.5058, -0.3613, 0.2168]])
    yield call(coarse, None, 4, x[:, :4]), "a scale that bfloat16 rounds away"
    step = 0.0595703125  # a bfloat16
    level = torch.tensor([7.0, -6.5, -5.5, -4.5, 6.5, 5.5, 4.5, 3.5, 2.5, 1.5, -3.5, -2.5]).view(
        1, 12
    )
    yield (
        call(level * step, None, 12, normal(1, 12)),
        "halfway between two integers: weight / scale, and not weight · (1 / scale)",
    )
    yield layer_case(3, 8, 3, (2,)), "an odd group: an error"
    yield layer_case(3, 9, 3, (2,)), "odd groups that fill an odd row: an error"
    yield layer_case(3, 12, 3, (2,)), "odd groups that fill an even row: an error"
    yield layer_case(3, 8, 6, (2,)), "groups that do not fill a row: an error"
    yield layer_case(3, 8, 0, (2,)), "groups of nothing: an error"
    yield layer_case(3, 8, -2, (2,)), "a negative group: an error"


UNROUNDED = (
    "You quantize with the scale before it is rounded, and multiply by the rounded one. Round the scale "
    "first, and then ask whether it is 0."
)
KEPT_FLOATS = (
    "You keep the dequantized weight after a call. Then the layer holds all floats again, and the four bits "
    "beside them."
)
BIAS_AS_BUFFER = "Your bias is a buffer. It is the layer's own Parameter, which no longer trains."
QUANTIZED = "codes = quantize(weight, scale, torch.zeros_like(scale, dtype=torch.int32), -7, 7)"
QuantizedLinear.slips(
    {
        replace(
            'self.register_buffer("packed", pack_int4(codes))',
            'self.register_buffer("packed", pack_int4(codes))\n        self.kept = weight.clone()',
        ): "The float weight is still kept in an attribute: the layer has become larger, not smaller.",
        replace(
            "return F.linear(x, weight, bias)",
            'if not hasattr(self, "_made"):\n            self._made = weight\n'
            "        return F.linear(x, self._made.to(x.dtype), bias)",
        ): KEPT_FLOATS,
        replace(
            "return F.linear(x, weight, bias)",
            'if getattr(self, "_made", x.new_empty(0, dtype=torch.bool)).dtype != x.dtype:\n'
            "            self._made = weight\n        return F.linear(x, self._made, bias)",
        ): KEPT_FLOATS,
        replace(
            'self.register_buffer("scale", scale)', "self.scale = scale"
        ): "The scale is a plain attribute: it is not saved, and stays behind when the module moves. "
        "Register a buffer.",
        replace(
            'self.register_buffer("packed", pack_int4(codes))', "self.packed = pack_int4(codes)"
        ): "The packed weight is a plain attribute: it is not saved. Register a buffer.",
        replace(
            'self.register_buffer("packed", pack_int4(codes))',
            "self.packed = pack_int4(codes)",
            'self.register_buffer("scale", scale)',
            "self.scale = scale",
        ): "Packed weight and scale are plain attributes: they are not saved, and stay behind when the module "
        "moves. Register buffers.",
        replace(
            'self.register_buffer("scale", scale)', "self.scale = nn.Parameter(scale)"
        ): "Your scale is a parameter, and an optimizer would train it. It is a buffer.",
        replace(
            QUANTIZED,
            "exact = torch.where(scale == 1.0, 1.0, largest / 7)\n"
            "        codes = quantize(weight, exact, torch.zeros_like(scale, dtype=torch.int32), -7, 7)",
        ): UNROUNDED,
        replace(
            "scale = (largest / 7).bfloat16()",
            "scale = largest.float() / 7",
            'self.register_buffer("scale", scale)',
            'self.register_buffer("scale", scale.bfloat16())',
        ): UNROUNDED,
        replace(
            "weight.unflatten(1, (-1, group_size)).abs()",
            "weight.bfloat16().unflatten(1, (-1, group_size)).abs()",
        ): "You round the weight to bfloat16 before you divide by 7, so the scale is rounded twice. Divide the "
        "largest of the weight as it is, and round once.",
        replace(
            "largest / 7", "largest / 8"
        ): "Your scale is the largest / 8, so the largest weight would be 8, and is cut to 7.",
        replace(
            "largest / 7", "largest / 15"
        ): "Your scale is the largest / 15: half of the integers are for negative numbers.",
        replace(
            "scale = torch.where(scale == 0, 1.0, scale)", ""
        ): "A group of zeros has the scale 0, and 0 / 0 is NaN. Its scale is 1.",
        replace(
            "(largest / 7).bfloat16()", "largest / 7"
        ): "Your scale is float32. It is bfloat16: half the bytes.",
        replace(
            "(largest / 7).bfloat16()", "(largest / 7).half().bfloat16()"
        ): "Your scale went through float16, which is zero below 6e-8 and infinite above 65504. bfloat16 has "
        "the exponents of float32.",
        replace(
            "pack_int4(codes))", "codes)"
        ): "Your integers have a byte each. Pack two into one.",
        replace(
            "weight.unflatten(1, (-1, group_size)).abs().amax(-1)",
            "weight.unflatten(1, (-1, group_size)).abs().amax((-1, -2), keepdim=True)[..., 0]"
            ".expand(-1, weight.size(1) // group_size)",
        ): "You take the largest of the whole row for all its groups. Each has its own.",
        replace(
            "weight.unflatten(1, (-1, group_size)).abs().amax(-1)",
            "weight.unflatten(1, (-1, group_size)).amax(-1)",
        ): "You take the largest weight of a group. The largest magnitude decides.",
        replace(
            "if group_size <= 0 or group_size % 2 or weight.size(1) % group_size:", "if False:"
        ): "You take any group size. It must be even, positive, and fill the row: raise ValueError.",
        replace(
            "group_size <= 0 or group_size % 2 or weight.size(1)", "weight.size(1)"
        ): "You ask only whether the groups fill a row. An odd group size, 0 or less must raise ValueError, "
        "too; and 0 divides nothing: ask for it first.",
        replace(
            "group_size <= 0 or", ""
        ): "A group size of 0 divides nothing, and a negative one is none: ask whether it is at least 2.",
        replace(
            "group_size % 2 or", "weight.size(1) % 2 or"
        ): "You take an odd group size if the row is even. The group's size must be even.",
        replace(
            "return F.linear(x, weight, bias)",
            "return F.linear(x, weight)",
        ): "Your forward has no bias.",
        replace(
            "F.linear(x, weight, bias)",
            "F.linear(x.float(), weight.float(), None if bias is None else bias.float())",
        ): "Your output is float32 for every x. It has x's dtype.",
        replace(
            "F.linear(x, weight, bias)",
            "F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)",
        ): "You multiply in float32. For float64 that loses digits: dequantize to x's dtype, and multiply in it.",
        replace(
            "layer.bias.requires_grad_(False)", "layer.bias"
        ): "Your bias still trains. It does not any more.",
        replace(
            "layer.bias.requires_grad_(False)",
            "nn.Parameter(layer.bias.detach().clone(), requires_grad=False)",
        ): "Your bias is a copy. It is the layer's own.",
        replace(
            "self.bias = None if layer.bias is None else layer.bias.requires_grad_(False)",
            'bias = layer.bias\n        self.register_buffer("bias", None if bias is None else bias.detach())',
        ): BIAS_AS_BUFFER,
        replace(
            "self.bias = None if layer.bias is None else layer.bias.requires_grad_(False)",
            "bias = None if layer.bias is None else layer.bias.requires_grad_(False)\n"
            '        self.register_buffer("bias", bias)',
        ): BIAS_AS_BUFFER,
        replace(
            "codes = quantize(weight, scale,",
            "codes = quantize(weight * (1 / scale.float()).repeat_interleave("
            "group_size, 1), torch.ones_like(scale),",
        ): RECIPROCAL,
        replace(
            "        bias = None if self.bias is None else self.bias.to(x.dtype)\n        return F",
            "        x = x.detach()\n        bias = None if self.bias is None else self.bias.to(x.dtype)\n"
            "        return F",
        ): "No gradient reaches x. The layers before this one may still train.",
    }
)


@QuantizedLinear.alternative("by hand, without the chapter's functions")
class _(nn.Module):
    def __init__(self, layer, group_size=32):
        super().__init__()
        out, features = layer.weight.shape
        if group_size < 2 or group_size % 2 == 1 or features % group_size != 0:
            raise ValueError("groups")
        w = layer.weight.detach().to(torch.float32).reshape(out, features // group_size, group_size)
        scale = torch.div(torch.linalg.vector_norm(w, ord=INF, dim=-1), 7).to(BF16)
        scale = scale.masked_fill(scale == 0, 1.0)
        q = torch.round(w / scale[..., None].float()).clamp(-7, 7).to(torch.int16) % 16
        q = q.reshape(out, features // 2, 2)
        self.register_buffer("packed", (q[..., 0] * 16 + q[..., 1]).to(torch.uint8))
        self.register_buffer("scale", scale)
        self.group_size = group_size
        self.bias = layer.bias
        if self.bias is not None:
            self.bias.requires_grad = False

    def forward(self, x):
        q = torch.stack((self.packed // 16, self.packed % 16), -1).flatten(1).to(torch.int16)
        q = torch.where(q > 7, q - 16, q).unflatten(1, (-1, self.group_size))
        w = (q * self.scale[..., None].float()).flatten(1).to(x.dtype)
        y = x @ w.T
        return y if self.bias is None else y + self.bias.to(x.dtype)


# ------------------------------------------------------------------------------ mutants that compute the same

ZERO = "zero is zero in every dtype"
ON_CPU = "cases are on the CPU"
for exercise, mutant, because in (
    (
        fake_quantize,
        "fake_quantize: `level.clamp(qmin, qmax).int()` → `level.clamp(qmin, qmax)`",
        "dequantize turns whole numbers to int32 itself",
    ),
    (
        fake_quantize,
        "fake_quantize: `torch.where(inside, x, 0.0)` → `torch.where(inside, x, 1.0)`",
        "the number that stands there is subtracted again, and has no gradient",
    ),
    (
        MinMaxObserver,
        "MinMaxObserver.qparams: `(self.low > self.high).any()` → `(self.low > self.high).all()`",
        "a batch sets the ranges of all channels, so either all are empty or none is",
    ),
    (MinMaxObserver, "MinMaxObserver.observe: `self.low.to(x.device)` → `self.low`", ON_CPU),
    (MinMaxObserver, "MinMaxObserver.observe: `self.high.to(x.device)` → `self.high`", ON_CPU),
    (
        QuantizedLinear,
        "QuantizedLinear.forward: `torch.zeros_like(self.scale, dtype=torch.int32)` → "
        "`torch.zeros_like(self.scale)`",
        ZERO,
    ),
    (
        QuantizedLinear,
        "QuantizedLinear.__init__: `torch.zeros_like(scale, dtype=torch.int32)` → `torch.zeros_like(scale)`",
        ZERO,
    ),
    (
        QuantizedLinear,
        "QuantizedLinear.__init__: `group_size <= 0` → `group_size <= 1`",
        "a group of one is odd, and refused for that",
    ),
    (
        QuantizedLinear,
        "QuantizedLinear.__init__: `7` → `8`",
        "the largest weight / scale is 7, up to the rounding of the scale, so 8 is never reached",
    ),
    (
        QuantizedLinear,
        "QuantizedLinear.__init__: `-7` → `-8`",
        "the largest weight / scale is 7, up to the rounding of the scale, so −8 is never reached",
    ),
):
    exercise.equivalent(mutant, because=because)
