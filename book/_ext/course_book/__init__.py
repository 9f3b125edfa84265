"""What turns the course's notebooks and pages into its web site: a small Sphinx extension.

``markdown``      portable Markdown of a cell → MyST
``notebooks``     a notebook as committed → the notebook a page is made of (``source-read``)
``dependencies``  a digest of everything that a notebook's outputs depend on
``directives``    the box that announces an exercise
``site``          titles, buttons and scripts of the site; images without alt text
``engine``        the only place that talks to ``course_utils``
"""

from sphinx.application import Sphinx

from . import directives, notebooks, site


def setup(app: Sphinx) -> dict[str, bool | str]:
    """Register the extension with Sphinx."""
    for part in (site, directives, notebooks):
        part.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
