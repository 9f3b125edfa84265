"""Chapter 8's exercises: what each is asked on, and the mistakes it knows."""
# mypy: ignore-errors
# Most classes below are wrong on purpose, and all are called `_`.

import math

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes import prepared
from course_utils.grading.pytrees.tree import tensors
from course_utils.reference import modules

FLOATS = st.sampled_from([torch.float32, torch.float64])


def normal(*shape, dtype=torch.float32, seed=0):
    """Fixed standard normal numbers for cases without draws."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn(draw, dtype, **shapes):
    """Normal weights of these shapes by name, with dots for double underscores."""
    values = several(draw, dtype, *shapes.values())
    return {name.replace("__", "."): x for name, x in zip(shapes, values, strict=True)}


def several(draw, dtype, *shapes, scale=1.0):
    """Normal tensors of these shapes, all different, from one drawn seed."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    return [(scale * torch.randn(shape, generator=generator)).to(dtype) for shape in shapes]


def layer_weights(dtype=torch.float32, **shapes):
    """Fixed weights, neither ones nor zeros, so that one that is ignored shows."""
    names = enumerate(shapes.items(), start=11)
    return {
        name.replace("__", "."): normal(*shape, dtype=dtype, seed=i) for i, (name, shape) in names
    }


def terms(case):
    """The most terms that a sum in a case may have: a weight's gradient adds over a whole batch."""
    return max([x.numel() for x in tensors(case.args)], default=1)


def no_loop(exercise, over, *cases):
    """The contract of a module that makes as many operations for each of the cases."""
    says = f"no Python loop over the {over}"
    exercise.contract(contracts.constant_kernels(cases, says=says, prepare=prepared.module_built))


def largest_tensor(exercise, case, numbers, says):
    """The contract of a module that makes no larger tensor than so many float32 numbers."""
    promise = {"says": says, "prepare": prepared.module_built}
    exercise.contract(contracts.largest_tensor([case], limit=4 * numbers, **promise))


# ------------------------------------------------------------------------------ count_parameters

BLOCK = {"ln": ("norm", 4), "fc": ("linear", 4, 8)}
GPT = {"wte": ("embedding", 7, 4), "h": [BLOCK, BLOCK], "head": ("linear", 4, 7, False)}
"""A small model for the exercises on whole ones."""
TIED = [("wte.weight", "head.weight")]

count_parameters = Exercise(
    modules.count_parameters,
    title="Counting parameters",
    difficulty=1,
    minutes=5,
    points=1,
    probe=probes.assembled,
    hints=(
        "`module.parameters()` goes through all submodules; `p.numel()` is the size of one.",
        "The second number adds up only those with `p.requires_grad`.",
        (
            "worked by hand",
            "`parameters()` gives a tied parameter once. Does the call that you make, too?",
        ),
    ),
)


@count_parameters.by_hand
def _():
    yield call({"fc": ("linear", 3, 2)}), {"returns": (8, 8)}
    yield call({"fc": ("linear", 3, 2), "frozen": ["fc.bias"]}), {"returns": (8, 6)}
    tied = {"wte": ("embedding", 5, 3), "head": ("linear", 3, 5, False), "tied": TIED}
    yield call(tied), {"returns": (15, 15)}


@count_parameters.cases(15)
def _(draw):
    V, D, hidden = draw(draws.distinct_sizes(3))
    model = {
        "wte": ("embedding", V, D),
        "h": [
            {"ln": ("norm", D), "fc": ("linear", D, hidden), "scale": ("parameter",)}
            for _ in range(draw(draws.sizes(0, 3)))
        ],
        "bn": ("batchnorm", D),
        "head": ("linear", D, V),
    }
    if draw(st.booleans()):
        model["tied"] = TIED
    names = ["wte.weight", "head.bias", "bn.weight"]
    model["frozen"] = draw(st.lists(st.sampled_from(names), unique=True))
    yield call(model)


@count_parameters.edge
def _():
    yield call({}), "no parameters"
    yield call({"scale": ("parameter",)}), "one number, of shape ()"
    yield call({"empty": ("parameter", 0, 3), "fc": ("linear", 2, 2)}), "a parameter of no numbers"
    yield call({"bn": ("batchnorm", 3)}), "buffers: running statistics are not parameters"
    listed = {"blocks": ("python list", ("linear", 2, 2)), "fc": ("linear", 2, 3)}
    yield call(listed), "layers in a Python list: no module knows them"
    yield call({"fc": ("linear", 3, 2), "frozen": ["fc.bias", "fc.weight"]}), "everything frozen"
    yield call({**GPT, "eval": True}), "eval mode freezes nothing"
    yield call({**GPT, "meta": True}), "on the meta device, where every address is 0"
    yield call({"flat": ("in a buffer", 2, 3)}), "a parameter that views a part of a larger tensor"


count_parameters.mistake(
    "Tied weights are counted twice: under each of their names. `parameters()` gives them once.",
    replace(
        "module.parameters()", "dict(module.named_parameters(remove_duplicate=False)).values()"
    ),
)
count_parameters.mistake(
    "The state_dict holds buffers, too, and tied weights under each of their names.",
    replace("sum(n for n, _ in sizes)", "sum(x.numel() for x in module.state_dict().values())"),
)
count_parameters.mistake(
    "The total takes in the buffers. They are saved, too, and are no parameters.",
    replace(
        "sum(n for n, _ in sizes)",
        "sum(n for n, _ in sizes) + sum(b.numel() for b in module.buffers())",
    ),
)
count_parameters.mistake(
    "No parameter counts as trained. A new one has neither grad nor grad_fn; ask for requires_grad.",
    replace("p.requires_grad", "p.grad is not None"),
)
count_parameters.mistake(
    "You counted tensors. A parameter of shape (4, 3) holds 12 numbers.", replace("p.numel()", "1")
)
count_parameters.mistake(
    "The second number is that of the frozen parameters; the trained ones are asked for.",
    replace("if trained", "if not trained"),
)
count_parameters.mistake(
    "Both numbers are totals. The second leaves out what is frozen.", replace(" if trained", "")
)
count_parameters.mistake(
    "You looked at the module's own parameters. Most are in its submodules.",
    replace("parameters()", "parameters(recurse=False)"),
)
count_parameters.mistake(
    "A parameter without an axis holds one number (the empty product), and you counted none.",
    replace("p.numel()", "p.numel() if p.ndim else 0"),
)
count_parameters.mistake(
    "data_ptr() does not tell parameters apart: on the meta device all are 0. Compare objects.",
    replace("in module.parameters()", "in {p.data_ptr(): p for p in module.parameters()}.values()"),
)
count_parameters.mistake(
    "A module in eval mode counts as frozen. eval() does not touch requires_grad.",
    replace("p.requires_grad", "p.requires_grad and module.training"),
)
count_parameters.mistake(
    "The two numbers are swapped: the total comes first.",
    replace(
        "sum(n for n, _ in sizes), ", "", "if trained)", "if trained), sum(n for n, _ in sizes)"
    ),
)
count_parameters.mistake(
    "The first number leaves out what is frozen. It is the total.",
    replace("sum(n for n, _ in sizes)", "sum(n for n, trained in sizes if trained)"),
)


count_parameters.mistake(
    "You count what the storage holds. A parameter may view a part of a larger one, as of a flat buffer: p.numel().",
    replace("p.numel()", "p.untyped_storage().nbytes() // p.element_size()"),
)


@count_parameters.alternative("a set of objects, found module by module")
def _(module):
    found = {p for m in module.modules() for p in m.parameters(recurse=False)}
    return sum(math.prod(p.shape) for p in found), sum(p.numel() * p.requires_grad for p in found)


# ------------------------------------------------------------------------------ Linear

linear = Exercise(
    modules.Linear,
    title="A linear layer",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.module,
    length=terms,
    stand_in="torch.nn.Linear",
    hints=(
        "Call super().__init__() first: it makes the dictionaries that parameters go to.",
        "self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-a, a)) "
        "registers it; forward is x @ self.weight.T + self.bias.",
        (
            "contracts",
            "x @ self.weight.T is one matmul for any number of leading axes: no loop, no product "
            "tensor.",
        ),
    ),
)


@linear.by_hand
def _():
    build = {"in_features": 3, "out_features": 2}
    weight, bias = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([10.0, 20.0])
    steps = ("train", torch.tensor([[1.0, 0.0, -1.0]])), ("extra_repr",)
    expected = {
        "step 1 (train): output": torch.tensor([[8.0, 18.0]]),
        "step 2 (extra_repr): extra_repr()": "in_features=3, out_features=2, bias=True",
    }
    yield call(build, {"weight": weight, "bias": bias}, *steps), expected


@linear.cases(10)
def _(draw):
    N, T, d_in, d_out = draw(draws.distinct_sizes(4))
    dtype, bias = draw(FLOATS), draw(st.booleans())
    build = {"in_features": d_in, "out_features": d_out, "bias": bias}
    weights = drawn(draw, dtype, weight=(d_out, d_in), **({"bias": (d_out,)} if bias else {}))
    leading = draw(st.sampled_from([(N,), (N, T)]))
    x, y = several(draw, dtype, (*leading, d_in), (N + 1, d_in))
    beside = ("beside", {"out_features": d_out - 1}, x)
    steps = ("train", x), ("train", y), beside, ("eval", x), ("reload",), ("eval", y)
    yield call(build, weights, *steps, ("extra_repr",))


@linear.edge
def _():
    build, weights = {"in_features": 3, "out_features": 2}, layer_weights(weight=(2, 3), bias=(2,))
    yield call(build, weights, ("train", normal(3))), "a single vector"
    yield call(build, weights, ("train", normal(0, 3))), "no rows"
    yield call(build, weights, ("train", draws.scattered(normal(4, 2, 3)))), "not contiguous"
    yield call({"in_features": 1, "out_features": 1}, {}, ("extra_repr",)), "one in, one out"
    yield call({"in_features": 1, "out_features": 20_000}, {}, ("fresh",)), "how it starts"
    yield call({"in_features": 20, "out_features": 10_000}, {}, ("fresh",)), "how it starts"
    no_bias = {"in_features": 100, "out_features": 100, "bias": False}
    yield call(no_bias, {}, ("fresh",), ("extra_repr",)), "how it starts, without a bias"
    no_bias = {"in_features": 3, "out_features": 2, "bias": False}
    yield call(no_bias, {}, ("get", "bias")), "without a bias, `bias` is None"


def linear_cost(N):
    build = {"in_features": 32, "out_features": 48}
    return call(build, {}, ("eval", normal(N, 32)))


largest_tensor(linear, linear_cost(64), 2 * 64 * 48, "no (N, out, in) tensor of products")
no_loop(linear, "rows", linear_cost(8), linear_cost(64))


WEIGHT = "torch.empty(out_features, in_features).uniform_(-bound, bound)"
BIAS = "torch.empty(out_features).uniform_(-bound, bound)"

linear.mistake(
    "The weight is (in, out). torch keeps (out, in), and with yours no checkpoint fits.",
    replace("(out_features, in_features)", "(in_features, out_features)", "weight.T", "weight"),
)
linear.mistake(
    "The bias is never added.",
    replace("return y if self.bias is None else y + self.bias", "return y"),
)
linear.mistake(
    "The weight is a plain tensor. Only an nn.Parameter is trained, moved and saved.",
    replace("self.weight = nn.Parameter(", "self.weight = ("),
)
linear.mistake(
    "A hidden detach (or `.data`): no gradient reaches the weight.",
    replace("self.weight.T", "self.weight.data.T"),
)
linear.mistake(
    "There is a bias although bias=False was asked for.", replace(" if bias else None", "")
)
linear.mistake(
    "With bias=False `bias` is a tensor (or a number), where torch's layer has None; and extra_repr says "
    "bias=True.",
    replace(" if bias else None", " if bias else torch.zeros(out_features)"),
)
linear.mistake(
    "With bias=False a tensor of zeros is kept as `bias`; torch's layer has None.",
    replace(
        *(" if bias else None", " if bias else torch.zeros(out_features)"),
        *("self.bias is not None", "isinstance(self.bias, nn.Parameter)"),
    ),
)
linear.mistake(
    "The weight starts standard normal; ±1/√in_features is asked for, else activations grow.",
    replace(WEIGHT, "torch.randn(out_features, in_features)"),
)
linear.mistake(
    "The weight starts at zero: all output features get the same gradient, for ever.",
    replace(WEIGHT, "torch.zeros(out_features, in_features)"),
)
linear.mistake(
    "Your bound is that of Glorot, √(6 / (in + out)). torch's layer starts with ±1/√in_features.",
    replace(WEIGHT, "nn.init.xavier_uniform_(torch.empty(out_features, in_features))"),
)
linear.mistake(
    "The bound is kaiming_uniform_'s with its default a=0, √(6 / in_features); a=√5 gives torch's.",
    replace(WEIGHT, "nn.init.kaiming_uniform_(torch.empty(out_features, in_features))"),
)
linear.mistake(
    "The weight starts normal with variance 2 / in_features; uniform on ±1/√in_features is due.",
    replace(WEIGHT, "nn.init.kaiming_normal_(torch.empty(out_features, in_features))"),
)
linear.mistake(
    "A normal distribution of the right variance; a uniform one is asked for.",
    replace(WEIGHT, "torch.randn(out_features, in_features) * bound / math.sqrt(3)"),
)
linear.mistake(
    "The bias starts at zero; here it starts on ±1/√in_features like the weight.",
    replace(BIAS, "torch.zeros(out_features)"),
)
linear.mistake(
    "The bias takes its bound from its own length, 1/√out_features; due is ±1/√in_features, as for the weight.",
    replace(BIAS, "torch.empty(out_features).uniform_(-1, 1) / math.sqrt(out_features)"),
)
linear.mistake(
    "The bias starts standard normal; here it starts uniform on ±1/√in_features, like the weight.",
    replace(BIAS, "torch.randn(out_features)"),
)
linear.mistake(
    "`extra_repr` is not there, so print(model) shows Linear() and none of its sizes.",
    replace("def extra_repr", "def forgotten"),
)
linear.mistake(
    "`extra_repr` gives the sizes without their names; in_features=3, out_features=2, bias=True is due.",
    replace("in_features={d_in}, out_features={d_out}", "{d_in}, {d_out}"),
)
linear.mistake(
    "The values are right, but x[..., None, :] * weight is an (N, out, in) tensor before it is summed: "
    "for 1,024 tokens and a 4,096 × 4,096 weight 69 GB. A matmul makes N × out.",
    replace("x @ self.weight.T", "(x[..., None, :] * self.weight).sum(-1)"),
    cost=True,
)
linear.mistake(
    "The values are right, but Python goes through the rows. One matmul takes them all.",
    replace(
        "y = x @ self.weight.T",
        "rows = x.reshape(-1, x.size(-1)).split(1)\n"
        "        y = torch.cat([row @ self.weight.T for row in rows])\n"
        "        y = y.view(*x.shape[:-1], self.weight.size(0))",
    ),
    cost=True,
)
linear.mistake(
    "The weight is (out, in), and x @ weight wants (in, out). Multiply by its transpose.",
    replace("weight.T", "weight"),
)
linear.mistake(
    "Weight and bias start from 0 to 1/√in_features (torch.rand); due is ±1/√in_features.",
    replace(
        *(WEIGHT, "torch.rand(out_features, in_features) * bound"),
        *(BIAS, "torch.rand(out_features) * bound"),
    ),
)
linear.mistake(
    "The bound is 1/in_features; the root is missing.",
    replace("math.sqrt(in_features)", "in_features"),
)
linear.mistake(
    "The bound is 1/√out_features. It is the number of *inputs* whose products are added up.",
    replace("math.sqrt(in_features)", "math.sqrt(out_features)"),
)
linear.mistake(
    "`view` cannot flatten every layout. x @ weight.T takes any number of leading axes.",
    replace(
        "x @ self.weight.T",
        "(x.view(-1, x.size(-1)) @ self.weight.T).view(*x.shape[:-1], len(self.weight))",
    ),
)
linear.mistake(
    "With bias=False there is no attribute `bias`; torch's layer has one that is None.",
    replace(
        *("self.bias = (\n", "if bias:\n            self.bias = (\n", " if bias else None", ""),
        *("self.bias is None", "not hasattr(self, 'bias')"),
        *("self.bias is not None", "hasattr(self, 'bias')"),
    ),
)


