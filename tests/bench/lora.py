"""A training step with LoRA: the book's against PEFT's on the same GPT-2, time in pairs, bytes counted."""

import argparse
import copy
import os
import sys
from collections.abc import Callable

import torch
from torch import nn

from course_utils.meters import format_bytes, measure
from course_utils.reference.gpt2 import GPT2, GPT2Config, next_token_loss
from course_utils.reference.lora import inject_lora
from tests.support.pairs import HEADER, Comparison, compare, interval

SHAPES = {
    "D 256, 4 layers, 4 × 256": (256, 4, 4, 4, 256),
    "D 512, 4 layers, 2 × 256": (512, 4, 8, 2, 256),
}
TARGETS = ["c_attn", "c_fc", "mlp.c_proj"]
RANK, ALPHA = 8, 16


def pefts(model: nn.Module) -> nn.Module:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS))


def stepper(model: nn.Module, ids: torch.Tensor) -> Callable[[], None]:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    given, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> None:
        next_token_loss(model(given), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compared(
    n_embd: int, n_layer: int, n_head: int, B: int, T: int, pairs: int
) -> tuple[Comparison, int, int]:
    """Times, and the most bytes alive at once in one step of each."""
    torch.manual_seed(0)
    base = GPT2(GPT2Config(8192, T, n_embd, n_layer, n_head, dropout=0.0))
    ids = torch.randint(8192, (B, T + 1))
    theirs = stepper(pefts(copy.deepcopy(base)), ids)
    ours = stepper(inject_lora(base, TARGETS, RANK, ALPHA), ids)
    times = compare(ours, theirs, pairs)
    peaks = []
    for step in (ours, theirs):
        with measure() as cost:
            step()
        peaks.append(cost.bytes_peak)
    return times, *peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=21)
    pairs = parser.parse_args().pairs
    print(f"{torch.get_num_threads()} threads, {pairs} pairs; rank {RANK} on {', '.join(TARGETS)}")
    print(f"{'':<28}{HEADER}      peak bytes, ours and theirs")
    behind = []
    for name, shape in SHAPES.items():
        times, mine, theirs = compared(*shape, pairs)
        print(f"{name:<28}{times}      {format_bytes(mine)}, {format_bytes(theirs)}", flush=True)
        if interval(times.ratios)[0] > 1 or mine > theirs:
            behind.append(name)
    print(f"behind PEFT: {', '.join(behind)}" if behind else "nowhere behind PEFT")
    sys.exit(bool(behind))


if __name__ == "__main__":
    main()
