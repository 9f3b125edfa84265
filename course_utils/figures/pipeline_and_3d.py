"""The drawings of chapter 20: pipelines and what they hold, meshes, rings, experts, what a plan costs."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from course_utils.reference.pipeline import cut_evenly
from course_utils.reference.pipeline_schedules import (
    Action,
    Schedule,
    bubble,
    gpipe_schedule,
    interleaved_schedule,
    one_f_one_b_schedule,
    peak_microbatches,
    timeline,
    zero_bubble_schedule,
)

from .interactive import Interactive
from .style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PAPER,
    PINK,
    RED,
    SKY,
    Drawing,
    note,
    paper,
    plot,
)

Times = Mapping[Action, tuple[float, float]]

_POINTS = 530  # of a lane, of which text in a box may be as wide as the box
_COLOURS = {"F": BLUE, "B": ORANGE, "I": PINK, "W": GREEN}
_KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "gradient of the inputs",
    "W": "gradient of the weights",
}


def draw_schedules(
    panels: Mapping[str, tuple[Schedule, Times]],
    labels: Mapping[Action, object] | None = None,
    until: float | None = None,
) -> Drawing:
    """Timelines one below the other, on one scale: a lane for each rank, a box for each action.

    panels: title → (schedule, start and end of its actions). labels: what stands in a box, by default
    the micro-batch. Later chunks of a rank are paler. until: draw no further, of a stream that goes on.
    """
    lanes = sum(len(schedule) for schedule, _ in panels.values())
    figure = Drawing(
        figsize=(8.4, 0.3 * lanes + 0.62 * len(panels) + 0.35),
        facecolor=PAPER,
        layout="constrained",
    )
    heights = [len(schedule) + 1.2 for schedule, _ in panels.values()]
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights, sharex=True)[:, 0]
    kinds: set[str] = set()
    longest = until or max(end for _, times in panels.values() for _, end in times.values())
    for ax, (title, (schedule, times)) in zip(axes, panels.items(), strict=True):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right", "left"]].set_visible(False)
        done = min(longest, max(end for _, end in times.values()))
        for rank, actions in enumerate(schedule):
            ax.add_patch(Rectangle((0, rank - 0.42), done, 0.84, facecolor="#eceff2", lw=0))
            for action in actions:
                kind, stage, i = action
                start, end = times[action]
                if start >= done:
                    continue
                end = min(end, done)
                kinds.add(kind)
                alpha = 0.85 if stage < len(schedule) else 0.45
                box = Rectangle((start, rank - 0.42), end - start, 0.84, alpha=alpha)
                box.set(facecolor=_COLOURS[kind], edgecolor=PAPER, linewidth=0.8)
                ax.add_patch(box)
                if (end - start) / longest > 0.01:
                    text = str(i if labels is None else labels[action])
                    size = min(7.5, _POINTS * (end - start) / longest / (0.62 * len(text)))
                    x = (start + end) / 2
                    ax.text(x, rank, text, ha="center", va="center", fontsize=size, color=INK)
        ax.set_xlim(0, longest * 1.002)
        ax.set_ylim(len(schedule) - 0.4, -0.6)
        ax.set_yticks(range(len(schedule)), [f"rank {r}" for r in range(len(schedule))])
        ax.tick_params(colors=INK, labelsize=8, left=False)
        said = f": {bubble(schedule, times):.0%} of the time is waiting" if until is None else ""
        ax.set_title(title + said, loc="left", fontsize=9.5, color=INK)
    axes[-1].set_xlabel("time", color=INK, fontsize=9)
    handles = [Patch(color=_COLOURS[k], label=_KINDS[k]) for k in _KINDS if k in kinds]
    if any(
        stage >= len(lists) for lists, _ in panels.values() for row in lists for _, stage, _ in row
    ):
        handles.append(Patch(color=_COLOURS["F"], alpha=0.45, label="paler: a later chunk"))
    handles.append(Patch(color="#eceff2", label="waiting"))
    figure.legend(handles=handles, ncols=6, frameon=False, fontsize=8, loc="outside upper right")
    return figure


def draw_held(peaks: Mapping[str, Sequence[float]], unit: str) -> Drawing:
    """Bars of what each rank holds at its peak, a group for each rank, a colour for each schedule."""
    figure, ax = plot(6.4, 2.8)
    width = 0.8 / len(peaks)
    for n, ((name, held), colour) in enumerate(zip(peaks.items(), PALETTE, strict=False)):
        left = [rank - 0.4 + width * (n + 0.5) for rank in range(len(held))]
        bars = ax.bar(left, held, width * 0.92, color=colour, alpha=0.85, label=name)
        ax.bar_label(bars, fmt="{:g}", fontsize=8, color=INK)
    ranks = len(next(iter(peaks.values())))
    ax.set_xticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    ax.set_ylabel(unit, color=INK, fontsize=9)
    ax.legend(frameon=False, fontsize=8, ncols=2)
    ax.set_ylim(0, 1.25 * max(max(held) for held in peaks.values()))
    return figure


def draw_bubbles(
    microbatches: Sequence[int],
    said: Mapping[str, Sequence[float]],
    measured: Mapping[str, Sequence[float]],
) -> Drawing:
    """Share of waiting against the number of micro-batches: what is simulated, and what was measured."""
    figure, ax = plot(6.0, 2.9)
    for (name, values), colour in zip(said.items(), PALETTE, strict=False):
        ax.plot(microbatches, values, "--", color=FAINT if len(said) == 1 else colour, label=name)
    for (name, values), marker, colour in zip(measured.items(), "osD^", PALETTE, strict=False):
        ax.plot(microbatches, values, marker, color=colour, label=name, fillstyle="none")
    ax.set_ylim(0, 1)
    ax.set_xticks(list(microbatches))
    ax.set_xlabel("micro-batches", color=INK, fontsize=9)
    ax.set_ylabel("share of waiting", color=INK, fontsize=9)
    ax.legend(frameon=False, fontsize=8)
    return figure


# ------------------------------------------------------------------------------ the figure one can touch

CHOICES: dict[str, list[Any]] = {
    "layers": [8, 12, 16, 24, 30, 32, 48, 64, 96],
    "ranks": [1, 2, 3, 4, 6, 8],
    "microbatches": [1, 2, 3, 4, 6, 8, 12, 16, 24],
    "hop": [0.0, 0.25, 0.5, 1.0, 2.0, 4.0],
}
"""What the sliders can take. hop: in units of a layer's forward."""

