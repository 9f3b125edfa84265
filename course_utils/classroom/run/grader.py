"""What a worker does: one submission's cells → its record.

A worker holds the references, the plan and the run's secret, and one sandbox. The code of a
submission runs in the sandbox; what comes out of it is compared here.
"""

import hashlib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

from course_utils.classroom.marks.marking import SERIES, held, result_of, seed_of, without_answer
from course_utils.classroom.marks.plan import Item
from course_utils.classroom.marks.record import (
    FAILED,
    GRADED,
    MISSING,
    NOT_ATTEMPTED,
    NOT_JUDGED,
    Record,
    Result,
)
from course_utils.grading.declaring.registry import in_book_order
from course_utils.grading.expecting.from_reference import remember
from course_utils.needs import lacking
from course_utils.source.cells import DECORATED, MAGIC
from course_utils.source.notebook_python import TRANSFORMER

from .sandboxes import CannotGrade
from .tasks import Graded, Job, Task

if TYPE_CHECKING:
    from course_utils.grading.declaring.exercise import Exercise
    from course_utils.grading.remote.client import RemoteSubmission
    from course_utils.sandbox import Sandbox

SLOW_TO_LOAD = (
    "einops",
    "jaxtyping",
    "sympy",
    "torch._dynamo",
    "torch.fx.experimental.symbolic_shapes",
    "torch.profiler",
    TRANSFORMER,
)
"""Where a reference has needed one of them, students' code will: the sandbox then loads it once for
all. torch._dynamo alone, which the first optimizer asks for, takes a process a second."""


class Grader:
    """A worker's own: the exercises of a run, and the sandbox that it is given.

    Raises CannotGrade where the versions differ, an exercise is not to be found or needs a GPU that
    is not there.
    """

    def __init__(self, job: Job, sandbox: "Sandbox") -> None:
        check_versions(job)
        self.job, self.sandbox = job, sandbox
        self.exercises = {item.key: exercise(item.key) for item in job.plan.items}
        remember(SERIES * len(self.exercises))
        self.sizes: dict[tuple[str, int], dict[str, int]] = {}
        self.troubles: list[str] = []

    def grade(self, task: Task) -> Graded:
        """The record of a submission. Raises Broken if the sandbox is; nothing for what its code does."""
        began, self.troubles = perf_counter(), []
        items = [self.job.plan.item(key) for key in in_book_order(task.keys)]
        results: dict[str, Result] = {}
        self.expect(task, items)
        for ranks in (False, True):
            chosen = [item for item in items if _uses_ranks(self.exercises[item.key]) == ranks]
            if chosen:
                with self.sandbox.submission(ranks=ranks) as channel:
                    for result in self.mark(task, chosen, channel.ask):
                        results[result.key] = result
        record = Record(
            task.student,
            GRADED,
            tuple(results[key] for key in task.keys),
            files=task.files,
            digest=task.digest,
            problem=task.problem,
            notes=task.notes,
            isolation=self.sandbox.level,
            seed=fingerprint(self.job.secret),
            submitted=task.submitted,
            due=task.due,
            penalty=task.penalty,
            graded_at=datetime.now(UTC),
            seconds=round(perf_counter() - began, 4),
        )
        return Graded(record, tuple(self.troubles))

    def expect(self, task: Task, items: Sequence[Item]) -> None:
        """Work out what is expected, before anything of the student runs; what fails, fails again."""
        for item in items:
            found = self.exercises[item.key]
            if not _uses_ranks(found):  # the others have processes of their own
                with suppress(Exception):
                    self.sizes_of(found, seed_of(self.job.secret, task.student, item.key))
        if any(map(MAGIC.search, task.cells)):
            importlib.import_module(TRANSFORMER)
        self.sandbox.load(name for name in SLOW_TO_LOAD if name in sys.modules)

    def mark(
        self, task: Task, items: Sequence[Item], ask: Callable[[dict[str, Any], float], Any]
    ) -> Iterable[Result]:
        """The results of these exercises, whose code is asked through one channel."""
        from course_utils.grading.remote.client import RemoteSubmission
        from course_utils.sandbox import Broken

        submission = RemoteSubmission(ask, _without_stubs(task.cells, [item.key for item in items]))
        for item in items:
            try:
                yield self.judged(item, submission, task)
            except Broken:
                raise
            except Exception as error:  # of the grader's: it costs the exercise, and is told
                self.troubles.append("".join(traceback.format_exception(error)))
                yield without_answer(item, FAILED, {}, f"{NOT_JUDGED} {type(error).__name__}")

    def judged(self, item: Item, submission: "RemoteSubmission", task: Task) -> Result:
        from course_utils.grading.judging.judge import judge

        found = self.exercises[item.key]
        seed = seed_of(self.job.secret, task.student, item.key)
        sizes = self.sizes_of(found, seed)
        if submission.problem:
            return without_answer(item, FAILED, sizes, submission.problem)
        if item.key not in submission.keys:
            return without_answer(item, MISSING, sizes, "no cell of the notebook answers it")
        answer = submission.answer(found)
        verdict = judge(found, answer, seed)
        if verdict.outcome == NOT_ATTEMPTED:
            return without_answer(item, NOT_ATTEMPTED, sizes, "it is still the stub")
        return held(result_of(item, found, verdict, sizes), answer.doubts())

    def sizes_of(self, found: "Exercise", seed: int) -> dict[str, int]:
        """How many checks each rung of an exercise's ladder holds."""
        from course_utils.grading.judging.answer import Here
        from course_utils.grading.judging.ladder import Ladder

        if (found.key, seed) not in self.sizes:
            ladder = Ladder(found, Here(found, found.parts), seed)
            self.sizes[found.key, seed] = ladder.plan()
        return self.sizes[found.key, seed]


