"""Exercises of chapter 16, process groups: ranks, what messages cost, trees and rings."""
# mypy: ignore-errors

import math

import torch
import torch.distributed as dist
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, on_ranks, probes, replace
from course_utils.reference import process_groups as pg
from course_utils.reference.process_groups import exchange

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
    yield call(0, 5, (4, 4)), "the job has a rank 5, but not this node"
    yield call(0, 4, (4, 8)), "another node has a local rank 4"
    yield call(2, 2, (8, 4, 2)), "its local ranks end at 1"
    yield call(-1, 0, (8, 4)), "no negative nodes"
    yield call(1, -1, (8, 4)), "no negative local ranks"
    yield call(0, -1, (8, 4)), "no negative local ranks"
    yield call(0, 0, ()), "a job without nodes"


rank_of.mistake(
    "You multiply the node by its own number of processes. That is right only where all nodes run "
    "equally many: add up those of the nodes before it.",
    replace("sum(local_world_sizes[:node])", "node * local_world_sizes[node]"),
)
rank_of.mistake(
    "You multiply the node by the first node's number of processes. Nodes may differ: add up those of "
    "the nodes before it.",
    replace("sum(local_world_sizes[:node])", "node * local_world_sizes[0]"),
)
rank_of.mistake(
    "You count this node's own processes among those before it. `local_world_sizes[:node]` leaves the "
    "node itself out.",
    replace("[:node]", "[: node + 1]"),
)
rank_of.mistake(
    "You deal ranks out like cards, one to each node in turn. torchrun numbers a node's processes one "
    "after the other, so that neighbours share a machine.",
    replace(
        "sum(local_world_sizes[:node]) + local_rank",
        "sum(min(size, local_rank + (i < node)) for i, size in enumerate(local_world_sizes))",
    ),
)
rank_of.mistake(
    "You take any node and local rank, and Python's slices and negative indices answer something. A "
    "process that does not exist must raise ValueError, or the mistake shows up hours later as a hang.",
    replace("not 0 <= node", "False and node")
    + replace("not 0 <= local_rank", "False and local_rank"),
)


rank_of.mistake(
    "You check the local rank against all processes of the job. It counts those of one node.",
    replace("< local_world_sizes[node]:", "< sum(local_world_sizes):"),
)
rank_of.mistake(
    "You check the global rank against the size of the job: a local rank that is too large, or negative, comes out as a "
    "process of another node. Check it against its own node.",
    replace(
        "0 <= local_rank < local_world_sizes[node]:",
        "0 <= sum(local_world_sizes[:node]) + local_rank < sum(local_world_sizes):",
    ),
)
rank_of.mistake(
    "You check the local rank against the largest node, and not against its own.",
    replace("< local_world_sizes[node]:", "< max(local_world_sizes):"),
)
rank_of.mistake(
    "You check that the node exists, and not that it has such a process.",
    replace("not 0 <= local_rank", "False and local_rank"),
)
rank_of.mistake(
    "You check the local rank, and not that the job has such a node: Python takes a negative index, and its "
    "IndexError is no ValueError.",
    replace("not 0 <= node", "False and node"),
)
rank_of.mistake(
    "You let a negative node through: as an index, −1 means the last one.",
    replace("0 <= node <", "node <"),
)
rank_of.mistake(
    "You let a negative local rank through: it is that of a process of another node, or of none.",
    replace("0 <= local_rank <", "local_rank <"),
)
rank_of.mistake(
    "You take a local rank as large as the number of processes on its node. They are counted from 0: the "
    "last one is one less.",
    replace("local_rank < local_world_sizes[node]:", "local_rank <= local_world_sizes[node]:"),
)
rank_of.mistake(
    "You let negative numbers through: as an index, −1 means the last one.",
    replace("0 <= node <", "node <") + replace("0 <= local_rank <", "local_rank <"),
)


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
        yield call(1000, -3, 1.0, 1.0, algorithm), "a negative number of ranks"
    yield call(1000, 5, 1.0, 1.0, "tree"), "five ranks need three rounds"
    yield call(1000, 1024, 1.0, 0.0, "tree"), "a thousand ranks in ten rounds"
    yield call(7, 3, 1.0, 1.0, "ring"), "7 bytes in thirds: the model does not round"
    for world in (1, 4):
        yield call(1000, world, 1.0, 1.0, "butterfly"), "no such algorithm"


all_reduce_time.mistake(
    "You count one way only. The sums must also come back: a reduce and a broadcast, or a "
    "reduce-scatter and an all-gather.",
    replace("2 * (world_size - 1) * message", "(world_size - 1) * message")
    + replace("2 * math.ceil", "math.ceil")
    + replace("2 * (world_size - 1) * (alpha", "(world_size - 1) * (alpha"),
)
all_reduce_time.mistake(
    "Your ring sends the whole tensor in each step. It sends an n-th of it, which is the point of the ring.",
    replace("n_bytes / world_size * beta", "n_bytes * beta"),
)
all_reduce_time.mistake(
    "Your ring takes n steps each way. A chunk that has passed n − 1 links has met every rank.",
    replace("2 * (world_size - 1) * (alpha", "2 * (world_size if world_size > 1 else 0) * (alpha"),
)
all_reduce_time.mistake(
    "You divide the ring's latency by n as well. Shorter messages do not start sooner: each of the "
    "2(n − 1) steps pays the whole α.",
    replace("(alpha + n_bytes / world_size * beta)", "message / world_size"),
)
all_reduce_time.mistake(
    "You do not round log2 n up. There are no fractions of a round: 5 ranks take 3.",
    replace("math.ceil(math.log2(world_size))", "math.log2(world_size)"),
)
all_reduce_time.mistake(
    "You round log2 n down. The ranks beyond the power of two have to be reached too: 5 ranks take 3 rounds.",
    replace("math.ceil", "math.floor"),
)


for rounds in ("world_size.bit_length()", "(world_size.bit_length() if world_size > 1 else 0)"):
    all_reduce_time.mistake(
        "Your tree takes a round too many where the number of ranks is a power of two: 4 ranks take 2 rounds.",
        replace("math.ceil(math.log2(world_size))", rounds),
    )


@all_reduce_time.mistake(
    "You pay α once. Every message has its own latency, and the steps follow one another."
)
def _(n_bytes, world_size, alpha, beta, algorithm="ring"):
    bare = pg.all_reduce_time(n_bytes, world_size, 0.0, beta, algorithm)
    return bare + alpha if world_size > 1 else bare


