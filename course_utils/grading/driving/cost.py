"""What one call costs: counted, never timed, so it holds on any machine."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from course_utils.grading.pytrees.tree import is_plain_tensor, tensors
from course_utils.meters import Cost, measure

from .case import Case

Prepare = Callable[[Any, Case], Callable[[], Any]]
"""(object, case) → the function whose call is measured."""


@dataclass(frozen=True)
class Measured:
    """What one call cost and gave.

    cost: a `Cost`; on ranks, a list of one for each.
    elsewhere: how part of it escaped being counted, in words that follow "your code", or nothing.
    """

    cost: Any
    result: Any
    elsewhere: str = ""

    def as_tree(self, result: bool = True) -> dict[str, Any]:
        """What crosses to another process. result: what the call gave, too."""
        costs = self.cost if isinstance(self.cost, list) else [self.cost]
        return {
            "costs": [cost.as_dict() for cost in costs],
            "result": self.result if result else None,
            "elsewhere": self.elsewhere,
        }

    @classmethod
    def from_tree(cls, tree: Any, ranks: int = 0) -> "Measured":
        """The inverse. ranks: how many were measured. Raises ValueError for a tree that is none."""
        try:
            costs = [Cost.from_dict(cost) for cost in tree["costs"]]
            result, elsewhere = tree["result"], tree["elsewhere"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"this measures nothing: {type(error).__name__}: {error}") from error
        if len(costs) != (ranks or 1):
            raise ValueError(f"{len(costs)} costs came, {ranks or 1} expected")
        if type(elsewhere) is not str or (ranks and type(result) is not dict):
            raise ValueError("this measures nothing")
        return cls(costs if ranks else costs[0], result, elsewhere[:500])


_KEPT = (
    "returns memory that no operation of this call made: a result kept from an earlier call, or "
    "made outside of torch"
)
IN_A_THREAD = "works in another thread, where nothing can be counted"


def measure_call(
    subject: Any, case: Case, prepare: Prepare | None = None, watches_autograd: bool = False
) -> Measured:
    """What one call of the object costs and gives: see `Contract`. The case's tensors are used up."""
    run = prepare(subject, case) if prepare else partial(subject, *case.args, **case.kwargs)
    meter = measure(saved=watches_autograd)
    with threads_started() as threads, meter as cost:
        result = run()
        made = all(map(meter.made, _tensors_of(result)))
    if threads:
        return Measured(cost, result, IN_A_THREAD)
    given = {x.untyped_storage()._cdata for x in _tensors_of((case.args, case.kwargs))}
    shared = all(x.untyped_storage()._cdata in given for x in _tensors_of(result))
    if not (made or shared or prepare):
        return Measured(cost, result, _KEPT)
    return Measured(cost, result)


def _tensors_of(tree: Any) -> list[Any]:
    """The tensors with at least one element in nested lists, tuples and dicts."""
    return [x for x in tensors(tree) if is_plain_tensor(x) and x.numel()]


@contextmanager
def threads_started() -> Iterator[list[threading.Thread]]:
    """The threads that the block starts."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    threading.Thread.start = noted  # type: ignore[method-assign, assignment]
    try:
        yield started
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
