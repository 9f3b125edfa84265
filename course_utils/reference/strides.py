"""Chapter 2, strides: index arithmetic and views, by hand.

Shapes are in elements and so are strides and offsets, as in `torch.Tensor.stride`; a byte address is
the element's position times `element_size`. The views are made with `torch.as_strided` alone.
"""

from itertools import product
from math import prod

from jaxtyping import Shaped
from torch import Tensor


def flat_index(index: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> int:
    """Position in storage of the element at `index`.

    index: one entry per axis, counted from 0. stride: elements to skip for one step
    along each axis. offset: position of the tensor's first element. Source: Harris et
    al. (2020), Fig. 1a.
    """
    return offset + sum(i * s for i, s in zip(index, stride, strict=True))


def unflatten_index(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Index of the element that comes at `position` (from 0) in row-major order.

    shape: sizes of the axes; the last one turns fastest. Raises IndexError where
    `shape` has no such element.
    """
    if not 0 <= position < prod(shape):
        raise IndexError(f"position {position} is outside of {prod(shape)} elements")
    index = []
    for size in reversed(shape):
        position, i = divmod(position, size)
        index.append(i)
    return tuple(reversed(index))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a freshly made row-major tensor of this shape.

    One step along an axis skips everything inside it. A size of zero counts as one, as
    in torch, so that no stride is zero. Source: `empty_tensor_restride`,
    c10/core/TensorImpl.h.
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Do the elements, taken in row-major order, lie side by side in storage?

    shape, stride: of a tensor, in elements. The stride of an axis of size one is never
    used, so any will do; a tensor without elements is contiguous. Source:
    `_compute_contiguous`, c10/core/Contiguity.h.
    """
    if 0 in shape:
        return True
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def view_strides(
    shape: tuple[int, ...], stride: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides of the view, or None where it must copy.

    shape, stride: of the tensor at hand (elements, not bytes). new_shape: same number
    of elements. The stride given to an axis of size one, or to any axis of an empty
    tensor, is never used: all values are right. Source: `computeStride`,
    aten/src/ATen/TensorUtils.cpp.
    """
    if 0 in shape:
        return (1,) * len(new_shape)
    runs: list[tuple[int, int]] = []  # the fewest axes, (size, stride), that walk the same way
    for size, step in zip(shape, stride, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * step:
            runs[-1] = (runs[-1][0] * size, step)
        else:
            runs.append((size, step))
    strides, size, step = [], 1, 1
    for new_size in reversed(new_shape):
        if size == 1 and new_size > 1:  # this run is used up: begin the next
            size, step = runs.pop()
        if size % new_size:
            return None
        strides.append(step)
        size, step = size // new_size, step * new_size
    return tuple(reversed(strides))


def transpose_view(x: Shaped[Tensor, "..."], dim0: int, dim1: int) -> Shaped[Tensor, "..."]:
    """View of x with the axes dim0 and dim1 swapped.

    dim0, dim1: axes of x; negative ones count from the end. Result: x's storage, 0 new
    bytes.
    """
    shape, stride = list(x.shape), list(x.stride())
    for per_axis in (shape, stride):
        per_axis[dim0], per_axis[dim1] = per_axis[dim1], per_axis[dim0]
    return x.as_strided(shape, stride, x.storage_offset())


def broadcast_view(x: Shaped[Tensor, "..."], shape: tuple[int, ...]) -> Shaped[Tensor, "..."]:
    """View of x with `shape`, repeating its elements without storing them again.

    Axes are matched from the right; new axes, and axes of size one that grow, get
    stride 0. Raises ValueError where an axis of another size would have to grow or
    shrink, or x has more axes than `shape`. Source: `inferExpandGeometry`,
    aten/src/ATen/ExpandUtils.cpp.
    """
    new = len(shape) - x.ndim  # axes in front, as if x had them with size one
    sizes, steps = (1,) * new + tuple(x.shape), (0,) * new + x.stride()
    if new < 0 or any(old not in (1, size) for old, size in zip(sizes, shape, strict=True)):
        raise ValueError(f"{tuple(x.shape)} does not broadcast to {shape}")
    axes = zip(sizes, shape, steps, strict=True)
    stride = [step if old == size else 0 for old, size, step in axes]
    return x.as_strided(shape, stride, x.storage_offset())


def sliding_windows(
    x: Shaped[Tensor, "*batch L"], size: int, step: int = 1
) -> Shaped[Tensor, "*batch n size"]:
    """View of all the windows of `size` neighbours along the last axis, `step` apart.

    Result: windows[..., i, j] = x[..., i * step + j], as many as fit whole: n = (L -
    size) // step + 1. Raises ValueError where size or step is below one or size is
    above L.
    """
    *batch, length = x.shape
    *outer, inner = x.stride()
    if not (1 <= size <= length and step >= 1):
        raise ValueError(f"no window of {size} at step {step} in a length of {length}")
    n = (length - size) // step + 1
    return x.as_strided((*batch, n, size), (*outer, step * inner, inner), x.storage_offset())


def diagonal_view(
    x: Shaped[Tensor, "*batch n m"], offset: int = 0
) -> Shaped[Tensor, "*batch diagonal"]:
    """View of the diagonal x[..., i, i + offset] of each matrix.

    offset: 0 is the main diagonal, k > 0 lies k columns to the right, k < 0 lies -k
    rows down. A diagonal that misses the matrix is empty.
    """
    *batch, n, m = x.shape
    *outer, row, column = x.stride()
    top, left = max(-offset, 0), max(offset, 0)
    length = max(min(n - top, m - left), 0)
    start = x.storage_offset() + (top * row + left * column if length else 0)
    return x.as_strided((*batch, length), (*outer, row + column), start)


def toeplitz_view(x: Shaped[Tensor, "*batch n p"]) -> Shaped[Tensor, "*batch n m"]:
    """View that reads each row of x one place further left than the row above: the relative shift.

    x: scores by relative position, p = n + m - 1 of them in a row. Result: T[..., i, j]
    = x[..., i, j - i + n - 1], so equal rows give a Toeplitz matrix. Raises ValueError
    unless 1 <= n <= p, and where the view would need a negative stride, which torch
    lacks. Source: the skewing of Huang et al. (2018), section 3.4.1, without its
    padding and copy.
    """
    *batch, n, p = x.shape
    *outer, row, column = x.stride()
    down = row - column if n > 1 else 0  # nobody steps down from a single row
    if not 1 <= n <= p or down < 0:
        raise ValueError(f"no view of {(n, p)} with strides {(row, column)} is shifted like that")
    start = x.storage_offset() + (n - 1) * column
    return x.as_strided((*batch, n, p - n + 1), (*outer, down, column), start)


def addresses(x: Tensor) -> list[int]:
    """Positions in storage, in elements, that x's elements have in row-major order."""
    offset = int(x.storage_offset())
    indices = product(*(range(size) for size in x.shape))
    return [flat_index(index, x.stride(), offset) for index in indices]


def cache_lines(x: Tensor, line: int = 64) -> int:
    """Number of different cache lines, of `line` bytes, that hold elements of x.

    The storage is taken to begin at a line's border.
    """
    return len({position * x.element_size() // line for position in addresses(x)})


def cache_misses(x: Tensor, lines: int, line: int = 64) -> int:
    """Loads from memory when x is read in row-major order through a cache of `lines` lines.

    The cache forgets the line that was used longest ago (LRU) and holds `lines` lines
    of `line` bytes; the storage is taken to begin at a line's border.
    """
    cached: dict[int, None] = {}
    misses = 0
    for position in addresses(x):
        tag = position * x.element_size() // line
        misses += tag not in cached
        cached.pop(tag, None)
        cached[tag] = None
        if len(cached) > lines:
            del cached[next(iter(cached))]
    return misses
