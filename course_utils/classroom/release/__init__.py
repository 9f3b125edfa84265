"""Editions: what an instructor hands out, a folder and a zip with the same files.

``edition``          an edition in memory: files by path, and what stays with the instructor
``making``           from a plan to an edition, and why one would not work
``notebooks``        its notebooks: whole chapters, or problem sets of exercises alone
``package``          the part of the package that students need, and its requirements
``without_answers``  the package without what is graded; ``removal``: definitions taken out
``observations``     an exercise as data, where its answer is left out
``reach``, ``needs`` what a text takes from the package, and whether something taken out is needed
``run_notebooks``    its notebooks run, unanswered
``pack``             written to a folder, and as a zip whose bytes can be made again
"""

from .edition import CannotRelease, Edition
from .making import make, problems
from .pack import Written, write

__all__ = ["CannotRelease", "Edition", "Written", "make", "problems", "write"]
