"""Chapter 27's sweep: few bits a weight by rounding, by GPTQ, by training through the rounding.

    python -m course_utils.sweeps.quantizing

All linear layers of the blocks of the course's model, a symmetric scale for each group of 32. Files that
the model was trained on calibrate and train; held-out files judge, in bits a byte. "float" is trained like
the others, with nothing rounded: what the further training itself brings.
"""

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_utils.reference.pretrained import course_model, course_tokenizer
from course_utils.reference.quantized_gpt2 import (
    QATLinear,
    Text,
    bits_per_byte,
    by_groups,
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
RATES = (1e-4, 3e-4, 1e-3)
"""Learning rates that training tries at each number of bits."""
AGAIN = {None: 1e-4, 4: 1e-4, 3: 1e-4, 2: 3e-4}
"""The rate that is run with a second seed, too."""
CALIBRATION = (1, 2, 4, 8, 16, 32)
"""Windows of 256 tokens that GPTQ sees, at 3 bits."""


def texts() -> tuple[Text, Text]:
    """What trains and calibrates, and what judges."""
    tokenizer = course_tokenizer()
    return windows(tokenizer, 256, "train"), windows(tokenizer, 24)


def nearest(bits: int, _: str, weight: Tensor) -> Tensor:
    """A layer's weight, rounded to the nearest."""
    return by_groups(weight, bits, GROUP)


def qat(
    bits: int | None, lr: float, seed: int, train: Text, judged: Text, steps: int = STEPS
) -> float:
    """The bits a byte of a model that was trained so, rounded; bits None: nothing is rounded."""
    model = course_model()
    if bits is not None:
        model = with_layers(model, lambda layer: QATLinear(layer, bits, GROUP))
    trained_further(model, train, steps, lr, seed)
    return round(bits_per_byte(model, judged), 4)


def main() -> None:
    """Make the table anew."""
    torch.set_num_threads(1)
    begun = time.process_time()
    (train, judged), model = texts(), course_model()
    found: dict[str, Any] = {
        "train": digest(train.tokens),
        "judged": digest(judged.tokens),
        "steps": STEPS,
        "before": round(bits_per_byte(model, judged), 4),
    }

    def keep(part: str, **row: Any) -> None:
        found.setdefault(part, []).append(row)
        print(f"{time.process_time() - begun:4.0f} s  {part:12} {row}", flush=True)

    gathered = hessians(model, Text(train.tokens[:16], 0))
    for bits in BITS:
        made = with_weights(model, partial(nearest, bits))
        keep("rounded", bits=bits, bits_a_byte=round(bits_per_byte(made, judged), 4))
        made = gptq_weights(model, gathered, bits, GROUP)
        keep("gptq", bits=bits, bits_a_byte=round(bits_per_byte(made, judged), 4))
    for number in CALIBRATION:
        made = gptq_weights(model, hessians(model, Text(train.tokens[:number], 0)), 3, GROUP)
        keep("calibration", windows=number, bits_a_byte=round(bits_per_byte(made, judged), 4))
    for few, again in AGAIN.items():
        for lr, seed in [*((lr, 0) for lr in RATES), (again, 1)]:
            found_so = qat(few, lr, seed, train, judged)
            keep("qat", bits=few, lr=lr, seed=seed, bits_a_byte=found_so)
    save("quantizing", time.process_time() - begun, found)


if __name__ == "__main__":
    main()
