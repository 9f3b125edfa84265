"""The probe of allocators: what it sees, and answers that no declared mistake covers."""

import bisect
from collections import defaultdict
from itertools import pairwise
from typing import ClassVar

import pytest
import torch

from course_utils.grading import call, find, grade, probes
from course_utils.reference.caching_allocator import CachingAllocator

MIB = 2**20
EXERCISE = find("cuda_memory.CachingAllocator")


def judged(subject):
    return grade(EXERCISE, subject)


def test_what_it_sees():
    case = call(capacity=20 * MIB, requests="a=600@1 b=30M -b -7 -a empty")
    seen = probes.allocator(CachingAllocator, case)
    assert seen["request 1, a = malloc(600, 1): the address"] == 0
    assert seen["request 2, b = malloc(31457280): the address"] == "torch.OutOfMemoryError"
    assert not any("request 3" in label and "what happens" in label for label in seen)
    assert seen["request 4, free(7): what happens"] == "ValueError"
    assert seen["request 5, free(a): what happens"] == "it is freed"
    assert seen["request 6, empty_cache(): memory_reserved()"] == 0
    assert seen["segments() at the end"] == []
    assert "a = malloc(600, 1); b = malloc(31457280)" in probes.allocator.called("X", case)
    with pytest.raises(ValueError, match="no size"):
        probes.allocator(CachingAllocator, call(capacity=MIB, requests="a=lots"))


def test_the_smallest_failure_is_short_and_empties_no_cache_in_vain():
    """Of every mistake that only the random cases catch."""
    for mistake in EXERCISE.mistakes:
        verdict = judged(mistake.subject)
        requests = verdict.failure.case.kwargs["requests"].split()
        assert len(requests) <= 12, (mistake.says, requests)
        assert not any(a == b == "empty" for a, b in pairwise(requests))


def test_other_exceptions_are_not_swallowed():
    class Broken(CachingAllocator):
        def malloc(self, size, stream=0):
            raise RuntimeError("out of ideas")

    with pytest.raises(RuntimeError):
        probes.allocator(Broken, call(capacity=MIB, requests="a=1"))
    verdict = judged(Broken)
    assert verdict.outcome == "failed" and "out of ideas" in str(verdict)


def test_wrong_answers_that_no_declared_mistake_covers():
    class SharedBetweenAllocators(CachingAllocator):
        """State in the class: a second allocator is not empty."""

        _shared: ClassVar[dict] = {}

        def __init__(self, capacity):
            super().__init__(capacity)
            self._used = self._shared

    class EmptiesTheSmallPoolOnly(CachingAllocator):
        def empty_cache(self):
            for block in list(self._free):
                if block.prev is None and block.next is None and block.pool[0]:
                    self._release(block)

    class CountsAFailedSegment(CachingAllocator):
        def _new_segment(self, size, pool):
            block = super()._new_segment(size, pool)
            if block is None:
                self._reserved += size
            return block

    class SharedFrom2ndOn(CachingAllocator):
        """State in the class, emptied for each new allocator: two at once are one."""

        def __init__(self, capacity):
            super().__init__(capacity)
            type(self).both = self.__dict__
            type(self).memory_allocated = lambda self: type(self).both["_allocated"]

    class RaisesMemoryError(CachingAllocator):
        def malloc(self, size, stream=0):
            try:
                return super().malloc(size, stream)
            except torch.OutOfMemoryError as error:
                raise MemoryError from error

    for wrong in (
        SharedBetweenAllocators,
        EmptiesTheSmallPoolOnly,
        CountsAFailedSegment,
        SharedFrom2ndOn,
        RaisesMemoryError,
    ):
        verdict = judged(wrong)
        assert verdict.outcome == "failed", wrong.__name__
        assert verdict.diagnosis is None, (wrong.__name__, verdict.diagnosis)


class SortedFreeLists:
    """Free lists that are kept sorted, and a map of borders."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.bins = defaultdict(list)  # pool → sorted (size, address)
        self.used = {}  # address → (size, pool)
        self.starts = {}  # segment → size
        self.free_at = {}  # address → (size, pool)
        self.end = self.now = self.held = 0

    def put(self, address, size, pool):
        bisect.insort(self.bins[pool], (size, address))
        self.free_at[address] = (size, pool)

    def pull(self, address):
        size, pool = self.free_at.pop(address)
        self.bins[pool].remove((size, address))
        return size

    def malloc(self, size, stream=0):
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


def test_free_lists_that_are_kept_sorted_pass():
    assert judged(SortedFreeLists).outcome == "passed"


def test_a_right_answer_of_another_style():
    class Bitmap:
        """Segments as dicts of 512 B pages; a block is a run of pages with one owner."""

        def __init__(self, capacity):
            self.capacity, self.segments_, self.top = capacity, [], 0

        def runs(self, segment):
            start = 0
            while start < len(segment["pages"]):
                owner, stop = segment["pages"][start], start
                while stop < len(segment["pages"]) and segment["pages"][stop] == owner:
                    stop += 1
                yield start, stop, owner
                start = stop

        def malloc(self, size, stream=0):
            pages = -(-size // 512)
            pool = (pages <= 2048, stream)
            for _ in range(2):
                fit = [
                    (stop - start, s["at"] + 512 * start, s, start)
                    for s in self.segments_
                    if s["pool"] == pool
                    for start, stop, owner in self.runs(s)
                    if owner is None and stop - start >= pages
                ]
                if fit:
                    break
                shared = 4096 if pool[0] else 40960
                count = shared if pages < 20480 else -(-pages // 4096) * 4096
                if self.memory_reserved() + 512 * count > self.capacity:
                    self.empty_cache()
                if self.memory_reserved() + 512 * count > self.capacity:
                    raise torch.OutOfMemoryError("full")
                self.segments_.append({"at": self.top, "pool": pool, "pages": [None] * count})
                self.top += 512 * count
            room, address, segment, start = min(fit, key=lambda f: f[:2])
            rest = room - pages
            taken = pages if rest > (0 if pool[0] else 2048) else room
            segment["pages"][start : start + taken] = [address] * taken
            return address

        def free(self, address):
            for segment in self.segments_:
                if address in segment["pages"]:
                    pages = segment["pages"]
                    segment["pages"] = [None if owner == address else owner for owner in pages]
                    return
            raise ValueError(address)

        def empty_cache(self):
            self.segments_ = [s for s in self.segments_ if any(o is not None for o in s["pages"])]

        def memory_allocated(self):
            return sum(512 * (o is not None) for s in self.segments_ for o in s["pages"])

        def memory_reserved(self):
            return sum(512 * len(s["pages"]) for s in self.segments_)

        def segments(self):
            return [
                [
                    (s["at"] + 512 * start, 512 * (stop - start), owner is not None)
                    for start, stop, owner in self.runs(s)
                ]
                for s in self.segments_
            ]

    case = EXERCISE.cases_by_hand()
    for one in case:  # pages are slow: the cases by hand, and the edge cases that are small
        assert probes.allocator(Bitmap, one) == probes.allocator(CachingAllocator, one)
    for one in EXERCISE.edge_cases()[:6]:
        assert probes.allocator(Bitmap, one) == probes.allocator(CachingAllocator, one)
