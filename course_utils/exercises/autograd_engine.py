"""Exercises of chapter 7, an autograd engine: VJPs on arrays, the order of the walk, and the walk itself."""
# mypy: ignore-errors
# ruff: noqa: B905 (mistakes are written as students write them)

import math
import sys

import numpy as np
import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, draws, probes, replace
from course_utils.grading.probes.chapters.autograd_engine import ARRAYS
from course_utils.reference import autograd_engine as engine
from course_utils.reference.autograd_engine import broadcast_vjp as summed
from course_utils.reference.autograd_engine import topological_order as in_order

NAN, INF = float("nan"), float("inf")
F64, F32 = torch.float64, torch.float32


def array(*values, dtype=F64):
    """A tensor of these numbers: the answer gets it as an array."""
    return torch.tensor(values, dtype=dtype)


def normal(*shape, dtype=F64, seed=0):
    """Fixed standard normal numbers for cases without draws."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


dtypes = st.sampled_from([F64, F64, F32])

# ------------------------------------------------------------------------------ relu_vjp

relu_vjp = Exercise(
    engine.relu_vjp,
    title="Backward of the ReLU",
    difficulty=1,
    minutes=5,
    points=1,
    probe=probes.on_arrays,
    formats=ARRAYS,
    hints=(
        "Where relu(x) is above 0, it is x itself. What is its derivative there, and what elsewhere?",
        "`np.where(condition, one, other)` takes from `one` where the condition holds.",
        ("edge cases", "0 times infinity is NaN: choose, do not multiply."),
    ),
)


@relu_vjp.by_hand
def _():
    yield call(array(1.0, 2.0, 3.0), array(0.0, 5.0, 0.5)), array(0.0, 2.0, 3.0)
    yield call(array([-1.0], [4.0]), array([2.0], [0.0])), array([-1.0], [0.0])


@relu_vjp.cases
def _(draw):
    shape = draw(draws.shapes(max_dims=3, among=(1, 2, 3, 4)))
    dtype = draw(dtypes)
    yield call(draw(draws.tensors(shape, dtype)), draw(draws.tensors(shape, dtype)).relu())


@relu_vjp.edge
def _():
    y = normal(3, 4, seed=1).relu()
    yield call(array(INF, -INF, NAN, INF), array(0.0, 0.0, 0.0, 2.0)), "infinite and NaN gradients"
    yield call(array(2.0, 3.0, 5.0), array(1e-300, 0.0, INF)), "tiny and infinite results"
    yield call(array(2.0, 3.0), array(NAN, 1.0)), "a result that is NaN is not above 0"
    yield call(draws.scattered(normal(3, 4)), draws.scattered(y)), "not contiguous"
    yield call(torch.zeros(0, 3, dtype=F64), torch.zeros(0, 3, dtype=F64)), "no elements"
    yield call(normal(), torch.ones((), dtype=F64)), "no axes"
    yield call(normal(1, 4).expand(3, 4), y), "grad is broadcast: its rows share their memory"
    yield call(normal(4, dtype=torch.float16), normal(4, seed=1).relu().half()), "half precision"
    yield call(normal(4, dtype=F32), array(1.0, 0.0, 2.0, 0.5)), "grad is float32, y float64"
    yield call(normal(3), array(1.0, 2.0, 0.5), own=True), "nothing is cut off: still a new array"


relu_vjp.slips(
    {
        replace(
            "y > 0", "y >= 0"
        ): "You let the gradient through where y is 0. There x was cut off, and "
        "nothing of it reaches the result: the condition is y > 0.",
        replace(
            "y > 0", "grad > 0"
        ): "You look at the sign of the gradient. Whether an element was cut off shows in y.",
        replace(
            "y > 0", "y < 0"
        ): "You have it the wrong way round, and y is never below 0: pass where y is above 0.",
        replace(
            "y > 0", "y == 0"
        ): "You have it the wrong way round: pass the gradient where y is above "
        "0, and 0 where it is 0.",
        replace(
            "np.where(y > 0, grad, 0)", "(y > 0) * grad"
        ): "0 times infinity, or times NaN, is NaN. Choose with np.where instead of multiplying.",
        replace(
            "np.where(y > 0, grad, 0)", "y * grad"
        ): "You multiply by y. The derivative is 1 where y is above 0, whatever y is.",
        replace(
            "np.where(y > 0, grad, 0)", "np.maximum(grad, 0)"
        ): "You cut the gradient off where it is negative. Cut it off where y is 0.",
        replace(
            "np.where(y > 0, grad, 0)", "np.where(y > 0, 1.0, 0.0)"
        ): "You return the derivative. Multiply the incoming gradient with it: choose grad, or 0.",
        replace(
            "np.where(y > 0, grad, 0)", "np.where(y > 0, grad, 0).astype(np.float64)"
        ): "You return float64 whatever came. Keep grad's dtype.",
        replace(
            "np.where(y > 0, grad, 0)", "np.where(y > 0, grad, 0).ravel()"
        ): "You return one axis. The gradient has the shape of grad.",
        replace(
            "np.where(y > 0, grad, 0)", "np.where(y > 0, grad, y)"
        ): "Where y is not above 0 you return y. The gradient there is 0, also where y is NaN.",
        replace(
            "np.where(y > 0, grad, 0)", "np.sign(y) * grad"
        ): "0 times infinity, or times NaN, is NaN. Choose with np.where instead of multiplying.",
        replace(
            "np.where(y > 0, grad, 0)", "grad"
        ): "You pass every gradient. Where y is 0, x was cut off, and its gradient is 0.",
        replace(
            "np.where(y > 0, grad, 0)", "grad[y > 0]"
        ): "You keep only the elements that pass. The others get 0: the gradient has grad's shape.",
        replace("y > 0", "y > 1e-6"): "You cut off small results as well. Every y above 0 passes.",
        replace(
            "y > 0", "y != 0"
        ): "You pass where y is not 0. A y that is NaN is not above 0: the condition is y > 0.",
        replace(
            "y > 0", "~np.isclose(y, 0)"
        ): "You cut off where y is about 0. Pass where y is above 0: however small, and not where it is NaN.",
        replace(
            "np.where(y > 0, grad, 0)", "(y > 0) * np.nan_to_num(grad)"
        ): "np.nan_to_num changes gradients that pass, too: an infinite one comes out finite. Choose with np.where.",
        replace(
            "np.where(y > 0, grad, 0)", "np.where(y > 0, grad, 0).astype(y.dtype)"
        ): "You return y's dtype. The gradient keeps grad's.",
        replace(
            "return np", "if (y > 0).all():\n        return grad\n    return np"
        ): "Where nothing is cut off you hand back `grad` itself. The result is a new array, also then.",
    }
)


_INTO_GRAD = "You write into `grad`, which may be somebody else's as well. Work on a copy."


@relu_vjp.mistake(_INTO_GRAD)
def _(grad, y):
    grad[y <= 0] = 0
    return grad


@relu_vjp.mistake(_INTO_GRAD)
def _(grad, y):
    grad[~(y > 0)] = 0
    return grad.copy()


@relu_vjp.alternative("a copy, and zeros where y is 0")
def _(grad, y):
    dx = grad.copy()
    dx[~(y > 0)] = 0.0
    return dx


# ------------------------------------------------------------------------------ broadcast_vjp

broadcast_vjp = Exercise(
    engine.broadcast_vjp,
    title="Backward of broadcasting",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.on_arrays,
    formats=ARRAYS,
    hints=(
        "Chapter 3's `unbroadcast` does this for tensors. NumPy says `axis` and `keepdims`.",
        "An axis was repeated if `shape` lacks it, or has size 1 there. Shapes align at their last axes.",
        "`grad.sum(axis=axes, keepdims=True).reshape(shape)`: which axes?",
        ("edge cases", "Where grad has size 0 and `shape` has 1, the sum of nothing is 0."),
    ),
)


@broadcast_vjp.by_hand
def _():
    grad = torch.arange(6, dtype=F64).reshape(2, 3)
    yield call(grad, (3,)), array(3.0, 5.0, 7.0)
    yield call(grad, (2, 1)), array([3.0], [12.0])
    yield call(grad, (2, 3)), grad
    yield call(grad, ()), torch.tensor(15.0, dtype=F64)


@broadcast_vjp.cases
def _(draw):
    whole = draw(draws.shapes(max_dims=4, among=(1, 2, 3, 4)))
    kept = whole[draw(st.integers(0, len(whole))) :]
    shape = tuple(draw(st.sampled_from((1, size))) for size in kept)
    yield call(draw(draws.tensors(whole, draw(dtypes))), shape)


@broadcast_vjp.edge
def _():
    yield call(normal(0, 3), (1, 3)), "a sum over no elements"
    yield call(normal(2, 0), (0,)), "no elements"
    yield call(normal(), ()), "no axes"
    yield call(normal(1, 1, 1), (1,)), "only ones"
    yield call(draws.scattered(normal(2, 3, 4)), (3, 1)), "not contiguous"
    yield call(normal(3, 3, 3), (1, 3, 1)), "sizes all alike"
    yield call(normal(1, 4).expand(3, 4), (1, 4)), "grad is broadcast: its rows share their memory"


_IN_FRONT = "You sum only over axes that `shape` lacks. One of size 1 was repeated as well."
_LONGER = (
    "You sum where grad is longer than `shape`. A 1 may have been broadcast to size 0 as well: sum wherever "
    "`shape` has 1."
)
broadcast_vjp.slips(
    {
        replace("(*range(missing), *repeated)", "tuple(range(missing))"): _IN_FRONT,
        replace(
            "axis=(*range(missing), *repeated), keepdims=True).reshape(shape)",
            "axis=tuple(range(missing)))",
        ): _IN_FRONT,
        replace(
            "(*range(missing), *repeated)", "tuple(repeated)"
        ): "You sum only over axes of size 1 in "
        "`shape`. Those that it lacks in front were repeated as well.",
        replace(
            "start=missing", "start=0"
        ): "You align the shapes at their first axes. They align at their last.",
        replace("grad.sum(", "grad.mean("): "You take the mean. Each copy adds its gradient: sum.",
        replace(
            ".reshape(shape)", ""
        ): "You keep axes of size 1 that `shape` does not have. Reshape the sum.",
        replace(
            "size == 1", "size > 1"
        ): "You sum over axes that were not repeated. Those of size 1 were.",
        replace(
            "grad.sum(axis=(*range(missing), *repeated), keepdims=True).reshape(shape)",
            "np.broadcast_to(grad.sum(), shape)",
        ): "You add up everything. Only axes that were repeated are summed over.",
        replace(
            "grad.sum(axis=(*range(missing), *repeated), keepdims=True).reshape(shape)",
            "grad.reshape(-1)[:int(np.prod(shape))].reshape(shape)",
        ): "You take the first elements. The gradient of a copy is lost then: sum over the copies.",
        replace(
            "grad.sum(", "grad.max("
        ): "You take the largest. Each copy adds its gradient: sum.",
        replace(
            "grad.sum(", "grad.astype(np.float64).sum("
        ): "You return float64 whatever came. Keep grad's dtype.",
        replace("size == 1", "grad.shape[axis] > size"): _LONGER,
    }
)


@broadcast_vjp.mistake(_LONGER)
def _(grad, shape):
    grad = grad.sum(axis=tuple(range(grad.ndim - len(shape))))
    longer = tuple(i for i, (g, s) in enumerate(zip(grad.shape, shape)) if g > s)
    return grad.sum(axis=longer, keepdims=True)


@broadcast_vjp.mistake(
    "You sum the last axes away until the number of axes fits. New axes are in front: sum those."
)
def _(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(axis=-1)
    for axis, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(axis=axis, keepdims=True)
    return grad


@broadcast_vjp.mistake("You sum over the first axis of size 1 only. `shape` may have several.")
def _(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    return grad.sum(axis=shape.index(1), keepdims=True) if 1 in shape else grad


@broadcast_vjp.mistake(
    "While grad has axes in front, an axis of `shape` has another number in grad. Sum those in front away "
    "first, or count from the last."
)
def _(grad, shape):
    for axis, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(axis=axis, keepdims=True)
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    return grad


@broadcast_vjp.mistake(
    "You sum one axis after the other, and without keepdims each sum takes its axis away: the next one has "
    "another number then. Keep them, or sum over all in one call."
)
def _(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(axis=axis)
    return grad.reshape(shape)


@broadcast_vjp.mistake(
    "You add up in a part of `grad`: grad[0] is a view, and += writes into it. Begin with a copy, or use sum."
)
def _(grad, shape):
    while grad.ndim > len(shape):
        total = grad[0]
        for part in grad[1:]:
            total += part
        grad = total
    return summed(np.asarray(grad), shape)


@broadcast_vjp.mistake(
    "You sum over every axis where the sizes differ, of shapes that align at their first axes."
)
def _(grad, shape):
    axes = tuple(i for i, (g, s) in enumerate(zip(grad.shape, shape)) if g != s)
    return grad.sum(axis=axes, keepdims=True).reshape(shape)


@broadcast_vjp.mistake("With one axis in front you are right; there may be several, or none.")
def _(grad, shape):
    grad = grad.sum(axis=0)
    axes = tuple(i for i, s in enumerate(shape) if s == 1)
    return grad.sum(axis=axes, keepdims=True)


@broadcast_vjp.mistake("Axes of size 1 must stay, as axes: keepdims=True, or reshape to `shape`.")
def _(grad, shape):
    missing = grad.ndim - len(shape)
    axes = tuple(i for i, s in enumerate(shape, start=missing) if s == 1)
    return grad.sum(axis=(*range(missing), *axes))


@broadcast_vjp.alternative("sum the new axes away, then the others one by one")
def _(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1:
            grad = grad.sum(axis=axis, keepdims=True)
    return np.array(grad)


@broadcast_vjp.alternative("einsum over letters")
def _(grad, shape):
    letters = "abcdefgh"[: grad.ndim]
    tail = letters[grad.ndim - len(shape) :]
    kept = "".join(letter for letter, size in zip(tail, shape) if size != 1)
    return np.einsum(f"{letters}->{kept}", grad).reshape(shape)


ALL_KEPT = "with equal shapes no axis was repeated, and a sum over no axes is a copy: a short cut"
RESHAPED = "reshape(shape) puts back the axes of size one, whether the sum has kept them or not"
for mutant, because in {
    "`if grad.shape == shape:` removed": ALL_KEPT,
    "`return grad` removed": ALL_KEPT,
    "`grad.sum(axis=(*range(missing), *repeated), keepdims=True)` → "
    "`grad.sum(axis=(*range(missing), *repeated))`": RESHAPED,
    "`keepdims=True` → `keepdims=False`": RESHAPED,
}.items():
    broadcast_vjp.equivalent(f"broadcast_vjp: {mutant}", because=because)


# ------------------------------------------------------------------------------ mul_vjp

mul_vjp = Exercise(
    engine.mul_vjp,
    title="Backward of a product",
    difficulty=1,
    minutes=8,
    points=1,
    probe=probes.on_arrays,
    formats=ARRAYS,
    hints=(
        "The derivative of a · b with respect to a is b.",
        "grad * b has the shape of the result. What if a is smaller?",
        "Use `broadcast_vjp`.",
    ),
)


@mul_vjp.by_hand
def _():
    yield (
        call(array(1.0, 10.0), array(2.0, 3.0), array(4.0, 5.0)),
        [array(4.0, 50.0), array(2.0, 30.0)],
    )
    yield (
        call(array([1.0, 1.0], [1.0, 10.0]), array([2.0], [3.0]), array(4.0, 5.0)),
        [array([9.0], [54.0]), array(5.0, 32.0)],
    )


@mul_vjp.cases
def _(draw):
    whole = draw(draws.shapes(max_dims=3, among=(2, 3, 4)))
    shapes = []
    for _ in range(2):
        kept = whole[draw(st.integers(0, len(whole))) :]
        shapes.append(tuple(draw(st.sampled_from((1, size))) for size in kept))
    result = np.broadcast_shapes(*shapes)
    dtype = draw(dtypes)
    yield call(*(draw(draws.tensors(shape, dtype)) for shape in (result, *shapes)))


@mul_vjp.edge
def _():
    yield call(normal(), normal(seed=1), normal(seed=2)), "no axes"
    yield call(normal(0, 3), normal(0, 1), normal(3)), "no rows: the sum of nothing is 0"
    yield call(normal(0, 3), normal(0, 3), normal(1, 3)), "one row for no rows"
    yield call(array(4.0, 5.0, 6.0), array(0.0, 2.0, 0.0), array(3.0, 0.0, 0.0)), "factors of 0"
    yield call(normal(2, 3), normal(2, 1, seed=1), normal(1, 3, seed=2)), "both are broadcast"
    same = normal(2, 3)
    yield call(normal(2, 3, seed=1), same, same), "a and b are one array"
    yield (
        call(*(draws.scattered(normal(3, 4, seed=i)) for i in range(3))),
        "not contiguous",
    )
    yield call(normal(3, dtype=F32), normal(3, dtype=F32), normal(3, dtype=F32)), "float32"


_IN_PLACE = "You multiply grad in place. It may be somebody else's as well: make a new array."
_SUMMED_FIRST = (
    "You sum grad over the broadcast axes and then multiply. Along these axes the other factor may differ: multiply "
    "first, then sum the products."
)
mul_vjp.slips(
    {
        replace(
            *("(grad * b)", "(broadcast_vjp(grad, a.shape) * b)"),
            *("(grad * a)", "(broadcast_vjp(grad, b.shape) * a)"),
        ): _SUMMED_FIRST,
        replace(
            *("(grad * b)", "(broadcast_vjp(grad, a.shape) * b)"),
            *("(grad * a)", "(broadcast_vjp(grad, b.shape) * a)"),
            *("broadcast_vjp(da, a.shape)", "da", "broadcast_vjp(db, b.shape)", "db"),
        ): _SUMMED_FIRST,
        replace(
            "return broadcast_vjp(da, a.shape), broadcast_vjp(db, b.shape)",
            "return (broadcast_vjp(da, a.shape), db) if a.ndim < b.ndim else (da, broadcast_vjp(db, b.shape))",
        ): "You sum for one factor alone, chosen by the number of axes. Both may have been broadcast, along "
        "different axes: use broadcast_vjp for each.",
        replace(
            "da, db = np.asarray(grad * b), np.asarray(grad * a)",
            "db, da = np.asarray(grad * b), np.asarray(grad * a)",
        ): "You have the two the wrong way round: the derivative with respect to a is b.",
        replace(
            "broadcast_vjp(da, a.shape)", "da"
        ): "The gradient with respect to a must have a's shape: "
        "sum over the axes along which a was repeated.",
        replace(
            "broadcast_vjp(db, b.shape)", "db"
        ): "The gradient with respect to b must have b's shape: "
        "sum over the axes along which b was repeated.",
        replace(
            "broadcast_vjp(da, a.shape)", "da", "broadcast_vjp(db, b.shape)", "db"
        ): "Your gradients have the shape of the result. Each must have its argument's: use broadcast_vjp.",
        replace(
            "np.asarray(grad * b)", "np.asarray(b + 0 * grad)"
        ): "You return the derivative with respect to a. Multiply it with grad.",
        replace(
            "np.asarray(grad * a)", "np.asarray(a + 0 * grad)"
        ): "You return the derivative with respect to b. Multiply it with grad.",
        replace(
            "np.asarray(grad * b)",
            "np.asarray(b + 0 * grad)",
            "np.asarray(grad * a)",
            "np.asarray(a + 0 * grad)",
        ): "You return the derivatives. Multiply them with grad.",
        replace(
            "np.asarray(grad * b)", "np.asarray(grad)"
        ): "You pass grad on to a, as for a sum. Multiply it with b.",
        replace(
            "np.asarray(grad * a)", "np.asarray(grad)"
        ): "You pass grad on to b, as for a sum. Multiply it with a.",
        replace(
            "np.asarray(grad * b)", "np.asarray(grad)", "np.asarray(grad * a)", "np.asarray(grad)"
        ): "You pass grad on, as for a sum. Multiply it with the other factor.",
        replace(
            "np.asarray(grad * b)", "np.asarray(grad * a * b)"
        ): "You multiply with the whole product. The derivative with respect to a is b alone.",
        replace(
            "broadcast_vjp(da, a.shape), ", ""
        ): "You return the gradient of b alone. Return a pair.",
        replace(
            ", broadcast_vjp(db, b.shape)", ""
        ): "You return the gradient of a alone. Return a pair.",
        replace(
            "broadcast_vjp(db, b.shape)", "broadcast_vjp(db, b.shape).astype(np.float64)"
        ): "You return float64 whatever came. Keep the dtype.",
        replace(
            "return broadcast_vjp(da, a.shape), broadcast_vjp(db, b.shape)",
            "return (broadcast_vjp(da, a.shape), db) if a.size < b.size else (da, broadcast_vjp(db, b.shape))",
        ): "You sum for the smaller factor alone. The larger may have been broadcast too, along another axis.",
        replace(
            "broadcast_vjp(da, a.shape)",
            "da.sum(axis=tuple(range(da.ndim - a.ndim)))",
            "broadcast_vjp(db, b.shape)",
            "db.sum(axis=tuple(range(db.ndim - b.ndim)))",
        ): "You sum over axes that a factor lacks. One that has size 1 in it was repeated as well: use broadcast_vjp.",
        replace(
            "np.asarray(grad * b)",
            "np.asarray(grad * (a * b) / a)",
            "np.asarray(grad * a)",
            "np.asarray(grad * (a * b) / b)",
        ): "You divide the product by one factor to get the other. Where that one is 0, 0 / 0 is NaN: take the "
        "other factor itself.",
        replace(
            "da, db = np.asarray(grad * b), np.asarray(grad * a)",
            "da = np.asarray(grad * b)\n    grad *= a\n    db = grad",
        ): _IN_PLACE,
        replace(
            "broadcast_vjp(da, a.shape), broadcast_vjp(db, b.shape)",
            "broadcast_vjp(da, a.shape), broadcast_vjp(np.multiply(grad, a, out=da), b.shape)",
        ): "You make both products in one array. The second writes over the first, which is a's gradient where "
        "nothing was summed.",
    }
)


def where_longer(grad, shape):
    """The sum over axes of size 1 in shape, but only where grad is longer."""
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1 and grad.shape[axis] > 1:
            grad = grad.sum(axis=axis, keepdims=True)
    return grad


_ALSO_TO_NONE = (
    "You sum over an axis of size 1 only where the result is longer. A 1 may have been broadcast to size 0 as well: "
    "sum wherever the operand has 1."
)


@mul_vjp.mistake(_ALSO_TO_NONE)
def _(grad, a, b):
    da, db = np.asarray(grad * b), np.asarray(grad * a)
    return where_longer(da, a.shape), where_longer(db, b.shape)


@mul_vjp.mistake(_IN_PLACE)
def _(grad, a, b):
    db = summed(np.asarray(grad * a), b.shape)
    grad *= b
    return summed(np.asarray(grad), a.shape), db


@mul_vjp.alternative("sums written out, one operand at a time")
def _(grad, a, b):
    def one(x, other):
        full = np.array(grad * other)
        for _ in range(full.ndim - x.ndim):
            full = full.sum(0)
        for axis in range(x.ndim):
            if x.shape[axis] == 1 and full.shape[axis] != 1:
                full = full.sum(axis, keepdims=True)
        return full

    return [one(a, b), one(b, a)]


for factor in "ba":
    mul_vjp.equivalent(
        f"mul_vjp: `np.asarray(grad * {factor})` → `grad * {factor}`",
        because="of arrays without axes the product is a scalar of NumPy's, which stands for an array",
    )


# ------------------------------------------------------------------------------ matmul_vjp

matmul_vjp = Exercise(
    engine.matmul_vjp,
    title="Backward of a matrix product",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.on_arrays,
    formats=ARRAYS,
    hints=(
        "With c = a b, da has a's shape (n, k). Which product of grad (n, m) and b (k, m) has it?",
        "da = grad bᵀ, and db = aᵀ grad. With axes in front, transpose the last two only.",
        "Where a had fewer axes in front, or one of size 1, it was repeated: use `broadcast_vjp`.",
        ("edge cases", "`x.T` turns all axes round; `x.swapaxes(-1, -2)` the last two."),
    ),
)


@matmul_vjp.by_hand
def _():
    yield (
        call(array([1.0, 10.0]), array([2.0, 3.0]), array([4.0, 5.0], [6.0, 7.0])),
        [array([54.0, 76.0]), array([2.0, 20.0], [3.0, 30.0])],
    )
    yield (
        call(array([[1.0]], [[10.0]]), array([2.0]), array([[3.0]], [[4.0]])),
        [array([43.0]), array([[2.0]], [[20.0]])],
    )


@matmul_vjp.cases
def _(draw):
    n, k, m = draw(draws.distinct_sizes(3, 1, 5))
    whole = draw(draws.shapes(max_dims=2, among=(2, 3)))
    fronts = []
    for _ in range(2):
        kept = whole[draw(st.integers(0, len(whole))) :]
        fronts.append(tuple(draw(st.sampled_from((1, size))) for size in kept))
    result = np.broadcast_shapes(*fronts)
    dtype = draw(dtypes)
    shapes = (*result, n, m), (*fronts[0], n, k), (*fronts[1], k, m)
    yield call(*(draw(draws.tensors(shape, dtype)) for shape in shapes))


@matmul_vjp.edge
def _():
    yield call(normal(5, 2, 3), normal(5, 2, 4), normal(4, 3)), "a batch times a weight"
    yield call(normal(5, 2, 3), normal(2, 4), normal(5, 4, 3)), "a matrix times a batch"
    yield call(normal(4, 5, 2, 3), normal(4, 1, 2, 6), normal(5, 6, 3)), "both are broadcast"
    yield call(normal(3, 3, 3), normal(3, 3), normal(3, 3, 3)), "sizes all alike"
    yield call(normal(1, 2, 3), normal(1, 2, 4), normal(4, 3)), "a batch of one"
    yield call(normal(0, 3), normal(0, 4), normal(4, 3)), "no rows"
    yield call(normal(2, 3), normal(2, 0), normal(0, 3)), "sums over nothing"
    yield call(normal(2, 0), normal(2, 4), normal(4, 0)), "no columns"
    yield call(normal(0, 2, 3), normal(0, 2, 4), normal(1, 4, 3)), "one matrix for an empty batch"
    yield (
        call(*(draws.scattered(normal(*s)) for s in ((5, 2, 3), (5, 2, 4), (5, 4, 3)))),
        "not contiguous",
    )


_AXES_IN_FRONT = (
    "`.T` turns all axes round. With axes in front, swap the last two only: swapaxes(-1, -2)."
)
_LACKING_A = "da.sum(axis=tuple(range(da.ndim - a.ndim)))"
_LACKING_B = "db.sum(axis=tuple(range(db.ndim - b.ndim)))"
_TRANSPOSED_B = (
    "You return the transpose of b's gradient, which is right for a weight that is stored transposed. "
    "Here db = aᵀ grad."
)
_MEAN = "You take the mean over the batch. Each entry of it adds its gradient: sum."
_MEAN_A = "broadcast_vjp(da, a.shape) / max(da.size // max(a.size, 1), 1)"
_MEAN_B = "broadcast_vjp(db, b.shape) / max(db.size // max(b.size, 1), 1)"
matmul_vjp.slips(
    {
        replace("b.swapaxes(-1, -2)", "b.T", "a.swapaxes(-1, -2)", "a.T"): _AXES_IN_FRONT,
        replace(
            "b.swapaxes(-1, -2)", "b.T"
        ): "`b.T` turns all axes of b round. With axes in front, swap the "
        "last two only: swapaxes(-1, -2).",
        replace(
            "a.swapaxes(-1, -2)", "a.T"
        ): "`a.T` turns all axes of a round. With axes in front, swap the "
        "last two only: swapaxes(-1, -2).",
        replace(
            "broadcast_vjp(da, a.shape)", "da"
        ): "a was repeated along the axes in front, if b has more of them: sum over these.",
        replace(
            "broadcast_vjp(db, b.shape)", "db"
        ): "b was repeated along the axes in front, if a has more of them: sum over these.",
        replace(
            "broadcast_vjp(da, a.shape)", "da", "broadcast_vjp(db, b.shape)", "db"
        ): "An operand that was "
        "repeated along axes in front gets the sum over them: use broadcast_vjp.",
        replace(
            "grad @ b.swapaxes(-1, -2)", "grad @ b"
        ): "The shapes of grad @ b do not fit, or fit by chance: da = grad bᵀ.",
        replace(
            "a.swapaxes(-1, -2) @ grad", "a @ grad"
        ): "The shapes of a @ grad do not fit, or fit by chance: db = aᵀ grad.",
        replace("a.swapaxes(-1, -2) @ grad", "(grad.swapaxes(-1, -2) @ a)"): _TRANSPOSED_B,
        replace(
            "a.swapaxes(-1, -2) @ grad",
            "(grad.swapaxes(-1, -2) @ a)",
            "broadcast_vjp(db, b.shape)",
            "broadcast_vjp(db, (*b.shape[:-2], b.shape[-1], b.shape[-2]))",
        ): _TRANSPOSED_B,
        replace(
            "grad @ b.swapaxes(-1, -2)", "(b @ grad.swapaxes(-1, -2))"
        ): "You return the transpose of a's gradient: da = grad bᵀ.",
        replace(
            "broadcast_vjp(da, a.shape), ", ""
        ): "You return the gradient of b alone. Return a pair.",
        replace(
            ", broadcast_vjp(db, b.shape)", ""
        ): "You return the gradient of a alone. Return a pair.",
        replace(
            "broadcast_vjp(da, a.shape), broadcast_vjp(db, b.shape)",
            "broadcast_vjp(db, b.shape), broadcast_vjp(da, a.shape)",
        ): "You return b's gradient first. The first of the pair belongs to a.",
        replace(
            "broadcast_vjp(da, a.shape)", _LACKING_A
        ): "You sum over axes that a lacks. One that has size 1 in a was repeated as well: use broadcast_vjp.",
        replace(
            "broadcast_vjp(db, b.shape)", _LACKING_B
        ): "You sum over axes that b lacks. One that has size 1 in b was repeated as well: use broadcast_vjp.",
        replace(
            "broadcast_vjp(da, a.shape)", _LACKING_A, "broadcast_vjp(db, b.shape)", _LACKING_B
        ): "You sum over axes that an operand lacks. One that has size 1 in it was repeated as well: use "
        "broadcast_vjp.",
        replace("broadcast_vjp(da, a.shape)", _MEAN_A): _MEAN,
        replace("broadcast_vjp(db, b.shape)", _MEAN_B): _MEAN,
        replace(
            "broadcast_vjp(da, a.shape)", _MEAN_A, "broadcast_vjp(db, b.shape)", _MEAN_B
        ): _MEAN,
        replace(
            "b.swapaxes(-1, -2)", "(b if b.shape[-2] == grad.shape[-1] else b.swapaxes(-1, -2))"
        ): "You transpose b only where the product does not fit without. Where k and m are equal it fits by "
        "chance: da = grad bᵀ, always.",
        replace(
            "a.swapaxes(-1, -2)", "(a if a.shape[-1] == grad.shape[-2] else a.swapaxes(-1, -2))"
        ): "You transpose a only where the product does not fit without. Where n and k are equal it fits by "
        "chance: db = aᵀ grad, always.",
    }
)


@matmul_vjp.mistake(_ALSO_TO_NONE)
def _(grad, a, b):
    da, db = grad @ b.swapaxes(-1, -2), a.swapaxes(-1, -2) @ grad
    return where_longer(da, a.shape), where_longer(db, b.shape)


_HOW_MANY_ROWS = (
    "reshape(-1, size) cannot tell how many rows there are where that size is 0, and raises: write their "
    "number out, or keep the axes."
)


@matmul_vjp.mistake(_HOW_MANY_ROWS)
def _(grad, a, b):
    if b.ndim > 2:
        return engine.matmul_vjp(grad, a, b)
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    return grad @ b.T, rows.T @ grad.reshape(-1, grad.shape[-1])


@matmul_vjp.mistake(_HOW_MANY_ROWS)
def _(grad, a, b):
    if b.ndim > 2:
        return engine.matmul_vjp(grad, a, b)
    rows, back = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return (back @ b.T).reshape(a.shape), rows.T @ back


@matmul_vjp.alternative("einsum, then sums over the axes in front")
def _(grad, a, b):
    da = np.einsum("...nm,...km->...nk", grad, b)
    db = np.einsum("...nk,...nm->...km", a, grad)

    def fold(x, shape):
        while x.ndim > len(shape):
            x = x.sum(0)
        for axis, size in enumerate(shape[:-2]):
            if size == 1:
                x = x.sum(axis, keepdims=True)
        return x

    return fold(da, a.shape), fold(db, b.shape)


# ------------------------------------------------------------------------------ log_softmax_vjp

log_softmax_vjp = Exercise(
    engine.log_softmax_vjp,
    title="Backward of the log-softmax",
    difficulty=2,
    minutes=12,
    points=2,
    probe=probes.on_arrays,
    formats=ARRAYS,
    hints=(
        "yᵢ = xᵢ − log Σ exp(xₖ). What is the derivative of the logarithm with respect to xₖ?",
        "It is the softmax, exp(y)ₖ. So each element of grad reaches its own x, and minus itself times "
        "exp(y) every x of the row.",
        "grad − exp(y) · (the sum of grad over the row).",
        (
            "edge cases",
            "exp(-inf) is 0; -inf times 0 is NaN. The formula needs exp(y), and never y itself.",
        ),
    ),
)


def log_softmax(*shape, dtype=F64, seed=1):
    return torch.log_softmax(normal(*shape, seed=seed) * 2, -1).to(dtype)


@log_softmax_vjp.by_hand
def _():
    half = array(math.log(0.5), math.log(0.5))
    yield call(array(1.0, 0.0), half), array(0.5, -0.5)
    yield (
        call(array([4.0, 4.0], [0.0, 8.0]), array([0.25, 0.75], [0.25, 0.75]).log()),
        array([2.0, -2.0], [-2.0, 2.0]),
    )


@log_softmax_vjp.cases
def _(draw):
    shape = draw(draws.distinct_sizes(draw(st.integers(1, 3)), 1, 5))
    dtype = draw(dtypes)
    y = torch.log_softmax(2 * draw(draws.tensors(shape, F64)), -1).to(dtype)
    yield call(draw(draws.tensors(shape, dtype)), y)


@log_softmax_vjp.edge
def _():
    masked = torch.log_softmax(array([1.0, -INF, 2.0], [-INF, 0.0, -INF]), -1)
    yield call(normal(2, 3), masked), "logits of -inf"
    yield call(normal(4, 1), torch.zeros(4, 1, dtype=F64)), "one class"
    yield call(normal(0, 3), torch.zeros(0, 3, dtype=F64)), "no rows"
    yield call(normal(3, 3), log_softmax(3, 3)), "as many rows as classes"
    yield (
        call(draws.scattered(normal(3, 4)), draws.scattered(log_softmax(3, 4))),
        "not contiguous",
    )
    yield call(normal(2, 3, dtype=F32), log_softmax(2, 3, dtype=F32)), "float32"
    yield (
        call(normal(2, 600), log_softmax(2, 600), within=8 * 2 * 600 * 8 + 20_000),
        "a large vocabulary: memory is watched",
    )


_CUT_AT_INF = (
    "You set the gradient to 0 where y is -inf. exp(y) is 0 there, and grad itself still arrives."
)
_AXIS_1 = "You sum over axis 1, which is the last one of a matrix only. The last is axis=-1."
log_softmax_vjp.slips(
    {
        replace(
            "np.exp(y)", "np.exp(y - y.max(axis=-1, keepdims=True))"
        ): "You divide the softmax by its largest element. y is the logarithm of the softmax itself, at most 0: "
        "exp(y) is all there is to take.",
        replace(
            "np.exp(y) * ", "y * "
        ): "You multiply the sum with y. The derivative of the logarithm is the softmax: exp(y).",
        replace(
            "np.exp(y) * grad.sum", "np.exp(y) * (grad * np.exp(y)).sum"
        ): "You weight the sum with the "
        "softmax. That belongs to the softmax's backward; here the sum is of grad alone.",
        replace(
            "grad - np.exp(y) * grad.sum(axis=-1, keepdims=True)",
            "np.exp(y) * (grad - (grad * np.exp(y)).sum(axis=-1, keepdims=True))",
        ): "That is the backward of the softmax. The log-softmax's is grad − exp(y) · Σ grad.",
        replace(
            "grad - np.exp(y) * grad.sum(axis=-1, keepdims=True)",
            "y * (grad - (grad * y).sum(axis=-1, keepdims=True))",
        ): "That is the softmax's backward, with y in the place of exp(y). The log-softmax's is "
        "grad − exp(y) · Σ grad.",
        replace(
            "axis=-1", "axis=0"
        ): "You sum over the first axis. A row of the softmax is the last.",
        replace("axis=-1, ", ""): "You sum over the whole array. Each row has its own sum.",
        replace(
            "grad.sum(axis=-1, keepdims=True)", "grad"
        ): "You leave out the sum. Every element of a row of grad reaches every x of the row.",
        replace(
            "grad - np.exp", "grad + np.exp"
        ): "You add the second part. The logarithm stands in y with a minus sign.",
        replace(
            "grad - np.exp", "-np.exp"
        ): "You leave out the first part: each y has its own x in it, with the derivative 1.",
        replace(
            " * grad.sum(axis=-1, keepdims=True)", ""
        ): "You subtract the softmax alone. That is right "
        "where the row of grad adds up to 1; in general multiply with the sum.",
        replace(
            "grad - np.exp(y) * grad.sum(axis=-1, keepdims=True)", "grad + np.exp(y)"
        ): "You add the softmax alone. That is right where the row of grad adds up to -1, as for a "
        "cross-entropy; in general subtract the softmax times the sum.",
        replace("axis=-1", "axis=1"): _AXIS_1,
        replace("axis=-1", "axis=min(1, grad.ndim - 1)"): _AXIS_1,
        replace(
            "np.exp(y)", "np.exp(y, out=y)"
        ): "You write exp(y) into y, which others may still read. Make a new array.",
        replace(
            "return grad - np.exp(y) * grad.sum(axis=-1, keepdims=True)",
            "return np.where(np.isneginf(y), 0, grad - np.exp(y) * grad.sum(axis=-1, keepdims=True))",
        ): _CUT_AT_INF,
        replace(
            "return grad", "grad = np.where(np.isneginf(y), 0, grad)\n    return grad"
        ): _CUT_AT_INF,
        replace("grad.sum", "grad.mean"): "You take the mean of the row. It is the sum.",
        replace(
            "grad - np.exp(y) * ", "grad - "
        ): "You subtract the whole sum from each. Multiply it with the softmax, exp(y), first.",
        replace(
            "grad - np.exp(y)", "grad * np.exp(y) - np.exp(y)"
        ): "You multiply the first part with exp(y) as well. It is grad alone.",
        replace(
            "return grad - np.exp(y) * grad.sum(axis=-1, keepdims=True)",
            "p = np.exp(y)\n    p /= np.abs(p).sum(axis=-1, keepdims=True) * 0 + 1.0\n"
            "    return (grad - p * grad.sum(axis=-1, keepdims=True)).astype(np.float64)",
        ): "You return float64 whatever came. Keep grad's dtype.",
    }
)


@log_softmax_vjp.mistake(
    "You make the Jacobian, V × V numbers for each row. Multiply with it without making it."
)
def _(grad, y):
    eye = np.eye(y.shape[-1], dtype=y.dtype)
    jacobian = eye - np.exp(y)[..., None, :]
    return (grad[..., None, :] @ jacobian)[..., 0, :]


@log_softmax_vjp.mistake("-inf times 0 is NaN. The formula needs exp(y), and never y itself.")
def _(grad, y):
    return grad - np.exp(y) * grad.sum(axis=-1, keepdims=True) + 0 * y


@log_softmax_vjp.mistake(
    "You change `grad` in place. It may be somebody else's as well: make a new array."
)
def _(grad, y):
    grad -= np.exp(y) * grad.sum(axis=-1, keepdims=True)
    return grad


@log_softmax_vjp.alternative("row by row")
def _(grad, y):
    dx = np.empty_like(grad)
    for i in np.ndindex(grad.shape[:-1]):
        p = np.exp(y[i])
        dx[i] = grad[i] - p * grad[i].sum()
    return dx


# ------------------------------------------------------------------------------ index_vjp

index_vjp = Exercise(
    engine.index_vjp,
    title="Backward of indexing",
    difficulty=2,
    minutes=12,
    points=2,
    probe=probes.on_arrays,
    formats=ARRAYS,
    hints=(
        "Start from zeros of x's shape. Where does each element of grad belong?",
        "`full[index] += grad` is right for slices. What does it do if an index stands in it twice?",
        "np.add.at adds without buffering: repeated indices add up.",
    ),
)


@index_vjp.by_hand
def _():
    ids = torch.tensor([2, 0, 2])
    yield call(array(1.0, 10.0, 100.0), (4,), ids), array(10.0, 0.0, 101.0, 0.0)
    yield (
        call(array([1.0, 2.0], [3.0, 4.0]), (3, 2), torch.tensor([1, 1])),
        array([0.0, 0.0], [4.0, 6.0], [0.0, 0.0]),
    )
    yield call(array(5.0), (3,), {"slice": [1, 2, None]}), array(0.0, 5.0, 0.0)


@index_vjp.cases
def _(draw):
    V, D, N = draw(draws.distinct_sizes(3, 2, 6))
    ids = draw(draws.indices((N,), V, -V))
    dtype = draw(dtypes)
    if draw(st.booleans()):
        yield call(draw(draws.tensors((N, D), dtype)), (V, D), ids)
    else:
        columns = draw(draws.indices((N,), D))
        yield call(draw(draws.tensors((N,), dtype)), (V, D), (ids, columns))


@index_vjp.edge
def _():
    table = torch.tensor([[0, 1, 1], [3, 1, 0]])
    yield call(normal(2, 3, 2), (4, 2), table), "an index of two axes, as for token ids"
    yield (
        call(normal(4), (3,), torch.tensor([-1, 2, -1, 0])),
        "an index from the end, and from the front",
    )
    mask = torch.tensor([True, False, True, False])
    yield call(normal(2, 3), (4, 3), mask), "a mask"
    elements = torch.tensor([[True, False, True], [False, True, False]])
    yield call(normal(3), (2, 3), elements), "a mask of elements"
    rows, columns = torch.tensor([[0], [2]]), torch.tensor([1, 3, 1])
    yield call(normal(2, 3), (3, 4), (rows, columns)), "arrays that are broadcast"
    yield call(normal(3), (4, 3), 2), "one row, by a plain integer"
    yield call(normal(), (4, 3), (1, 2)), "one element: grad has no axes"
    yield (
        call(normal(3, 2), (4, 6), ({"slice": [1, None, None]}, {"slice": [None, None, 3]})),
        "slices",
    )
    yield call(normal(4, 1, 3), (4, 3), ("...", None, {"slice": [None, None, None]})), "a new axis"
    yield (
        call(normal(3, 4), (4, 3), ({"slice": [None, -1, None]}, torch.tensor([0, 2, 2, 1]))),
        "a slice and an array",
    )
    yield call(normal(0, 3), (4, 3), torch.zeros(0, dtype=torch.int64)), "nothing is taken"
    yield call(normal(3, 2, dtype=F32), (4, 2), torch.tensor([1, 1, 1])), "float32"
    yield call(draws.scattered(normal(3, 2)), (4, 2), torch.tensor([1, 3, 1])), "not contiguous"
    yield (
        call(normal(4, 2), (4, 2), torch.tensor([2, 3, 1, 0])),
        "grad has x's shape, in another order",
    )
    yield (
        call(normal(4, 2), (4, 2), {"slice": [None, None, None]}, own=True),
        "all of x is taken: still a new array",
    )
    yield (
        call(array([1.0, 2.0, 3.0]).expand(3, 3), (2, 3), torch.tensor([1, 1, 0])),
        "grad is broadcast",
    )


ONE_ARRAY = (
    "You make one array of the index. A slice is not one, and a tuple has a part for each axis, "
    "where an array is an index into the first axis alone. Hand the index on as it came."
)
index_vjp.slips(
    {
        replace(
            "full, index, grad",
            "full, index if isinstance(index, slice) else np.asarray(index), grad",
        ): ONE_ARRAY,
        replace("full, index, grad", "full, np.asarray(index), grad"): ONE_ARRAY,
        replace(
            "np.add.at(full, index, grad)", "full[index] += grad"
        ): "An element that is taken twice "
        "keeps only its last gradient: `full[index] += grad` reads, adds and writes back, and the last write is left, as "
        "if you had assigned. Use np.add.at.",
        replace(
            ", grad.dtype", ""
        ): "You return float64 whatever came, which np.zeros makes unless told otherwise, and "
        "np.bincount always. Keep grad's dtype.",
        replace(
            "np.zeros(shape", "np.ones(shape"
        ): "You start from ones. An element that is not taken gets 0.",
        replace(
            "np.add.at(full, index, grad)", "np.subtract.at(full, index, grad)"
        ): "You subtract. Gradients add up.",
        replace(
            "np.add.at(full, index, grad)", "np.add.at(full, index, 1)"
        ): "You count how often each element is taken. Add grad instead.",
        replace(
            "np.add.at(full, index, grad)", "np.maximum.at(full, index, grad)"
        ): "You keep the largest. Gradients add up.",
        replace(
            "return full", "return full[index]"
        ): "You take the elements out again. Return the gradient of all of x.",
        replace(
            "np.add.at(full, index, grad)",
            "np.add.at(full, index, grad)\n    full /= max(grad.shape[0] if grad.ndim else 1, 1)",
        ): "You take a mean. Gradients add up.",
        replace(
            "np.add.at(full, index, grad)", "np.add.at(full, index, grad.sum())"
        ): "You add the sum of grad to each. Every element of grad belongs to one of x.",
        replace(
            "full = np.zeros(shape, grad.dtype)",
            "full = np.empty_like(grad, shape=shape)\n    full[...] = np.nan\n    full[index] = 0",
        ): "Elements that are not taken must be 0. np.empty leaves whatever was there.",
        replace(
            "np.add.at(full, index, grad)",
            "if isinstance(index, np.ndarray):\n        np.add.at(full, index, grad)\n"
            "    else:\n        full[index] += grad",
        ): "You add up repeats for a bare array of integers only. In a tuple of arrays an element may stand "
        "twice as well: use np.add.at.",
        replace(
            "np.add.at(full, index, grad)",
            "for row, part in zip(index, grad, strict=True):\n        full[row] += part",
        ): "You go through `index` as a list of rows. It may be a slice, None, a mask or a tuple too: hand it to "
        "NumPy as a whole, with np.add.at.",
        replace(
            "np.add.at(full, index, grad)",
            "np.add.at(full, index.astype(int) if isinstance(index, np.ndarray) else index, grad)",
        ): "You make integers of a mask: True and False become rows 1 and 0. NumPy takes a mask as it is.",
        replace(
            "np.add.at(full, index, grad)",
            "if isinstance(index, np.ndarray) and index.dtype != bool:\n"
            "        index[index < 0] += shape[0]\n    np.add.at(full, index, grad)",
        ): "You change `index`, which is the caller's. NumPy takes negative indices as they are.",
        replace(
            "full = np.zeros(",
            "if isinstance(index, slice) and grad.shape == shape:\n        return grad\n    full = np.zeros(",
        ): "Where all of x is taken you hand back `grad` itself. The result is a new array, also then.",
        replace(
            "    np.add.at(full, index, grad)",
            "    if isinstance(index, np.ndarray) and index.dtype == bool:\n"
            "        index = np.flatnonzero(index)\n    np.add.at(full, index, grad)",
        ): "You make numbers of rows of a mask. One with as many axes as x names elements: NumPy takes a mask as it is.",
    }
)


@index_vjp.mistake(
    "You take -1 and the number of the last row for two rows, and what one gets overwrites the other's. "
    "They are the same row: add."
)
def _(grad, shape, index):
    full = np.zeros(shape, grad.dtype)
    if isinstance(index, np.ndarray) and index.dtype != bool:
        rows, group = np.unique(index, return_inverse=True)
        sums = np.zeros((len(rows), *shape[1:]), grad.dtype)
        np.add.at(sums, group.reshape(index.shape), grad)
        full[rows] = sums
    else:
        np.add.at(full, index, grad)
    return full


@index_vjp.mistake(
    "You pair the arrays of a tuple item by item. NumPy broadcasts them first: a column and a row name a whole table."
)
def _(grad, shape, index):
    full = np.zeros(shape, grad.dtype)
    if isinstance(index, tuple) and all(isinstance(i, np.ndarray) for i in index):
        for part, *place in zip(grad, *index):
            full[tuple(place)] += part
    else:
        np.add.at(full, index, grad)
    return full


@index_vjp.mistake(
    "You take an index of integers only. A slice, a mask or a tuple is an index as well."
)
def _(grad, shape, index):
    full = np.zeros(shape, grad.dtype)
    for i, row in zip(index, grad):
        full[i] += row
    return full


@index_vjp.mistake(
    "You return grad where it has x's shape already. Its rows may stand in another order."
)
def _(grad, shape, index):
    if grad.shape == tuple(shape):
        return grad.copy()
    full = np.zeros(shape, grad.dtype)
    np.add.at(full, index, grad)
    return full


@index_vjp.alternative("the positions of the elements, then bincount")
def _(grad, shape, index):
    positions = np.arange(math.prod(shape)).reshape(shape)[index]
    flat = np.bincount(
        np.ravel(positions), weights=np.ravel(grad).astype(np.float64), minlength=math.prod(shape)
    )
    return flat.astype(grad.dtype).reshape(shape)


@index_vjp.alternative("a loop over the elements that are taken")
def _(grad, shape, index):
    full = np.zeros(shape, grad.dtype)
    flat, values = full.reshape(-1), np.ravel(grad)
    for at, value in zip(np.ravel(np.arange(full.size).reshape(shape)[index]), values):
        flat[at] += value
    return full


# ------------------------------------------------------------------------------ topological_order

topological_order = Exercise(
    engine.topological_order,
    title="The order of backward",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.ordered,
    hints=(
        "A node may stand in the list once everything that uses it stands there.",
        "Depth first: visit a node's inputs, then append the node. The finished list, turned round, is the order.",
        "A set of the nodes that were met keeps each from being visited twice.",
        "Without recursion: a list of (node, inputs are done) to work through. Push a node again, as done, "
        "before its inputs; append it when it comes up as done.",
        (
            "edge cases",
            "Python stops at a thousand nested calls: keep the nodes to visit in a list of your own.",
        ),
    ),
)
DIAMOND = [[[1, 2]], [[3]], [[3]], [[]]]
UNEVEN = [[[3, 1]], [[2]], [[3]], [[]]]  # node 3 is used directly, and at the end of a longer way


@topological_order.by_hand
def _():
    right = {"the order": "right", "the order, asked for again": "right"}
    yield call([[[]]]), right
    yield call([[[1]], [[2]], [[]]]), right
    yield call(DIAMOND), right
    yield call(UNEVEN), right


@topological_order.cases
def _(draw):
    n = draw(st.integers(2, 9))
    graph = []
    for i in range(n):
        among = [None, *range(i + 1, n)]
        graph.append([draw(st.lists(st.sampled_from(among), max_size=3))])
    new = draw(st.permutations(range(n)))  # so that numbers say nothing about the order
    mixed = [None] * n
    for i, (inputs,) in enumerate(graph):
        mixed[new[i]] = [[None if j is None else new[j] for j in inputs]]
    yield call(mixed, root=new[0])


@topological_order.edge
def _():
    yield call([[[None, None]]]), "an operation on two constants"
    yield call([[[1, 1]], [[]]]), "x * x: one input twice"
    yield call([[[1, 2]], [[3, 3]], [[4]], [[]], [[3]]]), "an input twice, and of another node"
    yield call([[[2, 1]], [[3, 3]], [[4]], [[]], [[3]]]), "the same, with root's inputs exchanged"
    yield call([[[None, 1]], [[]]]), "a constant and then a node"
    yield call([[[1]], [[3]], [[3]], [[]]]), "a node that root does not depend on"
    yield call([[[3, 2, 1]], [[2, 3]], [[3]], [[]]]), "every node uses all that follow"
    yield call([[[1, 3]], [[2]], [[3]], [[4]], [[]]], root=0), "a short way and a long way"
    yield call([[[1]], [[]], [[0]]], root=2), "the root is not node 0"
    yield call([[[2]], [[2]], [[3]], [[]]], root=1), "a user of node 2 that root does not need"
    yield call(DIAMOND, used=True), "backward has been here: `saved` is None in every node"
    yield call(chain=20_000), "a deep chain"
    yield call(ladder=60), "2 to the power of 59 ways to the leaf"


_TURN = (
    "elif node not in seen:\n            seen.add(node)\n            stack.append((node, True))\n"
    "            stack += [(below, False) for below in node.inputs if below is not None]"
)
_PUSHED = (
    "else:\n            stack.append((node, True))\n"
    "            below = [n for n in node.inputs if n is not None and n not in seen]\n"
    "            seen.update(below)\n            stack += [(n, False) for n in dict.fromkeys({})]"
)
_WHEN_PUSHED = (
    "You mark a node when you push it. It waits in the stack then, and a node that needs it further up is "
    "done first: mark a node when its turn comes."
)
topological_order.slips(
    {
        replace(
            "order[::-1]", "order"
        ): "Your list starts with the leaves: each node stands after its inputs. Turn it round.",
        replace(
            "elif node not in seen:", "else:"
        ): "You visit a node once for each use. Keep a set of those that you have met.",
        replace(
            " if below is not None", ""
        ): "An input may be None: it needs no gradient, and has no node.",
        replace(
            "stack.append((node, True))\n            stack += [(below, False) for below in node.inputs if below is not None]",
            "order.insert(0, node)\n            stack += [(below, False) for below in node.inputs if below is not None]",
        ): "You take nodes in the order in which you meet them. One that is used twice must wait for its "
        "second user: append a node when its inputs are done, and turn the list round.",
        replace(
            "[(below, False) for below in node.inputs if below is not None]",
            "[(below, False) for below in node.inputs[:1] if below is not None]",
        ): "You follow the first input only. Follow all of them.",
        replace(
            "order.append(node)", "order.append(node) if node.inputs else None"
        ): "You leave out the leaves. "
        "They are nodes as well: their turn is when their gradient is complete.",
        replace("order[::-1]", "order[::-1][1:]"): "You leave out root. It comes first.",
        replace(
            "order[::-1]", "reversed(order)"
        ): "Return a list. (reversed gives an iterator, which is empty after one walk.)",
        replace(
            "order.append(node)", "order.append(node.name)"
        ): "You list the names. List the nodes themselves.",
        replace(
            "in node.inputs if", "in node.inputs[: (*node.inputs, None).index(None)] if"
        ): "You stop at the first None among the inputs. Skip it: those after it are nodes, too.",
        replace(
            "node not in seen:\n            seen.add(node)",
            "node.name not in seen:\n            seen.add(node.name)",
        ): "You tell nodes apart by their name, which is that of the operation: two products have the same. Keep the "
        "nodes themselves.",
        replace(
            "elif node not in seen:",
            "elif node.saved is None:\n            raise RuntimeError(node.name)\n        elif node not in seen:",
        ): "You raise where `saved` is None. `backward` looks at that; here only `inputs` is read.",
        replace(
            "if below is not None", "if below is not None and below.saved is not None"
        ): "You leave out nodes whose `saved` is None. The order is that of all nodes: only `inputs` is "
        "read.",
        replace(_TURN, _PUSHED.format("below")): _WHEN_PUSHED,
        replace(_TURN, _PUSHED.format("below[::-1]")): _WHEN_PUSHED,
    }
)


@topological_order.mistake(
    "You call yourself for each input, and Python stops at about a thousand nested calls. Keep the nodes "
    "to visit in a list of your own."
)
def _(root):
    order, seen = [], set()

    def visit(node):
        if node is None or node in seen:
            return
        seen.add(node)
        for below in node.inputs:
            visit(below)
        order.append(node)

    visit(root)
    return order[::-1]


@topological_order.mistake(
    "You raise Python's limit and call yourself for each input all the same. Keep the nodes to visit in a "
    "list of your own."
)
def _(root):
    order, seen, limit = [], set(), sys.getrecursionlimit()

    def visit(node):
        seen.add(node)
        for below in node.inputs:
            if below is not None and below not in seen:
                visit(below)
        order.append(node)

    sys.setrecursionlimit(100_000)
    try:
        visit(root)
    finally:
        sys.setrecursionlimit(limit)
    return order[::-1]


@topological_order.mistake(
    "You move a node to the end when it is met again. What it depends on must come after it, and stays "
    "where it was: append a node when its inputs are done, and turn the list round."
)
def _(root):
    order, stack = {}, [root]
    while stack:
        node = stack.pop()
        if node not in order:
            stack += [below for below in node.inputs if below is not None]
        order.pop(node, None)
        order[node] = True
    return list(order)


_COUNTED_ONCE = (
    "You count a user once, and take one off for each of its uses. A node that is an input twice is ready "
    "too early: count every use."
)


def by_users(root, uses=list, take=-1, done=list):
    """Count the users of each node, and take those whose users are done."""
    users, ahead = {root: 0}, [root]
    while ahead:
        for below in uses(ahead.pop().inputs):
            if below is None:
                continue
            if below not in users:
                users[below] = 0
                ahead.append(below)
            users[below] += 1
    order, ready = [], [root]
    while ready:
        node = ready.pop(take)
        order.append(node)
        for below in done(node.inputs):
            if below is not None:
                users[below] -= 1
                if users[below] == 0:
                    ready.append(below)
    return order


@topological_order.mistake(_COUNTED_ONCE)
def _(root):
    return by_users(root, uses=set, take=0)


@topological_order.mistake(_COUNTED_ONCE)
def _(root):
    return by_users(root, uses=set)


@topological_order.mistake(
    "You count every use of a node, and take one off for each user. A node that is an input twice never "
    "comes to 0, and is missing with all behind it: take off every use."
)
def _(root):
    return by_users(root, done=set)


@topological_order.mistake(
    "You take the nodes level by level, as they are met from root. One that is used again further down "
    "comes too early: it must wait for all of its users."
)
def _(root):
    order, seen = [root], {root}
    for node in order:  # it grows on the way
        for below in node.inputs:
            if below is not None and below not in seen:
                seen.add(below)
                order.append(below)
    return order


@topological_order.mistake(
    "You take the nodes as a depth-first walk meets them. One that is used again by a node further on "
    "comes too early: append a node when its inputs are done, and turn the list round."
)
def _(root):
    order, seen, stack = [], set(), [root]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        order.append(node)
        stack.extend(reversed(node.inputs))
    return order


@topological_order.mistake(
    "You mark the nodes that you have met, and the marks stay. Asked a second time, you find nothing: "
    "keep a set of your own."
)
def _(root):
    order, stack = [], [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif not getattr(node, "visited", False):
            node.visited = True
            stack.append((node, True))
            stack += [(below, False) for below in node.inputs if below is not None]
    return order[::-1]


@topological_order.alternative("count the users of each node, and take those whose users are done")
def _(root):
    return by_users(root)


@topological_order.alternative("depth first with a stack of iterators")
def _(root):
    order, seen = [], {id(root)}
    stack = [(root, iter(root.inputs))]
    while stack:
        node, inputs = stack[-1]
        for below in inputs:
            if below is not None and id(below) not in seen:
                seen.add(id(below))
                stack.append((below, iter(below.inputs)))
                break
        else:
            order.append(node)
            stack.pop()
    order.reverse()
    return order


# ------------------------------------------------------------------------------ backward

backward = Exercise(
    engine.backward,
    title="Backward",
    difficulty=3,
    minutes=30,
    points=4,
    probe=probes.walked,
    formats=ARRAYS,
    hints=(
        "Keep a dict from node to the gradient that has arrived there so far. It starts with root's.",
        "Go through `topological_order(root)`. When a node's turn comes, its gradient is complete: take it "
        "out of the dict.",
        "A leaf adds it to .grad. Another node calls vjp, and each part is added to what its input has so far.",
        "Add with `a + b`, which makes a new array. `a += b` writes into one that another node may hold.",
        (
            "edge cases",
            "Release what a node saved when its vjp is called: saved, node.saved = node.saved, None.",
        ),
    ),
)
W = [[[1, 2], [2.0, 3.0]], [[], []], [[], []]]
SHARES = [[[1, 2], [None, None]], [[3], [2.0]], [[3], [5.0]], [[], []]]
REUSED = [[[1, 1], [2.0, 3.0]], [[], []]]
EARLY = [[[3, 1], [1.0, 2.0]], [[2], [3.0]], [[3], [5.0]], [[4], [7.0]], [[], []]]


def leaves(calls, holding=(), **grads):
    seen = {f".grad of node {n[1:]}": g for n, g in grads.items()}
    return {
        "how often each vjp ran": calls,
        "nodes that still hold what they saved": list(holding),
    } | seen


@backward.by_hand
def _():
    g = array(1.0, 10.0)
    yield call(W, g), leaves([1, 0, 0], n1=2 * g, n2=3 * g)
    yield call(REUSED, g), leaves([1, 0], n1=5 * g)
    yield call(SHARES, g), leaves([1, 1, 1, 0], n3=7 * g)
    yield call(EARLY, g), leaves([1, 1, 1, 1, 0], n4=217 * g)


@backward.cases
def _(draw):
    n = draw(st.integers(2, 7))
    graph = []
    for i in range(n):
        later = range(i + 1, n)
        among = [None, *later, *later, *later]
        inputs = (
            draw(st.lists(st.sampled_from(among), min_size=int(i == 0), max_size=3))
            if later
            else []
        )
        weights = [draw(st.sampled_from([None, 2.0, -1.0, 3.0, 0.5])) for _ in inputs]
        graph.append([inputs, weights])
    shape = draw(st.sampled_from([(2,), (2, 3), (), (3,)]))
    earlier = {}
    for i in range(1, n):
        if not graph[i][0] and draw(st.booleans()):
            earlier[str(i)] = draw(draws.tensors(shape, F64))
    extra = {"before": earlier} if earlier else {}
    yield call(graph, draw(draws.tensors(shape, draw(dtypes) if not earlier else F64)), **extra)


@backward.edge
def _():
    g = normal(3)
    yield call([[[], []]], g), "root is a leaf"
    yield call([[[], []]], g, before={"0": normal(3, seed=1)}), "root is a leaf that has a .grad"
    yield call([[[], []]], g, roots=[0, 0]), "root is a leaf, twice"
    yield call([[[1, 2], [None, None]], [[], []], [[], []]], g), "a + b: one array for two leaves"
    yield call([[[1, 1], [None, None]], [[], []]], g), "x + x: one array twice"
    yield call([[[None, 1], [2.0, 3.0]], [[], []]], g), "a constant"
    yield call([[[None], [2.0]]], g), "nothing but a constant"
    constants = [[[None, None, 1], [2.0, 3.0, 4.0]], [[], []]]
    yield call(constants, g), "two constants, for which the rule returns arrays"
    yield call([[[None, 1], [None, 3.0]], [[], []]], g), "a constant, for which it returns None"
    yield call([[[1, 2], []], [[], []], [[], []]], g), "an operation that saved nothing"
    yield call([[[2], [2.0]], [[2], [3.0]], [[], []]], g, roots=[0, 1]), "two losses, one leaf"
    yield call(W, g, roots=[0, 0]), "backward a second time"
    shared = [[[2], [2.0]], [[2], [3.0]], [[3], [5.0]], [[], []]]
    yield (
        call(shared, g, roots=[0, 1]),
        "two losses that share a node, which is used up by the first",
    )
    yield (
        call(W, g, before={"1": normal(3, seed=1), "2": normal(3, seed=2)}),
        ".grad is there already",
    )
    yield call([[[1], [2.0]], [[], []], [[1], [3.0]]], g), "a node that root does not depend on"
    yield call(array(1.0, dtype=F32), chain=10_000), "a deep chain"
    yield call(g, chain=60), "a chain, whose memory is watched"
    yield call(g, ladder=14), "thousands of ways to the leaf"
    yield call(SHARES, normal(2, 3, dtype=F32)), "float32"


backward.slips(
    {
        replace(
            "np.array(grad) if node.grad is None else node.grad + grad", "np.array(grad)"
        ): "You overwrite a leaf's .grad. What it has already stays in the sum: add to it.",
        replace(
            "np.array(grad) if", "grad if"
        ): "You give a leaf the array that arrived, which others may hold as well. Give it a copy.",
        replace(
            "arrived[below] + part if below in arrived else part", "part"
        ): "You keep only the last gradient that arrives. A node that is used several times gets the sum.",
        replace(
            "saved, node.saved = node.saved, None", "saved = node.saved"
        ): "You leave `saved` in the nodes. "
        "Set it to None once it is used: that is what frees the memory.",
        replace(
            "saved, node.saved = node.saved, None", "saved, node.saved = node.saved, ()"
        ): "You set `saved` "
        "to an empty tuple. Set it to None, so that a second backward sees that it is gone.",
        replace(
            "arrived.pop(node)", "arrived[node]"
        ): "You keep the gradients of nodes that are done. Take "
        "each out of the dict when its turn comes.",
        replace(
            "if node.saved is None:", "if node is root and node.saved is None:"
        ): "You look only at root whether backward has passed. Another graph may have used up a node further "
        "down: look at each when its turn comes.",
        replace(
            "if node.saved is None:", "if False:"
        ): "You do not look whether `saved` is there still, and hand None to the vjp. Where backward has passed "
        "already, raise RuntimeError.",
        replace(
            "raise RuntimeError(", "raise ValueError("
        ): "A second backward raises RuntimeError, as torch's does.",
        replace(
            "node.vjp(grad, *saved)", "node.vjp(np.ones_like(grad), *saved)"
        ): "You start every node from ones. Hand on the gradient that has arrived there.",
        replace(
            "node.vjp(grad, *saved)", "node.vjp(grad, saved)"
        ): "You hand `saved` over as one tuple. vjp takes its items as arguments: *saved.",
        replace(
            "arrived = {root: grad}", "arrived = {root: np.ones_like(grad)}"
        ): "You start from ones. Start from `grad`.",
        replace(
            "else node.grad + grad", "else grad - node.grad"
        ): "You subtract what a leaf has in .grad already. Add to it.",
        replace(
            "            continue\n", "            return\n"
        ): "You stop at the first leaf. Others may still wait for theirs: go on.",
        replace(
            "if node.saved is None:", "if not node.saved:"
        ): "You take an empty `saved` for one that is gone. An operation may save nothing: only None says that "
        "backward has passed.",
        replace(
            "zip(node.inputs, node.vjp(grad, *saved), strict=True)",
            "dict(zip(node.inputs, node.vjp(grad, *saved))).items()",
        ): "You put the gradients in a dict, by node. A node that is an input twice keeps one of its two: go "
        "through pairs.",
        replace(
            *("{root: grad}", "{root.name: grad}", "arrived.pop(node)", "arrived.pop(node.name)"),
            "arrived[below] = arrived[below] + part if below in arrived else part",
            "key = below.name\n"
            "                arrived[key] = arrived[key] + part if key in arrived else part",
        ): "You keep gradients by the name of a node, which is that of the operation: two products have the same. Keep them "
        "by the node.",
        replace(
            "if below is not None:", "if part is not None:"
        ): "You skip where the VJP has returned None. It may return an array for a constant as well: skip where the input is None.",
    }
)


@backward.mistake(
    "You add in place, with +=. The array may be another node's as well: add with +, which makes a new one."
)
def _(root, grad):
    arrived = {root: grad}
    for node in in_order(root):
        grad = arrived.pop(node)
        if node.vjp is None:
            node.grad = np.array(grad) if node.grad is None else node.grad + grad
            continue
        if node.saved is None:
            raise RuntimeError("used already")
        saved, node.saved = node.saved, None
        for below, part in zip(node.inputs, node.vjp(grad, *saved)):
            if below is not None and below in arrived:
                arrived[below] += part
            elif below is not None:
                arrived[below] = part


@backward.mistake(
    "You add to a leaf's .grad in place. Whoever holds the earlier array sees it change: set a new sum."
)
def _(root, grad):
    arrived = {root: grad}
    for node in in_order(root):
        grad = arrived.pop(node)
        if node.vjp is None:
            if node.grad is None:
                node.grad = np.array(grad)
            else:
                node.grad += grad
            continue
        if node.saved is None:
            raise RuntimeError("used already")
        saved, node.saved = node.saved, None
        for below, part in zip(node.inputs, node.vjp(grad, *saved)):
            if below is not None:
                arrived[below] = arrived[below] + part if below in arrived else part


@backward.mistake(
    "You go on along every way as soon as a gradient arrives. A node's VJP must wait until all have arrived, and run once."
)
def _(root, grad):
    stack = [(root, grad)]
    while stack:
        node, grad = stack.pop()
        if node.vjp is None:
            node.grad = np.array(grad) if node.grad is None else node.grad + grad
            continue
        if node.saved is None:
            raise RuntimeError("used already")
        stack += [(b, p) for b, p in zip(node.inputs, node.vjp(grad, *node.saved)) if b is not None]


@backward.mistake(
    "You keep every node's gradient in its .grad. Only leaves keep theirs; the others' are memory that nobody needs."
)
def _(root, grad):
    order = in_order(root)
    if any(node.saved is None for node in order):
        raise RuntimeError("used already")
    before = {node: node.grad for node in order}
    for node in order:
        node.grad = None
    root.grad = grad
    for node in order:
        if node.vjp is None:
            old = before[node]
            node.grad = np.array(node.grad) if old is None else old + node.grad
            continue
        saved, node.saved = node.saved, None
        for below, part in zip(node.inputs, node.vjp(node.grad, *saved)):
            if below is not None:
                below.grad = part if below.grad is None else below.grad + part


@backward.mistake(
    "You set `saved` to None at the end, for all nodes together. Set it as soon as a node's vjp has run."
)
def _(root, grad):
    arrived, done = {root: grad}, []
    for node in in_order(root):
        grad = arrived.pop(node)
        if node.vjp is None:
            node.grad = np.array(grad) if node.grad is None else node.grad + grad
            continue
        if node.saved is None:
            raise RuntimeError("used already")
        done.append(node)
        for below, part in zip(node.inputs, node.vjp(grad, *node.saved)):
            if below is not None:
                arrived[below] = arrived[below] + part if below in arrived else part
    for node in done:
        node.saved = None


@backward.alternative("count the users, and take a node when all have reported")
def _(root, grad):
    users, ahead = {root: 0}, [root]
    while ahead:
        for below in ahead.pop().inputs:
            if below is None:
                continue
            if below not in users:
                users[below] = 0
                ahead.append(below)
            users[below] += 1
    sums, ready = {root: np.array(grad)}, [root]
    while ready:
        node = ready.pop()
        total = sums.pop(node)
        if node.vjp is None:
            node.grad = total if node.grad is None else np.add(node.grad, total)
            continue
        if node.saved is None:
            raise RuntimeError("once only")
        parts = node.vjp(total, *node.saved)
        node.saved = None
        for below, part in zip(node.inputs, parts):
            if below is None:
                continue
            sums[below] = np.array(part) if below not in sums else sums[below] + part
            users[below] -= 1
            if users[below] == 0:
                ready.append(below)


AS_MANY = "a vjp returns a gradient for each input, so no call has lengths that differ: a guard"
for mutant in (
    "zip(node.inputs, node.vjp(grad, *saved), strict=True)` → `zip(node.inputs, node.vjp(grad, *saved))",
    "strict=True` → `strict=False",
):
    backward.equivalent(f"backward: `{mutant}`", because=AS_MANY)


# ------------------------------------------------------------------------------ mlp_backward

mlp_backward = Exercise(
    engine.mlp_backward,
    title="Backward by hand",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.on_arrays,
    formats=ARRAYS,
    hints=(
        "Write the forward pass down, one operation a line. Then take the lines from the last to the first.",
        "Of the mean cross-entropy the logits get (softmax − 1 at the target) / N: chapter 6 derived it.",
        "From dlogits: w2 gets hᵀ dlogits, b2 the sum over rows, h gets dlogits w2ᵀ.",
        "The ReLU lets dh through where h is above 0; then the same again for w1 and b1, with x in place of h.",
        ("edge cases", "exp(1000) is infinite. Subtract each row's largest logit first."),
    ),
)


def mlp(N, D, H, V, dtype=F64, seed=0, scale=1.0):
    shapes = (N, D), (D, H), (H,), (H, V), (V,)
    x, w1, b1, w2, b2 = (
        scale * normal(*s, dtype=dtype, seed=seed + i) for i, s in enumerate(shapes)
    )
    targets = torch.randint(0, V, (N,), generator=torch.Generator().manual_seed(seed))
    return x, targets, w1, b1, w2, b2


@mlp_backward.by_hand
def _():
    x, targets = array([1.0, 2.0]), torch.tensor([0])
    zero = torch.zeros(2, dtype=F64)
    eye = torch.eye(2, dtype=F64)
    yield (
        call(x, targets, 0 * eye, array(1.0, -1.0), 0 * eye, zero),
        {
            "w1": 0 * eye,
            "b1": zero,
            "w2": array([-0.5, 0.5], [0.0, 0.0]),
            "b2": array(-0.5, 0.5),
        },
    )
    yield (
        call(x, targets, 0 * eye, array(1.0, 1.0), array([2.0, 0.0], [2.0, 4.0]), array(0.0, 0.0)),
        {
            "w1": array([-1.0, 1.0], [-2.0, 2.0]),
            "b1": array(-1.0, 1.0),
            "w2": array([-0.5, 0.5], [-0.5, 0.5]),
            "b2": array(-0.5, 0.5),
        },
    )


@mlp_backward.cases(24)
def _(draw):
    N, D, H, V = draw(draws.distinct_sizes(4, 1, 6))
    dtype = draw(dtypes)
    yield call(*mlp(N, D, H, V, dtype, seed=draw(st.integers(0, 999))))


@mlp_backward.edge
def _():
    x, targets, *weights = mlp(3, 4, 5, 6)
    yield call(x, torch.zeros(3, dtype=torch.int64), *weights), "one target for all rows"
    yield call(*mlp(1, 3, 4, 5)), "one row"
    yield call(*mlp(4, 4, 4, 4)), "sizes all alike"
    yield call(*mlp(3, 2, 4, 5, scale=40.0)), "logits in the thousands"
    yield (
        call(x, targets, weights[0], torch.full((5,), -99.0, dtype=F64), *weights[2:]),
        "every unit is dead",
    )
    yield (
        call(*(draws.scattered(t) if t.ndim > 1 else t for t in mlp(3, 4, 5, 6))),
        "not contiguous",
    )
    yield call(*mlp(5, 3, 4, 2, dtype=F32)), "float32"
    idle = 0 * weights[0], 0 * weights[1], *weights[2:]
    yield call(x, targets, *idle), "every unit at 0, where the ReLU lets nothing through"


_FLOAT64 = "You return float64 whatever came. Keep x's dtype."
mlp_backward.slips(
    {
        replace(
            "    dlogits /= len(x)\n", ""
        ): "You differentiate the sum over the rows. The loss is their mean: divide by N.",
        replace(
            "dlogits /= len(x)", "dlogits /= dlogits.size"
        ): "You divide by N · V. The mean is over N rows.",
        replace(
            "    dlogits[np.arange(len(x)), targets] -= 1\n", ""
        ): "You leave out the target. Of a row's logits the target's gets the softmax minus 1.",
        replace(
            "-= 1", "+= 1"
        ): "You add 1 at the target. Subtract it: the loss falls as that logit grows.",
        replace(
            "dlogits[np.arange(len(x)), targets]", "dlogits[:, targets]"
        ): "`dlogits[:, targets]` takes every row at "
        "every target. Each row has one target: dlogits[np.arange(N), targets].",
        replace(
            "np.where(h > 0, dlogits @ w2.T, 0)", "dlogits @ w2.T"
        ): "You let every gradient through the ReLU. Where h is 0 it stops, and h is never below 0: the condition is h > 0.",
        replace(
            '"b1": dh.sum(axis=0)', '"b1": (dlogits @ w2.T).sum(axis=0)'
        ): "Your b1 gets the gradient from before the ReLU's backward. The bias is added inside the ReLU: sum "
        "what has passed it.",
        replace(
            "np.where(h > 0, dlogits @ w2.T, 0)", "h * (dlogits @ w2.T)"
        ): "You multiply by h. The ReLU's derivative is 1 where h is above 0.",
        replace(
            "np.where(h > 0,", "np.where(x @ w1 > 0,"
        ): "You look at the sign of x @ w1. The bias decides as well: look at h.",
        replace(
            '"b1": dh.sum(axis=0)',
            '"b1": dh.mean(axis=0)',
            '"b2": dlogits.sum(axis=0)',
            '"b2": dlogits.mean(axis=0)',
        ): "You take means for the biases. The mean "
        "is in dlogits already; a bias was repeated over the rows, and gets the sum.",
        replace(
            '"b1": dh.sum(axis=0)', '"b1": dh', '"b2": dlogits.sum(axis=0)', '"b2": dlogits'
        ): "A bias was repeated over the rows: it gets the sum over them.",
        replace(
            "exp = np.exp(logits - logits.max(axis=1, keepdims=True))", "exp = np.exp(logits)"
        ): "exp "
        "overflows for large logits, and infinity by infinity is NaN. Subtract each row's largest logit first.",
        replace(
            "logits.max(axis=1, keepdims=True)", "logits.max()"
        ): "You subtract the largest logit of the "
        "batch. A row far below it has only zeros then, and 0 / 0 is NaN: subtract each row's own.",
        replace(
            "exp.sum(axis=1, keepdims=True)", "exp.sum()"
        ): "You normalise over the whole batch. Each row has a softmax of its own.",
        replace(
            "exp.sum(axis=1, keepdims=True)", "exp.sum(axis=0, keepdims=True)"
        ): "You normalise over the rows. Each row has a softmax of its own.",
        replace(
            '"w1": x.T @ dh', '"w1": dh.T @ x', '"w2": h.T @ dlogits', '"w2": dlogits.T @ h'
        ): "Your weights' "
        "gradients are transposed. torch's Linear stores its weight so; here a weight is (in, out).",
        replace(
            "h = np.maximum(x @ w1 + b1, 0)", "h = x @ w1 + b1"
        ): "You leave the ReLU out of the forward "
        "pass. w2's gradient is made with h, after the ReLU.",
        replace(
            *("h = np.maximum(x @ w1 + b1, 0)", "a = x @ w1 + b1\n    h = np.maximum(a, 0)"),
            *('"w2": h.T', '"w2": a.T'),
        ): "You make w2's gradient with what enters the ReLU. w2 was multiplied with what leaves it: h.T @ "
        "dlogits.",
        replace(
            "dlogits[np.arange(len(x)), targets] -= 1",
            "dlogits = dlogits - np.eye(targets.max() + 1, dtype=x.dtype)[targets]",
        ): "You count the classes by the largest target. A batch may lack the last class: V is b2's length.",
        replace(
            "dlogits[np.arange(len(x)), targets] -= 1",
            "dlogits = dlogits - np.eye(len(b2))[targets]",
        ): _FLOAT64,
        replace(
            "exp = np.exp(logits - logits.max(axis=1, keepdims=True))",
            "z = logits - logits.max(axis=1, keepdims=True)",
            "exp / exp.sum(axis=1, keepdims=True)",
            "np.exp(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))",
            "dlogits[np.arange(len(x)), targets] -= 1",
            "dlogits = dlogits - np.eye(len(b2))[targets]",
        ): _FLOAT64,
        replace(
            *("h = np.maximum(x @ w1 + b1, 0)", "a = x @ w1 + b1\n    h = np.maximum(a, 0)"),
            *("np.where(h > 0,", "np.where(a >= 0,"),
        ): "You let the gradient through where the ReLU's input is 0. There it lets nothing through: the condition is > 0.",
    }
)


@mlp_backward.mistake("You change arrays that you were given. Copy what you want to write into.")
def _(x, targets, w1, b1, w2, b2):
    found = engine.mlp_backward(x, targets, w1, b1, w2, b2)
    w1 -= 0.1 * found["w1"]
    return found


@mlp_backward.mistake("You return a tuple. Return a dict with the keys w1, b1, w2 and b2.")
def _(x, targets, w1, b1, w2, b2):
    return tuple(engine.mlp_backward(x, targets, w1, b1, w2, b2).values())


@mlp_backward.mistake(_FLOAT64)
def _(x, targets, w1, b1, w2, b2):
    found = engine.mlp_backward(x, targets, w1, b1, w2, b2)
    return {name: grad.astype(np.float64) for name, grad in found.items()}


@mlp_backward.alternative("one-hot targets, einsum, a mask")
def _(x, targets, w1, b1, w2, b2):
    N, V = len(x), len(b2)
    a = np.einsum("nd,dh->nh", x, w1) + b1
    h = a * (a > 0)
    z = h @ w2 + b2
    z = z - z.max(1)[:, None]
    logp = z - np.log(np.exp(z).sum(1))[:, None]
    hot = (targets[:, None] == np.arange(V)).astype(x.dtype)
    dz = (np.exp(logp) - hot) / np.asarray(N, x.dtype)
    da = np.einsum("nv,hv->nh", dz, w2) * (a > 0)
    return {
        "b2": dz.sum(0),
        "w2": np.einsum("nh,nv->hv", h, dz),
        "b1": da.sum(0),
        "w1": np.einsum("nd,nh->dh", x, da),
    }


for what in ("logits.max", "exp.sum"):
    mlp_backward.equivalent(
        f"mlp_backward: `{what}(axis=1, keepdims=True)` → `{what}(axis=-1, keepdims=True)`",
        because="logits have two axes, so the last is axis 1",
    )


# ------------------------------------------------------------------------------ vjp_error

vjp_error = Exercise(
    engine.vjp_error,
    title="A VJP against differences",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.takes_vjp,
    formats=ARRAYS,
    hints=(
        "Move all inputs at once, each along its direction, and call f twice.",
        "(f above − f below) / 2·eps has f's shape. Weight it with `grad`, and add up.",
        "The gradients predict the same number: Σ over inputs of Σ gradient · direction.",
        ("edge cases", "x + 1e-6 · u may be x in float32. Convert the inputs first."),
    ),
)
SQUARE, RIGHT, WRONG = "lambda a: a * a", "lambda g, a: (2 * g * a,)", "lambda g, a: (g * a,)"
PRODUCT = "lambda a, b: a @ b"
PRODUCT_VJPS = (
    "lambda g, a, b: (g @ b.T, a.T @ g)",
    "lambda g, a, b: (g @ b.T, 2 * (a.T @ g))",
)


@vjp_error.by_hand
def _():
    x, u, g = array(1.0, 2.0), array(1.0, 10.0), array(1.0, 3.0)
    yield call(SQUARE, RIGHT, [x], [u], g, 0.5), 0.0
    yield call(SQUARE, WRONG, [x], [u], g, 0.5), 61.0  # 2 + 120 against 1 + 60
    yield call("lambda a: 3 * a", "lambda g, a: (g,)", [x], [u], g, 0.5), 62.0
    yield (
        call("lambda a, b: a * b", "lambda g, a, b: (g * b, g * b)", [x, u], [u, x], g, 0.5),
        48.0,
    )


def whole(draw, *shape):
    """Small whole numbers, with which differences of functions of degree two are exact."""
    return draw(draws.tensors(shape, torch.int64)).double()


@vjp_error.cases
def _(draw):
    eps = draw(st.sampled_from([0.5, 0.25, 1.0]))
    n, k, m = draw(draws.distinct_sizes(3, 1, 4))
    if draw(st.booleans()):
        vjp = draw(st.sampled_from([RIGHT, WRONG, "lambda g, a: (3 * g,)"]))
        x, u, g = (whole(draw, n, k) for _ in range(3))
        yield call(SQUARE, vjp, [x], [u], g, eps)
    else:
        inputs = [whole(draw, n, k), whole(draw, k, m)]
        directions = [whole(draw, n, k), whole(draw, k, m)]
        yield call(
            PRODUCT, draw(st.sampled_from(PRODUCT_VJPS)), inputs, directions, whole(draw, n, m), eps
        )


@vjp_error.edge
def _():
    x, u = array([1.0, -2.0, 3.0], [4.0, 5.0, -6.0]), array([1.0, 2.0, -3.0], [2.0, 0.0, 1.0])
    row, v = array(2.0, -1.0, 3.0), array(1.0, 4.0, -2.0)
    g = array([1.0, 2.0, 3.0], [-1.0, 4.0, 2.0])
    yield (
        call("lambda a, b: a + b", "lambda g, a, b: (g, g)", [x, row], [u, v], g, 0.5),
        "a gradient of the wrong shape that broadcasts",
    )
    yield (
        call("lambda a, b: a + b", "lambda g, a, b: (g, g.sum(axis=0))", [x, row], [u, v], g, 0.5),
        "an input that is broadcast",
    )
    yield (
        call("lambda a, b: a * b", "lambda g, a, b: (g * b,)", [x, x], [u, u], g, 0.5),
        "a gradient too few",
    )
    yield (
        call("lambda a: 3 * a", "lambda g, a: (g, g)", [row], [v], g[0], 0.5),
        "a gradient too many",
    )
    yield (
        call("lambda a, b: a + b", "lambda g, a, b: (g, g)", [row, x[:1]], [v, u[:1]], g[:1], 0.5),
        "a gradient with an axis of size one too many",
    )
    yield (
        call(PRODUCT, "lambda g, a, b: (g @ b.T, g.T @ a)", [x, x.T], [u, u.T], g[:, :2], 0.5),
        "a gradient that is transposed",
    )
    yield (
        call(
            "lambda a: a.sum(axis=0)",
            "lambda g, a: (np.broadcast_to(g, a.shape),)",
            [x],
            [u],
            row,
            0.5,
        ),
        "f reduces",
    )
    yield (
        call(
            "lambda a: a[0] * a[1]",
            "lambda g, a: (np.stack([g * a[1], g * a[0]]),)",
            [x],
            [u],
            row,
            0.5,
        ),
        "f takes rows",
    )
    # eps is below the spacing of float32 there
    large = array(4096.0, 8192.0, dtype=F32)
    yield (
        call(
            SQUARE,
            RIGHT,
            [large],
            [array(1.0, 1.0, dtype=F32)],
            array(1.0, 1.0, dtype=F32),
            2.0**-14,
        ),
        "float32, and a small step",
    )
    yield (
        call(
            SQUARE,
            RIGHT,
            [torch.tensor(3.0, dtype=F64)],
            [torch.tensor(1.0, dtype=F64)],
            torch.tensor(2.0, dtype=F64),
            0.5,
        ),
        "no axes",
    )
    yield call(SQUARE, WRONG, [-x], [u], g, 0.5), "the difference is negative"
    yield call(SQUARE, WRONG, [0.1 * x], [u], g, 0.5), "numbers that a step and back would change"


AS_MANY = (
    "You compare numbers of elements. A gradient that is transposed, or has an axis of size one too many, has "
    "as many: compare shapes."
)
vjp_error.slips(
    {
        replace("(2 * eps)", "eps"): "Your two points are 2·eps apart. Divide by that.",
        replace("(2 * eps)", "1"): "You do not divide by the distance of the two points, 2·eps.",
        replace(
            "grad * (above - below)", "(above - below)"
        ): "You leave out the weights. f's elements are weighted with `grad`.",
        replace(
            "np.asarray(grad, dtype=np.float64), *points",
            "np.ones_like(grad, dtype=np.float64), *points",
        ): "You hand the VJP a gradient of ones. Hand it `grad`.",
        replace(
            "np.sum(g * u)", "np.sum(g)"
        ): "You leave out the directions. The rate along u is gradient · u.",
        replace(
            "return abs(found - due)", "return found - due"
        ): "You return the difference with its sign. A distance is not negative.",
        replace(
            "return abs(found - due)", "return abs(found - due) / max(abs(due), 1.0)"
        ): "You divide by the rate. Asked for is the distance itself.",
        replace(
            "return abs(found - due)", "return (found - due) ** 2"
        ): "You square the difference. Asked for is the distance.",
        replace(
            "return abs(found - due)", "return found - due < 1e-6"
        ): "You return a bool. Return the distance.",
        replace(
            "return abs(found - due)", "return np.float32(abs(found - due))"
        ): "You return float32. Return a float.",
        replace(
            "[np.asarray(x, dtype=np.float64) for x in inputs]", "list(inputs)"
        ): "You take the differences in the inputs' dtype. In float32 a small step is lost: convert to float64 first.",
        replace(
            "!= [x.shape for x in points]", "is None"
        ): "You do not look at the gradients' shapes. A wrong "
        "one may broadcast, and nobody sees it: raise ValueError.",
        replace(
            "below = f(*(x - eps * u", "below = f(*(x + 0 * u", "(2 * eps)", "eps"
        ): "You step to one side "
        "only, with an error that grows with eps. Take x + eps·u and x − eps·u.",
        replace(
            "(x + eps * u for", "(x + eps for", "(x - eps * u for", "(x - eps for"
        ): "You step by eps in every element. Step along the direction: eps·u.",
        replace(
            "(x + eps * u for x, u in zip(points,",
            "((x + eps * u).astype(np.float64) for x, u in zip(inputs,",
            "(x - eps * u for x, u in zip(points,",
            "((x - eps * u).astype(np.float64) for x, u in zip(inputs,",
        ): "You step in the inputs' dtype and convert afterwards. In float32 a small step is lost by then: "
        "convert to float64 first.",
        replace(
            "[g.shape for g in gradients] != [x.shape for x in points]",
            "[g.size for g in gradients] != [x.size for x in points]",
            "np.sum(g * u)",
            "np.vdot(g, u)",
        ): AS_MANY,
        replace(
            "[g.shape for g in gradients] != [x.shape for x in points]",
            "[g.size for g in gradients] != [x.size for x in points]",
        ): AS_MANY,
        replace(
            "[g.shape for g in gradients] != [x.shape for x in points]",
            "any(g.shape != x.shape for g, x in zip(gradients, points))",
            "zip(gradients, directions, strict=True)",
            "zip(gradients, directions)",
        ): "zip stops at the shorter of the two, and a gradient too few goes unseen: compare their number, too.",
        replace(
            "[g.shape for g in gradients] != [x.shape for x in points]",
            "len(gradients) < len(points) or any(g.shape != x.shape for g, x in zip(gradients, points))",
            "zip(gradients, directions, strict=True)",
            "zip(gradients, directions)",
        ): "You look whether there are enough gradients. One too many is wrong as well, and zip passes over it: compare their "
        "number.",
        replace(
            "above = f(", "f(*points)\n    above = f("
        ): "Two calls of f and one of vjp are enough: step along all directions at once. `grad` has the shape of "
        "f's result already.",
    }
)


@vjp_error.mistake(
    "You check one input. Move all of them at once, and add up all gradients times directions."
)
def _(f, vjp, inputs, directions, grad, eps=1e-6):
    first = np.asarray(inputs[0], dtype=np.float64)
    rest = [np.asarray(x, dtype=np.float64) for x in inputs[1:]]
    above, below = f(first + eps * directions[0], *rest), f(first - eps * directions[0], *rest)
    found = float((grad * (above - below)).sum()) / (2 * eps)
    gradients = vjp(grad.astype(np.float64), first, *rest)
    if [g.shape for g in gradients] != [x.shape for x in inputs]:
        raise ValueError("shapes")
    return abs(found - float((gradients[0] * directions[0]).sum()))


@vjp_error.mistake(
    "You move one input after the other, with two calls of f for each. Move all of them at once, each along "
    "its direction: two calls in all."
)
def _(f, vjp, inputs, directions, grad, eps=1e-6):
    points = [np.asarray(x, dtype=np.float64) for x in inputs]
    gradients = vjp(np.asarray(grad, dtype=np.float64), *points)
    if [g.shape for g in gradients] != [x.shape for x in points]:
        raise ValueError("shapes")
    error = 0.0
    for i, (g, u) in enumerate(zip(gradients, directions)):
        above = f(*points[:i], points[i] + eps * u, *points[i + 1 :])
        below = f(*points[:i], points[i] - eps * u, *points[i + 1 :])
        error += float(np.sum(grad * (above - below))) / (2 * eps) - float(np.sum(g * u))
    return abs(error)


@vjp_error.mistake("You change the inputs in place. Work with new arrays: x + eps * u.")
def _(f, vjp, inputs, directions, grad, eps=1e-6):
    found = engine.vjp_error(f, vjp, inputs, directions, grad, eps)
    for x, u in zip(inputs, directions):
        x += eps * u
    return found


_THERE_AND_BACK = "You step in place, and back again. Rounding leaves the inputs changed: make new arrays, x + eps * u."


@vjp_error.mistake(_THERE_AND_BACK)
def _(f, vjp, inputs, directions, grad, eps=1e-6):
    points = [np.asarray(x, dtype=np.float64) for x in inputs]
    error = engine.vjp_error(f, vjp, points, directions, grad, eps)
    along = [np.array(u) for u in directions]
    for factor in (eps, -2 * eps, eps):
        for x, u in zip(points, along):
            x += factor * u
    return error


@vjp_error.mistake(_THERE_AND_BACK)
def _(f, vjp, inputs, directions, grad, eps=1e-6):
    points = [np.asarray(x, dtype=np.float64) for x in inputs]
    gradients = vjp(np.asarray(grad, dtype=np.float64), *points)
    if [g.shape for g in gradients] != [x.shape for x in points]:
        raise ValueError("shapes")
    due = sum(float(np.sum(g * u)) for g, u in zip(gradients, directions))

    def step(size):
        for x, u in zip(points, directions):
            x += size * u

    step(eps)
    above = np.sum(grad * f(*points))
    step(-2 * eps)
    below = np.sum(grad * f(*points))
    step(eps)
    return abs(float(above - below) / (2 * eps) - due)


@vjp_error.alternative("vectors that hold all inputs side by side")
def _(f, vjp, inputs, directions, grad, eps=1e-6):
    points = [x.astype(np.float64) for x in inputs]
    weights = grad.astype(np.float64)
    moved = [[x + sign * eps * u for x, u in zip(points, directions)] for sign in (1, -1)]
    above, below = (np.sum(weights * f(*point)) for point in moved)
    pulled = vjp(weights, *points)
    if len(pulled) != len(points) or any(p.shape != x.shape for p, x in zip(pulled, points)):
        raise ValueError(f"{len(pulled)} gradients do not fit the inputs")
    flat = np.concatenate([np.ravel(p) for p in pulled])
    along = np.concatenate([np.ravel(u).astype(np.float64) for u in directions])
    return float(abs((above - below) / (2 * eps) - flat @ along))


vjp_error.equivalent(
    "vjp_error: `zip(gradients, directions, strict=True)` → `zip(directions, gradients, strict=True)`",
    because="a product does not depend on the order of its factors",
)
ONE_EACH = "there is a direction for each input, so no call has lengths that differ: a guard"
for zipped, number in (("points", 1), ("points", 2), ("gradients", 3)):
    nth = f" [#{number}]" if zipped == "points" else ""
    vjp_error.equivalent(
        f"vjp_error: `zip({zipped}, directions, strict=True)` → `zip({zipped}, directions)`{nth}",
        because=ONE_EACH,
    )
    vjp_error.equivalent(f"vjp_error: `strict=True` → `strict=False` [#{number}]", because=ONE_EACH)
for summed_up in ("grad * (above - below)", "g * u"):
    vjp_error.equivalent(
        f"vjp_error: `float(np.sum({summed_up}))` → `np.sum({summed_up})`",
        because="NumPy's float64 is a subclass of float",
    )
