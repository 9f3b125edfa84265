"""One submission's result as GitHub Classroom reads it.

The JSON, as base64, that a step hands to classroom-resources/autograding-grading-reporter; its points are
the sum of `tests[].score` (`src/notify-classroom.js`, commit 1549b90). It is shown to the student: see
`account`.
"""

import base64
import json
from typing import Any

from course_utils.classroom.marks.align import laid_out
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import (
    DAMAGED,
    FAILED,
    HELD,
    MISSING,
    NOT_ATTEMPTED,
    PASSED,
    Record,
)
from course_utils.classroom.marks.text import line

from .account import account, summary

STATUS = {PASSED: "pass", FAILED: "fail", NOT_ATTEMPTED: "fail", MISSING: "fail", HELD: "fail"}


def classroom(plan: Plan, record: Record) -> dict[str, Any]:
    """The result as GitHub Classroom's reporter reads it; what late costs is a test of negative score."""
    record = laid_out(plan, record)
    tests, total = [], 0.0
    for result in record.results:  # each in hundredths, and so is their sum
        before, total = total, total + result.points
        score = round(total, 2) - round(before, 2)
        name, said = result.key, account(result)
        tests.append(_classroom_test(name, STATUS[result.outcome], score, said, result.seconds))
    if record.penalty:
        lost = record.points - round(total, 2)
        tests.append(_classroom_test("late submission", "fail", lost, summary(plan, record), 0.0))
    right = all(result.outcome == PASSED for result in record.results) and not record.penalty
    status = "error" if record.status == DAMAGED else "pass" if right else "fail"
    return {"version": 1, "status": status, "max_score": plan.points, "tests": tests}


def _classroom_test(
    name: str, status: str, score: float, message: str, seconds: float
) -> dict[str, Any]:
    return {
        "name": line(name),
        "status": status,
        "score": round(score, 2),
        "message": message,
        "test_code": "",
        "filename": "",
        "line_no": 0,
        "duration": round(seconds, 3),
    }


def classroom_base64(plan: Plan, record: Record) -> str:
    """What the step prints as its `result`."""
    text = json.dumps(classroom(plan, record), ensure_ascii=True)
    return base64.b64encode(text.encode()).decode()
