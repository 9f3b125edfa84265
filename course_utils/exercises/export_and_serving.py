"""Exercises of chapter 28, export and serving: graphs without Python, other runtimes, requests that share a model."""
# mypy: ignore-errors

import math
from contextlib import suppress
from itertools import pairwise

import numpy as np
import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes.chapters import serving as served
from course_utils.reference import export_and_serving as exported
from course_utils.reference import exporting, serving

INF = math.inf
F64 = torch.float64


def normal(*shape, dtype=torch.float32, seed=0):
    """Fixed standard normal numbers, for cases without draws."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


# ------------------------------------------------------------------------------ per_row_probs

per_row_probs = Exercise(
    exported.per_row_probs,
    title="A temperature for each row",
    difficulty=1,
    minutes=20,
    points=3,
    probe=probes.exportable,
    limit_s=60.0,
    hints=(
        "Compute both for every row: the softmax, and the row with a single 1. Then choose with `torch.where`.",
        "`zeros.scatter(-1, index, 1.0)` makes rows with a single 1; `logits.max(-1, keepdim=True).indices` "
        "is the first of the largest.",
        "Where the temperature is 0 the softmax is NaN. `torch.where` does not mind; a sum of products does.",
        (
            "edge cases",
            "What torch.export refuses, it names in its message: a branch on a tensor, or a size that Python "
            "turned into a number.",
        ),
    ),
)


def logs(*probs):
    """Logits of these probabilities."""
    return torch.tensor(probs).log()


@per_row_probs.by_hand
def _():
    rows = torch.stack((logs(0.2, 0.5, 0.3), logs(0.2, 0.5, 0.3)))
    yield call(rows, torch.tensor([1.0, 0.0])), torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]])
    quarter = logs(0.25, 0.5, 0.25)[None]
    yield call(quarter, torch.tensor([0.5])), torch.tensor([[1 / 6, 4 / 6, 1 / 6]])
    ties = torch.tensor([[1.0, 3.0, 3.0], [3.0, 3.0, 1.0]])
    yield call(ties, torch.zeros(2)), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])


@per_row_probs.cases
def _(draw):
    B, V = draw(draws.distinct_sizes(2))
    temperature = draw(st.lists(st.sampled_from((0.0, 0.3, 1.0, 2.0)), min_size=B, max_size=B))
    yield call(draw(draws.tensors((B, V), scale=2.0)), torch.tensor(temperature))


@per_row_probs.edge
def _():
    mixed = torch.tensor([0.0, 0.7, 1.0])
    yield call(normal(3, 3), mixed), "as many rows as tokens"
    yield call(normal(2, 4), torch.zeros(2)), "all rows greedy"
    yield call(normal(2, 4), torch.ones(2)), "no row greedy"
    yield call(normal(1, 5), torch.zeros(1)), "one row"
    yield call(normal(3, 1), mixed), "a vocabulary of one token"
    yield call(draws.scattered(normal(3, 5)), mixed), "not contiguous"
    yield call(normal(3, 5, dtype=F64), mixed), "float64"
    yield call(normal(3, 9, dtype=torch.bfloat16), mixed), "bfloat16"
    close = torch.tensor([[251.0, 252.0]], dtype=torch.bfloat16)
    yield call(close, torch.tensor([0.3])), "bfloat16, in which the quotients would be equal"
    yield call(normal(3, 5), mixed.double()), "temperatures in float64"
    filtered = torch.tensor([[0.5, -INF, 2.0], [-INF, 1.0, -INF], [0.0, 0.0, -INF]])
    yield call(filtered, mixed), "tokens that a filter took out"
    yield call(torch.tensor([[1e4, 1e4 - 1], [1e4, 1e4 - 1], [0.0, 1.0]]), mixed), "huge logits"
    yield call(torch.tensor([[1.0, 1.0001]]), torch.zeros(1)), "two tokens nearly as likely"
    yield call(torch.tensor([[0.0, 1e-9]]), torch.zeros(1)), "a difference smaller than any epsilon"
    yield call(torch.tensor([[1.0, 1.0001]]), torch.tensor([1e-6])), "a tiny temperature"
    yield call(torch.zeros(2, 4), torch.zeros(2)), "all tokens equally likely"
    then = [(normal(4, 5, seed=2), torch.tensor([0.0, 0.5, 0.0, 1.0]))]
    then += [(normal(2, 5, seed=3), torch.zeros(2)), (normal(1, 5, seed=4), torch.ones(1))]
    yield call(normal(3, 5, seed=1), torch.ones(3), then=then, dims=[[0], [0]]), "exported"


CHOSEN = "torch.where(divisor == 0, greedy, (logits / divisor).softmax(-1))"
BRANCH = (
    "Python decides by a value what comes next: an `if` on the temperatures of all rows or of one, or a value "
    "taken out with `.item()`. torch.export records one graph, and cannot know the values that will come. Compute "
    "both for every row, and choose with torch.where."
)
FIXED = (
    "The number of rows has become a constant. A loop over the rows does that, and so does `.tolist()`, or a "
    "number that was read from a shape with `int`: the graph then has as many steps as the example has rows. Work "
    "on all rows at once, with operations on tensors."
)
SMALL = (
    "A small temperature takes the place of 0. Tokens that are equally or nearly as likely then share the "
    "probability, and temperature 0 gives all of it to one."
)
per_row_probs.slips(
    {
        replace(
            "return " + CHOSEN,
            "rows = [g if t == 0 else (x / t).softmax(-1) for x, t, g in zip(logits, divisor, greedy)]\n"
            "    return torch.stack(rows)",
        ): BRANCH,
        replace(
            "return " + CHOSEN,
            "if (temperature == 0).all():\n        return greedy\n    return " + CHOSEN,
        ): BRANCH,
        replace(
            "return " + CHOSEN,
            "if not (temperature == 0).any():\n        return (logits / divisor).softmax(-1)\n"
            "    return " + CHOSEN,
        ): BRANCH,
        replace(
            "return " + CHOSEN,
            "if (temperature == 0).all():\n        return greedy\n    return (logits / divisor).softmax(-1)",
        ): "One branch for the whole batch: where some rows are greedy and others are not, the greedy ones "
        "come out as NaN. Choose row by row, with torch.where.",
        replace(
            "return " + CHOSEN,
            "if (temperature == 0).any():\n        return greedy\n    return (logits / divisor).softmax(-1)",
        ): "One greedy row makes all rows greedy. Choose row by row, with torch.where.",
        replace(
            "return " + CHOSEN,
            "rows = [torch.where(t == 0, g, (x / t).softmax(-1)) for x, t, g in zip(logits, divisor, greedy)]\n"
            "    return torch.stack(rows)",
        ): FIXED,
        replace(
            "temperature.to(logits.dtype)[:, None]",
            "torch.tensor(temperature.tolist(), device=temperature.device, dtype=logits.dtype)[:, None]",
        ): FIXED,
        replace(
            CHOSEN, "(divisor == 0) * greedy + (divisor != 0) * (logits / divisor).softmax(-1)"
        ): "0 · NaN is NaN: where the temperature is 0 the softmax is NaN, and the sum keeps it. torch.where "
        "takes one and forgets the other.",
        replace(CHOSEN, "(logits / divisor.clamp(min=1e-5)).softmax(-1)"): SMALL,
        replace(CHOSEN, "(logits / divisor.clamp(min=1e-8)).softmax(-1)"): SMALL,
        replace(CHOSEN, "(logits / (divisor + 1e-5)).softmax(-1)"): SMALL,
        replace(CHOSEN, "(logits / (divisor + 1e-8)).softmax(-1)"): SMALL,
        replace(
            "temperature.to(logits.dtype)[:, None]", "temperature.to(logits.dtype)"
        ): "(B, V) / (B,) matches the temperatures with the tokens, from the last axis. Give them a second "
        "axis: (B, 1).",
        replace(
            "logits.to(torch.promote_types(logits.dtype, torch.float32))", "logits * 1"
        ): "You compute in the logits' own dtype. In half precision the probabilities are rounded to few bits: "
        "use float32.",
        replace(
            "logits = logits.to(",
            "given = logits.dtype\n    logits = logits.to(",
            "return " + CHOSEN,
            f"return {CHOSEN}.to(given)",
        ): "You turn the result back to the logits' dtype. It is float32, unless they are float64.",
        replace(
            "logits.to(torch.promote_types(logits.dtype, torch.float32))", "logits.float()"
        ): "You compute in float32 what came in float64.",
        replace(
            "temperature.to(logits.dtype)[:, None]", "temperature[:, None]"
        ): "Temperatures in float64 make the result float64. It is float32, unless the logits are float64: cast the "
        "temperatures.",
        replace(
            CHOSEN, "torch.where(divisor == 0, greedy, (logits * divisor).softmax(-1))"
        ): "You multiply by the temperature. The logits are divided by it.",
        replace(
            CHOSEN, "torch.where(divisor == 0, greedy, logits.softmax(-1) / divisor)"
        ): "You divide the probabilities. Divide the logits, then take the softmax.",
        replace(CHOSEN, CHOSEN + ".log()"): "You return logarithms. The result is probabilities.",
        replace(
            CHOSEN, "torch.where(divisor == 0, greedy, (logits / divisor).softmax(0))"
        ): "Your softmax runs over the rows. The tokens are the last axis.",
        replace(
            CHOSEN, "torch.where(divisor == 0, logits, logits / divisor).softmax(-1)"
        ): "Temperature 0 becomes temperature 1. It gives the probability 1 to the likeliest token.",
        replace(
            CHOSEN,
            "torch.where(divisor == 0, (logits == logits.amax(-1, keepdim=True)).to(logits.dtype), "
            "(logits / divisor).softmax(-1))",
        ): "Of equally likely tokens you mark all, so the row sums to more than 1. The one with the smallest "
        "id gets the 1.",
        replace(
            "greedy = torch.zeros_like(logits).scatter(-1, best, 1.0)",
            "likeliest = (logits == logits.amax(-1, keepdim=True)).to(logits.dtype)\n"
            "    greedy = likeliest / likeliest.sum(-1, keepdim=True)",
        ): "Equally likely tokens share the probability in your code. The one with the smallest id gets all of it.",
        replace(
            "best = logits.max(-1, keepdim=True).indices",
            "best = logits.size(-1) - 1 - logits.flip(-1).max(-1, keepdim=True).indices",
        ): "Of equally likely tokens you take the one with the largest id.",
        replace(
            CHOSEN, "torch.where(divisor == 0, greedy, logits.div_(divisor).softmax(-1))"
        ): "You divide in place: the logits are the caller's.",
        replace(
            CHOSEN, "torch.where(divisor <= 0.5, greedy, (logits / divisor).softmax(-1))"
        ): "Small temperatures count as 0 here. Only 0 is greedy.",
    }
)


@per_row_probs.alternative("boolean indexing")
def _(logits, temperature):
    x = logits if logits.dtype == torch.float64 else logits.float()
    probs = torch.softmax(x / temperature.type_as(x).unsqueeze(1), dim=1)
    greedy = temperature == 0
    probs[greedy] = F.one_hot(x.argmax(1), x.shape[1]).type_as(x)[greedy]
    return probs


@per_row_probs.alternative("a divisor that is never zero, and masked_fill")
def _(logits, temperature):
    x = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    t = temperature[:, None].to(x.dtype)
    zero = t == 0
    warm = torch.softmax(x / t.masked_fill(zero, 1), -1).masked_fill(zero, 0)
    first = torch.arange(x.shape[1], device=x.device) == x.argmax(-1, keepdim=True)
    return warm + (first & zero).to(x.dtype)


per_row_probs.equivalent(
    "per_row_probs: `torch.promote_types(logits.dtype, torch.float32)` → "
    "`torch.promote_types(torch.float32, logits.dtype)`",
    because="the wider of two dtypes does not depend on their order",
)
for there, other in (
    ("logits.max(-1, keepdim=True)", "logits.max(1, keepdim=True)"),
    (
        "torch.zeros_like(logits).scatter(-1, best, 1.0)",
        "torch.zeros_like(logits).scatter(1, best, 1.0)",
    ),
    ("(logits / divisor).softmax(-1)", "(logits / divisor).softmax(1)"),
):
    per_row_probs.equivalent(
        f"per_row_probs: `{there}` → `{other}`", because="the last of two axes is axis 1"
    )


# ------------------------------------------------------------------------------ export_dynamic

export_dynamic = Exercise(
    exported.export_dynamic,
    title="One program for all sizes",
    difficulty=2,
    minutes=25,
    points=4,
    probe=probes.program_sizes,
    limit_s=60.0,
    hints=(
        "`dynamic_shapes` is a tuple with one entry for each argument: here one dict from axis to `Dim`. By "
        "place it works whatever the argument is called.",
        "`Dim(name, min=…, max=…)` makes a size that may change. The bounds are checked while exporting, and "
        "when the program is called.",
        "A size of 0 or 1 in the example is taken for a constant. Make the example yourself: `repeat` one token.",
        "`try: … finally:` gives each module its own mode back, even if the export raises.",
        ("edge cases", "A Dim from 1 to 1 is an error: leave such an axis out, and it is fixed."),
    ),
)


def sizes_case(example, max_batch, max_tokens, sizes, positions=None, train=(), seed=0):
    return call(
        example=example,
        max_batch=max_batch,
        max_tokens=max_tokens,
        positions=positions or max(max_tokens, example[1]),
        sizes=list(sizes),
        train=list(train),
        seed=seed,
    )


@export_dynamic.by_hand
def _():
    seen = {"modes afterwards": dict.fromkeys(("the model", "tokens", "positions", "head"), "eval")}
    seen["modes afterwards"]["drop"] = "train"
    seen |= {f"the program on {size} tokens": "refused" for size in ("4 × 2", "3 × 5", "4 × 5")}
    yield sizes_case((1, 1), 3, 4, [(4, 2), (3, 5), (4, 5)], 9, train=["drop"]), seen


@export_dynamic.cases(1)
def _(draw):
    B, T = draw(st.integers(3, 5)), draw(st.integers(3, 6))
    sizes = [(B, 1), (1, T), (B + 1, T), (B, T + 1)]
    yield sizes_case(
        (2, 2), B, T, sizes, T + draw(st.integers(1, 2)), seed=draw(st.integers(0, 99))
    )


@export_dynamic.edge
def _():
    sizes = [(4, 1), (1, 5), (5, 2), (2, 6)]
    yield sizes_case((1, 3), 4, 5, sizes, 9, seed=1), "an example of one row"
    yield sizes_case((3, 1), 4, 5, sizes, 9, seed=2), "an example of one token"
    yield sizes_case((6, 7), 4, 5, sizes, 9, seed=4), "an example larger than the maxima"
    yield sizes_case((2, 3), 1, 5, [(1, 1), (1, 5), (2, 3), (1, 6)], 9, seed=5), "one row at a time"
    yield (
        sizes_case((2, 3), 3, 1, [(1, 1), (3, 1), (2, 2), (4, 1)], 9, seed=6),
        "one token at a time",
    )
    two = [(1, 1), (2, 2), (1, 2), (2, 1), (3, 1), (1, 3)]
    yield sizes_case((2, 3), 2, 2, two, 9, seed=7), "two rows and two tokens at most"
    training = ["", "tokens", "positions", "drop", "head"]
    yield sizes_case((2, 4), 4, 5, sizes, train=training, seed=9), "a model in train mode"


EXAMPLE = "ids[:1, :1].repeat(rows, tokens)"
MADE = "return export(model, (example,), dynamic_shapes=(sizes,))"
RESTORED = "for module, training in modes.items():\n            module.training = training"
ONE_IS_FIXED = (
    "The example that you export with has a size of 1 where ids has one. torch.export takes sizes 0 and 1 for "
    "constants, and refuses the Dim. Make an example of your own, with at least two."
)
ONE_TO_ONE = (
    "A Dim whose least and largest size are both 1 is an error. A maximum of 1 makes the size fixed: leave the axis "
    "out."
)
NO_MAXIMUM = (
    "Dim.AUTO and Dim.DYNAMIC let torch find the range: it does not know your maxima, and more rows or tokens are "
    "taken. Say `Dim(name, max=…)`."
)
IN_ITS_MODE = (
    "The model is exported in the mode in which it comes, or only its own flag is set. In train mode the graph drops "
    "features at random, for good: call model.eval() first, which reaches every submodule."
)
BEYOND = "Your example may be larger than the maxima: such a size is not in the range of its Dim."
export_dynamic.slips(
    {
        replace(EXAMPLE, "ids"): ONE_IS_FIXED,
        replace(EXAMPLE, "ids[:max_batch, :max_tokens]"): ONE_IS_FIXED,
        replace(EXAMPLE, "ids[:1, :max_tokens].repeat(rows, 1)"): ONE_IS_FIXED,
        replace(
            "min(2, max_batch), min(3, max_tokens)", "min(1, max_batch), min(3, max_tokens)"
        ): "Your example has one row. torch.export takes sizes 0 and 1 for constants, and refuses the Dim.",
        replace("min(2, max_batch), min(3, max_tokens)", "2, 3"): BEYOND,
        replace(
            EXAMPLE,
            "ids[: None if max_batch > 1 else 1, : None if max_tokens > 1 else 1]"
            ".repeat(min(2, max_batch), min(2, max_tokens))",
        ): BEYOND,
        replace(
            "min(2, max_batch), min(3, max_tokens)",
            "max(2, len(ids)) if max_batch > 1 else 1, max(2, ids.size(1)) if max_tokens > 1 else 1",
        ): BEYOND,
        replace(
            ", dynamic_shapes=(sizes,)", ""
        ): "Without dynamic_shapes every size of the example is a constant: the program takes no other.",
        replace(
            "dynamic_shapes=(sizes,)",
            "dynamic_shapes=({axis: d for axis, d in sizes.items() if axis == 0},)",
        ): "The number of tokens is fixed. Name a Dim for axis 1, too.",
        replace(
            "dynamic_shapes=(sizes,)",
            "dynamic_shapes=({axis: d for axis, d in sizes.items() if axis == 1},)",
        ): "The number of rows is fixed. Name a Dim for axis 0, too.",
        replace(
            "dynamic_shapes=(sizes,)", "dynamic_shapes=({axis: Dim.AUTO for axis in sizes},)"
        ): NO_MAXIMUM,
        replace(
            "min(2, max_batch), min(3, max_tokens)",
            "2, 3",
            "dynamic_shapes=(sizes,)",
            "dynamic_shapes=((Dim.DYNAMIC, Dim.DYNAMIC),)",
        ): NO_MAXIMUM,
        replace(
            "min=1, max=max_batch", "min=1, max=1024"
        ): "The maximum of the rows is not max_batch.",
        replace(
            "min=1, max=max_tokens", "min=1, max=model.positions.num_embeddings"
        ): "The maximum of the tokens is the model's, not max_tokens.",
        replace(
            "dynamic_shapes=(sizes,)", 'dynamic_shapes={"ids": sizes}'
        ): "You name the model's argument `ids`. It may be called anything: give dynamic_shapes by place, as a tuple.",
        replace("if max_batch > 1:", "if True:", "if max_tokens > 1:", "if True:"): ONE_TO_ONE,
        replace(
            "min(2, max_batch), min(3, max_tokens)",
            "2, 2",
            'if max_batch > 1:\n        sizes[0] = Dim("B", min=1, max',
            'if True:\n        sizes[0] = Dim("B", max',
            'if max_tokens > 1:\n        sizes[1] = Dim("T", min=1, max',
            'if True:\n        sizes[1] = Dim("T", max',
        ): ONE_TO_ONE,
        replace("    model.eval()\n", ""): IN_ITS_MODE,
        replace(
            RESTORED, "model.train()"
        ): "You put the model into train mode afterwards, whatever it was in. Give each module its own mode back.",
        replace(
            RESTORED, "model.train(modes[model])"
        ): "`model.train(mode)` gives all submodules the model's mode. Some were in another: give each its own "
        "back.",
        replace(
            RESTORED, "pass"
        ): "The model stays in eval mode. Give each module its own mode back.",
        replace("model.eval()\n", "model.training = False\n"): IN_ITS_MODE,
        replace(
            MADE, "return export(model, (example,), dynamic_shapes=(sizes,)).module()"
        ): "You return the module that `.module()` makes. The ExportedProgram itself is asked for.",
    }
)


@export_dynamic.alternative("a copy of the model, and names of the arguments")
def _(model, ids, max_batch, max_tokens):
    import copy
    import inspect

    frozen = copy.deepcopy(model).eval()
    (name, *_) = inspect.signature(frozen.forward).parameters
    limits = {0: max_batch, 1: max_tokens}
    free = {
        axis: torch.export.Dim(f"n{axis}", max=most) for axis, most in limits.items() if most > 1
    }
    example = torch.full(
        (min(max_batch, 2), min(max_tokens, 2)), int(ids.flatten()[0]), dtype=ids.dtype
    )
    return torch.export.export(frozen, (example,), dynamic_shapes={name: free})


@export_dynamic.alternative("ids cut and repeated, and Dim.STATIC")
def _(model, ids, max_batch, max_tokens):
    was = [(m, m.training) for m in model.modules()]
    for m, _ in was:
        m.training = False
    x = torch.cat([ids] * max_batch)[:max_batch]
    x = torch.cat([x] * max_tokens, dim=1)[:, :max_tokens]

    def size(n, name):
        return torch.export.Dim.STATIC if n == 1 else torch.export.Dim(name, min=1, max=n)

    shapes = ({0: size(max_batch, "rows"), 1: size(max_tokens, "tokens")},)
    program = torch.export.export(model, (x,), dynamic_shapes=shapes, strict=False)
    for m, mode in was:
        m.training = mode
    return program


for there, others, why in (
    ("min(2, max_batch)", ("min(3, max_batch)",), "any example of two rows or more will do"),
    (
        "min(3, max_tokens)",
        ("min(4, max_tokens)", "min(2, max_tokens)"),
        "any example of two tokens or more will do",
    ),
    (
        "Dim('B', min=1, max=max_batch)",
        ("Dim('B', max=max_batch)",),
        "the least size that a Dim may have is not checked below 2",
    ),
    (
        "Dim('T', min=1, max=max_tokens)",
        ("Dim('T', max=max_tokens)",),
        "the least size that a Dim may have is not checked below 2",
    ),
    ("min=1", ("min=0",), "torch.export takes every Dim for 2 or more, and runs 1 as well"),
):
    for other in others:
        for number in (" [#1]", " [#2]") if there == "min=1" else ("",):
            export_dynamic.equivalent(f"export_dynamic: `{there}` → `{other}`{number}", because=why)


# ------------------------------------------------------------------------------ append_at, visible_at

static_cache = Exercise(
    (exported.append_at, exported.visible_at),
    title="A cache that a graph can hold",
    difficulty=2,
    minutes=30,
    points=4,
    probe=probes.exportable,
    limit_s=60.0,
    hints=(
        "Both begin with the places of the new tokens: `position[:, None] + torch.arange(T)`, of shape (B, T).",
        "`scatter` along axis 2 wants an index of the shape of `new`: (B, 1, T, 1), expanded.",
        "A token sees the places up to its own: compare `torch.arange(capacity)` with the places, on an axis "
        "of its own.",
        (
            "edge cases",
            "Each row has its own position. `position[0]` and `int(position)` are one for all.",
        ),
    ),
)


def at(*positions):
    """Positions, one for each row."""
    return torch.tensor(positions)


@static_cache.by_hand
def _():
    cache = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 4, 1).repeat(2, 1, 1, 1)
    new = torch.tensor([[8.0, 9.0], [6.0, 7.0]]).view(2, 1, 2, 1)
    due = torch.tensor([[1.0, 8.0, 9.0, 4.0], [6.0, 7.0, 3.0, 4.0]]).view(2, 1, 4, 1)
    yield call("append_at", cache, new, at(1, 0)), due
    heads = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 2, 2, 1)
    due = torch.tensor([[0.0, 1.0, 2.0], [0.0, 3.0, 4.0]]).view(1, 2, 3, 1)
    yield call("append_at", torch.zeros(1, 2, 3, 1), heads, at(1)), due
    rows = [[[1, 1, 0, 0], [1, 1, 1, 0]], [[1, 0, 0, 0], [1, 1, 0, 0]]]
    yield call("visible_at", at(1, 0), 2, 4), torch.tensor(rows).bool()[:, None]
    yield call("visible_at", at(2), 1, 3), torch.ones(1, 1, 1, 3, dtype=torch.bool)


@static_cache.cases
def _(draw):
    B, H, T, d = draw(draws.distinct_sizes(4, 1, 5))
    C = T + draw(st.integers(0, 4))
    position = torch.tensor(draw(st.lists(st.integers(0, C - T), min_size=B, max_size=B)))
    if draw(st.booleans()):
        yield call("visible_at", position, T, C)
    else:
        cache, new = draw(draws.tensors((B, H, C, d))), draw(draws.tensors((B, H, T, d)))
        yield call("append_at", cache, new, position)


@static_cache.edge
def _():
    yield (
        call("append_at", normal(3, 3, 3, 3), normal(3, 3, 2, 3, seed=1), at(0, 1, 0)),
        "equal sizes",
    )
    yield (
        call("append_at", normal(2, 3, 4, 2), normal(2, 3, 4, 2, seed=1), at(0, 0)),
        "a full cache at once",
    )
    yield (
        call("append_at", normal(2, 3, 4, 2), normal(2, 3, 1, 2, seed=1), at(3, 0)),
        "the last place",
    )
    scattered = draws.scattered(normal(2, 3, 5, 2)), draws.scattered(normal(2, 3, 2, 2, seed=1))
    yield call("append_at", *scattered, at(3, 1)), "not contiguous"
    heads = normal(2, 2, 3, 4, seed=1).transpose(1, 2)
    yield call("append_at", normal(2, 3, 5, 4), heads, at(3, 1)), "heads that were split off"
    wide = normal(2, 1, 3, 2, dtype=F64), normal(2, 1, 1, 2, dtype=F64, seed=1)
    yield call("append_at", *wide, at(0, 2)), "float64"
    half = (
        normal(2, 1, 3, 2, dtype=torch.bfloat16),
        normal(2, 1, 1, 2, dtype=torch.bfloat16, seed=1),
    )
    yield call("append_at", *half, at(0, 2)), "bfloat16"
    odd = torch.tensor([INF, math.nan, 1.0, -INF]).view(1, 1, 4, 1)
    yield (
        call("append_at", odd, torch.full((1, 1, 1, 1), 5.0), at(1)),
        "infinities and NaN in the cache",
    )
    new = torch.tensor([INF, 5.0]).view(1, 1, 2, 1)
    yield call("append_at", torch.zeros(1, 1, 4, 1), new, at(1)), "an infinity among the new ones"
    yield call("visible_at", at(0, 0, 0), 4, 4), "nothing before: the causal mask"
    yield call("visible_at", at(3, 0, 2), 1, 4), "one token of each row"
    away = "on another device than the default one"
    on_meta = (normal(2, 3, 4, 2), normal(2, 3, 1, 2, seed=1), at(3, 0))
    yield call("append_at", *(x.to("meta") for x in on_meta)), away
    yield call("visible_at", at(1, 2).to("meta"), 2, 4), away
    then = [(normal(2, 3, 9, 4, seed=2), normal(2, 3, 5, 4, seed=3), at(4, 0))]
    then += [(normal(4, 3, 8, 4, seed=4), normal(4, 3, 1, 4, seed=5), at(7, 0, 3, 1))]
    example = normal(3, 3, 7, 4), normal(3, 3, 2, 4, seed=1), at(1, 0, 5)
    free = [[0, 2], [0, 2], [0]]
    yield call("append_at", *example, then=then, dims=free), "exported"
    spaces = [
        (at(4, 0), torch.zeros(5), torch.zeros(9)),
        (at(7, 0, 3, 1), torch.zeros(1), torch.zeros(8)),
    ]
    example = at(1, 0, 5), torch.zeros(2), torch.zeros(7)
    yield call("visible_at", *example, then=spaces, dims=[[0], [0], [0]]), "exported"


WRITTEN = "return cache.scatter(2, place[:, None, :, None].expand(B, H, T, d), new)"
SEEN = "return (torch.arange(capacity, device=device) <= place[:, :, None])[:, None]"
IN_PYTHON = (
    "Python goes through the rows or the tokens one by one, makes numbers of the positions (`.tolist()`, `int`), or "
    "calls what needs sizes as numbers (`torch.take_along_dim`). The graph then has as many steps as the example has "
    "rows or tokens, or holds for its sizes alone, or there is none, as a position is not known. Compute all places as "
    "one tensor, and write to all of them at once, or gather."
)
ONE_FOR_ALL = "You use the first row's position for all rows. Each row has its own."
ELSEWHERE = "Your code makes a tensor on the default device. Make it where `position` is."
static_cache.slips(
    {
        replace(
            SEEN,
            "seen = (torch.arange(capacity, device=device) <= place[:, :, None])[:, None]\n"
            "    return torch.where(seen, 0.0, -torch.inf)",
        ): "Your mask holds what is added to the scores, 0 and −∞. Here it is bool, True where a token may attend.",
        replace(
            SEEN,
            "seen = torch.zeros(len(position), 1, T, capacity, dtype=torch.bool)\n"
            "    for b, p in enumerate(position):\n        for t in range(T):\n"
            "            seen[b, 0, t, : p + t + 1] = True\n    return seen",
        ): IN_PYTHON,
        replace(
            WRITTEN,
            "out = cache.clone()\n    for b, p in enumerate(position.tolist()):\n"
            "        out[b, :, p : p + T] = new[b]\n    return out",
        ): IN_PYTHON,
        replace(
            WRITTEN,
            "out = cache.clone()\n    for b in range(B):\n"
            "        out[b, :, int(position[b]) : int(position[b]) + T] = new[b]\n    return out",
        ): IN_PYTHON,
        replace(
            WRITTEN,
            "out = cache.clone()\n    for b in range(B):\n        out[b, :, place[b]] = new[b]\n    return out",
        ): IN_PYTHON,
        replace(
            WRITTEN,
            "out = cache.clone()\n    for t in range(T):\n        index = place[:, None, t : t + 1, None]\n"
            "        out = out.scatter(2, index.expand(B, H, 1, d), new[:, :, t : t + 1])\n    return out",
        ): IN_PYTHON,
        replace(
            WRITTEN,
            "nth = torch.arange(cache.shape[2], device=cache.device) - position[:, None]\n"
            "    given = torch.take_along_dim(new, nth.clamp(min=0).remainder(T)[:, None, :, None], 2)\n"
            "    return torch.where(((nth >= 0) & (nth < T))[:, None, :, None], given, cache)",
        ): IN_PYTHON,
        replace(
            WRITTEN, WRITTEN.replace("scatter(", "scatter_(")
        ): "You write into the caller's cache. The result is a new tensor.",
        replace(
            WRITTEN, WRITTEN.replace("place[:, None, :, None]", "place[:1, None, :, None]")
        ): ONE_FOR_ALL,
        replace(
            WRITTEN, WRITTEN.replace("d), new)", "d), new.reshape(B, T, H, d).transpose(1, 2))")
        ): "A reshape of `new` keeps the order of its numbers, so tokens and heads are mixed. Exchange the two axes with "
        "a transpose.",
        replace("torch.arange(T, device=position.device)", "torch.arange(T)"): ELSEWHERE,
        replace(
            "torch.arange(T, device=device)",
            "torch.arange(T)",
            "torch.arange(capacity, device=device)",
            "torch.arange(capacity)",
        ): ELSEWHERE,
        replace("torch.arange(T, device=device)", "torch.arange(T)"): ELSEWHERE,
        replace("torch.arange(capacity, device=device)", "torch.arange(capacity)"): ELSEWHERE,
        replace(
            WRITTEN, WRITTEN.replace("cache.scatter", "torch.zeros_like(cache).scatter")
        ): "All other places are zero. They keep what the cache holds.",
        replace(
            WRITTEN,
            "return cache.scatter_add(2, place[:, None, :, None].expand(B, H, T, d), new)",
        ): "You add the new ones to what stands in their places. They replace it.",
        replace(
            WRITTEN,
            "here = torch.zeros_like(cache).scatter(2, place[:, None, :, None].expand(B, H, T, d), 1.0)\n"
            "    full = torch.zeros_like(cache).scatter(2, place[:, None, :, None].expand(B, H, T, d), new)\n"
            "    return cache * (1 - here) + full",
        ): "Multiplying by 0 does not clear infinities and NaN, which are in memory that nobody has filled. "
        "Write over them.",
        replace(
            WRITTEN,
            "one = torch.arange(cache.size(2), device=cache.device)[:, None] == place[:, None]\n"
            "    picked = one[:, None].to(new.dtype) @ new\n"
            "    return torch.where(one.any(-1)[:, None, :, None], picked, cache)",
        ): "You pick the new ones by a product with ones and zeros. 0 times an infinity is NaN: write them to their "
        "places, or gather them.",
        replace(
            WRITTEN, "return torch.cat((cache, new), dim=2)"
        ): "You make the cache longer. It has C places, and the new ones stand in some of them.",
        replace(
            WRITTEN,
            WRITTEN.replace(
                "place[:, None, :, None]", "(place - 1).clamp(min=0)[:, None, :, None]"
            ),
        ): "You write one place too early. With `position` places filled, counted from 0, the next is place "
        "`position`.",
        replace(
            SEEN, SEEN.replace("<=", "<")
        ): "A token does not see itself here. Its own place counts, too.",
        replace(
            SEEN, SEEN.replace("<=", ">")
        ): "Your mask is True where a token must not attend. It is True where it may.",
        replace(
            SEEN, SEEN.replace("place[:, :, None])[:, None]", "place[:, :, None])")
        ): "The axis of the heads is missing: (B, 1, T, capacity).",
        replace(
            SEEN, SEEN.replace("place[:, :, None]", "(place[:1] + 0 * place)[:, :, None]")
        ): ONE_FOR_ALL,
        replace(
            SEEN,
            "last = position[:, None, None] + T - 1\n"
            "    return (torch.arange(capacity, device=device) <= last.expand(-1, T, 1))[:, None]",
        ): "All new tokens see all new tokens. Each sees the places up to its own.",
        replace(
            SEEN,
            "return (torch.arange(capacity, device=device) <= torch.arange(T, device=device)[:, None])"
            ".expand(len(position), 1, T, capacity)",
        ): "You count from place 0, whatever was filled before. The new tokens stand behind the row's position.",
        replace(
            SEEN,
            "return (torch.arange(capacity, device=device) < position[:, None, None]).expand(-1, T, -1)[:, None]",
        ): "The new tokens see what was there before, and not one another, nor themselves.",
        replace(SEEN, SEEN + ".float()"): "The mask's dtype is float32. It is bool.",
        replace(
            SEEN,
            "rows = [torch.arange(capacity) <= p for p in place.flatten().tolist()]\n"
            "    return torch.stack(rows).view(len(position), 1, T, capacity)",
        ): IN_PYTHON,
        replace(
            SEEN,
            "full = torch.ones(capacity, capacity, dtype=torch.bool).tril()\n"
            "    rows = [full[p : p + T] for p in position.tolist()]\n"
            "    return torch.stack(rows)[:, None]",
        ): IN_PYTHON,
    }
)


def append_at(cache, new, position):
    out = cache.clone()
    rows = torch.arange(cache.shape[0], device=position.device)[:, None]
    places = position.unsqueeze(1) + torch.arange(new.shape[2], device=position.device)
    out[rows, :, places] = new.permute(0, 2, 1, 3)
    return out


def visible_at(position, T, capacity):
    key = torch.arange(capacity, device=position.device).view(1, 1, 1, capacity)
    query = torch.arange(T, device=position.device).view(1, 1, T, 1)
    return key - query <= position.view(-1, 1, 1, 1)


static_cache.alternative("index_put, and comparisons on four axes")(append_at, visible_at)


def gathered(cache, new, position):
    """For each place of the cache, which new token stands there, or what was there."""
    which = torch.arange(cache.shape[2], device=position.device)[None] - position[:, None]
    fresh = (which >= 0) & (which < new.shape[2])
    index = which.clamp(0, new.shape[2] - 1)[:, None, :, None].expand_as(cache)
    return torch.where(fresh[:, None, :, None], new.gather(2, index), cache)


def tall(position, T, capacity):
    """Ones below a diagonal, shifted for each row."""
    device = position.device
    distance = torch.arange(capacity, device=device) - torch.arange(T, device=device)[:, None]
    return (distance[None, None] - position[:, None, None, None]) <= 0


static_cache.alternative("a gather, and a distance")(gathered, tall)

# ------------------------------------------------------------------------------ assert_onnx_parity

assert_onnx_parity = Exercise(
    exported.assert_onnx_parity,
    title="The same in another runtime?",
    difficulty=2,
    minutes=25,
    points=4,
    probe=probes.compared,
    hints=(
        "`dict(zip(names, arrays))` is what a session is fed with; `session.run(None, feeds)[0]` is its output.",
        "A comparison with NaN is False. So ask whether all elements are near enough, not whether one is too far.",
        "Look at shape and dtype first: (1, 3) minus (2, 3) is no error.",
        "`x.numpy()` shares memory with x.",
        (
            "edge cases",
            "inf − inf is NaN. `torch.where(ours == theirs, 0.0, …)` deals with what is equal.",
        ),
    ),
)


def parity_case(*inputs, session=(), names=("x",), **more):
    """Cases for a function of so many inputs; session: what is wrong in each of its calls."""
    cases = [[one] if isinstance(one, torch.Tensor) else list(one) for one in inputs]
    return call(inputs=cases, session=list(session), names=list(names), **more)


def off(x, place, by):
    """Zeros like x, but for one element."""
    delta = torch.zeros_like(x)
    delta.view(-1)[place] = by
    return delta


ONE, TWO = torch.tensor([[1.0, -2.0]]), torch.tensor([[4.0, 0.0, 1.0], [0.5, 3.0, -1.0]])
FAILS = {"raises": "AssertionError"}


@assert_onnx_parity.by_hand
def _():
    yield (
        parity_case(ONE, session=[off(ONE, 1, 2.0)], atol=0.5, rtol=0.0),
        FAILS,
    )
    yield (
        parity_case(ONE, session=[off(ONE, 1, 0.25)], atol=0.5, rtol=0.0),
        {
            "raises": "nothing",
            "the largest difference": 0.25,
            "the model was called with": [[ONE]],
            "the session was fed with": [[ONE]],
        },
    )
    yield parity_case(ONE, TWO, session=[None, off(TWO, 5, -2.0)]), FAILS
    yield parity_case(ONE, session=[off(ONE, 0, math.nan)]), FAILS
    yield parity_case(), {"raises": "ValueError", "calls before the error": 0}


@assert_onnx_parity.cases
def _(draw):
    cases = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        cases.append(draw(draws.tensors(shape, torch.int64)).float() / 4)
    which = draw(st.integers(0, len(cases) - 1))
    by = draw(st.sampled_from((0.0, 2**-12, -(2**-12), 0.25, -0.25, 8.0, -8.0)))
    place = draw(st.integers(0, cases[which].numel() - 1))
    session = [off(x, place, by) if n == which else None for n, x in enumerate(cases)]
    tolerances = draw(
        st.sampled_from(({}, {"atol": 1.0, "rtol": 0.0}, {"atol": 0.0, "rtol": 2**-11}))
    )
    yield parity_case(*cases, session=session, **tolerances)


@assert_onnx_parity.edge
def _():
    small = {"atol": 0.5, "rtol": 0.0}
    yield parity_case(TWO, session=["one row"]), "one row, which would broadcast"
    same = torch.ones(2, 3)
    yield parity_case(same, session=["one row"]), "one row of equal rows"
    yield parity_case(same, session=["one more axis"]), "one more axis"
    yield parity_case(same, session=["float64"]), "another dtype, equal values"
    yield parity_case(same, session=["float16"]), "half precision, equal values"
    yield parity_case(normal(3, 3), session=["transposed"]), "transposed"
    yield (
        parity_case(TWO, ONE, session=[off(TWO, 0, -2.0), None]),
        "the first case is wrong, the last right",
    )
    yield (
        parity_case(ONE, TWO, session=[off(ONE, 0, 0.5), off(TWO, 3, 0.25)], **small),
        "the larger one first",
    )
    yield parity_case(ONE, session=[off(ONE, 0, 0.5)], **small), "just the tolerance"
    yield parity_case(ONE, session=[off(ONE, 0, -0.5)], **small), "just the tolerance, below"
    relative = {"atol": 0.0, "rtol": 0.25}
    eight = torch.tensor([[4.0]])  # the function gives 8
    yield (
        parity_case(eight, session=[off(eight, 0, 2.0)], **relative),
        "8 and 10, a quarter allowed",
    )
    yield (
        parity_case(eight, session=[off(eight, 0, 2.5)], **relative),
        "8 and 10.5, a quarter of 8 allowed",
    )
    yield (
        parity_case(-eight, session=[off(eight, 0, 2.0)], **relative),
        "−8 and −6, a quarter allowed",
    )
    both = {"atol": 0.5, "rtol": 0.125}
    yield (
        parity_case(eight, session=[off(eight, 0, 1.5)], **both),
        "8 and 9.5: absolute and relative together",
    )
    yield parity_case(eight, session=[off(eight, 0, 1.625)], **both), "8 and 9.625: too far"
    many = torch.zeros(40, 50)
    yield parity_case(many, session=[off(many, 777, 4.0)], **small), "one of 2,000 elements"
    masked = torch.tensor([[0.5, -INF, INF]])
    yield parity_case(masked, session=[None]), "equal infinities"
    yield (
        parity_case(masked, session=[torch.tensor([[0.0, 0.0, -INF]])]),
        "NaN in place of an infinity",
    )
    yield (
        parity_case(torch.tensor([[1.0, 2.0]]), session=[off(ONE, 0, INF)]),
        "infinity in place of 2",
    )
    finite = parity_case(torch.tensor([[INF, 2.0]]), session=[None])
    yield finite, "an infinity of both"
    endless = torch.tensor([[INF, -INF]])
    yield parity_case(endless, session=["negated"]), "infinities of opposite sign"
    yield parity_case(torch.tensor([[INF, 2.0]]), session=["finite"]), "a number for an infinity"
    bytes_ = torch.tensor([[1, 2]], dtype=torch.uint8)
    one_more = torch.tensor([[0, 1]], dtype=torch.uint8)
    yield parity_case(bytes_, session=[one_more], atol=1.0, rtol=0.0), "uint8: 4 and 5, 1 allowed"
    yield parity_case(bytes_, session=[one_more], atol=0.5, rtol=0.0), "uint8: 4 and 5, 0.5 allowed"
    wide = normal(2, 3, dtype=F64)
    yield (
        parity_case(wide, session=[off(wide, 2, 2**-30)], atol=0.0, rtol=0.0),
        "float64: a difference that float32 rounds away",
    )
    half = torch.tensor([[0.25]]).half()
    yield (
        parity_case(half, session=[off(half, 0, 2048.0)], atol=4096.0, rtol=0.0),
        "float16: 0.5 and 2048, whose difference float16 cannot hold",
    )
    yield (
        parity_case(16 * half, session=[off(half, 0, 2**-7)]),
        "float16: 8 and the number after it",
    )
    nan = torch.tensor([[1.0, math.nan]])
    yield parity_case(nan, session=[None]), "NaN on both sides"
    yield parity_case(normal(0, 4), session=[None]), "no elements"
    yield (
        parity_case(normal(0, 4), ONE, session=[None, off(ONE, 0, 0.25)], **small),
        "no elements in one case",
    )
    yield parity_case(TWO, TWO, session=[None, None], stream=True), "cases from a generator"
    two = {"names": ("tokens", "mask")}
    yield parity_case((ONE, ONE + 1), session=[None], **two), "two inputs"
    yield (
        parity_case((ONE, ONE + 1), (TWO, TWO - 1), session=[None, off(TWO, 4, 1.0)], **two),
        "two inputs, wrong",
    )
    yield parity_case((ONE, ONE + 1), session=[None]), "more tensors than inputs"
    yield parity_case((ONE, ONE), (ONE,), session=[None], **two), "fewer tensors than inputs, later"
    yield parity_case(ONE, session=[None], names=("input.7",)), "an input of another name"
    yield parity_case(ONE, session=[None], grad=True), "parameters that record gradients"
    yield (
        parity_case(ONE.clone().requires_grad_(), session=[None]),
        "an input that records gradients",
    )
    yield (
        parity_case(ONE, TWO, session=[None, None], writes="model"),
        "a model that writes into its argument",
    )
    yield (
        parity_case(ONE, TWO, session=[None, None], writes="session"),
        "a session that writes into its arrays",
    )
    yield parity_case(normal(3, 4).T, session=[None]), "not contiguous"
    yield parity_case(normal(2, 3, dtype=F64), session=[None]), "float64 on both sides"


WRONG = "wrong = ~(apart <= atol + rtol * x.abs()) | apart.isinf()"
APART = "apart = torch.where(x == y, 0.0, (x - y).abs())"
SHARES_MEMORY = (
    "`.numpy()` shares memory with the tensor: what the model or the session writes into its arguments, the other and "
    "the caller see. Give each a copy."
)
NAN_PASSES = (
    "NaN passes: every comparison with NaN is False, so none is *greater* than the tolerance. Ask whether all are "
    "within it."
)
RAISED = "if wrong.any():"
SHAPES = "if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):"
CHECKED = "if not cases or any(len(given) != len(names) for given in cases):"
NEVER = "It does not raise where the outputs differ. A check that cannot fail checks nothing: raise AssertionError."
assert_onnx_parity.slips(
    {
        replace(RAISED, "if False:"): NEVER,
        replace(WRONG, "wrong = apart > atol + rtol * x.abs()"): NAN_PASSES,
        replace(WRONG, "wrong = (apart > atol + rtol * x.abs()) | apart.isinf()"): NAN_PASSES,
        replace(
            WRONG,
            "wrong = (apart > atol + rtol * x.abs()) | ((x.isinf() | y.isinf()) & (x != y))",
        ): NAN_PASSES,
        replace(
            WRONG, "wrong = ~(apart.nan_to_num() <= atol + rtol * x.abs())"
        ): "You count NaN as no difference.",
        replace(
            RAISED, "if wrong.any() and number == 0:"
        ): "Only the first case can fail. All of them are to be compared.",
        replace(
            RAISED, "if wrong.any() and number == len(cases) - 1:"
        ): "Only the last case can fail. Check inside of the loop.",
        replace(
            RAISED, "if wrong.all():"
        ): "It raises only if every element differs. One is enough.",
        replace(
            RAISED, "if apart.numel() and not apart.mean() <= atol + rtol * x.abs().mean():"
        ): "You compare means: one wrong element among many vanishes in them.",
        replace(
            APART, "apart = torch.where(x == y, 0.0, x - y)"
        ): "The difference has a sign: a session's value that is too large passes. Take the magnitude.",
        replace(
            "rtol * x.abs()", "rtol * y.abs()"
        ): "The relative tolerance is taken of the session's values. It is of the model's, which is what the "
        "other is judged by.",
        replace("rtol * x.abs()", "rtol"): "rtol is a share of the model's value: multiply by it.",
        replace(
            "rtol * x.abs()", "rtol * x"
        ): "A negative value makes the tolerance negative. It is rtol times the magnitude.",
        replace(
            "atol + rtol * x.abs()", "torch.maximum(torch.tensor(atol), rtol * x.abs())"
        ): "The tolerances add up: atol + rtol · |model's|.",
        replace(
            "~(apart <= atol", "~(apart < atol"
        ): "A difference of just the tolerance is allowed: ≤.",
        replace(
            SHAPES, "if False:"
        ): "Shape and dtype are not compared: an output of one row is broadcast, and "
        "float64 passes for float32.",
        replace(
            SHAPES, "if ours.dtype != theirs.dtype:"
        ): "Shapes are not compared: an output of one row is broadcast against the model's.",
        replace(
            SHAPES, "if ours.shape != theirs.shape:"
        ): "dtypes are not compared: a session that computes in another precision passes.",
        replace(
            APART, "apart = (x - y).abs()"
        ): "inf − inf is NaN: equal infinities, which a mask puts into logits, count as different.",
        replace(
            APART, "apart = torch.where((x == y) | (x.isinf() & y.isinf()), 0.0, (x - y).abs())"
        ): "Two infinities pass, whatever their signs. An infinity is the same only as one of its own sign.",
        replace(
            "x, y = ours.double(), theirs.double()", "x, y = ours, theirs"
        ): "You subtract in the outputs' own dtype. uint8 has no sign, so 4 − 5 is 255 there: subtract in float64.",
        replace(
            "x, y = ours.double(), theirs.double()", "x, y = ours.float(), theirs.float()"
        ): "You subtract in float32, which rounds small differences of float64 away: subtract in float64.",
        replace(
            "x, y = ours.double(), theirs.double()",
            "x, y = ours, theirs\n"
            "        if not x.is_floating_point():\n"
            "            x, y = x.double(), y.double()",
        ): "You subtract float16 in float16, which rounds the difference: subtract in float64.",
        replace(
            RAISED,
            "if ours.dtype is torch.float16:\n"
            "            wrong = ~(apart <= max(atol, 1e-5) + max(rtol, 1e-3) * x.abs())\n"
            "        " + RAISED,
        ): "You widen the tolerances for float16. They are those that are given, whatever the dtype.",
        replace(
            "| apart.isinf()", "| (x.isinf() & y.isinf() & (x != y))"
        ): "Where the model has an infinity any number passes: rtol times an infinity is one, too. An infinity equals "
        "only an infinity of its own sign.",
        replace(
            WRONG, "wrong = ~(apart <= atol + rtol * x.abs()) & ~(x.isnan() & y.isnan())"
        ): "NaN on both sides passes. It is the same as nothing.",
        replace(
            CHECKED, "if any(len(given) != len(names) for given in cases):"
        ): "No case at all passes. Nothing was compared then: raise ValueError.",
        replace(
            CHECKED, "if not cases:", "strict=True)))[0])", "strict=False)))[0])"
        ): "A case with more or fewer tensors than the session has inputs is taken: zip stops at the shorter one.",
        replace(
            "cases, names = list(cases), [", "names = ["
        ): "You go through the cases twice. A generator is used up by the first time, and nothing is compared: make "
        "a list of them.",
        replace(
            "largest = max(largest, float(apart.max()))", "largest = float(apart.max())"
        ): "You return the largest difference of the last case. It is that of all cases.",
        replace(
            "return largest", "return None"
        ): "Nothing is returned. The result is the largest difference.",
        replace(
            "max(largest, float(apart.max()))", "max(largest, float(apart.mean()))"
        ): "You return a mean. The result is the largest difference.",
        replace(
            "dict(zip(names, arrays, strict=True))", 'dict(zip(["x", "y"], arrays))'
        ): "You made up the names of the inputs. The session knows them: `[i.name for i in session.get_inputs()]`.",
        replace(
            "arrays = [x.detach().cpu().clone().numpy() for x in given]",
            "arrays = [x.detach().cpu().numpy() for x in given]",
        ): SHARES_MEMORY,
        replace(
            "arrays = [x.detach().cpu().clone().numpy() for x in given]",
            "arrays = [x.detach().cpu().numpy() for x in given]",
            "ours = model(*(x.clone() for x in given)).cpu()",
            "ours = model(*given).cpu()",
        ): SHARES_MEMORY,
        replace(
            "        with torch.no_grad():\n            ours = model(*(x.clone() for x in given)).cpu()\n",
            "        ours = torch.from_numpy(model(*(x.clone() for x in given)).numpy())\n",
        ): "The model's output records gradients, and `.numpy()` refuses it. Call the model in torch.no_grad().",
        replace(
            "        with torch.no_grad():\n            ours = model(*(x.clone() for x in given)).cpu()\n",
            "        ours = model(*(x.clone() for x in given)).detach().cpu()\n",
        ): "You detach the output, but a graph was recorded before, with all activations. Call the model in "
        "torch.no_grad().",
        replace(
            'raise AssertionError(\n                f"case {number}: {int(wrong',
            'raise ValueError(\n                f"case {number}: {int(wrong',
        ): "You raise ValueError where the outputs differ. AssertionError is asked for.",
    }
)


@assert_onnx_parity.mistake(NEVER)
def _(model, session, cases, rtol=1e-4, atol=1e-4):
    cases, names = list(cases), [i.name for i in session.get_inputs()]
    if not cases or any(len(c) != len(names) for c in cases):
        raise ValueError("cases")
    largest = 0.0
    for case in cases:
        with torch.no_grad():
            a = model(*(x.clone() for x in case))
        b = session.run(
            None, {n: x.detach().clone().numpy() for n, x in zip(names, case, strict=True)}
        )[0]
        b = torch.from_numpy(b)
        torch.allclose(
            a, b, rtol=rtol, atol=atol
        ) if a.shape == b.shape and a.dtype == b.dtype else None
        if a.shape == b.shape and a.numel():
            largest = max(largest, float(torch.where(a == b, 0.0, (a - b).abs()).max()))
    return largest


@assert_onnx_parity.mistake(NEVER)
def _(model, session, cases, rtol=1e-4, atol=1e-4):
    same = True
    for case in cases:
        feeds = {i.name: x.numpy() for i, x in zip(session.get_inputs(), case, strict=False)}
        got = torch.from_numpy(session.run(None, feeds)[0])
        same = same and torch.allclose(model(*case), got, rtol=rtol, atol=atol)
    return same


@assert_onnx_parity.mistake(
    "Shapes are lost: you put all elements into one row before you compare, and outputs of another shape pass."
)
def _(model, session, cases, rtol=1e-4, atol=1e-4):
    cases, names = list(cases), [i.name for i in session.get_inputs()]
    if not cases or any(len(c) != len(names) for c in cases):
        raise ValueError("cases")
    ours, theirs = [], []
    for case in cases:
        feeds = {n: x.detach().clone().numpy() for n, x in zip(names, case, strict=True)}
        theirs.append(torch.from_numpy(session.run(None, feeds)[0]).flatten())
        with torch.no_grad():
            ours.append(model(*(x.clone() for x in case)).flatten())
    a, b = torch.cat(ours), torch.cat(theirs)
    torch.testing.assert_close(b, a, rtol=rtol, atol=atol)
    apart = torch.where(a == b, 0.0, (a - b).abs())
    return float(apart.max()) if apart.numel() else 0.0


@assert_onnx_parity.mistake(
    "np.testing.assert_allclose is not this comparison: it takes NaN on both sides for equal, broadcasts, and does "
    "not look at dtypes. And with no case at all nothing is compared."
)
def _(model, session, cases, rtol=1e-4, atol=1e-4):
    import numpy as np

    worst = 0.0
    for case in cases:
        feeds = {i.name: x.numpy() for i, x in zip(session.get_inputs(), case, strict=False)}
        got = session.run(None, feeds)[0]
        with torch.no_grad():
            want = model(*case).numpy()
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        worst = max(worst, float(np.abs(got - want).max()))
    return worst


@assert_onnx_parity.alternative("torch.testing.assert_close")
def _(model, session, cases, rtol=1e-4, atol=1e-4):
    cases = [tuple(case) for case in cases]
    names = [one.name for one in session.get_inputs()]
    if len(cases) == 0:
        raise ValueError("nothing to compare")
    for case in cases:
        if len(case) != len(names):
            raise ValueError(f"{len(case)} tensors for {len(names)} inputs")
    differences = [0.0]
    for case in cases:
        feeds = {name: x.detach().numpy().copy() for name, x in zip(names, case, strict=True)}
        with torch.inference_mode():
            ours = model(*[x.detach().clone() for x in case])
        (theirs,) = session.run(None, feeds)
        theirs = torch.from_numpy(theirs)
        torch.testing.assert_close(theirs, ours, rtol=rtol, atol=atol)
        far = (ours.double() - theirs.double()).abs()
        differences += far[~far.isnan()].flatten().tolist()
    return max(differences)


@assert_onnx_parity.alternative("NumPy")
def _(model, session, cases, rtol=1e-4, atol=1e-4):
    import numpy as np

    cases = list(cases)
    names = [i.name for i in session.get_inputs()]
    if not cases or {len(c) for c in cases} != {len(names)}:
        raise ValueError("cases")
    worst = 0.0
    for case in cases:
        with torch.no_grad():
            want = model(*map(torch.clone, case)).numpy()
        got = session.run(
            None, dict(zip(names, (x.detach().numpy().copy() for x in case), strict=True))
        )[0]
        assert want.shape == got.shape, (want.shape, got.shape)
        assert want.dtype == got.dtype, (want.dtype, got.dtype)
        assert np.isclose(got, want, rtol=rtol, atol=atol).all()
        want, got = want.astype(float), got.astype(float)
        if want.size:
            with np.errstate(invalid="ignore"):
                worst = max(worst, float(np.where(want == got, 0.0, np.abs(want - got)).max()))
    return worst


for there, other, why in (
    ("x.detach().cpu()", "x.detach()", "the cases are on the CPU"),
    (
        "model(*(x.clone() for x in given)).cpu()",
        "model(*(x.clone() for x in given))",
        "the cases, and so the outputs, are on the CPU",
    ),
    (
        "session.run(None, dict(zip(names, arrays, strict=True)))[0]",
        "session.run(None, dict(zip(names, arrays, strict=True)))[-1]",
        "a session of one output has a first that is its last",
    ),
    ("zip(names, arrays, strict=True)", "zip(names, arrays)", "the lengths were compared before"),
    ("strict=True", "strict=False", "the lengths were compared before"),
    ("ours.double()", "ours", "the other one makes the difference float64"),
    ("theirs.double()", "theirs", "the other one makes the difference float64"),
):
    assert_onnx_parity.equivalent(f"assert_onnx_parity: `{there}` → `{other}`", because=why)


# ------------------------------------------------------------------------------ hf_state_dict

hf_state_dict = Exercise(
    exporting.hf_state_dict,
    key="export_and_serving.hf_state_dict",
    title="Weights as others name them",
    difficulty=1,
    minutes=15,
    points=2,
    probe=probes.renamed,
    hints=(
        "Four names of a block's weights end in what is to be transposed. Which?",
        "`c_proj.weight` of the attention is square: transposed or not, its shape is the same.",
        "`.mT` is a view, and not contiguous.",
        ("edge cases", "`lm_head.weight` may be missing already. Its absence is no error."),
    ),
)


def gpt2_weights(V, C, D, L=1, dtype=torch.float32, seed=0, first=0, head=True):
    """A GPT2's weights by name; the numbers are random."""
    shapes = {"wte.weight": (V, D), "wpe.weight": (C, D)}
    for n in range(first, first + L):
        linear = {
            "attn.c_attn": (3 * D, D),
            "attn.c_proj": (D, D),
            "mlp.c_fc": (4 * D, D),
            "mlp.c_proj": (D, 4 * D),
        }
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{n}.{norm}.{part}": (D,) for part in ("weight", "bias")}
        for name, shape in linear.items():
            shapes |= {f"h.{n}.{name}.weight": shape, f"h.{n}.{name}.bias": shape[:1]}
    shapes |= {"ln_f.weight": (D,), "ln_f.bias": (D,)}
    generator = torch.Generator().manual_seed(seed)
    weights = {
        f"transformer.{name}": torch.randn(shape, generator=generator).to(dtype)
        for name, shape in shapes.items()
    }
    return weights | ({"lm_head.weight": weights["transformer.wte.weight"]} if head else {})


