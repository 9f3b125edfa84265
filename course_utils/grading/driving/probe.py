"""A probe: what drives a student's object through a case, and what a verdict must know of it."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from .case import Case
from .later import worked_out

Run = Callable[[Any, Case], dict[str, Any]]
"""(object, case) → what was seen, by name."""

Read = Callable[[dict[str, Any], Case, Any], dict[str, Any]]
"""(report, case as it was given, object whose parameters name the arguments) → what was seen."""

Called = Callable[[str, Case], str]
"""(the object's name, case) → the call as a reader would write it."""


class Probe:
    """A function that drives an object through a case and says what it saw, by name.

    run: the function, which runs where the object lives. read: what its report means, where only
    values are reported there; it runs where the report is judged, on bytes that may be forged, and
    compares there. By default the report is what was seen. In either, what was left for `later` is
    worked out there. called: writes the call that a verdict
    shows; None: the object called with the case's arguments. by_name: may every argument come by its
    name as well? on_ranks: the object runs in other processes, where the probe keeps to the time
    limit itself.
    """

    def __init__(
        self,
        run: Run,
        *,
        read: Read | None = None,
        called: Called | None = None,
        by_name: bool = False,
        on_ranks: bool = False,
    ) -> None:
        update_wrapper(self, run)
        self.run, self.called, self.by_name, self.on_ranks = run, called, by_name, on_ranks
        self._read = read

    def __call__(self, subject: Any, case: Case) -> dict[str, Any]:
        """What is seen of the object in this case, whose tensors are used up."""
        given = case.fresh() if self._read else case
        return self.read(self.run(subject, case), given, subject)

    def read(self, report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
        """What a report means. case: as it was given. named_by: its parameters name the arguments."""
        return worked_out(self._read(report, case, named_by) if self._read else report)

    def __repr__(self) -> str:
        return f"<probe {self.run.__qualname__}>"


def probe(
    run: Run | None = None,
    *,
    read: Read | None = None,
    called: Called | None = None,
    by_name: bool = False,
) -> Any:
    """Make a top-level function a probe: `@probe`, or `@probe(read=…, by_name=True)`."""
    if run is not None:
        return Probe(run)
    return lambda run: Probe(run, read=read, called=called, by_name=by_name)
