"""What a probe leaves to the judge: comparisons and statistics of the values that it reports.

A probe runs beside the student's code, which could replace what compares. So it hands over the values:

    seen["the weight is as before"] = unchanged(before, layer.weight.detach())

`unchanged` is postponed: what it returns here crosses as its name and its arguments, and is worked out
where the report is judged. What is handed over must not change any more: clone it if it may.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from course_utils.grading.pytrees.tree import Later, Tree, same

_KNOWN: dict[str, Callable[..., Any]] = {}


class Entries(dict[str, Any]):
    """Several things seen in place of one: their labels follow that of the one."""


ABSENT = Entries()


def later(work: Callable[..., Any]) -> Callable[..., Later]:
    """Decorates a top-level function of values: a call of it in a probe is made by the judge."""
    what = f"{work.__module__}.{work.__qualname__}"
    _KNOWN[what] = work

    @wraps(work)
    def postponed(*values: Tree) -> Later:
        return Later(what, values)

    return postponed


def worked_out(report: dict[str, Any]) -> dict[str, Any]:
    """The report with what was left for later. It may be forged: raises whatever is raised then."""
    seen: dict[str, Any] = {}
    for label, value in report.items():
        if isinstance(value, Later):
            value = _KNOWN[value.what](*value.values)
        if isinstance(value, Entries):
            seen |= {label + more: one for more, one in value.items()}
        else:
            seen[label] = value
    return seen


@later
def unchanged(was: Tree, now: Tree) -> bool:
    """Is it bit for bit what it was?"""
    return same(was, now)


@later
def if_changed(was: Tree, now: Tree) -> Tree:
    """What it is now, if it is not what it was."""
    return ABSENT if same(was, now) else now


@later
def other_than(one: Tree, another: Tree) -> bool:
    """Do two values differ?"""
    return not same(one, another)