@hf_state_dict.by_hand
def _():
    two, three = (
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    )
    square, tall = "transformer.h.0.attn.c_proj.weight", "transformer.h.0.mlp.c_fc.weight"
    given = {"transformer.wte.weight": three, tall: three, square: two, "lm_head.weight": three}
    due = {"transformer.wte.weight": three, tall: three.T.contiguous(), square: two.T.contiguous()}
    yield (
        call(given, torch.float32),
        {"names": sorted(due), "tensors": due, "not contiguous": []},
    )
    bias = {"transformer.h.0.attn.c_proj.bias": torch.tensor([1.0, 1 + 2**-12])}
    short = {name: x.half() for name, x in bias.items()}
    yield call(bias), {"names": sorted(short), "tensors": short, "not contiguous": []}


@hf_state_dict.cases(16)
def _(draw):
    V, C, D = draw(draws.distinct_sizes(3, 2, 5))
    dtype = draw(st.sampled_from((torch.float32, torch.float16, torch.bfloat16)))
    yield call(gpt2_weights(V, C, D, seed=draw(st.integers(0, 99))), dtype)


@hf_state_dict.edge
def _():
    yield (
        call(gpt2_weights(4, 4, 4, seed=1), torch.float32),
        "as many tokens and positions as features",
    )
    yield call(gpt2_weights(5, 3, 2, head=False), torch.float32), "no head"
    yield call(gpt2_weights(5, 3, 2, L=2, first=9), torch.float32), "blocks 9 and 10"
    yield call(gpt2_weights(5, 3, 2)), "float16 by default"
    yield call(gpt2_weights(5, 3, 2, dtype=F64), F64), "float64"
    yield (
        call(gpt2_weights(5, 3, 2, dtype=torch.bfloat16), torch.float32),
        "from bfloat16 to float32",
    )
    yield call({}, torch.float32), "no weights"
    scattered = {
        name: draws.scattered(x) for name, x in gpt2_weights(5, 3, 2).items() if x.ndim == 2
    }
    yield call(scattered, torch.float32), "not contiguous"


