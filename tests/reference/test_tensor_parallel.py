"""Chapter 19's references against torch: one process, DTensor, and what was written on paper."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

from course_utils.meters import measure
from course_utils.ranks import Ranks, RanksError
from course_utils.reference import fsdp
from course_utils.reference.gpt2 import CONFIGS, GPT2, MLP, GPT2Config
from course_utils.reference.tensor_parallel import (
    ColumnParallelLinear,
    ParallelMLP,
    RowParallelLinear,
    VocabParallelEmbedding,
    by_rank,
    bytes_per_block,
    gather_sequence,
    part_of,
    reduce_scatter_sequence,
    rows_of,
    vocab_parallel_cross_entropy,
)
from course_utils.reference.tensor_parallel_gpt2 import (
    HeadsAttention,
    axis_of,
    cut,
    global_norm,
    initial_part,
    join,
    parallel_loss,
    parallelize,
    start_model,
)

WORLDS = (1, 2, 4)
CONFIG = CONFIGS["bytes-small"]


@pytest.fixture(scope="module")
def pools():
    made = {n: Ranks(n, timeout=60.0, debug=False) for n in WORLDS}
    yield made
    for ranks in made.values():
        ranks.close()


def first_gpt(config=CONFIG):
    """A GPT-2 in float64 whose biases and norms are not what they start as."""
    torch.manual_seed(0)
    model = GPT2(config).double()
    for p in model.parameters():
        if p.ndim == 1:
            p.data += 0.1 * torch.randn_like(p)
    return model


def batch():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randint(CONFIG.vocab_size, (2, 3, 32), generator=generator)
    y[0, :5] = -100
    return x, y


# ------------------------------------------------------------------------------ without ranks


def test_the_bytes_of_zero_3_are_chapter_18s():
    for tokens, D, n in ((100, 8, 2), (1, 3, 4), (4096, 64, 8)):
        block = 12 * D * D + 13 * D
        assert bytes_per_block(tokens, D, n, 4)[1] == fsdp.bytes_sent_per_step([block], n, 3)
        model = GPT2(GPT2Config(n_embd=D, n_head=1, n_layer=1, vocab_size=2, n_positions=2))
        assert block == sum(p.numel() for p in model.transformer.h[0].parameters())


def test_rows_are_chapter_18s():
    for rows in range(9):
        for n in (1, 2, 3, 5):
            assert all(rows_of(rows, r, n) == fsdp.rows_of(rows, r, n) for r in range(n))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_parts_are_cut_and_joined(n):
    for name, p in first_gpt().named_parameters():
        parts = [cut(name, p.detach(), rank, n) for rank in range(n)]
        assert torch.equal(join(name, parts), p)
        assert all(part.untyped_storage().nbytes() == part.nbytes for part in parts)
        assert (sum(part.numel() for part in parts) == p.numel()) == (
            axis_of(name) is not None or n == 1
        )


def test_the_start_is_the_same_on_every_number_of_ranks():
    name = "transformer.h.0.attn.c_attn.weight"
    whole = initial_part(name, (48, 16), 0.02, 0, 0, 1)
    for n in (2, 4):
        parts = [initial_part(name, (48, 16), 0.02, 0, r, n) for r in range(n)]
        assert torch.equal(join(name, parts), whole)
    assert not torch.equal(whole, initial_part(name, (48, 16), 0.02, 1, 0, 1))
    assert not torch.equal(whole, initial_part(name + "2", (48, 16), 0.02, 0, 0, 1))
    assert 0.018 < whole.std() < 0.022


def test_by_rank_keeps_q_k_and_v_of_a_rank_together():
    assert by_rank(torch.arange(12), 2).tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    assert torch.equal(by_rank(torch.arange(12), 1), torch.arange(12))


def test_the_librarys_form_of_attention_is_the_same():
    model, x = first_gpt(), torch.randn(2, 7, CONFIG.n_embd, dtype=torch.float64)
    attention = model.transformer.h[0].attn
    torch.testing.assert_close(HeadsAttention(attention)(x), attention(x))


def test_dropout_is_refused():
    with pytest.raises(ValueError, match=r"dropout is 0\.5"):
        parallelize(GPT2(replace(CONFIG, dropout=0.5)))


# ------------------------------------------------------------------------------ on ranks


def model_against_one_process(sequence):
    """The largest differences of loss and gradients, and of the norm of all gradients."""
    full = first_gpt()
    x, y = batch()
    model = parallelize(copy.deepcopy(full), sequence=sequence)
    alone = F.cross_entropy(full(x).flatten(0, 1), y.flatten())
    loss = parallel_loss(model, x, y)
    alone.backward()
    loss.backward()
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = {name: p.grad for name, p in full.named_parameters()}
    worst = max(
        (cut(name, whole[name], rank, n) - p.grad).abs().max().item()
        for name, p in model.named_parameters()
    )
    assert list(dict(model.named_parameters())) == list(whole)
    norm = nn.utils.get_total_norm(list(whole.values())).item()
    return (loss - alone).abs().item(), worst, abs(global_norm(model.named_parameters()) - norm)


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize("sequence", [False, True])
def test_a_whole_gpt2_is_that_of_one_process(pools, n, sequence):
    for differences in pools[n].call(model_against_one_process, sequence):
        assert max(differences) < 1e-12


def started():
    """The loss of a model that nobody held whole, and the parameters that are one object twice."""
    x, y = batch()
    model = start_model(CONFIG, 3).double()
    tied = model.lm_head.weight is model.transformer.wte.weight
    return parallel_loss(model, x, y).item(), tied, sum(p.numel() for p in model.parameters())


def test_a_start_on_meta_is_the_same_on_every_number_of_ranks(pools):
    seen = {n: pools[n].call(started) for n in WORLDS}
    losses = [loss for n in WORLDS for loss, _, _ in seen[n]]
    assert max(losses) - min(losses) < 1e-12
    assert all(tied for n in WORLDS for _, tied, _ in seen[n])
    assert seen[4][0][2] < 0.31 * seen[1][0][2]


def in_groups(sequence):
    """Two groups of two ranks, each with a model of its own."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank = dist.get_rank()
    group = groups[rank % 2]
    full = first_gpt()
    if rank % 2:
        for p in full.parameters():
            p.data += 0.01
    x, y = batch()
    model = parallelize(copy.deepcopy(full), group, sequence)
    loss = parallel_loss(model, x, y, group)
    loss.backward()
    alone = F.cross_entropy(full(x).flatten(0, 1), y.flatten())
    alone.backward()
    parts = [
        (cut(name, whole.grad, rank // 2, 2) - p.grad).abs().max().item()
        for (name, whole), p in zip(full.named_parameters(), model.parameters(), strict=True)
    ]
    return (loss - alone).abs().item(), max(parts)


@pytest.mark.parametrize("sequence", [False, True])
def test_groups_work_among_themselves(pools, sequence):
    for differences in pools[4].call(in_groups, sequence):
        assert max(differences) < 1e-12


def messages_of_a_step(sequence):
    x, y = batch()
    model = parallelize(first_gpt(), sequence=sequence)
    with measure() as forward:
        loss = parallel_loss(model, x, y)
    with measure() as backward:
        loss.backward()
    return dict(forward.collectives), dict(backward.collectives)


def test_the_collectives_of_a_step(pools):
    L = CONFIG.n_layer
    for forward, backward in pools[2].call(messages_of_a_step, False):
        assert forward == {"all_reduce": 2 * L + 1 + 2}  # blocks, embedding, loss
        assert backward == {"all_reduce": 2 * L + 1}  # blocks, head
    for forward, backward in pools[2].call(messages_of_a_step, True):
        assert forward == {"all_reduce": 1 + 2, "all_gather": 2 * L + 1, "reduce_scatter": 2 * L}
        sums = (2 * L + 1) * 2 + 2 * L  # norms' weights and biases, and the biases of c_proj
        gathers = 2 * L + 1 + 2 * L + 1  # made again; of c_proj's gradient; of the embeddings'
        assert backward == {
            "all_reduce": sums,
            "all_gather": gathers,
            "reduce_scatter": 2 * L + 1,
        }


def layers_against_dtensor():
    """The largest difference of an MLP's result and gradients from `parallelize_module`'s."""
    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_head=2, dropout=0.0)
    full = MLP(config).double()
    ours = ParallelMLP(full)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"c_fc": ColwiseParallel(), "c_proj": RowwiseParallel()}
    theirs = parallelize_module(copy.deepcopy(full), mesh, plan)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    results, gradients = [], []
    for layer in (ours, theirs):
        a = x.clone().requires_grad_()
        y = layer(a)
        y.square().sum().backward()
        results.append(y)
        local = [getattr(p.grad, "to_local", lambda p=p: p.grad)() for p in layer.parameters()]
        gradients.append([a.grad, *local])
    pairs = zip([results[0], *gradients[0]], [results[1], *gradients[1]], strict=True)
    return max((p - q).abs().max().item() for p, q in pairs)


