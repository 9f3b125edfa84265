"""One sandbox for all tests of a run: starting it costs two seconds. Submissions graded with it; a browser."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import toy_class
from graded_here import Inline, grade_notebooks
from submissions import notebook

from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record
from course_utils.classroom.run import grade_class, worker
from course_utils.sandbox import Limits, Sandbox
from tests.browser import browser, open_page

__all__ = ["browser", "open_page"]  # pages made from records are opened in a real browser

MIB = 2**20


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Bubblewrap with small limits. Where it is missing this is an error: these tests are never skipped."""
    limits = Limits(
        wall_s=60,
        cpu_s=60,
        memory=512 * MIB,
        tasks=48,
        tasks_on_ranks=90,
        file_size=8 * MIB,
        tmp=16 * MIB,
    )
    with Sandbox("bubblewrap", limits) as shared:
        yield shared


@pytest.fixture(scope="session", autouse=True)
def sandbox_closed() -> Iterator[None]:
    yield
    worker.close()


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade_class, "pool_of", lambda settings, tasks: Inline())


@pytest.fixture
def graded() -> Callable[..., Record]:
    """Cells → the record of that submission."""

    def grade(*cells: Any, plan: Plan = toy_class.PLAN, student: str = "ada") -> Record:
        return grade_notebooks({"x.ipynb": notebook(*cells)}, plan, student)

    return grade
