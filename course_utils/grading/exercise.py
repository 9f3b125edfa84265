"""An exercise, as its author declares it, and the registry that finds it by key."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import probes
from .case import BY_HAND, EDGE, GRADIENTS, RANDOM, Case
from .contracts import Contract
from .probes import Probe
from .surroundings import quiet
from .values import dumps

if TYPE_CHECKING:
    from .stored import Stored

CONTRACTS = "contracts"
GRADIENT_CASES = 6
DRAWN_SEEDS = 8  # of so many the cases are kept


class UnknownKey(LookupError):
    """No exercise has this key."""


@dataclass(frozen=True)
class Mistake:
    """A plausible wrong version and the sentence that explains it.

    cost: its values are right and only a contract rejects it.
    """

    says: str
    subject: Any
    cost: bool = False


@dataclass(frozen=True)
class Alternative:
    """A correct version in another style: it must pass."""

    style: str
    subject: Any


@dataclass(frozen=True)
class Hint:
    text: str
    rung: str | None = None


@dataclass(eq=False)
class Exercise:
    """One exercise: the book's version and everything that judges a student's.

    reference: a function, a class, or a tuple of functions (a pair such as encode and decode).
    difficulty: 1 to 3. minutes, points: whole numbers. hints: staged; a pair (rung, text) is
    shown when that rung fails. probe: drives the object through a case. gradients: arguments to
    differentiate. length: the longest axis that a case may sum over, by default the longest axis
    of its tensors. needs: "cuda" where a GPU is required. stand_in: the library's own version
    ("torch.nn.LayerNorm"), for editions without answers; stand_in_note: in what it is not the same,
    in a sentence. limit_s: seconds one check may take.
    stored: what was observed of the reference and of the mistakes, in an edition that lacks them.
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
    key: str = ""
    stored: "Stored | None" = None
    mistakes: list[Mistake] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    contracts: list[Contract] = field(default_factory=list)
    equivalents: dict[str, str] = field(default_factory=dict)
    _by_hand: list[Callable[[], Iterator[Any]]] = field(default_factory=list)
    _random: list[tuple[Callable[..., Iterator[Case]], int]] = field(default_factory=list)
    _edge: list[Callable[[], Iterator[Any]]] = field(default_factory=list)
    _drawn: dict[int, list[Case]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
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
        return self.stored is None or not self.stored.hidden

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

    # ---------------------------------------------------------------------- declaring

    def by_hand(self, generator: Callable[[], Iterator[Any]]) -> None:
        """Cases worked by hand: the generator yields (case, expected result)."""
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

    def mistake(self, says: str, *, cost: bool = False) -> Callable[..., None]:
        """A wrong version (several functions of a pair: return them as a tuple from a class body)."""
        return lambda *objects: self.mistakes.append(Mistake(says, self.subject(*objects), cost))

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
        if self.probe in (probes.call, probes.never_negative):
            cases = [self.by_name(case) for case in cases]
        return [case.on(GRADIENTS, grad=self.gradients) for case in cases]

    def by_name(self, case: Case) -> Case:
        """The same call with every argument by its name."""
        if case.world:
            calls = [self.by_name(replace(c, kwargs={**c.kwargs})) for c in case.calls]
            return replace(case, args=tuple({"args": c.args, "kwargs": c.kwargs} for c in calls))
        names = probes.named_arguments(self.parts[0], case.args, case.kwargs)
        return replace(case, args=(), kwargs=names)

    def edge_cases(self) -> list[Case]:
        cases = []
        for body in self._edge:
            for item in body():
                case, why = item if isinstance(item, tuple) else (item, "")
                cases.append(case.on(EDGE, why=why))
        return sorted(cases, key=lambda case: case.size)


def collect(body: Callable[..., Iterator[Case]], count: int, seed: int) -> list[Case]:
    """The cases that a generator yields in `count` hypothesis draws, without repeats.

    The same seed gives the same cases on every machine and whatever else is loaded.
    """
    import hypothesis
    from hypothesis import strategies as st

    from .draws import BY_SEED_ALONE

    found: dict[bytes, Case] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        backend=BY_SEED_ALONE,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def run(data: Any) -> None:
        for case in body(data.draw):
            found.setdefault(dumps((case.args, case.kwargs)), case)

    run()
    return list(found.values())


# ---------------------------------------------------------------------------------- the registry


def chapters() -> list[str]:
    """The chapters that have exercises, in the order of the book."""
    from course_utils import exercises

    found = {module.name for module in pkgutil.iter_modules(exercises.__path__)}
    order = [name for name in getattr(exercises, "ORDER", ()) if name in found]
    return order + sorted(found - set(order))


def exercises_of(chapter: str) -> dict[str, Exercise]:
    """The exercises of one chapter by key, in the order of their declaration."""
    if chapter not in chapters():
        raise UnknownKey(f"no chapter {chapter!r}; there are: {', '.join(chapters())}")
    with quiet():  # whatever default dtype or device the notebook has set
        module = importlib.import_module(f"course_utils.exercises.{chapter}")
    return {item.key: item for item in vars(module).values() if isinstance(item, Exercise)}


def every() -> dict[str, Exercise]:
    """Every exercise of the book by key."""
    return {key: item for chapter in chapters() for key, item in exercises_of(chapter).items()}


_extra: dict[str, Exercise] = {}


def register(exercise: Exercise) -> Exercise:
    """Make an exercise findable that no chapter declares (an instructor's own, or a test's)."""
    _extra[exercise.key] = exercise
    return exercise


def find(key: str) -> Exercise:
    """The exercise with this key. Raises UnknownKey, which names the nearest ones."""
    if key in _extra:
        return _extra[key]
    chapter = str(key).partition(".")[0]
    if chapter in chapters():
        found = exercises_of(chapter)
        if key in found:
            return found[key]
    known = list(every()) + list(_extra)
    near = get_close_matches(str(key), known, n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else f"there are: {', '.join(known)}"
    )
    raise UnknownKey(f"no exercise {key!r}; {hint}")
