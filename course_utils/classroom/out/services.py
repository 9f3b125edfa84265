"""One submission's result as Gradescope and GitHub Classroom read it.

Both show what is here to the student, so both hold what the feedback page holds: a check that was not
worked by hand is named by its rung alone.

Gradescope: `results.json` as https://gradescope-autograders.readthedocs.io/en/latest/specs/ gives it.
GitHub Classroom: the JSON, as base64, that a step hands to classroom-resources/autograding-grading-reporter;
its points are the sum of `tests[].score` (`src/notify-classroom.js`, commit 1549b90).
"""

import base64
import json
import math
from typing import Any

from ..plan import Plan
from ..record import DAMAGED, FAILED, MISSING, NOT_ATTEMPTED, PASSED, Record, Result
from .align import laid_out
from .feedback import told
from .text import line, number, visible

PASS, FAIL = "passed", "failed"
VISIBILITIES = ("hidden", "after_due_date", "after_published", "visible")
FORMATS = ("text", "html", "simple_format", "md", "ansi")
TEST_FIELDS: dict[str, Any] = {
    "score": (int, float),
    "max_score": (int, float),
    "status": (PASS, FAIL),
    "name": str,
    "name_format": FORMATS,
    "number": str,
    "output": str,
    "output_format": FORMATS,
    "tags": list,
    "visibility": VISIBILITIES,
    "extra_data": dict,
}
TOP_FIELDS: dict[str, Any] = {
    "score": (int, float),
    "execution_time": (int, float),
    "output": str,
    "output_format": FORMATS,
    "test_output_format": FORMATS,
    "test_name_format": FORMATS,
    "visibility": VISIBILITIES,
    "stdout_visibility": VISIBILITIES,
    "extra_data": dict,
    "tests": list,
    "leaderboard": list,
}


def gradescope(plan: Plan, record: Record, visibility: str = "visible") -> dict[str, Any]:
    """results.json of one submission, checked field by field.

    The total is after what late costs; the tests' scores are before. visibility: of every test.
    """
    record = laid_out(plan, record)
    results = {
        "score": record.points,
        "execution_time": round(record.seconds, 3),
        "output": summary(plan, record),
        "output_format": "text",
        "stdout_visibility": "hidden",
        "tests": [
            gradescope_test(number_, result, visibility)
            for number_, result in enumerate(record.results, 1)
        ],
    }
    problems = gradescope_problems(results)
    if problems:
        raise ValueError("not a results.json: " + "; ".join(problems))
    return results


def gradescope_test(place: int, result: Result, visibility: str) -> dict[str, Any]:
    return {
        "name": result.key,
        "name_format": "text",
        "number": str(place),
        "score": round(result.points, 6),
        "max_score": result.max_points,
        "status": PASS if result.outcome == PASSED else FAIL,
        "output": account(result),
        "output_format": "text",
        "visibility": visibility,
    }


def summary(plan: Plan, record: Record) -> str:
    """What concerns the whole submission, in plain text."""
    lines = [f"{number(record.points)} of {number(plan.points)} points"]
    if record.penalty:
        lost = number(100 * record.penalty)
        lines.append(f"Late: {lost} % of {number(record.raw_points)} points were lost.")
    if record.problem:
        lines.append(f"{record.status.capitalize()}: {visible(record.problem)}")
    return "\n".join(lines)


def account(result: Result) -> str:
    """What a student may read about one exercise, in plain text."""
    return "\n".join(visible(part.text, 2000) for part in told(result))


def gradescope_problems(results: dict[str, Any]) -> list[str]:
    """What Gradescope's specification would not accept, in words."""
    problems = wrong_fields("the results", results, TOP_FIELDS)
    tests = results.get("tests", [])
    if "score" not in results and not (tests and all("score" in test for test in tests)):
        problems.append("neither a total score nor one for every test")
    for i, test in enumerate(tests, 1):
        problems += wrong_fields(f"test {i}", test, TEST_FIELDS)
        if not 0 <= test.get("score", 0) <= test.get("max_score", math.inf):
            problems.append(f"test {i}: a score of {test.get('score')} of {test.get('max_score')}")
    return problems


def wrong_fields(what: str, given: dict[str, Any], fields: dict[str, Any]) -> list[str]:
    problems = [f"{what}: unknown field {name!r}" for name in given if name not in fields]
    for name, value in given.items():
        kind = fields.get(name, object)
        if isinstance(kind, tuple) and isinstance(kind[0], str):
            fine = value in kind
        else:
            fine = isinstance(value, kind) and not isinstance(value, bool)
        if isinstance(value, float) and not math.isfinite(value):
            fine = False
        if not fine:
            problems.append(f"{what}: {name} cannot be {value!r}")
    return problems


# ---------------------------------------------------------------------------------- Classroom

STATUS = {PASSED: "pass", FAILED: "fail", NOT_ATTEMPTED: "fail", MISSING: "fail"}


def classroom(plan: Plan, record: Record) -> dict[str, Any]:
    """The result as GitHub Classroom's reporter reads it; what late costs is a test of negative score."""
    record = laid_out(plan, record)
    tests, total = [], 0.0
    for result in record.results:  # each in hundredths, and so is their sum
        before, total = total, total + result.points
        score = round(total, 2) - round(before, 2)
        name, said = result.key, account(result)
        tests.append(classroom_test(name, STATUS[result.outcome], score, said, result.seconds))
    if record.penalty:
        lost = record.points - round(total, 2)
        tests.append(classroom_test("late submission", "fail", lost, summary(plan, record), 0.0))
    right = all(result.outcome == PASSED for result in record.results) and not record.penalty
    status = "error" if record.status == DAMAGED else "pass" if right else "fail"
    return {"version": 1, "status": status, "max_score": plan.points, "tests": tests}


def classroom_test(
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
