"""The engine: from an exercise and a student's object to a verdict.

Authors use `Exercise`, `call`, `contracts`, `draws`, `probes`; notebooks use the verbs that
`course_utils` exports; the rest of the package uses `find`, `every`, `grade`.

The core, in the order in which an answer passes it:

1. ``declaring``  what an exercise is, and how it is found
2. ``driving``    cases, probes, what a contract bounds
3. ``observing``  a case goes in, an observation comes out
4. ``comparing``  is it what was expected?
5. ``judging``    the ladder, the diagnosis, the verdict
6. ``notebook``   how it is shown, and the student's verbs

Beside it: ``expecting`` (where expectations come from), ``pytrees`` (all that crosses is one),
``probes`` (how chapters drive an answer), ``distributed`` (on several ranks), ``student`` and
``remote`` (an answer in another process, and the side that judges it).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_utils.grading.judging.verdict import Verdict, VerdictError

    from . import probes
    from .declaring import contracts, draws
    from .declaring.cells import solution_cell, stub_cell
    from .declaring.edits import replace
    from .declaring.exercise import Alternative, Exercise, Mistake
    from .declaring.registry import UnknownKey, chapters, every, exercises_of, find, register
    from .driving.case import Case, call, on_ranks
    from .expecting.from_reference import NoChecks
    from .judging.judge import grade
    from .notebook.check_notebook import check_notebook

_MODULES = {"contracts": "declaring.contracts", "draws": "declaring.draws", "probes": "probes"}
_HOMES = {
    "declaring.cells": ("solution_cell", "stub_cell"),
    "declaring.edits": ("replace",),
    "declaring.exercise": ("Alternative", "Exercise", "Mistake"),
    "declaring.registry": ("UnknownKey", "chapters", "every", "exercises_of", "find", "register"),
    "driving.case": ("Case", "call", "on_ranks"),
    "expecting.from_reference": ("NoChecks",),
    "judging.judge": ("grade",),
    "judging.verdict": ("Verdict", "VerdictError"),
    "notebook.check_notebook": ("check_notebook",),
}

__all__ = [
    "Alternative",
    "Case",
    "Exercise",
    "Mistake",
    "NoChecks",
    "UnknownKey",
    "Verdict",
    "VerdictError",
    "call",
    "chapters",
    "check_notebook",
    "contracts",
    "draws",
    "every",
    "exercises_of",
    "find",
    "grade",
    "on_ranks",
    "probes",
    "register",
    "replace",
    "solution_cell",
    "stub_cell",
]


def __getattr__(name: str) -> Any:
    """Loaded when first used: where a student's code runs, what draws cases is never needed."""
    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"{__name__} has no {name!r}; it has {', '.join(__all__)}")
