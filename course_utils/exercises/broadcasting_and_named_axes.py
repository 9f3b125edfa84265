"""Exercises of chapter 3, broadcasting and named axes: from two shapes to an einsum of one's own."""
# ruff: noqa: B905 (mistakes are written as students write them)

from functools import reduce
from itertools import pairwise, product, zip_longest
from math import sqrt

import torch
from einops import rearrange, repeat
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.reference import broadcasting_and_named_axes as axes

NAN, INF = float("nan"), float("inf")


def normal(*shape, dtype=torch.float32, seed=0):
    """Fixed standard normal numbers for cases without draws."""
    drawn = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=drawn).to(dtype)


# ---------------------------------------------------------------------------- broadcast_shape

broadcast_shape = Exercise(
    axes.broadcast_shape,
    title="The shape of the result",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.a_tuple,
    hints=(
        "Write the shapes below one another, flush right. What do you put where one has no axis?",
        "Fill up with ones in front. Then each column is one axis: which sizes in it may differ?",
        "Leave the ones out of a column. What is left must be a single size; if nothing is left, the "
        "result has size 1.",
        (
            "edge cases",
            "A size of 0 is a size like any other: with 1 it gives 0, with 3 it is an error. And what "
            "is the shape of the result of no shape at all?",
        ),
    ),
)
broadcast_shape.by_hand(
    lambda: [
        (call((3, 1), (4,)), (3, 4)),
        (call((2, 1, 5), (3, 1)), (2, 3, 5)),
        (call((4, 3), (3,), (4, 1)), (4, 3)),
    ]
)


@broadcast_shape.cases
def _(draw):
    whole = draw(draws.shapes(max_dims=4, among=(1, 2, 3, 4, 5)))
    shapes = []
    for _ in range(draw(st.integers(1, 3))):
        kept = whole[draw(st.integers(0, len(whole))) :]
        shapes.append(tuple(draw(st.sampled_from((1, size))) for size in kept))
    yield call(*shapes)


@broadcast_shape.edge
def _():
    yield call(), "no shape at all"
    yield call((), ()), "two tensors without axes"
    yield call((), (2, 3)), "a tensor without axes goes with any shape"
    yield call((0,), (1,)), "a size of 0 against one of 1"
    yield call((2, 1), (0,)), "no columns"
    yield call((0,), (3,)), "3 does not shrink to 0"
    yield call((3, 3), (0,)), "3 does not shrink to 0, in whatever order they come"
    yield call((3,), (4,)), "3 and 4 do not go together"
    yield call((2, 3), (2,)), "shapes are aligned at the last axis"
    yield call((4,), (8,)), "4 is not repeated to 8, though it divides it"
    yield call((2, 3), (2, 3), (3, 3)), "the third shape does not fit"
    yield call((1,), (1,), (1, 1, 6)), "the longest shape comes last"
    yield call((3,), (1,), (4,)), "the first and the last do not go together"
    yield call((1,), (2,), (3,)), "the first goes with both others, which do not go together"


FALSY = (
    "A size of 0 goes with any other in your code: `if a and b` skips it, and so does `n > 1`. It is a size "
    "like any other: with 3 it is an error."
)
DIVIDES = "You repeat an axis whose size divides the other. Only a size of 1 is repeated."
broadcast_shape.slips(
    {
        replace(
            "set(sizes) - {1}",
            "{n for n in sizes if n > 1}",
            "max(others, default=1)",
            "min(sizes) and max(sizes)",
        ): FALSY,
        replace(
            "(1,) * (ndim - len(shape)) + tuple(shape)", "tuple(shape) + (1,) * (ndim - len(shape))"
        ): "You align the shapes at their first axes. Broadcasting aligns them at the last: fill up "
        "with ones in front.",
        replace(
            "len(others) > 1", "False"
        ): "You let any two sizes meet. Sizes other than 1 must be "
        "equal: raise ValueError where they are not.",
        replace(
            "others = set(sizes) - {1}", "others = set(sizes)"
        ): "You ask for equal sizes on every axis. A size of 1 goes with any other: that axis is "
        "repeated.",
        replace(
            "max(others, default=1)", "max(sizes)"
        ): "You take the largest size. Against a size of 0 an axis of size 1 is repeated no times: the "
        "result has size 0.",
        replace(
            "len(others) > 1", "any(n not in (1, max(sizes)) for n in sizes)"
        ): "You take the largest size of an axis and refuse all others but 1, and so a 0 beside a 1. There the "
        "result has size 0: the 1 is repeated no times.",
        replace(
            *("len(others) > 1", "len(others) > 1 and sizes[0] != 1"),
            *("max(others, default=1)", "([1] + [n for n in sizes if n != 1])[-1]"),
        ): "You compare every shape with the first one only. Where that has size 1, two others may still differ: "
        "compare with the size found so far.",
        replace(
            "tuple(result)", "result"
        ): "You return a list. A shape is a tuple, and a list never equals one.",
        replace("raise ValueError", "raise RuntimeError"): "You raise RuntimeError, as torch does. "
        "ValueError is asked for.",
        replace("for shape in shapes]", "for shape in shapes[:2]]"): "You compare two shapes and "
        "leave out the rest. Any number may come.",
        replace("len(others) > 1", "any(n and max(others) % n for n in others)"): DIVIDES,
        replace(
            "len(others) > 1", "any(max(others) % n if min(others) else n for n in others)"
        ): DIVIDES,
        replace("set(sizes) - {1}", "set(sizes) - {0, 1}"): "You treat a size of 0 like 1. It is a "
        "size like any other: with 1 it gives 0, with 3 it is an error.",
        replace(
            "    ndim", "    if not shapes:\n        raise TypeError\n    ndim"
        ): "Without any shape your code raises TypeError: reduce, for one, has nothing to begin with. Start "
        "from (), which is the result there.",
        replace(
            "    ndim", "    if not shapes:\n        raise IndexError\n    ndim"
        ): "Without any shape there is no shapes[0], and your code raises. The result is the shape of a "
        "single number, ().",
        replace(
            ", default=0", ""
        ): "Without any shape there is no longest one, and your code raises. "
        "The result is the shape of a single number, ().",
        replace(
            "max(map(len, shapes), default=0)",
            "min(map(len, shapes), default=0)",
            "(1,) * (ndim - len(shape)) + tuple(shape)",
            "tuple(shape)[len(shape) - ndim :]",
        ): "You stop at the shortest shape. The axes that only the longer ones have are axes of the "
        "result too.",
    }
)


@broadcast_shape.mistake(
    "You compare each shape with the one before it only. Put the shapes together first: (3,), (1,) and "
    "(4,) clash, though no two neighbours do."
)
def _(*shapes):
    for one, other in pairwise(shapes):
        axes.broadcast_shape(one, other)
    ndim = max(map(len, shapes), default=0)
    whole = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*whole))


@broadcast_shape.mistake(
    "You pair the shapes from their first axes, and stop where the shorter one ends. Go from the last "
    "axes, and keep those that only one of them has."
)
def _(*shapes):
    whole = list(shapes[0]) if shapes else []
    for shape in shapes[1:]:
        for axis, (a, b) in enumerate(zip(whole, shape)):
            if a != b and 1 not in (a, b):
                raise ValueError(axis)
            whole[axis] = max(a, b)
    return tuple(whole)


@broadcast_shape.mistake(
    "You take sizes of 0 and 1 for free (`<= 1`). Only 1 is: 0 is a size that 3 does not go with."
)
def _(*shapes):
    whole = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis in range(-len(shape), 0):
            if whole[axis] <= 1:
                whole[axis] = shape[axis]
            elif shape[axis] > 1 and shape[axis] != whole[axis]:
                raise ValueError(axis)
    return tuple(whole)


@broadcast_shape.mistake(FALSY)
def _(*shapes):
    whole = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis in range(-len(shape), 0):
            old, new = whole[axis], shape[axis]
            if old and new and old != new and 1 not in (old, new):
                raise ValueError(axis)
            whole[axis] = new if old == 1 else old
    return tuple(whole)


@broadcast_shape.mistake(FALSY)
def _(*shapes):
    whole = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis in range(-len(shape), 0):
            old, new = whole[axis], shape[axis]
            if old and new and old != new and 1 not in (old, new):
                raise ValueError(axis)
            whole[axis] = old if new == 1 else new
    return tuple(whole)


@broadcast_shape.alternative("fold two at a time, from the right")
def _(*shapes):
    def two(one, other):
        sizes: list[int] = []
        for a, b in zip_longest(reversed(one), reversed(other), fillvalue=1):
            if a != b and a != 1 and b != 1:
                raise ValueError((a, b))
            sizes.insert(0, b if a == 1 else a)
        return tuple(sizes)

    return reduce(two, shapes, ())


@broadcast_shape.alternative("ask torch, with the error asked for")
def _(*shapes):
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError as error:
        raise ValueError(*error.args) from None


broadcast_shape.equivalent(
    "broadcast_shape: `default=0` → `default=1`",
    because="without any shape nothing is aligned, whatever the number of axes",
)
broadcast_shape.equivalent(
    "broadcast_shape: `default=0` → `default=-1`",
    because="without any shape nothing is aligned, whatever the number of axes",
)
broadcast_shape.equivalent(
    "broadcast_shape: `enumerate(zip(*aligned, strict=True), start=-ndim)` → `enumerate(zip(*aligned, strict=True))`",
    because="the number of the axis stands in the message only",
)
broadcast_shape.equivalent(
    "broadcast_shape: `zip(*aligned, strict=True)` → `zip(*aligned)`",
    because="the shapes were filled up to one length",
)
broadcast_shape.equivalent(
    "broadcast_shape: `strict=True` → `strict=False`",
    because="the shapes were filled up to one length",
)
broadcast_shape.equivalent(
    "broadcast_shape: `-ndim` → `ndim`", because="the number of the axis stands in the message only"
)
broadcast_shape.equivalent(
    "broadcast_shape: `max(others, default=1)` → `min(others, default=1)`",
    because="at most one size is left there",
)


# ---------------------------------------------------------------------------- batched_outer

batched_outer = Exercise(
    axes.batched_outer,
    title="All products of two vectors",
    difficulty=1,
    minutes=8,
    points=2,
    gradients=("x", "y"),
    hints=(
        "The result has one axis more than x and y. Which shapes, (…, N, ?) and (…, ?, M), broadcast "
        "to (…, N, M)?",
        "None in an index adds an axis of size one; `...` stands for all axes of the batch.",
        "`x[..., :, None]` is a column for each entry of the batch.",
    ),
)


@batched_outer.by_hand
def _():
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    yield call(x, y), torch.tensor([[3.0, 5.0], [6.0, 10.0]])
    yield call(x[None], torch.tensor([[1.0, 0.0, 4.0]])), torch.tensor([[[1.0, 0, 4], [2, 0, 8]]])


