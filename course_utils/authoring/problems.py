"""What is wrong with a chapter's notebook: what `course normalise --check` says besides its form."""

import ast
import re
from collections.abc import Callable, Iterator

from nbformat import NotebookNode

from course_utils import grading, needs
from course_utils.recordings import cells as gpu_cells
from course_utils.recordings.stamps import OUTDATED, UNSTAMPED

from .notebooks import TITLE, heading, tags

MAX_LINES = 40
"""A code cell has no more lines than this."""

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
        need = needs.of_tags(tags(cell))
        if need and not _guarded(cell.source, need.guard):
            yield f"{at}: a {need.tag} cell is one `if {need.guard}:`, so that Run All goes on"
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


def _guarded(source: str, guard: str) -> bool:
    """Is the whole cell one `if` on this condition?"""
    match ast.parse(source).body:
        case [ast.If(test=test)]:
            return ast.unparse(test) == guard
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
    """Number, stars and minutes are written by `normalise`; the line itself is the author's."""
    for place, cell in enumerate(notebook.cells):
        key = cell.metadata.get("exercise")
        if key is not None and heading(notebook.cells, place) is None:
            name = key.split(".")[-1]
            yield (
                f"exercise {key}: the cell before it says > **Exercise ({name}).** …; "
                "`course normalise` adds its number, stars and minutes"
            )


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