all_reduce_time.mistake(
    "You divide by β. It is the seconds that a byte takes, one over the bandwidth: multiply by it.",
    replace("n_bytes * beta", "n_bytes / beta") + replace("world_size * beta", "world_size / beta"),
)
all_reduce_time.mistake(
    "You round the chunk down to whole bytes. The model does not round: an n-th of them it is.",
    replace("n_bytes / world_size", "n_bytes // world_size"),
)
all_reduce_time.mistake(
    "Your root sends a message to itself, too. Of n ranks n − 1 send, and n − 1 receive.",
    replace(
        "2 * (world_size - 1) * message", "2 * (world_size if world_size > 1 else 0) * message"
    ),
)
all_reduce_time.mistake(
    "For one rank you return before you look at the algorithm, which need not be one.",
    replace("    message = ", "    if world_size == 1:\n        return 0.0\n    message = "),
)
all_reduce_time.mistake(
    "You take every algorithm that is neither root nor tree for a ring. Raise ValueError for one that is none.",
    replace('if algorithm == "ring":', "if True:"),
)
all_reduce_time.mistake(
    "You refuse a world of 0 ranks, but not one of fewer.",
    replace("world_size < 1", "world_size == 0"),
)
all_reduce_time.mistake(
    "You take any world size. There is no job of fewer than one rank: raise ValueError.",
    replace("    if world_size < 1:", "    if False:"),
)


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


# ------------------------------------------------------------------------------ on ranks


def numbers(draw, shape):
    """Small whole numbers: sums are exact in whatever order they are taken."""
    values = draw(
        st.lists(st.integers(-8, 8), min_size=math.prod(shape), max_size=math.prod(shape))
    )
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64]))
    return torch.tensor(values, dtype=dtype).reshape(shape)


def same_on_ranks(draw, world, *, low=0):
    """A tensor for each rank, of one shape, dtype and stride: contiguous, transposed or sliced."""
    shape = draw(st.sampled_from([(7,), (4,), (3, 5), (2, 3, 2), (9,), (1,), ()]))
    kind = draw(st.sampled_from(["contiguous", "transposed", "sliced"]))
    first = numbers(draw, shape)
    found = []
    for rank in range(world):
        x = (first + rank * 3) * (rank + 1)
        if kind == "transposed" and x.dim() > 1:
            x = x.transpose(0, -1)
        elif kind == "sliced" and x.dim():
            x = torch.stack([x, x], dim=-1)[..., 0]
        found.append(x)
    return found


def n_bytes_of(case):
    x = case.calls[0].args[0]
    return x.numel() * x.element_size()


FOUR = [torch.arange(1002.0) + rank for rank in range(4)]
THREE = [torch.arange(100.0) * (rank + 1) for rank in range(3)]


# ------------------------------------------------------------------------------ tree_broadcast

tree_broadcast = Exercise(
    pg.tree_broadcast,
    title="Broadcast by a tree",
    difficulty=2,
    minutes=25,
    points=2,
    probe=probes.in_rounds,
    hints=(
        "Number the ranks from the root: `place = (rank - root) % world_size`. The root's place is 0.",
        "Let `reached` count the places that have the data: 1, 2, 4, … In each round place p < reached "
        "sends to place p + reached, if there is one.",
        "A rank with reached <= place < 2 * reached receives in that round. Everyone else does nothing.",
        (
            "random cases",
            "`send` and `recv` take contiguous tensors only, and `flatten()` of every other element is "
            "still strided: use `contiguous()`, and copy back.",
        ),
        (
            "worked by hand",
            "In a round every rank sends one message at most. The root sends ⌈log2 n⌉ in all, and whoever "
            "has the data helps.",
        ),
    ),
)


@tree_broadcast.by_hand
def _():
    x = [torch.tensor([float(rank), 5.0]) for rank in range(4)]
    yield (
        on_ranks(*((t,) for t in x)),
        {f"rank {rank}: argument `x` afterwards": x[0] for rank in (1, 2, 3)},
    )
    yield (
        on_ranks((x[0], 1), (x[1], 1)),
        {"rank 0: argument `x` afterwards": x[1]},
    )


@tree_broadcast.cases(14)
def _(draw):
    world = draw(st.integers(1, 4))
    root = draw(st.integers(0, world - 1))
    yield on_ranks(*((x, root) for x in same_on_ranks(draw, world)))


@tree_broadcast.edge
def _():
    yield on_ranks((torch.arange(3.0),)), "one rank alone"
    for root in range(3):
        xs = [torch.arange(6.0).reshape(2, 3) + 10 * rank for rank in range(3)]
        yield on_ranks(*((x, root) for x in xs)), "three ranks: no power of two"
    yield on_ranks(*((torch.full((2, 3), r + 1.0).T, 3) for r in range(4))), "transposed"
    mixed = [torch.arange(6.0).reshape(2, 3), torch.arange(6.0, 12.0).reshape(3, 2).T]
    yield on_ranks(*((x,) for x in mixed)), "strides that differ from rank to rank"
    yield on_ranks(*((torch.tensor(r + 0.5), 2) for r in range(4))), "a tensor without axes"
    xs = [torch.arange(12.0)[rank::3] for rank in range(3)]
    yield on_ranks(*((x, 1) for x in xs)), "every third element"
    yield on_ranks(*((torch.full((2,), r + 1.0),) for r in range(7))), "seven ranks in three rounds"


FINE = [1 + 2.0**-20, 2.0**24 + 1, 1e-30, math.pi]  # numbers that no narrower dtype holds


@tree_broadcast.edge
def _():
    fine = torch.tensor(FINE, dtype=torch.float64)
    yield on_ranks(*((fine * (r + 1),) for r in range(3))), "numbers that need all of float64"
    large = torch.tensor([2**40 + 1, -(2**53) - 1])
    yield on_ranks(*((large + r, 1) for r in range(2))), "whole numbers beyond float64's"


tree_broadcast.contract(
    contracts.collectives(
        [on_ranks(*((x,) for x in FOUR))],
        limit=0,
        says="point-to-point messages only",
        probe=probes.in_rounds,
    )
)

