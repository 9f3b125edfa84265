"""From an object and an exercise to a verdict: the ladder, the smallest failure, the diagnosis."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from . import observe as observing
from .case import BY_HAND, EDGE, GRADIENTS, RANDOM, Case
from .compare import DEVICE, DTYPE, EVERYTHING, KIND, SHAPE, Difference, compare, name_of
from .contracts import Contract
from .exercise import CONTRACTS, Exercise, Mistake
from .limits import TimeLimit, time_limit
from .observe import Observation, observe, quiet, raised_by
from .probes import named_arguments
from .render import shown
from .values import tensors
from .verdict import FAILED, INTERRUPTED, PASSED, SKIPPED, Failure, RungResult, Verdict

SIGNATURE, TYPES = "signature and shape", "dtype and device"
LADDER = (SIGNATURE, TYPES, BY_HAND, RANDOM, GRADIENTS, EDGE, CONTRACTS)


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


# ------------------------------------------------------------------------------ what is expected


def checks_of(exercise: Exercise, seed: int = 0) -> list[Check]:
    """Every case of the exercise with what is expected of it. Raises NoChecks if there is none."""
    key = (exercise.key, id(exercise), seed)
    if key not in _checks:
        cases = exercise.all_cases(seed)
        if not cases:
            raise NoChecks(f"{exercise.key} declares no case: it could pass anything")
        _checks[key] = [Check(case, expect(exercise, case)) for case in cases]
    return _checks[key]


_checks: dict[tuple[str, int, int], list[Check]] = {}


def expect(exercise: Exercise, case: Case) -> Expectation:
    subject = exercise.subject(*exercise.parts)
    observation = observe(exercise.probe, subject, case, exercise.limit_s)
    if case.has_expected:
        agree_by_hand(exercise, case, observation)
    oracle = None
    if any(leaf.is_floating_point() for leaf in tensors(observation.seen or {})):
        oracle = observe(exercise.probe, subject, case.upcast(), exercise.limit_s).seen
    return Expectation(observation, oracle, length_of(exercise, case))


def agree_by_hand(exercise: Exercise, case: Case, observation: Observation) -> None:
    """The reference must give what was worked by hand: the result, or a dict of what the probe sees."""
    seen = observation.seen or {}
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


def length_of(exercise: Exercise, case: Case) -> int:
    if exercise.length:
        return exercise.length(case)
    given = tensors((case.args, case.kwargs))
    return max((size for x in given for size in x.shape), default=1)


# ------------------------------------------------------------------------------ comparing


def differs(
    got: Observation, check: Check, aspects: frozenset[str] = EVERYTHING
) -> tuple[str, Difference] | None:
    """The first named thing in which an observation is not as expected, or None."""
    want = check.expected.observation
    if got.raised or want.raised:
        return differs_in_exception(got, want)
    assert got.seen is not None and want.seen is not None
    extra = [label for label in got.seen if label not in want.seen]
    for label, value in want.seen.items():
        if label not in got.seen and extra:
            return extra[0], Difference(KIND, "", unexpected(extra[0], got.seen[extra[0]]))
        if label not in got.seen:
            return label, Difference(KIND, "", "is missing")
        oracle = (check.expected.oracle or {}).get(label)
        length = check.expected.length
        found = compare(got.seen[label], value, oracle, length=length, aspects=aspects)
        if found:
            return label, found
    if extra and aspects is EVERYTHING:
        return extra[0], Difference(KIND, "", unexpected(extra[0], got.seen[extra[0]]))
    return None


def unexpected(label: str, value: Any) -> str:
    what = label.rpartition(": ")[2]  # a probe of several steps says which one first
    if what.startswith("argument `"):
        return f"your code changed its {what.removesuffix(' afterwards')}; it must leave it alone"
    if what == "the result requires grad":
        return "no gradient flows through your result: something detached it from the graph"
    return f"came {name_of(value)}, unexpected"


def differs_in_exception(got: Observation, want: Observation) -> tuple[str, Difference] | None:
    if got.raised and want.raised and want.raised.kind in got.raised.kinds:
        return None
    if want.raised:
        came = (
            f"your code raised {got.raised.kind}" if got.raised else "your code returned a result"
        )
        return "exception", Difference(KIND, "", f"{want.raised.kind} is expected here; {came}")
    assert got.raised
    return "exception", Difference(KIND, "", exception_sentence(got))


def exception_sentence(got: Observation) -> str:
    assert got.raised
    if got.raised.kind == observing.TIME_LIMIT:
        return f"your code was still running after {got.seconds:.0f} s: an endless loop?"
    if got.raised.kind == observing.INTERRUPTED:
        return "you interrupted it"
    return f"your code raised {got.raised.kind}: {got.raised.message}"


def compares_something(check: Check) -> bool:
    """Is there anything in the expected observation that could differ?"""
    want = check.expected.observation
    return want.raised is not None or bool(want.seen)


# ------------------------------------------------------------------------------ signatures


def signature_problem(exercise: Exercise, objects: Sequence[Any]) -> str | None:
    """What is wrong with the kind or the parameters of the student's objects, in words."""
    for reference, mine in zip(exercise.parts, objects, strict=True):
        problem = kind_problem(reference, mine) or parameters_problem(reference, mine)
        if problem:
            return problem
    return None


