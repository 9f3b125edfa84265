"""Is what drives, measures and probes still what it was before any of a student's code ran?

It is asked in the process that it is asked about. So whoever has changed enough can answer; what this
finds is evidence, and what it does not find is no proof.
"""

import builtins
import math
import sys
import threading
import time
from operator import is_not
from types import FunctionType, ModuleType
from typing import Any

import torch

from course_utils.grading.driving.probe import Probe

_MOST = 5
_OURS = ("course_utils.grading", "course_utils.meters", "course_utils.processes")
_LIBRARIES: tuple[Any, ...] = (
    *(builtins, math, time, threading, threading.Thread, torch, torch.Tensor, torch.nn.functional),
    *(torch.nn.Module, torch.autograd, torch.UntypedStorage, torch.overrides),
    torch.utils._python_dispatch,
)

_Place = tuple[str, Any, list[str], list[Any]]


class Before:
    """What was there when this was made: functions and classes by the place that holds them, and each
    function's code."""

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.codes: list[tuple[FunctionType, Any, Any]] = []
        ours = [m for name, m in list(sys.modules.items()) if name.startswith(_OURS) and m]
        for home in (*ours, *_LIBRARIES):
            self.add(home, deep=home in ours)

    def add(self, home: Any, deep: bool) -> None:
        """Note what a module or a class holds; deep: what its own classes and probes hold, too."""
        space = vars(home)
        names = [name for name, value in list(space.items()) if callable(value) or deep]
        names = [n for n in names if callable(space[n]) or isinstance(space[n], property)]
        if isinstance(home, type) and not deep:  # what hides an inherited one is a change, too
            inherited = {n for base in home.__mro__[1:] for n in vars(base)} - set(space)
            names += sorted(inherited)
        name = getattr(home, "__qualname__", None) or getattr(home, "__name__", "")
        self.places.append((str(name), space, names, list(map(space.get, names))))
        for value in self.places[-1][3] if deep else ():
            if isinstance(value, FunctionType):
                self.codes.append((value, value.__code__, value.__defaults__))
            elif isinstance(value, Probe):
                self.add_probe(value)
            elif isinstance(value, type) and value.__module__ == getattr(home, "__name__", ""):
                self.add(value, deep=not issubclass(value, ModuleType))

    def add_probe(self, probe: Probe) -> None:
        """Note what a probe holds."""
        space = vars(probe)
        names = [name for name in ("run", "_read") if space.get(name)]
        self.places.append((repr(probe), space, names, [space[n] for n in names]))

    def changed(self) -> list[str]:
        """What is no longer what it was, by name."""
        found = []
        for place, space, names, values in self.places:
            now = list(map(space.get, names))
            if any(map(is_not, now, values)):
                found += [
                    f"{place}.{name}"
                    for name, one, other in zip(names, now, values, strict=True)
                    if one is not other
                ]
        for function, code, defaults in self.codes:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                found.append(f"{function.__module__}.{function.__qualname__}")
        return found[:_MOST]


_known: list[Before] = []


def before() -> Before:
    """What is there now, noted anew only where it is not what was noted last: a process that forks
    notes it once for all its children."""
    if not _known or _known[0].changed():
        _known[:] = [Before()]
    return _known[0]
