"""What an edition without answers keeps of an exercise: observations, made here beside the answers."""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from course_utils.grading import Exercise
from course_utils.grading.comparing.check import Check, Expectation
from course_utils.grading.declaring.exercise import Expectations, Mistake
from course_utils.grading.declaring.judges import JUDGES, resolve
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Contract
from course_utils.grading.driving.describe import described, methods_due
from course_utils.grading.expecting import expectations_of
from course_utils.grading.expecting.from_file import with_pairs
from course_utils.grading.judging.ladder import BY_NAME_CHECKS
from course_utils.grading.observing.observe import Observation
from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.tree import (
    Tree,
    fresh,
    is_plain_tensor,
    leaves,
    map_tree,
    same,
    slots,
)
from course_utils.grading.student.protocol import name_of

from .removal import home, stub_in_edition

SEED = 0
LEFT_OUT = ("course_utils.reference", "course_utils.exercises", "course_utils.authoring")
"""Where nothing may live that a stored exercise needs."""


class NotStorable(Exception):
    """What of an exercise cannot be kept as data, in a sentence."""


def stored(exercise: Exercise, hidden: bool) -> bytes:
    """The file of one exercise. hidden: the edition holds a stub in the reference's place.

    Raises NotStorable.
    """
    return dumps(with_pairs(_recorded(exercise, hidden)))


def _recorded(exercise: Exercise, hidden: bool) -> Tree:
    """Everything that verdicts, diagnoses and hints need of an exercise, as a tree."""
    keeping = Keeping(exercise.key)
    expectations = expectations_of(exercise)
    checks = expectations.checks(SEED)
    _stub_tells_as_much(exercise)
    return {
        "key": exercise.key,
        "hidden": hidden,
        "seed": SEED,
        "title": exercise.title,
        "difficulty": exercise.difficulty,
        "minutes": exercise.minutes,
        "points": exercise.points,
        "hints": list(exercise.hints),
        "needs": exercise.needs,
        "stand_in": exercise.stand_in,
        "stand_in_note": exercise.stand_in_note,
        "limit_s": exercise.limit_s,
        "formats": exercise.formats,
        "probe": keeping.name(exercise.probe),
        "parts": [f"{home(part)}:{part.__name__}" for part in exercise.parts],
        "checks": [
            {
                "case": keeping.case(check.case) | {"rung": check.case.rung, "why": check.case.why},
                **keeping.expectation(check.expected),
                "by_name": number < BY_NAME_CHECKS
                and not exercise.is_class
                and expectations.suits_by_name(check),
            }
            for number, check in enumerate(checks)
        ],
        "contracts": [keeping.contract(contract) for contract in exercise.contracts],
        "due": [
            [one and keeping.expectation(one) for one in expectations.due(contract)]
            for contract in exercise.contracts
        ],
        "mistakes": [
            {"says": mistake.says, "cost": mistake.cost, **observed}
            for mistake in exercise.mistakes
            if (observed := _what_it_does(mistake, keeping, expectations, checks)) is not None
        ],
    }


def _what_it_does(
    mistake: Mistake, keeping: "Keeping", expectations: Expectations, checks: Sequence[Check]
) -> dict[str, Any] | None:
    """A mistake as data. None if it gives what is none, such as bytes: it goes without its sentence."""
    if mistake.cost:
        broken = [one and asdict(one) for one in expectations.broken_by(mistake)]
        return {"observations": [], "breaks": broken}
    try:
        seen = [keeping.mistake(expectations.mistaken(mistake, one), one) for one in checks]
    except NotStorable:
        return None
    return {"observations": seen, "breaks": []}


def _stub_tells_as_much(exercise: Exercise) -> None:
    """The stub must describe itself as the reference does: it is what signatures are held to."""
    space = dict(vars(sys.modules[home(exercise.parts[0])]))
    for part in exercise.parts:
        exec(stub_in_edition(part), space)
    for part in exercise.parts:
        stub, due = space[part.__name__], methods_due(part)
        told = described(stub, due), methods_due(stub)
        if not same(told[0], described(inspect.unwrap(part), due)) or told[1] != due:
            raise NotStorable(
                f"{exercise.key}: the stub of {part.__name__} says less than it should"
            )


