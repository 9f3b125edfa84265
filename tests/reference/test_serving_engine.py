"""Chapter 28's engine: every request gets what it would get alone, and everything is given back."""

import random
from collections import Counter

import pytest
import torch

from course_utils.authoring.counts import count
from course_utils.reference.gpt2 import GPT2, GPT2Config
from course_utils.reference.pretrained import course_model, course_tokenizer
from course_utils.reference.serving import static_batching
from course_utils.reference.serving_engine import Engine, GenerationRequest
from tests.support.alone import alone, compared

CONFIG = GPT2Config(vocab_size=61, n_positions=64, n_embd=24, n_layer=2, n_head=3, dropout=0.0)


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    model = GPT2(CONFIG).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6)  # so that it has opinions
    return model


def drawn_request(rng, V, longest, stop=()):
    prompt = tuple(rng.choice([rng.randrange(V), 5]) for _ in range(rng.randint(1, longest // 2)))
    if rng.random() < 0.5:
        prompt = (7,) * 12 + prompt[: longest - 13 - len(prompt)]
    return GenerationRequest(
        prompt[: longest - 1],
        rng.randint(1, longest - len(prompt[: longest - 1])),
        rng.choice([0.0, 0.7, 1.3]),
        rng.choice([None, 9]),
        rng.choice([None, 0.8]),
        rng.randrange(1000),
        frozenset(stop),
    )


def watched(engine):
    """The engine, which fails if a step writes into a block that more than one table has."""
    read = engine._read

    def checked(plan, done):
        for job, n in plan:
            table, P = engine.tables.tables[job.name], engine.block_size
            for p in range(job.read, job.read + n):
                assert engine.tables.pool.uses[table[p // P]] == 1
        return read(plan, done)

    engine._read = checked
    return engine


def run(engine, requests, cancelled=(), rng=None):
    """All tokens by name. Requests arrive while others run; some of them are cancelled."""
    tokens, ends, waiting = {}, {}, dict(enumerate(requests))
    while waiting or not engine.idle:
        for name in [name for name in waiting if rng is None or rng.random() < 0.3]:
            engine.add(name, waiting.pop(name))
            tokens[name] = []
        for event in engine.step():
            assert event.name not in ends
            tokens[event.name].append(event.token)
            if event.finish:
                ends[event.name] = event.finish
        for name in cancelled:
            if name in tokens and name not in ends and len(tokens[name]) >= name % 5:
                engine.cancel(name)
                ends[name] = "cancelled"
    return tokens, ends


@pytest.mark.parametrize(
    "sizes",
    [
        {"slots": 4, "n_blocks": 64, "block_size": 4, "budget": 64},
        {"slots": 8, "n_blocks": 17, "block_size": 4, "budget": 9},
        {"slots": 8, "n_blocks": 11, "block_size": 7, "budget": 30},
        {"slots": 3, "n_blocks": 200, "block_size": 1, "budget": 3},
        {"slots": 1, "n_blocks": 1, "block_size": 64, "budget": 5},
        {"slots": 5, "n_blocks": 40, "block_size": 5, "budget": 40, "policy": static_batching},
    ],
)
def test_a_request_gets_what_it_would_get_alone(small, sizes):
    rng = random.Random(str(sizes["block_size"]))
    requests = [drawn_request(rng, CONFIG.vocab_size, 64, stop=(3,)) for _ in range(14)]
    cancelled = {name for name in range(14) if rng.random() < 0.2}
    engine = watched(Engine(small, **sizes))
    tokens, ends = run(engine, requests, cancelled, rng)
    found = Counter()
    for name, request in enumerate(requests):
        due = alone(small, request)
        if ends[name] == "cancelled":
            found[compared(small, request, tokens[name], due[: len(tokens[name])])] += 1
        else:
            found[compared(small, request, tokens[name], due)] += 1
            assert ends[name] == ("stop" if due[-1] == 3 else "length")
    assert found["different"] == 0, found
    count("answers of the engine, equal to those of an unbatched run", found["equal"])
    pool = engine.tables.pool
    assert len(pool) == len(pool.uses) and not any(pool.uses) and not engine.tables.tables
    if sizes["n_blocks"] == 17:
        assert engine.counts.preempted > 5
    if sizes["n_blocks"] == 64:
        assert engine.counts.shared > 40 and engine.counts.preempted == 0


def test_the_course_model_in_float64():
    model, tokenizer = course_model().double(), course_tokenizer()
    end = tokenizer.special["<|endoftext|>"]
    begin = (end, *tokenizer.encode("import os\n\n\ndef read(path, encoding=None):\n    "))
    prompts = [(*begin, *tokenizer.encode(more)) for more in ("return", "if path", "", "x = ")]
    requests = [
        GenerationRequest(
            prompts[i % 4], 24, (0.0, 0.8, 1.0)[i % 3], None, 0.95, i, frozenset([end])
        )
        for i in range(16)
    ]
    engine = watched(Engine(model, slots=6, n_blocks=30))
    tokens, _ = run(engine, requests)
    found = Counter(
        compared(model, request, tokens[i], alone(model, request))
        for i, request in enumerate(requests)
    )
    assert found["different"] == 0, found
    count("answers of the engine, equal to those of an unbatched run", found["equal"])
    assert engine.counts.shared > 0


def test_nobody_who_decodes_waits_for_a_prompt(small):
    engine = Engine(small, slots=4, n_blocks=64, block_size=4, budget=8)
    engine.add("a", GenerationRequest((1, 2), 20, seed=0))
    engine.step()
    engine.add("b", GenerationRequest((1,) * 40, 4, seed=0))
    steps = 0
    while engine.waiting or any(job.name == "b" and job.unread > 1 for job in engine.running):
        assert next(event.name for event in engine.step()) == "a"
        assert sum(n for _, n in engine.last) <= 8
        steps += 1
    assert steps >= 5


def test_equal_beginnings_are_read_once(small):
    engine = Engine(small, slots=2, n_blocks=64, block_size=4, budget=64)
    prompt = tuple(range(22))
    for name in "ab":
        engine.add(name, GenerationRequest(prompt, 3, seed=0))
        while not engine.idle:
            engine.step()
    assert engine.counts.shared == 20  # five of six blocks; the sixth is not full
    assert engine.counts.read == 2 * (22 + 2) - 20


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (GenerationRequest(()), "a prompt has a token"),
        (GenerationRequest((1,), 0), "a prompt has a token"),
        (GenerationRequest((1,) * 60, 5), "there is room for 64"),
        (GenerationRequest((61,)), "tokens are 0 to 60"),
        (GenerationRequest((-1,)), "tokens are 0 to 60"),
        (GenerationRequest((1,), temperature=-1.0), "temperature"),
        (GenerationRequest((1,), top_p=0.0), "probability above 0"),
        (GenerationRequest((1,), top_k=0), "at least one token"),
    ],
)
def test_what_cannot_be_served(small, request_, why):
    engine = Engine(small, n_blocks=64, block_size=4)
    with pytest.raises(ValueError, match=why):
        engine.add("a", request_)
    assert engine.idle


def test_what_makes_no_engine(small):
    for wrong in ({"slots": 0}, {"n_blocks": 0}, {"block_size": 0}, {"slots": 5, "budget": 4}):
        with pytest.raises(ValueError, match=r"least|slots"):
            Engine(small, **wrong)
    with pytest.raises(ValueError, match="eval"):
        Engine(GPT2(CONFIG))


def test_a_seed_is_the_request_s_own(small):
    """The same text, whatever runs beside it; without a seed another one each time."""
    texts = []
    for beside in (0, 5):
        engine = Engine(small, slots=8, n_blocks=64, block_size=4, budget=64)
        for i in range(beside):
            engine.add(i, GenerationRequest((i, 2, 3), 30, 1.0))
        engine.add("it", GenerationRequest((9, 8), 30, 1.0, seed=4))
        engine.add("free", GenerationRequest((9, 8), 30, 1.0))
        tokens = {"it": [], "free": []}
        while not engine.idle:
            for event in engine.step():
                tokens.get(event.name, []).append(event.token)
        texts.append(tokens)
    assert texts[0]["it"] == texts[1]["it"]
    assert texts[0]["free"] != texts[1]["free"]
