"""Which chapter needs which, read from the notebooks: from their heads, and from what their code uses.

What a head names under "You need", and comes earlier, comes *before* the chapter. Whatever else its code
uses, of a chapter still to come or of one that may have been left out, its text must link to first.
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from course_utils.carried import keys_taken
from course_utils.source.imports import imports_in, python_of

FILE = re.compile(r"(?P<number>\d\d)_(?P<name>\w+)")
LINK = re.compile(r"\]\((?:\.\./notebooks/)?(\d\d)_\w+\.ipynb")
RANGE = re.compile(r"(\]\(\d\d_\w+\.ipynb[^)]*\)) to (\[[^\]]*\]\(\d\d_\w+\.ipynb)")
HEAD = re.compile(r"\*\*You need\*\*(?P<needs>.*?)\*\*Time\*\*", re.S)
OWNER = re.compile(r"\bchapters? (\d+)", re.I)
ANY_LINK = re.compile(r"\[[^\]]*\]\([^)]*\)")
UNLINKED = re.compile(r"\bchapters? \d+(?:(?:, | and | to )\d+)*", re.I)
OWNED = {"pretrained": 24}
"""Modules of the reference whose chapter their first sentence does not say."""


@dataclass(frozen=True)
class Needs:
    """What one chapter builds on.

    named: chapters that its head says you need, by number; those to come are among them where the
    head speaks of them. unlinked: mentions of chapters in its head that are no links. uses: for each
    chapter whose reference its code imports, or whose exercise it takes by `mine`, the place of the
    first such cell. said: for each chapter that its text links to, the place of the first such cell.
    carried: keys of exercises taken by `mine`.
    """

    number: int
    name: str
    named: frozenset[int]
    unlinked: tuple[str, ...]
    uses: Mapping[int, int]
    said: Mapping[int, int]
    carried: tuple[str, ...]

    @property
    def before(self) -> frozenset[int]:
        """Chapters that come first, as the head says."""
        return frozenset(number for number in self.named if number < self.number)


def read(notebooks: Path, package: Path) -> dict[int, Needs]:
    """All chapters of a folder of notebooks, by number. package: the folder of ``course_utils``."""
    paths = {
        int(found["number"]): path
        for path in sorted(notebooks.glob("*.ipynb"))
        if (found := FILE.fullmatch(path.stem))
    }
    chapters = {path.stem[3:]: number for number, path in paths.items()}
    owners = {**owners_in(package / "reference"), **chapters}
    return {number: needs_of(path, chapters, owners) for number, path in paths.items()}


def owners_in(reference: Path) -> dict[str, int]:
    """For each module of the reference the chapter that its first sentence names."""
    found = dict(OWNED)
    for file in reference.glob("*.py"):
        said = ast.get_docstring(ast.parse(file.read_bytes())) or ""
        if chapter := OWNER.search(said.partition("\n\n")[0]):
            found[file.stem] = int(chapter[1])
    return found


def needs_of(path: Path, chapters: Mapping[str, int], owners: Mapping[str, int]) -> Needs:
    """One notebook's. chapters: numbers by name. owners: of modules of the reference."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    uses: dict[int, int] = {}
    said: dict[int, int] = {}
    carried: list[str] = []
    number = chapters[path.stem[3:]]
    for at, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for linked in linked_in(source):
                said.setdefault(linked, at)
            continue
        modules, keys = used_in(source)
        carried += keys
        for name in [*modules, *(key.partition(".")[0] for key in keys)]:
            if name in owners and owners[name] != number:
                uses.setdefault(owners[name], at)
    head = "".join(cells[0]["source"])
    needs = HEAD.search(head)
    return Needs(
        number,
        path.stem[3:],
        named=frozenset(linked_in(needs["needs"]) if needs else ()),
        unlinked=tuple(UNLINKED.findall(ANY_LINK.sub("", head))),
        uses=uses,
        said=said,
        carried=tuple(dict.fromkeys(carried)),
    )


def linked_in(text: str) -> list[int]:
    """Chapters that a text links to; "[9](…) to [13](…)" are all from 9 to 13."""
    found = [int(number) for number in LINK.findall(text)]
    for first, last in RANGE.findall(text):
        start, end = (int(LINK.findall(link)[0]) for link in (first, last))
        found += range(start, end + 1)
    return found


def used_in(cell: str) -> tuple[list[str], list[str]]:
    """Modules of the reference that a code cell imports from, and keys that it gives to `mine`."""
    modules = [
        one.dotted.split(".")[2]
        for one in imports_in(ast.parse(python_of(cell)), "", "course_utils.reference")
        if one.dotted != "course_utils.reference"
    ]
    return modules, keys_taken(cell)


def all_before(chapters: Mapping[int, Needs], goals: Iterable[int]) -> list[int]:
    """The goals and every chapter that they need, directly or not, in the book's order."""
    found: set[int] = set()
    waiting = list(goals)
    while waiting:
        number = waiting.pop()
        if number not in found and number in chapters:
            found.add(number)
            waiting += chapters[number].before
    return sorted(found)


def direct(chapters: Mapping[int, Needs], number: int) -> list[int]:
    """Of what a chapter needs, what nothing else of it needs already: the lines of a drawing."""
    before = chapters[number].before
    return sorted(
        n for n in before if not any(n in all_before(chapters, [m]) for m in before - {n})
    )


def unsaid(chapters: Mapping[int, Needs], number: int) -> dict[int, int]:
    """Chapters whose code this one uses though they do not come before it, and though no text links to
    them by then; with the place of the first cell that does.
    """
    before = set(all_before(chapters, [number]))
    chapter = chapters[number]
    return {
        used: at
        for used, at in chapter.uses.items()
        if used not in before and chapter.said.get(used, at) >= at
    }
