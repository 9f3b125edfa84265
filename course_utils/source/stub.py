"""Stubs: written from a reference's source, and recognised in a student's."""

import ast
import builtins
import inspect
from collections.abc import Sequence
from typing import Any

from .text import source_of

COSTS = "Costs, which are checked:"
YOUR_TURN = 'raise NotImplementedError("your turn")'


def stub_source(part: Any, costs: Sequence[str] = ()) -> str:
    """Signature and docstring verbatim; every body replaced by NotImplementedError.

    costs: what the answer may cost, a line each, added to the docstring.
    """
    source = with_costs(source_of(part), costs)
    (node,) = ast.parse(source).body
    lines = source.splitlines()
    if isinstance(node, ast.ClassDef):
        return _stub_class(node, lines)
    assert isinstance(node, ast.FunctionDef)
    return "\n".join(_stub_function(node, lines))


def with_costs(source: str, costs: Sequence[str]) -> str:
    """A definition with these lines at the end of its docstring.

    Raises ValueError for a definition that has none.
    """
    if not costs:
        return source
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    if ast.get_docstring(node) is None:
        raise ValueError(f"{node.name} has no docstring, where its costs would stand")
    lines, last = source.splitlines(), (node.body[0].end_lineno or 0) - 1
    indent = " " * node.body[0].col_offset
    text = lines[last].rstrip().removesuffix('"""').rstrip()
    told = [f"{indent}{COSTS}", *(f"{indent}- {cost}" for cost in costs)]
    lines[last : last + 1] = [*([text] if text else []), "", *told, f'{indent}"""']
    return "\n".join(lines)


def _stub_class(node: ast.ClassDef, lines: list[str]) -> str:
    public = [
        item
        for item in node.body
        if not isinstance(item, ast.FunctionDef)
        or not item.name.startswith("_")
        or item.name.startswith("__")
    ]
    out = lines[node.lineno - 1 : public[0].lineno - 1]
    for i, item in enumerate(public):
        if isinstance(item, ast.FunctionDef):
            out += ([""] if i else []) + _stub_function(item, lines)
        else:
            gap = bool(i) and not lines[item.lineno - 2].strip()
            out += lines[item.lineno - 1 - gap : item.end_lineno]
    return "\n".join(out)


def _stub_function(node: ast.FunctionDef, lines: list[str]) -> list[str]:
    first = min([d.lineno for d in node.decorator_list] + [node.lineno])
    documented = ast.get_docstring(node) is not None
    last = node.body[0].end_lineno if documented else node.body[0].lineno - 1
    indent = " " * node.body[0].col_offset
    return [*lines[first - 1 : last], indent + YOUR_TURN]


def is_stub(obj: Any) -> bool:
    """Is every body of this function or class still `raise NotImplementedError`, `...` or `pass`?"""
    try:
        (node,) = ast.parse(source_of(obj)).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return _raises_only(obj)
    return defines_a_stub(node)


def defines_a_stub(node: ast.stmt) -> bool:
    """Is every body in this definition of a function or class empty?"""
    if isinstance(node, ast.FunctionDef):
        return is_empty(node)
    methods = [item for item in ast.walk(node) if isinstance(item, ast.FunctionDef)]
    return bool(methods) and all(map(is_empty, methods))


def is_empty(node: ast.FunctionDef) -> bool:
    """Does the function do nothing yet: NotImplementedError, `pass` or `...`?"""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return True
    match body[0]:
        case ast.Raise(exc=ast.Call(func=ast.Name(id="NotImplementedError"))):
            return True
        case ast.Raise(exc=ast.Name(id="NotImplementedError")):
            return True
        case ast.Pass() | ast.Expr(value=ast.Constant(value=builtins.Ellipsis)):
            return len(body) == 1
    return False


def _raises_only(obj: Any) -> bool:
    """The same question where no source is to be had, from the compiled code."""
    functions = (
        [f for f in vars(obj).values() if inspect.isfunction(f)] if inspect.isclass(obj) else [obj]
    )
    codes = [getattr(f, "__code__", None) for f in functions]
    return bool(codes) and all(
        c is not None and c.co_names == ("NotImplementedError",) for c in codes
    )
