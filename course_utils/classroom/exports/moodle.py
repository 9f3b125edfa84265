"""Points in the columns that Moodle imports.

The rules are those of the importer's own source and manual, read in 2026:
`grade/import/csv/classes/load_data.php` of moodle/moodle (commit 0289d8c) and
https://docs.moodle.org/en/Grade_import. Whoever imports chooses which column names the user (ID number,
e-mail address, user name) and which is which grade item. One unknown user stops the whole import. A row
with an *empty* user keeps the user of the row before it, whose grade it then overwrites; so no such row
is ever written here. A grade above 100 is refused unless the site allows it. An assignment's grading
worksheet is another format (`mod/assign/feedback/offline/importgradeslib.php`, commit 452e36f): its
"Identifier", "Grade" and "Last modified (grade)" are kept as they were exported.
"""

from collections.abc import Iterable

from course_utils.classroom.marks.align import by_plan
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record
from course_utils.classroom.marks.text import cell, is_formula, line, number

from .imports import Import, maxima_differ, notes_on, table
from .roster import MOODLE_USERS, Matches, Roster, match


def moodle(plan: Plan, records: Iterable[Record], roster: Roster | None = None) -> Import:
    """moodle.csv: what names a user, and the points; or the assignment's grading worksheet, filled in."""
    aligned = by_plan(plan, records)
    known = roster if roster and roster.system == "moodle" else None
    matches = match([record.student for record in aligned], known) if known else Matches({})
    if known and known.is_worksheet:
        return _worksheet(plan, aligned, known, matches)
    notes = []
    if plan.points > 100:
        notes.append(
            f"Moodle refuses grades above 100 unless its administrators allow them; here the most is {number(plan.points)}."
        )
    if known is None:
        notes.append(
            "Without a roster the column Student holds the names of the submissions, as they were found. Import "
            "it only if these are Moodle's user names, ID numbers or e-mail addresses, and choose which; one "
            "unknown name stops the import. To fill in Moodle's own columns, export the grades (Export, Plain "
            "text file), or take the assignment's grading worksheet, and give it as `--roster FILE`."
        )
        rows = [(record.student, record.points) for record in aligned]
        kept = [(name, points) for name, points in rows if _can_name_a_user(name)]
        lost = [
            (name, "no user's name in Moodle can be that")
            for name, _ in rows
            if not _can_name_a_user(name)
        ]
        lines = [["Student", cell(plan.title)], *([name, number(p)] for name, p in kept)]
        return Import(table(lines), (*notes, *notes_on(Matches({}, tuple(lost)))))
    columns, found, left_out = _users_columns(known, matches)
    lines = [[*columns, cell(plan.title)]]
    for record in aligned:
        if record.student in found:
            person = found[record.student]
            lines.append([*(person[column].strip() for column in columns), number(record.points)])
    notes.append(
        f"In the import, map {' or '.join(columns) or 'nothing'} to the same field of Moodle's users, and the column "
        f"“{line(plan.title)}” to a grade item whose maximum is {number(plan.points)}."
    )
    shown = Matches(found, (*matches.lost, *left_out), matches.absent)
    return Import(table(lines) if found else "", (*notes, *notes_on(shown)))


def _can_name_a_user(text: str) -> bool:
    """Neither empty (Moodle would keep the user of the row before) nor changed by being made safe."""
    return bool(text.strip()) and not is_formula(text) and line(text) == text


def _users_columns(
    roster: Roster, matches: Matches
) -> tuple[list[str], dict[str, dict[str, str]], list[tuple[str, str]]]:
    """The columns that name every user, who is in them, and who is left out.

    If no column names everyone, the one that names most is taken.
    """
    people = matches.found
    named = {
        column: {s for s, person in people.items() if _can_name_a_user(person.get(column, ""))}
        for column in MOODLE_USERS
        if column in roster.header
    }
    best = max(named, key=lambda column: len(named[column]))
    columns = [column for column in named if named[column] >= named[best]]
    found = {s: person for s, person in people.items() if s in named[best]}
    left_out = [(s, f"the roster has no usable {best}") for s in people if s not in named[best]]
    return columns, found, left_out


def _worksheet(plan: Plan, aligned: list[Record], roster: Roster, matches: Matches) -> Import:
    """The grading worksheet with the grades of those who handed in; other rows are left out."""
    exact = {"Identifier", "Last modified (grade)"}
    rows = [list(roster.header)]
    for record in aligned:
        person = matches.found.get(record.student)
        if person:
            filled = person | {"Grade": number(record.points)}
            rows.append(
                [
                    filled.get(c, "") if c in exact else cell(filled.get(c, ""))
                    for c in roster.header
                ]
            )
    maxima = {person.get("Maximum grade", "") for person in roster.people} - {""}
    notes = [
        "This is the assignment's grading worksheet: import it there, by Upload grading worksheet."
    ]
    for said in sorted(maxima):
        notes += [
            note.replace(
                "importing changes the assignment to this number",
                "set the assignment's maximum first",
            )
            for note in maxima_differ(said, plan)
        ]
    return Import(table(rows) if matches.found else "", (*notes, *notes_on(matches)))
