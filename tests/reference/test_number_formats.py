"""Chapter 4's references against PyTorch, Python's own floats, and tables written out in full."""

import math
import struct
from fractions import Fraction

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from course_utils.reference import number_formats as nf

TORCH = [form for form in nf.FORMATS if form.dtype]
SMALL = [form for form in TORCH if form.bits <= 16]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M3 = [n / 8 for n in range(16)] + [n / 4 for n in range(8, 16)] + [n / 2 for n in range(8, 16)]
E3M2 = [n / 16 for n in range(8)] + [n / 16 * 2**k for k in range(1, 7) for n in range(4, 8)]
FLOATS = st.floats(width=32, allow_nan=False)


def split(form):
    return form.exponent_bits, form.mantissa_bits, form.specials


def name(form):
    return form.name


def same(ours, theirs):
    """Equal, NaN to NaN, and zeros of the same sign."""
    nan = theirs.isnan()
    assert torch.equal(ours.isnan(), nan)
    assert torch.equal(ours[~nan], theirs[~nan])
    assert torch.equal(ours[~nan].signbit(), theirs[~nan].signbit())


@pytest.mark.parametrize("form", SMALL, ids=name)
def test_every_pattern_is_decoded_as_torch_does(form):
    patterns = torch.arange(2**form.bits, dtype=torch.int32)
    kind = torch.uint8 if form.bits == 8 else torch.int16
    ours = [nf.decode_float(bits, *split(form)) for bits in patterns.tolist()]
    same(torch.tensor(ours, dtype=torch.float64), patterns.to(kind).view(form.dtype).double())


@pytest.mark.parametrize(
    "table, e, m", [(E2M1, 2, 1), (E2M3, 2, 3), (E3M2, 3, 2)], ids=["E2M1", "E2M3", "E3M2"]
)
def test_small_formats_are_their_tables(table, e, m):
    """The MX specification lists them; these are written out here, not computed from bit patterns."""
    ours = [nf.decode_float(bits, e, m, "finite") for bits in range(2 ** (1 + e + m))]
    assert ours == table + [-value for value in table]
    assert nf.float_limits(e, m, "finite")[0] == table[-1]


@given(x=st.floats())
def test_float64_is_decoded_as_python_has_it(x):
    (bits,) = struct.unpack("Q", struct.pack("d", x))
    ours = nf.decode_float(bits, 11, 52)
    assert ours == x or (math.isnan(ours) and math.isnan(x))


@pytest.mark.parametrize("form", TORCH, ids=name)
def test_limits_are_finfo(form):
    largest, normal, subnormal, epsilon = nf.float_limits(*split(form))
    info = torch.finfo(form.dtype)
    assert (largest, normal, epsilon) == (info.max, info.smallest_normal, info.eps)
    assert Fraction(subnormal) == Fraction(normal) * Fraction(epsilon)


@given(x=FLOATS)
def test_ulp_is_the_distance_to_the_next_number(x):
    x = abs(x)
    if not math.isfinite(x) or x == torch.finfo(torch.float32).max:
        return
    number = torch.tensor(x)
    above = torch.nextafter(number, torch.tensor(math.inf))
    assert nf.ulp(x, 8, 23) == nf.ulp(-x, 8, 23) == above.double().item() - number.double().item()


@given(x=st.floats(allow_nan=False, allow_infinity=False))
def test_ulp_of_float64_is_pythons(x):
    assert nf.ulp(x, 11, 52) == math.ulp(x)


def patterns(n=20_000):
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (n,), generator=g).int()
    ties = (bits & -65536) | 0x8000
    return torch.cat([bits, ties, ties + 1, ties - 1]).view(torch.float32)


def test_bfloat16_is_rounded_as_torch_does():
    x = patterns()
    nan = x.isnan()
    theirs = x.bfloat16().view(torch.int16).int() & 0xFFFF
    assert torch.equal(nf.encode_bfloat16(x)[~nan], theirs[~nan])
    assert bool((nf.encode_bfloat16(x)[nan] == 0x7FC0).all()) and bool(nan.any())


def test_stochastic_rounding_has_the_right_mean_and_two_values():
    g = torch.Generator().manual_seed(0)
    for x in (1.001, -3.14159, 1e-20, 70000.3):
        u = torch.rand(200_000, generator=g)
        y = nf.stochastic_round(torch.full_like(u, x), u).double()
        step = nf.ulp(x, 8, 7)
        assert y.unique().numel() == 2
        assert abs(y.mean().item() - torch.tensor(x).double().item()) < 6 * step / 2 / 200_000**0.5


