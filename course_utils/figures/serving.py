"""The drawings of chapter 28's second half: who runs when, what a cache holds, latencies, an engine's steps."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from .interactive import Interactive
from .style import BLUE, FAINT, INK, ORANGE, PALETTE, PAPER, Drawing, note, paper, plot


def draw_timeline(panels: Mapping[str, tuple[Sequence[Mapping[int, int]], int]]) -> Drawing:
    """Steps from left to right, slots below one another: which request each slot serves.

    panels: title → (what each step reads, request → tokens; the number of slots). A box with a
    number is a step that reads more than one token, a prompt or a part of it.
    """
    longest = max(len(steps) for steps, _ in panels.values())
    rows = sum(slots + 2 for _, slots in panels.values())
    figure, ax = paper((-0.4, longest + 0.6), (-rows + 0.4, 1.2))
    width, height = figure.get_size_inches()
    scale = min(1.0, 9.0 / width)
    figure.set_size_inches(scale * width, scale * height)
    top = 0.0
    for title, (steps, slots) in panels.items():
        note(ax, 0, top + 0.55, title, weight="bold", fontsize=9)
        ax.add_patch(Rectangle((0, top - slots), len(steps), slots, facecolor="#eceff2", lw=0))
        for slot, row in enumerate(_in_slots(steps, slots)):
            for step, request in enumerate(row):
                if request is None:
                    continue
                colour, y = PALETTE[request % len(PALETTE)], top - slot - 1
                n = steps[step].get(request, 0)
                box = (step + 0.04, y + 0.08), 0.92, 0.84
                ax.add_patch(Rectangle(*box, facecolor=colour, alpha=0.9 if n > 1 else 0.45, lw=0))
                if n > 1:
                    note(ax, step + 0.5, y + 0.48, str(n), ha="center", fontsize=7, color=PAPER)
                elif step == 0 or row[step - 1] != request or steps[step - 1].get(request) != 1:
                    note(
                        ax,
                        step + 0.5,
                        y + 0.48,
                        "abcdefghijkl"[request % 12],
                        ha="center",
                        fontsize=8,
                    )
        top -= slots + 2
    return figure


def _in_slots(steps: Sequence[Mapping[int, int]], slots: int) -> list[list[int | None]]:
    """For each slot the request that it serves in each step, from its first step to its last."""
    last = {request: number for number, step in enumerate(steps) for request in step}
    table: list[list[int | None]] = [[None] * len(steps) for _ in range(slots)]
    held: list[int | None] = [None] * slots
    for number, step in enumerate(steps):
        for request in step:
            if request not in held:
                held[held.index(None)] = request
        for slot, holder in enumerate(held):
            table[slot][number] = holder
            if holder is not None and last[holder] == number:
                held[slot] = None
    return table


def draw_rooms(lengths: Sequence[int], reserved: int, block_size: int) -> Drawing:
    """What sequences of these lengths hold: a whole context each, or blocks.

    reserved: tokens that are reserved for each. The blocks of a sequence are drawn side by side;
    in the cache they may lie anywhere.
    """
    figure = Drawing(figsize=(9.0, 0.3 * len(lengths) + 0.9), facecolor=PAPER, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for ax in (left, right):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(left=False, labelleft=False, colors=INK)
        ax.set_xlabel("tokens", color=INK, fontsize=9)
    for row, length in enumerate(lengths):
        y = -row
        _bar(left, 0, reserved, y, None)
        _bar(left, 0, length, y, BLUE)
        for begin in range(0, length, block_size):
            _bar(right, begin, block_size, y, None)
            _bar(right, begin, min(block_size, length - begin), y, ORANGE)
    used = sum(lengths)
    blocks = sum(-(-length // block_size) for length in lengths)
    for ax, title, held in (
        (left, f"{reserved} tokens for each", reserved * len(lengths)),
        (right, f"blocks of {block_size}", blocks * block_size),
    ):
        ax.set_title(f"{title}: {used / held:.0%} in use", color=INK, fontsize=10)
        ax.set_xlim(-2, reserved + 2)
        ax.set_ylim(-len(lengths) + 0.4, 0.6)
    return figure


def _bar(ax: Axes, x: float, width: float, y: float, colour: str | None) -> None:
    if colour is None:
        ax.add_patch(Rectangle((x, y - 0.36), width, 0.72, fill=False, ec=FAINT, lw=0.8))
    else:
        ax.add_patch(Rectangle((x, y - 0.36), width, 0.72, facecolor=colour, alpha=0.75, lw=0))


def draw_latency(
    x: Sequence[float], curves: Mapping[str, Sequence[float]], labels: tuple[str, str]
) -> Drawing:
    """Latencies over a load, on a logarithmic axis; a mean is dashed. labels: of x and of y."""
    figure, ax = plot(6.4, 3.2)
    for (name, y), colour in zip(curves.items(), PALETTE, strict=False):
        ax.plot(x, y, color=colour, label=name, marker="o", ls="--" if "mean" in name else "-")
    ax.set_yscale("log")
    ax.set_xlabel(labels[0], color=INK)
    ax.set_ylabel(labels[1], color=INK)
    ax.legend(frameon=False, fontsize=8)
    return figure


# ------------------------------------------------------------------------------ an engine, step by step


def engine_steps(
    engine: Any, requests: Mapping[Hashable, Any], arrive: Mapping[Hashable, int]
) -> Interactive:
    """An engine's steps, to be gone through: who runs, which tokens are read, which blocks hold them.

    engine: without work; it is run to its end. requests: by name. arrive: the step before which a
    request is added; those that are not named come at the start.
    """
    frames = [_frame(engine, requests, {})]
    coming = dict(requests)
    drawn: dict[Hashable, list[int]] = {name: [] for name in requests}
    done: set[Hashable] = set()
    while coming or not engine.idle:
        for name in [name for name in coming if arrive.get(name, 0) < len(frames)]:
            engine.add(name, coming.pop(name))
        before, preempted = engine.counts.shared, engine.counts.preempted
        events = engine.step()
        for event in events:
            drawn[event.name].append(event.token)
            done |= {event.name} if event.finish else set()
        frame = _frame(engine, requests, dict(engine.last))
        for row in frame["rows"]:
            row["drawn"] = len(drawn[row["name"]])
            row["state"] = "done" if row["name"] in done else row["state"]
        frame["shared"] = engine.counts.shared - before
        frame["preempted"] = engine.counts.preempted - preempted
        frames.append(frame)
    lines = [
        f"{len(requests)} requests on {engine.slots} slots, {len(engine.tables.pool)} blocks of {engine.block_size} tokens:"
    ]
    for number, frame in enumerate(frames[1:], start=1):
        now = ", ".join(f"{row['name']} reads {row['now']}" for row in frame["rows"] if row["now"])
        lines.append(f"step {number}: {now}; {sum(map(bool, frame['uses']))} blocks in use")
    return Interactive(
        script="engine_steps",
        alt="An engine step by step: each request's tokens, its table of blocks, and the pool, in which shared blocks have more than one user",
        text="\n".join(lines),
        data={"frames": frames, "block": engine.block_size, "slots": engine.slots},
    )


def _frame(
    engine: Any, requests: Mapping[Hashable, Any], now: Mapping[Hashable, int]
) -> dict[str, Any]:
    """What is to be seen after a step."""
    jobs = {job.name: job for job in [*engine.running, *engine.waiting]}
    running = {job.name for job in engine.running}
    rows = []
    for name, request in requests.items():
        job = jobs.get(name)
        rows.append(
            {
                "name": str(name),
                "prompt": len(request.prompt),
                "read": job.read if job else 0,
                "drawn": len(job.tokens) - len(request.prompt) if job else 0,
                "now": now.get(name, 0),
                "state": "running" if name in running else "waiting" if job else "not here",
                "table": list(engine.tables.tables.get(name, ())),
            }
        )
    return {"rows": rows, "uses": list(engine.tables.pool.uses), "shared": 0, "preempted": 0}
