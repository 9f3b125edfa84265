"""A rank: a process that runs what the kernel sends, in one namespace that persists."""

import ast
import faulthandler
import io
import linecache
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from course_utils.ranks.frames import failure_of, is_callers
from course_utils.ranks.report import RAISED, Failure, Group
from course_utils.ranks.wire import dumps_result, loads

from . import figures
from .display import bundle_of, display, shows_by
from .operations import note_operations
from .watch import Watch

_NEVER = timedelta(days=1)
"""The group's own patience: the kernel's is shorter, and says more when it ends."""
_LARGEST_OUTPUT = 1_000_000
"""Characters that one rank may show of one cell."""
_LOGS = (lambda *_: None, dist.Logger.set_construction_data_and_log)
"""DDP's own logger takes a checked group of gloo's for what it is not, and crashes the process
(torch 2.13, in `DistributedDataParallel.__init__`, also under torchrun with
TORCH_DISTRIBUTED_DEBUG=DETAIL). So it is not asked while the group is checked."""


class _Apart:
    """Messages between two ranks go through an unchecked group of their own while groups are checked.

    Otherwise they count as collectives of the checked group, on the ranks that take part, and the
    next collective is refused because the ranks' numbers differ (torch 2.13, gloo).
    """

    def __init__(self) -> None:
        self.carrier: dist.ProcessGroup | None = None
        self.own = {}
        for name in ("send", "recv", "recv_anysource"):
            self.own[name] = getattr(dist.ProcessGroup, name)
            setattr(dist.ProcessGroup, name, self.instead_of(name))

        whole: Any = dist.ProcessGroup
        barrier = whole.monitored_barrier
        whole.monitored_barrier = lambda group, *rest, **named: barrier(
            self.instead(group), *rest, **named
        )

    def instead(self, group: Any) -> Any:
        """monitored_barrier sends messages to and from rank 0, and counts them too."""
        whole = dist.is_initialized() and group == dist.group.WORLD
        known = self.carrier in dist.distributed_c10d._world.pg_group_ranks
        return self.carrier if whole and known else group

    def instead_of(self, name: str) -> Callable[..., Any]:
        return lambda group, tensors, *place: self.passed(name, group, tensors, *place)

    def passed(self, name: str, group: Any, tensors: Any, *place: int) -> Any:
        *rank, tag = place
        known = dist.distributed_c10d._world.pg_group_ranks
        if self.carrier in known and group in known and 0 <= tag < 1 << 16:
            if rank:
                rank = [dist.get_global_rank(group, rank[0])]
            tag |= (zlib.crc32(group.group_name.encode()) & 0x7FFF) << 16  # groups do not mix
            group = self.carrier
        return self.own[name](group, tensors, *rank, tag)


class _Writer(io.TextIOBase):
    """sys.stdout or sys.stderr of a rank: complete lines go to the kernel at once."""

    encoding = "utf-8"

    def __init__(self, kind: str, pass_on: Callable[[str, Any], None]) -> None:
        self.kind = kind
        self.pass_on = pass_on
        self.pending: list[str] = []

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.pending.append(text)
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        text = "".join(self.pending)
        self.pending = []
        if text:
            self.pass_on(self.kind, text)


