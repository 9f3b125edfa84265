"""Points in the columns that Canvas imports.

The rules are those of the importer's own source, read in 2026:
`lib/gradebook_importer.rb` of instructure/canvas-lms (commit 00b222d). The first header cell
names "Student", the second "ID"; "SIS User ID" and "SIS Login ID" may follow, in this order; the last
before the assignments names "Section". A row whose first cell names "Points Possible" holds maxima,
and sets the assignment's. A heading `Title (123)` is assignment 123; any other is matched by title, or
becomes a new assignment. Headings that contain one of Canvas's own totals ("Final Score") are dropped.
A student is found by ID, then SIS User ID, then SIS Login ID, then by the whole name.
"""

import re
from collections.abc import Iterable

from course_utils.classroom.marks.align import by_plan
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record
from course_utils.classroom.marks.text import cell, line, number

from .imports import Import, maxima_differ, notes_on, table
from .roster import Matches, Roster, match

CANVAS_OWN = re.compile(
    r"(Current|Final) (Score|Points|Grade)|Override (Score|Grade|Status)", re.IGNORECASE
)

CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
CANVAS_RESERVED = {*CANVAS_COLUMNS, "LastName", "FirstName", "Integration ID", "Root Account"}


def canvas(plan: Plan, records: Iterable[Record], roster: Roster | None = None) -> Import:
    """canvas.csv: Canvas's five columns of a student and one of points.

    Without a roster of Canvas the columns of numbers stay empty, and Canvas looks for the names. With
    one, who is not matched is left out: Canvas would give the mark to the first of that name.
    """
    aligned = by_plan(plan, records)
    known = roster if roster and roster.system == "canvas" else None
    matches = match([record.student for record in aligned], known) if known else Matches({})
    title, notes = _canvas_heading(plan, known)
    rows = [[*CANVAS_COLUMNS, title], ["    Points Possible", "", "", "", "", number(plan.points)]]
    for record in aligned:
        person = matches.found.get(record.student, {})
        if known and not person:
            continue
        name = known.names(person)[0] if known else record.student
        numbers = [cell(person.get(column, "").strip()) for column in CANVAS_COLUMNS[1:]]
        rows.append([_canvas_name(name), *numbers, number(record.points)])
    if known is None:
        notes.append(
            "Without Canvas's own roster the columns ID, SIS User ID and SIS Login ID are empty. Canvas then "
            "looks for each student by the whole name: it asks you where it finds none, and takes the first "
            "of two people with one name. To fill the columns in, export the gradebook from Canvas (Grades, "
            "Export) and give it as `--roster FILE`."
        )
    useful = known is None or matches.found
    return Import(table(rows) if useful else "", (*notes, *notes_on(matches)))


def _canvas_name(name: str) -> str:
    """A name that Canvas does not take for its row of maxima."""
    return re.sub("points possible", "points-possible", cell(name), flags=re.IGNORECASE)


def _canvas_heading(plan: Plan, roster: Roster | None) -> tuple[str, list[str]]:
    """The assignment's column, and what to say about it."""
    title = line(plan.title)
    for heading in roster.header if roster else ():
        if re.sub(r"\s*\(\d+\)$", "", heading).casefold() == title.casefold():
            return heading, maxima_differ(roster.possible.get(heading, ""), plan) if roster else []
    safe = re.sub(r"\((\d+)\)$", r"[\1]", cell(title))
    safe = CANVAS_OWN.sub(lambda found: found[0].replace(" ", "-"), safe)
    if safe in CANVAS_RESERVED:
        safe = f"Assignment {safe}"
    notes = [
        f"Canvas will offer to make a new assignment, “{safe}”, of {number(plan.points)} points."
    ]
    if safe != title:
        notes.append(f"“{title}” would mean something else to Canvas, so the column says “{safe}”.")
    return safe, notes
