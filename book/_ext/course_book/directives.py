"""The box that announces an exercise, with an anchor ``exercise-<key>``."""

from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import pages
from .language import say


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("course-exercise", CourseExercise)


class CourseExercise(SphinxDirective):
    """``{course-exercise} name`` with options ``key``, ``number``, ``stars`` and ``minutes``."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = dict.fromkeys(
        ("key", "number", "stars", "minutes"), directives.unchanged_required
    )

    def run(self) -> list[nodes.Node]:
        """An admonition whose identifier is the exercise's key, unchanged."""
        box = nodes.admonition(classes=["course-exercise"])
        label = f"exercise-{self.options['key']}"
        box["ids"].append(label)
        box["names"].append(nodes.fully_normalize_name(label))
        self.state.document.note_explicit_target(box)
        self.env.get_domain("course").note(self.options["key"], self.env.docname)  # type: ignore[attr-defined]
        box += pages.fixed(nodes.title("", "", *self._title()))
        self.state.nested_parse(self.content, self.content_offset, box)
        return [box]

    def _title(self) -> list[nodes.Node]:
        stars = self.options["stars"]
        spoken = say("difficulty {n} of {most}", n=stars.count("★"), most=len(stars))
        html = (
            f'<span class="effort"><span role="img" aria-label="{spoken}">{stars}</span>'
            f" {self.options['minutes']} min</span>"
        )
        return [
            nodes.Text(say("Exercise {number} ", number=self.options["number"])),
            nodes.literal("", self.arguments[0]),
            nodes.Text(" "),
            nodes.raw("", html, format="html"),
        ]
