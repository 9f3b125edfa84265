"""The settings of `course train`: what each means, what may be given, and what cannot be run."""

import argparse
import errno
import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from .corpus import HELD_OUT
from .gpt2 import CONFIGS, GPT2Config

MODELS = {name: config for name, config in CONFIGS.items() if config.vocab_size >= 256} | {
    "course": GPT2Config(
        vocab_size=2048, n_positions=256, n_embd=192, n_layer=6, n_head=6, dropout=0.0
    )
}
"""Those of gpt2.CONFIGS that have an id for every byte, and the course's own model."""


def setting(default: Any, meaning: str) -> Any:
    """A field of Settings, and what `--help` says of it."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Settings:
    """A run. The defaults train a small model of bytes for some minutes on a laptop."""

    model: str = setting("bytes", f"the sizes to start from: {', '.join(MODELS)}")
    strategy: str = setting("ddp", "of several processes: ddp or fsdp; none: there is only one")
    steps: int = setting(2000, "updates in all, those before a restart included")
    batch: int = setting(32, "sequences a step, all processes and micro-batches together")
    micro_batch: int = setting(32, "sequences that a process takes through the model at once")
    context: int = setting(0, "positions of a sequence; 0: as many as the model has")
    lr: float = setting(3e-3, "learning rate at the end of the warm-up")
    min_lr: float | None = setting(None, "learning rate at the last step; if not given, lr / 10")
    warmup: int = setting(100, "steps in which the learning rate rises to it")
    weight_decay: float = setting(0.1, "weight decay of the matrices")
    clip: float = setting(1.0, "largest norm of the gradient; 0: unbounded")
    dropout: float = setting(0.0, "chance that a feature is dropped")
    precision: str = setting("auto", "float32, bfloat16, or auto: bfloat16 on GPUs that have it")
    seed: int = setting(0, "of the first weights, the batches and dropout")
    text_bytes: int = setting(
        4 * 2**20, "of Python's own library, where tokens are bytes; a tenth of them is held out"
    )
    eval_every: int = setting(100, "steps from one evaluation on held-out text to the next")
    eval_batches: int = setting(8, "batches in an evaluation")
    log_every: int = setting(10, "steps from one report to the next")
    save: str = setting("", "checkpoint file; resumed from if it is there")
    save_every: int = setting(100, "steps from one checkpoint to the next")
    log: str = setting("", "file that gets one line of JSON for each report")
    data: tuple[str, ...] = setting(
        (), "text files, and folders of them, to train on; if not given, Python's own library"
    )
    tokenizer: str = setting("", "folder of a tokenizer (vocab.json, merges.txt)")
    vocab: int = setting(0, "tokens of a tokenizer that is trained on the data; 0: bytes")
    n_layer: int = setting(0, "blocks; 0: the model's own number")
    n_head: int = setting(0, "heads; 0: the model's own number")
    n_embd: int = setting(0, "features; 0: the model's own number")
    beta2: float = setting(0.95, "how slowly AdamW forgets the squares of gradients")
    compile: bool = setting(False, "run the model through torch.compile")
    export: str = setting(
        "", "folder for the trained model, as transformers and the course read it"
    )


COUNTS = ("steps", "batch", "micro_batch", "eval_every", "eval_batches", "log_every", "save_every")
PLACES = ("save", "log", "export")
"""Settings that say where results go, and nothing of what they are."""


def reads_bytes(settings: Settings) -> bool:
    """Are the tokens the bytes of Python's own library, as they are without data and tokenizer?"""
    return not (settings.data or settings.tokenizer or settings.vocab)


def check(settings: Settings, world_size: int, vocab_size: int | None = None) -> GPT2Config:
    """The model's sizes. Raises ValueError for settings that cannot be run.

    vocab_size: the tokenizer's, once it is there.
    """
    s = settings
    config = sizes(s, vocab_size)
    T, n, low = s.context or config.n_positions, world_size, final_lr(s)
    for name in COUNTS:
        _refuse(getattr(s, name) < 1, f"{option(name)} is {getattr(s, name)}: 1 is the least")
    for name in ("warmup", "weight_decay", "clip"):
        _refuse(not getattr(s, name) >= 0, f"{option(name)} is {getattr(s, name)}: 0 is the least")
    known = s.strategy in ("none", "ddp", "fsdp")
    _refuse(not known, f"the strategy is none, ddp or fsdp; came {s.strategy!r}")
    apart = s.strategy == "none" and n > 1
    _refuse(apart, f"{n} processes with --strategy none would train the same model apart")
    _refuse(s.batch % n != 0, f"{s.batch} sequences cannot be split over {n} processes")
    C = config.n_positions
    _refuse(not 0 <= s.context <= C, f"context {s.context}: the model has {C}")
    _refuse(not 0 <= s.dropout < 1, f"--dropout is {s.dropout}: from 0 to less than 1")
    _refuse(not 0 < s.beta2 < 1, f"--beta2 is {s.beta2}: between 0 and 1")
    falls = 0 <= low <= s.lr and 0 < s.lr < math.inf
    _refuse(not falls, f"--lr is {s.lr} and --min-lr {low}: the rate falls from one to the other")
    _check_data(s, T)
    dtype_of(s.precision, torch.device("cpu"))
    return config


