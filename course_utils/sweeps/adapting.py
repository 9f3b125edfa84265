"""Chapter 26's sweep: ways to adapt the course's model, each at five learning rates, and what else it asks.

    python -m course_utils.sweeps.adapting

The text is the documentation of Python's `help()`; held-out topics judge what was learned, and held-out
files of the library what was forgotten. The seed of a run decides the batches and first adapters.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.reference.adapting import (
    MASKS,
    METHODS,
    TARGETS,
    adapt,
    answer_of,
    answers,
    documentation,
    instruct,
    judge,
    prompt_of,
    python_tokens,
    requests,
    topic_tokens,
    train_all,
    train_lora,
    trained,
)
from course_utils.reference.gpt2 import GPT2
from course_utils.reference.pretrained import course_model, course_tokenizer
from course_utils.reference.qlora import quantize_base
from course_utils.sweeps import digest, save

STEPS, SEEDS = 32, (0, 1)
RATES = {
    "full": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    "head": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "bottleneck": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "LoRA": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
}
"""Learning rates of each method: a factor of three, about, from one to the next."""

OVERLAPPING = {"full": 1e-3, "LoRA": 1e-2}
"""Tried, too, on all topics, of which some hold text of the held-out ones."""

RANKS = (1, 2, 4, 16, 32)
"""Tried beside r = 8; α / r and α / √r with the α that gives the scale 2 at r = 8."""
LORA_LR = 1e-2
SPECTRUM_LR = 1e-3
ANSWER_STEPS, ANSWER_LR, ANSWER_SEEDS, ASKED = 120, 6e-3, (0, 1, 2), 40

Texts = tuple[Tensor, Tensor, Tensor]


def texts(clean: bool = True) -> Texts:
    """Tokens: documentation to train on, documentation held out, Python held out."""
    tokenizer = course_tokenizer()
    train, judged = (topic_tokens(part, tokenizer) for part in documentation(clean))
    return train, judged, python_tokens(tokenizer)


def run(model: GPT2, lr: float, seed: int, given: Texts) -> dict[str, Any]:
    """Train what requires a gradient; the losses on both kinds of held-out text afterwards."""
    train, judged, python = given
    adapt(model, train, STEPS, lr, seed)
    return {
        "lr": lr,
        "seed": seed,
        "trained": sum(p.numel() for p in trained(model)),
        "documentation": round(judge(model, judged), 4),
        "python": round(judge(model, python), 4),
    }


def method_run(method: str, lr: float, seed: int, given: Texts) -> dict[str, Any]:
    """A point of the comparison."""
    torch.manual_seed(seed)
    return {"method": method} | run(METHODS[method](course_model()), lr, seed, given)


def spectra(model: nn.Module, base: nn.Module) -> dict[str, list[float]]:
    """The share of ‖ΔW‖² in the first k singular values, k = 1, 2, …: the mean over the blocks, by matrix."""
    found: dict[str, list[float]] = {}
    for name in ("attn.c_attn", "mlp.c_fc"):
        shares = []
        for i in range(len(base.transformer.h)):  # type: ignore[arg-type, union-attr]
            path = f"transformer.h.{i}.{name}.weight"
            change = (model.get_parameter(path) - base.get_parameter(path)).detach()
            squares = torch.linalg.svdvals(change).square()
            shares.append(squares.cumsum(0) / squares.sum())
        found[name] = [round(x, 4) for x in torch.stack(shares).mean(0).tolist()]
    return found


def answered(mask: str, seed: int) -> dict[str, Any]:
    """Train on requests for classes; how many of those never seen are answered to the letter."""
    torch.manual_seed(seed)
    tokenizer, model = course_tokenizer(), train_lora(course_model())
    instruct(model, tokenizer, ANSWER_STEPS, ANSWER_LR, seed, batch=8, mask=mask)
    asked = requests("held_out", ASKED, seed=7)
    written = answers(model, tokenizer, [prompt_of(one) for one in asked])
    wanted = [(answer_of(one), answer_of(one, True)) for one in asked]
    exact = [text in both for text, both in zip(written, wanted, strict=True)]
    begun = [text.startswith(both) for text, both in zip(written, wanted, strict=True)]
    return {"mask": mask, "seed": seed, "exact": sum(exact), "begins": sum(begun)}


def main() -> None:
    """Make the table anew."""
    torch.set_num_threads(1)
    begun = time.process_time()
    given, base = texts(), course_model()
    train, judged, python = given
    found: dict[str, Any] = {
        "train": digest(train),
        "held_out": digest(judged),
        "python": digest(python),
        "before": {
            "documentation": round(judge(base, judged), 4),
            "python": round(judge(base, python), 4),
        },
    }

    def keep(part: str, row: dict[str, Any]) -> None:
        found.setdefault(part, []).append(row)
        print(f"{time.process_time() - begun:4.0f} s  {part:12} {row}", flush=True)

    for method, rates in RATES.items():
        for lr in rates:
            for seed in SEEDS:
                keep("methods", method_run(method, lr, seed, given))
    for method, lr in OVERLAPPING.items():
        for seed in SEEDS:
            keep("overlapping", method_run(method, lr, seed, texts(clean=False)))
    for r in RANKS:
        for rslora, alpha in ((False, 16.0), (True, 2 * 8**0.5)):
            torch.manual_seed(0)
            model = train_lora(course_model(), r, alpha=alpha, rslora=rslora)
            keep("ranks", {"r": r, "rslora": rslora} | run(model, LORA_LR, 0, given))
    for targets in list(TARGETS)[:-1]:
        torch.manual_seed(0)
        model = train_lora(course_model(), targets=targets)
        keep("targets", {"targets": targets} | run(model, LORA_LR, 0, given))
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = train_lora(course_model())
        quantize_base(model)
        keep("nf4", run(model, LORA_LR, seed, given))
    more = python_tokens(course_tokenizer(), "train", 120_000)
    for name, text in (("documentation", train), ("more Python", more)):
        model = train_all(course_model())
        adapt(model, text, STEPS, SPECTRUM_LR, 0)
        keep("spectra", {"text": name} | spectra(model, base))
    for seed in ANSWER_SEEDS:
        for mask in MASKS:
            keep("masks", answered(mask, seed))
    save("adapting", time.process_time() - begun, found)


if __name__ == "__main__":
    main()
