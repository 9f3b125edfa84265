"""Chapters 17, 18 and 24: a GPT-2 trained for real, on one process or on many.

    course train --steps 2000 --save run.pt
    torchrun --standalone --nproc-per-node=2 -m course_utils.reference.pretraining --strategy ddp
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
        -m course_utils.reference.pretraining --model gpt2 --strategy fsdp --save /shared/run.pt

GPUs and NCCL where there are GPUs, else CPU and gloo. With --save it resumes from that file if it is
there, so a restart (`torchrun --max-restarts=3`, for gloo with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1)
goes on where it stopped. What a step learns from depends on the settings and the step's number only,
on one process or on eight; so does what it computes (dropout too), on the same devices: a run that
was killed and started again ends bit for bit where one that was left alone ends.
"""

import argparse
import errno
import gc
import json
import math
import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from .gpt2 import CONFIGS, GPT2, GPT2Config, next_token_loss
from .optimizers import decay_groups

# ---------------------------------------------------------------------------------- settings

MODELS = tuple(name for name, config in CONFIGS.items() if config.vocab_size >= 256)
"""Those of gpt2.CONFIGS that have an id for every byte."""


def setting(default: Any, meaning: str) -> Any:
    """A field of Settings, and what `--help` says of it."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Settings:
    """A run. The defaults train a small model of bytes for some minutes on a laptop."""

    model: str = setting("bytes", f"{', '.join(MODELS)}; the ids are bytes, whichever it is")
    strategy: str = setting("ddp", "of several processes: ddp or fsdp; none: there is only one")
    steps: int = setting(2000, "updates in all, those before a restart included")
    batch: int = setting(32, "sequences a step, all processes and micro-batches together")
    micro_batch: int = setting(32, "sequences that a process takes through the model at once")
    context: int = setting(0, "positions of a sequence; 0: as many as the model has")
    lr: float = setting(3e-3, "learning rate at the end of the warm-up")
    min_lr: float | None = setting(None, "learning rate at the last step; if not given, lr / 10")
    warmup: int = setting(100, "steps in which the learning rate rises to it")
    weight_decay: float = setting(0.1, "weight decay of the matrices")
    clip: float = setting(1.0, "largest norm of the gradient; 0: unbounded")
    dropout: float = setting(0.0, "chance that a feature is dropped")
    precision: str = setting("auto", "float32, bfloat16, or auto: bfloat16 on GPUs that have it")
    seed: int = setting(0, "of the first weights, the batches and dropout")
    text_bytes: int = setting(4 * 2**20, "of Python's own library, a tenth of them held out")
    eval_every: int = setting(100, "steps from one evaluation on held-out text to the next")
    eval_batches: int = setting(8, "batches in an evaluation")
    log_every: int = setting(10, "steps from one report to the next")
    save: str = setting("", "checkpoint file; resumed from if it is there")
    save_every: int = setting(100, "steps from one checkpoint to the next")
    log: str = setting("", "file that gets one line of JSON for each report")


COUNTS = ("steps", "batch", "micro_batch", "eval_every", "eval_batches", "log_every", "save_every")


def check(settings: Settings, world_size: int) -> GPT2Config:
    """The model's sizes. Raises ValueError for settings that cannot be run."""
    s = settings
    _refuse(s.model not in MODELS, f"no model {s.model!r}; there are: {', '.join(MODELS)}")
    config = replace(CONFIGS[s.model], dropout=s.dropout)
    T, n, low = s.context or config.n_positions, world_size, final_lr(s)
    for name in COUNTS:
        _refuse(getattr(s, name) < 1, f"{option(name)} is {getattr(s, name)}: 1 is the least")
    for name in ("warmup", "weight_decay", "clip"):
        _refuse(not getattr(s, name) >= 0, f"{option(name)} is {getattr(s, name)}: 0 is the least")
    known = s.strategy in ("none", "ddp", "fsdp")
    _refuse(not known, f"the strategy is none, ddp or fsdp; came {s.strategy!r}")
    apart = s.strategy == "none" and n > 1
    _refuse(apart, f"{n} processes with --strategy none would train the same model apart")
    _refuse(s.batch % n != 0, f"{s.batch} sequences cannot be split over {n} processes")
    C = config.n_positions
    _refuse(not 0 <= s.context <= C, f"context {s.context}: the model has {C}")
    _refuse(not 0 <= s.dropout < 1, f"--dropout is {s.dropout}: from 0 to less than 1")
    falls = 0 <= low <= s.lr and 0 < s.lr < math.inf
    _refuse(not falls, f"--lr is {s.lr} and --min-lr {low}: the rate falls from one to the other")
    held_out = s.text_bytes - int(s.text_bytes * (1 - HELD_OUT))
    _refuse(
        held_out <= T, f"--text-bytes {s.text_bytes} holds out {held_out}: {T + 1} is the least"
    )
    dtype_of(s.precision, torch.device("cpu"))
    return config


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise ValueError(why)


