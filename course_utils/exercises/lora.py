"""Chapter 26's exercises: what each is asked on, and the mistakes it knows."""
# mypy: ignore-errors
# Most classes below are wrong on purpose, and all are called `_`.

import copy
import math

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes import prepared
from course_utils.grading.pytrees.tree import tensors
from course_utils.reference import lora

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


def normal(*shape, dtype=F32, seed=0):
    """Fixed standard normal numbers for cases without draws."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def several(draw, dtype, *shapes):
    """Normal tensors of these shapes, all different, from one drawn seed."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def terms(case):
    """The most terms that a sum in a case may have."""
    return max([x.numel() for x in tensors((case.args, case.kwargs))], default=1)


def cancelling(case):
    """A softmax's gradient is p - 1: it has the rounding of 1, however small it is itself."""
    return 16 * terms(case)


# ------------------------------------------------------------------------------ lora_parameter_count

GPT = {
    "wte": ("embedding", 7, 4),
    "h": [
        {
            "ln_1": ("norm", 4),
            "attn": {"c_attn": ("linear", 4, 12), "c_proj": ("linear", 4, 4)},
            "mlp": {"c_fc": ("linear", 4, 16), "c_proj": ("linear", 16, 4)},
        }
        for _ in range(2)
    ],
    "lm_head": ("linear", 4, 7, False),
}
"""GPT-2's names on a model of four features."""
ALIKE = {"attn": {"c_attn": ("linear", 3, 5), "xc_attn": ("linear", 3, 9)}, "fc": ("linear", 5, 2)}
CONVS = {"attn": {"c_attn": ("conv1d", 12, 4)}, "mlp": {"c_fc": ("conv1d", 16, 4)}}

lora_parameter_count = Exercise(
    lora.lora_parameter_count,
    title="How many numbers LoRA trains",
    difficulty=1,
    minutes=10,
    points=1,
    probe=probes.assembled,
    hints=(
        "A is (r, in) and B is (out, r): how many numbers are these together?",
        "`linear_layers(model)` gives names and layers, `is_target(name, targets)` says whether a name "
        "is meant.",
        ("random cases", "A layer that two targets match still gets one adapter."),
    ),
)


@lora_parameter_count.by_hand
def _():
    yield call({"fc": ("linear", 3, 2)}, ["fc"], 4), {"returns": 4 * (3 + 2)}
    yield call(GPT, ["c_attn"], 2), {"returns": 2 * 2 * (4 + 12)}
    yield call(GPT, ["c_proj"], 1), {"returns": 2 * ((4 + 4) + (16 + 4))}
    yield call(GPT, ["mlp.c_proj"], 1), {"returns": 2 * (16 + 4)}


@lora_parameter_count.cases(15)
def _(draw):
    D, hidden, r = draw(draws.distinct_sizes(3))
    block = {
        "attn": {"c_attn": ("linear", D, 3 * D), "c_proj": ("linear", D, D)},
        "mlp": {"c_fc": ("conv1d", hidden, D), "c_proj": ("conv1d", D, hidden)},
    }
    model = {"h": [block] * draw(draws.sizes(1, 3)), "head": ("linear", D, 9)}
    names = ["c_attn", "c_proj", "c_fc", "mlp.c_proj", "attn.c_proj", "head"]
    yield call(model, draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)), r)


@lora_parameter_count.edge
def _():
    yield call(ALIKE, ["c_attn"], 2), "xc_attn ends in c_attn, but is another name"
    yield call(GPT, ["attn"], 2), "attn is no linear layer, though there are some inside"
    yield call(GPT, ["q_proj"], 2), "nothing is called so"
    yield call(GPT, [], 2), "no targets"
    yield call(GPT, ["c_proj", "mlp.c_proj"], 2), "a layer that two targets match"
    yield call(CONVS, ["c_attn", "c_fc"], 3), "transformers' Conv1D holds (in, out)"
    yield call(GPT, ["wte", "ln_1"], 3), "an embedding and a norm: no linear layers"


SIZE, MEANT = "sum(weight_of(layer).shape)", "is_target(name, targets)"

for says, edit in {
    "You count W's own in · out numbers. "
    "They are frozen: what trains is A, r · in, and B, out · r.": replace(
        f"r * {SIZE}", "weight_of(layer).numel()"
    ),
    "You count A alone. B, (out, r), trains too.": replace(SIZE, "weight_of(layer).size(1)"),
    "You count B alone. A, (r, in), trains too.": replace(SIZE, "weight_of(layer).size(0)"),
    "You count r · in · out for each layer. "
    "The two factors stand beside one another: r · in and out · r.": replace(
        SIZE, "weight_of(layer).numel()"
    ),
    "You add the base layer's out biases. LoRA leaves the bias alone; only A and B train.": replace(
        SIZE, f"{SIZE} + weight_of(layer).size(0)"
    ),
    "You match any name that ends in the target's letters: xc_attn is not c_attn. "
    "The name is the target, or ends in a dot and the target.": replace(
        MEANT, "name.endswith(tuple(targets))"
    ),
    "You compare the target with the last part of the name alone, "
    "so a longer target such as mlp.c_proj matches nothing.": replace(
        MEANT, 'name.rpartition(".")[2] in targets'
    ),
    "You look for the target anywhere in the name: "
    '"attn" then means all that is inside of attn.': replace(
        MEANT, "any(target in name for target in targets)"
    ),
    'You compare the target with each part of the name by itself: "attn" then means all that is inside of '
    "attn, and mlp.c_proj means nothing. The name is the target, or ends in a dot and the target.": replace(
        MEANT, '{name, *name.split(".")}.intersection(targets)'
    ),
    "You go through the targets one by one, so a layer that two of them match is counted twice. "
    "It gets one adapter.": replace(
        f"if {MEANT}", "for target in targets if is_target(name, [target])"
    ),
    "You pass over the layers whose class is called Conv1D, of which transformers' GPT-2 is made. "
    "`linear_layers` gives both kinds.": replace(
        MEANT, f"isinstance(layer, nn.Linear) and {MEANT}"
    ),
}.items():
    lora_parameter_count.mistake(says, edit)


@lora_parameter_count.alternative("inject into a copy and count what trains")
def _(model, targets, r):
    found = [
        t for t in targets if any(lora.is_target(n, [t]) for n, _ in lora.linear_layers(model))
    ]
    if not found:
        return 0
    made = lora.inject_lora(copy.deepcopy(model), found, r)
    return sum(p.numel() for p in made.parameters() if p.requires_grad)


# ------------------------------------------------------------------------------ LoRALinear

LoRALinear = Exercise(
    lora.LoRALinear,
    title="A linear layer with an adapter",
    difficulty=2,
    minutes=30,
    points=4,
    probe=probes.lora_layer,
    length=terms,
    hints=(
        "Ask `weight_of(base_layer)` for the shape, the device and the dtype: `weight.new_zeros(…)` has "
        "the last two of its own accord.",
        "nn.Linear starts with `nn.init.kaiming_uniform_(weight, a=math.sqrt(5))`, which is uniform up to "
        "1 / √in.",
        "From the right to the left: x, dropout, A, B, times s, plus the base layer's answer for x as it "
        "came.",
        ("contracts", "(x Aᵀ) Bᵀ and x (B A)ᵀ are equal. Which one makes an (out, in) tensor?"),
    ),
)


def layer_case(kind, d_in, d_out, rows, dtype=F32, bias=True, seed=0, merged=(), **build):
    """A layer of fixed numbers."""
    r = build["r"]
    return call(
        kind,
        normal(d_out, d_in, dtype=dtype, seed=seed),
        normal(d_out, dtype=dtype, seed=seed + 1) if bias else None,
        build,
        normal(r, d_in, dtype=dtype, seed=seed + 2),
        normal(d_out, r, dtype=dtype, seed=seed + 3),
        normal(*rows, d_in, dtype=dtype, seed=seed + 4),
        *merged,
    )


@LoRALinear.by_hand
def _():
    W, A, B = torch.tensor([[1.0, 2.0]]), torch.ones(2, 2), torch.tensor([[1.0, 3.0]])
    x = torch.tensor([[1.0, 10.0]])
    yield (
        call("linear", W, torch.tensor([0.5]), {"r": 2, "alpha": 8.0}, A, B, x),
        {  # s = 8 / 2; x Aᵀ = (11, 11); · Bᵀ = 44
            "trained": ["lora_A", "lora_B"],
            "output": torch.tensor([[21.5 + 4 * 44.0]]),
            "delta()": torch.tensor([[16.0, 16.0]]),
            "scaling": 4.0,
            "gradient of `lora_A`": torch.tensor([[-4.0, -40.0], [-12.0, -120.0]]),
        },
    )
    A4, B4 = torch.ones(4, 2), torch.ones(1, 4)
    yield (
        call("linear", W, None, {"r": 4, "alpha": 8.0, "rslora": True}, A4, B4, x),
        {"scaling": 4.0, "output": torch.tensor([[21.0 + 4 * 44.0]])},  # s = 8 / √4
    )


@LoRALinear.cases(16)
def _(draw):
    d_in, d_out, r = draw(draws.distinct_sizes(3))
    dtype = draw(st.sampled_from([F32, F64]))
    rows = draw(st.sampled_from([(3,), (2, 3), (1, 2, 2)]))
    kind = draw(st.sampled_from(["linear", "conv1d"]))
    W, b, A, B, x = several(
        draw, dtype, (d_out, d_in), (d_out,), (r, d_in), (d_out, r), (*rows, d_in)
    )
    bias = b if kind == "conv1d" or draw(st.booleans()) else None
    build = {"r": r, "alpha": draw(st.sampled_from([1.0, 3.0, 16.0]))}
    if draw(st.booleans()):
        build["rslora"] = True
    yield call(kind, W, bias, build, A, B, x)


@LoRALinear.edge
def _():
    def of(*rows, kind="linear", dtype=F32, merged=(), **build):
        build = {"r": 2, "alpha": 4.0, **build}
        return layer_case(kind, 3, 5, rows, dtype=dtype, merged=merged, **build)

    yield of(), "one vector, no batch"
    yield of(0), "an empty batch"
    yield of(2, r=0), "no rank at all: an error"
    kind, W, b, build, *rest = of(2, r=1).args
    yield call(kind, W, b, build | {"r": -1}, *rest), "a negative rank: an error"
    yield of(2, r=1), "rank one"
    yield of(2, r=8), "a rank beyond both sizes is allowed"
    yield of(2, merged=("merged",)), "in W already"
    yield of(2, dtype=BF16), "bfloat16"
    dropped = layer_case("linear", 2, 3, (2, 2), r=2, alpha=4.0, dropout=0.5)
    yield dropped, "dropout on what enters A"
    dropped = layer_case("conv1d", 2, 3, (2,), r=2, alpha=4.0, dropout=0.75)
    yield dropped, "dropout, much of it"
    large = layer_case("linear", 2000, 3, (2,), r=8, alpha=4.0)
    yield large, "large enough to see how A is drawn"
    *given, x = of(4, 2).args
    yield call(*given, draws.scattered(x)), "an input that is not contiguous"


SCALE = "alpha / (math.sqrt(r) if rslora else r)"
DRAWN = "nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))"
ENTERS, ADDED = "F.linear(self.dropout(x), self.lora_A)", "self.scaling * F.linear(h, self.lora_B)"

