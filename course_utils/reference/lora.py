"""Chapter 26, LoRA: a frozen model, and a small trained update of low rank beside some layers.

Letters: `in` and `out` features of a layer, r the rank of the update, α its scale; B sequences of T
positions, V tokens in the vocabulary. Source of the method: Hu et al. (2021), section 4.1; of NF4:
Dettmers et al. (2023), section 3 and appendix E.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

DEFAULT = "default"


class LoRALinear(nn.Module):
    """A frozen layer y = x Wᵀ + b and, beside it, a trained update of low rank: y + s · x Aᵀ Bᵀ.

    base_layer: an nn.Linear, or a `Conv1D` of transformers, which holds W as (in, out);
    it no longer trains, and what it returns is not written to. lora_A: (r, in), starts
    as nn.Linear's weights do. lora_B: (out, r), starts at zero, so that nothing changes
    at first. Both have W's dtype and are on its device. scaling: s = α / r; with
    rslora α / √r (Kalajdzievski, 2023). merged: False until `merge` adds the update to
    W; then the base layer alone is the answer. Source: Hu et al. (2021), section 4.1.
    """

    def __init__(
        self,
        base_layer: nn.Module,
        r: int,
        alpha: float,
        dropout: float = 0.0,
        rslora: bool = False,
    ) -> None:
        """dropout: on what enters A, in train mode. Raises ValueError for r < 1."""
        super().__init__()
        if r < 1:
            raise ValueError(f"the rank is at least 1; came {r}")
        weight = weight_of(base_layer)
        out_features, in_features = weight.shape
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.Parameter(weight.new_empty(r, in_features))
        self.lora_B = nn.Parameter(weight.new_zeros(out_features, r))
        self.dropout = nn.Dropout(dropout)
        self.scaling = alpha / (math.sqrt(r) if rslora else r)
        self.merged = False
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """x: (..., in). Returns (..., out). No (out, in) tensor is made."""
        y = self.base_layer(x)
        if self.merged:
            return y
        h = F.linear(self.dropout(x), self.lora_A)  # (..., r)
        return y + self.scaling * F.linear(h, self.lora_B)

    def delta(self) -> Float[Tensor, "out in"]:
        """The update whole: ΔW = s · B A."""
        return self.scaling * (self.lora_B @ self.lora_A)


def weight_of(layer: nn.Module) -> Float[Tensor, "out in"]:
    """A linear layer's W as nn.Linear holds it, (out, in); of a `Conv1D` it is a view."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight.T if type(layer).__name__ == "Conv1D" else weight


def linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(dotted name, layer) of each nn.Linear and each `Conv1D`."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            yield name, module


def is_target(name: str, targets: Sequence[str]) -> bool:
    """Is the dotted name one of the targets, or does it end in a dot and one of them?"""
    return any(name == target or name.endswith("." + target) for target in targets)


def lora_parameter_count(model: nn.Module, targets: Sequence[str], r: int) -> int:
    """How many numbers adapters of rank r on these layers would train.

    targets: "c_attn" means each nn.Linear, and each layer whose class is called
    `Conv1D`, whose dotted name is that or ends in ".c_attn"; one that matches no layer
    adds nothing. The model is not changed.
    """
    return sum(
        r * sum(weight_of(layer).shape)
        for name, layer in linear_layers(model)
        if is_target(name, targets)
    )


def inject_lora(
    model: nn.Module,
    targets: Sequence[str],
    r: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    rslora: bool = False,
) -> nn.Module:
    """Freeze the model and put a LoRALinear in place of every layer of these names; in place.

    targets: "c_attn" means each nn.Linear, and each layer whose class is called
    `Conv1D`, whose dotted name is that or ends in ".c_attn". An adapter is in its
    layer's mode, train or eval. Returns the model. Raises ValueError for a target that
    matches no such layer, for r < 1, and for a dropout that is no probability; then
    nothing is changed.
    """
    found = [(name, layer) for name, layer in linear_layers(model) if is_target(name, targets)]
    for target in targets:
        if not any(is_target(name, [target]) for name, _ in found):
            raise ValueError(f"no linear layer is called {target!r}")
    if r < 1:
        raise ValueError(f"the rank is at least 1; came {r}")
    if not 0 <= dropout <= 1:
        raise ValueError(f"a dropout is a probability; came {dropout}")
    model.requires_grad_(False)
    for name, layer in found:
        adapted = LoRALinear(layer, r, alpha, dropout, rslora).train(layer.training)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, adapted)
    return model


