"""A probe of memory allocators: driven through a trace of requests, and asked after each.

The case's keyword arguments: capacity of the device in bytes; requests, a list of
("malloc", name, size[, stream]), ("free", name), ("free", address) for an address of no block in use,
and ("empty_cache",). A name stands for the address that came.
"""

from typing import Any

import torch

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import probe

_FULL, _REFUSED = "torch.OutOfMemoryError", "ValueError"


@probe
def allocator(subject: Any, case: Case) -> dict[str, Any]:
    """Addresses, bytes in use and bytes reserved after each request; the segments at the end.

    A request that fails is seen as the name of its exception, and the trace goes on; a block that was
    not given is not freed.
    """
    thing = subject(case.kwargs["capacity"])
    addresses: dict[str, int] = {}
    seen: dict[str, Any] = {}
    for number, request in enumerate(case.kwargs["requests"], start=1):
        action, *given = request
        step = f"request {number}, {_written(request)}"
        if action == "malloc":
            name, *size_and_stream = given
            try:
                addresses[name] = seen[f"{step}: the address"] = thing.malloc(*size_and_stream)
            except torch.OutOfMemoryError:
                seen[f"{step}: the address"] = _FULL
        elif action == "free":
            address = addresses.pop(given[0], None) if isinstance(given[0], str) else given[0]
            if address is not None:
                seen[f"{step}: what happens"] = _freed(thing, address)
        else:
            thing.empty_cache()
        seen[f"{step}: memory_allocated()"] = thing.memory_allocated()
        seen[f"{step}: memory_reserved()"] = thing.memory_reserved()
    seen["segments() at the end"] = [[tuple(block) for block in s] for s in thing.segments()]
    return seen


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
    requests = [_written(request) for request in case.kwargs["requests"]]
    few = requests if len(requests) <= 16 else [*requests[:14], f"… {len(requests) - 14} more"]
    return f"{name}(capacity={case.kwargs['capacity']}), then {'; '.join(few)}"


allocator.called = _called_with_requests
