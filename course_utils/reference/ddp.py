"""Chapter 17, DDP: the same model on every rank, each with its own share of the batch.

Every function is called on every rank of the default process group, in the same order. A model is
wrapped once; after that, training code reads as it does on one process. Names are those of
torch.nn.parallel.DistributedDataParallel and of its Reducer.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer


def _broadcast(tensors: Iterable[Tensor], src: int) -> None:
    for t in tensors:
        whole = t.detach().contiguous()  # t's own memory, unless it has gaps or is transposed
        dist.broadcast(whole, src)
        t.detach().copy_(whole)


def broadcast_parameters(module: nn.Module, src: int = 0) -> None:
    """Give every rank the parameters and buffers of rank `src`.

    Parameters trainable and frozen, and all buffers, those that are not saved included.
    Of every dtype the values arrive exactly. Tensors change in place, since optimizers and
    views hold on to their memory. That memory may have gaps or another order, where a
    collective wants a contiguous tensor.
    """
    _broadcast([*module.parameters(), *module.buffers()], src)


def average_gradients(params: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its mean over the ranks: one all-reduce for each parameter.

    A parameter without gradient on this rank may have one on another, so it takes part
    with zeros, and has a gradient afterwards: zeros, if no rank had one. Frozen parameters
    are left alone. Each gradient travels in its own dtype, and may be transposed in
    memory, where a collective wants a contiguous tensor. Divides before it adds: the mean
    of float16 gradients fits where their sum may not. `.grad` may change in place or
    become a new tensor.
    """
    for p in params:
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            mean = grad.div(dist.get_world_size()).contiguous()
            dist.all_reduce(mean)
            p.grad = mean


class GradientBuckets:
    """Parameters grouped into buckets, so that one message carries the gradients of many.

    The attribute `buckets` holds lists of parameters, in the order in which their gradients
    are expected: the reverse of `params`. A bucket is full as soon as it holds cap_bytes or
    more; it has one dtype, since it travels as one flat tensor, so each dtype fills a bucket
    of its own. Full buckets come first, in the order in which they were filled, then what
    is left, in the order in which it was begun. Frozen parameters are left out. Source:
    Li et al. (2020), sections 3.2.2 and 3.2.3.
    """

    def __init__(self, params: Iterable[nn.Parameter], cap_bytes: int = 25 * 2**20):
        """cap_bytes: when a bucket is full. Every rank must give the same parameters and cap."""
        self.buckets: list[list[nn.Parameter]] = []
        filling: dict[torch.dtype, list[nn.Parameter]] = {}
        for p in reversed([p for p in params if p.requires_grad]):
            bucket = filling.setdefault(p.dtype, [])
            bucket.append(p)
            if sum(q.nbytes for q in bucket) >= cap_bytes:
                self.buckets.append(filling.pop(p.dtype))
        self.buckets += filling.values()
        self._under_way: list[tuple[list[nn.Parameter], Tensor, Any]] = []

    def start(self, index: int) -> None:
        """Begin to average the gradients of one bucket over the ranks, and return without waiting.

        One all-reduce, of gradients that are divided before they are added. A parameter
        without gradient takes part with zeros.
        """
        bucket = self.buckets[index]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([grad.flatten() for grad in grads]).div_(dist.get_world_size())
        self._under_way.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        """Wait for every bucket that was started, and put the means into the gradients.

        In place or as new tensors, also where there was no gradient. Buckets that were not
        started take no part. Afterwards all can be started anew.
        """
        for bucket, flat, work in self._under_way:
            work.wait()
            for p, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = torch.empty_like(p) if p.grad is None else p.grad
                p.grad.copy_(mean.view_as(p))
        self._under_way.clear()


