"""Files of the package that a form adds to what students get, or to what grades them elsewhere."""

from pathlib import Path

import course_utils
from course_utils.classroom.release.package import LEFT_OUT
from course_utils.classroom.release.reach import module_source, modules

PACKAGE = Path(course_utils.__file__).parent
ROOT = PACKAGE.parent
FOR_AUTHORS = ("authoring", "classroom/release", "classroom/platforms")
"""What grades nobody."""


def needed_by(start: str) -> dict[str, bytes]:
    """The modules that a module of the package needs and that students' editions leave out.

    start: its dotted name. Modules are found by reading imports, those inside functions too.
    """
    files = _files_below(PACKAGE)
    paths = modules(files)
    known = frozenset(paths)
    reached, waiting = {start}, [start]
    while waiting:
        one = waiting.pop()
        taken = module_source(one, paths[one], files).taken(known)
        further = {other.module for other in taken if other.module in known} - reached
        reached |= further
        waiting += further
    rooms = tuple(f"{PACKAGE.name}/{room}/" for room in LEFT_OUT)
    found = sorted(paths[module] for module in reached)
    return {path: files[path] for path in found if path.startswith(rooms)}


def grading_files() -> dict[str, bytes]:
    """The whole package but what authors need: references, exercises and the sandbox too."""
    left_out = tuple(f"{PACKAGE.name}/{name}/" for name in FOR_AUTHORS)
    return {p: data for p, data in _files_below(PACKAGE).items() if not p.startswith(left_out)}


def _files_below(folder: Path) -> dict[str, bytes]:
    """By path from the folder that holds the package."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
