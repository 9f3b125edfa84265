"""What in an answer's statements reaches for the code that grades it: found by reading, never run.

An answer may use libraries as it likes. It has no business in changing them, nor in looking into the
frames, closures and modules of whoever calls it. Settings (`torch.backends…`) are free.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from .answers import WrittenAnswer
from .imports import imports_of, is_under

MOST = 5
_LONGEST = 120
_FREE = ("torch.backends", "matplotlib", "os.environ", "warnings")
_ENGINE = tuple(f"course_utils.{room}" for room in ("grading", "sandbox", "processes", "source"))
_HELPERS = ("unittest.mock", "mock", "pytest", "forbiddenfruit", "marshal")
_MODULES = (
    "ctypes",
    "_ctypes",
    "cffi",
    "builtins",
    "importlib",
    "runpy",
    "pydoc",
    "pkgutil",
    *_HELPERS,
    *_ENGINE,
)
_PATHS = (
    *(f"sys.{name}" for name in ("modules", "meta_path", "settrace", "setprofile", "addaudithook")),
    *("sys._getframe", "sys._current_frames", "threading.settrace", "threading.setprofile"),
    *(f"gc.{name}" for name in ("get_objects", "get_referrers", "get_referents", "callbacks")),
    *(f"inspect.{name}" for name in ("currentframe", "stack", "trace", "getouterframes")),
    *("types.FunctionType", "types.CodeType", "types.CellType"),
    *("torch._C", "torch.library", "torch.utils._python_dispatch", "torch.utils.cpp_extension"),
    *_MODULES,
)
_GRADERS = (
    *(
        "torch",
        "course_utils",
        "builtins",
        "sys",
        "math",
        "threading",
        "time",
        "inspect",
        "operator",
    ),
    *("collections", "contextlib", "functools", "hashlib", "json", "safetensors", "gc", "numpy"),
)
"""The libraries that driver, meters and probes use."""
_REPLACED = {"__code__", "__defaults__", "__kwdefaults__"}  # to read them is no harm
_INSIDE = {
    *("__globals__", "__closure__", "__subclasses__", "__builtins__", "__loader__"),
    *("__traceback__", "tb_frame", "f_back", "f_locals"),
    *("f_globals", "f_builtins", "gi_frame", "cr_frame", "ag_frame", "cell_contents"),
}
_CALLS = {"exec", "eval", "compile", "__import__", "globals", "breakpoint"}
_SETTING = {"setattr", "delattr"}
_SETTING_METHODS = {"__setattr__", "__delattr__", "__setitem__"}
_ASKING = {"getattr", "hasattr"}


def reaching(answer: WrittenAnswer) -> list[str]:
    """The first lines of an answer, and of what it needs, that reach for the grader: each with what it
    does, in words. None in an ordinary answer."""
    names = _libraries([statement.node for statement in answer.statements])
    found: list[str] = []
    for statement in answer.statements:
        reader = _Reader(names, _own(statement.node))
        reader.visit(statement.undecorated())
        lines = answer.sources[statement.cell].splitlines()
        for number, why in reader.found.items():
            text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
            found.append(f"code cell {statement.cell + 1}, line {number}, {why}: {text[:_LONGEST]}")
    return found[:MOST]


def _libraries(nodes: Sequence[ast.stmt]) -> dict[str, str]:
    """What is imported, by the name under which it is used: a path in dots."""
    names: dict[str, str] = {}
    for node in (one for statement in nodes for one in ast.walk(statement)):
        names |= dict(one.binding for one in imports_of(node) if one.module)
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Attribute() | ast.Name() as value
            ):
                path = _path(value, names)
                if path and isinstance(_thing(path), ModuleType | type):
                    names[name] = path
    return names


def _own(node: ast.AST) -> set[str]:
    """Names that a statement uses for arguments: of these nothing is known."""
    return {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}


def _path(node: ast.AST, names: dict[str, str]) -> str:
    """What an expression names among the libraries, in dots; nothing for any other."""
    match node:
        case ast.Name(id=name):
            return names.get(name, "")
        case ast.Attribute(value=value, attr=attr):
            path = _path(value, names)
            return path and f"{path}.{attr}"
        case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(str(attr)), *_]):
            path = _path(value, names)
            return path and f"{path}.{attr}"
        case ast.Subscript(value=value) | ast.Starred(value=value):
            return _path(value, names)
        case ast.Call(func=ast.Name(id="vars"), args=[value]):
            return _path(value, names)
    return ""


def _thing(path: str) -> Any:
    """What a path stands for, of what is loaded; None where nothing is."""
    top, *rest = path.split(".")
    found: Any = sys.modules.get(top)
    with suppress(Exception):  # what a library looks up by itself may raise anything
        for name in rest:
            found = getattr(found, name)
        return found
    return None


def _is_module(path: str) -> bool:
    """Is it a module that the grader uses as well?"""
    return _within(path, _GRADERS) and isinstance(_thing(path), ModuleType)


def _constant(node: ast.Call) -> str:
    """The name that `setattr` or `getattr` is given; nothing where it is worked out."""
    match node.args[1:2]:
        case [ast.Constant(str(name))]:
            return name
    return ""


def _within(path: str, places: Sequence[str]) -> bool:
    return any(is_under(path, place) for place in places)


class _Reader(ast.NodeVisitor):
    """found: by line, what is done there."""

    def __init__(self, names: dict[str, str], own: set[str]) -> None:
        self.names = {name: path for name, path in names.items() if name not in own}
        self.found: dict[int, str] = {}

    def note(self, node: Any, why: str) -> None:
        self.found.setdefault(node.lineno, why)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for one in imports_of(node):
            if _within(one.dotted, _PATHS if one.name else _MODULES):
                self.note(node, f"imports {one.dotted}")

    visit_ImportFrom = visit_Import

    def visit_Name(self, node: ast.Name) -> None:
        path = self.names.get(node.id, "")
        if isinstance(node.ctx, ast.Load) and _is_module(path):
            self.note(node, f"hands on the module {path}")
        if node.id == "__builtins__":
            self.note(node, "looks into __builtins__")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = _path(node, self.names)
        stored = not isinstance(node.ctx, ast.Load)
        if node.attr in _INSIDE or (stored and node.attr in _REPLACED):
            self.note(node, f"looks into {node.attr}")
        elif _within(path, _PATHS):
            self.note(node, f"uses {path}")
        elif stored and path and not _within(path, _FREE):
            self.note(node, f"changes {path}")
        elif path and node.attr == "__dict__":
            self.note(node, f"looks into {path}")
        elif _is_module(path) and not getattr(node, "inner", False):
            self.note(node, f"hands on the module {path}")
        self.inside(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        path = _path(node.value, self.names)
        if not isinstance(node.ctx, ast.Load) and path and not _within(path, _FREE):
            self.note(node, f"changes {path}")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.visit(target)
        alias = len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        self.inside(node.value) if alias and _path(node.value, self.names) else self.visit(
            node.value
        )

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        path = _path(node.args[0], self.names) if node.args else ""
        if name in _CALLS:
            self.note(node, f"calls {name}")
        elif name in _SETTING and _constant(node) in _INSIDE | _REPLACED:
            self.note(node, f"changes {_constant(node)}")
        elif name in _SETTING and path and not _within(path, _FREE):
            self.note(node, f"changes {path}")
        elif name in _ASKING and (_constant(node) or path.startswith("torch.")):
            if _constant(node) in _INSIDE or _within(_path(node, self.names), _PATHS):
                self.note(node, f"looks into {_constant(node)}")
            self.inside(node.args[0])
            for argument in node.args[1:]:
                self.visit(argument)
            return
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _SETTING_METHODS:
            self.set_on(node, _path(node.func.value, self.names) or path)
        self.generic_visit(node)

    def set_on(self, node: ast.Call, path: str) -> None:
        """`__setattr__`, called on a library or for one."""
        if path:
            self.note(node, f"changes {path}")

    def inside(self, node: ast.expr) -> None:
        """A part of a longer path: itself it hands nothing on."""
        if isinstance(node, ast.Name):
            if node.id == "__builtins__":
                self.note(node, "looks into __builtins__")
            return
        if isinstance(node, ast.Attribute):
            node.inner = True  # type: ignore[attr-defined]
        self.visit(node)


def each(answers: dict[str, WrittenAnswer]) -> Iterator[tuple[str, list[str]]]:
    """What is found in every answer, by key; those in which nothing is are left out."""
    for key, answer in answers.items():
        try:
            found = reaching(answer)
        except RecursionError:
            found = ["an expression nests too deeply to be read"]
        if found:
            yield key, found
