"""The probes of chapter 23: configs and parts by annotation, pairs that know one another, messages."""

import copy

import pytest
import torch
from torch import nn

from course_utils.authoring.proofs import standalone
from course_utils.grading import call, find, probes
from course_utils.grading.declaring.cells import solution_cell
from course_utils.grading.probes.chapters.gpt2 import Sizes, annotated, config_for, named, parts_for
from course_utils.reference import gpt2

SIZES = {"vocab_size": 7, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 2, "dropout": 0.0}


def test_a_config_is_of_the_class_that_is_asked_for():
    class Bare(nn.Module):
        def __init__(self, config, parts=None):
            super().__init__()

    class Heir(gpt2.Block):
        def __init__(self, config, parts=None):
            super().__init__(config, parts)

    assert annotated(gpt2.MLP, "config") is gpt2.GPT2Config is annotated(Heir, "config")
    assert isinstance(config_for(Bare, SIZES), Sizes)
    assert isinstance(parts_for(Heir, {"mlp": "square"}), gpt2.Parts)
    assert parts_for(Bare, {"mlp": "square"}).block is None


def test_gpt2_runs_on_the_transformer_of_its_pair_and_forgets_it_afterwards():
    class Louder(gpt2.Transformer):
        def forward(self, ids, mask=None):
            return 2 * super().forward(ids, mask)

    case = call(SIZES, {}, 3, ("eval", torch.tensor([[1, 2, 3]])))
    book = probes.gpt2_model({"GPT2": gpt2.GPT2, "Transformer": gpt2.Transformer}, case)
    before = gpt2.Transformer
    louder = probes.gpt2_model({"GPT2": gpt2.GPT2, "Transformer": Louder}, case)
    torch.testing.assert_close(louder["step 1 (eval): logits"], 2 * book["step 1 (eval): logits"])
    assert gpt2.Transformer is before


def test_a_name_in_a_message_is_that_name():
    assert named("h.1.ln_2.bias", "transformer.h.1.ln_2.bias: missing")
    assert not named("h.1.ln_2.bias", "transformer.h.11.ln_2.bias: missing")
    assert not named("attn.bias", "h.0.c_attn.bias")


def test_a_solution_brings_its_decorated_helpers_whole():
    """Standing alone, a reference needs the dataclasses that its stub names."""
    _, text = standalone(find("gpt2.MLP"))
    assert "@dataclass(frozen=True)\nclass GPT2Config" in text
    assert "class GPT2(Pretrained)" in solution_cell("gpt2.GPT2")


@pytest.mark.parametrize("block", [None, gpt2.Block])
def test_parts_can_bring_their_own_block(block):
    class Silent(gpt2.Block):
        def forward(self, x, mask=None):
            return x

    ids = torch.tensor([[1, 2, 3]])
    config = gpt2.GPT2Config(**SIZES)
    book = gpt2.GPT2(config, gpt2.Parts(block=block)).eval()
    silent = gpt2.GPT2(config, gpt2.Parts(block=Silent)).eval()
    silent.load_state_dict(copy.deepcopy(book.state_dict()))
    assert not torch.allclose(book(ids), silent(ids))


def test_a_message_may_name_the_embedding_that_an_untied_head_is_compared_with():
    ex = find("gpt2.load_hf_state_dict")

    def raising(says):
        def load(model, state):
            raise ValueError(says)

        return load

    def told(why, says):
        case = next(c for c in ex.all_cases() if c.why == why)
        return ex.probe(raising(says), case)["its message names"]

    assert told("an untied head", "lm_head.weight is not wte.weight") == ["lm_head.weight"]
    assert told("an untied head", "wte.weight is another") == []
    missing = "the embedding is missing, and the head is there"
    assert told(missing, "lm_head.weight has no wte.weight") == ["wte.weight"]
    assert told("nothing at all", "lm_head.weight") == ["lm_head.weight"]
