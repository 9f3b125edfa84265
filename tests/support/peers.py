"""nbgrader and otter-grader, in an environment of their own beside the course's (tools/peers.sh)."""

import os
import sqlite3
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


def nbgrader_scores(gradebook: Path, student: str) -> dict[str, float]:
    """Points by cell, as nbgrader's database holds them."""
    query = """
        SELECT base_cell.name, grade.auto_score FROM grade
        JOIN base_cell ON base_cell.id = grade.cell_id
        JOIN submitted_notebook ON submitted_notebook.id = grade.notebook_id
        JOIN submitted_assignment ON submitted_assignment.id = submitted_notebook.assignment_id
        WHERE submitted_assignment.student_id = ?"""
    with sqlite3.connect(gradebook) as database:
        return dict(database.execute(query, [student]).fetchall())
