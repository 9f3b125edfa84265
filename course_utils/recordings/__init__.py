"""What was measured on a GPU, for machines that have none: data with a stamp of where it comes from.

`find(name)` gives a recording, or None where there is none that may be shown: one never made, one
without its stamp, one whose code has changed since. `missing(name)` says which, for a page that then
reads *not recorded* or *not compared*. `save(name, data)` stores one, in `course record` on a GPU only.

Beside this file: ``index.json`` (for each recording its stamp, its file, the digest of the code that made
it) and ``data/<name>.json`` or ``data/<name>.safetensors``. `recorders` holds the functions that make them.

Layouts
-------
``allocator/training_step``, ``allocator/training_step_expandable`` (JSON): what the caching allocator did
while a fixed training step ran in a new process. The second ran under ``expandable_segments:True``.

    {"conf": "",                     value of PYTORCH_ALLOC_CONF, empty for torch's defaults
     "settings": {...},              the snapshot's ``allocator_settings``, as torch names them
     "streams": 1,                   how many streams appear
     "events": [[action, address, size, stream], ...],
     "phases": [{"name": "model", "events": 14, "allocated": ..., "requested": ..., "active": ...,
                 "reserved": ..., "peak_allocated": ..., "peak_reserved": ...}, ...],
     "segments": [{"address", "total_size", "stream", "segment_type", "is_expandable",
                   "blocks": [[address, size, requested_size, state], ...]}, ...]}

- ``action`` is torch's: ``alloc``, ``free_requested``, ``free_completed``, ``segment_alloc``,
  ``segment_free``, ``segment_map``, ``segment_unmap``, ``oom``. Torch's own ``snapshot`` events are left out.
  In the order in which they happened, from an empty allocator on.
- ``size`` in bytes. Of ``alloc`` and ``free_*`` it is what was *asked for*, before any rounding: that is what
  torch's trace holds. Of ``segment_*`` it is the segment's size. So reserved bytes after each event are the
  running sum of ``segment_alloc`` + ``segment_map`` − ``segment_free`` − ``segment_unmap``, and requested bytes
  that of ``alloc`` − ``free_completed``. Allocated (rounded) bytes are not in the trace: they are known at the
  end of each phase, and after each operation in ``allocator/operations``.
- ``address`` is relative to the lowest address seen, so order and distance are kept; None for ``oom``.
- ``stream`` counts from 0 in order of appearance.
- ``phases``: ``events`` is the number of events up to the phase's end, so phase i is
  ``events[phases[i-1]["events"]:phases[i]["events"]]``; the others are bytes then, from ``memory_stats()``
  (``active`` is allocated plus what waits for another stream; peaks are since the start).
- ``segments``: the final snapshot's, sorted by address; ``state`` as torch says: ``active_allocated``,
  ``active_pending_free``, ``active_awaiting_free`` or ``inactive``.

``allocator/operations``, ``allocator/operations_expandable`` (JSON): a fixed list of allocations, frees and
calls of ``empty_cache`` by hand, with the allocator's own counters after each, for a comparison event by event.

    {"conf": "", "settings": {...},
     "operations": [["alloc", key, bytes] | ["free", key] | ["empty_cache"], ...],
     "after": [[allocated, reserved, requested, active, segments], ...],     one row an operation
     "events": [...], "segments": [...]}                                     as above

``key`` is an int that names the allocation. ``bytes`` is what was asked for. ``segments`` in a row of ``after`` is
the number of segments held.

``mixed_precision/autocast_table`` (JSON): ``{"torch": {"bfloat16": {op: {"float32,float32": "bfloat16", ...}},
"float16": {...}}}``: the dtype of the result of each operation of chapter 13's table under
``torch.autocast("cuda", dtype)``, for each dtype of its inputs, run by real kernels; ``"error: Kind"`` where it raised.

``timings/matmul`` (JSON): ``{"unit": "ms", "rows": [{"n", "dtype", "tf32", "median", "min", "max", "repeats"}, ...]}``:
an (n, n) by (n, n) product, each of ``repeats`` calls timed by CUDA events after a warm-up.
"""

import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course_utils.files import write_whole
from course_utils.recordings import code
from course_utils.recordings.stamps import (
    NEVER,
    OUTDATED,
    RECORDED,
    STAMP,
    UNSTAMPED,
    describe,
    stamped,
)

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = FOLDER.parents[1] / "notebooks"
COLLECT = "COURSE_RECORD_TO"
"""The environment variable by which `course record` says where `save` puts data; unset at all other times."""

_LIMIT = 2**20
"""A recording's file has no more bytes than this."""

NAME = re.compile(r"[a-z0-9_]+/[a-z0-9_]+")


@dataclass(frozen=True)
class Recording:
    """Data measured on a GPU, and its stamp (see `STAMP`)."""

    name: str
    data: Any
    stamp: dict[str, str]

    @property
    def source(self) -> str:
        """The stamp as a sentence."""
        return describe(self.stamp)


def find(name: str) -> Recording | None:
    """The recording called `name`, if it is current. Otherwise None, and `missing` says why.

    Data is what was saved: JSON's types, or a dict of tensors on the CPU.
    """
    if state(name) != RECORDED:
        return None
    entry = index()[name]
    return Recording(name, _load(FOLDER / entry["file"]), {key: entry[key] for key in STAMP})


def missing(name: str) -> str | None:
    """Why there is no recording called `name` to compare with: a sentence. None if there is one."""
    now = state(name)
    if now == RECORDED:
        return None
    if now == OUTDATED:
        return f"{name}: {describe(index()[name], 'recorded')} Its code has changed since: not compared."
    if now == UNSTAMPED:
        return f"{name}: recorded without a note of where, or damaged: not compared."
    return f"{name}: not recorded on a GPU yet: not compared."


