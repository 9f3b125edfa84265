"""Is what drives, measures and probes still what it was before any of a student's code ran?

It is asked in the process that it is asked about. So whoever has changed enough can answer; what this
finds is evidence, and what it does not find is no proof.
"""

import builtins
import math
import sys
import threading
import time
from collections.abc import Callable
from operator import is_not, itemgetter
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.optim import Optimizer

from course_utils.grading.driving.probe import Probe

_MOST = 5
_OURS = ("course_utils.grading", "course_utils.meters", "course_utils.processes")
_LIBRARIES: tuple[Any, ...] = (
    *(builtins, math, time, threading, threading.Thread, torch, torch.Tensor, torch.nn.functional),
    *(torch.nn.Module, torch.autograd, torch.UntypedStorage, torch.overrides),
    torch.utils._python_dispatch,
)

_Place = tuple[str, Any, list[str], Callable[[Any], Any], list[Any]]


class Before:
    """What was there when this was made: functions and classes by the place that holds them, and each
    function's code."""

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.used: set[str] = set()  # names that our own code looks up
        self.inherited: list[tuple[str, Any, set[str]]] = []
        self.codes: list[tuple[FunctionType, Any, Any]] = []
        ours = [m for name, m in list(sys.modules.items()) if name.startswith(_OURS) and m]
        for home in ours:
            self.add(home, deep=True)
        self.used = {name for function, _, _ in self.codes for name in function.__code__.co_names}
        for home in _LIBRARIES:
            self.add(home, deep=False)

    def add(self, home: Any, deep: bool) -> None:
        """Note what a module or a class holds; deep: what its own classes and probes hold, too."""
        space = vars(home)
        names = [name for name, value in list(space.items()) if callable(value) or deep]
        names = [n for n in names if callable(space[n]) or isinstance(space[n], property)]
        names = [n for n in names if deep or n in self.used or n.startswith("__")]
        name = getattr(home, "__qualname__", None) or getattr(home, "__name__", "")
        self.note(str(name), space, names)
        if isinstance(home, type) and not deep:
            inherited = {n for base in home.__mro__[1:] for n in vars(base)} - set(space)
            inherited = {n for n in inherited if n in self.used or n.startswith("__")}
            self.inherited.append((str(name), space, inherited))
        for value in map(space.get, names) if deep else ():
            if isinstance(value, FunctionType):
                self.codes.append((value, value.__code__, value.__defaults__))
            elif isinstance(value, Probe):
                self.add_probe(value)
            elif isinstance(value, type) and value.__module__ == getattr(home, "__name__", ""):
                _wrap_step(value)
                self.add(value, deep=not issubclass(value, ModuleType))

    def add_probe(self, probe: Probe) -> None:
        """Note what a probe holds."""
        space = vars(probe)
        names = [name for name in ("run", "_read") if space.get(name)]
        self.note(repr(probe), space, names)

    def note(self, place: str, space: Any, names: list[str]) -> None:
        """Note what these names stand for."""
        if names:
            names = [names[0], *names]  # so that two at least are looked up, as a tuple
            self.places.append((place, space, names, itemgetter(*names), [space[n] for n in names]))

    def changed(self) -> list[str]:
        """What is no longer what it was, by name."""
        found = []
        for place, space, names, look_up, values in self.places:
            try:
                same = not any(map(is_not, look_up(space), values))
            except KeyError:
                same = False
            if not same:
                pairs = dict(zip(names, values, strict=True)).items()
                found += [f"{place}.{name}" for name, one in pairs if space.get(name) is not one]
        for place, space, hidden in self.inherited:  # one that hides it is a change, too
            if not hidden.isdisjoint(space):
                found += [f"{place}.{name}" for name in sorted(hidden & set(space))]
        for function, code, defaults in self.codes:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                found.append(f"{function.__module__}.{function.__qualname__}")
        return found[:_MOST]


def _wrap_step(cls: Any) -> None:
    """Do now to an optimizer's `step` what torch does at the first object of its class: no answer's doing."""
    if issubclass(cls, Optimizer) and not getattr(cls.step, "hooked", False):
        cls.step = Optimizer.profile_hook_step(cls.step)
        cls.step.hooked = True


_known: list[Before] = []


def before() -> Before:
    """What is there now, noted anew only where it is not what was noted last: a process that forks
    notes it once for all its children."""
    if not _known or _known[0].changed():
        _known[:] = [Before()]
    return _known[0]
