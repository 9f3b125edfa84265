"""The model that chapter 18 shards: a GPT of bytes whose every parameter belongs to one unit."""

import warnings
from collections.abc import Iterable

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.optim import Optimizer

from .train import Block, library_text


class Embed(nn.Module):
    """A vector for each byte, plus one for its position."""

    def __init__(self, width: int, context: int):
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.bytes(ids) + self.positions[: ids.shape[1]]


class GPT(nn.Module):
    """A language model of bytes, small enough for a laptop: the model that this chapter shards.

    Every parameter belongs to one of `units()`: the embedding, each block, the head.
    """

    def __init__(self, width: int = 64, n_layer: int = 2, n_head: int = 4, context: int = 32):
        super().__init__()
        self.embed = Embed(width, context)
        self.blocks = nn.ModuleList(Block(width, n_head) for _ in range(n_layer))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256, bias=False))

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T 256"]:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def units(self) -> list[nn.Module]:
        """The parts to shard, in the order of the forward pass."""
        return [self.embed, *self.blocks, self.head]


def next_byte_loss(model: nn.Module, ids: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of every byte given those before it."""
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def sample_batch(rows: int = 8, context: int = 32, seed: int = 0) -> Int[Tensor, "B T"]:
    """Windows of context + 1 bytes from the sources of Python's library: the same on every rank."""
    text = library_text(2**16)
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - context, (rows,), generator=generator)
    return text[starts[:, None] + torch.arange(context + 1)].long()


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


def gpt2_small() -> GPT:
    """Our model at the width and depth of GPT-2's smallest, on the meta device: no memory."""
    with torch.device("meta"):
        return GPT(width=768, n_layer=12, n_head=12, context=1024)


def planned_bytes(world_size: int, rows: int = 1, context: int = 256) -> tuple[int, int, int]:
    """What rank 0 of `world_size` would hold of `gpt2_small`, sharded by `fully_shard`.

    No other process exists and no memory is touched: the process group is fake, its collectives
    return at once, and the tensors have shapes and no numbers. Returns bytes of parameters and of
    gradients after one forward and backward pass, and the peak of all tensors during it. Must not
    run where there is a process group already.
    """
    import torch.testing._internal.distributed.fake_pg  # registers the backend
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    dist.init_process_group("fake", rank=0, world_size=world_size, store=dist.HashStore())
    try:
        mesh = init_device_mesh("cpu", (world_size,))
        with FakeTensorMode():
            model = GPT(width=768, n_layer=12, n_head=12, context=1024)
            for unit in [*model.units(), model]:
                fully_shard(unit, mesh=mesh)
            ids = torch.zeros(rows, context + 1, dtype=torch.long)
            tracker = FSDPMemTracker(model, torch.optim.AdamW(model.parameters()))
            tracker.track_inputs((ids,))
            with warnings.catch_warnings(), tracker:
                warnings.simplefilter("ignore")  # the head's logits are a view: harmless
                next_byte_loss(model, ids).backward()
            [peak] = tracker.get_tracker_snapshot("peak").values()
            params = list(model.parameters())
            grads = [p.grad for p in params if p.grad is not None]
            return _local_bytes(params), _local_bytes(grads), peak["Total"]
    finally:
        dist.destroy_process_group()


def _local_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.to_local().nbytes for t in tensors if isinstance(t, DTensor))
