"""Plain editions: what is in them, that their bytes can be made again, and that they work alone."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from course_utils.authoring import notebooks as form
from course_utils.authoring.problems import problems
from course_utils.classroom import release
from course_utils.classroom.marks.plan import Late, Plan, plan_of
from course_utils.classroom.release import notebooks, package, run_notebooks, without_answers
from course_utils.cli import app
from course_utils.grading import exercises_of, stub_cell
from course_utils.update.stamp import stamp

ROOT = Path(__file__).parents[2]
DUE = datetime.fromisoformat("2026-12-01T18:00+01:00")


def plan(*names, **settings):
    return plan_of(names, "Week 2: Strides & views", **settings)


def cells(edition, kind=None):
    (data,) = edition.notebooks.values()
    found = nbformat.reads(data.decode(), as_version=4).cells
    return [cell for cell in found if kind in (None, cell.cell_type)]


@pytest.fixture(scope="module")
def chapter():
    late = Late(per_day=0.1, most=0.5, grace_minutes=15, closes_after_days=7)
    return release.make(
        plan("strides.flat_index=5", "strides.transpose_view", due=DUE, late=late), ROOT
    )


@pytest.fixture(scope="module")
def problem_set():
    return release.make(
        plan("strides.flat_index=5", "strides.transpose_view"), ROOT, only_exercises=True
    )


@pytest.fixture(scope="module")
def written(problem_set, tmp_path_factory):
    return release.write(problem_set, tmp_path_factory.mktemp("hand out"))


# ------------------------------------------------------------------------------ whole chapters


def test_a_chapter_is_whole_and_says_what_counts(chapter):
    shipped = form.read(ROOT / "notebooks/02_strides.ipynb").cells
    ours = cells(chapter)
    assert [c.source for c in ours[:1] + ours[2:]] == [c.source for c in shipped]
    said = ours[1].source
    assert "| Address of an element (`flat_index`) | 5 |" in said
    assert "due 1 December 2026, 18:00 (UTC+01:00)" in said
    assert "loses 10% of its points for each day begun, 50% at most" in said
    assert "the first 15 minutes are not late; after 7 days it earns nothing" in said
    assert "not in this list" in said, (
        "the chapter's other exercises earn nothing, and nobody says so"
    )


def test_a_chapter_that_counts_whole_speaks_of_no_other_exercise():
    said = notebooks.opening(plan("strides"), list(exercises_of("strides")))
    assert "not in this list" not in said
    assert said.count("\n| ") - 1 == len(exercises_of("strides"))


def test_stubs_are_as_in_the_book_and_the_form_is_the_normal_one(chapter):
    stubs = {c.metadata["exercise"]: c.source for c in cells(chapter) if "exercise" in c.metadata}
    assert stubs == {key: stub_cell(key).rstrip("\n") for key in exercises_of("strides")}
    (data,) = chapter.notebooks.values()
    read = nbformat.reads(data.decode(), as_version=4)
    assert form.text(stamp(form.normalise(read))).encode() == data
    assert problems(read) == []


def test_students_get_the_package_without_the_tools_and_the_plan(chapter):
    assert "course_utils/grading/notebook/checking.py" in chapter.files
    assert "course_utils/figures/js/base.js" in chapter.files
    assert not [path for path in chapter.files if path.endswith(".pyc")]
    tools = tuple(f"course_utils/{room}/" for room in package.LEFT_OUT)
    assert not [path for path in chapter.files if path.startswith(tools)]
    assert "course_utils/update/__init__.py" in chapter.files
    assert "plan.json" not in chapter.files
    assert Plan.from_json(chapter.instructor["plan.json"].decode()) == chapter.plan
    assert chapter.plan.names == ("02_strides.ipynb",)


def test_requirements_are_pinned_and_only_what_students_need(chapter):
    lines = chapter.files["requirements.txt"].decode().splitlines()
    names = {package.normal(package.name_in(x)) for x in lines if x[0] not in "#-"}
    assert {"torch", "sympy", "jupyterlab", "ipykernel", "hypothesis", "safetensors"} <= names
    assert not names & {"jupyter-book", "sphinx", "pytest", "mypy", "distributed", "transformers"}
    locked = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert {line for line in lines if line[0] not in "#-"} <= set(locked)
    numpy = [line for line in locked if line.startswith("numpy==")]
    assert [line for line in lines if line.startswith("numpy==")] == numpy


def test_what_a_chapter_imports_is_required_too():
    text = package.requirements(ROOT, ["from peft import LoraConfig"])
    assert "\npeft==" in text
    assert "\ntransformers==" in text, "peft needs it"


# ------------------------------------------------------------------------------ problem sets


def test_a_problem_set_holds_statements_and_stubs_alone(problem_set):
    code = cells(problem_set, "code")
    assert [c.metadata.get("exercise") for c in code] == [
        None,  # the set-up
        None,  # the imports
        "strides.flat_index",
        "strides.transpose_view",
    ]
    prose = cells(problem_set, "markdown")
    assert prose[0].source.startswith("# 2 · Strides: exercises\n")
    assert [c.source.startswith("> **Exercise 2.") for c in prose] == [False, True, True]


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_the_stubs_of_a_problem_set_find_their_names(path):
    """Every name that a chapter's stubs look up is bound by the cells before it."""
    name = path.stem.partition("_")[2]
    made = notebooks.problem_set(form.read(path), plan_of([name]), hidden=True)
    space: dict = {"__name__": "__main__"}
    for cell in made.cells:
        if cell.cell_type == "code" and "setup" not in form.tags(cell):
            source = cell.source
            for key in exercises_of(name):
                source = source.replace(f'@exercise("{key}")\n', "")
            exec(source, space)
    assert "solution" not in space
    for key, exercise in exercises_of(name).items():
        assert set(exercise.names) <= space.keys(), key


