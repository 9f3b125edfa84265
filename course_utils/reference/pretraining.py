"""Chapters 17, 18 and 24: a GPT-2 trained for real, on one process or on many.

    course train --steps 2000 --save run.pt
    course train --data novels/ --vocab 4096 --model course --save run.pt --export model/
    torchrun --standalone --nproc-per-node=2 -m course_utils.reference.pretraining --strategy ddp
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
        -m course_utils.reference.pretraining --model gpt2 --strategy fsdp --save /shared/run.pt

GPUs and NCCL where there are GPUs, else CPU and gloo. With --save it resumes from that file if it is
there, so a restart (`torchrun --max-restarts=3`, for gloo with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1)
goes on where it stopped. What a step learns from depends on the settings and the step's number only,
on one process or on eight; so does what it computes (dropout too), on the same devices: a run that
was killed and started again ends bit for bit where one that was left alone ends.
"""

import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from .accounting import training_memory
from .checkpoints import (
    WHOLE,
    CannotSave,
    Checkpoint,
    Progress,
    about,
    best_of,
    fits,
    read,
    resume,
    save,
)
from .corpus import (
    Batches,
    Corpus,
    get_batch,
    library_files,
    library_text,
    micro_batches,
    read_documents,
    split,
    text_files,
    tokenize,
    train_tokenizer,
)
from .exporting import export
from .gpt2 import GPT2, GPT2Config
from .optimizers import decay_groups
from .pretraining_settings import (
    Settings,
    arguments,
    check,
    differences,
    dtype_of,
    final_lr,
    places,
    reads_bytes,
)
from .tokenization import Tokenizer
from .training_steps import estimate_loss, training_step

# ---------------------------------------------------------------------------------- data


@dataclass(frozen=True)
class Data:
    """What a run trains on and is judged by.

    tokenizer: None where tokens are bytes. bytes_per_token: of the held-out text. digest:
    of all files; files: the digest of each, to "train" on and "held_out". says: what the
    header tells of it.
    """

    train: Integer[Tensor, " N"]
    held_out: Integer[Tensor, " M"]
    tokenizer: Tokenizer | None
    bytes_per_token: float
    digest: str
    says: str
    files: dict[str, dict[str, str]]

    def suffices(self, context: int) -> None:
        """Raises ValueError for less text than a window, in either part."""
        for name, text in (("train on", self.train), ("judge by", self.held_out)):
            if len(text) <= context:
                raise ValueError(f"{len(text)} tokens to {name}: {context + 1} is the least")


def load_data(settings: Settings, kept: Checkpoint | None = None) -> Data:
    """The text that the settings name, as tokens: with the checkpoint's tokenizer, if there is one.

    Raises ValueError for paths without text and for a folder without a tokenizer.
    """
    s = settings
    if reads_bytes(s):
        text = library_text(s.text_bytes)
        says = f"{len(text):,} bytes of Python's own library, their last tenth held out"
        return Data(*split(text), None, 1.0, "", says, {})
    try:
        files = text_files(map(Path, s.data)) if s.data else library_files()
        documents = read_documents(files)
        if not documents:
            raise ValueError(f"there is no text in {', '.join(s.data)}")
        tokenizer = kept.tokenizer if kept else None
        if s.tokenizer:
            tokenizer = Tokenizer.load(s.tokenizer)
        corpus = tokenize(documents, tokenizer or train_tokenizer(documents, s.vocab or 257))
    except OSError as error:
        raise ValueError(str(error)) from error
    per_token = corpus.held_out_bytes / max(1, len(corpus.held_out))
    return Data(
        corpus.train,
        corpus.held_out,
        corpus.tokenizer,
        per_token,
        corpus.digest(),
        described(corpus, s.data),
        {"train": corpus.train_files, "held_out": corpus.held_out_files},
    )


