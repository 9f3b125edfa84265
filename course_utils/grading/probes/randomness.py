"""Probes of random results: statistics, so that any right way of drawing them passes."""

import math
from typing import Any

import torch
from torch import Tensor

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import probe
from course_utils.grading.observing.global_state import seed
from course_utils.grading.pytrees.tree import is_plain_tensor

_ENOUGH = 200_000
_TINY = 100


def _as_statistics(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    """The report of `glorot_weight` in figures. A report that lacks something raises KeyError."""
    weight, again = report["result"], report.get("again")
    if again is None:
        return {"result": weight}
    before, after = report["global state"]
    return {
        "shape": tuple(weight.shape),
        "dtype": weight.dtype,
        "requires grad": weight.requires_grad,
        "the same seed gives the same weights": torch.equal(weight, again[0]),
        "a second draw gives the same again": torch.equal(again[0], again[1]),
        **_statistics(again, sum(weight.shape)),
        "torch's global generator was left alone": torch.equal(before, after),
    }


@probe(read=_as_statistics)
def glorot_weight(subject: Any, case: Case) -> dict[str, Any]:
    """Statistics of a random weight matrix, so that any right way of drawing it passes.

    The case gives the generator by its seed, or none for torch's global one. Matrices are drawn
    from it, one after the other, until there are 200,000 weights; a generator that is handed over
    gives the same ones whatever the global one's seed. What they show is in units
    of what Glorot and Bengio's uniform weight has, rounded so that chance (at ten standard errors)
    does not reach the next value. A matrix of fewer than 100 weights is returned as it is.
    """

    def draws(times: int, other: int = 0) -> list[Any]:
        kwargs = dict(case.kwargs)
        seed(other if "generator" in kwargs else 0)
        if "generator" in kwargs:
            kwargs["generator"] = torch.Generator().manual_seed(kwargs["generator"])
        return [subject(*case.args, **kwargs) for _ in range(times)]

    seed(0)
    before = torch.get_rng_state()
    (weight,) = draws(1)
    after = torch.get_rng_state()
    if not (is_plain_tensor(weight) and weight.ndim == 2 and weight.numel() >= _TINY):
        return {"result": weight}
    if not weight.isfinite().all():
        return {"result": weight}
    times = max(2, math.ceil(_ENOUGH / weight.numel()))
    return {
        "result": weight,
        "again": draws(times, other=1),
        "global state": (before, after),
    }


def _statistics(matrices: list[Tensor], fans: int) -> dict[str, Any]:
    w = torch.stack([m.detach().double() for m in matrices]).flatten()
    largest, std = w.abs().max().item(), w.std().item()
    tenths = torch.histc(w, bins=10, min=-largest, max=largest) / w.numel()
    neighbours = torch.corrcoef(torch.stack([w[:-1], w[1:]]))[0, 1].item() if std else 1.0
    different = w.float().unique().numel() / w.numel()
    return {
        "largest |weight| / sqrt(6 / (fan_in + fan_out))": round(largest * (fans / 6) ** 0.5, 2),
        "standard deviation / sqrt(2 / (fan_in + fan_out))": _to_nearest(
            0.02, std * (fans / 2) ** 0.5
        ),
        "|mean| / standard deviation": _to_nearest(0.05, abs(w.mean().item()) / max(std, 1e-30)),
        "share of the weights in each tenth of their range": tuple(
            _to_nearest(0.02, share) for share in tenths.tolist()
        ),
        "most weights differ from one another": different > 0.9,
        "correlation of neighbours": _to_nearest(0.1, neighbours),
    }


def _to_nearest(step: float, value: float) -> float:
    return round(round(value / step) * step, 6)
