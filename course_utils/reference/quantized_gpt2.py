"""Chapter 27: the course's model with quantized weights, inputs and caches, and what that costs it in bits.

All of it works on the linear layers of the blocks; embeddings, norms and the tied head stay as they are.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .adapting import steps_of_adamw
from .gpt2 import GPT2, next_token_loss
from .pretrained import course_stamp, document_tokens, stamped_documents
from .quantization import (
    affine_qparams,
    dequantize,
    fake_quantize,
    gptq,
    quantize,
    smooth_scales,
)
from .tokenization import Tokenizer

Change = Callable[[str, Tensor], Tensor]
"""(name of a layer, a tensor) → the tensor that takes its place."""


@dataclass(frozen=True)
class Text:
    """Windows of real text, one for each document: tokens, (B, T + 1), and how many bytes are predicted."""

    tokens: Int[Tensor, "B longer"]
    n_bytes: int


def windows(
    tokenizer: Tokenizer, number: int, part: str = "held_out", length: int = 256, start: int = 0
) -> Text:
    """The beginnings of so many documents that the course's model was trained on, or not ("held_out").

    start: how many of the documents that are long enough are passed over first.
    """
    rows: list[Tensor] = []
    for document in stamped_documents(course_stamp(), part):
        row = document_tokens(document, tokenizer, length)
        if len(row) == length + 1:
            rows.append(row)
        if len(rows) == start + number:
            break
    rows = rows[start:]
    n_bytes = sum(len(tokenizer.decode(row[1:].tolist()).encode()) for row in rows)
    return Text(torch.stack(rows), n_bytes)


@torch.no_grad()
def bits_by_file(model: nn.Module, text: Text) -> Float[Tensor, " B"]:
    """What each window adds to the text's bits per byte, each token after those before it in its window.

    Their sum is `bits_per_byte`. float64.
    """
    nats = []
    for rows in text.tokens.split(16):
        logits = model(rows[:, :-1]).transpose(1, 2).float()
        nats.append(F.cross_entropy(logits, rows[:, 1:], reduction="none").double().sum(1))
    return torch.cat(nats) / math.log(2) / text.n_bytes


def bits_per_byte(model: nn.Module, text: Text) -> float:
    """What the text's tokens cost the model, each after those before it in its window."""
    return bits_by_file(model, text).sum().item()


def gap(one: Float[Tensor, " B"], other: Float[Tensor, " B"]) -> tuple[float, float]:
    """How many bits per byte `one` costs more than `other` on the same files, and its standard error.

    Both: as `bits_by_file` gives them. The files are a sample: the differences are taken file by file,
    so what makes a file hard for both does not count.
    """
    more = one - other
    return more.sum().item(), math.sqrt(len(more)) * more.std().item()


def block_linears(model: GPT2) -> Iterator[tuple[str, nn.Linear]]:
    """(short name, layer) of the four linear layers of each block: "0.attn.c_attn" and so on."""
    for name, module in model.transformer.h.named_modules():
        if isinstance(module, nn.Linear):
            yield name, module


@torch.no_grad()
def with_weights(model: GPT2, change: Change) -> GPT2:
    """A copy of the model with other weights in the linear layers of its blocks."""
    model = copy.deepcopy(model)
    for name, layer in block_linears(model):
        layer.weight.copy_(change(name, layer.weight))
    return model


def with_layers(model: GPT2, make: Callable[[nn.Linear], nn.Module]) -> GPT2:
    """A copy of the model with another module in place of each linear layer of its blocks."""
    model = copy.deepcopy(model)
    for name, layer in list(block_linears(model)):
        parent, _, last = name.rpartition(".")
        setattr(model.transformer.h.get_submodule(parent), last, make(layer))
    return model


