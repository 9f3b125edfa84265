"""The cells tagged ``gpu`` of a notebook: is what they show current, and what is said beneath them.

Cells are dicts of nbformat. A cell's metadata ``recorded`` holds the stamp of its outputs (`recordings.STAMP`).
The comment ``# would show: …`` at its top says what to expect where nothing was recorded.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_utils.recordings import code
from course_utils.recordings.stamps import (
    NEVER,
    OUTDATED,
    RECORDED,
    STAMP,
    UNSTAMPED,
    describe,
    stamped,
)

Cell = Any
_HEAD = re.compile(r"(?:# alt:[^\n]*\n(?:# {3,}\S[^\n]*\n)*)?")
_WOULD_SHOW = re.compile(r"# would show: *(\S[^\n]*(?:\n# {3,}\S[^\n]*)*)\n?")
LABEL = {"course": "stamp"}
"""Metadata of the output that says where a cell's other outputs come from."""


def _text(cell: Cell) -> str:
    """A cell's source as one string; nbformat's files allow a list of lines."""
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _is_gpu(cell: Cell) -> bool:
    """Is it a code cell tagged ``gpu``?"""
    return cell["cell_type"] == "code" and "gpu" in cell["metadata"].get("tags", [])


def would_show(source: str) -> str:
    """What the comment at the top of a cell says that it would show; "" without one."""
    found = _WOULD_SHOW.match(source, _HEAD.match(source).end())  # type: ignore[union-attr]
    return re.sub(r"\s*\n#\s*", " ", found[1]).strip() if found else ""


def without_comment(source: str) -> str:
    """The source without that comment."""
    head = _HEAD.match(source).end()  # type: ignore[union-attr]
    found = _WOULD_SHOW.match(source, head)
    return source[:head] + source[found.end() :] if found else source


def digests(cells: Sequence[Cell], solution: Callable[[str], str]) -> dict[int, str]:
    """For each gpu cell's place in `cells` the digest of what its outputs depend on (see `code`).

    solution: source of the cell that answers the exercise with this key; outputs are recorded from it.
    """
    found, sources = {}, []
    for at, cell in enumerate(cells):
        if cell["cell_type"] != "code" or "setup" in cell["metadata"].get("tags", []):
            continue
        key = cell["metadata"].get("exercise")
        sources.append(solution(key) if key else _text(cell))
        if _is_gpu(cell):
            found[at] = code.digest_of_cells(sources)
    return found


def outputs(cell: Cell) -> list[Any]:
    """What the cell itself put out: all but the label."""
    return [out for out in cell["outputs"] if out.get("metadata") != LABEL]


def state(cell: Cell, digest: str) -> str:
    """RECORDED (and current), OUTDATED, UNSTAMPED or NEVER.

    A current recording may be empty: the cell only asserts. An outdated one is marked in the
    metadata when its outputs are taken out, so that it stays outdated.
    """
    stamp = cell["metadata"].get("recorded")
    if not stamp:
        return UNSTAMPED if outputs(cell) else NEVER
    if not isinstance(stamp, Mapping) or not stamped(dict(stamp)):
        return UNSTAMPED
    return RECORDED if stamp["code"] == digest and not stamp.get("outdated") else OUTDATED


def sentence(cell: Cell, digest: str) -> str:
    """What a reader is told about a gpu cell's outputs."""
    now, stamp = state(cell, digest), cell["metadata"].get("recorded", {})
    if now == RECORDED:
        return describe(stamp) + ("" if outputs(cell) else " The cell ran and printed nothing.")
    hint = would_show(_text(cell))
    expected = f" It would show {hint.rstrip('.')}." if hint else ""
    if now == OUTDATED:
        was = f"on {stamp['gpu']} with torch {stamp['torch']}, {stamp['date']}"
        return (
            f"Recorded before this cell, or code that it uses, changed ({was}); "
            f"left out until it is recorded again.{expected}"
        )
    if now == UNSTAMPED:
        return f"Its output came without a note of the GPU that made it, and is left out.{expected}"
    return f"Not recorded on a GPU yet.{expected}"


def label(said: str) -> dict[str, Any]:
    """The output that says `said` in JupyterLab."""
    data = {"text/markdown": f"*{said}*", "text/plain": said}
    return {"output_type": "display_data", "data": data, "metadata": dict(LABEL)}


def settle(cells: Sequence[Cell], solution: Callable[[str], str]) -> None:
    """Bring gpu cells into the committed form: current outputs or none, beneath a label; no number.

    What is outdated is taken out and marked; what has no stamp is taken out and forgotten.
    """
    for at, digest in digests(cells, solution).items():
        cell = cells[at]
        now = state(cell, digest)
        kept = outputs(cell) if now == RECORDED else []
        metadata = cell["metadata"]
        if now == OUTDATED:
            metadata["recorded"] = {k: metadata["recorded"][k] for k in STAMP} | {"outdated": True}
        elif now != RECORDED:
            metadata.pop("recorded", None)
        cell["outputs"] = kept
        cell["outputs"] = [label(sentence(cell, digest)), *kept]
        cell["execution_count"] = None
