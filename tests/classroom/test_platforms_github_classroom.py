"""The template repository for GitHub Classroom: its workflow, and its grading step run here."""

import base64
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from course_utils.authoring import notebooks as form
from course_utils.classroom import release
from course_utils.classroom.marks.plan import Plan, plan_of
from course_utils.classroom.platforms import github_classroom
from course_utils.grading import solution_cell

ROOT = Path(__file__).parents[2]
KEYS = ("strides.flat_index", "strides.transpose_view")


def edition(**settings):
    plan = plan_of([f"{KEYS[0]}=4", f"{KEYS[1]}=3"], "Problem set 1", **settings)
    return github_classroom.made(release.make(plan, ROOT, only_exercises=True))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A student's repository with one right answer and one stub."""
    written = release.write(edition(), tmp_path_factory.mktemp("hand out"))
    path = written.folder / "notebooks/02_strides.ipynb"
    notebook = form.read(path)
    for cell in notebook.cells:
        if cell.metadata.get("exercise") == KEYS[0]:
            cell.source = solution_cell(KEYS[0])
    path.write_text(form.text(notebook), encoding="utf-8")
    return written.folder


@pytest.fixture(scope="module")
def workflow(repository):
    return yaml.safe_load((repository / github_classroom.WORKFLOW_PATH).read_text())


def test_actionlint_finds_nothing(repository):
    spec = importlib.util.spec_from_file_location(
        "workflows", ROOT / "tests/repo/test_workflows.py"
    )
    assert spec and spec.loader
    workflows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(workflows)
    assert workflows.actionlint(repository / github_classroom.WORKFLOW_PATH) == []


def test_our_step_hands_its_result_to_classrooms_reporter(workflow):
    *_, ours, reporter = workflow["jobs"]["autograding"]["steps"]
    assert ours["id"] == reporter["with"]["runners"] == "course"
    assert reporter["uses"] == "classroom-resources/autograding-grading-reporter@v1"
    assert reporter["env"] == {"COURSE_RESULTS": "${{ steps.course.outputs.result }}"}
    assert workflow["permissions"] == {"actions": "read", "contents": "read"}


def test_the_step_gives_points_in_base64(repository, workflow, tmp_path):
    """The command of the workflow, with the repository's own copy of the course."""
    step = workflow["jobs"]["autograding"]["steps"][-2]
    python, *arguments = shlex.split(step["run"])
    assert python == "python"
    output = tmp_path / "output"
    env = {
        **os.environ,
        **{name: str(value) for name, value in step["env"].items()},
        "PYTHONPATH": step["env"]["PYTHONPATH"].replace("${{ github.workspace }}", str(repository)),
        "GITHUB_OUTPUT": str(output),
    }
    done = subprocess.run(
        [sys.executable, *arguments], cwd=repository, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"result=(\S+)\n", output.read_text())
    result = json.loads(base64.b64decode(found[1], validate=True))
    assert result["version"] == 1
    assert result["status"] == "fail"
    assert result["max_score"] == 7
    assert [(t["name"], t["score"], t["status"]) for t in result["tests"]] == [
        (KEYS[0], 4, "pass"),
        (KEYS[1], 0, "fail"),
    ]
    assert sum(test["score"] for test in result["tests"]) == 4  # the reporter's totalPoints
    assert f"4 of 4  {KEYS[0]}" in done.stdout


def test_it_says_that_its_points_can_be_forged(repository):
    readme = (repository / "README.md").read_text()
    assert "gets any points they like" in readme
    assert "course grade" in readme


def test_the_repository_holds_its_plan_and_no_caches(repository):
    assert Plan.read(repository / "plan.json").keys == KEYS
    assert "__pycache__/" in (repository / ".gitignore").read_text().splitlines()


def test_an_edition_without_answers_cannot_grade_itself():
    plain = release.make(plan_of(KEYS), ROOT, only_exercises=True)
    hidden = release.Edition(plan_of(KEYS, hidden=True), plain.files)
    with pytest.raises(release.CannotRelease, match="leave out --without-answers"):
        github_classroom.made(hidden)
