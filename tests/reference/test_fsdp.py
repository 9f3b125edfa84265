"""Chapter 18's references against torch: one process, fully_shard, and what was written on paper."""

import copy
import sys
import warnings
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

from course_utils.meters import measure
from course_utils.ranks import Ranks
from course_utils.reference.bytes_held import (
    fill_shards,
    planned_bytes,
    room,
    training_bytes,
    units,
)
from course_utils.reference.fsdp import (
    FullySharded,
    FullyShardedLinear,
    ShardedModel,
    ZeroOneOptimizer,
    bytes_per_rank,
    bytes_sent_per_step,
    reshard_state_dict,
    rows_of,
    shard_flat,
    unshard_flat,
)
from course_utils.reference.gpt2 import CONFIGS, GPT2, next_token_loss
from course_utils.reference.pretraining import distribute, get_batch, library_text

WORLDS = (1, 2, 3, 4)
CONFIG = CONFIGS["bytes-small"]


@pytest.fixture(scope="module")
def pools():
    made = {n: Ranks(n, timeout=60.0, debug=False) for n in WORLDS}
    yield made
    for ranks in made.values():
        ranks.close()


def first_gpt(seed=0):
    torch.manual_seed(seed)
    return GPT2(CONFIG)


def numels_of(model):
    return [sum(p.numel() for p in unit) for unit in units(model)]


def sharded(seed=0, **options):
    model, mesh = first_gpt(seed), init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in [*model.transformer.h, model]:
        fully_shard(unit, mesh=mesh, **options)
    return model


def batch_of_12():
    return get_batch(library_text(2**16), 12, 32, 0, 0, 0, 1)


def my_rows():
    return get_batch(library_text(2**16), 12, 32, 0, 0, dist.get_rank(), dist.get_world_size())


def loss_of(model, batch):
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    x, y = batch
    return next_token_loss(model(x), y)


# ------------------------------------------------------------------------------ without ranks


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_shares_are_the_chunks_that_torch_cuts(n):
    for rows in range(12):
        x = torch.arange(rows)
        chunks = [*x.chunk(n), *[x[:0]] * n][:n] if rows else [x] * n
        for rank in range(n):
            start, stop = rows_of(rows, rank, n)
            assert torch.equal(x[start:stop], chunks[rank])


def test_there_and_back():
    tensors = [torch.randn(3, 2), torch.randn(()), torch.randn(4)]
    for n in (1, 2, 3, 4, 20):
        shards = [shard_flat(tensors, rank, n) for rank in range(n)]
        assert len({s.shape for s in shards}) == 1
        back = unshard_flat(shards, [tuple(t.shape) for t in tensors])
        assert all(torch.equal(a, b) for a, b in zip(back, tensors, strict=True))


def test_the_papers_own_figures():
    """Rajbhandari et al. (2020), Figure 1: Ψ = 7.5 B, 64 ranks, K = 12."""
    totals = [sum(bytes_per_rank([7_500_000_000], 64, s, (2, 2, 12))) / 1e9 for s in range(4)]
    assert [round(t, 1) for t in totals] == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize(("old", "new"), [(2, 4), (4, 2), (3, 5), (1, 3)])
def test_resharding_is_what_chunk_would_cut(old, new):
    w = torch.randn(10, 3)
    cut = lambda n: [w[slice(*rows_of(10, rank, n))] for rank in range(n)]  # noqa: E731
    saved = [{"w": part, "step": torch.tensor(3.0)} for part in cut(old)]
    for rank, part in enumerate(cut(new)):
        loaded = reshard_state_dict(saved, rank, new)
        assert torch.equal(loaded["w"], part) and loaded["step"] == 3


def test_a_plan_for_64_ranks_is_the_formula():
    config = replace(CONFIGS["gpt2"], n_layer=2, vocab_size=50304)
    with torch.device("meta"):
        numels = numels_of(GPT2(config))
    held = planned_bytes(config, 64)
    assert held[:2] == bytes_per_rank(numels, 64, 3)[:2]
    assert held[2] > held[0] + held[1]
    assert not dist.is_initialized()


# ------------------------------------------------------------------------------ on ranks


