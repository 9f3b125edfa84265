"""The drawings of chapter 18: who keeps what, when a unit is whole, and how a checkpoint is cut anew."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.patches import Patch

from .style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PAPER,
    Drawing,
    doublings,
    note,
    paper,
    plot,
    slot,
)

_KINDS = (("parameters", BLUE), ("gradients", ORANGE), ("optimizer's state", GREEN))


def draw_stages(held: Mapping[str, tuple[int, int, int]]) -> Drawing:
    """Bytes that one rank keeps, as a bar for each stage: parameters, gradients, optimizer's state."""
    figure, ax = plot(7.0, 0.62 * len(held) + 1.0)
    names = list(held)[::-1]
    left = [0.0] * len(names)
    for k, (label, colour) in enumerate(_KINDS):
        widths = [held[name][k] / 2**20 for name in names]
        ax.barh(names, widths, left=left, color=colour, height=0.6, label=label, edgecolor=PAPER)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for y, total in enumerate(left):
        ax.text(total, y, f"  {total:,.2f}", va="center", color=INK, fontsize=9)
    ax.set_xlim(0, 1.12 * max(left))
    ax.set_xlabel("MiB on each rank", color=INK)
    ax.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def draw_flat(sizes: Sequence[int], world_size: int) -> Drawing:
    """Tensors laid end to end, with padding, and which rank keeps which of the elements."""
    numel = sum(sizes)
    share = -(-numel // world_size)
    owners = [i for i, size in enumerate(sizes) for _ in range(size)]
    length = share * world_size
    figure, ax = paper((-3.6, length + 0.6), (-2.6, 3.0))
    note(ax, -3.5, 1.5, "flat tensor")
    for k in range(length):
        padding = k >= numel
        fill = None if padding else PALETTE[owners[k]]
        slot(ax, k, 1, "0" if padding else "abcdef"[owners[k]], fill)
    start = 0
    for i, size in enumerate(sizes):
        note(ax, start + size / 2, 2.5, f"{'abcdef'[i]}: {size}", ha="center", fontsize=9)
        start += size
    if length > numel:
        note(ax, (numel + length) / 2, 2.5, "padding", ha="center", fontsize=9, color=FAINT)
    note(ax, -3.5, -0.7, "shares")
    for rank in range(world_size):
        x = rank * share
        for k in range(share):
            padding = x + k >= numel
            fill = None if padding else PALETTE[owners[x + k]]
            slot(ax, x + k, -1.2, "0" if padding else "abcdef"[owners[x + k]], fill)
        note(ax, x + share / 2, -1.9, f"rank {rank}", ha="center", fontsize=9)
        if rank:
            ax.plot([x, x], [-2.3, 2.1], color=INK, lw=2)
    return figure


def draw_units(
    runs: Mapping[str, Sequence[tuple[int, str]]], names: Sequence[str], sizes: Sequence[int]
) -> Drawing:
    """When each unit's parameters are there whole, event by event, and the bytes that takes.

    runs: for each panel, the events (unit, "gather" | "free" | "reduce-scatter") in order. names,
    sizes: of the units, sizes in bytes.
    """
    figure, ax = plot(7.2, 1.9 * len(runs) + 0.8)
    figure.clear()
    longest = max(map(len, runs.values()))
    panels = figure.subplots(len(runs), 1, squeeze=False, sharex=True)[:, 0]
    for ax, (title, events) in zip(panels, runs.items(), strict=True):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=INK)
        since: dict[int, int] = {}
        bytes_now, curve = 0, [0]
        for x, (unit, what) in enumerate(events):
            if what == "gather":
                since[unit] = x
                bytes_now += sizes[unit]
                ax.text(x, unit, "↓", ha="center", va="center", color=PAPER, zorder=3, fontsize=9)
            elif what == "free":
                begun = since.pop(unit)
                ax.barh(unit, x - begun, left=begun - 0.4, height=0.62, color=BLUE)
                bytes_now -= sizes[unit]
            else:
                ax.plot(x, unit, marker="s", color=ORANGE, ms=8)
            curve.append(bytes_now)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_xticks([])
        ax.set_xlim(-0.7, longest + 0.2)
        peak = max(curve)
        ax.set_title(
            f"{title}: at most {peak / 1024:,.0f} KiB of whole parameters at a time",
            fontsize=9.5,
            color=INK,
            loc="left",
        )
    panels[-1].set_xlabel("events of one forward and backward pass, in order", color=INK)
    handles = [Patch(color=BLUE, label="there whole (↓ all-gather)")]
    handles.append(Patch(color=ORANGE, label="reduce-scatter"))
    panels[-1].legend(handles=handles, frameon=False, fontsize=8.5, loc="upper right")
    return figure


def _borders(rows: int, world_size: int) -> list[int]:
    """Where the shares of `rows` end, as torch.chunk has it, from 0 on."""
    share = -(-rows // world_size)
    return [min(rank * share, rows) for rank in range(world_size + 1)]


def draw_resharding(rows: int, old: int, new: int) -> Drawing:
    """The rows of one tensor, as `old` ranks saved them and as `new` ranks load them."""
    figure, ax = paper((-4.2, rows + 0.6), (-2.4, 3.6))
    for y, n, what in ((1.6, old, "saved by"), (-1.0, new, "loaded by")):
        note(ax, -4.1, y + 0.5, f"{what} {n} ranks")
        for rank, (a, b) in enumerate(pairwise(_borders(rows, n))):
            for row in range(a, b):
                slot(ax, row, y, row, PALETTE[rank % len(PALETTE)])
            if b > a:
                at = y + 1.5 if y > 0 else y - 0.5
                note(ax, (a + b) / 2, at, f"rank {rank}", ha="center", fontsize=9)
                ax.plot([a, a], [y, y + 1], color=INK, lw=2.4)
    cuts = sorted({*_borders(rows, old), *_borders(rows, new)})
    for a, b in pairwise(cuts):
        ax.annotate(
            "",
            xy=((a + b) / 2, 0.12),
            xytext=((a + b) / 2, 1.5),
            arrowprops={"arrowstyle": "->", "color": FAINT, "lw": 1.4},
        )
    return figure


def draw_worlds(
    worlds: Sequence[int], gib: Mapping[str, Sequence[float]], limit: float | None = None
) -> Drawing:
    """GiB on each rank against the number of ranks, a line for each stage, on log axes."""
    figure, ax = plot(7.0, 3.4)
    for (label, values), colour, marker in zip(gib.items(), PALETTE, "osD^v", strict=False):
        ax.plot(worlds, values, color=colour, marker=marker, ms=5, lw=2, label=label)
    if limit is not None:
        ax.axhline(limit, color=FAINT, ls="--", lw=1.4)
        ax.text(worlds[-1], limit / 1.2, f"{limit:g} GiB", color=FAINT, fontsize=9, ha="right")
    doublings(ax, worlds)
    ax.set_yscale("log", base=2)
    ax.set_yticks([1, 2, 4, 8, 16, 32, 64, 128], ["1", "2", "4", "8", "16", "32", "64", "128"])
    ax.set_xlabel("ranks", color=INK)
    ax.set_ylabel("GiB on each rank", color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure
