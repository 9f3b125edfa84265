"""Chapter 19, tensor parallelism: one layer over several ranks, each of which has a part of its weight.

Letters: n ranks in the group; B sequences in the batch, T positions, D features, V tokens in the
vocabulary. A layer is built from a full one and keeps only this rank's part of it. Between layers the
activations are either whole on every rank, or cut by positions (sequence parallelism).
"""

# mypy: disable-error-code="override,no-untyped-call"
# (an autograd.Function's own forward and backward take any arguments)

import copy
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

# torch 2.13 has new names for these two and warns about the old ones; 2.11 has only the old.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Group = dist.ProcessGroup | None
"""The ranks that take part; None: all of them."""


# ---------------------------------------------------------------------------------- who has what


def share(numel: int, world_size: int) -> int:
    """An n-th of the elements, rounded up."""
    return -(-numel // world_size)


def rows_of(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """First row, and row after the last, that a rank has of `rows`: those of `torch.chunk`."""
    size = share(rows, world_size)
    return min(rank * size, rows), min((rank + 1) * size, rows)


def bytes_per_block(
    tokens: int, n_embd: int, world_size: int, element_bytes: int = 2
) -> tuple[int, int]:
    """Bytes that each rank sends for one block of GPT-2 in one training step, by two methods.

    tokens: of the batch of all ranks together. Returns first those of tensor
    parallelism: four all-reduces, two forward and two backward, of (tokens, D)
    activations. Then those of ZeRO-3: two all-gathers and one reduce-scatter of the
    block's 12 D² + 13 D parameters, as one unit. All by rings of n = world_size ranks,
    in which each sends 2 (n − 1) chunks for an all-reduce and n − 1 for each of the
    others; a chunk is an n-th of the elements, rounded up to a whole element.
    """
    activations = share(tokens * n_embd, world_size)
    parameters = share(12 * n_embd**2 + 13 * n_embd, world_size)
    chunks = 4 * 2 * (world_size - 1) * activations, 3 * (world_size - 1) * parameters
    return chunks[0] * element_bytes, chunks[1] * element_bytes


def part_of(size: int, group: Group = None) -> slice:
    """This rank's part of `size` things, cut into equal parts for the ranks of the group.

    Raises ValueError unless the number of ranks divides `size`.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if size % n:
        raise ValueError(f"{n} ranks cannot share {size} evenly")
    return slice(rank * size // n, (rank + 1) * size // n)


# ---------------------------------------------------------------------------------- f and g


class CopyToRanks(torch.autograd.Function):
    """Megatron's f: `CopyToRanks.apply(x, group)` is x; backward sums the gradient over the ranks.

    x is the same on every rank, and each uses it for another part of the result. One
    all-reduce backward, none forward. The gradient may have any strides; it is not modified.
    """

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "..."], group: Group = None) -> Float[Tensor, "..."]:
        """x itself, or a view or copy of it."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], None]:
        """The sum over the ranks of the group of the gradients of their copies."""
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class ReduceFromRanks(torch.autograd.Function):
    """Megatron's g: `ReduceFromRanks.apply(x, group)` is the sum over the ranks; backward is the identity.

    All ranks go on with the same sum, so each already has the whole gradient of it. One all-reduce
    forward, none backward. x may have any strides, and is not modified. Source: Shoeybi et al. (2019).
    """

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "..."], group: Group = None) -> Float[Tensor, "..."]:
        """The sum over the ranks of the group of their x, the same on every rank."""
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], None]:
        """The gradient as it comes."""
        return grad, None


# ---------------------------------------------------------------------------------- linear layers