def writable(path: Path) -> None:
    """Raises ValueError where no file can be written at `path`: better now than after the run."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error


def option(name: str) -> str:
    """What the command line calls a field of Settings."""
    return "--" + name.replace("_", "-")


def arguments(given: Sequence[str] | None = None) -> Settings:
    """The command line's settings: one option for each field of Settings."""
    parser = argparse.ArgumentParser(
        prog="course train", description="Train a GPT-2 on the sources of Python's own library."
    )
    for one in fields(Settings):
        kind = float if one.default is None else type(one.default)
        default = "" if one.default in (None, "") else f" (default: {one.default})"
        meaning = one.metadata["meaning"] + default
        parser.add_argument(
            option(one.name), type=kind, default=one.default, metavar=kind.__name__, help=meaning
        )
    return Settings(**vars(parser.parse_args(given)))


# ---------------------------------------------------------------------------------- data

HELD_OUT = 0.1
"""The share of the text that is never trained on."""


def library_text(size: int = 2**20) -> UInt8[Tensor, " N"]:
    """The first `size` bytes of the modules of Python's own library, in the order of their names."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(
        bytearray(b"".join(f.read_bytes() for f in files)[:size]), dtype=torch.uint8
    )


def split(
    text: UInt8[Tensor, " N"], held_out: float = HELD_OUT
) -> tuple[UInt8[Tensor, " train"], UInt8[Tensor, " validation"]]:
    """The text to train on, and its end, to judge by."""
    first = int(len(text) * (1 - held_out))
    return text[:first], text[first:]


def get_batch(
    text: UInt8[Tensor, " N"],
    batch: int,
    context: int,
    seed: int,
    step: int,
    rank: int,
    world_size: int,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """This rank's rows of the batch that all ranks train on in this step: inputs and next bytes.

    Every rank draws all `batch` positions and keeps each world_size-th, from its rank
    on. The numbers depend on seed and step alone, so the step is all that a checkpoint
    must know of the data.
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(len(text) - context, (batch,), generator=generator)[rank::world_size]
    windows = text[starts[:, None] + torch.arange(context + 1)].long()
    return windows[:, :-1], windows[:, 1:]


Batches = Sequence[tuple[Int[Tensor, "_ T"], Int[Tensor, "_ T"]]]
"""Inputs and next bytes, some sequences at a time."""


def micro_batches(x: Int[Tensor, "B T"], y: Int[Tensor, "B T"], size: int) -> Batches:
    """A batch in pieces of at most `size` sequences."""
    return list(zip(x.split(size), y.split(size), strict=True))


# ---------------------------------------------------------------------------------- one step


