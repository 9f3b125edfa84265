"""Exercises of chapter 2, strides: from the address of one element to a view that shifts rows."""
# ruff: noqa: B905 (mistakes are written as students write them)

from functools import reduce
from math import prod
from operator import add, mul

import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.reference import strides


def plain(x):
    """Shape and strides of a tensor as tuples of ints: plain values for a case."""
    return tuple(x.shape), tuple(x.stride())


flat_index = Exercise(
    strides.flat_index,
    title="Address of an element",
    difficulty=1,
    minutes=5,
    points=1,
    hints=(
        "Where is the element at index (0, 0, …, 0)? And how far does one step along one axis move you?",
        "The steps along the axes add up: i·stride[0] + j·stride[1] + …",
        "`sum(i * s for i, s in zip(index, stride))`, counted from the offset.",
    ),
)
flat_index.by_hand(
    lambda: [
        (call((1, 2), (4, 1)), 6),
        (call((2, 1), (4, 1), 5), 14),
        (call((3, 1), (1, 4)), 7),
        (call((0, 1), (4, 1)), 1),
    ]
)


@flat_index.cases
def _(draw):
    n = draw(st.integers(1, 6))
    index = tuple(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    stride = tuple(draw(st.lists(st.integers(0, 30), min_size=n, max_size=n)))
    yield call(index, stride, draw(st.integers(0, 2000)))


@flat_index.edge
def _():
    yield call((), (), 3), "a tensor of no axes has one element, at its offset"
    yield call((4, 2), (0, 1)), "an axis with stride 0 does not move"
    yield call((1, 2), (4, 1), offset=7), "the offset by its name"
    yield call((1 << 20, 1), (1 << 20, 1), 1), "more than 2³¹ elements"


flat_index.slips(
    {
        replace("offset + ", ""): "You left the offset out: a slice begins in the middle of its "
        "storage.",
        replace("offset + ", "offset * max(stride, default=1) + "): "You multiply the offset "
        "along with the steps; it is counted once, in elements, not in rows.",
        replace(
            "    return offset", "    if not index:\n        return 0\n    return offset"
        ): "You answer 0 for a tensor without axes. It has one element too, and that lies at the offset.",
        replace(
            "    return offset",
            "    if not index:\n        return float(offset)\n    return offset",
        ): "Without axes you return a float: an empty array of NumPy or torch is one of floats. A position "
        "is an int, also where there is nothing to add up.",
        replace("i * s for", "(i + 1) * s for"): "You count from 1: the first element has index "
        "0, which adds nothing.",
        replace("(index, stride", "(index, reversed(stride)"): "You pair the first index with the "
        "last stride: index[0] belongs to stride[0], the outermost axis.",
        replace(
            "sum(i * s for i, s in zip(index, stride, strict=True))",
            "index[0] * stride[0] + index[1] * stride[1]",
        ): "You wrote out two axes. An index has as many entries as there are axes: sum over all of "
        "them.",
        replace("offset + sum", "offset + offset + sum"): "You counted the offset twice.",
        replace(
            "    return offset + sum(i * s for i, s in zip(index, stride, strict=True))",
            "    position = 0\n    for i, s in zip(index, stride):\n        position = position * s + i\n"
            "    return offset + position",
        ): "You multiply what you have so far by the next stride and add the index, as one does with sizes "
        "(Horner's scheme). A stride counts elements: each index is multiplied by its own.",
        replace(
            "sum(i * s for i, s in zip(index, stride, strict=True))",
            "int(sum(Tensor([i]) * Tensor([s]) for i, s in zip(index, stride)))",
        ): "You add the steps up in float32, which has 24 bits: beyond 16,777,216 it leaves numbers out. "
        "Python's int holds them all, int64 up to 2⁶³.",
        replace(
            "offset + sum(i * s for i, s in zip(index, stride, strict=True))",
            "int(offset + sum(Tensor([i]) * Tensor([s]) for i, s in zip(index, stride)))",
        ): "You add the offset and the steps up in float32, which has 24 bits: beyond 16,777,216 it "
        "leaves numbers out. Python's int holds them all, int64 up to 2⁶³.",
        replace(
            "offset + sum(i * s for i, s in zip(index, stride, strict=True))",
            "(offset + sum(i * s for i, s in zip(index, stride)) + (1 << 31)) % (1 << 32) - (1 << 31)",
        ): "You count in int32, which ends at 2,147,483,647 and goes on from the other end. Python's int "
        "holds every position, int64 those up to 2⁶³.",
        replace(
            "offset + sum(i * s", "sum(offset + i * s"
        ): "You add the offset once for every axis. "
        "It is counted once, and a tensor without axes has it too.",
    }
)


@flat_index.mistake(
    "A tensor of no axes has nothing to add up, and an empty sum raises in your code (reduce without a "
    "starting value, for one). Its one element is at the offset: start from there."
)
def _(index, stride, offset=0):
    return reduce(add, map(mul, index, stride)) + offset


@flat_index.alternative("a loop")
def _(index, stride, offset=0):
    for axis, i in enumerate(index):
        offset += i * stride[axis]
    return offset


unflatten_index = Exercise(
    strides.unflatten_index,
    title="Index of the n-th element",
    difficulty=1,
    minutes=10,
    points=1,
    probe=probes.a_tuple,
    hints=(
        "Which of the numbers in the index changes with every step? Start with that axis.",
        "`divmod(position, size)` gives how often the last axis went round, and where it stands.",
        "Go through the axes from the last to the first; the quotient is the position in the rest.",
        (
            "edge cases",
            "Which positions does a shape have? Those from 0 up to the product of its sizes, which is "
            "not one of them. Is there any where a size is 0?",
        ),
    ),
)
unflatten_index.by_hand(
    lambda: [
        (call(5, (3, 4)), (1, 1)),
        (call(11, (3, 4)), (2, 3)),
        (call(13, (2, 3, 4)), (1, 0, 1)),
    ]
)


@unflatten_index.cases
def _(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=6)))
    yield call(draw(st.integers(0, prod(shape) - 1)), shape)


@unflatten_index.edge
def _():
    yield call(0, ()), "no axes, one element"
    yield call(0, (1, 1, 1)), "axes of size one"
    yield call((1 << 40) - 1, (1 << 20, 1 << 20)), "more than 2³¹ elements"
    yield call(6, (2, 3)), "one past the last element"
    yield call(-1, (2, 3)), "before the first element"
    yield call(99, (2, 3)), "far beyond the last element"
    yield call(-99, (2, 3)), "far before the first element"
    yield call(0, (2, 0)), "a shape without elements has no first one"
    yield call(1, ()), "no axes: position 0 is the only one"


