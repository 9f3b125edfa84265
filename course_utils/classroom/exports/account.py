"""What a student may read of a submission on another platform, in plain text.

It is what the feedback page holds: a check that was not worked by hand is named by its rung alone.
"""

from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record, Result
from course_utils.classroom.marks.text import number, visible
from course_utils.classroom.marks.told import told


def summary(plan: Plan, record: Record) -> str:
    """What concerns the whole submission, in plain text."""
    lines = [f"{number(record.points)} of {number(plan.points)} points"]
    if record.penalty:
        lost = number(100 * record.penalty)
        lines.append(f"Late: {lost} % of {number(record.raw_points)} points were lost.")
    if record.problem:
        lines.append(f"{record.status.capitalize()}: {visible(record.problem)}")
    if held := ", ".join(result.key for result in record.held):
        lines.append(f"Held, and 0 points until somebody has decided: {held}.")
    return "\n".join(lines)


def account(result: Result) -> str:
    """What a student may read about one exercise, in plain text."""
    return "\n".join(visible(part.text, 2000) for part in told(result))
