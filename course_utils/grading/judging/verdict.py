"""What a check found: plain data, which `words` tells and `notebook.display` draws."""

from dataclasses import dataclass, field
from typing import Any

from course_utils.grading.comparing.trees import Difference
from course_utils.grading.driving.case import Case
from course_utils.grading.observing.observe import Observation
from course_utils.grading.pytrees.shown import Formats

from .words import as_text


class VerdictError(AssertionError):
    """Raised in strict mode for a verdict that is not 'passed'."""


@dataclass(frozen=True)
class RungResult:
    """One step of the ladder. passed of total checks; not_compared: checks that compared nothing."""

    name: str
    passed: int
    total: int
    not_compared: int = 0

    @property
    def ok(self) -> bool:
        return self.total > 0 and self.passed == self.total


@dataclass(frozen=True)
class Failure:
    """The smallest failing check of the first failing rung."""

    rung: str
    sentence: str
    called: str = ""
    case: Case | None = None
    got: Observation | None = None
    want: Observation | None = None
    label: str = "result"
    difference: Difference | None = None
    wrong_cases: int = 1
    formats: Formats = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """outcome: passed, failed, not attempted, skipped or interrupted. ran, passed: checks.

    diagnosis: the known mistake that explains a failure. sure: does it explain all of it?
    """

    key: str
    title: str
    outcome: str
    reason: str = ""
    rungs: tuple[RungResult, ...] = ()
    rung_names: tuple[str, ...] = ()
    total: int = 0
    failure: Failure | None = None
    diagnosis: str | None = None
    sure: bool = True
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def ran(self) -> int:
        return sum(rung.total for rung in self.rungs)

    @property
    def passed_checks(self) -> int:
        return sum(rung.passed for rung in self.rungs)

    @property
    def failed_rung(self) -> str | None:
        return next((rung.name for rung in self.rungs if not rung.ok), None)

    def __str__(self) -> str:
        return as_text(self)

    def summary(self) -> dict[str, Any]:
        """The figures of this verdict as JSON, for files and terminals."""
        return {
            "key": self.key,
            "outcome": self.outcome,
            "checks_passed": self.passed_checks,
            "checks_ran": self.ran,
            "checks_total": self.total,
            "failed_rung": self.failed_rung,
            "diagnosis": self.diagnosis,
            "seconds": round(self.seconds, 4),
        }
