"""Exercises of chapter 14, CUDA memory: traces, tenants, recomputation, leaks, and what fits."""
# mypy: ignore-errors

import itertools
import math
import weakref
from bisect import bisect_left
from contextlib import ExitStack
from functools import partial

import torch
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint_sequential

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
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


def requests(capacity, text, **more):
    """A case for `probes.allocator`. capacity: in MiB. more: see there."""
    return call(capacity=capacity * MIB, requests=text, **more)


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
        requests(64, "a=1 b=600 c=1M+1"),
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
        requests(64, "a=2048 b=512 c=1024 d=512 -a -c e=1000"),
        seen(7, "e = malloc(1000)", 2560, 2048, 2 * MIB),
    )
    yield (  # the three merge into a whole segment, which goes back
        requests(64, "a=3M b=4M -a empty -b empty"),
        {
            "request 4, empty_cache(): memory_reserved()": 20 * MIB,
            "request 6, empty_cache(): memory_reserved()": 0,
            "segments() at the end": [],
        },
    )
    yield (  # 30 MiB are cached in a block too small; the cache is emptied, and then there is room
        requests(64, "a=30M -a b=40M"),
        seen(3, "b = malloc(41943040)", 30 * MIB, 40 * MIB, 40 * MIB),
    )
    yield (
        requests(30, "a=2M b=12M c=512"),
        seen(2, "b = malloc(12582912)", 2 * MIB, 14 * MIB, 20 * MIB)
        | seen(3, "c = malloc(512)", 20 * MIB, 14 * MIB + 512, 22 * MIB),
    )


TINY = ["1", "511", "512", "513", "1024", "1500", "2048", "4000", "65536", "70000"]
BORDER = ["512", "1M", "1M-512"]  # of the small pool
LARGE = ["1M+1", "2M", "3M", "5M-100", "8M", "10M-512"]
HUGE = ["10M-1", "10M", "11000000", "11M", "20M", "24M+1"]


def drawn_requests(draw, sizes, streams, most):
    """Few requests of few sizes, so that blocks of one size meet; frees in any order.

    The cache is emptied only where something was freed since.
    """
    some = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3))
    alive, words, freed = [], [], False
    for number in range(draw(st.integers(1, most))):
        what = draw(st.integers(0, 9))
        if alive and what >= 6:
            words.append("-" + alive.pop(draw(st.integers(0, len(alive) - 1))))
            freed = True
        elif freed and what == 5:
            words.append("empty")
            freed = False
        else:
            alive.append(name := f"x{number}")
            words.append(f"{name}={draw(st.sampled_from(some))}@{draw(st.sampled_from(streams))}")
    return " ".join(words).replace("@0", "")


@CachingAllocator.cases(160)
def _(draw):
    sizes = draw(
        st.sampled_from((TINY, TINY + BORDER, BORDER, LARGE, LARGE + HUGE, BORDER + LARGE))
    )
    streams = draw(st.sampled_from(((0,), (0,), (0, 3))))
    text = drawn_requests(draw, sizes, streams, draw(st.sampled_from((4, 7, 12, 12))))
    yield requests(draw(st.sampled_from((22, 40, 90, 400))), text)


@CachingAllocator.cases(16)
def _(draw):
    text = drawn_requests(draw, TINY + BORDER + LARGE + HUGE, (0, 3, 7), 60)
    yield requests(draw(st.sampled_from((48, 90, 400))), text)


def pile(count, size, wall, order):
    """That many blocks of one size with small ones between, freed in this order; then as many again."""
    blocks = [f"x{i}={size} wall{i}={wall}" for i in range(count)]
    return " ".join([*blocks, *(f"-x{i}" for i in order), *(f"y{i}={size}" for i in range(count))])


@CachingAllocator.edge
def _():
    yield requests(64, ""), "nothing is asked for"
    yield requests(2, "a=1M b=1M"), "1 MiB, the last small size"
    yield requests(64, "a=10M-1"), "10 MiB once it is rounded"
    yield requests(64, "a=10M-512"), "just below 10 MiB: a shared segment"
    yield requests(2, "a=1M b=1M-512 c=1"), "the rest of a small block is exactly 512 B"
    yield (
        requests(64, "a=11M b=13M-512"),
        "the rest of a large block is exactly 1 MiB, and 512 B more",
    )
    yield requests(20, "a=20M -a b=20M"), "all of the device, twice"
    yield (
        requests(20, "a=20M b=1 -a c=1"),
        "no room for a small segment until the large one has gone back",
    )
    yield (
        requests(44, "a=2M b=20M -b c=2M d=24M+1 e=24M empty f=24M"),
        "after a request that failed all goes on",
    )
    yield requests(64, "a=600 -512 -a -0 -1000000000"), "addresses at which no block in use begins"
    yield (
        requests(64, "a=4096 b=4096@1 -a c=4096@1 d=4096@2 -b -c e=4096 -d -e empty"),
        "streams do not share",
    )
    yield (
        requests(64, "a=4M b=4M -a c=1000 -c d=2M"),
        "a small request does not take from the large pool, nor a large one from the small",
    )
    yield (
        requests(64, "a=512 b=512 c=512 d=512 e=512 -a -c -b -e -d f=2560"),
        "neighbours on the left, on the right, and on both sides",
    )
    yield (
        requests(64, "a=10M b=10M -a -b c=11M d=5M"),
        "free segments that follow one another stay two",
    )
    yield requests(64, "a=2M -a empty b=2M"), "no address is given twice to a segment"
    yield (
        requests(64, pile(8, 512, 512, (5, 2, 7, 0, 4, 1, 6, 3))),
        "eight equal blocks: by address",
    )
    yield (
        requests(200, pile(6, "3M", "1M+512", (3, 5, 1, 4, 0, 2))),
        "equal blocks of the large pool, in two segments",
    )
    yield (
        requests(200, "u=30M v=24M w=40M x=36M -w -v -x -u a=25M b=35M c=10M"),
        "segments of several sizes: the smallest that suffices",
    )
    yield (
        requests(64, "a=1 b=600 -a c=1M+1", beside=True),
        "two allocators at once: each has a device of its own",
    )


