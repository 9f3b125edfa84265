"""A student's answers, carried into a newer edition of the notebooks by exercise key.

The newer notebook is the base. Into it go the student's answers, the cells that the student wrote,
and the student's changes to cells that the new edition left alone. What no longer fits stays in the
notebook as a raw cell, which nothing runs, and is listed. Every notebook that changes is kept as it
was, beside the new one. Updating twice changes nothing the second time.

An edition stamps its notebooks with a digest of each cell (`stamp`), so that what a student changed is
told from what the edition changed. Without a stamp the cells' ids have to serve: then a cell of the
old edition that the new one does not hold is left to the copy, changed by the student or not.

``stamp``     digests of cells; ``notebook``: notebooks read and written
``pieces``    the parts of a notebook that answer exercises; ``fit``: do they fit the new stub?
``lost``      names that an answer uses and the new notebook does not define
``merge``     one notebook
``folders``   what an update would do; ``writing``: an update done
"""

from .folders import changes, notebooks_in, report, rest
from .writing import apply, bring

__all__ = ["apply", "bring", "changes", "notebooks_in", "report", "rest"]
