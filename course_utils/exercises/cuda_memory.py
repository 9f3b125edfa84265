"""Exercises of chapter 14, CUDA memory: traces, tenants, recomputation, leaks, and what fits."""
# mypy: ignore-errors

import itertools
import math
import weakref
from collections import Counter
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint_sequential

from course_utils.grading import Exercise, call, contracts, draws, probes
from course_utils.grading.probes.chapters import cuda_memory as memory
from course_utils.reference import caching_allocator as ca
from course_utils.reference import cuda_memory as cm

# ------------------------------------------------------------------------------ CachingAllocator

MIB = 2**20

CachingAllocator = Exercise(
    ca.CachingAllocator,
    key="cuda_memory.CachingAllocator",
    title="The caching allocator",
    difficulty=3,
    minutes=60,
    points=5,
    probe=probes.allocator,
    hints=(
        "A block knows its address, its size, its pool, and its two neighbours in the segment: `MemoryBlock` "
        "has them, `cut` splits one, `absorb` makes one of two. Keep a set of the free ones, and a dict "
        "from address to block of those in use.",
        "malloc: round; take the best free block of the pool; else a new segment; else empty the cache "
        "and try the segment once more; else raise. Then cut the block if the rest is worth it.",
        (
            "worked by hand",
            "`min(candidates, key=lambda b: (b.size, b.address), default=None)` is the best fit. Which "
            "blocks are candidates? Those of the same pool: small or large, and the same stream.",
        ),
        (
            "random cases",
            "free: a neighbour may be merged if it is free too, on the left as on the right; what comes "
            "of it may be a whole segment, which `empty_cache` can return.",
        ),
        (
            "edge cases",
            "The borders: exactly 1 MiB is small; a request of 10 MiB after rounding has a segment of its "
            "own; a rest of exactly 512 B (small) is cut off, one of exactly 1 MiB (large) is not.",
        ),
    ),
)


def requests(capacity, *listed):
    """A case for `probes.allocator`."""
    return call(capacity=capacity, requests=list(listed))


def seen(number, what, address, allocated, reserved):
    """What the probe sees after a malloc."""
    step = f"request {number}, {what}"
    return {
        f"{step}: the address": address,
        f"{step}: memory_allocated()": allocated,
        f"{step}: memory_reserved()": reserved,
    }


@CachingAllocator.by_hand
def _():
    yield (
        requests(64 * MIB, ("malloc", "a", 1), ("malloc", "b", 600), ("malloc", "c", MIB + 1)),
        seen(1, "a = malloc(1)", 0, 512, 2 * MIB)
        | seen(2, "b = malloc(600)", 512, 1536, 2 * MIB)
        | seen(3, "c = malloc(1048577)", 2 * MIB, MIB + 2048, 22 * MIB)
        | {
            "segments() at the end": [
                [(0, 512, True), (512, 1024, True), (1536, 2 * MIB - 1536, False)],
                [(2 * MIB, MIB + 512, True), (3 * MIB + 512, 19 * MIB - 512, False)],
            ]
        },
    )
    yield (  # what is freed is used again, the smallest that suffices first
        requests(
            64 * MIB,
            ("malloc", "a", 2048),
            ("malloc", "b", 512),
            ("malloc", "c", 1024),
            ("malloc", "d", 512),
            ("free", "a"),
            ("free", "c"),
            ("malloc", "e", 1000),
        ),
        seen(7, "e = malloc(1000)", 2560, 2048, 2 * MIB),
    )
    yield (  # the three merge into a whole segment, which goes back
        requests(
            64 * MIB,
            ("malloc", "a", 3 * MIB),
            ("malloc", "b", 4 * MIB),
            ("free", "a"),
            ("empty_cache",),
            ("free", "b"),
            ("empty_cache",),
        ),
        {
            "request 4, empty_cache(): memory_reserved()": 20 * MIB,
            "request 6, empty_cache(): memory_reserved()": 0,
            "segments() at the end": [],
        },
    )
    yield (  # 30 MiB are cached in a block too small; the cache is emptied, and then there is room
        requests(64 * MIB, ("malloc", "a", 30 * MIB), ("free", "a"), ("malloc", "b", 40 * MIB)),
        seen(3, "b = malloc(41943040)", 30 * MIB, 40 * MIB, 40 * MIB),
    )
    yield (
        requests(
            30 * MIB, ("malloc", "a", 2 * MIB), ("malloc", "b", 12 * MIB), ("malloc", "c", 512)
        ),
        seen(2, "b = malloc(12582912)", 2 * MIB, 14 * MIB, 20 * MIB)
        | seen(3, "c = malloc(512)", 20 * MIB, 14 * MIB + 512, 22 * MIB),
    )


