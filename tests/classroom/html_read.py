"""Reads a page that the course wrote: which tags it has, what it says, what its tables hold."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

TAGS = (
    "html head meta title link style body main h1 h2 h3 p b i a bdi br code pre small span div section "
    "dl dt dd ol li table caption thead tbody tr th td details summary svg desc rect text line"
)
ALLOWED = set(TAGS.split())
VOID = {"meta", "link", "br", "rect", "line"}


@dataclass
class Table:
    caption: str = ""
    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def column(self, head: str) -> list[str]:
        return [row[self.heads.index(head)] for row in self.rows]


class Page(HTMLParser):
    """text: what a reader sees. tags, attributes: as a browser would find them. tables: in order.
    figures: by name, of the row of figures."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tables: list[Table] = []
        self.open: list[str] = []
        self.text = self.what = ""
        self.figures: dict[str, str] = {}
        self.feed(source)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr" and "tbody" in self.open:
            self.tables[-1].rows.append([])
        elif tag in ("td", "th") and "tbody" in self.open:
            self.tables[-1].rows[-1].append("")
        elif tag == "th":
            self.tables[-1].heads.append("")

    def handle_endtag(self, tag):
        if tag in VOID:  # SVG's are closed
            return
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if "caption" in self.open:
            self.tables[-1].caption += data
        elif "tbody" in self.open and {"td", "th"} & set(self.open):
            self.tables[-1].rows[-1][-1] += data
        elif "thead" in self.open:
            self.tables[-1].heads[-1] += data
        elif "dt" in self.open:
            self.what = data
        elif "dd" in self.open:
            self.figures[self.what] = self.figures.get(self.what, "") + data

    def table(self, caption: str) -> Table:
        """The table whose caption begins so."""
        return next(table for table in self.tables if table.caption.startswith(caption))


def harmless(source: str) -> Page:
    """The page, with nothing in it that acts: no script, no handler, nothing to be fetched."""
    page = Page(source)
    assert set(page.tags) <= ALLOWED, sorted(set(page.tags) - ALLOWED)
    for tag, name, value in page.attributes:
        assert not name.startswith("on") and name not in ("src", "srcset", "formaction"), (
            tag,
            name,
        )
        if name == "href":
            assert value == "data:," or value.startswith(("#", "feedback/", "https://"))
    assert source.startswith("<!doctype html>") and "default-src 'none'" in source
    assert not any(c in source for c in "\x00\x1b\u202e\u2066")
    return page
