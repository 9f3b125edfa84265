"""Probes of derivatives: answers that take a function, custom Functions, and what they leave behind.

A function cannot cross to another process, so a case names it: by its own source, one of FUNCTIONS.
The verdict shows that source, and the reader can paste it.
"""

from collections.abc import Callable
from functools import wraps
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.grading.driving import labels
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import if_changed
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import flat_tensors, named_arguments, ramp
from course_utils.grading.pytrees.shown import shown
from course_utils.grading.pytrees.tree import fresh, is_plain_tensor, untouched

FUNCTIONS = frozenset(
    {
        # one number from a tensor
        "lambda x: x.square().sum()",
        "lambda x: (x ** 3).sum()",
        "lambda x: (x ** 4).sum()",
        "lambda x: x.logsumexp(dim=tuple(range(x.ndim)))",
        "lambda x: (x.flatten()[1:] * x.flatten()[:-1] ** 2).sum()",
        "lambda x: (x.sin() * x.sum()).sum()",
        "lambda x: (3 * x).sum()",
        "lambda x: x.sum()",
        "lambda x: x.sum() ** 3",
        "lambda x: x.cumsum(0).pow(3).sum()",
        "lambda x: (x ** 3).sum().view(1, 1)",
        "lambda x: torch.ones(())",
        # the same of a parameter as well
        "lambda x, w=torch.tensor(2.0, requires_grad=True): (w * x ** 3).sum()",
        "lambda x, w=torch.tensor(2.0, requires_grad=True): (w * x).sum()",
        "lambda x, w=torch.tensor(2.0, requires_grad=True): w ** 2",
        # a tensor from a tensor
        "lambda x: x.exp()",
        "lambda x: x.sin()",
        "lambda x: x.exp().exp()",
        "lambda x: x.sin().cos()",
        "lambda x: x * x",
        "lambda x: x + x",
        "lambda x: x * x.exp()",
        "lambda x: x.relu()",
        "lambda x: x.softmax(-1)",
        "lambda x: x[:1] * x[:1]",
        "lambda x: x[0].sin() + x[1].cos()",
        "lambda x: (x @ x.T).tanh()",
        "lambda x: x.detach().exp() * x",
        "lambda x: (x.sin(), x.exp())[0]",
        "lambda x: sum((x.sum() + torch.ones(50_000)).sin().sum().item() for _ in range(9)) * x",
        # the mean loss of weights on a batch
        "lambda w, x, y: (x @ w - y).square().mean()",
        "lambda w, x, y: F.cross_entropy(x @ w, y)",
        "lambda w, x, y: ((x @ w).tanh() - y).square().mean()",
        "lambda w, x, y: (x @ w - y).square().sum() / len(x)",
        "lambda w, x, y, b=torch.tensor(2.0, requires_grad=True): (x @ w + b - y).square().mean()",
    }
)


OF_THE_CASE = frozenset({"no_grad", "whole"})
"""Keywords that a case has for the probe, not for the answer."""


def function(source: str) -> Callable[..., Any]:
    """The function that a case names. Raises KeyError for one that is not in the catalogue."""
    if source not in FUNCTIONS:
        raise KeyError(f"{source!r} is not one of the functions that a case may name")
    found: Callable[..., Any] = eval(source, {"torch": torch, "F": F})  # a constant of this file
    return found


def with_function(case: Case) -> tuple[Any, ...]:
    """The case's positional arguments, with the function that the first one names in its place."""
    source, *rest = case.args
    return (function(source), *rest)


@probe
def takes_function(subject: Any, case: Case) -> dict[str, Any]:
    """Call it with the function that the first argument names; under torch.no_grad() if the case
    says `no_grad`.

    Besides the result: whether it requires grad, which arguments are no longer as they were, in
    values, `requires_grad` or `grad`, and whether the function's own parameters got a gradient.
    """
    return _called_with(with_function(case), subject, case)


