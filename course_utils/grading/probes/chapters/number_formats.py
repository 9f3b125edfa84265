"""Probes of formats and roundings: several numbers, each by its name; and those that must be right to
the last bit."""

from math import copysign
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import Read, probe
from course_utils.grading.probes.functions import TOO_LARGE, call, what_a_call_did
from course_utils.grading.pytrees.shown import in_words
from course_utils.grading.pytrees.tree import is_plain_tensor


def _one_by_one(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    seen = what_a_call_did(report, case, named_by)
    result = seen.get("result")
    if isinstance(result, Tensor) and is_plain_tensor(result) and result.is_floating_point():
        small = result.numel() <= TOO_LARGE
        seen["shape"], seen["dtype"] = tuple(result.shape), result.dtype
        seen["result"] = result.detach().double().tolist() if small else result
    return seen


@probe(read=_one_by_one, by_name=True)
def exact_values(subject: Any, case: Case) -> dict[str, Any]:
    """Call it, and show the numbers of a floating-point result one by one, with its shape and dtype.

    Two neighbours of a coarse format are closer than what a tolerance of that format allows. As
    plain numbers they are compared exactly.
    """
    return call.run(subject, case)


@probe(read=_one_by_one, by_name=True)
def exact_without_fp8(subject: Any, case: Case) -> dict[str, Any]:
    """`exact_values`, and whether a wider number was cast to an FP8 dtype on the way."""
    with _CastsToFP8() as watched:
        report = call.run(subject, case)
    report["it casts to an FP8 dtype"] = watched.found
    return report


_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


class _CastsToFP8(TorchDispatchMode):
    """Sees operations that make FP8 numbers of wider ones. To look at bytes as FP8 is none."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.dtype in _FP8 and "view" not in func.__name__:
            given = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, Tensor)]
            self.found |= any(x.is_floating_point() and x.dtype not in _FP8 for x in given)
        return result


def _named(*names: str) -> Read:
    """What was seen, with the items of the result under these names, where it has as many."""

    def read(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
        seen = what_a_call_did(report, case, named_by)
        if "result" not in seen:
            return seen
        result = seen.pop("result")
        if not isinstance(result, tuple | list):
            return {"it returns": in_words(result)} | seen
        items = dict(zip(names, result, strict=True)) if len(result) == len(names) else {}
        return {"it returns": f"{len(result)} items"} | items | seen

    return read


def _with_the_sign_of_zero(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    seen = what_a_call_did(report, case, named_by)
    result = seen.get("result")
    if isinstance(result, Real) and result == 0:
        seen["the sign of the zero"] = "minus" if copysign(1.0, float(result)) < 0 else "plus"
    return seen


@probe(read=_with_the_sign_of_zero, by_name=True)
def signed_number(subject: Any, case: Case) -> dict[str, Any]:
    """Call it, and tell the two zeros apart: -0.0 == 0.0."""
    return call.run(subject, case)


@probe(read=_named("sign", "exponent", "mantissa"), by_name=True)
def fields(subject: Any, case: Case) -> dict[str, Any]:
    """The fields of a pattern, each by its name."""
    return call.run(subject, case)


@probe(read=_named("largest", "smallest normal", "smallest subnormal", "epsilon"), by_name=True)
def limits(subject: Any, case: Case) -> dict[str, Any]:
    """The limits of a format, each by its name."""
    return call.run(subject, case)
