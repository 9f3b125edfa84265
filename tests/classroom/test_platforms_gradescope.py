"""The zip for Gradescope: its layout, its script run here, and results.json field by field."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from course_utils.authoring.counts import count
from course_utils.classroom import release
from course_utils.classroom.exports.gradescope import gradescope_problems
from course_utils.classroom.marks.plan import Plan, plan_of
from course_utils.classroom.platforms import gradescope
from course_utils.grading import solution_cell, stub_cell
from course_utils.sandbox import levels
from course_utils.sandbox.bubblewrap import VISIBLE

ROOT = Path(__file__).parents[2]
KEYS = ("strides.flat_index", "strides.transpose_view", "strides.is_contiguous")
NO_OFFSET = """\
@exercise("strides.flat_index")
def flat_index(index, stride, offset=0):
    return sum(i * s for i, s in zip(index, stride))
"""
BEGINNING = "import torch\nfrom torch import Tensor\nfrom course_utils import exercise\nfrom jaxtyping import Shaped"


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    plan = plan_of([f"{KEYS[0]}=4", f"{KEYS[1]}=3", f"{KEYS[2]}=2"], "Problem set 1")
    edition = gradescope.made(release.make(plan, ROOT, only_exercises=True))
    folder = tmp_path_factory.mktemp("hand out")
    written = release.write(edition, folder)
    assert folder / gradescope.ZIP in written.instructor
    assert gradescope.ZIP not in str(zipfile.ZipFile(written.zip).namelist())
    return folder / gradescope.ZIP


@pytest.fixture(scope="module")
def container(archive):
    """A folder that stands for /autograder, which every user may enter, as in the container."""
    home = Path(tempfile.mkdtemp(prefix="autograder-", dir="/tmp"))
    home.chmod(0o755)
    with zipfile.ZipFile(archive) as files:
        files.extractall(home / "source")
    subprocess.run(["sh", "rights.sh"], cwd=home / "source", check=True)
    (home / "results").mkdir()
    people = {"users": [{"email": "ada@example.org", "name": "Ada"}]}
    metadata = people | {"created_at": "2026-11-21T10:00:00.123456-08:00"}
    (home / "submission_metadata.json").write_text(json.dumps(metadata))
    yield home
    shutil.rmtree(home)


def grade(home, *cells, isolation="best"):
    """Hand in a notebook of these code cells (none: nothing); what Gradescope would read."""
    shutil.rmtree(home / "submission", ignore_errors=True)
    (home / "submission").mkdir()
    if cells:
        made = [{"cell_type": "code", "metadata": {}, "source": c, "outputs": []} for c in cells]
        text = json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})
        (home / "submission/my answers.ipynb").write_text(text)
    env = {
        **os.environ,
        "AUTOGRADER": str(home),
        "COURSE_PYTHON": sys.executable,
        "COURSE_ISOLATION": isolation,
    }
    script = [str(home / "source/run_autograder")]
    done = subprocess.run(["bash", *script], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    results = json.loads((home / "results/results.json").read_text())
    (home / "results/results.json").unlink()
    return results, done.stdout


def test_the_layout_is_the_one_that_gradescope_reads(archive):
    with zipfile.ZipFile(archive) as files:
        names = files.namelist()
        scripts = {n: files.read(n).decode() for n in names if "/" not in n and n != "secret"}
        executable = {n: files.getinfo(n).external_attr >> 16 & 0o111 for n in names}
    top = {"setup.sh", "run_autograder", "rights.sh", "requirements.txt", "plan.json", "secret"}
    assert {name for name in names if "/" not in name} == top
    assert executable["setup.sh"] and executable["run_autograder"]
    assert scripts["run_autograder"].startswith("#!/usr/bin/env bash\n")
    assert Plan.from_json(scripts["plan.json"]).keys == KEYS
    assert "course/course_utils/reference/strides.py" in names
    assert not any("/authoring/" in name for name in names)


@pytest.mark.parametrize("name", ["setup.sh", "run_autograder", "rights.sh"])
def test_the_scripts_are_whole(container, name):
    subprocess.run(["bash", "-n", container / "source" / name], check=True)


def test_the_image_gets_the_locked_torch_for_cpus_and_only_what_grading_needs(container):
    setup = (container / "source/setup.sh").read_text()
    locked = (container / "source/requirements.txt").read_text()
    torch = re.search(r"^torch==\S+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)[0]
    assert f'"{torch}+cpu"' in setup
    assert torch in locked
    for needed in ("hypothesis", "safetensors", "jaxtyping", "numpy", "nbformat"):
        assert re.search(f"^{needed}==", locked, re.MULTILINE)
    for heavy in ("jupyterlab", "distributed", "transformers", "playwright", "mypy"):
        assert not re.search(f"^{heavy}==", locked, re.MULTILINE)


FAKE_PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit {status}
mkdir -p "$3/bin"
for name in pip uv; do
    printf '#!/bin/sh\\necho "%s $*"\\n' "$name" >"$3/bin/$name"; chmod +x "$3/bin/$name"
done
echo "$(basename "$0") -m venv $(basename "$3")"
"""


