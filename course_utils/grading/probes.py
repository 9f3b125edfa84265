"""Probes: small functions that drive a student's object through a case and say what they saw.

A probe takes the object (a function, a class, or a dict of several by name) and a case, and
returns named arrays and plain values. It runs wherever the student's code runs: in the notebook,
on many ranks, in an instructor's sandbox. So this module imports nothing of the references or
of the exercises, and what it returns is data.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .case import Case
from .values import fresh, is_plain_tensor, same

Probe = Callable[[Any, Case], dict[str, Any]]


def call(subject: Any, case: Case) -> dict[str, Any]:
    """Call it: the result, the arguments that it changed, and the gradients that the case names.

    Gradients are those of a fixed weighted sum of the result (weights from -1 to 1), so that no
    two elements can stand in for one another.
    """
    if case.grad:
        return gradients(subject, case)
    given = (case.args, case.kwargs)
    before = fresh(given)
    seen = {"result": subject(*case.args, **case.kwargs)}
    if not same(before, given):
        seen.update(changed_arguments(subject, before, given))
    return seen


def changed_arguments(subject: Any, before: Any, after: Any) -> dict[str, Any]:
    old = named_arguments(subject, *before)
    new = named_arguments(subject, *after)
    return {
        f"argument `{name}` afterwards": new[name] for name in new if not same(old[name], new[name])
    }


def named_arguments(subject: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(inspect.signature(subject).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {str(i): value for i, value in enumerate(args)} | kwargs


def gradients(subject: Any, case: Case) -> dict[str, Any]:
    named = named_arguments(subject, case.args, case.kwargs)
    leaves = {name: named[name].detach().clone().requires_grad_() for name in case.grad}
    bound = inspect.signature(subject).bind(*case.args, **case.kwargs)
    bound.arguments.update(leaves)
    result = subject(*bound.args, **bound.kwargs)
    outputs = [leaf for leaf in flat_tensors(result) if leaf.is_floating_point()]
    if not any(output.requires_grad for output in outputs):
        return {"the result requires grad": False}
    total = torch.stack([(output * ramp(output)).sum() for output in outputs]).sum()
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {f"gradient of `{name}`": g for name, g in zip(leaves, grads, strict=True)}


def ramp(x: Tensor) -> Tensor:
    """Fixed weights for the elements of x: -1 to 1 in equal steps."""
    return torch.linspace(-1.0, 1.0, max(x.numel(), 1), dtype=x.dtype)[: x.numel()].view(x.shape)


def flat_tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from flat_tensors(item)


def view(subject: Any, case: Case) -> dict[str, Any]:
    """Is it a view? The result, and the result again after the argument's storage was overwritten.

    The first tensor among the arguments is the one to be viewed. A copy keeps its old values; a
    view of the wrong elements shows the wrong new ones.
    """
    x = next(flat_tensors(list(case.args) + list(case.kwargs.values())))
    result = subject(*case.args, **case.kwargs)
    if not is_plain_tensor(result):
        return {"result": result}
    shares = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    seen = {
        "result": result.clone(),
        "the result shares the argument's storage": shares,
        "strides": strides_that_matter(result),
    }
    overwrite(x)
    seen["result, after the argument was overwritten"] = result.clone()
    return seen


def strides_that_matter(x: Tensor) -> tuple[int | None, ...]:
    """Strides of x, with None where any would do: axes of size one, and tensors with no element."""
    if x.numel() == 0:
        return (None,) * x.ndim
    return tuple(s if n > 1 else None for n, s in zip(x.shape, x.stride(), strict=True))


def overwrite(x: Tensor) -> None:
    """New distinct values in every slot of x's storage, seen by x or not."""
    slots = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    if x.dtype == torch.bool:
        slots.logical_not_()
    else:
        slots.copy_(torch.arange(100, 100 + slots.numel()))


def steps(subject: Any, case: Case) -> dict[str, Any]:
    """Build the class with the case's keyword arguments, then call it once for each positional one.

    Returns each step's result, and the object's public attributes (arrays and plain values) at
    the end.
    """
    thing = subject(**case.kwargs)
    seen: dict[str, Any] = {}
    for i, argument in enumerate(case.args):
        result = thing(argument)
        seen[f"result of step {i + 1}"] = result.clone() if isinstance(result, Tensor) else result
    for name, value in sorted(vars(thing).items()):
        if not name.startswith("_"):
            seen[f"attribute `{name}` at the end"] = value
    return seen


def there_and_back(subject: dict[str, Any], case: Case) -> dict[str, Any]:
    """A pair, in the order of its names: what the first makes, and what the second makes of that."""
    there, back = subject.values()
    made = there(*case.args, **case.kwargs)
    return {"there": fresh(made), "and back": back(made)}


def strides_of(subject: Any, case: Case) -> dict[str, Any]:
    """Call it for the strides of a shape, the case's last argument: None where any would do.

    Strides of axes of size one and of empty tensors are never used, so no value of them is wrong.
    """
    shape, result = case.args[-1], subject(*case.args)
    if not (isinstance(result, tuple | list) and len(result) == len(shape)):
        return {"result": result}
    if 0 in shape:
        return {"result": (None,) * len(shape)}
    return {"result": tuple(s if n > 1 else None for n, s in zip(shape, result, strict=True))}


def never_negative(subject: Any, case: Case) -> dict[str, Any]:
    """Call it, and say whether the result has a negative element, however small."""
    seen = call(subject, case)
    result = seen.get("result")
    if isinstance(result, Tensor) and is_plain_tensor(result):
        seen["some element is negative"] = bool(result.lt(0).any())
    return seen


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