@linear.alternative("einsum, the bias added in place")
class _(modules.Linear):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__(in_features, out_features, bias)
        self.weight = nn.Parameter(
            (2 * torch.rand(out_features, in_features) - 1) / in_features**0.5
        )

    def forward(self, x):
        y = torch.einsum("...i,oi->...o", x, self.weight)
        if self.bias is not None:
            y += self.bias
        return y


# ------------------------------------------------------------------------------ Embedding

embedding = Exercise(
    modules.Embedding,
    title="An embedding",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.module,
    length=terms,
    stand_in="torch.nn.Embedding",
    hints=(
        "A lookup is indexing: which rows of the weight, in which order?",
        "Indexing with a negative id would take a row from the end. `index_select(0, ids)` refuses "
        "it, but wants ids with one axis: flatten, select, and give the result its shape.",
        ("contracts", "A one-hot matrix times the weight is right and V times too large."),
    ),
)


@embedding.by_hand
def _():
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    ids = torch.tensor([[2, 0], [2, 2]])
    expected = torch.tensor([[[5.0, 6.0], [1.0, 2.0]], [[5.0, 6.0], [5.0, 6.0]]])
    build = {"num_embeddings": 3, "embedding_dim": 2}
    yield call(build, {"weight": weight}, ("train", ids)), {"step 1 (train): output": expected}


@embedding.cases(10)
def _(draw):
    B, T, V, D = draw(draws.distinct_sizes(4))
    shape = draw(st.sampled_from([(T,), (B, T)]))
    first, second = draw(draws.indices(shape, V)), draw(draws.indices((T + 1,), V))
    beside = ("beside", {"num_embeddings": V + 1}, first)
    steps = ("train", first), ("train", second), beside, ("eval", first), ("reload",)
    weights = drawn(draw, draw(FLOATS), weight=(V, D))
    build = {"num_embeddings": V, "embedding_dim": D}
    yield call(build, weights, *steps, ("eval", second))


@embedding.edge
def _():
    build, weights = {"num_embeddings": 4, "embedding_dim": 3}, layer_weights(weight=(4, 3))
    yield call(build, weights, ("train", torch.tensor(2))), "a single id, of shape ()"
    yield call(build, weights, ("train", torch.empty(2, 0, dtype=torch.int64))), "no ids"
    yield call(build, weights, ("train", torch.tensor([1, 1, 1]))), "one id three times"
    scattered = draws.scattered(torch.tensor([[[0, 1], [2, 3]], [[3, 0], [1, 2]]]))
    yield call(build, weights, ("train", scattered)), "not contiguous"
    yield call(build, weights, ("eval", torch.tensor([0, 4]))), "an id of V: there is no such row"
    yield call(build, weights, ("eval", torch.tensor([0, -1]))), "a negative id is no id"
    yield call({"num_embeddings": 200, "embedding_dim": 100}, {}, ("fresh",)), "how it starts"


def embedding_cost(B, V=512):
    build = {"num_embeddings": V, "embedding_dim": 16}
    ids = torch.arange(B * 8).view(B, 8) % V
    return call(build, {}, ("eval", ids))


no_one_hot = "no one-hot (N, V) tensor: nothing larger than the result"
largest_tensor(embedding, embedding_cost(8), 8 * 8 * 16, no_one_hot)
no_loop(embedding, "ids", embedding_cost(2), embedding_cost(16))


embedding.mistake(
    "A negative id gives the last row instead of an error: plain indexing counts from the end. An id "
    "of −1 (often a mask's) then trains a real word, silently.",
    replace("weight.index_select(0, ids.flatten())", "weight[ids.flatten()]"),
)
embedding.mistake(
    "Ids out of range are clamped to the table: a tokenizer's error goes unseen.",
    replace("ids.flatten()", "ids.flatten().clamp(0, self.weight.size(0) - 1)"),
)
embedding.mistake(
    "The table is (embedding_dim, num_embeddings): rows belong to ids.",
    replace(
        *("randn(num_embeddings, embedding_dim)", "randn(embedding_dim, num_embeddings)"),
        *("weight.index_select", "weight.T.index_select", "weight.size(1)", "weight.size(0)"),
    ),
)
embedding.mistake(
    "The table is a plain tensor (or a buffer): nothing trains it. Wrap it in nn.Parameter.",
    replace("self.weight = nn.Parameter(", 'self.register_buffer("weight", '),
)
embedding.mistake(
    "A hidden detach (or `.data`): the table gets no gradient.",
    replace("self.weight.index_select", "self.weight.data.index_select"),
)
embedding.mistake(
    "The vectors are scaled by √D, as some models do outside of their embedding.",
    replace("ids.flatten())", "ids.flatten()) * self.weight.size(1) ** 0.5"),
)
embedding.mistake(
    "The table starts uniform on [0, 1); a standard normal one is asked for.",
    replace("torch.randn", "torch.rand"),
)
embedding.mistake(
    "The last shape is flat: the result has the axes of ids, and D.",
    replace(".view(*ids.shape, self.weight.size(1))", ""),
)
embedding.mistake(
    "The values are right, but a one-hot (N, V) tensor was made: for 1,024 tokens and GPT-2's 50,257 "
    "words 206 MB, of which one number in 50,257 is not zero. Select the rows.",
    replace(
        "self.weight.index_select(0, ids.flatten())",
        "torch.eye(len(self.weight), dtype=self.weight.dtype).index_select(0, ids.flatten())"
        " @ self.weight",
    ),
    cost=True,
)
embedding.mistake(
    "The values are right, but Python looks the ids up one by one. One index_select takes them all.",
    replace(
        "self.weight.index_select(0, ids.flatten())",
        "torch.cat([self.weight.index_select(0, i) for i in ids.flatten().split(1)])",
    ),
    cost=True,
)
embedding.mistake(
    "`ids.view(-1)` cannot flatten every layout; flatten and reshape copy where they must.",
    replace("ids.flatten()", "ids.view(-1)"),
)
embedding.mistake(
    "Of no ids there is no least and no largest: min() and max() raise. Ask for numel() first.",
    replace("rows = self", "ids.min(), ids.max()\n        rows = self"),
)
embedding.mistake(
    "The table starts with a standard deviation of 0.02, as GPT-2's; 1 is asked for.",
    replace("torch.randn", "0.02 * torch.randn"),
)
embedding.mistake(
    "The table starts with a standard deviation of 1/√embedding_dim; 1 is asked for.",
    replace("torch.randn", "embedding_dim**-0.5 * torch.randn"),
)


GATHERED = "self.weight.gather(0, ids.reshape(-1, 1).expand(-1, self.weight.size(1)))"
for checked in (
    "",
    "if (ids < 0).any() or (ids > len(self.weight)).any():\n            raise IndexError\n        ",
):
    embedding.mistake(
        "gather raises a RuntimeError for an id out of range, and an id of V is out of range: the last row is V − 1. "
        "Raise IndexError unless 0 ≤ id < V.",
        replace("rows = self.weight.index_select(0, ids.flatten())", f"{checked}rows = {GATHERED}"),
    )


@embedding.alternative("indexing, after a check of the range")
class _(nn.Module):
    def __init__(self, num_embeddings, embedding_dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim).normal_())

    def forward(self, ids):
        if ids.numel() > 0 and (ids.min() < 0 or ids.max() >= len(self.weight)):
            raise IndexError("no such id")
        return self.weight[ids]


# ------------------------------------------------------------------------------ Dropout

dropout = Exercise(
    modules.Dropout,
    title="Dropout",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.dropout,
    stand_in="torch.nn.Dropout",
    hints=(
        "`self.training` says which mode the module is in; train() and eval() set it.",
        "torch.rand(x.shape) >= p is True with probability 1 − p. What must the survivors be divided "
        "by, so that the mean stays?",
        ("edge cases", "With p = 1 nothing survives, and 1 / (1 − p) is infinite: 0 · ∞ is NaN."),
    ),
)


@dropout.by_hand
def _():
    kept = "train: output / input where it is kept, least and most"
    first = {kept: torch.ones(2), "eval: output equals input": True}
    yield call({"p": 0.0}, (2, 3), torch.float32), first
    second = {kept: torch.full((2,), 4.0), "train: fraction dropped / p": 1.0}
    yield call({"p": 0.75}, (250, 400), torch.float32), second


@dropout.cases(5)
def _(draw):
    p = draw(st.sampled_from([0.1, 0.2, 0.25, 0.4, 0.6, 0.9]))
    yield call({"p": p}, draw(st.sampled_from([(400, 250), (250, 400)])), draw(FLOATS))


@dropout.edge
def _():
    yield call({}, (400, 250), torch.float32), "p left at its default"
    yield call({"p": 1.0}, (3, 4), torch.float32), "everything is dropped: zeros, and no NaN"
    yield call({"p": 0.0}, (3, 4), torch.float64), "nothing is dropped"
    yield call({"p": 0.5}, (0, 4), torch.float32), "no elements"
    yield call({"p": 0.5}, (250, 400), torch.bfloat16), "bfloat16 stays bfloat16"
    yield call({"p": 0.5}, (3, 4), torch.float32, "meta"), "x is not on the default device"
    yield call({"p": 0.5}, (400, 10, 25), torch.float32), "three axes"
    yield call({"p": 0.5}, (), torch.float32, "meta"), "no axes"
    yield call({"p": 1.5}, (1,), torch.float32), "not a probability"
    yield call({"p": 2.0}, (1,), torch.float32), "not a probability, though a whole number"
    yield call({"p": -0.1}, (1,), torch.float32), "not a probability"


dropout.contract(
    contracts.allocates(
        [call({"p": 0.5}, (100, 100), torch.float32)],
        limit=0,
        says="in eval mode it allocates nothing",
        prepare=prepared.dropout_built,
    )
)


DRAWN = "torch.empty_like(x).bernoulli_(1 - self.p)"

dropout.mistake(
    "The survivors are not rescaled. Then a unit that was kept with probability 1 − p in training is "
    "1 / (1 − p) times as loud in eval mode; divide by 1 − p in training.",
    replace("x * keep / (1 - self.p)", "x * keep"),
)
dropout.mistake(
    "It is alive in eval mode: predictions become random. Look at self.training (F.dropout does not: "
    "its `training` is True unless you hand it on).",
    replace("not self.training", "False"),
)
dropout.mistake(
    "It is the other way round: it drops in eval mode and not in training.",
    replace("not self.training", "self.training"),
)
dropout.mistake(
    "Elements are *kept* with probability p; they should be dropped with it.",
    replace("bernoulli_(1 - self.p)", "bernoulli_(self.p)"),
)
dropout.mistake(
    "You divided by p. The share that survives is 1 − p.", replace("/ (1 - self.p)", "/ self.p")
)
for ends in (
    (),
    ("self.p == 1", "False"),
    ("self.p == 1", "self.p == 0"),
    ("self.p == 1", "self.p == 0", "x * 0", "torch.zeros_like(x)"),
):
    dropout.mistake(
        "You take p for the probability of keeping: you keep with p and divide by p. It is the probability of "
        "dropping: keep with 1 − p, and divide by that.",
        replace(
            "bernoulli_(1 - self.p)", "bernoulli_(self.p)", "/ (1 - self.p)", "/ self.p", *ends
        ),
    )
