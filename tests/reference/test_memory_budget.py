"""The memory budget, held against what torch really keeps: to the byte."""

import itertools

import pytest
import torch

from course_utils.meters import measure
from course_utils.reference.gpt2 import GPT2, GPT2Config, gpt2_parameter_count, next_token_loss
from course_utils.reference.memory_budget import (
    SHAPES,
    fits,
    gpt2_of,
    parameter_count,
    step_memory,
)

SIZES = (
    {"n_layer": 2, "n_embd": 24, "n_head": 3, "vocab": 101, "context": 10},
    {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab": 37, "context": 5},
    {"n_layer": 3, "n_embd": 32, "n_head": 1, "vocab": 64, "context": 16},
)
GRID = list(
    itertools.product(
        SIZES,
        (1, 3),
        ("fp32", "bf16 mixed", "bf16"),
        (True, False),
        ("flash", "scores"),
        ("none", "selective", "block"),
    )
)


def made(size, batch, precision, tied, attention, checkpointing):
    model = gpt2_of(**size, tied=tied, attention=attention, checkpointing=checkpointing)
    if precision == "bf16":
        model = model.to(torch.bfloat16)
    tokens = torch.randint(size["vocab"], (batch, size["context"] + 1))
    return model, tokens[:, :-1].clone(), tokens[:, 1:].clone()


def forward(model, tokens, targets, precision):
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16 mixed"):
        logits = model(tokens)
        return logits, next_token_loss(logits, targets)


def storages(tensors):
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def kept_for_backward(model, run):
    """Bytes of the storages that autograd keeps, parameters and buffers aside."""
    own = storages([*model.parameters(), *model.buffers()])
    kept, alive = {}, []

    def pack(t):
        alive.append(t)  # a storage that is freed could give its address to another
        kept.update(storages([t]))
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = run()
    return sum(size for where, size in kept.items() if where not in own), result


def test_what_autograd_keeps_to_the_byte():
    assert len(GRID) == 216
    for size, batch, precision, tied, attention, checkpointing in GRID:
        model, *data = made(size, batch, precision, tied, attention, checkpointing)
        kept, (logits, loss) = kept_for_backward(
            model, lambda m=model, d=data, p=precision: forward(m, *d, p)
        )
        memory = step_memory(
            **size,
            batch=batch,
            precision=precision,
            tied=tied,
            attention=attention,
            checkpointing=checkpointing,
            device="cpu",
        )
        log_probabilities = 4 * batch * size["context"] * size["vocab"]
        said = memory.activations + memory.weight_copies + log_probabilities
        settings = (size, batch, precision, tied, attention, checkpointing)
        assert kept == said, (settings, kept, said)
        assert memory.logits - log_probabilities == logits.untyped_storage().nbytes(), settings
        assert memory.buffers == sum(storages(model.buffers()).values()), settings
        assert loss.dtype == torch.float32


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params),
    "adamw": lambda params: torch.optim.AdamW(params),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16 mixed", "bf16"])
