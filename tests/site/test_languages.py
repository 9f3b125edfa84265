"""The pages in another language: catalogues, coverage, marks, and the switch that keeps the page."""

import ast
import re
import string
import sys
from pathlib import Path

import pytest
import site_links as links
from babel.messages.pofile import read_po
from playwright.sync_api import Browser
from site_axe import violations
from site_build import ROOT
from site_visit import overflow, unfold, visiting
from test_pages import check_dark, check_narrow

from course_utils.authoring import languages
from course_utils.authoring.counts import count

sys.path.append(str(ROOT / "book" / "_ext"))
from course_book.language import NAMES, catalogue, pages_in

PAGES = [(name, page) for name in languages.languages() for page in languages.pages(name)]
VISITS = [(*one, "light") for one in PAGES]
VISITS += [(*one, look) for one in PAGES[:1] for look in ("dark", "narrow")]
"""Most pages turn narrow and dark when they are open, as in test_pages."""
EXTENSION = ROOT / "book" / "_ext" / "course_book"
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def said_by_the_extension() -> set[str]:
    """Texts that the extension looks up: the constants among the arguments of `say`."""
    found = set()
    for file in EXTENSION.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "say":
                found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return found


def messages(language: str, page: str) -> dict[str, str]:
    """English → translation, as committed."""
    with languages.catalogue(language, page).open("rb") as opened:
        return {str(m.id): str(m.string) for m in read_po(opened) if m.id}


def fields(text: str) -> set[str]:
    return {name for _, name, *_ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("language", languages.languages())
def test_the_interface_is_translated(language: str) -> None:
    words = catalogue(language)
    assert said_by_the_extension() <= set(words)
    assert {text: fields(text) for text in words} == {
        text: fields(translated) for text, translated in words.items()
    }
    assert language in NAMES


@pytest.mark.parametrize(("language", "page"), PAGES)
def test_a_translation_keeps_links_and_code(language: str, page: str) -> None:
    for english, translated in messages(language, page).items():
        if translated:
            assert sorted(LINK.findall(translated)) == sorted(LINK.findall(english)), english
            assert sorted(CODE.findall(translated)) == sorted(CODE.findall(english)), english


def test_catalogues_extract_cleanly(tmp_path: Path) -> None:
    """Every paragraph of the pages is in a template; the build says nothing."""
    for language in languages.languages():
        made = languages.extract(language, tmp_path)
        for page in languages.pages(language):
            with (made / f"{page}.pot").open("rb") as opened:
                template = {str(m.id) for m in read_po(opened) if m.id}
            known = messages(language, page)
            stale = template - set(known)
            assert not stale, f"python -m course_utils.authoring.languages update: {stale}"
            done = sum(bool(known[text]) for text in template)
            count("messages translated", done)
            count("messages to translate", len(template) - done)


@pytest.mark.parametrize(("language", "page"), PAGES)
def test_the_page_counts_what_is_translated(html: Path, language: str, page: str) -> None:
    text = (html / language / f"{page}.html").read_text(encoding="utf-8")
    head = text[text.index("course-head") :].partition("</dl>")[0]
    *_, total, done = re.findall(r"\d+", re.sub(r"<[^>]*>", "", head))
    marked = len(re.findall(r'class="[^"]*\buntranslated\b[^"]*"[^>]*lang="en"', text))
    marked += len(re.findall(r'lang="en"[^>]*class="[^"]*\buntranslated\b', text))
    assert int(total) - int(done) == marked
    assert int(done) > 0.9 * int(total)
    assert f'lang="{language.replace("_", "-")}"' in text or f'lang="{language}"' in text


@pytest.mark.parametrize("language", languages.languages())
def test_links_of_the_small_site(html: Path, language: str) -> None:
    for page in pages_in(language).values():
        file = html / language / f"{page}.html"
        found = links.read(file)
        assert links.dead(file, found, html) == []
        assert links.foreign(found) == []


@pytest.mark.parametrize(("language", "page", "look"), VISITS)
def test_the_switch_keeps_the_page(
    site: str, browser: Browser, language: str, page: str, look: str
) -> None:
    with visiting(browser, site, f"{page}.html", look) as visit:
        visit.page.locator(".course-language").click()
        visit.page.wait_for_url(f"**/{language}/{page}.html")
        visit.page.wait_for_load_state("networkidle")
        assert unfold(visit.page) == []
        assert overflow(visit.page) <= 0
        if look != "narrow":
            assert violations(visit.page, contrast_only=look == "dark") == []
        if look == "light":
            check_narrow(visit)
            check_dark(visit)
        visit.page.evaluate("scrollTo(0, 0)")
        visit.page.locator(".course-language").click()
        visit.page.wait_for_url(f"{site}{page}.html")
        assert visit.errors == []
        count("browser checks", 5)
