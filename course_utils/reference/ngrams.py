"""Chapter 24's measure of a language model: what tables of counted tokens reach on the same text.

A unigram table knows how often each token occurs; a bigram table, how often after each other one; a
trigram table, after each two. Most trigrams of a new text were never counted, so a table of order n
leans on that of order n − 1. Source: Witten and Bell (1991); Chen and Goodman (1999), section 2.6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

NAMES = ("uniform", "unigram", "bigram", "trigram")


@dataclass(frozen=True)
class Counts:
    """Runs of tokens of one length, each as one number in base V, in ascending order; how often each occurs."""

    runs: Int[Tensor, " R"]
    counts: Int[Tensor, " R"]

    def of(self, runs: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
        """How often each of these was counted."""
        place = torch.searchsorted(self.runs, runs).clamp(max=len(self.runs) - 1)
        return torch.where(self.runs[place] == runs, self.counts[place], 0)


def in_base(tokens: Integer[Tensor, " N"], length: int, V: int) -> Int[Tensor, " runs"]:
    """Every run of so many neighbouring tokens as one number, its digits in base V; 0s for length 0."""
    n = len(tokens) - length + 1
    number = torch.zeros(n, dtype=torch.int64)
    for i in range(length):
        number = number * V + tokens[i : i + n]
    return number


class WittenBell:
    """An interpolated n-gram model: p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h)).

    c counts in the training text, t(h) is the number of different tokens seen after the
    context h, and h' is h without its first token. Below the unigrams lie equal chances.
    So no token has probability zero, and where a context is new the shorter one decides.
    """

    def __init__(self, tokens: Integer[Tensor, " N"], order: int, vocab_size: int) -> None:
        """tokens: to count in. order: 1 for unigrams, 2 for bigrams. vocab_size: V, with V**order < 2**63.

        Raises ValueError for fewer tokens than the order, or a vocabulary too large.
        """
        if len(tokens) < order or order < 1:
            raise ValueError(f"{len(tokens)} tokens hold no run of {order}")
        if vocab_size**order >= 2**63:
            raise ValueError(f"{vocab_size} ** {order} does not fit in 64 bits")
        self.order, self.vocab_size = order, vocab_size
        self.runs: list[Counts] = []
        self.totals: list[Counts] = []
        self.followers: list[Counts] = []
        for length in range(1, order + 1):
            runs, counts = in_base(tokens, length, vocab_size).unique(return_counts=True)
            contexts, which = (runs // vocab_size).unique(return_inverse=True)
            totals = torch.zeros_like(contexts).index_add_(0, which, counts)
            self.runs.append(Counts(runs, counts))
            self.totals.append(Counts(contexts, totals))
            self.followers.append(Counts(contexts, which.bincount()))

    def __call__(self, tokens: Integer[Tensor, " N"]) -> Float[Tensor, " rest"]:
        """log p of each token but the first, in nats, given up to order − 1 tokens before it. float64."""
        V, N = self.vocab_size, len(tokens)
        p = torch.full((N - 1,), 1 / V, dtype=torch.float64)
        for length in range(1, self.order + 1):
            runs = in_base(tokens, length, V)[1 if length == 1 else 0 :]
            known = p[max(0, length - 2) :]  # the first tokens have no context as long as that
            known.copy_(self._mix(length, runs, known))
        return p.log()

    def distribution(self, context: Integer[Tensor, " C"]) -> Float[Tensor, " V"]:
        """The probability of every token after this context, of which the last order − 1 count. float64."""
        V = self.vocab_size
        p = torch.full((V,), 1 / V, dtype=torch.float64)
        for length in range(1, min(self.order, len(context) + 1) + 1):
            before = int(in_base(context[len(context) - length + 1 :], length - 1, V)[0])
            p = self._mix(length, before * V + torch.arange(V), p)
        return p

    def _mix(
        self, length: int, runs: Int[Tensor, " N"], shorter: Float[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """p of the last token of each run of this length, from p given one token of context less."""
        context = runs // self.vocab_size
        seen = self.runs[length - 1].of(runs)
        total = self.totals[length - 1].of(context)
        kinds = self.followers[length - 1].of(context)
        mixed = (seen + kinds * shorter) / (total + kinds)
        return torch.where(total > 0, mixed, shorter)

    def sample(
        self, start: Sequence[int], n: int, generator: torch.Generator | None = None
    ) -> list[int]:
        """n tokens drawn one after the other, the first of them after those of `start`."""
        ids = list(start)
        for _ in range(n):
            context = torch.tensor(ids[max(0, len(ids) - self.order + 1) :], dtype=torch.int64)
            chances = self.distribution(context if self.order > 1 else context[:0])
            ids.append(int(torch.multinomial(chances, 1, generator=generator)))
        return ids[len(start) :]


def bits_per_byte(log_p: Float[Tensor, " N"], n_bytes: int) -> float:
    """What a text costs: minus the sum of log p of its tokens, in bits, for each of its bytes."""
    return -log_p.sum().item() / math.log(2) / n_bytes


def baselines(
    train: Integer[Tensor, " N"], held_out: Integer[Tensor, " M"], n_bytes: int, vocab_size: int
) -> dict[str, float]:
    """Bits a byte of unigram, bigram and trigram tables on a held-out text of n_bytes bytes."""
    return {
        NAMES[order]: bits_per_byte(WittenBell(train, order, vocab_size)(held_out), n_bytes)
        for order in (1, 2, 3)
    }
