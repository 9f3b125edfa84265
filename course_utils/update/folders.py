"""What an update of a folder would do, notebook by notebook, and to the package beside them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .merge import CARRIED, Merge
from .notebook import Notebook, Unreadable, read
from .pieces import Piece, answers_in, keys_in
from .stamp import MARK, STAMP, digest

BEFORE = re.compile(r"\.before-\d{4}-\d\d-\d\d(-\d+)?$")


@dataclass(frozen=True)
class Change:
    """What is to be done with one notebook. path: its place afterwards. text: what it will hold, None
    if it is left alone. before: the student's file, which is kept. notes: what the student should know."""

    path: Path
    text: str | None = None
    before: Path | None = None
    notes: tuple[str, ...] = ()
    failed: bool = False


def notebooks_in(folder: Path) -> list[Path]:
    """The notebooks of an edition's folder, the copies that an update keeps aside."""
    inside = folder / "notebooks"
    found = (inside if inside.is_dir() else folder).glob("*.ipynb")
    return sorted(path for path in found if not BEFORE.search(path.stem))


def changes(
    mine: Sequence[Path], newer: Path, *, add: Path | None = None, older: Path | None = None
) -> list[Change]:
    """What an update of these notebooks to the edition in the folder `newer` will do.

    add: the folder for notebooks that only the newer edition has; None: they are left out. older: the
    edition that was handed out, for notebooks without a stamp. Raises Unreadable if a notebook of an
    edition is damaged, and ValueError if `newer` holds none.
    """
    new = {path: read(path) for path in notebooks_in(newer)}
    if not new:
        raise ValueError(f"{newer} holds no notebooks")
    have, found = {}, []
    for path in mine:
        try:
            have[path] = read(path)
        except Unreadable as error:
            note = f"{error}; left as it is: restore a copy of it or rename it, then run this again"
            found.append(Change(path, notes=(note,), failed=True))
    _stamp_from(older, have)
    pairs = _matched(have, new)
    damaged = {change.path.name for change in found}
    new = {
        path: notebook
        for path, notebook in new.items()
        if path in pairs or (add is not None and path.name not in damaged)
    }
    everywhere = {key for notebook in new.values() for key in keys_in(notebook)}
    for path, notebook in new.items():
        if path in pairs:
            found.append(_merged(pairs[path], path, have, notebook, everywhere))
        elif add is not None:
            merge = Merge(Notebook([]), notebook, _answers_elsewhere(have, None))
            text = merge.run().text
            found.append(Change(add / path.name, text, notes=("new", *merge.notes)))
    used = set(pairs.values())
    for path in have:
        if path not in used:
            found.append(Change(path, notes=("not of the newer edition; left as it is",)))
    return sorted(found, key=lambda change: change.path)


def _stamp_from(older: Path | None, have: dict[Path, Notebook]) -> None:
    """For notebooks without a stamp: what they were when they were handed out."""
    if older is None:
        return
    handed_out = {path.name: read(path) for path in notebooks_in(older)}
    for path, notebook in have.items():
        if notebook.stamped is None and path.name in handed_out:
            cells = handed_out[path.name].cells
            known = {cell["id"]: digest(cell) for cell in cells if "id" in cell}
            notebook.metadata[STAMP] = {"cells": known}


def _matched(have: dict[Path, Notebook], new: dict[Path, Notebook]) -> dict[Path, Path]:
    """Which of the student's notebooks each new one continues: of the same name, or, if a chapter was
    renamed, the one with the most of its exercises."""
    by_name = {path.name: path for path in have}
    pairs = {path: by_name[path.name] for path in new if path.name in by_name}
    for path, notebook in new.items():
        if path in pairs:
            continue
        keys = set(keys_in(notebook))
        free = [old for old in have if old not in pairs.values()]
        shared = {old: len(keys & set(keys_in(have[old]))) for old in free}
        best = max(free, key=shared.__getitem__, default=None)
        if best is not None and shared[best]:
            pairs[path] = best
    return pairs


def _answers_elsewhere(have: dict[Path, Notebook], here: Path | None) -> dict[str, list[Piece]]:
    """Answers in the student's other notebooks to exercises that this one did not have."""
    own = set(keys_in(have[here])) if here else set()
    found: dict[str, list[Piece]] = {}
    for path, notebook in have.items():
        if path != here:
            found |= {k: answer for k, answer in answers_in(notebook).items() if k not in own}
    return found


def _merged(
    old: Path, path: Path, have: dict[Path, Notebook], new: Notebook, everywhere: set[str]
) -> Change:
    mine = have[old]
    elsewhere = _answers_elsewhere(have, old)
    gone = frozenset(key for key in keys_in(mine) if key not in everywhere)
    merge = Merge(mine, new, elsewhere, gone)
    target = old.with_name(path.name)
    text = merge.run().text
    if target == old and text == old.read_text(encoding="utf-8"):
        return Change(target)
    named = (f"was {old.name}",) if target != old else ()
    return Change(target, text, before=old, notes=(*named, *merge.notes))


# ------------------------------------------------------------------------------ the rest of an edition


def rest(folder: Path, newer: Path) -> dict[Path, bytes | None]:
    """What else differs between two editions' folders: files by path, with what they will hold.

    None: a module that the newer edition does not have. Empty where one of the folders is no edition.
    """
    if not ((folder / MARK).is_file() and (newer / MARK).is_file()):
        return {}
    new = {path.relative_to(newer): path.read_bytes() for path in files_of(newer)}
    found: dict[Path, bytes | None] = {
        path: data
        for path, data in new.items()
        if not (folder / path).is_file() or (folder / path).read_bytes() != data
    }
    have = {path.relative_to(folder) for path in files_of(folder)}
    gone = {path for path in have - new.keys() if path.parts[0] == "course_utils"}
    return found | dict.fromkeys(gone)


def files_of(folder: Path) -> Iterator[Path]:
    """The package of an edition and the files beside it, notebooks and what Python made aside."""
    yield folder / MARK
    for path in sorted([*folder.glob("*"), *(folder / "course_utils").rglob("*")]):
        made = any(part == "__pycache__" or part.startswith(".") for part in path.parts[-2:])
        if path.is_file() and path.suffix != ".ipynb" and not made:
            yield path


def report(found: Sequence[Change], copies: dict[Path, Path], *, done: bool) -> str:
    """What was done, or would be, notebook by notebook, as text for a terminal."""
    lines = []
    for change in found:
        if change.text is None and not change.notes:
            lines.append(f"{change.path}: up to date")
            continue
        what = ("updated" if done else "would be updated") if change.text is not None else "left"
        copy = copies.get(change.path)
        lines.append(f"{change.path}: {what}" + (f"; yours is kept as {copy.name}" if copy else ""))
        lines += [f"  {note}" for note in change.notes]
    if done and any(CARRIED in note for change in found for note in change.notes):
        lines.append("some checks may be stricter now: `course check` says which answers pass")
    return "\n".join(lines)
