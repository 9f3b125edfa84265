"""Which submissions are to be graded: new ones, changed ones, and those that are asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.text import few
from course_utils.classroom.submissions import intake
from course_utils.classroom.submissions.intake import Submission

from .journal import CannotRun, Journal
from .tasks import Settings, Task


@dataclass(frozen=True)
class ToDo:
    """A submission that is to be graded: all of it, or some exercises (keys). due: if not the plan's."""

    submission: Submission
    content: intake.Content
    keys: tuple[str, ...]
    due: datetime | None = None

    def task(self, plan: Plan) -> Task:
        one, content = self.submission, self.content
        return Task(
            student=one.student,
            files=one.files,
            cells=content.cells,
            digest=content.digest,
            problem=content.problem,
            notes=content.notes,
            submitted=one.submitted,
            due=self.due,
            penalty=plan.late.penalty(self.due or plan.due, one.submitted),
            keys=self.keys,
        )


def check_choice(plan: Plan, submissions: Sequence[Submission], settings: Settings) -> None:
    """Raises CannotRun for a student or an exercise that there is not."""
    students = {one.student for one in submissions}
    for name in (*settings.only, *dict(settings.due)):
        if name not in students:
            there = ", ".join(few(sorted(students), 12))
            raise CannotRun(f"no submission of {name!r}; there are: {there}")
    for key in settings.exercises:
        if key not in plan.keys:
            there = ", ".join(few(plan.keys, 12))
            raise CannotRun(f"{key!r} is not in the plan; there are: {there}")


def leave_out(book: Journal, submissions: Sequence[Submission], settings: Settings) -> None:
    """Leave students out of the run's files, or count them again.

    Raises CannotRun for a student whom nothing is known of, or who is left out and to be graded.
    """
    known = {one.student for one in submissions} | book.records.keys()
    for student, _ in settings.leave_out:
        if student not in known:
            there = ", ".join(few(sorted(known), 12))
            raise CannotRun(f"no submission and no marks of {student!r}; there are: {there}")
    if settings.leave_out:
        book.leave_out(dict(settings.leave_out))
    for student in (*settings.only, *dict(settings.due)):
        if student in book.left_out:
            raise CannotRun(f"{student!r} is left out; --leave-out {student}= counts them again")


def extend(book: Journal, settings: Settings) -> Iterator[str]:
    """Give students other time, without grading anew; what that changes, a sentence each.

    Raises CannotRun where there is no due date to replace.
    """
    plan = book.plan
    if settings.due and plan.due is None:
        raise CannotRun("the plan has no due date: there is none to replace with --due")
    for student, due in settings.due:
        before = book.records.get(student)
        if before is not None:
            penalty = plan.late.penalty(due or plan.due, before.submitted)
            after = replace(before, due=due, penalty=penalty)
            if after != before:
                book.append(after)
            said = f"late costs {after.penalty:.0%}, before {before.penalty:.0%}"
            yield f"{student}: due {(due or plan.due):%Y-%m-%d %H:%M %Z}, {said}"


def what_to_do(
    submissions: Sequence[Submission], book: Journal, settings: Settings
) -> Iterator[ToDo]:
    """The submissions to grade: new ones, changed ones, and those that are asked for.

    Of an unchanged one, the exercises that are asked for, or that have no result yet. A changed one
    is graded whole: results of two versions are not mixed.
    """
    plan = book.plan
    extended = dict(settings.due)
    for one in submissions:
        content = intake.read(one)
        before = book.records.get(one.student)
        due = before.due if before else extended.get(one.student)
        unchanged = before is not None and before.digest == content.digest
        if before is None or not unchanged:
            fresh = before is None and settings.exercises
            yield ToDo(one, content, settings.exercises if fresh else plan.keys, due)
            continue
        lacking = {key for key in plan.keys if before.result(key) is None}
        if settings.exercises:
            lacking = set(settings.exercises)
        elif settings.only or before.submitted != one.submitted:
            lacking = set(plan.keys)
        if lacking:
            yield ToDo(one, content, tuple(key for key in plan.keys if key in lacking), due)
