"""What several pages say in the same words."""

from html import escape

from course_utils.classroom.marks.marking import WORTH
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import FAILED, MISSING, NOT_ATTEMPTED, PASSED
from course_utils.classroom.marks.text import number, plural

MARKS = {PASSED: "✓", FAILED: "✗", NOT_ATTEMPTED: "○", MISSING: "–"}
CLASSES = {PASSED: "passed", FAILED: "failed", NOT_ATTEMPTED: "waiting", MISSING: "gone"}


def clock(when: object) -> str:
    return escape(f"{when:%Y-%m-%d %H:%M %Z}".strip())


def policy(plan: Plan) -> str:
    late = plan.late
    closes = late.closes_after_days
    end = f"; after {plural(closes, 'day')} nothing counts" if closes is not None else ""
    if not late.per_day:
        return end
    said = f": {number(100 * late.per_day)}\u202f% for each day begun"
    said += f" after {plural(late.grace_minutes, 'minute')} of grace" if late.grace_minutes else ""
    return said + (f", {number(100 * late.most)}\u202f% at most" if late.most < 1 else "") + end


def rule() -> str:
    """How an exercise's points are shared out, in words."""
    parts = [f"{name} {worth}" for name, worth in WORTH.items()]
    return (
        f"Of an exercise's points the parts are: {', '.join(parts[:-1])} and {parts[-1]}, as far as it has these "
        "rungs. A rung counts only if every rung below it was passed; the one that failed earns what it passed "
        "beyond one half, of contracts each one that was kept."
    )
