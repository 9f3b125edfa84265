"""The rules that our pytest plugin adds, each in a run of pytest of its own."""

import json
import os
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_utils.needs import NEEDS

PLUGIN = "course_utils.authoring.pytest_plugin"
NBVAL = ("--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=60")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run pytest with the plugin, in a process of its own, in a folder of its own."""
    monkeypatch.setenv("COURSE_HOME", "/nowhere/this/is/the/readers/own")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for need in NEEDS:
        monkeypatch.delenv(need.required_by, raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess(
            "-p", PLUGIN, "-p", "no:cacheprovider", "-rs", *arguments, timeout=120
        )

    return run


def write_notebook(path: Path, *cells: tuple[str, list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [new_code_cell(source, metadata={"tags": tags}) for source, tags in cells]
    nbformat.write(new_notebook(cells=made), path)


def test_gpu_cells_are_skipped_by_name_where_there_is_none(pytester, run) -> None:
    write_notebook(
        pytester.path / "02_strides.ipynb",
        ("x = 1", []),
        ('time_the_copy("cuda")\nmore()', ["gpu"]),
        ("assert x == 1", []),
    )
    result = run(*NBVAL)
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(['*needs CUDA: 02_strides.ipynb: time_the_copy("cuda")'])


@pytest.mark.parametrize("required", [False, True])
def test_a_cell_is_skipped_or_fails_by_what_it_needs(pytester, run, monkeypatch, required) -> None:
    monkeypatch.setenv("CXX", "a-compiler-that-is-nowhere")
    if required:
        monkeypatch.setenv("COURSE_REQUIRE_COMPILER", "1")
    write_notebook(pytester.path / "15.ipynb", ("x = 1", []), ("compile_it()", ["compiler"]))
    result = run(*NBVAL)
    said = (
        "*must have a C++ compiler and has none: 15.ipynb: compile_it()*"
        if required
        else "*needs a C++ compiler: 15.ipynb: compile_it()"
    )
    result.stdout.fnmatch_lines([said])
    assert (result.ret == pytest.ExitCode.TESTS_FAILED) == required


def test_gpu_cells_fail_where_there_must_be_one(pytester, run, monkeypatch) -> None:
    monkeypatch.setenv("COURSE_REQUIRE_GPU", "1")
    write_notebook(pytester.path / "02_strides.ipynb", ("x = 1", []), ("pass", ["gpu"]))
    result = run(*NBVAL)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*must have CUDA and has none: 02_strides.ipynb: pass*"])


def test_a_cell_that_raises_fails_the_run(pytester, run) -> None:
    write_notebook(pytester.path / "01.ipynb", ("assert 1 == 2", []))
    run(*NBVAL).assert_outcomes(failed=1)


def test_each_notebook_has_a_home_of_its_own_and_none_is_the_readers(pytester, run) -> None:
    seen = pytester.path / "seen.txt"
    tell = f"import os; open({str(seen)!r}, 'a').write(os.environ['COURSE_HOME'] + chr(10))"
    write_notebook(pytester.path / "01.ipynb", (tell, []))
    write_notebook(pytester.path / "solved" / "01.ipynb", (tell, []))
    run(*NBVAL).assert_outcomes(passed=2)
    first, second = seen.read_text().split()
    assert first != second
    assert "/nowhere" not in first + second
    assert not Path(first).exists(), "the homes are removed at the end"


def test_torch_gets_one_thread(pytester, run, monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pytester.makepyfile("import os\ndef test(): assert os.environ['OMP_NUM_THREADS'] == '1'")
    run().assert_outcomes(passed=1)


COUNTING = """
from course_utils.authoring.counts import count
def test_a(): count("mistakes", 3)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadscope")])
def test_counts_of_all_workers_are_added_up(pytester, run, workers) -> None:
    pytester.makepyfile(test_1=COUNTING, test_2=COUNTING)
    write_notebook(pytester.path / "01.ipynb", ("1", []))
    write_notebook(pytester.path / "solved" / "01.ipynb", ("1", []), ("2", []))
    result = run(*NBVAL, *workers)
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(
        [
            "*the course, counted*",
            "*6  mistakes",
            "*1  notebooks as shipped",
            "*1  notebooks solved",
        ]
    )
    assert " passed" in [line for line in result.outlines if line.strip()][-1]


def test_a_complete_run_that_proved_nothing_of_a_kind_fails(pytester, run) -> None:
    pytester.makepyfile(test_1=COUNTING)
    result = run("--complete")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*never counted in a complete run: exercises, alternatives*"])


def test_a_complete_run_passes_when_all_was_counted(pytester, run) -> None:
    pytester.makepyfile(
        """
        from course_utils.authoring import counts
        def test_all():
            for name in counts.EXPECTED: counts.count(name)
        """
    )
    assert run("--complete").ret == pytest.ExitCode.OK


def test_counts_do_not_go_down() -> None:
    from course_utils.authoring import counts

    with pytest.raises(ValueError, match="does not go down"):
        counts.count("exercises", -1)


def test_loading_the_plugin_is_light(pytester) -> None:
    code = f"import sys, {PLUGIN}; print([m for m in ('torch', 'numpy', 'nbformat') if m in sys.modules])"
    assert json.loads(pytester.run(os.sys.executable, "-c", code).outlines[0]) == []
