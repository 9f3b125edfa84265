"""Pages of memory: how much of a mapped file has been read, counted and not timed.

A page is the unit in which an operating system reads a mapped file: 4 KiB on most machines. Windows
has neither of the two counts.
"""

import ctypes
import mmap
import sys

import numpy as np

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

PAGE = mmap.PAGESIZE
"""Bytes of a page on this machine."""
_CAN_ASK = sys.platform == "linux" or sys.platform == "darwin"


def pages_in_memory(data: np.ndarray) -> np.ndarray | None:
    """For each page of a mapped array, is it in memory? By the system call mincore.

    Of a mapped file these are the pages that any process has read, those read ahead among them, and
    that the system has kept. None where the system cannot be asked.
    """
    if not _CAN_ASK or data.nbytes == 0:
        return None
    address = data.__array_interface__["data"][0]
    start = address - address % PAGE
    pages = -(-(address + data.nbytes - start) // PAGE)
    found = (ctypes.c_ubyte * pages)()
    size = ctypes.c_size_t(pages * PAGE)
    if ctypes.CDLL(None).mincore(ctypes.c_void_p(start), size, found):
        return None
    return (np.frombuffer(found, np.uint8) & 1).astype(bool)


def page_faults() -> int:
    """How often this process has touched a page that it had not mapped yet; 0 on Windows."""
    if resource is None:
        return 0
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt
