"""Which lines of a stack are the caller's own, and whether its top waits for another rank."""

import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from course_utils.source.tracebacks import files_of, is_callers, kinds_of, lines_of, where

from .report import RAISED, Failure, Line, tidy

_WAITS = re.compile(r"\bwait(_tensor|_all|_stream)?\s*\(|\.wait\b")
"""What a call that waits for a message looks like where it is written: `work.wait()`."""

_MEETS = ("init_process_group", "new_group", "rendezvous", "_new_process_group_helper")
"""Functions of torch.distributed in which ranks find one another."""

_WRITES = ("distributed/checkpoint/filesystem",)
"""Parts of torch.distributed that wait for the disk and for nobody else."""

_COMMUNICATES = ("distributed", "autograd", "nn/parallel", "futures", "_ops.py", "_tensor.py")
"""Parts of torch in whose frames the main thread of a rank waits for others. autograd: DDP waits
for its buckets inside the engine of the backward pass."""


def may_block(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call it; a rank that is in it waits for others, by the measure of `waits_for_others`."""
    return call(*args, **kwargs)


def line_of(filename: str, number: int, name: str) -> Line:
    """A line of source as data: where it stands, what it says. name: the function's."""
    source = linecache.getline(filename, number).strip()
    return Line(where(name), number, source, filename)


def _communicates(filenames: Iterable[str]) -> bool:
    """Is torch.distributed among these files?"""
    return any("/torch/distributed/" in name.replace("\\", "/") for name in filenames)


def failure_of(error: BaseException) -> Failure:
    """An exception as data."""
    said = str(error)
    involved = isinstance(error, RuntimeError) and (
        _communicates(files_of(error)) or "gloo" in said
    )
    lines = tuple(
        Line(line.where, line.number, line.source, line.filename)
        for line in lines_of(error, is_callers)
    )
    return Failure(RAISED, tidy(said), kinds_of(error), lines, involved)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def stack(thread: int) -> list[FrameType]:
    """The frames of a thread, innermost first."""
    return list(_outwards(sys._current_frames().get(thread)))


def lines_of_stack(frames: list[FrameType]) -> tuple[Line, ...]:
    """The caller's own lines among these frames, outermost first. frames: innermost first."""
    return tuple(
        line_of(f.f_code.co_filename, f.f_lineno, f.f_code.co_name)
        for f in reversed(frames)
        if is_callers(f.f_code.co_filename)
    )


def waits_for_others(frames: list[FrameType]) -> bool:
    """Is the innermost frame inside a communication of torch, or a `.wait()` in anybody's code?"""
    if not frames:
        return False
    top = frames[0]
    if top.f_code is may_block.__code__:
        return True
    path = top.f_code.co_filename.replace("\\", "/")
    _, torch, part = path.rpartition("/torch/")
    if torch and part.startswith(_WRITES):
        return False
    if torch and part.startswith(_COMMUNICATES):
        return True
    return bool(_WAITS.search(_expression(top)))


def meets(frames: list[FrameType]) -> str:
    """The outermost function in which a group is made, or a store looked for; "" if there is none."""
    names = [f.f_code.co_name for f in frames if _communicates([f.f_code.co_filename])]
    return next((name for name in reversed(names) if name in _MEETS), "")


def _expression(frame: FrameType) -> str:
    """The source of the call that the frame is in."""
    code, at = frame.f_code, frame.f_lasti // 2
    positions = list(code.co_positions())
    if not 0 <= at < len(positions):
        return ""
    first, last, start, end = positions[at]
    if first is None or last is None or start is None or end is None:
        return ""
    lines = [linecache.getline(code.co_filename, n) for n in range(first, last + 1)]
    if not any(lines):
        return ""
    text = b"".join(line.encode() for line in lines)
    tail = len(lines[-1].encode()) - end
    return text[start : len(text) - tail].decode(errors="replace")
