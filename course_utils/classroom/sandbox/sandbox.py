"""`Sandbox`: the grader's side. It starts the process that forks, and speaks with submissions.

Like `frames`, it loads no torch: the sandbox's process and the grader can load theirs side by side.
"""

import itertools
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from time import monotonic, sleep
from typing import Any

from course_utils.grading.channel import ChannelLost

from . import bubblewrap, frames, levels
from .limits import Limits

HANDLER = "course_utils.grading.remote:in_a_process_of_its_own"
START_S = 120.0  # for torch to load on a slow machine
LAST_WORDS_S = 2.0  # for the news how a process ended, which comes after its channel has closed
KILL_S = 10.0
FIRST_UID, UIDS = 0x70000000, 1 << 24  # of nobody else
LAYERS = {"fork": sys.platform == "linux", "namespaces": True, "rlimits": True, "seccomp": True}

FIRST = (
    "import json, sys; fd, settings = int(sys.argv[1]), json.loads(sys.argv[2]);"
    "sys.path[:] = settings['path']; sys.prefix, sys.exec_prefix = settings['prefixes'];"
)
BOOT = FIRST + "from course_utils.classroom.sandbox.zygote import main; main(fd, settings)"
BOOT_ALONE = FIRST + "from course_utils.classroom.sandbox.zygote import alone; alone(fd, settings)"
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HOME": "/tmp",
    "COURSE_HOME": "/tmp",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",  # an arena takes 64 MiB of a submission's address space
    "MKL_NUM_THREADS": "1",
    "MPLBACKEND": "module://course_utils.ranks.figures",
    "OMP_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",  # the same answers each time
    "USER": "student",
}


class Broken(RuntimeError):
    """The sandbox itself does not work; no submission is to blame."""


class Process:
    """One process of a submission, as the grader knows it."""

    def __init__(self, home: "Zygote | Spawner", number: int, channel: socket.socket) -> None:
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
        return self.home.fileno()

    def gone(self) -> bool:
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
        self.wait(KILL_S)
        self.home.processes.pop(self.number, None)

    def abandon(self) -> None:
        """Close the channel and kill; the home forgets it when it is over."""
        self.abandoned = True
        self.channel.close()
        self.home.kill(self.number)
        if self.status is not None:
            self.home.processes.pop(self.number, None)


