"""Exercises of chapter 16, process groups: ranks, what messages cost, trees and rings."""

import math
from typing import Any



from hypothesis import strategies as st

from course_utils.grading import Exercise, call
from course_utils.reference import process_groups as pg


# ------------------------------------------------------------------------------ rank_of

rank_of = Exercise(
    pg.rank_of,
    title="Which rank is it?",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "How many processes run on the nodes before this one?",
        "The nodes need not have the same number of processes: add up `local_world_sizes[:node]`.",
        ("edge cases", "What should happen where there is no such node, or no such process on it?"),
    ),
)


@rank_of.by_hand
def _():
    yield call(0, 3, (8, 8)), 3
    yield call(1, 3, (8, 8)), 11
    yield call(2, 0, (4, 2, 4)), 6


@rank_of.cases(40)
def _(draw):
    sizes = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=5)))
    node = draw(st.integers(0, len(sizes) - 1))
    yield call(node, draw(st.integers(0, sizes[node] - 1)), sizes)


@rank_of.edge
def _():
    yield call(0, 0, (1,)), "a job of one process"
    yield call(127, 7, (8,) * 128), "1,024 processes: the last one"
    yield call(1, 5, (8, 4)), "the second node has only four processes"
    yield call(2, 0, (8, 4)), "there is no third node"
    yield call(1, 4, (8, 4)), "its local ranks end at 3"
    yield call(-1, 0, (8, 4)), "no negative nodes"
    yield call(1, -1, (8, 4)), "no negative local ranks"
    yield call(0, 0, ()), "a job without nodes"


def checked(node, local_rank, sizes):
    if not (0 <= node < len(sizes) and 0 <= local_rank < sizes[node]):
        raise ValueError("no such process")


@rank_of.mistake(
    "You multiply the node by its own number of processes. That is right only where all nodes run "
    "equally many: add up those of the nodes before it."
)
def _(node, local_rank, local_world_sizes):
    checked(node, local_rank, local_world_sizes)
    return node * local_world_sizes[node] + local_rank


@rank_of.mistake(
    "You multiply the node by the first node's number of processes. Nodes may differ: add up those of "
    "the nodes before it."
)
def _(node, local_rank, local_world_sizes):
    checked(node, local_rank, local_world_sizes)
    return node * local_world_sizes[0] + local_rank


@rank_of.mistake(
    "You count this node's own processes among those before it. `local_world_sizes[:node]` leaves the "
    "node itself out."
)
def _(node, local_rank, local_world_sizes):
    checked(node, local_rank, local_world_sizes)
    return sum(local_world_sizes[: node + 1]) + local_rank


@rank_of.mistake(
    "You deal ranks out like cards, one to each node in turn. torchrun numbers a node's processes one "
    "after the other, so that neighbours share a machine."
)
def _(node, local_rank, local_world_sizes):
    checked(node, local_rank, local_world_sizes)
    before = sum(min(size, local_rank) for size in local_world_sizes)
    return before + sum(size > local_rank for size in local_world_sizes[:node])


@rank_of.mistake(
    "You take any node and local rank, and Python's slices and negative indices answer something. A "
    "process that does not exist must raise ValueError, or the mistake shows up hours later as a hang."
)
def _(node, local_rank, local_world_sizes):
    return sum(local_world_sizes[:node]) + local_rank


@rank_of.alternative("count through all processes")
def _(node, local_rank, local_world_sizes):
    everyone = [(i, j) for i, size in enumerate(local_world_sizes) for j in range(size)]
    return everyone.index((node, local_rank))  # ValueError where it is not among them


@rank_of.alternative("itertools.accumulate")
def _(node, local_rank, local_world_sizes):
    from itertools import accumulate

    sizes = list(local_world_sizes)
    if node not in range(len(sizes)) or local_rank not in range(sizes[node]):
        raise ValueError(f"no process {local_rank} on node {node}")
    return [0, *accumulate(sizes)][node] + local_rank


# ------------------------------------------------------------------------------ all_reduce_time

all_reduce_time = Exercise(
    pg.all_reduce_time,
    title="What an all-reduce costs",
    difficulty=2,
    minutes=20,
    points=2,
    hints=(
        "How many messages are there one after the other, and how many bytes has each?",
        "Root: n − 1 in, n − 1 out. Tree: ⌈log2 n⌉ rounds each way. Ring: n − 1 steps, twice.",
        "Only on the ring is a message shorter than the tensor: an n-th of it.",
        ("edge cases", "One rank has nobody to send to. And 5 ranks need three rounds, not 2.32."),
    ),
)


@all_reduce_time.by_hand
def _():
    yield call(1000, 4, 1.0, 0.0, "ring"), 6.0
    yield call(1000, 4, 0.0, 1.0, "ring"), 1500.0
    yield call(1000, 4, 1.0, 1.0, "tree"), 4004.0
    yield call(1000, 4, 1.0, 1.0, "root"), 6006.0
    yield call(1000, 4, 1.0, 0.0), 6.0


