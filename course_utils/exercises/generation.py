"""Exercises of chapter 25, generation: from logits to a token, from a token to a text, and its measure."""
# mypy: ignore-errors

import functools
import math

import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes.chapters import generation as speaking
from course_utils.reference import generation

INF = math.inf
INPLACE = "You write into the logits, which belong to the caller. Make a new tensor."
PROBABILITIES = "You return probabilities. The result is logits, −inf where a token is out."
ZERO_LOGIT = "You put 0 where a token is out. A logit of 0 has the weight exp(0) = 1 in the softmax; −inf has 0."
FIRST_ROW = "You use the first row's threshold for all rows. Each row has its own."


def logs(*probs):
    """Logits of these probabilities."""
    return torch.tensor(probs).log()


def normal(*shape, dtype=torch.float32, seed=0):
    """Fixed standard normal numbers, times three, for cases without draws."""
    drawn = torch.float64 if dtype == torch.float64 else torch.float32
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=drawn)).to(
        dtype
    )


def filter_edges(f, *values):
    """Edge cases that all filters share, with two values of their parameter."""
    one, other = values
    yield call(normal(7), one), "a vector"
    yield call(normal(2, 3, 7), other), "two axes in front"
    yield call(normal(4, 4), one), "as many rows as tokens"
    yield call(normal(3, 1), one), "a vocabulary of one token"
    yield call(normal(0, 5), one), "an empty batch"
    yield call(draws.scattered(normal(3, 4, 5)), one), "not contiguous"
    yield call(normal(3, 9, dtype=torch.float64), other), "float64"
    yield call(normal(3, 9, dtype=torch.bfloat16, seed=4), other), "bfloat16"
    yield call(torch.tensor([[1e4, 1e4 - 1, -1e4]]), one), "huge logits"
    yield call(torch.tensor([[0.5, -INF, 2.0, -INF, 1.0]]), one), "some tokens are out already"
    yield call(torch.zeros(2, 5, device="meta"), one), "on another device than the default one"


def no_loop(*given):
    """No Python loop over rows or tokens."""
    return contracts.constant_kernels(
        [call(normal(B, V), *given) for B, V in ((2, 5), (9, 5), (9, 40))],
        says="no Python loop over the rows or the tokens",
    )


BY_ROWS = "The values are right, but Python goes through the rows."


def row_by_row(f):
    """A filter that is called with one row at a time; its signature is the filter's own."""

    @functools.wraps(f)
    def filtered(logits, *given, **named):
        rows = logits.reshape(-1, logits.size(-1))
        made = [f(row, *given, **named) for row in rows]
        return torch.stack(made).view(logits.shape) if made else f(logits, *given, **named)

    return filtered


# ------------------------------------------------------------------------------ top_k_filter

top_k_filter = Exercise(
    generation.top_k_filter,
    title="The k likeliest",
    difficulty=1,
    minutes=10,
    points=2,
    hints=(
        "`logits.topk(k)` sorts its values. Which of them is the threshold?",
        "Keep the last axis of the threshold, (…, 1), so that it broadcasts against (…, V).",
        ("edge cases", "topk raises for k above V: ask for min(k, V)."),
    ),
)


@top_k_filter.by_hand
def _():
    yield call(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 2), torch.tensor([[-INF, 3.0, 2.0, -INF]])
    yield call(torch.tensor([[1.0, 3.0, 3.0, 0.0]]), 1), torch.tensor([[-INF, 3.0, 3.0, -INF]])
    yield call(torch.tensor([1.0, 2.0]), 5), torch.tensor([1.0, 2.0])
    rows = torch.tensor([[1.0, 2.0, 3.0], [30.0, 20.0, 10.0]])
    yield call(rows, 1), torch.tensor([[-INF, -INF, 3.0], [30.0, -INF, -INF]])


@top_k_filter.cases
def _(draw):
    *batch, V = draw(draws.distinct_sizes(draw(st.integers(1, 3))))
    yield call(draw(draws.tensors((*batch, V))), draw(st.integers(1, V + 2)))


@top_k_filter.cases(12)
def _(draw):
    yield call(draw(draws.tensors((2, 6), torch.int64)).float() // 3, draw(st.integers(1, 6)))


@top_k_filter.edge
def _():
    yield from filter_edges(generation.top_k_filter, 1, 3)
    yield call(normal(2, 5), 5), "k is the whole vocabulary"
    yield call(normal(2, 5), 0), "no token would remain"
    yield call(normal(2, 5), -2), "k is negative"
    yield call(torch.zeros(2, 5), 2), "all tokens are equally likely"


top_k_filter.contract(no_loop(3))
LEAST = "least = logits.topk(min(k, logits.size(-1)), dim=-1).values[..., -1:]"
BELOW = "logits.masked_fill(logits < least, -math.inf)"
top_k_filter.slips(
    {
        replace(
            "values[..., -1:]", "values[:, -1:]"
        ): "You take the k-th value with `[:, -1:]`, which is the last axis where there are two. There may be one, "
        "or three: `[..., -1:]`.",
        replace(
            "min(k, logits.size(-1))", "min(k, logits.numel())"
        ): "Your code raises for k above the size of the vocabulary. Such a k keeps all tokens.",
        replace(
            BELOW,
            "logits.masked_fill(logits <= logits.sort(-1, descending=True).values[..., k : k + 1], -math.inf)"
            " if k < logits.size(-1) else logits.clone()",
        ): "You keep what is above the (k + 1)-th logit. Where that is as large as the k-th, both are lost: keep "
        "what is not below the k-th.",
        replace(
            LEAST,
            "least = logits.sort(1, descending=True).values.narrow("
            "1, min(k, logits.size(-1), logits.size(1)) - 1, 1)",
        ): "You sort along axis 1. The tokens are the last axis, −1, however many are in front of it.",
        replace(
            "if k < 1:", "if k == 0:\n        return logits.clone()\n    if k < 1:"
        ): "You take k = 0 for no filter. No token would remain: raise ValueError.",
        replace(
            "min(k, logits.size(-1))", "min(k + 1, logits.size(-1))"
        ): "You keep one token too many. The threshold is the k-th largest logit, not the next one.",
        replace(
            "min(k, logits.size(-1))", "min(k, len(logits))"
        ): "You bound k by `len(logits)`, the size of the first axis. The tokens are the last axis: "
        "`logits.size(-1)`.",
        replace("logits < least", "logits <= least"): "You remove the k-th token itself. It is "
        "the last that is kept, and so are those as likely as it.",
        replace(
            "logits < least", "logits > least"
        ): "You remove the likeliest tokens and keep the rest.",
        replace(
            "dim=-1).values", "dim=-1, largest=False).values"
        ): "You take the threshold from the smallest logits. The k largest are kept.",
        replace(
            "values[..., -1:]", "values[..., :1]"
        ): "Your threshold is the largest logit, so only the "
        "likeliest token remains. It is the last of the k largest.",
        replace(
            "min(k, logits.size(-1))", "k"
        ): "Your code raises for k above the size of the vocabulary. Such a k keeps all tokens.",
        replace(
            "if k < 1:", "if False:"
        ): "You take k below 1. No token would remain: raise ValueError.",
        replace(
            "if k < 1:", "if not 1 <= k <= logits.size(-1):"
        ): "You refuse a k above the size of the vocabulary. Such a k keeps all tokens.",
        replace(BELOW, "logits.masked_fill(logits < least, 0.0)"): ZERO_LOGIT,
        replace(BELOW, BELOW + ".softmax(-1)"): PROBABILITIES,
        replace(BELOW, "logits.masked_fill_(logits < least, -math.inf)"): INPLACE,
        replace(BELOW, "logits.masked_fill(logits < least.flatten()[0], -math.inf)"): FIRST_ROW,
        replace(
            BELOW, "logits.masked_fill(logits < least, torch.finfo(logits.dtype).min)"
        ): "You put a "
        "large negative number where a token is out. Where all logits are that small it is no longer out; "
        "put −inf.",
        replace(
            "return " + BELOW,
            "order = logits.topk(min(k, logits.size(-1)), dim=-1).indices\n"
            "    return torch.full_like(logits, -math.inf).scatter(-1, order, logits.gather(-1, order))",
        ): "You keep exactly k tokens. Those as likely as the k-th are kept, too.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            BELOW, BELOW + ".float()"
        ): "You return float32. The result has the dtype of the logits.",
    }
)


top_k_filter.mistake(BY_ROWS, cost=True)(row_by_row(generation.top_k_filter))


@top_k_filter.alternative("a sort, and where")
def _(logits, k):
    if not k > 0:
        raise ValueError("k")
    place = min(k, logits.shape[-1]) - 1
    threshold = torch.sort(logits, descending=True).values[..., place].unsqueeze(-1)
    return torch.where(logits >= threshold, logits, float("-inf"))


# ------------------------------------------------------------------------------ top_p_filter

top_p_filter = Exercise(
    generation.top_p_filter,
    title="The nucleus",
    difficulty=2,
    minutes=20,
    points=3,
    hints=(
        "Sort the probabilities, largest first, and take the cumulative sum. How likely are all tokens "
        "before each one?",
        "A token is kept if the tokens before it have less than p together. So the token that reaches p "
        "stays.",
        "Which places are out you know in sorted order. `scatter` along the order of the sort brings that "
        "back to the order of the vocabulary.",
        ("edge cases", "Rounding lets a cumulative sum reach 1 too early: for p = 1 keep all."),
    ),
)


@top_p_filter.by_hand
def _():
    x = logs(0.2, 0.5, 0.3)
    yield call(x, 0.6), torch.stack((torch.tensor(-INF), x[1], x[2]))
    yield call(x, 0.4), torch.stack((torch.tensor(-INF), x[1], torch.tensor(-INF)))
    yield call(x, 0.9), x
    yield call(torch.zeros(4), 0.5), torch.tensor([0.0, 0.0, -INF, -INF])
    yield call(torch.zeros(1, 4), 0.51), torch.tensor([[0.0, 0.0, 0.0, -INF]])


@top_p_filter.cases
def _(draw):
    *batch, V = draw(draws.distinct_sizes(draw(st.integers(1, 3))))
    yield call(
        draw(draws.tensors((*batch, V), scale=2.0)),
        draw(st.sampled_from((0.2, 0.5, 0.75, 0.9, 0.97))),
    )


@top_p_filter.edge
def _():
    yield from filter_edges(generation.top_p_filter, 0.3, 0.9)
    yield call(normal(2, 9), 1e-9), "p is tiny: the likeliest token remains"
    yield call(normal(2, 9), 1.0), "p = 1 keeps all"
    yield (
        call(torch.cat((torch.zeros(1, 1), torch.full((1, 3), -40.0)), 1), 1.0),
        "p = 1, and tiny ones",
    )
    yield call(torch.zeros(2, 8), 0.25), "all tokens are equally likely"
    yield call(torch.full((1, 3000), 1.0, dtype=torch.bfloat16), 0.4001), "3,000 tokens in bfloat16"
    yield call(torch.full((1, 3000), 1.0, dtype=torch.float16), 0.9001), "3,000 tokens in float16"
    close = torch.tensor([[0.0, 1e-10, -1.0]], dtype=torch.float64)
    yield call(close, 0.3), "float64, and two tokens that float32 takes for equal"
    below = torch.tensor([[0.4999999999, 0.3, 0.2000000001]], dtype=torch.float64).log()
    yield call(below, 0.5), "float64, and a sum that float32 takes for p"
    yield call(normal(2, 5), 0.0), "no token would be needed"
    yield call(normal(2, 5), 1.5), "more than a probability"
    yield call(normal(2, 5), -0.1), "p is negative"


