"""Editions: what an instructor hands out, a folder and a zip with the same files.

``edition``       an edition in memory: files by path, and what stays with the instructor
``notebooks``     its notebooks: whole chapters, or problem sets of exercises alone
``package``       the part of the package that students need, and its requirements
``running``       its notebooks run, unanswered
``release``       from a plan to an edition that may be handed out
``pack``          an edition written to a folder, and as a zip whose bytes can be made again
"""

from .edition import CannotRelease, Edition, make
from .pack import Written, write
from .release import problems, released

__all__ = ["CannotRelease", "Edition", "Written", "make", "problems", "released", "write"]