dropout.mistake(
    "Scaled by 1 − p in eval mode, as in 2014; today by 1 / (1 − p) in training instead.",
    replace("return x\n", "return x * (1 - self.p)\n", "x * keep / (1 - self.p)", "x * keep"),
)
dropout.mistake(
    "One draw for each row: whole rows go at once. Each element has a draw of its own.",
    replace("torch.empty_like(x)", "x.new_empty(*x.shape[:-1], 1)"),
)
dropout.mistake(
    "One mask for the whole batch: every row loses the same features. Draw for each element of x.",
    replace("torch.empty_like(x)", "x.new_empty(x.shape[-1:])"),
)
dropout.mistake(
    "One mask for the last two axes: every entry of a batch loses the same. Draw for each element of x.",
    replace("torch.empty_like(x)", "x.new_empty(x.shape[-2:])"),
)
dropout.mistake(
    "torch.rand(*x.shape) has no size to go by where x has no axes. Hand it the whole shape, or use rand_like(x).",
    replace(DRAWN, "(torch.rand(*x.shape, device=x.device) >= self.p).to(x.dtype)"),
)
dropout.mistake(
    "The mask was drawn once and is kept. Each call in train mode draws a new one.",
    replace(
        *("keep = torch", 'if not hasattr(self, "keep"):\n            self.keep = torch'),
        *("x * keep", "x * self.keep"),
    ),
)
dropout.mistake(
    "The mask is not part of the graph: the gradient flows through dropped elements too, or is not "
    "scaled. Multiply x by the mask; do not write into `.data`.",
    replace(
        "return x * keep / (1 - self.p)",
        "y = x * 1\n        y.data = x.data * keep / (1 - self.p)\n        return y",
    ),
)
for in_place in (
    replace("x * keep / (1 - self.p)", "x.mul_(keep).div_(1 - self.p)"),
    replace(
        "x * keep / (1 - self.p)", "x.mul_(keep) / max(1 - self.p, 1e-9)", "self.p == 1", "False"
    ),
):
    dropout.mistake(
        "In place: `x *= mask`, like `masked_fill_`, `div_` or an assignment to x[mask], overwrites the caller's tensor.",
        in_place,
    )
dropout.mistake(
    "With p = 1 you divide by zero, and 0 · ∞ is NaN. All that is due then is zeros.",
    replace("self.p == 1", "False"),
)
dropout.mistake(
    "The share is right, but nothing is random: the elements that go lie at equal distances.",
    replace(DRAWN, "torch.ones_like(x).view(-1).cumsum(0).view(x.shape) * self.p % 1 < 1 - self.p"),
)
dropout.mistake(
    "p is not checked when the layer is built: above 1 or below 0 deserves a ValueError.",
    replace("not 0 <= p <= 1", "False"),
)
dropout.mistake(
    "The values are right, but in eval mode you multiply by ones: a copy of x for nothing. Return x.",
    replace("return x\n", "return x * torch.ones_like(x)\n"),
    cost=True,
)
dropout.mistake(
    "p = 1 is refused. It is a probability, too: everything is dropped.",
    replace("0 <= p <= 1", "0 <= p < 1"),
)
dropout.mistake(
    "In eval mode you divide by 1 − p as well. That is for training alone; in eval mode return x.",
    replace("return x\n", "return x / (1 - self.p)\n"),
)
dropout.mistake(
    "The mask is float32, so that a bfloat16 x comes back as float32. Use rand_like(x).",
    replace("empty_like(x)", "empty_like(x, dtype=torch.promote_types(x.dtype, torch.float32))"),
)
dropout.mistake(
    "The mask is float32 whatever x is, and you divide it by 1 − p: a float64 x gets a factor that is rounded "
    "to float32, and a bfloat16 x comes back as float32. Give the mask x's dtype: rand_like(x).",
    replace(
        *(DRAWN, "torch.empty_like(x, dtype=torch.float32).bernoulli_(1 - self.p) / (1 - self.p)"),
        *("x * keep / (1 - self.p)", "x * keep"),
    ),
)
dropout.mistake(
    "The mask is made on the default device; x may be on another: rand_like(x).",
    replace("empty_like(x)", "empty(x.shape, dtype=x.dtype)"),
)


@dropout.alternative("a Bernoulli mask that is scaled, and where")
class _(modules.Dropout):
    def forward(self, x):
        if self.training and self.p > 0:
            keep = torch.bernoulli(torch.full_like(x, 1.0 - self.p)).bool()
            return torch.where(keep, x / max(1 - self.p, 1e-9), 0.0)
        return x


@dropout.alternative("masked_fill of a permutation: exactly the share p is dropped")
class _(modules.Dropout):
    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        order = torch.randperm(x.numel(), device=x.device).view(x.shape)
        drop = order < round(self.p * x.numel())
        return (x * (1 / (1 - self.p)) if self.p != 1 else x).masked_fill(drop, 0.0)


# ------------------------------------------------------------------------------ LayerNorm

layer_norm = Exercise(
    modules.LayerNorm,
    title="Layer normalisation",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.module,
    length=terms,
    stand_in="torch.nn.LayerNorm",
    hints=(
        "Mean and variance over the last axis alone, with keepdim=True so that they broadcast back.",
        "The variance divides by D, not D − 1: x.var(-1, correction=0), or the mean of the centred "
        "squares. eps goes under the root.",
        (
            "edge cases",
            "mean(x²) − mean(x)² subtracts two large numbers that nearly agree. Centre first.",
        ),
    ),
)


def norm_cases(draw, build=None, bias=True):
    """Sizes, weights and inputs for a norm over the last axis, in three steps."""
    N, T, D = draw(draws.distinct_sizes(3, 4, 8))  # with two features the gradient cancels to zero
    shapes = {"weight": (D,)} | ({"bias": (D,)} if bias else {})
    leading = draw(st.sampled_from([(N,), (N, T)]))
    scale = draw(st.sampled_from([1.0, 3.0, 0.02]))
    x, y = several(draw, torch.float32, (*leading, D), (N + 1, D), scale=scale)
    beside = ("beside", {"eps": 2.0}, x)
    steps = ("train", x), ("train", y), beside, ("eval", x), ("reload",), ("eval", y)
    eps = draw(st.sampled_from([1e-5, 1e-3]))
    build = {"normalized_shape": D, "eps": eps} | (build or {})
    return call(build, drawn(draw, torch.float32, **shapes), *steps)


def norm_dtypes(build, **shapes):
    """Half precision is normalised in float32; all comes back in x's own dtype."""
    for dtype, verb, why in (
        (torch.float16, "train", "float16: the squares of 1000s overflow"),
        (torch.bfloat16, "forward", "bfloat16 stays bfloat16"),
    ):
        x = normal(3, 4, dtype=dtype) * (1000 if verb == "train" else 1)
        yield call(build, layer_weights(dtype, **shapes), (verb, x)), why
    wide = ("meta", normal(3, 4, dtype=torch.float64))
    yield call(build, {}, wide), "float64 comes back as float64, in whatever it was normalised"


@layer_norm.by_hand
def _():
    weight, bias = torch.tensor([1.0, 2.0, 1.0, 2.0]), torch.tensor([0.0, 10.0, 0.0, 10.0])
    x = torch.tensor([[1.0, 1.0, 5.0, 5.0]])  # mean 3, variance 4
    for eps, output in ((0.0, [-1.0, 8.0, 1.0, 12.0]), (12.0, [-0.5, 9.0, 0.5, 11.0])):
        build = {"normalized_shape": 4, "eps": eps}  # √(4 + 0) = 2, √(4 + 12) = 4
        case = call(build, {"weight": weight, "bias": bias}, ("train", x))
        yield case, {"step 1 (train): output": torch.tensor([output])}


@layer_norm.cases(10)
def _(draw):
    bias = draw(st.booleans())
    yield norm_cases(draw, {"bias": bias}, bias)


@layer_norm.edge
def _():
    build, weights = {"normalized_shape": 4}, layer_weights(weight=(4,), bias=(4,))
    yield call(build, {}, ("fresh",)), "how it starts"
    yield call({"normalized_shape": 4, "bias": False}, {}, ("fresh",)), "without a bias"
    yield call(build, weights, ("train", normal(4))), "a single vector"
    constant = ("train", torch.full((2, 4), 3.0))
    yield call({**build, "eps": 0.25}, weights, constant), "constant: the variance is 0"
    yield call(build, weights, ("train", 1e-3 * normal(2, 4))), "tiny: eps counts for most"
    yield call(build, weights, ("train", normal(0, 4))), "no vectors"
    yield call(build, weights, ("train", draws.scattered(normal(2, 3, 4)))), "not contiguous"
    far = 16 + (512 * normal(3, 4)).round() / 1024  # the mean is exact, the squares are not
    yield call(build, weights, ("forward", far)), "far from zero: nothing may cancel"
    yield call(build, weights, ("train", normal(4, 4, 4))), "all axes of one size"
    yield call({**build, "bias": False}, {}, ("get", "bias")), "without a bias, `bias` is None"
    yield from norm_dtypes(build, weight=(4,), bias=(4,))
    low = torch.tensor([[100.0, 100.5, 101.0, 102.0], [101.0, 102.0, 100.0, 100.5]]).bfloat16()
    weights = layer_weights(torch.bfloat16, weight=(4,), bias=(4,))
    yield call(build, weights, ("forward", low)), "bfloat16, whose digits do not hold the mean"


GUARDED_ALONE = (
    "eps is missing. F.normalize, or a tiny lower bound, keeps 0 / 0 away and no more: a vector as small as √eps "
    "still comes out at full size. Add eps under the root."
)
EPS_AS_A_BOUND = (
    "eps is a lower bound in your code: it counts only where what you divide by is smaller. Add it, always, under "
    "the root."
)
WIDE = "x if x.dtype == torch.float64 else x.float()"
MEAN, SQUARES = "z.mean(dim=-1, keepdim=True)", "centred.square().mean(dim=-1, keepdim=True)"

layer_norm.mistake(
    "The variance divides by D − 1, as torch.var does without correction=0; due is D.",
    replace(SQUARES, "z.var(dim=-1, keepdim=True)"),
)
layer_norm.mistake(
    "eps is outside the root: std + eps; due is √(variance + eps).",
    replace(
        "centred * torch.rsqrt(variance + self.eps)",
        "centred / (z.std(dim=-1, correction=0, keepdim=True) + self.eps)",
    ),
)
layer_norm.mistake(
    "You divide by std + eps. x.std() divides by D − 1, where D is due; and eps belongs under the root.",
    replace(
        "centred * torch.rsqrt(variance + self.eps)",
        "centred / (z.std(dim=-1, keepdim=True) + self.eps)",
    ),
)
layer_norm.mistake(
    "eps is missing: a constant vector gives 0 / 0.", replace("variance + self.eps", "variance")
)
NORMALISED = "centred * torch.rsqrt(variance + self.eps)"
layer_norm.mistake(
    GUARDED_ALONE,
    replace(NORMALISED, "nn.functional.normalize(centred, dim=-1) * z.size(-1) ** 0.5"),
)
for bounded in (
    "centred * torch.rsqrt(variance.clamp(min=self.eps))",
    "nn.functional.normalize(centred, dim=-1, eps=self.eps) * z.size(-1) ** 0.5",
):
    layer_norm.mistake(EPS_AS_A_BOUND, replace(NORMALISED, bounded))
layer_norm.mistake(
    "The argument eps is ignored: it is 1e-5 whatever you are given.",
    replace("self.eps = eps", "self.eps = 1e-5"),
)
layer_norm.mistake(
    "The affine parameters are ignored: weight and bias are never used.",
    replace(" * self.weight", "", "y if self.bias is None else y + self.bias", "y"),
)
layer_norm.mistake(
    "The bias is never added.", replace("y if self.bias is None else y + self.bias", "y")
)
layer_norm.mistake(
    "There is a bias although bias=False was asked for.", replace(" if bias else None", "")
)
layer_norm.mistake(
    "You normalise over all axes. Each vector of the last axis has statistics of its own.",
    replace(MEAN, "z.mean()", SQUARES, "centred.square().mean()"),
)
layer_norm.mistake(
    "You normalise over the first axis, the batch, as a BatchNorm does; due is dim=-1.",
    replace("z.mean(dim=-1", "z.mean(dim=0", "square().mean(dim=-1", "square().mean(dim=0"),
)
layer_norm.mistake("The mean is not subtracted. That is an RMSNorm.", replace(f"z - {MEAN}", "z"))
layer_norm.mistake(
    "Mean and variance are detached. They depend on x: the gradient flows through them.",
    replace(MEAN, f"{MEAN}.detach()", SQUARES, f"{SQUARES}.detach()"),
)
layer_norm.mistake(
    "`x -= mean` works in place: it overwrites the caller's tensor, which is still needed.",
    replace(f"z - {MEAN}", f"z.sub_({MEAN})"),
)
layer_norm.mistake(
    "An in-place edit of what backward needs: autograd saved the values of which you took the variance, "
    'and `*=` or `-=` has overwritten them ("modified by an inplace operation").',
    replace(
        "y = (centred * torch.rsqrt(variance + self.eps))",
        "centred *= torch.rsqrt(variance + self.eps)\n        y = centred",
    ),
)
layer_norm.mistake(
    "mean(x²) − mean(x)² cancels: far from zero both are large, and their difference keeps few "
    "digits. Subtract the mean first, then square.",
    replace(SQUARES, f"{SQUARES.replace('centred', 'z')} - {MEAN}.square()"),
)
layer_norm.mistake(
    "The weight starts at random (or zero). A norm starts as one: ones and zeros.",
    replace("torch.ones", "torch.zeros"),
)
layer_norm.mistake(
    "weight and bias are plain tensors. Only an nn.Parameter is trained, saved and moved.",
    replace(
        "= nn.Parameter(torch.ones", "= (torch.ones", "= nn.Parameter(torch.zeros", "= (torch.zeros"
    ),
)
layer_norm.mistake(
    "The squares of float16 overflow at 65,504, and the row becomes 0: take them in float32.",
    replace(WIDE, "x"),
)
layer_norm.mistake(
    "You take the statistics of bfloat16 in bfloat16, and a mean has more digits than that holds. Take those of every "
    "half precision in float32.",
    replace(WIDE, "x.float() if x.dtype == torch.float16 else x"),
)
layer_norm.mistake(
    "The result is not cast back: for a float16 x it is float32.", replace(".to(x.dtype) *", " *")
)
layer_norm.mistake(
    "The root is missing: you divide by the variance itself.",
    replace("centred * torch.rsqrt(variance + self.eps)", "centred / (variance + self.eps)"),
)
layer_norm.mistake(
    "Without keepdim=True the means lose their last axis, and broadcast wrongly or fail.",
    replace(MEAN, "z.mean(dim=-1)", SQUARES, "centred.square().mean(dim=-1)"),
)
layer_norm.mistake(
    "You normalise over all axes but the first; each vector of the last axis stands alone.",
    replace(
        *(MEAN, "z.mean(dim=tuple(range(1, x.ndim)), keepdim=True)"),
        *(SQUARES, "centred.square().mean(dim=tuple(range(1, x.ndim)), keepdim=True)"),
    ),
)
layer_norm.mistake(
    "The bias is added before the weight multiplies: the weight comes first.",
    replace(
        *(" * self.weight\n", "\n", "return y if", "return (y if"),
        *("else y + self.bias", "else y + self.bias) * self.weight"),
    ),
)
layer_norm.mistake(
    "With bias=False there is no attribute `bias`; torch's layer has one that is None.",
    replace(
        *(
            "self.bias = nn.Parameter(torch.zeros(normalized_shape)) if bias else None",
            "if bias:\n            self.bias = nn.Parameter(torch.zeros(normalized_shape))",
        ),
        *("self.bias is None", 'not hasattr(self, "bias")'),
    ),
)


