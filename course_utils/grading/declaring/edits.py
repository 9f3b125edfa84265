"""A mistake made from the reference's own source: the line that is wrong, and nothing else.

    softmax.mistake("It normalises over the wrong axis.", replace("dim=-1", "dim=0"))

Edits can be put together (`one + other`), which is how two slips at once are recognised.
"""

import ast
import inspect
import linecache
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from course_utils.source.text import source_of


class NoSuchText(ValueError):
    """An edit's text does not stand in the source exactly once."""


@dataclass(frozen=True)
class Edit:
    """Texts of the reference's code, docstrings aside, each with what stands there instead."""

    pairs: tuple[tuple[str, str], ...]

    def __add__(self, other: "Edit") -> "Edit":
        return Edit(self.pairs + other.pairs)

    def __str__(self) -> str:
        return "; ".join(f"{old!r} → {new!r}" for old, new in self.pairs)

    def applied(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """The reference's objects as they are after the edit, in a namespace of their own.

        Raises NoSuchText for a text that does not stand in their code exactly once.
        """
        source = "\n\n\n".join(_without_docstrings(source_of(part)) for part in parts)
        for old, new in self.pairs:
            if (found := source.count(old)) != 1:
                names = " and ".join(part.__name__ for part in parts)
                raise NoSuchText(f"{old!r} stands {found} times in the code of {names}, not once")
            source = source.replace(old, new)
        module = inspect.getmodule(inspect.unwrap(parts[0]))
        assert module is not None
        name = f"<{parts[0].__name__}, edited {sha256(source.encode()).hexdigest()[:12]}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        # No module has this name: other processes get the edited code, not the reference.
        space = dict(vars(module)) | {"__name__": f"{module.__name__}:edited"}
        exec(compile(source, name, "exec", dont_inherit=True), space)
        return tuple(space[part.__name__] for part in parts)


_DOCUMENTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _without_docstrings(source: str) -> str:
    """The source less its docstrings: what they say is no code to edit."""
    lines: list[str | None] = list(source.splitlines())
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) and len(node.body) > 1:
            first = node.body[0]
            lines[first.lineno - 1 : first.end_lineno] = [None] * _height(first)
    return "\n".join(line for line in lines if line is not None)


def _height(node: ast.stmt) -> int:
    assert node.end_lineno
    return node.end_lineno - node.lineno + 1


def replace(old: str, new: str, *more: str) -> Edit:
    """The reference with `new` in place of `old`; more: further pairs, old and new in turn."""
    texts = (old, new, *more)
    if len(texts) % 2:
        raise ValueError("replace takes pairs: what stands there, and what should")
    return Edit(tuple(zip(texts[::2], texts[1::2], strict=True)))
