"""A student's answers, carried into a newer edition of the notebooks by exercise key.

The newer notebook is the base. Into it go the student's answers, the cells that the student wrote,
and the student's changes to cells that the new edition left alone. What no longer fits stays in the
notebook as a raw cell, which nothing runs, and is listed. Every notebook that changes is kept as it
was, beside the new one. Updating twice changes nothing the second time.

An edition stamps its notebooks with a digest of each cell (`stamp`), so that what a student changed is
told from what the edition changed. Without a stamp the cells' ids have to serve: then a cell of the
old edition that the new one does not hold is left to the copy, changed by the student or not.
"""

import ast
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import nbformat

from course_utils.settings import settings
from course_utils.source.cells import DECORATED, MAGIC, key_of
from course_utils.source.stub import is_empty

Cell = dict[str, Any]
STAMP = "course"
MARK = ".course-edition"
"""Lies in the folder of every edition that `course release` wrote."""
OUTPUTS = ("stream", "display_data", "execute_result", "error")
KEPT = "kept"
BEFORE = re.compile(r"\.before-\d{4}-\d\d-\d\d(-\d+)?$")
MADE_BY_A_PROGRAM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8}|.*[A-Z].*")
"""Ids that JupyterLab, nbformat and Colab give to new cells; an edition's ids are words, in small letters."""


class Unreadable(ValueError):
    """A file that is no notebook, or a torn one."""


@dataclass
class Notebook:
    cells: list[Cell]
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def stamped(self) -> dict[str, str] | None:
        """Digests of the edition's cells by id; None if the edition left none."""
        stamp = self.metadata.get(STAMP)
        cells = stamp.get("cells") if isinstance(stamp, dict) else None
        return cells if isinstance(cells, dict) else None

    @property
    def handed_out(self) -> Collection[str] | None:
        """Digests of the cells as the edition has them; None if it left none."""
        return None if self.stamped is None else self.stamped.values()

    @property
    def text(self) -> str:
        whole = {"cells": self.cells, "metadata": self.metadata, "nbformat": 4, "nbformat_minor": 5}
        return nbformat.writes(nbformat.from_dict(whole)).rstrip("\n") + "\n"


@dataclass(frozen=True)
class Change:
    """What is to be done with one notebook. path: its place afterwards. text: what it will hold, None
    if it is left alone. before: the student's file, which is kept. notes: what the student should know."""

    path: Path
    text: str | None = None
    before: Path | None = None
    notes: tuple[str, ...] = ()
    failed: bool = False


# ------------------------------------------------------------------------------ notebooks


def parse(text: str) -> Notebook:
    """Raises Unreadable, saying what is wrong."""
    try:
        data = json.loads(text)
        return Notebook([sound(cell) for cell in data["cells"]], dict(data.get("metadata", {})))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unreadable(f"no readable notebook ({type(error).__name__}: {error})") from error


def read(path: Path) -> Notebook:
    """Raises Unreadable."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"no readable notebook ({error})") from error


def sound(cell: Cell) -> Cell:
    """The cell with all that its kind must have, and outputs only if they are well formed."""
    kind = cell["cell_type"] if cell["cell_type"] in ("code", "markdown") else "raw"
    metadata = cell.get("metadata")
    made = {
        **cell,
        "cell_type": kind,
        "source": joined(cell["source"]),
        "metadata": metadata if isinstance(metadata, dict) else {},
    }
    for name in ("outputs", "execution_count"):
        made.pop(name, None)
    if kind != "code":
        return made
    outputs, count = cell.get("outputs"), cell.get("execution_count")
    whole = isinstance(outputs, list) and all(
        isinstance(out, dict) and out.get("output_type") in OUTPUTS for out in outputs
    )
    return made | {
        "outputs": outputs if whole else [],
        "execution_count": count if isinstance(count, int) else None,
    }


def joined(source: Any) -> str:
    return "".join(source) if isinstance(source, list) else str(source)


def digest(cell: Cell) -> str:
    """Of a cell's kind and source; white space at the ends does not count."""
    text = f"{cell['cell_type']}\n{cell['source'].strip()}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def stamp(notebook: Any, edition: str = "") -> Any:
    """Write into a notebook's metadata what its cells are as they are handed out; the notebook itself.

    Raises KeyError if a cell has no id.
    """
    cells = {
        cell["id"]: digest({**cell, "source": joined(cell["source"])}) for cell in notebook["cells"]
    }
    notebook["metadata"][STAMP] = {"edition": edition or settings.edition, "cells": cells}
    return notebook


