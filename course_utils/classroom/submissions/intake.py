"""Submissions as they come: a folder of notebooks, of student folders, or a zip → their code cells.

Everything that gives the same student is one submission. Other files at the top that name no student are
listed as left out. Nothing in a notebook is run or parsed as Python here.
"""

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

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
from .owners import METADATA, TIMESTAMP, gradescope_submitters, owners, slug_of, time_in, unwrapped

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


def find(place: Path) -> Found:
    """The submissions in a folder, a zip, or one notebook.

    Raises NoSubmissions, saying what was looked for, where there is none.
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
    by_student: dict[str, list[File]] = {}
    lates: set[str] = set()
    for file in files:
        whose = owners(file, slug, submitters)
        if not whose and str(file.path) not in (METADATA, TIMESTAMP):
            left_out.append(f"{shown(str(file.path))}: {file.problem or 'names no student'}")
        for student, late in whose:
            by_student.setdefault(student, []).append(file)
            lates |= {student} if late else set()
    if not by_student:
        raise NoSubmissions(
            f"no notebook and no student's folder in {place}: a folder of notebooks, of students' "
            "folders, or a zip that a learning system exports is expected"
        )
    times = {name: when for names, when in submitters.values() for name in names}
    return Found(
        tuple(
            submission(student, by_student[student], times.get(student), student in lates)
            for student in sorted(by_student, key=lambda name: (name.casefold(), name))
        ),
        tuple(sorted(left_out)),
    )


def submission(
    student: str, files: Sequence[File], when: datetime | None, late: bool
) -> Submission:
    """One student's files → their submission, zips among them opened."""
    notes = [f"{one.path.name}: {one.problem}" for one in files if one.problem]
    notebooks = [one for one in files if one.is_notebook and not one.problem]
    for one in files:
        if one.is_zip and not one.problem:
            inner, complaints = inside(one)
            notebooks += inner
            notes += complaints
    notebooks.sort(key=lambda one: str(one.path))
    problem = ""
    if not notebooks:
        others = ", ".join(shown(one.path.name) for one in files[:5]) or "nothing at all"
        problem = "; ".join(["no notebook was handed in", *notes]) + f" (there is: {others})"
    elif len(notebooks) > MOST_NOTEBOOKS:
        problem = f"{len(notebooks)} notebooks; at most {MOST_NOTEBOOKS} are read"
        notebooks = []
    times = [when for one in files if one.path.name == TIMESTAMP if (when := time_in(one))]
    if late:
        notes.append("Canvas marks it as late")
    return Submission(student, tuple(notebooks), max(times, default=when), problem, tuple(notes))


# ------------------------------------------------------------------------------ reading


def read(submission: Submission) -> Content:
    """The code cells of a submission: those of each notebook, in order of the notebooks' names.

    Never raises for what is in a notebook: what cannot be read is the content's `problem`.
    """
    digest = hashlib.sha256(submission.problem.encode())
    cells: list[str] = []
    problems, notes, readable = [], list(submission.notes), 0
    for one in submission.notebooks:
        where = f"{shown(one.path.name)}: " if len(submission.notebooks) > 1 else ""
        try:
            data = whole(one)
            digest.update(len(data).to_bytes(8, "little") + data)
            found = cells_of(data)
        except Unreadable as error:
            digest.update(str(error).encode())
            problems.append(f"{where}{error}")
            continue
        readable += 1
        cells += found.cells
        problems += [where + text for text in found.problems]
        notes += [where + text for text in found.notes]
    if len(submission.notebooks) > 1:
        names = ", ".join(shown(one.path.name) for one in submission.notebooks)
        notes.append(
            f"{len(submission.notebooks)} notebooks ({names}): of several answers to an exercise the "
            "last that was attempted counts"
        )
    problem = submission.problem or "; ".join(problems)
    return Content(digest.hexdigest(), tuple(cells), readable > 0, problem, tuple(notes))
