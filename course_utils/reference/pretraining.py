"""Chapter 24, pretraining: GPT-2 trained for real, by the loop that chapters 9 to 13 build up.

    course train --steps 2000 --save run.pt
    torchrun --standalone --nproc-per-node=8 -m course_utils.reference.pretraining --model gpt2 …

It builds on `train.py`, which says how processes, data and checkpoints work together, and adds what a
run of days needs: micro-batches, clipping, warm-up and a cosine, autocast by device, evaluation on text
that is never trained on, tokens per second and MFU. What a step does depends on the settings and the
step's number alone (dropout too), so a run that was killed and started again ends bit for bit where
one that was left alone ends, on the same devices.
"""

import argparse
import gc
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from .gpt2 import CONFIGS, GPT2, GPT2Config, next_token_loss
from .optimizers import decay_groups
from .train import get_batch, library_text, load, save


@dataclass(frozen=True)
class Settings:
    """A run. The defaults train a small model of bytes for some minutes on a laptop."""

    model: str = "bytes"  # one of gpt2.CONFIGS; ids are bytes until chapter 21 has a tokenizer
    strategy: str = "ddp"  # ddp or fsdp; with one process both are that process alone
    steps: int = 2000
    batch: int = 32  # sequences a step, all processes and micro-batches together
    micro_batch: int = 32  # sequences that one process takes through the model at once
    context: int = 0  # positions of a sequence; 0: as many as the model has
    lr: float = 3e-3  # at the end of the warm-up
    min_lr: float = 3e-4  # at the last step
    warmup: int = 100  # steps
    weight_decay: float = 0.1  # of matrices
    clip: float = 1.0  # largest norm of the gradient; 0: unbounded
    dropout: float = 0.0
    precision: str = "auto"  # float32, bfloat16 (autocast), or auto: bfloat16 on GPUs that have it
    seed: int = 0
    text_bytes: int = 4 * 2**20  # of Python's own library
    eval_every: int = 100
    eval_batches: int = 8
    log_every: int = 10
    save: str = ""  # checkpoint file; resumed from if it is there
    save_every: int = 100
    log: str = ""  # a file that gets one line of JSON for each report


@dataclass(frozen=True)
class Report:
    """What is known after a step: mean losses in nats a token, over all processes.

    loss: of the step's own batch, before its update. validation: None where it was not measured.
    norm: of the gradient before clipping. mfu: the share of what the device's own matrix product
    reaches, None before that was measured.
    """

    step: int
    loss: float
    validation: float | None
    lr: float
    norm: float
    tokens_per_second: float
    mfu: float | None

    def __str__(self) -> str:
        parts = [f"step {self.step:5}", f"loss {self.loss:.4f}"]
        if self.validation is not None:
            parts.append(f"validation {self.validation:.4f}")
        parts += [f"lr {self.lr:.2e}", f"norm {self.norm:.2f}"]
        parts.append(f"{self.tokens_per_second:,.0f} tokens/s")
        return "  ".join(parts + ([] if self.mfu is None else [f"MFU {self.mfu:.0%}"]))


def cosine_schedule(step: int, steps: int, warmup: int, lr: float, min_lr: float) -> float:
    """The learning rate of a step, counted from 0: a line up to lr, then half a cosine to min_lr.

    Source: Loshchilov and Hutter (2017), equation 5, without restarts.
    """
    if step < warmup:
        return lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return min_lr + (lr - min_lr) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def flops_per_token(config: GPT2Config, T: int) -> int:
    """FLOPs of training on one token: forward and twice that backward; 2 a multiplication and addition.

    6 for each parameter of a matrix product (the tied head's once, no embedding) and 12 L D T for
    q kᵀ and its product with v, without the factor ½ that a causal kernel may save. Source:
    Chowdhery et al. (2022), appendix B.
    """
    D, L = config.n_embd, config.n_layer
    return 6 * (12 * L * D * D + config.vocab_size * D) + 12 * L * D * T