def optimizer_against_one_process(name, options):
    """The largest difference after five steps, in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    alone = copy.deepcopy(model)
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.randn(12, 3, dtype=torch.float64)
    n, rank = dist.get_world_size(), dist.get_rank()
    kind = getattr(torch.optim, name)
    ours = ZeroOneOptimizer(model.parameters(), kind, **options)
    plain = kind(alone.parameters(), **options)
    for _ in range(5):
        ours.zero_grad()
        plain.zero_grad()
        F.mse_loss(model(x.chunk(n)[rank]), y.chunk(n)[rank]).backward()
        F.mse_loss(alone(x), y).backward()
        ours.step()
        plain.step()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    return max((p - q).abs().max().item() for p, q in pairs)


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize(
    ("name", "options"),
    [("AdamW", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adagrad", {"lr": 0.1})],
)
def test_zero_one_is_one_process(pools, n, name, options):
    assert max(pools[n].call(optimizer_against_one_process, name, options)) < 1e-10


def frozen_weights():
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    layers[0].requires_grad_(False)
    before = layers[0].weight.clone()
    ours = ZeroOneOptimizer(layers.parameters(), torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    layers(torch.ones(1, 3)).sum().backward()
    ours.step()
    return torch.equal(layers[0].weight, before)


def test_weight_decay_leaves_frozen_weights_alone(pools):
    assert all(pools[2].call(frozen_weights))


def layer_against_one_process():
    torch.manual_seed(0)
    n, rank = dist.get_world_size(), dist.get_rank()
    weight = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    batch = torch.randn(12, 2, 5, dtype=torch.float64)
    F.linear(batch, weight, bias).square().mean().backward()
    shard = shard_flat([weight.detach(), bias.detach()], rank, n).requires_grad_()
    x = batch.chunk(n)[rank].clone().requires_grad_()
    FullyShardedLinear.apply(x, shard, 4, None).square().mean().backward()
    return (shard.grad - shard_flat([weight.grad, bias.grad], rank, n)).abs().max().item()


@pytest.mark.parametrize("n", WORLDS)
def test_the_layer_is_one_process(pools, n):
    assert max(pools[n].call(layer_against_one_process)) < 1e-12


def test_every_parameter_is_in_one_unit():
    model = first_gpt()
    found = [p for unit in units(model) for p in unit]
    assert len(found) == len(set(found)) == len(list(model.parameters()))
    assert set(found) == set(model.parameters())
    assert any(p is model.lm_head.weight for p in units(model)[0])


def wrapped_against_fully_shard(reshard):
    n, rank = dist.get_world_size(), dist.get_rank()
    alone = first_gpt()
    whole_loss = loss_of(alone, batch_of_12())
    whole_loss.backward()

    model, log = first_gpt(), []
    blocks = model.transformer.h
    for i, block in enumerate(blocks):
        blocks[i] = FullySharded(block, None, reshard is not False, log.append)
    model = FullySharded(model, None, bool(reshard), log.append)
    with measure() as cost:
        loss = loss_of(model, my_rows())
        loss.backward()
    theirs = sharded(reshard_after_forward=reshard)
    with measure() as their_cost:
        their_loss = loss_of(theirs, my_rows())
        their_loss.backward()
    assert [p.shape for p in model.parameters()] == [
        p.shape for p in (model.shard, *(b.shard for b in blocks))
    ]
    for mine, unit in zip([model, *blocks], units(alone), strict=True):
        torch.testing.assert_close(mine.shard.grad, shard_flat([p.grad for p in unit], rank, n))
    for p, q in zip(theirs.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), q.grad)
    torch.testing.assert_close(loss, their_loss)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    torch.testing.assert_close(mean / n, whole_loss.detach())
    return log, dict(cost.collectives), dict(their_cost.collectives), cost.bytes_sent


@pytest.mark.parametrize(("reshard", "gathers"), [(True, 6), (None, 5), (False, 3)])
@pytest.mark.parametrize("n", WORLDS)
def test_the_wrapper_is_fully_shard(pools, n, reshard, gathers):
    """None, torch's default: the blocks are freed after forward, the root is not."""
    root, *blocks = numels_of(GPT2(CONFIG))
    for log, ours, theirs, sent in pools[n].call(wrapped_against_fully_shard, reshard):
        assert ours == {"all_gather": gathers, "reduce_scatter": 3}
        if n > 1:
            assert theirs == ours
        expected = bytes_sent_per_step([root], n, 3 if reshard else 2)
        assert sent == expected + bytes_sent_per_step(blocks, n, 2 if reshard is False else 3)
        assert log.count("gather") == log.count("free") == gathers


def bytes_held():
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of(model, my_rows()).backward()
    optimizer.step()
    return training_bytes(model, optimizer)


