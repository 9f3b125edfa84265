"""The sandboxes of this process, each started once. Loads no torch: see `begin`."""

from contextlib import suppress

from course_utils.sandbox import Sandbox, SandboxMissing, levels


class CannotGrade(RuntimeError):
    """No submission can be graded here; the message says why and what to do."""


_sandboxes: dict[tuple[str, bool], Sandbox] = {}


def begin(isolation: str, require: bool) -> None:
    """Start it without waiting until it is ready, before this process loads torch itself.

    What is wrong is raised when a sandbox is asked for.
    """
    with suppress(Exception):
        sandbox_of(isolation, require)


def sandbox_of(isolation: str, require: bool) -> Sandbox:
    """This process's sandbox of this isolation. Raises CannotGrade if there can be none."""
    kind = isolation, require
    if kind not in _sandboxes:
        _sandboxes[kind] = _started(isolation, require)
    return _sandboxes[kind]


def _started(isolation: str, require: bool) -> Sandbox:
    try:
        sandbox = Sandbox(levels.BUBBLEWRAP if require and isolation == levels.BEST else isolation)
    except SandboxMissing as error:
        raise CannotGrade(f"no sandbox: {error}") from error
    if require and sandbox.kind != levels.BUBBLEWRAP:
        sandbox.close()
        level = levels.described(sandbox.kind, sandbox.why, namespaces=False)
        raise CannotGrade(f"a sandbox is required, and this is none: {level}")
    return sandbox


def close() -> None:
    """End this process's sandboxes."""
    while _sandboxes:
        _sandboxes.popitem()[1].close()
