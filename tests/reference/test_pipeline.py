"""A GPT-2 over ranks is the GPT-2 of one process: loss, gradients, messages, what is held."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_utils.meters import measure
from course_utils.ranks import Ranks
from course_utils.reference.gpt2 import GPT2, GPT2Config
from course_utils.reference.pipeline import (
    GPT2Stage,
    SavedBytes,
    cut_evenly,
    pipeline_step,
    tie_gradients,
    train_without_flush,
)
from course_utils.reference.pipeline_schedules import (
    gpipe_schedule,
    one_f_one_b_schedule,
    peak_microbatches,
)

CONFIG = GPT2Config(vocab_size=31, n_positions=8, n_embd=12, n_layer=5, n_head=3, dropout=0.0)
MAKE = {"gpipe": gpipe_schedule, "1f1b": one_f_one_b_schedule}


def loss_fn(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def one_step(name, m):
    """On a rank: largest difference of a gradient, the losses' mean and the whole's, cost, what is held."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = GPT2(CONFIG).double()
    ids = torch.randint(31, (2 * m, 9))
    x, y = ids[:, :-1], ids[:, 1:]
    whole = loss_fn(model(x), y)
    whole.backward()
    exact = dict(model.named_parameters())
    stage = GPT2Stage(model, *cut_evenly(5, world)[rank])
    assert all(p.grad is None for p in stage.parameters())
    ends = dist.new_group(sorted({0, world - 1}))
    hidden = torch.empty(2, 8, 12, dtype=torch.float64)
    given = list(x.chunk(m)) if rank == 0 else [], list(y.chunk(m)) if rank == world - 1 else []
    with measure() as cost, SavedBytes(stage) as held:
        losses = pipeline_step(stage, MAKE[name](world, m)[rank], *given, loss_fn, hidden)
    assert held.now == 0
    if stage.is_first or stage.is_last:
        tie_gradients(stage, ends)
    worst = 0.0
    for key, p in stage.named_parameters():
        source = "transformer.wte.weight" if key == "lm_head.weight" and world > 1 else key
        worst = max(worst, (p.grad - exact[source].grad).abs().max().item())
    mean = torch.stack(losses).mean().item() if losses else None
    return worst, mean, whole.item(), cost.messages, cost.bytes_sent, held.peak


@pytest.mark.parametrize("world", [1, 3])
def test_a_step_is_that_of_one_process(world):
    with Ranks(world, timeout=30) as ranks:
        for name in MAKE:
            for m in (1, 4):
                found = ranks.call(one_step, name, m)
                for rank, (worst, mean, whole, messages, sent, _) in enumerate(found):
                    assert worst < 1e-13
                    neighbours = (rank > 0) + (rank < world - 1)
                    assert messages == m * neighbours
                    assert sent == m * neighbours * 2 * 8 * 12 * 8
                    assert (mean is None) == (rank < world - 1)
                    assert mean is None or mean == pytest.approx(whole, rel=1e-12)
                if world == 3 and m == 4:
                    middle = found[1][5]
                    held = peak_microbatches(MAKE[name](world, m))[1]
                    each = middle / held
                    assert each == pytest.approx(ranks.call(one_step, name, 1)[1][5])


def test_layers_are_cut_evenly():
    assert cut_evenly(8, 4) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    sizes = [stop - start for start, stop in cut_evenly(10, 4)]
    assert sum(sizes) == 10 and max(sizes) - min(sizes) == 1


def test_one_stage_alone_is_the_model_and_stays_tied():
    model = GPT2(CONFIG)
    stage = GPT2Stage(model, 0, 5)
    assert stage.lm_head.weight is stage.transformer["wte"].weight
    assert stage.lm_head.weight is not model.lm_head.weight
    ids = torch.randint(31, (2, 8))
    assert torch.equal(stage(ids), model(ids))


@pytest.mark.parametrize(("stash", "late"), [(True, True), (True, False), (False, False)])
def test_gradients_with_a_stash_or_one_after_the_other_are_exact(stash, late):
    losses, errors = train_without_flush(0.5, 40, stash, late)
    assert len(losses) == 40 and max(errors) < 1e-12


def test_without_a_stash_only_the_last_stage_is_right():
    losses, errors = train_without_flush(0.5, 40, stash=False)
    assert len(losses) == 40
    assert errors[3] < 1e-12 and min(errors[:3]) > 1e-3


def test_not_late_is_sgd():
    slow, _ = train_without_flush(1e-9, 60, stash=True)
    fast, _ = train_without_flush(0.5, 60, stash=True, late=False)
    assert sum(fast[-20:]) < sum(slow[-20:])
