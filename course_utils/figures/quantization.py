"""The drawings of chapter 27: grids of integers, errors by bits, outliers, packed bytes, what a column pays."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle
from torch import Tensor

from .style import BLUE, FAINT, INK, ORANGE, PALETTE, PAPER, Drawing, note, paper, plot


def draw_grids(
    x: Sequence[float], grids: Mapping[str, Sequence[float]], span: tuple[float, float]
) -> Drawing:
    """Numbers on a line, and below it the values that each grid has.

    grids: name → its values. span: what is drawn of the line; values beyond it are left out.
    """
    low, high = span
    width = high - low
    figure, ax = paper((low - 0.42 * width, high + 0.03 * width), (-len(grids) - 0.6, 1.1))
    ax.set_aspect("auto")
    figure.set_size_inches(8.2, 0.55 * (len(grids) + 2))
    note(ax, low - 0.02 * width, 0.35, "the numbers", ha="right", fontsize=9)
    ax.plot(list(x), [0.35] * len(x), "|", color=ORANGE, ms=16, mew=1.2, alpha=0.6)
    for n, (name, values) in enumerate(grids.items(), start=1):
        note(ax, low - 0.02 * width, -n + 0.35, name, ha="right", fontsize=9)
        ax.plot([low, high], [-n + 0.35] * 2, color=FAINT, lw=0.6)
        inside = [v for v in values if low <= v <= high]
        ax.plot(inside, [-n + 0.35] * len(inside), "|", color=BLUE, ms=11, mew=1.3)
        zeros = [v for v in inside if v == 0]
        ax.plot(zeros, [-n + 0.35] * len(zeros), "o", color=INK, ms=5)
    note(ax, 0, -len(grids) - 0.3, "● zero, exactly", ha="center", color=FAINT, fontsize=8)
    return figure


def draw_curves(
    curves: Mapping[str, Mapping[float, float]],
    labels: tuple[str, str],
    level: tuple[str, float] | None = None,
    log: str = "",
) -> Drawing:
    """Curves through points: name → x → y. level: a horizontal line. log: "x", "y" or "xy"."""
    figure, ax = plot(6.4, 3.1)
    for (name, points), colour in zip(curves.items(), PALETTE, strict=False):
        ax.plot(list(points), list(points.values()), "o-", ms=4, color=colour, label=name)
    if level is not None:
        ax.axhline(level[1], color=INK, lw=1, ls=":", label=level[0])
    if "x" in log:
        ax.set_xscale("log", base=2)
    if "y" in log:
        ax.set_yscale("log")
    if "x" in log:
        ticks = sorted({x for points in curves.values() for x in points})
        ax.set_xticks(ticks, [f"{x:g}" for x in ticks])
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    ax.legend(frameon=False, fontsize=8)
    return figure


def draw_channels(panels: Mapping[str, Tensor]) -> Drawing:
    """The largest |input| of each feature, a panel for each model, with scales of their own."""
    figure = Drawing(figsize=(4.2 * len(panels), 2.7), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, largest) in zip(axes, panels.items(), strict=True):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right"]].set_visible(False)
        ax.bar(range(len(largest)), largest.tolist(), width=1.0, color=BLUE)
        ax.axhline(largest.median().item(), color=ORANGE, lw=1.5, label="median feature")
        ax.set_ylim(0, 1.18 * largest.max().item())
        ax.set_title(title, color=INK, fontsize=10)
        ax.set_xlabel("input feature", color=INK, fontsize=9)
        ax.legend(frameon=False, fontsize=8, loc="upper right")
    axes[0].set_ylabel("largest |x| over the tokens", color=INK, fontsize=9)
    return figure


def draw_packed(q: Sequence[int]) -> Drawing:
    """Integers from −8 to 7, their four bits, and the bytes that two of them make."""
    figure, ax = paper((-2.6, 2.2 * len(q)), (-3.4, 1.4))
    for row, name in ((0.35, "integer"), (-1.0, "four bits"), (-2.6, "byte")):
        note(ax, -0.3, row, name, ha="right", color=FAINT, fontsize=9)
    for i, value in enumerate(q):
        left, colour = 2.2 * i, BLUE if i % 2 == 0 else ORANGE
        note(ax, left + 1, 0.35, str(value).replace("-", "−"), ha="center", fontsize=11)
        for bit in range(4):
            on = (value & 15) >> (3 - bit) & 1
            box = (left + 0.5 * bit, -1.3), 0.46, 0.6
            ax.add_patch(Rectangle(*box, facecolor=colour, alpha=0.75 if on else 0.2, lw=0))
            note(ax, left + 0.5 * bit + 0.23, -1.0, str(on), ha="center", fontsize=8)
        if i % 2 == 0:
            byte = (value & 15) << 4 | (q[i + 1] & 15)
            ax.add_patch(Rectangle((left, -3.0), 4.16, 0.8, fill=False, ec=INK))
            note(ax, left + 2.08, -2.6, f"0x{byte:02X}", ha="center", fontsize=11)
            for half in (0, 1):
                ax.annotate(
                    "",
                    (left + 1.1 + 1.96 * half, -2.18),
                    (left + 0.98 + 2.2 * half, -1.34),
                    arrowprops={"arrowstyle": "->", "color": FAINT, "lw": 1},
                )
    return figure


def draw_errors(panels: Mapping[str, Tensor], limit: float, first_column: int = 0) -> Drawing:
    """Errors of a few weights, rows by columns, in colours from −limit to limit."""
    figure = Drawing(figsize=(4.0 * len(panels), 2.9), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, errors) in zip(axes, panels.items(), strict=True):
        rows, columns = errors.shape
        places = (first_column - 0.5, first_column + columns - 0.5, rows - 0.5, -0.5)
        shown = ax.imshow(
            errors.tolist(), cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", extent=places
        )
        ax.set_title(title, color=INK, fontsize=10)
        ax.set_xlabel("column (input feature)", color=INK, fontsize=9)
    axes[0].set_ylabel("row (output feature)", color=INK, fontsize=9)
    figure.colorbar(shown, ax=axes, shrink=0.8, label="in steps of the grid")
    return figure
