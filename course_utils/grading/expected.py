"""What is expected: what an exercise's probe sees on the reference, case by case."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from . import raised as raising
from .case import BY_HAND, EDGE, Case
from .compare import compare
from .contracts import Contract
from .exercise import Exercise
from .observe import Observation, observe
from .probes import Probe
from .recent import Recent
from .surroundings import quiet, seed
from .values import is_plain_tensor, leaves, outline, same, tensors


class NoChecks(RuntimeError):
    """An exercise without a single check cannot judge anything."""


@dataclass(frozen=True)
class Expectation:
    """What the probe sees on the reference; oracle: the same in float64; length: see compare."""

    observation: Observation
    oracle: dict[str, Any] | None
    length: int


@dataclass(frozen=True)
class Check:
    case: Case
    expected: Expectation


def checks_of(exercise: Exercise, seed: int = 0) -> list[Check]:
    """Every case of the exercise with what is expected of it. Raises NoChecks if there is none."""
    if exercise.stored:
        return exercise.stored.checks_with(seed)

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


_checks = Recent(size=64)


def remember(size: int) -> None:
    """Keep the checks of at least so many exercises, each seed counted: a class is graded with a few."""
    _checks.size = max(_checks.size, size)


_fixed = Recent(size=256)  # by exercise, the checks that no seed changes


def fixed(earlier: list[Check], case: Case) -> Check | None:
    """The check of another seed for the very same case, if it is one worked by hand or on the edge."""
    for check in earlier:
        if check.case.rung == case.rung and check.case.why == case.why and alike(check.case, case):
            return check
    return None


def alike(a: Case, b: Case) -> bool:
    try:
        return same((a.args, a.kwargs, a.grad), (b.args, b.kwargs, b.grad)) and (
            outlines(a) == outlines(b)
        )
    except Exception:  # a value that does not compare
        return False


def outlines(case: Case) -> list[tuple[object, ...]]:
    return [outline(x) for x in tensors((case.args, case.kwargs)) if is_plain_tensor(x)]


def expect(exercise: Exercise, case: Case, probe: Probe | None = None) -> Expectation:
    """What the probe, by default the exercise's, sees on the reference.

    Raises RuntimeError if it sees what no reference may do: a deadlock that all share is no answer.
    """
    probe = probe or exercise.probe
    subject = exercise.subject(*exercise.parts)
    observation = observe(probe, subject, case, exercise.limit_s)
    if observation.raised and raising.NEVER_EXPECTED in observation.raised.kinds:
        raise RuntimeError(f"{exercise.key}: the reference: {observation.raised.message}")
    if case.has_expected and case.rung == BY_HAND:
        agree_by_hand(exercise, case, observation)
    oracle = None
    if any(leaf.is_floating_point() for leaf in tensors(observation.seen or {})):
        oracle = observe(probe, subject, case.upcast(), exercise.limit_s).seen
    return Expectation(observation, oracle, length_of(exercise, case))


def agree_by_hand(exercise: Exercise, case: Case, observation: Observation) -> None:
    """The reference must give what was worked by hand: the result, or a dict of what the probe sees."""
    seen = observation.seen or {}
    if case.world and not isinstance(case.expected, dict):
        agree_on_ranks(exercise, case, observation)
        return
    by_name = isinstance(case.expected, dict) and "result" not in seen
    for label, value in (case.expected if by_name else {"result": case.expected}).items():
        if label not in seen:
            sees = ", ".join(map(repr, seen)) or repr(observation.raised)
            raise AssertionError(f"{exercise.key}: no {label!r} to compare by hand; seen: {sees}")
        wrong = compare(seen[label], value, length=length_of(exercise, case))
        if wrong:
            raise AssertionError(
                f"{exercise.key}: the reference disagrees with the case worked by hand: "
                f"{label}: {wrong.sentence}"
            )


def agree_on_ranks(exercise: Exercise, case: Case, observation: Observation) -> None:
    """By hand, a case on ranks has a list of results, one for each."""
    by_rank = list(case.expected)
    assert len(by_rank) == case.world, (
        f"{exercise.key}: {len(by_rank)} results by hand for {case.world} ranks"
    )
    labelled = {f"rank {rank}: result": value for rank, value in enumerate(by_rank)}
    agree_by_hand(exercise, replace(case, expected=labelled), observation)


def length_of(exercise: Exercise, case: Case) -> int:
    if exercise.length:
        return exercise.length(case)
    given = tensors((case.args, case.kwargs))
    return max((size for x in given for size in x.shape), default=1) * max(case.world, 1)


def results_due(exercise: Exercise, contract: Contract) -> list[Expectation | None]:
    """What the reference returns for each of a contract's calls; None where that decides nothing.

    It does not where more than a call is measured, and where the result is random or no data.
    """
    if exercise.stored:
        return exercise.stored.due_of(contract)

    def make() -> list[Expectation | None]:
        return [result_due(exercise, contract, case) for case in contract.cases]

    found: list[Expectation | None] = _due.get((exercise, contract), make)
    return found


_due = Recent(size=256)


def result_due(exercise: Exercise, contract: Contract, case: Case) -> Expectation | None:
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
    return Expectation(Observation({"result": result}), oracle, length_of(exercise, case))
