"""The page for an address that does not exist.

A host serves it for any depth of path, so it loads nothing, and finds the site's root by itself.
"""

import json
from pathlib import Path
from string import Template

from sphinx.application import Sphinx

TEMPLATE = Path(__file__).with_name("404.html")
MARK = "course-pages.json"


def setup(app: Sphinx) -> None:
    """Register the writing of the page."""
    app.connect("build-finished", write)


def write(app: Sphinx, failure: Exception | None) -> None:
    """``404.html``, and the list of pages by which it knows the root when it sees it."""
    if failure or app.builder.name != "html":
        return
    root = app.config.root_doc
    others = sorted(app.env.titles.keys() - {root}, reverse=True)  # chapters before parts
    pages = [[name, app.env.titles[name].astext()] for name in (root, *others)]
    listed = json.dumps(pages, ensure_ascii=False)
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=app.config.project, pages=listed.replace("</", "<\\/"), mark=MARK
    )
    Path(app.outdir, MARK).write_text(listed, encoding="utf-8")
    Path(app.outdir, "404.html").write_text(page, encoding="utf-8")