class DistributedDataParallel(nn.Module):
    """A module whose gradients, after `backward`, are the means over all ranks.

    At the start every rank gets rank 0's parameters and buffers; later, before every
    forward outside of `no_sync`, rank 0's buffers, in eval mode and under `torch.no_grad`
    too. A bucket's all-reduce starts as soon as all of its gradients are there, while
    backward goes on with the layers below, but never before that of an earlier bucket: all
    ranks must send in one order. When backward returns, the means are in place. A
    parameter that a backward did not reach takes part with the gradient that it has, or
    with zeros if it has none. Of the backwards that follow a forward only the first
    communicates. A forward under `torch.no_grad` has no backward to wait for. The backward
    of a call of `.module` communicates nothing; not checked is what it does if a forward
    before it still waits for its own. Source: Li et al. (2020), Algorithm 1.
    """

    def __init__(self, module: nn.Module, cap_bytes: int = 25 * 2**20):
        """module: stays reachable as `.module`. cap_bytes: see GradientBuckets."""
        super().__init__()
        self.module = module
        broadcast_parameters(module)
        self._reducer = GradientBuckets(module.parameters(), cap_bytes)
        self._bucket_of = {p: i for i, ps in enumerate(self._reducer.buckets) for p in ps}
        for p in self._bucket_of:
            p.register_post_accumulate_grad_hook(self._on_gradient)
        self._sync, self._armed = True, False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns. Whether the backward of it communicates is decided here."""
        self._armed = self._sync and torch.is_grad_enabled()
        self._missing: list[int] = []  # gradients still to come, by bucket, once backward has begun
        if self._sync:
            _broadcast(self.module.buffers(), src=0)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A forward in this block communicates nothing, nor does its backward, wherever that runs.

        That holds if no other forward comes between the two. Gradients add up on each rank
        by itself. The next backward of a forward outside of it averages all that has added
        up.
        """
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def _on_gradient(self, p: nn.Parameter) -> None:
        if not self._armed:
            return
        if not self._missing:  # the first gradient of this backward
            self._missing = [len(bucket) for bucket in self._reducer.buckets]
            self._next = 0  # the first bucket that has not been started
            Variable._execution_engine.queue_callback(self._finish)  # when all of backward is done
        self._missing[self._bucket_of[p]] -= 1
        while self._next < len(self._missing) and self._missing[self._next] == 0:
            self._reducer.start(self._next)
            self._next += 1

    def _finish(self) -> None:
        for index in range(self._next, len(self._missing)):  # parameters that were not reached
            self._reducer.start(index)
        self._reducer.finish()


def no_sync_step(
    model: nn.parallel.DistributedDataParallel,
    batches: Sequence[tuple[Float[Tensor, "b i"], Float[Tensor, "b o"]]],
    optimizer: Optimizer,
) -> Float[Tensor, ""]:
    """One step on several micro-batches, whose gradients are communicated once, with the last.

    The loss is each rank's own: the mean squared error over all elements of its
    micro-batches' outputs, which may differ in size. It is returned, detached. In all, every
    rank has equally many elements, so that DDP may average. Gradients from before are
    dropped, those of this step stay.
    """
    optimizer.zero_grad()
    samples = sum(len(x) for x, _ in batches)
    losses = []
    for number, (x, y) in enumerate(batches, start=1):
        with nullcontext() if number == len(batches) else model.no_sync():
            loss = F.mse_loss(model(x), y) * (len(x) / samples)
            loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    return torch.stack(losses).sum()


def token_weighted_backward(
    model: nn.parallel.DistributedDataParallel,
    ids: Int[Tensor, "B T"],
    targets: Int[Tensor, "B T"],
) -> Float[Tensor, ""]:
    """Backward of the mean loss over the tokens of all ranks, where DDP averages over ranks.

    model(ids) gives logits (B, T, V); a target of -100 is ignored. Ranks may have
    batches of different shapes and different numbers of targets; a rank may have no
    target, or not even a row (B = 0). The gradient of the mean cross-entropy over all ranks'
    targets together is added to `.grad`, which is not emptied before. That loss is returned
    on every rank: a tensor of the logits' dtype, detached. Raises ValueError on every rank,
    with gradients as they were, if there is not one target on any. What comes after that is
    not checked.
    """
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="sum")
    sums = torch.stack([loss.detach().double(), (targets != -100).sum().double()])
    dist.all_reduce(sums)
    if sums[1] == 0:
        raise ValueError("no rank has a target")
    (loss * dist.get_world_size() / sums[1]).backward()
    return (sums[0] / sums[1]).to(loss.dtype)


def save_on_rank_zero(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Rank 0 writes the model's state_dict to `path`; when a rank returns, the file is there.

    The names are those of the bare model, whether or not torch's
    DistributedDataParallel wraps it. A file of that name is replaced in one step, so
    that a failure or a kill in the middle leaves it as it was. What is moved into place
    was written in the same folder: a move is one step only within a file system. Nothing is
    written by other ranks, and nothing else stays behind, after a failure neither (after a
    kill it may). If rank 0 cannot write the file, because the disk is full or the folder
    does not exist, every rank raises OSError, whatever rank 0's own error was.
    """
    failure: list[str | None] = [None]
    if dist.get_rank() == 0:
        bare = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        partial = Path(path).with_name(Path(path).name + ".partial")
        try:
            torch.save(bare.state_dict(), partial)
            os.replace(partial, path)
        except Exception as error:
            partial.unlink(missing_ok=True)
            failure = [f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(failure)  # the others wait here, and hear how it went
    if failure[0]:
        raise OSError(f"rank 0 could not write {path}: {failure[0]}")
