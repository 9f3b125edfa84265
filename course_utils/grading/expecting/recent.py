"""A small memory for what is costly to work out again: bounded, and safe to ask by identity."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class Recent:
    """Remembers the results for the last `size` questions.

    A question is about objects, told apart by identity, and plain keys. The objects are held as long
    as their entry, so that no later object can bear the identity of one that is gone.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: OrderedDict[tuple[Hashable, ...], tuple[Any, ...]] = OrderedDict()

    def get(self, objects: tuple[Any, ...], make: Callable[[], Any], *keys: Hashable) -> Any:
        """What was made for these objects and keys, or else what `make` makes now."""
        key = (*map(id, objects), *keys)
        if key not in self.entries:
            made = make()
            self.entries[key] = (made, objects)
            while len(self.entries) > self.size:
                self.entries.popitem(last=False)
        self.entries.move_to_end(key)
        return self.entries[key][0]

    def __len__(self) -> int:
        return len(self.entries)