DEFAULTS: dict[str, Any] = {
    "layers": 24,
    "ranks": 4,
    "microbatches": 8,
    "hop": 0.0,
    "schedule": "1F1B",
}
NAMES = ("GPipe", "1F1B", "interleaved", "zero bubble")


def plan_pipeline(layers: int, ranks: int, microbatches: int, hop: float, schedule: str) -> Any:
    """What the figure shows: seconds of the step, bubble, and layers' activations held by each rank.

    A layer's forward takes 1, its backward 2, split into two halves where the schedule splits it.
    None where the schedule cannot be had: fewer layers than stages, or micro-batches in no groups.
    """
    chunks = 2 if schedule == "interleaved" and ranks > 1 else 1
    if layers < ranks * chunks:
        return None
    try:
        actions = {
            "GPipe": lambda: gpipe_schedule(ranks, microbatches),
            "1F1B": lambda: one_f_one_b_schedule(ranks, microbatches),
            "interleaved": lambda: interleaved_schedule(ranks, microbatches, chunks),
            "zero bubble": lambda: zero_bubble_schedule(ranks, microbatches),
        }[schedule]()
    except ValueError:
        return None
    sizes = [stop - start for start, stop in cut_evenly(layers, ranks * chunks)]
    seconds = {
        kind: [float(n * size) for size in sizes]
        for kind, n in (("F", 1), ("B", 2), ("I", 1), ("W", 1))
    }
    times = timeline(actions, seconds, hop)
    held = []
    for own in actions:
        alive = peak = 0
        for kind, stage, _ in own:
            alive += {"F": sizes[stage], "I": 0}.get(kind, -sizes[stage])
            peak = max(peak, alive)
        held.append(peak)
    return {
        "seconds": max(end for _, end in times.values()),
        "bubble": bubble(actions, times),
        "held": held,
        "microbatches": peak_microbatches(actions),
    }


