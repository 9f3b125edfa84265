"""Probe of roundings: numbers that must be right to the last bit."""

from typing import Any

from torch import Tensor

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import call
from course_utils.grading.pytrees.tree import is_plain_tensor


@probe(by_name=True)
def exact_values(subject: Any, case: Case) -> dict[str, Any]:
    """Call it, and show the numbers of a floating-point result one by one, with its shape and dtype.

    Two neighbours of a coarse format are closer than what a tolerance of that format allows. As
    plain numbers they are compared exactly.
    """
    seen = call(subject, case)
    result = seen.get("result")
    if isinstance(result, Tensor) and is_plain_tensor(result) and result.is_floating_point():
        seen["shape"], seen["dtype"] = tuple(result.shape), result.dtype
        seen["result"] = result.detach().double().tolist()
    return seen
