"""Exercises of chapter 13, mixed precision: the autocast table, loss scaling, masters, FP8."""

import math

import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.reference import mixed_precision as mp

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INF, NAN = float("inf"), float("nan")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def t(*values):
    return torch.tensor(values)


# ------------------------------------------------------------------------------ autocast_dtype

autocast_dtype = Exercise(
    mp.autocast_dtype,
    title="What autocast makes of it",
    difficulty=1,
    minutes=15,
    points=1,
    hints=(
        "There are three kinds of operations: those cast down to `low`, those cast up to float32, and the rest.",
        "The rest follow type promotion: `torch.promote_types` of all the inputs.",
        "Only two operations of the table are cast down. Which are cast up depends on the device: on a CPU three, on CUDA twelve.",
        ("edge cases", "What does autocast do with float64?"),
    ),
)

TWO_INPUTS = ("linear", "matmul", "add", "mul", "cat", "mse_loss")


@autocast_dtype.by_hand
def _():
    yield call("linear", (F32, F32), BF16), BF16
    yield call("relu", (F32,), BF16), F32
    yield call("add", (BF16, F32), BF16), F32
    yield call("softmax", (BF16,), BF16, "cpu"), BF16
    yield call("softmax", (BF16,), BF16, "cuda"), F32


@autocast_dtype.cases(1)
def _(draw):
    """The whole table."""
    for op in mp.OPERATIONS:
        for device in ("cpu", "cuda"):
            low = BF16 if draw(st.booleans()) else F16
            pairs = [(F32, F32), (low, low), (low, F32), (F32, low)]
            for inputs in pairs if op in TWO_INPUTS else [(F32,), (low,)]:
                yield call(op, inputs, low, device)


@autocast_dtype.edge
def _():
    for device in ("cpu", "cuda"):
        yield call("matmul", (F64, F64), BF16, device), "autocast leaves float64 alone"
        yield call("cross_entropy", (F64,), F16, device), "autocast leaves float64 alone"
        yield call("add", (F64, BF16), BF16, device), "float64 is the wider of the two"
        yield call("mul", (F32, F64), BF16, device), "float64 is the wider of the two"
        yield call("matmul", (F16, F16), BF16, device), "cast from one half precision to the other"
        yield call("linear", (BF16, BF16), F16, device), "cast from one half precision to the other"
        yield call("mse_loss", (F32, F64), BF16, device), "one float64 among the inputs will do"
        yield call("mse_loss", (F64, F32), BF16, device), "the first of the inputs is float64"
        yield call("add", (BF16, F16), F16, device), "the two half precisions meet in float32"
        yield call("mul", (F16, BF16), BF16, device), "the two half precisions meet in float32"
        yield call("mse_loss", (F16, F16), BF16, device), "cast up from the other half precision"
        yield call("prod", (BF16,), F16, device), "cast up from the other half precision"
    yield call("softmax", (F16,), BF16, "cuda"), "cast up from the other half precision"


autocast_dtype.mistake(
    "You use CUDA's list of float32 operations for the CPU too. On a CPU, softmax, layer_norm, exp and sum keep the dtype that they are given.",
    replace("_FLOAT32[device]", '_FLOAT32["cuda"]'),
)
autocast_dtype.mistake(
    "You use the CPU's short list for CUDA too. There softmax, layer_norm, exp, sum and more are cast up to float32.",
    replace("_FLOAT32[device]", '_FLOAT32["cpu"]'),
)
autocast_dtype.mistake(
    "You give every operation that is not on a list the low precision. Autocast does not touch these: float32 in, float32 out.",
    replace("else widest", "else low"),
)
autocast_dtype.mistake(
    "You take the first input's dtype where two meet. Promotion takes the wider one: bfloat16 + float32 is float32.",
    replace("else widest", "else inputs[0]"),
)
autocast_dtype.mistake(
    "You cast float64 as well. Autocast leaves it alone: a float64 product stays a float64 product.",
    replace("    if widest == torch.float64:\n        return widest\n", ""),
)
autocast_dtype.mistake(
    "You let autocast act only on float32 inputs. It casts what is in the other half precision too.",
    replace(
        "if op in _LOWER_PRECISION",
        "if op in _LOWER_PRECISION and {torch.float32, low} & {*inputs}",
    ),
)
autocast_dtype.mistake(
    "You cast up only what is in `low`. Operations of the float32 list cast an input in the other half precision up, too.",
    replace("op in _FLOAT32[device]", "op in _FLOAT32[device] and low in inputs"),
)
autocast_dtype.mistake(
    "You send add, mul and cat down with the matrix products. They stay with type promotion.",
    replace("_LOWER_PRECISION:", '_LOWER_PRECISION | {"add", "mul", "cat"}:'),
)
autocast_dtype.mistake(
    "On a CPU, too, some operations are cast up: cross_entropy, mse_loss and prod.",
    replace("op in _FLOAT32[device]", 'device == "cuda" and op in _FLOAT32[device]'),
)
autocast_dtype.mistake(
    "You take the first input's dtype where two meet, even if the other is float64. Promotion takes the wider one, whichever comes first.",
    replace(
        "if widest == torch.float64",
        "if widest == torch.float64 and op in _LOWER_PRECISION | _FLOAT32[device]",
        "else widest",
        "else inputs[0]",
    ),
)
autocast_dtype.mistake(
    "You take the last input's dtype where two meet. Promotion takes the wider one, whichever comes first.",
    replace(
        "if widest == torch.float64",
        "if widest == torch.float64 and op in _LOWER_PRECISION | _FLOAT32[device]",
        "else widest",
        "else inputs[-1]",
    ),
)
autocast_dtype.mistake(
    "On CUDA you cast mean up together with sum. It is on no list: it keeps the dtype that it is given.",
    replace("op in _FLOAT32[device]", 'op in _FLOAT32[device] or (op, device) == ("mean", "cuda")'),
)


for asked in (
    "{torch.float64} == {*inputs}",
    "inputs[0] == torch.float64",
    "inputs[-1] == torch.float64",
):
    autocast_dtype.mistake(
        "You leave float64 alone only where every input has it, or a certain one. One is enough, whichever it is: the "
        "others are promoted to it.",
        replace("if widest == torch.float64", f"if {asked}"),
    )
for found in ("inputs", "reversed(inputs)"):
    autocast_dtype.mistake(
        "You take the input with more bytes for the wider one. float16 and bfloat16 have as many, and neither holds the other: promotion makes float32 of the two.",
        replace(
            "reduce(torch.promote_types, inputs)",
            f"max({found}, key=lambda dtype: dtype.itemsize)",
        ),
    )