top_p_filter.contract(no_loop(0.8))
SORTED = "logits.to(wide).softmax(-1).sort(dim=-1, descending=True, stable=True)"
REMOVED = "torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, likelier >= p)"
top_p_filter.slips(
    {
        replace(
            SORTED, "(x.flip(-1) for x in logits.to(wide).softmax(-1).sort(dim=-1, stable=True))"
        ): "Of equally likely tokens you keep those with larger ids: flipping an ascending sort turns ties "
        "round, too. Sort with descending=True and stable=True.",
        replace(
            "logits.masked_fill(removed,",
            "logits.masked_fill(logits < logits.masked_fill(removed, math.inf).amin(-1, keepdim=True),",
        ): "You keep all tokens that are as likely as the last one kept. Of equally likely tokens those with "
        "smaller ids are kept, until the sum reaches p.",
        replace(
            "ordered.cumsum(-1) - ordered", "ordered.cumsum(-1)"
        ): "You remove the token with which "
        "the sum reaches p. It is kept: without it the rest has less than p.",
        replace(
            "likelier >= p", "likelier > p"
        ): "You keep one token too many where the sum is exactly p. "
        "A token is kept only if those before it have less than p.",
        replace(
            "likelier >= p", "likelier < p"
        ): "You remove the likeliest tokens and keep the rest.",
        replace(
            "descending=True", "descending=False"
        ): "You sort the least likely tokens first, so they are the ones that you keep.",
        replace(
            REMOVED, "likelier >= p"
        ): "You use a mask in sorted order on logits in the order of the "
        "vocabulary. Scatter it back along the order of the sort.",
        replace(
            "scatter(-1, order, likelier >= p)", "logical_or(likelier >= p).gather(-1, order)"
        ): "You "
        "gather with the order of the sort where you have to scatter: that applies the order once more "
        "instead of undoing it.",
        replace(
            "logits.to(wide).softmax(-1)", "logits.to(wide)"
        ): "You sum logits. Sum probabilities: a softmax first.",
        replace(
            "logits.to(wide).softmax(-1)", "logits.softmax(-1)"
        ): "You compute probabilities in the "
        "logits' own dtype. In half precision a sum over many tokens stops growing; use float32.",
        replace(
            "logits.to(wide).softmax(-1)",
            "logits.softmax(-1)",
            "ordered.cumsum(-1) - ordered",
            "torch.cat((0 * ordered[..., :1], ordered.cumsum(-1)[..., :-1]), -1)",
        ): "You compute probabilities in the "
        "logits' own dtype. In half precision a sum over many tokens stops growing; use float32.",
        replace(
            "logits.to(wide)", "logits.float()"
        ): "You compute in float32 what came in float64.",
        replace(
            "likelier =", "ordered = ordered.float()\n    likelier ="
        ): "You compute in float32 what came in float64.",
        replace(
            "if p == 1:", "if False:"
        ): "You lose tokens for p = 1: rounding lets the cumulative sum "
        "reach 1 before the last tokens. p = 1 keeps all.",
        replace(
            "not 0 < p <= 1", "False"
        ): "You do not check p. It is above 0 and at most 1, else raise ValueError.",
        replace("not 0 < p <= 1", "not 0 < p < 1"): "You refuse p = 1. It keeps all tokens.",
        replace(
            "not 0 < p <= 1", "not 0 <= p <= 1"
        ): "You take p = 0. It asks for no token at all: raise ValueError.",
        replace(
            "return logits.masked_fill(removed, -math.inf)",
            "return logits.masked_fill(removed, 0.0)",
        ): ZERO_LOGIT,
        replace(
            "return logits.masked_fill(removed, -math.inf)",
            "return logits.masked_fill(removed, -math.inf).softmax(-1)",
        ): PROBABILITIES,
        replace("logits.masked_fill(removed", "logits.masked_fill_(removed"): INPLACE,
    }
)


@top_p_filter.mistake(
    "You return float32 for half precision. The result has the dtype of the logits."
)
def _(logits, p):
    return generation.top_p_filter(logits, p).to(torch.promote_types(logits.dtype, torch.float32))


top_p_filter.mistake(BY_ROWS, cost=True)(row_by_row(generation.top_p_filter))


@top_p_filter.alternative("count the tokens that are needed, and rank them")
def _(logits, p):
    if p <= 0 or p > 1:
        raise ValueError("p")
    probs = torch.softmax(logits.double(), -1)
    order = torch.argsort(probs, dim=-1, descending=True, stable=True)
    total = torch.cumsum(torch.gather(probs, -1, order), -1)
    needed = (total < p).sum(-1, keepdim=True) + 1 if p < 1 else logits.shape[-1]
    rank = torch.argsort(order, dim=-1)
    return torch.where(rank < needed, logits, -INF)


# ------------------------------------------------------------------------------ min_p_filter

min_p_filter = Exercise(
    generation.min_p_filter,
    title="A share of the largest",
    difficulty=1,
    minutes=10,
    points=2,
    hints=(
        "The threshold is p times the largest probability of the row.",
        "Compare probabilities, and fill the logits.",
        ("edge cases", "p = 1 keeps what is as likely as the likeliest: compare with <, not ≤."),
    ),
)


@min_p_filter.by_hand
def _():
    x = logs(0.6, 0.25, 0.1, 0.05)
    out = torch.tensor(-INF)
    yield call(x, 0.2), torch.stack((x[0], x[1], out, out))
    yield call(x, 0.1), torch.stack((x[0], x[1], x[2], out))
    yield call(x, 0.5), torch.stack((x[0], out, out, out))
    yield call(torch.tensor([[2.0, 2.0, 1.0]]), 1.0), torch.tensor([[2.0, 2.0, -INF]])
    yield call(torch.tensor([[2.0, -50.0]]), 0.0), torch.tensor([[2.0, -50.0]])


@min_p_filter.cases
def _(draw):
    *batch, V = draw(draws.distinct_sizes(draw(st.integers(1, 3))))
    yield call(
        draw(draws.tensors((*batch, V), scale=2.0)), draw(st.sampled_from((0.01, 0.1, 0.3, 0.7)))
    )


@min_p_filter.edge
def _():
    yield from filter_edges(generation.min_p_filter, 0.5, 0.05)
    yield call(normal(2, 9), 0.0), "p = 0 keeps all"
    yield call(torch.tensor([[0.0, -200.0]]), 0.0), "p = 0, and a probability that rounds to 0"
    yield call(normal(2, 9), 1.0), "p = 1 keeps the likeliest"
    yield call(normal(2, 5), 1.1), "more than the largest"
    yield call(normal(2, 5), -0.1), "p is negative"
    close = torch.tensor([[0.0, -1e-10, -1.0]], dtype=torch.float64)
    yield call(close, 1.0), "float64, and two tokens that float32 takes for equal"
    yield call(torch.zeros(1, 3000), 0.9), "many equally likely tokens"
    yield (
        call(normal(2, 9, dtype=torch.bfloat16, seed=2272), 0.1),
        "near the threshold, in bfloat16",
    )


min_p_filter.contract(no_loop(0.2))
SHARE = "probs < p * probs.amax(-1, keepdim=True)"
AT_MOST = SHARE.replace("<", "<=")
THRESHOLD_GONE = "You remove what is exactly at the threshold. p = 1 then keeps nothing."
min_p_filter.slips(
    {
        replace(
            "return logits.masked_fill(probs",
            "return logits.to(wide).masked_fill_(probs",
            "True), -math.inf)",
            "True), -math.inf).to(logits.dtype)",
        ): INPLACE,
        replace(
            "    wide =",
            "    if p == 1:\n"
            "        best = logits.argmax(-1, keepdim=True)\n"
            "        return torch.full_like(logits, -math.inf).scatter(-1, best, logits.gather(-1, best))\n"
            "    wide =",
        ): "For p = 1 you keep one token. Those as likely as the likeliest are kept, too.",
        replace(
            "p * probs.amax(-1, keepdim=True)", "p"
        ): "You compare with p itself. The threshold is p "
        "times the largest probability, so it falls where the model is unsure.",
        replace(SHARE, AT_MOST): THRESHOLD_GONE,
        replace(SHARE, f"({AT_MOST}) & (p > 0)"): THRESHOLD_GONE,
        replace(
            SHARE, SHARE.replace("<", ">")
        ): "You remove the likeliest tokens and keep the rest.",
        replace(
            "probs = logits.to(wide).softmax(-1)", "probs = logits.to(wide)"
        ): "You compare logits. A share of a probability is meant, so the softmax comes first.",
        replace(
            "    probs = logits.to(wide).softmax(-1)",
            "    if p == 0:\n        return logits.clone()\n    probs = logits.to(wide)",
        ): "You compare logits. A share of a probability is meant, so the softmax comes first.",
        replace(
            "softmax(-1)", "log_softmax(-1)"
        ): "You compare logarithms of probabilities. Compare the probabilities.",
        replace(
            "probs.amax(-1, keepdim=True)", "probs.amax()"
        ): "You take the largest probability of all rows. Each row has its own.",
        replace(
            "probs.amax(-1, keepdim=True)", "probs.mean(-1, keepdim=True)"
        ): "You take a share of the mean. It is a share of the largest probability.",
        replace(
            "logits.to(wide).softmax", "logits.softmax"
        ): "You compute in half precision, in which a probability near the threshold falls to the wrong side. "
        "Compute probabilities in float32 there.",
        replace(
            "logits.to(wide)", "logits.float()"
        ): "You compute in float32 what came in float64.",
        replace("logits.masked_fill(probs", "logits.masked_fill_(probs"): INPLACE,
        replace("True), -math.inf)", "True), 0.0)"): ZERO_LOGIT,
        replace("True), -math.inf)", "True), -math.inf).softmax(-1)"): PROBABILITIES,
        replace(
            "True), -math.inf)", "True), -math.inf).to(wide)"
        ): "You return float32 for half precision. The result has the dtype of the logits.",
        replace(
            "not 0 <= p <= 1", "False"
        ): "You do not check p. It is 0 to 1, else raise ValueError.",
        replace("not 0 <= p <= 1", "not 0 < p <= 1"): "You refuse p = 0. It keeps all tokens.",
        replace(
            "not 0 <= p <= 1", "not 0 <= p < 1"
        ): "You refuse p = 1. It keeps the likeliest tokens.",
    }
)


min_p_filter.mistake(BY_ROWS, cost=True)(row_by_row(generation.min_p_filter))


@min_p_filter.alternative("a difference of logits")
def _(logits, p):
    if not (p >= 0 and p <= 1):
        raise ValueError("p")
    if p == 0:
        return logits.clone()
    behind = logits.double() - logits.double().max(dim=-1, keepdim=True).values
    return torch.where(behind >= math.log(p), logits, -INF)


# ------------------------------------------------------------------------------ repetition_penalty

repetition_penalty = Exercise(
    generation.repetition_penalty,
    title="What was said already",
    difficulty=1,
    minutes=15,
    points=2,
    hints=(
        "`logits.gather(-1, ids)` gives the logits of the tokens that occurred.",
        "What makes a negative logit less likely: dividing or multiplying by 2?",
        "`scatter` puts the changed logits into their places. A token that occurs twice is written twice, "
        "with the same value.",
    ),
)


@repetition_penalty.by_hand
def _():
    x = torch.tensor([[4.0, -4.0, 1.0]])
    yield call(x, torch.tensor([[0]]), 2.0), torch.tensor([[2.0, -4.0, 1.0]])
    yield call(x, torch.tensor([[1]]), 2.0), torch.tensor([[4.0, -8.0, 1.0]])
    yield call(x, torch.tensor([[0, 0, 0]]), 2.0), torch.tensor([[2.0, -4.0, 1.0]])
    rows = torch.tensor([[4.0, 2.0], [4.0, 2.0]])
    yield call(rows, torch.tensor([[0], [1]]), 2.0), torch.tensor([[2.0, 2.0], [4.0, 1.0]])


@repetition_penalty.cases
def _(draw):
    B, V, T = draw(draws.distinct_sizes(3))
    penalty = draw(st.sampled_from((0.5, 1.25, 2.0, 4.0)))
    yield call(draw(draws.tensors((B, V))), draw(draws.indices((B, T), V)), penalty)


@repetition_penalty.edge
def _():
    ids = torch.tensor([[0, 2, 2], [4, 0, 1]])
    yield call(normal(2, 5), ids, 1.0), "a penalty of 1 changes nothing"
    yield call(normal(2, 5), ids[:, :0], 3.0), "no token yet"
    yield call(normal(0, 5), ids[:0], 3.0), "an empty batch"
    yield call(torch.zeros(2, 5), ids, 3.0), "zeros stay"
    yield call(torch.tensor([[-INF, 1.0, -2.0]]), torch.tensor([[0, 1, 2]]), 2.0), "a token is out"
    yield call(draws.scattered(normal(2, 5)), draws.scattered(ids), 3.0), "not contiguous"
    yield call(normal(2, 5, dtype=torch.float64), ids, 3.0), "float64"
    yield call(normal(2, 5, dtype=torch.bfloat16), ids, 4.0), "bfloat16"
    yield call(normal(3, 3), torch.tensor([[0], [1], [1]]), 2.0), "as many rows as tokens"
    yield (
        call(torch.zeros(2, 5, device="meta"), ids.to("meta"), 2.0),
        "on another device than the default one",
    )
    yield call(normal(2, 5), ids, 0.0), "a penalty of 0"
    yield call(normal(2, 5), ids, -1.0), "a negative penalty"


repetition_penalty.contract(
    contracts.constant_kernels(
        [
            call(normal(B, 9), torch.arange(B * T).view(B, T) % 9, 2.0)
            for B, T in ((2, 3), (8, 3), (8, 30))
        ],
        says="no Python loop over the rows or the tokens",
    )
)
PENALISED = "torch.where(here > 0, here / penalty, here * penalty)"
repetition_penalty.slips(
    {
        replace(
            PENALISED, "torch.minimum(here / penalty, here * penalty)"
        ): "You always take the smaller of logit / penalty and logit · penalty. A penalty below 1 makes a token "
        "likelier: let the logit's sign decide.",
        replace(
            "    here =", "    ids.amax(1)\n    here ="
        ): "Your code raises where there is no token yet. ids may be (B, 0), and then nothing changes.",
        replace(
            "logits.gather(-1, ids)",
            "logits[(rows := torch.arange(len(logits), device=ids.device)), ids]",
            f"return logits.scatter(-1, ids, {PENALISED})",
            f"logits = logits.clone()\n    logits[rows, ids] = {PENALISED}\n    return logits",
        ): "Your index of rows is (B,), which is laid along the tokens of `ids` and not along its rows. Make it "
        "(B, 1), or use gather and scatter.",
        replace(
            f"return logits.scatter(-1, ids, {PENALISED})",
            "seen = torch.zeros_like(logits).scatter(-1, ids, 1.0)\n"
            "    changed = torch.where(logits > 0, logits / penalty, logits * penalty)\n"
            "    return seen * changed + (1 - seen) * logits",
        ): "You choose by multiplying with 0 and 1. 0 times −inf is NaN: choose with torch.where or scatter.",
        replace(
            PENALISED, "here / penalty"
        ): "You divide negative logits, too. That moves them towards 0, "
        "so the token becomes likelier; multiply them.",
        replace(
            PENALISED, "here * penalty"
        ): "You multiply positive logits, too. That makes the token likelier; divide them.",
        replace(
            "here > 0", "here < 0"
        ): "You multiply what is positive and divide what is negative: that "
        "makes repetition likelier.",
        replace(PENALISED, "here - penalty"): "You subtract the penalty. It divides or multiplies: "
        "subtracting is another method, the presence penalty.",
        replace("logits.scatter(-1", "logits.scatter_(-1"): INPLACE,
        replace(
            f"logits.scatter(-1, ids, {PENALISED})",
            "logits.scatter_add(-1, ids, " + PENALISED + " - here)",
        ): "You "
        "penalise a token once for each time it occurs. It is once, however often it occurs.",
        replace(
            f"return logits.scatter(-1, ids, {PENALISED})",
            "times = torch.zeros_like(logits).scatter_add(-1, ids, torch.ones_like(here))\n"
            "    factor = penalty**times\n"
            "    return torch.where(logits > 0, logits / factor, logits * factor)",
        ): "You "
        "penalise a token once for each time it occurs. It is once, however often it occurs.",
        replace(
            "if penalty <= 0:", "if False:"
        ): "You do not check the penalty. Dividing by 0 or less makes no sense: raise ValueError.",
        replace(
            "if penalty <= 0:", "if penalty < 0:"
        ): "You take a penalty of 0. It is positive, else raise ValueError.",
        replace(
            "if penalty <= 0:", "if penalty < 1:"
        ): "You refuse a penalty below 1. It makes repetition likelier and is allowed.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
    }
)


