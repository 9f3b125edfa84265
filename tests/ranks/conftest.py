"""One pool of four ranks for the tests of this folder; what breaks it makes it start again."""

import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from course_utils.ranks import Ranks, launch


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def all_gone(pids: list[int], within: float = 120.0) -> bool:
    """Do these processes end by themselves?"""
    end = time.monotonic() + within
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="session")
def gone() -> Callable[..., bool]:
    return all_gone


@pytest.fixture(scope="session")
def pool() -> Iterator[Ranks]:
    with Ranks(4, timeout=30.0) as found:
        found.start()
        server = launch.launcher(launch.DEFAULT)
        yield found
        pids = found.pids
    assert all_gone(pids), "a rank outlived its pool"
    if isinstance(server, launch.Forkserver):
        launch.close()
        assert all_gone([server.process.pid])
        assert not server.directory.exists()
