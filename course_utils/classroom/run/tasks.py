"""How a run is made, what crosses to its workers, and what comes back."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from course_utils.classroom.marks.marking import without_answer
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import DAMAGED, MISSING, Record


@dataclass(frozen=True)
class Settings:
    """How a run is made. workers: processes of this machine. dask: a scheduler's address instead.

    isolation: "best", "bubblewrap" or "process". require_sandbox: go on only in a sandbox that hides
    files and network. as_root: may students' code run as root? only: students whose submissions are
    graded again, and no others'. exercises: keys that are graded again, and no others. modules: that
    declare exercises of one's own. due: for these students, instead of the plan's; None: the plan's
    again. roster, also: see `reports.write.write_all`. similarity: compare the answers with one
    another. decide: of answers that are held, (student, key, points). leave_out: students, and whether
    they are in no file from now on (True) or counted again (False).
    """

    workers: int = 1
    dask: str | None = None
    isolation: str = "best"
    require_sandbox: bool = False
    as_root: bool = False
    only: tuple[str, ...] = ()
    exercises: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    due: tuple[tuple[str, datetime | None], ...] = ()
    roster: Path | None = None
    also: tuple[str, ...] = ()
    similarity: bool = False
    decide: tuple[tuple[str, str, float], ...] = ()
    leave_out: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True)
class Job:
    """What a worker must know of a run; the same for each of its submissions.

    versions: of the course, Python and torch, which every worker must have.
    """

    plan: Plan
    secret: bytes
    isolation: str = "best"
    require_sandbox: bool = False
    as_root: bool = False
    modules: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Task:
    """One submission, as it crosses to a worker. keys: the exercises to grade, in the plan's order."""

    student: str
    cells: tuple[str, ...]
    keys: tuple[str, ...]
    files: tuple[str, ...] = ()
    digest: str = ""
    problem: str = ""
    notes: tuple[str, ...] = ()
    submitted: datetime | None = None
    due: datetime | None = None
    penalty: float = 0.0


@dataclass(frozen=True)
class Graded:
    """A record; and what went wrong in the grader itself meanwhile, for whoever mends it."""

    record: Record
    troubles: tuple[str, ...] = ()


def damaged(task: Task, plan: Plan, problem: str = "") -> Record:
    """The record of a submission that earns nothing, and why."""
    results = tuple(without_answer(plan.item(key), MISSING, {}) for key in task.keys)
    return Record(
        task.student,
        DAMAGED,
        results,
        files=task.files,
        digest=task.digest,
        problem=problem or task.problem,
        notes=task.notes,
        submitted=task.submitted,
        due=task.due,
        penalty=task.penalty,
        graded_at=datetime.now(UTC),
    )