class Keeping:
    """Turns what is known of one exercise into trees; equal tensors are kept once."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.pool: dict[tuple[Any, ...], Tensor] = {}

    def stop(self, what: str) -> NotStorable:
        return NotStorable(f"{self.key}: {what}")

    def name(self, function: Any) -> str:
        """A function by its name. It must live where every edition has it."""
        try:
            name = name_of(function)
        except ValueError as error:
            raise self.stop(str(error)) from error
        if name.startswith(LEFT_OUT):
            raise self.stop(f"{name} is not in an edition: move it to course_utils.grading.probes")
        return name

    def case(self, case: Case) -> dict[str, Any]:
        """A case as it is: strides, offsets and shared storages count."""
        tree = case.as_tree()
        for leaf in leaves(tree):
            if not _storable(leaf) or type(leaf) is Parameter:
                raise self.stop(f"a case holds a {type(leaf).__name__}, which is no data")
        return dict(tree)

    def expectation(self, expected: Expectation) -> dict[str, Any]:
        return {
            "observation": self.observation(expected.observation),
            "oracle": self.seen(expected.oracle),
            "length": expected.length,
        }

    def mistake(self, found: Observation, check: Check) -> dict[str, Any] | None:
        """What a mistake does; None where that is what is expected."""
        want = check.expected.observation
        alike = same(found.seen, want.seen) and list(found.seen or ()) == list(want.seen or ())
        if alike and not (found.raised or want.raised) and found.left == want.left:
            return None
        return self.observation(found)

    def observation(self, found: Observation) -> dict[str, Any]:
        """Without the lines of source that an exception came from."""
        raised = found.raised and replace(found.raised, lines=(), where="")
        return replace(found, seen=self.seen(found.seen), raised=raised, seconds=0.0).as_tree()

    def seen(self, tree: Tree) -> Tree:
        for leaf in leaves(tree):
            if not _storable(leaf):
                raise self.stop(f"a probe saw a {type(leaf).__name__}, which is no data")
        return map_tree(self.pooled, tree)

    def pooled(self, leaf: Any) -> Any:
        if isinstance(leaf, np.generic):
            return leaf.item()
        if not isinstance(leaf, Tensor) or leaf.is_meta:
            return leaf
        x = _compact(leaf.detach())
        outline = type(leaf), x.dtype, x.shape, x.stride(), x.storage_offset()
        kept = Parameter(x, leaf.requires_grad) if type(leaf) is Parameter else x
        return self.pool.setdefault((slots(x).numpy().tobytes(), *outline), kept)

    def contract(self, contract: Contract) -> dict[str, Any]:
        judge = contract.judge
        if type(judge) not in JUDGES:
            raise self.stop(f"the contract {contract.promise!r} has a judge that is no data")
        figures = {one.name: getattr(judge, one.name) for one in fields(judge)}  # type: ignore[arg-type]
        if "limit" in figures:
            limit = figures.pop("limit")
            figures["limits"] = [int(resolve(limit, case)) for case in contract.cases]
        return {
            "promise": contract.promise,
            "cases": [self.case(case) for case in contract.cases],
            "judge": {"kind": type(judge).__name__, **figures},
            "watches_autograd": contract.watches_autograd,
            "prepare": contract.prepare and self.name(contract.prepare),
            "probe": contract.probe and self.name(contract.probe),
        }


def _compact(x: Tensor) -> Tensor:
    """A copy in no more memory than its elements need: windows of a small tensor stay windows."""
    with torch.no_grad():
        if x.untyped_storage().nbytes() < x.numel() * x.element_size():
            copy: Tensor = fresh(x)
            return copy
        return torch.empty(x.shape, dtype=x.dtype).copy_(x)


def _storable(leaf: Any) -> bool:
    """Does this come back from a file as it went in?"""
    if isinstance(leaf, Tensor):
        plain = type(leaf) in (Tensor, Parameter) and is_plain_tensor(leaf)
        return plain and leaf.device.type in ("cpu", "meta")
    kinds = (bool, int, float, str, torch.dtype, torch.device, np.generic)
    return leaf is None or isinstance(leaf, kinds)
