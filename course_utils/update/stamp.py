"""Digests of the cells of an edition, as it hands them out."""

import hashlib
from typing import Any

from course_utils.settings import settings

Cell = dict[str, Any]

STAMP = "course"
MARK = ".course-edition"
"""Lies in the folder of every edition that `course release` wrote."""


def joined(source: Any) -> str:
    """A cell's source as one text; the file format allows a list of lines."""
    return "".join(source) if isinstance(source, list) else str(source)


def digest(cell: Cell) -> str:
    """Of a cell's kind and source; white space at the ends does not count."""
    text = f"{cell['cell_type']}\n{cell['source'].strip()}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def stamp(notebook: Any, edition: str = "") -> Any:
    """Write into a notebook's metadata what its cells are as they are handed out; the notebook itself.

    Raises KeyError if a cell has no id.
    """
    cells = {
        cell["id"]: digest({**cell, "source": joined(cell["source"])}) for cell in notebook["cells"]
    }
    notebook["metadata"][STAMP] = {"edition": edition or settings.edition, "cells": cells}
    return notebook
