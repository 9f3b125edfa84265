"""What a chapter says of itself: read once from its notebook, shown wherever the site needs it.

The first cell gives title, promise, objectives and what it needs; the exercises give their minutes
and points; the cells' tags say what runs where.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import engine

Cell = dict[str, Any]
WORDS_A_MINUTE = 150
MINUTES_A_CELL = 0.75  # to run a cell, look at its output and think about it

FILE = re.compile(r"(?P<number>\d\d)_(?P<topic>\w+)")
FIRST = re.compile(
    r"# (?P<title>(?P<number>\d+) · [^\n]+)\n+(?P<promise>.+?)\n+"
    r"\*\*You will be able to\*\*\n+(?P<objectives>.+?)\n+"
    r"\*\*You need\*\* (?P<needs>.+?) \*\*Time\*\*: (?P<remarks>.+?)\s*",
    re.S,
)
TIME_SAID = re.compile(r"about [\w ]+ with all \w+ exercises[.,;]?\s*")
LEAD_IN = re.compile(r"\*\*Exercise (?P<number>[\d.]+) \((?P<names>[^)]+)\)")
LINK = re.compile(r"(\[[^\]]*\]\([^)]*\))")
MENTION = re.compile(r"\bchapters (\d+) and (\d+)\b|\bchapter (\d+)\b")
RANKS = re.compile(r"%%ranks(?:\s+(\d+))?")


@dataclass(frozen=True)
class Task:
    """An exercise, as its chapter and its author declare it.

    besides: what is graded besides values, in words: gradients, and each contract's promise. kinds: what
    that is about, a word for each kind.
    """

    key: str
    number: str
    names: str
    title: str
    difficulty: int
    minutes: int
    points: int
    besides: tuple[str, ...]
    kinds: tuple[str, ...]

    @property
    def anchor(self) -> str:
        return f"exercise-{self.key}"

    @property
    def stars(self) -> str:
        return "★" * self.difficulty + "☆" * (3 - self.difficulty)


@dataclass(frozen=True)
class Chapter:
    """One notebook's facts. Markdown where a field is text; minutes are whole.

    gpu, recorded: cells that need CUDA, and how many of them show what a GPU gave.
    wanted: what else cells need that not every machine has: in words, how to get it, how many cells.
    ranks: the largest number of processes that a cell runs on, 0 where none does.
    """

    title: str
    number: int
    promise: str
    objectives: str
    needs: str
    remarks: str
    reading: int
    tasks: tuple[Task, ...]
    gpu: int
    recorded: int
    wanted: tuple[tuple[str, str, int], ...]
    ranks: int
    ranks_cells: int

    @property
    def doing(self) -> int:
        """Minutes for all exercises."""
        return sum(task.minutes for task in self.tasks)

    @property
    def minutes(self) -> int:
        return self.reading + self.doing

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)


def chapter_at(path: Path) -> Chapter | None:
    """The chapter in this notebook, or None if that is no chapter."""
    return _read(path, path.stat().st_mtime_ns)


@lru_cache
def _read(path: Path, _mtime: int) -> Chapter | None:
    if not FILE.fullmatch(path.stem):
        return None
    return chapter_of(json.loads(path.read_text(encoding="utf-8"))["cells"], path)


def chapter_of(cells: list[Cell], path: Path) -> Chapter | None:
    """The chapter made of these cells. path: of its notebook; its neighbours are linked.

    None if the first cell does not hold title, promise, objectives, needs and time, in this order.
    """
    first = FIRST.fullmatch(text(cells[0])) if cells else None
    if first is None:
        return None
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    tags = [cell["metadata"].get("tags", []) for cell in code]
    ranks = [int(found[1] or 0) for cell in code if (found := RANKS.match(text(cell)))]
    return Chapter(
        title=first["title"],
        number=int(first["number"]),
        promise=first["promise"],
        objectives=first["objectives"],
        needs=linked(first["needs"], path),
        remarks=_capitalised(TIME_SAID.sub("", first["remarks"], count=1)),
        reading=reading_minutes(cells),
        tasks=tasks_of(cells),
        gpu=sum("gpu" in found for found in tags),
        recorded=sum(bool(outputs) for outputs, _ in engine.recordings(cells).values()),
        wanted=tuple(
            (*need, count)
            for need, count in Counter(filter(None, map(engine.wanted, tags))).items()
        ),
        ranks=max(ranks, default=0),
        ranks_cells=len(ranks),
    )


def reading_minutes(cells: list[Cell]) -> int:
    """Minutes to read the prose and to run the cells, exercises and set-up aside; in fives."""
    words = sum(len(text(cell).split()) for cell in cells if cell["cell_type"] == "markdown")
    run = sum(
        cell["cell_type"] == "code"
        and "exercise" not in cell["metadata"]
        and "setup" not in cell["metadata"].get("tags", [])
        for cell in cells
    )
    return 5 * round((words / WORDS_A_MINUTE + run * MINUTES_A_CELL) / 5)


def tasks_of(cells: list[Cell]) -> tuple[Task, ...]:
    """The exercises, in their order."""
    found = []
    said = ("", "")
    for cell in cells:
        if cell["cell_type"] == "markdown" and (lead := LEAD_IN.search(text(cell))):
            said = lead["number"], lead["names"]
        if key := cell["metadata"].get("exercise"):
            number, names = said
            found.append(Task(key, number, names, **engine.declared(key)))
    return tuple(found)


def linked(needs: str, path: Path) -> str:
    """Each chapter that is named and exists, made a link to its notebook."""

    def link(label: str, number: str) -> str:
        file = next(path.parent.glob(f"{int(number):02d}_*.ipynb"), None)
        return f"[{label}]({file.name})" if file else label

    def links(mention: re.Match[str]) -> str:
        first, second, only = mention.groups()
        if only:
            return link(mention[0], only)
        return f"chapters {link(first, first)} and {link(second, second)}"

    parts = LINK.split(needs)
    return "".join(part if LINK.fullmatch(part) else MENTION.sub(links, part) for part in parts)


def text(cell: Cell) -> str:
    """The cell's source as one string; nbformat allows a list of lines."""
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def duration(minutes: int) -> str:
    """135 → ``2 h 15 min``; the figures and units are alike in every language of the site."""
    hours, rest = divmod(minutes, 60)
    return " ".join([f"{hours} h"] * bool(hours) + [f"{rest} min"] * bool(rest)) or "0 min"


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