def lora_layers(model: nn.Module) -> Iterator[tuple[str, "LoRALinear"]]:
    """(dotted name, layer) of each layer with an adapter; of several the active one."""
    for name, module in _adapted(model):
        if not isinstance(module, Adapters):
            yield name, module
        elif module.active is not None:
            yield name, module.adapters[module.active]  # type: ignore[misc]


def _adapted(model: nn.Module) -> Iterator[tuple[str, "LoRALinear | Adapters"]]:
    """(dotted name, module) of each layer with an adapter, or with several."""
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if isinstance(module, Adapters):
            inside += (name + ".",)
            yield name, module
        elif hasattr(module, "lora_A") and not name.startswith(inside):
            yield name, module  # type: ignore[misc]


def merge(model: nn.Module) -> nn.Module:
    """Add each adapter's update to its layer's W: from now on they cost what they cost before.

    In place; returns the model. A layer whose update is in its W already is left alone.
    """
    for _, layer in lora_layers(model):
        if not layer.merged:
            with torch.no_grad():
                weight_of(layer.base_layer).add_(layer.delta())
            layer.merged = True
    return model


def unmerge(model: nn.Module) -> nn.Module:
    """Take it out again: each W is what it was, up to the rounding of the two; in place.

    Returns the model. A layer that is not merged is left alone.
    """
    for _, layer in lora_layers(model):
        if layer.merged:
            with torch.no_grad():
                weight_of(layer.base_layer).sub_(layer.delta())
            layer.merged = False
    return model


def unload(model: nn.Module) -> nn.Module:
    """Merge, and put each base layer back in its place: a plain model again; in place.

    Returns the model. Its weights still require no gradient.
    """
    merge(model)
    for name, layer in list(lora_layers(model)):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer.base_layer)
    return model


def multi_adapter_forward(
    x: Float[Tensor, "B T in"],
    A: Float[Tensor, "n r in"],
    B: Float[Tensor, "n out r"],
    scaling: Float[Tensor, " n"],
    adapter: Int[Tensor, " B"],
) -> Float[Tensor, "B T out"]:
    """The update of a layer's answer where each row of a batch has an adapter of its own.

    A, B, scaling: of n ≥ 1 adapters, stacked. adapter: of each row, 0 to n − 1, or −1 for
    none: then the row's update is zero. Row b gets s x Aᵀ Bᵀ of its adapter, in x's dtype,
    which A and B have, too; the base layer's answer is not in it. No argument is changed.
    Source: the gathered products of Chen et al. (2023), Punica.
    """
    chosen = adapter.clamp(min=0)
    h = torch.bmm(x, A[chosen].mT)  # (B, T, r)
    scale = scaling[chosen].masked_fill(adapter < 0, 0.0).to(x.dtype)
    return scale[:, None, None] * torch.bmm(h, B[chosen].mT)


class Adapters(nn.Module):
    """Several LoRALinears over one base layer, by name; at most one is active."""

    def __init__(self, first: LoRALinear) -> None:
        """first: what was there, from now on under the name "default"."""
        super().__init__()
        self.base_layer = first.base_layer
        self.adapters = nn.ModuleDict()
        self.kind = type(first)
        self.active: str | None = DEFAULT
        self.train(first.training)
        self.add(DEFAULT, first)

    def add(self, name: str, layer: LoRALinear) -> None:
        """One more. The base is registered here alone, so that a state_dict holds it once."""
        del layer.base_layer
        layer.__dict__["base_layer"] = self.base_layer
        self.adapters[name] = layer.train(self.training)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """x: (..., in). Returns (..., out): the active adapter's, or the base layer's own."""
        return self.base_layer(x) if self.active is None else self.adapters[self.active](x)


def add_adapter(
    model: nn.Module,
    adapter: str,
    r: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    rslora: bool = False,
) -> nn.Module:
    """One more adapter on every layer that has one, and make it the active one; in place.

    It is in its layer's mode, train or eval. Raises ValueError for a name that is
    taken, while an adapter is merged, and for what LoRALinear refuses; then nothing is
    changed.
    """
    check_unmerged(model)
    if adapter in adapter_names(model):
        raise ValueError(f"there is an adapter {adapter!r} already")
    places = list(_adapted(model))
    kinds: list[Any] = [getattr(place, "kind", type(place)) for _, place in places]
    new = [
        kind(place.base_layer, r, alpha, dropout, rslora)
        for kind, (_, place) in zip(kinds, places, strict=True)
    ]
    for (name, place), layer in zip(places, new, strict=True):
        several = place if isinstance(place, Adapters) else Adapters(place)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, several)
        several.add(adapter, layer)
    use_adapter(model, adapter)
    return model


