"""What the ladder needs of a student's answer, wherever it lives; and the answer that lives here."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from course_utils.grading.comparing.costs import as_read
from course_utils.grading.comparing.signatures import Description, description
from course_utils.grading.declaring.exercise import Exercise
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Contract
from course_utils.grading.driving.cost import Measured
from course_utils.grading.driving.describe import described, methods_due
from course_utils.grading.observing.driver import Driver, overwritten, result_of
from course_utils.grading.observing.errors import Raised
from course_utils.grading.observing.in_c import may_loop_in_c, stuck_in_c
from course_utils.grading.observing.observe import Observation, read, report
from course_utils.grading.pytrees.digest import digest


class Answer(Protocol):
    """A student's object, or the several of a pair, as the ladder sees it.

    problem: why there is nothing to judge, in a sentence. attempted: is it more than the stub?
    here: does it live in this process, so that what it returns is looked at as it is?
    """

    @property
    def here(self) -> bool: ...

    @property
    def problem(self) -> str | None: ...

    @property
    def attempted(self) -> bool: ...

    @property
    def descriptions(self) -> tuple[Description, ...]:
        """Of each object: its kind and its parameters."""
        ...

    def announce(self, groups: Sequence[Sequence[Case]]) -> None:
        """These will be observed, in this order, unless one of them ends it.

        After the last of each group it may be asked what has been overwritten.
        """

    def observe(self, case: Case, keep: bool = True) -> Observation:
        """What the probe sees. keep: watch whether a later call changes it."""
        ...

    def overwritten(self) -> Case | None:
        """The case whose kept result a later call has changed."""
        ...

    def measure(self, contract: Contract) -> list[Measured] | Observation:
        """Each of the contract's calls, measured once; or the exception that ended it."""
        ...


class Here:
    """Live objects of this process."""

    here, attempted, problem = True, True, None

    def __init__(self, exercise: Exercise, objects: Sequence[Any]) -> None:
        self.exercise, self.objects = exercise, objects
        self.driver = Driver(exercise.subject(*objects), exercise.probe)
        self.cases: list[Case] = []
        self.at_first: list[str] = []
        self.doubtful = not exercise.probe.on_ranks and may_loop_in_c(self.driver.subject)
        self.tried: list[Case] = []
        self.stuck: dict[int, Raised] = {}

    @property
    def descriptions(self) -> tuple[Description, ...]:
        return tuple(
            description(described(mine, methods_due(reference)))
            for mine, reference in zip(self.objects, self.exercise.parts, strict=True)
        )

    def announce(self, groups: Sequence[Sequence[Case]]) -> None:
        """Try them in a fork of this process, if one of them may never come back from C."""
        if not self.doubtful:
            return
        cases = [case for group in groups for case in group]
        self.tried += cases

        def ends(case: Case) -> bool:
            found = report(self.driver.probe, self.driver.subject, case, self.exercise.limit_s)
            return bool(found.raised and found.raised.ends)

        found = stuck_in_c([partial(ends, case) for case in cases], self.exercise.limit_s)
        if found:
            number, raised = found
            self.stuck[id(cases[number])] = raised

    def observe(self, case: Case, keep: bool = True) -> Observation:
        if not any(case is one for one in self.tried):
            self.announce([[case]])
        if raised := self.stuck.get(id(case)):
            return Observation(None, raised, self.exercise.limit_s)
        found = self.driver.drive(case, self.exercise.limit_s, keep)
        if keep:
            self.cases.append(case)
            self.at_first.append(digest(result_of(found)))
        named_by = self.exercise.reference_subject
        return read(self.driver.probe, found, case, named_by)

    def overwritten(self) -> Case | None:
        number = overwritten(self.at_first, self.driver.digests())
        return None if number is None else self.cases[number]

    def measure(self, contract: Contract) -> list[Measured] | Observation:
        limit = self.exercise.limit_s
        named_by = self.exercise.reference_subject

        def measure() -> list[Measured] | Observation:
            return as_read(contract, self.driver.measure(contract, limit), named_by)

        if self.doubtful and (found := stuck_in_c([measure], limit)):
            return Observation(None, found[1], limit)
        return measure()
