"""The drawings of chapter 22: scores by width, masks, bias by distance, tiles, and what heads look at."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator
from torch import Tensor

from .style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PAPER,
    RED,
    Drawing,
    doublings,
    note,
    paper,
    plot,
)

_MARKS = ("o", "s", "^", "D", "v", "x")
_PLAIN = FuncFormatter(lambda value, _: f"{value:,.4g}")


def draw_by_width(
    widths: Sequence[int], panels: Mapping[str, Mapping[str, Sequence[float]]]
) -> Drawing:
    """A panel for each quantity, a curve for each way to scale, against the features d.

    panels: title → name of the curve → its value at each width.
    """
    figure = Drawing(figsize=(8.4, 2.9), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, curves) in zip(axes, panels.items(), strict=True):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right"]].set_visible(False)
        for (name, values), mark, colour in zip(curves.items(), _MARKS, PALETTE, strict=False):
            ax.plot(widths, values, color=colour, marker=mark, label=name)
        doublings(ax, widths)
        ax.set_title(title, color=INK, fontsize=10)
        ax.set_xlabel("features d")
    axes[0].set_yscale("log", base=4)
    axes[0].yaxis.set_major_formatter(_PLAIN)
    axes[0].yaxis.set_minor_locator(NullLocator())
    axes[0].legend(frameon=False, fontsize=9)
    return figure


def draw_masks(masks: Mapping[str, Tensor]) -> Drawing:
    """Masks side by side: filled where the query (row) may attend to the key (column).

    masks: title → (T, S) bools. A row that sees nothing is marked.
    """
    wide = max(mask.size(1) for mask in masks.values()) + 2.6
    height = max(mask.size(0) for mask in masks.values())
    figure, ax = paper((-1.8, len(masks) * wide - 1.0), (-1.4, height + 1.6))
    for n, (title, mask) in enumerate(masks.items()):
        left, (T, S) = n * wide, mask.shape
        for t in range(T):
            y = height - 1 - t
            for s in range(S):
                fill = BLUE if mask[t, s] else PAPER
                ax.add_patch(Rectangle((left + s, y), 1, 1, facecolor=fill, alpha=0.7, lw=0))
                ax.add_patch(Rectangle((left + s, y), 1, 1, fill=False, edgecolor=INK, lw=0.8))
            if not mask[t].any():
                ax.plot([left + 0.3, left + S - 0.3], [y + 0.5] * 2, color=RED, lw=2)
                note(ax, left + S + 0.2, y + 0.5, "∅", color=RED)
            note(ax, left - 0.3, y + 0.5, f"{t}", ha="right", color=FAINT, fontsize=8)
        for s in range(S):
            note(ax, left + s + 0.5, height - T - 0.4, f"{s}", ha="center", color=FAINT, fontsize=8)
        note(ax, left + S / 2, height + 0.8, title, ha="center", fontweight="bold")
        note(ax, left + S / 2, height - T - 1.0, "key", ha="center", color=FAINT, fontsize=9)
        middle = left - 1.3, height - T / 2
        ax.text(*middle, "query", rotation=90, ha="center", va="center", color=FAINT, fontsize=9)
    return figure


def draw_curves(
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    labels: tuple[str, str],
    log: bool = False,
    unit: float = 1,
) -> Drawing:
    """Curves over one axis. labels: of x and of y. log: both axes, to base 2. unit: what y is divided by."""
    figure, ax = plot(6.4, 3.0)
    for (name, values), mark, colour in zip(curves.items(), _MARKS, PALETTE, strict=False):
        y = [value / unit for value in values]
        ax.plot(x, y, color=colour, label=name, marker=mark if len(x) < 20 else "")
    if log:
        doublings(ax, x)
        ax.set_yscale("log", base=4)
        ax.yaxis.set_major_formatter(_PLAIN)
        ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    ax.legend(frameon=False, fontsize=9)
    return figure


def draw_maps(
    maps: Mapping[str, Tensor],
    columns: int = 4,
    ticks: Sequence[int] = (),
    shared: bool = False,
) -> Drawing:
    """Tables of numbers as pictures, the darker the larger; rows are queries, columns keys.

    maps: title → (T, S). ticks: the positions that are numbered. shared: all have one scale, from 0 to
    1, and a bar that shows it; otherwise each has its own.
    """
    rows = -(-len(maps) // columns)
    width = min(len(maps), columns)
    figure = Drawing(figsize=(2.3 * width + 0.8, 2.6 * rows), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(rows, width, squeeze=False)
    limits = {"vmin": 0.0, "vmax": 1.0} if shared else {}
    for n, (title, table) in enumerate(maps.items()):
        ax = axes.flat[n]
        image = ax.imshow(torch.nan_to_num(table, neginf=float("nan")), cmap="Blues", **limits)
        ax.set_title(title, color=INK, fontsize=9)
        ax.set_xticks(ticks)
        ax.set_yticks(ticks)
        ax.tick_params(length=2, colors=INK, labelsize=7)
        if n % columns == 0:
            ax.set_ylabel("query", color=INK, fontsize=8)
        if n + columns >= len(maps):
            ax.set_xlabel("key", color=INK, fontsize=8)
    for ax in axes.flat[len(maps) :]:
        ax.set_axis_off()
    if shared:
        bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
        bar.set_label("weight", color=INK, fontsize=8)
        bar.ax.tick_params(labelsize=7)
    return figure


def draw_tiles(T: int, S: int, block_q: int, block_k: int) -> Drawing:
    """The tiles of causal attention: computed whole, computed and masked in part, skipped.

    The T queries are the last T of the S positions.
    """
    figure, ax = paper((-2.4, S / 2 + 8.5), (-1.2, T / 2 + 0.6))
    legend = {"whole": GREEN, "with a mask": ORANGE, "skipped": PAPER}
    for i in range(0, T, block_q):
        for j in range(0, S, block_k):
            height, width = min(block_q, T - i), min(block_k, S - j)
            first, last = i + S - T, i + height - 1 + S - T
            kind = "skipped" if j > last else "whole" if j + width - 1 <= first else "with a mask"
            box = (j / 2, (T - i - height) / 2), width / 2, height / 2
            ax.add_patch(Rectangle(*box, facecolor=legend[kind], alpha=0.6, lw=0))
            ax.add_patch(Rectangle(*box, fill=False, edgecolor=INK, lw=1))
    diagonal = [(-0.0 + S - T) / 2, S / 2]
    ax.plot(diagonal, [T / 2, 0], color=INK, lw=1, linestyle=":")
    note(ax, S / 4, -0.6, "keys", ha="center", color=FAINT)
    ax.text(-0.8, T / 4, "queries", rotation=90, ha="center", va="center", color=FAINT)
    for n, (label, colour) in enumerate(legend.items()):
        y = T / 2 - 1.2 - 1.4 * n
        ax.add_patch(Rectangle((S / 2 + 1, y), 1, 0.8, facecolor=colour, alpha=0.6, lw=0))
        ax.add_patch(Rectangle((S / 2 + 1, y), 1, 0.8, fill=False, edgecolor=INK, lw=1))
        note(ax, S / 2 + 2.4, y + 0.4, label)
    return figure


def draw_heads(
    looks: Mapping[str, Sequence[float]],
    matters: Mapping[str, Sequence[float]],
    together: Mapping[str, float] | None = None,
) -> Drawing:
    """A point for each head: how much of its weight is where we looked, and what its absence costs.

    looks, matters: layer → a number for each head. together: what the absence of several costs, as
    lines. The costs are on a logarithmic axis; what is below 0.001 is drawn at 0.001.
    """
    figure, ax = plot(6.4, 3.6)
    for (layer, x), mark, colour in zip(looks.items(), _MARKS, PALETTE, strict=False):
        y = [max(cost, 1e-3) for cost in matters[layer]]
        ax.scatter(x, y, color=colour, marker=mark, label=layer, s=45)
        for head, (share, cost) in enumerate(zip(x, y, strict=True)):
            side = 1 if head % 2 else -1  # neighbours' labels on both sides
            ax.annotate(
                f"{head}",
                (share, cost),
                (7 * side, 0),
                textcoords="offset points",
                fontsize=8,
                color=INK,
                ha="left" if head % 2 else "right",
                va="center",
            )
    for name, cost in (together or {}).items():
        ax.axhline(cost, color=INK, lw=1, linestyle="--")
        ax.annotate(
            name, (0.0, cost), (0, -4), textcoords="offset points", va="top", fontsize=8, color=INK
        )
    ax.set_xlim(-0.02, 1.02)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(_PLAIN)
    ax.set_xlabel("share of the weight on the pattern")
    ax.set_ylabel("loss rises by (nats)")
    ax.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
