"""The templates of the pages: whatever they are given is escaped, and each of them is installed."""

import re
import tomllib
from pathlib import Path

import pytest
from jinja2 import UndefinedError, nodes

from course_utils.classroom.reports.page import ENVIRONMENT, TEMPLATES
from tests.classroom.synthetic_class import HOSTILE

ROOT = Path(__file__).parents[2]
FILES = sorted(TEMPLATES.iterdir())
ROOMS = sorted((ROOT / "course_utils/classroom").rglob("*.py"))
PAGES = [path.name for path in FILES if path.suffix == ".html"]
TEXT_FILTERS = ("visible", "line", "file_name")
"""The filters that are given students' text."""


@pytest.mark.parametrize("name", PAGES)
def test_no_template_says_that_a_text_is_safe(name):
    """Neither by the filter nor by a block without escaping."""
    source = (TEMPLATES / name).read_text(encoding="utf-8")
    tree = ENVIRONMENT.parse(source)
    assert not [one for one in tree.find_all(nodes.Filter) if one.name == "safe"]
    assert not [
        *tree.find_all(
            (nodes.MarkSafe, nodes.MarkSafeIfAutoescape, nodes.ScopedEvalContextModifier)
        )
    ]
    assert not re.search(r"\|\s*safe\b|autoescape", source)


def test_no_code_makes_markup_of_a_text():
    assert ENVIRONMENT.autoescape is True
    assert ROOMS
    for path in ROOMS:
        assert not re.search(r"\bMarkup\b|markupsafe|__html__", path.read_text("utf-8")), path


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_filter_gives_back_is_escaped(text):
    for name in TEXT_FILTERS:
        shown = ENVIRONMENT.from_string(f"{{{{ text|{name} }}}}").render(text=text)
        assert not re.search(r"[<>\"']", shown), (name, shown)


def test_a_value_that_a_template_lacks_is_an_error():
    with pytest.raises(UndefinedError):
        ENVIRONMENT.from_string("{{ nobody.gave_this }}").render()


def test_the_templates_are_installed_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["course_utils"]
    installed = {path for pattern in patterns for path in (ROOT / "course_utils").glob(pattern)}
    assert PAGES
    assert set(FILES) <= installed
