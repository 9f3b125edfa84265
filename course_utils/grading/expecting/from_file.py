"""Exercises without their answers: what was observed of reference and mistakes stands in for them.

An edition without answers holds, for each exercise, one file: the visible cases, what is expected
of them, what each known mistake does, contracts as figures. Verdicts, diagnoses and hints come out
as they would beside the reference; cases of another seed cannot be made from it.
"""

import importlib
from functools import cached_property
from pathlib import Path
from typing import Any

from course_utils.grading.comparing.check import Check, Expectation
from course_utils.grading.declaring.exercise import Exercise, Mistake
from course_utils.grading.declaring.judges import JUDGES
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Complaint, Contract
from course_utils.grading.observing.observe import Observation
from course_utils.grading.pytrees.strict import loads
from course_utils.grading.pytrees.tree import Tree
from course_utils.grading.student.protocol import called

FOLDER = "stored"
SUFFIX = ".safetensors"
PAIRS = "pairs of a dict"


def with_pairs(tree: Tree) -> Tree:
    """The tree with lists of pairs for dicts whose keys are no text: few of those may cross."""
    if isinstance(tree, dict):
        pairs = {key: with_pairs(value) for key, value in tree.items()}
        text = all(type(key) is str for key in pairs)
        return pairs if text else {PAIRS: [list(pair) for pair in pairs.items()]}
    if type(tree) in (list, tuple):
        return type(tree)(map(with_pairs, tree))
    return tree


def without_pairs(tree: Tree) -> Tree:
    """The tree that `with_pairs` was given."""
    if isinstance(tree, dict):
        if tree.keys() == {PAIRS}:
            return {key: without_pairs(value) for key, value in tree[PAIRS]}
        return {key: without_pairs(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(map(without_pairs, tree))
    return tree


class FromFile:
    """What is known of one exercise, from an edition's file of it."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self.tree = tree
        self.has_answer = not tree["hidden"]
        self.mistakes = [Mistake(one["says"], nothing, one["cost"]) for one in tree["mistakes"]]

    @cached_property
    def contracts(self) -> list[Contract]:
        return [contract_from(tree) for tree in self.tree["contracts"]]

    @cached_property
    def _checks(self) -> list[Check]:
        return [Check(case_from(one["case"]), expectation(one)) for one in self.tree["checks"]]

    def checks(self, seed: int = 0) -> list[Check]:
        """The stored checks. Raises ValueError for another seed than theirs: nothing can draw more."""
        if seed != self.tree["seed"]:
            raise ValueError(
                f"{self.tree['key']}: this edition holds the cases of seed {self.tree['seed']} only"
            )
        return self._checks

    def suits_by_name(self, check: Check) -> bool:
        return bool(self.tree["checks"][self.number(check)]["by_name"])

    def due(self, contract: Contract) -> list[Expectation | None]:
        place = next(i for i, one in enumerate(self.contracts) if one is contract)
        return [one and expectation(one) for one in self.tree["due"][place]]

    def mistaken(self, mistake: Mistake, check: Check, here: bool = True) -> Observation:
        """What a known mistake does on a check: stored where it is not what is expected."""
        seen = self.tree["mistakes"][self.place(mistake)]["observations"][self.number(check)]
        return check.expected.observation if seen is None else Observation.from_tree(seen)

    def broken_by(self, mistake: Mistake) -> list[Complaint | None]:
        breaks = self.tree["mistakes"][self.place(mistake)]["breaks"]
        return [one and Complaint(**one) for one in breaks]

    def place(self, mistake: Mistake) -> int:
        return next(i for i, one in enumerate(self.mistakes) if one is mistake)

    def number(self, check: Check) -> int:
        return next(i for i, one in enumerate(self._checks) if one is check)


class StoredExercise(Exercise):
    """An exercise made of data. Its reference is the book's version, or a stub in its place."""

    @classmethod
    def of(cls, tree: dict[str, Any]) -> "StoredExercise":
        expectations = FromFile(tree)
        parts = tuple(map(called, tree["parts"]))
        return cls(
            parts if len(parts) > 1 else parts[0],
            title=tree["title"],
            difficulty=tree["difficulty"],
            minutes=tree["minutes"],
            points=tree["points"],
            hints=tuple(tree["hints"]),
            probe=called(tree["probe"]),
            needs=tree["needs"],
            stand_in=tree["stand_in"],
            stand_in_note=tree["stand_in_note"],
            limit_s=tree["limit_s"],
            formats=tree["formats"],
            key=tree["key"],
            expectations=expectations,
            mistakes=expectations.mistakes,
            contracts=expectations.contracts,
        )


def chapter(module: str) -> dict[str, Exercise]:
    """The exercises of a chapter, by name; module: of the chapter, "course_utils.exercises.strides"."""
    package, _, name = module.rpartition(".")
    home = importlib.import_module(package).__file__
    assert home is not None
    folder = Path(home).parent / FOLDER / name
    found = (
        StoredExercise.of(without_pairs(loads(p.read_bytes())))
        for p in sorted(folder.glob(f"*{SUFFIX}"))
    )
    return {exercise.names[0]: exercise for exercise in found}


def case_from(tree: Tree) -> Case:
    """A case as it was stored."""
    found = Case.from_tree(tree)
    return found.on(tree["rung"], why=tree["why"])


def expectation(tree: Tree) -> Expectation:
    """What is expected of a case, as it was stored."""
    return Expectation(Observation.from_tree(tree["observation"]), tree["oracle"], tree["length"])


def contract_from(tree: Tree) -> Contract:
    """A contract as it was stored: its judge is made again from its figures."""
    cases = tuple(Case.from_tree(case) for case in tree["cases"])
    kinds = {kind.__name__: kind for kind in JUDGES}
    figures = dict(tree["judge"])
    kind = kinds[figures.pop("kind")]
    if "limits" in figures:
        figures["limit"] = Limits(cases, figures.pop("limits"))
    return Contract(
        tree["promise"],
        cases,
        kind(**figures),
        tree["watches_autograd"],
        tree["prepare"] and called(tree["prepare"]),
        tree["probe"] and called(tree["probe"]),
    )


class Limits:
    """A limit for each of a contract's cases."""

    def __init__(self, cases: tuple[Case, ...], numbers: list[int]) -> None:
        self.cases, self.numbers = cases, numbers

    def __call__(self, case: Case) -> int:
        return next(n for one, n in zip(self.cases, self.numbers, strict=True) if one is case)


def nothing() -> None:
    """In place of a mistake's object, which an edition does not hold."""
