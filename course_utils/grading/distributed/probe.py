"""A probe whose object runs on several ranks, and how its calls and costs are told."""

from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.cost import Measured
from course_utils.grading.driving.probe import Probe, Read, Run
from course_utils.grading.pytrees.shown import shown

from .run import measuring


class _ProbeOnRanks(Probe):
    """A probe that calls `run_on_ranks`: it keeps to the time limit itself, and can be measured."""

    def __init__(self, run: Run, read: Read | None = None) -> None:
        super().__init__(run, read=read, called=_called_on_ranks, on_ranks=True)

    def measure(self, subject: Any, case: Case) -> Measured:
        """One cost for each rank, and what the probe reports of all of them."""
        with measuring() as measured:
            seen = self.run(subject, case)
        if not measured.costs:
            raise RuntimeError("no rank was measured: the contract's probe runs on none")
        return Measured(measured.costs, seen, measured.elsewhere)


def runs_on_ranks(run: Run | None = None, *, read: Read | None = None) -> Any:
    """Decorates a top-level function that calls `run_on_ranks`. read: see `Probe`."""
    if run is not None:
        return _ProbeOnRanks(run)
    return lambda run: _ProbeOnRanks(run, read)


def _called_on_ranks(name: str, case: Case) -> str:
    """ring(x=[1, 2]) on rank 0, (x=[3, 4]) on rank 1"""

    def arguments(call: Case) -> str:
        given = [shown(value) for value in call.args]
        given += [f"{key}={shown(value)}" for key, value in call.kwargs.items()]
        return f"({', '.join(given)})"

    each = [arguments(call) for call in case.calls]
    if len(set(each)) == 1 and len(each) > 1:
        return f"{name}{each[0]} on each of {len(each)} ranks"
    return name + "; ".join(f"{text} on rank {rank}" for rank, text in enumerate(each))