class Zygote:
    """The process that forks, from outside (see zygote.py)."""

    def __init__(self, level: str, handler: str, ranks: bool, apart: bool = True) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.processes: dict[int, Process] = {}
        self.numbers = itertools.count(1)
        self.alive = True
        self.ready: dict[str, Any] | None = None
        self.awaited = 1  # how often it is still to say that it is ready
        inside = level == levels.BUBBLEWRAP
        self.folder = "" if inside else tempfile.mkdtemp(prefix="course-sandbox-")
        given = settings(inside, handler, ranks) | {"folder": self.folder or "/tmp"}
        given |= {"namespaces": inside and apart, "removes": bool(self.folder)}
        inner = python(BOOT, theirs.fileno(), given)
        line = bubblewrap.command(inner, ENVIRONMENT) if inside else [sys.executable, *inner]
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=ENVIRONMENT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a Ctrl-C in the terminal is the grader's affair
        )
        theirs.close()

    def wait_ready(self) -> dict[str, Any]:
        deadline = monotonic() + START_S
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
        try:
            socket.send_fds(self.control, [json.dumps(message).encode()], fds)
        except OSError:
            self.alive = False

    def kill(self, number: int) -> None:
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
        self.awaited += 1
        self.tell({"load": modules})

    def calm(self, most: int = 1) -> None:
        """Until so few of the processes that were abandoned are left: a hostile one dies slowly.

        Those that have not died after `KILL_S` are not waited for again.
        """
        deadline = monotonic() + KILL_S
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

    def fork(self, order: dict[str, Any]) -> Process:
        mine, theirs = channel()
        process = Process(self, next(self.numbers), mine)
        self.processes[process.number] = process
        self.tell({"fork": process.number, **order}, theirs.fileno())
        theirs.close()
        return process

    def close(self) -> None:
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
        self.settings = settings(False, handler, ranks) | {"folder": self.folder}
        self.processes: dict[int, Process] = {}
        self.started: dict[int, subprocess.Popen[bytes]] = {}
        self.numbers = itertools.count(1)
        self.alive = True

    def wait_ready(self) -> dict[str, Any]:
        return {"namespaces": False}

    def fileno(self) -> None:
        return None

    def pause(self, seconds: float) -> None:
        sleep(min(seconds, 0.01))

    def listen(self) -> None:
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
        popen = self.started.get(number)
        if popen is not None:
            with suppress(OSError):
                os.killpg(popen.pid, signal.SIGKILL)

    def fork(self, order: dict[str, Any]) -> Process:
        mine, theirs = channel()
        process = Process(self, next(self.numbers), mine)
        self.processes[process.number] = process
        os.mkdir(os.path.join(self.folder, str(process.number)))
        given = self.settings | {"order": {"fork": process.number, **order}}
        self.started[process.number] = subprocess.Popen(
            [sys.executable, *python(BOOT_ALONE, theirs.fileno(), given)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        return process

    def close(self) -> None:
        for process in list(self.processes.values()):
            process.end()
        self.alive = False
        shutil.rmtree(self.folder, ignore_errors=True)


def channel() -> tuple[socket.socket, socket.socket]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    mine.setblocking(False)
    return mine, theirs


def settings(inside: bool, handler: str, ranks: bool) -> dict[str, Any]:
    """What the process that runs student code is told at its start."""
    course = bubblewrap.INSIDE if inside else str(bubblewrap.package().parent)
    return {
        "path": bubblewrap.search_path() if inside else [course, *bubblewrap.libraries()],
        "prefixes": [sys.prefix, sys.exec_prefix],
        "handler": handler,
        "hidden": bubblewrap.HIDDEN,
        "ranks": ranks,
    }


def python(boot: str, fd: int, given: dict[str, Any]) -> list[str]:
    """Arguments of Python: without site, its search path is what `settings` says and nothing else."""
    return ["-s", "-S", "-P", "-B", "-c", boot, str(fd), json.dumps(given)]


class Sandbox:
    """Runs the code of submissions apart from the grader. Use it in a `with` block, from one thread.

    isolation: "best" (what the machine gives), "bubblewrap" (that, or SandboxMissing) or "process".
    limits: what one submission may use. A process with torch loaded is started at once, and ready
    after seconds (`start` waits for it); another one when a submission first needs ranks.

    Raises SandboxMissing (from best_level).
    """

    def __init__(
        self,
        isolation: str = levels.BEST,
        limits: Limits | None = None,
        *,
        handler: str = HANDLER,
        layers: dict[str, bool] | None = None,
    ) -> None:
        self.kind, self.why = levels.chosen(isolation)
        self._limits = limits or Limits()
        self.handler = handler
        self.layers = LAYERS | (layers or {})
        self.own_user = bubblewrap.is_root() and (
            self.kind == levels.BUBBLEWRAP or levels.can_be_another()
        )
        self.zygotes: dict[bool, Zygote | Spawner] = {}
        self.loads: list[str] = []
        self.spare: Process | None = None
        self.zygote(ranks=False)

    @property
    def limits(self) -> Limits:
        """What one submission may use, from the next one on."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self.drop_spare()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process that forks, and with it everything inside."""
        self.spare = None
        for zygote in self.zygotes.values():
            zygote.close()
        self.zygotes.clear()

    @cached_property
    def level(self) -> str:
        """The isolation in words for people. Raises Broken if Python does not start inside."""
        return levels.described(self.kind, self.why, self.start()["namespaces"])

    def start(self, *, ranks: bool = False) -> dict[str, Any]:
        """Start the process that forks, if it is not there, and wait until it can.

        Raises Broken if Python does not start inside.
        """
        return self.zygote(ranks).wait_ready()

    def zygote(self, ranks: bool) -> Zygote | Spawner:
        found = self.zygotes.get(ranks)
        if found is not None:
            found.listen()
            if found.alive:
                return found
            found.close()
        new: Zygote | Spawner
        if self.layers["fork"]:
            new = Zygote(self.kind, self.handler, ranks, self.layers["namespaces"])
        else:
            new = Spawner(self.handler, ranks)
        if self.loads:
            new.load(self.loads)
        self.zygotes[ranks] = new
        return new

    def load(self, modules: Iterable[str]) -> None:
        """Let submissions from now on find these modules loaded: each would take its time over them."""
        new = [name for name in modules if name not in self.loads]
        if new:
            self.loads += new
            for zygote in self.zygotes.values():
                zygote.load(new)
            self.drop_spare()

    def fork(self, ranks: bool, cpu_s: float | None = None) -> Process:
        """A process for a submission. cpu_s: what is left of its seconds, if not all of them.

        Where every submission has namespaces of its own, one is always kept ready: the next
        submission need not wait until its process has been made.
        """
        zygote = self.zygote(ranks)
        apart = zygote.wait_ready()["namespaces"] and not ranks
        zygote.calm()
        if not apart or cpu_s is not None:
            return zygote.fork(self.order(ranks, cpu_s))
        process, self.spare = self.spare, None
        if process is not None and (process.home is not zygote or process.gone()):
            process.end()
            process = None
        process = process or zygote.fork(self.order(ranks))
        self.spare = zygote.fork(self.order(ranks))
        process.apart = self.spare.apart = True
        return process

    def drop_spare(self) -> None:
        """Make no use of the one that is ready."""
        if self.spare is not None:
            self.spare.abandon()
            self.spare = None

    def order(self, ranks: bool, cpu_s: float | None = None) -> dict[str, Any]:
        limits = asdict(self.limits) | ({} if cpu_s is None else {"cpu_s": cpu_s})
        uid = FIRST_UID + secrets.randbelow(UIDS) if self.own_user else None
        return {"limits": limits, "ranks": ranks, "uid": uid, "layers": self.layers}

    def submission(self, *, ranks: bool = False) -> "Submission":
        """A channel to the code of one submission; its process starts with the first request.

        ranks: may it start processes, and use the network of its own sandbox (its loopback)?
        """
        return Submission(self, ranks)


class Submission:
    """The channel to one submission. What is defined there lasts until the process is lost."""

    def __init__(self, sandbox: Sandbox, ranks: bool) -> None:
        self.sandbox = sandbox
        self.ranks = ranks
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.process: Process | None = None
        self.closed = False

    def __enter__(self) -> "Submission":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the submission's processes, whatever they do. It answers no more.

        With namespaces of its own it can disturb nobody as it ends: nobody waits for that.
        """
        self.closed = True
        if self.process is not None and self.process.apart:
            self.process.abandon()
            self.process = None
        self.end()

    def end(self) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.end()
            self.cpu_s += process.cpu_s

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The reply to a request within `limit_s` seconds of wall time.

        Raises ChannelLost; then the process is gone, and the next request meets a new one, in which
        nothing is defined. Once the submission has used up what it may use in all, every request
        ends so. Raises Broken if the sandbox itself fails.
        """
        if self.closed:
            raise ValueError("this submission is closed")
        from course_utils.grading.crossing import dumps

        self.within_budget()
        data = dumps(request)
        process = self.process or self.begin()
        limits, began = self.sandbox.limits, monotonic()
        deadline = began + min(limit_s, limits.wall_s - self.wall_s)
        try:
            token = frames.send(process.channel, data, deadline, process)
            reply = frames.receive(process.channel, token, deadline, limits.reply, process)
            return frames.parsed(reply, limits.reply)
        except frames.TooLate:
            raise self.lost(f"gave no answer in {deadline - began:.3g} s", "timeout") from None
        except frames.Flood as error:
            raise self.lost(str(error), "flood") from None
        except frames.Garbage as error:
            raise self.lost(str(error), "garbage") from None
        except frames.Ended:
            process.wait(LAST_WORDS_S)
            raise self.lost(*ending(process, limits)) from None
        except BaseException:
            self.end()
            raise
        finally:
            self.wall_s += monotonic() - began

    def within_budget(self) -> None:
        limits = self.sandbox.limits
        for used, most, what in (
            (self.wall_s, limits.wall_s, "seconds"),
            (self.cpu_s, limits.cpu_s, "seconds of CPU time"),
        ):
            if used >= most:
                self.end()
                raise ChannelLost(f"had used up the {most:g} {what} of a submission", "timeout")

    def begin(self) -> Process:
        left = self.sandbox.limits.cpu_s - self.cpu_s if self.cpu_s else None
        self.process = self.sandbox.fork(self.ranks, left)
        return self.process

    def lost(self, reason: str, how: str) -> ChannelLost:
        """What is said of a loss. Raises Broken where the code of the submission has no part in it."""
        process = self.process
        self.end()
        if process and process.unable:
            raise Broken(f"no process can be started for a submission: {process.unable}")
        if process and process.status is None and not process.home.alive:
            raise Broken("the process that forks has ended")
        return ChannelLost(reason, how)


def ending(process: Process, limits: Limits) -> tuple[str, str]:
    """How a process ended, in words that follow "your code", and the kind of loss that it is."""
    status = process.status
    if process.why:
        return process.why, "died"
    if status is None:
        return "ended the process that ran it", "died"
    if process.cpu_s >= limits.cpu_s:
        return f"used up the {limits.cpu_s:g} s of CPU time of a submission", "timeout"
    if status < 0:
        with suppress(ValueError):
            return f"ended the process that ran it ({signal.Signals(-status).name})", "died"
    return f"ended the process that ran it (exit status {status})", "died"


__all__ = ["Broken", "Limits", "Sandbox", "Submission", "Zygote"]
