"""What ended a piece of code, as data: the exception, and the lines of the student's own."""

from dataclasses import dataclass
from typing import Any

from course_utils.grading.pytrees.text import LONGEST_TEXT, TO_SHOW_S, UNSHOWN, cut, short
from course_utils.processes.time_limit import spare, time_limit
from course_utils.source.tracebacks import is_students, kinds_of, lines_of

spare(__file__)

TIME_LIMIT = "TimeLimit"
INTERRUPTED = "KeyboardInterrupt"
DEADLOCK = "Deadlock"
MOST = 64  # kinds, lines


@dataclass(frozen=True)
class Raised:
    """An exception as data.

    kinds: its class's name, then its bases'. lines: the frames in the student's own code, outermost
    first, as (place, line number, source). where: on which ranks, in words. told: the message is a
    whole sentence of the engine's. never: no reference may do that either. costly: it took processes
    with it.
    """

    kinds: tuple[str, ...]
    message: str
    lines: tuple[tuple[str, int, str], ...] = ()
    where: str = ""
    told: bool = False
    never: bool = False
    costly: bool = False

    @property
    def kind(self) -> str:
        """The name of the exception's own class."""
        return self.kinds[0]

    @property
    def ends(self) -> bool:
        """Is one enough to stop at?"""
        return self.never or self.costly or self.kind in (TIME_LIMIT, INTERRUPTED)

    def as_tree(self) -> dict[str, Any]:
        """What crosses to another process, cut to what `from_tree` takes."""
        return {
            "kinds": [cut(kind) for kind in self.kinds[:MOST]],
            "message": cut(self.message),
            "lines": [[cut(place), number, cut(text)] for place, number, text in self.lines[:MOST]],
            "where": cut(self.where),
            "told": self.told,
            "never": self.never,
            "costly": self.costly,
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
                "never": bool(never),
                "costly": bool(costly),
            } if len(tree) == 7 and 0 < len(kinds) <= MOST and len(lines) <= MOST:
                if all(map(is_text, (*kinds, message, where))) and all(map(_is_line, lines)):
                    found = tuple((place, number, text) for place, number, text in lines)
                    return cls(tuple(kinds), message, found, where, told, never, costly)
        raise ValueError("this is no exception")


def is_text(value: Any) -> bool:
    """A text that may be shown: neither too long, nor with what steers a terminal."""
    return type(value) is str and len(value) <= LONGEST_TEXT and not UNSHOWN.search(value)


def _is_line(value: Any) -> bool:
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
    """An exception as data, with the last lines of the student's own code.

    If it has none, what the code gave could not be used: the line of the check that tried.
    """
    if isinstance(error, RaisedElsewhere):
        return error.raised
    lines = lines_of(error, is_students)[-3:] or [
        line._replace(where="the check") for line in lines_of(error, _is_probe)[-1:]
    ]
    places = tuple((line.where, line.number, line.source) for line in lines)
    return Raised(kinds_of(error), short_message(error), places)


def _is_probe(filename: str) -> bool:
    return "/course_utils/grading/probes/" in filename.replace("\\", "/")


def short_message(error: BaseException) -> str:
    """str(error), 600 characters at most; a short repr where the student's own `__str__` fails or hangs."""
    try:
        with time_limit(TO_SHOW_S):
            text = str(error)
    except BaseException:
        text = short(error)
    return text if len(text) <= 600 else text[:599] + "…"