def distribute(model: GPT2, strategy: str, mesh: DeviceMesh | None = None) -> nn.Module:
    """The model, on its device, as the strategy has it: one process's own, copied, or sharded.

    With fsdp each block is a unit, and the root has the rest: the head's weight is the
    embedding's, needed first and last, and the root is whole all the while. mesh: for
    fsdp, if not all ranks.
    """
    device = model.lm_head.weight.device
    if strategy == "fsdp":
        mesh = mesh or init_device_mesh(device.type, (dist.get_world_size(),))
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if strategy != "ddp" or dist.get_world_size() == 1:
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


def cosine_schedule(step: int, steps: int, warmup: int, lr: float, min_lr: float) -> float:
    """The learning rate of a step, counted from 0: a line up to lr, then half a cosine to min_lr.

    Source: Loshchilov and Hutter (2017), equation 5, without restarts.
    """
    if step < warmup:
        return lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return min_lr + (lr - min_lr) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def final_lr(settings: Settings) -> float:
    """The learning rate of the last step: min_lr, or a tenth of the highest."""
    return settings.lr / 10 if settings.min_lr is None else settings.min_lr


def training_step(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Batches,
    precision: torch.autocast,
    clip: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """One update from all micro-batches: this rank's mean loss, and the norm of the whole gradient.

    The gradient is that of the mean over every sequence of every rank, however they are
    split.
    """
    sequences = sum(len(x) for x, _ in batches)
    total = torch.zeros((), device=batches[0][0].device)
    for i, (x, y) in enumerate(batches):
        last = i == len(batches) - 1
        within: AbstractContextManager[None] = nullcontext()
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        elif isinstance(model, DistributedDataParallel) and not last:
            within = model.no_sync()
        with within:
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
    model: nn.Module, batches: Batches, precision: torch.autocast
) -> Float[Tensor, ""]:
    """This rank's mean loss over all sequences of the batches, in eval mode."""
    model.eval()
    with precision:
        losses = [next_token_loss(model(x), y) * len(x) for x, y in batches]
    model.train()
    return torch.stack(losses).sum() / sum(len(x) for x, _ in batches)


def over_all_ranks(x: Float[Tensor, ""], world_size: int) -> float:
    """The mean over the ranks."""
    if world_size > 1:
        x = x.detach() / world_size
        dist.all_reduce(x)
    return x.item()


# ---------------------------------------------------------------------------------- reports


@dataclass(frozen=True)
class Report:
    """What is known after a step: mean losses in nats a token, over all processes.

    loss: of the step's own batch, before its update. validation: None where it was not
    measured. norm: of the gradient before clipping. mfu: the share of what the device's
    own matrix product reaches, None before that was measured.
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


def say(text: str) -> None:
    """Print a line in one piece: other ranks write to the same place."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(report: Report) -> None:
    """Print a report, on rank 0."""
    if dist.get_rank() == 0:
        say(str(report))


def flops_per_token(config: GPT2Config, T: int) -> int:
    """FLOPs of training on one token: forward and twice that backward; 2 a multiplication and addition.

    6 for each parameter of a matrix product (the tied head's once, no embedding) and 12
    L D T for q kᵀ and its product with v, without the factor ½ that a causal kernel may
    save. Source: Chowdhery et al. (2022), appendix B.
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


# ---------------------------------------------------------------------------------- checkpoints

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(path: Path, step: int, model: nn.Module, optimizer: Optimizer) -> None:
    """Write `path`, whole or not at all. Every rank must call it: with fsdp, gathering is collective.

    The names and shapes are those of the bare model whatever the strategy, so each can
    load it. The file holds the whole model: past some size, write a distributed
    checkpoint instead (chapter 18).
    """
    weights, state = get_state_dict(model, optimizer, options=WHOLE)
    if dist.get_rank() == 0:
        partial = path.with_name(path.name + ".partial")
        torch.save({"step": step, "model": weights, "optimizer": state}, partial)
        os.replace(partial, path)  # in one step: no reader ever sees half a file


def load(path: Path, model: nn.Module, optimizer: Optimizer) -> int:
    """Take model and optimizer from the file; the step at which to go on."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=saved["model"],
        optim_state_dict=saved["optimizer"],
        options=WHOLE,
    )
    return saved["step"]


