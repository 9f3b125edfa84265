"""A thread in each rank that can say where the main thread stands, and since when nothing moves.

A rank is *quiet* while its main thread stays in one and the same communication call, the process
uses (next to) no CPU time, and no other thread of the user's runs. If all ranks that have not
finished are quiet at once, no message is on its way, and none will ever come: a deadlock.

A process that a busy machine does not let run is quiet too, by these signs. So a moment only counts
if this thread, which asks for as little as the ones that carry gloo's messages, was itself woken on
time: where it gets to run, they would have as well.
"""

import _thread
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from course_utils.ranks.frames import lines_of_stack, meets, stack, waits_for_others
from course_utils.ranks.report import State

from .operations import operation_of

_EVERY_S = 0.05
_LATE_S = 0.03
_IDLE_SHARE = 0.04
"""CPU time per second below which a process does nothing: the watching costs it a part of this."""

_DOUBTFUL = 0.2
"""How much a second of quiet counts where no operation is known that waits, and where ranks meet: who
comes before the store is there sleeps for up to 0.75 s before it tries again (torch 2.13)."""

_THREADS = "/proc/self/task"
_OWN_THREADS = ("ranks-watch", "ranks-leave")


class Watch:
    """A thread that sees when the rank's main thread stands still.

    control: where it tells the kernel. hang_up: frees a main thread that waits for a message.
    """

    def __init__(self, control: Connection, hang_up: Callable[[], None]) -> None:
        self.control = control
        self.hang_up = hang_up
        self.main = threading.main_thread().ident or 0
        self.number: int | None = None
        self.stopping: int | None = None
        self.busy = threading.Event()
        self.quiet_s = 0.0
        self.mark: Any = None

    def begin(self, number: int) -> None:
        """The rank's main thread starts to run something. number: what the kernel calls it."""
        self.quiet_s, self.mark = 0.0, None
        self.number = number
        self.busy.set()

    def end(self) -> None:
        """The rank's main thread is done with it."""
        self.busy.clear()
        self.number = None

    def stop(self) -> None:
        """Raise KeyboardInterrupt in the main thread, in what it runs."""
        self.stopping = self.number
        if not self.busy.is_set():
            return
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self.main, signal.SIGINT)  # ends a sleep, too
        else:
            _thread.interrupt_main()

    def serve(self) -> None:
        """Answer the kernel; between its questions, look while something runs."""
        with suppress(EOFError, OSError):
            while True:
                if self.control.poll(0.0 if self.busy.is_set() else None):
                    if self.control.recv_bytes() == b"!":
                        self.stop()
                    else:
                        self.control.send_bytes(pickle.dumps(self.state()))
                if self.busy.is_set():
                    self.look()

    def look(self) -> None:
        """One sample: `_EVERY_S` of quiet more, or none at all."""
        before, cpu = time.monotonic(), time.process_time()
        time.sleep(_EVERY_S)
        slept, used = time.monotonic() - before, time.process_time() - cpu
        frames = stack(self.main)
        mark = [(id(frame), frame.f_lasti) for frame in frames] or None
        unmoved = mark is not None and mark == self.mark
        still = unmoved and used < _IDLE_SHARE * slept
        self.mark = mark
        if unmoved and self.stopping == self.number and waits_for_others(frames):
            self.hang_up()
        if still and slept > _EVERY_S + _LATE_S:
            return  # the machine is busy: this moment says nothing
        if still and waits_for_others(frames) and self.alone() and not _runs():
            sure = operation_of(frames) and not meets(frames)
            self.quiet_s += slept * (1.0 if sure else _DOUBTFUL)
        else:
            self.quiet_s = 0.0

    def alone(self) -> bool:
        """Does no other thread of Python do anything (which might yet send what is waited for)?"""
        known = {t.ident for t in threading.enumerate() if t.name in _OWN_THREADS} | {self.main}
        for thread, frame in sys._current_frames().items():
            waits_for_work = frame.f_code.co_filename.endswith("concurrent/futures/thread.py")
            if thread not in known and not waits_for_work:
                return False
        return True

    def state(self) -> tuple[int | None, State]:
        """What runs (its number), and where it stands."""
        frames = stack(self.main)
        waits = waits_for_others(frames)
        inside = operation_of(frames) if waits else ""
        return self.number, State(self.quiet_s, waits, inside, lines_of_stack(frames))


def _runs() -> bool:
    """Does any thread but this one run, or wait for the disk? (Linux; elsewhere CPU time has to tell.)

    gloo's own are among them: one that waits for a page of a library's code uses no CPU time, and the
    message that it would have carried is on its way all the same.
    """
    mine = str(threading.get_native_id())
    try:
        return any(
            _state(thread) in ("R", "D") for thread in os.listdir(_THREADS) if thread != mine
        )
    except OSError:
        return False


def _state(thread: str) -> str:
    """A letter: R runs, D waits for the disk, S sleeps. "" once the thread has ended."""
    try:
        with open(f"{_THREADS}/{thread}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
