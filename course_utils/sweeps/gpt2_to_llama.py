"""Chapter 23's run, of 320 steps, for each step from GPT-2 to a Llama, with several seeds.

    python -m course_utils.sweeps.gpt2_to_llama

A seed decides the first weights and the batches. The run of seed 0 of "GPT-2" is the chapter's own.
"""

import time

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from course_utils.reference.gpt2 import next_token_loss
from course_utils.reference.llama import STEPS, LlamaConfig
from course_utils.reference.optimizers import decay_groups
from course_utils.reference.pretraining import cosine_schedule, get_batch, library_text, split
from course_utils.sweeps import digest, save

SEEDS = (0, 1, 2, 3)
N_STEPS, BATCH, CONTEXT, LR = 320, 16, 64, 5e-3
CONFIG = LlamaConfig(256, CONTEXT, 96, 2, 4, n_kv_head=2, n_inner=256, rope_base=10_000.0)
EVERY = 80
"""Steps from one validation to the next."""


@torch.no_grad()
def validate(model: nn.Module, held_out: UInt8[Tensor, " N"]) -> float:
    """Mean loss over the same eight batches of held-out text each time."""
    given = (get_batch(held_out, 32, CONTEXT, -1, i, 0, 1) for i in range(8))
    return torch.stack([next_token_loss(model(x), y) for x, y in given]).mean().item()


def run(name: str, seed: int, last: int = N_STEPS) -> tuple[int, list[float]]:
    """The parameters of a step's model, and its validation loss every EVERY steps up to `last`."""
    text, held_out = split(library_text())
    torch.manual_seed(seed)
    kind, parts = STEPS[name]
    model = kind(CONFIG, parts)
    groups = decay_groups(model, 0.1)
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99))
    losses = []
    for step in range(last):
        for group in optimizer.param_groups:
            group["lr"] = cosine_schedule(step, N_STEPS, 50, LR, LR / 10)
        x, y = get_batch(text, BATCH, CONTEXT, seed, step, 0, 1)
        next_token_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVERY == 0:
            losses.append(round(validate(model, held_out), 4))
    return sum(p.numel() for p in model.parameters()), losses


def main() -> None:
    """Make the table anew."""
    torch.set_num_threads(1)
    begun, runs = time.process_time(), []
    for seed in SEEDS:
        for name in STEPS:
            parameters, losses = run(name, seed)
            runs.append({"step": name, "seed": seed, "parameters": parameters, "losses": losses})
            print(
                f"{time.process_time() - begun:4.0f} s  seed {seed}  {name:10} {losses}", flush=True
            )
    found = {"text": digest(library_text()), "every": EVERY, "runs": runs}
    save("gpt2_to_llama", time.process_time() - begun, found)


if __name__ == "__main__":
    main()
