"""The nbgrader course that `course release` writes, put through nbgrader's own three commands."""

import ast
import csv
import inspect
import json
from pathlib import Path

import nbformat
import pytest

from course_utils.authoring import notebooks as form
from course_utils.authoring.counts import count
from course_utils.classroom import release
from course_utils.classroom.marks.plan import plan_of
from course_utils.classroom.platforms import nbgrader
from course_utils.classroom.platforms.solution_marks import marked_cell
from course_utils.grading import every, solution_cell, stub_cell
from course_utils.source.stub import COSTS
from tests.peers import peers  # noqa: F401 (a fixture)
from tests.support.peers import nbgrader_scores

ROOT = Path(__file__).parents[2]
KEYS = ("strides.flat_index", "strides.transpose_view")
NAME = "02_strides.ipynb"

NO_OFFSET = """\
@exercise("strides.flat_index")
def flat_index(index: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> int:
    return sum(i * s for i, s in zip(index, stride))
"""
ALLOCATES = """\
@exercise("strides.transpose_view")
def transpose_view(x, dim0, dim1):
    shape, stride = torch.empty(x.shape).transpose(dim0, dim1).shape, list(x.stride())
    stride[dim0], stride[dim1] = stride[dim1], stride[dim0]
    return x.as_strided(shape, stride, x.storage_offset())
"""
WARNS = """\
import os, sys, warnings
@exercise("strides.flat_index")
def flat_index(index, stride, offset=0):
    warnings.warn("an old habit")
    print("seen by nobody", file=sys.stderr)
    os.write(2, b"nor this")
    return offset + sum(i * s for i, s in zip(index, stride))
print("beside the checks", file=sys.stderr)
"""
STUDENTS = {
    "ada": {key: solution_cell(key) for key in KEYS},
    "bob": {},
    "cleo": {KEYS[0]: NO_OFFSET, KEYS[1]: ALLOCATES},
    "dan": {KEYS[0]: WARNS},
}
FULL = {"strides-flat_index": 4.0, "strides-transpose_view": 3.0}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The instructor's folder of an edition of two exercises."""
    plan = plan_of([f"{KEYS[0]}=4", f"{KEYS[1]}=3"], "Problem set 1")
    edition = nbgrader.made(release.make(plan, ROOT, only_exercises=True))
    folder = tmp_path_factory.mktemp("hand out")
    release.write(edition, folder)
    return folder / "nbgrader"


@pytest.fixture(scope="module")
def released(course, peers):  # noqa: F811
    peers.run("nbgrader", "generate_assignment", "problem-set-1", cwd=course)
    return form.read(course / "release/problem-set-1" / NAME)


@pytest.fixture(scope="module")
def graded(course, released, peers):  # noqa: F811
    """The course after `autograde` and `generate_feedback` of four students."""
    for student, answers in STUDENTS.items():
        notebook = nbformat.from_dict(released)
        for cell in notebook.cells:
            cell.source = answers.get(cell.metadata.get("exercise"), cell.source)
        place = course / "submitted" / student / "problem-set-1" / NAME
        place.parent.mkdir(parents=True)
        place.write_text(form.text(notebook), encoding="utf-8")
    home = str(course / "home of the instructor")
    peers.run("nbgrader", "autograde", "problem-set-1", cwd=course, COURSE_HOME=home)
    peers.run("nbgrader", "generate_feedback", "problem-set-1", cwd=course)
    peers.run("nbgrader", "export", cwd=course)
    return course


def marks(course: Path, student: str) -> dict[str, float]:
    return nbgrader_scores(course / "gradebook.db", student)


def of_exercise(found: dict[str, float], name: str) -> float:
    return found[f"{name}-checks"] + found[f"{name}-hidden-checks"]


# ------------------------------------------------------------------------------ marked solutions


def without_order(source: str) -> str:
    """A module's syntax tree in which neither the order of a class's methods is seen nor what a stub's
    docstring says of costs."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                node.value.value = inspect.cleandoc(text).partition(COSTS)[0].rstrip()
        if isinstance(node, ast.ClassDef):
            fields = [n for n in node.body if not isinstance(n, ast.FunctionDef)]
            methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            node.body = [*fields, *sorted(methods, key=lambda method: method.name)]
    return ast.dump(tree)


def test_a_marked_solution_is_the_books():
    for key in every():
        assert without_order(marked_cell(key)) == without_order(solution_cell(key)), key


CLEARED = """
import json, sys, nbformat
from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions
from traitlets.config.loader import PyFileConfigLoader
config = PyFileConfigLoader(sys.argv[1]).load_config()
cells = []
for source in json.load(open(sys.argv[2])):
    role = dict(schema_version=3, grade=False, solution=True, locked=False, grade_id="a")
    cell = nbformat.v4.new_code_cell(source)
    cell.metadata["nbgrader"] = nbformat.from_dict(role)
    cells.append(cell)
