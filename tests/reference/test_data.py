"""The book's data pipeline against torch's own, and what it promises."""

import itertools
import json
import mmap
import multiprocessing
import random
import subprocess
import sys
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

from course_utils.authoring.dependencies import ROOT
from course_utils.meters import PAGE, pages_in_memory
from course_utils.reference import data

LENGTHS = st.integers(1, 40)


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5), pad=st.integers(0, 3))
def test_padding_changes_no_loss(lengths, pad):
    rows = [torch.randint(4, (n,), dtype=torch.int32) for n in lengths]
    inputs, targets = data.collate_padded(rows, pad)
    assert inputs.shape == targets.shape == (len(rows), max(lengths) - 1)
    table = torch.randn(4, 4)
    loss = F.cross_entropy(table[inputs].flatten(0, 1), targets.flatten(), reduction="sum")
    each = [F.cross_entropy(table[r[:-1]], r[1:].long(), reduction="sum") for r in rows]
    torch.testing.assert_close(loss, torch.stack(each).sum())


def test_get_batch_reads_windows_of_a_file(tmp_path):
    path = tmp_path / "tokens.bin"
    np.arange(65000, 65500, dtype=np.uint16).tofile(path)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    x, y = data.get_batch(tokens, 300, 498, torch.Generator().manual_seed(0))
    assert x.dtype == y.dtype == torch.int64
    assert set(x[:, 0].tolist()) == {65000, 65001}
    assert torch.equal(y, x + 1) and y.max() == 65499
    assert torch.equal(x[:, 1:], x[:, :-1] + 1)
    with pytest.raises(ValueError, match="501 tokens"):
        data.get_batch(tokens, 1, 500)


def test_bytes_can_be_padded_too():
    inputs, targets = data.collate_padded([torch.tensor([255, 7, 1], dtype=torch.uint8)], 0)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == [[255, 7]] and targets.tolist() == [[7, 1]]