@repetition_penalty.mistake(
    "You penalise in every row what occurs in any. Each row has its own tokens."
)
def _(logits, ids, penalty):
    if penalty <= 0:
        raise ValueError(penalty)
    out = logits.clone()
    seen = ids.unique()
    here = out[:, seen]
    out[:, seen] = torch.where(here > 0, here / penalty, here * penalty)
    return out


@repetition_penalty.mistake("You penalise all tokens but those that occurred.")
def _(logits, ids, penalty):
    if penalty <= 0:
        raise ValueError(penalty)
    changed = torch.where(logits > 0, logits / penalty, logits * penalty)
    return changed.scatter(-1, ids, logits.gather(-1, ids))


@repetition_penalty.mistake("You penalise the last token only. All tokens of the row so far count.")
def _(logits, ids, penalty):
    return generation.repetition_penalty(logits, ids[:, -1:], penalty)


@repetition_penalty.mistake(BY_ROWS, cost=True)
def _(logits, ids, penalty):
    made = [
        generation.repetition_penalty(x[None], i[None], penalty)
        for x, i in zip(logits, ids, strict=True)
    ]
    return torch.cat(made) if made else generation.repetition_penalty(logits, ids, penalty)


@repetition_penalty.alternative("a mask of the vocabulary")
def _(logits, ids, penalty):
    if not penalty > 0:
        raise ValueError("penalty")
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
    changed = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, changed, logits)


# ------------------------------------------------------------------------------ the next token

next_token_probs = Exercise(
    (generation.next_token_probs, generation.sample_token),
    title="From logits to a token",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.sampled,
    hints=(
        "Temperature first, then the filters in the order of the arguments, the softmax last.",
        "At temperature 0 there is nothing to divide by: the likeliest token has probability 1.",
        "A filter that is not given is None. `if top_p:` is another question than `if top_p is not None`.",
        "`torch.multinomial` draws for all rows at once and takes a generator.",
    ),
)


def of_logits(*given, **settings):
    """A case of next_token_probs."""
    return call("probabilities", *given, **settings)


def drawn_with(probs, seed=0):
    """A case of sample_token."""
    return call("tokens", torch.tensor(probs), seed)


@next_token_probs.by_hand
def _():
    x = logs([0.5, 0.3, 0.2])
    yield of_logits(x), {"probabilities": torch.tensor([[0.5, 0.3, 0.2]])}
    yield of_logits(x, temperature=0.0), {"probabilities": torch.tensor([[1.0, 0.0, 0.0]])}
    yield of_logits(x, top_k=2), {"probabilities": torch.tensor([[0.625, 0.375, 0.0]])}
    y = logs([0.25, 0.04, 0.64])  # at temperature 2 in proportion 0.5, 0.2, 0.8
    yield of_logits(y, temperature=2.0), {"probabilities": torch.tensor([[5.0, 2.0, 8.0]]) / 15}
    yield (
        of_logits(y, temperature=2.0, top_p=0.6),
        {"probabilities": torch.tensor([[5.0, 0.0, 8.0]]) / 13},
    )


@next_token_probs.cases
def _(draw):
    B, V = draw(draws.distinct_sizes(2, 3, 9))
    settings = {"temperature": draw(st.sampled_from((0.3, 0.7, 1.0, 1.8)))}
    if draw(st.booleans()):
        settings["top_k"] = draw(st.integers(1, V))
    if draw(st.booleans()):
        settings["top_p"] = draw(st.sampled_from((0.4, 0.7, 0.9)))
    if draw(st.booleans()):
        settings["min_p"] = draw(st.sampled_from((0.05, 0.2, 0.6)))
    yield of_logits(draw(draws.tensors((B, V), scale=2.0)), **settings)


@next_token_probs.edge
def _():
    x = logs([0.4, 0.22, 0.2, 0.18], [0.1, 0.6, 0.2, 0.1])
    yield of_logits(x, top_k=3, top_p=0.7), "top_p sees what top_k has left"
    yield of_logits(x, top_p=0.5, min_p=0.54), "min_p comes last"
    yield of_logits(x, temperature=4.0, top_p=0.5), "the temperature comes before the nucleus"
    yield of_logits(x, temperature=4.0, min_p=0.7), "the temperature comes before min_p"
    yield of_logits(x, temperature=0.0, top_k=2, top_p=0.5, min_p=0.9), "temperature 0 and filters"
    yield of_logits(torch.zeros(2, 4), temperature=0.0), "temperature 0 and a tie"
    yield (
        of_logits(torch.tensor([[1.0, 3.0, 3.0], [3.0, 1.0, 3.0]]), temperature=0.0),
        "another tie",
    )
    nearly = torch.tensor([[1.0, 1.0 + 2**-23, 0.0]])
    yield of_logits(nearly, temperature=0.0), "temperature 0 and nearly a tie"
    nearly = torch.tensor([[1.0, 1.0 + 2**-40, 0.0]], dtype=torch.float64)
    yield of_logits(nearly, temperature=0.0), "float64, temperature 0 and nearly a tie"
    yield of_logits(x, temperature=1.0, top_p=1.0, min_p=0.0), "filters that keep all"
    yield of_logits(x, temperature=-1.0), "a negative temperature"
    yield of_logits(x, top_k=0), "no token would remain"
    yield of_logits(x, top_p=0.0), "no token would be needed"
    yield of_logits(normal(2, 5, dtype=torch.bfloat16), temperature=0.7), "bfloat16"
    yield of_logits(normal(2, 5, dtype=torch.float16), temperature=0.0), "float16, temperature 0"
    yield of_logits(normal(2, 5, dtype=torch.float64), temperature=0.7), "float64"
    yield of_logits(normal(1, 5) + 1e4, temperature=0.01), "huge logits"
    yield of_logits(normal(3, 3), top_p=0.8), "as many rows as tokens"
    yield of_logits(draws.scattered(normal(3, 4)), top_p=0.8), "not contiguous"
    yield drawn_with([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]), "two rows"
    yield drawn_with([[0.25, 0.25, 0.0, 0.5]], seed=5), "one row, and a token that cannot come"
    yield drawn_with([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.3, 0.3, 0.4]], seed=3), "certain tokens"
    yield drawn_with([[1.0], [1.0]]), "a vocabulary of one token"
    yield drawn_with([[0.6, 0.4]], seed=None), "torch's own generator"


MULTINOMIAL = "torch.multinomial(probs, 1, generator=generator)[:, 0]"
TOP_K = "    if top_k is not None:\n        logits = top_k_filter(logits, top_k)\n"
TOP_P = "    if top_p is not None:\n        logits = top_p_filter(logits, top_p)\n"
MIN_P = "    if min_p is not None:\n        logits = min_p_filter(logits, min_p)\n"
SCALED = "    logits = logits / temperature\n"
next_token_probs.slips(
    {
        replace(
            "if temperature == 0:", "temperature = max(temperature, 1e-6)\n    if False:"
        ): "In place of temperature 0 you take a tiny one. Equally likely tokens then share the probability; the "
        "one with the smallest id has 1.",
        replace(
            "likeliest = logits.max(-1, keepdim=True).indices\n"
            "        return torch.zeros_like(logits).scatter(-1, likeliest, 1.0)",
            "likeliest = (logits == logits.amax(-1, keepdim=True)).to(logits.dtype)\n"
            "        return likeliest / likeliest.sum(-1, keepdim=True)",
        ): "Equally likely tokens share the probability in your code at temperature 0. The one with the smallest id "
        "gets all of it.",
        replace(
            "logits = logits.to(torch.promote_types(logits.dtype, torch.float32))",
            "wide = torch.promote_types(logits.dtype, torch.float32)",
            "torch.zeros_like(logits)",
            "torch.zeros_like(logits, dtype=wide)",
            SCALED,
            "    logits = (logits / temperature).to(wide)\n",
        ): "You divide by the temperature in half precision. Turn the logits to float32 before that.",
        replace(
            SCALED, "", "return logits.softmax(-1)", "return (logits / temperature).softmax(-1)"
        ): "You "
        "divide by the temperature after the filters. It comes first, and the filters see its result.",
        replace(
            "logits / temperature", "logits * temperature"
        ): "You multiply by the temperature. Dividing "
        "by a large one makes the probabilities more equal.",
        replace(TOP_K, "", MIN_P, MIN_P + TOP_K): "Your top_p does not see what "
        "top_k has left. top_k comes first, and top_p works with the probabilities of the tokens that remain.",
        replace(
            TOP_P, "", MIN_P, MIN_P + TOP_P
        ): "You filter by top_p after min_p. It comes before.",
        replace(TOP_K, ""): "You do not use top_k.",
        replace(TOP_P, ""): "You do not use top_p.",
        replace(MIN_P, ""): "You do not use min_p.",
        replace(
            "if temperature == 0:", "if False:"
        ): "You divide by a temperature of 0, which gives NaN. "
        "There the likeliest token has the probability 1.",
        replace(
            "if temperature < 0:", "if False:"
        ): "You take a negative temperature. It makes the "
        "unlikeliest token the likeliest: raise ValueError.",
        replace(
            "if temperature < 0:", "if temperature <= 0:"
        ): "You refuse temperature 0. It means the likeliest token.",
        replace(
            "top_k is not None", "top_k"
        ): "You test top_k for truth, so 0 counts as not given. Ask whether it `is None`.",
        replace(
            "top_p is not None", "top_p"
        ): "You test top_p for truth, so 0.0 counts as not given. Ask whether it `is None`.",
        replace(
            "torch.promote_types(logits.dtype, torch.float32)", "logits.dtype"
        ): "You compute in half precision. The probabilities are float32 there.",
        replace(
            "torch.promote_types(logits.dtype, torch.float32)", "torch.float32"
        ): "You compute in float32 what came in float64.",
        replace(
            "torch.zeros_like(logits).scatter(-1, likeliest, 1.0)",
            "F.one_hot(likeliest[:, 0], logits.size(-1)).float()",
        ): "At temperature 0 your result is float32, whatever the logits are. Of float64 logits it is float64.",
        replace(
            "if temperature == 0:", "if temperature == 0:\n        logits = logits.float()"
        ): "At temperature 0 you turn float64 logits to float32, in which two may be equal that are not.",
        replace("return logits.softmax(-1)", "return logits"): "You return logits. The result is "
        "probabilities.",
        replace(
            "logits = logits / temperature", "logits.div_(temperature)"
        ): "You divide the caller's logits in place. Make a new tensor.",
        replace(
            "return logits.softmax(-1)", "return logits.softmax(0)"
        ): "Your probabilities sum to one "
        "over the rows. The softmax runs over the tokens, the last axis.",
        replace(
            MULTINOMIAL, "probs.argmax(-1)"
        ): "You take the likeliest token. sample_token draws one.",
        replace(
            MULTINOMIAL, "torch.multinomial(probs, 1)[:, 0]"
        ): "You do not use the generator: the same "
        "seed gives other tokens, and torch's global generator is used up.",
        replace(
            MULTINOMIAL,
            "torch.multinomial(probs, 1, generator=generator or torch.Generator().manual_seed(0))[:, 0]",
        ): "Without a generator you make one of your own, so torch.manual_seed has no say. None is torch's global "
        "one: pass it on.",
        replace(
            MULTINOMIAL,
            "(generator or (generator := torch.Generator()).seed()) and "
            "torch.multinomial(probs, 1, generator=generator)[:, 0]",
        ): "Without a generator you make one of your own, so torch.manual_seed has no say. None is torch's global "
        "one: pass it on.",
        replace(
            MULTINOMIAL, "torch.multinomial(probs, 1, generator=generator)"
        ): "You return (B, 1). The result has one axis, a token for each row.",
        replace(
            MULTINOMIAL,
            "torch.multinomial(probs[0], len(probs), replacement=True, generator=generator)",
        ): "You draw all tokens with the first row's probabilities. Each row has its own.",
        replace(
            MULTINOMIAL, "(torch.rand(1, generator=generator) < probs.cumsum(-1)).int().argmax(-1)"
        ): "You "
        "draw one random number for all rows. The rows are drawn independently: one number each.",
        replace(
            MULTINOMIAL, "torch.multinomial(probs.softmax(-1), 1, generator=generator)[:, 0]"
        ): "You take a softmax of probabilities. They are probabilities already.",
    }
)


