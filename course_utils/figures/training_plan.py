"""The interactive training plan of chapter 5."""

from collections.abc import Callable
from typing import Any

from course_utils.reference.accounting import GPUS

from .interactive import Interactive

CHOICES: dict[str, list[Any]] = {
    "n_parameters": [m * 10**e for e in (8, 9, 10, 11) for m in (1, 2, 4, 7)] + [10**12],
    "n_tokens": [m * 10**e for e in (9, 10, 11, 12) for m in (1, 2, 5)]
    + [10 * 10**12, 15 * 10**12, 30 * 10**12],
    "max_days": [1.0, 3.0, 7.0, 14.0, 30.0, 60.0, 90.0, 180.0, 365.0],
    "mfu": [0.1, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6],
    "activations": [gigabytes * 10**9 for gigabytes in (0, 5, 10, 20, 30, 40, 60)],
    "dollars_per_hour": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0],
}
"""What the sliders can take."""

DEFAULTS: dict[str, Any] = {
    "n_parameters": 70 * 10**9,
    "n_tokens": 15 * 10**12,
    "max_days": 60.0,
    "mfu": 0.4,
    "bytes_per_parameter": 16,
    "activations": 20 * 10**9,
    "gpus_per_node": 8,
    "dollars_per_hour": 2.0,
}


def training_plan(
    plan_training: Callable[..., dict[str, Any]], gpu: str = "H100 SXM", **settings: Any
) -> Interactive:
    """GPUs, days, bytes and dollars of a training run, at the reader's settings.

    plan_training: the chapter's function, which makes the account in text. gpu: a name of GPUS.
    settings: of DEFAULTS, to open with. Raises ValueError for others, and for an unknown GPU.
    """
    if gpu not in GPUS or settings.keys() - DEFAULTS.keys():
        known = ", ".join([*GPUS, *DEFAULTS])
        raise ValueError(f"There is no {gpu!r}, or a setting is unknown. There are: {known}.")
    peak, _, size = GPUS[gpu]
    opens = DEFAULTS | settings | {"peak_flops": peak, "gpu_bytes": size}
    plan = plan_training(**opens)
    lines = [
        "Training plan (interactive in JupyterLab and on the page)",
        f"{opens['n_parameters']:,} parameters, {opens['n_tokens']:,} tokens, {opens['max_days']:g} days, "
        f"{gpu} at {opens['mfu']:.0%} of its peak:",
        f"{plan['gpus']:,} GPUs, {plan['days']:.1f} days, {plan['bytes'] / 1e9:.1f} GB on each, "
        f"{plan['dollars']:,.0f} dollars",
    ]
    return Interactive(
        script="training_plan",
        alt=(
            "Training plan: choices for GPU, parameters, tokens, deadline, utilization, activations and price; "
            "the number of GPUs in whole nodes, whether memory or the deadline decides it, and the days, bytes "
            "and dollars that the run takes"
        ),
        text="\n".join(lines),
        data={
            "settings": opens,
            "choices": CHOICES,
            "gpus": [[name, peak, size] for name, (peak, _, size) in GPUS.items()],
        },
    )
