"""Probes of views and strides: does a result live in its argument's storage, and where?"""

from operator import index
from typing import Any

import torch
from torch import Tensor

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.text import short
from course_utils.grading.pytrees.tree import fresh, is_plain_tensor, map_tree

from .functions import TOO_LARGE, changed_arguments, flat_tensors


@probe
def view(subject: Any, case: Case) -> dict[str, Any]:
    """Is it a view? The result, and the result again after the argument's storage was overwritten.

    The first tensor among the arguments is the one to be viewed. A view of the wrong elements shows
    the wrong new ones. The argument itself stays as it was, and gradients flow through its view. Of a
    copy its strides and gradients are not asked: indexed, stacked or padded, it is the same mistake.
    """
    given = (case.args, case.kwargs)
    before = fresh(given)
    x = next(flat_tensors(list(case.args) + list(case.kwargs.values())))
    result = subject(*case.args, **case.kwargs)
    if not is_plain_tensor(result) or result.numel() > TOO_LARGE:
        return {"result": result}
    changed = changed_arguments(subject, before, given)
    shares = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    seen = {
        "result": result.clone(),
        "the result shares the argument's storage": shares,
        "strides": _strides_that_matter(result) if shares else None,
    }
    _overwrite(x)
    seen["result, after the argument was overwritten"] = result.clone()
    if x.is_floating_point() and not changed:
        flows = _carries_gradient(subject, *before) if shares else None
        seen["a gradient flows through the view"] = flows
    return seen | changed


def _carries_gradient(subject: Any, args: Any, kwargs: Any) -> bool:
    """Does a gradient of the result reach the argument that it views?"""
    args, kwargs = map_tree(
        lambda x: x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x,
        (args, kwargs),
    )
    x = next(flat_tensors([*args, *kwargs.values()]))
    try:
        total = subject(*args, **kwargs).sum()
        return torch.autograd.grad(total, x, allow_unused=True)[0] is not None
    except Exception:  # NumPy, for one, refuses such tensors
        return False


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
