"""The toys are findable by key while this folder's tests run; each test has a progress file of its own."""

import pytest
import toys

from course_utils.grading.declaring import registry
from course_utils.grading.notebook import answers, binding, checking


@pytest.fixture(autouse=True)
def toys_registered(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registry, "_extra", {toy.key: toy for toy in toys.TOYS})
    for kept in (binding.stands_for, checking._parts, answers._mine):
        kept.clear()


@pytest.fixture
def notebook():
    from notebook import Notebook

    opened = Notebook()
    yield opened
    opened.close()