def described(corpus: Corpus, paths: Sequence[str]) -> str:
    """What there is to train on, and what was held out, in a line."""
    n, held = len(corpus.train_files), len(corpus.held_out_files)
    size = f"{corpus.train_bytes / 1e6:.2f} MB, {len(corpus.train):,} tokens"
    share = f"{corpus.held_out_bytes / 1e6:.2f} MB"
    out = f"{held} files, {share}" if corpus.whole_files else f"the last tenth of each, {share}"
    name = ", ".join(paths) or "Python's own library"
    return f"{name}: {n} files, {size}; held out: {out}"


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


class Accumulating(nn.Module):
    """A model for the micro-batches of one step: gradients travel to other ranks with the last one only.

    Says so to DDP and FSDP at each forward. A model on one process has nobody to send them to.
    """

    def __init__(self, model: nn.Module, micro_batches: int) -> None:
        super().__init__()
        self.model, self.left = model, micro_batches

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        self.left -= 1
        within: AbstractContextManager[None] = nullcontext()
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(self.left == 0)
        elif isinstance(self.model, DistributedDataParallel) and self.left:
            within = self.model.no_sync()
        with within:
            logits: Tensor = self.model(ids)
        return logits


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
    measured; bits_per_byte is the same in bits for each byte of the held-out text, which
    compares tokenizers. norm: of the gradient before clipping. mfu: the share of what the
    device's own matrix product reaches. seconds_left: to the last step, at this pace.
    """

    step: int
    loss: float
    validation: float | None
    bits_per_byte: float | None
    lr: float
    norm: float
    tokens_per_second: float
    mfu: float
    seconds_left: float

    def __str__(self) -> str:
        parts = [f"step {self.step:5}", f"loss {self.loss:.4f}"]
        if self.validation is not None:
            parts.append(f"validation {self.validation:.4f} ({self.bits_per_byte:.3f} bits a byte)")
        parts += [f"lr {self.lr:.2e}", f"norm {self.norm:.2f}"]
        parts += [f"{self.tokens_per_second:,.0f} tokens/s", f"MFU {self.mfu:.0%}"]
        return "  ".join([*parts, f"{duration(self.seconds_left)} left"])


def duration(seconds: float) -> str:
    """Seconds as a person says them: "45 s", "12 min", "3 h 05 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


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


# ---------------------------------------------------------------------------------- the run


