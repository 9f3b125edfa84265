"""`course grade` in a terminal: the progress of a run, its summary, and what stopped it, in words."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from course_utils.classroom.marks.plan import A_TIME, Plan, plan_of, time_of
from course_utils.classroom.marks.record import DAMAGED, Record
from course_utils.classroom.marks.text import visible
from course_utils.classroom.submissions.folders_and_zips import NoSubmissions
from course_utils.grading import UnknownKey

from . import grade_class
from .grade_class import Summary
from .journal import RESULTS, CannotRun
from .sandboxes import CannotGrade
from .tasks import Settings

EVERY_S = 5.0  # a line, where there is no terminal to draw a bar on
INTERRUPTED = 130
LONGEST_LINE = 4000
PLAN = "plan.json"


class Bar(grade_class.Progress):
    """A bar with the time left; where there is no terminal, a line now and then."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.began = self.said = perf_counter()
        self.total = self.done = self.before = 0

    def start(self, total: int) -> None:
        self.total = total
        self.began = self.said = perf_counter()
        if total and self.console.is_terminal:
            columns = (TextColumn("graded"), BarColumn(), MofNCompleteColumn())
            self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console)
            self.bar.add_task("graded", total=total, start=False)
            self.bar.start()

    def ready(self) -> None:
        self.began = self.said = perf_counter()
        self.before = self.done
        if self.bar:
            self.bar.start_task(self.bar.task_ids[0])

    def step(self, record: Record) -> None:
        self.done += 1
        if self.bar:
            self.bar.advance(self.bar.task_ids[0])
        if record.status == DAMAGED or record.problem:
            how = "damaged" if record.status == DAMAGED else "read only in part"
            self.say(f"{record.student}: {how}: {record.problem}")
        now = perf_counter()
        if not self.bar and now - self.said > EVERY_S and self.done < self.total:
            each = (now - self.began) / max(1, self.done - self.before)
            left = each * (self.total - self.done)
            self.say(f"graded {self.done} of {self.total}, {left:.0f} s left")
            self.said = now

    def say(self, text: str) -> None:
        text = visible(text, LONGEST_LINE)  # a student may have chosen a part of it
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        if self.bar:
            self.bar.stop()


def grade(
    submissions: Path,
    plan_file: Path | None,
    names: Sequence[str],
    folder: Path | None,
    settings: Settings,
) -> int:
    """Grade, show how it goes, and say what came of it; the status for the shell.

    names: of chapters and exercises, where there is no plan. folder: `grades` beside the submissions
    by default. settings.workers: 0 for one on each core.
    """
    console, bar = Console(), Bar(Console())
    place = folder or submissions.absolute().parent / "grades"
    settings = replace(settings, workers=settings.workers or cores())
    try:
        plan = _the_plan(submissions, plan_file, names)
        summary = grade_class.grade(submissions, plan, place, settings, bar)
    except KeyboardInterrupt:
        bar.stop()
        bar.say(f"stopped after {bar.done} of {bar.total}; the same command goes on from there")
        say_kept(bar, place)
        return INTERRUPTED
    except (CannotRun, CannotGrade, NoSubmissions, UnknownKey, ValueError, OSError) as error:
        bar.stop()
        told = str(error.args[0]) if isinstance(error, LookupError) else str(error)
        text = visible(told, LONGEST_LINE)
        Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)
        say_kept(bar, place)
        return 1
    bar.stop()
    console.print(_table(summary, plan))
    for note in summary.notes:
        bar.say(note)
    for line in _written(summary):
        bar.say(line)
    return 0


def say_kept(bar: Bar, folder: Path) -> None:
    """Where the marks lie of a run that did not come to its end."""
    if bar.done:
        bar.say(f"the marks until then are in {folder / RESULTS}")


def times(texts: Sequence[str]) -> tuple[tuple[str, datetime | None], ...]:
    """Students and when it is due for them, from STUDENT=WHEN; nothing behind the sign: as planned.

    Raises ValueError, which says how to write it.
    """
    found: dict[str, datetime | None] = {}
    for text in texts:
        student, sign, when = text.rpartition("=")
        if not (sign and student):
            raise ValueError(f"whose is it? --due ada={A_TIME}; came {text!r}")
        found[student] = time_of(when) if when else None
    return tuple(found.items())


def _written(summary: Summary) -> list[str]:
    """Where the files are: those of the run folder by name, the pages below it by their number."""
    names = [path.name for path in summary.files if path.parent == summary.folder]
    below = Counter(path.parent.name for path in summary.files if path.parent != summary.folder)
    pages = [f"{name}/ ({number} files)" for name, number in below.items()]
    return [f"written to {summary.folder}: {', '.join(names + pages)}"]


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _the_plan(submissions: Path, plan_file: Path | None, names: Sequence[str]) -> Plan:
    """The plan that is named, or that lies beside the submissions, or one of the named exercises."""
    if plan_file and names:
        raise CannotRun("a plan or chapters, not both: the plan says which exercises count")
    if names:
        return plan_of(names)
    beside = submissions.absolute().parent / PLAN
    if plan_file is None and not beside.is_file():
        raise CannotRun(
            "which exercises count? Give --plan plan.json (`course release` wrote it), or "
            "--chapter strides, or --chapter strides.flat_index=5"
        )
    return Plan.read(plan_file or beside)


def _table(summary: Summary, plan: Plan) -> Table:
    """What a run came to, a line each."""
    shown = Table(show_header=False, box=None, pad_edge=False)
    shown.add_column(style="bold")
    shown.add_column(overflow="fold")
    n = len(summary.records)
    shown.add_row("students", f"{n} ({summary.graded} graded now, {summary.kept} kept)")
    shown.add_row("mean", f"{summary.mean:.2f} of {plan.points:g} points")
    shown.add_row("damaged", str(summary.damaged))
    if summary.held:
        shown.add_row("held", f"{summary.held}: 0 points until you have decided (see below)")
    shown.add_row("isolation", "; ".join(summary.isolation) or "no code was run")
    if summary.seconds:
        rate = summary.in_workers / summary.seconds
        took = f"{summary.start_s:.1f} s to start, {summary.seconds:.1f} s to grade"
        shown.add_row("time", f"{took}: {rate:.1f} submissions a second")
    return shown
