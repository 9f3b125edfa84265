"""What a request gets from chapter 25's `generate` when nothing runs beside it: what a server is compared with."""

from collections.abc import Sequence
from typing import Any

import torch

from course_utils.reference.generation import CachedGPT2, generate, next_token_probs
from course_utils.reference.serving_engine import GenerationRequest

TIE = 1e-9


def alone(model: Any, request: GenerationRequest) -> list[int]:
    """The tokens after the prompt, in one row, with a cache in one piece."""
    tokens = generate(
        CachedGPT2(model),
        torch.tensor([request.prompt]),
        request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        generator=torch.Generator().manual_seed(request.seed or 0),
        stop=request.stop,
    )
    return tokens[0, len(request.prompt) :].tolist()


def compared(
    model: Any, request: GenerationRequest, tokens: Sequence[int], due: Sequence[int]
) -> str:
    """ "equal", "tie" if the first tokens that differ were as good as each other, else "different"."""
    if list(tokens) == list(due):
        return "equal"
    i = next(i for i, (a, b) in enumerate(zip(tokens, due, strict=False)) if a != b)
    with torch.no_grad():
        logits = model(torch.tensor([[*request.prompt, *due[:i]]]))[:, -1]
    if request.temperature == 0:
        race = logits[0]
    else:  # multinomial divides each probability by an exponential number; the largest wins
        probs = next_token_probs(
            logits, temperature=request.temperature, top_k=request.top_k, top_p=request.top_p
        )
        generator = torch.Generator().manual_seed(request.seed or 0)
        for _ in range(i + 1):
            noise = torch.empty_like(probs).exponential_(generator=generator)
        race = (probs / noise)[0].log()
    gap = abs(race[tokens[i]] - race[due[i]])
    return "tie" if gap < TIE else "different"
