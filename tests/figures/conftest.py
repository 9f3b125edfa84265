"""The figures are tested in a real browser, on pages made by the tests: no book, no server."""

from tests.browser import browser, open_page

__all__ = ["browser", "open_page"]
