"""nbgrader and otter-grader, in an environment of their own beside the course's (tools/peers.sh)."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".peers"
ADVICE = "nbgrader and otter-grader are not here: run `sh tools/peers.sh` in the course's folder"


def present() -> bool:
    return (FOLDER / "bin/python").exists()


def environment(**more: str) -> dict[str, str]:
    """For their processes: the course is found where this one found it, Jupyter's files in .venv."""
    course = str(Path(__file__).parents[2])
    return {
        **os.environ,
        "PATH": f"{FOLDER / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": course,
        "JUPYTER_PATH": str(Path(sys.prefix) / "share/jupyter"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        **more,
    }


def run(*command: str, cwd: Path, timeout_s: float = 300, **env: str) -> str:
    """Run `nbgrader …`, `otter …` or `python …` there; what it printed.

    Raises FileNotFoundError where they are not installed, RuntimeError, with the output, if it fails.
    """
    if not present():
        raise FileNotFoundError(ADVICE)
    program, *rest = command
    done = subprocess.run(
        [FOLDER / "bin" / program, *rest],
        cwd=cwd,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout
