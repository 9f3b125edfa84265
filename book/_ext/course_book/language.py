"""The site in its languages: the extension's own words, the switch, and what is not translated yet.

``say("Time")`` looks the English up in ``book/locale/<language>/interface.po``; a text that is not
there is shown in English.
"""

import posixpath
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

BOOK = Path(__file__).parents[2]
LOCALE = BOOK / "locale"
ENGLISH = "en"
NAMES = {"zh_CN": "简体中文", ENGLISH: "English"}
_words: dict[str, str] = {}


class coverage(nodes.paragraph):
    """Where the sentence about the share of translated paragraphs goes. page: whose it is."""


def setup(app: Sphinx) -> None:
    """Register the catalogue, the switch and the marks."""
    app.add_node(coverage, html=(_visit, _depart), override=True)
    app.add_directive("course-coverage", CourseCoverage)
    app.connect("config-inited", choose)
    app.connect("html-page-context", switch)
    app.connect("doctree-read", mark, priority=400)
    app.connect("doctree-read", out_of_this_language)
    app.connect("doctree-resolved", fill_coverage)
    app.connect("missing-reference", in_the_english_site)


def choose(_app: Sphinx, config: Config) -> None:
    """Take the words of the build's language."""
    _words.clear()
    _words.update(catalogue(config.language))
    config.templates_path.append(str(BOOK / "_templates"))


def catalogue(language: str) -> dict[str, str]:
    """English → the language's words; empty for English."""
    file = LOCALE / language / "interface.po"
    if not file.exists():
        return {}
    from babel.messages.pofile import read_po

    with file.open("rb") as opened:
        return {str(m.id): str(m.string) for m in read_po(opened) if m.id and m.string}


def say(text: str, **values: object) -> str:
    """The text in the language of the build, with the values put in."""
    return _words.get(text, text).format(**values)


def pages_in(language: str) -> dict[str, str]:
    """English page → the language's page, for all that the language has."""
    toc = yaml.safe_load((LOCALE / language / "_toc.yml").read_text(encoding="utf-8"))
    return {"book/index": toc["root"]} | {e["file"]: e["file"] for e in toc["chapters"]}


def languages() -> list[str]:
    """Languages besides English that have a table of contents."""
    return sorted(toc.parent.name for toc in LOCALE.glob("*/_toc.yml"))


def switch(
    app: Sphinx, page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """The link to the same page in the other language, for the page's template."""
    here = app.config.language
    up = "../" * page.count("/")
    if here == ENGLISH:
        found = [(lang, pages_in(lang)[page]) for lang in languages() if page in pages_in(lang)]
        targets = [(lang, f"{up}{lang}/{other}.html") for lang, other in found]
    else:
        english = {other: original for original, other in pages_in(here).items()}
        targets = [(ENGLISH, f"{up}../{english[page]}.html")] if page in english else []
    context["course_languages"] = [
        {"href": href, "tag": lang.replace("_", "-"), "name": NAMES[lang]} for lang, href in targets
    ]


# A page that is translated in part


def mark(app: Sphinx, doctree: nodes.document) -> None:
    """Say of each paragraph left in English that it is English; send links out of this small site."""
    if app.config.language == ENGLISH or app.env.docname == app.config.root_doc:
        return
    said = [node for node in doctree.findall(is_prose) if "translated" in node]
    for node in said:
        if not node["translated"]:
            node["classes"] += ["untranslated", "language-en"]  # docutils writes lang="en"
    for link in list(doctree.findall(download_reference)):
        if link["reftarget"].endswith(".ipynb"):
            target = link["reftarget"].lstrip("./").removesuffix(".ipynb")
            link.replace_self(_english(app.env, f"notebooks/{Path(target).name}", "", link))
    kept = app.env.metadata.setdefault(app.env.docname, {})
    kept["course_coverage"] = sum(node["translated"] for node in said), len(said)


def out_of_this_language(app: Sphinx, doctree: nodes.document) -> None:
    """Send a link to a chapter that this language does not have to the English one."""
    if app.config.language == ENGLISH and app.builder.name != "gettext":
        return
    for link in list(doctree.findall(pending_xref)):
        page = str(link["reftarget"])
        if link.get("refdomain") == "doc" and page not in app.env.found_docs and _is_page(page):
            link.replace_self(_english(app.env, page, link.get("reftargetid") or "", link))


def _is_page(path: str) -> bool:
    """Is it a page of the English site?"""
    return any((BOOK.parent / f"{path}{kind}").exists() for kind in (".md", ".ipynb"))


def is_prose(node: nodes.Node) -> bool:
    """Is it text that a translator writes: no formula, no picture, not code alone?"""
    if not isinstance(node, nodes.TextElement) or isinstance(node, nodes.math_block):
        return False
    return any(not isinstance(child, nodes.literal) for child in node.children)


def in_the_english_site(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, _content: nodes.Element
) -> nodes.Element | None:
    """A link to a page or an exercise that only the English site has."""
    if app.config.language == ENGLISH:
        return None
    target = str(node["reftarget"]).lstrip("#")
    if target.startswith("exercise-"):
        chapter = target.removeprefix("exercise-").partition(".")[0]
        file = next((BOOK.parent / "notebooks").glob(f"??_{chapter}.ipynb"), None)
        return _english(env, f"notebooks/{file.stem}", target, node) if file else None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(env.docname), target.lstrip("/")))
    return _english(env, path, "", node) if _is_page(path) else None


def _english(env: BuildEnvironment, page: str, anchor: str, link: nodes.Element) -> nodes.reference:
    up = "../" * env.docname.count("/")
    address = f"{up}../{page}.html" + (f"#{anchor}" if anchor else "")
    return nodes.reference("", "", *link.children, internal=False, refuri=address)


class CourseCoverage(SphinxDirective):
    """How much of each page of this language is translated."""

    def run(self) -> list[nodes.Node]:
        """A line for each page, empty in English."""
        language = self.config.language
        found = pages_in(language).values() if language != ENGLISH else ()
        others = [page for page in found if page != self.env.docname]
        return [coverage("", "", page=page, translatable=False) for page in others]


def fill_coverage(app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    """Sphinx's ``doctree-resolved``: every page has been read, so that its share is known."""
    for line in doctree.findall(coverage):
        done, total = app.env.metadata[line["page"]]["course_coverage"]
        title = app.env.titles[line["page"]].astext()
        said = "{title}: {done} of {total} paragraphs are translated."
        line += nodes.Text(say(said, title=title, done=done, total=total))


def _visit(writer: Any, node: nodes.Element) -> None:
    writer.visit_paragraph(node)


def _depart(writer: Any, node: nodes.Element) -> None:
    writer.depart_paragraph(node)
