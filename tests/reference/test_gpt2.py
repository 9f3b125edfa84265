"""The book's GPT-2 against transformers' own: logits, loss, gradients, checkpoints, and bad input."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from course_utils.reference.gpt2 import (
    CONFIGS,
    GPT2,
    CausalSelfAttention,
    GPT2Config,
    Parts,
    attention_mask,
    config_from_hf,
    generate,
    gpt2_parameter_count,
    init_weights,
    load_hf_state_dict,
    next_token_loss,
)
from course_utils.reference.modules import LayerNorm
from course_utils.reference.tokenization import Tokenizer

os.environ["HF_HUB_OFFLINE"] = "1"
TINY = CONFIGS["tiny"]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PUBLISHED = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")


def theirs(config: GPT2Config):
    """transformers' GPT-2 of these sizes, randomly initialised, in eval mode."""
    from transformers import GPT2Config as Settings
    from transformers import GPT2LMHeadModel

    settings = Settings(
        vocab_size=config.vocab_size,
        n_positions=config.n_positions,
        n_embd=config.n_embd,
        n_layer=config.n_layer,
        n_head=config.n_head,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel(settings).eval()
    with torch.no_grad():  # biases and norms are not trivial either
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def ids_of(config: GPT2Config, B: int = 2, T: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (B, T or config.n_positions), generator=generator)


@pytest.mark.parametrize("name", PUBLISHED)
@torch.no_grad()
def test_logits_equal_transformers_at_the_published_widths_and_full_context(name):
    """Two layers, the whole context of 1,024 positions; the smallest with its whole vocabulary."""
    config = replace(CONFIGS[name], n_layer=2)
    if name != "gpt2":
        config = replace(config, vocab_size=2_000)
    model = theirs(config)
    mine = GPT2.from_pretrained(model)
    ids = ids_of(config, B=1)
    torch.testing.assert_close(mine(ids), model(ids).logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_with_padding_on_either_side():
    config = replace(CONFIGS["gpt2"], n_layer=2, vocab_size=500)
    model = theirs(config)
    mine = GPT2.from_pretrained(model)
    ids = ids_of(config, B=3, T=40)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :7] = False
    mask[1, -5:] = False
    expected = model(ids, attention_mask=mask.long()).logits
    got = mine(ids, mask)
    assert got.isfinite().all()
    torch.testing.assert_close(got[mask], expected[mask], rtol=0, atol=1e-5)


@torch.no_grad()
def test_in_bfloat16_it_is_no_further_from_float64_than_transformers():
    for name in ("gpt2", "gpt2-medium"):
        config = replace(CONFIGS[name], n_layer=2, vocab_size=1000)
        model = theirs(config)
        mine = GPT2.from_pretrained(model)
        ids = ids_of(config, B=2, T=128)
        oracle = theirs(config).double()(ids).logits
        error = (mine.bfloat16()(ids).double() - oracle).square().mean().sqrt()
        allowed = (model.bfloat16()(ids).logits.double() - oracle).square().mean().sqrt()
        assert error <= 1.01 * allowed, (
            f"{name}: {error:.3e} from float64, transformers {allowed:.3e}"
        )


def test_loss_and_every_gradient_equal_transformers():
    model = theirs(TINY).double().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.attn_pdrop = 0.0
    mine = GPT2.from_pretrained(model.eval()).double()
    ids = ids_of(TINY, B=3)
    loss = F.cross_entropy(mine(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    expected = model(ids, labels=ids).loss
    torch.testing.assert_close(loss, expected.double(), rtol=1e-6, atol=1e-6)
    loss.backward()
    F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    for name, parameter in model.named_parameters():
        given = parameter.grad.T if "c_" in name and parameter.ndim == 2 else parameter.grad
        torch.testing.assert_close(mine.get_parameter(name).grad, given, rtol=1e-9, atol=1e-12)


def test_parameters_of_the_four_published_sizes():
    """On the meta device: shapes without memory."""
    counted = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168}
    counted |= {"gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}
    for name, config in CONFIGS.items():
        with torch.device("meta"):
            model = GPT2(config)
        total = sum(p.numel() for p in model.parameters())
        assert gpt2_parameter_count(config)["total"] == total == counted.get(name, total)


def test_the_head_is_the_embedding():
    model = GPT2(TINY)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert "lm_head.weight" not in dict(model.named_parameters())


def test_the_first_loss_is_that_of_a_guess():
    torch.manual_seed(0)
    ids = ids_of(TINY, B=16)
    loss = next_token_loss(GPT2(TINY)(ids[:, :-1]), ids[:, 1:])
    assert abs(loss.item() - math.log(TINY.vocab_size)) < 0.05


def test_initialisation_by_depth():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=500, n_positions=64, n_embd=256, n_layer=8, n_head=4)
    model = GPT2(config)
    init_weights(model, config.n_layer)
    for name, parameter in model.named_parameters():
        if name.endswith("c_proj.weight"):
            assert abs(parameter.std().item() / (0.02 / 4) - 1) < 0.05
        elif parameter.ndim == 2:
            assert abs(parameter.std().item() / 0.02 - 1) < 0.05
        else:
            assert (parameter == (0 if name.endswith("bias") else 1)).all()


def test_a_position_sees_no_later_one():
    torch.manual_seed(0)
    model = GPT2(TINY).eval()
    ids = ids_of(TINY, B=1)
    changed = ids.clone()
    changed[0, 9] = (ids[0, 9] + 1) % TINY.vocab_size
    a, b = model(ids), model(changed)
    assert torch.equal(a[:, :9], b[:, :9]) and not torch.equal(a[:, 9:], b[:, 9:])


def test_no_row_of_the_mask_is_empty():
    mask = torch.tensor([[False, False, True, True]])
    assert attention_mask(mask)[0, 0].int().tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 1, 1],
    ]


