"""Exercises of chapter 11, schedules and stability: from the first step's learning rate to a seed."""
# mypy: ignore-errors

import math
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, on_ranks, probes, replace
from course_utils.grading.probes import prepared
from course_utils.reference import schedules_and_stability as book

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INF, NAN = math.inf, math.nan


def t(*values, dtype=F32):
    return torch.tensor(values, dtype=dtype)


# ------------------------------------------------------------------------------ linear_warmup

linear_warmup = Exercise(
    book.linear_warmup,
    title="A line to the learning rate",
    difficulty=1,
    minutes=5,
    points=1,
    probe=probes.factor,
    hints=(
        "What share of the warm-up has passed at this step?",
        "The line starts at `start`; 1 - start is left to climb.",
        ("edge cases", "With no warm-up there is nothing to divide by: the factor is 1 at once."),
    ),
)


@linear_warmup.by_hand
def _():
    for step, factor in ((0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0), (5, 1.0)):
        yield call(step, 4), factor
    yield call(1, 4, start=0.2), 0.4


@linear_warmup.cases
def _(draw):
    start = draw(st.sampled_from([0.0, 0.1, 0.25, 1.0]))
    yield call(draw(st.integers(0, 12)), draw(st.integers(1, 9)), start=start)


@linear_warmup.edge
def _():
    yield call(0, 0), "no warm-up"
    yield call(0, 0, start=0.1), "no warm-up, whatever the start"
    yield call(0, 5, start=0.1), "the first step"
    yield call(10**6, 5, start=0.1), "long after it"


linear_warmup.slips(
    {
        replace(
            "* step /", "* (step + 1) /"
        ): "You are one step ahead. Step 0 has the factor `start`, and step `warmup_steps` is the first with 1.",
        replace(
            "/ warmup_steps", "/ (warmup_steps - 1 or 1)"
        ): "Your line reaches 1 one step early, at warmup_steps - 1: divide by warmup_steps.",
        replace(
            "/ warmup_steps", "/ (warmup_steps + 1)"
        ): "Your line is too flat: at step warmup_steps it must have arrived at 1. Divide by warmup_steps.",
        replace(
            "if step >= warmup_steps:", "if warmup_steps == 0:"
        ): "Your line goes on rising after the warm-up. From step warmup_steps on the factor is 1.",
        replace(
            "start + (1 - start) *", ""
        ): "You begin at 0 whatever `start` is. The line goes from `start` to 1.",
        replace(
            "start + (1 - start) *", "start +"
        ): "Your line climbs by 1 from `start`, too steeply. Only 1 - start is left to climb.",
        replace(
            "start + (1 - start) * step / warmup_steps", "min(1.0, start + step / warmup_steps)"
        ): "Your line climbs by 1 from `start`, too steeply. Only 1 - start is left to climb.",
        replace(
            "return start +", "start = start or 1 / warmup_steps\n    return start +"
        ): "You take a `start` of 0 for none, and begin at 1 / warmup_steps. With 0 the line begins at 0.",
        replace(
            "step >= warmup_steps", "step >= warmup_steps or warmup_steps == 1"
        ): "You take a warm-up of one step for none. Step 0 has the factor `start` there.",
        replace(
            "step >= warmup_steps",
            "step >= max(1, warmup_steps)",
            "/ warmup_steps",
            "/ max(1, warmup_steps)",
        ): "Without warm-up your step 0 gets `start`, as if the warm-up had one step. The factor is 1 at once.",
        replace("start + (1 - start) *", "max(start, ")
        + replace(
            "step / warmup_steps", "step / warmup_steps)"
        ): "You take `start` for the least that the factor "
        "may be. It is where the line begins; from there it rises at once.",
        replace(
            "step >= warmup_steps", "step > warmup_steps"
        ): "Without warm-up you divide by zero. With warmup_steps = 0 the factor is 1 at step 0 already.",
        replace("return 1.0", "return 0.0"): "After the warm-up the factor is 1, not 0.",
        replace(
            "* step / warmup_steps", "* (step // warmup_steps)"
        ): "You divide to an integer, so the factor stays at `start` until the end. Use /.",
        replace(
            "step / warmup_steps", "math.sqrt(step / warmup_steps)"
        ): "Your rise is a root. It is to be a straight line.",
    }
)
linear_warmup.mistake(
    "Your rise is half a cosine. It is to be a straight line.",
    replace("step / warmup_steps", "(1 - math.cos(math.pi * step / warmup_steps)) / 2"),
)


@linear_warmup.alternative("the smaller of the share and 1")
def _(step, warmup_steps, start=0.0):
    share = min(step / warmup_steps, 1.0) if warmup_steps else 1.0
    return (1 - share) * start + share


# ------------------------------------------------------------------------------ warmup_cosine

warmup_cosine = Exercise(
    book.warmup_cosine,
    title="Warm-up, then half a cosine",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.factor,
    hints=(
        "Let the progress of the cosine be 0 at step warmup_steps and 1 at step total_steps.",
        "(1 + cos(π · progress)) / 2 falls from 1 to 0. How do you make it fall to min_ratio?",
        ("edge cases", "After total_steps a cosine would rise again: progress is at most 1."),
    ),
)


@warmup_cosine.by_hand
def _():
    sizes = {"warmup_steps": 2, "total_steps": 6}
    for step, factor in ((0, 0.0), (1, 0.5), (2, 1.0), (4, 0.5), (6, 0.0), (7, 0.0)):
        yield call(step, **sizes), factor
    yield call(4, **sizes, min_ratio=0.2), 0.6


@warmup_cosine.cases
def _(draw):
    warmup, falling = draw(st.integers(0, 5)), draw(st.integers(1, 9))
    low = draw(st.sampled_from([0.0, 0.1, 0.25]))
    step = draw(st.integers(0, warmup + falling + 3))
    yield call(step, warmup_steps=warmup, total_steps=warmup + falling, min_ratio=low)


@warmup_cosine.edge
def _():
    yield call(0, warmup_steps=0, total_steps=5, min_ratio=0.1), "no warm-up"
    yield (
        call(1, warmup_steps=4, total_steps=8, min_ratio=0.5),
        "the warm-up begins at 0 all the same",
    )
    yield call(12, warmup_steps=2, total_steps=7, min_ratio=0.1), "as long again after the end"
    yield call(10**6, warmup_steps=3, total_steps=5), "long after the end"
    yield call(0, warmup_steps=5, total_steps=5), "no step is left for the cosine"
    yield call(7, warmup_steps=5, total_steps=5), "no step is left, and the step is past it"
    yield call(0, warmup_steps=6, total_steps=5), "the warm-up is longer than the whole"
    yield call(0, warmup_steps=0, total_steps=0), "nothing at all"


NO_STEP_LEFT = "With warmup_steps = total_steps no step is left for the cosine: raise ValueError."
STRETCHED = (
    "Your cosine is stretched over total_steps, so it has not arrived at the end. It has total_steps - warmup_steps "
    "steps."
)
warmup_cosine.slips(
    {
        replace(
            "min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))",
            "(step - warmup_steps) / (total_steps - warmup_steps)",
        ): "After total_steps your cosine rises again, as CosineAnnealingLR's does. Keep its progress at 1 at most.",
        replace(
            "(step - warmup_steps) / (total_steps - warmup_steps)",
            "(step - warmup_steps) / total_steps",
        ): STRETCHED,
        replace(
            "(step - warmup_steps) / (total_steps - warmup_steps)",
            "(step - warmup_steps) / total_steps",
            "    progress =",
            "    if step >= total_steps:\n        return min_ratio\n    progress =",
        ): STRETCHED,
        replace(
            "(step - warmup_steps) / (total_steps - warmup_steps)", "step / total_steps"
        ): "Your cosine has begun at step 0, so the factor jumps where the warm-up ends. Its progress is 0 at "
        "step warmup_steps.",
        replace(
            "(step - warmup_steps) / (total_steps - warmup_steps)",
            "(step - warmup_steps) / (total_steps - warmup_steps - 1 or 1)",
        ): "Your cosine ends one step early. At step total_steps, not before, the factor is min_ratio.",
        replace("min_ratio + (1 - min_ratio) *", "max(min_ratio, ")
        + replace(
            "(1 + math.cos(math.pi * progress)) / 2", "(1 + math.cos(math.pi * progress)) / 2)"
        ): "You cut the cosine off at min_ratio. It is to be squeezed: from 1 at the top to min_ratio at the bottom.",
        replace(
            "min_ratio + (1 - min_ratio) *", "min_ratio +"
        ): "Your cosine starts at 1 + min_ratio. From 1 to min_ratio it falls by 1 - min_ratio only.",
        replace(
            "min_ratio + (1 - min_ratio) *", ""
        ): "You fall to 0 whatever min_ratio is: the cosine ends at min_ratio.",
        replace(
            "return step / warmup_steps",
            "return min_ratio + (1 - min_ratio) * step / warmup_steps",
        ): "Your warm-up begins at min_ratio. Here it begins at 0, min_ratio is for the end.",
        replace(
            "return step / warmup_steps", "return (step + 1) / warmup_steps"
        ): "Your warm-up is one step ahead: the factor is 0 at step 0, and 1 at step warmup_steps.",
        replace("math.cos(math.pi * progress)", "math.cos(math.pi * progress / 2) * 2 - 1")
        + replace("(1 + math", "(1 + (math")
        + replace(
            " * 2 - 1", " * 2 - 1)"
        ): "You take a quarter of a cosine. The fall is half of one: (1 + cos(π · progress)) / 2.",
        replace(
            "(1 + math.cos(math.pi * progress)) / 2", "(1 - progress)"
        ): "Your fall is a straight line. It is to be half a cosine.",
        replace(
            "    if step < warmup_steps:\n        return step / warmup_steps\n", ""
        ): "There is no warm-up: before step warmup_steps the factor is step / warmup_steps.",
        replace("warmup_steps >= total_steps", "warmup_steps > total_steps"): NO_STEP_LEFT,
        replace(
            "warmup_steps >= total_steps",
            "warmup_steps > total_steps",
            "    progress =",
            "    if step >= total_steps:\n        return min_ratio\n    progress =",
        ): NO_STEP_LEFT,
        replace(
            "warmup_steps >= total_steps", "False"
        ): "If the warm-up leaves no step for the cosine, raise ValueError, at every step.",
        replace(
            "warmup_steps >= total_steps:", "step >= warmup_steps >= total_steps:"
        ): "If the warm-up leaves no step for the cosine, raise ValueError, at every step.",
        replace(
            "step < warmup_steps",
            "step < max(1, warmup_steps)",
            "return step / warmup_steps",
            "return step / max(1, warmup_steps)",
        ): "Without warm-up your step 0 gets 0, as if the warm-up had one step. The cosine begins at once, at 1.",
        replace(
            "    progress =", "    if step > total_steps:\n        return 0.0\n    progress ="
        ): "After the cosine your factor is 0. It stays at min_ratio.",
        replace(
            "    progress =", "    if step >= total_steps:\n        return 0.0\n    progress ="
        ): "After the cosine your factor is 0. It stays at min_ratio.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "math.pi * progress", "progress"
        ): "The cosine's angle is in radians and goes from 0 to π: multiply progress by math.pi.",
    }
)


