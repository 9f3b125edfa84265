"""An answer in another process: asked through a channel, judged here.

Whatever comes from there is data that somebody may have forged: it is read strictly, and what cannot
be read, or does not come, is an observation like any other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from course_utils.grading.comparing.costs import as_read
from course_utils.grading.comparing.signatures import Description, checked, description
from course_utils.grading.declaring.exercise import Exercise
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.contract import Contract
from course_utils.grading.driving.cost import Measured
from course_utils.grading.driving.describe import methods_due
from course_utils.grading.expecting import expectations_of
from course_utils.grading.observing.driver import overwritten, result_of
from course_utils.grading.observing.errors import INTERRUPTED, TIME_LIMIT, Raised
from course_utils.grading.observing.observe import Observation, read
from course_utils.grading.pytrees.digest import digest
from course_utils.grading.pytrees.text import cut
from course_utils.grading.student.channel import Ask, ChannelLost
from course_utils.grading.student.protocol import name_of
from course_utils.grading.student.server import BATCH_S, TO_DEFINE_S

from .book_without_answers import PACKAGE, given

MARGIN_S = 2.0  # for the crossing, on a machine that is busy
_TO_START_RANKS_S = 60.0  # for the processes of a first check on ranks
_TO_READ_S = 20.0
_MOST_DOUBTS = 5
_LOSSES = 3  # processes that one answer may cost before the rest is not asked


class RemoteSubmission:
    """The code cells of a notebook, behind a channel.

    keys: of the exercises that they answer. problems: by key, why an answer cannot be parsed.
    problem: why the cells could not be read at all; then there are no keys. reaching: by key, the lines
    that reach for the grader, as they were read before any of them ran.
    """

    def __init__(self, ask: Ask, cells: Sequence[str]) -> None:
        self.channel, self.cells = ask, list(cells)
        self.losses = 0
        self.lacks_the_book = False  # and does the notebook import from it?
        self.told: dict[str, int] = {}  # by key, after how many losses the process was told
        self.keys: tuple[str, ...] = ()
        self.problems: dict[str, str] = {}
        self.reaching: dict[str, tuple[str, ...]] = {}
        self.problem: str | None = None
        self.read_after = -1  # how many losses; the process of now has read it if none came since
        try:
            self.read()
        except ChannelLost as lost:
            self.problem = f"the notebook cannot be read: it {lost.reason}"

    def read(self) -> None:
        """Let the other process read the notebook. Raises ChannelLost."""
        reply = self.ask({"do": "read", "cells": self.cells}, _TO_READ_S)
        try:
            self.keys = tuple(checked(key, str) for key in checked(reply["keys"], list))
            problems = checked(reply["problems"], dict)
            self.problems = {checked(k, str): cut(checked(v, str)) for k, v in problems.items()}
            if self.read_after < 0:
                reaching = checked(reply["reaching"], dict).items()
                self.reaching = {checked(key, str): _texts(lines) for key, lines in reaching}
        except (KeyError, TypeError) as error:
            raise ChannelLost(f"sent what cannot be read: {error}", "garbage") from error
        self.read_after = self.losses

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The reply to a request. Raises ChannelLost, which is counted."""
        try:
            return self.channel(request, limit_s)
        except ChannelLost:
            self.losses += 1
            raise

    def answer(self, exercise: Exercise) -> "RemoteAnswer":
        """The answer to one exercise, which must be among `keys`.

        Ask for a chapter's in the order of its exercises. Raises ValueError for an exercise whose
        solution this process has been told, because a later one builds on it.
        """
        if self.told.get(exercise.key) == self.losses:
            raise ValueError(f"{exercise.key} was told already: judge a chapter in its own order")
        return RemoteAnswer(exercise, self)

    def tell(self, exercise: Exercise) -> dict[str, str]:
        """What the notebook may import of the book for this exercise; see `given`."""
        modules, keys = given(exercise)
        self.told |= dict.fromkeys(keys, self.losses)
        return modules


@dataclass(frozen=True)
class Come:
    """What was seen of a case; and of which case the result had been changed by then."""

    case: Case
    found: Observation
    changed: Case | None = None