def test_ones_own_parts_take_their_place():
    class Louder(CausalSelfAttention):
        def forward(self, x, mask=None):
            return 2 * super().forward(x, mask)

    torch.manual_seed(0)
    book = GPT2(TINY)
    mine = GPT2(TINY, Parts(layer_norm=LayerNorm))
    mine.load_state_dict(book.state_dict())
    ids = ids_of(TINY)
    torch.testing.assert_close(mine(ids), book(ids))
    louder = GPT2(TINY, Parts(attention=Louder))
    louder.load_state_dict(book.state_dict())
    assert not torch.allclose(louder(ids), book(ids))


# Checkpoints on disk


@pytest.fixture
def checkpoint(tmp_path):
    theirs(TINY).save_pretrained(tmp_path)
    return tmp_path


def test_a_folder_of_a_checkpoint(checkpoint):
    ids = ids_of(TINY)
    with torch.no_grad():
        got = GPT2.from_pretrained(checkpoint)(ids)
        torch.testing.assert_close(got, theirs(TINY)(ids).logits, rtol=0, atol=1e-6)


def test_a_checkpoint_in_several_files(tmp_path):
    theirs(TINY).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    GPT2.from_pretrained(tmp_path)
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(FileNotFoundError, match="model-00002"):
        GPT2.from_pretrained(tmp_path)


def test_the_names_of_the_published_file(checkpoint):
    """The first releases have no prefix, no head, and carry their masks."""
    model = theirs(TINY)
    state = {
        name.removeprefix("transformer."): x
        for name, x in model.state_dict().items()
        if name != "lm_head.weight"
    }
    state["h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    mine = GPT2(TINY).eval()
    load_hf_state_dict(mine, state)
    ids = ids_of(TINY)
    with torch.no_grad():
        torch.testing.assert_close(mine(ids), model(ids).logits, rtol=0, atol=1e-6)


def test_every_mismatch_is_named_and_nothing_is_copied():
    model = GPT2(TINY)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    state = theirs(TINY).state_dict()
    del state["transformer.h.1.ln_2.bias"]
    state["transformer.h.0.mlp.c_fc.weight"] = torch.zeros(24, 95)
    state["transformer.wpe.weight"] = torch.zeros(8, 24)
    state["transformer.h.7.ln_1.bias"] = torch.zeros(24)
    state["lm_head.weight"] = torch.zeros(97, 24)
    with pytest.raises(ValueError) as error:
        load_hf_state_dict(model, state)
    for line in (
        "transformer.h.1.ln_2.bias: missing",
        "transformer.h.7.ln_1.bias: unknown",
        "transformer.h.0.mlp.c_fc.weight: (95, 24) in the checkpoint, (96, 24) here",
        "transformer.wpe.weight: (8, 24) in the checkpoint, (16, 24) here",
        "lm_head.weight: not the embedding's",
    ):
        assert line in str(error.value)
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name])


