"""A real browser for tests: import the fixtures `browser` and `open_page` into a conftest.

`open_page("<h1>…</h1>")` opens a page made of that HTML; `open_page(url="http://127.0.0.1:8000/…")`
opens a page that the test serves. Either way nothing outside of the page's own origin is reached:
such requests are recorded and refused, and `visit.check()` fails on them and on JavaScript errors.
Without a Chromium (see course_utils.authoring.browser) the tests are skipped, unless
$COURSE_REQUIRE_BROWSER is set: then they fail.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, sync_playwright

from course_utils.authoring.browser import ADVICE, ARGUMENTS, find
from course_utils.authoring.counts import count

ORIGIN = "http://course.test"  # answered by the test itself: a page needs an origin to have storage


@dataclass
class Visit:
    """An open page and what went wrong on it.

    errors: uncaught exceptions and messages of the console's level "error".
    requests: addresses asked for outside of the page's own origin; none of them was answered.
    own: addresses asked for within it.
    """

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)

    def check(self) -> None:
        """No JavaScript error, nothing asked of another host, nothing wider than the window."""
        assert not self.requests, f"the page asked for {self.requests}"
        assert not self.errors, f"the page reported {self.errors}"
        wide, window = self.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= window, f"the page is {wide} px wide in a window of {window} px"
        count("browser checks", 3)


Opener = Callable[..., Visit]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, started once a module (under a second).

    Not once a session: as long as Playwright runs, its event loop does, and no other test of the
    process could start one.
    """
    path = find()
    if path is None:
        message = f"There is no browser to test with. {ADVICE}"
        if os.environ.get("COURSE_REQUIRE_BROWSER"):
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Opener]:
    """`open_page(html)` or `open_page(url=…)`, each in a fresh profile; see the module."""
    contexts: list[BrowserContext] = []

    def open_page(
        html: str = "",
        *,
        url: str = "",
        width: int = 1000,
        height: int = 800,
        dark: bool = False,
        init_script: str = "",
        **options: Any,
    ) -> Visit:
        """init_script: run before the page's own scripts. options: for `Browser.new_context`."""
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            **options,
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        if init_script:
            context.add_init_script(init_script)
        visit = Visit(context.new_page())
        visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
        visit.page.on("console", lambda m: m.type == "error" and visit.errors.append(m.text))
        target = url or f"{ORIGIN}/"
        origin = urlsplit(target).netloc

        def answer(route: Route) -> None:
            address = route.request.url
            if urlsplit(address).netloc != origin:
                visit.requests.append(address)
                route.abort()
                return
            visit.own.append(address)
            if url:
                route.continue_()
            elif address == target:
                route.fulfill(body=document(html), content_type="text/html; charset=utf-8")
            else:
                route.fulfill(status=404)

        context.route("**/*", answer)
        visit.page.goto(target)
        return visit

    yield open_page
    for context in contexts:
        context.close()


def document(body: str) -> str:
    """A bare page around some HTML."""
    if body.lstrip().lower().startswith("<!doctype"):
        return body
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Test</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"</head><body>{body}</body></html>"
    )


def screenshot(page: Page, name: str) -> Path | None:
    """A picture of the whole page, in the folder $COURSE_SCREENSHOTS if that is set."""
    folder = os.environ.get("COURSE_SCREENSHOTS")
    if not folder:
        return None
    path = Path(folder) / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    return path
