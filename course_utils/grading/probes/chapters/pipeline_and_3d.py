"""Probes of chapter 20: a pipeline's stages, experts on several ranks, and a planner."""

import inspect
import weakref
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.grading.distributed.probe import runs_on_ranks
from course_utils.grading.distributed.run import run_on_ranks
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.shown import shown
from course_utils.grading.pytrees.tree import fresh, untouched


class _Passed(torch.autograd.Function):
    """The identity; backward notes that it came past."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, trail: list[str], number: int) -> Tensor:
        ctx.note = trail, f"B{number}"
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        trail, what = ctx.note
        trail.append(what)
        return grads[0], None, None


class Stage(nn.Module):
    """A layer that notes its forwards and backwards, numbered by its forwards, and their outputs.

    ids: an embedding comes first. turned: the output lies transposed in memory. weight: what the
    layer's is; then there is no bias and no tanh.
    """

    def __init__(
        self,
        width: int,
        seed: int,
        ids: bool = False,
        turned: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.turned, self.plain = turned, weight is not None
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.embedding = nn.Embedding(5, width) if ids else None
            self.layer = nn.Linear(width, width, bias=not self.plain)
        if weight is not None:
            with torch.no_grad():
                self.layer.weight.copy_(weight)
        self.trail: list[str] = []
        self.outputs: list[weakref.ref[Tensor]] = []
        self.most = 0

    def forward(self, x: Tensor) -> Tensor:
        number = len(self.outputs)
        self.trail.append(f"F{number}")
        x = x if self.embedding is None else self.embedding(x)
        y: Tensor = self.layer(x)
        y = y if self.plain else y.tanh()
        if self.turned:
            y = y.transpose(0, -1).contiguous().transpose(0, -1)
        passed = _Passed.apply(y, self.trail, number)  # type: ignore[no-untyped-call]
        self.outputs.append(weakref.ref(passed))
        self.most = max(self.most, sum(one() is not None for one in self.outputs))
        return passed


def not_symmetric(output: Tensor, target: Tensor) -> Tensor:
    """The mean of (output − target)² + output."""
    return F.mse_loss(output, target) + output.mean()


@runs_on_ranks
def pipelined(subject: Any, case: Case) -> dict[str, Any]:
    """A step of a pipeline, on every rank with a stage of its own; then, `again`, another one.

    Each rank's call: actions, inputs, targets, hidden; seed, ids, turned, weight of the stage; full,
    whether its gradients hold something before. Seen are the losses and the gradients, in which order
    the stage ran forward and backward, and whether outputs were let go in time.
    """
    return run_on_ranks(subject, case, pipelined_there)


def pipelined_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `pipelined` sees on one rank."""
    from course_utils.grading.distributed.on_rank import counted

    given = dict(case.kwargs)
    named = ("actions", "inputs", "targets", "hidden")
    actions, inputs, targets, hidden = (given.pop(name) for name in named)
    actions = [tuple(action) for action in actions]
    full, again = given.pop("full", False), given.pop("again", False)
    stage = Stage(hidden.shape[-1], **given).to(hidden.dtype)
    if full:
        for p in stage.parameters():
            p.grad = torch.ones_like(p)
    before = fresh((inputs, targets))
    seen: dict[str, Any] = {}
    for step in range(1 + again):
        when = f" of step {step + 1}" if again else ""
        stage.trail.clear()
        stage.outputs.clear()
        with counted():
            losses = subject(stage, list(actions), inputs, targets, not_symmetric, hidden)
        seen[f"losses{when}"] = losses
        seen[f"forwards and backwards{when}"] = " ".join(stage.trail)
        for name, p in stage.named_parameters():
            seen[f"gradient of `{name}`{when}"] = None if p.grad is None else p.grad.clone()
    if isinstance(losses, list | tuple) and losses:
        kept = any(isinstance(one, Tensor) and one.requires_grad for one in losses)
        seen["losses are detached"] = not kept
    seen["outputs are let go with their backwards"] = stage.most <= _peak(actions) + 1
    seen["inputs and targets are left alone"] = untouched(before, (inputs, targets))
    return seen


def _peak(actions: list[tuple[str, int, int]]) -> int:
    """The most micro-batches that have been forward and not yet backward."""
    alive = peak = 0
    for kind, *_ in actions:
        alive += 1 if kind == "F" else -1
        peak = max(peak, alive)
    return peak


