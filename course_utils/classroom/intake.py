"""Submissions as they come: a folder of notebooks, of student folders, or a zip → their code cells.

What names the student, in the layouts that are known:

Plain
    `ada.ipynb` (the file's name), `ada/…` or `ada.zip` (a folder or a zip a student).
nbgrader
    `submitted/<student>/<assignment>/*.ipynb`, given as `submitted`. The time is that of
    `timestamp.txt`.
Canvas, "Download submissions"
    One flat zip: `<name>_<user id>_<file id>_<file name>`, with `_LATE` after the name of a late one,
    the name in small letters without blanks and commas; anonymous: `anon_<id>_<file id>_<file name>`.
    The student is `<name>_<user id>`. How late it was, Canvas does not say.
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
of the names above or where two of its folders hold notebooks. Everything that gives the same student is one
submission. What begins with a dot, `__MACOSX` and folders of packages are not looked at; other files
at the top that name no student are listed as left out.

Nothing is unpacked onto the disk, no name out of a zip is ever a path of this machine, no symbolic
link is followed, and whatever is read is bounded. A notebook is read with `json` alone; nothing in it
is run or parsed as Python here.
"""

import contextlib
import hashlib
import json
import re
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any
from unicodedata import category, normalize

from course_utils.source.cells import DECORATED

LARGEST_NOTEBOOK = 200 * 10**6
LARGEST_CODE = 4 * 10**6
MOST_VALUES = 5 * 10**6
MOST_ENTRIES = 100_000
MOST_NOTEBOOKS = 50
SMALL_TEXT = 10 * 10**6

SKIPPED = {"__MACOSX", "__pycache__", "node_modules", "site-packages"}
CANVAS = re.compile(r"(?P<name>.+?)(?P<late>_LATE)?_(?P<id>\d+)_\d+_(?P<file>.+)")
ANONYMOUS = re.compile(r"(?P<name>anon)(?P<late>_LATE)?_(?P<id>\w+?)_\d+_(?P<file>.+)")
MOODLE = re.compile(r"(?P<name>.+)_(?P<id>\d+)_assignsubmission_[a-z]+_?(?P<file>.*)", re.DOTALL)
GRADESCOPE = re.compile(r"submission_\d+")
WRAPPER = re.compile(r"assignment_\d+_export|(?P<slug>.+)-submissions|submitted")
METADATA = "submission_metadata.yml"
TIMESTAMP = "timestamp.txt"
EMPTY = "(nothing)"


class NoSubmissions(ValueError):
    """There is nothing to grade where submissions were looked for."""


class Unreadable(ValueError):
    """A file that cannot be read as a notebook; the message says why."""


@dataclass(frozen=True)
class File:
    """A file among the submissions. path: below SUBMISSIONS. size: in bytes, as it is declared.

    read: its first n bytes. problem: why it is not to be read at all.
    """

    path: PurePosixPath
    size: int
    read: Callable[[int], bytes]
    problem: str = ""

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix.lower() == ".ipynb"

    @property
    def is_zip(self) -> bool:
        return self.path.suffix.lower() == ".zip"


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


# ------------------------------------------------------------------------------ finding


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


def owners(
    one: File, slug: str, submitters: dict[str, tuple[tuple[str, ...], datetime | None]]
) -> list[tuple[str, bool]]:
    """Whose file is this? Names of students, each with: does its name say that it is late?"""
    first, *rest = one.path.parts
    if not rest:
        if first == METADATA:
            return []
        for form in (ANONYMOUS, MOODLE, CANVAS):
            if match := form.fullmatch(first):
                late = bool(match.groupdict().get("late"))
                return [(student_name(f"{match['name']}_{match['id']}"), late)]
        return [(student_name(one.path.stem), False)] if one.is_notebook or one.is_zip else []
    if names := submitters.get(first, ((), None))[0]:
        return [(name, False) for name in names]
    if match := MOODLE.fullmatch(first):
        return [(student_name(f"{match['name']}_{match['id']}"), False)]
    return [(student_name(first.removeprefix(slug) or first), False)]


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
                found[last] = (people, time_from(match[1]))
        elif match := re.fullmatch(r"  (- | {2}):(name|sid|email): *(.*?) *", line):
            if match[1] == "- ":
                people.append({})
            if people and match[2] not in people[-1]:
                people[-1][match[2]] = match[3].strip("'\"")
    return {
        folder: (tuple(map(submitter, people)), when) for folder, (people, when) in found.items()
    }


def submitter(person: dict[str, str]) -> str:
    number = person.get("sid") or person.get("email")
    return student_name("_".join(filter(None, (person.get("name"), number))))


