"""An update done: each file is replaced in one step, and what it was is kept."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path

from course_utils.files import write_whole

from .folders import Change


def apply(change: Change, today: date | None = None) -> Path | None:
    """Do it; the copy of the student's file, if one was made. Each file is replaced in one step."""
    if change.text is None:
        return None
    copy = None
    if change.before is not None:
        copy = _keep(change.before, today or date.today())
    write_whole(change.path, change.text)
    if change.before is not None and change.before != change.path:
        change.before.unlink()
    return copy


def _keep(path: Path, today: date) -> Path:
    """Copy a file beside itself, under a name that says when it was replaced."""
    data = path.read_bytes()
    for copy in _names_for(path, today):
        if not copy.exists():
            write_whole(copy, data)
            return copy
        if copy.read_bytes() == data:
            return copy
    raise AssertionError("there is always another name")


def _names_for(path: Path, today: date) -> Iterator[Path]:
    number = 1
    while True:
        suffix = f"-{number}" if number > 1 else ""
        yield path.with_name(f"{path.stem}.before-{today.isoformat()}{suffix}{path.suffix}")
        number += 1


def bring(files: dict[Path, bytes | None], folder: Path, today: date | None = None) -> Path | None:
    """Replace these files of an edition; the folder that holds what they were, if there is one."""
    aside = folder / f"before-{(today or date.today()).isoformat()}"
    for path, data in files.items():
        if (folder / path).is_file():
            old = (folder / path).read_bytes()
            copy = aside / path
            write_whole(copy if not copy.exists() else next(_names_for(copy, date.today())), old)
        if data is None:
            (folder / path).unlink()
        else:
            write_whole(folder / path, data)
    return aside if aside.is_dir() else None