autocast_dtype.mistake(
    "On a CPU you cast down to bfloat16, whatever `low` says. It may be float16 there too.",
    replace("return low", 'return low if device == "cuda" else torch.bfloat16'),
)


@autocast_dtype.alternative("run the operation under autocast, with fake tensors for CUDA")
def _(op, inputs, low, device="cpu"):
    return mp.run_under_autocast(op, inputs, low, device)


# ------------------------------------------------------------------------------ loss_scale_history

loss_scale_history = Exercise(
    mp.loss_scale_history,
    title="The life of a loss scale",
    difficulty=2,
    minutes=15,
    points=2,
    hints=(
        "What decides whether a step overflows: the gradient alone, or what FP16 has to hold?",
        "Ask torch whether it overflows: `torch.tensor(size * scale).half().isfinite()`.",
        "Note the scale before you change it. A skipped step sets the count of good steps to 0, and so does a growth.",
        (
            "edge cases",
            "65504 is the largest float16, but 65519 still rounds to it; 65520 does not.",
        ),
    ),
)


@loss_scale_history.by_hand
def _():
    yield call([1.0, 1.0, 1.0], 4.0, 2), ([4.0, 4.0, 8.0], [False, False, False])
    scales, skipped = [4.0, 4.0, 2.0, 2.0, 4.0], [False, True, False, False, False]
    yield call([1.0, 100000.0, 1.0, 1.0, 1.0], 4.0, 2), (scales, skipped)
    yield call([3.0, 3.0], 65536.0), ([65536.0, 32768.0], [True, True])


@loss_scale_history.cases(30)
def _(draw):
    n = draw(st.integers(1, 24))
    exponents = draw(st.lists(st.integers(-8, 6), min_size=n, max_size=n))
    sizes = [1.5 * 2.0**e for e in exponents]
    scale = 2.0 ** draw(st.integers(6, 17))
    yield call(sizes, scale, draw(st.integers(1, 4)))


@loss_scale_history.edge
def _():
    yield call([]), "no step at all"
    yield call([INF, INF, 1.0], 8.0, 1), "infinite whatever the scale"
    yield call([NAN, 1.0], 8.0, 1), "NaN is not finite either"
    yield call([0.0, 0.0, 0.0], 8.0, 1), "no gradient cannot overflow"
    yield call([65519.0, 65504.0], 1.0, 5), "beyond 65504, but it rounds to it"
    yield call([65520.0, 1.0], 1.0, 5), "half-way between 65504 and 65536: rounds away, to inf"
    yield (
        call([1e5, 1e5], 0.5, 1),
        "a scale below 1: FP16 has to hold the product, not the gradient",
    )
    yield (
        call([1e-9, 1e-9], 2.0**60),
        "the product overflows, though the gradient alone rounds to 0",
    )
    yield call([1.0] * 2002), "the defaults: a step is skipped, 2000 are good, then it grows"
    yield call([1.0, 1.0, 1e9, 1.0, 1.0, 1.0, 1.0], 4.0, 3), "an overflow just before it would grow"


loss_scale_history.mistake(
    "Your count of good steps survives an overflow. It starts again at 0: the steps must be good in a row.",
    replace("good = 0 if overflow", "good = good if overflow"),
)
loss_scale_history.mistake(
    "Your count of good steps is not reset when the scale grows, so it grows again on every good step.",
    replace(
        "good == growth_interval",
        "good >= growth_interval",
        "scale, good = scale * 2, 0",
        "scale *= 2",
    ),
)
loss_scale_history.mistake(
    "You test the gradient before it is scaled. It is the scaled gradient that FP16 has to hold.",
    replace("size * scale", "size"),
)
loss_scale_history.mistake(
    "You note the scale after its update. The step was run with the one before.",
    replace(
        "        scales.append(scale)\n",
        "",
        "scale, good = scale * 2, 0",
        "scale, good = scale * 2, 0\n        scales.append(scale)",
    ),
)
loss_scale_history.mistake(
    "You skip what is beyond 65504. That is the largest float16, but what is less than half a step beyond rounds down to it: the first to overflow is 65520.",
    replace(
        "not bool(torch.tensor(size * scale).half().isfinite())", "not size * scale <= 65504.0"
    ),
)
loss_scale_history.mistake(
    "A NaN passes for a good step. It compares false with everything and is no inf, so neither `> limit` nor isinf finds it: ask isfinite.",
    replace("not bool(torch.tensor(size * scale).half().isfinite())", "size * scale >= 65520.0"),
)
loss_scale_history.mistake(
    "The product is finite in Python, which counts in float64. It is FP16 that has to hold it: cast with half().",
    replace(".half()", ""),
)
loss_scale_history.mistake(
    "You round the gradient to FP16 before you scale it. Scale first: that is what saves small gradients.",
    replace("torch.tensor(size * scale).half()", "(torch.tensor(size).half() * scale)"),
)
loss_scale_history.mistake(
    "Yours grows one good step too late: after growth_interval of them, not growth_interval + 1.",
    replace("good == growth_interval", "good > growth_interval"),
)
loss_scale_history.mistake(
    "Your scale never falls below 1. It halves at every overflow, whatever it is.",
    replace("scale /= 2", "scale = max(scale / 2, 1.0)"),
)
loss_scale_history.mistake(
    "You grow every growth_interval steps of the run. What counts are good steps in a row since the last change.",
    replace("good == growth_interval", "len(scales) % growth_interval == 0"),
)


@loss_scale_history.alternative("compare with 65520 in Python")
def _(largest, init_scale=2.0**16, growth_interval=2000):
    scale, good = init_scale, 0
    scales: list[float] = []
    skipped: list[bool] = []
    for size in largest:
        scales.append(scale)
        skipped.append(not abs(size * scale) < 65520.0)
        good = (good + 1) % growth_interval * (not skipped[-1])
        scale *= 0.5 if skipped[-1] else 2.0 if good == 0 else 1.0
    return scales, skipped


# ------------------------------------------------------------------------------ GradScaler

GradScaler = Exercise(
    mp.GradScaler,
    title="GradScaler",
    difficulty=3,
    minutes=40,
    points=5,
    probe=probes.scaler_run,
    hints=(
        "Two things have to be remembered between calls: how many good updates in a row, and for each optimizer whether it has been unscaled and what was found.",
        "Key what was found by `id(optimizer)`; its presence says that unscale_ was called. `update` clears it.",
        "Look for inf and NaN with `isfinite().all()` over every gradient, then divide in place: `g.div_(scale)`. `step` asks only what was found for *its* optimizer, `update` for any.",
    ),
)


