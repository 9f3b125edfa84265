"""Objects made of a mutant's source."""

import ast
import hashlib
import inspect
import linecache
import sys
import textwrap
import types
from functools import cache
from pathlib import Path
from typing import Any

from .mutants import names_defined


def build(source: str, namespace_of: Any) -> Any:
    """The object that `source` defines; a tuple of them where it defines several.

    The source runs in a fresh copy of the module of `namespace_of` (a module, a function, a class,
    or a tuple of those), made from the module's own text: without jaxtyping's and beartype's
    checks, and so that the module's other functions call the new object too. Modules that it
    imports are shared; run where their import hook is off if they must be unchecked as well.
    """
    module = _module_of(namespace_of)
    namespace = types.ModuleType(module.__name__)
    namespace.__dict__.update(__file__=module.__file__, __package__=module.__package__)
    with _no_jaxtyping_hook():
        exec(_module_code(module.__file__), namespace.__dict__)
    tree = ast.parse(textwrap.dedent(source))
    exec(compile(tree, _remembered(source), "exec"), namespace.__dict__)
    made = tuple(getattr(namespace, name) for name in names_defined(tree))
    if not made:
        raise ValueError("the source defines no function and no class")
    return made[0] if len(made) == 1 else made


def _module_of(thing: Any) -> types.ModuleType:
    if isinstance(thing, tuple):
        thing = thing[0]
    module = thing if isinstance(thing, types.ModuleType) else inspect.getmodule(thing)
    if module is None or not getattr(module, "__file__", None):
        raise ValueError(f"{thing!r} belongs to no module with a source file")
    return module


@cache
def _module_code(file: str) -> types.CodeType:
    return compile(Path(file).read_text(encoding="utf-8"), file, "exec")


def _remembered(source: str) -> str:
    """A file name under which tracebacks and `inspect` find the source."""
    name = f"<mutant {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    lines = textwrap.dedent(source).splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    return name


class _no_jaxtyping_hook:
    """Within the block modules are imported as they are written."""

    def __enter__(self) -> None:
        self.finders = sys.meta_path[:]
        sys.meta_path[:] = [f for f in self.finders if not _is_jaxtyping(f)]

    def __exit__(self, *exception: Any) -> None:
        sys.meta_path[:] = self.finders


def _is_jaxtyping(finder: Any) -> bool:
    return (getattr(type(finder), "__module__", None) or "").startswith("jaxtyping")
