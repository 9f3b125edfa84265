"""What students need beside their notebooks: the package without its tools, pinned requirements."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from .reach import parsed

LEFT_OUT = ("authoring", "classroom", "sandbox")
"""Packages that only authors and instructors need."""
STUDENT_SECTIONS = ("What the course is about", "What a student works in")
"""Sections of requirements.in that every edition needs."""
CPU_TORCH = "--extra-index-url https://download.pytorch.org/whl/cpu"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def package_files(package: Path) -> dict[str, bytes]:
    """The files of the package for students, by path from the folder that holds it."""
    found = {}
    for file in sorted(package.rglob("*")):
        inside = file.relative_to(package)
        hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
        if not file.is_file() or hidden or file.suffix == ".pyc":
            continue
        if inside.parts[0] in LEFT_OUT:
            continue
        found[f"{package.name}/{inside.as_posix()}"] = file.read_bytes()
    return found


# ------------------------------------------------------------------------------ requirements


def requirements(root: Path, sources: Iterable[str]) -> str:
    """The pinned requirements of an edition, out of the course's own lock file.

    root: of the course. sources: Python that the edition runs; a package of requirements.in that
    it imports is needed too.
    """
    sections = dict(direct((root / "requirements.in").read_text(encoding="utf-8")))
    wanted = {name for name, section in sections.items() if section in STUDENT_SECTIONS}
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted |= {normal(name_in(line)) for line in project["dependencies"]}
    imported = {normal(name) for source in sources for name in imports(source)}
    wanted |= imported & sections.keys()
    lines = pinned((root / "requirements.txt").read_text(encoding="utf-8"), wanted)
    head = (
        "# What this edition needs, each in the version that the course was tested with.\n"
        "# torch is the CPU build; for an NVIDIA GPU install the build that pytorch.org names first.\n"
    )
    return head + CPU_TORCH + "\n" + "\n".join(lines) + "\n"


def normal(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_in(line: str) -> str:
    """The package that a line of requirements names."""
    found = NAME.match(line)
    assert found, f"no package is named in {line!r}"
    return found[0]


def direct(text: str) -> Iterator[tuple[str, str]]:
    """The direct dependencies, each with the heading that it stands under."""
    section = ""
    for line in text.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ").strip()
        elif line.strip():
            yield normal(name_in(line)), section


def pinned(lock: str, wanted: set[str]) -> list[str]:
    """The lock file's lines for these packages and all that they pull in, in its order."""
    lines: dict[str, list[str]] = {}  # more than one where Pythons or systems need other versions
    needed_by: dict[str, set[str]] = {}
    name = ""
    for line in lock.splitlines():
        if line and not line.startswith(("#", " ", "-")):
            name = normal(name_in(line))
            lines.setdefault(name, []).append(line)
            needed_by.setdefault(name, set())
        elif name and (by := line.strip().lstrip("#").strip().removeprefix("via").strip()):
            needed_by[name].add(normal(by))
    kept, waiting = set(), set(wanted)
    while waiting:
        one = waiting.pop()
        kept.add(one)
        waiting |= {name for name, by in needed_by.items() if one in by} - kept
    return [line for name in lines if name in kept for line in lines[name]]


@lru_cache(maxsize=1024)
def imports(source: str) -> frozenset[str]:
    """The outermost names that a Python text imports; none where it is no Python."""
    try:
        tree = parsed(source)
    except SyntaxError:
        return frozenset()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return frozenset(found)