unflatten_index.slips(
    {
        replace(
            "reversed(shape)", "shape", "reversed(index)", "index"
        ): "You let the first axis turn fastest. That is column-major order (Fortran, MATLAB); in "
        "row-major order it is the last.",
        replace("reversed(index)", "index"): "You return the numbers in the order in which you "
        "found them: last axis first.",
        replace(
            "not 0 <= position < prod(shape)", "False"
        ): "You wrap around instead of raising IndexError: a position outside of the tensor has no "
        "index.",
        replace(
            "reversed(shape)",
            "shape",
            "position, i = divmod",
            "i, position = divmod",
            "reversed(index)",
            "index",
        ): "You divide by the size of the axis at hand, where one step along it skips the product of "
        "the sizes *inside* it.",
        replace("tuple(reversed(index))", "index[::-1]"): "You return a list. As an index a list "
        "is something else than a tuple: x[[1, 2]] takes two rows, x[(1, 2)] is the element x[1, "
        "2].",
        replace("< prod(shape)", "<= prod(shape)"): "You let the position prod(shape) through. "
        "Positions count from 0, so the last one is prod(shape) - 1.",
        replace(
            "not 0 <= position < prod(shape)", "position >= prod(shape)"
        ): "You let negative positions through. Positions count from 0 upwards.",
        replace(
            "0 <= position < prod(shape)", "0 <= position <= prod(shape) or 0 in shape"
        ): "The position prod(shape) gets through. Positions count from 0, so the last one is "
        "prod(shape) - 1.",
        replace(
            "not 0 <= position < prod(shape)", "0 in shape"
        ): "You raise IndexError for a shape without elements only. Elsewhere positions outside wrap "
        "around: they have no index either.",
        replace(
            "not 0 <= position < prod(shape)", "0 not in shape and not 0 <= position < prod(shape)"
        ): "You divide by a size of 0. A shape with such an axis has no element at any position: raise "
        "IndexError before you divide.",
        replace(
            "    index = []", "    if not shape:\n        raise IndexError\n    index = []"
        ): "Your code raises for a shape without axes, which has no shape[0]. It has one element all the "
        "same, at position 0, and the index of that is ().",
        replace(
            "    if not 0", "    if not shape:\n        return ()\n    if not 0"
        ): "You return () for a shape without axes, whatever the position. It has one element, at position 0: "
        "any other position raises IndexError.",
        replace("IndexError", "ValueError"): "You raise ValueError. A position without an element "
        "is an IndexError, as for a list.",
    }
)


@unflatten_index.alternative("divide by the row-major strides, outermost axis first")
def _(position, shape):
    if position < 0 or position >= prod(shape):
        raise IndexError(position)
    return tuple(position // prod(shape[axis + 1 :]) % size for axis, size in enumerate(shape))


contiguous_strides = Exercise(
    strides.contiguous_strides,
    title="Strides of a new tensor",
    difficulty=1,
    minutes=10,
    points=1,
    probe=probes.a_tuple,
    hints=(
        "What is the stride of the last axis, whatever the shape? And of the one before it?",
        "One step along an axis skips everything inside it: the product of all later sizes.",
        "Walk from the last axis to the first with a running product. What must a size of 0 not do?",
    ),
)
contiguous_strides.by_hand(
    lambda: [(call((3, 4)), (4, 1)), (call((2, 3, 4)), (12, 4, 1)), (call((7,)), (1,))]
)


@contiguous_strides.cases
def _(draw):
    yield call(tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))))


@contiguous_strides.edge
def _():
    yield call(()), "no axes, no strides"
    yield call((1, 3, 1)), "axes of size one"
    yield call((2, 0, 3)), "an empty tensor: torch counts the size 0 as 1"
    yield call((2, 0, 3, 0, 4)), "two axes of size 0"
    yield call((2, 0)), "no columns"
    yield call((0, 2, 3)), "no rows"
    yield call((5, 1 << 20, 1 << 20)), "more than 2³¹ elements"


contiguous_strides.slips(
    {
        replace(
            "reversed(shape)", "shape", "reversed(strides)", "strides"
        ): "These are column-major strides: your first axis moves by 1. In row-major order the last "
        "does.",
        replace(
            "reversed(shape)", "shape"
        ): "You multiply the sizes up from the front, and then turn the list round. A stride is made of the "
        "sizes inside it, those to the right: begin with the last.",
        replace(
            "strides.append(step)\n        step *= max(size, 1)",
            "step *= max(size, 1)\n        strides.append(step)",
        ): "You multiply one size too many: an axis's own size does not enter its stride, only the "
        "sizes inside it.",
        replace("step *= max", "step = max"): "Each of your strides is only the size of the next "
        "axis. One step also skips all axes further in.",
        replace("max(size, 1)", "size"): "A size of 0 turns all strides to its left into 0. torch "
        "counts it as 1: `torch.empty(2, 0, 3)` has strides (3, 3, 1).",
        replace(
            "strides.append(step)\n        step *= max(size, 1)",
            "strides.append(max(step, 1))\n        step *= size",
        ): "You raise the product to 1, not each size: a 0 swallows the sizes beside it. "
        "`torch.empty(2, 0, 3)` has strides (3, 3, 1).",
        replace(
            "step *= max(size, 1)", "step = max(step * size, 1)"
        ): "You raise the product to 1 after every axis: a 0 swallows the sizes inside it. "
        "`torch.empty(2, 0, 3)` has strides (3, 3, 1).",
        replace(
            "max(size, 1)", "(max(size, 1) if strides[1:] else size)"
        ): "A last axis of size 0 turns all strides to its left into 0. It counts as 1, like any other of size 0.",
        replace(
            "    strides, step",
            "    if shape[:1] == (0,):\n        return (1,) * len(shape)\n    strides, step",
        ): "Where the first axis has size 0 your strides are all 1. The sizes inside it count as ever: "
        "`torch.empty(0, 2, 3)` has strides (6, 3, 1).",
        replace(
            "    strides, step",
            "    if 0 in shape:\n        return (1,) * len(shape)\n    strides, step",
        ): "Where any size is 0 your strides are all 1. Only the 0 itself counts as 1, the other sizes as ever: "
        "`torch.empty(2, 0, 3)` has strides (3, 3, 1).",
        replace("[], 1", "[], 4"): "These are bytes (of float32). PyTorch counts strides in "
        "elements: the innermost is 1.",
        replace("tuple(reversed(strides))", "strides[::-1]"): "You return a list. x.stride() is a "
        "tuple, and a list never equals a tuple.",
        replace("reversed(strides))", "reversed(strides)) or (1,)"): "A tensor without axes has no "
        "strides: an empty tuple.",
    }
)
contiguous_strides.alternative("a product for each axis")(
    lambda shape: tuple(prod(max(n, 1) for n in shape[axis + 1 :]) for axis in range(len(shape)))
)
contiguous_strides.alternative("ask torch for an empty tensor on the meta device")(
    lambda shape: torch.empty(shape, device="meta").stride()
)


is_contiguous = Exercise(
    strides.is_contiguous,
    title="Side by side, in order?",
    difficulty=2,
    minutes=10,
    points=2,
    hints=(
        "Compare with the strides that a new tensor of that shape has. Which differences matter?",
        "An axis of size one is never stepped along, so its stride may be anything.",
        ("edge cases", "A tensor without elements has none out of place."),
    ),
)
is_contiguous.by_hand(
    lambda: [
        (call((3, 4), (4, 1)), True),
        (call((4, 3), (1, 4)), False),
        (call((3, 4), (5, 1)), False),
        (call((3, 1), (1, 99)), True),
    ]
)


@is_contiguous.cases
def _(draw):
    yield call(*plain(draw(draws.strided_tensors(max_dims=4, sizes=(1, 2, 3)))))


@is_contiguous.edge
def _():
    yield call((), ()), "one element"
    yield call((1, 1), (7, 9)), "only axes of size one"
    yield call((2, 0), (5, 3)), "no elements"
    yield call((0, 2), (5, 3)), "no rows"
    yield call((2, 3, 4), (24, 4, 1)), "a gap between two blocks, none inside them"
    yield call((2, 2, 3, 2), (13, 6, 2, 1)), "one slot between the halves of four axes"
    yield call((3, 3), (2, 2)), "gaps and overlaps that add up to nine slots"
    yield call((3, 4), (0, 1)), "an expanded tensor stores one row for all"
    yield call((3,), (2,)), "every second element of a vector"
    yield call((3,), (0,)), "one element, shown three times"
    yield call((4, 3), (3, 2)), "every second element of a row, and rows that overlap"
    yield call((2, 3, 1), (3, 1, 3)), "a last axis of size one with a stride of its own"
    yield call((4, 3, 1), (1, 4, 1)), "a transpose, and an axis of size one inside it"
    yield call((2, 1, 3), (4, 7, 1)), "a gap, on both sides of an axis of size one"
    yield call((3, 1), (2, 5)), "gaps, and a last axis of size one"


