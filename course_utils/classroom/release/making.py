"""From a plan to an edition, and why one would not work for students."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import course_utils
from course_utils.authoring import notebooks as form
from course_utils.classroom.marks.plan import Plan
from course_utils.grading import chapters
from course_utils.settings import settings
from course_utils.update.stamp import stamp

from . import notebooks
from .edition import CannotRelease, Edition
from .package import package_files, requirements
from .run_notebooks import run_problems
from .without_answers import observed, static_problems, without_answers

PLAN = "plan.json"


def make(
    plan: Plan,
    root: Path,
    *,
    only_exercises: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Edition:
    """The edition of a plan, with answers unless the plan hides them.

    say: told what takes time. The rest as for `assemble`.
    """
    edition = assemble(plan, root, only_exercises=only_exercises)
    return observed(edition, say) if plan.hidden else edition


def assemble(plan: Plan, root: Path, *, only_exercises: bool = False) -> Edition:
    """The edition of a plan; where it hides the answers, one that can be read but not run.

    There it lacks what takes time, and what `observed` adds. root: the course's folder, with
    notebooks/ and requirements.txt. only_exercises: problem sets instead of chapters. Raises
    CannotRelease, FileNotFoundError.
    """
    names = [name for name in chapters() if any(key.startswith(f"{name}.") for key in plan.keys)]
    paths = {name: notebooks.chapter_notebook(root, name) for name in names}
    plan = replace(plan, names=tuple(path.name for path in paths.values()))
    files: dict[str, bytes] = {}
    for path in paths.values():
        read = form.read(path)
        made = (
            notebooks.problem_set(read, plan, plan.hidden)
            if only_exercises
            else notebooks.whole(read, plan)
        )
        files[f"notebooks/{path.name}"] = form.text(stamp(made)).encode()
    absent = [
        key for key in plan.keys if not any(f'(\\"{key}\\"'.encode() in f for f in files.values())
    ]
    if absent:
        raise CannotRelease([f"no notebook holds the exercise {key!r}" for key in absent])
    edition = Edition(plan, files, {PLAN: plan.to_json().encode()})
    if plan.hidden:
        return _completed(without_answers(edition), root)
    package = package_files(Path(course_utils.__file__).parent)
    return _completed(edition.with_files(files=package), root)


def _completed(edition: Edition, root: Path) -> Edition:
    """The edition with what goes beside notebooks and package: requirements, licence, README."""
    return edition.with_files(
        files={
            "LICENSE": (root / "LICENSE").read_bytes(),
            "README.md": _readme(edition).encode(),
            "requirements.txt": requirements(root, _sources(edition)).encode(),
        }
    )


def _sources(edition: Edition) -> list[str]:
    """Every Python text of an edition: its modules, and its notebooks' code cells without magics."""
    from course_utils.source.cells import MAGIC

    found = [data.decode() for path, data in edition.files.items() if path.endswith(".py")]
    for data in edition.notebooks.values():
        cells = form.nbformat.reads(data.decode(), as_version=4).cells
        found += [MAGIC.sub(r"\1pass", c.source) for c in cells if c.cell_type == "code"]
    return found


def _readme(edition: Edition) -> str:
    """The first thing that a student reads: two commands, where to answer, what to hand in."""
    plan = edition.plan
    first = plan.names[0]
    due = f" Due: {notebooks.said(plan)}." if plan.due else ""
    hand_in = ", ".join(f"`notebooks/{name}`" for name in plan.names)
    return f"""# {plan.title}

From *{settings.title}*, edition {settings.edition}.{due}

In this folder, with Python 3.11 or newer, on Linux or macOS:

```sh
python3 -m venv .venv && .venv/bin/pip install -r requirements.txt
.venv/bin/python -m course_utils.cli lab notebooks/{first}
```

On Windows, in PowerShell, `py -m venv .venv`, `.venv\\Scripts\\pip install -r requirements.txt`, `.venv\\Scripts\\python -m course_utils.cli lab notebooks\\{first}`.

Write your answers into the exercises' cells; running a cell checks it. `.venv/bin/python -m course_utils.cli check` gives the same verdicts in a terminal. Keep `course_utils` where it is: the notebooks need it.

Hand in: {hand_in}.
"""


def problems(
    edition: Edition, *, run: bool = True, say: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Why an edition would not work for students, a sentence each; none: it may be handed out.

    run: where reading it finds nothing, also execute its notebooks.
    """
    found = static_problems(edition) if edition.removed else []
    return found if found or not run else run_problems(edition, say)
