"""A process that has loaded torch and does nothing but fork: a rank starts in milliseconds.

Linux only. The kernel talks to it over a socket, one packet a message:
{"fork": n, "number": k} with 2n file descriptors → {"forked": [pids], "number": k};
{"kill": [pids]}; and, unasked, {"exited": [pid, code]}. When this process is gone, the system kills the
ranks (PR_SET_PDEATHSIG).
"""

import ctypes
import gc
import importlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from course_utils.processes.fork_server import ForkServer, close_all, kill

_PRELOADED = (
    "torch",
    "torch.distributed",
    "course_utils.ranks.rank.worker",
    "course_utils.grading.distributed.on_rank",
    "course_utils.grading.probes",
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
"""torch._dynamo alone takes a rank a second when the first DDP model or optimizer asks for it, and the
probes take every rank of the first check 60 ms."""

PR_SET_PDEATHSIG = 1


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
    for name in _PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
            yield name


class Server(ForkServer):
    """Forks ranks. Of its children nothing is known but that they live."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        super().__init__(control, parent, most_fds=250)
        self.libc = ctypes.CDLL(None)

    def obey(self, message: dict[str, Any], fds: list[int]) -> None:
        if "fork" in message:
            pairs = [(fds[2 * i], fds[2 * i + 1]) for i in range(message["fork"])]
            pids = [self.fork(pair, fds) for pair in pairs]
            self.tell({"forked": pids, "number": message["number"]})
            close_all(fds)
        for pid in message.get("kill", ()):
            if pid in self.children:
                kill(pid)

    def fork(self, mine: tuple[int, int], all_fds: list[int]) -> int:
        here = os.getpid()
        pid = os.fork()
        if pid:
            self.children[pid] = None
            return pid
        try:
            self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != here:  # the server has died already: no signal will come
                os._exit(1)
            self.leave()
            self.control.close()
            close_all({self.wake, self.woken, *all_fds} - set(mine))
            from .rank.worker import serve

            serve(Connection(mine[0]), Connection(mine[1]))
        finally:
            os._exit(0)

    def ended(self, pid: int, code: int, used: Any) -> None:
        if pid in self.children:
            del self.children[pid]
            self.tell({"exited": [pid, code]})
