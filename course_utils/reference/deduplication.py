"""Chapter 24, near duplicates: texts as sets of shingles, their similarity, and how to find it without
comparing every pair.

Letters: n documents, S shingles of one, K hash functions, and so K numbers in a signature.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations

import torch
from jaxtyping import Int
from torch import Tensor

PRIME = 2**31 - 1
"""Hashes are taken modulo this number: a product of two of them fits into 64 bits."""


def shingles(text: str, length: int = 5) -> Int[Tensor, " S"]:
    """The different runs of so many words of a text, each as a number below PRIME, in ascending order.

    Words are what white space separates: indentation and line breaks do not count. A text
    of fewer words has none. Source: Broder (1997), section 2.
    """
    words = text.split()
    runs = (" ".join(words[i : i + length]) for i in range(len(words) - length + 1))
    return torch.tensor(
        sorted({zlib.crc32(run.encode()) % PRIME for run in runs}), dtype=torch.int64
    )


def jaccard(a: Int[Tensor, " S"], b: Int[Tensor, " R"]) -> float:
    """The share of all different shingles of two texts that both have: 1 for equal sets, also for empty ones.

    a, b: each without repetitions.
    """
    both = int(torch.isin(a, b).sum())
    either = len(a) + len(b) - both
    return both / either if either else 1.0


def minhash(
    shingles: Int[Tensor, " S"], a: Int[Tensor, " K"], b: Int[Tensor, " K"]
) -> Int[Tensor, " K"]:
    """A signature: for each of K hash functions the smallest hash of a document's shingles.

    Function k takes a shingle s to (a[k] · s + b[k]) mod (2³¹ − 1). All arguments are
    int64, from 0 to below 2³¹ − 1. A document without shingles has 2³¹ − 1, which no hash
    reaches, in each place. Result: int64, on the device of `shingles`.
    Source: Broder (1997), section 3.
    """
    hashes = (a[:, None] * shingles + b[:, None]) % PRIME  # (K, S)
    return torch.cat((hashes, hashes.new_full((len(a), 1), PRIME)), dim=1).amin(dim=1)


def near_duplicates(
    signatures: Int[Tensor, "n K"],
    bands: int,
    similarity: Callable[[int, int], float],
    threshold: float,
) -> list[tuple[int, int, float]]:
    """Pairs of documents that are alike, found without a look at every pair.

    Cut the K columns into `bands` groups of equally many neighbouring ones. Two documents
    are candidates if in at least one band all their numbers agree. similarity(i, j), with
    i < j, is their true similarity, and slow: it is called once for each pair of candidates,
    and for no other. Result: (i, j, similarity) for each pair of candidates whose similarity
    is at least `threshold`, with i < j, in ascending order. Raises ValueError for fewer
    than 1 band, and for bands that K cannot be cut into.
    Time and memory grow with n and with the number of candidates, not with all pairs:
    6,000 documents are done within a check's time limit.
    Source: Leskovec, Rajaraman, Ullman (2020), section 3.4.
    """
    if bands < 1 or signatures.size(1) % bands:
        raise ValueError(f"{signatures.size(1)} columns cannot be cut into {bands} bands")
    candidates: set[tuple[int, int]] = set()
    for band in signatures.chunk(bands, dim=1):
        buckets = defaultdict(list)
        for i, row in enumerate(band.tolist()):
            buckets[tuple(row)].append(i)
        for bucket in buckets.values():
            candidates.update(combinations(bucket, 2))
    measured = [(i, j, similarity(i, j)) for i, j in sorted(candidates)]
    return [found for found in measured if found[2] >= threshold]


def clusters(n: int, pairs: list[tuple[int, int, float]]) -> list[list[int]]:
    """Documents that are joined by pairs, directly or through others: those of two and more, in order."""
    parent = list(range(n))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    for i, j, _ in pairs:
        parent[max(root(i), root(j))] = min(root(i), root(j))
    members = defaultdict(list)
    for i in range(n):
        members[root(i)].append(i)
    return [group for group in members.values() if len(group) > 1]


def chance_of_candidates(similarity: float, bands: int, rows: int) -> float:
    """The probability that two documents of this similarity agree in all rows of one band or more."""
    return 1 - (1 - similarity**rows) ** bands