CONTIGUOUS = "Some of your tensors are not contiguous: safetensors refuses them. Add `.contiguous()` after the transposition."
EMBEDDINGS = "You transpose every matrix. The embeddings `wte` and `wpe` stay as they are."
SQUARE = "The attention's `c_proj.weight` stays as it is. It is square, so no shape tells; it is transposed all the same."
TURNED = "(x.mT if name.endswith(linear) else x).to(dtype).contiguous()"
hf_state_dict.slips(
    {
        replace(
            TURNED, "x.to(dtype).contiguous()"
        ): "Nothing is transposed. The linear layers of a block are (in, "
        "out) in the published files.",
        replace(TURNED, "(x.mT if x.ndim == 2 else x).to(dtype).contiguous()"): EMBEDDINGS,
        replace(
            TURNED, '(x.mT if x.ndim == 2 and "wte" not in name else x).to(dtype).contiguous()'
        ): EMBEDDINGS,
        replace(
            TURNED,
            "(x.mT if name.endswith(linear) and x.size(0) != x.size(1) else x).to(dtype).contiguous()",
        ): SQUARE,
        replace(
            TURNED,
            '(x.mT if name.endswith(("c_attn.weight", "c_fc.weight")) else x).to(dtype).contiguous()',
        ): "`c_proj` is missing, of the attention and of the MLP.",
        replace(
            TURNED,
            '(x.mT if name.endswith(("c_attn.weight", "c_fc.weight", "mlp.c_proj.weight")) else x)'
            ".to(dtype).contiguous()",
        ): SQUARE,
        replace(
            TURNED,
            '(x.mT if name.endswith(("c_attn.weight", "c_fc.weight", "attn.c_proj.weight")) else x)'
            ".to(dtype).contiguous()",
        ): "The MLP's `c_proj` is missing.",
        replace(TURNED, "(x.mT if name.endswith(linear) else x).to(dtype)"): CONTIGUOUS,
        replace(
            TURNED, "(x.contiguous().mT if name.endswith(linear) else x.contiguous()).to(dtype)"
        ): CONTIGUOUS,
        replace(
            TURNED,
            "(x.reshape(x.shape[::-1]) if name.endswith(linear) else x).to(dtype).contiguous()",
        ): "`reshape` to the other shape keeps the order of the numbers: rows do not become columns. Transpose.",
        replace(".to(dtype)", ".half()"): "Your dtype is float16, whatever is asked for.",
        replace(".to(dtype)", ""): "The tensors keep their own dtype. Cast them to `dtype`.",
        replace(
            'if name != "lm_head.weight"', "if True"
        ): "The head is still there. It is the embedding's weight, and safetensors refuses a tensor under two names.",
        replace(
            'if name != "lm_head.weight"', 'if name != "transformer.wte.weight"'
        ): "You leave out the embedding. The file keeps `transformer.wte.weight`, and not `lm_head.weight`.",
        replace(
            "name: (x.mT", 'name.removeprefix("transformer."): (x.mT'
        ): "The names stay: with the prefix `transformer.`.",
        replace(
            "    return {",
            '    weights = dict(weights)\n    del weights["lm_head.weight"]\n    return {',
        ): "Your code raises where there is no `lm_head.weight`. It may have been left out already.",
    }
)


