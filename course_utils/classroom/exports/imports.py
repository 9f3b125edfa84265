"""A learning system's import: the file, and what to know before importing it."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record
from course_utils.classroom.marks.text import line, number, plural

from .roster import Matches


@dataclass(frozen=True)
class Import:
    """csv: the file's text, empty where it would be of no use. notes: what to know before importing."""

    csv: str
    notes: tuple[str, ...]


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows as CSV."""
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


def maxima_differ(said: str, plan: Plan) -> list[str]:
    """A note, where a roster gives the assignment other points than the plan. said: the roster's number."""
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


def notes_on(matches: Matches) -> list[str]:
    """Who is not in the file, and why, a sentence for each reason."""
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


def with_held(one: Import, records: Iterable[Record]) -> Import:
    """The import with a note on the answers that are held: in it they count 0."""
    held = [
        f"“{line(record.student)}”: {result.key}" for record in records for result in record.held
    ]
    if not held:
        return one
    said = f"Held, and 0 points in the file until you have decided: {'; '.join(held)}."
    return replace(one, notes=(said, *one.notes))


def in_words(imports: dict[str, Import]) -> str:
    """import.md: what to know about each file before it is imported."""
    parts = ["# Before you import\n"]
    for name, one in imports.items():
        lines = list(one.notes) + (
            [] if one.csv else ["The file was not written: nobody was matched."]
        )
        parts.append(f"## {name}\n\n" + "".join(f"- {note}\n" for note in lines))
    return "\n".join(parts)
