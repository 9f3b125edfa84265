"""`course sample`: text from a model that `course train` made, or from the course's own."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .checkpoints import model_of, read
from .generation import CachedGPT2, generate, next_token_probs, sample_token
from .gpt2 import GPT2
from .pretrained import MODEL
from .tokenization import END_OF_TEXT, Tokenizer


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    temperature: 0 takes the likeliest, 1 the model's own chances. top_k: draw among the k
    likeliest; 0: among all. top_p: then among the likeliest that together have this
    chance; 1: among all.
    """

    tokens: int = 200
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be drawn."""
        found = [
            (self.tokens < 1, f"--tokens is {self.tokens}: 1 is the least"),
            (
                not 0 <= self.temperature < math.inf,
                f"--temperature is {self.temperature}: 0 is the least",
            ),
            (self.top_k < 0, f"--top-k is {self.top_k}: 0, for all, is the least"),
            (not 0 < self.top_p <= 1, f"--top-p is {self.top_p}: above 0, at most 1"),
        ]
        for wrong, why in found:
            if wrong:
                raise ValueError(why)


def chances(logits: Float[Tensor, "B V"], how: Sampling) -> Float[Tensor, "B V"]:
    """The probabilities that the next token is drawn with."""
    return next_token_probs(logits, **_chain(how))


def _chain(how: Sampling) -> dict[str, Any]:
    """What chapter 25 calls these settings."""
    top_p = None if how.top_p == 1 else how.top_p
    return {"temperature": how.temperature, "top_k": how.top_k or None, "top_p": top_p}


@torch.no_grad()
def continuations(
    model: GPT2, ids: Int[Tensor, "B T"], how: Sampling, generator: torch.Generator
) -> Int[Tensor, "B longer"]:
    """The ids and how.tokens more.

    If all of them fit into the context, the model reads each token once; else it reads the
    last n_positions anew for each.
    """
    C = model.config.n_positions
    if ids.size(1) + how.tokens <= C:
        return generate(CachedGPT2(model), ids, how.tokens, **_chain(how), generator=generator)
    for _ in range(how.tokens):
        new = sample_token(chances(model(ids[:, -C:])[:, -1], how), generator)
        ids = torch.cat((ids, new[:, None]), dim=1)
    return ids


def load(source: Path | None) -> tuple[GPT2, Tokenizer]:
    """Model and tokenizer of a checkpoint, of an exported folder, or the course's own.

    Bytes are a tokenizer without merges. Raises ValueError for what is none of these.
    """
    source = source or MODEL
    if not source.is_dir():
        kept = read(source)
        return model_of(kept), kept.tokenizer or Tokenizer([], special=())
    try:
        return GPT2.from_pretrained(source), Tokenizer.load(source)
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{source} holds no exported model: {error}") from error


def sample(
    model: GPT2, tokenizer: Tokenizer, prompt: str = "", number: int = 1, how: Sampling = Sampling()
) -> list[str]:
    """So many texts that begin with the prompt, each up to its end of text, if it comes to one.

    Without a prompt each is a new document. Raises ValueError for number < 1.
    """
    if number < 1:
        raise ValueError(f"--number is {number}: 1 is the least")
    end = tokenizer.special.get(END_OF_TEXT)
    start = [] if end is None else [end]
    ids = (start + tokenizer.encode(prompt)) or tokenizer.encode("\n")
    generator = torch.Generator().manual_seed(how.seed)
    drawn = continuations(model, torch.tensor([ids] * number), how, generator)
    return [prompt + tokenizer.decode(_until(row[len(ids) :].tolist(), end)) for row in drawn]


def _until(ids: list[int], end: int | None) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids
