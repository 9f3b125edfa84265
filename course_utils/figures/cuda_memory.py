"""The drawings of chapter 14: a step's tenants over time, segments of addresses, peaks and fixes."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_utils.reference.cuda_memory import bytes_by_tenant

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, PINK, RED, SKY, Drawing, plot

_MIB = 2**20
_COLOURS = {
    "parameters": INK,
    "optimizer state": PINK,
    "gradients": ORANGE,
    "activations": BLUE,
    "temporary": GREEN,
}
_HATCHES = {
    "parameters": "",
    "optimizer state": "//",
    "gradients": "\\\\",
    "activations": "",
    "temporary": "xx",
}


def draw_timeline(
    trace: Sequence[dict[str, Any]], resident: Mapping[str, int], unit: int = _MIB
) -> Drawing:
    """Bytes of each tenant over one step, stacked; marks of the trace are the phases' ends.

    trace: of one step. resident: bytes by tenant that were there before, on which it stands.
    """
    figure, ax = plot(7.4, 3.6)
    lines = bytes_by_tenant(list(trace))
    names = [n for n in _COLOURS if n in lines or resident.get(n)]
    steps = range(len(trace))
    stack = [
        [(resident.get(n, 0) + size) / unit for size in lines.get(n, [0] * len(trace))]
        for n in names
    ]
    areas = ax.stackplot(
        steps, stack, labels=names, colors=[_COLOURS[n] for n in names], step="post", lw=0
    )
    for area, name in zip(areas, names, strict=True):
        area.set_alpha(0.75)
        area.set_hatch(_HATCHES[name])
        area.set_edgecolor(PAPER)
    totals = [sum(sizes) for sizes in zip(*stack, strict=True)]
    peak = totals.index(max(totals))
    ax.plot([peak], [totals[peak]], "v", color=RED, ms=7)
    ax.annotate(
        f"peak {totals[peak]:.1f}",
        (peak, totals[peak]),
        xytext=(6, 4),
        textcoords="offset points",
        color=INK,
        fontsize=9,
    )
    _phases(ax, trace)
    ax.set_xlim(0, len(trace))
    ax.set_ylim(0, max(totals) * 1.18)
    ax.set_ylabel("MiB" if unit == _MIB else "GiB", color=INK)
    ax.set_xlabel("allocations and frees, in order", color=INK)
    _legend_as_stacked(ax)
    return figure


def _legend_as_stacked(ax: Axes) -> None:
    """The names beside the figure, in the order in which the layers lie."""
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(
        handles[::-1],
        labels[::-1],
        frameon=False,
        fontsize=9,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )


def _phases(ax: Axes, trace: Sequence[Mapping[str, Any]]) -> None:
    """A dashed line at each mark, and the phase's name before it."""
    before = 0
    for i, entry in enumerate(trace):
        if entry["action"] == "snapshot":
            ax.axvline(i, color=FAINT, ls="--", lw=0.8)
            if i - before > 0.04 * len(trace):
                ax.text(
                    (before + i) / 2,
                    0.99,
                    entry.get("name", ""),
                    transform=ax.get_xaxis_transform(),
                    ha="center",
                    va="top",
                    fontsize=9,
                    color=INK,
                )
            before = i


def draw_rows(rows: Sequence[tuple[Any, ...]]) -> Drawing:
    """The rows of training_step_timeline as stacked steps."""
    figure, ax = plot(7.4, 3.0)
    names = ("parameters", "gradients", "optimizer state", "activations")
    order = (0, 2, 1, 3)
    stack = [[row[1 + i] / 2**10 for row in rows] for i in order]
    areas = ax.stackplot(
        range(len(rows)),
        stack,
        labels=[names[i] for i in order],
        colors=[_COLOURS[names[i]] for i in order],
        step="post",
        lw=0,
    )
    for area, i in zip(areas, order, strict=True):
        area.set_alpha(0.75)
        area.set_hatch(_HATCHES[names[i]])
        area.set_edgecolor(PAPER)
    loss = [row[0] for row in rows].index("loss")
    ax.axvline(loss, color=FAINT, ls="--", lw=0.8)
    ax.text(
        loss, 0.99, " loss", transform=ax.get_xaxis_transform(), va="top", fontsize=9, color=INK
    )
    ax.set_xlim(0, len(rows) - 1)
    ax.set_ylim(0, max(map(sum, zip(*stack, strict=True))) * 1.1)
    ax.set_ylabel("KiB", color=INK)
    ax.set_xlabel("moments of the step", color=INK)
    _legend_as_stacked(ax)
    return figure


