"""Does an answer fit the stub of the newer edition?"""

import ast
from collections.abc import Sequence

from .pieces import Piece, definitions
from .stamp import Cell


def misfit(answer: Sequence[Piece], stub: Cell) -> str | None:
    """Why an answer does not fit the new stub, in words; None if it does."""
    key = answer[0].key
    wanted = definitions(stub["source"], key) or {}
    given: dict[str, ast.stmt] = {}
    for piece in answer:
        found = definitions(piece.source, key)
        if found is None:
            return None
        given |= found
    for name, node in wanted.items():
        if name not in given:
            return f"`{name}` is asked for now"
        reason = _differing(node, given[name])
        if reason:
            return reason
    return None


def _differing(stub: ast.stmt, answer: ast.stmt) -> str | None:
    if isinstance(stub, ast.ClassDef) != isinstance(answer, ast.ClassDef):
        return f"`{stub.name}` is another kind of thing now"  # type: ignore[attr-defined]
    if isinstance(stub, ast.FunctionDef):
        suits = isinstance(answer, ast.FunctionDef) and _suits_calls(stub, answer)
        return None if suits else f"`{stub.name}` takes {_listed(stub)} now"
    assert isinstance(stub, ast.ClassDef) and isinstance(answer, ast.ClassDef)
    methods = {m.name: m for m in answer.body if isinstance(m, ast.FunctionDef)}
    for method in (m for m in stub.body if isinstance(m, ast.FunctionDef)):
        if method.name not in methods:
            return f"`{stub.name}` has a method `{method.name}` now"
        if not _suits_calls(method, methods[method.name]):
            return f"`{stub.name}.{method.name}` takes {_listed(method)} now"
    return None


def _suits_calls(stub: ast.FunctionDef, answer: ast.FunctionDef) -> bool:
    """The stub's parameters first, by the same names; more only with defaults, or any."""
    if answer.args.vararg or answer.args.kwarg:
        return True
    wanted, given = _names_of(stub), _names_of(answer)
    free = len(answer.args.args + answer.args.posonlyargs) - len(answer.args.defaults)
    asked_for = given[len(wanted) : free]
    return given[: len(wanted)] == wanted and not asked_for


def _names_of(node: ast.FunctionDef) -> list[str]:
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _listed(node: ast.FunctionDef) -> str:
    return f"({', '.join(_names_of(node))})"


def reworded(answer: Sequence[Piece], stub: Cell) -> bool:
    """Does the new stub say something else in its docstrings, methods' included, than the answer does?"""
    key = answer[0].key
    given = {n: d for p in answer for n, d in (definitions(p.source, key) or {}).items()}
    wanted = definitions(stub["source"], key) or {}
    return any(
        ast.get_docstring(node) != ast.get_docstring(given[name])  # type: ignore[arg-type]
        or any(told != _told(given[name]).get(method) for method, told in _told(node).items())
        for name, node in wanted.items()
        if name in given
    )


def _told(node: ast.stmt) -> dict[str, str]:
    """The docstrings of a class's methods by name, of those that have one."""
    methods = node.body if isinstance(node, ast.ClassDef) else []
    found = {m.name: ast.get_docstring(m) for m in methods if isinstance(m, ast.FunctionDef)}
    return {name: text for name, text in found.items() if text is not None}
