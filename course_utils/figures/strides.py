"""The drawings of chapter 2: storage as a strip, and what strides make of it."""

from itertools import pairwise, product

from matplotlib.axes import Axes
from matplotlib.patches import Arc
from torch import Tensor

from course_utils.reference.strides import addresses, cache_misses, flat_index

from .style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    RED,
    Drawing,
    doublings,
    note,
    paper,
    plot,
    slot,
    slots,
)


def _storage_size(x: Tensor) -> int:
    """Number of elements of x's type that its whole storage holds."""
    return x.untyped_storage().nbytes() // x.element_size()


def _start_of(x: Tensor) -> int:
    """Position of x's first element in its storage."""
    return int(x.storage_offset())


def draw_address(x: Tensor, index: tuple[int, int]) -> Drawing:
    """How the strides of a matrix lead from its offset to one element, on the strip of storage."""
    rows, columns = x.shape
    n, at = _storage_size(x), flat_index(index, x.stride(), _start_of(x))
    figure, ax = paper((-0.5, n + 0.5), (-2.2, 5.5 + rows))
    left = (n - columns) / 2
    for i in range(rows):
        for j in range(columns):
            here = (i, j) == index
            slot(ax, left + j, 3 + rows - i, x[i, j].item(), ORANGE if here else BLUE, here)
        note(ax, left - 0.3, 3.5 + rows - i, f"i = {i}", ha="right", color=FAINT, fontsize=8)
    for j in range(columns):
        note(ax, left + j + 0.5, 4.3 + rows, f"j = {j}", ha="center", color=FAINT, fontsize=8)
    seen = set(addresses(x))
    slots(ax, list(range(n)), [BLUE if p in seen else None for p in range(n)])
    slot(ax, at, 0, at, ORANGE, strong=True)
    position = _start_of(x)
    note(ax, position + 0.5, -0.5, f"offset {position}", ha="center")
    for axis, colour in ((0, GREEN), (1, RED)):
        for _ in range(index[axis]):
            _hop(ax, position, position + x.stride(axis), colour)
            position += x.stride(axis)
    (i, j), (s0, s1) = index, x.stride()
    sum_ = f"{_start_of(x)} + {i}·{s0} + {j}·{s1} = {at}"
    note(
        ax,
        n / 2,
        -1.5,
        f"position in storage = offset + i·stride[0] + j·stride[1] = {sum_}",
        ha="center",
    )
    return figure


def draw_walk(*views: Tensor) -> Drawing:
    """The way through storage that each tensor takes in row-major order; jumps back run below."""
    paths = [addresses(x) for x in views]
    reach = [0.4 * max(abs(b - a) for a, b in pairwise(path)) for path in paths]
    n = max(map(_storage_size, views))
    figure, ax = paper((-0.5, n + 0.5), (-sum(2 * r + 2.6 for r in reach), 0))
    y = 0.0
    for x, path, up in zip(views, paths, reach, strict=True):
        note(ax, 0, y - 0.6, f"shape {tuple(x.shape)}, stride {x.stride()}", fontweight="bold")
        y -= up + 2.2
        used = set(path)
        slots(ax, list(range(n)), [BLUE if p in used else None for p in range(n)], y=y)
        for a, b in pairwise(path):
            _hop(ax, a, b, GREEN if b >= a else RED, y)
        y -= up + 0.4
    return figure


def _hop(ax: Axes, start: int, end: int, colour: str, base: float = 0.0) -> None:
    """An arc between two slots of the strip at height base: above to the right, below to the left."""
    forward = end >= start
    width = abs(end - start)
    y, angles = (base + 1, (0, 180)) if forward else (base, (180, 360))
    ax.add_patch(
        Arc(
            ((start + end) / 2 + 0.5, y),
            width,
            max(width, 0.8) * 0.8,
            theta1=angles[0],
            theta2=angles[1],
            color=colour,
            lw=1.6,
        )
    )
    tip = (end + 0.5, y + (0.12 if forward else -0.12))
    arrow = {"arrowstyle": "-|>", "color": colour, "lw": 1.6}
    ax.annotate("", (end + 0.5, y), tip, arrowprops=arrow)


