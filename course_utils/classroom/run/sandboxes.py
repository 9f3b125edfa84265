"""The sandboxes of this process, each started once. Loads no torch: see `begin`."""

from contextlib import suppress

from course_utils.sandbox import Sandbox, SandboxMissing, levels
from course_utils.sandbox.bubblewrap import is_root


class CannotGrade(RuntimeError):
    """No submission can be graded here; the message says why and what to do."""


_sandboxes: dict[tuple[str, bool, bool], Sandbox] = {}


def begin(isolation: str, require: bool, as_root: bool) -> None:
    """Start it without waiting until it is ready, before this process loads torch itself.

    What is wrong is raised when a sandbox is asked for.
    """
    with suppress(Exception):
        sandbox_of(isolation, require, as_root)


def sandbox_of(isolation: str, require: bool, as_root: bool) -> Sandbox:
    """This process's sandbox of this isolation. Raises CannotGrade if there can be none.

    require: is only bubblewrap one? as_root: may students' code run as root, where nothing better is?
    """
    kind = isolation, require, as_root
    if kind not in _sandboxes:
        _sandboxes[kind] = _started(*kind)
    return _sandboxes[kind]


def _started(isolation: str, require: bool, as_root: bool) -> Sandbox:
    try:
        sandbox = Sandbox(levels.BUBBLEWRAP if require and isolation == levels.BEST else isolation)
    except SandboxMissing as error:
        raise CannotGrade(f"no sandbox: {error}") from error
    if sandbox.kind != levels.BUBBLEWRAP and (problem := _objection(sandbox, require, as_root)):
        sandbox.close()
        raise CannotGrade(problem)
    return sandbox


def _objection(plain: Sandbox, require: bool, as_root: bool) -> str:
    """Why nothing is graded in a plain process; "" if it may be."""
    if require:
        level = levels.described(plain.kind, plain.why, namespaces=False)
        return f"a sandbox is required, and this is none: {level}"
    if is_root() and not plain.own_user and not as_root:
        return (
            "students' code would run as root, outside of a sandbox: install bubblewrap, grade as an "
            "ordinary user, or give --as-root too"
        )
    return ""


def close() -> None:
    """End this process's sandboxes."""
    while _sandboxes:
        _sandboxes.popitem()[1].close()
