"""The `course` command: doctor, check, progress, provenance."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_utils import doctor
from course_utils.authoring import browser
from course_utils.cli import app

ROOT = Path(__file__).parents[2]


def course(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_help_waits_for_nothing_and_names_every_verb() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "course_utils.cli", "--help"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    for verb in ("lab", "doctor", "progress", "check", "normalise", "percent", "solve", "record"):
        assert f"\n  {verb} " in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in loaded
    slow = {"torch", "numpy", "matplotlib", "nbformat", "jupytext", "hypothesis", "IPython"}
    assert not slow & loaded, "help must not wait for these"


def test_doctor_names_everything_and_passes_here() -> None:
    result = course("doctor")
    assert result.exit_code == 0, result.output
    for name in (
        *("Python", "torch", "device", "gloo", "JupyterLab", "Chromium", "bubblewrap", "memory"),
        "course",
    ):
        assert any(line[2:].startswith(name) for line in result.output.splitlines()), name


def test_doctor_fails_with_advice_where_something_needed_is_missing(monkeypatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", absent)
    result = course("doctor")
    assert result.exit_code == 1
    assert "✗ torch      not installed\n" in result.output
    assert "run `make lab`" in result.output
    assert "– JupyterLab" in result.output
    assert f"1 of {len(doctor.CHECKS)} must be put right first" in result.output


def test_doctor_says_what_grading_lacks(monkeypatch) -> None:
    monkeypatch.setattr("course_utils.sandbox.bubblewrap.program", lambda: None)
    result = course("doctor")
    assert result.exit_code == 0
    assert "– bubblewrap bwrap is not installed: apt-get install bubblewrap" in result.output
    assert "→ only `course grade` needs it, on Linux" in result.output


def test_doctor_can_do_without_a_browser(monkeypatch) -> None:
    monkeypatch.setattr(browser, "find", lambda: None)
    result = course("doctor")
    assert result.exit_code == 0
    assert "– Chromium" in result.output
    assert "apt-get install chromium" in result.output


def test_doctor_says_when_memory_is_short(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "ENOUGH_MEMORY", 2**80)
    assert doctor.memory().mark == doctor.ABSENT


def test_a_check_that_breaks_is_a_finding(monkeypatch) -> None:
    def broken() -> doctor.Finding:
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "CHECKS", (broken,))
    (finding,) = doctor.examine()
    assert finding.mark == doctor.BAD
    assert "no such thing" in finding.found


def test_a_browser_can_be_named(monkeypatch) -> None:
    monkeypatch.setenv("CHROMIUM", sys.executable)
    assert browser.find() == sys.executable
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    assert browser.find() is None


# course check, on answers that a student may have written

SETUP = "import torch\nfrom course_utils import exercise\n"
WRONG = '@exercise("strides.flat_index")\ndef flat_index(index, stride, offset=0):\n    return 0\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    (tmp_path / "notebooks").mkdir()
    return tmp_path


def write(folder: Path, *sources: str) -> Path:
    cells = [
        {"cell_type": "code", "metadata": {}, "source": source, "outputs": []} for source in sources
    ]
    path = folder / "notebooks" / "02_strides.ipynb"
    path.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    return path


@pytest.mark.parametrize("what", [(), ("notebooks/02_strides.ipynb",), ("strides.flat_index",)])
def test_check_judges_a_wrong_answer(folder: Path, what: tuple[str, ...]) -> None:
    write(folder, SETUP, WRONG)
    result = course("check", *what)
    assert result.exit_code == 1
    assert "flat_index" in result.stdout
    assert result.stdout.rstrip().endswith("1 failed")


def test_check_of_nothing_is_an_error(folder: Path) -> None:
    write(folder, SETUP)
    result = course("check")
    assert result.exit_code == 1
    assert "no exercise was checked" in result.stderr


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("strides.flat_indx", "strides.flat_index"),
        ("notebooks/07_absent.ipynb", "no such file"),
    ],
)
def test_check_says_what_it_does_not_know(folder: Path, what: str, says: str) -> None:
    write(folder, SETUP, WRONG)
    result = course("check", what)
    assert result.exit_code == 1
    assert says in result.stderr


def test_check_outside_of_the_course_says_where_to_go(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = course("check")
    assert result.exit_code == 1
    assert "run this in the course's folder" in result.stderr


def test_a_file_that_is_no_notebook_is_said_to_be_none(folder: Path) -> None:
    path = folder / "notebooks" / "02_strides.ipynb"
    path.write_text("not json")
    result = course("check", path)
    assert result.exit_code == 1
    assert "not a readable notebook" in result.stderr


def test_progress_shows_the_chapters(folder: Path) -> None:
    result = course("progress")
    assert result.exit_code == 0, result.output
    assert "strides" in result.output.lower()


# course provenance

PASSED = "def flat_index(index, stride, offset=0):\n    return 0\n"
TAKES = 'from course_utils import mine\nflat = mine("strides.flat_index")'


def later(folder: Path, *sources: str, number: str = "09_data") -> None:
    """A later chapter, whose notebook has these cells."""
    write(folder, *sources).rename(folder / "notebooks" / f"{number}.ipynb")


def passed(folder: Path, *answer: str, missing: tuple[str, ...] = ()) -> None:
    """Keep an answer as a verdict would."""
    entry = {"passed_at": "2026-11-01T12:00:00", "answer": answer, "missing": missing}
    (folder / "home").mkdir()
    kept = {"version": 1, "exercises": {"strides.flat_index": entry}}
    (folder / "home" / "progress.json").write_text(json.dumps(kept))


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has taken is forgotten before and after."""
    stands_for: dict[str, str] = {}
    monkeypatch.setattr("course_utils.grading.notebook.binding.stands_for", stands_for)
    monkeypatch.setattr("course_utils.grading.notebook.verbs.stands_for", stands_for)
    monkeypatch.setattr("course_utils.grading.notebook.answers._mine", {})


