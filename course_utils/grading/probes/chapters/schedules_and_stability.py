"""Probes of schedules and stability: parameters with gradients, models trained on uneven micro-batches,
steps that are not finite, and the global generators.

Optimizers cannot cross to another process, so a case names what its model and optimizer are, and the
probe builds them.
"""

import os
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_utils.grading.distributed.probe import runs_on_ranks
from course_utils.grading.distributed.run import run_on_ranks
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import call, what_a_call_did
from course_utils.grading.pytrees.shown import shown
from course_utils.grading.pytrees.tree import fresh

# ------------------------------------------------------------------------------ schedules


def _rounded(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    seen = what_a_call_did(report, case, named_by)
    if isinstance(seen.get("result"), float):
        seen["result"] = round(seen["result"], 12)
    return seen


@probe(read=_rounded, by_name=True)
def factor(subject: Any, case: Case) -> dict[str, Any]:
    """Call it; a number is rounded to 12 places, so that 0 is 0 in whatever order it was computed."""
    return call.run(subject, case)


# ------------------------------------------------------------------------------ clipping

_FULL = 77.0


def with_gradients(grads: list[Tensor | None]) -> list[nn.Parameter]:
    """A parameter for each gradient, in the gradient's layout; two elements for one without."""
    params = []
    for grad in grads:
        like = torch.empty(2) if grad is None else grad
        p = nn.Parameter(torch.full_like(like, _FULL))
        p.grad = None if grad is None else torch.empty_like(grad).copy_(grad)
        params.append(p)
    return params


def _clip(subject: Any, case: Case) -> dict[str, Any]:
    params = with_gradients(case.args[0])
    places, before = [p.grad for p in params], [p.detach().clone() for p in params]
    given: Any = params if case.kwargs.get("a_list") else iter(params)
    result = subject(given, case.args[1])
    seen: dict[str, Any] = {"norm returned": fresh(result)}
    for number, p in enumerate(params):
        seen[f"gradient {number}"] = None if p.grad is None else p.grad.clone()
    seen["each .grad is the tensor that it was"] = all(
        p.grad is place for p, place in zip(params, places, strict=True)
    )
    seen["parameters are left alone"] = unchanged(before, [p.detach().clone() for p in params])
    return seen


@probe
def clipped(subject: Any, case: Case) -> dict[str, Any]:
    """Parameters with the case's gradients (a tensor or None each), clipped at its max_norm.

    The parameters come as an iterator; as a list if the case says `a_list`. Seen are the result, the
    gradients afterwards, and whether they are where they were.
    """
    return _clip(subject, case)


def _called_clip(name: str, case: Case) -> str:
    grads, max_norm = case.args
    given = ", ".join("None" if g is None else shown(g) for g in grads)
    return f"{name}(parameters, {max_norm:g}), whose gradients are {given or 'none at all'}"


clipped.called = _called_clip


@runs_on_ranks
def clipped_on_ranks(subject: Any, case: Case) -> dict[str, Any]:
    """The same on every rank, each with gradients of its own."""
    return run_on_ranks(subject, case, clipped_there)


def clipped_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """The body of `clipped_on_ranks`."""
    from course_utils.grading.distributed.on_rank import counted

    with counted():
        return _clip(subject, case)


# ------------------------------------------------------------------------------ accumulating

_VOCABULARY = 7


class _Model(nn.Module):
    """ids (B, T) to logits (B, T, 7): a table, a head, a frozen vector, a weight that is not used.

    rank: the head is transposed in memory on odd ones.
    events: in which order forward and backward pass it.
    """

    def __init__(self, dtype: torch.dtype, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(11)
        self.table = nn.Parameter(torch.randn(_VOCABULARY, 3, generator=generator, dtype=dtype))
        self.frozen = nn.Parameter(torch.full((3,), 0.5, dtype=dtype), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2, dtype=dtype))
        head = torch.randn(3, _VOCABULARY, generator=generator, dtype=dtype)
        self.head = nn.Parameter(head.mT.contiguous().mT if rank % 2 else head)
        self.events: list[str] = []
        self.table.register_hook(self._backward)  # type: ignore[no-untyped-call]

    def forward(self, ids: Tensor) -> Tensor:
        self.events.append(f"forward {tuple(ids.shape)}")
        x = torch.tanh(self.table[ids] + self.frozen)
        return x @ self.head

    def _backward(self, grad: Tensor) -> None:
        self.events.append("backward")


class CountedSGD(torch.optim.SGD):
    """SGD that counts its steps, which need all gradients of that step to be there."""

    steps = 0

    def step(self, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        return super().step(*args, **kwargs)


def _accumulate(subject: Any, case: Case, rank: int = 0) -> dict[str, Any]:
    model = _Model(case.kwargs["like"].dtype, rank)
    if case.kwargs.get("uniform"):
        model.head.data.zero_()
    optimizer = CountedSGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for p in model.parameters():
        p.grad = torch.full_like(p, 100.0) if p.requires_grad else None
    seen: dict[str, Any] = {}
    for number, batches in enumerate(case.args, start=1):
        model.events.clear()
        try:
            result = subject(model, list(batches), optimizer)
        except ValueError:
            if "refused" not in case.kwargs:
                raise
            seen[f"step {number}: raises ValueError"] = True
            seen |= {f"`{n}` afterwards": p.detach().clone() for n, p in model.named_parameters()}
            seen["steps that the optimizer has taken"] = optimizer.steps
            continue
        seen[f"step {number}: result"] = (
            torch.tensor(result, dtype=model.head.dtype) if isinstance(result, float) else result
        )
        seen[f"step {number}: the result is a float"] = isinstance(result, float)
        for name, p in model.named_parameters():
            if name != "unused":
                seen[f"step {number}: gradient of `{name}`"] = fresh(p.grad)
                seen[f"step {number}: `{name}` afterwards"] = p.detach().clone()
        seen[f"step {number}: at most one micro-batch's graph at a time"] = _one_at_a_time(
            model.events
        )
        seen[f"step {number}: steps that the optimizer has taken"] = optimizer.steps
    return seen


def _one_at_a_time(events: list[str]) -> bool:
    """Does a backward follow every forward but the last before the next forward?"""
    return not any(a != "backward" and b != "backward" for a, b in pairwise(events))


@probe
def accumulated_steps(subject: Any, case: Case) -> dict[str, Any]:
    """Steps of a small language model on micro-batches, with SGD.

    Each positional argument is one step: a list of (ids, targets). like: a tensor of the model's dtype.
    uniform: all logits are 0. refused: a ValueError is expected, after which the model is looked at.
    Before the first step `.grad` holds what somebody else left there. Seen are results, gradients and
    parameters, in which order forward and backward ran, and how often the optimizer stepped.
    """
    return _accumulate(subject, case)


def _called_accumulate(name: str, case: Case) -> str:
    return f"{name}(model, batches, optimizer) on {', then '.join(_sizes(b) for b in case.args)}"


def _sizes(batches: Any) -> str:
    """Micro-batches by shape, and how many targets they have."""
    each = [
        f"{tuple(ids.shape)} with {int((targets != -100).sum())} targets"
        for ids, targets in batches
    ]
    return f"[{'; '.join(each)}]"


accumulated_steps.called = _called_accumulate


@runs_on_ranks
def accumulated_on_ranks(subject: Any, case: Case) -> dict[str, Any]:
    """The same on every rank, each with micro-batches of its own."""
    return run_on_ranks(subject, case, accumulated_there)


def accumulated_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """The body of `accumulated_on_ranks`."""
    from course_utils.grading.distributed.on_rank import counted

    with counted():
        return _accumulate(subject, case, rank)


# ------------------------------------------------------------------------------ a step that is not taken

_LOSSES = {
    "good": lambda w, b: (w * torch.tensor([1.0, -2.0, 3.0])).square().sum() + b.square().sum(),
    "another": lambda w, b: (w - 1).abs().sum() + (b - w[0]).square().sum(),
    "NaN": lambda w, b: w.sum() * float("nan") + b.sum(),
    "infinite loss": lambda w, b: w.sum() + b.sum() + float("inf"),
    "minus infinity": lambda w, b: w.sum() + b.sum() - float("inf"),
    "NaN loss": lambda w, b: w.sum() + b.sum() + float("nan"),
    "infinite gradient": lambda w, b: (w[1] - w[1].detach()).sqrt() + b.sum(),
    "one NaN in the gradient": lambda w, b: (
        (w.detach()[2] * 0 * (w[2] - w.detach()[2]).sqrt()) + w.sum() + b.sum()
    ),
    "infinite gradient of the second group": lambda w, b: w.sum() + (b - b.detach()).sqrt().sum(),
    "opposite infinities": lambda w, b: (
        (w[0] - w[0].detach()).sqrt() - (w[1] - w[1].detach()).sqrt()
    ),
    "huge": lambda w, b: 3e38 * (w - w.detach()).sum() + b.sum(),
    "of the first group alone": lambda w, b: w.square().sum(),
}
"""What a case may name: losses of a vector of three and a bias of one."""
_OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.25),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.25, momentum=0.5, weight_decay=0.1),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.25, weight_decay=0.1),
}