# ------------------------------------------------------------------------------ as files


def test_the_same_edition_gives_the_same_bytes(problem_set, written, tmp_path):
    again = release.make(problem_set.plan, ROOT, only_exercises=True)
    other = release.write(again, tmp_path)
    assert other.zip.read_bytes() == written.zip.read_bytes()
    assert other.zip.name == "week-2-strides-views.zip"


def test_folder_and_zip_hold_the_same(written):
    with zipfile.ZipFile(written.zip) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
        assert {entry.date_time[:1] for entry in archive.infolist()} == {(1980,)}
    files = {
        f"{written.folder.name}/{p.relative_to(written.folder).as_posix()}": p.read_bytes()
        for p in written.folder.rglob("*")
        if p.is_file()
    }
    assert inside == files
    assert [path.name for path in written.instructor] == ["plan.json"]
    assert written.instructor[0].parent == written.folder.parent


def test_only_an_edition_is_written_over(problem_set, written, tmp_path):
    assert release.write(problem_set, written.folder.parent) == written
    (tmp_path / "week-2-strides-views").mkdir()
    with pytest.raises(release.CannotRelease, match="is no edition"):
        release.write(problem_set, tmp_path)


def read_only(command, folder):
    """The command in a file system in which the folder cannot be written, whoever runs it."""
    assert shutil.which("bwrap"), "bubblewrap is needed to see that an edition may be read-only"
    bound = ["--dev-bind", "/", "/", "--ro-bind", str(folder), str(folder)]
    return ["bwrap", *bound, *command]