COPY_BACK = "    if data is not x:\n        x.copy_(data)"
FROM_THE_FARTHEST = (
    replace("reached = 1", "reached = 2 ** (world_size - 1).bit_length() // 2")
    + replace("while reached < world_size", "while reached >= 1")
    + replace("if place < reached and", "if place % (2 * reached) == 0 and")
    + replace("reached <= place < 2 * reached", "place % (2 * reached) == reached")
    + replace("reached *= 2", "reached //= 2")
)
A_COPY = replace("data = x.contiguous()", "data = x.clone(memory_format=torch.contiguous_format)")

tree_broadcast.mistake(
    "You broadcast from rank 0, whatever `root` says. Number the ranks from the root: "
    "(rank - root) % world_size.",
    replace("(rank - root) % world_size", "rank"),
)
tree_broadcast.slips(
    dict.fromkeys(
        (
            replace("while reached < world_size", "while 2 * reached < world_size"),
            FROM_THE_FARTHEST + replace("while reached >= 1", "while reached > 1"),
        ),
        "You stop a round too early: the places of the last round never receive. Go on until every place "
        "is reached.",
    )
)
tree_broadcast.mistake(
    "You round log2 n down. Where n is no power of two, the last ranks need a round of their own.",
    replace("while reached < world_size", "while 2 * reached <= world_size"),
)
tree_broadcast.mistake(
    "Where `x` is not contiguous you receive into a copy and leave it there. Copy the data back into `x`.",
    replace(COPY_BACK, ""),
)
tree_broadcast.mistake(
    "You return the data and leave `x` as it was. A broadcast overwrites `x`, as `dist.broadcast` does.",
    A_COPY + replace(COPY_BACK, "    return data"),
)
tree_broadcast.mistake(
    "Where n is no power of two you send to places that do not exist; with % they come out as ranks "
    "that already have the data, and expect nothing. Check that place + reached < world_size.",
    replace(" and place + reached < world_size", ""),
)


tree_broadcast.mistake(
    "You send to places, or receive from them, as if they were ranks. Places count from the root: add it to "
    "them, modulo the world size.",
    replace("(rank + reached) % world_size", "place + reached")
    + replace("(rank - reached) % world_size", "place - reached"),
)
tree_broadcast.mistake(
    "You add the root to a place and do not take the sum modulo the world size, so that it may be no "
    "rank at all: after the last comes rank 0.",
    replace("(rank + reached) % world_size", "place + reached + root")
    + replace("(rank - reached) % world_size", "place - reached + root"),
)
tree_broadcast.mistake(
    "You send and receive `x` as it is. Messages take contiguous tensors only: work on `x.contiguous()`, and "
    "copy the data back.",
    replace("data = x.contiguous()", "data = x"),
)
tree_broadcast.mistake(
    "`clone()` keeps the strides of a transposed tensor, and messages take contiguous tensors only: `contiguous()` does "
    "not keep them, nor does `clone(memory_format=torch.contiguous_format)`.",
    replace("x.contiguous()", "x.clone()"),
)
tree_broadcast.mistake(
    "What you receive into is float32, whatever `x` is: its dtype is that of the message.",
    replace(
        "data = x.contiguous()", "data = x.contiguous() if place == 0 else torch.empty(x.shape)"
    ),
)
tree_broadcast.mistake(
    "The root sends to every rank itself: n − 1 messages, one after the other. Let those who have the "
    "data already help.",
    replace("place < reached and", "place == 0 and")
    + replace("reached <= place < 2 * reached", "place == reached")
    + replace("(rank - reached)", "(rank - place)")
    + replace("reached *= 2", "reached += 1"),
)
tree_broadcast.mistake(
    "You pass the data on from rank to rank: n − 1 rounds. Each rank that has it must go on sending, "
    "so that their number doubles.",
    replace("place < reached and", "place == reached - 1 and")
    + replace("reached <= place < 2 * reached", "place == reached")
    + replace("(rank + reached)", "(rank + 1)")
    + replace("(rank - reached)", "(rank - 1)")
    + replace("place + reached < world_size", "place + 1 < world_size")
    + replace("reached *= 2", "reached += 1"),
)


@tree_broadcast.mistake(
    "Each rank sends to two others, as in a heap, and then no more: seven ranks take four rounds. Whoever has the data "
    "goes on sending until all have it."
)
def _(x, root=0):
    n = dist.get_world_size()
    place = (dist.get_rank() - root) % n
    data = x.contiguous()
    if place:
        dist.recv(data, ((place - 1) // 2 + root) % n)
    for child in (2 * place + 1, 2 * place + 2):
        if child < n:
            dist.send(data, (child + root) % n)
    if data is not x:
        x.copy_(data)


@tree_broadcast.mistake(
    "You call the library's own broadcast. Here it is to be made of `send` and `recv`.", cost=True
)
def _(x, root=0):
    data = x.contiguous()
    dist.broadcast(data, root)
    x.copy_(data)


@tree_broadcast.alternative("from the top: in the first round half-way across, then a quarter")
def _(x, root=0):
    rank, n = dist.get_rank(), dist.get_world_size()
    place = (rank - root) % n
    data = x.clone(memory_format=torch.contiguous_format)
    half = 1
    while 2 * half < n:
        half *= 2
    while half >= 1:
        if place % (2 * half) == 0 and place + half < n:
            dist.send(data, (place + half + root) % n)
        elif place % (2 * half) == half:
            dist.recv(data, (place - half + root) % n)
        half //= 2
    if place:
        x.copy_(data)


@tree_broadcast.alternative(
    "bits: receive at the lowest set bit of the place from the one without it; isend"
)
def _(x, root=0):
    n = dist.get_world_size()
    place = (dist.get_rank() - root) % n
    data = x.contiguous()
    rounds = range((n - 1).bit_length())
    top = place.bit_length()  # the round in which this place is reached, counted from 1
    if place:
        dist.recv(data, (place - (1 << (top - 1)) + root) % n)
    works = [
        dist.isend(data, (place + (1 << k) + root) % n)
        for k in rounds
        if k >= top and place + (1 << k) < n
    ]
    for work in works:
        work.wait()
    x.copy_(data)


tree_broadcast.equivalent(
    "tree_broadcast: `reached < world_size` → `reached <= world_size`",
    because="it adds a round where reached equals world_size, in which nobody sends (place + reached is "
    "beyond the last place) and nobody receives (no place is as large as reached)",
)


# ------------------------------------------------------------------------------ all_gather_by_p2p

all_gather_by_p2p = Exercise(
    pg.all_gather_by_p2p,
    title="All-gather around a ring",
    difficulty=2,
    minutes=20,
    points=2,
    probe=probes.on_ranks,
    hints=(
        "Make the whole result first, `split` it into the ranks' pieces (views), and fill in your own.",
        "In the first step send your own piece to the right. In each later step send what has just "
        "come from the left.",
        "In step s rank r sends piece (r - s) % n and receives piece (r - s - 1) % n.",
        (
            "edge cases",
            "A shard may be empty, and it may be every other element of something larger.",
        ),
        ("contracts", "Nobody sends all shards to everybody: each is passed on once by each rank."),
    ),
)


def shards(draw, world):
    sizes = draw(st.lists(st.integers(0, 5), min_size=world, max_size=world))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64]))
    start, found = 1, []
    for size in sizes:
        x = torch.arange(start, start + size).to(dtype)
        found.append(torch.stack([x, -x], dim=1)[:, 0] if draw(st.booleans()) else x)
        start += size
    return found, sizes


