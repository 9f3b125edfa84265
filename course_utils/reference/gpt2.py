"""Chapter 23, GPT-2: the model of Radford et al. (2019), as it was published, on one page.

Letters: B sequences in the batch, T positions in each, D features (`n_embd`), H heads (`n_head`),
d = D / H features of a head, L blocks (`n_layer`), V tokens in the vocabulary, C positions that
there are embeddings for (`n_positions`, the context).

Names of modules and parameters are those of the published checkpoints, which Hugging Face's
transformers uses too. The shapes are torch's: nn.Linear holds (out, in), the checkpoints (in, out).
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class GPT2Config:
    """The sizes of a GPT-2. The defaults are the published 124 M model's."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        """Raises ValueError unless n_head divides n_embd."""
        if self.n_embd % self.n_head:
            raise ValueError(f"{self.n_head} heads cannot share {self.n_embd} features evenly")


CONFIGS = {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(n_embd=1024, n_layer=24, n_head=16),
    "gpt2-large": GPT2Config(n_embd=1280, n_layer=36, n_head=20),
    "gpt2-xl": GPT2Config(n_embd=1600, n_layer=48, n_head=25),
    "bytes": GPT2Config(
        vocab_size=256, n_positions=128, n_embd=128, n_layer=4, n_head=4, dropout=0.0
    ),
    "bytes-small": GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, dropout=0.0
    ),
    "tiny": GPT2Config(vocab_size=97, n_positions=16, n_embd=24, n_layer=2, n_head=3, dropout=0.0),
}
"""The four published sizes (Radford et al. 2019, table 2), and three small ones of this course."""


class CausalSelfAttention(nn.Module):
    """softmax(q kᵀ / √d) v in n_head heads; a position attends to itself and to earlier ones.

    Submodules: `c_attn`, an nn.Linear from D to 3 D that gives the queries, keys and
    values of all heads, in this order; `c_proj`, from D to D, for the result;
    `resid_dropout` after it. In train mode config.dropout is that of the attention
    weights, too. In eval mode no (T, T) tensor for each head is made: the fused path of
    `F.scaled_dot_product_attention`.
    """

    def __init__(self, config: GPT2Config) -> None:
        """config: n_embd is D, n_head H; dropout."""
        super().__init__()
        self.n_head, self.dropout = config.n_head, config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)  # q, k and v of all heads
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B 1 T T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """x: (B, T, D). mask: True where a query may attend to a key, the causal rule included."""
        B, T, D = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, D // self.n_head).transpose(1, 2)  # (B, H, T, d)
            for part in self.c_attn(x).split(D, dim=2)
        )
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=p, is_causal=mask is None)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, D)))


class MLP(nn.Module):
    """Up to 4 D features, GELU (its tanh form), and down again.

    Submodules: `c_fc`, an nn.Linear from D to 4 D; `c_proj`, from 4 D to D; `dropout`
    after it.
    """

    def __init__(self, config: GPT2Config) -> None:
        """config: n_embd is D; dropout."""
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """x: (..., D). Returns the same shape."""
        h = F.gelu(self.c_fc(x), approximate="tanh")  # (..., 4 D)
        return self.dropout(self.c_proj(h))


