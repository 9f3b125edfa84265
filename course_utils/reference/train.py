"""Train a small byte-level transformer on the sources of Python's own library, on one process or many.

    python -m course_utils.reference.train
    torchrun --standalone --nproc-per-node=2 -m course_utils.reference.train --strategy ddp
    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29400 \\
        -m course_utils.reference.train --strategy fsdp --save /shared/run.pt

GPUs and NCCL where there are GPUs, else CPU and gloo. With --save it resumes from that file if it is
there, so a restart (`torchrun --max-restarts=3`, for gloo with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1)
goes on where it stopped. What a step learns from depends on --seed, --batch and the step's number only:
the same run on one process or on eight, resumed or not. Chapter 17 explains ddp, chapter 18 fsdp.
"""

import argparse
import gc
import os
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer


class Block(nn.Module):
    """Causal self-attention and an MLP, each after a LayerNorm and added to what came in."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """From windows of at most `context` bytes and the bytes that follow each, the mean loss in nats."""

    def __init__(self, layers: int, width: int, heads: int, context: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, ids: Int[Tensor, "B T"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def library_text(size: int = 2**20) -> UInt8[Tensor, "N"]:
    """The first `size` bytes of the modules of Python's own library, in the order of their names."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(
        bytearray(b"".join(f.read_bytes() for f in files)[:size]), dtype=torch.uint8
    )


def get_batch(
    text: UInt8[Tensor, "N"],
    batch: int,
    context: int,
    seed: int,
    step: int,
    rank: int,
    world_size: int,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """This rank's rows of the batch that all ranks train on in this step: inputs and next bytes.

    Every rank draws all `batch` positions and keeps each world_size-th, from its rank on. The numbers
    depend on seed and step alone, so the step is all that a checkpoint must know of the data.
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(len(text) - context, (batch,), generator=generator)[rank::world_size]
    windows = text[starts[:, None] + torch.arange(context + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def distribute(model: Transformer, strategy: str, device: torch.device) -> nn.Module:
    """The model as the strategy has it: on one process, copied to all, or sharded over all."""
    model.to(device)
    if strategy == "ddp":
        return DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None
        )
    if strategy == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(path: Path, step: int, model: nn.Module, optimizer: Optimizer) -> None:
    """Write `path`, whole or not at all. Every rank must call it: with fsdp, gathering is collective.

    The names and shapes are those of the bare model whatever the strategy, so each can load it. The file
    holds the whole model: past some size, write a distributed checkpoint instead (chapter 18).
    """
    weights, state = get_state_dict(model, optimizer, options=WHOLE)
    if int(os.environ["RANK"]) == 0:
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


def train(args: argparse.Namespace) -> list[tuple[int, float]]:
    """The run that `args` describe (see `arguments`); steps done and loss, as logged, on every rank."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if args.strategy == "none" and world_size > 1:
        raise SystemExit(
            f"{world_size} processes with --strategy none would train the same model apart"
        )
    if args.batch % world_size:
        raise SystemExit(f"--batch {args.batch} cannot be split evenly over {world_size} processes")
    torch.manual_seed(args.seed)  # the same first weights on every rank
    model = distribute(
        Transformer(args.layers, args.width, args.heads, args.context), args.strategy, device
    )
    optimizer = AdamW(model.parameters(), lr=args.lr)
    text, first, losses = library_text(), 0, []
    if args.save and args.save.exists():
        first = load(args.save, model, optimizer)
    print(
        f"rank {rank} of {world_size}, pid {os.getpid()}: {device}, from step {first}", flush=True
    )

    begun, done = time.perf_counter(), first
    for step in range(first, args.steps):
        x, y = get_batch(text, args.batch, args.context, args.seed, step, rank, world_size)
        loss = model(x.to(device), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        count = step + 1
        if count % args.log_every == 0 or count == args.steps:
            mean = loss.detach() / world_size
            if world_size > 1:
                dist.all_reduce(mean)  # every rank's loss is of its own rows
            losses.append((count, mean.item()))
            now = time.perf_counter()
            speed = (count - done) * args.batch * args.context / (now - begun)
            begun, done = now, count
            if rank == 0:
                print(
                    f"step {count:4}  loss {losses[-1][1]:.4f}  {speed:9,.0f} tokens/s", flush=True
                )
        if args.save and (count % args.save_every == 0 or count == args.steps):
            save(args.save, count, model, optimizer)
    return losses


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's arguments, or those given."""
    parser = argparse.ArgumentParser(description="train a small byte-level transformer")
    parser.add_argument("--strategy", choices=("none", "ddp", "fsdp"), default="ddp")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--batch", type=int, default=16, help="windows a step, all processes together"
    )
    parser.add_argument("--context", type=int, default=64, help="bytes a window")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--save", type=Path, help="checkpoint file; resumed from if it is there")
    parser.add_argument("--save-every", type=int, default=10)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> list[tuple[int, float]]:
    """Join the other processes, train, leave. Without torchrun: a world of one."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**alone, "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        return train(arguments(given))
    finally:
        gc.collect()  # a DDP waiting in a cycle would end the group later, at exit, and may hang there
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
