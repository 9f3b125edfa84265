"""One question to some ranks, until each has answered or cannot any more."""

import linecache
import pickle
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic, sleep

from . import launch
from .frames import is_callers, line_of
from .report import DIED, SLOW, STUCK, Failure, Line, Reply, State, tidy
from .wire import loads

START_S = 120.0
"""For torch to load on a slow machine. The ranks' own timeout is for what they run."""
_FIRST_ASK_S = 0.1
_ASK_S = 0.15
_ANSWER_S = 0.25
_QUIET_S = 0.3
"""How long all ranks that are left must have been quiet (see `watch`) to be called stuck, and then be
found quiet once more. Half of it, and once, was enough on two cores with eighteen other busy processes
and ranks at the lowest priority."""
_AGAIN_S = 0.1
_OTHERS = "for other ranks"
STOP_S = 10.0
"""How long a rank that was told to stop may take; the stop button, pressed again, ends that."""

Look = Callable[[Mapping[int, Reply]], None]
"""Given what the ranks have shown so far, by rank, again and again."""


@dataclass
class Worker:
    """The kernel's ends of the pipes to one rank, and its process."""

    rank: int
    conn: Connection
    control: Connection
    child: launch.Child
    log: Path
    asked: bool = False
    read: int = 0

    def kill(self) -> None:
        self.child.kill()

    def close(self) -> None:
        self.conn.close()
        self.control.close()


