"""The notebooks of an edition: whole chapters, or problem sets that hold the exercises alone."""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_utils.authoring import notebooks
from course_utils.classroom.marks.plan import Late, Plan
from course_utils.grading import find
from course_utils.source.cells import MAGIC, is_definition
from course_utils.source.names import import_of, names_bound, names_used

VERBS = ("exercise", "hint", "measure", "mine", "progress", "provenance", "reset", "solution")
EVERYWHERE = {"beartype", "einops", "jaxtyping", "numpy", "torch"}
"""Libraries whose imports a problem set takes over from its chapter, besides Python's own."""
SECRETIVE = ("solution", "use_book")
"""Verbs that an edition without answers does not import."""


def chapter_notebook(root: Path, chapter: str) -> Path:
    """The notebook of a chapter. Raises FileNotFoundError, saying where it was looked for."""
    found = sorted((root / "notebooks").glob(f"*_{chapter}.ipynb"))
    if not found:
        raise FileNotFoundError(
            f"no notebooks/NN_{chapter}.ipynb in {root}: run this in the course's folder"
        )
    return found[0]


def whole(notebook: NotebookNode, plan: Plan) -> NotebookNode:
    """The chapter with a cell, after its title, that says what counts, and until when."""
    cells = list(notebook.cells)
    here = [cell.metadata["exercise"] for cell in cells if "exercise" in cell.metadata]
    cells.insert(1, _markdown(opening(plan, here)))
    return notebooks.normalise(nbformat.from_dict(notebook | {"cells": cells}))


def problem_set(notebook: NotebookNode, plan: Plan, hidden: bool) -> NotebookNode:
    """The plan's exercises of this chapter, each with its statement, and nothing else."""
    cells = notebook.cells
    places = [i for i, c in enumerate(cells) if c.metadata.get("exercise") in plan.keys]
    keys = [cells[i].metadata["exercise"] for i in places]
    chapter = cells[0].source.splitlines()[0].removeprefix("# ")
    out = [
        _markdown(f"# {chapter}: exercises\n\n{opening(plan, keys)}"),
        _preamble(cells, places, hidden),
    ]
    for i in places:
        out += map(_markdown, _statement(cells, i))
        out.append(_code(cells[i].source, {"exercise": cells[i].metadata["exercise"]}))
    return notebooks.normalise(nbformat.from_dict(notebook | {"cells": out}), numbered=False)


def _markdown(source: str) -> NotebookNode:
    return nbformat.from_dict({"cell_type": "markdown", "metadata": {}, "source": source})


def _code(source: str, metadata: dict[str, object]) -> NotebookNode:
    cell = {"cell_type": "code", "metadata": metadata, "source": source}
    return nbformat.from_dict(cell | {"execution_count": None, "outputs": []})


# ------------------------------------------------------------------------------ what counts


def opening(plan: Plan, keys: Sequence[str]) -> str:
    """What counts in a notebook that holds these exercises, as Markdown."""
    items = [item for item in plan.items if item.key in keys]
    due = f", due {said(plan)}" if plan.due else ""
    lines = [f"**{plan.title}**{due}", "", "| Exercise | Points |", "|---|---|"]
    for item in items:
        exercise = find(item.key)
        lines.append(f"| {exercise.title} (`{exercise.names[0]}`) | {item.points:g} |")
    lines += ["", *_sentences(plan, len(items) < len(keys))]
    return "\n".join(lines).rstrip()


def said(plan: Plan) -> str:
    """The due date in words, with its time zone."""
    assert plan.due is not None
    offset = plan.due.strftime("%z")
    zone = f"UTC{offset[:3]}:{offset[3:5]}"
    return f"{plan.due.day} {plan.due.strftime('%B %Y, %H:%M')} ({zone})"


def _sentences(plan: Plan, ungraded: bool) -> Iterator[str]:
    if ungraded:
        yield "Exercises that are not in this list are for you; they earn no points."
    if plan.due:
        yield _late_rule(plan.late)
    if plan.hidden:
        yield (
            "This edition holds no answers to the exercises in the list. Until yours is there, its name "
            "raises when it is called, or stands for the library's own version where there is one: the "
            "verdict says which. Here answers are checked on stored cases; grading draws others."
        )


