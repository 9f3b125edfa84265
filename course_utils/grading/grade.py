"""From an object and an exercise to a verdict: the ladder, the smallest failure, the diagnosis."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from . import observe as observing
from .case import BY_HAND, EDGE, GRADIENTS, RANDOM, Case
from .compare import (
    DEVICE,
    DTYPE,
    EVERYTHING,
    KIND,
    SHAPE,
    Difference,
    compare,
    lacks_memory,
    name_of,
)
from .contracts import Contract, Measured, kind_of
from .exercise import CONTRACTS, Exercise, Mistake
from .limits import time_limit
from .observe import Observation, Raised, observe, raised_by
from .probes import named_arguments
from .probes.functions import UNASKED_GRAD
from .render import shown
from .surroundings import quiet, seed
from .values import is_plain_tensor, leaves, same, short, tensors
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
        with quiet():
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
    try:
        found = differs_in_what_was_seen(got, check, aspects)
    except Exception as error:  # a result of the student's own making may do anything
        kind = type(error).__name__
        sentence = f"what came cannot be compared: looking at it raises {kind}"
        return "result", Difference(KIND, "", sentence)
    if found or aspects is not EVERYTHING:
        return found
    left = [what for what in got.left if what not in want.left]
    return ("surroundings", Difference(KIND, "", f"your code {left[0]}")) if left else None


def differs_in_what_was_seen(
    got: Observation, check: Check, aspects: frozenset[str]
) -> tuple[str, Difference] | None:
    want = check.expected.observation
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
    if label == UNASKED_GRAD:
        return "your result requires grad, though no argument does: return a plain tensor"
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
    return raised_sentence(got.raised, got.seconds)


def raised_sentence(raised: Raised, seconds: float) -> str:
    if raised.kind == observing.TIME_LIMIT:
        return f"your code was still running after {seconds:.0f} s: an endless loop?"
    if raised.kind == observing.INTERRUPTED:
        return "you interrupted it"
    return f"your code raised {raised.kind}: {raised.message}"


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
    if inspect.iscoroutinefunction(mine) and not inspect.iscoroutinefunction(reference):
        return f"`{reference.__name__}` is `async`, so it returns a coroutine; return the value"
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
        signature = inspect.signature(mine)
    except Exception:  # some callables have none
        return None
    have = list(signature.parameters.values())
    given = [p.name for p in have]
    names = [p.name for p in want]
    ordinary = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in want)
    if ordinary and (takes_any(have) or set(given) >= set(names)):
        for args, kwargs in (names, {}), ([], dict.fromkeys(names)):
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                how = "by name" if kwargs else "by position"
                return f"`{name}` must take ({', '.join(names)}) {how} too; yours is {signature}"
    if takes_any(have):
        return None
    extra = [p.name for p in have if p.name not in names and p.default is p.empty]
    if extra or given[: len(names)] != names:
        return f"`{name}` takes ({', '.join(names)}); yours takes ({', '.join(given)})"
    for w, h in zip(want, have, strict=False):
        if (w.default is w.empty) != (h.default is h.empty) or not equal_defaults(w, h):
            return f"the default of `{w.name}` is {default(w)}; yours has {default(h)}"
    return None


def parameters_of(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except Exception:  # some callables have no signature
        return []


def takes_any(parameters: Sequence[inspect.Parameter]) -> bool:
    """Are there *args or **kwargs?"""
    return any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def equal_defaults(a: inspect.Parameter, b: inspect.Parameter) -> bool:
    """Equal, or written alike: an object of a class that was defined twice."""
    try:
        if a.default is b.default or bool(a.default == b.default):
            return True
        return is_dataclass(a.default) and repr(a.default) == repr(b.default)
    except Exception:  # two tensors, say
        return same(a.default, b.default)


def default(p: inspect.Parameter) -> str:
    return "none" if p.default is p.empty else short(p.default)


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
        self.results: list[tuple[Check, Observation, Any]] = []

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
            if not found.raised:
                self.results.append((check, found, copied(found.seen)))
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
        worked = self.shaped()
        problem = signature_problem(self.exercise, self.objects) or self.problem_by_name()
        if problem:
            self.failure = Failure(SIGNATURE, problem)
            return RungResult(SIGNATURE, 0, 1)
        rest = self.compare_on(SIGNATURE, worked, frozenset({KIND, SHAPE}))
        return replace(rest, passed=rest.passed + 1, total=rest.total + 1)

    def problem_by_name(self) -> str | None:
        """Where *args or **kwargs hide the parameters: does a call by name give the same?"""
        (mine, *_), (reference, *_) = self.objects, self.exercise.parts
        if inspect.isclass(reference) or not takes_any(parameters_of(mine)):
            return None
        for check in self.checks[:BY_NAME_CHECKS]:
            by_name = self.exercise.by_name(check.case)
            probe, limit = self.exercise.probe, self.exercise.limit_s
            subject = self.exercise.subject(*self.exercise.parts)
            if differs(observe(probe, subject, by_name, limit), check):
                return None  # the probe itself drives it by position
            found = differs(observe(probe, self.subject, by_name, limit), check)
            if found:
                given = ", ".join(f"{name}=…" for name in by_name.kwargs)
                return f"called by name, {reference.__name__}({given}): {found[1].sentence}"
        return None

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
        if not failures and (overwritten := self.overwritten(rung)):
            failures.append(overwritten)
            passed -= 1
        if failures and not self.failure:
            self.failure = replace(failures[0], wrong_cases=len(failures))
        elif empty and not self.failure:
            self.failure = Failure(rung, "not compared: the probe saw nothing to compare")
        return RungResult(rung, passed, ran, empty)

    def overwritten(self, rung: str) -> Failure | None:
        """A result that a later call has changed: the calls share memory that the code keeps."""
        for check, got, copy in self.results:
            if not same(copied(got.seen), copy):
                sentence = "a later call changed this result: you keep a tensor and return it again"
                called = called_as(self.exercise, check.case)
                return Failure(rung, sentence, called)
        return None

    def describe(
        self, rung: str, check: Check, got: Observation, label: str, difference: Difference
    ) -> Failure:
        want = check.expected.observation
        called = called_as(self.exercise, check.case)
        return Failure(rung, difference.sentence, called, check.case, got, want, label, difference)

    def contracts(self) -> RungResult:
        passed = 0
        for contract in self.exercise.contracts:
            complaint = self.complaint(contract)
            if complaint is None:
                passed += 1
            elif not self.failure:
                called = called_as(self.exercise, contract.cases[-1])
                self.failure = Failure(CONTRACTS, f"{contract.promise} — {complaint}", called)
        return RungResult(CONTRACTS, passed, len(self.exercise.contracts))

    def complaint(self, contract: Contract) -> str | None:
        runs = measured(contract, self.subject, self.exercise.limit_s)
        if isinstance(runs, Observation):
            assert runs.raised
            if runs.raised.kind == observing.INTERRUPTED:
                self.stopped = runs
        return wrong_there(self.exercise, contract, runs) or complaint_of(contract, runs)


KEPT_ELEMENTS = 100_000
BY_NAME_CHECKS = 5


def copied(seen: Any) -> list[Any]:
    """Copies of the tensors that a probe saw, small ones, to notice a change."""
    plain = [x for x in tensors(seen) if type(x) is torch.Tensor and is_plain_tensor(x)]
    here = [x for x in plain if not (x.is_nested or x.is_meta or lacks_memory(x))]
    return [x.detach().clone() for x in here if x.numel() <= KEPT_ELEMENTS]


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
    return complaint_of(contract, measured(contract, subject, limit_s))


def measured(contract: Contract, subject: Any, limit_s: float) -> list[Measured] | Observation:
    """Each of the contract's calls measured; or, as an observation, the exception that ended it."""
    start = perf_counter()
    try:
        with quiet(), time_limit(limit_s):
            return [contract.run(subject, case) for case in contract.cases]
    except BaseException as error:
        return Observation(None, raised_by(error), perf_counter() - start)


