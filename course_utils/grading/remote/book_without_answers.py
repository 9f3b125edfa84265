"""What a notebook may import of the book where the book is not: modules without their answers.

A chapter's notebook may import from `course_utils.reference` what no exercise asks for, such as the
dataclass of a model's sizes. In the process that runs students' code that package is missing; there
such modules stand in for it.
"""

import ast
import inspect
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from course_utils.grading.declaring.exercise import Exercise
from course_utils.grading.declaring.registry import (
    chapters,
    every,
    exercises_of,
    in_book_order,
)
from course_utils.source.imports import imports_in
from course_utils.source.names import first_line, names_bound, names_used

PACKAGE = "course_utils.reference"
_IN_PLACE = '''class {name}:
    """Asked for in an exercise."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("{name} is an exercise: it is not given")'''


def given(exercise: Exercise) -> tuple[dict[str, str], tuple[str, ...]]:
    """The module of an exercise's reference and those of the book that it imports, as sources by name,
    in an order in which they can be made; and the keys that they tell.

    Of what is asked for in exercises there are only names that raise, except for the answers to
    earlier exercises: of this module those that the rest needs (a default that is the book's attention).
    So nobody's answer to those may be judged afterwards in a process that was given it.
    """
    module = inspect.getmodule(inspect.unwrap(exercise.parts[0]))
    if module is None or not module.__name__.startswith(PACKAGE):
        return {}, ()
    asked = {name: one.key for one in _siblings(exercise) for name in one.names}
    order = list(dict.fromkeys(asked.values()))
    earlier = set(order[: order.index(exercise.key)])
    text = inspect.getsource(module)
    bound = {name: node for node in ast.parse(text).body for name in names_bound(node)}
    told: set[str] = set()
    wanted = {n for name, node in bound.items() if name not in asked for n in names_used(node)}
    while wanted:
        name = wanted.pop()
        if asked.get(name) in earlier and name not in told:
            told.add(name)
            wanted |= names_used(bound[name])
    text = _without(text, {name for name in asked if name not in told})
    found: dict[str, str] = {}
    keys = {asked[name] for name in told}
    keys |= _add_imported(found, module.__name__, text, _before(exercise))
    return found | {module.__name__: text}, tuple(sorted(keys))


def _without(source: str, hidden: set[str]) -> str:
    """A module's source with names that raise in place of these."""
    lines, out = source.splitlines(), []
    for node in ast.parse(source).body:
        gone = [name for name in names_bound(node) if name in hidden]
        out += [_IN_PLACE.format(name=name) for name in gone]
        if not gone:
            out.append("\n".join(lines[first_line(node) - 1 : node.end_lineno]))
    return "\n\n\n".join(out) + "\n"


def _add_imported(found: dict[str, str], name: str, text: str, before: set[str]) -> set[str]:
    """Add the book's modules that this text of a module imports, those first that others import.

    Of their answers they hold those to exercises of `before`, which are judged by then; their keys.
    """
    keys: set[str] = set()
    for one in imports_in(ast.parse(text), name, PACKAGE):
        home = one.dotted if _is_module(one.dotted) else one.module
        if home not in (PACKAGE, name, *found):
            asked = _asked_in(home)
            source = inspect.getsource(import_module(home))
            given_text = _without(source, {n for n, key in asked.items() if key not in before})
            keys |= before.intersection(asked.values())
            keys |= _add_imported(found, home, given_text, before)
            found[home] = given_text
    return keys


def _before(exercise: Exercise) -> set[str]:
    """The exercises that the book asks for before this one: a submission is judged in its order."""
    order = _order()
    return set(order[: order.index(exercise.key)] if exercise.key in order else order)


@cache
def _order() -> tuple[str, ...]:
    return tuple(in_book_order(every()))


@cache
def _asked_in(module: str) -> dict[str, str]:
    """Names of a module that exercises ask for, with the keys of these."""
    return {
        name: one.key
        for one in every().values()
        for name, part in zip(one.names, one.parts, strict=True)
        if inspect.unwrap(part).__module__ == module
    }


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _siblings(exercise: Exercise) -> list[Exercise]:
    """The chapter's exercises in order, this one among them."""
    found = exercises_of(exercise.chapter) if exercise.chapter in chapters() else {}
    return list((found | {exercise.key: exercise}).values())
