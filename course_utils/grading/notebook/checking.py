"""@exercise: running an answer's cell is its check."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from course_utils.grading.declaring.exercise import Exercise
from course_utils.grading.declaring.registry import find
from course_utils.grading.judging.judge import grade
from course_utils.grading.judging.outcomes import (
    FAILED,
    INTERRUPTED,
    NOT_ATTEMPTED,
    PASSED,
    SKIPPED,
)
from course_utils.grading.judging.verdict import Verdict, VerdictError
from course_utils.grading.observing.in_c import codes_of
from course_utils.source.stub import is_stub

from .answers import advice, record
from .binding import YOURS, YOURS_WRONG, bind, instead_of, names_bound_to, stands_for
from .display import Drawn
from .panels import ipython, show

T = TypeVar("T")

_parts: dict[str, dict[str, Any]] = {}


def exercise(key: str, *, strict: bool = False) -> Callable[[T], T]:
    """Check the decorated function or class against the exercise `key`, and bind the name.

    Not attempted: the name is bound to the book's version. Attempted: to yours, right or wrong.
    strict: raise VerdictError unless it passes (for the solved notebooks in CI).
    Raises UnknownKey for a key that no exercise has.
    """
    declared = find(key)

    def check(obj: T) -> T:
        objects = _collect_parts(declared, obj)
        if objects is None:
            return obj
        verdict, bound = judge(declared, objects)
        record(declared, verdict, objects)
        notes = verdict.notes + _not_passed_below(declared, verdict, objects)
        verdict = replace(verdict, notes=notes + advice(declared, verdict))
        show(Drawn(verdict))
        if strict and verdict.outcome not in (PASSED, SKIPPED):
            raise VerdictError(str(verdict))
        return bind(declared, obj, bound)

    return check


def _not_passed_below(declared: Exercise, verdict: Verdict, objects: list[Any]) -> tuple[str, ...]:
    """Of a failing answer: which of the student's own answers it uses that have not passed either."""
    if verdict.outcome != FAILED:
        return ()
    used = {name for obj in objects for code in codes_of(obj) for name in code.co_names}
    wrong = {
        key: next(iter(used.intersection(find(key).names)), "")
        for key, whose in stands_for.items()
        if whose == YOURS_WRONG and key != declared.key
    }
    return tuple(
        f"it uses your `{name}` ({key}), which has not passed: mend that first"
        for key, name in wrong.items()
        if name
    )


def _collect_parts(declared: Exercise, obj: Any) -> list[Any] | None:
    """The objects to judge; None while a pair still waits for its other half."""
    if len(declared.parts) == 1:
        return [obj]
    name = getattr(obj, "__name__", "")
    if name not in declared.names:
        print(f"{declared.key} asks for {' and '.join(declared.names)}; `{name}` is none of them.")
        return None
    have = _parts.setdefault(declared.key, {})
    have[name] = obj
    waiting = [n for n in declared.names if n not in have]
    if waiting:
        print(f"○ {name}: checked together with {' and '.join(waiting)}, once that is defined too.")
        return None
    del _parts[declared.key]
    return [have[n] for n in declared.names]


def judge(declared: Exercise, objects: list[Any]) -> tuple[Verdict, list[Any]]:
    """The verdict, and the objects that the names will be bound to."""
    if all(is_stub(obj) for obj in objects):
        meanwhile, whose, words = instead_of(declared, objects)
        stands_for[declared.key] = whose
        reason = (
            "Nothing was checked: write your answer in place of the last line and run the cell. "
            + words
        )
        return Verdict(declared.key, declared.title, NOT_ATTEMPTED, reason), meanwhile
    with names_bound_to(declared, objects):
        try:
            verdict = grade(declared, *objects)
        except KeyboardInterrupt:
            verdict = Verdict(declared.key, declared.title, INTERRUPTED, "you interrupted it")
    stands_for[declared.key] = YOURS if verdict.outcome == PASSED else YOURS_WRONG
    shell = ipython()
    if shell and verdict.outcome != PASSED:
        shell.events.register("post_run_cell", _name_what_has_not_passed)
    return verdict, objects


def _name_what_has_not_passed(result: Any) -> None:
    """Under a cell that raises: it may run on an answer whose verdict is some screens above."""
    if result.error_in_exec is None or isinstance(result.error_in_exec, KeyboardInterrupt):
        return
    names = [find(key).names[0] for key, whose in stands_for.items() if whose == YOURS_WRONG]
    if names:
        listed = ", ".join(f"`{name}`" for name in names)
        print(f"Not passed yet in this notebook: {listed}. This cell may fail because of that.")
