"""The book's LoRA against PEFT's, on the book's GPT-2 and on transformers' own; NF4's code book."""

import copy
import math
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_utils.reference import lora
from course_utils.reference.adapter_files import load_adapter, save_adapter
from course_utils.reference.gpt2 import CONFIGS, GPT2
from course_utils.reference.lora import (
    NF4,
    LoRALinear,
    NF4Product,
    add_adapter,
    dpo_loss,
    inject_lora,
    load_lora_state_dict,
    lora_parameter_count,
    lora_state_dict,
    masked_instruction_loss,
    merge,
    multi_adapter_forward,
    nf4_dequantize,
    nf4_quantize,
    unload,
    unmerge,
    use_adapter,
)
from course_utils.reference.qlora import double_dequantize, double_quantize, quantize_base

os.environ["HF_HUB_OFFLINE"] = "1"
TINY = CONFIGS["tiny"]
TARGETS = ["c_attn", "c_fc"]


def their_gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=97,
        n_positions=16,
        n_embd=24,
        n_layer=2,
        n_head=3,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


def our_gpt2() -> nn.Module:
    return GPT2.from_pretrained(their_gpt2())


def peft_of(model: nn.Module, r: int, alpha: float, rslora: bool) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=r,
        lora_alpha=alpha,
        target_modules=TARGETS,
        use_rslora=rslora,
        fan_in_fan_out=type(model).__name__ == "GPT2LMHeadModel",
    )
    return get_peft_model(model, config)


def randomise(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.1)


def logits_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    out = model(ids)
    return out if isinstance(out, torch.Tensor) else out.logits