TINY = (1, 511, 512, 513, 1024, 1500, 2048, 4000, 65536, 70000)
MIDDLE = (300_000, MIB // 2, MIB - 512, MIB)
LARGE = (MIB + 1, 2 * MIB, 3 * MIB, 5 * MIB - 100, 8 * MIB, 10 * MIB - 512)
HUGE = (10 * MIB - 1, 10 * MIB, 11_000_000, 11 * MIB, 20 * MIB, 24 * MIB + 1)


def drawn_requests(draw, sizes, streams=(0,)):
    """Requests of few sizes, so that blocks of one size meet; frees in any order."""
    alive, listed = [], []
    chance = draw(st.randoms(use_true_random=False))
    for number in range(draw(st.integers(6, 40))):
        kind = chance.random()
        if alive and kind < 0.42:
            listed.append(("free", alive.pop(chance.randrange(len(alive)))))
        elif kind < 0.47:
            listed.append(("empty_cache",))
        else:
            name, stream = f"x{number}", chance.choice(streams)
            listed.append(("malloc", name, chance.choice(sizes), *((stream,) if stream else ())))
            alive.append(name)
    return listed


@CachingAllocator.cases(40)
def _(draw):
    sizes = draw(st.sampled_from((TINY, TINY + MIDDLE, LARGE, LARGE + HUGE, TINY + LARGE)))
    capacity = draw(st.sampled_from((26, 48, 90, 400))) * MIB
    streams = draw(st.sampled_from(((0,), (0,), (0, 1), (0, 3, 7))))
    yield requests(capacity, *drawn_requests(draw, sizes, streams))


def pile(count, size, order):
    """That many blocks of one size with small ones between, freed in this order; then as many again."""
    for i in range(count):
        yield "malloc", f"x{i}", size
        yield "malloc", f"wall{i}", 512 if size <= MIB else MIB + 512
    for i in order:
        yield "free", f"x{i}"
    for i in range(count):
        yield "malloc", f"y{i}", size


@CachingAllocator.edge
def _():
    yield requests(64 * MIB), "nothing is asked for"
    yield (
        requests(2 * MIB, ("malloc", "a", MIB), ("malloc", "b", MIB)),
        "1 MiB, the last small size",
    )
    yield requests(64 * MIB, ("malloc", "a", 10 * MIB - 1)), "10 MiB once it is rounded"
    yield requests(64 * MIB, ("malloc", "a", 10 * MIB - 512)), "just below 10 MiB: a shared segment"
    yield (
        requests(2 * MIB, ("malloc", "a", MIB), ("malloc", "b", MIB - 512), ("malloc", "c", 1)),
        "the rest of a small block is exactly 512 B",
    )
    yield (
        requests(64 * MIB, ("malloc", "a", 11 * MIB), ("malloc", "b", 13 * MIB - 512)),
        "the rest of a large block is exactly 1 MiB, and 512 B more",
    )
    yield (
        requests(20 * MIB, ("malloc", "a", 20 * MIB), ("free", "a"), ("malloc", "b", 20 * MIB)),
        "all of the device, twice",
    )
    yield (
        requests(
            20 * MIB,
            ("malloc", "a", 20 * MIB),
            ("malloc", "b", 1),
            ("free", "a"),
            ("malloc", "c", 1),
        ),
        "no room for a small segment until the large one has gone back",
    )
    yield (
        requests(
            44 * MIB,
            ("malloc", "a", 2 * MIB),
            ("malloc", "b", 20 * MIB),
            ("free", "b"),
            ("malloc", "c", 2 * MIB),
            ("malloc", "d", 24 * MIB + 1),
            ("malloc", "e", 24 * MIB),
            ("empty_cache",),
            ("malloc", "f", 24 * MIB),
        ),
        "after a request that failed all goes on",
    )
    yield (
        requests(
            64 * MIB,
            ("malloc", "a", 600),
            ("free", 512),
            ("free", "a"),
            ("free", 0),
            ("free", 10**9),
        ),
        "addresses at which no block in use begins",
    )
    yield (
        requests(
            64 * MIB,
            ("malloc", "a", 4096),
            ("malloc", "b", 4096, 1),
            ("free", "a"),
            ("malloc", "c", 4096, 1),
            ("malloc", "d", 4096, 2),
            ("free", "b"),
            ("free", "c"),
            ("malloc", "e", 4096),
            ("free", "d"),
            ("free", "e"),
            ("empty_cache",),
        ),
        "streams do not share",
    )
    yield (
        requests(
            64 * MIB,
            ("malloc", "a", 4 * MIB),
            ("malloc", "b", 4 * MIB),
            ("free", "a"),
            ("malloc", "c", 1000),
            ("free", "c"),
            ("malloc", "d", 2 * MIB),
        ),
        "a small request does not take from the large pool, nor a large one from the small",
    )
    yield (
        requests(
            64 * MIB,
            *(("malloc", name, 512) for name in "abcde"),
            *(("free", name) for name in "acbed"),
            ("malloc", "f", 2560),
        ),
        "neighbours on the left, on the right, and on both sides",
    )
    yield (
        requests(64 * MIB, *pile(8, 512, (5, 2, 7, 0, 4, 1, 6, 3))),
        "eight equal blocks: by address",
    )
    yield (
        requests(200 * MIB, *pile(6, 3 * MIB, (3, 5, 1, 4, 0, 2))),
        "equal blocks of the large pool, in two segments",
    )
    yield (
        requests(
            200 * MIB,
            *(("malloc", f"x{size}", size * MIB) for size in (30, 24, 40, 36)),
            *(("free", f"x{size}") for size in (40, 24, 36, 30)),
            ("malloc", "a", 25 * MIB),
            ("malloc", "b", 35 * MIB),
            ("malloc", "c", 10 * MIB),
        ),
        "segments of several sizes: the smallest that suffices",
    )


@CachingAllocator.mistake("You hand out sizes as they are asked for: round them up to 512 B first.")
class _(ca.CachingAllocator):
    def _rounded(self, size):
        return size


@CachingAllocator.mistake(
    "A size that is a multiple of 512 B already gets 512 B more: `size // 512 + 1` is not rounding up."
)
class _(ca.CachingAllocator):
    def _rounded(self, size):
        return 512 * (size // 512 + 1)


@CachingAllocator.mistake(
    "You search all free blocks of the stream: small requests have a pool of their own, and large ones "
    "never come from it."
)
class _(ca.CachingAllocator):
    def _take(self, size, pool):
        fit = [b for b in self._free if b.pool[1] == pool[1] and b.size >= size]
        return taken(self, min(fit, key=lambda b: (b.size, b.address), default=None))


def taken(allocator, block):
    """The block, out of the cache."""
    allocator._free.discard(block)
    return block


@CachingAllocator.mistake("A stream has pools of its own: its blocks are not for another stream.")
class _(ca.CachingAllocator):
    def _take(self, size, pool):
        fit = [b for b in self._free if b.pool[0] == pool[0] and b.size >= size]
        return taken(self, min(fit, key=lambda b: (b.size, b.address), default=None))


@CachingAllocator.mistake(
    "You take the first block that suffices, by address. Take the smallest that does."
)
class _(ca.CachingAllocator):
    def _take(self, size, pool):
        fit = [b for b in self._free if b.pool == pool and b.size >= size]
        return taken(self, min(fit, key=lambda b: b.address, default=None))


@CachingAllocator.mistake("You take the largest block. Take the smallest that suffices.")
class _(ca.CachingAllocator):
    def _take(self, size, pool):
        fit = [b for b in self._free if b.pool == pool and b.size >= size]
        return taken(self, min(fit, key=lambda b: (-b.size, b.address), default=None))


@CachingAllocator.mistake("Of blocks of the same size, take the one at the lowest address.")
class _(ca.CachingAllocator):
    def _take(self, size, pool):
        fit = [b for b in self._free if b.pool == pool and b.size >= size]
        return taken(self, min(fit, key=lambda b: (b.size, -b.address), default=None))


@CachingAllocator.mistake(
    "You only take a free block of exactly the size: a larger one can be cut."
)
class _(ca.CachingAllocator):
    def _take(self, size, pool):
        fit = [b for b in self._free if b.pool == pool and b.size == size]
        return taken(self, min(fit, key=lambda b: b.address, default=None))


@CachingAllocator.mistake(
    "You never split: a request of 512 B keeps the 2 MiB of its segment to itself."
)
class _(ca.CachingAllocator):
    def _splits(self, block, size):
        return False


@CachingAllocator.mistake(
    "You split off rests of 512 B in the large pool too. There a rest of at most 1 MiB stays with its "
    "block."
)
class _(ca.CachingAllocator):
    def _splits(self, block, size):
        return block.size - size >= 512


@CachingAllocator.mistake(
    "In the large pool a rest must be more than 1 MiB to become a block; you split one of exactly 1 MiB."
)
class _(ca.CachingAllocator):
    def _splits(self, block, size):
        rest = block.size - size
        return rest >= 512 if block.pool[0] else rest >= MIB


@CachingAllocator.mistake(
    "You never merge: pieces stay pieces, and no segment that was once split goes back to the device."
)
class _(ca.CachingAllocator):
    def _cache(self, block):
        self._free.add(block)


@CachingAllocator.mistake(
    "You merge with the neighbour on the right only; look to the left as well."
)
class _(ca.CachingAllocator):
    def _cache(self, block):
        merge(self, block, (block.next,))


def merge(allocator, block, neighbours):
    """Keep the block, as one with those of the neighbours that are free."""
    for near in neighbours:
        if near in allocator._free:
            allocator._free.remove(near)
            block.absorb(near)
    allocator._free.add(block)


@CachingAllocator.mistake(
    "You merge with the neighbour on the left only; look to the right as well."
)
class _(ca.CachingAllocator):
    def _cache(self, block):
        merge(self, block, (block.prev,))


@CachingAllocator.mistake(
    "You merge whatever is free at the next address, and it may be another segment's: only neighbours of "
    "one segment are one piece of memory."
)
class _(ca.CachingAllocator):
    def _cache(self, block):
        for near in list(self._free):
            touches = near.address + near.size == block.address
            touches = touches or block.address + block.size == near.address
            if touches and near.pool == block.pool:
                self._free.remove(near)
                if near not in (block.prev, block.next):
                    unlink(block, near)
                else:
                    block.absorb(near)
        self._free.add(block)


def unlink(block, near):
    """The two become one across the border of their segments."""
    left, right = (near, block) if near.address < block.address else (block, near)
    block.address, block.size = left.address, left.size + right.size
    block.prev, block.next = left.prev, right.next
    if block.prev:
        block.prev.next = block
    if block.next:
        block.next.prev = block


@CachingAllocator.mistake(
    "empty_cache returns free pieces of segments that are partly in use. The device takes whole segments "
    "only."
)
class _(ca.CachingAllocator):
    def empty_cache(self):
        for block in list(self._free):
            self._release(block)


@CachingAllocator.mistake(
    "You raise as soon as the device is full. Empty the cache first, and ask once more."
)
class _(ca.CachingAllocator):
    def _obtain(self, size, pool):
        return self._new_segment(size, pool)


@CachingAllocator.mistake(
    "Every free empties the cache: then the next malloc waits for the device again, which is what the "
    "cache is there to avoid."
)
class _(ca.CachingAllocator):
    def free(self, address):
        super().free(address)
        self.empty_cache()


@CachingAllocator.mistake(
    "A request between 1 and 10 MiB gets a segment of its own size; it shares one of 20 MiB."
)
class _(ca.CachingAllocator):
    def _segment_size(self, size):
        return 2 * MIB * -(-size // (2 * MIB))


@CachingAllocator.mistake(
    "10 MiB - 1 is 10 MiB once it is rounded: choose the segment by the rounded size."
)
class _(ca.CachingAllocator):
    def malloc(self, size, stream=0):
        self.asked = size
        return super().malloc(size, stream)

    def _segment_size(self, size):
        return super()._segment_size(self.asked if size > MIB else size)


@CachingAllocator.mistake("Exactly 1 MiB belongs to the small pool; you have it in the large one.")
class _(ca.CachingAllocator):
    def malloc(self, size, stream=0):
        size = self._rounded(size)
        pool = (size < MIB, stream)
        block = self._take(size, pool) or self._obtain(size, pool)
        if block is None:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        if self._splits(block, size):
            self._free.add(block.cut(size))
        self._used[block.address] = block
        self._allocated += block.size
        return block.address

    def _segment_size(self, size):
        return 2 * MIB if size < MIB else super()._segment_size(max(size, MIB + 1))


@CachingAllocator.mistake(
    "memory_allocated counts what was asked for. It is the blocks that are in use, rounding included."
)
class _(ca.CachingAllocator):
    def __init__(self, capacity):
        super().__init__(capacity)
        self.asked = {}

    def malloc(self, size, stream=0):
        address = super().malloc(size, stream)
        self.asked[address] = size
        return address

    def free(self, address):
        super().free(address)
        del self.asked[address]

    def memory_allocated(self):
        return sum(self.asked.values())


@CachingAllocator.mistake(
    "An address that is not in use is freed without a word. Raise ValueError: in a program it is a bug."
)
class _(ca.CachingAllocator):
    def free(self, address):
        if address in self._used:
            super().free(address)


@CachingAllocator.alternative("each segment a list of [address, size, in use], no linked blocks")
class _:
    def __init__(self, capacity):
        self.capacity = capacity
        self.lists = []  # (pool, blocks)
        self.end = 0

    def malloc(self, size, stream=0):
        size = max(512, (size + 511) // 512 * 512)
        pool = ("small" if size <= MIB else "large", stream)
        found = self.best(size, pool)
        if not found:
            if size <= MIB:
                total = 2 * MIB
            elif size < 10 * MIB:
                total = 20 * MIB
            else:
                total = math.ceil(size / (2 * MIB)) * 2 * MIB
            if self.memory_reserved() + total > self.capacity:
                self.empty_cache()
            if self.memory_reserved() + total > self.capacity:
                raise torch.OutOfMemoryError(f"no room for {total} bytes")
            self.lists.append((pool, [[self.end, total, False]]))
            self.end += total
            found = self.best(size, pool)
        address, whole, blocks = found[1], found[0], found[2]
        i = next(i for i, block in enumerate(blocks) if block[0] == address)
        rest = whole - size
        if rest >= 512 if pool[0] == "small" else rest > MIB:
            blocks[i : i + 1] = [[address, size, True], [address + size, rest, False]]
        else:
            blocks[i][2] = True
        return address

    def best(self, size, pool):
        """(size, address, the segment's blocks) of the best free block."""
        fit = [
            (block[1], block[0], blocks)
            for its, blocks in self.lists
            if its == pool
            for block in blocks
            if not block[2] and block[1] >= size
        ]
        return min(fit, key=lambda f: f[:2]) if fit else None

    def free(self, address):
        for _, blocks in self.lists:
            for block in blocks:
                if block[0] == address and block[2]:
                    block[2] = False
                    joined = []
                    for one in blocks:
                        if joined and not joined[-1][2] and not one[2]:
                            joined[-1][1] += one[1]
                        else:
                            joined.append(one)
                    blocks[:] = joined
                    return
        raise ValueError(address)

    def empty_cache(self):
        self.lists = [s for s in self.lists if len(s[1]) > 1 or s[1][0][2]]

    def memory_allocated(self):
        return sum(block[1] for _, blocks in self.lists for block in blocks if block[2])

    def memory_reserved(self):
        return sum(block[1] for _, blocks in self.lists for block in blocks)

    def segments(self):
        return [[tuple(block) for block in blocks] for _, blocks in self.lists]


@CachingAllocator.alternative("free lists that are kept sorted, and a map of borders")
class _:
    def __init__(self, capacity):
        from collections import defaultdict

        self.capacity = capacity
        self.bins = defaultdict(list)  # pool → sorted (size, address)
        self.used = {}  # address → (size, pool)
        self.starts = {}  # segment → size
        self.free_at = {}  # address → (size, pool)
        self.end = self.now = self.held = 0

    def put(self, address, size, pool):
        import bisect

        bisect.insort(self.bins[pool], (size, address))
        self.free_at[address] = (size, pool)

    def pull(self, address):
        size, pool = self.free_at.pop(address)
        self.bins[pool].remove((size, address))
        return size

    def malloc(self, size, stream=0):
        import bisect

        size = -(-size // 512) * 512
        small = size <= MIB
        pool = (small, stream)
        place = bisect.bisect_left(self.bins[pool], (size, -1))
        if place == len(self.bins[pool]):
            shared = 2 * MIB if small else 20 * MIB
            whole = shared if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)
            if self.held + whole > self.capacity:
                self.empty_cache()
                if self.held + whole > self.capacity:
                    raise torch.OutOfMemoryError
            address, self.end = self.end, self.end + whole
            self.starts[address] = whole
            self.held += whole
        else:
            whole, address = self.bins[pool][place]
            self.pull(address)
        if whole - size >= (512 if small else MIB + 1):
            self.put(address + size, whole - size, pool)
            whole = size
        self.used[address] = (whole, pool)
        self.now += whole
        return address

    def free(self, address):
        try:
            size, pool = self.used.pop(address)
        except KeyError:
            raise ValueError("not in use") from None
        self.now -= size
        after = address + size
        if after in self.free_at and after not in self.starts:
            size += self.pull(after)
        if address not in self.starts:
            for before, (its, _) in list(self.free_at.items()):
                if before + its == address:
                    size += self.pull(before)
                    address = before
                    break
        self.put(address, size, pool)

    def empty_cache(self):
        for address, size in list(self.starts.items()):
            if self.free_at.get(address, (0, None))[0] == size:
                self.pull(address)
                del self.starts[address]
                self.held -= size

    def memory_allocated(self):
        return self.now

    def memory_reserved(self):
        return self.held

    def segments(self):
        blocks = [(a, size, True) for a, (size, _) in self.used.items()]
        blocks += [(a, size, False) for a, (size, _) in self.free_at.items()]
        return [
            [b for b in sorted(blocks) if start <= b[0] < start + size]
            for start, size in sorted(self.starts.items())
        ]


# ------------------------------------------------------------------------------ peak_memory

peak_memory = Exercise(
    cm.peak_memory,
    title="The peak of a trace",
    difficulty=1,
    minutes=15,
    points=1,
    probe=probes.trace,
    hints=(
        "Keep a dict from address to size of what is taken now, and the largest total so far.",
        "A block that is freed appears twice: requested, then completed. Which of the two counts?",
        (
            "random cases",
            "Copy the addresses when the total exceeds the largest so far: `list(taken)` is in the "
            "order of allocation.",
        ),
        (
            "edge cases",
            "What is freed need not have been allocated in the trace: `dict.pop(key, 0)`.",
        ),
    ),
)


def free(addr, size, between=()):
    return [("free_requested", addr, size), *between, ("free_completed", addr, size)]


@peak_memory.by_hand
def _():
    yield call([("alloc", 1, 100)]), (100, [1])
    yield call([("alloc", 1, 100), *free(1, 100), ("alloc", 2, 60)]), (100, [1])
    yield (
        call([("alloc", 1, 100), ("alloc", 2, 50), *free(1, 100), ("alloc", 3, 70)]),
        (150, [1, 2]),
    )
    yield (  # a block is there until its free is completed
        call([("alloc", 1, 100), *free(1, 100, [("alloc", 2, 50)]), ("alloc", 3, 20)]),
        (150, [1, 2]),
    )


@peak_memory.cases(30)
def _(draw):
    entries, taken, waiting = [], {}, {}
    for number in range(draw(st.integers(1, 24))):
        what = draw(st.sampled_from(("alloc", "alloc", "request", "complete", "other")))
        if what == "alloc":
            free_ones = [a for a in range(1, 9) if a not in taken and a not in waiting]
            if free_ones:
                addr = draw(st.sampled_from(free_ones))
                taken[addr] = 2 ** (number % 7) + draw(st.integers(0, 3))
                entries.append(("alloc", addr, taken[addr]))
        elif what == "request" and taken:
            addr = draw(st.sampled_from(sorted(taken)))
            waiting[addr] = taken.pop(addr)
            entries.append(("free_requested", addr, waiting[addr]))
            if draw(st.booleans()):
                entries.append(("free_completed", addr, waiting.pop(addr)))
        elif what == "complete" and waiting:
            addr = draw(st.sampled_from(sorted(waiting)))
            entries.append(("free_completed", addr, waiting.pop(addr)))
        elif what == "other" and draw(st.booleans()):
            entries.append(draw(st.sampled_from((("segment_alloc", 16, 2048), ("snapshot",)))))
    yield call(entries)


@peak_memory.edge
def _():
    yield call([]), "an empty trace"
    yield call([("segment_alloc", 1, 2048), ("segment_free", 1, 2048)]), "no block at all"
    yield (
        call([*free(7, 500), ("alloc", 1, 10), ("alloc", 2, 5), *free(1, 10), *free(8, 20)]),
        "what was there before the trace began is freed in it",
    )
    yield (
        call([("alloc", 1, 10), *free(1, 10), ("alloc", 1, 30), *free(1, 30), ("alloc", 1, 20)]),
        "one address, three blocks",
    )
    yield (
        call([("alloc", 1, 10), ("alloc", 2, 20), *free(1, 10), ("alloc", 3, 10)]),
        "the peak is reached a second time: the first one counts",
    )
    yield (
        call([("alloc", 5, 10), ("alloc", 2, 20), ("alloc", 3, 0), ("alloc", 4, 1), *free(2, 20)]),
        "an empty block is a block too",
    )
    yield (
        call([("alloc", 1, 10), ("oom", 1, 4096), ("alloc", 2, 20), ("snapshot",)]),
        "an allocation that failed took nothing",
    )


def walk(trace, *, ends=("free_completed",), unknown=False, last=False, address=True, also=()):
    """The reference with one thing changed, for the mistakes below."""
    taken, now, most, blocks = {}, 0, 0, []
    for e in trace:
        if e["action"] == "alloc" or e["action"] in also:
            taken[e["addr"]] = e["size"]
            now += e["size"]
            if now > most or (last and now == most):
                most, blocks = now, list(taken)
        elif e["action"] in ends:
            size = taken.pop(e["addr"], e["size"] if unknown else 0)
            now -= size
    return most, blocks


@peak_memory.mistake(
    "You give a block back when its free is requested. Until it is completed, other streams may still "
    "use it, and nobody else can have it."
)
def _(trace):
    return walk(trace, ends=("free_requested",))


@peak_memory.mistake(
    "You subtract at free_requested and again at free_completed: every block is given back twice."
)
def _(trace):
    return walk(trace, ends=("free_requested", "free_completed"), unknown=True)


@peak_memory.mistake("You subtract what was allocated before the trace began. It was never added.")
def _(trace):
    return walk(trace, unknown=True)


@peak_memory.mistake(
    "You count segments as well. A segment is what the allocator reserves; the blocks are cut from it."
)
def _(trace):
    return walk(trace, also=("segment_alloc",), ends=("free_completed", "segment_free"))


@peak_memory.mistake(
    "You take the last moment of the peak where it is reached more than once; the first is asked for."
)
def _(trace):
    return walk(trace, last=True)


@peak_memory.mistake("Those are the blocks alive at the end of the trace, not at its peak.")
def _(trace):
    taken = {}
    for e in trace:
        if e["action"] == "alloc":
            taken[e["addr"]] = e["size"]
        elif e["action"] == "free_completed":
            taken.pop(e["addr"], None)
    return walk(trace)[0], list(taken)


@peak_memory.mistake("You add up all that was ever allocated. What is freed makes room again.")
def _(trace):
    made = [e for e in trace if e["action"] == "alloc"]
    return sum(e["size"] for e in made), [e["addr"] for e in made]


@peak_memory.alternative("totals first, then the blocks at the place of the maximum")
def _(trace):
    totals, alive, pictures = [0], [], [[]]
    for e in trace:
        if e["action"] == "alloc":
            alive = [*alive, (e["addr"], e["size"])]
        elif e["action"] == "free_completed":
            alive = [block for block in alive if block[0] != e["addr"]]
        totals.append(sum(size for _, size in alive))
        pictures.append([addr for addr, _ in alive])
    place = totals.index(max(totals))
    return totals[place], pictures[place] if totals[place] else []


# ------------------------------------------------------------------------------ training_step_timeline

training_step_timeline = Exercise(
    cm.training_step_timeline,
    title="Four tenants, moment by moment",
    difficulty=2,
    minutes=35,
    points=3,
    probe=probes.timeline,
    hints=(
        "Three kinds of hooks: `module.register_forward_hook`, `p.register_post_accumulate_grad_hook`, "
        "and `torch.autograd.graph.saved_tensors_hooks` around the forward pass.",
        "What pack returns stands in the graph until autograd lets go of it. Return an object of your "
        "own that holds the tensor, and learn of its end: `__del__`, or `weakref.finalize`.",
        "Two operations can save the same storage. Count holders for each `untyped_storage().data_ptr()`; "
        "its bytes count while there is at least one. The model's own storages are not activations.",
        (
            "edge cases",
            "A parameter that needs no grad takes no hook, and a module may have buffers.",
        ),
    ),
)

MODELS = list(memory.MODELS)
AVERAGE = list(memory.OPTIMIZERS)[-1]


@training_step_timeline.by_hand
def _():
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])  # 24 bytes
    yield (
        call("Linear(3, 3)", "SGD", x, 0, False),
        {  # weight 36 bytes, bias 12; the loss saves the prediction and the target, 24 each
            "rows": [
                ("start", 48, 0, 0, 0),
                ("forward ", 48, 0, 0, 24),
                ("loss", 48, 0, 0, 72),
                ("gradient bias", 48, 12, 0, 0),
                ("gradient weight", 48, 48, 0, 0),
                ("step", 48, 48, 0, 0),
                ("zero_grad", 48, 0, 0, 0),
            ],
            "hooks that stay on the model": 0,
        },
    )


@training_step_timeline.cases(10)
def _(draw):
    x = draw(draws.tensors((draw(st.integers(2, 5)), 3)))
    yield call(
        draw(st.sampled_from(MODELS)),
        draw(st.sampled_from(list(memory.OPTIMIZERS))),
        x,
        draw(st.integers(0, 1)),
        draw(st.booleans()),
    )


@training_step_timeline.edge
def _():
    x = torch.arange(12.0).view(4, 3) / 10
    for model in MODELS[2:]:
        yield call(model, "AdamW", x, 1, True), "gradients and optimizer state from before"
    yield call(MODELS[1], AVERAGE, x, 1, False), "what is no tensor takes no memory of the device"
    yield call(MODELS[1], "SGD", x.repeat(1, 2)[:, :3], 0, False), "a batch that is a slice"
    yield call(MODELS[1], "SGD with momentum", x.double().float()[:1], 0, False), "one sample"


def timeline_with(change):
    """The reference's method with one thing changed, for the mistakes below."""

    def run(model, optimizer, loss_fn, x, target):
        own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
        if change == "own":
            own = set()
        if change == "buffers":
            own = {t.untyped_storage().data_ptr() for t in model.parameters()}
        held, sizes, rows = Counter(), {}, []

        class Box:
            def __init__(self, t, key):
                self.t, self.key = t, key
                held[key] += 1

            def __del__(self):
                if change != "forever":
                    held[self.key] -= 1

        def pack(t):
            key = t.untyped_storage().data_ptr()
            if key not in own:
                sizes[key] = t.nbytes if change == "view" else t.untyped_storage().nbytes()
                return Box(t.detach(), key)
            return t

        def note(moment):
            state = sum(
                v.nbytes
                for s in optimizer.state.values()
                for v in s.values()
                if isinstance(v, Tensor) and not (change == "scalars" and v.dim() == 0)
            )
            params = sum(
                p.nbytes for p in model.parameters() if change != "trained" or p.requires_grad
            )
            grads = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
            saved = sum(sizes[k] * (n if change == "each" else n > 0) for k, n in held.items())
            rows.append((moment, params, grads, state, saved))

        hooks = [
            m.register_forward_hook(lambda *_, n=n: note(f"forward {n}"))
            for n, m in model.named_modules()
            if not list(m.children())
        ] + [
            p.register_post_accumulate_grad_hook(lambda _, n=n: note(f"gradient {n}"))
            for n, p in model.named_parameters()
            if p.requires_grad
        ]
        if change == "zero":
            optimizer.zero_grad()
        note("start")
        with saved_tensors_hooks(pack, lambda b: b.t if isinstance(b, Box) else b):
            loss = loss_fn(model(x), target)
        note("loss")
        loss.backward()
        optimizer.step()
        note("step")
        optimizer.zero_grad()
        note("zero_grad")
        for hook in hooks if change != "hooks" else ():
            hook.remove()
        return rows

    return run


for _change, _says in {
    "each": "You count a storage once for each operation that saves it. It is there once.",
    "own": "You count weights among the activations: a matrix product saves its weight too, but that "
    "memory is there anyway.",
    "buffers": "You count buffers among the activations: BatchNorm saves its running mean and variance, "
    "which are the model's own.",
    "forever": "Your activations only grow. Autograd drops what a node has saved as soon as its backward "
    "is done, so they fall while gradients come.",
    "view": "You count the tensors that are saved, not their storages: a slice keeps all that it is a "
    "slice of.",
    "scalars": "You leave out the optimizer's counts of steps. They are tensors in its state like others.",
    "trained": "You leave out the parameters that are frozen. They are not trained, but they are there.",
    "zero": "You begin with zero_grad, so the gradients that were there at the start are missing.",
    "hooks": "Your hooks stay on the model: the next step runs them again. Keep what the register methods "
    "return, and call `remove()`.",
}.items():
    training_step_timeline.mistake(_says)(timeline_with(_change))


@training_step_timeline.alternative("weakref.finalize and sets of holders")
def _(model, optimizer, loss_fn, x, target):
    class Box:
        def __init__(self, t):
            self.t = t

    mine = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers()]}
    holders, rows = {}, []

    def pack(t):
        s = t.untyped_storage()
        box = Box(t)
        if s._cdata not in mine:
            entry = holders.setdefault(s._cdata, (s.nbytes(), set()))
            entry[1].add(id(box))
            weakref.finalize(box, entry[1].discard, id(box))
        return box

    def note(moment, *_):
        params = list(model.parameters())
        rows.append(
            (
                moment,
                sum(p.numel() * p.element_size() for p in params),
                sum(p.grad.numel() * p.grad.element_size() for p in params if p.grad is not None),
                sum(
                    v.numel() * v.element_size()
                    for s in optimizer.state_dict()["state"].values()
                    for v in s.values()
                    if torch.is_tensor(v)
                ),
                sum(size for size, boxes in holders.values() if boxes),
            )
        )

    handles = []
    for name, module in model.named_modules():
        if next(module.children(), None) is None:
            handles.append(module.register_forward_hook(partial(note, f"forward {name}")))
    for name, p in model.named_parameters():
        if p.requires_grad:
            handles.append(p.register_post_accumulate_grad_hook(partial(note, f"gradient {name}")))
    note("start")
    with saved_tensors_hooks(pack, lambda box: box.t):
        loss = loss_fn(model(x), target)
    note("loss")
    loss.backward()
    optimizer.step()
    note("step")
    optimizer.zero_grad()
    note("zero_grad")
    [h.remove() for h in handles]
    return rows


