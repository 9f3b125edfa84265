"""A worker's own grader and sandbox: made once for a run, and made again if the sandbox breaks."""

import threading

from . import sandboxes
from .grader import Grader
from .sandboxes import CannotGrade, sandbox_of
from .tasks import Graded, Job, Task

_lock = threading.Lock()  # a Dask worker may have several threads; a grader is for one

_graders: dict[Job, Grader] = {}


def _grader_of(job: Job) -> Grader:
    """This process's grader for a run, with this process's sandbox; both are made once.

    Raises CannotGrade if the sandbox does not start.
    """
    from course_utils.sandbox import Broken

    sandbox = sandbox_of(job.isolation, job.require_sandbox, job.as_root)
    if job not in _graders:
        _graders.clear()  # of an earlier run
        new = Grader(job, sandbox)  # loads torch while the sandbox loads its own
        try:
            sandbox.start()
        except Broken as error:
            raise CannotGrade(f"no sandbox: {error}") from error
        _graders[job] = new
    return _graders[job]


def close() -> None:
    """End this process's sandboxes."""
    _graders.clear()
    sandboxes.close()


def ready(job: Job) -> str:
    """Start this worker's grader; the level of its isolation."""
    with _lock:
        return _grader_of(job).sandbox.level


def grade_one(job: Job, task: Task) -> Graded:
    """One submission graded. A sandbox that breaks is started again, once."""
    from course_utils.sandbox import Broken

    with _lock:
        try:
            return _grader_of(job).grade(task)
        except Broken:
            close()
            return _grader_of(job).grade(task)
