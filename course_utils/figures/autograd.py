"""The drawings of chapter 6: graphs read from grad_fn, and what backward leaves behind."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from course_utils.reference.autograd import numerical_gradient, saved_bytes

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, RED, Drawing, note, paper, plot

WIDE, HIGH = 4.2, 2.3  # a node's share of the paper, in squares


def nodes_below(root: Any) -> dict[Any, int]:
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


def saved_names(node: Any) -> list[str]:
    """What a node of the graph saved for its backward: the names that torch gives its tensors."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    return [
        name.removeprefix("_saved_") for name in names if isinstance(getattr(node, name), Tensor)
    ]


def draw_graph(y: Tensor, names: Mapping[str, Tensor], title: str = "y") -> Drawing:
    """The graph behind y, read from its grad_fn: where backward goes, and what each node saved.

    names: the leaves by name.
    """
    placed = layout(y.grad_fn)
    width = max(x for x, _ in placed.values()) + WIDE
    bottom = min(y for _, y in placed.values()) - 0.8
    figure, ax = paper((-0.4, width + 0.1), (bottom, 3.1))
    draw_nodes(ax, placed, names)
    x, top = placed[y.grad_fn]
    ax.annotate(
        "",
        (x + (WIDE - 0.6) / 2, top + 1.15),
        (x + (WIDE - 0.6) / 2, 2.6),
        arrowprops={"arrowstyle": "-|>", "color": GREEN, "lw": 1.6},
    )
    note(ax, x + WIDE / 2 + 0.1, 2.4, f"{title}.backward()", color=GREEN, fontweight="bold")
    return figure


def layout(root: Any) -> dict[Any, tuple[float, float]]:
    """Lower left corner of each node: one row for each depth, a node near those that lead to it."""
    depth = nodes_below(root)
    rows: dict[int, list[Any]] = {}
    for node, at in depth.items():
        rows.setdefault(at, []).append(node)
    widest = max(map(len, rows.values()))
    placed: dict[Any, tuple[float, float]] = {}

    def wish(node: Any) -> float:
        above = [
            (placed[p][0], i)
            for p in placed
            for i, (below, _) in enumerate(p.next_functions)
            if below is node
        ]
        return sum(x + 0.1 * i for x, i in above) / max(len(above), 1)

    for at in sorted(rows):
        row = sorted(rows[at], key=wish)
        left = (widest - len(row)) * WIDE / 2
        placed |= {node: (left + i * WIDE, -at * HIGH) for i, node in enumerate(row)}
    return placed


def draw_nodes(
    ax: Axes, placed: dict[Any, tuple[float, float]], names: Mapping[str, Tensor]
) -> None:
    box = WIDE - 0.6
    for node, (x, y) in placed.items():
        for below, _ in node.next_functions:
            if below is None:
                continue
            to_x, to_y = placed[below]
            ax.annotate(
                "",
                (to_x + box / 2, to_y + 1.15),
                (x + box / 2, y - 0.1),
                arrowprops={"arrowstyle": "-|>", "color": GREEN, "lw": 1.6},
            )
        leaf = getattr(node, "variable", None)
        saves = saved_names(node)
        if leaf is None:
            label = node.name().removesuffix("0").removesuffix("Backward")
            under = "saved: " + ", ".join(saves) if saves else "saved nothing"
        else:
            label = next((n for n, t in names.items() if t is leaf), "a leaf")
            under = "adds to .grad"
        ax.add_patch(
            FancyBboxPatch(
                (x, y),
                box,
                1.05,
                boxstyle="round,pad=0.1",
                facecolor=(*hex_rgb(BLUE if leaf is not None else ORANGE), 0.3),
                edgecolor=INK,
                linewidth=0.8,
            )
        )
        note(ax, x + box / 2, y + 0.74, label, ha="center", fontweight="bold")
        note(ax, x + box / 2, y + 0.25, under, ha="center", fontsize=8)


def hex_rgb(colour: str) -> tuple[float, float, float]:
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
