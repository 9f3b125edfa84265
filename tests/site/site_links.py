"""What a page's HTML refers to, and what of it leads nowhere."""

import functools
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class References(HTMLParser):
    """Links, resources, anchors and images of one page."""

    links: list[str] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    images: list[dict[str, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element refers to."""
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "img":
            self.images.append(given)
        if tag in ("a", "area") and given.get("href"):
            self.links.append(given["href"] or "")
        elif tag == "link" and given.get("href"):
            self.resources.append(given["href"] or "")
        if given.get("src"):
            self.resources.append(given["src"] or "")


@functools.cache
def read(page: Path) -> References:
    """The page's references."""
    found = References()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def foreign(found: References) -> list[str]:
    """Resources that a browser would fetch from another host. (A link is only followed by choice.)"""
    return [url for url in found.resources if urlsplit(url).netloc]


def dead(page: Path, found: References, site: Path) -> list[str]:
    """Links and resources within the site whose file or anchor does not exist."""
    return [url for url in found.links + found.resources if _is_dead(page, url, site)]


def _is_dead(page: Path, url: str, site: Path) -> bool:
    parts = urlsplit(url)
    if parts.scheme or parts.netloc:
        return False
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file() or not target.is_relative_to(site.resolve()):
        return True
    wanted = unquote(parts.fragment)
    return bool(wanted) and target.suffix == ".html" and wanted not in read(target).anchors