def probabilities_in_float64(logits, *, temperature=1.0, top_k=None, top_p=None, min_p=None):
    if not temperature >= 0:
        raise ValueError("temperature")
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).to(wide)
    scores = logits.double() / temperature
    for f, value in (
        (generation.top_k_filter, top_k),
        (generation.top_p_filter, top_p),
        (generation.min_p_filter, min_p),
    ):
        scores = scores if value is None else f(scores, value)
    return torch.softmax(scores, dim=-1).to(wide)


def token_by_inverse(probs, generator=None):
    u = torch.rand(len(probs), 1, generator=generator, dtype=torch.float64)
    total = probs.double().cumsum(-1)
    return torch.searchsorted(total / total[:, -1:], u, right=True).squeeze(1)


next_token_probs.alternative("float64, and the inverse of the distribution")(
    probabilities_in_float64, token_by_inverse
)


# ------------------------------------------------------------------------------ KVCache

SIZES = {"batch": 2, "n_head": 1, "capacity": 6, "head_dim": 3}

KVCache = Exercise(
    generation.KVCache,
    title="A cache of keys and values",
    difficulty=2,
    minutes=25,
    points=4,
    probe=probes.cached,
    hints=(
        "Make both memories in the constructor, and copy into a slice of them: `self.k[:, :, a:b] = k`.",
        "`length` says where the next tokens go. What you return are slices from the start to the new length.",
        "Check before you write. A slice takes a k of batch 1 without complaint: it broadcasts.",
        "`truncate` moves `length` alone. What lies behind it is written over by the next append.",
    ),
)


def tokens(T, batch=2, n_head=1, head_dim=3, dtype=torch.float32, seed=0):
    """Keys and values of T tokens."""
    shape = (batch, n_head, T, head_dim)
    return normal(*shape, dtype=dtype, seed=seed), normal(*shape, dtype=dtype, seed=seed + 50)


def appended(T, **given):
    return ("append", *tokens(T, **given))


@KVCache.by_hand
def _():
    k, v = torch.tensor([[[[1.0], [2.0]]]]), torch.tensor([[[[5.0], [6.0]]]])
    build = {"batch": 1, "n_head": 1, "capacity": 3, "head_dim": 1}
    shape = (1, 1, 3, 1)
    state = {"length": 2, "k": shape, "v": shape}
    yield (
        call(build, ("append", k, v)),
        {
            "new": {"length": 0, "k": shape, "v": shape, "dtype": torch.float32},
            "step 1 (append): keys": k,
            "step 1 (append): values": v,
            "step 1 (append): are views": [True, True],
            "step 1 (append): cache": state,
            "step 1 (append): kept": [k, v],
        },
    )


@KVCache.cases(25)
def _(draw):
    B, H, d = draw(draws.distinct_sizes(3, 1, 4))
    room, steps = 8, []
    length = 0
    for number in range(draw(st.integers(1, 4))):
        if length and draw(st.integers(0, 3)) == 0:
            length = draw(st.integers(0, length))
            steps.append(("truncate", length))
        else:
            T = draw(st.integers(1, 3))
            if length + T <= room:
                length += T
            steps.append(appended(T, batch=B, n_head=H, head_dim=d, seed=number))
    yield call({"batch": B, "n_head": H, "capacity": room, "head_dim": d}, *steps)


@KVCache.edge
def _():
    yield call(SIZES), "nothing is appended"
    yield call(SIZES, appended(6)), "full at once"
    yield (
        call(SIZES, appended(4), appended(3, seed=1), appended(2, seed=2)),
        "too many, then as many as fit",
    )
    yield call(SIZES, appended(7)), "more than there is room for"
    yield call(SIZES, appended(0), appended(1)), "no token"
    yield (
        call(SIZES, appended(5), ("truncate", 2), appended(3, seed=1)),
        "some are forgotten and written over",
    )
    yield call(SIZES, appended(2), ("truncate", 0), appended(1, seed=1)), "all are forgotten"
    yield call(SIZES, appended(3), ("truncate", 2), ("truncate", 3)), "there are not so many"
    yield call(SIZES, appended(2), ("truncate", -1), appended(1)), "less than none"
    yield call(SIZES, appended(2, batch=1)), "keys of one row for a cache of two"
    yield call(SIZES, appended(1, head_dim=1)), "features that would broadcast"
    yield call(SIZES | {"n_head": 2}, appended(2)), "keys of one head for a cache of two"
    k, v = tokens(2)
    away = ("append", k.to("meta"), v.to("meta"))
    yield call(SIZES | {"device": "meta"}, away), "on another device than the default one"
    yield call(SIZES | {"dtype": torch.float64}, appended(2, dtype=torch.float64)), "float64"
    yield call(SIZES | {"dtype": torch.bfloat16}, appended(2, dtype=torch.bfloat16)), "bfloat16"
    yield call(SIZES, ("append", draws.scattered(k), draws.scattered(v))), "not contiguous"


KVCache.contract(
    contracts.allocates(
        [call(3, 8), call(60, 80)],
        limit=0,
        says="an append makes no new tensor: what is kept is not copied again",
        prepare=speaking.cache_filled,
    )
)
WRITE_K = "self.k[:, :, self.length : end] = k"
KVCache.slips(
    {
        replace(
            "        self.length = end\n", ""
        ): "You never move `length`, so each append writes over the last one.",
        replace(
            "self.length = end\n", "self.length = k.size(2)\n"
        ): "You set `length` to the number of new tokens. It counts all that are in the cache.",
        replace(
            "return self.k[:, :, :end], self.v[:, :, :end]", "return self.k, self.v"
        ): "You return the whole memory. What lies behind `length` is no token yet.",
        replace(
            "return self.k[:, :, :end], self.v[:, :, :end]", "return k, v"
        ): "You return the new tokens alone. All tokens so far are asked for.",
        replace(
            "return self.k[:, :, :end], self.v[:, :, :end]",
            "return self.k[:, :, :end].clone(), self.v[:, :, :end].clone()",
        ): "You "
        "return copies. A slice is a view, and copying the cache in each step costs what it should save.",
        replace(
            "return self.k[:, :, :end], self.v[:, :, :end]",
            "return self.k[:, :, :end].contiguous(), self.v[:, :, :end].contiguous()",
        ): "You "
        "return copies. A slice is a view, and copying the cache in each step costs what it should save.",
        replace(
            "self.v[:, :, self.length : end] = v", "self.v[:, :, self.length : end] = k"
        ): "You keep the keys as values.",
        replace(
            "self.v = torch.zeros_like(self.k)", "self.v = self.k"
        ): "Your k and v are one memory: the values write over the keys.",
        replace(
            "if end > capacity:",
            "if False:",
            "if not k.shape == v.shape == (B, H, k.size(2), d):",
            "if False:",
        ): "You check nothing. What does not fit raises ValueError before anything is kept.",
        replace(
            "if not k.shape == v.shape == (B, H, k.size(2), d):", "if False:"
        ): "You do not compare the "
        "shapes. A slice takes what broadcasts into it, so keys of one row fill all rows: raise ValueError.",
        replace(
            ", dtype=dtype, device=device)", ", dtype=dtype)"
        ): "You make memory on the default device, whatever `device` is.",
        replace(
            "if end > capacity:", "if end >= capacity:"
        ): "Your cache refuses to be full: the last place is never used.",
        replace(
            'raise ValueError(f"{end} tokens; the cache has room for {capacity}")',
            "self.length, end = 0, k.size(2)",
        ): "Where "
        "the cache is full you begin again at its start. Raise ValueError, and keep what there is.",
        replace(
            "if not 0 <= length <= self.length:", "if False:"
        ): "You truncate to any length. There must "
        "be so many tokens, 0 or more, else raise ValueError.",
        replace(
            "if not 0 <= length <= self.length:", "if length > self.length:"
        ): "You truncate to a negative length. Raise ValueError.",
        replace(
            "if not 0 <= length <= self.length:", "if not 0 <= length <= self.k.size(2):"
        ): "You truncate to any length for which there is room. There must be so many tokens in the cache: "
        "compare with `length`, else raise ValueError.",
        replace(
            "        self.length = length",
            "        self.length = length\n"
            "        self.k, self.v = self.k[:, :, :length], self.v[:, :, :length]",
        ): "Your `truncate` cuts the memory, too, so its room is lost and later tokens do not fit. Move "
        "`length` alone.",
        replace(
            "        if end > capacity:\n",
            "        if end > capacity:\n            self.length = end\n",
        ): "You move `length` before you check, so after a refused append it counts tokens that are not there.",
        replace(
            "k.shape == v.shape == (B, H, k.size(2), d)",
            "k.shape == v.shape == (k.size(0), H, k.size(2), d)",
        ): "You do not compare the batch. A slice takes what broadcasts into it, so keys of one row fill all "
        "rows: raise ValueError.",
        replace(
            "k.shape == v.shape == (B, H, k.size(2), d)",
            "k.shape == v.shape == (B, k.size(1), k.size(2), d)",
        ): "You do not compare the heads. A slice takes what broadcasts into it, so keys of one head fill all "
        "heads: raise ValueError.",
        replace(
            "k.shape == v.shape == (B, H, k.size(2), d)",
            "k.shape == v.shape == (B, H, k.size(2), k.size(3))",
        ): "You do not compare the features. A slice takes what broadcasts into it, so keys of one feature "
        "fill all features: raise ValueError.",
        replace(
            "if not 0 <= length <= self.length:", "if not 0 < length < self.length:"
        ): "You refuse to keep none, or all. Both are allowed.",
        replace(
            "if not 0 <= length <= self.length:", "if not 0 <= length < self.length:"
        ): "You refuse to keep all tokens. `length` may be as many as there are.",
        replace(
            "self.k = torch.zeros(batch, n_head, capacity, head_dim, dtype=dtype, device=device)",
            "self.k = torch.zeros(batch, n_head, capacity, head_dim, device=device)",
        ): "You make float32 memory whatever the dtype is.",
        replace(
            "torch.zeros(batch, n_head, capacity, head_dim",
            "torch.zeros(batch, capacity, n_head, head_dim",
            "B, H, capacity, d = self.k.shape",
            "B, capacity, H, d = self.k.shape",
            WRITE_K,
            "self.k.transpose(1, 2)[:, :, self.length : end] = k",
            "self.v[:, :, self.length : end] = v",
            "self.v.transpose(1, 2)[:, :, self.length : end] = v",
            "return self.k[:, :, :end], self.v[:, :, :end]",
            "return self.k.transpose(1, 2)[:, :, :end], self.v.transpose(1, 2)[:, :, :end]",
        ): "Your memory has the tokens before the heads. It is (B, H, capacity, d).",
    }
)


@KVCache.mistake(
    "The values are right, but each append copies the whole cache, by cat or by a new tensor. Copy the new "
    "tokens into the memory that is there.",
    cost=True,
)
class _(generation.KVCache):
    def append(self, k, v):
        super().append(k, v)
        whole = self.k[:, :, : self.length]
        torch.cat((whole[:, :, :-1], whole[:, :, -1:]), 2)
        return self.k[:, :, : self.length], self.v[:, :, : self.length]


@KVCache.alternative("narrow and copy_, one memory for both")
class _:
    def __init__(self, batch, n_head, capacity, head_dim, dtype=torch.float32, device=None):
        shape = (batch, n_head, capacity, head_dim)
        self.k, self.v = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        self.length = 0

    def append(self, k, v):
        new = k.shape[2]
        due = self.k.shape[:2] + (new,) + self.k.shape[3:]
        if k.shape != due or v.shape != due or self.length + new > self.k.shape[2]:
            raise ValueError("does not fit")
        for memory, more in ((self.k, k), (self.v, v)):
            memory.narrow(2, self.length, new).copy_(more)
        self.length += new
        return self.k.narrow(2, 0, self.length), self.v.narrow(2, 0, self.length)

    def truncate(self, length):
        if length < 0 or length > self.length:
            raise ValueError("length")
        self.length = length


# ------------------------------------------------------------------------------ positions_and_mask

positions_and_mask = Exercise(
    generation.positions_and_mask,
    title="Rows of different lengths, padded at the left",
    difficulty=2,
    minutes=20,
    points=3,
    hints=(
        "Number the tokens 0 to S − 1. The queries are the last T of them, and token number s of row b is "
        "real if s ≥ padding[b].",
        "The position of a token is its number less the row's padding, and 0 for padding.",
        "(T, 1) against (S,) gives who is not in the future; (B, 1, S) says what is real. Broadcast both "
        "to (B, T, S), then make room for the heads.",
        ("edge cases", "Padding sees itself, so that no row of the mask is empty."),
    ),
)


def ints(*values):
    return torch.tensor(values)


@positions_and_mask.by_hand
def _():
    def masks(*texts):
        rows = [[[c == "1" for c in row] for row in text.split()] for text in texts]
        return torch.tensor(rows)[:, None]

    yield call(ints(0, 1), 3, 3), (ints([0, 1, 2], [0, 0, 1]), masks("100 110 111", "100 010 011"))
    yield call(ints(0, 2), 1, 4), (ints([3], [1]), masks("1111", "0011"))
    yield call(ints(2), 2, 3), (ints([0, 0]), masks("010 001"))