@contextmanager
def inputs_changed(model: GPT2, change: Change) -> Iterator[None]:
    """While it lasts, each of these layers gets change(name, x) in place of its input x."""
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, given, name=name: (change(name, given[0]), *given[1:])
        )
        for name, layer in block_linears(model)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def collect(model: GPT2, text: Text, take: Callable[[str, Float[Tensor, "N in"]], None]) -> None:
    """Read a text, and hand take(name, x) the inputs of each of these layers, a row for each token."""

    def look(name: str, x: Tensor) -> Tensor:
        take(name, x.flatten(0, -2))
        return x

    with inputs_changed(model, look):
        for rows in text.tokens.split(16):
            model(rows[:, :-1])


def hessians(model: GPT2, text: Text) -> dict[str, Float[Tensor, "in in"]]:
    """Xᵀ X of the inputs of each layer, in float64."""
    found: dict[str, Tensor] = {}

    def add(name: str, x: Tensor) -> None:
        found[name] = found.get(name, 0) + (x.T @ x).double()

    collect(model, text, add)
    return found


def largest_inputs(model: GPT2, text: Text) -> dict[str, Float[Tensor, " in"]]:
    """The largest |x| of each input feature of each layer."""
    found: dict[str, Tensor] = {}

    def look(name: str, x: Tensor) -> None:
        here = x.abs().amax(0)
        found[name] = torch.maximum(found[name], here) if name in found else here

    collect(model, text, look)
    return found


# ------------------------------------------------------------------------------ rounding, and what helps


def limits(bits: int) -> tuple[int, int]:
    """The least and the largest signed integer of so many bits."""
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def round_trip(
    x: Float[Tensor, "*shape"],
    bits: int,
    axes: Sequence[int] = (-1,),
    symmetric: bool = True,
    scales: torch.dtype = torch.float32,
) -> Float[Tensor, "*shape"]:
    """x in so many bits and back.

    axes: those along which numbers share a scale; () is all of them. scales: the dtype in which scales
    are held, and to which they are rounded before they are used.
    """
    axes = tuple(axes) or tuple(range(x.ndim))
    qmin, qmax = limits(bits)
    low, high = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)
    scale, zero = affine_qparams(low, high, qmin, qmax, symmetric)
    scale = scale.to(scales).float()
    dtype = torch.int8 if bits <= 8 else torch.int16
    return dequantize(quantize(x, scale, zero, qmin, qmax, dtype), scale, zero, x.dtype)


def by_groups(
    x: Float[Tensor, "*batch n"], bits: int, group: int, symmetric: bool = True
) -> Float[Tensor, "*batch n"]:
    """x in so many bits and back, with a bfloat16 scale for each group of neighbours of the last axis."""
    blocks = x.unflatten(-1, (-1, group))
    return round_trip(blocks, bits, (-1,), symmetric, torch.bfloat16).flatten(-2)


def group_scale(weight: Float[Tensor, "out in"], bits: int, group: int) -> Float[Tensor, "out n"]:
    """The symmetric scale of each group of neighbours of a row, rounded to bfloat16, in float32."""
    blocks = weight.detach().unflatten(-1, (-1, group))
    qmin, qmax = limits(bits)
    scale = affine_qparams(blocks.amin(-1), blocks.amax(-1), qmin, qmax, symmetric=True)[0]
    return scale.bfloat16().float()


def gptq_weights(model: GPT2, found: Mapping[str, Tensor], bits: int, group: int) -> GPT2:
    """A copy whose layers have the weights that `gptq` finds, by the Hessians of `hessians`."""

    def change(name: str, weight: Tensor) -> Tensor:
        scale = group_scale(weight, bits, group)
        codes = gptq(weight, found[name], scale, *limits(bits))
        return dequantize(codes, scale, torch.zeros_like(scale, dtype=torch.int32))

    return with_weights(model, change)


NORMS = {"attn.c_attn": "ln_1", "mlp.c_fc": "ln_2"}
"""Which norm feeds which layer of a block."""


