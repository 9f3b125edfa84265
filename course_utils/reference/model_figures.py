"""What the course's model can do, measured: `python -m course_utils.reference.model_figures`.

Its loss on every held-out file, in bits a byte, beside tables of unigrams, bigrams and trigrams of
the same tokens; the share of its samples that Python's parser accepts, beside the trigram's. With
--stamp the figures go into the model's stamp.json.
"""

import argparse
import ast
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .corpus import stream
from .exporting import write_json
from .gpt2 import GPT2
from .ngrams import NAMES, WittenBell
from .pretrained import (
    MODEL,
    course_model,
    course_stamp,
    course_tokenizer,
    document_tokens,
    stamped_documents,
    token_losses,
)
from .sampling import Sampling, sample
from .tokenization import Tokenizer

SAMPLED = 256
"""Tokens of each held-out file whose loss is stamped for itself: a quick check, whichever files are left."""
PROMPT = "\ndef "
"""What a sample begins with; see `function_of`."""


def held_out_figures(model: GPT2, tokenizer: Tokenizer, stamp: dict[str, Any]) -> dict[str, Any]:
    """By file: its bytes and tokens, and what they cost the model in nats; the first tokens for themselves."""
    found = {}
    for document in stamped_documents(stamp):
        losses = token_losses(model, document_tokens(document, tokenizer)).double()
        found[document.name] = {
            "bytes": document.n_bytes,
            "tokens": len(losses),
            "nats": round(losses.sum().item(), 3),
            "first_nats": round(losses[:SAMPLED].sum().item(), 3),
        }
    return found


def bits_a_byte(files: dict[str, Any]) -> float:
    """Of some files together."""
    nats = sum(one["nats"] for one in files.values())
    return nats / math.log(2) / sum(one["bytes"] for one in files.values())


def table_figures(
    tokenizer: Tokenizer, stamp: dict[str, Any]
) -> tuple[dict[str, float], WittenBell]:
    """Bits a byte of the tables on the same files, counted in the files trained on; and the trigram's."""
    train = stream(stamped_documents(stamp, "train"), tokenizer)
    judged = list(stamped_documents(stamp))
    tokens = [document_tokens(document, tokenizer) for document in judged]
    n_bytes = sum(document.n_bytes for document in judged)
    found = {}
    for order in (1, 2, 3):
        table = WittenBell(train, order, len(tokenizer))
        nats = -sum(table(one).sum().item() for one in tokens)
        found[NAMES[order]] = round(nats / math.log(2) / n_bytes, 4)
    return found, table


# ---------------------------------------------------------------------------------- samples


def function_of(text: str) -> str:
    """The function that a sample begins with: from its `def` to the next line that is not indented.

    If the sample ends before, its last line, which may be half a line, is left out.
    """
    lines = text.strip("\n").split("\n")
    for i, line in enumerate(lines[1:], start=1):
        if line and not line[0].isspace() and not line.startswith(")"):
            return "\n".join(lines[:i]) + "\n"
    return "\n".join(lines[:-1]) + "\n"


def parses(text: str) -> bool:
    """Does Python's own parser accept the text, and is there something in it?"""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings that it does not know
            return bool(ast.parse(text).body)
    except (SyntaxError, ValueError):
        return False


def share_that_parses(draw: Callable[[int], str], number: int) -> float:
    """Of so many samples, drawn by their number."""
    return sum(parses(function_of(draw(i))) for i in range(number)) / number


def sample_figures(
    model: GPT2, tokenizer: Tokenizer, trigram: WittenBell, number: int, tokens: int = 128
) -> dict[str, Any]:
    """The share of functions that parse: the model's, at two temperatures, and the trigram's."""
    shares: dict[str, Any] = {"prompt": PROMPT, "samples": number, "tokens": tokens}
    for temperature in (1.0, 0.7):
        how = Sampling(tokens=tokens, temperature=temperature)
        texts = sample(model, tokenizer, PROMPT, number, how)
        shares[f"model, temperature {temperature}"] = share_that_parses(texts.__getitem__, number)
    generator = torch.Generator().manual_seed(0)
    start = tokenizer.encode(PROMPT)

    def draw(_: int) -> str:
        return PROMPT + tokenizer.decode(trigram.sample(start, tokens, generator))

    shares["trigram"] = share_that_parses(draw, number)
    return shares


# ---------------------------------------------------------------------------------- the command


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print; with --stamp, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=200, help="to parse (default: 200)")
    parser.add_argument("--stamp", action="store_true", help="keep the figures in stamp.json")
    options = parser.parse_args(given)
    begun = time.perf_counter()
    model, tokenizer, stamp = course_model(), course_tokenizer(), course_stamp()
    print(f"loaded in {time.perf_counter() - begun:.2f} s")
    files = held_out_figures(model, tokenizer, stamp)
    print(f"{len(files)} of {len(stamp['files']['held_out'])} held-out files are as they were")
    tables, trigram = table_figures(tokenizer, stamp)
    figures = {"model": round(bits_a_byte(files), 4), **tables}
    for name, bits in figures.items():
        print(f"{name:10} {bits:.3f} bits a byte")
    samples = sample_figures(model, tokenizer, trigram, options.samples)
    for name, value in samples.items():
        print(f"{name:24} {value!r}")
    if options.stamp:
        kept = stamp | {"bits_a_byte": figures, "samples": samples, "held_out": files}
        write_json(MODEL / "stamp.json", kept)


if __name__ == "__main__":
    main()