# ---------------------------------------------------------------------------------- the run


def pretrain(settings: Settings, watch: Callable[[Report], None] = tell) -> GPT2:
    """Train until settings.steps, from the checkpoint if there is one. Returns the model.

    watch: called on every rank with each Report, every log_every steps and after an
    evaluation. A process group must be there; see `main`. Raises ValueError for
    settings that cannot be run, before the first step, and FloatingPointError when loss
    or gradient is no longer finite, with nothing saved.
    """
    s, rank, world_size = settings, dist.get_rank(), dist.get_world_size()
    config = check(s, world_size)
    for name in filter(None, (s.save, s.log)):
        writable(Path(name))
    T, path = s.context or config.n_positions, Path(s.save)
    device = torch.device("cpu")
    if dist.get_backend() == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(s.seed)  # the same first weights on every rank
    bare = GPT2(config).to(device)
    model = distribute(bare, s.strategy)
    optimizer = AdamW(decay_groups(model, s.weight_decay), lr=s.lr, betas=(0.9, 0.95))
    first = load(path, model, optimizer) if s.save and path.exists() else 0
    train_text, held_out_text = split(library_text(s.text_bytes))
    precision = autocast(s.precision, device)
    say(f"rank {rank} of {world_size}, pid {os.getpid()}: {device}, from step {first}")

    def batches(text: UInt8[Tensor, " N"], seed: int, step: int) -> Batches:
        x, y = get_batch(text, s.batch, T, seed, step, rank, world_size)
        return micro_batches(x.to(device), y.to(device), s.micro_batch)

    model.train()
    rate, begun, done = None, time.perf_counter(), first
    for step in range(first, s.steps):
        torch.manual_seed(1_000_003 * s.seed + 31 * step + rank)  # of dropout
        lr = cosine_schedule(step, s.steps, s.warmup, s.lr, final_lr(s))
        for group in optimizer.param_groups:
            group["lr"] = lr
        mine = batches(train_text, s.seed, step)
        loss, norm = training_step(model, optimizer, mine, precision, s.clip)

        count = step + 1
        final = count == s.steps
        evaluated = final or count % s.eval_every == 0
        reported = evaluated or count % s.log_every == 0
        saved = bool(s.save) and (final or count % s.save_every == 0)
        if reported or saved:
            mean = over_all_ranks(loss, world_size)
            if not math.isfinite(mean + norm.item()):
                raise FloatingPointError(
                    f"step {count}: loss {mean}, gradient's norm {norm.item()}; stopped, and nothing "
                    "was saved. A lower --lr or a longer --warmup may help"
                )
        if reported:
            speed = (count - done) * s.batch * T / (time.perf_counter() - begun)
            validation = None
            if evaluated:
                few = [b for i in range(s.eval_batches) for b in batches(held_out_text, -1, i)]
                validation = over_all_ranks(estimate_loss(model, few, precision), world_size)
            if rate is None:
                rate = matmul_rate(device, s.precision) * world_size
            mfu = speed * flops_per_token(config, T) / rate
            report = Report(count, mean, validation, lr, norm.item(), speed, mfu)
            watch(report)
            if s.log and rank == 0:
                with Path(s.log).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(report)) + "\n")
            begun, done = time.perf_counter(), count
        if saved:
            save(path, count, model, optimizer)
    return bare


def main(given: Sequence[str] | None = None) -> None:
    """Join the other processes, train, leave. Without torchrun: a world of one."""
    settings = arguments(given)
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**alone, "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        pretrain(settings)
    except (ValueError, FloatingPointError) as error:
        raise SystemExit(f"course train: {error}") from error
    finally:
        gc.collect()  # a DDP waiting in a cycle would end the group later, at exit, and may hang there
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