for says, edit in {
    "Your update is not divided by r: the scale is α / r. Without it each rank asks for a learning "
    "rate of its own, and adapters of other libraries come out r times too strong.": replace(
        SCALE, "alpha / (math.sqrt(r) if rslora else 1)"
    ),
    "Your scale is α · r. It is α divided by r.": replace(
        SCALE, "alpha / math.sqrt(r) if rslora else alpha * r"
    ),
    "Your scale is r / α: it is the other way round, α / r.": replace(
        SCALE, "(math.sqrt(r) if rslora else r) / alpha"
    ),
    "Your scale is α / √r always. That is rsLoRA's; without `rslora` it is α / r.": replace(
        SCALE, "alpha / math.sqrt(r)"
    ),
    "With `rslora` you take the root of the whole fraction. It is the root of r alone: α / √r.": replace(
        SCALE, "(math.sqrt(alpha / r) if rslora else alpha / r)"
    ),
    "You ignore `rslora`: with it the scale is α / √r.": replace(SCALE, "alpha / r"),
    "`forward` does not multiply by the scale, though `delta` does: "
    "merged and not merged are then two different models.": replace(
        ADDED, "F.linear(h, self.lora_B)"
    ),
    "`delta` leaves the scale out, though `forward` has it: "
    "merged and not merged are then two different models.": replace(
        "self.scaling * (self.lora_B @ self.lora_A)", "self.lora_B @ self.lora_A"
    ),
    "A starts at zero and B at random. The update is zero as it should be, but the file's format, "
    "PEFT and the paper have it the other way round: A random, B zero.": replace(
        DRAWN, f"nn.init.zeros_(self.lora_A)\n        {DRAWN.replace('lora_A', 'lora_B')}"
    ),
    "A and B both start at zero. Then each one's gradient, which has the other as a factor, "
    "is zero too, and nothing ever trains.": replace(DRAWN, "nn.init.zeros_(self.lora_A)"),
    "A and B are both random at first: the model is changed before the first step. "
    "B starts at zero.": replace(DRAWN, f"{DRAWN}\n        {DRAWN.replace('lora_A', 'lora_B')}"),
    "A is drawn √6 times too wide: "
    "nn.Linear's start is `kaiming_uniform_` with a = √5, uniform up to 1 / √in.": replace(
        DRAWN, "nn.init.kaiming_uniform_(self.lora_A)"
    ),
    "The base layer still requires a gradient. It is to be frozen: only A and B train.": replace(
        "base_layer.requires_grad_(False)", "base_layer"
    ),
    "You freeze the base layer's weight, but not its bias. Only A and B train.": replace(
        "base_layer.requires_grad_(False)",
        "base_layer\n        base_layer.weight.requires_grad_(False)",
    ),
    "Your dropout acts on what enters the base layer too. "
    "The frozen layer sees x whole; only what enters A is dropped.": replace(
        "y = self", "x = self.dropout(x)\n        y = self", "self.dropout(x),", "x,"
    ),
    "Your dropout acts on the update as it comes out of B. It acts on what enters A.": replace(
        "self.dropout(x)", "x", "F.linear(h, self.lora_B)", "self.dropout(F.linear(h, self.lora_B))"
    ),
    "Your dropout acts between A and B. It acts on what enters A.": replace(
        ENTERS, "self.dropout(F.linear(x, self.lora_A))"
    ),
    "You leave out the dropout on what enters A.": replace("self.dropout(x)", "x"),
    "Your dropout acts in eval mode too: F.dropout drops unless it is told not to. Give it self.training.": replace(
        "self.dropout(x)", "F.dropout(x, self.dropout.p)"
    ),
    "You take (out, in) from `base_layer.weight.shape`. "
    "A Conv1D holds W as (in, out): ask `weight_of`.": replace(
        "weight_of(base_layer)", "base_layer.weight"
    ),
    "A and B are float32 whatever W is. "
    "Make them of W's dtype, on W's device: `weight.new_zeros(…)`.": replace(
        "weight.new_empty", "torch.empty", "weight.new_zeros", "torch.zeros"
    ),
    "When the update is in W already (`merged`), you add it once more. "
    "Then the base layer's answer is all.": replace("if self.merged:", "if False:"),
    "A rank below 1 is no update at all: raise ValueError.": replace("if r < 1:", "if False:"),
    "A negative rank ends in an error of torch's. It is below 1, as 0 is: raise ValueError.": replace(
        "if r < 1:", "if r == 0:"
    ),
}.items():
    LoRALinear.mistake(says, edit)

LoRALinear.mistake(
    "Your forward is right but multiplies B A out, an (out, in) tensor as large as W. (x Aᵀ) Bᵀ gives "
    "the same through r numbers a position.",
    replace(ADDED, "F.linear(self.dropout(x), self.delta())"),
    cost=True,
)


for says, edit in {
    "`delta` is (in, out). ΔW has W's own shape, (out, in): s · B A.": replace(
        "self.scaling * (self.lora_B @ self.lora_A)", "self.scaling * (self.lora_B @ self.lora_A).T"
    ),
    "A is drawn as (in, r) and then transposed. The number of inputs, by which its width goes, is the last "
    "axis for `kaiming_uniform_`, and there it found r.": replace(
        DRAWN, "nn.init.kaiming_uniform_(self.lora_A.detach().T, a=math.sqrt(5))"
    ),
    "A is drawn from N(0, 1). It starts as nn.Linear's weights do, uniform up to 1 / √in.": replace(
        DRAWN, "nn.init.normal_(self.lora_A)"
    ),
    "A and B have W's dtype, but are on the default device. Make them where W is.": replace(
        "weight.new_empty(r, in_features)",
        "torch.empty(r, in_features, dtype=weight.dtype)",
        "weight.new_zeros(out_features, r)",
        "torch.zeros(out_features, r, dtype=weight.dtype)",
    ),
    "x is flattened by `view`, which a layout such as a transposed one refuses. "
    "No view is due.": replace(
        ENTERS,
        "F.linear(self.dropout(x).view(-1, x.size(-1)), self.lora_A).view(*x.shape[:-1], self.lora_A.size(0))",
    ),
    "Your dropout writes into x (inplace=True), which belongs to the caller.": replace(
        "nn.Dropout(dropout)", "nn.Dropout(dropout, inplace=True)"
    ),
    "The update is added in place to what the base layer returned, which a hook may hold: "
    "y + …": replace(f"return y + {ADDED}", f"return y.add_({ADDED})"),
    "`delta` is computed once and kept: it is that of an A and a B of earlier steps.": replace(
        "return self.scaling * (self.lora_B @ self.lora_A)",
        "self.kept = getattr(self, 'kept', self.scaling * (self.lora_B @ self.lora_A).detach())\n        return self.kept",
    ),
}.items():
    LoRALinear.mistake(says, edit)


@LoRALinear.alternative("einsum, and A and B from nn.Linear's own start")
class _(nn.Module):
    def __init__(self, base_layer, r, alpha, dropout=0.0, rslora=False):
        super().__init__()
        if r <= 0:
            raise ValueError("r")
        W = lora.weight_of(base_layer)
        down = nn.Linear(W.shape[1], r, bias=False, device=W.device, dtype=W.dtype)
        self.base_layer = base_layer
        for p in base_layer.parameters():
            p.requires_grad = False
        self.lora_A = down.weight
        self.lora_B = nn.Parameter(torch.zeros(W.shape[0], r, device=W.device, dtype=W.dtype))
        self.scaling = alpha * (r**-0.5 if rslora else 1 / r)
        self.p = dropout
        self.merged = False

    def forward(self, x):
        out = self.base_layer(x)
        if not self.merged:
            kept = F.dropout(x, self.p, self.training)
            out = (
                out
                + torch.einsum("...i,ri,or->...o", kept, self.lora_A, self.lora_B) * self.scaling
            )
        return out

    def delta(self):
        return torch.einsum("or,ri->oi", self.lora_B * self.scaling, self.lora_A)


LoRALinear.contract(
    contracts.largest_tensor(
        [layer_case("linear", 128, 160, (4,), r=2, alpha=4.0)],
        limit=160 * 128 * 4 // 2,
        says="no (out, in) tensor in forward",
        prepare=prepared.lora_built,
    )
)


# ------------------------------------------------------------------------------ inject_lora

inject_lora = Exercise(
    lora.inject_lora,
    title="Adapters for a whole model",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.injected,
    hints=(
        "First find, then check, then change: nothing may be changed when an error is raised.",
        "`name.rpartition('.')` splits a dotted name; `model.get_submodule(parent)` finds the parent, "
        "for an empty name the model itself; `setattr(parent, last, …)` replaces the layer.",
        "Freeze the whole model before the adapters are in it, or they are frozen too.",
        ("edge cases", "Make a list of what you found before you replace any of it."),
    ),
)


@inject_lora.by_hand
def _():
    yield (
        call({"fc": ("linear", 2, 3), "head": ("linear", 3, 2, False)}, ["fc"], r=2, alpha=6.0),
        {
            "trained": ["fc.lora_A", "fc.lora_B"],
            "the model's own parameters are still there": True,
            "fc: what ones everywhere add": torch.full((1, 3), 12.0),  # 6/2 · 2 · 2
        },
    )


@inject_lora.cases(12)
def _(draw):
    D, hidden, r = draw(draws.distinct_sizes(3))
    block = {
        "ln": ("norm", D),
        "attn": {"c_attn": ("linear", D, 3 * D), "c_proj": ("linear", D, D)},
        "mlp": {"c_fc": ("conv1d", hidden, D), "c_proj": ("conv1d", D, hidden)},
    }
    model = {"wte": ("embedding", 5, D), "h": [block] * draw(draws.sizes(1, 3))}
    names = ["c_attn", "c_proj", "c_fc", "mlp.c_proj", "attn.c_proj"]
    targets = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
    given = {"r": r, "alpha": draw(st.sampled_from([1.0, 3.0, 16.0]))}
    if draw(st.booleans()):
        given["rslora"] = True
    if draw(st.booleans()):
        given["dropout"] = 0.25
    yield call(model, targets, **given)


@inject_lora.edge
def _():
    yield call(GPT, ["c_attn"]), "the defaults"
    yield call(GPT, ["q_proj"], r=2), "no layer is called so: an error, and nothing changed"
    yield call(GPT, ["c_attn", "q_proj"], r=2), "one of two targets matches nothing"
    yield call(GPT, ["attn"], r=2), "a module that is no linear layer"
    yield call(GPT, ["wte"], r=2), "an embedding is no linear layer"
    yield call(ALIKE, ["c_attn"], r=2), "xc_attn ends in c_attn, but is another name"
    yield call(GPT, ("c_attn", "mlp.c_proj"), r=2), "targets in a tuple"
    yield call(GPT, ["c_attn"], r=0), "no rank: an error, and nothing changed"
    yield call(GPT, ["c_attn"], r=-1), "a negative rank: an error, and nothing changed"
    yield call(GPT, ["c_attn"], dropout=1.5), "no probability: an error, and nothing changed"
    yield call(GPT, ["c_attn"], dropout=-0.5), "a negative dropout: an error, and nothing changed"
    yield call(GPT, ["c_attn"], dropout=1.0), "a dropout of all"
    yield call(GPT, ["c_attn"], "eval", dropout=0.5), "a model in eval mode stays in it"
    yield (
        call(GPT, ["c_attn", "c_fc"], "train", "h.0", "h.1.mlp.c_fc", dropout=0.5),
        "some layers of a model in train mode are in eval mode",
    )
    yield (
        call(GPT, ["c_attn", "c_fc"], "eval", "h.1", dropout=0.5),
        "one block of a model in eval mode is in train mode",
    )
    yield call(CONVS, ["c_attn", "c_fc"], r=3, alpha=2.0), "transformers' Conv1D"
    yield call({**GPT, "frozen": ["wte.weight"]}, ["lm_head"], r=1), "part of it was frozen already"


FOUND, FROZEN = "    found = [", "    model.requires_grad_(False)\n"
UNKNOWN = "if not any(is_target(name, [target]) for name, _ in found)"

