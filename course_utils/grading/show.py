"""Verdicts drawn: HTML in a notebook, plain text in a terminal and in nbval. One content, two forms."""

import html
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .observe import Observation
from .render import SMALL, shown
from .verdict import FAILED, INTERRUPTED, NOT_ATTEMPTED, PASSED, SKIPPED, Failure, Verdict

MARKS = {PASSED: "✓", FAILED: "✗", NOT_ATTEMPTED: "○", SKIPPED: "–", INTERRUPTED: "■"}


@dataclass(frozen=True)
class Line:
    """One line of a verdict. role: head, body, code, diagnosis or note."""

    role: str
    text: str


def lines_of(v: Verdict) -> Iterator[Line]:
    """What a verdict says, line by line."""
    yield Line("head", headline(v))
    if v.reason:
        yield Line("body", v.reason)
    if v.failure:
        yield from failure_lines(v.failure)
    if v.diagnosis:
        yield Line("diagnosis", v.diagnosis)
    for note in v.notes:
        yield Line("note", note)


def headline(v: Verdict) -> str:
    head = f"{MARKS[v.outcome]} {v.name} · {v.outcome}"
    if v.outcome == PASSED:
        return f"{head} · {v.passed_checks} of {v.total} checks in {v.seconds * 1000:.0f} ms"
    if v.failed_rung and v.outcome in (FAILED, INTERRUPTED):
        number = v.rung_names.index(v.failed_rung) + 1
        wrong = v.ran - v.passed_checks
        waiting = v.total - v.ran
        counts = f"{v.passed_checks} of {v.total} checks passed, {wrong} failed"
        counts += f", {waiting} not reached" if waiting else ""
        return f"{head} at rung {number} of {len(v.rung_names)}, {v.failed_rung} · {counts}"
    return head


def failure_lines(f: Failure) -> Iterator[Line]:
    if f.got is None or f.want is None or f.difference is None:
        yield Line("body", f.sentence)
        if f.called:
            yield Line("code", f"measured on  {f.called}")
        return
    if f.case and f.case.why:
        yield Line("body", f"on the edge: {f.case.why}")
    smallest = f"smallest of {f.wrong_cases} failures  " if f.wrong_cases > 1 else ""
    yield Line("code", smallest + f.called)
    named = f.label != "result" and f.label in (f.want.seen or {})
    name = f"{f.label}: " if named else ""
    yield Line("body", name + f.sentence)
    for where, number, source in f.got.raised.lines if f.got.raised else ():
        inside = f" in {where}" if where else ""
        yield Line("code", f"line {number}{inside}:  {source}")
    if isinstance(seen(f.got, f.label), bool) and not named and f.label != "result":
        return
    if not f.got.raised and f.label in (f.got.seen or {}):
        yield Line("code", f"you       {shown(seen(f.got, f.label))}")
    label = "result" if f.label == "exception" else f.label
    if label in (f.want.seen or {}):
        yield Line("code", f"expected  {shown(seen(f.want, label))}")
    if f.difference.rows and f.difference.total > SMALL:
        for index, got, want in f.difference.rows:
            yield Line("code", f"{f.label}{index}:  you {got}, expected {want}")


def seen(observation: Observation, label: str) -> Any:
    return (observation.seen or {}).get(label)


# ------------------------------------------------------------------------------ text


def as_text(v: Verdict) -> str:
    out = []
    for line in lines_of(v):
        lead = {"head": "", "diagnosis": "  → ", "code": "      "}.get(line.role, "  ")
        if line.role == "code":
            out.append(lead + line.text)
        else:
            out += textwrap.wrap(
                line.text, 100, initial_indent=lead, subsequent_indent=" " * len(lead)
            ) or [lead]
    return "\n".join(out)


# ------------------------------------------------------------------------------ HTML

COLOURS = {
    PASSED: "#1a7f4b",
    FAILED: "#c0392b",
    NOT_ATTEMPTED: "#6b7280",
    SKIPPED: "#8a6d1b",
    INTERRUPTED: "#8a6d1b",
}


def as_html(v: Verdict) -> str:
    """A bordered card. Colours come second: the mark and the word say the outcome."""
    colour = COLOURS[v.outcome]
    body = "".join(html_line(line, colour) for line in lines_of(v))
    return (
        f'<div role="status" class="course-verdict course-{v.outcome.replace(" ", "-")}" style="'
        f"border:1px solid {colour};border-left:5px solid {colour};border-radius:6px;"
        "padding:.5em .9em;margin:.3em 0;line-height:1.45;max-width:60em;color:inherit;"
        f'font-family:system-ui,sans-serif;font-size:.95em">{ladder(v, colour)}{body}</div>'
    )


def ladder(v: Verdict, colour: str) -> str:
    """One dot for each rung: passed, failed, not reached; the rest of the story is in the text."""
    if not v.rung_names:
        return ""
    done = {rung.name: rung.ok for rung in v.rungs}
    dots = []
    for name in v.rung_names:
        state = {True: "passed", False: "failed"}.get(done.get(name, "waiting"), "not reached")  # type: ignore[arg-type]
        mark = {"passed": "●", "failed": "✗", "not reached": "○"}[state]
        dots.append(f'<span title="{html.escape(name)}: {state}">{mark}</span>')
    label = f"{sum(rung.ok for rung in v.rungs)} of {len(v.rung_names)} rungs passed"
    return (
        f'<span role="img" aria-label="{label}" style="float:right;margin-left:1em;letter-spacing:.25em;'
        f'opacity:.8">{"".join(dots)}</span>'
    )


def html_line(line: Line, colour: str) -> str:
    text = code_spans(html.escape(line.text))
    match line.role:
        case "head":
            mark, _, rest = text.partition(" ")
            name, dot, more = rest.partition(" · ")
            return (
                f'<div><b><span aria-hidden="true" style="font-size:1.15em">{mark}</span> '
                f"{name}</b>{dot}{more}</div>"
            )
        case "code":
            return (
                '<pre style="margin:.15em 0 .15em 1em;padding:0;background:none;border:0;color:inherit;'
                f'white-space:pre-wrap;overflow-wrap:anywhere;font-size:.92em">{html.escape(line.text)}</pre>'
            )
        case "diagnosis":
            return (
                f'<div style="margin:.4em 0;padding:.4em .7em;border-radius:4px;'
                f'background:rgba(128,128,128,.13)"><b>What happened:</b> {text}</div>'
            )
        case "note":
            return f'<div style="font-size:.92em;opacity:.85">{text}</div>'
    return f"<div>{text}</div>"


def code_spans(text: str) -> str:
    """`x` as <code>x</code>, in text that is already escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return text
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
