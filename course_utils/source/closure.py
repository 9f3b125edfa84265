"""Which files of a package some code depends on: read from the text, nothing is run.

Pages are executed again, and recordings are outdated, when one of these files has changed.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from .imports import DOTTED, imports_in, is_under, python_of, strings_in


def closure(
    sources: Iterable[str],
    package: Path,
    *,
    files: Iterable[Path] = (),
    rooms: Sequence[str] = (),
    chapters: Sequence[str] = (),
    aside: Sequence[str] = (),
    known: "Known | None" = None,
) -> set[Path]:
    """Files of `package` that code reaches: imports of imports, modules named in strings, data.

    sources: of code cells. files: of modules in `package`, which count themselves. rooms: folders
    with a module for each chapter; of `chapters`, and of those whose exercises the sources name
    ("modules.LayerNorm"), these count, too. aside: folders into which no import is followed.
    known: what an earlier call has read of the package, which has not changed since.
    """
    known = known or Known(package)
    names: set[str] = set()
    of_chapters = set(chapters)
    for source in sources:
        tree = ast.parse(python_of(source))
        names |= set(_named(tree, f"{package.name}.<cell>", package.name))
        of_chapters |= {text.split(".")[0] for text in strings_in(tree) if DOTTED.fullmatch(text)}
    names |= {f"{package.name}.{room}.{chapter}" for room in rooms for chapter in of_chapters}

    left_out = [f"{package.name}.{room}" for room in aside]

    def followed(names: Iterable[str]) -> list[Path]:
        kept = [name for name in names if not any(is_under(name, room) for room in left_out)]
        return [file for name in kept for file in known.files(name)]

    found: set[Path] = set()
    waiting = [*files, *followed(names)]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += followed(known.read(file)[0])
    return found | {data for file in found for data in _data(file, known)}


class Known:
    """A package as it is now: each of its files is looked for and read once."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self._files: dict[str, tuple[Path, ...]] = {}
        self._read: dict[Path, tuple[tuple[str, ...], frozenset[str]]] = {}

    def files(self, name: str) -> tuple[Path, ...]:
        """The module's file and the `__init__` of each package around it; attributes are ignored."""
        if name not in self._files:
            self._files[name] = tuple(_files(name, self.package))
        return self._files[name]

    def read(self, file: Path) -> tuple[tuple[str, ...], frozenset[str]]:
        """What a module imports, and its strings."""
        if file not in self._read:
            dotted = ".".join(file.relative_to(self.package.parent).with_suffix("").parts)
            self._read[file] = _read_text(file.read_bytes(), dotted)
        return self._read[file]


@lru_cache(maxsize=1024)
def _read_text(text: bytes, dotted: str) -> tuple[tuple[str, ...], frozenset[str]]:
    tree = ast.parse(text)
    return tuple(_named(tree, dotted, dotted.split(".")[0])), frozenset(strings_in(tree))


def _named(tree: ast.Module, dotted: str, package: str) -> Iterator[str]:
    """Dotted names of the package that the module named `dotted` imports, or spells in a string."""
    for one in imports_in(tree, dotted, package):
        yield from (one.module, one.dotted)
    texts = (text for text in strings_in(tree) if DOTTED.fullmatch(text))
    yield from (text for text in texts if is_under(text, package))


def _files(name: str, package: Path) -> Iterator[Path]:
    here = package
    yield from _existing(here / "__init__.py")
    for part in name.split(".")[1:]:
        yield from _existing(here / f"{part}.py")
        here = here / part
        yield from _existing(here / "__init__.py")


def _existing(file: Path) -> Iterator[Path]:
    if file.is_file():
        yield file


def _data(file: Path, known: Known) -> Iterator[Path]:
    """Settings that lie beside a module and that it names; the scripts, if it names any."""
    _, strings = known.read(file)
    for pattern in ("*.toml", "*.json"):
        yield from (data for data in file.parent.glob(pattern) if data.name in strings)
    if any(re.search(r"(^|/)js($|/)|\.js$", text) for text in strings):
        yield from known.package.rglob("*.js")