notebook = nbformat.v4.new_notebook(cells=cells)
for preprocessor in ClearSolutions, ClearHiddenTests:
    notebook, _ = preprocessor(config=config).preprocess(notebook, {})
print(json.dumps([cell.source for cell in notebook.cells]))
"""


def test_nbgrader_makes_every_stub_out_of_its_marked_solution(course, tmp_path, peers):  # noqa: F811
    """With its own two preprocessors, for every exercise of the book."""
    marked = tmp_path / "marked.json"
    marked.write_text(json.dumps([marked_cell(key) for key in every()]))
    out = peers.run("python", "-c", CLEARED, "nbgrader_config.py", str(marked), cwd=course)
    cleared = json.loads(out.splitlines()[-1])
    assert dict(zip(every(), cleared, strict=True)) == {key: stub_cell(key) for key in every()}
    count("stubs that nbgrader makes", len(cleared))


# ------------------------------------------------------------------------------ its commands


def test_the_assignment_that_nbgrader_generates_holds_our_stubs_and_no_hidden_check(released):
    cells = {c.metadata["exercise"]: c.source for c in released.cells if "exercise" in c.metadata}
    assert cells == {key: stub_cell(key) for key in KEYS}
    whole = "\n".join(cell.source for cell in released.cells)
    assert "seed=" not in whole
    assert "SOLUTION" not in whole
    assert "HIDDEN" not in whole


def test_cells_have_readable_names_and_exact_metadata(course):
    source = form.read(course / "source/problem-set-1" / NAME)
    roles = [c.metadata["nbgrader"] for c in source.cells if "nbgrader" in c.metadata]
    assert [role["grade_id"] for role in roles] == [
        "begin",
        "strides-flat_index",
        "strides-flat_index-checks",
        "strides-flat_index-hidden-checks",
        "strides-transpose_view",
        "strides-transpose_view-checks",
        "strides-transpose_view-hidden-checks",
    ]
    points = {name: role.get("points") for role in roles if (name := role["grade_id"])}
    for role in roles:
        name = role["grade_id"]
        graded, answer = name.endswith("checks"), name in FULL
        kinds = {"grade": graded, "solution": answer, "locked": not answer, "task": False}
        worth = {"points": points[name]} if graded else {}
        assert role == {"schema_version": 3, "grade_id": name, **kinds, **worth}
    counted = {name: worth for name, worth in points.items() if worth}
    assert {name: of_exercise(counted, name) for name in FULL} == FULL


def test_the_books_answers_earn_everything(graded):
    found = marks(graded, "ada")
    assert {name: of_exercise(found, name) for name in FULL} == FULL


def test_stubs_earn_nothing(graded):
    assert set(marks(graded, "bob").values()) == {0.0}


def test_known_mistakes_earn_a_part(graded):
    found = marks(graded, "cleo")
    for name, most in FULL.items():
        assert 0 <= of_exercise(found, name) < most
    assert of_exercise(found, "strides-transpose_view") > 0, "only a contract is broken"


def test_a_right_answer_that_writes_to_stderr_keeps_its_mark(graded):
    found = marks(graded, "dan")
    assert of_exercise(found, "strides-flat_index") == FULL["strides-flat_index"]
    assert of_exercise(found, "strides-transpose_view") == 0


def test_the_export_adds_up(graded):
    with (graded / "grades.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert rows.keys() == STUDENTS.keys()
    assert float(rows["ada"]["score"]) == float(rows["ada"]["max_score"]) == sum(FULL.values())
    for student, row in rows.items():
        assert float(row["score"]) == pytest.approx(sum(marks(graded, student).values()))
        count("marks by nbgrader")


def test_feedback_says_what_failed(graded):
    page = (graded / "feedback/cleo/problem-set-1" / NAME).with_suffix(".html").read_text("utf-8")
    assert "You left the offset out" in page


def test_students_progress_does_not_mix_with_the_instructors(graded):
    assert not (graded / "home of the instructor").exists()
    autograded = form.read(graded / "autograded/ada/problem-set-1" / NAME)
    errors = [o for c in autograded.cells for o in c.get("outputs", ()) if o.output_type == "error"]
    assert errors == []
