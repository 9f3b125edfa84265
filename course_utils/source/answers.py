"""Answers out of a notebook: each answer's definition with the definitions and imports it needs.

Nothing is run here. Cell metadata is not consulted: an answer is found by its decorator, so a
cell that was split, moved, copied or stripped of its metadata is found just the same.
"""

import ast
import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .cells import (
    DECORATED,
    UNREADABLE,
    Statement,
    is_definition,
    key_of,
    rejoined,
    statements_of,
    undecorated,
)
from .stub import defines_a_stub

_TOO_DEEP = "an expression nests too deeply to be read"


@dataclass(frozen=True)
class WrittenAnswer:
    """key: of the exercise. statements: what defines it, in order. names: of its parts. sources:
    the cells' texts by number. problem: why there is none (a syntax error), with cell and line.
    stubs: of each of its definitions, is it still the stub?"""

    key: str
    statements: tuple["Statement", ...] = ()
    names: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    problem: str = ""
    stubs: tuple[bool, ...] = ()

    def is_untouched(self, parts: int) -> bool:
        """Is it still the stub? Where one part is asked for, the last definition is the answer."""
        return all(self.stubs[-1:] if parts == 1 else self.stubs)


def answers(cells: list[str]) -> dict[str, WrittenAnswer]:
    """Every answer in the cells by key; of several with one key, the last."""
    cells = rejoined(cells)
    statements, found = [], {}
    for number, source in enumerate(cells):
        try:
            statements += statements_of(number, source)
        except UNREADABLE as error:
            where = f", line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else ""
            for key in DECORATED.findall(source):
                problem = f"code cell {number + 1}{where or f': {error}'}"
                found[key] = WrittenAnswer(key, problem=problem)
    parts: dict[str, dict[str, int]] = {}
    for i, statement in enumerate(statements):
        key = key_of(statement.node)
        if key:
            mine = parts.setdefault(key, {})
            name = getattr(statement.node, "name", "")
            mine.pop(name, None)  # an earlier attempt, which is not even run
            mine[name] = i
    for key, names in parts.items():
        places = list(names.values())
        try:
            needed = _closure(statements, places)
            stubs = tuple(defines_a_stub(statements[place].node) for place in places)
            found[key] = WrittenAnswer(key, needed, tuple(names), tuple(cells), stubs=stubs)
        except UNREADABLE:
            cell = statements[places[0]].cell + 1
            found[key] = WrittenAnswer(
                key, problem=f"code cell {cell}, or what it needs: {_TOO_DEEP}"
            )
    return found


def _closure(statements: list[Statement], places: list[int]) -> tuple[Statement, ...]:
    """The answer's statements and all that they need, in an order in which they can be run.

    A name that is bound several times is taken as it was where the statement stands, for what runs
    as it is defined, and as it is last, for what runs when it is called.
    """
    binders: dict[str, list[int]] = {}
    for i, statement in enumerate(statements):
        for name in statement.binds if is_definition(statement.node) else ():
            binders.setdefault(name, []).append(i)
    keep, ahead = set(places), list(places)
    while ahead:
        place = ahead.pop()
        for name in statements[place].uses:
            found = binders.get(name, [])
            before = [i for i in found if i < place]
            last = [i for i in found if i < max(places)] or found
            new = {*before[-1:], *last[-1:]} - keep
            keep |= new
            ahead += new
    return tuple(statements[i] for i in _in_order(statements, keep))


def _in_order(statements: list[Statement], keep: set[int]) -> list[int]:
    """The notebook's order; but what binds a name that nothing before its use binds comes first."""
    order: list[int] = []
    bound: set[str] = set()
    waiting = set(keep)

    def put(i: int) -> None:
        waiting.discard(i)
        for name in sorted(statements[i].uses - statements[i].binds - bound):
            for j in sorted(j for j in waiting if name in statements[j].binds):
                if j in waiting:
                    put(j)
        order.append(i)
        bound.update(statements[i].binds)

    for i in sorted(keep):
        if i in waiting:
            put(i)
    return order


def build(
    answer: WrittenAnswer, notebook: str = "notebook", names: Sequence[str] = ()
) -> tuple[Any, ...]:
    """Run an answer's statements in a namespace of their own; the objects it defines.

    names: what the exercise asks for, by default whatever the answer's cells define. Line numbers and
    sources are those of the cells. Whatever the statements raise is raised here; and NameError if
    one of the names is not defined.
    """
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    for statement in answer.statements:
        filename = f"<{notebook}, code cell {statement.cell + 1}>"
        source = answer.sources[statement.cell]
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        module = ast.Module([undecorated(statement.node)], [])
        exec(compile(module, filename, "exec"), space)
    if len(names) == 1:  # whatever it is called, as in the notebook
        space[names[0]] = space[answer.names[-1]]
    missing = [name for name in names if name not in space]
    if missing:
        raise NameError(f"{answer.key} asks for {' and '.join(names)}: {missing[0]} is missing")
    return tuple(space[name] for name in names or answer.names)
