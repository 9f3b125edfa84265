"""What holds for every unit test: shapes are checked, hypothesis repeats itself, nothing leaves this machine."""

import gc
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from jaxtyping import install_import_hook

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background begins so
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
REFERENCE = "course_utils.reference"

if os.environ.get("COURSE_SHAPE_CHECKS", "1") != "0":
    early = [name for name in sys.modules if name.startswith(REFERENCE + ".")]
    if early:
        raise RuntimeError(f"imported before their shapes could be checked: {', '.join(early)}")
    install_import_hook(REFERENCE, "beartype.beartype")

settings.register_profile("course", deadline=None, derandomize=True, database=None)
settings.load_profile("course")
providers._get_local_constants = lambda: providers._local_constants
"""Hypothesis draws no constants of loaded modules: else they are all parsed, and what is drawn depends
on them. (The exercises' cases: `course_utils.grading.declaring.draws`.)"""


LONGEST = (
    "site/test_pages.py",
    "grading/test_mutants.py",
    "grading/test_proofs.py",
    "repo/test_plugin.py",
    "reference/test_pretraining.py",
    "grading/test_probe_collectives.py",
    "classroom/test_release_without_answers.py",
    "classroom/test_platforms_nbgrader.py",
    "authoring/test_ledger.py",
    "repo/test_authors_page.py",
    "ranks/test_faults.py",
)
"""Modules of a minute and more, which begin first: one that begins last keeps one worker waiting for
the other. (Each module is one worker's: it builds or loads something for all of its tests.) The site
is built for the first."""
SITE = TESTS / "site"
"""What else visits the site comes last: it stands by then, and no worker waits for the other's build."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {TESTS / name: number for number, name in enumerate(LONGEST)}
    after = len(place)
    items.sort(key=lambda item: place.get(item.path, after + (item.path.parent == SITE)))


def pytest_collection_finish() -> None:
    """What is here by now stays: the collector need not go over torch and 8,000 tests again and again."""
    gc.collect()
    gc.freeze()


def stays_here(address: Any) -> bool:
    """Is this socket address on this machine? (A path is a Unix socket.)"""
    if not isinstance(address, tuple):
        return True
    host = address[0]
    if host in ("", "localhost"):
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws from one seed, so what is green here is green elsewhere."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """A test that connects to another machine fails, and says where it wanted to go."""

    def guarded(connect: Any) -> Any:
        def checked(self: socket.socket, address: Any) -> Any:
            if not stays_here(address):
                pytest.fail(f"a test may not use the network; it connected to {address}")
            return connect(self, address)

        return checked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", guarded(socket.socket.connect_ex))
        yield