@hf_state_dict.mistake(
    "You remove the head from the caller's dict. Make a new dict, and leave the argument as it is."
)
def _(weights, dtype=torch.float16):
    weights.pop("lm_head.weight", None)
    return exporting.hf_state_dict(weights, dtype)


@hf_state_dict.alternative("a loop, and the last two parts of a name")
def _(weights, dtype=torch.float16):
    out = {}
    for name, tensor in dict(weights).items():
        if name.startswith("lm_head"):
            continue
        parts = name.split(".")
        linear = parts[-1] == "weight" and parts[-2] in {"c_attn", "c_proj", "c_fc"}
        out[name] = torch.empty_like(tensor.T if linear else tensor, dtype=dtype).contiguous()
        if linear:
            out[name] = tensor.detach().t().type(dtype).clone(memory_format=torch.contiguous_format)
        else:
            out[name] = tensor.detach().type(dtype).clone(memory_format=torch.contiguous_format)
    return out


# ------------------------------------------------------------------------------ latency_percentiles

latency_percentiles = Exercise(
    serving.latency_percentiles,
    key="export_and_serving.latency_percentiles",
    title="How long users wait",
    difficulty=1,
    minutes=15,
    points=2,
    hints=(
        "Collect two flat lists first: one wait for each request that got a token, and all gaps between tokens "
        "that follow each other in one request.",
        "Sort the values. The smallest value that p % of n do not exceed stands at rank p · n / 100, rounded up, "
        "counted from 1.",
        "`-(-a // b)` is a / b rounded up, without a float on the way.",
        (
            "edge cases",
            "A request without tokens has no wait; one with a single token has no gap. Where there is no value "
            "at all, the percentile is NaN.",
        ),
    ),
)


@latency_percentiles.by_hand
def _():
    yield (
        call([0.0, 1.0], [[2.0, 3.0, 5.0], [2.0]], [50, 100]),
        {"ttft": [1.0, 2.0], "itl": [1.0, 2.0]},
    )
    yield call([4.0], [[4.5, 4.75, 5.75]], [50, 51]), {"ttft": [0.5, 0.5], "itl": [0.25, 1.0]}
    yield (
        call([0.0, 0.0, 0.0, 0.0], [[4.0], [1.0], [3.0], [2.0]], [25, 26, 75]),
        {"ttft": [1.0, 2.0, 3.0], "itl": [math.nan] * 3},
    )
    yield call([0.0, 0.0], [[], [1.0, 9.0]], [99]), {"ttft": [1.0], "itl": [8.0]}


@latency_percentiles.cases
def _(draw):
    arrivals, tokens = [], []
    for _ in range(draw(st.integers(1, 4))):
        now = draw(st.integers(0, 40)) / 4
        arrivals.append(now)
        times = []
        for gap in draw(st.lists(st.integers(1, 40), max_size=4)):
            now += gap / 4
            times.append(now)
        tokens.append(times)
    yield call(arrivals, tokens, draw(st.lists(st.integers(1, 100), min_size=1, max_size=3)))


def steady(n):
    """n requests that arrive together and get their only token after 1, 2, … n units of time."""
    return [0.0] * n, [[float(i)] for i in range(n, 0, -1)]


@latency_percentiles.edge
def _():
    yield call([], [], [50, 99]), "no request"
    yield call([1.0, 2.0], [[], []], [50]), "nobody got a token"
    yield call([1.0], [[3.0]], [1, 50, 100]), "one token in all"
    yield call(*steady(100), [1, 50, 95, 99]), "100 values"
    yield call(*steady(25), [28, 56]), "25 values, p % of which are a whole number"
    yield call(*steady(20), [5, 6, 95, 99]), "20 values"
    yield call(*steady(3), [33, 34, 66, 67]), "3 values"
    yield (
        call([5.0, 0.0], [[6.0, 7.0], [4.0, 9.0]]),
        "the percents that nobody gives: 50, 95 and 99",
    )
    yield call([1.0, 2.0], [(3.0, 4.0), (6.0,)], (99, 50)), "tuples, and percents in another order"
    yield call([0.0], [[1.0, 2.0]], []), "no percent"
    yield call([0.0, 1.0], [[1.0]], [50]), "an arrival without its tokens"
    yield call([0.0], [[1.0], [2.0]], [50]), "tokens without an arrival"
    yield call([0.0], [[1.0]], [0]), "the 0th percentile"
    yield call([0.0], [[1.0]], [50, 101]), "the 101st percentile"
    yield call([0.0], [[]], [0]), "the 0th percentile, and nobody got a token"


