"""Notebooks run two at a time before their pages are read, and only those that have not run."""

from pathlib import Path

from site_build import build, code, markdown, tiny_book

MEETING = """
import time
from pathlib import Path

Path("{own}").touch()
for _ in range(600):
    if Path("{other}").exists():
        break
    time.sleep(0.1)
else:
    raise TimeoutError("the other notebook is not running")
print("met")
"""


def meeting(own: str, other: str) -> list:
    """A notebook that ends only while the other one runs."""
    return [markdown(f"# {own}"), code(MEETING.format(own=own, other=other))]


def test_two_notebooks_run_together_and_once(tmp_path: Path) -> None:
    book = tiny_book(
        tmp_path / "book",
        {"a": meeting("left", "right"), "b": meeting("right", "left"), "c": "# C\n"},
    )
    first = build(book, tmp_path / "out")
    assert first.status == 0, first.log
    assert "running notebooks" in first.log
    assert all("met" in (first.html / f"{page}.html").read_text("utf-8") for page in "ab")
    (book / "left").unlink()
    (book / "right").unlink()
    again = build(book, tmp_path / "again")
    assert again.status == 0, again.log
    assert "running notebooks" not in again.log
    assert not (book / "left").exists()
    assert "met" in (again.html / "a.html").read_text("utf-8")
