"""Requests about an answer that is nobody's: handled before any student's code comes.

What is slow the first time is done then. A process that forks does it once for all its children:
what they would otherwise each load, look up and write down, in memory of their own, they share.
"""

import linecache
from typing import Any

import torch

from course_utils.grading.driving.case import call
from course_utils.grading.probes import functions, views

from .protocol import name_of
from .server import in_a_process_of_its_own

_TIMES = 12  # Python settles how it runs a line after eight times
_CELLS = [
    "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import Tensor, nn\n"
    "\nfrom course_utils import exercise",
    '@exercise("rehearsal.view")\ndef first_rows(x: Tensor, n: int = 2) -> Tensor:\n'
    '    """The first rows of x, a view."""\n    return x[:n]',
    '@exercise("rehearsal.layer")\ndef layer(x: Tensor, w: Tensor) -> Tensor:\n'
    "    h = torch.softmax(x @ w / math.sqrt(w.shape[0]), dim=-1)\n"
    "    h = F.relu((h - h.mean(-1, keepdim=True)).reshape(-1, h.shape[-1]))\n"
    "    return torch.where(h > 0.5, h, torch.zeros_like(h))",
]
_ANSWERS = {
    "rehearsal.view": ("first_rows", views.view, ((4, 3),)),
    "rehearsal.layer": ("layer", functions.call, ((4, 3), (3, 3))),
}


def _requests() -> list[dict[str, Any]]:
    """From the first request of a submission to the last, for two small answers."""
    told: list[dict[str, Any]] = [{"do": "read", "cells": _CELLS}]
    for key, (name, probe, shapes) in _ANSWERS.items():
        given = [torch.arange(float(shape[0] * shape[1])).reshape(shape) for shape in shapes]
        case = call(*given)
        cases = [case, case.on("", grad=("x",))] if probe is functions.call else [case]
        trees = [one.as_tree() for one in cases]
        about: dict[str, Any] = {"key": key, "limit_s": 60.0}
        defined = {"names": [name], "methods": [[]], "probe": name_of(probe), "given": {}}
        told += [about | {"do": "define"} | defined, about | {"do": "observe", "groups": [trees]}]
        if len(shapes) > 1:
            told += [about | {"do": "measure", "cases": trees[:1]}]
    return told


def rehearse() -> None:
    """Handle them as they would come, `_TIMES` over. Of the answers nothing stays.

    Raises RuntimeError if an answer is not: then nothing has been rehearsed.
    """
    from course_utils.grading.pytrees.serialization import dumps
    from course_utils.grading.pytrees.strict import loads

    told, known = [dumps(request) for request in _requests()], set(linecache.cache)
    for _ in range(_TIMES):
        side = in_a_process_of_its_own()
        for request in told:
            reply = loads(dumps(side.handle(loads(request))))
            seen = [one for group in reply.get("groups", ()) for one in group["observations"]]
            if reply.get("problem") or reply.get("ended") or any(one["raised"] for one in seen):
                raise RuntimeError(f"the rehearsal failed: {reply}")
    for name in set(linecache.cache) - known:
        if name.startswith("<"):  # a cell's
            del linecache.cache[name]
