"""What an answer in this notebook earns: for notebooks that nbgrader runs.

nbgrader reads marks from the outputs of cells: a number is the points, an error or any text on
stderr is none. So `points` is a number, and what a student's code prints while it is checked goes
nowhere.
"""

import atexit
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from course_utils.classroom.marks import marking
from course_utils.classroom.marks.plan import Item
from course_utils.grading import Exercise, Verdict, find, grade
from course_utils.grading.judging.answer import Here
from course_utils.grading.judging.ladder import Ladder
from course_utils.grading.judging.outcomes import PASSED
from course_utils.grading.notebook.binding import names_bound_to
from course_utils.grading.notebook.panels import ipython
from course_utils.source.stub import is_stub

RUNNING = "NBGRADER_EXECUTION"
"""nbgrader sets this in the kernels that it starts."""


def apart() -> None:
    """While nbgrader runs a notebook, keep its progress in a new folder, not in the instructor's."""
    if os.environ.get(RUNNING):
        folder = tempfile.mkdtemp(prefix="course-home-")
        os.environ["COURSE_HOME"] = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def points(key: str, most: float, seed: int | None = None) -> float:
    """The points that the notebook's answer to `key` earns, at most `most`.

    seed: of random cases that the student has not seen; what is said about them holds no values.
    Not attempted, or the book's version: 0. Writes nothing to stderr. Raises UnknownKey.
    """
    exercise = find(key)
    objects = _answer_of(exercise, _globals_of_notebook())
    if objects is None:
        print(f"{key}: not attempted")
        return 0.0
    with names_bound_to(exercise, objects), _stderr_closed():
        verdict = grade(exercise, *objects, seed=seed or 0, explain=seed is None)
    print(verdict if seed is None else _in_short(verdict))
    sizes = Ladder(exercise, Here(exercise, objects), seed or 0).plan()
    return float(_earned(exercise, verdict, sizes, most))


def _globals_of_notebook() -> dict[str, Any]:
    shell = ipython()
    return shell.user_ns if shell else vars(sys.modules["__main__"])


def _answer_of(exercise: Exercise, space: dict[str, Any]) -> list[Any] | None:
    """The student's objects; None if one is missing, is the book's, or all are stubs."""
    objects = [space.get(name) for name in exercise.names]
    given = (*exercise.parts, *_stand_in(exercise))
    if any(obj is None or any(obj is part for part in given) for obj in objects):
        return None
    return None if all(map(is_stub, objects)) else objects


def _stand_in(exercise: Exercise) -> tuple[Any, ...]:
    """The library's own version, which an edition without answers binds instead of the book's."""
    if not exercise.stand_in:
        return ()
    module, _, name = exercise.stand_in.rpartition(".")
    return (getattr(importlib.import_module(module), name),)


def _in_short(verdict: Verdict) -> str:
    """What a student may know of hidden checks: how many passed, and the rung that failed."""
    rung = f"; failed at: {verdict.failed_rung}" if verdict.failed_rung else ""
    return f"{verdict.key}: {verdict.passed_checks} of {verdict.total} checks passed{rung}"


def _earned(exercise: Exercise, verdict: Verdict, sizes: dict[str, int], most: float) -> float:
    """Points by the rungs of the ladder that were climbed, as `course grade` gives them."""
    passed = {rung.name: rung.passed for rung in verdict.rungs}
    return marking.points(Item(exercise.key, most), sizes, passed, verdict.outcome == PASSED)


@contextmanager
def _stderr_closed() -> Iterator[None]:
    """What is written to the process's own stderr meanwhile goes nowhere: it would cost the marks."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