IDS = torch.randint(97, (2, 11), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("build", [our_gpt2, their_gpt2])
def test_outputs_and_gradients_equal_pefts(build, rslora):
    from peft import get_peft_model_state_dict

    base = build().double()
    theirs = peft_of(copy.deepcopy(base), 4, 10.0, rslora).double()
    randomise(theirs)
    ours = inject_lora(base, TARGETS, r=4, alpha=10.0, rslora=rslora)
    state = get_peft_model_state_dict(theirs)
    assert set(state) == set(lora_state_dict(ours))
    load_lora_state_dict(ours, state)
    a, b = logits_of(ours, IDS), logits_of(theirs, IDS)
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for out in (a, b):
        F.cross_entropy(out.flatten(0, 1), IDS.flatten()).backward()
    trained = {name: p for name, p in ours.named_parameters() if p.requires_grad}
    assert set(trained) == {n for n, p in ours.named_parameters() if ".lora_" in n}
    given = dict(lora._lora_tensors(ours))
    for name, p in theirs.named_parameters():
        if p.requires_grad:
            mine = given[name.replace(".default", "")].grad
            torch.testing.assert_close(mine, p.grad, rtol=1e-10, atol=1e-14)
        else:
            assert p.grad is None


@pytest.mark.parametrize("build", [our_gpt2, their_gpt2])
def test_pefts_own_loader_reads_our_file(build, tmp_path):
    from peft import set_peft_model_state_dict

    ours = inject_lora(build(), TARGETS, r=3, alpha=5.0)
    randomise(ours)
    theirs = peft_of(build(), 3, 5.0, False)
    result = set_peft_model_state_dict(theirs, lora_state_dict(ours))
    assert not result.unexpected_keys
    torch.testing.assert_close(logits_of(theirs, IDS), logits_of(ours, IDS))


@pytest.mark.parametrize("build", [our_gpt2, their_gpt2])
def test_merging_and_unmerging(build):
    model = inject_lora(build(), TARGETS, r=4, alpha=8.0)
    weights = {n: p.clone() for n, p in model.named_parameters() if "base_layer" in n}
    randomise(model)
    beside = logits_of(model, IDS)
    merged = logits_of(merge(model), IDS)
    torch.testing.assert_close(merged, beside, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits_of(merge(model), IDS), merged)  # twice is once
    unmerge(model)
    largest = max(float(w.abs().max()) for w in weights.values())
    for name, before in weights.items():
        error = (model.get_parameter(name) - before).abs().max()
        assert error <= 4 * torch.finfo(torch.float32).eps * max(largest, 1.0)
    torch.testing.assert_close(logits_of(unmerge(model), IDS), beside, rtol=1e-5, atol=1e-5)


def test_at_first_nothing_changes_and_only_adapters_train():
    model = our_gpt2()
    before = logits_of(model, IDS)
    total = sum(p.numel() for p in model.parameters())
    expected = lora_parameter_count(model, TARGETS, 4)
    inject_lora(model, TARGETS, r=4)
    assert torch.equal(logits_of(model, IDS), before)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == expected
    assert sum(p.numel() for p in model.parameters()) == total + trained
    assert expected == 2 * 4 * ((24 + 72) + (24 + 96))


def test_several_adapters():
    model = our_gpt2()
    plain = logits_of(model, IDS)
    inject_lora(model, ["c_attn"], r=2)
    add_adapter(model, "b", r=5)
    randomise(model)
    of_b = logits_of(model, IDS)
    assert all(p.requires_grad == (".b.lora" in n) for n, p in model.named_parameters())
    use_adapter(model, "default")
    of_default = logits_of(model, IDS)
    use_adapter(model, None)
    assert torch.equal(logits_of(model, IDS), plain)
    assert not torch.allclose(of_default, of_b)
    with pytest.raises(ValueError, match="no adapter"):
        lora_state_dict(model)
    with pytest.raises(KeyError, match="no adapter 'c'; there are: b, default"):
        use_adapter(model, "c")
    use_adapter(model, "b")
    assert {x.shape[0] for n, x in lora_state_dict(model).items() if "lora_A" in n} == {5}
    with pytest.raises(ValueError, match="an adapter 'b' already"):
        add_adapter(model, "b")
    merge(model)
    torch.testing.assert_close(logits_of(model, IDS), of_b, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="unmerge it first"):
        use_adapter(model, "default")
    unmerge(model)
    use_adapter(model, "default")
    torch.testing.assert_close(logits_of(model, IDS), of_default, rtol=1e-5, atol=1e-5)
    assert all(p.requires_grad == (".default.lora" in n) for n, p in model.named_parameters())


def test_several_adapters_share_one_base():
    model = inject_lora(our_gpt2(), ["c_attn"], r=2)
    before = {name for name in model.state_dict() if "lora" not in name}
    add_adapter(model, "b", r=5)
    use_adapter(model, None)
    add_adapter(model, "c", r=1)
    assert {name for name in model.state_dict() if "lora" not in name} == before
    copied = copy.deepcopy(model).double()
    randomise(copied)
    assert logits_of(copied, IDS).dtype is torch.float64
    merge(copied)
    assert not torch.equal(logits_of(copied, IDS), logits_of(model, IDS).double())


def test_an_adapter_is_in_the_mode_of_its_layer():
    model = our_gpt2().eval()
    inject_lora(model, ["c_attn"], r=2, dropout=0.5)
    assert not any(module.training for module in model.modules())
    add_adapter(model, "b", r=5, dropout=0.5)
    assert not any(module.training for module in model.modules())
    model.train()
    add_adapter(model, "c", r=5, dropout=0.5)
    assert all(module.training for module in model.modules())
    with pytest.raises(ValueError, match=r"a probability; came 1\.5"):
        inject_lora(our_gpt2(), ["c_attn"], dropout=1.5)


def test_what_the_base_layer_returns_is_left_alone():
    layer = LoRALinear(nn.Linear(3, 5), r=2, alpha=4.0)
    randomise(layer)
    kept = []
    layer.base_layer.register_forward_hook(lambda module, args, out: kept.append(out))
    x = torch.randn(2, 3)
    layer(x)
    assert torch.equal(kept[0], layer.base_layer(x))
    several = {"lora_A": torch.randn(4, 2, 3), "lora_B": torch.randn(4, 5, 2)}
    outs = torch.vmap(lambda given: torch.func.functional_call(layer, given, (x,)))(several)
    assert outs.shape == (4, 2, 5)


def test_dropout_acts_on_the_update_alone():
    model = inject_lora(GPT2(TINY), TARGETS, r=4, dropout=0.5)
    randomise(model)
    model.train()
    torch.manual_seed(0)
    one, two = logits_of(model, IDS), logits_of(model, IDS)
    assert not torch.equal(one, two)
    model.eval()
    assert torch.equal(logits_of(model, IDS), logits_of(model, IDS))


def test_a_layer_of_any_batch_shape_and_dtype():
    for shape in ((3,), (2, 3), (2, 1, 4, 3), (0, 3)):
        layer = LoRALinear(nn.Linear(3, 5), r=2, alpha=4.0)
        randomise(layer)
        x = torch.randn(shape)
        expected = F.linear(x, layer.base_layer.weight + layer.delta(), layer.base_layer.bias)
        torch.testing.assert_close(layer(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(2, 3)).dtype is torch.bfloat16
    half = LoRALinear(nn.Linear(3, 5).bfloat16(), r=2, alpha=4.0)
    assert half(torch.randn(2, 3).bfloat16()).dtype is torch.bfloat16


def test_bad_input():
    model = our_gpt2()
    names = [name for name, _ in model.named_modules()]
    with pytest.raises(ValueError, match="no linear layer is called 'q_proj'"):
        inject_lora(model, ["c_attn", "q_proj"])
    with pytest.raises(ValueError, match="at least 1; came 0"):
        inject_lora(model, ["c_attn"], r=0)
    assert names == [name for name, _ in model.named_modules()]
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ValueError, match="at least 1; came 0"):
        LoRALinear(nn.Linear(3, 3), r=0, alpha=1.0)
    inject_lora(model, ["c_attn"], r=2)
    state = lora_state_dict(model)
    first = next(iter(state))
    with pytest.raises(ValueError, match=r"\(3, 24\) in the file, \(2, 24\) here"):
        load_lora_state_dict(model, state | {first: torch.zeros(3, 24)})
    with pytest.raises(ValueError, match="no adapter"):
        lora_state_dict(our_gpt2())
    with pytest.raises(ValueError, match="no linear layer is called 'c_attn'"):
        inject_lora(model, ["c_attn"])  # it is inside of an adapter now


def test_the_loss_of_instructions():
    logits = torch.randn(2, 6, 9)
    ids = torch.randint(9, (2, 6))
    loss = masked_instruction_loss(logits, ids, torch.tensor([2, 4]), torch.tensor([5, 5]))
    picked = [(0, 2), (0, 3), (0, 4), (1, 4)]
    each = [-logits[b, t - 1].log_softmax(-1)[ids[b, t]] for b, t in picked]
    torch.testing.assert_close(loss, torch.stack(each).mean())
    with pytest.raises(ValueError, match="no token of an answer"):
        masked_instruction_loss(logits, ids, torch.tensor([6, 6]), torch.tensor([6, 6]))


# NF4


def test_the_code_book_is_made_of_quantiles():
    """Appendix E: 2^(k−1) + 1 quantiles above zero, 2^(k−1) below, scaled to ±1."""
    offset = (1 - 1 / (2 * 15) + 1 - 1 / (2 * 16)) / 2
    above = torch.special.ndtri(torch.linspace(offset, 0.5, 9, dtype=torch.float64)[:-1])
    below = -torch.special.ndtri(torch.linspace(offset, 0.5, 8, dtype=torch.float64)[:-1])
    book = torch.cat([above, below, torch.zeros(1)]).sort().values
    torch.testing.assert_close(NF4.double(), book / book.abs().max(), rtol=0, atol=3e-5)


def test_each_number_becomes_the_nearest():
    torch.manual_seed(0)
    x = torch.randn(7, 33)
    codes, scales = nf4_quantize(x, 16)
    assert codes.dtype is torch.uint8 and codes.numel() == math.ceil(x.numel() / 2)
    back = nf4_dequantize(codes, scales, x.shape, 16)
    for block, of in zip(x.flatten().split(16), back.flatten().split(16), strict=True):
        every = NF4 * block.abs().max()
        nearest = every[(block[:, None] - every).abs().argmin(1)]
        torch.testing.assert_close(of, nearest)


def test_what_is_on_the_grid_comes_back():
    x = torch.cat([NF4 * 3, NF4.flip(0) * 0.5, torch.zeros(16)])
    assert torch.equal(nf4_dequantize(*nf4_quantize(x, 16), x.shape, 16), x)
    for size in (0, 1, 2, 63, 64, 65):
        x = torch.randn(size)
        codes, scales = nf4_quantize(x)
        assert (codes.numel(), scales.numel()) == ((size + 1) // 2, math.ceil(size / 64))
        assert nf4_dequantize(codes, scales, x.shape).shape == x.shape
    with pytest.raises(ValueError, match="came 5"):
        nf4_quantize(x, 5)


def test_scales_in_eight_bits():
    scales = torch.rand(1000) + 0.5
    codes, outer, mean = double_quantize(scales)
    assert codes.dtype is torch.int8 and outer.numel() == 4
    back = double_dequantize(codes, outer, mean)
    assert ((back - scales).abs() <= outer.repeat_interleave(256)[:1000] * 0.5001).all()
    same = torch.full((5,), 2.0)
    torch.testing.assert_close(double_dequantize(*double_quantize(same)), same)


# QLoRA's product


def test_a_product_with_four_bit_weights_is_that_of_the_numbers():
    W = torch.randn(5, 6)
    codes, scales = nf4_quantize(W, 4)
    numbers = nf4_dequantize(codes, scales, W.shape, 4)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.randn(2, 3, 6).to(dtype).requires_grad_()
        y = NF4Product.apply(x, codes, scales, (5, 6), 4)
        expected = F.linear(x, numbers.to(dtype))
        assert y.dtype is dtype and torch.equal(y, expected)
        incoming = torch.randn_like(y)
        ours, theirs = (torch.autograd.grad(out, x, incoming)[0] for out in (y, expected))
        torch.testing.assert_close(ours, theirs)


def test_a_model_in_four_bits_trains_its_adapters():
    torch.manual_seed(0)
    model = inject_lora(our_gpt2(), TARGETS, r=2)
    randomise(model)
    rounded = copy.deepcopy(model)
    for _, layer in lora.lora_layers(rounded):
        W = layer.base_layer.weight
        with torch.no_grad():
            W.copy_(nf4_dequantize(*nf4_quantize(W), W.shape))
    quantize_base(model)
    for one in (model, rounded):
        F.cross_entropy(logits_of(one, IDS).flatten(0, 1), IDS.flatten()).backward()
    torch.testing.assert_close(logits_of(model, IDS), logits_of(rounded, IDS))
    gradients = dict(rounded.named_parameters())
    for name, p in model.named_parameters():
        if "lora_" in name:
            torch.testing.assert_close(p.grad, gradients[name].grad)
        else:
            assert p.grad is None
    with pytest.raises(AttributeError):
        merge(model)  # there is no W to add to


# many adapters, plain models, files


def test_rows_with_adapters_of_their_own():
    models = [inject_lora(our_gpt2(), TARGETS, r=3, alpha=a) for a in (3.0, 12.0)]
    randomise(models[0])
    randomise(models[1])
    with torch.no_grad():
        for name, p in models[1].named_parameters():
            if "lora_A" in name:
                p.mul_(-2)
    plain, rows = our_gpt2(), torch.tensor([1, -1, 0])
    ids = torch.randint(97, (3, 11))
    states = [lora_state_dict(model) for model in models]
    for name, layer in lora.linear_layers(plain):
        key = f"base_model.model.{name}.lora_"
        if f"{key}A.weight" in states[0]:
            A, B = (torch.stack([one[f"{key}{part}.weight"] for one in states]) for part in "AB")

            def hook(_, args, y, A=A, B=B):
                return y + multi_adapter_forward(args[0], A, B, torch.tensor([1.0, 4.0]), rows)

            layer.register_forward_hook(hook)
    together = logits_of(plain, ids)
    for row, alone in enumerate((models[1], our_gpt2(), models[0])):
        expected = logits_of(alone, ids[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], expected, rtol=1e-4, atol=1e-4)


def test_unloading_gives_a_plain_model_back():
    model = inject_lora(our_gpt2(), TARGETS, r=3)
    randomise(model)
    adapted = logits_of(model, IDS)
    names = set(our_gpt2().state_dict())
    assert set(unload(model).state_dict()) == names
    torch.testing.assert_close(logits_of(model, IDS), adapted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rslora", [False, True])
def test_peft_opens_our_folder_and_we_open_theirs(rslora, tmp_path):
    from peft import PeftModel

    ours = inject_lora(our_gpt2(), TARGETS, r=3, alpha=5.0, rslora=rslora)
    randomise(ours)
    save_adapter(ours, tmp_path / "ours", 5.0, rslora)
    theirs = PeftModel.from_pretrained(their_gpt2(), tmp_path / "ours").eval()
    torch.testing.assert_close(logits_of(theirs, IDS), logits_of(ours, IDS), rtol=1e-4, atol=1e-5)
    back = load_adapter(our_gpt2(), tmp_path / "ours")
    assert torch.equal(logits_of(back, IDS), logits_of(ours, IDS))

    made = peft_of(their_gpt2(), 2, 7.0, rslora).eval()
    randomise(made)
    made.save_pretrained(tmp_path / "theirs")
    read = load_adapter(our_gpt2(), tmp_path / "theirs")
    torch.testing.assert_close(logits_of(read, IDS), logits_of(made, IDS), rtol=1e-4, atol=1e-5)


def test_files_that_are_not_ours_to_read(tmp_path):
    ours = inject_lora(our_gpt2(), TARGETS, r=3, alpha=5.0)
    with pytest.raises(ValueError, match=r"alpha = 6.0 is not that of transformer\.h\.0"):
        save_adapter(ours, tmp_path, 6.0)
    save_adapter(ours, tmp_path, 5.0)
    config = tmp_path / "adapter_config.json"
    whole = config.read_text()
    for old, new, said in (
        ('"use_dora": false', '"use_dora": true', "use_dora is True"),
        ('"bias": "none"', '"bias": "all"', "bias is 'all'"),
        ('"r": 3', '"r": 4', "says r = 4"),
    ):
        config.write_text(whole.replace(old, new))
        with pytest.raises(ValueError, match=said):
            load_adapter(our_gpt2(), tmp_path)
    inject_lora(other := our_gpt2(), ["c_attn"], r=2)
    with pytest.raises(ValueError, match="no linear layer"):
        config.write_text(whole)
        load_adapter(other, tmp_path)


# preferences


def test_the_loss_of_preferences_equals_a_derivation_by_hand():
    four = [(torch.randn(5, dtype=torch.float64) * 9).requires_grad_() for _ in range(4)]
    loss, margins = dpo_loss(*four, beta=0.3)
    a, b, c, d = (x.detach() for x in four)
    m = 0.3 * ((a - c) - (b - d))
    torch.testing.assert_close(loss, -m.sigmoid().log().mean())
    torch.testing.assert_close(margins, m)
    grads = torch.autograd.grad(loss, four, allow_unused=True)
    weight = 0.3 * (-m).sigmoid() / 5
    torch.testing.assert_close(grads[0], -weight)
    torch.testing.assert_close(grads[1], weight)
    assert grads[2] is None and grads[3] is None and not margins.requires_grad
    with pytest.raises(ValueError, match="beta is positive"):
        dpo_loss(*four, beta=0.0)
    with pytest.raises(ValueError, match="no pair"):
        dpo_loss(*[x[:0] for x in four])
