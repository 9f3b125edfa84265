"""The kernel's side of starting and killing ranks: by the forkserver on Linux, by spawn elsewhere."""

import atexit
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

FORKSERVER, _SPAWN = "forkserver", "spawn"
DEFAULT = FORKSERVER if sys.platform.startswith("linux") else _SPAWN

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "from course_utils.ranks.forkserver import main; main(int(sys.argv[1]), sys.argv[3])"
)


class Child(Protocol):
    """A rank's process."""

    pid: int

    def kill(self) -> None: ...

    def exit_code(self, timeout: float) -> int | None:
        """The exit code, -9 for a SIGKILL; None if the process is alive after `timeout` seconds."""


def _environment() -> dict[str, str]:
    """Of a process of the course: one thread for each rank, figures kept for the cell's end."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **one, "MPLBACKEND": "module://course_utils.ranks.rank.figures"}


class Forkserver:
    """The socket to a process that runs `forkserver.main`."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ranks-"))
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log = self.directory / "forkserver.log"
        self.process: ServerProcess = self.begin(theirs)
        theirs.close()
        self.exits: dict[int, int] = {}
        self.number = 0
        self.lock = threading.RLock()

    def begin(self, theirs: socket.socket) -> "ServerProcess":
        """Start the process. theirs: its end of the socket."""
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)]
                + [str(self.directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal is the kernel's affair
            )

    @property
    def alive(self) -> bool:
        """Does the process still run?"""
        return self.process.poll() is None

    def complaint(self) -> str:
        """The end of what the process has written, 2000 characters at most."""
        with suppress(OSError):
            return self.log.read_text(errors="replace")[-2000:]
        return ""

    def start(self, pairs: Sequence[tuple[Connection, Connection]]) -> list[Child]:
        """Fork a rank for each pair of connections, which are its ends. Raises ConnectionError."""
        fds = [end.fileno() for pair in pairs for end in pair]
        with self.lock:
            self.number += 1
            message = json.dumps({"fork": len(pairs), "number": self.number}).encode()
            socket.send_fds(self.control, [message], fds)
            heard: dict[str, Any] = {}
            while heard.get("number") != self.number:  # an earlier start may have been interrupted
                heard = self.hear(None)
        return [_Forked(self, pid) for pid in heard["forked"]]

    def hear(self, timeout: float | None) -> dict[str, Any]:
        """The next packet; exits are noted. Raises TimeoutError, or BlockingIOError for 0 s."""
        self.control.settimeout(timeout)
        data = self.control.recv(1 << 16)
        if not data:
            raise ConnectionError("the process that starts ranks has died: " + self.complaint())
        message: dict[str, Any] = json.loads(data)
        if "exited" in message:
            pid, code = message["exited"]
            self.exits[pid] = code
        return message

    def exit_code(self, pid: int, timeout: float) -> int | None:
        """As `Child.exit_code`; -9 too if the process that would tell has died."""
        end = monotonic() + timeout
        with self.lock:
            while pid not in self.exits:
                try:
                    self.hear(max(end - monotonic(), 0.0))
                except (TimeoutError, BlockingIOError):
                    return None
                except OSError:
                    return -9
            return self.exits[pid]

    def kill(self, pid: int) -> None:
        """SIGKILL for this rank, if it is alive."""
        with self.lock, suppress(OSError):
            self.control.sendall(json.dumps({"kill": [pid]}).encode())

    def close(self) -> None:
        """End the process, with it its ranks, and remove its folder."""
        self.control.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        if self.alive:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class ServerProcess(Protocol):
    """What is used of a `subprocess.Popen`."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class _ForkedServer(Forkserver):
    """A forkserver that is a fork of this process, which has loaded what ranks need.

    For a process that has one thread and may not run other programs: a submission in its sandbox.
    """

    def begin(self, theirs: socket.socket) -> ServerProcess:
        from . import forkserver

        here = os.getpid()
        pid = os.fork()
        if pid:
            return _ForkedProcess(pid)
        try:
            self.control.close()
            forkserver.Server(theirs, here).serve()
        finally:
            os._exit(0)


class _ForkedProcess:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                found, status = self.pid, 0
            self.code = os.waitstatus_to_exitcode(status) if found else None
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        end = monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if monotonic() > end:
                raise subprocess.TimeoutExpired("forkserver", timeout or 0.0)
            sleep(0.005)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class _Forked:
    def __init__(self, server: Forkserver, pid: int) -> None:
        self.server = server
        self.pid = pid

    def kill(self) -> None:
        self.server.kill(self.pid)

    def exit_code(self, timeout: float) -> int | None:
        return self.server.exit_code(self.pid, timeout)


class Spawner:
    """A new Python for each rank, which loads torch itself: seconds, but on every system."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ranks-"))
        self.processes: list[multiprocessing.context.SpawnProcess] = []

    def start(self, pairs: Sequence[tuple[Connection, Connection]]) -> list[Child]:
        """Start a rank for each pair of connections, which are its ends."""
        context = multiprocessing.get_context("spawn")
        before = {name: os.environ.get(name) for name in _environment()}
        os.environ.update(_environment())  # a spawned process can only inherit it
        try:
            found: list[Child] = []
            for pair in pairs:
                process = context.Process(target=_spawned, args=pair)
                process.start()
                self.processes.append(process)
                found.append(_Spawned(process))
            return found
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def close(self) -> None:
        """Kill the ranks and remove the folder."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        shutil.rmtree(self.directory, ignore_errors=True)


def _spawned(conn: Connection, control: Connection) -> None:
    from .rank.worker import serve_spawned

    serve_spawned(conn, control)


class _Spawned:
    def __init__(self, process: multiprocessing.context.SpawnProcess) -> None:
        self.process = process
        self.pid = process.pid or 0

    def kill(self) -> None:
        self.process.kill()

    def exit_code(self, timeout: float) -> int | None:
        self.process.join(timeout)
        return self.process.exitcode


# One of each a kernel, made when first needed.

_made: dict[str, Forkserver | Spawner] = {}
_kinds: dict[str, type[Forkserver | Spawner]] = {FORKSERVER: Forkserver, _SPAWN: Spawner}
_lock = threading.Lock()


def launcher(method: str) -> Forkserver | Spawner:
    """The launcher of this process; a forkserver that has died is replaced."""
    with _lock:
        found = _made.get(method)
        if isinstance(found, Forkserver) and not found.alive:
            found.close()
            found = None
        if found is None:
            found = _made[method] = _kinds[method]()
        return found


def fork_from_here() -> None:
    """From now on ranks are forks of a fork of this process, which is made at once."""
    _kinds[FORKSERVER] = _ForkedServer
    launcher(FORKSERVER)


@atexit.register
def close() -> None:
    """End the processes that start others; the ranks end with them."""
    with _lock:
        for method in list(_made):
            _made.pop(method).close()


if hasattr(os, "register_at_fork"):

    def _forget() -> None:
        """A fork of the kernel has no ranks: those are the kernel's."""
        for made in _made.values():
            if isinstance(made, Forkserver):
                made.control.close()
        _made.clear()

    os.register_at_fork(after_in_child=_forget)
