"""What one call of `torch.distributed` sends and receives, read from the operation's arguments.

A message between two ranks is counted exactly. What a library's collective sends depends on its
algorithm; here each counts as its bandwidth-optimal ring, so that a figure does not change with the
backend. With n ranks in the group, for each rank:

| collective                        | bytes sent        | bytes received    | messages |
|-----------------------------------|-------------------|-------------------|----------|
| all_reduce of S bytes             | 2 (n-1)/n · S     | the same          | 2 (n-1)  |
| reduce_scatter of S bytes in all  | (n-1)/n · S       | the same          | n-1      |
| all_gather to S bytes in all      | (n-1)/n · S       | the same          | n-1      |
| all_to_all                        | what is not its own | the same        | n-1      |
| broadcast of S bytes              | S; the last one 0 | S; the root 0     | 1        |
| reduce of S bytes                 | S; the root 0     | S; the first 0    | 1        |
| gather of S bytes from each       | S; the root 0     | the root (n-1) S  | 1        |
| scatter of S bytes to each        | the root (n-1) S  | S; the root 0     | n-1      |
| barrier                           | 0                 | 0                 | 0        |

The factors of the first four and of broadcast and reduce are those of the "bus bandwidth" in
NCCL tests' notes on performance (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). Broadcast and
reduce run along the ring from rank to rank: in a broadcast the rank before the root sends nothing, in
a reduction the rank after the root receives nothing. Fractions of a byte are rounded up.

An all_gather_object is two all_gathers (sizes, then bytes), and is counted so.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
_SEND, _RECEIVE = "send", "recv"

NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
    "send": _SEND,
    "recv_": _RECEIVE,
    "recv_any_source_": _RECEIVE,
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast",
    "isend": _SEND,
    "irecv": _RECEIVE,
}
"""What each operation is called in `torch.distributed`."""

_INPUTS = ["tensors", "input_tensors", "input_list", "inputs", "input_tensor", "input", "tensor"]
_OUTPUTS = ["output_tensors", "output_lists", "outputs", "output_tensor", "output", "out"]


@dataclass(frozen=True)
class Communication:
    """One call, as the rank that makes it sees it.

    name: as in `torch.distributed`. sent, received: bytes. messages: that this rank sends.
    ranks: the group's, by their global numbers. peer: global rank of the other end or of the root;
    -1 where there is none. tag: of a message. numel, dtype: of what goes in. group: its name.
    """

    name: str
    sent: int
    received: int
    messages: int
    ranks: tuple[int, ...]
    peer: int = -1
    tag: int = 0
    numel: int = 0
    dtype: str = ""
    group: str = ""

    @property
    def is_collective(self) -> bool:
        """Does the whole group take part? If not, it is a message between two ranks."""
        return self.name not in (_SEND, _RECEIVE)


def communicates(func: OpOverload) -> bool:
    """Is the operation one of `torch.distributed`'s that sends, receives or waits for others?"""
    return func.namespace in _NAMESPACES and _name_of(func) is not None


@cache
def _name_of(func: OpOverload) -> str | None:
    return NAMES.get(func._schema.name.partition("::")[2])


def communication(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Communication:
    """What a call of the operation `func`, one that `communicates`, sends and receives."""
    given = _arguments(func, args, kwargs)
    name = _name_of(func)
    assert name is not None
    ranks, me, group = _group_of(given)
    n = len(ranks)
    inputs, outputs = _ends(name, given)
    size = _total(inputs)
    first = next(_tensors(inputs), None)
    peer = _peer_of(given)
    if peer >= n:
        raise IndexError(f"there is no rank {peer} among {n}: they count from 0")
    if name in (_SEND, _RECEIVE):
        figures = (size, 0, 1) if name == _SEND else (0, size, 0)
    elif name == "all_to_all":
        figures = _exchanged(given, n, me)
    else:
        figures = of_a_ring(name, n, (me - peer) % n if peer >= 0 else me, size, _total(outputs))
    return Communication(
        name,
        *figures,
        ranks,
        ranks[peer] if peer >= 0 else -1,
        int(given.get("tag", 0)),
        sum(x.numel() for x in _tensors(inputs)),
        str(first.dtype).removeprefix("torch.") if first is not None else "",
        group,
    )


def _arguments(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [a.name for a in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _group_of(given: dict[str, Any]) -> tuple[tuple[int, ...], int, str]:
    """The group's ranks by their global numbers, which of them this process is, and its name."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group, _world

    group: Any = given.get("process_group", given.get("group_name"))
    if isinstance(group, str):
        group = _resolve_process_group(group)  # type: ignore[arg-type]
    elif isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    known = _world.pg_group_ranks.get(group)
    n, me = group.size(), group.rank()
    if not known:
        return tuple(range(n)), me, str(group.group_name)
    return tuple(sorted(known, key=known.__getitem__)), me, str(group.group_name)


def _ends(name: str, given: dict[str, Any]) -> tuple[Any, Any]:
    """What goes in and what comes out, as nested lists of tensors."""
    if name == "barrier":
        return [], []
    into: Any = next((given[key] for key in _INPUTS if key in given), [])
    out: Any = next((given[key] for key in _OUTPUTS if key in given), [])
    return into, out


def _peer_of(given: dict[str, Any]) -> int:
    """The number in the group of the other end, or of the root; -1 for none."""
    return int(next((given[k] for k in ("root_rank", "dst", "src") if k in given), -1))


def of_a_ring(name: str, n: int, place: int, size: int, out: int) -> tuple[int, int, int]:
    """Bytes sent, bytes received and messages of one rank, by the table above.

    place: how many steps along the ring the rank stands behind the root. size: bytes that go in.
    out: bytes that come out, where that is another tensor.
    """
    if n == 1 or name == "barrier":
        return 0, 0, 0
    last = place == n - 1
    match name:
        case "all_reduce":
            share = _up(2 * (n - 1) * size, n)
            return share, share, 2 * (n - 1)
        case "reduce_scatter":
            share = _up((n - 1) * size, n)
            return share, share, n - 1
        case "all_gather":
            return (n - 1) * size, (n - 1) * size, n - 1
        case "broadcast":
            return (0 if last else size), (size if place else 0), int(not last)
        case "reduce":
            return (size if place else 0), (0 if place == 1 else size), int(place > 0)
        case "gather":
            return (size, 0, 1) if place else (0, (n - 1) * size, 0)
        case "scatter":
            return (0, out, 0) if place else ((n - 1) * out, 0, n - 1)
    return size, size, n - 1


def _exchanged(given: dict[str, Any], n: int, me: int) -> tuple[int, int, int]:
    """What an all_to_all sends to others and has from them."""

    def of_others(value: Any, splits: Any) -> int:
        if isinstance(value, list | tuple):
            return _total(value) - _total(value[me : me + 1])
        if not splits or value.dim() == 0:
            return _up((n - 1) * _total(value), n)
        rows = max(value.shape[0], 1)
        return _total(value) * (sum(splits) - splits[me]) // rows

    into, out = _ends("all_to_all", given)
    sent = of_others(into, given.get("input_split_sizes"))
    received = of_others(out, given.get("output_split_sizes")) if _total(out) else sent
    return sent, received, n - 1


def _up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _tensors(values: Any) -> Iterator[Tensor]:
    """All tensors in nested lists."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Iterable):
        for value in values:
            yield from _tensors(value)


def _total(values: Any) -> int:
    """Bytes of the elements of all tensors in nested lists."""
    return sum(x.numel() * x.element_size() for x in _tensors(values))
