"""Notebooks as an update reads and writes them: damaged ones are said to be, odd ones made sound."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from .stamp import STAMP, Cell, joined

OUTPUTS = ("stream", "display_data", "execute_result", "error")


class Unreadable(ValueError):
    """A file that is no notebook, or a torn one."""


@dataclass
class Notebook:
    """A notebook's cells, each with what its kind must have, and its metadata."""

    cells: list[Cell]
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def stamped(self) -> dict[str, str] | None:
        """Digests of the edition's cells by id; None if the edition left none."""
        stamp = self.metadata.get(STAMP)
        cells = stamp.get("cells") if isinstance(stamp, dict) else None
        return cells if isinstance(cells, dict) else None

    @property
    def handed_out(self) -> Collection[str] | None:
        """Digests of the cells as the edition has them; None if it left none."""
        return None if self.stamped is None else self.stamped.values()

    @property
    def text(self) -> str:
        whole = {"cells": self.cells, "metadata": self.metadata, "nbformat": 4, "nbformat_minor": 5}
        return nbformat.writes(nbformat.from_dict(whole)).rstrip("\n") + "\n"


def parse(text: str) -> Notebook:
    """Raises Unreadable, saying what is wrong."""
    try:
        data = json.loads(text)
        return Notebook([_sound(cell) for cell in data["cells"]], dict(data.get("metadata", {})))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unreadable(f"no readable notebook ({type(error).__name__}: {error})") from error


def read(path: Path) -> Notebook:
    """Raises Unreadable."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"no readable notebook ({error})") from error


def _sound(cell: Cell) -> Cell:
    """The cell with all that its kind must have, and outputs only if they are well formed."""
    kind = cell["cell_type"] if cell["cell_type"] in ("code", "markdown") else "raw"
    metadata = cell.get("metadata")
    made = {
        **cell,
        "cell_type": kind,
        "source": joined(cell["source"]),
        "metadata": metadata if isinstance(metadata, dict) else {},
    }
    for name in ("outputs", "execution_count"):
        made.pop(name, None)
    if kind != "code":
        return made
    outputs, count = cell.get("outputs"), cell.get("execution_count")
    whole = isinstance(outputs, list) and all(
        isinstance(out, dict) and out.get("output_type") in OUTPUTS for out in outputs
    )
    return made | {
        "outputs": outputs if whole else [],
        "execution_count": count if isinstance(count, int) else None,
    }


def tags(cell: Cell) -> list[str]:
    """A cell's tags."""
    metadata = cell.get("metadata")
    found = metadata.get("tags") if isinstance(metadata, dict) else None
    return found if isinstance(found, list) else []
