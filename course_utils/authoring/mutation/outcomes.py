"""What is judged, and what became of it."""

from dataclasses import dataclass
from typing import Any

KILLED, SURVIVED, ERROR = "killed", "survived", "error"
TIME_LIMIT = "time limit"


@dataclass(frozen=True)
class Job:
    """Something to judge."""

    id: str
    payload: Any = None


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    verdict: "killed", "survived", or "error" (the judge itself failed: no verdict).
    rung: what killed it: the judge's word, or "time limit", or "crash".
    detail: what else the judge said, or how the process ended.
    seconds: of the judgement, by the clock. processor_s: that its own process has used.
    """

    id: str
    verdict: str
    rung: str = ""
    detail: str = ""
    seconds: float = 0.0
    processor_s: float = 0.0

    def __str__(self) -> str:
        rung = f": {self.rung}" if self.rung else ""
        return f"{self.verdict}{rung} · {self.id}"