class PretrainingRun:
    """Model, optimizer and data of a run, on this rank, as they stand after some step."""

    def __init__(self, settings: Settings) -> None:
        """A new run, or that of the checkpoint. Raises ValueError for one that cannot be."""
        s = self.settings = settings
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.path = Path(s.save)
        check(s, self.world_size)
        places(s)
        kept = read(self.path) if s.save and self.path.exists() else None
        self.data = load_data(s, kept)
        tokenizer = self.data.tokenizer
        self.config = check(s, self.world_size, len(tokenizer) if tokenizer else None)
        self.context = s.context or self.config.n_positions
        self.data.suffices(self.context)
        if kept:
            fits(kept, self.path, self.config, tokenizer)
        self.device = this_device()
        torch.manual_seed(s.seed)  # the same first weights on every rank
        self.bare = GPT2(self.config).to(self.device)
        self.model = distribute(self.bare, s.strategy)
        groups = decay_groups(self.model, s.weight_decay)
        self.optimizer = AdamW(groups, lr=s.lr, betas=(0.9, s.beta2), fused=True)
        self.progress = Progress(corpus=self.data.digest)
        self.before: tuple[Settings, str] | None = None
        if kept:
            self._resume(kept)
        self.precision = autocast(s.precision, self.device)
        if s.compile:
            self.model.compile()
        self.rate: float | None = None

    def _resume(self, kept: Checkpoint) -> None:
        """Go on from a checkpoint: its weights, moments and step, with this run's settings."""
        s = self.settings
        resume(kept, self.path, self.model, self.optimizer)
        decays = (s.weight_decay, 0.0)  # as `decay_groups` has them
        for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
            group |= {"betas": (0.9, s.beta2), "weight_decay": decay}
        self.before = kept.settings, kept.progress.corpus
        self.progress = replace(kept.progress, corpus=self.data.digest)

    def header(self) -> list[str]:
        """What is trained, on what, where, and from which step on."""
        s, config, data = self.settings, self.config, self.data
        n = sum(p.numel() for p in self.bare.parameters())
        shards = self.world_size if s.strategy == "fsdp" else 1
        held = sum(training_memory(n).values()) / shards
        precision = str(dtype_of(s.precision, self.device)).removeprefix("torch.")
        tokens = s.batch * self.context
        epochs = s.steps * tokens / len(data.train)
        size = f"{config.n_layer} layers, {config.n_embd} wide, {config.n_head} heads"
        parallel = f" ({s.strategy})" if self.world_size > 1 else ""
        return [
            f"model   {s.model}: {size}, {config.vocab_size:,} tokens; {n:,} parameters",
            f"data    {data.says}",
            f"steps   {s.steps:,} of {tokens:,} tokens, {epochs:.1f} times through the data; {precision}",
            f"device  {self.world_size} × {name_of(self.device)}{parallel}; "
            f"{held / 1e6:,.1f} MB in each process for weights, gradients and AdamW's state together, "
            "and the activations",
            *self.resumed(),
        ]

    def say_header(self) -> None:
        """Print the header, once, and where each rank is."""
        if self.rank == 0:
            say("\n".join(self.header()))
        rank = f"rank {self.rank} of {self.world_size}, pid {os.getpid()}"
        say(f"{rank}: {self.device}, from step {self.progress.step}")

    def resumed(self) -> list[str]:
        """Where the run goes on, and what is not as it was."""
        if self.before is None:
            return []
        settings, corpus = self.before
        apart = differences(settings, self.settings)
        apart += ["the data's files"] if corpus != self.data.digest else []
        lines = [f"resumed at step {self.progress.step} of {self.path}"]
        return lines + [f"  other than before: {one}" for one in apart]

    def batches(self, text: Integer[Tensor, " N"], seed: int, step: int) -> Batches:
        """This rank's part of a batch, in micro-batches, on its device."""
        s = self.settings
        x, y = get_batch(text, s.batch, self.context, seed, step, self.rank, self.world_size)
        return micro_batches(x.to(self.device), y.to(self.device), s.micro_batch)

    def step(self, step: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""], float]:
        """One update: this rank's loss, the gradient's norm, the learning rate."""
        s = self.settings
        torch.manual_seed(1_000_003 * s.seed + 31 * step + self.rank)  # of dropout
        lr = cosine_schedule(step, s.steps, s.warmup, s.lr, final_lr(s))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        mine = self.batches(self.data.train, s.seed, step)
        loss, norm = training_step(
            Accumulating(self.model, len(mine)), self.optimizer, mine, self.precision, s.clip
        )
        return loss, norm.full_tensor() if isinstance(norm, DTensor) else norm, lr

    def weights_norm(self) -> float:
        """The norm of all weights, which is not finite if one of them is not."""
        norm = nn.utils.get_total_norm(list(self.model.parameters()))
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()

    def validate(self) -> float:
        """The mean loss on the same held-out batches each time, over all ranks."""
        held_out = self.data.held_out
        few = [b for i in range(self.settings.eval_batches) for b in self.batches(held_out, -1, i)]
        return over_all_ranks(estimate_loss(self.model, few, self.precision), self.world_size)

    def report(
        self, step: int, loss: float, norm: float, lr: float, speed: float, evaluated: bool
    ) -> Report:
        """What is known after a step. Raises FloatingPointError for a loss that is no longer finite."""
        validation = bits = None
        if evaluated:
            validation = self.validate()
            finite(step, {"held-out loss": validation})
            bits = validation / self.data.bytes_per_token / math.log(2)
        if self.rate is None:
            self.rate = matmul_rate(self.device, self.settings.precision) * self.world_size
        mfu = speed * flops_per_token(self.config, self.context) / self.rate
        left = (self.settings.steps - step) * self.settings.batch * self.context / speed
        return Report(step, loss, validation, bits, lr, norm, speed, mfu, left)

    def save(self, path: Path, optimizer: Optimizer | None) -> None:
        """Write a checkpoint, of weights only if there is no optimizer."""
        what = about(self.settings, self.config, self.data.tokenizer)
        save(path, self.progress, self.model, optimizer, what)

    def keep(self, report: Report) -> None:
        """Write a report to the log, and the weights if none had a lower held-out loss."""
        if self.settings.log and self.rank == 0:
            with Path(self.settings.log).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(report)) + "\n")
        best, found = self.progress.best, report.validation
        if found is not None and (best is None or found < best):
            self.progress.best, self.progress.best_step = found, report.step
            if self.settings.save:
                self.save(best_of(self.path), None)

    def export(self) -> None:
        """Write the folder that transformers and the course read: the best weights, or else the last."""
        s = self.settings
        if s.save and best_of(self.path).exists():
            kept = read(best_of(self.path))
            weights, progress = kept.state["model"], kept.progress
        else:
            weights, progress = get_model_state_dict(self.model, options=WHOLE), self.progress
        if self.rank == 0:
            folder, data = Path(s.export), self.data
            export(folder, weights, self.config, data.tokenizer, s, progress, data.files)
            say(f"exported step {progress.step} to {s.export}")


