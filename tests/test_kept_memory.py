"""What a process frees it keeps, once told so: the same tensor again costs no page fault."""

import platform
import subprocess
import sys

import pytest

from course_utils.processes.kept_memory import keep_freed_memory

PROGRAM = """
import sys
import torch
from course_utils.meters import page_faults
from course_utils.processes.kept_memory import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
found = []
for _ in range(6):
    before = page_faults()
    torch.ones(25 * 2**20)  # 100 MiB, freed at once: more than any threshold that glibc adapts
    found.append(page_faults() - before)
print(*found)
"""
PAGES = 100 * 2**20 // 4096


def faults(how: str) -> list[int]:
    command = [sys.executable, "-c", PROGRAM, how]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in ran.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's allocator")
def test_what_is_kept_is_not_cleared_again():
    assert min(faults("as it is")) > PAGES / 2, "each time anew"
    kept = faults("kept")
    assert kept[0] > PAGES / 2
    assert max(kept[3:]) < PAGES / 100, "the heap has grown around what else was made"


def test_elsewhere_it_says_that_it_cannot(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
