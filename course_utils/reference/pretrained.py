"""The course's own model: a GPT-2 trained by `course train` on Python's own library, with its tokenizer.

It lies in `course_utils/model`. `stamp.json` there says on which files it was trained, by which
command, how long, and what its loss is on files that it has never seen.
"""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from .corpus import Document, library_files, read_document
from .gpt2 import GPT2
from .tokenization import END_OF_TEXT, Tokenizer

MODEL = Path(__file__).parents[1] / "model"
"""The folder: what transformers' `GPT2LMHeadModel.from_pretrained` reads, too."""


def course_model() -> GPT2:
    """The course's trained model, in float32, on the CPU, in eval mode: a new copy with each call.

    6 blocks of 6 heads, 192 features, 2,048 tokens, 256 positions. Raises
    FileNotFoundError where the folder is missing.
    """
    return GPT2.from_pretrained(MODEL)


def course_tokenizer() -> Tokenizer:
    """The tokenizer that the model was trained with: 2,047 bytes and merges, and the end of text."""
    return Tokenizer.load(MODEL)


def course_stamp() -> dict[str, Any]:
    """How the model was made, and what was measured of it."""
    return json.loads((MODEL / "stamp.json").read_text(encoding="utf-8"))


def stamped_documents(stamp: dict[str, Any], part: str = "held_out") -> Iterator[Document]:
    """The library's documents that are, to the byte, those of the stamp: held out, or trained on ("train").

    Other versions of Python have other files: those that changed or are missing are left out.
    """
    files = library_files()
    for name, digest in stamp["files"][part].items():
        document = read_document(files[name], name) if name in files else None
        if document is not None and document.digest == digest:
            yield document


def document_tokens(
    document: Document, tokenizer: Tokenizer, most: int | None = None
) -> Integer[Tensor, " N"]:
    """The end-of-text token, which comes before every document, and the document's, up to so many."""
    tokens = islice(tokenizer.encode_stream([document.text]), most)
    return torch.tensor([tokenizer.special[END_OF_TEXT], *tokens])


@torch.no_grad()
def token_losses(
    model: GPT2, tokens: Integer[Tensor, " N"], batch: int = 16
) -> Float[Tensor, " rest"]:
    """The loss of each token but the first, in nats: −log p given the tokens before it.

    The text is cut into windows of as many positions as the model has; a token knows what
    stands before it in its window, and each is predicted once. The model should be in eval
    mode.
    """
    C = model.config.n_positions
    n = max(0, len(tokens) - 1) // C * C
    pieces = [(tokens[:n].view(-1, C), tokens[1 : n + 1].view(-1, C))]
    if n + 1 < len(tokens):
        pieces.append((tokens[None, n:-1], tokens[None, n + 1 :]))
    found = [
        F.cross_entropy(model(x.long()).flatten(0, 1).float(), y.long().flatten(), reduction="none")
        for inputs, targets in pieces
        for x, y in zip(inputs.split(batch), targets.split(batch), strict=True)
        if len(x)
    ]
    return torch.cat([torch.zeros(0), *found])