@batched_outer.cases
def _(draw):
    N, M = draw(draws.distinct_sizes(2))
    batch = draw(draws.shapes(max_dims=2, among=(1, 2, 3)))
    yield call(draw(draws.tensors((*batch, N))), draw(draws.tensors((*batch, M))))


@batched_outer.edge
def _():
    yield call(normal(3, 3), normal(3, 3, seed=1)), "batch, N and M of one size"
    yield call(normal(1), normal(4)), "one element"
    yield call(normal(0, 2), normal(0, 3)), "an empty batch"
    yield call(normal(2, 0), normal(2, 3)), "an empty vector"
    yield call(draws.scattered(normal(2, 3, 4)), draws.scattered(normal(2, 3, 5))), "not contiguous"
    yield call(torch.tensor([NAN, 1.0]), torch.tensor([0.0, 2.0])), "NaN in one row"
    yield call(normal(2, 3, dtype=torch.float64), normal(2, 2, dtype=torch.float64)), "float64"
    yield call(normal(2, 3, dtype=torch.bfloat16), normal(2, 2, dtype=torch.bfloat16)), "bfloat16"


batched_outer.contract(
    contracts.constant_kernels(
        [call(normal(B, N), normal(B, M)) for B, N, M in ((2, 3, 4), (16, 3, 4), (16, 24, 32))],
        says="no Python loop over the batch or the elements",
    )
)
batched_outer.contract(
    contracts.allocates(
        [call(normal(8, 32), normal(8, 64))],
        limit=8 * 32 * 64 * 4,
        says="nothing is allocated but the result: neither x nor y is repeated in memory",
    )
)
PRODUCT = "x[..., :, None] * y[..., None, :]"
batched_outer.slips(
    {
        replace(PRODUCT, "x[..., None, :] * y[..., :, None]"): "Rows and columns are exchanged: "
        "outer[..., i, j] is x[..., i] * y[..., j], so x is the column.",
        replace(
            PRODUCT, "x * y"
        ): "You multiply element by element. Every element of x meets every "
        "element of y: two axes, so each of them needs a new one.",
        replace(
            PRODUCT, "(x * y).sum(-1)"
        ): "This is the inner product: one number an entry. Nothing "
        "is summed in the outer product.",
        replace(
            PRODUCT, "(x * y).sum(-1, keepdim=True)[..., None]"
        ): "This is the inner product with "
        "two axes of size one. Nothing is summed in the outer product.",
        replace(" * ", " + "): "You add. The elements are multiplied.",
        replace(
            PRODUCT, "x[:, None] * y[None]"
        ): "You count the axes from the left, which is right "
        "without a batch only. `...` stands for the batch: x[..., :, None].",
        replace(PRODUCT, "torch.outer(x, y)"): "torch.outer takes two vectors and no batch.",
        replace(
            PRODUCT, "(x[..., :, None] * y[..., None, :]).flatten(-2)"
        ): "You flatten the table into one axis of N · M. The result keeps both, (…, N, M).",
        replace(
            PRODUCT, "x[..., :, None] * y"
        ): "y needs an axis too: against (…, N, 1) a y of shape "
        "(…, M) aligns its batch with the axis of N. Use y[..., None, :].",
        replace(PRODUCT, "(x[..., :, None] * y[..., None, :]).float()"): "The result is always "
        "float32. It has the dtype of x and y.",
        replace(PRODUCT, "x.float()[..., :, None] * y.float()[..., None, :]"): "You multiply in "
        "float32 (`.float()`, or a new tensor without a dtype), and the result stays in it. It has the "
        "dtype of x and y.",
        replace(
            PRODUCT, "(x.float()[..., :, None] * y.float()[..., None, :]).to(x.dtype)"
        ): "You multiply in float32: float64 loses more than half of its digits on the way. x and y have one "
        "dtype, so multiply them as they are.",
        replace(
            PRODUCT,
            "(x.reshape(-1, x.size(-1), 1) * y.reshape(-1, 1, y.size(-1)))"
            ".reshape(*x.shape, y.size(-1))",
        ): "An empty vector makes your code raise: torch.stack has no row to stack then, and "
        "`reshape(-1, …)` cannot tell the number of entries. `...` stands for the batch as it is.",
        replace(
            PRODUCT, "torch.bmm(x[:, :, None], y[:, None])"
        ): "Your code takes exactly one axis for the batch, as torch.bmm does. There may be none, or several: "
        "`...` stands for all of them.",
        replace(
            "x[..., :, None]", "x.unsqueeze_(-1)"
        ): "unsqueeze_, with an underscore, changes the "
        "caller's x. `unsqueeze` and an index with None make a view.",
        replace(
            PRODUCT, "x.unsqueeze_(-1) * y.unsqueeze_(-2)"
        ): "unsqueeze_, with an underscore, changes the caller's x and y. `unsqueeze` and an index with None "
        "make views.",
        replace(
            PRODUCT, "x.unsqueeze(1) * y.unsqueeze(2)"
        ): "You count the new axes from the left, which depends on the batch, and give x the row. x is the "
        "column: its new axis is the last, y's the last but one.",
        replace(
            PRODUCT, "torch.einsum('bn,bm->bnm', x, y)"
        ): "Your equation has one axis for the batch. There may be none, or several: `...n,...m->...nm`.",
    }
)


@batched_outer.mistake(
    "An empty batch makes your code raise: torch.stack, for one, has no table to stack then. `...` stands "
    "for the batch as it is, and no loop is needed."
)
def _(x, y):
    if x.ndim == 1:
        return torch.outer(x, y)
    entries = zip(x.flatten(0, -2), y.flatten(0, -2))
    return torch.stack([torch.outer(u, v) for u, v in entries]).reshape(*x.shape, y.size(-1))


@batched_outer.mistake(
    "The values are right, but Python goes through the entries of the batch one at a time. `...` in an "
    "index stands for all of them.",
    cost=True,
)
def _(x, y):
    result = x.new_empty(*x.shape, y.size(-1))
    for at in product(*map(range, x.shape[:-1])):
        result[at] = torch.outer(x[at], y[at])
    return result


@batched_outer.mistake(
    "The values are right, but Python goes through the entries of the batch, and in each through the "
    "elements of a vector. One product of columns and rows does them all.",
    cost=True,
)
def _(x, y):
    result = x.new_empty(*x.shape, y.size(-1))
    for at in product(*map(range, x.shape)):
        result[at] = x[at] * y[at[:-1]]
    return result


@batched_outer.mistake(
    "The values are right, but Python goes through the elements of a vector one at a time. One product "
    "of a column and a row does them all.",
    cost=True,
)
def _(x, y):
    rows = [x[..., i, None] * y for i in range(x.size(-1))]
    return torch.stack(rows, -2) if rows else x[..., :, None] * y[..., None, :]


@batched_outer.mistake(
    "The values are right, but you store every repetition of x before you multiply. Broadcasting "
    "repeats without storing.",
    cost=True,
)
def _(x, y):
    return x[..., :, None].repeat((1,) * x.ndim + y.shape[-1:]) * y[..., None, :]


@batched_outer.mistake(
    "The values are right, but you store every repetition of both x and y before you multiply. Broadcasting "
    "repeats without storing.",
    cost=True,
)
def _(x, y):
    N, M = x.size(-1), y.size(-1)
    tiled = y.repeat((1,) * (y.ndim - 1) + (N,))
    return (x.repeat_interleave(M, -1) * tiled).unflatten(-1, (N, M))


batched_outer.alternative("einsum")(lambda x, y: torch.einsum("...n,...m->...nm", x, y))
batched_outer.alternative("unsqueeze")(lambda x, y: x.unsqueeze(-1) * y.unsqueeze(-2))
batched_outer.alternative("a matrix product that sums over one axis of size one")(
    lambda x, y: x.unsqueeze(-1) @ y.unsqueeze(-2)
)


# ---------------------------------------------------------------------------- unbroadcast

unbroadcast = Exercise(
    axes.unbroadcast,
    title="The sum that undoes a broadcast",
    difficulty=2,
    minutes=15,
    points=3,
    hints=(
        "An element that was used five times receives five gradients. What becomes of them?",
        "Two kinds of axes were repeated: those that `shape` lacks in front, and those where it has "
        "size 1. The first disappear, the second stay with size 1.",
        "Fill `shape` up with ones in front; sum over each axis where it now has 1, with keepdim=True; "
        "then reshape to `shape`.",
        (
            "edge cases",
            "What does `grad.sum([])` do? It sums over *all* axes: an empty list needs a branch.",
        ),
    ),
)


@unbroadcast.by_hand
def _():
    grad = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    yield call(grad, (3,)), torch.tensor([11.0, 22.0, 33.0])
    yield call(grad, (2, 1)), torch.tensor([[6.0], [60.0]])
    yield call(grad, ()), torch.tensor(66.0)
    yield call(grad, (2, 3)), grad


@unbroadcast.cases
def _(draw):
    whole = draw(draws.shapes(max_dims=4, among=(2, 3, 4)))
    kept = whole[draw(st.integers(0, len(whole))) :]
    shape = tuple(draw(st.sampled_from((1, size))) for size in kept)
    yield call(draw(draws.tensors(whole)), shape)


@unbroadcast.edge
def _():
    yield call(normal(3, 3, 3), (3, 1, 3)), "axes of one size"
    yield call(normal(3, 3), (3,)), "a square: rows are summed, not columns"
    yield call(normal(2, 3, 4), (3, 4)), "a new axis in front, and no other was repeated"
    yield call(normal(2, 1, 3), (2, 1, 3)), "an axis of size one that was not repeated"
    yield call(normal(1, 1, 4), (1,)), "new axes of size one, and one that grew"
    yield call(normal(0, 3), (3,)), "repeated no times: the sum of nothing is 0"
    yield call(normal(0, 3, dtype=torch.float64), (3,)), "the sum of nothing, in float64"
    yield call(normal(2, 0), (2, 1)), "an axis of size one that shrank to none"
    yield call(torch.tensor(2.5), ()), "one number"
    yield call(draws.scattered(normal(3, 4, 5)), (4, 1)), "not contiguous"
    yield call(normal(4, 3, dtype=torch.float64), (1, 3)), "float64"
    yield call(normal(64, 3, dtype=torch.bfloat16), (3,)), "bfloat16"
    yield call(torch.tensor([[NAN, 1.0], [2.0, 3.0]]), (2,)), "NaN in one column"
    yield call(torch.ones(2, 3).expand(4, 2, 3), (2, 1)), "an expanded gradient, stride 0"


