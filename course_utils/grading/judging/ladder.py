"""The ladder: checks climbed rung by rung, and the smallest failure of the first rung that fails."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from course_utils.grading.comparing.check import Check
from course_utils.grading.comparing.costs import (
    Runs,
    case_to_blame,
    complaint_of,
    confirmed,
    wrong_there,
)
from course_utils.grading.comparing.observations import compares_something, differs
from course_utils.grading.comparing.signatures import signature_problem
from course_utils.grading.comparing.trees import DEVICE, DTYPE, EVERYTHING, KIND, SHAPE, Difference
from course_utils.grading.declaring.exercise import CONTRACTS, Exercise
from course_utils.grading.driving.case import BY_HAND, EDGE, GRADIENTS, RANDOM, Case
from course_utils.grading.driving.contract import Contract
from course_utils.grading.expecting import expectations_of
from course_utils.grading.observing import errors as raising
from course_utils.grading.observing.observe import Observation
from course_utils.grading.probes import named_arguments
from course_utils.grading.pytrees.shown import named, shown
from course_utils.grading.pytrees.tree import tensors

from .answer import Answer
from .verdict import Failure, RungResult

SIGNATURE, TYPES = "signature and shape", "dtype and device"
LADDER = (SIGNATURE, TYPES, BY_HAND, RANDOM, GRADIENTS, EDGE, CONTRACTS)
BY_NAME_CHECKS = 5


class Ladder:
    """One climb: counts checks rung by rung and stops at the first rung that fails."""

    def __init__(self, exercise: Exercise, answer: Answer, seed: int) -> None:
        self.exercise, self.answer = exercise, answer
        self.expectations = expectations_of(exercise)
        self.checks = self.expectations.checks(seed)
        self.observations: dict[int, Observation] = {}
        self.rungs: list[RungResult] = []
        self.failure: Failure | None = None
        self.stopped: Observation | None = None
        self.runs: list[Runs] = []

    def on(self, rung: str) -> list[Check]:
        """The checks of this rung."""
        return [check for check in self.checks if check.case.rung == rung]

    def plan(self) -> dict[str, int]:
        """The rungs of this exercise, and how many checks each holds."""
        worked = self.shaped()
        sizes = {SIGNATURE: 1 + len(worked), TYPES: len(worked)}
        sizes |= {rung: len(self.on(rung)) for rung in (BY_HAND, RANDOM, GRADIENTS, EDGE)}
        sizes[CONTRACTS] = len(self.exercise.contracts)
        return {rung: sizes[rung] for rung in LADDER if sizes[rung]}

    def shaped(self) -> list[Check]:
        """Checks worked by hand (or the first random ones) whose expected results hold tensors."""
        first = self.on(BY_HAND) or self.on(RANDOM)[:2] or self.checks[:1]
        return [check for check in first if tensors(check.expected.observation.seen or {})]

    def observation(self, check: Check) -> Observation:
        """What the answer shows in this check, asked for once.

        Once an observation has ended the climb, it stands for all that were not yet made.
        """
        number = id(check)
        if number not in self.observations:
            if self.stopped:
                return self.stopped
            found = self.answer.observe(check.case)
            self.observations[number] = found
            if found.raised and found.raised.ends:
                self.stopped = found
        return self.observations[number]

    def in_order(self) -> list[list[Case]]:
        """The cases as the rungs come to them. Behind a channel, all of them cross together."""
        rungs = [self.on(rung) for rung in (BY_HAND, RANDOM, GRADIENTS, EDGE)]
        groups, met = [], set()
        for checks in (self.shaped(), *rungs):
            new = [check for check in checks if id(check) not in met]
            met |= set(map(id, new))
            groups.append([check.case for check in new])
        return [group for group in groups if group]

    def climb(self) -> None:
        """Take the rungs in order, up to the first that fails. What was found is in the fields."""
        self.answer.announce(self.in_order())
        steps: dict[str, Callable[[], RungResult]] = {
            SIGNATURE: self.signature,
            TYPES: lambda: self.compare_on(TYPES, self.shaped(), frozenset({DTYPE, DEVICE})),
            RANDOM: self.random,
            CONTRACTS: self.contracts,
        }
        for rung in self.plan():
            result = steps.get(rung, lambda rung=rung: self.compare_on(rung, self.on(rung)))()
            self.rungs.append(result)
            if not result.ok:
                return

    def signature(self) -> RungResult:
        """Kinds and parameters as one check; then kind and shape of each result worked by hand."""
        worked = self.shaped()
        told = signature_problem(self.exercise.parts, self.answer.descriptions)
        known, _ = self.to_call_by_name()
        problem = Failure(SIGNATURE, told) if told else self.problem_by_name(SIGNATURE, known)
        if problem:
            self.failure = problem
            return RungResult(SIGNATURE, 0, 1)
        rest = self.compare_on(SIGNATURE, worked, frozenset({KIND, SHAPE}))
        return replace(rest, passed=rest.passed + 1, total=rest.total + 1)

    def random(self) -> RungResult:
        """The random cases; where parameters are hidden, by name too."""
        _, hidden = self.to_call_by_name()
        problem = self.problem_by_name(RANDOM, hidden)
        if problem:
            self.failure = problem
            return RungResult(RANDOM, 0, 1)
        return self.compare_on(RANDOM, self.on(RANDOM))

    def to_call_by_name(self) -> tuple[list[Check], list[Check]]:
        """Checks to make by name as well: at first, and not before those worked by hand are through.

        What is told of calls worked by hand may be told to anybody: an answer has met no others then.
        """
        first = self.checks[:BY_NAME_CHECKS]
        by_hand = [check for check in first if check.case.rung == BY_HAND]
        return by_hand, [check for check in first if check.case.rung != BY_HAND]

    def problem_by_name(self, rung: str, checks: list[Check]) -> Failure | None:
        """Where *args or **kwargs hide the parameters: does a call by name give the same?"""
        mine, reference = self.answer.descriptions[0], self.exercise.parts[0]
        if self.exercise.is_class or not mine.takes_any:
            return None
        for check in checks:
            if not self.expectations.suits_by_name(check):
                return None
            by_name = self.exercise.by_name(check.case)
            got = self.answer.observe(by_name, keep=False)
            found = differs(got, check)
            if found:
                given = ", ".join(f"{name}=…" for name in by_name.kwargs)
                called = f"called by name, {reference.__name__}({given})"
                return Failure(rung, f"{called}: {found[1].sentence}", got=got)
        return None

    def compare_on(
        self, rung: str, checks: list[Check], aspects: frozenset[str] = EVERYTHING
    ) -> RungResult:
        """Compare these checks' observations in some aspects. The first that differs is the failure."""
        passed = ran = empty = 0
        failures: list[Failure] = []
        for check in checks:
            if self.stopped:
                break
            got = self.observation(check)
            ran += 1
            found = differs(got, check, aspects)
            if found:
                failures.append(self.describe(rung, check, got, *found))
            elif not compares_something(check):
                empty += 1
            else:
                passed += 1
        if not failures and (overwritten := self.overwritten(rung)):
            failures.append(overwritten)
            passed -= 1  # it was right when it was compared
        if failures and not self.failure:
            self.failure = replace(failures[0], wrong_cases=len(failures))
        elif empty and not self.failure:
            self.failure = Failure(rung, "not compared: the probe saw nothing to compare")
        return RungResult(rung, passed, ran, empty)

    def overwritten(self, rung: str) -> Failure | None:
        """A result that a later call has changed: the calls share memory that the code keeps."""
        case = self.answer.overwritten()
        if case is None:
            return None
        sentence = "a later call changed this result: you keep a tensor and return it again"
        return Failure(rung, sentence, _called_as(self.exercise, case))

    def describe(
        self, rung: str, check: Check, got: Observation, label: str, difference: Difference
    ) -> Failure:
        """A difference in one check as the verdict's failure."""
        want = check.expected.observation
        called = _called_as(self.exercise, check.case)
        seen = (check.case, got, want, label, difference)
        formats = self.exercise.formats
        return Failure(rung, named(difference.sentence, formats), called, *seen, formats=formats)

    def contracts(self) -> RungResult:
        """Measure each contract; the first that is broken is the failure."""
        passed = 0
        for contract in self.exercise.contracts:
            runs = confirmed(contract, partial(self.answer.measure, contract))
            self.runs.append(runs)
            if isinstance(runs, Observation):
                assert runs.raised
                if runs.raised.kind == raising.INTERRUPTED:
                    self.stopped = runs
            failure = self.breach(contract, runs)
            passed += failure is None
            self.failure = self.failure or failure
        return RungResult(CONTRACTS, passed, len(self.exercise.contracts))

    def breach(self, contract: Contract, runs: Runs) -> Failure | None:
        """What of a contract was not kept, and in which of its calls."""
        if wrong := wrong_there(contract, runs, self.expectations.due(contract)):
            complaint, case = wrong
        elif said := complaint_of(contract, runs):
            complaint, case = said.text, case_to_blame(contract, runs, said)
        else:
            return None
        called = _called_as(self.exercise, case)
        got = runs if isinstance(runs, Observation) else None
        return Failure(CONTRACTS, f"{contract.promise} — {complaint}", called, got=got)


def _called_as(exercise: Exercise, case: Case) -> str:
    """The call as source, each argument by its name."""
    if exercise.probe.called:
        return exercise.probe.called(exercise.names[0], case)
    names = named_arguments(exercise.parts[0], case.args, case.kwargs)
    given = ", ".join(
        f"{name}={shown(value, formats=exercise.formats)}" for name, value in names.items()
    )
    return f"{exercise.names[0]}({given})"
