"""Two ways of doing the same thing, timed in pairs in one run: how `make bench` compares.

A pair is one call of each, in alternating order, so that a busy machine slows both. What counts is
the median of the pairs' ratios, with an interval that assumes nothing about their distribution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from time import perf_counter


@dataclass(frozen=True)
class Comparison:
    """Seconds of both, pair by pair."""

    times: tuple[tuple[float, float], ...]

    @property
    def ratios(self) -> list[float]:
        """The first's seconds over the second's."""
        return [a / b for a, b in self.times]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def seconds(self) -> tuple[float, float]:
        """The median seconds of each."""
        first, second = (median(column) for column in zip(*self.times, strict=True))
        return first, second

    def __str__(self) -> str:
        low, high = interval(self.ratios)
        first, second = (1e3 * s for s in self.seconds)
        return f"{first:>9.2f}{second:>9.2f}{self.ratio:>8.2f}   [{low:.2f}, {high:.2f}]"


HEADER = f"{'ours ms':>9}{'their ms':>9}{'ratio':>8}   95% interval"


def seconds(step: Callable[[], object]) -> float:
    begin = perf_counter()
    step()
    return perf_counter() - begin


def compare(
    one: Callable[[], object], two: Callable[[], object], pairs: int, warm_up: int = 3
) -> Comparison:
    """Time one against two; the first calls of each, `warm_up` in number, are not counted."""
    for _ in range(warm_up):
        one()
        two()
    times = []
    for i in range(pairs):
        if i % 2:
            b, a = seconds(two), seconds(one)
        else:
            a, b = seconds(one), seconds(two)
        times.append((a, b))
    return Comparison(tuple(times))


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Order statistics between which the median lies with at least this confidence."""
    n, values = len(values), sorted(values)
    outside, k = 0.0, 0
    while (grown := outside + 2 * comb(n, k) / 2**n) <= 1 - level:
        outside, k = grown, k + 1
    k = max(k - 1, 0)
    return values[k], values[n - 1 - k]