training_step_timeline.equivalent(
    "training_step_timeline.pack: `t.detach()` → `t`",
    because="the graph that it would keep alive is the one it stands in, and backward, which lets go "
    "of the box, breaks that circle; the bytes are the same at every moment",
)

# ------------------------------------------------------------------------------ checkpoint

checkpoint = Exercise(
    cm.checkpoint,
    title="Checkpointing",
    difficulty=3,
    minutes=60,
    points=6,
    probe=probes.checkpointed,
    limit_s=20.0,  # torch.utils.checkpoint loads torch's compiler at its first call
    hints=(
        "`saved_tensors_hooks` again: pack throws the tensor away and returns its number; unpack, asked "
        "for a number, runs the function once more under hooks that collect, and looks it up.",
        "The function runs in the same order, so the k-th tensor saved the second time is the k-th of "
        "the first. Keep the collected ones in a dict, and pop them: the next backward pass recomputes.",
        "Random numbers: `torch.get_rng_state()` before the call; `torch.random.fork_rng()` and "
        "`set_rng_state` around the recomputation. Backward runs without grad mode: `torch.enable_grad()`.",
        "Arguments in a closure are out of sight of an outer checkpoint, and stay alive. Save them as an "
        "operation would: an autograd.Function with `ctx.save_for_backward`, of which you keep the "
        "grad_fn. An empty tensor that requires grad makes sure that there is one.",
        (
            "contracts",
            "Recompute once, not for each tensor; and let nothing but the arguments live in between.",
        ),
    ),
)