def adapter_names(model: nn.Module) -> list[str]:
    """Names of the adapters, once there are several."""
    several = [module for module in model.modules() if isinstance(module, Adapters)]
    return sorted({name for module in several for name in module.adapters})


def use_adapter(model: nn.Module, adapter: str | None) -> None:
    """Make this adapter the active and only trained one; None: the base model alone.

    Raises KeyError if no layer has it, ValueError while one is merged.
    """
    names = adapter_names(model)
    if adapter is not None and adapter not in names:
        raise KeyError(f"no adapter {adapter!r}; there are: {', '.join(names) or 'none'}")
    check_unmerged(model)
    for module in model.modules():
        if isinstance(module, Adapters):
            module.active = adapter
            for name, layer in module.adapters.items():
                layer.lora_A.requires_grad_(name == adapter)
                layer.lora_B.requires_grad_(name == adapter)


def check_unmerged(model: nn.Module) -> None:
    """Raises ValueError where an adapter is merged: its file would miss what W already holds."""
    if any(layer.merged for _, layer in lora_layers(model)):
        raise ValueError("an adapter is merged into the weights: unmerge it first")


PEFT_PREFIX = "base_model.model."
"""What PEFT's files put before the name of a module."""


def lora_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The adapters' tensors, detached, as they are, under the names of PEFT's files; nothing else.

    The layer h.0.attn.c_attn gives base_model.model.h.0.attn.c_attn.lora_A.weight and
    ….lora_B.weight. Raises ValueError for a model without adapters.
    """
    tensors = {name: tensor.detach() for name, tensor in _lora_tensors(model)}
    if not tensors:
        raise ValueError("this model has no adapter")
    return tensors


def _lora_tensors(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, layer in lora_layers(model):
        yield f"{PEFT_PREFIX}{name}.lora_A.weight", layer.lora_A
        yield f"{PEFT_PREFIX}{name}.lora_B.weight", layer.lora_B


def load_lora_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy an adapter's tensors in, or raise ValueError, naming each that does not fit, before any."""
    mine = dict(_lora_tensors(model))
    problems = [f"{name}: missing" for name in mine if name not in state]
    problems += [f"{name}: unknown" for name in state if name not in mine]
    problems += [
        f"{name}: {tuple(state[name].shape)} in the file, {tuple(mine[name].shape)} here"
        for name in mine
        if name in state and state[name].shape != mine[name].shape
    ]
    if problems:
        raise ValueError("the adapter does not fit this model:\n  " + "\n  ".join(problems))
    with torch.no_grad():
        for name, parameter in mine.items():
            parameter.copy_(state[name])


