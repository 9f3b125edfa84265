"""Chapter 4, number formats: bits and what they mean, rounding, sums, and blocks that share a scale.

A format is named by its bits: one for the sign, `exponent_bits`, and `mantissa_bits`. Its *specials*
say which bit patterns are no finite numbers:

- "ieee": all patterns with the largest exponent are infinities or NaN (FP64 to FP16, BF16, E5M2);
- "fn": only the pattern with all exponent and mantissa bits set is NaN, and nothing is infinite
  (E4M3, `torch.float8_e4m3fn`);
- "finite": every pattern is a number (FP6 and FP4 of the MX specification).
"""

from dataclasses import dataclass
from math import frexp

import torch
from jaxtyping import Float, Int32, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """A floating-point format: its name, its bits, its specials, and torch's dtype where it has one."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    specials: str = "ieee"
    dtype: torch.dtype | None = None

    @property
    def bits(self) -> int:
        """Bits of one number, with its sign."""
        return 1 + self.exponent_bits + self.mantissa_bits


FORMATS = (
    Format("FP64", 11, 52, dtype=torch.float64),
    Format("FP32", 8, 23, dtype=torch.float32),
    Format("TF32", 8, 10),
    Format("FP16", 5, 10, dtype=torch.float16),
    Format("BF16", 8, 7, dtype=torch.bfloat16),
    Format("FP8 E5M2", 5, 2, dtype=torch.float8_e5m2),
    Format("FP8 E4M3", 4, 3, "fn", torch.float8_e4m3fn),
    Format("FP6 E3M2", 3, 2, "finite"),
    Format("FP6 E2M3", 2, 3, "finite"),
    Format("FP4 E2M1", 2, 1, "finite"),
)
"""The formats of the chapter, widest first. E8M0, which has no sign and no mantissa, stands apart."""

MX_BLOCK = 32
"""Numbers that share one scale in the MX formats."""
NV_BLOCK = 16
"""Numbers that share one scale in NVFP4."""


def float_fields(bits: int, exponent_bits: int, mantissa_bits: int) -> tuple[int, int, int]:
    """Sign, exponent and mantissa of a bit pattern, each as the integer that is stored.

    bits: the pattern, an integer from 0 to 2^(1 + exponent_bits + mantissa_bits) - 1:
    the sign in its highest bit, then the exponent, the mantissa in its lowest bits.
    Source: IEEE 754-2019, section 3.4.
    """
    sign = bits >> (exponent_bits + mantissa_bits)
    exponent = (bits >> mantissa_bits) % 2**exponent_bits
    return sign, exponent, bits % 2**mantissa_bits


def decode_float(
    bits: int, exponent_bits: int, mantissa_bits: int, specials: str = "ieee"
) -> float:
    """The number that a bit pattern stands for, as a Python float.

    The bias is 2^(exponent_bits - 1) - 1. An exponent field of 0 means a subnormal
    number: no leading one, and the exponent of the smallest normal number. Zeros and
    infinities have a sign, too. specials: "ieee": the largest exponent field means
    infinity where the mantissa is 0, else NaN. "fn": exponent and mantissa all ones
    means NaN, all else is a number. "finite": every pattern is a number. Source: IEEE
    754-2019, section 3.4; OCP Microscaling Formats (MX) v1.0, section 5.
    """
    sign, exponent, mantissa = float_fields(bits, exponent_bits, mantissa_bits)
    last, bias = 2**exponent_bits - 1, 2 ** (exponent_bits - 1) - 1
    fraction = mantissa / 2**mantissa_bits
    if specials == "ieee" and exponent == last:
        value = float("nan") if mantissa else float("inf")
    elif specials == "fn" and exponent == last and mantissa == 2**mantissa_bits - 1:
        value = float("nan")
    elif exponent == 0:
        value = fraction * 2.0 ** (1 - bias)
    else:
        value = (1 + fraction) * 2.0 ** (exponent - bias)
    return -value if sign else value


def float_limits(
    exponent_bits: int, mantissa_bits: int, specials: str = "ieee"
) -> tuple[float, float, float, float]:
    """(largest, smallest normal, smallest subnormal, epsilon) of a format, from its bits alone.

    All four are positive and finite. Epsilon is the step from 1 to the next larger
    number. specials: "ieee", "fn" or "finite", as for `decode_float`. mantissa_bits: at
    least 1.
    """
    bias = 2 ** (exponent_bits - 1) - 1
    epsilon = 2.0**-mantissa_bits
    smallest_normal = 2.0 ** (1 - bias)
    top = 2**exponent_bits - 1 - (specials == "ieee")
    fraction = 2 - epsilon * (2 if specials == "fn" else 1)
    return fraction * 2.0 ** (top - bias), smallest_normal, smallest_normal * epsilon, epsilon


def ulp(x: float, exponent_bits: int, mantissa_bits: int) -> float:
    """The unit in the last place of x in a format: what the last mantissa bit is worth there.

    x: finite, within the format's range; it need not be a number of the format. From
    2^k up to 2^(k+1), the latter not included, the step is 2^(k - mantissa_bits),
    whatever the sign. Below the smallest normal number, and at 0, it is that of the
    smallest normal number. Source: Muller et al. (2018), Handbook of Floating-Point
    Arithmetic, chapter 2.
    """
    smallest = 2 - 2 ** (exponent_bits - 1)
    exponent = frexp(x)[1] - 1 if x else smallest
    return 2.0 ** (max(exponent, smallest) - mantissa_bits)


def encode_bfloat16(x: Float[Tensor, "*shape"]) -> Int32[Tensor, "*shape"]:
    """The 16 bits of each float32 number in BF16, rounded to nearest, ties to even.

    x: float32. Result: bit patterns from 0 to 65535 as int32. What rounds beyond the
    largest finite number becomes an infinity. Every NaN becomes 0x7FC0.

    Source: `round_to_nearest_even`, torch/headeronly/util/BFloat16.h.
    """
    bits = x.float().view(torch.int32)
    odd = (bits >> 16) & 1
    rounded = (bits + 0x7FFF + odd) >> 16 & 0xFFFF
    return rounded.masked_fill(x.isnan(), 0x7FC0)


def stochastic_round(
    x: Float[Tensor, "*shape"], u: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Round float32 to one of the two bfloat16 neighbours, by random numbers that are given.

    x: float32, no NaN. u: float32, uniform in [0, 1), one number for each element. Let
    a and b be the bfloat16 numbers around x, a the one nearer to zero, and p = (x - a)
    / (b - a). The result is b where u < p, else a; so, where b is finite, its mean over
    many u is x. What is a bfloat16 number already stays as it is. Beyond the largest
    finite number, b is an infinity, and counts as ±2^128 in p. Result: bfloat16.
    Source: Gupta et al. (2015), section 3.
    """
    bits = x.float().view(torch.int32)
    fraction = (bits & 0xFFFF) / 2**16
    up = u < fraction
    return (((bits >> 16) + up) << 16).view(torch.float32).bfloat16()


