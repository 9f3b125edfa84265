"""The book's chapter 1 against torch's own functions, on drawn inputs."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses import FakeTensorMode

from course_utils.reference import tensors as ref

sizes = st.integers(1, 6)
seeds = st.integers(0, 2**31 - 1)


def drawn(**strategies):
    """`given`, without a deadline: the first call into torch is slow."""
    return lambda test: settings(deadline=None)(given(**strategies)(test))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@drawn(B=sizes, T=sizes, seed=seeds)
def test_sequence_lengths_undo_pad_sequence(B, T, seed):
    lengths = torch.randint(0, T + 1, (B,), generator=seeded(seed))
    rows = [torch.ones(n, dtype=torch.int64) for n in lengths.tolist()]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=9)
    assert torch.equal(ref.sequence_lengths(ids, pad_id=9), lengths)


@drawn(B=sizes, T=sizes, D=sizes, seed=seeds)
def test_last_token_states_are_those_of_the_unpadded_rows(B, T, D, seed):
    g = seeded(seed)
    hidden = torch.randn(B, T, D, generator=g)
    lengths = torch.randint(1, T + 1, (B,), generator=g)
    want = torch.stack([row[:n][-1] for row, n in zip(hidden, lengths.tolist(), strict=True)])
    assert torch.equal(ref.last_token_states(hidden, lengths), want)


@drawn(B=sizes, T=sizes, seed=seeds)
def test_padding_mask_hides_padding_from_attention(B, T, seed):
    g = seeded(seed)
    lengths = torch.randint(1, T + 1, (B,), generator=g)
    padding = torch.arange(T) >= lengths[:, None]
    q, k, v = torch.randn(3, B, 2, T, 4, generator=g).unbind()
    mask = ref.padding_to_attention_mask(padding)
    got = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    for b, n in enumerate(lengths.tolist()):
        alone = F.scaled_dot_product_attention(q[b], k[b, :, :n], v[b, :, :n])
        torch.testing.assert_close(got[b], alone)


@drawn(T=st.integers(0, 6), more=st.integers(0, 6))
def test_causal_mask_is_the_lower_right_bias_of_torch(T, more):
    S = T + more
    whole = torch.ones(S, S, dtype=torch.bool).tril()
    assert torch.equal(ref.causal_mask(T, S), whole[more:])
    assert torch.equal(ref.causal_mask(S, S), ~torch.ones(S, S, dtype=torch.bool).triu(1))


@drawn(T=sizes, seed=seeds)
def test_causal_mask_gives_torchs_causal_attention(T, seed):
    q, k, v = torch.randn(3, 1, 2, T, 4, generator=seeded(seed)).unbind()
    got = F.scaled_dot_product_attention(q, k, v, attn_mask=ref.causal_mask(T, T))
    torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, v, is_causal=True))


@drawn(B=sizes, T=sizes, D=sizes, seed=seeds)
def test_masked_mean_is_the_mean_of_what_is_kept(B, T, D, seed):
    g = seeded(seed)
    keep = torch.rand(B, T, generator=g) < 0.6
    x = torch.randn(B, T, D, generator=g, dtype=torch.float64)
    spoiled = x.masked_fill(~keep[:, :, None], float("nan"))
    want = torch.nanmean(spoiled, dim=1).nan_to_num(0.0)
    torch.testing.assert_close(ref.masked_mean(spoiled, keep), want)
    torch.testing.assert_close(ref.masked_mean(x, keep), want)


def test_masked_mean_does_not_overflow_in_float16():
    x = torch.full((1, 300, 2), 300.0, dtype=torch.float16)
    assert x.sum(dim=1).isinf().all()
    assert torch.equal(ref.masked_mean(x, torch.ones(1, 300, dtype=torch.bool)), x[:, 0])


@drawn(B=sizes, T=sizes, V=sizes, seed=seeds)
def test_one_hot_is_torchs(B, T, V, seed):
    ids = torch.randint(0, V, (B, T), generator=seeded(seed))
    got = ref.one_hot_by_scatter(ids, V)
    assert got.dtype == torch.float32
    assert torch.equal(got, F.one_hot(ids, V).float())


@drawn(B=sizes, T=sizes, V=sizes, seed=seeds, scale=st.sampled_from([1.0, 1e4]))
def test_gather_log_probs_is_torchs_cross_entropy(B, T, V, seed, scale):
    g = seeded(seed)
    logits = scale * torch.randn(B, T, V, generator=g, dtype=torch.float64)
    targets = torch.randint(0, V, (B, T), generator=g)
    want = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(-ref.gather_log_probs(logits, targets), want)


def test_gather_log_probs_of_half_precision_are_those_of_the_same_logits_in_float64():
    logits = (4 * torch.randn(2, 8, 1000, generator=seeded(0))).bfloat16()
    targets = torch.randint(0, 1000, (2, 8), generator=seeded(1))
    exact = ref.gather_log_probs(logits.double(), targets)
    assert ref.gather_log_probs(logits, targets).dtype == torch.float32
    torch.testing.assert_close(ref.gather_log_probs(logits, targets).double(), exact)
    in_half = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    assert (in_half.double() - exact).abs().max() > 0.01  # what float32 is for


@drawn(N=sizes, M=sizes, D=sizes, seed=seeds)
def test_pairwise_sq_distances_are_torchs_cdist_squared(N, M, D, seed):
    g = seeded(seed)
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    y = torch.randn(M, D, generator=g, dtype=torch.float64)
    torch.testing.assert_close(ref.pairwise_sq_distances(x, y), torch.cdist(x, y).square())


def test_pairwise_sq_distances_of_coincident_points_are_not_negative():
    x = torch.randn(64, 64, generator=seeded(0))
    raw = x.square().sum(1)[:, None] + x.square().sum(1) - 2 * x @ x.T
    assert (raw < 0).any()  # what the clamp is for
    assert (ref.pairwise_sq_distances(x, x) >= 0).all()


@drawn(fan_out=st.integers(1, 40), fan_in=st.integers(1, 40), seed=seeds)
def test_xavier_uniform_draws_what_torch_draws(fan_out, fan_in, seed):
    want = nn.init.xavier_uniform_(torch.empty(fan_out, fan_in), 1.5, generator=seeded(seed))
    got = ref.xavier_uniform(fan_out, fan_in, 1.5, generator=seeded(seed))
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)


def test_xavier_uniform_keeps_the_variance_halfway():
    w = ref.xavier_uniform(600, 400, generator=seeded(0))
    assert abs(w.var().item() / (2 / 1000) - 1) < 0.02


# What the chapter says of torch in words, and no cell of it shows


def test_a_matmul_of_two_dtypes_raises_where_arithmetic_converts():
    whole, real = torch.tensor([1, 2]), torch.tensor([0.5, 0.5])
    for both in (whole + real, torch.cat([whole, real]), torch.stack([whole, real])):
        assert both.dtype == torch.float32
    with pytest.raises(RuntimeError, match="same dtype"):
        whole @ real


def test_assigning_floats_to_integers_cuts_or_raises():
    x = torch.tensor([1, 2, 3])
    x[0], x[1:] = 0.9, torch.tensor([0.9, 1.9])
    assert x.tolist() == [0, 0, 1]
    with pytest.raises(RuntimeError, match="dtypes match"):
        x[[0, 1]] = torch.tensor([0.9, 0.9])


def test_only_an_index_in_brackets_may_be_on_the_cpu():
    elsewhere = torch.ones(3, device="meta")
    assert elsewhere[torch.tensor([0])].device.type == "meta"
    with FakeTensorMode():
        on_gpu = torch.ones(3, device="cuda")
        for forbidden in (
            lambda: on_gpu.gather(0, torch.tensor([0])),
            lambda: on_gpu.masked_fill(torch.ones(3, dtype=torch.bool), 0.0),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                forbidden()


def test_reshape_exchanges_neighbours_of_which_one_has_size_1():
    assert torch.equal(torch.arange(6).view(1, 6).reshape(6, 1), torch.arange(6).view(1, 6).mT)
    apart = torch.arange(6).view(1, 2, 3)
    assert not torch.equal(apart.reshape(3, 2, 1), apart.transpose(0, 2))
