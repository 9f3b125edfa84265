"""Titles, buttons and scripts of the site, and a check that images say what they show."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging

from . import engine

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> None:
    """Register the site's settings and checks."""
    app.connect("config-inited", configure)
    app.connect("builder-inited", silence_thebe)
    app.connect("doctree-resolved", require_alt_text)


def configure(app: Sphinx, config: Config) -> None:
    """Take titles and the repository's address from the course's settings."""
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
