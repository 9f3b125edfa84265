"""What an answer uses that the newer notebook no longer defines: an import, a helper of the older edition."""

import ast
from collections.abc import Iterable, Sequence
from functools import lru_cache

from course_utils.source.cells import Statement, cell_of, statements_of
from course_utils.source.effects import EVERYTHING
from course_utils.source.names import import_of

from .pieces import Piece
from .stamp import Cell


def lost(answer: Sequence[Piece], cells: Iterable[Cell]) -> list[str]:
    """Names that an answer uses, and that its own notebook bound and these cells do not; each in words."""
    bound = {name for cell in cells for statement in _statements(cell) for name in statement.binds}
    if EVERYTHING in bound:
        return []
    used = {
        name
        for piece in answer
        for statement in statements_of(0, cell_of(piece.source))
        for name in statement.uses
    }
    was = {
        name: statement.node
        for cell in answer[0].among
        for statement in _statements(cell)
        for name in statement.binds & used - bound
    }
    return [_in_words(name, was[name]) for name in sorted(was)]


def _statements(cell: Cell) -> tuple[Statement, ...]:
    return _read(cell["source"]) if cell["cell_type"] == "code" else ()


@lru_cache(maxsize=1024)
def _read(source: str) -> tuple[Statement, ...]:
    return tuple(statements_of(0, cell_of(source)))


def _in_words(name: str, node: ast.stmt) -> str:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return f"`{name}`, which was `{import_of(node, name)}`"
    return f"`{name}`, which is in the copy"