unbroadcast.contract(
    contracts.constant_kernels(
        [call(normal(n, 3, m), (3, 1)) for n, m in ((2, 4), (16, 4), (16, 64))],
        says="no Python loop over the elements of an axis",
    )
)
ALIGNED = "(1,) * (grad.ndim - len(shape)) + tuple(shape)"
SUMMED = "grad.sum(repeated, keepdim=True)"
unbroadcast.slips(
    {
        replace(
            SUMMED, "grad.mean(repeated, keepdim=True)"
        ): "You average. An element that was used "
        "n times receives the sum of n gradients, not their mean.",
        replace(
            "if size == 1]",
            "if axis < grad.ndim - len(shape)]",
            "keepdim=True) if repeated else grad).reshape(shape)",
            "keepdim=False) if repeated else grad)",
        ): "You sum over the new axes only. Those where `shape` has size 1 were repeated as well.",
        replace(
            ALIGNED, "(0,) * (grad.ndim - len(shape)) + tuple(shape)", ".reshape(shape)", ""
        ): "You sum over the axes of size 1 only. Those that `shape` lacks in front were repeated as "
        "well.",
        replace(
            ", keepdim=True", "", ".reshape(shape)", ""
        ): "An axis on which `shape` has size 1 is gone from your result. It stays, with size 1: "
        "keepdim=True, or reshape to `shape`.",
        replace(
            ".reshape(shape)", ""
        ): "Your result keeps the new axes in front, with size 1. It is to have `shape`.",
        replace(
            " if repeated else grad", ""
        ): "Where nothing was repeated your list of axes is empty, "
        "and `grad.sum([])` sums over all axes. Return grad there.",
        replace(
            ALIGNED, "tuple(shape) + (1,) * (grad.ndim - len(shape))"
        ): "You align the shapes at their first axes. Broadcasting aligns them at the last: the new "
        "axes are in front.",
        replace(
            SUMMED, "grad.amax(repeated, keepdim=True)"
        ): "You keep the largest gradient of the copies. All of them add up.",
        replace(
            SUMMED, "grad[tuple(slice(1 if n == 1 else None) for n in aligned)]"
        ): "You keep the gradient of one copy. All copies' gradients add up.",
        replace(
            "keepdim=True", "keepdim=True, dtype=torch.float32"
        ): "Your sums are always float32. The result has grad's dtype.",
        replace(
            "(grad.sum(", "(grad.double().sum(", "else grad)", "else grad.double())"
        ): "Your sums are float64. The result has grad's dtype.",
        replace(
            "    aligned =",
            "    if not grad.numel():\n        return torch.zeros(shape)\n    aligned =",
        ): "Where grad has no element your zeros are float32, torch's default. The result has grad's dtype.",
        replace(
            "if size == 1]", "if size == 1 and grad.size(axis) > 1]"
        ): "You leave out axes whose size in grad is 1 or 0. The sum over an axis of size 0 is needed "
        "too: it is 0, in an axis of size 1.",
    }
)


@unbroadcast.mistake(
    "You compare grad's sizes with those of `shape` from the first axes. Broadcasting aligns the last: "
    "fill `shape` up with ones in front."
)
def _(grad, shape):
    differ = [axis for axis, (n, m) in enumerate(zip(grad.shape, shape)) if n != m]
    return grad.sum(differ, keepdim=True) if differ else grad


@unbroadcast.mistake(
    "You sum over the axes of size 1 first, counted from grad's front. `shape` may have fewer axes: sum "
    "its missing ones away before you look at the others."
)
def _(grad, shape):
    for axis, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(axis, keepdim=True)
    while grad.ndim > len(shape):
        grad = grad.sum(0)
    return grad


@unbroadcast.mistake(
    "You compare the sizes while grad still has its additional axes in front, so each is compared with "
    "another axis of `shape`. Sum the additional ones away first."
)
def _(grad, shape):
    for axis, size in enumerate(shape):
        if grad.size(axis) != size:
            grad = grad.sum(axis, keepdim=True)
    while grad.ndim > len(shape):
        grad = grad.sum(0)
    return grad


SUM_OF_NO_AXES = (
    "A list of axes that you hand to `sum` is empty where none of them was repeated, and `sum([])` sums "
    "over all axes. Call it only for a list that has some."
)


def repeated_axes(grad, shape, all_ones):
    """The axes that `shape` lacks in front, and where it has size 1, if grad has another size there
    or all_ones."""
    lead = grad.ndim - len(shape)
    ones = [lead + i for i, n in enumerate(shape) if n == 1]
    return list(range(lead)), [axis for axis in ones if all_ones or grad.size(axis) != 1]


for all_ones in (True, False):

    @unbroadcast.mistake(SUM_OF_NO_AXES)
    def _(grad, shape, all_ones=all_ones):
        new, ones = repeated_axes(grad, shape, all_ones)
        return grad.sum(new + ones, keepdim=True)[(0,) * len(new)]

    @unbroadcast.mistake(SUM_OF_NO_AXES)
    def _(grad, shape, all_ones=all_ones):
        new, _ = repeated_axes(grad, shape, all_ones)
        for _ in new:
            grad = grad.sum(0)
        return grad.sum(repeated_axes(grad, shape, all_ones)[1], keepdim=True)

    @unbroadcast.mistake(SUM_OF_NO_AXES)
    def _(grad, shape, all_ones=all_ones):
        grad = grad.sum(repeated_axes(grad, shape, all_ones)[0])
        ones = [axis for axis, n in enumerate(shape) if n == 1]
        return grad.sum([axis for axis in ones if all_ones or grad.size(axis) != 1], keepdim=True)


@unbroadcast.mistake(SUM_OF_NO_AXES)
def _(grad, shape):
    new, ones = repeated_axes(grad, shape, all_ones=False)
    return grad.sum(new + ones).reshape(shape)


@unbroadcast.mistake(SUM_OF_NO_AXES)
def _(grad, shape):
    new, ones = repeated_axes(grad, shape, all_ones=True)
    grad = grad.sum(ones, keepdim=True) if ones else grad
    return grad.sum(new)


@unbroadcast.mistake(
    "An axis that was repeated and on which `shape` has size 1 is gone from your result. It stays, with "
    "size 1: keepdim=True."
)
def _(grad, shape):
    new, ones = repeated_axes(grad, shape, all_ones=False)
    return grad.sum(new + ones) if new + ones else grad


MOVED_UP = (
    "You sum one axis after the other without keepdim: each is gone, and those behind it have moved up by "
    "one before you come to them. keepdim=True leaves the numbers as they are."
)
for all_ones in (True, False):

    @unbroadcast.mistake(MOVED_UP)
    def _(grad, shape, all_ones=all_ones):
        aligned = (1,) * (grad.ndim - len(shape)) + tuple(shape)
        for axis, (n, m) in enumerate(zip(aligned, grad.shape)):
            if n == 1 and (all_ones or m != 1):
                grad = grad.sum(axis)
        return grad.reshape(shape)

    @unbroadcast.mistake(MOVED_UP)
    def _(grad, shape, all_ones=all_ones):
        while grad.ndim > len(shape):
            grad = grad.sum(0)
        for axis, size in enumerate(shape):
            if size == 1 and (all_ones or grad.size(axis) != 1):
                grad = grad.sum(axis)
        return grad


