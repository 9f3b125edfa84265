"""One run of a body on several ranks: processes of this machine, each with its own part of the case."""

import atexit
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.labels import SURROUNDINGS, on_rank
from course_utils.grading.observing.errors import Raised, RaisedElsewhere
from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.strict import loads
from course_utils.meters import Cost
from course_utils.processes.by_value import cloudpickle
from course_utils.processes.time_limit import ALLOWED

from .ending import ending, never

Body = Callable[[Any, Case, int], dict[str, Any]]


@dataclass
class _Pools:
    """The ranks of this process, by their number: started when first needed, gone when it is gone."""

    owner: int = field(default_factory=os.getpid)
    by_world: dict[int, Any] = field(default_factory=dict)
    folder: str = ""

    def ranks(self, world: int) -> Any:
        from course_utils.ranks import Ranks

        if world not in self.by_world:
            self.by_world[world] = Ranks(world, debug=False)
        return self.by_world[world]

    def log(self, world: int, rank: int) -> str:
        if not (self.folder and Path(self.folder).is_dir()):  # gone with an earlier launcher
            from course_utils.ranks import launch

            home = launch.launcher(launch.DEFAULT).directory  # which goes even if this is killed
            self.folder = tempfile.mkdtemp(prefix="checks-", dir=home)
        return str(Path(self.folder) / f"{world}-{rank}.log")

    def close(self) -> None:
        if os.getpid() != self.owner:
            return
        for ranks in self.by_world.values():
            with suppress(Exception):
                ranks.close()
        self.by_world.clear()
        shutil.rmtree(self.folder or "/nonexistent", ignore_errors=True)
        self.folder = ""


_pools = _Pools()
_runs = itertools.count(1)


def pools() -> _Pools:
    """This process's own: a fork of it shares none."""
    global _pools
    if _pools.owner != os.getpid():
        _pools = _Pools()
    return _pools


@atexit.register
def close() -> None:
    """Stop all ranks that checks have started. The next check starts new ones."""
    pools().close()


@dataclass
class Measurement:
    """Every rank's cost, and how part of the work escaped being counted (in words), if it did."""

    costs: list[Cost] = field(default_factory=list)
    elsewhere: str = ""


_measuring: ContextVar[Measurement | None] = ContextVar("measurement", default=None)


@contextmanager
def measuring() -> Iterator[Measurement]:
    """Count the costs of each rank of the run on ranks within the block."""
    found = Measurement()
    token = _measuring.set(found)
    try:
        yield found
    finally:
        _measuring.reset(token)


def run_on_ranks(
    subject: Any, case: Case, body: Body, heard: Callable[[Any], dict[str, Any]] | None = None
) -> dict[str, Any]:
    """What `body` sees on every rank: {"rank 0: result": …, "rank 1: result": …, …}.

    One rank for each call of the case, which `on_ranks` made. heard: what to see besides in the ranks'
    communications, each rank's in a list in their order. Raises what ended it: an exception of
    the student's on a rank, a deadlock, a rank that died, ranks that disagree, a time limit.
    """
    calls = case.calls
    if not calls:
        raise never("the case runs on no rank: make it with on_ranks(…)", "NoRanks")
    world = len(calls)
    logs = [pools().log(world, rank) for rank in range(world)]
    run = next(_runs)
    measurement = _measuring.get()
    parcel = _packed(subject, body)
    orders = [
        (
            {
                "parcel": parcel,
                "case": dumps(one.as_tree()),
                "rank": rank,
                "run": run,
                "log": logs[rank],
                "logs": logs,
                "costs": measurement is not None,
            },
        )
        for rank, one in enumerate(calls)
    ]
    from .log import DONE, entries_of
    from .on_rank import perform

    ranks = pools().ranks(world)
    try:
        ranks.start()
        answers = ranks.ask(perform, orders, timeout=ALLOWED.get())
    except BaseException:
        pools().by_world.pop(world, None)
        ranks.close()
        raise
    replies = {a.rank: loads(a.value) for a in answers if a.ok}
    failures = {a.rank: a.error for a in answers if not a.ok}
    spoilt = bool(failures) or not all(reply["clean"] for reply in replies.values())
    talk = {rank: replies[rank]["log"] for rank in replies}
    for rank in failures:
        talk[rank] = [e for e in entries_of(logs[rank], run) if e != DONE]
    ended = ending(replies, failures, talk)
    if spoilt or (ended and ended.told):
        ranks.close()
    if ended:
        if spoilt:
            ended = replace(ended, costly=True)
        raise RaisedElsewhere(ended)
    if len(replies) != world or not all(reply["seen"] for reply in replies.values()):
        raise never("not every rank had something to show", "NoRanks")
    if measurement is not None:
        measurement.costs += [Cost.from_dict(replies[rank]["costs"]) for rank in sorted(replies)]
        for rank in sorted(replies):
            for what in replies[rank]["around"]:
                measurement.elsewhere = measurement.elsewhere or f"{what}, on rank {rank}"
    seen = {
        on_rank(rank, label): value
        for rank in sorted(replies)
        for label, value in replies[rank]["seen"].items()
    }
    for rank in sorted(replies):
        for what in replies[rank]["left"][:1]:
            seen[on_rank(rank, SURROUNDINGS)] = what
    return seen | (heard(talk) if heard else {})


def _packed(subject: Any, body: Body) -> bytes:
    """The object as bytes, with all that it needs of the notebook: functions, classes, closures."""
    parts = list(subject.values()) if isinstance(subject, dict) else [subject]
    homes = {getattr(part, "__module__", None) for part in [*parts, body]}
    by_value = []
    for name in homes:
        module = sys.modules.get(name or "")
        path = (getattr(module, "__file__", None) or "").replace("\\", "/")
        ours = "/course_utils/" in path and not (name or "").startswith("course_utils.exercises")
        if module and path and not ours and "/site-packages/" not in path:
            by_value.append(module)
    added = [m for m in by_value if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((subject, body))
    except Exception as error:
        raise RaisedElsewhere(
            Raised(
                ("NotSent",),
                f"your code cannot be sent to the ranks: something that it uses of the notebook is "
                f"bound to this process ({type(error).__name__}: {error})",
                told=True,
            )
        ) from error
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)
