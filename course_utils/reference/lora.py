"""Chapter 26, LoRA: a frozen model, and a small trained update of low rank beside some layers.

Letters: `in` and `out` features of a layer, r the rank of the update, α its scale; B sequences of T
positions, V tokens in the vocabulary. Source of the method: Hu et al. (2021), section 4.1; of NF4:
Dettmers et al. (2023), section 3 and appendix E.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

DEFAULT = "default"


class LowRank(nn.Module):
    """The update ΔW = s · B A, where A is (r, in), B is (out, r), and s = α / r.

    A starts as nn.Linear's weights do and B at zero, so the update is zero at first. rslora: the
    scale is α / √r (Kalajdzievski, 2023), under which the update does not shrink as r grows.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        r: int,
        alpha: float,
        dropout: float = 0.0,
        rslora: bool = False,
    ) -> None:
        """r: at least 1. dropout: on what enters A, in train mode. Raises ValueError for r < 1."""
        super().__init__()
        if r < 1:
            raise ValueError(f"the rank is at least 1; came {r}")
        self.scaling = alpha / (math.sqrt(r) if rslora else r)
        self.lora_A = nn.Parameter(torch.empty(r, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))
        self.dropout = nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def add_to(
        self, y: Float[Tensor, "*batch out"], x: Float[Tensor, "*batch in"]
    ) -> Float[Tensor, "*batch out"]:
        """y + s · x Aᵀ Bᵀ, in y's memory: a layer's backward does not need what it returned."""
        h = F.linear(self.dropout(x).reshape(-1, x.size(-1)), self.lora_A)
        B = self.lora_B.to(h.dtype)  # the low precision of autocast, which knows no in-place op
        return y.view(-1, y.size(-1)).addmm_(h, B.T, alpha=self.scaling).view_as(y)

    def delta(self) -> Float[Tensor, "out in"]:
        """ΔW whole."""
        return self.scaling * (self.lora_B @ self.lora_A)


class LoRALinear(nn.Module):
    """A frozen layer y = x Wᵀ + b, and adapters of which at most one is active: y + s · x Aᵀ Bᵀ.

    base_layer: an nn.Linear, or a `Conv1D` of transformers, which holds W as (in, out).
    """

    def __init__(
        self,
        base_layer: nn.Module,
        r: int,
        alpha: float,
        dropout: float = 0.0,
        rslora: bool = False,
        adapter: str = DEFAULT,
    ) -> None:
        """adapter: the name of the first one. Raises ValueError for r < 1."""
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.adapters = nn.ModuleDict()
        self.active: str | None = None
        self.merged: str | None = None
        self.add(adapter, r, alpha, dropout, rslora)
        self.active = adapter

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """The base layer's W as nn.Linear holds it; a view."""
        weight: Tensor = self.base_layer.weight  # type: ignore[assignment]
        return weight if isinstance(self.base_layer, nn.Linear) else weight.T

    def add(
        self, adapter: str, r: int, alpha: float, dropout: float = 0.0, rslora: bool = False
    ) -> None:
        """One more adapter, where the layer is and of its dtype; not active yet."""
        out_features, in_features = self.weight.shape
        update = LowRank(in_features, out_features, r, alpha, dropout, rslora)
        self.adapters[adapter] = update.to(self.weight.device, self.weight.dtype)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """x: (..., in). Returns (..., out)."""
        y = self.base_layer(x)
        if self.active is None or self.merged is not None:
            return y
        update: LowRank = self.adapters[self.active]  # type: ignore[assignment]
        return update.add_to(y, x)

    @torch.no_grad()
    def merge(self) -> None:
        """Add the active update to W: from now on the layer costs what it cost before."""
        if self.merged is None and self.active is not None:
            self.weight.add_(self.adapters[self.active].delta())  # type: ignore[operator]
            self.merged = self.active

    @torch.no_grad()
    def unmerge(self) -> None:
        """Take it out again: W is what it was, up to the rounding of one addition and one subtraction."""
        if self.merged is not None:
            self.weight.sub_(self.adapters[self.merged].delta())  # type: ignore[operator]
            self.merged = None


def inject_lora(
    model: nn.Module,
    targets: Sequence[str],
    r: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    rslora: bool = False,
    adapter: str = DEFAULT,
) -> nn.Module:
    """Freeze the model, and put a LoRALinear in place of every layer of these names; in place.

    targets: "c_attn" means each submodule whose dotted name is that or ends in ".c_attn". A second
    call with another adapter adds it where the first put its layers. Raises ValueError for a target
    that matches no linear layer, and for r < 1; then nothing is changed.
    """
    found = [(name, layer) for name, layer in linear_layers(model) if is_target(name, targets)]
    for target in targets:
        if not any(is_target(name, [target]) for name, _ in found):
            raise ValueError(f"no linear layer is called {target!r}")
    if r < 1:
        raise ValueError(f"the rank is at least 1; came {r}")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, layer in found:
        if isinstance(layer, LoRALinear):
            layer.add(adapter, r, alpha, dropout, rslora)
        else:
            parent, _, last = name.rpartition(".")
            wrapped = LoRALinear(layer, r, alpha, dropout, rslora, adapter)
            setattr(model.get_submodule(parent), last, wrapped)
    use_adapter(model, adapter)
    return model


def linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(dotted name, layer): every linear one, those that have an adapter as one layer."""
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(inside):
            continue
        if isinstance(module, LoRALinear):
            inside += (name + ".",)
            yield name, module
        elif isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            yield name, module


def is_target(name: str, targets: Sequence[str]) -> bool:
    return any(name == target or name.endswith("." + target) for target in targets)


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoRALinear]]:
    """(dotted name, layer) of each LoRALinear."""
    for name, module in model.named_modules():
        if isinstance(module, LoRALinear):
            yield name, module


def use_adapter(model: nn.Module, adapter: str | None) -> None:
    """Make this adapter the active and only trained one; None: the base model alone.

    Raises KeyError if no layer has it, ValueError while one is merged.
    """
    layers = [layer for _, layer in lora_layers(model)]
    known = sorted({name for layer in layers for name in layer.adapters})
    if adapter is not None and adapter not in known:
        raise KeyError(f"no adapter {adapter!r}; there are: {', '.join(known) or 'none'}")
    if any(layer.merged for layer in layers):
        raise ValueError("an adapter is merged into the weights: unmerge it first")
    for layer in layers:
        layer.active = adapter if adapter and adapter in layer.adapters else None
        for name, update in layer.adapters.items():
            update.requires_grad_(name == adapter)


def merge(model: nn.Module) -> nn.Module:
    """Add each layer's active update to its weights; in place. Returns the model."""
    for _, layer in lora_layers(model):
        layer.merge()
    return model


def unmerge(model: nn.Module) -> nn.Module:
    """Undo `merge`, up to rounding; in place. Returns the model."""
    for _, layer in lora_layers(model):
        layer.unmerge()
    return model


PEFT_PREFIX = "base_model.model."
"""What PEFT's files put before the name of a module."""


def lora_state_dict(model: nn.Module, adapter: str = DEFAULT) -> dict[str, Tensor]:
    """The tensors of one adapter, and nothing of the base model, under the names of PEFT's files."""
    return {name: tensor.detach() for name, tensor in lora_tensors(model, adapter)}


def lora_tensors(model: nn.Module, adapter: str) -> Iterator[tuple[str, nn.Parameter]]:
    found = False
    for name, layer in lora_layers(model):
        if adapter in layer.adapters:
            found = True
            for part in ("lora_A", "lora_B"):
                tensor = layer.adapters[adapter].get_parameter(part)
                yield f"{PEFT_PREFIX}{name}.{part}.weight", tensor
    if not found:
        raise KeyError(f"no layer has an adapter {adapter!r}")


def load_lora_state_dict(
    model: nn.Module, state: Mapping[str, Tensor], adapter: str = DEFAULT
) -> None:
    """Copy an adapter's tensors in, or raise ValueError, naming each that does not fit, before any."""
    mine = dict(lora_tensors(model, adapter))
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


def lora_parameter_count(model: nn.Module, targets: Sequence[str], r: int) -> int:
    """How many numbers adapters of rank r on these layers would train: r · (in + out) for each."""
    total = 0
    for name, layer in linear_layers(model):
        if is_target(name, targets):
            weight = layer.weight
            total += r * sum(weight.shape)  # type: ignore[union-attr, misc, arg-type]
    return total


def masked_instruction_loss(
    logits: Float[Tensor, "B T V"],
    ids: Int[Tensor, "B T"],
    prompt_lengths: Int[Tensor, " B"],
    lengths: Int[Tensor, " B"],
) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats of the answers' tokens, each predicted from the position before it.

    ids[b] is a prompt of prompt_lengths[b] ≥ 1 tokens, an answer up to position lengths[b], then
    padding. Every answer token of the batch counts the same. Raises ValueError if there is none.
    """
    position = torch.arange(1, ids.size(1), device=ids.device)
    answer = (position >= prompt_lengths[:, None]) & (position < lengths[:, None])
    if not answer.any():
        raise ValueError("no token of an answer: the prompts fill the sequences")
    targets = ids[:, 1:].masked_fill(~answer, -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten())


# NF4, the four bits of QLoRA

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

    A block is block_size numbers in row-major order (the last may be shorter), its scale the largest
    magnitude in it, float32. A byte holds two codes, the first in its high half; an odd last one is
    paired with zero's. Halfway between two values the lower is taken. Raises ValueError for an odd
    block_size, or one below 2.
    """
    if block_size < 2 or block_size % 2:
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


def double_quantize(
    scales: Float[Tensor, " blocks"], block_size: int = 256
) -> tuple[Int[Tensor, " blocks"], Float[Tensor, " outer"], Float[Tensor, ""]]:
    """(codes, outer, mean): NF4's scales in eight bits each.

    Their mean is taken off, and each block_size of what is left becomes int8 with one float32 scale:
    32 bits for 64 weights become 8 / 64 + 32 / (64 · 256) ≈ 0.127 bits a weight in place of 0.5
    (Dettmers et al. 2023, section 3, which uses an 8-bit float where this uses int8).
    """
    mean = scales.mean()
    blocks = F.pad(scales - mean, (0, -scales.numel() % block_size)).view(-1, block_size)
    outer = blocks.abs().amax(dim=1) / 127
    codes = (blocks / torch.where(outer == 0, 1.0, outer)[:, None]).round().to(torch.int8)
    return codes.flatten()[: scales.numel()], outer, mean


def double_dequantize(
    codes: Int[Tensor, " blocks"],
    outer: Float[Tensor, " outer"],
    mean: Float[Tensor, ""],
    block_size: int = 256,
) -> Float[Tensor, " blocks"]:
    """The scales that `double_quantize` made codes of, up to half a step."""
    return codes * outer.repeat_interleave(block_size)[: codes.numel()] + mean
