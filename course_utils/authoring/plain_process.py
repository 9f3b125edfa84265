"""An answer in a plain process, for proofs: the student's side served over standard input and output.

A frame is its length in eight bytes, little-endian, then the tree's bytes.
"""

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from time import monotonic
from typing import IO, Any

from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.strict import loads
from course_utils.grading.student.channel import ChannelLost
from course_utils.grading.student.protocol import LARGEST_FRAME
from course_utils.grading.student.server import in_a_process_of_its_own

PIPE_BYTES = 4096  # a pipe that takes any takes so many


# ------------------------------------------------------------------------------ frames
def write_frame(stream: IO[bytes], tree: Any) -> None:
    """One tree, after its length in eight bytes."""
    data = dumps(tree)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes], largest: int = LARGEST_FRAME) -> Any:
    """The next frame's tree. Raises EOFError at the end, ValueError for a torn or oversized frame."""
    head = stream.read(8)
    if not head:
        raise EOFError("no more frames")
    size = int.from_bytes(head, "little")
    if len(head) < 8 or size > largest:
        raise ValueError(f"a frame of {size} bytes; at most {largest} may cross")
    data = stream.read(size)
    if len(data) < size:
        raise ValueError(f"a frame was torn: {len(data)} of {size} bytes came")
    return loads(data)


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    side = in_a_process_of_its_own()
    while True:
        try:
            request = read_frame(requests)
        except EOFError:
            return
        write_frame(replies, side.handle(request))


# ------------------------------------------------------------------------------ a process
class PlainProcess:
    """A channel to a plain process: its own memory, no other bound. A new one after each loss.

    patience: how many times the limits it waits, where nothing that runs is expected to hang.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        patience: float = 1.0,
    ) -> None:
        self.patience = patience
        self.environment, self.cwd = {**os.environ, **(environment or {})}, cwd
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The reply. Raises ChannelLost if none comes in time, or none that can be read."""
        process = self.process = self.process or self.started()
        assert process.stdin and process.stdout
        try:
            limit_s *= self.patience
            end = monotonic() + limit_s
            self.send(process.stdin, request, end)
            reply = loads(self.frame(process.stdout, end))
            if not isinstance(reply, dict):
                raise ValueError("a reply is a dict")
            return reply
        except TimeoutError as error:
            self.close()
            raise ChannelLost(f"gave no answer in {limit_s:.0f} s", "timeout") from error
        except (EOFError, BrokenPipeError) as error:
            self.close()
            raise ChannelLost("ended the process that ran it", "died") from error
        except ValueError as error:
            self.close()
            raise ChannelLost(f"sent what cannot be read: {error}", "garbage") from error

    def send(self, stream: IO[bytes], request: Any, end: float) -> None:
        """Write a frame to a process that may have stopped reading."""
        data = dumps(request)
        ahead = memoryview(len(data).to_bytes(8, "little") + data)
        while ahead:
            if not select.select([], [stream], [], max(end - monotonic(), 0))[1]:
                raise TimeoutError
            ahead = ahead[os.write(stream.fileno(), ahead[:PIPE_BYTES]) :]

    def frame(self, stream: IO[bytes], end: float) -> bytes:
        size = int.from_bytes(self.bytes_of(stream, 8, end), "little")
        if size > LARGEST_FRAME:
            raise ValueError(f"a frame of {size} bytes; at most {LARGEST_FRAME} may cross")
        return self.bytes_of(stream, size, end)

    def bytes_of(self, stream: IO[bytes], size: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not select.select([stream], [], [], max(end - monotonic(), 0))[0]:
                raise TimeoutError
            piece = os.read(stream.fileno(), min(size - len(data), 2**20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "course_utils.authoring.plain_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
            cwd=self.cwd,
        )

    def close(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the student prints is not mistaken for a frame
    serve(sys.stdin.buffer, channel)
