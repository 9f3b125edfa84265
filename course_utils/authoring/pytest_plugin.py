"""The course's own rules for a run of pytest; loaded by ``addopts`` in pyproject.toml.

- Cells tagged for what is not on every machine (`course_utils.needs`: ``gpu``, ``triton``, ``compiler``)
  are skipped by name where it is missing; with COURSE_REQUIRE_GPU=1, and so on, they fail.
- COURSE_HOME is a temporary folder, a new one for each notebook: no run touches a reader's progress.
- What the tests counted (`course_utils.authoring.counts`) is printed before pytest's summary.
  ``--complete`` fails a run in which something was never counted.
- What was proved (`course_utils.authoring.ledger`) is collected from all workers; COURSE_PROVE=all or
  =stale writes it to the ledger. COURSE_SEED draws the sample of what stands by it, and is printed.
"""

import os
import secrets
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from course_utils import needs
from course_utils.authoring import counts, ledger
from course_utils.processes import kernels

os.environ.setdefault("OMP_NUM_THREADS", "1")

HOME = pytest.StashKey[Path]()
TOTALS = pytest.StashKey[Counter]()
PROVED = pytest.StashKey[dict[str, dict[str, Any]]]()
NOTEBOOKS = pytest.StashKey[dict[Path, None]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--complete`."""
    parser.getgroup("course").addoption(
        "--complete",
        action="store_true",
        help="fail if something that a complete run counts (exercises, pages, ...) was never counted",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a home of its own, and a seed that its workers share."""
    config.stash[HOME] = Path(tempfile.mkdtemp(prefix="course-home-"))
    config.stash[TOTALS] = Counter()
    config.stash[PROVED] = {}
    config.stash[NOTEBOOKS] = {}
    os.environ.setdefault(ledger.SEED, str(secrets.randbelow(10**6)))  # workers inherit it
    os.environ["COURSE_HOME"] = str(config.stash[HOME])
    kernels.set_apart()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the home."""
    if HOME in config.stash:
        shutil.rmtree(config.stash[HOME], ignore_errors=True)


# Notebooks: nbval's items are known by the cell that they carry.


def cell_of(item: pytest.Item) -> Any | None:
    """The notebook cell that an nbval item runs; None for any other item."""
    return getattr(item, "cell", None) if hasattr(item, "cell_num") else None


def cell_name(item: pytest.Item) -> str:
    """How the reports call a cell: its notebook and its first line."""
    cell = cell_of(item)
    lines = [line.strip() for line in cell["source"].splitlines() if line.strip()] if cell else []
    name = cell["metadata"].get("name") if cell else None
    return f"{item.path.name}: {name or (lines[0] if lines else 'empty cell')}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give each notebook a home of its own; skip a cell that needs what is not here, or fail it where
    the machine must have it.
    """
    cell = cell_of(item)
    if cell is None:
        return
    home = item.config.stash[HOME] / f"{item.path.parent.name}-{item.path.stem}"
    home.mkdir(exist_ok=True)
    os.environ["COURSE_HOME"] = str(home)  # read by the kernel, which starts with the first cell
    item.config.stash[NOTEBOOKS][item.path] = None
    need = needs.of_tags(cell["metadata"].get("tags", []))
    if need and not need.present():
        if need.required:
            said = f"this machine must have {need.short} and has none: {cell_name(item)}"
            pytest.fail(said, pytrace=False)
        pytest.skip(f"needs {need.short}: {cell_name(item)}")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Go back to the home of the run."""
    if cell_of(item) is not None:
        os.environ["COURSE_HOME"] = str(item.config.stash[HOME])


# Counts: workers hand theirs to the controller, which adds them up.


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add up what was counted, write the ledger if asked, and fail a complete run that missed something."""
    config = session.config
    for path in config.stash[NOTEBOOKS]:
        counts.count("notebooks solved" if path.parent.name == "solved" else "notebooks as shipped")
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["course_counts"], output["course_proved"] = counts.counted(), ledger.proved()
        return
    totals = config.stash[TOTALS]
    totals.update(counts.counted())
    proved = config.stash[PROVED]
    ledger.merge(proved, ledger.proved())
    if os.environ.get(ledger.PROVE):
        ledger.write(ledger.renewed(ledger.read(), proved))
    if config.getoption("--complete") and counts.missing(totals) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class FromWorkers:
    """Registered only where xdist is: its hook is unknown to a plain pytest."""

    def __init__(self, totals: Counter, proved: dict[str, dict[str, Any]]) -> None:
        self.totals, self.proved = totals, proved

    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        self.totals.update(output.get("course_counts", {}))
        ledger.merge(self.proved, output.get("course_proved", {}))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """With xdist, listen to what the workers counted."""
    config = session.config
    if config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput"):
        workers = FromWorkers(config.stash[TOTALS], config.stash[PROVED])
        config.pluginmanager.register(workers, "course-from-workers")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the counts, the seed of the sample, and what a complete run has missed."""
    totals = config.stash[TOTALS]
    complete = config.getoption("--complete")
    if not totals and not complete:
        return
    terminalreporter.section("the course, counted")
    for name, number in counts.table(totals):
        if number or complete:
            terminalreporter.write_line(f"{number:>7}  {name}")
    if totals.get("exercises"):
        seed = os.environ[ledger.SEED]
        terminalreporter.write_line(f"{ledger.SEED}={seed} draws the same sample to prove anew")
    if complete and counts.missing(totals):
        lost = ", ".join(counts.missing(totals))
        terminalreporter.write_line(
            f"FAILED: never counted in a complete run: {lost}", red=True, bold=True
        )
