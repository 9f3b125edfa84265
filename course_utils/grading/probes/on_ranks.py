"""Probes that run on several ranks: processes of this machine, each with its own part of the case.

`run_on_ranks` sends the student's object and each rank's part of the case to as many processes as the
case has calls, runs a *body* there, and gives what every rank saw. A probe of a chapter's own is a
body, a top-level function `body(subject, case, rank) -> dict`, and

    @runs_on_ranks
    def my_probe(subject, case):
        return run_on_ranks(subject, case, my_body)

In a body `case` holds this rank's `args` and `kwargs`, `torch.distributed` is ready for use, and
`with counted():` marks what the contracts on ranks measure.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.grading.distributed.probe import runs_on_ranks
from course_utils.grading.distributed.run import run_on_ranks
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.labels import ARGUMENTS, on_rank
from course_utils.grading.pytrees.tree import fresh

from .functions import gradients, ramp, what_a_call_did
from .objects import public_attributes


def what_calls_did(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    """Each rank's report as `probes.call` shows it, then what there is besides."""
    seen: dict[str, Any] = {}
    rest = dict(report)
    for rank, one in enumerate(case.calls):
        before = on_rank(rank, "")
        mine = {k.removeprefix(before): rest.pop(k) for k in report if k.startswith(before)}
        there = what_a_call_did(mine, one, named_by)
        seen |= {on_rank(rank, label): value for label, value in there.items()}
    return seen | rest


@runs_on_ranks(read=what_calls_did)
def on_ranks(subject: Any, case: Case) -> dict[str, Any]:
    """Call it on every rank: results, the arguments it changed, the gradients that the case names."""
    return run_on_ranks(subject, case, call_there)


def call_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """The body of `on_ranks`: see `probes.call`."""
    from course_utils.grading.distributed.on_rank import counted

    if case.grad:
        with counted():
            return gradients(subject, case)
    with counted():
        result = subject(*case.args, **case.kwargs)
    return {"result": result, ARGUMENTS: (case.args, case.kwargs)}


@runs_on_ranks
def steps_on_ranks(subject: Any, case: Case) -> dict[str, Any]:
    """Build the class on every rank, then call methods of it, one after the other.

    Of each rank's call the keyword arguments build the object; each positional one is a step: a tuple
    of a method's name ("" or "__call__" for the object itself) and its arguments. Seen are each
    step's result and, at the end, the public attributes that hold arrays or plain values.
    """
    return run_on_ranks(subject, case, steps_there)


def steps_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    from course_utils.grading.distributed.on_rank import counted

    seen: dict[str, Any] = {}
    with counted():
        thing = subject(**case.kwargs)
        results = []
        for name, *arguments in case.args:
            method = thing if name in ("", "__call__") else getattr(thing, name)
            result = method(*arguments)
            results.append(fresh(result))
            del result
    for number, ((name, *_), result) in enumerate(zip(case.args, results, strict=True), start=1):
        seen[f"result of step {number}{f', {name}' if name else ''}"] = result
    for name in public_attributes(thing):
        value = getattr(thing, name)
        if is_data(value):
            seen[f"attribute `{name}` at the end"] = value
    return seen or {"result": None}


def is_data(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(is_data, value))
    if isinstance(value, dict):
        return all(map(is_data, value.values()))
    return value is None or isinstance(value, Tensor | bool | int | float | str | torch.dtype)


def mlp(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3))


class Tied(nn.Module):
    """One weight, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(self.first(x).tanh()))
        return y


class Unused(nn.Module):
    """A layer that takes no part, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(5, 3), nn.Linear(4, 4)
        self.register_buffer("scale", torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.used(x) * self.scale
        return y


def _seeded(make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    return build


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": mlp,
    "tied": _seeded(Tied),
    "unused": _seeded(Unused),
}
"""Models of 5 inputs that a case may name; the seed decides the parameters."""


@runs_on_ranks
def module_on_ranks(subject: Any, case: Case) -> dict[str, Any]:
    """Wrap a model on every rank (as DistributedDataParallel does) and train it for some steps.

    Of each rank's call: model, a name of MODELS; seed, of its parameters (a different one on each rank
    shows whether they are made equal); options, keyword arguments of the wrapper; lr, of plain SGD
    between steps. Each positional argument is the input (N, 5) of one step. Seen are each step's
    output and gradients, and at the end parameters and buffers, by the model's own names.
    """
    return run_on_ranks(subject, case, module_there)


def module_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    from course_utils.grading.distributed.on_rank import counted

    given = case.kwargs
    model = MODELS[given["model"]](given["seed"])
    double = any(x.dtype == torch.float64 for x in case.args)
    model = model.double() if double else model
    seen: dict[str, Any] = {}
    with counted():
        wrapped = subject(model, **given.get("options", {}))
    for number, x in enumerate(case.args, start=1):
        model.zero_grad()
        with counted():
            output = wrapped(x)
            (output * ramp(output)).sum().backward()
            finish = getattr(wrapped, "finish", None)
            if finish is not None:
                finish()
        seen[f"output of step {number}"] = output.detach().clone()
        for name, p in model.named_parameters():
            seen[f"gradient of `{name}` in step {number}"] = (
                None if p.grad is None else p.grad.clone()
            )
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=given.get("lr", 0.1))
    for name, value in model.state_dict().items():
        seen[f"`{name}` at the end"] = value
    return seen


__all__ = [
    "MODELS",
    "module_on_ranks",
    "on_ranks",
    "run_on_ranks",
    "runs_on_ranks",
    "steps_on_ranks",
]
