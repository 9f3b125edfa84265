"""An exception's class names and the lines of somebody's own code: whose line is this?"""

import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_BOOK = Path(__file__).parents[1] / "reference"
_LIBRARIES = tuple(
    str(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_GENERATED = ("<frozen ", "<string>", "<__array_function__", "<@beartype")


class Line(NamedTuple):
    """A line of code that was running. where: the function's name, "" at the top of a cell."""

    where: str
    number: int
    filename: str
    source: str


def is_callers(filename: str) -> bool:
    """Is this file neither a library nor the course's machinery? The book's reference code counts."""
    path = filename.replace("\\", "/")
    if filename.startswith(_LIBRARIES + _GENERATED) or "/site-packages/" in path:
        return False
    return "/course_utils/" not in path or filename.startswith(str(_BOOK))


def is_students(filename: str) -> bool:
    """Is it in a notebook cell or a student's own file, rather than in the course or a library?"""
    path = filename.replace("\\", "/")
    outside = ("/course_utils/", "/lib/python3", "/torch/")
    return is_callers(filename) and not any(part in path for part in outside)


def kinds_of(error: BaseException) -> tuple[str, ...]:
    """The exception's class name, then its bases'."""
    kinds = tuple(c.__name__ for c in type(error).__mro__ if c not in (BaseException, object))
    return kinds or (type(error).__name__,)


def files_of(error: BaseException) -> list[str]:
    """The files of the exception's frames, outermost first."""
    return [f.filename.replace("\\", "/") for f in traceback.extract_tb(error.__traceback__)]


def lines_of(error: BaseException, own: Callable[[str], bool]) -> list[Line]:
    """The lines of somebody's own code in which it was raised, outermost first.

    own: is a file theirs? Of an endless recursion the innermost line; of a syntax error its place.
    """
    if isinstance(error, SyntaxError) and error.lineno:
        return [Line("", error.lineno, str(error.filename), (error.text or "").strip())]
    found = [
        Line(where(f.name), f.lineno or 0, f.filename, (f.line or "").strip())
        for f in traceback.extract_tb(error.__traceback__)
        if own(f.filename)
    ]
    return found[-1:] if isinstance(error, RecursionError) else found


def where(name: str) -> str:
    """A function's name, "" for the top of a cell."""
    return "" if name == "<module>" else name