CALLS = list(memory.CALLS)
PLAIN, DROPOUT, KEYWORDS, OTHERS, PARAMETERS, NOTHING, UNSAVED, NESTED, TWICE = CALLS


@checkpoint.by_hand
def _():
    yield (
        call(UNSAVED, torch.tensor([[1.0, 2.0]])),
        {
            "what it returns": torch.tensor([[2.0, 3.0]]),
            "results that require grad": 1,
            "gradient of `x`": torch.tensor([[-0.5, 1.5]]),  # the probe's weights
            "gradient of `w`": None,
        },
    )


@checkpoint.cases(12)
def _(draw):
    x = draw(draws.tensors((draw(st.integers(2, 4)), 3)))
    yield call(draw(st.sampled_from(CALLS)), x)


@checkpoint.edge
def _():
    x = torch.linspace(-1.0, 1.0, 12).view(4, 3)
    for name in CALLS:
        yield call(name, x + 0.1), "every function of the list, once"
    for name in (DROPOUT, NESTED, TWICE):
        yield call(name, x, passes=2), "two backward passes: recomputed for each"
    yield call(DROPOUT, x, graph=False), "no graph, nothing to keep"
    yield call(PLAIN, x.double(), twice=True), "a gradient that is differentiated again"
    yield call(DROPOUT, x, drawn=0), "no random number drawn in between"
    yield call(KEYWORDS, x.double()), "float64"


