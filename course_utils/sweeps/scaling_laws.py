"""Chapter 24's scaling runs: sizes of GPT-2 against bytes of text, at equal computation.

    python -m course_utils.sweeps.scaling_laws

Each run spends a budget of FLOPs on a size: the larger the model, the fewer bytes it sees, and the
schedule ends where its bytes do. Bytes are the tokens, so that a small head does not outweigh the
model. The text is the modules of Python's own library, split by whole files.
"""

import time
from collections.abc import Iterator

import torch
from jaxtyping import UInt8
from torch import Tensor

from course_utils.reference.corpus import (
    bytes_of,
    get_batch,
    library_files,
    read_documents,
    split_documents,
)
from course_utils.reference.gpt2 import GPT2, GPT2Config
from course_utils.reference.optimizers import decay_groups
from course_utils.reference.pretraining import autocast, cosine_schedule, flops_per_token
from course_utils.reference.training_steps import estimate_loss, training_step
from course_utils.sweeps import digest, save

BATCH, CONTEXT = 8, 128
SIZES = {
    "24×2": GPT2Config(256, CONTEXT, 24, 2, 2, 0.0),
    "32×2": GPT2Config(256, CONTEXT, 32, 2, 2, 0.0),
    "48×3": GPT2Config(256, CONTEXT, 48, 3, 3, 0.0),
    "64×4": GPT2Config(256, CONTEXT, 64, 4, 4, 0.0),
    "96×4": GPT2Config(256, CONTEXT, 96, 4, 4, 0.0),
    "128×5": GPT2Config(256, CONTEXT, 128, 5, 4, 0.0),
}
"""By features × blocks."""

BUDGETS = {
    8e11: ("24×2", "32×2", "48×3", "64×4", "96×4"),
    2.4e12: ("24×2", "32×2", "48×3", "64×4", "96×4"),
    7.2e12: ("32×2", "48×3", "64×4", "96×4", "128×5"),
}
"""FLOPs of a run, and the sizes that they are spent on."""

FACTORS = (0.5, 2.0)
"""The smallest budget is run with these multiples of the learning rate, too."""

CURVE = 12
"""Validations of a run, evenly spaced; the last is after its last step."""


def learning_rate(config: GPT2Config) -> float:
    """The peak learning rate of a size: inversely proportional to its width."""
    return 0.5 / config.n_embd


def steps_of(config: GPT2Config, budget: float) -> int:
    """How many steps of BATCH · CONTEXT bytes the budget pays for."""
    return round(budget / flops_per_token(config, CONTEXT) / (BATCH * CONTEXT))


def texts() -> tuple[UInt8[Tensor, " train"], UInt8[Tensor, " validation"]]:
    """The bytes to train on, and those of the files that are held out."""
    train, held_out = split_documents(read_documents(library_files()))
    return bytes_of(train), bytes_of(held_out)


def run(
    size: str,
    steps: int,
    lr: float,
    train: UInt8[Tensor, " train"],
    held_out: UInt8[Tensor, " validation"],
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """Train; yields the steps done and the validation loss in nats a byte, CURVE times."""
    torch.manual_seed(seed)
    model = GPT2(SIZES[size])
    optimizer = torch.optim.AdamW(decay_groups(model, 0.1), lr=lr, betas=(0.9, 0.99), fused=True)
    precision = autocast("float32", torch.device("cpu"))
    judged = [get_batch(held_out, 32, CONTEXT, -1, i, 0, 1) for i in range(16)]
    due = {round(steps * (i + 1) / CURVE) for i in range(CURVE)}
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = cosine_schedule(step, steps, max(1, steps // 10), lr, lr / 10)
        batch = get_batch(train, BATCH, CONTEXT, seed, step, 0, 1)
        training_step(model, optimizer, [batch], precision, clip=1.0)
        if step + 1 in due:
            yield step + 1, round(estimate_loss(model, judged, precision).item(), 4)


def main() -> None:
    """Make the table anew."""
    torch.set_num_threads(1)
    train, held_out = texts()
    wanted = [(budget, size, 1.0) for budget, sizes in BUDGETS.items() for size in sizes]
    smallest = min(BUDGETS)
    wanted += [(smallest, size, factor) for size in BUDGETS[smallest] for factor in FACTORS]
    begun, runs = time.process_time(), []
    for budget, size, factor in wanted:
        config = SIZES[size]
        steps, lr = steps_of(config, budget), factor * learning_rate(config)
        curve = list(run(size, steps, lr, train, held_out))
        runs.append(
            {
                "budget": budget,
                "size": size,
                "parameters": sum(p.numel() for p in GPT2(config).parameters()),
                "steps": steps,
                "bytes": steps * BATCH * CONTEXT,
                "lr": lr,
                "factor": factor,
                "curve": curve,
                "loss": curve[-1][1],
            }
        )
        seconds = time.process_time() - begun
        print(f"{seconds:5.0f} s  {budget:.1e} FLOPs  {size:6} ×{factor} {curve[-1]}", flush=True)
    found = {"train": digest(train), "held_out": digest(held_out), "text_bytes": len(train)}
    save("scaling_laws", time.process_time() - begun, {**found, "runs": runs})


if __name__ == "__main__":
    main()
