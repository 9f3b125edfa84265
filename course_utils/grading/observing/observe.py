"""Drive an object through a case with a probe, and keep what was seen or what was raised."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import Probe
from course_utils.grading.pytrees.text import cut
from course_utils.processes.time_limit import allowance, spare, time_limit

from .errors import MOST, Raised, is_text, raised_by
from .global_state import quiet
from .mirrored import asks_for_numbers, mirror, mirrored

spare(__file__)


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
        """What crosses to another process, cut to what `from_tree` takes."""
        raised = self.raised and self.raised.as_tree()
        return {
            "seen": self.seen and {cut(str(label)): value for label, value in self.seen.items()},
            "raised": raised,
            "left": [cut(text) for text in self.left[:MOST]],
            "seconds": self.seconds,
        }

    @classmethod
    def from_tree(cls, tree: Any) -> "Observation":
        """The inverse of `as_tree`, of bytes that may be forged.

        Raises ValueError for a tree that is no observation, or a text that is too long for one.
        """
        raised: Raised | None = None
        match tree:
            case {"seen": None, "raised": dict(), "left": list(), "seconds": float()}:
                raised = Raised.from_tree(tree["raised"])
            case {"seen": dict(), "raised": None, "left": list(), "seconds": float()}:
                pass
            case _:
                raise ValueError("this is no observation")
        labels, left = tree["seen"] or (), tuple(tree["left"])
        if len(tree) > 4 or len(left) > MOST or not all(is_text(x) for x in (*labels, *left)):
            raise ValueError("this is no observation")
        if not 0 <= tree["seconds"] < float("inf"):
            raise ValueError("this took no time that a clock shows")
        return cls(tree["seen"], raised, tree["seconds"], left)


def observe(probe: Probe, subject: Any, case: Case, limit_s: float = 5.0) -> Observation:
    """What the probe sees on fresh copies of the case. Never raises for what the subject does."""
    return read(probe, report(probe, subject, case, limit_s), case, subject)


def read(probe: Probe, found: Observation, case: Case, named_by: Any) -> Observation:
    """What a report means, judged here: see `Probe.read`. It may be forged."""
    if found.seen is None:
        return found
    try:
        return replace(found, seen=probe.read(found.seen, case, named_by))
    except Exception as error:
        return Observation(None, raised_by(error), found.seconds)


def report(probe: Probe, subject: Any, case: Case, limit_s: float = 5.0) -> Observation:
    """What the probe reports of fresh copies of the case. Never raises for what the subject does."""
    found = _report(probe, subject, case.fresh(), limit_s)
    if asks_for_numbers(found.raised, case):
        found = _report(probe, subject, case.giving(mirrored(case.given)), limit_s, mirror())
        return replace(found, seen=mirrored(found.seen))
    return found


def _report(
    probe: Probe,
    subject: Any,
    ready: Case,
    limit_s: float,
    around: AbstractContextManager[Any] | None = None,
) -> Observation:
    """around: what the probe runs in, if in anything."""
    start = perf_counter()
    try:
        limited = allowance if probe.on_ranks else time_limit
        with quiet() as left, limited(limit_s), around or nullcontext():
            seen = probe.run(subject, ready)
        return Observation(seen, None, perf_counter() - start, tuple(left))
    except BaseException as error:  # SystemExit, GeneratorExit and a student's own as well
        return Observation(None, raised_by(error), perf_counter() - start)
