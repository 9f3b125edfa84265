"""Chapter 20, expert parallelism: a router, and tokens that travel to the ranks of their experts."""

# mypy: disable-error-code="override"
# (an autograd.Function's own backward takes any arguments)

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

Expert = Callable[[Tensor], Tensor]


def top_k_router(
    logits: Float[Tensor, "T E"], k: int
) -> tuple[Float[Tensor, "T k"], Int[Tensor, "T k"], Float[Tensor, ""]]:
    """Which k experts each token goes to, with which weights, and the load-balancing loss.

    logits: a row for each token, at least one, any float dtype; E ≥ k experts. Returns

    - gates: the softmax of the row, for the k chosen experts, divided by their sum;
    - experts: their numbers, int64, in the order of falling logits; of equal logits the
      lower number comes first;
    - the loss E · Σ f_i · P_i, a tensor without axes: f_i is the part of all T · k
      choices that fell on expert i, and P_i the mean over tokens of its softmax.
      Gradients flow through P_i only.

    Computed in float32, or in float64 if that is the dtype of the logits; gates have
    the logits' dtype, the loss the dtype it is computed in. By operations of torch, with
    no loop over tokens or experts. Source: Fedus, Zoph and Shazeer (2022), section 2.2;
    for k > 1 Lepikhin et al. (2021).
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    probabilities = wide.softmax(dim=-1)
    experts = logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    chosen = probabilities.gather(1, experts)
    gates = chosen / chosen.sum(dim=-1, keepdim=True)
    E = logits.shape[1]
    f = experts.flatten().bincount(minlength=E).to(wide.dtype) / experts.numel()
    loss = E * (f * probabilities.mean(dim=0)).sum()
    return gates.to(logits.dtype), experts, loss


class _ExchangeRows(torch.autograd.Function):
    """All-to-all of rows; the gradient goes back the way the rows came."""

    @staticmethod
    def forward(ctx, rows, sent, received):  # type: ignore[no-untyped-def]
        ctx.sizes = sent, received
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        sent, received = ctx.sizes
        rows = grad.new_empty(sum(sent), *grad.shape[1:])
        dist.all_to_all_single(rows, grad.contiguous(), sent, received)
        return rows, None, None


def exchange_rows(
    rows: Float[Tensor, "sent *row"], sent: Sequence[int], received: Sequence[int]
) -> Float[Tensor, "received *row"]:
    """Rows of other ranks for rows of this one: one all-to-all, and one more in the backward pass.

    sent: how many of the rows go to each rank, in the order of the ranks; received: how
    many come from each; any of them may be 0. Gradients flow.
    """
    out: Tensor = _ExchangeRows.apply(rows, list(sent), list(received))
    return out


def expert_dispatch(
    x: Float[Tensor, "T D"],
    chosen: Int[Tensor, "T k"],
    gates: Float[Tensor, "T k"],
    experts: Sequence[Expert],
    capacity: int | None = None,
) -> Float[Tensor, "T D"]:
    """What a mixture of experts makes of this rank's tokens, with experts on all ranks.

    x: this rank's tokens; ranks may have different T, even 0. experts: this rank's own,
    m of them on every rank, in the order of their numbers: expert e is number e % m of
    rank e // m. Each maps rows (N, D) to rows (N, D). chosen, gates: as of
    `top_k_router`, with the numbers of experts in the whole job. Row t of the result is
    Σ_j gates[t, j] · expert chosen[t, j](x[t]), in x's dtype.

    capacity: None, or how many of this rank's choices each expert takes: the first in
    the order of `chosen`, row by row. What comes later is dropped and adds nothing.

    Gradients flow to x, to gates and into the experts. In the forward pass there are at
    most three collectives: one of counts, one of rows there, one of rows back; in the
    backward pass two. A row travels once for each choice that was not dropped; nothing
    else does but the counts, at most one number for each rank and expert. Each expert is
    called once, with all rows that come to it, even if there are none. Source: Lepikhin
    et al. (2021).
    """
    world_size, m, k = dist.get_world_size(), len(experts), chosen.shape[1]
    choices = chosen.flatten()
    order = choices.argsort(stable=True)  # choices by expert, so by rank; then as they came
    counts = choices.bincount(minlength=world_size * m)
    if capacity is not None:
        place = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)

    incoming = torch.empty_like(counts)  # of each rank, how many rows for each of my experts
    dist.all_to_all_single(incoming, counts)
    sent = counts.view(world_size, m).sum(1).tolist()
    received = incoming.view(world_size, m).sum(1).tolist()
    rows = exchange_rows(x[order // k], sent, received)

    mine = torch.arange(m).repeat(world_size).repeat_interleave(incoming)
    by_expert = mine.argsort(stable=True)
    parts = rows[by_expert].split(mine.bincount(minlength=m).tolist())
    results = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    results = results[by_expert.argsort()]  # as the rows came

    back = exchange_rows(results, received, sent)
    weighted = back * gates.flatten()[order, None]
    return torch.zeros_like(x).index_add(0, order // k, weighted.to(x.dtype))


def dense_experts(
    x: Float[Tensor, "T D"],
    chosen: Int[Tensor, "T k"],
    gates: Float[Tensor, "T k"],
    experts: Sequence[Expert],
) -> Float[Tensor, "T D"]:
    """The same on one process that has all experts, by a loop over them."""
    y = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        token, slot = (chosen == number).nonzero(as_tuple=True)
        y = y.index_add(0, token, gates[token, slot, None] * expert(x[token]))
    return y


class ByteExperts(nn.Module):
    """A next-byte model of one layer: the last `context` bytes' embeddings, then a mixture of experts.

    Small enough to train in seconds, which is all that it is for.
    """

    def __init__(self, experts: int = 8, k: int = 1, context: int = 4, width: int = 64):
        super().__init__()
        self.k, self.context = k, context
        self.embedding = nn.Embedding(256, width // context)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )
        self.head = nn.Linear(width, 256)

    def forward(self, text: Int[Tensor, "T C"]) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of the byte after each row, the load-balancing loss, and the chosen experts."""
        x = self.embedding(text).flatten(1)
        gates, chosen, loss = top_k_router(self.router(x), self.k)
        if self.k == 1:  # renormalised, one gate is 1 whatever the router says: use its probability
            gates = self.router(x).softmax(-1).gather(1, chosen)
        y = x + dense_experts(x, chosen, gates, list(self.experts))
        return self.head(y), loss, chosen


def train_byte_experts(
    text: bytes, weight: float, steps: int = 200, seed: int = 0, tokens: int = 1024
) -> tuple[list[list[float]], list[float]]:
    """Train a ByteExperts on text; each step's share of tokens by expert, and its cross-entropy in nats.

    weight: of the load-balancing loss.
    """
    torch.manual_seed(seed)
    model = ByteExperts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    shares, losses = [], []
    for _ in range(steps):
        starts = torch.randint(len(data) - model.context - 1, (tokens,), generator=generator)
        rows = data[starts[:, None] + torch.arange(model.context + 1)]
        logits, balance, chosen = model(rows[:, :-1])
        loss = F.cross_entropy(logits, rows[:, -1])
        optimizer.zero_grad()
        (loss + weight * balance).backward()
        optimizer.step()
        count = chosen.flatten().bincount(minlength=len(model.experts))
        shares.append((count / chosen.numel()).tolist())
        losses.append(loss.item())
    return shares, losses
