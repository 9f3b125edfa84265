"""Chapter 14, CUDA's caching allocator, simulated: where an address comes from, and what is kept.

`CachingAllocator` is the idea on a page. `CudaAllocator` is the whole of it, on top of the page:
options, events of other streams, expandable segments, a trace, and snapshots in torch's own format.
Both follow `DeviceCachingAllocator` in pytorch's c10/cuda/CUDACachingAllocator.cpp, read at commit
001074d2 and in a later copy of the main branch, which is followed where they differ; the constants
are those of c10/core/AllocatorConfig.h in torch 2.13.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary

import torch

KIB, MIB, GIB = 2**10, 2**20, 2**30
MIN_BLOCK = 512  # kMinBlockSize: every size is rounded up to a multiple of it
SMALL_SIZE = 1 * MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer: a segment of the small pool
MIN_LARGE_SEGMENT = 10 * MIB  # kMinLargeAlloc: larger requests get a segment of their own size
LARGE_SEGMENT = 20 * MIB  # large_segment_size: a segment for several requests of the large pool
ROUND_LARGE = 2 * MIB  # kRoundLarge: what a segment's own size is rounded up to

Pool = tuple[bool, int]  # is it the small one, and its stream


@dataclass(eq=False)
class MemoryBlock:
    """A piece of a segment; prev and next are its neighbours there."""

    address: int
    size: int
    pool: Pool
    prev: "MemoryBlock | None" = None
    next: "MemoryBlock | None" = None

    def cut(self, size: int) -> "MemoryBlock":
        """Keep the first `size` bytes; the rest is the new block that is returned."""
        rest = MemoryBlock(self.address + size, self.size - size, self.pool, self, self.next)
        if rest.next is not None:
            rest.next.prev = rest
        self.size, self.next = size, rest
        return rest

    def absorb(self, near: "MemoryBlock") -> None:
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


def out_of_memory(allocator: "CachingAllocator", tried: int, allowed: int | None = None) -> str:
    """The message of torch's own OutOfMemoryError, with the allocator's bytes in it.

    tried: the segment that was asked for, which may be more than the request. allowed:
    of the device, where that is limited. Wording: malloc in CUDACachingAllocator.cpp.
    What torch says there of processes on the device is left out: here is none.
    """
    allocated, reserved = allocator.memory_allocated(), allocator.memory_reserved()
    limit = "" if allowed is None else f"{format_size(allowed)} allowed; "
    return (
        f"CUDA out of memory. Tried to allocate {format_size(tried)}. GPU 0 has a total capacity of "
        f"{format_size(allocator.capacity)} of which {format_size(allocator.capacity - reserved)} is "
        f"free. {limit}Of the allocated memory {format_size(allocated)} is allocated by PyTorch, and "
        f"{format_size(reserved - allocated)} is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        "avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/"
        "stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


class CachingAllocator:
    """Hands out addresses of a device's memory and keeps what is freed, as torch does for CUDA.

    Requests are rounded up to multiples of 512 B; up to 1 MiB they go to the small pool
    of their stream, above to its large one. Best fit; of equals the lowest address. Else
    a new segment: 2 MiB (small), 20 MiB below 10 MiB, or the size rounded up to whole 2 MiB.
    Segments follow one another from address 0; none is given twice. A request takes the
    beginning of a block; a rest of at least 512 B (small) or more than 1 MiB (large) is
    split off. What is freed merges with free neighbours in its segment and stays reserved.
    Without room for a new segment, empty the cache and try once more. Source:
    DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp."""

    def __init__(self, capacity: int):
        """capacity: of the device, in bytes; no more are reserved at any time."""
        self.capacity = capacity
        self._free: set[MemoryBlock] = set()
        self._used: dict[int, MemoryBlock] = {}
        self._allocated = self._reserved = 0
        self._end = 0  # of the last segment

    def malloc(self, size: int, stream: int = 0) -> int:
        """The address of `size` (1 or more) bytes for a stream. Raises torch.OutOfMemoryError."""
        size = self._rounded(size)
        pool = (size <= SMALL_SIZE, stream)
        block = self._take(size, pool) or self._obtain(size, pool)
        if block is None:
            raise torch.OutOfMemoryError(out_of_memory(self, self._segment_size(size)))
        if self._splits(block, size):
            self._free.add(block.cut(size))
        self._used[block.address] = block
        self._allocated += block.size
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
            self._release(block)

    def memory_allocated(self) -> int:
        """Bytes of the blocks in use."""
        return self._allocated

    def memory_reserved(self) -> int:
        """Bytes of all segments."""
        return self._reserved

    def segments(self) -> list[list[tuple[int, int, bool]]]:
        """Segments, and in each its blocks, by address: (address, size, is it in use)."""
        blocks = self._blocks()
        found: list[list[tuple[int, int, bool]]] = []
        for block in sorted(blocks, key=lambda b: b.address):
            if block.prev not in blocks:
                found.append([])
            found[-1].append((block.address, block.size, block not in self._free))
        return found

    def _blocks(self) -> set[MemoryBlock]:
        return self._free | set(self._used.values())

    def _rounded(self, size: int) -> int:
        return MIN_BLOCK * -(-size // MIN_BLOCK)

    def _take(self, size: int, pool: Pool) -> MemoryBlock | None:
        """The best free block, out of the cache."""
        fit = [b for b in self._free if b.pool == pool and b.size >= size]
        best = min(fit, key=lambda b: (b.size, b.address), default=None)
        self._free.discard(best)  # type: ignore[arg-type]
        return best

    def _obtain(self, size: int, pool: Pool) -> MemoryBlock | None:
        """A new segment, after emptying the cache if need be."""
        block = self._new_segment(size, pool)
        if block is None:
            self.empty_cache()
            block = self._new_segment(size, pool)
        return block

    def _new_segment(self, size: int, pool: Pool) -> MemoryBlock | None:
        size = self._segment_size(size)
        if self._reserved + size > self.capacity:
            return None
        block = MemoryBlock(self._end, size, pool)
        self._end += size
        self._reserved += size
        return block

    def _segment_size(self, size: int) -> int:
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < MIN_LARGE_SEGMENT:
            return LARGE_SEGMENT
        return ROUND_LARGE * -(-size // ROUND_LARGE)

    def _splits(self, block: MemoryBlock, size: int) -> bool:
        small, _ = block.pool
        rest = block.size - size
        return rest >= MIN_BLOCK if small else rest > SMALL_SIZE

    def _cache(self, block: MemoryBlock) -> None:
        """Keep the block, as one with its free neighbours."""
        for near in (block.prev, block.next):
            if near in self._free:
                self._free.remove(near)
                block.absorb(near)
        self._free.add(block)

    def _release(self, block: MemoryBlock) -> None:
        """Give a segment back to the device."""
        self._free.remove(block)
        self._reserved -= block.size


# ------------------------------------------------------------------------------ the whole of it


@dataclass(frozen=True)
class AllocatorConfig:
    """The options of PYTORCH_ALLOC_CONF that decide where a block lies; sizes in bytes.

    max_split_size: blocks of this size or more are never split; None for no limit.
    max_non_split_rounding: by how much such a block may exceed the request that takes
    it. large_segment_size: of segments that several requests of 1 to 10 MiB share.
    roundup_power2: parts into which each power of two is divided, for sizes from 1 MiB,
    from 2 MiB, …, 0 for none. garbage_collection_threshold: share of the allowed memory
    above which cached blocks are freed by age, 0 for never. memory_fraction: of the
    capacity that may be reserved. Source: AllocatorConfig.h (torch 2.13) and parseArgs
    in AllocatorConfig.cpp and CUDAAllocatorConfig.cpp.
    """

    max_split_size: int | None = None
    max_non_split_rounding: int = 20 * MIB
    large_segment_size: int = LARGE_SEGMENT
    roundup_power2: tuple[int, ...] = (0,) * 16
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    memory_fraction: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "AllocatorConfig":
        """From a string such as "max_split_size_mb:200,expandable_segments:True".

        Raises ValueError where torch does. Options of other parts of torch (pinned
        memory, the backend) are taken and change nothing here; an unknown option
        raises.
        """
        config = cls()
        large_first = sorted(options_of(text), key=lambda o: o[0] != "large_segment_size_mb")
        for name, value in large_first:
            config = replace(config, **config._option(name, value))
        return config

    def _option(self, name: str, value: str) -> dict[str, Any]:
        """The fields that the option sets."""
        large_mb = self.large_segment_size // MIB
        match name:
            case "max_split_size_mb" | "max_non_split_rounding_mb":
                if int(value) < large_mb:
                    raise ValueError(
                        f"CachingAllocator option {name} too small, must be >= {large_mb}"
                    )
                return {name.removesuffix("_mb"): int(value) * MIB}
            case "large_segment_size_mb":
                if int(value) <= MIN_LARGE_SEGMENT // MIB:
                    raise ValueError(
                        "CachingAllocator option large_segment_size_mb must be > "
                        f"{MIN_LARGE_SEGMENT // MIB} MB"
                    )
                return {"large_segment_size": int(value) * MIB}
            case "roundup_power2_divisions":
                return {"roundup_power2": divisions_of(value)}
            case "garbage_collection_threshold":
                if not 0 < float(value) < 1:
                    raise ValueError("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
                return {name: float(value)}
            case "expandable_segments":
                if value not in ("True", "False"):
                    raise ValueError(f"Expected 'True' or 'False' but got {value!r}")
                return {name: value == "True"}
            case "per_process_memory_fraction":
                if not 0 <= float(value) <= 1:
                    raise ValueError("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
                return {"memory_fraction": float(value)}
        if name in NOT_SIMULATED:
            return {}
        raise ValueError(f"Unrecognized CachingAllocator option: {name}")


NOT_SIMULATED = {
    "backend",
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "pinned_use_background_threads",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
}


def options_of(text: str) -> list[tuple[str, str]]:
    """Names and values of "a:1,b:[x:1,>:2]"; a value in brackets keeps its commas."""
    pattern = r"([^,:\[\]]+):(\[[^\]]*\]|[^,:\[\]]+)(?:,|$)"
    text = re.sub(r"\s", "", text)
    if re.sub(pattern, "", text):
        raise ValueError(f"cannot read {text!r}: write options as name:value, with commas between")
    return re.findall(pattern, text)


def divisions_of(value: str) -> tuple[int, ...]:
    """The 16 numbers of roundup_power2_divisions, from "4" or "[256:1,512:2,>:4]".

    Source: parseRoundUpPower2Divisions in c10/core/AllocatorConfig.cpp.
    """
    found = [0] * 16
    if not value.startswith("["):
        return (power_of_two(int(value)),) * 16
    last = -1
    for size, divisions in (item.split(":") for item in value.strip("[]").split(",")):
        parts = int(divisions) and power_of_two(int(divisions))
        if size == ">":
            found[last + 1 :] = [parts] * len(found[last + 1 :])
            continue
        index = min(power_of_two(int(size)).bit_length() - 1, 15)
        if last < 0:
            found[:index] = [parts] * index
        found[index] = parts
        last = index
    return tuple(found)


def power_of_two(n: int) -> int:
    """n itself. Raises ValueError where it is no power of two."""
    if n < 1 or n & (n - 1):
        raise ValueError(f"For roundups, sizes and divisions have to be powers of 2; came {n}")
    return n


@dataclass(eq=False)
class ExpandableSegment:
    """Addresses set aside for one stream and pool; pages of them are backed by memory when needed.

    Source: ExpandableSegment in CUDACachingAllocator.cpp: 1⅛ of the device's memory in
    addresses.
    """

    start: int
    page: int
    pages: int

    @property
    def size(self) -> int:
        return self.page * self.pages


class CudaAllocator(CachingAllocator):
    """`CachingAllocator` with what torch's has besides: options, events, expandable segments, a trace.

    One device, no CUDA graphs and no private pools. `snapshot` gives what
    torch.cuda.memory._snapshot gives. Each method follows the one of
    DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp that its docstring
    names.
    """

    def __init__(self, capacity: int, conf: str | AllocatorConfig = ""):
        """capacity: of the device, in bytes. conf: as in PYTORCH_ALLOC_CONF. Raises ValueError."""
        super().__init__(capacity)
        self._max_allocated = self._max_reserved = 0
        self.config = AllocatorConfig.parse(conf) if isinstance(conf, str) else conf
        fraction = self.config.memory_fraction
        self.allowed = int(fraction * capacity) if fraction < 1 else None
        self.trace: list[dict[str, Any]] = []
        self.frames: list[dict[str, Any]] = []  # what the next entries say of their origin
        self.places: list[int] = []  # addresses for the next segments, where they are known
        self._requested: dict[MemoryBlock, int] = {}  # of blocks in use or awaiting events
        self._origin: dict[MemoryBlock, list[dict[str, Any]]] = {}
        self._uses: dict[MemoryBlock, set[int]] = {}  # other streams that work on it
        self._events: list[
            tuple[int, MemoryBlock]
        ] = []  # one for each use of a block that was freed
        self._complete: list[MemoryBlock] = []  # one for each event that is over
        self._waiting: dict[MemoryBlock, int] = {}  # freed blocks and their outstanding events
        self._unmapped: set[MemoryBlock] = set()  # addresses without memory
        self._expandable: list[ExpandableSegment] = []
        self._searches = {True: 0, False: 0}  # of the small pools and the large ones
        self._born: WeakKeyDictionary[MemoryBlock, int] = (
            WeakKeyDictionary()
        )  # the count when it was freed

    # ---- malloc and free

    def malloc(self, size: int, stream: int = 0) -> int:
        """As in `CachingAllocator`. Source: malloc, alloc_found_block."""
        self._process_events()
        try:
            address = super().malloc(size, stream)
        except torch.OutOfMemoryError:
            size = self._rounded(size)
            self._record("oom", self.device_free(), size, stream)
            message = out_of_memory(self, self._segment_size(size), self.allowed)
            raise torch.OutOfMemoryError(message) from None
        block = self._used[address]
        self._max_allocated = max(self._max_allocated, self._allocated)
        self._requested[block], self._origin[block] = size, self.frames
        self._record("alloc", address, size, stream)
        return address

    def free(self, address: int) -> None:
        """As in `CachingAllocator`; a block that other streams use waits for them. Source: free."""
        block = self._used.get(address)
        if block is not None:
            self._record("free_requested", address, self._requested[block], block.pool[1])
        super().free(address)

    def record_stream(self, address: int, stream: int) -> None:
        """The block in use at `address` is used on that stream too. Source: recordStream."""
        block = self._used[address]
        if stream != block.pool[1]:
            self._uses.setdefault(block, set()).add(stream)

    def synchronize(self, stream: int | None = None) -> None:
        """The work queued so far on the stream, or on all streams, is done.

        What waited for it is free from the next malloc on, which is when torch asks.
        """
        over = [(s, b) for s, b in self._events if stream is None or s == stream]
        self._events = [event for event in self._events if event not in over]
        self._complete += [block for _, block in over]

    def max_memory_allocated(self) -> int:
        """The most that memory_allocated has been."""
        return self._max_allocated

    def max_memory_reserved(self) -> int:
        """The most that memory_reserved has been."""
        return self._max_reserved

    def memory_requested(self) -> int:
        """Bytes that were asked for, of blocks in use or awaiting events: requested_bytes."""
        return sum(self._requested.values())

    def memory_active(self) -> int:
        """Bytes of blocks in use or awaiting events: active_bytes."""
        return self._allocated + sum(block.size for block in self._waiting)

    def device_free(self) -> int:
        """Bytes that the device could still give."""
        return self.capacity - self._reserved

    def _cache(self, block: MemoryBlock) -> None:
        """Source: free, insert_events."""
        uses = self._uses.pop(block, None)
        if uses:
            self._waiting[block] = len(uses)
            self._events += [(stream, block) for stream in sorted(uses)]
        else:
            self._complete_free(block)

    def _complete_free(self, block: MemoryBlock) -> None:
        """Source: free_block."""
        size, stream = self._requested.pop(block), block.pool[1]
        self._origin.pop(block)
        self._record("free_completed", block.address, size, stream)
        self._keep(block)

    def _keep(self, block: MemoryBlock) -> None:
        """Source: try_merge_blocks, insert_into_blocks."""
        super()._cache(block)
        self._born[block] = self._searches[block.pool[0]]

    def _process_events(self) -> None:
        """Source: process_events."""
        complete, self._complete = self._complete, []
        for block in complete:
            self._waiting[block] -= 1
            if not self._waiting[block]:
                del self._waiting[block]
                self._complete_free(block)

    def _blocks(self) -> set[MemoryBlock]:
        return super()._blocks() | set(self._waiting)

    # ---- which block, and how much of it

    def _rounded(self, size: int) -> int:
        """Source: round_size, roundup_power2_next_division."""
        index = min(max(size.bit_length() - 21, 0), 15)
        divisions = self.config.roundup_power2[index]
        if divisions <= 1 or size <= MIN_BLOCK * divisions:
            return super()._rounded(size)
        step = (1 << (size.bit_length() - 1)) // divisions
        return step * -(-size // step)

    def _segment_size(self, size: int) -> int:
        """Source: get_allocation_size."""
        if SMALL_SIZE < size < MIN_LARGE_SEGMENT:
            return self.config.large_segment_size
        return super()._segment_size(size)

    def _splits(self, block: MemoryBlock, size: int) -> bool:
        """Source: should_split."""
        if self.config.expandable_segments:
            return block.size - size >= MIN_BLOCK
        return super()._splits(block, size) and (block.pool[0] or not self._oversize(size))

    def _oversize(self, size: int) -> bool:
        return self.config.max_split_size is not None and size >= self.config.max_split_size

    def _take(self, size: int, pool: Pool) -> MemoryBlock | None:
        """Source: get_free_block."""
        self._searches[pool[0]] += 1
        fit = [b for b in self._free if b.pool == pool and b.size >= size]
        fit.sort(key=lambda b: (b.size, b.address))
        if not fit:
            return None
        best = self._best_expandable(fit) if self.config.expandable_segments else fit[0]
        if self._oversize(best.size) and not self._oversize(size):
            return None
        if self._oversize(size) and best.size >= size + self.config.max_non_split_rounding:
            return None
        self._free.remove(best)
        return best

    def _best_expandable(self, fit: list[MemoryBlock]) -> MemoryBlock:
        """Of a block that can grow, the size counts to which it can. Source: get_free_block."""

        def grown(b: MemoryBlock) -> int:
            return b.size + (b.next.size if b.next is not None and b.next in self._unmapped else 0)

        best, *others = fit
        for other in others:
            if grown(other) >= grown(best):
                break
            best = other
        return best

    # ---- segments, and what gives way to them

    def _obtain(self, size: int, pool: Pool) -> MemoryBlock | None:
        """Source: malloc."""
        threshold, expandable = (
            self.config.garbage_collection_threshold,
            self.config.expandable_segments,
        )
        if self.allowed is not None and threshold > 0 and not expandable:
            self._collect_garbage(int(threshold * self.allowed))
        block = self._new_segment(size, pool)
        if block is None and self._release_oversize(size, pool):
            block = self._new_segment(size, pool)
        if block is None:
            self.empty_cache()
            block = self._new_segment(size, pool)
        return block

    def _new_segment(self, size: int, pool: Pool) -> MemoryBlock | None:
        """Source: alloc_block."""
        if self.allowed is not None and self._reserved + self._segment_size(size) > self.allowed:
            return None
        if self.config.expandable_segments:
            return self._expand(size, pool)
        if self.places:
            self._end = self.places.pop(0)
        block = super()._new_segment(size, pool)
        if block is not None:
            self._max_reserved = max(self._max_reserved, self._reserved)
            self._record("segment_alloc", block.address, block.size, pool[1])
        return block

    def empty_cache(self) -> None:
        """As in `CachingAllocator`, once all events are over. Source: release_cached_blocks."""
        self.synchronize()
        self._process_events()
        for small in (False, True):
            blocks = [b for b in self._free if b.pool[0] == small]
            blocks.sort(key=lambda b: (b.pool[1], b.size, b.address))
            for block in blocks:
                if self.config.expandable_segments:
                    self._unmap(block)
                elif self._is_whole(block):
                    self._release(block)

    def _is_whole(self, block: MemoryBlock) -> bool:
        return block.prev is None and block.next is None

    def _release(self, block: MemoryBlock) -> None:
        """Source: release_block."""
        self._record("segment_free", block.address, block.size, block.pool[1])
        super()._release(block)

    def _release_oversize(self, size: int, pool: Pool) -> bool:
        """Free blocks that may not be split, until the request fits. Source: release_available_cached_blocks."""
        if self.config.max_split_size is None or self.config.expandable_segments:
            return False
        size = max(size, self.config.max_split_size)
        mine = [b for b in self._free if b.pool == pool]
        mine.sort(key=lambda b: (b.size, b.address))
        enough = [b for b in mine if b.size >= size]
        if enough:
            self._release(enough[0])
            return True
        released = 0
        for block in reversed(mine):
            if released >= size or not self._oversize(block.size):
                break
            released += block.size
            self._release(block)
        return released >= size

    def _collect_garbage(self, threshold: int) -> None:
        """Free large cached blocks older than the average. Source: garbage_collect_cached_blocks."""
        target, reclaimed = self._reserved - threshold, 0

        def age(block: MemoryBlock) -> int:
            return self._searches[False] - self._born[block]

        while reclaimed < target:
            cached = [b for b in self._free if not b.pool[0] and self._is_whole(b)]
            total, count = sum(map(age, cached)), len(cached)
            old = [b for b in cached if age(b) >= total / count]
            for block in sorted(old, key=lambda b: (b.pool[1], b.size, b.address)):
                reclaimed += block.size
                self._release(block)
            if not old:
                return

    # ---- expandable segments

    def _segment_of(self, block: MemoryBlock) -> ExpandableSegment:
        return next(s for s in self._expandable if s.start <= block.address < s.start + s.size)

    def _expand(self, size: int, pool: Pool) -> MemoryBlock | None:
        """Map memory at the lowest addresses that give room. Source: try_allocate_expandable_block."""
        block = self._room(size, pool)
        if block in self._unmapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            more = block.next
            assert more is not None
            if not self._map(more, min(size - block.size, more.size)):
                return None
            block = more
        self._free.remove(block)
        return block

    def _room(self, size: int, pool: Pool) -> MemoryBlock:
        """Where free and unmapped addresses in a row suffice. Source: find_expandable_block."""
        mine = [b for b in self._unmapped if b.pool == pool]
        for first in sorted(mine, key=lambda b: b.address):
            if first.prev is not None and first.prev in self._free:
                first = first.prev
            room, block = 0, first
            while block is not None and (block in self._free or block in self._unmapped):
                room += block.size
                block = block.next  # type: ignore[assignment]
            if room >= size:
                return first
        return self._reserve_addresses(pool)

    def _reserve_addresses(self, pool: Pool) -> MemoryBlock:
        if self.places:
            self._end = self.places[0]
        page = SMALL_SEGMENT if pool[0] else self.config.large_segment_size
        pages = -(-(self.capacity + self.capacity // 8) // page)
        segment = ExpandableSegment(self._end, page, pages)
        self._end += segment.size
        self._expandable.append(segment)
        block = MemoryBlock(segment.start, segment.size, pool)
        self._unmapped.add(block)
        return block

    def _map(self, block: MemoryBlock, size: int) -> bool:
        """Back the first pages of an unmapped block. Source: map_block, ExpandableSegment::map."""
        page = self._segment_of(block).page
        size = page * -(-size // page)
        if self._reserved + size > self.capacity:
            return False
        self._unmapped.remove(block)
        if size < block.size:
            self._unmapped.add(block.cut(size))
        self._reserved += size
        self._max_reserved = max(self._max_reserved, self._reserved)
        self.places = self.places[1:]
        self._record("segment_map", block.address, size, block.pool[1])
        self._keep(block)
        return True

    def _unmap(self, block: MemoryBlock) -> None:
        """Give the whole pages of a free block back. Source: unmap_block, ExpandableSegment::unmap."""
        segment = self._segment_of(block)
        first = -(-(block.address - segment.start) // segment.page)
        last = (block.address + block.size - segment.start) // segment.page
        if first >= last:
            return
        start, size = segment.start + first * segment.page, (last - first) * segment.page
        if start > block.address:
            block = block.cut(start - block.address)
        else:
            self._free.remove(block)
        if block.size > size:
            self._free.add(block.cut(size))
        self._reserved -= size
        self._record("segment_unmap", start, size, block.pool[1])
        for near in (block.prev, block.next):
            if near is not None and near in self._unmapped:
                self._unmapped.remove(near)
                block.absorb(near)
        if self._is_whole(block):
            self._expandable.remove(segment)
        else:
            self._unmapped.add(block)

    # ---- what it tells

    def _record(self, action: str, address: int, size: int, stream: int) -> None:
        """Source: record_trace, and py_memory_snapshot in torch/csrc/cuda/Module.cpp."""
        where = "device_free" if action == "oom" else "addr"
        entry = {"action": action, where: address, "size": size, "stream": stream}
        more = {"frames": self.frames, "time_us": len(self.trace), "pool_id": (0, 0)}
        self.trace.append(entry | more)

    def snapshot(self) -> dict[str, Any]:
        """What torch.cuda.memory._snapshot returns; torch.cuda._memory_viz takes it.

        Source: snapshot, and py_memory_snapshot in torch/csrc/cuda/Module.cpp.
        """
        blocks = sorted(self._blocks(), key=lambda b: b.address)
        segments: list[dict[str, Any]] = []
        for block in blocks:
            if block.prev is None or block.prev in self._unmapped:
                segments.append(self._segment_info(block))
            self._add_block_info(segments[-1], block)
        trace = list(self.trace)
        active = sum(segment["active_size"] for segment in segments)
        self._record("snapshot", 0, active, 0)
        return {"segments": segments, "device_traces": [trace]}

    def _segment_info(self, block: MemoryBlock) -> dict[str, Any]:
        small, stream = block.pool
        sizes = dict.fromkeys(("total_size", "allocated_size", "active_size", "requested_size"), 0)
        return {
            "device": 0,
            "address": block.address,
            **sizes,
            "stream": stream,
            "segment_type": "small" if small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": self.config.expandable_segments,
            "frames": [],
            "blocks": [],
        }

    def _add_block_info(self, segment: dict[str, Any], block: MemoryBlock) -> None:
        allocated = block.address in self._used
        active = allocated or block in self._waiting
        requested = self._requested.get(block, 0)
        segment["total_size"] += block.size
        segment["allocated_size"] += block.size * allocated
        segment["active_size"] += block.size * active
        segment["requested_size"] += requested
        state = (
            ("active_allocated" if allocated else "active_awaiting_free") if active else "inactive"
        )
        segment["blocks"].append(
            {
                "address": block.address,
                "size": block.size,
                "requested_size": requested,
                "state": state,
                "frames": self._origin.get(block, []),
            }
        )


# ------------------------------------------------------------------------------ streams of requests

Request = tuple[Any, ...]  # ("alloc", key, bytes[, stream]), ("free", key) or ("empty_cache",)


def replay(requests: Iterable[Request], allocator: CachingAllocator) -> list[tuple[int, int]]:
    """Bytes allocated and reserved after each request. `key` names an allocation while it lives.

    Raises torch.OutOfMemoryError where the allocator does, KeyError for a key that is
    not alive.
    """
    addresses: dict[Any, int] = {}
    after = []
    for action, *given in requests:
        if action == "alloc":
            key, *size_and_stream = given
            addresses[key] = allocator.malloc(*size_and_stream)
        elif action == "free":
            allocator.free(addresses.pop(given[0]))
        else:
            allocator.empty_cache()
        after.append((allocator.memory_allocated(), allocator.memory_reserved()))
    return after


def recorded_requests(step: Callable[[], object]) -> list[Request]:
    """What torch asks of its CPU allocator while step() runs, kernels' scratch memory included.

    Keys are the addresses. What was alive before and is freed within is left out.
    Source: the allocation events of torch.profiler with profile_memory=True, in the
    order of their time stamps.
    """
    from torch._C._profiler import _EventType

    cpu = [torch.profiler.ProfilerActivity.CPU]
    with quiet_stderr(), torch.profiler.profile(activities=cpu, profile_memory=True) as run:
        step()
    tree = run.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    events = [e for e in flattened(tree) if e.tag == _EventType.Allocation]
    requests: list[Request] = []
    alive = set()
    for event in sorted(events, key=lambda e: e.start_time_ns):
        address, size = event.extra_fields.ptr, event.extra_fields.alloc_size
        if size > 0:
            alive.add(address)
            requests.append(("alloc", address, size))
        elif address in alive:
            alive.remove(address)
            requests.append(("free", address))
    return requests


def flattened(nodes: Sequence[Any]) -> Iterator[Any]:
    """The nodes of a tree, each before its children."""
    for node in nodes:
        yield node
        yield from flattened(node.children)


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """What C++ writes to the terminal within the block is dropped: the profiler greets there."""
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


# ------------------------------------------------------------------------------ recordings of a GPU


@dataclass
class Agreement:
    """For each thing compared with a recording: how often the simulator agrees, of how many times."""

    counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, what: str, mine: object, recorded: object) -> None:
        equal, total = self.counts.get(what, (0, 0))
        self.counts[what] = equal + (mine == recorded), total + 1

    @property
    def complete(self) -> bool:
        """Was something compared, and did all of it agree?"""
        return bool(self.counts) and all(equal == total for equal, total in self.counts.values())

    def __str__(self) -> str:
        lines = [
            f"{what}: {equal} of {total} agree" for what, (equal, total) in self.counts.items()
        ]
        return "\n".join(lines) or "not compared"


def agreement(recording: dict[str, Any], capacity: int = 8 * GIB) -> Agreement:
    """The simulator beside what a GPU's allocator did, request by request.

    recording: laid out as in `course_utils.recordings`: `events` of torch's trace, from
    an empty allocator on, or `operations` with the allocator's counters `after` each.
    capacity: of the simulated device: enough that no request fails, and no more than
    the recorded one has.
    """
    found = Agreement()
    if "operations" in recording:
        compare_operations(recording, CudaAllocator(capacity, recording["conf"]), found)
    else:
        try:
            compare_events(recording, CudaAllocator(capacity, recording["conf"]), found)
        except (KeyError, ValueError, torch.OutOfMemoryError):
            found.add("the trace to its end", "they have parted", "followed")
    return found


def compare_operations(
    recording: dict[str, Any], allocator: CudaAllocator, found: Agreement
) -> None:
    """The counters after each of a list of requests."""
    addresses: dict[Any, int] = {}
    for operation, row in zip(recording["operations"], recording["after"], strict=True):
        action, *given = operation
        if action == "alloc":
            addresses[given[0]] = allocator.malloc(given[1])
        elif action == "free":
            allocator.free(addresses.pop(given[0]))
        else:
            allocator.empty_cache()
        allocated, reserved, requested, active, _ = row
        found.add("allocated bytes after a request", allocator.memory_allocated(), allocated)
        found.add("reserved bytes after a request", allocator.memory_reserved(), reserved)
        found.add("requested bytes after a request", allocator.memory_requested(), requested)
        found.add("active bytes after a request", allocator.memory_active(), active)


def compare_events(recording: dict[str, Any], allocator: CudaAllocator, found: Agreement) -> None:
    """Each address handed out, the bytes after each request, and the counters at each phase's end.

    Segments are put where the recording has them. A free that was not completed at once
    waited for another stream: it is completed here where it was there. Segments that
    went back to the device did so in empty_cache: no request failed.
    """
    events = recording["events"]
    ends = {phase["events"]: phase for phase in recording.get("phases", ())}
    allocator.places = [e[1] for e in events if e[0] in ("segment_alloc", "segment_map")]
    addresses: dict[int, int] = {}  # the recording's → the simulator's
    reserved = 0
    for number, (action, address, size, stream) in enumerate(events, start=1):
        if action in ("segment_alloc", "segment_map"):
            reserved += size
        elif action in ("segment_free", "segment_unmap"):
            if events[number - 2][0] != action:
                allocator.empty_cache()
            reserved -= size
        elif action == "alloc":
            addresses[address] = allocator.malloc(size, stream)
            found.add("address of a block", addresses[address], address)
            found.add("reserved bytes after a request", allocator.memory_reserved(), reserved)
        elif action == "free_requested":
            mine = addresses.pop(address)
            if events[number : number + 1] != [["free_completed", address, size, stream]]:
                allocator.record_stream(mine, -1 - address)  # a stream of its own
            allocator.free(mine)
            found.add("reserved bytes after a request", allocator.memory_reserved(), reserved)
        elif action == "free_completed":
            allocator.synchronize(-1 - address)
        if number in ends:
            phase = ends[number]
            found.add(
                "allocated bytes of a phase", allocator.memory_allocated(), phase["allocated"]
            )
            found.add("reserved bytes of a phase", allocator.memory_reserved(), phase["reserved"])
            peaks = allocator.max_memory_allocated(), allocator.max_memory_reserved()
            recorded = phase["peak_allocated"], phase["peak_reserved"]
            found.add("peaks of a phase", peaks, recorded)
    layout = [
        (
            s["address"],
            s["total_size"],
            [(b["address"], b["size"], b["state"]) for b in s["blocks"]],
        )
        for s in allocator.snapshot()["segments"]
    ]
    for simulated, segment in zip_longest(layout, recording["segments"]):
        same = segment and (
            segment["address"],
            segment["total_size"],
            [(address, size, state) for address, size, _, state in segment["blocks"]],
        )
        found.add("segments at the end", simulated, same)