def kahan_sum(x: Float[Tensor, "n *rest"]) -> Float[Tensor, "*rest"]:
    """Sum along the first axis with compensation, all of it in the dtype of x.

    Beside the running total it keeps what rounding has taken from it so far, and hands
    that to the next term. Result: the dtype of x; zeros where n = 0. Source: Kahan
    (1965), "Further remarks on reducing truncation errors".
    """
    total = lost = x.new_zeros(x.shape[1:])
    for term in x:
        wanted = term + lost
        grown = total + wanted
        lost = wanted - (grown - total)
        total = grown
    return total


def logsumexp(x: Float[Tensor, "*shape"], dim: int = -1) -> Float[Tensor, "*rest"]:
    """log(sum(exp(x))) along `dim`, for numbers of any size.

    Result: without the axis `dim`, in the dtype of x. It is -inf where all numbers
    along `dim` are -inf, or where that axis has length 0; +inf where the largest is
    +inf; NaN where one is NaN. In float16, x is such that the sum of
    exp(x - largest) stays below 65,520.

    The gradient with respect to x is softmax(x) along `dim`.
    """
    if x.size(dim) == 0:
        return x.sum(dim).log()
    largest = x.detach().amax(dim, keepdim=True)
    largest = largest.masked_fill(largest.isinf(), 0.0)
    return (x - largest).exp().sum(dim).log() + largest.squeeze(dim)


