"""Runs the rows of `book/what_moved.toml` in this process and prints what was seen, as JSON.

A process of its own: rows change defaults and open process groups, and some warnings come only once.
"""

import json
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

OUTDATED = ("deprecat", "will be removed", "has been renamed", "no effect", "upcoming release")
"""What a warning says of an API that is going; other warnings are about other things."""


def rows(path: Path) -> list[dict[str, Any]]:
    topics = tomllib.loads(path.read_text(encoding="utf-8"))["topic"]
    return [row for topic in topics for row in topic["row"]]


def ran(source: str) -> tuple[dict[str, Any], str | None, list[str], list[str]]:
    """Names, exception or None, all warnings, and those that say that something is going."""
    space: dict[str, Any] = {"torch": torch, "nn": nn}
    problem = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(source, "<row>", "exec"), space)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    said = [f"{w.category.__name__}: {w.message}" for w in caught]
    going = [
        f"{w.category.__name__}: {w.message}"
        for w in caught
        if issubclass(w.category, FutureWarning | DeprecationWarning)
        or any(word in str(w.message) for word in OUTDATED)
    ]
    return space, problem, said, going


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.allclose(a.to(b.dtype), b)
    return type(a) is type(b) and a == b


def seen(row: dict[str, Any]) -> dict[str, Any]:
    was, old_problem, said, going = ran(row["was"])
    now, new_problem, _, new_going = ran(row["now"])
    expected = eval(row["expect"], {"torch": torch}) if "expect" in row else was.get("result")
    compared = "result" in now and ("expect" in row or "result" in was)
    return {
        "old problem": old_problem,
        "old says": said,
        "old going": going,
        "new problem": new_problem,
        "new going": new_going,
        "compared": compared,
        "equal": compared and same(now["result"], expected),
        "found": f"{now.get('result')!r}, where {expected!r} was expected",
    }


if __name__ == "__main__":
    torch.set_warn_always(True)
    torch.set_num_threads(1)
    print(json.dumps({row["old"]: seen(row) for row in rows(Path(sys.argv[1]))}))