@probe
def takes_function_at(subject: Any, case: Case) -> dict[str, Any]:
    """The same of a function that is to be called at x, the second argument, alone.

    Called elsewhere, as for a difference, nothing but that is seen: how far off the result then is
    depends on the step.
    """
    f, x, *rest = with_function(case)
    given, elsewhere = fresh(x.detach()), False

    @wraps(f)
    def asked(point: Tensor) -> Any:
        nonlocal elsewhere
        elsewhere = elsewhere or _lies_elsewhere(point, given)
        return f(point)

    seen = _called_with((asked, x, *rest), subject, case)
    return {labels.SURROUNDINGS: "calls f at other points than x"} if elsewhere else seen


@probe
def takes_function_for_bytes(subject: Any, case: Case) -> dict[str, Any]:
    """The same for a number of bytes. The case may say, by `whole`, how many they all are.

    Of fewer nothing but that is seen: how many are missed depends on what the allocator gives out.
    """
    seen = _called_with(with_function(case), subject, case)
    whole, result = case.kwargs.get("whole", 0), seen["result"]
    if isinstance(result, int) and result < whole:
        return {labels.SURROUNDINGS: "counts fewer bytes than f had saved in all"}
    return seen


@probe
def takes_differences(subject: Any, case: Case) -> dict[str, Any]:
    """The same, and whether the function was called more than twice for each element of x.

    One call more is allowed, to see what it returns.
    """
    f, x, *rest = with_function(case)
    calls = 0

    @wraps(f)
    def counted(x: Tensor) -> Any:
        nonlocal calls
        calls += 1
        return f(x)

    seen = _called_with((counted, x, *rest), subject, case)
    return seen | {"two calls of f for each element are enough": calls <= 2 * x.numel() + 1}


def _called_with(args: tuple[Any, ...], subject: Any, case: Case) -> dict[str, Any]:
    kwargs = {name: value for name, value in case.kwargs.items() if name not in OF_THE_CASE}
    given = named_arguments(subject, args, kwargs)
    for value in given.values():
        if isinstance(value, Tensor) and value.requires_grad:
            value.grad = torch.ones_like(value)  # from an earlier backward pass
    before = {name: _state(value) for name, value in given.items() if isinstance(value, Tensor)}
    with torch.set_grad_enabled("no_grad" not in case.kwargs):
        seen = _result_seen(subject(*args, **kwargs))
    for name, (values, *flags) in before.items():
        now, *flags_now = _state(given[name])
        seen[f"argument `{name}` afterwards"] = if_changed(values, now)
        if not untouched(flags, flags_now):
            seen[f"argument `{name}` afterwards"] = "with another requires_grad or grad"
    if any(p.grad is not None for p in _own_parameters(args[0])):
        seen[labels.SURROUNDINGS] = "adds to the .grad of other tensors that the function uses"
    return seen


def _own_parameters(f: Callable[..., Any]) -> list[Tensor]:
    """The tensors that a function uses besides its arguments: its defaults, made anew for each case."""
    return [p for p in unwrap(f).__defaults__ or () if isinstance(p, Tensor)]


def _lies_elsewhere(point: Any, x: Tensor) -> bool:
    """Has the point other values than x? Where torch cannot say, as under vmap, it has not."""
    try:
        with torch.no_grad():
            return not torch.equal(point.detach().reshape(x.shape), x.to(point.dtype))
    except Exception:
        return False


def _state(x: Tensor) -> tuple[Tensor, bool, Tensor | None]:
    return fresh(x.detach()), x.requires_grad, fresh(x.grad)


def _result_seen(result: Any, label: str = "result") -> dict[str, Any]:
    """A tensor without its graph, and whether it had one; anything else as it is."""
    if not is_plain_tensor(result):
        return {label: result}
    return {label: result.detach(), f"requires_grad of {label}": result.requires_grad}


@probe
def accumulates(subject: Any, case: Case) -> dict[str, Any]:
    """Call it on a leaf w, the first argument after the function, and see what became of w.grad.

    The case may give, by the keyword `grad`, what w.grad holds before. And w, x and y stay as they are.
    """
    f, w, *rest = with_function(case)
    w = w.detach().clone().requires_grad_()
    w.grad = case.kwargs.get("grad")
    before = fresh([w.detach(), *rest])
    seen = _result_seen(subject(f, w, *rest), "the mean loss")
    for name, old, new in zip("wxy", before, [w.detach(), *rest], strict=False):
        seen[labels.changed_argument(name)] = if_changed(old, new)
    return seen | {"w.grad": w.grad}


