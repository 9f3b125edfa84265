"""Exercises of chapter 22, attention: from softmax(q kᵀ / √d) v to its backward pass in tiles."""
# mypy: ignore-errors

import math

import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from course_utils.grading import Exercise, call, contracts, draws, replace
from course_utils.reference import attention

INF, NAN = math.inf, math.nan


def normal(*shape, dtype=torch.float32, seed=0):
    """Fixed standard normal numbers for cases without draws."""
    drawn = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=drawn).to(dtype)


def qkv(*batch, T=3, S=5, d=4, e=2, dtype=torch.float32):
    """Fixed queries, keys and values."""
    shapes = ((*batch, T, d), (*batch, S, d), (*batch, S, e))
    return tuple(normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))


def bools(text):
    """A mask written as rows of 1 and 0."""
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


# ------------------------------------------------------------------ scaled_dot_product_attention

scaled_dot_product_attention = Exercise(
    attention.scaled_dot_product_attention,
    title="Attention, with a mask",
    difficulty=1,
    minutes=20,
    points=3,
    gradients=("q", "k", "v"),
    hints=(
        "Scores first: every query with every key. Which two axes of k change places?",
        "Divide by √d before the softmax, with d the size of q's last axis. The softmax runs over the keys.",
        "`scores.masked_fill(~mask, -math.inf)` gives hidden keys the weight 0.",
        (
            "edge cases",
            "A row of −inf alone is 0 / 0 in the softmax. Put zeros where the mask is False into the "
            "weights, before they meet v.",
        ),
        (
            "gradients",
            "Zeros put into the result come too late: in backward a NaN weight times 0 is NaN. Put them "
            "into the weights.",
        ),
    ),
)


@scaled_dot_product_attention.by_hand
def _():
    q, v = torch.zeros(1, 4), torch.tensor([[1.0], [5.0]])
    yield call(q, normal(2, 4), v), torch.tensor([[3.0]])  # equal scores: the mean
    k = torch.tensor([[2 * math.log(3.0), 0.0, 0.0, 0.0], [0.0] * 4])
    q = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    yield call(q, k, v), torch.tensor([[2.0]])  # scores log 3 and 0: weights 3/4 and 1/4
    yield call(q, k, v, bools("01")), torch.tensor([[5.0]])
    yield call(q, k, v, bools("00")), torch.tensor([[0.0]])


@scaled_dot_product_attention.cases
def _(draw):
    T, S, d, e = draw(draws.distinct_sizes(4))
    batch = draw(draws.shapes(max_dims=2, among=(1, 2, 3)))
    q, k, v = (draw(draws.tensors((*batch, *size))) for size in ((T, d), (S, d), (S, e)))
    shape = draw(st.sampled_from((None, (T, S), (1, S), (T, 1), (*batch, T, S), (*batch, 1, S))))
    if shape is None:
        yield call(q, k, v)
    else:
        yield call(q, k, v, draw(draws.tensors(shape, torch.bool)))


@scaled_dot_product_attention.cases(10)
def _(draw):
    q, k, v = (draw(draws.tensors(size)) for size in ((3, 2), (2, 2), (2, 1)))
    mask = draw(draws.tensors((3, 2), torch.bool))
    mask[draw(st.integers(0, 2))] = False
    yield call(q, k, v, mask)


@scaled_dot_product_attention.edge
def _():
    yield call(*qkv(2, 3)), "no mask"
    yield call(*qkv(2, 3), torch.zeros(3, 5, dtype=torch.bool)), "no query sees anything"
    mask = bools("11111 00000 10001")
    yield call(*qkv(2, 3), mask), "the second query sees nothing"
    yield call(*qkv(2, 3), bools("11010")), "two keys are padding, for all queries"
    yield call(*qkv(3, 3, T=3, S=3, d=3, e=3)), "all axes of one size"
    yield call(*qkv(S=1, T=4)), "one key"
    yield call(*qkv(2, 3, T=1)), "one query, as in generation"
    yield call(*qkv(0, 3), mask), "an empty batch"
    yield call(*qkv(2, T=0)), "no query"
    yield call(*(draws.scattered(t) for t in qkv(2, 3)), mask), "not contiguous"
    yield call(*qkv(2, dtype=torch.float64), mask), "float64"
    yield call(*qkv(2, dtype=torch.bfloat16), mask), "bfloat16"
    q, k, v = qkv()
    yield call(300 * q, 300 * k, v, mask), "huge scores"
    yield call(torch.cat((q[:1] * NAN, q[1:])), k, v, mask), "a NaN in a query that sees keys"


scaled_dot_product_attention.contract(
    contracts.constant_kernels(
        [
            call(*qkv(B, H, T=T, S=T + 1), torch.ones(T, T + 1, dtype=torch.bool))
            for B, H, T in ((2, 2, 3), (8, 2, 3), (8, 6, 24))
        ],
        says="no Python loop over the batch, the heads, the queries or the keys",
    )
)
scaled_dot_product_attention.contract(
    contracts.largest_tensor(
        [call(*qkv(2, T=16, S=32, d=8, e=8))],
        limit=2 * 16 * 32 * 4,
        says="nothing larger than the scores is made",
    )
)

