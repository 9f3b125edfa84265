"""`course record`: on a machine with CUDA, run the solved notebooks and keep what their gpu cells put out.

Each notebook runs whole, in a kernel of its own, with the book's solutions. Only the outputs of the cells
tagged ``gpu`` are stored in the committed notebook, with a stamp; all else in the file stays as it is, byte
for byte. A cell that raises, or puts out what cannot be stored, leaves its notebook as it was.
What makes a recording outdated is said in `course_utils.recordings.code`.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_utils import grading, lab, recordings
from course_utils.authoring import notebooks
from course_utils.files import write_whole
from course_utils.recordings import cells as gpu_cells
from course_utils.recordings import code
from course_utils.recordings.stamps import OUTDATED

__all__ = ["OUTDATED", "CannotRecord", "record", "record_all", "require_cuda", "status"]

CELL_SECONDS = 600
RECORDER_SECONDS = 600
OUTPUT_LIMIT = 256 * 1024
"""The outputs of one cell have no more bytes than this, as JSON."""

KINDS = ("text/plain", "text/markdown", "text/latex", "text/html", "image/png")
"""What an output may hold. Other forms of the same output are left out."""

CHECK_CUDA = """\
import torch
if not torch.cuda.is_available():
    raise RuntimeError("the notebook's kernel sees no CUDA GPU")
"""

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
PATH = re.compile(
    r"data:[^\s\"')]+"  # an image in HTML: left alone
    r"|(?:file://|(?<![\w.:/\\~…+-])~?)(?:/[\w.+@-]+){2,}"
    r"|(?<!\w)[A-Za-z]:(?:[/\\][\w.+@ -]+)+"
)


class CannotRecord(Exception):
    """Why nothing was stored: a sentence."""


def require_cuda() -> None:
    """Raises CannotRecord where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise CannotRecord(
            "no CUDA GPU here, so nothing was recorded: `course record` runs on a machine with one "
            f"and a CUDA build of torch (this is torch {torch.__version__})"
        )


# Notebooks


def record(path: Path, stamp: dict[str, str]) -> tuple[int, list[str]]:
    """Record the gpu cells of one notebook: how many there are, and the names of what they saved.

    stamp: of `recordings.machine`. Raises CannotRecord, with nothing stored.
    """
    committed = notebooks.read(path)
    before = path.read_text(encoding="utf-8")
    if notebooks.text(notebooks.normalise(committed)) != before:
        raise CannotRecord("not in its normal form; run `course normalise` first")
    digests = gpu_cells.digests(committed.cells, lambda key: grading.solution_cell(key))
    if not digests:
        return 0, []
    with tempfile.TemporaryDirectory(prefix="course-record-") as saved:
        ran = run(notebooks.solve(committed), Path(saved))
        by_id = {cell.id: cell for cell in ran.cells}
        for at, digest in digests.items():
            cell = committed.cells[at]
            cell.outputs = kept_outputs(by_id[cell.id].outputs, cell.id)
            cell.metadata["recorded"] = stamp | {"code": digest}
        text = notebooks.text(notebooks.normalise(committed))
        if path.read_text(encoding="utf-8") != before:
            raise CannotRecord("changed while it ran; nothing was stored")
        names = recordings.store(Path(saved), stamp, _saved_by(path, committed, digests))
    write_whole(path, text)
    return len(digests), names


def _saved_by(
    path: Path, notebook: NotebookNode, digests: dict[int, str]
) -> Callable[[str], tuple[str, str]]:
    """Which gpu cell saved a recording, and its digest."""

    def by(name: str) -> tuple[str, str]:
        for at, digest in digests.items():
            cell = notebook.cells[at]
            if re.search(rf"""save\(\s*["']{re.escape(name)}["']""", cell.source):
                return f"{path.name}#{cell.id}", digest
        raise CannotRecord(f'no gpu cell says recordings.save("{name}", …)')

    return by


