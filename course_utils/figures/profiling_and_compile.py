"""The drawings of chapter 15: a trace, queues of a device, time by size, memory by budget, tiles and programs."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, PAPER, PINK, RED, SKY, Drawing, plot

OTHER = "#c4cad1"
KINDS = {"products": BLUE, "attention": SKY, "norms": GREEN, "GELU": ORANGE, "loss": PINK}
"""Colours of kinds of operations; all others are grey."""


def draw_trace(
    spans: Sequence[tuple[str, float, float]],
    kind_of: Callable[[str], str],
    levels: int = 7,
    named: float = 0.07,
) -> Drawing:
    """A trace of one thread: each span a bar from its start to its end, below the one that it lies in.

    spans: (name, start, end), in any order, in any unit; milliseconds are written. kind_of: name → a
    key of KINDS. levels: how many rows are drawn. named: spans longer than this share of the whole get
    their name.
    """
    first = min(start for _, start, _ in spans)
    whole = max(end for _, _, end in spans) - first
    figure, ax = plot(8.6, 0.42 * levels + 0.9)
    around: list[float] = []
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for name, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
        while around and around[-1] <= start:
            around.pop()
        row = len(around)
        around.append(end)
        if row >= levels:
            continue
        at, width = 1e3 * (start - first), 1e3 * (end - start)
        bars.setdefault((row, kind_of(name)), []).append((at, width))
        if end - start > named * whole:
            ax.text(
                at + width / 2,
                -row - 0.44,
                _short(name, (end - start) / whole),
                ha="center",
                va="center",
                fontsize=7,
                color=PAPER if kind_of(name) == "products" else INK,
                clip_on=True,
            )
    for (row, kind), places in bars.items():
        colour = KINDS.get(kind, OTHER)
        ax.broken_barh(places, (-row - 0.86, 0.86), facecolor=colour, ec=PAPER, lw=0.2, zorder=0.5)
    used = {kind for _, kind in bars}
    ax.set_xlim(0, 1e3 * whole)
    ax.set_ylim(-levels, 0.1)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("ms")
    legend = [Patch(color=c, label=k) for k, c in KINDS.items() if k in used]
    legend.append(Patch(color=OTHER, label="other"))
    ax.legend(
        handles=legend,
        ncols=len(legend),
        frameon=False,
        fontsize=7,
        loc="lower right",
        bbox_to_anchor=(1, 1),
    )
    return figure


def _short(name: str, share: float) -> str:
    """What of a name fits into this share of the width."""
    name = name.removeprefix("aten::").removeprefix("autograd::engine::evaluate_function: ")
    room = int(130 * share)
    return name if len(name) <= room else name[: max(room - 1, 0)] + "…"


Row = tuple[str, Sequence[tuple[float, float]], str]


def draw_queues(panels: Mapping[str, Sequence[Row]], span: float | None = None) -> Drawing:
    """Time lines, one below the other: who was busy when.

    panels: title → rows of (name, (start, end) in seconds, colour); microseconds are written. span:
    where all panels end; by default each ends with its last bar.
    """
    rows = sum(len(rows) for rows in panels.values())
    figure = Drawing(
        figsize=(8.2, 0.42 * rows + 0.75 * len(panels)), facecolor=PAPER, layout="constrained"
    )
    heights = [len(rows) + 1 for rows in panels.values()]
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (title, lines) in zip(axes, panels.items(), strict=True):
        _draw_rows(ax, lines)
        last = span or max((end for _, bars, _ in lines for _, end in bars), default=1.0)
        ax.set_xlim(0, 1e6 * last * 1.01)
        ax.set_title(title, fontsize=9, loc="left", color=INK)
    axes[-1].set_xlabel("µs", fontsize=9)
    return figure


def _draw_rows(ax: Axes, lines: Sequence[Row]) -> None:
    ax.set_facecolor(PAPER)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(colors=INK, labelsize=8)
    for i, (_, bars, colour) in enumerate(lines):
        for start, end in bars:
            box = Rectangle(
                (1e6 * start, -i - 0.4),
                1e6 * (end - start),
                0.8,
                facecolor=colour,
                ec=PAPER,
                lw=0.4,
            )
            ax.add_patch(box)
        ax.axhline(-i - 0.5, color=FAINT, lw=0.3)
    ax.set_ylim(-len(lines) + 0.4, 0.6)
    ax.set_yticks([-i for i in range(len(lines))], [name for name, _, _ in lines], fontsize=8)
    ax.tick_params(axis="y", length=0)


def draw_by_size(
    curves: Mapping[str, Mapping[int, float]],
    labels: tuple[str, str],
    levels: Mapping[str, float] | None = None,
) -> Drawing:
    """Curves through points on logarithmic axes: name → size → value. levels: horizontal lines."""
    figure, ax = plot(6.6, 3.2)
    for (name, points), colour in zip(curves.items(), PALETTE, strict=False):
        ax.plot(list(points), list(points.values()), "o-", ms=4, color=colour, label=name)
    for (name, level), style in zip((levels or {}).items(), (":", "--", "-."), strict=False):
        ax.axhline(level, color=INK, lw=1, ls=style, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    ax.legend(frameon=False, fontsize=8)
    return figure


def draw_budget(
    points: Sequence[tuple[float, float, float]], plain: tuple[float, float]
) -> Drawing:
    """Bytes that are kept for backward against FLOPs of the step, for each budget.

    points: (budget, bytes, FLOPs). plain: bytes and FLOPs without a compiler.
    """
    figure, ax = plot(6.4, 3.2)
    ax.plot(
        [size / 2**20 for _, size, _ in points],
        [flops / plain[1] for _, _, flops in points],
        "o-",
        color=BLUE,
        ms=5,
        label="compiled, with a budget",
    )
    for budget, size, flops in points:
        ax.annotate(
            f"{budget:g}",
            (size / 2**20, flops / plain[1]),
            (5, 5),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    ax.plot([plain[0] / 2**20], [1.0], "s", color=ORANGE, ms=6, label="eager")
    ax.set_xlabel("MiB kept for backward")
    ax.set_ylabel("FLOPs of a step, eager = 1")
    ax.set_xlim(left=0)
    ax.margins(y=0.15)
    ax.legend(frameon=False, fontsize=8)
    return figure


def draw_programs(n: int, block: int) -> Drawing:
    """The elements of a vector, dealt out to programs of a kernel, and those that the mask leaves out."""
    programs = -(-n // block)
    figure, ax = plot(8.2, 1.5)
    for program in range(programs):
        for lane in range(block):
            at, inside = program * block + lane, program * block + lane < n
            colour = (BLUE, ORANGE, GREEN, PINK)[program % 4] if inside else PAPER
            ax.add_patch(
                Rectangle(
                    (at, 0),
                    0.92,
                    1,
                    facecolor=colour,
                    alpha=0.75,
                    ec=FAINT if not inside else PAPER,
                    ls="-" if inside else "--",
                )
            )
            ax.text(
                at + 0.46,
                0.5,
                str(at),
                ha="center",
                va="center",
                fontsize=7,
                color=INK if inside else FAINT,
            )
        ax.text(
            program * block + block / 2,
            1.2,
            f"program {program}",
            ha="center",
            fontsize=8,
            color=INK,
        )
    ax.text(programs * block + 0.3, 0.5, f"masked: ≥ {n}", va="center", fontsize=8, color=FAINT)
    ax.set_xlim(-0.2, programs * block + 0.16 * n)
    ax.set_ylim(-0.2, 1.7)
    ax.set_axis_off()
    return figure


__all__ = [
    "BLUE",
    "GREEN",
    "KINDS",
    "ORANGE",
    "RED",
    "draw_budget",
    "draw_by_size",
    "draw_programs",
    "draw_queues",
    "draw_trace",
]