class _Rank:
    def __init__(self, conn: Connection, control: Connection) -> None:
        self.conn = conn
        self.sending = threading.Lock()
        self.number = 0
        self.shown = 0
        self.watch = Watch(control, self.hang_up)
        self.module = types.ModuleType("__main__")
        self.space = self.module.__dict__
        self.store: dist.TCPStore | None = None
        self.groups = 0

    # -------------------------------------------------------------------- messages

    def send(self, *message: Any) -> None:
        with self.sending:
            self.conn.send_bytes(pickle.dumps((self.number, *message)))

    def show(self, kind: str, item: Any) -> None:
        size = len(item) if isinstance(item, str) else 0
        if self.shown > _LARGEST_OUTPUT:
            return
        self.shown += size
        if self.shown > _LARGEST_OUTPUT:
            item = item[:1000] + f"\n… (a rank shows {_LARGEST_OUTPUT:,} characters at most)\n"
        self.send(kind, item)

    def serve(self) -> None:
        while True:
            try:
                self.number, verb, data = pickle.loads(self.conn.recv_bytes())
            except (EOFError, OSError):
                return
            self.shown = 0
            value, failure = None, None
            start = perf_counter()
            self.watch.begin(self.number)
            try:
                value = getattr(self, "do_" + verb)(data)
            except BaseException as error:
                self.watch.stopping = None
                failure = failure_of(error)
                _drop_frames(error)
            seconds = perf_counter() - start
            with suppress(BaseException):
                figures.flush()
                sys.stdout.flush()
                sys.stderr.flush()
            self.watch.end()
            try:
                packed = dumps_result(value)
            except BaseException as error:
                packed = dumps_result(None)
                said = f"the result cannot be sent to the notebook: {error}"
                failure = Failure(RAISED, said, failure_of(error).kinds)
            value = None
            self.send("done", (seconds, packed, failure))

    def stopped(self, _: int, frame: types.FrameType | None) -> None:
        """The stop button of the notebook, once, and only inside of what it stops."""
        watch = self.watch
        here = frame is not None and frame.f_code is _Rank.serve.__code__
        if watch.stopping == watch.number is not None and not here:
            watch.stopping = None
            raise KeyboardInterrupt

    def hang_up(self) -> None:
        """End gloo's connections: whoever waits for a message fails at once. The store's stay."""
        for name in os.listdir("/dev/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:
                ends = found.getsockname(), found.getpeername()
                ports = [end[1] for end in ends if isinstance(end, tuple)]
                if ports and self.store is not None and self.store.port not in ports:
                    found.shutdown(socket.SHUT_RDWR)

    # -------------------------------------------------------------------- verbs

    def do_start(self, data: bytes) -> int | None:
        """Become rank `rank`. Rank 0 answers with the port of the store that it serves."""
        config = loads(data)
        os.chdir(config["cwd"])
        sys.path[:] = config["path"]
        own = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        own["MPLBACKEND"] = os.environ.get("MPLBACKEND")
        os.environ.clear()
        os.environ.update(config["environ"])
        os.environ.update({name: value for name, value in own.items() if value})
        self.rank, self.world_size = config["rank"], config["world_size"]
        log = os.open(config["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)  # gloo's C++ lines; Python's own streams go to the kernel
        os.close(log)
        faulthandler.enable(2)
        sys.stdout, sys.stderr = _Writer("out", self.show), _Writer("err", self.show)
        sys.stdin = open(os.devnull)  # noqa: SIM115 - for as long as the process lives
        warnings.showwarning = self.show_warning  # type: ignore[assignment]
        torch.set_num_threads(1)
        if self.rank > 0:
            return None
        self.store = dist.TCPStore(
            "127.0.0.1", 0, self.world_size, is_master=True, wait_for_workers=False
        )
        return self.store.port

    def do_join(self, data: bytes) -> None:
        """Meet the other ranks."""
        port, group = loads(data)
        if self.store is None:
            self.store = dist.TCPStore("127.0.0.1", port, self.world_size, is_master=False)
        self.do_group(pickle.dumps(group))
        sys.modules["__main__"] = self.module
        self.space.update(
            torch=torch,
            dist=dist,
            nn=nn,
            F=F,
            Tensor=torch.Tensor,
            rank=self.rank,
            world_size=self.world_size,
            display=display,
            __builtins__=__builtins__,
        )
        self.given = dict(self.space)

    def do_group(self, data: bytes) -> None:
        """A new default group, in place of the one there is."""
        group: Group = loads(data)
        if dist.is_initialized():
            dist.destroy_process_group()
        level = "DETAIL" if group.debug else "OFF"
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
        dist.set_debug_level_from_env()
        dist.Logger.set_construction_data_and_log = _LOGS[not group.debug]  # type: ignore[method-assign]
        _apart.carrier = None
        self.groups += 1
        assert self.store is not None
        store = dist.PrefixStore(f"ranks/{self.groups}", self.store)
        dist.init_process_group(
            "gloo",
            store=store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=group.timeout) if group.timeout else _NEVER,
        )
        if group.debug:
            dist.set_debug_level(dist.DebugLevel.OFF)
            _apart.carrier = dist.new_group(backend="gloo")
            dist.set_debug_level_from_env()

    def do_cell(self, data: bytes) -> None:
        source, filename = loads(data)
        self.space.pop("__warningregistry__", None)
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        tree = ast.parse(source, filename)
        last = tree.body[-1] if tree.body else None
        value = None
        if isinstance(last, ast.Expr) and not source.rstrip().endswith(";"):
            tree.body.pop()
            exec(compile(tree, filename, "exec"), self.space)
            value = eval(compile(ast.Expression(last.value), filename, "eval"), self.space)
        else:
            exec(compile(tree, filename, "exec"), self.space)
        if value is not None:
            self.space["_"] = value
            display(value)

    def do_call(self, data: bytes) -> Any:
        function, args, kwargs = loads(data)
        self.lend(function)
        return function(*args, **kwargs)

    def do_push(self, data: bytes) -> None:
        values = loads(data)
        for value in values.values():
            self.lend(value)
        self.space.update(values)

    def do_pull(self, data: bytes) -> Any:
        name = loads(data)
        if name not in self.space:
            raise NameError(f"name {name!r} is not defined on rank {self.rank}")
        return self.space[name]

    # -------------------------------------------------------------------- what a cell sees

    def lend(self, value: Any) -> None:
        """A function or class of a notebook finds `rank`, `dist`, … here, if it brought none."""
        for function in [value, *(vars(value).values() if isinstance(value, type) else ())]:
            space = getattr(function, "__globals__", None)
            if space is not None and space.get("__name__") == "__main__":
                for name, given in self.given.items():
                    space.setdefault(name, given)

    def show_warning(
        self, message: Any, category: type, filename: str, lineno: int, *_: Any
    ) -> None:
        where = f"line {lineno}: " if is_callers(filename) else ""
        self.show("warning", f"{where}{category.__name__}: {message}\n")

    def show_value(self, value: Any) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.show("show", bundle_of(value))


def _drop_frames(error: BaseException) -> None:
    """The variables of a failed call are let go; a traceback would keep them alive."""
    with suppress(RuntimeError):
        traceback.clear_frames(error.__traceback__)


_apart = _Apart()
note_operations()


def serve(conn: Connection, control: Connection) -> None:
    """Be a rank until the kernel closes the pipe."""
    rank = _Rank(conn, control)
    shows_by(rank.show_value)
    with suppress(ImportError):
        import IPython.core.display_functions as functions
        import IPython.display

        functions.display = IPython.display.display = display  # type: ignore[assignment]
    signal.signal(signal.SIGINT, rank.stopped)
    threading.Thread(target=rank.watch.serve, name="ranks-watch", daemon=True).start()
    rank.serve()


def serve_spawned(conn: Connection, control: Connection) -> None:
    """The same in a process of multiprocessing's, which must see for itself that its parent died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave, name="ranks-leave", daemon=True).start()
    serve(conn, control)
    os._exit(0)
