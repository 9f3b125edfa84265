"""What an answer cost, against what a contract allows, and whether the measured call did the work."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Complaint, Contract
from course_utils.grading.driving.cost import Measured
from course_utils.grading.observing.driver import run_contract
from course_utils.grading.observing.observe import Observation

from .check import Check, Expectation
from .observations import differs, raised_sentence

Runs = list[Measured] | Observation
_ON_RANKS_AGAIN = 2


def broken(contract: Contract, subject: Any, limit_s: float) -> Complaint | None:
    """The complaint about a contract that a live object breaks, or None if it keeps it."""
    runs = confirmed(contract, lambda: run_contract(contract, subject, limit_s))
    return complaint_of(contract, runs)


def confirmed(contract: Contract, measure: Callable[[], Runs]) -> Runs:
    """What `measure` finds.

    On ranks a complaint must repeat itself: a thread of gloo's may hold a tensor a moment too long.
    """
    runs = measure()
    for _ in range(_ON_RANKS_AGAIN if contract.probe else 0):
        if isinstance(runs, Observation) or any(run.elsewhere for run in runs):
            break
        if complaint_of(contract, runs) is None:
            break
        again = measure()
        runs = runs if isinstance(again, Observation) else again
    return runs


def as_read(contract: Contract, runs: Runs, named_by: Any) -> Runs:
    """The runs, with what each reported of its result read here: see `Probe.read`."""
    if isinstance(runs, Observation) or not contract.probe:
        return runs
    read = contract.probe.read
    return [
        replace(run, result=read(run.result, case, named_by))
        for run, case in zip(runs, contract.cases, strict=True)
    ]


def complaint_of(contract: Contract, runs: Runs) -> Complaint | None:
    """What a contract says of the measured runs, or that they could not be measured; None if all is well."""
    if isinstance(runs, Observation):
        assert runs.raised
        return Complaint(f"it could not be measured: {raised_sentence(runs.raised, runs.seconds)}")
    elsewhere = next((run.elsewhere for run in runs if run.elsewhere), None)
    if elsewhere:
        return Complaint(f"it could not be measured: your code {elsewhere}")
    return contract.judge([run.cost for run in runs], contract.cases)


def wrong_there(
    contract: Contract, runs: Runs, due: Sequence[Expectation | None]
) -> tuple[str, Case] | None:
    """What is wrong with a result of the measured calls, which are larger than the other checks.

    due: what each call must give, or None where that decides nothing.
    """
    if isinstance(runs, Observation):
        return None
    for case, run, expected in zip(contract.cases, runs, due, strict=True):
        if expected is None:
            continue
        seen = run.result if contract.probe else {"result": run.result}
        found = differs(Observation(seen), Check(case, expected))
        if found:
            what = found[0] if contract.probe else "the result"
            sentence = (
                f"on this input, larger than the others, {what} is wrong: {found[1].sentence}"
            )
            return sentence, case
    return None


def case_to_blame(contract: Contract, runs: Runs, complaint: Complaint) -> Case:
    """The case whose cost alone gives this complaint; where several are compared, the last."""
    if not isinstance(runs, Observation):
        for case, run in zip(contract.cases, runs, strict=True):
            if _complaint_alone(contract, run, case) == complaint:
                return case
    return contract.cases[-1]


def _complaint_alone(contract: Contract, run: Measured, case: Case) -> Complaint | None:
    try:
        return complaint_of(replace(contract, cases=(case,)), [run])
    except Exception:  # a judge that needs several costs to compare
        return None
