"""Contracts that bound what every rank sends, holds or calls."""

from collections.abc import Callable, Sequence
from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Contract, Judge, Limit
from course_utils.grading.probes.on_ranks import on_ranks

from .judges import BYTES, NUMBER, OnEachRank


def _on_each_rank(figure: str, what: str, unit: str) -> Callable[..., Contract]:
    """A factory of contracts that bound a figure of every rank's cost from above.

    figure: a name of FIGURES.
    """

    def make(
        cases: Sequence[Case], limit: Limit, says: str | None = None, probe: Any = None
    ) -> Contract:
        promise = says or f"bounded: {what}"
        return _ranked(what, cases, OnEachRank(figure, unit, limit), promise, probe)

    make.__doc__ = (
        f"Bound, from above, the {what} of each rank. limit: a number, or case → number. probe: the "
        "exercise's own, by default `probes.on_ranks`."
    )
    return make


def _ranked(
    what: str, cases: Sequence[Case], judge: Judge, promise: str, probe: Any = None
) -> Contract:
    """A contract whose judge sees every rank's cost. Raises ValueError for a case on no rank."""
    if not all(case.world for case in cases):
        raise ValueError(f"a bound of {what} on each rank needs cases made by on_ranks(...)")
    return Contract(promise, tuple(cases), judge, probe=probe or on_ranks)


sends = _on_each_rank("traffic", "bytes sent, and bytes received", BYTES)
"""(cases, limit) → no rank sends, or receives, more than so many bytes."""
messages = _on_each_rank("messages", "messages", NUMBER)
"""(cases, limit) → no rank sends more than so many messages."""
collectives = _on_each_rank("collectives", "calls of collectives", NUMBER)
"""(cases, limit) → no rank calls more than so many collectives."""
peak_on_ranks = _on_each_rank("peak", "bytes alive at the peak", BYTES)
"""(cases, limit) → no rank holds more than so many bytes at once."""
resident = _on_each_rank("resident", "bytes alive afterwards", BYTES)
"""(cases, limit) → no rank still holds more than so many bytes at the end."""
