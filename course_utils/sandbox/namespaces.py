"""The kernel's calls that Python has no name for: namespaces, mounts, capabilities, prctl (Linux)."""

import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REC, MS_PRIVATE = 0x4000, 0x40000

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63  # a number that the kernel does not know is refused, which does no harm

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1

libc = ctypes.CDLL(None, use_errno=True)
Word = ctypes.c_ulong


def called(name: str, result: int) -> int:
    """The result of a system call. Raises OSError with the call's name if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """unshare(2). flags: CLONE_NEW… Raises OSError."""
    called("unshare", libc.unshare(flags))


def setns(fd: int, kind: int) -> None:
    """setns(2): enter the namespace of this kind that fd stands for. Raises OSError."""
    called("setns", libc.setns(fd, kind))


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError."""

    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    found = libc.mount(text(source), text(target), text(kind), Word(flags), text(data))
    called(f"mount {target}", found)


def prctl(option: int, first: int = 0, second: int = 0) -> int:
    """prctl(2). Raises OSError."""
    return called("prctl", libc.prctl(option, Word(first), Word(second), Word(0), Word(0)))


def drop_bounding_set() -> None:
    """No capability can come back, whatever is run. Needs CAP_SETPCAP; without it nothing happens."""
    for number in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, Word(number), Word(0), Word(0), Word(0))


def drop_capabilities() -> None:
    """Give up every capability, the ambient ones first. Raises OSError."""
    libc.prctl(PR_CAP_AMBIENT, Word(PR_CAP_AMBIENT_CLEAR_ALL), Word(0), Word(0), Word(0))
    header = struct.pack("<II", CAPABILITY_VERSION_3, 0)
    called("capset", libc.capset(header, bytes(24)))


def may_administer() -> bool:
    """Has this process CAP_SYS_ADMIN in its user namespace?"""
    header = ctypes.create_string_buffer(struct.pack("<II", CAPABILITY_VERSION_3, 0))
    sets = ctypes.create_string_buffer(24)
    called("capget", libc.capget(header, sets))
    effective: int = struct.unpack("<6I", sets.raw)[0]
    return bool(effective >> 21 & 1)


def raise_loopback() -> None:
    """Bring up `lo` in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
