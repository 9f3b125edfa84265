"""Pages of a mapped file, counted: only what was touched is in memory."""

import mmap
import sys

import numpy as np
import pytest

from course_utils.meters import PAGE, page_faults, pages_in_memory

asked = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no mincore")


def untouched(pages: int) -> np.ndarray:
    """Zeros in memory of their own, of which no page has been touched."""
    memory = mmap.mmap(-1, pages * PAGE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8)


@asked
def test_the_pages_that_were_touched_are_found():
    data = untouched(9)
    assert pages_in_memory(data).tolist() == [False] * 9
    assert data[3 * PAGE] == 0 and data[-1] == 0
    found = pages_in_memory(data)
    assert np.flatnonzero(found).tolist() == [3, 8]


@asked
def test_a_part_that_begins_within_a_page_counts_that_page():
    data = untouched(4)
    assert data[PAGE] == 0
    assert pages_in_memory(data[PAGE + 5 : 2 * PAGE + 1]).tolist() == [True, False]
    assert pages_in_memory(data[2 * PAGE :]).tolist() == [False, False]


@asked
def test_a_file_that_is_read_is_in_memory(tmp_path):
    path = tmp_path / "numbers.bin"
    np.arange(3 * PAGE, dtype=np.uint16).tofile(path)
    numbers = np.memmap(path, np.uint16, mode="r")
    assert numbers.sum() > 0
    assert pages_in_memory(numbers).tolist() == [True] * 6


def test_of_nothing_there_is_nothing_to_say():
    assert pages_in_memory(np.zeros(0)) is None


@asked
def test_faults_grow_by_the_pages_that_are_touched():
    data = untouched(500)
    before = page_faults()
    assert data[::PAGE].sum() == 0
    assert page_faults() - before >= 500
