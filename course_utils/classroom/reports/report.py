"""The class report: one HTML file for the instructor, with figures that say what to teach again."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from course_utils.classroom.marks.align import OUTCOMES, by_plan
from course_utils.classroom.marks.marking import DEFINITION
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import FAILED, MISSING, NOT_ATTEMPTED, PASSED, Record
from course_utils.classroom.marks.text import (
    escaped,
    file_name,
    in_sentence,
    isolated,
    number,
    plural,
)

from .page import figures, page, svg, table
from .sections import Section
from .tally import ClassFigures, ExerciseFigures, counted, histogram
from .wording import CLASSES, clock, policy, rule

SLOWEST = 5
LETTERS = {PASSED: "✓", FAILED: "✗", NOT_ATTEMPTED: "○", MISSING: "–"}


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
    where = {
        item.key: (sections or {}).get(item.key, Section(item.key, item.key)) for item in plan.items
    }
    parts = [
        f"<h1>{escaped(plan.title)}</h1>",
        f'<p class="lead">{introduction(plan, found)}</p>',
        overview(plan, found),
    ]
    if found.records:
        parts += [
            teach_again(found, where),
            distribution(plan, found),
            outcomes(found, where),
            first_rungs(found),
            mistakes(found),
            hardest(found),
        ]
    parts += [
        damaged(found),
        noted(found),
        students(plan, found, feedback),
        computed(plan, found, wall_seconds),
    ]
    return page(f"Class report: {plan.title}", "\n".join(part for part in parts if part))


def introduction(plan: Plan, found: ClassFigures) -> str:
    n = len(found.records)
    if not n:
        return "No submission was graded, so there is nothing to count."
    said = f"{plural(n, 'submission')}, {plural(len(plan.items), 'exercise')}."
    if found.read < n:
        said += f" {n - found.read} of them could not be read and count only in the points."
    return said


def overview(plan: Plan, found: ClassFigures) -> str:
    if not found.records:
        return ""
    most = f" <small>of {number(plan.points)}</small>"
    pairs = [
        ("mean points", number(statistics.fmean(found.points)) + most),
        ("median points", number(statistics.median(found.points)) + most),
        ("passed everything", str(found.perfect)),
        ("late", str(found.late)),
        ("damaged", str(len(found.damaged))),
    ]
    return figures(pairs)


# ---------------------------------------------------------------------------------- teach again


def teach_again(found: ClassFigures, where: Mapping[str, Section]) -> str:
    head = "<h2>What to teach again</h2>"
    if not found.read:
        return (
            head
            + "<p>No submission could be read, so nothing is known of what the class can do.</p>"
        )
    items = found.to_teach()
    if not items:
        return (
            head + "<p>Nothing: the class lost less than 5 % of the points of every exercise.</p>"
        )
    inner = "".join(f"<li>{teach_item(one, where[one.key])}</li>" for one in items)
    return f'{head}<p>Ranked by the share of the points that the class lost.</p><ol class="teach">{inner}</ol>'


def teach_item(one: ExerciseFigures, section: Section) -> str:
    lost = percent(1 - one.share)
    absent = one.outcomes[NOT_ATTEMPTED] + one.outcomes[MISSING]
    counts = [f"{one.failed} of {plural(one.read, 'submission')} failed"] if one.failed else []
    has = "has" if absent == 1 else "have"
    counts += [f"{absent} of {one.read} {has} no answer"] if absent else []
    place = f"<b>{section.html()}</b>: " if section.chapter else ""
    said = (
        f"{place}{escape(section.title)} <code>{escape(one.key)}</code>. {lost} of its points were lost; "
        f"{' and '.join(counts)}."
    )
    kind, which, times = one.reason
    if kind == "mistake":
        said += f" {times} of the failures {'is' if times == 1 else 'are'} one known mistake: {in_sentence(which)}"
    elif which == DEFINITION:
        said += f" Most could not be run at all ({times} of {one.failed})."
    elif kind == "rung":
        said += f" Most fail first at <i>{escaped(which)}</i> ({times} of {one.failed})."
    return said


def percent(share: float) -> str:
    return f"{100 * share:.0f}\u202f%"


# ---------------------------------------------------------------------------------- points


def distribution(plan: Plan, found: ClassFigures) -> str:
    bins = histogram(found.points, plan.points)
    drawing = bars(bins)
    rows = [(span_of(bins, i), str(count)) for i, (_, _, count) in enumerate(bins)]
    caption = "Submissions by points, after what late costs; damaged ones included"
    listed = table(caption, ("points", "submissions"), rows, "tn")
    quarters = ""
    if len(found.points) >= 4:
        low, _, high = statistics.quantiles(found.points, n=4, method="inclusive")
        quarters = (
            f"<p>Half of the submissions have between {number(low)} and {number(high)} points.</p>"
        )
    return f"<h2>Points</h2>{drawing}{quarters}<details><summary>The same as a table</summary>{listed}</details>"


def span_of(bins: Sequence[tuple[float, float, int]], i: int) -> str:
    low, high, _ = bins[i]
    below = "" if i == len(bins) - 1 else "below "
    return f"{number(low)} to {below}{number(high)}"


def bars(bins: Sequence[tuple[float, float, int]]) -> str:
    """A histogram; every bar carries its number."""
    width, height, bottom, top = 480, 190, 40, 24
    highest = max(count for *_, count in bins) or 1
    step = width / len(bins)
    inner = []
    for i, (low, _, count) in enumerate(bins):
        tall = (height - bottom - top) * count / highest
        x, y = i * step, height - bottom - tall
        if count:
            inner.append(
                f'<rect class="bar" x="{x + 2:.1f}" y="{y:.1f}" width="{step - 4:.1f}" height="{tall:.1f}" rx="2"/>'
                f'<text x="{x + step / 2:.1f}" y="{y - 6:.1f}" font-size="15" text-anchor="middle">{count}</text>'
            )
        inner.append(
            axis_label(x, height - bottom + 20, number(low), "start" if i == 0 else "middle")
        )
    inner.append(axis_label(width, height - bottom + 20, number(bins[-1][1]), "end"))
    inner.append(
        f'<text class="muted" x="{width / 2}" y="{height - 3}" font-size="14" text-anchor="middle">points</text>'
    )
    y = height - bottom
    inner.append(f'<line class="axis" x1="0" y1="{y}" x2="{width}" y2="{y}"/>')
    desc = "; ".join(f"{span_of(bins, i)}: {count}" for i, (*_, count) in enumerate(bins) if count)
    return svg(
        "points", "Submissions by points", desc or "no submission", width, height, "".join(inner)
    )


def axis_label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="muted" x="{x:.1f}" y="{y}" font-size="13" text-anchor="{anchor}">{text}</text>'


# ---------------------------------------------------------------------------------- exercises


def outcomes(found: ClassFigures, where: Mapping[str, Section]) -> str:
    rows = []
    for one in found.exercises:
        rows.append(
            (
                f'<code>{escape(one.key)}</code><br><span class="muted">{where[one.key].html()}</span>',
                *(str(one.outcomes[name]) for name in OUTCOMES),
                percent(one.share) if one.read else "–",
            )
        )
    listed = table(
        f"Outcome by exercise, of {plural(found.read, 'submission')} that could be read",
        ("exercise", *OUTCOMES, "points earned"),
        rows,
        "tnnnnn",
        "Outcome by exercise",
    )
    return f"<h2>Exercises</h2>{stacked(found)}{listed}"


def stacked(found: ClassFigures) -> str:
    """One bar an exercise, split by outcome; each part that has room carries its mark and number."""
    if not found.read:
        return ""
    width, row, left = 480, 34, 0
    inner, desc = [], []
    for i, one in enumerate(found.exercises):
        y, x = i * row * 1.35, float(left)
        inner.append(f'<text x="0" y="{y + 14:.1f}" font-size="14">{escape(one.key)}</text>')
        for name in OUTCOMES:
            share = one.outcomes[name] / one.read
            wide = (width - left) * share
            if share:
                inner.append(
                    f'<rect class="part {CLASSES[name]}" x="{x:.1f}" y="{y + 19:.1f}" width="{wide:.1f}" height="14"/>'
                )
                label = f"{LETTERS[name]} {one.outcomes[name]}"
                if wide > 12 * len(label):
                    inner.append(
                        f'<text x="{x + 6:.1f}" y="{y + 30.5:.1f}" font-size="12" style="fill:var(--paper)">{label}</text>'
                    )
            x += wide
        counts = ", ".join(
            f"{one.outcomes[name]} {name}" for name in OUTCOMES if one.outcomes[name]
        )
        desc.append(f"{one.key}: {counts}")
    height = round(len(found.exercises) * row * 1.35)
    legend = ", ".join(
        f'<span class="{CLASSES[name]}">{LETTERS[name]} {name}</span>' for name in OUTCOMES
    )
    drawing = svg("outcomes", "Outcome by exercise", "; ".join(desc), width, height, "".join(inner))
    return f"<p>{legend}.</p>{drawing}"


def first_rungs(found: ClassFigures) -> str:
    names = [
        name
        for name in dict.fromkeys(
            rung.name
            for record in found.records
            for result in record.results
            for rung in result.rungs
        )
        if any(one.rungs[name] for one in found.exercises)
    ]
    others = {name for one in found.exercises for name in one.rungs if name} - set(names)
    names = [*sorted(others), *names]  # a cell that could not be run comes before the ladder
    unknown = any(one.rungs[""] for one in found.exercises)
    head = "<h3>Where answers fail first</h3>"
    if not any(one.failed for one in found.exercises):
        return f"{head}<p>No answer failed.</p>"
    columns = [*names, *([""] if unknown else [])]
    rows = [
        (
            code(one.key),
            *(str(one.rungs[name]) for name in columns),
            str(one.failed),
        )
        for one in found.exercises
        if one.failed
    ]
    heads = ("exercise", *(escaped(name) or "before any rung" for name in columns), "failed")
    kinds = "k" + "n" * (len(heads) - 1)
    caption = "Failed answers by the first rung that they do not pass"
    return head + table(caption, heads, rows, kinds, "First failing rung by exercise")


def mistakes(found: ClassFigures) -> str:
    head = "<h3>Known mistakes</h3>"
    rows = [
        (
            code(one.key),
            in_sentence(said),
            str(times),
            percent(times / one.failed),
        )
        for one in found.exercises
        for said, times in one.mistakes.items()
    ]
    if not rows:
        return f"{head}<p>No failed answer is one of the exercises' known mistakes.</p>"
    rows.sort(key=lambda row: (-int(row[2]), row[0], row[1]))
    failed = sum(one.failed for one in found.exercises)
    caption = (
        f"{sum(int(row[2]) for row in rows)} of {plural(failed, 'failed answer')} give exactly a known mistake's "
        "results on every case that ran"
    )
    heads = ("exercise", "what happened", "answers", "of its failures")
    return head + table(caption, heads, rows, "ktnn", "Known mistakes")


def hardest(found: ClassFigures) -> str:
    tried = [one for one in found.exercises if one.attempts]
    if not tried:
        return ""
    failed = sorted((o for o in tried if o.failed), key=lambda one: -one.failed / one.attempts)
    parts = ["<h3>Most failed, slowest</h3>"]
    if failed:
        shares = [
            (code(o.key), str(o.failed), str(o.attempts), percent(o.failed / o.attempts))
            for o in failed[:SLOWEST]
        ]
        heads: tuple[str, ...] = ("exercise", "failed", "of attempts", "share")
        caption = "Most failed, of those who attempted them"
        parts.append(table(caption, heads, shares, "knnn", "Most failed"))
    slow = sorted((o for o in tried if o.seconds), key=lambda one: -one.median_seconds)
    if slow:
        times = [
            (code(o.key), milliseconds(o.median_seconds), milliseconds(max(o.seconds)))
            for o in slow[:SLOWEST]
        ]
        heads = ("exercise", "median", "slowest answer")
        parts.append(table("Slowest to check", heads, times, "knn", "Slowest to check"))
    return "".join(parts)


def code(key: str) -> str:
    return f"<code>{escape(key)}</code>"


def milliseconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


# ---------------------------------------------------------------------------------- the rest


def damaged(found: ClassFigures) -> str:
    if not found.records:
        return ""
    head = "<h2>Damaged submissions</h2>" + not_judged(found)
    if not found.damaged:
        return f"{head}<p>None.</p>"
    part = f"; {found.in_part} of them could be read in part" if found.in_part else ""
    rows = [
        (
            isolated(record.student),
            in_sentence(record.problem) or "no reason was recorded",
            ", ".join(isolated(name) for name in record.files) or "–",
            number(record.points),
        )
        for record in found.damaged
    ]
    caption = f"{plural(len(found.damaged), 'submission')}{part}"
    heads = ("student", "why", "files found", "points")
    return head + table(caption, heads, rows, "tttn", "Damaged submissions")


def not_judged(found: ClassFigures) -> str:
    """Answers over which the grader itself failed: nobody's zero should be that."""
    if not found.not_judged:
        return ""
    named = "; ".join(f"{isolated(student)} {code(key)}" for student, key in found.not_judged)
    return (
        f'<div class="warn"><p><b>The grader itself failed on {plural(len(found.not_judged), "answer")}</b>, '
        f"which got no points for that: {named}. See errors.log in the run folder, and grade them again.</p></div>"
    )


