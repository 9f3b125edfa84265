"""The drawings of chapter 22: scores by width, masks, bias by distance, tiles, and what heads look at."""

from collections.abc import Collection, Mapping, Sequence

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
_PLAIN = FuncFormatter(lambda value, _: f"{value:,.6g}")


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
    limits: tuple[float, float] = (0.0, 1.0),
    measure: str = "weight",
    keys: Mapping[int, str] | None = None,
) -> Drawing:
    """Tables of numbers as pictures, the darker the larger; rows are queries, columns keys.

    maps: title → (T, S), all on one scale, which a bar shows. ticks: the positions that are numbered.
    limits: the ends of the scale. measure: what the numbers are. keys: position → what is written
    under that key, in place of the ticks.
    """
    columns_named = dict(keys) if keys else {tick: f"{tick}" for tick in ticks}
    rows = -(-len(maps) // columns)
    width = min(len(maps), columns)
    height = (2.75 if keys else 2.6) * rows
    figure = Drawing(figsize=(2.3 * width + 0.8, height), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(rows, width, squeeze=False)
    for n, (title, table) in enumerate(maps.items()):
        ax = axes.flat[n]
        image = ax.imshow(table, cmap="Blues", vmin=limits[0], vmax=limits[1])
        ax.set_title(title, color=INK, fontsize=9)
        ax.set_xticks(list(columns_named), list(columns_named.values()))
        ax.set_yticks(ticks)
        ax.tick_params(length=2, colors=INK, labelsize=7)
        if keys:
            for label in ax.get_xticklabels():
                label.set(rotation=25, ha="right", rotation_mode="anchor", fontsize=6)
        if n % columns == 0:
            ax.set_ylabel("query", color=INK, fontsize=8)
        if n + columns >= len(maps):
            ax.set_xlabel("key", color=INK, fontsize=8)
    for ax in axes.flat[len(maps) :]:
        ax.set_axis_off()
    bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
    bar.set_label(measure, color=INK, fontsize=8)
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
    *,
    pattern: str,
    named: Mapping[str, Collection[int]] | None = None,
) -> Drawing:
    """A point for each head: how much of its weight is where we looked, and what its absence costs.

    looks, matters: layer → a number for each head. together: what the absence of several costs, as
    lines. pattern: where we looked. named: layer → the heads that get their number written beside
    them; without it all do. The costs are on a logarithmic axis, which is linear below 0.001.
    """
    figure, ax = plot(6.4, 3.6)
    for (layer, x), mark, colour in zip(looks.items(), _MARKS, PALETTE, strict=False):
        y = matters[layer]
        ax.scatter(x, y, color=colour, marker=mark, label=layer, s=45)
        for head, (share, cost) in enumerate(zip(x, y, strict=True)):
            if named is not None and head not in named.get(layer, ()):
                continue
            right = bool(head % 2) or share < 0.12  # neighbours' labels on both sides
            ax.annotate(
                f"head {head}",
                (share, cost),
                (7 if right else -7, 0),
                textcoords="offset points",
                fontsize=8,
                color=INK,
                ha="left" if right else "right",
                va="center",
            )
    for name, cost in (together or {}).items():
        ax.axhline(cost, color=INK, lw=1, linestyle="--")
        ax.annotate(
            name,
            (1.0, cost),
            (0, -4),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color=INK,
        )
    costs = [cost for row in (*matters.values(), (together or {}).values()) for cost in row]
    ax.set_xlim(-0.02, 1.02)
    if min(costs) > 1e-3:
        ax.set_yscale("log")
        scale = ""
    else:
        ax.set_yscale("symlog", linthresh=1e-3)
        ax.set_ylim(min(-2e-4, 1.2 * min(costs)), 2 * max(costs))
        scale = "; linear below 0.001"
    ax.yaxis.set_major_formatter(_PLAIN)
    ax.set_xlabel(f"share of the weight on {pattern}")
    ax.set_ylabel(f"loss rises by (nats{scale})")
    ax.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
