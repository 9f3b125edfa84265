"""The engine: from an exercise and a student's object to a verdict.

Authors use `Exercise`, `call`, `contracts`, `draws`, `probes`; notebooks use the verbs that
`course_utils` exports; the rest of the package uses `find`, `every`, `grade`.
"""

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
from .grade import NoChecks, grade
from .session import check_notebook
from .stubs import solution_cell, stub_cell
from .verdict import Verdict, VerdictError

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