@positions_and_mask.cases
def _(draw):
    S = draw(st.integers(1, 6))
    T = draw(st.integers(1, S))
    B = draw(st.integers(1, 4))
    padding = draw(st.lists(st.integers(0, S - 1), min_size=B, max_size=B))
    yield call(torch.tensor(padding), T, S)


@positions_and_mask.edge
def _():
    yield call(ints(0, 0), 4, 4), "no padding"
    yield call(ints(1, 0), 1, 5), "one step of generation"
    yield call(ints(3, 1), 2, 4), "more padding than is left of the queries"
    yield call(ints(3, 0), 3, 3), "a row of padding alone"
    yield call(ints(1, 2, 0), 3, 3), "as many rows as tokens"
    yield call(torch.zeros(0, dtype=torch.int64), 2, 3), "an empty batch"
    yield call(ints(1, 0), 0, 3), "no query"
    yield call(ints(1, 0).to(torch.int32), 2, 3), "int32"
    yield call(ints(1, 9, 0, 9)[::2], 2, 3), "every other element of a vector"
    yield call(ints(1, 0).to("meta"), 2, 3), "on another device than the default one"


positions_and_mask.contract(
    contracts.constant_kernels(
        [call(torch.arange(B) % 3, T, 2 * T) for B, T in ((2, 3), (9, 3), (9, 20))],
        says="no Python loop over the rows or the tokens",
    )
)
POSITIONS = "(query[:, 0] - padding[:, None]).clamp(min=0)"
positions_and_mask.slips(
    {
        replace(
            "((token <= query) & real)", "((token <= query) & (real == real[..., S - T :].mT))"
        ): "Padding attends to the padding before it in your code. It sees only itself.",
        replace(
            POSITIONS,
            "torch.where(query[:, 0] < padding[:, None], 1, query[:, 0] - padding[:, None])",
        ): "Your padding has the position 1, as in transformers. Here it is 0.",
        replace(
            "(token == query)", "(token == query - (S - T))"
        ): "Your diagonal begins at the first column. The queries are the last T tokens, so query t is token "
        "S − T + t: move it.",
        replace(
            "torch.arange(S, ", "torch.arange(S, dtype=padding.dtype, "
        ): "Your positions have the dtype of `padding`. They are int64.",
        replace(
            ".clamp(min=0)", ""
        ): "Your padding has negative positions, which an embedding does not "
        "have. Clamp them to 0.",
        replace(
            POSITIONS, "query[:, 0].expand(len(padding), -1)"
        ): "You count positions from the left edge. "
        "A row's first real token has position 0: subtract its padding.",
        replace(
            "(token <= query)", "(token <= query - (S - T))"
        ): "Your triangle begins at the first column. The queries are the last T tokens, so query t is token "
        "S − T + t: move it.",
        replace(
            "token[S - T :, None]", "token[:T, None]"
        ): "Your queries are the first T tokens. They are the last T of S.",
        replace(
            " | (token == query)", ""
        ): "Your padding sees nothing. A softmax over nothing is NaN: let each token see itself.",
        replace("& real) |", ") |"): "You do not hide the padding.",
        replace("((token <= query) & real)", "real"): "You do not hide the future.",
        replace(
            "token >= padding[:, None]", "token > padding[:, None]"
        ): "You hide the first real token, too. Padding is what stands left of it.",
        replace(
            "token >= padding[:, None]", "token < S - padding[:, None]"
        ): "You take the padding for the right end of the rows. It is on the left.",
        replace(
            "mask[:, None]", "mask"
        ): "The axis of the heads is missing. (B, T, S) against scores "
        "(B, H, T, S) aligns the batch with the heads; return (B, 1, T, S).",
        replace(
            "mask[:, None]", "~mask[:, None]"
        ): "Your mask is True where something is hidden. True means that the query may attend.",
        replace(
            "mask[:, None]", "mask[:, None].mT"
        ): "You exchange queries and keys. The third axis is the query.",
        replace(
            ", device=padding.device", ""
        ): "Your code makes a tensor on the default device. Make it where `padding` is.",
        replace(
            POSITIONS, "(query[:, 0] - padding[:, None]).clamp(min=1)"
        ): "Your positions start at 1. The first real token has position 0.",
    }
)


@positions_and_mask.mistake(BY_ROWS, cost=True)
def _(padding, T, S):
    made = [generation.positions_and_mask(one[None], T, S) for one in padding]
    if not made:
        return generation.positions_and_mask(padding, T, S)
    return tuple(torch.cat(parts) for parts in zip(*made, strict=True))


@positions_and_mask.alternative("a triangle, and a cumulative sum of what is real")
def _(padding, T, S):
    B = padding.shape[0]
    real = torch.arange(S, device=padding.device).expand(B, S).ge(padding.unsqueeze(1))
    positions = real.long().cumsum(1).sub(1).clamp_min(0)[:, S - T :]
    square = torch.ones(S, S, dtype=torch.bool, device=padding.device)
    mask = (square.tril() & real.unsqueeze(1)) | torch.eye(
        S, dtype=torch.bool, device=padding.device
    )
    return positions, mask[:, S - T :].unsqueeze(1)


# ------------------------------------------------------------------------------ generate

generate = Exercise(
    generation.generate,
    title="One token a step",
    difficulty=2,
    minutes=30,
    points=5,
    probe=probes.generated,
    hints=(
        "The first call reads the prompt, and every other one what was drawn last, (B, 1).",
        "Count the calls: n tokens need n of them. What is drawn last is not read.",
        "A row that is done gets its own last token again: `torch.where(done, ids[:, -1], new)`.",
        "Stop early only if all rows are done.",
    ),
)


def spoken(model, ids, n, **given):
    """A case of generate: the model by the size of its vocabulary and its seed."""
    return call(model=model, ids=torch.tensor(ids), n=n, **given)


def greedily(model, ids, n, **given):
    return spoken(model, ids, n, temperature=0.0, **given)


def stops_of(model, ids, n, *places, **given):
    """Tokens that the toy draws at (row, place)."""
    toy = speaking._Toy(*model)
    ids = torch.tensor(ids)
    whole = generation.generate(toy, ids, n, temperature=0.0, **given)
    return sorted({int(whole[row, ids.size(1) + place]) for row, place in places})


@generate.by_hand
def _():
    yield greedily((7, 0), [[3, 1], [2, 2]], 0), ints([3, 1], [2, 2])
    yield greedily((1, 0), [[0, 0]], 3), torch.zeros(1, 5, dtype=torch.int64)


@generate.cases(25)
def _(draw):
    B, T = draw(draws.distinct_sizes(2, 1, 4))
    V, seed, n = draw(st.integers(5, 12)), draw(st.integers(0, 99)), draw(st.integers(1, 6))
    ids = draw(draws.indices((B, T), V)).tolist()
    given = {}
    if draw(st.booleans()):
        given["stop"] = stops_of((V, seed), ids, n, (0, draw(st.integers(0, n - 1))))
    yield greedily((V, seed), ids, n, **given)


@generate.edge
def _():
    model, ids = (11, 5), [[1, 2, 3], [4, 5, 6]]
    yield greedily(model, ids, 6), "two rows"
    yield greedily(model, [[1]], 4), "a prompt of one token"
    yield greedily(model, ids, 1), "one new token"
    yield greedily(model, ids, 6, padding=ints(2, 0)), "a row with padding"
    first = stops_of(model, ids, 6, (0, 1))
    yield greedily(model, ids, 6, stop=first), "one row stops"
    both = stops_of(model, ids, 6, (0, 1), (1, 2))
    yield greedily(model, ids, 6, stop=both), "both rows stop, at different places"
    yield greedily(model, ids[:1], 6, stop=first), "a single row stops"
    yield greedily((11, 23), ids, 6, stop=[1, 10]), "the first row stops with the second token"
    yield greedily((11, 23), ids, 6, stop=[10, 1]), "the first row stops with the first token"
    yield greedily(model, ids, 6, stop_set=both), "the stop tokens are a set"
    yield greedily(model, ids, 4, stop=[3, 6]), "the prompt's last tokens are stop tokens"
    last = stops_of(model, ids, 4, (0, 3), (1, 3))
    yield greedily(model, ids, 4, stop=last), "it would stop after the last token"
    yield spoken(model, ids, 5, temperature=1e6, top_k=1), "top_k leaves one token"
    yield spoken(model, ids, 5, temperature=0.5, top_p=1e-9), "top_p leaves one token"
    yield spoken(model, ids, 5, temperature=2.0, min_p=1.0), "min_p leaves one token"
    many = [[1, 2]] * 3000
    yield spoken((5, 1), many, 2, temperature=1e9, seed=3), "nearly equal probabilities"
    yield spoken((5, 1), many, 2, temperature=1e9, seed=None), "torch's own generator"


FLOPS_OF = (11, 5, torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]] * 2), 12)


def flops_due(case):
    """One token's FLOPs for each token that is read, and a head for each call."""
    V, seed, ids, n, *stop = case.args
    B, T = ids.shape
    whole = generation.generate(speaking._Toy(V, seed), ids, n, temperature=0.0, stop=stop)
    n = whole.size(1) - T
    return 2 * B * ((T + n - 1) * 36 + n * 6 * V)


generate.contract(
    contracts.flops(
        [
            call(*FLOPS_OF),
            call(9, 1, torch.tensor([[1, 2]]), 30),
            call(9, 1, torch.tensor([[1, 2]]), 30, *stops_of((9, 1), [[1, 2]], 30, (0, 2))),
        ],
        limit=flops_due,
        says="the FLOPs of one token a step: no token is read twice",
        prepare=speaking.toy_built,
    )
)
JOINED = "ids = torch.cat((ids, new[:, None]), dim=1)"
generate.slips(
    {
        replace(
            "read = new[:, None]", "read = ids"
        ): "You read the whole text in each step, though the "
        "cache has it: every token is read again and counts twice. Read the new token alone.",
        replace(
            "new = torch.where(done, ids[:, -1], sample_token(probs, generator))",
            "new = sample_token(probs, generator)",
        ): "Rows that are done go on. They repeat their stop token.",
        replace(
            "if done.all():", "if done.any():"
        ): "You end all rows with the first one that is done. Wait for all.",
        replace("if done.all():", "if False:"): "You go on when all rows are done.",
        replace(
            "torch.where(done, ids[:, -1], sample",
            "torch.where(done, stops[0] if len(stops) else 0, sample",
        ): "You fill a row that is done with the first of the stop tokens. It repeats the one that it has drawn.",
        replace(
            "torch.where(done, ids[:, -1], sample",
            "torch.where(done, next(iter(stop), 0), sample",
        ): "You fill a row that is done with the first of the stop tokens. It repeats the one that it has drawn.",
        replace(
            "    read = ids\n    for _",
            "    if not max_new_tokens:\n"
            "        new = sample_token(next_token_probs(model(ids, model.new_cache(B, T, padding)),"
            " temperature=temperature), generator)\n"
            "        return torch.cat((ids, new[:, None]), dim=1)\n"
            "    read = ids\n    for _",
        ): "You draw a token though max_new_tokens is 0: the first one is drawn before anything is counted.",
        replace(
            "sorted(stop)", "stop"
        ): "Your code wants the stop tokens in a list or a tuple. Any collection "
        "will do, so a set, too.",
        replace(
            "done = torch.zeros(B, dtype=torch.bool, device=ids.device)",
            "done = torch.isin(ids[:, -1], stops)",
        ): "A stop "
        "token at the end of the prompt ends a row in your code. Only what is drawn counts.",
        replace(
            "        logits = model(read, cache)\n",
            "        done = torch.isin(ids, stops).any(1)\n        if done.all():\n            break\n"
            "        logits = model(read, cache)\n",
        ): "You look for stop tokens in the prompt, too. Only what is drawn ends a row.",
        replace(
            "torch.isin(new, stops)", "torch.isin(ids, stops).any(1)"
        ): "You look for stop tokens in the prompt, too. Only what is drawn ends a row.",
        replace(
            "ids = torch.cat((ids, new[:, None]), dim=1)",
            "ids = torch.where(torch.isin(new, stops).all(), ids, torch.cat((ids, new[:, None]), 1)) if torch.isin(new, stops).all() else torch.cat((ids, new[:, None]), dim=1)",
        ): "You leave out the stop token. It is part of the result.",
        replace(
            "cache = model.new_cache(B, T + max_new_tokens, padding)",
            "cache = model.new_cache(B, T + max_new_tokens, None)",
        ): "You do not pass on `padding`.",
        replace(
            "model.new_cache(B, T + max_new_tokens, padding)",
            "model.new_cache(B, max_new_tokens, padding)",
        ): "Your cache has no room for the prompt.",
        replace(
            "temperature=temperature", "temperature=1.0"
        ): "You do not pass on the temperature.",
        replace("top_k=top_k", "top_k=None"): "You do not pass on top_k.",
        replace("top_p=top_p", "top_p=None"): "You do not pass on top_p.",
        replace("min_p=min_p", "min_p=None"): "You do not pass on min_p.",
        replace(
            "sample_token(probs, generator)", "sample_token(probs)"
        ): "You do not pass on the generator.",
        replace(
            "sample_token(probs, generator)",
            "sample_token(probs, generator or torch.Generator().manual_seed(0))",
        ): "Without a generator you make one with a seed of your own, so every text is the same. None is torch's "
        "global one: pass it on.",
        replace(
            "sample_token(probs, generator)", "probs.argmax(-1)"
        ): "You always take the likeliest token. At a temperature above 0 it is drawn.",
        replace(
            "range(max_new_tokens)", "range(max_new_tokens + 1)"
        ): "You draw one token too many.",
        replace(
            "range(max_new_tokens)", "range(max_new_tokens - 1)"
        ): "You draw one token too few.",
        replace(
            "@torch.no_grad()\n", ""
        ): "You record gradients. Nobody asks for them, and they keep every activation.",
        replace(
            "return ids", "return ids[:, T:]"
        ): "You return the new tokens alone. The prompt comes first.",
    }
)


@generate.mistake(
    "The tokens are right, but the model reads the whole text again in each step. Keep the cache, and let it "
    "read the new token alone.",
    cost=True,
)
def _(model, ids, max_new_tokens, *, padding=None, generator=None, stop=(), **settings):
    class Forgetful:
        def new_cache(self, batch, capacity, padding):
            self.given, self.text = (batch, capacity, padding), None
            return self

        def __call__(self, ids, cache):
            self.text = ids if self.text is None else torch.cat((self.text, ids), 1)
            return model(self.text, model.new_cache(*self.given))

    return generation.generate(
        Forgetful(),
        ids,
        max_new_tokens,
        padding=padding,
        generator=generator,
        stop=stop,
        **settings,
    )


@generate.mistake(
    "The tokens are right, but the model reads the last token that was drawn, too, though nobody asks what "
    "follows it. n tokens need n calls.",
    cost=True,
)
def _(model, ids, max_new_tokens, *, padding=None, generator=None, stop=(), **settings):
    class Longer:
        def new_cache(self, batch, capacity, padding):
            self.cache = model.new_cache(batch, capacity, padding)
            return self.cache

        def __call__(self, ids, cache):
            self.called = True
            return model(ids, cache)

    longer = Longer()
    out = generation.generate(
        longer, ids, max_new_tokens, padding=padding, generator=generator, stop=stop, **settings
    )
    if max_new_tokens:
        with torch.no_grad():
            model(out[:, -1:], longer.cache)
    return out


@generate.mistake(
    "The tokens are right, but when the last row stops the model reads its stop token, too, though nobody asks "
    "what follows it. Look whether all rows are done before the model is called.",
    cost=True,
)
def _(model, ids, max_new_tokens, *, stop=(), **settings):
    class Noted:
        def new_cache(self, *given):
            self.cache = model.new_cache(*given)
            return self.cache

        def __call__(self, ids, cache):
            return model(ids, cache)

    noted = Noted()
    out = generation.generate(noted, ids, max_new_tokens, stop=stop, **settings)
    if out.size(1) < ids.size(1) + max_new_tokens:
        with torch.no_grad():
            model(out[:, -1:], noted.cache)
    return out


@generate.alternative("a list of columns")
def _(
    model,
    ids,
    max_new_tokens,
    *,
    padding=None,
    temperature=1.0,
    top_k=None,
    top_p=None,
    min_p=None,
    generator=None,
    stop=(),
):
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    ended = [None] * len(ids)
    columns, read = [ids], ids
    with torch.inference_mode():
        cache = model.new_cache(len(ids), ids.shape[1] + max_new_tokens, padding)
        while len(columns) <= max_new_tokens and not (stop and None not in ended):
            probs = generation.next_token_probs(model(read, cache), **settings)
            drawn = generation.sample_token(probs, generator).tolist()
            drawn = [old if old is not None else new for old, new in zip(ended, drawn, strict=True)]
            ended = [token if token in stop else None for token in drawn]
            read = torch.tensor(drawn)[:, None]
            columns.append(read)
    return torch.cat(columns, 1).clone()


# ------------------------------------------------------------------------------ speculative_accept

speculative_accept = Exercise(
    generation.speculative_accept,
    title="Which guesses are kept",
    difficulty=3,
    minutes=30,
    points=5,
    hints=(
        "First which tokens pass on their own: u < target / draft, at the place and for the token drafted.",
        "All after the first failure are lost, whatever their own u says. How many pass before it?",
        "In place of the first failure: target − draft at that place, negatives as 0, divided by the sum.",
        (
            "edge cases",
            "If all pass there is one more row of target, and no draft to compare it with.",
        ),
    ),
)


@speculative_accept.by_hand
def _():
    p = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    q = torch.tensor([[0.25, 0.75, 0.0]])
    yield call(p, q, ints(0), torch.tensor([0.99])), (1, p[1])
    yield call(p, q, ints(1), torch.tensor([0.6])), (1, p[1])
    yield call(p, q, ints(1), torch.tensor([0.7])), (0, torch.tensor([1.0, 0.0, 0.0]))
    p = torch.tensor([[0.125, 0.875], [1.0, 0.0], [0.5, 0.5]])
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    yield call(p, q, ints(0, 0), torch.tensor([0.5, 0.1])), (0, torch.tensor([0.0, 1.0]))
    yield call(p, q, ints(1, 0), torch.tensor([0.5, 0.9])), (2, torch.tensor([0.5, 0.5]))
    yield call(p, q, ints(1, 1), torch.tensor([0.5, 0.0])), (1, torch.tensor([1.0, 0.0]))


@speculative_accept.cases(60)
def _(draw):
    K, V = draw(draws.distinct_sizes(2, 1, 6))
    V += 1
    p = draw(draws.tensors((K + 1, V), scale=1.5)).softmax(-1)
    q = draw(draws.tensors((K, V), scale=1.5)).softmax(-1)
    u = draw(st.lists(st.floats(0, 0.9990234375, width=32), min_size=K, max_size=K))
    yield call(p, q, draw(draws.indices((K,), V)), torch.tensor(u, dtype=torch.float32))


@speculative_accept.edge
def _():
    p, q = normal(4, 5).softmax(-1), normal(3, 5, seed=1).softmax(-1)
    low, high = torch.zeros(3), torch.full((3,), 0.9999)
    yield call(p, q, ints(0, 1, 2), low), "u = 0 accepts whatever target has"
    yield call(p, p[:3], ints(0, 1, 2), high), "draft and target agree: all are accepted"
    certain = torch.eye(5)[[0, 1, 2, 3]]
    yield call(certain, q, ints(0, 1, 2), high), "target is certain of what was drafted"
    yield call(certain, q, ints(0, 4, 2), low), "target excludes a token, and u = 0"
    yield call(p[:1], q[:0], ints(0, 1)[:0], low[:0]), "nothing was drafted"
    p64, q64 = (x.double() / x.double().sum(-1, keepdim=True) for x in (p, q))
    yield call(p64, q64, ints(4, 3, 2), high.double()), "float64"
    yield (
        call(p, q, ints(4, 0, 3), torch.tensor([0.0, 0.9999, 0.0])),
        "the second fails, the third would pass",
    )
    yield call(draws.scattered(p), draws.scattered(q), ints(1, 1, 1), high), "not contiguous"
    square = normal(5, 5).softmax(-1)
    yield (
        call(square, normal(4, 5, seed=2).softmax(-1), ints(3, 0, 1, 2), high.new_full((4,), 0.4)),
        "as many places as tokens",
    )


ACCEPTED = "u * draft[at] < target[at]"
COUNTED = "int(accepted.long().cumprod(0).sum())"
RESTED = "(target[n] - draft[n]).clamp(min=0)"
speculative_accept.slips(
    {
        replace(
            "return K, target[K].clone()",
            "rest = (target[K] - draft[K - 1]).clamp(min=0) if K else target[K]\n"
            "        return K, rest / rest.sum()",
        ): "You subtract a draft where all are accepted, too. There is none for that place: the next token comes "
        "from target's last row as it is.",
        replace(
            "rest = " + RESTED,
            "rest = target[n].sub_(draft[n]).clamp_(min=0)",
            "rest / rest.sum()",
            "rest.div_(rest.sum())",
        ): "You compute in a row of `target`, which is a view of what belongs to the caller. Make a new tensor.",
        replace(
            ACCEPTED, "u < (target[at] / draft[at]).clamp(max=1).cumprod(0)"
        ): "You compare u with the product of all ratios so far. Each token is accepted with its own ratio.",
        replace(
            COUNTED, "int(accepted.sum())"
        ): "You count all that pass. The first that does not ends it: "
        "what follows was drafted after a token that is gone.",
        replace(
            ACCEPTED, "u < target[at]"
        ): "You accept with target's probability. It is target / draft: "
        "a token that the draft proposes too often is refused more often.",
        replace(
            ACCEPTED, "u * target[at] < draft[at]"
        ): "You exchange target and draft: a token that target "
        "likes better than the draft would be refused.",
        replace(
            ACCEPTED, "u * draft[at] > target[at]"
        ): "You accept what is to be refused. A token is accepted if u is below target / draft.",
        replace(
            ACCEPTED, "u * draft[at] <= target[at]"
        ): "You accept a token that target gives probability "
        "0, when u is 0. Accept only if u is below target / draft.",
        replace(
            ACCEPTED, "draft[at] <= target[at]"
        ): "You do not use u: a token is refused whenever the draft "
        "likes it better. It is refused with probability 1 − target / draft.",
        replace(
            ACCEPTED, "drafted == target[:K].argmax(-1)"
        ): "You accept what target thinks likeliest. Accepting is random, by u.",
        replace(
            "n == K:\n        return K, target[K].clone()\n    rest",
            "False:\n        pass\n    n = min(n, K - 1)\n    rest",
        ): "You "
        "have no answer where all are accepted. Then the next token comes from target's last row.",
        replace(
            "target[K].clone()", "target[K - 1].clone()"
        ): "Where all are accepted you take the row of the "
        "last drafted token. The row after it says what follows.",
        replace(
            "rest = " + RESTED, "rest = target[n]"
        ): "You draw from target in place of a refused token. "
        "What the draft gave already has to be subtracted: max(0, target − draft).",
        replace(
            RESTED, "(target[n] - draft[n]).abs()"
        ): "You take the distance of target and draft. Where the "
        "draft has more there is nothing left: negatives become 0.",
        replace(
            RESTED, "(draft[n] - target[n]).clamp(min=0)"
        ): "You subtract target from draft. What is missing is target − draft.",
        replace(
            "rest / rest.sum()", "rest"
        ): "Your probabilities do not sum to one. Divide by the sum.",
        replace(
            "rest / rest.sum()", "rest.softmax(-1)"
        ): "You take a softmax of what is left. It is divided by its sum: what is 0 has to stay 0.",
        replace(
            "(target[n] - draft[n]).clamp(min=0)", "(target[n] - draft[n - 1]).clamp(min=0)"
        ): "You subtract the draft of another place.",
        replace(
            "return n, rest / rest.sum()", "return n + 1, rest / rest.sum()"
        ): "You count the token in place of the refused one as accepted.",
    }
)


@speculative_accept.mistake("You look at the first drafted token's probabilities for all places.")
def _(target, draft, drafted, u):
    return generation.speculative_accept(
        target[:1].expand_as(target), draft[:1].expand_as(draft), drafted, u
    )


@speculative_accept.mistake(
    "You set the refused token's probability to 0 and keep the rest of target. The other tokens, too, were "
    "proposed with the draft's probabilities: subtract the draft everywhere, negatives as 0."
)
def _(target, draft, drafted, u):
    n, probs = generation.speculative_accept(target, draft, drafted, u)
    if n == len(drafted):
        return n, probs
    rest = target[n].clone()
    rest[drafted[n]] = 0
    return n, rest / rest.sum()


@speculative_accept.alternative("a loop over the drafted tokens")
def _(target, draft, drafted, u):
    for i, token in enumerate(drafted.tolist()):
        p, q = target[i, token].item(), draft[i, token].item()
        if p <= 0 or u[i].item() * q >= p:
            left = torch.relu(target[i] - draft[i])
            return i, left.div(left.sum())
    return len(drafted), target[len(drafted)]


# ------------------------------------------------------------------------------ stop_stream

stop_stream = Exercise(
    generation.stop_stream,
    title="Stop strings in a stream",
    difficulty=3,
    minutes=30,
    points=4,
    probe=probes.stopped,
    hints=(
        "Keep what is not given out yet in one string, and add each piece to it.",
        "Is a stop string complete? Of several it is the one that ends first, so compare ends, not starts.",
        "If none is: the longest ending of the string that begins a stop string stays, all before it can go.",
        "Return as soon as a stop string is complete: asking for another piece costs a step of the model.",
    ),
)


def piecewise(pieces, *stops):
    return call(list(pieces), list(stops))


def text_seen(taken, *given):
    return {
        "text": "".join(text for _, text in given),
        "text given out, by the number of pieces taken": [list(pair) for pair in given],
        "pieces taken in all": taken,
        "pieces taken before any is asked for": 0,
        "an empty string is given out": False,
        "argument `stops` afterwards": "nothing",
    }


@stop_stream.by_hand
def _():
    yield piecewise(["one ", "END two"], "END"), text_seen(2, (1, "one "))
    yield piecewise(["one E", "ND", " two"], "END"), text_seen(2, (1, "one "))
    yield piecewise(["one E", "lse"], "END"), text_seen(2, (1, "one "), (2, "Else"))
    yield piecewise(["a", "b"]), text_seen(2, (1, "a"), (2, "b"))
    yield piecewise(["abc", "d"], "abcd", "bc"), text_seen(1, (1, "a"))
    yield piecewise(["a", "a", "b"], "aab"), text_seen(3)


