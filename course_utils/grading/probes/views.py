"""Probes of views and strides: does a result live in its argument's storage, and where?"""

from typing import Any

import torch
from torch import Tensor

from ..case import Case
from ..values import is_plain_tensor
from .functions import flat_tensors


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
