"""Probes of random results: statistics, so that any right way of drawing them passes."""

from typing import Any

import torch

from ..case import Case
from ..values import is_plain_tensor


def glorot_weight(subject: Any, case: Case) -> dict[str, Any]:
    """Statistics of a random weight matrix, so that any right way of drawing it passes.

    The case gives the generator by its seed, or none for torch's global one. Sizes are in units
    of what Glorot and Bengio's uniform weight has, to one decimal: for a matrix of 10,000 weights
    or more, chance cannot reach the next decimal. A smaller one is returned as it is.
    """

    def draw() -> Any:
        torch.manual_seed(0)
        kwargs = dict(case.kwargs)
        if "generator" in kwargs:
            kwargs["generator"] = torch.Generator().manual_seed(kwargs["generator"])
        return subject(*case.args, **kwargs)

    before = torch.manual_seed(0).get_state()
    weight = draw()
    untouched = torch.equal(before, torch.get_rng_state())
    if not (is_plain_tensor(weight) and weight.ndim == 2 and weight.numel() >= 10_000):
        return {"result": weight}
    w, fans = weight.detach().double(), sum(weight.shape)
    largest, std = w.abs().max().item(), w.std().item()
    return {
        "shape": tuple(weight.shape),
        "dtype": weight.dtype,
        "requires grad": weight.requires_grad,
        "largest |weight| / sqrt(6 / (fan_in + fan_out))": round(largest * (fans / 6) ** 0.5, 1),
        "standard deviation / sqrt(2 / (fan_in + fan_out))": round(std * (fans / 2) ** 0.5, 1),
        "|mean| / standard deviation": round(abs(w.mean().item()) / max(std, 1e-30), 1),
        "the same seed gives the same weights": torch.equal(weight, draw()),
        "torch's global generator was left alone": untouched,
    }
