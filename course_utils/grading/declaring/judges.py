"""Judges of contracts: costs go in, a complaint or None comes out. They are data and can be stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Complaint, Limit
from course_utils.meters import Cost, format_bytes


def resolve(limit: Limit, case: Case) -> int:
    """The limit for this case: a number stands for itself, a function is asked."""
    return limit(case) if callable(limit) else limit


@dataclass(frozen=True)
class Bounded:
    """One figure of each cost has an upper bound. meter: the figure. unit: a name of UNITS."""

    what: str
    meter: str
    unit: str
    limit: Limit

    def __call__(self, costs: Sequence[Cost], cases: Sequence[Case]) -> Complaint | None:
        unit = _UNITS[self.unit]
        for cost, case in zip(costs, cases, strict=True):
            figure, bound = getattr(cost, self.meter), resolve(self.limit, case)
            if figure > bound:
                came, allowed = told(unit, figure, bound)
                text = f"{self.what}: {came}; allowed: {allowed}"
                return Complaint(text, kind=self.what, figure=figure)
        return None


@dataclass(frozen=True)
class ConstantKernels:
    """No more operations, and no more data across torch's border, than in the first case."""

    def __call__(self, costs: Sequence[Cost], cases: Sequence[Case]) -> Complaint | None:
        counts = [cost.ops.total() for cost in costs]
        if max(counts) > counts[0]:
            return Complaint(
                "a Python loop over an axis: it runs more operations on a larger input "
                f"({counts[0]} operations, then {', then '.join(map(str, counts[1:]))})",
                kind=f"a Python loop over an axis: {_growth(counts)}",
            )
        left = [cost.elements_left for cost in costs]
        if max(left) > left[0]:
            ways = sorted({way for cost in costs for way in cost.left_torch})
            through = f"data leaves torch through {', '.join(f'`{way}`' for way in ways)}"
            return Complaint(
                f"{through}, more of it the larger the input ({left[0]} elements on the smallest, "
                f"{max(left)} on the largest)",
                kind=through,
                figure=max(left),
            )
        entered = [cost.elements_entered for cost in costs]
        if max(entered) > entered[0]:
            made = "data is made in Python or NumPy and then becomes a tensor"
            return Complaint(
                f"{made}, more of it the larger the input ({entered[0]} elements for the smallest, "
                f"{max(entered)} for the largest)",
                kind=made,
                figure=max(entered),
            )
        return None


def _growth(counts: Sequence[int]) -> str:
    """Over which axis a loop runs shows in where the counts grow; how large they are depends on how
    the loop is written."""
    steps = pairwise(counts)
    return " ".join("same" if a == b else "more" if a < b else "less" for a, b in steps)


@dataclass(frozen=True)
class OnEachRank:
    """One figure of every rank's cost has an upper bound. figure: a name of FIGURES."""

    figure: str
    unit: str
    limit: Limit

    def __call__(self, costs: Sequence[Sequence[Cost]], cases: Sequence[Case]) -> Complaint | None:
        figure, unit = _FIGURES[self.figure], _UNITS[self.unit]
        for by_rank, case in zip(costs, cases, strict=True):
            if len(by_rank) != case.world:
                return Complaint(f"{len(by_rank)} of {case.world} ranks could be measured")
            bound = resolve(self.limit, case)
            rank = max(range(case.world), key=lambda r: figure(by_rank[r])[0])
            most, verb = figure(by_rank[rank])
            if most > bound:
                came, allowed = told(unit, most, bound)
                over = sum(figure(cost)[0] > bound for cost in by_rank)
                return Complaint(
                    f"rank {rank} of {case.world} {verb} {came}; allowed: {allowed}",
                    kind=f"{verb} too much on {over} of {case.world} ranks",
                    figure=0 if self.figure in _BY_SPELLING else most,
                )
        return None


def _plain(n: int) -> str:
    """A number with its thousands set apart."""
    return f"{n:,}"


def told(unit: Callable[[int], str], figure: int, bound: int) -> tuple[str, str]:
    """A figure and its bound, to the last one where they would read alike."""
    if unit(figure) != unit(bound):
        return unit(figure), unit(bound)
    return f"{figure:,}", f"{bound:,}"


BYTES, NUMBER = "bytes", "number"
_UNITS: dict[str, Callable[[int], str]] = {BYTES: format_bytes, NUMBER: _plain}


def _traffic(cost: Cost) -> tuple[int, str]:
    """What a rank's link carries in the busier direction."""
    if cost.bytes_received > cost.bytes_sent:
        return cost.bytes_received, "received"
    return cost.bytes_sent, "sent"


def _collectives_called(cost: Cost) -> tuple[int, str]:
    """How many collectives a call made, and the words that begin the complaint about them."""
    calls = ", ".join(f"{name} × {n}" for name, n in sorted(cost.collectives.items()))
    return cost.collectives.total(), f"called collectives ({calls}):"


# By rank: the number and the verb that goes with it.
_FIGURES: dict[str, Callable[[Cost], tuple[int, str]]] = {
    "traffic": _traffic,
    "messages": lambda cost: (cost.messages, "sent messages:"),
    "collectives": _collectives_called,
    "peak": lambda cost: (cost.bytes_peak, "held at once"),
    "resident": lambda cost: (cost.bytes_left, "still held, in the end,"),
}
_BY_SPELLING = ("peak", "resident")  # how much is alive depends on how a line is written
JUDGES: tuple[type[Any], ...] = (Bounded, ConstantKernels, OnEachRank)
"""The judges that are data."""
