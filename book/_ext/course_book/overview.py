"""The lists of parts, chapters and exercises, made from the notebooks."""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import engine, graph, pages
from .chapters import Chapter, Task, duration
from .markdown import to_myst

ORDER = re.compile(r"(?P<aim>[^:]+): (?P<goals>\d+(, \d+)*)")


def setup(app: Sphinx) -> None:
    """Register the directives."""
    app.add_directive("course-path", CoursePath)
    app.add_directive("course-part", CoursePart)
    app.add_directive("course-needs", CourseNeeds)
    app.add_directive("course-orders", CourseOrders)
    app.add_directive("course-planned", CoursePlanned)
    app.add_directive("course-exercises", CourseExercises)


class CoursePath(SphinxDirective):
    """The whole way: each part with its chapters, their times, and what is still to come."""

    def run(self) -> list[nodes.Node]:
        """A sentence that counts, and an ordered list."""
        found = pages.parts(self.env)
        items = [nodes.list_item("", *self._part(part)) for part in found]
        path = nodes.enumerated_list("", *items, enumtype="arabic", prefix="", suffix=".")
        return [_paragraph(counted(found)), nodes.container("", path, classes=["path"])]

    def _part(self, part: pages.Part) -> Iterator[nodes.Node]:
        title = part.title.partition(" · ")[2] or part.title
        heading = nodes.strong("", "", pages.page_link(part.docname, nodes.Text(title)))
        yield _paragraph(heading, _muted(duration(part.minutes)))
        chapters = [
            nodes.list_item(
                "",
                _paragraph(
                    pages.page_link(docname, nodes.Text(chapter.title)),
                    _muted(f"{duration(chapter.minutes)}, {len(chapter.tasks)} exercises"),
                ),
            )
            for docname, chapter in part.chapters.items()
        ]
        yield nodes.bullet_list("", *chapters, classes=["path-chapters"])
        if part.planned:
            names = "; ".join(part.planned)
            yield _paragraph(nodes.emphasis("", "To come: "), nodes.Text(f"{names}."))


def counted(found: list[pages.Part]) -> str:
    """How many parts and chapters there are, how many are written, and their time."""
    written = sum(len(part.chapters) for part in found)
    planned = sum(len(part.planned) for part in found)
    hours = f"about {round(sum(part.minutes for part in found) / 60)} hours with every exercise"
    if not planned:
        return f"{len(found)} parts, {written} chapters, {hours}."
    return (
        f"{len(found)} parts, {written + planned} chapters. {written} of them are written, {hours}; "
        "the others are planned, and carry no link until they can be read and run."
    )


class CourseNeeds(SphinxDirective):
    """What builds on what: the chapters as a drawing, each a link."""

    def run(self) -> list[nodes.Node]:
        """The drawing."""
        written = {
            chapter.number: (docname, chapter)
            for part in pages.parts(self.env)
            for docname, chapter in part.chapters.items()
        }
        needs = engine.needs(Path(self.env.srcdir, "notebooks"))
        direct = {
            number: [one for one in engine.directly_before(needs, number) if one in written]
            for number in sorted(written)
        }

        def address(number: int) -> str:
            return self.env.app.builder.get_relative_uri(self.env.docname, written[number][0])

        drawn = graph.svg(direct, lambda number: written[number][1].title, address)
        return [nodes.raw("", drawn, format="html")]


class CourseOrders(SphinxDirective):
    """For readers with one aim: ``Only GPT-2: 23``, a line each. The chapters that lead there, and hours."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """A table; refuses a line of another form, or one whose chapters are all still to come."""
        written = {
            chapter.number: (docname, chapter)
            for part in pages.parts(self.env)
            for docname, chapter in part.chapters.items()
        }
        needs = engine.needs(Path(self.env.srcdir, "notebooks"))
        rows = [self._row(line, needs, written) for line in filter(None, self.content)]
        head = ("You want", "Time", "Read in this order")
        table = _table(head, (22, 14, 64), rows)
        table["classes"] = ["course-orders"]
        return [table]

    def _row(
        self, line: str, needs: dict[int, Any], written: dict[int, tuple[str, Chapter]]
    ) -> nodes.row:
        said = ORDER.fullmatch(line)
        goals = [int(number) for number in said["goals"].split(", ")] if said else []
        order = [written[number] for number in engine.before(needs, goals) if number in written]
        if said is None or not order:
            raise self.error(f"an order is `Only GPT-2: 22, 23`, of chapters that exist: {line!r}")
        minutes = sum(chapter.minutes for _, chapter in order)
        unbroken = {
            name: chapter.title.replace(" · ", "\N{NBSP}·\N{NBSP}") for name, chapter in order
        }
        links = [[pages.page_link(name, nodes.Text(title))] for name, title in unbroken.items()]
        return _table_row(
            [
                [_paragraph(said["aim"])],
                [_paragraph(f"{round(minutes / 60)} h")],
                [_paragraph(*_separated(links))],
            ]
        )


class CoursePart(SphinxDirective):
    """On a part's page: a section for each of its chapters."""

    def run(self) -> list[nodes.Node]:
        """Sections with the title as a link, the times, the promise and the objectives."""
        part = pages.part_at(self.env, self.env.docname)
        if part is None or not part.chapters:
            raise self.error("no chapter is under this page in the table of contents")
        return [self._section(name, chapter) for name, chapter in part.chapters.items()]

    def _section(self, docname: str, chapter: Chapter) -> nodes.section:
        title = nodes.title("", "", pages.page_link(docname, nodes.Text(chapter.title)))
        section = nodes.section("", title, ids=[f"chapter-{chapter.number}"])
        facts = [
            duration(chapter.minutes),
            f"{len(chapter.tasks)} exercises, {chapter.points} points",
            runs_on(chapter),
        ]
        section += _paragraph(_muted(" · ".join(facts)))
        section += self._parsed(chapter.promise)
        section += _paragraph("You will be able to")
        section += self._parsed(chapter.objectives)
        listed = [[_exercise(task)] for task in chapter.tasks]
        section += _paragraph("Exercises: ", *_separated(listed), ".")
        return section

    def _parsed(self, markdown: str) -> list[nodes.Node]:
        box = nodes.container()
        lines = StringList(to_myst(markdown).split("\n"), self.env.docname)
        self.state.nested_parse(lines, self.content_offset, box)
        return box.children


