"""Chapter 28: the course's model in the forms that leave Python, and what a fresh process does with them.

Not exercises: a compiler that works in the background, a process that tells its seconds, and the lines of a
refusal that a reader needs.
"""

import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

Result = TypeVar("Result")

MAX_BATCH, MAX_TOKENS = 64, 256
"""Rows and tokens that the exported model takes."""

# ------------------------------------------------------------------------------ silence, and a refusal

_TALKATIVE = "torch.fx.experimental.symbolic_shapes", "torch.onnx._internal.exporter._registration"
_BESIDES = ("For ", "If you", "Caused by", "consider ", "The error above", "File ", "https://")


def quietly(work: Callable[[], Result]) -> Result:
    """What a call gives, without what torch's exporters print, log and warn of meanwhile."""
    logs = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            return work()
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def why_refused(work: Callable[[], Any]) -> str:
    """What torch says to an export that it refuses, without its advice on logging, a line each.

    Raises AssertionError if it refuses nothing.
    """
    try:
        quietly(work)
    except Exception as error:
        lines = [
            line.partition(" For more information")[0].strip() for line in str(error).split("\n")
        ]
    else:
        raise AssertionError("torch took it")
    return "\n".join(line for line in lines if line and not line.startswith(_BESIDES))


# ------------------------------------------------------------------------------ a fresh process


class Fresh(NamedTuple):
    """What a fresh process did: CPU seconds by mark, what it told, how it ended, the end of its stderr."""

    seconds: dict[str, float]
    told: dict[str, Any]
    code: int
    stderr: str


_MARK = "fresh process: "
_PRELUDE = f"""
import json, sys, time
begun = 0.0
def mark(name):
    global begun
    now = time.process_time()
    print({_MARK!r} + json.dumps(["seconds", name, now - begun]), flush=True)
    begun = now
def tell(**what):
    for name, value in what.items():
        print({_MARK!r} + json.dumps(["told", name, value]), flush=True)
"""


def in_fresh_process(script: str, limit_s: float = 600.0, **environment: str) -> Fresh:
    """Run a script in a new Python that has nothing imported. It may end in any way.

    The script may call `mark(name)`, which notes the CPU seconds since the mark before (or
    the start of the process), and `tell(name=value)`, with values that JSON knows.
    environment: variables to set. Raises subprocess.TimeoutExpired after limit_s seconds.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PRELUDE + script],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env=os.environ | environment,
        cwd=Path(__file__).parents[2],
    )
    found: dict[str, dict[str, Any]] = {"seconds": {}, "told": {}}
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            kind, name, value = json.loads(line.removeprefix(_MARK))
            found[kind][name] = value
    return Fresh(found["seconds"], found["told"], done.returncode, done.stderr)


# ------------------------------------------------------------------------------ a compiler in the background

OPTIONS = {
    "aot_inductor.precompile_headers": False,  # pays off from the second package on
    "aot_inductor.compile_wrapper_opt_level": "O0",  # it only calls the kernels
    "aot_inductor.check_lowerbound": False,  # the graph holds for one row, too
}
"""What AOTInductor is told, so that a single package is made soon."""


def compile_course_model(package: str) -> None:
    """Export the course's model and write its AOTInductor package. It needs a C++ compiler."""
    from .export_and_serving import export_dynamic
    from .pretrained import course_model

    torch.set_num_threads(2)  # its kernels are made for so many
    ids = torch.zeros(1, 1, dtype=torch.int64)
    program = export_dynamic(course_model(), ids, MAX_BATCH, MAX_TOKENS)
    torch._inductor.aoti_compile_and_package(
        program, package_path=package, inductor_configs=OPTIONS
    )


class Compiling:
    """A process that runs `compile_course_model` while the notebook goes on."""

    def __init__(self, package: Path) -> None:
        """Start it. package: the file to write, which ends in .pt2."""
        self.package = package
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        line = f"from {__name__} import compile_course_model as make; make({str(package)!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", line],
            stdout=self._said,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parents[2],
        )

    def problem(self, limit_s: float = 80.0) -> str:
        """Wait until it is done: "" if the package is there, else why not, in a line."""
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.stop()
            return f"it was not done within {limit_s:.0f} s more"
        self._said.seek(0)
        lines = self._said.read().split("\n")
        said = [line for line in lines if "Error" in line or "not found" in line] or lines[-2:]
        return "" if code == 0 and self.package.exists() else said[-1].strip()

    def stop(self) -> None:
        """End the process, if it still runs, and forget its output."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.stop()


# ------------------------------------------------------------------------------ figures


def median_ms(work: Callable[[], Any], rounds: int = 9) -> float:
    """Milliseconds of a call: the median of so many, after one that is not counted."""
    work()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begun))
    return sorted(times)[rounds // 2]


def count_ops(graph: torch.fx.Graph) -> dict[str, int]:
    """How often a graph calls each operation, most frequent first; `aten.` and `.default` are left off."""
    calls = (node.target for node in graph.nodes if node.op == "call_function")
    names = (
        str(target).removeprefix("aten.").removesuffix(".default")
        if isinstance(target, torch._ops.OpOverload)
        else target.__name__
        for target in calls
    )
    return dict(Counter(names).most_common())


def aten_names() -> dict[str, bool]:
    """The names of ATen's operations, overloads taken together, and whether each is in Core ATen."""
    every = torch._C._dispatch_get_all_op_names()
    names = {name.split("::")[1].split(".")[0] for name in every if name.startswith("aten::")}
    packets = {name: getattr(torch.ops.aten, name, None) for name in sorted(names)}
    return {
        name: packet is not None
        and any(torch.Tag.core in getattr(packet, each).tags for each in packet.overloads())
        for name, packet in packets.items()
    }
