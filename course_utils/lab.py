"""JupyterLab as a student should meet it: no pop-up, the course's own kernel, the chapter open.

``python -m course_utils.lab`` only writes the settings (the set-up does that);
``python -m course_utils.lab NOTEBOOK`` also opens the notebook. ``course lab`` is the same.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    }
}
"""Overrides of JupyterLab's defaults: never ask about news, never look for updates."""


def settings_file(prefix: str | Path = sys.prefix) -> Path:
    """Where JupyterLab looks for overrides in the environment at `prefix`."""
    return Path(prefix, "share", "jupyter", "lab", "settings", "overrides.json")


def write_settings(prefix: str | Path = sys.prefix) -> Path:
    """Merge `SETTINGS` into the overrides of the environment at `prefix`; what else is there stays."""
    path = settings_file(prefix)
    present = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    merged = present | {name: present.get(name, {}) | chosen for name, chosen in SETTINGS.items()}
    if merged != present:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(merged, indent=2) + "\n", encoding="utf-8")
    return path


def environment() -> dict[str, str]:
    """The environment that JupyterLab starts in: its kernels come from this Python before any other.

    A kernel called ``python3`` in a home folder or on JUPYTER_PATH would otherwise shadow the course's own.
    """
    env = {name: value for name, value in os.environ.items() if name != "JUPYTER_PATH"}
    return env | {"JUPYTER_PREFER_ENV_PATH": "1"}


def command(arguments: Sequence[str]) -> list[str]:
    """The command line that starts JupyterLab with `arguments` on this Python."""
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [sys.executable, "-m", "jupyterlab", *as_root, *arguments]


def open_lab(arguments: Sequence[str]) -> int:
    """Start JupyterLab and wait until it ends; its exit status."""
    if sys.prefix != sys.base_prefix:  # an environment of the course's own, not a shared Python
        write_settings()
    try:
        return subprocess.call(command(arguments), env=environment())
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(open_lab(sys.argv[1:]))
    write_settings()
