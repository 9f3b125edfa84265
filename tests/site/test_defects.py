"""Broken on purpose, a page each: the build or the visit must say so, and name the page."""

import shutil
from pathlib import Path

import pytest
import site_links as links
from playwright.sync_api import Browser
from site_build import Built, build, code, markdown, tiny_book
from site_visit import overflow, served, visiting

from course_utils.authoring.counts import count
from course_utils.grading import stub_cell

PLOT = "import matplotlib.pyplot as plt\n\nplt.plot([1, 2])\nplt.show()"
CDN = "https://cdn.example.org/widget.js"
KEY = "strides.flat_index"

DEFECTS = {
    "sound": [markdown("# Sound"), code(f"# alt: a line that rises\n{PLOT}", tags=["figure"])],
    "raising": [markdown("# Raising"), code("raise RuntimeError('on purpose')")],
    "warning": [markdown("# Warning"), code("import sys\n\nprint('careful', file=sys.stderr)")],
    "file": [markdown("# File\n\n[elsewhere](nowhere.ipynb)")],
    "anchor": [markdown("# Anchor\n\n[elsewhere](sound.ipynb#Nowhere)")],
    "no_alt": [markdown("# No alt"), code(PLOT)],
    "no_alt_line": [markdown("# No alt line"), code("3", tags=["figure"])],
    "no_cell": [markdown("# No cell\n\n> **Exercise 1.1 (f), ★☆☆, 5 min.** Write `f`.")],
    "cdn": f"# CDN\n\n<script src='{CDN}'></script>\n",
    "wide": "# Wide\n\n<div style='width: 700px'>wider than a telephone</div>\n",
    "silent": "# Silent\n\n<img src='logo.png'>\n",
}
EXPECTED = {
    "raising": "CellExecutionError",
    "warning": "stderr was found",
    "file": "nowhere.ipynb",
    "anchor": "'nowhere'",
    "no_alt": "an image has no alternative text",
    "no_alt_line": "a figure's cell starts with",
    "no_cell": "no exercise cell follows",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """All defects in one book, each on its own page."""
    folder = tmp_path_factory.mktemp("broken")
    return build(tiny_book(folder / "book", DEFECTS), folder / "out")


def warnings_of(built: Built, page: str) -> str:
    """The warnings that name the page."""
    named = (f"/{page}.ipynb:", f"/{page}.md:")
    return "\n".join(line for line in built.warnings if any(name in line for name in named))


def test_the_build_fails(broken: Built) -> None:
    assert broken.status != 0


@pytest.mark.parametrize(("page", "says"), EXPECTED.items())
def test_the_build_names_the_page_and_the_defect(broken: Built, page: str, says: str) -> None:
    assert says in warnings_of(broken, page), broken.log


@pytest.mark.parametrize("page", sorted(set(DEFECTS) - set(EXPECTED)))
def test_a_page_without_such_a_defect_is_not_blamed(broken: Built, page: str) -> None:
    assert warnings_of(broken, page) == ""


def test_a_page_that_asks_another_host_is_found(
    broken: Built, browser: Browser, tmp_path: Path
) -> None:
    assert links.foreign(links.read(broken.html / "cdn.html")) == [CDN]
    assert links.foreign(links.read(broken.html / "sound.html")) == []
    with (
        served(broken.html, tmp_path) as address,
        visiting(browser, address, "cdn.html") as visit,
    ):
        assert f"request to {CDN}" in visit.errors
        count("browser checks")


def test_a_page_wider_than_a_telephone_is_found(
    broken: Built, browser: Browser, tmp_path: Path
) -> None:
    with (
        served(broken.html, tmp_path) as address,
        visiting(browser, address, "wide.html", "narrow") as visit,
    ):
        assert overflow(visit.page) > 0
        count("browser checks")


def test_a_missing_file_and_a_silent_image_are_found(
    broken: Built, browser: Browser, tmp_path: Path
) -> None:
    page = broken.html / "silent.html"
    assert links.dead(page, links.read(page), broken.html) == ["logo.png"]
    assert {"src": "logo.png"} in links.read(page).images
    with (
        served(broken.html, tmp_path) as address,
        visiting(browser, address, "silent.html") as visit,
    ):
        assert any(error.startswith("404 for") for error in visit.errors)
        count("browser checks")


def test_buttons_once_the_repository_has_an_address(tmp_path: Path) -> None:
    address = "https://github.com/someone/course"
    first = (
        "import dataclasses, course_utils.settings as s; "
        f"s.settings = dataclasses.replace(s.settings, repository={address!r})"
    )
    book = tiny_book(tmp_path / "book", {"page": [markdown("# Page"), code("1 + 1")]})
    published = build(book, tmp_path / "out", first=first)
    assert published.status == 0, published.log
    followed = links.read(published.html / "page.html").links
    colab = "https://colab.research.google.com/github/someone/course/blob/main/page.ipynb"
    assert {address, colab} <= set(followed)
    assert f"{address}/edit/main/page.ipynb" in followed


def test_an_edition_without_solutions(tmp_path: Path) -> None:
    quote = "> **Exercise 1.1 (flat_index), ★☆☆, 5 min.** Write it."
    cells = [
        markdown("# Students"),
        code("from course_utils import exercise"),
        markdown(quote),
        code(stub_cell(KEY), exercise=KEY),
        code("assert flat_index((1, 2), (4, 1)) == 6"),
    ]
    book = tiny_book(tmp_path / "book", {"page": cells})
    students = build(book, tmp_path / "students", EDITION="students")
    assert students.status == 0, students.log
    page = (students.html / "page.html").read_text(encoding="utf-8")
    assert "course-verdict course-not-attempted" in page
    assert f'id="exercise-{KEY}"' in page
    assert "course-hint" not in page
    assert "exercise-solution" not in page
    assert "zip" not in page, "the book's solution is on the page of the students' edition"
    shutil.rmtree(tmp_path)
