"""One submission's result as Gradescope reads it.

`results.json` as https://gradescope-autograders.readthedocs.io/en/latest/specs/ gives it. Gradescope shows
it to the student, so it holds what the feedback page holds: see `account`.
"""

import math
from typing import Any

from course_utils.classroom.marks.align import laid_out
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import HELD, PASSED, Record, Result

from .account import account, summary

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
            _gradescope_test(number_, result, visibility)
            for number_, result in enumerate(record.results, 1)
        ],
    }
    problems = gradescope_problems(results)
    if problems:
        raise ValueError("not a results.json: " + "; ".join(problems))
    return results


def _gradescope_test(place: int, result: Result, visibility: str) -> dict[str, Any]:
    return {
        "name": f"{result.key} (held)" if result.outcome == HELD else result.key,
        "name_format": "text",
        "number": str(place),
        "score": round(result.points, 6),
        "max_score": result.max_points,
        "status": PASS if result.outcome == PASSED else FAIL,
        "output": account(result),
        "output_format": "text",
        "visibility": visibility,
    }


def gradescope_problems(results: dict[str, Any]) -> list[str]:
    """What Gradescope's specification would not accept, in words."""
    problems = _wrong_fields("the results", results, TOP_FIELDS)
    tests = results.get("tests", [])
    if "score" not in results and not (tests and all("score" in test for test in tests)):
        problems.append("neither a total score nor one for every test")
    for i, test in enumerate(tests, 1):
        problems += _wrong_fields(f"test {i}", test, TEST_FIELDS)
        if not 0 <= test.get("score", 0) <= test.get("max_score", math.inf):
            problems.append(f"test {i}: a score of {test.get('score')} of {test.get('max_score')}")
    return problems


def _wrong_fields(what: str, given: dict[str, Any], fields: dict[str, Any]) -> list[str]:
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
