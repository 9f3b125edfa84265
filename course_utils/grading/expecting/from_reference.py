"""What is expected: what an exercise's probe sees on the reference, case by case."""

from dataclasses import replace
from typing import Any

import torch

from course_utils.grading.comparing.check import Check, Expectation
from course_utils.grading.comparing.costs import broken
from course_utils.grading.comparing.observations import differs
from course_utils.grading.comparing.trees import compare
from course_utils.grading.declaring.exercise import Exercise, Mistake
from course_utils.grading.driving.case import BY_HAND, EDGE, Case
from course_utils.grading.driving.contract import Complaint, Contract
from course_utils.grading.driving.labels import on_rank
from course_utils.grading.observing.global_state import quiet, seed
from course_utils.grading.observing.observe import Observation, observe
from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.strict import loads
from course_utils.grading.pytrees.tree import is_plain_tensor, leaves, outline, same, tensors

from .recent import Recent


class NoChecks(RuntimeError):
    """An exercise without a single check cannot judge anything."""


class FromReference:
    """What an exercise's probe sees on the reference, and on the mistakes, when it is first asked for."""

    has_answer = True

    def __init__(self, exercise: Exercise) -> None:
        self.exercise = exercise

    def checks(self, seed: int = 0) -> list[Check]:
        """Raises NoChecks if there is no case."""
        exercise = self.exercise

        def make() -> list[Check]:
            with quiet():
                cases = exercise.all_cases(seed)
            if not cases:
                raise NoChecks(f"{exercise.key} declares no case: it could pass anything")
            earlier = _fixed.get((exercise,), list)
            checks = [fixed(earlier, case) or Check(case, expect(exercise, case)) for case in cases]
            earlier[:] = [check for check in checks if check.case.rung in (BY_HAND, EDGE)]
            return checks

        found: list[Check] = _checks.get((exercise,), make, exercise.key, seed)
        return found

    def due(self, contract: Contract) -> list[Expectation | None]:
        """None where more than a call is measured, and where the result is random or no data."""

        def make() -> list[Expectation | None]:
            return [_result_due(self.exercise, contract, case) for case in contract.cases]

        found: list[Expectation | None] = _due.get((self.exercise, contract), make)
        return found

    def suits_by_name(self, check: Check) -> bool:
        """It does not where the probe itself drives the object by position."""
        exercise = self.exercise
        subject, by_name = exercise.reference_subject, exercise.by_name(check.case)
        return not differs(observe(exercise.probe, subject, by_name, exercise.limit_s), check)

    def mistaken(self, mistake: Mistake, check: Check, here: bool = True) -> Observation:
        """Kept, since every failing answer asks for it."""
        exercise = self.exercise

        def make() -> Observation:
            found = observe(exercise.probe, mistake.subject, check.case, exercise.limit_s)
            return found if here else _crossed(found)

        found: Observation = _mistaken.get((mistake, check), make, here)
        return found

    def broken_by(self, mistake: Mistake) -> list[Complaint | None]:
        contracts, limit = self.exercise.contracts, self.exercise.limit_s
        return [broken(contract, mistake.subject, limit) for contract in contracts]


_checks = Recent(size=64)
_fixed = Recent(size=256)  # by exercise, the checks that no seed changes
_due = Recent(size=256)
_mistaken = Recent(size=2000)


def remember(size: int) -> None:
    """Keep the checks of at least so many exercises, each seed counted: a class is graded with a few."""
    _checks.size = max(_checks.size, size)


def fixed(earlier: list[Check], case: Case) -> Check | None:
    """The check of another seed for the very same case, if it is one worked by hand or on the edge."""
    for check in earlier:
        if check.case.rung == case.rung and check.case.why == case.why and _alike(check.case, case):
            return check
    return None


def _alike(a: Case, b: Case) -> bool:
    try:
        return same((a.given, a.grad), (b.given, b.grad)) and (_outlines(a) == _outlines(b))
    except Exception:  # a value that does not compare
        return False


def _outlines(case: Case) -> list[tuple[object, ...]]:
    return [outline(x) for x in tensors(case.given) if is_plain_tensor(x)]


_PATIENCE = 10
"""How many times the limit of an answer the reference may take: on a busy machine it is slow, and right."""


def expect(exercise: Exercise, case: Case, probe: Any = None) -> Expectation:
    """What the probe, by default the exercise's, sees on the reference.

    Raises RuntimeError if it sees what no reference may do: a deadlock that all share is no answer.
    """
    probe = probe or exercise.probe
    subject, limit_s = exercise.reference_subject, _PATIENCE * exercise.limit_s
    observation = observe(probe, subject, case, limit_s)
    if observation.raised and observation.raised.never:
        raise RuntimeError(f"{exercise.key}: the reference: {observation.raised.message}")
    if case.has_expected and case.rung == BY_HAND:
        _agree_by_hand(exercise, case, observation)
    oracle = None
    if any(leaf.is_floating_point() for leaf in tensors(observation.seen or {})):
        oracle = observe(probe, subject, case.upcast(), limit_s).seen
    return Expectation(observation, oracle, _length_of(exercise, case))


def _agree_by_hand(exercise: Exercise, case: Case, observation: Observation) -> None:
    """The reference must give what was worked by hand: the result, or a dict of what the probe sees."""
    seen = observation.seen or {}
    if case.world and not isinstance(case.expected, dict):
        _agree_on_ranks(exercise, case, observation)
        return
    by_name = isinstance(case.expected, dict) and "result" not in seen
    for label, value in (case.expected if by_name else {"result": case.expected}).items():
        if label not in seen:
            sees = ", ".join(map(repr, seen)) or repr(observation.raised)
            raise AssertionError(f"{exercise.key}: no {label!r} to compare by hand; seen: {sees}")
        wrong = compare(seen[label], value, length=_length_of(exercise, case))
        if wrong:
            raise AssertionError(
                f"{exercise.key}: the reference disagrees with the case worked by hand: "
                f"{label}: {wrong.sentence}"
            )


def _agree_on_ranks(exercise: Exercise, case: Case, observation: Observation) -> None:
    """By hand, a case on ranks has a list of results, one for each."""
    by_rank = list(case.expected)
    assert len(by_rank) == case.world, (
        f"{exercise.key}: {len(by_rank)} results by hand for {case.world} ranks"
    )
    labelled = {on_rank(rank, "result"): value for rank, value in enumerate(by_rank)}
    _agree_by_hand(exercise, replace(case, expected=labelled), observation)


def _length_of(exercise: Exercise, case: Case) -> int:
    if exercise.length:
        return exercise.length(case)
    given = tensors(case.given)
    return max((size for x in given for size in x.shape), default=1) * max(case.world, 1)


def _result_due(exercise: Exercise, contract: Contract, case: Case) -> Expectation | None:
    if contract.probe:
        return expect(exercise, case, contract.probe)
    if contract.prepare or len(exercise.parts) > 1 or exercise.is_class:
        return None

    def call(given: Case, number: int = 0) -> Any:
        with quiet():
            seed(number)
            ready = given.fresh()
            return exercise.reference(*ready.args, **ready.kwargs)

    result = call(case)
    if not any(isinstance(x, torch.Tensor | bool | int | float) for x in leaves(result)):
        return None
    if not same(result, call(case, 1)):
        return None
    oracle = {"result": call(case.upcast())} if tensors(result) else None
    return Expectation(Observation({"result": result}), oracle, _length_of(exercise, case))


def _crossed(found: Observation) -> Observation:
    try:
        return replace(found, seen=loads(dumps(found.seen)))
    except ValueError:  # too large to cross
        return found
