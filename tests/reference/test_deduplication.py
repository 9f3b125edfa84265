"""Signatures estimate the similarity of sets, and bands find what a look at every pair finds."""

import math
from itertools import combinations

import torch

from course_utils.reference.deduplication import (
    PRIME,
    chance_of_candidates,
    clusters,
    jaccard,
    minhash,
    near_duplicates,
    shingles,
)


def functions(K, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1, PRIME, (K,), generator=generator) for _ in range(2))


def test_shingles_are_runs_of_words():
    assert len(shingles("a b c d e f")) == 2
    assert len(shingles("a b c d")) == 0
    assert torch.equal(shingles("a b  c\nd\te"), shingles("a b c d e"))
    assert len(shingles("x x x x x x x x")) == 1  # the same run again is the same shingle
    made = shingles("to be or not to be that is the question", 2)
    assert made.dtype == torch.int64 and torch.equal(made, made.unique())


def test_jaccard_is_that_of_sets():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        a, b = (torch.randint(12, (8,), generator=generator).unique() for _ in range(2))
        sets = set(a.tolist()), set(b.tolist())
        assert jaccard(a, b) == len(sets[0] & sets[1]) / len(sets[0] | sets[1])
    empty = torch.zeros(0, dtype=torch.int64)
    assert jaccard(empty, empty) == 1 and jaccard(empty, torch.tensor([1])) == 0


def test_a_signature_is_that_of_pythons_integers():
    a, b = functions(20)
    s = torch.randint(PRIME, (30,), generator=torch.Generator().manual_seed(5))
    by_hand = [
        min((x * y + z) % PRIME for y in s.tolist())
        for x, z in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert minhash(s, a, b).tolist() == by_hand


def test_equal_numbers_estimate_the_similarity():
    K = 2000
    a, b = functions(K)
    s = torch.randint(PRIME, (400,), generator=torch.Generator().manual_seed(1)).unique()
    for shared in (40, 200, 360):
        pair = s[:shared], torch.cat((s[:shared], (s[shared:] + 1) % PRIME))
        x, y = s, pair[1]
        J = jaccard(x, y)
        found = (minhash(x, a, b) == minhash(y, a, b)).double().mean().item()
        assert abs(found - J) < 5 * math.sqrt(J * (1 - J) / K)


def test_bands_find_what_every_pair_shows():
    generator = torch.Generator().manual_seed(3)
    signatures = torch.randint(3, (60, 6), generator=generator)
    sets = [set(torch.randint(8, (5,), generator=generator).tolist()) for _ in range(60)]

    def similarity(i, j):
        return len(sets[i] & sets[j]) / len(sets[i] | sets[j])

    for bands in (1, 2, 3, 6):
        parts = signatures.view(60, bands, -1)
        slow = [
            (i, j, similarity(i, j))
            for i, j in combinations(range(60), 2)
            if (parts[i] == parts[j]).all(-1).any() and similarity(i, j) >= 0.4
        ]
        assert near_duplicates(signatures, bands, similarity, 0.4) == slow


def test_the_chance_is_that_of_independent_hashes():
    a, b = functions(4 * 3000, seed=2)
    s = torch.arange(300)
    other = torch.cat((s[:150], s[150:] + 1000))
    equal = (minhash(s, a, b) == minhash(other, a, b)).view(3000, 2, 2)
    found = equal.all(-1).any(-1).double().mean().item()
    assert abs(found - chance_of_candidates(jaccard(s, other), 2, 2)) < 0.04


def test_clusters_join_through_others():
    assert clusters(6, [(0, 2, 1.0), (4, 5, 0.9), (2, 3, 0.8)]) == [[0, 2, 3], [4, 5]]
    assert clusters(3, []) == []
