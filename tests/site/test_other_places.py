"""The site where a host gives no help: from a folder, and at addresses that do not exist."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from site_visit import LOOKS, SUBPATH, Silent, served, unfold, visiting
from test_pages import PAGES

from course_utils.authoring.counts import count


@pytest.mark.parametrize("page", ["book/index", "book/exercises", "notebooks/02_strides"])
def test_from_a_folder(html: Path, browser: Browser, page: str) -> None:
    """Opened as a file: pictures, formulas, folds and links work."""
    with visiting(browser, f"{html.resolve().as_uri()}/", f"{page}.html") as visit:
        assert unfold(visit.page) == []
        for formula in visit.page.locator("span.math, div.math").all():
            assert formula.locator("mjx-container").count()
        broken = "images => images.filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert visit.page.locator("article img").evaluate_all(broken) == []
        visit.page.locator("a.right-next").click()
        visit.page.wait_for_url(f"**/{PAGES[PAGES.index(page) + 1]}.html")
        assert visit.errors == []
        count("browser checks", 4)


def test_search_from_a_folder(html: Path, browser: Browser) -> None:
    with visiting(browser, f"{html.resolve().as_uri()}/", "search.html?q=flat_index") as visit:
        first = visit.page.locator("#search-results li a").first
        first.wait_for()
        assert "notebooks/02_strides.html" in (first.get_attribute("href") or "")
        count("browser checks")


class WithPage404(Silent):
    """Serves the site's 404.html for whatever is missing, as GitHub Pages does."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The page, with the status."""
        body = Path(self.directory, SUBPATH, "404.html").read_bytes()
        self.send_response(HTTPStatus(code))
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def host(html: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(html, tmp_path_factory.mktemp("pages"), WithPage404) as address:
        yield address


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("nothing.html", None),
        ("a/b/c/nothing", None),
        ("notebooks/2_strides.html", "notebooks/02_strides.html"),
        ("deep/er/tensors/", "notebooks/01_tensors.html"),
    ],
)
def test_an_address_that_does_not_exist(
    host: str, browser: Browser, address: str, near: str | None
) -> None:
    context = browser.new_context(**LOOKS["narrow"])
    page = context.new_page()
    answer = page.goto(host + address)
    assert answer is not None
    assert answer.status == HTTPStatus.NOT_FOUND
    home = page.locator("#home a")
    home.wait_for()
    assert home.evaluate("link => link.href") == f"{host}book/index.html"
    nearest = page.locator("#near a")
    assert nearest.is_visible() == (near is not None)
    if near:
        nearest.click()
        page.wait_for_url(host + near)
    context.close()
    count("browser checks", 3)
