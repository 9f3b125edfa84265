"""Chapter 11, schedules and stability: the learning rate over time, the norm of a gradient, uneven
batches, steps that must not be taken, and seeds.

A schedule is a function of the step, counted from 0, that gives a factor: the step's learning rate is
the factor times the optimizer's own. Names are those of torch.optim.lr_scheduler, torch.nn.utils and
transformers.optimization.
"""

import math
import random
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer


def linear_warmup(step: int, warmup_steps: int, start: float = 0.0) -> float:
    """Factor of the learning rate: a straight line from `start` at step 0 to 1 at step `warmup_steps`.

    step: from 0. From step `warmup_steps` on the factor is 1; with warmup_steps = 0 it
    always is. The result is a float: 1.0, not 1. If start and warmup_steps are above 0,
    equal to torch's LinearLR with start_factor = start and total_iters = warmup_steps.
    """
    if step >= warmup_steps:
        return 1.0
    return start + (1 - start) * step / warmup_steps


def warmup_cosine(
    step: int, *, warmup_steps: int, total_steps: int, min_ratio: float = 0.0
) -> float:
    """Factor of the learning rate: a line from 0 to 1, then half a cosine from 1 to `min_ratio`.

    The line goes from step 0 to step warmup_steps, where the factor is 1; the cosine
    ends at step total_steps, and the factor stays at min_ratio from there on. The
    result is a float. Raises ValueError, at every step, unless warmup_steps <
    total_steps. Source: Loshchilov and Hutter (2017), equation 5, without restarts.
    """
    if warmup_steps >= total_steps:
        raise ValueError(f"{warmup_steps} steps of warm-up leave nothing of {total_steps}")
    if step < warmup_steps:
        return step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return min_ratio + (1 - min_ratio) * (1 + math.cos(math.pi * progress)) / 2


def wsd(
    step: int,
    *,
    warmup_steps: int,
    stable_steps: int,
    decay_steps: int,
    min_ratio: float = 0.0,
    decay: str = "linear",
) -> float:
    """Factor of the learning rate: warm-up, stable, decay.

    For warmup_steps a line from min_ratio, at step 0, to 1; for stable_steps it is 1;
    for decay_steps it falls from 1 to min_ratio, where it stays. Each part may be
    empty. In the decay the factor is min_ratio + (1 - min_ratio) · f(p), where p is the
    share of the decay that has passed: 0 at step warmup_steps + stable_steps, and 1 at
    its end. f(p) is 1 - p for decay = "linear", (1 + cos πp) / 2 for "cosine"
    and 1 - √p for "1-sqrt". The result is a float. Raises ValueError, at every step,
    for any other decay. Source: Hu et al. (2024), section 4; "1-sqrt": Hägele et al.
    (2024).
    """
    falls = {
        "linear": lambda p: 1 - p,
        "cosine": lambda p: (1 + math.cos(math.pi * p)) / 2,
        "1-sqrt": lambda p: 1 - math.sqrt(p),
    }
    if decay not in falls:
        raise ValueError(f"the decay is one of {', '.join(falls)}; came {decay!r}")
    past = step - warmup_steps - stable_steps
    if step < warmup_steps:
        height = step / warmup_steps
    elif past < 0:
        height = 1.0
    elif past < decay_steps:
        height = falls[decay](past / decay_steps)
    else:
        height = 0.0
    return min_ratio + (1 - min_ratio) * height


@torch.no_grad()
def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Float[Tensor, ""]:
    """Scale all gradients, in place and by one factor, so that their common norm is at most max_norm.

    The norm is that of all gradients as one vector, before clipping; it is returned. It
    has dtype float32, or the widest dtype of the gradients where that is wider, and is
    computed in float32 at least: float16 could not hold it. The factor is max_norm /
    (norm + 1e-6), at most 1: gradients never grow. If the norm is not finite, the
    gradients stay as they are. Parameters without gradient are left out; if none has
    one, the norm is 0, in float32. parameters may be a generator. Source: Pascanu et
    al. (2013), algorithm 1.
    """
    by_dtype = defaultdict(list)
    for p in parameters:
        if p.grad is not None:
            by_dtype[p.grad.dtype].append(p.grad)
    norms: list[Tensor] = []
    for dtype, grads in by_dtype.items():
        norms += torch._foreach_norm(grads, 2, torch.promote_types(dtype, torch.float32))
    if not norms:
        return torch.zeros(())
    norm = torch.linalg.vector_norm(torch.stack(norms))
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    factor = torch.where(norm.isfinite(), factor, 1.0)
    for grads in by_dtype.values():
        torch._foreach_mul_(grads, factor)
    return norm


@torch.no_grad()
def clip_sharded_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Clip gradients that are cut into shards, one for each rank: no element is on two ranks.

    Called on every rank with that rank's parameters, perhaps a generator, perhaps none
    at all. Each .grad is a shard, of any dtype and strides, or None. The norm is that
    of all shards of all ranks as one vector, before clipping, and 0 if there is none;
    it is returned, a Python float, the same on every rank. Shards are squared and added
    up in float64. They change in place, by the factor max_norm / (norm + 1e-6), at most
    1; if the norm is not finite, they stay as they are.
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    squares = torch.zeros((), dtype=torch.float64)
    for grad in grads:
        squares += grad.double().square().sum()
    dist.all_reduce(squares)
    norm = squares.sqrt().item()
    factor = min(1.0, max_norm / (norm + 1e-6))
    if math.isfinite(norm):
        for grad in grads:
            grad.mul_(factor)
    return norm


