"""The book's Llama against transformers' own, and each step from GPT-2 to it."""

import ast
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from course_utils.reference import llama
from course_utils.reference.gpt2 import GPT2, Parts, next_token_loss
from course_utils.reference.llama import (
    STEPS,
    LlamaConfig,
    RotaryAttention,
    RotaryGPT2,
    SwiGLU,
    hf_state_dict,
)

os.environ["HF_HUB_OFFLINE"] = "1"
SMALL = LlamaConfig(97, 16, 24, 2, 6, n_kv_head=2, n_inner=40, rope_base=10_000.0)


def settings(config: LlamaConfig, **more):
    """transformers' config of the same sizes."""
    from transformers import LlamaConfig as Settings

    return Settings(
        vocab_size=config.vocab_size,
        max_position_embeddings=config.n_positions,
        hidden_size=config.n_embd,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        num_key_value_heads=config.n_kv_head,
        intermediate_size=config.n_inner,
        rms_norm_eps=config.layer_norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        tie_word_embeddings=more.pop("tie_word_embeddings", True),
        **more,
    )


def pair(config: LlamaConfig):
    """The last step's model and transformers' with the same weights, in float64."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    kind, parts = STEPS["+ GQA"]
    mine = kind(config, parts).double().eval()
    with torch.no_grad():  # as if trained: no norm is one
        for p in mine.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    theirs = LlamaForCausalLM(settings(config)).double().eval()
    theirs.load_state_dict(hf_state_dict(mine))
    return mine, theirs


def ids_of(config: LlamaConfig, B: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (B, config.n_positions), generator=generator)


@pytest.mark.parametrize("n_kv_head", [1, 2, 6])
@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_logits_loss_and_gradients_equal_transformers(n_kv_head, base):
    config = replace(SMALL, n_kv_head=n_kv_head, rope_base=base)
    mine, theirs = pair(config)
    ids = ids_of(config)
    expected = theirs(ids).logits
    # its angles are float32, whatever the weights are
    torch.testing.assert_close(mine(ids), expected, rtol=0, atol=1e-5)
    assert expected.abs().max() > 1
    loss = F.cross_entropy(mine(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    theirs(ids, labels=ids).loss.backward()
    wte = mine.transformer.wte.weight.grad
    torch.testing.assert_close(wte, theirs.model.embed_tokens.weight.grad, rtol=0, atol=1e-5)
    gate = mine.transformer.h[1].mlp.c_gate.weight.grad
    other = theirs.model.layers[1].mlp.gate_proj.weight.grad
    torch.testing.assert_close(gate, other, rtol=0, atol=1e-5)


def test_swiglu_is_transformers():
    from transformers.models.llama.modeling_llama import LlamaMLP

    torch.manual_seed(0)
    mine, theirs = SwiGLU(SMALL), LlamaMLP(settings(SMALL))
    for ours, name in (("c_gate", "gate_proj"), ("c_fc", "up_proj"), ("c_proj", "down_proj")):
        theirs.get_submodule(name).load_state_dict(mine.get_submodule(ours).state_dict())
    x = torch.randn(2, 3, SMALL.n_embd)
    torch.testing.assert_close(mine(x), theirs(x))


def test_with_padding():
    mine, theirs = pair(SMALL)
    ids = ids_of(SMALL)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :5] = False
    mask[1, -4:] = False
    with torch.no_grad():
        got, expected = mine(ids, mask), theirs(ids, attention_mask=mask.long()).logits
    assert got.isfinite().all()
    torch.testing.assert_close(got[mask], expected[mask], rtol=0, atol=1e-5)


def test_each_step_sees_no_later_token_and_knows_the_order():
    ids = ids_of(SMALL, B=1)
    changed, swapped = ids.clone(), ids.clone()
    changed[0, 9] = (ids[0, 9] + 1) % SMALL.vocab_size
    swapped[0, :2] = ids[0, :2].flip(0)
    for kind, parts in STEPS.values():
        torch.manual_seed(0)
        model = kind(SMALL, parts).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.1)
            a, b, c = model(ids), model(changed), model(swapped)
        torch.testing.assert_close(a[:, :9], b[:, :9], rtol=0, atol=1e-5)
        assert not torch.allclose(a[:, 9:], b[:, 9:])
        assert not torch.allclose(a[:, 5:], c[:, 5:], atol=1e-4)


def test_scores_depend_on_the_distance_alone():
    """The same tokens later in the sequence: padding before them changes nothing."""
    torch.manual_seed(0)
    model = RotaryGPT2(SMALL, Parts(attention=RotaryAttention)).double().eval()
    ids = ids_of(SMALL, B=1)[:, :8]
    late = torch.cat([torch.zeros_like(ids), ids], dim=1)
    mask = torch.arange(16)[None] >= 8
    torch.testing.assert_close(model(late, mask)[:, 8:], model(ids), rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="17 positions; the context has 16"):
        model(torch.zeros(1, 17, dtype=torch.int64))


@pytest.mark.parametrize(
    ("config", "tied", "untied"),
    [
        (LlamaConfig(), 1_235_814_400, 1_498_482_688),
        (LlamaConfig(32000, 4096, 4096, 32, 32, n_kv_head=32, n_inner=11008), None, 6_738_415_616),
        (LlamaConfig(128256, 8192, 4096, 32, 32, n_kv_head=8, n_inner=14336), None, 8_030_261_248),
    ],
)
def test_parameters_of_published_sizes(config, tied, untied):
    """Llama 3.2 1B ties its head; Llama 2 7B and Llama 3 8B do not."""
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        kind, parts = STEPS["+ GQA"]
        mine = sum(p.numel() for p in kind(config, parts).parameters())
        theirs = LlamaForCausalLM(settings(config, tie_word_embeddings=False))
    assert mine == (tied or mine)
    assert mine + config.vocab_size * config.n_embd == untied
    assert sum(p.numel() for p in theirs.parameters()) == untied


def test_it_starts_as_gpt2_does():
    """What writes to the stream is narrower; the first loss is a guess's."""
    torch.manual_seed(0)
    config = LlamaConfig(500, 64, 256, 8, 8, n_kv_head=2, n_inner=512)
    kind, parts = STEPS["+ GQA"]
    model = kind(config, parts)
    for name, p in model.named_parameters():
        if name.endswith("c_proj.weight"):
            assert abs(p.std().item() / (0.02 / 4) - 1) < 0.05
        elif p.ndim == 2:
            assert abs(p.std().item() / 0.02 - 1) < 0.05
    ids = ids_of(replace(config, n_positions=32))
    assert abs(next_token_loss(model(ids[:, :-1]), ids[:, 1:]).item() - 6.2) < 0.2


def test_bad_sizes():
    with pytest.raises(ValueError, match="6 heads cannot share 4"):
        replace(SMALL, n_kv_head=4)
    assert isinstance(RotaryGPT2(SMALL, Parts(attention=RotaryAttention)), GPT2)


def classes_in(source: str) -> dict[str, str]:
    return {n.name: ast.dump(n) for n in ast.parse(source).body if isinstance(n, ast.ClassDef)}


def test_the_chapter_shows_this_code():
    """The notebook's classes are these, but for their bases, which there are the reader's."""
    notebook = Path(__file__).parents[2] / "notebooks" / "23_gpt2.ipynb"
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    shown = {}
    for cell in cells:
        if cell["cell_type"] == "code" and "%" not in "".join(cell["source"]):
            shown |= classes_in("".join(cell["source"]))
    ours = classes_in(Path(llama.__file__).read_text(encoding="utf-8"))
    common = {"RotaryAttention", "NoPositions", "RotaryGPT2", "GroupedQueryAttention"}
    assert common <= shown.keys()
    assert all(shown[name] == ours[name] for name in common)