def _late_rule(late: Late) -> str:
    """What a late submission costs, in words."""
    if not late.per_day and late.closes_after_days is None:
        return "Late submissions lose nothing."
    rule = f"A late submission loses {late.per_day:.0%} of its points for each day begun"
    if late.most < 1:
        rule += f", {late.most:.0%} at most"
    if late.grace_minutes:
        rule += f"; the first {late.grace_minutes} minutes are not late"
    if late.closes_after_days is not None:
        rule += f"; after {late.closes_after_days} days it earns nothing"
    return rule + "."


# ------------------------------------------------------------------------------ problem sets


def _statement(cells: Sequence[NotebookNode], place: int) -> list[str]:
    """The Markdown that states the exercise in cell `place`: from its heading to the cell."""
    first = place
    while first and cells[first - 1].cell_type == "markdown":
        first -= 1
        heading = notebooks.EXERCISE.search(cells[first].source)
        if heading:
            rest = [cell.source for cell in cells[first + 1 : place]]
            return [cells[first].source[heading.start() :], *rest]
    return []


def _preamble(cells: Sequence[NotebookNode], places: Sequence[int], hidden: bool) -> NotebookNode:
    """The chapter's imports that the exercises may want, and the definitions that stubs use."""
    asked = {name for place in places for name in find(cells[place].metadata["exercise"]).names}
    before = list(_top_level(cells[: max(places)]))
    wanted = {name for place in places for name in names_used(cells[place].source)} - asked
    definitions: dict[int, str] = {}
    used = set(wanted)
    while wanted:
        name = wanted.pop()
        node = next((n for n in reversed(before) if name in names_bound(n)), None)
        if node is None or _is_import(node) or node.lineno in definitions:
            continue
        definitions[node.lineno] = ast.unparse(node)
        wanted |= names_used(node) - used
        used |= wanted
    prose = "".join(text for place in places for text in _statement(cells, place))
    used |= set(re.findall(r"`([A-Za-z_]\w*)", prose))
    imports = {
        import_of(node, name): None
        for node in before
        if _is_import(node)
        for name in names_bound(node)
        if name not in asked and _takes(node, name, used, hidden)
    }
    kept = [definitions[place] for place in sorted(definitions)]
    return _code("\n".join([*_joined(imports), "", *kept]).strip(), {})


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _top_level(cells: Sequence[NotebookNode]) -> Iterator[ast.stmt]:
    """The statements of the chapter's ordinary code cells: no set-up, no exercise, no ranks."""
    number = 0
    for cell in cells:
        special = "exercise" in cell.metadata or "setup" in notebooks.tags(cell)
        if cell.cell_type != "code" or special or cell.source.lstrip().startswith("%%"):
            continue
        for node in ast.parse(MAGIC.sub(r"\1pass", cell.source)).body:
            if is_definition(node):
                number += 1
                node.lineno = number  # its place among all of them
                yield node


def _takes(node: ast.stmt, name: str, used: set[str], hidden: bool) -> bool:
    """Does a problem set need this import of its chapter?"""
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
    else:
        assert isinstance(node, ast.Import)
        module = node.names[0].name
    root = module.partition(".")[0]
    if module == "course_utils":
        return name in VERBS and not (hidden and name in SECRETIVE)
    if root == "course_utils":
        return name in used
    return root in EVERYWHERE or root in sys.stdlib_module_names


def _joined(imports: dict[str, None]) -> list[str]:
    """Import statements sorted, those from one module as one."""
    plain = sorted(line for line in imports if line.startswith("import "))
    names: dict[str, list[str]] = {}
    for line in imports:
        if line.startswith("from "):
            module, _, what = line.removeprefix("from ").partition(" import ")
            names.setdefault(module, []).append(what)
    return plain + [f"from {m} import {', '.join(sorted(names[m]))}" for m in sorted(names)]
