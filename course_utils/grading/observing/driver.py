"""A student's object where it lives: driven through cases, measured, and what it returned kept."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Contract
from course_utils.grading.driving.cost import Measured
from course_utils.grading.driving.labels import ARGUMENTS
from course_utils.grading.driving.probe import Probe
from course_utils.grading.pytrees.digest import digest
from course_utils.processes.time_limit import allowance, spare, time_limit

from .errors import raised_by
from .global_state import quiet
from .observe import Observation, report

spare(__file__)


class Driver:
    """A live object with its probe, and what earlier calls of it returned."""

    def __init__(self, subject: Any, probe: Probe) -> None:
        self.subject, self.probe = subject, probe
        self.results: list[Any] = []

    def drive(self, case: Case, limit_s: float, keep: bool = True) -> Observation:
        """What the probe reports. keep: so that a later change of it shows in `digests`."""
        found = report(self.probe, self.subject, case, limit_s)
        if keep:
            self.results.append(result_of(found))
        return found

    def digests(self) -> list[str]:
        """Of each result that was kept, as it is now."""
        return [digest(result) for result in self.results]

    def measure(self, contract: Contract, limit_s: float) -> list[Measured] | Observation:
        """What each of the contract's calls cost; see `run_contract`."""
        return run_contract(contract, self.subject, limit_s)


def result_of(report: Observation) -> Any:
    """What of a report is the object's result, which is to stay as it is."""
    return {k: v for k, v in (report.seen or {}).items() if not k.endswith(ARGUMENTS)}


def overwritten(at_first: Sequence[str], now: Sequence[str]) -> int | None:
    """Which result (from 0) a later call has changed, by their digests: they share memory."""
    for number, (one, other) in enumerate(zip(at_first, now, strict=True)):
        if one != other:
            return number
    return None


def run_contract(contract: Contract, subject: Any, limit_s: float) -> list[Measured] | Observation:
    """Each of the contract's calls measured; or, as an observation, the exception that ended it."""
    start = perf_counter()
    try:
        limited = allowance if contract.probe else time_limit
        with quiet(), limited(limit_s):
            return [contract.run(subject, case) for case in contract.cases]
    except BaseException as error:
        return Observation(None, raised_by(error), perf_counter() - start)
