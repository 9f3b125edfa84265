"""A page for one student: the verdict of each exercise, rung by rung, the points, and why.

What the page must not give away: the values of cases that are drawn at random, or kept back. A
failing check that was worked by hand shows its call and what came of it; any other is named by its
rung, with a sentence that is the same for everybody, and its notes are left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from course_utils.grading.declaring.exercise import CONTRACTS
from course_utils.grading.driving.case import BY_HAND, EDGE, GRADIENTS, RANDOM
from course_utils.grading.judging.ladder import SIGNATURE, TYPES

from ..marking import DEFINITION, WORTH
from ..plan import Plan
from ..record import DAMAGED, FAILED, INSIDE, MISSING, NOT_ATTEMPTED, PASSED, Record, Result, Rung
from .align import laid_out, was_read
from .page import page, table
from .sections import Section
from .text import CODE, escaped, in_sentence, isolated, number, plural

MARKS = {PASSED: "✓", FAILED: "✗", NOT_ATTEMPTED: "○", MISSING: "–"}
CLASSES = {PASSED: "passed", FAILED: "failed", NOT_ATTEMPTED: "waiting", MISSING: "gone"}

GENERAL = {
    SIGNATURE: "The parameters, or the kind or shape of what your code returns, are not those that the "
    "exercise asks for.",
    TYPES: "The dtype or the device of what your code returns is not that of the book's version.",
    BY_HAND: "A call that was worked by hand gives another result.",
    RANDOM: "On calls drawn at random your result is not the book's. These calls are not shown: work a "
    "small one of your own by hand, and compare.",
    GRADIENTS: "The values are right, but the gradients through your code are not.",
    EDGE: "An edge case is wrong: think of what is empty, of size one, non-contiguous, negative, very "
    "large, or NaN where the exercise allows it.",
    CONTRACTS: "The results are right, but what they cost is not what the exercise asks for: read its "
    "text again for what must be a view, left unchanged, or never built.",
}
OTHERWISE = "Your answer could not be checked to the end."
UNTOUCHED = "The cell is the stub as it was handed out."
ABSENT = (
    'There is no such cell in what was graded: an answer is found by its line `@exercise("…")`.'
)


@dataclass(frozen=True)
class Part:
    """role: sentence, code or diagnosis. text: plain, not escaped."""

    role: str
    text: str


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


def told(result: Result) -> Iterator[Part]:
    """What a student may read of a result besides its counts."""
    if result.outcome == NOT_ATTEMPTED:
        yield Part("sentence", UNTOUCHED)
    elif result.outcome == MISSING:
        yield Part("sentence", ABSENT)
    elif result.outcome == FAILED:
        yield from failure(result)
    if result.diagnosis:
        yield Part("diagnosis", result.diagnosis)
    if result.outcome != FAILED or may_see(result):
        for note in result.notes:
            yield Part("sentence", note)


def may_see(result: Result) -> bool:
    """Was the failing check worked by hand, or was it about no case at all: a definition that cannot
    be run, parameters that are not those that were asked for?"""
    without_case = result.failed_rung == SIGNATURE and not result.called
    return result.hand or result.failed_rung == DEFINITION or without_case


def failure(result: Result) -> Iterator[Part]:
    if not may_see(result):
        yield Part("sentence", GENERAL.get(str(result.failed_rung), OTHERWISE))
        return
    if result.called:
        yield Part("code", result.called)
    yield Part("sentence", result.sentence or GENERAL.get(str(result.failed_rung), OTHERWISE))


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


def clock(when: object) -> str:
    return escape(f"{when:%Y-%m-%d %H:%M %Z}".strip())


def policy(plan: Plan) -> str:
    late = plan.late
    closes = late.closes_after_days
    end = f"; after {plural(closes, 'day')} nothing counts" if closes is not None else ""
    if not late.per_day:
        return end
    said = f": {number(100 * late.per_day)}\u202f% for each day begun"
    said += f" after {plural(late.grace_minutes, 'minute')} of grace" if late.grace_minutes else ""
    return said + (f", {number(100 * late.most)}\u202f% at most" if late.most < 1 else "") + end


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


def rule() -> str:
    """How an exercise's points are shared out, in words."""
    parts = [f"{name} {worth}" for name, worth in WORTH.items()]
    return (
        f"Of an exercise's points the parts are: {', '.join(parts[:-1])} and {parts[-1]}, as far as it has these "
        "rungs. A rung counts only if every rung below it was passed; the one that failed earns what it passed "
        "beyond one half, of contracts each one that was kept."
    )


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