@warmup_cosine.alternative("three ifs")
def _(step, *, warmup_steps, total_steps, min_ratio=0.0):
    if total_steps - warmup_steps < 1:
        raise ValueError("no step for the cosine")
    if step > total_steps:
        return min_ratio
    if step < warmup_steps:
        return float(np.linspace(0, 1, warmup_steps + 1)[step])
    half = math.cos(0.5 * math.pi * (step - warmup_steps) / (total_steps - warmup_steps))
    return min_ratio + (1 - min_ratio) * half**2


# ------------------------------------------------------------------------------ wsd

wsd = Exercise(
    book.wsd,
    title="Warm-up, stable, decay",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.factor,
    hints=(
        "Find a height between 0 and 1 for each part, and bring it between min_ratio and 1 once, at the end.",
        "The decay begins at step warmup_steps + stable_steps; its p is the share of decay_steps that has passed.",
        ("edge cases", "Each part may be empty: compare steps before you divide."),
    ),
)
PARTS = {"warmup_steps": 2, "stable_steps": 3, "decay_steps": 4}


@wsd.by_hand
def _():
    for step, factor in ((0, 0.0), (1, 0.5), (2, 1.0), (4, 1.0), (5, 1.0), (6, 0.75), (9, 0.0)):
        yield call(step, **PARTS), factor
    yield call(1, **PARTS, min_ratio=0.2), 0.6
    yield call(6, **PARTS, decay="1-sqrt"), 0.5
    yield call(7, **PARTS, decay="cosine", min_ratio=0.2), 0.6
    yield call(10, **PARTS, min_ratio=0.2), 0.2


@wsd.cases
def _(draw):
    warmup, stable, falling = (draw(st.integers(0, 5)) for _ in range(3))
    yield call(
        draw(st.integers(0, warmup + stable + falling + 3)),
        warmup_steps=warmup,
        stable_steps=stable,
        decay_steps=falling,
        min_ratio=draw(st.sampled_from([0.0, 0.1, 0.25])),
        decay=draw(st.sampled_from(["linear", "cosine", "1-sqrt"])),
    )


@wsd.edge
def _():
    yield call(0, **PARTS | {"warmup_steps": 0}, min_ratio=0.1), "no warm-up"
    yield call(0, **PARTS, min_ratio=0.1), "the first step of a warm-up from min_ratio"
    yield (
        call(2, **PARTS | {"stable_steps": 0}, min_ratio=0.1),
        "no stable part: the decay begins at 1",
    )
    yield call(5, **PARTS | {"decay_steps": 0}, min_ratio=0.1), "no decay: a drop to min_ratio"
    yield call(4, **PARTS | {"decay_steps": 0}, min_ratio=0.1), "no decay, and still stable"
    nothing = {"warmup_steps": 0, "stable_steps": 0, "decay_steps": 0}
    yield call(0, **nothing, min_ratio=0.1), "three empty parts"
    yield call(10**6, **PARTS, min_ratio=0.1, decay="cosine"), "long after the end"
    yield call(14, **PARTS, decay="1-sqrt"), "after the end a root goes on falling"
    yield call(0, **PARTS, decay="sqrt"), "an unknown decay"
    yield call(3, **PARTS, decay="Linear"), "an unknown decay, in the stable part"
    yield call(7, **PARTS, decay="exponential"), "an unknown decay, while it decays"


wsd.slips(
    {
        replace(
            "height = step / warmup_steps", "return step / warmup_steps"
        ): "Your warm-up begins at 0. It goes from min_ratio to 1, as the decay goes back.",
        replace(
            "height = step / warmup_steps", "height = (step + 1) / warmup_steps"
        ): "Your warm-up is one step ahead: step 0 has min_ratio, step warmup_steps has 1.",
        replace(
            "past = step - warmup_steps - stable_steps", "past = step - stable_steps"
        ): "Your stable part ends at step stable_steps. It has that many steps *after* the warm-up.",
        replace(
            "past = step - warmup_steps - stable_steps",
            "past = step - max(warmup_steps, stable_steps)",
        ): "Your stable part ends at step stable_steps. It has that many steps *after* the warm-up.",
        replace(
            "past = step - warmup_steps - stable_steps",
            "past = step - warmup_steps - stable_steps + 1",
        ): "Your decay begins one step early. At step warmup_steps + stable_steps the factor is still 1.",
        replace(
            "falls[decay](past / decay_steps)", "falls[decay]((past + 1) / decay_steps)"
        ): "Your decay is one step ahead. Its first step, warmup_steps + stable_steps, has p = 0 and the factor 1.",
        replace(
            "falls[decay](past / decay_steps)", "falls[decay](past / (decay_steps - 1 or 1))"
        ): "Your decay ends one step early: p is the share of decay_steps, and 1 only after all of them.",
        replace(
            "falls[decay](past / decay_steps)", "falls['linear'](past / decay_steps)"
        ): "You fall in a straight line whatever `decay` says.",
        replace(
            "1 - math.sqrt(p)", "math.sqrt(1 - p)"
        ): "You take the root of what is left, √(1 - p). Asked is 1 - √p, which falls fast at first.",
        replace(
            "1 - math.sqrt(p)", "1 - p**2"
        ): "You square p. Asked is 1 - √p, which falls fast at first.",
        replace(
            "(1 + math.cos(math.pi * p)) / 2", "math.cos(math.pi * p / 2)"
        ): "You take a quarter of a cosine. The fall is half of one: (1 + cos πp) / 2.",
        replace(
            "return min_ratio + (1 - min_ratio) * height", "return max(min_ratio, height)"
        ): "You cut the factor off at min_ratio. It is to be squeezed: min_ratio + (1 - min_ratio) · height.",
        replace(
            "    return min_ratio +",
            "    if past >= 0:\n        return max(min_ratio, height)\n    return min_ratio +",
        ): "You cut the factor off at min_ratio. It is to be squeezed: min_ratio + (1 - min_ratio) · height.",
        replace(
            "    return min_ratio +",
            "    if past >= 0 and decay == '1-sqrt':\n        return max(min_ratio, height)\n    return min_ratio +",
        ): "You cut the factor off at min_ratio. It is to be squeezed: min_ratio + (1 - min_ratio) · height.",
        replace(
            "return min_ratio + (1 - min_ratio) * height", "return min_ratio + height"
        ): "You add min_ratio to the whole, so the stable part is above 1. Only 1 - min_ratio is to climb and fall.",
        replace(
            "(1 - min_ratio) * height", "(1 - min_ratio) * height if height else 0.0"
        ): "Where the height is 0 your factor is 0: it never falls below min_ratio.",
        replace(
            "height = 0.0", "height = 1.0"
        ): "After the decay your factor is 1 again. It stays at min_ratio.",
        replace(
            "height = 0.0", "height = 0.0 if decay_steps else 1.0"
        ): "Without a decay your factor stays at 1. The decay is then over at once: min_ratio.",
        replace(
            "step < warmup_steps",
            "step < max(1, warmup_steps)",
            "step / warmup_steps",
            "step / max(1, warmup_steps)",
        ): "Without warm-up your step 0 gets min_ratio, as if the warm-up had one step. The next part begins at once.",
        replace(
            "    elif past < decay_steps:\n        height = falls[decay](past / decay_steps)\n    else:\n"
            "        height = 0.0\n",
            "    else:\n        height = falls[decay](past / (decay_steps or 1))\n",
        ): "After decay_steps your fall goes on. The factor stays at min_ratio.",
        replace(
            "if decay not in falls:",
            "if decay not in falls and past >= 0:",
            "    past = step - warmup_steps - stable_steps\n",
            "",
            "    falls =",
            "    past = step - warmup_steps - stable_steps\n    falls =",
        ): "You refuse an unknown decay only once the decay has begun, when days of training have passed. Raise "
        "ValueError at every step.",
        replace(
            "raise ValueError(f\"the decay is one of {', '.join(falls)}; came {decay!r}\")",
            "decay = 'linear'",
        ): "An unknown decay becomes a line in silence: raise ValueError.",
        replace(
            "raise ValueError(", "raise KeyError("
        ): "You raise KeyError for an unknown decay. Raise ValueError.",
    }
)


@wsd.alternative("points, and a line between them")
def _(step, *, warmup_steps, stable_steps, decay_steps, min_ratio=0.0, decay="linear"):
    if decay not in ("linear", "cosine", "1-sqrt"):
        raise ValueError(decay)
    top = warmup_steps + stable_steps
    if step < warmup_steps:
        return min_ratio + (1 - min_ratio) / warmup_steps * step
    if step < top:
        return 1.0
    if step >= top + decay_steps:
        return min_ratio
    left = 1 - (step - top) / decay_steps
    if decay == "cosine":
        left = math.sin(math.pi * left / 2) ** 2
    elif decay == "1-sqrt":
        left = 1 - (1 - left) ** 0.5
    return left + (1 - left) * min_ratio


# ------------------------------------------------------------------------------ clip_grad_norm

clip_grad_norm = Exercise(
    book.clip_grad_norm,
    title="Clip by the global norm",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.clipped,
    hints=(
        "The norm of all gradients is the norm of their norms: √(Σ ‖g‖²).",
        "`torch._foreach_norm(grads, 2, dtype)` takes the norm of each tensor of a list in one operation; "
        "`torch._foreach_mul_(grads, factor)` multiplies each.",
        (
            "edge cases",
            "`parameters` may be an iterator, which gives its elements once. And what is 65,504 · 2 in float16?",
        ),
        "Lists want one dtype: keep a list for each. `torch.where(norm.isfinite(), factor, 1.0)` leaves "
        "gradients alone.",
    ),
)


