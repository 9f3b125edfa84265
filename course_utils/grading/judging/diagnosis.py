"""Which one of the known mistakes explains all that a student's answer did."""

from typing import Any

from course_utils.grading.comparing.check import Check, Expectation
from course_utils.grading.comparing.costs import complaint_of, wrong_there
from course_utils.grading.comparing.observations import differs
from course_utils.grading.declaring.exercise import CONTRACTS, Mistake
from course_utils.grading.driving import errors as raising

from .ladder import Ladder


def diagnose(ladder: Ladder) -> str | None:
    """The explanation of the one known mistake that gives the student's results everywhere."""
    if ladder.rungs and ladder.rungs[-1].name == CONTRACTS:
        return only(mistake.says for mistake in cost_mistakes_like(ladder))
    if not ladder.observations or not ladder.failure or ladder.failure.case is None:
        return None
    for check in ladder.checks:  # the more cases, the fewer mistakes can look alike
        ladder.observation(check)
    return only(
        mistake.says
        for mistake in ladder.exercise.mistakes
        if not mistake.cost and looks_like(ladder, mistake)
    )


def only(found: Any) -> str | None:
    items = list(found)
    return items[0] if len(items) == 1 else None


def looks_like(ladder: Ladder, mistake: Mistake) -> bool:
    """Does this mistake give the student's observation in every case that ran?"""
    for check in ladder.checks:
        got = ladder.observations.get(id(check))
        if got is None:
            continue
        if got.raised and got.raised.kind == raising.INTERRUPTED:
            return False
        theirs = ladder.expectations.mistaken(mistake, check, ladder.answer.here)
        as_expected = Check(check.case, Expectation(theirs, None, check.expected.length))
        if differs(got, as_expected):
            return False
    return True


def cost_mistakes_like(ladder: Ladder) -> list[Mistake]:
    """The known mistakes that break the same contracts as the student's code, in the same way."""
    exercise, expectations = ladder.exercise, ladder.expectations
    each = list(zip(exercise.contracts, ladder.runs, strict=True))
    if any(wrong_there(contract, runs, expectations.due(contract)) for contract, runs in each):
        return []
    complaints = [complaint_of(contract, runs) for contract, runs in each]
    mine = [complaint.kind if complaint else None for complaint in complaints]
    return [m for m in exercise.mistakes if m.cost and expectations.broken_by(m) == mine]
