"""Exercises of chapter 6, autograd: from a difference quotient to the bytes that a graph keeps."""
# ruff: noqa: B905 (mistakes are written as students write them)

import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes import prepared
from course_utils.meters import measure
from course_utils.reference import autograd

NAN, INF = float("nan"), float("inf")

SQUARES = "lambda x: x.square().sum()"
CUBES = "lambda x: (x ** 3).sum()"
QUARTIC = "lambda x: (x ** 4).sum()"
LOGSUMEXP = "lambda x: x.logsumexp(dim=tuple(range(x.ndim)))"
CHAIN = "lambda x: (x.flatten()[1:] * x.flatten()[:-1] ** 2).sum()"
MIXED = "lambda x: (x.sin() * x.sum()).sum()"
SUM_CUBED = "lambda x: x.sum() ** 3"
COLUMNS = "lambda x: x.cumsum(0).pow(3).sum()"
LINEAR = "lambda x: (3 * x).sum()"
OF_SHAPE_1_1 = "lambda x: (x ** 3).sum().view(1, 1)"
WITH_PARAMETER = "lambda x, w=torch.tensor(2.0, requires_grad=True): (w * x ** 3).sum()"
LINEAR_IN_X = "lambda x, w=torch.tensor(2.0, requires_grad=True): (w * x).sum()"
CONSTANT_IN_X = "lambda x, w=torch.tensor(2.0, requires_grad=True): w ** 2"
CURVED = (CUBES, QUARTIC, LOGSUMEXP, CHAIN, MIXED, SUM_CUBED, COLUMNS)

SQUARED_ERROR = "lambda w, x, y: (x @ w - y).square().mean()"
CROSS_ENTROPY = "lambda w, x, y: F.cross_entropy(x @ w, y)"
TANH_ERROR = "lambda w, x, y: ((x @ w).tanh() - y).square().mean()"
BY_LENGTH = "lambda w, x, y: (x @ w - y).square().sum() / len(x)"
WITH_BIAS = (
    "lambda w, x, y, b=torch.tensor(2.0, requires_grad=True): (x @ w + b - y).square().mean()"
)


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(high, *shape, low=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0))


def leaf(x):
    return x.clone().requires_grad_()


# --------------------------------------------------------------------------- numerical_gradient

numerical_gradient = Exercise(
    autograd.numerical_gradient,
    title="A gradient by differences",
    difficulty=1,
    minutes=12,
    points=2,
    probe=probes.takes_differences,
    # the difference of two nearly equal numbers loses a factor of 1 / eps in accuracy
    length=lambda case: round(eps_of(case) ** -2) if case.args[1].dtype == torch.float64 else 9,
    hints=(
        "One element at a time: move it up by eps, move it down by eps, and compare f.",
        "The two points are 2·eps apart. All other elements stay where they are.",
        (
            "random cases",
            "x + 1e-6 is x in float32 where x is 32 or more. Take the differences in float64, and return x's dtype.",
        ),
        ("edge cases", "x may be a view with any strides, or require grad. Work on a copy of it."),
    ),
)


def eps_of(case):
    return case.args[2] if len(case.args) > 2 else 1e-6


@numerical_gradient.by_hand
def _():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    yield call(SQUARES, x, 0.5), torch.tensor([2.0, 4.0], dtype=torch.float64)
    yield call(CUBES, x, 0.1), torch.tensor([3.01, 12.01], dtype=torch.float64)
    yield call(LINEAR, x.view(2, 1), 0.5), torch.full((2, 1), 3.0, dtype=torch.float64)


@numerical_gradient.cases
def _(draw):
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    shape = draw(draws.distinct_sizes(draw(st.integers(1, 2)), 1, 4))
    x = draw(draws.tensors(shape, dtype))
    f = draw(st.sampled_from((SQUARES, *CURVED)))
    if draw(st.booleans()):
        yield call(f, x)
    else:
        yield call(f, x, draw(st.sampled_from([0.3, 0.1, 1e-2, 1e-3])))


@numerical_gradient.edge
def _():
    yield call(SUM_CUBED, normal(dtype=torch.float64), 0.1), "no axes: one element"
    yield call(SQUARES, torch.zeros(0, 3, dtype=torch.float64)), "no elements"
    yield call(CHAIN, normal(3, 2, dtype=torch.float64).T, 0.1), "not contiguous"
    yield call(COLUMNS, normal(2, 2, dtype=torch.float64), 0.1), "f looks at the shape"
    yield (
        call(CUBES, normal(1, 3, dtype=torch.float64).expand(2, 3), 0.1),
        "expanded: rows share their storage, and yet are elements of their own",
    )
    yield call(MIXED, leaf(normal(3, dtype=torch.float64)), 0.1), "x requires grad"
    yield call(WITH_PARAMETER, normal(3, dtype=torch.float64), 0.1), "f uses what requires grad"
    yield call(OF_SHAPE_1_1, normal(3, dtype=torch.float64), 0.1), "one element, in two axes"
    yield call(CUBES, torch.tensor([100.0, -40.0])), "float32, far from zero"
    yield call(LOGSUMEXP, normal(4).bfloat16(), 1e-3), "bfloat16"


numerical_gradient.mistake(
    "These are one-sided differences, (f(x + eps) - f(x)) / eps: their error shrinks with eps, that of the central ones with eps². Step to both sides.",
    replace("f((flat - step).view(x.shape))", "f(flat.view(x.shape))", "(2 * eps)", "eps"),
)
numerical_gradient.mistake(
    "You divide by eps, but the two points are 2·eps apart: twice the gradient.",
    replace("(2 * eps)", "eps"),
)
numerical_gradient.mistake(
    "You move all elements at once. That is the slope along (1, 1, …, 1), one number; a partial derivative moves one element and keeps the rest.",
    replace("step[i] = eps", "step.fill_(eps)"),
)
numerical_gradient.mistake(
    "An element stays moved when you come to the next one. Put it back, or start from a fresh copy.",
    replace("/ (2 * eps)", "/ (2 * eps)\n        flat = flat - step"),
)
numerical_gradient.mistake(
    "f is called in x's own dtype. In float32, f(x ± 1e-6) agree in all but the last digits, and their difference is mostly rounding: give f points in float64, and cast the gradient back.",
    replace(".double()", ""),
)
numerical_gradient.mistake(
    "You step in x's own dtype and cast afterwards. In float32 x ± 1e-6 is rounded by then: cast x to float64 first, and then step.",
    replace(
        *(".double()", ""),
        *("(flat + step)", "(flat + step).double()", "(flat - step)", "(flat - step).double()"),
    ),
)


@numerical_gradient.mistake(
    "This is autograd's own gradient. The point of a numerical one is that it does not trust autograd: call f and nothing else."
)
def _(f, x, eps=1e-6):
    p = x.detach().clone().requires_grad_()
    return torch.autograd.grad(f(p), p)[0]


@numerical_gradient.mistake(
    "You step inside the caller's own x. Adding eps and taking it away again does not give back the same bits, and fails on tensors that share or skip storage. Work on a copy."
)
def _(f, x, eps=1e-6):
    flat, gradient = x.detach().view(-1), torch.zeros(x.numel(), dtype=x.dtype)
    for i in range(x.numel()):
        flat[i] += eps
        above = f(x.detach().double()).item()
        flat[i] -= 2 * eps
        gradient[i] = (above - f(x.detach().double()).item()) / (2 * eps)
        flat[i] += eps
    return gradient.view(x.shape)


numerical_gradient.mistake(
    "Your result is still attached to a graph where x requires grad. A check of gradients must not record any: start from x.detach().",
    replace("x.detach()", "x", ".item()", ""),
)
numerical_gradient.mistake(
    "You hand f a flat vector. f may well look at rows and columns: give each point x's shape.",
    replace(
        "f((flat + step).view(x.shape)), f((flat - step).view(x.shape))",
        "f(flat + step), f(flat - step)",
    ),
)
numerical_gradient.mistake(
    "Your result requires grad where f uses a parameter that does: take the value out, with .item() or detach().",
    replace(".item()", ""),
)
numerical_gradient.mistake(
    "You call f four times for each element, or more. Two are enough: keep the two values.",
    replace("(above - below)", "(f((flat + step).view(x.shape)) - f((flat - step).view(x.shape)))"),
)
numerical_gradient.mistake(
    "len(x) counts rows: you move a whole row at once. Every element has a step of its own.",
    replace(".flatten()", ""),
)
numerical_gradient.mistake(
    "Your result stays in float64, in which the differences were taken. It has the dtype of x: cast it back.",
    replace(".to(x.dtype)", ""),
)
numerical_gradient.mistake(
    "A copy made by clone() keeps the order of x's strides, so view(-1) raises where x is transposed. flatten() and reshape(-1) take any strides.",
    replace(".flatten()", ".clone().view(-1)"),
)
numerical_gradient.mistake(
    "view(-1) raises where x is transposed or expanded: no view can flatten that. Use flatten() or reshape(-1).",
    replace(".flatten()", ".view(-1)"),
)


@numerical_gradient.mistake(
    "double() makes no copy of an x that is float64 already, so your steps are taken inside the caller's own x, and adding eps and taking it away again does not give back the same bits. Work on a clone."
)
def _(f, x, eps=1e-6):
    flat = x.detach().double().reshape(-1)
    gradient = torch.zeros_like(flat)
    for i in range(len(flat)):
        flat[i] += eps
        above = f(flat.reshape(x.shape)).item()
        flat[i] -= 2 * eps
        gradient[i] = (above - f(flat.reshape(x.shape)).item()) / (2 * eps)
        flat[i] += eps
    return gradient.view(x.shape).to(x.dtype)


