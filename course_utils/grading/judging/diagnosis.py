"""Which known mistake, or which two at once, explain what a student's answer did.

A mistake explains a case if it does there what the student's answer does, and both differ from the
book. It is named if it explains the smallest failure and nearly all others, is never wrong where the
answer is right, and no other mistake explains as much. Those that say the same are ways to make one
mistake, and explain together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from time import perf_counter

from course_utils.grading.comparing.check import Check, Expectation
from course_utils.grading.comparing.costs import complaint_of, wrong_there
from course_utils.grading.comparing.observations import differs
from course_utils.grading.declaring.edits import NoSuchText
from course_utils.grading.declaring.exercise import CONTRACTS, Mistake
from course_utils.grading.driving.contract import Complaint
from course_utils.grading.observing import errors as raising
from course_utils.grading.observing.observe import Observation

from .ladder import Ladder

NEARLY_ALL = 0.9
TO_PUT_TOGETHER_S = 1.0
"""So long pairs of edits are begun; the last one that is begun is seen through."""


@dataclass(frozen=True)
class Diagnosis:
    """The mistakes, one or two, that explain a failing answer. sure: do they explain all of it?"""

    mistakes: tuple[Mistake, ...]
    sure: bool

    @property
    def says(self) -> str:
        """The sentence for the student; one alone where both mistakes have the same."""
        sentences = list(dict.fromkeys(m.says for m in self.mistakes))
        if len(sentences) == 1:
            return sentences[0]
        return "Two slips at once. " + " And: ".join(sentences)


def diagnose(ladder: Ladder) -> Diagnosis | None:
    """What explains the failure that a climb ended with; None where nothing does, or two as much."""
    if ladder.rungs and ladder.rungs[-1].name == CONTRACTS:
        return cost_mistake_like(ladder)
    if not ladder.observations or not ladder.failure or ladder.failure.case is None:
        return None
    for check in ladder.checks:  # the more cases, the fewer mistakes can look alike
        ladder.observation(check)
    return Evidence(ladder).diagnosis()


class Evidence:
    """What an answer did, case by case, beside what the known mistakes do."""

    def __init__(self, ladder: Ladder) -> None:
        self.ladder = ladder
        self.mistakes = [m for m in ladder.exercise.mistakes if not m.cost]
        self.got: dict[int, Observation] = ladder.observations
        ran = [check for check in ladder.checks if id(check) in self.got]
        self.failing = [check for check in ran if differs(self.got[id(check)], check)]
        self.right = [check for check in ran if not differs(self.got[id(check)], check)]
        assert ladder.failure is not None
        self.smallest = next((c for c in ran if c.case is ladder.failure.case), None)
        self.known: dict[tuple[int, int], bool] = {}

    @property
    def interrupted(self) -> bool:
        return any(o.raised and o.raised.kind == raising.INTERRUPTED for o in self.got.values())

    def diagnosis(self) -> Diagnosis | None:
        """One mistake that explains all; else two, of which each explains a part, or made at once; else
        one that explains nearly all."""
        if self.interrupted or self.smallest is None or not self.failing:
            return None
        first = [m for m in self.mistakes if self.explains(m, self.smallest)]
        first = [m for m in first if not self.contradicted(m)]
        share = {m.says: self.share(self.ways_to_make(m)) for m in first}
        most = max(share.values(), default=0.0)
        best = [m for m in first if share[m.says] == most]
        if most < 1.0 and (two := self.two_that_share(first) or self.two_made_at_once()):
            return two
        if most >= NEARLY_ALL and len({m.says for m in best}) == 1:
            return Diagnosis((best[0],), most == 1.0)
        return None

    def theirs(self, mistake: Mistake, check: Check) -> Observation:
        """What the mistake does on a check."""
        return self.ladder.expectations.mistaken(mistake, check, self.ladder.answer.here)

    def explains(self, mistake: Mistake, check: Check) -> bool:
        """Does it do what the answer does, on a check on which the answer fails?"""
        key = id(mistake), id(check)
        if key not in self.known:
            self.known[key] = self.alike(self.theirs(mistake, check), check)
        return self.known[key]

    def alike(self, theirs: Observation, check: Check) -> bool:
        """Does the answer do what was observed?"""
        as_expected = Check(check.case, Expectation(theirs, None, check.expected.length))
        return not differs(self.got[id(check)], as_expected)

    def ways_to_make(self, mistake: Mistake) -> list[Mistake]:
        """The mistakes that say what this one says and, as it, are right where the answer is."""
        return [m for m in self.mistakes if m.says == mistake.says and not self.contradicted(m)]

    def share(self, ways: Sequence[Mistake]) -> float:
        """Of the failing checks, how many one of these ways to make a mistake explains, from 0 to 1."""
        explained = sum(any(self.explains(m, check) for m in ways) for check in self.failing)
        return explained / len(self.failing)

    def contradicted(self, mistake: Mistake) -> bool:
        """Is it wrong on a check on which the answer is right?"""
        return any(differs(self.theirs(mistake, check), check) for check in self.right)

    def two_that_share(self, first: list[Mistake]) -> Diagnosis | None:
        """A mistake that explains the smallest failure, and one that explains all that it leaves."""
        found = []
        for one in first:
            left = [check for check in self.failing if not self.explains(one, check)]
            for other in self.mistakes:
                if other is not one and all(self.explains(other, check) for check in left):
                    found.append((one, other))
        found = [pair for pair in found if not any(map(self.contradicted, pair))]
        return Diagnosis(found[0], False) if len(found) == 1 else None

    def two_made_at_once(self) -> Diagnosis | None:
        """Two edits of the reference that together do all that the answer does."""
        found = [pair for pair in self.pairs_of_edits() if self.together(*pair)]
        return Diagnosis(found[0], True) if len(found) == 1 else None

    def pairs_of_edits(self) -> Iterator[tuple[Mistake, Mistake]]:
        """Pairs that can be made at once, for as long as there is time: first those of which one explains
        the smallest failure."""
        start = perf_counter()
        smallest = self.smallest
        assert smallest
        edits = [m for m in self.mistakes if m.edit]
        edits.sort(key=lambda m: not self.explains(m, smallest))
        for pair in combinations(edits, 2):
            if perf_counter() - start > TO_PUT_TOGETHER_S:
                return
            yield pair

    def together(self, one: Mistake, other: Mistake) -> bool:
        """Does the reference with both edits do what the answer does, everywhere?"""
        assert one.edit and other.edit and self.smallest
        exercise = self.ladder.exercise
        try:
            objects = (one.edit + other.edit).applied(exercise.parts)
        except (NoSuchText, SyntaxError):
            return False
        both = exercise.mistaken("", objects)
        checks = [self.smallest, *self.failing, *self.right]
        return all(self.alike(self.theirs(both, check), check) for check in checks)


def cost_mistake_like(ladder: Ladder) -> Diagnosis | None:
    """The one known mistake that breaks the same contracts as the student's code by the same figures;
    where none does, the one whose figures are near."""
    exercise, expectations = ladder.exercise, ladder.expectations
    each = list(zip(exercise.contracts, ladder.runs, strict=True))
    if any(wrong_there(contract, runs, expectations.due(contract)) for contract, runs in each):
        return None
    mine = [complaint_of(contract, runs) for contract, runs in each]
    known = [(m, expectations.broken_by(m)) for m in exercise.mistakes if m.cost]
    for alike, sure in ((Complaint.same_as, True), (Complaint.near, False)):
        found = [m for m, theirs in known if _match(mine, theirs, alike)]
        if found:
            return Diagnosis((found[0],), sure) if len({m.says for m in found}) == 1 else None
    return None


def _match(
    mine: Sequence[Complaint | None],
    theirs: Sequence[Complaint | None],
    alike: Callable[[Complaint, Complaint | None], bool],
) -> bool:
    """Are the same contracts broken, each in a like way?"""
    pairs = zip(mine, theirs, strict=True)
    return all(alike(one, other) if one else other is None for one, other in pairs)