def test_get_batch_reads_only_the_pages_of_its_windows():
    memory = mmap.mmap(-1, 1000 * PAGE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    tokens = np.frombuffer(memory, np.uint16)
    if pages_in_memory(tokens) is None:
        pytest.skip("mincore is not to be had here")
    data.get_batch(tokens, 8, PAGE // 4, torch.Generator().manual_seed(0))
    assert 0 < pages_in_memory(tokens).sum() <= 2 * 8
    tokens.astype(np.int64)
    assert pages_in_memory(tokens).all()


@given(lengths=st.lists(st.integers(0, 9), max_size=9), context=st.integers(1, 8))
def test_packing_keeps_every_token_in_order(lengths, context):
    documents = [[10 * n + i for i in range(length)] for n, length in enumerate(lengths)]
    stream = [(t, n) for n, document in enumerate(documents) for t in (*document, -1)]
    rows = list(data.pack_documents(iter(documents), context, end=-1))
    found = [
        pair for tokens, ids in rows for pair in zip(tokens.tolist(), ids.tolist(), strict=True)
    ]
    assert found == stream[: len(stream) // context * context]
    for _, ids in rows:
        (positions,) = data.document_positions(ids[None])
        runs = [list(range(len(list(run)))) for _, run in itertools.groupby(ids.tolist())]
        assert positions.tolist() == [*itertools.chain(*runs)]


def test_packing_takes_documents_one_by_one():
    rows = data.pack_documents(([7] * 3 for _ in itertools.count()), 4, end=0)
    assert [next(rows)[0].tolist() for _ in range(3)] == [[7, 7, 7, 0]] * 3


def test_packed_attention_is_that_of_each_document_alone():
    ids = torch.tensor([[0, 0, 0, 1, 1, 2]])
    q, k, v = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64)
    packed = F.scaled_dot_product_attention(q, k, v, data.document_mask(ids))
    for run in (slice(0, 3), slice(3, 5), slice(5, 6)):
        parts = (x[:, :, run] for x in (q, k, v))
        alone = F.scaled_dot_product_attention(*parts, is_causal=True)
        torch.testing.assert_close(packed[:, :, run], alone)


@given(
    length=LENGTHS,
    world_size=st.integers(1, 9),
    shuffle=st.booleans(),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
    drop_last=st.booleans(),
)
def test_shards_are_those_of_distributed_sampler(
    length, world_size, shuffle, seed, epoch, drop_last
):
    options = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last}
    for rank in range(world_size):
        theirs = DistributedSampler(range(length), world_size, rank, **options)
        theirs.set_epoch(epoch)
        assert data.shard_indices(length, world_size, rank, epoch=epoch, **options) == list(theirs)


def test_a_rank_that_is_not_there():
    for rank in (-1, 2):
        with pytest.raises(ValueError, match="of 2"):
            data.shard_indices(5, 2, rank)
    assert data.shard_indices(0, 2, 1) == []


@given(length=st.integers(0, 30), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_shuffled_window_holds_no_more_than_its_size(length, size, seed):
    taken = 0

    def stream():
        nonlocal taken
        for taken in range(1, length + 1):
            yield taken - 1

    given_out = []
    for item in data.shuffled_window(stream(), size, torch.Generator().manual_seed(seed)):
        given_out.append(item)
        assert taken - len(given_out) <= size
    assert sorted(given_out) == list(range(length))


def test_a_shuffled_window_is_fair():
    generator = torch.Generator().manual_seed(0)
    firsts = Counter(next(data.shuffled_window(range(9), 4, generator)) for _ in range(4000))
    assert set(firsts) == {0, 1, 2, 3}
    assert all(abs(n - 1000) < 5 * 28 for n in firsts.values())
    with pytest.raises(ValueError, match="came 0"):
        next(data.shuffled_window(range(3), 0, generator))


def _numbers():
    return range(13)


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_a_sharded_stream_gives_every_item_once(num_workers):
    found = []
    for rank in range(2):
        stream = data.ShardedStream(_numbers, rank, 2)
        context = "fork" if num_workers else None
        loader = DataLoader(
            stream, batch_size=None, num_workers=num_workers, multiprocessing_context=context
        )
        found.append(list(loader))
        assert list(loader) == found[-1]
    assert [sorted(part) for part in found] == [list(range(r, 13, 2)) for r in range(2)]


@given(length=LENGTHS, world_size=st.integers(1, 5), epoch=st.integers(0, 3))
def test_a_resumable_sampler_begins_as_distributed_sampler(length, world_size, epoch):
    for rank in range(world_size):
        sampler = data.ResumableSampler(length, rank=rank, world_size=world_size, seed=3)
        sampler.set_epoch(epoch)
        expected = data.shard_indices(length, world_size, rank, seed=3, epoch=epoch)
        assert list(sampler) == expected and len(sampler) == len(expected)


@given(
    length=LENGTHS, world_size=st.integers(1, 4), again=st.integers(1, 4), used=st.integers(0, 12)
)
def test_a_resumed_epoch_is_the_rest_of_it(length, world_size, again, used):
    def on(world_size):
        return [
            data.ResumableSampler(length, rank=r, world_size=world_size) for r in range(world_size)
        ]

    first = on(world_size)
    seen = [list(itertools.islice(sampler, used)) for sampler in first]
    for sampler in first:
        sampler.advance(min(used, len(sampler)))
    state = first[0].state_dict()
    assert all(sampler.state_dict() == state for sampler in first)
    resumed = on(again)
    for sampler in resumed:
        sampler.load_state_dict(state)
        sampler.set_epoch(0)
    rest = [list(sampler) for sampler in resumed]
    assert len({len(part) for part in rest}) == 1
    if again == world_size:
        whole = [list(sampler) for sampler in on(world_size)]
        assert [a + b for a, b in zip(seen, rest, strict=True)] == whole
    repeated = sum(map(len, seen)) + sum(map(len, rest)) - length
    assert set(itertools.chain(*seen, *rest)) == set(range(length))
    assert repeated < max(world_size, again)


def test_a_state_of_another_order_is_refused():
    sampler = data.ResumableSampler(5)
    sampler.advance(2)
    for other in (data.ResumableSampler(5, seed=1), data.ResumableSampler(6)):
        with pytest.raises(ValueError, match="the state is of seed"):
            sampler.load_state_dict(other.state_dict())
    assert sampler.position == 2
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"epoch": 1, "position": 0, "seed": 0, "length": 5}


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no process can be forked here"
)
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_killed_job_with_workers_goes_on_with_the_same_batches(tmp_path, ranks):
    seed = random.SystemRandom().randrange(10**6)
    command = [sys.executable, "-m", "tests.support.killed_loader", str(tmp_path), str(ranks)]
    done = subprocess.run([*command, str(seed)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr}"
    report = json.loads(done.stdout)
    assert report["equal"], f"seed {seed}: {report}"
    assert report["steps without a kill"] == report["steps"] > report["steps before the kill"]
