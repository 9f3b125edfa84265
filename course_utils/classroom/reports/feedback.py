"""A page for one student: the verdict of each exercise, rung by rung, the points, and why.

What it may say of a failing check is decided in `marks.told`.
"""

from collections.abc import Mapping
from html import escape

from course_utils.classroom.marks.align import laid_out, was_read
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import (
    DAMAGED,
    FAILED,
    INSIDE,
    PASSED,
    Record,
    Result,
    Rung,
)
from course_utils.classroom.marks.text import CODE, escaped, in_sentence, isolated, number, plural
from course_utils.classroom.marks.told import Part, told

from .page import page, table
from .sections import Section
from .wording import CLASSES, MARKS, clock, policy, rule


def headline(result: Result) -> str:
    """The outcome with its counts, in words."""
    if result.outcome == PASSED:
        return f"passed · {plural(result.checks, 'check')}"
    if result.outcome == FAILED:
        names = [rung.name for rung in result.rungs]
        counts = f"{result.passed_checks} of {plural(result.checks, 'check')} passed"
        if result.failed_rung in names:
            place = names.index(str(result.failed_rung)) + 1
            return f"failed at rung {place} of {len(names)}, {result.failed_rung} · {counts}"
        where = f" at {result.failed_rung}" if result.failed_rung else ""
        return f"failed{where} · {counts}"
    return result.outcome


def state(rung: Rung, result: Result) -> str:
    if rung.total and rung.passed == rung.total:
        return PASSED
    return FAILED if rung.name == result.failed_rung else "not reached"


# ---------------------------------------------------------------------------------- the page


def as_html(plan: Plan, record: Record, sections: Mapping[str, Section] | None = None) -> str:
    """The student's page. sections: where in the book each exercise is, by key."""
    record = laid_out(plan, record)
    sections = sections or {}
    body = [
        f"<h1>{escaped(plan.title)}</h1>",
        f'<p class="lead">Feedback for {isolated(record.student)}</p>',
        points(plan, record),
    ]
    if record.problem or record.status == DAMAGED:
        body.append(problem(record))
    if was_read(record):
        body += [exercise(result, sections.get(result.key)) for result in record.results]
    body.append(small_print(record))
    return page(f"Feedback: {plan.title}", "\n".join(body))


def points(plan: Plan, record: Record) -> str:
    total = f"<b>{number(record.points)}</b> of {number(plan.points)} points"
    passed = sum(result.outcome == PASSED for result in record.results)
    lines = [f"{total}; {passed} of {plural(len(record.results), 'exercise')} passed."]
    if record.submitted and plan.due:
        when = "in time" if not record.penalty else "late"
        lines.append(
            f"Handed in {clock(record.submitted.astimezone(plan.due.tzinfo))} ({when}; due "
            f"{clock(plan.due)})."
        )
    if record.penalty:
        lines.append(
            f"For being late you lost {number(100 * record.penalty)}\u202f% of the {number(record.raw_points)} "
            f"points that your answers earned{policy(plan)}."
        )
    caption = "Points of each exercise" + (
        ", before what being late costs" if record.penalty else ""
    )
    rows = [
        (
            f"<code>{escape(r.key)}</code>",
            f'<span class="{CLASSES[r.outcome]}"><span aria-hidden="true">{MARKS[r.outcome]}</span> {r.outcome}</span>',
            number(r.points),
            number(r.max_points),
        )
        for r in record.results
    ]
    heads = ("exercise", "verdict", "points", "of")
    return "".join(f"<p>{text}</p>" for text in lines) + table(caption, heads, rows, "ttnn")


def problem(record: Record) -> str:
    files = ", ".join(isolated(name) for name in record.files)
    found = f"<p>What was found: {files}.</p>" if files else ""
    how = "could be read only in part" if was_read(record) else "could not be read"
    why = f": {in_sentence(record.problem.rstrip('.'))}" if record.problem else ""
    return f'<div class="warn"><p><b>Your submission {how}</b>{why}.</p>{found}</div>'


def exercise(result: Result, section: Section | None) -> str:
    kind = CLASSES[result.outcome]
    title = f"{escape(section.title)} " if section else ""
    inner = [
        f"<h2>{title}<code>{escape(result.key)}</code></h2>",
        f'<p class="verdict {kind}"><span aria-hidden="true">{MARKS[result.outcome]}</span> '
        f"{escape(headline(result))}</p>",
        f"<p>{earned(result)}</p>",
        *(part_html(part) for part in told(result)),
    ]
    if result.rungs and result.outcome in (PASSED, FAILED):
        inner.append(folded(result) if result.outcome == PASSED else rungs(result))
    if is_inside(result):
        inner.append('<p class="muted">Contracts: the weaker guarantee, explained below.</p>')
    if section and section.chapter and result.outcome != PASSED:
        inner.append(f'<p class="muted">In the book: {section.html()}.</p>')
    return f'<section class="exercise {kind}">' + "\n".join(inner) + "</section>"


INSIDE_SAID = (
    "The weaker guarantee: what an answer costs can only be counted in the process that runs it, so the contracts "
    "of these exercises were counted by code beside your answer. Everything else was compared outside of it."
)


def is_inside(result: Result) -> bool:
    return result.guarantee == INSIDE and result.outcome in (PASSED, FAILED)


def earned(result: Result) -> str:
    said = f"{number(result.points)} of {number(result.max_points)} points"
    if 0 < result.points < result.max_points:
        return said + ", for what passed below the rung that failed, and on it."
    return said + "."


def part_html(part: Part) -> str:
    if part.role == "code":
        return f'<pre tabindex="0"><code>{escaped(part.text, CODE)}</code></pre>'
    if part.role == "diagnosis":
        return f'<p class="box"><b>What happened:</b> {in_sentence(part.text)}</p>'
    return f"<p>{in_sentence(part.text)}</p>"


def rungs(result: Result) -> str:
    marks = {PASSED: ("✓", "passed"), FAILED: ("✗", "failed"), "not reached": ("○", "waiting")}
    rows = []
    for rung in result.rungs:
        mark, kind = marks[state(rung, result)]
        said = f'<span class="{kind}"><span aria-hidden="true">{mark}</span> {state(rung, result)}</span>'
        passed = "–" if state(rung, result) == "not reached" else str(rung.passed)
        rows.append((escape(rung.name), said, passed, str(rung.total)))
    caption = f"The ladder of {escape(result.key)}"
    return table(caption, ("rung", "result", "checks passed", "of"), rows, "ttnn")


def folded(result: Result) -> str:
    said = f"{plural(result.checks, 'check')} on {plural(len(result.rungs), 'rung')}"
    return f"<details><summary>{said}</summary>{rungs(result)}</details>"


def small_print(record: Record) -> str:
    inside = [INSIDE_SAID] if any(map(is_inside, record.results)) else []
    said = [
        "Your notebook was graded by the same checks as in the course, with other random cases."
    ]
    if record.digest:
        said.append(f"SHA-256 of what was graded: <code>{escape(record.digest)}</code>.")
    if record.isolation:
        said.append(f"Isolation while it ran: {escaped(record.isolation)}.")
    return "".join(f'<p class="muted">{text}</p>' for text in (*inside, rule(), " ".join(said)))