TTFT = (
    "ttft = [times[0] - arrival for arrival, times in zip(arrivals, tokens, strict=True) if times]"
)
ITL = "itl = [after - before for times in tokens for before, after in pairwise(times)]"
RANK = "-(-p * len(ordered) // 100)"
TAKEN = "[ordered[rank - 1] if ordered else math.nan for rank in ranks]"
INTERPOLATED = (
    "You interpolate between two values, as NumPy's percentile does unless it is told otherwise. By nearest rank "
    "the percentile is one of the values."
)
FLOAT_RANK = (
    "A product of floats is rounded up: 28 / 100 * 25 gives a little more than 7, and so 8. NumPy's percentile does the "
    "same. Multiply the whole numbers first, then divide."
)
PER_REQUEST = (
    "You take one gap for each request, the mean of its own. A stall in the middle of an answer disappears in it: "
    "put all gaps of all requests together."
)
latency_percentiles.slips(
    {
        replace(
            RANK, "max(p * len(ordered) // 100, 1)"
        ): "You round the rank down. So fewer than p % of the values "
        "are at or below your percentile: round up.",
        replace(
            RANK, "max(round(p * len(ordered) / 100), 1)"
        ): "You round the rank to the nearest whole number. "
        "Where that is down, fewer than p % of the values are at or below it: round up.",
        replace(
            RANK, "min(p * len(ordered) // 100 + 1, max(len(ordered), 1))"
        ): "You take the value behind the rank where p % of the values is a whole number. Of four values the 25th "
        "percentile is the first.",
        replace(RANK, "math.ceil(p / 100 * len(ordered))"): FLOAT_RANK,
        replace(
            RANK, "math.ceil(p * (len(ordered) - 1) / 100) + 1"
        ): "You count ranks over n − 1 values. p % is of all n.",
        replace(
            "sorted(values)", "list(values)"
        ): "You do not sort the values before you count ranks.",
        replace(
            "sorted(values)", "sorted(values, reverse=True)"
        ): "You sort the largest first. The 99th percentile is one of the largest values.",
        replace(
            TTFT, TTFT.replace("times[0] - arrival", "times[0]")
        ): "You take the time of the first token itself. "
        "The wait begins when the request arrives: subtract that.",
        replace(
            TTFT, TTFT.replace("times[0] - arrival", "times[0] - arrivals[0]")
        ): "You measure every request from the first one's arrival. Each has its own.",
        replace(
            TTFT, TTFT.replace("times[0]", "times[-1]")
        ): "You measure up to the last token. The time to the first token ends with the first.",
        replace(
            ITL,
            "itl = [gap for times in tokens if len(times) > 1 for gap in [(times[-1] - times[0]) / (len(times) - 1)]]",
        ): PER_REQUEST,
        replace(
            ITL,
            "itl = [after - before for arrival, times in zip(arrivals, tokens, strict=True)"
            " for before, after in pairwise([arrival, *times])]",
        ): "You count the wait for the first token as a gap. Gaps lie between two tokens.",
        replace(
            ITL,
            "itl = [after - before for before, after in pairwise(sorted(t for times in tokens for t in times))]",
        ): "You sort the tokens of all requests together. A gap lies between two tokens of one request: that is what "
        "its user sees.",
        replace(
            ITL, ITL.replace("pairwise(times)", "pairwise(times[1:])")
        ): "You leave out the first gap of each request, from its first token to its second.",
        replace(
            ITL, "itl = [time - times[0] for times in tokens for time in times[1:]]"
        ): "You measure every token from the first one. A gap lies between neighbours.",
        replace(
            ITL, ITL.replace("pairwise(times)", "zip(times[::2], times[1::2], strict=False)")
        ): "You take the tokens in pairs, so every second gap is missing.",
        replace(
            ITL,
            "itl = [max(gaps) for times in tokens if (gaps := [b - a for a, b in pairwise(times)])]",
        ): "You take one gap for each request, its longest. All gaps of all requests count.",
        replace(
            TTFT,
            TTFT.replace(" if times]", " if times or not tokens]")
            .replace("times[0] - arrival", "times[0] - arrival if times else 0.0")
            .replace(" if times or not tokens]", "]"),
        ): "A request without tokens counts as one that waited 0. It is left out.",
        replace(
            TTFT, TTFT.replace(" if times]", "]")
        ): "Your code fails for a request without tokens. It is left out.",
        replace(
            TTFT,
            TTFT.replace("times[0] - arrival", "times[0] - arrival if times else math.inf").replace(
                " if times]", "]"
            ),
        ): "A request without tokens counts as one that waited for ever. It is left out.",
        replace(
            TAKEN, "[ordered[rank - 1] if ordered else 0.0 for rank in ranks]"
        ): "Without any value you say 0, as if nobody had waited. It is NaN.",
        replace(
            TAKEN, "[ordered[rank - 1] for rank in ranks if ordered]"
        ): "Without any value you return no percentile. It is NaN, once for each percent.",
        replace(
            TAKEN, "[ordered[rank - 1] for rank in ranks]"
        ): "Your code fails where there is no value. The percentile is NaN there.",
        replace(
            TAKEN,
            "[ordered[min(rank, len(ordered) - 1)] if ordered else math.nan for rank in ranks]",
        ): "Ranks count from 1, places of a list from 0: you take the value behind.",
        replace(
            '(("ttft", ttft), ("itl", itl))', '(("ttft", itl), ("itl", ttft))'
        ): "You exchange the two latencies.",
        replace("strict=True", "strict=False"): "You do not compare the numbers of "
        "arrivals and of lists of tokens. Where they differ, raise ValueError.",
        replace(
            "if not all(1 <= p <= 100 for p in percents):", "if False:"
        ): "You do not check the percents. They are 1 to 100, else raise ValueError.",
        replace(
            "if not all(1 <= p <= 100 for p in percents):",
            "if any(tokens) and not all(1 <= p <= 100 for p in percents):",
        ): "You check the percents only where there are values. One out of range raises ValueError in any case.",
        replace(
            "1 <= p <= 100", "1 <= p < 100"
        ): "You refuse the 100th percentile. It is the largest value.",
        replace(
            "1 <= p <= 100", "0 <= p <= 100"
        ): "You take the 0th percentile. Percents are 1 to 100, else raise ValueError.",
        replace(
            "1 <= p <= 100", "1 <= p"
        ): "You take percents above 100. They are 1 to 100, else raise ValueError.",
        replace("found[name] =", "found[name] = dict(zip(percents,").__add__(
            replace(TAKEN, TAKEN + ", strict=True))")
        ): "You return a dict by percent. It is a list, in the order of percents.",
    }
)


@latency_percentiles.mistake(INTERPOLATED)
def _(arrivals, tokens, percents=(50, 95, 99)):
    serving.latency_percentiles(arrivals, tokens, percents)  # raises where that is due
    ttft = [times[0] - a for a, times in zip(arrivals, tokens, strict=True) if times]
    itl = [b - a for times in tokens for a, b in pairwise(times)]
    return {
        name: [float(np.percentile(v, p)) if v else math.nan for p in percents]
        for name, v in (("ttft", ttft), ("itl", itl))
    }


@latency_percentiles.mistake(
    'NumPy\'s method "nearest" rounds a place among n − 1 steps up or down. The rank is p % of n, rounded up.'
)
def _(arrivals, tokens, percents=(50, 95, 99)):
    serving.latency_percentiles(arrivals, tokens, percents)  # raises where that is due
    ttft = [times[0] - a for a, times in zip(arrivals, tokens, strict=True) if times]
    itl = [b - a for times in tokens for a, b in pairwise(times)]
    return {
        name: [float(np.percentile(v, p, method="nearest")) if v else math.nan for p in percents]
        for name, v in (("ttft", ttft), ("itl", itl))
    }


@latency_percentiles.mistake(FLOAT_RANK)
def _(arrivals, tokens, percents=(50, 95, 99)):
    if len(tokens) - len(arrivals) or any(not 0 < p < 101 for p in percents):
        raise ValueError("arguments")
    waits = [times[0] - begin for begin, times in zip(arrivals, tokens, strict=False) if len(times)]
    gaps = [float(gap) for times in tokens for gap in np.diff(times)]

    def of(values):
        if not values:
            return [float("nan") for _ in percents]
        return [float(np.percentile(values, p, method="inverted_cdf")) for p in percents]

    return {"itl": of(gaps), "ttft": of(waits)}