@all_gather_by_p2p.by_hand
def _():
    x = [torch.tensor([float(rank)]) for rank in (1, 2, 3)]
    yield on_ranks(*((t, [1, 1, 1]) for t in x)), [torch.tensor([1.0, 2.0, 3.0])] * 3
    x = [torch.tensor([1.0, 2.0]), torch.tensor([3.0]), torch.tensor([4.0, 5.0, 6.0])]
    whole = torch.arange(1.0, 7.0)
    yield on_ranks(*((t, [2, 1, 3]) for t in x)), [whole] * 3
    yield (
        on_ranks(
            (x[0], [2]),
        ),
        [x[0]],
    )


@all_gather_by_p2p.cases(14)
def _(draw):
    found, sizes = shards(draw, draw(st.integers(1, 4)))
    yield on_ranks(*((x, sizes) for x in found))


@all_gather_by_p2p.edge
def _():
    yield on_ranks((torch.zeros(0), [0])), "one rank, no element"
    yield on_ranks(*((torch.zeros(0), [0] * 3) for _ in range(3))), "nothing at all"
    yield (
        on_ranks(*((torch.arange(10.0)[r::4][: 2 - r % 2], [2, 1, 2, 1]) for r in range(4))),
        "strided shards of two sizes",
    )
    yield on_ranks((torch.zeros(0), [0, 3]), (torch.arange(3.0), [0, 3])), "one empty shard"
    yield on_ranks(*((torch.full((2,), r), [2] * 4) for r in range(4))), "whole numbers"


@all_gather_by_p2p.edge
def _():
    fine = torch.tensor(FINE, dtype=torch.float64)
    yield (
        on_ranks(*((fine * (r + 1), [4, 4, 4]) for r in range(3))),
        "numbers that need all of float64",
    )


def cut(x, sizes):
    """For each rank its piece of x, and all sizes."""
    return on_ranks(*((piece.clone(), sizes) for piece in x.split(sizes)))


def all_but_the_smallest(case):
    """Bytes of all pieces but one."""
    x, sizes = case.calls[0].args
    return (sum(sizes) - min(sizes)) * x.element_size()


BY_SIZE = "no rank sends or receives more than all {} but the smallest"
SHARDS = [cut(FOUR[0], [600, 200, 52, 150]), cut(THREE[0], [10, 80, 10])]
all_gather_by_p2p.contract(
    contracts.sends(SHARDS, limit=all_but_the_smallest, says=BY_SIZE.format("shards"))
)
all_gather_by_p2p.contract(
    contracts.collectives(SHARDS, limit=0, says="point-to-point messages only")
)

ZEROS = replace("new_empty", "new_zeros")  # where no piece comes there must be something
EXCHANGE = "exchange(pieces[newest], right, pieces[next_one], left)"

all_gather_by_p2p.mistake(
    "You stop a step early: one piece never comes. It takes n − 1 steps.",
    ZEROS + replace("range(world_size - 1)", "range(world_size - 2)"),
)
all_gather_by_p2p.mistake(
    "You send your own shard in every step. After the first, send on what has just come from the left.",
    replace("exchange(pieces[newest]", "exchange(pieces[rank]"),
)
all_gather_by_p2p.mistake(
    "Your indices run the wrong way round the ring: what comes from the left is piece r − 1, then "
    "r − 2, and so on.",
    ZEROS
    + replace("(rank - step) %", "(rank + step) %")
    + replace("(rank - step - 1) %", "(rank + step + 1) %"),
)
all_gather_by_p2p.mistake(
    "You send to the left and receive from the right, but number the pieces as if they came from the left.",
    ZEROS + replace("left, right =", "right, left ="),
)
all_gather_by_p2p.mistake(
    "The pieces are in the order in which they arrived, your own first. They belong in the order of the ranks.",
    replace(
        "return gathered",
        "return torch.cat([pieces[(rank - step) % world_size] for step in range(world_size)])",
    ),
)
all_gather_by_p2p.mistake(
    "You take every shard to be as long as your own. Their lengths are in `sizes`, and may differ.",
    replace(
        "    gathered = ",
        "    if len(set(sizes)) > 1:\n"
        "        raise RuntimeError('split_with_sizes expects split_sizes to sum exactly')\n"
        "    gathered = ",
    ),
)
all_gather_by_p2p.mistake(
    "Every rank sends first and receives afterwards. A send waits for its receiver, and all wait in a "
    "circle: use `exchange`, which starts both.",
    replace(
        EXCHANGE, "dist.send(pieces[newest], right)\n        dist.recv(pieces[next_one], left)"
    ),
)


all_gather_by_p2p.mistake(
    "You make the result without `shard`'s dtype: all that is copied into it becomes float32. `new_empty` "
    "takes the dtype over.",
    replace("shard.new_empty(sum(sizes))", "torch.empty(sum(sizes))"),
)
all_gather_by_p2p.mistake(
    "You pass on what comes, and never put your own shard among the pieces.",
    ZEROS + replace("    pieces[rank].copy_(shard)\n", ""),
)


