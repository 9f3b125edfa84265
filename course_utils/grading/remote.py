"""The student's side of a check, in a process of its own.

`python -m course_utils.grading.remote SOURCE PROBE NAME [NAME …]` runs SOURCE (a Python file),
then answers each case that comes in on standard input with what the probe saw. It needs neither
references nor exercises: what crosses is frames of arrays and JSON (see `values.dumps`), each
behind its length in eight bytes, little-endian.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from .case import Case
from .observe import Observation, observe
from .probes import Probe
from .values import dumps, loads

LARGEST_FRAME = 64 * 2**20


def write_frame(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes], largest: int = LARGEST_FRAME) -> bytes | None:
    """The next frame, or None at the end. Raises ValueError for a torn or an oversized one."""
    head = stream.read(8)
    if not head:
        return None
    size = int.from_bytes(head, "little")
    if len(head) < 8 or size > largest:
        raise ValueError(f"a frame of {size} bytes; at most {largest} may cross")
    data = stream.read(size)
    if len(data) < size:
        raise ValueError(f"a frame was torn: {len(data)} of {size} bytes came")
    return data


def probe_name(probe: Probe) -> str:
    return f"{probe.__module__}:{probe.__name__}"


def probe_called(name: str) -> Probe:
    module, _, attribute = name.partition(":")
    found: Probe = getattr(importlib.import_module(module), attribute)
    return found


def observe_remotely(
    source: Path,
    names: Iterable[str],
    probe: Probe,
    cases: Iterable[Case],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> list[Observation]:
    """What the probe sees on each case, with the student's code in another process."""
    command = [sys.executable, "-m", "course_utils.grading.remote"]
    command += [str(source), probe_name(probe), *names]
    frames = b"".join(
        len(data).to_bytes(8, "little") + data for data in (dumps(c.as_tree()) for c in cases)
    )
    done = subprocess.run(
        command,
        input=frames,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=timeout_s,
        env={**os.environ, **(environment or {})},
        cwd=source.parent,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the student's process failed: {done.stderr.decode()[-2000:]}")
    found, rest = [], memoryview(done.stdout)
    while rest:
        size = int.from_bytes(rest[:8], "little")
        found.append(Observation.from_tree(loads(bytes(rest[8 : 8 + size]))))
        rest = rest[8 + size :]
    return found


def main(source: str, probe: str, names: list[str]) -> None:
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the student prints is not mistaken for a frame
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(Path(source).read_text(encoding="utf-8"), source, "exec"), space)
    objects = {name: space[name] for name in names}
    subject = objects if len(objects) > 1 else objects[names[0]]
    while (data := read_frame(sys.stdin.buffer)) is not None:
        seen = observe(probe_called(probe), subject, Case.from_tree(loads(data)))
        write_frame(channel, dumps(seen.as_tree()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
