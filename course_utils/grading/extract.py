"""Answers out of a notebook: each answer's definition with the definitions and imports it needs.

Nothing is run here. Cell metadata is not consulted: an answer is found by its decorator, so a
cell that was split, moved, copied or stripped of its metadata is found just the same.
"""

import ast
import json
import linecache
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .stubs import names_bound, names_used

MAGIC = re.compile(r"^(\s*)[%!?].*$", re.MULTILINE)
DECORATED = re.compile(r"""^@exercise\(\s*["']([\w.]+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """key: of the exercise. statements: what defines it, in order. names: of its parts. sources:
    the cells' texts by number. problem: why there is none (a syntax error), with cell and line."""

    key: str
    statements: tuple["Statement", ...] = ()
    names: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Statement:
    cell: int
    node: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]


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


def answers(cells: list[str]) -> dict[str, Answer]:
    """Every answer in the cells by key; of several with one key, the last."""
    statements, found = [], {}
    for number, source in enumerate(cells):
        clean = MAGIC.sub(r"\1pass", source)
        try:
            tree = ast.parse(clean, filename=f"<cell {number + 1}>")
        except SyntaxError as error:
            for key in DECORATED.findall(source):
                problem = f"code cell {number + 1}, line {error.lineno}: {error.msg}"
                found[key] = Answer(key, problem=problem)
            continue
        for node in tree.body:
            binds, uses = frozenset(names_bound(node)), frozenset(names_used(node))
            statements.append(Statement(number, node, binds, uses))
    parts: dict[str, list[int]] = {}
    for i, statement in enumerate(statements):
        key = key_of(statement.node)
        if key:
            parts.setdefault(key, []).append(i)
    for key, places in parts.items():
        names = dict.fromkeys(getattr(statements[i].node, "name", "") for i in places)
        found[key] = Answer(key, closure(statements, places), tuple(names), tuple(cells))
    return found


def closure(statements: list[Statement], places: list[int]) -> tuple[Statement, ...]:
    """The answer's statements and all that they need, in the order of the notebook."""
    keep = set(places)
    wanted = set().union(*(statements[i].uses for i in places))
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        seen.add(name)
        binders = [i for i, s in enumerate(statements) if name in s.binds and is_definition(s.node)]
        earlier = [i for i in binders if i < max(places)]
        for i in (earlier or binders)[-1:]:
            if i not in keep:
                keep.add(i)
                wanted |= statements[i].uses - seen
    return tuple(statements[i] for i in sorted(keep))


def is_definition(node: ast.stmt) -> bool:
    return not isinstance(node, ast.For | ast.While | ast.With | ast.Expr)


def key_of(node: ast.stmt) -> str | None:
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


def build(answer: Answer, notebook: str = "notebook") -> tuple[Any, ...]:
    """Run an answer's statements in a namespace of their own; the objects it defines.

    Line numbers and sources are those of the cells. Whatever the statements raise is raised here.
    """
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    for statement in answer.statements:
        filename = f"<{notebook}, code cell {statement.cell + 1}>"
        source = answer.sources[statement.cell]
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        module = ast.Module([undecorated(statement.node)], [])
        exec(compile(module, filename, "exec"), space)
    return tuple(space[name] for name in answer.names)
