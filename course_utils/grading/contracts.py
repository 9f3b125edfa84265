"""Contracts: what an answer may cost. Counted, never timed, so they hold on any machine.

A contract names a promise, the calls to measure, and a judge of the costs that
`course_utils.meters` counted; the judge returns None, or a sentence that says what was exceeded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from course_utils.meters import Cost, format_bytes, measure

from .case import Case

Limit = int | Callable[[Case], int]
Prepare = Callable[[Any, Case], Callable[[], Any]]


@dataclass(frozen=True)
class Contract:
    """promise: what is bounded, in words. cases: the calls. judge: costs → complaint or None.

    watches_autograd: count bytes saved for backward too (torch.func's transforms refuse to run then).
    prepare: what to do with the object and the case before measuring begins (build the module, fill
    the gradients); it returns the function whose call is measured. By default the object is called.
    """

    promise: str
    cases: tuple[Case, ...]
    judge: Callable[[Sequence[Cost], Sequence[Case]], str | None]
    watches_autograd: bool = False
    prepare: Prepare | None = None

    def measured(self, subject: Any, case: Case) -> Cost:
        """What one case costs, on copies of its tensors made beforehand."""
        ready = case.fresh()
        run = (
            self.prepare(subject, ready)
            if self.prepare
            else partial(subject, *ready.args, **ready.kwargs)
        )
        with measure(saved=self.watches_autograd) as cost:
            run()
        return cost


def resolve(limit: Limit, case: Case) -> int:
    return limit(case) if callable(limit) else limit


def bounded(
    what: str, meter: str, unit: Callable[[int], str], watches_autograd: bool = False
) -> Callable[..., Contract]:
    """A factory of contracts that bound one figure of a cost from above, case by case."""

    def make(
        cases: Sequence[Case],
        limit: Limit,
        says: str | None = None,
        prepare: Prepare | None = None,
    ) -> Contract:
        def judge(costs: Sequence[Cost], given: Sequence[Case]) -> str | None:
            for cost, case in zip(costs, given, strict=True):
                figure, bound = getattr(cost, meter), resolve(limit, case)
                if figure > bound:
                    return f"{what}: {unit(figure)}; allowed: {unit(bound)}"
            return None

        return Contract(says or f"bounded: {what}", tuple(cases), judge, watches_autograd, prepare)

    make.__doc__ = f"Bound, from above, the {what} of each case. limit: a number, or case → number."
    return make


def plain(n: int) -> str:
    return f"{n:,}"


largest_tensor = bounded("largest tensor made", "bytes_largest", format_bytes)
allocates = bounded("bytes allocated", "bytes_allocated", format_bytes)
peak = bounded("bytes alive at the peak", "bytes_peak", format_bytes)
saved = bounded("bytes saved for backward", "bytes_saved", format_bytes, watches_autograd=True)
kernels = bounded("kernels", "kernels", plain)
flops = bounded("FLOPs", "flops", plain)


def constant_kernels(
    cases: Sequence[Case], says: str | None = None, prepare: Prepare | None = None
) -> Contract:
    """No more operations for the large cases than for the first, and no more data leaving torch.

    That rules out a Python loop over an axis, one of views only, and one hidden behind `.tolist()`
    or NumPy. A single `int(lengths.max())` is as cheap for a large input as for a small one: it
    stays allowed.
    """

    def judge(costs: Sequence[Cost], given: Sequence[Case]) -> str | None:
        counts = [cost.ops.total() for cost in costs]
        if max(counts) > counts[0]:
            return (
                f"it runs {counts[0]} operations on the smallest input and {max(counts)} on the "
                "largest: a Python loop over an axis"
            )
        left = [cost.elements_left for cost in costs]
        if max(left) > left[0]:
            ways = sorted({way for cost in costs for way in cost.left_torch})
            return (
                f"{left[0]} elements leave torch on the smallest input and {max(left)} on the "
                f"largest, through {', '.join(f'`{way}`' for way in ways)}"
            )
        return None

    promise = says or "no Python loop: the number of operations does not grow"
    return Contract(promise, tuple(cases), judge, prepare=prepare)


def shares_storage(cases: Sequence[Case]) -> Contract:
    """Not one byte is allocated: the result lives in the argument's storage."""
    return allocates(cases, limit=0, says="a view: 0 bytes allocated")