class RemoteAnswer:
    """An answer behind a channel. Defined there when it is first asked, and again after each loss."""

    here = False

    def __init__(self, exercise: Exercise, submission: RemoteSubmission) -> None:
        self.exercise, self.submission = exercise, submission
        self.attempted = True
        self.problem: str | None = submission.problem
        if exercise.key in submission.problems:
            self.problem = f"syntax error in {submission.problems[exercise.key]}"
        self.descriptions: tuple[Description, ...] = ()
        self.lacks = ""  # the module that its definition did not find
        self.defined_after = -1
        self.announced: list[list[Case]] = []
        self.come: dict[int, Come] = {}
        self.kept: list[Case] = []
        self.at_first: list[str] = []
        self.changed: Case | None = None
        self.losses = 0
        self.altered: tuple[str, ...] = ()
        self.singly = False
        self.given = submission.tell(exercise) if submission.lacks_the_book else {}
        if self.problem is None:
            try:
                self.define()
                if self.problem and self.lacks.startswith(PACKAGE):
                    self.problem, submission.lacks_the_book = None, True
                    self.given = submission.tell(exercise)
                    self.define()
            except ChannelLost as lost:
                self.problem = f"your code {lost.reason} as it was defined"

    # ---------------------------------------------------------------------- asking

    def define(self) -> None:
        """Run the cells that this answer needs, over there; sets `problem` if that fails.

        Raises ChannelLost.
        """
        submission, exercise = self.submission, self.exercise
        if submission.read_after != submission.losses:
            submission.read()
        request = {
            "do": "define",
            "key": exercise.key,
            "names": list(exercise.names),
            "methods": [methods_due(part) for part in exercise.parts],
            "probe": name_of(exercise.probe),
            "given": self.given,
            "limit_s": TO_DEFINE_S,
        }
        reply = submission.ask(request, TO_DEFINE_S + MARGIN_S)
        try:
            self.attempted = checked(reply["attempted"], bool)
            self.lacks = "" if reply["lacks"] is None else checked(reply["lacks"], str)
            if reply["problem"] is not None:
                self.problem = _sentence(Observation.from_tree(reply["problem"]))
            else:
                found = checked(reply["descriptions"], list)
                self.descriptions = tuple(map(description, found))
                if len(found) != len(exercise.parts):
                    raise ValueError(f"{len(found)} descriptions came")
        except (KeyError, TypeError, ValueError) as error:
            self.problem = f"your code sent what cannot be read: {error}"
        self.defined_after = submission.losses
        self.kept, self.at_first, self.changed = [], [], None

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Raises ChannelLost. Defines the answer first in a process that does not know it."""
        if self.defined_after != self.submission.losses:
            self.define()
            if self.problem:
                raise ChannelLost("could not be defined a second time", "garbage")
        if self.starts_ranks:
            limit_s += _TO_START_RANKS_S
        return self.submission.ask(request | {"key": self.exercise.key}, limit_s + MARGIN_S)

    @property
    def starts_ranks(self) -> bool:
        """Are the exercise's cases calls on several ranks?"""
        return self.exercise.probe.on_ranks

    # ---------------------------------------------------------------------- observing

    def announce(self, groups: Sequence[Sequence[Case]]) -> None:
        self.announced, self.singly = [list(group) for group in groups if group], False

    def observe(self, case: Case, keep: bool = True) -> Observation:
        if id(case) not in self.come:
            for one in self.fetch(self.batch(case), keep):
                self.come[id(one.case)] = one
        come = self.come.pop(id(case))
        self.changed = come.changed or self.changed
        return come.found

    def batch(self, case: Case) -> list[list[Case]]:
        """The case, and those announced after it."""
        if not self.singly:
            for number, group in enumerate(self.announced):
                for place, one in enumerate(group):
                    if one is case:
                        return [group[place:], *self.announced[number + 1 :]]
        return [[case]]

    def fetch(self, groups: list[list[Case]], keep: bool) -> list["Come"]:
        """What is seen of the first of these cases, at least of one."""
        limit, start, first = self.exercise.limit_s, perf_counter(), groups[0][0]
        several = sum(map(len, groups)) > 1
        request = {
            "do": "observe",
            "groups": [[case.as_tree() for case in group] for group in groups],
            "limit_s": limit,
            "keep": keep,
        }
        try:
            reply = self.ask(request, limit + BATCH_S * several)
        except ChannelLost as lost:
            if several:  # which of them it was shows when they are asked one by one
                self.singly = True
                return self.fetch([[first]], keep)
            return [Come(first, self.lost(lost, perf_counter() - start))]
        try:
            self.altered = self.altered or _texts(reply["changed"])
            return list(self.received(groups, checked(reply["groups"], list), keep))
        except (KeyError, TypeError, ValueError) as error:
            return [Come(first, _unreadable(error))]

    def received(
        self, groups: list[list[Case]], replies: list[Any], keep: bool
    ) -> Iterator["Come"]:
        """The observations of these cases; the last group may have been cut short, or be missing."""
        if not 1 <= len(replies) <= len(groups):
            raise ValueError(f"{len(replies)} groups came of {len(groups)}")
        for number, (group, reply) in enumerate(zip(groups, replies, strict=False)):
            trees = checked(checked(reply, dict)["observations"], list)
            found = [Observation.from_tree(tree) for tree in trees]
            least = 1 if number + 1 == len(replies) else len(group)
            if not least <= len(found) <= len(group):
                raise ValueError(f"{len(found)} observations came of {len(group)} cases")
            changed = self.note(group[: len(found)], found, checked(reply["digests"], list), keep)
            for case, one in zip(group, found[:-1], strict=False):
                yield Come(case, self.read(one, case))
            yield Come(group[len(found) - 1], self.read(found[-1], group[len(found) - 1]), changed)

    def read(self, report: Observation, case: Case) -> Observation:
        """What a report means: compared here, so that nothing there has a say in it."""
        exercise = self.exercise
        return read(exercise.probe, _uninterrupted(report), case, exercise.reference_subject)

    def note(
        self, cases: list[Case], reports: list[Observation], digests: list[Any], keep: bool
    ) -> Case | None:
        """Remember which cases were kept there, by number; the one whose result has changed."""
        if keep:
            self.kept += cases
            self.at_first += [digest(result_of(report)) for report in reports]
        number = overwritten(self.at_first, digests)
        return None if number is None else self.kept[number]

    def overwritten(self) -> Case | None:
        return self.changed

    def lost(self, lost: ChannelLost, seconds: float) -> Observation:
        """A process that was lost over a case, as an observation; the third ends the climb."""
        self.losses += 1
        late = lost.how == "timeout"
        kind, costly = TIME_LIMIT if late else "ProcessLost", self.losses >= _LOSSES
        raised = Raised((kind,), f"your code {lost.reason}", told=not late, costly=costly)
        return Observation(None, raised, seconds)

    # ---------------------------------------------------------------------- doubting

    def doubts(self) -> tuple[str, ...]:
        """Why what was reported beside the answer is not to be believed without a look; mostly nothing.

        What its lines reach for, as they were read; else what is not as it was before they ran.
        """
        if reaching := self.submission.reaching.get(self.exercise.key):
            return reaching
        return tuple(f"what checks it was changed where it ran: {name}" for name in self.altered)

    # ---------------------------------------------------------------------- measuring

    def measure(self, contract: Contract) -> list[Measured] | Observation:
        start = perf_counter()
        due = expectations_of(self.exercise).due(contract)
        request = {
            "do": "measure",
            "cases": [case.as_tree() for case in contract.cases],
            "limit_s": self.exercise.limit_s,
            "prepare": contract.prepare and name_of(contract.prepare),
            "probe": contract.probe and name_of(contract.probe),
            "watches_autograd": contract.watches_autograd,
            "results": any(one is not None for one in due),
        }
        try:
            reply = self.ask(request, self.exercise.limit_s * (1 + bool(contract.probe)))
        except ChannelLost as lost:
            return self.lost(lost, perf_counter() - start)
        try:
            self.altered = self.altered or _texts(reply["changed"])
            if reply["ended"] is not None:
                ended = Observation.from_tree(reply["ended"])
                if ended.raised is None:
                    raise ValueError("an end without an exception")
                return _uninterrupted(ended)
            runs = checked(reply["runs"], list)
            if len(runs) != len(contract.cases):
                raise ValueError(f"{len(runs)} measurements of {len(contract.cases)} came")
            found = [
                Measured.from_tree(run, case.world if contract.probe else 0)
                for run, case in zip(runs, contract.cases, strict=True)
            ]
            contract.judge([run.cost for run in found], contract.cases)
            return as_read(contract, found, self.exercise.reference_subject)
        except Exception as error:  # figures that make no sense together make a judge stumble
            return _unreadable(error)


def _texts(lines: Any) -> tuple[str, ...]:
    """Texts of another process, as they may be shown. Raises TypeError for what is none."""
    return tuple(cut(checked(line, str), 300) for line in checked(lines, list)[:_MOST_DOUBTS])


def _unreadable(error: Exception) -> Observation:
    told = f"your code sent what cannot be read: {type(error).__name__}: {error}"
    return Observation(None, Raised(("Unreadable",), told[:500], told=True, costly=True))


def _uninterrupted(found: Observation) -> Observation:
    """Nobody interrupts what runs there: an exception of that name is the code's own."""
    if found.raised is None or found.raised.kind != INTERRUPTED:
        return found
    kinds = (f"{INTERRUPTED} itself", *found.raised.kinds[1:])
    return replace(found, raised=replace(found.raised, kinds=kinds))


def _sentence(found: Observation) -> str:
    """What went wrong as an answer was defined."""
    raised = found.raised
    if raised is None:
        raise ValueError("a problem without an exception")
    line = f" (line {raised.lines[-1][1]})" if raised.lines else ""
    return f"your code raised {raised.kind} as it was defined: {raised.message}{line}"
