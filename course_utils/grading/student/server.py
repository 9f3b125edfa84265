"""The student's side of a check: requests about an answer, answered where its code runs.

Requests and replies are trees, so nothing is ever unpickled. It needs neither references nor
exercises and holds nothing that is expected.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Contract
from course_utils.grading.driving.describe import described
from course_utils.grading.observing.driver import Driver
from course_utils.grading.observing.errors import Raised, raised_by
from course_utils.grading.observing.global_state import only_answers_here, quiet
from course_utils.grading.observing.observe import Observation
from course_utils.grading.pytrees.serialization import extent, snapshot
from course_utils.processes.time_limit import time_limit
from course_utils.source.answers import WrittenAnswer, answers, build
from course_utils.source.reaching import each

from .modules import install
from .protocol import LARGEST_FRAME, called
from .vouching import before

BATCH_S = 0.5  # after so long a batch of cases is cut short: the rest is asked for again
_BATCH_BYTES = 16 * 2**20
TO_DEFINE_S = 60.0  # for the definitions and imports of an answer; torch alone may take ten


class StudentSide:
    """What runs the student's code and answers questions about it."""

    def __init__(self) -> None:
        self.found: dict[str, WrittenAnswer] = {}
        self.driver: dict[str, Driver] = {}
        self.before = before()

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request: read, define, observe or measure.

        Raises KeyError for a request that it does not know, or about what it was not told.
        """
        do: dict[str, Callable[..., dict[str, Any]]] = {
            "read": self.read,
            "define": self.define,
            "observe": self.observe,
            "measure": self.measure,
        }
        return do[request["do"]](**{key: request[key] for key in request if key != "do"})

    def read(self, cells: list[str]) -> dict[str, Any]:
        """The code cells of a notebook: which exercises they answer, which cannot be parsed, and which
        reach for the grader. Nothing of the notebook has run by then."""
        self.found, self.driver = answers(cells), {}
        problems = {key: answer.problem for key, answer in self.found.items() if answer.problem}
        return {"keys": list(self.found), "problems": problems, "reaching": dict(each(self.found))}

    def define(
        self,
        key: str,
        names: list[str],
        methods: list[list[str]],
        probe: str,
        given: dict[str, str],
        limit_s: float = TO_DEFINE_S,
    ) -> dict[str, Any]:
        """Run an answer's statements. methods: of each object, those that are to be described.

        given: modules of the book, by name, as sources, to be found where the book is missing.
        The reply's `lacks` names the module that was not found, if that ended it.
        """
        try:
            answer = self.found[key]
            with quiet(), time_limit(limit_s):
                install(given)
                objects = build(answer, names=names, instead=_nobodys)
                tree = [described(obj, m) for obj, m in zip(objects, methods, strict=True)]
        except BaseException as error:  # anything a student's cell may do
            problem = Observation(None, raised_by(error)).as_tree()
            lacks = error.name if isinstance(error, ModuleNotFoundError) else None
            return {"attempted": True, "problem": problem, "descriptions": [], "lacks": lacks}
        subject = objects[0] if len(objects) == 1 else dict(zip(names, objects, strict=True))
        self.driver[key] = Driver(subject, called(probe))
        return {
            "attempted": not answer.is_untouched(len(names)),
            "problem": None,
            "descriptions": tree,
            "lacks": None,
        }

    def observe(
        self, key: str, groups: list[list[Any]], limit_s: float, keep: bool = True
    ) -> dict[str, Any]:
        """What the probe reports of these cases, or on the first of them, and at least on one.

        The rest is left out after an observation that ends a ladder, and when the batch has become
        long or large. digests: of all results that were kept, as they were when the group was
        through. changed: what is no longer what it was before any of the student's code ran.
        """
        driver, start, size, over = self.driver[key], perf_counter(), 0, False
        replies = []
        for group in groups:
            observations: list[Any] = []
            for case in group:
                found, more = _bounded(driver.drive(Case.from_tree(case), limit_s, keep))
                observations.append(snapshot(found.as_tree()))  # before a later call may change it
                size += more
                over = bool(found.raised and found.raised.ends)
                over |= perf_counter() - start > BATCH_S or size > _BATCH_BYTES
                if over:
                    break
            replies.append({"observations": observations, "digests": driver.digests()})
            if over:
                break
        return {"groups": replies, "changed": self.before.changed()}

    def measure(
        self,
        key: str,
        cases: list[Any],
        limit_s: float,
        prepare: str | None = None,
        probe: str | None = None,
        watches_autograd: bool = False,
        results: bool = True,
    ) -> dict[str, Any]:
        """What each call costs. results: what the measured calls returned is asked for too."""
        contract = Contract(
            "",
            tuple(map(Case.from_tree, cases)),
            lambda costs, cases: None,  # who judges holds the limits
            watches_autograd,
            called(prepare) if prepare else None,
            called(probe) if probe else None,
        )
        runs = self.driver[key].measure(contract, limit_s)
        if isinstance(runs, Observation):
            return {"runs": [], "ended": runs.as_tree(), "changed": []}
        told = [run.as_tree(results) for run in runs]
        return {"runs": told, "ended": None, "changed": self.before.changed()}


def _nobodys(key: str) -> dict[str, Any]:
    """What an exercise stands for that the notebook leaves unwritten: a class whose objects cannot be made."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError(
            f"your answer uses {key}, which your notebook leaves unwritten: here no version of the book stands in for it"
        )

    name = key.partition(".")[2]
    return {name: type(name, (), {"__init__": refuse, "__doc__": "Still the stub."})}


def in_a_process_of_its_own() -> StudentSide:
    """The student's side where nothing else runs."""
    only_answers_here()
    return StudentSide()


def _bounded(found: Observation) -> tuple[Observation, int]:
    """The observation and its bytes; or in its place, where it is too large to cross, that it is."""
    try:
        size = extent(found.seen)
        if size <= LARGEST_FRAME // 2:
            return found, size
        told = f"what your code returned is too large to look at: {size:,} bytes"
    except ValueError as error:
        told = f"what your code returned is too large to look at: {error}"
    return Observation(None, Raised(("TooLarge",), told, told=True), found.seconds), 0
