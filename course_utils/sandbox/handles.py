"""The processes of the sandbox as the grader holds them: the one that forks, and a submission's."""

import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from . import bubblewrap, levels

_START_S = 120.0  # for torch to load on a slow machine
_KILL_S = 10.0
_FIRST = (
    "import json, sys; fd, settings = int(sys.argv[1]), json.loads(sys.argv[2]);"
    "sys.path[:] = settings['path']; sys.prefix, sys.exec_prefix = settings['prefixes'];"
)
_BOOT = _FIRST + "from course_utils.sandbox.zygote import main; main(fd, settings)"
_BOOT_ALONE = _FIRST + "from course_utils.sandbox.zygote import alone; alone(fd, settings)"
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HOME": "/tmp",
    "COURSE_HOME": "/tmp",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",  # an arena takes 64 MiB of a submission's address space
    "MKL_NUM_THREADS": "1",
    "MPLBACKEND": "module://course_utils.ranks.rank.figures",
    "OMP_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",  # the same answers each time
    "USER": "student",
}


class Broken(RuntimeError):
    """The sandbox itself does not work; no submission is to blame."""


class SubmissionProcess:
    """One process of a submission, as the grader knows it."""

    def __init__(self, home: "ZygoteHandle | Spawner", number: int, channel: socket.socket) -> None:
        self.home = home
        self.number = number
        self.channel = channel
        self.status: int | None = None
        self.cpu_s = 0.0
        self.why = ""
        self.unable = ""
        self.apart = False  # has it namespaces of its own?
        self.abandoned = False

    def fileno(self) -> int | None:
        """What becomes readable when there is news of the process; None if nothing does."""
        return self.home.fileno()

    def gone(self) -> bool:
        """Is it over? Takes in the news."""
        self.home.listen()
        return self.status is not None or not self.home.alive

    def wait(self, seconds: float) -> None:
        """Until it is over, for so many seconds at most."""
        deadline = monotonic() + seconds
        while not self.gone() and (left := deadline - monotonic()) > 0:
            self.home.pause(left)

    def end(self) -> None:
        """Close the channel, kill, and wait until it is over."""
        self.abandon()
        self.wait(_KILL_S)
        self.home.processes.pop(self.number, None)

    def abandon(self) -> None:
        """Close the channel and kill; the home forgets it when it is over."""
        self.abandoned = True
        self.channel.close()
        self.home.kill(self.number)
        if self.status is not None:
            self.home.processes.pop(self.number, None)


