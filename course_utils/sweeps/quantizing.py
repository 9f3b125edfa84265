"""Chapter 27's sweep: few bits a weight by rounding, by GPTQ, by training through the rounding.

    python -m course_utils.sweeps.quantizing

All linear layers of the blocks of the course's model, a symmetric bfloat16 scale for each group of 32.
Files that the model was trained on calibrate and train; held-out files judge, in bits a byte. Other held-out
files choose the learning rate. bits None is trained like the others, with nothing rounded: what the further
training itself brings. more, error: what a trained model costs more than GPTQ's of the same bits (than the
untrained float one, for None), and the standard error of that over the files.
"""

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_utils.reference.gpt2 import GPT2
from course_utils.reference.pretrained import course_model, course_tokenizer
from course_utils.reference.quantized_gpt2 import (
    QATLinear,
    Text,
    bits_by_file,
    bits_per_byte,
    by_groups,
    gap,
    gptq_weights,
    hessians,
    trained_further,
    windows,
    with_layers,
    with_weights,
)
from course_utils.sweeps import digest, save

GROUP, STEPS = 32, 48
BITS = (4, 3, 2)
RATES = {
    None: (3e-5, 1e-4, 3e-4),
    4: (3e-5, 1e-4, 3e-4),
    3: (3e-5, 1e-4, 3e-4),
    2: (3e-4, 1e-3, 3e-3),
}
"""Learning rates that training tries at each number of bits."""
SEEDS = (0, 1, 2)
CALIBRATION = (1, 2, 4, 8, 16, 32)
"""Windows of 256 tokens that GPTQ sees, at 3 bits."""


def texts() -> tuple[Text, Text, Text]:
    """What trains and calibrates, what chooses the learning rate, and what judges."""
    tokenizer = course_tokenizer()
    return (
        windows(tokenizer, 256, "train"),
        windows(tokenizer, 24, start=24),
        windows(tokenizer, 24),
    )


def nearest(bits: int, _: str, weight: Tensor) -> Tensor:
    """A layer's weight, rounded to the nearest."""
    return by_groups(weight, bits, GROUP)


def qat(bits: int | None, lr: float, seed: int, train: Text, steps: int = STEPS) -> GPT2:
    """A model that was trained so, rounded; bits None: nothing is rounded."""
    model = course_model()
    if bits is not None:
        model = with_layers(model, lambda layer: QATLinear(layer, bits, GROUP))
    trained_further(model, train, steps, lr, seed)
    return model


def main() -> None:
    """Make the table anew."""
    torch.set_num_threads(1)
    begun = time.process_time()
    (train, choosing, judged), model = texts(), course_model()
    before = bits_by_file(model, judged)
    found: dict[str, Any] = {
        "train": digest(train.tokens),
        "judged": digest(judged.tokens),
        "steps": STEPS,
        "before": round(before.sum().item(), 4),
    }

    def keep(part: str, **row: Any) -> None:
        found.setdefault(part, []).append(row)
        print(f"{time.process_time() - begun:4.0f} s  {part:12} {row}", flush=True)

    gathered = hessians(model, Text(train.tokens[:16], 0))
    paid: dict[int | None, Tensor] = {None: before}
    for bits in BITS:
        made = with_weights(model, partial(nearest, bits))
        keep("rounded", bits=bits, bits_a_byte=round(bits_per_byte(made, judged), 4))
        paid[bits] = bits_by_file(gptq_weights(model, gathered, bits, GROUP), judged)
        keep("gptq", bits=bits, bits_a_byte=round(paid[bits].sum().item(), 4))
    for number in CALIBRATION:
        made = gptq_weights(model, hessians(model, Text(train.tokens[:number], 0)), 3, GROUP)
        keep("calibration", windows=number, bits_a_byte=round(bits_per_byte(made, judged), 4))
    for few, rates in RATES.items():
        for lr, seed in ((lr, seed) for lr in rates for seed in SEEDS):
            made = qat(few, lr, seed, train)
            by_file = bits_by_file(made, judged)
            more, error = gap(by_file, paid[few])
            keep(
                "qat",
                bits=few,
                lr=lr,
                seed=seed,
                bits_a_byte=round(by_file.sum().item(), 4),
                on_others=round(bits_per_byte(made, choosing), 4),
                more=round(more, 4),
                error=round(error, 4),
            )
    save("quantizing", time.process_time() - begun, found)


if __name__ == "__main__":
    main()