is_contiguous.slips(
    {
        replace("size == 1", "False"): "You compare axes of size one as well. They are never "
        "stepped along: any stride will do.",
        replace(
            "expected = 1",
            "expected = 0",
            "step != expected",
            "step < expected",
            "expected *= size",
            "expected = step",
        ): "You only ask that strides fall from left to right. That finds a transpose, but not a "
        "slice that leaves gaps.",
        replace(
            "expected = 1",
            "expected = None",
            "step != expected",
            "step != 1 if expected is None else step < expected",
            "expected *= size",
            "expected = step",
        ): "You ask for a last stride of 1 and for strides that fall from left to right. Rows with gaps "
        "between them pass as well: each stride must be the product of the sizes inside it.",
        replace(
            "        if size == 1:\n            continue\n        if step",
            "        if size != 1 and step",
            "expected *= size",
            "expected = step * size",
        ): "You count on from the stride of an axis of size one, which may be anything. Leave such an "
        "axis out, and count on from the one inside it.",
        replace(
            "    expected = 1",
            "    if stride and stride[-1] != 1:\n        return False\n    expected = 1",
        ): "You ask for a last stride of 1 also where the last axis has size one. It is never stepped "
        "along: any stride will do.",
        replace(
            "zip(reversed(shape), reversed(stride), strict=True)",
            "sorted(zip(shape, stride), key=lambda axis: axis[1])",
        ): "You take the axes in any order (sorted by their strides, for one), so a transpose without gaps "
        "passes too. Row-major order is the axes' own: the last one moves by 1.",
        replace("expected *= size", "return True"): "You only look at the last stride. With "
        "stride 1 there, the rows can still be apart, overlap or be the same row.",
        replace(
            "expected = 1",
            "expected = None",
            "step != expected",
            "expected not in (None, step)",
            "expected *= size",
            "expected = step * size",
        ): "You check that each axis fits the one inside it, but not that the innermost stride is 1: "
        "`x[::2]` of a vector has gaps.",
        replace("0 in shape", "False"): "A tensor without elements is contiguous: none of them is "
        "out of place.",
        replace(
            "    if 0 in shape:\n        return True\n",
            "",
            "        if size == 1",
            "        if size == 0:\n            return True\n        if size == 1",
        ): "You miss a size of 0 where an axis further in has a stride that does not fit. Without elements "
        "none is out of place: ask whether 0 in shape before you look at any stride.",
    }
)


def neighbours_fit(shape, stride):
    """Do the neighbours fit of which neither has size one?"""
    return all(
        1 in shape[axis : axis + 2] or stride[axis] == stride[axis + 1] * shape[axis + 1]
        for axis in range(len(shape) - 1)
    )


@is_contiguous.mistake(
    "You compare neighbours only, and leave a pair out where one has size one: so the axes on both sides "
    "of it are never compared, nor the last stride in front of it with 1. Drop such axes first."
)
def _(shape, stride):
    if 0 in shape or not shape:
        return True
    return neighbours_fit(shape, stride) and (shape[-1] == 1 or stride[-1] == 1)


@is_contiguous.mistake(
    "You compare neighbours only, and leave a pair out where one has size one: so the axes on both sides "
    "of it are never compared. And a last axis of size one may have any stride. Drop such axes first."
)
def _(shape, stride):
    return 0 in shape or not shape or (neighbours_fit(shape, stride) and stride[-1] == 1)


@is_contiguous.alternative("list all positions and compare with 0, 1, 2, …")
def _(shape, stride):
    positions = [0]
    for size, step in zip(shape, stride):
        positions = [p + i * step for p in positions for i in range(size)]
    return positions == list(range(len(positions)))


view_strides = Exercise(
    strides.view_strides,
    title="Strides of a view",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.strides_of,
    hints=(
        "First merge old axes as far as they go, without a look at the new shape. Then split.",
        "Axes i and i + 1 merge where stride[i] == stride[i + 1] * shape[i + 1]. Which axes may you "
        "drop before you compare?",
        "Hand out each merged run to new axes from the right: the first gets the run's own stride, the "
        "next that times the size handed out. A new axis that does not divide what is left of the run "
        "needs a copy.",
    ),
)
view_strides.by_hand(
    lambda: [
        (call((3, 4), (4, 1), (2, 6)), (6, 1)),
        (call((4, 3), (1, 4), (12,)), None),
        (call((4, 3), (1, 4), (2, 2, 3)), (2, 1, 4)),
    ]
)


@view_strides.cases(80)
def _(draw):
    x = draw(draws.strided_tensors(max_dims=4, sizes=(1, 2, 3, 4)))
    yield call(*plain(x), draw(draws.shapes_with(x.numel())))


@view_strides.edge
def _():
    yield call((), (), (1, 1)), "one element"
    yield call((1, 1), (5, 9), ()), "one element, no axes left"
    yield call((2, 1, 3), (3, 7, 1), (6,)), "an axis of size one with any stride"
    yield call((3, 2), (2, 1), (2, 1, 3)), "a new axis of size one in the middle"
    yield call((3, 4), (0, 1), (12,)), "expanded rows do not follow one another"
    yield call((2, 3), (0, 0), (6,)), "one element, expanded twice"
    yield call((4, 6), (12, 2), (24,)), "every second element, evenly"
    yield call((6, 2), (2, 24), (2, 3, 2)), "split the outer of two axes that do not merge"
    yield call((2, 3, 4), (30, 4, 1), (2, 12)), "merge the inner two of three axes"
    yield call((1, 6), (0, 1), (2, 3)), "a stride of 0 that is never used"
    yield call((6, 2), (0, 1), (2, 3, 2)), "expanded rows, split"
    yield call((2, 3), (3, 1), (1, 6)), "a new axis of size one in front"
    yield call((2, 0, 3), (0, 3, 1), (0, 5)), "an empty tensor can have any shape"
    yield call((3, 0), (1, 3), (0,)), "an empty tensor, transposed"


