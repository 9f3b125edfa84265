"""Whose is a file? What names the student, in the layouts that are known:

Plain
    `ada.ipynb` (the file's name), `ada/…` or `ada.zip` (a folder or a zip a student).
nbgrader
    `submitted/<student>/<assignment>/*.ipynb`, given as `submitted`. The time is that of
    `timestamp.txt`.
Canvas, "Download submissions"
    One flat zip: `<name>_<user id>_<file id>_<file name>`, with `_LATE` after the name of a late one,
    the name in small letters without blanks and commas; anonymous: `anon_<id>_<file id>_<file name>`.
    The student is `<name>_<user id>`. How late it was, Canvas does not say. A name has a letter and an
    id does not begin with 0: `2026_12_01_ada.ipynb` is a date, and the student's name is all of it.
Moodle, "Download all submissions"
    Folders `<full name>_<participant number>_assignsubmission_file` (older ones end in `_`), or flat
    files that begin so. The student is `<full name>_<participant number>`; the number is the one of
    the grading worksheet's "Participant …".
Gradescope, "Export submissions"
    `assignment_<n>_export/submission_<n>/…` beside a `submission_metadata.yml` that names the
    submitters of each. The student is `<name>_<student id>`, or with the e-mail address where there
    is no id; a group's submission counts for each of them.
GitHub Classroom, `gh classroom clone student-repos`
    `<assignment>-submissions/<assignment>-<login>/…`. The student is the login.

A single folder around all of that is seen through: always in a zip, and in a folder where it has one
of the names above or where two of its folders hold notebooks.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath

from .folders_and_zips import File, shown

SMALL_TEXT = 10 * 10**6
CANVAS = re.compile(
    r"(?P<name>[^_]*[^\W\d_].*?)(?P<late>_LATE)?_(?P<id>[1-9]\d*)_[1-9]\d*_(?P<file>.+)"
)
ANONYMOUS = re.compile(r"(?P<name>anon)(?P<late>_LATE)?_(?P<id>\w+?)_\d+_(?P<file>.+)")
MOODLE = re.compile(r"(?P<name>.+)_(?P<id>\d+)_assignsubmission_[a-z]+_?(?P<file>.*)", re.DOTALL)
GRADESCOPE = re.compile(r"submission_\d+")
WRAPPER = re.compile(r"assignment_\d+_export|(?P<slug>.+)-submissions|submitted")
METADATA = "submission_metadata.yml"
TIMESTAMP = "timestamp.txt"
"""nbgrader's; anybody can write one, so a time that the learning system gives goes before it."""


@dataclass(frozen=True)
class Owner:
    """student: the name as it is kept. said: as it stands there. late: does it say so, too?

    one_of_many: does a name in a flat list say it, of which another file may have the same?
    """

    student: str
    said: str
    late: bool = False
    one_of_many: bool = False

    @classmethod
    def named(cls, said: str, **more: bool) -> "Owner":
        return cls(_student_name(said), said, **more)


def owners(
    one: File, slug: str, submitters: dict[str, tuple[tuple[str, ...], datetime | None]]
) -> list[Owner]:
    """Whose file is this? Nobody's, one student's, or those of a group."""
    first, *rest = one.path.parts
    if not rest:
        if first == METADATA:
            return []
        for form in (ANONYMOUS, MOODLE, CANVAS):
            if match := form.fullmatch(first):
                late = bool(match.groupdict().get("late"))
                return [Owner.named(f"{match['name']}_{match['id']}", late=late, one_of_many=True)]
        return [Owner.named(one.path.stem)] if one.is_notebook or one.is_zip else []
    if names := submitters.get(first, ((), None))[0]:
        return [Owner.named(name) for name in names]
    if match := MOODLE.fullmatch(first):
        return [Owner.named(f"{match['name']}_{match['id']}")]
    return [Owner.named(first.removeprefix(slug) or first)]


def slug_of(folder: str) -> str:
    """What the names of repositories begin with, that `gh classroom` has put into this folder."""
    match = WRAPPER.fullmatch(folder)
    return f"{match['slug']}-" if match and match["slug"] else ""


def unwrapped(files: list[File], slug: str, zipped: bool) -> tuple[str, list[File]]:
    """The files without a single folder around them all; what a repository's name begins with."""
    while True:
        tops = {one.path.parts[0] for one in files if len(one.path.parts) > 1}
        loose = [one for one in files if len(one.path.parts) == 1]
        if len(tops) != 1 or any(one.is_notebook or one.is_zip for one in loose):
            return slug, files
        (top,) = tops
        students = MOODLE.fullmatch(top) or GRADESCOPE.fullmatch(top)
        wrapper = WRAPPER.fullmatch(top)
        below = {one.path.parts[1] for one in files if len(one.path.parts) > 2 and one.is_notebook}
        if students or not (wrapper or zipped or len(below) > 1):
            return slug, files
        slug = slug_of(top) or slug
        files = loose + [
            replace(one, path=PurePosixPath(*one.path.parts[1:]))
            for one in files
            if len(one.path.parts) > 1
        ]


def gradescope_submitters(
    files: Iterable[File],
) -> dict[str, tuple[tuple[str, ...], datetime | None]]:
    """Gradescope's `submission_metadata.yml`: folder → names of the submitters, and when.

    The few lines that matter are read by their form, which is that of Ruby's YAML.
    """
    text = next((one for one in files if str(one.path) == METADATA), None)
    if text is None or text.problem:
        return {}
    found: dict[str, tuple[list[dict[str, str]], datetime | None]] = {}
    people: list[dict[str, str]] = []
    for line in text.read(SMALL_TEXT).decode("utf-8", "replace").splitlines():
        if match := re.fullmatch(r"(submission_\d+):\s*", line):
            people = []
            found[match[1]] = (people, None)
        elif match := re.fullmatch(r"  :created_at: (.+)", line):
            last = next(reversed(found), None)
            if last:
                found[last] = (people, _time_from(match[1]))
        elif match := re.fullmatch(r"  (- | {2}):(name|sid|email): *(.*?) *", line):
            if match[1] == "- ":
                people.append({})
            if people and match[2] not in people[-1]:
                people[-1][match[2]] = match[3].strip("'\"")
    return {
        folder: (tuple(map(_submitter, people)), when) for folder, (people, when) in found.items()
    }


def _submitter(person: dict[str, str]) -> str:
    number = person.get("sid") or person.get("email")
    return _student_name("_".join(filter(None, (person.get("name"), number))))


def _student_name(text: str) -> str:
    """The name as it is kept: composed characters, no control characters, no blanks around it."""
    return shown(text).strip() or "(no name)"


def time_in(one: File) -> datetime | None:
    """The time that a file of nbgrader's holds; None: it holds none."""
    return _time_from(one.read(200).decode("utf-8", "replace"))


def _time_from(text: str) -> datetime | None:
    """A time as nbgrader and Gradescope write it; without a zone it is UTC. None: it is no time."""
    text = re.sub(r"(\.\d{6})\d+", r"\1", text.strip().strip("'\""))
    text = re.sub(r" ?(UTC|Z)$", "+00:00", text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
