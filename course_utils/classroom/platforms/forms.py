"""From a plan to an edition that may be handed out: made, put into its form, and proved to work."""

from collections.abc import Callable
from pathlib import Path

from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.text import few
from course_utils.classroom.release.edition import CannotRelease, Edition
from course_utils.classroom.release.making import assemble, problems
from course_utils.classroom.release.without_answers import observed, static_problems

from . import github_classroom, gradescope, nbgrader

_FORMS = {
    "nbgrader": nbgrader.made,
    "classroom": github_classroom.made,
    "gradescope": gradescope.made,
}
FORMATS = ("plain", *_FORMS)
SHOWN = 3


def released(
    plan: Plan,
    root: Path,
    *,
    only_exercises: bool = False,
    form: str = "plain",
    run: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Edition:
    """The edition of a plan in one of FORMATS, checked.

    root: the course's folder. run: execute the notebooks without an answer in them; an edition in
    which a cell raises is not made. say: told what is being done.
    Raises CannotRelease, with the reasons.
    """
    if form not in FORMATS:
        raise CannotRelease([f"no format {form!r}; there are: {', '.join(FORMATS)}"])
    edition = assemble(plan, root, only_exercises=only_exercises)
    if plan.hidden:
        if not only_exercises:
            _check_chapters_without_answers(edition)
        edition = observed(edition, say)
    found = problems(edition, run=run, say=say)
    if found:
        raise CannotRelease(found)
    return _FORMS[form](edition) if form in _FORMS else edition


def _check_chapters_without_answers(edition: Edition) -> None:
    """Raises CannotRelease, with the advice, where a chapter itself needs what would be left out.

    It is found by reading, before anything takes its time.
    """
    found = static_problems(edition)
    if found:
        advice = (
            "--only-exercises hands out the problems without the chapters, and needs none of these; or "
            "leave out the exercises that are named"
        )
        raise CannotRelease([*few(found, SHOWN), advice])
