"""The files of `course train`: from which a run goes on, and from which `course sample` draws.

A checkpoint holds weights and optimizer, the step, and what is needed to understand them: settings,
sizes, tokenizer. The names and shapes are those of the bare model whatever the strategy, so each can
load it. The file holds the whole model: past some size, write a distributed checkpoint instead
(chapter 18).
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer

from .gpt2 import GPT2, GPT2Config, Undrawn
from .pretraining_settings import Settings, settings_of
from .tokenization import Tokenizer

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
FORMAT = "course train, 1"
"""Stands in every file: that of another program is not read."""


class CannotSave(Exception):
    """A checkpoint could not be written; the file that was there is as it was."""


@dataclass
class Progress:
    """What a run remembers beside weights and optimizer.

    step: updates made. seconds: of training, those before a restart included. best: the
    lowest held-out loss in nats a token, and best_step when that was. corpus: a digest
    of the data.
    """

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    corpus: str = ""


def best_of(path: Path) -> Path:
    """The file of the weights with the lowest held-out loss, beside the last checkpoint: run.best.pt."""
    return path.with_name(f"{path.stem}.best{path.suffix}")


# ---------------------------------------------------------------------------------- writing


def save(
    path: Path,
    progress: Progress,
    model: nn.Module,
    optimizer: Optimizer | None,
    about: dict[str, Any],
) -> None:
    """Write `path`, whole or not at all. Every rank must call it: with fsdp, gathering is collective.

    optimizer: None for weights that only draw samples. about: what `about` gives.
    Raises CannotSave where the disk is full.
    """
    state: dict[str, Any]
    if optimizer is None:
        state = {"model": get_model_state_dict(model, options=WHOLE)}
    else:
        weights, moments = get_state_dict(model, optimizer, options=WHOLE)
        state = {"model": weights, "optimizer": moments}
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    try:
        write({"format": FORMAT, **asdict(progress), **about, **state}, path)
    except OSError as error:
        raise CannotSave(
            f"step {progress.step}: {path} cannot be written: {error.strerror or error}; "
            + ("it holds what it held before" if path.exists() else "there is no checkpoint yet")
        ) from error


def about(settings: Settings, config: GPT2Config, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What a checkpoint says of its run: plain values, which torch.load reads as such."""
    kept = None
    if tokenizer is not None:
        kept = {"merges": list(tokenizer.merges), "special": list(tokenizer.special)}
    return {"settings": asdict(settings), "config": asdict(config), "tokenizer": kept}


def write(state: dict[str, Any], path: Path) -> None:
    """Write with torch.save so that at every moment `path` is a whole file, old or new. Raises OSError."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            try:
                torch.save(state, file)
            except RuntimeError as error:  # the writer's, at the end of what could not be written
                first = error.__context__
                raise first if isinstance(first, OSError) else OSError(str(error)) from None
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)  # in one step: no reader ever sees half a file
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


# ---------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Checkpoint:
    """A file that was read. tokenizer: None where tokens are bytes."""

    progress: Progress
    settings: Settings
    config: GPT2Config
    tokenizer: Tokenizer | None
    state: dict[str, Any]


def read(path: Path) -> Checkpoint:
    """A checkpoint of `save`. Raises ValueError, in one line, for any other file."""
    try:
        kept = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"there is no checkpoint {path}") from None
    except (PermissionError, IsADirectoryError) as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # a file of anything at all: torch.load stumbles in many ways
        size = path.stat().st_size if path.is_file() else 0
        why = "it is torn, or of another program" if size else "it is empty"
        raise ValueError(f"{path} is no checkpoint of course train: {why}") from error
    if not isinstance(kept, dict) or kept.get("format") != FORMAT:
        raise ValueError(f"{path} is no checkpoint of course train: it is of another program")
    tokenizer = kept["tokenizer"]
    return Checkpoint(
        Progress(**{name: kept[name] for name in asdict(Progress())}),
        settings_of(kept["settings"]),
        GPT2Config(**kept["config"]),
        tokenizer and Tokenizer(map(tuple, tokenizer["merges"]), tokenizer["special"]),
        kept,
    )


def resume(kept: Checkpoint, path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Put a checkpoint's weights and moments into model and optimizer, on every rank."""
    if "optimizer" not in kept.state:
        raise ValueError(f"{path} holds weights only: go on from the last checkpoint, not the best")
    set_state_dict(
        model,
        optimizer,
        model_state_dict=kept.state["model"],
        optim_state_dict=kept.state["optimizer"],
        options=WHOLE,
    )


def fits(kept: Checkpoint, path: Path, config: GPT2Config, tokenizer: Tokenizer | None) -> None:
    """Raises ValueError for a checkpoint of another model or of another tokenizer."""
    now, before = asdict(config), asdict(kept.config)
    apart = [
        f"{k} {before[k]}, not {now[k]}" for k in now if before[k] != now[k] and k != "dropout"
    ]
    if apart:
        raise ValueError(f"{path} holds another model: {'; '.join(apart)}")
    merges = [one and (list(one.merges), list(one.special)) for one in (kept.tokenizer, tokenizer)]
    if merges[0] != merges[1]:
        raise ValueError(f"{path} was trained with another tokenizer, or other data for it")


def model_of(kept: Checkpoint) -> GPT2:
    """The checkpoint's model, in eval mode, on the CPU."""
    with Undrawn():  # every parameter is loaded, or it raises
        model = GPT2(kept.config)
    model.load_state_dict(kept.state["model"])
    return model.eval()