def pipeline_explorer(**settings: Any) -> Interactive:
    """A pipeline's timeline, bubble and memory, at the reader's layers, ranks, micro-batches, schedule.

    settings: of DEFAULTS, to open with. Raises ValueError for others.
    """
    if settings.keys() - DEFAULTS.keys() or settings.get("schedule", "GPipe") not in NAMES:
        raise ValueError(
            f"unknown setting; there are {', '.join(DEFAULTS)}; schedules {', '.join(NAMES)}"
        )
    opens = DEFAULTS | settings
    plan = plan_pipeline(**opens)
    lines = [
        "Pipeline explorer (interactive in JupyterLab and on the page)",
        f"{opens['layers']} layers on {opens['ranks']} ranks, {opens['microbatches']} micro-batches, "
        f"{opens['schedule']}, a message takes {opens['hop']:g} of a layer's forward:",
        "this schedule cannot be had"
        if plan is None
        else f"{plan['seconds']:g} units of time, {plan['bubble']:.1%} waiting, activations of "
        f"{', '.join(map(str, plan['held']))} layers at the ranks' peaks",
    ]
    return Interactive(
        script="pipeline_explorer",
        alt=(
            "Pipeline explorer: choices for layers, ranks, micro-batches, schedule and the time of a message; the "
            "timeline of every rank, the share of waiting, and the activations that each rank holds"
        ),
        text="\n".join(lines),
        data={"settings": opens, "choices": CHOICES, "names": list(NAMES)},
    )


def draw_mesh(sizes: tuple[int, int], orders: Sequence[tuple[str, str]], node: int) -> Drawing:
    """The ranks of a mesh of two axes as tables, one for each order of the axes dp and tp.

    Colours are tp groups, dashed boxes are nodes, each a row of the table; the dp group of rank 1 is
    framed.
    """
    rows, columns = sizes
    wide = columns * 1.5 + 3.6
    figure, ax = paper((-2.7, wide * len(orders) - 2.7), (-rows * 1.5 - 0.3, 2.0))
    for n, (outer, inner) in enumerate(orders):
        left = n * wide
        title = f"({outer}, {inner}): {inner} innermost"
        note(ax, left + columns * 0.75 - 0.25, 1.5, title, ha="center", fontsize=9.5)
        note(ax, left + columns * 0.75 - 0.25, 0.8, f"{inner} →", ha="center", fontsize=9)
        note(ax, left - 2.6, 0.8, f"{outer} ↓", fontsize=9)
        for rank in range(prod(sizes)):
            row, column = divmod(rank, columns)
            x, y = left + column * 1.5, -row * 1.5 - 0.6
            colour = PALETTE[(row if inner == "tp" else column) % len(PALETTE)]
            framed = row == 0 if inner == "dp" else column == 1
            ax.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, alpha=0.35, edgecolor="none"))
            lw = 2.4 if framed else 0.8
            ax.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=INK, linewidth=lw))
            note(ax, x + 0.5, y + 0.5, str(rank), ha="center", weight="bold")
            if rank % node == 0:
                size = (node * 1.5 - 0.1, 1.4)
                box = Rectangle((x - 0.2, y - 0.2), *size, fill=False, edgecolor=FAINT)
                box.set(linewidth=1.4, linestyle="--")
                ax.add_patch(box)
                note(ax, left - 2.6, y + 0.5, f"node {rank // node}", fontsize=8, color=FAINT)
    return figure


def draw_ring(world_size: int) -> Drawing:
    """Which rank's keys and values each rank has in each step of the ring."""
    figure, ax = paper((-3.0, world_size * 2.6), (-world_size * 1.3 - 0.2, 1.3))
    for step in range(world_size):
        x = step * 2.6
        note(ax, x + 0.5, 0.9, f"step {step}", ha="center", fontsize=9, color=FAINT)
        for rank in range(world_size):
            y = -rank * 1.3 - 0.6
            owner = (rank - step) % world_size
            colour = PALETTE[owner % len(PALETTE)]
            ax.add_patch(
                Rectangle((x, y), 1.2, 0.9, facecolor=colour, alpha=0.35, edgecolor="none")
            )
            ax.add_patch(Rectangle((x, y), 1.2, 0.9, fill=False, edgecolor=INK, lw=0.8))
            note(ax, x + 0.6, y + 0.45, f"KV {owner}", ha="center", fontsize=9)
            if step == 0:
                note(ax, -2.9, y + 0.45, f"queries {rank}", fontsize=9)
            if step < world_size - 1:
                to = (rank + 1) % world_size
                ax.add_patch(
                    FancyArrowPatch(
                        (x + 1.28, y + 0.45),
                        (x + 2.52, -to * 1.3 - 0.15),
                        arrowstyle="-|>",
                        mutation_scale=9,
                        color=FAINT,
                        lw=1.0,
                    )
                )
    return figure