@dataclass(frozen=True)
class Parts:
    """What a GPT-2 is built from: replace one to run your own in its place.

    layer_norm: called with (n_embd, eps). attention, mlp: called with the config.
    block: called with the config and these parts; None is `Block`.
    """

    layer_norm: Callable[[int, float], nn.Module] = nn.LayerNorm
    attention: Callable[[Any], nn.Module] = CausalSelfAttention
    mlp: Callable[[Any], nn.Module] = MLP
    block: Callable[[Any, "Parts"], nn.Module] | None = None


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): the norm comes first (pre-LN).

    Submodules, made of `parts`: `ln_1`, `attn`, `ln_2`, `mlp`.
    """

    def __init__(self, config: GPT2Config, parts: Parts = Parts()) -> None:
        """config: the sizes, and the norms' layer_norm_epsilon. parts: what to build from."""
        super().__init__()
        self.ln_1 = parts.layer_norm(config.n_embd, config.layer_norm_epsilon)
        self.attn = parts.attention(config)
        self.ln_2 = parts.layer_norm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = parts.mlp(config)

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B 1 T T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """x: (B, T, D). Returns the same shape.

        mask: passed on to the attention; if it is None, the attention is called with one
        argument.
        """
        given = () if mask is None else (mask,)
        x = x + self.attn(self.ln_1(x), *given)
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Embeddings of tokens and of positions, L blocks, and a last norm: all but the head.

    Submodules: `wte`, `wpe`, `drop` (on the sum of the two), the list `h` of blocks, `ln_f`.
    """

    def __init__(self, config: GPT2Config, parts: Parts = Parts()) -> None:
        """config: the sizes, and the norms' layer_norm_epsilon. parts: what to build from."""
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        block = parts.block or Block
        self.h = nn.ModuleList(block(config, parts) for _ in range(config.n_layer))
        self.ln_f = parts.layer_norm(config.n_embd, config.layer_norm_epsilon)

    def forward(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Features after each position, before the head; arguments and errors are GPT2's."""
        T, C = ids.size(1), self.wpe.num_embeddings
        if C < T:
            raise ValueError(f"{T} positions; the context has {C}")
        positions = torch.arange(T, device=ids.device)
        x = self.drop(self.wte(ids) + self.wpe(positions))
        allowed = None if mask is None else attention_mask(mask)
        for block in self.h:
            x = block(x, allowed)
        return self.ln_f(x)


class Pretrained(nn.Module):
    """What reads a published checkpoint, for a model of a GPT2Config and Parts."""

    @classmethod
    def from_pretrained(
        cls: type[Model], source: str | PathLike[str] | nn.Module, parts: Parts = Parts()
    ) -> Model:
        """The model of a Hugging Face checkpoint, in eval mode.

        source: a folder with config.json and *.safetensors, or a transformers
        GPT2LMHeadModel. Raises FileNotFoundError (which file), and ValueError for a
        torn file, for a config that is not GPT-2's and for tensors that do not fit,
        naming each of them.
        """
        if isinstance(source, nn.Module):
            settings: dict[str, Any] = source.config.to_dict()  # type: ignore[operator, union-attr]
            state: Mapping[str, Tensor] = source.state_dict()
        else:
            settings, state = read_checkpoint(Path(source))
        with Undrawn():  # every parameter is loaded, or it raises
            model = cls(config_from_hf(settings), parts)
        load_hf_state_dict(model, state)
        return model.eval()


class Undrawn(TorchFunctionMode):
    """While it is on, nobody draws weights: a tensor to be filled with random numbers stays as it is."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


class GPT2(Pretrained):
    """Token ids in, logits of the next token out. The head's weight is the token embedding's.

    Submodules: `transformer`; `lm_head`, nn.Linear from D to V, no bias. Attribute: `config`.
    """

    def __init__(self, config: GPT2Config, parts: Parts = Parts()) -> None:
        """config, parts: as a Transformer's. The weights start as `init_weights` has them."""
        super().__init__()
        self.config = config
        self.transformer = Transformer(config, parts)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        init_weights(self, config.n_layer)

    def forward(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T V"]:
        """Logits after each position. mask: False where a token is padding, a key for itself alone.

        Raises ValueError for more than n_positions tokens in a row, IndexError for ids < 0, ≥ V.
        """
        return self.lm_head(self.transformer(ids, mask))


def attention_mask(mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B 1 T T"]:
    """True where query i may attend to key j: j ≤ i, and j no padding.

    Padding attends to itself, so that no row is empty: a softmax over nothing is NaN.
    """
    T = mask.size(1)
    causal = torch.ones(T, T, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(T, dtype=torch.bool, device=mask.device)
    return (causal & mask[:, None, None, :].bool()) | itself


@torch.no_grad()
def init_weights(model: nn.Module, n_layer: int) -> None:
    """GPT-2's initialisation as transformers has it, in place.

    What a parameter held does not matter, nor whether it requires a gradient:

    - a name that ends in `bias`: zeros;
    - any other with one axis, which is a norm's weight, whatever its name: ones;
    - a name that ends in `c_proj.weight`, which writes to the residual stream: normal
      with σ = 0.02 / √(2 L), so that the variance that all blocks add does not grow with
      depth (Radford et al. 2019, section 2.3, scale by 1/√N);
    - all others: normal with σ = 0.02.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            residual = name.endswith("c_proj.weight")
            parameter.normal_(0.0, 0.02 / math.sqrt(2 * n_layer) if residual else 0.02)


def gpt2_parameter_count(config: GPT2Config) -> dict[str, int]:
    """How many numbers each part holds; the tied head adds none.

    Keys: "wte", "wpe", "attention" and "mlp" of all blocks, "layer_norm" of all 2 L + 1
    norms, and their sum, "total".
    """
    D, L = config.n_embd, config.n_layer
    count = {
        "wte": config.vocab_size * D,
        "wpe": config.n_positions * D,
        "attention": L * (D * 3 * D + 3 * D + D * D + D),
        "mlp": L * (D * 4 * D + 4 * D + 4 * D * D + D),
        "layer_norm": (2 * L + 1) * 2 * D,
    }
    return count | {"total": sum(count.values())}


def next_token_loss(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats of the targets, those of −100 left out.

    targets[b, t] is the token that follows position t: nothing is to be shifted here.
    The mean is over all targets of the batch that count; a batch in which none does is
    not checked (`F.cross_entropy` gives nan). Computed in float32, whatever the logits
    are, and that is the result's dtype.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def generate(
    model: GPT2,
    ids: Int[Tensor, "B T"],
    n: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B longer"]:
    """The ids and n more, each drawn from the softmax of the last logits / temperature.

    temperature 0 takes the likeliest. top_k: draw among the k likeliest. Only the last
    C ids are looked at. The model is left in the mode that it was in.
    """
    was_training = model.training
    model.eval()
    for _ in range(n):
        logits = model(ids[:, -model.config.n_positions :])[:, -1].float()
        if temperature == 0:
            new = logits.argmax(-1, keepdim=True)
        else:
            if top_k is not None:
                least = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
                logits = logits.masked_fill(logits < least, -math.inf)
            chances = (logits / temperature).softmax(-1)
            new = torch.multinomial(chances, 1, generator=generator)
        ids = torch.cat([ids, new], dim=1)
    model.train(was_training)
    return ids


# Hugging Face's checkpoints

TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
"""Held as (in, out) in the checkpoints: their `Conv1D` computes x W + b."""
NOT_WEIGHTS = (".attn.bias", ".attn.masked_bias")
"""The causal masks that older checkpoints carry."""


def load_hf_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy a published checkpoint's tensors into a GPT2, or raise ValueError before any is copied.

    state: by name, with or without the prefix `transformer.`, with or without the tied
    `lm_head.weight`. The error names every tensor that is missing, unknown or, once
    transposed, of another shape, and no other; the prefix may be left out of the names.
    It also names `lm_head.weight` where `state` has a head that differs from its
    embedding in shape or values; another tensor with equal values is as good.
    """
    given = {full_name(name): x for name, x in state.items() if not name.endswith(NOT_WEIGHTS)}
    given = {name: x.mT if name.endswith(TRANSPOSED) else x for name, x in given.items()}
    mine = dict(model.named_parameters())
    head, embedding = given.pop("lm_head.weight", None), given.get("transformer.wte.weight")
    problems = [f"{name}: missing" for name in mine if name not in given]
    problems += [f"{name}: unknown" for name in given if name not in mine]
    problems += [
        f"{name}: {tuple(given[name].shape)} in the checkpoint, {tuple(mine[name].shape)} here"
        for name in mine
        if name in given and given[name].shape != mine[name].shape
    ]
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        problems.append("lm_head.weight: not the embedding's; this model ties them")
    if problems:
        raise ValueError("the checkpoint does not fit this model:\n  " + "\n  ".join(problems))
    with torch.no_grad():
        for name, parameter in mine.items():
            parameter.copy_(given[name])


def full_name(name: str) -> str:
    """The name of a weight with the prefix that Hugging Face's files of the bare model leave out."""
    return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"


FIXED = {
    "activation_function": ("gelu_new",),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
"""Settings of a checkpoint that this model has no choice in, and what they must be."""


def config_from_hf(settings: Mapping[str, Any]) -> GPT2Config:
    """The sizes in a Hugging Face config. Raises ValueError for a model that is not this one."""
    problems = [
        f"{name} is {settings[name]!r}, not {' or '.join(map(repr, allowed))}"
        for name, allowed in FIXED.items()
        if name in settings and settings[name] not in allowed
    ]
    n_embd = settings.get("n_embd", 0)
    if settings.get("n_inner") not in (None, 4 * n_embd):
        problems.append(f"n_inner is {settings['n_inner']}, not 4 · n_embd")
    sizes = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
    problems += [f"{name} is missing" for name in sizes if name not in settings]
    if problems:
        raise ValueError("not a GPT-2 that this model computes: " + "; ".join(problems))
    config = GPT2Config(**{name: settings[name] for name in sizes})
    return replace(
        config,
        dropout=settings.get("resid_pdrop", config.dropout),
        layer_norm_epsilon=settings.get("layer_norm_epsilon", config.layer_norm_epsilon),
    )


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and every tensor of a folder's *.safetensors files. Nothing is unpickled."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config = folder / "config.json"
    if not config.is_file():
        raise FileNotFoundError(f"{config} is missing: give the folder of a checkpoint")
    state: dict[str, Tensor] = {}
    for file in checkpoint_files(folder):
        try:
            state |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is no whole safetensors file: {error}") from error
    return json.loads(config.read_text(encoding="utf-8")), state


def checkpoint_files(folder: Path) -> Iterable[Path]:
    """The weights' file, or all that the index of a split checkpoint names."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing")
    return [folder / name for name in names]
