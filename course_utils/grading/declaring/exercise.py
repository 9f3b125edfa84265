"""An exercise, as its author declares it, and the registry that finds it by key."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from course_utils.grading import probes
from course_utils.grading.comparing.check import Check, Expectation
from course_utils.grading.driving.case import BY_HAND, EDGE, GRADIENTS, RANDOM, Case
from course_utils.grading.driving.contract import Complaint, Contract
from course_utils.grading.driving.probe import Probe
from course_utils.grading.observing.observe import Observation

from .draws import collect
from .edits import Edit

CONTRACTS = "contracts"
GRADIENT_CASES = 6
DRAWN_SEEDS = 8  # of so many the cases are kept


@dataclass(frozen=True)
class Mistake:
    """A plausible wrong version and the sentence that explains it.

    make: makes the wrong object (a dict by name for a pair). cost: its values are right and only a
    contract rejects it. edit: what it changes in the reference, where it is made so.
    """

    says: str
    make: Callable[[], Any]
    cost: bool = False
    edit: Edit | None = None

    @cached_property
    def subject(self) -> Any:
        """What the probe drives."""
        return self.make()


@dataclass(frozen=True)
class Alternative:
    """A correct version in another style: it must pass."""

    style: str
    subject: Any


@dataclass(frozen=True)
class Hint:
    """A hint. rung: where it belongs to one, it is shown when that rung fails."""

    text: str
    rung: str | None = None


class Expectations(Protocol):
    """What an answer is held to, and what the known mistakes do: see `expecting`."""

    @property
    def has_answer(self) -> bool:
        """Is the book's version here?"""
        ...

    def checks(self, seed: int = 0) -> list[Check]:
        """Every case with what is expected of it; the random cases are those of the seed."""
        ...

    def due(self, contract: Contract) -> list[Expectation | None]:
        """What each of a contract's calls must give; None where that decides nothing."""
        ...

    def suits_by_name(self, check: Check) -> bool:
        """Is the same expected if every argument comes by its name?"""
        ...

    def mistaken(self, mistake: Mistake, check: Check, here: bool = True) -> Observation:
        """What the probe sees on a known mistake. here: if not, as it is seen from another process."""
        ...

    def broken_by(self, mistake: Mistake) -> list[Complaint | None]:
        """For each contract, the complaint that a known mistake earns, or None."""
        ...