def accumulate_step(
    model: nn.Module,
    batches: Sequence[tuple[Int[Tensor, "_ _"], Int[Tensor, "_ _"]]],
    optimizer: Optimizer,
) -> float:
    """One step of the optimizer on several micro-batches, whose sizes and padding may differ.

    A micro-batch is (ids, targets), both (B, T); model(ids) gives logits (B, T, V). A
    target of -100 is ignored. The loss is the mean cross-entropy over the targets of
    all micro-batches together; it is returned, as a Python float. Backward runs on each
    micro-batch before the next forward. Gradients from before are dropped, those of
    this step stay in .grad. Raises ValueError, and takes no step, if there is not one
    target, or no micro-batch.
    """
    tokens = sum(int((targets != -100).sum()) for _, targets in batches)
    if tokens == 0:
        raise ValueError("no micro-batch has a target")
    optimizer.zero_grad()
    total = 0.0
    for ids, targets in batches:
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), reduction="sum") / tokens
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def accumulate_on_ranks(
    model: nn.Module,
    batches: Sequence[tuple[Int[Tensor, "_ _"], Int[Tensor, "_ _"]]],
    optimizer: Optimizer,
) -> float:
    """One step on several ranks, each with micro-batches of its own, as many as it likes.

    A micro-batch is (ids, targets), both (B, T); model(ids) gives logits (B, T, V). A
    target of -100 is ignored. Every rank has the same model, not wrapped in DDP, and
    gets the gradient of the mean cross-entropy over the targets of all ranks together.
    That loss is returned on each, as a Python float. A rank may have no micro-batch, or
    no target in them. Backward runs on each micro-batch before the next forward. A
    trainable parameter without gradient on this rank takes part with zeros; frozen ones
    get no gradient. Strides of a gradient may differ from rank to rank. Gradients from
    before are dropped, those of this step stay in .grad. Raises ValueError on every
    rank, and takes no step, if there is not one target on any.
    """
    optimizer.zero_grad()
    sums = torch.zeros(2, dtype=torch.float64)  # of the losses, and of the targets
    for ids, targets in batches:
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), reduction="sum")
        loss.backward()
        sums += torch.stack([loss.detach().double(), (targets != -100).sum().double()])
    dist.all_reduce(sums)
    total, tokens = sums.tolist()
    if tokens == 0:
        raise ValueError("no micro-batch of any rank has a target")
    for p in model.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            whole = grad.contiguous()
            dist.all_reduce(whole)
            p.grad = whole.div_(tokens)
    optimizer.step()
    return total / tokens


def finite_step(loss: Float[Tensor, ""], optimizer: Optimizer) -> bool:
    """Backward, then a step only if the loss and all gradients are finite.

    The check covers the loss and every element of every gradient of the optimizer's
    parameters. If all are finite, the optimizer takes its step, and the result is True.
    Otherwise parameters and the optimizer's state stay as they were, and it is False.
    Gradients that .grad holds before the call, of earlier micro-batches, are part of
    the sum. Afterwards the .grad of each of these parameters is None, either way.
    """
    loss.backward()
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    checked = [loss, *(grad for grad in grads if grad is not None)]
    finite = all(bool(t.isfinite().all()) for t in checked)
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    return finite


class SpikeDetector:
    """Is a loss far above those before it?

    Called with the loss of each step, it says whether that is a spike: not finite, or
    more than `threshold` standard deviations above the mean of the last `window` losses
    before it that were no spikes. Until there are `window` of them, no finite loss is a
    spike. Mean and standard deviation are those of the window alone (divided by
    `window`); a low loss is never a spike, unless it is minus infinity.
    """

    def __init__(self, window: int = 64, threshold: float = 6.0) -> None:
        """window: losses to compare with, at least 1. threshold: in standard deviations."""
        self.threshold = threshold
        self._last: deque[float] = deque(maxlen=window)

    def __call__(self, loss: float) -> bool:
        """Whether this loss is a spike. One that is not joins the window."""
        spike = not math.isfinite(loss)
        if not spike and len(self._last) == self._last.maxlen:
            mean, std = np.mean(self._last), np.std(self._last)
            spike = bool(loss > mean + self.threshold * std)
        if not spike:
            self._last.append(loss)
        return spike


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed every global generator: of Python's random, of NumPy, of torch on all devices.

    seed: from 0 to 2⁶⁴ - 1. NumPy, which takes 32 bits, gets it modulo 2³²; the others
    get it whole. deterministic: also forbid torch's nondeterministic algorithms, so
    that they raise, and switch off cuDNN's benchmark, which may choose other kernels in
    every run. Otherwise those switches stay as they are.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