def draw_segments(snapshots: Mapping[str, Mapping[str, Any]]) -> Drawing:
    """What the allocator has reserved: a bar for each segment, its blocks in use filled.

    snapshots: by title, as `CudaAllocator.snapshot()` or torch.cuda.memory._snapshot() gives them.
    """
    rows = sum(len(s["segments"]) for s in snapshots.values())
    height = 0.5 + 0.34 * rows + 0.55 * len(snapshots)
    figure = Drawing(figsize=(7.4, height), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(
        len(snapshots),
        1,
        squeeze=False,
        sharex=True,
        gridspec_kw={"height_ratios": [len(s["segments"]) + 0.6 for s in snapshots.values()]},
    )[:, 0]
    widest = max(s["total_size"] for snap in snapshots.values() for s in snap["segments"]) / _MIB
    for ax, (title, snapshot) in zip(axes, snapshots.items(), strict=True):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(colors=INK)
        ax.set_yticks([])
        ax.set_title(title, loc="left", fontsize=10, color=INK)
        for row, segment in enumerate(reversed(snapshot["segments"])):
            _bar(ax, segment, row)
        ax.set_xlim(-0.01 * widest, 1.02 * widest)
        ax.set_ylim(-0.15, len(snapshot["segments"]) - 0.1)
    axes[-1].set_xlabel("MiB from the segment's beginning", color=INK)
    return figure


def _bar(ax: Axes, segment: Mapping[str, Any], row: int) -> None:
    at = 0.0
    for block in segment["blocks"]:
        size = block["size"] / _MIB
        used = block["state"] != "inactive"
        ax.add_patch(
            Rectangle(
                (at, row),
                size,
                0.75,
                facecolor=SKY if used else PAPER,
                edgecolor=INK if used else FAINT,
                lw=0.7,
                hatch="" if used else "///",
            )
        )
        at += size
    ax.add_patch(
        Rectangle((0, row), segment["total_size"] / _MIB, 0.75, fill=False, edgecolor=INK, lw=1.6)
    )


def draw_sweep(curves: Mapping[str, Mapping[int, int]]) -> Drawing:
    """Peak against the length of a segment, one curve for each depth; its lowest point is marked."""
    figure, ax = plot(6.8, 3.2)
    for (name, peaks), colour, style in zip(
        curves.items(), (BLUE, ORANGE, GREEN, PINK), ("-", "--", "-.", ":"), strict=False
    ):
        ax.plot(
            list(peaks), [p / _MIB for p in peaks.values()], style, color=colour, lw=2, label=name
        )
        best = min(peaks, key=peaks.__getitem__)
        ax.plot([best], [peaks[best] / _MIB], "o", color=colour, ms=7)
    ax.set_xscale("log", base=2)
    ax.set_xticks([1, 2, 3, 4, 6, 9, 16, 36], ["1", "2", "3", "4", "6", "9", "16", "36"])
    ax.set_xlabel("layers in a segment", color=INK)
    ax.set_ylabel("peak, MiB", color=INK)
    ax.set_ylim(0)
    ax.legend(frameon=False, fontsize=9)
    return figure


def draw_fixes(peaks: Mapping[str, int], capacity: int) -> Drawing:
    """Peak reserved memory after each change, against what the card has."""
    figure, ax = plot(7.0, 0.6 + 0.42 * len(peaks))
    names = list(peaks)
    sizes = [peaks[n] / 2**30 for n in names]
    room = capacity / 2**30
    colours = [RED if size > room else GREEN for size in sizes]
    ax.barh(range(len(names)), sizes, color=colours, alpha=0.75, height=0.65)
    for i, size in enumerate(sizes):
        verdict = "does not fit" if size > room else "fits"
        ax.text(size, i, f" {size:.1f}, {verdict}", va="center", fontsize=9, color=INK)
    ax.axvline(room, color=INK, ls="--", lw=1.2)
    ax.set_yticks(range(len(names)), names, color=INK, fontsize=9)
    ax.invert_yaxis()
    ax.set_xlim(0, max(sizes) * 1.25)
    ax.set_xlabel("GiB reserved at the peak; dashed: the card", color=INK)
    return figure