@pytest.mark.parametrize("n", [2, 4])
def test_fully_shard_holds_what_the_formula_says(pools, n):
    assert pools[n].call(bytes_held) == [bytes_per_rank(numels_of(GPT2(CONFIG)), n, 3)] * n


def low_precision():
    model = sharded(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    seen = []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(
        lambda m, a, out: seen.append(m.weight.dtype)
    )
    loss_of(model, my_rows()).backward()
    p = model.transformer.h[0].mlp.c_fc.weight
    return seen == [torch.bfloat16] and p.dtype == p.grad.dtype == torch.float32


def test_mixed_precision_casts_what_is_gathered(pools):
    assert all(pools[2].call(low_precision))


# ------------------------------------------------------------------------------ checkpoints


def trained_and_saved(folder):
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, my_rows()).backward()
        optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)
    return loss_of(model, batch_of_12()).item()


def loaded(folder):
    model = sharded(seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weights, state = get_state_dict(model, optimizer)
    wanted = {"model": weights, "optimizer": state}
    dcp.load(wanted, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=wanted["optimizer"])
    steps = {float(kept["step"]) for kept in optimizer.state.values()}
    return loss_of(model, batch_of_12()).item(), steps


def test_a_checkpoint_of_two_ranks_loads_on_any_number(pools, tmp_path):
    folder = str(tmp_path / "saved")
    [loss] = set(pools[2].call(trained_and_saved, folder))
    for n in WORLDS:
        for found, steps in pools[n].call(loaded, folder):
            assert found == loss and steps == {2.0}


# ------------------------------------------------------------------------------ the script


def bytes_of_the_script(strategy):
    model = distribute(first_gpt(), strategy)
    return training_bytes(model, torch.optim.AdamW(model.parameters()))[0]


def test_the_script_shards(pools):
    """Its losses and checkpoints are compared with one process's in test_pretraining.py."""
    [whole] = set(pools[2].call(bytes_of_the_script, "ddp"))
    assert pools[2].call(bytes_of_the_script, "fsdp") == [whole // 2] * 2


def model_of_units(dtype):
    """The gradients by our model of units, from a step of SGD, and by fully_shard in that dtype."""
    ours = ShardedModel(first_gpt(), ["transformer.h.1", "transformer.h.0"], dtype)
    before = ours.gather_full_parameters()
    optimizer = torch.optim.SGD(ours.parameters(), lr=1.0)
    loss_of(ours, my_rows()).backward()
    optimizer.step()
    after = ours.gather_full_parameters()
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    theirs = sharded(mp_policy=policy)
    loss_of(theirs, my_rows()).backward()
    plain = first_gpt()
    assert list(before) == [name for name, _ in plain.named_parameters()]
    assert all(torch.equal(before[name], p) for name, p in plain.named_parameters())
    mine = torch.cat([(before[name] - after[name]).flatten() for name in before])
    torchs = torch.cat([p.grad.full_tensor().flatten() for p in theirs.parameters()])
    return ((mine - torchs).norm() / torchs.norm()).item()


@pytest.mark.parametrize("n", WORLDS)
def test_a_model_of_units_is_fully_shard_in_its_dtype(pools, n):
    assert max(pools[n].call(model_of_units, None)) < 1e-5
    assert max(pools[n].call(model_of_units, torch.bfloat16)) < 2e-2


def filled():
    """Are shards that were filled one parameter at a time those of a model filled whole?"""
    with torch.device("meta"):
        model = GPT2(CONFIG)
    model = distribute(model, "fsdp", init_device_mesh("cpu", (dist.get_world_size(),)))
    model.to_empty(device="cpu")
    torch.manual_seed(3)
    fill_shards(model, lambda name, p: p.normal_())
    whole = first_gpt()
    torch.manual_seed(3)
    with torch.no_grad():
        for p in whole.parameters():
            p.normal_()
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    return all(torch.equal(p.full_tensor(), q) for p, q in pairs)


@pytest.mark.parametrize("n", WORLDS)
def test_shards_are_filled_as_a_whole_model_is(pools, n):
    assert all(pools[n].call(filled))


def without_room():
    with room(2**24):
        torch.zeros(2**20)
        try:
            torch.zeros(2**26)
        except RuntimeError:
            return True
    return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux refuses, others do not")
def test_there_is_no_more_room_than_was_given(pools):
    assert all(pools[1].call(without_room))
