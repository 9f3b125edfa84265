"""Contracts: what an answer may cost. Counted, never timed, so they hold on any machine.

A contract names a promise, the calls to measure, and a judge of the costs that
`course_utils.meters` counted; the judge returns None, or a sentence that says what was exceeded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .case import Case

if TYPE_CHECKING:
    from course_utils.meters import Cost

Limit = int | Callable[[Case], int]


@dataclass(frozen=True)
class Contract:
    """promise: what is bounded, in words. cases: the calls. judge: costs → complaint or None."""

    promise: str
    cases: tuple[Case, ...]
    judge: Callable[[Sequence["Cost"], Sequence[Case]], str | None]


def human_bytes(n: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= factor:
            return f"{n / factor:.3g} {unit}"
    return f"{n} bytes"


def resolve(limit: Limit, case: Case) -> int:
    return limit(case) if callable(limit) else limit


def bounded(
    what: str, meter: str, unit: Callable[[int], str]
) -> Callable[..., Contract]:
    """A factory of contracts that bound one figure of a cost from above, case by case."""

    def make(cases: Sequence[Case], limit: Limit, says: str | None = None) -> Contract:
        def judge(costs: Sequence["Cost"], given: Sequence[Case]) -> str | None:
            for cost, case in zip(costs, given, strict=True):
                figure, bound = getattr(cost, meter), resolve(limit, case)
                if figure > bound:
                    return f"{what}: {unit(figure)}; allowed: {unit(bound)}"
            return None

        return Contract(says or f"bounded: {what}", tuple(cases), judge)

    make.__doc__ = f"Bound, from above, the {what} of each case. limit: a number, or case → number."
    return make


def plain(n: int) -> str:
    return f"{n:,}"


largest_tensor = bounded("largest tensor made", "bytes_largest", human_bytes)
allocates = bounded("bytes allocated", "bytes_allocated", human_bytes)
peak = bounded("bytes alive at the peak", "bytes_peak", human_bytes)
saved = bounded("bytes saved for backward", "bytes_saved", human_bytes)
kernels = bounded("kernels", "kernels", plain)
flops = bounded("FLOPs", "flops", plain)


def constant_kernels(cases: Sequence[Case], says: str | None = None) -> Contract:
    """As many kernels for the large cases as for the first, and no data leaves torch.

    That rules out a Python loop over an axis, and one hidden behind `.tolist()` or NumPy.
    """

    def judge(costs: Sequence["Cost"], given: Sequence[Case]) -> str | None:
        counts = [cost.kernels for cost in costs]
        if max(counts) > counts[0]:
            return (
                f"it runs {counts[0]} kernels on the smallest input and {max(counts)} on the "
                "largest: a Python loop over an axis"
            )
        ways = {way for cost in costs for way in cost.left_torch}
        if ways:
            return f"data leaves torch through {', '.join(f'`{way}`' for way in sorted(ways))}"
        return None

    return Contract(says or "no Python loop: the number of kernels does not grow", tuple(cases), judge)


def shares_storage(cases: Sequence[Case]) -> Contract:
    """Not one byte is allocated: the result lives in the argument's storage."""
    return allocates(cases, limit=0, says="a view: 0 bytes allocated")


def measured(subject: Any, case: Case) -> "Cost":
    """What one call costs, on copies of the arguments made beforehand."""
    from course_utils.meters import measure

    ready = case.fresh()
    with measure() as cost:
        subject(*ready.args, **ready.kwargs)
    return cost
