"""`%%ranks`: one cell on several processes of this machine, as `torchrun` would start them.

    %load_ext course_utils.ranks

    %%ranks 4
    x = torch.ones(2) * rank
    dist.all_reduce(x)
    x

Without a notebook: `with Ranks(4) as ranks: ranks.call(function, argument)`.

What crosses between the processes is pickled, in both directions: they belong to one user and run
that user's code. The marks of `course grade` do not pass this way.
"""

from typing import Any

from .pool import Ranks
from .report import Failure, Line, RanksError, Reply

__all__ = ["Failure", "Line", "Ranks", "RanksError", "Reply"]


def load_ipython_extension(shell: Any) -> None:
    from . import magic

    magic.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    from . import magic

    magic.unload(shell)