def noted(found: ClassFigures) -> str:
    rows = [
        (isolated(record.student), "<br>".join(in_sentence(note) for note in record.notes[:10]))
        for record in found.records
        if record.notes
    ]
    if not rows:
        return ""
    caption = "What was read otherwise than it was meant, or is to be known; nothing is wrong"
    listed = table(caption, ("student", "note"), rows, "tt", "Notes")
    said = plural(len(rows), "submission")
    return f"<h3>Notes</h3><details><summary>{said}</summary>{listed}</details>"


def students(plan: Plan, found: ClassFigures, feedback: bool) -> str:
    if not found.records:
        return ""
    rows = []
    for record in found.records:
        name = isolated(record.student)
        page_of = f"feedback/{file_name(record.student)}.html"
        marks = [
            f'<span class="{CLASSES[r.outcome]}" role="img" aria-label="{escape(r.key)}: {r.outcome}">'
            f"{LETTERS[r.outcome]}</span>"
            for r in record.results
        ]
        late = percent(record.penalty) if record.penalty else "–"
        rows.append(
            (
                f'<a href="{escape(page_of, quote=True)}">{name}</a>' if feedback else name,
                number(record.points),
                late,
                " ".join(marks),
            )
        )
    legend = ", ".join(f"{LETTERS[name]} {name}" for name in OUTCOMES)
    caption = f"Points of {number(plan.points)}; exercises in the plan's order: {legend}"
    listed = table(
        caption, ("student", "points", "lost for late", "exercises"), rows, "tnnt", "Students"
    )
    return f"<h2>Students</h2><details><summary>{plural(len(rows), 'student')}</summary>{listed}</details>"


