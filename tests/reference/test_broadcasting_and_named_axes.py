"""The book's broadcasting, einsum and rearrangements against torch's, einops' and Transformers' own."""

import pytest
import torch
from einops import rearrange
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from course_utils.grading import draws
from course_utils.meters import measure
from course_utils.reference import broadcasting_and_named_axes as axes

SHAPES = draws.shapes(max_dims=4, among=(0, 1, 2, 3))


@given(shapes=st.lists(SHAPES, max_size=4))
def test_broadcast_shape_is_torchs(shapes):
    try:
        theirs = tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        with pytest.raises(ValueError, match="do not broadcast"):
            axes.broadcast_shape(*shapes)
    else:
        assert axes.broadcast_shape(*shapes) == theirs


@pytest.mark.parametrize("shapes, axis", [(((2, 3), (4, 3)), -2), (((2, 3), (2,)), -1)])
def test_broadcast_shape_names_the_axis(shapes, axis):
    with pytest.raises(ValueError, match=f"axis {axis}:"):
        axes.broadcast_shape(*shapes)


@given(batch=draws.shapes(max_dims=3), N=draws.sizes(0, 4), M=draws.sizes(0, 4))
def test_batched_outer_is_einsum(batch, N, M):
    x, y = torch.randn(*batch, N), torch.randn(*batch, M)
    assert torch.equal(axes.batched_outer(x, y), torch.einsum("...n,...m->...nm", x, y))


@given(whole=SHAPES, data=st.data())
def test_unbroadcast_is_the_backward_of_expand(whole, data):
    kept = whole[data.draw(st.integers(0, len(whole))) :]
    shape = tuple(data.draw(st.sampled_from((1, size))) for size in kept)
    grad = torch.randn(whole, dtype=torch.float64)
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    (theirs,) = torch.autograd.grad(x.expand(whole), x, grad)
    torch.testing.assert_close(axes.unbroadcast(grad, shape), theirs)
    torch.testing.assert_close(axes.unbroadcast(grad, shape), grad.sum_to_size(shape))


@pytest.mark.parametrize("operation", [torch.add, torch.sub])
def test_unbroadcast_gives_the_gradients_of_both_operands(operation):
    x, y = torch.randn(4, 1, 3, requires_grad=True), torch.randn(5, 1, requires_grad=True)
    grad = torch.randn(4, 5, 3)
    of_x, of_y = torch.autograd.grad(operation(x, y), (x, y), grad)
    sign = 1 if operation is torch.add else -1
    torch.testing.assert_close(axes.unbroadcast(grad, (4, 1, 3)), of_x)
    torch.testing.assert_close(sign * axes.unbroadcast(grad, (5, 1)), of_y)


def test_grouped_query_expand_is_repeat_interleave_without_a_byte():
    x = torch.randn(2, 3, 4, 5)
    with measure() as cost:
        expanded = axes.grouped_query_expand(x, 6)
    assert cost.bytes_allocated == 0
    assert expanded.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(expanded.flatten(1, 2), x.repeat_interleave(6, dim=1))


@pytest.mark.parametrize("kv, G", [(1, 1), (1, 4), (3, 1), (2, 3)])
def test_attention_scores_are_those_of_repeated_keys(kv, G):
    q, k = torch.randn(2, 3, kv * G, 8), torch.randn(2, 5, kv, 8)
    repeated = k.repeat_interleave(G, dim=2)
    theirs = q.transpose(1, 2) @ repeated.permute(0, 2, 3, 1) / 8**0.5
    torch.testing.assert_close(axes.attention_scores(q, k), theirs)


def test_attention_scores_lead_to_torchs_attention():
    q, k, v = torch.randn(2, 6, 4, 8), torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8)
    weights = axes.attention_scores(q, k).softmax(-1)
    ours = weights @ v.transpose(1, 2).repeat_interleave(2, dim=1)
    by_head = (x.transpose(1, 2) for x in (q, k, v))
    theirs = F.scaled_dot_product_attention(*by_head, enable_gqa=True)
    torch.testing.assert_close(ours, theirs)


