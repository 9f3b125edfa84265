"""From an exercise and a student's answer to a verdict."""

from time import perf_counter
from typing import Any

from course_utils.grading.comparing.costs import broken
from course_utils.grading.comparing.observations import differs
from course_utils.grading.declaring.exercise import CONTRACTS, Exercise
from course_utils.grading.driving.case import BY_HAND, EDGE, RANDOM
from course_utils.grading.expecting import checks_of
from course_utils.grading.expecting.from_reference import NoChecks
from course_utils.grading.observing import errors as raising
from course_utils.needs import lacking

from .answer import Answer, Here
from .diagnosis import diagnose
from .ladder import Ladder
from .outcomes import FAILED, INTERRUPTED, NOT_ATTEMPTED, PASSED, SKIPPED
from .verdict import Failure, Verdict


def grade(exercise: Exercise, *objects: Any, seed: int = 0, explain: bool = True) -> Verdict:
    """Judge a student's object (several for a pair). Raises nothing for what it does wrong.

    seed: of the random cases. explain: look for a known mistake behind a failure.
    Raises NoChecks if the exercise has no case: a verdict must never rest on zero checks.
    """
    return judge(exercise, Here(exercise, objects), seed, explain)


def judge(exercise: Exercise, answer: Answer, seed: int = 0, explain: bool = True) -> Verdict:
    """Judge an answer, wherever it lives: see `grade`."""
    start = perf_counter()
    if need := lacking(exercise.needs):
        how = f": {need.get}" if need.get else ""
        return Verdict(exercise.key, exercise.title, SKIPPED, reason=f"it needs {need.what}{how}")
    if answer.problem:
        failure = Failure("", answer.problem)
        return Verdict(exercise.key, exercise.title, FAILED, failure=failure)
    if not answer.attempted:
        return Verdict(exercise.key, exercise.title, NOT_ATTEMPTED, reason="it is still the stub")
    ladder = Ladder(exercise, answer, seed)
    ladder.climb()
    plan = ladder.plan()
    passed = all(rung.ok for rung in ladder.rungs) and len(ladder.rungs) == len(plan)
    outcome = PASSED if passed else FAILED
    stopped = ladder.stopped.raised if ladder.stopped else None
    if stopped and stopped.kind == raising.INTERRUPTED:
        outcome = INTERRUPTED
    diagnosis = diagnose(ladder) if outcome == FAILED and explain else None
    return Verdict(
        exercise.key,
        exercise.title,
        outcome,
        rungs=tuple(ladder.rungs),
        rung_names=tuple(plan),
        total=sum(plan.values()),
        failure=ladder.failure,
        diagnosis=diagnosis.says if diagnosis else None,
        sure=diagnosis is None or diagnosis.sure,
        seconds=perf_counter() - start,
    )


__all__ = [
    "BY_HAND",
    "CONTRACTS",
    "EDGE",
    "RANDOM",
    "NoChecks",
    "broken",
    "checks_of",
    "differs",
    "grade",
    "judge",
]