all_gather_by_p2p.mistake(
    "Where the shard that you are to pass on is empty you leave out the whole step, and do not take what comes from the "
    "left. Receive all the same.",
    replace(EXCHANGE, f"if len(pieces[newest]):\n            {EXCHANGE}"),
)
all_gather_by_p2p.mistake(
    "You send `shard` as it is. Messages take contiguous tensors only: send your piece of the result, or "
    "`shard.contiguous()`.",
    replace("exchange(pieces[newest]", "exchange(pieces[newest] if step else shard"),
)


@all_gather_by_p2p.mistake(
    "Everything goes through rank 0, which sends the whole to each of the others. Around a ring no rank "
    "sends more than all shards but one.",
    cost=True,
)
def _(shard, sizes):
    rank, n = dist.get_rank(), dist.get_world_size()
    out = shard.new_empty(sum(sizes))
    pieces = out.split(list(sizes))
    if rank > 0:
        dist.send(shard.contiguous(), 0)
        dist.recv(out, 0)
        return out
    pieces[0].copy_(shard)
    for source in range(1, n):
        dist.recv(pieces[source], source)
    for to in range(1, n):
        dist.send(out, to)
    return out


@all_gather_by_p2p.mistake(
    "Everyone sends its shard to everyone else, the largest one n − 1 times. Around a ring each shard is "
    "passed on.",
    cost=True,
)
def _(shard, sizes):
    rank, n = dist.get_rank(), dist.get_world_size()
    own = shard.contiguous()
    pieces = [own if r == rank else shard.new_empty(size) for r, size in enumerate(sizes)]
    for step in range(1, n):
        exchange(own, (rank + step) % n, pieces[(rank - step) % n], (rank - step) % n)
    return torch.cat(pieces)


all_gather_by_p2p.mistake(
    "You pad every shard to the length of the longest, and send the padding, too. Every rank knows all sizes.",
    replace("sum(sizes)", "max(sizes) * len(sizes)")
    + replace("pieces = gathered.split(list(sizes))", "pieces = gathered.chunk(len(sizes))")
    + replace("pieces[rank].copy_", "pieces[rank][: len(shard)].copy_")
    + replace("return gathered", "return torch.cat([p[:n] for p, n in zip(pieces, sizes)])"),
    cost=True,
)


@all_gather_by_p2p.mistake(
    "You call the library's collectives. Here it is to be made of point-to-point messages.",
    cost=True,
)
def _(shard, sizes):
    out = shard.new_empty(sum(sizes))
    pieces = out.split(list(sizes))
    pieces[dist.get_rank()].copy_(shard)
    for root, piece in enumerate(pieces):
        dist.broadcast(piece, root)
    return out


@all_gather_by_p2p.alternative("the other way round, a list of pieces, rank 0 receives first")
def _(shard, sizes):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = {rank: shard.clone(memory_format=torch.contiguous_format)}
    for step in range(1, n):
        at = (rank + step) % n
        pieces[at] = shard.new_empty(sizes[at])
        order = [
            lambda at=at: dist.recv(pieces[at], (rank + 1) % n),
            lambda at=at: dist.send(pieces[(at - 1) % n], (rank - 1) % n),
        ]
        for act in order if rank == 0 else reversed(order):
            act()
    return torch.cat([pieces[r] for r in range(n)])


# ------------------------------------------------------------------------------ reduce_scatter_by_p2p

reduce_scatter_by_p2p = Exercise(
    pg.reduce_scatter_by_p2p,
    title="Reduce-scatter around a ring",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.on_ranks,
    hints=(
        "A partial sum travels to the right, and each rank adds its own piece of the same number. Where "
        "must the sum that ends at rank r have begun?",
        "At its right neighbour, r + 1. So rank r begins with piece (r - 1) % n: its sum has the longest "
        "way to go.",
        "In step s rank r receives the partial sum of piece (r - s - 2) % n and adds its own piece of it.",
        (
            "random cases",
            "`split` gives views. If you add into one, whose memory changes?",
        ),
        ("contracts", "What goes over a link in one step is one piece, not the whole of x."),
    ),
)


def sums(draw, world):
    sizes = draw(st.lists(st.integers(0, 4), min_size=world, max_size=world))
    first = numbers(draw, (sum(sizes),))
    strided = draw(st.booleans())
    found = []
    for rank in range(world):
        x = (first + 5 * rank) * (rank + 1)
        found.append(torch.stack([x, x], dim=1)[:, 1] if strided else x)
    return found, sizes


@reduce_scatter_by_p2p.by_hand
def _():
    x = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])]
    yield (
        on_ranks((x[0], [2, 1]), (x[1], [2, 1])),
        [torch.tensor([11.0, 22.0]), torch.tensor([33.0])],
    )
    y = [torch.tensor([1.0, 2.0, 3.0]) * 10**rank for rank in range(3)]
    yield on_ranks(*((t, [1, 1, 1]) for t in y)), [torch.tensor([111.0 * k]) for k in (1, 2, 3)]


@reduce_scatter_by_p2p.cases(14)
def _(draw):
    found, sizes = sums(draw, draw(st.integers(1, 4)))
    yield on_ranks(*((x, sizes) for x in found))


@reduce_scatter_by_p2p.edge
def _():
    yield on_ranks((torch.arange(3.0), [3])), "one rank alone: x itself is the sum"
    yield on_ranks(*((torch.zeros(0), [0] * 3) for _ in range(3))), "nothing at all"
    xs = [torch.arange(12.0).reshape(3, 4)[:, r] for r in range(3)]
    yield on_ranks(*((x, [1, 1, 1]) for x in xs)), "columns: strided"
    xs = [torch.arange(5) * 10**r for r in range(4)]
    yield on_ranks(*((x, [0, 3, 0, 2]) for x in xs)), "two ranks get nothing"


@reduce_scatter_by_p2p.edge
def _():
    fine = torch.tensor([1 + 2.0**-20, 2.0**24 + 1, 5.0], dtype=torch.float64)
    yield on_ranks(*((fine, [1, 1, 1]) for _ in range(3))), "numbers that need all of float64"
    large = torch.tensor([2**40 + 1, 2**53 + 1])
    yield on_ranks(*((large, [1, 1]) for _ in range(2))), "whole numbers beyond float64's"
    short = torch.tensor([1, -2, 3], dtype=torch.int32)
    yield on_ranks(*((short * (r + 1), [2, 1]) for r in range(2))), "whole numbers of 32 bits"