@torch.no_grad()
def smoothed(model: GPT2, largest: Mapping[str, Tensor], alpha: float = 0.5) -> GPT2:
    """A copy that computes the same, with s taken from each layer's inputs into its weight, at no cost later.

    Behind a norm its weight and bias are divided by s. Behind attention the rows of `c_attn` that make
    the values are: attention mixes tokens, not features. The layer behind the GELU stays as it is.
    """
    model = copy.deepcopy(model)
    for number, block in enumerate(model.transformer.h):
        for layer in (*NORMS, "attn.c_proj"):
            linear: Any = block.get_submodule(layer)
            s = smooth_scales(largest[f"{number}.{layer}"], linear.weight, alpha)
            if layer in NORMS:
                shift(block, layer, NORMS[layer], s)
            else:
                shift_values(block, s)
    return model


@torch.no_grad()
def shift(block: Any, layer: str, norm: str, s: Float[Tensor, " in"]) -> None:
    """Divide the output of a block's norm by s, and multiply the columns of the layer behind it; in place."""
    before, after = (block.get_submodule(name) for name in (norm, layer))
    before.weight.div_(s)
    before.bias.div_(s)
    after.weight.mul_(s)


@torch.no_grad()
def shift_values(block: Any, s: Float[Tensor, " in"]) -> None:
    """Divide the values of a block's attention by s, and multiply the columns of the layer behind; in place."""
    for rows in (block.attn.c_attn.weight, block.attn.c_attn.bias):
        values = rows[-len(s) :]  # of queries, keys and values the last third
        values.div_(s.view(-1, *[1] * (values.ndim - 1)))
    block.attn.c_proj.weight.mul_(s)


@torch.no_grad()
def with_outlier(model: GPT2, factor: float, feature: int = 7) -> GPT2:
    """A copy that computes the same, with one input feature of the layers behind norms so much larger."""
    model = copy.deepcopy(model)
    for block in model.transformer.h:
        for layer, norm in NORMS.items():
            s = torch.ones(model.config.n_embd)
            s[feature] = 1 / factor
            shift(block, layer, norm, s)
    return model


# ------------------------------------------------------------------------------ training through the rounding


class QATLinear(nn.Module):
    """A linear layer that trains a float weight and computes with it rounded to so many bits."""

    def __init__(
        self, layer: nn.Linear, bits: int, group: int, fake: Callable[..., Tensor] = fake_quantize
    ) -> None:
        """layer: its parameters are used, not copied. fake: what rounds, and lets gradients through."""
        super().__init__()
        self.layer, self.bits, self.group, self.fake = layer, bits, group, fake

    def rounded(self) -> Float[Tensor, "out in"]:
        """The weight as it will be once it is stored in integers; scales follow the weight."""
        scale = group_scale(self.layer.weight, self.bits, self.group)
        zero = torch.zeros_like(scale, dtype=torch.int32)
        return self.fake(self.layer.weight, scale, zero, *limits(self.bits))

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """x: (..., in). Returns (..., out)."""
        return F.linear(x, self.rounded(), self.layer.bias)


def trained_further(
    model: nn.Module,
    text: Text,
    steps: int,
    lr: float,
    seed: int,
    batch: int = 8,
    length: int = 128,
) -> list[float]:
    """Train in place on random pieces of a text by AdamW, the rate falling to zero; the losses."""
    generator = torch.Generator().manual_seed(seed)

    def loss_of(_: int) -> Float[Tensor, ""]:
        rows = torch.randint(len(text.tokens), (batch,), generator=generator)
        start = int(torch.randint(text.tokens.size(1) - length, (), generator=generator))
        piece = text.tokens[rows, start : start + length + 1]
        return next_token_loss(model(piece[:, :-1]), piece[:, 1:])

    model.eval()  # the course's model has no dropout worth keeping in so few steps
    return steps_of_adamw(model, steps, lr, loss_of, rate=lambda step, of, lr: lr * (1 - step / of))
