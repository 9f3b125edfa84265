"""Which of some calls never comes back from C, where no time limit can stop it.

A loop inside a C function (`sum(range(10**12))`) holds Python's lock for as long as it runs: neither a
signal's handler nor another thread gets its turn. So the calls are tried in a fork of this process, which
can be killed.
"""

import faulthandler
import os
import re
import select
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import IO, NamedTuple

import psutil

_LOOK_S = 0.02
_PATIENCE = 10
"""A call that waits rather than computes is given up after so many times the limit: it proves nothing."""
_TO_SAY_S = 2.0
_MOST_BYTES = 4 << 30
"""What one call may add to the memory: a list without end fills it sooner than the time runs out."""


class Stuck(NamedTuple):
    """number: of the call. frames: (file, line number, function), outermost first."""

    number: int
    frames: tuple[tuple[str, int, str], ...]


def can_fork() -> bool:
    """Can calls be tried on this system?"""
    return hasattr(os, "fork") and hasattr(faulthandler, "register")


def first_stuck(calls: Sequence[Callable[[], object]], seconds: float) -> Stuck | None:
    """The first of these calls that computes for `seconds` and does not come back; None if all do.

    A call that returns True is the last one made. The time is the processor's, so that a busy machine
    makes nothing look stuck. Calls may do anything: the fork in which they are made keeps it to itself,
    files and processes aside.
    """
    reading, writing = os.pipe()
    with tempfile.TemporaryFile("w+") as stack:
        pid = os.fork()
        if not pid:
            _make(calls, writing, stack)
        os.close(writing)
        try:
            number = _watch(pid, reading, seconds)
            return None if number is None else Stuck(number, _frames(pid, stack))
        finally:
            os.close(reading)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _make(calls: Sequence[Callable[[], object]], writing: int, stack: IO[str]) -> None:
    """In the fork: make the calls, a byte for each that came back."""
    try:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        for call in calls:
            last: object = False
            with suppress(BaseException):
                last = call()
            os.write(writing, b".")
            if last is True:
                break
    finally:
        os._exit(0)


def _watch(pid: int, reading: int, seconds: float) -> int | None:
    """The number of the call in which the fork stays, or None."""
    fork = psutil.Process(pid)
    done, used, size, since = 0, 0.0, _size(fork), monotonic()
    while True:
        ready, _, _ = select.select([reading], [], [], _LOOK_S)
        if ready:
            came = os.read(reading, 1 << 16)
            if not came:
                return None
            done, used, size, since = done + len(came), _used(fork), _size(fork), monotonic()
        elif _used(fork) - used > seconds or _size(fork) - size > _MOST_BYTES:
            return done
        elif monotonic() - since > _PATIENCE * seconds:
            return None


def _used(process: psutil.Process) -> float:
    try:
        return float(process.cpu_times().user)
    except psutil.Error:
        return 0.0


def _size(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _frames(pid: int, stack: IO[str]) -> tuple[tuple[str, int, str], ...]:
    """Where the fork stands: faulthandler tells it from a signal, and needs no lock."""
    os.kill(pid, signal.SIGUSR1)
    end, text = monotonic() + _TO_SAY_S, ""
    while not text and monotonic() < end:
        select.select([], [], [], _LOOK_S)
        stack.seek(0)
        text = stack.read()
    found = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', text)
    return tuple((file, int(number), name) for file, number, name in reversed(found))
