"""The book's quantization is torch's and torchao's, or differs where it is said; GPTQ is the closed form."""

import copy
import math

import pytest
import torch
from torch import nn

from course_utils.reference.gpt2 import CONFIGS, GPT2
from course_utils.reference.pretrained import course_model, course_tokenizer
from course_utils.reference.quantization import (
    MinMaxObserver,
    QuantizedLinear,
    affine_qparams,
    dequantize,
    fake_quantize,
    gptq,
    int8_matmul,
    pack_int4,
    quantize,
    smooth_scales,
    spread,
    unpack_int4,
)
from course_utils.reference.quantized_gpt2 import (
    QATLinear,
    Text,
    bits_by_file,
    bits_per_byte,
    block_linears,
    by_groups,
    gap,
    gptq_weights,
    group_scale,
    hessians,
    inputs_changed,
    largest_inputs,
    round_trip,
    smoothed,
    trained_further,
    windows,
    with_layers,
    with_outlier,
    with_weights,
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    return GPT2(CONFIGS["tiny"]).eval()


@pytest.fixture(scope="module")
def tokens():
    return Text(torch.randint(97, (6, 17), generator=torch.Generator().manual_seed(0)), 400)


# ------------------------------------------------------------------------------ parameters


def test_parameters_and_integers_are_torchs():
    x = torch.randn(50, 8)
    low, high = x.amin(0), x.amax(0)
    scale, zero = affine_qparams(low, high, -128, 127)
    theirs = torch.quantize_per_channel(x, scale, zero, 1, torch.qint8)
    assert (quantize(x, scale[None], zero[None], -128, 127) - theirs.int_repr()).abs().max() <= 1
    ours = dequantize(theirs.int_repr(), scale[None], zero[None])
    torch.testing.assert_close(ours, theirs.dequantize())


@pytest.mark.parametrize("symmetric", [False, True])
def test_parameters_are_torchaos(symmetric):
    primitives = pytest.importorskip("torchao.quantization.quant_primitives")
    x = torch.randn(6, 32)
    kind = primitives.MappingType.SYMMETRIC if symmetric else primitives.MappingType.ASYMMETRIC
    scale, zero = primitives.choose_qparams_affine(x, kind, [1, 16], torch.int8, -128, 127)
    blocks = x.unflatten(1, (-1, 16))
    ours, point = affine_qparams(blocks.amin(-1), blocks.amax(-1), -128, 127, symmetric)
    if symmetric:  # it divides by half of the number of steps
        ours = ours * 127 / 127.5
    torch.testing.assert_close(ours, scale)
    assert (point - zero).abs().max() <= (0 if symmetric else 1)


def test_zero_is_exact():
    low, high = torch.randn(1000), torch.randn(1000)
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    for limits in ((-128, 127), (0, 15)):
        scale, zero = affine_qparams(low, high, *limits)
        q = quantize(torch.zeros(1000), scale, zero, *limits)
        assert torch.equal(q.int(), zero) and not dequantize(q, scale, zero).any()


def test_parameters_are_spread_over_blocks():
    params = torch.tensor([[1, 2], [3, 4]])
    assert spread(params, (2, 4)).tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]
    assert spread(torch.tensor(5), (2, 4)).shape == (1, 1)
    for shape in ((2, 3), (2,), (3, 4)):
        with pytest.raises(ValueError, match="parameters of shape"):
            spread(params, shape)


def test_an_observer_is_torchs():
    from torch.ao.quantization.observer import MinMaxObserver as Theirs

    ours, theirs = MinMaxObserver(), Theirs(dtype=torch.qint8, qscheme=torch.per_tensor_affine)
    for _ in range(3):
        x = torch.randn(4, 5)
        ours.observe(x)
        theirs(x)
    assert ours.low == theirs.min_val and ours.high == theirs.max_val
    scale, zero = theirs.calculate_qparams()
    torch.testing.assert_close(ours.qparams(-128, 127)[0], scale[0])
    assert ours.qparams(-128, 127)[1] == zero


@pytest.mark.parametrize("zero", [0, 3])
def test_fake_quantize_is_torchs(zero):
    x = torch.randn(200, requires_grad=True)
    scale = torch.tensor(0.25)
    ours = fake_quantize(x, scale, torch.tensor(zero), -4, 3)
    theirs = torch.fake_quantize_per_tensor_affine(x, 0.25, zero, -4, 3)
    torch.testing.assert_close(ours, theirs)
    g = torch.randn(200)
    for mine, other in zip(*(torch.autograd.grad(y, x, g) for y in (ours, theirs)), strict=True):
        assert torch.equal(mine, other)


