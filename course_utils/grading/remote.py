"""The student's side of a check, in a process of its own.

`python -m course_utils.grading.remote` reads frames on standard input and answers on standard
output. A frame is its length in eight bytes, little-endian, then a tree of arrays and JSON (see
`values.dumps`). A frame {"source", "names", "probe"} brings the student's code; each {"args",
"kwargs", "grad"} after it is a case, answered with what the probe saw. The process needs neither
references nor exercises, and nothing is ever unpickled.
"""

import importlib
import linecache
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from .case import Case
from .observe import Observation, observe
from .probes import Probe
from .values import dumps, loads

LARGEST_FRAME = 64 * 2**20


def write_frame(stream: IO[bytes], tree: Any) -> None:
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


class Remote:
    """A process that runs students' code, one program after another."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "course_utils.grading.remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            cwd=cwd,
        )

    def observe(
        self, source: str, names: Sequence[str], probe: Probe, cases: Iterable[Case]
    ) -> list[Observation]:
        """What the probe sees on each case. Raises RuntimeError if the process dies over it."""
        assert self.process.stdin and self.process.stdout
        program = {"source": source, "names": list(names), "probe": name_of_probe(probe)}
        try:
            write_frame(self.process.stdin, program)
            found = []
            for case in cases:
                write_frame(self.process.stdin, case.as_tree())
                found.append(Observation.from_tree(read_frame(self.process.stdout)))
            return found
        except (EOFError, BrokenPipeError) as error:
            _, complaint = self.process.communicate()
            raise RuntimeError(
                f"the student's process died: {complaint.decode()[-2000:]}"
            ) from error

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def name_of_probe(probe: Probe) -> str:
    return f"{probe.__module__}:{probe.__name__}"


def probe_called(name: str) -> Probe:
    module, _, attribute = name.partition(":")
    found: Probe = getattr(importlib.import_module(module), attribute)
    return found


def subject_of(source: str, names: Sequence[str], number: int) -> Any:
    """Run a program; the object, or the dict of objects, that it defines."""
    filename = f"<program {number}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, filename, "exec"), space)
    return {name: space[name] for name in names} if len(names) > 1 else space[names[0]]


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    subject, probe, number = None, None, 0
    while True:
        try:
            frame = read_frame(requests)
        except EOFError:
            return
        if "source" in frame:
            number += 1
            probe = probe_called(frame["probe"])
            subject = subject_of(frame["source"], frame["names"], number)
        else:
            assert probe is not None, "a case came before any program"
            write_frame(replies, observe(probe, subject, Case.from_tree(frame)).as_tree())


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the student prints is not mistaken for a frame
    serve(sys.stdin.buffer, channel)
