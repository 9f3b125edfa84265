"""What the outputs of a notebook depend on, besides its own cells.

Cached execution compares a notebook's code only. A digest of the code that it imports, put in its
first code cell, makes it run again when that code changes, and only then.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CHAPTER_ROOMS = ("reference", "exercises", "questions", "figures")
LIBRARIES = ("torch", "numpy", "matplotlib", "jaxtyping", "beartype", "einops", "hypothesis")
MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def digest(sources: Iterable[str], chapter: str, package: Path) -> str:
    """Digest of the files in the closure and of the versions of the libraries beneath them."""
    state = hashlib.sha256()
    for file in sorted(closure(sources, chapter, package)):
        state.update(f"{file.relative_to(package).as_posix()}\0".encode())
        state.update(hashlib.sha256(file.read_bytes()).digest())
    for library in LIBRARIES:
        state.update(f"{library}=={_version(library)}\n".encode())
    return state.hexdigest()


def closure(sources: Iterable[str], chapter: str, package: Path) -> set[Path]:
    """Files of ``package`` that code cells reach: imports of imports, chapter modules, data.

    sources: of the code cells. chapter: ``strides`` for ``02_strides.ipynb``. Exercise keys such as
    ``"modules.LayerNorm"`` in the cells add their own chapter's modules.
    """
    names: set[str] = set()
    chapters = {chapter}
    for source in sources:
        tree = _parse(source)
        names |= set(_imports(tree, f"{package.name}.<cell>", package.name))
        chapters |= {text.split(".")[0] for text in _strings(tree) if MODULE.fullmatch(text)}
    names |= {f"{package.name}.{room}.{name}" for room in CHAPTER_ROOMS for name in chapters}

    found: set[Path] = set()
    waiting = [file for name in names for file in _files(name, package)]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            imports, _ = _module(file, package)
            waiting += [f for name in imports for f in _files(name, package)]
    return found | {data for file in found for data in _data(file, package)}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


def _parse(source: str) -> ast.Module:
    """The cell without its magics; an empty module where that is no Python."""
    lines = [line for line in source.split("\n") if not re.match(r"\s*[%!]", line)]
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


@cache
def _read(file: Path, dotted: str, _mtime: int) -> tuple[tuple[str, ...], frozenset[str]]:
    """What a module imports, and its strings; a file is read again when it has changed."""
    tree = ast.parse(file.read_bytes())
    return tuple(_imports(tree, dotted, dotted.split(".")[0])), frozenset(_strings(tree))


def _module(file: Path, package: Path) -> tuple[tuple[str, ...], frozenset[str]]:
    return _read(file, _dotted(file, package), file.stat().st_mtime_ns)


def _imports(tree: ast.Module, dotted: str, root: str) -> Iterator[str]:
    """Dotted names under ``root`` that the module named ``dotted`` imports, or spells in a string.

    ``dotted`` of a package ends in ``.__init__``, so that its last part is always the file.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _under(alias.name, root))
        elif isinstance(node, ast.ImportFrom):
            here = dotted.split(".")[: -node.level] if node.level else []
            base = ".".join([*here, *([node.module] if node.module else [])])
            if _under(base, root):
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)
    yield from (text for text in _strings(tree) if MODULE.fullmatch(text) and _under(text, root))


def _strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _under(name: str, root: str) -> bool:
    return name == root or name.startswith(f"{root}.")


def _files(name: str, package: Path) -> Iterator[Path]:
    """The module's file and the ``__init__`` of each package around it; attributes are ignored."""
    here = package
    yield from _existing(here / "__init__.py")
    for part in name.split(".")[1:]:
        yield from _existing(here / f"{part}.py")
        here = here / part
        yield from _existing(here / "__init__.py")


def _existing(file: Path) -> Iterator[Path]:
    if file.is_file():
        yield file


def _dotted(file: Path, package: Path) -> str:
    return ".".join(file.relative_to(package.parent).with_suffix("").parts)


def _data(file: Path, package: Path) -> Iterator[Path]:
    """Settings that lie beside a module and that it names; the scripts, if it names any."""
    _, strings = _module(file, package)
    for pattern in ("*.toml", "*.json"):
        yield from (data for data in file.parent.glob(pattern) if data.name in strings)
    if any(re.search(r"(^|/)js($|/)|\.js$", text) for text in strings):
        yield from package.rglob("*.js")
