"""Make a process that has loaded much cheap to fork, again and again."""

import ctypes
import gc
import sys

HUGE = 1 << 21
MADV_COLLAPSE = 25


def settle() -> None:
    """Before many forks: what is loaded is put into large pages and never visited by the collector.

    A page that a child writes to is copied, and the collector writes to all that it visits. What is
    there now stays for as long as the process.
    """
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        _collapse()


def _collapse() -> None:
    """Put this process's own memory into pages of 2 MiB, where the kernel can (Linux 6.1).

    A fork copies the table of pages and the end of a process takes it down, entry by entry: 60,000
    entries of 4 KiB take ten milliseconds, and a few hundred take two.
    """
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file]
    for where, access, _, device, _, *name in lines:
        if access == "rw-p" and device == "00:00" and name in ([], ["[heap]"]):
            start, end = (int(text, 16) for text in where.split("-"))
            first, last = -(-start // HUGE) * HUGE, end // HUGE * HUGE
            if last > first:
                collapse_between(first, last)


def collapse_between(first: int, last: int) -> bool:
    """Two addresses, multiples of `HUGE`. Says whether the kernel could."""
    madvise = ctypes.CDLL(None).madvise
    found: int = madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)
    return found == 0
