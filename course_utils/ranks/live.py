"""What ranks show while they still run: as it comes, until all of it can be shown by rank."""

import sys
from collections import Counter
from collections.abc import Mapping
from time import monotonic

from .report import Reply, names_of, show_items

_AFTER_S = 0.5
"""A cell that is done by then shows its output once, in order."""


class Live:
    """Shows what is new, each line after its rank, whenever it is called; `clear` takes it back."""

    def __init__(self) -> None:
        self.start = 0.0
        self.shown: Counter[int] = Counter()

    def __call__(self, replies: Mapping[int, Reply]) -> None:
        self.start = self.start or monotonic()
        if monotonic() - self.start < _AFTER_S:
            return
        for rank, reply in replies.items():
            new = reply.items[self.shown[rank] :]
            self.shown[rank] += len(new)
            show_items(new, names_of([rank]))
        sys.stdout.flush()
        sys.stderr.flush()

    def clear(self) -> None:
        """Let the next output of the cell replace all that was shown."""
        if self.shown.total():
            from IPython.display import clear_output

            clear_output(wait=True)