def quantize_e4m3(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Each number rounded to the nearest one that FP8 E4M3 has, ties to even.

    x: float32. Result: float32, numbers that E4M3 can represent: normal ones from 2^-6
    to 448, below them multiples of 2^-9. What lies beyond ±448, infinities too, becomes
    ±448. A NaN stays NaN. No cast to an FP8 dtype is allowed, which is checked. Source:
    Micikevicius et al. (2022), section 3.
    """
    x = x.clamp(-448.0, 448.0)
    exponent = torch.frexp(x).exponent - 1
    step = torch.exp2(exponent.clamp(min=-6) - 3)
    return (x / step).round() * step


def quantize_mxfp8(
    x: Float[Tensor, "*batch n"],
) -> tuple[UInt8[Tensor, "*batch n"], UInt8[Tensor, "*batch blocks"]]:
    """x in MXFP8: blocks of 32 neighbours in E4M3 that share a power of two as their scale.

    x: float32, finite, n a multiple of 32; it may be empty. Blocks lie along the last
    axis. A block's scale is 2^e with e = floor(log2(largest |x|)) - 8, where 8 is the
    largest exponent of E4M3. Where that is below -127, and for a block of zeros, e is
    -127. x / scale is clamped to ±448 and rounded as torch casts to float8_e4m3fn; the
    sign of a zero is kept. Returns what goes to memory, as uint8: the bytes of the
    elements and those of the scales, e + 127. Raises ValueError where n is no multiple
    of 32. Source: OCP Microscaling Formats (MX) v1.0, section 6.3.
    """
    if x.size(-1) % MX_BLOCK:
        raise ValueError(f"{x.size(-1)} numbers do not fall into blocks of {MX_BLOCK}")
    blocks = x.unflatten(-1, (-1, MX_BLOCK))
    largest = blocks.abs().amax(-1)
    exponent = torch.frexp(largest).exponent - 1 - 8
    exponent = exponent.clamp(min=-127).masked_fill(largest == 0, -127)
    scaled = blocks * torch.exp2(-exponent)[..., None]
    elements = scaled.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return elements.flatten(-2).view(torch.uint8), (exponent + 127).to(torch.uint8)


def dequantize_mxfp8(
    elements: UInt8[Tensor, "*batch n"], scales: UInt8[Tensor, "*batch blocks"]
) -> Float[Tensor, "*batch n"]:
    """The float32 numbers that the bytes of `quantize_mxfp8` stand for."""
    blocks = elements.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, MX_BLOCK))
    return (blocks * scales.view(torch.float8_e8m0fnu).float()[..., None]).flatten(-2)


E2M1 = torch.tensor([decode_float(bits, 2, 1, "finite") for bits in range(16)])
"""The sixteen numbers of FP4 E2M1 in the order of their bit patterns."""


def quantize_e2m1(x: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """The bit pattern, 0 to 15, of the nearest FP4 E2M1 number; ties to even, saturating at ±6.

    x: float32, no NaN. A zero keeps its sign.
    """
    size = x.abs().clamp(max=6.0)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    rounded = (size / step).round() * step
    code = torch.searchsorted(E2M1[:8].to(x.device), rounded.contiguous())
    return (code + 8 * x.signbit()).to(torch.uint8)


def quantize_nvfp4(
    x: Float[Tensor, "*batch n"],
) -> tuple[UInt8[Tensor, "*batch n"], UInt8[Tensor, "*batch blocks"], Float[Tensor, ""]]:
    """x in NVFP4: blocks of 16 neighbours in E2M1, each with a scale in E4M3, and one in FP32 for all.

    x: float32, finite, n a multiple of 16. Returns the patterns of the elements (0 to
    15, one a byte), the bytes of the block scales, and the scale of the whole tensor,
    largest |x| / (6 · 448), 1 for a tensor of zeros. Raises ValueError where n is no
    multiple of 16. Source: NVIDIA (2025), "Pretraining Large Language Models with
    NVFP4".
    """
    if x.size(-1) % NV_BLOCK:
        raise ValueError(f"{x.size(-1)} numbers do not fall into blocks of {NV_BLOCK}")
    blocks = x.unflatten(-1, (-1, NV_BLOCK))
    whole = x.abs().max() / (6 * 448)
    whole = torch.where(whole == 0, 1.0, whole)
    scale = (blocks.abs().amax(-1) / 6 / whole).clamp(max=448.0).to(torch.float8_e4m3fn)
    by = scale.float()[..., None] * whole
    elements = quantize_e2m1(torch.where(by == 0, 0.0, blocks / by))
    return elements.flatten(-2), scale.view(torch.uint8), whole


def dequantize_nvfp4(
    elements: UInt8[Tensor, "*batch n"],
    scales: UInt8[Tensor, "*batch blocks"],
    whole: Float[Tensor, ""],
) -> Float[Tensor, "*batch n"]:
    """The float32 numbers that the three results of `quantize_nvfp4` stand for."""
    blocks = E2M1.to(elements.device)[elements.long()].unflatten(-1, (-1, NV_BLOCK))
    return (blocks * (scales.view(torch.float8_e4m3fn).float()[..., None] * whole)).flatten(-2)


def pairwise_sum(x: Float[Tensor, "n *rest"]) -> Float[Tensor, "*rest"]:
    """Sum along the first axis in the dtype of x, by adding halves: log2(n) roundings deep.

    Zeros where n = 0. Source: Higham (2002), Accuracy and Stability of Numerical
    Algorithms, 4.1.
    """
    if len(x) == 0:
        return x.new_zeros(x.shape[1:])
    while len(x) > 1:
        half = (len(x) + 1) // 2
        front, back = x[:half], x[half:]
        x = torch.cat([front[: len(back)] + back, front[len(back) :]])
    return x[0]


def running_sum(x: Float[Tensor, "n *rest"]) -> Float[Tensor, "*rest"]:
    """Sum along the first axis, one term after the other, each total rounded to the dtype of x."""
    total = x.new_zeros(x.shape[1:])
    for term in x:
        total = total + term
    return total