@all_reduce_time.cases(40)
def _(draw):
    yield call(
        2 ** draw(st.integers(0, 30)),
        draw(st.integers(2, 64)),
        draw(st.sampled_from([0.5e-6, 3e-6, 50e-6])),
        draw(st.sampled_from([1 / 450e9, 1 / 50e9, 1e-9])),
        draw(st.sampled_from(["root", "tree", "ring"])),
    )


@all_reduce_time.edge
def _():
    for algorithm in ("root", "tree", "ring"):
        yield call(1000, 1, 1.0, 1.0, algorithm), "one rank alone sends nothing"
        yield call(0, 8, 2.0, 1.0, algorithm), "no bytes: latency alone"
        yield call(1000, 0, 1.0, 1.0, algorithm), "no ranks at all"
    yield call(1000, 5, 1.0, 1.0, "tree"), "five ranks need three rounds"
    yield call(1000, 1024, 1.0, 0.0, "tree"), "a thousand ranks in ten rounds"
    yield call(7, 3, 1.0, 1.0, "ring"), "7 bytes in thirds: the model does not round"
    yield call(1000, 4, 1.0, 1.0, "butterfly"), "no such algorithm"


def costed(n_bytes, n, alpha, beta, algorithm, *, ways=2, steps=None, chunk=None, log=None, check=True):
    """The reference with one thing changed, for the mistakes below."""
    if check and n < 1:
        raise ValueError("no ranks")
    if n < 1:
        return 0.0
    if algorithm not in ("root", "tree", "ring"):
        raise ValueError("no such algorithm")
    if algorithm == "tree":
        rounds = math.ceil(math.log2(n)) if log is None else log(n)
        return ways * rounds * (alpha + n_bytes * beta)
    size = n_bytes
    if algorithm == "ring":
        size = n_bytes / n if chunk is None else chunk(n_bytes, n)
    count = n - 1 if steps is None or algorithm == "root" else steps(n)
    return ways * count * (alpha + size * beta)


@all_reduce_time.mistake(
    "You count one way only. The sums must also come back: a reduce and a broadcast, or a "
    "reduce-scatter and an all-gather."
)
def _(n_bytes, world_size, alpha, beta, algorithm="ring"):
    return costed(n_bytes, world_size, alpha, beta, algorithm, ways=1)


@all_reduce_time.mistake(
    "Your ring sends the whole tensor in each step. It sends an n-th of it, which is the point of the ring."
)
def _(n_bytes, world_size, alpha, beta, algorithm="ring"):
    return costed(n_bytes, world_size, alpha, beta, algorithm, chunk=lambda b, n: b)


@all_reduce_time.mistake(
    "Your ring takes n steps each way. A chunk that has passed n − 1 links has met every rank."
)
def _(n_bytes, world_size, alpha, beta, algorithm="ring"):
    if algorithm == "ring" and world_size == 1:
        return 0.0
    return costed(n_bytes, world_size, alpha, beta, algorithm, steps=lambda n: n)


@all_reduce_time.mistake(
    "You do not round log2 n up. There are no fractions of a round: 5 ranks take 3."
)
def _(n_bytes, world_size, alpha, beta, algorithm="ring"):
    return costed(n_bytes, world_size, alpha, beta, algorithm, log=math.log2)


@all_reduce_time.mistake(
    "You round log2 n down. The ranks beyond the power of two have to be reached too: 5 ranks take 3 rounds."
)
def _(n_bytes, world_size, alpha, beta, algorithm="ring"):
    return costed(n_bytes, world_size, alpha, beta, algorithm, log=lambda n: n.bit_length() - 1)


@all_reduce_time.mistake(
    "You pay α once. Every message has its own latency, and the steps follow one another."
)
def _(n_bytes, world_size, alpha, beta, algorithm="ring"):
    bare = costed(n_bytes, world_size, 0.0, beta, algorithm)
    return bare + alpha if world_size > 1 else bare


@all_reduce_time.mistake(
    "You divide by β. It is the seconds that a byte takes, one over the bandwidth: multiply by it."
)
def _(n_bytes, world_size, alpha, beta, algorithm="ring"):
    return costed(n_bytes, world_size, alpha, 1 / beta if beta else 0.0, algorithm)


@all_reduce_time.alternative("a table: how many messages one after the other, and how long each")
def _(n_bytes, world_size, alpha, beta, algorithm="ring"):
    if world_size < 1:
        raise ValueError("a world has at least one rank")
    rounds = (world_size - 1).bit_length()
    table = {
        "root": (2 * (world_size - 1), n_bytes),
        "tree": (2 * rounds, n_bytes),
        "ring": (2 * (world_size - 1), n_bytes / world_size),
    }
    if algorithm not in table:
        raise ValueError(algorithm)
    messages, size = table[algorithm]
    return messages * alpha + messages * size * beta
