"""The book's generation is transformers': filters, greedy tokens, padded batches; and it is exact where
it claims to be: the distribution of speculative decoding, pass@k, a stream's text."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.meters import measure
from course_utils.reference.attention import causal_mask, scaled_dot_product_attention
from course_utils.reference.generation import (
    CachedGPT2,
    KVCache,
    SlidingKVCache,
    bits_per_byte,
    choose_by_likelihood,
    expected_tokens,
    forward_with_cache,
    generate,
    min_p_filter,
    new_cache,
    next_token_probs,
    pass_at_k,
    perplexity,
    positions_and_mask,
    repetition_penalty,
    sample_token,
    speculative_accept,
    speculative_generate,
    stop_stream,
    top_k_filter,
    top_p_filter,
)
from course_utils.reference.gpt2 import GPT2, GPT2Config
from course_utils.reference.gpt2 import generate as uncached

SIZES = {"vocab_size": 97, "n_positions": 64, "n_embd": 24, "n_layer": 2, "n_head": 3}


def tiny(seed=0, scale=5.0, **sizes):
    """A GPT-2 whose logits differ by more than rounding."""
    torch.manual_seed(seed)
    model = GPT2(GPT2Config(**SIZES | {"dropout": 0.0} | sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def random_ids(*shape, seed=0):
    return torch.randint(97, shape, generator=torch.Generator().manual_seed(seed))


def logits_of(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(*shape, generator=generator, dtype=dtype)


# ------------------------------------------------------------------------------ one token


@pytest.mark.parametrize("k", [1, 3, 50, 97, 200])
def test_top_k_is_transformers(k):
    library = pytest.importorskip("transformers.generation.logits_process")
    logits = logits_of(4, 97).round(decimals=1)  # ties
    assert torch.equal(top_k_filter(logits, k), library.TopKLogitsWarper(k)(None, logits))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 0.999])
def test_top_p_is_transformers(p):
    library = pytest.importorskip("transformers.generation.logits_process")
    logits = logits_of(4, 97)
    assert torch.equal(top_p_filter(logits, p), library.TopPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 1.0])
def test_min_p_is_transformers(p):
    library = pytest.importorskip("transformers.generation.logits_process")
    logits = logits_of(4, 97)
    assert torch.equal(min_p_filter(logits, p), library.MinPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3])
def test_repetition_penalty_is_transformers(penalty):
    library = pytest.importorskip("transformers.generation.logits_process")
    logits, ids = logits_of(4, 97), random_ids(4, 30)
    theirs = library.RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
    torch.testing.assert_close(repetition_penalty(logits, ids, penalty), theirs)


@given(st.integers(0, 1000), st.floats(0.01, 1))
def test_the_nucleus_is_the_smallest_set(seed, p):
    logits = logits_of(7, seed=seed, dtype=torch.float64)
    probs = logits.softmax(-1)
    kept = probs[top_p_filter(logits, p).isfinite()]
    assert kept.sum() >= p - 1e-12 and kept.sum() - kept.min() < p + 1e-12
    assert kept.min() >= probs.sort(descending=True).values[len(kept) - 1]


def test_filters_are_in_transformers_order():
    library = pytest.importorskip("transformers.generation.logits_process")
    logits = logits_of(4, 97)
    chain = (
        library.TemperatureLogitsWarper(1.7),
        library.TopKLogitsWarper(20),
        library.TopPLogitsWarper(0.8),
        library.MinPLogitsWarper(0.1),
    )
    scores = logits
    for warp in chain:
        scores = warp(None, scores)
    ours = next_token_probs(logits, temperature=1.7, top_k=20, top_p=0.8, min_p=0.1)
    torch.testing.assert_close(ours, scores.softmax(-1))


def test_tokens_come_in_proportion():
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0]]).expand(20_000, -1)
    counts = sample_token(probs, torch.Generator().manual_seed(0)).bincount(minlength=4)
    assert (counts / 20_000 - probs[0]).abs().max() < 0.02 and counts[3] == 0


# ------------------------------------------------------------------------------ a cache


@pytest.mark.parametrize("cuts", [(9,), (1,) * 9, (4, 1, 1, 3), (2, 7)])
def test_a_cache_changes_nothing(cuts):
    model, ids = tiny(), random_ids(2, 9)
    cache = new_cache(model, 2, 9)
    parts = [forward_with_cache(model, part, cache) for part in ids.split(cuts, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids).detach(), atol=1e-4, rtol=1e-4)
    cache.truncate(3)
    again = forward_with_cache(model, ids[:, 3:], cache)
    torch.testing.assert_close(again, model(ids)[:, 3:].detach(), atol=1e-4, rtol=1e-4)


def test_bytes_of_a_cache_are_the_formulas():
    model = tiny()
    for batch, capacity in ((1, 10), (3, 64)):
        assert new_cache(model, batch, capacity).nbytes == 2 * 2 * 3 * 8 * 4 * batch * capacity
    grouped = KVCache(2, 1, 10, 8, torch.float16)
    assert grouped.k.nbytes + grouped.v.nbytes == 2 * 1 * 8 * 2 * 2 * 10


def test_the_model_is_asked_to_be_in_eval_mode_and_in_its_context():
    model = tiny()
    with pytest.raises(ValueError, match="eval"):
        forward_with_cache(model.train(), random_ids(1, 2), new_cache(model, 1, 9))
    with pytest.raises(ValueError, match="positions"):
        forward_with_cache(model.eval(), random_ids(1, 65), new_cache(model, 1, 99))
    with pytest.raises(ValueError, match="room for 3"):
        forward_with_cache(model, random_ids(1, 4), new_cache(model, 1, 3))


def test_a_ring_is_a_sliding_window():
    q, k, v = torch.randn(3, 1, 2, 11, 4, dtype=torch.float64)
    ring = SlidingKVCache(1, 2, 4, 4)
    ring.k, ring.v = ring.k.double(), ring.v.double()
    whole = scaled_dot_product_attention(q, k, v, causal_mask(11, 11, window=4))
    for t in range(11):
        kept = ring.append(k[:, :, t : t + 1], v[:, :, t : t + 1])
        ours = scaled_dot_product_attention(q[:, :, t : t + 1], *kept)
        torch.testing.assert_close(ours, whole[:, :, t : t + 1])


def test_a_ring_refuses_several_tokens_and_keeps_none_of_them():
    ring = SlidingKVCache(1, 2, 4, 4)
    six = torch.randn(1, 2, 6, 4)
    for k in (six, six[:, :, :0]):
        with pytest.raises(ValueError, match="one token at a time"):
            ring.append(k, k)
    assert ring.length == 0 and not ring.k.any()


def padded(rows):
    longest = max(map(len, rows))
    padding = torch.tensor([longest - len(row) for row in rows])
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    return ids, padding


def test_a_padded_batch_is_its_rows_alone():
    model = tiny()
    rows = [random_ids(n, seed=n).tolist() for n in (3, 9, 1, 6)]
    ids, padding = padded(rows)
    cache = new_cache(model, 4, 12, padding)
    logits = forward_with_cache(model, ids, cache)
    more = forward_with_cache(model, random_ids(4, 3, seed=5), cache)
    for i, row in enumerate(rows):
        alone = model(torch.tensor([row + random_ids(4, 3, seed=5)[i].tolist()]))[0].detach()
        ours = torch.cat((logits[i, padding[i] :], more[i]))
        torch.testing.assert_close(ours, alone, atol=1e-4, rtol=1e-4)


def test_positions_are_transformers():
    padding = torch.tensor([2, 0, 4])
    positions, _ = positions_and_mask(padding, 5, 5)
    attention = (torch.arange(5) >= padding[:, None]).long()
    theirs = (attention.cumsum(-1) - 1).clamp(min=0)
    assert torch.equal(positions, theirs)


# ------------------------------------------------------------------------------ a text


@pytest.fixture(scope="module")
def theirs():
    transformers = pytest.importorskip("transformers")
    ours = tiny()
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=64, n_embd=24, n_layer=2, n_head=3, resid_pdrop=0.0
    )
    config.eos_token_id = config.bos_token_id = None
    model = transformers.GPT2LMHeadModel(config).eval()
    state = {
        name: x.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else x
        for name, x in ours.state_dict().items()
    }
    model.load_state_dict(state, strict=False)
    return ours, model


def test_greedy_tokens_are_transformers(theirs):
    ours, model = theirs
    ids = random_ids(3, 7)
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=0
    )
    assert torch.equal(generate(CachedGPT2(ours), ids, 20, temperature=0.0), expected)


def test_padded_greedy_tokens_are_transformers(theirs):
    ours, model = theirs
    ids, padding = padded([random_ids(n, seed=n).tolist() for n in (3, 9, 1, 6)])
    attention = (torch.arange(9) >= padding[:, None]).long()
    expected = model.generate(
        ids, attention_mask=attention, max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    result = generate(CachedGPT2(ours), ids, 12, padding=padding, temperature=0.0)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 5}])
def test_it_is_chapter_23s_sampler_with_a_cache(settings):
    model, ids = tiny(), random_ids(2, 7)
    ours = generate(
        CachedGPT2(model), ids, 20, generator=torch.Generator().manual_seed(1), **settings
    )
    plain = uncached(model, ids, 20, generator=torch.Generator().manual_seed(1), **settings)
    assert torch.equal(ours, plain)


def test_a_stop_token_ends_a_row_and_then_the_batch():
    model, ids = CachedGPT2(tiny()), random_ids(2, 7)
    free = generate(model, ids, 20, temperature=0.0)
    stop = {int(free[0, 9]), int(free[1, 12])}
    ended = generate(model, ids, 20, temperature=0.0, stop=stop)
    assert ended.size(1) <= 13 < free.size(1)
    for row, whole in zip(ended[:, 7:].tolist(), free[:, 7:].tolist(), strict=True):
        first = next(i for i, token in enumerate(whole) if token in stop)
        assert row[: first + 1] == whole[: first + 1] and set(row[first:]) == {whole[first]}


def test_a_step_costs_the_flops_of_one_token():
    model = tiny()
    wrapped = CachedGPT2(model)
    cache = wrapped.new_cache(1, 50)
    D, L, V = 24, 2, 97
    for T in (20, 1, 1):
        with measure() as cost:
            wrapped(random_ids(1, T), cache)
        attention = 4 * D * L * T * cache.length
        assert cost.flops == 2 * 12 * D * D * L * T + 2 * D * V + attention


# ------------------------------------------------------------------------------ speculative decoding


def outcomes(target, draft, drafted):
    """Every outcome of one call, exactly: (accepted, probabilities of the next token) and its chance.

    Where a token's fate changes with u is found by bisection, so the rule itself is not presumed.
    """
    K = len(drafted)
    edges = []
    for i in range(K):
        low, high = 0.0, 1.0  # u below low is accepted, u from high on is not
        others = torch.zeros(K, dtype=torch.float64)
        reaches = [speculative_accept(target, draft, drafted, others)[0] >= i]
        if not all(reaches):
            edges.append(0.0)
            continue
        for _ in range(60):
            middle = (low + high) / 2
            others[i] = middle
            if speculative_accept(target, draft, drafted, others)[0] > i:
                low = middle
            else:
                high = middle
        edges.append(low)
    for fates in itertools.product((True, False), repeat=K):
        chance = math.prod(e if fate else 1 - e for e, fate in zip(edges, fates, strict=True))
        if chance > 1e-15:
            middles = [e / 2 if fate else (1 + e) / 2 for e, fate in zip(edges, fates, strict=True)]
            u = torch.tensor(middles, dtype=torch.float64)
            yield chance, speculative_accept(target, draft, drafted, u)


@pytest.mark.parametrize("seed", range(2))
def test_the_distribution_is_the_large_models(seed):
    """Two drafted tokens of five, and what follows: every text of three tokens, in float64."""
    generator = torch.Generator().manual_seed(seed)
    V, K = 5, 2
    large, small = (
        (2 * torch.randn(1 + V + V * V, V, generator=generator, dtype=torch.float64)).softmax(-1)
        for _ in range(2)
    )

    def row(model, text):
        return model[{0: 0, 1: 1, 2: 1 + V}[len(text)] + sum(t * V**i for i, t in enumerate(text))]

    found: dict[tuple[int, ...], float] = {}
    for drafted in itertools.product(range(V), repeat=K):
        chance = math.prod(row(small, drafted[:i])[drafted[i]].item() for i in range(K))
        target = torch.stack([row(large, drafted[:i]) for i in range(K + 1)])
        draft = torch.stack([row(small, drafted[:i]) for i in range(K)])
        for weight, (n, probs) in outcomes(target, draft, torch.tensor(drafted)):
            for token in range(V):
                text = (*drafted[:n], token)
                share = chance * weight * probs[token].item()
                # what comes after a text that ended early is the large model's own
                for rest in itertools.product(range(V), repeat=K + 1 - len(text)):
                    whole = text + rest
                    after = [
                        row(large, whole[:i])[whole[i]].item() for i in range(len(text), K + 1)
                    ]
                    found[whole] = found.get(whole, 0.0) + share * math.prod(after)
    for text in itertools.product(range(V), repeat=K + 1):
        due = math.prod(row(large, text[:i])[text[i]].item() for i in range(K + 1))
        assert found[text] == pytest.approx(due, abs=1e-13)


def test_a_draft_that_is_the_model_is_always_accepted():
    model = tiny()
    ids, counts = speculative_generate(model, model, random_ids(1, 5), 14, lookahead=4)
    assert ids.shape == (1, 19) and counts == [4, 4, 3]


def test_speculative_tokens_are_the_models_when_it_is_nearly_greedy():
    model, draft = tiny(), tiny(1, n_layer=1)
    ids = random_ids(1, 5)
    ours, counts = speculative_generate(model, draft, ids, 25, temperature=1e-5)
    assert torch.equal(ours, generate(CachedGPT2(model), ids, 25, temperature=0.0))
    assert sum(counts) + len(counts) == 25


def test_expected_tokens_is_the_closed_form():
    for alpha in (0.1, 0.5, 0.9):
        assert expected_tokens(alpha, 4) == pytest.approx((1 - alpha**5) / (1 - alpha))


@settings(max_examples=200)
@given(
    st.lists(st.text("abc", max_size=4), max_size=6),
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
)
def test_a_stream_stops_where_the_whole_text_does(pieces, stops):
    text = "".join(pieces)
    ends = [
        (end, -len(stop))
        for end in range(len(text) + 1)
        for stop in stops
        if text[:end].endswith(stop)
    ]
    due = text if not ends else text[: min(ends)[0] + min(ends)[1]]
    given = list(stop_stream(iter(pieces), stops))
    assert "".join(given) == due and "" not in given
    assert "".join(stop_stream(text, stops)) == due  # one character at a time


# ------------------------------------------------------------------------------ how good is it


def test_perplexity_of_one_window_is_the_losss_exponential():
    model, ids = tiny(), random_ids(30)
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(ids[None, :-1])[0], ids[1:])
    assert perplexity(model, ids, 30, 30) == pytest.approx(math.exp(loss), rel=1e-5)


@pytest.mark.parametrize(("context", "stride"), [(8, 8), (8, 3), (8, 1), (1, 1)])
def test_windows_count_each_token_once(context, stride):
    seen = []

    def uniform(ids):
        seen.append(ids.size(1))
        return torch.zeros(1, ids.size(1), 97)

    assert perplexity(uniform, random_ids(30), context, stride) == pytest.approx(97)
    assert max(seen) == context and len(seen) == 1 + math.ceil((29 - context) / stride)


def test_every_prediction_of_a_small_stride_has_the_whole_context():
    model, ids = tiny(), random_ids(30)
    nats = 0.0
    for t in range(1, 30):
        with torch.no_grad():
            nats -= model(ids[None, max(t - 8, 0) : t])[0, -1].log_softmax(-1)[ids[t]].item()
    assert perplexity(model, ids, 8, 1) == pytest.approx(math.exp(nats / 29), rel=1e-5)


def test_bits_per_byte_of_uniform_bytes_are_eight():
    assert bits_per_byte(256.0, 10, 10) == 8.0


def test_choices_are_scored_by_their_own_tokens():
    model = tiny()
    whole = choose_by_likelihood(model, [1, 2], [[3], [4, 5]], normalise=False)
    mean = choose_by_likelihood(model, [1, 2], [[3], [4, 5]])
    assert mean == [whole[0], whole[1] / 2]
    logs = model(torch.tensor([[1, 2, 4]])).log_softmax(-1)[0]
    assert whole[1] == pytest.approx((logs[1, 4] + logs[2, 5]).item(), rel=1e-5)


@given(st.integers(1, 30), st.data())
def test_pass_at_k_is_humanevals(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    if n - c < k:
        theirs = 1.0
    else:
        theirs = 1.0 - math.prod(1 - k / i for i in range(n - c + 1, n + 1))
    assert pass_at_k(n, c, k) == pytest.approx(theirs, abs=1e-12)


def test_pass_at_k_has_no_bias():
    p, n, k = 0.3, 6, 3
    mean = sum(
        math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1)
    )
    assert mean == pytest.approx(1 - (1 - p) ** k)
