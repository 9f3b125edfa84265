"""A notebook as committed → the notebook that its page is made of.

At ``source-read`` the JSON is rewritten in memory; the file, which readers download, stays as it
is. Stubs are shown and the book's solutions are executed beneath them.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging

from . import chapters, engine, heads, markdown
from .chapters import text
from .language import say

logger = logging.getLogger(__name__)

Cell = dict[str, Any]
ALT = re.compile(r"#\s*alt:\s*(.+(?:\n# {3,}\S.*)*)\n?")
CODE_CELL = re.compile(r"(?P<head>^```\{code-cell\}[^\n]*)\n(?P<source>.*?)^```", re.M | re.S)

FOLD = "solution"
"""Marks a solution's fold. Its words would make its run another one: cached execution compares metadata."""


def setup(app: Sphinx) -> None:
    """Register the rewriting of notebooks and its switches."""
    app.add_config_value("course_solutions", True, "env", [bool])
    app.connect("config-inited", _read_switch)
    app.connect("source-read", rewrite)
    app.connect("doctree-read", name_folds)


def rewrite(app: Sphinx, docname: str, source: list[str]) -> None:
    """Sphinx's ``source-read``: replace the notebook's text by its page's."""
    source[0] = page_text(app, docname, source[0])
    engine.fresh_home()


def name_folds(_: Sphinx, doctree: nodes.document) -> None:
    """Sphinx's ``doctree-read``: say in the build's language what opens and shuts a solution."""
    for cell in doctree.findall(nodes.container):
        if cell.get("prompt_show") == FOLD:
            cell["prompt_show"] = say("Show the book's solution")
            cell["prompt_hide"] = say("Hide the solution")


@lru_cache
def page_text(app: Sphinx, docname: str, committed: str) -> str:
    """The text that the page is made of; warns, once, of what is wrong with the notebook."""
    path = Path(app.env.doc2path(docname))
    chapter = re.sub(r"^\d+_", "", path.stem)
    if path.suffix == ".ipynb":
        notebook = json.loads(committed)
        warn = _warner(docname)
        solutions = app.config.course_solutions
        notebook["cells"] = with_head(
            page_cells(notebook["cells"], solutions=solutions, warn=warn), path, warn
        )
        add_digest(notebook["cells"], chapter, engine.package())
        return json.dumps(notebook)
    if path.suffix == ".md":
        return with_digest(committed, chapter, engine.package())
    return committed


def with_head(cells: list[Cell], path: Path, warn: Callable[[str], None]) -> list[Cell]:
    """A chapter's page with its head made from the notebook, and the stamp of its run at the end."""
    if not chapters.FILE.fullmatch(path.stem):
        return cells
    chapter = chapters.chapter_at(path)
    if chapter is None:
        warn("a chapter's first cell says: title, promise, You will be able to, You need, Time")
        return cells
    return [
        heads.head_cell(chapter) | {"id": "page-head"},
        *cells[1:],
        heads.stamp_cell() | {"id": "page-stamp"},
    ]


def with_digest(page: str, chapter: str, package: Path) -> str:
    """The digest as an option of a Markdown page's first ``code-cell``, if it has any."""
    cells = [found["source"] for found in CODE_CELL.finditer(page)]
    if not cells:
        return page
    line = f"\n:depends: {engine.digest(cells, chapter, package)}\n"
    return CODE_CELL.sub(
        lambda found: found["head"] + line + found["source"] + "```", page, count=1
    )


def page_cells(cells: list[Cell], *, solutions: bool, warn: Callable[[str], None]) -> list[Cell]:
    """The page's cells for the notebook's.

    solutions: show the hints and the executed solution of each exercise; otherwise the stub runs.
    warn: called with a sentence for each defect, which fails a build that is strict.
    """
    recordings = engine.recordings(cells)
    page = [
        made
        for at, cell in enumerate(cells)
        for made in (
            _gpu_cells(cell, *recordings[at])
            if at in recordings
            else _page_cell(cell, _next_exercise(cells[at:]), solutions, warn)
        )
    ]
    for number, cell in enumerate(page):
        cell.setdefault("id", f"page-{number}")
    return page


def add_digest(cells: list[Cell], chapter: str, package: Path) -> None:
    """Put the digest of what the cells depend on into the first code cell's metadata."""
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    if code:
        sources = [text(cell) for cell in code]
        code[0]["metadata"]["depends"] = engine.digest(sources, chapter, package)


def _read_switch(app: Sphinx, config: Config) -> None:
    """``-D course_solutions=0`` arrives as text; ``make book EDITION=students`` as environment."""
    if os.environ.get("EDITION") == "students":
        config.course_solutions = False
    config.course_solutions = str(config.course_solutions).lower() not in {"0", "false", "no"}
    if config.course_solutions:
        app.tags.add("solutions")  # for `only` in pages


