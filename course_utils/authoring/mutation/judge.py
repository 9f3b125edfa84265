"""Judging mutants, each in a process of its own that can be killed."""

import contextlib
import ctypes
import faulthandler
import json
import os
import selectors
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from course_utils.processes import pages as forking

from .outcomes import TIME_LIMIT, Job, Outcome

_GIB = 2**30
_MOST_BYTES_READ = 2**20

Judge = Callable[[Job], dict[str, Any]]
"""Returns `{"killed": bool, "rung": str}` of a job, and may add "detail"."""


def run(
    jobs: Sequence[Job],
    judge: Judge,
    limit_s: float,
    workers: int = 2,
    *,
    clock_s: float | None = None,
    memory_bytes: int = 4 * _GIB,
) -> list[Outcome]:
    """Judge all jobs, each in a forked process of its own; outcomes in the order of the jobs.

    judge: called in the child. An exception out of it is an "error", except one that the mutant may
        well have caused (`MemoryError`, `RecursionError`, `SystemExit`): that kills it.
    limit_s: processor seconds, so that a busy machine kills nobody.
    clock_s: seconds by the clock, for one that waits; by default ten times `limit_s`.
    memory_bytes: how much a child may allocate beyond what it starts with (Linux).

    A process of its own means that no mutant is judged by what another left behind.
    """
    if not hasattr(os, "fork"):
        raise RuntimeError("mutants are judged in forked processes: this system has none")
    clock_s = 10 * limit_s if clock_s is None else clock_s
    outcomes: dict[int, Outcome] = {}
    waiting = list(reversed(range(len(jobs))))
    running: dict[int, _Child] = {}
    forking.settle()
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < max(1, workers):
                    index = waiting.pop()
                    child = _Child(jobs[index], judge, limit_s, clock_s, memory_bytes)
                    running[index] = child
                    selector.register(child.pipe, selectors.EVENT_READ, index)
                for key, _ in selector.select(timeout=0.05):
                    running[key.data].read()
                for index, child in list(running.items()):
                    if child.finished():
                        selector.unregister(child.pipe)
                        del running[index]
                        outcomes[index] = child.outcome()
        finally:
            for child in running.values():
                child.kill()
    return [outcomes[index] for index in range(len(jobs))]


def judged_here(job: Job, judge: Judge) -> Outcome:
    """Judge a job in this process, without limits: for a judge whose mutants run elsewhere anyway
    (on ranks, which each fork would have to start for itself)."""
    start = time.monotonic()
    outcome = _judged(job.id, _answer(job, judge))
    return replace(outcome, seconds=round(time.monotonic() - start, 3))


class _Child:
    """A forked process that judges one job and answers through a pipe."""

    def __init__(self, job: Job, judge: Judge, limit_s: float, clock_s: float, memory: int):
        self.job = job
        self.processor_s = 0.0
        self.started = time.monotonic()
        self.deadline = self.started + clock_s
        self.answer = b""
        self.eof = self.late = False
        self.pipe, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # A forked child of a process with threads: it uses none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _live(job, judge, limit_s, memory, write)
        os.close(write)

    def read(self) -> None:
        data = os.read(self.pipe, 65536)
        self.eof = not data
        if len(self.answer) < _MOST_BYTES_READ:
            self.answer += data

    def finished(self) -> bool:
        self.late = time.monotonic() > self.deadline
        return self.eof or self.late or self.answer.endswith(b"\n")

    def kill(self) -> int:
        """End the process and what it started, and return its status."""
        status = None
        if self.eof and not self.answer:  # it ended by itself: how?
            status = self._status_within(1.0)
        for kill, target in ((os.killpg, self.pid), (os.kill, self.pid)):
            if kill is os.killpg or status is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(target, signal.SIGKILL)
        if status is None:
            status = self._status(0)
        assert status is not None
        os.close(self.pipe)
        return status

    def _status_within(self, seconds: float) -> int | None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            status = self._status(os.WNOHANG)
            if status is not None:
                return status
            time.sleep(0.002)
        return None

    def _status(self, options: int) -> int | None:
        pid, status, used = os.wait4(self.pid, options)
        if not pid:
            return None
        self.processor_s = used.ru_utime + used.ru_stime
        return status

    def outcome(self) -> Outcome:
        verdict = self._verdict(self.kill())
        seconds = round(time.monotonic() - self.started, 3)
        return replace(verdict, seconds=seconds, processor_s=round(self.processor_s, 3))

    def _verdict(self, status: int) -> Outcome:
        id = self.job.id
        if self.answer.endswith(b"\n"):
            try:
                return _judged(id, json.loads(self.answer))
            except (ValueError, KeyError):  # the mutant wrote into the pipe
                return Outcome(id, "killed", "crash", "broke off its answer")
        if self.late:
            return Outcome(id, "killed", TIME_LIMIT, "by the clock")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number in (signal.SIGPROF, signal.SIGXCPU):
                return Outcome(id, "killed", TIME_LIMIT)
            if number == signal.SIGKILL:
                return Outcome(id, "error", detail="the process was killed from outside")
            return Outcome(id, "killed", "crash", signal.Signals(number).name)
        return Outcome(id, "killed", "crash", f"left with code {os.waitstatus_to_exitcode(status)}")


def _judged(id: str, answer: dict[str, Any]) -> Outcome:
    if "error" in answer:
        return Outcome(id, "error", detail=answer["error"])
    if not answer["killed"]:
        return Outcome(id, "survived", detail=answer.get("detail", ""))
    return Outcome(id, "killed", answer.get("rung", ""), answer.get("detail", ""))


def _live(job: Job, judge: Judge, limit_s: float, memory: int, write: int) -> None:
    """The life of the child; it does not return."""
    try:
        _confine(limit_s, memory)
        answer = _answer(job, judge)
    except BaseException as error:
        answer = {"killed": True, "rung": "crash", "detail": type(error).__name__}
    try:
        data = json.dumps(answer, default=str).encode() + b"\n"
        while data:
            data = data[os.write(write, data) :]
    finally:
        os._exit(0)


def _answer(job: Job, judge: Judge) -> dict[str, Any]:
    """What the judge says, and what an exception out of it means."""
    try:
        answer = dict(judge(job))
        return {"killed": bool(answer["killed"])} | answer
    except (MemoryError, RecursionError) as error:
        return {"killed": True, "rung": "crash", "detail": type(error).__name__}
    except Exception:
        return {"error": traceback.format_exc()}


def _confine(limit_s: float, memory: int) -> None:
    """Bound what the child can do to the machine, and cut it off from the terminal."""
    import resource

    os.setpgid(0, 0)  # an interrupt from the keyboard is the parent's to handle
    for name in ("SIGINT", "SIGTERM", "SIGPROF", "SIGALRM"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    faulthandler.disable()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    sys.stdout = sys.stderr = os.fdopen(null, "w", encoding="utf-8")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the parent
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