ZEROED = "weights.masked_fill(~mask, 0.0) @ v"
MASKED = "scores.masked_fill(~mask, -math.inf)"
scaled_dot_product_attention.slips(
    {
        replace(
            " * q.size(-1) ** -0.5", ""
        ): "You leave out the scale. Divide the scores by √d before the softmax.",
        replace(
            "** -0.5", "** -1.0"
        ): "You divide by d. The scores' standard deviation grows as √d, so √d "
        "is what is divided by.",
        replace("** -0.5", "** 0.5"): "You multiply by √d. The scores are divided by it.",
        replace(
            "q.size(-1)", "v.size(-1)"
        ): "You scale by the size of a value. What is summed in a score "
        "are the d features of query and key.",
        replace(
            "q.size(-1)", "k.size(-2)"
        ): "You scale by the number of keys. What is summed in a score "
        "are the d features of query and key.",
        replace(
            "scores.softmax(dim=-1)",
            "scores.softmax(dim=-2)",
            "inf).softmax(dim=-1)",
            "inf).softmax(dim=-2)",
        ): "Your weights sum to one over the queries. The softmax runs over the keys, the last axis.",
        replace(
            "masked_fill(~mask, -math.inf)",
            "masked_fill(mask, -math.inf)",
            ZEROED,
            "weights.masked_fill(mask, 0.0) @ v",
        ): "You hide what may be seen. True means that the query may attend to the key: fill where it is False.",
        replace(
            ZEROED, "weights @ v"
        ): "A query that may attend to nothing gives NaN in your code: a row "
        "of −inf alone has no softmax. Its result is zeros.",
        replace(
            ZEROED, "weights.nan_to_num(0.0) @ v"
        ): "You turn every NaN into 0, also one that came "
        "with q or k and should be seen. Put zeros only where the mask is False.",
        replace(
            "-math.inf", "-1e9", ZEROED, "weights @ v"
        ): "A query that may attend to nothing gets the "
        "mean of all values in your code: equal scores, however small, are equal weights. Its result is zeros.",
        replace(
            MASKED, "scores", ZEROED, "weights.masked_fill(~mask, 0.0) @ v"
        ): "You zero the weights "
        "after a softmax over all keys, so those that are left do not sum to one. Hide the scores first.",
        replace(
            MASKED, "scores.masked_fill(~mask, 0.0)"
        ): "You put 0 into the hidden scores. A score of 0 "
        "has its share in the sum, exp(0) = 1: put −inf.",
        replace(
            MASKED, "(scores + mask)", ZEROED, "weights @ v"
        ): "You add the mask to the scores. It is "
        "bool, so that adds 1 where a query may attend; put −inf where it may not.",
        replace(
            ZEROED, "(weights @ v).masked_fill(~mask.any(-1, keepdim=True), 0.0)"
        ): "Forward is right, "
        "but the gradients become NaN: your zeros go into the result, and backward multiplies the NaN "
        "weights with the zero gradient of that row. Put the zeros into the weights.",
        replace("if mask is None:", "if True:"): "You do not use the mask.",
        replace(
            "k.transpose(-2, -1)", "k.transpose(1, 2)"
        ): "You count k's axes from the left. There may "
        "be any number of axes in front: the last two change places, transpose(-2, -1).",
        replace(
            "q @ k",
            "q.float() @ k.float()",
            "dim=-1) @ v",
            "dim=-1) @ v.float()",
            ZEROED,
            "weights.masked_fill(~mask, 0.0) @ v.float()",
        ): "You compute in float32 and return it. The result has q's dtype.",
        replace(
            "q @ k",
            "q.mul_(1) @ k",
            "* q.size(-1) ** -0.5",
            "",
            "scores = ",
            "q *= q.size(-1) ** -0.5\n    scores = ",
        ): "You scale q in place, and q belongs to the caller. Make a new tensor.",
    }
)


@scaled_dot_product_attention.mistake(
    "The values are right, but you multiply every query with every key feature by feature before you sum: "
    "T · S · d numbers. A matrix product, q @ kᵀ, makes only the T · S sums.",
    cost=True,
)
def _(q, k, v, mask=None):
    scores = (q[..., :, None, :] * k[..., None, :, :]).sum(-1) * q.size(-1) ** -0.5
    if mask is None:
        return scores.softmax(-1) @ v
    return scores.masked_fill(~mask, -INF).softmax(-1).masked_fill(~mask, 0.0) @ v


@scaled_dot_product_attention.mistake(
    "The values are right, but Python goes through the queries. A matrix product takes them all.",
    cost=True,
)
def _(q, k, v, mask=None):
    rows = []
    for t in range(q.size(-2)):
        seen = (
            None
            if mask is None
            else mask.expand(*mask.shape[:-2], q.size(-2), k.size(-2))[..., t : t + 1, :]
        )
        rows.append(attention.scaled_dot_product_attention(q[..., t : t + 1, :], k, v, seen))
    return torch.cat(rows, -2) if rows else attention.scaled_dot_product_attention(q, k, v, mask)


