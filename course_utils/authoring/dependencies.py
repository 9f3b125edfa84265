"""What the code of a module depends on within `course_utils`, read from its import statements.

A dependency is a file: a name that a package merely passes on counts as the file that defines it,
so that a new probe beside the others changes nothing for who uses another one. Imports anywhere in
a file count, those inside of functions too; a module named by a string does not.
"""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path

import course_utils
from course_utils.source.imports import Import, imports_in

ROOT = Path(course_utils.__file__).parents[1]
PACKAGE = "course_utils"
LISTS = frozenset({f"{PACKAGE}.exercises"})
"""Packages that only say in which order their modules come: a verdict does not depend on it."""
DOCUMENTED = ("reference", "exercises")
"""Rooms whose docstrings count: the stubs are made of them, and a proof compares them."""


def closure(modules: Iterable[str], root: Path = ROOT) -> frozenset[str]:
    """Names of all modules of the course that these use, themselves included.

    root: the folder that holds the package. Raises ModuleNotFoundError for a module that is not there.
    """
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imported(module, root)
    return frozenset(found)


def digest(modules: Iterable[str], root: Path = ROOT) -> str:
    """Of what the code of all these modules says: comments and formatting do not count."""
    total = hashlib.sha256()
    for module in sorted(modules):
        total.update(f"{module} {_fingerprint(_file(module, root))}\n".encode())
    return total.hexdigest()


def imported(module: str, root: Path = ROOT) -> frozenset[str]:
    """Names of the modules of the course that this one uses itself."""
    return frozenset(_imported(module, root))


def _file(module: str, root: Path) -> Path:
    plain = root.joinpath(*module.split("."))
    for file in (plain.with_suffix(".py"), plain / "__init__.py"):
        if file.is_file():
            return file
    raise ModuleNotFoundError(f"there is no module {module} in {root}", name=module)


def _is_module(name: str, root: Path) -> bool:
    try:
        return bool(_file(name, root))
    except ModuleNotFoundError:
        return False


@cache
def _fingerprint(file: Path) -> str:
    tree = _tree(file)
    if _is_package(file):
        tree = ast.Module([node for node in tree.body if not _passes_on(node)], [])
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_package(file: Path) -> bool:
    return file.name == "__init__.py"


def _passes_on(statement: ast.stmt) -> bool:
    """Is it an import, or the list of a package's names? Who uses one depends on its home."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Assign([ast.Name("__all__")]):
            return True
    return _for_types(statement)


def _for_types(node: ast.AST) -> bool:
    """Is it what only a type checker runs?"""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(ast.Constant(str())), *rest]:
            return rest
    return body


@cache
def _imported(module: str, root: Path) -> frozenset[str]:
    file = _file(module, root)
    tree = _tree(file)
    found: set[str] = set()
    for one in _imports(module, file, running=True):
        home = _home(one.module, one.name, root)
        if home not in LISTS and not (_is_package(file) and not _loads(tree, one.bound)):
            as_a_whole = home == one.dotted
            found |= _behind(tree, one.bound, home, root) if as_a_whole else {home}
    return frozenset(found - {module})


@cache
def _imports(module: str, file: Path, *, running: bool = False) -> tuple[Import, ...]:
    """The imports of the course's in a module. running: but for those for a type checker."""
    tree = _tree(file)
    if running:
        tree = ast.Module([node for node in tree.body if not _for_types(node)], [])
    return tuple(imports_in(tree, f"{module}.__init__" if _is_package(file) else module, PACKAGE))


def _home(source: str, name: str, root: Path) -> str:
    """The module that holds what `from source import name` gives: a package may only pass it on."""
    if not name:
        return source
    if _is_module(f"{source}.{name}", root):
        return f"{source}.{name}"
    file = _file(source, root)
    if not _is_package(file):
        return source
    for one in _imports(source, file):
        if one.bound == name:
            return _home(one.module, one.name, root)
    if name in _defined(_tree(file)) or name.startswith("__"):
        return source
    raise ImportError(
        f"{source} does not say in an import from where its {name} comes", name=source
    )


def _defined(tree: ast.Module) -> set[str]:
    """Names that a module binds by itself, not in an import."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    named = {node.name for node in tree.body if isinstance(node, definitions)}
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return named | stored


@cache
def _tree(file: Path) -> ast.Module:
    """A file's text, without the docstrings that do not count."""
    tree = ast.parse(file.read_bytes())
    for node in () if _documented(file) else ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = _without_docstring(node.body)
    return tree


def _documented(file: Path) -> bool:
    return any((PACKAGE, room) in pairwise(file.parts) for room in DOCUMENTED)


def _behind(tree: ast.Module, bound: str, home: str, root: Path) -> set[str]:
    """What a name that stands for a module depends on: of a package the homes of its attributes."""
    file = _file(home, root)
    if not _is_package(file):
        return {home}
    attributes = _attributes(tree, bound)
    if len(attributes) < _loads(tree, bound):  # handed on as a whole
        passed_on = _imports(home, file)
        return {home} | {_home(one.module, one.name, root) for one in passed_on}
    return {_home(home, attribute, root) for attribute in attributes} or {home}


def _attributes(tree: ast.Module, name: str) -> list[str]:
    return [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    ]


def _loads(tree: ast.Module, name: str) -> int:
    """How often the name is read."""
    return sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )
