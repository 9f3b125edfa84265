"""Notebooks whose run is not cached run beside Sphinx, two at a time, while it reads the other pages.

Sphinx would run each when it reads its page, one after the other. Here its page is read when its run is in
the cache; a run that fails is a warning, and whoever reads its page runs it again.
"""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

from . import engine
from .notebooks import page_text

AT_A_TIME = 2
"""Notebooks that run together: three were no faster on two cores. Some use more than a gigabyte."""

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> None:
    """Register the runs."""
    runs = Runs()
    app.connect("env-before-read-docs", runs.begin)
    app.connect("source-read", runs.wait_for, priority=400)  # before the page's text is made
    app.connect("build-finished", runs.end)


class Runs:
    """The runs of one build: what has begun, and not been read yet."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._begun: dict[str, Future[tuple[str, float, str | None]]] = {}

    def begin(self, app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
        """Sphinx's ``env-before-read-docs``: begin to run what the pages to be read need and the cache
        lacks, and let these be read last, in the order in which they run."""
        if env.mystnb_config.execution_mode != "cache":
            return
        spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._pool = ProcessPoolExecutor(AT_A_TIME, spawn, engine.prepare_kernels)
        limit = env.mystnb_config.execution_timeout
        longest_first = sorted(docnames, key=lambda name: -_cells(env.doc2path(name)))
        for docname, notebook in _not_in(_cache(app), app, longest_first):
            folder = str(Path(env.doc2path(docname)).parent)
            run = self._pool.submit(execute, nbformat.writes(notebook), folder, limit)
            self._begun[docname] = run
        if self._begun:
            logger.info("running notebooks: %d, %d at a time", len(self._begun), AT_A_TIME)
            others = [docname for docname in docnames if docname not in self._begun]
            docnames[:] = [*others, *self._begun]

    def wait_for(self, app: Sphinx, docname: str, _: list[str]) -> None:
        """Sphinx's ``source-read``: when this page's run has ended, put it into the cache."""
        from jupyter_cache.base import CacheBundleIn

        run = self._begun.pop(docname, None)
        if run is None:
            return
        ran, seconds, error = run.result()
        if error:
            logger.warning("it failed:\n%s", error, location=docname, type="course")
            return
        notebook, path = nbformat.reads(ran, as_version=4), str(app.env.doc2path(docname))
        bundle = CacheBundleIn(notebook, path, data={"execution_seconds": seconds})
        _cache(app).cache_notebook_bundle(bundle, check_validity=False, overwrite=True)

    def end(self, *_: Any) -> None:
        """Sphinx's ``build-finished``: if it was broken off, no other notebook begins to run."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _cells(path: str | Path) -> int:
    """How long a notebook probably runs: the number of its cells. A page of Markdown has few."""
    path = Path(path)
    return len(nbformat.read(path, as_version=4).cells) if path.suffix == ".ipynb" else 0


def _cache(app: Sphinx) -> Any:
    from jupyter_cache import get_cache

    return get_cache(app.env.mystnb_config.execution_cache_path)


def _not_in(
    cache: Any, app: Sphinx, docnames: Iterable[str]
) -> Iterator[tuple[str, nbformat.NotebookNode]]:
    """Pages whose run the cache lacks, each with its notebook as it will be read."""
    from myst_nb.core.read import create_nb_reader

    env = app.env
    for docname in docnames:
        path = env.doc2path(docname)
        content = page_text(app, docname, Path(path).read_text(encoding="utf-8"))
        reader = create_nb_reader(str(path), env.myst_config, env.mystnb_config, content)
        if reader is not None:
            notebook = reader.read(content)
            with suppress(KeyError):
                cache.match_cache_notebook(notebook)
                continue
            yield docname, notebook


def execute(notebook: str, folder: str, timeout: int) -> tuple[str, float, str | None]:
    """Run a notebook in a fresh kernel in `folder`: as it is then, in how many seconds, and its error.

    timeout: seconds that a cell may take.
    """
    from jupyter_cache.executors.utils import single_nb_execution

    engine.fresh_home()
    share = max(1, (os.cpu_count() or 1) // AT_A_TIME)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))  # more would wait for each other, and spin
    node = nbformat.reads(notebook, as_version=4)
    ran = single_nb_execution(node, cwd=folder, timeout=timeout, allow_errors=False)
    return nbformat.writes(ran.nb), ran.time, ran.exc_string
