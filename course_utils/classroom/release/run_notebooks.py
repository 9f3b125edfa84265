"""An edition's notebooks, run from top to bottom as a student would who has answered nothing."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat

from course_utils import lab
from course_utils.authoring import notebooks

from .edition import Edition
from .pack import write_files

CELL_SECONDS = 180
MOST_SAID = 3
ITS_OWN_PACKAGE = """\
import pathlib, sys
sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]
sys.path[:] = [p for p in sys.path if not (pathlib.Path(p) / "course_utils").is_dir()]
"""
"""Every Python that starts in an edition forgets where this machine has the course installed."""
WHOSE = "import course_utils\nprint(course_utils.__file__)"


def run_problems(edition: Edition, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """What raises in the edition's notebooks: a sentence for each cell, three for a notebook.

    The edition lies in a folder of its own, with a space in its path. say: told of each notebook.
    """
    with tempfile.TemporaryDirectory(prefix="course edition ") as place:
        folder = Path(place).resolve() / "edition"
        write_files(edition.files, folder)
        found = []
        for path in sorted(edition.notebooks):
            say(f"running {path}")
            found += list(_raised(folder / path, folder, Path(place)))
    return found


def _raised(path: Path, folder: Path, place: Path) -> Iterator[str]:
    ran, problem = _run(path, place)
    said = 0
    for number, cell in enumerate(ran.cells[:-1], start=1):
        for out in cell.get("outputs", ()):
            if out.output_type == "error" and "raises-exception" not in notebooks.tags(cell):
                said += 1
                if said <= MOST_SAID:
                    yield f"{path.name}, cell {number} ({_first_line(cell.source)}) raises {_why(out)}"
    if said > MOST_SAID:
        yield f"{path.name}: {said - MOST_SAID} more cells raise"
    if problem:
        yield f"{path.name}: {problem}"
        return
    home = "".join(out.get("text", "") for out in ran.cells[-1].outputs).strip()
    if not said and not home.startswith(str(folder)):
        yield f"{path.name} found another course_utils than its own: {home or 'none'}"


def _why(error: nbformat.NotebookNode) -> str:
    return f"{error.ename}: {str(error.evalue).splitlines()[0][:200] if error.evalue else ''}"


def _first_line(source: str) -> str:
    lines = [line for line in source.splitlines() if line.strip() and not line.startswith("#")]
    return repr(lines[0][:50]) if lines else "empty"


def _run(path: Path, place: Path) -> tuple[nbformat.NotebookNode, str]:
    """The notebook after a run in which errors stop nothing, and what ended it before its last cell."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    from course_utils.processes import kernels

    own = place / "own package"
    own.mkdir(exist_ok=True)
    (own / "sitecustomize.py").write_text(ITS_OWN_PACKAGE, encoding="utf-8")
    env = lab.environment() | {
        "COURSE_HOME": str(place / f"home of {path.stem}"),
        "PYTHONPATH": str(own),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    kernels.of_this_python()
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(WHOSE))
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        allow_errors=True,
        extra_arguments=["--log-level=ERROR"],  # or a kernel warns of its own transport
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        return client.execute(env=env), ""
    except (CellTimeoutError, DeadKernelError) as error:
        return client.nb, f"{type(error).__name__}: {str(error).strip()[:300]}"