SUMMED = [
    on_ranks(*((x, [600, 200, 52, 150]) for x in FOUR)),
    on_ranks(*((x, [10, 80, 10]) for x in THREE)),
]
reduce_scatter_by_p2p.contract(
    contracts.sends(SUMMED, limit=all_but_the_smallest, says=BY_SIZE.format("pieces"))
)
reduce_scatter_by_p2p.contract(
    contracts.collectives(SUMMED, limit=0, says="point-to-point messages only")
)

FIRST = "pieces[(rank - 1) % world_size]"

reduce_scatter_by_p2p.mistake(
    "You begin with your own piece, and end with that of your right neighbour. Begin with the left "
    "neighbour's, (rank - 1) % n: it has the longest way to go.",
    replace(FIRST, "pieces[rank]") + replace("rank - step - 2", "rank - step - 1"),
)
INTO_VIEWS = (
    "You add into the pieces of `x`, which are views: the caller's gradients are overwritten by partial "
    "sums. Add into what you have received."
)
reduce_scatter_by_p2p.mistake(INTO_VIEWS, replace("received.add_(mine)", "mine.add_(received)"))
reduce_scatter_by_p2p.mistake(  # of an x with a stride, too
    INTO_VIEWS,
    replace("received.add_(mine)", "mine.add_(received)")
    + replace("x.contiguous().split", "x.split")
    + replace("exchange(partial,", "exchange(partial.contiguous(),")
    + replace("empty_like(mine)", "empty_like(mine, memory_format=torch.contiguous_format)")
    + replace("return partial", "return partial.clone()"),
)
reduce_scatter_by_p2p.mistake(
    "You pass the pieces on and do not add to them, so each rank gets what one other rank had.",
    replace("received.add_(mine)", "received"),
)
reduce_scatter_by_p2p.mistake(
    "You return the sum of your piece without the part of one rank: it takes n − 1 steps.",
    replace(FIRST, "pieces[(rank - 2) % world_size]")
    + replace("range(world_size - 1)", "range(world_size - 2)")
    + replace("rank - step - 2", "rank - step - 3"),
)
reduce_scatter_by_p2p.mistake(
    "You take the mean. A reduce-scatter sums; dividing by the number of ranks is the caller's business.",
    replace("return partial", "return (partial / world_size).to(x.dtype)"),
)
reduce_scatter_by_p2p.mistake(
    "You cut `x` into n equal pieces. How many elements each rank is to get is in `sizes`.",
    replace("split(list(sizes))", "tensor_split(world_size)"),
)
reduce_scatter_by_p2p.mistake(
    "Every rank sends first and receives afterwards. A send waits for its receiver, and all wait in a "
    "circle: use `exchange`, which starts both.",
    replace(
        "exchange(partial, right, received, left)",
        "dist.send(partial, right)\n        dist.recv(received, left)",
    ),
)


reduce_scatter_by_p2p.mistake(
    "You stop a step early: what you return is a sum on its way to your right neighbour. It takes n − 1 "
    "steps.",
    replace("range(world_size - 1)", "range(world_size - 2)"),
)
reduce_scatter_by_p2p.mistake(
    "`sum` makes int64 of whole numbers that are narrower, and a partial sum must keep the dtype of `x`: add with `+` or "
    "`add_`.",
    replace("received.add_(mine)", "torch.stack([received, mine]).sum(0)"),
)
reduce_scatter_by_p2p.mistake(
    "You send pieces of `x` as they are. Messages take contiguous tensors only: cut `x.contiguous()`.",
    replace("x.contiguous().split", "x.split")
    + replace("empty_like(mine)", "empty_like(mine, memory_format=torch.contiguous_format)"),
)


@reduce_scatter_by_p2p.mistake(
    "You send all of `x` to everybody, to keep a piece of the sum. Only the piece that a rank is to "
    "get need ever reach it.",
    cost=True,
)
def _(x, sizes):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, own = x.clone(memory_format=torch.contiguous_format), x.contiguous()
    for step in range(1, n):
        received = torch.empty_like(total)
        exchange(own, (rank + step) % n, received, (rank - step) % n)
        total += received
    return total.split(list(sizes))[rank]


@reduce_scatter_by_p2p.mistake(
    "Everyone sends to each rank the piece that is its own, and who gets the largest receives it n − 1 "
    "times. Let partial sums travel.",
    cost=True,
)
def _(x, sizes):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = x.contiguous().split(list(sizes))
    total = pieces[rank].clone()
    for step in range(1, n):
        received = torch.empty_like(total)
        exchange(pieces[(rank + step) % n], (rank + step) % n, received, (rank - step) % n)
        total += received
    return total


@reduce_scatter_by_p2p.mistake(
    "You call the library's all-reduce and keep your piece. It is to be made of point-to-point messages.",
    cost=True,
)
def _(x, sizes):
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total.split(list(sizes))[dist.get_rank()].clone()


@reduce_scatter_by_p2p.alternative(
    "the other way round the ring, sums in the widest dtype of their kind"
)
def _(x, sizes):
    rank, n = dist.get_rank(), dist.get_world_size()
    wide = torch.float64 if x.is_floating_point() else torch.int64
    pieces = x.to(wide).contiguous().split(list(sizes))
    at = (rank + 1) % n
    partial = pieces[at].clone()
    while at != rank:
        at = (at + 1) % n
        received = partial.new_empty(sizes[at])
        # in the inputs' own dtype over the wire
        wire, into = partial.to(x.dtype), received.to(x.dtype)
        exchange(wire, (rank - 1) % n, into, (rank + 1) % n)
        partial = into.to(wide) + pieces[at]
    return partial.to(x.dtype)


# ------------------------------------------------------------------------------ ring_all_reduce

ring_all_reduce = Exercise(
    pg.ring_all_reduce,
    title="The ring all-reduce",
    difficulty=3,
    minutes=35,
    points=4,
    probe=probes.on_ranks,
    hints=(
        "Cut `x.view(-1)` with `tensor_split(n)`: n chunks that are views, whatever the length.",
        "n − 1 steps add: rank r sends chunk (r - s - 1) % n and adds what comes to chunk (r - s - 2) % n. "
        "Then n − 1 steps overwrite: it sends chunk (r - s) % n and receives chunk (r - s - 1) % n.",
        "Adding needs a buffer of one chunk. Overwriting needs none: receive into the chunk itself.",
        (
            "random cases",
            "`view(-1)` refuses a transposed tensor, and `flatten()` of every other element is still "
            "strided. Work on `x.contiguous()`, then copy back.",
        ),
        ("contracts", "2(n − 1) messages, an n-th of x each, and never a second copy of x."),
    ),
)


