"""Probe of roundings: numbers that must be right to the last bit."""

from typing import Any

from torch import Tensor

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import TOO_LARGE, call, what_a_call_did
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