def test_parameters_gradients_and_state_to_the_byte(optimizer, precision):
    for size, tied in itertools.product(SIZES, (True, False)):
        model, *data = made(size, 2, precision, tied, "flash", "none")
        steps = OPTIMIZERS[optimizer](model.parameters())
        forward(model, *data, precision)[1].backward()
        steps.step()
        state = [
            t for s in steps.state.values() for t in s.values() if t is not None and t.numel() > 1
        ]
        memory = step_memory(
            **size, batch=2, precision=precision, optimizer=optimizer, tied=tied, device="cpu"
        )
        assert memory.parameters == sum(storages(model.parameters()).values())
        assert memory.gradients == sum(storages(p.grad for p in model.parameters()).values())
        assert memory.optimizer_state == sum(storages(state).values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_of_a_step_whose_logits_outweigh_the_rest(precision):
    """As backward begins: activations, logits, log-probabilities, and the loss's two gradients."""
    size = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab": 4000, "context": 16}
    model, *data = made(size, 2, precision, True, "flash", "none")
    with measure(parameters=False) as cost:
        kept = forward(
            model, *data, precision
        )  # the logits stay, as a loop that reports them has it
        kept[1].backward()
    memory = step_memory(**size, batch=2, precision=precision, device="cpu")
    inputs = 16 * 2 * 16  # tokens and targets were there before
    said = memory.activations + memory.logits + memory.temporaries - inputs
    assert 0 <= cost.bytes_peak - said <= 16  # the loss, its gradient, and other single numbers


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("context", [4, 16, 64, 256])
def test_no_backward_takes_more_than_the_total(context, tied):
    """With few tokens the peak is at its end, where the gradients of a tied weight are added."""
    size = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab": 4000, "context": context}
    model, *data = made(size, 1, "fp32", tied, "flash", "none")
    with measure(parameters=False) as cost:
        kept = forward(model, *data, "fp32")
        kept[1].backward()
    memory = step_memory(**size, batch=1, optimizer="sgd", tied=tied, device="cpu")
    spare = memory.total - memory.parameters - cost.bytes_peak
    assert spare >= 0
    if context == 4 and tied:
        assert spare < memory.activations + memory.logits  # gone by then


def test_zero_shares_what_its_stage_says():
    size = SIZES[0]
    count = sum(p.numel() for p in gpt2_of(**size).parameters())
    for world_size in (1, 3, 8):
        largest = 4 * len(torch.empty(count).tensor_split(world_size)[0])
        whole = 4 * count
        for stage, want in enumerate(
            (
                (whole, whole, 2 * whole),
                (whole, whole, 2 * largest),
                (whole, largest, 2 * largest),
                (largest, largest, 2 * largest),
            )
        ):
            memory = step_memory(**size, batch=1, zero=stage, world_size=world_size)
            assert (memory.parameters, memory.gradients, memory.optimizer_state) == want
        model = gpt2_of(**size)
        units = [sum(p.numel() for p in block.parameters()) for block in model.transformer.h]
        units.append(count - sum(units))
        plain = step_memory(**size, batch=1)
        assert memory.temporaries - plain.temporaries == 4 * max(units)


def test_the_sixteen_bytes_of_zero_s_paper_and_ours():
    """Rajbhandari et al. count 2 + 2 + 12 bytes for fp16 with a float32 master; autocast has 4 + 4 + 8 + 2."""
    size = SHAPES["7B"]
    memory = step_memory(**size, batch=1, precision="bf16 mixed", tied=False)
    count = parameter_count(
        *(size[k] for k in ("n_layer", "n_embd", "vocab", "context")), tied=False
    )
    assert memory.parameters + memory.gradients + memory.optimizer_state == 16 * count
    assert 0.97 < memory.weight_copies / (2 * count) < 1


def test_korthikanti_s_thirty_four():
    """34·s·b·h bytes a layer at 2 bytes, of which 2 are the masks of dropout; and 5·a·s²·b, of which 3 are."""
    size = {"n_layer": 10, "n_embd": 512, "n_head": 8, "vocab": 50, "context": 128}
    one = size | {"n_layer": 0}

    def a_layer(**more):
        both = [
            step_memory(**s, batch=4, precision="bf16", **more).activations for s in (size, one)
        ]
        return (both[0] - both[1]) // 10

    sbh, heads = 128 * 4 * 512, 4 * 8 * 128 * 128
    statistics = 4 * 4 * 128 * 4  # of two LayerNorms, which they leave out
    assert a_layer(checkpointing="selective") == 32 * sbh + statistics
    assert a_layer(attention="scores") == 32 * sbh + statistics + 6 * heads  # a softmax in float32
    assert a_layer(checkpointing="block") == 2 * sbh


@pytest.mark.parametrize("checkpointing", ["none", "selective", "block"])
@pytest.mark.parametrize("attention", ["flash", "scores"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_model_computes_what_the_book_s_gpt2_does(attention, checkpointing, tied):
    """However it attends and whatever it computes again: the same logits and gradients."""
    size = SIZES[0]
    shape = (size[k] for k in ("vocab", "context", "n_embd", "n_layer", "n_head"))
    book = GPT2(GPT2Config(*shape, dropout=0.0))
    ours = gpt2_of(**size, tied=tied, attention=attention, checkpointing=checkpointing)
    ours.load_state_dict(book.state_dict())
    tokens = torch.randint(size["vocab"], (3, size["context"]))
    padded = torch.ones_like(tokens, dtype=torch.bool)
    padded[1, 6:] = False
    for ids, mask in ((tokens, None), (tokens[:, :7], None), (tokens, padded)):
        found, grads = [], []
        for model in (book, ours):
            model.zero_grad()
            logits = model(ids, mask)
            next_token_loss(logits, ids).backward()
            grads.append({name: p.grad for name, p in model.named_parameters()})
            found.append(logits)
        torch.testing.assert_close(found[1], found[0])
        if not tied:  # of one weight that is used twice, the sum of both
            grads[1]["transformer.wte.weight"] += grads[1].pop("lm_head.weight")
        torch.testing.assert_close(grads[1], grads[0])


def test_counts_of_the_shapes():
    counts = {
        name: parameter_count(s["n_layer"], s["n_embd"], s["vocab"], s["context"])
        for name, s in SHAPES.items()
    }
    assert counts["GPT-2 small"] == gpt2_parameter_count(GPT2Config())["total"] == 124_439_808
    assert counts["GPT-2 XL"] == 1_557_611_200
    assert 6e9 < counts["7B"] < 7e9 and 60e9 < counts["70B"] < 70e9


def test_fits():
    small = step_memory(**SHAPES["GPT-2 small"], batch=12)
    assert fits(small, "L4") and not fits(small, "T4")
    with pytest.raises(KeyError):
        fits(small, "GPU of next year")


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "fp8"},
        {"optimizer": "lion"},
        {"checkpointing": "all"},
        {"attention": "linear"},
        {"zero": 4},
        {"state_dtype": "int8"},
        {"device": "tpu"},
    ],
)
def test_settings_there_are_none_of(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} is one of"):
        step_memory(**SIZES[0], batch=1, **wrong)
