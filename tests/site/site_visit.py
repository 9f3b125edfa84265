"""Visits pages in a real browser and notes whatever a reader should never meet."""

import functools
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page

LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
SUBPATH = "strides-to-shards"


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: failures are seen in the browser."""


@contextmanager
def served(
    html: Path, folder: Path, handler: type[SimpleHTTPRequestHandler] = Silent
) -> Iterator[str]:
    """Address of the site on this machine, below a path as on GitHub Pages."""
    (folder / SUBPATH).symlink_to(html)
    serve = functools.partial(handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{SUBPATH}/"
        server.shutdown()


PAINTS = """
window.course = {paint: 0, shift: 0};
const see = (type, note) => new PerformanceObserver((list) => list.getEntries().forEach(note))
  .observe({type, buffered: true});
see("largest-contentful-paint", (entry) => { course.paint = entry.startTime; });
see("layout-shift", (entry) => { if (!entry.hadRecentInput) course.shift += entry.value; });
"""


@dataclass
class Visit:
    """A page, open, and what went wrong while it loaded or was used.

    got: kind of each resource that the page asked for, by address.
    """

    page: Page
    errors: list[str] = field(default_factory=list)
    got: dict[str, str] = field(default_factory=dict)

    @property
    def paints(self) -> dict[str, float]:
        """Milliseconds to the largest paint, and how far the layout has shifted."""
        return self.page.evaluate("window.course")


@contextmanager
def visiting(browser: Browser, site: str, path: str, look: str = "light") -> Iterator[Visit]:
    """The page at `path`, loaded to the end; requests to other hosts are refused and noted."""
    context = browser.new_context(**LOOKS[look])
    context.set_default_timeout(120_000)  # a bound on what hangs
    context.add_init_script(PAINTS)
    visit = Visit(context.new_page())
    errors, page = visit.errors, visit.page

    def only_this_site(route):
        if route.request.url.startswith(site):
            route.continue_()
        else:
            errors.append(f"request to {route.request.url}")
            route.abort()

    context.route("**/*", only_this_site)
    page.on("console", lambda m: errors.append(f"console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(f"script: {error}"))
    page.on("response", lambda r: visit.got.update({r.url: r.request.resource_type}))
    page.on(
        "response", lambda r: errors.append(f"{r.status} for {r.url}") if r.status >= 400 else None
    )
    try:
        page.goto(site + path)
        page.wait_for_load_state("networkidle")
        yield visit
    finally:
        context.close()


BY_HAND = 4
UNFOLD = """
() => [...document.querySelectorAll("main details")].filter((fold) => {
  if (!fold.open) fold.querySelector(":scope > summary").click();
  const content = fold.querySelector(":scope > :not(summary)");
  return !(fold.open && content?.checkVisibility({visibilityProperty: true}));
}).map((fold) => fold.textContent.trim().slice(0, 80))
"""


def unfold(page: Page) -> list[str]:
    """Open each fold of the text, outer ones first; those that stay closed or show nothing.

    The first ones as a reader does, with the mouse; the others are clicked by a script, which takes a
    hundredth of the time.
    """
    for fold in page.locator("main details:not([open])").all()[:BY_HAND]:
        if fold.is_visible():
            fold.locator("> summary").click()
    return page.evaluate(UNFOLD)


def bare_formulas(page: Page) -> list[str]:
    """Formulas that were not set."""
    return page.evaluate(
        """() => [...document.querySelectorAll("span.math, div.math")]
             .filter((one) => !one.querySelector("mjx-container")).map((one) => one.textContent)"""
    )


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def transferred(html: Path, site: str, visit: Visit) -> int:
    """Bytes that the page and what it asked for take over the wire, besides pictures.

    Text counts as gzip makes it, as every host sends it; fonts are compressed already.
    """
    sent = 0
    for address, kind in visit.got.items():
        if kind != "image" and address.startswith(site):
            content = (html / urlsplit(address.removeprefix(site)).path).read_bytes()
            sent += len(content) if kind == "font" else len(gzip.compress(content, 6))
    return sent