view_strides.slips(
    {
        replace("if size == 1:", "if False:"): "This is what you get if axes of size one are "
        "asked to merge: an axis that is never stepped along may have any stride. Drop it before "
        "you compare.",
        replace(
            "if size == 1:",
            "if False:",
            "    strides, size",
            "    runs = [run for run in runs if run[0] > 1]\n    strides, size",
        ): "You leave axes of size one out only after the merge: one whose stride does not fit has kept "
        "its neighbours apart. Drop them before you compare.",
        replace(
            "        if size % new_size:\n            return None\n",
            "",
            "runs.pop()",
            "runs.pop() if runs else (1, 1)",
            "size // new_size",
            "-(-size // new_size)",
        ): "You never ask whether the new axes end where a run ends. One that reaches beyond its run, "
        "or does not divide it, has no stride: None.",
        replace(
            "        if size % new_size:\n            return None\n", ""
        ): "You never ask whether a new axis divides what is left of its run. One that does not has no "
        "stride: None.",
        replace(
            "    if 0 in shape",
            "    if not is_contiguous(shape, stride):\n        return None\n    if 0 in shape",
        ): "You say None for every tensor that is not contiguous; some can still be viewed: `x[:, "
        ":2]` of a 3 × 4 tensor as (3, 2, 1).",
        replace(
            "    strides, size,",
            "    if len(runs) > 1:\n        return None\n    strides, size,",
        ): "You say None unless all axes merge into one. Those that do not merge can still be kept or "
        "split: (4, 3) with strides (1, 4) as (2, 2, 3) needs no copy.",
        replace("runs and runs[-1][1] == size * step", "runs"): "You merge axes where the strides "
        "only fall, or do not check at all. One step along the outer axis must equal the whole "
        "way along the inner one.",
        replace(
            "(1,) * len(new_shape)", "(1,) * len(new_shape) if shape == new_shape else None"
        ): "An empty tensor has no element to misplace: every shape without elements is a view of it.",
        replace(
            "if size % new_size:", "if new_size not in (1, size):"
        ): "You merge, but you never split: one axis can become several, with any stride. Start the "
        "inner new axis with the run's own stride.",
        replace("if 0 in shape", "if False"): "A tensor without elements divides by zero in your "
        "split. Every shape without elements is a view of it: answer that first.",
        replace("return None", "raise ValueError"): "You raise where the view must copy. None is "
        "asked for there.",
        replace(
            "    strides, size,",
            "    if any(step == 0 for _, step in runs):\n        return None\n    strides, size,",
        ): "You say None wherever an axis that counts has stride 0. Expanded axes can be split, and merge "
        "with one another like any others: 0 == size · 0.",
        replace(
            "    runs:", "    if 0 in stride:\n        return None\n    runs:"
        ): "You say None wherever there is a stride of 0, even at an axis of size one, which is never "
        "stepped along. Expanded axes can be split, and merge like any others: 0 == size · 0.",
        replace(
            "    strides, size,",
            "    if new_shape[:1] == (1,):\n        return None\n    strides, size,",
        ): "You say None where the new shape begins with an axis of size one: all elements are handed out "
        "when you come to it. Such an axis always fits, with any stride.",
        replace(
            "if size == 1 and new_size > 1", "if size == 1"
        ): "You begin a new run for an axis of size one as well, and where none is left, in front, there "
        "is nothing to take. Such an axis needs no run: any stride will do.",
        replace(
            "        if size == 1:\n            continue\n        if runs and runs[-1][1] == size * step:",
            "        if runs and (1 in (size, runs[-1][0]) or runs[-1][1] == size * step):",
        ): "You merge an axis of size one with those before it, and go on with its stride, which may be "
        "anything. Drop such axes first.",
        replace(
            "== size * step:",
            "== last * step:",
            "            runs.append((size, step))\n",
            "            runs.append((size, step))\n        last = size\n",
        ): "You compare with the inner stride times the size of the outer axis. One step along the outer "
        "axis skips the whole inner one: it is the inner axis's size that counts.",
        replace("== size * step", "== runs[-1][0] * step"): "You multiply by the outer axis's own "
        "size. Two axes merge where the outer stride is the inner stride times the inner size.",
        replace("reversed(strides)", "strides"): "Your new axes are in reverse order: they were "
        "found from the right.",
    }
)
view_strides.mistake(
    "These are the strides of a contiguous tensor of that shape, whatever x's own are."
)(lambda shape, stride, new_shape: strides.contiguous_strides(new_shape))


@view_strides.alternative("ask torch: lay the strides on a meta tensor and try .view")
def _(shape, stride, new_shape):
    x = torch.empty_strided(shape, stride, device="meta")
    try:
        return x.view(new_shape).stride()
    except RuntimeError:
        return None


@view_strides.alternative("by the positions themselves: try the only strides that could fit")
def _(shape, stride, new_shape):
    def positions(sizes, steps):
        found = [0]
        for n, s in zip(sizes, steps):
            found = [p + i * s for p in found for i in range(n)]
        return found

    target = positions(shape, stride)
    if not target:
        return (1,) * len(new_shape)
    result = tuple(
        target[skip] - target[0] if n > 1 else 0
        for n, skip in zip(new_shape, strides.contiguous_strides(new_shape))
    )
    return result if positions(new_shape, result) == target else None


transpose_view = Exercise(
    strides.transpose_view,
    title="Transpose by hand",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.view,
    hints=(
        "No element moves. What of shape, stride and offset has to change?",
        "Swap two entries of the shape, and the same two of the strides.",
        "`x.as_strided(shape, stride, x.storage_offset())`",
    ),
)

GRID = torch.arange(12.0).view(3, 4)
transpose_view.by_hand(
    lambda: [
        (call(GRID, 0, 1), GRID.T),
        (
            call(torch.arange(6).view(1, 2, 3), 0, -1),
            torch.tensor([[[0], [3]], [[1], [4]], [[2], [5]]]),
        ),
    ]
)


@transpose_view.cases
def _(draw):
    x = draw(draws.strided_tensors(max_dims=4, min_dims=2, sizes=(2, 3, 4)))
    axes = st.integers(-x.ndim, x.ndim - 1)
    yield call(x, draw(axes), draw(axes))


@transpose_view.edge
def _():
    yield call(GRID, 1, 1), "an axis with itself"
    yield call(torch.arange(3.0), 0, -1), "the only axis, with itself"
    yield call(torch.zeros(0, 3), 0, 1), "no elements"
    yield call(GRID[1:, 1:], 0, 1), "a slice begins in the middle of its storage"
    yield call(GRID.T, 0, 1), "transposed twice"
    yield call(torch.arange(3).expand(2, 3), 0, 1), "an expanded axis, stride 0"
    yield call(torch.tensor([[float("nan"), 1.0]]), 0, 1), "NaN"
    yield call(GRID.double(), 0, 1), "float64"
    yield call(GRID > 5, 0, 1), "booleans"


transpose_view.contract(contracts.shares_storage([call(torch.zeros(64, 128), 0, 1)]))
transpose_view.slips(
    {
        replace(
            "x.as_strided(shape, stride, x.storage_offset())", "x.reshape(shape)"
        ): "You reshaped: the elements keep their old order and only fall into rows of another "
        "length. A transpose swaps the strides too.",
        replace("x.storage_offset()", "0"): "Your view begins at slot 0 of the storage. A slice "
        "begins elsewhere: pass `x.storage_offset()`.",
        replace(
            "x.storage_offset())", "x.storage_offset()).contiguous()"
        ): "The elements are right, but `contiguous()` moved them to new slots: the result no longer "
        "changes when x does.",
        replace("x.storage_offset())", "x.storage_offset()).clone()"): "The elements and even the "
        "strides are right, but a clone has slots of its own: it no longer changes when x does.",
        replace(
            "per_axis[dim0], per_axis[dim1] = per_axis[dim1], per_axis[dim0]", "per_axis.reverse()"
        ): "You reverse all axes. Only dim0 and dim1 change places.",
        replace("x.stride()", "contiguous_strides(x.shape)"): "You compute the strides of a "
        "contiguous tensor and swap those. Start from `x.stride()`: x may be a view itself.",
        replace(
            "x.storage_offset()", "x.storage_offset() * x.element_size()"
        ): "You count the offset in bytes, as data_ptr does. as_strided counts it in elements, like the "
        "strides: `x.storage_offset()`.",
        replace(
            "x.as_strided(", "x.as_strided_("
        ): "You swap the axes of the caller's own x, in place. A "
        "method without an underscore, such as as_strided, makes a view and leaves x as it is.",
        replace(
            "    shape, stride =",
            "    if x.ndim < 2:\n        raise ValueError(x.shape)\n    shape, stride =",
        ): "You ask for two axes at least. Where there is one, it is swapped with itself.",
        replace("in (shape, stride)", "in (shape,)"): "You swapped the sizes but not the strides, "
        "so the elements are read in an order that nobody asked for.",
        replace("in (shape, stride)", "in (stride,)"): "You swapped the strides but not the "
        "sizes. The two axes exchange both.",
        replace(
            "    shape, stride =", "    x = x.contiguous()\n    shape, stride ="
        ): "x.contiguous() "
        "copies an x that is not contiguous, and your result is a view of the copy. Take x as it is, with "
        "its own strides.",
    }
)


@transpose_view.mistake(
    "You look for dim0 and dim1 among the axes counted from 0, where negative ones are never found: "
    "axis -1 is x.ndim - 1. Add x.ndim to them first."
)
def _(x, dim0, dim1):
    swap = {dim0: dim1, dim1: dim0}
    order = [swap.get(axis, axis) for axis in range(x.ndim)]
    return x.as_strided(
        [x.size(a) for a in order], [x.stride(a) for a in order], x.storage_offset()
    )