def matmul_rate(device: torch.device, precision: str, seconds: float = 0.2) -> float:
    """FLOPs a second of a large matrix product, measured here: what MFU is a share of."""
    n = 8192 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device, dtype=dtype_of(precision, device))
    best, until = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < until:
        begun = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return 2 * n**3 / best


def split(
    text: UInt8[Tensor, " N"], held_out: float = 0.1
) -> tuple[UInt8[Tensor, " train"], UInt8[Tensor, " validation"]]:
    """The text to train on, and its end, to judge by."""
    first = int(len(text) * (1 - held_out))
    return text[:first], text[first:]


def micro_batches(
    text: UInt8[Tensor, " N"], settings: Settings, T: int, step: int, rank: int, world_size: int
) -> Iterator[tuple[Int[Tensor, "b T"], Int[Tensor, "b T"]]]:
    """This rank's share of a step's sequences, in pieces of at most micro_batch."""
    x, y = get_batch(text, settings.batch, T, settings.seed, step, rank, world_size)
    yield from zip(x.split(settings.micro_batch), y.split(settings.micro_batch), strict=True)


def without_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Gradients of a backward in here stay on their rank: only the last micro-batch's are reduced."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def distribute(model: GPT2, strategy: str, device: torch.device) -> nn.Module:
    """The model on its device: one process's own, copied to all (ddp), or sharded over all (fsdp)."""
    model.to(device)
    if strategy == "fsdp":
        for block in model.transformer.h:
            fully_shard(block)
        fully_shard(model)
        return model
    if dist.get_world_size() == 1:
        return model
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """What matrix products run in. Raises ValueError for an unknown precision."""
    if precision == "auto":
        fit = device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bfloat16" if fit else "float32"
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"the precision is auto, float32 or bfloat16; came {precision!r}")
    return getattr(torch, precision)


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Where the forward runs in bfloat16, and where not (chapter 13)."""
    dtype = dtype_of(precision, device)
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype is torch.bfloat16)


def training_step(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[tuple[Int[Tensor, "_ T"], Int[Tensor, "_ T"]]],
    precision: torch.autocast,
    clip: float,
    world_size: int,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """One update from all micro-batches: this rank's mean loss, and the norm of the whole gradient.

    The gradient is that of the mean over every sequence of every rank, however they are split.
    """
    sequences = sum(len(x) for x, _ in batches)
    total = torch.zeros((), device=batches[0][0].device)
    for i, (x, y) in enumerate(batches):
        last = i == len(batches) - 1
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        with nullcontext() if last else without_sync(model):
            with precision:
                loss = next_token_loss(model(x), y) * (len(x) / sequences)
            loss.backward()
        total += loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm.full_tensor() if hasattr(norm, "full_tensor") else norm


@torch.no_grad()
def estimate_loss(
    model: nn.Module,
    text: UInt8[Tensor, " N"],
    settings: Settings,
    T: int,
    rank: int,
    world_size: int,
    device: torch.device,
) -> Float[Tensor, ""]:
    """Mean loss of this rank's share of the same few batches each time, in eval mode."""
    model.eval()
    losses = []
    for i in range(settings.eval_batches):
        for x, y in micro_batches(text, replace(settings, seed=-1), T, i, rank, world_size):
            with autocast(settings.precision, device):
                losses.append(next_token_loss(model(x.to(device)), y.to(device)))
    model.train()
    return torch.stack(losses).mean()


def over_all_ranks(x: Float[Tensor, ""], world_size: int) -> float:
    """The mean over the ranks."""
    if world_size > 1:
        x = x.detach() / world_size
        dist.all_reduce(x)
    return x.item()


