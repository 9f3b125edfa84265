"""What a notebook may import of the book where the book is not: a module without its answers.

A chapter's notebook may import from `course_utils.reference` what no exercise asks for, such as the
dataclass of a model's sizes. In the process that runs students' code that package is missing; there
such a module stands in for it.
"""

import ast
import inspect

from course_utils.grading.declaring.exercise import Exercise
from course_utils.grading.declaring.registry import chapters, exercises_of
from course_utils.source.names import first_line, names_bound, names_used

PACKAGE = "course_utils.reference"
_IN_PLACE = '''class {name}:
    """Asked for in an exercise."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("{name} is an exercise: it is not given")'''


def given(exercise: Exercise) -> tuple[dict[str, str], tuple[str, ...]]:
    """The module of an exercise's reference, by name, as source; and the keys that it tells.

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
    keys = tuple(key for key in order if key in {asked[name] for name in told})
    return {module.__name__: "\n\n\n".join(out) + "\n"}, keys


def _siblings(exercise: Exercise) -> list[Exercise]:
    """The chapter's exercises in order, this one among them."""
    found = exercises_of(exercise.chapter) if exercise.chapter in chapters() else {}
    return list((found | {exercise.key: exercise}).values())
