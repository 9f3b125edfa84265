"""Every page of the site, as files and in a browser: light, dark and on a telephone."""

import json
import re
from pathlib import Path

import pytest
import site_links as links
from playwright.sync_api import Browser
from site_axe import violations
from site_build import ROOT, Built, pages_of
from site_figures import use_figures
from site_visit import LOOKS, Visit, bare_formulas, overflow, transferred, unfold, visiting

from course_utils.authoring.counts import count
from course_utils.settings import settings

PAGES = pages_of(ROOT)
BUDGET_BYTES = 1_000_000  # compressed, besides pictures
BUDGET_REQUESTS = 45  # besides pictures
BUDGET_SHIFT = 0.1
NOTEBOOKS = [page for page in PAGES if (ROOT / f"{page}.ipynb").exists()]


def cells_of(page: str) -> list[dict]:
    return json.loads((ROOT / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]


def exercises_of(page: str) -> list[str]:
    """Keys of the exercises of a notebook, in their order."""
    return [key for cell in cells_of(page) if (key := cell["metadata"].get("exercise"))]


def test_the_site_builds_without_a_warning(built: Built) -> None:
    assert "\n".join(built.warnings) == ""
    assert built.status == 0, built.log
    assert built.log.count("running notebooks") <= 1, "other languages take the English pages' runs"


def test_every_notebook_is_a_page() -> None:
    committed = {f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert committed == set(NOTEBOOKS)


def test_the_landing_page_links_the_chapters_that_exist(html: Path) -> None:
    found = links.read(html / f"{PAGES[0]}.html").links
    linked = {
        f"notebooks/{name}" for link in found for name in re.findall(r"(\d\d_\w+)\.html", link)
    }
    assert linked == set(NOTEBOOKS)


@pytest.mark.parametrize("page", PAGES)
def test_links_anchors_and_images(html: Path, page: str) -> None:
    file = html / f"{page}.html"
    found = links.read(file)
    assert found.links
    assert found.resources
    assert links.dead(file, found, html) == []
    assert links.foreign(found) == []
    assert [image for image in found.images if not (image.get("alt") or "").strip()] == []
    count("pages")


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_an_exercise_has_an_anchor_and_an_executed_solution(html: Path, page: str) -> None:
    text = (html / f"{page}.html").read_text(encoding="utf-8")
    anchors = links.read(html / f"{page}.html").anchors
    keys = exercises_of(page)
    assert {f"exercise-{key}" for key in keys} <= anchors
    assert text.count('class="cell tag_exercise-stub') == len(keys)
    assert text.count('class="cell tag_exercise-solution') == len(keys)


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_the_setup_cell_is_not_shown(html: Path, page: str) -> None:
    text = (html / f"{page}.html").read_text(encoding="utf-8")
    assert 'class="cell tag_setup' not in text


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_buttons_that_need_an_address_follow_the_setting(html: Path, page: str) -> None:
    text = (html / f"{page}.html").read_text(encoding="utf-8")
    wanted = bool(settings.repository)
    assert ('class="dropdown dropdown-source-buttons' in text) == wanted
    assert ('class="dropdown dropdown-launch-buttons' in text) == wanted
    assert "btn-download-source-button" in text


def check_speed(html: Path, site: str, visit: Visit) -> None:
    """Within the budget: bytes and requests besides pictures, how far the layout shifts.

    Seconds are a machine's: `make bench` measures them.
    """
    sent = transferred(html, site, visit)
    assert sent < BUDGET_BYTES, f"{sent:,} bytes"
    asked = [kind for kind in visit.got.values() if kind != "image"]
    assert 0 < len(asked) <= BUDGET_REQUESTS, f"{len(asked)} requests"
    assert visit.paints["shift"] < BUDGET_SHIFT


VISITS = [(page, "light") for page in PAGES]
VISITS += [(page, look) for page in (PAGES[0], NOTEBOOKS[0]) for look in ("narrow", "dark")]
"""Most pages turn narrow and dark when they are open, which spares two loads."""


@pytest.mark.parametrize(("page", "look"), VISITS)
def test_in_a_browser(html: Path, site: str, browser: Browser, page: str, look: str) -> None:
    with visiting(browser, site, f"{page}.html", look) as visit:
        assert visit.page.locator("article h1").first.is_visible()
        assert overflow(visit.page) <= 0
        assert unfold(visit.page) == []
        assert overflow(visit.page) <= 0
        solutions = visit.page.locator(".tag_exercise-solution").all()
        assert len(solutions) == (len(exercises_of(page)) if page in NOTEBOOKS else 0)
        for solution in solutions:
            verdict = solution.locator(".course-verdict")
            assert verdict.count() == 1, solution.inner_text()
            assert verdict.is_visible()
            assert re.search(r"· (passed|skipped)", verdict.inner_text()), verdict.inner_text()
        check_speed(html, site, visit)
        theme = visit.page.locator("html").get_attribute("data-theme")
        assert theme == ("dark" if look == "dark" else "light")
        assert bare_formulas(visit.page) == []
        if look == "light":
            check_narrow(visit)
            assert violations(visit.page) == []
            check_dark(visit)
            count("pages without a violation of WCAG 2.2 AA", 2)
            use_figures(visit, (html / f"{page}.html").read_text(encoding="utf-8"))
        assert visit.errors == []
        count("browser checks", 6 + len(solutions))
        if look == "light" and page in NOTEBOOKS:
            count("notebooks solved")  # the build ran each cell, and every verdict is a pass
            check_download(visit, page)


def check_download(visit: Visit, page: str) -> None:
    """The button gives the committed notebook."""
    visit.page.locator(".dropdown-download-buttons > button").click()
    button = visit.page.locator("a.btn-download-source-button")
    assert button.is_visible()
    served = visit.page.request.get(button.evaluate("link => link.href"))
    assert served.ok
    assert served.body() == (ROOT / f"{page}.ipynb").read_bytes()
    count("browser checks")


def check_narrow(visit: Visit) -> None:
    """The open page fits a telephone's screen, its folds open and shut."""
    wide = visit.page.viewport_size
    visit.page.set_viewport_size(LOOKS["narrow"]["viewport"])
    assert overflow(visit.page) <= 0
    folds = visit.page.evaluate_handle("[...document.querySelectorAll('main details[open]')]")
    for state in ("false", "true"):
        folds.evaluate(f"folds => folds.forEach((fold) => {{ fold.open = {state}; }})")
        assert overflow(visit.page) <= 0
    visit.page.set_viewport_size(wide)
    count("browser checks", 3)


def check_dark(visit: Visit) -> None:
    """The open page follows a system that turns dark, and can be read then."""
    visit.page.emulate_media(color_scheme="dark")
    visit.page.locator("html[data-theme=dark]").wait_for()
    visit.page.evaluate("Promise.all(document.getAnimations().map((fading) => fading.finished))")
    assert overflow(visit.page) <= 0
    assert violations(visit.page, contrast_only=True) == []
    count("browser checks", 3)


def test_search_finds_a_chapter(site: str, browser: Browser) -> None:
    with visiting(browser, site, f"search.html?q={NOTEBOOKS[-1].split('_')[-1]}") as visit:
        results = visit.page.locator("#search-results a")
        results.first.wait_for()
        assert any(NOTEBOOKS[-1] in (link.get_attribute("href") or "") for link in results.all())
        assert visit.errors == []
        count("browser checks")


@pytest.mark.parametrize("look", ["light", "narrow"])
def test_the_root_leads_to_the_landing_page(site: str, browser: Browser, look: str) -> None:
    with visiting(browser, site, "", look) as visit:
        visit.page.wait_for_url(f"**/{PAGES[0]}.html")
        assert visit.errors == []
        count("browser checks")
