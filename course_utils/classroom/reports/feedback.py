"""A page for one student: the verdict of each exercise, rung by rung, the points, and why.

What it may say of a failing check is decided in `marks.told`.
"""

from collections.abc import Iterator, Mapping

from course_utils.classroom.marks.align import laid_out, was_read
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import (
    DAMAGED,
    FAILED,
    HELD,
    INSIDE,
    PASSED,
    Record,
    Result,
)
from course_utils.classroom.marks.text import number, plural
from course_utils.classroom.marks.told import told

from .page import page
from .sections import Section
from .wording import CLASSES, MARKS

NOT_REACHED = "not reached"


def as_html(plan: Plan, record: Record, sections: Mapping[str, Section] | None = None) -> str:
    """The student's page. sections: where in the book each exercise is, by key."""
    record = laid_out(plan, record)
    given = {
        "plan": plan,
        "record": record,
        "sections": sections or {},
        "read": was_read(record),
        "damaged": record.status == DAMAGED,
        "headline": headline,
        "earned": earned,
        "told": told,
        "climbed": climbed,
        "counted_inside": counted_inside,
        "PASSED": PASSED,
        "FAILED": FAILED,
        "NOT_REACHED": NOT_REACHED,
        "weaker": any(map(counted_inside, record.results)),
    }
    return page("feedback.html", f"Feedback: {plan.title}", given)


def headline(result: Result) -> str:
    """The outcome with its counts, in words."""
    if result.decided:
        return "decided by your instructor"
    if result.outcome == PASSED:
        return f"passed · {plural(result.checks, 'check')}"
    if result.outcome == FAILED:
        names = [rung.name for rung in result.rungs]
        counts = f"{result.passed_checks} of {plural(result.checks, 'check')} passed"
        if result.failed_rung in names:
            place = names.index(str(result.failed_rung)) + 1
            return f"failed at rung {place} of {len(names)}, {result.failed_rung} · {counts}"
        where = f" at {result.failed_rung}" if result.failed_rung else ""
        return f"failed{where} · {counts}"
    if result.outcome == HELD:
        return "held: somebody has to look at it"
    return result.outcome


def earned(result: Result) -> str:
    """The points, as a sentence."""
    said = f"{number(result.points)} of {number(result.max_points)} points"
    if 0 < result.points < result.max_points and not result.decided:
        return said + ", for what passed below the rung that failed, and on it."
    return said + "."


def climbed(result: Result) -> Iterator[tuple[object, str, str, str]]:
    """Each rung with how it was left, the sign of that, and its CSS class."""
    for rung in result.rungs:
        if rung.total and rung.passed == rung.total:
            yield rung, PASSED, MARKS[PASSED], CLASSES[PASSED]
        elif rung.name == result.failed_rung:
            yield rung, FAILED, MARKS[FAILED], CLASSES[FAILED]
        else:
            yield rung, NOT_REACHED, "○", "waiting"


def counted_inside(result: Result) -> bool:
    """Was a contract counted by code beside the answer: the weaker guarantee?"""
    return result.guarantee == INSIDE and result.outcome in (PASSED, FAILED)
