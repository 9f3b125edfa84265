"""A verdict in words, line by line; plain text in a terminal and in nbval."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_utils.grading.observing.observe import Observation
from course_utils.grading.pytrees.shown import SMALL, told_apart

from .outcomes import FAILED, INTERRUPTED, NOT_ATTEMPTED, PASSED, SKIPPED

if TYPE_CHECKING:
    from .verdict import Failure, Verdict

MARKS = {PASSED: "✓", FAILED: "✗", NOT_ATTEMPTED: "○", SKIPPED: "–", INTERRUPTED: "■"}


@dataclass(frozen=True)
class Line:
    """One line of a verdict. role: head, body, code, diagnosis or note."""

    role: str
    text: str


def lines_of(v: "Verdict") -> Iterator[Line]:
    """What a verdict says, line by line."""
    yield Line("head", headline(v))
    if v.reason:
        yield Line("body", v.reason)
    if v.failure:
        yield from failure_lines(v.failure)
    if v.diagnosis:
        yield Line("diagnosis", v.diagnosis if v.sure else f"Likely: {v.diagnosis}")
    for note in v.notes:
        yield Line("note", note)


def headline(v: "Verdict") -> str:
    """The name, the outcome, and how many checks passed."""
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


def failure_lines(f: "Failure") -> Iterator[Line]:
    """The call that failed, what is wrong, what came and what was expected."""
    if f.got is None or f.want is None or f.difference is None:
        yield Line("body", f.sentence)
        if f.called:
            yield Line("code", f"measured on  {f.called}")
        yield from raised_lines(f)
        return
    if f.case and f.case.why:
        yield Line("body", f"on the edge: {f.case.why}")
    smallest = f"smallest of {f.wrong_cases} failures  " if f.wrong_cases > 1 else ""
    yield Line("code", smallest + f.called)
    label = "result" if f.label == "exception" else f.label
    theirs, key = entry(seen(f.want, label), f.difference.path)
    mine, _ = entry(seen(f.got, f.label), f.difference.path)
    named = f.label != "result" and f.label in (f.want.seen or {})
    name = f"{f.label}{key}: " if named else ""
    yield Line("body", name + f.sentence)
    yield from raised_lines(f)
    if isinstance(seen(f.got, f.label), bool) and not named and f.label != "result":
        return
    mine, theirs = told_apart(mine, theirs, f.formats)
    if not f.got.raised and f.label in (f.got.seen or {}):
        yield Line("code", f"you       {mine}")
    if label in (f.want.seen or {}):
        yield Line("code", f"expected  {theirs}")
    if f.difference.rows and f.difference.total > SMALL:
        spec = f.formats.get(f.difference.dtype)
        for index, *pair in f.difference.rows:
            got, want = (format(int(text), spec) for text in pair) if spec else pair
            yield Line("code", f"{f.label}{key}{index}:  you {got}, expected {want}")


def raised_lines(f: "Failure") -> Iterator[Line]:
    """The lines of the student's code in which it raised."""
    for where, number, source in f.got.raised.lines if f.got and f.got.raised else ():
        inside = f" in {where}" if where else ""
        yield Line("code", f"line {number}{inside}:  {source}")


def seen(observation: Observation, label: str) -> Any:
    """What was observed under a label; None where nothing was."""
    return (observation.seen or {}).get(label)


def entry(value: Any, path: str) -> tuple[Any, str]:
    """What of a dictionary differs, and where it stands: the path of a `Difference` as far as it leads
    through dictionaries. A value that is none, or has no such entry, is shown whole."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        step = f"[{key!r}]"
        if isinstance(key, str) and path.startswith(step):
            found, rest = entry(inner, path[len(step) :])
            return found, step + rest
    return value, ""


def as_text(v: "Verdict") -> str:
    """The verdict as a terminal shows it."""
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
