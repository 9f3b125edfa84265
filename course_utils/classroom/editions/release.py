"""From a plan to an edition that may be handed out: made, put into its form, and proved to work."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from course_utils.classroom.plan import Plan

from .edition import CannotRelease, Edition, make
from .hidden import static_problems
from .running import run_problems

FORMATS = ("plain", "nbgrader", "classroom", "gradescope")


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
    edition = make(plan, root, only_exercises=only_exercises, say=say)
    found = problems(edition, run=run, say=say)
    if found:
        raise CannotRelease(found)
    return edition if form == "plain" else in_form(form, edition)


def in_form(form: str, edition: Edition) -> Edition:
    """The edition with the files that a grading system of this name expects."""
    module = import_module(f"course_utils.classroom.formats.{form}")
    made: Edition = module.made(edition)
    return made


def problems(
    edition: Edition, *, run: bool = True, say: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Why an edition would not work for students, a sentence each; none: it may be handed out.

    run: where reading it finds nothing, also execute its notebooks.
    """
    found = static_problems(edition) if edition.removed else []
    return found if found or not run else run_problems(edition, say)
