"""Chapter 14, the memory budget: the bytes that training a transformer takes, from its settings.

The formulas are about `gpt2.GPT2` without dropout, which `gpt2_of` makes; the tests hold what they say
against what autograd keeps for it, to the byte. `step_memory` is the budget. Parameters, gradients,
optimizer state and what a block keeps are chapter 5's `training_memory` and `activation_bytes`.
"""

from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .accounting import activation_bytes, training_memory
from .cuda_memory import CheckpointedBlock
from .gpt2 import GPT2, CausalSelfAttention, GPT2Config, Parts

GIB = 2**30

# ------------------------------------------------------------------------------ the model


class Attention(CausalSelfAttention):
    """GPT-2's attention with its core, from q, k and v to the heads' results, as a method of its own.

    The budget asks two things of the core for which GPT-2's own attention has no place:
    that it makes the (T, T) scores, and that it alone is computed again. It has no
    dropout, as the budget has none.
    """

    future: Tensor | None

    def __init__(self, config: GPT2Config, future: Bool[Tensor, "C C"] | None, again: bool):
        """future: True where a key comes after its query, for scores; None for flash attention.

        again: whether the core is checkpointed.
        """
        super().__init__(config)
        self.register_buffer("future", future, persistent=False)
        self.again = again

    def core(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H T D"],
        v: Float[Tensor, "B H T D"],
        mask: Bool[Tensor, "B 1 T T"] | None,
    ) -> Float[Tensor, "B H T D"]:
        """The heads' results, before they are put side by side."""
        if self.future is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        T = q.shape[2]
        forbidden = self.future[:T, :T] if mask is None else ~mask
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(forbidden, float("-inf"))
        return scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B 1 T T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """x: (B, T, D). mask: True where a query may attend to a key, the causal rule included."""
        B, T, D = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, D // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(D, dim=2)
        )
        core = partial(checkpoint, self.core, use_reentrant=False) if self.again else self.core
        return self.c_proj(core(q, k, v, mask).transpose(1, 2).reshape(B, T, D))


def gpt2_of(
    *,
    n_layer: int,
    n_embd: int,
    n_head: int,
    vocab: int,
    context: int,
    tied: bool = True,
    attention: str = "flash",
    checkpointing: str = "none",
) -> GPT2:
    """The GPT-2 that the budget is about. The arguments are those of `step_memory` that shape it.

    With the defaults it is `gpt2.GPT2` as it stands; else it has `Attention`,
    `CheckpointedBlock` or a head with a weight of its own.
    """
    parts = Parts()
    if checkpointing == "block":
        through = partial(checkpoint, use_reentrant=False)
        parts = replace(parts, block=partial(CheckpointedBlock, through=through))
    if attention == "scores" or checkpointing == "selective":
        later = torch.ones(context, context, dtype=torch.bool).triu(1)  # one mask for all blocks
        future, again = later if attention == "scores" else None, checkpointing == "selective"
        parts = replace(parts, attention=partial(Attention, future=future, again=again))
    model = GPT2(GPT2Config(vocab, context, n_embd, n_layer, n_head, dropout=0.0), parts)
    if not tied:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


# ------------------------------------------------------------------------------ the budget

PRECISIONS = {"fp32": (4, 4), "bf16 mixed": (4, 2), "bf16": (2, 2)}
"""For each precision the bytes of a parameter (and of the residual stream), and of a product."""

OPTIMIZERS = {"sgd": "sgd", "momentum": "momentum", "adam": "adamw", "adamw": "adamw"}
"""For each optimizer the one of chapter 5 that remembers as much."""

