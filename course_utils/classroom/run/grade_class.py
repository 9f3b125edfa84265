"""A class graded: what is to do, handed out, written down as it comes, and made into a gradebook.

    course grade SUBMISSIONS → Settings → grade(...) → the run folder and a Summary

A run that was interrupted, however it was, goes on when the same command is given again: what is in
`results.jsonl` is not graded again unless the submission has changed. So it ends with the same
gradebook: random cases come from the run's secret, and records are put in order by student.
"""

import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from course_utils.classroom.marks.marking import decided
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import DAMAGED, Record
from course_utils.classroom.marks.text import few, plural
from course_utils.classroom.submissions import intake
from course_utils.classroom.submissions.handed_out import HandedOut
from course_utils.classroom.submissions.intake import Submission

from . import journal, sandboxes, worker, workers
from .journal import CannotRun, Journal
from .sandboxes import CannotGrade
from .tasks import Graded, Job, Settings, Task, damaged
from .todo import check_choice, extend, leave_out, what_to_do

ERRORS = "errors.log"
One = TypeVar("One", Submission, Record)


class Progress:
    """What a run tells while it goes on; this one keeps it to itself."""

    def start(self, total: int) -> None:
        """So many submissions are to be graded."""

    def ready(self) -> None:
        """The first worker can begin: from now on, time tells how much is left."""

    def step(self, record: Record) -> None:
        """One of them is graded, and on the disk."""

    def say(self, text: str) -> None:
        """A line for people."""


@dataclass
class Summary:
    """A run that has ended.

    graded: submissions by this call, in_workers: of those, the ones that could be read. kept: from
    before. start_s: until the first worker was ready. seconds: from then on.
    """

    folder: Path
    records: tuple[Record, ...]
    files: tuple[Path, ...] = ()
    graded: int = 0
    in_workers: int = 0
    kept: int = 0
    seconds: float = 0.0
    start_s: float = 0.0
    isolation: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def damaged(self) -> int:
        """Submissions that could not be read, or only in part."""
        return sum(record.status == DAMAGED or bool(record.problem) for record in self.records)

    @property
    def held(self) -> int:
        """Answers that count nothing until somebody has decided."""
        return sum(len(record.held) for record in self.records)

    @property
    def mean(self) -> float:
        return sum(record.points for record in self.records) / max(1, len(self.records))


def grade(
    place: Path, plan: Plan, folder: Path, settings: Settings, progress: Progress | None = None
) -> Summary:
    """Grade what is in `place` by the plan; the results go to `folder`.

    Raises NoSubmissions, CannotRun, UnknownKey, RosterError, or CannotGrade (no sandbox where
    one is required, a worker of another version); whatever was graded until then is kept.
    """
    from course_utils.classroom.reports.write import Roster, write_all

    progress = progress or Progress()
    if place.is_dir() and folder.resolve().is_relative_to(place.resolve()):
        raise CannotRun(
            f"{folder} lies among the submissions, and would be one of them: name another -o"
        )
    if settings.roster:
        Roster.read(settings.roster)  # before the work, if it cannot be read
    progress.say(f"reading the submissions in {place}")
    found = intake.find(place, HandedOut.by(plan.names, plan.keys))
    with journal.opened(folder, plan, place) as book:
        summary = Summary(folder, ())
        check_choice(plan, found.submissions, settings)
        leave_out(book, found.submissions, settings)
        summary.notes += extend(book, settings)
        counted = _counted(found.submissions, book)
        _grade_all(counted, book, settings, progress, summary)
        for decision in settings.decide:
            book.append(decided_in(book, *decision))
        order = sorted(
            _counted(book.records.values(), book),
            key=lambda one: (one.student.casefold(), one.student),
        )
        progress.say(f"writing gradebook and pages for {plural(len(order), 'student')}")
        summary.records = tuple(replace(one, results=_in_order(plan, one)) for one in order)
        summary.files = tuple(
            write_all(
                folder,
                plan,
                summary.records,
                roster=settings.roster,
                also=settings.also,
                sources=_answers_of(counted) if settings.similarity else None,
                without=book.left_out,
                wall_seconds=summary.seconds or None,
            )
        )
        summary.isolation = tuple(book.run["isolation"])
        summary.notes += _notes_on(found, book, plan)
    return summary


def _counted(ones: Iterable[One], book: Journal) -> list[One]:
    """Those whose student is not left out."""
    without = book.left_out
    return [one for one in ones if one.student not in without]


def _undone(before: Record | None, now: Record) -> Iterator[str]:
    """Decisions on held answers that grading them again takes back, a sentence each."""
    for result in now.results:
        old = before.result(result.key) if before else None
        if old and old.decided:
            yield (
                f"graded again: {now.student}, {result.key}; what was decided of it ({old.points:g} "
                "points) counts no longer"
            )


def _grade_all(
    submissions: Sequence[Submission],
    book: Journal,
    settings: Settings,
    progress: Progress,
    summary: Summary,
) -> None:
    """Grade what is to be graded, each record onto the disk as it comes."""

    def keep(record: Record) -> None:
        summary.notes += _undone(book.records.get(record.student), record)
        book.append(record)
        progress.step(record)
        summary.graded += 1

    chosen = [one for one in submissions if not settings.only or one.student in settings.only]
    todo = list(what_to_do(chosen, book, settings))
    summary.kept = len(submissions) - len(todo)
    progress.say(
        f"{plural(len(submissions), 'submission')}: {len(todo)} to grade, {summary.kept} graded before; "
        f"each mark goes to {book.folder / journal.RESULTS} at once"
    )
    progress.start(len(todo))
    tasks = []
    for one in todo:
        if one.content.readable:
            tasks.append(one.task(book.plan))
        else:
            keep(damaged(one.task(book.plan), book.plan))
    if tasks:
        for record in _in_workers(tasks, book, settings, progress, summary):
            keep(record)


