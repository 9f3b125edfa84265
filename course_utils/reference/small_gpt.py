"""The model that chapter 18 shards: a GPT of bytes whose every parameter belongs to one unit."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from .train import Block


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