# ------------------------------------------------------------------------------ answers


@dataclass(frozen=True)
class Piece:
    """A cell, or a part of one, that belongs to one exercise."""

    key: str
    source: str
    cell: Cell
    whole: bool


def pieces(cell: Cell) -> list[Piece]:
    """The parts of a code cell that belong to exercises, in order; together they are the cell."""
    if cell["cell_type"] != "code":
        return []
    source = cell["source"]
    found = [(match.start(), match[1]) for match in DECORATED.finditer(source)]
    starts: list[tuple[int, str]] = []
    for start, key in found:
        if not starts or starts[-1][1] != key:
            starts.append((start if starts else 0, key))
    if not starts:
        return []
    ends = [start for start, _ in starts[1:]] + [len(source)]
    return [
        Piece(key, source[start:end].strip("\n"), cell, len(starts) == 1)
        for (start, key), end in zip(starts, ends, strict=True)
    ]


def definitions(source: str, key: str) -> dict[str, ast.stmt] | None:
    """What is decorated with this exercise's key, by name; None if the source is no Python."""
    try:
        tree = ast.parse(MAGIC.sub(r"\1pass", source))
    except (SyntaxError, ValueError, RecursionError):
        return None
    return {getattr(n, "name", ""): n for n in tree.body if key_of(n) == key}


def attempted(answer: Sequence[Piece], handed_out: Collection[str] | None = None) -> bool:
    """Is there anything of the student's in it? handed_out: digests of the edition's cells.

    What cannot be parsed has been worked on; so has a stub with another line beside it, and, where it
    is known what was handed out, a stub with as much as a comment in it.
    """
    for piece in answer:
        found = definitions(piece.source, piece.key)
        if found is None or not all(map(untouched, found.values())):
            return True
        if handed_out is not None and piece.whole:
            if digest(piece.cell) not in handed_out:
                return True
        elif len(ast.parse(MAGIC.sub(r"\1pass", piece.source)).body) > len(found):
            return True
    return False


def untouched(node: ast.stmt) -> bool:
    functions = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef)]
    return bool(functions) and all(map(is_empty, functions))


def misfit(answer: Sequence[Piece], stub: Cell) -> str | None:
    """Why an answer does not fit the new stub, in words; None if it does."""
    key = answer[0].key
    wanted = definitions(stub["source"], key) or {}
    given: dict[str, ast.stmt] = {}
    for piece in answer:
        found = definitions(piece.source, key)
        if found is None:
            return None
        given |= found
    for name, node in wanted.items():
        if name not in given:
            return f"`{name}` is asked for now"
        reason = differing(node, given[name])
        if reason:
            return reason
    return None


def differing(stub: ast.stmt, answer: ast.stmt) -> str | None:
    if isinstance(stub, ast.ClassDef) != isinstance(answer, ast.ClassDef):
        return f"`{stub.name}` is another kind of thing now"  # type: ignore[attr-defined]
    if isinstance(stub, ast.FunctionDef):
        suits = isinstance(answer, ast.FunctionDef) and suits_calls(stub, answer)
        return None if suits else f"`{stub.name}` takes {listed(stub)} now"
    assert isinstance(stub, ast.ClassDef) and isinstance(answer, ast.ClassDef)
    methods = {m.name: m for m in answer.body if isinstance(m, ast.FunctionDef)}
    for method in (m for m in stub.body if isinstance(m, ast.FunctionDef)):
        if method.name not in methods:
            return f"`{stub.name}` has a method `{method.name}` now"
        if not suits_calls(method, methods[method.name]):
            return f"`{stub.name}.{method.name}` takes {listed(method)} now"
    return None


def suits_calls(stub: ast.FunctionDef, answer: ast.FunctionDef) -> bool:
    """The stub's parameters first, by the same names; more only with defaults, or any."""
    if answer.args.vararg or answer.args.kwarg:
        return True
    wanted, given = names_of(stub), names_of(answer)
    free = len(answer.args.args + answer.args.posonlyargs) - len(answer.args.defaults)
    asked_for = given[len(wanted) : free]
    return given[: len(wanted)] == wanted and not asked_for


def names_of(node: ast.FunctionDef) -> list[str]:
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def listed(node: ast.FunctionDef) -> str:
    return f"({', '.join(names_of(node))})"


