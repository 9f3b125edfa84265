"""Answers that chapters hand on: which exercises later chapters take, and whose version they get."""

import ast
import json
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from course_utils.source.imports import python_of

VERBS = ("mine", "solution", "use_book")
NOBODY = "nobody's: this edition holds no answer, and you have none yet"


@dataclass(frozen=True)
class Carried:
    """An exercise that other chapters take.

    chapters: the numbers of those. whose: version they would get now. why: what is wrong with the
    student's own, "" where nothing is.
    """

    key: str
    chapters: tuple[int, ...]
    whose: str
    why: str


def asked_keys(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Calls of the student's verbs that want the book's version: verb and key."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=verb), args=[ast.Constant(value=str(key)), *_]):
                if verb in VERBS:
                    yield verb, key


def keys_taken(cell: str) -> list[str]:
    """The keys that a code cell gives to `mine`."""
    return [key for verb, key in asked_keys(ast.parse(python_of(cell))) if verb == "mine"]


def taken(notebooks: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """For each exercise that another chapter takes by `mine` the numbers of those chapters.

    In the order in which the notebooks come. Raises ValueError for a file that is no notebook.
    """
    found: dict[str, dict[int, None]] = {}
    for path in notebooks:
        number, _, chapter = path.stem.partition("_")
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a readable notebook ({error})") from None
        for key in (key for cell in code for key in keys_taken(cell)):
            if number.isdigit() and key.partition(".")[0] != chapter:
                found.setdefault(key, {})[int(number)] = None
    return {key: tuple(numbers) for key, numbers in found.items()}


def carried(notebooks: Iterable[Path]) -> list[Carried]:
    """What is taken, in the book's order, and whose it is: `mine` itself is asked.

    Raises ValueError for a file that is no notebook, LookupError for a key that nothing has.
    """
    from course_utils.grading.declaring.registry import find, in_book_order
    from course_utils.grading.notebook.binding import NoAnswer, stands_for
    from course_utils.grading.notebook.verbs import mine

    chapters = taken(notebooks)
    found = []
    for key in in_book_order(find(key).key for key in chapters):
        said = StringIO()
        try:
            with redirect_stdout(said):
                mine(key)
            whose = stands_for[key]
        except NoAnswer:
            whose = NOBODY
        wrong = (s for s in said.getvalue().splitlines() if s.startswith("Your answer to "))
        found.append(Carried(key, chapters[key], whose, next(wrong, "")))
    return found


def report(found: list[Carried]) -> str:
    """A line for each, and one for each answer of the student's that cannot be used."""
    if not found:
        return "no chapter here takes an answer from another one"
    key_width = max(len(one.key) for one in found)
    whose_width = max(len(one.whose) for one in found)
    lines = []
    for one in found:
        numbers = ", ".join(map(str, one.chapters))
        word = "chapters" if len(one.chapters) > 1 else "chapter"
        lines.append(f"{one.key:<{key_width}}  {one.whose:<{whose_width}}  in {word} {numbers}")
        lines += [f"  {one.why}"] if one.why else []
    counts = {whose: sum(one.whose == whose for one in found) for whose in (o.whose for o in found)}
    return "\n".join([*lines, ", ".join(f"{n} {whose}" for whose, n in counts.items())])