@ring_all_reduce.by_hand
def _():
    x = [torch.tensor([1.0, 2.0, 3.0]) * 10**rank for rank in range(3)]
    total = torch.tensor([111.0, 222.0, 333.0])
    yield (
        on_ranks(*((t,) for t in x)),
        {f"rank {rank}: argument `x` afterwards": total for rank in range(3)},
    )
    yield (
        on_ranks((torch.tensor([[1, 2]]),), (torch.tensor([[3, 4]]),)),
        {f"rank {rank}: argument `x` afterwards": torch.tensor([[4, 6]]) for rank in range(2)},
    )


@ring_all_reduce.cases(14)
def _(draw):
    yield on_ranks(*((x,) for x in same_on_ranks(draw, draw(st.integers(1, 4)))))


@ring_all_reduce.edge
def _():
    yield on_ranks((torch.arange(3.0),)), "one rank alone"
    yield on_ranks(*((torch.zeros(0),) for _ in range(3))), "no element"
    yield on_ranks(*((torch.full((2,), r + 1.0),) for r in range(4))), "fewer elements than ranks"
    yield on_ranks(*((torch.tensor(r + 1.0),) for r in range(3))), "a tensor without axes"
    yield (
        on_ranks(*((torch.arange(6.0).reshape(2, 3).T * (r + 1),) for r in range(4))),
        "transposed",
    )
    yield on_ranks(*((torch.arange(20.0)[r::4],) for r in range(4))), "every fourth element"
    yield on_ranks(*((torch.arange(11) * 10**r,) for r in range(4))), "11 elements in four chunks"
    yield (
        on_ranks(*((torch.tensor([float("inf"), 1.0, float("nan")]),) for _ in range(2))),
        "inf, NaN",
    )


@ring_all_reduce.edge
def _():
    fine = torch.tensor([1 + 2.0**-20, 2.0**24 + 1, 5.0], dtype=torch.float64)
    yield on_ranks(*((fine.clone(),) for _ in range(3))), "numbers that need all of float64"
    large = torch.tensor([2**40 + 1, 2**53 + 1])
    yield on_ranks(*((large.clone(),) for _ in range(2))), "whole numbers beyond float64's"


RINGS = [
    on_ranks(*((x,) for x in FOUR)),
    on_ranks(*((x,) for x in THREE)),
    on_ranks(*((x[:1000].view(5, 200),) for x in FOUR)),
    on_ranks(*((x[:7],) for x in FOUR)),
    on_ranks(*((x[:9],) for x in FOUR)),
]


def ring_bytes(case):
    """In each half a rank sends all chunks but one; in the second half but its right neighbour's."""
    x = case.calls[0].args[0]
    sizes = [len(chunk) for chunk in x.view(-1).tensor_split(case.world)]
    spared = min(a + b for a, b in zip(sizes, sizes[1:] + sizes[:1], strict=True))
    return (2 * x.numel() - spared) * x.element_size()


ring_all_reduce.contract(
    contracts.sends(
        RINGS,
        limit=ring_bytes,
        says="each rank sends at most twice x, less two neighbouring chunks of `tensor_split`",
    )
)
ring_all_reduce.contract(
    contracts.messages(
        RINGS[:2],
        limit=lambda case: 2 * (case.world - 1),
        says="at most 2(n − 1) messages from each rank",
    )
)
ring_all_reduce.contract(
    contracts.peak_on_ranks(
        RINGS[:1],
        limit=lambda case: n_bytes_of(case) // 2 + 8,
        says="in place: no second copy of a contiguous x",
    )
)
ring_all_reduce.contract(
    contracts.collectives(RINGS[:1], limit=0, says="point-to-point messages only")
)


SUM_ON, PASS_ON = (
    "exchange(partial, right, received, left)",
    "exchange(chunks[newest], right, chunks[next_one], left)",
)

ring_all_reduce.mistake(
    "You cut x into n chunks of numel // n elements: what is left over at the end is never summed.",
    replace("view(-1)", "view(-1)[: data.numel() // world_size * world_size]"),
)
ring_all_reduce.mistake(
    "You stop half-way: each rank has the sum of one chunk only. The second half, the all-gather, is "
    "missing.",
    replace(PASS_ON, "break"),
)
ring_all_reduce.mistake(
    "You go on adding in the second half. What comes there is finished: overwrite your chunk with it.",
    replace(
        PASS_ON,
        "received = torch.empty_like(chunks[next_one])\n"
        "        exchange(chunks[newest], right, received, left)\n"
        "        chunks[next_one].add_(received)",
    ),
)
ring_all_reduce.mistake(
    "The second half begins with the wrong chunk, one that is not finished. After n − 1 steps of "
    "adding, rank r has chunk r complete if it began with chunk r − 1.",
    replace(
        "(rank - step) % world_size, (rank - step - 1) % world_size",
        "(rank - step + 1) % world_size, (rank - step) % world_size",
    ),
)
ring_all_reduce.mistake(
    "You overwrite in the first half where you should add: sums never come about.",
    replace("mine.add_(received)", "mine.copy_(received)"),
)
ring_all_reduce.mistake(
    "Where `x` is not contiguous you sum a copy and leave `x` as it was. Copy the sum back.",
    replace(COPY_BACK, ""),
)
ring_all_reduce.mistake(
    "You return the sum and leave `x` as it was. Like `dist.all_reduce`, it overwrites `x`.",
    A_COPY + replace(COPY_BACK, "    return data"),
)
ring_all_reduce.mistake(
    "Every rank sends first and receives afterwards. A send waits for its receiver, and all wait in a "
    "circle: use `exchange`, which starts both.",
    replace(SUM_ON, "dist.send(partial, right)\n        dist.recv(received, left)")
    + replace(
        PASS_ON, "dist.send(chunks[newest], right)\n        dist.recv(chunks[next_one], left)"
    ),
)


