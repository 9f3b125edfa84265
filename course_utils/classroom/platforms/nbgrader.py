"""An edition as an nbgrader course: `source/<assignment>/<notebook>.ipynb` and its settings.

The course stays with the instructor: its notebooks hold the solutions, which nbgrader's
``generate_assignment`` takes out. Students get the package, which their notebooks need.
"""

import secrets
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_utils.classroom.marks.plan import Item, Plan
from course_utils.classroom.release.edition import Edition
from course_utils.classroom.release.pack import slug
from course_utils.source.stub import YOUR_TURN

from .package_files import needed_by
from .solution_marks import marked_cell

SCHEMA = 3
COUNTING = "course_utils.classroom.points"
"""What the cells that count import. Notebooks hold this name: it stays."""
CELL_TIMEOUT_S = 300


def made(edition: Edition) -> Edition:
    """The edition with an nbgrader course, for the instructor, that holds its plan as one assignment.

    Hidden checks draw their cases from new random seeds each time.
    """
    plan = edition.plan
    assignment = slug(plan.title)
    config = CONFIG.format(assignment, CELL_TIMEOUT_S, YOUR_TURN)
    course = {"nbgrader_config.py": config, "README.md": _readme(plan, assignment)}
    for path, data in edition.notebooks.items():
        notebook = _with_metadata(nbformat.reads(data.decode(), as_version=4), plan.items)
        place = f"source/{assignment}/{PurePosixPath(path).name}"
        course[place] = nbformat.writes(notebook).rstrip("\n") + "\n"
    return edition.with_files(
        instructor={f"nbgrader/{path}": text.encode() for path, text in course.items()},
        files=needed_by(COUNTING),
    )


def _with_metadata(notebook: NotebookNode, items: Sequence[Item]) -> NotebookNode:
    """A copy with nbgrader's metadata, marked solutions, and cells that count after each of them."""
    worth = {item.key: item.points for item in items}
    made: NotebookNode = nbformat.from_dict(notebook)
    beginning = _code(BEGINNING, _role("begin", locked=True))
    setup = [i for i, cell in enumerate(made.cells) if "setup" in cell.metadata.get("tags", ())]
    made.cells.insert(setup[0] + 1 if setup else 0, beginning)  # once the package can be found
    cells: list[NotebookNode] = []
    for cell in made.cells:
        cells.append(cell)
        key = cell.metadata.get("exercise")
        if key in worth:
            cell.source = marked_cell(key)
            cell.metadata["nbgrader"] = _role(_grade_id(key), solution=True)
            cells += _counting(key, worth[key])
    made.cells = cells
    return made


def _counting(key: str, most: float) -> list[NotebookNode]:
    """The cells that grade an exercise: one that the student sees, one with other random cases."""
    half, seed = most / 2, secrets.randbits(31)
    name = _grade_id(key)
    hidden = _role(f"{name}-hidden-checks", points=half, locked=True)
    return [
        _code(SEEN.format(key, half), _role(f"{name}-checks", points=half, locked=True)),
        _code(HIDDEN.format(key, half, seed), hidden),
    ]


def _grade_id(key: str) -> str:
    return key.replace(".", "-")


def _role(
    name: str, *, solution: bool = False, locked: bool = False, points: float | None = None
) -> dict[str, Any]:
    """nbgrader's metadata of a cell, version 3 of its schema; with points the cell counts."""
    data = {
        "schema_version": SCHEMA,
        "grade_id": name,
        "grade": points is not None,
        "solution": solution,
        "locked": locked,
        "task": False,
    }
    return data if points is None else data | {"points": points}


def _code(source: str, nbgrader: dict[str, Any]) -> NotebookNode:
    return nbformat.from_dict(
        {
            "cell_type": "code",
            "id": f"nbgrader-{nbgrader['grade_id']}"[:64],
            "metadata": {"nbgrader": nbgrader},
            "source": source,
            "execution_count": None,
            "outputs": [],
        }
    )


BEGINNING = f"""\
# Locked: nbgrader counts points with these.
from {COUNTING} import apart, points

apart()"""

SEEN = """\
# Locked. The number below is what your answer earns here.
points("{}", {!r})"""

HIDDEN = """\
# Locked. Counts once you have handed in: the same checks with other random cases.
### BEGIN HIDDEN TESTS
points("{}", {!r}, seed={})
### END HIDDEN TESTS"""

CONFIG = """\
# nbgrader's settings for this course; it reads this file in the folder in which it is started.
c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "{}"
# Seconds for one cell, where nbgrader allows 30: chapters draw, and start ranks.
c.Execute.timeout = {}
# Each marked solution becomes the last line of the student's cell ...
c.ClearSolutions.code_stub = {{"python": {!r}}}
# ... and what a solution needs above its definition leaves nothing behind.
c.ClearHiddenTests.enforce_metadata = False
"""


def _readme(plan: Plan, assignment: str) -> str:
    due = f' --duedate "{plan.due.isoformat(sep=" ")}"' if plan.due else ""
    rows = "\n".join(f"| `{item.key}` | {item.points:g} |" for item in plan.items)
    return README.format(title=plan.title, assignment=assignment, due=due, rows=rows)


README = """\
# {title}: an nbgrader course

Keep this folder to yourself: `source/` holds the solutions. Install nbgrader into the environment
that holds the course (`pip install nbgrader==0.9.6`), then, in this folder:

```sh
nbgrader db assignment add {assignment}{due}
nbgrader generate_assignment {assignment}
nbgrader autograde {assignment}
nbgrader generate_feedback {assignment}
nbgrader export
```

The second makes `release/{assignment}/`: the notebooks to hand out, in place of those in the folder
for students, whose package they need. The third reads `submitted/<student>/{assignment}/`, the last
writes `grades.csv`.

| Exercise | Points |
|---|---|
{rows}

Each exercise has two cells that count, half of its points each: one that students see and run, and
one with other random cases, which `generate_assignment` takes out. Both give partial credit by the ladder of
checks, as `course grade` does; the right shape and dtype alone earn nothing.

What nbgrader does, and this folder cannot change:

- It runs what students wrote in your account, with your files and your network: use a container, or a
  machine that holds nothing else. `course grade` has a sandbox, nbgrader none.
- The checks run in the student's process, so a student who patches them can forge a mark.
- A cell that counts and writes to stderr earns nothing. The cells here write nothing there, whatever
  the student's code prints while it is checked. Warnings in other cells cost nothing.
- Feedback shows the source of hidden cells, their random seeds too. Seeds are new in each release:
  release again for the next term.
- A notebook that lost its cells' metadata, or in which an answer was copied or split, may earn
  nothing. `course grade` reads the same submissions with the `plan.json` beside this folder, and does
  not mind.
"""
