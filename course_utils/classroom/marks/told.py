"""What a student may be told of a result.

What must not be given away: the values of cases that are drawn at random, or kept back. A failing check
that was worked by hand shows its call and what came of it; any other is named by its rung, with a
sentence that is the same for everybody, and its notes are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from course_utils.grading.declaring.exercise import CONTRACTS
from course_utils.grading.driving.case import BY_HAND, EDGE, GRADIENTS, RANDOM
from course_utils.grading.judging.ladder import SIGNATURE, TYPES

from .marking import DEFINITION
from .record import FAILED, HELD, MISSING, NOT_ATTEMPTED, Result
from .text import number

GENERAL = {
    SIGNATURE: "The parameters, or the kind or shape of what your code returns, are not those that the "
    "exercise asks for.",
    TYPES: "The dtype or the device of what your code returns is not that of the book's version.",
    BY_HAND: "A call that was worked by hand gives another result.",
    RANDOM: "On calls drawn at random your result is not the book's. These calls are not shown: work a "
    "small one of your own by hand, and compare.",
    GRADIENTS: "The values are right, but the gradients through your code are not.",
    EDGE: "An edge case is wrong: think of what is empty, of size one, non-contiguous, negative, very "
    "large, or NaN where the exercise allows it.",
    CONTRACTS: "The results are right, but what they cost is not what the exercise asks for: read its "
    "text again for what must be a view, left unchanged, or never built.",
}

OTHERWISE = "Your answer could not be checked to the end."
UNTOUCHED = "The cell is the stub as it was handed out."
WAITING = (
    "Held: something in this answer, or in one above it, reaches for the code that checks it. It "
    "scores 0 until your instructor has looked at it and decided."
)
ABSENT = (
    'There is no such cell in what was graded: an answer is found by its line `@exercise("…")`.'
)


@dataclass(frozen=True)
class Part:
    """role: sentence, code or diagnosis. text: plain, not escaped."""

    role: str
    text: str


def told(result: Result) -> Iterator[Part]:
    """What a student may read of a result besides its counts."""
    if result.outcome == NOT_ATTEMPTED:
        yield Part("sentence", UNTOUCHED)
    elif result.outcome == MISSING:
        yield Part("sentence", ABSENT)
    elif result.outcome == HELD:
        yield Part("sentence", WAITING)
        for line in result.held:
            yield Part("code", line)
    elif result.decided:
        earned = f"{number(result.points)} of {number(result.max_points)} points"
        yield Part("sentence", f"Your instructor has looked at this answer: {earned}.")
    elif result.outcome == FAILED:
        yield from _failure(result)
    if result.diagnosis:
        yield Part("diagnosis", result.diagnosis)
    if result.outcome != FAILED or _may_see(result):
        for note in result.notes:
            yield Part("sentence", note)


def _may_see(result: Result) -> bool:
    """Was the failing check worked by hand, or was it about no call at all: a definition that cannot
    be run, parameters that are not those that were asked for?"""
    return result.hand or result.failed_rung == DEFINITION


def _failure(result: Result) -> Iterator[Part]:
    if not _may_see(result):
        yield Part("sentence", GENERAL.get(str(result.failed_rung), OTHERWISE))
        return
    if result.called:
        yield Part("code", result.called)
    yield Part("sentence", result.sentence or GENERAL.get(str(result.failed_rung), OTHERWISE))