@numerical_gradient.mistake(
    "You step in a flat copy of your copy. Where x is transposed, reshape(-1) cannot be a view, and clone() keeps the order of the strides: f never sees your steps, and every difference is 0. Flatten first, and give f each point in x's shape."
)
def _(f, x, eps=1e-6):
    p = x.detach().double().clone()
    flat = p.reshape(-1)
    gradient = torch.zeros_like(flat)
    for i in range(len(flat)):
        old = flat[i].item()
        flat[i] = old + eps
        above = f(p).item()
        flat[i] = old - eps
        gradient[i] = (above - f(p).item()) / (2 * eps)
        flat[i] = old
    return gradient.view(x.shape).to(x.dtype)


@numerical_gradient.alternative("all points in one call of f, by vmap")
def _(f, x, eps=1e-6):
    p = x.detach().double()
    steps = eps * torch.eye(p.numel(), dtype=p.dtype).view(p.numel(), *p.shape)
    points = torch.cat([p + steps, p - steps])
    values = torch.vmap(lambda q: f(q).sum())(points) if len(points) else p.new_zeros(0)
    above, below = values.detach().chunk(2) if len(points) else (values, values)
    return ((above - below) / (2 * eps)).view(x.shape).to(x.dtype)


@numerical_gradient.alternative("in place on a copy, each element put back from where it was")
def _(f, x, eps=1e-6):
    p = x.detach().to(torch.float64, copy=True).contiguous()
    gradient, flat = torch.empty(p.shape, dtype=torch.float64), p.view(-1)
    for i in range(flat.numel()):
        old = flat[i].item()
        flat[i] = old + eps
        above = f(p).item()
        flat[i] = old - eps
        below = f(p).item()
        flat[i] = old
        gradient.view(-1)[i] = (above - below) / (2 * eps)
    return gradient.to(x.dtype)


numerical_gradient.equivalent(
    "numerical_gradient: `x.detach()` → `x`",
    because="only numbers are taken out of what f returns: the graph that it then records is dropped",
)
numerical_gradient.equivalent(
    "numerical_gradient: `torch.zeros_like(flat)` → `torch.ones_like(flat)` [#1]",
    because="every element of it is overwritten before it is read",
)


# ------------------------------------------------------------------------------- softmax_vjp

softmax_vjp = Exercise(
    autograd.softmax_vjp,
    title="Backward of a softmax",
    difficulty=2,
    minutes=12,
    points=3,
    hints=(
        "One row: ∂y_i/∂x_j is y_i · (1 if i == j else 0) - y_i · y_j. Multiply by grad_i and sum over i.",
        "The sum splits in two: y_j · grad_j, and y_j times one number that all j of the row share.",
        "That number is (grad * y).sum over the last axis; keepdim=True lets it broadcast.",
    ),
)


@softmax_vjp.by_hand
def _():
    y = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    grad = torch.tensor([[1.0, 0.0], [4.0, 0.0]])
    yield call(y, grad), torch.tensor([[0.25, -0.25], [0.75, -0.75]])


@softmax_vjp.cases
def _(draw):
    shape = draw(draws.distinct_sizes(draw(st.integers(1, 3))))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    y = draw(draws.tensors(shape, dtype, scale=2.0)).softmax(-1)
    yield call(y, draw(draws.tensors(shape, dtype)))


@softmax_vjp.edge
def _():
    yield call(torch.ones(3, 1), normal(3, 1)), "one class: y cannot move"
    yield call(torch.tensor([1.0, 0.0, 0.0]), normal(3)), "all mass on one class"
    yield call(torch.zeros(0, 4), torch.zeros(0, 4)), "no rows"
    yield (
        call(
            draws.scattered(normal(2, 3, 4).softmax(-1)), draws.scattered(normal(2, 3, 4, seed=1))
        ),
        "not contiguous",
    )
    yield call(torch.tensor([0.5, 0.25, 0.25]), torch.ones(3)), "a constant gradient gives zero"
    yield call(normal(2, 9).softmax(-1).bfloat16(), normal(2, 9, seed=1).bfloat16()), "bfloat16"


def rows(n, V):
    """A softmax of n rows, and a gradient for it."""
    return call(normal(n, V).softmax(-1), normal(n, V, seed=1))


softmax_vjp.contract(
    contracts.largest_tensor([rows(4, 256)], limit=2 * 4 * 4 * 256, says="no (V, V) Jacobian")
)
softmax_vjp.contract(
    contracts.constant_kernels(
        [rows(2, 5), rows(20, 50)], "all in torch, no Python loop over rows or classes"
    )
)
softmax_vjp.mistake(
    "Only the diagonal of the Jacobian is there, y · (1 - y). A softmax is no elementwise function: raising one score lowers all other probabilities.",
    replace("y * (grad - inner)", "grad * y * (1 - y)"),
)
softmax_vjp.mistake(
    "You add up y · grad over the whole tensor. Every row is a softmax of its own: sum over the last axis, with keepdim=True.",
    replace(".sum(dim=-1, keepdim=True)", ".sum()"),
)
softmax_vjp.mistake(
    "The last factor is missing: y multiplies the bracket, for every element.",
    replace("y * (grad - inner)", "grad - inner"),
)
softmax_vjp.mistake(
    "You subtract the plain mean of the gradient. The softmax weighs it: the sum of grad · y.",
    replace("(grad * y).sum(", "grad.mean("),
)
softmax_vjp.mistake(
    "You take the mean of grad · y over the classes. It is their sum: the weights y add up to 1 already.",
    replace("(grad * y).sum(", "(grad * y).mean("),
)
softmax_vjp.mistake(
    "You treat y as x and take its softmax again. y is the result of the forward pass already.",
    replace("inner =", "y = y.softmax(-1)\n    inner ="),
)
for edited, made_of in (
    ("grad.sub_(inner).mul_(y)", "(grad * y)"),
    ("grad.sub_(inner) * y", "(grad * y)"),
    ("grad - inner * y", "grad.mul_(y)"),
):
    softmax_vjp.mistake(
        "You write into the gradient that came in. It belongs to the caller, and other branches of the graph may still add to it: an edit in place breaks them.",
        replace("y * (grad - inner)", edited, "(grad * y)", made_of),
    )
softmax_vjp.mistake(
    "You write into y. It is the saved result of the forward pass, and others may still need it: multiply out of place.",
    replace("y * (grad - inner)", "y.mul_(grad - inner)"),
)
softmax_vjp.mistake(
    "You compute in float32 and stay there. The result has the dtype of its arguments, and float64 has more digits than that.",
    replace("inner =", "y, grad = y.float(), grad.float()\n    inner ="),
)


@softmax_vjp.mistake(
    "The values are right, but you built the Jacobian: V² numbers a row, to multiply them once. For V = 50,257 that is 10 GB a token.",
    cost=True,
)
def _(y, grad):
    jacobian = y.diag_embed() - y[..., :, None] * y[..., None, :]
    return (jacobian @ grad[..., None])[..., 0]


@softmax_vjp.mistake(
    "The values are right, but you go row by row in Python; keepdim=True does all rows at once.",
    cost=True,
)
def _(y, grad):
    if y.ndim == 1 or y.size(0) == 0:
        return y * (grad - (grad * y).sum())
    rows = zip(y.reshape(-1, y.size(-1)), grad.reshape(-1, y.size(-1)))
    return torch.stack([a * (g - (g * a).sum()) for a, g in rows]).view(y.shape)


softmax_vjp.mistake(
    "You sum over the wrong axis. The classes of a row are the last axis.",
    replace("dim=-1", "dim=0"),
)
for axis in ("dim=1", "dim=min(1, y.ndim - 1)"):
    softmax_vjp.mistake(
        "You sum over axis 1. That is the last one of a matrix only; the classes are the last axis, however many come before it: dim=-1.",
        replace("dim=-1", axis),
    )
softmax_vjp.mistake(
    "You subtract the plain sum of the gradient. The softmax weighs it: the sum of grad · y.",
    replace("(grad * y).sum(", "grad.sum("),
)
softmax_vjp.mistake(
    "Without keepdim=True the sums lose their axis: they are not broadcast to their own rows.",
    replace(", keepdim=True", ""),
)
softmax_vjp.mistake(
    "The signs are swapped: it is grad minus the weighted sum.",
    replace("grad - inner", "inner - grad"),
)
softmax_vjp.mistake(
    "y multiplies grad, but not the sum. It is y · (grad - sum): both terms carry the factor y.",
    replace("y * (grad - inner)", "y * grad - inner"),
)
softmax_vjp.mistake(
    "y multiplies the sum, but not grad. It is y · (grad - sum): both terms carry the factor y.",
    replace("y * (grad - inner)", "grad - y * inner"),
)
softmax_vjp.mistake(
    "This is the rule of the log-softmax, grad - y · Σ grad. That of the softmax is y · (grad - Σ grad · y).",
    replace("(grad * y).sum(", "grad.sum(", "y * (grad - inner)", "grad - y * inner"),
)


@softmax_vjp.alternative("the kernel that torch's own backward calls")
def _(y, grad):
    return torch._softmax_backward_data(grad, y, -1, y.dtype)


@softmax_vjp.alternative("an einsum")
def _(y, grad):
    return y * grad - y * torch.einsum("...v,...v->...", y, grad).unsqueeze(-1)


# ------------------------------------------------------------------- cross_entropy_backward

cross_entropy_backward = Exercise(
    autograd.cross_entropy_backward,
    title="Where a language model's gradient begins",
    difficulty=2,
    minutes=15,
    points=3,
    hints=(
        "For one row, loss = logsumexp(logits) - logits[target]. Differentiate the two terms.",
        "The first gives the softmax, the second a one at the target: softmax - one_hot.",
        "The loss is a mean: divide by the number of rows that count, not by N.",
        (
            "edge cases",
            "ignore_index is no column: replace it before you index. What if no row counts?",
        ),
        ("contracts", "one_hot is int64, eight bytes an element. Subtract 1 at N places instead."),
    ),
)


