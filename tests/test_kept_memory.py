"""What a process frees it keeps, once told so: the same tensor again costs no page fault."""

import platform
import subprocess
import sys

import pytest

from course_utils.processes.kept_memory import keep_freed_memory

PROGRAM = """
import statistics, sys
import torch
from course_utils.meters import page_faults
from course_utils.processes.kept_memory import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
weight = torch.randn(64, 16384, requires_grad=True)
found = []
for _ in range(25):
    before = page_faults()
    x = torch.randn(1024, 64)
    torch.nn.functional.gelu(x @ weight).sum().backward()
    weight.grad = None
    found.append(page_faults() - before)
print(statistics.median(found[10:]))
"""


def faults(how: str) -> float:
    """Page faults of a step that makes some blocks of 64 MiB: the median of the later ones."""
    command = [sys.executable, "-c", PROGRAM, how]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's allocator")
def test_what_is_kept_is_not_cleared_again():
    """Single steps may still find that no freed block fits: the heap grows around what else was made."""
    as_it_is, kept = faults("as it is"), faults("kept")
    assert as_it_is > 30_000, "pages of 4 KiB"
    assert kept < as_it_is / 4


def test_elsewhere_it_says_that_it_cannot(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
