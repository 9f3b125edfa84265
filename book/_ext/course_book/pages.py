"""The site's pages by the table of contents: parts, and the chapters under them."""

import re
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.environment import BuildEnvironment

from .chapters import Chapter, chapter_at

PLANNED = re.compile(r"^(`{3,}|:{3,})\{course-planned\}\n(?P<lines>.*?)^\1", re.M | re.S)
LINE = re.compile(r"(?P<number>\d+) · (?P<title>\S.*)")
TITLE = re.compile(r"^# (?P<title>.+)$", re.M)


@dataclass(frozen=True)
class Part:
    """A part's page: its title, its chapters by page name, and the titles of those to come."""

    docname: str
    title: str
    chapters: dict[str, Chapter]
    planned: tuple[str, ...]

    @property
    def minutes(self) -> int:
        return sum(chapter.minutes for chapter in self.chapters.values())


def parts(env: BuildEnvironment) -> list[Part]:
    """Every part, in the book's order: the pages with chapters under them.

    The page that is being read depends on all of them from now on.
    """
    site_map = env.config.external_site_map
    candidates = [name for tree in site_map[site_map.root.docname].subtrees for name in tree.items]
    return [part for name in candidates if (part := part_at(env, name)) and part.chapters]


def part_at(env: BuildEnvironment, docname: str) -> Part | None:
    """The part whose page this is, or None if there is no such Markdown page."""
    path = Path(env.srcdir, f"{docname}.md")
    if not path.exists():
        return None
    env.note_dependency(str(path))
    source = path.read_text(encoding="utf-8")
    title = TITLE.search(source)
    found = PLANNED.search(source)
    site_map = env.config.external_site_map
    below = [str(name) for tree in site_map[docname].subtrees for name in tree.items]
    read = {name: chapter for name in below if (chapter := chapter_of_page(env, name))}
    lines = tuple(filter(None, found["lines"].split("\n"))) if found else ()
    return Part(docname, title["title"] if title else docname, read, lines)


def chapter_of_page(env: BuildEnvironment, docname: str) -> Chapter | None:
    """The chapter whose page this is."""
    path = Path(env.srcdir, f"{docname}.ipynb")
    if not path.exists():
        return None
    env.note_dependency(str(path))
    return chapter_at(path)


def page_link(docname: str, *children: nodes.Node) -> pending_xref:
    """A link to a page of the site."""
    return _link("doc", f"/{docname}", *children)


def anchor_link(label: str, *children: nodes.Node) -> pending_xref:
    """A link to a label anywhere on the site."""
    return _link("ref", nodes.fully_normalize_name(label), *children)


def _link(kind: str, target: str, *children: nodes.Node) -> pending_xref:
    options = {"refdomain": "std", "reftype": kind, "reftarget": target, "refexplicit": True}
    return pending_xref("", nodes.inline("", "", *children), refwarn=True, **options)


def fixed(node: nodes.Element) -> nodes.Element:
    """The element, which holds nothing to translate: its words are in the language of the build."""
    node["translatable"] = False
    return node


def inline_code(text: str) -> nodes.literal:
    return nodes.literal("", text)