@pytest.mark.parametrize("n", WORLDS)
def test_the_mlp_is_dtensors(pools, n):
    assert max(pools[n].call(layers_against_dtensor)) < 1e-12


def loss_against_torch(dtype, vocab):
    torch.manual_seed(0)
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = (30 * torch.randn(2, 5, vocab)).to(dtype).requires_grad_()
    targets = torch.randint(vocab, (2, 5))
    targets[1, 1:3] = -100
    start, stop = rows_of(vocab, rank, n)
    mine = whole.detach()[..., start:stop].clone().requires_grad_()
    losses = vocab_parallel_cross_entropy(mine, targets, vocab)
    weights = torch.randn(2, 5)
    (losses * weights).sum().backward()
    wide = whole.double() if dtype == torch.float64 else whole.float()
    expected = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="none").view(2, 5)
    (expected * weights).sum().backward()
    assert losses.dtype == expected.dtype and mine.grad.dtype == dtype
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(mine.grad, whole.grad[..., start:stop])
    return True


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_loss_is_torchs(pools, n, dtype):
    for vocab in (8, 13, 50):
        assert all(pools[n].call(loss_against_torch, dtype, vocab))


def sequences_there_and_back():
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(3, 8, 5)
    mine = part_of(8)
    torch.testing.assert_close(gather_sequence(x[:, mine]), x)
    total = reduce_scatter_sequence(x * (rank + 1))
    n = dist.get_world_size()
    torch.testing.assert_close(total, x[:, mine] * (n * (n + 1) / 2))
    return True


@pytest.mark.parametrize("n", WORLDS)
def test_sequences_are_gathered_and_scattered(pools, n):
    assert all(pools[n].call(sequences_there_and_back))


def layers_of(layer, size):
    full = nn.Embedding(size, 3) if layer is VocabParallelEmbedding else nn.Linear(size, size)
    return sum(p.numel() for p in layer(full).parameters())


def test_what_a_rank_keeps(pools):
    assert pools[4].call(layers_of, ColumnParallelLinear, 8) == [(64 + 8) // 4] * 4
    assert pools[4].call(layers_of, RowParallelLinear, 8) == [64 // 4 + 8] * 4
    assert pools[4].call(layers_of, VocabParallelEmbedding, 7) == [6, 6, 6, 3]
    with pytest.raises(RanksError, match="4 ranks cannot share 6 evenly"):
        pools[4].call(layers_of, ColumnParallelLinear, 6)
