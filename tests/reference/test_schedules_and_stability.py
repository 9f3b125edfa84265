"""Chapter 11's references against torch's schedulers and clipping, transformers' schedules, one whole batch."""

import math
import random
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from course_utils.meters import measure
from course_utils.ranks import Ranks
from course_utils.reference import schedules_and_stability as book

PARTS = st.integers(0, 7)


def rates(make, steps, lr=0.5):
    """The learning rate of each step under a scheduler of torch's form."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr)
    scheduler, seen = make(optimizer), []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


@given(st.integers(1, 9), st.floats(0.01, 1.0))
def test_linear_warmup_is_linear_lr(warmup, start):
    theirs = rates(lambda o: LinearLR(o, start, 1.0, warmup), 15)
    assert theirs == pytest.approx([0.5 * book.linear_warmup(i, warmup, start) for i in range(15)])


@given(st.integers(1, 6), st.integers(1, 9), st.floats(0, 0.9))
def test_warmup_cosine_is_two_schedulers_in_a_row(warmup, falling, low):
    def make(optimizer):
        line = LinearLR(optimizer, 1e-9, 1.0, warmup)
        cosine = CosineAnnealingLR(optimizer, falling, eta_min=0.5 * low)
        return SequentialLR(optimizer, [line, cosine], milestones=[warmup])

    sizes = {"warmup_steps": warmup, "total_steps": warmup + falling, "min_ratio": low}
    mine = [0.5 * book.warmup_cosine(i, **sizes) for i in range(warmup + falling + 1)]
    assert rates(make, len(mine)) == pytest.approx(mine, abs=1e-8)
    assert rates(lambda o: LambdaLR(o, lambda i: book.warmup_cosine(i, **sizes)), len(mine)) == mine
    assert book.warmup_cosine(10**6, **sizes) == pytest.approx(low)


@given(PARTS, st.integers(1, 9), st.floats(0, 0.9))
def test_warmup_cosine_is_that_of_transformers(warmup, falling, low):
    optimization = pytest.importorskip("transformers.optimization")
    total = warmup + falling
    sizes = {"num_warmup_steps": warmup, "num_training_steps": total}
    mine = [
        0.5 * book.warmup_cosine(i, warmup_steps=warmup, total_steps=total)
        for i in range(total + 1)
    ]
    theirs = rates(lambda o: optimization.get_cosine_schedule_with_warmup(o, **sizes), total + 1)
    assert theirs == pytest.approx(mine)
    make = optimization.get_cosine_with_min_lr_schedule_with_warmup
    mine = [
        0.5 * book.warmup_cosine(i, warmup_steps=warmup, total_steps=total, min_ratio=low)
        for i in range(total + 1)
    ]
    assert rates(lambda o: make(o, **sizes, min_lr_rate=low), total + 1) == pytest.approx(mine)


@given(PARTS, PARTS, PARTS, st.floats(0, 0.9), st.sampled_from(["linear", "cosine", "1-sqrt"]))
def test_wsd_is_that_of_transformers(warmup, stable, falling, low, decay):
    optimization = pytest.importorskip("transformers.optimization")
    theirs = rates(
        lambda o: optimization.get_wsd_schedule(
            o,
            num_warmup_steps=warmup,
            num_stable_steps=stable,
            num_decay_steps=falling,
            min_lr_ratio=low,
            decay_type=decay,
        ),
        25,
    )
    sizes = {"warmup_steps": warmup, "stable_steps": stable, "decay_steps": falling}
    mine = [0.5 * book.wsd(i, **sizes, min_ratio=low, decay=decay) for i in range(25)]
    assert theirs == pytest.approx(mine)


def test_schedules_refuse_what_they_cannot_do():
    for total in (3, 4):
        with pytest.raises(ValueError, match="4 steps of warm-up"):
            book.warmup_cosine(0, warmup_steps=4, total_steps=total)
    with pytest.raises(ValueError, match="came 'sqrt'"):
        book.wsd(0, warmup_steps=1, stable_steps=1, decay_steps=1, decay="sqrt")


def with_gradients(*grads):
    params = [nn.Parameter(torch.zeros(3))]  # one without gradient
    for grad in grads:
        p = nn.Parameter(torch.zeros_like(grad))
        p.grad = grad.clone()
        params.append(p)
    return params


@given(st.integers(0, 10**6), st.floats(0.01, 20), st.booleans())
def test_clip_grad_norm_is_torchs(seed, max_norm, double):
    generator = torch.Generator().manual_seed(seed)
    grads = [torch.randn(s, generator=generator) for s in ((3, 4), (5,), ())]
    grads[1] = grads[1].double() if double else grads[1]
    mine, theirs = with_gradients(*grads), with_gradients(*grads)
    norm = book.clip_grad_norm(iter(mine), max_norm)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs, max_norm))
    for p, q in zip(mine[1:], theirs[1:], strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert mine[0].grad is None


def test_clip_grad_norm_where_it_is_not_torchs():
    half = torch.full((8,), 40000.0, dtype=torch.float16)
    mine, theirs = with_gradients(half), with_gradients(half)
    assert nn.utils.clip_grad_norm_(theirs, 1.0).isinf() and (theirs[1].grad == 0).all()
    norm = book.clip_grad_norm(mine, 1.0)
    assert norm == pytest.approx(40000 * 8**0.5) and (mine[1].grad > 0.3).all()
    for bad in (math.inf, -math.inf, math.nan):
        params = with_gradients(torch.tensor([1.0, bad]), torch.tensor([2.0]))
        assert not book.clip_grad_norm(params, 1.0).isfinite()
        assert params[2].grad == 2.0 and params[1].grad[0] == 1.0


def test_clip_grad_norm_counts_no_more_kernels_for_more_parameters():
    counts = []
    for n in (3, 30):
        params = with_gradients(*[torch.ones(4)] * n)
        with measure() as cost:
            book.clip_grad_norm(params, 1.0)
        counts.append(cost.kernels)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_clipping_shards_is_clipping_the_whole(world):
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(7, generator=generator)
    with Ranks(world, timeout=30.0) as ranks:
        for max_norm in (0.5, 100.0):
            got = ranks.call(_clipped_there, list(whole.tensor_split(world)), max_norm)
            (p,) = with_gradients(whole)[1:]
            norm = nn.utils.clip_grad_norm_([p], max_norm)
            assert [n for n, _ in got] == pytest.approx([norm.item()] * world)
            torch.testing.assert_close(torch.cat([g for _, g in got]), p.grad)


def _clipped_there(shards, max_norm):
    import torch.distributed as dist

    params = with_gradients(shards[dist.get_rank()])
    return book.clip_sharded_grad_norm(iter(params), max_norm), params[1].grad


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11)).double()


def uneven(number, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        shape = torch.randint(1, 5, (2,), generator=generator).tolist()
        ids = torch.randint(0, 11, shape, generator=generator)
        targets = torch.randint(0, 11, shape, generator=generator)
        yield ids, targets.masked_fill(torch.rand(shape, generator=generator) < 0.4, -100)


def whole_gradient(batches):
    model = model_of()
    logits = torch.cat([model(ids).flatten(0, 1) for ids, _ in batches])
    loss = F.cross_entropy(logits, torch.cat([targets.flatten() for _, targets in batches]))
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


def test_accumulating_is_the_whole_batch():
    for seed in range(5):
        batches = list(uneven(4, seed))
        loss, grads = whole_gradient(batches)
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert book.accumulate_step(model, batches, optimizer) == pytest.approx(loss, rel=1e-12)
        for p, grad in zip(model.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad, grad, rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="has a target"):
        book.accumulate_step(model, [], optimizer)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_accumulating_on_ranks_is_the_whole_batch(world):
    dealt = [list(uneven(rank, rank)) for rank in range(1, world)] + [[]]
    dealt[0] = list(uneven(2, 9))
    loss, grads = whole_gradient([batch for mine in dealt for batch in mine])
    with Ranks(world, timeout=30.0) as ranks:
        for got, theirs in ranks.call(_accumulated_there, dealt):
            assert got == pytest.approx(loss, rel=1e-12)
            for mine, grad in zip(theirs, grads, strict=True):
                torch.testing.assert_close(mine, grad, rtol=1e-12, atol=1e-14)


def _accumulated_there(dealt):
    import torch.distributed as dist

    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = book.accumulate_on_ranks(model, dealt[dist.get_rank()], optimizer)
    return loss, [p.grad for p in model.parameters()]


def test_a_step_that_is_not_finite_leaves_nothing_behind():
    p = nn.Parameter(torch.tensor([1.0, 4.0]))
    optimizer = torch.optim.AdamW([p], lr=0.1)
    assert book.finite_step(p.square().sum(), optimizer) and p.grad is None
    before, state = p.detach().clone(), optimizer.state_dict()["state"][0]
    kept = {name: value.clone() for name, value in state.items()}
    for bad in (p.sum() * math.nan, p.sum() + math.inf, (p - p.detach()).sqrt().sum()):
        assert not book.finite_step(bad, optimizer)
        assert torch.equal(p, before) and p.grad is None
        assert all(torch.equal(state[name], value) for name, value in kept.items())
    huge = ((p - p.detach()) * 3e38).sum()  # the gradient's norm overflows; each element is finite
    assert book.finite_step(huge, optimizer)


def test_spikes():
    detect = book.SpikeDetector(window=4, threshold=3.0)
    seen = [detect(loss) for loss in (9.0, 2.0, 2.5, 2.25, 2.75, 2.0, 50.0, math.nan, 2.5, 3.75)]
    assert seen == [False] * 6 + [True, True, False, True]
    assert not book.SpikeDetector(window=2)(1e30)


def test_set_seed():
    def drawn():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    for seed in (0, 7, 2**40 + 3):
        book.set_seed(seed)
        first = drawn()
        assert drawn() != first
        book.set_seed(seed)
        assert drawn() == first
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = True
        book.set_seed(1, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
        book.set_seed(1)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def test_the_order_of_step_is_warned_of():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = LinearLR(optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler.step()
    assert "before `optimizer.step()`" in str(caught[0].message)
