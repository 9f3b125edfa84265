"""What /proc says of processes and their memory."""

import os
import resource
from contextlib import suppress


def descendants() -> list[int]:
    """Processes below this one, orphans included (see PR_SET_CHILD_SUBREAPER), that are not zombies."""
    parents: dict[int, tuple[int, str]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            parents[int(name)] = int(parent), state.decode()
    below = {os.getpid()}
    while more := {pid for pid, (parent, _) in parents.items() if parent in below} - below:
        below |= more
    return [pid for pid in below - {os.getpid()} if parents[pid][1] not in "ZX"]


def anonymous_memory() -> int:
    """Bytes that the descendants hold for themselves alone, but for what they had from the fork."""
    own = _status_bytes(os.getpid())
    return sum(max(0, _status_bytes(pid) - own) for pid in descendants())


def sockets_in_network_of(pid: int) -> int:
    """Sockets that there are in the network namespace of a process; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/net/sockstat") as file:
            return int(file.readline().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def _status_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    except (OSError, KeyError):
        return 0


def address_space() -> int:
    """Bytes that this process has mapped; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0
