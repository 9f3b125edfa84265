"""Chapter 23, from GPT-2 to a Llama: four differences, each a part or a subclass of chapter 23's GPT-2.

Letters are those of `gpt2`; besides, K heads of keys and values (`n_kv_head`), and F hidden features
of the MLP (`n_inner`). Names stay GPT-2's, so that `init_weights` finds what writes to the stream;
`hf_state_dict` gives them those of Hugging Face's Llama.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from .attention import apply_rope
from .gpt2 import GPT2, CausalSelfAttention, GPT2Config, Parts


@dataclass(frozen=True)
class LlamaConfig(GPT2Config):
    """The sizes of a GPT-2, and those that only a Llama has. The defaults are Llama 3.2 1B's."""

    vocab_size: int = 128256
    n_positions: int = 131072
    n_embd: int = 2048
    n_layer: int = 16
    n_head: int = 32
    dropout: float = 0.0
    n_kv_head: int = 8
    n_inner: int = 8192
    rope_base: float = 500_000.0

    def __post_init__(self) -> None:
        """Raises ValueError unless n_head divides n_embd, and n_kv_head n_head."""
        super().__post_init__()
        if self.n_head % self.n_kv_head:
            raise ValueError(f"{self.n_head} heads cannot share {self.n_kv_head} of keys evenly")


class RotaryAttention(CausalSelfAttention):
    """GPT-2's attention with queries and keys rotated by their positions; without dropout.

    heads: how many of queries, of keys and of values.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.heads, self.base = (config.n_head,) * 3, config.rope_base

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B 1 T T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        d = x.size(-1) // self.heads[0]
        parts = self.c_attn(x).split([n * d for n in self.heads], dim=-1)
        q, k, v = (part.unflatten(-1, (-1, d)).transpose(1, 2) for part in parts)
        positions = torch.arange(x.size(1), device=x.device)
        q, k = (apply_rope(part, positions, base=self.base) for part in (q, k))
        shared = self.heads[0] != self.heads[1]  # several heads of queries for one of keys
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=shared)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class NoPositions(nn.Module):
    """In the place of wpe: adds nothing, and still says how long a sequence may be."""

    def __init__(self, num_embeddings: int) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings

    def forward(self, positions: Int[Tensor, " T"]) -> Float[Tensor, ""]:
        return torch.zeros((), device=positions.device)


class RotaryGPT2(GPT2):
    """A GPT-2 without an embedding of positions: its attention has to know them."""

    def __init__(self, config: LlamaConfig, parts: Parts) -> None:
        super().__init__(config, parts)
        self.transformer.wpe = NoPositions(config.n_positions)  # type: ignore[assignment]


class SwiGLU(nn.Module):
    """c_proj(silu(c_gate(x)) · c_fc(x)): an MLP in which one layer decides how much of another passes.

    Submodules, all nn.Linear without bias: `c_gate` and `c_fc`, both from D to n_inner;
    `c_proj`, from n_inner to D. No dropout. silu(x) = x · σ(x). Source: Shazeer (2020),
    section 2.
    """

    def __init__(self, config: LlamaConfig) -> None:
        """config: n_embd is D; n_inner."""
        super().__init__()
        self.c_gate = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.c_fc = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.c_proj = nn.Linear(config.n_inner, config.n_embd, bias=False)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """x: (..., D). Returns the same shape."""
        return self.c_proj(F.silu(self.c_gate(x)) * self.c_fc(x))


class GroupedQueryAttention(RotaryAttention):
    """n_head heads of queries share n_kv_head heads of keys and values. No biases."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        D, d = config.n_embd, config.n_embd // config.n_head
        self.heads = (config.n_head, config.n_kv_head, config.n_kv_head)
        self.c_attn = nn.Linear(D, sum(self.heads) * d, bias=False)
        self.c_proj = nn.Linear(D, D, bias=False)


STEPS: dict[str, tuple[Any, Parts]] = {
    "GPT-2": (GPT2, Parts()),
    "+ RoPE": (RotaryGPT2, Parts(attention=RotaryAttention)),
    "+ RMSNorm": (RotaryGPT2, Parts(nn.RMSNorm, RotaryAttention)),
    "+ SwiGLU": (RotaryGPT2, Parts(nn.RMSNorm, RotaryAttention, SwiGLU)),
    "+ GQA": (RotaryGPT2, Parts(nn.RMSNorm, GroupedQueryAttention, SwiGLU)),
}
"""From GPT-2 to a Llama: of each step the class of the model and its parts, both of a LlamaConfig."""


def hf_state_dict(model: RotaryGPT2) -> dict[str, Tensor]:
    """The weights of the last of STEPS under the names of transformers' LlamaForCausalLM.

    The head is the embedding, as in a config with tie_word_embeddings. Memory is shared
    with the model.
    """
    names = {
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "attn.c_proj": "self_attn.o_proj",
        "mlp.c_gate": "mlp.gate_proj",
        "mlp.c_fc": "mlp.up_proj",
        "mlp.c_proj": "mlp.down_proj",
    }
    transformer: Any = model.transformer
    wte = transformer.wte.weight
    state = {"model.embed_tokens.weight": wte, "lm_head.weight": wte}
    state["model.norm.weight"] = transformer.ln_f.weight
    for i, block in enumerate(transformer.h):
        layer, d = f"model.layers.{i}", wte.size(1) // block.attn.heads[0]
        for ours, theirs in names.items():
            state[f"{layer}.{theirs}.weight"] = block.get_submodule(ours).weight
        rows = block.attn.c_attn.weight.split([n * d for n in block.attn.heads])
        for name, weight in zip("qkv", rows, strict=True):
            state[f"{layer}.self_attn.{name}_proj.weight"] = weight
    return {name: x.detach() for name, x in state.items()}
