"""The verdicts on a notebook's answers, without running the notebook."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_utils.grading.declaring.registry import find
from course_utils.grading.judging.outcomes import FAILED
from course_utils.grading.judging.verdict import Failure, Verdict
from course_utils.grading.observing.errors import raised_by
from course_utils.grading.observing.global_state import quiet
from course_utils.processes.time_limit import time_limit
from course_utils.source.answers import answers, build
from course_utils.source.cells import read_cells

from .binding import instead_of
from .checking import judge

_TO_DEFINE_S = 60.0  # for the definitions and imports of an answer; torch alone may take ten


def check_notebook(path: str | Path, keys: Sequence[str] = ()) -> list[Verdict]:
    """The verdicts on a notebook's answers, without running the notebook.

    keys: only these exercises. Raises ValueError if the file is no notebook.
    """
    found = answers(read_cells(path))
    verdicts = []
    for key, answer in found.items():
        if keys and key not in keys:
            continue
        declared = find(key)
        if answer.problem:
            failure = Failure("", f"syntax error in {answer.problem}")
            verdicts.append(Verdict(key, declared.title, FAILED, failure=failure))
            continue
        try:
            with quiet(), time_limit(_TO_DEFINE_S):
                objects = list(build(answer, Path(path).name, declared.names, _meanwhile))
        except BaseException as error:  # anything a student's cell may do
            if isinstance(error, KeyboardInterrupt):
                raise
            raised = raised_by(error)
            line = f" (line {raised.lines[-1][1]})" if raised.lines else ""
            sentence = f"your code raised {raised.kind} as it was defined: {raised.message}{line}"
            verdicts.append(Verdict(key, declared.title, FAILED, failure=Failure("", sentence)))
            continue
        verdicts.append(judge(declared, objects)[0])
    return verdicts


def _meanwhile(key: str) -> dict[str, Any]:
    """What the names of an unwritten exercise stand for, as in the notebook; nothing if nobody has an answer."""
    try:
        declared = find(key)
    except LookupError:
        return {}
    objects, _, _ = instead_of(declared, [])
    return dict(zip(declared.names, objects, strict=False))
