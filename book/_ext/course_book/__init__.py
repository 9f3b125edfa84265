"""What turns the course's notebooks and pages into its web site: a small Sphinx extension.

``markdown``      portable Markdown of a cell → MyST
``notebooks``     a notebook as committed → the notebook a page is made of (``source-read``)
``ahead``         notebooks that the cache lacks, run two at a time while the other pages are read
``directives``    the box that announces an exercise
``api``           the package's names, from its sources
``moved``         the lists of what moved, from the rows that the suite runs
``chapters``      what a chapter says of itself, read from its notebook
``pages``         parts and chapters by the table of contents
``heads``         a chapter's head and the stamp of its last run
``overview``      the lists of parts, chapters and exercises
``missing``       the page for an address that does not exist
``symbols``       exercises in the search index
``code``          colours and lines of code on the page
``language``      the extension's own words, in the language of the build
``site``          titles, buttons and scripts of the site; images without alt text
``engine``        the only place that talks to ``course_utils``
"""

import hashlib
from pathlib import Path

from sphinx.application import Sphinx

from . import (
    ahead,
    api,
    code,
    directives,
    heads,
    language,
    missing,
    moved,
    notebooks,
    overview,
    site,
    symbols,
)


def setup(app: Sphinx) -> dict[str, bool | str]:
    """Register the extension with Sphinx."""
    parts = (
        site,
        language,
        directives,
        api,
        moved,
        notebooks,
        ahead,
        heads,
        overview,
        symbols,
        code,
        missing,
    )
    for part in parts:
        part.setup(app)
    # Sphinx reads a page again when a setting has changed; that these files have changed is one.
    app.add_config_value("course_extension", _digest(), "env", [str])
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.*"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
