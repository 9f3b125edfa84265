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
from course_utils.grading.declaring.registry import chapters, every, exercises_of
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
    earlier exercises that the rest needs (a default that is the book's attention): so nobody's answer
    to those may be judged afterwards in a process that was given it.
    """
    module = inspect.getmodule(inspect.unwrap(exercise.parts[0]))
    if module is None or not module.__name__.startswith(PACKAGE):
        return {}, ()
    asked = {name: one.key for one in _siblings(exercise) for name in one.names}
    order = list(dict.fromkeys(asked.values()))
    earlier = set(order[: order.index(exercise.key)])
    text = inspect.getsource(module)
    tree, lines = ast.parse(text), text.splitlines()
    bound = {name: node for node in tree.body for name in names_bound(node)}
    told: set[str] = set()
    wanted = {n for name, node in bound.items() if name not in asked for n in names_used(node)}
    while wanted:
        name = wanted.pop()
        if asked.get(name) in earlier and name not in told:
            told.add(name)
            wanted |= names_used(bound[name])
    out = []
    for node in tree.body:
        hidden = [name for name in names_bound(node) if name in asked and name not in told]
        out += [_IN_PLACE.format(name=name) for name in hidden]
        if not hidden:
            out.append("\n".join(lines[first_line(node) - 1 : node.end_lineno]))
    text = "\n\n\n".join(out) + "\n"
    found: dict[str, str] = {}
    keys = {asked[name] for name in told}
    _add_imported(found, keys, module.__name__, text, earlier)
    return found | {module.__name__: text}, tuple(sorted(keys))


def _add_imported(
    found: dict[str, str], keys: set[str], name: str, text: str, earlier: set[str]
) -> None:
    """Add the book's modules that this text of a module imports, those first that others import.

    They hold no answer to the exercise or a later one of its chapter. keys: is told what they do hold.
    """
    for one in imports_in(ast.parse(text), name, PACKAGE):
        home = one.dotted if _is_module(one.dotted) else one.module
        if home in (PACKAGE, name) or home in found:
            continue
        source = inspect.getsource(import_module(home))
        tree, lines = ast.parse(source), source.splitlines()
        chapter = {key.partition(".")[0] for key in earlier}
        out = []
        for node in tree.body:
            asked = {_asked_in(home).get(bound, "") for bound in names_bound(node)} - {""}
            hidden = {k for k in asked if k.partition(".")[0] in chapter and k not in earlier}
            keys |= asked - hidden
            out += [_IN_PLACE.format(name=bound) for bound in names_bound(node) if hidden]
            if not hidden:
                out.append("\n".join(lines[first_line(node) - 1 : node.end_lineno]))
        given_text = "\n\n\n".join(out) + "\n"
        _add_imported(found, keys, home, given_text, earlier)
        found[home] = given_text


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