@stop_stream.cases(60)
def _(draw):
    pieces = draw(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=6))
    stops = draw(st.lists(st.text("ab", min_size=1, max_size=4), max_size=2))
    yield piecewise(pieces, *stops)


@stop_stream.cases(20)
def _(draw):
    stop = draw(st.sampled_from(("\n\n", "aab", "abab", "</s>")))
    text = draw(st.text("ab\n<", max_size=8)) + stop + "tail"
    cut = draw(st.integers(1, 3))
    yield piecewise([text[i : i + cut] for i in range(0, len(text), cut)], stop)


@stop_stream.edge
def _():
    yield piecewise([], "END"), "no piece"
    yield piecewise(["", "a", "", "b"], "END"), "empty pieces"
    yield piecewise(["a\n", "\n", "b"], "\n\n"), "a stop string in two pieces"
    yield piecewise(["x", "aa", "ab", "y"], "aab"), "a beginning that begins again later"
    yield piecewise(["ababa", "b", "z"], "ababb", "bz"), "two beginnings at once"
    yield piecewise(["xEN"], "END"), "the text ends with a beginning"
    yield piecewise(["END"], "END"), "nothing but the stop string"
    yield piecewise(["aENDbENDc"], "END"), "it stands there twice"
    yield (
        piecewise(["xabcd"], "abcd", "bc", "cd"),
        "the one that ends first is not the one that begins first",
    )
    yield piecewise(["xab"], "ab", "b"), "two end at the same place"
    yield (
        piecewise(["xab"], "b", "ab"),
        "two end at the same place, the longer one last in the list",
    )
    yield piecewise(["xabc"], "b", "a"), "two in one piece, in the other order"
    yield piecewise(["日本", "語。", "終"], "。終"), "characters of several bytes"
    yield piecewise(["a.", "*", "b"], ".*"), "characters with a meaning in patterns"
    yield piecewise(["end", "END"], "END"), "capital letters are others"
    yield call(["one E", "ND", "two"], ("END", "\n")), "stop strings in a tuple"
    yield piecewise(["a"] * 30 + ["b", "c"], "ab"), "many pieces"


FOUND = "if stop in held]"
stop_stream.slips(
    {
        replace(
            "min(found)[1]", "min(found, key=lambda pair: pair[0])[1]"
        ): "Of stop strings that end at the same place you take the first in the list. It is the longest.",
        replace(
            "            return\n", "            next(iter(pieces), None)\n            return\n"
        ): "You notice that the text is over only when a further piece has come, which costs a step of the model. "
        "Return at once.",
        replace(
            "max((len(part) for part in begins if held.endswith(part)), default=0)",
            "([0] + [n for stop in stops if (n := max("
            "(n for n in range(1, len(stop)) if held.endswith(stop[:n])), default=0))])[-1]",
        ): "Where several stop strings may have begun you hold back for the last one in the list. Hold back the "
        "longest beginning.",
        replace(
            "kept = max((len(part) for part in begins if held.endswith(part)), default=0)",
            "kept = 0",
        ): "You "
        "hold nothing back. A stop string that begins in one piece and ends in the next is given out.",
        replace(
            "kept = max((len(part) for part in begins if held.endswith(part)), default=0)",
            "kept = min((len(part) for part in begins if held.endswith(part)), default=0)",
        ): "You "
        "hold back the shortest ending that begins a stop string. A longer one may become it: hold back the "
        "longest.",
        replace(
            "kept = max((len(part) for part in begins if held.endswith(part)), default=0)",
            "kept = min(max(map(len, stops), default=1) - 1, len(held))",
        ): "You "
        "always hold back as much as the longest stop string has. Hold back only what one begins with, or "
        "every text comes late.",
        replace(
            "range(1, len(stop))", "range(1, len(stop) - 1)"
        ): "You forget the longest beginning: all of the stop string but its last character.",
        replace(
            "range(1, len(stop))", "range(2, len(stop))"
        ): "You forget beginnings of one character.",
        replace(
            "min(found)[1]", "min(found)[0]"
        ): "You give out the stop string. The text ends before it.",
        replace(
            "(held.find(stop) + len(stop), held.find(stop))", "(held.find(stop), held.find(stop))"
        ): "Of "
        "several stop strings you take the one that begins first. It is the one that is complete first, else "
        "the text depends on how it is cut into pieces.",
        replace(
            "(held.find(stop) + len(stop), held.find(stop))",
            "(held.rfind(stop) + len(stop), held.rfind(stop))",
        ): "You take the last place of a stop string. The first one ends the text.",
        replace(
            "min(found)[1]", "found[0][1]"
        ): "Of several stop strings you take the first in the list. It is "
        "the one that is complete first.",
        replace(
            "                yield held[:begin]\n            return",
            "                yield held[:begin]\n            held = held[min(found)[0]:]\n            continue",
        ): "You go on after a stop string. Nothing more is given out, and no piece is taken.",
        replace(
            "            if begin := min(found)[1]:\n                yield held[:begin]\n            return",
            "            return",
        ): "You lose the text before the stop string that came with it in one piece.",
        replace(
            "    if held:\n        yield held", ""
        ): "You lose what is held back when the pieces end.",
        replace(
            "        if certain:\n            yield certain", "        yield certain"
        ): "You give out empty strings.",
        replace(
            "    if held:\n        yield held", "    yield held"
        ): "You give out an empty string at the end.",
        replace(
            "    for piece in pieces:", "    for piece in list(pieces):"
        ): "You take all pieces before you "
        "give out any text. Take one at a time: with a model each costs a step.",
        replace(
            '    held = ""\n    for piece', '    stops = stops + []\n    held = ""\n    for piece'
        ): "Your code wants the stop strings in a list. Any sequence will do, a tuple, too.",
        replace(
            "    for piece in pieces:\n",
            "    while (piece := next(pieces, None)) is not None:\n",
        ): "You call `next` on the pieces themselves, which an iterator alone allows. Any iterable will do, a list, "
        "too: go through them with `for`, or take `iter(pieces)` first.",
        replace(
            "held += piece\n", "held = piece\n"
        ): "You forget what was held back: it belongs before the next piece.",
        replace(
            "held.endswith(part)", "part in held"
        ): "You hold back for a beginning that stands anywhere. "
        "Only at the end of the text can a stop string still begin.",
    }
)


@stop_stream.mistake(
    "You take the stop string for complete only at the end of a piece. It may end anywhere in it."
)
def _(pieces, stops):
    held = ""
    for piece in pieces:
        held += piece
        ended = [stop for stop in stops if held.endswith(stop)]
        if ended:
            if text := held[: -max(map(len, ended))]:
                yield text
            return
        kept = max(
            (n for stop in stops for n in range(1, len(stop)) if held.endswith(stop[:n])), default=0
        )
        if certain := held[: len(held) - kept]:
            yield certain
        held = held[len(held) - kept :]
    if held:
        yield held


@stop_stream.alternative("character by character")
def _(pieces, stops):
    held = ""
    for piece in pieces:
        ready = ""
        for character in piece:
            held += character
            ends = [stop for stop in stops if held.endswith(stop)]
            if ends:
                ready += held[: len(held) - max(map(len, ends))]
                if ready:
                    yield ready
                return
            while held and not any(stop.startswith(held) for stop in stops):
                ready, held = ready + held[0], held[1:]
        if ready:
            yield ready
    if held:
        yield held


# ------------------------------------------------------------------------------ perplexity

perplexity = Exercise(
    generation.perplexity,
    title="Perplexity of a long text",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.windowed,
    hints=(
        "Keep the number of the next token to count. The first window counts up to `context` of them, each "
        "other one `stride`.",
        "A window that counts tokens up to number `end` reads the `context` tokens before it: it ends at "
        "end − 1.",
        "Of the window's logits only the last few are counted: those after the tokens before the new ones.",
        "Add up nats, divide by all N − 1 counted tokens, then exp.",
    ),
)


def read_through(ids, context, stride, model=(6, 0), dtype=torch.float64):
    return call(model, torch.tensor(ids), context, stride, dtype)


@perplexity.by_hand
def _():
    yield read_through([0, 0, 0], 2, 1, model=(1, 0)), torch.tensor(1.0)
    yield read_through([0] * 5, 2, 1, model=(1, 0)), torch.tensor(1.0)


@perplexity.cases(30)
def _(draw):
    N, context = draw(st.integers(2, 14)), draw(st.integers(1, 6))
    stride = draw(st.integers(1, context))
    V = draw(st.integers(2, 7))
    ids = draw(draws.indices((N,), V)).tolist()
    yield read_through(ids, context, stride, (V, draw(st.integers(0, 99))))


@perplexity.edge
def _():
    ids = [3, 1, 4, 1, 5, 2, 0, 5, 3, 5]
    yield read_through(ids, 20, 5), "a context longer than the text"
    yield read_through(ids, 9, 4), "a context of all but the last token"
    yield read_through(ids, 10, 4), "a context of the whole text"
    yield read_through(ids, 4, 4), "windows that do not overlap"
    yield read_through(ids, 4, 1), "one prediction a window"
    yield read_through(ids, 1, 1), "one token of context"
    yield read_through(ids, 4, 3), "a last step that is shorter"
    yield read_through([2, 4], 3, 2), "two tokens"
    yield read_through(ids, 4, 0), "a stride of 0"
    yield read_through(ids, 4, 5), "a stride that leaves tokens out"
    yield read_through(ids[:3], 4, 0), "a stride of 0, though one window is enough"
    yield read_through(ids[:3], 4, 5), "a stride above the context, though one window is enough"
    yield read_through([1], 4, 2), "one token: nothing to count"
    yield read_through(ids * 9, 8, 4, dtype=torch.bfloat16), "bfloat16"
    yield read_through(ids * 9, 8, 4, dtype=torch.float16), "float16"


perplexity.slips(
    {
        replace(
            "ids[max(end - 1 - context, 0) : end - 1]", "ids[max(end - context, 0) : end]"
        ): "Your windows read the token that they predict last. They end one token earlier.",
        replace(
            "logits_of(window[None])[0, done - end :]", "logits_of(window[None])[0, : end - done]"
        ): "You count the first predictions of a window. The new ones are its last.",
        replace(
            "done, step = end, stride", "done, step = end, context"
        ): "You move on by a whole context. After the first window it is `stride`.",
        replace(
            "ids[max(end - 1 - context, 0) : end - 1]",
            "ids[done - 1 : end - 1]",
            "done, step = end, stride",
            "done, step = end, context",
        ): "Your windows do not overlap: each begins where the last one ended. It reads `context` tokens, and "
        "ends `stride` tokens later.",
        replace(
            "done, step = 0.0, 1, context", "done, step = 0.0, 1, stride"
        ): "Your first window counts "
        "`stride` tokens. It has nothing to overlap with and counts all of its predictions.",
        replace(
            "nats / (N - 1)", "nats / N"
        ): "You divide by all tokens. The first is given: N − 1 are counted.",
        replace(
            "math.exp(nats / (N - 1))", "nats / (N - 1)"
        ): "You return the mean loss. The perplexity is its exponential.",
        replace(
            "math.exp(nats / (N - 1))", "2 ** (nats / (N - 1))"
        ): "You raise 2 to a loss in nats. Use exp, or take logarithms to base 2.",
        replace(
            'reduction="sum"', 'reduction="mean"'
        ): "You add up means of windows of different lengths. Add up the losses of the tokens.",
        replace(
            "not (1 <= stride <= context and N >= 2)", "False"
        ): "You do not check the arguments. Raise "
        "ValueError unless 1 ≤ stride ≤ context and there are two tokens.",
        replace(
            "1 <= stride <= context", "1 <= stride < context"
        ): "You refuse a stride as long as the "
        "context. It gives windows that do not overlap, and is allowed.",
        replace("@torch.no_grad()\n", ""): "You record gradients. Nobody asks for them here.",
        replace(
            "logits.to(wide)", "logits"
        ): "You compute the losses in half precision. Turn the logits to float32 before the log-softmax.",
        replace(
            "F.cross_entropy(logits.to(wide), ids[done:end]",
            "F.nll_loss(logits.log_softmax(-1).to(wide), ids[done:end]",
        ): "You compute the losses in half precision. Turn the logits to float32 before the log-softmax.",
        replace(
            "nats, done, step = 0.0, 1, context",
            "nats, count, done, step = 0.0, 0, 1, context",
            'reduction="sum").item()',
            'reduction="mean").item()\n        count += 1',
            "nats / (N - 1)",
            "nats / count",
        ): "You take the mean of the windows' means, so that a window with few predictions weighs as much as "
        "one with many. Add up the losses of all tokens, and divide once.",
        replace(
            "max(end - 1 - context, 0)", "max(done + step - 1 - context, 0)"
        ): "Your windows begin at multiples of the stride, so the last one may be shorter and its predictions "
        "have less before them. A window has `context` tokens: count back from its end.",
        replace(
            "window = ids[max(end - 1 - context, 0) : end - 1]",
            "window = ids[:context] if done == 1 else ids[end - 1 - context : end - 1]",
            "[0, done - end :]",
            "[0, : end - 1] if done == 1 else logits_of(window[None])[0, done - end :]",
        ): "Your first window reads the last token of a text that is no longer than the context. Nothing "
        "follows it, so no window reads it.",
        replace(
            "nats, done, step = 0.0, 1, context",
            "nats, count, done, step = 0.0, 0, 1, context",
            "        end = min(done + step, N)\n",
            "        end = min(done + step, N)\n"
            "        done = end - min(step, end - 1)\n        count += end - done\n",
            "nats / (N - 1)",
            "nats / count",
        ): "Your last window counts `stride` predictions even where fewer are new, so some tokens count twice.",
        replace(
            "max(end - 1 - context, 0)", "done - 1"
        ): "Your windows begin with the new tokens, so these "
        "have no context. A window has `context` tokens, most of them counted before.",
    }
)


