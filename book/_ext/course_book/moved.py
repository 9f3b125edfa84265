"""The lists of the page *What moved*, from the rows that the suite runs."""

import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DATA = "book/what_moved.toml"
SAYS = {"gone": "gone", "raises": "raises", "warns": "warns", "silent": "works"}


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("course-moved", Moved)


class Moved(SphinxDirective):
    """``{course-moved} title``: the list of one topic of the data."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """One entry for each old name of the topic."""
        root = Path(self.env.srcdir)
        self.env.note_dependency(str(root / DATA))
        topics = tomllib.loads((root / DATA).read_text(encoding="utf-8"))["topic"]
        found = [topic for topic in topics if topic["title"] == self.arguments[0]]
        if not found:
            raise self.error(f"{DATA} has no topic {self.arguments[0]!r}")
        holder = nodes.container(classes=["course-moved"])
        lines = StringList(entries(found[0]["row"], root).split("\n"), source=DATA)
        self.state.nested_parse(lines, self.content_offset, holder)
        return [holder]


def entries(rows: list[dict[str, Any]], root: Path) -> str:
    """Markdown for the rows, a definition list; each links the chapter that shows it."""
    return "\n\n".join(_entry(row, root) for row in rows)


def _entry(row: dict[str, Any], root: Path) -> str:
    why = row["why"]
    if "chapter" in row:
        (notebook,) = (root / "notebooks").glob(f"[0-9][0-9]_{row['chapter']}.ipynb")
        why += f" [Chapter {int(notebook.name[:2])}](../notebooks/{notebook.name})."
    return f"{_code(row['old'])} → {_code(row['new'])}\n: **{SAYS[row['how']]}.** {why}"


def _code(text: str) -> str:
    """Code, unless the text marks by itself what is code in it."""
    return text if "`" in text else f"`{text}`"
