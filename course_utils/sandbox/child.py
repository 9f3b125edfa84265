"""What happens between the fork and a student's first line: everything is taken away.

The order matters: namespaces and mounts need privileges, which go before the filter of system calls,
which comes before any request.
"""

import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from . import frames, namespaces, seccomp
from .proc import address_space


def live(
    channel: int,
    handler: Callable[[], Any],
    message: dict[str, Any],
    folder: str,
    *,
    apart: bool,
    parent: int,
) -> None:
    """Become the process of one submission. Never returns."""
    linux = sys.platform == "linux"
    limits, ranks, layers = message["limits"], message["ranks"], message["layers"]
    if os.getsid(0) != os.getpid():
        os.setsid()
    if linux:
        namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent and not apart and os.getppid() != parent:
            os._exit(0)
    mapped = address_space()
    if apart:
        _separate(limits, ranks)
    else:
        _use_folder(os.path.join(folder, str(message["fork"])))
    channel = _keep_only(channel, limits["files"])
    if linux:
        _drop_privileges(message["uid"])
        namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)  # another user begins without
    if layers["rlimits"]:
        _bound(limits, mapped, linux, limits["tasks_on_ranks" if ranks else "tasks"])
    if layers["seccomp"] and seccomp.available():
        seccomp.install(processes=ranks)
    if ranks and linux:
        from course_utils.ranks import launch

        launch.fork_from_here()
    _serve(channel, handler())


def _separate(limits: dict[str, Any], ranks: bool) -> None:
    """Namespaces of its own (the one of processes it has already), an empty /tmp, no other /proc."""
    kinds = ("NEWNS", "NEWIPC", "NEWUTS", "NEWNET")
    namespaces.unshare(sum(getattr(namespaces, "CLONE_" + kind) for kind in kinds))
    if ranks:
        namespaces.raise_loopback()
    safe = namespaces.MS_NOSUID | namespaces.MS_NODEV
    namespaces.mount("none", "/", None, namespaces.MS_REC | namespaces.MS_PRIVATE)
    if ranks:  # torch.distributed's watchers read /proc/self; here it shows this submission only
        _proc(safe)
    else:
        namespaces.mount("none", "/proc", "tmpfs", safe | namespaces.MS_RDONLY, "size=4k")
    room = f"size={limits['tmp']},nr_inodes={limits['tmp_files']},mode=1777"
    namespaces.mount("none", "/tmp", "tmpfs", safe, room)
    namespaces.mount("none", "/dev/shm", "tmpfs", safe, room)
    os.chdir("/tmp")


def _use_folder(path: str) -> None:
    os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = path
    os.chdir(path)


def _proc(safe: int) -> None:
    """Mount a /proc that shows this namespace's processes only."""
    try:
        namespaces.mount("proc", "/proc", "proc", safe | namespaces.MS_NOEXEC)
    except PermissionError:  # where the host's own /proc is partly covered, as in Docker
        namespaces.mount("none", "/proc", "tmpfs", safe | namespaces.MS_RDONLY, "size=4k")


def _keep_only(channel: int, files: int) -> int:
    """Close all files but the channel, which gets a number of no meaning; the streams lead nowhere."""
    spare = random.SystemRandom().randrange(files // 2, files - 8)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.dup2(channel, spare, inheritable=False)
    os.closerange(3, spare)
    os.closerange(spare + 1, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], spare + 1))
    return spare


def _drop_privileges(uid: int | None) -> None:
    namespaces.libc.prctl(
        namespaces.PR_SET_NO_NEW_PRIVS, *[namespaces.Word(n) for n in (1, 0, 0, 0)]
    )
    namespaces.drop_bounding_set()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    namespaces.drop_capabilities()


def _bound(limits: dict[str, Any], mapped: int, linux: bool, tasks: int) -> None:
    cpu = max(1, int(limits["cpu_s"] + 0.999))
    most = {
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_CPU": (cpu, cpu + 1),
        "RLIMIT_FSIZE": (limits["file_size"],) * 2,
        "RLIMIT_NOFILE": (limits["files"],) * 2,
        "RLIMIT_NPROC": (tasks, tasks),
        "RLIMIT_MEMLOCK": (0, 0),
        "RLIMIT_MSGQUEUE": (0, 0),
        "RLIMIT_RTPRIO": (0, 0),
    }
    if linux and mapped:
        most["RLIMIT_AS"] = (mapped + limits["memory"],) * 2
    for name, pair in most.items():
        kind = getattr(resource, name, None)
        if kind is not None:
            hard = resource.getrlimit(kind)[1]
            top = [n if hard == resource.RLIM_INFINITY else min(n, hard) for n in pair]
            resource.setrlimit(kind, (top[0], top[1]))


def _serve(channel: int, handler: Any) -> None:
    while (asked := frames.read_request(channel)) is not None:
        token, request = asked
        frames.write_reply(channel, token, handler.handle(request))
    os._exit(0)
