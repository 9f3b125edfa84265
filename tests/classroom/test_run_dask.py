"""The same class on a Dask cluster: the same marks, also when a worker is killed in the middle."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import toy_class
from distributed import Client, LocalCluster
from graded_here import SECRET, Inline
from submissions import folder_of

from course_utils.classroom.marks.record import Record
from course_utils.classroom.run import grade_class, journal, workers


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,
        local_directory=str(tmp_path_factory.mktemp("dask")),
    ) as started:
        yield started


class Killing(grade_class.Progress):
    """Kills one of the cluster's workers, with SIGKILL, when a few submissions are graded."""

    def __init__(self, address: str, after: int) -> None:
        self.address, self.after = address, after
        self.steps, self.killed = 0, 0

    def step(self, record: Record) -> None:
        self.steps += 1
        if self.steps == self.after:
            with Client(self.address, set_as_default=False) as client:
                pids = list(client.run(os.getpid).values())
            self.killed = pids[0]
            os.kill(self.killed, signal.SIGKILL)


def test_a_cluster_gives_the_same_gradebook_with_a_worker_killed(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "secrets", SimpleNamespace(token_hex=lambda n: SECRET.hex()))
    place = folder_of(tmp_path / "hw", toy_class.class_of(24, seed=7) | {"torn.ipynb": b"{"})
    settings = grade_class.Settings(modules=("toy_class",), dask=cluster.scheduler_address)
    killing = Killing(cluster.scheduler_address, after=6)
    there = grade_class.grade(place, toy_class.PLAN, tmp_path / "there", settings, killing)
    assert killing.killed
    assert killing.steps == there.graded == 25

    monkeypatch.setattr(grade_class, "pool_of", lambda settings, tasks: Inline())
    here = grade_class.grade(place, toy_class.PLAN, tmp_path / "here", replace(settings, dask=None))
    assert marks(there) == marks(here)
    assert book(tmp_path / "there") == book(tmp_path / "here")


def marks(summary: grade_class.Summary) -> list[tuple[str, str, list[tuple[str, str, float]]]]:
    return [
        (one.student, one.status, [(r.key, r.outcome, r.points) for r in one.results])
        for one in summary.records
    ]


def book(folder: Path) -> bytes:
    return (folder / "gradebook.csv").read_bytes()


def test_an_address_where_nobody_answers_is_said(monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_S", 0.2)
    with pytest.raises(ValueError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:1'"):
        workers.Dask("tcp://127.0.0.1:1")
    with pytest.raises(ValueError, match="no Dask scheduler answers at 'nonsense://x'"):
        workers.Dask("nonsense://x")
