"""Chapter 28, serving: which requests run, where their keys and values lie, and how long users wait.

Letters: B rows, T tokens of each that are read now, H heads, d features of a head, N blocks of a cache,
P places in a block (`block_size`), n blocks in a table. A table's block i holds the keys and values of
its sequence's tokens i · P to (i + 1) · P − 1.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Policy = Callable[[Sequence[int], Sequence[int], int, int], tuple[list[int], list[int]]]
"""Who runs: a function of the form of `continuous_batching`."""

# ------------------------------------------------------------------------------ how long users wait


def latency_percentiles(
    arrivals: Sequence[float],
    tokens: Sequence[Sequence[float]],
    percents: Sequence[int] = (50, 95, 99),
) -> dict[str, list[float]]:
    """Percentiles of a server's two latencies, in the unit of the times.

    arrivals: when each request arrived. tokens: when each of its tokens came, in order;
    empty for a request that got none. percents: whole numbers from 1 to 100.

    "ttft", the time to the first token: from a request's arrival to its first token,
    one value for each request that got a token. "itl", the inter-token latency: the
    time between two tokens of one request that follow each other, the values of all
    requests together. The p-th percentile is one of the values (nearest rank): the
    smallest that at least p % of them do not exceed. Of 20 values the 95th percentile
    is the 19th smallest, of 25 the 28th percentile is the 7th, exactly. Without any
    value it is NaN.

    Result: for "ttft" and "itl" a list with one percentile for each of percents, in their
    order. Raises ValueError unless there are as many arrivals as lists of tokens, and for
    a percent below 1 or above 100, even if there is no value.
    """
    if not all(1 <= p <= 100 for p in percents):
        raise ValueError(f"percents are 1 to 100; came {list(percents)}")
    ttft = [times[0] - arrival for arrival, times in zip(arrivals, tokens, strict=True) if times]
    itl = [after - before for times in tokens for before, after in pairwise(times)]
    found = {}
    for name, values in (("ttft", ttft), ("itl", itl)):
        ordered = sorted(values)
        ranks = [-(-p * len(ordered) // 100) for p in percents]  # rounded up
        found[name] = [ordered[rank - 1] if ordered else math.nan for rank in ranks]
    return found


# ------------------------------------------------------------------------------ which requests run


def continuous_batching(
    running: Sequence[int], waiting: Sequence[int], slots: int, budget: int
) -> tuple[list[int], list[int]]:
    """How many tokens of each request the next step reads.

    running: for each request that has a slot, how many of its tokens are not read yet: 1
    while it decodes, usually more while it is in its prompt. waiting: the same for those
    without a slot, in the order in which they arrived. All are at least 1. slots: how many
    requests can run at once. budget: how many tokens a step reads at most.

    First come the running requests with one unread token, so that a prompt makes no one
    who decodes wait. Then the other running ones, in their order, then the waiting ones,
    in theirs, as long as there are free slots. Each gets all of its unread tokens, or as
    many as are left of the budget. A waiting request for which nothing is left does not
    get a slot, nor does any behind it.

    Result: tokens for each running request, in the order given, perhaps 0, and for each
    waiting request that gets a slot, 1 or more. The arguments are not changed. Raises
    ValueError if the budget is smaller than the number of slots, or if more requests
    run than there are slots. Source: Yu et al. (2022), section 3; in parts, and those
    who decode first: Agrawal et al. (2024), algorithm 3.
    """
    if budget < slots or len(running) > slots:
        raise ValueError(f"{len(running)} running, {slots} slots, a budget of {budget} tokens")
    left = budget - running.count(1)
    read = []
    for unread in running:
        part = 1 if unread == 1 else min(unread, left)
        left -= part if unread > 1 else 0
        read.append(part)
    admitted = []
    for unread in waiting[: slots - len(running)]:
        if left:
            admitted.append(min(unread, left))
            left -= admitted[-1]
    return read, admitted


def static_batching(
    running: Sequence[int], waiting: Sequence[int], slots: int, budget: int
) -> tuple[list[int], list[int]]:
    """The older way, in the form of `continuous_batching`: nobody joins before all have left."""
    return continuous_batching(running, () if running else waiting, slots, budget)


@dataclass(frozen=True)
class Arrival:
    """A request of a simulation: the step before which it arrives, its tokens of prompt and of answer."""

    step: int
    prompt: int
    answer: int


def simulate(
    policy: Policy, arrivals: Sequence[Arrival], slots: int, budget: int
) -> list[dict[int, int]]:
    """What each step reads, request → tokens, until all answers are complete. Memory has no end.

    policy: `continuous_batching`, or one of its form. arrivals: in the order of their steps.
    A request gets a token in each step after which it has nothing unread, and leaves with
    its last. A step in which nobody runs is an empty dict.
    """
    unread = [arrival.prompt for arrival in arrivals]
    due = [arrival.answer for arrival in arrivals]
    steps: list[dict[int, int]] = []
    running: list[int] = []
    waiting: list[int] = []
    coming = list(range(len(arrivals)))
    while coming or waiting or running:
        while coming and arrivals[coming[0]].step <= len(steps):
            waiting.append(coming.pop(0))
        read, admitted = policy(
            [unread[i] for i in running], [unread[i] for i in waiting], slots, budget
        )
        joined, waiting = waiting[: len(admitted)], waiting[len(admitted) :]
        running += joined
        step = {i: n for i, n in zip(running, [*read, *admitted], strict=True) if n}
        for i, n in step.items():
            unread[i] -= n
            if unread[i] == 0:  # it draws a token, which is the next to be read
                unread[i], due[i] = 1, due[i] - 1
        running = [i for i in running if due[i]]
        steps.append(step)
    return steps


def token_steps(arrivals: Sequence[Arrival], steps: Sequence[dict[int, int]]) -> list[list[int]]:
    """After how many steps each request got each of its tokens."""
    found: list[list[int]] = [[] for _ in arrivals]
    left = [arrival.prompt for arrival in arrivals]
    for number, step in enumerate(steps, start=1):
        for i, n in step.items():
            left[i] -= n
            if left[i] <= 0:
                found[i].append(number)
    return found


# ------------------------------------------------------------------------------ who uses which block


def paged_kv_blocks(tokens: int, block_size: int) -> int:
    """How many blocks of so many places hold the keys of so many tokens: none for none.

    Exact for whole numbers of any size.
    """
    return -(-tokens // block_size)


class BlockPool:
    """The blocks of a paged cache, by number: which are in use, and by how many tables.

    Attribute `uses`: a list, how many tables have each block; 0 for one that is free.
    """

    def __init__(self, n_blocks: int) -> None:
        """Blocks 0 to n_blocks − 1, all free."""
        self.uses = [0] * n_blocks
        self._free = dict.fromkeys(range(n_blocks))  # in the order in which they became free

    def __len__(self) -> int:
        """How many blocks are free."""
        return len(self._free)

    def take(self, n: int) -> list[int]:
        """The n blocks that have been free the longest, longest first. Each is used once from now on.
        Those that were never used have been free the longest, in the order of their numbers. Raises
        MemoryError, and takes none, if fewer are free."""
        if n > len(self._free):
            raise MemoryError(f"{n} blocks are needed, {len(self._free)} are free")
        blocks = list(self._free)[:n]
        for block in blocks:
            self.share(block)
        return blocks

    def share(self, block: int) -> None:
        """One more table has the block. A block that was free is not free any more."""
        self.uses[block] += 1
        self._free.pop(block, None)

    def release(self, block: int) -> None:
        """One table fewer has the block. If that was the last one it is free, behind all that are.

        Raises ValueError, and changes nothing, for a block that is free already.
        """
        if self.uses[block] == 0:
            raise ValueError(f"block {block} is free already")
        self.uses[block] -= 1
        if self.uses[block] == 0:
            self._free[block] = None


class BlockTables:
    """A table of blocks for each sequence; full blocks that stand for the same beginning are shared.

    Attributes: `pool`, a BlockPool; `tables`, a dict: the list of blocks of each sequence
    that is open. A full block is *known* by its beginning: all tokens of its sequence up to
    the block's end.
    """

    def __init__(self, n_blocks: int, block_size: int) -> None:
        """No sequence is open, and no block is known. block_size: P."""
        self.pool = BlockPool(n_blocks)
        self.block_size = block_size
        self.tables: dict[Hashable, list[int]] = {}
        self._known: dict[tuple[int, ...], int] = {}  # a beginning → its last block
        self._holds: dict[int, tuple[int, ...]] = {}  # and back

    def open(self, name: Hashable, tokens: Sequence[int]) -> int:
        """Begin a sequence with the known blocks of its beginning; returns how many tokens these hold.

        tokens: those that the sequence has so far, one at least. The table ends before the
        first block that is not known. It also ends early enough to leave at least one token
        to be read. Each of its blocks counts one use more, also a block that had become free.
        """
        table: list[int] = []
        for end in range(self.block_size, len(tokens), self.block_size):
            block = self._known.get(tuple(tokens[:end]))
            if block is None:
                break
            self.pool.share(block)
            table.append(block)
        self.tables[name] = table
        return len(table) * self.block_size

    def grow(self, name: Hashable, length: int) -> None:
        """Take blocks until the table has room for so many tokens of the sequence, if it has not.

        A block that is taken is not known any more. Raises MemoryError, and changes
        nothing, if too few are free.
        """
        table = self.tables[name]
        missing = paged_kv_blocks(length, self.block_size) - len(table)
        for block in self.pool.take(max(missing, 0)):
            self._known.pop(self._holds.pop(block, ()), None)
            table.append(block)

    def fill(self, name: Hashable, tokens: Sequence[int]) -> None:
        """Say that the table's blocks now hold the keys of `tokens`, the sequence's first ones.

        Full blocks become known. A beginning that is known already keeps the block that it has.
        """
        for i, block in enumerate(self.tables[name][: len(tokens) // self.block_size]):
            beginning = tuple(tokens[: (i + 1) * self.block_size])
            if beginning not in self._known:
                self._known[beginning] = block
                self._holds[block] = beginning

    def close(self, name: Hashable) -> None:
        """End a sequence: its blocks are released, the last one first, and stay known till they are taken."""
        for block in reversed(self.tables.pop(name)):
            self.pool.release(block)


# ------------------------------------------------------------------------------ attention through a table


def paged_attention(
    q: Float[Tensor, "B T H d"],
    keys: Float[Tensor, "N P H d"],
    values: Float[Tensor, "N P H d"],
    tables: Int[Tensor, "B n"],
    positions: Int[Tensor, "B T"],
) -> Float[Tensor, "B T H d"]:
    """Causal attention of T tokens a row to the keys and values in the row's blocks.

    keys, values: all blocks of the cache, of all sequences. tables: the blocks of each
    row, in order: token j of row b is in block tables[b, j // P], at place j % P.
    positions: the place of each query in its sequence; it attends to the tokens 0 to
    its own, which are in the cache already. A row that needs fewer than n blocks has
    any blocks in the rest of its table. Scores are divided by √d. The result has q's
    dtype and device. Source: Kwon et al. (2023), section 4.1.
    """
    blocks = (
        F.embedding(tables, kept.flatten(1)).unflatten(2, kept.shape[1:]) for kept in (keys, values)
    )  # (B, n, P, H, d)
    k, v = (x.flatten(1, 2).transpose(1, 2) for x in blocks)  # (B, H, n · P, d)
    token = torch.arange(k.size(2), device=q.device)
    seen = token <= positions[:, None, :, None]  # (B, 1, T, n · P)
    return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, seen).transpose(1, 2)
