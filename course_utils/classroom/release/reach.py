"""What a Python text takes from the package: which modules it reaches, which names of them.

Nothing is run: imports, attributes of imported modules, dotted names in strings (a module that
another process runs), and code that stands in strings (the set-up of a prediction).
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from course_utils.source.imports import Import, imports_in, python_of, strings_in

PACKAGE = "course_utils"
DOTTED = re.compile(rf"{PACKAGE}(?:\.[A-Za-z_]\w*)+")
RANKS = re.compile(r"\s*%%ranks\b(.*)")


@dataclass(frozen=True)
class Taken:
    """A name of a module, or "" for the module itself."""

    module: str
    name: str


@dataclass(frozen=True)
class Source:
    """A Python text. label: what it is called in a complaint. dotted: its own module name."""

    label: str
    text: str
    dotted: str = ""

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text)

    def taken(self, known: frozenset[str]) -> set[Taken]:
        """What it takes from these modules of the package, given by their dotted names."""
        return set(_taken_by_text(self.text, self.dotted, known))


@lru_cache(maxsize=1024)
def parsed(text: str) -> ast.Module:
    """The tree of a text, shared: nobody changes it."""
    return ast.parse(text)


@lru_cache(maxsize=1024)
def _taken_by_text(text: str, dotted: str, known: frozenset[str]) -> frozenset[Taken]:
    return frozenset(taken_in(parsed(text), dotted, known))


def taken_in(tree: ast.AST, dotted: str, known: frozenset[str]) -> set[Taken]:
    """What a text takes from the modules `known`, strings in it included."""
    found = set(_taken_by(tree, dotted, known))
    for text in strings_in(tree):
        found |= set(_taken_by_string(text, known))
    return found


def cell_source(label: str, source: str) -> Source:
    """A notebook's cell: without magics; a cell for ranks by its body."""
    return Source(label, python_of(source))


def pushed(source: str) -> set[str]:
    """The notebook's names that a cell for ranks sends to them."""
    match = RANKS.match(source)
    found = re.search(r"\bpush=([\w,]+)", match[1]) if match else None
    return set(found[1].split(",")) if found else set()


def _taken_by(tree: ast.AST, dotted: str, known: frozenset[str]) -> Iterator[Taken]:
    bound = Imports.of(tree, dotted, known)
    yield from bound.modules
    yield from bound.names.values()
    yield from attributes(tree, bound.aliases, known)
    for module, name in bound.starred(tree):
        yield Taken(module, name)


@dataclass
class Imports:
    """What a text's imports from the package bind.

    modules: that they load. names: taken from modules, by the name they get here. aliases: names
    that stand for modules. stars: modules of which everything is taken.
    """

    modules: list[Taken] = field(default_factory=list)
    names: dict[str, Taken] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, tree: ast.AST, dotted: str, known: frozenset[str]) -> "Imports":
        found = cls()
        for one in imports_in(tree, dotted, PACKAGE):
            found.take(one, known)
        return found

    def take(self, one: Import, known: frozenset[str]) -> None:
        """Note what one name of an import statement binds."""
        self.modules += _parents(one.module, known)
        if not one.name:
            name, module = one.binding
            self.aliases[name] = module
        elif one.name == "*":
            self.stars.append(one.module)
        elif one.dotted in known:
            self.aliases[one.bound] = one.dotted
            self.modules.append(Taken(one.dotted, ""))
        else:
            self.names[one.bound] = Taken(one.module, one.name)

    def starred(self, tree: ast.AST) -> Iterator[tuple[str, str]]:
        """The names that the text uses and that a starred import may have brought."""
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} if self.stars else set()
        return ((module, name) for module in self.stars for name in sorted(used))


def _parents(name: str, known: frozenset[str]) -> Iterator[Taken]:
    """The module and the packages around it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        if (one := ".".join(parts[:end])) in known:
            yield Taken(one, "")


def attributes(tree: ast.AST, aliases: Mapping[str, str], known: frozenset[str]) -> Iterator[Taken]:
    """``alias.name`` and ``course_utils.reference.strides.name``."""
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        if not (parts and isinstance(inner, ast.Name) and inner.id in aliases):
            continue
        module = aliases[inner.id]
        while parts and f"{module}.{parts[0]}" in known:
            module = f"{module}.{parts.pop(0)}"
            yield Taken(module, "")
        if parts:
            yield Taken(module, parts[0])


def _taken_by_string(text: str, known: frozenset[str]) -> Iterator[Taken]:
    if DOTTED.fullmatch(text):
        yield from _parents(text, known)
    elif PACKAGE in text and "import" in text:
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return
        yield from _taken_by(tree, "", known)


def modules(files: Mapping[str, bytes]) -> dict[str, str]:
    """The modules among an edition's files: path by dotted name; a package is its __init__."""
    found = {}
    for path in files:
        if path.startswith(f"{PACKAGE}/") and path.endswith(".py"):
            dotted = path.removesuffix(".py").replace("/", ".")
            found[dotted.removesuffix(".__init__")] = path
    return found


def module_source(dotted: str, path: str, files: Mapping[str, bytes]) -> Source:
    """A module of an edition as a text that knows its own name."""
    own = f"{dotted}.__init__" if path.endswith("__init__.py") else dotted
    return Source(path, files[path].decode(), own)
