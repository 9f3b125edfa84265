"""A probe of memory allocators: driven through a trace of requests, and asked after each.

The case's keyword arguments: capacity of the device in bytes; requests, words with spaces between:
"a=600" is a malloc, "a=3M@1" one of 3 MiB on stream 1, "-a" frees what it gave, "-512" frees an address
at which no block in use begins, "empty" is `empty_cache()`; beside, whether another allocator of the same
class has a block of its own meanwhile. What a request does is seen under the code that makes it.
"""

import re
from typing import Any

import torch

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import probe

_FULL, _REFUSED = "torch.OutOfMemoryError", "ValueError"
_MIB = 2**20


@probe
def allocator(subject: Any, case: Case) -> dict[str, Any]:
    """Addresses, bytes in use and bytes reserved after each request; the segments at the end.

    A request that fails is seen as the name of its exception, and the trace goes on; a block that was
    not given is not freed. Memory that is given while it is in use ends the trace: from there on
    everything depends on how an answer keeps its blocks.
    """
    thing = subject(case.kwargs["capacity"])
    other = subject(case.kwargs["capacity"]) if case.kwargs.get("beside") else None
    seen: dict[str, Any] = {}
    if other:
        seen["another allocator, malloc(512): the address"] = other.malloc(512)
    addresses: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for number, request in enumerate(_requests(case), start=1):
        action, *given = request
        step = f"request {number}, {_written(request)}"
        if action == "malloc":
            name, *size_and_stream = given
            try:
                address = thing.malloc(*size_and_stream)
            except torch.OutOfMemoryError:
                address = _FULL
            else:
                in_use = [(addresses[other], sizes[other]) for other in addresses]
                if any(_overlap((address, size_and_stream[0]), block) for block in in_use):
                    seen[f"{step}: the address"] = f"{address}: memory that is in use"
                    return seen
                addresses[name], sizes[name] = address, size_and_stream[0]
            seen[f"{step}: the address"] = address
        elif action == "free":
            address = addresses.pop(given[0], None) if isinstance(given[0], str) else given[0]
            if address is not None:
                seen[f"{step}: what happens"] = _freed(thing, address)
        else:
            thing.empty_cache()
        seen[f"{step}: memory_allocated()"] = thing.memory_allocated()
        seen[f"{step}: memory_reserved()"] = thing.memory_reserved()
    seen["segments() at the end"] = [[tuple(block) for block in s] for s in thing.segments()]
    if other:
        seen["another allocator: memory_allocated()"] = other.memory_allocated()
        seen["another allocator: memory_reserved()"] = other.memory_reserved()
    return seen


def _overlap(one: tuple[Any, int], other: tuple[Any, int]) -> bool:
    """Do two blocks, each an address and a size, share a byte? What is no address shares nothing."""
    (a, m), (b, n) = one, other
    return isinstance(a, int) and isinstance(b, int) and a < b + n and b < a + m


def _requests(case: Case) -> list[tuple[Any, ...]]:
    """Each request by its name and what it is given."""
    return [_request(word) for word in case.kwargs["requests"].split()]


def _request(word: str) -> tuple[Any, ...]:
    if word == "empty":
        return ("empty_cache",)
    if word.startswith("-"):
        return "free", int(word[1:]) if word[1:].isdigit() else word[1:]
    name, size, *stream = re.split("[=@]", word)
    return "malloc", name, _size(size), *map(int, stream)


def _size(text: str) -> int:
    """Bytes of "600", "3M" (MiB), "10M-1"."""
    found = re.fullmatch(r"(\d+)(M?)([+-]\d+)?", text)
    if not found:
        raise ValueError(f"no size: {text!r}")
    whole, unit, more = found.groups()
    return int(whole) * (_MIB if unit else 1) + int(more or 0)


def _freed(thing: Any, address: int) -> str:
    try:
        thing.free(address)
    except ValueError:
        return _REFUSED
    return "it is freed"


def _written(request: tuple[Any, ...]) -> str:
    """The request as code: "a = malloc(600)"."""
    action, *given = request
    if action == "malloc":
        name, size, *stream = given
        return f"{name} = malloc({', '.join(map(str, [size, *stream]))})"
    return f"{action}({', '.join(map(str, given))})"


def _called_with_requests(name: str, case: Case) -> str:
    requests = [_written(request) for request in _requests(case)]
    few = requests if len(requests) <= 16 else [*requests[:14], f"… {len(requests) - 14} more"]
    text = f"{name}(capacity={case.kwargs['capacity']}), then {'; '.join(few) or 'nothing'}"
    return f"{text}; beside it, another one has 512 bytes" if case.kwargs.get("beside") else text


allocator.called = _called_with_requests