@scaled_dot_product_attention.alternative("einsum, and weights divided by their own sum")
def _(q, k, v, mask=None):
    scores = torch.einsum("...td,...sd->...ts", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, -INF)
    top = scores.amax(-1, keepdim=True).detach()
    weights = torch.exp(scores - torch.where(top == -INF, 0, top))
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("...ts,...se->...te", weights / torch.where(total == 0, 1, total), v)


@scaled_dot_product_attention.alternative("a finite number that hides, and zeros after it")
def _(q, k, v, mask=None):
    scores = (q / math.sqrt(q.size(-1))) @ k.mT
    seen = torch.ones((), dtype=torch.bool, device=q.device) if mask is None else mask
    scores = torch.where(seen, scores, torch.finfo(q.dtype).min)
    return torch.where(seen, torch.softmax(scores, -1), 0) @ v


# ------------------------------------------------------------------------------ causal_mask

causal_mask = Exercise(
    attention.causal_mask,
    title="The past, and how much of it",
    difficulty=1,
    minutes=10,
    points=2,
    hints=(
        "How far is key s behind query t? Make a (T, S) table of that distance by broadcasting.",
        "Query t is position S − T + t. A distance of 0 is the query itself, a negative one the future.",
        "With a window the distance is at most window − 1.",
        ("edge cases", "A window of 0 would hide the query's own position: raise ValueError."),
    ),
)


@causal_mask.by_hand
def _():
    yield call(3, 3), bools("100 110 111")
    yield call(2, 4), bools("1110 1111")
    yield call(4, 4, 2), bools("1000 1100 0110 0011")
    yield call(3, 2), bools("00 10 11")
    yield call(1, 3, 2), bools("011")


@causal_mask.cases
def _(draw):
    yield call(
        draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.none() | st.integers(1, 7))
    )


@causal_mask.edge
def _():
    yield call(1, 7), "one query and a cache: it sees every key"
    yield call(0, 4), "no query"
    yield call(5, 3, 2), "more queries than keys, and a window"
    yield call(3, 3, 1), "a window of one: each sees itself"
    yield call(3, 3, 100), "a window longer than the context"
    yield call(3, 3, 0), "a window of nothing"
    yield call(3, 3, -1), "a negative window"


causal_mask.contract(
    contracts.constant_kernels(
        [call(T, S, 2) for T, S in ((3, 4), (12, 4), (12, 40))],
        says="no Python loop over the queries or the keys",
    )
)
DISTANCE = "torch.arange(S - T, S)[:, None] - torch.arange(S)"
causal_mask.slips(
    {
        replace(
            "torch.arange(S - T, S)", "torch.arange(T)"
        ): "Your first query is position 0. The queries "
        "are the last T of the S positions, so the first is position S − T: with a cache a query sees all of it.",
        replace(
            "distance >= 0", "distance > 0"
        ): "You hide the query's own position. It sees itself.",
        replace("distance >= 0", "distance <= 0"): "You show the future and hide the past.",
        replace(
            "distance < (S", "distance <= (S"
        ): "Your window is one position too long. It counts the "
        "query's own, so the distance is at most window − 1.",
        replace(
            "else window", "else window - 1"
        ): "Your window is one position too short. It counts the "
        "query's own, so the distance is at most window − 1.",
        replace("S if window is None else window", "S"): "You do not use the window.",
        replace(
            "window is not None and window < 1", "False"
        ): "You take a window below 1. It would hide "
        "even the query's own position: raise ValueError.",
        replace(
            "window < 1", "window < 2"
        ): "You refuse a window of one. There each query sees itself.",
        replace(
            "window < 1", "not 0 < window <= S"
        ): "You refuse a window that is longer than the context. It hides nothing, and is allowed.",
        replace(
            "return (distance >= 0) & near", "return ~((distance >= 0) & near)"
        ): "Your mask is True "
        "where something is hidden. Here, as in scaled_dot_product_attention, True means that the query may attend.",
        replace(
            "return (distance >= 0) & near",
            "return torch.zeros(T, S).masked_fill(~((distance >= 0) & near), -math.inf)",
        ): "You return numbers to add, 0 and −inf. Return bools.",
        replace(
            "return (distance >= 0) & near", "return ((distance >= 0) & near).long()"
        ): "You return integers. A mask is bool, and ~ of the integer 1 is −2.",
        replace(
            "return (distance >= 0) & near", "return ((distance >= 0) & near).T"
        ): "Rows and columns are exchanged: queries are rows, keys are columns.",
        replace(
            "torch.arange(S - T, S)", "torch.arange(S)"
        ): "You make a row for each position. There are T queries, the last T positions.",
        replace(
            "(distance >= 0) & near", "(distance.abs() < (window or S)) & near"
        ): "Your window has two "
        "sides: the query sees what follows as well. Nothing of the future is seen.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "if window is not None and window < 1", "if T > S or (window or 1) < 1"
        ): "You refuse more "
        "queries than keys. The first ones see nothing, and their rows are False. (And a window of 0 passes "
        "your check.)",
    }
)


@causal_mask.mistake("The values are right, but Python goes through the rows.", cost=True)
def _(T, S, window=None):
    if window is not None and window < 1:
        raise ValueError(window)
    mask = torch.zeros(T, S, dtype=torch.bool)
    for t in range(T):
        end = max(S - T + t + 1, 0)
        mask[t, max(end - (window or S), 0) : end] = True
    return mask