for says, edit in {
    "You do not freeze the rest of the model: "
    "embeddings, norms and the layers without an adapter still train.": replace(FROZEN, ""),
    "You freeze the model when the adapters are in it, and so the adapters too: "
    "nothing trains.": replace("return model", "return model.requires_grad_(False)"),
    "A target that matches nothing passes in silence: "
    "a slip in a name, and a part of the model is never adapted. Raise ValueError.": replace(
        UNKNOWN, "if False"
    ),
    "You raise only if no target at all matches. Each of them has to match something.": replace(
        UNKNOWN, "if not found"
    ),
    "You freeze the model before you check, so an error leaves it frozen. "
    "Find and check first, then change.": replace(FOUND, FROZEN + FOUND),
    "You replace layers before every target is checked, so an error leaves half of the work done. "
    "Find and check first, then change.": replace(
        FOUND,
        "    known = [t for t in targets if any(is_target(n, [t]) for n, _ in linear_layers(model))]\n"
        "    if len(known) < len(targets):\n"
        "        inject_lora(model, known, r, alpha, dropout, rslora)\n" + FOUND,
    ),
    "You match any name that ends in the target's letters: xc_attn is not c_attn.": replace(
        "if is_target(name, targets)",
        "if name.endswith(tuple(targets))",
        "is_target(name, [target])",
        "name.endswith(target)",
    ),
    "You pass over the layers whose class is called Conv1D, of which transformers' GPT-2 is made. "
    "`linear_layers` gives both kinds.": replace(
        "if is_target(name, t", "if isinstance(layer, nn.Linear) and is_target(name, t"
    ),
    "You do not pass `alpha` on: every adapter has the default's scale.": replace(
        "r, alpha, dropout", "r, 16.0, dropout"
    ),
    "You do not pass `dropout` on.": replace("alpha, dropout, rslora", "alpha, rslora=rslora"),
    "You do not pass `rslora` on.": replace("dropout, rslora", "dropout"),
    "You return nothing. Return the model, so that calls can be chained.": replace(
        "return model", "return None"
    ),
    "You adapt a copy and leave the model that you were given as it was. "
    "The change is in place: an optimizer made before, and memory for one model only, rely on it.": replace(
        FOUND, f"    import copy\n\n    model = copy.deepcopy(model)\n{FOUND}"
    ),
    "New adapters are in train mode in a model that is in eval mode: their dropout drops.": replace(
        ".train(layer.training)", ""
    ),
    "New adapters get the mode of the whole model. Each has that of its own layer, which may be another: "
    "a frozen part in eval mode.": replace(".train(layer.training)", ".train(model.training)"),
    "setattr takes no dotted name: "
    "find the parent, model.get_submodule(parent), and set the last part.": replace(
        "setattr(model.get_submodule(parent), last", "setattr(model, name"
    ),
    "A dropout that is no probability raises when the model is frozen already. "
    "Check, then change.": replace("not 0 <= dropout <= 1", "False"),
}.items():
    inject_lora.mistake(says, edit)

for of_a_list in ("targets.copy()", "targets + []"):
    inject_lora.mistake(
        "You do with `targets` what only a list can do. They are any sequence, a tuple too: "
        "`list(targets)` makes a list of it.",
        replace("for target in targets:", f"for target in {of_a_list}:"),
    )


@inject_lora.alternative("recursion over named_children")
def _(model, targets, r=8, alpha=16.0, dropout=0.0, rslora=False):
    def places(module, prefix):
        for name, child in module.named_children():
            path = prefix + name
            yield module, name, child, path
            yield from places(child, path + ".")

    kinds = (nn.Linear,)
    hits = {}
    for module, name, child, path in places(model, ""):
        if isinstance(child, kinds) or type(child).__name__ == "Conv1D":
            for target in targets:
                if ("." + path).endswith("." + target):
                    hits.setdefault(target, []).append((module, name, child))
    if r < 1 or set(hits) != set(targets) or not 0 <= dropout <= 1:
        raise ValueError("nothing to adapt")
    for p in model.parameters():
        p.requires_grad = False
    done = set()
    for module, name, child in (place for found in hits.values() for place in found):
        if id(child) not in done:
            done.add(id(child))
            wrapped = lora.LoRALinear(child, r=r, alpha=alpha, dropout=dropout, rslora=rslora)
            module._modules[name] = wrapped.train(child.training)
    return model


# ------------------------------------------------------------------------------ merge, unmerge

merge = Exercise(
    (lora.merge, lora.unmerge),
    title="Merge and unmerge",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.merge_run,
    length=terms,
    hints=(
        "`lora_layers(model)` gives each layer that has an adapter; `layer.delta()` is what to add, "
        "`layer.merged` says whether it was.",
        "`weight_of(layer.base_layer)` is W as (out, in), a view where a Conv1D holds it transposed: "
        "`.add_` on it changes W itself.",
        ("worked by hand", "Does your addition record a gradient? `with torch.no_grad():`"),
    ),
)

W22 = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
A12, B21 = torch.tensor([[1.0, 10.0]]), torch.tensor([[1.0], [2.0]])


@merge.by_hand
def _():
    added = torch.tensor([[1.5, 7.0], [4.0, 14.0]])
    own = {"fc.lora_A": A12, "fc.lora_B": B21}
    yield (
        call({"fc": ("linear", W22, None, A12, B21, 0.5)}, "merge", "unmerge"),
        {
            "step 1 (merge): merged": {"fc": True},
            "step 1 (merge): values": {"fc.base_layer.weight": added} | own,
            "step 1 (merge): trained": list(own),
            "step 2 (unmerge): values": {"fc.base_layer.weight": W22} | own,
        },
    )
    base = {"fc.base_layer.weight": added.T, "fc.base_layer.bias": torch.zeros(2)}
    yield (
        call({"fc": ("conv1d", W22, None, A12, B21, 0.5)}, "merge", "merge"),
        {"step 2 (merge): values": base | own},
    )


@merge.cases(12)
def _(draw):
    D, hidden, r = draw(draws.distinct_sizes(3))
    up, down = (
        ((hidden, D), (hidden,), (r, D), (hidden, r)),
        ((D, hidden), (D,), (r, hidden), (D, r)),
    )
    W1, b1, A1, B1, W2, b2, A2, B2, W3 = several(draw, F32, *up, *down, (3, D))
    kind = draw(st.sampled_from(["linear", "conv1d"]))
    layers = {
        "h.0.fc": (kind, W1, b1, A1, B1, 2.0),
        "h.0.proj": ("linear", W2, b2, A2, B2, 0.25),
        "head": ("linear", W3, None),
    }
    verbs = draw(st.lists(st.sampled_from(["merge", "unmerge"]), min_size=2, max_size=5))
    yield call(layers, *verbs)


@merge.edge
def _():
    adapter = (normal(2, 4), normal(3, 2, seed=1), 4.0)
    yield call({"head": ("linear", normal(3, 4), None)}, "merge", "unmerge"), "no adapter at all"
    yield call({"fc": ("linear", normal(3, 4), None, *adapter)}, "unmerge"), "nothing to take out"
    conv = {"fc": ("conv1d", normal(3, 4), normal(3), *adapter)}
    yield call(conv, "merge", "merge", "unmerge", "unmerge"), "each of them twice"
    one = ("linear", normal(3, 4), None, *adapter, True)
    other = ("linear", normal(3, 4, seed=7), None, *adapter)
    yield call({"a": one, "b": other}, "merge", "unmerge"), "one of two layers is merged already"
    yield call({"a": one, "b": other}, "unmerge"), "one of two layers is merged, and taken out"
    large = (normal(2, 4) * 1e3, normal(3, 2, seed=1), 4.0)
    yield call({"fc": ("linear", normal(3, 4), None, *large)}, "merge"), "a large update"


ADD, SUBTRACT = "weight_of(layer.base_layer).add_(layer", "weight_of(layer.base_layer).sub_(layer"
SCALELESS = ".lora_B @ layer.lora_A"
ANEW = "layer.base_layer.weight = nn.Parameter(layer.base_layer.weight.clone(), False)"

for says, edit in {
    "A layer that is merged already is merged once more, and its update is in W twice. "
    "Look at `layer.merged` first, in both functions.": replace(
        "if not layer.merged:", "if True:", "if layer.merged:", "if True:"
    ),
    "`merge` adds an update that is in W already once more: look at `layer.merged` first.": replace(
        "if not layer.merged:", "if True:"
    ),
    "`merge` does not set `layer.merged`: forward still adds the update, to a W that has it, and "
    "`unmerge` leaves it there.": replace("layer.merged = True", "pass"),
    "`unmerge` leaves `layer.merged` set: forward leaves the update out, and W no longer has it.": replace(
        "layer.merged = False", "pass"
    ),
    "`unmerge` takes out what was never added: look at `layer.merged` first.": replace(
        "if layer.merged:", "if True:"
    ),
    "You forget to set `layer.merged`: forward still adds the update, to a W that has it.": replace(
        "layer.merged = True", "pass", "layer.merged = False", "pass"
    ),
    "You add B A without the scale. `layer.delta()` is s · B A.": replace(
        f"{ADD}.delta()", ADD + SCALELESS, f"{SUBTRACT}.delta()", SUBTRACT + SCALELESS
    ),
    "The update goes through bfloat16 on its way, and W keeps 8 bits of it. "
    "Add it in W's own dtype.": replace(
        f"{ADD}.delta()",
        f"{ADD}.delta().bfloat16()",
        f"{SUBTRACT}.delta()",
        f"{SUBTRACT}.delta().bfloat16()",
    ),
    "`unmerge` leaves W rounded to bfloat16. "
    "It is to be what it was, up to the rounding of W's own dtype.": replace(
        "layer.merged = False",
        "layer.merged = False\n            W = weight_of(layer.base_layer)\n            W.copy_(W.bfloat16())",
    ),
    "`unmerge` clears the flag but leaves the update in W. Subtract `layer.delta()`.": replace(
        f"{SUBTRACT}.delta())", "pass"
    ),
    "Your addition is recorded for backward, and W, which was frozen, requires a gradient: "
    "wrap it in `with torch.no_grad():`.": replace(
        f"with torch.no_grad():\n                {ADD}",
        f"if True:\n                {ADD}",
        f"with torch.no_grad():\n                {SUBTRACT}",
        f"if True:\n                {SUBTRACT}",
    ),
    "You add ΔW, which is (out, in), to a Conv1D's weight, which is (in, out). "
    "`weight_of` gives a view that fits.": replace(
        ADD, "layer.base_layer.weight.add_(layer", SUBTRACT, "layer.base_layer.weight.sub_(layer"
    ),
    "You put a new parameter in W's place. "
    "Whoever shares W, a tied head say, still has the old one: change it in place.": replace(
        ADD, f"{ANEW}\n                {ADD}", SUBTRACT, f"{ANEW}\n                {SUBTRACT}"
    ),
    "`merge` sets B to zero afterwards: "
    "then there is nothing left to take out again, and nothing to save.": replace(
        "layer.merged = True", "layer.merged = True\n            nn.init.zeros_(layer.lora_B)"
    ),
    "`W.add(…)` returns a sum that is thrown away; W is as it was. `add_` changes it.": replace(
        ADD, ADD.replace("add_", "add"), SUBTRACT, SUBTRACT.replace("sub_", "sub")
    ),
    "`unmerge` adds the update once more. Subtract it.": replace(SUBTRACT, ADD),
}.items():
    merge.mistake(says, edit)


