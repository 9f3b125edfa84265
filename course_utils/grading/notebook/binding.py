"""What an exercise's name stands for: the student's object, the book's, a library's."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from course_utils.grading.declaring.exercise import Exercise

YOURS, YOURS_WRONG, BOOK = "yours", "yours, not passed yet", "the book's"
_NOBODY = "nobody's yet: this edition holds no answer"
stands_for: dict[str, str] = {}
"""By key, whose code the exercise's name stands for in this kernel."""


def instead_of(declared: Exercise, stubs: list[Any]) -> tuple[list[Any], str, str]:
    """What the names stand for while nothing is attempted: the objects, whose they are, a sentence.

    An edition without answers has the library's own version, where one is declared, or the stub.
    """
    if declared.has_answer:
        return list(declared.parts), BOOK, "Until then the name is bound to the book's version."
    if declared.stand_in:
        whose = f"the library's {declared.stand_in}"
        words = f"Until then the name is bound to {whose}. {declared.stand_in_note}".rstrip()
        return [library(declared)], whose, words
    words = "This edition holds no answer to it: until yours is there, calling it raises."
    return stubs, _NOBODY, words


def library(declared: Exercise) -> Any:
    """The library's own version of an exercise that declares one."""
    assert declared.stand_in
    module, _, name = declared.stand_in.rpartition(".")
    return getattr(importlib.import_module(module), name)


class NoAnswer(LookupError):
    """This edition holds no answer to an exercise."""


def without_answer(key: str) -> NoAnswer:
    """The exception for an exercise whose answer this edition leaves out."""
    return NoAnswer(
        f"this edition holds no answer to {key}: write your own, or ask for hint({key!r})"
    )


class names_bound_to:
    """While checks run, each name means the student's object: recursion, classes naming themselves."""

    def __init__(self, declared: Exercise, objects: Sequence[Any]) -> None:
        self.new = dict(zip(declared.names, objects, strict=True))
        self.space = _globals_of(objects[0])
        self.old: dict[str, Any] = {}

    def __enter__(self) -> None:
        self.old = {name: self.space[name] for name in self.new if name in self.space}
        self.space.update(self.new)

    def __exit__(self, *_: object) -> None:
        for name in self.new:
            if name in self.old:
                self.space[name] = self.old[name]
            else:
                self.space.pop(name, None)


def _globals_of(obj: Any) -> dict[str, Any]:
    if hasattr(obj, "__globals__"):
        return obj.__globals__  # type: ignore[no-any-return]
    module = sys.modules.get(getattr(obj, "__module__", ""), None)
    return vars(module) if module else {}


def bind(declared: Exercise, obj: Any, bound: list[Any]) -> Any:
    """What the decorated name becomes; a pair's other names are bound in its namespace."""
    by_name = dict(zip(declared.names, bound, strict=True))
    if len(bound) > 1:
        _globals_of(obj).update({k: v for k, v in by_name.items() if k != obj.__name__})
        return by_name[obj.__name__]
    return bound[0]
