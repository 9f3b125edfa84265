"""Contracts: what an answer may cost. Counted, never timed, so they hold on any machine.

A contract names a promise, the calls to measure, and a judge of the costs that
`course_utils.meters` counted; the judge returns None, or a sentence that says what was exceeded.
"""

from collections.abc import Callable, Sequence

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Contract, Limit, Prepare

from .contracts_on_ranks import (
    collectives,
    messages,
    peak_on_ranks,
    resident,
    sends,
)
from .judges import BYTES, NUMBER, Bounded, ConstantKernels

__all__ = [
    "Contract",
    "allocates",
    "bounded",
    "collectives",
    "constant_kernels",
    "flops",
    "kernels",
    "largest_tensor",
    "messages",
    "peak",
    "peak_on_ranks",
    "resident",
    "saved",
    "sends",
    "shares_storage",
]


def bounded(
    what: str, meter: str, unit: str, watches_autograd: bool = False
) -> Callable[..., Contract]:
    """A factory of contracts that bound one figure of a cost from above, case by case."""

    def make(
        cases: Sequence[Case],
        limit: Limit,
        says: str | None = None,
        prepare: Prepare | None = None,
    ) -> Contract:
        judge = Bounded(what, meter, unit, limit)
        return Contract(says or f"bounded: {what}", tuple(cases), judge, watches_autograd, prepare)

    make.__doc__ = f"Bound, from above, the {what} of each case. limit: a number, or case → number."
    return make


largest_tensor = bounded("largest tensor made", "bytes_largest", BYTES)
"""(cases, limit) → no tensor larger than so many bytes is made."""
allocates = bounded("bytes allocated", "bytes_allocated", BYTES)
"""(cases, limit) → no more than so many bytes are allocated in all."""
peak = bounded("bytes alive at the peak", "bytes_peak", BYTES)
"""(cases, limit) → no more than so many bytes are alive at once."""
saved = bounded("bytes saved for backward", "bytes_saved", BYTES, watches_autograd=True)
"""(cases, limit) → no more than so many bytes are saved for backward."""
kernels = bounded("kernels", "kernels", NUMBER)
"""(cases, limit) → no more than so many kernels are launched."""
flops = bounded("FLOPs", "flops", NUMBER)
"""(cases, limit) → no more than so many floating-point operations."""


def constant_kernels(
    cases: Sequence[Case], says: str | None = None, prepare: Prepare | None = None
) -> Contract:
    """No more operations for the large cases than for the first, and no more data leaving torch or
    entering it.

    That rules out a Python loop over an axis, one of views only, and one hidden behind `.tolist()`,
    NumPy or `torch.tensor(a_list)`. A single `int(lengths.max())` is as cheap for a large input as
    for a small one: it stays allowed, and so does a `range` as an index.
    """

    promise = says or "no Python loop: the number of operations does not grow"
    return Contract(promise, tuple(cases), ConstantKernels(), prepare=prepare)


def shares_storage(cases: Sequence[Case]) -> Contract:
    """Not one byte is allocated: the result lives in the argument's storage."""
    return allocates(cases, limit=0, says="a view: 0 bytes allocated")
