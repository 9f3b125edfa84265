"""Import statements, read and not run: which modules a text names, and what it takes from them."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_EXTENSION = re.compile(r"^(\s*)%load_ext +(?=\w)", re.MULTILINE)
_MAGIC = re.compile(r"^(\s*)[%!?][%!?{\w].*$", re.MULTILINE)


@dataclass(frozen=True)
class Import:
    """One name of an import statement.

    module: in full, a relative one too. name: what is taken from it, "*" for everything, "" for the
    module itself. bound: the name that it gets here; "" for `import a.b`, which binds `a`.
    """

    module: str
    name: str
    bound: str

    @property
    def dotted(self) -> str:
        """The module, or what may be one: `from a import b` gives "a.b"."""
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def binding(self) -> tuple[str, str]:
        """The name that gets bound here, and in dots what it stands for: of `import a.b` "a", twice."""
        top = self.module.partition(".")[0]
        return (self.bound, self.dotted) if self.bound else (top, top)


def imports_of(node: ast.AST, dotted: str = "") -> list[Import]:
    """The names of an import statement, in a text whose own name is `dotted`; none of any other node."""
    match node:
        case ast.Import(names=given):
            return [Import(alias.name, "", alias.asname or "") for alias in given]
        case ast.ImportFrom(names=given):
            module = _absolute(node, dotted)
            return [Import(module, a.name, a.asname or a.name) for a in given]
    return []


def imports_in(tree: ast.AST, dotted: str, package: str) -> Iterator[Import]:
    """The imports from a package, inside of functions too, in a text whose own name is `dotted`.

    A package's own name ends in ".__init__", so that its last part is always the file.
    """
    for node in ast.walk(tree):
        yield from (one for one in imports_of(node, dotted) if is_under(one.module, package))


def _absolute(node: ast.ImportFrom, dotted: str) -> str:
    """The module that a from-import names, seen from the module called `dotted`."""
    here = dotted.split(".")[: -node.level] if node.level else []
    return ".".join([*here, *([node.module] if node.module else [])])


def is_under(name: str, package: str) -> bool:
    """Is it the package, or something in it?"""
    return name == package or name.startswith(f"{package}.")


def strings_in(tree: ast.AST) -> Iterator[str]:
    """The strings of a text, docstrings included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def python_of(cell: str) -> str:
    """A cell line by line, `%load_ext` as an import, every other magic as `pass`; "" for no Python."""
    text = _MAGIC.sub(r"\1pass", _EXTENSION.sub(r"\1import ", cell))
    try:
        ast.parse(text)
    except SyntaxError:
        return ""
    return text
