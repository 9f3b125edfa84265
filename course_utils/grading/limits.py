"""A time limit for student code that Python can keep: an endless loop is stopped, not waited for."""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TimeLimit(BaseException):
    """The code ran out of time. Not an Exception, so that `except Exception` cannot swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimit inside the block after `seconds` of wall time.

    In the main thread of Linux and macOS a timer signal does it, and comes again if the block
    swallowed it; elsewhere (Windows, other threads) a second thread raises it between two
    bytecodes. A single call into torch that never returns can be stopped by neither.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and hasattr(signal, "setitimer"):
        yield from by_signal(seconds)
    else:
        yield from by_thread(seconds)


def by_signal(seconds: float) -> Iterator[None]:
    def ring(signum: int, frame: object) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def by_thread(seconds: float) -> Iterator[None]:
    target = threading.get_ident()
    done = threading.Event()
    lock = threading.Lock()

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            with lock:
                if not done.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(target), ctypes.py_object(TimeLimit)
                    )
            wait = 0.2

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            done.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(target), None)
