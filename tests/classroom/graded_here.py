"""Submissions graded in this process, through the real sandbox."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from submissions import folder_of

from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record
from course_utils.classroom.run import worker
from course_utils.classroom.run.tasks import Job, Task, damaged
from course_utils.classroom.submissions import intake

SECRET = bytes(range(32))


class Inline:
    """A pool of no process but this one: what is submitted is done at once."""

    falls_together, size = True, 1

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given))
        except Exception as error:
            future.set_exception(error)
        return future

    def renew(self) -> None: ...

    def close(self) -> None: ...


def grade_notebooks(files: dict[str, bytes], plan: Plan, student: str = "ada") -> Record:
    """The record of one student's notebooks, by name."""
    with TemporaryDirectory() as folder:
        place = folder_of(Path(folder) / "hw", {f"{student}/{k}": v for k, v in files.items()})
        (one,) = intake.find(place).submissions
        content = intake.read(one)
    task = Task(student, content.cells, plan.keys, problem=content.problem, notes=content.notes)
    if not content.readable:
        return damaged(task, plan)
    return worker.grade_one(Job(plan, SECRET, modules=("toy_class",)), task).record