@pytest.mark.parametrize(
    ("answer", "missing", "says"),
    [
        (PASSED, (), "strides.flat_index  yours  in chapters 9, 11\n1 yours\n"),
        ("", (), "strides.flat_index  the book's  in chapters 9, 11\n1 the book's\n"),
        (PASSED, ("helper",), "needs `helper`, which could not be kept with it."),
        ("import no_such_module\n" + PASSED, (), "cannot be run here (ModuleNotFoundError: "),
    ],
)
def test_provenance_says_whose_answer_later_chapters_take(
    folder: Path, forgotten: None, answer: str, missing: tuple[str, ...], says: str
) -> None:
    later(folder, TAKES)
    later(folder, TAKES, number="11_schedules_and_stability")
    write(folder, TAKES)  # its own chapter's notebook takes it, too
    passed(folder, answer, missing=missing)
    result = course("provenance")
    assert result.exit_code == 0, result.output
    assert says in result.stdout
    assert "strides.flat_index  " in result.stdout


def test_provenance_in_an_edition_without_answers(folder: Path, forgotten: None, monkeypatch):
    from course_utils.grading import find

    monkeypatch.setattr(type(find("strides.flat_index")), "has_answer", False)
    later(folder, TAKES)
    result = course("provenance")
    assert result.exit_code == 0, result.output
    assert "nobody's: this edition holds no answer" in result.stdout


def test_provenance_where_nothing_is_taken_or_nothing_is_there(folder: Path) -> None:
    assert course("provenance").exit_code == 1
    write(folder, TAKES)
    assert "no chapter here takes an answer" in course("provenance").stdout
    later(folder, "not json")
    later(folder, 'mine("strides.flat_indx")')
    result = course("provenance")
    assert (result.exit_code, "did you mean" in result.stderr) == (1, True)
    (folder / "notebooks" / "09_data.ipynb").write_text("not json")
    assert "not a readable notebook" in course("provenance").stderr


def test_provenance_of_the_book_is_what_its_notebooks_take() -> None:
    from course_utils import carried

    found = carried.taken(sorted((ROOT / "notebooks").glob("*.ipynb")))
    assert {11, 23} <= set(found["optimizers.AdamW"])
    assert 23 in found["attention.apply_rope"]
    for key, numbers in found.items():
        assert all((ROOT / "notebooks").glob(f"{n:02}_*.ipynb") for n in numbers), key


def test_check_takes_a_chapter_by_name_and_by_number(capsys, monkeypatch, tmp_path):
    from course_utils import cli

    monkeypatch.chdir(ROOT)
    assert [p.name for p in cli.notebooks_of("lora")] == ["26_lora.ipynb"]
    assert cli.notebooks_of("26") == cli.notebooks_of("lora")
    assert [p.name for p in cli.notebooks_of("2")] == ["02_strides.ipynb"]
    assert cli.notebooks_of("strides.flat_index") == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("lorax", r"did you mean 'lora'\?"),
        ("strides.flat_indx", r"did you mean 'strides\.flat_index'"),
        ("qqqq", "a key begins with its chapter: tensors, "),
    ],
)
def test_a_key_that_nothing_has_is_answered_with_what_was_meant(asked, says):
    from course_utils.grading import UnknownKey, find
    from course_utils.grading.declaring.registry import chapters

    with pytest.raises(UnknownKey, match=says) as raised:
        find(asked)
    without_the_chapters = str(raised.value).replace(", ".join(chapters()), "")
    assert len(without_the_chapters) < 300


def test_help_lists_the_verbs_by_who_needs_them():
    done = subprocess.run(
        [sys.executable, "-m", "course_utils.cli", "--help"], capture_output=True, text=True
    )
    heads = ["Working through the course:", "Writing chapters and exercises:", "Grading a class:"]
    assert [line for line in done.stdout.splitlines() if line in heads] == heads
    for verb in ("lab", "normalise", "grade", "doctor"):
        assert f"  {verb} " in done.stdout
