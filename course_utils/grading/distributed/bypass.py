"""The ways around torch.distributed by which ranks could exchange values unseen."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .works import CALLS, replaced

_aside: list[str] | None = None
_started = False  # has the code of this check started a process?
_hooked = False
_STARTS = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen")
_AUDITED = dict.fromkeys(_STARTS, "starts another process") | {
    "socket.connect": "opens a socket of its own",
    "socket.bind": "opens a socket of its own",
    "mmap.__new__": "maps memory that other processes may share",
    "open": "writes to a file",
}
_WRITING = os.O_WRONLY | os.O_RDWR
_BACKEND = "calls a backend's own methods, which go around torch.distributed"
_STORE = "passes values through a store"


def begin() -> None:
    """A check begins: from now on `started_a_process` speaks of its code."""
    global _started, _hooked
    if not _hooked:
        sys.addaudithook(_audit)  # for as long as the process lives
        _hooked = True
    _started = False


def started_a_process() -> bool:
    """Has the code of this check started one?"""
    return _started


def _note_aside(what: str) -> None:
    if _aside is not None and what not in _aside:
        _aside.append(what)


def _audit(event: str, args: Any) -> None:
    global _started
    if event in _STARTS:
        _started = True
    if _aside is None:
        return
    reads = event == "open" and not (isinstance(args[2], int) and args[2] & _WRITING)
    if event in _AUDITED and not reads:
        _note_aside(_AUDITED[event])


@contextmanager
def aside_watched() -> Iterator[list[str]]:
    """The ways that the block takes around torch.distributed, in words that follow "your code".

    Seen are: methods of a backend, values set in a store, sockets, processes, files opened for
    writing and mapped memory, by Python. Not seen: files that C++ opens by other ways than
    `torch.save` and `torch.from_file`, and ctypes.
    """
    global _aside

    def told(original: Callable[..., Any], what: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_filename.replace("\\", "/")
            if "/torch/" not in caller:
                _note_aside(what)
            return original(self, *args, **kwargs)

        return method

    backend = torch._C._distributed_c10d.Backend  # dist.Backend is a list of names
    with ExitStack() as stack:
        for owner, names, what in (
            (backend, [name for name in CALLS if hasattr(backend, name)], _BACKEND),
            (dist.Store, ["set", "append", "compare_set", "multi_set", "add"], _STORE),
            (torch, ["save", "from_file"], _AUDITED["open"]),
            (Tensor, ["share_memory_"], _AUDITED["mmap.__new__"]),
            (torch.UntypedStorage, ["share_memory_"], _AUDITED["mmap.__new__"]),
        ):
            for name in names:
                if hasattr(owner, name):
                    method = told(getattr(owner, name), what)
                    stack.enter_context(replaced(owner, name, method))
        found: list[str] = []
        _aside = found
        try:
            yield found
        finally:
            _aside = None