def groups(*values):
    """Weights or gradients: a list of tensors for each optimizer."""
    return [list(group) for group in values]


@GradScaler.by_hand
def _():
    def scales(*after):
        return {f"step {i}: scale afterwards": scale for i, scale in enumerate(after, 1)}

    start, ok = groups([t(1.0, 2.0)]), {"grads": groups([t(2.0, 4.0)])}
    seen = {
        "scale at the start": 8.0,
        "step 1: steps that each optimizer has taken": [1],
        "step 1: weights afterwards": groups([t(0.0, 0.0)]),
    }
    yield call(start, ok, init_scale=8.0), seen | scales(8.0)
    good, bad = {"grads": groups([t(1.0)])}, {"grads": groups([t(NAN)])}
    yield (  # one good update since the overflow, then two; three steps of 0.5 · 1
        call(groups([t(1.0)]), good, bad, good, good, init_scale=8.0, growth_interval=2),
        scales(8.0, 4.0, 4.0, 8.0) | {"step 4: weights afterwards": groups([t(-0.5)])},
    )
    seen = {
        "step 1: weights afterwards": start,
        "step 2: weights afterwards": groups([t(0.0, 0.0)]),
    }
    overflow = {"grads": groups([t(INF, 4.0)])}
    yield (
        call(start, overflow, ok, ok, init_scale=8.0, growth_interval=2),
        seen | scales(4.0, 4.0, 8.0),
    )


def drawn_step(draw, shapes):
    """One step of the probe: gradients that are small, now and then inf, NaN or missing."""
    if draw(st.integers(0, 9)) == 0:
        return "reload"
    special = {0: INF, 1: -INF, 2: NAN}
    grads: list[list] = []
    for group in shapes:
        grads.append([])
        for n in group:
            g = draw(draws.tensors((n,)))
            if (kind := draw(st.integers(0, 11))) in special:
                g[draw(st.integers(0, n - 1))] = special[kind]
            grads[-1].append(None if kind == 11 and len(group) > 1 and grads[-1] else g)
    return {
        "grads": grads,
        "fp16": draw(st.booleans()),
        "explicit": (explicit := draw(st.booleans())),
        "twice": explicit and draw(st.booleans()),
    }


@GradScaler.cases(16)
def _(draw):
    shapes = draw(st.sampled_from([[[2]], [[3, 1]], [[2], [1]], [[1, 2], [2]]]))
    weights = [[draw(draws.tensors((n,))) for n in group] for group in shapes]
    steps = [drawn_step(draw, shapes) for _ in range(draw(st.integers(1, 8)))]
    yield call(
        weights,
        *steps,
        init_scale=2.0 ** draw(st.integers(0, 18)),
        growth_factor=draw(st.sampled_from([2.0, 4.0])),
        backoff_factor=draw(st.sampled_from([0.5, 0.25])),
        growth_interval=draw(st.integers(1, 3)),
    )


@GradScaler.edge
def _():
    one = groups([t(1.0)])
    good, bad = {"grads": groups([t(1.0)])}, {"grads": groups([t(NAN)])}
    yield (
        call(one, {**good, "fp16": True}, good),
        "65536 does not fit in FP16: the first step is skipped",
    )
    yield call(one, bad, bad, bad, init_scale=1.0), "the scale may fall below 1"
    yield (
        call(one, good, good, bad, good, good, good, init_scale=4.0, growth_interval=3),
        "an overflow just before it would grow",
    )
    yield (
        call(one, good, good, bad, good, init_scale=2.0**16, growth_interval=1),
        "2¹⁶ is where the scale starts, not a limit: in float32 it may grow beyond",
    )
    two = groups([t(1.0)], [t(2.0)])
    half = {"grads": groups([t(INF)], [t(1.0)]), "explicit": True}
    yield (
        call(two, half, half, init_scale=4.0, growth_interval=1),
        "one of two optimizers overflows: the other steps, the scale backs off once",
    )
    both = {"grads": groups([t(1.0)], [t(1.0)]), "together": True}
    yield call(two, both, both, init_scale=4.0), "both are unscaled, then both step"
    first = {"grads": groups([t(INF)], [t(1.0)]), "together": True}
    yield (
        call(two, first, init_scale=4.0),
        "both are unscaled, then both step: the first overflowed",
    )
    other = {"grads": groups([t(1.0)], [t(INF)])}
    yield call(two, other, init_scale=4.0, growth_interval=1), "the second of two overflows"
    missing = {"grads": groups([t(1.0), None]), "explicit": True}
    yield call(groups([t(1.0), t(1.0)]), missing, init_scale=4.0), "a parameter without a gradient"
    yield (
        call(one, good, "reload", good, init_scale=4.0, growth_interval=2),
        "reloaded while it counts",
    )
    settings = {"init_scale": 4.0, "backoff_factor": 0.25, "growth_interval": 2}
    yield (
        call(one, "reload", good, good, bad, bad, **settings),
        "reloaded at the start: another scaler's settings go on",
    )
    late = {**good, "late": True}
    yield (
        call(one, {**late, "explicit": True}, good, init_scale=4.0),
        "unscale_ once more, after the step and before update",
    )
    yield call(one, late, good, init_scale=4.0), "step has unscaled by itself; then comes unscale_"
    yield call(one, {**bad, "late": True}, good, init_scale=4.0), "the same after a skipped step"
    held = {"explicit": True, "clamped": True}
    for value in (INF, NAN):
        clamped = {"grads": groups([t(value)]), **held}
        yield call(one, clamped, good, init_scale=4.0), "clamped after unscale_ has met it"
    large = {"grads": groups([t(3e38, 3e38)])}
    yield (
        call(groups([t(0.0, 0.0)]), large, init_scale=1.0),
        "each gradient is finite, though their sum is not",
    )


