"""The book's modules without the graded definitions: stubs in their place, their helpers gone."""

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from course_utils.grading import Exercise
from course_utils.source.names import first_line, names_bound, names_used
from course_utils.source.stub import stub_source


@dataclass(frozen=True)
class Reduced:
    """A module without its graded definitions.

    text: of the module. graded: the names that are stubs now. helpers: the names that are gone,
    because nothing but graded definitions used them.
    """

    text: str
    graded: frozenset[str]
    helpers: frozenset[str]


def home(part: object) -> str:
    """The dotted name of the module that a reference is defined in."""
    module = inspect.getmodule(inspect.unwrap(part))  # type: ignore[arg-type]
    assert module is not None
    return module.__name__


def by_module(exercises: Iterable[Exercise]) -> dict[str, dict[str, str]]:
    """The stubs of these exercises: by module, by name."""
    found: dict[str, dict[str, str]] = {}
    for exercise in exercises:
        for part in exercise.parts:
            found.setdefault(home(part), {})[part.__name__] = stub_in_edition(part)
    return found


def stub_in_edition(part: Callable[..., Any]) -> str:
    """The stub that stands in the reference's place: a generator function stays one."""
    source = stub_source(part)
    return source + "\n    yield" if inspect.isgeneratorfunction(inspect.unwrap(part)) else source


def reduced(text: str, stubs: Mapping[str, str], needed: Iterable[str]) -> Reduced:
    """The module `text` with a stub for each graded definition.

    stubs: their sources by name. needed: names that other texts of the edition take from it.
    Definitions that only graded ones use are part of the answer: they go.
    Raises KeyError if the module does not define a graded name.
    """
    tree = ast.parse(text)
    nodes = {name: node for node in tree.body for name in names_bound(node) if _defines(node)}
    for name in stubs:
        nodes[name]
    uses = {name: names_used(node) & nodes.keys() for name, node in nodes.items()}
    uses |= {name: names_used(stub) & nodes.keys() for name, stub in stubs.items()}
    graded_uses = set().union(*(names_used(nodes[name]) & nodes.keys() for name in stubs))
    original = {name: names_used(node) & nodes.keys() for name, node in nodes.items()}
    candidates = _closure(graded_uses, original) - stubs.keys()
    loose = set().union(*(names_used(node) for node in tree.body if not _defines(node)))
    roots = (nodes.keys() - candidates) | (set(needed) | loose) & nodes.keys()
    helpers = candidates - _closure(roots, uses)
    return Reduced(_without(text, tree, stubs, helpers), frozenset(stubs), frozenset(helpers))


def _defines(node: ast.stmt) -> bool:
    """Is this a definition or a constant, which may be taken out?"""
    return isinstance(
        node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign
    )


def _closure(names: Iterable[str], uses: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= uses.get(name, set()) - found
    return found


def _without(text: str, tree: ast.Module, stubs: Mapping[str, str], helpers: Iterable[str]) -> str:
    """The text with the stubs in place, and without the helpers and the remarks right above them."""
    lines = text.splitlines()
    gone = set(helpers)
    for node in reversed(tree.body):
        bound = set(names_bound(node)) if _defines(node) else set()
        stub = next((stubs[name] for name in bound if name in stubs), None)
        if stub is None and not (bound and bound <= gone):
            continue
        first, last = first_line(node) - 1, node.end_lineno or node.lineno
        while first and lines[first - 1].startswith("#"):
            first -= 1
        if stub is None and _is_docstring_after(tree, node):
            last = _docstring_end(tree, node)
        lines[first:last] = stub.splitlines() if stub else []
    return _tidy("\n".join(lines) + "\n")


def _following(tree: ast.Module, node: ast.stmt) -> ast.stmt | None:
    place = tree.body.index(node) + 1
    return tree.body[place] if place < len(tree.body) else None


def _is_docstring_after(tree: ast.Module, node: ast.stmt) -> bool:
    """Is the next statement a text that explains this constant?"""
    match _following(tree, node):
        case ast.Expr(value=ast.Constant(value=str())):
            return isinstance(node, ast.Assign | ast.AnnAssign)
    return False


def _docstring_end(tree: ast.Module, node: ast.stmt) -> int:
    after = _following(tree, node)
    assert after is not None
    return after.end_lineno or after.lineno


def _tidy(text: str) -> str:
    """At most two empty lines in a row."""
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    return text
