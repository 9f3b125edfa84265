"""Tables of counted tokens: by hand, by definition, and as probabilities."""

import math
from collections import Counter

import pytest
import torch

from course_utils.reference.ngrams import WittenBell, baselines, bits_per_byte, in_base


def by_definition(tokens, context, token, V):
    """p of a token after a context, from Witten and Bell's recursion on counted tuples."""
    if context is None:
        return 1 / V
    n = len(context)
    after = [tokens[i + n] for i in range(len(tokens) - n) if tuple(tokens[i : i + n]) == context]
    shorter = by_definition(tokens, context[1:] if n else None, token, V)
    if not after:
        return shorter
    kinds = len(set(after))
    return (Counter(after)[token] + kinds * shorter) / (len(after) + kinds)


def test_a_case_by_hand():
    """0 1 0 1 0 2 over three tokens: 0 was followed by 1, 1, 2, so two kinds of three."""
    table = WittenBell(torch.tensor([0, 1, 0, 1, 0, 2]), 2, 3)
    p0, p1, p2 = ((c + 3 / 3) / (6 + 3) for c in (3, 2, 1))
    after_0 = [(0 + 2 * p0) / 5, (2 + 2 * p1) / 5, (1 + 2 * p2) / 5]
    torch.testing.assert_close(
        table.distribution(torch.tensor([0])), torch.tensor(after_0, dtype=torch.float64)
    )
    torch.testing.assert_close(  # 2 was never followed: the unigrams decide
        table.distribution(torch.tensor([2])), torch.tensor([p0, p1, p2], dtype=torch.float64)
    )


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_every_probability_is_that_of_the_definition(order):
    V = 5
    g = torch.Generator().manual_seed(order)
    train = torch.randint(V - 1, (60,), generator=g, dtype=torch.int32)  # one token never occurs
    test = torch.randint(V, (30,), generator=g)
    table = WittenBell(train, order, V)
    log_p = table(test)
    assert log_p.dtype == torch.float64 and log_p.shape == (29,)
    for i in range(1, 30):
        context = tuple(test[max(0, i - order + 1) : i].tolist())
        expected = by_definition(train.tolist(), context, test[i].item(), V)
        assert log_p[i - 1].item() == pytest.approx(math.log(expected))
        chances = table.distribution(test[:i])
        assert chances[test[i]].item() == pytest.approx(expected)
        assert chances.sum().item() == pytest.approx(1) and chances.min() > 0


def test_longer_contexts_fit_the_training_text_better():
    text = torch.frombuffer(
        bytearray(b"the cat sat on the mat, the cat ate the rat. " * 9), dtype=torch.uint8
    )
    found = baselines(text, text, len(text) - 1, 256)
    assert list(found) == ["unigram", "bigram", "trigram"]
    assert found["unigram"] > found["bigram"] > found["trigram"] > 0
    assert bits_per_byte(torch.tensor([math.log(0.5)] * 6), 3) == pytest.approx(2.0)


def test_samples_follow_the_counts_and_the_seed():
    table = WittenBell(torch.tensor([0, 1, 2] * 200), 3, 3)
    draw = [table.sample([0], 20, torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert draw[0] == draw[1] and len(draw[0]) == 20
    wanted = [[(1 + i) % 3 for i in range(20)]] * 3
    hits = sum(
        a == b
        for got, want in zip(draw, wanted, strict=True)
        for a, b in zip(got, want, strict=True)
    )
    assert hits > 30
    free = WittenBell(torch.tensor([0] * 70 + [1] * 30), 1, 2)
    share = sum(free.sample([], 1000, torch.Generator().manual_seed(0))) / 1000
    assert abs(share - 0.3) < 0.05


def test_what_cannot_be_counted():
    assert in_base(torch.tensor([1, 2, 3]), 2, 10).tolist() == [12, 23]
    with pytest.raises(ValueError, match="1 tokens hold no run of 2"):
        WittenBell(torch.tensor([1]), 2, 10)
    with pytest.raises(ValueError, match="does not fit in 64 bits"):
        WittenBell(torch.tensor([1, 2, 3, 4, 5]), 5, 50257)
