"""Runs of the course's training scripts: by plain Python, or by torchrun on several processes."""

import os
import subprocess
import sys
from functools import partial

import psutil

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def start(module: str, *arguments: str, processes: int | None = None) -> subprocess.Popen[str]:
    launch = [*TORCHRUN, f"--nproc-per-node={processes}"] if processes else [sys.executable]
    return subprocess.Popen(
        [*launch, "-m", module, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(module: str, *arguments: str, processes: int | None = None) -> str:
    """The script's output; a script that fails or hangs fails the test, with what it wrote."""
    process = start(module, *arguments, processes=processes)
    try:
        output, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        for child in (*psutil.Process(process.pid).children(recursive=True), process):
            child.kill()
        raise
    assert process.returncode == 0, errors
    return output


def script(module: str, *settings: str) -> tuple[partial, partial]:
    """`start` and `run` of one script with these settings, which later arguments override."""
    return partial(start, module, *settings), partial(run, module, *settings)
