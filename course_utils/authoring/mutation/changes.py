"""What can be done to a node: the small slips that a tired person makes."""

import ast
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from .sites import DELETE, Site

_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.FloorDiv),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Div),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
}
_PAIRS = (
    ("min", "max"),
    ("any", "all"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("sum", "mean"),
    ("triu", "tril"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("new_zeros", "new_ones"),
    ("floor", "ceil"),
    ("sin", "cos"),
)
_NAMES = dict(_PAIRS) | {b: a for a, b in _PAIRS}
_BUILTINS = {"min", "max", "any", "all"}  # those of the above that Python has in both forms
_AXES = {"dim", "axis", "dim0", "dim1", "start_dim", "end_dim"}
_MODULES = {"torch", "math", "F", "nn", "np", "itertools", "functools", "operator", "einops"}
_WRAPPERS = {"abs", "float", "int", "round", "sorted", "reversed"}
# Swapping their first two arguments changes nothing.
_SYMMETRIC = {"transpose", "swapaxes", "swapdims", "min", "max", "minimum", "maximum", "gcd", "lcm"}

_Change = tuple[str, Any]


def changes(site: Site) -> Iterator[_Change]:
    """The small wrong changes of one place in the source, each with what it does in words."""
    node = site.node
    if isinstance(node, ast.stmt):
        yield from _statement(site)
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "negated the condition", _with(node, test=_negated(node.test))
    elif isinstance(node, ast.comprehension):
        for i, test in enumerate(node.ifs):
            ifs = [*node.ifs[:i], _negated(test), *node.ifs[i + 1 :]]
            yield "negated the condition", _with(node, ifs=ifs)
            yield "dropped the condition", _with(node, ifs=[*node.ifs[:i], *node.ifs[i + 1 :]])
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield (
                "flipped a comparison",
                _with(node, ops=_put(node.ops, i, _COMPARISONS[type(op)]())),
            )
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        for operator in _ARITHMETIC.get(type(node.op), ()):
            yield "changed the operator", _with(node, op=operator())
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "swapped and and or", _with(node, op=other)
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            yield "dropped a condition", rest[0] if len(rest) == 1 else _with(node, values=rest)
    elif isinstance(node, ast.UnaryOp):
        yield from _unary(node)
    elif isinstance(node, ast.Constant):
        yield from _constant(site)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node)
    elif isinstance(node, ast.Call):
        yield from _call(node)


def _with(node: Any, **fields: Any) -> Any:
    new = copy.copy(node)
    for field, value in fields.items():
        setattr(new, field, value)
    return new


def _put(values: Sequence[Any], index: int, value: Any) -> list[Any]:
    return [*values[:index], value, *values[index + 1 :]]


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _shifted(node: ast.expr, by: int) -> ast.expr:
    """`node` plus `by`, as one would write it."""
    value = _integer(node)
    if value is not None:
        return ast.Constant(value + by)
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def _integer(node: ast.expr | None) -> int | None:
    """The value of an integer literal, a negative one too."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _integer(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _statement(site: Site) -> Iterator[_Change]:
    node = site.node
    definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    if definition and not site.above:
        return
    if isinstance(node, ast.AnnAssign) and isinstance(site.parent, ast.ClassDef):
        return
    if isinstance(node, ast.Pass | ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
        return
    if isinstance(node, ast.Return):
        if node.value is not None and not _is_none(node.value):
            yield "returned None", _with(node, value=ast.Constant(None))
        last = isinstance(site.parent, ast.FunctionDef) and node is site.parent.body[-1]
        if not last:
            yield "dropped a statement", DELETE
        return
    yield "dropped a statement", DELETE
    if isinstance(node, ast.With):
        true = ast.Constant(True)
        yield "dropped the context", ast.If(true, node.body, [])
    if isinstance(node, ast.Break):
        yield "went on with the loop", ast.Continue()
    if isinstance(node, ast.Continue):
        yield "left the loop", ast.Break()
    if isinstance(node, ast.AugAssign):
        yield "assigned instead", ast.Assign([node.target], node.value, lineno=node.lineno)
    if isinstance(node, ast.If) and node.orelse:
        yield "dropped the other branch", _with(node, orelse=[])


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _unary(node: ast.UnaryOp) -> Iterator[_Change]:
    value = _integer(node)
    if value is not None:
        yield "changed a constant", ast.Constant(value + 1)
        yield "changed a constant", ast.Constant(value - 1)
    if not isinstance(node.op, ast.UAdd):
        name = {ast.USub: "the minus", ast.Not: "the not", ast.Invert: "the ~"}[type(node.op)]
        yield f"dropped {name}", node.operand


def _constant(site: Site) -> Iterator[_Change]:
    value = site.node.value
    negative = isinstance(site.parent, ast.UnaryOp) and isinstance(site.parent.op, ast.USub)
    if isinstance(value, bool):
        yield "flipped a flag", ast.Constant(not value)
    elif isinstance(value, int) and not negative:
        yield "changed a constant", ast.Constant(value + 1)
        yield "changed a constant", ast.Constant(value - 1)
    elif isinstance(value, float):
        yield "doubled a constant", ast.Constant(value * 2 if value else 1.0)


def _subscript(node: ast.Subscript) -> Iterator[_Change]:
    """Indices and bounds one further and one less; bounds that are not given stay so."""
    inner = node.slice
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    for i, part in enumerate(parts):
        for description, new in _bounds(part):
            whole = _with(inner, elts=_put(parts, i, new)) if inner is not part else new
            yield description, _with(node, slice=whole)


def _bounds(part: ast.expr) -> Iterator[_Change]:
    if isinstance(part, ast.Slice):
        for bound in ("lower", "upper"):
            value = getattr(part, bound)
            if value is not None:
                for by in (1, -1):
                    yield "shifted a bound", _with(part, **{bound: _shifted(value, by)})
                yield "dropped a bound", _with(part, **{bound: None})
        if part.step is not None:
            yield "dropped the step", _with(part, step=None)
    elif isinstance(part, ast.Name | ast.BinOp | ast.UnaryOp) or _integer(part) is not None:
        for by in (1, -1):
            yield "shifted an index", _shifted(part, by)


def _call(node: ast.Call) -> Iterator[_Change]:
    function = node.func
    name = _called(function)
    method = isinstance(function, ast.Attribute)
    if name in _NAMES and (method or name in _BUILTINS):
        other = _with(function, **{"attr" if method else "id": _NAMES[name]})
        yield f"called {_NAMES[name]} instead", _with(node, func=other)
    if name in {"permute", "movedim"}:
        for i in range(len(node.args) - 1):
            a, b = node.args[i : i + 2]
            yield "swapped two axes", _with(node, args=[*node.args[:i], b, a, *node.args[i + 2 :]])
    elif len(node.args) >= 2 and name not in _SYMMETRIC and not _starred(node.args[:2]):
        first, second, *rest = node.args
        yield "swapped the first two arguments", _with(node, args=[second, first, *rest])
    for i, keyword in enumerate(node.keywords):
        if keyword.arg is None:
            continue
        others = [*node.keywords[:i], *node.keywords[i + 1 :]]
        yield f"dropped {keyword.arg}=", _with(node, keywords=others)
        if keyword.arg in _AXES and _integer(keyword.value) is not None:
            for axis in (0, 1, -1):
                new = _with(keyword, value=ast.Constant(axis))
                yield "changed the axis", _with(node, keywords=_put(node.keywords, i, new))
    yield from _unwrapped(node, name)


def _unwrapped(node: ast.Call, name: str | None) -> Iterator[_Change]:
    """`x.contiguous()` → `x`, `torch.exp(x)` → `x`."""
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Call) and _called(owner.func) == "super":
            return
        if not _is_module(owner):
            if not (isinstance(owner, ast.Name) and owner.id in {"self", "cls"}):
                yield f"dropped .{name}()", owner
        elif node.args and not _starred(node.args[:1]):
            yield f"dropped {name}()", node.args[0]
    elif name in _WRAPPERS and len(node.args) == 1 and not _starred(node.args):
        yield f"dropped {name}()", node.args[0]


def _called(function: ast.expr) -> str | None:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _is_module(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in _MODULES


def _starred(arguments: Sequence[ast.expr]) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in arguments)
