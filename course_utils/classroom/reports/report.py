"""The class report: one HTML file for the instructor, with figures that say what to teach again."""

import statistics
from collections.abc import Iterable, Mapping

from course_utils.classroom.marks.align import OUTCOMES, by_plan
from course_utils.classroom.marks.marking import DEFINITION
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import MISSING, NOT_ATTEMPTED, Record
from course_utils.classroom.marks.text import number, plural, visible

from .drawings import histogram_of, stacked_bars
from .page import page
from .sections import Section
from .tally import ClassFigures, ExerciseFigures, counted, histogram
from .wording import MARKS, span_of


def as_html(
    plan: Plan,
    records: Iterable[Record],
    sections: Mapping[str, Section] | None = None,
    *,
    feedback: bool = True,
    wall_seconds: float | None = None,
) -> str:
    """report.html. sections: where in the book each exercise is. feedback: link the students' pages?

    wall_seconds: how long the whole run took, if it was measured.
    """
    found = counted(plan, by_plan(plan, records))
    bins = histogram(found.points, plan.points)
    rungs = first_rungs(found)
    given = {
        "plan": plan,
        "found": found,
        "where": {i.key: (sections or {}).get(i.key, Section(i.key, i.key)) for i in plan.items},
        "feedback": feedback,
        "wall_seconds": wall_seconds,
        "overview": overview(plan, found),
        "lost_by": lost_by,
        "duration": duration,
        "bins": [(span_of(bins, i), count) for i, (*_, count) in enumerate(bins)],
        "histogram": histogram_of(bins),
        "quarters": quarters(found),
        "stacked": stacked_bars(found),
        "rungs": rungs,
        "rung_heads": tuple(visible(name) or "before any rung" for name in rungs),
        "mistakes": known_mistakes(found),
        "legend": ", ".join(f"{MARKS[name]} {name}" for name in OUTCOMES),
        "OUTCOMES": OUTCOMES,
        "DEFINITION": DEFINITION,
    }
    return page("report.html", f"Class report: {plan.title}", given)


def overview(plan: Plan, found: ClassFigures) -> list[tuple[str, str, str]]:
    """The row of figures: what, how much, and of how much or ""."""
    if not found.records:
        return []
    most = number(plan.points)
    return [
        ("mean points", number(statistics.fmean(found.points)), most),
        ("median points", number(statistics.median(found.points)), most),
        ("passed everything", str(found.perfect), ""),
        ("late", str(found.late), ""),
        ("damaged", str(len(found.damaged)), ""),
        ("answers held", str(found.held), ""),
    ]


def lost_by(one: ExerciseFigures) -> str:
    """How an exercise's points were lost, in words."""
    absent = one.outcomes[NOT_ATTEMPTED] + one.outcomes[MISSING]
    counts = [f"{one.failed} of {plural(one.read, 'submission')} failed"] if one.failed else []
    has = "has" if absent == 1 else "have"
    counts += [f"{absent} of {one.read} {has} no answer"] if absent else []
    return " and ".join(counts)


def quarters(found: ClassFigures) -> tuple[float, float] | None:
    """Between which points half of the submissions lie; None for fewer than four."""
    if len(found.points) < 4:
        return None
    low, _, high = statistics.quantiles(found.points, n=4, method="inclusive")
    return low, high


def first_rungs(found: ClassFigures) -> list[str]:
    """The rungs at which answers fail first, in the ladder's order; last "" for those of no known rung."""
    ladder = dict.fromkeys(
        rung.name for record in found.records for result in record.results for rung in result.rungs
    )
    names = [name for name in ladder if any(one.rungs[name] for one in found.exercises)]
    others = {name for one in found.exercises for name in one.rungs if name} - set(names)
    unknown = any(one.rungs[""] for one in found.exercises)
    # a cell that could not be run comes before the ladder
    return [*sorted(others), *names, *([""] if unknown else [])]


def known_mistakes(found: ClassFigures) -> list[tuple[str, str, int, int]]:
    """Exercise, mistake, how many answers and how many of its failures there are; most answers first."""
    rows = [
        (one.key, said, times, one.failed)
        for one in found.exercises
        for said, times in one.mistakes.items()
    ]
    return sorted(rows, key=lambda row: (-row[2], row[0], row[1]))


def duration(seconds: float) -> str:
    """Seconds, or milliseconds below one."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