def this_device() -> torch.device:
    """This rank's GPU where the group has GPUs, else the CPU."""
    if dist.get_backend() != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def name_of(device: torch.device) -> str:
    """The GPU's name, or the number of threads on the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    n = torch.get_num_threads()
    return f"CPU, {n} thread" + "s" * (n > 1)


def finite(step: int, found: dict[str, float]) -> None:
    """Raises FloatingPointError unless all of these numbers are finite."""
    if not math.isfinite(sum(found.values())):
        said = ", ".join(f"{name} {value}" for name, value in found.items())
        raise FloatingPointError(
            f"step {step}: {said}; stopped, and nothing more was saved. A lower --lr or a longer "
            "--warmup may help"
        )


def pretrain(settings: Settings, watch: Callable[[Report], None] = tell) -> GPT2:
    """Train until settings.steps, from the checkpoint if there is one. Returns the model.

    watch: called on every rank with each Report, every log_every steps and after an
    evaluation. A process group must be there; see `main`. Raises ValueError for
    settings that cannot be run, before the first step; FloatingPointError when loss,
    gradient or weights are no longer finite, before these are saved; CannotSave where the
    disk is full.
    """
    s, run = settings, PretrainingRun(settings)
    first, before = run.progress.step, run.progress.seconds
    run.say_header()
    run.model.train()
    started = begun = time.perf_counter()
    done = first
    for step in range(first, s.steps):
        loss, norm, lr = run.step(step)
        count = step + 1
        final = count == s.steps
        evaluated = final or count % s.eval_every == 0
        reported = evaluated or count % s.log_every == 0
        saved = bool(s.save) and (final or count % s.save_every == 0)
        if not (reported or saved):
            continue
        mean = over_all_ranks(loss, run.world_size)
        found = {"loss": mean, "gradient's norm": norm.item()}
        if saved or evaluated:  # these are of before the update; what is kept is of after it
            found["weights' norm"] = run.weights_norm()
        finite(count, found)
        now = time.perf_counter()
        run.progress.step, run.progress.seconds = count, before + now - started
        if reported:
            speed = (count - done) * s.batch * run.context / (now - begun)
            report = run.report(count, mean, norm.item(), lr, speed, evaluated)
            watch(report)
            run.keep(report)
            begun, done = time.perf_counter(), count
        if saved:
            run.save(run.path, run.optimizer)
    if s.export:
        run.export()
    return run.bare


def main(given: Sequence[str] | None = None) -> None:
    """Join the other processes, train, leave. Without torchrun: a world of one."""
    try:
        settings = arguments(given)
    except ValueError as error:
        raise SystemExit(f"course train: {error}") from error
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**alone, "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        pretrain(settings)
    except (ValueError, FloatingPointError, CannotSave, OSError) as error:
        raise SystemExit(f"course train: {error}") from error
    except KeyboardInterrupt:
        goes_on = f"; the same command goes on from {settings.save}" if settings.save else ""
        raise SystemExit(f"course train: interrupted{goes_on}") from None
    finally:
        gc.collect()  # a DDP waiting in a cycle would end the group later, at exit, and may hang there
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
