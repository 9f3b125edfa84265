"""What one submission may use."""

from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What the code of one submission may use, before its process is killed or told no.

    wall_s: seconds that all its requests may take together. cpu_s: seconds of CPU time, all its
    processes in turn. memory: bytes of address space of one process, beyond what Python and torch
    had before; with ranks, of what all its processes hold together as well. tasks: threads at a
    time; tasks_on_ranks: threads and processes, where it may start processes. files: open files of
    one process. sockets: that all processes of a submission may hold together, where it may have a
    network: what lies in them is the kernel's memory. file_size: bytes of one file. tmp: bytes of
    all files in /tmp; tmp_files: their number, since an empty one takes the kernel's memory.
    reply: bytes of one reply.
    """

    wall_s: float = 300.0
    cpu_s: float = 300.0
    memory: int = 2048 * _MIB
    tasks: int = 128
    tasks_on_ranks: int = 512
    files: int = 512
    sockets: int = 512
    file_size: int = 64 * _MIB
    tmp: int = 128 * _MIB
    tmp_files: int = 16_384
    reply: int = 64 * _MIB
