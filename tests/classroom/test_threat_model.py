"""The threat-model page names tests: each of them exists, and every line has one."""

import re
from pathlib import Path

import pytest

from course_utils.classroom.marks.text import SENTENCE

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "book" / "threat_model.md").read_text(encoding="utf-8")


def named() -> list[tuple[str, str, str]]:
    """(file, test, row) in the order of the page; `[row]` alone is of the test before it."""
    found = []
    for file, test, row in re.findall(r"`(?:(test_\w+\.py)::(\w+))?(?:\[([^]`]+)\])?`", PAGE):
        if file or row:
            file, test = (file, test) if file else found[-1][:2]
            found.append((file, test, row))
    return found


@pytest.mark.parametrize("file, test, row", named(), ids=lambda part: part or "-")
def test_a_test_that_the_page_names_exists(file, test, row):
    text = (HERE / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{file} has no {test}"
    rows = text + (HERE / "sandbox_cases.py").read_text(encoding="utf-8")
    assert not row or f'"{row}": ' in rows, f"{file} has no row {row!r}"


def test_every_line_of_what_is_stopped_names_a_test():
    stopped = PAGE.partition("## What is stopped")[2].partition("## What is not stopped")[0]
    lines = [line for line in stopped.splitlines() if line.startswith("- ")]
    assert len(lines) > 20
    for line in lines:
        assert re.search(r"`test_\w+\.py::", line), line
    assert f"up to {SENTENCE} characters" in PAGE
