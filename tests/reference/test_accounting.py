"""The book's accounting against PyTorch's counter, real optimizers, autograd, and published figures."""

import itertools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from course_utils.meters import measure
from course_utils.reference import accounting, memory_budget
from course_utils.reference.gpt2 import CONFIGS, GPT2, GPT2Config, next_token_loss
from course_utils.reference.pretraining import flops_per_token

SIZES = st.integers(1, 6)
TINY = {"n_layer": 2, "n_embd": 24, "vocab": 97, "context": 16}


def counted(run) -> int:
    with (
        sdpa_kernel(SDPBackend.MATH),
        set_checkpoint_early_stop(False),
        FlopCounterMode(display=False) as counter,
    ):
        run()
    return counter.get_total_flops()


@given(shape=st.lists(SIZES, min_size=1, max_size=4), n=SIZES, input_grad=st.booleans())
def test_linear_flops_are_torchs(shape, n, input_grad):
    layer = nn.Linear(shape[-1], n)
    x = torch.randn(shape, requires_grad=input_grad)
    forward, backward = accounting.linear_flops(tuple(shape), n, input_grad=input_grad)
    assert counted(lambda: layer(x)) == forward
    assert counted(lambda: layer(x).sum().backward()) == forward + backward


@given(batch=SIZES, n_head=SIZES, queries=SIZES, more=st.integers(0, 4), d=SIZES)
def test_attention_flops_are_torchs_and_the_masks(batch, n_head, queries, more, d):
    keys = queries + more
    q = torch.randn(batch, n_head, queries, d)
    k = torch.randn(batch, n_head, keys, d)
    full = accounting.attention_flops(batch, n_head, queries, keys, d)
    assert counted(lambda: F.scaled_dot_product_attention(q, k, k)) == full
    pairs = int(torch.ones(queries, keys).tril(keys - queries).sum())
    causal = accounting.attention_flops(batch, n_head, queries, keys, d, causal=True)
    assert causal == 4 * batch * n_head * d * pairs


def test_causal_queries_need_keys():
    with pytest.raises(ValueError, match="3 causal queries"):
        accounting.attention_flops(1, 1, 3, 2, 1, causal=True)
    assert accounting.attention_flops(1, 1, 3, 2, 1) == 24


@pytest.mark.parametrize("batch, checkpointing", list(itertools.product((1, 3), (False, True))))
def test_transformer_flops_are_torchs(batch, checkpointing):
    model = memory_budget.gpt2_of(
        **TINY, n_head=3, checkpointing="block" if checkpointing else "none"
    )
    ids = torch.randint(97, (batch, 16))
    parts = accounting.transformer_flops(**TINY, batch=batch, checkpointing=checkpointing)
    step = counted(lambda: next_token_loss(model(ids), ids).backward())
    assert step == sum(parts.values())


@pytest.mark.parametrize("name", ["gpt2", "gpt2-xl", "tiny"])
def test_transformer_flops_are_those_of_course_train(name):
    config: GPT2Config = CONFIGS[name]
    T = config.n_positions
    parts = accounting.transformer_flops(
        n_layer=config.n_layer, n_embd=config.n_embd, vocab=config.vocab_size, context=T, batch=2
    )
    assert sum(parts.values()) == 2 * T * flops_per_token(config, T)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("dtype, precision", [(torch.float32, "fp32"), (torch.bfloat16, "bf16")])
def test_training_memory_is_what_an_optimizer_holds(optimizer, dtype, precision):
    model = GPT2(CONFIGS["tiny"]).to(dtype)
    frozen = model.transformer.h[0].requires_grad_(False)
    params = [p for p in model.parameters() if p.requires_grad]
    kinds = {
        "sgd": lambda: torch.optim.SGD(params, lr=0.1),
        "momentum": lambda: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW(params),
    }
    made = kinds[optimizer]()
    ids = torch.randint(97, (2, 16))
    next_token_loss(model(ids), ids).backward()
    made.step()
    state = [t for s in made.state.values() for t in s.values() if torch.is_tensor(t) and t.ndim]
    held = accounting.training_memory(
        sum(p.numel() for p in params),
        sum(p.numel() for p in frozen.parameters()),
        precision=precision,
        optimizer=optimizer,
    )
    assert held == {
        "parameters": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "master_weights": 0,
        "optimizer_state": sum(t.nbytes for t in state),
    }


def test_two_recipes_of_sixteen_bytes():
    for precision in ("fp32", "bf16 mixed", "bf16 master"):
        assert sum(accounting.training_memory(1, precision=precision).values()) == 16


@pytest.mark.parametrize("settings", [{"precision": "fp8"}, {"optimizer": "lion"}])
def test_training_memory_of_what_is_not_known(settings):
    with pytest.raises(ValueError, match="no memory is known"):
        accounting.training_memory(1, **settings)