@dataclass(eq=False)
class Exercise:
    """One exercise: the book's version and everything that judges a student's.

    reference: a function, a class, or a tuple of functions (a pair such as encode and decode).
    difficulty: 1 to 3. minutes, points: whole numbers. hints: staged; a pair (rung, text) is
    shown when that rung fails. probe: drives the object through a case. gradients: arguments to
    differentiate. length: the longest axis that a case may sum over, by default the longest axis
    of its tensors. needs: what not every machine has (`course_utils.needs`): "cuda", "triton". stand_in: the library's own version
    ("torch.nn.LayerNorm"), for editions without answers; stand_in_note: in what it is not the same,
    in a sentence. limit_s: seconds one check may take. formats: how a verdict writes the integers of a
    dtype, in the exercise's own unit.
    expectations: what answers are held to, where that does not come from the reference: in an edition
    without answers, what was observed of it and of the mistakes.
    """

    reference: Any
    title: str
    difficulty: int
    minutes: int
    points: int
    hints: tuple[str | tuple[str, str], ...] = ()
    probe: Probe = probes.call
    gradients: tuple[str, ...] = ()
    length: Callable[[Case], int] | None = None
    needs: str | None = None
    stand_in: str | None = None
    stand_in_note: str = ""
    limit_s: float = 5.0
    formats: dict[str, str] = field(default_factory=dict)
    key: str = ""
    expectations: Expectations | None = None
    mistakes: list[Mistake] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    contracts: list[Contract] = field(default_factory=list)
    equivalents: dict[str, str] = field(default_factory=dict)
    _by_hand: list[Callable[[], Iterable[Any]]] = field(default_factory=list)
    _random: list[tuple[Callable[..., Iterator[Case]], int]] = field(default_factory=list)
    _edge: list[Callable[[], Iterator[Any]]] = field(default_factory=list)
    _drawn: dict[int, list[Case]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.probe, Probe):
            self.probe = Probe(self.probe)
        if not self.key:
            first = self.parts[0]
            self.key = f"{first.__module__.rpartition('.')[2]}.{first.__name__}"
        if not 1 <= self.difficulty <= 3:
            raise ValueError(f"{self.key}: difficulty is 1, 2 or 3; came {self.difficulty}")

    # ---------------------------------------------------------------------- what it is about

    @property
    def parts(self) -> tuple[Any, ...]:
        """The book's objects, one for each name the exercise asks for."""
        return self.reference if isinstance(self.reference, tuple) else (self.reference,)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.__name__ for part in self.parts)

    @property
    def has_answer(self) -> bool:
        """Is the book's version here? Not where an edition has left it out."""
        return self.expectations is None or self.expectations.has_answer

    @property
    def chapter(self) -> str:
        return self.key.partition(".")[0]

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.parts[0])

    @property
    def stars(self) -> str:
        return "★" * self.difficulty + "☆" * (3 - self.difficulty)

    @cached_property
    def staged_hints(self) -> tuple[Hint, ...]:
        return tuple(Hint(h) if isinstance(h, str) else Hint(h[1], h[0]) for h in self.hints)

    def subject(self, *objects: Any) -> Any:
        """What the probe drives: the object itself, or a dict by name for a pair."""
        return objects[0] if len(self.parts) == 1 else dict(zip(self.names, objects, strict=True))

    @property
    def reference_subject(self) -> Any:
        """What the probe drives of the book's version."""
        return self.subject(*self.parts)

    # ---------------------------------------------------------------------- declaring

    def by_hand(self, generator: Callable[[], Iterable[Any]]) -> None:
        """Cases worked by hand: pairs (case, expected result), yielded or in a list."""
        self._by_hand.append(generator)

    def cases(self, body: Any = None) -> Any:
        """Random cases: the generator takes `draw` and yields cases; `@ex.cases(20)` draws 20."""
        if isinstance(body, int):
            return lambda generator: self._random.append((generator, body))
        self._random.append((body, 40))
        return None

    def edge(self, generator: Callable[[], Iterator[Any]]) -> None:
        """Edge cases: the generator yields a case, or (case, why it is on the edge)."""
        self._edge.append(generator)

    def mistake(self, says: str, edit: Edit | None = None, *, cost: bool = False) -> Any:
        """A wrong version: an edit of the reference's source, or, as a decorator, an object (called
        with several for a pair)."""

        def declare(*objects: Any) -> None:
            self.mistakes.append(self.mistaken(says, objects, cost))

        return declare(edit) if edit else declare

    def slips(self, sentences: dict[Edit, str]) -> None:
        """Mistakes that are edits of the reference, each with its sentence."""
        for edit, says in sentences.items():
            self.mistake(says, edit)

    def mistaken(self, says: str, objects: tuple[Any, ...], cost: bool = False) -> Mistake:
        """The mistake that these objects, or one edit, make."""
        match objects:
            case (Edit() as edit,):
                return Mistake(says, lambda: self.subject(*edit.applied(self.parts)), cost, edit)
        return Mistake(says, lambda: self.subject(*objects), cost)

    def alternative(self, style: str) -> Callable[..., None]:
        return lambda *objects: self.alternatives.append(Alternative(style, self.subject(*objects)))

    def contract(self, contract: Contract) -> None:
        self.contracts.append(contract)

    def equivalent(self, mutant: str, *, because: str) -> None:
        """Say why a surviving mutant computes the same thing; the suite refuses silent survivors."""
        self.equivalents[mutant] = because

    # ---------------------------------------------------------------------- its cases

    def all_cases(self, seed: int = 0) -> list[Case]:
        """Every case in the order of the ladder, smallest first within a rung."""
        if seed not in self._drawn:
            self._drawn[seed] = [
                *self.cases_by_hand(),
                *(random := self.random_cases(seed)),
                *self.gradient_cases(random),
                *self.edge_cases(),
            ]
            for old in list(self._drawn)[:-DRAWN_SEEDS]:
                del self._drawn[old]
        return self._drawn[seed]

    def cases_by_hand(self) -> list[Case]:
        return [
            case.on(BY_HAND, expected=expected)
            for body in self._by_hand
            for case, expected in body()
        ]

    def random_cases(self, seed: int) -> list[Case]:
        cases = [
            case.on(RANDOM) for body, count in self._random for case in collect(body, count, seed)
        ]
        return sorted(cases, key=lambda case: case.size)

    def gradient_cases(self, random: list[Case]) -> list[Case]:
        if not self.gradients:
            return []
        cases = (random + self.cases_by_hand())[:GRADIENT_CASES]
        if self.probe.by_name:
            cases = [self.by_name(case) for case in cases]
        return [case.on(GRADIENTS, grad=self.gradients) for case in cases]

    def by_name(self, case: Case) -> Case:
        """The same call with every argument by its name."""
        if case.world:
            calls = [self.by_name(one) for one in case.calls]
            return replace(case, ranks=tuple({"args": c.args, "kwargs": c.kwargs} for c in calls))
        names = probes.named_arguments(self.parts[0], case.args, case.kwargs)
        return replace(case, args=(), kwargs=names)

    def edge_cases(self) -> list[Case]:
        cases = []
        for body in self._edge:
            for item in body():
                case, why = item if isinstance(item, tuple) else (item, "")
                cases.append(case.on(EDGE, why=why))
        return sorted(cases, key=lambda case: case.size)
