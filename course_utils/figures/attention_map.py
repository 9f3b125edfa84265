"""What the heads of a model look at, as an interactive figure made from their scores."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from .interactive import Interactive

_MOST_POSITIONS = 40
DIGITS = 4


def attention_map(
    scores: Float[Tensor, "L H T T"], tokens: Sequence[str], width: int
) -> Interactive:
    """The weights of every block and head over a text; mask and scale can be taken away.

    scores: q · k of every query (row) and key, before scale and mask. tokens: the T pieces of the
    text, as shown. width: d, of a head. The figure keeps four digits after the point. Raises
    ValueError for a text of more than 40 positions, and where scores and tokens do not fit each
    other.
    """
    L, H, T, _ = scores.shape
    if len(tokens) != T or not 1 <= T <= _MOST_POSITIONS:
        raise ValueError(
            f"{len(tokens)} tokens and scores of {T} positions: give as many of both, at most "
            f"{_MOST_POSITIONS}"
        )
    rounded = [
        [[[round(x, DIGITS) for x in row] for row in head] for head in block]
        for block in scores.double().tolist()
    ]
    return Interactive(
        script="attention_map",
        alt=(
            f"Attention map of {L} × {H} heads over a text of {T} positions: which earlier positions "
            "each one takes from, with the causal mask and the scale to switch off"
        ),
        text=_account(scores, tokens, width),
        data={"scores": rounded, "tokens": list(tokens), "width": width},
    )


def causal_weights(scores: Float[Tensor, "*n T T"], width: int) -> Float[Tensor, "*n T T"]:
    """softmax(scores / √width) over the keys up to the query."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores / math.sqrt(width)).masked_fill(future, -math.inf).softmax(-1)


def _account(scores: Tensor, tokens: Sequence[str], width: int) -> str:
    """What each head looks at from the last position, in words."""
    weights = causal_weights(scores.double(), width)
    lines = [
        "Attention map (interactive in JupyterLab and on the page)",
        f"text: {''.join(tokens)!r}; from its last position, {tokens[-1]!r}:",
    ]
    for block, heads in enumerate(weights):
        for head, rows in enumerate(heads):
            most = rows[-1].topk(min(3, len(tokens)))
            seen = ", ".join(
                f"{tokens[int(key)]!r} at {int(key)} ({100 * p:.0f} %)"
                for p, key in zip(most.values.tolist(), most.indices, strict=True)
            )
            lines.append(f"block {block}, head {head}: {seen}")
    return "\n".join(lines)
