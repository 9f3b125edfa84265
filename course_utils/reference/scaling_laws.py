"""Chapter 24, scaling laws: how the loss of a language model depends on its size and on its data.

Letters: N parameters, D tokens trained on, C FLOPs of the training.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


def fit_power_law(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> tuple[float, float]:
    """(a, b) of the power law y ≈ a · x^b: least squares of log y on log x.

    Computed in float64. Raises ValueError unless all x and y are positive and finite and
    there are two different x.
    """
    if not (torch.isfinite(x) & torch.isfinite(y) & (x > 0) & (y > 0)).all():
        raise ValueError("a power law has positive, finite x and y")
    if len(x.unique()) < 2:
        raise ValueError("a line needs two different x")
    u, v = x.double().log(), y.double().log()
    du = u - u.mean()
    b = (du * (v - v.mean())).sum() / du.square().sum()
    return (v.mean() - b * u.mean()).exp().item(), b.item()


def isoflop_minimum(
    parameters: Float[Tensor, " n"], losses: Float[Tensor, " n"]
) -> tuple[float, float]:
    """The size with the lowest loss among runs of equal FLOPs, and that loss.

    Both are those of the lowest point of the parabola in log N that fits the losses best,
    by least squares; it need not lie between the runs. Computed in float64. Raises
    ValueError for fewer than three different sizes, for a size that is not positive, and
    for a parabola without a lowest point. Source: Hoffmann et al. (2022), section 3.2.
    """
    if not (parameters > 0).all() or len(parameters.unique()) < 3:
        raise ValueError("a parabola needs three different sizes, all positive")
    u = parameters.double().log()
    middle = u.mean()
    u = u - middle  # powers of small numbers: the three columns stay far from parallel
    columns = torch.stack((torch.ones_like(u), u, u.square()), dim=1)
    c, b, a = torch.linalg.lstsq(columns, losses.double()[:, None]).solution[:, 0].tolist()
    if a <= 0:
        raise ValueError("the parabola has no lowest point: try smaller and larger sizes")
    best = -b / (2 * a)
    return (middle + best).exp().item(), c + b * best / 2


def compute_optimal(
    flops: float, *, A: float, alpha: float, B: float, beta: float
) -> tuple[float, float]:
    """The (N, D) of the lowest loss that so many FLOPs can buy, if 6 · N · D = flops.

    The loss is E + A / N^alpha + B / D^beta; E does not matter. Raises ValueError unless
    all numbers are positive. Source: Hoffmann et al. (2022), section 3.3, equation 4.
    """
    if not min(flops, A, alpha, B, beta) > 0:
        raise ValueError(f"{flops} FLOPs and {A}, {alpha}, {B}, {beta}: all must be positive")
    G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    N = G * (flops / 6) ** (beta / (alpha + beta))
    return N, flops / 6 / N


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta. Source: Hoffmann et al. (2022), equation 2."""

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def __call__(self, N: float, D: float) -> float:
        """The loss of a model of N parameters after D tokens."""
        return self.E + self.A * N**-self.alpha + self.B * D**-self.beta

    def optimum(self, flops: float) -> tuple[float, float]:
        """The N and D of the lowest loss for so many FLOPs."""
        return compute_optimal(flops, A=self.A, alpha=self.alpha, B=self.B, beta=self.beta)


HOFFMANN = ScalingLaw(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)
"""Of large models on web text, in nats a token: Hoffmann et al. (2022), equation 10."""


def fit_scaling_law(
    parameters: Float[Tensor, " n"],
    tokens: Float[Tensor, " n"],
    losses: Float[Tensor, " n"],
    finer: int = 5,
) -> ScalingLaw:
    """The law with the smallest sum of squares of relative errors, its five numbers all positive.

    For given exponents the law is linear in E, A and B, so they follow by least squares.
    The exponents are those of a grid, from 0.02 to 2, which is made finer so many times
    around the best. Hoffmann et al. minimise a Huber loss of the errors of log L by L-BFGS
    instead; it gives less weight to outliers. Raises ValueError for fewer than five runs,
    and where no law with positive numbers fits.
    """
    if len(losses) < 5:
        raise ValueError(f"{len(losses)} runs cannot fix five numbers")
    N, D, L = (x.double() for x in (parameters, tokens, losses))
    N0, D0 = N.log().mean().exp(), D.log().mean().exp()  # so that columns are of one size
    low, high = torch.full((2,), 0.02).double(), torch.full((2,), 2.0).double()
    best = torch.zeros(5, dtype=torch.float64)
    for _ in range(finer):
        axes = [
            torch.linspace(float(a), float(b), 40).double() for a, b in zip(low, high, strict=True)
        ]
        exponents = torch.cartesian_prod(*axes)  # (1600, 2)
        powers = (N / N0) ** -exponents[:, :1], (D / D0) ** -exponents[:, 1:]
        columns = torch.stack((torch.ones_like(powers[0]), *powers), dim=-1) / L[:, None]
        numbers = torch.linalg.lstsq(columns, torch.ones_like(columns[..., :1])).solution
        errors = (columns @ numbers - 1).square().sum((1, 2))
        errors = errors.masked_fill(~(numbers[..., 0] > 0).all(1), torch.inf)
        if not errors.isfinite().any():
            raise ValueError("no law with positive numbers fits these runs")
        at = int(errors.argmin())
        best = torch.cat((numbers[at, :, 0], exponents[at]))
        step = (high - low) / 39
        low, high = (exponents[at] - 2 * step).clamp(min=1e-3), exponents[at] + 2 * step
    E, A, B, alpha, beta = best.tolist()
    return ScalingLaw(E, A * float(N0) ** alpha, alpha, B * float(D0) ** beta, beta)
