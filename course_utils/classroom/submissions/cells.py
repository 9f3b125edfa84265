"""The code cells of a notebook's bytes, damaged as they may be. Read with `json` alone; nothing is run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from course_utils.source.cells import DECORATED

from .folders_and_zips import Unreadable

LARGEST_CODE = 4 * 10**6
MOST_VALUES = 5 * 10**6


@dataclass
class Cells:
    """cells: the code. problems: what was left out. notes: what was read otherwise than it is marked."""

    cells: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def cells_of(data: bytes) -> Cells:
    """The code cells of a notebook's bytes. Raises Unreadable, which says what is wrong."""
    notebook, note = _parsed(data)
    if not isinstance(notebook, dict):
        raise Unreadable(f"no notebook: its JSON is {_kind_of(notebook)}, not an object with cells")
    if "cells" not in notebook and "worksheets" in notebook:
        raise Unreadable("a notebook of an old format (3): open it in Jupyter and save it again")
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        came = _kind_of(cells) if "cells" in notebook else "missing"
        raise Unreadable(f"no notebook: its `cells` are {came}, not a list")
    found = Cells(notes=[note] if note else [])
    texts = list(_texts_of(cells, found.problems))
    answered = {key for code, text, _ in texts if code == "code" for key in DECORATED.findall(text)}
    for code, text, number in texts:
        if code == "code":
            found.cells.append(text)
        elif _is_lost_answer(text, answered):
            found.cells.append(text)
            found.notes.append(f"cell {number} is marked as {code} and was read as code")
    if sum(map(len, found.cells)) > LARGEST_CODE:
        raise Unreadable(
            f"its code has more than {LARGEST_CODE / 1e6:.0f} million characters: no answers"
        )
    return found


def _texts_of(cells: list[Any], problems: list[str]) -> Iterator[tuple[str, str, int]]:
    """Type, text and number of every cell that has them."""
    for number, cell in enumerate(cells, 1):
        source = cell.get("source", "") if isinstance(cell, dict) else None
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            what = (
                f"its source is {_kind_of(source)}" if isinstance(cell, dict) else "it is no cell"
            )
            problems.append(f"cell {number} was left out: {what}")
            continue
        code = cell.get("cell_type", "code")
        clean = source.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n")
        yield code if isinstance(code, str) else "code", clean, number


def _is_lost_answer(text: str, answered: set[str]) -> bool:
    """Is this cell, which is marked as no code, the answer to an exercise that no code cell has?"""
    keys = DECORATED.findall(text)
    return bool(keys) and "```" not in text and not answered.intersection(keys)


def _parsed(data: bytes) -> tuple[Any, str]:
    """The JSON of a notebook in UTF-8, 16 or 32, and a note where it was in none of them."""
    if not data.strip():
        raise Unreadable("the file is empty")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MOST_VALUES:
        raise Unreadable(f"no notebook: it holds more than {MOST_VALUES:,} values")
    note = ""
    try:
        text = data.decode(json.detect_encoding(data), "surrogatepass").removeprefix("\ufeff")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
        note = "it is not in UTF-8 and was read as Windows-1252"
    try:
        # a number's digits do not matter here, and Python limits those of whole numbers
        return json.loads(text, parse_int=float), note
    except json.JSONDecodeError as error:
        torn = " (the file ends too early)" if error.pos >= len(text.rstrip()) - 1 else ""
        raise Unreadable(
            f"its JSON is torn at line {error.lineno}, column {error.colno}{torn}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise Unreadable("no notebook: its JSON is nested too deeply") from error


def _kind_of(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
