"""Drive an object through a case with a probe, and keep what was seen or what was raised."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from .case import Case
from .limits import allowance, time_limit
from .probes import Probe
from .raised import Raised, raised_by
from .surroundings import quiet


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
            "where": self.raised.where,
            "told": self.raised.told,
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
        limited = allowance if getattr(probe, "keeps_limit", False) else time_limit
        with quiet() as left, limited(limit_s):
            seen = probe(subject, ready)
        return Observation(seen, None, perf_counter() - start, tuple(left))
    except BaseException as error:  # SystemExit, GeneratorExit and a student's own as well
        return Observation(None, raised_by(error), perf_counter() - start)
