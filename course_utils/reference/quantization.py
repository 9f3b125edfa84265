"""Chapter 27, quantization: numbers as small integers with a scale, and what can be computed with them.

Letters: `in` and `out` features of a layer, N rows of inputs, a *group* is the weights of a row that
share a scale. An integer q stands for (q − zero point) · scale.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, Int32, Integer, Shaped, UInt8
from torch import Tensor, nn

# ------------------------------------------------------------------------------ integers for numbers


def affine_qparams(
    low: Float[Tensor, "*shape"],
    high: Float[Tensor, "*shape"],
    qmin: int,
    qmax: int,
    symmetric: bool = False,
) -> tuple[Float[Tensor, "*shape"], Int32[Tensor, "*shape"]]:
    """(scale, zero point) with which the integers from qmin to qmax cover the range from low to high.

    A range that does not contain 0 is first extended to 0, and 0 has an integer of its
    own: the zero point. scale = (high − low) / (qmax − qmin), zero point = qmin − low /
    scale, rounded half to even and clamped to [qmin, qmax]. symmetric: the zero point is
    0, and the scale is the larger of |low| and |high|, divided by qmax. A scale that
    would be 0 is 1. The scale is float32 and is computed in it, the zero point int32;
    both lie on the device of `low`. The arguments are not changed. Raises ValueError
    unless qmin < qmax, and, if symmetric, unless qmin ≤ −qmax < 0. Source: Jacob et al.
    (2018), section 2.1.
    """
    if qmin >= qmax:
        raise ValueError(f"no range of integers: from {qmin} to {qmax}")
    if symmetric and not qmin <= -qmax < 0:
        raise ValueError(f"integers from {qmin} to {qmax} do not reach as far down as up")
    low, high = low.float().clamp(max=0.0), high.float().clamp(min=0.0)
    scale = torch.maximum(-low, high) / qmax if symmetric else (high - low) / (qmax - qmin)
    scale = torch.where(scale == 0, 1.0, scale)
    if symmetric:
        return scale, torch.zeros_like(scale, dtype=torch.int32)
    return scale, (qmin - low / scale).round().clamp(qmin, qmax).int()


def spread(params: Shaped[Tensor, "..."], shape: Sequence[int]) -> Shaped[Tensor, "..."]:
    """Parameters of blocks, repeated so that they broadcast with a tensor of this shape.

    Axes are matched from the last, as in broadcasting; params may have fewer. The size of
    each must divide the tensor's: (6, 2) for a tensor of (6, 8) is one parameter for each
    four neighbours of a row, () one for all. The result has as many axes as the tensor;
    one of size 1 stays so: `.expand(shape)` gives each number its own, to be indexed.
    Raises ValueError if it does not fit.
    """
    sizes = (1,) * (len(shape) - params.ndim) + tuple(params.shape)
    fits = params.ndim <= len(shape) and not any(
        size % max(n, 1) for n, size in zip(sizes, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"parameters of shape {tuple(params.shape)} for {tuple(shape)}")
    params = params.reshape(sizes)
    for axis, (n, size) in enumerate(zip(sizes, shape, strict=True)):
        if 1 < n < size:
            params = params.repeat_interleave(size // n, axis)
    return params


def quantize(
    x: Float[Tensor, "*shape"],
    scale: Float[Tensor, "..."],
    zero_point: Int[Tensor, "..."],
    qmin: int,
    qmax: int,
    dtype: torch.dtype = torch.int8,
) -> Integer[Tensor, "*shape"]:
    """The integers of x: x / scale, rounded half to even, plus the zero point, clamped to [qmin, qmax].

    scale, zero_point: of one shape. Their axes are matched with x's from the last, as in
    broadcasting, and the size of each divides x's: () is one scale for the tensor, (out,
    1) one for each row of an (out, in) weight, (out, in / g) one for each group of g
    neighbours. Raises ValueError if they do not fit x. Computed in float32; the result is on
    x's device and has the given dtype, which has room for [qmin, qmax]. Infinities become
    qmin and qmax; x has no NaN. The arguments are not changed.
    """
    levels = (x.float() / spread(scale, x.shape)).round() + spread(zero_point, x.shape)
    return levels.clamp(qmin, qmax).to(dtype)


def dequantize(
    q: Integer[Tensor, "*shape"],
    scale: Float[Tensor, "..."],
    zero_point: Int[Tensor, "..."],
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*shape"]:
    """The numbers that the integers stand for: (q − zero point) · scale.

    Shapes, errors and costs are quantize's. The difference is exact: it may lie outside of
    q's dtype. The product is computed in float32; the result has the given dtype, and q's
    device.
    """
    steps = q.int() - spread(zero_point, q.shape)
    return (steps * spread(scale, q.shape).float()).to(dtype)


class MinMaxObserver:
    """The range of all numbers that it has seen, of the whole tensor or of each channel.

    Attributes: `low` and `high`, float32, +∞ and −∞ before anything was seen. With an
    axis they have the axes of x, each of size 1 but this one, so that their scale fits
    `quantize`; without, they have none. They never require gradients.
    """

    def __init__(self, axis: int | None = None) -> None:
        """axis: each index along it has a range of its own; may be negative. None: one range for all."""
        self.axis = axis
        self.low = torch.tensor(torch.inf)
        self.high = torch.tensor(-torch.inf)

    def observe(self, x: Float[Tensor, "..."]) -> None:
        """Extend the range by the numbers of x. A tensor without elements changes nothing.

        x: of any floating dtype, not changed, with the same number of axes in each call.
        """
        if x.numel() == 0:
            return
        x = x.detach().float()
        axes = [i for i in range(x.ndim) if self.axis is None or i != self.axis % x.ndim]
        keep = self.axis is not None
        low, high = (x.amin(axes, keep), x.amax(axes, keep)) if axes else (x, x)
        self.low = torch.minimum(self.low.to(x.device), low)
        self.high = torch.maximum(self.high.to(x.device), high)

    def qparams(
        self, qmin: int, qmax: int, symmetric: bool = False
    ) -> tuple[Float[Tensor, "..."], Int32[Tensor, "..."]]:
        """(scale, zero point) of the range, as `affine_qparams` gives them.

        Raises ValueError before anything was seen.
        """
        if bool((self.low > self.high).any()):
            raise ValueError("no range yet: observe some numbers first")
        return affine_qparams(self.low, self.high, qmin, qmax, symmetric)


def fake_quantize(
    x: Float[Tensor, "*shape"],
    scale: Float[Tensor, "..."],
    zero_point: Int[Tensor, "..."],
    qmin: int,
    qmax: int,
) -> Float[Tensor, "*shape"]:
    """x as it comes back from its integers, in x's dtype, with a gradient that passes the rounding.

    Values are exactly those of dequantize(quantize(x)), with integers of a dtype that has
    room for [qmin, qmax]: up to 16 bits. Shapes and errors are quantize's. The gradient
    with respect to x is the incoming one where the rounded level, zero point included,
    lies in [qmin, qmax], ends included, and zero where it was clamped. scale and
    zero_point get no gradient. The result is on x's device. The arguments are not changed.
    Source: Bengio et al. (2013), as in chapter 6.
    """
    with torch.no_grad():
        level = (x.float() / spread(scale, x.shape)).round() + spread(zero_point, x.shape)
        inside = (level >= qmin) & (level <= qmax)
        value = dequantize(level.clamp(qmin, qmax).int(), scale, zero_point, x.dtype)
    passed = torch.where(inside, x, 0.0)
    return value + (passed - passed.detach())


# ------------------------------------------------------------------------------ products


def int8_matmul(
    x: Int8[Tensor, "N in"],
    x_scale: Float[Tensor, "#N 1"],
    x_zero: Int32[Tensor, "#N 1"],
    w: Int8[Tensor, "out in"],
    w_scale: Float[Tensor, "#out 1"],
    w_zero: Int32[Tensor, "#out 1"],
) -> Float[Tensor, "N out"]:
    """The product X Wᵀ of the numbers that two matrices of integers stand for, as float32.

    X = (x − x_zero) · x_scale, with a scale and a zero point for each row, or for all
    rows; W likewise. Sums are exact: they are of integers, in int32, which suffices for
    up to 33,025 features, as 33,025 · 255² < 2³¹; only at the end the scales come in. The
    result is on the device of x. The arguments are not changed.
    """
    features = x.size(1)
    total = x.int() @ w.int().T  # (N, out)
    total = total - x_zero * w.sum(1)
    total = total - w_zero.T * x.sum(1, keepdim=True)
    total = total + features * x_zero * w_zero.T
    return total * x_scale * w_scale.T


def smooth_scales(
    largest: Float[Tensor, " in"], weight: Float[Tensor, "out in"], alpha: float = 0.5
) -> Float[Tensor, " in"]:
    """Factors s with which (X / s) (W · s)ᵀ = X Wᵀ has inputs and weights of like range.

    largest: the largest |X| of each input feature, from calibration. s = largest^α / (largest
    |W| of the feature)^(1 − α), over the rows of W. A feature whose inputs or weights are all
    zero has s = 1. float32, on the device of `weight`. Raises ValueError unless 0 ≤ α ≤ 1.
    Source: Xiao et al. (2023), equation 4.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha shares the range out, 0 to 1; came {alpha}")
    inputs, weights = largest.float(), weight.float().abs().amax(0)
    s = inputs**alpha / weights ** (1 - alpha)
    return torch.where((inputs == 0) | (weights == 0), 1.0, s)


