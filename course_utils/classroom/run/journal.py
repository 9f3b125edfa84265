"""The run folder: what a run is, its secret, and its results as they come.

`run.json`      the plan, where the submissions were, versions, when it began, the isolation levels,
                who is left out
`secret`        32 random bytes in hexadecimal, for its owner alone: what random cases are drawn from
`results.jsonl` one record a line, appended and forced onto the disk before the next one is counted;
                sealed with the secret and its place, so that no line can be changed, moved or repeated

Whoever is killed at any moment leaves at most one line that is torn, the last one; it is cut off
when the run goes on, and its submission is graded again.
"""

import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from platform import platform, python_version
from typing import Any

from filelock import FileLock, Timeout

from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record, merged
from course_utils.files import write_whole
from course_utils.settings import settings

VERSION = 1
RUN, SECRET, RESULTS, LOCK = "run.json", "secret", "results.jsonl", ".lock"
_SEALED = re.compile(r', "seal": "([0-9a-f]{64})"\}\Z')


class CannotRun(RuntimeError):
    """This folder cannot take the run; the message says why and what to do."""


def versions() -> dict[str, str]:
    """What marks may depend on; a worker elsewhere must have the same."""
    return {"course": settings.edition, "python": python_version(), "torch": version("torch")}


class Journal:
    """An open run folder. records: by student, merged, as they are on the disk."""

    def __init__(self, folder: Path, plan: Plan, submissions: Path) -> None:
        self.folder, self.plan = folder, plan
        self.unreadable = 0
        self.secret = _secret_of(folder)
        self.run = self._run(submissions)
        self.lines = _cut_torn(folder / RESULTS)
        self.records = merged(self._read())

    def _run(self, submissions: Path) -> dict[str, Any]:
        """run.json as it is, or a new one. Raises CannotRun if it is the run of another plan."""
        path = self.folder / RUN
        plan = json.loads(self.plan.to_json())
        if path.exists():
            run = _run_in(path)
            if run["plan"] != plan:
                raise CannotRun(
                    f"{self.folder} holds a run of another plan ({run['plan']['title']!r}, "
                    f"{len(run['plan']['items'])} exercises); choose another folder with -o"
                )
            return run
        run = {
            "version": VERSION,
            "plan": plan,
            "submissions": str(submissions.absolute()),
            "secret": SECRET,
            "versions": versions(),
            "machine": platform(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "isolation": [],
        }
        _write_run(self.folder, run)
        return run

    def _read(self) -> Iterator[Record]:
        """The records on the disk. Raises CannotRun for one that somebody has changed."""
        for number, line in enumerate(self.lines):
            try:
                record = Record.from_line(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.unreadable += 1
                continue
            body = _SEALED.sub("}", line)
            if sealed(body, number, self.secret) != line:
                raise CannotRun(
                    f"line {number + 1} of {self.folder / RESULTS} is not as the run wrote it there: put "
                    "it back, or grade into another folder with -o"
                )
            yield record

    def append(self, record: Record) -> None:
        """Put a record onto the disk, whole, before it counts."""
        line = sealed(record.to_line(), len(self.lines), self.secret)
        self.lines.append(line)
        with (self.folder / RESULTS).open("ab") as file:
            file.write((line + "\n").encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        before = self.records.get(record.student)
        self.records |= merged([record] if before is None else [before, record])
        if record.isolation and record.isolation not in self.run["isolation"]:
            self.run["isolation"].append(record.isolation)
            _write_run(self.folder, self.run)

    @property
    def left_out(self) -> frozenset[str]:
        """Students who are in no file that is made of the records. Their records stay."""
        return frozenset(self.run.get("left_out", ()))

    def leave_out(self, students: Mapping[str, bool]) -> None:
        """Leave students out from now on (True), or count them again (False)."""
        again = {student for student, out in students.items() if not out}
        self.run["left_out"] = sorted((self.left_out | students.keys()) - again)
        _write_run(self.folder, self.run)


@contextmanager
def opened(folder: Path, plan: Plan, submissions: Path) -> Iterator[Journal]:
    """The run folder, for one run at a time. Raises CannotRun if another one is at work in it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield Journal(folder, plan, submissions)
    except Timeout:
        raise CannotRun(
            f"another `course grade` is at work in {folder}; wait for its end"
        ) from None


def _secret_of(folder: Path) -> bytes:
    """The run's secret; drawn when the run is new."""
    path = folder / SECRET
    if not path.exists():
        if (folder / RESULTS).exists():
            raise CannotRun(
                f"{path} is gone: the cases of the marks in {RESULTS} cannot be drawn again. "
                "Put it back, or choose another folder with -o"
            )
        write_whole(path, secrets.token_hex(32) + "\n", mode=0o600)
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) < 16:
        raise CannotRun(f"{path} holds no secret: at least 32 hexadecimal digits are expected")
    return secret


def sealed(body: str, number: int, secret: bytes) -> str:
    """A record's JSON with the seal that it has as this line of the results."""
    seal = hmac.digest(secret, f"{number}\n{body}".encode("utf-8", "replace"), "sha256").hex()
    return f'{body[:-1]}, "seal": "{seal}"}}'


def _write_run(folder: Path, run: dict[str, Any]) -> None:
    write_whole(folder / RUN, json.dumps(run, indent=1, ensure_ascii=False) + "\n")


def _run_in(path: Path) -> dict[str, Any]:
    """What run.json says. Raises CannotRun, which names the file, for one that is torn or too old."""
    try:
        run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, _ = run["version"], run["plan"]["items"]
    except (ValueError, KeyError, TypeError) as error:
        raise CannotRun(
            f"{path} cannot be read ({type(error).__name__}: {error}): put it back, or choose another "
            "folder with -o"
        ) from None
    if version != VERSION:
        raise CannotRun(f"{path} is of version {version}; this course reads {VERSION}")
    return run


def _cut_torn(path: Path) -> list[str]:
    """The lines of a file; a last line without an end is cut off, on the disk too."""
    if not path.exists():
        return []
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        with path.open("r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())
    return data[:end].decode("utf-8", "replace").split("\n")[:-1]
