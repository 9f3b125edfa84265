"""Probes of shares: what each rank would keep, and what comes of putting the shares together.

They play all ranks in one process: no collective runs.
"""

from typing import Any

from torch import Tensor

from ..case import Case
from ..render import shown
from ..values import fresh, untouched


def flat_shards(subject: dict[str, Any], case: Case) -> dict[str, Any]:
    """The share of every rank, the memory behind each, and the tensors put together again.

    The case's arguments: the tensors, and the number of ranks. The subject: two functions, the first
    of which shards and the second of which undoes it.
    """
    shard, unshard = subject.values()
    tensors, world_size = case.args
    before = fresh(tensors)
    seen: dict[str, Any] = {}
    shares = []
    for rank in range(world_size):
        share = shard(tensors, rank, world_size)
        shares.append(share)
        seen[f"share of rank {rank}"] = share
    seen["bytes behind each share"] = tuple(map(bytes_behind, shares))
    if not untouched(before, tensors):
        seen["argument `tensors` afterwards"] = tensors
    given = fresh(shares)
    seen["the tensors again"] = unshard(shares, [tuple(t.shape) for t in tensors])
    if not untouched(given, shares):
        seen["argument `shards` afterwards"] = shares
    return seen


def bytes_behind(t: Any) -> int | str:
    return t.untyped_storage().nbytes() if isinstance(t, Tensor) else "no tensor"


def called_flat(name: str, case: Case) -> str:
    tensors, world_size = case.args
    shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
    return f"{name} and back, with tensors of shapes {shapes} on {world_size} ranks"


flat_shards.called = called_flat  # type: ignore[attr-defined]


def resharded(subject: Any, case: Case) -> dict[str, Any]:
    """What every rank of the new world loads, and whether it lies in memory of its own.

    The case's arguments: what each old rank saved, and the number of new ranks.
    """
    shards, world_size = case.args
    before = fresh(shards)
    old = {t.untyped_storage().data_ptr() for saved in shards for t in saved.values()}
    seen: dict[str, Any] = {}
    own = True
    for rank in range(world_size):
        loaded = subject(shards, rank, world_size)
        seen[f"rank {rank} loads"] = loaded
        for t in loaded.values() if isinstance(loaded, dict) else ():
            if isinstance(t, Tensor) and t.numel():
                own &= t.untyped_storage().data_ptr() not in old
                own &= t.untyped_storage().nbytes() == t.nbytes
    seen["in memory of their own, and no more than they need"] = own
    if not untouched(before, shards):
        seen["argument `shards` afterwards"] = shards
    return seen


def called_resharded(name: str, case: Case) -> str:
    shards, world_size = case.args
    rows = "; ".join(
        f"{key} of shapes {', '.join(str(tuple(saved[key].shape)) for saved in shards)}"
        for key in shards[0]
    )
    return (
        f"{name}(shards, rank, {shown(world_size)}) for every rank, where {len(shards)} saved {rows}"
    )


resharded.called = called_resharded  # type: ignore[attr-defined]