@layer_norm.alternative("var_mean in float32, and a division by the root")
class _(modules.LayerNorm):
    def forward(self, x):
        var, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
        y = ((x - mean) / (var + self.eps).sqrt()).type_as(x)
        return y * self.weight if self.bias is None else torch.addcmul(self.bias, y, self.weight)


@layer_norm.alternative("in float64 and cast back")
class _(modules.LayerNorm):
    def forward(self, x):
        z = x.double() - x.double().mean(-1, keepdim=True)
        z = z / (z.pow(2).sum(-1, keepdim=True) / x.size(-1) + self.eps).sqrt() * self.weight
        return (z if self.bias is None else z + self.bias).to(x.dtype)


# ------------------------------------------------------------------------------ RMSNorm

rms_norm = Exercise(
    modules.RMSNorm,
    title="RMSNorm",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.module,
    length=terms,
    stand_in="torch.nn.RMSNorm",
    stand_in_note="Unless you pass `eps`, its eps is the dtype's epsilon, not 1e-6.",
    hints=(
        "A LayerNorm without the mean and without the bias.",
        "torch.rsqrt(y) is 1 / √y: multiply x by rsqrt(mean of x² + eps), then by the weight.",
    ),
)


@rms_norm.by_hand
def _():
    x = torch.tensor([[1.0, 7.0]])  # mean of squares 25
    weight = {"weight": torch.tensor([1.0, 10.0])}
    for eps, output in ((0.0, [0.2, 14.0]), (75.0, [0.1, 7.0])):
        case = call({"normalized_shape": 2, "eps": eps}, weight, ("train", x))
        yield case, {"step 1 (train): output": torch.tensor([output])}


@rms_norm.cases(10)
def _(draw):
    yield norm_cases(draw, bias=False)


@rms_norm.edge
def _():
    build, weights = {"normalized_shape": 4}, layer_weights(weight=(4,))
    yield call(build, {}, ("fresh",)), "how it starts"
    yield call(build, weights, ("train", normal(4))), "a single vector"
    yield call(build, weights, ("train", torch.zeros(2, 4))), "zeros: eps keeps 0 / 0 away"
    yield call(build, weights, ("train", 1e-3 * normal(2, 4))), "tiny: eps counts"
    yield call(build, weights, ("train", normal(0, 4))), "no vectors"
    yield call(build, weights, ("train", draws.scattered(normal(2, 3, 4)))), "not contiguous"
    one = {"normalized_shape": 1, "eps": 0.5}
    yield call(one, layer_weights(weight=(1,)), ("train", normal(3, 1))), "one feature"
    yield call(build, weights, ("train", normal(4, 4, 4))), "all axes of one size"
    yield from norm_dtypes(build, weight=(4,))


rms_norm.mistake(
    "The mean is subtracted. That is a LayerNorm; an RMSNorm only rescales.",
    replace("mean_square = z", f"z = z - {MEAN}\n        mean_square = z"),
)
rms_norm.mistake(
    "You divide by the root of the variance, which takes the mean off; due is the mean of x².",
    replace("z.square().mean(dim=-1, keepdim=True)", "z.var(dim=-1, correction=0, keepdim=True)"),
)
rms_norm.mistake(
    "You divide by x.std() or the root of x.var(), which take the mean off and divide by D − 1; due is "
    "the mean of x².",
    replace("z.square().mean(dim=-1, keepdim=True)", "z.var(dim=-1, keepdim=True)"),
)
rms_norm.mistake(
    "The sum of the squares is there in place of their mean: √D times too small.",
    replace("square().mean", "square().sum"),
)
rms_norm.mistake(
    "eps is outside the root: rms + eps. It goes inside: √(mean square + eps).",
    replace("z * torch.rsqrt(mean_square + self.eps)", "z / (mean_square.sqrt() + self.eps)"),
)
rms_norm.mistake(
    "You add eps to the sum of the squares, so it is divided by D as well. Add it to their mean.",
    replace("mean_square + self.eps", "mean_square + self.eps / z.size(-1)"),
)
rms_norm.mistake(
    "eps is missing: a vector of zeros gives 0 / 0.",
    replace("mean_square + self.eps", "mean_square"),
)
SCALED = "z * torch.rsqrt(mean_square + self.eps)"
for guarded in (
    "nn.functional.normalize(z, dim=-1) * z.size(-1) ** 0.5",
    "z * torch.rsqrt(mean_square.clamp(min=1e-30))",
):
    rms_norm.mistake(GUARDED_ALONE, replace(SCALED, guarded))
for bounded in (
    "z * torch.rsqrt(mean_square.clamp(min=self.eps))",
    "nn.functional.normalize(z, dim=-1, eps=self.eps) * z.size(-1) ** 0.5",
    "nn.functional.normalize(z, dim=-1, eps=self.eps * z.size(-1) ** 0.5) * z.size(-1) ** 0.5",
    "z / mean_square.sqrt().clamp(min=self.eps)",
):
    rms_norm.mistake(EPS_AS_A_BOUND, replace(SCALED, bounded))
rms_norm.mistake("The weight is ignored.", replace(" * self.weight", ""))
rms_norm.mistake(
    "The root is missing: you divide by the mean square itself.",
    replace("z * torch.rsqrt(mean_square + self.eps)", "z / (mean_square + self.eps)"),
)
rms_norm.mistake(
    "You normalise over all axes; each vector of the last axis stands alone.",
    replace("mean(dim=-1, keepdim=True)", "mean()"),
)
rms_norm.mistake(
    "The factor is detached. It depends on x, so the gradient flows through it too.",
    replace("mean_square + self.eps)", "mean_square + self.eps).detach()"),
)
rms_norm.mistake(
    "The weight is 1 + weight, and starts at zero, as in Gemma. Here it starts at one.",
    replace("torch.ones", "torch.zeros", "* self.weight", "* (1 + self.weight)"),
)
rms_norm.mistake(
    "An RMSNorm has no bias.",
    replace(
        "self.eps = eps",
        "self.eps = eps\n        self.bias = nn.Parameter(torch.zeros(normalized_shape))",
    ),
)
rms_norm.mistake(
    "The squares of float16 overflow at 65,504, and the row becomes 0: take them in float32.",
    replace(WIDE, "x"),
)
rms_norm.mistake(
    "The result is not cast back: for a float16 x it is float32.", replace(".to(x.dtype) *", " *")
)
rms_norm.mistake(
    "Without keepdim=True the mean square loses its axis, and broadcasts wrongly or fails.",
    replace("mean(dim=-1, keepdim=True)", "mean(dim=-1)"),
)
rms_norm.mistake(
    "You normalise over the first axis, the batch; each vector of the last axis stands alone.",
    replace("mean(dim=-1", "mean(dim=0"),
)
rms_norm.mistake(
    "The argument eps is ignored: it is 1e-6 whatever you are given.",
    replace("self.eps = eps", "self.eps = 1e-6"),
)