CachingAllocator.mistake(
    "You hand out sizes as they are asked for: round them up to 512 B first.",
    replace("return MIN_BLOCK * -(-size // MIN_BLOCK)", "return size"),
)
CachingAllocator.mistake(
    "A size that is a multiple of 512 B already gets 512 B more: `size // 512 + 1` is not rounding up.",
    replace("-(-size // MIN_BLOCK)", "(size // MIN_BLOCK + 1)"),
)
CachingAllocator.mistake(
    "You search all free blocks of the stream: small requests have a pool of their own, and large ones "
    "never come from it.",
    replace("b.pool == pool", "b.pool[1] == pool[1]"),
)
CachingAllocator.mistake(
    "A stream has pools of its own: its blocks are not for another stream.",
    replace("b.pool == pool", "b.pool[0] == pool[0]"),
)
CachingAllocator.mistake(
    "You take the first block that suffices, by address. Take the smallest that does.",
    replace("(b.size, b.address)", "b.address"),
)
CachingAllocator.mistake(
    "You take the largest block. Take the smallest that suffices.",
    replace("(b.size, b.address)", "(-b.size, b.address)"),
)
CachingAllocator.mistake(
    "Of blocks of the same size, take the one at the lowest address.",
    replace("(b.size, b.address)", "(b.size, -b.address)"),
)
TURN = "self._turn = {0}.turn = getattr(self, '_turn', 0) + 1\n"
CachingAllocator.mistake(
    "Of blocks of the same size, take the one at the lowest address.",
    replace("(b.size, b.address)", "(b.size, b.turn)")
    + replace(
        "self._free.add(block.cut(size))",
        f"rest = block.cut(size)\n            {TURN.format('rest')}            self._free.add(rest)",
    )
    + replace(
        "        self._free.add(block)\n",
        f"        {TURN.format('block')}        self._free.add(block)\n",
    ),
)
CachingAllocator.mistake(
    "You only take a free block of exactly the size: a larger one can be cut.",
    replace("b.size >= size", "b.size == size"),
)
CachingAllocator.mistake(
    "You never split: a request of 512 B keeps the 2 MiB of its segment to itself.",
    replace("rest >= MIN_BLOCK if small else rest > SMALL_SIZE", "False"),
)
CachingAllocator.mistake(
    "You split off rests of 512 B in the large pool too. There a rest of at most 1 MiB stays with its "
    "block.",
    replace("rest >= MIN_BLOCK if small else rest > SMALL_SIZE", "rest >= MIN_BLOCK"),
)
CachingAllocator.mistake(
    "In the large pool a rest must be more than 1 MiB to become a block; you split one of exactly 1 MiB.",
    replace("rest > SMALL_SIZE", "rest >= SMALL_SIZE"),
)
CachingAllocator.mistake(
    "You never merge: pieces stay pieces, and no segment that was once split goes back to the device.",
    replace("(block.prev, block.next)", "()"),
)
CachingAllocator.mistake(
    "You merge with the neighbour on the right only; look to the left as well.",
    replace("(block.prev, block.next)", "(block.next,)"),
)
CachingAllocator.mistake(
    "You merge with the neighbour on the left only; look to the right as well.",
    replace("(block.prev, block.next)", "(block.prev,)"),
)


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
                    link(block, near)
                block.absorb(near)
        self._free.add(block)


def link(block, near):
    """Make the two neighbours, across the border of their segments."""
    left, right = (near, block) if near.address < block.address else (block, near)
    left.next, right.prev = right, left


CachingAllocator.mistake(
    "empty_cache returns free pieces of segments that are partly in use. The device takes whole segments "
    "only.",
    replace("[b for b in self._free if b.prev is None and b.next is None]", "list(self._free)"),
)
CachingAllocator.mistake(
    "You raise as soon as the device is full. Empty the cache first, and ask once more.",
    replace("self.empty_cache()", "return None"),
)
for its in ("pool", "pool[1]"):
    CachingAllocator.mistake(
        "On a full device you give back only free segments of the pool, or of the stream, that the request is "
        "for. The room may be in those of another: empty the whole cache.",
        replace(
            "self.empty_cache()",
            "for b in [b for b in self._free if b.prev is None and b.next is None]:\n"
            f"                if b.{its} == {its}:\n"
            "                    self._release(b)",
        ),
    )
CachingAllocator.mistake(
    "Every free empties the cache: then the next malloc waits for the device again, which is what the "
    "cache is there to avoid.",
    replace("self._cache(block)", "self._cache(block)\n        self.empty_cache()"),
)
CachingAllocator.mistake(
    "A request between 1 and 10 MiB gets a segment of its own size; it shares one of 20 MiB.",
    replace("size < MIN_LARGE_SEGMENT", "False"),
)
CachingAllocator.mistake(
    "10 MiB - 1 is 10 MiB once it is rounded: choose the segment by the rounded size.",
    replace("size = self._rounded(size)", "asked, size = size, self._rounded(size)")
    + replace("self._obtain(size, pool)", "self._obtain(asked, pool)"),
)
CachingAllocator.mistake(
    "Exactly 1 MiB belongs to the small pool; you have it in the large one.",
    replace("(size <= SMALL_SIZE,", "(size < SMALL_SIZE,")
    + replace("if size <= SMALL_SIZE:", "if size < SMALL_SIZE:"),
)
CachingAllocator.mistake(
    "memory_allocated counts what was asked for. It is the blocks that are in use, rounding included.",
    replace("size = self._rounded(size)", "asked, size = size, self._rounded(size)")
    + replace(
        "self._allocated += block.size", "block.asked = asked\n        self._allocated += asked"
    )
    + replace("self._allocated -= block.size", "self._allocated -= block.asked"),
)
CachingAllocator.mistake(
    "An address that is not in use is freed without a word. Raise ValueError: in a program it is a bug.",
    replace('raise ValueError(f"no block in use begins at address {address}")', "return"),
)


