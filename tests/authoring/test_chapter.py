"""What `make chapter N=02` runs."""

import os
import subprocess
import sys

import pytest

from course_utils.authoring.dependencies import ROOT
from course_utils.grading import exercises_of
from tests.support import chapter


def test_a_chapter_is_found_by_its_number():
    assert chapter.notebook("02") == chapter.notebook("2") == ROOT / "notebooks/02_strides.ipynb"
    with pytest.raises(SystemExit, match="there is no chapter '99'"):
        chapter.notebook("99")


def test_the_tests_of_all_references_that_it_uses_are_among_them():
    names = [path.stem for path in chapter.references("cuda_memory")]
    assert names == ["test_caching_allocator", "test_cuda_memory", "test_gpt2"]


def test_all_that_is_about_the_chapter_runs_and_nothing_about_another():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *chapter.arguments("02")],
        cwd=ROOT,
        env=os.environ | {"COURSE_PROVE": "all", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    items = [line for line in done.stdout.splitlines() if "::" in line]
    for key in exercises_of("strides"):
        assert any("test_proofs.py::test_exercise" in one and f"[{key}-" in one for one in items)
        assert f"tests/grading/test_mutants.py::test_mutants_die[{key}]" in items
    for part in (
        "notebooks/02_strides.ipynb::Cell 0",
        "tests/reference/test_strides.py::",
        "tests/site/test_pages.py::test_the_site_builds_without_a_warning",
        "tests/site/test_pages.py::test_in_a_browser[notebooks/02_strides-light]",
    ):
        assert any(one.startswith(part) for one in items), part
    assert not [one for one in items if "autograd" in one or "[notebooks/01" in one]