def _without_stubs(cells: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The cells without untouched stubs of exercises that another cell answers.

    Of several answers to one exercise the last counts; a copy of the stub below it is no answer.
    """
    from course_utils.grading import find

    texts = {number: _plain(cell) for number, cell in enumerate(cells) if DECORATED.search(cell)}
    drop: set[int] = set()
    for key in keys:
        mine = [number for number, text in texts.items() if key in DECORATED.findall(text)]
        stubs = {number for number in mine if texts[number] == _plain_stub(find(key))}
        if len(stubs) < len(mine):
            drop |= stubs
    return [cell for number, cell in enumerate(cells) if number not in drop]


@cache
def _plain_stub(found: "Exercise") -> str:
    from course_utils.grading import stub_cell

    return _plain(stub_cell(found.key))


def _plain(cell: str) -> str:
    """A cell without blank lines, and blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in cell.splitlines() if line.strip())


def exercise(key: str) -> "Exercise":
    """The exercise of a key. Raises UnknownKey, and CannotGrade if it needs what is not there: a GPU."""
    from course_utils.grading import find

    found = find(key)
    if need := lacking(found.needs):
        raise CannotGrade(
            f"{key} needs {need.what}: grade on a machine that has one, or leave it out"
        )
    return found


def _uses_ranks(found: "Exercise") -> bool:
    """Does its probe start processes that talk with one another?"""
    return found.probe.on_ranks


def check_versions(job: Job) -> None:
    """Import the modules that a run names. Raises CannotGrade where this worker's versions are
    others than the run's."""
    from .journal import versions

    here = versions()
    wrong = [f"{name} {here.get(name)}, not {v}" for name, v in job.versions if here.get(name) != v]
    if wrong:
        raise CannotGrade(f"this worker has {'; '.join(wrong)}: marks could differ")
    for name in job.modules:
        importlib.import_module(name)


def fingerprint(secret: bytes) -> str:
    """By which a record says of which secret its cases were drawn, and does not tell it."""
    return hashlib.sha256(secret).hexdigest()[:12]