transpose_view.mistake(
    "You take axis dim0 out and put it in at dim1, as movedim does, and the axes between them shift. In a "
    "swap they stay where they are."
)(lambda x, dim0, dim1: x.movedim(dim0, dim1))


@transpose_view.mistake(
    "Your code takes dim0 to come before dim1. They may come in either order: sort them, or swap the two "
    "entries by their index."
)
def _(x, dim0, dim1):
    a, b = dim0 % x.ndim, dim1 % x.ndim

    def swapped(t):
        return t if a == b else t[:a] + t[b : b + 1] + t[a + 1 : b] + t[a : a + 1] + t[b + 1 :]

    return x.as_strided(swapped(x.shape), swapped(x.stride()))


transpose_view.mistake(
    "You make a whole tensor only to learn a transposed shape; a list of sizes is enough.",
    replace("list(x.shape)", "list(x.clone().shape)"),
    cost=True,
)


@transpose_view.alternative("an order of axes, applied to shape and strides")
def _(x, dim0, dim1):
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return x.as_strided(
        [x.size(a) for a in order], [x.stride(a) for a in order], x.storage_offset()
    )


transpose_view.alternative("torch's own")(lambda x, dim0, dim1: x.swapaxes(dim0, dim1))


broadcast_view = Exercise(
    strides.broadcast_view,
    title="Repeat without storing",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.view,
    hints=(
        "Which stride makes every step along an axis land on the same element?",
        "Line x's axes up with `shape` from the right. An axis that grows from 1, and a new axis, get "
        "stride 0; the others keep theirs.",
        (
            "edge cases",
            "Where an axis is neither 1 nor already of the right size, raise ValueError.",
        ),
    ),
)
broadcast_view.by_hand(
    lambda: [
        (call(torch.tensor([1.0, 2.0, 3.0]), (2, 3)), torch.tensor([[1.0, 2.0, 3.0]] * 2)),
        (call(torch.tensor([[1.0], [2.0]]), (2, 3)), torch.tensor([[1.0] * 3, [2.0] * 3])),
    ]
)


@broadcast_view.cases
def _(draw):
    x = draw(draws.strided_tensors(max_dims=3, sizes=(1, 2, 3), ops=("transpose", "slice")))
    grown = tuple(draw(st.integers(2, 4)) if n == 1 else n for n in x.shape)
    yield call(x, draw(draws.shapes(max_dims=2, among=(1, 2, 3))) + grown)


@broadcast_view.edge
def _():
    yield call(torch.tensor(5.0), (2, 3)), "one element, no axes"
    yield call(torch.zeros(3, 1), (3, 0)), "an axis of size one may shrink to none"
    yield call(GRID[1:, 1:2], (2, 2, 5)), "a slice begins in the middle of its storage"
    yield call(GRID, (3, 4)), "nothing to repeat"
    yield call(torch.zeros(2), (3,)), "2 does not grow to 3"
    yield call(torch.zeros(3), (1,)), "3 does not shrink to 1"
    yield call(torch.zeros(4), (2, 8)), "4 does not grow to 8, though it divides it"
    yield call(torch.zeros(3), (3, 2)), "axes match from the right"
    yield call(torch.zeros(1, 3), (3,)), "more axes than the shape asked for"
    yield call(torch.zeros(1), ()), "one axis more than the shape asked for, though of size one"
    yield call(torch.zeros(3, 0), (3, 2)), "no element to repeat"
    yield call(torch.zeros(3), (0,)), "3 does not shrink to 0"
    yield call(torch.zeros(0, 3), (2, 0, 3)), "no element, and a new axis in front"


broadcast_view.contract(
    contracts.shares_storage(
        [call(torch.zeros(64), (512, 64)), call(torch.zeros(64, 1), (64, 512))]
    )
)
broadcast_view.slips(
    {
        replace(
            "    new =", "    if x.shape == shape:\n        return x.clone()\n    new ="
        ): "Where nothing is repeated you return a copy. A view is asked for there, too: x itself will do.",
        replace("x.storage_offset())", "x.storage_offset()).clone()"): "The elements are right, "
        "but you stored every repetition. With stride 0 they share one slot.",
        replace(
            "(1,) * new + tuple(x.shape), (0,) * new + x.stride()",
            "tuple(x.shape) + (1,) * new, x.stride() + (0,) * new",
        ): "You line the axes up from the left, with new axes on the right. Broadcasting matches from "
        "the right.",
        replace("x.storage_offset()", "0"): "Your view begins at slot 0 of the storage. A slice "
        "begins elsewhere: pass `x.storage_offset()`.",
        replace("old not in (1, size)", "False"): "You let any axis repeat. Only a size of one "
        "can grow; for others there is nothing sensible to repeat, so raise ValueError.",
        replace("step if old == size else 0", "step"): "An axis that repeats keeps its stride in "
        "your view, and walks on to other elements. Its stride must be 0.",
        replace(
            "if new < 0", "if 0 in x.shape or new < 0"
        ): "You refuse every x without elements. It can have new axes like any other: a size of 0 that stays 0 "
        "neither grows nor shrinks.",
        replace("raise ValueError", "raise RuntimeError"): "You raise RuntimeError, as x.expand "
        "does. ValueError is asked for.",
        replace(
            "old not in (1, size)", "1 != old < size", "old == size else 0", "old >= size else 0"
        ): "You refuse only what would have to grow: an axis that is longer than `shape` asks for is cut. "
        "Raise ValueError there too.",
        replace(
            "old not in (1, size)", "1 not in (old, size) and old != size"
        ): "You go by the rule for two operands, where either may have the 1. Only x is repeated here: "
        "where `shape` has 1 and x has more, raise ValueError.",
        replace(
            "old not in (1, size)", "old != size and not (old == 1 and size > 1)"
        ): "You refuse to make 0 of an axis of size one. It may take any size, 0 as well: the view then has "
        "no elements.",
        replace("x.storage_offset())", "x.storage_offset()).contiguous()"): "contiguous() stores "
        "every repetition. With stride 0 they share one slot.",
        replace(
            "    new =", "    x = x.contiguous()\n    new ="
        ): "x.contiguous() copies an x that is "
        "not contiguous, and your result is a view of the copy. Take x as it is, with its own strides.",
        replace(
            "    new =",
            "    from torch import broadcast_shapes\n    try:\n        shape = broadcast_shapes(x.shape, shape)\n"
            "    except RuntimeError as error:\n        raise ValueError(shape) from error\n    new =",
        ): "You broadcast x and `shape` against each other, so `shape` may grow too. Only x may: where an axis "
        "would have to shrink to 1, or x has more axes, raise ValueError.",
        replace(
            "    new =", "    x = x[(0,) * max(x.ndim - len(shape), 0)]\n    new ="
        ): "You let a tensor with more axes than `shape` through. Raise ValueError there too, also where "
        "an axis too many has size one.",
    }
)
broadcast_view.mistake(
    "x.expand(*shape) raises RuntimeError where x does not fit: ValueError is asked for. And with an "
    "empty shape it has no argument at all: give `shape` as one, x.expand(shape)."
)(lambda x, shape: x.expand(*shape))
broadcast_view.mistake(
    "You let torch broadcast x against a full tensor of that shape: the result is a view, but the other "
    "tensor was allocated.",
    replace("x.as_strided(shape, stride, x.storage_offset())", "x.expand_as(x.new_empty(shape))"),
    cost=True,
)


@broadcast_view.alternative("insert the new axes first, then expand")
def _(x, shape):
    if x.ndim > len(shape):
        raise ValueError(shape)
    while x.ndim < len(shape):
        x = x.unsqueeze(0)
    for axis, (old, new) in enumerate(zip(x.shape, shape)):
        if old != new and old != 1:
            raise ValueError(f"axis {axis}")
    return x.expand(shape)


