"""One notebook of the newer edition, filled with what a student has done in the older one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .fit import misfit, reworded
from .lost import lost
from .notebook import Notebook, tags
from .pieces import Piece, answers_in, attempted, pieces
from .stamp import Cell, digest

CARRIED = "your answer is carried over"
_KEPT = "kept"
_MADE_BY_A_PROGRAM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8}|.*[A-Z].*")
"""Ids that JupyterLab, nbformat and Colab give to new cells; an edition's ids are words, in small letters."""


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
    carried: list[str] = field(default_factory=list)

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
        """The merged notebook. `notes` then says, in sentences, what became of what."""
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
        for key in self.carried:
            self.notes += [
                f"{key}: your answer uses {what}; this edition's notebook does not define it"
                for what in lost(answers[key], cells)
            ]
        if self.left_out:
            self.notes.append(
                f"{self.left_out} cells of the older edition are not in the newer one; if you had "
                "changed one, it is in the copy: with --older, and the edition that you began with, "
                "such changes are carried too"
            )
        _identify(cells, {cell["id"] for cell in self.new.cells})
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
            self.notes.append(f"your change of the cell {_first_line(cell)!r} is carried over")
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
        if _KEPT in tags(cell):
            self.after.setdefault(anchor, []).append(cell)
        elif self.stamped is not None:
            if digest(cell) in self.stamped.values():
                return
            if identity in self.stamped:
                reason = f"you had changed the cell {_first_line(cell)!r}, and so has this edition"
                self.set_aside(cell["source"], anchor, reason)
                return
            self.own(cell, anchor)
        elif identity and not _MADE_BY_A_PROGRAM.fullmatch(identity) and not _ours(identity):
            self.left_out += 1
        else:
            self.own(cell, anchor)

    def own(self, cell: Cell, anchor: int) -> None:
        """Keep a cell of the student's own behind the cell of the new edition at `anchor`."""
        self.after.setdefault(anchor, []).append(cell)
        self.notes.append(f"your own cell {_first_line(cell)!r} is kept")

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
        self.notes.append(f"{key}: {CARRIED}{more}{said}")
        self.carried.append(key)
        *first, last = answer
        self.in_place[place] = {**stub, **_ran(last), "source": last.source}
        return [
            {**stub, **_ran(p), "metadata": {}, "id": p.cell.get("id", ""), "source": p.source}
            for p in first
        ]

    def set_aside(self, source: str, anchor: int, reason: str) -> None:
        """Keep what does not fit as a raw cell, which nothing runs."""
        text = f"# Kept: {reason}.\n{source}"
        known = {c["source"] for c in self.mine.cells if _KEPT in tags(c)}
        self.notes.append(f"kept as text: {reason}")
        if text not in known:
            cell = {"cell_type": "raw", "metadata": {"tags": [_KEPT]}, "source": text, "id": ""}
            self.after.setdefault(anchor, []).append(cell)


def _ran(piece: Piece) -> dict[str, Any]:
    """What running the cell put out, if the piece is the whole of it."""
    cell = piece.cell if piece.whole else {}
    return {
        "outputs": cell.get("outputs", []),
        "execution_count": cell.get("execution_count"),
    }


def _first_line(cell: Cell) -> str:
    return cell["source"].strip().splitlines()[0][:50]


def _ours(identity: str) -> bool:
    return identity.startswith(("own-", "kept-"))


def _identify(cells: list[Cell], taken: set[str]) -> None:
    """Give an id to each cell that has none, or one that another has: it follows from the content."""
    seen: set[str] = set()
    for i, cell in enumerate(cells):
        identity = str(cell.get("id", ""))
        if not re.fullmatch(r"[\w-]{1,64}", identity) or identity in seen:
            kind = "kept" if _KEPT in tags(cell) else "own"
            identity = base = f"{kind}-{digest(cell)}"
            number = 1
            while identity in seen | taken:
                number += 1
                identity = f"{base}-{number}"
            cells[i] = {**cell, "id": identity}
        seen.add(identity)
