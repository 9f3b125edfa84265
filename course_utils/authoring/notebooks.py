"""The notebooks as files: one normal form, a form to edit, a solved form, and what is wrong with one.

The committed form is the `.ipynb` that `normalise` writes: sorted keys, no outputs (current recordings from
a GPU aside, each beneath its label), ids that follow from the content, the set-up cell and the exercises' stubs rewritten from their
one source. `to_percent` and `from_percent` go to a Python file that is pleasant to edit and back, byte for byte.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from course_utils import grading
from course_utils.recordings import cells as gpu_cells
from course_utils.recordings.stamps import OUTDATED, UNSTAMPED
from course_utils.settings import settings

MAX_LINES = 40
"""A code cell has no more lines than this."""

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
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


def normalise(notebook: NotebookNode) -> NotebookNode:
    """A copy of `notebook` in the form that is committed. Normalising twice changes nothing.

    Raises KeyError where a cell names an exercise that does not exist.
    """
    kept = [c for c in notebook.cells if c.source.strip() or "exercise" in c.metadata]
    cells = [_normal_cell(cell) for cell in kept]
    setup = [cell for cell in cells if "setup" in tags(cell)]
    if not setup:
        first = 1 if cells and cells[0].cell_type == "markdown" else 0
        cells.insert(first, _cell("code", setup_source(), {"tags": ["setup"]}))
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


# What is wrong with a notebook

TITLE = re.compile(r"# (\d+) · \S")
EXERCISE = re.compile(
    r"^> \*\*Exercise (\d+)\.(\d+) \((\w+)\), (★+)☆*, (\d+) min\.\*\*", re.MULTILINE
)
MYST = {
    "a directive": re.compile(r"^\s*(`{3,}|:{3,})\{", re.MULTILINE),
    "a role": re.compile(r"\{[\w:+-]+\}`"),
    "a target": re.compile(r"^\([\w-]+\)=\s*$", re.MULTILINE),
    "a block break": re.compile(r"^\+\+\+", re.MULTILINE),
    "a substitution": re.compile(r"\{\{.+?\}\}"),
}
SECTIONS = ("In a real codebase", "Summary", "Further reading")


def problems(notebook: NotebookNode) -> list[str]:
    """What is wrong with a chapter's notebook, a sentence each, with the cell that it is about."""
    checks: tuple[Callable[[NotebookNode], Iterator[str]], ...] = (
        _cell_problems,
        _recording_problems,
        _markdown_problems,
        _exercise_problems,
        _missing_parts,
    )
    return [problem for check in checks for problem in check(notebook)]


def _at(number: int, cell: NotebookNode) -> str:
    return f"cell {number} ({cell.source.splitlines()[0][:50]!r})"


def _cells(notebook: NotebookNode, kind: str) -> Iterator[tuple[int, NotebookNode]]:
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == kind and cell.source.strip():
            yield number, cell


def _cell_problems(notebook: NotebookNode) -> Iterator[str]:
    for number, cell in _cells(notebook, "code"):
        at = _at(number, cell)
        lines = len(cell.source.splitlines())
        if lines > MAX_LINES:
            yield f"{at}: {lines} lines; {MAX_LINES} at most"
        if "gpu" not in tags(cell) and (cell.outputs or cell.execution_count is not None):
            yield f"{at}: has outputs; only cells tagged gpu keep them"
        if "gpu" in tags(cell) and not _guarded(cell.source):
            yield f"{at}: a gpu cell is one `if torch.cuda.is_available():`, so that Run All goes on"
        described = re.match(r"# alt: \S", cell.source) is not None
        if "figure" in tags(cell) and not described:
            yield f"{at}: a figure's first line says what it shows: # alt: …"
        if described and "figure" not in tags(cell):
            yield f"{at}: starts with # alt: but is not tagged figure"
        if (
            re.search(r"^@exercise\(", cell.source, re.MULTILINE)
            and "exercise" not in cell.metadata
        ):
            yield f"{at}: an exercise's cell names its exercise in its metadata"


