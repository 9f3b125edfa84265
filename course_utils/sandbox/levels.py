"""Which isolation this machine gives, found out by trying; and why it is not a better one."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from . import bubblewrap

BUBBLEWRAP, _PROCESS = "bubblewrap", "process"
BEST = "best"
_TRY_S = 20.0


class SandboxMissing(RuntimeError):
    """This machine lacks the isolation that was asked for. The message says what to do."""


@cache
def best_level() -> tuple[str, str]:
    """("bubblewrap", "") or ("process", why it is not bubblewrap). Raises SandboxMissing on Windows.

    It runs an empty Python in bubblewrap: some 30 ms, once a process.
    """
    if sys.platform == "win32":
        raise SandboxMissing("student code is not run on Windows itself; use WSL2, with bubblewrap")
    why = why_no_bubblewrap()
    return (_PROCESS, why) if why else (BUBBLEWRAP, "")


def why_no_bubblewrap() -> str:
    """Why no sandbox of bubblewrap starts on this machine, as a sentence; "" if one does."""
    if sys.platform != "linux":
        return (
            "bubblewrap exists for Linux only; a virtual machine or a container with Linux has it"
        )
    if bubblewrap.program() is None:
        return "bwrap is not installed: apt-get install bubblewrap (or dnf, pacman)"
    line = bubblewrap.command(["-I", "-S", "-c", "pass"], {"PATH": "/usr/bin"})
    try:
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not run: {error}"
    return (
        "" if done.returncode == 0 else bubblewrap.explained(done.stderr.decode(errors="replace"))
    )


def chosen(isolation: str) -> tuple[str, str]:
    """The level for a Sandbox, and why it is no better. Raises SandboxMissing, ValueError."""
    if isolation not in (BEST, BUBBLEWRAP, _PROCESS):
        raise ValueError(f"isolation is 'best', 'bubblewrap' or 'process', not {isolation!r}")
    level, why = best_level()
    if isolation == BUBBLEWRAP and level != BUBBLEWRAP:
        raise SandboxMissing(f"no bubblewrap: {why}")
    if isolation == _PROCESS:
        return _PROCESS, "asked for" if level == BUBBLEWRAP else why
    return level, why


def can_be_another() -> bool:
    """At level "process" root's submissions can only be another user's if that one can read Python."""
    needed = [Path(p).resolve() for p in (sys.executable, *bubblewrap.libraries())]
    needed.append(bubblewrap.package())
    above = {parent for path in needed for parent in (path, *path.parents)}
    return all(path.stat().st_mode & 0o5 == 0o5 for path in above)


def described(level: str, why: str, namespaces: bool) -> str:
    """The level in words for people."""
    if level == BUBBLEWRAP:
        if namespaces:
            return "bubblewrap: no network, no files but Python's, namespaces for each submission"
        return (
            "bubblewrap, but the kernel refuses further namespaces: no network and no files but "
            "Python's; submissions of one worker share /tmp"
        )
    from . import seccomp

    told = "process only: own process and limits"
    if seccomp.available():
        told += ", system calls filtered"
    told += "; the files of this user can be read"
    if os.geteuid() == 0 and not can_be_another():
        told += ", and it runs as root (another user cannot read this Python)"
    return f"{told}. Why not bubblewrap: {why}"