@perplexity.mistake(
    "You count every prediction of every window, so tokens where windows overlap count several times."
)
@torch.no_grad()
def _(logits_of, ids, context, stride):
    N = len(ids)
    if not (1 <= stride <= context and N >= 2):
        raise ValueError("arguments")
    nats, count, done, step = 0.0, 0, 1, context
    while done < N:
        end = min(done + step, N)
        start = max(end - 1 - context, 0)
        logits = logits_of(ids[None, start : end - 1])[0]
        nats += F.cross_entropy(logits, ids[start + 1 : end], reduction="sum").item()
        count += end - 1 - start
        done, step = end, stride
    return math.exp(nats / count)


@perplexity.mistake(
    "You take the mean of the windows' perplexities. Add up the losses of all tokens, and take exp once."
)
@torch.no_grad()
def _(logits_of, ids, context, stride):
    N = len(ids)
    if not (1 <= stride <= context and N >= 2):
        raise ValueError("arguments")
    found, done, step = [], 1, context
    while done < N:
        end = min(done + step, N)
        logits = logits_of(ids[None, max(end - 1 - context, 0) : end - 1])[0, done - end :]
        found.append(F.cross_entropy(logits, ids[done:end]).exp().item())
        done, step = end, stride
    return sum(found) / len(found)


@perplexity.alternative("ends of windows first, log-probabilities gathered")
def _(logits_of, ids, context, stride):
    N = ids.numel()
    if N < 2 or stride < 1 or stride > context:
        raise ValueError("arguments")
    ends = [min(1 + context, N)]
    while ends[-1] < N:
        ends.append(min(ends[-1] + stride, N))
    total = torch.zeros((), dtype=torch.float64)
    with torch.inference_mode():
        for before, end in zip([1, *ends], ends, strict=False):
            scores = logits_of(ids[max(0, end - 1 - context) : end - 1].unsqueeze(0)).squeeze(0)
            logs_of = scores.double().log_softmax(-1)[-(end - before) :]
            total = total - logs_of.gather(1, ids[before:end].unsqueeze(1)).sum()
    return float(torch.exp(total / (N - 1)))


# ------------------------------------------------------------------------------ pass_at_k

pass_at_k = Exercise(
    generation.pass_at_k,
    title="Is one of k samples right?",
    difficulty=1,
    minutes=10,
    points=2,
    hints=(
        "Turn it round: how likely is it that all k are wrong?",
        "Of all sets of k samples, math.comb(n, k), those without a right one are math.comb(n − c, k).",
        "math.comb(3, 5) is 0: no case needs a line of its own.",
    ),
)


@pass_at_k.by_hand
def _():
    yield call(4, 1, 1), 0.25
    yield call(4, 1, 2), 0.5
    yield call(4, 2, 2), 5 / 6
    yield call(5, 0, 3), 0.0
    yield call(5, 3, 3), 1.0


@pass_at_k.cases
def _(draw):
    n = draw(st.integers(1, 20))
    yield call(n, draw(st.integers(0, n)), draw(st.integers(1, n)))


@pass_at_k.edge
def _():
    yield call(5, 5, 1), "all are right"
    yield call(5, 1, 5), "all samples are drawn"
    yield call(1, 0, 1), "one sample"
    yield call(200, 3, 100), "many samples"
    yield call(2000, 40, 1000), "so many that factorials overflow"
    yield call(5, 6, 1), "more right ones than samples"
    yield call(5, -1, 1), "fewer than none"
    yield call(5, 2, 0), "no sample is drawn"
    yield call(5, 2, 6), "more than there are"


COMB = "1 - math.comb(n - c, k) / math.comb(n, k)"
pass_at_k.slips(
    {
        replace(
            "return 1 - ", "if n - c == k and c:\n        return 1.0\n    return 1 - "
        ): "You return 1 where exactly k samples are wrong. They make one set without a right one; only with fewer "
        "is the result 1.",
        replace(
            "    if not (0",
            "    if 0 <= c <= n and n - c < k:\n        return 1.0\n    if not (0",
        ): "You return 1 for fewer than k wrong samples before you check the arguments, so a k above n passes. "
        "Check first.",
        replace(
            COMB, "1 - (1 - c / n) ** k"
        ): "You put each sample back before you draw the next: that is "
        "biased, too low. Draw k different ones of the n samples.",
        replace(
            COMB,
            "1.0 - math.prod(1 - k / i for i in range(n - c + 1, n)) if n - c >= k else 1.0",
        ): "Your product leaves out its last factor, that of i = n. It has c factors: range(n − c + 1, n + 1).",
        replace(
            COMB,
            "1.0 - math.prod(1 - k / i for i in range(n - c, n)) if n - c >= k else 1.0",
        ): "The i of your product is one too low in each factor. It goes from n − c + 1 to n: range(n − c + 1, n + 1).",
        replace(
            COMB, "1 - math.prod(max(n - c - i, 0) / n for i in range(k))"
        ): "Your product divides by n in each draw. Each draw leaves one sample fewer: divide by n − i.",
        replace(COMB, "c / n"): "That is pass@1. With k samples one right one is enough.",
        replace(
            COMB, "math.comb(n - c, k) / math.comb(n, k)"
        ): "That is the probability that all k are wrong. Subtract it from 1.",
        replace(
            COMB, "math.comb(c, k) / math.comb(n, k)"
        ): "That is the probability that all k are right. One right one is enough.",
        replace(
            COMB, "1 - math.comb(c, k) / math.comb(n, k)"
        ): "You count sets of right samples as wrong ones. The wrong samples are n − c.",
        replace(
            COMB, "c * math.comb(n - c, k - 1) / math.comb(n, k)"
        ): "You count sets with exactly one right sample. More than one is good, too.",
        replace(
            COMB, "min(1.0, k * c / n)"
        ): "You add up the samples' chances. Sets with two right samples are then counted twice.",
        replace(
            COMB, "float(c >= 1)"
        ): "You ask whether any of the n samples is right. Only k of them are drawn.",
        replace(
            "not (0 <= c <= n and 1 <= k <= n)", "False"
        ): "You do not check the arguments. Raise ValueError unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.",
        replace(
            "1 <= k <= n", "1 <= k"
        ): "You take a k above n. So many samples cannot be drawn: raise ValueError.",
        replace("1 <= k <= n", "0 <= k <= n"): "You take k = 0. Raise ValueError.",
        replace("0 <= c <= n", "c <= n"): "You take a negative c. Raise ValueError.",
        replace(
            "0 <= c <= n", "0 < c <= n"
        ): "You refuse c = 0. Then no set has a right sample, and the result is 0.",
    }
)


@pass_at_k.mistake(
    "Your products overflow: int64 ends near 9.2e18. Use Python's integers, as math.comb does, or multiply ratios."
)
def _(n, c, k):
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError("arguments")
    if n - c < k:
        return 1.0
    ranges = torch.arange(n - c - k + 1, n - c + 1), torch.arange(n - k + 1, n + 1)
    without, total = (one.prod().double() for one in ranges)
    return (1 - without / total).item()


@pass_at_k.alternative("a product, as in HumanEval")
def _(n, c, k):
    if k < 1 or k > n or c < 0 or c > n:
        raise ValueError("arguments")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


# ------------------------------------------------------------------------------ mutants that compute the same

WIDER = "`torch.promote_types(logits.dtype, torch.float32)` → `torch.promote_types(torch.float32, logits.dtype)`"
for exercise in (top_p_filter, min_p_filter, next_token_probs, perplexity):
    exercise.equivalent(
        f"{exercise.names[0]}: {WIDER}",
        because="the wider of two dtypes does not depend on their order",
    )
LAST_ANYWAY = "the function works along the last axis where none is named"
TWO_AXES = "there are two axes, so 1 and -1 name the same one"
ONE_COLUMN = "there is one column, which is the first and the last"
for exercise, mutant, because in (
    (
        top_k_filter,
        "top_k_filter: `logits.topk(min(k, logits.size(-1)), dim=-1)` → `logits.topk(min(k, logits.size(-1)))`",
        LAST_ANYWAY,
    ),
    (
        top_p_filter,
        "top_p_filter: `logits.clone()` → `logits`",
        "the values are the same, and no memory of its own is promised",
    ),
    (
        top_p_filter,
        "top_p_filter: `logits.to(wide).softmax(-1).sort(dim=-1, descending=True, stable=True)` → "
        "`logits.to(wide).softmax(-1).sort(descending=True, stable=True)`",
        LAST_ANYWAY,
    ),
    (
        top_p_filter,
        "top_p_filter: `torch.zeros_like(order, dtype=torch.bool)` → `torch.ones_like(order, dtype=torch.bool)`",
        "the order names every token, so every element is written",
    ),
    (
        repetition_penalty,
        "repetition_penalty: `logits.gather(-1, ids)` → `logits.gather(1, ids)`",
        TWO_AXES,
    ),
    (repetition_penalty, "repetition_penalty: `-1` → `1`", TWO_AXES),
    (
        repetition_penalty,
        "repetition_penalty: `here > 0` → `here >= 0`",
        "a logit of 0 stays 0 either way",
    ),
    (
        next_token_probs,
        "next_token_probs: `logits.max(-1, keepdim=True)` → `logits.max(1, keepdim=True)`",
        TWO_AXES,
    ),
    (
        next_token_probs,
        "next_token_probs: `torch.zeros_like(logits).scatter(-1, likeliest, 1.0)` → "
        "`torch.zeros_like(logits).scatter(1, likeliest, 1.0)`",
        TWO_AXES,
    ),
    (
        next_token_probs,
        "next_token_probs: `logits.softmax(-1)` → `logits.softmax(1)`",
        TWO_AXES,
    ),
    (
        next_token_probs,
        "sample_token: `torch.multinomial(probs, 1, generator=generator)[:, 0]` → "
        "`torch.multinomial(probs, 1, generator=generator)[:, -1]`",
        ONE_COLUMN,
    ),
    (
        positions_and_mask,
        "positions_and_mask: `token <= query` → `token < query`",
        "each token attends to itself by the other half of the mask",
    ),
    (positions_and_mask, "positions_and_mask: `query[:, 0]` → `query[:, -1]`", ONE_COLUMN),
    (
        generate,
        "generate: `torch.tensor(sorted(stop), dtype=ids.dtype, device=ids.device)` → "
        "`torch.tensor(sorted(stop), device=ids.device)`",
        "isin compares numbers of different dtypes by their values",
    ),
    (
        generate,
        "generate: `torch.tensor(sorted(stop), dtype=ids.dtype, device=ids.device)` → "
        "`torch.tensor(sorted(stop), dtype=ids.dtype)`",
        "a grader's tokens are on the CPU, which is the default device",
    ),
    (
        generate,
        "generate: `torch.zeros(B, dtype=torch.bool, device=ids.device)` → `torch.zeros(B, dtype=torch.bool)`",
        "a grader's tokens are on the CPU, which is the default device",
    ),
    (
        generate,
        "generate: `torch.cat((ids, new[:, None]), dim=1)` → `torch.cat((ids, new[:, None]), dim=-1)`",
        TWO_AXES,
    ),
    (
        stop_stream,
        "stop_stream: `range(1, len(stop))` → `range(0, len(stop))`",
        "a beginning of no characters is 0 long, as long as the default",
    ),
    (
        stop_stream,
        "stop_stream: `default=0` → `default=-1`",
        "a slice that ends behind a string's end is the whole string, and one that begins there is empty",
    ),
    (
        perplexity,
        "perplexity: `logits_of(window[None])[0, done - end:]` → `logits_of(window[None])[-1, done - end:]`",
        "there is one row, which is the first and the last",
    ),
    (
        perplexity,
        "perplexity: `F.cross_entropy(logits.to(wide), ids[done:end], reduction='sum').item()` → "
        "`F.cross_entropy(logits.to(wide), ids[done:end], reduction='sum')`",
        "math.exp takes a tensor of one element, too, and what differs is rounding",
    ),
):
    exercise.equivalent(mutant, because=because)
for mutant, because in {
    "`torch.zeros(batch, n_head, capacity, head_dim, dtype=dtype, device=devi…` → "
    "`torch.ones(batch, n_head, capacity, head_dim, dtype=dtype, device=devic…`": "each place is written "
    "before it is given out",
    "`torch.zeros_like(self.k)` → `torch.ones_like(self.k)`": "each place is written before it is given out",
}.items():
    KVCache.equivalent(f"KVCache.__init__: {mutant}", because=because)
for mutant, because in {
    "`torch.arange(K, device=target.device)` → `torch.arange(K)`": "an index may live on the CPU; torch moves it",
    "`accepted.long()` → `accepted`": "a cumulative product of bools is of integers",
    "`accepted.long().cumprod(0)` → `accepted.long().cumprod(-1)`": "there is one axis, the first and the last",
    "`target[K].clone()` → `target[K]`": "the values are the same, and no memory of its own is promised",
}.items():
    speculative_accept.equivalent(f"speculative_accept: {mutant}", because=because)
