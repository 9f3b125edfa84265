"""Points in the columns that Canvas and Moodle import, students matched to the systems' own roster.

The rules are those of the importers' own sources and manuals, read in 2026:

Canvas: `lib/gradebook_importer.rb` of instructure/canvas-lms (commit 00b222d). The first header cell
names "Student", the second "ID"; "SIS User ID" and "SIS Login ID" may follow, in this order; the last
before the assignments names "Section". A row whose first cell names "Points Possible" holds maxima,
and sets the assignment's. A heading `Title (123)` is assignment 123; any other is matched by title, or
becomes a new assignment. Headings that contain one of Canvas's own totals ("Final Score") are dropped.
A student is found by ID, then SIS User ID, then SIS Login ID, then by the whole name.

Moodle: `grade/import/csv/classes/load_data.php` of moodle/moodle (commit 0289d8c) and
https://docs.moodle.org/en/Grade_import. Whoever imports chooses which column names the user (ID number,
e-mail address, user name) and which is which grade item. One unknown user stops the whole import. A row
with an *empty* user keeps the user of the row before it, whose grade it then overwrites; so no such row
is ever written here. A grade above 100 is refused unless the site allows it. An assignment's grading
worksheet is another format (`mod/assign/feedback/offline/importgradeslib.php`, commit 452e36f): its
"Identifier", "Grade" and "Last modified (grade)" are kept as they were exported.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..plan import Plan
from ..record import Record
from .align import by_plan
from .text import cell, is_formula, line, number, plural

CANVAS_OWN = re.compile(
    r"(Current|Final) (Score|Points|Grade)|Override (Score|Grade|Status)", re.IGNORECASE
)
CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
CANVAS_RESERVED = {*CANVAS_COLUMNS, "LastName", "FirstName", "Integration ID", "Root Account"}
MOODLE_USERS = ("ID number", "Email address", "Username")
WORKSHEET = ("Identifier", "Grade", "Last modified (grade)")


class RosterError(ValueError):
    """A file that is no roster of either system."""


@dataclass(frozen=True)
class Roster:
    """Who is in the course, as the learning system exports it.

    system: "canvas" or "moodle". header: the columns, as they were. people: a row each, by column.
    possible: Canvas's row of maxima, by column.
    """

    system: str
    header: tuple[str, ...]
    people: tuple[dict[str, str], ...]
    possible: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Roster":
        """Raises RosterError, saying which columns were expected and which came."""
        try:
            return cls.from_text(path.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise RosterError(f"{path} is not UTF-8: {error}. Export the roster again") from error
        except RosterError as error:
            raise RosterError(f"{path}: {error}") from None

    @classmethod
    def from_text(cls, text: str) -> "Roster":
        head = text.partition("\n")[0]
        separator = max(",;\t", key=head.count)
        header, *rows = [*csv.reader(io.StringIO(text), delimiter=separator)] or [[]]
        columns = tuple(name.strip() for name in header)
        people = [dict(zip(columns, row, strict=False)) for row in rows if any(row)]
        if {"Student", "ID"} <= set(columns) or {"LastName", "FirstName", "ID"} <= set(columns):
            first = columns[0]
            special = [p for p in people if not p.get("ID", "").strip()]
            possible = next((p for p in special if "Points Possible" in p.get(first, "")), {})
            return cls("canvas", columns, tuple(p for p in people if p not in special), possible)
        if set(MOODLE_USERS) & set(columns) or {*WORKSHEET} <= set(columns):
            return cls("moodle", columns, tuple(people))
        raise RosterError(
            "expected Canvas's columns Student and ID, or one of Moodle's "
            f"{', '.join(MOODLE_USERS)} (in English); came {', '.join(columns) or 'no header'}"
        )

    @property
    def is_worksheet(self) -> bool:
        return {*WORKSHEET} <= set(self.header)

    def identifiers(self, person: dict[str, str]) -> list[str]:
        named = ("ID", "SIS User ID", "SIS Login ID", "Identifier", *MOODLE_USERS)
        found = [person[name].strip() for name in named if person.get(name, "").strip()]
        return found + [re.sub(r"\D", "", i) for i in found if i.startswith("Participant ")]

    def names(self, person: dict[str, str]) -> list[str]:
        """A person's name in both orders; the first is the one to show."""
        last = person.get("LastName") or person.get("Last name") or person.get("Surname") or ""
        first = person.get("FirstName") or person.get("First name") or ""
        whole = person.get("Student") or person.get("Full name") or f"{last}, {first}"
        before, comma, after = whole.partition(",")
        return [whole, f"{after} {before}", f"{before} {after}"] if comma else [whole]


