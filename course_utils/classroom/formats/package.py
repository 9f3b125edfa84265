"""Files of the package that a form adds to what students get, or to what grades them elsewhere."""

from collections.abc import Callable
from pathlib import Path

import course_utils

PACKAGE = Path(course_utils.__file__).parent
ROOT = PACKAGE.parent
FOR_AUTHORS = ("authoring", "classroom/editions", "classroom/formats")
"""What grades nobody."""


def classroom_files(wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Files of `course_utils.classroom`, those whose path inside it is wanted."""
    home = PACKAGE / "classroom"
    return {
        path: data
        for path, data in files_below(home).items()
        if wanted(path.removeprefix("course_utils/classroom/"))
    }


def grading_files() -> dict[str, bytes]:
    """The whole package but what authors need: references, exercises and the sandbox too."""
    left_out = tuple(f"course_utils/{name}/" for name in FOR_AUTHORS)
    return {p: data for p, data in files_below(PACKAGE).items() if not p.startswith(left_out)}


def files_below(folder: Path) -> dict[str, bytes]:
    """By path from the folder that holds the package."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
