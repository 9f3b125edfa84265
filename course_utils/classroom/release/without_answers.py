"""An edition without answers: graded definitions out of the book's modules, exercises as data."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import nbformat

import course_utils
from course_utils.carried import asked_keys
from course_utils.grading import Exercise, exercises_of, find
from course_utils.grading.expecting.from_file import FOLDER, SUFFIX
from course_utils.grading.expecting.from_file import chapter as stored_chapter

from .edition import CannotRelease, Edition
from .needs import Graph, names_in, needs
from .observations import NotStorable, stored
from .package import package_files
from .reach import PACKAGE, Source, Taken, cell_source, pushed
from .removal import by_module, home, reduced

ROOMS = tuple(
    f"{PACKAGE}.{room}" for room in ("reference", "exercises", "questions", "figures", "sweeps")
)
"""Packages of which an edition holds only what its notebooks reach."""

CHAPTER = '''"""The chapter's exercises, from what was observed of the answers, which this edition leaves out."""

from {module} import chapter

globals().update(chapter(__name__))
'''


def without_answers(edition: Edition) -> Edition:
    """The edition with the package that may be handed out beside its notebooks.

    It can be read; to be run it needs the exercises, which `observed` adds.
    """
    whole = package_files(Path(course_utils.__file__).parent)
    graph = Graph(whole)
    graded, others = _graded(edition), _beside(edition)
    reached = _reach(graph, edition, [*graded, *others])
    stubs = by_module(graded)
    changed: dict[str, bytes] = {}
    removed: dict[str, frozenset[str]] = {}
    for module, by_name in stubs.items():
        needed = {one.name for one in reached if one.module == module}
        needed |= {p.__name__ for one in others for p in one.parts if home(p) == module}
        path = graph.paths[module]
        found = reduced(whole[path].decode(), by_name, needed - by_name.keys())
        changed[path] = found.text.encode()
        removed[module] = found.graded | found.helpers
    files = dict(_kept_files(whole, graph, {one.module for one in reached}))
    shipped = {p: d for p, d in edition.files.items() if not p.startswith(f"{PACKAGE}/")}
    return replace(edition, files={**shipped, **files, **changed}, removed=removed)


def observed(edition: Edition, say: Callable[[str], None] = lambda _: None) -> Edition:
    """An edition without answers, with its exercises: what was observed of each, which takes time.

    say: told which is being observed. Raises CannotRelease where an exercise cannot be kept as data.
    """
    graded, others = _graded(edition), _beside(edition)
    kept = dict(stored_files(graded, others, say))
    size = sum(map(len, kept.values()))
    note = f"stored observations of {len(graded) + len(others)} exercises: {size / 1e6:.1f} MB"
    return replace(edition.with_files(files=kept), notes=(*edition.notes, note))


# ------------------------------------------------------------------------------ what is reached


def _cells(edition: Edition) -> Iterator[tuple[Source, nbformat.NotebookNode]]:
    """The code cells of an edition's notebooks, the set-up aside."""
    for path, data in sorted(edition.notebooks.items()):
        notebook = nbformat.reads(data.decode(), as_version=4)
        for number, cell in enumerate(notebook.cells, start=1):
            if cell.cell_type == "code" and "setup" not in cell.metadata.get("tags", ()):
                label = f"{Path(path).name}, cell {number}"
                yield cell_source(label, cell.source), cell


def _graded(edition: Edition) -> list[Exercise]:
    """The exercises that count."""
    return [find(key) for key in edition.plan.keys]


def _beside(edition: Edition) -> list[Exercise]:
    """Exercises that an edition's notebooks hold or ask for, besides those that count."""
    found = set()
    for source, cell in _cells(edition):
        found.add(cell.metadata.get("exercise", ""))
        found |= {key for _, key in asked_keys(source.tree)}
    return [find(key) for key in sorted(found - {"", *edition.plan.keys})]


def _roots(edition: Edition, graph: Graph) -> list[Source]:
    """The texts that run whole: cells, and the questions of chapters that ask some."""
    found = []
    chapters = set()
    for source, _ in _cells(edition):
        found.append(source)
        for node in ast.walk(source.tree):
            match node:
                case ast.Call(
                    func=ast.Name(id="predict" | "quiz"), args=[ast.Constant(value=str(key)), *_]
                ):
                    chapters.add(key.partition(".")[0])
    for chapter in sorted(chapters):
        module = f"{PACKAGE}.questions.{chapter}"
        if module in graph.sources:
            found.append(graph.sources[module])
    return found


def _reach(graph: Graph, edition: Edition, exercises: Iterable[Exercise]) -> set[Taken]:
    """Every name of the package's rooms that the notebooks, or modules that they reach, take.

    Modules of the rooms are reached by imports; the rest of the package is there anyway.
    """
    reached: set[Taken] = set()
    parts = {home(part) for exercise in exercises for part in exercise.parts}
    waiting = [*_roots(edition, graph), *(graph.sources[module] for module in sorted(parts))]
    waiting += [s for m, s in graph.sources.items() if _is_core(m) and not _lazy(m)]
    seen = {source.label for source in waiting}
    reached |= {Taken(source.dotted, "") for source in waiting if source.dotted}
    while waiting:
        source = waiting.pop()
        for one in source.taken(graph.known):
            reached.add(one)
            further = graph.sources.get(one.module)
            if further and _in_rooms(one.module) and further.label not in seen:
                seen.add(further.label)
                waiting.append(further)
    return reached


def _in_rooms(module: str) -> bool:
    return module.startswith(tuple(f"{room}." for room in ROOMS)) or module in ROOMS


def _is_core(module: str) -> bool:
    return not _in_rooms(module)


LAZY = (f"{PACKAGE}.cli", f"{PACKAGE}.recordings.recorders")
"""Core modules whose imports from the rooms serve verbs that an edition may lack."""


def _lazy(module: str) -> bool:
    return module in LAZY


def _kept_files(
    whole: Mapping[str, bytes], graph: Graph, reached: set[str]
) -> Iterator[tuple[str, bytes]]:
    """The package's files that go into the edition: of the rooms, the modules that are reached."""
    modules = {path: dotted for dotted, path in graph.paths.items()}
    for path, data in whole.items():
        module = modules.get(path, "")
        if module.startswith(ROOMS[1] + "."):
            continue  # a chapter's cases, mistakes and alternatives: there is a stored form
        if _in_rooms(module) and module not in ROOMS and module not in reached:
            continue
        if _lazy(module) and not _satisfied(graph, module, reached):
            continue
        yield path, data


def _satisfied(graph: Graph, module: str, reached: set[str]) -> bool:
    """Are the rooms' modules that it imports at its top there?"""
    top = [n for n in graph.sources[module].tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    source = Source("", "\n".join(map(ast.unparse, top)), graph.sources[module].dotted)
    return all(t.module in reached for t in source.taken(graph.known) if _in_rooms(t.module))


# ------------------------------------------------------------------------------ what is stored


def stored_files(
    graded: Iterable[Exercise], others: Iterable[Exercise], say: Callable[[str], None]
) -> Iterator[tuple[str, bytes]]:
    """For each chapter a module that reads its exercises; for each exercise its file."""
    problems: list[str] = []
    chapters: dict[str, None] = {}
    for hidden, exercises in ((True, graded), (False, others)):
        for exercise in exercises:
            say(f"observing {exercise.key}")
            chapters[exercise.chapter] = None
            number = _place(exercise)
            file = f"{number:02d}_{exercise.key.partition('.')[2]}{SUFFIX}"
            try:
                data = stored(exercise, hidden)
            except NotStorable as error:
                problems.append(str(error))
                continue
            yield f"{PACKAGE}/exercises/{FOLDER}/{exercise.chapter}/{file}", data
    if problems:
        raise CannotRelease(problems)
    for chapter in chapters:
        yield (
            f"{PACKAGE}/exercises/{chapter}.py",
            CHAPTER.format(module=stored_chapter.__module__).encode(),
        )


def _place(exercise: Exercise) -> int:
    """Its number in its chapter, from 1."""
    return list(exercises_of(exercise.chapter)).index(exercise.key) + 1


# ------------------------------------------------------------------------------ does it hold?


def static_problems(edition: Edition) -> list[str]:
    """What in the edition needs a removed definition, found by reading it."""
    graph = Graph(edition.files)
    found = [str(need) for need in needs(graph, _roots(edition, graph), edition.removed)]
    unbound = {
        name: key for key in edition.plan.keys if not find(key).stand_in for name in find(key).names
    }
    for source, cell in _cells(edition):
        if "exercise" not in cell.metadata:
            for name in sorted((names_in(source.tree) | pushed(cell.source)) & unbound.keys()):
                found.append(
                    f"{source.label} uses {name}, an answer to {unbound[name]} for which nothing "
                    "stands in"
                )
        for verb, key in asked_keys(source.tree):
            if key in edition.plan.keys and not (verb == "mine" and find(key).stand_in):
                found.append(f'{source.label} asks for an answer that is removed: {verb}("{key}")')
    return list(dict.fromkeys(found))
