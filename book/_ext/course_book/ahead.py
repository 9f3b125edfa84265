"""Notebooks whose run is not cached are run before Sphinx reads the pages, two at a time.

Sphinx would run each when it reads its page, one after the other. Here their runs go into the cache, where
the reading finds them; one that fails is a warning, and is run again by whoever reads its page.
"""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.display import status_iterator

from . import engine
from .notebooks import page_text

AT_A_TIME = 2
"""Notebooks that run together. Several use two cores each, and some more than a gigabyte."""

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> None:
    """Register the run."""
    app.connect("env-before-read-docs", run)


def run(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Sphinx's ``env-before-read-docs``: run what the pages to be read need and the cache lacks."""
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    if env.mystnb_config.execution_mode != "cache":
        return
    cache = get_cache(env.mystnb_config.execution_cache_path)
    wanted = dict(_not_in(cache, app, docnames))
    if len(wanted) < AT_A_TIME:
        return
    longest_first = sorted(wanted, key=lambda docname: -len(wanted[docname].cells))
    spawn = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(AT_A_TIME, spawn, engine.prepare_kernels) as pool:
        runs = {}
        for docname in longest_first:
            folder = str(Path(env.doc2path(docname)).parent)
            limit = env.mystnb_config.execution_timeout
            runs[pool.submit(execute, nbformat.writes(wanted[docname]), folder, limit)] = docname
        for done in status_iterator(
            as_completed(runs), "running notebooks... ", length=len(runs), stringify_func=runs.get
        ):
            ran, seconds, error = done.result()
            if error:
                logger.warning("it failed:\n%s", error, location=runs[done], type="course")
                continue
            bundle = CacheBundleIn(
                nbformat.reads(ran, as_version=4),
                str(env.doc2path(runs[done])),
                data={"execution_seconds": seconds},
            )
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


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
