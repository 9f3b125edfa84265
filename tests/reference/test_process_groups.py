"""Chapter 16's references against torch's own collectives, and what its messages cost."""

import inspect
import itertools
import json
import math

import pytest
import torch
import torch.distributed as dist

from course_utils.meters import measure
from course_utils.ranks import Ranks
from course_utils.reference import process_groups
from course_utils.reference.process_groups import (
    all_gather_by_p2p,
    all_gather_single,
    all_reduce_time,
    bus_bandwidth,
    fit_alpha_beta,
    rank_of,
    reduce_scatter_by_p2p,
    reduce_scatter_single,
    ring_all_reduce,
    ring_schedule,
    tree_broadcast,
)

WORLDS = (1, 2, 3, 4, 5)
SHAPES = ((7,), (2,), (0,), (1,), (), (16,), (5, 3), (2, 3, 4))


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request):
    with Ranks(request.param, timeout=30, debug=False) as ranks:
        yield ranks


def tensors(rank, dtype):
    """One of each shape, with sums that are exact in any order; matrices also transposed."""
    for shape in SHAPES:
        x = (torch.arange(math.prod(shape)).reshape(shape) * (rank + 1) - rank).to(dtype)
        yield x
        if x.dim() > 1:
            yield x.transpose(0, -1)
        if x.dim():
            yield torch.stack([x, x], dim=-1)[..., 1]


def sums_are_torchs():
    checked = 0
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        for x in tensors(dist.get_rank(), dtype):
            want, strides = x.contiguous().clone(), x.stride()
            dist.all_reduce(want)
            ring_all_reduce(x)
            assert torch.equal(x, want) and x.stride() == strides
            checked += 1
    return checked


def broadcasts_are_torchs():
    checked = 0
    for root in range(dist.get_world_size()):
        for x in tensors(dist.get_rank(), torch.float32):
            want = x.contiguous().clone()
            dist.broadcast(want, root)
            tree_broadcast(x, root)
            assert torch.equal(x, want)
            checked += 1
    return checked


def shards_are_torchs():
    rank, n = dist.get_rank(), dist.get_world_size()
    for sizes in ([3] * n, list(range(n)), [0] * n, [5, *[1] * (n - 1)]):
        x = torch.arange(float(sum(sizes))) * (rank + 1)
        before, total = x.clone(), x.clone()
        dist.all_reduce(total)
        share = reduce_scatter_by_p2p(x, sizes)
        assert torch.equal(x, before)
        assert torch.equal(share, total.split(sizes)[rank])
        assert torch.equal(all_gather_by_p2p(share, sizes), total)
        shard = torch.arange(2.0 * sizes[rank])[::2] + rank
        want = [torch.arange(float(size)) * 2 + r for r, size in enumerate(sizes)]
        assert torch.equal(all_gather_by_p2p(shard, sizes), torch.cat(want))
    share, whole = torch.empty(3), torch.empty(3 * n)
    x = torch.arange(3.0 * n) + rank
    reduce_scatter_single(share, x)
    all_gather_single(whole, share)
    dist.all_reduce(x)
    assert torch.equal(whole, x)
    return n


def costs_of(numel):
    x = torch.ones(numel)
    with measure() as ring:
        ring_all_reduce(x)
    with measure() as tree:
        tree_broadcast(x)
    return ring, tree


def sends_of(numel):
    """The chunks that ring_all_reduce really sends, by where they begin in x."""
    x, seen = torch.zeros(numel), []
    batch = dist.batch_isend_irecv

    def noted(operations):
        seen.extend(
            (op.peer, op.tensor.storage_offset()) for op in operations if op.op is dist.isend
        )
        return batch(operations)

    dist.batch_isend_irecv = noted
    try:
        ring_all_reduce(x)
    finally:
        dist.batch_isend_irecv = batch
    return seen


def test_all_reduce_is_torchs(ranks):
    assert len(set(ranks.call(sums_are_torchs))) == 1


def test_broadcast_is_torchs_from_every_root(ranks):
    assert min(ranks.call(broadcasts_are_torchs)) > 0


def test_shards_are_torchs(ranks):
    assert ranks.call(shards_are_torchs) == [ranks.world_size] * ranks.world_size