@clip_grad_norm.by_hand
def _():
    small = {"norm returned": torch.tensor(5.0), "gradient 0": t(3.0, 4.0)}
    rest = {"each .grad is the tensor that it was": True, "parameters are left alone": True}
    yield call([t(3.0, 4.0)], 10.0), small | rest
    yield call([t(3.0, 4.0)], 1.0), small | {"gradient 0": t(0.6, 0.8)} | rest


@clip_grad_norm.cases(24)
def _(draw):
    grads = []
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(draws.shapes(max_dims=3, among=(1, 2, 3)))
        grad = draw(draws.tensors(shape, draw(st.sampled_from([F32, F32, F64]))))
        grads.append(draw(st.sampled_from([None, grad, grad, grad])))
    yield call(grads, draw(st.sampled_from([0.1, 0.5, 1.0, 5.0, 100.0])))


HALF = torch.full((8,), 40000.0, dtype=F16)


@clip_grad_norm.edge
def _():
    yield call([], 1.0), "no parameters"
    yield call([None, None], 1.0), "no gradient"
    yield call([t(0.3, 0.4), None, t(0.0, 1.2)], 1.0, a_list=True), "a list in place of an iterator"
    yield call([t(0.3, 0.4)], 1.0), "a small gradient does not grow"
    yield call([torch.zeros(3), torch.zeros(2)], 1.0), "nothing but zeros"
    yield call([HALF], 1.0), "float16, whose norm float16 cannot hold"
    yield call([HALF, t(30000.0, 40000.0)], 1000.0), "float16 and float32"
    yield call([torch.full((400,), 3.0, dtype=BF16)], 2.0), "bfloat16: the sum of squares"
    yield call([t(3.0, dtype=F64), t(4.0), t(12.0, dtype=BF16)], 6.5), "three dtypes"
    yield call([t(1e-300, 1e200, dtype=F64)], 1.0), "float64 beyond float32"
    yield call([t(1.0, INF), t(2.0)], 1.0), "an infinite element"
    yield call([t(1.0, NAN), t(2.0)], 1.0), "a NaN"
    yield call([t(INF, -INF), t(2.0, dtype=F64)], 1.0), "both infinities"
    yield call([t(3e-6, 4e-6)], 1e-6), "a norm as small as what is added to it"
    yield call([t(3e-7, 4e-7)], 1e-7), "a norm smaller than what is added to it"
    yield call([t(3.0, 4.0)], 0.0), "max_norm is 0"
    yield call([t(3.0, 4.0)], INF), "no bound: the norm is all that is wanted"
    yield call([draws.scattered(torch.arange(1.0, 7.0).view(2, 3))], 1.0), "not contiguous"
    yield call([torch.zeros(0), t(3.0, 4.0)], 1.0), "an empty gradient"


MANY = [call([torch.full((4,), float(i + 1)) for i in range(64)], 1.0)]
clip_grad_norm.contract(
    contracts.kernels(
        MANY,
        limit=40,
        says="each operation runs once for all gradients of a dtype, however many there are",
        prepare=prepared.gradients_given,
    )
)
FACTOR = "torch.clamp(max_norm / (norm + 1e-6), max=1.0)"
NORMS = "norms += torch._foreach_norm(grads, 2, torch.promote_types(dtype, torch.float32))"
WHERE = "    factor = torch.where(norm.isfinite(), factor, 1.0)\n"
ASKED_FIRST = (
    "    by_dtype = defaultdict(list)\n",
    "    if all(p.grad is None for p in parameters):\n        return torch.zeros(())\n"
    "    by_dtype = defaultdict(list)\n",
)
ITERATOR_ASKED = (
    "You go through `parameters` to see whether there is a gradient at all. What an iterator has given by then is "
    "gone, and that gradient is neither counted nor scaled. Keep a list of the gradients."
)
clip_grad_norm.slips(
    {
        replace(
            FACTOR, "max_norm / (norm + 1e-6)"
        ): "You scale small gradients up to max_norm. The factor is at most 1.",
        replace(
            WHERE, ""
        ): "A norm that is not finite goes into the factor, and the gradients become 0 or NaN. Leave them as they are.",
        replace(
            "norm.isfinite()", "~norm.isnan()"
        ): "You leave the gradients alone for a NaN, but not for an infinite norm.",
        replace(
            "norm.isfinite()", "~norm.isinf()"
        ): "You leave the gradients alone for an infinite norm, but not for a NaN.",
        replace(
            "torch.promote_types(dtype, torch.float32)", "dtype"
        ): "You compute the norm in the gradients' own dtype. float16 ends at 65,504, and bfloat16 keeps three "
        "digits: use float32 at least.",
        replace(
            "torch.promote_types(dtype, torch.float32)", "torch.float64"
        ): "Your norm is always float64. It is float32, or wider where a gradient is.",
        replace(
            "torch.linalg.vector_norm(torch.stack(norms))", "torch.stack(norms).sum()"
        ): "You add the norms. The norm of the whole is the root of the sum of their squares.",
        replace(
            "torch.linalg.vector_norm(torch.stack(norms))", "torch.stack(norms).max()"
        ): "You take the largest gradient's norm. The norm is that of all of them as one vector.",
        replace(
            "torch.linalg.vector_norm(torch.stack(norms))", "torch.stack(norms).square().sum()"
        ): "You return the sum of squares: its root is missing.",
        replace(
            "grads, 2, torch", "grads, 1, torch"
        ): "You take sums of absolute values. The norm is Euclidean, order 2.",
        replace(
            "return norm", "return torch.clamp(norm, max=max_norm)"
        ): "You return the norm after clipping. What one wants to log is the norm before.",
        replace(
            "return torch.zeros(())", "return None"
        ): "Without a gradient you return None. The norm is then a tensor, 0.",
        replace(
            "    if not norms:\n        return torch.zeros(())\n", ""
        ): "Without a gradient there is nothing to stack, and torch raises. The norm is then 0.",
        replace(
            "if p.grad is not None:", "if True:"
        ): "A parameter without gradient has None there: leave it out.",
        replace(*ASKED_FIRST): ITERATOR_ASKED,
        replace(
            *ASKED_FIRST, "    if not norms:\n        return torch.zeros(())\n", ""
        ): ITERATOR_ASKED,
        replace(
            "torch._foreach_mul_(grads, factor)", "torch._foreach_mul(grads, factor)"
        ): "The gradients are as they were: multiply in place, with `_foreach_mul_`.",
        replace(
            "torch._foreach_mul_(grads, factor)", "torch._foreach_clamp_max_(grads, max_norm)"
        ): "You cut off each element at max_norm. That changes the gradient's direction; scale all by one factor.",
    }
)
clip_grad_norm.mistake(
    "You divide each gradient by its own norm. All are scaled by one factor, so that the direction stays.",
    replace(
        "torch._foreach_mul_(grads, factor)",
        "[g.mul_(min(1.0, max_norm / (g.norm().item() + 1e-6))) for g in grads if g.isfinite().all()]",
    ),
)
clip_grad_norm.mistake(
    "You put new tensors into .grad. Whoever holds the old ones, such as a flat buffer, sees nothing of it: "
    "multiply in place.",
    replace(
        "    by_dtype = defaultdict(list)\n",
        "    parameters = list(parameters)\n    by_dtype = defaultdict(list)\n",
        "    for grads in by_dtype.values():\n        torch._foreach_mul_(grads, factor)\n",
        "    for p in parameters:\n        if p.grad is not None:\n            p.grad = p.grad * factor.to(p.grad.dtype)\n",
    ),
)
ALONE = replace(FACTOR, "torch.clamp(max_norm / norm, max=1.0)")
LEAST = replace(FACTOR, "torch.clamp(max_norm / norm.clamp(min=1e-6), max=1.0)")
ALL_WIDE = replace(
    "promote_types(dtype, torch.float32)",
    "promote_types(torch.float64 if torch.float64 in by_dtype else torch.float32, dtype)",
)
for alone, least in ((ALONE, LEAST), (ALONE + ALL_WIDE, LEAST + ALL_WIDE)):
    clip_grad_norm.mistake(
        "You divide by the norm alone. The factor is max_norm / (norm + 1e-6).", alone
    )
    clip_grad_norm.mistake(
        "You take 1e-6 for the least divisor. It is added to the norm: max_norm / (norm + 1e-6).",
        least,
    )
DTYPES_ADDED = replace(
    NORMS,
    "each = torch._foreach_norm(grads, 2, torch.promote_types(dtype, torch.float32))\n"
    "        norms.append(torch.linalg.vector_norm(torch.stack(each)))",
    "torch.linalg.vector_norm(torch.stack(norms))\n    factor",
    "torch.stack(norms).sum()\n    factor",
)
for dtypes_added in (DTYPES_ADDED, DTYPES_ADDED + ALL_WIDE):
    clip_grad_norm.mistake(
        "You add the norms of the dtypes. Norms do not add: take the norm of these norms.",
        dtypes_added,
    )
SECOND_PASS = replace(
    "    for grads in by_dtype.values():\n        torch._foreach_mul_(grads, factor)\n",
    "    for p in parameters:\n        if p.grad is not None:\n            p.grad.mul_(factor)\n",
)
FIRST_PASS = replace(
    "    by_dtype = defaultdict(list)\n",
    "    wide = torch.float32\n"
    "    for p in parameters:\n"
    "        if p.grad is not None:\n"
    "            wide = torch.promote_types(wide, p.grad.dtype)\n"
    "    by_dtype = defaultdict(list)\n",
)
ZERO_WIDE = replace("torch.zeros(())", "torch.zeros((), dtype=wide)")
for second_pass in (SECOND_PASS, SECOND_PASS + ALL_WIDE, FIRST_PASS, FIRST_PASS + ZERO_WIDE):
    clip_grad_norm.mistake(
        "You go through `parameters` twice. An iterator is empty the second time, so nothing is scaled. Keep a "
        "list of the gradients.",
        second_pass,
    )
ONE_DTYPE = "Your norm has the dtype of one gradient. It is the widest of all of them, and float32 at least."
for first_or_last in ("if 'wide' not in locals():\n                ", ""):
    clip_grad_norm.mistake(
        ONE_DTYPE,
        replace(
            "            by_dtype[",
            f"            {first_or_last}wide = torch.promote_types(p.grad.dtype, torch.float32)\n"
            "            by_dtype[",
            "(torch.stack(norms))",
            "(torch.stack(norms)).to(wide)",
        ),
    )
