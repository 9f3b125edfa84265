"""May an answer loop inside a C function, where the time limit cannot stop it?"""

import builtins
import inspect
import itertools
import linecache
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from course_utils.processes.stuck import can_fork, first_stuck
from course_utils.source.tracebacks import is_students, where

from .errors import TIME_LIMIT, Raised

_ITERATORS = {name for name in dir(itertools) if name[0] != "_"} | {"range"}
_CONSUMERS = {"list", "tuple", "set", "frozenset", "sum", "max", "min", "sorted", "any", "all"}
_CONSUMERS |= {"dict", "deque", "join", "bytes", "bytearray", "extend", "update", "Counter"}


def may_loop_in_c(subject: Any) -> bool:
    """Does a student's code let a function of C run through an iterator of C? By its names only."""
    names = {name for code in codes_of(subject) for name in code.co_names}
    return bool(names & _ITERATORS) and bool(names & _CONSUMERS)


def codes_of(value: Any, met: set[int] | None = None) -> Iterator[CodeType]:
    """The student's own code: of a function, the methods of a class, and what they call by name.

    met: what has been walked already.
    """
    met = set() if met is None else met
    if id(value) in met:
        return
    met.add(id(value))
    if isinstance(value, dict):
        for one in value.values():
            yield from codes_of(one, met)
    elif inspect.isclass(value) and value.__module__ != builtins.__name__:
        for one in vars(value).values():
            yield from codes_of(getattr(one, "__func__", one), met)
    elif isinstance(value, FunctionType) and is_students(value.__code__.co_filename):
        for code in _nested(value.__code__):
            yield code
            for name in code.co_names:
                if isinstance(one := value.__globals__.get(name), FunctionType | type):
                    yield from codes_of(one, met)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def stuck_in_c(calls: Sequence[Callable[[], object]], limit_s: float) -> tuple[int, Raised] | None:
    """The first of the calls that never comes back from C: its number, and the time limit's end."""
    if not can_fork() or torch.cuda.is_initialized():
        return None

    def alone(call: Callable[[], object]) -> Callable[[], object]:
        def made() -> object:
            torch.set_num_threads(1)  # the threads of OpenMP are not there in a fork
            return call()

        return made

    found = first_stuck([alone(call) for call in calls], limit_s)
    if found is None:
        return None
    lines = tuple(
        (where(name), number, linecache.getline(file, number).strip())
        for file, number, name in found.frames
        if is_students(file)
    )
    return found.number, Raised((TIME_LIMIT,), "inside a function of C", lines[-3:])