def sizes(settings: Settings, vocab_size: int | None = None) -> GPT2Config:
    """The model that the settings name, with those sizes of it that they change."""
    s = settings
    _refuse(s.model not in MODELS, f"no model {s.model!r}; there are: {', '.join(MODELS)}")
    given = {name: getattr(s, name) for name in ("n_layer", "n_head", "n_embd")}
    for name, number in given.items():
        _refuse(number < 0, f"{option(name)} is {number}: 1 is the least")
    changed = {name: number for name, number in given.items() if number}
    if vocab_size is not None:
        changed["vocab_size"] = vocab_size
    return replace(MODELS[s.model], dropout=s.dropout, **changed)


def _check_data(s: Settings, T: int) -> None:
    twice = s.tokenizer and s.vocab
    _refuse(bool(twice), "--tokenizer and --vocab are given: it is read from a folder, or trained")
    least = 257  # the bytes, and the end of text
    _refuse(bool(s.vocab) and s.vocab < least, f"--vocab is {s.vocab}: {least} is the least")
    held_out = s.text_bytes - int(s.text_bytes * (1 - HELD_OUT))
    _refuse(
        reads_bytes(s) and held_out <= T,
        f"--text-bytes {s.text_bytes} holds out {held_out}: {T + 1} is the least",
    )


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise ValueError(why)


def writable(path: Path) -> None:
    """Raises ValueError where no file can be written at `path`: better now than after the run."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error


def places(settings: Settings) -> None:
    """Raises ValueError unless all that the settings name can be written."""
    for name in filter(None, (settings.save, settings.log)):
        writable(Path(name))
    if settings.export:
        folder = Path(settings.export)
        writable((folder if folder.is_dir() else folder.parent) / "model.safetensors")
        _refuse(folder.is_file(), f"{folder} cannot be written: Is a file, not a folder")


def dtype_of(precision: str, device: torch.device) -> torch.dtype:
    """What matrix products run in. Raises ValueError for an unknown precision."""
    if precision == "auto":
        fit = device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bfloat16" if fit else "float32"
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"the precision is auto, float32 or bfloat16; came {precision!r}")
    return getattr(torch, precision)


def final_lr(settings: Settings) -> float:
    """The learning rate of the last step: min_lr, or a tenth of the highest."""
    return settings.lr / 10 if settings.min_lr is None else settings.min_lr


# ---------------------------------------------------------------------------------- the command line


def option(name: str) -> str:
    """What the command line calls a field of Settings."""
    return "--" + name.replace("_", "-")


def arguments(given: Sequence[str] | None = None) -> Settings:
    """The command line's settings: one option for each field of Settings, and a recipe beneath them.

    Raises ValueError for a recipe that is none.
    """
    parser = argparse.ArgumentParser(
        prog="course train",
        description="Train a GPT-2, on Python's own library or on your own text.",
    )
    parser.add_argument(
        "--recipe",
        metavar="file",
        help="settings to start from, as JSON; options beside it count more",
    )
    for one in fields(Settings):
        _add(parser, one)
    found = vars(parser.parse_args(given))
    recipe = found.pop("recipe", None)
    return replace(read_recipe(Path(recipe)) if recipe else Settings(), **found)


def _add(parser: argparse.ArgumentParser, one: Any) -> None:
    """The option of a field, which is not there at all if it was not given."""
    default = "" if one.default in (None, "", ()) else f" (default: {one.default})"
    said: dict[str, Any] = {"help": one.metadata["meaning"] + default, "default": argparse.SUPPRESS}
    if one.default is False:
        parser.add_argument(option(one.name), action=argparse.BooleanOptionalAction, **said)
    elif one.default == ():
        parser.add_argument(option(one.name), nargs="+", metavar="path", action=_Tuple, **said)
    else:
        kind = float if one.default is None else type(one.default)
        parser.add_argument(option(one.name), type=kind, metavar=kind.__name__, **said)


class _Tuple(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, tuple(values))


def read_recipe(file: Path) -> Settings:
    """Settings from a file of JSON: an object with some of the names of Settings."""
    try:
        return settings_of(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"the recipe {file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is no recipe: {error}") from error


def settings_of(kept: dict[str, Any]) -> Settings:
    """Settings as JSON and checkpoints hold them. Raises ValueError for a name that there is not, and
    for a value of another kind."""
    unknown = kept.keys() - {one.name for one in fields(Settings)}
    _refuse(bool(unknown), f"there are no settings {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in kept.items()}
    plain = Settings()
    for name, value in values.items():
        kinds = _kinds(getattr(plain, name))
        _refuse(type(value) not in kinds, f"{name} is {value!r}, no {kinds[0].__name__}")
    return Settings(**values)


def _kinds(default: Any) -> tuple[type, ...]:
    if default is None:
        return float, int, type(None)
    return (float, int) if isinstance(default, float) else (type(default),)


def recipe_of(settings: Settings) -> dict[str, Any]:
    """What of the settings differs from the defaults, as JSON has it; not where results go."""
    plain = Settings()
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(settings).items()
        if name not in PLACES and value != getattr(plain, name)
    }


def differences(before: Settings, now: Settings) -> list[str]:
    """What two runs' settings do not share, places aside: "lr 0.003, now 0.001"."""
    return [
        f"{name} {old!r}, now {new!r}"
        for name, old in asdict(before).items()
        if name not in PLACES and (new := getattr(now, name)) != old
    ]