def student_name(text: str) -> str:
    """The name as it is kept: composed characters, no control characters, no blanks around it."""
    return shown(text).strip() or "(no name)"


def shown(text: str) -> str:
    """Text that can be printed and written as UTF-8."""
    whole = normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))
    return "".join("�" if category(c) in ("Cc", "Cs") else c for c in whole)


def time_in(one: File) -> datetime | None:
    return time_from(one.read(200).decode("utf-8", "replace"))


def time_from(text: str) -> datetime | None:
    """A time as nbgrader and Gradescope write it; without a zone it is UTC. None: it is no time."""
    text = re.sub(r"(\.\d{6})\d+", r"\1", text.strip().strip("'\""))
    text = re.sub(r" ?(UTC|Z)$", "+00:00", text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


# ------------------------------------------------------------------------------ files


def is_looked_at(path: PurePosixPath) -> bool:
    return not any(part.startswith(".") or part in SKIPPED for part in path.parts)


def listed(folder: Path) -> tuple[list[File], list[str]]:
    """Every file below a folder. A symbolic link is listed with a problem, and not followed."""
    files: list[File] = []
    pending = [folder]
    while pending:
        here = pending.pop()
        where = PurePosixPath(here.relative_to(folder).as_posix())
        try:
            names = [name for path in here.iterdir() if is_looked_at(name := where / path.name)]
        except OSError as error:
            if here == folder:
                raise NoSubmissions(f"{folder} cannot be read: {error.strerror}") from error
            files.append(closed(where / EMPTY, f"the folder cannot be read: {error.strerror}"))
            continue
        if not names and here != folder:
            files.append(closed(where / EMPTY, "the folder is empty"))
        for name in sorted(names):
            path = folder / name
            if path.is_symlink():
                files.append(closed(name, "a symbolic link, which is not followed"))
            elif path.is_dir():
                pending.append(path)
            elif path.is_file():
                files.append(on_disk(path, name))
            else:
                files.append(closed(name, "no ordinary file"))
            if len(files) > MOST_ENTRIES:
                raise NoSubmissions(
                    f"more than {MOST_ENTRIES} files in {folder}: no class's folder"
                )
    return files, []


def closed(name: PurePosixPath, problem: str) -> File:
    return File(name, 0, lambda n: b"", problem)


def on_disk(path: Path, name: PurePosixPath) -> File:
    def read(n: int) -> bytes:
        with path.open("rb") as file:
            return file.read(n)

    return File(name, path.stat().st_size, read)


def entries(place: object, archive: zipfile.ZipFile) -> tuple[list[File], list[str]]:
    """The files of a zip, and complaints about the entries that are none."""
    infos = archive.infolist()
    if len(infos) > MOST_ENTRIES:
        raise NoSubmissions(f"{place} has {len(infos)} entries; at most {MOST_ENTRIES} are read")
    files, left_out, folders = [], [], []
    for info in infos:
        name = name_of(info)
        path = PurePosixPath(name)
        if climbs(name):
            left_out.append(f"{shown(name)}: its name leads out of the zip")
        elif not path.parts or not is_looked_at(path):
            continue
        elif name.endswith("/"):
            folders.append(path)
        elif stat.S_ISLNK(info.external_attr >> 16):
            files.append(closed(path, "a symbolic link, which is not followed"))
        else:
            files.append(in_zip(archive, info, path))
    full = {folder for path in [one.path for one in files] + folders for folder in path.parents}
    empty = [folder for folder in folders if folder not in full]
    return files + [closed(path / EMPTY, "the folder is empty") for path in empty], left_out


def climbs(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return (
        ".." in parts or name.startswith("/") or "\x00" in name or bool(re.match("[A-Za-z]:", name))
    )


def name_of(info: zipfile.ZipInfo) -> str:
    """An entry's name. Some programs write UTF-8 and do not say so; some write backslashes."""
    name = info.orig_filename
    if not info.flag_bits & 0x800:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")


def in_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: PurePosixPath) -> File:
    def read(n: int) -> bytes:
        try:
            with archive.open(info) as stream:
                return at_most(stream, n)
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError) as error:
            raise Unreadable(f"the zip cannot give it back: {error}") from error
        except Exception as error:  # zlib.error, lzma.LZMAError: no common base
            raise Unreadable(f"the zip cannot give it back: {error}") from error

    return File(path, info.file_size, read)


