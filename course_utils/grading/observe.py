"""Drive an object through a case with a probe, and keep what was seen or what was raised."""

import io
import linecache
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from .case import Case
from .limits import TimeLimit, time_limit
from .probes import Probe
from .values import short

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
    """What a probe saw: named arrays and plain values, or the exception that ended it."""

    seen: dict[str, Any] | None
    raised: Raised | None = None
    seconds: float = 0.0

    def as_tree(self) -> dict[str, Any]:
        raised = self.raised and {
            "kinds": self.raised.kinds,
            "message": self.raised.message,
            "lines": self.raised.lines,
        }
        return {"seen": self.seen, "raised": raised}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> "Observation":
        return cls(tree["seen"], Raised(**tree["raised"]) if tree["raised"] else None)


def observe(probe: Probe, subject: Any, case: Case, limit_s: float = 5.0) -> Observation:
    """Run the probe on fresh copies of the case. Never raises for what the subject does."""
    ready = case.fresh()
    start = perf_counter()
    try:
        with time_limit(limit_s), quiet():
            seen = probe(subject, ready)
        return Observation(seen, None, perf_counter() - start)
    except BaseException as error:
        if isinstance(error, TimeLimit | KeyboardInterrupt | Exception | SystemExit):
            return Observation(None, raised_by(error), perf_counter() - start)
        raise


@contextmanager
def quiet() -> Iterator[None]:
    """The subject's prints do not mix with the verdict, and its random numbers leave no trace."""
    with redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


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
        text = str(error)
    except Exception:
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
