"""Exercises without their answers: what was observed of reference and mistakes stands in for them.

An edition without answers holds, for each exercise, one file: the visible cases, what is expected
of them, what each known mistake does, contracts as figures. Verdicts, diagnoses and hints come out
as they would beside the reference; cases of another seed cannot be made from it.
"""

import importlib
from functools import cached_property
from pathlib import Path
from typing import Any

from .case import Case
from .contracts import JUDGES, Contract
from .crossing import loads
from .exercise import Exercise, Mistake
from .expected import Check, Expectation
from .observe import Observation
from .remote import called
from .values import Tree

FOLDER = "stored"
SUFFIX = ".safetensors"
BY_NAME_CHECKS = 5


class Stored:
    """What is known of one exercise. hidden: is its answer left out of this edition?"""

    def __init__(self, tree: dict[str, Any]) -> None:
        self.tree = tree
        self.hidden: bool = tree["hidden"]
        self.mistakes = [Mistake(one["says"], None, one["cost"]) for one in tree["mistakes"]]

    @cached_property
    def contracts(self) -> list[Contract]:
        return [contract_from(tree) for tree in self.tree["contracts"]]

    @cached_property
    def checks(self) -> list[Check]:
        return [Check(case_from(one["case"]), expectation(one)) for one in self.tree["checks"]]

    def checks_with(self, seed: int) -> list[Check]:
        """The stored checks. Raises ValueError for another seed than theirs: nothing can draw more."""
        if seed != self.tree["seed"]:
            raise ValueError(
                f"{self.tree['key']}: this edition holds the cases of seed {self.tree['seed']} only"
            )
        return self.checks

    def suits_by_name(self, check: Check) -> bool:
        return bool(self.tree["checks"][self.number(check)]["by_name"])

    def due_of(self, contract: Contract) -> list[Expectation | None]:
        place = next(i for i, one in enumerate(self.contracts) if one is contract)
        return [one and expectation(one) for one in self.tree["due"][place]]

    def mistaken(self, mistake: Mistake, check: Check) -> Observation:
        """What a known mistake does on a check: stored where it is not what is expected."""
        seen = self.tree["mistakes"][self.place(mistake)]["observations"][self.number(check)]
        return check.expected.observation if seen is None else Observation.from_tree(seen)

    def broken_by(self, mistake: Mistake) -> list[str | None]:
        return list(self.tree["mistakes"][self.place(mistake)]["breaks"])

    def place(self, mistake: Mistake) -> int:
        return next(i for i, one in enumerate(self.mistakes) if one is mistake)

    def number(self, check: Check) -> int:
        return next(i for i, one in enumerate(self.checks) if one is check)


class StoredExercise(Exercise):
    """An exercise made of data. Its reference is the book's version, or a stub in its place."""

    @classmethod
    def of(cls, tree: dict[str, Any]) -> "StoredExercise":
        stored = Stored(tree)
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
            key=tree["key"],
            stored=stored,
            mistakes=stored.mistakes,
            contracts=stored.contracts,
        )


def chapter(module: str) -> dict[str, Exercise]:
    """The exercises of a chapter, by name; module: of the chapter, "course_utils.exercises.strides"."""
    package, _, name = module.rpartition(".")
    home = importlib.import_module(package).__file__
    assert home is not None
    folder = Path(home).parent / FOLDER / name
    found = (StoredExercise.of(loads(p.read_bytes())) for p in sorted(folder.glob(f"*{SUFFIX}")))
    return {exercise.names[0]: exercise for exercise in found}


# ------------------------------------------------------------------------------ out of trees


def case_from(tree: Tree) -> Case:
    found = Case.from_tree(tree)
    return found.on(tree["rung"], why=tree["why"])


def expectation(tree: Tree) -> Expectation:
    return Expectation(Observation.from_tree(tree["observation"]), tree["oracle"], tree["length"])


def contract_from(tree: Tree) -> Contract:
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
