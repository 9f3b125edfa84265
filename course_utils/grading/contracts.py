"""Contracts: what an answer may cost. Counted, never timed, so they hold on any machine.

A contract names a promise, the calls to measure, and a judge of the costs that
`course_utils.meters` counted; the judge returns None, or a sentence that says what was exceeded.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from course_utils.meters import Cost, format_bytes, measure

from .case import Case
from .values import is_plain_tensor, tensors

Limit = int | Callable[[Case], int]
Prepare = Callable[[Any, Case], Callable[[], Any]]


@dataclass(frozen=True)
class Measured:
    """What one call cost and gave.

    cost: a `Cost`; on ranks, a list of one for each.
    elsewhere: how part of it escaped being counted, in words that follow "your code", or nothing.
    """

    cost: Any
    result: Any
    elsewhere: str = ""


@dataclass(frozen=True)
class Contract:
    """promise: what is bounded, in words. cases: the calls. judge: costs → complaint or None.

    What is measured is also a check: the call must give what the reference gives, in memory that the
    call made or that an argument brought, and in one thread; else the cost would be another work's.
    watches_autograd: count bytes saved for backward too (torch.func's transforms refuse to run then).
    prepare: what to do with the object and the case before measuring begins (build the module, fill
    the gradients); it returns the function whose call is measured. By default the object is called.
    probe: for contracts on ranks, what drives the object there; every rank is measured.
    """

    promise: str
    cases: tuple[Case, ...]
    judge: Callable[[Sequence[Any], Sequence[Case]], str | None]
    watches_autograd: bool = False
    prepare: Prepare | None = None
    probe: Any = None

    def measured(self, subject: Any, case: Case) -> Any:
        """What one case costs, on copies of its tensors made beforehand."""
        return self.run(subject, case).cost

    def run(self, subject: Any, case: Case) -> Measured:
        """The same, with the result of the call that was measured."""
        ready = case.fresh()
        if self.probe:
            return self.run_on_ranks(subject, ready)
        run = (
            self.prepare(subject, ready)
            if self.prepare
            else partial(subject, *ready.args, **ready.kwargs)
        )
        meter = measure(saved=self.watches_autograd)
        with threads_started() as threads, meter as cost:
            result = run()
            made = all(map(meter.made, tensors_of(result)))
        if threads:
            return Measured(cost, result, "works in another thread, where nothing can be counted")
        given = {x.untyped_storage()._cdata for x in tensors_of((ready.args, ready.kwargs))}
        shared = all(x.untyped_storage()._cdata in given for x in tensors_of(result))
        if not (made or shared or self.prepare):
            return Measured(cost, result, KEPT)
        return Measured(cost, result)

    def run_on_ranks(self, subject: Any, case: Case) -> Measured:
        """One cost for each rank, and what the probe saw on all of them."""
        from .probes.collectives import measuring

        with measuring() as measured:
            seen = self.probe(subject, case)
        if not measured.costs:
            raise RuntimeError("no rank was measured: the contract's probe runs on none")
        return Measured(measured.costs, seen, measured.elsewhere)


KEPT = (
    "returns memory that no operation of this call made: a result kept from an earlier call, or "
    "made outside of torch"
)


def tensors_of(tree: Any) -> list[Any]:
    return [x for x in tensors(tree) if is_plain_tensor(x) and x.numel()]


@contextmanager
def threads_started() -> Iterator[list[threading.Thread]]:
    """The threads that the block starts."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    threading.Thread.start = noted  # type: ignore[method-assign, assignment]
    try:
        yield started
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


def kind_of(complaint: str | None) -> str | None:
    """A complaint with less, same, more for its numbers of operations: how a loop's number grows says
    over which axis it runs; how large it is depends on how the loop is written."""

    def growth(found: re.Match[str]) -> str:
        counts = [int(n) for n in re.findall(r"\d+", found[0])]
        return " ".join(
            "same" if a == b else "more" if a < b else "less" for a, b in pairwise(counts)
        )

    return complaint and re.sub(r"\(\d+ operations[^()]*\)", growth, complaint)


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
    """No more operations for the large cases than for the first, and no more data leaving torch or
    entering it.

    That rules out a Python loop over an axis, one of views only, and one hidden behind `.tolist()`,
    NumPy or `torch.tensor(a_list)`. A single `int(lengths.max())` is as cheap for a large input as
    for a small one: it stays allowed, and so does a `range` as an index.
    """

    def judge(costs: Sequence[Cost], given: Sequence[Case]) -> str | None:
        counts = [cost.ops.total() for cost in costs]
        if max(counts) > counts[0]:
            return (
                "a Python loop over an axis: it runs more operations on a larger input "
                f"({counts[0]} operations, then {', then '.join(map(str, counts[1:]))})"
            )
        left = [cost.elements_left for cost in costs]
        if max(left) > left[0]:
            ways = sorted({way for cost in costs for way in cost.left_torch})
            return (
                f"data leaves torch through {', '.join(f'`{way}`' for way in ways)}, more of it the "
                f"larger the input ({left[0]} elements on the smallest, {max(left)} on the largest)"
            )
        entered = [cost.elements_entered for cost in costs]
        if max(entered) > entered[0]:
            return (
                "data is made in Python or NumPy and then becomes a tensor, more of it the larger "
                f"the input ({entered[0]} elements for the smallest, {max(entered)} for the largest)"
            )
        return None

    promise = says or "no Python loop: the number of operations does not grow"
    return Contract(promise, tuple(cases), judge, prepare=prepare)


def shares_storage(cases: Sequence[Case]) -> Contract:
    """Not one byte is allocated: the result lives in the argument's storage."""
    return allocates(cases, limit=0, says="a view: 0 bytes allocated")


# ------------------------------------------------------------------------------ on ranks


def on_each_rank(
    figure: Callable[[Cost], tuple[int, str]], what: str, unit: Callable[[int], str]
) -> Callable[..., Contract]:
    """A factory of contracts that bound a figure of every rank's cost from above.

    figure: of a cost, the number and the verb that goes with it ("sent").
    """

    def make(
        cases: Sequence[Case], limit: Limit, says: str | None = None, probe: Any = None
    ) -> Contract:
        from .probes.collectives import on_ranks

        if not all(case.world for case in cases):
            raise ValueError(f"a bound of {what} on each rank needs cases made by on_ranks(...)")

        def judge(costs: Sequence[Sequence[Cost]], given: Sequence[Case]) -> str | None:
            for by_rank, case in zip(costs, given, strict=True):
                if len(by_rank) != case.world:
                    return f"{len(by_rank)} of {case.world} ranks could be measured"
                bound = resolve(limit, case)
                rank = max(range(case.world), key=lambda r: figure(by_rank[r])[0])
                most, verb = figure(by_rank[rank])
                if most > bound:
                    return (
                        f"rank {rank} of {case.world} {verb} {unit(most)}; allowed: {unit(bound)}"
                    )
            return None

        return Contract(says or f"bounded: {what}", tuple(cases), judge, probe=probe or on_ranks)

    make.__doc__ = (
        f"Bound, from above, the {what} of each rank. limit: a number, or case → number. probe: the "
        "exercise's own, by default `probes.on_ranks`."
    )
    return make


def traffic(cost: Cost) -> tuple[int, str]:
    """What a rank's link carries in the busier direction."""
    if cost.bytes_received > cost.bytes_sent:
        return cost.bytes_received, "received"
    return cost.bytes_sent, "sent"


def collectives_called(cost: Cost) -> tuple[int, str]:
    calls = ", ".join(f"{name} × {n}" for name, n in sorted(cost.collectives.items()))
    return cost.collectives.total(), f"called collectives ({calls}):"


sends = on_each_rank(traffic, "bytes sent, and bytes received", format_bytes)
messages = on_each_rank(lambda cost: (cost.messages, "sent messages:"), "messages", plain)
collectives = on_each_rank(collectives_called, "calls of collectives", plain)
peak_on_ranks = on_each_rank(
    lambda cost: (cost.bytes_peak, "held at once"), "bytes alive at the peak", format_bytes
)
largest_on_ranks = on_each_rank(
    lambda cost: (cost.bytes_largest, "made a tensor of"), "largest tensor made", format_bytes
)
resident = on_each_rank(
    lambda cost: (cost.bytes_left, "still held, in the end,"),
    "bytes alive afterwards",
    format_bytes,
)
