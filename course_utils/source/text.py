"""The source of a live function or class, a notebook's classes included."""

import ast
import inspect
import linecache
from typing import Any


def source_of(part: Any) -> str:
    """The source of a function or class, a notebook's classes included. Raises OSError if unknown."""
    part = inspect.unwrap(part)
    text = _class_source(part) if inspect.isclass(part) else inspect.getsource(part)
    return inspect.cleandoc("\n" + text).rstrip()


def _class_source(cls: type) -> str:
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