@dataclass(frozen=True)
class Matches:
    """found: a person of the roster by student. lost: (student, why). absent: who handed in nothing."""

    found: dict[str, dict[str, str]]
    lost: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()


def plain(text: str) -> str:
    """What two spellings of one name share: no case, no double spaces, no underscores."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().replace("_", " ").split())


def squeezed(text: str) -> str:
    """A name's letters alone, as Canvas writes them in names of files."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def match(students: Sequence[str], roster: Roster) -> Matches:
    """Whom of the roster each student is.

    In this order: a submission named by an identifier of the roster; `name_number`, as learning
    systems name what they export, where number and name are one person's; the whole name. Who fits two
    people, or none, is not matched; nor are two students who fit the same person.
    """
    index = Index(roster)
    fits: dict[str, int] = {}
    lost = []
    for student in students:
        options: set[int] = next((o for o in index.candidates(student) if o), set())
        if len(options) == 1:
            fits[student] = min(options)
        else:
            why = (
                "more than one person of the roster fits"
                if options
                else "nobody in the roster fits"
            )
            lost.append((student, why))
    people = list(fits.values())
    for student, i in list(fits.items()):
        if people.count(i) > 1:
            lost.append((student, "two submissions fit one person of the roster"))
            del fits[student]
    absent = [roster.names(p)[0] for i, p in enumerate(roster.people) if i not in people]
    return Matches({s: roster.people[i] for s, i in fits.items()}, tuple(lost), tuple(absent))


class Index:
    """Places in a roster by identifier and by name."""

    def __init__(self, roster: Roster) -> None:
        self.by_id: dict[str, set[int]] = {}
        self.by_name: dict[str, set[int]] = {}
        for i, person in enumerate(roster.people):
            for identifier in roster.identifiers(person):
                self.by_id.setdefault(plain(identifier), set()).add(i)
            for name in roster.names(person):
                if squeezed(name):
                    self.by_name.setdefault(squeezed(name), set()).add(i)

    def candidates(self, student: str) -> Iterator[set[int]]:
        """The surest first. A number alone is never believed: another system may have given it."""
        name, _, number = student.rpartition("_")
        named = self.by_name.get(squeezed(name), set())
        yield self.by_id.get(plain(student), set())
        yield self.by_id.get(plain(number), set()) & named
        yield self.by_name.get(squeezed(student), set())
        if number.isdigit() and not self.by_id.get(number):
            yield named


@dataclass(frozen=True)
class Import:
    """csv: the file's text, empty where it would be of no use. notes: what to know before importing."""

    csv: str
    notes: tuple[str, ...]