GradScaler.mistake(
    "Your gradients are still scaled when the optimizer steps: each update is too large by the scale.",
    replace("        for g in grads:\n            g.div_(self._scale)\n", ""),
)
GradScaler.mistake(
    "You multiply the gradients by the scale a second time. The backward pass has done that: divide.",
    replace("g.div_", "g.mul_"),
)
GradScaler.mistake(
    "Your count of good updates is not reset after an overflow: the scale grows too soon.",
    replace("self._backoff_factor\n            self._growth_tracker = 0", "self._backoff_factor"),
)
GradScaler.mistake(
    "The optimizer steps although a gradient is inf or NaN: from then on the weights are, too.",
    replace(
        "if not self._found_inf[id(optimizer)]:\n            optimizer.step()", "optimizer.step()"
    ),
)
GradScaler.mistake(
    "You test for inf but not for NaN. `isinf` is false for NaN; `isfinite` finds both.",
    replace(
        "not all(bool(g.isfinite().all()) for g in grads)",
        "any(bool(g.isinf().any()) for g in grads)",
    ),
)
GradScaler.mistake(
    "You unscale in `step` even if unscale_ was called before: the gradients are divided twice.",
    replace(
        "if id(optimizer) not in self._found_inf:\n            self.unscale_(optimizer)",
        "self._found_inf.pop(id(optimizer), None)\n        self.unscale_(optimizer)",
    ),
)
GradScaler.mistake(
    "A second unscale_ before the update must raise RuntimeError; yours divides again, or does nothing.",
    replace(
        'raise RuntimeError("unscale_() has already been called since the last update()")', "return"
    ),
)
GradScaler.mistake(
    "You forget that an optimizer was unscaled as soon as it has stepped. Until update() a second unscale_ "
    "must raise RuntimeError; yours divides again.",
    replace(
        "self._found_inf: dict[int, bool] = {}",
        "self._found_inf: dict[int, bool] = {}\n        self._stepped = set()",
        "if id(optimizer) in self._found_inf:",
        "if id(optimizer) in self._found_inf and id(optimizer) not in self._stepped:",
        "            optimizer.step()",
        "            optimizer.step()\n        self._stepped.add(id(optimizer))",
        "self._found_inf.clear()",
        "self._found_inf.clear()\n        self._stepped.clear()",
    ),
)
GradScaler.mistake(
    "Every optimizer skips if one of them overflows. Only the one whose gradients are not finite does; the scale is what they share.",
    replace("if not self._found_inf[id(optimizer)]:", "if not any(self._found_inf.values()):"),
)
GradScaler.mistake(
    "Your state_dict leaves out the count of good updates: after a resume the scale grows later than it would have.",
    replace('self._growth_tracker = state["_growth_tracker"]', "self._growth_tracker = 0"),
)
GradScaler.mistake(
    "Your count is not reset when the scale grows, so it never equals the interval again: one growth and no more.",
    replace("self._growth_factor\n                self._growth_tracker = 0", "self._growth_factor"),
)
GradScaler.mistake(
    "You unscale the first parameter group only. An optimizer may have several.",
    replace("optimizer.param_groups", "optimizer.param_groups[:1]"),
)
GradScaler.mistake(
    "You put new tensors into .grad. Divide in place: whoever holds the old ones (a flat buffer, DDP's buckets) still sees scaled gradients.",
    replace(
        "for g in grads:\n            g.div_(self._scale)",
        "for p in params:\n            p.grad = None if p.grad is None else p.grad / self._scale",
    ),
)
GradScaler.mistake(
    "What was found is kept on the class, so all scalers share it. Make it in __init__.",
    replace(
        "class GradScaler:",
        "class GradScaler:\n    _found_inf = {}\n",
        "        self._found_inf: dict[int, bool] = {}\n",
        "",
    ),
)
GradScaler.mistake(
    "update() does not forget which optimizers were unscaled: in the next step unscale_ raises as if it were called twice, or is left out.",
    replace("\n        self._found_inf.clear()", ""),
)
GradScaler.mistake(
    "step() expects that unscale_ was called. Where it was not, step calls it.",
    replace(
        "        if id(optimizer) not in self._found_inf:\n            self.unscale_(optimizer)\n",
        "",
    ),
)
GradScaler.mistake(
    "Yours grows one good update too late: after growth_interval of them, not growth_interval + 1.",
    replace("self._growth_tracker == self", "self._growth_tracker > self"),
)
GradScaler.mistake(
    "The scale backs off only if all optimizers overflow. One is enough.",
    replace("any(self._found_inf.values())", "all(self._found_inf.values())"),
)
GradScaler.mistake(
    "scale() returns the loss as it is. Multiply it by the scale.",
    replace("return loss * self._scale", "return loss"),
)
GradScaler.mistake(
    "load_state_dict leaves the settings as they were built: the factors and the interval come from the state, too.",
    replace(
        '        self._growth_factor = state["growth_factor"]\n        self._backoff_factor = state["backoff_factor"]\n        self._growth_interval = state["growth_interval"]\n',
        "",
    ),
)


GradScaler.mistake(
    "You look for inf and NaN only when the optimizer steps. By then the caller may have clipped them away: unscale_ "
    "notes what it meets, and `step` and `update` go by that.",
    replace(
        "not all(bool(g.isfinite().all()) for g in grads)",
        "False",
        "        if not self._found_inf[id(optimizer)]:\n",
        '        params = [p for group in optimizer.param_groups for p in group["params"]]\n'
        "        grads = [p.grad for p in params if p.grad is not None]\n"
        "        self._found_inf[id(optimizer)] = not all(bool(g.isfinite().all()) for g in grads)\n"
        "        if not self._found_inf[id(optimizer)]:\n",
    ),
)
GradScaler.mistake(
    "You remember the optimizer that was unscaled last, and no other. Where several are unscaled before the first of "
    "them steps, you divide its gradients once more: keep what was found for each.",
    replace(
        "self._found_inf: dict[int, bool] = {}",
        "self._found_inf: dict[int, bool] = {}\n        self._any = False",
        "        self._found_inf[id(optimizer)] =",
        "        self._found_inf = {}\n        self._found_inf[id(optimizer)] =",
        "        for g in grads:\n",
        "        self._any |= self._found_inf[id(optimizer)]\n        for g in grads:\n",
        "any(self._found_inf.values())",
        "self._any",
        "        self._found_inf.clear()\n",
        "        self._found_inf.clear()\n        self._any = False\n",
    ),
)
GradScaler.mistake(
    "Your state_dict is the scaler's own dict, which goes on changing with it. Return a new one, so that a run goes "
    "on from where it was taken.",
    replace(
        "return {\n"
        '            "scale": self._scale,\n'
        '            "growth_factor": self._growth_factor,\n'
        '            "backoff_factor": self._backoff_factor,\n'
        '            "growth_interval": self._growth_interval,\n'
        '            "_growth_tracker": self._growth_tracker,\n'
        "        }",
        "return vars(self)",
        'state["scale"]',
        'state["_scale"]',
        'state["growth_factor"]',
        'state["_growth_factor"]',
        'state["backoff_factor"]',
        'state["_backoff_factor"]',
        'state["growth_interval"]',
        'state["_growth_interval"]',
    ),
)
GradScaler.mistake(
    "You look at the sum of the gradients, or at their norm. That overflows though every one of them is finite: ask isfinite of each element.",
    replace("g.isfinite().all()", "g.sum().isfinite()"),
)
for reached in ("==", ">="):
    GradScaler.mistake(
        "You count the optimizers' steps. It is updates that count: with two optimizers your scale grows in half the time.",
        replace(
            "            optimizer.step()",
            "            optimizer.step()\n            self._growth_tracker += 1",
            "            self._growth_tracker += 1\n            if self._growth_tracker ==",
            f"            if self._growth_tracker {reached}",
        ),
    )