@cross_entropy_backward.by_hand
def _():
    yield call(torch.zeros(1, 2), torch.tensor([1])), torch.tensor([[0.5, -0.5]])
    yield (
        call(torch.zeros(3, 2), torch.tensor([1, -100, 0])),
        torch.tensor([[0.25, -0.25], [0.0, 0.0], [-0.25, 0.25]]),
    )


@cross_entropy_backward.cases
def _(draw):
    N, V = draw(draws.distinct_sizes(2))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    logits = draw(draws.tensors((N, V), dtype, scale=2.0))
    targets = draw(draws.indices((N,), V))
    ignore = draw(st.sampled_from([None, -100, -1, 0]))
    if ignore is None:
        yield call(logits, targets)
    else:
        spared = draw(draws.tensors((N,), torch.bool))
        yield call(logits, torch.where(spared, targets, ignore), ignore)


@cross_entropy_backward.edge
def _():
    yield call(torch.tensor([[1e4, 0.0, -1e4]]), torch.tensor([1])), "exp(10,000) overflows"
    apart = torch.tensor([[0.0, 1.0, 2.0], [-1e4, 1 - 1e4, 2 - 1e4]])
    yield call(apart, torch.tensor([1, 0])), "one row lies far below the other"
    yield call(normal(2, 1), torch.tensor([0, 0])), "one class: nothing to learn"
    yield call(normal(2, 1), torch.tensor([0, -100])), "one class, and a row that does not count"
    yield call(normal(2, 3), torch.tensor([-100, -100])), "no row counts: zeros, not NaN"
    yield call(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)), "no rows"
    yield call(draws.scattered(normal(3, 5)), torch.tensor([4, 0, 2])), "not contiguous"
    yield call(normal(3, 4), torch.tensor([1, 999, 2]), 999), "an ignore_index beyond V"


cross_entropy_backward.contract(
    contracts.largest_tensor(
        [call(normal(16, 200), integers(200, 16))], 4 * 16 * 200, "no tensor larger than the logits"
    )
)
cross_entropy_backward.contract(
    contracts.constant_kernels(
        [call(normal(2, 9), integers(9, 2)), call(normal(24, 9), integers(9, 24))],
        says="all in torch, no Python loop over the rows",
    )
)
cross_entropy_backward.mistake(
    "You divide by N. Rows with ignore_index do not count, neither in the sum nor in the number.",
    replace("counts.sum().clamp(min=1)", "max(len(targets), 1)"),
)
cross_entropy_backward.mistake(
    "You divide one count by another, and the quotient is float32, whatever dtype the logits have: float64 loses half of its digits. Divide the gradient itself by the count.",
    replace(
        ".div_(counts.sum().clamp(min=1))", ".mul_(counts[:, None] / counts.sum().clamp(min=1))"
    ),
)
cross_entropy_backward.mistake(
    "This is the gradient of the sum. The loss is a mean over the rows that count: divide by their number, or the step grows with the batch.",
    replace(".div_(counts.sum().clamp(min=1))", ""),
)
cross_entropy_backward.mistake(
    "The sign is wrong: a step *against* the gradient has to raise the target's logit, so the gradient there is negative.",
    replace("return gradient", "return -gradient"),
)
cross_entropy_backward.mistake(
    "Rows with ignore_index still get the softmax as a gradient. Their whole row is zero.",
    replace(
        "torch.arange(len(targets)), torch.where(counts, targets, 0)",
        "counts, targets[counts]",
        "    gradient.masked_fill_(~counts[:, None], 0.0)\n",
        "",
    ),
)
cross_entropy_backward.mistake(
    "exp overflows: above 88 it is infinite in float32, and inf / inf is NaN. Subtract each row's largest logit first, or use softmax.",
    replace("logits.softmax(dim=-1)", "logits.exp() / logits.exp().sum(-1, keepdim=True)"),
)
for some in ("", "if counts.any() else 0"):
    cross_entropy_backward.mistake(
        "You subtract the largest logit of the whole matrix. A row far below it underflows to zeros, and 0 / 0 is NaN: subtract each row's own, or use softmax.",
        replace(
            "gradient = logits.softmax(dim=-1)",
            f"gradient = (logits - (logits.max() {some})).exp()\n"
            "    gradient = gradient / gradient.sum(-1, keepdim=True)",
        ),
    )
cross_entropy_backward.mistake(
    "Where no row counts you divide 0 by 0: NaN, which then spoils every parameter. Return zeros.",
    replace(".clamp(min=1)", ""),
)
cross_entropy_backward.mistake(
    "You take -100 for the row to skip, whatever ignore_index says. A padding token's own id is as common a choice.",
    replace(
        "counts = targets != ignore_index",
        "counts = targets != -100",
        "torch.where(counts, targets, 0)",
        "torch.where(targets != ignore_index, targets, 0)",
    ),
)
cross_entropy_backward.mistake(
    "You take -100 for the row to skip, whatever ignore_index says, and index with every other target. A padding token's own id is as common a choice.",
    replace("counts = targets != ignore_index", "counts = targets != -100"),
)
for kept, says in {
    "targets != -100": "Rows of -100 are those that you skip, whatever ignore_index says; scatter takes every other target as a column. A padding token's own id is as common a choice.",
    "targets >= 0": "Rows with a negative target are those that you skip, whatever ignore_index says; scatter takes every other target as a column. A padding token's own id is as common a choice.",
}.items():
    cross_entropy_backward.mistake(
        says,
        replace(
            "targets != ignore_index",
            kept,
            "gradient[torch.arange(len(targets)), torch.where(counts, targets, 0)] -= 1.0",
            "at = torch.where(counts, targets, 0)[:, None]\n"
            "    gradient.scatter_add_(1, at, torch.full_like(at, -1, dtype=gradient.dtype))",
        ),
    )
cross_entropy_backward.mistake(
    "You turn the caller's logits into probabilities in place. They may be saved for another backward pass: an edit in place breaks it.",
    replace("    return", "    logits.copy_(logits.softmax(-1))\n    return"),
)
cross_entropy_backward.mistake(
    "The values are right, but one_hot makes an int64 tensor, twice the bytes of the logits, of which all but N elements are zero.",
    replace(
        "gradient[torch.arange(len(targets)), torch.where(counts, targets, 0)] -= 1.0",
        "gradient -= torch.nn.functional.one_hot(torch.where(counts, targets, 0), logits.size(1))",
    ),
    cost=True,
)
cross_entropy_backward.mistake(
    "The values are right, but you visit the rows one at a time in Python.",
    replace(
        "gradient[torch.arange(len(targets)), torch.where(counts, targets, 0)] -= 1.0",
        "for row, target in zip(gradient, torch.where(counts, targets, 0)):\n        row[target] -= 1.0",
    ),
    cost=True,
)
cross_entropy_backward.mistake(
    "`gradient[:, targets]` takes these columns of *every* row. Pair each row with its target: gradient[torch.arange(N), targets].",
    replace("torch.arange(len(targets))", ":"),
)
cross_entropy_backward.mistake(
    "You index with ignore_index itself, which need not be a column: put another in its place first.",
    replace("torch.where(counts, targets, 0)", "targets"),
)
cross_entropy_backward.mistake(
    "The softmax goes over the classes, the last axis; yours goes over the rows.",
    replace("dim=-1", "dim=0"),
)
cross_entropy_backward.mistake(
    "You subtract each row's largest logit in place: the caller's logits are changed.",
    replace("logits.softmax", "logits.sub_(logits.amax(-1, keepdim=True)).softmax"),
)
cross_entropy_backward.mistake(
    "You divide the softmax by the number of rows, but not the 1 at the target.",
    replace(
        "logits.softmax(dim=-1)",
        "logits.softmax(dim=-1) / counts.sum().clamp(min=1)",
        ".div_(counts.sum().clamp(min=1))",
        "",
    ),
)
cross_entropy_backward.mistake(
    "You take the rows with a negative target for those to skip, whatever ignore_index says. It may be any number: a padding token's own id is a common choice.",
    replace("counts = targets != ignore_index", "counts = targets >= 0"),
)
cross_entropy_backward.mistake(
    "You skip the rows whose target is no column, whatever ignore_index says. It may well be a column: a padding token's own id is a common choice.",
    replace(
        "counts = targets != ignore_index",
        "counts = (targets >= 0) & (targets < logits.size(1))",
    ),
)


@cross_entropy_backward.alternative("scatter_add, and one weight a row")
def _(logits, targets, ignore_index=-100):
    counts = (targets != ignore_index).to(logits.dtype)
    weight = (counts / counts.sum().clamp(min=1)).unsqueeze(1)
    safe = targets.masked_fill(targets == ignore_index, 0).unsqueeze(1)
    return (logits.softmax(-1) * weight).scatter_add(1, safe, -weight)


@cross_entropy_backward.alternative("log-sum-exp by hand, columns compared with the target")
def _(logits, targets, ignore_index=-100):
    counts = targets != ignore_index
    shifted = logits - logits.amax(1, keepdim=True)
    p = (shifted - shifted.exp().sum(1, keepdim=True).log()).exp()
    at_target = torch.arange(logits.size(1)) == targets[:, None]
    return torch.where(counts[:, None], p - at_target.to(p.dtype), 0.0) / counts.sum().clamp(min=1)


cross_entropy_backward.equivalent(
    "cross_entropy_backward: `logits.softmax(dim=-1)` → `logits.softmax(dim=1)`",
    because="logits has two axes, so 1 and -1 name the same one",
)
cross_entropy_backward.equivalent(
    "cross_entropy_backward: `torch.where(counts, targets, 0)` → `torch.where(counts, targets, -1)`",
    because="the row is filled with zeros afterwards, so any column that exists will do, and the last one does",
)


