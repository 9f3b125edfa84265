"""A probe: what drives a student's object through a case, and what a verdict must know of it."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from .case import Case

Run = Callable[[Any, Case], dict[str, Any]]
"""(object, case) → what was seen, by name."""

Called = Callable[[str, Case], str]
"""(the object's name, case) → the call as a reader would write it."""


class Probe:
    """A function that drives an object through a case and says what it saw, by name.

    run: the function. called: writes the call that a verdict shows; None: the object called with the
    case's arguments. by_name: may every argument come by its name as well? on_ranks: the object runs
    in other processes, where the probe keeps to the time limit itself.
    """

    def __init__(
        self,
        run: Run,
        *,
        called: Called | None = None,
        by_name: bool = False,
        on_ranks: bool = False,
    ) -> None:
        update_wrapper(self, run)
        self.run, self.called, self.by_name, self.on_ranks = run, called, by_name, on_ranks

    def __call__(self, subject: Any, case: Case) -> dict[str, Any]:
        return self.run(subject, case)

    def __repr__(self) -> str:
        return f"<probe {self.run.__qualname__}>"


def probe(run: Run | None = None, *, called: Called | None = None, by_name: bool = False) -> Any:
    """Make a top-level function a probe: `@probe`, or `@probe(by_name=True)`."""
    if run is not None:
        return Probe(run)
    return lambda run: Probe(run, called=called, by_name=by_name)
