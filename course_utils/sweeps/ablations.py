"""Chapter 24's ablations: GPT-2 without one of its parts at a time, three seeds each.

    python -m course_utils.sweeps.ablations

A seed decides the first weights and the batches. Everything else is the same for all runs, the
learning rate too unless a variant's name says otherwise: it suits GPT-2, and need not suit the others.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from course_utils.reference.corpus import get_batch, library_text, split
from course_utils.reference.gpt2 import GPT2, Block, GPT2Config, Parts
from course_utils.reference.optimizers import decay_groups
from course_utils.reference.pretraining import autocast, cosine_schedule
from course_utils.reference.training_steps import estimate_loss, training_step
from course_utils.sweeps import digest, save

SEEDS = (0, 1, 2)
CONFIG = GPT2Config(256, 64, 64, 8, 4, 0.0)
N_STEPS, WARMUP, BATCH, LR = 320, 32, 16, 6e-3
EVERY = 40
"""Steps from one validation to the next."""


@dataclass(frozen=True)
class Variant:
    """What is other than in GPT-2. scaled: the initialisation of what writes to the stream, by 1/√(2L).

    lr: the learning rate, as a multiple of LR.
    """

    positions: bool = True
    pre_norm: bool = True
    warmup: bool = True
    biases: bool = True
    tied: bool = True
    scaled: bool = True
    lr: float = 1.0


VARIANTS = {
    "GPT-2": Variant(),
    "no positions": Variant(positions=False),
    "no warm-up": Variant(warmup=False),
    "post-LN": Variant(pre_norm=False),
    "post-LN, lr / 8": Variant(pre_norm=False, lr=1 / 8),
    "post-LN, lr / 8, no warm-up": Variant(pre_norm=False, warmup=False, lr=1 / 8),
    "no biases": Variant(biases=False),
    "untied head": Variant(tied=False),
    "no 1/√(2L)": Variant(scaled=False),
}


class PostNormBlock(Block):
    """norm(x + attention(x)), then norm(x + mlp(x)), as in Vaswani et al. (2017) and GPT-1."""

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B 1 T T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """x: (B, T, D). Returns the same shape."""
        x = self.ln_1(x + self.attn(x))
        return self.ln_2(x + self.mlp(x))


@torch.no_grad()
def build(variant: Variant) -> GPT2:
    """The variant's model. What it lacks stays at zero and is not trained."""
    parts = Parts() if variant.pre_norm else Parts(block=PostNormBlock)
    model = GPT2(CONFIG, parts)
    if not variant.positions:
        model.transformer.wpe.weight.zero_().requires_grad_(False)
    if not variant.tied:
        model.lm_head.weight = nn.Parameter(0.02 * torch.randn_like(model.lm_head.weight))
    for name, parameter in model.named_parameters():
        if name.endswith("bias") and not variant.biases:
            parameter.requires_grad_(False)
        if name.endswith("c_proj.weight") and not variant.scaled:
            parameter.mul_(math.sqrt(2 * CONFIG.n_layer))
    return model


def run(
    variant: Variant,
    seed: int,
    text: UInt8[Tensor, " N"],
    held_out: UInt8[Tensor, " M"],
) -> Iterator[tuple[int, float]]:
    """Train; yields the steps done and the held-out loss in nats a byte, every EVERY steps."""
    torch.manual_seed(seed)
    model = build(variant)
    groups, lr = decay_groups(model, 0.1), variant.lr * LR
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)
    precision = autocast("float32", torch.device("cpu"))
    judged = [get_batch(held_out, 32, CONFIG.n_positions, -1, i, 0, 1) for i in range(8)]
    for step in range(N_STEPS):
        rate = cosine_schedule(step, N_STEPS, WARMUP if variant.warmup else 0, lr, lr / 10)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = get_batch(text, BATCH, CONFIG.n_positions, seed, step, 0, 1)
        training_step(model, optimizer, [batch], precision, clip=1.0)
        if (step + 1) % EVERY == 0:
            yield step + 1, round(estimate_loss(model, judged, precision).item(), 4)


def main() -> None:
    """Make the table anew."""
    torch.set_num_threads(1)
    text, held_out = split(library_text())
    begun, runs = time.process_time(), []
    for seed in SEEDS:
        for name, variant in VARIANTS.items():
            losses = [loss for _, loss in run(variant, seed, text, held_out)]
            runs.append({"variant": name, "seed": seed, "losses": losses})
            seconds = time.process_time() - begun
            print(f"{seconds:4.0f} s  seed {seed}  {name:28} {losses[-1]}", flush=True)
    found = {"text": digest(text), "held_out": digest(held_out), "every": EVERY, "runs": runs}
    save("ablations", time.process_time() - begun, found)


if __name__ == "__main__":
    main()
