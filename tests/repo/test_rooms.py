"""The rooms of the package: how full they are, and that every name of one, wherever it is written, is there."""

import ast
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
A_FILE_A_CHAPTER = ("reference", "exercises", "questions", "figures", "chapters")
MOST_FILES = 12
DOTTED = re.compile(r"\bcourse_utils((?:\.[A-Za-z_]\w*)+)")
SLASHED = re.compile(r"\bcourse_utils((?:/\w[\w.]*)+)")
MADE_UP = re.compile(
    r"questions\.toy|reference\.strides\.name|reference\.wrong_shapes|x|nowhere|engine.*|"
    r"(exercises|reference)\.[a-z]\b.*"
)
"""Names in the tests of what reads imports, and in one docstring."""
MADE_UP_FILES = re.compile(
    r"/(exercises|questions|reference)/(padding|[ab])\.py|/(a|b|gone|questions/s)"
)
WRITTEN = (".py", ".md", ".toml", ".yml", ".sh", ".ipynb", ".in", "Makefile")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return [ROOT / name for name in listed if (ROOT / name).exists()]


def test_no_room_is_overfull():
    files = [path for path in tracked() if path.suffix == ".py" and "course_utils" in path.parts]
    count = Counter(path.parent for path in files if path.name != "__init__.py")
    full = {str(room.relative_to(ROOT)): n for room, n in count.items() if n > MOST_FILES}
    assert not {room for room in full if Path(room).name not in A_FILE_A_CHAPTER}, full


@cache
def names_in(file: Path) -> frozenset[str]:
    """The names that a module binds at its top, or writes in a string for later."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    found |= {n.name for n in ast.walk(tree) if hasattr(n, "name") and isinstance(n.name, str)}
    found |= {(a.asname or a.name) for n in ast.walk(tree) for a in getattr(n, "names", ())
              if isinstance(a, ast.alias)}  # fmt: skip
    return frozenset(
        found
        | {
            n.value
            for n in ast.walk(tree)
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
    )


def is_there(parts: list[str]) -> bool:
    """Is `course_utils.<parts>` a module, or a name in one?"""
    here = ROOT / "course_utils"
    for number, part in enumerate(parts):
        if (here / part).is_dir():
            here = here / part
        elif (here / f"{part}.py").exists():
            rest = parts[number + 1 :]
            return not rest or rest[0] in names_in(here / f"{part}.py")
        else:
            return (here / "__init__.py").exists() and part in names_in(here / "__init__.py")
    return True


def mentions(text: str) -> set[str]:
    """What is said of the package, what every module has (`__file__`) and what tests make up aside."""
    found = {found[1].strip(".") for found in DOTTED.finditer(text)}
    return {name for name in found if "__" not in name and not MADE_UP.fullmatch(name)}


@pytest.mark.parametrize("suffix", WRITTEN)
def test_every_name_of_a_module_is_there(suffix):
    missing = [
        f"{path.relative_to(ROOT)}: course_utils.{name}"
        for path in tracked()
        if path.name.endswith(suffix) and path != Path(__file__)
        for name in sorted(mentions(path.read_text(encoding="utf-8")))
        if not is_there(name.split("."))
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("suffix", WRITTEN)
def test_every_path_of_a_file_is_there(suffix):
    missing = [
        f"{path.relative_to(ROOT)}: course_utils{found}"
        for path in tracked()
        if path.name.endswith(suffix) and path != Path(__file__)
        for found in sorted({m[1] for m in SLASHED.finditer(path.read_text(encoding="utf-8"))})
        if not (
            MADE_UP_FILES.fullmatch(found) or (ROOT / f"course_utils{found.rstrip('.')}").exists()
        )
    ]
    assert not missing, "\n".join(missing)


def test_a_name_that_is_gone_would_be_seen():
    assert is_there(["grading", "driving", "case", "Case"])
    assert not is_there(["grading", "driving", "nobody"])
    assert not is_there(["grading", "driving", "case", "Nobody"])
    assert mentions("see course_utils.grading.find.") == {"grading.find"}