def save(name: str, data: Any) -> bool:
    """Keep `data` as the recording called `name`, if `course record` runs on a GPU; else do nothing.

    name: ``chapter_or_topic/what``, in small letters. data: of JSON's types, or a dict of tensors.
    Returns whether it was kept. Raises ValueError for a bad name, TypeError for other data, and
    ValueError for more than `_LIMIT` bytes, each of them on any machine.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"a recording is called topic/what, in small letters; this one {name!r}")
    suffix, content = _encoded(data)
    if len(content) > _LIMIT:
        raise ValueError(f"{name}: {len(content):,} bytes; {_LIMIT:,} at most")
    folder = os.environ.get(COLLECT)
    if not folder:
        return False
    import torch

    if not torch.cuda.is_available():
        return False
    write_whole(Path(folder, name + suffix), content)
    return True


# Stamps


def machine() -> dict[str, str]:
    """The stamp of this machine and day, the digest of the code aside. Raises RuntimeError without CUDA."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA GPU here")
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or torch.version.hip),
        "date": datetime.now(UTC).date().isoformat(),
    }


def driver() -> str:
    """The NVIDIA driver's version, as ``nvidia-smi`` or Linux's ``/proc`` says it; "unknown" otherwise."""
    program = shutil.which("nvidia-smi")
    if program:
        command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if ran.returncode == 0 and ran.stdout.strip():
            return ran.stdout.split()[0]
    about = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", about.read_text()) if about.is_file() else None
    return found[0] if found else "unknown"


# The index


def index() -> dict[str, dict[str, str]]:
    """What is recorded, by name: the stamp, ``file``, its ``sha256``, and ``by`` (see `store`)."""
    path = FOLDER / "index.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def state(name: str) -> str:
    """RECORDED, OUTDATED (its code has changed), UNSTAMPED (or damaged), or NEVER."""
    entry = index().get(name)
    if entry is None:
        return NEVER
    file = FOLDER / entry.get("file", "absent")
    if (
        not stamped(entry)
        or not file.is_file()
        or _sha256(file.read_bytes()) != entry.get("sha256")
    ):
        return UNSTAMPED
    present = present_code(entry.get("by", ""))
    return RECORDED if present in (entry["code"], _UNCHECKABLE) else OUTDATED


_UNCHECKABLE = "uncheckable"
"""Of a recording that a notebook made, where there are no notebooks: an installed package."""


def present_code(by: str) -> str:
    """The digest, now, of the code that makes a recording; "" where that is gone.

    by: ``recorders.<function>``, or ``<notebook's file>#<cell's id>``.
    """
    room, _, function = by.partition(".")
    if room == "recorders" and function:
        try:
            recorders = importlib.import_module("course_utils.recordings.recorders")
        except ModuleNotFoundError:  # an edition may lack it, or a reference that it uses
            return ""
        known = any(made.function.__name__ == function for made in recorders.RECORDERS.values())
        return code.digest_of_module(code.PACKAGE / "recordings" / "recorders.py") if known else ""
    notebook, _, cell = by.partition("#")
    if not NOTEBOOKS.is_dir():
        return _UNCHECKABLE
    if not cell or not (NOTEBOOKS / notebook).is_file():
        return ""
    from course_utils import grading
    from course_utils.recordings import cells

    content = json.loads((NOTEBOOKS / notebook).read_text(encoding="utf-8"))["cells"]
    digests = cells.digests(content, grading.solution_cell)
    return next((d for at, d in digests.items() if content[at].get("id") == cell), "")


def store(
    collected: Path, stamp: dict[str, str], by: Callable[[str], tuple[str, str]]
) -> list[str]:
    """Take what `save` left in the folder `collected` into this package. Their names, in order.

    stamp: of `machine`. by: for a name, what made it (see `present_code`) and the digest of that.
    """
    files = sorted(file for file in collected.rglob("*") if file.is_file())
    places = {file: file.relative_to(collected) for file in files}
    names = [place.with_suffix("").as_posix() for place in places.values()]
    makers = [by(name) for name in names]  # before anything is written
    entries = index()
    for (file, place), name, (maker, digest) in zip(places.items(), names, makers, strict=True):
        content = file.read_bytes()
        for old in (FOLDER / "data" / name).parent.glob(f"{file.stem}.*"):
            old.unlink()
        write_whole(FOLDER / "data" / place, content)
        about = {"by": maker, "file": f"data/{place.as_posix()}", "sha256": _sha256(content)}
        entries[name] = stamp | {"code": digest} | about
    if names:
        text = json.dumps(entries, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        write_whole(FOLDER / "index.json", text)
    return names


def _encoded(data: Any) -> tuple[str, bytes]:
    if (
        isinstance(data, dict)
        and data
        and all(hasattr(value, "untyped_storage") for value in data.values())
    ):
        from safetensors.torch import save as encode

        return ".safetensors", encode({k: v.detach().cpu().contiguous() for k, v in data.items()})
    try:
        text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"a recording holds JSON's types, finite numbers, or a dict of tensors: {error}"
        ) from None
    if not any("],[" in string for string in re.findall(r'"(?:[^"\\\\]|\\\\.)*"', text)):
        text = text.replace("],[", "],\n[")  # a row a line
    return ".json", text.encode() + b"\n"


def _load(file: Path) -> Any:
    if file.suffix == ".json":
        return json.loads(file.read_text(encoding="utf-8"))
    from safetensors.torch import load_file

    return load_file(file)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
