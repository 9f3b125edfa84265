"""Submissions as they come: a folder of notebooks, of student folders, or a zip → their code cells.

Everything that gives the same student is one submission. Two names that are only written differently (a
blank at the end, an accent as a character of its own) become one with a note; where their answers
differ, nothing is graded until somebody has said whose they are. Other files at the top that name no
student are listed as left out. Nothing in a notebook is run or parsed as Python here.
"""

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path, PurePosixPath

from course_utils.classroom.marks.text import few
from course_utils.source.cells import DECORATED

from . import folders_and_zips
from .cells import cells_of
from .folders_and_zips import (
    File,
    NoSubmissions,
    Unreadable,
    entries,
    inside,
    listed,
    on_disk,
    shown,
    whole,
)
from .handed_out import ANY, HandedOut
from .owners import (
    METADATA,
    TIMESTAMP,
    Owner,
    gradescope_submitters,
    owners,
    slug_of,
    time_in,
    unwrapped,
)

MOST_NOTEBOOKS = 50


@dataclass(frozen=True)
class Submission:
    """What one student handed in. notebooks: in order of name. problem: why there is none."""

    student: str
    notebooks: tuple[File, ...] = ()
    submitted: datetime | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(shown(str(one.path)) for one in self.notebooks)


@dataclass(frozen=True)
class Content:
    """What was read of a submission. cells: the sources of its code cells, notebook by notebook.

    digest: SHA-256 of its notebooks. readable: was there a notebook at all that could be read?
    problem: what could not be read, and why.
    """

    digest: str
    cells: tuple[str, ...] = ()
    readable: bool = False
    problem: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """submissions: in order of the students' names. left_out: files that belong to nobody, and why."""

    submissions: tuple[Submission, ...]
    left_out: tuple[str, ...] = ()


def find(place: Path, handed_out: HandedOut = ANY) -> Found:
    """The submissions in a folder, a zip, or one notebook.

    handed_out: which names of notebooks are those of the assignment. Raises NoSubmissions, saying what
    was looked for, where there is none, and where two files of one name have different answers.
    """
    if place.is_dir():
        files, left_out = listed(place)
    elif zipfile.is_zipfile(place):
        files, left_out = entries(place, zipfile.ZipFile(place))
    elif place.is_file() and place.suffix.lower() == ".ipynb":
        files, left_out = [on_disk(place, PurePosixPath(place.name))], []
    elif place.exists():
        raise NoSubmissions(f"{place} is no folder, no zip and no notebook")
    else:
        raise NoSubmissions(f"there is no {place}")
    slug, files = unwrapped(files, slug_of(place.stem), zipped=place.is_file())
    submitters = gradescope_submitters(files)
    by_student: dict[str, list[tuple[File, Owner]]] = {}
    for file in files:
        whose = owners(file, slug, submitters)
        if not whose and str(file.path) not in (METADATA, TIMESTAMP):
            left_out.append(f"{shown(str(file.path))}: {file.problem or 'names no student'}")
        for owner in whose:
            by_student.setdefault(owner.student, []).append((file, owner))
    if not by_student:
        raise NoSubmissions(
            f"no notebook and no student's folder in {place}: a folder of notebooks, of students' "
            "folders, or a zip that a learning system exports is expected"
        )
    times = {name: when for names, when in submitters.values() for name in names}
    students = sorted(by_student, key=lambda name: (name.casefold(), name))
    alike = {fold: list(names) for fold, names in groupby(students, key=str.casefold)}
    found = (_of_student(name, by_student[name], times.get(name), handed_out) for name in students)
    return Found(
        tuple(_beside(alike[one.student.casefold()], one) for one in found),
        tuple(sorted(left_out)),
    )


def _beside(alike: Sequence[str], one: Submission) -> Submission:
    """With a note for each other student whose name differs in capitals alone."""
    notes = (f"{name} is graded as another student" for name in alike if name != one.student)
    return replace(one, notes=(*one.notes, *notes))


def _of_student(
    student: str,
    files: Sequence[tuple[File, Owner]],
    when: datetime | None,
    handed_out: HandedOut,
) -> Submission:
    """The submission of all that names this student. Raises NoSubmissions where it may be two students'."""
    by_name: dict[str, list[File]] = {}
    for file, owner in files:
        by_name.setdefault(f"{file.path}" if owner.one_of_many else owner.said, []).append(file)
    if len(by_name) > 1:
        _check_answers_agree(student, by_name)
    one = submission(
        student, [file for file, _ in files], when, any(o.late for _, o in files), handed_out
    )
    written = sorted({owner.said for _, owner in files})
    if len(written) > 1:
        names = " and ".join(map(ascii, written))
        one = replace(one, notes=(*one.notes, f"{len(written)} names were taken for one: {names}"))
    return one