@unbroadcast.mistake(
    "You sum only axes that are longer than 1. An axis of size 1 can have been repeated no times: the sum "
    "over its 0 elements is 0, and the axis has size 1 again."
)
def _(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(0)
    for axis, size in enumerate(shape):
        if size == 1 and grad.size(axis) > 1:
            grad = grad.sum(axis, keepdim=True)
    return grad


@unbroadcast.mistake(
    "You sum the last axes away until the number of axes fits. New axes are in front: sum those."
)
def _(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(-1)
    for axis, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(axis, keepdim=True)
    return grad


@unbroadcast.mistake(
    "You cut grad's elements, in their order, into blocks of `shape` and add those up. That is right only "
    "where all repeated axes are in front: ask of each axis whether it was repeated."
)
def _(grad, shape):
    size = torch.Size(shape).numel()
    blocks = grad.reshape(-1, *shape) if grad.numel() and size else grad.new_zeros(1, *shape)
    return blocks.sum(0)


@unbroadcast.mistake(
    "You sum until the number of elements fits, from the left. Ask of each axis whether it was "
    "repeated: shape (3, 1) from (3, 3) is a sum along the *last* axis."
)
def _(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(0)
    for axis in range(grad.ndim):
        if grad.numel() > torch.Size(shape).numel():
            grad = grad.sum(axis, keepdim=True)
    return grad


@unbroadcast.mistake(
    "The values are right, but Python adds the slices of an axis one by one. `sum` takes all axes at "
    "once.",
    cost=True,
)
def _(grad, shape):
    aligned = (1,) * (grad.ndim - len(shape)) + tuple(shape)
    for axis, size in enumerate(aligned):
        if size == 1 and grad.size(axis) > 1:
            grad = reduce(torch.add, grad.split(1, axis))
        elif size == 1:
            grad = grad.sum(axis, keepdim=True)
    return grad.reshape(shape)


@unbroadcast.mistake(
    "The values are right, but on an axis of size 1 Python adds the slices one by one. `sum` takes all axes at "
    "once.",
    cost=True,
)
def _(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(0)
    for axis, size in enumerate(shape):
        if size == 1 and grad.size(axis):
            grad = reduce(torch.add, grad.split(1, axis))
        elif size == 1:
            grad = grad.sum(axis, keepdim=True)
    return grad


unbroadcast.alternative("torch's own")(lambda grad, shape: grad.sum_to_size(shape))


@unbroadcast.alternative("sum the new axes away, then the others with keepdim")
def _(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(0)
    for axis, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(axis, keepdim=True)
    return grad


@unbroadcast.alternative("ask autograd for the backward of expand")
def _(grad, shape):
    with torch.enable_grad():
        x = grad.new_zeros(shape).requires_grad_()
        return torch.autograd.grad(x.expand(grad.shape), x, grad)[0]


unbroadcast.equivalent(
    "unbroadcast: `grad.sum(repeated, keepdim=True)` → `grad.sum(repeated)`",
    because="the reshape to `shape` gives or takes the axes of size one",
)
unbroadcast.equivalent(
    "unbroadcast: `keepdim=True` → `keepdim=False`",
    because="the reshape to `shape` gives or takes the axes of size one",
)


# ---------------------------------------------------------------------------- grouped_query_expand

grouped_query_expand = Exercise(
    axes.grouped_query_expand,
    title="Heads that share their keys",
    difficulty=2,
    minutes=10,
    points=2,
    probe=probes.view,
    hints=(
        "Which stride repeats an axis without storing it again? And where does the new axis belong?",
        "x[:, :, None] has an axis of size one behind the heads. `expand` lets it grow to G.",
        "In expand, -1 leaves an axis as it is.",
    ),
)


@grouped_query_expand.by_hand
def _():
    x = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]])  # two heads, one position
    first, second = [[[1.0, 2.0]]] * 3, [[[3.0, 4.0]]] * 3
    yield call(x, 3), torch.tensor([[first, second]])
    yield call(x, 1), torch.tensor([[first[:1], second[:1]]])
    by_time = torch.tensor([[[[1.0], [2.0]], [[3.0], [4.0]]]])  # (B, T, kv, D)
    one, other = [[[1.0], [3.0]]] * 2, [[[2.0], [4.0]]] * 2
    yield call(by_time.transpose(1, 2), 2), torch.tensor([[one, other]])


@grouped_query_expand.cases(20)
def _(draw):
    B, n, T, D = draw(draws.distinct_sizes(4, low=1, high=5))
    x = torch.arange(float(B * n * T * D)).view(B, n, T, D)
    if draw(st.booleans()):
        x = x.transpose(1, 2).contiguous().transpose(1, 2)  # as (B, T, kv, D) in memory
    yield call(x, draw(st.integers(1, 4)))


@grouped_query_expand.edge
def _():
    grid = torch.arange(16.0).view(2, 2, 2, 2)
    yield call(grid, 2), "all axes of one size"
    yield call(grid[:, :1], 4), "one head for all: multi-query attention"
    yield call(grid[1:, :, 1:], 2), "a slice of a cache begins in the middle of its storage"
    yield call(draws.scattered(torch.arange(24.0).view(1, 2, 3, 4)), 2), "not contiguous"
    yield call(torch.zeros(2, 2, 0, 4), 3), "an empty cache"
    yield call(grid.double(), 2), "float64"
    yield call(grid.int(), 2), "a cache of integers"


grouped_query_expand.contract(contracts.shares_storage([call(torch.zeros(2, 4, 32, 16), 8)]))
EXPANDED = "x[:, :, None].expand(-1, -1, G, -1, -1)"
grouped_query_expand.slips(
    {
        replace(
            EXPANDED, "x[:, :, None].repeat(1, 1, G, 1, 1)"
        ): "You store every copy, as repeat and stack do: G times the bytes. expand gives the new axis "
        "the stride 0.",
        replace(EXPANDED, "x[:, None].expand(-1, G, -1, -1, -1)"): "Your groups are outside of the "
        "heads, (B, G, kv, T, D). Query head n · G + g reads head n: G comes behind kv.",
        replace(
            EXPANDED,
            "x[:, None].expand(-1, G, -1, -1, -1).reshape(x.size(0), x.size(1), G, *x.shape[2:])",
        ): "You repeat in front of the heads, and then reshape. That keeps the order, so a group gets heads "
        "0, 1, 2, … in turn instead of its own. Put the new axis behind the heads.",
        replace(
            EXPANDED, "x.repeat(1, G, 1, 1).unflatten(1, (-1, G))"
        ): "repeat stores G copies, and in the order 0, 1, 2, …, 0, 1, 2, …, so a group gets other heads than "
        "its own. expand repeats each head in an axis behind the heads, and stores nothing.",
        replace(
            EXPANDED, "x.repeat_interleave(G, 1)"
        ): "repeat_interleave stores G copies of every "
        "head, in one axis. A view keeps an axis for the group, with stride 0.",
        replace(
            EXPANDED, "x.repeat(1, G, 1, 1)"
        ): "repeat stores G copies, and in the wrong order: "
        "all heads, then all heads again. Query head n · G + g reads head n.",
        replace(
            EXPANDED, "x[:, :, None]"
        ): "The axis of the group has size 1. It is to have size G: expand it.",
        replace(EXPANDED, EXPANDED + ".flatten(1, 2)"): "You merge heads and groups into one axis. "
        "Their strides do not merge (kv's is not G · 0), so flatten copies. Leave both axes.",
        replace(
            EXPANDED, EXPANDED + ".contiguous()"
        ): "contiguous stores every repetition. As a view, expand costs nothing.",
        replace(EXPANDED, "x[:, :, :, None].expand(-1, -1, -1, G, -1)"): "You put the group behind "
        "time. It comes behind the heads: (B, kv, G, T, D).",
        replace(
            EXPANDED, "x.expand(G, -1, -1, -1, -1)"
        ): "You put the group in front of everything. It comes behind the heads: (B, kv, G, T, D).",
        replace(EXPANDED, "x.unflatten(1, (-1, G))"): "You cut x's own heads into groups. x has kv "
        "heads, one for each group; the G query heads are to share it.",
        replace(
            EXPANDED, "x.contiguous()[:, :, None].expand(-1, -1, G, -1, -1)"
        ): "x.contiguous() copies an x that is not contiguous, and your result is a view of the copy. "
        "Expand x as it is.",
        replace(
            EXPANDED, f"x if G == 1 else {EXPANDED}"
        ): "For G = 1 you return x itself. The axis of the "
        "group is there all the same, with size 1.",
        replace(
            EXPANDED,
            "x.as_strided((*x.shape[:2], G, *x.shape[2:]), "
            "(x[0].numel(), x[0, 0].numel(), 0, x.size(3), 1))",
        ): "You compute the strides from the sizes, as if x were contiguous. Keys and values often are "
        "transposed: take x.stride(), or expand.",
        replace(
            EXPANDED,
            "x.as_strided((*x.shape[:2], G, *x.shape[2:]), "
            "(x[0].numel(), x[0, 0].numel(), 0, x.size(3), 1), 0)",
        ): "You compute the strides from the sizes, and begin at the storage's first slot. x may be a "
        "transposed slice: take x.stride() and x.storage_offset(), or expand.",
        replace(
            EXPANDED,
            "x.as_strided((*x.shape[:2], G, *x.shape[2:]), (*x.stride()[:2], 0, *x.stride()[2:]), 0)",
        ): "You begin at the storage's first slot (offset 0). A slice begins elsewhere: leave the offset "
        "out, and as_strided takes x's, or expand.",
    }
)
grouped_query_expand.mistake(
    "You let torch broadcast x against a full tensor: the result is a view, but the other tensor was "
    "allocated.",
    cost=True,
)(lambda x, G: x[:, :, None].expand_as(x.new_empty(x.size(0), x.size(1), G, x.size(2), x.size(3))))
grouped_query_expand.alternative("unsqueeze, with all sizes written out")(
    lambda x, G: x.unsqueeze(2).expand(x.size(0), x.size(1), G, x.size(2), x.size(3))
)
grouped_query_expand.alternative("einops' repeat, which is a view here")(
    lambda x, G: repeat(x, "B n T D -> B n G T D", G=G)
)


@grouped_query_expand.alternative("by strides")
def _(x, G):
    (B, n, T, D), (b, h, t, d) = x.shape, x.stride()
    return x.as_strided((B, n, G, T, D), (b, h, 0, t, d), x.storage_offset())


# ---------------------------------------------------------------------------- attention_scores

attention_scores = Exercise(
    axes.attention_scores,
    title="Scores of grouped heads, by einsum",
    difficulty=2,
    minutes=20,
    points=3,
    gradients=("q", "k"),
    hints=(
        "Begin with H = kv: `torch.einsum('bthd,bshd->bhts', q, k)`. Which letter is summed over?",
        "Cut q's heads into kv groups: `q.unflatten(2, (kv, -1))` is (B, T, kv, G, D). Now q has a "
        "letter that k does not have.",
        "With n for kv and g for G: the result 'bngts' has two axes of heads in the right order; "
        "flatten(1, 2) merges them.",
        (
            "contracts",
            "A letter that k lacks needs no copy of k: that is the point of the equation.",
        ),
    ),
)


@attention_scores.by_hand
def _():
    q = torch.tensor([[[[1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]]])  # two heads, one query
    k = torch.tensor([[[[2.0, 4.0, 0.0, 0.0]], [[0.0, 6.0, 0.0, 0.0]]]])  # one head, two keys
    yield call(q, k), torch.tensor([[[[1.0, 0.0]], [[4.0, 6.0]]]])


@attention_scores.cases
def _(draw):
    B, T, S, D = draw(draws.distinct_sizes(4))
    n, G = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    yield call(draw(draws.tensors((B, T, n * G, D))), draw(draws.tensors((B, S, n, D))))


@attention_scores.edge
def _():
    yield call(normal(4, 4, 4, 4), normal(4, 4, 4, 4, seed=1)), "all axes of one size"
    yield call(normal(4, 4, 4, 4), normal(4, 4, 2, 4, seed=1)), "one size, two groups of two"
    yield call(normal(1, 1, 6, 4), normal(1, 7, 1, 4, seed=1)), "one key head for all"
    yield call(normal(2, 3, 4, 1), normal(2, 5, 2, 1, seed=1)), "heads of one feature"
    yield call(normal(0, 3, 4, 2), normal(0, 5, 2, 2)), "an empty batch"
    yield call(normal(2, 3, 4, 2), normal(2, 0, 2, 2)), "no keys yet"
    scattered = draws.scattered(normal(2, 3, 4, 5)), draws.scattered(normal(2, 6, 2, 5, seed=1))
    yield call(*scattered), "not contiguous"
    doubles = normal(2, 3, 4, 5, dtype=torch.float64), normal(2, 6, 2, 5, dtype=torch.float64)
    yield call(*doubles), "float64"


attention_scores.contract(
    contracts.constant_kernels(
        [
            call(normal(B, T, n * G, 4), normal(B, S, n, 4))
            for B, T, S, n, G in (
                (2, 4, 6, 2, 2),
                (6, 4, 6, 2, 2),
                (6, 16, 24, 2, 2),
                (6, 16, 24, 8, 2),
                (6, 16, 24, 8, 6),
            )
        ],
        says="no Python loop over the batch, the heads or the positions",
    )
)
attention_scores.contract(
    contracts.largest_tensor(
        [call(normal(1, 2, 8, 16), normal(1, 64, 2, 16))],
        limit=64 * 2 * 16 * 4,
        says="nothing larger than q, k and the result: k's heads are not repeated",
    )
)
attention_scores.slips(
    {
        replace(" * q.size(-1) ** -0.5", ""): "The scale is missing: divide by √D.",
        replace("** -0.5", "** -1"): "You divide by D. The scores are divided by √D.",
        replace("** -0.5", "** 0.5"): "You multiply by √D. The scores are divided by it.",
        replace("q.size(-1)", "q.size(2)"): "You scale by the number of heads. D is the number of "
        "features of a head, q's last axis.",
        replace(
            "bngts", "bngst"
        ): "Queries and keys are exchanged: the rows are queries, the columns keys, (B, H, T, S).",
        replace(
            "(k.size(2), -1)", "(-1, k.size(2))", "btngd,bsnd->bngts", "btgnd,bsnd->bgnts"
        ): "Query head h reads your key head h % kv. Neighbours share: it is h // (H // kv), so the "
        "heads are cut into (kv, G), not (G, kv).",
        replace("(k.size(2), -1)", "(-1, k.size(2))", "btngd,", "btgnd,"): "You cut q's heads into "
        "(G, kv). Neighbours share a key head, h // (H // kv): cut them into (kv, G).",
        replace(
            "q.unflatten(2, (k.size(2), -1))",
            "q.reshape(q.size(0), q.size(1), k.size(2), -1, q.size(3))",
        ): "An empty batch makes your code raise: torch.stack has nothing to stack then, and reshape "
        "cannot infer the group (-1). It is H // kv; unflatten infers it from that axis alone.",
        replace(
            "q.size(-1) **", "(q.size(-1) * q.size(2)) **"
        ): "You scale by the width of all heads together. D is the number of features of one head.",
        replace(
            "scores.flatten(1, 2) * q.size(-1) ** -0.5",
            "(scores.flatten(1, 2) * q.size(-1) ** -0.5).tril()",
        ): "You have applied a causal mask. Here the scores themselves are asked for.",
        replace(
            "bngts", "bgnts"
        ): "The heads come out in another order: of the two axes the key heads "
        "are outside, the group inside.",
        replace(
            "bngts", "btngs", "flatten(1, 2)", "flatten(2, 3)"
        ): "Your result is (B, T, H, S). Heads come before the queries: (B, H, T, S).",
        replace(
            "scores.flatten(1, 2) * q.size(-1) ** -0.5",
            "(scores.flatten(1, 2) * q.size(-1) ** -0.5).softmax(-1)",
        ): "You have applied the softmax. Here the scores themselves are asked for.",
        replace(".flatten(1, 2)", ""): "The result has an axis for the key heads and one for the "
        "group. Merge them: H = kv · G.",
        replace(
            "q.unflatten(2, (k.size(2), -1))",
            "q",
            "btngd,bsnd->bngts",
            "bthd,bshd->bhts",
            ".flatten(1, 2)",
            "",
        ): "Your equation pairs each query head with a key head of its own number. There are fewer key "
        "heads: cut q's heads into groups first.",
        replace(
            "q.unflatten(2, (k.size(2), -1))",
            "q",
            "btngd,bsnd->bngts",
            "bthd,bsnd->bhts",
            ".flatten(1, 2)",
            "",
        ): "The letter of the key heads is not in your result, so you sum over all key heads. Each query "
        "head reads one of them.",
    }
)


@attention_scores.mistake(
    "The values are right, but every key head is stored once for each of its query heads. In an "
    "equation, q has a letter for the group and k does not.",
    cost=True,
)
def _(q, k):
    k = k.repeat_interleave(q.size(2) // k.size(2), dim=2)
    return torch.einsum("bthd,bshd->bhts", q, k) / sqrt(q.size(-1))


@attention_scores.mistake(
    "The values are right, but you make every product of a query's and a key's features before you "
    "sum: a tensor with an axis for D besides the result's. An einsum or a matrix product does not.",
    cost=True,
)
def _(q, k):
    grouped = q.unflatten(2, (k.size(2), -1)).permute(0, 2, 3, 1, 4)[..., None, :]
    products = grouped * k.permute(0, 2, 1, 3)[:, :, None, None]
    return products.sum(-1).flatten(1, 2) / sqrt(q.size(-1))


@attention_scores.mistake(
    "The values are right, but Python goes through the heads. One equation has a letter for them.",
    cost=True,
)
def _(q, k):
    G = q.size(2) // k.size(2)
    heads = [q[:, :, h] @ k[:, :, h // G].transpose(1, 2) for h in range(q.size(2))]
    return torch.stack(heads, 1) / sqrt(q.size(-1))


PRODUCTS = 'torch.einsum("btngd,bsnd->bngts", grouped, k)'
for looped, says in {
    'torch.stack([torch.einsum("btnd,bsnd->bnts", one, k) for one in grouped.unbind(3)], 2)': "The values are "
    "right, but Python goes through the heads of a group. They are a letter of the equation, too, one that k lacks.",
    'torch.cat([torch.einsum("btngd,bsnd->bngts", grouped, one) for one in k.split(1, 1)], -1)': "The values are "
    "right, but Python goes through the positions, of keys or queries. One equation has letters for both.",
}.items():
    attention_scores.mistake(says, replace(PRODUCTS, looped), cost=True)


@attention_scores.alternative("a matrix product, batched over heads and groups")
def _(q, k):
    B, T, H, D = q.shape
    grouped = q.transpose(1, 2).reshape(B, k.size(2), H // k.size(2) * T, D)
    scores = grouped @ k.permute(0, 2, 3, 1)
    return scores.reshape(B, H, T, k.size(1)) / sqrt(D)


@attention_scores.alternative("einops for the groups, the scale on q")
def _(q, k):
    grouped = rearrange(q * q.size(-1) ** -0.5, "b t (n g) d -> b n g t d", n=k.size(2))
    return rearrange(torch.einsum("bngtd,bsnd->bngts", grouped, k), "b n g t s -> b (n g) t s")


# ---------------------------------------------------------------------------- split, merge

split_and_merge = Exercise(
    (axes.split_heads, axes.merge_heads),
    title="Heads, and back",
    difficulty=2,
    minutes=12,
    points=3,
    probe=probes.split_and_merged,
    hints=(
        "Name the axes first. Channel c of x belongs to head h = c // D, as its feature d = c % D: "
        "that is (H D) in einops' notation.",
        'einops gets one pattern and the size that it cannot infer: `rearrange(x, "… -> …", H=n_head)`. '
        "In torch it is a view and a transpose.",
        "On the way back the transpose comes first. After it the heads are not side by side in memory: "
        "reshape, not view.",
    ),
)


@split_and_merge.by_hand
def _():
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]])  # two tokens
    heads = torch.tensor([[[[1.0, 2.0], [5.0, 6.0]], [[3.0, 4.0], [7.0, 8.0]]]])
    yield call(x, 2), {"split": heads, "merged": x}


@split_and_merge.cases
def _(draw):
    B, T, H, D = draw(draws.distinct_sizes(4, low=1, high=5))
    yield call(draw(draws.tensors((B, T, H * D))), H)


@split_and_merge.edge
def _():
    yield call(normal(4, 4, 16), 4), "all axes of one size"
    yield call(normal(2, 3, 6), 1), "one head"
    yield call(normal(2, 3, 6), 6), "heads of one feature"
    yield call(normal(2, 1, 6), 2), "one token"
    yield call(normal(0, 3, 6), 2), "an empty batch"
    yield call(normal(2, 0, 6), 2), "no token"
    yield call(draws.scattered(normal(2, 3, 6)), 2), "not contiguous"
    yield call(normal(2, 3, 18)[..., 6:12], 2), "the middle third: the keys of a joint projection"
    yield call(normal(2, 3, 6, dtype=torch.float64), 3), "float64"


SPLIT = 'rearrange(x, "B T (H D) -> B H T D", H=n_head)'
MERGE = 'rearrange(heads, "B H T D -> B T (H D)")'
split_and_merge.slips(
    {
        replace(
            SPLIT, "x.reshape(x.size(0), n_head, x.size(1), x.size(2) // n_head)"
        ): "Your split "
        "only reshapes: the shape is right, and the tokens are mixed up among the heads. Cut the "
        "channels first, then exchange time and heads.",
        replace(
            MERGE, "heads.reshape(heads.size(0), heads.size(2), heads.size(1) * heads.size(3))"
        ): (
            "Your merge only reshapes: the heads must come behind time before they are merged with the "
            "features."
        ),
        replace(
            SPLIT, 'rearrange(x, "B T (D H) -> B H T D", H=n_head)'
        ): "You deal the channels out "
        "to the heads in turn. A head has D neighbours: (H D), the head outside.",
        replace(
            MERGE, 'rearrange(heads, "B H T D -> B T (D H)")'
        ): "Your merge puts feature 0 of all "
        "heads first. The features of a head lie side by side: (H D).",
        replace('-> B H T D", H', '-> B T H D", H'): "Your split leaves the heads behind time. "
        "Attention wants (B, H, T, D).",
        replace('-> B H T D", H', '-> B H D T", H'): "Your split exchanges time and features. "
        "Attention wants (B, H, T, D).",
        replace(
            "H=n_head", "D=n_head"
        ): "You take n_head for the size of a head. It is the number of heads.",
        replace(
            MERGE,
            "heads.transpose(1, 2).view("
            "heads.size(0), heads.size(2), heads.size(1) * heads.size(3))",
        ): "Your merge calls view after the transpose, where the heads of a token are not side by side: "
        "it raises. reshape copies where it must.",
        replace(
            MERGE, "heads.transpose(1, 2).reshape(heads.size(0), heads.size(2), -1)"
        ): "You leave a size to be inferred (-1), which fails for a tensor without elements. Say it: D is "
        "C // n_head where you split, C is H · D where you merge.",
        replace(
            MERGE, "heads.transpose(1, 2)"
        ): "Your merge exchanges time and heads and stops there. "
        "Heads and features are still two axes.",
        replace(
            MERGE, "heads.flatten(1, 2)"
        ): "Your merge joins heads and time, (B, H · T, D). Exchange "
        "them first, then join heads and features.",
        replace(
            SPLIT, 'rearrange(x, "B T (H D) -> B T H D", H=n_head)', MERGE, "heads.flatten(2)"
        ): (
            "Time and heads never change places: (B, T, H, D). Going there and back is right, but "
            "attention wants (B, H, T, D)."
        ),
        replace(
            SPLIT,
            "x.reshape(x.size(0), n_head, x.size(1), x.size(2) // n_head)",
            MERGE,
            "heads.reshape(heads.size(0), heads.size(2), heads.size(1) * heads.size(3))",
        ): "Both only reshape. Going there and back is right, but each head holds all channels of some "
        "tokens. Cut the channels, then exchange time and heads.",
        replace(
            SPLIT, "torch.stack(x.chunk(n_head, dim=-1))"
        ): "You stack the heads in front of the batch: (H, B, T, D). The new axis is the second, dim=1.",
    }
)
split_and_merge.alternative("view, transpose, reshape")(
    lambda x, n_head: x.reshape(x.size(0), x.size(1), n_head, x.size(2) // n_head).transpose(1, 2),
    lambda heads: heads.transpose(1, 2).flatten(2),
)
split_and_merge.alternative("chunks stacked, heads concatenated")(
    lambda x, n_head: torch.stack(x.chunk(n_head, dim=-1), dim=1),
    lambda heads: torch.cat(heads.unbind(1), dim=-1),
)


# ---------------------------------------------------------------------------- patchify

patchify = Exercise(
    axes.patchify,
    title="An image as tokens",
    difficulty=2,
    minutes=12,
    points=3,
    gradients=("images",),
    hints=(
        "Height splits into (which patch, which row of it), and so does width. Name the four axes.",
        "In `B C (i p) (j q)` the letters i, j number the patches; p, q are inside of one.",
        "The result groups them: (i j) is the number of the patch, (p q C) its features.",
        ("edge cases", "Check both sides before you rearrange: ValueError, not einops' own error."),
    ),
)


@patchify.by_hand
def _():
    image = torch.arange(8.0).view(1, 1, 2, 4)  # rows 0 1 2 3 and 4 5 6 7
    yield call(image, 2), torch.tensor([[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]])
    colours = torch.arange(4.0).view(1, 2, 1, 2)  # two channels of one row
    yield call(colours, 1), torch.tensor([[[0.0, 2.0], [1.0, 3.0]]])


@patchify.cases(20)
def _(draw):
    C, i, j = draw(draws.distinct_sizes(3, low=1, high=4))
    size, B = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    yield call(draw(draws.tensors((B, C, i * size, j * size))), size)


@patchify.edge
def _():
    yield call(normal(2, 2, 4, 4), 2), "axes that could be taken for one another"
    yield call(normal(1, 3, 2, 2), 2), "one patch"
    yield call(normal(1, 3, 2, 3), 1), "patches of one pixel"
    yield call(normal(0, 3, 4, 4), 2), "no image"
    yield call(draws.scattered(normal(2, 3, 4, 6)), 2), "not contiguous"
    yield call(normal(1, 2, 4, 4, dtype=torch.bfloat16), 2), "bfloat16"
    yield call(normal(1, 1, 5, 4), 2), "2 does not divide the height"
    yield call(normal(1, 1, 4, 5), 2), "2 does not divide the width"
    yield call(normal(1, 1, 5, 5), 2), "2 divides neither side"
    yield call(normal(1, 1, 2, 8), 4), "a patch higher than the image"
    yield call(normal(0, 1, 5, 4), 2), "no image, and 2 does not divide the height"
    yield call(normal(1, 1, 8, 9), 6), "8 · 9 is a multiple of 6 · 6, but 6 divides neither side"


patchify.contract(
    contracts.constant_kernels(
        [call(normal(B, 2, n, n), 4) for B, n in ((2, 8), (6, 8), (6, 32))],
        says="no Python loop over the images or the patches",
    )
)
patchify.contract(
    contracts.allocates(
        [call(normal(2, 3, 16, 16), 4)],
        limit=2 * 3 * 16 * 16 * 4,
        says="one copy of the images at most",
    )
)
PATCHED = 'rearrange(images, "B C (i p) (j q) -> B (i j) (p q C)", p=size, q=size)'
UNFIT = "images.size(-2) % size or images.size(-1) % size"
patchify.slips(
    {
        replace(
            "(p q C)", "(C p q)"
        ): "Your channel turns slowest: all of one channel, then all of "
        "the next, as F.unfold and a convolution have it. It is to turn fastest: (p q C).",
        replace("(i j)", "(j i)"): "Your patches go down the columns first. In row-major order the "
        "column of patches turns fastest: (i j).",
        replace(
            "(p q C)", "(q p C)"
        ): "Within a patch your columns turn slowest. It is row by row: (p q C).",
        replace(
            "(i p) (j q)", "(p i) (q j)"
        ): "You take every i-th row and every j-th column: pixels "
        "from all over the image. A patch has neighbours: (i p), the patch outside.",
        replace(
            "(i j) (p q C)", "(p q) (i j C)"
        ): "You exchanged what numbers the patches and what lies inside of one.",
        replace(
            PATCHED,
            "images.reshape(images.size(0), (images.size(-2) // size) * (images.size(-1) // size), "
            "size * size * images.size(1))",
        ): "You only reshape, which cuts the image into runs of pixels, not squares. Split height and "
        "width, and bring the patch's axes together.",
        replace("raise ValueError", "raise AssertionError"): "An assert raises AssertionError, and "
        "disappears under `python -O`. ValueError is asked for.",
        replace(
            UNFIT, "images.size(-2) != images.size(-1) or images.size(-1) % size"
        ): "You ask for square images. Only the patches are square.",
        replace(
            PATCHED,
            "images.reshape(images.size(0), images.size(1), images.size(2) // size, size, "
            "images.size(3) // size, size).permute(0, 2, 4, 3, 5, 1)"
            ".reshape(images.size(0), -1, size * size * images.size(1))",
        ): "Where there is no image your code raises: torch.stack has nothing to stack then, and reshape "
        "cannot infer the number of patches (-1). It is height // size · width // size.",
        replace(
            "    if images",
            "    if len(images) == 0:\n        return images.new_zeros(0, images.size(-2) // size * "
            "(images.size(-1) // size), size * size * images.size(1))\n    if images",
        ): "Where there is no image you answer before you check its sides. ValueError is due there, too.",
        replace("(i j) (p q C)", "i j (p q C)"): "Your patches have two axes. They are tokens: one "
        "axis, (i j).",
    }
)


HEIGHT, WIDTH = UNFIT.split(" or ")
UNCHECKED = (
    "An image that patches do not fill must raise ValueError; you leave it to einops, or to reshape, whose "
    "errors are RuntimeErrors."
)
CUT_OFF = (
    "You cut off what does not fill a patch, as unfold and `//` do. Raise ValueError instead: pixels must "
    "not disappear silently."
)
HALF_CHECKED = {
    HEIGHT: "You check the height alone. The width must be a multiple of the size too.",
    WIDTH: "You check the width alone. The height must be a multiple of the size too.",
    "(images.size(-2) * images.size(-1)) % size**2": "You check the area. Both sides must be multiples of "
    "the size: 2 × 8 pixels do not hold a patch of 4 × 4.",
    f"{HEIGHT} and {WIDTH}": "You raise only where neither side is a multiple of the size (`and`). One that "
    "is not is enough: `or`.",
}
RAISES = " or images.unflatten(-2, (-1, size)).unflatten(-1, (-1, size)) is None"
UNFOLDS = " or images.unfold(2, size, size).unfold(3, size, size) is None"
WHOLE = (
    "rearrange(images,",
    "rearrange(images[..., : images.size(2) // size * size, : images.size(3) // size * size],",
)
patchify.mistake(UNCHECKED, replace(UNFIT, f"False{RAISES}"))
patchify.mistake(CUT_OFF, replace(UNFIT, "False", *WHOLE))
patchify.mistake(CUT_OFF, replace(UNFIT, f"False{UNFOLDS}", *WHOLE))
for check, says in HALF_CHECKED.items():  # what passes it is refused by reshape, or cut off
    patchify.mistake(says, replace(UNFIT, f"({check}){RAISES}"))
    patchify.mistake(says, replace(UNFIT, f"({check})", *WHOLE))
    if check != HEIGHT:  # there both cut off the same
        patchify.mistake(says, replace(UNFIT, f"({check}){UNFOLDS}", *WHOLE))

BY_PATCH = (
    "The values are right, but Python cuts out the patches one after another, or row by row. One "
    "rearrangement does them all."
)
BY_IMAGE = (
    "The values are right, but Python goes through the images. One rearrangement does them all: the batch "
    "is an axis like the others."
)


def corners(images, size):
    """Where each patch begins, row by row."""
    height, width = images.shape[2:]
    if height % size or width % size:
        raise ValueError(size)
    return list(product(range(0, height, size), range(0, width, size)))


@patchify.mistake(BY_PATCH, cost=True)
def _(images, size):
    found = corners(images, size)
    result = images.new_empty(len(images), len(found), size, size, images.size(1))
    for n, (i, j) in enumerate(found):
        result[:, n] = images[:, :, i : i + size, j : j + size].permute(0, 2, 3, 1)
    return result.flatten(2)


@patchify.mistake(BY_IMAGE, cost=True)
def _(images, size):
    result = axes.patchify(images[:0], size)
    return torch.cat([result, *(axes.patchify(image[None], size) for image in images)])


@patchify.mistake(BY_PATCH, cost=True)
def _(images, size):
    patches = (images[:, :, i : i + size, j : j + size] for i, j in corners(images, size))
    return torch.stack([patch.permute(0, 2, 3, 1).flatten(1) for patch in patches], dim=1)


BY_IMAGE_AND_PATCH = (
    "The values are right, but Python goes through the images, and cuts out the patches one after another. "
    "One rearrangement does them all."
)


@patchify.mistake(BY_IMAGE_AND_PATCH, cost=True)
def _(images, size):
    B, found = len(images), corners(images, size)
    result = images.new_empty(B, len(found), size * size * images.size(1))
    for b, (n, (i, j)) in product(range(B), enumerate(found)):
        patch = images[b, :, i : i + size, j : j + size]
        result[b, n] = patch.permute(1, 2, 0).flatten()
    return result


@patchify.mistake(BY_IMAGE_AND_PATCH, cost=True)
def _(images, size):
    found = corners(images, size)
    rows = [
        torch.stack([image[i : i + size, j : j + size].flatten() for i, j in found])
        for image in images.permute(0, 2, 3, 1)
    ]
    return torch.stack(rows) if rows else images.new_zeros(0, len(found), size**2 * images.size(1))


@patchify.mistake(
    "The values are right, but the image is copied more than once: every `.contiguous()` and every "
    "`reshape` after a permute is a copy. Split, permute, and merge once.",
    cost=True,
)
def _(images, size):
    if images.size(-2) % size or images.size(-1) % size:
        raise ValueError(size)
    return axes.patchify(images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), size)


@patchify.alternative("reshape, permute, reshape")
def _(images, size):
    B, C, height, width = images.shape
    if height % size or width % size:
        raise ValueError(f"{height} × {width} and {size}")
    cut = images.reshape(B, C, height // size, size, width // size, size)
    patches = height // size * (width // size)
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(B, patches, size * size * C)


@patchify.alternative("windows along both axes")
def _(images, size):
    if any(n % size for n in images.shape[-2:]):
        raise ValueError(size)
    windows = images.unfold(2, size, size).unfold(3, size, size)  # (B, C, i, j, p, q)
    return windows.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)


patchify.equivalent(
    "patchify: `images.size(-2)` → `images.size(2)`",
    because="images have four axes, so 2 and -2 name the same one",
)


# ---------------------------------------------------------------------------- rope_rotate

rope_rotate = Exercise(
    axes.rope_rotate,
    title="RoPE's broadcast",
    difficulty=2,
    minutes=15,
    points=3,
    gradients=("x",),
    hints=(
        "x is (B, T, H, D), the tables are (T, D / 2). Aligned at the last axis, what would T meet?",
        "An axis of size one for the heads: cos[:, None] is (T, 1, D / 2). The batch is added in front "
        "by itself.",
        "`a, b = x.chunk(2, dim=-1)` are the two halves; turn (a, b) and put the halves side by side.",
        (
            "dtype and device",
            "The tables are float32 or wider, even where x is not: bring the result back to x's dtype.",
        ),
    ),
)


@rope_rotate.by_hand
def _():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    quarter, none = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])  # 90° and 0°
    yield call(x, quarter, none), torch.tensor([-3.0, 2.0, 1.0, 4.0]).view(1, 1, 1, 4)


@rope_rotate.cases
def _(draw):
    B, T, H, half = draw(draws.distinct_sizes(4, low=1, high=5))
    angles = draw(draws.tensors((T, half), scale=2.0))
    yield call(draw(draws.tensors((B, T, H, 2 * half))), angles.cos(), angles.sin())


@rope_rotate.edge
def _():
    cos, sin = axes.rotary_tables(3, 6)
    yield call(normal(3, 3, 3, 6), cos, sin), "as many heads as positions"
    yield call(normal(2, 1, 4, 6), cos[2:], sin[2:]), "one token, at position 2"
    yield call(normal(2, 3, 1, 6), cos, sin), "one head"
    yield call(normal(2, 3, 4, 2), cos[:, 1:2], sin[:, 1:2]), "one pair"
    yield call(normal(0, 3, 2, 6), cos, sin), "an empty batch"
    yield call(normal(0, 3, 2, 6, dtype=torch.bfloat16), cos, sin), "an empty batch in bfloat16"
    yield call(normal(2, 0, 2, 6), cos[:0], sin[:0]), "no position"
    yield call(draws.scattered(normal(2, 3, 2, 6)), cos, sin), "not contiguous"
    yield (
        call(normal(2, 3, 2, 6, dtype=torch.bfloat16), cos, sin),
        "x in bfloat16, tables in float32",
    )
    yield call(normal(2, 3, 2, 6, dtype=torch.float16), cos, sin), "x in float16, tables in float32"
    angles = normal(3, 3, dtype=torch.float64)
    yield call(normal(2, 3, 2, 6, dtype=torch.float64), angles.cos(), angles.sin()), "float64"
    yield call(normal(2, 3, 2, 6), angles.cos(), angles.sin()), "x in float32, tables in float64"


rope_rotate.contract(
    contracts.constant_kernels(
        [
            call(normal(2, T, H, D), *axes.rotary_tables(T, D))
            for T, H, D in ((2, 2, 8), (16, 2, 8), (16, 12, 8), (16, 12, 24))
        ],
        says="no Python loop over the positions, the heads or the pairs",
    )
)
rope_rotate.contract(
    contracts.largest_tensor(
        [call(normal(1, 16, 2, 32), *axes.rotary_tables(16, 32))],
        limit=16 * 2 * 32 * 4,
        says="nothing larger than x: no rotation matrices",
    )
)
TURNED = "a * cos - b * sin, a * sin + b * cos"
rope_rotate.slips(
    {
        replace(
            TURNED, "a * cos + b * sin, b * cos - a * sin"
        ): "You turn the other way: the minus belongs to b · sin in the first half.",
        replace(
            "a * cos - b * sin", "a * cos + b * sin"
        ): "The sign of b · sin in the first half is "
        "minus. With a plus it is no rotation, and lengths change.",
        replace(
            TURNED, "a * sin + b * cos, a * cos - b * sin"
        ): "Your halves are exchanged: a cos - b sin comes first.",
        replace(
            "cos[:, None], sin[:, None]", "sin[:, None], cos[:, None]"
        ): "You exchanged cos and sin.",
        replace(
            "cos[:, None], sin[:, None]", "cos, sin"
        ): "Your tables (T, half) meet x's last two "
        "axes, heads and features. An axis of size one for the heads is missing: cos[:, None].",
        replace(
            "cos[:, None], sin[:, None]", "cos[:, None, None], sin[:, None, None]"
        ): "One axis too "
        "many: (T, 1, 1, half) aligns positions with the batch. (T, 1, half) is enough.",
        replace(
            ".to(x.dtype)", ""
        ): "The result is in the tables' dtype where that is wider. It is to have x's.",
        replace(
            "    a, b =", "    if not x.numel():\n        return x.to(cos.dtype)\n    a, b ="
        ): "For an empty batch, or without a position, your result is in the tables' dtype. It has x's there, too.",
        replace(
            "return torch.cat((",
            "turned = torch.cat((",
            ".to(x.dtype)",
            "\n    return turned.to(x.dtype) if x.itemsize == 2 else turned",
        ): "You bring only half precision back. The result has x's dtype whatever the tables have: float32 for an "
        "x in float32, also where they are float64.",
        replace(
            "x.chunk(2, dim=-1)",
            "x[..., ::2], x[..., 1::2]",
            "torch.cat((",
            "torch.stack((",
            "dim=-1).to",
            "dim=-1).flatten(-2).to",
        ): "You pair neighbours, as the paper does. Here feature i is paired with feature i + D / 2: "
        "halves, not every second one.",
        replace("x.chunk(2, dim=-1)", "x[..., ::2], x[..., 1::2]"): "You take the pairs from "
        "neighbours and put them into halves. Feature i is paired with feature i + D / 2, on both "
        "sides.",
        replace("dim=-1).to", "dim=-2).to"): "You put the halves into the axis of the heads. They "
        "belong side by side in the last axis.",
        replace(
            "cos, sin = cos[:, None], sin[:, None]",
            "cos, sin = cos.to(x.dtype)[:, None].square(), sin.to(x.dtype)[:, None].square()",
        ): "You square cos and sin. The pair is turned by its angle once.",
        replace("a * sin + b * cos", "b * cos"): "a · sin is missing in the second half.",
        replace(
            "a * sin + b * cos", "(a * cos - b * sin) * sin + b * cos"
        ): "Your second half is made "
        "from a first half that is turned already. Both are made from a and b as they came: compute both, "
        "then assign.",
        replace(
            "a * cos - b * sin", "a * cos - (a * sin + b * cos) * sin"
        ): "Your first half is made "
        "from a second half that is turned already. Both are made from a and b as they came: compute both, "
        "then assign.",
        replace(
            "torch.cat((", "torch.stack((", "dim=-1).to", "dim=-1).flatten(-2).to"
        ): "You take the pairs from two halves and put the turned ones side by side. They go back to where "
        "they came from, into halves: cat.",
        replace(
            "x.chunk(",
            "x.float().chunk(",
            "cos[:, None], sin[:, None]",
            "cos.float()[:, None], sin.float()[:, None]",
        ): "You compute in float32, also where x and the tables are float64: more than half of the digits are "
        "lost. The wider dtype of the two is right, and torch finds it by itself.",
        replace(
            "x.chunk(", "x.float().chunk("
        ): "You bring x to float32, also where it is float64: more "
        "than half of its digits are lost. torch computes in the wider dtype of x and the tables by itself.",
        replace(
            "cos[:, None], sin[:, None]", "cos.float()[:, None], sin.float()[:, None]"
        ): "You bring the tables to float32, also where they are float64: more than half of their digits are "
        "lost. Leave them as they come.",
    }
)


@rope_rotate.mistake(
    "You repeat each angle side by side, for pairs of neighbours. Here feature i is paired with i + D / 2: "
    "put the table beside itself, `torch.cat((cos, cos), -1)`."
)
def _(x, cos, sin):
    cos, sin = (table.repeat_interleave(2, -1)[:, None] for table in (cos, sin))
    a, b = x.chunk(2, -1)
    return (x * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)


@rope_rotate.mistake(
    "You write into x, which belongs to the caller: a key in a cache would be turned again at every "
    "step. Make a new tensor."
)
def _(x, cos, sin):
    a, b = (half.clone() for half in x.chunk(2, dim=-1))
    cos, sin = cos[:, None], sin[:, None]
    x[..., : x.size(-1) // 2] = a * cos - b * sin
    x[..., x.size(-1) // 2 :] = a * sin + b * cos
    return x


@rope_rotate.mistake(
    "The values are right, but you make a D × D matrix for each position, nearly all zeros. Two "
    "products and a sum for each half do it.",
    cost=True,
)
def _(x, cos, sin):
    D = x.size(-1)
    first, second = torch.arange(D // 2), torch.arange(D // 2, D)
    turn = cos.new_zeros(cos.size(0), D, D)
    turn[:, first, first], turn[:, second, second] = cos, cos
    turn[:, first, second], turn[:, second, first] = -sin, sin
    return torch.einsum("bthd,tcd->bthc", x.to(cos.dtype), turn).to(x.dtype)


@rope_rotate.mistake(
    "The values are right, but Python goes through the positions. The tables have an axis for them.",
    cost=True,
)
def _(x, cos, sin):
    turned = [
        axes.rope_rotate(x[:, t : t + 1], cos[t : t + 1], sin[t : t + 1]) for t in range(len(cos))
    ]
    return torch.cat(turned, 1) if turned else x.clone()


@rope_rotate.mistake(
    "The values are right, but Python goes through the pairs. The tables have an axis for them, and a and b are "
    "whole halves.",
    cost=True,
)
def _(x, cos, sin):
    pairs = zip(*(half.unbind(-1) for half in x.chunk(2, dim=-1)), cos.unbind(-1), sin.unbind(-1))
    turned = [
        (a * c[:, None] - b * s[:, None], a * s[:, None] + b * c[:, None]) for a, b, c, s in pairs
    ]
    return torch.cat([torch.stack(half, -1) for half in zip(*turned)], -1).to(x.dtype)


@rope_rotate.alternative("rotate_half, as Transformers writes it")
def _(x, cos, sin):
    cos, sin = (torch.cat((table, table), dim=-1).unsqueeze(1) for table in (cos, sin))
    a, b = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-b, a), dim=-1) * sin).to(x.dtype)


@rope_rotate.alternative("multiplication of complex numbers")
def _(x, cos, sin):
    wide = torch.promote_types(x.dtype, cos.dtype)
    pairs = torch.complex(*(half.to(wide) for half in x.chunk(2, dim=-1)))
    turned = pairs * torch.complex(cos.to(wide), sin.to(wide)).unsqueeze(-2)
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)


# ---------------------------------------------------------------------------- einsum

einsum = Exercise(
    axes.einsum,
    title="An einsum of your own",
    difficulty=3,
    minutes=30,
    points=4,
    hints=(
        "Take one order of letters for all operands: first the result's, then those that are summed. "
        "What must happen to an operand before it has these axes in this order?",
        "`permute` puts the letters that it has in order; for a letter that it lacks it gets an axis of "
        "size one. Then all operands broadcast.",
        "Index with a tuple of `slice(None)` and `None`, one entry for each letter. Multiply, then sum "
        "over the axes behind the result's.",
        (
            "edge cases",
            "If no letter is summed there is nothing to sum, and `x.sum(())` would sum over all axes.",
        ),
    ),
)


@einsum.by_hand
def _():
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    yield call("ik,kj->ij", a, b), torch.tensor([[2.0, 3.0], [4.0, 7.0]])
    yield call("ij->ji", a), torch.tensor([[1.0, 3.0], [2.0, 4.0]])
    yield call("ij->i", a), torch.tensor([3.0, 7.0])
    yield call("i,j->ij", a[0], b[1]), torch.tensor([[1.0, 1.0], [2.0, 2.0]])


@einsum.cases
def _(draw):
    letters = draw(st.permutations("abcdt"))[: draw(st.integers(1, 4))]
    sizes = dict(zip(letters, draw(draws.distinct_sizes(len(letters), low=1, high=5))))
    words = [
        draw(st.permutations(letters))[: draw(st.integers(0, min(3, len(letters))))]
        for _ in range(draw(st.integers(1, 3)))
    ]
    used = sorted({letter for word in words for letter in word})
    output = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    operands = [draw(draws.tensors(tuple(sizes[n] for n in word))) for word in words]
    yield call(",".join(map("".join, words)) + "->" + "".join(output), *operands)


@einsum.edge
def _():
    x, y = normal(3, 3), normal(3, 3, seed=1)
    yield call("ik,kj->ij", x, y), "square matrices"
    yield call("ki,jk->ij", x, y), "square matrices, both transposed"
    yield call("ba->ab", x), "a transpose whose letters come in reverse"
    cube = normal(3, 3, 3, seed=2)
    yield call("abc->cab", cube), "three axes of one size, in a cycle"
    yield call("cab,b->abc", cube, x[0]), "three axes of one size, in the other cycle"
    yield call("ij->", x), "a sum over everything"
    yield call("i,i->", x[0], y[0]), "an inner product"
    yield call("ij->ij", x), "nothing to do"
    yield call(",ij->ji", torch.tensor(2.0), x), "an operand without axes"
    yield call(" b t d , d v -> b t v ", normal(2, 3, 4), normal(4, 5)), "spaces"
    yield call("bthd,bshd->bhts", normal(2, 3, 2, 4), normal(2, 5, 2, 4)), "attention's scores"
    yield call("ij,jk,kl->il", normal(2, 3), normal(3, 4), normal(4, 2)), "three operands"
    yield (
        call("ij,kj->i", normal(2, 3), normal(4, 3)),
        "two letters summed, one in one operand only",
    )
    yield call("ij,jk->ik", normal(2, 0), normal(0, 3)), "a sum over nothing is 0"
    yield call("ij,jk->ik", draws.scattered(normal(3, 4)), normal(4, 2)), "not contiguous"
    yield (
        call("ij,jk->ik", normal(2, 3, dtype=torch.float64), normal(3, 2, dtype=torch.float64)),
        "float64",
    )
    whole = torch.arange(6.0).view(2, 3)
    yield call("ij,kj->ik", whole.half(), whole.half()), "whole numbers in float16"
    yield call("ij,kj->ik", whole.bfloat16(), whole.bfloat16()), "whole numbers in bfloat16"
    yield call("tT,Td->td", normal(2, 3), normal(3, 4)), "a small letter and its capital"
    yield call("ij,jk->ik", x), "one operand too few"
    yield call("ij->ji", x, y), "one operand too many"


einsum.contract(
    contracts.constant_kernels(
        [call("ik,kj->ij", normal(n, m), normal(m, n)) for n, m in ((2, 3), (12, 3), (12, 24))],
        says="no Python loop over the elements of an axis",
    )
)
INVERSE = (
    "You permute by the inverse: permute asks, for each new axis, which old one comes there. For two axes "
    "that change places both are the same, for three in a cycle they are not."
)
ORDERED = "x.permute([names.index(letter) for letter in letters if letter in names])"
INVERTED = "x.permute([[n for n in letters if n in names].index(letter) for letter in names])"
einsum.slips(
    {
        replace('.replace(" ", "")', ""): "Spaces are letters to you. They are to be ignored.",
        replace(ORDERED, "x"): "You add the missing axes but leave the others in the operand's own "
        "order. Permute them into the common order of letters first.",
        replace(" if summed else whole", ""): "Where no letter is summed you call `sum(())`, which "
        "sums over all axes. Return the product there.",
        replace("whole.sum(", "whole.mean("): "You average over the letters that the result lacks. "
        "They are summed over.",
        replace(
            "whole.sum(", "whole.amax("
        ): "You take the largest over the letters that the result lacks. They are summed over.",
        replace(
            "strict=True", "strict=False"
        ): "You ignore operands, or letters, that are left over. "
        "If the numbers differ, raise ValueError.",
        replace(
            "strict=True", 'strict=len(operands) > inputs.count(",") + 1'
        ): "You refuse operands that are too many. Where there are too few, you forget the terms that are "
        "left over: raise ValueError there, too.",
        replace("[*output, *summed]", "[*sorted(output), *summed]"): "Your result's axes are in "
        "alphabetical order. They come in the order in which the equation writes them.",
        replace(
            "[*output, *summed]", "[*sorted(output, key=inputs.index), *summed]"
        ): "Your result's axes are in the order in which their letters first appear. They come in the order "
        "in which they stand behind the arrow: permute them.",
        replace(
            ORDERED,
            INVERTED,
        ): INVERSE,
        replace(
            *(ORDERED, INVERTED),
            'sorted(set(inputs) - set(output) - {","})',
            'list(dict.fromkeys(n for n in inputs if n not in {*output, ","}))',
        ): INVERSE,
        replace(
            "[*output, *summed]", "[*summed, *output]"
        ): "Your summed letters come first, but you sum over the last axes.",
        replace(
            'sorted(set(inputs) - set(output) - {","})',
            'sorted(n for n in set(inputs) - set(output) - {","} if inputs.count(n) > 1)',
        ): "You sum only over letters that stand in two operands. A letter that one operand has and the "
        "result lacks is summed over too.",
        replace(
            'sorted(set(inputs) - set(output) - {","})',
            "sorted(n for n in set(inputs) - set(output) if n.islower())",
        ): "You look for small letters only. A capital is a letter too, and another one than the small.",
        replace(
            "reduce(mul, (", "reduce(torch.add, ("
        ): "You add the operands. They are multiplied.",
        replace(
            "whole.sum(tuple(range(len(output), len(letters))))",
            "whole.sum(tuple(range(len(output), len(letters))), keepdim=True)",
        ): "The summed axes stay, with size one. The result has only the letters behind the arrow.",
        replace(
            "range(len(output), len(letters))", "range(len(letters) - 1, len(letters))"
        ): "You sum over the last letter only. All letters that the result lacks are summed over.",
        replace(
            "x.permute(", "(x.float() if x.itemsize == 2 else x).permute("
        ): "You go to float32 for operands in half precision and do not come back. The result has "
        "the operands' dtype.",
    }
)


@einsum.mistake(
    "torch.einsum raises RuntimeError where the number of operands is not the equation's. ValueError is "
    "asked for."
)
def _(equation, *operands):
    return torch.einsum(equation, *operands)


@einsum.mistake(INVERSE)
def _(equation, *operands):
    inputs, output = equation.replace(" ", "").split("->")
    words = inputs.split(",")
    if len(words) != len(operands):
        raise ValueError(equation)
    letters = output + "".join(sorted(set(inputs) - set(output) - {","}))
    whole: Any = 1
    for x, word in zip(operands, words):
        named = word + "".join(n for n in letters if n not in word)
        x = x[(..., *[None] * (len(named) - len(word)))]
        whole = whole * x.permute([letters.index(n) for n in named])
    summed = tuple(range(len(output), len(letters)))
    return whole.sum(summed) if summed else whole


for in_order in (sorted, dict.fromkeys):  # of the alphabet, of appearance

    @einsum.mistake(
        "You permute the result by the inverse: permute asks, for each new axis, which old one comes there. "
        "For two axes that change places both are the same, for three in a cycle they are not."
    )
    def _(equation, *operands, in_order=in_order):
        inputs, output = equation.replace(" ", "").split("->")
        kept = [n for n in in_order(inputs.replace(",", "")) if n in output]
        kept = list(dict.fromkeys(kept))
        whole = axes.einsum(f"{inputs}->{''.join(kept)}", *operands)
        return whole.permute([output.index(n) for n in kept])


@einsum.mistake(
    "You use the first two operands and leave out the rest. An equation may have one, two or more."
)
def _(equation, *operands):
    inputs, output = equation.replace(" ", "").split("->")
    words = inputs.split(",")
    if len(words) != len(operands):
        raise ValueError(equation)
    if len(words) < 3:
        return axes.einsum(equation, *operands)
    letters = [n for n in output if n in words[0] + words[1]]
    return axes.einsum(f"{words[0]},{words[1]}->{''.join(letters)}", *operands[:2])


@einsum.mistake(
    "An assert raises AssertionError where the number of operands is not the equation's. ValueError is "
    "asked for."
)
def _(equation, *operands):
    assert equation.count(",") + 1 == len(operands)
    return torch.einsum(equation, *operands)


@einsum.mistake(
    "You go two operands at a time, and sum at once over letters that the result lacks. A later operand "
    "may still have that letter: in ij,jk,kl->il, k is needed until the end."
)
def _(equation, *operands):
    inputs, output = equation.replace(" ", "").split("->")
    first, *others = inputs.split(",")
    if len(others) + 1 != len(operands):
        raise ValueError(equation)
    whole = operands[0]
    for word, x in zip(others, operands[1:]):
        kept = "".join(n for n in sorted(set(first + word)) if n in output)
        whole, first = torch.einsum(f"{first},{word}->{kept}", whole, x), kept
    return torch.einsum(f"{first}->{output}", whole)


einsum.mistake(
    "The values are right, but Python goes through every index. The loops belong into torch: line the "
    "axes up, multiply once, sum once.",
    cost=True,
)(axes.einsum_by_loops)


@einsum.alternative("transpose and reshape with the letters as sizes")
def _(equation, *operands):
    inputs, output = equation.replace(" ", "").split("->")
    words = inputs.split(",")
    if len(words) != len(operands):
        raise ValueError("operands")
    order = output + "".join(dict.fromkeys(n for n in "".join(words) if n not in output))
    whole: Any = None
    for word, x in zip(words, operands):
        kept = sorted(word, key=order.index)
        sizes = dict(zip(word, x.shape))
        x = x.permute([word.index(n) for n in kept]).reshape([sizes.get(n, 1) for n in order])
        whole = x if whole is None else whole * x
    for _ in order[len(output) :]:
        whole = whole.sum(-1)
    return whole


@einsum.alternative("torch's own, with the error asked for")
def _(equation, *operands):
    if equation.count(",") + 1 != len(operands):
        raise ValueError(equation)
    return torch.einsum(equation, *operands)


einsum.equivalent(
    "einsum: `sorted(set(inputs) - set(output) - {','})` → `set(inputs) - set(output) - {','}`",
    because="the order of the summed letters is any, if all operands have the same",
)
