"""Chapter 14, CUDA's caching allocator, simulated: where an address comes from, and what is kept.

`CachingAllocator` is the idea on a page. `CudaAllocator` is the whole of it, on top of the page:
options, events of other streams, expandable segments, a trace, and snapshots in torch's own format.
Both follow `DeviceCachingAllocator` in pytorch's c10/cuda/CUDACachingAllocator.cpp; the constants are
those of c10/core/AllocatorConfig.h in torch 2.13.
"""

from dataclasses import dataclass

import torch

KIB, MIB, GIB = 2**10, 2**20, 2**30
MIN_BLOCK = 512  # kMinBlockSize: every size is rounded up to a multiple of it
SMALL_SIZE = 1 * MIB  # kSmallSize: the largest request that the small pool serves
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer: a segment of the small pool
MIN_LARGE_SEGMENT = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own size
LARGE_SEGMENT = 20 * MIB  # large_segment_size: a segment for several requests of the large pool
ROUND_LARGE = 2 * MIB  # kRoundLarge: the granularity of segments of their own size

Pool = tuple[bool, int]  # is it the small one, and its stream


@dataclass(eq=False)
class Block:
    """A piece of a segment; prev and next are its neighbours there."""

    address: int
    size: int
    pool: Pool
    prev: "Block | None" = None
    next: "Block | None" = None

    def cut(self, size: int) -> "Block":
        """Keep the first `size` bytes; the rest is the new block that is returned."""
        rest = Block(self.address + size, self.size - size, self.pool, self, self.next)
        if rest.next is not None:
            rest.next.prev = rest
        self.size, self.next = size, rest
        return rest

    def absorb(self, near: "Block") -> None:
        """Become one with a neighbour, which is gone afterwards."""
        self.address = min(self.address, near.address)
        self.size += near.size
        if near is self.prev:
            self.prev = near.prev
            if self.prev is not None:
                self.prev.next = self
        else:
            self.next = near.next
            if self.next is not None:
                self.next.prev = self


def format_size(size: int) -> str:
    """Bytes as torch writes them in this error: format_size in CUDACachingAllocator.cpp."""
    if size <= KIB:
        return f"{size} bytes"
    for unit, name in ((KIB, "KiB"), (MIB, "MiB")):
        if size <= unit * KIB:
            return f"{size / unit:.2f} {name}"
    return f"{size / GIB:.2f} GiB"


