"""Submissions handed to workers, and what happens when one of them dies.

A worker is a process of this machine or of a Dask cluster; both are an executor of the standard
library's kind, and `results` treats them alike. A worker starts its sandbox with the first submission
and keeps it, so torch is loaded once.

A worker that dies takes down what it was at, and a pool of processes takes its other submissions
with it. Those are suspects: they are handed out again one at a time, with nothing beside them. Who
brings a worker down alone, twice, is damaged; everybody else is graded as if nothing had happened.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from concurrent.futures import ProcessPoolExecutor as ProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for_any
from typing import Any, Protocol

MOST_DEATHS = 2
CONNECT_S = 10
TO_END_S = 10
AHEAD = 1  # submissions that wait for each worker, so that it need not wait for them


class WorkerDied(RuntimeError):
    """A submission brought its worker down `MOST_DEATHS` times, alone."""


class Pool(Protocol):
    """Where submissions are graded. falls_together: does one worker's death end all that others do?"""

    falls_together: bool

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]: ...

    @property
    def size(self) -> int:
        """How many workers there are now."""
        ...

    def renew(self) -> None:
        """Make it usable again after a worker has died."""

    def close(self) -> None:
        """End the workers, whatever they are at."""


class Processes:
    """Processes of this machine, started afresh: none holds a lock or a thread of its parent.

    begin: what each does first of all, before it loads anything.
    """

    falls_together = True

    def __init__(self, size: int, begin: Callable[[], None] | None = None) -> None:
        self.size, self.begin = size, begin
        self.executor: Executor = self._start()

    def _start(self) -> Executor:
        context = multiprocessing.get_context("spawn")
        return ProcessPool(
            self.size, mp_context=context, initializer=_settle, initargs=(self.begin,)
        )

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        try:
            return self.executor.submit(work, *given)
        except ValueError as error:  # one died while another was started: its pipes are closed
            raise BrokenExecutor(str(error)) from error

    def renew(self) -> None:
        self.close()
        self.executor = self._start()

    def close(self) -> None:
        """End them all, and wait until they are gone.

        The executor itself, where a worker has died, would wait for ever for one that it was just
        starting.
        """
        processes = list((getattr(self.executor, "_processes", None) or {}).values())
        self.executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with suppress(OSError, ValueError):
                process.terminate()
        for process in processes:
            with suppress(OSError, ValueError, AssertionError):
                process.join(TO_END_S)


def _settle(begin: Callable[[], None] | None) -> None:
    """In a new worker: an interrupt is its parent's business, and it does not outlive its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait_for_any([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, name="follows its parent", daemon=True).start()
    if begin:
        begin()


class Dask:
    """The workers of a Dask cluster. address: of its scheduler.

    Raises ValueError, saying what to do, where it cannot be reached.
    """

    falls_together = False  # the scheduler hands it out again, and says KilledWorker in the end

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise ValueError("--dask needs Dask's scheduler: pip install distributed") from error
        try:
            self.client = Client(address, set_as_default=False, timeout=CONNECT_S)
        except (OSError, ValueError) as error:
            raise ValueError(f"no Dask scheduler answers at {address!r}: {error}") from error
        self.executor = self.client.get_executor(pure=False)

    @property
    def size(self) -> int:
        return max(1, sum(self.client.nthreads().values()))

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = self.executor.submit(work, *given)
        return future

    def renew(self) -> None:
        """The scheduler has done it."""

    def close(self) -> None:
        self.executor.shutdown(wait=False)
        self.client.close()


def died(error: BaseException) -> bool:
    """Does this exception of a future say that a worker, or its sandbox, died over a task?

    Dask's own and the sandbox's are known by their names: neither need be loaded here.
    """
    return isinstance(error, BrokenExecutor) or type(error).__name__ in ("KilledWorker", "Broken")


@dataclass(eq=False)
class Ticket:
    """A task that was handed out. deaths: how often its worker died while it was the only one."""

    task: Any
    deaths: int = 0


@dataclass
class Desk:
    """What is handed out. work: called with each task in a worker. tasks: what there is to do."""

    pool: Pool
    work: Callable[[Any], Any]
    ready: Callable[[], Any]
    tasks: Iterator[Any]
    running: dict[Future[Any], Ticket] = field(default_factory=dict)
    suspects: deque[Ticket] = field(default_factory=deque)

    def hand_out(self) -> None:
        """Keep the workers busy; while there are suspects, one at a time."""
        if self.suspects:
            if not self.running:
                self.submit(self.suspects.popleft())
            return
        while len(self.running) < self.pool.size * (1 + AHEAD) and not self.suspects:
            task = next(self.tasks, None)
            if task is None:
                return
            self.submit(Ticket(task))

    def submit(self, ticket: Ticket) -> None:
        try:
            self.running[self.pool.submit(self.work, ticket.task)] = ticket
        except BrokenExecutor:  # it broke since the last result was looked at
            self.suspects.append(ticket)

    def take_in(self) -> Iterator[tuple[Any, Any | BaseException]]:
        """What has come since: each task with its result, or with the exception that ended it."""
        alone = len(self.running) == 1
        done, _ = wait(self.running, return_when=FIRST_COMPLETED)
        lost: list[Ticket] = []
        for future in done:
            ticket = self.running.pop(future)
            error = future.exception()
            if error is None:
                yield ticket.task, future.result()
            elif died(error):
                lost.append(ticket)
            else:
                yield ticket.task, error
        if not lost:
            return
        if self.pool.falls_together:
            lost += self.running.values()
            self.running.clear()
        self.pool.renew()
        for ticket in lost:
            ticket.deaths += alone
            if ticket.deaths < MOST_DEATHS:
                self.suspects.append(ticket)
            else:
                self.pool.submit(self.ready).result()  # or else it is not this submission's doing
                yield ticket.task, WorkerDied(f"the grader died on it {MOST_DEATHS} times")


def results(
    pool: Pool, work: Callable[[Any], Any], ready: Callable[[], Any], tasks: Iterable[Any]
) -> Iterator[tuple[Any, Any | BaseException]]:
    """Every task with what `work` returns or raises for it in a worker, as they come.

    A task whose worker died alone with it, `MOST_DEATHS` times, comes with WorkerDied. ready: what a
    worker can do that is in order; if that ends it too, its exception is raised.
    """
    desk = Desk(pool, work, ready, iter(tasks))
    while True:
        desk.hand_out()
        if desk.running:
            yield from desk.take_in()
        elif desk.suspects:
            pool.renew()
        else:
            return