@GradScaler.alternative("torch.amp.GradScaler itself, on the CPU")
class _Torchs(torch.amp.GradScaler):
    def __init__(
        self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    ):
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval)

    def scale(self, loss):
        return super().scale(loss)

    def load_state_dict(self, state):
        super().load_state_dict(state)


@GradScaler.alternative("a set of unscaled optimizers, a set of bad ones, a count that goes down")
class _WithSets:
    def __init__(
        self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    ):
        self.value, self.up, self.down = init_scale, growth_factor, backoff_factor
        self.every = growth_interval
        self.left, self.done, self.bad = growth_interval, set(), set()

    def get_scale(self):
        return self.value

    def scale(self, loss):
        return self.value * loss

    def unscale_(self, optimizer):
        if optimizer in self.done:
            raise RuntimeError("twice")
        self.done.add(optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(1 / self.value)
                    if not math.isfinite(p.grad.abs().max()):
                        self.bad.add(optimizer)

    def step(self, optimizer):
        if optimizer not in self.done:
            self.unscale_(optimizer)
        return None if optimizer in self.bad else optimizer.step()

    def update(self):
        self.left -= 1
        if self.bad:
            self.value, self.left = self.value * self.down, self.every
        elif self.left == 0:
            self.value, self.left = self.value * self.up, self.every
        self.done, self.bad = set(), set()

    def state_dict(self):
        return {name: x for name, x in vars(self).items() if name not in ("done", "bad")}

    def load_state_dict(self, state):
        vars(self).update(state)


# ------------------------------------------------------------------------------ amp_step

amp_step = Exercise(
    mp.amp_step,
    title="The order of a step",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.amp_run,
    hints=(
        "Six calls, each needs what the one before it has done. In which units are the gradients when you compare their norm with max_norm?",
        "zero_grad, scale and backward, unscale_, clip, step, update.",
        "`torch.nn.utils.clip_grad_norm_` returns the norm before clipping. Its parameters are those of *all* groups of the optimizer.",
    ),
)


@amp_step.by_hand
def _():
    x, y, zero = torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1)
    yield (  # loss w², gradients (2w, 2w) = (4, 4), their norm 4√2
        call(t(2.0)[None], zero, (x, y), max_norm=100.0, scale=1024.0),
        {
            "step 1: norm returned": torch.tensor(4 * 2**0.5),
            "step 1: weight afterwards": t(1.0)[None],  # 2 - 0.25·4
            "step 1: bias afterwards": t(-2.0),  # 0 - 0.5·4
            "step 1: scale afterwards": 1024.0,
        },
    )
    yield (  # the same, clipped to norm √2: gradients (1, 1)
        call(t(2.0)[None], zero, (x, y), max_norm=2**0.5, scale=1024.0),
        {
            "step 1: norm returned": torch.tensor(4 * 2**0.5),
            "step 1: weight afterwards": t(1.75)[None],
            "step 1: bias afterwards": t(-0.5),
        },
    )


@amp_step.cases(12)
def _(draw):
    b, d, o = draw(draws.distinct_sizes(3, 1, 4))
    batches = []
    for _ in range(draw(st.integers(1, 5))):
        x, y = draw(draws.tensors((b, d))), draw(draws.tensors((b, o)))
        if draw(st.integers(0, 4)) == 0:
            x[0, 0] = draw(st.sampled_from([INF, NAN]))
        batches.append((x, y))
    yield call(
        draw(draws.tensors((d, o))),
        draw(draws.tensors((o,))),
        *batches,
        max_norm=draw(st.sampled_from([0.1, 1.0, 100.0])),
        scale=2.0 ** draw(st.integers(3, 12)),
    )


@amp_step.edge
def _():
    x, y = torch.ones(1, 1), torch.zeros(1, 1)
    w, b = t(2.0)[None], t(0.0)
    steps = ((x, y),) * 4
    yield (
        call(w, b, *steps, max_norm=1.0, scale=2.0**16, fp16=True),
        "the first scales overflow in FP16",
    )
    yield call(w, b, (x * INF, y), (x, y), max_norm=1.0, scale=8.0), "an infinite gradient"
    yield call(w * 0, b, (x, y), (x, y), max_norm=1.0, scale=8.0), "gradients of zero"
    yield call(w, b, (x, y), max_norm=0.0, scale=8.0), "clipped to nothing"


clip = torch.nn.utils.clip_grad_norm_


