"""The site is built once a session, whatever number of workers test it."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from site_build import ROOT, Built, build, build_languages, only_page
from site_visit import served

from tests.browser import browser
from tests.support.chapter import CHAPTER

__all__ = ["browser"]

TO_BUILD_S = 3600  # the first test waits for the build, which runs every notebook


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(TO_BUILD_S))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Built:
    """The whole site with its other languages, or the page of COURSE_CHAPTER, in a folder of this
    session's."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared if worker_id == "master" else shared.parent
    record = shared / "site.pickle"
    with FileLock(shared / "site.lock"):
        if not record.exists():
            record.write_bytes(pickle.dumps(_build(shared)))
    return pickle.loads(record.read_bytes())


def _build(shared: Path) -> Built:
    chapter = os.environ.get(CHAPTER)
    if chapter:
        return build(only_page(shared / "chapter", f"notebooks/{chapter}"), shared / "site")
    return build_languages(build(ROOT, shared / "site"))


@pytest.fixture(scope="session")
def html(built: Built) -> Path:
    """The site's pages, which a build with warnings leaves too."""
    if not (built.html / "index.html").exists():
        pytest.fail(f"the site was not built:\n{built.log[-4000:]}", pytrace=False)
    return built.html


@pytest.fixture(scope="session")
def site(html: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the site, served from a path below the host's root."""
    with served(html, tmp_path_factory.mktemp("www")) as address:
        yield address
