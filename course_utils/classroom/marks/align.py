"""Records laid out by the plan: one a student, one result for each exercise, in the plan's order."""

import unicodedata
from collections.abc import Iterable
from dataclasses import replace

from .plan import Plan
from .record import FAILED, GRADED, HELD, MISSING, NOT_ATTEMPTED, PASSED, Record, Result, merged

OUTCOMES = (PASSED, FAILED, HELD, NOT_ATTEMPTED, MISSING)


def by_plan(plan: Plan, records: Iterable[Record]) -> list[Record]:
    """One record a student, sorted by name; each has exactly the plan's exercises.

    An exercise without a result is missing, with 0 points; a result that the plan does not name
    does not count.
    """
    found = merged(records).values()
    return [laid_out(plan, record) for record in sorted(found, key=_by_name)]


def _by_name(record: Record) -> tuple[str, str]:
    return unicodedata.normalize("NFKC", record.student).casefold(), record.student


def laid_out(plan: Plan, record: Record) -> Record:
    """The record with exactly the plan's exercises, in its order."""
    results = tuple(
        record.result(item.key) or Result(item.key, MISSING, 0.0, item.points)
        for item in plan.items
    )
    return replace(record, results=results)


def was_read(record: Record) -> bool:
    """Did anything of this submission reach the checks? A damaged one may have been read in part."""
    return record.status == GRADED or any(r.outcome != MISSING for r in record.results)