def at_most(stream: IO[bytes], n: int) -> bytes:
    """The first n bytes: what a zip declares of a size need not be true."""
    chunks, left = [], n
    while left > 0 and (chunk := stream.read(min(left, 2**20))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def inside(one: File) -> tuple[list[File], list[str]]:
    """The notebooks of a zip that a student handed in; a zip within it is not opened."""
    try:
        data = whole(one)
        files, left_out = entries(one.path, zipfile.ZipFile(BytesIO(data)))
    except (ValueError, zipfile.BadZipFile, NotImplementedError, OSError) as error:
        return [], [f"{shown(one.path.name)}: {error}"]
    notebooks = [file for file in files if file.is_notebook]
    left_out += [f"{shown(str(file.path))}: {file.problem}" for file in notebooks if file.problem]
    return [
        replace(file, path=one.path / file.path) for file in notebooks if not file.problem
    ], left_out


def whole(one: File) -> bytes:
    """All of a file. Raises Unreadable for one that is too large, or that lies about its size."""
    if one.size > LARGEST_NOTEBOOK:
        raise Unreadable(too_large(one.size))
    try:
        data = one.read(LARGEST_NOTEBOOK + 1)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror or error}") from error
    if len(data) > LARGEST_NOTEBOOK:
        raise Unreadable(too_large(len(data)))
    return data


def too_large(size: int) -> str:
    return (
        f"it has {size / 1e6:.0f} MB or more; at most {LARGEST_NOTEBOOK / 1e6:.0f} MB are read "
        "(clear the outputs and save it again)"
    )


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


@dataclass
class Cells:
    """cells: the code. problems: what was left out. notes: what was read otherwise than it is marked."""

    cells: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def cells_of(data: bytes) -> Cells:
    """The code cells of a notebook's bytes. Raises Unreadable, which says what is wrong."""
    notebook, note = parsed(data)
    if not isinstance(notebook, dict):
        raise Unreadable(f"no notebook: its JSON is {kind_of(notebook)}, not an object with cells")
    if "cells" not in notebook and "worksheets" in notebook:
        raise Unreadable("a notebook of an old format (3): open it in Jupyter and save it again")
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        came = kind_of(cells) if "cells" in notebook else "missing"
        raise Unreadable(f"no notebook: its `cells` are {came}, not a list")
    found = Cells(notes=[note] if note else [])
    texts = list(texts_of(cells, found.problems))
    answered = {key for code, text, _ in texts if code == "code" for key in DECORATED.findall(text)}
    for code, text, number in texts:
        if code == "code":
            found.cells.append(text)
        elif is_lost_answer(text, answered):
            found.cells.append(text)
            found.notes.append(f"cell {number} is marked as {code} and was read as code")
    if sum(map(len, found.cells)) > LARGEST_CODE:
        raise Unreadable(
            f"its code has more than {LARGEST_CODE / 1e6:.0f} million characters: no answers"
        )
    return found


def texts_of(cells: list[Any], problems: list[str]) -> Iterator[tuple[str, str, int]]:
    """Type, text and number of every cell that has them."""
    for number, cell in enumerate(cells, 1):
        source = cell.get("source", "") if isinstance(cell, dict) else None
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            what = f"its source is {kind_of(source)}" if isinstance(cell, dict) else "it is no cell"
            problems.append(f"cell {number} was left out: {what}")
            continue
        code = cell.get("cell_type", "code")
        clean = source.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n")
        yield code if isinstance(code, str) else "code", clean, number


def is_lost_answer(text: str, answered: set[str]) -> bool:
    """Is this cell, which is marked as no code, the answer to an exercise that no code cell has?"""
    keys = DECORATED.findall(text)
    return bool(keys) and "```" not in text and not answered.intersection(keys)


def parsed(data: bytes) -> tuple[Any, str]:
    """The JSON of a notebook in UTF-8, 16 or 32, and a note where it was in none of them."""
    if not data.strip():
        raise Unreadable("the file is empty")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MOST_VALUES:
        raise Unreadable(f"no notebook: it holds more than {MOST_VALUES:,} values")
    note = ""
    try:
        text = data.decode(json.detect_encoding(data), "surrogatepass").removeprefix("\ufeff")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
        note = "it is not in UTF-8 and was read as Windows-1252"
    try:
        # a number's digits do not matter here, and Python limits those of whole numbers
        return json.loads(text, parse_int=float), note
    except json.JSONDecodeError as error:
        torn = " (the file ends too early)" if error.pos >= len(text.rstrip()) - 1 else ""
        raise Unreadable(
            f"its JSON is torn at line {error.lineno}, column {error.colno}{torn}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise Unreadable("no notebook: its JSON is nested too deeply") from error


def kind_of(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
