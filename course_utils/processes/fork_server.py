"""A process that has loaded much and does nothing but fork: what all of its kind share.

Whoever started it talks to it over a socket, one packet a message, a JSON object with file descriptors.
When that process is gone, even killed, the socket ends; so does this one, and all that it forked.
It has one thread and never computes, so forking it is safe: a process that has used OpenMP could not
be forked.
"""

import json
import os
import select
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_LARGEST_PACKET = 1 << 16
_CHECK_PARENT_S = 1.0


class ForkServer:
    """Obeys messages until nobody is there to send them. A kind of it says what it obeys, and how.

    control: the socket. parent: the process that started this one. most_fds: that one message brings.
    children: by process, whatever is known of it; what is left of them at the end is killed.
    """

    def __init__(self, control: socket.socket, parent: int, most_fds: int) -> None:
        self.control, self.parent, self.most_fds = control, parent, most_fds
        self.children: dict[int, Any] = {}
        self.woken, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.woken, False)

    def obey(self, message: dict[str, Any], fds: list[int]) -> None:
        """Do what a message asks for. Its file descriptors are this method's to close."""
        raise NotImplementedError

    def ended(self, pid: int, code: int, used: Any) -> None:
        """A child is over. code: as of `os.waitstatus_to_exitcode`. used: its resources."""
        raise NotImplementedError

    def patience_s(self) -> float:
        """How long to sleep when nothing happens."""
        return _CHECK_PARENT_S

    def look(self) -> None:
        """Called after each message, each end of a child, and each `patience_s`."""

    def serve(self) -> None:
        """Until the other process is gone."""
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while os.getppid() == self.parent:
                watched = [self.control.fileno(), self.woken]
                ready, _, _ = select.select(watched, [], [], self.patience_s())
                if self.woken in ready:
                    os.read(self.woken, 1024)
                if self.control.fileno() in ready:
                    data, fds, _, _ = socket.recv_fds(self.control, _LARGEST_PACKET, self.most_fds)
                    if not data:
                        return
                    self.obey(json.loads(data), fds)
                self.reap()
                self.look()
        except (ConnectionError, BrokenPipeError):
            return
        finally:
            for pid in self.children:
                kill(pid)

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message to whoever started this process."""
        self.control.sendall(json.dumps(message).encode())

    def reap(self) -> None:
        """Take note of every process that has ended, orphans too."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.ended(pid, os.waitstatus_to_exitcode(status), used)

    def leave(self) -> None:
        """In a child: be no server any more."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def kill(pid: int) -> None:
    """End a process that may be gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def close_all(fds: Iterable[int]) -> None:
    """Close file descriptors."""
    for fd in fds:
        os.close(fd)