sliding_windows = Exercise(
    strides.sliding_windows,
    title="Overlapping windows",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.view,
    hints=(
        "The result has one axis more than x. How far does one step along each of the last two move?",
        "From window to window: `step` elements of x's last axis. Within a window: one. Mind that x's "
        "last stride need not be 1.",
        "`n = (L - size) // step + 1`; raise ValueError where no window fits.",
    ),
)
sliding_windows.by_hand(
    lambda: [
        (
            call(torch.arange(5.0), 3),
            torch.tensor([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]),
        ),
        (call(torch.arange(8), 4, 2), torch.tensor([[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]])),
    ]
)


@sliding_windows.cases
def _(draw):
    x = draw(
        draws.strided_tensors(max_dims=3, min_dims=1, sizes=(3, 4, 6), ops=("transpose", "slice"))
    )
    yield call(x, draw(st.integers(1, x.size(-1))), draw(st.integers(1, 3)))


@sliding_windows.edge
def _():
    yield call(torch.arange(4.0), 4), "one window"
    yield call(torch.arange(7.0), 2, 5), "windows that leave gaps"
    yield call(torch.arange(10.0)[1::3], 2), "a last axis with stride 3"
    yield call(torch.zeros(0, 5), 2), "an empty batch"
    yield call(torch.zeros(0, 5), 6), "an empty batch, and no window fits"
    yield call(torch.tensor([1.0, float("nan"), 2.0]), 2), "NaN"
    yield call(torch.arange(3.0), 4), "no window fits"
    yield call(torch.arange(3.0), 0), "a window of nothing"
    yield call(torch.arange(3.0), 2, 0), "a step that does not move"
    yield call(torch.arange(3.0), -1), "a negative window"
    yield call(torch.arange(3.0), 2, -1), "a negative step"
    yield call(torch.arange(24.0).view(2, 1, 3, 4), 2), "a batch of three axes"
    yield call(torch.arange(4.0).expand(3, 4), 2), "expanded rows"
    yield call(torch.arange(6.0), size=2, step=3), "arguments by name"


sliding_windows.contract(
    contracts.shares_storage([call(torch.zeros(4096), 512), call(torch.zeros(4, 1024), 16, 4)])
)
sliding_windows.slips(
    {
        replace("// step", "// size", "step * inner", "size * inner"): "You put windows side by "
        "side, without overlap: their starts are `step` apart, not `size`.",
        replace("// step + 1", "// step"): "One window is missing: the last one still fits. There "
        "are (L - size) // step + 1.",
        replace("step * inner, inner", "step, 1"): "You take x's last stride to be 1. x may be a "
        "slice or a transpose: use `x.stride(-1)`.",
        replace(
            "step * inner, inner", "step * inner, 1"
        ): "From window to window your strides are right; "
        "within one you step by 1. x may be a slice or a transpose: use `x.stride(-1)` there too.",
        replace(
            "step * inner, inner", "step, inner"
        ): "Within a window your stride is right; from window "
        "to window you move `step` slots. It is `step` elements of x's last axis: step · x.stride(-1).",
        replace(
            "step * inner, inner", "inner, step * inner"
        ): "Your windows start side by side, and take every `step`-th element: the last two strides are the "
        "other way round. Windows are step · x.stride(-1) apart, neighbours in one x.stride(-1).",
        replace(
            "    *outer, inner", "    length = len(x)\n    *outer, inner"
        ): "You count the windows by the length of the first axis, which is a batch's where x has several. "
        "L is the last: x.shape[-1].",
        replace("// step + 1", "+ 1", "step * inner", "inner"): "You ignore `step`: your windows "
        "start at every element.",
        replace("x.storage_offset())", "x.storage_offset()).clone()"): "The elements are right, "
        "but each window is a copy of its own. Overlapping windows can share slots.",
        replace(
            "x.storage_offset())", "x.storage_offset()).transpose(-1, -2)"
        ): "You swapped the last two axes: windows[..., i, j] is element j of window i.",
        replace("x.storage_offset()", "0"): "Your view begins at slot 0 of the storage. A slice "
        "begins elsewhere: pass `x.storage_offset()`.",
        replace(
            "(length - size) // step", "-((size - length) // step)"
        ): "You round the number of windows up, so the last one hangs over the end. There are (L - "
        "size) // step + 1.",
        replace(
            "(length - size) // step + 1", "(length - size + 1) // step"
        ): "You add the 1 before you divide, and may lose the last window. It is added to the quotient: "
        "(L - size) // step + 1.",
        replace("(length - size) // step + 1", "length // step"): "L // step counts starts, also "
        "those from which no whole window fits. There are (L - size) // step + 1.",
        replace(
            "    *batch, length", "    x = x.contiguous()\n    *batch, length"
        ): "x.contiguous() "
        "copies an x that is not contiguous, and your windows are views of the copy. Take x as it is, "
        "with its own strides.",
        replace("(1 <= size", "(size"): "You let a size of 0 or less through: there is no such "
        "window. Raise ValueError.",
        replace(
            "1 <= size <= length and", "1 <= size and (size <= length or not x.numel()) and"
        ): "You let any window through where the batch is empty. One that is longer than the axis is a ValueError "
        "there, too.",
        replace(" <= length", ""): "You let a window through that is longer than the axis: none "
        "fits. Raise ValueError.",
        replace(
            " and step >= 1", ""
        ): "You let a step of 0 or less through: the windows would never "
        "move on. Raise ValueError.",
        replace("not (1 <= size <= length and step >= 1)", "False"): "Sizes and steps below one, "
        "and windows longer than the axis, must raise ValueError.",
        replace("raise ValueError", "raise RuntimeError"): "You raise RuntimeError, as x.unfold "
        "does. ValueError is asked for.",
    }
)
sliding_windows.mistake(
    "You make a tensor of all the starts only to count them; (L - size) // step + 1 does it.",
    replace("(length - size) // step + 1", "len(x.new_empty(length - size + 1)[::step])"),
    cost=True,
)


@sliding_windows.alternative("torch's own unfold, with the errors asked for")
def _(x, size, step=1):
    if size < 1 or step < 1 or size > x.shape[-1]:
        raise ValueError("no window fits")
    return x.unfold(-1, size, step)


diagonal_view = Exercise(
    strides.diagonal_view,
    title="A diagonal, in place",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.view,
    hints=(
        "From (i, i) to (i + 1, i + 1): how far is that in storage?",
        "One axis with stride row + column. A diagonal to the right starts `offset` columns in, one "
        "below starts `-offset` rows down. Count the rows from there to the bottom, and the columns "
        "to the right edge: the smaller number is the length.",
        (
            "edge cases",
            "A diagonal that misses the matrix has length 0, never less. Its start may lie outside the "
            "storage: which offset is safe for it?",
        ),
    ),
)

SQUARE = torch.arange(9.0).view(3, 3)
diagonal_view.by_hand(
    lambda: [
        (call(SQUARE), torch.tensor([0.0, 4.0, 8.0])),
        (call(GRID, 1), torch.tensor([1.0, 6.0, 11.0])),
        (call(GRID, -1), torch.tensor([4.0, 9.0])),
    ]
)


@diagonal_view.cases
def _(draw):
    x = draw(
        draws.strided_tensors(max_dims=4, min_dims=2, sizes=(2, 3, 4), ops=("transpose", "slice"))
    )
    yield call(x, draw(st.integers(1 - x.size(-2), x.size(-1) - 1)))


