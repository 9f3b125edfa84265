"""The book's attention is PyTorch's and Transformers': values, gradients, positions, bytes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from course_utils.meters import measure
from course_utils.reference.attention import (
    alibi_bias,
    apply_rope,
    causal_mask,
    document_mask,
    flash_attention_backward,
    flash_attention_forward,
    grouped_query_attention,
    multi_head_attention,
    online_softmax,
    pairs_to_halves,
    scaled_dot_product_attention,
)
from course_utils.reference.broadcasting_and_named_axes import rope_rotate, rotary_tables
from course_utils.reference.data import document_mask as packed_mask
from course_utils.reference.modules import MultiHeadSelfAttention
from course_utils.reference.tensors import causal_mask as triangle


def qkv(*batch, T=5, S=7, d=4, e=4, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (T, d), (S, d), (S, e)
    return [
        torch.randn(*batch, *size, generator=generator, dtype=dtype, requires_grad=True)
        for size in sizes
    ]


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


MASKS = [None, causal_mask(5, 7), causal_mask(5, 7, 2), torch.zeros(5, 7, dtype=torch.bool)]


@pytest.mark.parametrize("mask", MASKS, ids=("none", "causal", "window", "nothing"))
def test_attention_and_its_gradients_are_the_librarys(mask):
    tensors = qkv(2, 3)
    ours = scaled_dot_product_attention(*tensors, mask)
    theirs = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
    close(ours, theirs)
    weight = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), tensors),
        torch.autograd.grad((theirs * weight).sum(), tensors),
        strict=True,
    ):
        close(a, b)


def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients():
    tensors = qkv(T=3)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1] = False
    out = scaled_dot_product_attention(*tensors, mask)
    assert (out[1] == 0).all()
    grads = torch.autograd.grad(out.square().sum(), tensors)
    assert all(grad.isfinite().all() for grad in grads) and (grads[0][1] == 0).all()


@given(st.integers(1, 8), st.integers(1, 8), st.none() | st.integers(1, 9))
def test_causal_masks_are_the_last_rows_of_a_square_and_chapter_ones(T, S, window):
    n = max(T, S)
    square = causal_mask(n, n, window)
    if T <= S:
        assert torch.equal(causal_mask(T, S, window), square[S - T :, :S])
    mask = causal_mask(T, S, window)
    assert mask.sum(-1).max() <= (window or S)
    if T <= S and window is None:
        assert torch.equal(mask, triangle(T, S))


def test_documents_alone_are_chapter_nines():
    documents = torch.tensor([[0, 0, 1, 2, 2], [5, 5, 5, 5, 6]])
    assert torch.equal(document_mask(documents), packed_mask(documents))


def test_documents_packed_are_documents_alone():
    q, k, v = qkv(1, 2, T=6, S=6)
    packed = scaled_dot_product_attention(
        q, k, v, document_mask(torch.tensor([[0, 0, 0, 1, 1, -1]]))
    )
    for part in (slice(0, 3), slice(3, 5)):
        n = part.stop - part.start
        alone = scaled_dot_product_attention(*(t[:, :, part] for t in (q, k, v)), causal_mask(n, n))
        close(packed[:, :, part], alone)
    assert (packed[:, :, 5] == 0).all()


@pytest.mark.parametrize("heads", [1, 3, 12])
def test_heads_are_those_of_multiheadattention(heads):
    layer = nn.MultiheadAttention(12, heads, bias=False, batch_first=True, dtype=torch.float64)
    x, context = (
        torch.randn(2, 5, 12, dtype=torch.float64),
        torch.randn(2, 7, 12, dtype=torch.float64),
    )
    weights = (*layer.in_proj_weight.chunk(3), layer.out_proj.weight)
    close(multi_head_attention(x, context, *weights, heads), layer(x, context, context)[0])
    hidden = ~causal_mask(5, 7)
    theirs, _ = layer(x, context, context, attn_mask=hidden)
    close(multi_head_attention(x, context, *weights, heads, causal_mask(5, 7)), theirs)


def test_heads_are_those_of_chapter_eight():
    block = MultiHeadSelfAttention(12, 4, bias=False)
    x = torch.randn(2, 5, 12)
    weights = (*block.qkv.weight.chunk(3), block.proj.weight)
    ours = multi_head_attention(x, x, *weights, 4, causal_mask(5, 5))
    torch.testing.assert_close(ours, block(x))


@pytest.mark.parametrize("kv", [1, 2, 3, 6])
def test_groups_are_enable_gqa(kv):
    q = torch.randn(2, 6, 5, 4, dtype=torch.float64)
    k, v = torch.randn(2, 2, kv, 7, 4, dtype=torch.float64)
    mask = causal_mask(5, 7)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    close(grouped_query_attention(q, k, v, mask), theirs)


def test_rope_is_that_of_llama_in_transformers():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=32, num_attention_heads=4, head_dim=8
    )
    q, k = torch.randn(2, 2, 4, 9, 8)
    positions = torch.arange(3, 12)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, positions[None])
    for ours, theirs in zip((q, k), llama.apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        torch.testing.assert_close(apply_rope(ours, positions), theirs)


def test_rope_in_halves_is_chapter_threes():
    x = torch.randn(2, 6, 3, 8)
    theirs = rope_rotate(x, *rotary_tables(6, 8))
    ours = apply_rope(x.transpose(1, 2), torch.arange(6)).transpose(1, 2)
    torch.testing.assert_close(ours, theirs)


def test_rope_in_pairs_is_a_product_of_complex_numbers():
    x, positions = torch.randn(3, 5, 8, dtype=torch.float64), torch.arange(5)
    angles = positions[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(
        torch.ones_like(angles), angles
    )
    close(apply_rope(x, positions, interleaved=True), torch.view_as_real(turned).flatten(-2))


@settings(max_examples=30, deadline=None)
@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(-1000, 1000), st.booleans())
def test_scores_depend_on_the_distance_alone(m, n, shift, interleaved):
    q, k = torch.randn(2, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def score(i, j):
        a, b = (
            apply_rope(x, torch.tensor([p]), interleaved=interleaved) for x, p in ((q, i), (k, j))
        )
        return (a * b).sum()

    torch.testing.assert_close(score(m, n), score(m + shift, n + shift), atol=1e-10, rtol=1e-10)


def test_permuted_rows_give_the_same_scores_in_the_other_layout():
    x, positions = torch.randn(9, 12, dtype=torch.float64), torch.arange(9)
    weights = torch.randn(2, 24, 12, dtype=torch.float64)

    def scores(w_q, w_k, interleaved):
        q, k = ((x @ w.T).unflatten(-1, (3, 8)).transpose(0, 1) for w in (w_q, w_k))
        q, k = (apply_rope(t, positions, interleaved=interleaved) for t in (q, k))
        return q @ k.mT

    moved = [pairs_to_halves(w, 3) for w in weights]
    close(scores(*moved, False), scores(*weights, True))


def test_slopes_are_those_of_bloom_and_mpt():
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    for heads in (1, 2, 3, 5, 6, 8, 12, 16, 20, 112):
        ours = alibi_bias(heads, 1, 6)
        theirs = bloom.build_alibi_tensor(torch.ones(1, 6), heads, torch.float32)
        theirs = theirs - theirs[..., -1:]  # BLOOM adds slope · position: a constant a row apart
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(
            ours[:, :, :], mpt.build_mpt_alibi_tensor(heads, 6).view(heads, 1, 6)
        )


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_a_stream_in_any_pieces_is_one_softmax(sizes):
    generator = torch.Generator().manual_seed(len(sizes))
    scores = 20 * torch.randn(3, sum(sizes), dtype=torch.float64, generator=generator)
    values = torch.randn(sum(sizes), 2, dtype=torch.float64, generator=generator)
    m, total = scores.new_full((3,), -math.inf), scores.new_zeros(3)
    output = scores.new_zeros(3, 2)
    for piece, value in zip(scores.split(sizes, -1), values.split(sizes), strict=True):
        m, total, output = online_softmax(m, total, output, piece, value)
    close(output / total[:, None], scores.softmax(-1) @ values)
    close(m + total.log(), scores.logsumexp(-1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("T", "S"), [(7, 7), (5, 9), (9, 5), (1, 6)])
def test_tiles_are_exact_forward_and_backward(T, S, causal):
    q, k, v = qkv(2, 3, T=T, S=S)
    mask = causal_mask(T, S) if causal else None
    tiles = {"causal": causal, "block_q": 4, "block_k": 3}
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    grad_out = torch.randn_like(theirs)
    with torch.no_grad():
        out, logsumexp = flash_attention_forward(q, k, v, **tiles)
        grads = flash_attention_backward(grad_out, q, k, v, out, logsumexp, **tiles)
        scores = (
            (q @ k.mT / 2).masked_fill(~causal_mask(T, S), -math.inf) if causal else q @ k.mT / 2
        )
    close(out, theirs.detach())
    close(logsumexp, scores.logsumexp(-1))
    for ours, grad in zip(grads, torch.autograd.grad(theirs, (q, k, v), grad_out), strict=True):
        close(ours, grad)


def test_memory_grows_with_the_context_and_masked_tiles_are_skipped():
    costs = []
    for T in (64, 128, 256):
        q, k, v = (torch.randn(2, T, 16) for _ in range(3))
        with measure() as cost:
            out, logsumexp = flash_attention_forward(q, k, v, causal=True, block_q=16, block_k=16)
            flash_attention_backward(
                out, q, k, v, out, logsumexp, causal=True, block_q=16, block_k=16
            )
        n = T // 16
        assert cost.flops == n * (n + 1) // 2 * 7 * 2 * 2 * 16**3
        costs.append(cost.bytes_peak)
    assert costs[2] < 2.05 * costs[1] and costs[1] < 2.05 * costs[0]
