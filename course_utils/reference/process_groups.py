"""Chapter 16, process groups: from `send` and `recv` to the ring, and what a message costs.

Letters: n is the world size, α the seconds that a message costs however short it is, β the seconds
for each byte of it. `left` and `right` are a rank's neighbours on the ring: rank − 1 and rank + 1.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""All-gather into one tensor. `dist.all_gather_single` since torch 2.13; before, and deprecated
there, `dist.all_gather_into_tensor`."""

reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""Reduce-scatter of one tensor. `dist.reduce_scatter_single` since torch 2.13; before, and
deprecated there, `dist.reduce_scatter_tensor`."""


def rank_of(node: int, local_rank: int, local_world_sizes: Sequence[int]) -> int:
    """Global rank of one process of a job.

    node: which machine, from 0. local_rank: which process on it, from 0.
    local_world_sizes: how many processes each machine runs, in the order of the
    machines; they may differ. Raises ValueError where the job has no such machine, or
    the machine no such process: a number below 0, or too large. Source: how
    torch.distributed.elastic assigns ranks.
    """
    if not 0 <= node < len(local_world_sizes):
        raise ValueError(f"node {node} of a job with {len(local_world_sizes)} nodes")
    if not 0 <= local_rank < local_world_sizes[node]:
        raise ValueError(f"local rank {local_rank} of {local_world_sizes[node]} on node {node}")
    return sum(local_world_sizes[:node]) + local_rank


def all_reduce_time(
    n_bytes: int, world_size: int, alpha: float, beta: float, algorithm: str = "ring"
) -> float:
    """Seconds that an all-reduce takes by the α-β model: a message of b bytes takes α + b·β.

    n_bytes: of the tensor on each rank. alpha: seconds a message. beta: seconds a byte.
    A rank can send one message and receive another at the same time; additions are
    free. algorithm:

    - "root": n − 1 ranks send their tensor to rank 0, one after the other; it sends the
      sum to each.
    - "tree": ⌈log2 n⌉ rounds, each of which halves the number of ranks that hold a
      partial sum, and as many back; every message is a whole tensor.
    - "ring": reduce-scatter, then all-gather: n − 1 steps each, with exactly n_bytes/n
      a step, also where that is no whole number.

    One rank alone needs no message. Raises ValueError for another algorithm and for a
    world size below 1. Source: Thakur, Rabenseifner and Gropp (2005).
    """
    if world_size < 1:
        raise ValueError(f"a world of {world_size} ranks")
    message = alpha + n_bytes * beta
    if algorithm == "root":
        return 2 * (world_size - 1) * message
    if algorithm == "tree":
        return 2 * math.ceil(math.log2(world_size)) * message
    if algorithm == "ring":
        return 2 * (world_size - 1) * (alpha + n_bytes / world_size * beta)
    raise ValueError(f"no algorithm {algorithm!r}; there are: root, tree, ring")


def tree_broadcast(x: Shaped[Tensor, "*shape"], root: int = 0) -> None:
    """Overwrite `x` on every rank with the root's, in ⌈log2 n⌉ rounds of messages.

    In each round every rank that has the data sends it to one that has not, while there
    are any: their number doubles until all have it. x: the same shape and dtype on
    every rank, with any strides without overlap, which may differ from rank to rank; on
    the root it stays as it is. In a round, a rank sends one message at most, and only
    what it had before the round began; the rounds are counted. One rank alone sends
    nothing. Point-to-point messages only. Source: the binomial tree in Thakur,
    Rabenseifner and Gropp (2005).
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place = (rank - root) % world_size  # the root's is 0
    data = x.contiguous()
    reached = 1  # the places below have the data
    while reached < world_size:
        if place < reached and place + reached < world_size:
            dist.send(data, (rank + reached) % world_size)
        elif reached <= place < 2 * reached:
            dist.recv(data, (rank - reached) % world_size)
        reached *= 2
    if data is not x:
        x.copy_(data)


