"""What a statement of a notebook may do to names when it runs: bind them, or change what they stand for.

Read from its text, and rather too much than too little: a name that a statement may have changed is
worth running the statement for.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

EVERYTHING = "*"
"""In `binds`: any name may be among them (`from math import *`)."""


class How(Enum):
    """In which way an object may be changed: a part of it is set, a method is called, or it is given to
    something that is called."""

    SET = "set"
    METHOD = "method"
    GIVEN = "given"


Changes = frozenset[tuple[str, How]]

DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SCOPES = DEFINITION | ast.Lambda
_SURE = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.Import,
    ast.ImportFrom,
)
_HARMLESS = frozenset(
    [
        "abs",
        "all",
        "any",
        "bool",
        "callable",
        "dict",
        "enumerate",
        "float",
        "format",
        "frozenset",
        "getattr",
        "hasattr",
        "hash",
        "id",
        "int",
        "isinstance",
        "issubclass",
        "len",
        "list",
        "max",
        "min",
        "print",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "sorted",
        "str",
        "sum",
        "tuple",
        "type",
        "vars",
        "zip",
    ]
)
"""Builtins that leave what they are given as it is."""


@dataclass(frozen=True)
class Effects:
    """binds: names that it binds, or may. surely: does it bind them whatever happens? changes: names
    whose object it may change, and how. calls: names that it calls."""

    binds: frozenset[str]
    surely: bool
    changes: Changes
    calls: frozenset[str]


def effects_of(node: ast.stmt) -> Effects:
    """What a statement does when it runs. What functions that it calls do is not looked into."""
    running = list(_running(node))
    return Effects(
        frozenset(name for part in running for name in _bound_by(part)),
        isinstance(node, _SURE),
        frozenset(change for part in running for change in _changed_by(part)),
        frozenset(_called(running)),
    )


@dataclass(frozen=True)
class EffectsOfCalling:
    """Of a function or class, when it is called: names of the notebook that it binds (`global`), names
    whose object it may change, and how, names that it calls."""

    binds: frozenset[str]
    changes: Changes
    calls: frozenset[str]


def effects_of_calling(node: ast.stmt) -> EffectsOfCalling:
    """What a function does when it is called, functions within it included; a class, its methods."""
    binds: set[str] = set()
    changes: set[tuple[str, How]] = set()
    calls: set[str] = set()
    for scope in [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef)]:
        inside = [part for statement in scope.body for part in ast.walk(statement)]
        shared = {name for part in inside if isinstance(part, ast.Global) for name in part.names}
        stored = {p.id for p in inside if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)}
        own = {part.arg for part in ast.walk(scope.args) if isinstance(part, ast.arg)}
        binds |= shared
        changed = {change for part in inside for change in _changed_by(part)}
        changes |= {(name, how) for name, how in changed if name not in own | stored}
        calls |= set(_called(inside))
    return EffectsOfCalling(frozenset(binds), frozenset(changes), frozenset(calls))


def ways_to_change(node: ast.stmt) -> frozenset[How]:
    """How that which a statement binds can be changed: a number or a text in no way, a module by setting
    a part of it, a function or class by its methods, too."""
    match node:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return frozenset() if _is_constant(value) else frozenset(How)
        case ast.Import() | ast.ImportFrom():
            return frozenset({How.SET})
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return frozenset({How.SET, How.METHOD})
    return frozenset(How)


def _is_constant(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(operand=operand):
            return _is_constant(operand)
        case ast.BinOp(left=left, right=right):
            return _is_constant(left) and _is_constant(right)
        case ast.Tuple(elts=elements):
            return all(map(_is_constant, elements))
    return False


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that run when it does: no bodies of functions, and nothing of a class but
    its decorators."""
    yield node
    if isinstance(node, _SCOPES):
        for decorator in getattr(node, "decorator_list", ()):
            yield from _running(decorator)
        return
    for part in ast.iter_child_nodes(node):
        yield from _running(part)


def _called(parts: Iterable[ast.AST]) -> Iterator[str]:
    for part in parts:
        match part:
            case ast.Call(func=ast.Name(id=name)):
                yield name
            case (
                ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators)
            ):
                yield from (one.id for one in decorators if isinstance(one, ast.Name))


def _bound_by(node: ast.AST) -> Iterator[str]:
    """Names that this part of a statement binds in the notebook."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
        case ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names)  # "*" stands for any
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name


def _changed_by(node: ast.AST) -> Iterator[tuple[str, How]]:
    """Names whose object this part of a statement may change, and how."""
    match node:
        case (
            ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del())
        ):
            yield from _root(node, How.SET)
        case ast.AugAssign(target=target):
            yield from _root(target, How.SET)
        case ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators):
            for decorator in decorators:
                yield from _root(decorator, How.METHOD)
        case ast.Call(func=ast.Name("setattr" | "delattr"), args=[first, *_]):
            yield from _root(first, How.SET)
        case ast.Call(func=ast.Name(id=name)) if name in _HARMLESS:
            return
        case ast.Call(func=func, args=args, keywords=keywords):
            if isinstance(func, ast.Attribute):
                yield from _root(func.value, How.METHOD)
            for argument in (*args, *(keyword.value for keyword in keywords)):
                yield from _root(argument, How.GIVEN)


def _root(node: ast.AST, how: How) -> Iterator[tuple[str, How]]:
    """`x` of `x`, `x.f` and `x[i].g`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id, how
