"""Does anything that is handed out need what was removed? Found by reading, before anything runs."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from course_utils.source.names import names_bound, names_used

from .reach import Imports, Source, Taken, attributes, module_source, modules, taken_in


@dataclass(frozen=True)
class Need:
    """Who needs a removed definition, and by which way. way: definitions, as "figures.strides.walk"."""

    who: str
    what: Taken
    way: tuple[str, ...] = ()

    def __str__(self) -> str:
        through = f" through {', '.join(self.way)}" if self.way else ""
        return f"{self.who} needs {_short(self.what)}{through}, which is removed"


def _short(taken: Taken) -> str:
    module = taken.module.removeprefix("course_utils.")
    return f"{module}.{taken.name}" if taken.name else module


class Graph:
    """The definitions of an edition's modules, and which of them each one uses.

    files: the edition's. Modules of the package that are not among them are not looked into.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.paths = modules(files)
        self.known = frozenset(self.paths)
        self.sources = {
            dotted: module_source(dotted, path, files) for dotted, path in self.paths.items()
        }
        self.imports = cache(self._imports)
        self.definitions = cache(self._definitions)
        self.used_by = cache(self._used_by)

    def _imports(self, module: str) -> Imports:
        source = self.sources[module]
        return Imports.of(source.tree, source.dotted, self.known)

    def _definitions(self, module: str) -> dict[str, list[ast.stmt]]:
        """The statements that bind each of a module's names, imports aside."""
        found: dict[str, list[ast.stmt]] = {}
        for node in self.sources[module].tree.body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                for name in names_bound(node):
                    found.setdefault(name, []).append(node)
        return found

    def _used_by(self, one: Taken) -> set[Taken]:
        """What a definition uses; a module as such uses what runs when it is imported."""
        if one.module not in self.known:
            return set()
        if not one.name:
            loose = [n for n in self.sources[one.module].tree.body if _runs_at_import(n)]
            return self.taken(one.module, loose)
        nodes = self.definitions(one.module).get(one.name, [])
        again = self.imports(one.module).names.get(one.name)
        return self.taken(one.module, nodes) | ({again} if again else set())

    def taken(self, module: str, nodes: Iterable[ast.stmt]) -> set[Taken]:
        imports, own = self.imports(module), self.definitions(module)
        found: set[Taken] = set()
        for node in nodes:
            for name in names_used(node):
                if name in own:
                    found.add(Taken(module, name))
                elif name in imports.names:
                    found.add(imports.names[name])
            found |= set(attributes(node, imports.aliases, self.known))
            found |= taken_in(node, self.sources[module].dotted, self.known)
        return found

    def ways(self, start: Iterable[Taken], removed: Mapping[str, Iterable[str]]) -> Iterator[Any]:
        """From what is taken, the removed definitions that are reached, each with the way there."""
        gone = {Taken(module, name) for module, names in removed.items() for name in names}
        seen: set[Taken] = set()
        waiting: list[tuple[Taken, tuple[str, ...]]] = [
            (one, ()) for one in sorted(start, key=_short)
        ]
        while waiting:
            one, way = waiting.pop(0)
            if one in seen:
                continue
            seen.add(one)
            if one in gone:
                yield one, way
                continue
            further = sorted(self.used_by(one), key=_short)
            waiting += [(next_one, (*way, _short(one))) for next_one in further]


def _runs_at_import(node: ast.stmt) -> bool:
    quiet = (
        ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
    )
    return not isinstance(node, quiet)


def needs(
    graph: Graph, sources: Iterable[Source], removed: Mapping[str, Iterable[str]]
) -> list[Need]:
    """Which of the sources (cells, and modules that are used whole) need a removed definition."""
    return [
        Need(source.label, what, way)
        for source in sources
        for what, way in graph.ways(source.taken(graph.known), removed)
    ]


# ------------------------------------------------------------------------------ names in a notebook


def names_in(tree: ast.AST) -> set[str]:
    """The names that a text uses."""
    return names_used(ast.unparse(tree))
