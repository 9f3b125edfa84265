"""A process that has loaded torch and does nothing but fork: a rank starts in milliseconds.

Linux only. The kernel talks to it over a socket, one packet a message:
{"fork": n, "number": k} with 2n file descriptors → {"forked": [pids], "number": k};
{"kill": [pids]}; and, unasked, {"exited": [pid, code]}. When the kernel is gone, even killed, the socket ends: so does this
process, and the system then kills the ranks (PR_SET_PDEATHSIG).

It has one thread and never computes, so forking it is safe; a process that has used OpenMP could
not be forked.
"""

import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

PRELOADED = (
    "torch",
    "torch.distributed",
    "course_utils.ranks.worker",
    "course_utils.grading.distributed.on_rank",
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.tensor.debug",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.pipelining",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.profiler",
    "IPython.display",
    "matplotlib.pyplot",
    "jaxtyping",
)
"""torch._dynamo alone takes a rank a second when the first DDP model or optimizer asks for it."""

PR_SET_PDEATHSIG = 1
LARGEST_PACKET = 1 << 16
CHECK_PARENT_S = 1.0


def main(fd: int, directory: str) -> None:
    """Load, then serve until the kernel is gone. directory: removed at the end (logs)."""
    control = socket.socket(fileno=fd)
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for _ in preload():
            if os.getppid() != parent:
                return
        gc.collect()
        gc.freeze()  # what was loaded is never visited again, so its pages stay shared
        Server(control, parent).serve()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def preload() -> Iterator[str]:
    """Import what ranks need, as far as it is installed, one module a step."""
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
            yield name


class Server:
    def __init__(self, control: socket.socket, parent: int) -> None:
        self.control = control
        self.parent = parent
        self.ranks: set[int] = set()
        self.wake, self.woken = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(self.wake, False)
        self.libc = ctypes.CDLL(None)

    def serve(self) -> None:
        signal.set_wakeup_fd(self.woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while os.getppid() == self.parent:
                watched: list[Any] = [self.control, self.wake]
                ready, _, _ = select.select(watched, [], [], CHECK_PARENT_S)
                if self.wake in ready:
                    os.read(self.wake, 1024)
                if self.control in ready:
                    data, fds, _, _ = socket.recv_fds(self.control, LARGEST_PACKET, 250)
                    if not data:
                        return
                    self.obey(json.loads(data), fds)
                self.reap()
        except (ConnectionError, BrokenPipeError):
            return
        finally:
            for pid in self.ranks:
                os.kill(pid, signal.SIGKILL)

    def obey(self, message: dict[str, Any], fds: list[int]) -> None:
        if "fork" in message:
            pairs = [(fds[2 * i], fds[2 * i + 1]) for i in range(message["fork"])]
            pids = [self.fork(pair, fds) for pair in pairs]
            self.tell({"forked": pids, "number": message["number"]})
            for fd in fds:
                os.close(fd)
        for pid in message.get("kill", ()):
            if pid in self.ranks:
                os.kill(pid, signal.SIGKILL)

    def fork(self, mine: tuple[int, int], all_fds: list[int]) -> int:
        here = os.getpid()
        pid = os.fork()
        if pid:
            self.ranks.add(pid)
            return pid
        try:
            self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != here:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.control.close()
            for fd in {self.wake, self.woken, *all_fds} - set(mine):
                os.close(fd)
            from .worker import serve

            serve(Connection(mine[0]), Connection(mine[1]))
        finally:
            os._exit(0)

    def reap(self) -> None:
        for pid in list(self.ranks):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.ranks.discard(pid)
                self.tell({"exited": [pid, os.waitstatus_to_exitcode(status)]})

    def tell(self, message: dict[str, Any]) -> None:
        self.control.sendall(json.dumps(message).encode())
