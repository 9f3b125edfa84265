"""bubblewrap's command line: what a submission can see at all.

Read-only: Python, its packages, the shared libraries, and of the course what runs on the student's
side. Nothing else of the machine is there: no home, no /etc, no submissions, no tests, no network.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import course_utils

INSIDE = "/course"
VISIBLE = ("__init__.py", "meters", "processes", "ranks", "sandbox", "source")
VISIBLE_OF_GRADING = (
    "__init__.py",
    "distributed",
    "driving",
    "observing",
    "probes",
    "pytrees",
    "student",
)
"""The side that runs a student's code, with what lies below it; nothing that compares or judges."""
HIDDEN = tuple(
    f"course_utils.{name}" for name in ("reference", "exercises", "questions", "authoring")
)
"""Not to be imported at any level of isolation; under bubblewrap the files are not there either."""

_SYSTEM = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_COVERED, _MOVED = ("/tmp", "/dev", "/proc"), "/packages"
"""A submission has a /tmp, /dev and /proc of its own, and does not see the course's own folder: Python's
packages that lie in one of them are seen below `_MOVED`."""
_STORES = ("/nix/store", "/gnu/store")
_CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL")
"""What the process that forks keeps, to give each submission namespaces and a user of its own. The
submission itself has none. In a user namespace they mean nothing outside of it."""


def program() -> str | None:
    """Where bwrap is; None without it."""
    return shutil.which("bwrap")


def is_root() -> bool:
    """Is this process the superuser?"""
    return os.geteuid() == 0


def package() -> Path:
    """The folder of `course_utils`."""
    return Path(course_utils.__file__).parent


def search_path() -> list[str]:
    """sys.path inside: the course, the standard library, the packages."""
    return [INSIDE, *map(_inside, libraries())]


def _inside(path: str) -> str:
    """Where a folder of this machine is seen: where it lies, or, if that is covered, elsewhere."""
    own = package().parent in Path(path).parents
    covered = own or any(Path(path).is_relative_to(top) for top in _COVERED)
    return f"{_MOVED}{path}" if covered else path


def libraries() -> list[str]:
    """The standard library's folders, and the folders of packages on this Python's path."""
    paths = sysconfig.get_paths()
    found = [sysconfig.get_config_var("LIBDEST"), paths["stdlib"], paths["platstdlib"]]
    found += [str(Path(paths["stdlib"], "lib-dynload"))]
    found += [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        found.append(str(Path(torch.origin).parent.parent))
    return [p for p in dict.fromkeys(map(str, found)) if Path(p).is_dir()]


def _folders() -> list[str]:
    """What must be there to run Python, each folder once and none inside another."""
    wanted = [p for p in (*_SYSTEM, *_STORES) if Path(p).is_dir() and not Path(p).is_symlink()]
    wanted += libraries()
    library = sysconfig.get_config_var("LIBDIR")
    wanted += [library] if library and Path(library).is_dir() else []
    wanted += [os.path.realpath(p) for p in wanted]
    found: list[str] = []
    for path in sorted(dict.fromkeys(wanted), key=lambda p: len(Path(p).parts)):
        if not any(Path(path).is_relative_to(p) for p in found):
            found.append(path)
    return found


def command(inner: list[str], environment: dict[str, str]) -> list[str]:
    """bwrap with `inner`, arguments of Python, in it. File descriptors that are inherited stay open."""
    python = os.path.realpath(sys.executable)
    line = [program() or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    line += ["--unshare-uts", "--unshare-cgroup-try", "--new-session", "--hostname", "sandbox"]
    if not is_root():
        line += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    line += ["--cap-drop", "ALL"]
    for name in _CAPABILITIES:
        line += ["--cap-add", f"CAP_{name}"]
    line += ["--clearenv"]
    for name, value in environment.items():
        line += ["--setenv", name, value]
    visible = _folders()
    for path in _SYSTEM:
        if Path(path).is_symlink():
            line += ["--symlink", os.readlink(path), path]
    line += _parents([_inside(path) for path in (*visible, python)])
    for path in (*visible, python):
        line += ["--ro-bind", path, _inside(path)]
    if Path("/etc/ld.so.cache").exists():
        line += ["--perms", "0755", "--dir", "/etc"]
        line += ["--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for path in libraries():  # the course may be installed there, references and all
        if Path(path, "course_utils").is_dir():
            cover = f"{_inside(path)}/course_utils"
            line += ["--tmpfs", cover, "--remount-ro", cover]
    line += _course()
    line += [*_devices(), "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    line += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*line, "--", _inside(python), *inner]


def _parents(paths: list[str]) -> list[str]:
    """The folders above, open to all: bwrap itself would make them root's alone."""
    above = {parent for path in paths for parent in Path(path).parents}
    there = [Path(path) for path in _SYSTEM if Path(path).is_symlink()]
    there += [Path(_inside(path)) for path in _folders()]
    line: list[str] = []
    for folder in sorted(above, key=lambda p: len(p.parts)):
        if not any(folder.is_relative_to(p) for p in there) and folder != Path("/"):
            line += ["--perms", "0755", "--dir", str(folder)]
    return line


def _devices() -> list[str]:
    """A /dev without terminals. With bwrap's own (`--dev`) an ordinary user's process would end up
    in a second user namespace, and have no say over the namespace of processes that it is in."""
    line = ["--perms", "0755", "--tmpfs", "/dev"]
    for name in _DEVICES:
        line += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    return [*line, "--dir", "/dev/shm"]


def _course() -> list[str]:
    """What of the course is seen, at `INSIDE`."""
    home, line = package(), []
    for folder in ("", "/course_utils", "/course_utils/grading"):
        line += ["--perms", "0755", "--dir", INSIDE + folder]
    for name in VISIBLE:
        line += ["--ro-bind", str(home / name), f"{INSIDE}/course_utils/{name}"]
    for name in VISIBLE_OF_GRADING:
        line += ["--ro-bind", str(home / "grading" / name)]
        line += [f"{INSIDE}/course_utils/grading/{name}"]
    return line


def explained(complaint: str) -> str:
    """What bwrap's own words mean, and what to do."""
    said = complaint.strip().splitlines()[-1] if complaint.strip() else "it ended without a word"
    refused = ("uid map", "new namespace", "Operation not permitted", "Permission denied")
    if not any(words in said for words in refused):
        return f"bubblewrap does not start: {said}"
    return (
        f"bubblewrap may not make namespaces here ({said}). On Ubuntu 24.04 give it an AppArmor "
        "profile that allows `userns`, or set kernel.apparmor_restrict_unprivileged_userns=0; "
        "in Docker run the container with --security-opt seccomp=unconfined --security-opt "
        "apparmor=unconfined (or grade outside of it)"
    )