@pytest.mark.parametrize("form", [form for form in SMALL if form.name == "BF16"], ids=name)
def test_what_is_bfloat16_already_never_moves(form):
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(form.dtype).float()
    x = x[~x.isnan()]
    for u in (0.0, 0.5, 1 - 2.0**-24):
        same(nf.stochastic_round(x, torch.full_like(x, u)).float(), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compensated_sums_are_right_to_the_last_rounding(dtype):
    x = torch.rand(2000, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    exact = x.double().sum(0)
    for method in (nf.kahan_sum, nf.pairwise_sum):
        error = ((method(x).double() - exact) / exact).abs().max().item()
        assert method(x).dtype == dtype
        assert error <= (1 if method is nf.kahan_sum else 4) * torch.finfo(dtype).eps
    assert nf.kahan_sum(x[:0]).tolist() == nf.pairwise_sum(x[:0]).tolist() == [0.0] * 4
    assert nf.running_sum(x[:0]).tolist() == [0.0] * 4


@given(data=st.data())
def test_logsumexp_is_torchs(data):
    x = torch.tensor(data.draw(st.lists(FLOATS, min_size=1, max_size=6)))
    torch.testing.assert_close(nf.logsumexp(x), torch.logsumexp(x, -1))


def test_gradients_of_logsumexp_are_softmax():
    x = torch.randn(3, 5, dtype=torch.float64).mul(30).requires_grad_()
    nf.logsumexp(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().softmax(-1))


def test_e4m3_is_rounded_as_torch_does():
    x = torch.cat([patterns(), torch.randn(20_000) * 50, torch.arange(-8000, 8000) / 16 * 2.0**-9])
    same(nf.quantize_e4m3(x), x.clamp(-448, 448).to(torch.float8_e4m3fn).float())


def test_e2m1_is_rounded_to_the_nearest_of_the_table():
    x = torch.cat([torch.linspace(-8, 8, 4097), torch.randn(1000)])
    values = torch.tensor(E2M1)
    codes = nf.quantize_e2m1(x)
    distance = (x.abs().clamp(max=6)[:, None] - values).abs()
    nearest = distance.min(1).values
    chosen = distance.gather(1, (codes.long() & 7)[:, None])[:, 0]
    assert torch.equal(chosen, nearest)
    tie = (distance == nearest[:, None]).sum(1) == 2
    assert int(tie.sum()) > 10 and bool((codes[tie] % 2 == 0).all())
    assert torch.equal(codes >> 3 == 1, x.signbit())


def test_mxfp8_by_its_definition():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(8, 96, generator=g) * 2.0 ** torch.arange(-120, 120, 30)[:, None]
    elements, scales = nf.quantize_mxfp8(x)
    assert elements.shape == x.shape and scales.shape == (8, 3)
    for row in range(8):
        for block in range(3):
            part = x[row, 32 * block : 32 * block + 32]
            e = max(math.floor(math.log2(part.abs().max())) - 8, -127)
            assert scales[row, block] == e + 127
            scaled = (part.double() * 2.0**-e).clamp(-448, 448).float().to(torch.float8_e4m3fn)
            assert torch.equal(
                elements[row, 32 * block : 32 * block + 32], scaled.view(torch.uint8)
            )
    back = nf.dequantize_mxfp8(elements, scales)
    again = nf.quantize_mxfp8(back)
    assert torch.equal(nf.dequantize_mxfp8(*again), back)


@pytest.mark.parametrize("quantize, size", [(nf.quantize_mxfp8, 32), (nf.quantize_nvfp4, 16)])
def test_numbers_that_do_not_fill_a_block(quantize, size):
    with pytest.raises(ValueError, match=f"blocks of {size}"):
        quantize(torch.ones(size + 1))


def test_nvfp4_keeps_its_own_numbers_and_zeros():
    zeros = torch.zeros(2, 32)
    assert torch.equal(nf.dequantize_nvfp4(*nf.quantize_nvfp4(zeros)), zeros)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    back = nf.dequantize_nvfp4(*nf.quantize_nvfp4(x))
    largest = x.unflatten(-1, (-1, 16)).abs().amax(-1, keepdim=True)
    gap = (back - x).unflatten(-1, (-1, 16)).abs()
    assert bool((gap <= largest / 6 * 1.0 + 0.07 * largest).all())  # half of E2M1's widest step
