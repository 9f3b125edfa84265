"""The source of a live object with all it needs, as a module text that can be run again elsewhere."""

import ast
import inspect
import sys
from types import ModuleType
from typing import Any, TypeVar, get_origin

from .names import names_used
from .text import source_of


def capture(obj: Any) -> tuple[str, list[str]]:
    """Source of a function or class with the imports, helpers and constants it uses.

    Returns the text, and the names that could not be captured (an array in another cell, say).
    Raises OSError where Python cannot find the source, or there is no name to find it by.
    """
    if not str(getattr(obj, "__name__", "")).isidentifier():
        raise OSError("neither a function nor a class of a name of its own")
    home = _namespace_of(obj)
    imports: dict[str, None] = {}
    blocks: dict[str, str] = {}
    missing = list(getattr(getattr(inspect.unwrap(obj), "__code__", None), "co_freevars", ()))

    def add(name: str, value: Any) -> None:
        if name in blocks:
            return
        if isinstance(value, ModuleType):
            same = value.__name__ == name
            imports[f"import {value.__name__}" + ("" if same else f" as {name}")] = None
        elif _is_local(value, home):
            blocks[name] = ""  # marks it as being captured, so that recursion ends
            source = _without_exercise(source_of(value))
            for used in sorted(names_used(source) - {name}):
                if used in home:
                    add(used, home[used])
            del blocks[name]
            blocks[name] = source  # after what it uses: bases, annotations, defaults are run first
        elif get_origin(value) is not None:  # `Rows = Iterable[Tensor]` says nothing when code runs
            imports["from typing import Any"] = None
            blocks[name] = f"{name} = Any"
        elif origin := _where_from(name, value):
            imports[origin] = None
        elif isinstance(value, TypeVar):  # its bound, if it has one, says nothing when code runs
            imports["from typing import TypeVar"] = None
            blocks[name] = f"{name} = TypeVar({value.__name__!r})"
        elif type(value) is float:
            blocks[name] = f'{name} = float("{value!r}")'
        elif _is_literal(value):
            blocks[name] = f"{name} = {value!r}"
        else:
            missing.append(name)

    add(obj.__name__, obj)
    constants = [b for b in blocks.values() if not b.startswith(("def ", "class ", "@"))]
    definitions = [b for b in blocks.values() if b.startswith(("def ", "class ", "@"))]
    return "\n".join([*imports, "", *constants, *definitions]) + "\n", missing


def _namespace_of(obj: Any) -> dict[str, Any]:
    """The global names that the object's code sees."""
    obj = inspect.unwrap(obj)
    if hasattr(obj, "__globals__"):
        return dict(obj.__globals__)
    module = inspect.getmodule(obj)
    return dict(vars(module)) if module else {}


def _is_local(value: Any, home: dict[str, Any]) -> bool:
    value = inspect.unwrap(value) if callable(value) else value
    code = inspect.isfunction(value) or inspect.isclass(value)
    return code and getattr(value, "__module__", None) == home.get("__name__")


def _where_from(name: str, value: Any) -> str | None:
    """The import statement that gives this object again, or None."""
    module = getattr(value, "__module__", None)
    own = getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(own, str) or module == "__main__":
        return None
    try:
        found = getattr(__import__(module, fromlist=[own]), own, None)
    except ImportError:
        return None
    if found is not value:
        return None
    return f"from {module} import {own}" + ("" if own == name else f" as {name}")


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


def _without_exercise(source: str) -> str:
    lines = source.splitlines()
    while lines and lines[0].startswith("@exercise("):
        lines = lines[1:]
    return "\n".join(lines)


def rebuild(source: str, name: str) -> Any:
    """Run a captured text and take the object called `name` out of it."""
    import linecache

    filename = f"<your answer: {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    home = f"answers.{name}"
    module = sys.modules[home] = ModuleType(home)  # where a dataclass looks for its module
    module.__file__ = filename  # where inspect looks for a class's source
    exec(compile(source, filename, "exec"), vars(module))
    return vars(module)[name]
