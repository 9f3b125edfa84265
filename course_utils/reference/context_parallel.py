"""Chapter 20, context parallelism: attention over a sequence that no rank holds whole."""

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor


def zigzag_positions(rank: int, world_size: int, length: int) -> Int[Tensor, " own"]:
    """Positions of the tokens that a rank holds, if causal work is to be the same for all.

    rank: 0 to world_size − 1. The sequence is cut into 2 · world_size chunks of the same
    length; a rank holds the chunk of its own number, and then the one as far from the
    end. Returns int64, in ascending order. Raises ValueError where the length cannot be
    cut so.
    """
    if length % (2 * world_size):
        raise ValueError(f"{length} tokens cannot be cut into {2 * world_size} equal chunks")
    chunks = torch.arange(length).chunk(2 * world_size)
    return torch.cat([chunks[rank], chunks[2 * world_size - 1 - rank]])


def causal_pairs(queries: Int[Tensor, " q"], keys: Int[Tensor, " k"]) -> int:
    """How many pairs of a query and a key are allowed: the key is no later than the query."""
    return int((keys <= queries[:, None]).sum())


def online_softmax(
    maximum: Float[Tensor, "*rows"],
    total: Float[Tensor, "*rows"],
    output: Float[Tensor, "*rows e"],
    scores: Float[Tensor, "*rows n"],
    values: Float[Tensor, "*batch n e"],
) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"], Float[Tensor, "*rows e"]]:
    """Chapter 22's state after n further keys, where each row sees one of its first keys."""
    new = torch.maximum(maximum, scores.amax(dim=-1))
    weights, keep = (scores - new[..., None]).exp(), (maximum - new).exp()
    return new, total * keep + weights.sum(-1), output * keep[..., None] + weights @ values


@torch.no_grad()
def ring_attention(
    q: Float[Tensor, "B H t D"],
    k: Float[Tensor, "B H t D"],
    v: Float[Tensor, "B H t D"],
    positions: Int[Tensor, "n t"],
) -> Float[Tensor, "B H t D"]:
    """Causal attention of this rank's queries to the keys of all ranks: the forward pass.

    q, k, v: of this rank's tokens, the same shape and dtype on every rank, with any
    strides; they are left alone. positions: row r has the positions in the sequence of
    rank r's tokens, the same on every rank, in any order. A query sees a key whose
    position is not greater than its own; each sees at least itself. Scores are divided
    by √D. Softmax is accumulated in float32, or in float64 if that is the dtype;
    the result has q's dtype.

    Keys and values travel once around the ring, in their own dtype: each rank sends to
    its neighbour, r + 1 say, n − 1 times (one rank alone sends nothing). Keys and values
    of a step go as one message. Point-to-point messages only. Beside its arguments a rank
    never holds more than two ranks' keys and values: the block that it computes with and
    sends on, and the one that arrives. What it computes, a wider copy of a block too, is
    not counted. Source: Liu, Zaharia and Abbeel (2023).
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    dtype = torch.promote_types(q.dtype, torch.float32)
    queries = q.to(dtype) * q.shape[-1] ** -0.5
    maximum = queries.new_full(q.shape[:-1], -torch.inf)
    total, out = torch.zeros_like(maximum), torch.zeros_like(queries)
    travelling = torch.stack([k, v])
    for step in range(world_size):
        works = []
        if step < world_size - 1:  # on their way while this rank computes
            arriving = torch.empty_like(travelling)
            sending = dist.P2POp(dist.isend, travelling, right)
            works = dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, arriving, left)])
        keys, values = travelling.to(dtype)
        future = positions[(rank - step) % world_size] > positions[rank][:, None]
        scores = (queries @ keys.mT).masked_fill(future, -torch.inf)
        maximum, total, out = online_softmax(maximum, total, out, scores, values)
        for work in works:
            work.wait()
        if works:
            travelling = arriving
    return (out / total[..., None]).to(q.dtype)
