"""`Ranks`: processes of this machine that run together, seen from the process that owns them."""

import itertools
import linecache
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from . import launch
from .conversation import START_S, Conversation, Look, Worker
from .report import DIED, SLOW, STUCK, Group, NotSent, RanksError, Reply, names_of, show
from .wire import dumps

_NEW_PROCESSES = "These are new processes: the variables of before are lost."
_STOPPABLE = ("cell", "call", "push", "pull")
_NO_OWN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MPLBACKEND")
_KEPT = (
    "The ranks keep their variables, in a new process group; what was built on the old one (groups, "
    "DDP and FSDP models) must be built again."
)
_cells = itertools.count(1)


@dataclass
class _Team:
    """The processes of one start. Kept apart from `Ranks`, so that it can go when `Ranks` is gone."""

    owner: int
    workers: list[Worker] = field(default_factory=list)
    directory: Path | None = None

    def stop(self) -> None:
        if os.getpid() != self.owner:
            return  # a fork of the kernel
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.child.exit_code(5.0)
            worker.close()
        self.workers = []
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None


class Ranks:
    """`world_size` processes with one gloo group, one thread and one namespace each.

    They start when first used, keep their variables, and are stopped by `close`, at the end of a
    `with` block, when this object is gone, and when this process is: even if it is killed.
    timeout: seconds that a call may take. debug: does torch check that the ranks' collectives match
    (TORCH_DISTRIBUTED_DEBUG=DETAIL)? It adds messages and time. method: "forkserver" (Linux; torch
    is loaded once) or "spawn" (the rest; each rank loads torch, and starting takes seconds).

    A rank that dies, or a call that ends in a deadlock or runs out of time, takes all ranks'
    variables with it; the next use starts new processes. KeyboardInterrupt does so only if a rank
    computes inside C++, or catches it. Everything raises RanksError, except `run` and `ask`, which
    return every rank's Reply.

    lost: what the last call cost, in words, "" if nothing; note: what happened before it. interrupted:
    the replies of a call that was interrupted, with where each rank stood.
    """

    def __init__(
        self,
        world_size: int = 4,
        timeout: float = 10.0,
        *,
        debug: bool = True,
        method: str = launch.DEFAULT,
    ) -> None:
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1; it is {world_size}")
        self.world_size = world_size
        self.timeout = timeout
        self.debug = debug
        self.method = method
        self.lost = ""
        self.note = ""
        self.interrupted: list[Reply] = []
        self._lock = threading.RLock()
        self._team = _Team(os.getpid())
        self._group = Group(debug)
        self._numbers = itertools.count(1)
        self._finalizer = weakref.finalize(self, _Team.stop, self._team)

    def __repr__(self) -> str:
        state = "running" if self.running else "not started"
        return f"Ranks({self.world_size}, timeout={self.timeout:g}): {state}"

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the processes. A later use starts new ones."""
        with self._lock:
            self._team.stop()

    @property
    def running(self) -> bool:
        """Have the processes been started?"""
        return bool(self._team.workers)

    @property
    def pids(self) -> list[int]:
        """The processes, by rank; none before the first use."""
        return [worker.child.pid for worker in self._team.workers]

    def memory(self) -> list[int]:
        """Bytes that each rank has for itself alone, by rank (what it shares is torch's own code)."""
        import psutil

        return [psutil.Process(pid).memory_full_info().uss for pid in self.pids]

    # -------------------------------------------------------------------- what they do

    def run(
        self,
        source: str,
        only: Iterable[int] | None = None,
        *,
        timeout: float | None = None,
        watch: bool = True,
        debug: bool | None = None,
        look: Look | None = None,
    ) -> list[Reply]:
        """Run `source` in each rank's namespace (or in those of `only`): their replies.

        watch=False: a deadlock is left to the group's own timeout, as it would be elsewhere.
        debug: for this call, as in `Ranks`. look: called several times a second, while it runs, with
        the replies as they are so far.
        Raises SyntaxError here, before anything runs.
        """
        filename = f"<ranks {next(_cells)}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        compile(source, filename, "exec")
        chosen = self._chosen(only)
        data = dumps((source, filename))
        with self._lock:
            self._ready(self._wanted(debug, watch, timeout))
            return self._ask("cell", dict.fromkeys(chosen, data), timeout, watch, look)

    def ask(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        watch: bool = True,
        debug: bool | None = None,
    ) -> list[Reply]:
        """`function(*arguments[rank], **kwargs)` on every rank: replies, with `value`, by rank."""
        every = [()] * self.world_size if arguments is None else list(arguments)
        if len(every) != self.world_size:
            raise ValueError(f"{len(every)} tuples of arguments for {self.world_size} ranks")
        data = {r: dumps((function, tuple(a), kwargs or {})) for r, a in enumerate(every)}
        with self._lock:
            self._ready(self._wanted(debug, watch, timeout))
            return self._ask("call", data, timeout, watch)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """`function(*args, **kwargs)` on every rank: the results, by rank. Its prints are shown."""
        return self._shown(self.ask(function, [args] * self.world_size, kwargs))

    def map(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`function(*arguments[rank])` on every rank: the results, by rank."""
        return self._shown(self.ask(function, arguments))

    def push(self, **values: Any) -> None:
        """Put copies of values into every rank's namespace; functions of a notebook included.

        Raises NotSent, a TypeError, with the name of a value that cannot be pickled.
        """
        data = _packed(values)
        with self._lock:
            self._ready(self._group)
            self._values(self._ask("push", dict.fromkeys(range(self.world_size), data)))

    def pull(self, name: str) -> list[Any]:
        """The value of a name, by rank; tensors as plain copies on the CPU."""
        data = dumps(name)
        with self._lock:
            self._ready(self._group)
            return self._values(self._ask("pull", dict.fromkeys(range(self.world_size), data)))

    def start(self) -> None:
        """Start the processes now, if they are not there."""
        with self._lock:
            self._ready(Group(self.debug))

    # -------------------------------------------------------------------- inside

    def _chosen(self, only: Iterable[int] | None) -> list[int]:
        chosen = list(range(self.world_size)) if only is None else sorted(set(only))
        wrong = [rank for rank in chosen if not 0 <= rank < self.world_size]
        if wrong or not chosen:
            raise ValueError(f"ranks are 0 to {self.world_size - 1}; asked for {wrong or 'none'}")
        return chosen

    def _shown(self, replies: list[Reply]) -> list[Any]:
        show(replies)
        return self._values(replies)

    def _values(self, replies: list[Reply]) -> list[Any]:
        if not all(reply.ok for reply in replies):
            raise RanksError(replies, self.lost)
        return [reply.value for reply in replies]

    def _wanted(self, debug: bool | None, watch: bool, timeout: float | None) -> Group:
        limit = self.timeout if timeout is None else timeout
        return Group(self.debug if debug is None else debug, None if watch else limit)

    def _ready(self, group: Group) -> None:
        """Processes that live, in the group that is asked for."""
        self.note = ""
        workers = self._team.workers
        if workers and any(worker.child.exit_code(0.0) is not None for worker in workers):
            self._team.stop()
            self.note = "A rank died since the last cell. " + _NEW_PROCESSES
        if not self._team.workers:
            self._start(group)
        elif self._group != group and not self._regroup(group):
            self._team.stop()
            self.note = "The ranks could not form a new group. " + _NEW_PROCESSES
            self._start(group)

    def _start(self, group: Group) -> None:
        launcher = launch.launcher(self.method)
        team = self._team
        team.directory = Path(tempfile.mkdtemp(prefix="team-", dir=launcher.directory))
        mine: list[tuple[Connection, Connection]] = []
        theirs: list[tuple[Connection, Connection]] = []
        for _ in range(self.world_size):
            (conn, their_conn), (control, their_control) = Pipe(), Pipe()
            mine.append((conn, control))
            theirs.append((their_conn, their_control))
        try:
            children = launcher.start(theirs)
            for rank, ((conn, control), child) in enumerate(zip(mine, children, strict=True)):
                log = team.directory / f"rank{rank}.log"
                team.workers.append(Worker(rank, conn, control, child, log))
            self._meet(team, group)
        except BaseException:
            team.stop()
            for pair in mine:  # a rank whose pipe ends leaves
                for end in pair:
                    end.close()
            raise
        finally:
            for pair in theirs:
                for end in pair:
                    end.close()

    def _meet(self, team: _Team, group: Group) -> None:
        host = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        loopback = _loopback_name()
        if loopback and "GLOO_SOCKET_IFNAME" not in os.environ:
            host["GLOO_SOCKET_IFNAME"] = loopback
        inherited = {name: value for name, value in os.environ.items() if name not in _NO_OWN}
        configs = {}
        for worker in team.workers:
            place = {"RANK": worker.rank, "LOCAL_RANK": worker.rank}
            place |= {"WORLD_SIZE": self.world_size, "LOCAL_WORLD_SIZE": self.world_size}
            config = {
                "rank": worker.rank,
                "world_size": self.world_size,
                "cwd": os.getcwd(),
                "path": list(sys.path),
                "environ": inherited | host | {name: str(n) for name, n in place.items()},
                "log": str(worker.log),
            }
            configs[worker.rank] = dumps(config)
        port = self._values(self._ask("start", configs, START_S, watch=False))[0]
        joined = dict.fromkeys(configs, dumps((port, group)))
        self._values(self._ask("join", joined, START_S, watch=False))
        self._group = group

    def _regroup(self, group: Group) -> bool:
        """A new group for the same processes, which keep their variables. Did they manage?"""
        data = dict.fromkeys(range(self.world_size), dumps(group))
        self._group = group
        return all(reply.ok for reply in self._ask("group", data, timeout=5.0))

    def _ask(
        self,
        verb: str,
        data: dict[int, bytes],
        timeout: float | None = None,
        watch: bool = True,
        look: Look | None = None,
    ) -> list[Reply]:
        """Send each rank its data and wait for the replies. What fails is put right afterwards."""
        limit = self.timeout if timeout is None else timeout
        conversation = Conversation(
            [self._team.workers[rank] for rank in data], next(self._numbers), limit, watch, look
        )
        self.lost = ""
        try:
            replies = conversation.hold(verb, data)
        except BaseException as error:
            try:
                self.interrupted = conversation.where_they_stand()
                stopped = isinstance(error, KeyboardInterrupt) and verb in _STOPPABLE
                self.lost = self._stopped(conversation) if stopped else ""
            finally:
                if not self.lost:
                    self._team.stop()
                    self.lost = self._what_was_lost()
            raise
        how = {reply.error.how for reply in replies if reply.error}
        if how & {DIED, STUCK, SLOW}:
            self._team.stop()
            self.lost = self._what_was_lost()
        elif verb != "group" and any(r.error and r.error.communication for r in replies):
            self.lost = self._renew()
        return replies

    def _renew(self) -> str:
        """After an error inside a collective the group may be broken: the next call gets another."""
        if self._regroup(self._group):
            return _KEPT
        self._team.stop()
        return self._what_was_lost()

    def _stopped(self, conversation: Conversation) -> str:
        """Stop what runs and keep the processes, if Python can be interrupted in all of them."""
        left = conversation.stop()
        if not left:
            return self._renew()
        self._team.stop()
        cannot = "cannot be interrupted (busy inside C++, or KeyboardInterrupt is caught)"
        return f"{names_of(left)} {cannot}. {self._what_was_lost()}"

    def _what_was_lost(self) -> str:
        processes = f"All {self.world_size} processes were" if self.world_size > 1 else "It was"
        return f"{processes} stopped: their variables are lost. The next cell starts new ones."


def _packed(values: dict[str, Any]) -> bytes:
    """All in one, so that what they share stays shared. Raises NotSent."""
    try:
        return dumps(values)
    except Exception as error:
        for name, value in values.items():
            try:
                dumps(value)
            except Exception as own:
                raise NotSent(f"{name} cannot be sent to the ranks: {_said(own)}") from own
        raise NotSent(f"{', '.join(values)} cannot be sent to the ranks: {_said(error)}") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def free_port() -> int:
    """A port that nobody listens on now: MASTER_PORT, for a group that a cell makes itself.

    Below the ports that systems hand out by themselves, as gloo asks for, so that it stays free.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _loopback_name() -> str:
    """gloo's interface: without it, it asks for the address of this machine's name."""
    names = {name for _, name in socket.if_nameindex()} if hasattr(socket, "if_nameindex") else ()
    return next((name for name in ("lo", "lo0") if name in names), "")