# ----------------------------------------------------------------------- StraightThroughRound

straight_through_round = Exercise(
    autograd.StraightThroughRound,
    title="A gradient through rounding",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.saved_for_backward,
    hints=(
        "forward rounds and clamps; backward gets the gradient by the result and returns one gradient for each argument of forward: None for low and high.",
        "Where was nothing clamped? Where the rounded value lies in [low, high], ends included. Save that mask with ctx.save_for_backward.",
        ("contracts", "Four bytes an element are a float32 tensor. A mask of bools has one."),
    ),
)


@straight_through_round.by_hand
def _():
    # the incoming gradient of n elements goes from 0.2 to 1.2 in equal steps
    yield (
        call(torch.tensor([-3.4, 0.5, 1.5, 2.4, 2.6, 9.0]), -3, 2),
        {
            "forward": torch.tensor([-3.0, 0.0, 2.0, 2.0, 2.0, 2.0]),
            "gradient of `x`": torch.tensor([0.2, 0.4, 0.6, 0.8, 0.0, 0.0]),
        },
    )


@straight_through_round.cases
def _(draw):
    shape = draw(draws.distinct_sizes(draw(st.integers(1, 2))))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    low = draw(st.integers(-4, 0))
    yield call(draw(draws.tensors(shape, dtype, scale=3.0)), low, low + draw(st.integers(0, 5)))


@straight_through_round.edge
def _():
    halves = torch.arange(-2.5, 3.0)
    yield call(halves, -9, 9), "halves go to the even neighbour"
    yield call(halves, -2, 2), "halves, at the even ends of the range"
    yield call(halves, -1, 1), "halves, at the odd ends: 1.5 rounds to 2, and that is clamped"
    yield call(torch.tensor([126.6, 127.0, 127.4, 127.6, -128.4, -128.6]), -128, 127), "int8"
    yield call(torch.tensor([INF, -INF, 0.3]), -1, 1), "infinity is clamped"
    yield call(torch.tensor([NAN, 0.3]), -1, 1), "NaN"
    yield call(torch.zeros(0, 3), -1, 1), "no elements"
    yield call(torch.tensor(0.6), 0, 1), "no axes"
    yield call(draws.scattered(3 * normal(3, 2)), -2, 2), "not contiguous"
    yield (
        call(torch.tensor([0.3, 9.0, -9.0]), -2, 2, grad=torch.tensor([INF, INF, NAN])),
        "an incoming gradient that is not finite: what was clamped gets zero all the same",
    )
    yield call(normal(6).bfloat16() * 3, -2, 2), "bfloat16"


straight_through_round.contract(
    contracts.saved(
        [call(leaf(normal(8, 125)), -2, 2)],
        limit=lambda case: case.args[0].numel() + 64,
        says="one byte an element is saved",
        prepare=prepared.applied,
    )
)
straight_through_round.mistake(
    "You return the true derivative of rounding, which is zero almost everywhere: nothing would ever be learnt. The straight-through estimate passes the incoming gradient on.",
    replace("torch.where(inside, grad, 0.0)", "torch.zeros_like(grad)"),
)
straight_through_round.mistake(
    "The gradient passes where x was clamped as well. There the result does not follow x: it must be zero, or x drifts away for ever.",
    replace("torch.where(inside, grad, 0.0)", "grad"),
)
straight_through_round.mistake(
    "You compare x itself with low and high. What counts is the rounded value: 127.4 becomes 127, which is inside of [-128, 127].",
    replace("(low <= rounded) & (rounded <= high)", "(low <= x) & (x <= high)"),
)
straight_through_round.mistake(
    "At the ends, low and high, nothing is cut off: the gradient passes there too (<=, not <).",
    replace("(low <= rounded) & (rounded <= high)", "(low < rounded) & (rounded < high)"),
)
straight_through_round.mistake(
    "Your forward does not clamp: results leave [low, high].",
    replace("rounded.clamp(low, high)", "rounded"),
)
straight_through_round.mistake(
    "You return the mask and forget the gradient that comes in. Backward multiplies: it is a vector-Jacobian product, not a derivative.",
    replace("torch.where(inside, grad, 0.0)", "inside.to(grad.dtype)"),
)
straight_through_round.mistake(
    "You round x in place. The caller's tensor is overwritten, and whoever saved it for backward is left with other numbers: use round(), not round_().",
    replace("x.round()", "x.round_()"),
)
straight_through_round.mistake(
    "floor(x + 0.5) sends every half up. Halves go to the even neighbour: 0.5 → 0, 1.5 → 2, 2.5 → 2.",
    replace("x.round()", "(x + 0.5).floor()"),
)
straight_through_round.mistake(
    "You save x, its rounded values or a mask of floats: four bytes an element, where a mask of bools has one. That mask is all that backward needs.",
    replace(
        "ctx.save_for_backward((low <= rounded) & (rounded <= high))",
        "ctx.save_for_backward(x)\n        ctx.range = low, high",
        "(inside,) = ctx.saved_tensors",
        "(x,), (low, high) = ctx.saved_tensors, ctx.range\n        inside = (low <= x.round()) & (x.round() <= high)",
    ),
    cost=True,
)
straight_through_round.mistake(
    "You keep x, or its rounded values, as an attribute of ctx: four bytes an element, which autograd neither counts nor watches. A mask of bools has one, and ctx.save_for_backward is its place.",
    replace(
        "ctx.save_for_backward((low <= rounded) & (rounded <= high))",
        "ctx.kept = rounded, low, high",
        "(inside,) = ctx.saved_tensors",
        "rounded, low, high = ctx.kept\n        inside = (low <= rounded) & (rounded <= high)",
    ),
)
straight_through_round.mistake(
    "You keep the mask as an attribute of ctx, where autograd neither counts it nor frees it after "
    "backward. Give it to ctx.save_for_backward.",
    replace(
        "ctx.save_for_backward((low <= rounded) & (rounded <= high))",
        "ctx.inside = (low <= rounded) & (rounded <= high)",
        "(inside,) = ctx.saved_tensors",
        "inside = ctx.inside",
    ),
)
straight_through_round.mistake(
    "inf · 0 is NaN: where x was clamped, an infinite gradient must give zero. Use torch.where or masked_fill.",
    replace("torch.where(inside, grad, 0.0)", "grad * inside"),
)
straight_through_round.mistake(
    "You write into the gradient that came in. Other branches of the graph may still add to it: use masked_fill, not masked_fill_.",
    replace("torch.where(inside, grad, 0.0)", "grad.masked_fill_(~inside, 0.0)"),
)
straight_through_round.mistake(
    "You keep the mask on the class, where the next call of apply overwrites it. Each call has a ctx of its own.",
    replace(
        "ctx.save_for_backward((low <= rounded) & (rounded <= high))",
        "StraightThroughRound.inside = (low <= rounded) & (rounded <= high)",
        "(inside,) = ctx.saved_tensors",
        "inside = StraightThroughRound.inside",
    ),
)
straight_through_round.mistake(
    "NaN is neither below low nor above high, so its gradient passes through your mask. Ask what is inside: low <= rounded <= high.",
    replace("(low <= rounded) & (rounded <= high)", "~((rounded < low) | (rounded > high))"),
)
straight_through_round.mistake(
    "You cut off the fraction. round() goes to the nearest whole number.",
    replace("x.round()", "x.trunc()"),
)


@straight_through_round.alternative("with setup_context, and masked_fill of what was clamped")
class _SetUpContext(torch.autograd.Function):
    @staticmethod
    def forward(x, low, high):
        return torch.round(x).clip(low, high)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, _, _ = inputs
        ctx.save_for_backward(torch.round(x) != output)

    @staticmethod
    def backward(ctx, grad):
        (clamped,) = ctx.saved_tensors
        return grad.masked_fill(clamped, 0.0), None, None


# --------------------------------------------------------------------------------------- SiLU

silu = Exercise(
    autograd.SiLU,
    title="An activation that saves its input only",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.custom_function,
    length=lambda case: 64,  # the terms of the second derivative cancel in part
    hints=(
        "y = x · s with s = sigmoid(x), and s' = s · (1 - s). Use the product rule.",
        "Save x with ctx.save_for_backward, and compute s again in backward.",
        "Where backward is made of torch operations on saved inputs, autograd differentiates it again.",
        ("contracts", "s costs as many bytes as x, and is quickly computed again."),
    ),
)


@silu.by_hand
def _():
    # the incoming gradient of a single element is 0.2; sigmoid(0) is a half
    yield (
        call(torch.tensor([0.0])),
        {
            "forward": torch.tensor([0.0]),
            "gradient of `x`": torch.tensor([0.2 * 0.5]),
            "second derivative": torch.tensor([0.2 * 0.2 * 0.5]),
            "gradcheck in float64": True,
        },
    )


