"""Chapter 20, a pipeline of the GPT-2: its stages, and one step of them with send and recv; PipeDream."""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from .gpt2 import GPT2
from .pipeline_schedules import one_f_one_b_schedule, timeline


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
    """The first layer of each stage, and the one after its last: sizes that differ by one at most."""
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
    empty lists. hidden: a contiguous tensor of the shape and dtype of what goes from
    stage to stage; its values mean nothing. All lists have their forwards in the same
    order of micro-batches, and their backwards. A stage's output need not be contiguous.

    Adds to the parameters' gradients those of the mean of the micro-batches' losses
    loss_fn(output, target). Returns these losses on the last rank, detached, by
    micro-batch, and an empty list elsewhere. When it returns, its messages have arrived.
    Nothing keeps a stage's output, the graph before it, after its backward; copies that
    were sent may stay.
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


def train_without_flush(
    lr: float, n_microbatches: int, stash: bool, late: bool = True
) -> tuple[list[float], list[float]]:
    """PipeDream in small: four stages of two layers tanh(x W), a step of SGD after each backward.

    The actions run as 1F1B's timeline has them; not late: one micro-batch after the other, as without a
    pipeline. A backward goes through the weights that its stage has by then; stash: through those that
    its forward used. Returns the loss of each micro-batch, and for each stage the largest relative
    error of a gradient of every tenth, against autograd's at the weights that the forwards used. In
    float64. Source: Narayanan et al. (2019).
    """
    draws = torch.Generator().manual_seed(0)
    target, *rest = torch.randn(9, 8, 8, generator=draws, dtype=torch.float64)
    weights = [[w / 8**0.5 for w in rest[2 * s : 2 * s + 2]] for s in range(4)]
    kept: dict[tuple[int, int], tuple[list[Tensor], list[Tensor]]] = {}
    arrived: dict[tuple[str, int, int], Tensor] = {}
    steps: dict[tuple[int, int], list[Tensor]] = {}
    losses, errors = [], [0.0] * 4
    for kind, s, i in _streamed(n_microbatches, late):
        if kind == "F":
            new = torch.randn(16, 8, generator=draws, dtype=torch.float64) if s == 0 else None
            outputs = [arrived.pop(("F", s, i)) if new is None else new]
            for w in weights[s]:
                outputs.append(torch.tanh(outputs[-1] @ w))
            kept[s, i], arrived["F", s + 1, i] = (outputs, weights[s]), outputs[-1]
            continue
        outputs, old = kept[s, i]
        goal = torch.tanh(kept[0, i][0][0] @ target)
        if s == 3:
            losses.append(((outputs[-1] - goal) ** 2).mean().item())
            arrived["B", s, i] = 2 * (outputs[-1] - goal) / goal.numel()
        grad = arrived.pop(("B", s, i))
        steps[s, i] = []
        for n, w in reversed(list(enumerate(old if stash else weights[s]))):
            grad = grad * (1 - outputs[n + 1] ** 2)
            steps[s, i].insert(0, outputs[n].T @ grad)
            grad = grad @ w.T
        arrived["B", s - 1, i] = grad
        weights[s] = [w - lr * step for w, step in zip(weights[s], steps[s, i], strict=True)]
        if s == 0 and i % 10 == 9:
            used = [kept[stage, i][1] for stage in range(4)]
            for stage, exact in enumerate(_exact(used, outputs[0], goal)):
                for step, right in zip(steps[stage, i], exact, strict=True):
                    errors[stage] = max(
                        errors[stage], ((step - right).norm() / right.norm()).item()
                    )
    return losses, errors


def _streamed(n_microbatches: int, late: bool) -> list[tuple[str, int, int]]:
    """The actions of four stages in the order in which they start."""
    if not late:
        way = [("F", s) for s in range(4)] + [("B", s) for s in (3, 2, 1, 0)]
        return [(kind, s, i) for i in range(n_microbatches) for kind, s in way]
    even = {"F": [1.0] * 4, "B": [2.0] * 4}
    times = timeline(one_f_one_b_schedule(4, n_microbatches), even)
    return sorted(times, key=lambda action: times[action][0])


def _exact(stages: list[list[Tensor]], x: Tensor, goal: Tensor) -> list[list[Tensor]]:
    """Autograd's gradients of the loss with respect to the weights of each stage."""
    leaves = [[w.clone().requires_grad_() for w in weights] for weights in stages]
    for w in (w for weights in leaves for w in weights):
        x = torch.tanh(x @ w)
    ((x - goal) ** 2).mean().backward()  # type: ignore[no-untyped-call]
    return [[w.grad for w in weights if w.grad is not None] for weights in leaves]
