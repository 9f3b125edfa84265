"""The probe of a custom Function that keeps its tensors where autograd watches them.

It has a file of its own, beside `autograd`, so that what else is proved with that stays proved.
"""

from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.tree import tensors

from .autograd import straight_through


@probe
def saved_for_backward(subject: Any, case: Case) -> dict[str, Any]:
    """As `straight_through`, and whether a tensor, however small, is kept on ctx itself."""
    x, *rest = case.args
    seen = straight_through(subject, case)
    node = subject.apply(x.detach().requires_grad_(), *rest).grad_fn
    return seen | {"a tensor is kept on ctx itself": bool(tensors(getattr(node, "__dict__", {})))}


saved_for_backward.called = straight_through.called
