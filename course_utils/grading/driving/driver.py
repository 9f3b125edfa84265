"""A student's object where it lives: driven through cases, measured, and watched for what it keeps."""

from contextlib import suppress
from time import perf_counter
from typing import Any

import torch

from course_utils.grading.pytrees.tree import is_plain_tensor, lacks_memory, same, tensors
from course_utils.processes.time_limit import allowance, spare, time_limit

from .case import Case
from .contract import Contract
from .cost import Measured
from .errors import raised_by
from .global_state import quiet
from .observe import Observation, observe
from .probe import Probe

spare(__file__)

_KEPT_ELEMENTS = 100_000


class Driver:
    """A live object with its probe, and what earlier calls of it returned."""

    def __init__(self, subject: Any, probe: Probe) -> None:
        self.subject, self.probe = subject, probe
        self.results: list[tuple[int, Any, list[Any]]] = []
        self.calls = 0

    def drive(self, case: Case, limit_s: float, keep: bool = True) -> Observation:
        """What the probe sees. keep: watch whether a later call changes it."""
        found = observe(self.probe, self.subject, case, limit_s)
        if keep and not found.raised:
            with suppress(Exception):  # a list that holds itself, say: no copy, no complaint
                self.results.append((self.calls, found.seen, _copied(found.seen)))
        self.calls += keep
        return found

    def overwritten(self) -> int | None:
        """Which result (of those kept, from 0) a later call has changed: they share memory."""
        for number, seen, copy in self.results:
            if not same(_copied(seen), copy):
                return number
        return None

    def measure(self, contract: Contract, limit_s: float) -> list[Measured] | Observation:
        """What each of the contract's calls cost; see `run_contract`."""
        return run_contract(contract, self.subject, limit_s)


def _copied(seen: Any) -> list[Any]:
    """Copies of the tensors that a probe saw, small ones, to notice a change."""
    plain = [x for x in tensors(seen) if type(x) is torch.Tensor and is_plain_tensor(x)]
    here = [x for x in plain if not (x.is_nested or x.is_meta or lacks_memory(x))]
    return [x.detach().clone() for x in here if x.numel() <= _KEPT_ELEMENTS]


def run_contract(contract: Contract, subject: Any, limit_s: float) -> list[Measured] | Observation:
    """Each of the contract's calls measured; or, as an observation, the exception that ended it."""
    start = perf_counter()
    try:
        limited = allowance if contract.probe else time_limit
        with quiet(), limited(limit_s):
            return [contract.run(subject, case) for case in contract.cases]
    except BaseException as error:
        return Observation(None, raised_by(error), perf_counter() - start)
