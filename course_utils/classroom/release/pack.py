"""An edition as files: a folder and a zip to hand out, and the instructor's files apart from both."""

import io
import json
import re
import shutil
import unicodedata
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from course_utils.update.stamp import MARK

from .edition import CannotRelease, Edition

NO_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every entry: the earliest that a zip can hold."""


@dataclass(frozen=True)
class Written:
    """Where an edition lies: students' folder and zip, and the instructor's files."""

    folder: Path
    zip: Path
    instructor: tuple[Path, ...]


def slug(title: str) -> str:
    """A title as a name for files: letters and digits of ASCII, and hyphens."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:60].rstrip("-") or "edition"


def write(edition: Edition, output: Path) -> Written:
    """Write ``output/NAME/``, ``output/NAME.zip`` and, beside them, the instructor's files.

    NAME is made of the plan's title. An earlier edition of the same name is replaced.
    Raises CannotRelease if something else is in the way: another assignment's plan, say.
    """
    name = slug(edition.plan.title)
    folder = output / name
    if other := _other_plan(edition, output):
        raise CannotRelease(
            [f"{output} holds the plan of {other!r}, which this one would replace: name another -o"]
        )
    if folder.exists():
        if not (folder / MARK).is_file():
            raise CannotRelease([f"{folder} is there already and is no edition: name another -o"])
        shutil.rmtree(folder)
    files = {**edition.files, MARK: (edition.plan.title + "\n").encode()}
    write_files(files, folder)
    write_files(edition.instructor, output)
    archive = output / f"{name}.zip"
    archive.write_bytes(zipped({f"{name}/{path}": data for path, data in files.items()}))
    return Written(folder, archive, tuple(output / path for path in sorted(edition.instructor)))


def _other_plan(edition: Edition, output: Path) -> str:
    """The title of the plan of another assignment that lies there; "" where there is none."""
    try:
        title = str(json.loads((output / "plan.json").read_text(encoding="utf-8"))["title"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "" if slug(title) == slug(edition.plan.title) else title


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files, given by path with slashes, below a folder."""
    for path, data in sorted(files.items()):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A zip of these files. The same files give the same bytes: sorted, without times or owners."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, data in sorted(files.items()):
            entry = zipfile.ZipInfo(path, NO_TIME)
            entry.create_system = 3  # Unix, on every system
            entry.external_attr = (0o755 if data.startswith(b"#!") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()
