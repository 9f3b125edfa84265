"""The two forms of an exercise's cell, both written from the reference: the stub and the solution.

The reference is the one source: its signature, annotations and docstring become the stub; the
whole of it, with the imports and private helpers that it needs, becomes the solution.
"""

import ast
import inspect
from functools import partial
from types import ModuleType
from typing import Any

from course_utils.source.names import first_line, import_of, names_bound, names_used
from course_utils.source.stub import stub_source
from course_utils.source.text import source_of

from .exercise import Exercise
from .registry import find

_IN_EVERY_NOTEBOOK = {"torch", "Tensor"}


def stub_cell(key: str) -> str:
    """The source of the exercise's cell as a student gets it."""
    exercise = find(key)
    return cell(exercise, partial(stub_of, exercise))


def stub_of(exercise: Exercise, part: Any) -> str:
    """The stub of one of an exercise's parts. The first one's docstring says all that is graded of
    the costs."""
    first = part is exercise.parts[0]
    return stub_source(part, [contract.promise for contract in exercise.contracts if first])


def solution_cell(key: str) -> str:
    """The source of the same cell with the book's version in it."""
    exercise = find(key)
    preamble = needed_source(exercise)
    return (preamble + "\n\n" if preamble else "") + cell(exercise, source_of)


def cell(exercise: Exercise, form: Any) -> str:
    """The exercise's cell: its decorator above each part, written by `form`, which takes the part."""
    decorator = f'@exercise("{exercise.key}")\n'
    return "\n\n\n".join(decorator + form(part) for part in exercise.parts)


def needed_source(exercise: Exercise) -> str:
    """Imports and private helpers that the solution uses and its stub does not."""
    module = inspect.getmodule(inspect.unwrap(exercise.parts[0]))
    assert module is not None
    tree = ast.parse(inspect.getsource(module))
    text = inspect.getsource(module).splitlines()
    declared = {name: node for node in tree.body for name in names_bound(node)}
    wanted = {name for part in exercise.parts for name in names_used(source_of(part))}
    wanted -= set(exercise.names) | _IN_EVERY_NOTEBOOK
    wanted -= {name for part in exercise.parts for name in names_used(stub_source(part))}
    wanted -= _exercises_named(module, exercise)
    found: dict[tuple[int, str], str] = {}
    while wanted:
        name = wanted.pop()
        node = declared.get(name)
        imports = isinstance(node, ast.Import | ast.ImportFrom)
        if node is None or (key := (node.lineno, name if imports else "")) in found:
            continue
        if imports:  # one statement may bring several names, each wanted by another helper
            found[key] = import_of(node, name)
            continue
        found[key] = "\n".join(text[first_line(node) - 1 : node.end_lineno])
        wanted |= names_used(found[key]) - _IN_EVERY_NOTEBOOK
    return "\n".join(found[key] for key in sorted(found))


def _exercises_named(module: ModuleType, exercise: Exercise) -> set[str]:
    """Names of the chapter's other exercises: earlier cells of the notebook bind them."""
    from .registry import chapters, exercises_of

    if exercise.chapter not in chapters():
        return set()
    return {name for other in exercises_of(exercise.chapter).values() for name in other.names}
