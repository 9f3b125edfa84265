"""A time limit for student code that Python can keep: an endless loop is stopped, not waited for."""

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from types import FrameType

_TO_IMPORT_S = 30.0  # for a library that the code loads: the first use of torch.func takes seconds
_PATIENCE = 3  # rings that may be swallowed before they come in quick succession
_SCHEDSTAT = "/proc/thread-self/schedstat"
_SPARED = {contextlib.__file__, __file__}


def spare(file: str) -> None:
    """Never raise TimeLimit between two lines of this file, which stands around what is limited.

    Call it with `__file__`: what catches an exception must not be interrupted as it does so.
    """
    _SPARED.add(file)


class TimeLimit(BaseException):
    """The code ran out of time. Not an Exception, so that `except Exception` cannot swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimit inside the block after `seconds`, those aside in which the machine ran others.

    (Linux says how long a thread has waited for a processor. Elsewhere it is wall time.)
    In the main thread of Linux and macOS a timer signal does it, and comes again if the block
    swallowed it: at last so fast that one arrives in the very `except:` that swallows them.
    Elsewhere (Windows, other threads) a second thread raises it between two bytecodes. A single
    call into C that never returns can be stopped by neither: see `stuck`.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and hasattr(signal, "setitimer"):
        yield from _by_signal(seconds)
    else:
        yield from _by_thread(seconds)


ALLOWED: ContextVar[float] = ContextVar(
    "seconds for a probe that keeps to a limit itself", default=5.0
)


@contextmanager
def allowance(seconds: float) -> Iterator[None]:
    """For code that runs elsewhere, behind a probe that keeps to the limit itself (`ALLOWED`)."""
    token = ALLOWED.set(seconds)
    try:
        yield
    finally:
        ALLOWED.reset(token)


def _by_signal(seconds: float) -> Iterator[None]:
    inside, rings, start, delayed = True, 0, monotonic(), _delay()

    def ring(signum: int, frame: FrameType | None) -> None:
        nonlocal rings
        if not inside or (frame and frame.f_code.co_filename in _SPARED):
            return
        used = monotonic() - start - (_delay() - delayed)
        if used < seconds:
            return  # the rest of the time went to others
        if used < seconds + _TO_IMPORT_S and _importing(frame):
            return  # a module that is half loaded spoils all that comes after
        rings += 1
        if rings > _PATIENCE:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + rings % 7), 0.2)
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, ring)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
        if remaining:  # somebody's timer was running: a test's own limit, an outer block
            left = max(remaining - (monotonic() - start), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


def _delay() -> float:
    """For how many seconds this thread has waited for a processor, so far; 0 where nobody counts them."""
    try:
        with open(_SCHEDSTAT, "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _importing(frame: FrameType | None) -> bool:
    """Is a module of a library being loaded here?"""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "exec_module" and code.co_filename.startswith("<frozen importlib"):
            return "site-packages" in str(getattr(frame.f_locals.get("module"), "__file__", ""))
        frame = frame.f_back
    return False


def _by_thread(seconds: float) -> Iterator[None]:
    target = threading.get_ident()
    done = threading.Event()
    lock = threading.Lock()

    def watch() -> None:
        wait, rings = seconds, 0
        while not done.wait(wait):
            rings += 1
            with lock:
                if not done.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(target), ctypes.py_object(TimeLimit)
                    )
            wait = 0.2 if rings < _PATIENCE else 1e-3

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            done.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(target), None)