PLAIN_MERGE = "    for _, layer in lora_layers(model):\n        if not layer.merged:"
PLAIN_UNMERGE = "    for _, layer in lora_layers(model):\n        if layer.merged:"
ASKED_ONCE = "    if {}(layer.merged for _, layer in lora_layers(model)):\n        return model\n"
for edit in (
    replace(PLAIN_MERGE, ASKED_ONCE.format("any") + PLAIN_MERGE),
    replace(
        PLAIN_MERGE,
        ASKED_ONCE.format("any") + PLAIN_MERGE,
        PLAIN_UNMERGE,
        ASKED_ONCE.format("not all") + PLAIN_UNMERGE,
    ),
    replace(PLAIN_UNMERGE, ASKED_ONCE.format("not all") + PLAIN_UNMERGE),
    replace(
        PLAIN_UNMERGE,
        ASKED_ONCE.format("not any") + PLAIN_UNMERGE.replace("if layer.merged", "if True"),
    ),
):
    merge.mistake(
        "You ask once, for the whole model, whether it is merged. Each layer has a `merged` of its own, and "
        "one may be where another is not.",
        edit,
    )


def through_data(model, on):
    for module in model.modules():
        if hasattr(module, "lora_A") and module.merged is not on:
            W = module.base_layer.weight.data
            change = module.lora_B.data.double() @ module.lora_A.data.double() * module.scaling
            if type(module.base_layer).__name__ == "Conv1D":
                change = change.T
            W.copy_((W.double() + (change if on else -change)).float())
            module.merged = on
    return model


merge.alternative("through .data, in float64, over modules()")(
    lambda model: through_data(model, True), lambda model: through_data(model, False)
)


# ------------------------------------------------------------------------------ lora_state_dict

lora_state_dict = Exercise(
    lora.lora_state_dict,
    title="A file of adapters",
    difficulty=1,
    minutes=15,
    points=2,
    probe=probes.adapter_state,
    hints=(
        "`lora_layers(model)` gives the dotted name of each layer with an adapter.",
        "The names are PEFT's: its prefix, the layer's name, then `.lora_A.weight` or `.lora_B.weight`.",
        ("worked by hand", "A state holds tensors, not parameters: `.detach()`."),
        ("edge cases", 'A name that merely contains "lora_" is no adapter.'),
    ),
)

ADAPTER = (torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]), 0.5)
P = "base_model.model."


@lora_state_dict.by_hand
def _():
    yield (
        call({"h.0.fc": ("linear", W22, None, *ADAPTER), "head": ("linear", W22, None)}),
        {
            "state": {
                f"{P}h.0.fc.lora_A.weight": ADAPTER[0],
                f"{P}h.0.fc.lora_B.weight": ADAPTER[1],
            },
            "some tensor requires grad": False,
        },
    )


@lora_state_dict.cases(8)
def _(draw):
    D, hidden, r = draw(draws.distinct_sizes(3))
    layers = {}
    for i in range(draw(draws.sizes(1, 3))):
        W1, b1, A1, B1, W2, A2, B2 = several(
            draw, F32, (hidden, D), (hidden,), (r, D), (hidden, r), (D, hidden), (r, hidden), (D, r)
        )
        layers[f"h.{i}.mlp.c_fc"] = ("conv1d", W1, b1, A1, B1, 2.0)
        layers[f"h.{i}.mlp.c_proj"] = ("linear", W2, None, A2, B2, 0.25)
        layers[f"h.{i}.other"] = ("linear", W2.clone(), None)
    yield call(layers)


@lora_state_dict.edge
def _():
    yield call({"head": ("linear", W22, None)}), "a model without adapters: an error"
    yield (
        call({"lora_net.fc": ("linear", W22, None), "fc": ("linear", W22.clone(), None, *ADAPTER)}),
        "a layer without an adapter whose name contains lora_",
    )
    yield call({"fc": ("linear", W22, None, *ADAPTER, True)}), "merged: A and B are the same"
    two = {"a": ("linear", W22, None, *ADAPTER), "b": ("linear", W22.clone(), None, *ADAPTER)}
    yield call(two, frozen=["a"]), "an adapter that does not train is one, too"
    halves = (x.bfloat16() for x in ADAPTER[:2])
    yield call({"fc": ("linear", W22.bfloat16(), None, *halves, 0.5)}), "bfloat16 stays bfloat16"


NAMED = "{name: tensor.detach()"

for says, edit in {
    "The base model's weights are in your state, too. "
    "Then the file is as large as the model; it is to hold A and B alone.": replace(
        "    return tensors",
        "    base = {n: p.detach() for n, p in model.named_parameters() if '.lora_' not in n}\n"
        "    return tensors | {f'{PEFT_PREFIX}{n}': p for n, p in base.items()}",
    ),
    "Your tensors still require a gradient: a state that is kept keeps a graph's leaves. "
    "Detach them.": replace(".detach()", ""),
    "Your names lack PEFT's prefix, base_model.model. "
    "— its loader would find none of them.": replace(
        NAMED, "{name.removeprefix(PEFT_PREFIX): tensor.detach()"
    ),
    "Your names end in lora_A and lora_B. "
    "In PEFT those are layers with a weight each: .lora_A.weight.": replace(
        NAMED, '{name.removesuffix(".weight"): tensor.detach()'
    ),
    "The adapter's name, default, is in your names. PEFT has it in memory and leaves it out of "
    "files, so that an adapter can be loaded under any name.": replace(
        NAMED, '{name.replace(".weight", ".default.weight"): tensor.detach()'
    ),
    "You save s · B. The scale is no part of the tensors: "
    "who loads them has α and r from the config, and would apply it twice.": replace(
        "    if not tensors",
        "    for name, layer in lora_layers(model):\n"
        "        tensors[f'{PEFT_PREFIX}{name}.lora_B.weight'] *= layer.scaling\n"
        "    if not tensors",
        "tensor.detach()",
        "tensor.detach().clone()",
    ),
    "For a model without adapters you return an empty state. Raise ValueError.": replace(
        "if not tensors:", "if False:"
    ),
    "You choose names that contain lora_ anywhere. "
    "A layer of the base model may be called so, too.": replace(
        "    return tensors",
        "    for name, p in model.named_parameters():\n"
        "        if 'lora_' in name and not name.endswith(('lora_A', 'lora_B')):\n"
        "            tensors[PEFT_PREFIX + name] = p.detach()\n"
        "    return tensors",
    ),
    "You choose whatever has lora_ in its name. "
    "A layer of the base model may be called so, too: ask for the adapters.": replace(
        "    return tensors",
        "    named = ((n, p.detach()) for n, p in model.named_parameters() if 'lora_' in n)\n"
        "    return {f'{PEFT_PREFIX}{n}.weight': p for n, p in named}",
    ),
    "Your tensors are float32, whatever the adapters are. They are saved as they are.": replace(
        ".detach()", ".detach().float()"
    ),
    "A and B have changed places.": replace(
        NAMED, "{name.translate({65: 66, 66: 65}): tensor.detach()"
    ),
}.items():
    lora_state_dict.mistake(says, edit)

lora_state_dict.mistake(
    "You leave out adapters that are frozen. They are adapters all the same: go by `lora_layers`, or by the "
    "names, and not by what trains.",
    replace("in _lora_tensors(model)}", "in _lora_tensors(model) if tensor.requires_grad}"),
)
for named in ("n + '.weight'", "n.removesuffix('.weight') + '.weight'"):
    lora_state_dict.mistake(
        "You collect whatever requires a gradient. Another trained layer, a head say, is no adapter, "
        "and an adapter that is frozen is still one.",
        replace(
            "    if not tensors",
            "    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]\n"
            f"    tensors = {{PEFT_PREFIX + {named}: p.detach() for n, p in trained}}\n"
            "    if not tensors",
        ),
    )


@lora_state_dict.alternative("from named_parameters, by the end of the name, as copies")
def _(model):
    found = {
        "base_model.model." + name + ".weight": p.detach().clone()
        for name, p in model.named_parameters()
        if name.split(".")[-1] in ("lora_A", "lora_B")
    }
    if len(found) == 0:
        raise ValueError("none")
    return found


# ------------------------------------------------------------------------------ masked_instruction_loss

masked_instruction_loss = Exercise(
    lora.masked_instruction_loss,
    title="Loss of the answer alone",
    difficulty=2,
    minutes=20,
    points=3,
    gradients=("logits",),
    length=cancelling,
    hints=(
        "The logits after position t say what comes at t + 1: which logits go with ids[:, 1:]?",
        "Write the targets' positions as `torch.arange(1, T)`. Which of them lie in the answer, for each "
        "sequence?",
        "`F.cross_entropy` leaves out targets of −100, and its mean is over the others.",
        ("edge cases", "Which tokens does the shortest prompt, of one token, leave?"),
        ("contracts", "Compare positions with `prompt_lengths[:, None]`: all sequences at once."),
    ),
)


def chance(*logits):
    """Logits whose softmax is easy: for each position the index of a sure token, or None for even."""
    rows = [[0.0, 0.0] if i is None else [200.0 * (i == j) for j in range(2)] for i in logits]
    return torch.tensor([rows])


@masked_instruction_loss.by_hand
def _():
    even = torch.zeros(2, 3, 4)
    ids = torch.tensor([[0, 1, 2], [3, 2, 1]])
    one, three = torch.tensor([1, 1]), torch.tensor([3, 3])
    yield call(even, ids, one, three), torch.tensor(math.log(4.0))
    # Sure and right of the prompt, undecided of the answer's one token.
    yield (
        call(chance(1, None, 0), torch.tensor([[0, 1, 1]]), torch.tensor([2]), torch.tensor([3])),
        torch.tensor(math.log(2.0)),
    )


@masked_instruction_loss.cases(16)
def _(draw):
    B, T, V = draw(st.integers(1, 4)), draw(st.integers(4, 8)), draw(st.integers(3, 6))
    prompts = [draw(st.integers(1, T - 2)) for _ in range(B)]
    ends = [draw(st.integers(p + 1, T)) for p in prompts]
    (logits,) = several(draw, draw(st.sampled_from([F32, BF16])), (B, T, V))
    ids = draw(draws.indices((B, T), V))
    yield call(logits, ids, torch.tensor(prompts), torch.tensor(ends))


@masked_instruction_loss.edge
def _():
    logits = normal(2, 6, 5) * 3
    ids = torch.tensor([[0, 1, 0, 3, 0, 0], [4, 0, 0, 2, 1, 0]])
    n = torch.tensor
    yield call(logits, ids, n([1, 1]), n([6, 6])), "no padding, the shortest prompts"
    yield call(logits, ids, n([5, 1]), n([6, 6])), "answers of very different lengths"
    yield call(logits, ids, n([2, 4]), n([5, 4])), "one of the answers is empty"
    yield call(logits, ids, n([6, 6]), n([6, 6])), "no answer at all: an error"
    yield call(logits, ids, n([3, 2]), n([3, 2])), "nothing but padding after the prompts: an error"
    yield call(logits[:, :2], ids[:, :2], n([1, 1]), n([2, 2])), "one token each"
    wide = draws.scattered(normal(2, 6, 5))
    yield call(wide, ids, n([2, 1]), n([5, 3])), "logits that are not contiguous"
    yield call(logits, ids.int(), n([2, 1]).int(), n([5, 3]).int()), "ids and lengths in int32"
    yield call(logits, ids.byte(), n([2, 1]), n([5, 3])), "ids in uint8"
    yield call(logits.double(), ids, n([2, 1]), n([5, 3])), "float64 logits: the loss is float32"
    yield call(logits * 100, ids, n([2, 1]), n([5, 3])), "very sure logits"


IN_PROMPT, PAST_END = "(position < prompt_lengths[:, None])", "(position >= lengths[:, None])"
LEFT_OUT = "masked_fill(~answer"
MEAN = "F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), targets.flatten())"
EACH = 'F.cross_entropy(logits[:, :-1].float().mT, targets, reduction="none")'

