"""What ended a piece of code, as data: the exception, and the lines of the student's own."""

import linecache
import traceback
from dataclasses import dataclass
from typing import Any

from course_utils.grading.pytrees.text import LONGEST_TEXT, TO_SHOW_S, UNSHOWN, cut, short
from course_utils.processes.time_limit import spare, time_limit

spare(__file__)

TIME_LIMIT = "TimeLimit"
INTERRUPTED = "KeyboardInterrupt"
DEADLOCK = "Deadlock"
NEVER_EXPECTED = "NeverExpected"  # among the kinds of what no reference may do either
COSTLY = "Costly"  # among the kinds of what took the processes with it
ENDS = frozenset({TIME_LIMIT, INTERRUPTED, NEVER_EXPECTED, COSTLY})  # one is enough to stop at
MOST = 64  # kinds, lines


@dataclass(frozen=True)
class Raised:
    """An exception as data. kinds: its class's name, then its bases'. lines: the frames in the
    student's own code, outermost first, as (place, line number, source). where: on which ranks, in
    words; told: the message is a whole sentence of the engine's."""

    kinds: tuple[str, ...]
    message: str
    lines: tuple[tuple[str, int, str], ...] = ()
    where: str = ""
    told: bool = False

    @property
    def kind(self) -> str:
        return self.kinds[0]

    def as_tree(self) -> dict[str, Any]:
        return {
            "kinds": [cut(kind) for kind in self.kinds[:MOST]],
            "message": cut(self.message),
            "lines": [[cut(place), number, cut(text)] for place, number, text in self.lines[:MOST]],
            "where": cut(self.where),
            "told": self.told,
        }

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> "Raised":
        """The inverse, of a tree that may be forged. Raises ValueError for one that is no exception."""
        match tree:
            case {
                "kinds": list(kinds),
                "message": str(message),
                "lines": list(lines),
                "where": str(where),
                "told": bool(told),
            } if len(tree) == 5 and 0 < len(kinds) <= MOST and len(lines) <= MOST:
                if all(map(is_text, (*kinds, message, where))) and all(map(is_line, lines)):
                    found = tuple((place, number, text) for place, number, text in lines)
                    return cls(tuple(kinds), message, found, where, told)
        raise ValueError("this is no exception")


def is_text(value: Any) -> bool:
    """A text that may be shown: neither too long, nor with what steers a terminal."""
    return type(value) is str and len(value) <= LONGEST_TEXT and not UNSHOWN.search(value)


def is_line(value: Any) -> bool:
    match value:
        case [str(place), int(number), str(text)]:
            return is_text(place) and is_text(text) and 0 <= number < 2**31
    return False


class RaisedElsewhere(Exception):
    """What ended a probe in other processes, as data."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.message)
        self.raised = raised


def raised_by(error: BaseException) -> Raised:
    if isinstance(error, RaisedElsewhere):
        return error.raised
    kinds = tuple(c.__name__ for c in type(error).__mro__ if c not in (BaseException, object))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_students(f.filename)]
    lines = tuple(
        (place(f), f.lineno or 0, (f.line or linecache.getline(f.filename, f.lineno or 0)).strip())
        for f in frames[-3:]
    )
    if isinstance(error, RecursionError):
        lines = lines[-1:]
    if isinstance(error, SyntaxError) and error.lineno:
        lines = ((str(error.filename), error.lineno, (error.text or "").strip()),)
    return Raised(kinds or (type(error).__name__,), short_message(error), lines)


def place(frame: traceback.FrameSummary) -> str:
    return "" if frame.name == "<module>" else frame.name


def short_message(error: BaseException) -> str:
    try:
        with time_limit(TO_SHOW_S):
            text = str(error)
    except BaseException:
        text = short(error)
    return text if len(text) <= 600 else text[:599] + "…"


def is_students(filename: str) -> bool:
    """Is this frame in a notebook cell or a student's file, rather than in the course or a library?"""
    path = filename.replace("\\", "/")
    return not (
        "/course_utils/" in path
        or "/site-packages/" in path
        or "/lib/python3" in path
        or path.startswith("<frozen")
        or "/torch/" in path
    )
