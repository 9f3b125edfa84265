"""How fast a class is graded: 60 notebooks a worker, three small exercises of six cases each, sandboxed.

Every submission is read from its notebook, defined and run in a process of its own, and compared with
the reference on random cases. The time of a submission is a worker's, from cells to record; the
first one of each series of cases also pays for its expectations.
"""

import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

CLASSROOM = Path(__file__).parents[1] / "classroom"
sys.path.insert(0, str(CLASSROOM))  # a worker imports this file before all else: so no torch here

SUBMISSIONS, ROUNDS, SEED = 60, 3, 20261121
MODULES = ("toy_class",)


@dataclass(frozen=True)
class Timing:
    """workers: processes. start_s: until the first was ready. each_s: of every submission, in its
    worker. whole_s: of all of them, after the start."""

    workers: int
    start_s: float
    each_s: tuple[float, ...]
    whole_s: float

    @property
    def a_minute(self) -> float:
        return 60 * len(self.each_s) / self.whole_s


def measure(submissions: Path, workers: int) -> Timing:
    """One whole run in a new run folder."""
    import toy_class

    from course_utils.classroom.run import grade_class
    from course_utils.classroom.run.tasks import Settings

    settings = Settings(workers=workers, modules=MODULES)
    with tempfile.TemporaryDirectory() as folder:
        summary = grade_class.grade(submissions, toy_class.PLAN, Path(folder), settings)
    if summary.damaged:
        raise RuntimeError(f"{summary.damaged} submissions were not graded")
    each = tuple(record.seconds for record in summary.records)
    return Timing(workers, summary.start_s, each, summary.seconds)


def interval(values: list[float] | tuple[float, ...], draws: int = 2000) -> tuple[float, float]:
    """A 95 % interval of the median, by resampling."""
    draw = random.Random(SEED)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def told(rounds: list[Timing]) -> str:
    each = [1000 * seconds for one in rounds for seconds in one.each_s]
    low, high = interval(each)
    fifth, *_, last = quantiles(each, n=20)
    return (
        f"{rounds[0].workers:>7}{median(one.start_s for one in rounds):>9.1f}"
        f"{median(each):>11.1f}  {f'{low:.1f} to {high:.1f}':<17}{f'{fifth:.1f} to {last:.1f}':<17}"
        f"{median(one.a_minute for one in rounds):>9.0f}"
    )


def main() -> None:
    import toy_class
    from submissions import folder_of

    from course_utils.classroom.run.terminal import cores

    with tempfile.TemporaryDirectory() as folder:
        print(f"{SUBMISSIONS} submissions a worker, three exercises of six cases, {ROUNDS} rounds")
        print(
            f"{'workers':>7}{'start s':>9}{'median ms':>11}  {'95 % interval':<17}"
            f"{'5 % to 95 %':<17}{'a minute':>9}"
        )
        for workers in dict.fromkeys((1, cores())):
            students = toy_class.class_of(SUBMISSIONS * workers, SEED)
            place = folder_of(Path(folder) / f"class{workers}", students)
            print(told([measure(place, workers) for _ in range(ROUNDS)]), flush=True)


if __name__ == "__main__":
    main()