for says, edit in {
    "The prompts' tokens are in your loss, too: "
    "the model is trained to write the questions.": replace(LEFT_OUT, f"masked_fill({PAST_END}"),
    "The padding is in your loss, too: "
    "the model is trained to write nothing after nothing.": replace(
        LEFT_OUT, f"masked_fill({IN_PROMPT}"
    ),
    "You compare the logits after position t with the token at t, which the model has just read. "
    "They are its guess of the token at t + 1.": replace(
        "torch.arange(1, ", "torch.arange(", "ids[:, 1:]", "ids", "logits[:, :-1]", "logits"
    ),
    "The last token of each prompt is in your loss. "
    "The mask is about the token that is predicted, not the position that predicts it.": replace(
        LEFT_OUT, f"masked_fill((position + 1 < prompt_lengths[:, None]) | {PAST_END}"
    ),
    "The first token of the padding is in your loss: "
    "the answer ends before position lengths[b].": replace(
        LEFT_OUT, f"masked_fill({IN_PROMPT} | (position > lengths[:, None])"
    ),
    "You take the mean of each sequence, then the mean of those: a token of a short answer then "
    "counts more than one of a long answer. Every answer token of the batch counts the same.": replace(
        MEAN, f"({EACH}.sum(1) / answer.sum(1))[answer.any(1)].mean()"
    ),
    "You divide by all positions, masked ones too: "
    "the more padding, the smaller the loss and the step.": replace(MEAN, f"{EACH}.mean()"),
    "You return the sum. The loss is the mean over the answers' tokens.": replace(
        MEAN, f"{EACH}.sum()"
    ),
    "You compute in the logits' own dtype: bfloat16 keeps three digits of a loss. "
    "Take float32.": replace(".float()", ""),
    "You take token 0 for padding wherever it stands. "
    "The lengths say where padding is; a 0 inside an answer is a token like any other.": replace(
        LEFT_OUT, f"{LEFT_OUT} | (ids[:, 1:] == 0)"
    ),
    "Without a single answer token you return NaN, 0 / 0, and one step with it ruins the model. "
    "Raise ValueError.": replace("if not answer.any():", "if False:"),
    "You raise as soon as one sequence has no answer. It adds nothing; only where no sequence has one is there "
    "nothing to take the mean of.": replace("if not answer.any():", "if not answer.any(1).all():"),
    "Logits and tokens are shifted the wrong way: "
    "the logits at t are compared with the token at t − 1.": replace(
        "ids[:, 1:]", "ids[:, :-1]", "logits[:, :-1]", "logits[:, 1:]"
    ),
    "You take lengths[b] for the answer's own length. "
    "The answer ends at position lengths[b], prompt included.": replace(
        LEFT_OUT, f"masked_fill({IN_PROMPT} | (position >= (prompt_lengths + lengths)[:, None])"
    ),
    "Targets of int32 are refused by F.cross_entropy: ids.long().": replace(".long()", ""),
    "You write −100 into the ids as they come. uint8 has no −100, it holds 156 then, which is a "
    "token like any other: ids.long() first.": replace(
        ".long().masked_fill(~answer, -100)", ".masked_fill(~answer, -100).long()"
    ),
    "Your loss of float64 logits is float64. It is float32, whatever the logits are.": replace(
        ".float()", ".to(torch.promote_types(logits.dtype, torch.float32))"
    ),
}.items():
    masked_instruction_loss.mistake(says, edit)


for late in (
    "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten()).float()",
    "F.cross_entropy(logits[:, :-1][answer], ids[:, 1:][answer].long()).float()",
    'F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), reduction="none").float().sum()'
    " / answer.sum()",
):
    masked_instruction_loss.mistake(
        "You compute in the logits' own dtype and take float32 afterwards: by then bfloat16 has cut each loss "
        "to three digits. Cast the logits.",
        replace(MEAN, late),
    )

AT_START, AT_END = "position >= prompt_lengths[:, None]", "position < lengths[:, None]"

# Each as it comes where an answer has one token: NaN, or an error where the wrong mask is asked.
for says, edit, left_out in (
    (
        "The first token of each answer is missing from your loss. It is predicted from the prompt's "
        "last position, and is the one that decides most.",
        replace(AT_START, "position > prompt_lengths[:, None]"),
        "~answer | (position == prompt_lengths[:, None])",
    ),
    (
        "The last token of each answer, often the one that says it ends, is missing from your loss.",
        replace(AT_END, "position < lengths[:, None] - 1"),
        "~answer | (position == lengths[:, None] - 1)",
    ),
    (
        "The mask is that of the position that predicts, so both its ends are one late. Mask by the "
        "token that is predicted, at 1 … T − 1.",
        replace("torch.arange(1, ids.size(1)", "torch.arange(ids.size(1) - 1"),
        "(position <= prompt_lengths[:, None]) | (position > lengths[:, None])",
    ),
):
    masked_instruction_loss.mistake(says, edit)
    masked_instruction_loss.mistake(says, replace("~answer", left_out))


@masked_instruction_loss.mistake(
    "Your loop goes through the sequences one by one; one comparison with `prompt_lengths[:, None]` "
    "masks all of them.",
    cost=True,
)
def _(logits, ids, prompt_lengths, lengths):
    picked, targets = [], []
    for b in range(len(ids)):
        p, n = int(prompt_lengths[b]), int(lengths[b])
        picked.append(logits[b, p - 1 : max(n - 1, p - 1)].float())
        targets.append(ids[b, p : max(n, p)].long())
    if not sum(map(len, targets)):
        raise ValueError
    return F.cross_entropy(torch.cat(picked), torch.cat(targets))


@masked_instruction_loss.alternative("log_softmax, gather and a boolean mask")
def _(logits, ids, prompt_lengths, lengths):
    T = ids.shape[1]
    keep = torch.arange(T)[None].ge(prompt_lengths[:, None]) & torch.arange(T)[None].lt(
        lengths[:, None]
    )
    keep = keep[:, 1:]
    if keep.sum() == 0:
        raise ValueError("nothing to learn")
    logp = logits.float().log_softmax(-1)[:, :-1]
    return -logp.gather(-1, ids[:, 1:, None].long())[..., 0][keep].mean()


@masked_instruction_loss.alternative("weights of one and zero")
def _(logits, ids, prompt_lengths, lengths):
    t = torch.arange(ids.size(1) - 1) + 1
    weight = ((t >= prompt_lengths.unsqueeze(1)) * (t < lengths.unsqueeze(1))).float()
    if weight.max() == 0:
        raise ValueError
    each = F.cross_entropy(logits[:, :-1].float().mT, ids[:, 1:].long(), reduction="none")
    return (each * weight).sum() / weight.sum()


def batch_of(B):
    ids = torch.arange(B * 6).view(B, 6) % 5
    return call(normal(B, 6, 5), ids, torch.full((B,), 2), torch.full((B,), 5))


masked_instruction_loss.contract(
    contracts.constant_kernels([batch_of(2), batch_of(8)], says="no Python loop over the sequences")
)

masked_instruction_loss.equivalent(
    "masked_instruction_loss: `torch.arange(1, ids.size(1), device=ids.device)` → "
    "`torch.arange(1, ids.size(1))`",
    because="every case is on the CPU, where a new tensor is made anyhow; a case on a GPU would tell "
    "them apart, and no verdict may depend on there being one.",
)


# ------------------------------------------------------------------------------ nf4_quantize

nf4_quantize = Exercise(
    lora.nf4_quantize,
    title="Four bits a weight",
    difficulty=3,
    minutes=30,
    points=4,
    formats={"uint8": "#04x"},
    hints=(
        "Pad the flattened x with zeros to whole blocks, and view it as (blocks, block_size).",
        "The nearest of sorted levels: `torch.bucketize` with the midpoints between neighbours, or an "
        "argmin over distances.",
        "Two codes a byte: `codes[::2] << 4 | codes[1::2]`, both uint8.",
        (
            "edge cases",
            "What is 0 / 0? A block of zeros has the scale 0, and its numbers zero's code.",
        ),
        (
            "edge cases",
            "An odd last code is paired with zero's code. Which of the sixteen is zero?",
        ),
    ),
)


@nf4_quantize.by_hand
def _():
    x = torch.tensor([2.0, -2.0, 0.0, 1.1])  # codes 15, 0, 7; 0.55 is nearest to 0.5626, code 13
    yield call(x, 4), (torch.tensor([0xF0, 0x7D], dtype=torch.uint8), torch.tensor([2.0]))
    yield (
        call(torch.tensor([1.0, 0.0, -8.0, 8.0]), 2),
        (torch.tensor([0xF7, 0x0F], dtype=torch.uint8), torch.tensor([1.0, 8.0])),
    )


@nf4_quantize.cases(16)
def _(draw):
    shape = draw(st.sampled_from([(8,), (3, 7), (2, 3, 5), (4, 16), (33,), (1, 1)]))
    block = draw(st.sampled_from([2, 4, 8, 64]))
    (x,) = several(draw, draw(st.sampled_from([F32, BF16])), shape)
    yield call(x * draw(st.sampled_from([1.0, 0.02, 30.0])), block)


@nf4_quantize.edge
def _():
    yield call(torch.zeros(4), 2), "zeros alone"
    yield call(torch.cat([torch.zeros(2), torch.ones(2)]), 2), "one block of zeros"
    yield call(torch.empty(0), 4), "empty"
    yield call(normal(64 * 2 + 1)), "64 is the default; the last block holds one number"
    yield call(normal(6, 5).T, 4), "row-major order of what is shown, not of the storage"
    yield call(draws.scattered(normal(3, 4, 5)), 4), "not contiguous: no view flattens it"
    yield call(normal(5), 3), "an odd block: an error"
    yield call(normal(5), 0), "an empty block: an error"
    yield call(normal(5), 1), "a block of one: an error"
    yield call(normal(4), -2), "a negative block: an error"
    yield call(lora.NF4 * 3, 16), "numbers that are on the grid"
    yield call(-normal(8).abs() - 0.1, 4), "negative numbers alone"
    yield call(normal(8, dtype=BF16), 4), "bfloat16: the scales are float32"
    yield call(normal(64, 64, dtype=BF16)), "bfloat16, divided in float32"
    yield call(normal(8, dtype=F64), 4), "float64: the scales are float32"
    yield call(torch.tensor([1e-30, 2e-30, 1e30, -3e30]), 2), "very small and very large"


LARGEST, SAFE = "blocks.abs().amax(dim=1)", "torch.where(scales == 0, 1.0, scales)"
CUT = "code = code[: x.numel() + x.numel() % 2]"
BYTE = "code[::2] << 4 | code[1::2]"