def out_of_memory(
    tried: int, total: int, free: int, allocated: int, reserved: int, allowed: int | None = None
) -> str:
    """The message of torch's own OutOfMemoryError, with these bytes in it.

    tried: the segment that was asked for, which may be more than the request. free: on the device.
    Wording: malloc in CUDACachingAllocator.cpp. What torch adds there about other
    processes on the device is left out: here is none.
    """
    limit = "" if allowed is None else f"{format_size(allowed)} allowed; "
    return (
        f"CUDA out of memory. Tried to allocate {format_size(tried)}. GPU 0 has a total capacity of "
        f"{format_size(total)} of which {format_size(free)} is free. {limit}Of the allocated memory "
        f"{format_size(allocated)} is allocated by PyTorch, and {format_size(reserved - allocated)} "
        "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


class CachingAllocator:
    """Hands out addresses of a device's memory and keeps what is freed, as torch does for CUDA.

    A request is rounded up to a multiple of 512 B. Up to 1 MiB it belongs to the small pool, above to
    the large one, and each stream has pools of its own. It takes the smallest free block of its pool
    that holds it, of equals the one at the lowest address. Where there is none, the device gives a new
    segment: of 2 MiB for the small pool, 20 MiB below 10 MiB, else the size rounded up to 2 MiB.
    Segments lie one after another from address 0, and no address is given to two of them. A block is
    split if what remains is at least 512 B (small pool) or more than 1 MiB (large). A block that is
    freed merges with its free neighbours in the segment and stays reserved. If the device is
    full, the cache is emptied and the device asked once more, before an error is raised. Source:
    malloc, free_block, should_split and get_allocation_size in c10/cuda/CUDACachingAllocator.cpp.
    """

    def __init__(self, capacity: int):
        """capacity: of the device, in bytes."""
        self.capacity = capacity
        self._free: set[Block] = set()
        self._used: dict[int, Block] = {}
        self._allocated = self._reserved = self._max_allocated = self._max_reserved = 0
        self._end = 0  # of the last segment

    def malloc(self, size: int, stream: int = 0) -> int:
        """The address of a block of at least `size` bytes (1 or more), for work on `stream`.

        Raises torch.OutOfMemoryError where the device cannot give what is needed.
        """
        size = self._rounded(size)
        pool = (size <= SMALL_SIZE, stream)
        block = self._take(size, pool) or self._obtain(size, pool)
        if block is None:
            raise torch.OutOfMemoryError(self._complaint(size))
        if self._splits(block, size):
            self._free.add(block.cut(size))
        self._used[block.address] = block
        self._allocated += block.size
        self._max_allocated = max(self._max_allocated, self._allocated)
        return block.address

    def free(self, address: int) -> None:
        """Give the block at `address` back. Raises ValueError if no block in use begins there."""
        if address not in self._used:
            raise ValueError(f"no block in use begins at address {address}")
        block = self._used.pop(address)
        self._allocated -= block.size
        self._cache(block)

    def empty_cache(self) -> None:
        """Return to the device every segment that is free as a whole."""
        for block in [b for b in self._free if b.prev is None and b.next is None]:
            self._free.remove(block)
            self._reserved -= block.size

    def memory_allocated(self) -> int:
        """Bytes of the blocks in use."""
        return self._allocated

    def memory_reserved(self) -> int:
        """Bytes of all segments."""
        return self._reserved

    def max_memory_allocated(self) -> int:
        """The most that memory_allocated has been."""
        return self._max_allocated

    def max_memory_reserved(self) -> int:
        """The most that memory_reserved has been."""
        return self._max_reserved

    def segments(self) -> list[list[tuple[int, int, bool]]]:
        """The segments by address; of each its blocks: (address, size, is it in use)."""
        blocks = sorted(self._blocks(), key=lambda b: b.address)
        found: list[list[tuple[int, int, bool]]] = []
        for block in blocks:
            if block.prev is None:
                found.append([])
            found[-1].append((block.address, block.size, block not in self._free))
        return found

    def _blocks(self) -> list[Block]:
        return [*self._free, *self._used.values()]

    def _rounded(self, size: int) -> int:
        return MIN_BLOCK * max(1, -(-size // MIN_BLOCK))

    def _take(self, size: int, pool: Pool) -> Block | None:
        """The best free block, out of the cache."""
        fit = [b for b in self._free if b.pool == pool and b.size >= size]
        best = min(fit, key=lambda b: (b.size, b.address), default=None)
        self._free.discard(best)  # type: ignore[arg-type]
        return best

    def _obtain(self, size: int, pool: Pool) -> Block | None:
        """A new segment, after emptying the cache if need be."""
        block = self._new_segment(size, pool)
        if block is None:
            self.empty_cache()
            block = self._new_segment(size, pool)
        return block

    def _new_segment(self, size: int, pool: Pool) -> Block | None:
        size = self._segment_size(size)
        if self._reserved + size > self.capacity:
            return None
        block = Block(self._end, size, pool)
        self._end += size
        self._reserved += size
        self._max_reserved = max(self._max_reserved, self._reserved)
        return block

    def _segment_size(self, size: int) -> int:
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < MIN_LARGE_SEGMENT:
            return LARGE_SEGMENT
        return ROUND_LARGE * -(-size // ROUND_LARGE)

    def _splits(self, block: Block, size: int) -> bool:
        small, _ = block.pool
        rest = block.size - size
        return rest >= MIN_BLOCK if small else rest > SMALL_SIZE

    def _cache(self, block: Block) -> None:
        """Keep the block, as one with its free neighbours."""
        for near in (block.prev, block.next):
            if near in self._free:
                self._free.remove(near)
                block.absorb(near)
        self._free.add(block)

    def _complaint(self, size: int) -> str:
        tried = self._segment_size(size)
        return out_of_memory(
            tried, self.capacity, self.capacity - self._reserved, self._allocated, self._reserved
        )
