"""Chapter 18's measures: what one rank holds of a GPT-2 in bytes, or would hold among ranks that do not exist;
and how a model gets its values on ranks none of which could hold it."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW, Optimizer

from .gpt2 import GPT2, GPT2Config, next_token_loss
from .pretraining import distribute


def units(model: GPT2) -> list[list[nn.Parameter]]:
    """The parameters that `distribute` shards together: the root's, then those of each block.

    The root has what no block has: both embeddings and the last norm. The head is in
    it, too, since its weight is the embedding's.
    """
    blocks = [list(block.parameters()) for block in model.transformer.h]
    within = {p for block in blocks for p in block}
    return [[p for p in model.parameters() if p not in within], *blocks]


def held_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the memory behind tensors on this rank, each storage once; counts of steps aside.

    Of a DTensor its local shard counts; None, a missing gradient, is nothing.
    """
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors if t is not None]
    storages = [t.untyped_storage() for t in local if t.ndim]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def training_bytes(model: nn.Module, optimizer: Optimizer) -> tuple[int, int, int]:
    """Bytes that this rank holds of a model's parameters, of their gradients and of the optimizer."""
    params = list(model.parameters())
    state = [t for kept in optimizer.state.values() for t in kept.values()]
    return held_bytes(params), held_bytes(p.grad for p in params), held_bytes(state)


def planned_bytes(
    config: GPT2Config, world_size: int, sequences: int = 1, T: int = 256
) -> tuple[int, int, int]:
    """What rank 0 of `world_size` would hold of a GPT-2, sharded by `distribute`.

    No other process exists and no memory is touched: the process group is fake, its
    collectives return at once, and the tensors have shapes and no numbers. Returns
    bytes of parameters and of gradients after one forward and backward pass, and the
    peak of all tensors during it. Must not run where there is a process group already.
    """
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    dist.init_process_group("fake", rank=0, world_size=world_size, store=dist.HashStore())
    try:
        mesh = init_device_mesh("cpu", (world_size,))
        with FakeTensorMode():
            model = distribute(GPT2(config), "fsdp", mesh)
            ids = torch.zeros(sequences, T, dtype=torch.long)
            tracker = FSDPMemTracker(model, AdamW(model.parameters()))
            tracker.track_inputs((ids,))
            with warnings.catch_warnings(), tracker:
                warnings.simplefilter("ignore")  # the head's logits are a view: harmless
                next_token_loss(model(ids), ids).backward()
            [peak] = tracker.get_tracker_snapshot("peak").values()
            params = list(model.parameters())
            grads = [p.grad for p in params if p.grad is not None]
            return _local_bytes(params), _local_bytes(grads), peak["Total"]
    finally:
        dist.destroy_process_group()


def _local_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.to_local().nbytes for t in tensors if isinstance(t, DTensor))


@contextmanager
def room(n_bytes: int) -> Iterator[None]:
    """In the block this process may take about n_bytes more memory; a tensor beyond that raises RuntimeError.

    It is Linux that refuses (RLIMIT_DATA); on other systems there is no limit.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    with open("/proc/self/status") as status:
        [taken] = [int(line.split()[1]) * 1024 for line in status if line.startswith("VmData")]
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (taken + n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@torch.no_grad()
def fill_shards(model: nn.Module, fill: Callable[[str, Tensor], None]) -> None:
    """Values for a model of DTensors, one whole parameter at a time.

    fill(name, whole): sets it in place, on every rank to the same values; each rank
    keeps its part.
    """
    for name, p in model.named_parameters():
        assert isinstance(p, DTensor)
        whole = torch.empty(p.shape, dtype=p.dtype)
        fill(name, whole)
        part = distribute_tensor(whole, p.device_mesh, p.placements, src_data_rank=None)
        p.to_local().copy_(part.to_local())
        del whole, part  # before the next one is made