def reworded(answer: Sequence[Piece], stub: Cell) -> bool:
    """Does the new stub say something else than the answer's docstrings and annotations?"""
    key = answer[0].key
    given = {n: d for p in answer for n, d in (definitions(p.source, key) or {}).items()}
    wanted = definitions(stub["source"], key) or {}
    return any(
        ast.get_docstring(node) != ast.get_docstring(given[name])  # type: ignore[arg-type]
        for name, node in wanted.items()
        if name in given
    )


# ------------------------------------------------------------------------------ merging


@dataclass
class Merge:
    """The new notebook, being filled. mine: the student's. elsewhere: answers from other notebooks."""

    mine: Notebook
    new: Notebook
    elsewhere: dict[str, list[Piece]]
    gone: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    after: dict[int, list[Cell]] = field(default_factory=dict)
    in_place: dict[int, Cell] = field(default_factory=dict)
    left_out: int = 0

    def __post_init__(self) -> None:
        self.places = {cell["id"]: i for i, cell in enumerate(self.new.cells)}
        self.by_digest: dict[str, int] = {}
        for i, cell in enumerate(self.new.cells):
            self.by_digest.setdefault(digest(cell), i)
        self.exercises = {
            piece.key: i for i, cell in enumerate(self.new.cells) for piece in pieces(cell)
        }
        self.stamped = self.mine.stamped

    def run(self) -> Notebook:
        self.walk()
        answers = dict(self.elsewhere) | answers_in(self.mine)
        before: dict[int, list[Cell]] = {}
        for key, place in self.exercises.items():
            answer = answers.get(key, [])
            if answer:
                before[place] = self.answer(key, place, answer)
        cells: list[Cell] = list(self.after.get(-1, []))
        for i, cell in enumerate(self.new.cells):
            cells += [*before.get(i, []), self.in_place.get(i, cell), *self.after.get(i, [])]
        if self.left_out:
            self.notes.append(
                f"{self.left_out} cells of the older edition are not in the newer one; if you had "
                "changed one, it is in the copy"
            )
        identify(cells, {cell["id"] for cell in self.new.cells})
        return Notebook(cells, {**self.mine.metadata, **self.new.metadata})

    def walk(self) -> None:
        """Put the student's cells, answers aside, where they belong in the new notebook."""
        anchor = -1
        for cell in self.mine.cells:
            if not cell["source"].strip():
                continue
            parts = pieces(cell)
            if parts:
                anchor = self.removed(parts, anchor)
                continue
            at = self.place_of(cell)
            if at is not None:
                anchor = at
                self.keep_outputs(cell, at)
                continue
            self.theirs(cell, anchor)

    def removed(self, parts: Sequence[Piece], anchor: int) -> int:
        """The place of the last exercise of a cell. Answers that the new edition has no place for stay."""
        for piece in parts:
            if piece.key in self.exercises:
                anchor = self.exercises[piece.key]
            elif piece.key in self.gone and attempted([piece], self.mine.handed_out):
                self.set_aside(
                    piece.source, anchor, f"{piece.key}: this exercise is no longer here"
                )
        return anchor

    def place_of(self, cell: Cell) -> int | None:
        """The cell of the new edition that this one is, unchanged or with the student's change."""
        same = self.by_digest.get(digest(cell))
        if same is not None:
            named = self.places.get(cell.get("id", ""))
            return (
                named
                if named is not None and digest(self.new.cells[named]) == digest(cell)
                else same
            )
        if "setup" in tags(cell):
            return next((i for i, c in enumerate(self.new.cells) if "setup" in tags(c)), None)
        was = (self.stamped or {}).get(cell.get("id", ""))
        return self.by_digest.get(was) if was else None

    def keep_outputs(self, cell: Cell, at: int) -> None:
        """The student's change of an edition's cell, and what running it put out."""
        new = self.new.cells[at]
        if at in self.in_place or "setup" in tags(new):
            return
        changed = digest(cell) != digest(new)
        if changed:
            self.notes.append(f"your change of the cell {first_line(cell)!r} is carried over")
        if new["cell_type"] == "code" and (changed or not new.get("outputs")):
            ran = {name: cell.get(name, new.get(name)) for name in ("outputs", "execution_count")}
            self.in_place[at] = {
                **new,
                "source": cell["source"] if changed else new["source"],
                **ran,
            }
        elif changed:
            pictures = {name: cell[name] for name in ("attachments",) if name in cell}
            self.in_place[at] = {**new, "source": cell["source"], **pictures}

    def theirs(self, cell: Cell, anchor: int) -> None:
        """A cell that the new edition does not hold: the student's own, or one of the older edition."""
        identity = cell.get("id", "")
        if KEPT in tags(cell):
            self.after.setdefault(anchor, []).append(cell)
        elif self.stamped is not None:
            if digest(cell) in self.stamped.values():
                return
            if identity in self.stamped:
                reason = f"you had changed the cell {first_line(cell)!r}, and so has this edition"
                self.set_aside(cell["source"], anchor, reason)
                return
            self.own(cell, anchor)
        elif identity and not MADE_BY_A_PROGRAM.fullmatch(identity) and not ours(identity):
            self.left_out += 1
        else:
            self.own(cell, anchor)

    def own(self, cell: Cell, anchor: int) -> None:
        self.after.setdefault(anchor, []).append(cell)
        self.notes.append(f"your own cell {first_line(cell)!r} is kept")

    def answer(self, key: str, place: int, answer: list[Piece]) -> list[Cell]:
        """Put an answer in its place; the cells that come before it, where it is more than one."""
        stub = self.new.cells[place]
        reason = misfit(answer, stub)
        if reason:
            text = "\n\n\n".join(piece.source for piece in answer)
            self.set_aside(text, place, f"{key}: {reason}")
            return []
        more = " in several cells" if len(answer) > 1 else ""
        said = (
            "; its description has changed, see solution or the site"
            if reworded(answer, stub)
            else ""
        )
        self.notes.append(f"{key}: your answer is carried over{more}{said}")
        *first, last = answer
        self.in_place[place] = {**stub, **ran(last), "source": last.source}
        return [
            {**stub, **ran(p), "metadata": {}, "id": p.cell.get("id", ""), "source": p.source}
            for p in first
        ]

    def set_aside(self, source: str, anchor: int, reason: str) -> None:
        """Keep what does not fit as a raw cell, which nothing runs."""
        text = f"# Kept: {reason}.\n{source}"
        known = {c["source"] for c in self.mine.cells if KEPT in tags(c)}
        self.notes.append(f"kept as text: {reason}")
        if text not in known:
            cell = {"cell_type": "raw", "metadata": {"tags": [KEPT]}, "source": text, "id": ""}
            self.after.setdefault(anchor, []).append(cell)


