"""Chapter 20's experts: the router on paper, and experts on ranks against a dense loop."""

import pytest
import torch
from torch.nn import functional as F

from course_utils.meters import measure
from course_utils.ranks import Ranks
from course_utils.reference.expert_parallel import (
    dense_experts,
    expert_dispatch,
    top_k_router,
    train_byte_experts,
)
from course_utils.reference.pretraining import library_text


def test_the_loss_is_one_for_a_uniform_router_and_the_number_of_experts_for_a_collapsed_one():
    uniform = torch.eye(8).repeat(3, 1) * 1e-4
    assert top_k_router(uniform, 1)[2].item() == pytest.approx(1, abs=1e-3)
    collapsed = torch.zeros(5, 8).index_fill(1, torch.tensor([3]), 40.0)
    assert top_k_router(collapsed, 1)[2].item() == pytest.approx(8, abs=1e-3)


def test_gates_are_the_softmax_of_the_chosen_logits():
    logits = torch.randn(20, 6, dtype=torch.float64, requires_grad=True)
    gates, experts, loss = top_k_router(logits, 3)
    torch.testing.assert_close(gates, logits.gather(1, experts).softmax(1))
    f = F.one_hot(experts, 6).double().mean((0, 1))
    [grad] = torch.autograd.grad(loss, logits)
    [by_hand] = torch.autograd.grad(6 * (f * logits.softmax(1).mean(0)).sum(), logits)
    torch.testing.assert_close(grad, by_hand)


def layer(tokens, k, m, capacity, seed):
    """Each rank's result and gradients, and the largest differences from the dense loop's."""
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    E = m * world
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(E, 4, 4, generator=generator, dtype=torch.float64)
    xs = [torch.randn(T, 4, generator=generator, dtype=torch.float64) for T in tokens]
    logits = [torch.randn(T, E, generator=generator, dtype=torch.float64) for T in tokens]

    def make(ws):
        return [lambda rows, w=w: torch.tanh(rows @ w) for w in ws]

    whole_w = weights.clone().requires_grad_()
    whole_x = [x.clone().requires_grad_() for x in xs]
    dense = []
    for x, row in zip(whole_x, logits, strict=True):
        gates, chosen, _ = top_k_router(row, k)
        if capacity is not None:
            hot = F.one_hot(chosen.flatten(), E)
            late = (hot.cumsum(0) * hot).sum(1) > capacity
            gates = gates.masked_fill(late.view_as(gates), 0.0)
        dense.append(dense_experts(x, chosen, gates, make(whole_w)))
    torch.cat(dense).square().sum().backward()

    x = xs[rank].clone().requires_grad_()
    mine = weights[rank * m : rank * m + m].clone().requires_grad_()
    gates, chosen, _ = top_k_router(logits[rank], k)
    with measure() as cost:
        y = expert_dispatch(x, chosen, gates, make(mine), capacity)
        y.square().sum().backward()
    pairs = [
        (y, dense[rank]),
        (x.grad, whole_x[rank].grad),
        (mine.grad, whole_w.grad[rank * m : rank * m + m]),
    ]
    off = [(a - b).abs().max().item() if a.numel() else 0.0 for a, b in pairs]
    return max(off), dict(cost.collectives)


@pytest.mark.parametrize("capacity", [None, 1, 3])
def test_experts_on_ranks_equal_the_dense_loop(capacity):
    with Ranks(3, timeout=60.0, debug=False) as ranks:
        for tokens, k, m in (((5, 0, 7), 2, 2), ((4, 4, 4), 1, 1), ((9, 2, 1), 3, 1)):
            for off, collectives in ranks.call(layer, tokens, k, m, capacity, 0):
                assert off < 1e-12
                assert collectives == {"all_to_all": 5}


def test_the_loss_balances():
    text = bytes(library_text(2**16).tolist())
    busiest = {w: max(train_byte_experts(text, w, steps=60)[0][-1]) for w in (0.0, 0.2)}
    assert busiest[0.2] < busiest[0.0]