@probe
def finite_steps(subject: Any, case: Case) -> dict[str, Any]:
    """Steps with losses that the case names, each a name of _LOSSES, by an optimizer of two groups.

    optimizer: a name of _OPTIMIZERS. before: a loss whose gradient is in `.grad` when the first step
    begins. A third parameter takes no part. Seen after each step are the result, the parameters, the
    optimizer's state and the gradients.
    """
    w = nn.Parameter(torch.tensor([1.0, 2.0, -0.5]))
    b, idle = nn.Parameter(torch.tensor([0.25])), nn.Parameter(torch.ones(2))
    groups: list[dict[str, Any]] = [{"params": [w, idle]}, {"params": [b], "lr": 0.125}]
    optimizer = _OPTIMIZERS[case.kwargs.get("optimizer", "AdamW")](groups)
    if "before" in case.kwargs:
        _LOSSES[case.kwargs["before"]](w, b).backward()
    seen: dict[str, Any] = {}
    for number, name in enumerate(case.args, start=1):
        at = f"step {number}, {name}"
        seen[f"{at}: result"] = subject(_LOSSES[name](w, b), optimizer)
        for label, p in (("w", w), ("b", b), ("idle", idle)):
            seen[f"{at}: `{label}`"] = p.detach().clone()
            seen[f"{at}: gradient of `{label}`"] = fresh(p.grad)
            seen[f"{at}: state of `{label}`"] = fresh(dict(optimizer.state.get(p, {})))
    return seen


