"""What takes longer than a notebook's minute: sweeps made by one command, kept as data with a stamp.

Each module is such a command; its table lies beside it as a JSON file.
"""

import hashlib
import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_utils.files import write_whole
from course_utils.reference.exporting import processor

HERE = Path(__file__).parent


def find(name: str) -> dict[str, Any]:
    """A sweep by its module's name: its `stamp`, and what it found."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def save(name: str, seconds: float, found: dict[str, Any], path: Path | None = None) -> None:
    """Write a sweep with its stamp: the command, its CPU seconds, processor, versions, day."""
    stamp = {
        "command": f"python -m {__name__}.{name}",
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "cpu_seconds": round(seconds),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    text = json.dumps({"stamp": stamp, **found}, indent=1, ensure_ascii=False)
    write_whole(path or HERE / f"{name}.json", text + "\n")


def digest(x: Tensor) -> str:
    """Of a tensor's bytes, in short: a text that is another in every version of Python, say."""
    return hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()[:16]


def described(stamp: dict[str, Any]) -> str:
    """A stamp as a sentence."""
    return (
        f"Made by `{stamp['command']}` in {stamp['cpu_seconds']} s of {stamp['threads']} thread, "
        f"{stamp['cpu']}, Python {stamp['python']}, torch {stamp['torch']}, {stamp['date']}."
    )