def _in_workers(
    tasks: Sequence[Task], book: Journal, settings: Settings, progress: Progress, summary: Summary
) -> Iterator[Record]:
    """The records of tasks as they come from the workers. Raises CannotGrade if none can be had."""
    job = Job(
        plan=book.plan,
        secret=book.secret,
        isolation=settings.isolation,
        require_sandbox=settings.require_sandbox,
        as_root=settings.as_root,
        modules=settings.modules,
        versions=tuple(sorted(journal.versions().items())),
    )
    work, ready = partial(worker.grade_one, job), partial(worker.ready, job)
    began = time.perf_counter()
    pool = pool_of(settings, len(tasks))
    progress.say(f"starting {plural(pool.size, 'worker')}, each with PyTorch and a sandbox")
    try:
        level, *_ = [pool.submit(ready) for _ in range(pool.size)]  # each starts a worker
        progress.say(f"isolation: {level.result()}")
        summary.start_s = time.perf_counter() - began
        progress.ready()
        began = time.perf_counter()
        for task, found in workers.results(pool, work, ready, tasks):
            if isinstance(found, CannotGrade):
                raise found
            yield _record_of(task, found, book)
            summary.in_workers += 1
        summary.seconds = time.perf_counter() - began
    except Exception as error:
        if workers.died(error):
            raise CannotGrade(f"no worker can be started: {error}") from error
        raise
    finally:
        pool.close()


def pool_of(settings: Settings, tasks: int) -> workers.Pool:
    """Where so many tasks are graded: a Dask cluster, or processes of this machine, no more than
    there are tasks."""
    if settings.dask:
        return workers.Dask(settings.dask)
    required = settings.require_sandbox
    begin = partial(sandboxes.begin, settings.isolation, required, settings.as_root)
    return workers.Processes(max(1, min(settings.workers, tasks)), begin)


def _record_of(task: Task, found: Graded | BaseException, book: Journal) -> Record:
    """What came of a task, as a record.

    A grader that dies or raises over a submission costs that submission its marks, not the run.
    """
    if isinstance(found, Graded):
        for trouble in found.troubles:
            _note_down(book.folder, task.student, trouble)
        return found.record
    if isinstance(found, workers.WorkerDied):
        return damaged(task, book.plan, str(found))
    _note_down(book.folder, task.student, "".join(traceback.format_exception(found)))
    problem = f"the grader failed on it: {type(found).__name__} (see {ERRORS})"
    return damaged(task, book.plan, problem)


def _note_down(folder: Path, student: str, trouble: str) -> None:
    with (folder / ERRORS).open("a", encoding="utf-8", errors="replace") as file:
        file.write(f"{datetime.now(UTC).isoformat()} {student}\n{trouble}\n")


def _answers_of(submissions: Sequence[Submission]) -> dict[str, dict[str, str]]:
    """The texts of the answers by student and exercise."""
    from course_utils.classroom.reports.similarity import exercise_cells

    return {one.student: exercise_cells(intake.read(one).cells) for one in submissions}


def decided_in(book: Journal, student: str, key: str, points: float) -> Record:
    """The record of a decision on an answer that is held. Raises CannotRun if there is none."""
    record = book.records.get(student)
    result = record.result(key) if record else None
    if record is None or result is None:
        raise CannotRun(f"no result of {student!r} in {key!r}: nothing was decided there")
    now = datetime.now(UTC)
    try:
        return replace(record, results=(decided(result, points, now),), graded_at=now)
    except ValueError as error:
        raise CannotRun(f"{student}: {error}") from None


def _in_order(plan: Plan, record: Record) -> tuple[Any, ...]:
    found = {result.key: result for result in record.results}
    return tuple(found[key] for key in plan.keys if key in found)


def _notes_on(found: intake.Found, book: Journal, plan: Plan) -> list[str]:
    """What an instructor should know about a run, a sentence each."""
    notes = [f"left out: {text}" for text in few(found.left_out, 20)]
    records = _counted(book.records.values(), book)
    here = {one.student for one in found.submissions}
    gone = sorted(one.student for one in records if one.student not in here)
    if gone:
        notes.append(
            f"graded before and not among the submissions now: {', '.join(few(gone, 12))}. Their marks "
            f"stay; --leave-out {gone[0]} takes them out of every file"
        )
    if book.left_out:
        notes.append(f"left out of every file: {', '.join(few(sorted(book.left_out), 12))}")
    if plan.due and (plan.late.per_day or plan.late.closes_after_days is not None):
        unknown = sum(one.submitted is None for one in found.submissions)
        if unknown:
            notes.append(
                f"when {unknown} of {len(found.submissions)} were handed in is not known: nothing "
                "is taken off those for being late"
            )
    if book.unreadable:
        notes.append(f"{book.unreadable} lines of {journal.RESULTS} cannot be read; graded again")
    lacking = sum(any(record.result(key) is None for key in plan.keys) for record in records)
    for record in records:
        for result in record.held:
            notes.append(
                f"held: {record.student}, {result.key}: {'; '.join(result.held)}. Read it, then "
                f"give the same command with --decide {record.student}:{result.key}=POINTS"
            )
    if lacking:
        notes.append(f"{lacking} students have exercises that were not graded yet")
    return notes