def _called(name: str, case: Case) -> str:
    first, last = case.calls[0].kwargs, case.calls[-1].kwargs
    order = " ".join(f"{kind}{i}" for kind, _, i in first["actions"])
    text = (
        f"{name} on {case.world} ranks, hidden of shape {tuple(first['hidden'].shape)}, the first "
        f"rank's actions {order}"
    )
    if first.get("weight") is not None:
        values = "; ".join(
            f"{what} {', '.join(str(x.flatten().tolist()) for x in given)}"
            for what, given in (
                ("weights", [call.kwargs["weight"] for call in case.calls]),
                ("inputs", first["inputs"]),
                ("targets", last["targets"]),
            )
        )
        text += f": {values}"
    return text


pipelined.called = _called


class _Expert:
    """tanh(rows · w), which counts its calls."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.clone().requires_grad_()
        self.calls = 0

    def __call__(self, rows: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(rows @ self.weight)


@runs_on_ranks
def dispatched(subject: Any, case: Case) -> dict[str, Any]:
    """Tokens of every rank through experts of all ranks, forward and backward.

    Of each rank's call: x, chosen, gates; weights, one for each of its own experts; grad, of the
    result; capacity.
    """
    return run_on_ranks(subject, case, dispatched_there)


def dispatched_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """On one rank: the result, the gradients, and how often each expert was called."""
    from course_utils.grading.distributed.on_rank import counted

    given = case.kwargs
    x, gates = given["x"].clone().requires_grad_(), given["gates"].clone().requires_grad_()
    chosen = given["chosen"].clone()
    experts = [_Expert(w) for w in given["weights"]]
    options = {"capacity": given["capacity"]} if "capacity" in given else {}
    with counted():
        y = subject(x, chosen, gates, experts, **options)
        if y.requires_grad:
            y.backward(given["grad"].clone())
    return {
        "result": y.detach(),
        "gradient of x": x.grad,
        "gradient of gates": gates.grad,
        "gradients of the experts' weights": [expert.weight.grad for expert in experts],
        "calls of each expert": [expert.calls for expert in experts],
        "x, chosen and gates are left alone": unchanged(
            [given["x"], given["chosen"], given["gates"]], [x.detach(), chosen, gates.detach()]
        ),
    }


def _called_dispatched(name: str, case: Case) -> str:
    first = case.calls[0].kwargs
    each = ", ".join(str(tuple(call.kwargs["x"].shape)) for call in case.calls)
    text = f"{name} on {case.world} ranks with {len(first['weights'])} experts each, x of shapes {each}"
    if first.get("capacity") is not None:
        text += f", capacity={first['capacity']}"
    chosen = [call.kwargs["chosen"] for call in case.calls]
    if sum(c.numel() for c in chosen) <= 8:
        text += ": chosen = " + ", ".join(
            f"{c.tolist()} on rank {rank}" for rank, c in enumerate(chosen)
        )
    return text


dispatched.called = _called_dispatched


@probe
def planned(subject: Any, case: Case) -> dict[str, Any]:
    """The layouts that a planner puts first, as tuples.

    The case's keyword arguments: model and cluster, dicts of sizes, which become what the student's
    function is annotated with, or something with the same attributes; top, if it is given.
    """
    given = dict(case.kwargs)
    for name in ("model", "cluster"):
        given[name] = _of_kind(subject, name)(**given[name])
    found = subject(**given)
    if not isinstance(found, list):
        return {"result": found}
    sizes = [tuple(layout) if isinstance(layout, tuple) else layout for layout in found]
    seen = {"number of layouts": len(sizes)} | {
        f"layout {i} (dp, tp, pp, cp, ep, chunks, zero, recompute)": size
        for i, size in enumerate(sizes, start=1)
    }
    seen["each is a Layout, with names"] = all(hasattr(layout, "_fields") for layout in found)
    return seen


def _of_kind(subject: Any, name: str) -> Any:
    function = subject if inspect.isfunction(subject) else None
    parameter = inspect.signature(function).parameters.get(name) if function else None
    kind = getattr(parameter, "annotation", None)
    return kind if is_dataclass(kind) else SimpleNamespace


def _called_planned(name: str, case: Case) -> str:
    parts = [
        f"{kind.capitalize()}({', '.join(f'{k}={shown(v)}' for k, v in case.kwargs[kind].items())})"
        for kind in ("model", "cluster")
    ]
    top = case.kwargs.get("top", 1)
    return f"{name}({', '.join(parts)}, top={top})"


planned.called = _called_planned
