"""Probes of mixed precision: a loss scaler, a training step and master weights, driven for many steps.

Overflow is real or injected: gradients may hold inf or NaN, or pass through float16 on their way.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import if_changed, unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.shown import shown

_OTHER_SETTINGS = {"init_scale": 32.0, "growth_factor": 8.0, "growth_interval": 50}


class CountedSGD(torch.optim.SGD):
    """Plain SGD that knows how often it has stepped."""

    steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        super().step(closure)


@probe
def scaler_run(subject: Any, case: Case) -> dict[str, Any]:
    """Build the scaler with the case's keyword arguments and take the case's steps.

    The first argument holds the weights: a list of tensors for each optimizer. Each further one is
    "reload" (go on with another scaler that has loaded this one's state_dict) or a dict:
    grads: a list of gradients for each optimizer, None for a parameter without one; fp16: they pass
    through float16 after scaling; explicit: call unscale_ before step, and show the gradients then;
    twice: call it again, which must raise; clamped: gradients are then brought into -1 to 1, NaN to 0;
    late: call it once more after step, which must raise too; together: unscale_ is called for all of the
    optimizers before the first of them steps. At a reload the old scaler overflows once
    more between state_dict and load_state_dict, which is no business of the new one's.

    Each parameter has a group of its own. Between the steps another scaler takes a step, which is no
    business of this one's.
    """
    weights, *steps = case.args
    scaler = subject(**case.kwargs)
    params = [[nn.Parameter(w.clone()) for w in group] for group in weights]
    optimizers = [CountedSGD([{"params": [p]} for p in group], lr=0.5) for group in params]
    divided_in_place = True
    seen: dict[str, Any] = {"scale at the start": float(scaler.get_scale())}
    for number, step in enumerate(steps, start=1):
        at = f"step {number}"
        if step == "reload":
            state = scaler.state_dict()
            _overflow(scaler)
            scaler = subject(**_OTHER_SETTINGS)
            scaler.load_state_dict(state)
            seen[f"{at}: scale of a new scaler that loaded the state"] = float(scaler.get_scale())
            continue
        _backward(scaler, params, step)
        left = [p.grad for group in params for p in group]
        for optimizer in optimizers if step.get("together") else []:
            scaler.unscale_(optimizer)
        for i, optimizer in enumerate(optimizers):
            if step.get("explicit"):
                scaler.unscale_(optimizer)
                seen[f"{at}: gradients of optimizer {i} after unscale_"] = _copies(params[i])
            if step.get("twice"):
                seen[f"{at}: a second unscale_ raises"] = _raised(
                    partial(scaler.unscale_, optimizer)
                )
            if step.get("clamped"):
                for p in params[i]:
                    p.grad = p.grad if p.grad is None else p.grad.nan_to_num_(0.0).clamp_(-1.0, 1.0)
            scaler.step(optimizer)
            if step.get("late"):
                seen[f"{at}: unscale_ after step raises"] = _raised(
                    partial(scaler.unscale_, optimizer)
                )
        now = [p.grad for group in params for p in group]
        divided_in_place &= all(a is b for a, b in zip(left, now, strict=True))
        _overflow_elsewhere(subject)
        scaler.update()
        seen[f"{at}: scale afterwards"] = float(scaler.get_scale())
        seen[f"{at}: steps that each optimizer has taken"] = [o.steps for o in optimizers]
        seen[f"{at}: weights afterwards"] = [
            [p.detach().clone() for p in group] for group in params
        ]
    return seen | {"each .grad is the tensor that backward left there": divided_in_place}


def _overflow_elsewhere(subject: Any) -> None:
    """A step of another scaler, with an optimizer of its own, whose gradient is infinite."""
    _overflow(subject(**_OTHER_SETTINGS))


def _overflow(scaler: Any) -> None:
    """A step of this scaler, with an optimizer of its own, whose gradient is infinite."""
    p = nn.Parameter(torch.ones(1))
    _backward(scaler, [[p]], {"grads": [[torch.tensor([torch.inf])]]})
    scaler.step(CountedSGD([p], lr=0.5))
    scaler.update()


def _backward(scaler: Any, params: list[list[nn.Parameter]], step: dict[str, Any]) -> None:
    """Leave in .grad what the backward pass of a scaled loss leaves there."""
    loss = torch.zeros((), dtype=params[0][0].dtype)
    for group, grads in zip(params, step["grads"], strict=True):
        for p, g in zip(group, grads, strict=True):
            p.grad = None
            if g is not None:
                loss = loss + (p * g).sum()
    scaler.scale(loss).backward()
    if step.get("fp16"):
        for p in (p for group in params for p in group):
            p.grad = None if p.grad is None else p.grad.half().to(p.dtype)


def _copies(params: list[nn.Parameter]) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in params]


def _raised(action: Any) -> str:
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def _called_scaler(name: str, case: Case) -> str:
    settings = ", ".join(f"{key}={shown(value)}" for key, value in case.kwargs.items())
    return f"{name}({settings}), steps: {', '.join(map(in_words, case.args[1:]))}"


def in_words(step: Any) -> str:
    """What a step of a scaler's run is: a reload, or gradients that are good or not."""
    if step == "reload":
        return "reload"
    given = [g for group in step["grads"] for g in group if g is not None]
    what = "good" if all(bool(g.isfinite().all()) for g in given) else "inf or NaN"
    return (
        what
        + (" (FP16)" if step.get("fp16") else "")
        + (" unscaled" * bool(step.get("explicit")))
        + (", then clamped" * bool(step.get("clamped")))
        + (" unscaled, all optimizers before the first steps" * bool(step.get("together")))
        + (", unscaled again after the step" * bool(step.get("late")))
    )


scaler_run.called = _called_scaler


@probe
def amp_run(subject: Any, case: Case) -> dict[str, Any]:
    """Take the case's steps of a linear regression with torch's own scaler and two parameter groups.

    The arguments are the weight and the bias, then (x, y) for each step. Keyword arguments:
    max_norm, scale (the first), fp16 (gradients pass through float16). Before the first step, `.grad`
    holds what somebody else left there.
    """
    weight, bias, *batches = case.args
    w, b = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    for p in (w, b):
        p.grad = torch.full_like(p, 1000.0)
    if case.kwargs.get("fp16"):
        for p in (w, b):
            p.register_hook(lambda g: g.half().to(g.dtype))
    groups: list[dict[str, Any]] = [{"params": [w]}, {"params": [b], "lr": 0.5}]
    optimizer = CountedSGD(groups, lr=0.25)
    scaler = torch.amp.GradScaler("cpu", init_scale=case.kwargs["scale"], growth_interval=2)
    seen: dict[str, Any] = {}
    for number, (x, y) in enumerate(batches, start=1):
        at = f"step {number}"
        norm = subject(F.mse_loss(x @ w + b, y), optimizer, scaler, case.kwargs["max_norm"])
        seen[f"{at}: norm returned"] = norm.detach() if isinstance(norm, Tensor) else norm
        seen[f"{at}: steps that the optimizer has taken"] = optimizer.steps
        seen[f"{at}: weight afterwards"] = w.detach().clone()
        seen[f"{at}: bias afterwards"] = b.detach().clone()
        seen[f"{at}: scale afterwards"] = scaler.get_scale()
    return seen


def _called_amp(name: str, case: Case) -> str:
    settings = ", ".join(f"{key} {shown(value)}" for key, value in case.kwargs.items())
    run = f"{len(case.args) - 2} step(s), .grad filled beforehand, {settings}"
    return f"{name}(loss, optimizer, scaler, max_norm), {run}"


amp_run.called = _called_amp


@probe
def master_run(subject: Any, case: Case) -> dict[str, Any]:
    """Take a step for each gradient of the case, on a weight that is a Parameter.

    The arguments are the master weights and the learning rate, then the gradients. What is seen is
    the weight and the master that were made before the first step, laid out as the first argument is:
    both are to change in place.
    """
    start, lr, *grads = case.args
    master, weight = _laid_out(start, start.dtype), nn.Parameter(_laid_out(start, grads[0].dtype))
    memory = weight.data_ptr(), master.data_ptr()
    seen: dict[str, Any] = {}
    for grad in grads:
        before = grad.clone()
        result = subject(weight, master, grad, lr)
        if result is not None:
            seen["result"] = type(result).__name__
        seen["the gradient afterwards"] = if_changed(before, grad)
    seen["weight at the end"] = weight.detach().clone()
    seen["master at the end"] = master.detach().clone()
    rounded = master.to(weight.dtype)
    seen["the weight is the master, rounded to nearest"] = unchanged(rounded, weight.detach())
    seen["either requires grad"] = (weight.requires_grad, master.requires_grad)
    same_memory = memory == (weight.data_ptr(), master.data_ptr())
    return seen | {"both are where they were in memory": same_memory}


def _laid_out(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same values with the same strides, in new memory."""
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x)


def _called_master(name: str, case: Case) -> str:
    start, lr, *grads = case.args
    return f"{name}(weight, master, grad, lr={lr:g}), {len(grads)} step(s) from {shown(start)}"


master_run.called = _called_master