CachingAllocator.mistake(
    "memory_allocated counts requests, rounded up. A block that was not split is in use whole: count it.",
    replace("self._allocated += block.size", "block.asked = size\n        self._allocated += size")
    + replace("self._allocated -= block.size", "self._allocated -= block.asked"),
)
CachingAllocator.mistake(
    "A segment that goes back to the device still counts in memory_reserved, so that the device seems full.",
    replace("self._reserved -= block.size", "pass"),
)
AT_THE_SUM = (
    "You put a new segment at the sum of what is reserved. Once an earlier one has gone back, that is an "
    "address that was given before, or one within another segment: remember where the last one ended."
)
CachingAllocator.mistake(
    AT_THE_SUM, replace("MemoryBlock(self._end,", "MemoryBlock(self._reserved,")
)
CachingAllocator.mistake(
    "A new segment begins where the last one that is still there ends. Where one above it has gone back, "
    "its addresses are given a second time: remember where the last one ever ended.",
    replace(
        "MemoryBlock(self._end,",
        "MemoryBlock(max((b.address + b.size for b in self._blocks()), default=0),",
    ),
)
CachingAllocator.mistake(
    "In the small pool a rest of exactly 512 B becomes a block of its own; you leave it with its block.",
    replace("rest >= MIN_BLOCK", "rest > MIN_BLOCK"),
)
CachingAllocator.mistake(
    "A request of exactly 10 MiB gets a segment of its own size; only those below share one of 20 MiB.",
    replace("size < MIN_LARGE_SEGMENT", "size <= MIN_LARGE_SEGMENT"),
)
CachingAllocator.mistake(
    "You leave the device's last byte empty: a segment that fills it exactly still fits.",
    replace("> self.capacity", ">= self.capacity"),
)
CachingAllocator.mistake(
    "You compare the capacity with the address at which the last segment ends. What has gone back to the device can be had "
    "again: compare with what is reserved.",
    replace("self._reserved + size > self.capacity", "self._end + size > self.capacity"),
)
CachingAllocator.mistake(
    "You empty the cache for every new segment. It is emptied only where the device has no room for one.",
    replace(
        "    block = self._new_segment(size, pool)\n        if block is None:",
        "    block = None\n        if True:",
    ),
)


class Lists:
    """Each segment a list of [address, size, in use]."""

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


CachingAllocator.alternative("each segment a list of [address, size, in use], no linked blocks")(
    Lists
)


@CachingAllocator.mistake(AT_THE_SUM)
class _(Lists):
    @property
    def end(self):
        return self.memory_reserved()

    @end.setter
    def end(self, value):
        pass

    def segments(self):
        return sorted(super().segments(), key=lambda blocks: blocks[0][0])


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


def drawn_blocks(draw):
    """Words of a trace in which addresses are used again; some blocks were there before it began."""
    taken = draw(st.sets(st.integers(1, 6), max_size=2))
    waiting, words = set(), []
    for number in range(draw(st.integers(1, 20))):
        free = sorted(set(range(1, 7)) - taken - waiting)
        what = draw(st.sampled_from("++++?--!"))
        if what == "+" and free:
            taken.add(addr := draw(st.sampled_from(free)))
            words.append(f"+{addr}:{2 ** (number % 7) + draw(st.integers(0, 3))}")
        elif what in "?-" and taken:
            taken.remove(addr := draw(st.sampled_from(sorted(taken))))
            words.append(f"{what}{addr}")
            waiting |= {addr} if what == "?" else set()
        elif what == "!" and waiting:
            waiting.remove(addr := draw(st.sampled_from(sorted(waiting))))
            words.append(f"!{addr}")
    return " ".join(words)


@peak_memory.by_hand
def _():
    yield call("+1:100"), (100, [1])
    yield call("+1:100 -1 +2:60"), (100, [1])
    yield call("+1:100 +2:50 -1 +3:70"), (150, [1, 2])
    # a block is there until its free is completed
    yield call("+1:100 ?1 +2:50 !1 +3:20"), (150, [1, 2])


@peak_memory.cases(60)
def _(draw):
    yield call(drawn_blocks(draw))


@peak_memory.edge
def _():
    yield call(""), "an empty trace"
    yield call("segment_alloc segment_free"), "no block at all"
    yield (
        call("segment_alloc +1:10 | +2:5"),
        "what is no block changes nothing",
    )
    yield (
        call("-7 +1:10 +2:5 -1 -8"),
        "what was there before the trace began is freed in it",
    )
    yield call("-7 +7:10 +2:5"), "an address that something from before the trace has left"
    yield call("+1:10 -1 +1:30 -1 +1:20"), "one address, three blocks"
    yield call("+1:10 +2:20 -1 +1:30"), "an address that is used again: the later block is last"
    yield call("+1:10 +2:20 -1 +3:10"), "the peak is reached a second time: the first one counts"
    yield call("+5:10 +2:20 +3:0 +4:1 -2"), "an empty block is a block too"
    yield (
        call("+1:10 oom +2:20 |"),
        "an allocation that failed took nothing",
    )


peak_memory.mistake(
    "You give a block back when its free is requested. Until it is completed, other streams may still "
    "use it, and nobody else can have it.",
    replace('"free_completed"', '"free_requested"'),
)
peak_memory.mistake(
    "You subtract at free_requested and again at free_completed: every block is given back twice.",
    replace('== "free_completed"', '.startswith("free")')
    + replace('pop(entry["addr"], 0)', 'pop(entry["addr"], entry["size"])'),
)
peak_memory.mistake(
    "You subtract what was allocated before the trace began. It was never added.",
    replace('pop(entry["addr"], 0)', 'pop(entry["addr"], entry["size"])'),
)
peak_memory.mistake(
    "You count segments as well. A segment is what the allocator reserves; the blocks are cut from it.",
    replace('== "alloc"', 'in ("alloc", "segment_alloc")')
    + replace('== "free_completed"', 'in ("free_completed", "segment_free")'),
)
peak_memory.mistake(
    "You take the last moment of the peak where it is reached more than once; the first is asked for.",
    replace("now > most", "now >= most"),
)
peak_memory.mistake(
    "Those are the blocks alive at the end of the trace, not at its peak.",
    replace("return most, blocks", "return most, list(taken)"),
)
peak_memory.mistake(
    "You add up all that was ever allocated. What is freed makes room again.",
    replace('now -= taken.pop(entry["addr"], 0)', "pass"),
)


peak_memory.mistake(
    "A block may be freed that was there before the trace began, at an address that you do not know: "
    "`dict.pop(key, 0)`.",
    replace('pop(entry["addr"], 0)', 'pop(entry["addr"])'),
)
for bytes_of_it in ('sizes.get(entry["addr"], 0)', 'entry["size"] * (entry["addr"] in sizes)'):
    peak_memory.mistake(
        "You look addresses up in the whole trace: what is freed before its address is allocated is another "
        "block, from before the trace began.",
        replace(
            "    now = most = 0",
            "    sizes = {e['addr']: e['size'] for e in trace if e['action'] == 'alloc'}\n    now = most = 0",
        )
        + replace(
            'now -= taken.pop(entry["addr"], 0)',
            f'taken.pop(entry["addr"], 0)\n            now -= {bytes_of_it}',
        ),
    )
