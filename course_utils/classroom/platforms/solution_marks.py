"""An exercise's cell with the book's solution between marks that nbgrader takes out again.

What nbgrader's ``generate_assignment`` leaves of it is the stub, character by character: the body
of each function is a region that becomes one line, and what only the solution needs above the
definition (imports, private helpers) is a region that becomes nothing.
"""

import ast
from functools import partial

from course_utils.grading import Exercise, find
from course_utils.grading.declaring.cells import cell, needed_source, stub_of
from course_utils.source.stub import YOUR_TURN
from course_utils.source.text import source_of

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
BEGIN_HELPERS = "### BEGIN HIDDEN TESTS (none here: what the solution needs above it)"
END_HELPERS = "### END HIDDEN TESTS"


def marked_cell(key: str) -> str:
    """The source of the exercise's cell with its solution, marked. Raises UnknownKey."""
    exercise = find(key)
    return _helpers(exercise) + cell(exercise, partial(_marked_source, exercise))


def _helpers(exercise: Exercise) -> str:
    needed = needed_source(exercise)
    return f"{BEGIN_HELPERS}\n{needed}\n{END_HELPERS}\n" if needed else ""


def _marked_source(exercise: Exercise, part: object) -> str:
    """The stub of a function or class with a marked region in place of each "your turn"."""
    source, stub = source_of(part), stub_of(exercise, part).splitlines()
    lines = source.splitlines()
    places = [i for i, line in enumerate(stub) if line.strip() == YOUR_TURN]
    public, private = _functions_of(ast.parse(source).body[0])
    if len(places) != len(public):
        raise ValueError(
            f"{len(places)} bodies in the stub, {len(public)} in the source:\n{source}"
        )
    regions = [_region(node, lines) for node in public]
    for node in private:  # a stub does not name them: they go with the last body
        regions[-1][-1:-1] = [
            "",
            *lines[node.lineno - 1 - len(node.decorator_list) : node.end_lineno],
        ]
    for place, new in reversed([*zip(places, regions, strict=True)]):
        stub[place : place + 1] = new
    return "\n".join(stub)


def _functions_of(node: ast.stmt) -> tuple[list[ast.FunctionDef], list[ast.FunctionDef]]:
    """The functions that the stub names, and those that it leaves out."""
    if isinstance(node, ast.FunctionDef):
        return [node], []
    methods = [m for m in getattr(node, "body", ()) if isinstance(m, ast.FunctionDef)]
    private = [m for m in methods if m.name.startswith("_") and not m.name.startswith("__")]
    return [m for m in methods if m not in private], private


def _region(node: ast.FunctionDef, lines: list[str]) -> list[str]:
    """A function's body, its docstring aside, between the marks."""
    documented = ast.get_docstring(node) is not None
    first = (node.body[0].end_lineno or 0) if documented else node.body[0].lineno - 1
    indent = " " * node.body[0].col_offset
    body = lines[first : node.end_lineno]
    return [indent + BEGIN, *(body or [indent + "pass"]), indent + END]
