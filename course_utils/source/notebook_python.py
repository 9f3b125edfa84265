"""A notebook's cell as the Python that IPython makes of it: magics, shell commands and `f?` included."""

import ast
import re
from importlib import import_module
from typing import Any

TRANSFORMER = "IPython.core.inputtransformer2"
"""Loaded where a cell is no Python; that takes 0.1 s."""
_PYTHON_MAGICS = frozenset(["time", "timeit", "capture", "prun", "debug"])
"""Cell magics whose body is run as Python in the notebook itself."""
_CELL_MAGIC = re.compile(r"\A\s*%%(\w+)[^\n]*")
_SHELL = "get_ipython"


def as_python(cell: str) -> ast.Module:
    """The cell, if it is Python; else what IPython would run. Raises SyntaxError for what is neither, and
    for what only compiling finds: a parameter that comes twice, a `return` outside of any function.

    Line numbers are kept. The body of `%%time` and its like is Python, that of any other cell magic is not.
    """
    if magic := _CELL_MAGIC.match(cell):
        if magic[1] not in _PYTHON_MAGICS:
            return ast.Module([], [])
        cell = "\n" * magic[0].count("\n") + cell[magic.end() :]
    try:
        tree = ast.parse(cell)
    except SyntaxError:
        manager = import_module(TRANSFORMER).TransformerManager()
        tree = ast.parse(_with_its_lines(cell, manager.transform_cell(cell)))
    compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return tree


def _with_its_lines(cell: str, text: str) -> str:
    """IPython's text; where it has joined lines, as many empty ones after the command that they were."""
    lost = cell.count("\n") - text.rstrip("\n").count("\n")
    if lost <= 0 or text.count(f"{_SHELL}()") != 1:
        return text
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if f"{_SHELL}()" in line)
    return "\n".join([*lines[: at + 1], *[""] * lost, *lines[at + 1 :]])


class NoShell:
    """What stands in a notebook's place for `get_ipython()` where it is read and not run: magics and shell
    commands do nothing, and give nothing."""

    def run_line_magic(self, *_: Any, **__: Any) -> None:
        """`%name …`"""

    run_cell_magic = system = set_next_input = run_line_magic

    def getoutput(self, *_: Any, **__: Any) -> list[str]:
        """`!command`, assigned: no lines."""
        return []
