"""The files below a folder or in a zip, each with a way to read its first bytes.

What begins with a dot, `__MACOSX` and folders of packages are not looked at. Nothing is unpacked onto
the disk, no name out of a zip is ever a path of this machine, no symbolic link is followed, and whatever
is read is bounded.
"""

import contextlib
import re
import stat
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO
from unicodedata import category, normalize

LARGEST_NOTEBOOK = 200 * 10**6
MOST_ENTRIES = 100_000
LONGEST_NAME, DEEPEST = 255, 32
"""Bytes of a name as systems bound them, and folders within one another: programs make no others."""
SKIPPED = {"__MACOSX", "__pycache__", "node_modules", "site-packages"}
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


def shown(text: str) -> str:
    """Text that can be printed and written as UTF-8."""
    whole = normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))
    return "".join("�" if category(c) in ("Cc", "Cs") else c for c in whole)


def _is_looked_at(path: PurePosixPath) -> bool:
    return not any(part.startswith(".") or part in SKIPPED for part in path.parts)


def listed(folder: Path) -> tuple[list[File], list[str]]:
    """Every file below a folder. A symbolic link is listed with a problem, and not followed."""
    files: list[File] = []
    pending = [folder]
    while pending:
        here = pending.pop()
        where = PurePosixPath(here.relative_to(folder).as_posix())
        try:
            names = [name for path in here.iterdir() if _is_looked_at(name := where / path.name)]
        except OSError as error:
            if here == folder:
                raise NoSubmissions(f"{folder} cannot be read: {error.strerror}") from error
            files.append(_closed(where / EMPTY, f"the folder cannot be read: {error.strerror}"))
            continue
        if not names and here != folder:
            files.append(_closed(where / EMPTY, "the folder is empty"))
        for name in sorted(names):
            path = folder / name
            if path.is_symlink():
                files.append(_closed(name, "a symbolic link, which is not followed"))
            elif path.is_dir():
                pending.append(path)
            elif path.is_file():
                files.append(on_disk(path, name))
            else:
                files.append(_closed(name, "no ordinary file"))
            if len(files) > MOST_ENTRIES:
                raise NoSubmissions(
                    f"more than {MOST_ENTRIES} files in {folder}: no class's folder"
                )
    return files, []


def _closed(name: PurePosixPath, problem: str) -> File:
    return File(name, 0, lambda n: b"", problem)


def on_disk(path: Path, name: PurePosixPath) -> File:
    """A file of this machine, by its path below the submissions."""

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
        name = _name_of(info)
        if _is_too_long(name):
            left_out.append(f"{shown(name[:60])}…: its name is too long, or in too many folders")
            continue
        path = PurePosixPath(name)
        if _climbs(name):
            left_out.append(f"{shown(name)}: its name leads out of the zip")
        elif not path.parts or not _is_looked_at(path):
            continue
        elif name.endswith("/"):
            folders.append(path)
        elif stat.S_ISLNK(info.external_attr >> 16):
            files.append(_closed(path, "a symbolic link, which is not followed"))
        else:
            files.append(_in_zip(archive, info, path))
    full = {folder for path in [one.path for one in files] + folders for folder in path.parents}
    empty = [folder for folder in folders if folder not in full]
    return files + [_closed(path / EMPTY, "the folder is empty") for path in empty], left_out


def _is_too_long(name: str) -> bool:
    """Would it take long to look at? Sorting a name's accents takes the square of their number."""
    parts = name.split("/", DEEPEST + 1)
    longest = max(len(part.encode("utf-8", "replace")) for part in parts)
    return len(parts) > DEEPEST or longest > LONGEST_NAME


def _climbs(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return (
        ".." in parts or name.startswith("/") or "\x00" in name or bool(re.match("[A-Za-z]:", name))
    )


def _name_of(info: zipfile.ZipInfo) -> str:
    """An entry's name. Some programs write UTF-8 and do not say so; some write backslashes."""
    name = info.orig_filename
    if not info.flag_bits & 0x800:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")


def _in_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: PurePosixPath) -> File:
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


def inside(one: File, most: int) -> tuple[list[File], list[str]]:
    """The notebooks of a zip of so many bytes at most that a student handed in; none within it is opened."""
    try:
        data = whole(one, most)
        files, left_out = entries(one.path, zipfile.ZipFile(BytesIO(data)))
    except (ValueError, zipfile.BadZipFile, NotImplementedError, OSError) as error:
        return [], [f"{shown(one.path.name)}: {error}"]
    notebooks = [file for file in files if file.is_notebook]
    left_out += [f"{shown(str(file.path))}: {file.problem}" for file in notebooks if file.problem]
    return [
        replace(file, path=one.path / file.path) for file in notebooks if not file.problem
    ], left_out


def whole(one: File, most: int | None = None) -> bytes:
    """All of a file. Raises Unreadable for one that is too large, or that lies about its size.

    most: bytes that are left of what is read of one student; `LARGEST_NOTEBOOK` in all.
    """
    most = LARGEST_NOTEBOOK if most is None else most
    if one.size > most:
        raise Unreadable(_too_large(one.size, most))
    try:
        data = one.read(most + 1)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror or error}") from error
    if len(data) > most:
        raise Unreadable(_too_large(len(data), most))
    return data


def _too_large(size: int, most: int) -> str:
    whose = "are read" if most == LARGEST_NOTEBOOK else "are read of one student's files together"
    return (
        f"it has {size / 1e6:.0f} MB or more; at most {LARGEST_NOTEBOOK / 1e6:.0f} MB {whose} "
        "(clear the outputs and save it again)"
    )