def exchange(out: Tensor, to: int, into: Tensor, source: int) -> None:
    """Send `out` to rank `to` and receive `into` from rank `source`, both at once.

    Since neither waits for the other, a ring of such exchanges cannot deadlock. Both
    contiguous.
    """
    operations = [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def all_gather_by_p2p(
    shard: Shaped[Tensor, " own"], sizes: Sequence[int]
) -> Shaped[Tensor, " all"]:
    """The shards of all ranks one after the other, on every rank.

    shard: one axis, any stride; it is left alone. sizes: how many elements each rank
    brings (here `shard.numel()`); they may differ, and be 0. Passed on around the ring
    in n − 1 steps: no rank sends, or receives, more than all shards but the smallest.
    An empty shard may be sent or left out. Point-to-point messages only.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    gathered = shard.new_empty(sum(sizes))
    pieces = gathered.split(list(sizes))
    pieces[rank].copy_(shard)
    for step in range(world_size - 1):
        newest, next_one = (rank - step) % world_size, (rank - step - 1) % world_size
        exchange(pieces[newest], right, pieces[next_one], left)
    return gathered


def reduce_scatter_by_p2p(
    x: Shaped[Tensor, " all"], sizes: Sequence[int]
) -> Shaped[Tensor, " own"]:
    """This rank's piece of the sum of all ranks' `x`.

    x: one axis, any stride, the same length and dtype on every rank; it is left alone.
    sizes: how many elements of the sum each rank is to get, in the order of the ranks;
    they may differ, and be 0. Partial sums go around the ring in n − 1 steps, added in
    any order: no rank sends, or receives, more than all pieces but the smallest. An
    empty piece may be sent or left out. Point-to-point messages only.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    pieces = x.contiguous().split(list(sizes))
    partial = pieces[(rank - 1) % world_size]
    for step in range(world_size - 1):
        mine = pieces[(rank - step - 2) % world_size]
        received = torch.empty_like(mine)
        exchange(partial, right, received, left)
        partial = received.add_(mine)
    return partial


def ring_all_reduce(x: Shaped[Tensor, "*shape"]) -> None:
    """Overwrite `x` on every rank with the sum over all ranks.

    x: the same shape and dtype on every rank, any strides without overlap, any number
    of elements. A reduce-scatter and an all-gather around the ring, in place. Chunks
    are those of the flattened x's `tensor_split(n)`; some may be empty, and those may
    be sent or left out. At most 2(n − 1) messages from each rank; in each half it sends
    all chunks but one, and the two that it leaves out are neighbours: 2(n − 1)/n of x
    where n divides its length. Besides x a buffer of one chunk is enough, and a copy of
    x where it is not contiguous. Point-to-point messages only. Source: Patarasuk and
    Yuan (2009).
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    data = x.contiguous()
    chunks = data.view(-1).tensor_split(world_size)
    buffer = torch.empty_like(chunks[0])
    for step in range(world_size - 1):
        partial = chunks[(rank - step - 1) % world_size]
        mine = chunks[(rank - step - 2) % world_size]
        received = buffer[: len(mine)]
        exchange(partial, right, received, left)
        mine.add_(received)
    for step in range(world_size - 1):
        newest, next_one = (rank - step) % world_size, (rank - step - 1) % world_size
        exchange(chunks[newest], right, chunks[next_one], left)
    if data is not x:
        x.copy_(data)


def ring_schedule(world_size: int) -> list[tuple[str, list[int]]]:
    """The steps of `ring_all_reduce`: for each, its phase and which chunk each rank sends.

    phase: "reduce-scatter" (the receiver adds) or "all-gather" (the receiver
    overwrites). Always to the right neighbour.
    """
    n, ranks = world_size, range(world_size)
    adding = [("reduce-scatter", [(r - step - 1) % n for r in ranks]) for step in range(n - 1)]
    passing = [("all-gather", [(r - step) % n for r in ranks]) for step in range(n - 1)]
    return adding + passing


def fit_alpha_beta(n_bytes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """α (seconds) and β (seconds a byte) of the line through measured times.

    Least squares of the *relative* error: otherwise the largest messages alone would
    decide.
    """
    times = torch.tensor(seconds, dtype=torch.float64)
    sizes = torch.tensor(n_bytes, dtype=torch.float64)
    rows = torch.stack([torch.ones_like(sizes), sizes], dim=1) / times[:, None]
    alpha, beta = torch.linalg.lstsq(rows, torch.ones_like(times)[:, None]).solution.flatten()
    return float(alpha), float(beta)


BUS_FACTOR: dict[str, Any] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}
"""Bytes that each link carries for each byte of the operation, by world size. Source: NCCL tests,
doc/PERFORMANCE.md."""


def bus_bandwidth(collective: str, n_bytes: int, seconds: float, world_size: int) -> float:
    """Bytes a second that each link had to carry: algorithm bandwidth times the bus factor.

    collective: a name of BUS_FACTOR. n_bytes: of the whole tensor (for all-gather the
    result, for reduce-scatter the argument). Unlike n_bytes / seconds it can be
    compared between world sizes, and with what a link is rated at.
    """
    return n_bytes / seconds * BUS_FACTOR[collective](world_size)
