"""Which one of the known mistakes explains all that a student's answer did."""

from dataclasses import replace
from typing import Any

from . import raised as raising
from .contracts import kind_of
from .differences import differs
from .exercise import CONTRACTS, Exercise, Mistake
from .expected import Check, Expectation
from .ladder import Ladder
from .measured import broken, complaint_of, wrong_there
from .observe import Observation, observe
from .recent import Recent
from .values import dumps, loads


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
        theirs = mistaken(ladder.exercise, mistake, check, ladder.answer.here)
        as_expected = Check(check.case, Expectation(theirs, None, check.expected.length))
        if differs(got, as_expected):
            return False
    return True


_mistaken = Recent(size=2000)


def mistaken(exercise: Exercise, mistake: Mistake, check: Check, here: bool = True) -> Observation:
    """What the probe sees on a known mistake; kept, since every failing answer asks for it.

    here: if not, as it is seen from another process.
    """
    if exercise.stored:
        return exercise.stored.mistaken(mistake, check)

    def make() -> Observation:
        found = observe(exercise.probe, mistake.subject, check.case, exercise.limit_s)
        return found if here else crossed(found)

    found: Observation = _mistaken.get((mistake, check), make, here)
    return found


def crossed(found: Observation) -> Observation:
    try:
        return replace(found, seen=loads(dumps(found.seen)))
    except ValueError:  # too large to cross
        return found


def cost_mistakes_like(ladder: Ladder) -> list[Mistake]:
    """The known mistakes that break the same contracts as the student's code, in the same way."""
    exercise = ladder.exercise
    each = list(zip(exercise.contracts, ladder.runs, strict=True))
    if any(wrong_there(exercise, contract, runs) for contract, runs in each):
        return []
    mine = [kind_of(complaint_of(contract, runs)) for contract, runs in each]
    return [m for m in exercise.mistakes if m.cost and broken_by(exercise, m) == mine]


def broken_by(exercise: Exercise, mistake: Mistake) -> list[str | None]:
    """For each contract, the kind of complaint that a known mistake earns, or None."""
    if exercise.stored:
        return exercise.stored.broken_by(mistake)
    limit = exercise.limit_s
    return [kind_of(broken(contract, mistake.subject, limit)) for contract in exercise.contracts]