@silu.cases(20)
def _(draw):
    shape = draw(draws.distinct_sizes(draw(st.integers(1, 2)), 1, 4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    yield call(draw(draws.tensors(shape, dtype, scale=2.0)))


@silu.edge
def _():
    yield call(torch.tensor(0.7)), "no axes"
    yield call(draws.scattered(normal(3, 2))), "not contiguous"
    yield call(torch.tensor([-200.0, 200.0, -1e4, 1e4])), "where exp(-x) overflows"


silu.contract(
    contracts.saved(
        [call(leaf(normal(8, 125)))],
        limit=lambda case: 4 * case.args[0].numel() + 64,
        says="x is saved, and nothing else",
        prepare=prepared.applied,
    )
)
silu.mistake(
    "The derivative lacks a term. x · sigmoid(x) is a product: s from the first factor, and x · s · (1 - s) from the second.",
    replace("grad * s * (1 + x * (1 - s))", "grad * s"),
)
silu.mistake(
    "You return the derivative and forget the gradient that comes in: backward is a vector-Jacobian product, so multiply by it.",
    replace("grad * s", "s"),
)
silu.mistake(
    "Your first derivative is right; the second is not: the sigmoid counts as a constant when backward is differentiated. You saved it in forward, where it is neither input nor result, or cut it off in backward by detach(), .data or no_grad. Save x alone, and compute the sigmoid from it in backward.",
    replace("s = x.sigmoid()", "s = x.detach().sigmoid()"),
)
silu.mistake(
    "Your gradient cannot be differentiated again. What you saved is neither input nor output of forward (the finished derivative, the sigmoid, a clone of x), so autograd takes it for a constant; or backward computes with it under no_grad, or is cut off as a whole. Save x itself, and compute with it outside of no_grad.",
    replace(
        "ctx.save_for_backward(x)",
        "s = x.sigmoid()\n        ctx.save_for_backward(s * (1 + x * (1 - s)))",
        "(x,) = ctx.saved_tensors\n        s = x.sigmoid()\n        return grad * s * (1 + x * (1 - s))",
        "return grad * ctx.saved_tensors[0]",
    ),
)
silu.mistake(
    "You kept x as an attribute of ctx. Autograd does not watch it there: after an edit in place, backward computes from other numbers and says nothing. Use ctx.save_for_backward.",
    replace("ctx.save_for_backward(x)", "ctx.x = x", "(x,) = ctx.saved_tensors", "x = ctx.x"),
)
silu.mistake(
    "You keep another tensor, such as the sigmoid, as an attribute of ctx beside x: twice the bytes, even if autograd does not count them. Compute it again in backward.",
    replace("ctx.save_for_backward(x)", "ctx.save_for_backward(x)\n        ctx.s = x.sigmoid()"),
)
silu.mistake(
    "You save the result, or the sigmoid, beside x: twice the bytes, to spare one elementwise pass.",
    replace(
        "ctx.save_for_backward(x)\n        return x * x.sigmoid()",
        "y = x * x.sigmoid()\n        ctx.save_for_backward(x, y)\n        return y",
        "(x,) = ctx.saved_tensors",
        "x, _ = ctx.saved_tensors",
    ),
    cost=True,
)
silu.mistake(
    "You write into the gradient that came in. Other branches of the graph may still add to it: multiply, not mul_.",
    replace("grad * s * (1 + x * (1 - s))", "grad.mul_(s * (1 + x * (1 - s)))"),
)
silu.mistake(
    "You keep x on the class, where the next call of apply overwrites it. Each call has a ctx of its own.",
    replace("ctx.save_for_backward(x)", "SiLU.x = x", "(x,) = ctx.saved_tensors", "x = SiLU.x"),
)
silu.mistake(
    "This is x times the derivative of the sigmoid. The product rule has a second term, s itself.",
    replace("(1 + x * (1 - s))", "x * (1 - s)"),
)
silu.mistake(
    "A bracket is in the wrong place: this is s · (1 + x) · (1 - s). Only x is multiplied by 1 - s: s · (1 + x · (1 - s)).",
    replace("(1 + x * (1 - s))", "(1 + x) * (1 - s)"),
)
silu.mistake(
    "This is the derivative of the sigmoid alone. The function is x · sigmoid(x): use the product rule.",
    replace("(1 + x * (1 - s))", "(1 - s)"),
)


silu.mistake(
    "exp(-x) is infinite for very negative x, and your derivative divides inf by inf there: NaN. Write it with x.sigmoid(), which has no such trouble.",
    replace(
        "s = x.sigmoid()",
        "e = (-x).exp()",
        "grad * s * (1 + x * (1 - s))",
        "grad * (1 + e + x * e) / (1 + e) ** 2",
    ),
)
silu.mistake(
    "Your first derivative is right, but exp(-x) is infinite for very negative x, and the second is 0 · inf there: NaN. Take x.sigmoid() in place of 1 / (1 + exp(-x)).",
    replace("s = x.sigmoid()", "s = 1 / (1 + (-x).exp())"),
)
for also in ((), ("x * x.sigmoid()", "x * (x.exp() / (1 + x.exp()))")):
    silu.mistake(
        "exp(x) is infinite for large x, and your sigmoid divides inf by inf there: NaN. x.sigmoid() has no such trouble.",
        replace("s = x.sigmoid()", "s = x.exp() / (1 + x.exp())", *also),
    )


@silu.alternative("with setup_context, derivative from y = x · s")
class _SiluSetUp(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return F.silu(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return (s + x * s * torch.sigmoid(-x)) * grad


@silu.alternative("autograd inside backward")
class _Nested(autograd.SiLU):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            y = x * x.sigmoid()
        create = grad.requires_grad or torch.is_grad_enabled()
        return torch.autograd.grad(y, x, grad, create_graph=create)[0]


# ------------------------------------------------------------------- hessian_vector_product

hessian_vector_product = Exercise(
    autograd.hessian_vector_product,
    title="Curvature without the Hessian",
    difficulty=3,
    minutes=20,
    points=4,
    probe=probes.takes_function_at,
    hints=(
        "H v is the gradient of a single number: the dot product of f's gradient with v.",
        "torch.autograd.grad(f(x), x, create_graph=True) gives a gradient that has a graph of its own.",
        "grad_outputs=v of a second torch.autograd.grad takes the dot product with v for you.",
        (
            "edge cases",
            "x.detach().requires_grad_() leaves the caller's x alone. Where f is linear or constant there may be no graph to go back through: look at requires_grad, and pass materialize_grads=True. torch.enable_grad() records even under no_grad.",
        ),
        ("contracts", "n rows of H cost n backward passes and n² numbers. One pass is enough."),
    ),
)


@hessian_vector_product.by_hand
def _():
    x, v = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    yield call(CUBES, x, v), torch.tensor([18.0, 60.0])  # H = diag(6 x)
    yield call(SUM_CUBED, x, v), torch.tensor([144.0, 144.0])  # H = 6 · 3 everywhere


@hessian_vector_product.cases
def _(draw):
    shape = draw(draws.distinct_sizes(draw(st.integers(1, 2)), 1, 5))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    x = draw(draws.tensors(shape, dtype))
    yield call(draw(st.sampled_from(CURVED)), x, draw(draws.tensors(shape, dtype)))


@hessian_vector_product.edge
def _():
    yield call(SUM_CUBED, torch.tensor(1.5), torch.tensor(2.0)), "no axes"
    x, v = normal(3), normal(3, seed=1)
    yield call(LINEAR, x, v), "a linear f has a Hessian of zeros"
    yield call("lambda x: x.sum()", x, v), "linear, with gradient 1"
    yield call(LINEAR_IN_X, x, v), "linear in x: the gradient requires grad, but not because of x"
    yield call("lambda x: torch.ones(())", x, v), "a constant: f(x) does not require grad"
    yield call(CONSTANT_IN_X, x, v), "f(x) requires grad, but not because of x"
    yield call(WITH_PARAMETER, x, v), "f uses what requires grad"
    yield call(CUBES, x, v, no_grad=True), "called under torch.no_grad()"
    yield call(OF_SHAPE_1_1, x, v), "one element, in two axes"
    yield (
        call(QUARTIC, draws.scattered(normal(3, 2)), draws.scattered(normal(3, 2, seed=1))),
        "not contiguous",
    )
    yield call(MIXED, leaf(x), v), "x requires grad already"
    yield call(CHAIN, normal(4), torch.zeros(4)), "v is zero"


hessian_vector_product.contract(
    contracts.largest_tensor(
        [call(MIXED, normal(60), normal(60, seed=1))],
        limit=4 * 4 * 60,
        says="no tensor of the Hessian's size",
        prepare=prepared.with_its_function,
    )
)
hessian_vector_product.contract(
    contracts.constant_kernels(
        [call(MIXED, normal(n), normal(n, seed=1)) for n in (3, 30)],
        says="all in torch: as many operations for 30 elements as for 3",
        prepare=prepared.with_its_function,
    )
)
# What the reference does for functions with little to differentiate, left out:
of_linear = replace(
    "    if not gradient.requires_grad:  # f is linear\n        return torch.zeros_like(x)\n", ""
)
of_constant = replace(
    "        if not value.requires_grad:  # f is constant\n            return torch.zeros_like(x)\n",
    "",
    "create_graph=True, materialize_grads=True",
    "create_graph=True",
)
of_other_parameters = replace("grad_outputs=v, materialize_grads=True", "grad_outputs=v")
recording = replace("with torch.enable_grad():", "if True:")

hessian_vector_product.mistake(
    "The graph is cut between the two derivatives (no create_graph=True, or a detach), so the gradient looks like a constant and every product is zero.",
    replace("create_graph=True, ", ""),
)
for of_the_sum in ("gradient.sum(), x", "gradient, x, grad_outputs=torch.ones_like(v)"):
    hessian_vector_product.mistake(
        "You differentiate the sum of the gradient and multiply by v afterwards. That scales each row's sum; v has to go into the dot product *before* the second derivative.",
        replace("gradient, x, grad_outputs=v", of_the_sum, "return product", "return product * v"),
    )
hessian_vector_product.mistake(
    "This is g (g · v), with the outer product of the gradient in the Hessian's place. The two agree on average for some losses at their optimum, not for any f.",
    replace(
        "    if not gradient",
        "    return (gradient * (gradient * v).sum()).detach()\n    if not gradient",
    ),
)
hessian_vector_product.mistake(
    "You multiply by v twice: grad_outputs=v has taken the dot product already.",
    replace("return product", "return product * v"),
)


@hessian_vector_product.mistake(
    "This is a difference of gradients along v. It is near, but exact only for quadratic f; differentiating the gradient costs the same, is exact, and calls f at x alone."
)
def _(f, x, v):
    slope = torch.func.grad(lambda point: f(point).sum())
    return ((slope(x + 1e-3 * v) - slope(x - 1e-3 * v)) / 2e-3).detach()


hessian_vector_product.mistake(
    "Where f is linear, its gradient does not depend on x and has no graph: the second grad raises. The answer there is zeros.",
    of_linear + of_other_parameters,
)
hessian_vector_product.mistake(
    "You turned requires_grad on for the caller's own x. From then on everything computed from it is recorded: use x.detach().requires_grad_(), a new leaf with the same data.",
    replace("x = x.detach().requires_grad_()", "x.requires_grad_()"),
)
hessian_vector_product.mistake(
    "You clear the .grad of the caller's x, which may hold what an earlier backward pass has left there. Leave it alone.",
    replace("    x = x.detach()", "    x.grad = None\n    x = x.detach()"),
)
hessian_vector_product.mistake(
    "backward() adds to the .grad of every leaf that f uses, its parameters as well. torch.autograd.grad returns the gradient by x and leaves theirs alone.",
    replace(
        "(product,) = torch.autograd.grad(gradient, x, grad_outputs=v, materialize_grads=True)",
        "gradient.backward(v)\n    product = torch.zeros_like(x) if x.grad is None else x.grad",
    ),
)
hessian_vector_product.mistake(
    "backward() in the first derivative adds to the .grad of every leaf that f uses, its parameters as well. torch.autograd.grad returns the gradient by x and leaves theirs alone.",
    replace(
        "(gradient,) = torch.autograd.grad(value, x, create_graph=True, materialize_grads=True)",
        "value.backward(create_graph=True)\n"
        "        gradient = torch.zeros_like(x) if x.grad is None else x.grad",
    ),
)
hessian_vector_product.mistake(
    "Your result drags its graph along (create_graph=True in the second call, too): it keeps all of f alive. Needed only for third derivatives.",
    replace("grad_outputs=v", "grad_outputs=v, create_graph=True"),
)


@hessian_vector_product.mistake(
    "The values are right, but the whole Hessian was built: n² numbers for a result of n. For a model of 10⁸ parameters that is 40 petabytes.",
    cost=True,
)
def _(f, x, v):
    n = x.numel()
    hessian = torch.func.hessian(f)(x.detach()).reshape(n, n)
    return (hessian @ v.reshape(n)).view(x.shape).detach()


hessian_vector_product.mistake(
    "The values are right, but you go through the Hessian row by row: n backward passes for what one can do.",
    replace(
        "(product,) = torch.autograd.grad(gradient, x, grad_outputs=v, materialize_grads=True)",
        "with torch.enable_grad():\n        rows = [torch.autograd.grad(g, x, retain_graph=True, materialize_grads=True)[0] for g in gradient.flatten()]",
        "return product",
        "return torch.stack([(row * v).sum() for row in rows]).view(x.shape)",
    ),
    cost=True,
)
hessian_vector_product.mistake(
    "Without create_graph=True the gradient has no graph of its own, and the second grad raises.",
    of_linear + replace("create_graph=True, ", ""),
)
hessian_vector_product.mistake(
    "The second derivative needs v: a gradient of n elements is no single number. Pass grad_outputs=v, or differentiate (gradient * v).sum().",
    replace("grad_outputs=v, ", ""),
)
none_is_zeros = replace(
    "create_graph=True, materialize_grads=True",
    "create_graph=True, allow_unused=True",
    "if not gradient.requires_grad",
    "if gradient is None or not gradient.requires_grad",
)
for edit in (of_other_parameters, none_is_zeros + of_other_parameters):
    hessian_vector_product.mistake(
        "A gradient can require grad because of other tensors that f uses, and still not depend on x: the second grad raises. materialize_grads=True gives zeros there.",
        edit,
    )
hessian_vector_product.mistake(
    "Where f is constant, f(x) does not depend on x, and the first grad raises. The answer there is zeros.",
    of_constant,
)
hessian_vector_product.mistake(
    "You take for granted that there is something to differentiate. Where f is linear or constant, and under torch.no_grad(), a grad raises.",
    of_linear + of_constant + of_other_parameters + recording,
)
hessian_vector_product.mistake(
    "That the gradient requires grad is not enough: f may be constant, or use other parameters, or recording is off, and then a grad raises.",
    of_constant + of_other_parameters + recording,
)
hessian_vector_product.mistake(
    "Under torch.no_grad() nothing is recorded, so there is nothing to differentiate: switch recording on with torch.enable_grad().",
    recording,
)


@hessian_vector_product.mistake(
    "f returns one element, but not always without axes: shape (1,) or (1, 1) is allowed too, and torch.func refuses to differentiate that. Give it the .sum() of what f returns."
)
def _(f, x, v):
    return torch.func.jvp(torch.func.grad(f), (x.detach(),), (v,))[1].detach()


@hessian_vector_product.alternative("forward over reverse: torch.func.jvp of torch.func.grad")
def _(f, x, v):
    slope = torch.func.grad(lambda point: f(point).sum())
    return torch.func.jvp(slope, (x.detach(),), (v,))[1].detach()


@hessian_vector_product.alternative("reverse over reverse, with the dot product spelt out")
@torch.enable_grad()
def _(f, x, v):
    point = x.detach().clone().requires_grad_(True)
    slope = f(point) + 0 * point.sum()  # so that it depends on point, whatever f does
    gradient = torch.autograd.grad(slope, point, create_graph=True)[0]
    dot = (gradient * v + 0 * point).sum()
    return torch.autograd.grad(dot, point)[0]


# --------------------------------------------------------------------- per_sample_gradients

per_sample_gradients = Exercise(
    autograd.per_sample_gradients,
    title="Every row's own gradient",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.takes_function,
    hints=(
        "Write the loss of one row first: loss_fn on a batch of one, row[None] and target[None].",
        "torch.func.grad(f) differentiates by the first argument; torch.func.vmap(g, in_dims=…) maps over rows.",
        "w is the same for all rows: in_dims=(None, 0, 0).",
        (
            "edge cases",
            "w may require grad, and so may what else the loss uses: detach the result.",
        ),
    ),
)


@per_sample_gradients.by_hand
def _():
    x, y = torch.tensor([[1.0, 0.0], [2.0, 1.0]]), torch.tensor([0.0, 1.0])
    w = torch.tensor([1.0, 1.0])  # residuals 1 and 2; gradients 2 · residual · row
    yield call(SQUARED_ERROR, w, x, y), torch.tensor([[2.0, 0.0], [8.0, 4.0]])


@per_sample_gradients.cases(30)
def _(draw):
    N, D, V = draw(draws.distinct_sizes(3))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    x = draw(draws.tensors((N, D), dtype))
    if draw(st.booleans()):
        yield call(
            CROSS_ENTROPY, draw(draws.tensors((D, V), dtype)), x, draw(draws.indices((N,), V))
        )
    else:
        f = draw(st.sampled_from([SQUARED_ERROR, TANH_ERROR, BY_LENGTH]))
        y = draw(draws.tensors((N,), dtype))
        yield call(f, draw(draws.tensors((D,), dtype)), x, y)


@per_sample_gradients.edge
def _():
    w, x, y = normal(3), normal(4, 3, seed=1), normal(4, seed=2)
    yield call(SQUARED_ERROR, w, x[:1], y[:1]), "one row"
    yield call(SQUARED_ERROR, leaf(w), x, y), "w requires grad"
    yield call(TANH_ERROR, w, draws.scattered(x), y), "not contiguous"
    yield call(BY_LENGTH, w, x, y), "the loss asks for the number of rows"
    yield call(WITH_BIAS, w, x, y), "the loss uses what requires grad"
    yield call(CROSS_ENTROPY, normal(3, 5), x, torch.tensor([1, 1, 1, 1])), "one class for all rows"
    yield call(SQUARED_ERROR, normal(3, 2), x, normal(4, 2)), "a vector for each row to fit"


per_sample_gradients.contract(
    contracts.constant_kernels(
        [call(SQUARED_ERROR, normal(4), normal(N, 4, seed=1), normal(N)) for N in (3, 30)],
        says="all in torch, no Python loop over the rows",
        prepare=prepared.with_its_function,
    )
)
per_sample_gradients.mistake(
    "Every row of your result is the same: the gradient of the mean loss, repeated. A sum over the batch cannot be taken apart afterwards.",
    replace(
        "gradients(w, x, y).detach()",
        "torch.func.grad(loss_fn)(w.detach(), x, y).expand(len(x), *w.shape)",
    ),
)
per_sample_gradients.mistake(
    "All are too small by N: these are the rows' shares in the gradient of the mean. Each row's own loss is asked for.",
    replace(".detach()", ".detach() / len(x)"),
)
per_sample_gradients.mistake(
    "The gradients add up from row to row: backward accumulates, and nothing was cleared in between.",
    replace(".detach()", ".detach().cumsum(0)"),
)
per_sample_gradients.mistake(
    "You collected w.grad itself N times. It is one tensor, and all entries show its last state, the sum: clone it, or better, do not go through .grad.",
    replace(".detach()", ".detach().sum(0).expand(len(x), *w.shape)"),
)
per_sample_gradients.mistake(
    "The rows' axis is the last one of your result; it comes first, result[i] belongs to x[i].",
    replace("in_dims=(None, 0, 0)", "in_dims=(None, 0, 0), out_dims=-1"),
)
per_sample_gradients.mistake(
    "Your result requires grad where w does: torch.func.grad is itself differentiable. Detach w first.",
    replace(".detach()", ""),
)
for left in ("w.requires_grad_().grad = result.sum(0)", "w.requires_grad_()"):
    per_sample_gradients.mistake(
        "You turned requires_grad on for the caller's w, or left something in its .grad. Differentiate by a detached copy.",
        replace(
            "return gradients(w, x, y).detach()",
            f"result = gradients(w, x, y).detach()\n    {left}\n    return result",
        ),
    )


per_sample_gradients.mistake(
    "You clear the .grad of the caller's w, which may hold what an earlier backward pass has left there. Leave it alone.",
    replace("    gradients = torch", "    w.grad = None\n    gradients = torch"),
)


@per_sample_gradients.mistake(
    "backward() adds to the .grad of every leaf that the loss uses, its other parameters as well. torch.autograd.grad, or torch.func.grad, returns the gradient by w and leaves theirs alone."
)
def _(loss_fn, w, x, y):
    copies = w.detach().expand(len(x), *w.shape).clone().requires_grad_()
    torch.vmap(loss_fn)(copies, x.unsqueeze(1), y.unsqueeze(1)).sum().backward()
    return copies.grad


per_sample_gradients.mistake(
    "The values are right, but you call backward once for each row; vmap runs all rows in one pass.",
    replace(
        "gradients(w, x, y).detach()",
        "torch.stack([torch.func.grad(loss_of_one)(w, *one).detach() for one in zip(x, y)])",
    ),
    cost=True,
)
per_sample_gradients.mistake(
    "The loss takes a batch, and you give it a bare row. A batch of one is row[None], target[None].",
    replace("row[None], target[None]", "row, target"),
)
per_sample_gradients.mistake(
    "Your result requires grad where the loss uses other parameters: detach the result, not only w.",
    replace("gradients(w, x, y).detach()", "gradients(w.detach(), x, y)"),
)
per_sample_gradients.mistake(
    "You map over w as well, one row of it for each sample. w is the same for all: in_dims=(None, 0, 0).",
    replace("in_dims=(None, 0, 0)", "in_dims=0"),
)
per_sample_gradients.mistake(
    "You do not map over y: every row is compared with the targets of all. Row i belongs to y[i]: in_dims=(None, 0, 0).",
    replace("target[None]", "target", "in_dims=(None, 0, 0)", "in_dims=(None, 0, None)"),
)
per_sample_gradients.mistake(
    "You give the loss a batch of one row, but a bare target. Both come as a batch: row[None], target[None].",
    replace("target[None]", "target"),
)


@per_sample_gradients.alternative("a copy of w for each row, one backward")
def _(loss_fn, w, x, y):
    copies = w.detach().expand(len(x), *w.shape).clone().requires_grad_()
    losses = torch.vmap(loss_fn)(copies, x.unsqueeze(1), y.unsqueeze(1))
    return torch.autograd.grad(losses.sum(), copies)[0]


@per_sample_gradients.alternative("all rows' losses, and their Jacobian")
def _(loss_fn, w, x, y):
    losses = torch.func.vmap(loss_fn, in_dims=(None, 0, 0))
    return torch.func.jacrev(losses)(w, x.unsqueeze(1), y.unsqueeze(1)).detach()


# -------------------------------------------------------------------- gradient_accumulation

gradient_accumulation = Exercise(
    autograd.gradient_accumulation,
    title="A large batch in small pieces",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.accumulates,
    hints=(
        "x.split(micro_batch) gives the pieces; the last may be smaller. backward() adds to w.grad.",
        "The mean over N rows is a weighted sum of the pieces' means. What are the weights?",
        "Each piece's loss counts len(piece) / N. Call backward before you go to the next piece.",
        ("contracts", "A graph is freed by its own backward. How many are alive at a time?"),
    ),
)


@gradient_accumulation.by_hand
def _():
    x, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3)
    w = torch.tensor([1.0])  # loss = mean of (x w)²: 14/3; gradient: 2 · 14/3
    seen = {"the mean loss": torch.tensor(14 / 3), "w.grad": torch.tensor([28 / 3])}
    yield call(SQUARED_ERROR, w, x, y, 2), seen
    yield (
        call(SQUARED_ERROR, w, x, y, 1, grad=torch.tensor([1.0])),
        seen | {"w.grad": torch.tensor([31 / 3])},
    )


@gradient_accumulation.cases(30)
def _(draw):
    N, D, V = draw(draws.distinct_sizes(3))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    x = draw(draws.tensors((N, D), dtype))
    size = draw(st.integers(1, N + 1))
    before = draw(st.booleans())
    if draw(st.booleans()):
        w, y = draw(draws.tensors((D, V), dtype)), draw(draws.indices((N,), V))
        f = CROSS_ENTROPY
    else:
        w, y = draw(draws.tensors((D,), dtype)), draw(draws.tensors((N,), dtype))
        f = draw(st.sampled_from([SQUARED_ERROR, TANH_ERROR, BY_LENGTH]))
    grad = {"grad": draw(draws.tensors(tuple(w.shape), dtype))} if before else {}
    yield call(f, w, x, y, size, **grad)


@gradient_accumulation.edge
def _():
    w, x, y = normal(3), normal(5, 3, seed=1), normal(5, seed=2)
    yield call(SQUARED_ERROR, w, x, y, 9), "the batch is smaller than a micro-batch"
    yield call(SQUARED_ERROR, w, x, y, 4), "the last micro-batch has a single row"
    yield call(SQUARED_ERROR, w, x[:1], y[:1], 1), "one row"
    yield call(TANH_ERROR, w, x, y, 2, grad=normal(3, seed=3)), "w.grad holds something already"
    yield call(SQUARED_ERROR, w, draws.scattered(x), y, 2), "not contiguous"


def wide(N, micro_batch):
    """Results of 500 elements a row: they are what the memory goes to."""
    return call(
        TANH_ERROR,
        normal(4, 500),
        normal(N, 4, seed=1),
        normal(N, 500, seed=2),
        micro_batch,
    )


WIDE, WITH_A_REST = wide(64, 4), wide(63, 32)


gradient_accumulation.contract(
    contracts.largest_tensor(
        [WIDE, WITH_A_REST],
        limit=lambda case: 6 * case.args[4] * 500,  # one and a half micro-batches
        says="no tensor for more rows than a micro-batch has",
        prepare=prepared.on_a_leaf,
    )
)
gradient_accumulation.contract(
    contracts.peak(
        [WIDE],
        limit=16 * 4 * 4 * 500,
        says="one micro-batch's graph at a time",
        prepare=prepared.on_a_leaf,
    )
)
gradient_accumulation.mistake(
    "The micro-batches' gradients are added, but not averaged: with k pieces you take k times the step. Scale each loss before its backward.",
    replace(" * (len(rows) / len(x))", "", "loss.detach()", "loss.detach() * (len(rows) / len(x))"),
)
gradient_accumulation.mistake(
    "You divide by the number of micro-batches. That is the mean only if all are of one size: rows of a smaller last one count for too much. Weigh each by len(piece) / N.",
    replace("(len(rows) / len(x))", "(1 / len(x.split(micro_batch)))"),
)
gradient_accumulation.mistake(
    "The gradient is divided rightly; the loss you return is not the mean over all rows, but that of the last micro-batch.",
    replace("total += loss.detach()", "total = loss.detach() * len(x) / len(rows)"),
)
gradient_accumulation.mistake(
    "You clear w.grad between micro-batches, so that only the last one is left in it. To accumulate is to leave it alone.",
    replace(
        "total = w.new_zeros(())",
        "total, before = w.new_zeros(()), w.grad",
        "loss.backward()",
        "w.grad = None if before is None else before.clone()\n        loss.backward()",
    ),
)
gradient_accumulation.mistake(
    "You clear w.grad at the start. What it holds already stays in the sum: clearing is the training loop's job, after its optimizer's step.",
    replace("total = w.new_zeros(())", "w.grad = None\n    total = w.new_zeros(())"),
)
gradient_accumulation.mistake(
    "The rows left over after the last whole micro-batch are dropped. They belong to the batch.",
    replace(
        "total = w.new_zeros(())",
        "n = len(x) // micro_batch * micro_batch or len(x)\n    x, y = x[:n], y[:n]\n    total = w.new_zeros(())",
    ),
)
gradient_accumulation.mistake(
    "The loss you return requires grad: `total += loss` keeps every micro-batch's graph alive, for as long as somebody keeps the number. Detach it first.",
    replace("loss.detach()", "loss"),
)
gradient_accumulation.mistake(
    "Nothing arrives in w.grad: the loss was computed from a detached copy of w, and backward filled that copy's grad.",
    replace(
        "total = w.new_zeros(())",
        "w = w.detach().clone().requires_grad_()\n    total = w.new_zeros(())",
    ),
)
gradient_accumulation.mistake(
    "The values are right, but you run the whole batch at once: the memory is that of N rows, and accumulation is there to avoid it.",
    replace("zip(x.split(micro_batch), y.split(micro_batch), strict=True)", "[(x, y)]"),
    cost=True,
)
gradient_accumulation.mistake(
    "The values are right, but you add up the losses and call backward once: until then the graphs of all micro-batches are alive. Call it in the loop.",
    replace(
        "        loss.backward()\n",
        "",
        "loss.detach()",
        "loss",
        "return total",
        "total.backward()\n    return total.detach()",
    ),
    cost=True,
)
gradient_accumulation.mistake(
    "You divide by the size of a micro-batch. Each piece's mean counts len(piece) / N.",
    replace("(len(rows) / len(x))", "(1 / micro_batch)"),
)
for largest in ("micro_batch", "min(micro_batch, len(x))"):
    gradient_accumulation.mistake(
        "You weigh every piece by micro_batch / N. The last one may have fewer rows: weigh each by len(piece) / N.",
        replace("(len(rows) / len(x))", f"({largest} / len(x))"),
    )
gradient_accumulation.mistake(
    "The gradient is right; the loss you return is the sum of the pieces' means, not their weighted mean.",
    replace("loss.detach()", "loss.detach() * len(x) / len(rows)"),
)
for weight, divisor in (("1", "len(x.split(micro_batch))"), ("len(rows)", "len(x)")):
    gradient_accumulation.mistake(
        "You divide w.grad in the end, and with it what it held before. Scale each loss instead.",
        replace(
            "(len(rows) / len(x))",
            weight,
            "total += loss.detach()",
            f"total += loss.detach() / {weight} * (len(rows) / len(x))",
            "return total",
            f"w.grad /= {divisor}\n    return total",
        ),
    )
gradient_accumulation.mistake(
    "The values are right, but you cut the batch into micro_batch pieces: chunk takes their number. split takes their size.",
    replace(
        "zip(x.split(micro_batch), y.split(micro_batch), strict=True)",
        "zip(x.chunk(micro_batch), y.chunk(micro_batch))",
    ),
    cost=True,
)
gradient_accumulation.mistake(
    "The values are right, but where N is no multiple of micro_batch, you make fewer and larger pieces. No piece may have more rows than micro_batch; what is left over is a smaller one.",
    replace(
        "zip(x.split(micro_batch), y.split(micro_batch), strict=True)",
        "zip(*(rows.chunk(max(len(x) // micro_batch, 1)) for rows in (x, y)))",
    ),
    cost=True,
)
gradient_accumulation.mistake(
    "The gradient is right; the loss you return is the plain average of the pieces' means, in which the rows of a smaller last piece count for too much. Weigh each by len(piece) / N.",
    replace("loss.detach()", "loss.detach() * len(x) / len(rows) / len(x.split(micro_batch))"),
)
gradient_accumulation.mistake(
    "The gradient is right; the loss you return is the sum over all rows. Divide it by N.",
    replace("loss.detach()", "loss.detach() * len(x)"),
)


@gradient_accumulation.alternative("torch.autograd.grad, added by hand")
def _(loss_fn, w, x, y, micro_batch):
    losses = []
    for start in range(0, len(x), micro_batch):
        rows = slice(start, min(start + micro_batch, len(x)))
        loss = loss_fn(w, x[rows], y[rows]) * (rows.stop - rows.start)
        (gradient,) = torch.autograd.grad(loss, w)
        gradient /= len(x)
        w.grad = gradient if w.grad is None else w.grad + gradient
        losses.append(loss.item() / len(x))
    return torch.tensor(sum(losses), dtype=w.dtype)


gradient_accumulation.equivalent(
    "gradient_accumulation: `zip(x.split(micro_batch), y.split(micro_batch), strict=True)` → `zip(x.split(micro_batch), y.split(micro_batch))`",
    because="by definition x and y have as many rows, so no call has lengths that differ; the flag only guards against a slip",
)
gradient_accumulation.equivalent(
    "gradient_accumulation: `strict=True` → `strict=False`",
    because="by definition x and y have as many rows, so no call has lengths that differ; the flag only guards against a slip",
)


# ------------------------------------------------------------------------------- saved_bytes

DROPPED = "lambda x: sum((x.sum() + torch.ones(50_000)).sin().sum().item() for _ in range(9)) * x"
TENSOR_FUNCTIONS = (
    "lambda x: x.exp()",
    "lambda x: x.exp().exp()",
    "lambda x: x.sin().cos()",
    "lambda x: x * x",
    "lambda x: x + x",
    "lambda x: x * x.exp()",
    "lambda x: x.relu()",
    "lambda x: x.softmax(-1)",
    "lambda x: x[:1] * x[:1]",
    "lambda x: x[0].sin() + x[1].cos()",
    "lambda x: (x @ x.T).tanh()",
    "lambda x: x.detach().exp() * x",
)
SET_ASIDE = "lambda x: (x.sin(), x.exp())[0]"

saved_bytes = Exercise(
    autograd.saved_bytes,
    title="What the graph keeps",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.takes_function_for_bytes,
    hints=(
        "torch.autograd.graph.saved_tensors_hooks(pack, unpack): pack sees each tensor that is saved, and returns what to keep in its place.",
        "saved.untyped_storage() is what stays in memory. Its nbytes() count, once for each data_ptr().",
        "Keep the storages themselves in your table: a freed one's address can be given out again.",
        ("worked by hand", "Without requires_grad nothing is saved: x.detach().requires_grad_()."),
    ),
)


@saved_bytes.by_hand
def _():
    x = torch.ones(2, 3)
    yield call("lambda x: x.exp()", x), 24  # its result
    yield call("lambda x: x * x", x), 24  # x, twice
    yield call("lambda x: x.sin().cos()", x), 48  # x, and sin(x)
    yield call("lambda x: x + x", x), 0
    yield call("lambda x: x[:1] * x[:1]", x), 24  # a view of one row keeps both


@saved_bytes.cases
def _(draw):
    shape = draw(draws.distinct_sizes(2))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    yield call(draw(st.sampled_from(TENSOR_FUNCTIONS)), draw(draws.tensors(shape, dtype)))


@saved_bytes.edge
def _():
    yield call("lambda x: x.exp()", torch.zeros(0, 3)), "no elements"
    yield call("lambda x: x * x", torch.tensor(2.0)), "one element"
    yield call("lambda x: x * x", normal(8, 8)[:2]), "x itself is a slice of something larger"
    yield call("lambda x: x.sin()", leaf(normal(2, 2))), "x requires grad already"
    yield call("lambda x: x * x", normal(1, 4).expand(5, 4)), "five rows, stored once"
    dropped = call(DROPPED, normal(2), whole=9 * 200_000)
    yield dropped, "what f drops is freed, and its address is given out again"
    yield call(SET_ASIDE, normal(2, 2)), "exp(x) is computed, and is no part of the result"


saved_bytes.mistake(
    "You count every save. x * x saves x twice, but there is only one x in memory: count storages.",
    replace("[storage.data_ptr()]", "[len(storages)]"),
)
saved_bytes.mistake(
    "You count what the saved tensors show. A view keeps its whole storage alive: count that.",
    replace(
        "storages[storage.data_ptr()] = storage",
        "storages[storage.data_ptr()] = saved.detach()",
        "storage.nbytes()",
        "storage.nbytes",
    ),
)
saved_bytes.mistake(
    "You keep addresses, or ids, and not the storages: what f drops is freed, the next tensor may come to lie in its place, and the two count as one. Keep the storages themselves while you count.",
    replace(
        "= storage\n",
        "= storage.nbytes()\n",
        "storage.nbytes() for storage in",
        "nbytes for nbytes in",
    ),
)
saved_bytes.mistake(
    "You count elements. A float32 element has 4 bytes, a bfloat16 one 2.",
    replace("storage.nbytes()", "storage.nbytes() // x.element_size()"),
)
saved_bytes.mistake(
    "You tell views apart by where they begin. Two rows of one tensor begin at different addresses and live in one storage: compare untyped_storage().data_ptr().",
    replace("[storage.data_ptr()]", "[saved.data_ptr()]"),
)
saved_bytes.mistake(
    "Nothing is saved for an x that does not require grad: make a leaf that does.",
    replace(".requires_grad_()", ""),
)
saved_bytes.mistake(
    "These are the bytes of the result. What backward needs may be the result, the input, both, or neither.",
    replace(
        "f(x.detach().requires_grad_())",
        "result = f(x.detach().requires_grad_())",
        "sum(storage.nbytes() for storage in storages.values())",
        "result.untyped_storage().nbytes()",
    ),
)
saved_bytes.mistake(
    "You leave x out since it existed before. The graph holds on to it all the same: it stays in memory even if the caller drops it.",
    replace("return sum(", "storages.pop(x.untyped_storage().data_ptr(), None)\n    return sum("),
)
saved_bytes.mistake(
    "You turned requires_grad on for the caller's own x. Use x.detach().requires_grad_(): another leaf with the same data.",
    replace("x.detach().requires_grad_()", "x.requires_grad_()"),
)
saved_bytes.mistake(
    "You add up what every saved tensor shows. Count each storage once, and whole.",
    replace(
        "storages[storage.data_ptr()] = storage",
        "storages[len(storages)] = saved.detach()",
        "storage.nbytes()",
        "storage.nbytes",
    ),
)
saved_bytes.mistake(
    "You run f on a copy of x. The graph keeps x's own storage alive, which may be larger than x (a slice) or smaller (expanded): use x.detach(), which shares it.",
    replace("x.detach()", "x.detach().clone()"),
)
saved_bytes.mistake(
    "contiguous() copies an x that is expanded or transposed, and the copy has a storage of another size: use x.detach() as it is.",
    replace("x.detach()", "x.detach().contiguous()"),
)


@saved_bytes.mistake(
    "You go through the graph of the result. What f computed on the way and dropped is not in it, though its save counts: watch every save as it happens, with saved_tensors_hooks."
)
def _(f, x):
    nodes = [f(x.detach().requires_grad_()).grad_fn]
    storages = {}
    for node in nodes:  # grows on the way
        for name in dir(node):
            if name.startswith("_saved_") and isinstance(
                saved := getattr(node, name), torch.Tensor
            ):
                storages[saved.untyped_storage().data_ptr()] = saved.untyped_storage()
        nodes += [before for before, _ in node.next_functions if before is not None]
    return sum(storage.nbytes() for storage in storages.values())


@saved_bytes.alternative("the course's meter")
def _(f, x):
    point = x.detach().requires_grad_()
    with measure() as cost:
        f(point)
    return cost.bytes_saved


saved_bytes.equivalent(
    "saved_bytes.pack: `storages[storage.data_ptr()]` → `storages[storage]`",
    because="torch hands out one Python object for a storage as long as one is alive, and the table keeps it alive",
)
saved_bytes.equivalent(
    "saved_bytes.pack: `return saved` → `return None`",
    because="no backward pass is run, so nothing asks for what pack returned",
)
