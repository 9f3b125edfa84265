"""A filter of system calls, assembled by hand: what a submission has no use for answers EPERM.

The kernel runs the filter, a program of classic BPF, at every system call of the process, its
threads and its children; it cannot be taken off again. Linux on x86_64 and aarch64.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

from .namespaces import PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, called, libc, prctl

SECCOMP_MODE_FILTER = 2
ALLOW = 0x7FFF0000
KILL = 0x80000000
ERRNO = 0x00050000

LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# offsets in struct seccomp_data, little-endian
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000  # x86_64's other set of numbers for the same calls

CLONE_THREAD = 0x00010000
CLONE_NEW = 0x7E020000  # every namespace, CLONE_NEWTIME (0x80) aside, which clone cannot make

_NONE = -1
DENIED = {  # numbers on x86_64 and aarch64
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "tkill": (200, 130),
    # namespaces and file systems
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    # parts of the kernel with a history of holes
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "personality": (135, 92),
    "modify_ldt": (154, _NONE),
    # memory that no limit of a process counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # the machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, _NONE),
    "ioperm": (173, _NONE),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    # other programs
    "execve": (59, 221),
    "execveat": (322, 281),
}
NEW_PROCESS = {"fork": (57, _NONE), "vfork": (58, _NONE)}
SIGNALS = {"kill": (62, 129), "tgkill": (234, 131)} | {
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
CLONE, CLONE3, SOCKET, PRLIMIT = (56, 220), (435, 435), (41, 198), (302, 261)
SETSOCKOPT, SOL_SOCKET = (54, 208), 1
BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF, and both by force: what lies in a socket is the kernel's memory, which no limit of
a process counts."""

AF_UNIX, AF_INET, AF_NETLINK, AF_INET6 = 1, 2, 16, 10
_FOR_RANKS = (
    AF_UNIX,
    AF_INET,
    AF_INET6,
    AF_NETLINK,
)  # netlink: gloo asks which interfaces there are

Instruction = tuple[int, int, int, int]


def available() -> bool:
    """Is there a filter for this machine's system and processor?"""
    return sys.platform == "linux" and platform.machine() in ARCHITECTURES


def _denied(code: int = errno.EPERM) -> Instruction:
    return RETURN, 0, 0, ERRNO | code


def _only(number: int, block: list[Instruction]) -> list[Instruction]:
    """`block`, which returns on every path, for one system call; else go on behind it."""
    return [(JUMP_EQUAL, 0, len(block), number), *block] if number >= 0 else []


def _first_argument_in(values: tuple[int, ...]) -> list[Instruction]:
    block: list[Instruction] = [(LOAD, 0, 0, _FIRST_ARGUMENT)]
    for value in values:
        block += [(JUMP_EQUAL, 0, 1, value & 0xFFFFFFFF), (RETURN, 0, 0, ALLOW)]
    return [*block, _denied()]


def _buffers_as_they_are() -> list[Instruction]:
    """Who asks for other buffers of a socket is told that it is done, and nothing is."""
    kept: list[Instruction] = [(LOAD, 0, 0, _THIRD_ARGUMENT)]
    for option in BUFFER_SIZES:
        kept += [(JUMP_EQUAL, 0, 1, option), _denied(0)]
    kept += [(RETURN, 0, 0, ALLOW)]
    return [
        (LOAD, 0, 0, _SECOND_ARGUMENT),
        (JUMP_EQUAL, 0, len(kept), SOL_SOCKET),
        *kept,
        (RETURN, 0, 0, ALLOW),
    ]


def program(machine: str, pid: int, *, processes: bool) -> list[Instruction]:
    """The filter for the process `pid`. processes: are new processes and sockets allowed (ranks)?"""
    which, architecture = ARCHITECTURES[machine]
    found: list[Instruction] = [
        (LOAD, 0, 0, _ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        found += [(JUMP_ABOVE, 0, 1, _X32), _denied(errno.ENOSYS)]
    for numbers in DENIED.values():
        found += _only(numbers[which], [_denied()])
    # glibc falls back on clone, whose flags can be seen here, only if clone3 does not exist at all
    found += _only(CLONE3[which], [_denied(errno.ENOSYS)])
    clone: list[Instruction] = [
        (LOAD, 0, 0, _FIRST_ARGUMENT),
        (JUMP_BITS, 0, 1, CLONE_NEW),
        _denied(),
    ]
    if processes:
        sockets = _first_argument_in(_FOR_RANKS)
    else:
        clone += [(JUMP_BITS, 1, 0, CLONE_THREAD), _denied()]
        sockets = [_denied()]
        for numbers in NEW_PROCESS.values():
            found += _only(numbers[which], [_denied()])
        for numbers in SIGNALS.values():
            found += _only(numbers[which], _first_argument_in((pid,)))
    found += _only(CLONE[which], [*clone, (RETURN, 0, 0, ALLOW)])
    found += _only(SOCKET[which], sockets)
    found += _only(SETSOCKOPT[which], _buffers_as_they_are())
    found += _only(PRLIMIT[which], _first_argument_in((0, pid)))
    return [*found, (RETURN, 0, 0, ALLOW)]


def install(*, processes: bool) -> None:
    """Filter this process from now on. Raises OSError where the kernel has no such filters."""
    lines = program(platform.machine(), os.getpid(), processes=processes)
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in lines))
    whole = struct.pack("@HP", len(lines), ctypes.addressof(code))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    word = ctypes.c_ulong
    called(
        "seccomp", libc.prctl(PR_SET_SECCOMP, word(SECCOMP_MODE_FILTER), whole, word(0), word(0))
    )
