"""A class that has worked on a chapter of the book: right answers, known mistakes, stubs, and damage.

Made of the book's own references, alternatives and mistakes, by a seed. Run it to write one:
`python tests/classroom/book_class.py FOLDER [STUDENTS]`.
"""

import ast
import inspect
import random
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from submissions import folder_of, notebook

from course_utils.classroom.marks.plan import Late, Plan, plan_of
from course_utils.grading import Exercise, exercises_of, solution_cell, stub_cell
from course_utils.source.capture import capture
from course_utils.source.names import names_used
from course_utils.source.text import source_of

SET_UP = (
    "import math\nfrom math import prod\n\nimport numpy as np\nimport torch\nfrom jaxtyping import "
    "Bool, Float, Int, Shaped\nfrom torch import Tensor, nn\nfrom torch.nn import functional as F\n\n"
    "from course_utils import exercise, hint, progress"
)
AT_HAND = {"math", "prod", "np", "torch", "Tensor", "nn", "F", "Bool", "Float", "Int", "Shaped"}
DUE = datetime(2026, 11, 16, 18, tzinfo=UTC)


@dataclass(frozen=True)
class Answers:
    """The cells that answer one exercise, by what they are; a mistake with the sentence that it is due."""

    right: tuple[str, ...]
    mistaken: tuple[tuple[str, str], ...]
    stub: str


def answers_to(exercise: Exercise) -> Answers:
    others = [cell_of(exercise, one.subject) for one in exercise.alternatives]
    mistaken = [(one.says, cell_of(exercise, one.subject)) for one in exercise.mistakes]
    return Answers(
        (solution_cell(exercise.key), *(cell for cell in others if cell)),
        tuple((says, cell) for says, cell in mistaken if cell),
        stub_cell(exercise.key),
    )


def cell_of(exercise: Exercise, subject: Any) -> str | None:
    """A known version as a student would have written it; None if its source needs the book's."""
    if isinstance(subject, dict) or getattr(getattr(subject, "__code__", None), "co_freevars", ()):
        return None
    try:
        (node,) = ast.parse(source_of(subject)).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return None
    node.decorator_list, node.name = [], exercise.names[0]
    home = globals_of(subject)
    borrowed = Borrowed(home.get(exercise.chapter))
    body = ast.unparse(borrowed.visit(node))
    needed = [book_version(exercise.chapter, name) for name in sorted(borrowed.names)]
    for name in sorted(names_used(body) & set(home) - AT_HAND):
        found = home[name]
        if name not in exercise.names and (book := book_version(exercise.chapter, name)):
            body = re.sub(rf"\b{name}\b", f"book_{name}", body)
            needed.append(book)
            continue
        if not inspect.isfunction(found) or "course_utils.reference" in str(found.__module__):
            return None
        source, missing = capture(found)
        if missing or "course_utils" in source:
            return None
        needed.append(source)
    return None if None in needed else "\n".join([*needed, f'@exercise("{exercise.key}")', body])


def globals_of(subject: Any) -> dict[str, Any]:
    """The names of the module that a function, or a class's methods, were written in; an edit's, too."""
    for one in (subject, *vars(subject).values()):
        function = inspect.unwrap(getattr(one, "__func__", one))
        if hasattr(function, "__globals__"):
            return function.__globals__
    return vars(inspect.getmodule(subject) or inspect)


class Borrowed(ast.NodeTransformer):
    """`strides.x`, of the chapter's reference, becomes `book_x`. names: those that were met."""

    def __init__(self, reference: ModuleType | None) -> None:
        self.reference, self.names = reference, set[str]()

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        short = self.reference.__name__.rpartition(".")[2] if self.reference else None
        if isinstance(node.value, ast.Name) and node.value.id == short:
            self.names.add(node.attr)
            return ast.Name(f"book_{node.attr}", node.ctx)
        return node


def book_version(chapter: str, name: str) -> str | None:
    """The reference of an exercise as a helper called `book_…`."""
    key = f"{chapter}.{name}"
    if key not in exercises_of(chapter):
        return None
    text = solution_cell(key).replace(f'@exercise("{key}")\n', "")
    return re.sub(rf"\b{name}\b", f"book_{name}", text)


def book_class(chapter: str, students: int, seed: int) -> dict[str, bytes]:
    """Files of a folder of student folders, as nbgrader collects them."""
    draw = random.Random(seed)
    answers = [answers_to(one) for one in exercises_of(chapter).values()]
    files: dict[str, bytes] = {}
    for number in range(students):
        skill = draw.betavariate(4, 1.5)
        name = f"student{number:03}"
        cells = [SET_UP, *(cell for one in answers if (cell := drawn(one, skill, draw)))]
        data = notebook(*cells)
        if number % 50 == 17:
            data = data[: len(data) // 2]
        files[f"{name}/{chapter}/{chapter}.ipynb"] = data
        when = DUE + timedelta(hours=draw.triangular(-72, 60, -4))
        files[f"{name}/{chapter}/timestamp.txt"] = f"{when:%Y-%m-%d %H:%M:%S} UTC".encode()
    return files


def drawn(one: Answers, skill: float, draw: random.Random) -> str | None:
    if draw.random() < skill:
        return draw.choice(one.right)
    if one.mistaken and draw.random() < 0.7:
        return draw.choice(one.mistaken)[1]
    return one.stub if draw.random() < 0.8 else None


def plan_for(chapter: str) -> Plan:
    late = Late(per_day=0.1, most=0.5, grace_minutes=15)
    return plan_of([chapter], title=f"Homework: {chapter}", due=DUE, late=late)


def main(folder: str, students: str = "200", chapter: str = "strides") -> None:
    place = Path(folder)
    folder_of(place / "submitted", book_class(chapter, int(students), seed=20261121))
    (place / "plan.json").write_text(plan_for(chapter).to_json(), encoding="utf-8")
    print(f"{students} submissions in {place / 'submitted'}, the plan in {place / 'plan.json'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
