"""The pieces of chapter 28's server: latencies, the plan of a step, blocks, tables, attention through them."""

import math
import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from course_utils.reference.serving import (
    BlockPool,
    BlockTables,
    continuous_batching,
    latency_percentiles,
    paged_attention,
    paged_kv_blocks,
    static_batching,
)


def test_percentiles_are_numpys_by_nearest_rank():
    rng = random.Random(0)
    for _ in range(50):
        arrivals = [rng.uniform(0, 9) for _ in range(rng.randint(1, 9))]
        tokens = []
        for arrival in arrivals:
            times = [arrival]
            for _ in range(rng.randint(0, 5)):
                times.append(times[-1] + rng.random())
            tokens.append(times[1:])
        percents = [1, 7, 50, 70, 95, 99, 100]
        found = latency_percentiles(arrivals, tokens, percents)
        ttft = [times[0] - a for a, times in zip(arrivals, tokens, strict=True) if times]
        itl = [gap for times in tokens for gap in np.diff(times)]
        for name, values in (("ttft", ttft), ("itl", itl)):
            if values:
                due = np.percentile(values, percents, method="inverted_cdf")
                np.testing.assert_array_equal(found[name], due)
            else:
                assert all(math.isnan(x) for x in found[name])


def test_no_slot_is_idle_while_somebody_waits():
    rng = random.Random(1)
    for _ in range(300):
        slots = rng.randint(1, 6)
        budget = rng.randint(slots, 40)
        running = [rng.choice((1, 1, rng.randint(1, 30))) for _ in range(rng.randint(0, slots))]
        waiting = [rng.randint(1, 30) for _ in range(rng.randint(0, 6))]
        read, admitted = continuous_batching(running, waiting, slots, budget)
        assert sum(read) + sum(admitted) <= budget
        assert len(running) + len(admitted) <= slots
        assert all(n == 1 for n, unread in zip(read, running, strict=True) if unread == 1)
        left = budget - sum(read) - sum(admitted)
        if left:  # then everybody has all that there was to have
            assert read == running and admitted == waiting[: len(admitted)]
            assert len(admitted) == min(len(waiting), slots - len(running))
        assert static_batching(running, waiting, slots, budget)[1] == ([] if running else admitted)


def test_blocks_are_free_or_used_and_never_both():
    rng = random.Random(2)
    pool, mine = BlockPool(7), []
    for _ in range(2000):
        if mine and rng.random() < 0.5:
            block = mine.pop(rng.randrange(len(mine)))
            pool.release(block)
        elif mine and rng.random() < 0.3:
            mine.append(rng.choice(mine))
            pool.share(mine[-1])
        else:
            n = rng.randint(0, 3)
            try:
                taken = pool.take(n)
            except MemoryError:
                assert n > len(pool)
                continue
            assert not set(taken) & set(mine)
            mine += taken
        assert pool.uses == [mine.count(block) for block in range(7)]
        assert len(pool) == pool.uses.count(0)


def test_tables_give_each_sequence_the_blocks_of_its_own_tokens():
    """Against a memory that knows what was written where."""
    rng, P = random.Random(3), 4
    tables = BlockTables(24, P)
    written: dict[int, list[int]] = {}
    sequences: dict[int, list[int]] = {}
    shared = 0
    for step in range(3000):
        if len(sequences) < 5:
            tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 14))]
            known = tables.open(step, tokens)
            assert known < len(tokens) and known % P == 0
            shared += known
            for i, block in enumerate(tables.tables[step]):
                assert written[block] == tokens[: (i + 1) * P]
            sequences[step] = tokens
            try:
                tables.grow(step, len(tokens))
            except MemoryError:
                tables.close(step)
                del sequences[step]
                continue
            for i in range(known // P, paged_kv_blocks(len(tokens), P)):
                assert (
                    tables.pool.uses[tables.tables[step][i]] == 1
                )  # nobody writes into a shared one
                written[tables.tables[step][i]] = tokens[: (i + 1) * P]
            tables.fill(step, tokens)
        else:
            name = rng.choice(list(sequences))
            tables.close(name)
            del sequences[name]
        used = [block for table in tables.tables.values() for block in table]
        assert tables.pool.uses == [used.count(block) for block in range(24)]
    assert shared > 1000


def test_attention_through_a_table_is_attention():
    torch.manual_seed(0)
    P, H, d, N = 4, 3, 8, 40
    lengths, T = (1, 4, 11, 12, 17), 3
    keys, values = torch.randn(2, N, P, H, d, dtype=torch.float64)
    q = torch.randn(len(lengths), T, H, d, dtype=torch.float64)
    blocks = torch.randperm(N).tolist()
    n = paged_kv_blocks(max(lengths) + T, P)
    tables = torch.zeros(len(lengths), n, dtype=torch.int64)
    for row, length in enumerate(lengths):
        for i in range(paged_kv_blocks(length + T, P)):
            tables[row, i] = blocks.pop()
    positions = torch.tensor(lengths)[:, None] + torch.arange(T)
    found = paged_attention(q, keys, values, tables, positions)
    for row, length in enumerate(lengths):
        k, v = (x[tables[row]].flatten(0, 1)[: length + T].transpose(0, 1) for x in (keys, values))
        mask = torch.ones(T, length + T, dtype=torch.bool).tril(length)
        due = F.scaled_dot_product_attention(q[row].transpose(0, 1), k, v, mask).transpose(0, 1)
        torch.testing.assert_close(found[row], due, atol=1e-13, rtol=0)


@pytest.mark.parametrize("arguments", [([1], [1], 0, 4), ([1, 1], [], 1, 4), ([], [3], 4, 3)])
def test_a_plan_that_cannot_be(arguments):
    with pytest.raises(ValueError, match="slots"):
        continuous_batching(*arguments)