peak_memory.mistake(
    "An address that is used again keeps its old place among your blocks. They stand in the order of their "
    "allocation.",
    replace("list(taken)", "[a for a in taken if taken[a] is not None]")
    + replace(
        'now -= taken.pop(entry["addr"], 0)',
        'now -= taken.get(entry["addr"]) or 0\n            taken[entry["addr"]] = None',
    ),
)
peak_memory.mistake(
    "A freed address keeps its place among your blocks, with 0 bytes: used again it stands where it stood at "
    "first, and an empty block is taken for a freed one. Take it out when it is freed.",
    replace("list(taken)", "[a for a in taken if taken[a]]")
    + replace(
        'now -= taken.pop(entry["addr"], 0)',
        'if entry["addr"] in taken:\n                now -= taken[entry["addr"]]\n'
        '                taken[entry["addr"]] = 0',
    ),
)
peak_memory.mistake(
    "You leave out every address that was freed before the peak. Another block may have it by then: what counts is whether "
    "the address is taken at the peak.",
    replace("    now = most = 0", "    now, most, freed = 0, 0, set()")
    + replace("now -= taken.pop", 'freed.add(entry["addr"])\n            now -= taken.pop')
    + replace("list(taken)", "[addr for addr in taken if addr not in freed]"),
)
peak_memory.mistake(
    "You go through all allocations and list their addresses: one that is used again stands there once for "
    "each. What is freed is off the list, even if another block has its address now.",
    replace("    now = most = 0", "    now, most, order = 0, 0, []")
    + replace(
        'now += entry["size"]', 'now += entry["size"]\n            order.append(entry["addr"])'
    )
    + replace("list(taken)", "[addr for addr in order if addr in taken]"),
)
peak_memory.mistake(
    "You return the addresses first. The bytes come first, then the addresses.",
    replace("return most, blocks", "return blocks, most"),
)


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
    yield call(MODELS[1], "SGD with momentum", x[:1].clone(), 0, False), "one sample"
    yield call(MODELS[1], "AdamW", x.double(), 1, True), "float64: eight bytes for each number"
    yield call(MODELS[1], "SGD", x, 0, False, breaks="loss"), "the loss raises: no hook stays"
    yield (
        call(MODELS[0], "SGD", x, 0, False, breaks="optimizer"),
        "the optimizer raises: no hook stays",
    )


training_step_timeline.mistake(
    "You count a storage once for each operation that saves it. It is there once.",
    replace("sizes[key] for key, n", "n * sizes[key] for key, n"),
)
training_step_timeline.mistake(
    "You count weights among the activations: a matrix product saves its weight too, but that memory is "
    "there anyway.",
    replace(" and key not in own", ""),
)
training_step_timeline.mistake(
    "You count buffers among the activations: BatchNorm saves its running mean and variance, which are the "
    "model's own.",
    replace("(*model.parameters(), *model.buffers())", "model.parameters()"),
)
training_step_timeline.mistake(
    "Your activations only grow. Autograd drops what a node has saved as soon as its backward is done, so "
    "they fall while gradients come.",
    replace("if n and key", "if key"),
)
training_step_timeline.mistake(
    "You count the tensors that are saved, not their storages: a slice keeps all that it is a slice of.",
    replace("t.untyped_storage().nbytes()", "t.nbytes"),
)
training_step_timeline.mistake(
    "You leave out the optimizer's counts of steps. They are tensors in its state like others.",
    replace("isinstance(t, Tensor)", "isinstance(t, Tensor) and t.dim()"),
)
training_step_timeline.mistake(
    "You leave out the parameters that are frozen. They are not trained, but they are there.",
    replace(
        "p.nbytes for p in model.parameters()",
        "p.nbytes for p in model.parameters() if p.requires_grad",
    ),
)
for bytes_of_them in ("p.nbytes for p in model.parameters()", "p.grad.nbytes for"):
    training_step_timeline.mistake(
        "You count four bytes for every number. float64 has eight, and 16-bit formats two: take `nbytes`.",
        replace(bytes_of_them, "4 * " + bytes_of_them.replace("nbytes", "numel()")),
    )
for it in ("p", "p.grad"):
    training_step_timeline.mistake(
        "You go through the modules, and count a parameter that two of them share twice. It takes its memory once: "
        "`model.parameters()` has it once.",
        replace(
            f"{it}.nbytes for p in model.parameters()",
            f"{it}.nbytes for m in model.modules() for p in m.parameters(recurse=False)",
        ),
    )
for named, twice in (
    ("model.named_modules()", "A module that has two names has two rows for each call in yours."),
    ("model.named_parameters()", "A parameter that has two names has two rows in yours."),
):
    training_step_timeline.mistake(
        f"{twice} Go by its one name in `{named[6:-2]}`.",
        replace(named, f"{named[:-1]}remove_duplicate=False)"),
    )
training_step_timeline.mistake(
    "You begin with zero_grad, so the gradients that were there at the start are missing.",
    replace('note("start")', 'optimizer.zero_grad()\n        note("start")'),
)
training_step_timeline.mistake(
    "Your hooks stay on the model: the next step runs them again. Keep what the register methods return, and "
    "call `remove()`.",
    replace("hook.remove()", "pass"),
)


