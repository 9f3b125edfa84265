"""Memory that a process frees, kept for what it does next: on a CPU, where the allocator is glibc's."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """From now on this process keeps the memory that it frees. Says whether it could: with glibc alone.

    glibc takes a large block from the system by itself (mmap) and gives it back when it is
    freed; the system hands out pages of zeros. So a training step, which makes tensors of
    the same sizes again and again, waits each time for the kernel to clear every page, at
    the first touch (a page fault). Without mmap and trimming a page is cleared once in a
    run. The process stays as large as it was at its largest, or somewhat larger, since a
    freed block is not always where the next one fits.
    Source: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):  # musl
        return False
    return bool(libc.mallopt(M_MMAP_MAX, 0) and libc.mallopt(M_TRIM_THRESHOLD, -1))
