"""Mutants of the book's code, and a way to find out which of them the checks let live.

`mutants` makes small wrong versions of a function or class, `build` makes an object of one, `run`
judges many of them, each in a process of its own; `survivors` does it all for an exercise.
"""

from .build import build
from .judge import judged_here, run
from .mutants import Mutant, mutants, original
from .outcomes import Job, Outcome

__all__ = ["Job", "Mutant", "Outcome", "build", "judged_here", "mutants", "original", "run"]