class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx, grad):
        raise AssertionError


def with_change(change):
    """Checkpointing by hooks, with one thing changed, for the mistakes below."""

    def run(function, *args, **kwargs):
        if change == "plain":
            return function(*args, **kwargs)
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        state, numbers, found = torch.get_rng_state(), itertools.count(), {}
        closure = args if change in ("closure", "hoard") else None
        places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        rest = [None if isinstance(a, Tensor) else a for a in args]
        node = Keep.apply(
            torch.empty(0, requires_grad=True), *([] if closure else [args[i] for i in places])
        ).grad_fn
        hoard = []

        def pack(t):
            if change == "hoard":
                hoard.append(t.detach())
            return next(numbers)

        def unpack(i):
            if i not in found or change == "each":
                recompute()
            return found[i] if change == "each" else found.pop(i)

        def recompute():
            again = itertools.count()

            def keep(t):
                found[next(again)] = t.detach()

            values = list(closure or rest)
            for i, t in zip([] if closure else places, node.saved_tensors, strict=True):
                values[i] = t
            with (
                torch.enable_grad(),
                saved_tensors_hooks(keep, lambda _: None),
            ):
                if change == "rng":
                    function(*values, **kwargs)
                elif change == "moves":
                    torch.set_rng_state(state)
                    function(*values, **kwargs)
                else:
                    with torch.random.fork_rng(devices=[]):
                        torch.set_rng_state(state)
                        function(*values, **kwargs)

        with saved_tensors_hooks(pack, unpack):
            if change == "detached":
                args = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
            return function(*args, **kwargs)

    return run


