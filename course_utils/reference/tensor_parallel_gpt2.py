"""Chapter 19: the whole GPT-2 over several ranks, its parts by name, and how it starts.

The model stays a `GPT2`, with the names of its parameters; its parts are replaced by those of
`tensor_parallel`. Its logits are each rank's part of the vocabulary.
"""

# mypy: disable-error-code="no-untyped-call"

import math
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.reference.gpt2 import GPT2, CausalSelfAttention, GPT2Config
from course_utils.reference.tensor_parallel import (
    ColumnParallelLinear,
    CopyToRanks,
    GatheredLinear,
    Group,
    ParallelMLP,
    ParallelSelfAttention,
    ReduceScatterSequence,
    RowParallelLinear,
    SplitSequence,
    VocabParallelEmbedding,
    rows_of,
    vocab_parallel_cross_entropy,
)


class ParallelHead(nn.Module):
    """Logits of this rank's part of the vocabulary. Parameter: `weight`, its rows of the embedding."""

    def __init__(self, weight: nn.Parameter, group: Group = None, sequence: bool = False) -> None:
        """weight: the embedding's rows of this rank. sequence: the input is cut by positions."""
        super().__init__()
        self.weight, self.group, self.sequence = weight, group, sequence

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "B T part"]:
        """x: the same on every rank, or this rank's positions."""
        if self.sequence:
            return GatheredLinear.apply(x, self.weight, None, self.group)
        return F.linear(CopyToRanks.apply(x, self.group), self.weight)


# ---------------------------------------------------------------------------------- sequence parallel


class SequenceColumnLinear(nn.Module):
    """A ColumnParallelLinear whose input is cut by positions; the same parameters."""

    def __init__(self, layer: ColumnParallelLinear) -> None:
        super().__init__()
        self.weight, self.bias, self.group = layer.weight, layer.bias, layer.group

    def forward(self, x: Float[Tensor, "B part D"]) -> Float[Tensor, "B T out_part"]:
        """x: this rank's positions."""
        return GatheredLinear.apply(x, self.weight, self.bias, self.group)


class SequenceRowLinear(nn.Module):
    """A RowParallelLinear whose result is cut by positions; the same parameters.

    Each rank adds the bias to its own positions, so the bias's gradient is a sum over
    the ranks.
    """

    def __init__(self, layer: RowParallelLinear) -> None:
        super().__init__()
        self.weight, self.bias, self.group = layer.weight, layer.bias, layer.group

    def forward(self, x: Float[Tensor, "B T in_part"]) -> Float[Tensor, "B part D"]:
        """x: this rank's features of all positions."""
        y = ReduceScatterSequence.apply(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + CopyToRanks.apply(self.bias, self.group)


class SequenceNorm(nn.Module):
    """A LayerNorm of this rank's positions, with the whole weight and bias; their gradients are summed."""

    def __init__(self, full: nn.LayerNorm, group: Group = None) -> None:
        super().__init__()
        self.weight, self.bias = full.weight, full.bias
        self.eps, self.group = full.eps, group

    def forward(self, x: Float[Tensor, "B part D"]) -> Float[Tensor, "B part D"]:
        """x: this rank's positions."""
        weight, bias = (CopyToRanks.apply(p, self.group) for p in (self.weight, self.bias))
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.eps)


class Split(nn.Module):
    """This rank's positions of what is the same on every rank."""

    def __init__(self, group: Group = None) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B part D"]:
        """x: whole."""
        return SplitSequence.apply(x, self.group)


# ---------------------------------------------------------------------------------- the model


def parallelize(model: GPT2, group: Group = None, sequence: bool = False) -> GPT2:
    """The model with its parts replaced, in place, by those that keep an n-th of their weights.

    model: equal on every rank, without dropout. sequence: between the layers, cut the
    activations by positions. Norms and positions stay whole on every rank. Its logits
    are then this rank's part of the vocabulary, (B, T, part). Raises ValueError for
    dropout, and where n does not divide the heads.
    """
    if model.config.dropout:
        raise ValueError(f"dropout is {model.config.dropout}; here it must be 0")
    whole: Any = model  # its parts change their classes
    body = whole.transformer
    body.wte = VocabParallelEmbedding(body.wte, group)
    whole.lm_head = ParallelHead(body.wte.weight, group, sequence)
    for block in body.h:
        block.attn = ParallelSelfAttention(block.attn, group)
        block.mlp = ParallelMLP(block.mlp, group)
    if sequence:
        body.drop = Split(group)
        body.ln_f = SequenceNorm(body.ln_f, group)
        for block in body.h:
            block.ln_1 = SequenceNorm(block.ln_1, group)
            block.ln_2 = SequenceNorm(block.ln_2, group)
            block.attn.c_attn = SequenceColumnLinear(block.attn.c_attn)
            block.mlp.c_fc = SequenceColumnLinear(block.mlp.c_fc)
            for part in (block.attn, block.mlp):
                part.c_proj = SequenceRowLinear(part.c_proj)
    return model


