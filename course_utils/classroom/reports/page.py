"""HTML pages in one file: no script, no request, light and dark, readable on paper and on a phone.

A page is a template of `templates/`, filled. Whatever a template is given is escaped, and none says
otherwise: what becomes markup stands in a template.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from course_utils.classroom.marks.text import (
    CODE,
    NAME,
    code_parts,
    file_name,
    line,
    number,
    plural,
    visible,
)

from .wording import CLASSES, MARKS, clock, exact_percent, percent, policy, rule

TEMPLATES = Path(__file__).parent / "templates"


def _pixels(value: float) -> str:
    """A coordinate: whole as it is, any other with one decimal."""
    return str(value) if isinstance(value, int) else f"{value:.1f}"


ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
ENVIRONMENT.globals |= {
    "CLASSES": CLASSES,
    "CODE": CODE,
    "MARKS": MARKS,
    "NAME": NAME,
    "rule": rule,
}
ENVIRONMENT.filters |= {
    "clock": clock,
    "code_parts": code_parts,
    "exact_percent": exact_percent,
    "file_name": file_name,
    "line": line,
    "number": number,
    "percent": percent,
    "plural": plural,
    "policy": policy,
    "px": _pixels,
    "visible": visible,
}


def page(template: str, title: str, given: Mapping[str, Any]) -> str:
    """A whole page. template: a file of `templates/`. title: plain text, of the browser's tab."""
    return ENVIRONMENT.get_template(template).render(given, title=title)