def kind_problem(reference: Any, mine: Any) -> str | None:
    if inspect.isclass(reference) != inspect.isclass(mine):
        due, came = (
            "a class" if inspect.isclass(thing) else "a function" for thing in (reference, mine)
        )
        return f"`{reference.__name__}` must be {due}; came {came}"
    if not callable(mine):
        return f"`{reference.__name__}` must be callable; came {name_of(mine)}"
    if inspect.isgeneratorfunction(mine) and not inspect.isgeneratorfunction(reference):
        return (
            f"`{reference.__name__}` contains `yield`, so it returns a generator; return the value"
        )
    return None


def parameters_problem(reference: Any, mine: Any) -> str | None:
    if not inspect.isclass(reference):
        return differing_parameters(reference.__name__, reference, mine)
    for name, method in vars(reference).items():
        if not inspect.isfunction(method) or (name.startswith("_") and not name.startswith("__")):
            continue
        theirs = getattr(mine, name, None)
        if theirs is None:
            return f"`{reference.__name__}` has no method `{name}`"
        problem = differing_parameters(f"{reference.__name__}.{name}", method, theirs)
        if problem:
            return problem
    return None


def differing_parameters(name: str, reference: Any, mine: Any) -> str | None:
    """None if every call that suits the reference suits `mine`."""
    want = list(inspect.signature(reference).parameters.values())
    try:
        have = list(inspect.signature(mine).parameters.values())
    except (TypeError, ValueError):
        return None
    given = [p.name for p in have]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in have):
        return None
    missing = [p.name for p in want if p.name not in given]
    extra = [p.name for p in have if p.name not in [w.name for w in want] and p.default is p.empty]
    if missing or extra or given[: len(want)] != [p.name for p in want]:
        return (
            f"`{name}` takes ({', '.join(p.name for p in want)}); yours takes ({', '.join(given)})"
        )
    for w, h in zip(want, have, strict=False):
        if (w.default is w.empty) != (h.default is h.empty) or not equal_defaults(w, h):
            return f"the default of `{w.name}` is {default(w)}; yours has {default(h)}"
    return None


def equal_defaults(a: inspect.Parameter, b: inspect.Parameter) -> bool:
    return a.default is b.default or bool(a.default == b.default)


def default(p: inspect.Parameter) -> str:
    return "none" if p.default is p.empty else repr(p.default)


# ------------------------------------------------------------------------------ the ladder


class Ladder:
    """One climb: counts checks rung by rung and stops at the first rung that fails."""

    def __init__(self, exercise: Exercise, objects: Sequence[Any], seed: int) -> None:
        self.exercise, self.objects = exercise, objects
        self.subject = exercise.subject(*objects)
        self.checks = checks_of(exercise, seed)
        self.observations: dict[int, Observation] = {}
        self.rungs: list[RungResult] = []
        self.failure: Failure | None = None
        self.stopped: Observation | None = None

    def on(self, rung: str) -> list[Check]:
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
        number = id(check)
        if number not in self.observations:
            if self.stopped:
                return self.stopped
            found = observe(self.exercise.probe, self.subject, check.case, self.exercise.limit_s)
            self.observations[number] = found
            if found.raised and found.raised.kind in (observing.TIME_LIMIT, observing.INTERRUPTED):
                self.stopped = found
        return self.observations[number]

    def climb(self) -> None:
        steps: dict[str, Callable[[], RungResult]] = {
            SIGNATURE: self.signature,
            TYPES: lambda: self.compare_on(TYPES, self.shaped(), frozenset({DTYPE, DEVICE})),
            CONTRACTS: self.contracts,
        }
        for rung in self.plan():
            result = steps.get(rung, lambda rung=rung: self.compare_on(rung, self.on(rung)))()
            self.rungs.append(result)
            if not result.ok:
                return

    def signature(self) -> RungResult:
        problem = signature_problem(self.exercise, self.objects)
        worked = self.shaped()
        if problem:
            self.failure = Failure(SIGNATURE, problem)
            return RungResult(SIGNATURE, 0, 1)
        rest = self.compare_on(SIGNATURE, worked, frozenset({KIND, SHAPE}))
        return replace(rest, passed=rest.passed + 1, total=rest.total + 1)

    def compare_on(
        self, rung: str, checks: list[Check], aspects: frozenset[str] = EVERYTHING
    ) -> RungResult:
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
        if failures and not self.failure:
            self.failure = replace(failures[0], wrong_cases=len(failures))
        elif empty and not self.failure:
            self.failure = Failure(rung, "not compared: the probe saw nothing to compare")
        return RungResult(rung, passed, ran, empty)

    def describe(
        self, rung: str, check: Check, got: Observation, label: str, difference: Difference
    ) -> Failure:
        want = check.expected.observation
        called = called_as(self.exercise, check.case)
        return Failure(rung, difference.sentence, called, check.case, got, want, label, difference)

    def contracts(self) -> RungResult:
        passed = 0
        for contract in self.exercise.contracts:
            complaint = broken(contract, self.subject, self.exercise.limit_s)
            if complaint is None:
                passed += 1
            elif not self.failure:
                called = called_as(self.exercise, contract.cases[-1])
                self.failure = Failure(CONTRACTS, f"{contract.promise} — {complaint}", called)
        return RungResult(CONTRACTS, passed, len(self.exercise.contracts))


