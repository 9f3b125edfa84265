"""Probes that call a function: its result, what it changed, the gradients that flow through it."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from course_utils.grading.driving import labels
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.labels import ARGUMENTS
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.tree import fresh, is_plain_tensor, tensors, untouched

ROUNDING = 1e-5  # of the squares that were subtracted
TOO_LARGE = 10_000_000  # elements; a wrong `expand` asks for more memory than there is


def what_a_call_did(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    """The report of a call as `call` shows it."""
    if ARGUMENTS not in report:
        return report
    seen = with_changed_arguments(report, case, named_by)
    if requires_grad(seen["result"]) and not requires_grad([case.args, case.kwargs]):
        seen[labels.UNASKED_GRAD] = True
    return seen


@probe(read=what_a_call_did, by_name=True)
def call(subject: Any, case: Case) -> dict[str, Any]:
    """Call it: the result, the arguments that it changed, and the gradients that the case names.

    An argument is changed if anything of it is: an element, one of its storage that it does not
    show, its shape or strides (`transpose_`), or whether it requires grad. Gradients are those of a
    fixed weighted sum of the result (weights from -1 to 1), so that no two elements can stand in for
    one another.
    """
    if case.grad:
        return gradients(subject, case)
    result = subject(*case.args, **case.kwargs)
    return {"result": result, ARGUMENTS: (case.args, case.kwargs)}


def with_changed_arguments(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    """The report with the arguments that the call changed, by name, in place of all of them."""
    seen = {label: value for label, value in report.items() if label != ARGUMENTS}
    return seen | changed_arguments(named_by, (case.args, case.kwargs), report[ARGUMENTS])


def changed_arguments(subject: Any, before: Any, after: Any) -> dict[str, Any]:
    """The arguments, by name, that are no longer what `before`, a copy, says."""
    if untouched(before, after):
        return {}
    old = named_arguments(subject, *before)
    new = named_arguments(subject, *after)
    changed = [name for name in new if not untouched(old[name], new[name])]
    return {_label(name, old[name], new[name]): new[name] for name in changed}


def _label(name: str, before: Any, after: Any) -> str:
    """What to call an argument that has changed."""
    tensors = isinstance(before, Tensor) and isinstance(after, Tensor)
    if tensors and untouched(before.detach(), after.detach()):
        return labels.now_requires_grad(name)
    return labels.changed_argument(name)


def requires_grad(tree: Any) -> bool:
    """Does any tensor of the tree require grad?"""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        return any(map(requires_grad, tree))
    return isinstance(tree, Tensor) and tree.requires_grad


def named_arguments(subject: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names; by their places where it does not fit the signature."""
    try:
        return dict(inspect.signature(subject).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {str(i): value for i, value in enumerate(args)} | kwargs


def gradients(subject: Any, case: Case) -> dict[str, Any]:
    """The gradients of the arguments named in `case.grad`, of a fixed weighted sum over the outputs.

    For outputs of more than `TOO_LARGE` elements, the result instead.
    """
    named = case.kwargs | (named_arguments(subject, case.args, {}) if case.args else {})
    leaves = {name: named[name].detach().clone().requires_grad_() for name in case.grad}
    if case.args:
        bound = inspect.signature(subject).bind(*case.args, **case.kwargs)
        bound.arguments.update(leaves)
        result = subject(*bound.args, **bound.kwargs)
    else:
        result = subject(**case.kwargs | leaves)
    outputs = [leaf for leaf in flat_tensors(result) if leaf.is_floating_point()]
    if sum(output.numel() for output in outputs) > TOO_LARGE:
        return {"result": result}
    if not any(output.requires_grad for output in outputs):
        return {labels.NO_GRAD: False}
    total = torch.stack([(output * ramp(output)).sum() for output in outputs]).sum()
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {f"gradient of `{name}`": g for name, g in zip(leaves, grads, strict=True)}


def ramp(x: Tensor) -> Tensor:
    """Fixed weights for the elements of x: -1 to 1 in equal steps."""
    return torch.linspace(-1.0, 1.0, max(x.numel(), 1), dtype=x.dtype)[: x.numel()].view(x.shape)


def flat_tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples and lists, from left to right."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from flat_tensors(item)


def _whether_negative(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    seen = what_a_call_did(report, case, named_by)
    result = seen.get("result")
    if isinstance(result, Tensor) and is_plain_tensor(result) and result.numel() <= TOO_LARGE:
        seen["some element is negative"] = bool(result.lt(0).any())
        squares = [x.square().sum(-1).max() for x in tensors(case.given) if x.numel()]
        tiny = ROUNDING * max(map(float, squares), default=0.0)
        seen["result"] = result.where((result >= 0) | (result < -tiny) | result.isnan(), 0.0)
    return seen


@probe(read=_whether_negative, by_name=True)
def never_negative(subject: Any, case: Case) -> dict[str, Any]:
    """Call it, and say whether the result has a negative element, however small.

    What rounding left below zero is then shown as zero: by how much depends on the order of a sum.
    """
    return call.run(subject, case)


def _whether_a_tuple(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    seen = what_a_call_did(report, case, named_by)
    if isinstance(seen["result"], tuple | list):
        seen["the result is a tuple"] = isinstance(seen["result"], tuple)
    return seen


@probe(read=_whether_a_tuple, by_name=True)
def a_tuple(subject: Any, case: Case) -> dict[str, Any]:
    """Call it, and say whether the result is a tuple: a list is another index than a tuple."""
    return call.run(subject, case)


def _whether_of_tuples(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    seen = what_a_call_did(report, case, named_by)
    innermost = list(_innermost(seen.get("result")))
    if innermost:
        seen["its innermost sequences are tuples"] = all(
            isinstance(items, tuple) for items in innermost
        )
    return seen


def _innermost(tree: Any) -> Iterator[Any]:
    """The lists and tuples in a tree that are not empty and hold no others."""
    items = list(tree.values()) if isinstance(tree, dict) else tree
    if not isinstance(items, list | tuple):
        return
    inner = [item for item in items if isinstance(item, dict | list | tuple)]
    for item in inner:
        yield from _innermost(item)
    if items and not inner and not isinstance(tree, dict):
        yield tree


@probe(read=_whether_of_tuples, by_name=True)
def of_tuples(subject: Any, case: Case) -> dict[str, Any]:
    """Call it, and say whether the innermost sequences of the result are tuples: a list can be no key."""
    return call.run(subject, case)


@probe
def there_and_back(subject: dict[str, Any], case: Case) -> dict[str, Any]:
    """A pair, in the order of its names: what the first makes, and what the second makes of that."""
    there, back = subject.values()
    made = there(*case.args, **case.kwargs)
    return {"there": fresh(made), "and back": back(made)}
