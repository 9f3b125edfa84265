"""Probes of chapter 27: one of a pair, an observer, a layer in four bits."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import if_changed, unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import ramp
from course_utils.grading.pytrees.shown import dtype_name, shown

from .modules import brief, clone, raised_name


def _cloned(given: Any) -> list[Any]:
    return [
        tuple(_cloned(x)) if isinstance(x, tuple) else (clone(x) if isinstance(x, Tensor) else x)
        for x in given
    ]


@probe
def one_of(subject: dict[str, Any], case: Case) -> dict[str, Any]:
    """Call one function of a pair: its name is the case's first argument, the others are its own."""
    name, *given = case.args
    before = _cloned(given)
    result = subject[name](*given, **case.kwargs)
    return {
        "result": clone(result) if isinstance(result, Tensor) else result,
        "arguments afterwards": if_changed(before, _cloned(given)),
    }


def _called_one_of(name: str, case: Case) -> str:
    which, *given = case.args
    named = [f"{key}={shown(value)}" for key, value in case.kwargs.items()]
    return f"{which}({', '.join([*map(shown, given), *named])})"


one_of.called = _called_one_of


def one_called(subject: dict[str, Any], case: Case) -> Callable[[], Any]:
    """The same call, for its cost."""
    name, *given = case.args
    return lambda: subject[name](*given, **case.kwargs)


# ------------------------------------------------------------------------------ an observer


@probe
def observed(subject: Any, case: Case) -> dict[str, Any]:
    """An observer, and another one of its class that sees huge numbers before each of its steps.

    The case: arguments of the constructor, by name, and steps: ("observe", x) or ("qparams", qmin,
    qmax) with or without a third, symmetric.
    """
    build, *steps = case.args
    observer = subject(**build)
    seen: dict[str, Any] = {"new": _range(observer)}
    for number, (verb, *given) in enumerate(steps, start=1):
        at = f"step {number} ({verb}): "
        other = subject(**build)
        if verb == "observe" and given[0].numel():
            other.observe(torch.full_like(given[0], 1e4).detach())
        before = _cloned(given)
        try:
            result = getattr(observer, verb)(*given)
        except Exception as error:
            seen[f"{at}raises"] = raised_name(error)
        else:
            seen[f"{at}returns"] = result
        seen[f"{at}range"] = _range(observer)
        seen[f"{at}arguments afterwards"] = if_changed(before, _cloned(given))
    return seen


def _range(observer: Any) -> dict[str, Any]:
    ends = {"low": observer.low, "high": observer.high}
    tensors = [x for x in ends.values() if isinstance(x, Tensor)]
    return {name: clone(x) if isinstance(x, Tensor) else x for name, x in ends.items()} | {
        "requires grad": any(x.requires_grad for x in tensors)
    }


def _called_observed(name: str, case: Case) -> str:
    build, *steps = case.args
    text = f"{name}({', '.join(f'{key}={shown(value)}' for key, value in build.items())})"
    return text + "".join(f".{verb}({', '.join(map(shown, given))})" for verb, *given in steps)


observed.called = _called_observed


# ------------------------------------------------------------------------------ a layer


def _layer(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=bias is not None)
    layer.in_features, layer.out_features = weight.size(1), weight.size(0)
    layer.weight = nn.Parameter(weight.clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.clone())
    return layer


@probe
def four_bit_layer(subject: Any, case: Case) -> dict[str, Any]:
    """Build it from a layer and read what it holds; then overwrite the layer, and let it compute.

    The case: weight, bias or None, the group size or None for the default, and inputs, one call each.
    """
    weight, bias, group, *inputs = case.args
    layer = _layer(weight, bias)
    build = {} if group is None else {"group_size": group}
    made: Any = subject(layer, **build)
    if not isinstance(made, nn.Module):
        return {"what it builds": type(made).__name__}
    seen: dict[str, Any] = {
        "the layer's weight is as it was": unchanged(weight, clone(layer.weight))
    }
    buffers = {name: clone(x) for name, x in made.named_buffers()}
    seen["buffers"] = buffers
    seen["parameters"] = [name for name, _ in made.named_parameters()]
    seen["trained"] = [name for name, p in made.named_parameters() if p.requires_grad]
    seen["`bias` is the layer's"] = made.bias is layer.bias
    seen["state_dict"] = sorted(made.state_dict())
    seen["other tensors that it holds when it is built"] = sorted(_held(vars(made), made))
    with torch.no_grad():
        layer.weight.fill_(3.0)
    subject(_layer(torch.full((2, 4), 5.0), None), group_size=2)(torch.ones(1, 4))
    for number, x in enumerate(inputs, start=1):
        leaf = x.detach().clone().requires_grad_()
        y = made(leaf)
        seen[f"call {number}: output"] = clone(y) if isinstance(y, Tensor) else y
        if isinstance(y, Tensor) and y.requires_grad:
            (y * ramp(y)).sum().backward()
            seen[f"call {number}: gradient of `x`"] = clone(leaf.grad)
    seen["other tensors that it holds after the calls"] = sorted(_held(vars(made), made))
    return seen


def _held(tree: Any, made: nn.Module) -> Iterator[str]:
    """Tensors that an object holds, and its state_dict does not, by outline: what they are called is open."""
    kept = {x.data_ptr() for x in made.state_dict().values()}
    if isinstance(tree, Tensor):
        if tree.numel() and tree.data_ptr() not in kept:
            yield f"{dtype_name(tree.dtype)} of shape {tuple(tree.shape)}"
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _held(value, made)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _held(value, made)
    elif isinstance(tree, nn.Module) and tree is not made:
        yield from _held(dict(tree.state_dict()), made)


def _called_four_bit(name: str, case: Case) -> str:
    weight, bias, group, *inputs = case.args
    text = f"{name} of a layer with weight={brief(weight)}"
    text += "" if bias is None else f", bias={brief(bias)}"
    text += "" if group is None else f", group_size={group}"
    return text + "".join(f"; then called with {brief(x)}" for x in inputs)


four_bit_layer.called = _called_four_bit
