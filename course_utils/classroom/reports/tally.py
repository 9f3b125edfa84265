"""The figures of a class, counted from its records. Nothing here knows about HTML."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from course_utils.classroom.marks.align import OUTCOMES, was_read
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import (
    DAMAGED,
    FAILED,
    INSIDE,
    NOT_JUDGED,
    PASSED,
    Record,
    Result,
)

OFTEN = 0.2
"""A known mistake is named as the reason if it explains this share of an exercise's failures."""

WORTH_TEACHING = 0.05
"""An exercise is to be taught again if the class lost this share of its points, or more."""


@dataclass(frozen=True)
class ExerciseFigures:
    """One exercise over all submissions that were read.

    outcomes: how many had each. rungs: failed submissions by first failing rung ("" where none is
    known). mistakes: by diagnosis. share: of its points that was earned, NaN-free: 0 for nobody.
    seconds: of each answer that was checked.
    """

    key: str
    max_points: float
    outcomes: Counter[str]
    rungs: Counter[str]
    mistakes: Counter[str]
    share: float
    seconds: tuple[float, ...]
    inside: bool

    @property
    def read(self) -> int:
        return sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        return self.outcomes[FAILED]

    @property
    def attempts(self) -> int:
        return self.outcomes[PASSED] + self.outcomes[FAILED]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds) if self.seconds else 0.0

    @property
    def reason(self) -> tuple[str, str, int]:
        """Why most attempts failed: ("mistake" or "rung" or "", which, how many)."""
        mistake = self.mistakes.most_common(1)
        if mistake and mistake[0][1] >= max(1, OFTEN * self.failed):
            return "mistake", *mistake[0]
        rung = [pair for pair in self.rungs.most_common() if pair[0]]
        return ("rung", *rung[0]) if rung else ("", "", 0)


@dataclass(frozen=True)
class ClassFigures:
    """records: laid out by the plan. exercises: in the plan's order. points: of every submission.
    not_judged: (student, key) of answers over which the grader itself failed.
    """

    records: tuple[Record, ...]
    exercises: tuple[ExerciseFigures, ...]
    points: tuple[float, ...]
    damaged: tuple[Record, ...] = ()
    in_part: int = 0
    late: int = 0
    not_judged: tuple[tuple[str, str], ...] = ()
    isolation: Counter[str] = field(default_factory=Counter)

    @property
    def read(self) -> int:
        return sum(was_read(record) for record in self.records)

    @property
    def perfect(self) -> int:
        return sum(all(r.outcome == PASSED for r in record.results) for record in self.records)

    @property
    def held(self) -> int:
        """Answers that count nothing until somebody has decided."""
        return sum(len(record.held) for record in self.records)

    @property
    def seconds(self) -> float:
        return sum(record.seconds for record in self.records)

    @property
    def median_seconds(self) -> float:
        """Of a submission."""
        return statistics.median(record.seconds for record in self.records)

    @property
    def failed(self) -> int:
        """Answers that failed, of all exercises."""
        return sum(one.failed for one in self.exercises)

    def tried(self) -> list[ExerciseFigures]:
        """The exercises that somebody attempted."""
        return [one for one in self.exercises if one.attempts]

    def most_failed(self, most: int = 5) -> list[ExerciseFigures]:
        """By the share of the attempts that failed, largest first."""
        failed = (one for one in self.tried() if one.failed)
        return sorted(failed, key=lambda one: -one.failed / one.attempts)[:most]

    def slowest(self, most: int = 5) -> list[ExerciseFigures]:
        """By the median time of a check."""
        timed = (one for one in self.tried() if one.seconds)
        return sorted(timed, key=lambda one: -one.median_seconds)[:most]

    def to_teach(self, most: int = 5) -> list[ExerciseFigures]:
        """What the class lost most points in, most first."""
        lost = [one for one in self.exercises if one.read and 1 - one.share >= WORTH_TEACHING]
        return sorted(lost, key=lambda one: (-(1 - one.share), one.key))[:most]


def counted(plan: Plan, records: Sequence[Record]) -> ClassFigures:
    """The figures of records that `by_plan` laid out."""
    read = [record for record in records if was_read(record)]
    damaged = tuple(record for record in records if record.status == DAMAGED or record.problem)
    return ClassFigures(
        records=tuple(records),
        exercises=tuple(_of_exercise(item.key, item.points, read) for item in plan.items),
        points=tuple(record.points for record in records),
        damaged=damaged,
        in_part=sum(was_read(record) for record in damaged),
        late=sum(record.penalty > 0 for record in records),
        not_judged=tuple(
            (record.student, result.key)
            for record in records
            for result in record.results
            if result.sentence.startswith(NOT_JUDGED)
        ),
        isolation=Counter(record.isolation for record in read if record.isolation),
    )


def _of_exercise(key: str, worth: float, read: Sequence[Record]) -> ExerciseFigures:
    results = [result for record in read if (result := record.result(key))]
    failed = [result for result in results if result.outcome == FAILED]
    return ExerciseFigures(
        key=key,
        max_points=worth,
        outcomes=Counter({name: sum(r.outcome == name for r in results) for name in OUTCOMES}),
        rungs=Counter(result.failed_rung or "" for result in failed),
        mistakes=Counter(result.diagnosis for result in failed if result.diagnosis),
        share=mean([_share_of(result, worth) for result in results]),
        seconds=tuple(result.seconds for result in results if result.seconds > 0),
        inside=any(result.guarantee == INSIDE for result in results),
    )


def _share_of(result: Result, worth: float) -> float:
    return min(max(result.points / (result.max_points or worth), 0.0), 1.0)


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return statistics.fmean(values) if values else 0.0


def histogram(
    points: Sequence[float], most: float, bins: int = 10
) -> list[tuple[float, float, int]]:
    """(from, to, how many) for equal bins from 0 to `most`; a bin holds its lower end, the last both."""
    counts = [0] * bins
    for value in points:
        counts[min(max(int(value / most * bins + 1e-9), 0), bins - 1)] += 1
    edges = [most * i / bins for i in range(bins + 1)]
    return [(edges[i], edges[i + 1], counts[i]) for i in range(bins)]