def masked_instruction_loss(
    logits: Float[Tensor, "B T V"],
    ids: Int[Tensor, "B T"] | UInt8[Tensor, "B T"],
    prompt_lengths: Int[Tensor, " B"],
    lengths: Int[Tensor, " B"],
) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats, float32, of the answers' tokens, each predicted by the one before it.

    ids[b], signed integers or uint8: a prompt of prompt_lengths[b] ≥ 1 tokens, its answer,
    then padding. lengths[b]: the number of tokens of prompt and answer together. Every
    answer token of the batch counts the same. Raises ValueError if there is none.
    """
    position = torch.arange(1, ids.size(1), device=ids.device)
    answer = (position >= prompt_lengths[:, None]) & (position < lengths[:, None])
    if not answer.any():
        raise ValueError("no token of an answer: the prompts fill the sequences")
    targets = ids[:, 1:].long().masked_fill(~answer, -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten())


# QLoRA: frozen weights in four bits

NF4 = torch.tensor(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ]
)
"""The published code book: quantiles of a normal distribution, scaled to ±1 (appendix E)."""


def nf4_quantize(
    x: Float[Tensor, "*shape"], block_size: int = 64
) -> tuple[UInt8[Tensor, " half"], Float[Tensor, " blocks"]]:
    """(codes, scales): each number as the nearest of NF4's sixteen, times its block's scale.

    A block is block_size numbers in row-major order (the last may be shorter), its
    scale the largest magnitude in it, float32; a block of zeros has the scale 0 and
    zero's code. A byte holds two codes, the first in its high half; if the number of
    codes is odd, the low half of the last byte holds the code of zero. Halfway between
    two values either will do. Raises ValueError for an odd block_size, or one below 2.
    """
    if block_size <= 0 or block_size % 2:
        raise ValueError(f"a block holds an even number of values, at least 2; came {block_size}")
    blocks = F.pad(x.flatten().float(), (0, -x.numel() % block_size)).view(-1, block_size)
    scales = blocks.abs().amax(dim=1)
    unit = blocks / torch.where(scales == 0, 1.0, scales)[:, None]
    levels = NF4.to(x.device)
    code = torch.bucketize(unit, (levels[1:] + levels[:-1]) / 2).to(torch.uint8).flatten()
    code = code[: x.numel() + x.numel() % 2]
    return code[::2] << 4 | code[1::2], scales


def nf4_dequantize(
    codes: UInt8[Tensor, " half"],
    scales: Float[Tensor, " blocks"],
    shape: Sequence[int],
    block_size: int = 64,
) -> Float[Tensor, "*shape"]:
    """The float32 tensor of this shape that codes and scales stand for."""
    levels = NF4.to(codes.device)
    values = levels[torch.stack([codes >> 4, codes & 15], dim=1).flatten().int()]
    size = math.prod(shape)
    return (values[:size] * scales.repeat_interleave(block_size)[:size]).view(*shape)


class NF4Product(torch.autograd.Function):
    """x Wᵀ of a frozen W (out, in) that is stored in NF4: as numbers W exists only while it is used.

    Called as NF4Product.apply(x, codes, scales, shape, block_size): codes and scales are
    `nf4_quantize`'s of W, shape is W's, (out, in). The product has x's dtype, and W is
    turned into it; so has x's gradient. Nothing else has a gradient. Backward makes W again
    from codes and scales, which `ctx.save_for_backward` keeps, so that autograd notices if
    they were changed. Source: Dettmers et al. (2023), equation 5.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "*batch in"],
        codes: UInt8[Tensor, " half"],
        scales: Float[Tensor, " blocks"],
        shape: tuple[int, int],
        block_size: int = 64,
    ) -> Float[Tensor, "*batch out"]:
        """x: (..., in). Returns x Wᵀ, (..., out). Only codes and scales are saved for backward."""
        ctx.save_for_backward(codes, scales)
        ctx.shape, ctx.block_size = shape, block_size
        return F.linear(x, nf4_dequantize(codes, scales, shape, block_size).to(x.dtype))

    @staticmethod
    def backward(
        ctx: Any, grad: Float[Tensor, "*batch out"]
    ) -> tuple[Float[Tensor, "*batch in"], None, None, None, None]:
        """grad: of the product, (..., out). Returns that of x, (..., in), and None for the rest."""
        codes, scales = ctx.saved_tensors
        W = nf4_dequantize(codes, scales, ctx.shape, ctx.block_size).to(grad.dtype)
        return grad @ W, None, None, None, None


# preferences


def dpo_loss(
    policy_chosen: Float[Tensor, " B"],
    policy_rejected: Float[Tensor, " B"],
    reference_chosen: Float[Tensor, " B"],
    reference_rejected: Float[Tensor, " B"],
    beta: float = 0.1,
) -> tuple[Float[Tensor, ""], Float[Tensor, " B"]]:
    """(loss, margins) of direct preference optimization, in float32 (float64 for float64 arguments).

    The first four: log p of the chosen and the rejected answer of each pair, in nats, under
    the model that trains and under the one where it began. The reward of an answer is
    β (policy − reference), a pair's margin the chosen one's reward less the rejected one's.
    The loss is the mean of −ln σ(margin), computed so that it is finite for any finite
    margin, and not rounded to 0 where a margin is large. margins are detached, and nothing flows into the reference's numbers. No
    argument is changed. Raises ValueError unless beta is positive, and where there is no
    pair. Source: Rafailov et al. (2023), equation 7.
    """
    if beta <= 0:
        raise ValueError(f"beta is positive; came {beta}")
    if policy_chosen.numel() == 0:
        raise ValueError("no pair: the mean of nothing is NaN")
    wide = torch.promote_types(policy_chosen.dtype, torch.float32)
    policy = policy_chosen.to(wide) - policy_rejected
    reference = reference_chosen.detach().to(wide) - reference_rejected.detach()
    margins = beta * (policy - reference)
    return -F.logsigmoid(margins).mean(), margins.detach()
