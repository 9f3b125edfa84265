"""Every row of the page *What moved* holds on the installed torch."""

import json
import subprocess
import sys
from pathlib import Path

import moved_runner
import pytest
import torch

from course_utils.authoring.counts import count
from course_utils.grading import chapters

ROOT = Path(__file__).parents[2]
DATA = ROOT / "book" / "what_moved.toml"
ROWS = {row["old"]: row for row in moved_runner.rows(DATA)}


GOING = "import warnings; warnings.warn('`this` is deprecated')"


@pytest.fixture(scope="module")
def report() -> dict[str, dict]:
    """What was seen when the rows ran, by the old name; one process runs them all."""
    done = subprocess.run(
        [sys.executable, moved_runner.__file__, str(DATA)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def outdated_torch(needed: str) -> bool:
    def numbers(version: str) -> list[int]:
        return [int(part) for part in version.split("+")[0].split(".")[:2]]

    return numbers(torch.__version__) < numbers(needed)


def test_there_are_rows_and_none_twice() -> None:
    assert len(ROWS) >= 25
    assert len(ROWS) == len(moved_runner.rows(DATA))


@pytest.mark.parametrize("old", ROWS)
def test_the_row_holds(report: dict[str, dict], old: str) -> None:
    row, seen = ROWS[old], report[old]
    if outdated_torch(row.get("torch", "0.0")):
        pytest.skip(f"moved in torch {row['torch']}; here is {torch.__version__}")
    assert seen["new problem"] is None
    assert seen["new going"] == [], "the new way is on its way out too"
    assert seen["compared"], "nothing was compared"
    assert seen["equal"], seen["found"]
    problem = seen["old problem"]
    if row["how"] == "gone":
        assert problem is not None
        assert problem.split(":")[0] in ("AttributeError", "ImportError", "ModuleNotFoundError")
    elif row["how"] == "raises":
        assert problem is not None
        assert row["says"] in problem
    else:
        assert problem is None
        if row["how"] == "warns":
            assert any(row["says"] in text for text in seen["old says"]), seen["old says"]
        else:
            assert row["how"] == "silent"
            assert seen["old going"] == []
    count("moved APIs checked")


@pytest.mark.parametrize("old", [old for old, row in ROWS.items() if "chapter" in row])
def test_its_chapter_exists(old: str) -> None:
    assert ROWS[old]["chapter"] in chapters()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"was": "result = 1", "now": "result = 2"}, "equal"),
        ({"was": "result = 1", "now": "pass"}, "compared"),
        ({"was": "result = 1", "now": "result = absent"}, "new problem"),
        ({"was": "result = 1", "now": f"{GOING}; result = 1"}, "new going"),
    ],
)
def test_a_row_that_lies_is_seen(change: dict, complaint: str) -> None:
    fine = {"old problem": None, "new problem": None, "new going": [], "compared": True}
    seen = moved_runner.seen(change)
    assert seen[complaint] != (fine | {"equal": True})[complaint]
