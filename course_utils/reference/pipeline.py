"""Chapter 20, a pipeline of the GPT-2: its stages, and one step of them with send and recv."""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from .gpt2 import GPT2


class GPT2Stage(nn.Module):
    """Consecutive blocks of a GPT-2, with the model's own names and in memory of their own.

    The first stage also embeds, the last has the last norm and the head: it takes ids, or
    features (B, T, D), and returns features or logits. Where they are two stages, the
    head's weight is a second copy of the embedding's: see `tie_gradients`.
    """

    def __init__(self, model: GPT2, start: int, stop: int):
        """Blocks start to stop − 1 of the model, which is left as it is."""
        super().__init__()
        whole = model.transformer
        self.is_first, self.is_last = start == 0, stop == len(whole.h)
        parts: dict[str, nn.Module] = {}
        if self.is_first:
            parts |= {name: getattr(whole, name) for name in ("wte", "wpe", "drop")}
        parts["h"] = nn.ModuleDict({str(i): whole.h[i] for i in range(start, stop)})
        if self.is_last:
            parts["ln_f"] = whole.ln_f
        own = copy.deepcopy(
            (nn.ModuleDict(parts), model.lm_head)
        )  # one copy: what is tied stays tied
        self.transformer = own[0]
        if self.is_last:
            self.lm_head = own[1]
        self.zero_grad()  # gradients were copied, too

    def forward(self, x: Tensor) -> Tensor:
        """Ids (B, T) on the first stage, else features (B, T, D); features, or logits on the last."""
        parts: Any = self.transformer
        if self.is_first:
            x = parts["drop"](parts["wte"](x) + parts["wpe"](torch.arange(x.size(1))))
        for block in parts["h"].values():
            x = block(x)
        return self.lm_head(parts["ln_f"](x)) if self.is_last else x


class SavedBytes:
    """Counts the bytes that autograd keeps for backward in its block: now, and at the peak.

    A storage counts once, however often it was saved; parameters of the module do not.
    """

    def __init__(self, module: nn.Module):
        """module: whose parameters are left out."""
        self._left_out = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._saved: Counter[int] = Counter()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept.tensor)
        self.now = self.peak = 0

    def __enter__(self) -> "SavedBytes":
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> "_Kept":
        return _Kept(tensor, self)

    def _count(self, tensor: Tensor, change: int) -> None:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place in self._left_out:
            return
        before = self._saved[place]
        self._saved[place] += change
        self.now += storage.nbytes() * (bool(self._saved[place]) - bool(before))
        self.peak = max(self.peak, self.now)


class _Kept:
    """A saved tensor; autograd lets go of it when the backward that needs it is done."""

    def __init__(self, tensor: Tensor, counts: SavedBytes):
        self.tensor, self._counts = tensor, counts
        counts._count(tensor, 1)

    def __del__(self) -> None:
        self._counts._count(self.tensor, -1)


def cut_evenly(n_layers: int, n_stages: int) -> list[tuple[int, int]]:
    """The first layer of each stage, and the one behind its last: sizes that differ by one at most."""
    return [(n_layers * s // n_stages, n_layers * (s + 1) // n_stages) for s in range(n_stages)]


def tie_gradients(stage: GPT2Stage, ends: dist.ProcessGroup) -> None:
    """Sum the gradients of the two copies of a tied embedding; ends: the group of first and last rank.

    After it equal copies stay equal under any optimizer that does the same with both.
    """
    if stage.is_first != stage.is_last:  # one stage alone has one weight, whose gradient is whole
        end: Any = stage.transformer["wte"] if stage.is_first else stage.lm_head
        dist.all_reduce(end.weight.grad, group=ends)


def pipeline_step(
    stage: nn.Module,
    actions: Sequence[tuple[str, int, int]],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss_fn: Callable[[Tensor, Tensor], Float[Tensor, ""]],
    hidden: Tensor,
) -> list[Float[Tensor, ""]]:
    """This rank's part of a pipeline's step: its stage, forward and backward, by its list of actions.

    Rank r of the world runs stage r. actions: this rank's list of a schedule, tuples
    ("F" or "B", stage, micro-batch), to be run in this order, each micro-batch once
    forward and once backward. inputs, targets: of each micro-batch, by its number; only
    the first rank reads inputs, only the last reads targets, and others may be given
    empty lists. hidden: a tensor of the shape and dtype of what goes from stage to stage;
    its values mean nothing. A stage's output need not be contiguous.

    Adds to the parameters' gradients those of the mean of the micro-batches' losses
    loss_fn(output, target). Returns these losses on the last rank, detached, by
    micro-batch, and an empty list elsewhere. When it returns, its messages have arrived.
    A stage's output is let go with its backward.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    n_microbatches = sum(kind == "F" for kind, _, _ in actions)
    alive: dict[int, tuple[Tensor, Tensor]] = {}
    losses: dict[int, Tensor] = {}
    forward_sends: dict[int, dist.Work] = {}
    backward_sends: list[dist.Work] = []
    for kind, _, i in actions:
        if kind == "F":
            x = inputs[i] if rank == 0 else _received(hidden, rank - 1, i).requires_grad_()
            y = stage(x)
            if rank < last:
                forward_sends[i] = _sent(y.detach(), rank + 1, i)
            else:
                y = loss_fn(y, targets[i])
                losses[i] = y.detach()
                y = y / n_microbatches
            alive[i] = x, y
        else:
            x, y = alive.pop(i)
            grad = None if rank == last else _received(hidden, rank + 1, i)
            if rank < last:
                forward_sends.pop(i).wait()  # it has arrived: its gradient is here
            y.backward(grad)
            if rank > 0:
                backward_sends.append(_sent(x.grad, rank - 1, i))
    for work in backward_sends:
        work.wait()
    return [losses[i] for i in sorted(losses)]


def _sent(x: Any, rank: int, tag: int) -> Any:
    """Begin to send; whoever keeps the work keeps the memory."""
    return dist.isend(x.contiguous(), rank, tag=tag)


def _received(like: Tensor, rank: int, tag: int) -> Tensor:
    x = torch.empty_like(like, memory_format=torch.contiguous_format)
    dist.recv(x, rank, tag=tag)
    return x
