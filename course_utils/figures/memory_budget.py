"""The interactive memory budget of chapter 14."""

from typing import Any

from course_utils.reference.memory_budget import (
    GPUS,
    SHAPES,
    parameter_count,
    step_memory,
)

from .interactive import Interactive

_GIB = 2**30
CHOICES: dict[str, list[int]] = {
    "batch": [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128],
    "context": [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768],
    "n_layer": [1, 2, 4, 6, 12, 24, 32, 36, 48, 64, 80, 96],
    "world_size": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
}
"""What the sliders can take."""

DEFAULTS: dict[str, Any] = {
    "batch": 8,
    "precision": "bf16 mixed",
    "optimizer": "adamw",
    "state_dtype": None,
    "tied": True,
    "checkpointing": "none",
    "attention": "flash",
    "zero": 0,
    "world_size": 1,
}


def memory_budget(shape: str = "GPT-2 small", **settings: Any) -> Interactive:
    """Bytes of each tenant of a training run beside the memory of GPUs, at the reader's settings.

    shape: a name of SHAPES. settings: of `step_memory`, to open with. Raises ValueError for
    settings that it has none of, and for an unknown shape.
    """
    if shape not in SHAPES:
        raise ValueError(f"There is no shape {shape!r}. There are: {', '.join(SHAPES)}.")
    opens = SHAPES[shape] | DEFAULTS | settings
    memory = step_memory(**opens)
    count = parameter_count(*(opens[k] for k in ("n_layer", "n_embd", "vocab", "context", "tied")))
    room = [name for name, size in GPUS.items() if memory.total <= size]
    lines = [
        "Memory budget (interactive in JupyterLab and on the page)",
        f"{shape}, {count:,} parameters, batch {opens['batch']} of {opens['context']} tokens, "
        f"{opens['precision']}, {opens['optimizer']}, checkpointing {opens['checkpointing']}, ZeRO stage "
        f"{opens['zero']} on {opens['world_size']} rank{'s' if opens['world_size'] > 1 else ''}:",
        *(
            f"{name.replace('_', ' '):16} {size / _GIB:9.3f} GiB"
            for name, size in vars(memory).items()
            if size
        ),
        f"{'total':16} {memory.total / _GIB:9.3f} GiB = {memory.total:,} bytes",
        f"It fits on: {', '.join(room) or 'none of the GPUs listed'}.",
    ]
    return Interactive(
        script="memory_budget",
        alt=(
            "Memory budget: choices for model, batch, precision, optimizer, checkpointing and ZeRO, a bar of "
            "what each tenant takes on one rank, and the GPUs whose memory holds it"
        ),
        text="\n".join(lines),
        data={
            "settings": opens,
            "shapes": SHAPES,
            "choices": CHOICES,
            "gpus": sorted(GPUS.items(), key=lambda gpu: gpu[1]),
        },
    )