# ------------------------------------------------------------------------------ four bits


def pack_int4(q: Int8[Tensor, "*batch n"]) -> UInt8[Tensor, "*batch half"]:
    """Two integers from −8 to 7 in each byte: neighbours of the last axis, the first in the high half.

    A half byte holds the low four bits of the int8, two's complement: −1 is 0xF. Raises
    ValueError for an odd last axis. The result is on the device of q. The argument is not
    changed.
    """
    if q.size(-1) % 2:
        raise ValueError(f"two share a byte; came {q.size(-1)}")
    halves = q.view(torch.uint8) & 15
    return halves[..., ::2] << 4 | halves[..., 1::2]


def unpack_int4(packed: UInt8[Tensor, "*batch half"]) -> Int8[Tensor, "*batch n"]:
    """The integers of `pack_int4`, from −8 to 7, as int8: twice as many as there are bytes.

    On the device of `packed`.
    """
    halves = torch.stack((packed >> 4, packed & 15), dim=-1).flatten(-2).to(torch.int8)
    return (halves ^ 8) - 8


def gptq(
    weight: Float[Tensor, "out in"],
    hessian: Float[Tensor, "in in"],
    scale: Float[Tensor, "..."],
    qmin: int,
    qmax: int,
    damp: float = 0.01,
) -> Int8[Tensor, "out in"]:
    """Integers of a weight, column by column; what each rounding adds is taken off the later columns.

    hessian: Xᵀ X of the layer's inputs, (in, in); damp times the mean of its diagonal is
    added to its diagonal first. scale: of rows or groups, as `quantize` takes it; zero
    points are 0. For each column j in turn, as it is by then: integer = column / scale,
    rounded half to even and clamped to [qmin, qmax]. The columns on its right then change so
    that the squared error of X Wᵀ is smallest: with H⁻¹ = Uᵀ U, U upper triangular, error =
    (column − integer · scale) / U[j, j], and column k > j loses error · U[j, k]. Arguments
    of any floating dtype; computed in float64. They are not changed. Source: Frantar et al.
    (2023), section 3.3 and algorithm 1, without its blocks of columns.
    """
    left = weight.double().clone()
    H = hessian.double().clone()
    H.diagonal().add_(damp * H.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(H))
    U = torch.linalg.cholesky(inverse, upper=True)
    steps = spread(scale, weight.shape).double().expand(weight.shape)
    codes = torch.empty_like(left, dtype=torch.int8)
    for j in range(weight.size(1)):
        codes[:, j] = (left[:, j] / steps[:, j]).round().clamp(qmin, qmax)
        error = (left[:, j] - codes[:, j] * steps[:, j]) / U[j, j]
        left[:, j:] -= error[:, None] * U[j, j:]
    return codes


