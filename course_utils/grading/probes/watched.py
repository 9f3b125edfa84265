"""What probes watch an answer by: how much it takes of a stream, and how much memory it holds."""

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class Source:
    """An iterator that counts what is taken of it."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items, self.taken = iter(items), 0

    def __iter__(self) -> "Source":
        return self

    def __next__(self) -> Any:
        item = next(self.items)
        self.taken += 1
        return item


@contextmanager
def peak_bytes() -> Iterator[Callable[[], int]]:
    """The most bytes that the block has held at once, by Python's own count, which has NumPy's arrays."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