amp_step.mistake(
    "You clip before you unscale. The norm is still that of the scaled gradients, so clipping shrinks them by the scale too much.",
    replace("    scaler.unscale_(optimizer)\n", ""),
)
amp_step.mistake(
    "You return the norm of the scaled gradients. That of the true ones is asked for: divide it by the scale, or unscale before you clip.",
    replace(
        "    scaler.unscale_(optimizer)\n",
        "",
        "(params, max_norm)",
        "(params, max_norm * scaler.get_scale())",
    ),
)
amp_step.mistake(
    "Your clipping also scales small gradients up to max_norm. It may only shorten: the factor max_norm / norm must never exceed 1.",
    replace(
        "norm = torch.nn.utils.clip_grad_norm_(params, max_norm)",
        "norm = torch.nn.utils.get_total_norm([p.grad for p in params])\n    for p in params:\n        p.grad.mul_(max_norm / (norm + 1e-6))",
    ),
)
amp_step.mistake(
    "You call optimizer.step() yourself. After an overflow it writes inf and NaN into the weights; scaler.step(optimizer) skips.",
    replace("scaler.step(optimizer)", "optimizer.step()"),
)
amp_step.mistake(
    "You clip after the step: the gradients are used as they are, and then shortened for nobody.",
    replace(
        "scaler.unscale_(optimizer)\n    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)\n    scaler.step(optimizer)",
        "scaler.step(optimizer)\n    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)",
    ),
)
amp_step.mistake(
    "Without scaler.update() the scale never moves, and the next unscale_ raises: it looks as if it were the second for the same step.",
    replace("    scaler.update()\n", ""),
)
amp_step.mistake(
    "The gradients of earlier steps are still there: backward adds to them. Call zero_grad first.",
    replace("    optimizer.zero_grad()\n", ""),
)
amp_step.mistake(
    "You clip each group by itself. The bound is on the norm of all of the optimizer's gradients together.",
    replace(
        "norm = torch.nn.utils.clip_grad_norm_(params, max_norm)",
        'groups = [group["params"] for group in optimizer.param_groups]\n    norm = torch.stack([torch.nn.utils.clip_grad_norm_(ps, max_norm) for ps in groups]).norm()',
    ),
)
amp_step.mistake(
    "You return the norm after clipping. The one before tells you how the run is doing.",
    replace(
        "norm = torch.nn.utils.clip_grad_norm_(params, max_norm)",
        "norm = torch.nn.utils.clip_grad_norm_(params, max_norm)\n    norm = torch.nn.utils.get_total_norm([p.grad for p in params])",
    ),
)
amp_step.mistake(
    "You clip the first parameter group only. The norm is that of all groups together.",
    replace(
        'for group in optimizer.param_groups for p in group["params"]',
        'for p in optimizer.param_groups[0]["params"]',
    ),
)
amp_step.mistake(
    "You clear the gradients after backward has filled them: nothing is left to step with.",
    replace(
        "optimizer.zero_grad()\n    scaler.scale(loss).backward()",
        "scaler.scale(loss).backward()\n    optimizer.zero_grad()",
    ),
)
amp_step.mistake(
    "You clear the gradients after the step only. What .grad holds before your first step still plays a part: clear it before backward.",
    replace(
        "    optimizer.zero_grad()\n",
        "",
        "scaler.update()",
        "scaler.update()\n    optimizer.zero_grad()",
    ),
)
amp_step.mistake(
    "You clear the gradients of the first parameter group only: backward adds to what the others hold. zero_grad() clears all.",
    replace(
        "optimizer.zero_grad()",
        'for p in optimizer.param_groups[0]["params"]:\n        p.grad = None',
    ),
)


amp_step.mistake(
    "Where the norm is not finite you return before update(), so the scale stays as high, and the next unscale_ raises. scaler.step(optimizer) skips by itself, and update() lowers the scale.",
    replace(
        "    scaler.step(", "    if not norm.isfinite():\n        return norm\n    scaler.step("
    ),
)


@amp_step.alternative("clip by hand, zero the gradients last as well")
def _(loss, optimizer, scaler, max_norm):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    norm = torch.cat([g.flatten() for g in grads]).norm()
    for g in grads:
        g.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norm


# ------------------------------------------------------------------------------ bf16_master_step

bf16_master_step = Exercise(
    mp.bf16_master_step,
    title="Master weights",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.master_run,
    hints=(
        "Which of the two is the truth, and which is only its rounded image?",
        "The update goes to the master, in its dtype. Then `copy_` rounds it into the weight.",
        "Both change in place, under `torch.no_grad()`: the optimizer is not part of the graph.",
    ),
)


@bf16_master_step.by_hand
def _():
    g = t(1.0).bfloat16()
    yield (
        call(t(1.0), 0.25, g, g),
        {"weight at the end": t(0.5).bfloat16(), "master at the end": t(0.5)},
    )
    yield (  # 1 - 1/1024 is no bfloat16: the next below 1 is 1 - 1/256
        call(t(1.0), 2.0**-10, g),
        {"weight at the end": t(1.0).bfloat16(), "master at the end": t(1 - 2.0**-10)},
    )
    yield (  # four such steps are
        call(t(1.0), 2.0**-10, g, g, g, g),
        {"weight at the end": t(1 - 2.0**-8).bfloat16(), "master at the end": t(1 - 2.0**-8)},
    )


@bf16_master_step.cases(16)
def _(draw):
    shape = draw(draws.shapes(max_dims=3, among=(1, 2, 3)))
    steps = draw(st.integers(1, 12))
    grads = [draw(draws.tensors(shape)).bfloat16() for _ in range(steps)]
    yield call(draw(draws.tensors(shape)), draw(st.sampled_from([1e-3, 1e-2, 0.1])), *grads)


@bf16_master_step.edge
def _():
    g = torch.ones(3).bfloat16()
    yield call(torch.full((3,), 1.0), 1e-3, *[g] * 40), "forty updates, each too small for bfloat16"
    yield call(torch.full((3,), 100.0), 0.1, *[g] * 20), "small against a large weight"
    yield call(torch.zeros(0, 2), 0.1, torch.zeros(0, 2).bfloat16()), "no elements"
    yield call(torch.tensor(3.0), 0.1, torch.tensor(1.0).bfloat16()), "a single number"
    yield (
        call(t(1.0, 1.0), 0.5, t(INF, NAN).bfloat16()),
        "inf and NaN are not this function's to stop",
    )
    yield call(t(1.0), 0.0, t(1.0).bfloat16()), "a learning rate of zero"
    yield (
        call(draws.scattered(torch.ones(2, 3)), 0.5, torch.ones(2, 3).bfloat16()),
        "not contiguous",
    )


