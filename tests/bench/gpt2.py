"""Tokens per second in training: the book's GPT-2 against transformers', in pairs in one run.

Same shapes, same weights, same batch, same optimizer (torch's AdamW, foreach), float32, no dropout:
a pair is one whole step of each, forward, loss, backward and update.
"""

import argparse
import os
import sys
from collections.abc import Callable

import torch
from torch import nn

from course_utils.reference.gpt2 import GPT2, next_token_loss
from tests.support.pairs import HEADER, Comparison, compare, interval

SHAPES = {
    "D 768, 2 layers, V 50257, 1 × 128": (768, 2, 12, 50257, 1, 128),
    "D 256, 4 layers, V 8192, 4 × 256": (256, 4, 4, 8192, 4, 256),
    "D 128, 4 layers, V 256, 16 × 128": (128, 4, 4, 256, 16, 128),
}


def their_model(n_embd: int, n_layer: int, n_head: int, vocab_size: int, T: int) -> nn.Module:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            n_embd=n_embd,
            n_layer=n_layer,
            n_head=n_head,
            vocab_size=vocab_size,
            n_positions=T,
            bos_token_id=0,
            eos_token_id=0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            use_cache=False,
        )
    )


def stepper(model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        loss_of().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compared(
    n_embd: int, n_layer: int, n_head: int, vocab_size: int, B: int, T: int, pairs: int
) -> Comparison:
    theirs = their_model(n_embd, n_layer, n_head, vocab_size, T).train()
    ours = GPT2.from_pretrained(theirs).train()
    ids = torch.randint(vocab_size, (B, T + 1))
    given, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return compare(
        stepper(ours, lambda: next_token_loss(ours(given), targets)),
        stepper(theirs, lambda: theirs(given, labels=targets, shift_labels=targets).loss),
        pairs,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    pairs = parser.parse_args().pairs
    print(f"{torch.get_num_threads()} threads, {pairs} pairs; a step of training")
    print(f"{'':<36}{HEADER}      tokens/s")
    slow = []
    for name, shape in SHAPES.items():
        found = compared(*shape, pairs)
        *_, B, T = shape
        print(f"{name:<36}{found}{B * T / found.seconds[0]:>14,.0f}", flush=True)
        if interval(found.ratios)[0] > 1:
            slow.append(name)
    print(f"slower than transformers: {', '.join(slow)}" if slow else "nowhere slower")
    sys.exit(bool(slow))


if __name__ == "__main__":
    main()
