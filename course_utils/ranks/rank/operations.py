"""Which operation a rank waits in, and for whom: noted where it is called, read from its stack."""

from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from course_utils.meters.communication import NAMES
from course_utils.ranks.frames import may_block, meets

CALLS = [
    name
    for name in dir(dist.ProcessGroup)
    if name.lstrip("_").startswith(
        ("all", "broadcast", "reduce", "gather", "scatter", "barrier", "monitored", "send", "recv")
    )
]
"""The methods of a process group that communicate."""

_UNNOTED = {"backward": "/torch/_tensor.py"}
"""Functions of torch in which C++ communicates by itself, and their files."""
_FUNCTIONAL = "/torch/distributed/_functional_collectives.py"

_begun: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def waits_in(name: str, peer: int | None = None) -> str:
    """ "in recv from rank 0". peer: of a message, the rank at the other end; -1 for any."""
    if name == "send":
        return f"in send to rank {peer}"
    if name == "recv":
        return f"in recv from {'any rank' if peer in (None, -1) else f'rank {peer}'}"
    return f"in {name}"


def note_operations() -> None:
    """From now on every call of a process group in this process can be named, and every wait for one."""
    for name in CALLS:
        setattr(dist.ProcessGroup, name, _noted(name, getattr(dist.ProcessGroup, name)))
    for name in ("wait", "synchronize"):
        setattr(dist.Work, name, _awaited(getattr(dist.Work, name)))


def operation_of(frames: list[FrameType]) -> str:
    """What this stack waits in, as `waits_in` says it, "" if nobody knows. frames: innermost first."""
    if where := meets(frames):
        return waits_in(where)
    for frame in frames:
        if frame.f_code is _in_operation.__code__:
            return str(frame.f_locals["operation"])
        name, file = frame.f_code.co_name, frame.f_code.co_filename.replace("\\", "/")
        if file.endswith(_UNNOTED.get(name, _FUNCTIONAL)) and not name.startswith("_"):
            return waits_in(name)
    return ""


def _noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        operation = waits_in(*_named(name, group, args))
        work = _in_operation(operation, call, group, *args, **kwargs)
        if isinstance(work, dist.Work):
            _begun[work] = operation
        return work

    return method


def _awaited(wait: Callable[..., Any]) -> Callable[..., Any]:
    def method(work: Any, *args: Any, **kwargs: Any) -> Any:
        return _in_operation(_begun.get(work, ""), wait, work, *args, **kwargs)

    return method


def _in_operation(operation: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return may_block(call, *args, **kwargs)


def _named(name: str, group: Any, args: tuple[Any, ...]) -> tuple[str, int | None]:
    """The operation as `torch.distributed` calls it, and the peer of a message by its global rank."""
    if name == "recv_anysource":
        return "recv", None
    if name in ("send", "recv"):
        known = group in dist.distributed_c10d._world.pg_group_ranks
        return name, dist.get_global_rank(group, args[1]) if known else args[1]
    return NAMES.get(f"{name}_") or name.strip("_"), None
