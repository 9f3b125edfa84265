"""The parts of a notebook that answer exercises, and whether there is anything of the student's in them."""

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from course_utils.source.cells import DECORATED, MAGIC, key_of
from course_utils.source.stub import is_empty

from .notebook import Notebook
from .stamp import Cell, digest


@dataclass(frozen=True)
class Piece:
    """A cell, or a part of one, that belongs to one exercise. among: the cells of its notebook."""

    key: str
    source: str
    cell: Cell
    whole: bool
    among: Sequence[Cell] = field(default=(), compare=False, repr=False)


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
        if found is None or not all(map(_untouched, found.values())):
            return True
        if handed_out is not None and piece.whole:
            if digest(piece.cell) not in handed_out:
                return True
        elif len(ast.parse(MAGIC.sub(r"\1pass", piece.source)).body) > len(found):
            return True
    return False


def _untouched(node: ast.stmt) -> bool:
    functions = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef)]
    return bool(functions) and all(map(is_empty, functions))


def answers_in(notebook: Notebook) -> dict[str, list[Piece]]:
    """The attempted answers of a notebook by key, each as its pieces in order."""
    found: dict[str, list[Piece]] = {}
    for cell in notebook.cells:
        for piece in pieces(cell):
            found.setdefault(piece.key, []).append(replace(piece, among=notebook.cells))
    known = notebook.handed_out
    return {
        key: _without_stubs(answer, known)
        for key, answer in found.items()
        if attempted(answer, known)
    }


def _without_stubs(answer: list[Piece], handed_out: Collection[str] | None) -> list[Piece]:
    """An answer without the stubs of what it answers: a copied cell of which one was filled in."""
    worked = [piece for piece in answer if attempted([piece], handed_out)]
    done = {name for piece in worked for name in definitions(piece.source, piece.key) or ()}
    return [
        piece
        for piece in answer
        if piece in worked or set(definitions(piece.source, piece.key) or ()) - done
    ]


def keys_in(notebook: Notebook) -> list[str]:
    """The exercises of a notebook, in order of their pieces."""
    return [piece.key for cell in notebook.cells for piece in pieces(cell)]