bf16_master_step.mistake(
    "You update the BF16 weight and copy it to the master: updates below half a step of BF16 are lost, all of them, for ever.",
    replace(
        "master.sub_(lr * grad.to(master.dtype))\n        weight.copy_(master)",
        "weight.sub_(lr * grad)\n        master.copy_(weight)",
    ),
)
bf16_master_step.mistake(
    "You start each update from the rounded weight: what the last step kept below BF16's precision is thrown away.",
    replace("master.sub_(", "master.copy_(weight.float() - "),
)
bf16_master_step.mistake(
    "The weight that was handed in stays as it was. Round the new master into it in place, with copy_: `weight = …` only gives the name to another tensor.",
    replace("\n        weight.copy_(master)", ""),
)
bf16_master_step.mistake(
    "You copy the master before you update it: the weight is always one step behind.",
    replace(
        "master.sub_(lr * grad.to(master.dtype))\n        weight.copy_(master)",
        "weight.copy_(master)\n        master.sub_(lr * grad.to(master.dtype))",
    ),
)
bf16_master_step.mistake(
    "You climb: the update is added. Descent goes against the gradient.",
    replace("master.sub_", "master.add_"),
)
bf16_master_step.mistake(
    "You compute lr · grad in BF16: the product is rounded to 8 bits before it reaches the master.",
    replace("lr * grad.to(master.dtype)", "(lr * grad).to(master.dtype)"),
)
bf16_master_step.mistake(
    "The master that was handed in stays as it was: `master = master - …` only gives the name to another tensor. Update it in place.",
    replace(
        "master.sub_(lr * grad.to(master.dtype))", "master = master - lr * grad.to(master.dtype)"
    ),
)
bf16_master_step.mistake(
    "You put other memory behind the weight (`weight.data = …`). Views of it, and optimizers with flat buffers, keep the old: copy into it.",
    replace("weight.copy_(master)", "weight.data = master.to(weight.dtype)"),
)
bf16_master_step.mistake(
    "The weight gets an update of its own, in BF16. It is the master's rounded image: copy it.",
    replace("weight.copy_(master)", "weight.sub_(lr * grad)"),
)
bf16_master_step.mistake(
    "You cut the master's last 16 bits off, which rounds towards zero. `weight` is the nearest bfloat16: let copy_ round.",
    replace(
        "weight.copy_(master)",
        "weight.copy_((master.view(torch.int32) & -65536).view(torch.float32))",
    ),
)
bf16_master_step.mistake(
    "reshape copies what no view can flatten, and you write into the copy: use the weight as it is.",
    replace("weight.copy_(master)", "weight.reshape(-1).copy_(master.reshape(-1))"),
)
bf16_master_step.mistake(
    "You multiply the caller's gradient by lr in place, and in BF16: it has to stay as it came, and the product is rounded to 8 bits before it reaches the master.",
    replace("lr * grad.to(master.dtype)", "grad.mul_(lr)"),
)
bf16_master_step.mistake(
    "You clear the gradient after the step. It is not yours: leave it as it came.",
    replace("weight.copy_(master)", "weight.copy_(master)\n        grad.zero_()"),
)


bf16_master_step.mistake(
    "The weight is a parameter, and autograd refuses to have it changed in place while it records: write under torch.no_grad().",
    replace("with torch.no_grad():", "if True:"),
)


@bf16_master_step.alternative("torch.optim.SGD on the master")
def _(weight, master, grad, lr):
    master.grad = grad.to(master.dtype)
    torch.optim.SGD([master], lr=lr).step()
    weight.data.copy_(master)


# ------------------------------------------------------------------------------ fp8_scaled_matmul

fp8_scaled_matmul = Exercise(
    mp.fp8_scaled_matmul,
    title="A matrix product in FP8",
    difficulty=2,
    minutes=25,
    points=4,
    hints=(
        "Each factor gets a scale of its own, from its own amax. What is the product of the scaled factors too large by?",
        "For each factor: scale, clamp to ±`torch.finfo(dtype).max`, `.to(dtype)`. `power_of_two_scale` gives the scale.",
        "Convert to float32 before `@`: sums are not kept in FP8, and FP16 overflows at 65504. Then divide by both scales, and cast.",
        (
            "edge cases",
            "What comes of an amax that was remembered and is too small now? And of one that is 0.0?",
        ),
    ),
)


def matrix(*rows):
    return torch.tensor(rows)


@fp8_scaled_matmul.by_hand
def _():
    yield call(matrix([1.0, 2.0]), matrix([3.0], [4.0])), matrix([11.0])
    # scale 256: 1.7 · 256 = 435.2 lies between 416 and 448, nearer to 448, which is 1.75
    yield call(matrix([1.7]), matrix([1.0])), matrix([1.75])
    # E5M2 has steps of 0.25 there: 1.7 is nearer to 1.75 than to 1.5
    yield call(matrix([1.7]), matrix([1.0]), E5M2), matrix([1.75])
    # room for 1 only: scale 256, and 4 · 256 saturates at 448
    yield call(matrix([4.0]), matrix([1.0]), E4M3, 1.0), matrix([1.75])


@fp8_scaled_matmul.cases(24)
def _(draw):
    m, k, n = draw(draws.distinct_sizes(3, 1, 6))
    dtype, reach = draw(st.sampled_from([(F32, 12), (F32, 12), (BF16, 8), (F16, 4)]))
    a = draw(draws.tensors((m, k), dtype, scale=2.0 ** draw(st.integers(-reach, 5))))
    b = draw(draws.tensors((k, n), dtype, scale=2.0 ** draw(st.integers(-reach, 5))))
    remembered = [
        factor and factor * float(x.abs().max())
        for x in (a, b)
        for factor in [draw(st.sampled_from([None, None, 0.25, 2.0]))]
    ]
    yield call(a, b, draw(st.sampled_from([E4M3, E5M2])), *remembered)


@fp8_scaled_matmul.edge
def _():
    one = torch.ones(1, 1)
    yield call(torch.zeros(2, 3), torch.ones(3, 2)), "a tensor of zeros has amax 0"
    yield (
        call(matrix([0.3, 0.6]), torch.ones(2, 1), E4M3, 2.0**17),
        "far below an old amax: there FP8 has few digits left, or none",
    )
    yield (
        call(matrix([100.0, -1000.0]), torch.ones(2, 1), E5M2, 1.0),
        "far beyond an old amax, E5M2",
    )
    yield (
        call(torch.ones(1, 2), matrix([-50.0], [3.0]), E4M3, None, 1.0),
        "the second factor saturates",
    )
    yield (
        call(1e-6 * torch.ones(2, 2), 1e5 * torch.ones(2, 2)),
        "without scales one is 0, the other 448",
    )
    yield call(448.0 * one, 448.0 * one), "amax at the largest number itself: scale 1"
    x = torch.arange(6.0).view(2, 3)
    yield call(draws.scattered(x), draws.scattered(x.T)), "not contiguous"
    yield call(matrix([1.0, NAN]), torch.ones(2, 1), E4M3, 1.0), "a NaN stays one"
    yield call(torch.ones(1, 64), 3 * torch.ones(64, 1)), "a sum that FP8 could not hold"
    halves = torch.ones(1, 512).half(), torch.ones(512, 1).half()
    yield call(*halves), "float16: 512 scaled ones add up to more than it holds"
    yield call(600 * one, one, E4M3, 0.0), "an amax of 0 was remembered: scale 1"
    yield call(one, 600 * one, E4M3, None, 0.0), "an amax of 0 was remembered of the second factor"
    yield call(3 * one.half(), one), "float16 times float32"
    yield call(3 * one, one.half()), "float32 times float16"
    yield call(-3 * one, one), "a negative number"