def tags(cell: Cell) -> list[str]:
    metadata = cell.get("metadata")
    found = metadata.get("tags") if isinstance(metadata, dict) else None
    return found if isinstance(found, list) else []


def ran(piece: Piece) -> dict[str, Any]:
    """What running the cell put out, if the piece is the whole of it."""
    cell = piece.cell if piece.whole else {}
    return {
        "outputs": cell.get("outputs", []),
        "execution_count": cell.get("execution_count"),
    }


def first_line(cell: Cell) -> str:
    return cell["source"].strip().splitlines()[0][:50]


def ours(identity: str) -> bool:
    return identity.startswith(("own-", "kept-"))


def identify(cells: list[Cell], taken: set[str]) -> None:
    """Give an id to each cell that has none, or one that another has: it follows from the content."""
    seen: set[str] = set()
    for i, cell in enumerate(cells):
        identity = str(cell.get("id", ""))
        if not re.fullmatch(r"[\w-]{1,64}", identity) or identity in seen:
            kind = "kept" if KEPT in tags(cell) else "own"
            identity = base = f"{kind}-{digest(cell)}"
            number = 1
            while identity in seen | taken:
                number += 1
                identity = f"{base}-{number}"
            cells[i] = {**cell, "id": identity}
        seen.add(identity)


def answers_in(notebook: Notebook) -> dict[str, list[Piece]]:
    """The attempted answers of a notebook by key, each as its pieces in order."""
    found: dict[str, list[Piece]] = {}
    for cell in notebook.cells:
        for piece in pieces(cell):
            found.setdefault(piece.key, []).append(piece)
    known = notebook.handed_out
    return {
        key: without_stubs(answer, known)
        for key, answer in found.items()
        if attempted(answer, known)
    }


def without_stubs(answer: list[Piece], handed_out: Collection[str] | None) -> list[Piece]:
    """An answer without the stubs of what it answers: a copied cell of which one was filled in."""
    worked = [piece for piece in answer if attempted([piece], handed_out)]
    done = {name for piece in worked for name in definitions(piece.source, piece.key) or ()}
    return [
        piece
        for piece in answer
        if piece in worked or set(definitions(piece.source, piece.key) or ()) - done
    ]