def test_the_ring_sends_what_it_must_and_the_tree_few_messages(ranks):
    n, numel = ranks.world_size, 60
    for rank, (ring, tree) in enumerate(ranks.call(costs_of, numel)):
        assert ring.bytes_sent == ring.bytes_received == 2 * (n - 1) * numel * 4 // n
        assert ring.messages == 2 * (n - 1)
        assert ring.bytes_peak <= -(-numel // n) * 4
        assert tree.messages <= math.ceil(math.log2(n))
        assert not ring.collectives and not tree.collectives, rank


def test_the_schedule_is_what_the_ring_does(ranks):
    n, numel = ranks.world_size, 60
    for rank, seen in enumerate(ranks.call(sends_of, numel)):
        want = [((rank + 1) % n, sends[rank] * numel // n) for _, sends in ring_schedule(n)]
        assert seen == want


def test_ranks_are_numbered_node_by_node():
    for sizes in ((1,), (8, 8), (4, 2, 4), (3, 1, 1, 5)):
        places = [(node, local) for node, size in enumerate(sizes) for local in range(size)]
        assert [rank_of(*place, sizes) for place in places] == list(range(sum(sizes)))
        for wrong in ((len(sizes), 0), (0, sizes[0]), (-1, 0), (0, -1)):
            with pytest.raises(ValueError, match="node"):
                rank_of(*wrong, sizes)


def simulated(n, n_bytes, alpha, beta, algorithm):
    """Message by message: a rank sends one at a time, receives one at a time, in rounds."""
    if algorithm == "ring":
        return sum(alpha + n_bytes / n * beta for _ in ring_schedule(n))
    rounds, reached = 0, 1
    while reached < n:
        reached, rounds = reached * 2 if algorithm == "tree" else reached + 1, rounds + 1
    return 2 * rounds * (alpha + n_bytes * beta)


def test_times_are_those_of_the_messages_one_by_one():
    for n, b, name in itertools.product(range(1, 40), (0, 10, 999), ("root", "tree", "ring")):
        got = all_reduce_time(b, n, 2e-6, 3e-9, name)
        assert got == pytest.approx(simulated(n, b, 2e-6, 3e-9, name))


def test_the_fit_finds_what_made_the_times():
    sizes = [4**k for k in range(1, 13)]
    for alpha, beta in ((50e-6, 1e-9), (0.6e-6, 1 / 450e9)):
        got = fit_alpha_beta(sizes, [alpha + beta * size for size in sizes])
        assert got == pytest.approx((alpha, beta), rel=1e-6)
    noisy = [(50e-6 + 1e-9 * size) * (1.1 if k % 2 else 0.9) for k, size in enumerate(sizes)]
    assert fit_alpha_beta(sizes, noisy) == pytest.approx((50e-6, 1e-9), rel=0.2)


def test_bus_bandwidth_is_what_a_link_carries(ranks):
    n, numel = ranks.world_size, 60
    for ring, _ in ranks.call(costs_of, numel):
        assert bus_bandwidth("all_reduce", numel * 4, 1.0, n) == ring.bytes_sent


def test_what_moved_in_torch_is_in_one_place():
    new = hasattr(dist, "all_gather_single")
    names = ("all_gather_single", "reduce_scatter_single")
    old = ("all_gather_into_tensor", "reduce_scatter_tensor")
    for name, was in zip(names, old, strict=True):
        assert getattr(process_groups, name) is getattr(dist, name if new else was)


# Rows of the chapter's troubleshooting table: each failure, from any rank's point of view.

FAULTS = {
    "F1": (
        "if rank == 2:\n    raise ValueError('no data')\ndist.all_reduce(torch.ones(2))",
        "ValueError",
    ),
    "F2": (
        "import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.all_reduce(torch.ones(2))",
        "died",
    ),
    "F3": ("import time\nif rank == 3:\n    time.sleep(30)\ndist.barrier()", "still running"),
    "F4": ("dist.all_reduce(torch.ones(2 + (rank == 1)))", "RuntimeError"),
    "F5": (
        "x = torch.ones(2)\nfor step in (0, 1) if rank else (1, 0):\n"
        "    dist.broadcast(x, 0) if step else dist.all_reduce(x)",
        "RuntimeError",
    ),
    "F6": ("if rank == 0:\n    dist.all_reduce(torch.ones(1))", "stuck"),
    "all send first": ("dist.send(torch.ones(1), (rank + 1) % world_size)", "stuck"),
}


@pytest.fixture(scope="module")
def four():
    with Ranks(4, timeout=30) as ranks:  # on a busy machine a deadlock is seen late
        yield ranks


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_look_as_the_table_says(four, fault):
    source, kind = FAULTS[fault]
    replies = four.run(source, timeout=3 if kind == "still running" else None)
    kinds = {reply.error.kind for reply in replies if reply.error}
    assert kind in kinds, replies
    assert all(
        reply.error is None or reply.error.lines or reply.error.how == "died" for reply in replies
    )
    again = four.run("x = torch.ones(1)\ndist.all_reduce(x)\nprint(x.item())")
    assert [reply.text for reply in again] == ["4.0\n"] * 4  # and the next cell works


def test_the_notebook_names_every_fault():
    from pathlib import Path

    import course_utils

    path = Path(course_utils.__file__).parents[1] / "notebooks" / "16_process_groups.ipynb"
    prose = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    for number in range(1, 10):
        assert f"**F{number} · " in prose
        assert f"(F{number}" in prose
    assert inspect.getdoc(ring_all_reduce)