training_step_timeline.mistake(
    "Where the step raises, your hooks stay on the model. Remove them in `finally`.",
    replace("    try:\n", "    if True:\n") + replace("    finally:\n", "    if True:\n"),
)
training_step_timeline.mistake(
    "You note a moment once only. A module that is called twice has a row for each call.",
    replace(
        "        rows.append(",
        "        if moment in [row[0] for row in rows]:\n            return\n        rows.append(",
    ),
)
training_step_timeline.mistake(
    "All your rows of forward bear one name: a lambda looks `name` up when it is called, and by then the "
    "loop has ended. Hand it over as a default: `lambda *_, name=name: …`.",
    replace('*_, name=name: note(f"forward', '*_: note(f"forward'),
)
training_step_timeline.mistake(
    "All your rows of gradients bear one name: a lambda looks `name` up when it is called, and by then the "
    "loop has ended. Hand it over as a default: `lambda _, name=name: …`.",
    replace('_, name=name: note(f"gradient', '_: note(f"gradient'),
)
training_step_timeline.mistake(
    "You hook every module. Those with children would be noted once more after them: leave them out.",
    replace("if not list(module.children()):", "if True:"),
)
training_step_timeline.mistake(
    "The loss is computed outside of your hooks for saved tensors: what it saves is missing.",
    replace(
        "            loss = loss_fn(model(x), target)\n",
        "            y = model(x)\n        loss = loss_fn(y, target)\n",
    ),
)
training_step_timeline.mistake(
    "You note a gradient before it is there: `register_hook` is called with it, and only afterwards does it "
    "become p.grad. Use `register_post_accumulate_grad_hook`.",
    replace("p.register_post_accumulate_grad_hook", "p.register_hook"),
)
training_step_timeline.mistake(
    "A storage is gone for you as soon as the first of its holders is. Two operations may save it, and it is "
    "there until both have let go: count the holders.",
    replace(
        "    held: Counter[int] = Counter()\n",
        "    held: Counter[int] = Counter()\n    most = {}\n",
        "        return _Saved(t.detach(), held)",
        "        saved = _Saved(t.detach(), held)\n"
        "        most[saved.storage.data_ptr()] = held[saved.storage.data_ptr()]\n"
        "        return saved",
        "if n and key",
        "if n and n == most[key] and key",
    ),
)
training_step_timeline.mistake(
    "You keep the size that an address had first. Once a storage is freed another one, of another size, may "
    "lie there.",
    replace(
        "sizes[t.untyped_storage().data_ptr()] =",
        "sizes[t.untyped_storage().data_ptr()] = sizes.get(t.untyped_storage().data_ptr()) or",
    ),
)


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
            boxes = holders.get(s._cdata, (0, set()))[1]
            holders[s._cdata] = s.nbytes(), boxes  # another storage may have been there
            boxes.add(id(box))
            weakref.finalize(box, boxes.discard, id(box))
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

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if next(module.children(), None) is None:
                hook = module.register_forward_hook(partial(note, f"forward {name}"))
                stack.callback(hook.remove)
        for name, p in model.named_parameters():
            if p.requires_grad:
                hook = p.register_post_accumulate_grad_hook(partial(note, f"gradient {name}"))
                stack.callback(hook.remove)
        note("start")
        with saved_tensors_hooks(pack, lambda box: box.t):
            loss = loss_fn(model(x), target)
        note("loss")
        loss.backward()
        optimizer.step()
        note("step")
        optimizer.zero_grad()
        note("zero_grad")
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
    for name in (PLAIN, OTHERS, NESTED):
        yield call(name, x, autocast="bfloat16"), "forward under autocast, backward outside of it"
    yield call(PLAIN, x, autocast="float16"), "forward under autocast to float16"
    for name in (DROPOUT, KEYWORDS):
        yield call(name, x, around="bfloat16"), "backward under autocast, forward outside of it"


checkpoint.mistake(
    "The second run draws new random numbers: another dropout mask, and gradients of a function that never "
    "ran. Keep the generator's state, and set it before you recompute.",
    replace("torch.random.fork_rng(devices=list(device_states)),", "")
    + replace("_set_states(state, device_states)", "pass"),
)
checkpoint.mistake(
    "You remember the generator's seed. From it the second run draws the first numbers of the sequence, not those "
    "of the call: keep the state, `torch.get_rng_state()`.",
    replace("torch.get_rng_state()", "torch.initial_seed()")
    + replace("_set_states(state, device_states)", "torch.manual_seed(state)"),
)
checkpoint.mistake(
    "Your recomputation leaves the generator where it ended, so that all random numbers after backward "
    "differ from those of a run without checkpoints. `torch.random.fork_rng` puts it back.",
    replace("torch.random.fork_rng(devices=list(device_states)),", ""),
)
checkpoint.mistake(
    "You detach the arguments in the forward pass: nothing reaches what came before.",
    replace(
        "return function(*args, **kwargs)",
        "return function(*(a.detach() if isinstance(a, Tensor) else a for a in args), **kwargs)",
    ),
)
checkpoint.mistake(
    "You run the function again without the autocast of the first time: it saves tensors of other dtypes, "
    "or another number of them.",
    replace("_all_of(autocasts),", ""),
)
checkpoint.mistake(
    "You bring autocast back where it was on, and leave it on where it was off: backward may be called under "
    "autocast. `torch.autocast(…, enabled=False)` switches it off.",
    replace("_all_of(autocasts)", "_all_of(a for a in autocasts if a._enabled)"),
)
checkpoint.mistake(
    "You bring autocast back without its dtype. On a CPU that is bfloat16 unless something else was said: give it "
    "the dtype of the first time, `torch.get_autocast_dtype`.",
    replace(
        "_all_of(autocasts),",
        "_all_of(torch.autocast(a.device, enabled=a._enabled) for a in autocasts),",
    ),
)
checkpoint.mistake(
    "Backward runs without grad mode, so your second run saves nothing: say `torch.enable_grad()`.",
    replace("torch.enable_grad(),", ""),
)
checkpoint.mistake(
    "In the second run every tensor of floats requires grad, also those that did not at first: then other "
    "tensors are saved, and the numbers no longer fit.",
    replace("values[i] = t\n", "values[i] = t.detach().requires_grad_(t.is_floating_point())\n"),
)
checkpoint.mistake(
    "In the second run no argument requires grad, so that fewer tensors are saved than at first. Detached "
    "ones must require what they did: `requires_grad_`.",
    replace("values[i] = t\n", "values[i] = t.detach()\n"),
)
checkpoint.mistake(
    "The second run does without the keyword arguments.",
    replace("*values[:n], **dict(zip(names, values[n:], strict=True))", "*values[:n]"),
)
checkpoint.mistake(
    "You drop what was recomputed, but never recompute for a second backward pass over the same graph.",
    replace("    numbers = itertools.count()", "    numbers, once = itertools.count(), []")
    + replace("if number not in recomputed:", "if not once:\n            once.append(True)"),
)
checkpoint.mistake(
    "Nothing is recomputed, and everything is kept: this is the function itself.",
    cost=True,
)(lambda function, *args, **kwargs: function(*args, **kwargs))
checkpoint.mistake(
    "Where no argument requires a gradient you only call the function, and keep all that it saves. Its "
    "parameters may train: the first layer's input requires no gradient either.",
    replace(
        "    places =",
        "    if not any(isinstance(v, Tensor) and v.requires_grad for v in given):\n"
        "        return function(*args, **kwargs)\n"
        "    places =",
    ),
    cost=True,
)
checkpoint.mistake(
    "You run the function once more for each tensor that backward asks for. Once is enough: keep what the "
    "run collects until it is fetched.",
    replace("if number not in recomputed:\n            recompute()", "recompute()"),
    cost=True,
)
checkpoint.mistake(
    "You keep the tensors beside the numbers that stand for them, so that all of them live on.",
    replace("    numbers = itertools.count()", "    numbers, kept_too = itertools.count(), []")
    + replace("return next(numbers)", "kept_too.append(t.detach())\n        return next(numbers)"),
    cost=True,
)
checkpoint.mistake(
    "The tensors that your second run collects have a graph of their own, whose nodes hold the hook that collects, and "
    "with it the tensors: a circle that nothing ever frees. Collect `t.detach()`.",
    replace("= t.detach()", "= t", "recomputed.pop(number)", "recomputed[number]"),
    cost=True,
)
checkpoint.mistake(
    "Your closure holds the tensor arguments. Where calls nest, an outer checkpoint cannot drop what an "
    "inner one was given, and all of it stays. Save them through autograd, whose hooks the outer one has "
    "set.",
    replace("given[i] = None", "pass"),
    cost=True,
)


