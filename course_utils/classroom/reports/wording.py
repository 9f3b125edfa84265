"""What several pages say in the same words, as plain text."""

from collections.abc import Sequence
from datetime import datetime

from course_utils.classroom.marks.marking import WORTH
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import FAILED, HELD, MISSING, NOT_ATTEMPTED, PASSED
from course_utils.classroom.marks.text import number, plural

MARKS = {PASSED: "✓", FAILED: "✗", NOT_ATTEMPTED: "○", MISSING: "–", HELD: "?"}
"""The sign of each outcome."""
CLASSES = {
    PASSED: "passed",
    FAILED: "failed",
    NOT_ATTEMPTED: "waiting",
    MISSING: "gone",
    HELD: "waiting",
}
"""The CSS class of each outcome."""


def clock(when: datetime) -> str:
    """A date and a time, with its zone if it has one."""
    return f"{when:%Y-%m-%d %H:%M %Z}".strip()


def percent(share: float) -> str:
    """A share in whole per cent."""
    return f"{100 * share:.0f}\u202f%"


def exact_percent(share: float) -> str:
    """A share in per cent with the decimals that it has, two at most."""
    return f"{number(100 * share)}\u202f%"


def policy(plan: Plan) -> str:
    """What being late costs, as the end of a sentence."""
    late = plan.late
    closes = late.closes_after_days
    end = f"; after {plural(closes, 'day')} nothing counts" if closes is not None else ""
    if not late.per_day:
        return end
    said = f": {exact_percent(late.per_day)} for each day begun"
    said += f" after {plural(late.grace_minutes, 'minute')} of grace" if late.grace_minutes else ""
    return said + (f", {exact_percent(late.most)} at most" if late.most < 1 else "") + end


def rule() -> str:
    """How an exercise's points are shared out, in words."""
    parts = [f"{name} {worth}" for name, worth in WORTH.items()]
    return (
        f"Of an exercise's points the parts are: {', '.join(parts[:-1])} and {parts[-1]}, as far as it has these "
        "rungs. A rung counts only if every rung below it was passed; the one that failed earns what it passed "
        "beyond one half, of contracts each one that was kept."
    )


def span_of(bins: Sequence[tuple[float, float, int]], i: int) -> str:
    """The points that a bin of a histogram holds. bins: (from, to, how many)."""
    low, high, _ = bins[i]
    below = "" if i == len(bins) - 1 else "below "
    return f"{number(low)} to {below}{number(high)}"
