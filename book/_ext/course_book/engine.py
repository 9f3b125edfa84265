"""The only place where the site talks to ``course_utils``; imported lazily, as torch is slow."""

import atexit
import hashlib
import os
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CHAPTER_ROOMS = ("reference", "exercises", "questions", "figures")
LIBRARIES = ("torch", "numpy", "matplotlib", "jaxtyping", "beartype", "einops", "hypothesis")


def package() -> Path:
    """Folder of ``course_utils``."""
    from importlib.util import find_spec

    spec = find_spec("course_utils")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("course_utils is not installed: run `make setup` first")
    return Path(next(iter(spec.submodule_search_locations)))


def closure(sources: Iterable[str], chapter: str, package: Path) -> set[Path]:
    """Files of `package` that a page's outputs depend on.

    sources: of its code cells. chapter: ``strides`` for ``02_strides.ipynb``.
    """
    from course_utils.source.closure import closure as files_reached

    known = _known(package)
    return files_reached(sources, package, rooms=CHAPTER_ROOMS, chapters=[chapter], known=known)


@lru_cache
def _known(package: Path) -> Any:
    """What has been read of the package: its files stay as they are while a site is built."""
    from course_utils.source.closure import Known

    return Known(package)


def digest(sources: Iterable[str], chapter: str, package: Path) -> str:
    """Digest of these files and of the versions of the libraries beneath them.

    Cached execution compares a page's cells only. The digest, put in its first code cell, makes
    it run again when the code that it imports changes, and only then.
    """
    state = hashlib.sha256()
    for file in sorted(closure(sources, chapter, package)):
        state.update(f"{file.relative_to(package).as_posix()}\0".encode())
        state.update(hashlib.sha256(file.read_bytes()).digest())
    for library in LIBRARIES:
        state.update(f"{library}=={_version(library)}\n".encode())
    return state.hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"


@lru_cache
def hints(key: str) -> tuple[tuple[str, str | None], ...]:
    """The exercise's staged hints, first to last: Markdown, and the rung that it fits or None."""
    from course_utils.grading import find

    return tuple((hint.text, hint.rung) for hint in find(key).staged_hints)


@lru_cache
def declared(key: str) -> dict[str, Any]:
    """What the exercise's author declares: title, difficulty, minutes, points, and what is checked besides
    values, in words and by kinds.
    """
    from course_utils.grading import find

    exercise = find(key)
    gradients = ["gradients"] if exercise.gradients else []
    besides = [*gradients, *(contract.promise for contract in exercise.contracts)]
    kinds = [*gradients, *(kind_of(contract.judge) for contract in exercise.contracts)]
    facts = {name: getattr(exercise, name) for name in ("title", "difficulty", "minutes", "points")}
    return facts | {"besides": tuple(dict.fromkeys(besides)), "kinds": tuple(dict.fromkeys(kinds))}


KINDS = {
    **dict.fromkeys(("bytes_largest", "bytes_allocated", "bytes_peak", "bytes_saved"), "memory"),
    **dict.fromkeys(("peak", "resident"), "memory"),
    **dict.fromkeys(("traffic", "messages", "collectives"), "communication"),
    **dict.fromkeys(("flops", "kernels"), "operations"),
}
"""Figures that a contract may bound, by what they are about."""


def kind_of(judge: Any) -> str:
    """What a contract bounds: memory, communication, operations, or loops in Python.

    Raises KeyError for a judge that is none of the course's.
    """
    figure = getattr(judge, "meter", None) or getattr(judge, "figure", None)
    return KINDS[figure] if figure else {"ConstantKernels": "loops"}[type(judge).__name__]


def needs(notebooks: Path) -> dict[int, Any]:
    """What each chapter needs (`course_utils.authoring.needs.Needs`), by number."""
    from course_utils.authoring.needs import read

    return read(notebooks, package())


def before(chapters: dict[int, Any], goals: Iterable[int]) -> list[int]:
    """Numbers of the goals and of every chapter that comes before them, in the book's order."""
    from course_utils.authoring.needs import all_before

    return all_before(chapters, goals)


def directly_before(chapters: dict[int, Any], number: int) -> list[int]:
    """Chapters that come before this one, those aside that come before one of these."""
    from course_utils.authoring.needs import direct

    return direct(chapters, number)


@lru_cache
def solution(key: str) -> str:
    """Source of the cell that answers the exercise with the book's solution."""
    from course_utils.grading import solution_cell

    return solution_cell(key)


def recordings(cells: list[dict[str, Any]]) -> dict[int, tuple[list[Any], str]]:
    """For the place of each gpu cell its outputs, if they are current, and what is said of them."""
    from course_utils.recordings import RECORDED
    from course_utils.recordings.cells import digests, outputs, sentence, state

    found = {}
    for at, digest in digests(cells, solution).items():
        shown = outputs(cells[at]) if state(cells[at], digest) == RECORDED else []
        found[at] = shown, sentence(cells[at], digest)
    return found


def missing(tags: Iterable[str]) -> tuple[str, str] | None:
    """What a cell with these tags needs and this machine lacks, in words, and how to get it; else None.

    What is recorded on a GPU is `recordings`' matter.
    """
    from course_utils import needs

    need = needs.of_tags(tags)
    return None if need is None or need.present() else (need.what, need.get)


def wanted(tags: Iterable[str]) -> tuple[str, str] | None:
    """What a cell with these tags needs besides a CPU and a GPU, in words, and how to get it; else None."""
    from course_utils import needs

    need = needs.of_tags(tags)
    return None if need in (None, needs.GPU) else (need.what, need.get)  # type: ignore[union-attr]


def would_show(source: str) -> str:
    """What a gpu cell's first comment says that it would show."""
    from course_utils.recordings import cells

    return cells.would_show(source)


def without_comments(source: str) -> str:
    """A gpu cell's source without that comment, which the page says in its own words."""
    from course_utils.recordings import cells

    return cells.without_comment(source)


def fresh_home() -> None:
    """Give the next kernel an empty progress file: not the author's, nor another notebook's."""
    os.environ["COURSE_HOME"] = tempfile.mkdtemp(prefix="course-book-", dir=_homes())


@lru_cache
def _homes() -> str:
    folder = tempfile.TemporaryDirectory(prefix="course-book-")
    atexit.register(folder.cleanup)
    return folder.name


def prepare_kernels() -> None:
    """Let kernels be the ones of the Python that builds the site, with ports that nothing else takes."""
    from course_utils.processes import kernels

    kernels.of_this_python()


@lru_cache
def built_on() -> dict[str, tuple[str, ...]]:
    """For each exercise the earlier ones that the book's solution of it uses, itself or through helpers.

    What those build on in turn is not repeated.
    """
    from course_utils.classroom.release.needs import Graph
    from course_utils.classroom.release.reach import Taken
    from course_utils.grading import every

    files = (package() / "reference").glob("*.py")
    graph = Graph({f"course_utils/reference/{file.name}": file.read_bytes() for file in files})
    parts = {
        key: [Taken(part.__module__, part.__name__) for part in one.parts]
        for key, one in every().items()
    }
    owners = {part: key for key, own in parts.items() for part in own}
    answers: dict[str, list[str]] = {}
    for part in owners:
        answers.setdefault(part.module, []).append(part.name)
    found: dict[str, tuple[str, ...]] = {}
    for key, own in parts.items():
        start = {used for part in own for used in graph.used_by(part)}
        called = {owners[what] for what, _ in graph.ways(start, answers)}
        found[key] = tuple(earlier for earlier in found if earlier in called)
    return found
