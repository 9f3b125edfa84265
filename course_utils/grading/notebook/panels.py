"""Titled blocks of text and tables, shown in Jupyter or printed."""

import html
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.grading.judging.outcomes import FAILED, NOT_ATTEMPTED, PASSED
from course_utils.grading.judging.words import MARKS

from .progress_file import store


def show(thing: Any) -> None:
    """Display it in Jupyter, print it elsewhere; then say what went wrong with the progress file."""
    if ipython():
        from IPython.display import display

        display(thing)
    else:
        print(thing)
    for warning in store().take_warnings():
        print(f"Note: {warning}.", file=sys.stdout)


def ipython() -> Any:
    """The running IPython shell, or None."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return None
    return get_ipython()


@dataclass(frozen=True)
class Panel:
    """A titled block of text or code, for hints, solutions and tables."""

    title: str
    text: str = ""
    columns: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        parts = [self.title] + ([self.text] if self.text else [])
        parts += [f"--- {head}\n{body}" for head, body in self.columns]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        out = f"<b>{html.escape(self.title)}</b>"
        if self.text:
            out += f'<div style="white-space:pre-wrap">{html.escape(self.text)}</div>'
        columns = "".join(
            f'<div style="flex:1 1 24em;min-width:0"><div><b>{html.escape(head)}</b></div>'
            '<pre style="white-space:pre-wrap;overflow-wrap:anywhere;background:none;color:inherit;'
            f'border:0;margin:0;padding:0;font-size:.9em">{html.escape(body)}</pre></div>'
            for head, body in self.columns
        )
        if columns:
            out += f'<div style="display:flex;flex-wrap:wrap;gap:1.5em">{columns}</div>'
        return (
            '<div style="border:1px solid rgba(128,128,128,.5);border-radius:6px;padding:.5em .9em;'
            "margin:.3em 0;max-width:70em;color:inherit;font-family:system-ui,sans-serif;"
            f'font-size:.95em;line-height:1.45">{out}</div>'
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}


@dataclass(frozen=True)
class Progress:
    """What is done of each chapter, drawn as one mark an exercise."""

    rows: tuple[tuple[str, tuple[tuple[str, str], ...], int, int], ...]
    path: Path

    def __str__(self) -> str:
        width = max((len(row[0]) for row in self.rows), default=0)
        lines = [
            f"{chapter:<{width}}  {' '.join(MARKS[o] for _, o in marks)}  {got} of {total} points"
            for chapter, marks, got, total in self.rows
        ]
        failed = [f"{row[0]}: {name}" for row in self.rows for name, o in row[1] if o == FAILED]
        lines += [f"{MARKS[FAILED]} {', '.join(failed)}"] if failed else []
        names = " ".join(f"{MARKS[o]} {o}" for o in (PASSED, FAILED, NOT_ATTEMPTED))
        return "\n".join([*lines, f"({names}; kept in {self.path})"])

    def _repr_html_(self) -> str:
        from .display import COLOURS

        rows = ""
        for chapter, marks, got, total in self.rows:
            dots = "".join(
                f'<span title="{html.escape(name)}: {outcome}" style="color:{COLOURS[outcome]};'
                f'padding:0 .15em">{MARKS[outcome]}</span>'
                for name, outcome in marks
            )
            rows += (
                f'<tr><th scope="row" style="text-align:left">{html.escape(chapter)}</th>'
                f'<td style="text-align:left">{dots}</td><td>{got} of {total} points</td></tr>'
            )
        return f'<table style="color:inherit">{rows}</table>'

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}