class ZygoteHandle:
    """The process that forks, from outside (see zygote.py)."""

    def __init__(self, level: str, handler: str, ranks: bool, apart: bool = True) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.processes: dict[int, SubmissionProcess] = {}
        self.numbers = itertools.count(1)
        self.alive = True
        self.ready: dict[str, Any] | None = None
        self.awaited = 1  # how often it is still to say that it is ready
        inside = level == levels.BUBBLEWRAP
        self.folder = "" if inside else tempfile.mkdtemp(prefix="course-sandbox-")
        given = _settings(inside, handler, ranks) | {"folder": self.folder or "/tmp"}
        given |= {"namespaces": inside and apart, "removes": bool(self.folder)}
        given |= {"own_network": inside}
        inner = _python(_BOOT, theirs.fileno(), given)
        line = bubblewrap.command(inner, _ENVIRONMENT) if inside else [sys.executable, *inner]
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=_ENVIRONMENT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a Ctrl-C in the terminal is the grader's affair
        )
        theirs.close()

    def wait_ready(self) -> dict[str, Any]:
        """Until it can fork; what it said of itself. Raises Broken with its log if it does not come up."""
        deadline = monotonic() + _START_S
        while self.ready is None or self.awaited:
            left = deadline - monotonic()
            if not self.alive or left <= 0:
                said = self.complaint()
                self.close()
                raise Broken(f"the process that runs student code did not start:\n{said}")
            self.pause(left)
            self.listen()
        return self.ready

    def complaint(self) -> str:
        """The end of its log."""
        self.log.seek(0)
        return self.log.read()[-4000:].decode(errors="replace").strip()

    def fileno(self) -> int:
        return self.control.fileno()

    def pause(self, seconds: float) -> None:
        """Until there is news."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.poll(seconds * 1000)

    def tell(self, message: dict[str, Any], *fds: int) -> None:
        """Send a message and file descriptors. One that nobody can receive is the zygote's end."""
        try:
            socket.send_fds(self.control, [json.dumps(message).encode()], fds)
        except OSError:
            self.alive = False

    def kill(self, number: int) -> None:
        """Let it kill the process of this number."""
        self.tell({"kill": number})

    def listen(self) -> None:
        """Take in all news there are."""
        while self.alive:
            try:
                data = self.control.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.alive = False
                return
            self.heed(json.loads(data))

    def heed(self, message: dict[str, Any]) -> None:
        """Take in one message: that it is ready, or how a process ended or why none began."""
        if "ready" in message:
            self.ready = message["ready"]
            self.awaited -= 1
        elif process := self.processes.get(message.get("ended") or message["unable"]):
            process.status = message.get("status", -1)
            process.cpu_s = message.get("cpu_s", 0.0)
            process.why = message.get("why", "")
            process.unable = message.get("because", "")
            if process.abandoned:
                del self.processes[process.number]

    def load(self, modules: list[str]) -> None:
        """Import modules before the next fork, which `wait_ready` then waits for."""
        self.awaited += 1
        self.tell({"load": modules})

    def calm(self, most: int = 1) -> None:
        """Until so few of the processes that were abandoned are left: a hostile one dies slowly.

        Those that have not died after `_KILL_S` are not waited for again.
        """
        deadline = monotonic() + _KILL_S
        self.listen()
        while (
            self.alive and len(left := [p for p in self.processes.values() if p.abandoned]) > most
        ):
            seconds = deadline - monotonic()
            if seconds <= 0:
                for process in left:
                    del self.processes[process.number]
                return
            self.pause(seconds)
            self.listen()

    def fork(self, order: dict[str, Any]) -> SubmissionProcess:
        """A process for a submission. order: see `Sandbox.order`."""
        mine, theirs = _channel()
        process = SubmissionProcess(self, next(self.numbers), mine)
        self.processes[process.number] = process
        self.tell({"fork": process.number, **order}, theirs.fileno())
        theirs.close()
        return process

    def close(self) -> None:
        """End it, and with it all its processes."""
        self.alive = False
        self.control.close()
        for process in self.processes.values():
            process.channel.close()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class Spawner:
    """Where a process with torch cannot be forked (macOS): each submission loads Python anew."""

    def __init__(self, handler: str, ranks: bool) -> None:
        self.folder = tempfile.mkdtemp(prefix="course-sandbox-")
        self.settings = _settings(False, handler, ranks) | {"folder": self.folder}
        self.processes: dict[int, SubmissionProcess] = {}
        self.started: dict[int, subprocess.Popen[bytes]] = {}
        self.numbers = itertools.count(1)
        self.alive = True

    def wait_ready(self) -> dict[str, Any]:
        """There is nothing to wait for."""
        return {"namespaces": False}

    def fileno(self) -> None:
        return None

    def pause(self, seconds: float) -> None:
        sleep(min(seconds, 0.01))

    def listen(self) -> None:
        """Note which processes have ended, and what they used."""
        for number, popen in self.started.items():
            process = self.processes.get(number)
            if process is None or process.status is not None:
                continue
            pid, status, used = os.wait4(popen.pid, os.WNOHANG)
            if pid:
                popen.returncode = process.status = os.waitstatus_to_exitcode(status)
                process.cpu_s = used.ru_utime + used.ru_stime

    def load(self, modules: list[str]) -> None:
        """Each submission loads what it needs."""

    def calm(self, most: int = 1) -> None:
        """Nothing is abandoned here: each end is waited for."""

    def kill(self, number: int) -> None:
        """SIGKILL for the process of this number and its group."""
        popen = self.started.get(number)
        if popen is not None:
            with suppress(OSError):
                os.killpg(popen.pid, signal.SIGKILL)

    def fork(self, order: dict[str, Any]) -> SubmissionProcess:
        """A process for a submission. order: see `Sandbox.order`."""
        mine, theirs = _channel()
        process = SubmissionProcess(self, next(self.numbers), mine)
        self.processes[process.number] = process
        os.mkdir(os.path.join(self.folder, str(process.number)))
        given = self.settings | {"order": {"fork": process.number, **order}}
        self.started[process.number] = subprocess.Popen(
            [sys.executable, *_python(_BOOT_ALONE, theirs.fileno(), given)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        return process

    def close(self) -> None:
        """End all processes and remove their folders."""
        for process in list(self.processes.values()):
            process.end()
        self.alive = False
        shutil.rmtree(self.folder, ignore_errors=True)


def _channel() -> tuple[socket.socket, socket.socket]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    mine.setblocking(False)
    return mine, theirs


def _settings(inside: bool, handler: str, ranks: bool) -> dict[str, Any]:
    """What the process that runs student code is told at its start."""
    course = bubblewrap.INSIDE if inside else str(bubblewrap.package().parent)
    return {
        "path": bubblewrap.search_path() if inside else [course, *bubblewrap.libraries()],
        "prefixes": [sys.prefix, sys.exec_prefix],
        "handler": handler,
        "hidden": bubblewrap.HIDDEN,
        "ranks": ranks,
    }


def _python(boot: str, fd: int, given: dict[str, Any]) -> list[str]:
    """Arguments of Python: without site, its search path is what `_settings` says and nothing else."""
    return ["-s", "-S", "-P", "-B", "-c", boot, str(fd), json.dumps(given)]
