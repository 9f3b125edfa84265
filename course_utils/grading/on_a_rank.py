"""The ranks' side of a check: `perform` runs a probe's body on one rank and says what happened there.

It runs in a process of `course_utils.ranks`, like `torchrun`'s. Nothing of one check is left for the
next: the student's object is unpickled anew, settings and environment are put back, and a rank that
cannot vouch for its state says so, so that the kernel starts new ones.
"""

import gc
import json
import os
import pickle
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from course_utils.meters import measure
from course_utils.meters.communication import (
    NAMES,
    Communication,
    communicates,
    communication,
)

from .case import Case
from .contracts import threads_started
from .raised import is_students, place, short_message
from .surroundings import quiet
from .values import Opaque, dumps, loads, map_tree, short

GRACE_S = 0.25  # a rank that failed waits so long for the others before it hangs up
SETTLE_S = 0.005  # for gloo's threads to let go of the tensors of a collective that is done
JOIN_S = 1.0  # and one that returned, for the threads that it left running


# ------------------------------------------------------------------------------ what is sent


class Log:
    """A file that holds each communication of a rank before it begins: it outlives a stuck rank.

    The first line is the number of the run, so that nobody takes an earlier one for it.
    """

    def __init__(self, path: str, run: int) -> None:
        if path not in _files:
            _files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.file = _files[path]
        self.entries: list[dict[str, Any]] = []
        os.ftruncate(self.file, 0)
        self.write(run)

    def note(self, what: Communication) -> None:
        entry = vars(what)
        self.entries.append(entry)
        self.write(entry)

    def write(self, entry: Any) -> None:
        os.write(self.file, json.dumps(entry).encode() + b"\n")


DONE = "done"
_files: dict[str, int] = {}


def entries_of(path: str, run: int) -> list[Any]:
    """What a rank has noted in this run so far; the last entry is "done" if it has finished."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError:
        return []
    if len(lines) < 2 or json.loads(lines[0]) != run:
        return []
    return [json.loads(line) for line in lines[1:-1]]


class Wire(TorchDispatchMode):
    """Sees every call of torch.distributed that passes torch's dispatcher, those of C++ too."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(is_traceable_wrapper_subclass_type(t) for t in types):
            return NotImplemented  # the subclass takes it apart; its parts come here
        if getattr(func, "namespace", "aten") != "aten" and communicates(func):
            with suppress(ValueError):  # a group that this rank is not in
                self.log.note(communication(func, args, kwargs or {}))
        wait = func  # so named for those who look where a rank stands: it may block in here
        return wait(*args, **(kwargs or {}))


# ------------------------------------------------------------------------------ what is waited for

CALLS = [
    name
    for name in dir(dist.ProcessGroup)
    if name.lstrip("_").startswith(
        ("all", "broadcast", "reduce", "gather", "scatter", "barrier", "send", "recv")
    )
]
LOOKS = ("wait", "get_future", "is_completed", "is_success", "result", "synchronize")


