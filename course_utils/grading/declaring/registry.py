"""Exercises by key: those of the book's chapters, and any that somebody registers."""

import importlib
import pkgutil
from collections.abc import Iterable
from difflib import get_close_matches

from course_utils.grading.observing.global_state import quiet

from .exercise import Exercise


class UnknownKey(LookupError):
    """No exercise has this key."""


def chapters() -> list[str]:
    """The chapters that have exercises, in the order of the book."""
    exercises = importlib.import_module("course_utils.exercises")
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


def in_book_order(keys: Iterable[str]) -> list[str]:
    """Keys in the order in which the book asks for them; those that somebody registered come last."""
    order = chapters()

    def place(key: str) -> tuple[int, int]:
        chapter = key.partition(".")[0]
        if key in _extra or chapter not in order:
            return len(order), 0
        return order.index(chapter), [*exercises_of(chapter)].index(key)

    return sorted(keys, key=place)


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
    if str(key) in chapters():
        raise UnknownKey(f"{key} is a chapter; its exercises: {', '.join(exercises_of(key))}")
    chapter_meant = get_close_matches(str(key), chapters(), n=1, cutoff=0.7)
    near = chapter_meant or get_close_matches(str(key), [*every(), *_extra], n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else f"a key begins with its chapter: {', '.join(chapters())}"
    )
    raise UnknownKey(f"no exercise {key!r}; {hint}")