@rms_norm.alternative("as in Llama: float32 whatever comes")
class _(modules.RMSNorm):
    def forward(self, x):
        z = x.float()
        return (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(
            x
        ) * self.weight


@rms_norm.alternative("a norm, divided by √D, and the weight before the cast")
class _(modules.RMSNorm):
    def forward(self, x):
        z = x.double()
        mean_square = torch.einsum("...d,...d->...", z, z)[..., None] / x.shape[-1]
        return (self.weight * (z / torch.sqrt(mean_square + self.eps))).to(x.dtype)


# ------------------------------------------------------------------------------ BatchNorm1d

batch_norm = Exercise(
    modules.BatchNorm1d,
    title="Batch normalisation",
    difficulty=2,
    minutes=25,
    points=4,
    probe=probes.module_or_refusal,
    length=terms,
    stand_in="torch.nn.BatchNorm1d",
    stand_in_note="It counts a batch in `num_batches_tracked` before it raises.",
    hints=(
        "Two paths: in train mode normalise with the batch's own mean and biased variance, in eval "
        "mode with the buffers. x.var(over, correction=0) is the biased one.",
        "Move the buffers under torch.no_grad() and in place, so that they stay the registered "
        "tensors: self.running_mean.lerp_(mean, self.momentum).",
        "The running variance takes the unbiased variance: n / (n − 1) times the biased one, where n "
        "counts the values of a channel.",
        (
            "edge cases",
            "With (N, C, L) a channel has N · L values: average over axes 0 and 2, and view the "
            "statistics as (1, C, 1).",
        ),
    ),
)


@batch_norm.by_hand
def _():
    x = torch.tensor([[0.0], [0.0], [0.0], [4.0]])  # mean 1, biased variance 3, unbiased 4
    values = {"weight": 2.0, "bias": 1.0, "running_mean": 4.0, "running_var": 8.0}
    weights = {name: torch.tensor([value]) for name, value in values.items()}
    build = {"num_features": 1, "eps": 1.0, "momentum": 0.5}
    trained = {
        "output": torch.tensor([[0.0], [0.0], [0.0], [4.0]]),  # divided by √(3 + 1) = 2
        "buffer `running_mean`": torch.tensor([2.5]),
        "buffer `running_var`": torch.tensor([6.0]),
        "buffer `num_batches_tracked`": torch.tensor(1),
    }
    expected = {f"step 1 (train): {label}": value for label, value in trained.items()}
    yield call(build, weights, ("train", x)), expected
    output = torch.tensor([[3.0]])  # 2 · (7 − 4) / √(8 + 1) + 1
    mean = {"step 1 (eval): buffer `running_mean`": torch.tensor([4.0])}
    in_eval = call(build, weights, ("eval", torch.tensor([[7.0]])))
    yield in_eval, {"step 1 (eval): output": output} | mean


@batch_norm.cases(10)
def _(draw):
    N, C, L = draw(draws.distinct_sizes(3, 4, 8))  # with two values the gradient cancels to zero
    dtype = draw(FLOATS)
    shape = draw(st.sampled_from([(N, C), (N, C, L)]))
    x, y, z = (1 + 2 * x for x in several(draw, dtype, shape, (N + 1, C), shape))
    weights = drawn(draw, dtype, weight=(C,), bias=(C,), running_mean=(C,), running_var=(C,))
    weights["running_var"] = weights["running_var"].abs() + 0.5
    momentum, eps = draw(st.sampled_from([0.1, 0.3])), draw(st.sampled_from([1e-5, 1e-2]))
    build = {"num_features": C, "eps": eps, "momentum": momentum}
    beside = ("beside", {"momentum": 0.9, "eps": 1.0}, y)
    steps = ("train", x), ("train", y), beside, ("eval", z), ("reload",), ("train", z)
    yield call(build, weights, *steps, ("eval", x))


@batch_norm.edge
def _():
    build = {"num_features": 3}
    weights = layer_weights(weight=(3,), bias=(3,), running_mean=(3,))
    weights["running_var"] = torch.tensor([0.5, 1.0, 2.0])
    yield call(build, {}, ("fresh",)), "how it starts"
    alone = call(build, weights, ("train", normal(1, 3)), refused=True)
    yield alone, "one value a channel, in train mode: no buffer may have changed"
    alone = call(build, weights, ("train", normal(1, 3, 1)), refused=True)
    yield alone, "the same, with a third axis"
    yield call(build, weights, ("eval", normal(1, 3))), "one value a channel, in eval mode"
    one_row = ("train", normal(1, 3, 4)), ("eval", normal(0, 3))
    yield call(build, weights, *one_row), "one row of four positions: four values a channel"
    yield call({**build, "eps": 1.0}, weights, ("train", normal(2, 3))), "two values a channel"
    constant = ("train", torch.full((4, 3), 2.0))
    yield call({**build, "eps": 0.25}, weights, constant), "constant: the variance is 0"
    yield call(build, weights, ("train", 1e-3 * normal(4, 3))), "tiny: eps counts for most"
    yield call(build, weights, ("train", normal(3, 3, 3))), "all axes of one size"
    scattered = draws.scattered(normal(4, 3, 2))
    yield call(build, weights, ("train", scattered), ("eval", scattered)), "not contiguous"


def batch_norm_cost(C):
    return call({"num_features": C}, {}, ("train", normal(16, C)))


no_loop(batch_norm, "channels", batch_norm_cost(4), batch_norm_cost(32))


MOVE_MEAN = "self.running_mean.lerp_(mean, self.momentum)"
MOVE_VARIANCE = "self.running_var.lerp_(variance * n / (n - 1), self.momentum)"
OVER = "[axis for axis in range(x.ndim) if axis != 1]"

batch_norm.mistake(
    "The running variance never moves: in eval mode it is the 1 it started with.",
    replace(MOVE_VARIANCE, "pass"),
)
batch_norm.mistake(
    "The running mean never moves: in eval mode it is the 0 it started with.",
    replace(MOVE_MEAN, "pass"),
)
batch_norm.mistake(
    "The running variance takes the *biased* variance. The batch is normalised with that one; what is "
    "kept for later is the unbiased estimate, n / (n − 1) times as large.",
    replace("variance * n / (n - 1)", "variance"),
)
batch_norm.mistake(
    "The batch is normalised with the *unbiased* variance. In train mode it is the biased one that "
    "makes a variance of exactly 1; only the buffer takes the unbiased.",
    replace("correction=0", "correction=1", "variance * n / (n - 1)", "variance"),
)
batch_norm.mistake(
    "In train mode you normalise with the running statistics. They are for eval mode; in training the "
    "batch's own count, and the gradient flows through them.",
    replace("return mean, variance", "return self.running_mean.clone(), self.running_var.clone()"),
)
batch_norm.mistake(
    "In eval mode you normalise with the batch's statistics. Use the buffers there.",
    replace(
        "mean, variance = self.running_mean, self.running_var",
        f"variance, mean = torch.var_mean(x, {OVER}, correction=0)",
    ),
)
batch_norm.mistake(
    "The buffers move in eval mode too. There they stay as they are.",
    replace(
        "else:\n",
        "else:\n            self._batch_statistics(x)\n",
        "n < 2",
        "self.training and n < 2",
    ),
)
batch_norm.mistake(
    "The affine parameters are ignored: weight and bias are never used.",
    replace("y * self.weight.view(per_channel) + self.bias.view(per_channel)", "y"),
)
batch_norm.mistake(
    "eps is outside the root: it belongs to the variance, √(variance + eps).",
    replace(
        "* torch.rsqrt(variance.view(per_channel) + self.eps)",
        "/ (variance.view(per_channel).sqrt() + self.eps)",
    ),
)
batch_norm.mistake("eps is missing: a constant channel gives 0 / 0.", replace(" + self.eps", ""))
batch_norm.mistake(
    "The batch's mean and variance are detached. The gradient flows through them, too.",
    replace("return mean, variance", "return mean.detach(), variance.detach()"),
)
batch_norm.mistake(
    "Your momentum is the weight of the *old* value. In torch it is that of the new batch: "
    "running ← (1 − momentum) · running + momentum · batch's.",
    replace("= eps, momentum", "= eps, 1 - momentum"),
)
batch_norm.mistake(
    "The running statistics are parameters: they would be trained. Use register_buffer.",
    replace(
        *('self.register_buffer("running_mean", ', "self.running_mean = nn.Parameter("),
        *('self.register_buffer("running_var", ', "self.running_var = nn.Parameter("),
    ),
)
batch_norm.mistake(
    "The running statistics are plain attributes: no state_dict holds them. Use register_buffer.",
    replace(
        *('self.register_buffer("running_mean", ', "self.running_mean = ("),
        *('self.register_buffer("running_var", ', "self.running_var = ("),
    ),
)
batch_norm.mistake(
    "The buffers move with the graph attached (no torch.no_grad()): each batch keeps all earlier ones "
    "alive, and a later backward fails.",
    replace("with torch.no_grad():", "if True:"),
)
batch_norm.mistake(
    "The average is over the last axis, as in a LayerNorm; here it is over the batch.",
    replace(
        "(x - mean.view(per_channel)) * torch.rsqrt(variance.view(per_channel) + self.eps)",
        "nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps)",
    ),
)


@batch_norm.mistake(
    "With (N, C, L) each position has statistics of its own. A channel's are over the batch *and* the "
    "positions: axes 0 and 2."
)
class _(modules.BatchNorm1d):
    def forward(self, x):
        y = super().forward(x)
        if x.ndim == 3 and self.training:
            var, mean = torch.var_mean(x, 0, correction=0)
            y = (x - mean) / (var + self.eps).sqrt() * self.weight[:, None] + self.bias[:, None]
        return y


batch_norm.mistake(
    "`num_batches_tracked` does not count the batches seen in train mode.",
    replace("self.num_batches_tracked += 1", "pass"),
)
batch_norm.mistake(
    "`num_batches_tracked` counts in eval mode, too. Like the other buffers it moves in train mode alone.",
    replace("else:\n", "else:\n            self.num_batches_tracked += 1\n"),
)
batch_norm.mistake(
    "A single value a channel passes in train mode. It has no unbiased variance: ValueError.",
    replace("n < 2", "False"),
)
batch_norm.mistake(
    "A batch of one row is refused though its channels have several values each: N · L counts.",
    replace("if n < 2", "if x.size(0) < 2"),
)
batch_norm.mistake(
    "With (N, C, L) a single value a channel passes in train mode. It has no unbiased variance there either: ValueError.",
    replace("n < 2", "x.ndim == 2 and n < 2", "n / (n - 1)", "n / max(n - 1, 1)"),
)
batch_norm.mistake(
    "When you raise, a buffer has moved already. Count a channel's values first, and move the buffers "
    "after that.",
    replace(
        *("            self.num_batches_tracked += 1\n", ""),
        *("if n < 2", "self.num_batches_tracked += 1\n        if n < 2"),
    ),
)
for none_too in ("x.size(0) > 0 and ", ""):
    batch_norm.mistake(
        "A single value a channel is refused in eval mode too. There the buffers normalise it.",
        replace(
            "if self.training:\n",
            f"if {none_too}x.numel() // x.size(1) < 2:\n            raise ValueError(x.shape)\n"
            "        if self.training:\n",
        ),
    )
batch_norm.mistake(
    "The running statistics are parameters, though not trained ones: due are buffers.",
    replace(
        *(
            'self.register_buffer("running_mean", torch.zeros(num_features))',
            "self.running_mean = nn.Parameter(torch.zeros(num_features), requires_grad=False)",
        ),
        *(
            'self.register_buffer("running_var", torch.ones(num_features))',
            "self.running_var = nn.Parameter(torch.ones(num_features), requires_grad=False)",
        ),
        *(
            'self.register_buffer("num_batches_tracked", torch.tensor(0))',
            "self.num_batches_tracked = nn.Parameter(torch.tensor(0), requires_grad=False)",
        ),
    ),
)
batch_norm.mistake(
    "The values are right, but Python goes through the channels. Give var and mean the axes to reduce, "
    "and every channel is done at once.",
    replace(
        "variance, mean = torch.var_mean(x, over, correction=0)",
        "mean = torch.stack([channel.mean() for channel in x.unbind(1)])\n"
        "        variance = torch.stack([channel.var(correction=0) for channel in x.unbind(1)])",
    ),
    cost=True,
)
BY_ROWS = "With (N, C, L) the unbiased variance counts N values a channel; there are N · L."
batch_norm.mistake(BY_ROWS, replace("x.numel() // x.size(1)", "x.size(0)"))
for by_rows in (
    "variance * x.size(0) / max(x.size(0) - 1, 1)",
    "variance * x.size(0) / (x.size(0) - 1)",
    "variance * (x.size(0) / (x.size(0) - 1))",
):
    batch_norm.mistake(BY_ROWS, replace("variance * n / (n - 1)", by_rows))
batch_norm.mistake(
    "The last batch's statistics replace the running ones: momentum is not used.",
    replace("(mean, self.momentum)", "(mean, 1.0)", "(n - 1), self.momentum)", "(n - 1), 1.0)"),
)


@batch_norm.alternative("new tensors assigned to the buffers, sums by hand")
class _(modules.BatchNorm1d):
    def forward(self, x):
        z = x if x.dim() == 2 else x.transpose(1, 2).reshape(-1, x.shape[1])
        if self.training:
            n = z.shape[0]
            if n <= 1:
                raise ValueError("more values, please")
            mean = z.sum(0) / n
            biased = ((z - mean) ** 2).sum(0) / n
            keep, take = 1 - self.momentum, self.momentum
            self.running_mean = keep * self.running_mean + take * mean.detach()
            self.running_var = keep * self.running_var + take * biased.detach() * n / (n - 1)
            self.num_batches_tracked = self.num_batches_tracked + 1
        else:
            mean, biased = self.running_mean, self.running_var
        y = (z - mean) / torch.sqrt(biased + self.eps) * self.weight + self.bias
        if x.dim() == 3:
            y = y.reshape(x.shape[0], x.shape[2], x.shape[1]).transpose(1, 2)
        return y


batch_norm.equivalent(
    "BatchNorm1d._batch_statistics: `x.numel() // x.size(1)` → `x.numel() / x.size(1)`",
    because="x has size(1) · n elements, so the quotient is whole, and n counts as well as a float.",
)


# ------------------------------------------------------------------------ MultiHeadSelfAttention

attention = Exercise(
    modules.MultiHeadSelfAttention,
    title="Multi-head self-attention",
    difficulty=3,
    minutes=35,
    points=5,
    probe=probes.module,
    length=terms,
    hints=(
        "self.qkv(x) is (B, T, 3 · D). View it as (B, T, 3, n_head, d) and permute: queries, keys and "
        "values, each (B, n_head, T, d).",
        "scores = q @ k.transpose(-2, -1) / √d, where d is the size of one head. Fill what is "
        "forbidden with −∞ *before* the softmax over the last axis, the keys.",
        "y is (B, n_head, T, d). Bring the heads next to their features, transpose(1, 2), before you "
        "reshape to (B, T, D); then self.proj.",
        ("contracts", "The heads are an axis of the tensors: one matmul does them all."),
    ),
)


def attention_shapes(D, bias=True):
    shapes = {"qkv__weight": (3 * D, D), "proj__weight": (D, D)}
    return shapes | ({"qkv__bias": (3 * D,), "proj__bias": (D,)} if bias else {})


def halved(weights):
    return {name: value / 2 for name, value in weights.items()}


@attention.by_hand
def _():
    """Queries are zero, so that attention is even; values and the projection are identities."""
    eye, zero = torch.eye(2), torch.zeros(2, 2)
    weights = {"qkv.weight": torch.cat([zero, eye, eye]), "proj.weight": eye}
    x = torch.tensor([[[2.0, 0.0], [4.0, 6.0], [0.0, 3.0]]])
    build = {"d_model": 2, "n_head": 1, "bias": False}
    means = torch.tensor([[[2.0, 0.0], [3.0, 3.0], [2.0, 3.0]]])
    yield call({**build}, weights, ("train", x)), {"step 1 (train): output": means}
    build["causal"], everywhere = False, torch.tensor([2.0, 3.0]).expand(1, 3, 2)
    yield call({**build}, weights, ("train", x)), {"step 1 (train): output": everywhere}
    mask = torch.tensor([[[[True, True, False]]]])  # the last key is padding
    means = torch.tensor([3.0, 3.0]).expand(1, 3, 2)
    yield call({**build}, weights, ("train", x, mask)), {"step 1 (train): output": means}


@attention.cases(8)
def _(draw):
    B, T = draw(draws.distinct_sizes(2, 2, 5))
    n_head, d = draw(st.sampled_from([(1, 3), (2, 3), (2, 4), (3, 2), (4, 2)]))
    causal, bias = draw(st.booleans()), draw(st.booleans())
    dtype, D = torch.float64, n_head * d  # sharp softmaxes and several steps: float32 is too coarse
    build = {"d_model": D, "n_head": n_head, "causal": causal, "bias": bias}
    x, y, longer = several(draw, dtype, (B, T, D), (B, T, D), (B, T + 1, D))
    lengths = draw(draws.indices((B,), T + 1, 1))
    padding = (torch.arange(T) < lengths[:, None])[:, None, None, :]  # its first key is real
    band = draw(draws.indices((B, n_head, T, T), 2)).bool() | torch.eye(T, dtype=torch.bool)
    mask, other = draw(st.permutations([padding, band]))
    beside = ("beside", {"n_head": 1, "causal": not causal}, longer)
    steps = ("train", x), ("train", y, mask), beside, ("eval", longer), ("eval", x, other)
    weights = halved(drawn(draw, dtype, **attention_shapes(D, bias)))
    yield call(build, weights, *steps, ("reload",), ("eval", y))


@attention.edge
def _():
    build, weights = {"d_model": 4, "n_head": 2}, halved(layer_weights(**attention_shapes(4)))
    yield call(build, weights, ("train", normal(1, 1, 4))), "one position: it attends to itself"
    yield call(build, weights, ("train", normal(4, 4, 4))), "all axes of one size"
    yield call(build, weights, ("train", normal(0, 3, 4))), "an empty batch"
    yield call(build, weights, ("train", draws.scattered(normal(3, 2, 4)))), "not contiguous"
    yield call(build, weights, ("meta", normal(3, 2, 4))), "x is not on the default device"
    narrow = {"d_model": 4, "n_head": 4}
    yield call(narrow, weights, ("train", normal(2, 3, 4))), "heads of one feature"
    yield call({"d_model": 4, "n_head": 3}, {}), "heads that do not divide d_model"
    large = {name: 60 * value.double() for name, value in weights.items()}
    x = normal(2, 3, 4, dtype=torch.float64)
    yield call(build, large, ("eval", x)), "scores in the thousands: exp overflows"
    mask = torch.tensor([True, False, True]).expand(2, 1, 3, 3) | torch.eye(3, dtype=torch.bool)
    yield call(build, weights, ("train", normal(2, 3, 4), mask)), "a mask beside the causal one"


def attention_cost(n_head, T=8):
    build = {"d_model": 32, "n_head": n_head}
    mask = torch.ones(2, 1, 1, T, dtype=torch.bool)
    return call(build, {}, ("eval", normal(2, T, 32), mask))


no_loop(attention, "heads", attention_cost(2), attention_cost(16))
no_loop(attention, "positions", attention_cost(2), attention_cost(2, T=24))


SCALE = " / math.sqrt(D // self.n_head)"
MASKED = "scores.masked_fill(~allowed, -math.inf)"

attention.mistake(
    "The mask comes after the softmax: what is forbidden has already taken its share, and the rows no "
    "longer add up to 1. Fill the scores with −∞ before.",
    replace(f"{MASKED}.softmax(dim=-1)", "scores.softmax(dim=-1) * allowed"),
)
attention.mistake(
    "The scores are divided by d, not by √d. A dot product of d random terms grows like √d; divided by "
    "d, attention becomes nearly even.",
    replace(SCALE, " / (D // self.n_head)"),
)
attention.mistake(
    "The scores are divided by √D of the whole model; due is √d of one head, d = D / n_head.",
    replace(SCALE, " / math.sqrt(D)"),
)
attention.mistake("The scores are not scaled. Divide by √d.", replace(SCALE, ""))
attention.mistake(
    "The mask leaks the future by one: each position sees the next one, the very token it is to "
    "predict. The training loss looks wonderful. Forbid the diagonal 1 and above.",
    replace("tril()", "tril(1)"),
)
attention.mistake(
    "A position may not see itself, and the first sees nothing: its softmax is NaN. Only what lies "
    "above the main diagonal is the future.",
    replace("tril()", "tril(-1)"),
)
attention.mistake(
    "Forbidden scores are 0, not −∞: after the softmax exp(0) = 1 is a share like any.",
    replace("-math.inf", "0.0"),
)
attention.mistake("The mask that you are given is ignored.", replace("allowed & mask", "allowed"))
attention.mistake(
    "Your mask is upside down: True means *may attend*.",
    replace("allowed & mask", "allowed & ~mask"),
)
attention.mistake(
    "The softmax is over the queries. Each query spreads its attention over the keys.",
    replace("softmax(dim=-1)", "softmax(dim=-2)"),
)
attention.mistake(
    "The heads were merged without bringing them next to their features: reshape alone mixes positions. "
    "transpose(1, 2) first.",
    replace("y.transpose(1, 2).reshape", "y.reshape"),
)
attention.mistake(
    "The features were split as (n_head, T, d) without a transpose: a view cannot swap axes, so heads "
    "are made of positions. View as (…, n_head, d), then permute.",
    replace(
        "heads.permute(2, 0, 3, 1, 4)",
        "(z.reshape(B, self.n_head, T, D // self.n_head) for z in self.qkv(x).chunk(3, dim=-1))",
    ),
)
attention.mistake(
    "Heads are split and merged by a view alone, which cannot swap axes: a head is made of positions. "
    "View as (…, n_head, d) and transpose; then transpose(1, 2) before you merge.",
    replace(
        *(
            "heads.permute(2, 0, 3, 1, 4)",
            "(z.reshape(B, self.n_head, T, D // self.n_head) for z in self.qkv(x).split(D, dim=-1))",
        ),
        *("y.transpose(1, 2).reshape", "y.reshape"),
    ),
)
attention.mistake(
    "qkv's result was viewed as (3, B, n_head, T, d). The three lie in its last axis: view that one as "
    "(3, n_head, d), then permute.",
    replace(
        *("view(B, T, 3, self.n_head,", "view(3, B, self.n_head, T,"),
        *("heads.permute(2, 0, 3, 1, 4)", "heads"),
    ),
)
attention.mistake(
    "With B = 0 no size can be found for the −1 in reshape(B, T, -1). Write D, or flatten(2).",
    replace("reshape(B, T, D)", "reshape(B, T, -1)"),
)
attention.mistake(
    "The features were split as n_head × 3 × d; qkv gives all queries, all keys, all values.",
    replace("3, self.n_head", "self.n_head, 3", "(2, 0, 3, 1, 4)", "(3, 0, 2, 1, 4)"),
)
attention.mistake(
    "Queries and keys are swapped. It matters as soon as there is a mask or a bias.",
    replace("q, k, v =", "k, q, v ="),
)
attention.mistake("The projection at the end is missing.", replace("return self.proj(", "return ("))
attention.mistake(
    "A hidden detach: the values get no gradient.", replace("weights @ v", "weights @ v.detach()")
)
attention.mistake(
    "exp overflows for large scores; use softmax, which subtracts the largest first.",
    replace(
        *(".softmax(dim=-1)", ".exp()"),
        *("weights @ v", "weights / weights.sum(dim=-1, keepdim=True) @ v"),
    ),
)
attention.mistake(
    "It is always causal; causal=False must let every position see all others.",
    replace("if self.causal:", "if True:"),
)
attention.mistake(
    "The biases are there although bias=False was asked for.",
    replace(
        "3 * d_model, bias=bias", "3 * d_model", "d_model, d_model, bias=bias", "d_model, d_model"
    ),
)
attention.mistake(
    "The values are right, but Python goes through the heads: n_head small matmuls in place of one "
    "batched one. Make the heads an axis.",
    replace(
        "weights @ v",
        "torch.stack([weights[:, h] @ v[:, h] for h in range(self.n_head)], dim=1)",
    ),
    cost=True,
)
attention.mistake(
    "The values are right, but Python goes through the queries. One matmul takes them all.",
    replace("weights @ v", "torch.cat([query @ v for query in weights.split(1, dim=2)], dim=2)"),
    cost=True,
)
attention.mistake(
    "The causal mask of the first call is kept, and does not fit a longer sequence.",
    replace(
        "x.new_ones(T, T, dtype=torch.bool)",
        'self.__dict__.setdefault("all", x.new_ones(T, T, dtype=torch.bool))',
    ),
)
attention.mistake(
    "The causal mask is made on the default device; x may be on another.",
    replace("x.new_ones", "torch.ones"),
)
attention.mistake(
    "After the transpose a view cannot merge the heads; reshape and contiguous() copy.",
    replace("reshape(B, T, D)", "view(B, T, D)"),
)
attention.mistake(
    "The mask that you are given replaces the causal one. Both hold: combine them with &.",
    replace("allowed & mask", "mask"),
)
attention.mistake(
    "Heads that do not divide d_model pass. Raise ValueError in __init__.",
    replace("d_model % n_head", "False"),
)
attention.mistake(
    "k.transpose(1, 2) swaps heads and positions; swap the last two axes, of each head's k.",
    replace("k.transpose(-2, -1)", "k.transpose(1, 2)"),
)


@attention.alternative("einsum, and an additive mask with the smallest number of the dtype")
class _(modules.MultiHeadSelfAttention):
    def forward(self, x, mask=None):
        T, D = x.shape[1:]
        q, k, v = (z.unflatten(-1, (self.n_head, -1)) for z in self.qkv(x).split(D, dim=2))
        scores = torch.einsum("bqhd,bkhd->bhqk", q / q.size(-1) ** 0.5, k)
        least = torch.full((T, T), torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device)
        if self.causal:
            scores = scores + least.triu(1)
        if mask is not None:
            scores = scores.masked_fill(mask.logical_not(), least[0, 0])
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2))


