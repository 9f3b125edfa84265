"""A chapter's head, made from its notebook, and the stamp of the run that made its page."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from . import pages
from .chapters import Chapter, duration
from .language import ENGLISH, coverage, say

logger = logging.getLogger(__name__)
TAG = "course-stamp"
STAMP = """\
import json, os, platform, torch

gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
print(json.dumps({
    "torch": torch.__version__, "python": platform.python_version(), "gpu": gpu,
    "machine": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count(),
}))"""


class stamp(nodes.paragraph):
    """Where the sentence about the last run goes."""


def setup(app: Sphinx) -> None:
    """Register the directive, and the filling in of the stamp."""
    app.add_node(stamp, html=(_visit, _depart), override=True)
    app.add_directive("course-head", CourseHead)
    app.connect("doctree-read", fill_stamp)


def _visit(writer: Any, node: nodes.Element) -> None:
    writer.visit_paragraph(node)


def _depart(writer: Any, node: nodes.Element) -> None:
    writer.depart_paragraph(node)


def head_cell(chapter: Chapter) -> dict[str, Any]:
    """The Markdown cell in the place of the notebook's first."""
    source = f"# {chapter.title}\n\n{chapter.promise}\n\n:::{{course-head}}\n:::"
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def stamp_cell() -> dict[str, Any]:
    """The last code cell of a page: it says in the kernel's own words what ran."""
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": [TAG, "remove-input"]},
        "outputs": [],
        "source": STAMP,
    }


class CourseHead(SphinxDirective):
    """Objectives, needs, time, what runs where and the last run of the page's own chapter."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """A definition list."""
        chapter = pages.chapter_of_page(self.env, self.env.docname)
        if chapter is None:
            return []
        needs = f"{chapter.needs}\n\n{chapter.remarks}" if chapter.remarks else chapter.needs
        rows = [
            self._row(say("You will be able to"), *self._parsed(chapter.objectives)),
            self._row(say("You need"), *self._parsed(needs)),
            self._row(say("Time"), _said(time_of(chapter))),
            self._row(say("Runs on"), *map(_said, where_of(chapter))),
            self._row(say("Last run"), pages.fixed(stamp(classes=["course-stamp-said"]))),
        ]
        if self.config.language != ENGLISH:
            said = coverage("", "", page=self.env.docname, translatable=False)
            rows.append(self._row(say("Translation"), said))
        return [nodes.definition_list("", *rows, classes=["course-head"])]

    def _row(self, label: str, *content: nodes.Node) -> nodes.definition_list_item:
        term = pages.fixed(nodes.term("", label))
        return nodes.definition_list_item("", term, nodes.definition("", *content))

    def _parsed(self, markdown: str) -> list[nodes.Node]:
        from .markdown import to_myst

        box = nodes.container()
        lines = to_myst(markdown).split("\n")
        self.state.nested_parse(StringList(lines, self.env.docname), self.content_offset, box)
        return box.children


def _said(sentence: str) -> nodes.Element:
    return pages.fixed(nodes.paragraph("", sentence))


def time_of(chapter: Chapter) -> str:
    """Minutes to read and run, minutes for the exercises, and their sum."""
    return say(
        "{sum}: {reading} to read and run, {doing} for the {count} exercises ({points} points)",
        sum=duration(chapter.minutes),
        reading=duration(chapter.reading),
        doing=duration(chapter.doing),
        count=len(chapter.tasks),
        points=chapter.points,
    )


def where_of(chapter: Chapter) -> Iterator[str]:
    """A sentence each on CPU, ranks and GPU."""
    yield say("A CPU with two cores is enough.")
    if chapter.ranks_cells:
        yield say(
            "Ranks: {cells} cells run on several processes of your machine, {ranks} at most.",
            cells=chapter.ranks_cells,
            ranks=chapter.ranks,
        )
    if chapter.gpu:
        yield say(
            "GPU: wanted by {cells} of the cells, skipped where there is none; "
            "outputs recorded on one: {recorded}.",
            cells=chapter.gpu,
            recorded=chapter.recorded,
        )
    elif not chapter.ranks_cells:
        yield say("No cell needs a GPU.")
    for what, how, cells in chapter.wanted:
        command = f" ({how})" if how else ""
        yield say(
            "{what}: wanted by {cells} of the cells, skipped where there is none{command}.",
            what=what[0].upper() + what[1:],
            cells=cells,
            command=command,
        )


def fill_stamp(app: Sphinx, doctree: nodes.document) -> None:
    """Sphinx's ``doctree-read``: move what the stamp's cell printed to the head, as a sentence."""
    printed = [cell for cell in doctree.findall(nodes.container) if _is_stamp(cell)]
    heads = list(doctree.findall(stamp))
    ran = app.env.nb_metadata.get(app.env.docname, {}).get("exec_data") or {}
    for head in heads:
        said = printed[-1].astext() if printed else ""
        if ran.get("succeeded") and said:
            head += nodes.Text(sentence(json.loads(said), ran))
        else:
            logger.warning("no run of this chapter reached its end", location=app.env.docname)
            head += nodes.Text(say("No run has reached the end of this chapter."))
    for cell in printed:
        cell.parent.remove(cell)


def _is_stamp(node: nodes.container) -> bool:
    return "cell" in node.get("classes", []) and f"tag_{TAG}" in node["classes"]


def sentence(found: dict[str, Any], ran: dict[str, Any]) -> str:
    """What ran, where, when and how long.

    found: what the stamp's cell printed. ran: of the run that made the page, mtime and runtime.
    """
    day = datetime.fromtimestamp(ran["mtime"], tz=UTC).date().isoformat()
    device = found["gpu"] or say("CPU, {cores} cores", cores=found["cores"])
    return say(
        "{date}, from top to bottom in {seconds} s: torch {torch} on {device} ({machine}), Python {python}.",
        date=day,
        seconds=round(ran["runtime"]),
        device=device,
        **{name: found[name] for name in ("torch", "machine", "python")},
    )
