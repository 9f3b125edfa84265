"""From a verdict to points: how much of an exercise's worth the climbed rungs of its ladder earn.

The rule, for an exercise whose ladder holds the rungs of `WORTH` that it declares checks for:

- Signature, shape, dtype, device and the cases worked by hand earn nothing by themselves: a student
  sees them, so an answer that only knows them is no answer.
- Random cases are worth 6 parts, gradients 2, edge cases 2 and contracts 2; the parts of the rungs that
  the exercise has make up all of its points. (If it has none of them, what was worked by hand is all.)
- A rung counts only if every rung below it was passed, so a promise kept by a wrong result is worth
  nothing. A passed rung earns all of its parts.
- The rung that failed earns what it passed beyond one half, so that guessing between two answers earns
  nothing: of 40 random cases, 39 earn 95 % of the rung, 30 earn 50 %, 20 earn nothing. Contracts are
  each a promise of its own: one of two that is kept earns one half.
- An exercise that passed earns all of its points; any other earns less than all of them.
"""

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from course_utils.grading.declaring.exercise import CONTRACTS, Exercise
from course_utils.grading.driving.case import BY_HAND, EDGE, GRADIENTS, RANDOM
from course_utils.grading.judging.ladder import SIGNATURE
from course_utils.grading.judging.verdict import Failure, Verdict

from .plan import Item
from .record import DATA, FAILED, HELD, INSIDE, MISSING, NOT_ATTEMPTED, PASSED, Result, Rung

WORTH = {RANDOM: 6, GRADIENTS: 2, EDGE: 2, CONTRACTS: 2}
DEFINITION = "definition"  # the rung on which an answer fails that cannot even be defined
SERIES = 4


def seed_of(secret: bytes, student: str, key: str) -> int:
    """The seed of a student's random cases: the same whenever and wherever the run is repeated.

    HMAC-SHA256 of the run's secret. Of each exercise a run draws `SERIES` series of cases, and the
    secret says which one is whose: what is expected of a series is worked out once, not once a
    student, and nobody without the secret can tell any of them.
    """
    series = _digest(secret, "series", student, key)[0] % SERIES
    return int.from_bytes(_digest(secret, "cases", str(series), key)[:6], "big")


def _digest(secret: bytes, *texts: str) -> bytes:
    message = b"".join(len(b).to_bytes(4, "big") + b for b in (t.encode() for t in texts))
    return hmac.digest(secret, message, hashlib.sha256)


def share(sizes: Mapping[str, int], passed: Mapping[str, int]) -> float:
    """Which part of its points an exercise earns, from 0 to 1. sizes, passed: checks by rung.

    sizes: of the whole ladder, in its order. passed: a rung that was not reached is absent.
    """
    parts = {rung: WORTH[rung] for rung in sizes if rung in WORTH} or {BY_HAND: 1}
    earned = 0.0
    for rung, size in sizes.items():
        got = passed.get(rung, 0)
        if got < size:
            kept = got / size if rung == CONTRACTS else max(0.0, 2 * got / size - 1)
            earned += parts.get(rung, 0) * kept
            break
        earned += parts.get(rung, 0)
    return earned / sum(parts.values())


def points(
    item: Item, sizes: Mapping[str, int], passed: Mapping[str, int], all_passed: bool
) -> float:
    """In hundredths. What did not pass is rounded down, and is worth less than what did."""
    if all_passed:
        return item.points
    part = math.floor(100 * item.points * share(sizes, passed) + 1e-9) / 100
    return min(part, max(0.0, round(item.points - 0.01, 2)))


def result_of(
    item: Item,
    exercise: Exercise,
    verdict: Verdict,
    sizes: Mapping[str, int],
    notes: tuple[str, ...] = (),
) -> Result:
    """What a verdict is worth. sizes: how many checks each rung of this ladder holds."""
    all_passed = verdict.outcome == PASSED
    passed = {rung.name: rung.passed for rung in verdict.rungs}
    failure = verdict.failure
    return Result(
        item.key,
        PASSED if all_passed else FAILED,
        points(item, sizes, passed, all_passed),
        item.points,
        rungs=tuple(Rung(name, passed.get(name, 0), size) for name, size in sizes.items()),
        failed_rung=None if all_passed else _failed_rung(verdict),
        sentence=_clean(failure.sentence) if failure else _clean(verdict.reason),
        called=_clean(failure.called) if failure else "",
        hand=bool(failure and _is_no_secret(failure)),
        diagnosis=verdict.diagnosis,
        guarantee=INSIDE if exercise.contracts else DATA,
        seconds=round(verdict.seconds, 4),
        notes=notes,
    )


def _is_no_secret(failure: Failure) -> bool:
    """Was it a call that was worked by hand, or no call at all: parameters that were not asked for?"""
    if failure.case:
        return failure.case.rung == BY_HAND
    return failure.rung == SIGNATURE and failure.got is None


def held(result: Result, doubts: Sequence[str]) -> Result:
    """A result that is held for these reasons, if there are any and it would earn something."""
    if not doubts or not result.points:
        return result
    said = tuple(map(_clean, doubts))
    return replace(result, outcome=HELD, points=0.0, held=said, worth=result.points)


def decided(result: Result, points: float, when: datetime) -> Result:
    """A held result after somebody's decision. Raises ValueError for one that was never held, or for
    points that the exercise does not have."""
    if not result.held:
        raise ValueError(f"{result.key} was not held: there is nothing to decide")
    if not 0 <= points <= result.max_points:
        most = f"{result.max_points:g}"
        raise ValueError(f"{result.key} is worth 0 to {most} points; came {points:g}")
    outcome = PASSED if points == result.max_points else FAILED
    said = when.isoformat(timespec="seconds")
    return replace(result, outcome=outcome, points=points, decided=said)


def _failed_rung(verdict: Verdict) -> str:
    """The first rung that is not whole; DEFINITION where there was nothing to climb with."""
    return verdict.failed_rung or next(
        (name for name in verdict.rung_names[len(verdict.rungs) :]), DEFINITION
    )


def without_answer(
    item: Item, outcome: str, sizes: Mapping[str, int], sentence: str = "", **more: Any
) -> Result:
    """The result of an exercise of which no check ran: the stub, nothing at all, or no Python."""
    if outcome not in (FAILED, NOT_ATTEMPTED, MISSING):
        raise ValueError(f"{item.key}: no answer can be {outcome!r} without a check")
    rungs = tuple(Rung(name, 0, size) for name, size in sizes.items())
    rung = DEFINITION if outcome == FAILED else None
    return Result(
        item.key, outcome, 0.0, item.points, rungs, rung, _clean(sentence), **{"hand": True, **more}
    )


def _clean(text: str) -> str:
    """Text that can be written as UTF-8, of a student's making or not."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "�")