@attention.alternative("scaled_dot_product_attention, as in nanoGPT")
class _(modules.MultiHeadSelfAttention):
    def forward(self, x, mask=None):
        B, T, D = x.shape
        heads = (
            z.view(B, T, self.n_head, D // self.n_head).transpose(1, 2)
            for z in self.qkv(x).chunk(3, dim=2)
        )
        past = None
        if self.causal:
            past = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        mask = mask if past is None else past if mask is None else past & mask
        y = F.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, D))


attention.equivalent(
    "MultiHeadSelfAttention.forward: `k.transpose(-2, -1)` → `k.transpose(2, -1)`",
    because="k has four axes, so 2 and -2 name the same one.",
)
attention.equivalent(
    "MultiHeadSelfAttention.forward: `D // self.n_head` → `D / self.n_head` [#2]",
    because="n_head divides D, and the root of a whole float is the same.",
)


# ------------------------------------------------------------------------------ tie_weights

tie_weights = Exercise(
    modules.tie_weights,
    title="Tying weights",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.tied,
    length=terms,
    hints=(
        "Assigning an nn.Parameter to an attribute registers that very object there.",
        "head.weight = embedding.weight, and nothing else. Compare the shapes before.",
        ("contracts", "Nothing needs to be copied: the head's own weight is given up."),
    ),
)


@tie_weights.by_hand
def _():
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    expected = {"head.weight is embedding.weight": True, "head.weight": table}
    expected["step 1: output"] = torch.tensor([[17.0, 39.0, 61.0]])
    yield call(table, torch.zeros(3, 2), None, torch.tensor([2])), expected


@tie_weights.cases(10)
def _(draw):
    V, D, T = draw(draws.distinct_sizes(3))
    dtype = draw(FLOATS)
    table, weight = several(draw, dtype, (V, D), (V, D))
    bias = draw(draws.tensors((V,), dtype)) if draw(st.booleans()) else None
    yield call(table, weight, bias, draw(draws.indices((T,), V)))


@tie_weights.edge
def _():
    ids = torch.tensor([0, 1])
    yield call(normal(3, 2), normal(4, 2, seed=1), None, ids), "a head for more words"
    yield call(normal(3, 2), normal(3, 4, seed=1), None, ids), "a head for longer vectors"
    yield call(normal(3, 2), normal(2, 3, seed=1), None, ids), "the head is the wrong way round"
    yield call(normal(3, 3), normal(3, 3, seed=1), normal(3), ids), "V equal to D"
    yield call(normal(2, 1), normal(2, 1, seed=1), None, ids), "one feature"


tie_weights.contract(
    contracts.allocates(
        [call(normal(64, 8), normal(64, 8), None, torch.tensor([0]))],
        limit=0,
        says="one storage for both: 0 bytes allocated",
        prepare=prepared.table_and_head,
    )
)


TIE = "head.weight = embedding.weight"

tie_weights.mistake(
    "You copied the values. After an optimizer's step they are two again; assign the parameter.",
    replace(TIE, "head.weight.data.copy_(embedding.weight)"),
)
tie_weights.mistake(
    "The two share a storage but are two parameters, each with a gradient of its own: the optimizer "
    "steps twice, and both are counted. Assign the parameter itself.",
    replace(TIE, "head.weight.data = embedding.weight.data"),
)
tie_weights.mistake(
    "The head's weight has become the embedding's; it is the embedding's that stays.",
    replace(TIE, "embedding.weight = head.weight"),
)
tie_weights.mistake(
    "You gave both a *new* parameter. An optimizer that was made before trains the old one.",
    replace(TIE, "head.weight = embedding.weight = nn.Parameter(embedding.weight.detach())"),
)
tie_weights.mistake(
    "The shapes are not compared: torch assigns any, and fails in the next forward.",
    replace("head.weight.shape != embedding.weight.shape", "False"),
)
tie_weights.mistake(
    "Only D, the size of a vector, is compared. V must agree, too.",
    replace(
        "head.weight.shape != embedding.weight.shape",
        "len(head.weight[0]) != len(embedding.weight[0])",
    ),
)
tie_weights.mistake(
    "Only V, the number of words, is compared. D must agree, too.",
    replace(
        "head.weight.shape != embedding.weight.shape", "len(head.weight) != len(embedding.weight)"
    ),
)
tie_weights.mistake(
    "Only the numbers of elements are compared. The shapes must agree.",
    replace(
        "head.weight.shape != embedding.weight.shape",
        "head.weight.numel() != embedding.weight.numel()",
    ),
)
tie_weights.mistake(
    "The head's bias went too. Only the weight is shared.",
    replace(TIE, f"{TIE}\n    head.bias = None"),
)
tie_weights.mistake(
    "ValueError comes too late: the head has already lost its weight.",
    replace("if head.weight.shape", f"old = head.weight\n    {TIE}\n    if old.shape"),
)
tie_weights.mistake(
    "The result is right, but values were copied that are given up at once.",
    replace(TIE, f"head.weight = nn.Parameter(embedding.weight.detach().clone())\n    {TIE}"),
    cost=True,
)


@tie_weights.alternative("the old one deleted, the new one registered")
def _(embedding, head):
    if tuple(head.weight.shape) != tuple(embedding.weight.shape):
        raise ValueError("shapes differ")
    del head.weight
    head.register_parameter("weight", embedding.weight)


# ------------------------------------------------------------------------------ freeze_except

freeze_except = Exercise(
    modules.freeze_except,
    title="Freezing all but some",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.assembled,
    hints=(
        "named_parameters() gives dotted names; parameter.requires_grad_(False) freezes one.",
        '"head" is a parameter\'s whole name, or is followed by a dot: "head." is not the beginning of '
        '"head2.weight".',
        (
            "random cases",
            "A tied parameter has several names, and named_parameters() gives only the first. "
            "remove_duplicate=False gives all.",
        ),
        ("edge cases", "Check every name before you freeze anything."),
    ),
)