def computed(plan: Plan, found: ClassFigures, wall_seconds: float | None) -> str:
    said = []
    for level, times in found.isolation.most_common():
        said.append(f"Isolation: {escaped(level)} ({plural(times, 'submission')}).")
    if found.read and not found.isolation:
        said.append("Isolation: the records do not say which level was active.")
    if found.records:
        each = statistics.median(record.seconds for record in found.records)
        said.append(
            f"Time: {found.seconds:.1f} s in all workers together, {milliseconds(each)} for a submission in the median"
            + (f"; the run took {wall_seconds:.1f} s." if wall_seconds is not None else ".")
        )
    inside = [one.key for one in found.exercises if one.inside]
    if inside:
        named = ", ".join(f"<code>{escape(key)}</code>" for key in inside)
        said.append(
            f"Contracts of {named} were counted by code that ran in the same process as the answer, which an "
            "answer could tamper with; everything else was compared outside of it."
        )
    said.append(rule())
    if plan.due:
        said.append(
            f"Due {clock(plan.due)}. A late submission loses a share of its points{policy(plan)}."
        )
    said.append(
        "Outcomes, rungs and mistakes are counted over the submissions that could be read; the points over all. A "
        "known mistake is named only where an answer's results are exactly that mistake's on every case that ran."
    )
    return "<h2>How this was computed</h2>" + "".join(f"<p>{text}</p>" for text in said)