for _change, _says in {
    "rng": "The second run draws new random numbers: another dropout mask, and gradients of a function "
    "that never ran. Keep the generator's state, and set it before you recompute.",
    "moves": "Your recomputation leaves the generator where it ended, so that all random numbers after "
    "backward differ from those of a run without checkpoints. `torch.random.fork_rng` puts it back.",
    "detached": "You detach the arguments in the forward pass: nothing reaches what came before.",
}.items():
    checkpoint.mistake(_says)(with_change(_change))

for _change, _says in {
    "plain": "Nothing is recomputed, and everything is kept: this is the function itself.",
    "each": "You run the function once more for each tensor that backward asks for. Once is enough: keep "
    "what the run collects until it is fetched.",
    "hoard": "You keep the tensors beside the numbers that stand for them, so that all of them live on.",
    "closure": "Your closure holds the tensor arguments. Where calls nest, an outer checkpoint cannot drop "
    "what an inner one was given, and all of it stays. Save them through autograd, whose hooks the outer "
    "one has set.",
}.items():
    checkpoint.mistake(_says, cost=True)(with_change(_change))


@checkpoint.mistake(
    "An autograd.Function gives no gradient if none of its tensor arguments requires one, whatever "
    "parameters the function uses: that is the trouble with `use_reentrant=True`."
)
def _(function, *args, **kwargs):
    return torch_checkpoint(function, *args, use_reentrant=True, **kwargs)


@checkpoint.alternative("the library's own")
def _(function, *args, **kwargs):
    return torch_checkpoint(function, *args, use_reentrant=False, **kwargs)


@checkpoint.alternative("collects a list, by hand for the generator, stops when it has enough")
def _(function, *args, **kwargs):
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)

    class Enough(Exception):
        pass

    before = torch.get_rng_state()
    tensors = {i: a for i, a in enumerate(args) if isinstance(a, Tensor)}
    others = [None if i in tensors else a for i, a in enumerate(args)]
    keys = list(tensors)
    node = Keep.apply(torch.zeros((), requires_grad=True), *tensors.values()).grad_fn
    del tensors
    count = 0
    found = []

    def pack(t):
        nonlocal count
        count += 1
        return count - 1

    def unpack(i):
        if not found or found[i] is None:
            collected = []

            def keep(t):
                collected.append(t.detach())
                if len(collected) == count:
                    raise Enough

            given = list(others)
            for k, t in zip(keys, node.saved_tensors, strict=True):
                given[k] = t
            now = torch.get_rng_state()
            torch.set_rng_state(before)
            try:
                with torch.enable_grad(), saved_tensors_hooks(keep, lambda x: x):
                    function(*given, **kwargs)
            except Enough:
                pass
            finally:
                torch.set_rng_state(now)
            found[:] = collected
        t, found[i] = found[i], None
        return t

    with saved_tensors_hooks(pack, unpack):
        return function(*args, **kwargs)


SMALL, WIDE = torch.ones(64, 32) * 0.1, torch.ones(256, 32) * 0.1  # 8 KiB and 32 KiB


def bytes_of(x):
    return x.numel() * x.element_size()


checkpoint.contract(
    contracts.saved(
        [call(6, SMALL, True), call(12, SMALL, True), call(6, SMALL, False)],
        limit=lambda case: bytes_of(case.args[1]),
        says="nothing but the tensor arguments is saved for backward",
        prepare=memory.forward_only,
    )
)
checkpoint.contract(
    contracts.peak(
        [call((4, 6), WIDE), call((4, 4, 4), WIDE), call((3, 1, 8), WIDE)],
        limit=lambda case: bytes_of(WIDE) * {6: 14, 4: 18, 8: 19}[case.args[0][-1]],
        says="only arguments stay between forward and backward, also where calls nest",
        prepare=memory.there_and_back_again,
    )
)
checkpoint.contract(
    contracts.flops(
        [call((4, 6), SMALL)],
        limit=lambda case: 24 * 4 * 2 * 64 * 32 * 32,
        says="each function runs at most twice",
        prepare=memory.there_and_back_again,
    )
)


for _id, _why in {
    "checkpoint: `torch.empty(0, requires_grad=True)` → `torch.empty(1, requires_grad=True)`": "the "
    "anchor's elements are never read; only that it requires grad matters",
    "checkpoint.recompute: `zip(places, kept.saved_tensors, strict=True)` → `zip(places, kept.saved_tensors)`": "both "
    "have one item for each tensor argument, always",
    "checkpoint.recompute: `strict=True` → `strict=False` [#1]": "both have one item for each tensor "
    "argument, always",
    "checkpoint.recompute: `zip(names, values[n:], strict=True)` → `zip(names, values[n:])`": "both have "
    "one item for each keyword, always",
    "checkpoint.recompute: `strict=True` → `strict=False` [#2]": "both have one item for each keyword, "
    "always",
    "checkpoint.recompute.keep: `t.detach()` → `t`": "the nodes that the tensor would keep alive hold "
    "nothing themselves: this hook has given them None for all that they save",
    "checkpoint.recompute: `torch.random.fork_rng(devices=list(device_states))` → `torch.random.fork_rng()`": "it "
    "puts back the state of more generators, which nobody has moved",
}.items():
    checkpoint.equivalent(_id, because=_why)

# ------------------------------------------------------------------------------ checkpoint_every_sqrt

checkpoint_every_sqrt = Exercise(
    cm.checkpoint_every_sqrt,
    title="Every √n-th layer",
    difficulty=2,
    minutes=20,
    points=2,
    probe=probes.layers,
    limit_s=20.0,  # torch.utils.checkpoint loads torch's compiler at its first call
    hints=(
        "Segments of `math.ceil(math.sqrt(n))` layers; the last one may be shorter.",
        "`checkpoint(run, segment, x)`, where run calls the layers of the segment one after the other.",
        (
            "random cases",
            "The function runs again during backward. Does it still see the segment that it was made "
            "for? Pass the segment as an argument.",
        ),
    ),
)


@checkpoint_every_sqrt.by_hand
def _():
    yield (
        call(1, torch.tensor([[0.0]]), 0.0),
        {
            "what it returns": torch.tensor([[0.0]]),
            "layers called in forward": [0],
            "gradients of the layers": [torch.tensor([[0.0]])],
        },
    )


@checkpoint_every_sqrt.cases(16)
def _(draw):
    x = draw(draws.tensors((draw(st.integers(1, 3)), draw(st.integers(1, 3)))))
    yield call(draw(st.integers(1, 12)), x, draw(st.sampled_from((0.0, 0.5))))


@checkpoint_every_sqrt.edge
def _():
    x = torch.linspace(-1.0, 1.0, 6).view(2, 3)
    yield call(0, x, 0.0), "no layer"
    yield call(1, x, 0.5), "one layer"
    yield call(2, x, 0.5), "two"
    yield call(5, x, 0.5), "segments of 3 and 2"
    yield call(17, x, 0.5), "one more than a square"
    yield call(7, x[:0], 0.0), "an empty batch"


def in_segments(layers, x, size, again=cm.checkpoint, **options):
    for start in range(0, len(layers), max(size, 1)):
        x = again(run_all, layers[start : start + size], x, **options)
    return x


def run_all(layers, x):
    for layer in layers:
        x = layer(x)
    return x