def complaint_of(contract: Contract, runs: list[Measured] | Observation) -> str | None:
    if isinstance(runs, Observation):
        assert runs.raised
        return f"it could not be measured: {raised_sentence(runs.raised, runs.seconds)}"
    elsewhere = next((run.elsewhere for run in runs if run.elsewhere), None)
    if elsewhere:
        return f"it could not be measured: your code {elsewhere}"
    return contract.judge([run.cost for run in runs], contract.cases)


def wrong_there(
    exercise: Exercise, contract: Contract, runs: list[Measured] | Observation
) -> str | None:
    """What is wrong with a result of the measured calls, which are larger than the other checks."""
    if isinstance(runs, Observation):
        return None
    for case, run, expected in zip(
        contract.cases, runs, results_due(exercise, contract), strict=True
    ):
        if expected is None:
            continue
        found = differs(Observation({"result": run.result}), Check(case, expected))
        if found:
            return (
                f"on this input, larger than the others, the result is wrong: {found[1].sentence}"
            )
    return None


def results_due(exercise: Exercise, contract: Contract) -> list[Expectation | None]:
    """What the reference returns for each of a contract's calls; None where that decides nothing.

    It does not where more than a call is measured, and where the result is random or no data.
    """
    key = (id(exercise), id(contract))
    if key not in _due:
        _due[key] = [result_due(exercise, contract, case) for case in contract.cases]
    return _due[key]


_due: dict[tuple[int, int], list[Expectation | None]] = {}


def result_due(exercise: Exercise, contract: Contract, case: Case) -> Expectation | None:
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
    """The known mistakes that break the same contracts as the student's code, in the same way."""
    contracts, limit = ladder.exercise.contracts, ladder.exercise.limit_s

    def broken_by(subject: Any) -> list[str | None]:
        return [kind_of(broken(contract, subject, limit)) for contract in contracts]

    runs = [measured(contract, ladder.subject, limit) for contract in contracts]
    if any(map(partial(wrong_there, ladder.exercise), contracts, runs)):
        return []
    mine = [kind_of(complaint_of(c, run)) for c, run in zip(contracts, runs, strict=True)]
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