@contextmanager
def works_watched() -> Iterator[dict[int, tuple[str, Any]]]:
    """The works that Python was handed and that nobody has waited for or asked about, by id."""
    pending: dict[int, tuple[str, Any]] = {}

    def handed(wait: Callable[..., Any], name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            work = wait(self, *args, **kwargs)
            if isinstance(work, dist.Work):
                pending[id(work)] = NAMES.get(f"{name}_", name), work
            return work

        return method

    def looked_at(wait: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            pending.pop(id(self), None)
            return wait(self, *args, **kwargs)

        return method

    with ExitStack() as stack:
        for name in CALLS:
            original = getattr(dist.ProcessGroup, name)
            stack.enter_context(replaced(dist.ProcessGroup, name, handed(original, name)))
        for name in LOOKS:
            if hasattr(dist.Work, name):
                original = getattr(dist.Work, name)
                stack.enter_context(replaced(dist.Work, name, looked_at(original)))
        yield pending


@contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


# ------------------------------------------------------------------------------ what goes around it

_aside: list[str] | None = None
_started = False  # has the code of this check started a process?
_hooked = False

STARTS = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen")
AUDITED = dict.fromkeys(STARTS, "starts another process") | {
    "socket.connect": "opens a socket of its own",
    "socket.bind": "opens a socket of its own",
    "mmap.__new__": "maps memory that other processes may share",
    "open": "writes to a file",
}
WRITING = os.O_WRONLY | os.O_RDWR
BACKEND = "calls a backend's own methods, which go around torch.distributed"
STORE = "passes values through a store"


def note_aside(what: str) -> None:
    if _aside is not None and what not in _aside:
        _aside.append(what)


def audit(event: str, args: Any) -> None:
    global _started
    if event in STARTS:
        _started = True
    if _aside is None:
        return
    reads = event == "open" and not (isinstance(args[2], int) and args[2] & WRITING)
    if event in AUDITED and not reads:
        note_aside(AUDITED[event])


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
                note_aside(what)
            return original(self, *args, **kwargs)

        return method

    backend = torch._C._distributed_c10d.Backend  # dist.Backend is a list of names
    with ExitStack() as stack:
        for owner, names, what in (
            (backend, [name for name in CALLS if hasattr(backend, name)], BACKEND),
            (dist.Store, ["set", "append", "compare_set", "multi_set", "add"], STORE),
            (torch, ["save", "from_file"], AUDITED["open"]),
            (Tensor, ["share_memory_"], AUDITED["mmap.__new__"]),
            (torch.UntypedStorage, ["share_memory_"], AUDITED["mmap.__new__"]),
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


# ------------------------------------------------------------------------------ what it costs


class Meter:
    """What the counted parts of one body cost, and what went around the meter."""

    def __init__(self) -> None:
        self.measure = measure(parts=True)
        self.around: list[str] = []

    @contextmanager
    def part(self) -> Iterator[None]:
        with threads_started() as threads, aside_watched() as aside, self.measure:
            yield
            gc.collect()  # what only a cycle holds is not held
            sleep(SETTLE_S)
        self.around += aside
        if threads:
            self.around.append("works in another thread, where nothing can be counted")


_meter: Meter | None = None


@contextmanager
def counted() -> Iterator[None]:
    """For a probe's body: count what this block costs, and nothing else of the body.

    Several such blocks are added up; what one leaves alive is alive in the next. Outside of a
    contract nothing is counted.
    """
    if _meter is None:
        yield
        return
    with _meter.part():
        yield


# ------------------------------------------------------------------------------ a check

_held: list[Any] = []


def perform(order: dict[str, Any]) -> bytes:
    """Run a body on this rank. The reply, as a tree: see `reply` below.

    order: parcel (the pickled subject and body), case (a call's tree), rank, run (its number), log
    and logs (paths), costs (whether to count).
    """
    global _meter
    before = Before()
    log = Log(order["log"], order["run"])
    reply: dict[str, Any] = {"seen": None, "raised": None, "left": [], "costs": None, "around": []}
    _meter = meter = Meter() if order["costs"] else None
    try:
        with quiet() as left, works_watched() as pending:
            try:
                subject, body = pickle.loads(order["parcel"])
                case = Case.from_tree(loads(order["case"]))
                with Wire(log):
                    seen = body(subject, case, order["rank"])
                reply["seen"] = plain(seen)
                dumps(reply["seen"])  # read now: what was not waited for has not come yet
            except BaseException as error:
                reply["raised"] = raised_here(error)
                del error
        reply["left"] = left
        if meter is not None:
            reply["costs"] = meter.measure.cost.as_dict()
            reply["around"] = sorted(set(meter.around))
    finally:
        _meter = None
        log.write(DONE)
    reply["unwaited"] = sorted({name for name, _ in pending.values()})
    _held[:] = [work for _, work in pending.values()]  # gloo drops a message with its handle
    reply["log"] = log.entries
    reply["left"] += before.put_back()
    reply["clean"] = before.restored and not pending
    if reply["raised"] and not others_done(order):
        hang_up()
        reply["clean"] = False
    return dumps(reply)


def plain(seen: Any) -> Any:
    """What a body saw, as data: tensors of a subclass are named, those still under way waited for."""

    def leaf(value: Any) -> Any:
        if type(value).__name__ == "AsyncCollectiveTensor":
            return value.wait()
        if type(value) is nn.Parameter:
            return value.data.requires_grad_(value.requires_grad)
        if isinstance(value, Tensor) and type(value) is not Tensor:
            return Opaque(type(value).__name__, short(value))
        return value

    return map_tree(leaf, seen)


def raised_here(error: BaseException) -> dict[str, Any]:
    """An exception as data; its lines with file names, since the kernel knows the sources."""
    frames = [
        (place(f), f.lineno or 0, f.filename)
        for f in traceback.extract_tb(error.__traceback__)
        if is_students(f.filename)
    ]
    files = [f.filename.replace("\\", "/") for f in traceback.extract_tb(error.__traceback__)]
    kinds = [c.__name__ for c in type(error).__mro__ if c not in (BaseException, object)]
    message = short_message(error)
    if isinstance(error, RecursionError):
        frames = frames[-1:]
    if isinstance(error, SyntaxError) and error.lineno:
        frames = [("", error.lineno, str(error.filename))]
    return {
        "kinds": kinds or [type(error).__name__],
        "message": message,
        "lines": frames[-3:],
        "second": "Connection closed by peer" in message or "Connection reset" in message,
        "communication": bool(files) and "/torch/distributed/" in files[-1],
    }


class Before:
    """What a rank was like before a check, to put it back."""

    def __init__(self) -> None:
        global _hooked, _started
        if not _hooked:
            sys.addaudithook(audit)  # for as long as the process lives
            _hooked = True
        _started = False
        self.environment = dict(os.environ)
        self.threads = set(threading.enumerate())
        self.groups = set(dist.distributed_c10d._world.pg_map)
        self.names = [(owner, dict(vars(owner))) for owner in (torch, dist, Tensor, nn.Module)]
        self.restored = True

    def put_back(self) -> list[str]:
        """Undo what the code left behind; what that was, in words that follow "your code"."""
        left = [*self.put_names_back(), *self.put_environment_back(), *self.end_threads()]
        left += self.end_groups() + self.end_processes()
        return left

    def put_names_back(self) -> list[str]:
        left = []
        for owner, before in self.names:
            now = dict(vars(owner))
            if now.keys() == before.keys() and all(now[name] is before[name] for name in now):
                continue
            for name in now.keys() | before.keys():
                value = now.get(name)
                added = name not in before
                if value is before.get(name) or (added and isinstance(value, types.ModuleType)):
                    continue  # modules are loaded when they are first asked for
                if name.startswith("__"):
                    continue  # Python's own, such as copyreg's __slotnames__
                left.append(f"changed {owner.__name__}.{name} and left it so")
                if name in before:
                    setattr(owner, name, before[name])
                else:
                    delattr(owner, name)
        return left

    def put_environment_back(self) -> list[str]:
        now = dict(os.environ)
        if now == self.environment:
            return []
        names = sorted({name for name, _ in now.items() ^ self.environment.items()})
        os.environ.clear()
        os.environ.update(self.environment)
        return [f"changed the environment ({', '.join(names)}) and left it so"]

    def end_threads(self) -> list[str]:
        found = set(threading.enumerate()) - self.threads
        found = {t for t in found if not isinstance(t, threading._DummyThread)}
        for thread in found:
            thread.join(JOIN_S)
            self.restored &= not thread.is_alive()
        return ["left a thread running"] if found else []

    def end_groups(self) -> list[str]:
        now = set(dist.distributed_c10d._world.pg_map)
        for group in now - self.groups:
            with suppress(Exception):
                dist.destroy_process_group(group)
        if self.groups <= now:
            return []
        self.restored = False
        return ["destroyed a process group that it had not made"]

    def end_processes(self) -> list[str]:
        module = sys.modules.get("multiprocessing.process")
        if not (_started or (module and module.active_children())):
            return []
        import psutil

        children = psutil.Process().children(recursive=True)
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        self.restored &= not children
        return ["left a process running"] if children else []


def others_done(order: dict[str, Any]) -> bool:
    """Have all other ranks finished, within a moment?"""
    end = monotonic() + GRACE_S
    waiting = [path for path in order["logs"] if path != order["log"]]
    while waiting:
        waiting = [path for path in waiting if DONE not in entries_of(path, order["run"])[-1:]]
        if waiting and monotonic() > end:
            return False
        if waiting:
            sleep(0.002)
    return True


def hang_up() -> None:
    """Close this rank's connections, so that ranks that wait for it fail at once."""
    with suppress(Exception):
        dist.destroy_process_group()