def _recording_problems(notebook: NotebookNode) -> Iterator[str]:
    """Outputs that no current recording stands behind, and gpu cells that do not say what they show."""
    current = gpu_cells.digests(notebook.cells, lambda key: grading.solution_cell(key))
    for place, digest in current.items():
        cell = notebook.cells[place]
        at = _at(place + 1, cell)
        state = gpu_cells.state(cell, digest)
        if gpu_cells.outputs(cell) and state in (OUTDATED, UNSTAMPED):
            yield (
                f"{at}: its outputs are {state}; `course normalise` takes them out, "
                "`course record` on a GPU makes new ones"
            )
        if not gpu_cells.would_show(cell.source):
            yield f"{at}: a gpu cell says what it shows at its top: # would show: …"


def _guarded(source: str) -> bool:
    """Is the whole cell one `if torch.cuda.is_available():`?"""
    match ast.parse(source).body:
        case [ast.If(test=test)]:
            return ast.unparse(test) == "torch.cuda.is_available()"
    return False


def _markdown_problems(notebook: NotebookNode) -> Iterator[str]:
    for number, cell in _cells(notebook, "markdown"):
        for name, pattern in MYST.items():
            if pattern.search(_without_code(cell.source, name)):
                yield f"{_at(number, cell)}: {name} of MyST; notebooks hold plain Markdown"


def _without_code(source: str, looking_for: str) -> str:
    """Markdown without its fenced code, inline code and formulas, where MyST's signs are innocent."""
    if looking_for == "a directive":
        return source
    source = re.sub(r"^(\s*)(`{3,}|~{3,})[^\n]*\n.*?^\1\2\s*$", "", source, flags=re.M | re.S)
    source = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "", source, flags=re.S)
    if looking_for == "a role":
        return re.sub(r"(?<!\})(`+)(?!`)[^`]+\1(?!`)", "", source)
    return re.sub(r"(`+)(?!`).+?\1(?!`)", "", source)


def _exercise_problems(notebook: NotebookNode) -> Iterator[str]:
    chapter = TITLE.match(notebook.cells[0].source) if notebook.cells else None
    numbers = []
    for number, cell in _cells(notebook, "code"):
        key = cell.metadata.get("exercise")
        if key is None:
            continue
        at = f"exercise {key}"
        before = notebook.cells[number - 2].source if number > 1 else ""
        heading = EXERCISE.search(before)
        if heading is None:
            yield f"{at}: the cell before it says > **Exercise 2.5 ({key.split('.')[-1]}), ★★☆, 15 min.** …"
            continue
        declared = grading.find(key)
        numbers.append(int(heading[2]))
        if chapter and heading[1] != chapter[1]:
            yield f"{at}: numbered {heading[1]}.{heading[2]} in chapter {chapter[1]}"
        if heading[3] != key.split(".")[-1]:
            yield f"{at}: its heading calls it {heading[3]}"
        if len(heading[4]) != declared.difficulty:
            yield f"{at}: its heading has {len(heading[4])} stars, the exercise {declared.difficulty}"
        if int(heading[5]) != declared.minutes:
            yield f"{at}: its heading says {heading[5]} min, the exercise {declared.minutes}"
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"exercises are numbered {numbers}, not from 1 upwards"


def _missing_parts(notebook: NotebookNode) -> Iterator[str]:
    first = notebook.cells[0].source if notebook.cells else ""
    if not TITLE.match(first):
        yield "the first cell starts with the chapter's number and title: # 2 · Strides"
    opening = "\n".join(cell.source for cell in notebook.cells[:3])
    for part, pattern in {
        "objectives": r"objectives|you will|by the end",
        "prerequisites": r"prerequisite|you need|before this",
        "time": r"\b(minutes|hours?|min)\b",
    }.items():
        if not re.search(pattern, opening, re.IGNORECASE):
            yield f"the first cell does not state the {part}"
    prose = "\n".join(cell.source for _, cell in _cells(notebook, "markdown"))
    for section in SECTIONS:
        if not re.search(rf"^##+ .*{section}", prose, re.MULTILINE | re.IGNORECASE):
            yield f"no section called {section!r}"
    if not any(re.search(r"^quiz\(", cell.source, re.M) for _, cell in _cells(notebook, "code")):
        yield "no quiz"