def _warner(docname: str) -> Callable[[str], None]:
    return lambda sentence: logger.warning(sentence, location=docname, type="course")


def _next_exercise(cells: list[Cell]) -> str | None:
    return next((key for cell in cells if (key := cell["metadata"].get("exercise"))), None)


def _page_cell(
    cell: Cell, key: str | None, solutions: bool, warn: Callable[[str], None]
) -> Iterator[Cell]:
    tags = cell["metadata"].get("tags", [])
    if cell["cell_type"] == "markdown":
        yield _markdown_cell(cell, key, warn)
    elif cell["cell_type"] != "code":
        yield cell
    elif "exercise" in cell["metadata"]:
        yield from _exercise_cells(cell, solutions)
    elif "setup" in tags:
        yield _tagged(cell, "remove-cell")
    elif lacking := engine.missing(tags):
        yield from _unrun_cells(cell, *lacking)
    else:
        yield _figure_cell(cell, warn)


def _markdown_cell(cell: Cell, key: str | None, warn: Callable[[str], None]) -> Cell:
    try:
        return cell | {"source": markdown.to_myst(text(cell), key)}
    except ValueError as error:
        warn(str(error))
        return cell


def _exercise_cells(cell: Cell, solutions: bool) -> Iterator[Cell]:
    """Stub, hints and solution; the stub alone, executed, in an edition without solutions."""
    if not solutions:
        yield _tagged(cell, "exercise-stub")
        return
    key = cell["metadata"]["exercise"]
    yield _tagged(cell, "exercise-stub", "skip-execution")
    yield _new_markdown(hints_markdown(engine.hints(key)))
    metadata = {"tags": ["exercise-solution", "hide-input"], "mystnb": {"code_prompt_show": FOLD}}
    yield _new_code(engine.solution(key), metadata)


def hints_markdown(hints: tuple[tuple[str, str | None], ...]) -> str:
    """Each hint folded by itself, so that one can stop after the first."""
    folded = []
    for at, (hint, rung) in enumerate(hints, start=1):
        title = f"Hint {at} of {len(hints)}" + (f" · {rung}" if rung else "")
        folded.append(markdown.dropdown(title, hint, kind="hint"))
    return "\n\n".join(folded)


def _gpu_cells(cell: Cell, outputs: list[Any], said: str) -> Iterator[Cell]:
    """The cell, never executed here, with its outputs if they are current, and what is said of them."""
    described = ALT.match(text(cell))
    picture = described[1] if described else engine.would_show(text(cell))
    source = engine.without_comments(text(cell))
    source = ALT.sub("", source, count=1) if described else source
    marked = _tagged(cell | {"outputs": outputs, "source": source}, "skip-execution")
    seen = hashlib.sha256(json.dumps(outputs, sort_keys=True).encode()).hexdigest()
    # Cached execution compares metadata, but not outputs.
    marked["metadata"] |= {"recorded_outputs": seen} if outputs else {}
    if picture:
        marked["metadata"] |= {"mystnb": {"image": {"alt": _one_line(picture)}}}
    yield marked
    yield _new_markdown(f":::{{div}} course-recorded\n{said}\n:::")


def _unrun_cells(cell: Cell, what: str, how: str) -> Iterator[Cell]:
    """The cell, not executed here because something is missing, and a sentence that says so."""
    source = ALT.sub("", text(cell), count=1)
    yield _tagged(cell | {"source": source}, "skip-execution")
    said = say("Not run where this page was made: it needs {what}.", what=what)
    yield _new_markdown(f":::{{div}} course-recorded\n{said}{f' `{how}`' if how else ''}\n:::")


def _one_line(comment: str) -> str:
    return re.sub(r"\s*\n#\s*", " ", comment).strip()


def _figure_cell(cell: Cell, warn: Callable[[str], None]) -> Cell:
    source = text(cell)
    alt = ALT.match(source)
    if alt is None:
        if "figure" in cell["metadata"].get("tags", []):
            warn(f"a figure's cell starts with `# alt: what it shows`: {source[:60]!r}")
        return cell
    options = cell["metadata"].get("mystnb", {}) | {"image": {"alt": _one_line(alt[1])}}
    metadata = cell["metadata"] | {"mystnb": options}
    return cell | {"source": source[alt.end() :], "metadata": metadata}


def _tagged(cell: Cell, *tags: str) -> Cell:
    before = [tag for tag in cell["metadata"].get("tags", []) if tag not in tags]
    return cell | {"metadata": cell["metadata"] | {"tags": [*before, *tags]}}


def _new_markdown(source: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def _new_code(source: str, metadata: dict[str, Any]) -> Cell:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": metadata,
        "outputs": [],
        "source": source,
    }