ring_all_reduce.mistake(
    "You cut with `chunk`, which may give fewer chunks than it is asked for. `tensor_split` gives n, some of "
    "them empty.",
    replace("tensor_split", "chunk"),
)
ring_all_reduce.mistake(
    "You cut `x` along its first axis. A tensor without axes has none: cut `view(-1)`.",
    replace("data.view(-1).tensor_split", "data.tensor_split"),
)
ring_all_reduce.mistake(
    "You work on `x` as it is. `view(-1)` and messages take no other strides than contiguous ones: work on "
    "`x.contiguous()`, and copy the sum back.",
    replace("data = x.contiguous()", "data = x"),
)
ring_all_reduce.mistake(
    "`reshape(-1)` and `flatten()` copy only where no view will do: one axis with a stride stays as it is, and "
    "such chunks cannot be sent. Work on `x.contiguous()`.",
    replace(
        "data = x.contiguous()",
        "data = x.reshape(-1)",
        "data.view(-1)",
        "data",
        "if data is not x:\n        x.copy_(data)",
        "x.copy_(data.view(x.shape))",
    ),
)
ring_all_reduce.mistake(
    "`reshape(-1)` and `flatten()` copy where no view will do, and then `x` never hears of the sum; one axis with "
    "a stride stays as it is, and cannot be sent. Work on `x.contiguous()`, and copy the sum back.",
    replace(
        "data = x.contiguous()", "data = x.reshape(-1)", "data.view(-1)", "data", COPY_BACK, ""
    ),
)
ring_all_reduce.mistake(
    "You take n steps of adding, and one part comes twice. A chunk that has passed n − 1 links is complete.",
    replace("range(world_size - 1):\n        partial", "range(world_size):\n        partial"),
)
ring_all_reduce.mistake(
    "You take the mean. An all-reduce sums; dividing by the number of ranks is the caller's business.",
    replace(COPY_BACK, "    x.copy_(data / world_size)"),
)
ring_all_reduce.mistake(
    "You cut `x` along its first axis: with few rows the chunks are unequal, and some empty. Cut `view(-1)`.",
    replace("data.view(-1).tensor_split", "torch.atleast_1d(data).tensor_split"),
    cost=True,
)
ring_all_reduce.mistake(
    "You cut with `chunk`, and put empty chunks where it gives fewer than n: the others are longer, and some "
    "ranks send more than 2(n − 1)/n of x. `tensor_split` cuts evenly.",
    replace(
        "chunks = data.view(-1).tensor_split(world_size)",
        "chunks = list(data.view(-1).chunk(world_size))\n"
        "    chunks += [data.view(-1)[:0]] * (world_size - len(chunks))",
    ),
    cost=True,
)
ring_all_reduce.mistake(
    "Your last chunk takes all that is left over, up to n − 1 elements, and goes round with the others. "
    "`tensor_split` deals them out.",
    replace(
        "tensor_split(world_size)",
        "tensor_split([data.numel() // world_size * i for i in range(1, world_size)])",
    )
    + replace("chunks[0]", "chunks[-1]"),
    cost=True,
)


@ring_all_reduce.mistake(
    "Whole tensors travel, along the ring or from everyone to everyone: (n − 1) times x from each rank. "
    "Cut x into n chunks, and let only partial sums of one chunk travel.",
    cost=True,
)
def _(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    passing, total = x.contiguous(), x.clone()
    for _ in range(n - 1):
        received = torch.empty_like(passing)
        exchange(passing, (rank + 1) % n, received, (rank - 1) % n)
        passing = received
        total += received
    x.copy_(total)


@ring_all_reduce.mistake(
    "Rank 0 sums for everybody: it receives and sends n − 1 whole tensors while the other links stand "
    "idle. On a ring each rank sends 2(n − 1)/n of x.",
    cost=True,
)
def _(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    data = x.contiguous()
    if rank == 0:
        for source in range(1, n):
            received = torch.empty_like(data)
            dist.recv(received, source)
            data += received
        for to in range(1, n):
            dist.send(data, to)
    else:
        dist.send(data, 0)
        dist.recv(data, 0)
    if data is not x:
        x.copy_(data)


IN_HALVES = "for a, b in zip({}.tensor_split(2), {}.tensor_split(2)):\n            exchange(a, right, b, left)"

ring_all_reduce.mistake(
    "You send each chunk in two halves. The bytes are right, but every message costs α: 2(n − 1) of "
    "them are enough.",
    replace(SUM_ON, IN_HALVES.format("partial", "received"))
    + replace(PASS_ON, IN_HALVES.format("chunks[newest]", "chunks[next_one]")),
    cost=True,
)


@ring_all_reduce.mistake(
    "The sum is right and no byte is wasted on the way, but it takes the memory of x a second time: a clone, a "
    "buffer as large as x, or what reduce_scatter_by_p2p and all_gather_by_p2p return. Let the chunks be views "
    "of x. Adding takes a buffer of one chunk, overwriting none.",
    cost=True,
)
def _(x):
    sizes = [len(chunk) for chunk in x.reshape(-1).tensor_split(dist.get_world_size())]
    share = pg.reduce_scatter_by_p2p(x.reshape(-1), sizes)
    x.copy_(pg.all_gather_by_p2p(share, sizes).view(x.shape))


@ring_all_reduce.mistake(
    "You gather every rank's tensor on every rank, and add them up there: n − 1 whole tensors over each "
    "link, and n of them in memory. Let partial sums travel instead.",
    cost=True,
)
def _(x):
    own = x.contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    x.copy_(torch.stack(parts).sum(0))


@ring_all_reduce.mistake(
    "You call the library's all-reduce. Here it is to be made of point-to-point messages.",
    cost=True,
)
def _(x):
    data = x.contiguous()
    dist.all_reduce(data)
    if data is not x:
        x.copy_(data)


@ring_all_reduce.alternative("the other way round the ring, with isend and irecv")
def _(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    data = x.contiguous()
    chunks = data.flatten().tensor_split(n) if data.dim() == 0 else data.view(-1).tensor_split(n)
    at = (rank + 1) % n
    for _ in range(n - 1):
        then = (at + 1) % n
        received = torch.empty_like(chunks[then])
        works = [dist.isend(chunks[at], (rank - 1) % n), dist.irecv(received, (rank + 1) % n)]
        for work in works:
            work.wait()
        chunks[then].add_(received)
        at = then
    for _ in range(n - 1):
        then = (at + 1) % n
        works = [dist.isend(chunks[at], (rank - 1) % n), dist.irecv(chunks[then], (rank + 1) % n)]
        for work in works:
            work.wait()
        at = then
    if data is not x:
        x.copy_(data)
