"""The notebooks as files: one normal form, a form to edit, a solved form. `problems` says what is
wrong with one.

The committed form is the `.ipynb` that `normalise` writes: sorted keys, no outputs (current recordings from
a GPU aside, each beneath its label), ids that follow from the content; the set-up cell, the exercises' stubs
and the lines that announce them rewritten from their one source. `to_percent` and `from_percent` go to a
Python file that is pleasant to edit and back, byte for byte.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from course_utils import grading
from course_utils.recordings import cells as gpu_cells
from course_utils.settings import settings

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
TITLE = re.compile(r"# (\d+) · \S")
EXERCISE = re.compile(r"^> \*\*Exercise\b(?: (?P<number>\d+\.\d+))?[^*\n]*\*\*", re.MULTILINE)
"""How the line begins that announces an exercise; `normalise` writes this part of it."""

METADATA = ("exercise", "name", "recorded", "tags")
"""What a cell's metadata may say: its exercise, a name for reports, the stamp of its outputs, its tags."""

SETUP = """\
# Finds the course's own package beside this notebook; on a machine that has only the notebook, installs it.
import importlib.util
import sys
from pathlib import Path

REPOSITORY = "{repository}"
if importlib.util.find_spec("course_utils") is None:
    homes = [home for home in Path.cwd().resolve().parents if (home / "course_utils").is_dir()]
    if homes:
        sys.path.insert(0, str(homes[0]))
    elif REPOSITORY:
        %pip install -q git+{{REPOSITORY}}
    else:
        raise ModuleNotFoundError("course_utils is not here: run `make lab` in its folder")
"""


def setup_source() -> str:
    """Source of the set-up cell, the same in every notebook.

    The package does not depend on torch, so installing it leaves the host's own torch alone.
    """
    return SETUP.format(repository=settings.repository).rstrip("\n")


# The normal form


