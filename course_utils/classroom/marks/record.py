"""What was found of one submission: the one format from which everything that comes out is made.

A run's results are a file of records, one line of JSON each, appended as they come. Of several
records of one student the later one counts, exercise by exercise.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from course_utils.grading.judging.outcomes import FAILED as FAILED
from course_utils.grading.judging.outcomes import NOT_ATTEMPTED as NOT_ATTEMPTED
from course_utils.grading.judging.outcomes import PASSED as PASSED

VERSION = 1

GRADED, DAMAGED = "graded", "damaged"
TIMES = ("submitted", "due", "graded_at")
MISSING = "missing"
HELD = "held"  # the other outcomes are those of a verdict

DATA = "compared by the grader"
INSIDE = "measured inside the student's process"

NOT_JUDGED = "the grader itself failed on this answer (see errors.log in the run folder):"
"""How the sentence of an answer begins over which the grader itself failed."""


@dataclass(frozen=True)
class Rung:
    """A step of the ladder: passed of total checks. total is known even where it was not reached."""

    name: str
    passed: int
    total: int


@dataclass(frozen=True)
class Result:
    """One exercise of one submission.

    outcome: PASSED, FAILED, NOT_ATTEMPTED (the stub), MISSING (not in the notebook) or HELD (it
    scores nothing until somebody has looked at it). points: before what late costs. rungs: of the
    whole ladder. sentence, called: of the smallest failing check; hand: was that check worked by
    hand, or about no call, so that a student may see it? guarantee: DATA, or INSIDE where a contract
    of this exercise was counted by code in the student's own process. held: why it is held, a line
    of the answer each. worth: the points that its checks would have given, had it not been held.
    decided: when somebody decided what it earns, ISO 8601.
    """

    key: str
    outcome: str
    points: float
    max_points: float
    rungs: tuple[Rung, ...] = ()
    failed_rung: str | None = None
    sentence: str = ""
    called: str = ""
    hand: bool = False
    diagnosis: str | None = None
    guarantee: str = DATA
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    worth: float = 0.0
    decided: str = ""

    @property
    def passed_checks(self) -> int:
        return sum(rung.passed for rung in self.rungs)

    @property
    def checks(self) -> int:
        return sum(rung.total for rung in self.rungs)


@dataclass(frozen=True)
class Record:
    """One submission of one student.

    student: the name that its folder or file gives. files: the notebooks, as they were found.
    digest: SHA-256 of what was graded. problem: why a damaged one could not be read, or only in part.
    isolation: the level that was active. seed: what the random cases were drawn from, as text.
    due: where this student had other time than the plan gives. penalty: the share lost for being
    late. results: in the order of the plan. notes: what an instructor should know of it, though
    nothing is wrong.
    """

    student: str
    status: str
    results: tuple[Result, ...]
    files: tuple[str, ...] = ()
    digest: str = ""
    problem: str = ""
    isolation: str = ""
    seed: str = ""
    submitted: datetime | None = None
    due: datetime | None = None
    penalty: float = 0.0
    graded_at: datetime | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def raw_points(self) -> float:
        return sum(result.points for result in self.results)

    @property
    def points(self) -> float:
        """What counts: after what late costs, rounded to hundredths."""
        return round(self.raw_points * (1 - self.penalty), 2)

    @property
    def max_points(self) -> float:
        return sum(result.max_points for result in self.results)

    @property
    def held(self) -> tuple[Result, ...]:
        """The results that count nothing until somebody has decided."""
        return tuple(result for result in self.results if result.outcome == HELD)

    def result(self, key: str) -> Result | None:
        return next((result for result in self.results if result.key == key), None)

    def to_line(self) -> str:
        """One line of JSON, with the sums for readers of other programs."""
        data = asdict(self) | {"version": VERSION}
        for name in TIMES:
            when = getattr(self, name)
            data[name] = when and when.isoformat()
        data |= {"points": self.points, "raw_points": self.raw_points}
        data |= {"max_points": self.max_points}
        return json.dumps(data, ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_line(cls, line: str) -> "Record":
        """Raises ValueError for a torn line, or one of another version."""
        data: dict[str, Any] = json.loads(line)
        version = data.pop("version", None)
        if version != VERSION:
            raise ValueError(f"a record of version {version}; this course reads {VERSION}")
        for name in ("points", "raw_points", "max_points", "seal"):
            data.pop(name, None)
        for name in TIMES:
            data[name] = datetime.fromisoformat(data[name]) if data.get(name) else None
        results = tuple(_result_of(one) for one in data.pop("results"))
        lists = {name: tuple(data.get(name, ())) for name in ("files", "notes")}
        return cls(**data | {"results": results} | lists)


def _result_of(data: dict[str, Any]) -> Result:
    rungs = tuple(Rung(**rung) for rung in data["rungs"])
    lists = {"notes": tuple(data["notes"]), "held": tuple(data.get("held", ()))}
    return Result(**data | {"rungs": rungs} | lists)


def merged(records: Iterable[Record]) -> dict[str, Record]:
    """One record a student: the latest, with earlier results of the exercises that it leaves out."""
    found: dict[str, Record] = {}
    for record in records:
        before = found.get(record.student)
        if before is not None:
            keys = {result.key for result in record.results}
            kept = tuple(result for result in before.results if result.key not in keys)
            order = [result.key for result in before.results]
            both = sorted(
                (*kept, *record.results),
                key=lambda r: order.index(r.key) if r.key in order else len(order),
            )
            record = replace(record, results=tuple(both))
        found[record.student] = record
    return found