@pytest.mark.parametrize("has", ["python3.12", "python3"])
def test_the_image_is_set_up_with_a_suitable_python(container, tmp_path, has):
    """setup.sh with programs that only say how they were called; python3 stands for one that is too old."""
    made = tmp_path / "bin"
    made.mkdir()
    programs = {"apt-get": '#!/bin/sh\necho "apt-get $*"\n'}
    programs[has] = FAKE_PYTHON.format(status=int(has == "python3"))
    for name, text in programs.items():
        (made / name).write_text(text)
        (made / name).chmod(0o755)
    for name in ("sh", "bash", "mkdir", "chmod", "basename"):
        (made / name).symlink_to(shutil.which(name) or name)
    env = {"PATH": str(made), "AUTOGRADER": str(container), "COURSE_VENV": str(tmp_path / "course")}
    if has == "python3":  # what uv would make
        (tmp_path / "course/bin").mkdir(parents=True)
        (tmp_path / "course/bin/pip").write_text('#!/bin/sh\necho "pip $*"\n')
        (tmp_path / "course/bin/pip").chmod(0o755)
    script = container / "source/setup.sh"
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert said[0] == "apt-get update -q"
    assert "bubblewrap" in said[1]
    by_uv = [
        "python3 -m venv course-uv",
        "pip install -q uv",
        f"uv venv --seed --python 3.12 {tmp_path / 'course'}",
    ]
    assert said[2:-2] == (by_uv if has == "python3" else ["python3.12 -m venv course"])
    assert re.fullmatch(
        r"pip install -q --no-deps torch==\S+\+cpu --index-url https://download\.pytorch\.org/whl/cpu",
        said[-2],
    )
    assert said[-1] == "pip install -q -r requirements.txt"


def test_a_submission_is_graded_and_the_results_are_as_specified(container):
    answers = [NO_OFFSET, solution_cell(KEYS[1]), stub_cell(KEYS[2])]
    results, out = grade(container, BEGINNING, *answers, "1 / 0")
    assert gradescope_problems(results) == []
    assert results["score"] == sum(test["score"] for test in results["tests"])
    by_name = {test["name"]: test for test in results["tests"]}
    assert list(by_name) == list(KEYS)
    assert [test["number"] for test in results["tests"]] == ["1", "2", "3"]
    wrong, right, untouched = (by_name[key] for key in KEYS)
    assert right["score"] == right["max_score"] == 3
    assert right["status"] == "passed"
    assert 0 <= wrong["score"] < wrong["max_score"] == 4
    assert wrong["status"] == untouched["status"] == "failed"
    assert "You left the offset out" in wrong["output"]
    assert untouched["score"] == 0
    assert {test["visibility"] for test in results["tests"]} == {"visible"}
    assert out.startswith("isolation: ")
    count("submissions graded as Gradescope does")


def test_nothing_handed_in_is_said(container):
    results, _ = grade(container)
    assert results["score"] == 0
    assert "no notebook was handed in" in results["output"]
    assert gradescope_problems(results) == []


SPY = """\
@exercise("strides.flat_index")
def flat_index(index, stride, offset=0):
    import os
    home = {home!r}
    for path in ("source/course/course_utils/reference/strides.py", "source/secret",
                 "source/plan.json", "submission_metadata.json"):
        try:
            open(os.path.join(home, path)).close()
        except OSError:
            continue
        return "read " + path
    try:
        open(os.path.join(home, "results/results.json"), "w").close()
    except OSError:
        return offset + sum(i * s for i, s in zip(index, stride))
    return "wrote results.json"
"""


def spied(container, isolation):
    results, out = grade(container, SPY.format(home=str(container)), isolation=isolation)
    assert results["tests"][0]["score"] == 4, results["tests"][0]["output"]
    return out


def test_answers_and_results_are_out_of_a_submissions_reach(container):
    """The spy returns the right value only if nothing is open to it."""
    assert spied(container, "best").startswith("isolation: bubblewrap")


def test_nor_are_they_where_there_is_no_bubblewrap(container):
    """At the level that Docker leaves: student code is another user's."""
    if os.geteuid() != 0 or not levels.can_be_another():
        pytest.skip(
            "student code can be another user's only for root, with a Python that all may read"
        )
    assert spied(container, "process").startswith("isolation: process only")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")
def test_another_user_reads_the_students_side_and_nothing_else(container):
    def readable(path):
        line = ["cat", container / "source" / path]
        return not subprocess.run(
            line, user=65534, group=65534, extra_groups=[], capture_output=True
        ).returncode

    package = "course/course_utils"
    assert readable(f"{package}/grading/pytrees/tree.py")
    assert readable(f"{package}/sandbox/zygote.py")
    for path in ("secret", "plan.json", "rights.sh", f"{package}/reference/strides.py"):
        assert not readable(path), path


def test_what_students_run_with_is_readable_and_answers_are_not(container):
    course = container / "source/course/course_utils"
    for name in VISIBLE:
        assert (course / name).stat().st_mode & 0o044 == 0o044, name
    for name in ("reference", "exercises", "classroom/alone.py", "cli.py"):
        assert (course / name).stat().st_mode & 0o077 == 0, name
    for name in ("plan.json", "secret"):
        assert (container / "source" / name).stat().st_mode & 0o077 == 0, name