class ColumnParallelLinear(nn.Module):
    """A linear layer of whose output features each rank computes an n-th.

    `weight`, (out / n, in), and `bias`, (out / n), are `nn.Parameter`s: the rank's part
    of the full layer's, in memory of its own, of its dtype and device. Without a bias
    in the full layer, `bias` is None. The full layer is left as it is. Costs one
    all-reduce of x's gradient backward, and no communication forward.
    """

    def __init__(self, full: nn.Linear, group: Group = None) -> None:
        """full: equal on every rank. Raises ValueError unless n divides its out_features."""
        super().__init__()
        mine = part_of(full.out_features, group)
        self.group = group
        self.weight = nn.Parameter(full.weight[mine].clone())
        self.bias = None if full.bias is None else nn.Parameter(full.bias[mine].clone())

    def forward(self, x: Float[Tensor, "*batch in_features"]) -> Float[Tensor, "*batch part"]:
        """x: the same on every rank. Returns this rank's output features."""
        return F.linear(CopyToRanks.apply(x, self.group), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer of whose input features each rank has an n-th; the result is whole on every rank.

    `weight`, (out, in / n), the rank's part of the full layer's, and `bias`, (out), whole
    on every rank, are `nn.Parameter`s in memory of their own, of the full layer's dtype
    and device. Without a bias in the full layer, `bias` is None. The full layer is left
    as it is. Costs one all-reduce of the result forward, and no communication backward.
    """

    def __init__(self, full: nn.Linear, group: Group = None) -> None:
        """full: equal on every rank. Raises ValueError unless n divides its in_features."""
        super().__init__()
        mine = part_of(full.in_features, group)
        self.group = group
        self.weight = nn.Parameter(full.weight[:, mine].clone())
        self.bias = None if full.bias is None else nn.Parameter(full.bias.clone())

    def forward(self, x: Float[Tensor, "*batch part"]) -> Float[Tensor, "*batch out_features"]:
        """x: this rank's input features. Returns all output features, the same on every rank."""
        y = ReduceFromRanks.apply(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


class ParallelMLP(nn.Module):
    """GPT-2's MLP: each rank has an n-th of the features between its two layers.

    Its parameters: those of `full.c_fc` cut by outputs and of `full.c_proj` by inputs,
    in memory of their own and under names of your choice; c_proj's bias is whole on
    every rank. GELU in its tanh form between the two. One all-reduce forward and one
    backward, of (B, T, D) numbers; no dropout.
    """

    def __init__(self, full: Any, group: Group = None) -> None:
        """full: GPT-2's MLP, equal on every rank: the layers `c_fc`, from D to 4 D, and `c_proj`, from
        4 D to D, of any dtype, with biases. Raises ValueError unless n divides 4 D."""
        super().__init__()
        self.c_fc = ColumnParallelLinear(full.c_fc, group)
        self.c_proj = RowParallelLinear(full.c_proj, group)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """x: the same on every rank. So is the result."""
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


# ---------------------------------------------------------------------------------- attention


def by_rank(x: Shaped[Tensor, "rows *rest"], n: int) -> Shaped[Tensor, "rows *rest"]:
    """Rows of q, k and v, in the order q, k, v of rank 0's heads, then of rank 1's, and so on.

    x: c_attn's weight, (3 D, D), or its bias, (3 D).
    """
    thirds = x.unflatten(0, (3, n, -1))  # q, k, v; rank; row
    return thirds.transpose(0, 1).flatten(0, 2)


class ParallelSelfAttention(nn.Module):
    """GPT-2's causal self-attention: each rank has an n-th of the heads, and nobody else has them.

    Rank r has heads r H/n to (r + 1) H/n − 1: the rows of c_attn that give their
    queries, keys and values, and the columns of c_proj that read them, in memory of its
    own; c_proj's bias is whole on every rank. One all-reduce forward and one backward;
    no dropout. Raises ValueError unless n divides the number of heads.
    """

    def __init__(self, full: Any, group: Group = None) -> None:
        """full: GPT-2's attention, equal on every rank, and left as it is: `n_head`, and the layers
        `c_attn`, which gives the q of all heads, then k, then v, and `c_proj`; of any dtype, with
        biases."""
        super().__init__()
        heads = part_of(full.n_head, group)
        self.n_head = heads.stop - heads.start  # of this rank
        c_attn = copy.deepcopy(full.c_attn)
        for p in c_attn.parameters():
            p.data = by_rank(p.data, dist.get_world_size(group))
        self.c_attn = ColumnParallelLinear(c_attn, group)
        self.c_proj = RowParallelLinear(full.c_proj, group)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """x: the same on every rank. So is the result."""
        q, k, v = (
            part.unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # (B, H / n, T, d)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


# ---------------------------------------------------------------------------------- the vocabulary


class VocabParallelEmbedding(nn.Module):
    """An embedding of whose rows each rank has a part; the result is whole on every rank.

    `weight` is an `nn.Parameter`: the rank's rows, from start to stop of
    `rows_of(V, rank, n)`, in memory of its own. n need not divide V. Costs one
    all-reduce forward, and no communication backward.
    """

    def __init__(self, full: nn.Embedding, group: Group = None) -> None:
        """full: equal on every rank; of it, only the weight counts. Every rank gets at least one row."""
        super().__init__()
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        self.group = group
        self.start, self.stop = rows_of(full.num_embeddings, rank, n)
        self.weight = nn.Parameter(full.weight[self.start : self.stop].clone())

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch D"]:
        """ids: from 0 to V − 1, the same on every rank, of any shape and strides, perhaps none at all;
        they are not modified. Returns their rows."""
        mine = (ids >= self.start) & (ids < self.stop)
        rows = F.embedding((ids - self.start).masked_fill(~mine, 0), self.weight)
        return ReduceFromRanks.apply(rows.masked_fill(~mine[..., None], 0.0), self.group)


def vocab_parallel_cross_entropy(
    logits: Float[Tensor, "B T part"],
    targets: Int[Tensor, "B T"],
    vocab_size: int,
    group: Group = None,
) -> Float[Tensor, "B T"]:
    """Cross-entropy of each position in nats, from logits of which each rank has a part.

    logits: of tokens start to stop of `rows_of(vocab_size, rank, n)`, at least one on
    each rank. targets: the same on every rank, from 0 to vocab_size − 1, or −100 where
    nothing is to be predicted: the loss is 0 there. All may have any strides, and are
    not modified. The result is the same on every rank. It is float64 for float64
    logits; for all others it is computed and returned in float32. Logits in the
    thousands neither overflow nor underflow. Backward takes any gradient of the losses,
    gives each rank the gradient of its own logits, in their dtype, and communicates
    nothing. Forward takes at most three all-reduces, of (B, T) numbers each: no rank
    has the logits of another. Source: Shoeybi et al. (2019), section 3.
    """
    start, stop = rows_of(vocab_size, dist.get_rank(group), dist.get_world_size(group))
    wide = logits if logits.dtype == torch.float64 else logits.float()
    largest = wide.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    mine = (targets >= start) & (targets < stop)
    at = (targets - start).masked_fill(~mine, 0)[..., None]
    shifted = wide - largest[..., None]
    target = shifted.gather(-1, at)[..., 0].masked_fill(~mine, 0.0)
    total = shifted.exp().sum(-1)
    total, target = ReduceFromRanks.apply(torch.stack([total, target]), group)
    return (total.log() - target).masked_fill(targets == -100, 0.0)


# ---------------------------------------------------------------------------------- sequences


def gather_sequence(x: Float[Tensor, "B part D"], group: Group = None) -> Float[Tensor, "B T D"]:
    """All positions, from those of each rank in order: one all-gather."""
    n = dist.get_world_size(group)
    parts = x.new_empty(n * len(x), *x.shape[1:])  # rank by rank, one under the other
    all_gather_single(parts, x.detach().contiguous(), group=group)
    return torch.cat(parts.chunk(n), dim=1)


def reduce_scatter_sequence(
    x: Float[Tensor, "B T D"], group: Group = None
) -> Float[Tensor, "B part D"]:
    """This rank's positions of the sum over the ranks: one reduce-scatter. n divides T."""
    mine = part_of(x.size(1), group)
    parts = torch.cat(x.detach().chunk(dist.get_world_size(group), dim=1))
    total = x.new_empty(len(x), mine.stop - mine.start, x.size(2))
    reduce_scatter_single(total, parts, group=group)
    return total


class ReduceScatterSequence(torch.autograd.Function):
    """g of sequence parallelism: `ReduceScatterSequence.apply(x, group)`.

    Every rank has a term for all positions; it keeps the sum for its own. One
    reduce-scatter forward, one all-gather backward. Source: Korthikanti et al. (2022),
    section 4.2.2.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "B T D"], group: Group = None
    ) -> Float[Tensor, "B part D"]:
        ctx.group = group
        return reduce_scatter_sequence(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "B part D"]) -> tuple[Float[Tensor, "B T D"], None]:
        return gather_sequence(grad, ctx.group), None


class SplitSequence(torch.autograd.Function):
    """Of what is the same on every rank, this rank's positions. One all-gather backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "B T D"], group: Group = None
    ) -> Float[Tensor, "B part D"]:
        ctx.group = group
        return x[:, part_of(x.size(1), group)].clone()

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "B part D"]) -> tuple[Float[Tensor, "B T D"], None]:
        return gather_sequence(grad, ctx.group), None