@freeze_except.by_hand
def _():
    model = {"body": ("linear", 2, 2), "head": ("linear", 2, 3)}
    names = ["body.weight", "body.bias", "head.weight", "head.bias"]
    for listed, trained in (["head"], names[2:]), (["body.bias"], ["body.bias"]):
        yield call(model, listed), {"trained": {name: name in trained for name in names}}


@freeze_except.cases(15)
def _(draw):
    model = {**GPT, "head2": ("linear", 4, 2), "frozen": []}
    if draw(st.booleans()):
        model["tied"] = TIED
    model["frozen"] = draw(
        st.lists(st.sampled_from(["wte.weight", "h.0.fc.bias", "head2.weight"]), unique=True)
    )
    among = ["wte", "head", "h", "h.1", "h.0.fc", "h.1.ln.bias", "head2", "head.weight"]
    yield call(model, draw(st.lists(st.sampled_from(among), unique=True, max_size=3)))


@freeze_except.edge
def _():
    yield call(GPT, []), "no names: everything is frozen"
    yield call({}, []), "no parameters"
    frozen = {**GPT, "frozen": ["head.weight", "wte.weight"]}
    yield call(frozen, ["head"]), "frozen before: trained now"
    yield call(GPT, ["heads"]), "no such name"
    yield call({**GPT, "act": {}}, ["act"]), "a submodule without parameters"
    yield call({**GPT, "more": []}, ["head", "more"]), "a list of no submodules"
    yield call(GPT, ["head", "h.2"]), "one name is there, one is not"
    yield call(frozen, ["head", "h.2"]), "the same, and what is there was frozen before"
    yield call(GPT, ["fc"]), "a name from within is no beginning"
    yield call(GPT, ["h.0.f"]), "half a name"
    twice = {"fc": ("linear", 2, 2), "h": [{"fc": ("linear", 2, 2)}]}
    yield call(twice, ["fc.weight"]), "a name that another path ends with"
    yield call(twice, ["h.0.fc"]), "and the other way round"
    tied = {**GPT, "tied": TIED}
    yield call(tied, ["head"]), "tied: named by its second name"
    yield call(tied, ["wte"]), "tied: by its first name"
    yield call(tied, ["h"]), "tied, and frozen"
    norm = {"bn": ("batchnorm", 3), "head": ("linear", 3, 2)}
    yield call(norm, ["head"]), "buffers stay as they are"
    yield call(norm, ["bn.running_mean"]), "the name of a buffer"
    both = {"a": ("linear", 2, 2), "head": ("linear", 2, 3), "submodules tied": [("a", "b")]}
    yield call(both, ["b"]), "a submodule with two names, by its second"


FITS = 'path == name or path.startswith(name + ".")'
FREEZE = "module.requires_grad_(False)"
TRAIN = "for found in listed.values():\n        for parameter in found:\n            parameter"

freeze_except.mistake(
    'path.startswith("head") is also true of "head2.weight". A name ends, or a dot follows.',
    replace(FITS, "path.startswith(name)"),
)
freeze_except.mistake(
    '"fc" in path is true anywhere in it; "h.0.fc.weight" is not in this module\'s own "fc".',
    replace(FITS, "name in path"),
)
freeze_except.mistake(
    "Of tied names only the first is known. Ask with remove_duplicate=False.",
    replace("remove_duplicate=False", ""),
)
freeze_except.mistake(
    "With tied weights the last name wins. First freeze all, then train what is listed.",
    replace(
        f"{TRAIN}.requires_grad_(True)",
        f"for path, p in every:\n        p.requires_grad = any({FITS} for name in names)",
    ),
)
freeze_except.mistake(
    "Nothing is frozen. (Setting requires_grad on a module sets an attribute like any other.)",
    replace(FREEZE, "pass"),
)
freeze_except.mistake(
    "A name that fits nothing is ignored. A typing error then freezes the whole model.",
    replace("not found", "False"),
)
freeze_except.mistake(
    "Only whole names fit; a submodule's name stands for all its parameters.",
    replace(FITS, "path == name"),
)
freeze_except.mistake(
    "Only submodules fit; a parameter's own whole name is one, too.",
    replace(FITS, 'path.startswith(name + ".")'),
)
freeze_except.mistake(
    "It is the wrong way round: the listed ones are frozen, the others trained.",
    replace(
        *("parameter.requires_grad_(True)", "parameter.requires_grad_(False)"),
        *(FREEZE, "module.requires_grad_(True)"),
    ),
)
freeze_except.mistake(
    "Parameters that were frozen before stay frozen although listed: set True, too.",
    replace(
        *(
            FREEZE,
            "for p in set(module.parameters()).difference(*listed.values()):\n"
            "        p.requires_grad_(False)",
        ),
        *("parameter.requires_grad_(True)", "pass"),
    ),
)
freeze_except.mistake(
    "The ValueError comes after the freezing: the model has changed already.",
    replace("every = list", f"{FREEZE}\n    every = list"),
)
freeze_except.mistake(
    "All is frozen, and each name checked when its turn comes: at the ValueError the model has changed.",
    replace(
        "for name, found in listed.items():\n",
        f"{FREEZE}\n    for name, found in listed.items():\n"
        "        for p in found:\n            p.requires_grad_(True)\n",
    ),
)
freeze_except.mistake(
    "Each name is checked when its turn comes: at the ValueError those before it are trained already.",
    replace(
        "for name, found in listed.items():\n",
        "for name, found in listed.items():\n"
        "        for p in found:\n            p.requires_grad_(True)\n",
    ),
)
freeze_except.mistake(
    "A submodule without parameters passes. No parameter lies in it: ValueError.",
    replace("not found", "not found and name not in dict(module.named_modules())"),
)
freeze_except.mistake(
    "You raise only if none of the names fits. Each of them must.",
    replace("not found", "not any(listed.values())"),
)


freeze_except.mistake(
    "You look a name up in the state_dict, which holds buffers as well. No parameter has a buffer's name: ValueError.",
    replace("not found", f"not found and not any({FITS} for path in module.state_dict())"),
)


@freeze_except.mistake(
    "You look submodules up in named_modules(), which gives one with several names under the first alone. Ask with "
    "remove_duplicate=False."
)
def _(module, names):
    keep = []
    for name in names:
        parts = [p for path, p in module.named_parameters(remove_duplicate=False) if path == name]
        parts += list(dict(module.named_modules()).get(name or ".", nn.Module()).parameters())
        if not parts:
            raise ValueError(name)
        keep += parts
    for parameter in module.parameters():
        parameter.requires_grad = any(parameter is kept for kept in keep)


@freeze_except.alternative("the submodules and parameters looked up by name")
def _(module, names):
    keep = []
    for name in names:
        parts = [p for path, p in module.named_parameters(remove_duplicate=False) if path == name]
        inside = dict(module.named_modules(remove_duplicate=False)).get(name)
        parts += list(inside.parameters()) if name and inside is not None else []
        if not parts:
            raise ValueError(name)
        keep += parts
    for parameter in module.parameters():
        parameter.requires_grad = any(parameter is kept for kept in keep)


@freeze_except.alternative("a set of the kept parameters' identities")
def _(module, names):
    every = list(module.named_parameters(remove_duplicate=False))
    hits = {n: {id(p) for path, p in every if f"{path}.".startswith(f"{n}.")} for n in names}
    if not all(hits.values()):
        raise ValueError([n for n in names if not hits[n]])
    for _, p in every:
        p.requires_grad = id(p) in set().union(*hits.values())


# ------------------------------------------------------------------------------ TinyModule

tiny_module = Exercise(
    modules.TinyModule,
    title="A module from nothing",
    difficulty=3,
    minutes=45,
    points=6,
    probe=probes.registry,
    length=terms,
    hints=(
        "Keep three dictionaries. They must be made without your own __setattr__, which needs them: "
        'object.__setattr__(self, "_parameters", {}).',
        "__setattr__ decides by type which dictionary a value goes to, and removes the name from the "
        "others. __getattr__ is asked only where Python finds nothing: look through the dictionaries, "
        "then raise AttributeError.",
        "One recursive walk serves all: yield (prefix + name, tensor) of one's own, then go into each "
        'child with prefix + child\'s name + ".". named_parameters gives its own prefix a dot first.',
        "load_state_dict checks everything first, then copies in place under no_grad (or into the "
        "detached tensors that state_dict gives).",
        ("edge cases", "What did the name mean before? Assigning over it must forget that."),
    ),
)


def parameter(*shape, seed=0, dtype=torch.float32):
    return ("parameter", normal(*shape, seed=seed, dtype=dtype))


@tiny_module.by_hand
def _():
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    tree = {
        "inner": {"bias": ("parameter", two)},
        "weight": ("parameter", one),
        "mean": ("buffer", two),
        "note": "text",
    }
    yield (
        call(tree),
        {
            "at first: named_parameters()": ["weight", "inner.bias"],
            "at first: named_parameters(prefix)": ["m.weight", "m.inner.bias"],
            "at first: state_dict()": {"inner.bias": two, "mean": two, "weight": one},
            "at first: training": {"itself": True, "inner.": True},
        },
    )
    yield (
        call({"weight": ("parameter", one)}, ("call", torch.tensor([3.0]), {"scale": 2.0})),
        {"after step 1 (call): result": torch.tensor([6.0])},
    )


