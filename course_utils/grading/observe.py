"""Drive an object through a case with a probe, and keep what was seen or what was raised."""

import linecache
import traceback
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from .case import Case
from .limits import time_limit
from .probes import Probe
from .surroundings import quiet
from .values import TO_SHOW_S, short

TIME_LIMIT = "TimeLimit"
INTERRUPTED = "KeyboardInterrupt"


@dataclass(frozen=True)
class Raised:
    """An exception as data. kinds: its class's name, then its bases'. lines: the frames in the
    student's own code, outermost first, as (place, line number, source)."""

    kinds: tuple[str, ...]
    message: str
    lines: tuple[tuple[str, int, str], ...] = ()

    @property
    def kind(self) -> str:
        return self.kinds[0]


@dataclass(frozen=True)
class Observation:
    """What a probe saw: named arrays and plain values, or the exception that ended it.

    left: the settings of torch and Python that the code changed and left so, in words.
    """

    seen: dict[str, Any] | None
    raised: Raised | None = None
    seconds: float = 0.0
    left: tuple[str, ...] = ()

    def as_tree(self) -> dict[str, Any]:
        raised = self.raised and {
            "kinds": self.raised.kinds,
            "message": self.raised.message,
            "lines": self.raised.lines,
        }
        return {"seen": self.seen, "raised": raised, "left": self.left}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> "Observation":
        raised = Raised(**tree["raised"]) if tree["raised"] else None
        return cls(tree["seen"], raised, left=tuple(tree["left"]))


def observe(probe: Probe, subject: Any, case: Case, limit_s: float = 5.0) -> Observation:
    """Run the probe on fresh copies of the case. Never raises for what the subject does."""
    ready = case.fresh()
    start = perf_counter()
    try:
        with quiet() as left, time_limit(limit_s):
            seen = probe(subject, ready)
        return Observation(seen, None, perf_counter() - start, tuple(left))
    except BaseException as error:  # SystemExit, GeneratorExit and a student's own as well
        return Observation(None, raised_by(error), perf_counter() - start)


def raised_by(error: BaseException) -> Raised:
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
