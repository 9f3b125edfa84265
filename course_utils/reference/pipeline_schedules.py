"""Chapter 20, pipelines on paper: who computes what when, what it costs in time and in memory.

An action is (kind, stage, micro-batch). Kinds: F, a forward; B, a backward; or, in place of B, I
and W: the gradients of a stage's inputs, and those of its weights. A schedule has a list of actions
for each rank, in the order in which the rank runs them.
"""

from collections.abc import Mapping, Sequence

Action = tuple[str, int, int]
Schedule = list[list[Action]]


def shown(action: Action) -> str:
    """As torch writes it: stage, kind, micro-batch. ("F", 3, 0) is 3F0."""
    kind, stage, microbatch = action
    return f"{stage}{kind}{microbatch}"


def bubble_fraction(n_ranks: int, n_microbatches: int, n_chunks: int = 1) -> float:
    """The share of its time in which a rank of a pipeline waits: GPipe, 1F1B, interleaved.

    From the first forward to the last backward. A backward may take another time than a
    forward; all stages take the same times, and messages none. n_chunks: stages on each
    rank, interleaved (1: GPipe and 1F1B); n_microbatches is then a multiple of n_ranks.
    Raises ValueError if one of the three is less than 1.
    """
    if min(n_ranks, n_microbatches, n_chunks) < 1:
        raise ValueError("ranks, micro-batches and chunks are at least 1")
    return (n_ranks - 1) / (n_chunks * n_microbatches + n_ranks - 1)


def gpipe_schedule(n_stages: int, n_microbatches: int) -> list[list[tuple[str, int, int]]]:
    """GPipe: each rank runs all forwards, then all backwards, both by micro-batch from 0 on.

    Returns for each rank its list of actions, tuples ("F" or "B", stage, micro-batch).
    Rank r has stage r. Source: Huang et al. (2019).
    """
    return [
        [(kind, stage, i) for kind in "FB" for i in range(n_microbatches)]
        for stage in range(n_stages)
    ]


def one_f_one_b_schedule(n_stages: int, n_microbatches: int) -> list[list[tuple[str, int, int]]]:
    """1F1B: a backward as soon as there can be one, so that few micro-batches are alive.

    Stage s of p begins with p − 1 − s forwards (with all of them, if there are fewer),
    then runs one forward and one backward in turn while there are forwards, then the
    backwards that are left. Both go by micro-batch from 0 on. Returns for each rank its
    list of actions, tuples ("F" or "B", stage, micro-batch); rank r has stage r. Any
    number of micro-batches will do, fewer than stages too. Source: Narayanan et al.
    (2019), with a flush at the end (2021).
    """
    schedule = []
    for stage in range(n_stages):
        warmup = min(n_stages - 1 - stage, n_microbatches)
        actions = [("F", stage, i) for i in range(warmup)]
        for i in range(warmup, n_microbatches):
            actions += [("F", stage, i), ("B", stage, i - warmup)]
        actions += [("B", stage, i) for i in range(n_microbatches - warmup, n_microbatches)]
        schedule.append(actions)
    return schedule


def _in_turn(
    forwards: list[Action], backwards: list[Action], warmup: int, lag: int | None = None
) -> list[Action]:
    """`warmup` forwards, then one of each in turn, then the other backwards.

    lag: split each backward into I and W, and let W come that many I later; what is left of the Ws
    comes at the end.
    """
    actions = forwards[:warmup]
    weights = [("W", stage, i) for _, stage, i in backwards]
    for n, (kind, stage, i) in enumerate(backwards):
        actions += forwards[warmup + n : warmup + n + 1]
        actions.append((kind if lag is None else "I", stage, i))
        if lag is not None and n >= lag:
            actions.append(weights.pop(0))
    return actions if lag is None else actions + weights


def interleaved_schedule(n_ranks: int, n_microbatches: int, n_chunks: int) -> Schedule:
    """1F1B with several stages on each rank: rank r has stages r, r + n_ranks, r + 2 n_ranks, …

    Micro-batches go in groups of n_ranks (or of all, if there are fewer): a group through the first
    chunk, then through the second, … . Raises ValueError if there are more than n_ranks, and no
    multiple of the number of groups. Source: Narayanan et al. (2021), section 2.2.2.
    """
    return _by_chunks(n_ranks, n_microbatches, n_chunks, ahead=2)


def zero_bubble_schedule(n_ranks: int, n_microbatches: int, n_chunks: int = 1) -> Schedule:
    """1F1B whose backwards are split: I as early as B was, W later, where a rank would wait.

    With one chunk it is ZB-H1, which keeps 1F1B's memory; with more, what torch calls
    InterleavedZeroBubble. Raises ValueError as `interleaved_schedule` does. Source: Qi et al. (2024).
    """
    return _by_chunks(n_ranks, n_microbatches, n_chunks, ahead=1, split=True)


