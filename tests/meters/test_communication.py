"""What calls of torch.distributed cost, on real ranks; and the figures of the ring, worked by hand."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_utils.meters import Cost, measure
from course_utils.meters.communication import of_a_ring
from course_utils.ranks import Ranks

pytestmark = pytest.mark.timeout(300)
S = 400  # bytes of 100 numbers


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, debug=False) as started:
        yield started


def figures(cost):
    return cost.bytes_sent, cost.bytes_received, cost.messages, dict(cost.collectives)


def counted(kind):
    """What this rank counts for one call of each kind."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.ones(100)
    parts = [torch.empty(100) for _ in range(n)]
    uneven = [10 * (1 + (rank + other) % 4) for other in range(n)]
    root = rank == 1
    calls = {
        "all_reduce": lambda: dist.all_reduce(x),
        "async": lambda: dist.all_reduce(x, async_op=True).wait(),
        "half": lambda: dist.all_reduce(x.half()),
        "barrier": lambda: dist.barrier(),
        "broadcast": lambda: dist.broadcast(x, 1),
        "reduce": lambda: dist.reduce(x, 1),
        "all_gather": lambda: dist.all_gather(parts, x),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.empty(25), list(x.chunk(4))),
        "gather": lambda: dist.gather(x, parts if root else None, dst=1),
        "scatter": lambda: dist.scatter(torch.empty(100), parts if root else None, src=1),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty(100), x),
        "uneven": lambda: dist.all_to_all_single(torch.empty(100), x, uneven, uneven),
        "object": lambda: dist.all_gather_object([None] * n, "a" * rank),
        "pairs": lambda: dist.send(x, rank + 1) if rank % 2 == 0 else dist.recv(x, rank - 1),
        "method": lambda: dist.group.WORLD.allreduce([x]).wait(),
    }
    with measure() as cost:
        calls[kind]()
    return figures(cost)


EXPECTED = {
    "all_reduce": [(600, 600, 6, {"all_reduce": 1})] * 4,
    "async": [(600, 600, 6, {"all_reduce": 1})] * 4,
    "half": [(300, 300, 6, {"all_reduce": 1})] * 4,
    "barrier": [(0, 0, 0, {"barrier": 1})] * 4,
    "broadcast": [
        (0, S, 0, {"broadcast": 1}),
        (S, 0, 1, {"broadcast": 1}),
        (S, S, 1, {"broadcast": 1}),
        (S, S, 1, {"broadcast": 1}),
    ],
    "reduce": [
        (S, S, 1, {"reduce": 1}),
        (0, S, 0, {"reduce": 1}),
        (S, 0, 1, {"reduce": 1}),
        (S, S, 1, {"reduce": 1}),
    ],
    "all_gather": [(1200, 1200, 3, {"all_gather": 1})] * 4,
    "reduce_scatter": [(300, 300, 3, {"reduce_scatter": 1})] * 4,
    "gather": [
        (0, 1200, 0, {"gather": 1}) if r == 1 else (S, 0, 1, {"gather": 1}) for r in range(4)
    ],
    "scatter": [
        (1200, 0, 3, {"scatter": 1}) if r == 1 else (0, S, 0, {"scatter": 1}) for r in range(4)
    ],
    "all_to_all": [(300, 300, 3, {"all_to_all": 1})] * 4,
    "uneven": [(S - 40 * (1 + 2 * r % 4),) * 2 + (3, {"all_to_all": 1}) for r in range(4)],
    "pairs": [(S, 0, 1, {}), (0, S, 0, {})] * 2,
    "method": [(600, 600, 6, {"all_reduce": 1})] * 4,
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_figures(ranks, kind):
    assert ranks.call(counted, kind) == EXPECTED[kind]


def test_an_object_takes_two_collectives(ranks):
    sent, received, messages, collectives = ranks.call(counted, "object")[0]
    assert collectives == {"all_gather": 2}
    assert messages == 6
    assert sent == received > 3 * 8


def backward(kind):
    """What is counted where the library communicates in the middle of a backward pass."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(30, 2)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with measure() as cost:
        model(torch.ones(1, 30)).sum().backward()
    return figures(cost)


def test_the_reducer_of_ddp_is_seen(ranks):
    grads = 4 * (30 * 2 + 2)
    assert ranks.call(backward, "ddp") == [(grads * 3 // 2,) * 2 + (6, {"all_reduce": 1})] * 4


def test_fully_shard_is_seen(ranks):
    for _, _, messages, collectives in ranks.call(backward, "fsdp"):
        assert collectives == {"all_gather": 1, "reduce_scatter": 1}
        assert messages == 6


def in_a_group():
    group = dist.new_group([1, 3])
    with measure() as cost:
        if dist.get_rank() in (1, 3):
            dist.all_reduce(torch.ones(100), group=group)
    return figures(cost)


def test_only_the_ranks_of_a_group_count(ranks):
    own, none = (S, S, 2, {"all_reduce": 1}), (0, 0, 0, {})
    assert ranks.call(in_a_group) == [none, own, none, own]


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "gather", "barrier"])
def test_one_rank_sends_nothing(name):
    assert of_a_ring(name, 1, 0, 100, 100) == (0, 0, 0)


def test_what_all_send_is_received():
    for name in ("broadcast", "reduce", "gather", "scatter"):
        each = [of_a_ring(name, 5, place, 40, 40) for place in range(5)]
        assert sum(sent for sent, _, _ in each) == sum(received for _, received, _ in each) == 160


def test_rows_show_what_was_sent_and_survive_a_crossing():
    quiet = Cost(flops=3)
    assert "sent" not in repr(quiet)
    talk = Cost(bytes_sent=2048, bytes_received=10, messages=2)
    talk.collectives["all_reduce"] = 1
    assert "bytes sent" in repr(talk)
    assert "2 KiB" in repr(talk)
    assert "all_reduce × 1" in talk._repr_html_()
    assert Cost.from_dict(talk.as_dict()) == talk


def test_parts_count_on():
    meter = measure(parts=True)
    with meter as cost:
        kept = torch.ones(100)
    assert cost.bytes_left == S
    with meter:
        more = torch.ones(50)
        del more
    assert cost.bytes_left == S
    assert cost.bytes_peak == S + 200
    del kept
    with meter:
        pass
    assert cost.bytes_left == 0
