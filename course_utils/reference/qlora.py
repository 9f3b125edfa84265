"""Chapter 26, QLoRA: layers whose frozen weight is held in NF4, and their scales in eight bits.

Letters: `in` and `out` features of a layer; a *block* is the weights that share a scale. Source: Dettmers
et al. (2023), section 3.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .lora import NF4Product, lora_layers, nf4_quantize


def double_quantize(
    scales: Float[Tensor, " blocks"], block_size: int = 256
) -> tuple[Int[Tensor, " blocks"], Float[Tensor, " outer"], Float[Tensor, ""]]:
    """(codes, outer, mean): NF4's scales in eight bits each.

    Their mean is taken off, and each block_size of what is left becomes int8 with one
    float32 scale: 32 bits for 64 weights become 8 / 64 + 32 / (64 · 256) ≈ 0.127 bits a
    weight in place of 0.5 (Dettmers et al. 2023, section 3, which uses an 8-bit float
    where this uses int8).
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


class NF4Linear(nn.Module):
    """A frozen linear layer whose weight is held as NF4 codes and scales; the bias stays as it was."""

    codes: Tensor
    scales: Tensor

    def __init__(self, layer: nn.Linear, block_size: int = 64) -> None:
        """layer: what is quantised. It is not changed."""
        super().__init__()
        codes, scales = nf4_quantize(layer.weight.detach(), block_size)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.shape, self.block_size = tuple(layer.weight.shape), block_size
        self.bias = None if layer.bias is None else layer.bias.requires_grad_(False)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """x: (..., in). Returns (..., out), in x's dtype."""
        y = NF4Product.apply(x, self.codes, self.scales, self.shape, self.block_size)
        return y if self.bias is None else y + self.bias


def quantize_base(model: nn.Module, block_size: int = 64) -> nn.Module:
    """Hold the frozen weight of each layer with an adapter in NF4; in place. Returns the model."""
    for _, layer in lora_layers(model):
        layer.base_layer = NF4Linear(layer.base_layer, block_size)  # type: ignore[arg-type]
    return model
