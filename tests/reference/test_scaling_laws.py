"""The fits are numpy's, and the closed form is the lowest point that a search finds."""

import math

import numpy as np
import pytest
import torch

from course_utils.reference.scaling_laws import (
    HOFFMANN,
    ScalingLaw,
    compute_optimal,
    fit_power_law,
    fit_scaling_law,
    isoflop_minimum,
)


def normal(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_line_is_numpys():
    for seed in range(5):
        x, y = (4 * normal(9, seed)).exp(), normal(9, seed + 10).exp()
        slope, level = np.polyfit(x.log().numpy(), y.log().numpy(), 1)
        assert fit_power_law(x, y) == pytest.approx((math.exp(level), slope), rel=1e-9)


def test_the_parabola_is_numpys():
    for seed in range(5):
        u = 11 + normal(7, seed)
        losses = 2 + 0.1 * (u - 11.5).square() + 0.01 * normal(7, seed + 10)
        a, b, c = np.polyfit(u.numpy(), losses.numpy(), 2)
        N, L = isoflop_minimum(u.exp(), losses)
        assert math.log(N) == pytest.approx(-b / (2 * a), rel=1e-6)
        assert pytest.approx(c - b * b / (4 * a), rel=1e-6) == L


@pytest.mark.parametrize("law", [HOFFMANN, ScalingLaw(0.9, 900.0, 0.7, 500.0, 0.45)])
def test_the_optimum_is_the_lowest_point(law):
    for C in (1e12, 1e18, 1e24):
        N, D = law.optimum(C)
        assert pytest.approx(C) == 6 * N * D
        sizes = [N * 1.01**k for k in range(-300, 301)]
        assert min(sizes, key=lambda n: law(n, C / 6 / n)) == pytest.approx(N)


def test_a_law_is_found_again():
    true = ScalingLaw(1.1, 50.0, 0.4, 300.0, 0.45)
    C = torch.tensor([8e11, 2.4e12, 7.2e12]).double().repeat_interleave(5)
    N = torch.tensor([16e3, 30e3, 90e3, 200e3, 450e3]).double().repeat(3)
    D = C / 6 / N
    losses = torch.tensor([true(n, d) for n, d in zip(N.tolist(), D.tolist(), strict=True)])
    found = fit_scaling_law(N, D, losses.double())
    assert (found.alpha, found.beta) == pytest.approx((0.4, 0.45), rel=1e-2)
    assert pytest.approx(1.1, rel=1e-2) == found.E


def test_what_cannot_be_fitted_is_refused():
    few = torch.tensor([1e4, 2e4, 3e4, 4e4])
    with pytest.raises(ValueError, match="cannot fix five"):
        fit_scaling_law(few, few, few)
    with pytest.raises(ValueError, match="all must be positive"):
        compute_optimal(1e20, A=1.0, alpha=0.0, B=1.0, beta=0.3)
