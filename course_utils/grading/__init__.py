"""The engine: from an exercise and a student's object to a verdict.

Authors use `Exercise`, `call`, `contracts`, `draws`, `probes`; notebooks use the verbs that
`course_utils` exports; the rest of the package uses `find`, `every`, `grade`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import contracts, draws, probes
    from .case import Case, call, on_ranks
    from .exercise import (
        Alternative,
        Exercise,
        Mistake,
        UnknownKey,
        chapters,
        every,
        exercises_of,
        find,
        register,
    )
    from .judging import NoChecks, grade
    from .session import check_notebook
    from .stubs import solution_cell, stub_cell
    from .verdict import Verdict, VerdictError

_MODULES = ("contracts", "draws", "probes")
_HOMES = {
    "case": ("Case", "call", "on_ranks"),
    "exercise": (
        "Alternative",
        "Exercise",
        "Mistake",
        "UnknownKey",
        "chapters",
        "every",
        "exercises_of",
        "find",
        "register",
    ),
    "judging": ("NoChecks", "grade"),
    "session": ("check_notebook",),
    "stubs": ("solution_cell", "stub_cell"),
    "verdict": ("Verdict", "VerdictError"),
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
    "solution_cell",
    "stub_cell",
]


def __getattr__(name: str) -> Any:
    """Loaded when first used: where a student's code runs, what draws cases is never needed."""
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"{__name__} has no {name!r}; it has {', '.join(__all__)}")
