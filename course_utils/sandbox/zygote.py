"""A process that has torch loaded and does nothing but fork: a submission starts in milliseconds.

It runs inside the sandbox and never sees anything of a student. Over a socket of packets the grader
sends {"fork": n, "limits", "ranks"} with the submission's end of its channel, {"kill": n}, and
{"load": [modules]} for what the next ones will need as well; it hears {"ready": …} at the start and
after each load, {"ended": n, "status", "cpu_s"} when a submission is over, and {"unable": n, "why"}
if one cannot start. When the grader is gone, even killed, the socket ends; so
does this process, and all that it started.
"""

import importlib
import os
import shutil
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib.abc import MetaPathFinder
from typing import Any

from course_utils.processes.fork_server import ForkServer, close_all, kill
from course_utils.processes.pages import settle

from .proc import anonymous_memory, descendants, sockets_in_network_of

_WATCH_S = 0.1


def main(fd: int, settings: dict[str, Any]) -> None:
    """Load, say so, serve until the grader is gone."""
    control = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler = _loaded(settings)
    _rehearse()
    settle()
    try:
        Zygote(control, handler, settings).serve()
    finally:
        if settings["removes"]:
            shutil.rmtree(settings["folder"], ignore_errors=True)


def alone(fd: int, settings: dict[str, Any]) -> None:
    """One submission in a process that was not forked (see `sandbox.Spawner`)."""
    from . import child

    child.live(fd, _loaded(settings), settings["order"], settings["folder"], apart=False, parent=0)


def _loaded(settings: dict[str, Any]) -> Any:
    sys.meta_path.insert(0, Hidden(tuple(settings["hidden"])))
    _warm_up(settings["ranks"])
    home, _, attribute = settings["handler"].partition(":")
    return getattr(importlib.import_module(home), attribute)


class Hidden(MetaPathFinder):
    """Packages that are not there, at any level of isolation; without bubblewrap their files are."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if any(f"{fullname}.".startswith(f"{name}.") for name in self.names):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _warm_up(ranks: bool) -> None:
    """Load what submissions need, and do once what is slow the first time."""
    import torch

    torch.set_num_threads(1)  # before any operation: a pool of threads would not survive a fork
    weight = torch.ones(3, 3, requires_grad=True)
    torch.nn.functional.softmax(weight @ weight, -1).sum().backward()
    importlib.import_module("course_utils.grading.probes")
    if ranks:
        from course_utils.ranks import forkserver

        list(forkserver.preload())
        torch.optim.AdamW([weight]).step()


def _note_what_is_here() -> None:
    """For all its children, what checks an answer as it is before any answer runs."""
    from course_utils.grading.student import vouching

    vouching.before()


def _rehearse() -> None:
    from course_utils.grading.student import rehearsal

    rehearsal.rehearse()


class Zygote(ForkServer):
    """Forks submissions. Of its children it knows their numbers."""

    def __init__(self, control: socket.socket, handler: Any, settings: dict[str, Any]) -> None:
        from . import namespaces

        super().__init__(control, os.getppid(), most_fds=4)
        self.handler = handler
        self.folder = settings["folder"]
        self.watched = settings["ranks"]
        self.own_network = settings["own_network"]
        self.memory = self.sockets = 0
        self.why: dict[int, str] = {}
        self.apart = settings["namespaces"] and namespaces.may_administer()
        self.own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if self.apart else -1
        if sys.platform == "linux":
            namespaces.prctl(namespaces.PR_SET_CHILD_SUBREAPER, 1)

    def serve(self) -> None:
        self.say_ready()
        super().serve()

    def patience_s(self) -> float:
        return _WATCH_S if self.watched and self.children else super().patience_s()

    def look(self) -> None:
        """The limits of memory and of files bind one process; those of ranks are bound together by this."""
        if not (self.watched and self.children):
            return
        used = anonymous_memory()
        if used > self.memory:
            self.end_all(f"took {used >> 20} MiB of memory in all its processes")
        sockets = max(map(sockets_in_network_of, self.children)) if self.own_network else 0
        if sockets > self.sockets:
            self.end_all(f"opened {sockets} sockets in all its processes")

    def end_all(self, why: str) -> None:
        """End the submissions there are, for this reason."""
        for pid, number in self.children.items():
            self.why.setdefault(number, why)
            kill(pid)

    def say_ready(self) -> None:
        self.tell({"ready": {"namespaces": self.apart}})

    def obey(self, message: dict[str, Any], fds: list[int]) -> None:
        if "fork" in message:
            try:
                self.make_folder(message)
                pid = self.fork(message, fds[0])
                self.children[pid] = message["fork"]
                self.memory = message["limits"]["memory"]
                self.sockets = message["limits"]["sockets"]
            except OSError as error:
                self.tell({"unable": message["fork"], "because": str(error)})
            close_all(fds)
        elif "load" in message:
            for name in message["load"]:
                with suppress(Exception):  # each submission then has it to do, or does not need it
                    importlib.import_module(name)
            with suppress(ImportError):
                _note_what_is_here()
            settle()
            self.say_ready()
        else:
            for pid, number in self.children.items():
                if number == message["kill"]:
                    kill(pid)

    def own_folder(self, number: int) -> str:
        """The folder of the submission with this number."""
        return os.path.join(self.folder, str(number))

    def make_folder(self, message: dict[str, Any]) -> None:
        """For temporary files, where a submission has no /tmp of its own."""
        if not self.apart:
            folder, uid = self.own_folder(message["fork"]), message["uid"]
            os.mkdir(folder, 0o700)
            if uid is not None:
                os.chmod(self.folder, 0o711)
                try:
                    os.chown(folder, uid, uid)
                except PermissionError:  # inside bubblewrap root may not
                    os.chmod(folder, 0o777)

    def fork(self, message: dict[str, Any], channel: int) -> int:
        """Fork a submission's process; its PID here. channel: its end of the channel."""
        from . import child, namespaces

        if self.apart:
            namespaces.unshare(namespaces.CLONE_NEWPID)  # for children only
        here = os.getpid()
        try:
            pid = os.fork()
        finally:
            # else the next child would be born into this one's namespace
            if self.apart and os.getpid() == here:
                namespaces.setns(self.own_pids, namespaces.CLONE_NEWPID)
        if pid:
            return pid
        try:
            self.leave()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            child.live(channel, self.handler, message, self.folder, apart=self.apart, parent=here)
        except BaseException:
            traceback.print_exc()  # before the code of a student runs this is the zygote's log
        finally:
            os._exit(70)

    def ended(self, pid: int, code: int, used: Any) -> None:
        number = self.children.pop(pid, None)
        if number is not None:
            self.sweep(number)
            cpu_s, why = used.ru_utime + used.ru_stime, self.why.pop(number, "")
            self.tell({"ended": number, "status": code, "cpu_s": cpu_s, "why": why})

    def sweep(self, number: int) -> None:
        """End what a submission has left. With a namespace of its own the kernel did so."""
        if self.apart:
            return
        for _ in range(1000):  # what is killed may have forked meanwhile
            left = [p for p in descendants() if p not in self.children]
            for one in left:
                kill(one)
            if not left:
                break
        shutil.rmtree(self.own_folder(number), ignore_errors=True)