@latency_percentiles.alternative("numpy's sort")
def _(arrivals, tokens, percents=(50, 95, 99)):
    if len(tokens) - len(arrivals) or any(not 0 < p < 101 for p in percents):
        raise ValueError("arguments")
    waits = [times[0] - begin for begin, times in zip(arrivals, tokens, strict=False) if len(times)]
    gaps = [float(gap) for times in tokens for gap in np.diff(times)]

    def of(values):
        if not values:
            return [float("nan") for _ in percents]
        return np.sort(values)[[(p * len(values) + 99) // 100 - 1 for p in percents]].tolist()

    return {"itl": of(gaps), "ttft": of(waits)}


@latency_percentiles.alternative("count how many do not exceed each value")
def _(arrivals, tokens, percents=(50, 95, 99)):
    if len(arrivals) != len(tokens):
        raise ValueError
    waits, gaps = [], []
    for number, times in enumerate(tokens):
        last = None
        for time in times:
            (waits if last is None else gaps).append(
                time - (arrivals[number] if last is None else last)
            )
            last = time
    result = {"ttft": [], "itl": []}
    for p in percents:
        if p < 1 or p > 100:
            raise ValueError(p)
        for values, out in ((waits, result["ttft"]), (gaps, result["itl"])):
            enough = [x for x in values if 100 * sum(y <= x for y in values) >= p * len(values)]
            out.append(min(enough) if enough else float("nan"))
    return result


# ------------------------------------------------------------------------------ continuous_batching

continuous_batching = Exercise(
    serving.continuous_batching,
    key="export_and_serving.continuous_batching",
    title="Who runs in the next step",
    difficulty=2,
    minutes=25,
    points=4,
    hints=(
        "Set aside one token of the budget for each running request that has one unread token. What is left is for "
        "prompts.",
        "Then go through the running requests in their order: 1 for those that decode; for the others as much as "
        "is left, at most what they have.",
        "How many slots are free? That many of the waiting requests, from the front, get the rest, until nothing "
        "is left.",
        (
            "edge cases",
            "A running request may get 0 tokens and keeps its slot. A waiting request with 0 tokens gets no slot.",
        ),
    ),
)


@continuous_batching.by_hand
def _():
    yield call([], [3], 2, 8), ([], [3])
    yield call([1, 1], [5], 4, 16), ([1, 1], [5])
    yield call([1, 1], [20, 3], 4, 16), ([1, 1], [14])
    yield call([9, 1], [4], 4, 8), ([7, 1], [])
    yield call([1], [2, 2, 2, 2], 3, 32), ([1], [2, 2])
    yield call([6, 1, 6], [4], 4, 8), ([6, 1, 1], [])


@continuous_batching.cases(60)
def _(draw):
    slots = draw(st.integers(1, 4))
    unread = st.one_of(st.just(1), st.integers(1, 9))
    running = draw(st.lists(unread, max_size=slots))
    waiting = draw(st.lists(unread, max_size=4))
    yield call(running, waiting, slots, draw(st.integers(slots, 20)))


@continuous_batching.edge
def _():
    yield call([], [], 3, 8), "nothing to do"
    yield call([1, 1, 1], [4, 5], 3, 8), "no slot is free"
    yield call([1, 1], [9, 9], 4, 4), "the budget ends within the first that waits"
    yield call([5, 1], [1], 3, 6), "the budget is used up just there"
    yield call([5, 1, 7], [2], 4, 6), "a running prompt gets nothing, and keeps its slot"
    yield call([30, 1, 1, 1], [], 4, 4), "decoding comes before a prompt that was begun earlier"
    yield call([1, 1, 1, 1], [3], 5, 5), "one token is left"
    yield call([1, 1, 1, 1, 1], [], 5, 5), "the whole budget decodes"
    yield call([], [4, 1, 1], 3, 5), "one unread token behind a prompt waits its turn"
    yield call([2, 2, 1], [5], 4, 6), "prompts of two tokens"
    yield call([9, 1, 4], [2], 4, 8), "a short prompt behind a long one waits its turn"
    yield call([], [4, 9, 1], 3, 8), "nobody passes a prompt that is cut"
    yield call([7], [1], 2, 7), "a running prompt takes all of it"
    yield call((1, 8), (3,), 3, 6), "tuples"
    yield call([1, 1], [1], 1, 4), "more run than there are slots"
    yield call([1], [1], 3, 2), "a budget smaller than the slots"
    yield call([], [6, 6], 1, 1), "one slot, one token"
    yield call([1], [5], 0, 4), "no slot, and somebody runs"


GUARD = "if budget < slots or len(running) > slots:"
LEFT = "left = budget - running.count(1)"
PART = "part = 1 if unread == 1 else min(unread, left)"
SPENT = "left -= part if unread > 1 else 0"
FREE = "waiting[: slots - len(running)]"
GIVEN = "admitted.append(min(unread, left))"
continuous_batching.slips(
    {
        replace(
            LEFT, "left = budget", PART, "part = min(unread, left)", SPENT, "left -= part"
        ): "You give the "
        "budget out in the order of the requests, so that a prompt begun earlier takes the tokens of those that "
        "decode. Those with one unread token come first.",
        replace(
            LEFT, "left = budget"
        ): "What decodes costs nothing of your budget. One token for each of them goes "
        "off before the prompts get theirs.",
        replace(
            PART,
            "part = unread",
            GIVEN,
            "admitted.append(unread)",
            "if left:",
            "if left > 0:",
        ): "You "
        "read prompts whole, however long they are. A step reads no more tokens than its budget: take a part.",
        replace(
            PART, "part = unread", SPENT, "left = max(left - part, 0) if unread > 1 else left"
        ): "A running "
        "prompt is read whole, however much that is. It gets what is left of the budget.",
        replace(
            GIVEN, "admitted.append(unread)", "if left:", "if left > 0:"
        ): "You read a waiting prompt "
        "whole, however long it is. It gets what is left of the budget, and a slot.",
        replace(
            "if left:", "left *= unread <= left\n        if left:"
        ): "A prompt that does not fit whole has to wait in your code, "
        "and tokens of the budget are left over. It gets a part.",
        replace(
            PART, "part = 1 if unread == 1 else unread if unread <= left else 0"
        ): "A running prompt that does "
        "not fit whole gets nothing in your code. It gets what is left.",
        replace(
            FREE, "(waiting[: slots - len(running)] if not running else [])"
        ): "Nobody joins while others run: "
        "that is static batching. A slot that is free is given away in the next step.",
        replace(
            FREE, "waiting[: min(1, slots - len(running))]"
        ): "You admit one request in a step. All free slots "
        "are given away as long as the budget lasts.",
        replace(FREE, "waiting"): "You admit requests for which there is no slot.",
        replace(
            FREE, "waiting[:slots]"
        ): "You give away all slots, those of running requests, too. Free are slots − "
        "len(running).",
        replace(FREE, "waiting[: max(slots - len(running) - 1, 0)]"): "You keep one slot free.",
        replace(
            "if left:", "if True:"
        ): "You give slots to requests that get 0 tokens. They stay in the queue.",
        replace(
            FREE, "sorted(waiting)[: slots - len(running)]"
        ): "You take the shortest prompts first. Requests are "
        "taken in the order in which they arrived.",
        replace(
            FREE, "waiting[::-1][: slots - len(running)]"
        ): "You take those first who arrived last.",
        replace(
            FREE,
            "[n for n in waiting if n <= left][: slots - len(running)]",
        ): "You pass over a prompt that does not fit and take a later one. Nobody overtakes: the first gets a part, "
        "and the others wait.",
        replace(
            "admitted = []",
            "admitted = []\n    free = slots - len(running)\n    waiting = sorted(waiting[:free], key=lambda n: n > 1)",
        ): "You put waiting requests with one unread token before others. The queue keeps its order; only running "
        "requests that decode come first.",
        replace(
            "read.append(part)", "read.append(1)"
        ): "You read one token of each running request. A prompt gets "
        "as many as it has and the budget allows.",
        replace(
            GIVEN, "admitted.append(1)"
        ): "You read one token of each that is admitted. A prompt gets as many as "
        "it has and the budget allows.",
        replace(
            "left -= admitted[-1]", "left -= 1"
        ): "You take one token off the budget for a prompt, however many you read of it.",
        replace(SPENT, "left -= 0"): "What running prompts get is not taken off your budget.",
        replace(
            "            left -= admitted[-1]", "            pass"
        ): "What you give to one that waited is not taken off the budget.",
        replace(
            "read.append(part)", "read += [part] * (part > 0)"
        ): "You leave out running requests that get "
        "nothing. The result has a number for each of them, 0 where there is nothing.",
        replace(
            FREE, "(waiting[: slots - len(running)] if all(n == 1 for n in running) else [])"
        ): "You admit nobody while a prompt is being read. A free slot is given away as long as there is budget.",
        replace(
            "return read, admitted", "return read, admitted + [0] * (len(waiting) - len(admitted))"
        ): "You give a number to every request that waits. The second list has those that get a slot.",
        replace(
            "for unread in running:", "for unread in sorted(running, key=lambda n: n > 1):"
        ): "Your numbers for running requests stand in the order in which they are served. They stand in the order of "
        "`running`.",
        replace(
            "return read, admitted", "return read + admitted"
        ): "You return one list. There are two: the running "
        "requests', and those of the requests that get a slot.",
        replace(
            GUARD, "if False:"
        ): "You do not check the arguments. A budget smaller than slots, or more running "
        "requests than slots: raise ValueError.",
        replace(
            GUARD, "if budget < slots:"
        ): "You take more running requests than there are slots. Raise ValueError.",
        replace(
            GUARD, "if len(running) > slots:"
        ): "You take a budget that cannot give every slot a token. Raise ValueError.",
        replace(
            GUARD, "if budget <= slots or len(running) > slots:"
        ): "You refuse a budget that is as large as the number of slots. It suffices.",
        replace(
            GUARD, "if budget < slots or len(running) >= slots:"
        ): "You refuse that all slots are taken.",
    }
)


@continuous_batching.mistake(
    "You read the waiting prompts before the rest of those that have begun. Running requests come first."
)
def _(running, waiting, slots, budget):
    if budget < slots or len(running) > slots:
        raise ValueError
    left = budget - running.count(1)
    admitted = []
    for unread in waiting[: slots - len(running)]:
        if left:
            admitted.append(min(unread, left))
            left -= admitted[-1]
    read = []
    for unread in running:
        read.append(1 if unread == 1 else min(unread, left))
        left -= read[-1] if unread > 1 else 0
    return read, admitted


@continuous_batching.mistake(
    "Among the running prompts those with less to read go first in your code. They take their turn in "
    "the order of `running`."
)
def _(running, waiting, slots, budget):
    if budget < slots or len(running) > slots:
        raise ValueError
    read = [0] * len(running)
    for i in sorted(range(len(running)), key=running.__getitem__):
        read[i] = min(running[i], budget)
        budget -= read[i]
    admitted = []
    for unread in waiting[: slots - len(running)]:
        if budget:
            admitted.append(min(unread, budget))
            budget -= admitted[-1]
    return read, admitted


@continuous_batching.mistake(
    "A waiting request with one unread token goes before running prompts in your code. All running "
    "requests come before those that wait."
)
def _(running, waiting, slots, budget):
    if budget < slots or len(running) > slots:
        raise ValueError
    joined = [*running, *waiting[: slots - len(running)]]
    given = [0] * len(joined)
    for i in sorted(range(len(joined)), key=lambda i: joined[i] > 1):
        given[i] = min(joined[i], budget)
        budget -= given[i]
    admitted = given[len(running) :]
    return given[: len(running)], admitted[: [*admitted, 0].index(0)]


@continuous_batching.mistake(
    "You take requests out of `waiting`, or change `running`, which belong to the caller. Make new lists."
)
def _(running, waiting, slots, budget):
    if budget < slots or len(running) > slots:
        raise ValueError
    left = budget - running.count(1)
    read, admitted = [], []
    for unread in running:
        read.append(1 if unread == 1 else min(unread, left))
        left -= read[-1] if unread > 1 else 0
    while waiting and left and len(running) + len(admitted) < slots:
        first = waiting[0]
        if isinstance(waiting, list):
            waiting.pop(0)
        else:
            waiting = waiting[1:]
        admitted.append(min(first, left))
        left -= admitted[-1]
    return read, admitted


@continuous_batching.mistake(
    "You divide the budget evenly among the prompts. The first gets all that it can use, then the next."
)
def _(running, waiting, slots, budget):
    if budget < slots or len(running) > slots:
        raise ValueError
    left = budget - running.count(1)
    prompts = sum(n > 1 for n in running) + min(len(waiting), slots - len(running))
    share = max(left // prompts, 1) if prompts else 0
    read, admitted = [], []
    for unread in running:
        part = 1 if unread == 1 else min(unread, share, left)
        left -= part if unread > 1 else 0
        read.append(part)
    for unread in waiting[: slots - len(running)]:
        if left:
            admitted.append(min(unread, share, left))
            left -= admitted[-1]
    return read, admitted


@continuous_batching.alternative("token by token, in the order of who comes first")
def _(running, waiting, slots, budget):
    if len(running) > slots:
        raise ValueError("slots")
    if slots > budget:
        raise ValueError("budget")
    joined = [*running, *list(waiting)[: slots - len(running)]]
    order = sorted(range(len(joined)), key=lambda i: (not (i < len(running) and joined[i] == 1), i))
    got = [0] * len(joined)
    for i in order:
        while budget and got[i] < joined[i]:
            got[i] += 1
            budget -= 1
    return got[: len(running)], [n for n in got[len(running) :] if n]


@continuous_batching.alternative("running sums")
def _(running, waiting, slots, budget):
    if budget < slots or len(running) > slots:
        raise ValueError
    rest = budget - sum(1 for n in running if n == 1)
    out = []
    for n in running:
        if n == 1:
            out.append(1)
            continue
        take = n if n < rest else rest
        rest = rest - take
        out.append(take)
    new = []
    for i in range(len(waiting)):
        if len(running) + len(new) == slots or rest <= 0:
            break
        take = waiting[i] if waiting[i] < rest else rest
        rest = rest - take
        new.append(take)
    return (out, new)


# ------------------------------------------------------------------------------ paged_kv_blocks

paged_kv_blocks = Exercise(
    (serving.paged_kv_blocks, serving.BlockPool),
    key="export_and_serving.paged_kv_blocks",
    title="Blocks that are taken and given back",
    difficulty=2,
    minutes=25,
    points=4,
    probe=served.pooled,
    hints=(
        "A list `uses` says how many tables have each block. Beside it, keep the free blocks in the order in which "
        "they became free: they are taken at the front and come back at the end.",
        "A block that is shared while it is free must leave the free ones, wherever it stands among them. A dict "
        "keeps its order and removes any key at once.",
        "`take` checks first, then takes: if too few are free, nothing may have changed.",
        (
            "edge cases",
            "Of several tables that have a block, only the last one's release makes it free. A free block cannot "
            "be released: ValueError.",
        ),
    ),
)


def blocks_of(tokens, size):
    """A case of paged_kv_blocks."""
    return call(tokens, size)


def pool_of(n, *steps):
    """A case of BlockPool."""
    return call(*steps, n_blocks=n)


TAKE, SHARE, RELEASE = "take", "share", "release"


@paged_kv_blocks.by_hand
def _():
    yield blocks_of(32, 16), 2
    yield blocks_of(33, 16), 3
    yield (
        pool_of(3, (TAKE, 2), (RELEASE, 0), (TAKE, 2)),
        {
            "new": {"uses": [0, 0, 0], "free": 3},
            "step 1, take(2): returns": [0, 1],
            "step 1, take(2): uses": [1, 1, 0],
            "step 2, release(0): uses": [0, 1, 0],
            "step 2, release(0): free": 2,
            "step 3, take(2): returns": [2, 0],
            "step 3, take(2): free": 0,
        },
    )
    yield (
        pool_of(2, (TAKE, 1), (SHARE, 0), (RELEASE, 0), (RELEASE, 0)),
        {
            "step 2, share(0): uses": [2, 0],
            "step 3, release(0): free": 1,
            "step 4, release(0): free": 2,
        },
    )
    yield (
        pool_of(3, (TAKE, 1), (RELEASE, 0), (SHARE, 0), (TAKE, 2), (TAKE, 1)),
        {
            "step 3, share(0): free": 2,
            "step 4, take(2): returns": [1, 2],
            "step 5, take(1): raises": "MemoryError",
        },
    )


@paged_kv_blocks.cases(12)
def _(draw):
    yield blocks_of(draw(st.integers(0, 40)), draw(st.integers(1, 9)))


@paged_kv_blocks.cases(60)
def _(draw):
    n = draw(st.integers(1, 5))
    pool, steps = serving.BlockPool(n), []
    for _ in range(draw(st.integers(1, 9))):
        used = [block for block in range(n) if pool.uses[block]]
        kinds = [TAKE, TAKE, SHARE] + [RELEASE] * (2 if used else 0)
        kind = draw(st.sampled_from(kinds))
        if kind == TAKE:
            step = (TAKE, draw(st.integers(0, len(pool) + draw(st.integers(0, 1)))))
        elif kind == SHARE:
            step = (SHARE, draw(st.integers(0, n - 1)))
        else:
            step = (RELEASE, draw(st.sampled_from(used)))
        steps.append(step)
        with suppress(MemoryError):
            getattr(pool, step[0])(step[1])
    yield pool_of(n, *steps)


@paged_kv_blocks.edge
def _():
    yield blocks_of(0, 16), "no token"
    yield blocks_of(1, 16), "one token"
    yield blocks_of(16, 16), "just one block"
    yield blocks_of(7, 1), "blocks of one token"
    yield blocks_of(2**60 + 1, 2), "more tokens than a float can count"
    yield pool_of(0, (TAKE, 0), (TAKE, 1)), "no blocks"
    yield pool_of(4, (TAKE, 4)), "all at once"
    yield pool_of(4, (TAKE, 5), (TAKE, 4)), "too many, then as many as there are"
    yield pool_of(3, (TAKE, 2), (TAKE, 2), (TAKE, 1)), "too many: none is taken"
    yield pool_of(3, (TAKE, 0)), "none"
    yield pool_of(2, (RELEASE, 1), (TAKE, 2)), "a block that was never used is released"
    yield pool_of(2, (TAKE, 1), (RELEASE, 0), (RELEASE, 0), (TAKE, 2)), "released twice"
    order = [(RELEASE, block) for block in (2, 0, 3, 1)]
    yield pool_of(4, (TAKE, 4), *order, (TAKE, 4)), "back in another order"
    yield pool_of(4, (TAKE, 2), (RELEASE, 1), (RELEASE, 0), (TAKE, 4)), "never used comes first"
    yield (
        pool_of(3, (TAKE, 3), (RELEASE, 1), (RELEASE, 0), (SHARE, 1), (RELEASE, 1), (TAKE, 2)),
        "shared while it is free, and then free for a shorter time",
    )
    yield pool_of(2, (SHARE, 1), (SHARE, 1), (TAKE, 1), (RELEASE, 1), (TAKE, 1)), "shared twice"


ROUNDED = "-(-tokens // block_size)"
MARKED = "            self.share(block)\n"
FRONT = "blocks = list(self._free)[:n]"
BACK = "            self._free[block] = None"
SHARED = "        self._free.pop(block, None)\n"
TOO_FEW = "if n > len(self._free):"
NO_CHECK = "if self.uses[block] == 0:\n            raise ValueError"
EARLY = "A block is free in your pool although another table still has it. It becomes free when its uses reach 0."
paged_kv_blocks.slips(
    {
        replace(ROUNDED, "tokens // block_size"): "You round down: the last tokens have no block.",
        replace(
            ROUNDED, "tokens // block_size + 1"
        ): "A number of tokens that fills its blocks gets one more. Round up, and no further.",
        replace(ROUNDED, "max(-(-tokens // block_size), 1)"): "No tokens need no block.",
        replace(
            ROUNDED, "round(tokens / block_size)"
        ): "You round to the nearest number. What is begun needs a block: round up.",
        replace(
            ROUNDED, "__import__('math').ceil(tokens / block_size)"
        ): "You divide in floats, which cannot count "
        "that far. `-(-a // b)` rounds up in whole numbers.",
        replace(
            FRONT, "blocks = list(self._free)[::-1][:n]"
        ): "You take the blocks that became free last. Those that "
        "have been free the longest come first.",
        replace(
            FRONT, "blocks = sorted(self._free)[:n]"
        ): "You take the free blocks with the smallest numbers. Those "
        "that have been free the longest come first.",
        replace(
            FRONT, "blocks = sorted(list(self._free)[:n])"
        ): "You sort the blocks that you take. They come in the order in which they became free.",
        replace(
            BACK, "            self._free = {block: None, **self._free}"
        ): "A block that becomes free goes to the "
        "front in your pool. It goes behind all that are free.",
        replace(
            TOO_FEW, "if not self._free and n:"
        ): "You take as many as there are. If fewer than n are free, raise "
        "MemoryError and take none.",
        replace(TOO_FEW, "if n >= len(self._free):"): "You refuse to give the last block away.",
        replace(
            TOO_FEW,
            "if n > len(self._free):\n            for block in list(self._free):\n                self.share(block)",
        ): "The blocks that were free are taken when you raise MemoryError. Check first, and take none.",
        replace(
            TOO_FEW, "if n > len(self._free) or n == 0:"
        ): "You refuse to take 0 blocks. That is an empty list.",
        replace(
            'raise MemoryError(f"{n} blocks are needed, {len(self._free)} are free")', "return None"
        ): "You return None where too few are free. Raise MemoryError.",
        replace(
            "raise MemoryError(", "raise ValueError("
        ): "You raise another exception where too few are free. It is MemoryError.",
        replace(
            MARKED, "            self._free.pop(block)\n"
        ): "`take` does not count a use. A table has the block from now on: uses is 1.",
        replace(
            MARKED, "            self.uses[block] += 1\n"
        ): "The blocks that you give out are still among the free "
        "ones: the next table gets them, too.",
        replace(
            SHARED, ""
        ): "A free block that is shared is still among the free ones, so that another table gets it, "
        "too. Take it out.",
        replace(
            "        self.uses[block] += 1\n", "        self.uses[block] = 1\n"
        ): "A second table that has the block does not count. Each use adds 1.",
        replace(
            "self.uses[block] -= 1\n        if self.uses[block] == 0:",
            "self.uses[block] -= 1\n        if True:",
        ): EARLY,
        replace("self.uses[block] -= 1\n", "self.uses[block] = 0\n"): EARLY,
        replace(
            NO_CHECK, "if False:\n            raise ValueError"
        ): "You release a block that is free already. Its uses fall below 0: raise ValueError.",
        replace(
            NO_CHECK, "if self.uses[block] == 0:\n            return\n            raise ValueError"
        ): "A block that is free already "
        "is released without a word. Raise ValueError: somebody has counted wrongly.",
        replace(
            BACK, "            pass"
        ): "Blocks that nobody uses any more are never taken again.",
        replace(
            "return len(self._free)", "return len(self.uses)"
        ): "len is the number of free blocks, not of all.",
        replace(
            "return len(self._free)", "return len(self.uses) - len(self._free)"
        ): "len is the number of free blocks. You count those in use.",
        replace(
            "dict.fromkeys(range(n_blocks))", "dict.fromkeys(range(1, n_blocks))"
        ): "Block 0 is never taken.",
        replace(
            "dict.fromkeys(range(n_blocks))", "dict.fromkeys(reversed(range(n_blocks)))"
        ): "You begin with the "
        "largest number. Blocks that were never used are taken in the order of their numbers.",
        replace(
            "dict.fromkeys(range(n_blocks))", "dict.fromkeys(range(1, n_blocks + 1))"
        ): "Your blocks are numbered from 1. They are 0 to n_blocks − 1.",
    }
)


class _NoRevival(serving.BlockPool):
    def take(self, n):
        if n > len(self._free):
            raise MemoryError(n)
        blocks = list(self._free)[:n]
        for block in blocks:
            del self._free[block]
            self.uses[block] = 1
        return blocks

    def share(self, block):
        if self.uses[block] == 0:
            raise ValueError(block)
        self.uses[block] += 1


paged_kv_blocks.mistake(
    "You refuse to share a block that is free. What it holds is still there, and it is in use again."
)(serving.paged_kv_blocks, _NoRevival)


class _Listed(serving.BlockPool):
    """The free ones in a list, so that one may stand in it twice."""

    def __init__(self, n_blocks):
        self.uses, self._free = [0] * n_blocks, list(range(n_blocks))

    def take(self, n):
        if n > len(self._free):
            raise MemoryError(n)
        blocks = [self._free.pop(0) for _ in range(n)]
        for block in blocks:
            self.uses[block] += 1
        return blocks

    def share(self, block):
        if block in self._free:
            self._free.remove(block)
        self.uses[block] += 1

    def release(self, block):
        if self.uses[block] == 0:
            raise ValueError(block)
        self.uses[block] -= 1
        if self.uses[block] == 0:
            self._free.append(block)


class _StillFree(_Listed):
    def share(self, block):
        self.uses[block] += 1


class _Twice(_Listed):
    def release(self, block):
        self.uses[block] -= 1
        if self.uses[block] <= 0:
            self._free.append(block)


class _StillFreeAndOne(_StillFree):
    def take(self, n):
        blocks = super().take(n)
        for block in blocks:
            self.uses[block] = 1
        return blocks


for _pool in (_StillFree, _StillFreeAndOne):
    paged_kv_blocks.mistake(
        "A free block that is shared stays among the free ones until it is taken, so that another table gets it, too. Take "
        "it out."
    )(serving.paged_kv_blocks, _pool)
paged_kv_blocks.mistake(
    "You release a block that is free already, so that it is among the free ones twice. Raise ValueError."
)(serving.paged_kv_blocks, _Twice)


class _Deque:
    """A deque of the free, and a dict of what is used."""

    def __init__(self, n_blocks):
        from collections import deque

        self.free = deque(range(n_blocks))
        self.uses = [0 for _ in range(n_blocks)]

    def __len__(self):
        return len(self.free)

    def take(self, n):
        if len(self.free) < n:
            raise MemoryError("too few")
        taken = [self.free.popleft() for _ in range(n)]
        for i in taken:
            self.uses[i] = 1
        return taken

    def share(self, block):
        if self.uses[block] == 0:
            self.free.remove(block)
        self.uses[block] = self.uses[block] + 1

    def release(self, block):
        if not self.uses[block] > 0:
            raise ValueError("free")
        self.uses[block] -= 1
        if not self.uses[block]:
            self.free.append(block)


class _Clock:
    """When each block became free; the free are those with no uses."""

    def __init__(self, n_blocks):
        self.uses = [0] * n_blocks
        self.since = list(range(-n_blocks, 0))
        self.now = 0

    def __len__(self):
        return sum(n == 0 for n in self.uses)

    def take(self, n):
        free = sorted((b for b, n in enumerate(self.uses) if n == 0), key=lambda b: self.since[b])
        if len(free) < n:
            raise MemoryError(f"{n} > {len(free)}")
        for b in free[:n]:
            self.uses[b] += 1
        return free[:n]

    def share(self, block):
        self.uses[block] += 1

    def release(self, block):
        if self.uses[block] <= 0:
            raise ValueError(f"{block} is free")
        self.uses[block] -= 1
        if self.uses[block] == 0:
            self.since[block] = self.now
            self.now += 1


def _blocks(tokens, block_size):
    return (tokens + block_size - 1) // block_size


paged_kv_blocks.alternative("a deque of free blocks")(_blocks, _Deque)
paged_kv_blocks.alternative("the time at which each became free")(
    lambda tokens, block_size: sum(divmod(tokens, block_size)[:1]) + (tokens % block_size > 0),
    _Clock,
)


# ------------------------------------------------------------------------------ paged_attention

paged_attention = Exercise(
    serving.paged_attention,
    key="export_and_serving.paged_attention",
    title="Attention through a table",
    difficulty=2,
    minutes=25,
    points=4,
    limit_s=60.0,
    hints=(
        "`keys[tables]` has the shape (B, n, P, H, d): the blocks of each row in the order of its table. Make one axis "
        "of n · P tokens out of the second and the third.",
        "Query t of row b may see the tokens 0 to positions[b, t]. Compare `torch.arange(n * P)` with the positions: "
        "(B, 1, T, n · P), with an axis for the heads.",
        "`F.scaled_dot_product_attention` wants (B, H, T, d) and (B, H, S, d): transpose, and transpose back.",
        (
            "contracts",
            "Index with the whole table at once; a loop over rows or blocks calls more kernels for more of them.",
        ),
    ),
)


def paged(B, T, H, d, N, P, n, seed=0, dtype=torch.float32, positions=None, tables=None):
    """A case: queries, a cache of N blocks, tables of n blocks, positions that lie within them."""
    generator = torch.Generator().manual_seed(seed)
    if tables is None:
        tables = torch.randint(0, N, (B, n), generator=generator)
    if positions is None:
        first = torch.randint(0, max(n * P - T + 1, 1), (B, 1), generator=generator)
        positions = first + torch.arange(T)
    keys, values = normal(2, N, P, H, d, dtype=dtype, seed=seed)
    return call(normal(B, T, H, d, dtype=dtype, seed=seed + 1), keys, values, tables, positions)


def ints(*rows):
    return torch.tensor(rows)


@paged_attention.by_hand
def _():
    one = torch.ones(1, 1, 1, 1)
    values = torch.tensor([1.0, 2.0, 10.0, 20.0]).view(2, 2, 1, 1)
    even = torch.zeros(2, 2, 1, 1)
    yield call(one, even, values, ints([1, 0]), ints([1])), torch.tensor([[[[15.0]]]])
    yield call(one, even, values, ints([1, 0]), ints([2])), torch.tensor([[[[31.0 / 3]]]])
    keys = torch.tensor([0.0, math.log(3.0)]).view(1, 2, 1, 1)
    yield call(one, keys, values[:1], ints([0]), ints([1])), torch.tensor([[[[1.75]]]])
    keys = torch.zeros(1, 2, 1, 4)
    keys[0, 1, 0, 0] = 2 * math.log(3.0)  # √4 times as much, as scores are divided by it
    q = torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 1, 4)
    picked = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1).expand(1, 2, 1, 4).contiguous()
    yield call(q, keys, picked, ints([0]), ints([1])), torch.full((1, 1, 1, 4), 1.75)


@paged_attention.cases
def _(draw):
    T, H, d, N, P = draw(draws.distinct_sizes(5))
    B, n = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    T = min(T, n * P)
    yield paged(B, T, H, d, N, P, n, draw(st.integers(0, 99)))


@paged_attention.edge
def _():
    yield paged(4, 1, 3, 2, 9, 5, 3, 1), "one token a row: decoding"
    yield paged(1, 6, 3, 2, 9, 5, 3, 2), "one row: a part of a prompt"
    yield paged(3, 3, 3, 3, 3, 3, 3, 3), "equal sizes"
    yield paged(2, 1, 2, 4, 6, 1, 5, 4), "blocks of one token"
    yield paged(2, 2, 1, 3, 4, 3, 1, 5), "one head, one block"
    yield paged(2, 1, 2, 1, 4, 3, 2, 6), "one feature"
    yield (
        paged(3, 1, 2, 4, 6, 2, 3, 7, positions=ints([0], [3], [5])),
        "from the first token to the last",
    )
    yield (
        paged(2, 3, 2, 4, 6, 2, 3, 8, positions=ints([0, 1, 2], [3, 4, 5])),
        "a prompt's beginning beside its end",
    )
    yield paged(2, 2, 2, 4, 6, 4, 2, 9, positions=ints([1, 5], [6, 2])), "positions in any order"
    yield paged(3, 1, 2, 4, 5, 2, 2, 10, tables=ints([1, 0], [1, 4], [1, 0])), "shared blocks"
    yield (
        paged(2, 1, 2, 3, 5, 2, 3, 11, positions=ints([1], [4]), tables=ints([3, 0, 0], [3, 1, 2])),
        "a short row",
    )
    stale = paged(
        2, 1, 2, 3, 5, 2, 3, 12, positions=ints([1], [2]), tables=ints([3, 0, 0], [3, 1, 2])
    )
    q, keys, values, tables, positions = stale.args
    keys, values = keys.clone(), values.clone()
    keys[[0, 2]], values[[0, 2]], values[1, 1] = 1e4, 1e4, 1e4
    yield call(q, keys, values, tables, positions), "large numbers in places that are not filled"
    yield paged(2, 2, 3, 4, 6, 2, 3, 13, F64), "float64"
    yield paged(2, 2, 3, 4, 6, 2, 3, 14, torch.bfloat16), "bfloat16"
    q, keys, values, tables, positions = paged(2, 2, 3, 4, 6, 2, 3, 15).args
    yield (
        call(
            draws.scattered(q),
            draws.scattered(keys),
            draws.scattered(values),
            tables.T.contiguous().T,
            positions,
        ),
        "not contiguous",
    )
    yield call(q, keys * 30, values, tables, positions), "large scores"
    yield call(q[:0], keys, values, tables[:0], positions[:0]), "no row"
    yield (
        call(*(x.to("meta") for x in (q, keys, values, tables, positions))),
        "on another device than the default one",
    )


paged_attention.contract(
    contracts.constant_kernels(
        [
            paged(*sizes, seed=1)
            for sizes in ((2, 2, 2, 3, 9, 2, 3), (9, 2, 2, 3, 9, 2, 3), (2, 7, 2, 3, 9, 2, 12))
        ],
        says="no Python loop over rows, blocks or tokens",
    )
)
JOINED = "x.flatten(1, 2).transpose(1, 2)"
VISIBLE = "seen = token <= positions[:, None, :, None]"
ATTENDED = "F.scaled_dot_product_attention(q.transpose(1, 2), k, v, seen).transpose(1, 2)"
KV = "for kept in (keys, values)"
ITSELF = "A token does not see itself. Its own key is in the cache: ≤."
paged_attention.slips(
    {
        replace(VISIBLE, "seen = token < positions[:, None, :, None]"): ITSELF,
        replace(
            VISIBLE,
            "seen = token < positions[:, None, :, None]",
            ATTENDED,
            "((q.transpose(1, 2) @ k.mT / q.size(-1) ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v).transpose(1, 2)",
        ): ITSELF,
        replace(
            VISIBLE,
            "seen = token < positions[:, None, :, None]",
            ATTENDED,
            "((q.transpose(1, 2) @ k.mT / q.size(-1) ** 0.5).masked_fill(~seen, torch.finfo(q.dtype).min).softmax(-1) @ v).transpose(1, 2)",
        ): ITSELF,
        replace(
            VISIBLE, "seen = token >= positions[:, None, :, None]"
        ): "Your mask is True for the future. It is True where a query may attend.",
        replace(
            VISIBLE, "seen = (token <= positions[:, None, :, None]) | True"
        ): "You attend to everything in the blocks, also to "
        "places that are not filled and to tokens that come later.",
        replace(
            VISIBLE, "seen = token <= positions.amax(1)[:, None, None, None]"
        ): "All queries of a row see as far as "
        "the last one. Each sees the tokens up to its own position.",
        replace(
            VISIBLE, "seen = token <= positions[:1, None, :, None]"
        ): "You use the first row's positions for all rows.",
        replace(
            VISIBLE,
            "seen = token <= (positions * 0 + k.size(2) - positions.size(1))[:, None, :, None] + torch.arange(positions.size(1), device=q.device)[:, None]",
        ): "You take the queries for the last T of all n · P places. Where they stand, "
        "`positions` says.",
        replace(
            VISIBLE,
            "seen = (token <= positions[:, None, :, None]) & (token > positions[:, None, :, None] - keys.size(1))",
        ): "A query sees one block's length back. It sees all tokens from the first on.",
        replace(
            "F.embedding(tables, kept.flatten(1))",
            "kept[: tables.size(1)].expand(len(q), -1, -1, -1, -1)",
        ): "You read the first n blocks of the cache. Which blocks a row has, its table says.",
        replace(
            "F.embedding(tables, kept.flatten(1))",
            "F.embedding(tables[:1].expand_as(tables), kept.flatten(1))",
        ): "You read the first row's blocks for all rows.",
        replace(
            "F.embedding(tables, kept.flatten(1))",
            "F.embedding(tables.sort(1).values, kept.flatten(1))",
        ): "You read a row's blocks in the order of their numbers. The order of the table is that of the tokens.",
        replace(
            "F.embedding(tables, kept.flatten(1))", "F.embedding(tables.flip(1), kept.flatten(1))"
        ): "You read the table from its end.",
        replace(
            JOINED, "x.reshape(len(x), x.size(3), x.size(1) * x.size(2), x.size(4))"
        ): "You view tokens as heads: "
        "that mixes numbers of different tokens. Make the axis of n · P tokens first, then exchange it with the heads.",
        replace(
            JOINED,
            "x.transpose(2, 3).reshape(len(x), x.size(1) * x.size(2), x.size(3), x.size(4)).transpose(1, 2)",
        ): "You exchange places and heads inside of a block before you join the blocks, so tokens and heads are mixed.",
        replace(
            JOINED, "x.transpose(1, 2).flatten(1, 2).transpose(1, 2)"
        ): "You line up place 0 of all blocks, then place 1. Token j is in block j // P at place j % P: a block's places "
        "follow one another.",
        replace(KV, "for kept in (keys, keys)"): "You read the keys for the values, too.",
        replace(KV, "for kept in (values, keys)"): "You exchange keys and values.",
        replace(
            ATTENDED, "F.scaled_dot_product_attention(q.transpose(1, 2), k, v, seen)"
        ): "You return (B, H, T, d). The result has the shape of q.",
        replace(
            ATTENDED,
            "F.scaled_dot_product_attention(q.transpose(1, 2), k, v, seen, scale=1.0).transpose(1, 2)",
        ): "Your scores are not divided by √d.",
        replace(
            ATTENDED,
            "F.scaled_dot_product_attention(q.transpose(1, 2), k, v, seen, scale=q.size(2) ** -0.5).transpose(1, 2)",
        ): "Your scores are divided by √H, from the number of heads. d is the size of a head, the last axis of q.",
        replace(
            ATTENDED,
            "F.scaled_dot_product_attention(q.transpose(1, 2) / q.size(-1) ** 0.5, k, v, seen).transpose(1, 2)",
        ): "Your scores are divided by d in all. It is √d, once: scaled_dot_product_attention divides by it itself.",
        replace(
            ATTENDED,
            "F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True).transpose(1, 2)",
        ): "is_causal "
        "takes query t for token t. Here query t is token positions[b, t]: make a mask.",
        replace(
            ATTENDED,
            "((q.transpose(1, 2) @ k.mT / q.size(-1) ** 0.5).softmax(-1) * seen @ v).transpose(1, 2)",
        ): "You hide tokens after the softmax, so that the weights do not sum to one. Put −inf into the scores before it.",
        replace(
            ATTENDED,
            "((q.transpose(1, 2) @ k.mT / q.size(-1) ** 0.5 * seen).softmax(-1) @ v).transpose(1, 2)",
        ): "You set hidden scores to 0. A score of 0 has the weight exp(0) = 1: put −inf there.",
        replace(
            ATTENDED,
            "((q.transpose(1, 2) @ k.mT / q.size(-1) ** 0.5).masked_fill(~seen, -torch.inf).softmax(-2).nan_to_num() @ v).transpose(1, 2)",
        ): "Your softmax runs over the queries. It runs over the tokens, the last axis.",
        replace(
            ATTENDED,
            "F.scaled_dot_product_attention(q.transpose(1, 2), k, v, seen).transpose(1, 2).float()",
        ): "You return float32. The result has the dtype of q.",
        replace(
            "F.embedding(tables, kept.flatten(1))", "F.embedding(tables, kept.view(len(kept), -1))"
        ): "Your code needs a "
        "contiguous cache. `flatten` and `reshape` copy where a view is not possible.",
        replace(
            "torch.arange(k.size(2), device=q.device)", "torch.arange(k.size(2))"
        ): "Your code makes a tensor on the default device. Make it where the queries are.",
    }
)


@paged_attention.mistake("The values are right, but Python goes through the rows.", cost=True)
def _(q, keys, values, tables, positions):
    rows = range(len(q))
    made = [
        serving.paged_attention(q[i : i + 1], keys, values, tables[i : i + 1], positions[i : i + 1])
        for i in rows
    ]
    return torch.cat(made) if made else serving.paged_attention(q, keys, values, tables, positions)


@paged_attention.mistake(
    "The values are right, but Python goes through the blocks of the tables.", cost=True
)
def _(q, keys, values, tables, positions):
    n = tables.size(1)
    k, v = (
        torch.cat([x[tables[:, i]] for i in range(n)], 1).transpose(1, 2) for x in (keys, values)
    )
    seen = torch.arange(k.size(2), device=q.device) <= positions[:, None, :, None]
    return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, seen).transpose(1, 2)