def run(solved: NotebookNode, folder: Path) -> NotebookNode:
    """Run a solved notebook in a kernel of its own, which must see CUDA.

    folder: where `recordings.save` puts its data. Raises CannotRecord if a cell raises.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from course_utils.processes import kernels

    solved = nbformat.from_dict(solved)
    for cell in solved.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    solved.cells.insert(0, nbformat.v4.new_code_cell(CHECK_CUDA))
    kernels.of_this_python()
    with tempfile.TemporaryDirectory(prefix="course-record-") as place:
        paths = [str(code.PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        env = lab.environment() | {
            "COURSE_HOME": str(Path(place, "home")),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            recordings.COLLECT: str(folder),
        }
        Path(place, "run").mkdir()
        resources = {"metadata": {"path": str(Path(place, "run"))}}
        client = NotebookClient(
            solved, timeout=CELL_SECONDS, kernel_name="python3", resources=resources
        )
        try:
            ran = client.execute(env=env)
        except CellExecutionError as error:
            raise CannotRecord(f"a cell raised {error.ename}: {error.evalue}") from None
        except (CellTimeoutError, DeadKernelError) as error:
            raise CannotRecord(f"{type(error).__name__}: {str(error).strip()[:300]}") from None
    return nbformat.from_dict(ran | {"cells": ran.cells[1:]})


# Outputs in a form that does not depend on the machine


def kept_outputs(outputs: Iterable[NotebookNode], where: str = "a cell") -> list[NotebookNode]:
    """Outputs as they are stored. Numbers, times among them, stay as they were measured.

    Streams are joined; colours, absolute paths and memory addresses go; a PNG may stay.
    Raises CannotRecord for an error, for a form that cannot be stored, and for more than `OUTPUT_LIMIT`.
    """
    kept: list[NotebookNode] = []
    for out in outputs:
        if out.output_type == "error":
            raise CannotRecord(f"{where}: raised {out.ename}: {out.evalue}")
        if out.output_type == "stream":
            last = kept[-1] if kept else {}
            if last.get("output_type") == "stream" and last.get("name") == out.name:
                last["text"] += out.text
            else:
                kept.append(nbformat.v4.new_output("stream", name=out.name, text=out.text))
            continue
        data = {kind: _plain(out.data[kind], kind) for kind in KINDS if kind in out.data}
        if not data:
            raise CannotRecord(f"{where}: puts out {', '.join(out.data)}, which is not stored")
        kept.append(nbformat.v4.new_output("display_data", data=data))
    for out in kept:
        if out["output_type"] == "stream":
            out["text"] = plain_text(out["text"])
    size = len(nbformat.from_dict({"outputs": kept}).__repr__().encode())
    if size > OUTPUT_LIMIT:
        raise CannotRecord(f"{where}: {size:,} bytes of output; {OUTPUT_LIMIT:,} at most")
    return kept


def _plain(content: str, kind: str) -> str:
    if kind == "image/png":
        return "".join(content.split()) + "\n"
    return plain_text(content)


def plain_text(text: str) -> str:
    """Text without colours, absolute paths and memory addresses; of a line that was redrawn, the last."""
    text = ANSI.sub("", text).replace("\r\n", "\n")
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return PATH.sub(_relative, ADDRESS.sub("0x…", "\n".join(lines)))


def _relative(path: re.Match[str]) -> str:
    if path[0].startswith("data:"):
        return path[0]
    return "…/" + re.split(r"[/\\]", path[0])[-1]


# Traces


def record_traces(names: Sequence[str], stamp: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Run recorders, each in a new process, and store what they make: pairs of name and problem ("": none)."""
    from course_utils.recordings.recorders import RECORDERS, environment

    for name in names:
        made = RECORDERS[name]
        with tempfile.TemporaryDirectory(prefix="course-record-") as folder:
            command = [sys.executable, "-m", "course_utils.recordings.recorders", name]
            env = environment(made) | {recordings.COLLECT: folder}
            env["PYTHONPATH"] = os.pathsep.join(
                filter(None, [str(code.PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
            )
            try:
                ran = subprocess.run(
                    command, env=env, capture_output=True, text=True, timeout=RECORDER_SECONDS
                )
            except subprocess.TimeoutExpired:
                yield name, f"took longer than {RECORDER_SECONDS} s"
                continue
            if ran.returncode:
                said = ran.stderr.strip().splitlines() or [f"status {ran.returncode}"]
                yield name, said[-1]
                continue
            by = f"recorders.{made.function.__name__}"
            stored = recordings.store(Path(folder), stamp, lambda _, by=by: _maker(by))  # type: ignore[misc]
            yield name, "" if name in stored else "saved nothing"


def _maker(by: str) -> tuple[str, str]:
    return by, recordings.present_code(by)


# All together


def record_all(
    paths: Sequence[Path],
    traces: Sequence[str],
    say: Callable[[str], None],
    machine: Callable[[], dict[str, str]] = recordings.machine,
) -> list[str]:
    """Record notebooks and traces; the problems, a sentence each.

    say: called with a line for each thing that was done. machine: gives the stamp.
    Raises CannotRecord without a GPU.
    """
    require_cuda()
    stamp = machine()
    failed = []
    for name, wrong in record_traces(
        traces, stamp
    ):  # first: notebooks compare themselves with them
        if wrong:
            failed.append(f"{name}: {wrong}")
        else:
            say(f"{name}: recorded")
    for path in paths:
        try:
            number, saved = record(path, stamp)
        except CannotRecord as problem:
            failed.append(f"{path}: {problem}")
        else:
            say(f"{path}: {number} gpu cells recorded" + "".join(f", {name}" for name in saved))
    return failed


# What is there


def status(paths: Sequence[Path]) -> Iterator[tuple[str, str, str]]:
    """For each gpu cell: where it is, its state, its stamp as a sentence ("": none)."""
    for path in paths:
        content = notebooks.read(path).cells
        digests = gpu_cells.digests(content, lambda key: grading.solution_cell(key))
        for at, digest in digests.items():
            cell = content[at]
            where = f"{path.name} {cell.get('id', at)}"
            yield where, gpu_cells.state(cell, digest), _said(cell.metadata.get("recorded", {}))


def trace_status() -> Iterator[tuple[str, str, str]]:
    """For each trace that there is or that a recorder would make, the same."""
    from course_utils.recordings.recorders import RECORDERS

    index = recordings.index()
    for name in sorted({*RECORDERS, *index}):
        yield name, recordings.state(name), _said(index.get(name, {}))


def _said(stamp: Any) -> str:
    return recordings.describe(stamp) if stamp and recordings.stamped(dict(stamp)) else ""
