"""Where in the book an exercise is: its title, its chapter and the section that leads up to it."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from course_utils.grading import find
from course_utils.source.cells import DECORATED

HEADING = re.compile(r"^(#{1,6}) +(.+?) *$", re.MULTILINE)
NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


@dataclass(frozen=True)
class Section:
    """title: of the exercise. chapter, name: headings, empty where no notebook is at hand.

    address: of the exercise on the web, empty where the course has none.
    """

    key: str
    title: str
    chapter: str = ""
    name: str = ""
    address: str = ""

    @property
    def where(self) -> str:
        """ "2 · Strides, section “Where is an element?”", or the exercise's title."""
        if not self.chapter:
            return self.title
        return f"{self.chapter}, section “{self.name}”" if self.name else self.chapter


def sections_of(
    keys: Iterable[str], notebooks: Path = NOTEBOOKS, site: str = ""
) -> dict[str, Section]:
    """The sections of these exercises.

    notebooks: a folder with the course's own, trusted. site: where the web book is published
    (https://…/), empty for none: then sections are named, not linked.
    """
    places = {}
    for path in sorted(notebooks.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for key, chapter, name in _exercises_in(cells):
            places[key] = (path.stem, chapter, name)
    found = {}
    for key in keys:
        stem, chapter, name = places.get(key, ("", "", ""))
        address = (
            f"{site.rstrip('/')}/notebooks/{stem}.html#exercise-{key}" if site and stem else ""
        )
        found[key] = Section(key, _title_of(key), chapter, name, address)
    return found


def _exercises_in(cells: list[dict]) -> Iterable[tuple[str, str, str]]:
    """(key, chapter, section) of each exercise of a notebook."""
    chapter = name = ""
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for marks, heading in HEADING.findall(source):
                if len(marks) == 1:
                    chapter = heading
                elif len(marks) == 2:
                    name = heading
        for key in DECORATED.findall(source) if cell["cell_type"] == "code" else ():
            yield key, chapter, name


def _title_of(key: str) -> str:
    try:
        return find(key).title
    except LookupError:  # an exercise of a plan that this course no longer has
        return key
