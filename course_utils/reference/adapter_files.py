"""Chapter 26: an adapter as the folder that PEFT writes and reads, adapter_config.json beside its tensors."""

import json
from os import PathLike
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from .lora import (
    PEFT_PREFIX,
    check_unmerged,
    inject_lora,
    load_lora_state_dict,
    lora_layers,
    lora_state_dict,
)

TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""The two files."""

PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
}
"""What `load_adapter` can read, and what PEFT takes for granted where a config is silent."""


def save_adapter(
    model: nn.Module, folder: str | PathLike[str], alpha: float, rslora: bool = False
) -> None:
    """Write the active adapter of each layer, and what a reader must know to use it.

    alpha, rslora: as `inject_lora` was given them. The tensors alone say neither. Raises
    ValueError where the scales of the layers do not follow from them, for adapters of
    different ranks, for a model without adapters, and while one is merged.
    """
    check_unmerged(model)
    state = lora_state_dict(model)
    layers = dict(lora_layers(model))
    ranks = {layer.lora_A.size(0) for layer in layers.values()}
    if len(ranks) > 1:
        raise ValueError(f"one rank for all layers; there are {sorted(ranks)}")
    (r,) = ranks
    scale = alpha / (r**0.5 if rslora else r)
    wrong = [name for name, layer in layers.items() if abs(layer.scaling - scale) > 1e-6 * scale]
    if wrong:
        raise ValueError(f"alpha = {alpha} is not that of {wrong[0]}: its scale is not {scale}")
    config = {
        **PLAIN,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": r,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "use_rslora": rslora,
        "target_modules": sorted(layers),
        "fan_in_fan_out": True,  # transformers' GPT-2 holds W as (in, out)
        "inference_mode": True,
    }
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    tensors = {name: x.contiguous() for name, x in state.items()}
    save_file(tensors, place / TENSORS, metadata={"format": "pt"})
    (place / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def load_adapter(model: nn.Module, folder: str | PathLike[str]) -> nn.Module:
    """Put an adapter of PEFT's format into a plain model, frozen otherwise; in place. Returns the model.

    Raises ValueError, before anything is changed, for a kind of adapter that is more than
    A and B of one rank, and for tensors that do not fit.
    """
    place = Path(folder)
    config = json.loads((place / CONFIG).read_text(encoding="utf-8"))
    for key, plain in PLAIN.items():
        if (config.get(key) or plain) != plain:
            raise ValueError(f"{CONFIG}: {key} is {config[key]!r}; this reads {plain!r} alone")
    with safe_open(place / TENSORS, "pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    last = ".lora_A.weight"
    targets = [name[len(PEFT_PREFIX) : -len(last)] for name in state if name.endswith(last)]
    shapes = {tuple(x.shape) for name, x in state.items() if name.endswith(last)}
    if any(r != config["r"] for r, _ in shapes):
        raise ValueError(f"{CONFIG} says r = {config['r']}; the tensors say another rank")
    alpha, rslora = float(config["lora_alpha"]), config.get("use_rslora", False)
    inject_lora(model, targets, config["r"], alpha, rslora=rslora)
    load_lora_state_dict(model, state)
    return model