@causal_mask.alternative("two triangles")
def _(T, S, window=None):
    if window is not None and not window >= 1:
        raise ValueError("window")
    mask = torch.ones((T, S), dtype=torch.bool).tril(S - T)
    return mask if window is None else mask.triu(S - T - window + 1)


# ------------------------------------------------------------------------------ document_mask

document_mask = Exercise(
    attention.document_mask,
    title="Several documents in a row",
    difficulty=2,
    minutes=20,
    points=3,
    hints=(
        "Compare every position's document with every other's: a column of them with a row, (B, T, T).",
        "Padding has equal numbers too. Take out the rows of padding; its columns go by themselves, since "
        "no number from 0 equals a negative one.",
        "Causal and window are bounds on one table of distances, (T, T), that broadcasts against the batch.",
        ("signature and shape", "The axis of heads has size one: `[:, None]`."),
    ),
)


@document_mask.by_hand
def _():
    yield call(torch.tensor([[0, 0, 1, 1]])), bools("1000 1100 0010 0011")[None, None]
    yield call(torch.tensor([[4, 4, -1]])), bools("100 110 000")[None, None]
    yield call(torch.tensor([[4, 4, -1]]), causal=False), bools("110 110 000")[None, None]
    yield call(torch.tensor([[2, 2, 2]]), window=2), bools("100 110 011")[None, None]
    yield (
        call(torch.tensor([[2, 2, 2]]), causal=False, window=2),
        bools("110 111 011")[None, None],
    )