# ------------------------------------------------------------------------------ folders


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
    stamp_from(older, have)
    pairs = matched(have, new)
    damaged = {change.path.name for change in found}
    new = {
        path: notebook
        for path, notebook in new.items()
        if path in pairs or (add is not None and path.name not in damaged)
    }
    everywhere = {key for notebook in new.values() for key in keys_in(notebook)}
    for path, notebook in new.items():
        if path in pairs:
            found.append(merged(pairs[path], path, have, notebook, everywhere))
        elif add is not None:
            merge = Merge(Notebook([]), notebook, answers_elsewhere(have, None))
            text = merge.run().text
            found.append(Change(add / path.name, text, notes=("new", *merge.notes)))
    used = set(pairs.values())
    for path in have:
        if path not in used:
            found.append(Change(path, notes=("not of the newer edition; left as it is",)))
    return sorted(found, key=lambda change: change.path)


def keys_in(notebook: Notebook) -> list[str]:
    return [piece.key for cell in notebook.cells for piece in pieces(cell)]


def stamp_from(older: Path | None, have: dict[Path, Notebook]) -> None:
    """For notebooks without a stamp: what they were when they were handed out."""
    if older is None:
        return
    handed_out = {path.name: read(path) for path in notebooks_in(older)}
    for path, notebook in have.items():
        if notebook.stamped is None and path.name in handed_out:
            cells = handed_out[path.name].cells
            known = {cell["id"]: digest(cell) for cell in cells if "id" in cell}
            notebook.metadata[STAMP] = {"cells": known}


def matched(have: dict[Path, Notebook], new: dict[Path, Notebook]) -> dict[Path, Path]:
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


def answers_elsewhere(have: dict[Path, Notebook], here: Path | None) -> dict[str, list[Piece]]:
    """Answers in the student's other notebooks to exercises that this one did not have."""
    own = set(keys_in(have[here])) if here else set()
    found: dict[str, list[Piece]] = {}
    for path, notebook in have.items():
        if path != here:
            found |= {k: answer for k, answer in answers_in(notebook).items() if k not in own}
    return found


def merged(
    old: Path, path: Path, have: dict[Path, Notebook], new: Notebook, everywhere: set[str]
) -> Change:
    mine = have[old]
    elsewhere = answers_elsewhere(have, old)
    gone = frozenset(key for key in keys_in(mine) if key not in everywhere)
    merge = Merge(mine, new, elsewhere, gone)
    target = old.with_name(path.name)
    text = merge.run().text
    if target == old and text == old.read_text(encoding="utf-8"):
        return Change(target)
    named = (f"was {old.name}",) if target != old else ()
    return Change(target, text, before=old, notes=(*named, *merge.notes))


def apply(change: Change, today: date | None = None) -> Path | None:
    """Do it; the copy of the student's file, if one was made. Each file is replaced in one step."""
    if change.text is None:
        return None
    copy = None
    if change.before is not None:
        copy = keep(change.before, today or date.today())
    replace_with(change.path, change.text.encode())
    if change.before is not None and change.before != change.path:
        change.before.unlink()
    return copy


def keep(path: Path, today: date) -> Path:
    """Copy a file beside itself, under a name that says when it was replaced."""
    data = path.read_bytes()
    for copy in names_for(path, today):
        if not copy.exists():
            replace_with(copy, data)
            return copy
        if copy.read_bytes() == data:
            return copy
    raise AssertionError("there is always another name")


def names_for(path: Path, today: date) -> Iterator[Path]:
    number = 1
    while True:
        suffix = f"-{number}" if number > 1 else ""
        yield path.with_name(f"{path.stem}.before-{today.isoformat()}{suffix}{path.suffix}")
        number += 1


def replace_with(path: Path, data: bytes) -> None:
    """Write a file so that a reader finds the old or the new one whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


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


def bring(files: dict[Path, bytes | None], folder: Path, today: date | None = None) -> Path | None:
    """Replace these files of an edition; the folder that holds what they were, if there is one."""
    aside = folder / f"before-{(today or date.today()).isoformat()}"
    for path, data in files.items():
        if (folder / path).is_file():
            old = (folder / path).read_bytes()
            copy = aside / path
            replace_with(copy if not copy.exists() else next(names_for(copy, date.today())), old)
        if data is None:
            (folder / path).unlink()
        else:
            replace_with(folder / path, data)
    return aside if aside.is_dir() else None


def report(found: Iterable[Change], copies: dict[Path, Path], *, done: bool) -> str:
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
    return "\n".join(lines)