EACH_NORM = replace(
    NORMS,
    "wide = torch.promote_types(dtype, torch.float32)\n"
    "        norms += [torch.linalg.vector_norm(g, dtype=wide) for g in grads]",
)
SQUARES_EACH = replace(
    NORMS,
    "norms += [g.to(torch.promote_types(dtype, torch.float32)).square().sum().sqrt() for g in grads]",
)
EACH_SCALED = replace("torch._foreach_mul_(grads, factor)", "[g.mul_(factor) for g in grads]")
for looped in (EACH_NORM, EACH_SCALED, EACH_NORM + EACH_SCALED, SQUARES_EACH + EACH_SCALED):
    clip_grad_norm.mistake(
        "A loop launches an operation for each gradient, or several. Take the lists, with `torch._foreach_norm` and "
        "`torch._foreach_mul_`.",
        looped,
        cost=True,
    )


@clip_grad_norm.alternative("ask torch for the parts, on wide copies")
@torch.no_grad()
def _(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    wide = torch.float64 if any(g.dtype == F64 for g in grads) else torch.float32
    flat = torch.cat([g.reshape(-1).to(wide) for g in grads]) if len(grads) < 3 else None
    if flat is None or wide == torch.float64:
        same = {d: [g for g in grads if g.dtype == d] for d in {g.dtype for g in grads}}
        each = []
        for d, gs in same.items():
            each.extend(torch._foreach_norm(gs, 2, torch.promote_types(d, F32)))
        norm = torch.stack([n.to(wide) for n in each]).norm()
    else:
        norm = flat.norm()
    if norm.isfinite() and norm + 1e-6 > max_norm:
        for d in {g.dtype for g in grads}:
            torch._foreach_mul_([g for g in grads if g.dtype == d], max_norm / (norm + 1e-6))
    return norm


clip_grad_norm.equivalent(
    "clip_grad_norm: `torch.promote_types(dtype, torch.float32)` → `torch.promote_types(torch.float32, dtype)`",
    because="the order of the two does not matter",
)


# ------------------------------------------------------------------------------ clip_sharded_grad_norm

clip_sharded_grad_norm = Exercise(
    book.clip_sharded_grad_norm,
    title="The norm of shards",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.clipped_on_ranks,
    hints=(
        "Norms do not add up over ranks, squares do. Which number does each rank contribute?",
        "`dist.all_reduce(squares)` leaves the sum on every rank; the root comes after it.",
        (
            "edge cases",
            "A rank without a shard contributes 0. It must call all_reduce all the same.",
        ),
    ),
)


def sharded(max_norm, *grads):
    """The case of one list of shards for each rank."""
    return on_ranks(*(call(mine, max_norm) for mine in grads))


@clip_sharded_grad_norm.by_hand
def _():
    for max_norm, factor in ((10.0, 1.0), (2.5, 0.5)):
        expected = {}
        for rank, shard in enumerate((t(3.0), t(4.0))):
            expected |= {
                f"rank {rank}: norm returned": 5.0,
                f"rank {rank}: gradient 0": shard * factor,
                f"rank {rank}: each .grad is the tensor that it was": True,
                f"rank {rank}: parameters are left alone": True,
            }
        yield sharded(max_norm, [t(3.0)], [t(4.0)]), expected


@clip_sharded_grad_norm.cases(10)
def _(draw):
    def shards():
        made = []
        for _ in range(draw(st.integers(0, 3))):
            shape = draw(draws.shapes(max_dims=2, among=(1, 2, 3)))
            made.append(draw(st.sampled_from([None, *[draw(draws.tensors(shape))] * 3])))
        return made

    world = draw(st.integers(1, 3))
    yield sharded(draw(st.sampled_from([0.2, 1.0, 50.0])), *[shards() for _ in range(world)])


@clip_sharded_grad_norm.edge
def _():
    yield sharded(1.0, [t(3.0, 4.0)], []), "a rank that has no parameter"
    yield sharded(1.0, [None], [t(3.0, 4.0)], [torch.zeros(0)]), "no gradient, and an empty shard"
    yield sharded(1.0, [], []), "nobody has one"
    yield sharded(1.0, [t(1.0, INF)], [t(2.0)]), "an infinite element on one rank"
    yield sharded(1.0, [t(2.0)], [t(NAN)]), "a NaN on one rank"
    yield sharded(1e30, [t(2e30)], [t(1e30, 2e30)]), "squares that float32 cannot hold"
    yield sharded(1e-6, [t(3e-6)], [t(4e-6)]), "a norm as small as what is added to it"
    yield sharded(5.0, [HALF], [t(3.0), t(4.0, dtype=F64)]), "dtypes that differ from rank to rank"
    yield sharded(0.5, [t(3.0)], [t(0.1, 0.2)]), "one rank's share alone is below the bound"
    yield sharded(1.0, [t(3.0, 4.0)]), "a world of one"
    turned = torch.arange(1.0, 7.0).view(2, 3).T
    yield sharded(1.0, [turned], [t(2.0)]), "a shard that lies transposed in memory"


clip_sharded_grad_norm.contract(
    contracts.collectives(
        [sharded(1.0, [torch.ones(8)] * 4, [torch.ones(8)] * 4)],
        limit=1,
        says="one collective, however many shards there are",
        probe=probes.clipped_on_ranks,
    )
)
SQUARES = "squares += grad.double().square().sum()"
FACTOR_THERE = "min(1.0, max_norm / (norm + 1e-6))"
NAN_PASSES = (FACTOR_THERE, "min(max_norm / (norm + 1e-6), 1.0)")  # min(1.0, NaN) is 1.0
clip_sharded_grad_norm.slips(
    {
        replace(
            "    dist.all_reduce(squares)\n", ""
        ): "Each rank goes by its own shards' norm, so that ranks scale by different factors. Add the squares up over "
        "the ranks first.",
        replace(
            "    dist.all_reduce(squares)\n    norm = squares.sqrt().item()\n",
            "    norm = squares.sqrt()\n    dist.all_reduce(norm)\n    norm = norm.item()\n",
        ): "You add the ranks' norms. Squares add up, norms do not: take the root after the all-reduce.",
        replace(
            "dist.all_reduce(squares)", "dist.all_reduce(squares, dist.ReduceOp.MAX)"
        ): "You take the largest rank's share. The squares of all ranks add up.",
        replace(
            "dist.all_reduce(squares)", "dist.all_reduce(squares.div_(dist.get_world_size()))"
        ): "You average over the ranks. Shards are parts of one gradient: their squares add up.",
        replace(
            "dist.all_reduce(squares)",
            "dist.all_reduce(squares.mul_(dist.get_world_size()))",
        ): "Your squares are multiplied by the number of ranks. Each shard is on one rank and counts once.",
        replace(
            SQUARES, "squares += grad.double().norm()"
        ): "You add norms of shards. Add their squares.",
        replace(
            SQUARES, "squares += grad.square().sum()"
        ): "You square in the shard's own dtype. 40,000² is infinite in float16, and 2e30² in float32: float64 first.",
        replace(
            SQUARES, "squares += torch.dot(grad.flatten(), grad.flatten())"
        ): "You square in the shard's own dtype. 40,000² is infinite in float16, and 2e30² in float32: float64 first.",
        replace(
            SQUARES, "squares += grad.norm() ** 2"
        ): "You square in the shard's own dtype. 40,000² is infinite in float16, and 2e30² in float32: float64 first.",
        replace(
            "squares.sqrt().item()", "squares.item()"
        ): "You return the sum of squares: its root is missing.",
        replace(
            "min(1.0, max_norm / (norm + 1e-6))", "max_norm / (norm + 1e-6)"
        ): "You scale small gradients up to max_norm. The factor is at most 1.",
        replace(
            "if math.isfinite(norm):", "if True:"
        ): "You leave the shards alone for a NaN, but not for an infinite norm.",
        replace(
            "if math.isfinite(norm):", "if True:", *NAN_PASSES
        ): "A norm that is not finite goes into the factor. Leave the shards as they are.",
        replace(
            "math.isfinite(norm)", "not math.isinf(norm)", *NAN_PASSES
        ): "You leave the shards alone for an infinite norm, but not for a NaN.",
        replace(
            "if math.isfinite(norm):", "if all(bool(g.isfinite().all()) for g in grads):"
        ): "You look at this rank's shards alone. If another rank has a NaN, none may scale its own.",
        replace(
            "if math.isfinite(norm):",
            "if all(bool(g.isfinite().all()) for g in grads):",
            *NAN_PASSES,
        ): "You look at this rank's shards alone. If another rank has a NaN, none may scale its own.",
        replace(
            "math.isfinite(norm)",
            "math.isfinite(norm) and sum(float(g.double().square().sum()) for g in grads) > max_norm**2",
        ): "A rank scales its shards only if its own norm is above max_norm. The norm of all ranks decides, for all alike.",
        replace(
            "    dist.all_reduce(squares)\n", "    if grads:\n        dist.all_reduce(squares)\n"
        ): "A rank without a gradient does not call all_reduce, and the others wait for it. It takes part with 0.",
        replace(
            "if p.grad is not None]", "if True]"
        ): "A parameter without gradient has None there: leave it out.",
        replace(
            "grad.mul_(factor)", "grad.mul(factor)"
        ): "The shards are as they were: multiply in place, with `mul_`.",
        replace(
            "return norm", "return min(norm, max_norm)"
        ): "You return the norm after clipping. Return the one before.",
        replace(
            "return norm", "return squares.sqrt()"
        ): "You return a tensor. A Python float is asked for: `.item()`.",
        replace(
            "grad.double()", "grad.view(-1).double()"
        ): "`view(-1)` raises for a shard that lies transposed in memory, and a sum needs no flat tensor.",
    }
)
for factor in ("factor", "torch.tensor(factor, dtype=torch.float64)"):
    clip_sharded_grad_norm.mistake(
        "You put new tensors into .grad. The shard that a flat buffer holds stays as it was: multiply in place.",
        replace(
            "    grads = [p.grad for p in parameters if p.grad is not None]\n",
            "    params = [p for p in parameters if p.grad is not None]\n    grads = [p.grad for p in params]\n",
            "        for grad in grads:\n            grad.mul_(factor)\n",
            f"        for p in params:\n            p.grad = p.grad * {factor}\n",
        ),
    )
clip_sharded_grad_norm.mistake(
    "You send a second number that the first one says already: whether all is finite shows in the sum of squares.",
    replace(
        "    norm = squares.sqrt().item()\n",
        "    norm = squares.sqrt().item()\n    dist.all_reduce(squares.isfinite().double())\n",
    ),
    cost=True,
)


@clip_sharded_grad_norm.alternative("gather the ranks' squares, add them here")
def _(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    mine = sum(float(p.grad.to(F64).pow(2).sum()) for p in parameters)
    every = [None] * dist.get_world_size()
    every = torch.zeros(dist.get_world_size(), dtype=F64)
    every[dist.get_rank()] = mine
    dist.all_reduce(every)
    norm = math.sqrt(float(every.sum()))
    if math.isfinite(norm) and norm + 1e-6 > max_norm:
        for p in parameters:
            p.grad *= max_norm / (norm + 1e-6)
    return norm


# ------------------------------------------------------------------------------ accumulate_step

accumulate_step = Exercise(
    book.accumulate_step,
    title="Uneven micro-batches",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.accumulated_steps,
    hints=(
        "The mean over all targets is the sum of all losses, divided by the number of all targets.",
        "`F.cross_entropy(logits, targets, reduction='sum')` skips -100 by default. Count the targets first.",
        (
            "edge cases",
            "A micro-batch without a target has a mean of 0 / 0, which no weight mends.",
        ),
        "`logits.flatten(0, 1)`, `targets.flatten()`; one `backward()` for each micro-batch, one `step()`.",
    ),
)


def micro_batches(draw, number, longest=4):
    """Micro-batches of uneven sizes, a third of whose targets count nothing."""
    made = []
    for _ in range(number):
        shape = draw(st.tuples(st.integers(1, 3), st.integers(1, longest)))
        ids = draw(draws.indices(shape, 7))
        targets = draw(draws.indices(shape, 7))
        hidden = draw(draws.indices(shape, 3)) == 0
        made.append((ids, targets.masked_fill(hidden, -100)))
    return made


def with_a_target(batches):
    """The same, at least one of whose targets counts."""
    _, targets = batches[0]
    targets[0, 0] = 3
    return batches


def pair(shape, *hidden):
    """ids and targets of a shape, some of whose targets, by their flat index, count nothing."""
    n = shape[0] * shape[1]
    targets = torch.arange(1, n + 1).remainder(7)
    targets[list(hidden)] = -100
    return torch.arange(n).remainder(7).view(shape), targets.view(shape)


UNIFORM = {"like": torch.empty(0, dtype=F64), "uniform": True}  # logits of 0: the loss is log 7


@accumulate_step.by_hand
def _():
    for batches in ([pair((2, 3), 1)], [pair((1, 1)), pair((3, 2), 0, 1, 2, 3), pair((1, 2))]):
        seen = {
            "step 1: result": torch.tensor(math.log(7), dtype=F64),
            "step 1: steps that the optimizer has taken": 1,
        }
        yield call(batches, **UNIFORM), seen


@accumulate_step.cases(16)
def _(draw):
    steps = [
        with_a_target(micro_batches(draw, draw(st.integers(1, 4))))
        for _ in range(draw(st.integers(1, 2)))
    ]
    yield call(*steps, like=torch.empty(0, dtype=draw(st.sampled_from([F32, F64]))))


LIKE = {"like": torch.empty(0)}


@accumulate_step.edge
def _():
    yield call([pair((1, 1)), pair((3, 4))], **LIKE), "one target against twelve"
    yield (
        call([pair((2, 3), 0, 1, 2, 3, 4), pair((2, 3))], **LIKE),
        "equal shapes, one target against six",
    )
    yield call([pair((1, 2), 0, 1), pair((2, 2))], **LIKE), "a micro-batch without a target"
    yield call([pair((2, 2)), pair((1, 2), 0, 1)], **LIKE), "the last one has no target"
    yield call([pair((1, 2), 0, 1)], **LIKE), "no target at all"
    yield call([], **LIKE), "no micro-batch"
    empty = [pair((1, 2), 0, 1), pair((2, 1), 0, 1)]
    yield call(empty, **LIKE, refused=True), "no target at all: no step is taken"
    yield call([pair((2, 3), 1)], **LIKE), "a single micro-batch"
    two = [pair((1, 3)), pair((2, 2), 0)]
    yield call(two, two, **LIKE), "two steps: the first one's gradients are gone"
    turned = [(ids.T, targets.T) for ids, targets in (pair((2, 3), 1), pair((4, 2)))]
    yield call(turned, **LIKE), "ids and targets that are not contiguous"


LOSS = 'F.cross_entropy(logits, targets.flatten(), reduction="sum") / tokens'
MEAN = "F.cross_entropy(logits, targets.flatten())"
accumulate_step.slips(
    {
        replace(
            LOSS, f"{MEAN} / len(batches)"
        ): "You average the micro-batches' means, so a target in a small one weighs more. Add up the losses and divide "
        "by the number of all targets.",
        replace(
            LOSS, f"{MEAN} * targets.numel() / sum(y.numel() for _, y in batches)"
        ): "You weigh by the size of the micro-batches, padding included. Only targets that are not -100 count.",
        replace(
            LOSS, f"{MEAN} * len(ids) / sum(len(x) for x, _ in batches)"
        ): "You weigh by rows. They have different numbers of targets: weigh by these.",
        replace(
            LOSS, f"{MEAN} * int((targets != -100).sum()) / tokens"
        ): "The mean of a micro-batch without a target is NaN, and NaN times 0 stays NaN. Take sums.",
        replace(
            LOSS, MEAN
        ): "You add up the means: with k micro-batches the gradient is about k times too large.",
        replace(
            " / tokens", ""
        ): "You add up the losses and never divide by the number of targets.",
        replace(
            " / tokens", " / sum(y.numel() for _, y in batches)"
        ): "You divide by all positions. Those with -100 count nothing.",
        replace(
            "    optimizer.zero_grad()\n", ""
        ): "What .grad holds from before goes into the step: drop it first.",
        replace(
            "    optimizer.zero_grad()\n",
            "",
            "        logits",
            "        optimizer.zero_grad()\n        logits",
        ): "You drop the gradients before every micro-batch, so only the last one counts.",
        replace(
            "    optimizer.step()\n    return total",
            "    optimizer.step()\n    optimizer.zero_grad()\n    return total",
        ): "The gradients are gone after the step. Those of this step are to stay in .grad.",
        replace(
            "    optimizer.zero_grad()\n",
            "",
            "    optimizer.step()\n    return total",
            "    optimizer.step()\n    optimizer.zero_grad()\n    return total",
        ): "You drop the gradients after the step and not before it. Those from before the call go into the step, and "
        "those of this step do not stay in .grad.",
        replace(
            "        total += loss.item()\n    optimizer.step()\n",
            "        total += loss.item()\n        optimizer.step()\n",
        ): "You take a step after every micro-batch. It is one step, at the end.",
        replace("    optimizer.step()\n", ""): "The optimizer takes no step.",
        replace(
            "total += loss.item()", "total = loss.item()"
        ): "You return the last micro-batch's share of the loss. Add them up.",
        replace(
            "return total", "return total / len(batches)"
        ): "You divide the loss once more. The shares add up to the mean.",
        replace(
            "total += loss.item()", "total += loss.detach()"
        ): "You return a tensor. A Python float is asked for: `.item()`.",
        replace(
            'raise ValueError("no micro-batch has a target")', "return 0.0"
        ): "Without a target you return a loss. Raise ValueError.",
        replace(
            '    if tokens == 0:\n        raise ValueError("no micro-batch has a target")\n', ""
        ): "Without a target you divide by zero, or take a step on nothing. Raise ValueError.",
        replace(
            "if tokens == 0:",
            "if not batches or not all(bool((y != -100).any()) for _, y in batches):",
        ): "You refuse a micro-batch without a target. It counts nothing; only if none of all has one, raise ValueError.",
        replace(
            "int((targets != -100).sum())", "len(targets) * int((targets != -100).any(0).sum())"
        ): "You count the columns in which any row has a target, times the rows. Rows are padded differently: count "
        "the targets.",
        replace(
            'reduction="sum")', 'reduction="sum", ignore_index=0)'
        ): "You leave out another id than -100.",
    }
)
RAISED = '    if tokens == 0:\n        raise ValueError("no micro-batch has a target")\n'
accumulate_step.mistake(
    "You take the step before you find that there is no target. Raise ValueError first.",
    replace(
        RAISED,
        "",
        " / tokens",
        " / max(tokens, 1)",
        "    optimizer.step()\n",
        f"    optimizer.step()\n{RAISED}",
    ),
)
accumulate_step.mistake(
    "You put the micro-batches together into one. Their lengths T may differ, and the memory is that of all at once.",
    replace(
        "    optimizer.zero_grad()\n",
        "    batches = [tuple(map(torch.cat, zip(*batches)))]\n    optimizer.zero_grad()\n",
    ),
)
accumulate_step.mistake(
    "You add up the losses and call backward once, so the graphs of all micro-batches are in memory together. Call "
    "backward on each.",
    replace(
        "        loss.backward()\n        total += loss.item()\n",
        "        total = total + loss\n",
        "    optimizer.step()\n    return total",
        "    total.backward()\n    optimizer.step()\n    return total.item()",
    ),
)


@accumulate_step.alternative("sums first, gradients divided at the end")
def _(model, batches, optimizer):
    optimizer.zero_grad(set_to_none=True)
    count, total = 0, 0.0
    for ids, targets in batches:
        logp = model(ids).log_softmax(-1)
        counts = targets.ne(-100)
        loss = -(logp.gather(-1, targets.clamp(min=0)[..., None])[..., 0] * counts).sum()
        loss.backward()
        count, total = count + counts.sum().item(), total + float(loss)
    if not count:
        raise ValueError("nothing to learn from")
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad /= count
    optimizer.step()
    return total / count


accumulate_step.equivalent(
    "accumulate_step: `int((targets != -100).sum())` → `(targets != -100).sum()`",
    because="a tensor of one integer adds up, compares and divides like the integer",
)


# ------------------------------------------------------------------------------ accumulate_on_ranks

accumulate_on_ranks = Exercise(
    book.accumulate_on_ranks,
    title="Uneven micro-batches on several ranks",
    difficulty=3,
    minutes=30,
    points=4,
    probe=probes.accumulated_on_ranks,
    limit_s=10.0,
    hints=(
        "Which two numbers must every rank know of all others?",
        "Add up gradients of *sums* on each rank, all-reduce them as sums, and divide by the number of all targets.",
        (
            "edge cases",
            "All ranks call the same collectives in the same order, also those without a micro-batch or a gradient.",
        ),
        "`torch.zeros_like(p)` where `p.grad is None`; `grad.contiguous()` before it travels; then "
        "`p.grad = whole.div_(tokens)`.",
    ),
)


def dealt(*ranks, dtype=F32):
    """The case of one step, whose micro-batches are dealt to the ranks so."""
    like = torch.empty(0, dtype=dtype)
    return on_ranks(*(call(list(mine), like=like) for mine in ranks))


@accumulate_on_ranks.by_hand
def _():
    for ranks in ([[pair((2, 3), 1)], [pair((1, 1))]], [[], [pair((1, 2), 0)]]):
        case = on_ranks(*(call(mine, **UNIFORM) for mine in ranks))
        yield (
            case,
            {
                f"rank {rank}: step 1: result": torch.tensor(math.log(7), dtype=F64)
                for rank in range(2)
            },
        )


@accumulate_on_ranks.cases(8)
def _(draw):
    world = draw(st.integers(1, 3))
    ranks = [micro_batches(draw, draw(st.integers(0, 2)), 3) for _ in range(world)]
    ranks[draw(st.integers(0, world - 1))] = with_a_target(micro_batches(draw, 1, 3))
    yield dealt(*ranks, dtype=draw(st.sampled_from([F32, F64])))


@accumulate_on_ranks.edge
def _():
    yield dealt([pair((1, 1))], [pair((3, 4))]), "one target against twelve"
    yield dealt([pair((2, 2))], []), "a rank without a micro-batch"
    yield dealt([pair((1, 2), 0, 1)], [pair((2, 2))]), "a rank without a target"
    yield dealt([pair((1, 2), 0, 1)], []), "nobody has a target"
    yield dealt([], []), "nobody has a micro-batch"
    empty = [pair((1, 2), 0, 1), pair((2, 1), 0, 1)]
    nobody = [call(mine, like=torch.empty(0), refused=True) for mine in (empty, empty[:1])]
    yield on_ranks(*nobody), "nobody has a target: nobody takes a step"
    three = [pair((1, 3)), pair((2, 2), 0), pair((1, 1))]
    yield dealt(three, [pair((2, 1))]), "three micro-batches against one"
    yield dealt(three, [pair((2, 3))], dtype=F64), "a weight that lies transposed on odd ranks"
    yield dealt(three), "a world of one"
    again = [pair((2, 2))], [pair((1, 2))]
    like = torch.empty(0)
    yield on_ranks(*(call(again[r], again[1 - r], like=like) for r in range(2))), "two steps"


accumulate_on_ranks.contract(
    contracts.collectives(
        [dealt([pair((1, 3))] * 4, [pair((2, 2))] * 4)],
        limit=6,
        says="gradients travel once for each step: at most 6 collectives for 3 parameters",
        probe=probes.accumulated_on_ranks,
    )
)
SUMS = "    dist.all_reduce(sums)\n"
UNDROPPED = (
    "A rank without a micro-batch does not drop what .grad holds from before, and adds it to the sum. Drop it on every "
    "rank."
)
accumulate_on_ranks.slips(
    {
        replace(
            SUMS,
            SUMS + "    sums[1] = sum(int((y != -100).sum()) for _, y in batches) or sums[1]\n",
        ): "Each rank divides by its own number of targets. The number is that of all ranks: all-reduce it.",
        replace(
            "            dist.all_reduce(whole)\n", ""
        ): "The gradients stay where they are: each rank steps with its own, and the models drift apart.",
        replace(
            "p.grad = whole.div_(tokens)", "p.grad = whole.div_(tokens * dist.get_world_size())"
        ): "You divide by the number of ranks as well. The sum over all ranks, divided by all targets, is the mean.",
        replace(
            "p.grad = whole.div_(tokens)", "p.grad = whole.div_(dist.get_world_size())"
        ): "You divide by the number of ranks. Divide by the number of all ranks' targets.",
        replace(
            "p.grad = whole.div_(tokens)", "p.grad = whole"
        ): "You add up the gradients of sums and never divide by the number of targets.",
        replace(
            SUMS,
            SUMS
            + "    sums[1] = dist.get_world_size() * sum(int((y != -100).sum()) for _, y in batches) or sums[1]\n",
        ): "You average the ranks' means, so that a target on a rank that has few weighs more. Divide by the number of "
        "all ranks' targets.",
        replace(
            "(targets != -100).sum().double()", "torch.tensor(float(targets.numel()))"
        ): "You count all positions. Those with -100 are no targets.",
        replace(
            "torch.zeros_like(p) if p.grad is None else p.grad",
            "p.grad",
            "if p.requires_grad:",
            "if p.grad is not None:",
        ): "A rank without a gradient stays out of the all-reduce. The others wait for it, or their message meets that "
        "of another parameter: take part with zeros.",
        replace(
            "if p.requires_grad:", "if True:"
        ): "Frozen parameters get a gradient. Leave them out.",
        replace(
            "grad.contiguous()", "grad"
        ): "You hand over a gradient that is transposed in memory. gloo sends memory as it lies, without a word: send "
        "`grad.contiguous()`.",
        replace(
            "    optimizer.zero_grad()\n", ""
        ): "What .grad holds from before goes into the step: drop it first.",
        replace(
            "    optimizer.zero_grad()\n",
            "    old = {p: p.grad for p in model.parameters()}\n    optimizer.zero_grad()\n",
            "whole.div_(tokens)",
            "whole.div_(tokens).add_(old[p], alpha=dist.get_world_size())",
        ): "What .grad holds from before goes into the step: drop it first.",
        replace("    optimizer.step()\n", ""): "The optimizer takes no step.",
        replace(
            "return total / tokens", "return total"
        ): "You return the sum of the losses. Divide it by the number of all targets.",
        replace(
            SUMS,
            "    own = sums[0].item()\n" + SUMS,
            "return total / tokens",
            "return own / tokens",
        ): "You return this rank's share of the loss. Add up the losses of all ranks, as you do the numbers of targets.",
        replace(
            "return total / tokens", "return total / dist.get_world_size()"
        ): "You divide the sum of the losses by the number of ranks. Divide by the number of all targets.",
        replace(
            '    if tokens == 0:\n        raise ValueError("no micro-batch of any rank has a target")\n',
            "",
        ): "Without a target on any rank you divide by zero. Raise ValueError.",
        replace(
            "if tokens == 0:", "if not any(bool((y != -100).any()) for _, y in batches):"
        ): "A rank without a target raises, although another has one. It takes part with zeros.",
        replace(
            ', reduction="sum")', ")"
        ): "You take each micro-batch's mean. Only sums can be added up and divided by the number of all targets.",
        replace(
            ', reduction="sum")', ") * int((targets != -100).sum())"
        ): "The mean of a micro-batch without a target is NaN, and NaN times 0 stays NaN. Take sums.",
        replace(
            "p.grad = whole.div_(tokens)", "p.grad = grad.div_(tokens)"
        ): "`contiguous()` of a gradient that is transposed in memory is a copy. You send the copy and go on with the "
        "gradient: take what came back.",
        replace(
            "    optimizer.zero_grad()\n", "    if batches:\n        optimizer.zero_grad()\n"
        ): UNDROPPED,
        replace(
            "    optimizer.zero_grad()\n",
            "    if batches:\n        optimizer.zero_grad()\n",
            "else p.grad",
            "else p.grad if batches else p.grad * tokens",
        ): UNDROPPED,
    }
)
RAISED_THERE = RAISED.replace("micro-batch", "micro-batch of any rank")
accumulate_on_ranks.mistake(
    "You take the step before you find that there is no target. Raise ValueError first.",
    replace(
        RAISED_THERE,
        "",
        "div_(tokens)",
        "div_(tokens or 1)",
        "    optimizer.step()\n",
        f"    optimizer.step()\n{RAISED_THERE}",
    ),
)
for more in ("", "    dist.all_reduce(torch.zeros(2))\n"):
    accumulate_on_ranks.mistake(
        "Your gradients travel after each micro-batch. Add them up on each rank first, and send the sums once.",
        replace(
            SUMS,
            "    rounds = torch.tensor(len(batches))\n"
            "    dist.all_reduce(rounds, dist.ReduceOp.MAX)\n"
            "    for _ in range(rounds - 1):\n"
            "        for p in model.parameters():\n"
            "            if p.requires_grad:\n"
            f"                dist.all_reduce(torch.zeros(p.shape))\n{more}{SUMS}",
        ),
        cost=True,
    )
accumulate_on_ranks.mistake(
    "For each parameter the ranks tell one another something besides its gradient, such as whether they have one. "
    "Zeros say that too: one collective for each parameter is enough.",
    replace(
        "            dist.all_reduce(whole)\n",
        "            dist.all_reduce(whole)\n            dist.all_reduce(torch.tensor(float(p.grad is not None)))\n",
    ),
    cost=True,
)


@accumulate_on_ranks.alternative("everything in one float64 vector")
def _(model, batches, optimizer):
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer.zero_grad()
    loss = torch.zeros((), dtype=F64)
    count = 0
    for ids, targets in batches:
        one = F.nll_loss(model(ids).log_softmax(-1).transpose(1, 2), targets, reduction="sum")
        one.backward()
        loss += one.detach()
        count += int((targets != -100).sum())
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    flat = torch.cat([loss[None], t(count, dtype=F64), *[g.reshape(-1).double() for g in parts]])
    dist.all_reduce(flat)
    if flat[1] == 0:
        raise ValueError("no target")
    means = (flat[2:] / flat[1]).split([p.numel() for p in params])
    for p, mean in zip(params, means, strict=True):
        p.grad = mean.view(p.shape).to(p.dtype)
    optimizer.step()
    return float(flat[0] / flat[1])


for one, other in (
    ("loss.detach().double()", "loss.detach()"),
    ("(targets != -100).sum().double()", "(targets != -100).sum()"),
):
    accumulate_on_ranks.equivalent(
        f"accumulate_on_ranks: `{one}` → `{other}`",
        because="torch.stack promotes it to the other's float64",
    )
accumulate_on_ranks.equivalent(
    "accumulate_on_ranks: `loss.detach()` → `loss`",
    because="backward has freed the graph already; the sum only carries a node more",
)


# ------------------------------------------------------------------------------ finite_step

finite_step = Exercise(
    book.finite_step,
    title="A step that is not taken",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.finite_steps,
    hints=(
        "First backward, then look. What may be infinite: the loss, and every gradient.",
        "`optimizer.param_groups` has the parameters, in every group.",
        (
            "random cases",
            "A step with zero gradients is a step: momentum and weight decay move. Do not call it.",
        ),
        (
            "edge cases",
            "A sum or a norm of large finite numbers may be infinite. Look at the elements.",
        ),
    ),
)
GOOD, BAD = (
    ["good", "another", "of the first group alone"],
    ["NaN", "infinite gradient", "NaN loss", "minus infinity", "infinite loss"],
)


@finite_step.by_hand
def _():
    start = {"`w`": t(1.0, 2.0, -0.5), "`b`": t(0.25), "gradient of `w`": None}
    same = {f"step 1, NaN: {name}": value for name, value in start.items()}
    yield call("NaN", optimizer="momentum"), {"step 1, NaN: result": False} | same
    at = "step 1, of the first group alone"  # the gradient is 2 w, the learning rate 1/4
    moved = {f"{at}: `w`": t(0.5, 1.0, -0.25), f"{at}: `b`": t(0.25)}
    yield call("of the first group alone", optimizer="SGD"), {f"{at}: result": True} | moved


@finite_step.cases(16)
def _(draw):
    steps = draw(st.lists(st.sampled_from(GOOD + BAD), min_size=1, max_size=4))
    yield call(*steps, optimizer=draw(st.sampled_from(["SGD", "momentum", "AdamW"])))


@finite_step.edge
def _():
    yield call("good", "NaN", "good", optimizer="AdamW"), "Adam remembers nothing of a NaN"
    yield call("good", "infinite gradient", optimizer="momentum"), "momentum would move on"
    yield call("infinite loss"), "the gradient is finite, the loss is not"
    yield call("minus infinity", "good"), "minus infinity"
    yield call("infinite gradient"), "the loss is finite, one element of the gradient is not"
    yield call("one NaN in the gradient"), "one NaN"
    yield call("infinite gradient of the second group"), "it is in the second group"
    yield call("opposite infinities"), "infinities of both signs"
    yield call("huge", optimizer="SGD"), "large and finite: the norm overflows, no element does"
    yield call("another", before="good"), "a gradient of an earlier micro-batch"
    yield call("NaN loss", before="good"), "nothing of an earlier micro-batch stays either"
    yield call("good", "good", before="NaN"), "an earlier micro-batch had a NaN"
    yield call("of the first group alone", "good"), "a group without gradient"


FINITE = "finite = all(bool(t.isfinite().all()) for t in checked)"
finite_step.slips(
    {
        replace(
            FINITE, "finite = bool(loss.isfinite())"
        ): "You look at the loss alone. A finite loss may have an infinite gradient, as a root has at 0.",
        replace(
            "[loss, *(", "[*("
        ): "You look at the gradients alone. An infinite loss may have finite gradients: then something is wrong too.",
        replace(
            "isfinite().all()", "isfinite().any()"
        ): "One finite element is enough for you. All must be finite.",
        replace(
            "bool(t.isfinite().all())", "not bool(t.isnan().any())"
        ): "You look for NaN alone. An infinity is no finite number either.",
        replace(
            "bool(t.isfinite().all())", "not bool(t.isinf().any())"
        ): "You look for infinities alone. NaN is neither finite nor infinite.",
        replace(
            "bool(t.isfinite().all())", "bool(t.norm().isfinite())"
        ): "You look at a norm, or at a sum of squares. For large finite numbers that is infinite: look at the elements.",
        replace(
            "bool(t.isfinite().all())", "bool((t < float('inf')).all())"
        ): "Your comparison lets minus infinity pass.",
        replace(
            "    optimizer.zero_grad()\n", ""
        ): "The gradients stay in .grad, and the next backward adds to them. Drop them, either way.",
        replace(
            "    optimizer.zero_grad()\n", "    if finite:\n        optimizer.zero_grad()\n"
        ): "After a step that was not taken the bad gradients stay in .grad, and every later one is bad too.",
        replace(
            "    optimizer.zero_grad()\n", "    if not finite:\n        optimizer.zero_grad()\n"
        ): "After a step that was taken its gradients stay in .grad. Afterwards every .grad is None, either way.",
        replace(
            "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"
        ): "You fill .grad with zeros. Then a parameter that the next loss does not reach has a gradient of 0, and "
        "decays. Set it to None.",
        replace(
            "    loss.backward()\n", "    optimizer.zero_grad()\n    loss.backward()\n"
        ): "You drop what .grad holds before. Gradients of earlier micro-batches are part of the sum.",
        replace(
            "    loss.backward()\n",
            "    if not loss.isfinite():\n        return False\n    loss.backward()\n",
        ): "You return before the gradients are dropped: what .grad held before the call stays there.",
        replace(
            "    if finite:\n        optimizer.step()\n", "    optimizer.step()\n"
        ): "You take the step whatever you found.",
        replace(
            "    if finite:\n        optimizer.step()\n", ""
        ): "The optimizer never takes a step.",
        replace(
            "return finite", "return not finite"
        ): "You return whether the step was left out. True means that it was taken.",
        replace(
            "    optimizer.zero_grad()\n    return finite", "    optimizer.zero_grad()"
        ): "You return nothing. Return True if the step was taken.",
        replace(
            "for group in optimizer.param_groups for p",
            "for group in optimizer.param_groups[:1] for p",
        ): "You look at the first group of parameters alone.",
        replace(
            "(grad for grad in grads if grad is not None)", "grads"
        ): "A parameter without gradient has None there: leave it out.",
    }
)
finite_step.mistake(
    "You replace what is not finite by a number and step all the same. Momentum and weight decay move the weights, and "
    "the state takes it in: leave the step out.",
    replace(
        "    if finite:\n        optimizer.step()\n",
        "    for grad in grads:\n        if grad is not None:\n            torch.nan_to_num_(grad, 0.0, 0.0, 0.0)\n"
        "    optimizer.step()\n",
    ),
)
finite_step.mistake(
    "You set the gradients to zero and step. Momentum and weight decay move the weights without a gradient: leave the "
    "step out.",
    replace(
        "    if finite:\n        optimizer.step()\n",
        "    if not finite:\n        optimizer.zero_grad(set_to_none=False)\n    optimizer.step()\n",
    ),
)
finite_step.mistake(
    "You step first and put the weights back. The optimizer's averages have taken the NaN in, and keep it.",
    replace(
        "    if finite:\n        optimizer.step()\n",
        "    params = [p for group in optimizer.param_groups for p in group['params']]\n"
        "    before = [p.detach().clone() for p in params]\n"
        "    optimizer.step()\n"
        "    if not finite:\n"
        "        for p, old in zip(params, before):\n"
        "            p.data.copy_(old)\n",
    ),
)


@finite_step.alternative("group by group, with a flag")
def _(loss, optimizer):
    loss.backward()
    bad = not math.isfinite(loss.item())
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for p in params:
        if p.grad is not None and (p.grad - p.grad).ne(0).any():
            bad = True
    if not bad:
        optimizer.step()
    for p in params:
        p.grad = None
    return not bad


# ------------------------------------------------------------------------------ SpikeDetector

SpikeDetector = Exercise(
    book.SpikeDetector,
    title="Is this loss a spike?",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.spikes,
    hints=(
        "Keep the last `window` losses that were no spikes; `collections.deque(maxlen=window)` forgets by itself.",
        "Compare with the window *before* the loss joins it.",
        ("edge cases", "A NaN is not larger than anything: ask `math.isfinite` first."),
    ),
)


@SpikeDetector.by_hand
def _():
    yield (
        call([2.0, 4.0, 9.0, 3.0, 4.0], window=2, threshold=3.0),
        {"what detector 1 said": [False, False, True, False, False]},
    )
    yield (
        call([2.0, 2.0, 50.0, 50.0, 1.0], window=2, threshold=3.0),
        {"what detector 1 said": [False, False, True, True, False]},
    )


@SpikeDetector.cases(24)
def _(draw):
    runs = []
    for _ in range(draw(st.integers(1, 2))):
        losses = draw(st.lists(st.integers(8, 40), min_size=1, max_size=12))
        high = draw(st.lists(st.integers(0, 11), max_size=2))
        runs.append([(x + (90 if i in high else 0)) / 8 for i, x in enumerate(losses)])
    yield call(*runs, window=draw(st.integers(2, 5)), threshold=draw(st.sampled_from([1.7, 3.1])))


@SpikeDetector.edge
def _():
    calm = [2.0, 3.0, 2.0, 3.0]
    yield call([NAN, 2.0, INF, 3.0, -INF], window=3), "not finite, before there is a window"
    yield call([1e30], window=2), "the first loss of all"
    yield call([2.0, 90.0, 3.0, 50.0], window=3), "the window is not full yet"
    yield call([*calm, 9.0, 9.0, 9.0], window=4, threshold=3.0), "a spike does not join the window"
    yield call([*calm, NAN, 9.0, 2.5], window=4, threshold=3.0), "a NaN does not join the window"
    yield call([*calm, -50.0, 2.5, 9.0], window=4, threshold=3.0), "a low loss is no spike"
    yield (
        call([9.0, 9.0, 2.0, 2.0, 2.0, 4.0], window=3, threshold=3.0),
        "what is older than the window",
    )
    yield call([2.0, 2.0, 2.0, 2.0, 2.5], window=4), "all alike: the standard deviation is 0"
    yield call([2.0, 4.0, 6.0], window=2, threshold=3.0), "exactly at the threshold"
    yield call(calm, [20.0, 30.0, 20.0, 99.0], window=3, threshold=2.5), "two detectors in turn"
    yield call([*[2.0, 3.0] * 32, 5.0, 6.0]), "the defaults"
    yield call([2.0, 1.0, 2.5, 2.0], window=1), "a window of one"
    huge = call([1e20, 2.0, 2.0, 2.0, 2.0], window=2, threshold=0.5)
    yield huge, "a huge loss that has left the window"
    yield call([0.1, 0.1, 0.1, 0.05], window=3), "all alike, of which rounding makes more or less"


SpikeDetector.slips(
    {
        replace(
            "if not spike:\n            self._last", "if True:\n            self._last"
        ): "A spike joins the window. It raises mean and deviation, so that the next spike passes.",
        replace(
            "spike = not math.isfinite(loss)", "spike = math.isnan(loss)"
        ): "You take an infinite loss for an ordinary one.",
        replace(
            "spike = not math.isfinite(loss)", "spike = math.isinf(loss)"
        ): "You take NaN for an ordinary loss. No comparison with a NaN is true: ask first.",
        replace(
            "spike = not math.isfinite(loss)", "spike = False"
        ): "A loss that is not finite is a spike, also before there is a window.",
        replace(
            "= not math.isfinite(loss)",
            "= not math.isfinite(loss) and len(self._last) == self._last.maxlen",
        ): "A loss that is not finite is a spike, also before there is a window.",
        replace(
            "not math.isfinite(loss)", "math.isnan(loss) or loss == math.inf"
        ): "You let minus infinity into the window. It is not finite either, and so a spike.",
        replace(
            "and len(self._last) == self._last.maxlen", "and len(self._last) > 1"
        ): "You judge before the window is full. Until there are `window` losses, no finite one is a spike.",
        replace(
            "and len(self._last) == self._last.maxlen",
            "and len(self._last) == self._last.maxlen - 1",
        ): "Your window is one loss shorter, or you judge with one loss too few.",
        replace(
            "loss > mean + self.threshold * std", "abs(loss - mean) > self.threshold * std"
        ): "You call a low loss a spike. Only a high one is.",
        replace(
            "loss > mean", "loss >= mean"
        ): "A loss exactly at the threshold is no spike: it must be above.",
        replace(
            "mean + self.threshold * std", "self.threshold * mean"
        ): "You compare with a multiple of the mean. The threshold counts standard deviations.",
        replace(
            "self.threshold * std", "std"
        ): "You leave out the threshold: one standard deviation above the mean is no spike.",
        replace(
            "bool(loss >", "bool(std > 0 and loss >"
        ): "Where the losses of the window are all alike you report no spike. Any loss above their mean is one then.",
        replace(
            "np.std(self._last)", "np.var(self._last)"
        ): "You take the variance. The standard deviation is its root.",
        replace(
            "np.std(self._last)", "np.std(self._last, ddof=1) if len(self._last) > 1 else 0.0"
        ): "You divide by window - 1. Divide by window, as np.std does (torch.std divides by one less).",
        replace(
            "deque(maxlen=window)", "deque(maxlen=window + 1)"
        ): "Your window has one loss more.",
        replace(
            "np.mean(self._last)", "np.median(self._last)"
        ): "You compare with the median. The mean is asked for.",
    }
)
SpikeDetector.mistake(
    "You compare with all losses so far. Only the last `window` count: at the start the loss was high.",
    replace(
        "deque(maxlen=window)",
        "deque()",
        "self.threshold = threshold",
        "self.threshold, self._window = threshold, window",
        "len(self._last) == self._last.maxlen",
        "len(self._last) >= self._window",
    ),
)
SpikeDetector.mistake(
    "You count calls to know whether the window is full. A loss that is a spike fills nothing: count those that joined.",
    replace(
        "self.threshold = threshold",
        "self.threshold, self._calls = threshold, 0",
        "        spike = not",
        "        self._calls += 1\n        spike = not",
        "len(self._last) == self._last.maxlen",
        "self._last and self._calls > self._last.maxlen",
    ),
)
SpikeDetector.mistake(
    "All your detectors share one window, which belongs to the class. Make it in __init__, for each its own.",
    replace(
        "    def __init__(",
        "    _every = []\n\n    def __init__(",
        "        spike = not",
        "        self._last = deque(self._every, self._last.maxlen)\n        spike = not",
        "self._last.append(loss)",
        "self._every.append(loss)",
    ),
)
SpikeDetector.mistake(
    "The loss joins the window before you compare it with the window, so it is compared with itself as well.",
    replace(
        "        spike = not math.isfinite(loss)\n",
        "        spike = not math.isfinite(loss)\n        full = len(self._last) == self._last.maxlen\n"
        "        if not spike:\n            self._last.append(loss)\n",
        "not spike and len(self._last) == self._last.maxlen",
        "not spike and full",
        "        if not spike:\n            self._last.append(loss)\n        return spike",
        "        if spike and math.isfinite(loss):\n            self._last.pop()\n        return spike",
    ),
)


SpikeDetector.mistake(
    "With a window of one you find no spike. Its standard deviation is 0, and any loss above the one in it is a spike.",
    replace("len(self._last) == self._last.maxlen", "len(self._last) == self._last.maxlen > 1"),
)
SpikeDetector.mistake(
    "You take the mean of the squares less the square of the mean. Rounding makes it negative where losses are alike, and "
    "it has no root then: square the distances from the mean.",
    replace(
        "np.std(self._last)",
        "math.sqrt(sum(x * x for x in self._last) / len(self._last) - (sum(self._last) / len(self._last)) ** 2)",
    ),
)


@SpikeDetector.mistake(
    "You add each loss to a sum and subtract it when it leaves the window. A huge one rounds the others away, for good: sum "
    "what is in the window."
)
class _:
    def __init__(self, window=64, threshold=6.0):
        self.window, self.threshold, self.kept = window, threshold, []
        self.total = self.squares = 0.0

    def __call__(self, loss):
        if not math.isfinite(loss):
            return True
        if len(self.kept) == self.window:
            mean = self.total / self.window
            std = max(self.squares / self.window - mean**2, 0.0) ** 0.5
            if loss > mean + self.threshold * std:
                return True
            old = self.kept.pop(0)
            self.total, self.squares = self.total - old, self.squares - old**2
        self.kept.append(loss)
        self.total, self.squares = self.total + loss, self.squares + loss**2
        return False


@SpikeDetector.alternative("a list, and sums by hand")
class _:
    def __init__(self, window=64, threshold=6.0):
        self.window, self.threshold, self.kept = window, threshold, []

    def __call__(self, loss):
        if math.isnan(loss) or math.isinf(loss):
            return True
        recent = self.kept[-self.window :]
        if len(recent) >= self.window:
            mean = sum(recent) / self.window
            variance = sum((x - mean) ** 2 for x in recent) / self.window
            if loss - mean > self.threshold * variance**0.5:
                return True
        self.kept.append(loss)
        return False


# ------------------------------------------------------------------------------ set_seed

set_seed = Exercise(
    book.set_seed,
    title="One seed for every generator",
    difficulty=1,
    minutes=10,
    points=1,
    probe=probes.seeded,
    hints=(
        "`random.seed`, `np.random.seed`, `torch.manual_seed`: the last seeds the GPUs too.",
        "`torch.use_deterministic_algorithms(True)` raises where no deterministic algorithm is known.",
        ("edge cases", "NumPy refuses what does not fit in 32 bits: give it the seed modulo 2³²."),
    ),
)


@set_seed.by_hand
def _():
    for switch in (False, True):
        states = {
            "deterministic algorithms are on": switch,
            "torch only warns": False,
            "cuDNN's benchmark is on": not switch,
        }
        yield call(3, deterministic=switch), states


@set_seed.cases(8)
def _(draw):
    yield call(draw(st.integers(0, 2**32 - 1)), deterministic=draw(st.booleans()))


@set_seed.edge
def _():
    yield call(0), "zero is a seed"
    yield call(2**31 + 5), "a seed of 32 bits"
    yield call(2**32 + 7), "a seed of 33 bits"
    yield call(2**40 + 3), "a seed that NumPy refuses"
    yield call(2**63 + 12345), "a seed of 64 bits"
    yield call(5, already=True), "the switches are on, and stay so"
    yield call(5, deterministic=True), "and are switched on"


set_seed.slips(
    {
        replace(
            "    random.seed(seed)\n", ""
        ): "Python's own generator is not seeded. Shuffles with `random` differ from run to run.",
        replace(
            "    np.random.seed(seed % 2**32)\n", ""
        ): "NumPy's global generator is not seeded: `np.random.seed`. A default_rng is another generator beside it.",
        replace(
            "    torch.manual_seed(seed)\n", ""
        ): "torch's global generator is not seeded: `torch.manual_seed`. A torch.Generator is another one beside it.",
        replace(
            "torch.manual_seed(seed)", "torch.manual_seed(0)"
        ): "torch's generator gets a fixed seed: every seed trains the same run.",
        replace(
            "seed % 2**32", "seed"
        ): "NumPy's seed has 32 bits, and it raises for a larger one. Give it the seed modulo 2³².",
        replace(
            "seed % 2**32", "min(seed, 2**32 - 1)"
        ): "All large seeds are one to NumPy. Give it the seed modulo 2³².",
        **{
            replace(
                "% 2**32", f"% {other}"
            ): "You give NumPy the seed modulo another number. There are 2³² seeds of 32 bits: modulo 2³²."
            for other in ("(2**32 - 1)", "2**31")
        },
        replace(
            "    random.seed(seed)\n", "    seed %= 2**32\n    random.seed(seed)\n"
        ): "You cut the seed down for all generators. Only NumPy needs that; the others get it whole.",
        replace(
            "    if deterministic:\n", "    if True:\n"
        ): "You forbid nondeterministic algorithms without being asked. They are slower, and some operations raise.",
        replace(
            "torch.use_deterministic_algorithms(True)",
            "torch.use_deterministic_algorithms(True, warn_only=True)",
        ): "With warn_only torch warns and goes on. It is to raise.",
        replace(
            "        torch.use_deterministic_algorithms(True)\n", ""
        ): "torch's nondeterministic algorithms are not forbidden: `torch.use_deterministic_algorithms(True)`.",
        replace(
            "        torch.backends.cudnn.benchmark = False", ""
        ): "cuDNN's benchmark stays on. It times kernels and takes the fastest, which may be another one in each run.",
        replace(
            "    if deterministic:\n",
            "    torch.use_deterministic_algorithms(deterministic)\n    if deterministic:\n",
        ): "Without `deterministic` you switch the determinism off. The switches stay as they are.",
        replace(
            "    if deterministic:\n",
            "    torch.backends.cudnn.benchmark = not deterministic\n    if deterministic:\n",
        ): "Without `deterministic` you switch cuDNN's benchmark on. The switches stay as they are.",
    }
)


@set_seed.alternative("each by itself")
def _(seed, deterministic=False):
    torch.random.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if deterministic:
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(mode=True)