class Conversation:
    """One question to some ranks, until each has answered or cannot any more."""

    def __init__(
        self,
        workers: list[Worker],
        number: int,
        timeout: float,
        watch: bool,
        look: Look | None = None,
    ) -> None:
        self.number = number
        self.look = look
        self.presses = 0
        self.timeout = timeout
        self.watch = watch
        self.workers = workers
        self.open = {worker.conn: worker for worker in workers}
        self.replies = {worker.rank: Reply(worker.rank) for worker in workers}

    def hold(self, verb: str, data: dict[int, bytes]) -> list[Reply]:
        """Send each rank its data and hear them all. The replies by rank; an error is in its reply.

        verb: the name of what the rank shall do. data: by rank, pickled. A stop button that was
        pressed raises KeyboardInterrupt between two messages, never inside one.
        """
        with self.presses_counted():
            return self.held(verb, data)

    def held(self, verb: str, data: dict[int, bytes]) -> list[Reply]:
        start = monotonic()
        for worker in self.workers:
            worker.read = _size_of(worker.log)
            try:
                worker.conn.send_bytes(pickle.dumps((self.number, verb, data[worker.rank])))
            except OSError:
                self.died(worker)
        # Without watching, the group's own timeout comes first: the error is the library's.
        end = start + self.timeout + (0 if self.watch else 5)
        ask = start + _FIRST_ASK_S
        while self.open:
            now = monotonic()
            if now >= end:
                self.give_up(SLOW)
                break
            self.hear_all(max(min(ask, end) - now, 0.0))
            if self.presses:
                raise KeyboardInterrupt
            if self.open and monotonic() >= ask:
                if self.watch and self.all_quiet():
                    self.give_up(STUCK)
                    break
                ask = monotonic() + _ASK_S
        return [self.replies[rank] for rank in sorted(self.replies)]

    @contextmanager
    def presses_counted(self) -> Iterator[None]:
        """Within the block the stop button is counted: it must not tear a message in two."""
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def count(*_: object) -> None:
            self.presses += 1

        signal.signal(signal.SIGINT, count)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def hear_all(self, patience: float) -> None:
        """Take in what comes, once something does."""
        for conn in wait(list(self.open), patience):
            self.hear(self.open[conn])  # type: ignore[index]
        if self.look is not None:
            self.look(self.replies)

    def hear(self, worker: Worker) -> None:
        """Take in one message: something to show, or that the rank is done."""
        try:
            number, kind, item = pickle.loads(worker.conn.recv_bytes())
        except (EOFError, OSError):
            self.died(worker)
            return
        reply = self.replies[worker.rank]
        if kind != "done":
            reply.items.append((kind, item))
            return
        if number != self.number:  # the answer to an earlier question, which was given up
            return
        del self.open[worker.conn]
        reply.seconds, packed, reply.error = item
        if reply.error:
            lines = tuple(_with_source(line) for line in reply.error.lines)
            reply.error = replace(reply.error, lines=lines)
        try:
            reply.value = loads(packed)
        except Exception as error:
            said = f"the result cannot be read here: {type(error).__name__}: {error}"
            reply.error = reply.error or Failure("raised", said, (type(error).__name__,))

    def died(self, worker: Worker) -> None:
        """Nothing more comes from this rank: its exit code and last words are the error."""
        code = worker.child.exit_code(2.0)
        self.open.pop(worker.conn, None)
        said, lines = _last_words(worker.log, worker.read)
        message = "\n    ".join(["died: " + _how_it_ended(code), *said])
        self.replies[worker.rank].error = Failure(DIED, message, lines=lines)

    def states(self, patience: float) -> dict[int, State]:
        """Where the ranks that are left stand, as far as they say so in time."""
        found = {}
        for worker in self.open.values():
            if not worker.asked:
                try:
                    worker.control.send_bytes(b"?")
                except OSError:
                    continue
                worker.asked = True
        end = monotonic() + patience
        for worker in self.open.values():
            try:
                if not worker.asked or not worker.control.poll(max(end - monotonic(), 0)):
                    continue
                number, state = pickle.loads(worker.control.recv_bytes())
            except (EOFError, OSError):
                continue
            worker.asked = False
            if number == self.number:
                found[worker.rank] = state._replace(lines=tuple(map(_with_source, state.lines)))
        return found

    def all_quiet(self) -> bool:
        """Is every rank that is left quiet, and still so a moment later?

        One that the machine did not let run in between has not become quieter (see `watch`): what
        it would do next, nobody knows.
        """
        found = self.states(_ANSWER_S)
        if len(found) < len(self.open) or any(s.quiet_s < _QUIET_S for s in found.values()):
            return False
        sleep(_AGAIN_S)
        again = self.states(_ANSWER_S)
        return all(rank in again and again[rank].quiet_s > found[rank].quiet_s for rank in found)

    def give_up(self, how: str) -> None:
        """Nobody who is still at it will come to an end in time."""
        self.states(0.1)  # an answer to an earlier question may have been late
        found = self.states(0.5)
        for worker in self.open.values():
            state = found.get(worker.rank, State())
            if worker.rank not in found:
                message = f"still running after {self.timeout:g} s, and does not say where"
            elif how == STUCK:
                where = state.inside or "for other ranks, which do not come"
                message = f"stuck: waits {where}"
            elif state.waits:
                message = f"still waiting {state.inside or _OTHERS} after {self.timeout:g} s"
            else:
                message = f"still running after {self.timeout:g} s"
            self.replies[worker.rank].error = Failure(
                how, message, lines=state.lines, waits=state.waits
            )
        self.open = {}

    def where_they_stand(self) -> list[Reply]:
        """After an interruption, for whoever reports it."""
        found = self.states(0.3)
        replies = dict(self.replies)
        for worker in self.open.values():
            state = found.get(worker.rank, State())
            message = f"was waiting {state.inside or _OTHERS}" if state.waits else "was running"
            error = Failure(SLOW, message, lines=state.lines, waits=state.waits)
            replies[worker.rank] = replace(self.replies[worker.rank], error=error)
        return [replies[rank] for rank in sorted(replies)]

    def stop(self) -> list[int]:
        """Raise KeyboardInterrupt in the ranks that are left: those in which it does not arrive.

        Python sees it between two bytecodes and in a sleep, not inside C++; who waits there for a
        message is freed by hanging up.
        """
        self.presses = 0
        for worker in self.open.values():
            with suppress(OSError):
                worker.control.send_bytes(b"!")
        end = monotonic() + STOP_S
        with self.presses_counted():
            while self.open and monotonic() < end and not self.presses:
                self.hear_all(_ASK_S)
        return [worker.rank for worker in self.open.values()]


def _with_source(line: Line) -> Line:
    """A function that was sent here from a notebook has its source only in the notebook's kernel."""
    if line.source:
        return line
    return line._replace(source=linecache.getline(line.filename, line.number).strip())


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "its pipe is closed"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _size_of(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _last_words(log: Path, start: int, most: int = 6) -> tuple[list[str], tuple[Line, ...]]:
    """What C++ wrote on a rank's own stderr since `start`, and the caller's lines where it crashed.

    Where: faulthandler's stack, which a rank writes when a signal other than SIGKILL ends it.
    """
    try:
        with log.open("rb") as file:
            file.seek(start)
            text = file.read().decode(errors="replace")
    except OSError:
        return [], ()
    said, _, crash = text.partition("Fatal Python error")
    said = re.sub(r"\[rank\d+\]:|\[[EWI]\d{4} [\d:.]+ |\S+\.(cpp|cc|h):\d+\]? ?", "", said)
    lines: list[Line] = []
    _, _, current = crash.partition("Current thread")
    for found in re.finditer(r'File "([^"]+)", line (\d+) in (\S+)', current.partition("\n\n")[0]):
        filename, number, where = found[1], int(found[2]), found[3]
        if is_callers(filename):
            lines.insert(0, line_of(filename, number, where))
    return [line for line in tidy(said).splitlines() if line.strip()][-most:], tuple(lines)
