"""The drawings of chapter 6: graphs read from grad_fn, and what backward leaves behind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from course_utils.reference.autograd import numerical_gradient, saved_bytes

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, RED, Drawing, note, paper, plot

_BOX, _GAP, _BEND, _HIGH = (
    3.4,
    0.9,
    0.9,
    2.3,
)  # width of a node, between two, of a bend; a row's height


def _nodes_below(root: Any) -> dict[Any, int]:
    """Every node of the graph under `root`, with its depth: the longest way there from the root."""
    depth: dict[Any, int] = {}

    def visit(node: Any, at: int) -> None:
        if node is None or depth.get(node, -1) >= at:
            return
        depth[node] = at
        for below, _ in node.next_functions:
            visit(below, at + 1)

    visit(root, 0)
    return depth


def _saved_names(node: Any) -> list[str]:
    """What a node of the graph saved for its backward: the names that torch gives its tensors, or that
    the node itself gives."""
    if (own := getattr(node, "saved_names", None)) is not None:
        return list(own)
    names = [name for name in dir(node) if name.startswith("_saved_")]
    return [
        name.removeprefix("_saved_") for name in names if isinstance(getattr(node, name), Tensor)
    ]


@dataclass(eq=False)
class _Bend:
    """A point that an arrow over more than one row passes through, so that it crosses no node."""

    after: Any  # the node or bend that it leads to


def draw_graph(results: Mapping[str, Tensor], leaves: Mapping[str, Tensor]) -> Drawing:
    """The graph behind each result, read from its grad_fn: where backward goes, and what is saved.

    results, leaves: tensors by name. Several results stand side by side.
    """
    graphs = {name: _layout(y.grad_fn) for name, y in results.items()}
    widths = [
        max(abs(x) for x, _ in placed.values()) * 2 + _BOX + 2.0 for placed in graphs.values()
    ]
    bottom = min(y for placed in graphs.values() for _, y in placed.values())
    figure, ax = paper((0, sum(widths)), (bottom - 0.8, 3.1))
    left = 0.0
    for (name, placed), width in zip(graphs.items(), widths, strict=True):
        middle = left + width / 2
        moved = {node: (middle + x, y) for node, (x, y) in placed.items()}
        _draw_nodes(ax, moved, leaves)
        note(ax, middle, 2.7, f"{name}.backward()", ha="center", color=GREEN, fontweight="bold")
        _arrow(ax, [(middle, 2.4), (middle, 1.15)])
        left += width
    return figure


def _layout(root: Any) -> dict[Any, tuple[float, float]]:
    """Middle of the lower edge of each node and bend: a row for each depth, centred about 0."""
    depth = _nodes_below(root)
    rows: dict[int, list[Any]] = {at: [] for at in range(max(depth.values()) + 1)}
    parents: dict[Any, list[Any]] = {}
    for node, at in depth.items():
        rows[at].append(node)
        for below, _ in node.next_functions:
            way: Any = below
            for between in range(depth.get(below, at) - 1, at, -1):
                way = _Bend(way)
                rows[between].append(way)
                parents.setdefault(way.after, []).append(way)
            if below is not None:
                parents.setdefault(way, []).append(node)
    placed: dict[Any, tuple[float, float]] = {}
    for at, row in rows.items():
        row.sort(key=lambda node: _wish(node, parents.get(node, []), placed))
        widths = [_BEND if isinstance(node, _Bend) else _BOX + _GAP for node in row]
        left = -sum(widths) / 2
        for node, width in zip(row, widths, strict=True):
            placed[node] = (left + width / 2, -at * _HIGH)
            left += width
    return placed


def _wish(node: Any, parents: Sequence[Any], placed: Mapping[Any, tuple[float, float]]) -> float:
    """Where a node would like to stand: beneath its parents, first arguments to the left."""
    wishes = []
    for parent in parents:
        x = placed[parent][0]
        if not isinstance(parent, _Bend):
            targets = [below for below, _ in parent.next_functions]
            x += next((0.1 * i for i, t in enumerate(targets) if t is _end_of(node)), 0.0)
        wishes.append(x)
    return sum(wishes) / max(len(wishes), 1)


def _end_of(node: Any) -> Any:
    while isinstance(node, _Bend):
        node = node.after
    return node


def _draw_nodes(
    ax: Axes, placed: Mapping[Any, tuple[float, float]], leaves: Mapping[str, Tensor]
) -> None:
    bends = [node for node in placed if isinstance(node, _Bend)]
    for node, (x, y) in placed.items():
        if isinstance(node, _Bend):
            continue
        used: set[int] = set()
        for below, _ in node.next_functions:
            if below is None:
                continue
            way = [(x, y - 0.1)]
            at = y
            while at - placed[below][1] > _HIGH + 0.1:
                at -= _HIGH
                here = next(
                    b
                    for b in bends
                    if _end_of(b) is below and abs(placed[b][1] - at) < 0.1 and id(b) not in used
                )
                used.add(id(here))
                way += [(placed[here][0], at + 1.15), (placed[here][0], at - 0.1)]
            _arrow(ax, [*way, (placed[below][0], placed[below][1] + 1.15)])
        _draw_node(ax, node, x, y, leaves)


def _draw_node(ax: Axes, node: Any, x: float, y: float, leaves: Mapping[str, Tensor]) -> None:
    leaf = getattr(node, "variable", None)
    if leaf is None:
        label = node.name().removesuffix("0").removesuffix("Backward")
        saves = _saved_names(node)
        under = "saved: " + ", ".join(saves) if saves else "saved nothing"
    else:
        label = next((name for name, t in leaves.items() if t is leaf), "a leaf")
        under = "adds to .grad"
    ax.add_patch(
        FancyBboxPatch(
            (x - _BOX / 2, y),
            _BOX,
            1.05,
            boxstyle="round,pad=0.1",
            facecolor=(*_hex_rgb(BLUE if leaf is not None else ORANGE), 0.3),
            edgecolor=INK,
            linewidth=0.8,
        )
    )
    note(ax, x, y + 0.74, label, ha="center", fontweight="bold")
    note(ax, x, y + 0.25, under, ha="center", fontsize=8)


def _arrow(ax: Axes, way: Sequence[tuple[float, float]]) -> None:
    """A line through all points, with a head at the last."""
    xs, ys = zip(*way, strict=True)
    ax.plot(xs[:-1], ys[:-1], color=GREEN, lw=1.6)
    ax.annotate(
        "",
        way[-1],
        way[-2],
        arrowprops={"arrowstyle": "-|>", "color": GREEN, "lw": 1.6, "shrinkA": 0},
    )


def _hex_rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def draw_accumulation(added: Sequence[float], kept: Sequence[float]) -> Drawing:
    """What w.grad holds after each backward: with nothing cleared, and cleared before each.

    added, kept: the values of w.grad in the two cases, measured by the caller.
    """
    figure, ax = plot(height=2.8)
    steps = range(1, len(added) + 1)
    own = [now - before for before, now in zip([0.0, *added], added, strict=False)]
    left = [k - 0.2 for k in steps]
    ax.bar(left, own, 0.36, bottom=[0.0, *added[:-1]], color=ORANGE, label="this backward added")
    ax.bar(
        left,
        [0.0, *added[:-1]],
        0.36,
        color=PAPER,
        edgecolor=FAINT,
        hatch="//",
        label="was there before",
    )
    ax.bar([k + 0.2 for k in steps], kept, 0.36, color=BLUE, label="cleared before each")
    for k, a, b in zip(steps, added, kept, strict=True):
        ax.annotate(f"{a:g}", (k - 0.2, a), ha="center", va="bottom", color=INK)
        ax.annotate(f"{b:g}", (k + 0.2, b), ha="center", va="bottom", color=INK)
    ax.set_xticks(list(steps), [f"backward {k}" for k in steps])
    ax.set_ylabel("w.grad")
    ax.set_ylim(0, 1.15 * max(added))
    ax.legend(frameon=False, loc="upper left")
    return figure


def draw_difference_errors(
    f: Callable[[Tensor], Tensor], x: Tensor, exact: Tensor, steps: Sequence[float]
) -> Drawing:
    """Largest error of one-sided and central differences against eps, with float64 arithmetic.

    f: one number from a tensor. exact: its gradient at x.
    """
    x = x.double()
    unit = torch.eye(x.numel(), dtype=x.dtype).view(x.numel(), *x.shape)

    def one_sided(eps: float) -> Tensor:
        slopes = [(f(x + eps * e) - f(x)) / eps for e in unit]
        return torch.stack(slopes).view(x.shape)

    figure, ax = plot()
    for name, estimate, colour, mark in (
        ("one-sided", one_sided, RED, "s"),
        ("central", lambda eps: numerical_gradient(f, x, eps), BLUE, "o"),
    ):
        errors = [float((estimate(eps) - exact).abs().max()) for eps in steps]
        ax.plot(steps, errors, color=colour, marker=mark, markersize=4, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("eps")
    ax.set_ylabel("largest error")
    note(ax, 0.04, 0.12, "rounding", transform=ax.transAxes, color=FAINT)
    note(ax, 0.96, 0.12, "curvature", transform=ax.transAxes, color=FAINT, ha="right")
    ax.legend(frameon=False, title="differences")
    return figure


def draw_saved(functions: Mapping[str, Callable[[Tensor], Tensor]], x: Tensor) -> Drawing:
    """Bytes that the graph of each function of x keeps, in units of x's own bytes."""
    own = x.numel() * x.element_size()
    names = list(functions)
    units = [saved_bytes(f, x) / own for f in functions.values()]
    figure, ax = plot(height=0.5 + 0.34 * len(names))
    ax.barh(names, units, color=BLUE, alpha=0.8)
    for row, n in enumerate(units):
        ax.annotate(f" {n:.3g}", (n, row), va="center", color=INK)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.15 * max(units))
    ax.set_xlabel("bytes saved for backward / bytes of x")
    return figure
