"""Runs of the course's training scripts: by plain Python, by torchrun, or in forks of one process."""

import json
import os
import select
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import psutil

from course_utils.ranks.pool import free_port

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
LIMIT_S = 120
LOADED_ONCE = """
import importlib, json, os, signal, sys, traceback

def go_with_the_parent():
    if sys.platform == "linux":
        from course_utils.sandbox import namespaces
        namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)

go_with_the_parent()
script = importlib.import_module(sys.argv[1])
for line in sys.stdin:
    order = json.loads(line)
    children = []
    for place in order["places"]:
        child = os.fork()
        if not child:
            status = 1
            try:
                go_with_the_parent()
                os.environ.update(place)
                for stream in (1, 2):
                    os.dup2(os.open(order["files"][stream - 1], os.O_WRONLY | os.O_APPEND), stream)
                script.main(order["arguments"])
                sys.stdout.flush()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""


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
        output, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    assert process.returncode == 0, errors
    return output


def run_forked(module: str, *arguments: str, processes: int = 1) -> str:
    """As `run`, in processes that need not load torch: the places that torchrun would give them."""
    process = loaded_once(module)
    with tempfile.TemporaryDirectory() as folder:
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        world["WORLD_SIZE"] = str(processes)
        ranks = map(str, range(processes))
        files = [Path(folder, name) for name in ("out", "err")]
        for file in files:
            file.touch()
        order = {
            "arguments": arguments,
            "files": [str(file) for file in files],
            "places": [world | {"RANK": rank, "LOCAL_RANK": rank} for rank in ranks],
        }
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], LIMIT_S)[0]:
            kill(process)
            del loaded[module]
        statuses = json.loads(process.stdout.readline() or "[]")
        assert statuses == [0] * processes, f"{statuses}: {files[1].read_text()}"
        return files[0].read_text()


loaded: dict[str, subprocess.Popen[str]] = {}


def loaded_once(module: str) -> subprocess.Popen[str]:
    """A process that has loaded the script, and goes when this one does (its input ends)."""
    if module not in loaded:
        loaded[module] = subprocess.Popen(
            [sys.executable, "-c", LOADED_ONCE, module],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    return loaded[module]


def kill(process: subprocess.Popen[str]) -> None:
    for child in (*psutil.Process(process.pid).children(recursive=True), process):
        child.kill()
    process.wait()


def script(module: str, *settings: str) -> tuple[partial, partial, partial]:
    """`start`, `run` and `run_forked` of one script with these settings, which later arguments
    override."""
    return tuple(partial(how, module, *settings) for how in (start, run, run_forked))