def check(settings: Settings, world_size: int) -> GPT2Config:
    """The model's sizes. Raises ValueError for settings that cannot be run."""
    if settings.model not in CONFIGS:
        raise ValueError(f"no model {settings.model!r}; there are: {', '.join(CONFIGS)}")
    if settings.batch % world_size:
        raise ValueError(f"{settings.batch} sequences cannot be split over {world_size} processes")
    if settings.strategy not in ("ddp", "fsdp"):
        raise ValueError(f"the strategy is ddp or fsdp; came {settings.strategy!r}")
    dtype_of(settings.precision, torch.device("cpu"))
    config = replace(CONFIGS[settings.model], dropout=settings.dropout)
    if config.vocab_size < 256:
        raise ValueError(f"{settings.model} has {config.vocab_size} ids; bytes need 256")
    if not 0 <= settings.context <= config.n_positions:
        raise ValueError(f"context {settings.context}: the model has {config.n_positions}")
    return config


def pretrain(
    settings: Settings, watch: Callable[[Report], None] | None = None, model: GPT2 | None = None
) -> GPT2:
    """Train until settings.steps, from the checkpoint if there is one. Returns the model.

    watch: called on rank 0 with a Report every log_every steps, and after the last. model: train this
    one in place of a new one. A process group must be there; see `main`.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    config = check(settings, world_size) if model is None else model.config
    T = settings.context or config.n_positions
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(settings.seed)
    bare = GPT2(config) if model is None else model
    wrapped = distribute(bare, settings.strategy, device)
    groups = decay_groups(wrapped, settings.weight_decay)
    optimizer = AdamW(groups, lr=settings.lr, betas=(0.9, 0.95))
    path, first = Path(settings.save), 0
    if settings.save and path.exists():
        first = load(path, wrapped, optimizer)
    train_text, validation_text = split(library_text(settings.text_bytes))

    wrapped.train()
    rate, begun, done = None, time.perf_counter(), first
    for step in range(first, settings.steps):
        torch.manual_seed(1_000_003 * settings.seed + 31 * step + rank)  # of dropout
        lr = cosine_schedule(step, settings.steps, settings.warmup, settings.lr, settings.min_lr)
        for group in optimizer.param_groups:
            group["lr"] = lr
        pieces = micro_batches(train_text, settings, T, step, rank, world_size)
        batches = [(x.to(device), y.to(device)) for x, y in pieces]
        precision = autocast(settings.precision, device)
        loss, norm = training_step(
            wrapped, optimizer, batches, precision, settings.clip, world_size
        )

        count = step + 1
        final = count == settings.steps
        if count % settings.log_every == 0 or final:
            mean = over_all_ranks(loss, world_size)
            passed, tokens = time.perf_counter() - begun, (count - done) * settings.batch * T
            validation = None
            if count % settings.eval_every == 0 or final:
                at = (wrapped, validation_text, settings, T, rank, world_size, device)
                validation = over_all_ranks(estimate_loss(*at), world_size)
            if rate is None:
                rate = matmul_rate(device, settings.precision) * world_size
            speed = tokens / passed
            mfu = speed * flops_per_token(config, T) / rate
            if rank == 0:
                report = Report(count, mean, validation, lr, norm.item(), speed, mfu)
                (watch or print)(report)
                if settings.log:
                    with Path(settings.log).open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(report)) + "\n")
            begun, done = time.perf_counter(), count
        if settings.save and (count % settings.save_every == 0 or final):
            save(path, count, wrapped, optimizer)
    return bare


def arguments(given: Sequence[str] | None = None) -> Settings:
    """The command line's settings: one option for each field of Settings."""
    parser = argparse.ArgumentParser(prog="course train", description="Train a GPT-2.")
    for field in fields(Settings):
        option = "--" + field.name.replace("_", "-")
        parser.add_argument(option, type=type(field.default), default=field.default)
    return Settings(**vars(parser.parse_args(given)))


def main(given: Sequence[str] | None = None) -> None:
    """Join the other processes, train, leave. Without torchrun: a world of one."""
    settings = arguments(given)
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**alone, "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        pretrain(settings, lambda report: print(report, flush=True))
    except ValueError as error:
        raise SystemExit(f"course train: {error}") from error
    finally:
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