@document_mask.cases
def _(draw):
    B, T = draw(draws.distinct_sizes(2, low=1, high=7))
    lengths = draw(st.lists(st.integers(1, 3), min_size=T, max_size=T))
    rows = []
    for b in range(B):
        row = [number for number, n in enumerate(lengths[b % T :] + lengths) for _ in range(n)][:T]
        pad = draw(st.integers(0, T))
        rows.append([-1 if t >= T - pad // 2 else number for t, number in enumerate(row)])
    yield call(
        torch.tensor(rows), causal=draw(st.booleans()), window=draw(st.none() | st.integers(1, 5))
    )


@document_mask.edge
def _():
    documents = torch.tensor([[0, 0, 0, 1, 1, -1], [7, 7, 7, 7, 7, 7]])
    yield call(documents), "two rows with different documents"
    yield call(documents, causal=False, window=2), "a window with two sides"
    yield call(torch.tensor([[0, 0, 1, 1, 0]])), "a number that comes again is the same document"
    yield call(torch.tensor([[5, 5, 3, 3]])), "numbers that fall"
    yield call(torch.tensor([[-1, -1, 0, 0]])), "padding on the left"
    yield call(torch.tensor([[-1, -2, -2]])), "padding alone, with two numbers"
    yield call(torch.tensor([[-1, -1, 0, 0, -100]]), causal=False), "padding on both sides"
    yield call(torch.zeros(0, 4, dtype=torch.int64)), "an empty batch"
    yield call(torch.zeros(2, 0, dtype=torch.int64)), "no position"
    yield call(documents.to(torch.int32), window=100), "int32, and a window longer than the row"
    yield call(draws.scattered(documents.clone()), window=1), "not contiguous"
    many = torch.arange(3)[:, None].expand(3, 3)
    yield call(many, causal=False), "as many rows as positions"


document_mask.contract(
    contracts.constant_kernels(
        [call(torch.arange(B * T).view(B, T) // 3, window=4) for B, T in ((2, 6), (8, 6), (8, 48))],
        says="no Python loop over the rows, the documents or the positions",
    )
)
SAME = "documents[:, :, None] == documents[:, None, :]"
document_mask.slips(
    {
        replace(
            "allowed & (documents >= 0)[:, :, None]", "allowed"
        ): "Your padding attends to padding. A "
        "negative number is no document: its positions see nothing.",
        replace(
            "documents >= 0", "documents > 0"
        ): "You take document 0 for padding. Padding is negative.",
        replace(
            "documents >= 0", "documents != -1"
        ): "You take −1 alone for padding. Every negative number is.",
        replace(
            SAME, "(documents >= 0)[:, None, :].expand(-1, documents.size(1), -1)"
        ): "You hide padding and let the documents of a row see one another.",
        replace(
            SAME, "documents[:, :, None] >= documents[:, None, :]"
        ): "You let a document see those with smaller numbers. It sees itself alone.",
        replace(
            SAME, "documents[:1, :, None] == documents[:1, None, :]"
        ): "You use the first row's documents for all rows.",
        replace(
            "if causal:", "if False:"
        ): "You never hide the future. With causal a position sees itself and earlier ones.",
        replace(
            "if causal:", "if True:"
        ): "You always hide the future. Without causal a position sees all of its document.",
        replace("distance >= 0", "distance > 0"): "You hide the position itself. It sees itself.",
        replace(
            "distance >= 0", "distance <= 0"
        ): "You show the future and hide the past. The third axis "
        "is the query, the fourth the key.",
        replace(
            "distance.abs() < window", "distance < window"
        ): "Your window has one side. Without causal "
        "it bounds the distance to later positions, too.",
        replace(
            "distance.abs() < window", "distance.abs() <= window"
        ): "Your window is one position too "
        "long: those fewer than `window` positions away are seen.",
        replace(
            "if window is not None", "if causal and window is not None"
        ): "You use the window only with causal. Without it the window has two sides.",
        replace(
            "allowed[:, None]", "allowed"
        ): "The axis of the heads is missing. (B, T, T) against "
        "scores (B, H, T, T) aligns the batch with the heads; return (B, 1, T, T).",
        replace(
            "allowed[:, None]", "allowed[:, :, None]"
        ): "You put the axis of size one behind the "
        "queries. The heads are the second axis: (B, 1, T, T).",
        replace(
            "allowed[:, None]", "~allowed[:, None]"
        ): "Your mask is True where something is hidden. True means that the query may attend.",
        replace(
            "return allowed",
            "allowed |= torch.eye(len(position), dtype=torch.bool)\n    return allowed",
        ): "You let every position see itself, padding too. Padding sees nothing, and attention gives zeros there.",
    }
)


@document_mask.mistake(
    "The values are right, but Python goes through the rows. Broadcasting compares all of them.",
    cost=True,
)
def _(documents, *, causal=True, window=None):
    rows = [attention.document_mask(row[None], causal=causal, window=window) for row in documents]
    return torch.cat(rows) if rows else attention.document_mask(documents)


@document_mask.alternative("one product of conditions, and triangles")
def _(documents, *, causal=True, window=None):
    _, T = documents.shape
    everywhere = torch.ones(T, T, dtype=torch.bool, device=documents.device)
    band = everywhere.tril() if causal else everywhere
    if window is not None:
        band = band.triu(1 - window).tril(window - 1)
    real = documents.ge(0)
    same = documents.unsqueeze(2).eq(documents.unsqueeze(1)) & real.unsqueeze(1) & real.unsqueeze(2)
    return (same & band).unsqueeze(1)


# ------------------------------------------------------------------------------ multi_head_attention

multi_head_attention = Exercise(
    attention.multi_head_attention,
    title="Heads, and another sequence to read",
    difficulty=2,
    minutes=20,
    points=3,
    gradients=("x", "context", "w_q", "w_o"),
    hints=(
        "Three products first: queries from x, keys and values from context. A weight is (out, in).",
        "Cut the last axis into (n_head, d) and move the heads in front of the positions: (B, H, T, d).",
        "Your scaled_dot_product_attention takes any axes in front, so all heads go at once. Then the way "
        "back: transpose, flatten(2), w_o.",
    ),
)


def projections(draw, D, C, width):
    return [draw(draws.tensors(size)) for size in ((width, D), (width, C), (width, C), (D, width))]


@multi_head_attention.by_hand
def _():
    eye = torch.eye(2)
    x = torch.tensor([[[0.0, 0.0]]])
    context = torch.tensor([[[1.0, 0.0], [3.0, 8.0]]])
    yield call(x, context, eye, eye, eye, eye, 1), torch.tensor([[[2.0, 4.0]]])
    x = torch.tensor([[[math.log(3.0), 0.0]]])  # only head 0 has scores: log 3 and 3 log 3
    yield call(x, context, eye, eye, eye, eye, 2), torch.tensor([[[2.8, 4.0]]])
    yield call(x, context, eye, eye, eye, 2 * eye, 2, bools("10")), torch.tensor([[[2.0, 0.0]]])


@multi_head_attention.cases(30)
def _(draw):
    B, T, S, D, C = draw(draws.distinct_sizes(5))
    n_head, d = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    x, context = draw(draws.tensors((B, T, D))), draw(draws.tensors((B, S, C)))
    shape = draw(st.sampled_from((None, (T, S), (B, 1, 1, S), (B, n_head, T, S), (n_head, 1, 1))))
    mask = () if shape is None else (draw(draws.tensors(shape, torch.bool)),)
    yield call(x, context, *projections(draw, D, C, n_head * d), n_head, *mask)


@multi_head_attention.edge
def _():
    w = [normal(6, 6, seed=i) for i in range(4)]
    x = normal(2, 3, 6, seed=9)
    yield call(x, x, *w, 3), "self-attention"
    yield call(x, x, *w, 3, attention.causal_mask(3, 3)), "causal self-attention"
    yield call(x, x, *w, 1), "one head"
    yield call(x, x, *w, 6), "heads of one feature"
    yield call(x, x, *w, 4), "4 heads cannot share 6 features"
    yield call(x, normal(2, 3, 6), *w, 2), "a context of x's own shape"
    yield call(x[:0], x[:0], *w, 2), "an empty batch"
    yield call(x, x, *w, 2, torch.zeros(3, 3, dtype=torch.bool)), "nothing to attend to"
    yield call(draws.scattered(x), draws.scattered(normal(2, 4, 6)), *w, 2), "not contiguous"
    wide = [normal(8, 6), normal(8, 5, seed=1), normal(8, 5, seed=2), normal(6, 8, seed=3)]
    yield (
        call(x, normal(2, 4, 5), *wide, 4),
        "8 features from 6 and 5: n_head divides the width alone",
    )
    yield call(x.double(), x.double(), *(t.double() for t in w), 2), "float64"
    yield call(x.bfloat16(), x.bfloat16(), *(t.bfloat16() for t in w), 2), "bfloat16"


multi_head_attention.contract(
    contracts.constant_kernels(
        [
            call(
                normal(B, T, 12),
                normal(B, T + 1, 12),
                *(normal(12, 12, seed=i) for i in range(4)),
                H,
            )
            for B, T, H in ((2, 3, 2), (8, 3, 2), (8, 24, 2), (8, 24, 6))
        ],
        says="no Python loop over the batch, the heads or the positions",
    )
)
Q, K, V = (
    f"{name} = ({source} @ w_{name}.T).unflatten(-1, (n_head, -1)).transpose(1, 2)"
    for name, source in (("q", "x"), ("k", "context"), ("v", "context"))
)
MERGED = "y.transpose(1, 2).flatten(2)"
multi_head_attention.slips(
    {
        replace(
            "(context @ w_k.T)", "(x @ w_k.T)", "(context @ w_v.T)", "(x @ w_v.T)"
        ): "Your keys and "
        "values come from x. They come from context, which is another sequence in cross-attention.",
        replace(
            "(x @ w_q.T)", "(context @ w_q.T)"
        ): "Your queries come from context. They come from x: "
        "the result has a row for each position of x.",
        replace(
            "w_v.T", "w_k.T"
        ): "Your values are the keys. They have a projection of their own, w_v.",
        replace(
            Q,
            Q.replace("(n_head, -1)).transpose(1, 2)", "(-1, n_head)).permute(0, 3, 1, 2)"),
            K,
            K.replace("(n_head, -1)).transpose(1, 2)", "(-1, n_head)).permute(0, 3, 1, 2)"),
            V,
            V.replace("(n_head, -1)).transpose(1, 2)", "(-1, n_head)).permute(0, 3, 1, 2)"),
        ): "Your heads take every n_head-th feature. Head h has d neighbours, from h · d on.",
        replace(
            Q,
            "q = (x @ w_q.T).reshape(len(x), n_head, x.size(1), -1)",
            K,
            "k = (context @ w_k.T).reshape(len(x), n_head, context.size(1), -1)",
            V,
            "v = (context @ w_v.T).reshape(len(x), n_head, context.size(1), -1)",
        ): "You reshape (B, T, width) to (B, H, T, d). That keeps the order in memory and mixes positions "
        "with heads: cut the last axis, then transpose.",
        replace(
            MERGED, "y.reshape(len(x), x.size(1), -1)"
        ): "You reshape (B, H, T, d) to (B, T, width) as "
        "it lies, and mix positions with heads. Transpose first.",
        replace(
            "@ w_o.T", "@ w_o"
        ): "You multiply with w_o itself. Like an nn.Linear's it is (out, in): "
        "multiply with its transpose.",
        replace(" @ w_o.T", ""): "w_o is missing: it mixes the heads' results.",
        replace(
            "attention(q, k, v, mask)", "attention(q * n_head ** -0.5, k, v, mask)"
        ): "You scale by the whole width. A score sums over the d features of one head: √d.",
        replace("attention(q, k, v, mask)", "attention(q, k, v)"): "You do not use the mask.",
        replace(
            "attention(q, k, v, mask)",
            "attention(q, k, v, None if mask is None else mask[:, None])",
        ): "You add an axis to the mask. It is broadcast against (B, n_head, T, S) as it comes.",
        replace(
            "if w_q.size(0) % n_head", "if False"
        ): "You take any number of heads. Where it does not divide the width raise ValueError.",
        replace(
            "if w_q.size(0) % n_head", "if x.size(-1) % n_head"
        ): "You ask whether n_head divides x's "
        "features. What is shared among the heads is the width of the projections.",
        replace(
            "y.transpose(1, 2).flatten(2)", "y.flip(1).transpose(1, 2).flatten(2)"
        ): "Your heads stand in reverse order.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "(x @ w_q.T)", "(x @ w_k.T)"
        ): "Your queries are made by w_k. They have a projection of their own, w_q.",
        replace(
            "scaled_dot_product_attention(q, k, v, mask)",
            "scaled_dot_product_attention(k, q, v, mask)",
        ): "You exchanged queries and keys.",
    }
)


@multi_head_attention.mistake(
    "The values are right, but Python goes through the heads. Give them an axis: all go at once.",
    cost=True,
)
def _(x, context, w_q, w_k, w_v, w_o, n_head, mask=None):
    if w_q.size(0) % n_head:
        raise ValueError(n_head)
    q, k, v = x @ w_q.T, context @ w_k.T, context @ w_v.T
    ys = []
    for h, (a, b, c) in enumerate(zip(*(t.chunk(n_head, -1) for t in (q, k, v)), strict=True)):
        seen = (
            None if mask is None else mask.expand(len(x), n_head, x.size(1), context.size(1))[:, h]
        )
        ys.append(attention.scaled_dot_product_attention(a, b, c, seen))
    return torch.cat(ys, -1) @ w_o.T


@multi_head_attention.alternative("einsum with the heads as a letter")
def _(x, context, w_q, w_k, w_v, w_o, n_head, mask=None):
    if w_q.shape[0] % n_head != 0:
        raise ValueError("n_head")
    cut = [w.reshape(n_head, -1, w.shape[1]) for w in (w_q, w_k, w_v)]
    q = torch.einsum("btc,hdc->bhtd", x, cut[0])
    k, v = (torch.einsum("bsc,hdc->bhsd", context, w) for w in cut[1:])
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return torch.einsum("bhtd,chd->btc", y, w_o.reshape(w_o.shape[0], n_head, -1))


# ------------------------------------------------------------------------------ grouped_query_attention

grouped_query_attention = Exercise(
    attention.grouped_query_attention,
    title="Query heads that share keys and values",
    difficulty=2,
    minutes=20,
    points=3,
    gradients=("q", "k", "v"),
    hints=(
        "The G = H // kv query heads of a group meet the same keys. What if they were G · T queries of one head?",
        "q is (B, kv · G, T, d): heads of a group are neighbours. `reshape(B, kv, G * T, d)` puts their "
        "queries below one another.",
        "The mask has to come along: expand it to (B, H, T, S), then give it the same shape as the scores.",
        (
            "contracts",
            "`repeat_interleave` copies k and v for each query head. An expanded view does too, "
            "as soon as a matrix product flattens it.",
        ),
    ),
)


@grouped_query_attention.by_hand
def _():
    k = torch.zeros(1, 2, 2, 1)
    v = torch.tensor([[[[1.0], [3.0]], [[10.0], [30.0]]]])
    expected = torch.tensor([2.0, 2.0, 20.0, 20.0]).view(1, 4, 1, 1)
    yield call(torch.ones(1, 4, 1, 1), k, v), expected
    yield call(torch.ones(1, 4, 1, 1), k, v, bools("10")), expected / 2
    mask = bools("11 10 01 00").view(1, 4, 1, 2)
    yield call(torch.ones(1, 4, 1, 1), k, v, mask), torch.tensor([2.0, 1, 30, 0]).view(1, 4, 1, 1)


@grouped_query_attention.cases(30)
def _(draw):
    B, T, S, d, e = draw(draws.distinct_sizes(5, low=1))
    kv, G = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sizes = (B, kv * G, T, d), (B, kv, S, d), (B, kv, S, e)
    q, k, v = (draw(draws.tensors(size)) for size in sizes)
    shape = draw(st.sampled_from((None, (T, S), (B, 1, 1, S), (B, kv * G, T, S), (kv * G, 1, S))))
    mask = () if shape is None else (draw(draws.tensors(shape, torch.bool)),)
    yield call(q, k, v, *mask)


def grouped(B=2, H=6, kv=3, T=4, S=5, d=2, e=7, dtype=torch.float32):
    return (
        normal(B, H, T, d, dtype=dtype),
        normal(B, kv, S, d, dtype=dtype, seed=1),
        normal(B, kv, S, e, dtype=dtype, seed=2),
    )


@grouped_query_attention.edge
def _():
    yield call(*grouped(kv=1)), "multi-query attention: one key head"
    yield call(*grouped(kv=6)), "as many key heads as query heads"
    yield call(*grouped(H=4, kv=2, T=4, S=4, d=4, e=4)), "one size, two groups of two"
    yield call(*grouped(H=6, kv=4)), "4 key heads for 6 query heads"
    yield call(*grouped(H=3, kv=6)), "more key heads than query heads"
    yield call(*grouped(T=1)), "one query, as in generation"
    yield call(*grouped(B=0)), "an empty batch"
    yield call(*grouped(), attention.causal_mask(4, 5)), "causal"
    yield call(*grouped(), torch.zeros(4, 5, dtype=torch.bool)), "nothing to attend to"
    by_head = (torch.arange(6)[:, None, None] + torch.arange(5)) % 3 > 0
    yield call(*grouped(), by_head), "a mask of its own for each query head"
    yield call(*(draws.scattered(t) for t in grouped()), by_head), "not contiguous"
    yield call(*grouped(dtype=torch.float64)), "float64"
    yield call(*grouped(dtype=torch.bfloat16)), "bfloat16"


grouped_query_attention.contract(
    contracts.constant_kernels(
        [
            call(*grouped(B=B, H=H, kv=kv, T=T), torch.ones(T, 5, dtype=torch.bool))
            for B, H, kv, T in ((2, 4, 2, 3), (8, 4, 2, 3), (8, 12, 6, 24))
        ],
        says="no Python loop over the batch, the heads or the queries",
    )
)
grouped_query_attention.contract(
    contracts.largest_tensor(
        [call(*grouped(B=1, H=8, kv=2, T=1, S=64, d=16, e=16))],
        limit=2 * 64 * 16 * 4,
        says="nothing larger than k: neither k nor v is repeated for the query heads",
    )
)
ATTEND = "scaled_dot_product_attention(stacked, k, v, mask).reshape(B, H, T, -1)"
STACKED = "q.reshape(B, kv, H // kv * T, -1)"
grouped_query_attention.slips(
    {
        replace(
            "if H % kv", "if False"
        ): "You take any number of key heads. Where it does not divide the "
        "number of query heads raise ValueError.",
        replace(
            "if H % kv", "if kv % H"
        ): "You ask whether H divides kv. There are H / kv query heads to "
        "each key head, so kv divides H.",
        replace(
            "if H % kv", "if H <= kv"
        ): "You refuse as many key heads as query heads, which is ordinary "
        "attention, and take numbers that do not divide.",
        replace(
            "if mask is not None:",
            "if mask is not None:\n        mask = None\n    if mask is not None:",
        ): "You do not use the mask.",
        replace(
            ".reshape(B, kv, H // kv * T, S)", ".reshape(B, kv, H // kv * T, S)[:, :1]"
        ): "You use the first group's mask for all groups. It may differ from head to head.",
        replace(
            "mask.expand(B, H, T, S).reshape(B, kv, H // kv * T, S)",
            "mask.expand(B, H, T, S)[:, :kv].repeat(1, 1, H // kv, 1)",
        ): "You take the first kv heads of the mask and repeat them. Each query head has its own: head h of "
        "the mask belongs to query head h.",
        replace(
            "k, v, mask)", "k.mean(1, keepdim=True), v.mean(1, keepdim=True), mask)"
        ): "You average the key heads. Each group reads its own.",
        replace(
            "k, v, mask)", "k[:, :1], v[:, :1], mask)"
        ): "All of your query heads read the first key "
        "head. Query head h reads key head h // (H // kv).",
        replace(
            "stacked, k, v", "stacked * (H // kv) ** -0.5, k, v"
        ): "You scale by the features of a whole group. A score sums over d features: √d.",
        replace(
            ".reshape(B, H, T, -1)", ".reshape(B, T, H, -1).transpose(1, 2)"
        ): "You read the result as "
        "(B, T, H, e). It lies as (B, H, T, e): the queries of one head are below one another.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "stacked, k, v", "stacked, k, v.flip(1)"
        ): "Your groups read the values of another group.",
        replace(
            "q.reshape(B, kv, H // kv * T, -1)",
            "q.unflatten(1, (H // kv, kv)).transpose(1, 2).reshape(B, kv, H // kv * T, -1)",
            "mask.expand(B, H, T, S).reshape(B, kv, H // kv * T, S)",
            "mask.expand(B, H, T, S).unflatten(1, (H // kv, kv)).transpose(1, 2).reshape(B, kv, H // kv * T, S)",
            ".reshape(B, H, T, -1)",
            ".reshape(B, kv, H // kv, T, -1).transpose(1, 2).reshape(B, H, T, -1)",
        ): "You deal the key heads out in turn: query head h reads head h % kv, as `k.repeat` has it. "
        "Neighbours share one: head h // (H // kv).",
        replace(
            "return scaled", "if mask is not None:\n        mask = ~mask\n    return scaled"
        ): "You hide what may be seen. True means that the query may attend.",
    }
)
for name, copy in (
    ("`repeat_interleave`", lambda t, G: t.repeat_interleave(G, 1)),
    (
        "a copy of an expanded view",
        lambda t, G: t[:, :, None].expand(-1, -1, G, -1, -1).flatten(1, 2),
    ),
):

    @grouped_query_attention.mistake(
        "The values are right, but k and v are copied for each query head, and reading them once for a group "
        "is what grouping is for. Put the group's queries below one another instead.",
        cost=True,
    )
    def _(q, k, v, mask=None, copy=copy):
        G = q.size(1) // k.size(1)
        if q.size(1) % k.size(1):
            raise ValueError(G)
        return attention.scaled_dot_product_attention(q, copy(k, G), copy(v, G), mask)


@grouped_query_attention.mistake(
    "The values are right, but Python goes through the key heads.", cost=True
)
def _(q, k, v, mask=None):
    (B, H, T, _), (kv, S) = q.shape, k.shape[1:3]
    G, ys = H // kv, []
    if H % kv:
        raise ValueError(H)
    for n in range(kv):
        seen = None if mask is None else mask.expand(B, H, T, S)[:, n * G : (n + 1) * G]
        heads = q[:, n * G : (n + 1) * G].reshape(B, G * T, -1)
        seen = seen if seen is None else seen.reshape(B, G * T, S)
        y = attention.scaled_dot_product_attention(heads, k[:, n], v[:, n], seen)
        ys.append(y.reshape(B, G, T, -1))
    return torch.cat(ys, 1)


@grouped_query_attention.alternative("einsum with a letter for the group")
def _(q, k, v, mask=None):
    B, H, T, d = q.shape
    if H % k.size(1) != 0:
        raise ValueError("groups")
    groups = q.unflatten(1, (k.size(1), -1))
    scores = torch.einsum("bngtd,bnsd->bngts", groups, k).flatten(1, 2) / math.sqrt(d)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -INF)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = torch.where(mask, weights, torch.zeros((), dtype=q.dtype))
    weights = weights.unflatten(1, (k.size(1), -1))
    return torch.einsum("bngts,bnse->bngte", weights, v).flatten(1, 2)
