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
from typing import Any, Protocol

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

    def as_tree(self, result: bool = True) -> dict[str, Any]:
        """What crosses to another process. result: what the call gave, too."""
        costs = self.cost if isinstance(self.cost, list) else [self.cost]
        return {
            "costs": [cost.as_dict() for cost in costs],
            "result": self.result if result else None,
            "elsewhere": self.elsewhere,
        }

    @classmethod
    def from_tree(cls, tree: Any, ranks: int = 0) -> "Measured":
        """The inverse. ranks: how many were measured. Raises ValueError for a tree that is none."""
        try:
            costs = [Cost.from_dict(cost) for cost in tree["costs"]]
            result, elsewhere = tree["result"], tree["elsewhere"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"this measures nothing: {type(error).__name__}: {error}") from error
        if len(costs) != (ranks or 1):
            raise ValueError(f"{len(costs)} costs came, {ranks or 1} expected")
        if type(elsewhere) is not str or (ranks and type(result) is not dict):
            raise ValueError("this measures nothing")
        return cls(costs if ranks else costs[0], result, elsewhere[:500])


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
    judge: "Judge"
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
    """The tensors with at least one element in nested lists, tuples and dicts."""
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
    """The limit for this case: a number stands for itself, a function is asked."""
    return limit(case) if callable(limit) else limit


# ------------------------------------------------------------------------------ judges


class Judge(Protocol):
    """Costs and their cases → a complaint, or None. A judge of JUDGES is data: it can be stored."""

    def __call__(self, costs: Sequence[Any], cases: Sequence[Case]) -> str | None: ...


@dataclass(frozen=True)
class Bounded:
    """One figure of each cost has an upper bound. meter: the figure. unit: a name of UNITS."""

    what: str
    meter: str
    unit: str
    limit: Limit

    def __call__(self, costs: Sequence[Cost], cases: Sequence[Case]) -> str | None:
        unit = UNITS[self.unit]
        for cost, case in zip(costs, cases, strict=True):
            figure, bound = getattr(cost, self.meter), resolve(self.limit, case)
            if figure > bound:
                return f"{self.what}: {unit(figure)}; allowed: {unit(bound)}"
        return None


@dataclass(frozen=True)
class ConstantKernels:
    """No more operations, and no more data across torch's border, than in the first case."""

    def __call__(self, costs: Sequence[Cost], cases: Sequence[Case]) -> str | None:
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


@dataclass(frozen=True)
class OnEachRank:
    """One figure of every rank's cost has an upper bound. figure: a name of FIGURES."""

    figure: str
    unit: str
    limit: Limit

    def __call__(self, costs: Sequence[Sequence[Cost]], cases: Sequence[Case]) -> str | None:
        figure, unit = FIGURES[self.figure], UNITS[self.unit]
        for by_rank, case in zip(costs, cases, strict=True):
            if len(by_rank) != case.world:
                return f"{len(by_rank)} of {case.world} ranks could be measured"
            bound = resolve(self.limit, case)
            rank = max(range(case.world), key=lambda r: figure(by_rank[r])[0])
            most, verb = figure(by_rank[rank])
            if most > bound:
                return f"rank {rank} of {case.world} {verb} {unit(most)}; allowed: {unit(bound)}"
        return None


@dataclass(frozen=True)
class Senders:
    """No more than so many ranks send."""

    limit: Limit

    def __call__(self, costs: Sequence[Sequence[Cost]], cases: Sequence[Case]) -> str | None:
        for by_rank, case in zip(costs, cases, strict=True):
            senders = sum(cost.messages > 0 for cost in by_rank)
            bound = resolve(self.limit, case)
            if senders > bound:
                return (
                    f"{senders} of {len(by_rank)} ranks send, one after the other; {bound} rounds "
                    f"have room for {bound} senders"
                )
        return None


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


def plain(n: int) -> str:
    return f"{n:,}"


BYTES, NUMBER = "bytes", "number"
UNITS: dict[str, Callable[[int], str]] = {BYTES: format_bytes, NUMBER: plain}

largest_tensor = bounded("largest tensor made", "bytes_largest", BYTES)
allocates = bounded("bytes allocated", "bytes_allocated", BYTES)
peak = bounded("bytes alive at the peak", "bytes_peak", BYTES)
saved = bounded("bytes saved for backward", "bytes_saved", BYTES, watches_autograd=True)
kernels = bounded("kernels", "kernels", NUMBER)
flops = bounded("FLOPs", "flops", NUMBER)


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


# ------------------------------------------------------------------------------ on ranks


def on_each_rank(figure: str, what: str, unit: str) -> Callable[..., Contract]:
    """A factory of contracts that bound a figure of every rank's cost from above.

    figure: a name of FIGURES.
    """

    def make(
        cases: Sequence[Case], limit: Limit, says: str | None = None, probe: Any = None
    ) -> Contract:
        promise = says or f"bounded: {what}"
        return ranked(what, cases, OnEachRank(figure, unit, limit), promise, probe)

    make.__doc__ = (
        f"Bound, from above, the {what} of each rank. limit: a number, or case → number. probe: the "
        "exercise's own, by default `probes.on_ranks`."
    )
    return make


def senders(cases: Sequence[Case], limit: Limit, says: str, probe: Any = None) -> Contract:
    """Bound, from above, how many ranks send: in a round, each that has the data sends it once."""
    return ranked("senders", cases, Senders(limit), says, probe)


def ranked(
    what: str, cases: Sequence[Case], judge: Judge, promise: str, probe: Any = None
) -> Contract:
    """A contract whose judge sees every rank's cost. Raises ValueError for a case on no rank."""
    from .probes.collectives import on_ranks

    if not all(case.world for case in cases):
        raise ValueError(f"a bound of {what} on each rank needs cases made by on_ranks(...)")
    return Contract(promise, tuple(cases), judge, probe=probe or on_ranks)


def traffic(cost: Cost) -> tuple[int, str]:
    """What a rank's link carries in the busier direction."""
    if cost.bytes_received > cost.bytes_sent:
        return cost.bytes_received, "received"
    return cost.bytes_sent, "sent"


def collectives_called(cost: Cost) -> tuple[int, str]:
    """How many collectives a call made, and the words that begin the complaint about them."""
    calls = ", ".join(f"{name} × {n}" for name, n in sorted(cost.collectives.items()))
    return cost.collectives.total(), f"called collectives ({calls}):"


# By rank: the number and the verb that goes with it.
FIGURES: dict[str, Callable[[Cost], tuple[int, str]]] = {
    "traffic": traffic,
    "messages": lambda cost: (cost.messages, "sent messages:"),
    "collectives": collectives_called,
    "peak": lambda cost: (cost.bytes_peak, "held at once"),
    "largest": lambda cost: (cost.bytes_largest, "made a tensor of"),
    "resident": lambda cost: (cost.bytes_left, "still held, in the end,"),
}

sends = on_each_rank("traffic", "bytes sent, and bytes received", BYTES)
messages = on_each_rank("messages", "messages", NUMBER)
collectives = on_each_rank("collectives", "calls of collectives", NUMBER)
peak_on_ranks = on_each_rank("peak", "bytes alive at the peak", BYTES)
largest_on_ranks = on_each_rank("largest", "largest tensor made", BYTES)
resident = on_each_rank("resident", "bytes alive afterwards", BYTES)

JUDGES: tuple[type[Any], ...] = (Bounded, ConstantKernels, OnEachRank, Senders)
"""The judges that are data."""
