"""No chapter uses what comes later, or what may have been left out, before its text says so."""

import json
from pathlib import Path

import pytest

from course_utils.authoring import needs
from course_utils.authoring.counts import count
from course_utils.authoring.dependencies import ROOT

CHAPTERS = needs.read(ROOT / "notebooks", ROOT / "course_utils")


@pytest.mark.parametrize("number", CHAPTERS)
def test_what_a_chapter_uses_comes_before_it_or_is_linked_first(number: int) -> None:
    assert needs.unsaid(CHAPTERS, number) == {}
    count("chapters whose needs are said")


@pytest.mark.parametrize("number", CHAPTERS)
def test_a_head_links_each_chapter_that_it_names(number: int) -> None:
    assert CHAPTERS[number].unlinked == ()


@pytest.mark.parametrize("number", CHAPTERS)
def test_a_head_names_what_is_there_and_something_to_begin_with(number: int) -> None:
    chapter = CHAPTERS[number]
    assert chapter.named - CHAPTERS.keys() == set()
    assert number == 1 or chapter.before, "every chapter but the first builds on one"


def test_the_book_can_be_read_in_its_own_order() -> None:
    for number in CHAPTERS:
        assert needs.all_before(CHAPTERS, [number])[-1] == number


# What is read from a notebook


def chapters(folder: Path, **cells: list[str]) -> dict[int, needs.Needs]:
    """The needs of notebooks that are made of these cells; one that begins with a # is text."""
    (folder / "reference").mkdir()
    (folder / "reference" / "a.py").write_text('"""Chapter 3: tools."""\n')
    for name, sources in cells.items():
        made = [
            {"cell_type": "markdown" if source.startswith("#") else "code", "source": source}
            for source in sources
        ]
        (folder / f"{name.removeprefix('n')}.ipynb").write_text(json.dumps({"cells": made}))
    return needs.read(folder, folder)


HEAD = "# 2 · Two\n\n**You need** {}. **Time**: none; {}."
ONE, THREE = "[chapter 1](01_one.ipynb)", "[chapter 3](03_three.ipynb)"
USE = "from course_utils.reference.a import spanner"


@pytest.mark.parametrize(
    ("cells", "unsaid"),
    [
        ([HEAD.format(ONE, "no GPU"), USE], {3: 1}),
        ([HEAD.format(ONE, "no GPU"), USE, f"# See {THREE}"], {3: 1}),
        ([HEAD.format(ONE, "no GPU"), f"# See {THREE}", USE], {}),
        ([HEAD.format(ONE, THREE), USE], {}),
        ([HEAD.format(ONE, "no GPU"), "%%ranks 2\n" + USE], {3: 1}),
        ([HEAD.format("nothing", "no GPU"), 'mine("one.first")'], {1: 1}),
        ([HEAD.format(ONE, "no GPU"), 'mine("one.first")'], {}),
        ([HEAD.format("chapter 1", "no GPU"), 'mine("one.first")'], {1: 1}),
        ([HEAD.format(ONE, "no GPU"), 'mine("two.own")'], {}),
    ],
)
def test_what_is_used_before_it_is_said(tmp_path: Path, cells: list, unsaid: dict) -> None:
    found = chapters(tmp_path, n01_one=["# 1 · One"], n02_two=cells, n03_three=["# 3 · Three"])
    assert needs.unsaid(found, 2) == unsaid


@pytest.mark.parametrize(
    ("said", "unlinked"),
    [
        (f"{ONE} and {THREE}", ()),
        ("chapters [1](01_one.ipynb) and [3](03_three.ipynb)", ()),
        ("chapters 1 and 3", ("chapters 1 and 3",)),
        (f"{ONE}; Chapter 3 helps", ("Chapter 3",)),
    ],
)
def test_a_mention_that_is_no_link(tmp_path: Path, said: str, unlinked: tuple) -> None:
    (two,) = chapters(tmp_path, n02_two=[HEAD.format(said, "no GPU")]).values()
    assert two.unlinked == unlinked


def test_a_drawing_has_no_line_that_others_make(tmp_path: Path) -> None:
    needed = {4: "[2](02_b.ipynb) to [3](03_c.ipynb) and [1](01_a.ipynb)", 3: ONE, 2: ONE}
    names = {1: "n01_a", 2: "n02_b", 3: "n03_c", 4: "n04_d"}
    found = chapters(
        tmp_path,
        **{name: [HEAD.format(needed.get(number, "x"), "y")] for number, name in names.items()},
    )
    assert found[4].before == {1, 2, 3}
    assert needs.direct(found, 4) == [2, 3]
    assert needs.all_before(found, [3]) == [1, 3]