@given(B=draws.sizes(0, 3), T=draws.sizes(0, 4), H=draws.sizes(1, 4), D=draws.sizes(1, 4))
def test_heads_are_split_and_merged_as_by_view_and_transpose(B, T, H, D):
    x = torch.randn(B, T, H * D)
    heads = axes.split_heads(x, H)
    assert torch.equal(heads, x.view(B, T, H, D).transpose(1, 2))
    assert torch.equal(axes.merge_heads(heads.contiguous()), x)


def test_patches_are_what_a_convolution_of_that_step_sees():
    convolution = nn.Conv2d(3, 5, kernel_size=2, stride=2)
    images = torch.randn(2, 3, 4, 6)
    weight = rearrange(convolution.weight, "o c p q -> o (p q c)")
    ours = F.linear(axes.patchify(images, 2), weight, convolution.bias)
    torch.testing.assert_close(ours, convolution(images).flatten(2).transpose(1, 2))


@pytest.mark.parametrize("height, width", [(5, 4), (4, 5), (5, 5), (2, 8)])
def test_patchify_refuses_what_patches_do_not_fill(height, width):
    with pytest.raises(ValueError, match="do not fill"):
        axes.patchify(torch.zeros(1, 1, height, width), 4 if width == 8 else 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rope_rotate_is_transformers(dtype):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    x = torch.randn(2, 5, 3, 8, dtype=dtype)
    cos, sin = axes.rotary_tables(5, 8)
    whole = (torch.cat((table, table), dim=-1)[None] for table in (cos, sin))
    theirs, _ = llama.apply_rotary_pos_emb(x.float(), x.float(), *whole, unsqueeze_dim=2)
    ours = axes.rope_rotate(x, cos, sin)
    assert ours.dtype == dtype
    if dtype == torch.float64:  # the tables, and all of theirs, are float32
        ours = ours.float()
    torch.testing.assert_close(ours, theirs.to(ours.dtype))


def test_rope_rotate_keeps_lengths_and_shows_distances_only():
    q, k = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8).double()
    cos, sin = (table.double() for table in axes.rotary_tables(32, 8))
    turned = [
        [axes.rope_rotate(x, cos[t : t + 1], sin[t : t + 1]) for t in range(32)] for x in (q, k)
    ]
    scores = [(turned[0][t] * turned[1][t - 5]).sum() for t in range(5, 32)]
    torch.testing.assert_close(turned[0][31].norm(), q.norm(), rtol=1e-6, atol=0)
    torch.testing.assert_close(torch.stack(scores), scores[0].expand(27), rtol=1e-4, atol=1e-5)


def test_rotary_tables_are_transformers():
    cos, sin = axes.rotary_tables(7, 8)
    frequencies = 1.0 / (10_000.0 ** (torch.arange(0, 8, 2).float() / 8))
    angles = torch.outer(torch.arange(7).float(), frequencies)
    torch.testing.assert_close(cos, angles.cos())
    torch.testing.assert_close(sin, angles.sin())


EQUATIONS = {
    "ik,kj->ij": ((2, 3), (3, 4)),
    "ij->ji": ((2, 3),),
    "ij->": ((2, 3),),
    "ij->ij": ((2, 3),),
    "i,i->": ((3,), (3,)),
    ",ij->ji": ((), (2, 3)),
    "bthd,bshd->bhts": ((2, 3, 2, 4), (2, 5, 2, 4)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)),
    "ij,jk->ik": ((2, 0), (0, 3)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("ours", [axes.einsum, axes.einsum_by_loops])
def test_einsum_is_torchs(equation, ours):
    operands = [torch.randn(shape, dtype=torch.float64) for shape in EQUATIONS[equation]]
    torch.testing.assert_close(ours(equation, *operands), torch.einsum(equation, *operands))


def test_einsum_ignores_spaces():
    x, y = torch.randn(2, 3), torch.randn(3, 4)
    assert torch.equal(axes.einsum(" i k , k j -> i j ", x, y), axes.einsum("ik,kj->ij", x, y))


@pytest.mark.parametrize("ours", [axes.einsum, axes.einsum_by_loops])
@pytest.mark.parametrize("number", [1, 3])
def test_einsum_refuses_another_number_of_operands(ours, number):
    with pytest.raises(ValueError, match="zip"):
        ours("ik,kj->ij", *[torch.zeros(2, 2)] * number)