for says, edit in {
    "You divide [−1, 1] into sixteen equal steps. "
    "NF4's levels are `NF4`: quantiles of a normal distribution, dense where weights are.": replace(
        "NF4.to(x.device)", "torch.linspace(-1, 1, 16)"
    ),
    "You take one scale for the whole tensor, so one large weight makes every other coarse. "
    "Each block has its own.": replace(
        LARGEST, f"{LARGEST}\n    scales[:] = max(scales, default=0)"
    ),
    "The two codes of a byte are swapped: the first belongs in the high half.": replace(
        BYTE, "code[1::2] << 4 | code[::2]"
    ),
    "You take the level below each number, not the nearest one: "
    "every weight moves downwards.": replace(
        "(levels[1:] + levels[:-1]) / 2", "levels[1:], right=True"
    ),
    "You take the level above each number, not the nearest one: "
    "every weight moves upwards.": replace("(levels[1:] + levels[:-1]) / 2", "levels[:-1]"),
    "Your scale is the largest number of a block, not the largest magnitude: "
    "blocks whose extreme is negative are cut off.": replace(LARGEST, "blocks.amax(dim=1)"),
    "Your scale is a block's root mean square. "
    "It is its largest magnitude, so that nothing lies beyond ±1.": replace(
        LARGEST, "blocks.pow(2).mean(dim=1).sqrt()"
    ),
    "A block of zeros gives 0 / 0, NaN, and NaN's place is after the last level: "
    "its zeros come back as anything once the scale is not exactly 0. Divide by 1 there.": replace(
        SAFE, "scales"
    ),
    "You return the 1 by which you divide a block of zeros. Its scale is 0.": replace(
        f"{BYTE}, scales", f"{BYTE}, {SAFE}"
    ),
    "An odd last code is paired with code 0, which stands for −1. Zero's code is 7.": replace(
        CUT, "code = F.pad(code[: x.numel()], (0, x.numel() % 2))"
    ),
    "An odd block size is an error, and one below 2, too: raise ValueError.": replace(
        "if block_size <= 0 or block_size % 2:", "if False:"
    ),
    "You do not divide by the scale before you look for the nearest level: "
    "what lies beyond ±1 is cut off.": replace(f"blocks / {SAFE}[:, None]", "blocks"),
    "The scales have x's dtype. They are float32 whatever x is.": replace(
        f"{BYTE}, scales", f"{BYTE}, scales.to(x.dtype)"
    ),
    "float64 stays float64 with you, and so do its scales. They are float32 whatever x is.": replace(
        "x.flatten().float()", "x.flatten().to(torch.promote_types(x.dtype, torch.float32))"
    ),
    "One code a byte, the other half empty: eight bits a weight, not four. "
    "Put two in each.": replace(f"return {BYTE}", "return code[: x.numel()]"),
    "The bytes are not uint8: `torch.bucketize` and `argmin` give int64.": replace(
        ".to(torch.uint8)", ""
    ),
    "You divide in x's own dtype: "
    "in bfloat16 some numbers are rounded past the middle of two levels.": replace(
        f"blocks / {SAFE}[:, None]", f"(blocks.to(x.dtype) / {SAFE}[:, None].to(x.dtype)).float()"
    ),
    "x is flattened by `view`, which no layout but a contiguous one is sure to allow. "
    "Take `reshape`.": replace("x.flatten()", "x.view(-1)"),
}.items():
    nf4_quantize.mistake(says, edit)


for bound in ("1e-8", "1e-12"):
    nf4_quantize.mistake(
        "You keep the scales away from 0 by a bound (clamp, max), and return the bound: a block of zeros has the "
        "scale 0, and one of very small numbers its own.",
        replace(LARGEST, f"{LARGEST}.clamp(min={bound})"),
    )

nf4_quantize.mistake(
    "A block of zeros gives 0 / 0, NaN, and `argmin` of distances that are NaN is 0, the code of −1. "
    "Divide by 1 there.",
    replace(
        SAFE,
        "scales",
        "torch.bucketize(unit, (levels[1:] + levels[:-1]) / 2)",
        "(unit[..., None] - levels).abs().argmin(-1)",
    ),
)


for in_memory in (
    "x.as_strided((x.numel(),), (1,))",
    "x.permute(sorted(range(x.dim()), key=x.stride, reverse=True)).flatten()",
):
    nf4_quantize.mistake(
        "You go through the numbers as they lie in memory. Blocks run in row-major order of the tensor as it "
        "is shown.",
        replace("x.flatten()", in_memory),
    )


@nf4_quantize.mistake(
    "Your loop goes through the blocks one by one. A view as (blocks, block_size) takes all of them at "
    "once.",
    cost=True,
)
def _(x, block_size=64):
    if block_size < 2 or block_size % 2:
        raise ValueError
    parts = [lora.nf4_quantize(b, block_size) for b in x.flatten().split(block_size)]
    return torch.cat([c for c, _ in parts]), torch.cat([s for _, s in parts])