@checkpoint.mistake(
    "An autograd.Function gives no gradient if none of its tensor arguments requires one, whatever "
    "parameters the function uses: that is the trouble with `use_reentrant=True`."
)
def _(function, *args, **kwargs):
    return torch_checkpoint(function, *args, use_reentrant=True, **kwargs)


@checkpoint.alternative("the library's own")
def _(function, *args, **kwargs):
    return torch_checkpoint(function, *args, use_reentrant=False, **kwargs)


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
        [call((4, 6), WIDE), call((3, 3, 6), WIDE), call((3, 1, 8), WIDE)],
        limit=lambda case: bytes_of(WIDE) * {6: 14, 8: 19}[case.args[0][-1]],
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


ONE = "x = checkpoint(run, layers[start : start + size], x)"  # the call that makes a segment
OF_TORCH = "x = torch.utils.checkpoint.checkpoint({}, use_reentrant=False, {})"

checkpoint_every_sqrt.mistake(
    "The layers left over when n is no multiple of the segment's length are never called.",
    replace("range(0, len(layers),", "range(0, len(layers) - size + 1,"),
)
CEILING = "math.ceil(math.sqrt(len(layers)))"
FLOOR = replace(CEILING, "math.isqrt(len(layers))")
checkpoint_every_sqrt.mistake(
    "Your segments have ⌊√n⌋ layers, and you call whole ones only: the layers left over never run.",
    FLOOR + replace("range(0, len(layers),", "range(0, len(layers) - size + 1,"),
)
checkpoint_every_sqrt.mistake(
    "⌊√n⌋ segments of ⌊√n⌋ layers: where n is no square, the layers beyond them are never called.",
    FLOOR + replace("range(0, len(layers),", "range(0, size * size,"),
)
for size in (CEILING, "math.isqrt(len(layers))", "round(math.sqrt(len(layers)))"):
    for call_of_one in (
        OF_TORCH.format(
            "lambda x: run(layers[start : start + size], x), x", "determinism_check='none'"
        ),
        "x = checkpoint(lambda x: run(layers[start : start + size], x), x)",
    ):
        checkpoint_every_sqrt.mistake(
            "Your function looks its segment up when it runs. In backward, when it runs again, the loop is "
            "over and it finds the last one: other layers, or fewer. Pass the segment as an argument.",
            replace(CEILING, size, ONE, call_of_one),
        )
checkpoint_every_sqrt.mistake(
    "Without the generator's state, dropout draws another mask when a segment runs again.",
    replace(
        ONE, OF_TORCH.format("run, layers[start : start + size], x", "preserve_rng_state=False")
    ),
)
checkpoint_every_sqrt.mistake(
    "Without a layer the segments have length 0, and `range` takes no step of 0. There is nothing to call: "
    "return x.",
    replace("max(size, 1)", "size"),
)
checkpoint_every_sqrt.mistake(
    "Every segment begins with x again: give it what the one before it returned.",
    replace(
        "run, layers[start : start + size], x)\n    return x",
        "run, layers[start : start + size], x0)\n    return x",
    )
    + replace("    size = math", "    x0 = x\n    size = math"),
)


@checkpoint_every_sqrt.mistake(
    "You checkpoint one layer of each √n, and call those in between as they are: they keep what they save. "
    "A whole segment belongs into one checkpoint.",
    cost=True,
)
def _(layers, x):
    every = max(1, math.isqrt(len(layers)))
    for i, layer in enumerate(layers):
        x = layer(x) if i % every else cm.checkpoint(layer, x)
    return x


checkpoint_every_sqrt.mistake(
    "Every layer is checkpointed for itself: n inputs are kept, one for each.",
    replace("math.ceil(math.sqrt(len(layers)))", "1"),
    cost=True,
)
checkpoint_every_sqrt.mistake(
    "One segment of all layers: little is kept, and backward then brings all n activations back at once.",
    replace("math.ceil(math.sqrt(len(layers)))", "len(layers)"),
    cost=True,
)
THREE_TIMES = (
    "Your checkpoints nest: segments are checkpointed, and once more their single layers, or all segments "
    "together. Each layer runs three times."
)
checkpoint_every_sqrt.mistake(THREE_TIMES, cost=True)(
    lambda layers, x: cm.checkpoint(cm.checkpoint_every_sqrt, layers, x)
)
checkpoint_every_sqrt.mistake(
    THREE_TIMES, replace("x = layer(x)", "x = checkpoint(layer, x)"), cost=True
)


@checkpoint_every_sqrt.alternative("checkpoint_sequential, which leaves the last segment alone")
def _(layers, x):
    n = len(layers)
    if not n:
        return x
    return checkpoint_sequential(list(layers), math.isqrt(n), x, use_reentrant=False)


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
        "Remember for each address where its block was born: the entry that frees it says where it was "
        "freed.",
        "A place leaks if its bytes grow from every snapshot to the next: `itertools.pairwise`, `all`.",
        ("edge cases", "One snapshot or none: nothing can be said to grow."),
    ),
)


@find_leak.by_hand
def _():
    yield call("+1:8@train.py:3 | +2:8@train.py:3 | +3:8@train.py:3 |"), [("train.py:3", 16)]
    # optimizer state comes once; the activations go
    yield (
        call("+1:512@adam.py:9 +2:64@model.py:5 -2@step.py:2 | +2:64@model.py:5 -2@step.py:2 |"),
        [],
    )
    yield (
        call("+1:4@a.py:1 +2:6@b.py:2<a.py:7 | +3:4@a.py:1 +4:6@b.py:2<a.py:8 |"),
        [("b.py:2", 6), ("a.py:1", 4)],
    )


PLACES = ("model.py:10", "model.py:20", "train.py:3", "hook.py:3")


