"""Work for a pool's workers that ends some of them; it loads nothing."""

import os
import signal
from pathlib import Path


def deadly(task: str) -> str:
    """ "kills …" ends its worker, "once PATH" the first time, "raises …" raises; else in capitals."""
    if task.startswith("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if task.startswith("once "):
        path = Path(task[5:])
        if not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if task.startswith("raises"):
        raise ValueError(task)
    return task.upper()
