"""Chapter 17's references against torch's DistributedDataParallel and one process on the whole batch."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_utils.ranks import Ranks
from course_utils.reference import ddp

WORLDS = (1, 2, 3, 4)


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request):
    with Ranks(request.param, timeout=30.0) as pool:
        yield pool


def small(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    ).to(dtype)


def batch(n, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(n, 5, generator=generator, dtype=dtype),
        torch.randn(n, 3, generator=generator, dtype=dtype),
    )


def gradients(module):
    return [p.grad.clone() for p in module.parameters()]


def three_ways(cap_bytes):
    """Gradients of ours, of torch's DDP, and of one process on the whole batch."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, y = batch(4 * world_size)
    mine = slice(4 * rank, 4 * rank + 4)
    ours = ddp.DistributedDataParallel(small(seed=rank), cap_bytes)
    theirs = nn.parallel.DistributedDataParallel(small(seed=rank))
    alone = small(seed=0)
    found = []
    for model, part in (ours, mine), (theirs, mine), (alone, slice(None)):
        for _ in range(2):
            model.zero_grad()
            F.mse_loss(model(x[part]), y[part]).backward()
        found.append(gradients(model))
    return found


@pytest.mark.parametrize("cap_bytes", [1, 600, 2**20])
def test_gradients_are_torchs_and_those_of_the_whole_batch(ranks, cap_bytes):
    for ours, theirs, alone in ranks.call(three_ways, cap_bytes):
        for a, b, c in zip(ours, theirs, alone, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(a, c, rtol=1e-12, atol=1e-14)


def overlapping():
    """The events of one backward: gradients ready and all-reduces started, in order."""
    events = []
    model = ddp.DistributedDataParallel(small(), cap_bytes=1)
    for i, p in enumerate(model.module.parameters()):
        p.register_post_accumulate_grad_hook(lambda _, i=i: events.append(f"gradient {i}"))
    start = model._reducer.start
    model._reducer.start = lambda i: (events.append(f"start {i}"), start(i))
    x, y = batch(2)
    F.mse_loss(model(x), y).backward()
    return events, len(model._reducer._under_way), model._missing


def test_buckets_start_in_order_while_backward_goes_on(ranks):
    for events, under_way, missing in ranks.call(overlapping):
        starts = [e for e in events if e.startswith("start")]
        assert starts == [f"start {i}" for i in range(6)]
        assert events.index("start 0") < events.index("gradient 0")
        assert under_way == 0 and not any(missing)


def branches():
    """Each rank uses a layer of its own, and one that nobody uses is there too."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(world_size + 1))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = copy.deepcopy(layers)

        def forward(self, x):
            return self.layers[rank](x)

    results = []
    for wrap in ddp.DistributedDataParallel, find_unused:
        model = wrap(Model())
        for _ in range(2):
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
        results.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    return results


def find_unused(module):
    return nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)


def test_branches_that_a_rank_does_not_take_count_as_zeros(ranks):
    for ours, theirs in ranks.call(branches):
        assert all(torch.equal(a, b) for a, b in zip(ours[:-2], theirs[:-2], strict=True))
        assert not any(g.any() for g in ours[-2:])  # nobody's: zeros here,
        assert theirs[-2:] == [None, None]  # and left alone there


def accumulated():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, y = batch(6 * world_size)
    mine = slice(6 * rank, 6 * rank + 6)
    found = []
    for wrap in ddp.DistributedDataParallel, nn.parallel.DistributedDataParallel:
        model = wrap(small())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parts = [(x[mine][i], y[mine][i]) for i in (slice(0, 1), slice(1, 3), slice(3, 6))]
        loss = ddp.no_sync_step(model, parts, optimizer)
        found.append((loss, gradients(model)))
    alone = small()
    F.mse_loss(alone(x), y).backward()
    return found, gradients(alone)


def test_accumulated_gradients_are_those_of_the_whole_batch(ranks):
    replies = ranks.call(accumulated)
    for found, alone in replies:
        for _, grads in found:
            for a, b in zip(grads, alone, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def started_apart():
    torch.manual_seed(dist.get_rank())
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    module[0].weight = nn.Parameter(module[0].weight.detach().T.contiguous().T)
    module[0].bias.requires_grad_(False)
    module.register_buffer("scratch", torch.randn(2), persistent=False)
    module[1].num_batches_tracked += dist.get_rank()
    places = [t.data_ptr() for t in (*module.parameters(), *module.buffers())]
    src = dist.get_world_size() - 1
    ddp.broadcast_parameters(module, src)
    same = places == [t.data_ptr() for t in (*module.parameters(), *module.buffers())]
    return same, [t.detach().clone() for t in (*module.parameters(), *module.buffers())]


def test_every_rank_starts_from_the_same_place(ranks):
    found = ranks.call(started_apart)
    for same, tensors in found:
        assert same
        assert all(torch.equal(a, b) for a, b in zip(tensors, found[-1][1], strict=True))


def test_a_bucket_is_full_as_torch_has_it():
    """Its C++ function fills from the front; ours from the back, as torch's does once it rebuilds."""
    params = [nn.Parameter(torch.zeros(n)) for n in (3, 700, 20, 5, 1000, 1)]
    for cap in (1, 100, 2000, 10**6):
        ours = ddp.GradientBuckets(params, cap).buckets
        theirs, _ = dist._compute_bucket_assignment_by_size(list(reversed(params)), [cap])
        sizes = [[p.numel() for p in bucket] for bucket in ours]
        assert sizes == [[params[::-1][i].numel() for i in bucket] for bucket in theirs]


def saved(path):
    wrapped = nn.parallel.DistributedDataParallel(small(dtype=torch.float32))
    ddp.save_on_rank_zero(wrapped, path)
    return sorted(torch.load(path, weights_only=True)), os.listdir(os.path.dirname(path))


def test_one_file_with_the_bare_names(ranks, tmp_path):
    path = tmp_path / f"{ranks.world_size}" / "model.pt"
    path.parent.mkdir()
    for names, files in ranks.call(saved, str(path)):
        assert names == sorted(small().state_dict()) and files == ["model.pt"]


def forwards_and_backwards():
    """Gradients of ours and of torch's DDP: after one backward of two forwards, after the other, and
    after a backward of the bare module that follows a forward without gradients."""
    x, _ = batch(2)
    x = x + dist.get_rank()
    found = []
    for wrap in ddp.DistributedDataParallel, nn.parallel.DistributedDataParallel:
        model = wrap(small())
        first, second = model(x), model(2 * x)
        first.square().sum().backward()
        grads = [gradients(model)]
        second.square().sum().backward()
        grads.append(gradients(model))
        model.zero_grad()
        with torch.no_grad():
            model(x)
        model.module(x).square().sum().backward()
        found.append([*grads, gradients(model)])
    return found


def test_the_first_backward_after_a_forward_communicates_and_no_other(ranks):
    for ours, theirs in ranks.call(forwards_and_backwards):
        for mine, torchs in zip(ours, theirs, strict=True):
            for a, b in zip(mine, torchs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def save_to_nowhere(path):
    with pytest.raises(OSError, match=r"rank 0 could not write .*nowhere"):
        ddp.save_on_rank_zero(small(), f"{path}/nowhere/model.pt")
    return True


def test_every_rank_hears_that_nothing_was_written(ranks, tmp_path):
    assert all(ranks.call(save_to_nowhere, str(tmp_path)))


def of_tokens(targets_by_rank):
    rank = dist.get_rank()
    every = [(torch.randint(0, 7, y.shape, generator=torch.Generator().manual_seed(i)), y)
             for i, y in enumerate(targets_by_rank)]  # fmt: skip

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7)).double()

    wrapped, alone = nn.parallel.DistributedDataParallel(model()), model()
    loss = ddp.token_weighted_backward(wrapped, *every[rank])
    logits = torch.cat([alone(ids).flatten(0, 1) for ids, _ in every])
    whole = F.cross_entropy(logits, torch.cat([y.flatten() for _, y in every]))
    whole.backward()
    return loss, whole.detach(), gradients(wrapped), gradients(alone)


def test_tokens_of_unequal_ranks_are_one_process(ranks):
    generator = torch.Generator().manual_seed(1)
    targets = [
        torch.randint(0, 7, (1 + r, 3), generator=generator) for r in range(ranks.world_size)
    ]
    for y in targets[1:]:
        y[1:] = -100
    targets[-1][0, 1:] = -100
    for loss, whole, ours, alone in ranks.call(of_tokens, targets):
        torch.testing.assert_close(loss, whole, rtol=1e-12, atol=0)
        for a, b in zip(ours, alone, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