def parallel_loss(
    model: GPT2, ids: Int[Tensor, "B T"], targets: Int[Tensor, "B T"], group: Group = None
) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats of a parallel model's logits, over the targets that are not −100."""
    losses = vocab_parallel_cross_entropy(model(ids), targets, model.config.vocab_size, group)
    return losses.sum() / (targets != -100).sum()


# ---------------------------------------------------------------------------------- parts by name


def axis_of(name: str) -> int | None:
    """The axis along which a parameter of GPT-2 is cut, by its name; None: it is whole on every rank."""
    if name.endswith(("wte.weight", "lm_head.weight", "c_attn.weight", "c_fc.weight")):
        return 0
    if name.endswith(("c_attn.bias", "c_fc.bias")):
        return 0
    return 1 if name.endswith("c_proj.weight") else None


def cut(name: str, x: Float[Tensor, "..."], rank: int, world_size: int) -> Float[Tensor, "..."]:
    """A rank's part of the parameter of this name, in memory of its own."""
    axis = axis_of(name)
    if axis is None:
        return x.clone()
    if "c_attn" in name:  # of q, of k and of v an n-th each
        return x.unflatten(0, (3, world_size, -1))[:, rank].clone().flatten(0, 1)
    start, stop = rows_of(x.size(axis), rank, world_size)
    return x.narrow(axis, start, stop - start).clone()


def join(name: str, parts: Sequence[Float[Tensor, "..."]]) -> Float[Tensor, "..."]:
    """The parameter of this name, from the parts of all ranks in order."""
    axis = axis_of(name)
    if axis is None:
        return parts[0].clone()
    x = torch.cat(list(parts), dim=axis)
    if "c_attn" in name:  # rank, then q, k, v: back to q, k, v, then rank
        x = x.unflatten(0, (len(parts), 3, -1)).transpose(0, 1).flatten(0, 2)
    return x


def initial_part(
    name: str, shape: Sequence[int], std: float, seed: int, rank: int, world_size: int
) -> Float[Tensor, "..."]:
    """A rank's part of a random parameter, which is the same parameter for every number of ranks.

    The whole is drawn by a generator of this seed and name, and cut: for a moment this
    one parameter is in memory whole, beside the part. (A CPU's generator looks at 32
    bits of its seed: here a checksum of both.)
    """
    generator = torch.Generator().manual_seed(crc32(f"{seed} {name}".encode()))
    return cut(name, torch.randn(*shape, generator=generator).mul_(std), rank, world_size)


def start_model(config: GPT2Config, seed: int, group: Group = None, sequence: bool = False) -> GPT2:
    """A parallel GPT-2 with random weights, the same for every number of ranks.

    Built on the meta device, where parameters have shapes and no memory, then filled,
    part by part, as `init_weights` has it: no rank holds the whole model at any time.
    """
    with torch.device("meta"):
        model = GPT2(config)
        shapes = {name: p.shape for name, p in model.named_parameters()}
        model = parallelize(model, group, sequence)
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    for name, shape in shapes.items():
        std = 0.0 if name.endswith("bias") else 0.02
        if name.endswith("c_proj.weight"):  # it writes to the residual stream
            std /= math.sqrt(2 * config.n_layer)
        part = initial_part(name, shape, std, seed, rank, n)
        if len(shape) == 1 and name.endswith("weight"):  # a norm's
            part.fill_(1.0)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(part))
    model.lm_head.weight = model.transformer.wte.weight  # tied
    return model


@torch.no_grad()
def global_norm(named: Iterable[tuple[str, nn.Parameter]], group: Group = None) -> float:
    """The norm of all gradients of a parallel model, what is whole on every rank counted once.

    named: the model's `named_parameters()`. One all-reduce of one number.
    """
    squares = {True: 0.0, False: 0.0}  # of what is cut, of what is whole
    for name, p in named:
        if p.grad is not None:
            squares[axis_of(name) is not None] += float(p.grad.double().square().sum())
    of_cut = torch.tensor(squares[True], dtype=torch.float64)
    dist.all_reduce(of_cut, group=group)
    return math.sqrt(of_cut.item() + squares[False])


# ---------------------------------------------------------------------------------- for the library


class HeadsAttention(nn.Module):
    """GPT-2's attention in a form that `parallelize_module` can cut: `q`, `k` and `v` are layers of their own.

    Forward asks for the size of a head, and takes as many heads as the layers give. No
    dropout.
    """

    def __init__(self, full: CausalSelfAttention) -> None:
        """full: its weights are copied, and its c_proj is used."""
        super().__init__()
        width = full.c_proj.in_features
        self.head_size = width // full.n_head
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        for kind, whole in full.c_attn.named_parameters():
            for layer, third in zip((self.q, self.k, self.v), whole.detach().chunk(3), strict=True):
                setattr(layer, kind, nn.Parameter(third.clone()))
        self.c_proj = full.c_proj

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """x: (B, T, D). Returns the same shape."""
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))