def runs_on(chapter: Chapter) -> str:
    """The devices in a few words."""
    ranks = f", up to {chapter.ranks} ranks" if chapter.ranks_cells else ""
    gpu = f", {chapter.gpu} cells for a GPU" if chapter.gpu > 1 else ", 1 cell for a GPU"
    return "CPU" + ranks + (gpu if chapter.gpu else "")


class CoursePlanned(SphinxDirective):
    """On a part's page: the chapters to come, a line each, ``3 · Title``."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """A list; refuses a chapter that is there."""
        part = pages.part_at(self.env, self.env.docname)
        written = {chapter.number for chapter in part.chapters.values()} if part else set()
        items = []
        for line in filter(None, self.content):
            said = pages.LINE.fullmatch(line)
            if said is None or int(said["number"]) in written:
                raise self.error(f"a planned chapter is `3 · Title`, and not written yet: {line!r}")
            items.append(nodes.list_item("", _paragraph(line)))
        return [nodes.bullet_list("", *items)]


class CourseExercises(SphinxDirective):
    """Every exercise of the book in one table."""

    def run(self) -> list[nodes.Node]:
        """A sentence that counts, and the table; a script adds a filter above it."""
        found = [
            (docname, chapter, task)
            for part in pages.parts(self.env)
            for docname, chapter in part.chapters.items()
            for task in chapter.tasks
        ]
        tasks = [task for *_, task in found]
        said = (
            f"{len(tasks)} exercises, {sum(task.points for task in tasks)} points, "
            f"{duration(sum(task.minutes for task in tasks))}."
        )
        place = nodes.container(classes=["course-filter-place"])
        return [_paragraph(said), place, self._table(found)]

    def _table(self, found: list[tuple[str, Chapter, Task]]) -> nodes.table:
        head = ("Exercise", "Chapter", "Difficulty", "Minutes", "Points", "Checked besides values")
        widths = (24, 18, 10, 8, 8, 32)
        by_key = {task.key: task for *_, task in found}
        rows = [self._row(*one, by_key) for one in found]
        table = _table(head, widths, rows)
        table["classes"] = ["course-exercises"]
        return table

    def _row(
        self, docname: str, chapter: Chapter, task: Task, by_key: dict[str, Task]
    ) -> nodes.row:
        besides = _with_code("; ".join(task.besides) or "–")
        links = [
            [pages.anchor_link(by_key[key].anchor, nodes.Text(by_key[key].number))]
            for key in engine.built_on()[task.key]
            if key in by_key
        ]
        built = [_paragraph("builds on ", *_separated(links))] if links else []
        row = _table_row(
            [
                [_paragraph(nodes.Text(f"{task.number} "), _exercise(task)), *built],
                [_paragraph(pages.page_link(docname, nodes.Text(chapter.title)))],
                [_paragraph(_stars(task))],
                [_paragraph(str(task.minutes))],
                [_paragraph(str(task.points))],
                [_paragraph(*besides)],
            ]
        )
        checks = [f"checks-{kind}" for kind in task.kinds] or ["checks-nothing"]
        row["classes"] = [f"difficulty-{task.difficulty}", f"chapter-{chapter.number}", *checks]
        return row


def _with_code(text: str) -> list[nodes.Node]:
    parts = text.split("`")
    made = [
        pages.inline_code(part) if at % 2 else nodes.Text(part) for at, part in enumerate(parts)
    ]
    return [node for node in made if node.astext()]


def _table(head: Sequence[str], widths: Sequence[int], rows: Iterable[nodes.row]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=w) for w in widths), cols=len(widths))
    group += nodes.thead("", _table_row([_paragraph(label)] for label in head))
    group += nodes.tbody("", *rows)
    return nodes.table("", group)


def _table_row(cells: Iterable[list[nodes.Node]]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", *cell) for cell in cells))


def _exercise(task: Task) -> nodes.Node:
    return pages.anchor_link(task.anchor, pages.inline_code(task.names))


def _stars(task: Task) -> nodes.raw:
    spoken = escape(f"difficulty {task.difficulty} of 3", quote=True)
    return nodes.raw(
        "", f'<span role="img" aria-label="{spoken}">{task.stars}</span>', format="html"
    )


def _muted(text: str) -> nodes.inline:
    return nodes.inline("", text, classes=["muted"])


def _paragraph(*content: nodes.Node | str) -> nodes.Element:
    children = [nodes.Text(part) if isinstance(part, str) else part for part in content]
    spaced = [children[0]]
    for before, child in pairwise(children):
        if isinstance(child, nodes.inline) and not isinstance(before, nodes.Text):
            spaced.append(nodes.Text(" "))
        spaced.append(child)
    return pages.fixed(nodes.paragraph("", "", *spaced))


def _separated(groups: list[list[nodes.Node]]) -> Iterator[nodes.Node]:
    for at, group in enumerate(groups):
        if at:
            yield nodes.Text(", ")
        yield from group