@diagonal_view.edge
def _():
    yield call(torch.zeros(3, 0)), "no columns"
    yield call(torch.zeros(1, 1)), "one element"
    yield call(GRID, 9), "far to the right of the matrix"
    yield call(GRID, -9), "far below the matrix"
    yield call(torch.zeros(2, 3, 4), 4), "a diagonal that misses each matrix of a batch"
    yield call(GRID, offset=-1), "the offset by its name"
    yield call(GRID[1:, 1:], 1), "a slice begins in the middle of its storage"
    yield call(torch.arange(3.0).expand(3, 3)), "expanded rows: stride 0 + 1"
    yield call(torch.tensor([[1.0, 2.0], [float("nan"), 3.0]]), -1), "NaN"


diagonal_view.contract(contracts.shares_storage([call(torch.zeros(8, 128, 128), 3)]))
diagonal_view.slips(
    {
        replace("row + column", "row"): "You step by one row: that walks down a column. The "
        "diagonal moves one row *and* one column on.",
        replace("min(n - top, m - left)", "n - abs(offset)"): "You take the diagonal's length "
        "from a square matrix. It ends where rows or columns run out, whichever is first.",
        replace(
            "max(-offset, 0), max(offset, 0)", "max(offset, 0), max(-offset, 0)"
        ): "You mixed up the signs: a positive offset lies to the right of the main diagonal, a "
        "negative below.",
        replace("x.storage_offset() + ", ""): "You ignore x's own offset: a slice begins in the "
        "middle of its storage. Start from `x.storage_offset()`.",
        replace(", start)", ", start).clone()"): "The elements are right, but it is a copy: "
        "filling it would leave x as it was.",
        replace("row + column), start", "row + 1), start"): "You take the step along a row to be "
        "1. x may be a transpose or a slice: its last stride says it.",
        replace(
            "max(min(n - top, m - left), 0)", "min(n - top, m - left)"
        ): "A diagonal that misses the matrix has length 0 in torch; yours is negative. Raise it to 0.",
        replace(
            "    start =",
            "    if not length:\n        return x.as_strided((0,), (1,), x.storage_offset())\n    start =",
        ): "Where the diagonal misses the matrices, the axes of the batch are lost. The result is (*batch, 0).",
        replace("max(-offset, 0), max(offset, 0)", "0, offset"): "A negative offset begins "
        "-offset rows further down. Yours begins columns to the left, outside of the matrix.",
        replace(
            "top * row + left * column", "(top + left) * column"
        ): "For a negative offset you move along the columns as well. It lies -offset rows down: that is "
        "-offset steps of the row's stride.",
        replace(
            "(*batch, length), (*outer, row + column)", "(length,), (row + column,)"
        ): "The axes of the batch are lost: this is the diagonal of the first matrix.",
        replace(
            "min(n - top, m - left)", "min(n, m) - abs(offset)"
        ): "min(n, m) - |offset| is too short where a matrix is not square: in 3 × 4 the diagonal at 1 "
        "still has 3 elements. Count the rows and the columns that are left from where it starts.",
        replace(
            "max(min(n - top, m - left), 0)", "min(n, m) - abs(offset)"
        ): "min(n, m) - |offset| is too short where a matrix is not square, and negative where the "
        "diagonal misses it. Count the rows and the columns that are left, and raise the smaller to 0.",
        replace(
            "    *batch, n, m", "    x = x.contiguous()\n    *batch, n, m"
        ): "x.contiguous() copies "
        "an x that is not contiguous, and your diagonal is a view of the copy. Take x as it is, with its "
        "own strides.",
        replace(
            "    *batch, n, m",
            "    x = x.flatten(-2).unflatten(-1, x.shape[-2:])\n    *batch, n, m",
        ): "You make one axis of rows and columns first, by flatten or reshape. That copies where they do "
        "not merge, as in a transpose or a slice of columns, and your diagonal is a view of the copy.",
    }
)
diagonal_view.mistake(
    "You took the diagonal of the first two axes, which is torch.diagonal's default. The matrices are "
    "in the last two: dim1=-2, dim2=-1."
)(lambda x, offset=0: x.diagonal(offset))
diagonal_view.mistake(
    "You copy the whole matrix only to learn how long its diagonal is; sizes and offset say it.",
    replace("x.shape", "x.clone().shape"),
    cost=True,
)


@diagonal_view.alternative("slice to the corner where it starts, then step by row + column")
def _(x, offset=0):
    corner = x[..., :, offset:] if offset >= 0 else x[..., -offset:, :]
    *batch, n, m = corner.shape
    *outer, row, column = corner.stride()
    return corner.as_strided((*batch, min(n, m)), (*outer, row + column), corner.storage_offset())


diagonal_view.alternative("torch's own")(lambda x, offset=0: x.diagonal(offset, -2, -1))
diagonal_view.equivalent(
    "diagonal_view: `0` → `1`",
    because="where a diagonal without elements begins cannot be seen",
)


toeplitz_view = Exercise(
    strides.toeplitz_view,
    title="The relative shift",
    difficulty=3,
    minutes=25,
    points=4,
    probe=probes.view,
    hints=(
        "Write down where T[0, 0], T[0, 1] and T[1, 0] are in x, and then where they are in storage.",
        "One step right in T is one step right in x. One step down in T is one row down and one column "
        "*left* in x.",
        "So the strides are row - column and column, and the first element is x[0, n - 1].",
        (
            "edge cases",
            "torch has no negative strides: what if row < column? And does it matter with one row?",
        ),
    ),
)
toeplitz_view.by_hand(
    lambda: [
        (call(torch.arange(4.0).view(2, 2)), torch.tensor([[1.0], [2.0]])),
        (
            call(torch.arange(15.0).view(3, 5)),
            torch.tensor([[2.0, 3.0, 4.0], [6.0, 7.0, 8.0], [10.0, 11.0, 12.0]]),
        ),
        (
            call(torch.tensor([[1, 2, 3, 4]] * 2)),
            torch.tensor([[2, 3, 4], [1, 2, 3]]),
        ),
    ]
)


@toeplitz_view.cases
def _(draw):
    n, m = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    batch = draw(draws.shapes(max_dims=2, among=(1, 2)))
    gap, every = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    wide = torch.arange(float(prod(batch) * n * (n + m - 1 + gap) * every))
    yield call(wide.view(*batch, n, -1)[..., : (n + m - 1) * every : every])


@toeplitz_view.edge
def _():
    yield call(torch.arange(4.0).view(1, 4)), "one row: nothing to shift"
    yield call(torch.arange(9.0).view(3, 3)), "one column: the diagonal from the right"
    yield (
        call(torch.arange(30.0).view(5, 6)[1:4, 1:]),
        "a slice begins in the middle of its storage",
    )
    yield call(torch.arange(12.0).view(2, 6)[:, ::2]), "columns two apart"
    yield call(torch.zeros(0, 2, 3)), "an empty batch"
    yield call(torch.arange(60.0).view(3, 4, 5)[1:, 1:, 1:]), "a slice of a batch"
    yield call(torch.arange(6.0).view(3, 2).T[:1]), "one row, whose own stride is never used"
    yield call(torch.zeros(3, 2)), "fewer columns than rows"
    yield call(torch.zeros(0, 2)), "no rows"
    yield call(torch.zeros(1, 0)), "one row without a column"
    yield call(torch.arange(5.0).expand(3, 5)), "expanded rows would need the stride 0 - 1"
    yield call(torch.zeros(5, 3).T), "column-major: the stride would be negative"
    yield call(torch.zeros(3, 2).T), "two rows are enough to need a negative stride"
    yield call(torch.arange(6.0).unfold(0, 4, 1)), "windows that overlap already: row - column is 0"


