"""Frames: a token of 8 bytes, a length in 8 bytes, and a tree of arrays and JSON.

The token is drawn anew for each request and its reply repeats it, so a frame that was written ahead
of time is no reply. On the grader's side nothing waits for ever, nothing is larger than agreed, and
what comes is only ever parsed as data. The module loads no torch: the grader starts the sandbox first
and loads its own beside it.
"""

import os
import select
import socket
import struct
from time import monotonic
from typing import Any, Protocol

_HEAD = struct.Struct("<8sQ")
_AT_ONCE = 1 << 20


class Garbage(Exception):
    """What came is no reply."""


class Flood(Exception):
    """More bytes than may come."""


class TooLate(Exception):
    """The time is up."""


class Ended(Exception):
    """The other side is gone."""


class Life(Protocol):
    """Whether the process on the other side lives: news of it make `fileno()`, if any, readable."""

    def fileno(self) -> int | None: ...

    def gone(self) -> bool: ...


def _wait(sock: socket.socket, event: int, deadline: float, life: Life) -> None:
    """Until the socket can be read or written."""
    poll = select.poll()
    poll.register(sock, event)
    news = life.fileno()
    if news is not None:
        poll.register(news, select.POLLIN)
    while True:
        left = deadline - monotonic()
        if left <= 0:
            raise TooLate
        ready = {fd for fd, _ in poll.poll(left * 1000)}
        if sock.fileno() in ready:
            return
        if news in ready and life.gone():
            poll.unregister(news)
            if poll.poll(0):
                return  # it has said something before it went
            raise Ended


def send(sock: socket.socket, data: bytes, deadline: float, life: Life) -> bytes:
    """Write one frame to a non-blocking socket; its token."""
    token = os.urandom(8)
    left = memoryview(_HEAD.pack(token, len(data)) + data)
    while left:
        try:
            left = left[sock.send(left) :]
        except BlockingIOError:
            _wait(sock, select.POLLOUT, deadline, life)
        except OSError as error:
            raise Ended from error
    return token


def receive(
    sock: socket.socket,
    token: bytes,
    deadline: float,
    largest: int,
    life: Life,
) -> bytes:
    """The reply to the frame with this token."""

    def exactly(size: int) -> bytearray:
        found = bytearray()
        while len(found) < size:
            if monotonic() > deadline:
                raise TooLate
            try:
                part = sock.recv(min(size - len(found), _AT_ONCE))
            except BlockingIOError:
                _wait(sock, select.POLLIN, deadline, life)
                continue
            except OSError as error:
                raise Ended from error
            if not part:
                raise Ended if not found else Garbage("sent a torn frame")
            found += part
        return found

    got, size = _HEAD.unpack(exactly(_HEAD.size))
    if got != token:
        raise Garbage("sent a frame that answers no request")
    if size > largest:
        raise Flood(f"sent {size} bytes; {largest} may come")
    try:
        return bytes(exactly(size))
    except Ended as error:
        raise Garbage("sent a torn frame") from error


def parsed(data: bytes, largest: int) -> dict[str, Any]:
    """The tree in a reply. Raises Garbage for whatever is none, Flood for one that is too much."""
    from course_utils.grading.pytrees.strict import loads
    from course_utils.grading.pytrees.tree import tensors

    try:
        tree = loads(data)
    except ValueError as error:
        raise Garbage(f"sent what cannot be read: {error}") from error
    total = sum(x.numel() * x.element_size() for x in tensors(tree) if not x.is_meta)
    if total > largest:  # an array of 10 bytes may claim a trillion elements, by strides of 0
        raise Flood(f"sent arrays of {total} bytes; {largest} may come")
    if not isinstance(tree, dict):
        raise Garbage("sent what is no reply")
    return tree


# The submission's side, which may block.


def read_request(fd: int) -> tuple[bytes, dict[str, Any]] | None:
    """The next request and its token; None at the end."""
    from course_utils.grading.pytrees.strict import loads

    head = _read_exactly(fd, _HEAD.size)
    if head is None:
        return None
    token, size = _HEAD.unpack(head)
    data = _read_exactly(fd, size)
    return None if data is None else (token, loads(data))


def _read_exactly(fd: int, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = os.read(fd, min(size - len(found), _AT_ONCE))
        if not part:
            return None
        found += part
    return bytes(found)


def write_reply(fd: int, token: bytes, tree: dict[str, Any]) -> None:
    """Write a tree as one frame that opens with the token of the request it answers."""
    from course_utils.grading.pytrees.serialization import dumps

    data = dumps(tree)
    left = memoryview(_HEAD.pack(token, len(data)) + data)
    while left:
        left = left[os.write(fd, left) :]
