"""Who is in the course, as a learning system exports it, and whom of them each student is."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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


def _plain(text: str) -> str:
    """What two spellings of one name share: no case, no double spaces, no underscores."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().replace("_", " ").split())


def _squeezed(text: str) -> str:
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
                self.by_id.setdefault(_plain(identifier), set()).add(i)
            for name in roster.names(person):
                if _squeezed(name):
                    self.by_name.setdefault(_squeezed(name), set()).add(i)

    def candidates(self, student: str) -> Iterator[set[int]]:
        """The surest first. A number alone is never believed: another system may have given it."""
        name, _, number = student.rpartition("_")
        named = self.by_name.get(_squeezed(name), set())
        yield self.by_id.get(_plain(student), set())
        yield self.by_id.get(_plain(number), set()) & named
        yield self.by_name.get(_squeezed(student), set())
        if number.isdigit() and not self.by_id.get(number):
            yield named
