"""Verdicts drawn in HTML."""

import html
from dataclasses import dataclass
from typing import Any

from course_utils.grading.judging.outcomes import (
    FAILED,
    INTERRUPTED,
    NOT_ATTEMPTED,
    PASSED,
    SKIPPED,
)
from course_utils.grading.judging.verdict import Verdict
from course_utils.grading.judging.words import Line, lines_of

COLOURS = {
    PASSED: "#1a7f4b",
    FAILED: "#c0392b",
    NOT_ATTEMPTED: "#6b7280",
    SKIPPED: "#8a6d1b",
    INTERRUPTED: "#8a6d1b",
}


@dataclass(frozen=True)
class Drawn:
    """A verdict as it is shown: HTML in a notebook, text elsewhere."""

    verdict: Verdict

    def __str__(self) -> str:
        return str(self.verdict)

    def _repr_html_(self) -> str:
        return as_html(self.verdict)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}


def as_html(v: Verdict) -> str:
    """A bordered card. Colours come second: the mark and the word say the outcome."""
    colour = COLOURS[v.outcome]
    body = "".join(_html_line(line, colour) for line in lines_of(v))
    return (
        f'<div role="status" class="course-verdict course-{v.outcome.replace(" ", "-")}" style="'
        f"border:1px solid {colour};border-left:5px solid {colour};border-radius:6px;"
        "padding:.5em .9em;margin:.3em 0;line-height:1.45;max-width:60em;color:inherit;"
        f'font-family:system-ui,sans-serif;font-size:.95em">{_ladder(v, colour)}{body}</div>'
    )


def _ladder(v: Verdict, colour: str) -> str:
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


def _html_line(line: Line, colour: str) -> str:
    text = _code_spans(html.escape(line.text))
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


def _code_spans(text: str) -> str:
    """`x` as <code>x</code>, in text that is already escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return text
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
