"""What an object takes, as plain data: said where it lives, read where it is judged."""

import inspect
import re
from collections.abc import Sequence
from typing import Any

import torch

from course_utils.grading.pytrees.shown import in_words
from course_utils.grading.pytrees.text import LONGEST_TEXT, cut, short
from course_utils.grading.pytrees.tree import Opaque, Tree, leaves

MOST_PARAMETERS = 200
_CLASS = re.compile(r"<class '(?:[\w<>]+\.)*(\w+)'>")
NO_DEFAULT = inspect.Parameter.empty


def described(obj: Any, methods: Sequence[str] = ()) -> Tree:
    """An object's description as a tree. methods: of a class, which to describe too."""
    is_class = inspect.isclass(obj)
    return {
        "named": cut(in_words(obj)),
        "class": is_class,
        "callable": callable(obj),
        "generator": inspect.isgeneratorfunction(obj),
        "coroutine": inspect.iscoroutinefunction(obj),
        "call": None if is_class else _call_of(obj),
        "methods": {name: _method_of(obj, name) for name in methods} if is_class else {},
    }


def _method_of(cls: Any, name: str) -> Tree:
    method = getattr(cls, name, None)
    return {"there": method is not None, "call": _call_of(method) if method is not None else None}


def _call_of(function: Any) -> Tree:
    """A signature as a tree; None for a callable that has none."""
    try:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[:MOST_PARAMETERS]
        return {"text": cut(str(signature)), "parameters": [_parameter(p) for p in parameters]}
    except Exception:  # some callables have none, and a student's default may do anything
        return None


def _parameter(p: inspect.Parameter) -> Tree:
    default = [] if p.default is NO_DEFAULT else [_datum(p.default)]
    return {"name": p.name, "kind": p.kind.name, "default": default}


def _datum(default: Any) -> Tree:
    """A default as data: what is no tree by its kind and a text, in which a class is named without
    its module: the student's own may be defined anywhere."""
    if all(_is_plain(leaf) for leaf in leaves(default)):
        return default
    name = getattr(default, "__qualname__", None)
    if isinstance(name, str):
        return Opaque(type(default).__name__, f"{getattr(default, '__module__', '')}:{name}")
    text = short(default, LONGEST_TEXT)
    return Opaque(type(default).__name__, _CLASS.sub(r"<class '\1'>", text))


def _is_plain(leaf: Any) -> bool:
    plain = (bool, int, float, str, torch.dtype, torch.device, torch.Tensor)
    return leaf is None or isinstance(leaf, plain)


def methods_due(reference: Any) -> list[str]:
    """The methods of the book's class that a student's must have."""
    if not inspect.isclass(reference):
        return []
    return [
        name
        for name, method in vars(reference).items()
        if inspect.isfunction(method) and (not name.startswith("_") or name.startswith("__"))
    ]
