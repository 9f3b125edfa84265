"""The code cells of a notebook as statements: each with the names that it binds and needs."""

import ast
import copy
import json
import re
import symtable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .names import names_bound, names_used

MAGIC = re.compile(r"^(\s*)[%!?].*$", re.MULTILINE)
DECORATED = re.compile(r"""^@exercise\(\s*["']([\w.]+)["']""", re.MULTILINE)
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Statement:
    """A statement of a cell, the names that it binds, and those that it needs."""

    cell: int
    node: ast.stmt

    @cached_property
    def binds(self) -> frozenset[str]:
        """Names that it binds."""
        return frozenset(names_bound(self.node))

    @cached_property
    def uses(self) -> frozenset[str]:
        """Names that it looks up outside of itself."""
        return frozenset(_names_needed(self.node))


def read_cells(path: str | Path) -> list[str]:
    """The code cells of a notebook. Raises ValueError, saying what is wrong with the file."""
    try:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
        return [
            "".join(c["source"]) if isinstance(c["source"], list) else str(c["source"])
            for c in cells
        ]
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a readable notebook: {error}") from error


def statements_of(number: int, source: str) -> list[Statement]:
    """A cell's statements. Raises one of UNREADABLE for a text that is no Python, magics aside."""
    return [
        Statement(number, node)
        for statement in _parsed(source).body
        for node in _one_by_one(statement)
    ]


def _parsed(source: str) -> ast.Module:
    """Its syntax tree, if Python would compile it: a parameter that comes twice, say, has one too."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        source = MAGIC.sub(r"\1pass", source)
        tree = ast.parse(source)
    symtable.symtable(source, "<cell>", "exec")
    return tree


def rejoined(cells: Sequence[str]) -> list[str]:
    """The cells; where an answer was split in its middle, the first half's cell has both halves."""
    whole = list(cells)
    for n in range(1, len(whole)):
        halves = whole[n - 1], whole[n]
        if DECORATED.search(halves[0]) and not all(map(_is_python, halves)):
            both = "\n".join(halves)
            if _is_python(both):
                whole[n - 1], whole[n] = both, ""
    return whole


def _is_python(source: str) -> bool:
    try:
        _parsed(source)
    except UNREADABLE:
        return False
    return True


def _names_needed(node: ast.stmt) -> set[str]:
    """The names that a definition uses; `exercise` is none of them."""
    return names_used(undecorated(copy.copy(node)) if key_of(node) else node)


def _one_by_one(node: ast.stmt) -> list[ast.stmt]:
    """An import of several names as one for each: an answer takes only those that it uses."""
    if isinstance(node, ast.Import):
        return [ast.copy_location(ast.Import([name]), node) for name in node.names]
    if isinstance(node, ast.ImportFrom):
        return [
            ast.copy_location(ast.ImportFrom(node.module, [name], node.level), node)
            for name in node.names
        ]
    return [node]


def is_definition(node: ast.stmt) -> bool:
    """Is the statement there for what it binds? Loops, `with` and bare expressions are not."""
    return not isinstance(node, ast.For | ast.While | ast.With | ast.Expr)


def key_of(node: ast.stmt) -> str | None:
    """The key in a definition's @exercise("…"); None without one."""
    for decorator in getattr(node, "decorator_list", []):
        match decorator:
            case ast.Call(func=ast.Name(id="exercise"), args=[ast.Constant(value=str(key)), *_]):
                return key
    return None


def undecorated(node: ast.stmt) -> ast.stmt:
    """The definition without its @exercise, so that running it checks nothing."""
    if key_of(node):
        node.decorator_list = [  # type: ignore[attr-defined]
            d
            for d in node.decorator_list  # type: ignore[attr-defined]
            if not (
                isinstance(d, ast.Call) and isinstance(d.func, ast.Name) and d.func.id == "exercise"
            )
        ]
    return node
