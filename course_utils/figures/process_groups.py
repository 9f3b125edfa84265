"""The drawings of chapter 16: a world and its nodes, collectives before and after, trees, rings, costs."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import FancyArrowPatch, Rectangle

from .interactive import Interactive
from .style import BLUE, FAINT, GREEN, INK, ORANGE, PINK, RED, SKY, Drawing, note, paper, plot

_RANKS = (BLUE, ORANGE, GREEN, PINK, SKY, RED)
_LEAST_RANKS, _MOST_RANKS = 2, 8
ELEMENTS, ITEMSIZE = 840, 4  # 840 divides by every world size from 2 to 8


def ring_all_reduce(world_size: int = 4) -> Interactive:
    """The ring all-reduce step by step: chunks as columns, ranks as rows, and the bytes sent so far.

    world_size: that it opens with, 2 to 8. Raises ValueError for another one.
    """
    if not _LEAST_RANKS <= world_size <= _MOST_RANKS:
        raise ValueError(
            f"A ring of {world_size} cannot be drawn: give {_LEAST_RANKS} to {_MOST_RANKS} ranks."
        )
    n, whole = world_size, ELEMENTS * ITEMSIZE
    lines = [
        "Ring all-reduce (interactive in JupyterLab and on the page)",
        f"{n} ranks, {whole:,} bytes on each, cut into {n} chunks. Rank r always sends to rank r + 1.",
    ]
    for step in range(2 * (n - 1)):
        adding = step < n - 1
        sends = [(r - step - 1) % n if adding else (r - step + n - 1) % n for r in range(n)]
        phase = "reduce-scatter" if adding else "all-gather"
        chunks = ", ".join(f"rank {r} sends chunk {c}" for r, c in enumerate(sends))
        lines.append(f"step {step + 1}, {phase}: {chunks}")
    lines.append(
        f"Each rank sends {2 * (n - 1) * whole // n:,} bytes: 2(n-1)/n of {whole:,}. "
        f"One root that sends the sum to each would send {(n - 1) * whole:,}."
    )
    return Interactive(
        script="ring_all_reduce",
        alt=(
            "Ring all-reduce: ranks as rows, chunks as columns; in each step every rank sends one "
            "chunk down to the next rank, first adding, then overwriting"
        ),
        text="\n".join(lines),
        data={"world_size": n, "elements": ELEMENTS, "itemsize": ITEMSIZE},
    )


def draw_world(local_world_sizes: Sequence[int]) -> Drawing:
    """A box for each node, in it a square for each process: its rank, and below its local rank."""
    width = sum(local_world_sizes) * 1.5 + 1.2 * len(local_world_sizes)
    figure, ax = paper((-0.4, width + 0.3), (-1.5, 2.9))
    left, rank = 0.0, 0
    for node, size in enumerate(local_world_sizes):
        ax.add_patch(Rectangle((left, -1.1), size * 1.5 + 0.5, 3.1, fill=False, edgecolor=FAINT))
        note(ax, left + 0.1, 2.45, f"node {node}", fontsize=11, color=INK, weight="bold")
        for local in range(size):
            x = left + 0.5 + local * 1.5
            fill = _RANKS[node % len(_RANKS)]
            ax.add_patch(Rectangle((x, 0.2), 1, 1, facecolor=fill, alpha=0.35, edgecolor="none"))
            ax.add_patch(Rectangle((x, 0.2), 1, 1, fill=False, edgecolor=INK, linewidth=1.2))
            note(ax, x + 0.5, 0.7, str(rank), ha="center", fontsize=13, weight="bold")
            note(ax, x + 0.5, -0.3, f"local {local}", ha="center", fontsize=9, color=FAINT)
            rank += 1
        left += size * 1.5 + 1.2
    return figure


def draw_collectives(results: Mapping[str, Sequence[tuple[Any, Any]]]) -> Drawing:
    """Who has what before and after each collective.

    results: for each collective its ranks' (before, after): lists of whole numbers, or None where a
    rank has nothing. A number below 100 has its origin's rank plus one as its tens digit, and the
    colour of that rank; larger ones are sums.
    """
    names = list(results)
    columns = 2
    rows = -(-len(names) // columns)
    ranks = max(len(found) for found in results.values())
    panel_w, panel_h = 10.9, ranks * 1.15 + 2.1
    figure, ax = paper((-1.2, columns * panel_w - 0.4), (-rows * panel_h + 0.6, 0.7))
    width, height = figure.get_size_inches()
    figure.set_size_inches(0.8 * width, 0.8 * height)  # no wider than a page's text
    for i, name in enumerate(names):
        left, top = (i % columns) * panel_w, -(i // columns) * panel_h
        note(ax, left - 0.9, top, name, fontsize=12, weight="bold")
        for rank, (before, after) in enumerate(results[name]):
            y = top - 1.65 - rank * 1.15
            note(ax, left - 0.25, y + 0.5, str(rank), ha="right", color=FAINT)
            _numbers(ax, left, y, before)
            _numbers(ax, left + 5.1, y, after)
        ax.add_patch(
            FancyArrowPatch(
                (left + 4.15, top - 0.5 - ranks * 0.575),
                (left + 4.95, top - 0.5 - ranks * 0.575),
                arrowstyle="-|>",
                mutation_scale=14,
                color=INK,
            )
        )
    return figure


def _numbers(ax: Any, x: float, y: float, values: Sequence[int] | None) -> None:
    if values is None:
        note(ax, x + 0.1, y + 0.5, "–", color=FAINT)
        return
    for i, value in enumerate(values):
        origin = int(value) // 10 - 1
        fill = _RANKS[origin % len(_RANKS)] if value < 100 else "#4d555e"
        ax.add_patch(Rectangle((x + i, y), 1, 1, facecolor=fill, alpha=0.3, edgecolor="none"))
        ax.add_patch(Rectangle((x + i, y), 1, 1, fill=False, edgecolor=INK, linewidth=0.8))
        size = 10 if value < 100 else 8.5
        weight = "normal" if value < 100 else "bold"
        note(ax, x + i + 0.5, y + 0.48, str(int(value)), ha="center", fontsize=size, weight=weight)


def draw_rounds(messages: Sequence[Sequence[tuple[int, int]]], world_size: int) -> Drawing:
    """Rounds of messages from left to right: who sends to whom, and who has the data after each."""
    rounds = len(messages)
    figure, ax = paper((-1.6, rounds * 3.4 + 1.6), (-world_size * 1.05 + 0.2, 1.5))
    has = {0}
    for step in range(rounds + 1):
        x = step * 3.4
        title = "start" if step == 0 else f"after round {step}"
        note(ax, x + 0.5, 1.15, title, ha="center", fontsize=9, color=FAINT)
        if step:
            has |= {to for _, to in messages[step - 1]}
        for rank in range(world_size):
            y = -rank * 1.05 - 0.25
            filled = rank in has
            colour = BLUE if filled else "none"
            ax.add_patch(Rectangle((x, y), 1, 0.85, facecolor=colour, alpha=0.35, edgecolor="none"))
            ax.add_patch(Rectangle((x, y), 1, 0.85, fill=False, edgecolor=INK if filled else FAINT))
            note(ax, x + 0.5, y + 0.42, str(rank), ha="center", color=INK if filled else FAINT)
        if step < rounds:
            for source, to in messages[step]:
                ax.add_patch(
                    FancyArrowPatch(
                        (x + 1.08, -source * 1.05 + 0.17),
                        (x + 3.32, -to * 1.05 + 0.17),
                        arrowstyle="-|>",
                        mutation_scale=11,
                        color=RED,
                        linewidth=1.4,
                    )
                )
    return figure


def draw_alpha_beta(
    n_bytes: Sequence[int], seconds: Sequence[float], alpha: float, beta: float
) -> Drawing:
    """Measured times of one message against its size, on log axes, and the fitted α + bytes · β."""
    figure, ax = plot(6.6, 3.3)
    ax.plot(n_bytes, [1e6 * s for s in seconds], "o", color=BLUE, label="measured")
    fine = [n_bytes[0] * (n_bytes[-1] / n_bytes[0]) ** (i / 60) for i in range(61)]
    ax.plot(
        fine, [1e6 * (alpha + b * beta) for b in fine], color=RED, lw=1.6, label="α + bytes · β"
    )
    ax.axhline(1e6 * alpha, color=FAINT, ls=":", lw=1.2)
    ax.axvline(alpha / beta, color=FAINT, ls=":", lw=1.2)
    ax.annotate(
        "α/β: half latency,\nhalf bandwidth",
        (alpha / beta, 1e6 * alpha * 2),
        xytext=(-8, 26),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color=FAINT,
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("bytes in the message")
    ax.set_ylabel("microseconds")
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def draw_algorithms(n_bytes: Sequence[int], seconds: Mapping[str, Sequence[float]]) -> Drawing:
    """Predicted time of an all-reduce against the size of the tensor, one curve an algorithm."""
    figure, ax = plot(6.6, 3.3)
    for (name, times), colour, dash in zip(
        seconds.items(), (FAINT, ORANGE, BLUE), ("--", "-.", "-"), strict=False
    ):
        ax.plot(n_bytes, [1e3 * s for s in times], color=colour, ls=dash, lw=2, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("bytes of the tensor")
    ax.set_ylabel("milliseconds (model)")
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def draw_predicted(
    n_bytes: Sequence[int],
    predicted: Mapping[str, Sequence[float]],
    measured: Mapping[str, Sequence[float]],
) -> Drawing:
    """Predicted and measured times (seconds) of one thing against the size of the tensor, log axes."""
    figure, ax = plot(6.6, 3.6)
    for name, times in predicted.items():
        ax.plot(n_bytes, [1e3 * s for s in times], color=RED, ls="--", lw=2, label=name)
    marks = zip(measured.items(), (FAINT, BLUE, ORANGE), "sod", strict=False)
    for (name, times), colour, mark in marks:
        ax.plot(n_bytes, [1e3 * s for s in times], f"{mark}-", color=colour, lw=1.6, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("bytes of the tensor")
    ax.set_ylabel("milliseconds")
    ax.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure


def draw_timelines(timelines: Mapping[str, Sequence[tuple[str, float, float]]]) -> Drawing:
    """Spans (what, from, to; seconds), a row for each kind within each timeline, on one time axis."""
    figure, ax = plot(6.8, 0.75 + 0.75 * len(timelines))
    colours = {"compute": BLUE, "all-reduce": ORANGE, "wait": RED}
    ticks, labels = [], []
    for i, (name, spans) in enumerate(timelines.items()):
        y = -i * 1.0
        ticks.append(y)
        labels.append(name)
        for what, start, end in spans:
            offset = {"compute": 0.18, "all-reduce": -0.18, "wait": 0.18}[what]
            ax.barh(
                y + offset,
                1e3 * (end - start),
                left=1e3 * start,
                height=0.32,
                color=colours[what],
                alpha=0.85,
            )
    seen = {what for spans in timelines.values() for what, *_ in spans}
    for what in colours:
        if what in seen:
            ax.bar(0, 0, color=colours[what], alpha=0.85, label=what)
    ax.set_yticks(ticks, labels)
    ax.set_xlabel("milliseconds")
    ax.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 1.28), ncols=3)
    return figure


__all__ = [
    "draw_algorithms",
    "draw_alpha_beta",
    "draw_collectives",
    "draw_predicted",
    "draw_rounds",
    "draw_timelines",
    "draw_world",
    "ring_all_reduce",
]
