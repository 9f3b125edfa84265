"""The toys are findable by key while this folder's tests run; each test has a progress file of its own."""

import pytest
import toys

from course_utils.grading import exercise as registry
from course_utils.grading import session


@pytest.fixture(autouse=True)
def toys_registered(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registry, "_extra", {toy.key: toy for toy in toys.TOYS})
    monkeypatch.setattr(session, "_bound", {})
    monkeypatch.setattr(session, "_parts", {})
    monkeypatch.setattr(session, "_mine", {})


@pytest.fixture
def notebook():
    from notebook import Notebook

    opened = Notebook()
    yield opened
    opened.close()