@paged_attention.alternative("an einsum, in float32 at least")
def _(q, keys, values, tables, positions):
    wide = torch.promote_types(q.dtype, torch.float32)
    k = keys[tables].to(wide).flatten(1, 2)
    v = values[tables].to(wide).flatten(1, 2)
    scores = torch.einsum("bthd,bshd->bhts", q.to(wide), k) / math.sqrt(q.shape[-1])
    place = torch.arange(k.shape[1], device=q.device)
    scores = scores.masked_fill(
        place[None, None, None] > positions[:, None, :, None], float("-inf")
    )
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v).to(q.dtype)


@paged_attention.alternative("places of tokens in one long row, and an additive mask")
def _(q, keys, values, tables, positions):
    P = keys.shape[1]
    token = torch.arange(tables.shape[1] * P, device=q.device)
    place = tables[:, token // P] * P + token % P
    k, v = (x.reshape(-1, *x.shape[2:])[place].permute(0, 2, 1, 3) for x in (keys, values))
    bias = torch.zeros(len(q), 1, q.shape[1], len(token), dtype=q.dtype, device=q.device)
    bias = bias.masked_fill(token > positions[:, None, :, None], -torch.inf)
    return F.scaled_dot_product_attention(q.permute(0, 2, 1, 3), k, v, attn_mask=bias).permute(
        0, 2, 1, 3
    )


# ------------------------------------------------------------------------------ BlockTables

BlockTables = Exercise(
    serving.BlockTables,
    key="export_and_serving.BlockTables",
    title="Tables that share what is the same",
    difficulty=3,
    minutes=45,
    points=6,
    probe=served.tabled,
    hints=(
        "Keep two dicts: from a beginning, as a tuple of all its tokens, to the block that is known by it, and from a "
        "block back to its beginning. The second one says what to forget when the block is taken.",
        "`open` asks for the beginnings of P, 2 P, 3 P, … tokens, as long as each is known and shorter than all of the "
        "tokens. Every block that it finds is shared in the pool.",
        "`fill` looks at full blocks only: len(tokens) // P of them. A beginning that is known already keeps its block.",
        "Everything that `pool.take` gives was free, and may be known: forget it before it is written over.",
        (
            "edge cases",
            "With as many known tokens as the sequence has, the last block is not shared: one token must be read.",
        ),
    ),
)


def tables_of(n_blocks, block_size, *steps):
    """A case of BlockTables."""
    return call(*steps, n_blocks=n_blocks, block_size=block_size)


OPEN, GROW, FILL, CLOSE = "open", "grow", "fill", "close"


def lived(name, tokens, filled=None):
    """The steps of a sequence: begun, given room, read."""
    tokens = list(tokens)
    return (OPEN, name, tokens), (GROW, name, len(tokens)), (FILL, name, tokens[:filled])


@BlockTables.by_hand
def _():
    yield (
        tables_of(4, 2, *lived("a", [5, 6, 7]), (OPEN, "b", [5, 6, 7])),
        {
            "step 1, open('a', [5, 6, 7]): returns": 0,
            "step 2, grow('a', 3): tables": {"a": [0, 1]},
            "step 4, open('b', [5, 6, 7]): returns": 2,
            "step 4, open('b', [5, 6, 7]): tables": {"a": [0, 1], "b": [0]},
            "step 4, open('b', [5, 6, 7]): pool": {"uses": [2, 1, 0, 0], "free": 2},
        },
    )
    yield (
        tables_of(4, 2, *lived("a", [5, 6]), (CLOSE, "a"), (OPEN, "b", [5, 6, 1])),
        {
            "step 4, close('a'): pool": {"uses": [0, 0, 0, 0], "free": 4},
            "step 5, open('b', [5, 6, 1]): returns": 2,
            "step 5, open('b', [5, 6, 1]): pool": {"uses": [1, 0, 0, 0], "free": 3},
        },
    )
    yield (
        tables_of(4, 2, *lived("a", [5, 6, 7, 8]), (OPEN, "b", [7, 8, 1]), (OPEN, "c", [5, 6])),
        {
            "step 4, open('b', [7, 8, 1]): returns": 0,
            "step 5, open('c', [5, 6]): returns": 0,
            "step 5, open('c', [5, 6]): tables": {"a": [0, 1], "b": [], "c": []},
        },
    )
    yield (
        tables_of(
            2,
            2,
            *lived("a", [5, 6]),
            (CLOSE, "a"),
            *lived("b", [1, 2, 3]),
            (CLOSE, "b"),
            (OPEN, "c", [5, 6, 7]),
        ),
        {
            "step 6, grow('b', 3): tables": {"b": [1, 0]},
            "step 9, open('c', [5, 6, 7]): returns": 0,
        },
    )


@BlockTables.cases(70)
def _(draw):
    P, n = draw(st.integers(1, 3)), draw(st.integers(2, 7))
    tables, steps, alive, names = serving.BlockTables(n, P), [], {}, iter("abcdefghij")
    few = st.integers(0, 1)

    def run(*step):
        steps.append(step)
        return getattr(tables, step[0])(*step[1:])

    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.integers(0, 5))
        if alive and kind == 0:
            name = draw(st.sampled_from(sorted(alive)))
            run(CLOSE, name)
            del alive[name]
        elif alive and kind == 1:
            name = draw(st.sampled_from(sorted(alive)))
            alive[name] = [*alive[name], *draw(st.lists(few, min_size=1, max_size=P))]
            try:
                run(GROW, name, len(alive[name]))
            except MemoryError:
                continue
            run(FILL, name, list(alive[name]))
        else:
            name = next(names)
            alive[name] = draw(st.lists(few, min_size=1, max_size=3 * P + 1))
            run(OPEN, name, list(alive[name]))
            try:
                run(GROW, name, len(alive[name]))
            except MemoryError:
                run(CLOSE, name)
                del alive[name]
                continue
            run(FILL, name, alive[name][: draw(st.sampled_from((99, 99, len(alive[name]) - 1)))])
    yield tables_of(n, P, *steps)