@find_leak.cases(60)
def _(draw):
    """Places of which some leave a block in each step, at addresses that are used again."""
    leaking = draw(st.sets(st.sampled_from(PLACES), max_size=2))
    taken = draw(st.sets(st.integers(1, 4), max_size=2))  # before the trace began
    words, going = [], sorted(taken)
    for _ in range(draw(st.integers(2, 4))):
        for place in sorted(leaking | draw(st.sets(st.sampled_from(PLACES), max_size=2))):
            addr = next(a for a in itertools.count(1) if a not in taken)
            caller = draw(st.sampled_from(PLACES))
            words.append(f"+{addr}:{draw(st.integers(1, 9))}@{place}<{caller}")
            taken.add(addr)
            if place not in leaking:
                going.append(addr)
        for addr in [a for a in going if draw(st.integers(0, 3))]:
            words.append(f"-{addr}@{draw(st.sampled_from(PLACES))}")
            going.remove(addr)
            taken.remove(addr)
        words.append("|")
    yield call(" ".join(words))


@find_leak.edge
def _():
    yield call(""), "an empty trace"
    yield call("+1:8@a.py:1 |"), "one snapshot says nothing about growth"
    yield call("| |"), "nothing was allocated"
    yield call("| +1:8 |"), "an allocation without frames"
    yield call("+1:8@a.py:1 | | +2:8@a.py:1 |"), "it grows in one step, not in the other"
    yield (
        call("+1:8@a.py:1 -1 | +2:8@a.py:1 | +3:8@a.py:1 |"),
        "nothing of it is left at the first snapshot",
    )
    yield call("+1:8@a.py:1 | -1 +1:9@b.py:1 |"), "an address that another place uses next"
    yield (
        call("-5 +1:8@a.py:1 | -6 +2:8@a.py:1 |"),
        "what was there before the trace began",
    )
    yield (
        call("+1:8 | -6 +2:8 |"),
        "what was there before the trace began is of no place, not of the one without frames",
    )
    yield (
        call("+1:8@a.py:1 | -2 +2:8@a.py:1 |"),
        "an address that something from before the trace has left",
    )
    yield (
        call("+1:8@b.py:1 +2:8@a.py:1 | +3:8@b.py:1 +4:8@a.py:1 |"),
        "as many bytes in two places",
    )
    yield (
        call(
            "+1:1@a.py:1 +2:1@c.py:1 +3:1@b.py:1 | +4:8@a.py:1 +5:8@c.py:1 +6:8@b.py:1 +7:9@d.py:1 |"
        ),
        "as many bytes in three places",
    )
    yield (
        call("+1:8@a.py:1 | +2:8@a.py:1 | +3:8@a.py:1 -1 |"),
        "it grew once, and then stayed as it is",
    )
    yield (
        call("+1:8@a.py:1 | +2:16@a.py:1 | -2@a.py:9 | +3:24@a.py:1 |"),
        "it shrank on the way, and ends with more",
    )
    yield (
        call("+1:8@a.py:1 +2:8@c.py:1 | +3:8@a.py:1 -1@c.py:1 +4:8@c.py:1 |"),
        "a block that is freed at another place than it was born",
    )
    yield (
        call("+1:8@a.py:1 | +2:8@a.py:1 | +3:9@a.py:1"),
        "what comes after the last snapshot does not count",
    )
    yield (
        call("+1:4@a.py:10 | +2:6@a.py:10 ?1 |"),
        "a block whose free is requested, not completed, is still there",
    )
    yield call("+1:8@a.py:1 | +2:0@a.py:1 |"), "an empty block is no growth"
    yield (
        call("+1:2@a.py:1 | -1 +2:1@a.py:1 +3:1@a.py:1 |"),
        "more blocks, but no more bytes",
    )


find_leak.mistake(
    "You name the outermost frame: the training loop, which everything is allocated under.",
    replace(
        "{frames[0]['filename']}:{frames[0]['line']}",
        "{frames[-1]['filename']}:{frames[-1]['line']}",
    ),
)
find_leak.mistake(
    "You call a leak what grows in some step. It has to grow in every one: a cache or a longer batch grows "
    "once.",
    replace("if all(", "if any("),
)
find_leak.mistake(
    "You report all that is alive at the end, with what the first step left. Counting begins at the first "
    "snapshot.",
    replace("history[-1][place] - history[0][place]", "history[-1][place]"),
)
find_leak.mistake(
    "A block is gone for you once its free is requested. It is there until that is completed.",
    replace('"free_completed"', '"free_requested"'),
)
find_leak.mistake(
    "You compare the last snapshot with the first only. A place that grew once and then stayed is no leak.",
    replace("itertools.pairwise(history)", "[(history[0], history[-1])]"),
)
find_leak.mistake(
    "You count what is allocated in each step and forget what is freed: every place of the step leaks.",
    replace("alive[place] -= size", "pass"),
)


find_leak.mistake(
    "You ask only for the places that hold something at the first snapshot. One that begins to leak later holds "
    "nothing there, and grows from 0.",
    replace("for place in alive\n", "for place in +history[0]\n"),
)
find_leak.mistake(
    "You ask only for the places at which the first step has allocated. One that begins to leak later grows "
    "from 0.",
    replace("for place in alive\n", "for place in history[0]\n"),
)
find_leak.mistake(
    "A block may be freed that was there before the trace began, at an address that you do not know. Pass "
    "over it.",
    replace(' and entry["addr"] in born', ""),
)
find_leak.mistake(
    "A block that was there before the trace began belongs to no place; you subtract it from the one that "
    "has no frames.",
    replace(' and entry["addr"] in born', "")
    + replace('born.pop(entry["addr"])', 'born.pop(entry["addr"], ("?", entry["size"]))'),
)
find_leak.mistake(
    "You take it for a leak if the bytes do not shrink. They must grow: what stays as it is is a cache.",
    replace("before[place] < after[place]", "before[place] <= after[place]"),
)
find_leak.mistake(
    "You let a place stand still between two snapshots if it ends with more than it began with. It must "
    "grow from each to the next.",
    replace(
        "before[place] < after[place] for",
        "history[0][place] < history[-1][place] and before[place] <= after[place] for",
    ),
)
find_leak.mistake(
    "You begin with the snapshot at which a place first has bytes. The snapshots before it count too: the place had 0 "
    "bytes there.",
    replace(
        "    leaks = [",
        "    sizes = {place: [before[place] for before in history] for place in alive}\n"
        "    sizes = {p: list(itertools.dropwhile(lambda n: not n, row)) for p, row in sizes.items()}\n"
        "    leaks = [",
    )
    + replace("history[-1][place] - history[0][place]", "sizes[place][-1] - sizes[place][0]")
    + replace(
        "all(before[place] < after[place] for before, after in itertools.pairwise(history))",
        "len(sizes[place]) > 1 and all(a < b for a, b in itertools.pairwise(sizes[place]))",
    ),
)
find_leak.mistake(
    "You subtract at the place that the free's own frames name. There the block was freed; its bytes were "
    "counted where it was born.",
    replace(
        "alive[place] -= size",
        "frames = entry['frames']\n"
        "            place = f\"{frames[0]['filename']}:{frames[0]['line']}\" if frames else '?'\n"
        "            alive[place] -= size",
    ),
)
find_leak.mistake(
    "You count blocks. How many bytes they hold is asked for.",
    replace('alive[place] += entry["size"]', "alive[place] += 1")
    + replace("alive[place] -= size", "alive[place] -= 1"),
)
find_leak.mistake(
    "You list the places by name. The most bytes come first, and the name decides between equals.",
    replace("(-leak[1], leak[0])", "leak[0]"),
)
find_leak.mistake(
    "You sort by bytes alone, so that equals stand in the order in which they appeared. Among them the name "
    "decides.",
    replace("(-leak[1], leak[0])", "-leak[1]"),
)
find_leak.mistake(
    "You turn the whole order round, the names as well. The most bytes come first; equals stand in the "
    "ascending order of their places.",
    replace("(-leak[1], leak[0])", "(leak[1], leak[0]), reverse=True"),
)
find_leak.mistake(
    "Without two snapshots there is nothing to compare: give an empty list.",
    replace("len(history) < 2", "not history"),
)


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
    yield call(100, 10, 1, 0, 0), "a limit of 0: there is nothing to try"
    yield call(1000, 1, 1, 63, 1), "another error is passed on"
    yield call(30, 1, 1, 64, 1), "another error is passed on"