def draw_rows(view: Tensor) -> Drawing:
    """Which slots of storage each row of a matrix reads: one line of squares a row."""
    rows, n = view.size(0), _storage_size(view)
    figure, ax = paper((-3, n + 0.5), (-rows - 0.7, 1.5))
    base = _start_of(view)
    for i in range(rows):
        for j in range(view.size(1)):
            at = base + i * view.stride(0) + j * view.stride(1)
            slot(ax, at, -1.3 - i, f"{i},{j}", PALETTE[i % len(PALETTE)])
        note(ax, -0.4, -0.8 - i, f"row {i}", ha="right")
    slots(ax, list(range(n)))
    note(ax, -0.4, 0.5, "storage", ha="right", fontweight="bold")
    return figure


def draw_shift(x: Tensor) -> Drawing:
    """Which elements of a matrix of scores the relative shift reads: one place further left a row.

    The squares hold positions in storage; above them stands the distance j - i of each column.
    """
    rows, columns = x.shape
    figure, ax = paper((-2.5, columns + 0.5), (-1.4, rows + 1.4))
    for i in range(rows):
        for c in range(columns):
            j = c - (rows - 1) + i
            read = 0 <= j <= columns - rows
            slot(
                ax,
                c,
                rows - 1 - i,
                flat_index((i, c), x.stride(), _start_of(x)),
                BLUE if read else None,
            )
        note(ax, -0.3, rows - 0.5 - i, f"query {i}", ha="right")
    for c in range(columns):
        note(
            ax,
            c + 0.5,
            rows + 0.4,
            f"{c - rows + 1:+d}" if c >= rows else f"{c - rows + 1}",
            ha="center",
        )
    note(ax, -0.3, rows + 0.4, "j − i", ha="right", fontweight="bold")
    start, stride = (
        _start_of(x) + (rows - 1) * x.stride(1),
        (x.stride(0) - x.stride(1), x.stride(1)),
    )
    note(ax, 0, -0.6, f"offset {start}, stride {stride}", fontweight="bold")
    return figure


def draw_layouts(*images: Tensor) -> Drawing:
    """Where the channels of one small image (1, C, H, W) lie in storage, a strip for each tensor."""
    figure, ax = paper((-0.3, images[0].numel() + 0.3), (-2.6 * len(images), 0))
    for row, x in enumerate(images):
        y = -2.6 * row - 2.2
        _, channels, height, width = x.shape
        for c, h, w in product(range(channels), range(height), range(width)):
            at = flat_index((0, c, h, w), x.stride(), _start_of(x))
            slot(ax, at, y, f"{'RGB'[c]}{h}{w}", (RED, GREEN, BLUE)[c])
        note(ax, 0, y + 1.5, f"stride {x.stride()}", fontweight="bold")
    return figure


def draw_misses(x: Tensor, capacities: list[int]) -> Drawing:
    """Lines loaded from memory, by size of the cache, when x and x.T are read in row-major order."""
    figure, ax = plot()
    for y, name, colour, mark in ((x, "x", BLUE, "o"), (x.T, "x.T", RED, "s")):
        loads = [cache_misses(y, lines) for lines in capacities]
        ax.plot(capacities, loads, color=colour, marker=mark, label=name)
    ax.axvline(x.size(0), color=FAINT, linestyle=":")
    ax.annotate(
        "one line for each row",
        (x.size(0), 0.5),
        xycoords=("data", "axes fraction"),
        xytext=(6, 0),
        textcoords="offset points",
        color=INK,
    )
    doublings(ax, capacities)
    ax.set_ylim(0, None)
    ax.set_xlabel("lines that fit in the cache")
    ax.set_ylabel("lines loaded")
    ax.legend(frameon=False, title="read in row-major order")
    return figure