def test_a_missing_and_a_torn_file(checkpoint):
    file = checkpoint / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 100, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors is no whole safetensors file"):
            GPT2.from_pretrained(checkpoint)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is missing"):
        GPT2.from_pretrained(checkpoint)
    (checkpoint / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        GPT2.from_pretrained(checkpoint)


def test_a_config_of_another_model(checkpoint):
    file = checkpoint / "config.json"
    settings = json.loads(file.read_text())
    for wrong in ({"activation_function": "relu"}, {"n_inner": 7}, {"tie_word_embeddings": False}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            config_from_hf(settings | wrong)
    with pytest.raises(ValueError, match="n_head is missing"):
        config_from_hf({k: v for k, v in settings.items() if k != "n_head"})


def test_what_is_saved_is_a_checkpoint_too(tmp_path):
    """Our own state_dict through safetensors, tied weights once."""
    model = GPT2(TINY)
    save_file(dict(model.named_parameters()), tmp_path / "own.safetensors")
    other = GPT2(TINY)
    missing = other.load_state_dict(load_file(tmp_path / "own.safetensors"), strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys
    ids = ids_of(TINY)
    torch.testing.assert_close(other(ids), model(ids))


# Bad input


def test_bad_input():
    model = GPT2(TINY)
    with pytest.raises(ValueError, match="17 positions; the context has 16"):
        model(torch.zeros(1, 17, dtype=torch.int64))
    for outside in (97, -1):
        with pytest.raises(IndexError):
            model(torch.tensor([[0, outside]]))
    with pytest.raises(ValueError, match="5 heads cannot share 24"):
        GPT2Config(n_embd=24, n_head=5)


def test_generating():
    torch.manual_seed(0)
    model = GPT2(TINY)
    ids = ids_of(TINY, T=3)
    greedy = generate(model, ids, 20, temperature=0.0)
    assert greedy.shape == (2, 23) and torch.equal(greedy[:, :3], ids) and model.training
    assert torch.equal(greedy, generate(model, ids, 20, top_k=1))
    drawn = [generate(model, ids, 5, generator=torch.Generator().manual_seed(s)) for s in (3, 3, 4)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_from_pretrained_draws_nothing_and_keeps_buffers(checkpoint):
    """Every parameter is loaded: nothing need be drawn first. What is no parameter stays."""

    class Masked(CausalSelfAttention):
        def __init__(self, config):
            super().__init__(config)
            mask = torch.ones(config.n_positions, config.n_positions, dtype=torch.bool).tril()
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, x, mask=None):
            T = x.size(1)
            return super().forward(
                x, self.mask[:T, :T].expand(len(x), 1, T, T) if mask is None else mask
            )

    torch.manual_seed(0)
    before = torch.get_rng_state()
    plain = GPT2.from_pretrained(checkpoint)
    masked = GPT2.from_pretrained(checkpoint, Parts(attention=Masked))
    assert torch.equal(torch.get_rng_state(), before)
    ids = ids_of(TINY)
    with torch.no_grad():
        torch.testing.assert_close(masked(ids), plain(ids), rtol=0, atol=1e-6)
    GPT2(TINY)
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_chapter_looks_into_a_folder_of_weights(checkpoint, monkeypatch, capsys):
    """The notebook's optional cell: without a folder, with one, and with a tokenizer in it."""
    cells = json.loads((NOTEBOOKS / "23_gpt2.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = ("".join(c["source"]) for c in cells if "def look_into(" in "".join(c["source"]))
    space = {"GPT2": GPT2, "mine_or_book": Parts(), "os": os, "Path": Path, "torch": torch}
    monkeypatch.delenv("GPT2_WEIGHTS", raising=False)
    exec(source, dict(space))
    assert capsys.readouterr().out.startswith("skipped: no folder with config.json")
    monkeypatch.setenv("GPT2_WEIGHTS", str(checkpoint))
    exec(source, dict(space))
    out = capsys.readouterr().out
    assert f"{gpt2_parameter_count(TINY)['total']:,} parameters" in out
    assert "no text without a tokenizer" in out

    config = replace(TINY, vocab_size=260, n_positions=80)
    theirs(config).save_pretrained(checkpoint)
    Tokenizer([(97, 98), (256, 99), (32, 97)]).save(checkpoint)
    exec(source, dict(space))
    assert "Alan Turing" in capsys.readouterr().out


def test_generating_at_a_temperature_draws_from_the_softmax():
    torch.manual_seed(0)
    model = GPT2(replace(TINY, vocab_size=5)).eval()
    with torch.no_grad():
        model.transformer.wte.weight.mul_(3)
        ids = torch.tensor([[1, 2]])
        due = (model(ids)[0, -1] / 0.7).softmax(-1)
        drawn = generate(model, ids.expand(20_000, 2), 1, 0.7)[:, 2].bincount(minlength=5) / 20_000
    assert due.max() < 0.95
    torch.testing.assert_close(drawn, due, rtol=0, atol=0.02)