@tiny_module.cases(8)
def _(draw):
    a, b, c = draw(draws.distinct_sizes(3))
    dtype = draw(FLOATS)

    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))

    def values(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    tree = {
        "weight": ("parameter", values(a, b)),
        "inner": {
            "weight": ("parameter", values(b)),
            "mean": ("buffer", values(c)),
            "deep": {"bias": ("parameter", values(c)), "rate": 3},
        },
        "count": ("buffer", torch.tensor(draw(draws.sizes(1, 9)))),
        "table": values(b),
        "head": {"weight": ("parameter", values(b, a))},
    }
    if draw(st.booleans()):
        tree["head"]["tied"] = ("same", "weight")
    state = {
        "weight": values(a, b),
        "inner.weight": values(b),
        "inner.mean": values(c),
        "inner.deep.bias": values(c),
        "count": torch.tensor(5),
        "head.weight": values(b, a),
    }
    if "tied" in tree["head"]:
        state["head.tied"] = state["head.weight"]
    part = {"inner.mean": values(c), "nothing": values(a)}
    loads = ("load", state, None), ("load", part, False)
    called = ("call", values(a, b), {})
    yield call(tree, called, ("train", False), *loads, ("round trip",), ("train",))


@tiny_module.edge
def _():
    yield call({}), "no attributes"
    yield call({}, ("get", "nothing")), "no such attribute: AttributeError"
    one, two = {"weight": parameter(2)}, {"weight": parameter(2), "bias": parameter(3)}
    yield call(one, ("load", {}, True)), "a name is missing"
    more = {"weight": normal(2, seed=1), "x": normal(1)}
    yield call(one, ("load", more, True)), "a name is unexpected: nothing may have changed"
    for state, why in (({}, "missing"), ({"x": normal(1), "bias": normal(3)}, "unexpected")):
        both = call(two, ("load", {"weight": normal(3), **state}, True))
        yield both, f"a name is {why} and a shape differs: names are compared first"
    wrong = {"weight": normal(2, seed=1), "bias": normal(2, seed=2)}
    yield call(two, ("load", wrong, True)), "a shape differs: nothing may have changed"
    yield call(two, ("load", {"bias": normal(1)}, False)), "a shape that would broadcast"
    nested = {"weight": parameter(2), "inner": {"bias": parameter(3)}}
    below = {"weight": normal(2, seed=1), "inner.bias": normal(2)}
    yield call(nested, ("load", below, True)), "a child's shape differs: nothing may have changed"
    yield call(nested, ("load", {"weight": normal(2, seed=1)}, True)), "a child's name is missing"
    double = {"weight": normal(2, dtype=torch.float64, seed=5)}
    yield call(two, ("load", double, False)), "another dtype"
    yield call({**one, "shared": ("same", "weight")}), "one parameter with two names"
    yield call({**one, "inner": {"tied": ("same", "weight")}}, ("round trip",)), "tied"
    between = {"left": one, "right": {"tied": ("same", "weight")}}
    yield call(between, ("round trip",)), "tied between two children"
    frozen = {"weight": ("frozen", normal(2)), "bias": parameter(2)}
    yield call(frozen, ("round trip",)), "a frozen parameter is a parameter"
    yield call({"inner": {"training": False}}, ("train",)), "a child in eval mode"
    three = {"inner": {"deep": {"bias": parameter(1)}}}
    yield call(three, ("train", False), ("train",)), "three levels"
    child, buffer = {"inner": one}, {"mean": ("buffer", normal(2))}
    for tree, name, value, why in (
        (one, "weight", None, "a parameter becomes None"),
        (one, "weight", normal(2), "and a plain tensor"),
        (one, "weight", ("buffer", normal(2)), "and a buffer"),
        ({"weight": None}, "weight", parameter(2), "None becomes a parameter"),
        ({"weight": normal(2)}, "weight", parameter(2), "a tensor is trained"),
        (buffer, "mean", normal(3, seed=1), "a new buffer"),
        (buffer, "mean", None, "a buffer becomes None"),
        (buffer, "mean", parameter(2), "a buffer is trained"),
        (child, "inner", parameter(3), "a child goes"),
        ({"inner": parameter(2)}, "inner", {"weight": parameter(3)}, "a child comes"),
        (child, "inner.weight", parameter(3, seed=1), "a parameter is replaced"),
        (child, "inner", 3, "a child becomes a number"),
        ({"inner": None}, "inner", {"weight": parameter(3)}, "None becomes a child"),
        ({"inner": buffer["mean"]}, "inner", {"weight": parameter(3)}, "a buffer becomes a child"),
        ({"first": parameter(2), **one}, "first", parameter(4), "replaced: its place stays"),
    ):
        yield call(tree, ("set", name, value)), why
    for before in (normal(2, seed=1), None, parameter(3), {"weight": parameter(1)}):
        sets = ("set", "mean", ("buffer", normal(2))), ("set", "mean", normal(2, seed=2))
        yield call({"mean": before}, *sets), "whatever it was: then a buffer"


OWN = """\
for name, tensor in (self._parameters | self._buffers).items():
            yield prefix + name, tensor"""
BELOW = """\
for name, child in self._children.items():
            yield from child._named_state(f"{prefix}{name}.")"""

tiny_module.mistake(
    "Every tensor becomes a parameter. Only an nn.Parameter does; others are attributes.",
    replace("isinstance(value, nn.Parameter)", "isinstance(value, Tensor)"),
)
tiny_module.mistake(
    "Children are not registered: what is in them is neither trained nor saved.",
    replace("isinstance(value, TinyModule)", "False"),
)
tiny_module.mistake(
    "A name that means something else now is still registered. Take it out everywhere else.",
    replace("other.pop(name, None)", "pass"),
)
tiny_module.mistake(
    "An ordinary value is stored, and what its name was registered as stays: trained, saved or a child.",
    replace("kind = self.__dict__\n", "self.__dict__[name] = value\n            return\n"),
)
for hides in (
    replace("self._children, self.__dict__)", "self._children)"),
    replace(
        "self._put(kind, name, value)",
        "for other in (self._parameters, self._buffers, self._children):\n"
        "            if other is not kind:\n                other.pop(name, None)\n"
        "        kind[name] = value",
    ),
):
    tiny_module.mistake(
        "An ordinary attribute stays when its name is registered, and hides it: take it out of __dict__.",
        hides,
    )
tiny_module.mistake(
    'The prefix has no dot after it. As in torch, named_parameters("m") gives "m.weight".',
    replace('prefix and prefix + "."', "prefix"),
)
tiny_module.mistake(
    "named_parameters ignores its prefix.", replace('prefix and prefix + "."', '""')
)
tiny_module.mistake(
    "An attribute that does not exist is None. hasattr relies on AttributeError.",
    replace(
        """raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")""",
        "return None",
    ),
)
tiny_module.mistake(
    "__call__ drops the keyword arguments.", replace("forward(*args, **kwargs)", "forward(*args)")
)
tiny_module.mistake(
    "A tied parameter comes twice from named_parameters: an optimizer would step it twice.",
    replace(" and id(tensor) not in seen", ""),
)
tiny_module.mistake(
    "What is tied within one module comes once, between two modules twice: one set for the whole walk.",
    replace(
        *("id(tensor) not in seen", '(name.rpartition(".")[0], id(tensor)) not in seen'),
        *("seen.add(id(tensor))", 'seen.add((name.rpartition(".")[0], id(tensor)))'),
    ),
)
tiny_module.mistake(
    "What is tied between two children comes twice: each child begins with a set of its own, and what it gave "
    "is forgotten after it. Keep one set for the whole walk.",
    replace(
        'for name, tensor in self._named_state(prefix and prefix + "."):\n'
        "            if isinstance(tensor, nn.Parameter) and id(tensor) not in seen:\n"
        "                seen.add(id(tensor))\n"
        "                yield name, tensor",
        'start = prefix and prefix + "."\n'
        "        for name, tensor in self._parameters.items():\n"
        "            if id(tensor) not in seen:\n"
        "                seen.add(id(tensor))\n"
        "                yield start + name, tensor\n"
        "        for name, child in self._children.items():\n"
        "            for path, tensor in child.named_parameters(start + name):\n"
        "                if id(tensor) not in seen:\n"
        "                    yield path, tensor",
    ),
)
tiny_module.mistake(
    "state_dict leaves out the buffers. They are state, though they are not trained.",
    replace('_named_state("")}', '_named_state("") if isinstance(tensor, nn.Parameter)}'),
)
tiny_module.mistake(
    "state_dict holds a tied parameter once. A checkpoint has it under each of its names.",
    replace(
        'return {name: tensor.detach() for name, tensor in self._named_state("")}',
        "once = {}\n"
        '        for name, tensor in self._named_state(""):\n'
        "            once.setdefault(id(tensor), (name, tensor.detach()))\n"
        "        return dict(once.values())",
    ),
)
tiny_module.mistake(
    "state_dict, and load_state_dict with it, know a tied parameter by one name. It has two.",
    replace(
        'return {name: tensor.detach() for name, tensor in self._named_state("")}',
        "once = {}\n"
        '        for name, tensor in self._named_state(""):\n'
        "            once.setdefault(id(tensor), (name, tensor.detach()))\n"
        "        return dict(once.values())",
        *('mine = dict(self._named_state(""))', "mine = self.state_dict()"),
    ),
)
tiny_module.mistake(
    "state_dict copies. It holds the live values; whoever needs a copy makes one.",
    replace("tensor.detach()", "tensor.detach().clone()"),
)
tiny_module.mistake(
    "state_dict holds the parameters themselves, with their gradients. Detach them.",
    replace("tensor.detach()", "tensor"),
)
tiny_module.mistake(
    "load_state_dict makes new parameters; an optimizer holds the old. Copy into those.",
    replace(
        "mine[name].copy_(state[name])",
        'owner, (*path, last) = self, name.split(".")\n'
        "                for step in path:\n"
        "                    owner = getattr(owner, step)\n"
        "                trained = isinstance(mine[name], nn.Parameter)\n"
        "                setattr(owner, last, nn.Parameter(state[name]) if trained else state[name])",
    ),
)
tiny_module.mistake(
    "It is never strict: missing and unexpected names pass in silence.",
    replace("if strict and mine", "if False and mine"),
)
NAMES = """\
        if strict and mine.keys() != state.keys():
            raise KeyError(f"missing or unexpected: {sorted(mine.keys() ^ state.keys())}")
"""
tiny_module.mistake(
    "You compare shapes before names. Where both are wrong, KeyError is due: look at all names "
    "first.",
    replace(
        NAMES, "", "        with torch.no_grad():\n", f"{NAMES}        with torch.no_grad():\n"
    ),
)
tiny_module.mistake(
    "It is always strict, also with strict=False.", replace("if strict and mine", "if mine")
)
tiny_module.mistake(
    "Shapes are not compared: copy_ broadcasts, and one number fills a whole vector.",
    replace("mine[name].shape != state[name].shape", "False"),
)
tiny_module.mistake(
    "train sets the mode of this module alone; its children stay in theirs.",
    replace("child.train(mode)", "pass"),
)
tiny_module.mistake(
    "train returns None. Returning itself allows model = Model().train().",
    replace("train(mode)\n        return self", "train(mode)"),
)
tiny_module.mistake(
    "The children come first. As in torch, a module's own parameters do.",
    replace(f"{OWN}\n        {BELOW}", f"{BELOW}\n        {OWN}"),
)
tiny_module.mistake(
    "The dotted names lose their beginning below the second level: hand the prefix on.",
    replace('f"{prefix}{name}."', 'f"{name}."'),
)
tiny_module.mistake(
    "register_buffer leaves what the name meant before, which hides the buffer or is trained.",
    replace("self._put(self._buffers, name, tensor)", "self._buffers[name] = tensor"),
)
tiny_module.mistake(
    "register_buffer leaves the name in the other registers: a parameter of this name stays one.",
    replace(
        *("self._put(self._buffers, name, tensor)", "self._buffers[name] = tensor"),
        *(
            "(self._parameters | self._buffers).items()",
            "(*self._parameters.items(), *self._buffers.items())",
        ),
    ),
)
IN_DICT = (
    "register_buffer leaves an ordinary attribute of this name in __dict__, where Python looks first: the buffer "
    "is hidden behind it. Take the name out of __dict__ too."
)
A_CHILD = (
    "register_buffer leaves a child of this name, which keeps its place in the books beside the buffer. Take the "
    "name out of the children too."
)
A_PARAMETER = (
    "register_buffer leaves a parameter of this name, which is found before the buffer or trained beside it. Take "
    "the name out of the parameters too."
)
BOTH = "(self._parameters | self._buffers).items()"
EACH = "(*self._parameters.items(), *self._buffers.items())"
for others, says, books in (
    ("self._parameters, self._children", IN_DICT, BOTH),
    ("self._parameters, self.__dict__", A_CHILD, BOTH),
    ("self._children, self.__dict__", A_PARAMETER, BOTH),
    ("self._children, self.__dict__", A_PARAMETER, EACH),
):
    tiny_module.mistake(
        says,
        replace(
            "self._put(self._buffers, name, tensor)",
            f"for other in ({others}):\n            other.pop(name, None)\n"
            "        self._buffers[name] = tensor",
            *(BOTH, books),
        ),
    )
tiny_module.mistake(
    "A parameter that is assigned anew goes to the end of the order. It keeps its place.",
    replace("if other is not kind:", "if True:"),
)
tiny_module.mistake(
    "named_parameters leaves out the frozen ones. They are parameters, too.",
    replace("isinstance(tensor, nn.Parameter) and", "tensor.requires_grad and"),
)
tiny_module.mistake(
    "Buffers come from named_parameters; an optimizer would train them.",
    replace("isinstance(tensor, nn.Parameter) and ", ""),
)
tiny_module.mistake(
    "The children are put in train mode whatever was asked: hand the mode on.",
    replace("child.train(mode)", "child.train()"),
)
tiny_module.mistake(
    "load_state_dict writes while autograd looks on. Use no_grad, or the detached tensors.",
    replace("with torch.no_grad():", "if True:"),
)
tiny_module.mistake(
    "load_state_dict has copied some values when it raises. Look at all shapes first.",
    replace(
        "for name in shared:\n            if mine",
        "for name in shared:\n            if mine[name].shape == state[name].shape:\n"
        "                mine[name].data.copy_(state[name])\n            if mine",
    ),
)
tiny_module.mistake(
    "load_state_dict assigns `.data`: model and state then share memory. Copy the values.",
    replace("mine[name].copy_(state[name])", "mine[name].data = state[name]"),
)


for left, says in {
    "self.__dict__": "A child that is assigned leaves an ordinary attribute of its name, which hides it: take it out of __dict__.",
    "self._buffers": "A child that is assigned leaves the buffer of its name, which is still saved: take it out of the buffers.",
}.items():
    tiny_module.mistake(
        says,
        replace("if other is not kind:", f"if other is not (kind is self._children and {left}):"),
    )
tiny_module.mistake(
    "state_dict copies the buffers. It holds the live values of these, too.",
    replace(
        "tensor.detach() for",
        "tensor.detach() if isinstance(tensor, nn.Parameter) else tensor.clone() for",
    ),
)
for put in ("state[name]", "state[name].clone()"):
    tiny_module.mistake(
        "load_state_dict puts another tensor in a buffer's place. Copy the values into the one that is there.",
        replace(
            "mine[name].copy_(state[name])",
            "if isinstance(mine[name], nn.Parameter):\n"
            "                    mine[name].copy_(state[name])\n"
            "                    continue\n"
            '                owner, (*path, last) = self, name.split(".")\n'
            "                for step in path:\n"
            "                    owner = owner._children[step]\n"
            f"                owner._buffers[last] = {put}",
        ),
    )
tiny_module.mistake(
    "load_state_dict goes from module to module, and has written a parent when a child's shape does not fit. Look at "
    "all shapes first.",
    replace(
        "for name in shared:\n            if mine",
        'for name in sorted(shared, key=lambda name: name.count(".")):\n'
        '            if "." in name:\n'
        "                for own in shared:\n"
        '                    if "." not in own:\n'
        "                        mine[own].data.copy_(state[own])\n"
        "            if mine",
    ),
)


@tiny_module.alternative("attributes in __dict__, the books kept as dictionaries of names")
class _:
    def __init__(self):
        self.__dict__["_names"] = {}
        self.training = True

    def __setattr__(self, name, value):
        names = self.__dict__["_names"]
        if isinstance(value, nn.Parameter):
            kind = "parameter"
        elif hasattr(type(value), "register_buffer"):
            kind = "child"
        elif names.get(name) == "buffer" and isinstance(value, torch.Tensor):
            kind = "buffer"
        else:
            kind = None
        if names.get(name) != kind:
            names.pop(name, None)
        if kind:
            names[name] = kind
        self.__dict__[name] = value

    def __getattr__(self, name):
        raise AttributeError(f"no {name}")

    def register_buffer(self, name, tensor):
        self.__dict__["_names"].pop(name, None)
        self.__dict__["_names"][name] = "buffer"
        self.__dict__[name] = tensor

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def _walk(self, prefix, *kinds):
        values = self.__dict__
        for kind in kinds:
            yield from ((prefix + n, values[n]) for n, k in self._names.items() if k == kind)
        for name, child in self._children():
            yield from child._walk(prefix + name + ".", *kinds)

    def _children(self):
        return [(n, self.__dict__[n]) for n, kind in self._names.items() if kind == "child"]

    def named_parameters(self, prefix=""):
        found = {}
        for name, value in self._walk(prefix + "." if prefix else "", "parameter"):
            found.setdefault(value, name)
        return [(name, value) for value, name in found.items()]

    def state_dict(self):
        return {name: value.data for name, value in self._walk("", "parameter", "buffer")}

    @torch.no_grad()
    def load_state_dict(self, state, strict=True):
        mine = dict(self._walk("", "parameter", "buffer"))
        if strict and mine.keys() ^ state.keys():
            raise KeyError("missing or unexpected")
        pairs = [(mine[name], state[name]) for name in mine.keys() & state.keys()]
        if any(to.shape != value.shape for to, value in pairs):
            raise RuntimeError("shapes")
        for to, value in pairs:
            to.copy_(value)

    def train(self, mode=True):
        for _, child in self._children():
            child.train(mode)
        self.training = mode
        return self