def normalise(notebook: NotebookNode, *, numbered: bool = True) -> NotebookNode:
    """A copy of `notebook` in the form that is committed. Normalising twice changes nothing.

    numbered: exercises are numbered by their order; else, in a part of a chapter, they keep theirs.
    Raises KeyError where a cell names an exercise that does not exist.
    """
    kept = [c for c in notebook.cells if c.source.strip() or "exercise" in c.metadata]
    cells = [_normal_cell(cell) for cell in kept]
    setup = [cell for cell in cells if "setup" in tags(cell)]
    if not setup:
        first = 1 if cells and cells[0].cell_type == "markdown" else 0
        cells.insert(first, _cell("code", setup_source(), {"tags": ["setup"]}))
    _announce(cells, numbered)
    for cell, identity in zip(cells, _identities(cells), strict=True):
        cell["id"] = identity
    gpu_cells.settle(cells, lambda key: grading.solution_cell(key))
    return nbformat.from_dict(
        {
            "cells": cells,
            "metadata": {"kernelspec": KERNEL, "language_info": {"name": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return cell.metadata.get("tags", [])


def _cell(kind: str, source: str, metadata: dict) -> NotebookNode:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": metadata, "source": source}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return nbformat.from_dict(cell)


def _normal_cell(cell: NotebookNode) -> NotebookNode:
    metadata = {key: cell.metadata[key] for key in METADATA if cell.metadata.get(key)}
    if "tags" in metadata:
        metadata["tags"] = sorted(set(metadata["tags"]))
    lines = [line.rstrip() for line in cell.source.splitlines()]
    normal = _cell(cell.cell_type, "\n".join(lines).strip("\n"), metadata)
    if cell.cell_type != "code":
        return normal
    if "setup" in tags(normal):
        normal.source = setup_source()
    if "exercise" in metadata:
        normal.source = grading.stub_cell(metadata["exercise"]).rstrip("\n")
    if "gpu" in tags(normal):
        normal.outputs = cell.outputs  # `settle` keeps what is current
    return normal


def _announce(cells: list[NotebookNode], numbered: bool) -> None:
    """Write number, name, stars and minutes into the line before each exercise."""
    title = TITLE.match(cells[0].source) if cells else None
    places = [place for place, cell in enumerate(cells) if "exercise" in cell.metadata]
    for position, place in enumerate(places, start=1):
        said, key = heading(cells, place), cells[place].metadata["exercise"]
        if said is None:
            continue
        before, found = said
        by_order = f"{title[1]}.{position}" if title and numbered else None
        line = _line(by_order or found["number"], key)
        before.source = before.source[: found.start()] + line + before.source[found.end() :]


def heading(cells: list[NotebookNode], place: int) -> tuple[NotebookNode, re.Match[str]] | None:
    """The Markdown cell right before the exercise in cell `place`, and the line that announces it."""
    before = cells[place - 1] if place else None
    if before is None or before.cell_type != "markdown":
        return None
    found = EXERCISE.search(before.source)
    return (before, found) if found else None


def _line(number: str | None, key: str) -> str:
    declared = grading.find(key)
    stars = "★" * declared.difficulty + "☆" * (3 - declared.difficulty)
    named = f"Exercise {number}" if number else "Exercise"
    return f"> **{named} ({key.split('.')[-1]}), {stars}, {declared.minutes} min.**"


def _identities(cells: list[NotebookNode]) -> Iterator[str]:
    """An id for each cell: that of its exercise or heading, else its place below the heading.

    So inserting a cell renames few others, and an id says where one is.
    """
    seen: Counter[str] = Counter()
    section = "start"
    for cell in cells:
        heading = re.match(r"#+ +(.+)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            name = section = _slug(heading[1])
        elif "exercise" in cell.metadata:
            name = "exercise-" + _slug(cell.metadata["exercise"])
        elif "setup" in tags(cell):
            name = "setup"
        else:
            name = f"{section}-cell"
        seen[name] += 1
        yield name if seen[name] == 1 and not name.endswith("-cell") else f"{name}-{seen[name]}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")[:48] or "section"


def read(path: str | Path) -> NotebookNode:
    """The notebook at `path`: an `.ipynb`, or a Python file in the percent format."""
    text = Path(path).read_text(encoding="utf-8")
    return from_percent(text) if Path(path).suffix == ".py" else nbformat.reads(text, as_version=4)


def text(notebook: NotebookNode) -> str:
    """The bytes of an `.ipynb`, as committed: sorted keys, one space of indentation, a final newline."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def keep_recorded(notebook: NotebookNode, recorded: NotebookNode) -> NotebookNode:
    """`notebook` with the recordings that `recorded` holds, normalised: what is not current says so.

    A gpu cell is known by its source, or, where that has changed, by its id.
    """
    gpu = [cell for cell in recorded.cells if "gpu" in tags(cell)]
    known = {cell.id: cell for cell in gpu} | {cell.source: cell for cell in gpu}
    for cell in notebook.cells:
        match = known.get(cell.source) or known.get(cell.get("id"))
        if "gpu" in tags(cell) and match is not None:
            cell.outputs = match.outputs
            if "recorded" in match.metadata:
                cell.metadata["recorded"] = match.metadata["recorded"]
    return normalise(notebook)


# The form to edit


def to_percent(notebook: NotebookNode) -> str:
    """A normal notebook as Python source in jupytext's percent format. Recorded outputs stay behind."""
    plain = nbformat.from_dict(notebook)
    plain.metadata = nbformat.from_dict(
        {
            "jupytext": {
                "cell_metadata_filter": "exercise,name,tags,-all",
                "notebook_metadata_filter": "-all",
            }
        }
    )
    return jupytext.writes(plain, fmt={"extension": ".py", "format_name": "percent"})


def from_percent(source: str) -> NotebookNode:
    """The notebook of a Python source in the percent format; `normalise` gives it its last form."""
    return jupytext.reads(source, fmt={"extension": ".py", "format_name": "percent"})


# The solved form


def solve(notebook: NotebookNode) -> NotebookNode:
    """A copy of `notebook` with the book's solution in each exercise's cell, where a wrong answer raises."""
    solved = normalise(notebook)
    for cell in solved.cells:
        if "exercise" in cell.metadata:
            cell.source = strict(grading.solution_cell(cell.metadata["exercise"]))
    return solved


def strict(source: str) -> str:
    """`source` with its ``@exercise("key")`` made ``@exercise("key", strict=True)``.

    Raises ValueError where there is no such decorator.
    """
    changed, found = re.subn(r'(@exercise\("[^"]+")\)', r"\1, strict=True)", source.rstrip("\n"))
    if not found:
        raise ValueError(f'no @exercise("key") in the cell:\n{source}')
    return changed