def table(rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


# ---------------------------------------------------------------------------------- Canvas


def canvas(plan: Plan, records: Iterable[Record], roster: Roster | None = None) -> Import:
    """canvas.csv: Canvas's five columns of a student and one of points.

    Without a roster of Canvas the columns of numbers stay empty, and Canvas looks for the names. With
    one, who is not matched is left out: Canvas would give the mark to the first of that name.
    """
    aligned = by_plan(plan, records)
    known = roster if roster and roster.system == "canvas" else None
    matches = match([record.student for record in aligned], known) if known else Matches({})
    title, notes = canvas_heading(plan, known)
    rows = [[*CANVAS_COLUMNS, title], ["    Points Possible", "", "", "", "", number(plan.points)]]
    for record in aligned:
        person = matches.found.get(record.student, {})
        if known and not person:
            continue
        name = known.names(person)[0] if known else record.student
        numbers = [cell(person.get(column, "").strip()) for column in CANVAS_COLUMNS[1:]]
        rows.append([canvas_name(name), *numbers, number(record.points)])
    if known is None:
        notes.append(
            "Without Canvas's own roster the columns ID, SIS User ID and SIS Login ID are empty. Canvas then "
            "looks for each student by the whole name: it asks you where it finds none, and takes the first "
            "of two people with one name. To fill the columns in, export the gradebook from Canvas (Grades, "
            "Export) and give it as `--roster FILE`."
        )
    useful = known is None or matches.found
    return Import(table(rows) if useful else "", (*notes, *notes_on(matches)))


def canvas_name(name: str) -> str:
    """A name that Canvas does not take for its row of maxima."""
    return re.sub("points possible", "points-possible", cell(name), flags=re.IGNORECASE)


def canvas_heading(plan: Plan, roster: Roster | None) -> tuple[str, list[str]]:
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


def maxima_differ(said: str, plan: Plan) -> list[str]:
    try:
        differ = abs(float(said.replace(",", ".")) - plan.points) > 0.005
    except ValueError:
        return []
    if not differ:
        return []
    return [
        f"In the roster the assignment is worth {said} points, here {number(plan.points)}. Nothing was "
        "rescaled: importing changes the assignment to this number."
    ]


# ---------------------------------------------------------------------------------- Moodle


def moodle(plan: Plan, records: Iterable[Record], roster: Roster | None = None) -> Import:
    """moodle.csv: what names a user, and the points; or the assignment's grading worksheet, filled in."""
    aligned = by_plan(plan, records)
    known = roster if roster and roster.system == "moodle" else None
    matches = match([record.student for record in aligned], known) if known else Matches({})
    if known and known.is_worksheet:
        return worksheet(plan, aligned, known, matches)
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
        kept = [(name, points) for name, points in rows if can_name_a_user(name)]
        lost = [
            (name, "no user's name in Moodle can be that")
            for name, _ in rows
            if not can_name_a_user(name)
        ]
        lines = [["Student", cell(plan.title)], *([name, number(p)] for name, p in kept)]
        return Import(table(lines), (*notes, *notes_on(Matches({}, tuple(lost)))))
    columns, found, left_out = users_columns(known, matches)
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


def can_name_a_user(text: str) -> bool:
    """Neither empty (Moodle would keep the user of the row before) nor changed by being made safe."""
    return bool(text.strip()) and not is_formula(text) and line(text) == text


def users_columns(
    roster: Roster, matches: Matches
) -> tuple[list[str], dict[str, dict[str, str]], list[tuple[str, str]]]:
    """The columns that name every user, who is in them, and who is left out.

    If no column names everyone, the one that names most is taken.
    """
    people = matches.found
    named = {
        column: {s for s, person in people.items() if can_name_a_user(person.get(column, ""))}
        for column in MOODLE_USERS
        if column in roster.header
    }
    best = max(named, key=lambda column: len(named[column]))
    columns = [column for column in named if named[column] >= named[best]]
    found = {s: person for s, person in people.items() if s in named[best]}
    left_out = [(s, f"the roster has no usable {best}") for s in people if s not in named[best]]
    return columns, found, left_out


def worksheet(plan: Plan, aligned: list[Record], roster: Roster, matches: Matches) -> Import:
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


# ---------------------------------------------------------------------------------- in words


def notes_on(matches: Matches) -> list[str]:
    notes = []
    for why in dict.fromkeys(why for _, why in sorted(matches.lost, key=lambda pair: pair[1])):
        students = sorted(student for student, reason in matches.lost if reason == why)
        names = "; ".join(f"“{line(student)}”" for student in students)
        notes.append(f"Not in the file, {plural(len(students), 'submission')}: {why}: {names}.")
    if matches.absent:
        people = plural(len(matches.absent), "person", "people")
        names = "; ".join(f"“{line(name)}”" for name in matches.absent)
        notes.append(f"Not in the file, {people} of the roster: no submission: {names}.")
    return notes


def in_words(imports: dict[str, Import]) -> str:
    """import.md: what to know about each file before it is imported."""
    parts = ["# Before you import\n"]
    for name, one in imports.items():
        lines = list(one.notes) + (
            [] if one.csv else ["The file was not written: nobody was matched."]
        )
        parts.append(f"## {name}\n\n" + "".join(f"- {note}\n" for note in lines))
    return "\n".join(parts)
