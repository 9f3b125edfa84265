"""Chapter 23's exercises: what each is asked on, and the mistakes it knows."""
# mypy: ignore-errors
# Most classes below are wrong on purpose, and all are called `_`.

import math
from dataclasses import asdict

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes import prepared
from course_utils.grading.probes.chapters.gpt2 import gpt2_tree
from course_utils.grading.pytrees.tree import tensors
from course_utils.reference import gpt2, llama
from course_utils.reference.gpt2 import GPT2Config, Parts
from course_utils.reference.llama import LlamaConfig

BOOK, F64 = Parts(), torch.float64


def normal(*shape, dtype=torch.float32, seed=0):
    """Fixed standard normal numbers for cases without draws."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sizes(**given):
    """A small config as data."""
    small = {"vocab_size": 11, "n_positions": 8, "n_embd": 6, "n_layer": 2, "n_head": 2}
    return {**small, "dropout": 0.0, **given}


def weights_of(shapes, seed, dtype=F64):
    """Normal weights by name, halved where they are matrices."""
    return {
        name: normal(*shape, dtype=dtype, seed=seed + i) / (2 if len(shape) > 1 else 1)
        for i, (name, shape) in enumerate(shapes.items())
    }


def terms(case):
    return max([x.numel() for x in tensors(case.args)], default=1)


def linears(**layers):
    """Names and shapes of linear layers given as (in, out)."""
    shapes = {}
    for name, (into, out) in layers.items():
        shapes |= {f"{name}.weight": (out, into), f"{name}.bias": (out,)}
    return shapes


seeds = st.integers(0, 2**20)


# ------------------------------------------------------------------------------ MLP

mlp = Exercise(
    gpt2.MLP,
    title="The MLP of a block",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.gpt2_part,
    length=terms,
    hints=(
        "config.n_embd is D. Two linear layers: D to 4 D, and 4 D to D.",
        'F.gelu(x, approximate="tanh") is the form that GPT-2 was trained with.',
        ("random cases", "Look at the order: c_fc, GELU, c_proj, dropout. No residual in here."),
        (
            "edge cases",
            "nn.Dropout knows about train and eval mode; F.dropout has to be told: "
            "training=self.training.",
        ),
    ),
)


def mlp_shapes(D):
    return linears(c_fc=(D, 4 * D), c_proj=(4 * D, D))


def tanh_gelu(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@mlp.by_hand
def _():
    """One feature: the first of the four hidden ones is x, the second −2 x, the others nothing."""
    build = {"config": sizes(n_embd=1, n_head=1)}
    weights = {
        "c_fc.weight": torch.tensor([[1.0], [-2.0], [0.0], [0.0]], dtype=F64),
        "c_fc.bias": torch.zeros(4, dtype=F64),
        "c_proj.weight": torch.tensor([[1.0, 10.0, 0.0, 0.0]], dtype=F64),
        "c_proj.bias": torch.tensor([100.0], dtype=F64),
    }
    x = torch.tensor([[[1.0], [-1.0]]], dtype=F64)
    out = [100 + tanh_gelu(v) + 10 * tanh_gelu(-2 * v) for v in (1.0, -1.0)]
    out = torch.tensor(out, dtype=F64).view(1, 2, 1)
    yield call(build, weights, ("eval", x)), {"step 1 (eval): output": out}


@mlp.cases(8)
def _(draw):
    B, T, D = draw(draws.distinct_sizes(3, 2, 6))
    dtype, seed = draw(st.sampled_from([torch.float32, F64])), draw(seeds)
    build = {"config": sizes(n_embd=D, n_head=1)}
    x, y = (normal(B, T, D, dtype=dtype, seed=seed + s) for s in (90, 91))
    steps = ("train", x), ("train", y), ("eval", x), ("reload",), ("eval", y)
    yield call(build, weights_of(mlp_shapes(D), seed, dtype), *steps)


@mlp.edge
def _():
    build, weights = {"config": sizes()}, weights_of(mlp_shapes(6), 1)
    dropped = {"config": sizes(n_embd=8, dropout=0.4)}
    x, ones = normal(2, 3, 6, dtype=F64), normal(4000, 1, 8, dtype=F64, seed=3)
    yield call(build, weights, ("train", x[0, 0])), "one vector"
    yield call(build, weights, ("train", x[:0])), "an empty batch"
    yield call(build, weights, ("train", draws.scattered(x))), "not contiguous"
    yield call(build, weights, ("train", 40 * x)), "large: GELU is x or 0"
    yield call({"config": sizes(dropout=0.4)}, weights, ("eval", x)), "dropout in eval mode"
    step = ("dropped", ones, 2)
    yield call(dropped, weights_of(mlp_shapes(8), 5), step), "dropout in train mode"


GELU = 'F.gelu(self.c_fc(x), approximate="tanh")'

for says, edit in {
    "This is the exact GELU, x · Φ(x). GPT-2 was trained with its tanh form; the difference of up "
    "to 0.0005 for each hidden feature adds up over the layers of a published checkpoint.": replace(
        ', approximate="tanh"', ""
    ),
    "This is x · σ(1.702 x), the other approximation of GELU. The tanh form is asked for.": replace(
        GELU, "self.c_fc(x)", "self.c_proj(h)", "self.c_proj(h * torch.sigmoid(1.702 * h))"
    ),
    "This is ReLU; GPT-2 has GELU in its tanh form.": replace(GELU, "F.relu(self.c_fc(x))"),
    "There is nothing between the two layers: "
    "two linear layers in a row are one linear layer.": replace(GELU, "self.c_fc(x)"),
    "GELU comes after the second layer. It belongs between the two, on the 4 D features.": replace(
        GELU, "self.c_fc(x)", "self.c_proj(h)", 'F.gelu(self.c_proj(h), approximate="tanh")'
    ),
    "There is a GELU after the second layer, too. "
    "What a block adds to the residual stream must be able to be negative.": replace(
        "self.c_proj(h)", 'F.gelu(self.c_proj(h), approximate="tanh")'
    ),
    "x is added at the end. The block does that; here it is added twice.": replace(
        "return self", "return x + self"
    ),
    "There is no dropout.": replace("self.dropout(self.c_proj(h))", "self.c_proj(h)"),
    "The dropout stays on in eval mode: F.dropout does not know the mode of your module. "
    "Use nn.Dropout, or give it training=self.training.": replace(
        "self.dropout(self.c_proj(h))", "F.dropout(self.c_proj(h), self.dropout.p)"
    ),
    "The dropout is on the hidden features. GPT-2 drops what leaves the MLP.": replace(
        "self.dropout(self.c_proj(h))", "self.c_proj(self.dropout(h))"
    ),
    "There are no biases. GPT-2's linear layers all have one, the head aside.": replace(
        "4 * config.n_embd)",
        "4 * config.n_embd, bias=False)",
        ", config.n_embd)",
        ", config.n_embd, bias=False)",
    ),
    "The hidden layer has D features; it has 4 D.": replace(
        ", 4 * config.n_embd", ", config.n_embd", "(4 * config.n_embd", "(config.n_embd"
    ),
    "This is SiLU, x · σ(x); GPT-2 has GELU in its tanh form.": replace(
        GELU, "F.silu(self.c_fc(x))"
    ),
}.items():
    mlp.mistake(says, edit)

for rate in ("", "0.1"):
    mlp.mistake(
        "The dropout has a rate of its own: torch's 0.5, or one that is written down. config.dropout is due.",
        replace("nn.Dropout(config.dropout)", f"nn.Dropout({rate})"),
    )


@mlp.alternative("the tanh form by its formula, the layers one after the other")
class _(nn.Module):
    def __init__(self, config):
        super().__init__()
        D = config.n_embd
        self.c_fc, self.c_proj = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.p = config.dropout

    def forward(self, x):
        h = self.c_fc(x)
        inner = math.sqrt(2 / math.pi) * (h + 0.044715 * h.pow(3))
        return F.dropout(self.c_proj(0.5 * h * (1 + inner.tanh())), self.p, self.training)


# ------------------------------------------------------------------------------ CausalSelfAttention

attention = Exercise(
    gpt2.CausalSelfAttention,
    title="Causal self-attention",
    difficulty=3,
    minutes=30,
    points=5,
    probe=probes.gpt2_part,
    length=terms,
    hints=(
        "self.c_attn(x) is (B, T, 3 D): split it into q, k and v of D features each, in this order.",
        "part.view(B, T, H, d).transpose(1, 2) makes the heads an axis before T: (B, H, T, d). Back "
        "again: transpose(1, 2), then reshape to (B, T, D).",
        "F.scaled_dot_product_attention divides by √d itself. Without a mask is_causal=True; with one "
        "attn_mask=mask, which has the causal rule in it.",
        (
            "contracts",
            "q @ k.transpose(-2, -1) is a (B, H, T, T) tensor. F.scaled_dot_product_attention with "
            "is_causal never makes it.",
        ),
        (
            "edge cases",
            "dropout_p is a number, and works in eval mode too: give 0.0 unless self.training.",
        ),
    ),
)


def attention_shapes(D):
    return linears(c_attn=(D, 3 * D), c_proj=(D, D))


@attention.by_hand
def _():
    """Queries are zero, so that attention is even; values and the projection are identities."""
    eye, zero = torch.eye(2, dtype=F64), torch.zeros(2, 2, dtype=F64)
    weights = {"c_attn.weight": torch.cat([zero, eye, eye]), "c_proj.weight": eye}
    weights |= {"c_attn.bias": zero.new_zeros(6), "c_proj.bias": torch.tensor([0.0, 10.0]).double()}
    x = torch.tensor([[[2.0, 0.0], [4.0, 6.0], [0.0, 3.0]]], dtype=F64)
    means = torch.tensor([[[2.0, 10.0], [3.0, 13.0], [2.0, 13.0]]], dtype=F64)
    build = {"config": sizes(n_embd=2, n_head=1)}
    yield call(build, weights, ("eval", x)), {"step 1 (eval): output": means}
    mask = torch.tensor([[True, False, False], [False, True, False], [False, True, True]])
    later = torch.tensor([[[2.0, 10.0], [4.0, 16.0], [2.0, 14.5]]], dtype=F64)
    yield call(build, weights, ("eval", x, mask[None, None])), {"step 1 (eval): output": later}


def padding_mask(B, T, lengths):
    """Left-padded sequences: the causal rule, real keys, and each position itself."""
    real = torch.arange(T) >= T - lengths[:, None]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    return (causal & real[:, None, None, :]) | torch.eye(T, dtype=torch.bool)


@attention.cases(8)
def _(draw):
    B, T = draw(draws.distinct_sizes(2, 2, 5))
    H, d = draw(st.sampled_from([(2, 3), (3, 2), (2, 4), (4, 2), (3, 4)]))
    dtype, seed = F64, draw(seeds)
    build = {"config": sizes(n_embd=H * d, n_head=H)}
    x, y = (normal(B, T, H * d, dtype=dtype, seed=seed + s) for s in (90, 91))
    mask = padding_mask(B, T, draw(draws.indices((B,), T + 1, 1)))
    steps = ("train", x[:, 1:]), ("train", x), ("eval", y, mask), ("eval", y), ("reload",)
    yield call(build, weights_of(attention_shapes(H * d), seed), *steps, ("eval", x, mask))


def attention_dropped(p):
    """One position, so that its weight is 1 until it is dropped; 2 heads of 8 features. c_proj adds
    two neighbours, so that they are zero together if what enters it is dropped, not what leaves it."""
    weights = weights_of(attention_shapes(16), 5)
    pairs = torch.eye(8).repeat_interleave(2, 0).repeat_interleave(2, 1).double()
    weights |= {"c_proj.weight": pairs, "c_proj.bias": torch.zeros(16).double()}
    x = normal(4000, 1, 16, dtype=F64, seed=3)
    return call({"config": sizes(n_embd=16, dropout=p)}, weights, ("dropped", x, 2))


@attention.edge
def _():
    def of(*step, **config):
        return call({"config": sizes(n_embd=4, **config)}, weights, step)

    weights, x = weights_of(attention_shapes(4), 1), normal(4, 4, 4, dtype=F64)
    yield of("train", x[:1, :1]), "one position: it attends to itself"
    yield of("train", x), "all axes of one size"
    yield of("train", draws.scattered(x[:3])), "not contiguous"
    yield of("train", x[:2, :3], n_head=4), "heads of one feature"
    yield of("train", x[:2, :3], n_head=1), "one head"
    yield of("eval", x[:2], dropout=0.4), "dropout in eval mode"
    yield attention_dropped(0.5), "dropout in train mode: of the attention weights, and at the end"
    weights = {name: 60 * value for name, value in weights.items()}
    yield of("eval", x[:2, :3]), "scores in the thousands: exp overflows"


def attention_cost(n_head, T=24, D=16):
    """A call without a mask and one with it."""
    x, mask = normal(1, T, D), padding_mask(1, T, torch.tensor([T - 3]))
    return call({"config": sizes(n_embd=D, n_head=n_head, n_positions=T)}, {}, ("eval", x, mask))


attention.contract(
    contracts.largest_tensor(
        [attention_cost(4, T=1024)],
        limit=1024 * 1024 * 4,
        says="no (T, T) tensor for each head",
        prepare=prepared.gpt2_part_built,
    )
)
attention.contract(
    contracts.constant_kernels(
        [attention_cost(2), attention_cost(8)],
        says="no Python loop over the heads",
        prepare=prepared.gpt2_part_built,
    )
)


HEADS = "part.view(B, T, self.n_head, D // self.n_head).transpose(1, 2)"
SPLIT = "self.c_attn(x).split(D, dim=2)"
MERGED = "y.transpose(1, 2).reshape(B, T, D)"
FUSED = "y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=p, is_causal=mask is None)"


def fused(given):
    """The fused function with other arguments."""
    return replace(FUSED, f"y = F.scaled_dot_product_attention({given})")


def triangle(diagonal=0):
    return f"torch.ones(T, T).tril({diagonal}).bool()"


def in_the_open(share):
    """Attention written out, its weights computed so: scores (B, H, T, T), True in `seen` where allowed."""
    return replace(
        FUSED,
        f"seen = {triangle()} if mask is None else mask\n"
        "        scores = q @ k.mT / math.sqrt(D // self.n_head)\n"
        f"        y = F.dropout({share}, p) @ v",
    )


def instead_of_causal(mask):
    """The fused function with this mask where none is given."""
    return fused(f"q, k, v, {mask} if mask is None else mask, dropout_p=p")


for says, edit in {
    "The scores are not scaled. Divide by √d, or leave it to torch's function.": fused(
        "q, k, v, mask, p, mask is None, scale=1.0"
    ),
    "The scores are scaled twice: F.scaled_dot_product_attention divides by √d, and so did you. "
    "The softmax becomes nearly even.": fused(
        "q / math.sqrt(D // self.n_head), k, v, mask, p, mask is None"
    ),
    "The scores are divided by √D of the whole model. "
    "A head has d = D / n_head features: √d is due.": fused(
        "q, k, v, mask, p, mask is None, scale=D**-0.5"
    ),
    "The mask is off by one: each position sees the next token, the very one it is to predict. "
    "The training loss looks wonderful. Forbid what lies above the main diagonal.": instead_of_causal(
        triangle(1)
    ),
    "The mask is off by one: "
    "a position may not see itself, and the first sees nothing, which is NaN.": in_the_open(
        "scores.masked_fill(~seen, -math.inf).softmax(-1)"
    )
    + replace("tril(0)", "tril(-1)"),
    "There is no causal mask: every position sees all later ones.": fused(
        "q, k, v, mask, dropout_p=p"
    ),
    "Forbidden scores are 0, not −∞: exp(0) = 1 is a share like any other.": in_the_open(
        "scores.masked_fill(~seen, 0.0).softmax(-1)"
    ),
    "The mask comes after the softmax: what is forbidden has already taken its share. "
    "Fill the scores with −∞ before.": in_the_open("scores.softmax(-1) * seen"),
    "The mask that you are given is ignored; padding is attended to.": fused(
        "q, k, v, dropout_p=p, is_causal=True"
    ),
    "The mask is made a tensor of floats. Those are added to the scores, and ones and zeros forbid nothing: "
    "hand it on as it is, of bools.": fused(
        "q, k, v, None if mask is None else mask.to(q.dtype), p, mask is None"
    ),
    "The softmax is over the queries. Each query shares itself out over the keys.": in_the_open(
        "scores.masked_fill(~seen, -math.inf).softmax(-2)"
    ),
    "The heads were split by view alone, (B, H, T, d), without a transpose: "
    "heads are then made of positions. View as (B, T, H, d), then transpose(1, 2).": replace(
        HEADS, "part.reshape(B, self.n_head, T, D // self.n_head)"
    ),
    "The features were split as H × 3 × d. "
    "In GPT-2's checkpoints c_attn gives all queries, then all keys, then all values.": replace(
        SPLIT, "self.c_attn(x).view(B, T, self.n_head, 3, -1).unbind(3)"
    ),
    "The features of a head were taken as every H-th one; "
    "a head is d neighbours: view(B, T, H, d).": replace(
        HEADS, "part.view(B, T, D // self.n_head, self.n_head).permute(0, 3, 1, 2)"
    ),
    "The order is k, q, v. c_attn gives q, k, v.": replace("q, k, v = (", "k, q, v = ("),
    "The order is v, q, k. c_attn gives q, k, v.": replace("q, k, v = (", "v, q, k = ("),
    "The heads were merged without bringing them next to their features. "
    "transpose(1, 2) first.": replace(MERGED, "y.reshape(B, T, D)"),
    "c_proj is not used: what the heads found never mixes.": replace(
        f"self.c_proj({MERGED})", MERGED
    ),
    "The attention weights are dropped in eval mode too. "
    "dropout_p is a number, whatever the mode: give 0.0 unless self.training.": replace(
        "self.dropout if self.training else 0.0", "self.dropout"
    ),
    "The attention weights are never dropped: dropout_p is missing.": replace(
        "self.dropout if self.training else 0.0", "0.0"
    ),
    "There is no dropout after c_proj.": replace("self.resid_dropout(self.c_proj", "(self.c_proj"),
    "x is added at the end. The block does that; here it is added twice.": replace(
        "return self", "return x + self"
    ),
    "The mask is saved with the weights: a checkpoint that has only weights no longer fits. "
    "Register it with persistent=False, or let is_causal do it.": replace(
        "super().__init__()",
        "super().__init__()\n"
        '        self.register_buffer("bias", torch.ones(config.n_positions, config.n_positions).tril())',
    ),
    "There are no biases. GPT-2's linear layers all have one, the head aside.": replace(
        "3 * config.n_embd)",
        "3 * config.n_embd, bias=False)",
        ", config.n_embd)",
        ", config.n_embd, bias=False)",
    ),
}.items():
    attention.mistake(says, edit)

# Alike but for a query that may then attend to nothing: itself, zeros or NaN.
for edit in (
    fused("q, k, v, None if mask is None else ~mask | torch.eye(T).bool(), p, mask is None"),
    fused("q, k, v, None if mask is None else ~mask, p, mask is None"),
    in_the_open("scores.masked_fill(~seen, -math.inf).softmax(-1)")
    + replace("else mask\n", "else ~mask\n"),
    in_the_open("scores.masked_fill(seen, -math.inf).softmax(-1)"),
):
    attention.mistake("Your mask is upside down: True means *may attend*.", edit)

UNMASKED = (
    "if mask is None:\n"
    "            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)\n"
    "        else:\n            "
)
EACH_HEAD = "each = zip(q.split(1, 1), k.split(1, 1), v.split(1, 1), strict=True)\n"

# Each always, and only where a mask is given.
for edit in (
    in_the_open("scores.masked_fill(~seen, -math.inf).softmax(-1)"),
    replace(
        FUSED,
        f"{UNMASKED}scores = q @ k.mT / math.sqrt(D // self.n_head)\n"
        "            y = F.dropout(scores.masked_fill(~mask, -math.inf).softmax(-1), p) @ v",
    ),
):
    attention.mistake(
        "The values are right, but the scores are a tensor of (T, T) for each head: at 1,024 positions and "
        "12 heads 50 MB for one sequence and layer. F.scaled_dot_product_attention makes none, with is_causal "
        "or with a mask.",
        edit,
        cost=True,
    )
for edit in (
    replace(
        FUSED,
        f"{EACH_HEAD}        y = [F.scaled_dot_product_attention(*h, mask, p, mask is None) for h in each]\n"
        "        y = torch.cat(y, dim=1)",
    ),
    replace(
        FUSED,
        f"{UNMASKED}{EACH_HEAD}            y = [F.scaled_dot_product_attention(*h, mask, p) for h in each]\n"
        "            y = torch.cat(y, dim=1)",
    ),
):
    attention.mistake(
        "The values are right, but Python goes through the heads, always or where a mask is given: n_head calls "
        "in place of one. Make the heads an axis.",
        edit,
        cost=True,
    )


for says, edit in {
    "There is one head over all D features. "
    "Split q, k and v into n_head heads of d features.": replace(HEADS, "part.unsqueeze(1)"),
    "The mask is off by one: "
    "a position may not see itself, and the first, which sees nothing, gets zeros.": instead_of_causal(
        triangle(-1)
    ),
    "The causal mask is made once, for the first length that comes. "
    "Each call needs its own T.": replace(
        FUSED,
        f"self.seen = getattr(self, 'seen', {triangle()})\n        y = F.scaled_dot_product_attention(q, k, v, self.seen if mask is None else mask, p)",
    ),
    "A mask is kept: it holds in later calls, which are given none.": replace(
        FUSED,
        f"mask = self.seen = mask if mask is not None else getattr(self, 'seen', None)\n        {FUSED}",
    ),
    "The dropout is before c_proj. GPT-2 drops what leaves c_proj.": replace(
        f"self.resid_dropout(self.c_proj({MERGED}))", f"self.c_proj(self.resid_dropout({MERGED}))"
    ),
}.items():
    attention.mistake(says, edit)


@attention.alternative("three axes at once with unflatten and unbind")
class _(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.config = config

    def forward(self, x, mask=None):
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.config.n_head, -1)).unbind(2)
        p = self.config.dropout if self.training else 0
        q, k, v = q.movedim(2, 1), k.movedim(2, 1), v.movedim(2, 1)
        if mask is None:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.resid_dropout(self.c_proj(y.movedim(1, 2).flatten(2)))


@attention.alternative(
    "the mask as a buffer, as in older code, and the fused function all the same"
)
class _(nn.Module):
    def __init__(self, config):
        super().__init__()
        D, C = config.n_embd, config.n_positions
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.n_head, self.p = config.n_head, config.dropout
        causal = torch.ones(C, C, dtype=torch.bool).tril()
        self.register_buffer("causal", causal, persistent=False)

    def forward(self, x, mask=None):
        B, T, D = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        allowed = self.causal[:T, :T] if mask is None else self.causal[:T, :T] & mask
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=p)
        y = y.permute(0, 2, 1, 3).contiguous().view(B, T, D)
        return F.dropout(self.c_proj(y), self.p, self.training)


attention.equivalent(
    "CausalSelfAttention.forward: `self.c_attn(x).split(D, dim=2)` → "
    "`self.c_attn(x).split(D, dim=-1)`",
    because="x has three axes, so that 2 and -1 name the same one.",
)


# ------------------------------------------------------------------------------ Block

block = Exercise(
    gpt2.Block,
    title="A pre-LN block",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.gpt2_part,
    length=terms,
    hints=(
        "parts.layer_norm(config.n_embd, config.layer_norm_epsilon) makes one of the two norms; "
        "parts.attention(config) and parts.mlp(config) the branches.",
        "The stream x is only ever added to: each branch reads a normed copy, x + f(norm(x)).",
        (
            "edge cases",
            "Call self.attn with one argument where there is no mask: not every attention takes one.",
        ),
    ),
)

STANDING_IN = {"layer_norm": "half", "attention": "sums", "mlp": "square"}
STAND_IN_WEIGHTS = ("ln_1.weight", "attn.weight", "ln_2.weight", "mlp.weight")


def block_shapes(D):
    inside = {"attn": attention_shapes(D), "mlp": mlp_shapes(D)}
    shapes = {f"{n}.{w}": (D,) for n in ("ln_1", "ln_2") for w in ("weight", "bias")}
    return shapes | {f"{part}.{n}": s for part, all_ in inside.items() for n, s in all_.items()}


@block.by_hand
def _():
    """The norm halves, attention adds up all positions so far, the MLP squares."""
    build = {"config": sizes(n_embd=2, n_head=1, layer_norm_epsilon=0.0), "parts": STANDING_IN}
    x = torch.tensor([[[2.0, 0.0], [4.0, 8.0]]], dtype=F64)
    # attention adds (1, 0) and (3, 4): the stream is (3, 0) and (7, 12); the MLP adds its half squared
    out = torch.tensor([[[5.25, 0.0], [19.25, 48.0]]], dtype=F64)
    yield call(build, {}, ("eval", x)), {"step 1 (eval): output": out}


@block.cases(6)
def _(draw):
    B, T, D = draw(draws.distinct_sizes(3, 2, 6))
    seed, eps = draw(seeds), draw(st.sampled_from([0.25, 0.5]))
    config = sizes(n_embd=D, n_head=1, layer_norm_epsilon=eps)
    weights = weights_of(dict.fromkeys(STAND_IN_WEIGHTS, (D,)), seed)
    x, y = (normal(B, T, D, dtype=F64, seed=seed + s) for s in (90, 91))
    mask = padding_mask(B, T, draw(draws.indices((B,), T + 1, 1)))
    steps = ("train", x[:, 1:]), ("train", x), ("eval", y, mask), ("eval", y), ("reload",)
    yield call({"config": config, "parts": STANDING_IN}, weights, *steps, ("eval", x, mask))


@block.cases(3)
def _(draw):
    B, T = draw(draws.distinct_sizes(2, 2, 5))
    H, d = draw(st.sampled_from([(2, 3), (3, 2), (2, 4)]))
    seed = draw(seeds)
    x, y = (normal(B, T, H * d, dtype=F64, seed=seed + s) for s in (90, 91))
    weights = weights_of(block_shapes(H * d), seed)
    mask = padding_mask(B, T, draw(draws.indices((B,), T + 1, 1)))
    config = sizes(n_embd=H * d, n_head=H, layer_norm_epsilon=0.1)
    yield call({"config": config}, weights, ("train", x), ("eval", y, mask))


@block.edge
def _():
    x, build = normal(2, 3, 6, dtype=F64), {"config": sizes(), "parts": STANDING_IN}
    weights = weights_of(dict.fromkeys(STAND_IN_WEIGHTS, (6,)), 3)
    alone = build | {"parts": {**STANDING_IN, "attention": "alone"}}
    yield call(alone, weights, ("train", x)), "an attention that takes no mask, and none is given"
    yield call(build, weights, ("train", x[:0])), "no sequences"
    yield call({"config": sizes()}, weights_of(block_shapes(6), 2), ("train", x[:, :1])), "T = 1"


ATTEND, THINK = "x + self.attn(self.ln_1(x), *given)", "x + self.mlp(self.ln_2(x))"

for says, edit in {
    "The norms come after (post-LN, as in the first transformer). GPT-2 norms what a branch reads "
    "and leaves the stream itself alone; deep post-LN stacks need a long warm-up to train at all.": replace(
        ATTEND, "self.ln_1(x + self.attn(x, *given))", THINK, "self.ln_2(x + self.mlp(x))"
    ),
    "The first residual is missing: attention replaces the stream, and is to be added.": replace(
        "x + self.attn", "self.attn"
    ),
    "The second residual is missing: the MLP replaces the stream, and is to be added.": replace(
        "x + self.mlp", "self.mlp"
    ),
    "The residual is the normed x. "
    "Keep x itself: the stream goes through a block without a norm.": replace(
        ATTEND,
        "self.ln_1(x) + self.attn(self.ln_1(x), *given)",
        THINK,
        "self.ln_2(x) + self.mlp(self.ln_2(x))",
    ),
    "Both branches read the block's input (as in GPT-J). "
    "In GPT-2 the MLP reads what attention has written.": replace(
        f"x = {ATTEND}\n        return {THINK}", f"return {ATTEND} + self.mlp(self.ln_2(x))"
    ),
    "The MLP comes first; attention does.": replace(
        f"x = {ATTEND}\n        return {THINK}", f"x = {THINK}\n        return {ATTEND}"
    ),
    "ln_1 is used twice, and ln_2 never trains.": replace("self.ln_2(x)", "self.ln_1(x)"),
    "ln_1 and ln_2 have changed places.": replace(
        "self.attn(self.ln_1(x)",
        "self.attn(self.ln_2(x)",
        "self.mlp(self.ln_2(x)",
        "self.mlp(self.ln_1(x)",
    ),
    "There are no norms.": replace("self.ln_1(x)", "x", "self.ln_2(x)", "x"),
    "The mask does not reach the attention.": replace(", *given", ""),
    "The attention gets a second argument even where there is no mask. "
    "Chapter 8's takes one, but not every attention does.": replace("*given", "mask"),
    "The parts are ignored: whatever is given, the block builds its own.": replace(
        "super().__init__()", "super().__init__()\n        parts = Parts()"
    ),
    "config.layer_norm_epsilon does not reach the norms.": replace(
        "self.ln_1 = parts.layer_norm(config.n_embd, config.layer_norm_epsilon)",
        "self.ln_1 = parts.layer_norm(config.n_embd)",
        "self.ln_2 = parts.layer_norm(config.n_embd, config.layer_norm_epsilon)",
        "self.ln_2 = parts.layer_norm(config.n_embd)",
    ),
    "x is changed in place (`x += …`). It belongs to the caller: x = x + …": replace(
        "x = x + self.attn", "x += self.attn"
    ),
    "ln_1 and ln_2 are one norm under two names. Make two.": replace(
        "self.ln_2 = parts.layer_norm(config.n_embd, config.layer_norm_epsilon)",
        "self.ln_2 = self.ln_1",
    ),
}.items():
    block.mistake(says, edit)


@block.alternative("the stream in place of a name for each stage, and the branches in a list")
class _(nn.Module):
    def __init__(self, config: GPT2Config, parts: Parts = BOOK):
        super().__init__()
        self.ln_1 = parts.layer_norm(config.n_embd, config.layer_norm_epsilon)
        self.attn = parts.attention(config)
        self.ln_2 = parts.layer_norm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = parts.mlp(config)

    def forward(self, x, mask=None):
        given = () if mask is None else (mask,)
        for norm, branch, more in ((self.ln_1, self.attn, given), (self.ln_2, self.mlp, ())):
            x = torch.add(x, branch(norm(x), *more))
        return x


# ------------------------------------------------------------------------------ gpt2_parameter_count

parameter_count = Exercise(
    gpt2.gpt2_parameter_count,
    title="Every parameter counted",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.gpt2_count,
    hints=(
        "A linear layer from m to n holds m · n weights and n biases; a LayerNorm 2 D.",
        "There are two norms in each block and one at the end: 2 L + 1.",
        "The head is the embedding: it holds nothing of its own. The number of heads changes nothing.",
    ),
)


NAMES = ("wte", "wpe", "attention", "mlp", "layer_norm", "total")


@parameter_count.by_hand
def _():
    small = sizes(vocab_size=5, n_positions=3, n_embd=2, n_layer=1, n_head=1)
    yield call(small), dict(zip(NAMES, (10, 6, 24, 42, 12, 94), strict=True))
    published = (38_597_376, 786_432, 28_348_416, 56_669_184, 38_400, 124_439_808)
    yield call({}), dict(zip(NAMES, published, strict=True))


@parameter_count.cases(12)
def _(draw):
    V, C, D, L = draw(draws.distinct_sizes(4, 2, 20))
    yield call(sizes(vocab_size=V, n_positions=C, n_embd=D, n_layer=L, n_head=1))


@parameter_count.edge
def _():
    wide = {**asdict(gpt2.CONFIGS["gpt2-xl"]), "n_layer": 2}
    yield call(wide), "as wide as the largest, two layers of it"
    yield call(sizes(n_layer=0)), "no blocks"
    yield call(sizes(n_embd=6, n_head=3)), "three heads"


ATTENTION, MLP = "D * 3 * D + 3 * D + D * D + D", "D * 4 * D + 4 * D + 4 * D * D + D"

for says, edit in {
    "The head is counted again. "
    "It is the embedding under a second name: 163,037,184 is the number of an untied GPT-2.": replace(
        "sum(count.values())", 'sum(count.values()) + count["wte"]'
    ),
    "The biases of attention are missing: 3 D for q, k and v, and D for c_proj.": replace(
        ATTENTION, "D * 3 * D + D * D"
    ),
    "The biases of the MLP are missing: 4 D for c_fc, and D for c_proj.": replace(
        MLP, "D * 4 * D + 4 * D * D"
    ),
    "The bias of the attention's c_proj is missing, D numbers in each block.": replace(
        ATTENTION, "D * 3 * D + 3 * D + D * D"
    ),
    "The bias of c_attn is missing, 3 D numbers in each block.": replace(
        ATTENTION, "D * 3 * D + D * D + D"
    ),
    "c_attn's bias is counted as D numbers. It gives q, k and v: 3 D.": replace(
        ATTENTION, "D * 3 * D + D + D * D + D"
    ),
    "c_fc's bias is counted as D numbers. A bias is as long as what leaves its layer: 4 D.": replace(
        MLP, "D * 4 * D + D + 4 * D * D + D"
    ),
    "The bias of the MLP's c_proj is counted as 4 D numbers. "
    "A bias is as long as what leaves its layer: D.": replace(
        MLP, "D * 4 * D + 4 * D + 4 * D * D + 4 * D"
    ),
    "The bias of c_fc is missing, 4 D numbers in each block.": replace(
        MLP, "D * 4 * D + 4 * D * D + D"
    ),
    "The bias of the MLP's c_proj is missing, D numbers in each block.": replace(
        MLP, "D * 4 * D + 4 * D + 4 * D * D"
    ),
    "The last norm is missing: two in each block, and ln_f.": replace("2 * L + 1", "2 * L"),
    "The last norm is counted with D numbers. It has a weight and a bias, as the others do.": replace(
        "(2 * L + 1) * 2 * D", "(4 * L + 1) * D"
    ),
    "`total` lacks the norms: it is the sum of all the parts, theirs too.": replace(
        "sum(count.values())", 'sum(count.values()) - count["layer_norm"]'
    ),
    "A norm holds a weight and a bias, 2 D numbers; you counted D.": replace(") * 2 * D", ") * D"),
    "There is one norm in each block in your count; there are two.": replace("2 * L + 1", "L + 1"),
    "Each head is counted with D × D of its own. "
    "The heads share D: together they have D × D each for q, k and v.": replace(
        "D * 3 * D +", "D * 3 * D * config.n_head +"
    ),
    "c_proj of the attention is missing.": replace(ATTENTION, "D * 3 * D + 3 * D"),
    "The embedding of positions is missing.": replace("config.n_positions * D", "0"),
    "attention, mlp: the numbers of one block. There are n_layer of them.": replace(
        f"L * ({ATTENTION})", ATTENTION, f"L * ({MLP})", MLP
    ),
    "c_attn is counted as D × D. It gives q, k and v: D × 3 D weights.": replace(
        "D * 3 * D", "D * D"
    ),
    "One of the MLP's matrices is missing: c_fc has D × 4 D, c_proj as many.": replace(
        "4 * D * D + D)", "D)"
    ),
}.items():
    parameter_count.mistake(says, edit)


@parameter_count.alternative("built on the meta device, and counted by name")
def _(config: GPT2Config):
    with torch.device("meta"):
        model = gpt2.GPT2(config)
    found = dict.fromkeys(["wte", "wpe", "attention", "mlp", "layer_norm"], 0)
    kinds = {"attn": "attention", "mlp": "mlp", "wte": "wte", "wpe": "wpe"}
    for name, p in model.named_parameters():
        part = next((kinds[piece] for piece in name.split(".") if piece in kinds), "layer_norm")
        found[part] += p.numel()
    found["total"] = sum(found.values())
    return found


# ------------------------------------------------------------------------------ init_weights

init_weights = Exercise(
    gpt2.init_weights,
    title="Initialisation by depth",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.initialised,
    hints=(
        "model.named_parameters() gives names and parameters; under torch.no_grad() use "
        "parameter.normal_(0.0, std), .zero_() and .fill_(1.0).",
        'Both projections that write to the stream are called c_proj: name.endswith("c_proj.weight").',
        (
            "random cases",
            "There are two branches in each of the L blocks: the scale is 1 / √(2 L).",
        ),
    ),
)

WIDE = {"vocab_size": 150, "n_positions": 110, "n_embd": 100, "n_head": 2}


def to_start(L, **sizes_):
    return call(gpt2_tree({**WIDE, "n_layer": L, **sizes_}), L)


def one_block(n_layer):
    """One block of a model that has n_layer of them."""
    tree = gpt2_tree({**WIDE, "n_layer": 1})["transformer"]["h"][0]
    return call(tree, n_layer)


@init_weights.by_hand
def _():
    square = ("linear", 100, 100)
    small = {"ln_f": ("norm", 2), "mlp": {"c_fc": square, "c_proj": square}}
    yield (
        call(small, 2),
        {
            "returns": None,
            "`ln_f.weight`: values": torch.ones(2),
            "`ln_f.bias`: values": torch.zeros(2),
            "`mlp.c_fc.weight`: standard deviation": 0.02,
            "`mlp.c_fc.bias`: values": torch.zeros(100),
            "`mlp.c_proj.weight`: standard deviation": 0.01,
        },
    )


@init_weights.cases(3)
def _(draw):
    yield to_start(draw(st.sampled_from([1, 2, 3])))


@init_weights.cases(3)
def _(draw):
    yield one_block(draw(st.sampled_from([1, 2, 3, 8, 12])))


@init_weights.edge
def _():
    yield call({"ln_1": ("norm", 3)}, 4), "norms alone"
    yield call({"ln_f": ("own norm", 3)}, 4), "a norm that is none of torch's classes"
    yield call({"ln_f": {"scale": ("parameter", 3)}}, 4), "a norm whose weight has another name"
    yield call({"lm_head": ("linear", 100, 100, False)}, 4), "no bias"
    frozen = {"c_fc": ("linear", 100, 100), "frozen": ["c_fc.weight", "c_fc.bias"]}
    yield call({"mlp": frozen}, 4), "frozen ones start so, too, and stay frozen"
    yield call({}, 2), "no parameters"


SIGMA = "0.02 / math.sqrt(2 * n_layer) if residual else 0.02"

for says, edit in {
    "The depth is not looked at: c_proj starts as wide as everything else, "
    "and the variance of the stream grows with every block. Its σ is 0.02 / √(2 L).": replace(
        SIGMA, "0.02"
    ),
    "σ of c_proj is 0.02 / √L. "
    "Each block writes twice, after attention and after the MLP: √(2 L).": replace(
        "2 * n_layer", "n_layer"
    ),
    "σ of c_proj is 0.02 / (2 L). "
    "Variances add up, so that the root is due: 0.02 / √(2 L).": replace(
        "math.sqrt(2 * n_layer)", "(2 * n_layer)"
    ),
    "Only the attention's c_proj is scaled. The MLP's writes to the stream as well.": replace(
        '"c_proj.weight"', '"attn.c_proj.weight"'
    ),
    "Only the MLP's c_proj is scaled. The attention's writes to the stream as well.": replace(
        '"c_proj.weight"', '"mlp.c_proj.weight"'
    ),
    "Every matrix is scaled by depth. "
    "Only those that write to the stream are: both c_proj.": replace(
        'name.endswith("c_proj.weight")', "True"
    ),
    "The biases are not zero: they keep what they had.": replace("parameter.zero_()", "pass"),
    "The biases are drawn like the weights. They start at zero.": replace(
        "parameter.zero_()", "parameter.normal_(0.0, 0.02)"
    ),
    "The norms keep what they had. "
    "Whatever there was: one for the weight, zero for the bias.": replace(
        "parameter.fill_(1.0)", "pass"
    ),
    "The norms' weights are zero: nothing would get through. They start at one.": replace(
        "parameter.fill_(1.0)", "parameter.fill_(0.0)"
    ),
    "The norms' weights are drawn like matrices. They start at one.": replace(
        "parameter.fill_(1.0)", "parameter.normal_(0.0, 0.02)"
    ),
    "The embeddings keep what they had; they are drawn like the other matrices.": replace(
        "else:", 'elif not name.endswith(("wte.weight", "wpe.weight")):'
    ),
    "The embedding of positions has σ = 0.01, as in OpenAI's first code. "
    "Here, as in transformers, every embedding has 0.02.": replace(
        SIGMA, f'{SIGMA} / (1 + name.endswith("wpe.weight"))'
    ),
    "The variance is 0.02, not the standard deviation: everything is 7 times as wide.": replace(
        SIGMA, f"math.sqrt(0.02) / 0.02 * ({SIGMA})"
    ),
    "A uniform distribution of the right variance; a normal one is asked for.": replace(
        f"normal_(0.0, {SIGMA})", f"uniform_(-1, 1).mul_(3**0.5 * ({SIGMA}))"
    ),
}.items():
    init_weights.mistake(says, edit)


@init_weights.mistake(
    "You put new parameters in the place of the old ones. What is tied comes apart, and an optimizer "
    "holds the old ones: change them in place."
)
def _(model, n_layer):
    gpt2.init_weights(model, n_layer)
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(p.detach().clone()))


for says, edit in {
    "σ of c_proj is 0.02 · √(2 L), wider with depth. Divide by √(2 L).": replace(
        "0.02 / math", "0.02 * math"
    ),
    "Frozen parameters keep what they had. Whether one is trained does not matter here.": replace(
        "        if name",
        "        if not parameter.requires_grad:\n            continue\n        if name",
    ),
    "In-place changes of a parameter are recorded, which torch refuses: "
    "`with torch.no_grad():`.": replace("@torch.no_grad()\n", ""),
}.items():
    init_weights.mistake(says, edit)


EACH = "    for name, parameter in model.named_parameters():\n"

for left_out in ("True", 'not name.endswith("bias")'):
    init_weights.mistake(
        "A norm of one's own keeps what it had: the layers are recognised by torch's classes. "
        "Go by the names of the parameters, and by their axes.",
        replace(
            EACH,
            "    kinds = nn.Linear | nn.Embedding | nn.LayerNorm\n"
            "    known = [m for m in model.modules() if isinstance(m, kinds)]\n"
            "    known = {id(p) for m in known for p in m.parameters()}\n"
            f"{EACH}        if id(parameter) not in known and {left_out}:\n            continue\n",
        ),
    )


init_weights.mistake(
    "A norm's weight keeps what it had where it is not called `weight`. What has one axis and is no bias is a norm's "
    "weight, whatever its name.",
    replace(
        "elif parameter.ndim == 1:",
        'elif parameter.ndim == 1 and not name.endswith("weight"):\n'
        "            pass\n        elif parameter.ndim == 1:",
    ),
)


@init_weights.alternative("matrices by type with nn.init, the rest by name, and c_proj once more")
def _(model, n_layer):
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        else:
            for one in module.parameters(recurse=False):
                nn.init.ones_(one)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    for name, parameter in model.named_parameters():
        if name.endswith("c_proj.weight"):
            nn.init.normal_(parameter, mean=0.0, std=0.02 * (2 * n_layer) ** -0.5)


# ------------------------------------------------------------------------------ GPT2

whole = Exercise(
    (gpt2.GPT2, gpt2.Transformer),
    title="GPT-2",
    difficulty=2,
    minutes=30,
    points=4,
    probe=probes.gpt2_model,
    length=terms,
    hints=(
        "Transformer: wte and wpe are nn.Embedding, drop an nn.Dropout, h an nn.ModuleList of n_layer "
        "blocks, ln_f a norm. `parts.block or Block` is the class of a block.",
        "x = self.drop(self.wte(ids) + self.wpe(positions)), with positions 0 … T − 1; then the blocks, "
        "then ln_f. attention_mask(mask) makes the mask that the blocks take.",
        "GPT2: self.lm_head.weight = self.transformer.wte.weight, after both are made; then "
        "init_weights(self, config.n_layer).",
        (
            "edge cases",
            "Compare T with the number of positions before anything is looked up, and raise ValueError.",
        ),
    ),
)

IDENTITY = {"layer_norm": "half", "attention": "nothing", "mlp": "nothing"}


def some_ids(B, T, V=11, seed=0):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


@whole.by_hand
def _():
    """Shapes and ties can be told by hand, the values of a whole model cannot."""
    config = sizes(vocab_size=5, n_positions=3, n_embd=2, n_layer=1, n_head=1)
    shapes = {"wte.weight": (5, 2), "wpe.weight": (3, 2)}
    for layer, (out, into) in {
        "attn.c_attn": (6, 2), "attn.c_proj": (2, 2), "mlp.c_fc": (8, 2), "mlp.c_proj": (2, 8),
    }.items():  # fmt: skip
        shapes |= {f"h.0.{layer}.weight": (out, into), f"h.0.{layer}.bias": (out,)}
    for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        shapes |= {f"{norm}.weight": (2,), f"{norm}.bias": (2,)}
    parameters = {f"transformer.{name}": shape for name, shape in shapes.items()}
    yield (
        call(config, {}, 0),
        {
            "parameters": parameters,
            "state_dict": parameters | {"lm_head.weight": (5, 2)},
            "config is kept": True,
            "the head's weight is the embedding's": True,
        },
    )


@whole.cases(4)
def _(draw):
    B, T = draw(draws.distinct_sizes(2, 2, 6))
    H, d = draw(st.sampled_from([(1, 4), (2, 3), (3, 2)]))
    config = sizes(n_embd=H * d, n_head=H, n_layer=draw(draws.sizes(1, 3)), layer_norm_epsilon=0.1)
    ids, other = some_ids(B, T, seed=draw(seeds)), some_ids(B, T, seed=draw(seeds))
    mask = torch.arange(T) >= T - draw(draws.indices((B,), T + 1, 1))[:, None]
    steps = ("train", ids[:, 1:]), ("eval", other, mask), ("eval", ids), ("steps", ids, 2)
    yield call(config, {}, draw(seeds), *steps)


@whole.edge
def _():
    def of(*steps, parts=None, **config):
        return call(sizes(**config), parts or {}, 1, *steps)

    ids, eps = some_ids(2, 4), {"layer_norm_epsilon": 0.5}
    masked = ("eval", ids, torch.tensor([[False, True, True, True], [True, True, True, True]]))
    yield of(("eval", some_ids(1, 8))), "as many tokens as there are positions"
    yield of(("eval", some_ids(1, 9))), "one too many: ValueError"
    yield of(("eval", torch.tensor([[0, 11]]))), "an id outside: IndexError"
    yield of(("eval", torch.tensor([[0, -1]]))), "a negative id: IndexError"
    yield of(("eval", ids[:, :1])), "one token"
    yield of(("train", ids), n_layer=1), "one block"
    yield of(("eval", ids), dropout=0.5), "dropout in eval mode"
    block = {**STANDING_IN, "block": "triple"}
    yield of(("eval", ids), parts=block), "another block in place of Block"
    yield of(("eval", ids), masked, parts=STANDING_IN, **eps), "other parts in place of its own"
    config = {"n_embd": 8, "n_layer": 1, "dropout": 0.5, "layer_norm_epsilon": 0.0}
    step = ("dropped", some_ids(1000, 8))
    yield of(step, parts=IDENTITY, **config), "dropout in train mode"
    yield of(("fresh",), vocab_size=256, n_embd=64, n_layer=2), "how it starts"


def whole_cost(T):
    config = sizes(n_positions=32, n_embd=8)
    return call(config, {}, 0, ("eval", some_ids(2, T)))


whole.contract(
    contracts.constant_kernels(
        [whole_cost(4), whole_cost(32)],
        says="no Python loop over the positions",
        prepare=prepared.gpt2_built,
    )
)


TIE = "self.lm_head.weight = self.transformer.wte.weight"
INPUT = "self.drop(self.wte(ids) + self.wpe(positions))"
BLOCKS = "nn.ModuleList(block(config, parts) for _ in range(config.n_layer))"

for says, edit in {
    "The head is not tied: it has a weight of its own, V · D parameters more, "
    "and no published checkpoint of this form fits.": replace(TIE, "pass"),
    "The head's weight shares the embedding's memory (`.data`), but is a parameter of its own: "
    "it is counted, averaged and stepped twice. Assign the parameter itself.": replace(
        TIE, "self.lm_head.weight.data = self.transformer.wte.weight.data"
    ),
    "The head has a bias; GPT-2's has none.": replace("bias=False", "bias=True"),
    "The positions are not added: "
    "without them attention sees a bag of earlier tokens, in no order.": replace(
        " + self.wpe(positions)", ""
    ),
    "The positions start at 1. "
    "The first is 0; yours leaves row 0 unused and the context one short.": replace(
        "torch.arange(T,", "torch.arange(1, T + 1,"
    ),
    "The positions are those at the end of the context. "
    "They start again at 0 in every sequence.": replace(
        "torch.arange(T,", "torch.arange(C - T, C,"
    ),
    "The embeddings are multiplied by √D, as in the first transformer. "
    "GPT-2 takes them as they are.": replace(
        "self.wte(ids)", "self.wte(ids) * self.wte.embedding_dim**0.5"
    ),
    "ln_f is not used: the stream reaches the head as wide as the blocks have made it.": replace(
        "return self.ln_f(x)", "return x"
    ),
    "The dropout after the embeddings is missing.": replace("self.drop(self.wte", "(self.wte"),
    "The dropout after the embeddings stays on in eval mode. "
    "Use nn.Dropout, or training=self.training.": replace(
        INPUT, "F.dropout(self.wte(ids) + self.wpe(positions), self.drop.p)"
    ),
    "Too long a sequence ends in the embedding's IndexError, or on a GPU in an assertion of a "
    "kernel. Raise ValueError, and say how many positions there are.": replace(
        "if C < T:", "if False:"
    ),
    "There is one block, used n_layer times: [block] * n is n names of one object. "
    "Build one for each.": replace(
        BLOCKS, "nn.ModuleList([block(config, parts)] * config.n_layer)"
    ),
    "The blocks are in a Python list, where no module finds them: "
    "they are neither trained nor saved.": replace(
        BLOCKS, "[block(config, parts) for _ in range(config.n_layer)]"
    ),
    "Padding attends to nothing, not even to itself, and a softmax over nothing is none. "
    "attention_mask(mask) lets each position see itself.": replace(
        "attention_mask(mask)", "mask[:, None, None, :] & torch.ones(T, T).tril().bool()"
    ),
    "The padding mask is not passed on: padding is attended to.": replace(
        "attention_mask(mask)", "None"
    ),
    "The weights start as torch's layers do: init_weights is not called.": replace(
        "init_weights(self, config.n_layer)", "pass"
    ),
    "The parts do not reach blocks and norm.": replace(
        "block = parts.block or Block", "block, parts = parts.block or Block, Parts()"
    ),
    "parts.block is ignored; where it is given, the blocks are made by it.": replace(
        "parts.block or Block", "Block"
    ),
    "A block of one's own, `parts.block`, is made without the parts. It takes (config, parts), as Block "
    "does.": replace(
        "block(config, parts) for",
        "(parts.block(config) if parts.block else Block(config, parts)) for",
    ),
    "The blocks are made from the config alone. A block takes the parts, too: block(config, parts).": replace(
        "block(config, parts) for", "block(config) for"
    ),
    "config.layer_norm_epsilon does not reach ln_f.": replace(", config.layer_norm_epsilon", ""),
    "`config` is not kept; generate asks it for the context.": replace(
        "self.config = config", "pass"
    ),
    "These are probabilities, or their logarithms. "
    "Logits are asked for: the loss takes the softmax.": replace(
        "self.transformer(ids, mask))", "self.transformer(ids, mask)).log_softmax(-1)"
    ),
}.items():
    whole.mistake(says, edit)

for itself in (" | torch.eye(T).bool()", ".expand(-1, 1, T, T)"):
    whole.mistake(
        "The mask that the blocks get has no causal rule in it: only padding is left out.",
        replace("attention_mask(mask)", f"mask[:, None, None, :]{itself}"),
    )

whole.mistake(
    "The values are right, but Python goes through the positions. nn.Embedding looks all of them up at "
    "once.",
    replace(
        INPUT,
        "self.drop(torch.stack([self.wte(ids[:, t]) + self.wpe.weight[t] for t in range(T)], 1))",
    ),
    cost=True,
)


for says, edit in {
    "A sequence as long as the context is refused. "
    "Only one that is longer has no positions.": replace("C < T", "C <= T"),
    "Too long a sequence ends in an AssertionError. Raise ValueError.": replace(
        "raise ValueError(", "raise AssertionError("
    ),
    "The dropout is on the token's embedding alone. "
    "It is on the sum of the two embeddings.": replace(
        INPUT, "self.drop(self.wte(ids)) + self.wpe(positions)"
    ),
    "The mask of padding, (B, T), goes to the blocks as it is. "
    "They take attention_mask(mask).": replace("attention_mask(mask)", "mask"),
    "A negative id takes a row from the table's end: `wte.weight[ids]` does. "
    "Call wte(ids).": replace("self.wte(ids)", "self.wte.weight[ids]"),
}.items():
    whole.mistake(says, edit)


class _Transformer(nn.Module):
    def __init__(self, config: GPT2Config, parts: Parts = BOOK):
        super().__init__()
        D, eps = config.n_embd, config.layer_norm_epsilon
        self.wte, self.wpe = nn.Embedding(config.vocab_size, D), nn.Embedding(config.n_positions, D)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList()
        for _ in range(config.n_layer):
            made = gpt2.Block(config, parts) if parts.block is None else parts.block(config, parts)
            self.h.append(made)
        self.ln_f = parts.layer_norm(D, eps)

    def forward(self, ids, mask=None):
        B, T = ids.shape
        if self.wpe.num_embeddings < T:
            raise ValueError("too long")
        x = F.embedding(ids, self.wte.weight) + self.wpe.weight[:T]
        x = F.dropout(x, self.drop.p, self.training)
        if mask is not None:
            past = mask.new_ones(T, T).tril()
            mask = (past & mask.view(B, 1, 1, T)) | past.triu()
        for block in self.h:
            x = block(x, mask)
        return self.ln_f(x)


class _GPT2(gpt2.Pretrained):
    def __init__(self, config: GPT2Config, parts: Parts = BOOK):
        super().__init__()
        self.config, self.transformer = config, _Transformer(config, parts)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        gpt2.init_weights(self, config.n_layer)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids, mask=None):
        return F.linear(self.transformer(ids, mask=mask), self.lm_head.weight)


whole.alternative("functional embeddings, a mask of its own, tied last")(_GPT2, _Transformer)
whole.equivalent(
    "Transformer.forward: `torch.arange(T, device=ids.device)` → `torch.arange(T)`",
    because="cases are on the CPU, which is where arange is without a device; on a GPU it would raise.",
)


# ------------------------------------------------------------------------------ next_token_loss

loss = Exercise(
    gpt2.next_token_loss,
    title="The loss of the next token",
    difficulty=1,
    minutes=10,
    points=2,
    gradients=("logits",),
    length=terms,
    hints=(
        "F.cross_entropy takes (N, V) and (N,), and leaves out targets of −100 by itself. A batch and its "
        "positions are N = B · T predictions.",
        "logits.flatten(0, 1) and targets.flatten(). targets[b, t] belongs to logits[b, t] already.",
        ("edge cases", "logits.float() first: in bfloat16 a loss near 10 is a multiple of 1/16."),
    ),
)


@loss.by_hand
def _():
    """Logits that are logarithms of probabilities: the loss is read off."""
    p = torch.tensor(
        [[[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], [[0.2, 0.2, 0.6], [0.1, 0.1, 0.8]]]
    )
    nats = -math.log(0.5), -math.log(0.125), -math.log(0.2), -math.log(0.8)
    yield call(p[:1].log(), torch.tensor([[0, 2]])), torch.tensor(sum(nats[:2]) / 2)
    yield call(p.log(), torch.tensor([[0, 2], [1, 2]])), torch.tensor(sum(nats) / 4)
    some = torch.tensor([[0, -100], [1, 2]])
    yield call(p.log(), some), torch.tensor((nats[0] + nats[2] + nats[3]) / 3)


@loss.cases(10)
def _(draw):
    B, T, V = draw(draws.distinct_sizes(3, 2, 7))
    seed = draw(seeds)
    targets = some_ids(B, T, V, seed=seed)
    if draw(st.booleans()):
        left_out = some_ids(B, T, 2, seed=seed + 1).bool()
        left_out[:, -1] = False  # every sequence has one that counts,
        left_out[0], left_out[1, 0] = False, True  # and not all have as many
        targets = targets.masked_fill(left_out, -100)
    yield call(2 * normal(B, T, V, seed=seed) + 1, targets)


@loss.edge
def _():
    x, ids = normal(3, 4, 7, seed=5), some_ids(3, 4, 7, seed=6)
    answer = torch.full((2, 5), -100)
    answer[0, 4], answer[1, 2:] = 3, torch.tensor([1, 0, 6])
    yield call(x[:1, :1], ids[:1, :1]), "one target"
    yield call(normal(2, 5, 7), answer), "a prompt is left out, and rows count differently much"
    yield call(normal(4, 4, 4), some_ids(4, 4, 4)), "all axes of one size"
    yield call(300 * x, ids), "logits in the hundreds: exp overflows, and a probability rounds to 0"
    yield call(x + 10_000.0, ids), "logits far from zero"
    yield call((3 * x).bfloat16(), ids), "bfloat16 logits: the loss is float32"
    yield call((3 * x).half(), ids), "half precision logits: the loss is float32"
    yield call((3 * x).double(), ids), "float64 logits: the loss is float32"
    yield call(draws.scattered(x), draws.scattered(ids)), "not contiguous"


ROWS, AIMS = "logits.flatten(0, 1).float()", "targets.flatten()"
WHOLE = f"F.cross_entropy({ROWS}, {AIMS})"

for says, edit in {
    "The targets are shifted once more. targets[b, t] follows position t already: logits[b, t] "
    "is judged by it.": replace(
        ROWS, "logits[:, :-1].flatten(0, 1).float()", AIMS, "targets[:, 1:].flatten()"
    ),
    "This is the sum. The mean is asked for, so that the loss does not depend on the batch's size.": replace(
        AIMS, f'{AIMS}, reduction="sum"'
    ),
    "You divide by the number of all targets, those of −100 included. "
    "Divide by the number of those that count.": replace(
        WHOLE, f'F.cross_entropy({ROWS}, {AIMS}, reduction="sum") / targets.numel()'
    ),
    "This is a mean of the sequences' means: where they count differently many targets, "
    "those of a short one weigh more. Take one mean over all targets.": replace(
        WHOLE,
        "torch.stack([F.cross_entropy(x.float(), y) for x, y in zip(logits, targets) if (y >= 0).any()]).mean()",
    ),
    "The loss is computed in the logits' own dtype: in bfloat16 it has three digits. "
    "Cast the logits to float32 before it.": replace(".float()", ""),
    "Your loss of float64 logits is float64. It is float32, whatever the logits are.": replace(
        ".float()", ".to(torch.promote_types(logits.dtype, torch.float32))"
    ),
    "It is cast to float32 at the end, when the digits are lost: cast the logits.": replace(
        WHOLE, f"F.cross_entropy(logits.flatten(0, 1), {AIMS}).float()"
    ),
    "This is in bits. Nats are asked for: do not divide by ln 2.": replace(
        WHOLE, f"{WHOLE} / math.log(2)"
    ),
    "Targets of −100 are taken for token 0. They are left out.": replace(
        AIMS, "targets.flatten().clamp(min=0)"
    ),
    "F.cross_entropy gets probabilities. It takes the softmax itself: give it the logits.": replace(
        ROWS, "logits.flatten(0, 1).float().softmax(-1)"
    ),
    "This is the logarithm of a softmax that has rounded to 0: an infinite loss. "
    "F.cross_entropy or log_softmax computes it in one piece.": replace(
        WHOLE, f"F.nll_loss({ROWS}.softmax(-1).log(), {AIMS})"
    ),
    "The sign is wrong: the loss is minus the logarithm of the target's probability.": replace(
        WHOLE, f"-{WHOLE}"
    ),
    "This is the perplexity, the exponential of the loss.": replace(WHOLE, f"{WHOLE}.exp()"),
    "Axis 1 is the position here, and F.cross_entropy looks for the vocabulary there. "
    "Flatten batch and positions into one axis, or move V to axis 1.": replace(
        ROWS, "logits.float()", AIMS, "targets"
    ),
    "The softmax is over the positions: the logits were reshaped to (…, V, …) where axes "
    "had to change places. Flatten batch and positions, or transpose.": replace(
        ROWS,
        "logits.float().reshape(logits.size(0), logits.size(2), logits.size(1))",
        AIMS,
        "targets",
    ),
    "The exponentials overflow. Subtract the maximum first, or let F.cross_entropy do it.": replace(
        WHOLE, f"F.nll_loss({ROWS} - {ROWS}.exp().sum(-1, keepdim=True).log(), {AIMS})"
    ),
    "The result is one loss for each target. Their mean is asked for.": replace(
        AIMS, f'{AIMS}, reduction="none"'
    ),
}.items():
    loss.mistake(says, edit)


@loss.alternative("the vocabulary on axis 1")
def _(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2).to(torch.float32), targets, ignore_index=-100)


@loss.alternative("logsumexp less the target's logit, of those that count")
def _(logits, targets):
    counted = targets != -100
    x, y = logits[counted].float(), targets[counted]
    return (x.logsumexp(-1) - x.gather(-1, y[:, None])[:, 0]).mean()


@loss.alternative("log_softmax, gathered everywhere, and weights of 1 and 0")
def _(logits, targets):
    weights = (targets >= 0).float()
    logs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    taken = logs.gather(2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
    return -(taken * weights).sum() / weights.sum()


# ------------------------------------------------------------------------------ load_hf_state_dict

load = Exercise(
    gpt2.load_hf_state_dict,
    title="A published checkpoint",
    difficulty=3,
    minutes=30,
    points=4,
    probe=probes.checkpoint,
    hints=(
        "First bring the state into the model's own form: full names, no masks, four kinds of matrices "
        "transposed. Then compare. Copy last.",
        "dict(model.named_parameters()) has the tied weight once, as transformer.wte.weight.",
        "TRANSPOSED and NOT_WEIGHTS are tuples of endings: name.endswith(TRANSPOSED). Mind that "
        "c_attn.bias ends with attn.bias, too, but not with .attn.bias.",
        ("edge cases", "Collect every problem in a list; raise before the first copy_."),
    ),
)

SMALL = {"vocab_size": 9, "n_positions": 5, "n_embd": 6, "n_layer": 2, "n_head": 2}


def published(seed=0, *, prefix=True, head=True, masks=False, config=None, **replaced):
    """A checkpoint of these sizes as Hugging Face has it. replaced: by name, dots as __; None: left out."""
    config = config or SMALL
    V, C, D = config["vocab_size"], config["n_positions"], config["n_embd"]
    shapes = {"wte.weight": (V, D), "wpe.weight": (C, D)}
    for i in range(config["n_layer"]):
        for name, shape in block_shapes(D).items():
            shapes[f"h.{i}.{name}"] = shape[::-1]  # Conv1D: (in, out)
    shapes |= {"ln_f.weight": (D,), "ln_f.bias": (D,)}
    state = weights_of(shapes, seed, torch.float32)
    if masks:
        for i in range(config["n_layer"]):
            state[f"h.{i}.attn.bias"] = torch.ones(1, 1, C, C).tril()
            state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    for name, value in replaced.items():
        state.pop(name.replace("__", "."), None)
        if value is not None:
            state[name.replace("__", ".")] = value
    state = {("transformer." if prefix else "") + name: x for name, x in state.items()}
    if head:
        embedding = "transformer.wte.weight" if prefix else "wte.weight"
        state["lm_head.weight"] = state.get(embedding, normal(V, D))
    return state


@load.by_hand
def _():
    """One feature, one layer: every weight is its own number, so that all can be told apart."""
    config = {"vocab_size": 2, "n_positions": 1, "n_embd": 1, "n_layer": 1, "n_head": 1}
    state = published(config=config)
    c_fc = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    state["transformer.h.0.mlp.c_fc.weight"] = c_fc
    yield (
        call(config, state),
        {
            "returns": None,
            "`transformer.h.0.mlp.c_fc.weight`": c_fc.T,
            "`transformer.wte.weight`": state["transformer.wte.weight"],
            "the head is still tied": True,
        },
    )


@load.cases(6)
def _(draw):
    V, C, D = draw(draws.distinct_sizes(3, 3, 9))
    config = {"vocab_size": V, "n_positions": C, "n_embd": D, "n_layer": draw(draws.sizes(1, 2))}
    prefix, head, masks = (draw(st.booleans()) for _ in range(3))
    state = published(draw(seeds), prefix=prefix, head=head, masks=masks, config=config)
    yield call({**config, "n_head": 1}, state)


@load.edge
def _():
    def of(*seed, **replaced):
        return call(SMALL, published(*seed, **replaced))

    b, short, gone = normal(6), normal(7, 6), dict.fromkeys(("ln_f__bias", "wpe__weight"))
    yield of(1), "as transformers saves it"
    yield of(2, prefix=False, head=False, masks=True), "as it was first published"
    yield of(ln_f__bias=None), "one tensor is missing"
    yield of(h__1__attn__c_attn__bias=None), "the bias of c_attn is missing"
    yield of(h__1__ln_2__weight=None, **gone), "three tensors are missing"
    yield of(ln_q__bias=b), "one tensor is unknown"
    yield of(h__7__ln_1__bias=b, ln_q__bias=b), "two are unknown"
    yield of(wpe__weight=short), "another context"
    yield of(ln_f__weight=normal(1)), "a shape that would broadcast"
    yield of(wpe__weight=short, ln_f__weight=b[:5]), "two of another shape"
    yield of(ln_f__bias=None, ln_q__bias=b, wpe__weight=short), "missing, unknown and wrong ones"
    yield of(h__1__mlp__c_fc__weight=normal(24, 6)), "c_fc is transposed already"
    yield of(wte__weight=None), "the embedding is missing, and the head is there"
    yield of(5, prefix=False), "without the prefix, and with the head"
    other = {"lm_head.weight": normal(9, 6, seed=99)}
    yield call(SMALL, published() | other), "an untied head"
    yield call(SMALL, published(prefix=False) | other), "an untied head, and no prefix"
    larger = {"lm_head.weight": normal(12, 6, seed=99)}
    yield call(SMALL, published() | larger), "a head of another shape"
    yield call(SMALL, {}), "nothing at all"
    half = {name: x.half() for name, x in published(3).items()}
    yield call(SMALL, half), "half precision: the model keeps its dtype"
    state = published(4)
    state["lm_head.weight"] = state["lm_head.weight"].view(9, 6)
    yield call(SMALL, state), "a head that is another tensor on the embedding's memory"


TURNED = "name.endswith(TRANSPOSED)"
COPY = "parameter.copy_(given[name])"
SAME = "given[name].shape != mine[name].shape"
FIRST, NEXT, LAST = "    problems = [", '    problems += [f"', "    problems += [\n"
ENDS = "    if problems:\n        raise ValueError(str(problems))\n"
MESSAGE = '"the checkpoint does not fit this model:\\n  " + "\\n  ".join(problems)'

for edit in (
    replace(
        "full_name(name): x",
        '("" if any(n.startswith("transformer.") for n in state) else "transformer.") + name: x',
    ),
    replace(
        "not torch.equal(head, embedding)",
        '("transformer.wte.weight" not in state or not torch.equal(head, state["transformer.wte.weight"]))',
    ),
):
    load.mistake(
        "A file without the prefix that holds the head as well is refused. Its embedding is `wte.weight`, its head "
        "still `lm_head.weight`: give the head no prefix, and compare it with the embedding under whichever name.",
        edit,
    )

for says, edit in {
    "The head is taken out of the caller's own mapping (`state.pop`). Leave the checkpoint as it is: make a "
    "dict of your own first.": replace(
        FIRST, f'    dict.pop(state, "lm_head.weight", None)\n{FIRST}'
    ),
    "Nothing is transposed. "
    "The checkpoints hold x W + b (`Conv1D`, (in, out)), nn.Linear (out, in).": replace(
        TURNED, "False"
    ),
    "The attention's c_proj is not transposed. It is square, so that no shape complains: "
    "the model loads, and talks nonsense. All four linear layers are transposed.": replace(
        TURNED, f'{TURNED} and "attn.c_proj" not in name'
    ),
    "A matrix is transposed where its shape does not fit. The attention's c_proj is square, fits as "
    "it is, and stays the wrong way round. Transpose by name, not by shape.": replace(
        TURNED,
        "x.ndim == 2 and dict(model.named_parameters()).get(name, x).shape != x.shape",
    ),
    "Every matrix is transposed, the embeddings too. Only the four linear layers are.": replace(
        TURNED, "x.ndim == 2"
    ),
    "The masks of older checkpoints, attn.bias and attn.masked_bias, are taken for weights. "
    "They are buffers that this model does not have: leave them out.": replace(
        " if not name.endswith(NOT_WEIGHTS)", ""
    ),
    "c_attn.bias is left out with the masks: it ends with attn.bias as well. "
    "Look for .attn.bias.": replace(
        "name.endswith(NOT_WEIGHTS)", 'name.endswith(("attn.bias", "attn.masked_bias"))'
    ),
    "Names without the prefix `transformer.` are not known. The published file has none.": replace(
        "full_name(name)", "name"
    ),
    "lm_head.weight must be there. "
    "It is the embedding; the published file does not hold it twice.": replace(
        "named_parameters()",
        "named_parameters(remove_duplicate=False)",
        'given.pop("lm_head.weight", None)',
        'given.get("lm_head.weight")',
    ),
    "An untied head is loaded in silence: its weight is dropped, "
    "and the logits are those of another model. Compare it with the embedding.": replace(
        "not torch.equal(head, embedding)", "False"
    ),
    "A head that holds the embedding's values in memory of its own, as files and conversions leave it, is taken "
    "for untied. Compare the values.": replace(
        "not torch.equal(head, embedding)", "head.data_ptr() != embedding.data_ptr()"
    ),
    "The head is compared with `is`. A head that holds the embedding's values in a tensor of its own is tied, "
    "too: compare the values.": replace(
        "not torch.equal(head, embedding)", "head is not embedding"
    ),
    "You compare head and embedding element by element. Of two different shapes that ends in torch's RuntimeError: "
    "compare the shapes as well, as torch.equal does.": replace(
        "not torch.equal(head, embedding)", "not (head == embedding).all()"
    ),
    "Missing tensors go unsaid: those parameters keep their random values.": replace(
        "if name not in given]", "if False]", COPY, "parameter.copy_(given.get(name, parameter))"
    ),
    "Unknown tensors go unsaid. "
    "They are the sign of another model, or of a renamed layer.": replace(
        "if name not in mine]", "if False]"
    ),
    "Only the first problem is named. Whoever mends a checkpoint wants them all.": replace(
        "join(problems)", "join(problems[:1])"
    ),
    "The first tensor of another shape ends the check, so that the other problems go unsaid. "
    "Collect all of them, then raise.": replace(
        FIRST,
        "    for name in mine:\n"
        "        if name in given and given[name].shape != mine[name].shape:\n"
        "            raise ValueError(name)\n" + FIRST,
    ),
    "Missing and unknown tensors end the check before shapes are compared, so that those of another "
    "shape go unsaid. Collect all problems, then raise.": replace(LAST, ENDS + LAST),
    "Missing tensors end the check before anything else is compared, so that other problems go unsaid. "
    "Collect all of them, then raise.": replace(NEXT, ENDS + NEXT),
    "The message names no tensor: say which are missing, unknown or of another shape.": replace(
        MESSAGE, '"the checkpoint does not fit this model"'
    ),
    "Some tensors were copied before it raised. Look for every problem first.": replace(
        FIRST,
        "    for name in mine.keys() & given.keys():\n"
        "        if given[name].shape == mine[name].shape:\n"
        "            mine[name].data.copy_(given[name])\n" + FIRST,
    ),
    "The numbers of elements are compared, not the shapes; "
    "where one is copied all the same, it comes scrambled.": replace(
        SAME,
        "given[name].numel() != mine[name].numel()",
        COPY,
        "parameter.copy_(given[name].reshape(parameter.shape))",
    ),
    "Shapes are compared up to broadcasting: "
    "a vector of one number fills a whole norm, in silence.": replace(
        SAME, f"{SAME} and given[name].numel() > 1"
    ),
    "The parameters share the checkpoint's memory (`p.data = x`): whoever trains the model changes "
    "the dict that it came from, and half precision comes in with it. Copy the values.": replace(
        COPY, "parameter.data = given[name]"
    ),
    "The state that you were given is changed. It belongs to the caller.": replace(
        "    mine = dict(", "    state.clear()\n    state.update(given)\n    mine = dict("
    ),
    "A missing tensor ends in a KeyError. Collect the names, then raise ValueError.": replace(
        "if name not in given]", "if False]"
    ),
    "It raises RuntimeError, as load_state_dict does. Raise ValueError.": replace(
        "raise ValueError(", "raise RuntimeError("
    ),
}.items():
    load.mistake(says, edit)


@load.alternative("load_state_dict, strict, after every check")
def _(model, state):
    own = model.state_dict()
    named = {}
    for name, x in state.items():
        if name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        name = name.removeprefix("transformer.")
        name = name if name == "lm_head.weight" else f"transformer.{name}"
        layer = name.split(".")[-2]
        named[name] = x.t() if name.endswith("weight") and layer.startswith("c_") else x
    named.setdefault("lm_head.weight", named.get("transformer.wte.weight", torch.zeros(0)))
    wrong = [name for name in own if name not in named and name != "lm_head.weight"]
    wrong += [name for name in named if name not in own]
    wrong += [
        f"{name}: {tuple(named[name].shape)}"
        for name in own
        if name != "lm_head.weight" and name in named and named[name].shape != own[name].shape
    ]
    given = named.get("transformer.wte.weight")
    tied = given is not None and torch.equal(named["lm_head.weight"], given)
    if "lm_head.weight" in state and not tied:
        wrong.append("lm_head.weight is not transformer.wte.weight")
    if wrong:
        raise ValueError(f"does not fit: {', '.join(wrong)}")
    model.load_state_dict(named, strict=True)


load.equivalent(
    "load_hf_state_dict: `torch.equal(head, embedding)` → `torch.equal(embedding, head)`",
    because="equality is symmetric, of tensors as of numbers.",
)


# ------------------------------------------------------------------------------ SwiGLU

swiglu = Exercise(
    llama.SwiGLU,
    key="gpt2.SwiGLU",
    title="The MLP of a Llama",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.gpt2_part,
    length=terms,
    hints=(
        "Three linear layers without bias: c_gate and c_fc from config.n_embd to config.n_inner, c_proj "
        "back.",
        "F.silu is x · σ(x). It is on the gate alone; the product of the two goes into c_proj.",
        ("edge cases", "Nothing else is in here: no dropout, no residual."),
    ),
)


def gated(D=4, F=6):
    """A config as data, and the shapes of its SwiGLU."""
    config = sizes(n_embd=D, n_head=1, n_kv_head=1, n_inner=F)
    shapes = {"c_gate.weight": (F, D), "c_fc.weight": (F, D), "c_proj.weight": (D, F)}
    return {"config": config}, shapes


@swiglu.by_hand
def _():
    """One feature, three hidden ones: gates x, −x and 0, values 10 x, 100 x and x."""
    build, _ = gated(1, 3)
    weights = {"c_gate.weight": torch.tensor([[1.0], [-1.0], [0.0]], dtype=F64)}
    weights["c_fc.weight"] = torch.tensor([[10.0], [100.0], [1.0]], dtype=F64)
    weights["c_proj.weight"] = torch.tensor([[1.0, 1.0, 1.0]], dtype=F64)
    x = torch.tensor([[[1.0], [-2.0]]], dtype=F64)
    silu = lambda v: v / (1 + math.exp(-v))  # noqa: E731
    out = [silu(v) * 10 * v + silu(-v) * 100 * v for v in (1.0, -2.0)]
    out = torch.tensor(out, dtype=F64).view(1, 2, 1)
    yield call(build, weights, ("eval", x)), {"step 1 (eval): output": out}


@swiglu.cases(8)
def _(draw):
    B, T, D, F = draw(draws.distinct_sizes(4, 2, 7))
    dtype, seed = draw(st.sampled_from([torch.float32, F64])), draw(seeds)
    build, shapes = gated(D, F)
    x, y = (normal(B, T, D, dtype=dtype, seed=seed + s) for s in (90, 91))
    steps = ("train", x), ("train", y), ("eval", x), ("reload",), ("eval", y)
    yield call(build, weights_of(shapes, seed, dtype), *steps)


@swiglu.edge
def _():
    build, shapes = gated()
    weights, x = weights_of(shapes, 1), normal(2, 3, 4, dtype=F64)
    wide, wide_shapes = gated(3, 12)
    yield call(build, weights, ("train", x[0, 0])), "one vector"
    yield call(build, weights, ("train", x[:0])), "an empty batch"
    yield call(build, weights, ("train", draws.scattered(x))), "not contiguous"
    yield call(build, weights, ("train", 40 * x)), "large: SiLU is x or 0"
    yield call(wide, weights_of(wide_shapes, 2), ("train", x[..., :3])), "n_inner is 4 D"
    dropped = {"config": build["config"] | {"dropout": 0.5}}
    yield call(dropped, weights, ("train", x)), "config.dropout is not looked at"


GATED = "F.silu(self.c_gate(x)) * self.c_fc(x)"

for says, edit in {
    "SiLU is on c_fc. The gate is c_gate: silu(c_gate(x)) · c_fc(x).": replace(
        GATED, "F.silu(self.c_fc(x)) * self.c_gate(x)"
    ),
    "The gate is a sigmoid: that is the GLU of 2016. The Swi is for SiLU, x · σ(x).": replace(
        "F.silu(self", "torch.sigmoid(self"
    ),
    "The gate is a GELU: that is GEGLU. SwiGLU has SiLU, x · σ(x).": replace(
        "F.silu(self", "F.gelu(self"
    ),
    "The gate is a GELU in its tanh form, as in GPT-2. SwiGLU has SiLU, x · σ(x).": replace(
        "F.silu(self.c_gate(x))", 'F.gelu(self.c_gate(x), approximate="tanh")'
    ),
    "The gate is a ReLU: that is ReGLU. SwiGLU has SiLU, x · σ(x).": replace(
        "F.silu(self", "F.relu(self"
    ),
    "The gate passes no activation function: a product of two linear layers. "
    "SiLU is on the gate.": replace("F.silu(self.c_gate(x))", "self.c_gate(x)"),
    "There is no gate: c_gate is never used. Multiply silu(c_gate(x)) with c_fc(x).": replace(
        GATED, "F.silu(self.c_fc(x))"
    ),
    "c_fc is never used. Multiply silu(c_gate(x)) with c_fc(x).": replace(
        GATED, "F.silu(self.c_gate(x))"
    ),
    "Gate and value are added. The gate is a factor.": replace(") * self", ") + self"),
    "SiLU is on the product. It is on the gate alone, before the product.": replace(
        GATED, "F.silu(self.c_gate(x) * self.c_fc(x))"
    ),
    "SiLU is on both. The value, c_fc(x), passes as it is.": replace(
        "* self.c_fc(x)", "* F.silu(self.c_fc(x))"
    ),
    "There are biases. A Llama's linear layers have none: bias=False.": replace(
        "self.c_gate = nn.Linear(config.n_embd, config.n_inner, bias=False)",
        "self.c_gate = nn.Linear(config.n_embd, config.n_inner)",
        "self.c_fc = nn.Linear(config.n_embd, config.n_inner, bias=False)",
        "self.c_fc = nn.Linear(config.n_embd, config.n_inner)",
        "config.n_inner, config.n_embd, bias=False",
        "config.n_inner, config.n_embd",
    ),
    "c_proj has a bias. A Llama's linear layers have none: bias=False.": replace(
        "config.n_inner, config.n_embd, bias=False", "config.n_inner, config.n_embd"
    ),
    "x is added at the end. The block does that; here it is added twice.": replace(
        "return self", "return x + self"
    ),
    "There is a dropout; a Llama has none.": replace(
        "return self.c_proj",
        "return nn.Dropout(0.5).train(self.training)(self.c_proj",
        "c_fc(x))",
        "c_fc(x)))",
    ),
    "c_proj's result goes through SiLU, too. "
    "What a block adds to the residual stream must be able to be negative.": replace(
        "return self.c_proj(F.silu(self.c_gate(x)) * self.c_fc(x))",
        "return F.silu(self.c_proj(F.silu(self.c_gate(x)) * self.c_fc(x)))",
    ),
}.items():
    swiglu.mistake(says, edit)


for width in ("4 * config.n_embd", "8 * config.n_embd // 3"):
    swiglu.mistake(
        "The hidden layer's width is computed from D. It is given: config.n_inner.",
        replace(
            "self.c_gate = nn.Linear(config.n_embd, config.n_inner",
            f"self.c_gate = nn.Linear(config.n_embd, {width}",
            "self.c_fc = nn.Linear(config.n_embd, config.n_inner",
            f"self.c_fc = nn.Linear(config.n_embd, {width}",
            "config.n_inner, config.n_embd",
            f"{width}, config.n_embd",
        ),
    )


@swiglu.alternative("SiLU by its formula")
class _(nn.Module):
    def __init__(self, config: LlamaConfig):
        super().__init__()
        D, inner = config.n_embd, config.n_inner
        self.c_gate, self.c_fc = (nn.Linear(D, inner, bias=False) for _ in range(2))
        self.c_proj = nn.Linear(inner, D, bias=False)

    def forward(self, x):
        gate = self.c_gate(x)
        return self.c_proj(self.c_fc(x) * gate * gate.sigmoid())


@swiglu.alternative("gate and value from one product")
class _(nn.Module):
    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.c_gate = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.c_fc = nn.Linear(config.n_embd, config.n_inner, bias=False)
        self.c_proj = nn.Linear(config.n_inner, config.n_embd, bias=False)
        self.act = nn.SiLU()

    def forward(self, x):
        both = torch.cat([self.c_gate.weight, self.c_fc.weight])
        gate, value = F.linear(x, both).chunk(2, dim=-1)
        return self.c_proj(self.act(gate) * value)
