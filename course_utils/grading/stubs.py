"""The two forms of an exercise's cell, both written from the reference: the stub and the solution.

The reference is the one source: its signature, annotations and docstring become the stub; the
whole of it, with the imports and private helpers that it needs, becomes the solution.
"""

import ast
import builtins
import inspect
import linecache
import symtable
from types import ModuleType
from typing import Any

from .exercise import Exercise, find

YOUR_TURN = 'raise NotImplementedError("your turn")'
IN_EVERY_NOTEBOOK = {"torch", "Tensor"}


def stub_cell(key: str) -> str:
    """The source of the exercise's cell as a student gets it."""
    return cell(find(key), stub_source)


def solution_cell(key: str) -> str:
    """The source of the same cell with the book's version in it."""
    exercise = find(key)
    preamble = needed_source(exercise)
    return (preamble + "\n\n" if preamble else "") + cell(exercise, source_of)


def cell(exercise: Exercise, form: Any) -> str:
    decorator = f'@exercise("{exercise.key}")\n'
    return "\n\n\n".join(decorator + form(part) for part in exercise.parts)


def source_of(part: Any) -> str:
    """The source of a function or class, a notebook's classes included. Raises OSError if unknown."""
    part = inspect.unwrap(part)
    text = class_source(part) if inspect.isclass(part) else inspect.getsource(part)
    return inspect.cleandoc("\n" + text).rstrip()


def class_source(cls: type) -> str:
    """`inspect.getsource` cannot find a class of a notebook's cell; its methods know where it is."""
    for method in vars(cls).values():
        function = inspect.unwrap(getattr(method, "__func__", method))  # a staticmethod's, too
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        text = "".join(linecache.getlines(code.co_filename))
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.ClassDef)
                and node.name == cls.__name__
                and node.lineno <= code.co_firstlineno <= (node.end_lineno or 0)
            ):
                first = min([d.lineno for d in node.decorator_list] + [node.lineno])
                return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise OSError(f"the source of class {cls.__name__} is not to be found")


def stub_source(part: Any) -> str:
    """Signature and docstring verbatim; every body replaced by NotImplementedError."""
    source = source_of(part)
    (node,) = ast.parse(source).body
    lines = source.splitlines()
    if isinstance(node, ast.ClassDef):
        return stub_class(node, lines)
    assert isinstance(node, ast.FunctionDef)
    return "\n".join(stub_function(node, lines))


def stub_class(node: ast.ClassDef, lines: list[str]) -> str:
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
            out += ([""] if i else []) + stub_function(item, lines)
        else:
            gap = bool(i) and not lines[item.lineno - 2].strip()
            out += lines[item.lineno - 1 - gap : item.end_lineno]
    return "\n".join(out)


def stub_function(node: ast.FunctionDef, lines: list[str]) -> list[str]:
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
        return raises_only(obj)
    return defines_a_stub(node)


def defines_a_stub(node: ast.stmt) -> bool:
    """Is every body in this definition of a function or class empty?"""
    if isinstance(node, ast.FunctionDef):
        return is_empty(node)
    methods = [item for item in ast.walk(node) if isinstance(item, ast.FunctionDef)]
    return bool(methods) and all(map(is_empty, methods))


def is_empty(node: ast.FunctionDef) -> bool:
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


def raises_only(obj: Any) -> bool:
    """The same question where no source is to be had, from the compiled code."""
    functions = (
        [f for f in vars(obj).values() if inspect.isfunction(f)] if inspect.isclass(obj) else [obj]
    )
    codes = [getattr(f, "__code__", None) for f in functions]
    return bool(codes) and all(
        c is not None and c.co_names == ("NotImplementedError",) for c in codes
    )


# ------------------------------------------------------------------------------ what it needs


def needed_source(exercise: Exercise) -> str:
    """Imports and private helpers that the solution uses and its stub does not."""
    module = inspect.getmodule(inspect.unwrap(exercise.parts[0]))
    assert module is not None
    tree = ast.parse(inspect.getsource(module))
    text = inspect.getsource(module).splitlines()
    declared = {name: node for node in tree.body for name in names_bound(node)}
    wanted = {name for part in exercise.parts for name in names_used(source_of(part))}
    wanted -= set(exercise.names) | IN_EVERY_NOTEBOOK
    wanted -= {name for part in exercise.parts for name in names_used(stub_source(part))}
    wanted -= exercises_named(module, exercise)
    found: dict[tuple[int, str], str] = {}
    while wanted:
        name = wanted.pop()
        node = declared.get(name)
        imports = isinstance(node, ast.Import | ast.ImportFrom)
        if node is None or (key := (node.lineno, name if imports else "")) in found:
            continue
        if imports:  # one statement may bring several names, each wanted by another helper
            found[key] = import_of(node, name)
            continue
        found[key] = "\n".join(text[first_line(node) - 1 : node.end_lineno])
        wanted |= names_used(found[key]) - IN_EVERY_NOTEBOOK
    return "\n".join(found[key] for key in sorted(found))


def first_line(node: ast.stmt) -> int:
    """Where a statement begins: with its first decorator."""
    return min([d.lineno for d in getattr(node, "decorator_list", ())] + [node.lineno])


def exercises_named(module: ModuleType, exercise: Exercise) -> set[str]:
    """Names of the chapter's other exercises: earlier cells of the notebook bind them."""
    from .exercise import chapters, exercises_of

    if exercise.chapter not in chapters():
        return set()
    return {name for other in exercises_of(exercise.chapter).values() for name in other.names}


def import_of(node: ast.stmt, name: str) -> str:
    assert isinstance(node, ast.Import | ast.ImportFrom)
    alias = next(a for a in node.names if (a.asname or a.name.partition(".")[0]) == name)
    text = alias.name + (f" as {alias.asname}" if alias.asname else "")
    if isinstance(node, ast.ImportFrom):
        return f"from {'.' * node.level}{node.module or ''} import {text}"
    return f"import {text}"


def names_bound(node: ast.stmt) -> list[str]:
    """Names that a top-level statement binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [a.asname or a.name.partition(".")[0] for a in node.names]
    return [
        item.id
        for item in ast.walk(node)
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    ]


def names_used(source: str | ast.AST) -> set[str]:
    """Names that a piece of source looks up outside of itself, builtins aside.

    Parameters and local variables are not among them, whatever else in the notebook or module
    bears the same name.
    """
    text = source if isinstance(source, str) else ast.unparse(source)
    whole = symtable.symtable(text, "<source>", "exec")
    used, tables = set(), [whole]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is whole or symbol.is_global())
        }
    return used - set(dir(builtins))
