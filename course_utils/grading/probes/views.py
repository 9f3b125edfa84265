"""Probes of views and strides: does a result live in its argument's storage, and where?"""

from operator import index
from typing import Any

import torch
from torch import Tensor

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.labels import ARGUMENTS
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.text import short
from course_utils.grading.pytrees.tree import fresh, is_plain_tensor, map_tree
from course_utils.meters import shares_storage

from .functions import TOO_LARGE, changed_arguments, flat_tensors

_GRADIENT = "the gradient of its sum"


def _where_it_lies(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    """A result that shares the argument's storage is an offset, a shape and strides: they are applied
    here, to copies of the argument as it was given, before and after these are overwritten."""
    result, given = report["result"], (case.args, case.kwargs)
    if ARGUMENTS not in report or not is_plain_tensor(result) or result.numel() > TOO_LARGE:
        return {"result": result}
    changed = changed_arguments(named_by, given, report[ARGUMENTS])
    x, after = _viewed(*given), _viewed(*report[ARGUMENTS])
    shares = result.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
    mine: Tensor = fresh(x)
    here = _laid(result, mine) if shares and not changed else result
    seen = {
        "result": here.clone(),
        "the result shares the argument's storage": shares,
        "strides": _strides_that_matter(result) if shares else None,
    }
    _overwrite(mine)
    seen["result, after the argument was overwritten"] = here.clone()
    if x.is_floating_point() and not changed:
        grad = report.get(_GRADIENT)
        flows = isinstance(grad, Tensor) and grad.shape == x.shape if shares else None
        seen["a gradient flows through the view"] = flows
    return seen | changed


def _viewed(args: Any, kwargs: Any) -> Tensor:
    """The first tensor among the arguments."""
    return next(flat_tensors([*args, *kwargs.values()]))


def _laid(pattern: Tensor, x: Tensor) -> Tensor:
    """x's storage with the offset, shape, strides and dtype of a pattern, which reach no further."""
    new = torch.empty(0, dtype=pattern.dtype)
    storage = x.untyped_storage()
    return new.set_(storage, pattern.storage_offset(), pattern.shape, pattern.stride())


@probe(read=_where_it_lies)
def view(subject: Any, case: Case) -> dict[str, Any]:
    """Is it a view? The result, and the result again after the argument's storage was overwritten.

    The first tensor among the arguments is the one to be viewed. A view of the wrong elements shows
    the wrong new ones. The argument itself stays as it was, and gradients flow through its view. Of a
    copy its strides and gradients are not asked: indexed, stacked or padded, it is the same mistake.
    """
    given = (case.args, case.kwargs)
    before, x = fresh(given), _viewed(*given)
    result = subject(*case.args, **case.kwargs)
    if not is_plain_tensor(result) or result.numel() > TOO_LARGE:
        return {"result": result}
    report = {"result": result, ARGUMENTS: given}
    if x.is_floating_point() and shares_storage(result, x):
        report[_GRADIENT] = _gradient(subject, *before)
    return report


def _gradient(subject: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The gradient of the result's sum with respect to the argument that it views."""
    args, kwargs = map_tree(
        lambda x: x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x,
        (args, kwargs),
    )
    try:
        total = subject(*args, **kwargs).sum()
        return torch.autograd.grad(total, _viewed(args, kwargs), allow_unused=True)[0]
    except Exception:  # NumPy, for one, refuses such tensors
        return None


def _strides_that_matter(x: Tensor) -> tuple[int | None, ...]:
    """Strides of x, with None where any would do: axes of size one, and tensors with no element."""
    if x.numel() == 0:
        return (None,) * x.ndim
    return tuple(s if n > 1 else None for n, s in zip(x.shape, x.stride(), strict=True))


def _overwrite(x: Tensor) -> None:
    """New distinct values in every slot of x's storage, seen by x or not."""
    slots = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    if x.dtype == torch.bool:
        slots.logical_not_()
    else:
        slots.copy_(torch.arange(100, 100 + slots.numel()))


@probe
def strides_of(subject: Any, case: Case) -> dict[str, Any]:
    """Call it for the strides of a shape, the case's last argument: None where any would do.

    Strides of axes of size one and of empty tensors are never used, so no number there is wrong.
    """
    shape, result = case.args[-1], subject(*case.args)
    if not (isinstance(result, tuple | list) and len(result) == len(shape)):
        return {"result": result}
    used = (n > 1 and 0 not in shape for n in shape)
    return {"result": tuple(_stride_seen(s, u) for s, u in zip(result, used, strict=True))}


def _stride_seen(stride: Any, used: bool) -> Any:
    if not _is_whole_number(stride):
        return f"no whole number: {short(stride)}"
    return stride if used else None


def _is_whole_number(value: Any) -> bool:
    try:
        return not isinstance(value, Tensor) and index(value) is not None
    except TypeError:
        return False
