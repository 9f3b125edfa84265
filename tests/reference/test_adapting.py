"""What chapter 26 adapts the course's model to: texts, requests, methods, and how they are judged."""

import ast

import pytest
import torch

from course_utils.reference import adapting
from course_utils.reference.adapting import (
    METHODS,
    Request,
    answer_log_probs,
    answer_of,
    answers,
    documentation,
    examples,
    prompt_of,
    python_tokens,
    requests,
    share_seen,
    topic_tokens,
    trained,
)
from course_utils.reference.gpt2 import GPT2, GPT2Config
from course_utils.reference.lora import masked_instruction_loss
from course_utils.reference.pretrained import course_model, course_tokenizer
from course_utils.reference.tokenization import END_OF_TEXT

TOKENIZER = course_tokenizer()
SMALL = GPT2Config(2048, 128, 24, 2, 3, 0.0)


def test_no_topic_is_on_both_sides():
    train, judged = documentation()
    assert len(train) > 3 * len(judged) > 15 and not set(train) & set(judged)
    assert share_seen(train, judged) == 0
    by_name, same = documentation(clean=False)
    assert same == judged and train.items() < by_name.items()
    assert share_seen(by_name, judged) > 0.4
    tokens = topic_tokens(judged, TOKENIZER)
    assert (tokens == TOKENIZER.special[END_OF_TEXT]).sum() == len(judged)


def test_the_python_that_judges_is_whole():
    tokens = python_tokens(TOKENIZER, most=5000)
    assert 128 < len(tokens) <= 5000 and tokens[0] == TOKENIZER.special[END_OF_TEXT]


@pytest.mark.parametrize("hint", [False, True])
def test_an_answer_is_the_class_that_was_asked_for(hint):
    for request in requests("train", 50) + requests("held_out", 50):
        (made,) = ast.parse(answer_of(request, hint)).body
        assert isinstance(made, ast.ClassDef) and made.name == request.name
        (init,) = made.body
        assert [arg.arg for arg in init.args.args[1:]] == list(request.attributes)
        assert (init.returns is not None) == hint
    one = Request("Point", ("x", "y", "z"))
    assert prompt_of(one) == "# Write a class Point with x, y and z.\n"


def test_names_that_judge_are_never_trained_on():
    def words(part):
        found = requests(part, 2000, seed=3)
        return {one.name for one in found} | {a for one in found for a in one.attributes}

    train, judged = words("train"), words("held_out")
    assert not train & judged and len(judged) > 15
    assert requests("train", 5) == requests("train", 5) != requests("train", 5, seed=1)


def test_rows_begin_with_the_prompt_and_end_with_the_end():
    stop = TOKENIZER.special[END_OF_TEXT]
    pairs = [("# a\n", "x = 1\n"), ("# a b c\n", "y\n")]
    ids, prompts, lengths = examples(pairs, TOKENIZER)
    for row, p, n, (prompt, answer) in zip(ids, prompts, lengths, pairs, strict=True):
        assert TOKENIZER.decode(row[:p].tolist()) == prompt
        assert TOKENIZER.decode(row[p : n - 1].tolist()) == answer
        assert (row[n - 1 :] == stop).all()
    without = examples(pairs, TOKENIZER, end=False)
    assert torch.equal(without.lengths, lengths - 1)


def test_log_probs_of_answers_are_the_masked_loss_summed():
    torch.manual_seed(0)
    ids, prompts, lengths = examples([("# a\n", "x = 1\n"), ("# b\n", "y\n")], TOKENIZER)
    logits = torch.randn(*ids.shape, 2048)
    found = answer_log_probs(logits, ids, prompts, lengths)
    loss = masked_instruction_loss(logits, ids, prompts, lengths)
    torch.testing.assert_close(-found.sum() / (lengths - prompts).sum(), loss)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_begins_as_the_model_and_trains_what_it_says(method):
    torch.manual_seed(0)
    plain = GPT2(SMALL).eval()
    torch.manual_seed(0)
    model = METHODS[method](GPT2(SMALL).eval())
    ids = torch.randint(2048, (2, 16))
    assert torch.equal(model(ids), plain(ids))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    adapting.adapt(model, torch.randint(2048, (400,)), steps=3, lr=1e-2, batch=2, context=16)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved and moved <= {n for n, p in model.named_parameters() if p.requires_grad}
    if method == "head":
        assert torch.equal(model.transformer.wte.weight, plain.transformer.wte.weight)
    assert sum(p.numel() for p in trained(model)) > 0


def test_answers_of_a_batch_are_those_of_single_prompts():
    model = course_model()
    prompts = ["def f(", "class Point:\n    def __init__(self"]
    alone = [answers(model, TOKENIZER, [one], longest=12)[0] for one in prompts]
    assert answers(model, TOKENIZER, prompts, longest=12) == alone


def test_the_rate_rises_and_falls():
    rates = [adapting.rate(step, 100, 1.0) for step in range(100)]
    assert rates[0] == 0.1 and 0.9 < max(rates) <= 1.0 and rates[-1] < 0.11


@pytest.mark.parametrize("mask", adapting.MASKS)
def test_training_on_requests(mask):
    torch.manual_seed(0)
    model = METHODS["LoRA"](GPT2(SMALL).eval())
    losses = adapting.instruct(model, TOKENIZER, 3, 1e-2, batch=2, mask=mask)
    assert len(losses) == 3 and all(0 < x < 20 for x in losses)
