"""The drawings of chapter 9: what padding wastes, what is read of a file, who sees whom, and how far a stream mixes.

They draw what they are given, and compute nothing that the chapter's exercises compute.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from .style import BLUE, FAINT, INK, ORANGE, PALETTE, PAPER, RED, Drawing, plot

_COLUMNS = 256


def draw_rows(panels: Mapping[str, Tensor]) -> Drawing:
    """Batches of tokens, a colour for each document, white for padding, a panel for each batch.

    panels: by title, document numbers (B, T), −1 for padding.
    """
    heights = [1.5 + len(numbers) for numbers in panels.values()]  # a title and an axis; the rows
    figure = Drawing(
        figsize=(6.4, 0.4 + 0.25 * sum(heights)), facecolor=PAPER, layout="constrained"
    )
    axes = figure.subplots(len(panels), 1, height_ratios=heights)
    for ax, (title, numbers) in zip(axes, panels.items(), strict=True):
        for row, line in enumerate(numbers.tolist()):
            for place, number in enumerate(line):
                colour = PAPER if number < 0 else PALETTE[number % len(PALETTE)]
                ax.barh(
                    row, 1, left=place, color=colour, edgecolor=FAINT, linewidth=0.3, height=0.9
                )
        ax.set_title(title, loc="left", color=INK, fontsize=10)
        ax.invert_yaxis()
        ax.set_yticks([])
        ax.set_xlim(0, max(n.size(1) for n in panels.values()) + 0.1)
        ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_xlabel("place in the row")
    return figure


def draw_pages(panels: Mapping[str, np.ndarray]) -> Drawing:
    """A file as a grid of pages, from the first to the last along the rows; those in memory are drawn.

    panels: by title, for each page whether it is.
    """
    figure = Drawing(figsize=(6.4, 2.6), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(panels))
    for ax, (title, pages) in zip(axes, panels.items(), strict=True):
        rows = -(-len(pages) // _COLUMNS)
        grid = np.zeros(rows * _COLUMNS)
        grid[: len(pages)] = pages
        at = np.flatnonzero(grid)
        ax.plot(at % _COLUMNS, at // _COLUMNS, "s", color=BLUE, markersize=2.2)
        ax.set_xlim(0, _COLUMNS)
        ax.set_ylim(rows, 0)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_title(
            f"{title}\n{int(pages.sum()):,} of {len(pages):,} pages", color=INK, fontsize=9
        )
    return figure


def draw_mask(mask: Tensor, numbers: Sequence[int]) -> Drawing:
    """A mask of (T, T): dark where the query, a row, may attend to the key, a column.

    numbers: of each token's document, which colours it on both axes.
    """
    figure, ax = plot(3.6, 3.6)
    ax.imshow(mask.float().numpy(), cmap="Blues", vmin=0, vmax=1.4)
    names = [str(number) for number in numbers]
    ax.set_xticks(range(len(names)), names)
    ax.set_yticks(range(len(names)), names)
    for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        for label, number in zip(labels, numbers, strict=True):
            label.set_color(PALETTE[number % len(PALETTE)])
    ax.set_xlabel("key: document of the token")
    ax.set_ylabel("query: document of the token")
    ax.set_xticks(np.arange(len(names)) - 0.5, minor=True)
    ax.set_yticks(np.arange(len(names)) - 0.5, minor=True)
    ax.grid(which="minor", color=FAINT, linewidth=0.4)
    ax.tick_params(which="minor", length=0)
    return figure


def draw_throughput(loaders: Mapping[str, float], step: float) -> Drawing:
    """Seconds that each way of loading takes for a batch, and those of a training step as a line.

    loaders: by name, seconds a batch. step: seconds of a training step.
    """
    figure, ax = plot(6.4, 0.6 + 0.45 * len(loaders))
    names = list(loaders)
    for row, name in enumerate(names):
        late = loaders[name] > step
        ax.axhline(row, color=FAINT, linewidth=0.5, zorder=0)
        ax.plot(1e3 * loaders[name], row, "o", color=RED if late else BLUE, markersize=8)
    ax.axvline(1e3 * step, color=INK, linestyle="--", linewidth=1.2)
    ax.text(1e3 * step, -0.7, " one training step", color=INK, fontsize=9, va="center")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_ylim(len(names) - 0.5, -1.0)
    ax.set_xscale("log")
    ax.set_xlabel("ms a batch (logarithmic)")
    return figure


def draw_mixing(orders: Mapping[str, Sequence[int]]) -> Drawing:
    """Where each item of a stream comes out, a panel for each order.

    orders: by title, the items (numbered as they went in) as they came out.
    """
    figure = Drawing(figsize=(6.4, 2.3), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(orders), sharey=True)
    for ax, (title, order) in zip(axes, orders.items(), strict=True):
        ax.plot(range(len(order)), order, ".", color=ORANGE, markersize=2)
        ax.set_title(title, color=INK, fontsize=9)
        ax.set_xlabel("place in the output")
        ax.set_aspect("equal")
    axes[0].set_ylabel("place in the stream")
    return figure
