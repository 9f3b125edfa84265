"""The names that a statement binds, and those that it looks up outside of itself."""

import ast
import builtins
import symtable


def first_line(node: ast.stmt) -> int:
    """Where a statement begins: with its first decorator."""
    return min([d.lineno for d in getattr(node, "decorator_list", ())] + [node.lineno])


def import_of(node: ast.stmt, name: str) -> str:
    """An import statement for this one name of `node`, which must bind it."""
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


def names_used(source: str | ast.AST, builtins_too: bool = False) -> set[str]:
    """Names that a piece of source looks up outside of itself, builtins aside unless asked for.

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
    return used if builtins_too else used - set(dir(builtins))
