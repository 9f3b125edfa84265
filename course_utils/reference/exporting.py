"""A trained model as a folder that Hugging Face's transformers reads, and the course's `from_pretrained`.

`model.safetensors` and `config.json`, with the tokenizer's `vocab.json` and `merges.txt`; beside them
how the model came about: `settings.json`, a recipe for `course train`, `log.jsonl` and `stamp.json`.
"""

import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialized
from torch import Tensor

from course_utils.reference.gpt2 import GPT2Config

from .checkpoints import Progress
from .pretraining_settings import Settings, recipe_of
from .tokenization import END_OF_TEXT, Tokenizer

LICENCE = "© Python Software Foundation; PSF License Agreement, version 2"
"""Of Python's own library."""


def hf_state_dict(
    weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float16
) -> dict[str, Tensor]:
    """A GPT2's weights under the names and in the shapes of the published checkpoints, in a dtype.

    weights: a GPT2's `state_dict()`, with or without `lm_head.weight`, which is left out: it
    is the embedding's. All other names stay. The weights of the linear layers in the blocks
    (`attn.c_attn`, `attn.c_proj`, `mlp.c_fc`, `mlp.c_proj`) are (out, in) here and (in,
    out) there. Every tensor of the result is contiguous: safetensors takes no others. The
    argument is not changed.

    float16 keeps three more bits than bfloat16 of all but tiny weights, in as many bytes; a
    trained GPT-2's weights are far from its largest number, 65,504.
    """
    linear = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    return {
        name: (x.mT if name.endswith(linear) else x).to(dtype).contiguous()
        for name, x in weights.items()
        if name != "lm_head.weight"
    }


def hf_config(config: GPT2Config, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """The sizes as transformers writes them: what `gpt2.config_from_hf` reads."""
    end = tokenizer.special.get(END_OF_TEXT) if tokenizer else None
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.n_positions,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "activation_function": "gelu_new",
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": "float32",
    }


def export(
    folder: Path,
    weights: Mapping[str, Tensor],
    config: GPT2Config,
    tokenizer: Tokenizer | None,
    settings: Settings,
    progress: Progress,
    files: dict[str, dict[str, str]],
) -> None:
    """Write the folder. files: of the corpus, by part and name, the digests. What else is in it stays."""
    folder.mkdir(exist_ok=True)
    data = serialized(hf_state_dict(weights), metadata={"format": "pt"})
    (folder / "model.safetensors").write_bytes(data)
    write_json(folder / "config.json", hf_config(config, tokenizer))
    if tokenizer is not None:
        tokenizer.save(folder)
    write_json(folder / "settings.json", recipe_of(settings))
    write_json(folder / "stamp.json", stamp(config, settings, progress) | {"files": files})
    if settings.log and Path(settings.log).exists():
        shutil.copyfile(settings.log, folder / "log.jsonl")


def write_json(file: Path, content: Any) -> None:
    """A file of JSON, a line for each entry."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8", newline="\n")


def stamp(config: GPT2Config, settings: Settings, progress: Progress) -> dict[str, Any]:
    """How, when and on what a model was trained."""
    tokens = settings.batch * (settings.context or config.n_positions)
    own = f"Python's own library, {platform.python_implementation()} {platform.python_version()}"
    folder = settings.export
    return {
        "command": f"course train --recipe {folder}/settings.json --save run.pt --log log.jsonl --export {folder}",
        "text": ", ".join(settings.data) or own,
        "licence": "" if settings.data else LICENCE,
        "date": datetime.now(UTC).date().isoformat(),
        "step": progress.step,
        "tokens": progress.step * tokens,
        "seconds": round(progress.seconds),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "corpus": progress.corpus,
    }


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
