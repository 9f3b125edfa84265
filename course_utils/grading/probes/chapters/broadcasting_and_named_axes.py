"""Probes of chapter 3: heads that are split and merged."""

from typing import Any

import torch
from torch import Tensor

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.labels import ARGUMENTS
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import with_changed_arguments
from course_utils.grading.pytrees.tree import fresh, is_plain_tensor


def _read(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    split, _ = named_by.values()
    return with_changed_arguments(report, case, split)


@probe(read=_read)
def split_and_merged(subject: dict[str, Any], case: Case) -> dict[str, Any]:
    """The heads, what the second makes of them, and what it makes of heads laid out in their own order.

    Attention returns a new tensor: there a token's heads are not side by side, as in a view of x they
    still are.
    """
    split, merge = subject.values()
    heads = split(*case.args, **case.kwargs)
    seen = {"split": fresh(heads), ARGUMENTS: fresh((case.args, case.kwargs))}
    if isinstance(heads, Tensor) and is_plain_tensor(heads):
        own = heads.clone(memory_format=torch.contiguous_format)
        seen |= {"merged": fresh(merge(heads)), "merged, from a new tensor": fresh(merge(own))}
    return seen