def _check_answers_agree(student: str, by_name: dict[str, list[File]]) -> None:
    """Raises NoSubmissions if files of different names answer one exercise differently."""
    said: dict[str, tuple[str, str]] = {}
    for files in by_name.values():
        for file in [one for one in files if one.is_notebook and not one.problem]:
            for key, answer in _answers_in(file).items():
                first, other = said.setdefault(key, (answer, str(file.path)))
                if first != answer:
                    raise NoSubmissions(
                        f"{other!a} and {str(file.path)!a} would both be {student}'s, and "
                        f"their answers to {key} differ: give them the names of their students, or "
                        "take one away"
                    )


def _answers_in(file: File) -> dict[str, str]:
    """By key, the cell that answers it; of a notebook that cannot be read, none."""
    try:
        cells = cells_of(whole(file)).cells
    except Unreadable:
        return {}
    return {key: cell.strip() for cell in cells for key in DECORATED.findall(cell)}


def submission(
    student: str,
    files: Sequence[File],
    when: datetime | None,
    late: bool,
    handed_out: HandedOut = ANY,
) -> Submission:
    """One student's files → their submission, zips among them opened.

    when: the time that the learning system gives; a file of nbgrader's counts only where there is none.
    """
    notes = [f"{one.path.name}: {one.problem}" for one in files if one.problem]
    notebooks = [one for one in files if one.is_notebook and not one.problem]
    left = folders_and_zips.LARGEST_NOTEBOOK
    for one in files:
        if one.is_zip and not one.problem:
            inner, complaints = inside(one, left)
            left -= min(left, one.size)
            notebooks += inner
            notes += complaints
    notes = few(notes)
    notebooks.sort(key=lambda one: (handed_out.includes(one.path.stem), str(one.path)))
    problem = ""
    if not notebooks:
        others = ", ".join(shown(one.path.name) for one in files[:5]) or "nothing at all"
        problem = "; ".join(["no notebook was handed in", *notes]) + f" (there is: {others})"
    elif len(notebooks) > MOST_NOTEBOOKS:
        problem = f"{len(notebooks)} notebooks; at most {MOST_NOTEBOOKS} are read"
        notebooks = []
    times = [found for one in files if one.path.name == TIMESTAMP if (found := time_in(one))]
    if late:
        notes.append("Canvas marks it as late")
    submitted = when or max(times, default=None)
    return Submission(student, tuple(notebooks), submitted, problem, tuple(notes))


# ------------------------------------------------------------------------------ reading


def read(submission: Submission) -> Content:
    """The code cells of a submission: those of each notebook, those that were handed out last.

    Never raises for what is in a notebook: what cannot be read is the content's `problem`.
    """
    digest = hashlib.sha256(submission.problem.encode())
    cells: list[str] = []
    answered: dict[str, list[str]] = {}
    problems, notes, readable = [], list(submission.notes), 0
    for one, data in zip(submission.notebooks, _bytes_of(submission.notebooks), strict=True):
        where = f"{shown(one.path.name)}: " if len(submission.notebooks) > 1 else ""
        try:
            if isinstance(data, Unreadable):
                raise data
            digest.update(len(data).to_bytes(8, "little") + data)
            found = cells_of(data)
        except Unreadable as error:
            digest.update(str(error).encode())
            problems.append(f"{where}{error}")
            continue
        readable += 1
        cells += found.cells
        for key in dict.fromkeys(key for cell in found.cells for key in DECORATED.findall(cell)):
            answered.setdefault(key, []).append(shown(one.path.name))
        problems += [where + text for text in found.problems]
        notes += [where + text for text in found.notes]
    several = {key: names for key, names in answered.items() if len(names) > 1}
    if several:
        keys, names = ", ".join(several), next(iter(several.values()))
        notes.append(
            f"{keys}: in {len(names)} notebooks ({', '.join(names)}); of several answers to an "
            "exercise the last that was attempted counts"
        )
    problem = submission.problem or "; ".join(few(problems))
    return Content(digest.hexdigest(), tuple(cells), readable > 0, problem, tuple(few(notes)))


def _bytes_of(notebooks: Sequence[File]) -> list[bytes | Unreadable]:
    """What each notebook holds, or why it is not read: those of one student are bounded together.

    The last ones are those that were handed out, so they come first.
    """
    found: list[bytes | Unreadable] = []
    left = folders_and_zips.LARGEST_NOTEBOOK
    for one in reversed(notebooks):
        try:
            data = whole(one, left)
            left -= len(data)
            found.append(data)
        except Unreadable as error:
            found.append(error)
    return found[::-1]