def test_a_terminal_in_the_folder_checks_answers_without_the_course(written, tmp_path):
    """In a path with spaces, read-only, without this machine's own copy of the course."""
    folder = tmp_path / "my own" / "edition one"
    shutil.copytree(written.folder, folder)
    path = folder / "notebooks/02_strides.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["metadata"].get("exercise") == "strides.flat_index":
            body = "    return offset + sum(i * s for i, s in zip(index, stride, strict=True))\n"
            cell["source"] = "".join(cell["source"]).replace(
                '    raise NotImplementedError("your turn")', body
            )
    path.write_text(json.dumps(notebook), encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(run_notebooks.ITS_OWN_PACKAGE, encoding="utf-8")
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(tmp_path),
        "COURSE_HOME": str(tmp_path / "home"),
    }
    command = [sys.executable, "-m", "course_utils.cli", "check"]
    ran = subprocess.run(
        read_only(command, folder), cwd=folder, env=environment, capture_output=True, text=True
    )
    assert "1 passed, 1 not attempted" in ran.stdout, ran.stderr
    assert ran.returncode == 0
    assert not list(folder.rglob("__pycache__"))
    helped = subprocess.run(
        [sys.executable, "-m", "course_utils.cli", "--help"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "check" in helped.stdout
    assert "release" not in helped.stdout, "a verb that needs what students do not get"


def test_an_edition_that_raises_says_where(problem_set):
    path, data = next(iter(problem_set.notebooks.items()))
    notebook = nbformat.reads(data.decode(), as_version=4)
    for source in ("1 / 0", "print(not_there)"):
        notebook.cells.append(nbformat.v4.new_code_cell(source))
    broken = problem_set.with_files(files={path: form.text(notebook).encode()})
    assert release.problems(problem_set) == []
    assert release.problems(broken) == [
        "02_strides.ipynb, cell 8 ('1 / 0') raises ZeroDivisionError: division by zero",
        "02_strides.ipynb, cell 9 ('print(not_there)') raises NameError: name 'not_there' is not "
        "defined",
    ]


# ------------------------------------------------------------------------------ the command


def course_release(*arguments):
    return CliRunner().invoke(app, ["release", *map(str, arguments)])


def test_the_command_writes_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    made = course_release(
        *("strides.flat_index=4", "--only-exercises", "--no-run", "-o", tmp_path, "--title", "One"),
        *("--due", "2026-12-01T18:00+01:00", "--late-per-day", 10, "--late-most", 50),
        *("--grace", 15, "--late-closes", 7),
    )
    assert made.exit_code == 0, made.output
    assert str(tmp_path / "one.zip") in made.output
    plan = Plan.read(tmp_path / "plan.json")
    assert plan.items[0].points == 4
    assert plan.due == DUE
    assert plan.late == Late(0.1, 0.5, 15, 7)


def test_a_chapter_may_be_given_by_its_number():
    assert plan_of(["02"]) == plan_of(["2"]) == plan_of(["strides"])
    assert plan_of(["26", "2.flat_index=5"]) == plan_of(["lora", "strides.flat_index=5"])


NOTHING_LOADED = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name == "torch": raise ImportError("not yet")
sys.meta_path.insert(0, Refused())
from course_utils.cli import app
app(sys.argv[1:])
"""


@pytest.mark.parametrize("command", ["release strides -o x", "check", "solve -o x", "normalise"])
def test_outside_of_the_courses_folder_nothing_is_waited_for(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_LOADED, *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "run this in the course's folder" in done.stderr
    assert "not yet" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_chapters_that_need_their_answers_are_refused_with_advice(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    observed = []
    monkeypatch.setattr(without_answers, "stored_files", lambda *_: observed.append(1))
    made = course_release("01", "02", "--without-answers", "--no-run", "-o", tmp_path)
    assert made.exit_code == 1
    first, *reasons, more, advice = made.output.splitlines()[1:]
    assert first == "no edition was made:"
    assert len(reasons) == 3 and more.startswith("and ")
    assert advice.startswith("--only-exercises hands out the problems without the chapters")
    assert observed == [], "it is said before anything takes its time"


def test_another_assignments_plan_is_not_replaced(problem_set, tmp_path):
    release.write(problem_set, tmp_path)
    before = (tmp_path / "plan.json").read_bytes()
    other = replace(problem_set, plan=replace(problem_set.plan, title="Week 3"))
    with pytest.raises(release.CannotRelease, match="holds the plan of 'Week 2: Strides & views'"):
        release.write(other, tmp_path)
    assert (tmp_path / "plan.json").read_bytes() == before
    assert not (tmp_path / "week-3").exists()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["stride"], "no chapter 'stride'"),
        (["strides.flat_indices"], "did you mean 'strides.flat_index'"),
        (["strides", "--due", "2026-12-01"], "needs its time zone"),
        (["strides", "--due", "tomorrow"], "tomorrow"),
        (["strides", "--format", "paper"], "no format 'paper'"),
        (["strides.flat_index=0"], "a number of points above 0; came 0.0"),
        (["strides.flat_index=inf"], "a number of points above 0; came inf"),
        (["strides.flat_index=nan"], "a number of points above 0; came nan"),
        (["77"], "no chapter '77'; there are: 01 tensors, 02 strides"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_command_says_what_is_wrong(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    made = course_release(*arguments, "--no-run", "-o", tmp_path)
    assert made.exit_code == 1
    assert said in made.output
    assert not list(tmp_path.iterdir())