class GatheredLinear(torch.autograd.Function):
    """A column-parallel linear layer whose input is cut by positions: f of sequence parallelism.

    `GatheredLinear.apply(x, weight, bias, group)`: x has this rank's positions, (B,
    T / n, in), rank 0's the first; weight, (out / n, in), and bias, (out / n) or None,
    are its part of the layer. Returns its features of all positions, (B, T, out / n).
    One all-gather forward; one all-gather and one reduce-scatter backward. For backward
    it keeps x and weight, and the bias if you like, but never the gathered input. x and
    the gradient may have any strides. All inputs need a gradient. Source: Korthikanti
    et al. (2022), section 4.2.2.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "B part D"],
        weight: Float[Tensor, "out_part D"],
        bias: Float[Tensor, " out_part"] | None,
        group: Group = None,
    ) -> Float[Tensor, "B T out_part"]:
        """x of all ranks, times Wᵀ, plus b."""
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.has_bias = group, bias is not None
        return F.linear(gather_sequence(x, group), weight, bias)

    @staticmethod
    def backward(
        ctx: Any, grad: Float[Tensor, "B T out_part"]
    ) -> tuple[
        Float[Tensor, "B part D"],
        Float[Tensor, "out_part D"],
        Float[Tensor, " out_part"] | None,
        None,
    ]:
        """Gradients of x (the sum over the ranks, of its positions), of weight and of bias."""
        x, weight = ctx.saved_tensors
        of_x = reduce_scatter_sequence(grad @ weight, ctx.group)
        rows = grad.flatten(0, 1)
        of_weight = rows.T @ gather_sequence(x, ctx.group).flatten(0, 1)
        return of_x, of_weight, rows.sum(0) if ctx.has_bias else None, None