DTYPES = {"fp32": 4, "bf16": 2}
CHECKPOINTING = ("none", "selective", "block")
ATTENTION = ("flash", "scores")
ZERO = (0, 1, 2, 3)


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one rank, by what they are for. See `step_memory`."""

    parameters: int
    gradients: int
    optimizer_state: int
    weight_copies: int
    buffers: int
    activations: int
    logits: int
    temporaries: int

    @property
    def total(self) -> int:
        """All of them at once. Forward and backward take no more: gradients come as activations go."""
        return sum(getattr(self, field.name) for field in fields(self))


def parameter_count(n_layer: int, n_embd: int, vocab: int, context: int, tied: bool = True) -> int:
    """Parameters of `gpt2_of`: V·C + T·C + L·(12·C² + 13·C) + 2·C, and V·C more for an own head.

    A block has 3·C² + C² + 4·C² + 4·C² weights, 3·C + C + 4·C + C biases, and 4·C in
    two LayerNorms.
    """
    embeddings = (vocab + context) * n_embd + (0 if tied else vocab * n_embd)
    return embeddings + n_layer * block_parameters(n_embd) + 2 * n_embd


def block_parameters(n_embd: int) -> int:
    """Parameters of one block of GPT-2: 12·C² in its matrices, 13·C in biases and norms."""
    return 12 * n_embd**2 + 13 * n_embd


def step_memory(
    *,
    n_layer: int,
    n_embd: int,
    n_head: int,
    vocab: int,
    context: int,
    batch: int,
    precision: str = "fp32",
    optimizer: str = "adamw",
    state_dtype: str | None = None,
    tied: bool = True,
    checkpointing: str = "none",
    attention: str = "flash",
    zero: int = 0,
    world_size: int = 1,
    device: str = "cuda",
) -> StepMemory:
    """Bytes on one rank while a GPT-2 is trained (`gpt2_of`), by tenant.

    L = n_layer, C = n_embd, H = n_head, V = vocab, T = context (every sequence is that
    long), B = batch on each rank. precision: "fp32"; "bf16 mixed", float32 parameters
    under autocast; "bf16", everything. state_dtype: of the optimizer's state, "fp32" or
    "bf16", by default the parameters' own, as torch has it. checkpointing: "none";
    "block", each block keeps its input alone; "selective", the attention between q, k,
    v and its output is computed again. attention: "flash", or "scores": the (T, T)
    matrices are made. zero, world_size: the ZeRO stage and over how many ranks. device:
    "cuda" or "cpu", which differ in one thing, see the LayerNorms. Raises ValueError
    for settings there are none of.

    With P parameters (`parameter_count`) of p bytes each, and c bytes for what is
    multiplied (fp32: 4, 4; bf16 mixed: 4, 2; bf16: 2, 2):

    - parameters p·P, gradients p·P, optimizer state 0, 1 or 2 times P of its dtype. The
      counts of steps are left out: torch keeps them on the CPU. ZeRO (Rajbhandari et
      al. 2020, section 5) shards the state (stage 1), the gradients too (2), the
      parameters too (3): of each a rank has ⌈P / world_size⌉.
    - weight copies, mixed only: autocast's bfloat16 copies of the weights that Linears
      multiply with stay for backward, 2·12·C² a block and 2·V·C for the head. A block
      that is checkpointed makes its own again. In stage 3 weights are gathered when
      they are needed, and none stay.
    - buffers: for "scores" the mask, T².
    - activations, what autograd keeps. In each block the inputs of two LayerNorms,
      2·p·BTC, their means and reciprocal deviations, 4·BT·s with s = 4 (in bf16 on the
      CPU 2: it keeps them in the input's dtype); the inputs of the projection to q, k,
      v and of the MLP, 2·c·BTC; q, k and v, 3·c·BTC; the attention's output, c·BTC;
      input and output of GELU, 8·c·BTC. Flash attention adds the logarithm of each
      row's sum, 4·BHT (Dao 2023, section 3.1); scores add the softmax in float32,
      4·BHT², and where c < 4 its copy for the product, c·BHT². "selective" has neither
      of the two; "block" has p·BTC a block. Around the blocks: tokens and targets
      16·BT, positions 8·T, the last LayerNorm p·BTC + 2·s·BT, the head's input c·BTC,
      and 4 bytes, the sum of weights in the loss. In "bf16" a block's 16·c·BTC are the
      34 of Korthikanti et al. 2022 (section 4.1; in units of BTC bytes) without the 2
      of dropout's masks, and "selective" is their section 5.
    - logits: c·BTV, and the log-probabilities in float32 that the loss keeps, 4·BTV.
    - temporaries: the largest of three. The loss's two gradients as backward begins,
      8·BTV. What one block computes again. With a tied head, as backward ends, the
      gradients of its weight by its two uses, beside their sum: 2·p·VC. In stage 3 also
      the parameters of the largest unit in c bytes each: of a block, or of all that is
      in no block.

    What a real GPU has besides: its context, the libraries' workspaces, what the
    caching allocator rounds up and holds in vain; a few bytes of random state for each
    flash attention, whose sums some kernels pad; further temporaries of backward and of
    the optimizer; ZeRO's buckets and what it gathers ahead.
    """
    for name, value, known in (
        ("precision", precision, PRECISIONS),
        ("optimizer", optimizer, OPTIMIZERS),
        ("state_dtype", state_dtype, (None, *DTYPES)),
        ("checkpointing", checkpointing, CHECKPOINTING),
        ("attention", attention, ATTENTION),
        ("zero", zero, ZERO),
        ("device", device, ("cuda", "cpu")),
    ):
        if value not in known:
            choices = ", ".join(map(repr, known))
            raise ValueError(f"{name} is one of {choices}; came {value!r}")
    p, c = PRECISIONS[precision]
    mixed = precision == "bf16 mixed"
    stat = 2 if precision == "bf16" and device == "cpu" else 4
    rows = batch * context  # BT
    width = rows * n_embd  # BTC
    maps = batch * n_head * context * context  # BHT²

    count = parameter_count(n_layer, n_embd, vocab, context, tied)
    shard = -(-count // world_size)

    def held(n: int) -> dict[str, int]:
        """What a rank holds of n parameters that it trains."""
        return training_memory(n, precision=precision, optimizer=OPTIMIZERS[optimizer])

    whole, part = held(count), held(shard)
    state = (part if zero >= 1 else whole)["optimizer_state"]  # in the parameters' p bytes
    state = state // p * (DTYPES[state_dtype] if state_dtype else p)

    flash = attention == "flash"
    block = activation_bytes(batch, context, n_embd, n_head, stream=p, product=c, flash=flash)
    block -= 4 * (4 - stat) * rows  # means and reciprocal deviations
    core = 4 * batch * n_head * context if flash else (4 + (c if c < 4 else 0)) * maps
    outside = block - core
    if checkpointing == "none":
        kept, again = block, 0
    elif checkpointing == "selective":
        copies = c * width if flash else 3 * c * width  # an output; q, k, v in a row
        kept, again = outside, copies + core
    else:
        kept, again = p * width, block - p * width
    rest = 16 * rows + 8 * context + (p + c) * width + 2 * stat * rows + 4

    weights = 2 * 12 * n_embd**2 if mixed and zero < 3 else 0
    copied = 0 if checkpointing == "block" else n_layer * weights
    if checkpointing == "block":
        again += weights
    head = 2 * vocab * n_embd if mixed and zero < 3 else 0
    twice = 2 * p * vocab * n_embd if tied else 0
    units = block_parameters(n_embd), count - n_layer * block_parameters(n_embd)
    gathered = c * max(units) if zero == 3 else 0
    return StepMemory(
        parameters=(part if zero >= 3 else whole)["parameters"],
        gradients=(part if zero >= 2 else whole)["gradients"],
        optimizer_state=state,
        weight_copies=copied + head,
        buffers=context * context if attention == "scores" else 0,
        activations=n_layer * kept + rest,
        logits=(c + 4) * rows * vocab,
        temporaries=max(8 * rows * vocab, again, twice) + gathered,
    )


# ------------------------------------------------------------------------------ shapes and devices

SHAPES: dict[str, dict[str, int]] = {
    "GPT-2 small": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab": 50257, "context": 1024},
    "GPT-2 medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16, "vocab": 50257, "context": 1024},
    "GPT-2 large": {"n_layer": 36, "n_embd": 1280, "n_head": 20, "vocab": 50257, "context": 1024},
    "GPT-2 XL": {"n_layer": 48, "n_embd": 1600, "n_head": 25, "vocab": 50257, "context": 1024},
    "7B": {"n_layer": 32, "n_embd": 4096, "n_head": 32, "vocab": 32000, "context": 4096},
    "70B": {"n_layer": 80, "n_embd": 8192, "n_head": 64, "vocab": 32000, "context": 4096},
}
"""GPT-2's four sizes (Radford et al. 2019, table 2), and depth, width, heads, vocabulary and context of Llama 2's
7B and 70B (Touvron et al. 2023) in blocks of GPT-2, whose MLPs and attention are not Llama's."""

MIB = 2**20
GPUS: dict[str, int] = {
    "T4": 15360 * MIB,
    "L4": 23034 * MIB,
    "RTX 4090": 24564 * MIB,
    "RTX 5090": 32607 * MIB,
    "A100 40 GB": 40960 * MIB,
    "L40S": 46068 * MIB,
    "A100 80 GB": 81920 * MIB,
    "H100 80 GB": 81559 * MIB,
    "H200": 143771 * MIB,
    "B200": 183359 * MIB,
}
"""The memory that nvidia-smi reports in total, from outputs of it in public repositories. A process
gets a little less: each has a CUDA context on the device."""


def fits(memory: StepMemory, gpu: str) -> bool:
    """Is the total no more than the memory of that GPU of `GPUS`? Raises KeyError for another one."""
    return memory.total <= GPUS[gpu]