def _by_chunks(
    n_ranks: int, n_microbatches: int, n_chunks: int, ahead: int, split: bool = False
) -> Schedule:
    """Groups of micro-batches, each through all chunks of a rank; then one forward, one backward in turn.

    ahead: how many forwards more than the next rank a rank begins with. split: of rank r's backwards,
    let W follow I at a distance of r.
    """
    groups = max(1, n_microbatches // n_ranks)
    if n_chunks == 1:
        groups = 1  # the order is the same in groups or not
    elif n_microbatches % groups:
        raise ValueError(f"{n_microbatches} micro-batches cannot form {groups} groups of one size")
    group = n_microbatches // groups
    order = [
        (chunk, first * group + i)
        for first in range(groups)
        for chunk in range(n_chunks)
        for i in range(group)
    ]
    schedule = []
    for rank in range(n_ranks):
        forwards = [("F", chunk * n_ranks + rank, i) for chunk, i in order]
        backwards = [("B", (n_chunks - 1 - chunk) * n_ranks + rank, i) for chunk, i in order]
        warmup = (n_chunks - 1) * group + ahead * (n_ranks - 1 - rank)
        schedule.append(_in_turn(forwards, backwards, warmup, lag=rank if split else None))
    return schedule


def peak_microbatches(schedule: Sequence[Sequence[tuple[str, int, int]]]) -> list[int]:
    """For each rank the most activations that it holds at once: one for each micro-batch and stage.

    schedule: for each rank its actions in order, tuples (kind, stage, micro-batch). A
    forward, "F", saves one; a full backward, "B", frees it when it is done. Where the
    backward is split, the gradient of the weights, "W", frees it, and "I" does not.
    """
    peaks = []
    for actions in schedule:
        alive = peak = 0
        for kind, _, _ in actions:
            if kind == "F":
                alive += 1
            elif kind in ("B", "W"):
                alive -= 1
            peak = max(peak, alive)
        peaks.append(peak)
    return peaks


def timeline(
    schedule: Sequence[Sequence[tuple[str, int, int]]],
    seconds: Mapping[str, Sequence[float]],
    hop: float = 0.0,
) -> dict[tuple[str, int, int], tuple[float, float]]:
    """When each action starts and ends, if each starts as early as it can.

    schedule: for each rank its actions, tuples (kind, stage, micro-batch), which it runs
    in this order, one at a time, from time 0 on; each occurs once. seconds: kind → the
    time that it takes on each stage, for all kinds that occur. hop: how long a message
    between two ranks takes; it keeps neither of them busy. Between two stages of one rank
    nothing travels.

    A forward, "F", of stage s needs that of stage s − 1, if there is one. A backward, "B"
    or "I", of stage s needs the forward of stage s, and the backward, "B" or "I", of
    stage s + 1, if there is one. "W" needs "I" of its own stage. All of the same
    micro-batch.

    Raises ValueError for a schedule whose ranks wait for one another, or for what nobody
    runs. (A good message names the action that each stuck rank waits to run, as in
    "rank 1: 1F0"; the checks do not read it.)
    """
    rank_of = {stage: rank for rank, actions in enumerate(schedule) for _, stage, _ in actions}
    last = max(rank_of, default=0)
    times: dict[tuple[str, int, int], tuple[float, float]] = {}
    at, free = [0] * len(schedule), [0.0] * len(schedule)

    def needs(kind: str, stage: int, i: int) -> list[tuple[str, int, int]]:
        """What must be done before it."""
        if kind == "F":
            return [("F", stage - 1, i)] if stage > 0 else []
        if kind == "W":
            return [("I", stage, i)]
        due = "I" if ("I", stage + 1, i) in times else "B"
        return [("F", stage, i)] + ([(due, stage + 1, i)] if stage < last else [])

    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(schedule):
            while at[rank] < len(actions):
                action = actions[at[rank]]
                kind, stage, _ = action
                before = needs(*action)
                if any(need not in times for need in before):
                    break
                start = free[rank]
                for need in before:
                    start = max(start, times[need][1] + hop * (rank_of[need[1]] != rank))
                free[rank] = start + seconds[kind][stage]
                times[action] = start, free[rank]
                at[rank] += 1
                moved = True
    waiting = [
        f"rank {rank}: {shown(actions[at[rank]])}"
        for rank, actions in enumerate(schedule)
        if at[rank] < len(actions)
    ]
    if waiting:
        raise ValueError(f"deadlock: {', '.join(waiting)}")
    return times


def bubble(
    schedule: Sequence[Sequence[Action]], times: Mapping[Action, tuple[float, float]]
) -> float:
    """The share of all ranks' time, until the last action ends, in which they wait."""
    busy = sum(end - start for start, end in times.values())
    return 1 - busy / (len(schedule) * max(end for _, end in times.values()))


def weight_versions(schedule: Sequence[Sequence[Action]]) -> dict[Action, int]:
    """How many updates a rank has made before each action, if each backward is followed by one."""
    versions: dict[Action, int] = {}
    for actions in schedule:
        updates = 0
        for action in actions:
            versions[action] = updates
            updates += action[0] == "B"
    return versions
