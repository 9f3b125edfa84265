"""What a recording depends on: a digest of the code that made it.

A recording is current as long as its digest is the present one. What counts:

- the notebook's code cells down to the recorded one, with the book's solutions in place of stubs;
- the files of ``course_utils`` that these cells import, and those that these import in turn
  (`course_utils.source.closure`); the reference of each chapter whose exercises they name;
- for what a recorder made, the recorder's module and the files that it imports.

What does not: Markdown, comments, docstrings and formatting, outputs, cells further down, the set-up cell,
the rooms that judge, ask and keep, the scripts of figures, and the versions of torch and the driver, which
the stamp says. The digest is of the parsed code, so it is the same on every Python of the course.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from course_utils.source.closure import closure

PACKAGE = Path(__file__).resolve().parents[1]
_ASIDE = ("grading", "questions", "recordings")
"""Rooms that judge, ask and keep; no output that is recorded comes from them."""

_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def digest_of_cells(sources: Sequence[str]) -> str:
    """Digest of what the outputs of the last of these cells depend on.

    sources: code cells in order, solutions in place of stubs, without the set-up cell.
    """
    *above, own = [_parse(source) for source in sources]
    texts = _canonical([statement for cell in above for statement in cell]), _canonical(own)
    return _digest(texts, _files(sources))


def digest_of_module(file: Path) -> str:
    """Digest of what a module of the course depends on, itself included."""
    return _digest([], _files([], file))


def _files(sources: Iterable[str], *files: Path) -> set[Path]:
    """Scripts left out: they run where a page is read."""
    found = closure(sources, PACKAGE, files=files, rooms=("reference",), aside=_ASIDE)
    return {file for file in found if file.suffix != ".js"}


def _digest(cells: Iterable[str], files: Iterable[Path]) -> str:
    parts = [*cells]
    for file in sorted(files):
        content = file.read_bytes()
        text = _module(content) if file.suffix == ".py" else hashlib.sha256(content).hexdigest()
        parts += [file.relative_to(PACKAGE).as_posix(), text]
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode() + b"\0")
    return state.hexdigest()[:16]


@lru_cache(maxsize=1024)
def _module(content: bytes) -> str:
    return _canonical(ast.parse(content))


def _parse(source: str) -> list[ast.stmt]:
    """The statements of a cell. Magics and shell commands count by their text."""
    lines = source.split("\n")
    if source.lstrip().startswith("%%"):
        return [_text(source)]
    plain = [f"{_indent(line)}{line.strip()!r}" if _magic(line) else line for line in lines]
    try:
        return ast.parse("\n".join(plain)).body
    except SyntaxError:
        return [_text(source)]


def _magic(line: str) -> bool:
    return re.match(r"\s*[%!]\w", line) is not None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _text(source: str) -> ast.stmt:
    return ast.Expr(ast.Constant(source.strip()), lineno=0, col_offset=0)


def _canonical(node: object) -> str:
    """Code as text that is the same on every Python: no positions, comments, docstrings or defaults."""
    if isinstance(node, ast.AST):
        fields = []
        for name in sorted(node._fields):
            value = getattr(node, name, None)
            if name == "body" and isinstance(node, _SCOPES) and isinstance(value, list):
                value = _without_docstring(value)
            if name in ("ctx", "kind", "type_comment", "type_ignores"):
                continue
            if value is None and not isinstance(node, ast.Constant):
                continue
            if isinstance(node, ast.JoinedStr):
                value = _joined(node.values)
            if value != []:
                fields.append(f"{name}={_canonical(value)}")
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_canonical, node))}]"
    return repr(node)


def _joined(parts: list[ast.expr]) -> list[object]:
    """The parts of an f-string, text beside text made one: Python 3.12 cuts it elsewhere."""
    made: list[object] = []
    for part in parts:
        match part:
            case ast.Constant(value=str(text)) if made and isinstance(made[-1], str):
                made[-1] += text
            case ast.Constant(value=str(text)):
                made += [text] if text else []
            case _:
                made.append(part)
    return made


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body