@BlockTables.edge
def _():
    yield tables_of(3, 2, (OPEN, "a", [1])), "one token"
    yield (
        tables_of(3, 2, (OPEN, "a", [1]), (GROW, "a", 1), (GROW, "a", 2), (GROW, "a", 3)),
        "token by token",
    )
    yield (
        tables_of(6, 2, (OPEN, "a", [1, 2, 3, 4]), (GROW, "a", 4), (GROW, "a", 2)),
        "room for fewer",
    )
    yield tables_of(3, 2, (OPEN, "a", [1]), (GROW, "a", 0), (FILL, "a", [])), "room for none"
    yield tables_of(3, 2, *lived("a", [1, 2]), (OPEN, "b", [1, 2])), "all of its tokens are known"
    yield (
        tables_of(4, 2, *lived("a", [1, 2, 3, 4]), (OPEN, "b", [1, 2, 3, 4])),
        "two full blocks, and no more",
    )
    yield (
        tables_of(4, 1, *lived("a", [1, 1]), (OPEN, "b", [1, 1, 1])),
        "blocks of one token, all alike",
    )
    yield (
        tables_of(5, 2, *lived("a", [1, 2, 3, 4], 3), (OPEN, "b", [1, 2, 3, 4, 5])),
        "the second block is not full yet",
    )
    yield (
        tables_of(6, 2, *lived("a", [1, 2, 3, 4, 5]), (OPEN, "b", [1, 2, 9, 9, 5])),
        "equal, different, equal",
    )
    yield (
        tables_of(6, 2, *lived("a", [1, 2, 3, 4]), (OPEN, "b", [3, 4, 3, 4, 5])),
        "a block that is equal, at another place",
    )
    yield (
        tables_of(
            6, 2, *lived("a", [1, 2]), *lived("b", [7, 8, 1, 2]), (OPEN, "c", [1, 2, 1, 2, 3])
        ),
        "equal blocks behind different beginnings",
    )
    same = (OPEN, "a", [1, 2]), (OPEN, "b", [1, 2]), (GROW, "a", 2), (GROW, "b", 2)
    both = (FILL, "a", [1, 2]), (FILL, "b", [1, 2])
    yield (
        tables_of(4, 2, *same, *both, (OPEN, "c", [1, 2, 3])),
        "read twice at the same time: the first stays known",
    )
    yield (
        tables_of(4, 2, *same, *both, (CLOSE, "b"), (OPEN, "c", [1, 2, 3])),
        "read twice, and the second is closed",
    )
    yield (
        tables_of(2, 2, *same, *both, (CLOSE, "b"), *lived("c", [5, 6]), (OPEN, "d", [1, 2, 3])),
        "read twice, and the second one's block is taken for something else",
    )
    longer = (GROW, "b", 4), (FILL, "b", [1, 2, 3, 4])
    yield (
        tables_of(
            3,
            2,
            *same,
            *both,
            *longer,
            (CLOSE, "a"),
            *lived("c", [7, 8]),
            (OPEN, "d", [1, 2, 3, 4, 5]),
        ),
        "the first block is not known any more, the second still is",
    )
    yield (
        tables_of(
            3,
            2,
            *lived("a", [1, 2, 3, 4]),
            (CLOSE, "a"),
            *lived("b", [9, 9, 9]),
            (OPEN, "c", [1, 2, 3]),
        ),
        "of a closed sequence the last block is taken first, and its first is still known",
    )
    yield (
        tables_of(
            2,
            2,
            *lived("a", [1, 2, 3, 4]),
            (CLOSE, "a"),
            *lived("b", [7, 8]),
            (OPEN, "c", [1, 2, 3, 4, 5]),
            (OPEN, "d", [7, 8, 9]),
        ),
        "the taken block is known by what it holds now",
    )
    yield (
        tables_of(
            3,
            2,
            *lived("a", [1, 2]),
            (CLOSE, "a"),
            (OPEN, "b", [1, 2, 3]),
            (OPEN, "c", [1, 2, 4]),
            (GROW, "b", 3),
            (GROW, "c", 3),
        ),
        "shared by two after nobody had it",
    )
    yield (
        tables_of(
            4,
            2,
            *lived("a", [1, 2, 3]),
            (OPEN, "b", [1, 2, 4]),
            (GROW, "b", 3),
            (CLOSE, "a"),
            (OPEN, "c", [1, 2, 5]),
            (CLOSE, "b"),
            (CLOSE, "c"),
        ),
        "shared, and closed one after another",
    )
    yield (
        tables_of(2, 2, (OPEN, "a", [1, 2, 3]), (GROW, "a", 5), (GROW, "a", 4)),
        "too few blocks: nothing changes",
    )
    yield (
        tables_of(
            3,
            2,
            *lived("a", [1, 2, 3, 4]),
            (CLOSE, "a"),
            (OPEN, "b", [9]),
            (GROW, "b", 8),
            (OPEN, "c", [1, 2, 3, 4, 5]),
        ),
        "too few blocks: what was known still is",
    )
    yield (
        tables_of(
            4,
            2,
            *lived("a", [1, 2]),
            (GROW, "a", 4),
            (FILL, "a", [1, 2, 3, 4]),
            (OPEN, "b", [1, 2, 3, 4, 5]),
        ),
        "what was drawn is known, too",
    )
    yield (
        tables_of(3, 2, *lived("a", [1, 2]), (CLOSE, "a"), (OPEN, "a", [1, 2, 3])),
        "a name is used again",
    )


SHARED_FIRST = "range(self.block_size, len(tokens), self.block_size)"
BLOCK = "block = self._known.get(tuple(tokens[:end]))"
STOPS = "if block is None:\n                break"
SHARES = "            self.pool.share(block)\n"
HELD = "return len(table) * self.block_size"
MISSING = "missing = paged_kv_blocks(length, self.block_size) - len(table)"
FORGETS = "self._known.pop(self._holds.pop(block, ()), None)"
FULL = "self.tables[name][: len(tokens) // self.block_size]"
BEGINNING = "beginning = tuple(tokens[: (i + 1) * self.block_size])"
KEPT = "if beginning not in self._known:"
REVERSED = "for block in reversed(self.tables.pop(name)):"
OWN_TOKENS = (
    "You know a block by its own tokens alone. Its keys depend on all tokens before it: behind another beginning the "
    "same tokens have other keys."
)
STALE = (
    "A block that is taken is still known by what it held before, so that a later sequence shares another one's keys. "
    "Forget it when it is taken."
)
FORGOTTEN = (
    "You forget a sequence's blocks when it is closed. They stay known until they are taken: the next one with the same "
    "beginning shares them."
)
BlockTables.slips(
    {
        replace(
            SHARED_FIRST, SHARED_FIRST.replace("len(tokens)", "len(tokens) + 1")
        ): "You share all blocks of the "
        "sequence, also if they hold all of its tokens. Then no token is left to be read, and nothing says what comes "
        "next: at least one stays out.",
        replace(
            SHARED_FIRST, SHARED_FIRST.replace("len(tokens)", "len(tokens) - 1")
        ): "You keep two tokens out of the table. One is enough.",
        replace(
            SHARED_FIRST,
            SHARED_FIRST.replace("len(tokens)", "len(tokens) // self.block_size * self.block_size"),
        ): "You leave the last full block out of the table also where tokens follow it. It stays out only if its last "
        "token is the sequence's last.",
        replace(
            BLOCK,
            "block = self._known.get(tuple(tokens[end - self.block_size : end]))",
            BEGINNING,
            "beginning = tuple(tokens[i * self.block_size : (i + 1) * self.block_size])",
        ): OWN_TOKENS,
        replace(
            STOPS, "if block is None:\n                continue"
        ): "You pass over a block that is not known and "
        "share later ones. Then the table's block i is not the sequence's block i. The table ends at the first gap.",
        replace(
            SHARES, ""
        ): "You do not count the use of a shared block: it becomes free while a table still has it.",
        replace(
            HELD, "return len(table)"
        ): "You return the number of blocks. Asked is how many tokens they hold.",
        replace(
            HELD, "return len(tokens) - len(table) * self.block_size"
        ): "You return how many tokens are left to be read. Asked is how many are held.",
        replace(
            HELD,
            "self.grow(name, len(tokens))\n        return len([b for b in table if b in self._holds]) * self.block_size",
        ): "`open` takes blocks for all tokens in your code. It only shares; `grow` takes.",
        replace(
            MISSING, "missing = paged_kv_blocks(length, self.block_size)"
        ): "`grow` takes blocks for all tokens, "
        "although the table has some already. It takes what is missing.",
        replace(
            MISSING, "missing = length - len(table) * self.block_size"
        ): "You take as many blocks as tokens are missing. A block has room for P of them.",
        replace(
            MISSING, "missing = length // self.block_size - len(table)"
        ): "You round down: the last tokens have no block.",
        replace(
            MISSING, "missing = length // self.block_size + 1 - len(table)"
        ): "Tokens that fill their blocks get one more in your code. Round up, and no further.",
        replace(
            "max(missing, 0)", "missing"
        ): "Your code fails for a table that has room already. Then there is nothing to take.",
        replace(FORGETS, "pass"): STALE,
        replace(FORGETS, "self._holds.pop(block, None)"): STALE,
        replace(
            "for block in self.pool.take(max(missing, 0)):",
            "for block in (block for _ in range(missing) for block in self.pool.take(1)):",
        ): "Where too few blocks are free, you have taken some before MemoryError comes. Take all at once, so that "
        "nothing changes.",
        replace(
            "for block in self.pool.take(max(missing, 0)):",
            "for block in self.pool.take(min(max(missing, 0), len(self.pool))):",
        ): "Where too few blocks are free you take those that there are. MemoryError is due, and nothing changes.",
        replace(
            FULL, "self.tables[name][:1]"
        ): "Only the first block becomes known. All that are full do.",
        replace(
            FULL, "self.tables[name][: max(len(tokens) // self.block_size - 1, 0)]"
        ): "The last full block is not known in your code.",
        replace(
            KEPT, "if True:"
        ): "A beginning that is known already gets another block. It stays with the one that it "
        "has.",
        replace(
            KEPT,
            "if True:",
            FORGETS,
            "old = self._holds.pop(block, ())\n"
            "            if self._known.get(old) == block:\n                del self._known[old]",
        ): "A beginning that is known already gets another block. It stays with the one that it "
        "has.",
        replace(
            "            self.pool.release(block)",
            "            self.pool.release(block)\n            self._known.pop(self._holds.pop(block, ()), None)",
        ): FORGOTTEN,
        replace(
            REVERSED,
            "for block in self.tables.pop(name):",
            "            self.pool.release(block)",
            "            self.pool.release(block)\n            if self.pool.uses[block] == 0:\n"
            "                self._known.pop(self._holds.pop(block, ()), None)",
        ): FORGOTTEN,
        replace(
            "for block in self.pool.take(max(missing, 0)):",
            "for block in (block for _ in range(missing) for block in self.pool.take(1)):",
            FORGETS,
            "pass",
        ): STALE,
        replace(
            "            self.pool.release(block)",
            "            self.pool.release(block)\n            if self.pool.uses[block] == 0:\n"
            "                self._known.pop(self._holds.pop(block, ()), None)",
        ): FORGOTTEN,
        replace(
            REVERSED, "for block in self.tables.pop(name):"
        ): "You release the first block first. The last one goes "
        "first, so that beginnings, which more sequences have in common, stay known for longer.",
        replace(
            REVERSED, "for block in reversed(self.tables[name]):"
        ): "A closed sequence still has a table in your code.",
        replace(
            "            self.pool.release(block)",
            "            if self.pool.uses[block] == 1:\n                self.pool.release(block)",
        ): "You release only blocks that no other table has. Each table gives its own use back.",
        replace(
            "            self.pool.release(block)",
            "            while self.pool.uses[block]:\n                self.pool.release(block)",
        ): "You take a shared block away from the other tables, too. A table gives back its own use.",
        replace(
            "            self.pool.release(block)", "            pass"
        ): "The blocks of a closed sequence are never free again.",
    }
)


for other in ("len(tokens) // self.block_size + 1", ""):
    BlockTables.equivalent(
        "BlockTables.fill: `self.tables[name][:len(tokens) // self.block_size]` → "
        f"`self.tables[name][:{other}]`",
        because="a beginning that is no whole number of blocks is never asked for",
    )
BlockTables.equivalent(
    "BlockTables.fill: `len(tokens) // self.block_size` → `len(tokens) * self.block_size`",
    because="a beginning that is no whole number of blocks is never asked for",
)


@BlockTables.alternative("a tree of blocks: each node knows its tokens")
class _:
    def __init__(self, n_blocks, block_size):
        self.pool = serving.BlockPool(n_blocks)
        self.P = block_size
        self.tables = {}
        self.children = {}  # (number of the parent, tokens) → number; 0 is the root
        self.numbers = 0
        self.block = {}  # number of a node → its block

    def node(self, parent, tokens, make=False):
        key = (parent, tuple(tokens))
        if key not in self.children and make:
            self.numbers += 1
            self.children[key] = self.numbers
        return self.children.get(key)

    def open(self, name, tokens):
        node, found = 0, []
        for start in range(0, (len(tokens) - 1) // self.P * self.P, self.P):
            node = self.node(node, tokens[start : start + self.P])
            if node not in self.block:
                break
            found.append(self.block[node])
        for block in found:
            self.pool.share(block)
        self.tables[name] = found
        return self.P * len(found)

    def grow(self, name, length):
        count = -(-length // self.P) - len(self.tables[name])
        if count > 0:
            new = self.pool.take(count)
            self.block = {node: block for node, block in self.block.items() if block not in new}
            self.tables[name].extend(new)

    def fill(self, name, tokens):
        node = 0
        for i in range(len(tokens) // self.P):
            node = self.node(node, tokens[i * self.P : (i + 1) * self.P], make=True)
            self.block.setdefault(node, self.tables[name][i])

    def close(self, name):
        table = self.tables.pop(name)
        while table:
            self.pool.release(table.pop())


@BlockTables.alternative("a list: what each block holds")
class _:
    def __init__(self, n_blocks, block_size):
        self.pool, self.size = serving.BlockPool(n_blocks), block_size
        self.tables = {}
        self.holds = [None] * n_blocks

    def open(self, name, tokens):
        self.tables[name] = []
        while (len(self.tables[name]) + 1) * self.size < len(tokens):
            wanted = list(tokens[: (len(self.tables[name]) + 1) * self.size])
            if wanted not in self.holds:
                break
            block = self.holds.index(wanted)
            self.pool.share(block)
            self.tables[name] += [block]
        return self.size * len(self.tables[name])

    def grow(self, name, length):
        have = len(self.tables[name])
        need = (length + self.size - 1) // self.size
        if need > have:
            for block in self.pool.take(need - have):
                self.holds[block] = None
                self.tables[name] += [block]

    def fill(self, name, tokens):
        for i, block in enumerate(self.tables[name]):
            beginning = list(tokens[: (i + 1) * self.size])
            if len(beginning) == (i + 1) * self.size and beginning not in self.holds:
                self.holds[block] = beginning

    def close(self, name):
        for block in self.tables[name][::-1]:
            self.pool.release(block)
        del self.tables[name]
