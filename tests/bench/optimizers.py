"""How long a step takes: each optimizer of the book against torch.optim's, in pairs in one run.

The parameters are the 148 tensors of GPT-2 small at a quarter of its width, with a small vocabulary.
A pair is one step of each of the two.
"""

import argparse
from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer

from course_utils.reference import optimizers as ours
from tests.support.pairs import HEADER
from tests.support.pairs import compare as in_pairs

WIDTH, LAYERS, VOCABULARY, CONTEXT = 192, 12, 8192, 1024
BOUND = 1.2  # what the foreach versions may take of torch's own

OPTIMIZERS = (
    ("SGD", "SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", "SGD", {"momentum": 0.9, "nesterov": True}),
    ("AdaGrad", "Adagrad", {}),
    ("RMSProp", "RMSprop", {}),
    ("Adam", "Adam", {"weight_decay": 0.1}),
    ("AdamW", "AdamW", {"weight_decay": 0.1}),
)


def gpt_shapes() -> Iterator[tuple[int, ...]]:
    """Shapes of GPT-2's parameters at this width, in its order."""
    c = WIDTH
    yield from ((VOCABULARY, c), (CONTEXT, c))
    for _ in range(LAYERS):
        yield from ((c,), (c,), (3 * c, c), (3 * c,), (c, c), (c,))
        yield from ((c,), (c,), (4 * c, c), (4 * c,), (c, 4 * c), (c,))
    yield from ((c,), (c,))


def parameters(matrices_only: bool = False) -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes = list(gpt_shapes())
    if matrices_only:
        shapes = [shape for shape in shapes[2:] if len(shape) == 2]
    params = [nn.Parameter(0.02 * torch.randn(shape)) for shape in shapes]
    for p in params:
        p.grad = 1e-3 * torch.randn_like(p)
    return params


def compare(name: str, against: str, one: Optimizer, two: Optimizer, pairs: int) -> float:
    found = in_pairs(one.step, two.step, pairs)
    print(f"{name:<30}{against:<26}{found}", flush=True)
    return found.ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=41)
    pairs = parser.parse_args().pairs
    params = parameters()
    count = sum(p.numel() for p in params)
    print(
        f"{len(params)} tensors, {count:,} parameters, float32; {torch.get_num_threads()} threads"
    )
    print(f"{pairs} pairs each; median ms of ours and torch's, median of ratios [95% interval]")
    print(f"{'ours':<30}{'torch.optim':<26}{HEADER}")
    slow = []
    for name, torchs, options in OPTIMIZERS:
        theirs = getattr(torch.optim, torchs)
        note = ", Nesterov" if options.get("nesterov") else ""

        def pair(
            mine: str, foreach: bool, theirs=theirs, torchs=torchs, options=options, note=note
        ) -> float:
            own, other = parameters(), parameters()
            one = getattr(ours, mine)(own, lr=1e-6, **options)
            two = theirs(other, lr=1e-6, foreach=foreach, **options)
            kind = "foreach" if foreach else "single-tensor"
            return compare(mine + note, f"{torchs}, {kind}", one, two, pairs)

        pair(name, False)
        pair(name, True)
        if pair(f"Foreach{name}", True) > BOUND:
            slow.append(f"Foreach{name}{note}")
    own, other = parameters(True), parameters(True)
    mine, theirs = ours.Muon(own, lr=1e-6), torch.optim.Muon(other, lr=1e-6)
    compare("Muon (the blocks' matrices)", "Muon", mine, theirs, max(pairs // 6, 5))
    print(
        f"above {BOUND} of torch's foreach: {', '.join(slow)}"
        if slow
        else f"every foreach version takes at most {BOUND} of torch's foreach"
    )


if __name__ == "__main__":
    main()