# ------------------------------------------------------------------------------ products


@pytest.mark.parametrize(("N", "features", "out"), [(3, 8, 5), (1, 64, 7), (17, 33, 16)])
def test_a_product_of_integers_is_torchs_and_that_of_the_numbers(N, features, out):
    x = torch.randint(-128, 128, (N, features), dtype=torch.int8)
    w = torch.randint(-128, 128, (out, features), dtype=torch.int8)
    one, none = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32)
    assert torch.equal(int8_matmul(x, one, none, w, one, none), torch._int_mm(x, w.T).float())
    s_x, s_w = torch.rand(N, 1), torch.rand(out, 1)
    z_x, z_w = (torch.randint(-99, 99, (n, 1), dtype=torch.int32) for n in (N, out))
    exact = ((x.double() - z_x) * s_x) @ ((w.double() - z_w) * s_w).T
    torch.testing.assert_close(
        int8_matmul(x, s_x, z_x, w, s_w, z_w).double(), exact, rtol=1e-5, atol=1e-3
    )


def test_smoothing_leaves_the_product():
    x, w = torch.randn(5, 8) * torch.logspace(-2, 2, 8), torch.randn(3, 8)
    s = smooth_scales(x.abs().amax(0), w)
    torch.testing.assert_close((x / s) @ (w * s).T, x @ w.T, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(
        (x / s).abs().amax(0), (w * s).abs().amax(0)
    )  # alpha = 1/2 shares evenly


def test_every_byte_holds_two():
    every = torch.arange(256).to(torch.uint8)
    assert torch.equal(pack_int4(unpack_int4(every)), every)
    assert unpack_int4(every).min() == -8 and unpack_int4(every).max() == 7


# ------------------------------------------------------------------------------ gptq


def hessian_of(features, rows=60):
    x = torch.randn(rows, features, dtype=torch.float64) @ torch.randn(features, features).double()
    return x, x.T @ x


def test_gptq_pays_back_by_least_squares():
    x, H = hessian_of(6)
    W, scale = torch.randn(3, 6), torch.full((3, 1), 0.4)
    codes = gptq(W, H.float(), scale, -8, 7, damp=0.0)
    left = W.double()
    for j in range(6):
        step = scale[:, 0].double()
        q = (left[:, j] / step).round().clamp(-8, 7)
        assert torch.equal(codes[:, j].double(), q)
        d = q * step - left[:, j]
        if j < 5:
            e = torch.linalg.lstsq(x[:, j + 1 :], -x[:, j : j + 1] * d).solution
            left[:, j + 1 :] += e.T


def test_gptq_is_rounding_where_features_have_nothing_in_common():
    W, scale = torch.randn(4, 8), torch.rand(4, 2) + 0.1
    rounded = quantize(W, scale, torch.zeros_like(scale).int(), -8, 7)
    assert torch.equal(gptq(W, torch.eye(8), scale, -8, 7), rounded)


def test_gptq_beats_rounding_on_what_it_saw():
    _, H = hessian_of(24)
    W, scale = torch.randn(16, 24), torch.full((16, 1), 0.4)

    def error(codes):
        E = codes.double() * scale - W.double()
        return ((E @ H) * E).sum()

    nearest = quantize(W, scale, torch.zeros(16, 1).int(), -8, 7)
    assert error(gptq(W, H, scale, -8, 7)) < 0.7 * error(nearest)


# ------------------------------------------------------------------------------ a layer, a model


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_with_what_it_holds(bias):
    layer = nn.Linear(64, 12, bias=bias)
    small = QuantizedLinear(copy.deepcopy(layer), 16)
    w = dequantize(unpack_int4(small.packed), small.scale, torch.zeros(12, 4).int())
    x = torch.randn(3, 64)
    torch.testing.assert_close(small(x), nn.functional.linear(x, w, layer.bias))
    assert (w - layer.weight).abs().max() <= 0.51 * small.scale.float().max()
    assert sum(t.nbytes for t in small.state_dict().values()) == 12 * (32 + 8) + 48 * bias
    again = QuantizedLinear(nn.Linear(64, 12, bias=bias), 16)
    again.load_state_dict(small.state_dict())
    assert torch.equal(again(x), small(x))


def test_helpers_change_what_they_say_and_no_more(tiny, tokens):
    before = bits_per_byte(tiny, tokens)
    zeroed = with_weights(tiny, lambda name, w: w * 0 if name == "1.mlp.c_fc" else w)
    assert bits_per_byte(tiny, tokens) == before != bits_per_byte(zeroed, tokens)
    with inputs_changed(tiny, lambda _, x: 0 * x):
        assert bits_per_byte(tiny, tokens) != before
    assert bits_per_byte(tiny, tokens) == before
    assert len(list(block_linears(tiny))) == 8


def test_bits_are_those_of_the_loss_file_by_file(tiny, tokens):
    by_file = bits_by_file(tiny, tokens)
    assert by_file.shape == (6,)
    logits = tiny(tokens.tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.tokens[:, 1:].flatten())
    bits = 6 * 16 * loss.item() / math.log(2) / 400
    assert bits_per_byte(tiny, tokens) == pytest.approx(bits, rel=1e-5)
    one = bits_by_file(tiny, Text(tokens.tokens[3:4], 400))
    torch.testing.assert_close(one, by_file[3:4])


def test_the_standard_error_is_that_of_many_samples():
    every = 0.02 + 0.1 * torch.randn(4000, 24, dtype=torch.float64)
    gaps = [gap(sample, torch.zeros(24)) for sample in every]
    found = torch.tensor([more for more, _ in gaps])
    mean_error = sum(error for _, error in gaps) / len(gaps)
    assert found.std().item() == pytest.approx(0.1 * 24**0.5, rel=0.05)
    assert mean_error == pytest.approx(0.1 * 24**0.5, rel=0.05)


def test_scales_are_held_as_it_is_said():
    w = torch.randn(6, 64)
    scale = group_scale(w, 4, 32)
    assert torch.equal(scale, scale.bfloat16().float())
    none = torch.zeros_like(scale, dtype=torch.int32)
    by_hand = dequantize(quantize(w, scale, none, -8, 7), scale, none)
    assert torch.equal(by_groups(w, 4, 32), by_hand)
    layer = nn.Linear(64, 6)
    layer.weight.data.copy_(w)
    small = QuantizedLinear(layer, 32)
    assert torch.equal(small.scale.float(), scale)


def test_moving_range_changes_nothing(tiny, tokens):
    planted = with_outlier(tiny, 50.0)
    for model in (planted, smoothed(planted, largest_inputs(planted, tokens))):
        torch.testing.assert_close(
            model(tokens.tokens[:, :-1]), tiny(tokens.tokens[:, :-1]), rtol=1e-3, atol=1e-4
        )
    names = largest_inputs(planted, tokens)
    assert names["0.mlp.c_fc"].argmax() == 7
    smooth, layer = smoothed(planted, names), "0.attn.c_proj"
    after = largest_inputs(smooth, tokens)[layer]
    torch.testing.assert_close(after, dict(block_linears(smooth))[layer].weight.abs().amax(0))


def test_training_through_the_rounding_moves_the_float_weights(tiny, tokens):
    model = with_layers(tiny, lambda layer: QATLinear(layer, 3, 8))
    before = [p.detach().clone() for p in model.parameters()]
    losses = trained_further(model, tokens, 3, 1e-3, seed=0, batch=4, length=16)
    assert len(losses) == 3 and all(map(torch.isfinite, map(torch.tensor, losses)))
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    layer = model.transformer.h[0].attn.c_attn
    torch.testing.assert_close(layer.rounded(), by_groups(layer.layer.weight, 3, 8))


def test_groups_are_finer_than_a_row():
    x = torch.randn(8, 64)
    assert (by_groups(x, 4, 16) - x).norm() < (round_trip(x, 4) - x).norm()
    assert (round_trip(x, 4) - x).norm() < (round_trip(x, 4, ()) - x).norm()


def test_gptq_beats_rounding_on_text_it_has_not_seen():
    model, tokenizer = course_model(), course_tokenizer()
    text, calibration = windows(tokenizer, 8), windows(tokenizer, 8, "train")
    rounded = with_weights(model, lambda _, w: by_groups(w, 3, 32))
    paid = gptq_weights(model, hessians(model, calibration), 3, 32)
    base, one, other = (bits_per_byte(m, text) for m in (model, paid, rounded))
    assert base < one < other and one - base < 0.8 * (other - base)
