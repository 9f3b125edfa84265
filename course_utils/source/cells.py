"""The code cells of a notebook as statements: each with the names that it binds and needs."""

import ast
import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .effects import Effects, effects_of
from .names import names_used
from .notebook_python import as_python

MAGIC = re.compile(r"^([^\S\n]*)[%!?].*$", re.MULTILINE)  # line by line: the text may be hostile
DECORATED = re.compile(r"""^@[\w.]+\(\s*(?:key\s*=\s*)?["']([a-z_]\w*\.\w+)["']""", re.MULTILINE)
"""What looks like `@exercise("chapter.name")`, however `exercise` was imported."""
PLAIN = frozenset({"exercise"})
"""How `exercise` is called where nobody has given it another name."""
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Cell:
    """A code cell, read once. tree: its syntax; where it has none, error says why (one of UNREADABLE)."""

    source: str
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))
    error: Exception | None = None


@dataclass(frozen=True)
class Statement:
    """A statement of a cell. spellings: what `exercise` is called in the notebook.

    doubtful: it is run only because it may change something that is needed. unwritten: it belongs to an
    exercise that is still the stub.
    """

    cell: int
    node: ast.stmt
    spellings: frozenset[str] = PLAIN
    doubtful: bool = False
    unwritten: bool = False

    @cached_property
    def key(self) -> str | None:
        """Of the exercise that it answers; None for any other statement."""
        return key_of(self.node, self.spellings)

    @cached_property
    def effects(self) -> Effects:
        """What it does to names when it runs."""
        return effects_of(self.node)

    @cached_property
    def binds(self) -> frozenset[str]:
        """Names that it binds, or may."""
        return self.effects.binds

    @cached_property
    def uses(self) -> frozenset[str]:
        """Names that it looks up outside of itself, those of builtins included, which a notebook may bind
        anew; `exercise` is none of them."""
        return frozenset(names_used(self.undecorated(), builtins_too=True))

    def undecorated(self) -> ast.stmt:
        """The statement without its @exercise, so that running it checks nothing."""
        if not self.key:
            return self.node
        node = copy.copy(self.node)
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        node.decorator_list = [
            decorator
            for decorator in node.decorator_list
            if _key_in(decorator, self.spellings) is None
        ]
        return node


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


def cell_of(source: str) -> Cell:
    """Read the text of a code cell; magics are passed over."""
    try:
        return Cell(source, as_python(source))
    except UNREADABLE as error:
        return Cell(source, error=error)


def statements_of(number: int, cell: Cell, spellings: frozenset[str] = PLAIN) -> list[Statement]:
    """A cell's statements; none for one that cannot be read."""
    return [
        Statement(number, node, spellings)
        for statement in cell.tree.body
        for node in _one_by_one(statement)
    ]


def spellings(cells: Sequence[Cell]) -> frozenset[str]:
    """What `exercise` is called in a notebook: `exercise`, `course_utils.exercise`, or a name of its own."""
    found = set(PLAIN)
    for cell in cells:
        for node in cell.tree.body:
            match node:
                case ast.Import(names=names):
                    ours = [alias for alias in names if alias.name == "course_utils"]
                    found |= {f"{alias.asname or alias.name}.exercise" for alias in ours}
                case ast.ImportFrom(module="course_utils", names=names):
                    found |= {a.asname for a in names if a.name == "exercise" and a.asname}
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Name() | ast.Attribute() as value
                ):
                    found |= {name} if ast.unparse(value) in found else set()
    return frozenset(found)


def rejoined(cells: Sequence[Cell]) -> list[Cell]:
    """The cells; where an answer was split in its middle, the first half's cell has both halves."""
    whole = list(cells)
    for n in range(1, len(whole)):
        first, second = whole[n - 1], whole[n]
        if DECORATED.search(first.source) and (first.error or second.error):
            both = cell_of(f"{first.source}\n{second.source}")
            if not both.error:
                whole[n - 1], whole[n] = both, Cell("")
    return whole


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


def key_of(node: ast.stmt, spellings: frozenset[str] = PLAIN) -> str | None:
    """The key in a definition's @exercise("…"); None without one."""
    keys = (_key_in(decorator, spellings) for decorator in getattr(node, "decorator_list", []))
    return next((key for key in keys if key), None)


def _key_in(decorator: ast.expr, spellings: frozenset[str]) -> str | None:
    match decorator:
        case ast.Call(func=func, args=[ast.Constant(value=str(key)), *_]):
            return key if ast.unparse(func) in spellings else None
        case ast.Call(func=func, keywords=[ast.keyword("key", ast.Constant(value=str(key))), *_]):
            return key if ast.unparse(func) in spellings else None
    return None