def _called_finite(name: str, case: Case) -> str:
    settings = ", ".join(f"{key}: {value}" for key, value in case.kwargs.items())
    steps = ", then ".join(case.args)
    return f"{name}(loss, optimizer), losses: {steps}{f'; {settings}' if settings else ''}"


finite_steps.called = _called_finite


# ------------------------------------------------------------------------------ losses, one after another


@contextmanager
def _lists_kept(subject: Any) -> Iterator[None]:
    """A list that belongs to the class is as before after the block: a case learns nothing of another."""
    lists = {n: copy(v) for n, v in vars(subject).items() if isinstance(v, list | deque)}
    try:
        yield
    finally:
        for name, value in lists.items():
            setattr(subject, name, value)


@probe
def spikes(subject: Any, case: Case) -> dict[str, Any]:
    """Two detectors, each built with the case's keyword arguments and told its own losses in turn."""
    said: list[list[Any]] = [[] for _ in case.args]
    with _lists_kept(subject):
        detectors = [subject(**case.kwargs) for _ in case.args]
        for i in range(max(map(len, case.args), default=0)):
            for detector, losses, answers in zip(detectors, case.args, said, strict=True):
                if i < len(losses):
                    answers.append(detector(losses[i]))
    return {f"what detector {i + 1} said": answers for i, answers in enumerate(said)}


def _called_spikes(name: str, case: Case) -> str:
    built = ", ".join(f"{key}={shown(value)}" for key, value in case.kwargs.items())
    return f"{name}({built}), called with {' and another with '.join(map(str, case.args))}"


spikes.called = _called_spikes


# ------------------------------------------------------------------------------ seeds


_NOBODYS = 20251108  # what the generators hold before: always the same, and no case's seed


@contextmanager
def _settings_kept() -> Iterator[None]:
    """Generators, switches and environment are as before after the block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    switches = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    cudnn, environment = torch.backends.cudnn.benchmark, dict(os.environ)
    flag = torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        torch.use_deterministic_algorithms(switches[0], warn_only=switches[1])
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn, flag
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)


@probe
def seeded(subject: Any, case: Case) -> dict[str, Any]:
    """Call it, and draw from each global generator.

    already: the switches are on before the call. Seen are the numbers of each generator, in three
    dtypes of torch's, and which switches are on afterwards.
    """
    kwargs = dict(case.kwargs)
    already = kwargs.pop("already", False)
    with _settings_kept():
        torch.use_deterministic_algorithms(already)
        torch.backends.cudnn.benchmark = not already
        random.seed(_NOBODYS)
        np.random.seed(_NOBODYS)
        random.gauss(0, 1)  # leaves a second normal number behind, and so does the next
        np.random.randn()
        subject(*case.args, **kwargs)
        return {
            "Python's random": [random.gauss(0, 1), random.random()],
            "NumPy's": [float(np.random.randn()), float(np.random.rand())],
            "torch's": [torch.randn(5), torch.randint(1000, (4,)), torch.rand(2).double()],
            "deterministic algorithms are on": torch.are_deterministic_algorithms_enabled(),
            "torch only warns": torch.is_deterministic_algorithms_warn_only_enabled(),
            "cuDNN's benchmark is on": torch.backends.cudnn.benchmark,
        }