@pytest.mark.parametrize("flash", [True, False])
def test_activation_bytes_are_what_autograd_keeps(flash):
    def kept(n_layer: int) -> int:
        model = memory_budget.gpt2_of(
            **{**TINY, "n_layer": n_layer}, n_head=3, attention="flash" if flash else "scores"
        )
        ids = torch.randint(97, (3, 16))
        with measure(parameters=False) as cost:
            next_token_loss(model(ids), ids)
        return cost.bytes_saved

    assert kept(2) - kept(1) == accounting.activation_bytes(3, 16, 24, 3, flash=flash)


@pytest.mark.parametrize("attention", ["flash", "scores"])
@pytest.mark.parametrize("precision", ["fp32", "bf16 mixed", "bf16"])
def test_the_bytes_are_those_of_the_memory_budget(precision, attention):
    sizes = {"n_embd": 64, "n_head": 4, "vocab": 101, "context": 32, "batch": 5}
    one, two = (
        memory_budget.step_memory(n_layer=n, **sizes, precision=precision, attention=attention)
        for n in (1, 2)
    )
    stream, product = memory_budget.PRECISIONS[precision]
    block = accounting.activation_bytes(
        5, 32, 64, 4, stream=stream, product=product, flash=attention == "flash"
    )
    assert two.activations - one.activations == block
    count = memory_budget.parameter_count(2, 64, 101, 32)
    held = accounting.training_memory(count, precision=precision)
    assert (held["parameters"], held["gradients"], held["optimizer_state"]) == (
        two.parameters,
        two.gradients,
        two.optimizer_state,
    )


def test_intensity_and_roofline():
    assert accounting.matmul_intensity(300, 300, 300) == pytest.approx(100)
    peak, bandwidth, _ = accounting.GPUS["H100 SXM"]
    at_ridge = accounting.roofline_time([(peak, bandwidth)], peak, bandwidth)
    assert at_ridge == 1.0
    one_after_the_other = [(peak, 0.0), (0.0, bandwidth)]
    assert accounting.roofline_time(one_after_the_other, peak, bandwidth) == 2.0
    with pytest.raises(ValueError, match="a machine with"):
        accounting.roofline_time([(1.0, 1.0)], 0.0, 1.0)


def test_published_figures():
    palm = {"n_gpus": 6144, "n_layer": 118, "n_embd": 48 * 256, "context": 2048}
    share = accounting.mfu(238.3e3, 540_350_000_000, 275e12, **palm)
    assert f"{share:.1%}" == "46.2%"  # Chowdhery et al. (2022), table 3
    gpt3 = memory_budget.parameter_count(96, 12288, 50257, 2048)
    petaflop_days = accounting.days_to_train(gpt3, 300 * 10**9, 1, 1e15, 1.0)
    assert petaflop_days == pytest.approx(3640, rel=0.005)  # Brown et al. (2020), appendix D


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, 40.0])
def test_days_to_train_takes_a_share(share):
    with pytest.raises(ValueError, match="a share"):
        accounting.days_to_train(1, 1, 1, 1.0, share)


def test_mfu_needs_a_gpu():
    with pytest.raises(ValueError, match="0 GPUs"):
        accounting.mfu(1.0, 1, 1.0, n_gpus=0)


@given(n=st.integers(0, 10_000), world_size=st.integers(1, 17), size=st.sampled_from([1, 2, 4]))
def test_communication_bytes_of_a_ring(n, world_size, size):
    sent = accounting.communication_bytes(n, world_size, size)
    exact = 2 * (world_size - 1) * n * size / world_size
    assert exact <= sent < exact + 2 * world_size * size


def test_no_world():
    with pytest.raises(ValueError, match="a world of 0"):
        accounting.communication_bytes(1, 0)


@given(
    n=st.integers(1, 10**12),
    tokens=st.integers(1, 10**13),
    days=st.integers(1, 400),
    activations=st.integers(0, 79),
)
def test_a_plan_holds_and_no_node_less_does(n, tokens, days, activations):
    peak, _, size = accounting.GPUS["H100 SXM"]
    settings = {"peak_flops": peak, "gpu_bytes": size, "activations": activations * 10**9}
    plan = accounting.plan_training(n, tokens, float(days), **settings)
    alone = accounting.days_to_train(n, tokens, 1, peak, 0.4)
    assert plan["gpus"] % 8 == 0 and plan["bytes"] <= size
    assert plan["days"] == pytest.approx(alone / plan["gpus"])
    assert plan["days"] <= days * (1 + 1e-9)
    fewer = plan["gpus"] - 8
    if fewer:
        share = activations * 10**9 + 16 * n / fewer
        assert alone / fewer > days * (1 - 1e-9) or share > size


def test_a_plan_without_room():
    with pytest.raises(ValueError, match="fill a GPU"):
        accounting.plan_training(1, 1, 1.0, peak_flops=1.0, gpu_bytes=10, activations=10)
