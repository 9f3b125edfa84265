"""The drawings of chapter 17: buckets, a backward's timeline, who gets which sample, efficiency."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, PAPER, Drawing, note, paper, plot, slot

COMPUTE, SEND = "compute", "all-reduce"


@dataclass(frozen=True)
class Span:
    """Something that a rank did, from start to end (milliseconds). kind: "compute" or "all-reduce"."""

    kind: str
    name: str
    start: float
    end: float


def spans_of(events: Sequence[Any]) -> list[Span]:
    """A rank's profiler events (`prof.events()`), as the spans of its backward and its all-reduces."""
    spans = []
    for event in events:
        start, end = event.time_range.start / 1e3, event.time_range.end / 1e3
        if event.name.startswith("gloo:all_reduce"):
            spans.append(Span(SEND, "all_reduce", start, end))
        elif event.name.startswith("autograd::engine::evaluate_function: AddmmBackward"):
            spans.append(Span(COMPUTE, "Linear", start, end))
    return spans


def overlapped(spans: Sequence[Span]) -> float:
    """Milliseconds in which an all-reduce was under way while a layer's backward ran."""
    send = [s for s in spans if s.kind == SEND]
    compute = [s for s in spans if s.kind == COMPUTE]
    return sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in send for b in compute)


def draw_timeline(by_title: dict[str, Sequence[Span]]) -> Drawing:
    """For each title two lanes, one for the backward of the layers, one for the all-reduces."""
    figure, ax = plot(7.0, 0.7 + 0.9 * len(by_title))
    lanes = []
    for row, (title, spans) in enumerate(by_title.items()):
        zero = min(s.start for s in spans)
        for s in spans:
            y = -(2.4 * row + (s.kind == SEND))
            colour = BLUE if s.kind == COMPUTE else ORANGE
            ax.barh(
                y, s.end - s.start, 0.8, s.start - zero, color=colour, edgecolor=PAPER, alpha=0.85
            )
        lanes += [(-2.4 * row, f"{title}: backward"), (-2.4 * row - 1, "all-reduces")]
    ax.set_yticks([y for y, _ in lanes], [text for _, text in lanes], color=INK)
    ax.set_xlabel("milliseconds from the start of backward", color=INK)
    return figure


def draw_buckets(sizes: Sequence[tuple[str, int]], buckets: Sequence[Sequence[int]]) -> Drawing:
    """Parameters from the first layer to the last, as wide as their bytes, coloured by bucket.

    sizes: (name, bytes) of each parameter. buckets: their indices, bucket by bucket, as sent.
    """
    figure, ax = plot(7.0, 1.9)
    total = sum(size for _, size in sizes)
    place = {i: b for b, bucket in enumerate(buckets) for i in bucket}
    x = 0.0
    for i, (name, size) in enumerate(sizes):
        width = size / total
        colour = PALETTE[place[i] % len(PALETTE)]
        ax.barh(0, width, 0.7, x, color=colour, alpha=0.55, edgecolor=INK, linewidth=0.8)
        if width > 0.05:
            ax.text(x + width / 2, 0, name, ha="center", va="center", fontsize=8, color=INK)
        x += width
    starts = [sum(s for _, s in sizes[:i]) / total for i in range(len(sizes) + 1)]
    for b, bucket in enumerate(buckets):
        left, right = starts[min(bucket)], starts[max(bucket) + 1]
        size = sum(sizes[i][1] for i in bucket)
        ax.annotate(
            "", (left, -0.55), (right, -0.55), arrowprops={"arrowstyle": "<->", "color": INK}
        )
        text = f"bucket {b}\n{size / 1024:.0f} KiB"
        ax.text((left + right) / 2, -0.65, text, ha="center", va="top", fontsize=8.5, color=INK)
    ax.annotate("", (0, 0.62), (1, 0.62), arrowprops={"arrowstyle": "->", "color": FAINT})
    ax.text(0.5, 0.7, "backward reaches the last layer first", ha="center", fontsize=9, color=INK)
    ax.set_xlim(-0.01, 1.01)
    ax.set_ylim(-1.5, 1.0)
    ax.set_axis_off()
    return figure


def draw_sampler(by_rank: Sequence[Sequence[int]], n: int) -> Drawing:
    """Which samples each rank gets, in order; those that come a second time are drawn strong."""
    longest = max(map(len, by_rank))
    figure, ax = paper((-2.2, max(longest, 9) + 0.4), (-0.4, 1.3 * len(by_rank) + 0.9))
    seen: set[int] = set()
    again: set[tuple[int, int]] = set()
    for i in range(longest):
        for r, mine in enumerate(by_rank):
            if i < len(mine):
                if mine[i] in seen:
                    again.add((r, i))
                seen.add(mine[i])
    for r, mine in enumerate(by_rank):
        y = 1.3 * (len(by_rank) - 1 - r)
        note(ax, -0.25, y + 0.5, f"rank {r}", ha="right")
        for i, sample in enumerate(mine):
            slot(
                ax, i, y, sample, ORANGE if (r, i) in again else PALETTE[r], strong=(r, i) in again
            )
    missing = sorted(set(range(n)) - seen)
    text = f"{n} samples"
    if again:
        text += f"; {len(again)} come a second time (strong)"
    if missing:
        text += f"; nobody gets {', '.join(map(str, missing))}"
    note(ax, 0, 1.3 * len(by_rank) + 0.35, text)
    return figure


def draw_caps(caps: Sequence[float], measured: Sequence[float], messages: Sequence[int]) -> Drawing:
    """Milliseconds to average all gradients against the bucket's cap (KiB), with the messages sent.

    A cap of less than 1 KiB stands left of the others, out of scale.
    """
    figure, ax = plot(6.4, 2.8)
    places = [cap if cap >= 1 else min(c for c in caps if c >= 1) / 4 for cap in caps]
    ax.plot(places, measured, "o-", color=BLUE)
    for place, ms, count in zip(places, measured, messages, strict=True):
        text = f"{count}"
        ax.annotate(text, (place, ms), (0, 7), textcoords="offset points", ha="center", fontsize=9)
    ax.set_xscale("log", base=2)
    ax.set_xticks(
        places, [f"{cap:g}" if cap >= 1 else f"{1024 * cap:g} byte" for cap in caps], color=INK
    )
    ax.set_ylim(0, max(measured) * 1.2)
    ax.set_xlabel("bucket cap, KiB (on the curve: how many messages)", color=INK)
    ax.set_ylabel("ms", color=INK)
    return figure


def draw_scaling(worlds: Sequence[int], speeds: Sequence[float]) -> Drawing:
    """Samples a second against the number of ranks, measured, beside what n ranks would give at best."""
    figure, ax = plot(5.6, 2.8)
    ax.plot(worlds, [speeds[0] * n for n in worlds], "--", color=FAINT, label="n times one rank")
    ax.plot(worlds, speeds, "o-", color=GREEN, label="measured here")
    for n, speed in zip(worlds, speeds, strict=True):
        text = f"{speed / speeds[0] / n:.0%}"
        ax.annotate(text, (n, speed), (0, -14), textcoords="offset points", ha="center", fontsize=9)
    ax.set_xticks(list(worlds))
    ax.set_ylim(0, None)
    ax.set_xlabel("ranks (at the points: efficiency)", color=INK)
    ax.set_ylabel("samples a second", color=INK)
    ax.legend(frameon=False)
    return figure