def draw_work(work: Mapping[str, Sequence[Sequence[int]]]) -> Drawing:
    """Pairs of a query and a key that each rank computes in each step of the ring, a panel a layout.

    work: for each layout, a row for each rank with a number for each step.
    """
    figure, ax = plot(7.2, 2.7)
    figure.clear()
    panels = figure.subplots(1, len(work), squeeze=False, sharey=True)[0]
    most = max(max(row) for rows in work.values() for row in rows)
    for ax, (title, rows) in zip(panels, work.items(), strict=True):
        for rank, row in enumerate(rows):
            for step, pairs in enumerate(row):
                ax.add_patch(
                    Rectangle(
                        (step, -rank), 0.94, 0.9, facecolor=BLUE, alpha=0.75 * pairs / most, lw=0
                    )
                )
                ax.add_patch(
                    Rectangle((step, -rank), 0.94, 0.9, fill=False, edgecolor=FAINT, lw=0.7)
                )
                ax.text(
                    step + 0.47,
                    -rank + 0.45,
                    f"{pairs}",
                    ha="center",
                    va="center",
                    color=INK,
                    fontsize=8,
                )
            ax.text(
                len(row) + 0.15,
                -rank + 0.45,
                f"{sum(row):,}",
                va="center",
                color=INK,
                fontsize=9,
                weight="bold",
            )
        ax.set_xlim(-0.1, len(rows[0]) + 1.2)
        ax.set_ylim(-len(rows) + 0.9, 1.0)
        ax.set_xticks(
            [s + 0.47 for s in range(len(rows[0]))], [str(s) for s in range(len(rows[0]))]
        )
        ax.set_yticks([0.45 - r for r in range(len(rows))], [f"rank {r}" for r in range(len(rows))])
        ax.spines[:].set_visible(False)
        ax.tick_params(colors=INK, length=0)
        ax.set_xlabel("step of the ring", color=INK)
        ax.set_title(f"{title}  (sums at the right)", fontsize=9.5, color=INK, loc="left")
    return figure


def draw_shares(shares: Mapping[str, Sequence[Sequence[float]]]) -> Drawing:
    """The share of tokens that each expert gets, step by step, stacked; dashed: a fair share."""
    figure, ax = plot(7.2, 2.7)
    figure.clear()
    panels = figure.subplots(1, len(shares), squeeze=False, sharey=True)[0]
    colours = [*PALETTE, FAINT, INK]
    for ax, (title, rows) in zip(panels, shares.items(), strict=True):
        order = [e for _, e in sorted(((-share, e) for e, share in enumerate(rows[-1])))]
        ax.stackplot(
            range(len(rows)),
            [[row[e] for row in rows] for e in order],
            colors=colours,
            alpha=0.8,
            edgecolor="white",
            lw=0.4,
        )
        ax.axhline(1 / len(rows[0]), color=INK, linestyle="--", linewidth=1)
        ax.set_xlim(0, len(rows) - 1)
        ax.set_ylim(0, 1)
        ax.set_title(title, fontsize=9.5, color=INK, loc="left")
        ax.set_xlabel("step", color=INK)
        ax.tick_params(colors=INK)
    panels[0].set_ylabel("share of tokens", color=INK)
    return figure


_PARTS = {
    "compute": BLUE,
    "tensor": ORANGE,
    "context": PINK,
    "expert": GREEN,
    "hops": SKY,
    "bubble": "#c9ced6",
    "data": RED,
}


def draw_seconds(plans: Mapping[str, Mapping[str, float]]) -> Drawing:
    """Predicted seconds of a step by what they go to, a bar for each plan; each relative to the first."""
    figure, ax = plot(7.4, 0.55 * len(plans) + 1.2)
    first = sum(next(iter(plans.values())).values())
    names = list(plans)[::-1]
    left = [0.0] * len(names)
    for part, colour in _PARTS.items():
        widths = [plans[name].get(part, 0.0) / first for name in names]
        if max(widths) > 0:
            ax.barh(
                names, widths, left=left, color=colour, height=0.62, label=part, edgecolor="white"
            )
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for y, total in enumerate(left):
        ax.text(total, y, f"  {total:.2f}", va="center", color=INK, fontsize=9)
    ax.set_xlim(0, 1.12 * max(left))
    ax.set_xlabel(
        "predicted time of a step, the first plan's being 1 (plans are dp·tp·pp)", color=INK
    )
    ax.legend(
        frameon=False,
        fontsize=8,
        ncols=7,
        loc="upper center",
        bbox_to_anchor=(0.4, -0.28),
        columnspacing=1.0,
        handlelength=1.2,
    )
    return figure