class QuantizedLinear(nn.Module):
    """A linear layer whose weight is held in four bits, with a bfloat16 scale for each group.

    Buffers: `packed`, (out, in / 2), uint8, as `pack_int4` makes it of integers from −7 to
    7; `scale`, (out, in / group_size), bfloat16, the largest |weight| of the group / 7,
    rounded to bfloat16, and 1 where that is 0; the integers are weight / this rounded
    scale. `bias`: the layer's own Parameter, or None; it no longer trains. Nothing else is
    kept: no float weight.
    """

    packed: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Linear, group_size: int = 32) -> None:
        """layer: its weight is not changed; its bias stops training there, too. Raises ValueError
        unless group_size is even, at least 2, and divides the number of input features."""
        super().__init__()
        weight = layer.weight.detach()
        if group_size <= 0 or group_size % 2 or weight.size(1) % group_size:
            raise ValueError(f"groups of {group_size} do not fill {weight.size(1)} features")
        largest = weight.unflatten(1, (-1, group_size)).abs().amax(-1)
        scale = (largest / 7).bfloat16()
        scale = torch.where(scale == 0, 1.0, scale)
        codes = quantize(weight, scale, torch.zeros_like(scale, dtype=torch.int32), -7, 7)
        self.register_buffer("packed", pack_int4(codes))
        self.register_buffer("scale", scale)
        self.bias = None if layer.bias is None else layer.bias.requires_grad_(False)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """x: (..., in), of any floating dtype. Returns (..., out) in x's dtype, plus the bias: the
        weight is dequantized to x's dtype and multiplied. x gets a gradient."""
        none = torch.zeros_like(self.scale, dtype=torch.int32)
        weight = dequantize(unpack_int4(self.packed), self.scale, none, x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, weight, bias)
