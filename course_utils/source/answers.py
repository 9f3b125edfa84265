"""Answers out of a notebook: each answer's definition with all above it that may make what it needs.

Nothing is run until an answer is built. Cell metadata is not consulted: an answer is found by its decorator, so a
cell that was split, moved, copied or stripped of its metadata is found just the same.
"""

import __future__

import ast
import builtins
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from .cells import DECORATED, UNREADABLE, Statement, cell_of, rejoined, spellings, statements_of
from .effects import (
    DEFINITION,
    EVERYTHING,
    EffectsOfCalling,
    How,
    effects_of_calling,
    ways_to_change,
)
from .notebook_python import NoShell
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


def answers(texts: list[str]) -> dict[str, WrittenAnswer]:
    """Every answer in a notebook's code cells by key; of several with one key, the last."""
    cells = rejoined([cell_of(text) for text in texts])
    called = spellings(cells)
    statements, found = [], {}
    for number, cell in enumerate(cells):
        statements += statements_of(number, cell, called)
        if error := cell.error:
            where = f", line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else ""
            for key in DECORATED.findall(cell.source):
                problem = f"code cell {number + 1}{where or f': {error}'}"
                found[key] = WrittenAnswer(key, problem=problem)
    parts: dict[str, dict[str, int]] = {}
    for i, statement in enumerate(statements):
        if key := statement.key:
            mine = parts.setdefault(key, {})
            name = getattr(statement.node, "name", "")
            mine.pop(name, None)  # an earlier attempt, which is not even run
            mine[name] = i
    sources = tuple(cell.source for cell in cells)
    needs = _Needs(statements)
    for key, names in parts.items():
        places = list(names.values())
        try:
            needed = needs.of(places)
            stubs = tuple(defines_a_stub(statements[place].node) for place in places)
            found[key] = WrittenAnswer(key, needed, tuple(names), sources, stubs=stubs)
        except UNREADABLE:
            number = statements[places[0]].cell + 1
            found[key] = WrittenAnswer(
                key, problem=f"code cell {number}, or what it needs: {_TOO_DEEP}"
            )
    unwritten = {key for key, answer in found.items() if answer.stubs and all(answer.stubs)}
    return {key: _marked(answer, unwritten - {key}) for key, answer in found.items()}


def _marked(answer: WrittenAnswer, unwritten: set[str]) -> WrittenAnswer:
    """The answer with what it needs of exercises that are still stubs marked as that."""
    marked = (
        replace(one, unwritten=True) if one.key in unwritten else one for one in answer.statements
    )
    return replace(answer, statements=tuple(marked))


class _Needs:
    """What answers need of a notebook's statements."""

    def __init__(self, statements: list[Statement]) -> None:
        self.statements = statements
        self.binders: dict[str, list[int]] = {}
        self.touching: dict[str, dict[int, set[How]]] = {}
        for i, statement in enumerate(statements):
            called = self.called_by(statement)
            for name in statement.binds.union(*(one.binds for one in called)):
                self.binders.setdefault(name, []).append(i)
            for name, how in statement.effects.changes.union(*(one.changes for one in called)):
                self.touching.setdefault(name, {}).setdefault(i, set()).add(how)

    def called_by(self, statement: Statement) -> list[EffectsOfCalling]:
        """What the functions of the notebook do that a statement calls, and those that they call."""
        found: dict[str, EffectsOfCalling] = {}
        waiting = list(statement.effects.calls)
        while waiting:
            name = waiting.pop()
            above = self.binders.get(name, [])
            if name in found or not above:
                continue
            if isinstance(definition := self.statements[above[-1]].node, DEFINITION):
                found[name] = effects_of_calling(definition)
                waiting += found[name].calls
        return list(found.values())

    def of(self, places: list[int]) -> tuple[Statement, ...]:
        """The statements at these places and all that they need, in an order in which they can be run.

        A name that is bound several times is taken as it was where the statement stands, for what runs
        as it is defined, and as it is at the last place, for what runs when it is called. What may have
        changed it until then is run, too; if that raises, it is passed over.
        """
        end = max(places)
        futures = [i for i, one in enumerate(self.statements[:end]) if _future(one.node)]
        doubtful = dict.fromkeys([*places, *futures], False)
        ahead = list(doubtful)
        while ahead:
            place = ahead.pop()
            for name in self.statements[place].uses:
                for i, may in self.makers(name, place, end):
                    in_doubt = may or doubtful[place]  # what is in doubt needs nothing for sure
                    if i not in doubtful or doubtful[i] > in_doubt:
                        doubtful[i] = in_doubt
                        ahead.append(i)
        return tuple(
            replace(self.statements[i], doubtful=doubtful[i])
            for i in _in_order(self.statements, set(doubtful))
        )

    def makers(self, name: str, place: int, end: int) -> Iterator[tuple[int, bool]]:
        """Statements that make what a name stands for at a place, and at the end; each with: is it only
        in doubt? Where nothing above binds it, the last that does below."""
        found = [*self.above(name, place), *self.above(name, end)]
        if all(in_doubt for _, in_doubt in found):
            found += [(i, False) for i in self.binders.get(name, [])[-1:]]
        return iter(found)

    def above(self, name: str, place: int) -> Iterator[tuple[int, bool]]:
        """Upwards from a place: what binds the name until one does so surely, and what may change it."""
        mine, any_name = self.binders.get(name, []), self.binders.get(EVERYTHING, [])
        unchangeable = hasattr(builtins, name) and not mine and not any_name
        ways, first = frozenset(() if unchangeable else How), 0
        for i in sorted((i for i in {*mine, *any_name} if i < place), reverse=True):
            yield i, False
            if name in self.statements[i].binds and self.statements[i].effects.surely:
                ways, first = ways_to_change(self.statements[i].node), i
                break
        for i, hows in self.touching.get(name, {}).items():
            if first < i < place and hows & ways:
                yield i, True


def _future(node: ast.stmt) -> list[str]:
    """What is imported from `__future__`."""
    match node:
        case ast.ImportFrom(module="__future__", names=names):
            return [alias.name for alias in names]
    return []


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
    answer: WrittenAnswer,
    notebook: str = "notebook",
    names: Sequence[str] = (),
    instead: Callable[[str], Mapping[str, Any]] = lambda _key: {},
) -> tuple[Any, ...]:
    """Run an answer's statements in a namespace of their own; the objects it defines.

    names: what the exercise asks for, by default whatever the answer's cells define. instead: what the
    names of another exercise, which is still the stub, stand for, by name; without them it is the stub.
    Line numbers and sources are those of the cells. Whatever the statements raise is raised here; and
    NameError if one of the names is not defined.
    """
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    space["get_ipython"] = NoShell
    flags = 0
    for statement in answer.statements:
        if statement.unwritten and (others := instead(statement.key or "")):
            name = getattr(statement.node, "name", "")
            space |= others if name in others else {name: next(iter(others.values()))}
            continue
        filename = f"<{notebook}, code cell {statement.cell + 1}>"
        source = answer.sources[statement.cell]
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        for name in _future(statement.node):
            flags |= getattr(__future__, name).compiler_flag
        module = ast.Module([statement.undecorated()], [])
        code = compile(module, filename, "exec", flags, dont_inherit=True)
        with suppress(*([Exception] if statement.doubtful else [])):
            exec(code, space)
    if len(names) == 1:  # whatever it is called, as in the notebook
        space[names[0]] = space[answer.names[-1]]
    missing = [name for name in names if name not in space]
    if missing:
        raise NameError(f"{answer.key} asks for {' and '.join(names)}: {missing[0]} is missing")
    return tuple(space[name] for name in names or answer.names)