def called_as(exercise: Exercise, case: Case) -> str:
    """The call as source, each argument by its name."""
    says = getattr(exercise.probe, "called", None)
    if says:
        return str(says(exercise.names[0], case))
    names = named_arguments(exercise.parts[0], case.args, case.kwargs)
    given = ", ".join(f"{name}={shown(value)}" for name, value in names.items())
    return f"{exercise.names[0]}({given})"


def broken(contract: Contract, subject: Any, limit_s: float) -> str | None:
    """The complaint about a broken contract, or None if it was kept."""
    try:
        with time_limit(limit_s), quiet():
            costs = [contract.measured(subject, case) for case in contract.cases]
    except (Exception, TimeLimit, KeyboardInterrupt) as error:
        raised = raised_by(error)
        return f"it could not be measured: your code raised {raised.kind}: {raised.message}"
    return contract.judge(costs, contract.cases)


# ------------------------------------------------------------------------------ diagnosis


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
        if got.raised and got.raised.kind == observing.INTERRUPTED:
            return False
        theirs = mistaken(ladder.exercise, mistake, check)
        as_expected = Check(check.case, Expectation(theirs, None, check.expected.length))
        if differs(got, as_expected):
            return False
    return True


_mistaken: dict[tuple[int, int], Observation] = {}


def mistaken(exercise: Exercise, mistake: Mistake, check: Check) -> Observation:
    """What the probe sees on a known mistake; kept, since every failing answer asks for it."""
    key = (id(mistake), id(check))
    if key not in _mistaken:
        _mistaken[key] = observe(exercise.probe, mistake.subject, check.case, exercise.limit_s)
    return _mistaken[key]


def cost_mistakes_like(ladder: Ladder) -> list[Mistake]:
    """The known mistakes that break just the contracts that the student's code breaks."""
    contracts, limit = ladder.exercise.contracts, ladder.exercise.limit_s

    def broken_by(subject: Any) -> list[bool]:
        return [broken(contract, subject, limit) is not None for contract in contracts]

    mine = broken_by(ladder.subject)
    return [m for m in ladder.exercise.mistakes if m.cost and broken_by(m.subject) == mine]


# ------------------------------------------------------------------------------ the verdict


def grade(exercise: Exercise, *objects: Any, seed: int = 0, explain: bool = True) -> Verdict:
    """Judge a student's object (several for a pair). Raises nothing for what it does wrong.

    seed: of the random cases. explain: look for a known mistake behind a failure.
    Raises NoChecks if the exercise has no case: a verdict must never rest on zero checks.
    """
    start = perf_counter()
    if exercise.needs == "cuda" and not torch.cuda.is_available():
        return Verdict(exercise.key, exercise.title, SKIPPED, reason="it needs a CUDA GPU")
    ladder = Ladder(exercise, objects, seed)
    ladder.climb()
    plan = ladder.plan()
    passed = all(rung.ok for rung in ladder.rungs) and len(ladder.rungs) == len(plan)
    outcome = PASSED if passed else FAILED
    stopped = ladder.stopped.raised if ladder.stopped else None
    if stopped and stopped.kind == observing.INTERRUPTED:
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
        diagnosis=diagnosis,
        seconds=perf_counter() - start,
    )