@largest_batch.edge
def _():
    words = "the data loader's worker ran out of memory"
    yield call(1000, 1, 1, 63, 1, wrong=words), "another error, with such words, is passed on"
    words = "no room on the device"
    yield call(100, 20, 10, 16, 0, full=words), "it is the class that counts, not the message"


largest_batch.mistake(
    "You catch more than torch.OutOfMemoryError, which is a RuntimeError. A wrong shape then looks like a "
    "batch that does not fit.",
    replace("torch.OutOfMemoryError", "RuntimeError"),
)


for words in ("out of memory", "CUDA out of memory"):
    largest_batch.mistake(
        "You go by the words of the message. Other errors may have such words, and an OutOfMemoryError others: "
        "ask for the class, torch.OutOfMemoryError.",
        replace(
            "except torch.OutOfMemoryError:",
            f"except RuntimeError as error:\n            if {words!r} not in str(error):\n"
            "                raise",
        ),
    )
largest_batch.mistake(
    "You catch torch.OutOfMemoryError, and besides it whatever has such words in its message. Other errors may "
    "have them: they are passed on.",
    replace(
        "except torch.OutOfMemoryError:",
        "except RuntimeError as error:\n"
        "            full = isinstance(error, torch.OutOfMemoryError)\n"
        "            if not full and 'out of memory' not in str(error):\n"
        "                raise",
    ),
)


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


largest_batch.mistake(
    "You double, and stop at the first batch that fails: the largest power of two that fits, not the "
    "largest batch.",
    replace("high - low > 1", "max(2 * low, 1) <= limit")
    + replace("middle = (low + high) // 2", "middle = max(2 * low, 1)")
    + replace("high = middle", "break"),
)
largest_batch.mistake(
    "You return the smallest batch that fails.", replace("return low", "return high")
)
for short in (
    replace("limit + 1", "limit"),
    replace(
        "low, high = 0, limit + 1",
        "low, high = 0, 1\n"
        "    while high <= limit and fits(high):\n"
        "        low, high = high, 2 * high\n"
        "    high = min(high, limit) if low < limit else low + 1\n   ",
    ),
):
    largest_batch.mistake("You never try the limit itself.", short)
largest_batch.mistake(
    "You double, and where the last power of two within `limit` fits you return it: what lies between it and `limit` is "
    "never tried.",
    replace(
        "low, high = 0, limit + 1",
        "low, high = 0, 1\n"
        "    while high <= limit and fits(high):\n"
        "        low, high = high, 2 * high\n"
        "    if high > limit:\n"
        "        return low",
    ),
)
largest_batch.mistake(
    "You assume that one sample always fits: where it does not, the answer is 0.",
    replace("return low", "return max(low, 1)"),
)
largest_batch.mistake(
    "You take the batch above one that fits for one that fits, untried.",
    replace("low = middle", "low = min(middle + 1, limit)"),
)
largest_batch.mistake(
    "You leave out the batch below one that fails, untried.",
    replace("high = middle", "high = max(middle - 1, low + 1)"),
)
for beyond in (
    replace("limit + 1", "2 * limit + 1"),
    replace(
        "low, high = 0, limit + 1",
        "low, high = 0, 1\n"
        "    while high <= limit and fits(high):\n"
        "        low, high = high, 2 * high\n   ",
    ),
):
    largest_batch.mistake(
        "You search beyond `limit`: the smallest batch that is out of the question is limit + 1.",
        beyond,
    )
largest_batch.mistake(
    "You try one batch after another. Each try is a training step: halve the range instead.",
    replace("(low + high) // 2", "low + 1"),
    cost=True,
)
largest_batch.mistake(
    "With a limit of 0 you run a step on an empty batch. There is nothing to try: return 0.",
    replace(
        "low, high = 0, limit + 1",
        "if fits(limit):\n        return limit\n    low, high = 0, limit + 1",
    ),
    cost=True,
)


@largest_batch.alternative("the bisect module over a range")
def _(step, limit=1024):
    def fails(batch):
        try:
            step(batch)
        except torch.OutOfMemoryError:
            return True

    return bisect_left(range(1, limit + 1), True, key=lambda batch: fails(batch) or False)


largest_batch.contract(
    contracts.kernels(
        [call(100, 10, 1, 0, 0)]
        + [call(777, 7, 1, 1024, 0), call(100, 7, 1, 1024, 0), call(9000, 7, 1, 1024, 0)],
        limit=lambda case: case.args[3] and 2 * math.ceil(math.log2(case.args[3])) + 2,
        says="at most 2·log2(limit) + 2 steps, and none if limit is 0",
        prepare=memory.counted_attempts,
    )
)
largest_batch.equivalent(
    "largest_batch.fits: `return False` → `return None`",
    because="the answer is only asked whether it is true, and None is not",
)