fp8_scaled_matmul.mistake(
    "You never divide by the scales: the result is too large by their product.",
    replace("(qa @ qb) / (scale_a * scale_b)", "qa @ qb"),
)
fp8_scaled_matmul.mistake(
    "You divide by one of the two scales only; the product carries both.",
    replace(" / (scale_a * scale_b)", " / scale_a"),
)
fp8_scaled_matmul.mistake(
    "Your scale is upside down: amax / max takes the tensor away from FP8's range, not into it.",
    replace("power_of_two_scale(amax, dtype)", "1 / power_of_two_scale(amax, dtype)"),
)
fp8_scaled_matmul.mistake(
    "You cast without a scale: small tensors vanish, large ones saturate.",
    replace("power_of_two_scale(amax, dtype)", "1.0"),
)
fp8_scaled_matmul.mistake(
    "You do not clamp. With an amax from earlier steps a value can lie beyond the range, and a cast to E5M2 then gives inf.",
    replace(".clamp(-limit, limit)", ""),
)
fp8_scaled_matmul.mistake(
    "You clamp at the upper end alone. A negative number can lie beyond the range, too: clamp to ±limit.",
    replace(".clamp(-limit, limit)", ".clamp(max=limit)"),
)
fp8_scaled_matmul.mistake(
    "You clamp before you scale. It is the scaled tensor that has to fit into the range: with a remembered amax "
    "it may lie beyond, though the tensor itself does not.",
    replace("(x * scale).clamp(-limit, limit)", "(x.clamp(-limit, limit) * scale)"),
)
fp8_scaled_matmul.mistake(
    "You leave the given amax aside and measure it again. Delayed scaling exists to spare that pass over the tensor, and what lies beyond saturates.",
    replace("if amax is None:\n            amax", "amax"),
)
fp8_scaled_matmul.mistake(
    "You keep the result in FP8 too. Only the factors are; sums need the wider format.",
    replace(
        "return ((qa @ qb) / (scale_a * scale_b))",
        "result, scale = rounded((qa @ qb) / (scale_a * scale_b), None)\n    return (result / scale)",
    ),
)
fp8_scaled_matmul.mistake(
    "Both factors get the first one's scale. Each has a range of its own.",
    replace(
        "(qa, scale_a), (qb, scale_b) = rounded(a, amax_a), rounded(b, amax_b)",
        "qa, scale_a = rounded(a, amax_a)\n    qb, scale_b = rounded(b, limit / scale_a)",
    ),
)
fp8_scaled_matmul.mistake(
    "Your values are right, but you form the products row by row in Python: one kernel for each row, where one matrix product does.",
    replace("qa @ qb", "torch.cat([qa[:0] @ qb, *(row[None] @ qb for row in qa)])"),
    cost=True,
)
fp8_scaled_matmul.contract(
    contracts.constant_kernels(
        [
            call(torch.ones(2, 3), torch.ones(3, 2)),
            call(torch.ones(16, 24), torch.ones(24, 16)),
        ]
    )
)
fp8_scaled_matmul.mistake(
    "You add up the products in the dtype of the inputs. In float16 the scaled sums overflow: add up in float32.",
    replace(
        "rounded(a, amax_a), rounded(b, amax_b)",
        "rounded(a, amax_a), rounded(b, amax_b)\n    qa, qb = qa.to(a.dtype), qb.to(b.dtype)",
    ),
)
fp8_scaled_matmul.mistake(
    "Your result is always float32. It has the dtype of a.", replace(".to(a.dtype)", "")
)
fp8_scaled_matmul.mistake(
    "An amax of 0.0 is a remembered value like others. Only None means: measure it.",
    replace("if amax is None", "if not amax"),
)
for factor in "ab":
    fp8_scaled_matmul.mistake(
        "An amax of 0.0 is a remembered value like others. Only None means: measure it.",
        replace(f"rounded({factor}, amax_{factor})", f"rounded({factor}, amax_{factor} or None)"),
    )
for other in ("b.dtype", "torch.promote_types(a.dtype, b.dtype)"):
    fp8_scaled_matmul.mistake(
        "Your result takes its dtype from b. It has that of a, whatever b's is.",
        replace(".to(a.dtype)", f".to({other})"),
    )
fp8_scaled_matmul.mistake(
    "amax is the largest *absolute* value: a tensor of negative numbers has one, too.",
    replace("x.abs().max()", "x.max()"),
)
fp8_scaled_matmul.mistake(
    "448 is the end of E4M3. E5M2 reaches 57344: ask torch.finfo(dtype).max.",
    replace("torch.finfo(dtype).max", "448.0"),
)
for raised in ("max(float(x.abs().max()), amax)", "max(amax, float(x.abs().max()))"):  # NaN
    fp8_scaled_matmul.mistake(
        "You raise the given amax to the tensor's own where that is larger. Delayed scaling exists to spare that pass over the tensor, and what lies beyond saturates.",
        replace("power_of_two_scale(amax, dtype)", f"power_of_two_scale({raised}, dtype)"),
    )
fp8_scaled_matmul.mistake(
    "You lower the given amax to the tensor's own where that is smaller. Delayed scaling exists to spare that pass over the tensor: the scale is that of the given one.",
    replace(
        "power_of_two_scale(amax, dtype)",
        "power_of_two_scale(min(amax, float(x.abs().max())), dtype)",
    ),
)


@fp8_scaled_matmul.alternative(
    "carry the reciprocals of the scales, as the kernels of GPUs do; an einsum"
)
def _(a, b, dtype=E4M3, amax_a=None, amax_b=None):
    top = torch.finfo(dtype).max
    if amax_a is None:
        amax_a = a.abs().amax().item()
    if amax_b is None:
        amax_b = b.abs().amax().item()
    back_a, back_b = (
        2.0 ** math.ceil(math.log2(amax / top)) if amax else 1.0 for amax in (amax_a, amax_b)
    )
    qa = torch.clip(a / back_a, -top, top).to(dtype).float()
    qb = torch.clip(b / back_b, -top, top).to(dtype).float()
    return (torch.einsum("mk,kn->mn", qa, qb) * back_a * back_b).to(a.dtype)


fp8_scaled_matmul.equivalent(
    "fp8_scaled_matmul.rounded: `float(x.abs().max())` → `x.abs().max()`",
    because="a tensor of one number is used as a number by every step that follows, in the same precision",
)