@probe
def straight_through(subject: Any, case: Case) -> dict[str, Any]:
    """Apply a custom Function to an intermediate tensor: its result, and the gradient behind it.

    The tensor is no leaf, so that an edit in place is possible, and seen. Before backward the
    Function is applied to other values, which are no business of this call's. The case may give, by
    the keyword `grad`, the incoming gradient.
    """
    x, *rest = case.args
    leaf = x.detach().requires_grad_()
    between = leaf.clone()
    result = subject.apply(between, *rest)
    seen: dict[str, Any] = {"forward": fresh(result.detach())}
    seen["argument `x` afterwards"] = if_changed(x.detach(), fresh(between.detach()))
    if not result.requires_grad:
        return seen | {labels.NO_GRAD: False}
    seen["more than a byte an element is kept on ctx itself"] = _kept_on_ctx(result) > x.numel()
    subject.apply(1.0 - leaf, *rest)
    incoming = case.kwargs.get("grad", _weights(result))
    before = fresh(incoming)
    (gradient,) = torch.autograd.grad(result, leaf, incoming, allow_unused=True)
    seen[labels.changed_argument("grad")] = if_changed(before, incoming)
    return seen | {"gradient of `x`": gradient}


@probe
def custom_function(subject: Any, case: Case) -> dict[str, Any]:
    """The same, and more: the second derivative, gradcheck, and whether autograd guards its input.

    gradcheck compares with differences, in float64. Autograd raises in backward if a tensor given
    to `save_for_backward` was edited in the meantime; one kept in any other way is not guarded.
    """
    seen = straight_through(subject, case)
    (x,) = case.args
    leaf = x.detach().clone().requires_grad_()
    result = subject.apply(leaf)
    if not result.requires_grad:
        return seen
    first = torch.autograd.grad(result, leaf, _weights(result), create_graph=True)[0]
    if not (isinstance(first, Tensor) and first.requires_grad):
        return seen | {labels.ONLY_ONCE: True}
    (second,) = torch.autograd.grad(first, leaf, _weights(first), allow_unused=True)
    double = x.detach().double().clone().requires_grad_()
    return seen | {
        "second derivative": second,
        "gradcheck in float64": torch.autograd.gradcheck(
            subject.apply, (double,), raise_exception=False
        ),
        "backward after its input was edited in place": _backward_after_edit(subject, x),
    }


def _kept_on_ctx(result: Tensor) -> int:
    """Bytes of the tensors that are attributes of ctx, which is the node of the result's graph."""
    attributes = list(getattr(result.grad_fn, "__dict__", {}).values())
    return sum(kept.nbytes for kept in flat_tensors(attributes))


def _backward_after_edit(subject: Any, x: Tensor) -> str:
    between = x.detach().clone().requires_grad_() * 1.0
    result = subject.apply(between)
    with torch.no_grad():
        between.add_(1.0)
    try:
        result.backward(_weights(result))
    except RuntimeError:
        return "RuntimeError"
    return "no error, from edited values"


def _weights(x: Tensor) -> Tensor:
    """An incoming gradient for x, no two elements alike and none of them zero or one."""
    return 0.5 * ramp(x) + 0.7


def _called_with_function(name: str, case: Case) -> str:
    source, *rest = case.args
    before = case.kwargs.get("grad")
    given = ", ".join([source, *map(shown, rest)])
    plain = {key: value for key, value in case.kwargs.items() if key not in ("grad", "whole")}
    without = " under torch.no_grad()" if plain.pop("no_grad", False) else ""
    given += "".join(f", {key}={shown(value)}" for key, value in plain.items())
    called = f"{name}({given}){without}"
    return called + (f", where w.grad was {shown(before)}" if before is not None else "")


def _called_by_apply(name: str, case: Case) -> str:
    called = f"{name}.apply({', '.join(map(shown, case.args))})"
    incoming = case.kwargs.get("grad")
    return called + (f", backward from {shown(incoming)}" if incoming is not None else "")


for one in (takes_function, takes_function_at, takes_function_for_bytes, takes_differences):
    one.called = _called_with_function
accumulates.called = _called_with_function
straight_through.called = _called_by_apply
custom_function.called = _called_by_apply
