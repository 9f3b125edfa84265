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
        """The name of the exception's own class."""
        return self.kinds[0]

    def as_tree(self) -> dict[str, Any]:
        """What crosses to another process, cut to what `from_tree` takes."""
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
                if all(map(is_text, (*kinds, message, where))) and all(map(_is_line, lines)):
                    found = tuple((place, number, text) for place, number, text in lines)
                    return cls(tuple(kinds), message, found, where, told)
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
    """An exception as data, with the last lines of the student's own code."""
    if isinstance(error, RaisedElsewhere):
        return error.raised
    lines = tuple(
        (line.where, line.number, line.source) for line in lines_of(error, is_students)[-3:]
    )
    return Raised(kinds_of(error), short_message(error), lines)


def short_message(error: BaseException) -> str:
    """str(error), 600 characters at most; a short repr where the student's own `__str__` fails or hangs."""
    try:
        with time_limit(TO_SHOW_S):
            text = str(error)
    except BaseException:
        text = short(error)
    return text if len(text) <= 600 else text[:599] + "…"