toeplitz_view.contract(contracts.shares_storage([call(torch.zeros(4, 64, 127))]))
toeplitz_view.slips(
    {
        replace(
            "row - column", "row + column", " + (n - 1) * column", ""
        ): "Your rows shift the other way: each begins one place further *right*. Going down a row in "
        "T goes left in x, so subtract the column's stride.",
        replace("row - column", "row"): "You do not shift at all: these are the last columns of "
        "x. Each row has to begin one place further left than the row above.",
        replace(" + (n - 1) * column", ""): "You start at x[0, 0]. The first row reads from "
        "relative position 0, which is column n - 1.",
        replace(
            "row, column = x.stride()", "_, _ = x.stride()\n    row, column = p, 1"
        ): "You take the strides of x to be (p, 1). x may be a slice with gaps: start from "
        "`x.stride()`.",
        replace(", start)", ", start).clone()"): "The elements are right, but you gathered them "
        "into new memory. Shifted rows are only other strides.",
        replace(", start)", ", start).flip(-2)"): "You return the rows in reverse order: T[0, 0] "
        "is x[0, n - 1], in the first row of x.",
        replace(
            "or down < 0",
            "",
            "x.as_strided((*batch, n, p - n + 1), (*outer, down, column), start)",
            "x.unfold(-1, p - n + 1, 1)[..., range(n), range(n - 1, -1, -1), :]",
        ): "The elements are right, but you gathered them into new memory; a view would have to raise "
        "ValueError where its stride is negative.",
        replace("(n - 1) * column", "n * column"): "You start one column too far to the right. "
        "T[0, 0] is x[0, n - 1].",
        replace(
            "(n - 1) * column", "(p - n) * column"
        ): "You start m - 1 columns in, where it is n - 1: T[0, 0] is x[0, n - 1]. The two agree for n = m "
        "only.",
        replace("(n - 1) * column", "n - 1"): "You count the start in slots. From x[0, 0] to x[0, "
        "n - 1] it is n - 1 steps of the last stride.",
        replace(
            "down < 0", "(n > 1 and down <= 0)"
        ): "You refuse a step down of 0 as well, where rows overlap already. torch lacks negative "
        "strides only.",
        replace(
            "down < 0", "down <= 0"
        ): "You refuse a step down of 0 as well, and so every single "
        "row. torch lacks negative strides only.",
        replace(
            "    *batch, n, p", "    x = x.contiguous()\n    *batch, n, p"
        ): "x.contiguous() copies "
        "an x that is not contiguous, and your result is a view of the copy. Take x as it is, with its "
        "own strides.",
        replace(
            "    start =",
            "    if n > 1:\n        x = x.flatten(-2).unflatten(-1, (n, p))\n"
            "        *outer, row, column = x.stride()\n        down = row - column\n    start =",
        ): "flatten and reshape copy where the rows do not follow one another without a gap, as in a slice: "
        "your result is a view of the copy. as_strided takes x's own strides.",
        replace(
            " or down < 0",
            "",
            "    start =",
            "    if n > 1:\n        x = x.flatten(-2).unflatten(-1, (n, p))\n"
            "        *outer, row, column = x.stride()\n        down = row - column\n    start =",
        ): "flatten and reshape copy where the rows do not follow one another without a gap: your result is "
        "a view of the copy, even where a view of x would need a negative stride and ValueError is due.",
        replace(" or down < 0", ""): "torch refuses the negative stride with RuntimeError. Say so "
        "yourself, with ValueError.",
        replace(" if n > 1 else 0", ""): "You refuse a single row whose stride is smaller than "
        "its column's. With one row there is no step down.",
        replace(
            "    down = row", "    if n == 1:\n        return x\n    down = row"
        ): "You return a single row before you look at its columns. Where there are none, n is above p, and "
        "ValueError is due.",
        replace(
            "n <= p", "n <= p + 1"
        ): "You let n = p + 1 through, where m is 0, and return an empty view. n is at most p: raise "
        "ValueError.",
        replace("p - n + 1", "p"): "Your T is as wide as x. Its rows have m = p - n + 1 columns; "
        "beyond them you read what belongs to others.",
    }
)
toeplitz_view.mistake(
    "You pad the scores first, as the published versions do; that copies them all. Their strides are "
    "enough.",
    replace("    start =", "    x.new_empty(*batch, n, p + 1)\n    start ="),
    cost=True,
)


@toeplitz_view.alternative("drop the first n - 1 columns, then lean the rows")
def _(x):
    n, p = x.shape[-2:]
    row, column = x.stride()[-2:]
    if n < 1 or p < n or (n > 1 and row < column):
        raise ValueError((n, p))
    first = x[..., n - 1 :]
    lean = row - column if n > 1 else row
    return first.as_strided(first.shape, (*x.stride()[:-2], lean, column))


@toeplitz_view.alternative("a diagonal of windows: window n - 1 - i of row i")
def _(x):
    n, p = x.shape[-2:]
    if not 1 <= n <= p:
        raise ValueError((n, p))
    if n == 1:
        return x.unsqueeze(-2)[..., 0, :, :]
    if x.stride(-2) < x.stride(-1):
        raise ValueError(x.stride())
    windows = x.unfold(-1, p - n + 1, 1)
    start = windows[..., 0, n - 1, :].storage_offset() if x.numel() else x.storage_offset()
    steps = (*x.stride()[:-2], windows.stride(-3) - windows.stride(-2), windows.stride(-1))
    return x.as_strided((*x.shape[:-1], p - n + 1), steps, start)


ONE_EACH = (
    "there is one entry for each axis, so no call has lengths that differ: a guard against slips"
)
for exercise, zipped in (
    (flat_index, "index, stride"),
    (is_contiguous, "reversed(shape), reversed(stride)"),
    (view_strides, "shape, stride"),
):
    name = exercise.names[0]
    exercise.equivalent(f"{name}: `zip({zipped}, strict=True)` → `zip({zipped})`", because=ONE_EACH)
    exercise.equivalent(f"{name}: `strict=True` → `strict=False`", because=ONE_EACH)
flat_index.equivalent(
    "flat_index: `zip(index, stride, strict=True)` → `zip(stride, index, strict=True)`",
    because="a product does not depend on the order of its factors",
)
for n in (0, 2):
    view_strides.equivalent(
        f"view_strides: `(1,) * len(new_shape)` → `({n},) * len(new_shape)`",
        because="no element, so any strides are right, and the probe accepts any",
    )
view_strides.equivalent(
    "view_strides: `size // new_size` → `size / new_size`",
    because="the division is exact, since any remainder has returned None, and never handed out",
)
for step in (0, 2):
    view_strides.equivalent(
        f"view_strides: `([], 1, 1)` → `([], 1, {step})`",
        because="before the first run is taken only new axes of size one get this step, and never use it",
    )
SHORTER = (
    "with new < 0 there are more sizes than entries of shape, and the strict zip raises as well"
)
AS_MANY = "evaluated only if new >= 0, and then sizes, shape and steps have as many entries"
for mutant, because in {
    "new < 0 or any((old not in (1, size) for old, size in zip(sizes, shape,…` → `any((old not in "
    "(1, size) for old, size in zip(sizes, shape, strict=Tru…": SHORTER,
    "new < 0` → `new < -1": SHORTER,
    "zip(sizes, shape, strict=True)` → `zip(sizes, shape)": AS_MANY,
    "strict=True` → `strict=False` [#1]": AS_MANY,
    "zip(sizes, shape, steps, strict=True)` → `zip(sizes, shape, steps)": AS_MANY,
    "strict=True` → `strict=False` [#2]": AS_MANY,
    "zip(sizes, shape, steps, strict=True)` → `zip(shape, sizes, steps, strict=True)": "the two sizes "
    "are only compared for equality",
    "(0,) * new` → `(1,) * new": "a new axis keeps this step only where its size is one: never used",
}.items():
    mutant = f"broadcast_view: `{mutant}" + ("" if mutant.endswith("]") else "`")
    broadcast_view.equivalent(mutant, because=because)
toeplitz_view.equivalent(
    "toeplitz_view: `0` → `1`", because="a single row has no step down, so its stride is never used"
)
