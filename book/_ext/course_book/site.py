"""Titles, buttons and scripts of the site, and a check that images say what they show."""

import functools
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging

from . import engine
from .language import say

TOGGLE = re.compile(r"(?P<link><a [^>]*>(?P<title>.*?)</a>\s*<details[^>]*>\s*)<summary>", re.S)
ICONS = "// The icons come from the style sheet's font: drawing them again would cost half a megabyte.\n"

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> None:
    """Register the site's settings and checks."""
    app.connect("config-inited", configure)
    app.connect("builder-inited", silence_thebe)
    app.connect("doctree-resolved", require_alt_text)
    app.connect("html-page-context", add_filter)
    app.connect("html-page-context", name_toggles, priority=900)  # after the theme's own
    app.connect("build-finished", lighten)


def configure(app: Sphinx, config: Config) -> None:
    """Take titles and the repository's address from the course's settings; order what a search finds."""
    from course_utils.settings import settings

    config.project = config.html_title = settings.title
    options = config.html_theme_options
    options.update(repository_options(settings.repository))
    options.setdefault("logo", {})["text"] = settings.title
    options["extra_footer"] = f"{settings.title} · edition {settings.edition}"
    if settings.repository:
        app.tags.add("published")  # for `only` in pages
    build = Path(app.srcdir) / "_build"
    # One cache for the site and its tests, wherever they write their pages.
    config.nb_execution_cache_path = config.nb_execution_cache_path or str(build / ".jupyter_cache")
    config.html_search_scorer = str(Path(__file__).with_name("search_order.js"))
    engine.prepare_kernels()


def repository_options(repository: str) -> dict[str, Any]:
    """Theme options that need the repository's address: none of them while it is empty."""
    if not repository:
        return {}
    on_github = urlsplit(repository).hostname == "github.com"
    colab = {"colab_url": "https://colab.research.google.com"} if on_github else {}
    return {
        "repository_url": repository.removesuffix("/").removesuffix(".git"),
        "repository_branch": "main",
        "use_repository_button": True,
        "use_issues_button": True,
        "use_edit_page_button": True,
        "launch_buttons": {"notebook_interface": "jupyterlab"} | colab,
    }


def silence_thebe(app: Sphinx) -> None:
    """Disconnect sphinx-thebe: Jupyter Book always loads it, and its script fails on each page."""
    for name, listeners in app.events.listeners.items():
        app.events.listeners[name] = [
            listener
            for listener in listeners
            if not listener.handler.__module__.startswith("sphinx_thebe")
        ]


def require_alt_text(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Warn, which fails a strict build, of each image that has no alternative text."""
    for image in doctree.findall(nodes.image):
        if not image.get("alt", "").strip():
            logger.warning(
                "an image has no alternative text: %s",
                image["uri"],
                location=docname,
                type="course",
            )


def add_filter(
    app: Sphinx,
    _page: str,
    _template: str,
    _context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """The script that filters the table of exercises, on its page alone."""
    tables = doctree.findall(nodes.table) if doctree else ()
    if any("course-exercises" in table["classes"] for table in tables):
        app.add_js_file("exercises.js", loading_method="defer")


def name_toggles(
    _app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object
) -> None:
    """Give the arrows of the navigation a name, which the theme leaves to the eye."""
    draw: Callable[..., Any] | None = context.get("generate_toctree_html")
    if draw:
        context["generate_toctree_html"] = functools.partial(_drawn, draw)


def _drawn(draw: Callable[..., Any], kind: str, *given: Any, **options: Any) -> Any:
    """What the theme draws; for the side bar as text, with a label on each ``summary``."""
    navigation = draw(kind, *given, **options)
    return TOGGLE.sub(_named, str(navigation)) if kind == "sidebar" and navigation else navigation


def _named(found: re.Match[str]) -> str:
    title = re.sub(r"<[^>]*>|\s+", " ", found["title"]).strip()
    label = escape(say("Chapters of {part}", part=title), quote=True)
    return f'{found["link"]}<summary aria-label="{label}">'


def lighten(app: Sphinx, failure: Exception | None) -> None:
    """Empty the theme's script that draws each icon as SVG, and leave out its source maps."""
    static = Path(app.outdir, "_static")
    script = static / "scripts" / "fontawesome.js"
    if failure is None and script.exists():
        script.write_text(ICONS, encoding="utf-8")
        for source_map in static.rglob("*.map"):
            source_map.unlink()