@nf4_quantize.alternative("argmin over the sixteen distances, bytes by multiplication")
def _(x, block_size=64):
    if block_size < 2 or block_size % 2 == 1:
        raise ValueError("block_size")
    flat = x.reshape(-1).float()
    n = flat.numel()
    count = -(-n // block_size)
    padded = torch.zeros(count * block_size)
    padded[:n] = flat
    blocks = padded.reshape(count, block_size)
    absmax = blocks.abs().max(dim=1).values if count else torch.zeros(0)
    unit = blocks / absmax.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    code = (unit[..., None] - lora.NF4).abs().argmin(-1).reshape(-1)[: 2 * ((n + 1) // 2)]
    pairs = code.reshape(-1, 2)
    return (pairs[:, 0] * 16 + pairs[:, 1]).to(torch.uint8), absmax


nf4_quantize.contract(
    contracts.constant_kernels(
        [call(normal(64), 16), call(normal(512), 16)], says="no Python loop over the blocks"
    )
)

nf4_quantize.equivalent(
    "nf4_quantize: `blocks.abs().amax(dim=1)` → `blocks.abs().amax(dim=-1)`",
    because="blocks has two axes: the second is the last.",
)
nf4_quantize.equivalent(
    "nf4_quantize: `torch.where(scales == 0, 1.0, scales)` → `torch.where(scales == 0, 2.0, scales)`",
    because="a block whose scale is 0 holds zeros alone: divided by 1 or by 2 they are zeros.",
)
nf4_quantize.equivalent(
    "nf4_quantize: `NF4.to(x.device)` → `NF4`",
    because="every case is on the CPU, where NF4 is already; a case on a GPU would tell them apart, and "
    "no verdict may depend on there being one.",
)
nf4_quantize.equivalent(
    "nf4_quantize: `block_size <= 0` → `block_size <= 1`",
    because="1 is odd, and the other half of the condition refuses it.",
)


# ------------------------------------------------------------------------------ NF4Product

NF4Product = Exercise(
    lora.NF4Product,
    title="A product with four-bit weights",
    difficulty=3,
    minutes=30,
    points=4,
    probe=probes.nf4_product,
    length=terms,
    hints=(
        "`nf4_dequantize(codes, scales, shape, block_size)` gives W as float32; forward returns "
        "`F.linear(x, W)`.",
        "What does backward need? y = x Wᵀ, so the gradient of x is that of y times W. And W comes from codes "
        "and scales, which `ctx.save_for_backward` keeps.",
        "backward returns as many values as `apply` takes: the gradient of x, and None four times.",
        ("dtype and device", "W comes as float32. Turn it into x's dtype before the product."),
        ("contracts", "Dequantise again in backward: what is saved is codes and scales."),
    ),
)


def nf4_case(rows, d_out, d_in, block=64, dtype=F32, seed=0, scattered=False):
    """x, and a W in NF4."""
    x = normal(*rows, d_in, dtype=dtype, seed=seed)
    codes, scales = lora.nf4_quantize(normal(d_out, d_in, seed=seed + 1), block)
    return call(draws.scattered(x) if scattered else x, codes, scales, (d_out, d_in), block)


@NF4Product.by_hand
def _():
    x, codes = torch.tensor([[1.0, 10.0]]), torch.tensor([0xF0, 0x7F], dtype=torch.uint8)
    yield (  # W = [[2, -2], [0, 3]]
        call(x, codes, torch.tensor([2.0, 3.0]), (2, 2), 2),
        {"forward": torch.tensor([[-18.0, 30.0]])},
    )


@NF4Product.cases(16)
def _(draw):
    d_out, d_in = draw(draws.distinct_sizes(2))
    rows = draw(st.sampled_from([(3,), (2, 3), (1, 2, 2)]))
    dtype = draw(st.sampled_from([F32, F64]))
    block = draw(st.sampled_from([2, 4, 64]))
    yield nf4_case(rows, d_out, d_in, block, dtype, draw(st.integers(0, 99)))


@NF4Product.edge
def _():
    yield nf4_case((), 5, 3, 4), "one vector, no batch"
    yield nf4_case((0,), 5, 3, 4), "an empty batch"
    yield nf4_case((4,), 1, 1, 4), "one weight, in half a byte"
    yield nf4_case((2, 3), 4, 6, 8, BF16), "bfloat16"
    yield call(*nf4_case((2,), 3, 50).args[:-1]), "blocks of 64 unless given"
    yield nf4_case((4, 2), 5, 3, 4, scattered=True), "an input that no view flattens"
    given = nf4_case((4, 2), 5, 3, 4).args
    yield call(*given, transposed=True), "a gradient that no view flattens comes in"


TO_NUMBERS = "nf4_dequantize(codes, scales, shape, block_size).to(x.dtype)"
KEPT = "ctx.save_for_backward(codes, scales)"
AGAIN = "nf4_dequantize(codes, scales, ctx.shape, ctx.block_size).to(grad.dtype)"
THREE = "codes, scales = ctx.saved_tensors"

for says, edit in {
    "Your gradient of x is that of y times Wᵀ. y = x Wᵀ, so it is times W, (out, in).": replace(
        "grad @ W", "grad @ W.mT"
    ),
    "You keep W as an attribute of ctx: numbers, eight times as large as the codes, for every layer until "
    "backward. Save codes and scales, and dequantise again.": replace(
        "ctx.shape, ctx.block_size = shape, block_size",
        f"ctx.shape, ctx.block_size = shape, block_size\n        ctx.W = {TO_NUMBERS}",
        AGAIN,
        "ctx.W",
    ),
    "You keep codes and scales as attributes of ctx. Autograd does not watch them there: after an edit in place "
    "backward computes from other weights and says nothing. Use ctx.save_for_backward.": replace(
        KEPT, "ctx.kept = codes, scales", THREE, "codes, scales = ctx.kept"
    ),
    "You keep the scales as an attribute of ctx. Autograd does not watch them there: after an edit in place backward "
    "computes from other weights and says nothing. Save them with the codes.": replace(
        KEPT,
        "ctx.save_for_backward(codes)\n        ctx.scales = scales",
        THREE,
        "(codes,), scales = ctx.saved_tensors, ctx.scales",
    ),
    "You keep codes and scales on the class, where the next call of apply overwrites them. Each call has "
    "a ctx of its own.": replace(
        KEPT, "NF4Product.kept = codes, scales", THREE, "codes, scales = NF4Product.kept"
    ),
    "You turn x into float32, and so the product: it has x's dtype, float64 or bfloat16.": replace(
        f"F.linear(x, {TO_NUMBERS})",
        "F.linear(x.float(), nf4_dequantize(codes, scales, shape, block_size))",
    ),
    "Your forward ignores block_size and takes 64. Weights then get the scales of other blocks.": replace(
        "nf4_dequantize(codes, scales, shape, block_size)", "nf4_dequantize(codes, scales, shape)"
    ),
    "Your backward ignores block_size and takes 64. Keep it on ctx: it is no tensor.": replace(
        "nf4_dequantize(codes, scales, ctx.shape, ctx.block_size)",
        "nf4_dequantize(codes, scales, ctx.shape)",
    ),
    "You take W for (in, out). Its shape is that of nn.Linear's, (out, in), and the product is x Wᵀ.": replace(
        f"F.linear(x, {TO_NUMBERS})",
        f"x @ {TO_NUMBERS.replace('shape', 'shape[::-1]')}",
        f"W = {AGAIN}",
        f"W = {AGAIN.replace('ctx.shape', 'ctx.shape[::-1]')}.mT",
    ),
    "You leave the scales out: a code stands for a level times the scale of its block.": replace(
        TO_NUMBERS, TO_NUMBERS.replace("scales", "torch.ones_like(scales)")
    ),
    "backward returns one value. It returns one for each argument of apply: the gradient of x, and None for the "
    "other four.": replace("return grad @ W, None, None, None, None", "return grad @ W"),
    "Nothing flows to x: your backward returns None for it. The adapters of the layers below get their "
    "gradient through here.": replace("return grad @ W, None", "return None, None"),
    "Your backward does not multiply by the gradient that comes in: it is a vector-Jacobian product.": replace(
        "return grad @ W, ", "return torch.ones_like(grad) @ W, "
    ),
}.items():
    NF4Product.mistake(says, edit)

NF4Product.mistake(
    "You keep W on ctx, and neither codes nor scales: numbers, eight times as large as the codes, for every layer "
    "until backward. Save codes and scales, and dequantise again.",
    replace(
        KEPT,
        "pass",
        "ctx.shape, ctx.block_size = shape, block_size",
        f"ctx.W = {TO_NUMBERS}",
        THREE,
        "W = ctx.W",
        f"W = {AGAIN}",
        "W = W.to(grad.dtype)",
    ),
)
NF4Product.mistake(
    "You save W as numbers: four bytes a weight until backward, for every layer, where the codes are half a "
    "byte. Save codes and scales, and dequantise again.",
    replace(
        KEPT,
        "ctx.save_for_backward(codes, scales, nf4_dequantize(codes, scales, shape, block_size))",
        THREE,
        "codes, scales, W = ctx.saved_tensors",
        f"W = {AGAIN}",
        "W = W.to(grad.dtype)",
    ),
    cost=True,
)
NF4Product.mistake(
    "You save x as well. It is what W's own gradient would need, and W has none.",
    replace(KEPT, "ctx.save_for_backward(codes, scales, x)", THREE, f"{THREE}[:2]"),
    cost=True,
)


for at in (
    (TO_NUMBERS, "nf4_dequantize(codes, scales, shape, block_size)"),
    (AGAIN, "nf4_dequantize(codes, scales, ctx.shape, ctx.block_size)"),
):
    NF4Product.mistake(
        "W comes as float32, and x need not be, nor the gradient that comes in: turn W into their dtype "
        "before the product.",
        replace(*at),
    )


NF4Product.mistake(
    "You flatten x with view, which takes only what lies in one block. x need not be contiguous: "
    "reshape copies where it must, and F.linear takes any number of axes.",
    replace(
        f"F.linear(x, {TO_NUMBERS})",
        f"F.linear(x.view(-1, x.size(-1)), {TO_NUMBERS}).view(*x.shape[:-1], shape[0])",
    ),
)
NF4Product.mistake(
    "You flatten the gradient that comes in with view, which takes only what lies in one block. It "
    "need not be contiguous: reshape copies where it must, and @ takes any number of axes.",
    replace("grad @ W", "(grad.view(-1, grad.size(-1)) @ W).view(*grad.shape[:-1], -1)"),
)


@NF4Product.alternative("setup_context, and a product by einsum")
class _(torch.autograd.Function):
    @staticmethod
    def forward(x, codes, scales, shape, block_size=64):
        W = lora.nf4_dequantize(codes, scales, shape, block_size)
        return torch.einsum("...i,oi->...o", x, W.to(x.dtype))

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, codes, scales, ctx.shape, ctx.block_size = inputs
        ctx.save_for_backward(codes, scales)

    @staticmethod
    def backward(ctx, grad):
        W = lora.nf4_dequantize(*ctx.saved_tensors, ctx.shape, ctx.block_size)
        return torch.einsum("...o,oi->...i", grad, W.to(grad.dtype)), None, None, None, None


def _looked_up(codes, scales, shape, block_size, dtype):
    pairs = torch.stack((codes // 16, codes % 16), dim=-1).reshape(-1).long()
    size = shape[0] * shape[1]
    block = torch.arange(size) // block_size
    return (lora.NF4[pairs[:size]] * scales[block]).reshape(shape).to(dtype)


@NF4Product.alternative("levels looked up by hand, the product as one with a column")
class _LookedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, codes, scales, shape, block_size=64):
        ctx.save_for_backward(codes, scales)
        ctx.rest = shape, block_size
        return x @ _looked_up(codes, scales, shape, block_size, x.dtype).mT

    @staticmethod
    def backward(ctx, grad):
        W = _looked_up(*ctx.saved_tensors, *ctx.rest, grad.dtype)
        return torch.matmul(grad, W), None, None, None, None


def leaf(x):
    """The tensor, as one that requires a gradient."""
    return x.requires_grad_()


def saved_case():
    x, *rest = nf4_case((64,), 48, 80).args
    return call(leaf(x), *rest)


NF4Product.contract(
    contracts.saved(
        [saved_case()],
        limit=lambda case: case.args[1].numel() + 4 * case.args[2].numel() + 64,
        says="only codes and scales are saved for backward",
        prepare=prepared.applied,
    )
)


# ------------------------------------------------------------------------------ multi_adapter_forward

multi_adapter_forward = Exercise(
    lora.multi_adapter_forward,
    title="A batch of many adapters",
    difficulty=2,
    minutes=20,
    points=3,
    gradients=("x", "A", "B"),
    length=terms,
    hints=(
        "`A[adapter]` gathers an A for each row: (B, r, in). What shape has the same of `B`?",
        "Two batched products: `torch.bmm(x, A[…].mT)` is (B, T, r), and the other goes on from there.",
        "A scale for each row: `scaling[…][:, None, None]`.",
        ("edge cases", "What is A[-1]? The last adapter. Which number makes an update vanish?"),
    ),
)


def adapters_case(n, rows, T, d_in, d_out, r, chosen, dtype=F32, seed=0, scattered=False):
    """A batch, n adapters, and which row has which."""
    x = normal(rows, T, d_in, dtype=dtype, seed=seed)
    return call(
        draws.scattered(x) if scattered else x,
        normal(n, r, d_in, dtype=dtype, seed=seed + 1),
        normal(n, d_out, r, dtype=dtype, seed=seed + 2),
        torch.arange(1, n + 1) / 2,
        torch.tensor(chosen),
    )


@multi_adapter_forward.by_hand
def _():
    x = torch.tensor([[[1.0, 10.0]], [[1.0, 10.0]], [[1.0, 10.0]]])
    A = torch.tensor([[[1.0, 1.0]], [[1.0, 0.0]]])
    B = torch.tensor([[[1.0]], [[5.0]]])
    yield (
        call(x, A, B, torch.tensor([2.0, 3.0]), torch.tensor([1, 0, -1])),
        torch.tensor([[[15.0]], [[22.0]], [[0.0]]]),
    )


@multi_adapter_forward.cases(16)
def _(draw):
    n, rows, T, d_in, d_out, r = draw(draws.distinct_sizes(6, 1, 7))
    chosen = draw(st.lists(st.integers(-1, n - 1), min_size=rows, max_size=rows))
    dtype = draw(st.sampled_from([F32, F64]))
    yield adapters_case(n, rows, T, d_in, d_out, r, chosen, dtype, draw(st.integers(0, 99)))


@multi_adapter_forward.edge
def _():
    yield adapters_case(3, 2, 4, 3, 5, 2, [-1, -1]), "no row has one"
    yield adapters_case(1, 3, 2, 4, 5, 2, [0, 0, 0]), "one adapter for all rows"
    yield adapters_case(3, 3, 3, 3, 3, 3, [2, -1, 0]), "all sizes alike"
    yield adapters_case(2, 2, 0, 3, 5, 2, [1, 0]), "no positions"
    yield adapters_case(2, 3, 4, 3, 5, 2, [1, 0, -1], BF16), "bfloat16, the scales float32"
    yield adapters_case(2, 3, 4, 3, 5, 2, [1, 0, -1], scattered=True), "not contiguous"
    x, A, B, scaling, chosen = adapters_case(3, 3, 2, 4, 5, 2, [2, 0, -1]).args
    yield call(x, A, B, scaling, chosen.int()), "int32"


CHOSEN, HOLDS = "adapter.clamp(min=0)", "scaling[chosen].masked_fill(adapter < 0, 0.0)"
OUT = "scale[:, None, None] * torch.bmm(h, B[chosen].mT)"

for says, edit in {
    "−1 counts from the end: a row without an adapter gets the last one's update. It gets none.": replace(
        CHOSEN, "adapter", HOLDS, "scaling[chosen]"
    ),
    "A row whose adapter is −1 gets adapter 0's update. It gets none: scale it by 0.": replace(
        HOLDS, "scaling[chosen]"
    ),
    "You leave the scale out. Each adapter has its own s.": replace(
        HOLDS, "torch.ones_like(scaling)[chosen].masked_fill(adapter < 0, 0.0)"
    ),
    "You take one adapter's scale for all rows. Gather `scaling` by row as well.": replace(
        HOLDS, "scaling[0].expand(len(chosen)).masked_fill(adapter < 0, 0.0)"
    ),
    "All rows get the first row's adapter.": replace(CHOSEN, f"{CHOSEN}[:1].expand(len(x))"),
    "You gather A by row, but take B of adapter 0 for all.": replace(
        "B[chosen]", "B[:1].expand(len(x), -1, -1)"
    ),
    "You gather B by row, but take A of adapter 0 for all.": replace(
        "A[chosen]", "A[:1].expand(len(x), -1, -1)"
    ),
    "You add up the updates of all adapters. A row has one.": replace(
        OUT,
        "torch.einsum('bti,nri,nor,n->bto', x, A, B, scaling.to(x.dtype)) * (adapter >= 0)[:, None, None]",
    ),
    "The scales are float32 and make a bfloat16 result float32. It has x's dtype.": replace(
        ".to(x.dtype)", ""
    ),
    "Adapter 0 counts as none with you. None is −1 alone: a row is without an adapter where its number is "
    "below 0.": replace(HOLDS, HOLDS.replace("adapter < 0", "adapter < 1")),
    "You write into the caller's `adapter` to make −1 an index. The next layer, and the next batch, are then "
    "told that the row has adapter 0: make a new tensor, with `clamp` or `where`.": replace(
        f"chosen = {CHOSEN}",
        "none = adapter < 0\n    chosen = adapter.clamp_(min=0)",
        "adapter < 0, 0.0",
        "none, 0.0",
    ),
    "The scale is applied twice: to what enters and to what leaves.": replace(
        "torch.bmm(x, A[chosen].mT)",
        "torch.bmm(x, A[chosen].mT) * scaling[chosen][:, None, None].to(x.dtype)",
    ),
    "You add x to the update. The base layer's answer is not in the result, and x is no answer.": replace(
        OUT, f"{OUT} + x.sum()"
    ),
}.items():
    multi_adapter_forward.mistake(says, edit)

multi_adapter_forward.mistake(
    "Your values are right, but you multiply B A out, an (out, in) tensor for each row. (x Aᵀ) Bᵀ passes "
    "through r numbers a position.",
    replace(OUT, "scale[:, None, None] * torch.bmm(x, (B[chosen] @ A[chosen]).mT)"),
    cost=True,
)


@multi_adapter_forward.mistake(
    "Your loop goes through the rows one by one. Gather A and B by row; two batched products do the rest.",
    cost=True,
)
def _(x, A, B, scaling, adapter):
    rows = []
    for row, i in zip(x, adapter.tolist(), strict=True):
        s = float(scaling[i]) if i >= 0 else 0.0
        rows.append(s * (row @ A[i].mT @ B[i].mT))
    return torch.stack(rows)


@multi_adapter_forward.alternative("einsum over what is gathered")
def _(x, A, B, scaling, adapter):
    some = (adapter >= 0).to(x.dtype)
    index = torch.where(adapter < 0, 0, adapter)
    s = scaling.to(x.dtype).index_select(0, index) * some
    h = torch.einsum("bti,bri->btr", x, A.index_select(0, index))
    return torch.einsum("btr,bor,b->bto", h, B.index_select(0, index), s)


@multi_adapter_forward.alternative("an adapter of zeros at the end, which -1 finds")
def _(x, A, B, scaling, adapter):
    A, B = (torch.cat([one, torch.zeros_like(one[:1])]) for one in (A, B))
    s = torch.cat([scaling, torch.zeros_like(scaling[:1])])[adapter].to(x.dtype)
    return (x @ A[adapter].mT) @ (s[:, None, None] * B[adapter]).mT


def many_rows(rows):
    return adapters_case(3, rows, 4, 24, 20, 2, [i % 4 - 1 for i in range(rows)])


multi_adapter_forward.contract(
    contracts.constant_kernels([many_rows(2), many_rows(8)], says="no Python loop over the rows")
)
multi_adapter_forward.contract(
    contracts.largest_tensor(
        [adapters_case(3, 8, 4, 96, 80, 2, [0, 1, 2, -1, 0, 1, 2, -1])],
        limit=8 * 96 * 80 * 4 // 2,
        says="no (out, in) tensor for each row",
    )
)


for index in ("`adapter.clamp(min=0)` → `adapter`", "`min=0` → `min=-1`"):
    multi_adapter_forward.equivalent(
        f"multi_adapter_forward: {index}",
        because="-1 then gathers the last adapter, whose update is multiplied by zero as adapter 0's is.",
    )


# ------------------------------------------------------------------------------ dpo_loss

dpo_loss = Exercise(
    lora.dpo_loss,
    title="The loss of preferences",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.preferred,
    hints=(
        "How much likelier has the policy made the chosen answer than the reference has it? A difference of "
        "logarithms. The same for the rejected one.",
        "margin = β · ((policy_chosen − policy_rejected) − (reference_chosen − reference_rejected)).",
        "−ln σ(m) as log(sigmoid(m)) is infinite for m = −200. Which function of `torch.nn.functional` is not?",
        ("gradients", "The reference does not train: detach what comes from it."),
        ("edge cases", "No pair, and a β that is not positive, are errors."),
    ),
)


@dpo_loss.by_hand
def _():
    one = [torch.tensor([x]) for x in (-10.0, -12.0, -11.0, -11.0)]
    yield (
        call(*one, 0.5),  # margin = 0.5 · (2 − 0) = 1; −ln σ(1) = 0.3133; σ(−1) = 0.2689
        {
            "loss": torch.tensor(0.31326169),
            "margins": torch.tensor([1.0]),
            "gradient of `policy_chosen`": torch.tensor([-0.5 * 0.26894142]),
            "gradient of `policy_rejected`": torch.tensor([0.5 * 0.26894142]),
        },
    )
    same = [torch.tensor([-3.0, -5.0]), torch.tensor([-4.0, -4.0])] * 2
    yield call(*same), {"loss": torch.tensor(math.log(2)), "margins": torch.zeros(2)}


@dpo_loss.cases(16)
def _(draw):
    pairs = draw(draws.sizes(1, 5))
    dtype, scale = draw(st.sampled_from([(F32, 1.0), (F32, 9.0), (F64, 1.0)]))
    given = several(draw, dtype, *[(pairs,)] * 4)
    yield call(*[scale * x - 30 for x in given], draw(st.sampled_from([0.1, 0.5, 1.0])))


@dpo_loss.edge
def _():
    def four(n, dtype=F32, far=0.0):
        given = [normal(n, dtype=dtype, seed=i) - 20 for i in range(4)]
        return [given[0] - far, *given[1:]]

    yield call(*four(3)), "β is 0.1 unless given"
    yield call(*four(2, far=500.0), 1.0), "a margin of −500: the loss is finite"
    yield call(*four(2, far=-500.0), 1.0), "a margin of 500"
    yield call(*four(2, far=-30.0), 1.0), "margins of about 30: the loss is tiny, and not 0"
    yield call(*four(0), 0.1), "no pair: an error"
    yield call(*four(2), 0.0), "β = 0: an error"
    yield call(*four(2), -0.1), "a negative β: an error"
    apart = [x - far for x, far in zip(four(3), (-20, 280, -20, 280), strict=True)]
    yield call(*[x.to(BF16) for x in apart], 0.5), "bfloat16 is computed in float32"
    yield call(*[x[::2] for x in four(6)], 0.5), "every second number of a longer tensor"


MARGIN, LOSS = "beta * (policy - reference)", "-F.logsigmoid(margins).mean()"
REFERENCE = "reference_chosen.detach().to(wide) - reference_rejected.detach()"

for says, edit in {
    "The sign within σ is turned: you make the rejected answer likelier.": replace(
        LOSS, "-F.logsigmoid(-margins).mean()"
    ),
    "You maximise: the loss is minus the mean of ln σ.": replace(
        LOSS, "F.logsigmoid(margins).mean()"
    ),
    "You leave β out. It is in the margin, inside of σ.": replace(MARGIN, "(policy - reference)"),
    "β stands before the logarithm. It belongs inside of σ: as a factor of the loss it is a learning rate only.": replace(
        MARGIN, "(policy - reference)", LOSS, "-beta * F.logsigmoid(margins).mean()"
    ),
    "You divide by β. It is a factor of the margin.": replace(
        MARGIN, "(policy - reference) / beta"
    ),
    "You leave the reference out. Without it nothing holds the policy near where it began.": replace(
        MARGIN, "beta * policy"
    ),
    "You add the reference's difference, or have its chosen and rejected swapped. Chosen less rejected is "
    "subtracted: a reward is what the policy has added.": replace(
        MARGIN, "beta * (policy + reference)"
    ),
    "β multiplies the policy's part alone; the reference's is inside the bracket as well.": replace(
        MARGIN, "beta * policy - reference"
    ),
    "You return the sum over the pairs. The loss is their mean.": replace(
        LOSS, "-F.logsigmoid(margins).sum()"
    ),
    "You take the mean of the margins first. −ln σ is not linear: take it of each pair, then the mean.": replace(
        LOSS, "-F.logsigmoid(margins.mean())"
    ),
    "You divide the loss by two: half of a sum over chosen and rejected. There is one term a pair.": replace(
        LOSS, "-F.logsigmoid(margins).mean() / 2"
    ),
    "The margins still have their graph: kept for a log, they keep the whole model's activations alive. "
    "Detach them.": replace("margins.detach()", "margins"),
    "A gradient flows into the reference. It does not train: detach its numbers.": replace(
        REFERENCE, "reference_chosen.to(wide) - reference_rejected"
    ),
    "Nothing flows through the rejected answer. Its gradient is as large as the chosen one's, with the other "
    "sign.": replace("- policy_rejected", "- policy_rejected.detach()"),
    "You compute in the arguments' own dtype. Differences of large log-probabilities lose their digits in "
    "bfloat16: go to float32 first.": replace(
        "torch.promote_types(policy_chosen.dtype, torch.float32)", "policy_chosen.dtype"
    ),
    "A β that is not positive prefers nothing, or the rejected answers: raise ValueError.": replace(
        "if beta <= 0:", "if False:"
    ),
    "Without a pair you return NaN, 0 / 0, and one step with it ruins the model. Raise ValueError.": replace(
        "if policy_chosen.numel() == 0:", "if False:"
    ),
    "The margins you return lack β.": replace("margins.detach()", "(policy - reference).detach()"),
    "This is a hinge on the margin. DPO's loss is −ln σ(margin), which never quite stops.": replace(
        LOSS, "(1 - margins).clamp(min=0).mean()"
    ),
}.items():
    dpo_loss.mistake(says, edit)


for unstable in (
    "-margins.sigmoid().log().mean()",
    "(1 + (-margins).exp()).log().mean()",
    "(-margins).exp().log1p().mean()",
):
    dpo_loss.mistake(
        "Of a very negative margin the loss is infinite and its gradient NaN: σ rounds to 0, and exp overflows. "
        "F.logsigmoid computes the logarithm in one.",
        replace(LOSS, unstable),
    )


dpo_loss.mistake(
    "You keep σ from 0 by a bound. The loss is then finite, but flat where the margin is very negative, where the "
    "gradient should be largest; and where σ rounds to 1 it is 0. F.logsigmoid computes the logarithm in one.",
    replace(LOSS, "-margins.sigmoid().clamp_min(1e-12).log().mean()"),
)
for small in ("1e-8", "1e-10", "1e-12"):
    dpo_loss.mistake(
        "You add a small number inside of the logarithm. The loss is then finite, but flat where the margin is very "
        "negative, and 0 or below where it is large. F.logsigmoid computes the logarithm in one.",
        replace(LOSS, f"-(margins.sigmoid() + {small}).log().mean()"),
    )

POLICY_SIDE = "policy_chosen.to(wide) - policy_rejected"
FIRST = "torch.zeros(len(margins), dtype=torch.long)"

for two in (
    "torch.stack([margins, torch.zeros_like(margins)], 1)",
    "beta * torch.stack([policy_chosen.to(wide) - reference_chosen.detach(), "
    "policy_rejected.to(wide) - reference_rejected.detach()], 1)",
):
    dpo_loss.mistake(
        "Cross-entropy of the two rewards is right on paper. Where the margin is large, it takes the difference of "
        "two numbers that are nearly equal, and the loss, e^−m about, is rounded to 0. F.logsigmoid of the margin "
        "keeps its digits.",
        replace(LOSS, f"F.cross_entropy({two}, {FIRST})"),
    )

dpo_loss.mistake(
    "You compute in float32 always. float64 arguments stay float64, in the loss and in the margins.",
    replace(
        "torch.promote_types(policy_chosen.dtype, torch.float32)",
        "torch.float32",
        POLICY_SIDE,
        f"{POLICY_SIDE}.to(wide)",
        REFERENCE,
        f"{REFERENCE}.to(wide)",
    ),
)

for edit in (
    replace(
        POLICY_SIDE,
        "(policy_chosen - policy_rejected).to(wide)",
        REFERENCE,
        "(reference_chosen - reference_rejected).detach().to(wide)",
    ),
    replace(
        POLICY_SIDE,
        "(policy_chosen - reference_chosen.detach()).to(wide)",
        REFERENCE,
        "(policy_rejected - reference_rejected.detach()).to(wide)",
    ),
    replace(
        POLICY_SIDE,
        "policy_chosen - reference_chosen.detach()",
        REFERENCE,
        "policy_rejected - reference_rejected.detach()",
        MARGIN,
        "beta * (policy - reference).to(wide)",
    ),
):
    dpo_loss.mistake(
        "You take the differences in the arguments' own dtype and go to float32 afterwards. In bfloat16 their digits "
        "are lost by then: convert the four first.",
        edit,
    )


@dpo_loss.alternative("softplus of the negative margin, from the two rewards")
def _(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta=0.1):
    if not beta > 0 or len(policy_chosen) == 0:
        raise ValueError("beta, or no pair")
    if policy_chosen.dtype != F64:
        policy_chosen, policy_rejected = policy_chosen.float(), policy_rejected.float()
    with torch.no_grad():
        base = reference_chosen.to(policy_chosen.dtype) - reference_rejected.to(policy_chosen.dtype)
    m = (policy_chosen - policy_rejected - base) * beta
    return F.softplus(-m).mean(), m.detach()


@dpo_loss.alternative("logaddexp with zero, pair by pair")
def _(policy_chosen, policy_rejected, reference_chosen, reference_rejected, beta=0.1):
    dtype = F64 if policy_chosen.dtype == F64 else F32
    if beta <= 0 or not policy_chosen.shape[0]:
        raise ValueError
    chosen = beta * (policy_chosen.to(dtype) - reference_chosen.to(dtype).detach())
    rejected = beta * (policy_rejected.to(dtype) - reference_rejected.to(dtype).detach())
    loss = torch.logaddexp(torch.zeros((), dtype=dtype), rejected - chosen).mean()
    return loss, (chosen - rejected).detach()


dpo_loss.equivalent(
    "dpo_loss: `torch.promote_types(policy_chosen.dtype, torch.float32)` → "
    "`torch.promote_types(torch.float32, policy_chosen.dtype)`",
    because="promotion does not depend on the order.",
)