@checkpoint_every_sqrt.mistake(
    "The layers left over when n is no multiple of the segment's length are never called."
)
def _(layers, x):
    size = math.ceil(math.sqrt(len(layers)))
    for i in range(len(layers) // max(size, 1)):
        x = cm.checkpoint(run_all, layers[i * size : (i + 1) * size], x)
    return x


@checkpoint_every_sqrt.mistake(
    "Your function looks its segment up when it runs. In backward, when it runs again, the loop is over "
    "and it finds the last one: gradients of the wrong layers."
)
def _(layers, x):
    size = max(math.ceil(math.sqrt(len(layers))), 1)
    for start in range(0, len(layers), size):
        x = torch_checkpoint(
            lambda x: run_all(layers[start : start + size], x),  # noqa: B023
            x,
            use_reentrant=False,
            determinism_check="none",
        )
    return x


@checkpoint_every_sqrt.mistake(
    "Without the generator's state, dropout draws another mask when a segment runs again."
)
def _(layers, x):
    size = math.ceil(math.sqrt(len(layers)))
    return in_segments(
        layers, x, size, torch_checkpoint, use_reentrant=False, preserve_rng_state=False
    )


@checkpoint_every_sqrt.mistake(
    "Every layer is checkpointed for itself: n inputs are kept, one for each.", cost=True
)
def _(layers, x):
    return in_segments(layers, x, 1)


@checkpoint_every_sqrt.mistake(
    "One segment of all layers: little is kept, and backward then brings all n activations back at once.",
    cost=True,
)
def _(layers, x):
    return in_segments(layers, x, len(layers))


@checkpoint_every_sqrt.mistake(
    "Your segments are checkpointed, and all of them together once more: each layer runs three times.",
    cost=True,
)
def _(layers, x):
    size = math.ceil(math.sqrt(len(layers)))
    return cm.checkpoint(in_segments, layers, x, size) if layers else x


@checkpoint_every_sqrt.alternative("checkpoint_sequential, which leaves the last segment alone")
def _(layers, x):
    n = len(layers)
    if not n:
        return x
    return checkpoint_sequential(list(layers), math.isqrt(n), x, use_reentrant=False)


@checkpoint_every_sqrt.alternative("torch's checkpoint, segments of isqrt(n) layers, recursion")
def _(layers, x):
    size = max(math.isqrt(len(layers)), 1)

    def from_(start, x):
        if start >= len(layers):
            return x

        def segment(x):
            for layer in layers[start : start + size]:
                x = layer(x)
            return x

        return from_(start + size, torch_checkpoint(segment, x, use_reentrant=False))

    return from_(0, x)


ROW = torch.ones(128, 16) * 0.1
DEEP = [call(16, ROW, 0.0), call(49, ROW, 0.0)]

checkpoint_every_sqrt.contract(
    contracts.peak(
        DEEP,
        limit=lambda case: (2 * math.isqrt(case.args[0]) + 7) * bytes_of(ROW) + case.args[0] * 1024,
        says="activations alive together grow like √n",
        prepare=memory.stack_and_back,
    )
)
checkpoint_every_sqrt.contract(
    contracts.flops(
        DEEP,
        limit=lambda case: case.args[0] * 4 * 2 * 128 * 16 * 16,
        says="each layer runs at most twice",
        prepare=memory.stack_and_back,
    )
)


checkpoint_every_sqrt.equivalent(
    "checkpoint_every_sqrt: `math.ceil(math.sqrt(len(layers)))` → `math.floor(math.sqrt(len(layers)))`",
    because="segments of about √n layers are asked for: rounding down is as good as rounding up",
)
checkpoint_every_sqrt.equivalent(
    "checkpoint_every_sqrt: `max(size, 1)` → `max(size, 2)`",
    because="the size is below 2 only for one layer or none, where a step of 2 ends the loop as well",
)

# ------------------------------------------------------------------------------ find_leak

find_leak = Exercise(
    cm.find_leak,
    title="Find the leak",
    difficulty=2,
    minutes=20,
    points=2,
    probe=probes.trace,
    hints=(
        "One pass: bytes alive by place, and at each snapshot a copy of that.",
        "Remember for each address where its block was born: the entry that frees it does not say.",
        "A place leaks if its bytes grow from every snapshot to the next: `itertools.pairwise`, `all`.",
        ("edge cases", "One snapshot or none: nothing can be said to grow."),
    ),
)

STEP = ("snapshot",)


@find_leak.by_hand
def _():
    yield (
        call(
            [("alloc", 1, 8, "train.py:3"), STEP, ("alloc", 2, 8, "train.py:3"), STEP]
            + [("alloc", 3, 8, "train.py:3"), STEP]
        ),
        [("train.py:3", 16)],
    )
    yield (  # optimizer state comes once; the activations go
        call(
            [("alloc", 1, 512, "adam.py:9"), ("alloc", 2, 64, "model.py:5"), *free(2, 64), STEP]
            + [("alloc", 2, 64, "model.py:5"), *free(2, 64), STEP]
        ),
        [],
    )
    yield (
        call(
            [("alloc", 1, 4, "a.py:1"), ("alloc", 2, 6, "b.py:2", "a.py:7"), STEP]
            + [("alloc", 3, 4, "a.py:1"), ("alloc", 4, 6, "b.py:2", "a.py:8"), STEP]
        ),
        [("b.py:2", 6), ("a.py:1", 4)],
    )


PLACES = ("model.py:10", "model.py:20", "train.py:3", "train.py:30", "hook.py:3")


@find_leak.cases(20)
def _(draw):
    leaking = set(draw(st.lists(st.sampled_from(PLACES), max_size=3)))
    entries, addresses, last = [], itertools.count(1), []
    for step in range(draw(st.integers(2, 4))):
        rest = []
        for place in PLACES:
            if not draw(st.booleans()) and place not in leaking:
                continue
            addr, size = next(addresses), 8 * draw(st.integers(1, 9))
            entries.append(("alloc", addr, size, place, draw(st.sampled_from(PLACES))))
            if place in leaking and (draw(st.booleans()) or step % 2):
                continue
            rest.append((addr, size))
        kept = [b for b in rest if draw(st.integers(0, 3)) == 0]
        for addr, size in [b for b in rest if b not in kept] + last:
            entries += free(addr, size)
        last = kept
        entries.append(STEP)
    yield call(entries)


@find_leak.edge
def _():
    yield call([]), "an empty trace"
    yield call([("alloc", 1, 8, "a.py:1"), STEP]), "one snapshot says nothing about growth"
    yield call([STEP, STEP]), "nothing was allocated"
    yield call([STEP, ("alloc", 1, 8), STEP]), "an allocation without frames"
    yield (
        call([("alloc", 1, 8, "a.py:1"), STEP, STEP, ("alloc", 2, 8, "a.py:1"), STEP]),
        "it grows in one step, not in the other",
    )
    yield (
        call([("alloc", 1, 8, "a.py:1"), STEP, *free(1, 8), ("alloc", 1, 9, "b.py:1"), STEP]),
        "an address that another place uses next",
    )
    yield (
        call(
            [
                *free(5, 64),
                ("alloc", 1, 8, "a.py:1"),
                STEP,
                *free(6, 8),
                ("alloc", 2, 8, "a.py:1"),
                STEP,
            ]
        ),
        "what was there before the trace began",
    )
    yield (
        call(
            [("alloc", 1, 8, "b.py:1"), ("alloc", 2, 8, "a.py:1"), STEP]
            + [("alloc", 3, 8, "b.py:1"), ("alloc", 4, 8, "a.py:1"), STEP]
        ),
        "as many bytes in two places",
    )
    yield (
        call(
            [("alloc", 1, 8, "a.py:1"), STEP, ("alloc", 2, 8, "a.py:1"), STEP]
            + [("alloc", 3, 8, "a.py:1"), *free(1, 8), STEP]
        ),
        "it grew once, and then stayed as it is",
    )
    yield (
        call(
            [
                ("alloc", 1, 8, "a.py:1"),
                STEP,
                ("alloc", 2, 8, "a.py:1"),
                STEP,
                ("alloc", 3, 9, "a.py:1"),
            ]
        ),
        "what comes after the last snapshot does not count",
    )
    yield (
        call(
            [
                ("alloc", 1, 4, "a.py:10"),
                STEP,
                ("alloc", 2, 6, "a.py:10"),
                ("free_requested", 1, 4),
                STEP,
            ]
        ),
        "a block whose free is requested, not completed, is still there",
    )
    yield (
        call([("alloc", 1, 8, "a.py:1"), STEP, ("alloc", 2, 0, "a.py:1"), STEP]),
        "an empty block is no growth",
    )


def leaks(trace, *, first=0, where=0, line=True, rule=all, total=False, ends="free_completed"):
    """The reference with one thing changed, for the mistakes below."""
    alive, born, history = Counter(), {}, []
    for e in trace:
        if e["action"] == "alloc":
            frames = e["frames"]
            f = frames[where] if frames else None
            place = f"{f['filename']}:{f['line']}" if f else "?"
            born[e["addr"]] = place, e["size"]
            alive[place] += e["size"]
        elif e["action"] == ends and e["addr"] in born:
            place, size = born.pop(e["addr"])
            alive[place] -= size
        elif e["action"] == "snapshot":
            history.append(alive.copy())
    if len(history) < 2:
        return []
    found = [
        (p, history[-1][p] - (0 if total else history[0][p]))
        for p in alive
        if rule(a[p] < b[p] for a, b in itertools.pairwise(history))
    ]
    return sorted(found, key=lambda leak: (-leak[1], leak[0]))


@find_leak.mistake(
    "You name the outermost frame: the training loop, which everything is allocated under."
)
def _(trace):
    return leaks(trace, where=-1)


@find_leak.mistake(
    "You call a leak what grows in some step. It has to grow in every one: a cache or a longer batch grows "
    "once."
)
def _(trace):
    return leaks(trace, rule=any)


@find_leak.mistake(
    "You report all that is alive at the end, with what the first step left. Counting begins at the first "
    "snapshot."
)
def _(trace):
    return leaks(trace, total=True)


@find_leak.mistake(
    "A block is gone for you once its free is requested. It is there until that is completed."
)
def _(trace):
    return leaks(trace, ends="free_requested")


@find_leak.mistake(
    "You compare the last snapshot with the first only. A place that grew once and then stayed is no leak."
)
def _(trace):
    marks = [i for i, e in enumerate(trace) if e["action"] == "snapshot"]
    kept = [e for i, e in enumerate(trace) if i not in marks[1:-1]]
    return leaks(kept)


@find_leak.mistake(
    "You count what is allocated in each step and forget what is freed: every place of the step leaks."
)
def _(trace):
    return leaks([e for e in trace if e["action"] != "free_completed"])


@find_leak.alternative("bytes by place computed afresh at every snapshot")
def _(trace):
    blocks, pictures = {}, []
    for e in trace:
        match e["action"]:
            case "alloc":
                f = e["frames"]
                blocks[e["addr"]] = (f"{f[0]['filename']}:{f[0]['line']}" if f else "?", e["size"])
            case "free_completed":
                blocks.pop(e["addr"], None)
            case "snapshot":
                bytes_at: dict[str, int] = {}
                for place, size in blocks.values():
                    bytes_at[place] = bytes_at.get(place, 0) + size
                pictures.append(bytes_at)
    if len(pictures) < 2:
        return []
    found = []
    for place in pictures[-1]:
        line = [picture.get(place, 0) for picture in pictures]
        if all(b > a for a, b in itertools.pairwise(line)):
            found.append((place, line[-1] - line[0]))
    return sorted(sorted(found), key=lambda leak: leak[1], reverse=True)


# ------------------------------------------------------------------------------ largest_batch

largest_batch = Exercise(
    cm.largest_batch,
    title="The largest batch",
    difficulty=2,
    minutes=20,
    points=2,
    probe=probes.attempts,
    hints=(
        "Whatever fits leaves room for everything smaller: that is what bisection needs.",
        "Keep two numbers, one that fits (0 does) and one that does not (limit + 1), and try the middle.",
        "Catch `torch.OutOfMemoryError` and nothing else: it is a RuntimeError, but most RuntimeErrors are "
        "not it.",
        (
            "worked by hand",
            "While you are inside `except`, the exception holds the failed step's frames, and those its "
            "tensors. Leave the block before you try again.",
        ),
    ),
)


@largest_batch.by_hand
def _():
    yield call(100, 20, 10, 16, 0), 8
    yield call(100, 20, 10, 5, 0), 5
    yield call(100, 50, 10, 16, 0), 5
    yield call(100, 95, 10, 16, 0), 0


@largest_batch.cases(20)
def _(draw):
    fixed, per_sample = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    yield call(draw(st.integers(fixed, 400)), fixed, per_sample, draw(st.integers(1, 70)), 0)


@largest_batch.edge
def _():
    yield call(100, 101, 1, 8, 0), "not even the model fits"
    yield call(100, 60, 7, 1, 0), "a limit of one"
    yield call(10_000, 600, 10, None, 0), "the default limit"
    yield call(10**9, 1, 1, None, 0), "everything fits"
    yield call(100, 0, 25, 16, 0), "exactly full"
    yield call(1000, 1, 1, 63, 1), "another error is passed on"
    yield call(30, 1, 1, 64, 1), "another error is passed on"


def bisect(step, limit, fits):
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(step, middle) else (low, middle)
    return low


def runs(step, batch, error=torch.OutOfMemoryError):
    try:
        step(batch)
    except error:
        return False
    return True


@largest_batch.mistake(
    "You catch every RuntimeError. A wrong shape then looks like a batch that does not fit; "
    "torch.OutOfMemoryError is the one to catch."
)
def _(step, limit=1024):
    return bisect(step, limit, partial(runs, error=RuntimeError))


@largest_batch.mistake(
    "You try again inside `except`, where the exception still holds the failed step's frames, and these "
    "its tensors: the next step has less memory than it would have."
)
def _(step, limit=1024):
    def search(low, high):
        if high - low < 2:
            return low
        middle = (low + high) // 2
        try:
            step(middle)
        except torch.OutOfMemoryError:
            return search(low, middle)
        return search(middle, high)

    return search(0, limit + 1)


@largest_batch.mistake(
    "You double, and stop at the first batch that fails: the largest power of two that fits, not the "
    "largest batch."
)
def _(step, limit=1024):
    batch = 0
    while max(2 * batch, 1) <= limit and runs(step, max(2 * batch, 1)):
        batch = max(2 * batch, 1)
    return batch


@largest_batch.mistake("You return the smallest batch that fails.")
def _(step, limit=1024):
    return bisect(step, limit, runs) + 1


@largest_batch.mistake("You never try the limit itself.")
def _(step, limit=1024):
    return bisect(step, limit - 1, runs)


@largest_batch.mistake(
    "You assume that one sample always fits: where it does not, the answer is 0."
)
def _(step, limit=1024):
    return max(bisect(step, limit, runs), 1)


@largest_batch.mistake(
    "You try one batch after another. Each try is a training step: halve the range instead.",
    cost=True,
)
def _(step, limit=1024):
    batch = 0
    while batch < limit and runs(step, batch + 1):
        batch += 1
    return batch


@largest_batch.alternative("doubling, then bisection")
def _(step, limit=1024):
    if limit < 1 or not runs(step, 1):
        return 0
    good = 1
    while 2 * good <= limit and runs(step, 2 * good):
        good *= 2
    bad = min(2 * good, limit + 1)
    while bad - good > 1:
        middle = good + (bad - good) // 2
        if runs(step, middle):
            good = middle
        else:
            bad = middle
    return good


@largest_batch.alternative("the bisect module over a range")
def _(step, limit=1024):
    import bisect as library

    return library.bisect_left(range(1, limit + 1), True, key=lambda b: not runs(step, b))


largest_batch.contract(
    contracts.kernels(
        [call(777, 7, 1, 1024, 0), call(100, 7, 1, 1024, 0), call(9000, 7, 1, 1024, 0)],
        limit=lambda case: 2 * math.ceil(math.log2(case.args[3])) + 2,
        says="at most 2·log2(limit) + 2 steps",
        prepare=memory.counted_attempts,
    )
)
largest_batch.equivalent(
    "largest_batch.fits: `return False` → `return None`",
    because="the answer is only asked whether it is true, and None is not",
)
