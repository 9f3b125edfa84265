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


def terms(case):
    """Terms of several products one after the other; in half precision those of one are enough."""
    tensors = [x for x in (*case.args, *case.kwargs.values()) if isinstance(x, torch.Tensor)]
    return 4 if any(x.dtype in (torch.bfloat16, torch.float16) for x in tensors) else 256


DEVICE = (
    "Your code does not run on another device than the default one: it makes a tensor without device=…, or "
    "reads numbers out of one (.tolist(), .item(), .unique()). Make what you need beside the tensors that "
    "came, and compute with tensors."
)
NO_SCALE_OF_V = "You scale by the size of a value. What is summed in a score are the d features of query and key."
EMPTY_IS_MEAN = (
    "A query that may attend to nothing gets the mean of all values in your code: equal scores, however "
    "small, are equal weights. Its result is zeros."
)
EMPTY_IS_NAN = (
    "A query that may attend to nothing gives NaN in your code: a row of −inf alone has no softmax. Its "
    "result is zeros."
)


def plain(q, hidden):
    """Attention as an expression: a number in place of the hidden scores, and no zeros after it."""
    scores = f"{q} @ k.mT * q.size(-1) ** -0.5"
    seen = "torch.ones((), dtype=torch.bool) if mask is None else mask"
    return f"torch.where({seen}, {scores}, {hidden}).softmax(-1) @ v"


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
    length=terms,
    hints=(
        "Scores first: every query with every key. Which two axes of k change places?",
        "Divide by √d before the softmax, with d the size of q's last axis. The softmax runs over the keys.",
        "`scores.masked_fill(~mask, -math.inf)` gives hidden keys the weight 0.",
        (
            "edge cases",
            "A row of −inf alone has no softmax: it gives NaN. Put zeros where the mask is False into the "
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
    k = torch.tensor([[400.0, 0.0, 0.0, 0.0], [0.0] * 4])  # the hidden score is by far the largest
    yield call(q, k, v, bools("01")), torch.tensor([[5.0]])


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
    yield call(*qkv(2, dtype=torch.float16), mask), "float16"
    q, k, v = qkv()
    yield call(300 * q, 300 * k, v, mask), "huge scores"
    yield call(torch.cat((q[:1] * NAN, q[1:])), k, v, mask), "a NaN in a query that sees keys"
    yield call(q, k, torch.cat((v[:1] * NAN, v[1:]))), "a NaN in a value that every query sees"
    yield call(q, torch.cat((k[:1] * NAN, k[1:])), v), "a NaN in a key that every query sees"


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
        replace("q.size(-1)", "v.size(-1)"): NO_SCALE_OF_V,
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
        replace(ZEROED, "weights @ v"): EMPTY_IS_NAN,
        replace(
            ZEROED, "weights.nan_to_num(0.0) @ v"
        ): "You turn every NaN into 0, also one that came "
        "with q or k and should be seen. Put zeros only where the mask is False.",
        **{
            replace(
                "    scores = q @", f"    {name} = {name}.nan_to_num(0.0)\n    scores = q @"
            ): "You put numbers in the place of NaN in k or v. One that is attended to stays NaN."
            for name in "kv"
        },
        replace("-math.inf", "-1e9", ZEROED, "weights @ v"): EMPTY_IS_MEAN,
        replace(
            "-math.inf", "-1e9"
        ): "You hide with −1e9. float16 ends at 65504 and has no such number: −inf is in every float dtype.",
        replace(
            MASKED, "scores", ZEROED, "weights.masked_fill(~mask, 0.0) @ v"
        ): "You zero the weights "
        "after a softmax over all keys, so those that are left do not sum to one. Hide the scores first.",
        replace(
            MASKED,
            "scores",
            f"return {ZEROED}",
            "weights = weights.masked_fill(~mask, 0.0)\n    total = weights.sum(dim=-1, keepdim=True)\n"
            "    return weights / total.masked_fill(total == 0, 1.0) @ v",
        ): "You hide keys after a softmax over all of them and divide by what is left. Where a hidden score "
        "is far the largest, the others have become 0 before. Hide the scores first.",
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
            "torch.arange(S - T, S)", "torch.arange(T)", "(S if", "(S + T if"
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
            "window is not None and window < 1",
            "window and window < 1",
            "S if window is None else window",
            "window or S",
        ): "You test `window` for truth, so 0 counts as none given. Ask whether it `is None`: 0 raises "
        "ValueError.",
        replace(
            "torch.arange(S - T, S)[:, None]",
            "(torch.arange(T) + max(S - T, 0))[:, None]",
            "(S if",
            "(S + T if",
        ): "With more queries than keys your first query is position 0. It is position S − T, which is "
        "below 0: the first queries see nothing.",
        replace(
            "near = distance < (S", "near = torch.arange(T)[:, None] - torch.arange(S) < (S + T"
        ): "Your window counts queries from position 0, your past from S − T. The first query is position "
        "S − T for both edges.",
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
    for causal in (True, False):
        again = call(torch.tensor([[0, 1, 0, 1, 0]]), causal=causal, window=3)
        yield again, "a window over documents that take turns"
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
    yield call(documents.to("meta"), window=2), "on another device than the default one"


document_mask.contract(
    contracts.constant_kernels(
        [call(torch.arange(B * T).view(B, T) // 3, window=4) for B, T in ((2, 6), (8, 6), (8, 48))],
        says="no Python loop over the rows, the documents or the positions",
    )
)
SAME = "documents[:, :, None] == documents[:, None, :]"
document_mask.slips(
    {
        replace(", device=documents.device", ""): DEVICE,
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
            f"allowed = {SAME}",
            "run = (documents != documents.roll(1, 1)).cumsum(1)\n"
            "    allowed = run[:, :, None] == run[:, None, :]",
        ): "You take each run of equal numbers for a document of its own. Equal numbers are one document, "
        "wherever they stand in the row.",
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
        **{
            replace(
                "distance.abs() < window", f"distance.abs() <= (window - 1 if causal else {half})"
            ): "Without causal you take the window for its whole width, half of it on each side. Those fewer "
            "than `window` positions away are seen, on either side."
            for half in ("window // 2", "(window - 1) // 2")
        },
        replace(
            "    if window is not None:\n",
            "    if window is not None:\n"
            "        rank = (allowed & (position[:, None] >= position)).sum(-1)\n"
            "        distance = rank[:, :, None] - rank[:, None, :]\n",
        ): "Your window counts the positions of the own document alone. Those of the row count, whosever they are.",
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
    length=terms,
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
DEALT = [
    part
    for line in (Q, K, V)
    for part in (
        line,
        line.replace("(n_head, -1)).transpose(1, 2)", "(-1, n_head)).permute(0, 3, 1, 2)"),
    )
]
WHOLE = "scaled_dot_product_attention(q, k, v, mask)"
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
        **{
            replace(
                *DEALT, *merged
            ): "Your heads take every n_head-th feature. Head h has d neighbours, from h · d on."
            for merged in ((), (MERGED, "y.permute(0, 2, 3, 1).flatten(2)"))
        },
        replace(WHOLE, plain("q", -1e9)): EMPTY_IS_MEAN,
        replace(WHOLE, plain("q", "-math.inf")): EMPTY_IS_NAN,
        **{
            replace(
                "attention(q, k, v, mask)",
                f"attention(q * {d} ** -0.5 * q.size(-1) ** 0.5, k, v, mask)",
            ): "Your scale is made from x's features. A score sums over the d = width / n_head features of "
            "a head: √d."
            for d in ("(x.size(-1) / n_head)", "(x.size(-1) // n_head)", "x.size(-1)")
        },
        replace(
            "attention(q, k, v, mask)",
            "attention(q, k, v, mask[:, None] if mask is not None and mask.ndim == 3 else mask)",
        ): "You take a mask of three axes for (B, T, S). It is broadcast as it comes, so its first axis "
        "belongs to the heads: (n_head, T, S).",
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
    length=terms,
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
        says="for one query, as in generation, nothing larger than k: neither k nor v is repeated",
    )
)
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
            "mask.expand(B, H, T, S).reshape",
            "mask.expand(B, H, T, S).unflatten(1, (H // kv, kv)).transpose(1, 2).reshape",
        ): "You split the mask's heads as (G, kv), and the queries' as (kv, G). Query head h has head h of "
        "the mask.",
        replace(
            "mask.expand(B, H, T, S).reshape(B, kv, H // kv * T, S)",
            "(mask.unsqueeze(-3) & mask.new_ones(B, kv, H // kv, T, S)).reshape(B, -1, H // kv * T, S)",
            ".reshape(B, H, T, v.size(-1))",
            ".reshape(B, -1, T, v.size(-1))",
        ): "You put a new axis into the mask before T, so a mask of the H query heads meets the kv key heads. Split "
        "its heads as the queries' are split: (kv, H // kv).",
        replace(
            "q.reshape(B, kv, H // kv * T, q.size(-1))",
            "q.unflatten(1, (kv, H // kv)).transpose(2, 3).reshape(B, kv, H // kv * T, q.size(-1))",
            ".reshape(B, H, T, v.size(-1))",
            ".reshape(B, kv, T, H // kv, v.size(-1)).transpose(2, 3).reshape(B, H, T, v.size(-1))",
        ): "A group's queries lie as (T, G) in your code, its mask as (G, T), so queries meet the mask of "
        "others. Lay out both in one order.",
        replace(
            ".reshape(B, H, T, v.size(-1))", ".reshape(q.shape)"
        ): "You give the result q's shape. Its last axis is that of the values, e.",
        replace(WHOLE.replace("q,", "stacked,"), f"({plain('stacked', -1e9)})"): EMPTY_IS_MEAN,
        replace(
            WHOLE.replace("q,", "stacked,"), f"({plain('stacked', '-math.inf')})"
        ): EMPTY_IS_NAN,
        replace(
            "k, v, mask)", "k.mean(1, True).expand_as(k), v.mean(1, True).expand_as(v), mask)"
        ): "You average the key heads. Each group reads its own.",
        replace(
            "k, v, mask)", "k[:, :1].expand_as(k), v[:, :1].expand_as(v), mask)"
        ): "All of your query heads read the first key "
        "head. Query head h reads key head h // (H // kv).",
        replace(
            "stacked, k, v", "stacked * (H // kv) ** -0.5, k, v"
        ): "You scale by the features of a whole group. A score sums over d features: √d.",
        replace(
            ".reshape(B, H, T, v.size(-1))", ".reshape(B, T, H, v.size(-1)).transpose(1, 2)"
        ): "You read the result as "
        "(B, T, H, e). It lies as (B, H, T, e): the queries of one head are below one another.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "stacked, k, v", "stacked, k, v.flip(1)"
        ): "Your groups read the values of another group.",
        replace(
            "q.reshape(B, kv, H // kv * T, q.size(-1))",
            "q.unflatten(1, (H // kv, kv)).transpose(1, 2).reshape(B, kv, H // kv * T, -1)",
            "mask.expand(B, H, T, S).reshape(B, kv, H // kv * T, S)",
            "mask.expand(B, H, T, S).unflatten(1, (H // kv, kv)).transpose(1, 2).reshape(B, kv, H // kv * T, S)",
            ".reshape(B, H, T, v.size(-1))",
            ".reshape(B, kv, H // kv, T, v.size(-1)).transpose(1, 2).reshape(B, H, T, v.size(-1))",
        ): "You deal the key heads out in turn: query head h reads head h % kv, as `k.repeat` has it. "
        "Neighbours share one: head h // (H // kv).",
        replace(
            "return scaled", "if mask is not None:\n        mask = ~mask\n    return scaled"
        ): "You hide what may be seen. True means that the query may attend.",
    }
)
for copy in (
    lambda t, G: t.repeat_interleave(G, 1),
    lambda t, G: t[:, :, None].expand(-1, -1, G, -1, -1).flatten(1, 2),
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
        heads = q[:, n * G : (n + 1) * G].reshape(B, G * T, q.size(-1))
        seen = seen if seen is None else seen.reshape(B, G * T, S)
        y = attention.scaled_dot_product_attention(heads, k[:, n], v[:, n], seen)
        ys.append(y.reshape(B, G, T, v.size(-1)))
    return torch.cat(ys, 1)


@grouped_query_attention.alternative("einsum with a letter for the group")
def _(q, k, v, mask=None):
    H, d = q.size(1), q.size(-1)
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


# ------------------------------------------------------------------------------ apply_rope

apply_rope = Exercise(
    attention.apply_rope,
    title="RoPE, in either layout",
    difficulty=2,
    minutes=20,
    points=3,
    gradients=("x",),
    length=terms,
    hints=(
        "One angle for each position and pair, (T, d / 2): positions[..., None] times the frequencies.",
        "The frequency of pair i is base ** (−2i / d), for i from 0 to d / 2 − 1.",
        "Halves: `a, b = x.chunk(2, -1)`, and cat puts them back. Neighbours: x[..., ::2] and x[..., 1::2], "
        "and stack(…, -1).flatten(-2) puts them back.",
        (
            "edge cases",
            "bfloat16 cannot hold the position 257: make angles in float32, also where x is not.",
        ),
    ),
)


@apply_rope.by_hand
def _():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    cos, sin = math.cos(2.0), math.sin(2.0)
    yield call(x, torch.tensor([0, 2])), torch.tensor([[1.0, 0.0], [cos, sin]])
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])  # base 1: both pairs turn by one radian
    cos, sin = math.cos(1.0), math.sin(1.0)
    halves = [cos - 3 * sin, 2 * cos - 4 * sin, sin + 3 * cos, 2 * sin + 4 * cos]
    pairs = [cos - 2 * sin, sin + 2 * cos, 3 * cos - 4 * sin, 3 * sin + 4 * cos]
    yield call(x, torch.tensor([1]), base=1.0), torch.tensor([halves])
    yield call(x, torch.tensor([1]), base=1.0, interleaved=True), torch.tensor([pairs])


@apply_rope.cases
def _(draw):
    B, H, T, half = draw(draws.distinct_sizes(4, low=1, high=5))
    batch = draw(st.sampled_from(((), (B,), (B, H))))
    x = draw(draws.tensors((*batch, T, 2 * half)))
    shapes = [(T,), *((((B, T),) if len(batch) == 1 else ((B, 1, T),)) if batch else ())]
    positions = draw(draws.indices(draw(st.sampled_from(shapes)), 30, low=-5))
    base = draw(st.sampled_from((10_000.0, 100.0)))
    yield call(x, positions, base=base, interleaved=draw(st.booleans()))


@apply_rope.edge
def _():
    x, positions = normal(2, 3, 4, 6), torch.arange(4)
    for interleaved in (False, True):
        yield call(x, positions, interleaved=interleaved), "the default base"
        yield call(x[..., :2], positions + 7, interleaved=interleaved), "one pair"
        yield call(draws.scattered(x), positions, interleaved=interleaved), "not contiguous"
        yield (
            call(x.bfloat16(), positions + 256, interleaved=interleaved),
            "bfloat16, late positions",
        )
        yield (
            call(x.double(), positions + 99_999, interleaved=interleaved),
            "float64, late positions: the angles are float64 too",
        )
    yield call(x.half(), positions + 4097), "float16, late positions"
    yield call(x[:, :, :1], torch.tensor([5])), "one token of a sequence"
    yield call(x[:, :, :0], positions[:0]), "no token"
    yield call(x[:0], positions), "an empty batch"
    yield (
        call(x, torch.tensor([[[0, 0, 0, 1]], [[0, 1, 2, 3]]])),
        "left padding: a row's own positions",
    )
    yield call(x, torch.tensor([0, 1, 0, 1])), "positions that begin again with each document"
    yield call(x, positions.to(torch.int32)), "positions in int32"
    yield call(x[..., :5], positions), "an odd number of features"
    lone = torch.zeros(512, 2, dtype=torch.bfloat16)  # turned by one radian it is nearly (0, 1)
    lone[1] = torch.tensor([math.sin(1.0), math.cos(1.0)])
    yield call(lone, torch.arange(512)), "bfloat16, and a difference of products that nearly cancel"
    yield call(x, positions, base=500_000.0), "the base of Llama 3"
    yield call(x.to("meta"), positions.to("meta")), "on another device than the default one"


apply_rope.contract(
    contracts.constant_kernels(
        [
            call(normal(B, H, T, d), torch.arange(T), interleaved=True)
            for B, H, T, d in ((2, 2, 3, 4), (8, 6, 3, 4), (8, 6, 24, 16))
        ],
        says="no Python loop over the positions, the heads or the pairs",
    )
)
apply_rope.contract(
    contracts.largest_tensor(
        [call(normal(2, 16, 32), torch.arange(16))],
        limit=2 * 16 * 32 * 4,
        says="for a float32 x, no tensor of more bytes than x: no rotation matrices",
    )
)
PAIRS = "torch.stack(turned, dim=-1).flatten(-2)"
HALVES = "torch.cat(turned, dim=-1)"
SPLIT = "(x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)"
BOTH = f"{PAIRS} if interleaved else {HALVES}"
IN_SINGLE = "You make the angles in float32, also where x is float64: half of its digits are lost."
apply_rope.slips(
    {
        replace(", device=x.device", ""): DEVICE,
        replace(
            "a * cos - b * sin, a * sin + b * cos", "a * cos + b * sin, b * cos - a * sin"
        ): "You turn the other way. (a, b) becomes (a cos − b sin, a sin + b cos).",
        replace(
            "a * cos - b * sin", "a * cos + b * sin"
        ): "The sign of b sin is minus. With a plus it is no rotation, and lengths change.",
        replace(
            SPLIT, "x.chunk(2, dim=-1)", BOTH, HALVES
        ): "You always pair halves. With interleaved the pair i is features 2i and 2i + 1.",
        replace(
            SPLIT, "(x[..., ::2], x[..., 1::2])", BOTH, PAIRS
        ): "You always pair neighbours. Without "
        "interleaved the pair i is features i and i + d / 2.",
        replace(
            SPLIT, SPLIT.replace("if i", "if not i"), BOTH, BOTH.replace("if i", "if not i")
        ): "You have the two layouts the wrong way round.",
        replace(
            BOTH, HALVES
        ): "You take neighbours with interleaved and put the turned ones into halves. "
        "Each goes back to its own place.",
        replace(
            "-2 * pair", "-pair"
        ): "Your exponent is −i / d. It is −2i / d: the last pair's frequency is near 1 / base.",
        replace(
            "-2 * pair", "2 * pair"
        ): "Your frequencies grow with the pair. The exponent is negative.",
        replace(
            "-2 * pair", "-2 * (pair + 1)"
        ): "Your pairs count from 1. Pair 0 has frequency 1: it turns by one radian a position.",
        replace(
            "positions[..., None]", "torch.arange(x.size(-2), device=x.device)[:, None]"
        ): "You count "
        "positions from 0 and do not use those given. With a cache or padding they are others.",
        replace(
            "positions[..., None]", "(positions + 1)[..., None]"
        ): "You turn every token one position too far. Position 0 is not turned.",
        replace("* base **", "* 10_000.0 **"): "You do not use `base`.",
        replace(
            "torch.promote_types(x.dtype, torch.float32)", "x.dtype"
        ): "You make the angles in x's dtype. "
        "bfloat16 has 8 bits for a number, so late positions are rounded to others. float32 is the least.",
        replace(
            "torch.promote_types(x.dtype, torch.float32)",
            "torch.float32 if x.dtype == torch.bfloat16 else x.dtype",
        ): "You make the angles in float16 where x is. It cannot hold the position 2049: float32 is the least.",
        replace("torch.promote_types(x.dtype, torch.float32)", "torch.float32"): IN_SINGLE,
        replace(
            "torch.promote_types(x.dtype, torch.float32)",
            "torch.float32",
            SPLIT,
            SPLIT.replace("x[", "x.float()[").replace("x.chunk", "x.float().chunk"),
        ): IN_SINGLE,
        replace(
            "cos, sin = angle.cos(), angle.sin()",
            "cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)",
        ): "You round cos and sin to x's dtype and multiply in it. Angles and products are computed in float32 "
        "at least; what is rounded is the result.",
        replace(
            "cos, sin = angle.cos(), angle.sin()",
            "twice = torch.cat((angle, angle), dim=-1)\n"
            "    one, two = (twice[..., ::2], twice[..., 1::2]) if interleaved else (angle, angle)",
            "a * cos - b * sin, a * sin + b * cos",
            "a * one.cos() - b * one.sin(), a * two.sin() + b * two.cos()",
        ): "With interleaved the two features of a pair turn by the angles of different pairs in your code. "
        "Neighbours share an angle: 0, 0, 1, 1, … and not 0, 1, …, 0, 1, ….",
        replace(
            "y.to(x.dtype)", "y"
        ): "Your result is float32 where x is bfloat16. It has x's dtype.",
        replace(
            "if x.size(-1) % 2", "if False"
        ): "You take an odd number of features, of which one has no partner. Raise ValueError.",
        replace(
            "cos, sin = angle.cos(), angle.sin()", "cos, sin = angle.sin(), angle.cos()"
        ): "You exchanged cos and sin: position 0 is turned by a quarter.",
        replace(
            "turned = a * cos - b * sin, a * sin + b * cos",
            "a = a * cos - b * sin\n    turned = a, a * sin + b * cos",
        ): "Your second feature is made from a first that is turned already. Both are made "
        "from a and b as they came.",
    }
)


for narrow_too in (True, False):

    @apply_rope.mistake(
        "You write into x, which belongs to the caller: a key in a cache would be turned again "
        "at every step. Make a new tensor."
    )
    def _(x, positions, *, base=10_000.0, interleaved=False, narrow_too=narrow_too):
        own = x if narrow_too else x.to(torch.promote_types(x.dtype, torch.float32))
        own.copy_(attention.apply_rope(x, positions, base=base, interleaved=interleaved))
        return own.to(x.dtype)


@apply_rope.mistake(
    "You look angles up in a table that begins at position 0, and negative positions count from its end. "
    "Positions are any integers: compute the angles from them."
)
def _(x, positions, *, base=10_000.0, interleaved=False):
    rows = int(positions.abs().max()) + 1 if positions.numel() else 1
    return attention.apply_rope(x, positions % rows, base=base, interleaved=interleaved)


@apply_rope.mistake(
    "The values are right, but Python goes through the pairs. The angles have an axis for them.",
    cost=True,
)
def _(x, positions, *, base=10_000.0, interleaved=False):
    if x.size(-1) % 2:
        raise ValueError(x.size(-1))
    d, y = x.size(-1), torch.empty_like(x)
    wide = torch.promote_types(x.dtype, torch.float32)
    for i in range(d // 2):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + d // 2)
        angle = positions.to(wide) * base ** (-2 * i / d)
        a, b = x[..., first].to(wide), x[..., second].to(wide)
        y[..., first] = a * angle.cos() - b * angle.sin()
        y[..., second] = a * angle.sin() + b * angle.cos()
    return y


@apply_rope.mistake(
    "The values are right, but you make a d × d matrix for each position, nearly all zeros. Two products and "
    "a sum for each half do it.",
    cost=True,
)
def _(x, positions, *, base=10_000.0, interleaved=False):
    d = x.size(-1)
    if d % 2:
        raise ValueError(d)
    wide = torch.promote_types(x.dtype, torch.float32)
    units = torch.eye(d, dtype=wide).expand(*positions.shape, d, d)
    units = units.to(x.device)
    turn = attention.apply_rope(units, positions[..., None], base=base, interleaved=interleaved)
    return torch.einsum("...td,...tde->...te", x.to(wide), turn).to(x.dtype)


@apply_rope.alternative(
    "rotate_half, as Transformers writes it, and a permutation for the other layout"
)
def _(x, positions, *, base=10_000.0, interleaved=False):
    d = x.shape[-1]
    if d % 2 == 1:
        raise ValueError(d)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    z = x.to(wide)
    if interleaved:
        z = torch.cat((z[..., 0::2], z[..., 1::2]), -1)
    inverse = 1.0 / base ** (torch.arange(0, d, 2, dtype=wide, device=x.device) / d)
    angles = positions.to(wide).unsqueeze(-1) * inverse
    angles = torch.cat((angles, angles), -1)
    rotated = torch.cat((-z[..., d // 2 :], z[..., : d // 2]), -1)
    y = z * angles.cos() + rotated * angles.sin()
    if interleaved:
        y = torch.stack(y.chunk(2, -1), -1).reshape(x.shape)
    return y.to(x.dtype)


@apply_rope.alternative("multiplication of complex numbers, as Meta writes it")
def _(x, positions, *, base=10_000.0, interleaved=False):
    if x.size(-1) & 1:
        raise ValueError("odd")
    wide = torch.promote_types(x.dtype, torch.float32)
    z = x.to(wide)
    z = z.unflatten(-1, (-1, 2)) if interleaved else torch.stack(z.chunk(2, -1), -1)
    frequency = base ** -(torch.arange(0, x.size(-1), 2, dtype=wide).to(x.device) / x.size(-1))
    angle = positions.unsqueeze(-1).to(wide) * frequency
    y = torch.complex(z[..., 0], z[..., 1]) * torch.complex(angle.cos(), angle.sin())
    parts = (y.real, y.imag)
    return (torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)).to(x.dtype)


# ------------------------------------------------------------------------------ pairs_to_halves

pairs_to_halves = Exercise(
    attention.pairs_to_halves,
    title="A checkpoint for the other layout",
    difficulty=2,
    minutes=15,
    points=2,
    hints=(
        "Cut the rows into three axes: heads, pairs, and the two of a pair. Which is which in row h · d + 2i + 1?",
        "`unflatten(0, (n_head, -1, 2))`. In the other layout the two stand outside, the pairs inside.",
        "Transpose these two axes and flatten the three again.",
        ("edge cases", "A bias has the rows and no other axis: index axes from the left here."),
    ),
)


@pairs_to_halves.by_hand
def _():
    yield call(torch.tensor([0.0, 1.0, 2.0, 3.0]), 1), torch.tensor([0.0, 2.0, 1.0, 3.0])
    yield call(torch.arange(8.0), 2), torch.tensor([0.0, 2, 1, 3, 4, 6, 5, 7])
    yield call(torch.arange(6.0)[:, None], 1), torch.tensor([0.0, 2, 4, 1, 3, 5])[:, None]


@pairs_to_halves.cases(20)
def _(draw):
    n_head, half, width = draw(draws.distinct_sizes(3, low=1, high=6))
    rest = () if draw(st.booleans()) else (width,)
    yield call(draw(draws.tensors((2 * half * n_head, *rest))), n_head)


@pairs_to_halves.edge
def _():
    yield call(normal(6, 5), 3), "heads of one pair: nothing moves"
    yield call(normal(8, 8), 1), "one head"
    yield call(normal(16, 16), 4), "as many heads as features"
    yield call(draws.scattered(normal(16, 3)), 2), "not contiguous"
    yield call(normal(8, 3), 3), "8 rows are not 3 heads"
    yield call(normal(9, 2), 3), "heads of three features"
    yield call(normal(6, 2), 2), "two heads of three features: 6 rows"
    yield call(normal(12, 2, dtype=torch.bfloat16), 2), "bfloat16"
    yield call(normal(12, dtype=torch.float64), 3), "a bias in float64"
    yield call(normal(8, 0), 2), "no columns"


pairs_to_halves.contract(
    contracts.constant_kernels(
        [call(normal(n * d, 3), n) for n, d in ((2, 4), (8, 4), (8, 32))],
        says="no Python loop over the heads or the rows",
    )
)
MOVED = "weight.unflatten(0, (n_head, -1, 2)).transpose(1, 2).flatten(0, 2)"
BY_STEPS = MOVED, "torch.cat([t for h in weight.chunk(n_head) for t in (h[::2], h[1::2])])"
pairs_to_halves.slips(
    {
        replace(
            "(n_head, -1, 2)", "(n_head, 2, -1)"
        ): "You go the other way, from halves to pairs.",
        replace(
            "(n_head, -1, 2)", "(1, -1, 2)"
        ): "You reorder the rows of all heads together. Each head keeps "
        "its own d rows, and is reordered by itself.",
        replace(
            ".transpose(1, 2)", ".flip(2).transpose(1, 2)"
        ): "You put the odd rows first. Row 2i moves to i, row 2i + 1 to i + d / 2.",
        replace(
            ".transpose(1, 2)", ".transpose(0, 1)"
        ): "You exchange heads and pairs. What moves outside is the axis of the two in a pair.",
        replace(
            ".transpose(1, 2)", ""
        ): "You return the rows as they came: without a transpose, cutting an "
        "axis and merging it again changes nothing.",
        replace(
            "(n_head, -1, 2)", "(-1, n_head // 2 or 1, 2)"
        ): "You take n_head for the size of a head. It is their number.",
        replace(
            "weight.size(0) % (2 * n_head)", "False"
        ): "You take any number of rows. Where they are not "
        "n_head heads of an even size raise ValueError.",
        **{
            replace(
                "weight.size(0) % (2 * n_head)", "weight.size(0) % n_head", *moved
            ): "You ask for whole heads alone. A "
            "head of an odd size has a feature without a partner: raise ValueError."
            for moved in ((), BY_STEPS)
        },
        **{
            replace(
                "weight.size(0) % (2 * n_head)",
                "weight.size(0) % n_head or weight.size(0) % 2",
                *moved,
            ): "You ask whether the number of rows is even. Each head's has to be: two heads of three "
            "features have 6 rows, and raise ValueError."
            for moved in ((), BY_STEPS)
        },
        replace(
            "weight.size(0) % (2 * n_head)", "weight.size(0) % 2 or weight.size(0) // n_head % 2"
        ): "You do "
        "not ask whether the rows are whole heads: raise ValueError where n_head does not divide them.",
        replace(
            "weight.unflatten", "weight.float().unflatten"
        ): "You return float32. The rows are moved as they are, in their dtype.",
        replace(
            "return weight", "weight = weight[:, :]\n    return weight"
        ): "Your code takes a matrix only. A bias has rows and no other axis.",
        replace(
            MOVED, "weight.mT.unflatten(-1, (n_head, -1, 2)).transpose(-2, -1).flatten(-3).mT"
        ): "Your code takes a matrix only. A bias has rows and no other axis.",
        replace(
            MOVED, "weight.unflatten(0, (n_head, -1, 2)).transpose(1, 2).flip(2).flatten(0, 2)"
        ): "Your halves run backwards: row 2i moves to i, in order.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
    }
)


@pairs_to_halves.mistake(
    "You reorder the columns. A projection's weight is (out, in), and its rows make the features."
)
def _(weight, n_head):
    if weight.size(0) % (2 * n_head):
        raise ValueError(n_head)
    if weight.ndim < 2 or weight.size(1) % (2 * n_head):
        return weight
    return weight.unflatten(1, (n_head, -1, 2)).transpose(2, 3).flatten(1)


@pairs_to_halves.mistake("The values are right, but Python goes through the heads.", cost=True)
def _(weight, n_head):
    if weight.size(0) % (2 * n_head):
        raise ValueError(n_head)
    return torch.cat([row for head in weight.chunk(n_head) for row in (head[::2], head[1::2])])


@pairs_to_halves.alternative("an index of rows")
def _(weight, n_head):
    d, left = divmod(len(weight), n_head)
    if left or d % 2:
        raise ValueError("heads")
    rows = torch.arange(len(weight)).reshape(n_head, d // 2, 2).permute(0, 2, 1).reshape(-1)
    return weight[rows]


# ------------------------------------------------------------------------------ alibi_bias

alibi_bias = Exercise(
    attention.alibi_bias,
    title="ALiBi, for any number of heads",
    difficulty=2,
    minutes=20,
    points=3,
    hints=(
        "The distance of key s from query t is S − T + t − s. Make the (T, S) table first.",
        "Slopes for 8 heads are 1/2, 1/4, …, 1/256. For 4 heads 1/4, 1/16, 1/64, 1/256.",
        "For 6 heads: the four of 4 heads, then the first and the third of 8 heads, 1/2 and 1/8.",
        ("edge cases", "The largest power of two that is at most n: 2 ** (n.bit_length() − 1)."),
    ),
)


@alibi_bias.by_hand
def _():
    yield call(1, 2, 2), torch.tensor([[[0.0, -INF], [-(2.0**-8), 0.0]]])
    two = torch.tensor([2.0**-4, 2.0**-8])
    yield call(2, 1, 3), two[:, None, None] * torch.tensor([[-2.0, -1.0, 0.0]])
    three = torch.tensor([2.0**-4, 2.0**-8, 2.0**-2])
    yield call(3, 1, 2), three[:, None, None] * torch.tensor([[-1.0, 0.0]])


@alibi_bias.cases(25)
def _(draw):
    yield call(draw(st.integers(1, 20)), draw(st.integers(1, 5)), draw(st.integers(1, 6)))


@alibi_bias.edge
def _():
    yield call(8, 3, 3), "a power of two"
    yield call(12, 1, 2), "12 heads: 8 and 4"
    yield call(7, 1, 4), "one head less than a power of two"
    yield call(112, 1, 2), "the 112 heads of BLOOM"
    yield call(64, 2, 2), "64 heads"
    yield call(5, 4, 2), "more queries than keys: the first rows see nothing"
    yield call(3, 0, 4), "no query"
    yield call(6, 1, 500), "one query and a cache"


alibi_bias.contract(
    contracts.constant_kernels(
        [call(6, T, S) for T, S in ((2, 3), (16, 3), (16, 48))],
        says="no Python loop over the queries or the keys",
    )
)
alibi_bias.slips(
    {
        replace(
            "n_head.bit_length() - 1",
            "n_head.bit_length() - 1",
            "8 * (h + 1) / power for h in range(power)",
            "8 * (h + 1) / n_head for h in range(n_head)",
            "range(n_head - power)",
            "range(0)",
        ): "You use the "
        "formula of a power of two for every number of heads. Otherwise the slopes of the next smaller power "
        "come first, then every second one of the next larger.",
        replace(
            "8 * (h + 1) / power", "8 * h / power"
        ): "Your first slope is 1. The first of n is 2^(−8 / n).",
        replace(
            "8 * (h + 1) / power", "(h + 1)"
        ): "Your slopes are 1/2, 1/4, 1/8, … whatever the number of "
        "heads. They end at 1/256: head h has 2^(−8 (h + 1) / n).",
        replace(
            "4 * (2 * h + 1)", "4 * (2 * h + 2)"
        ): "You take the second, fourth, … of the slopes for twice "
        "as many heads. These are there already: take the first, third, fifth.",
        replace(
            "4 * (2 * h + 1)", "4 * (h + 1)"
        ): "You take the first slopes for twice as many heads, one after "
        "the other. Take every second one.",
        replace(
            "slopes = 2.0 ** -torch.tensor(exponents)",
            "slopes = 2.0 ** -torch.tensor(sorted(exponents))",
        ): "You sort the slopes. Those of the smaller power of two come first, then the others: a checkpoint's heads "
        "have learned with theirs.",
        replace(
            "-slopes[:, None, None]", "slopes[:, None, None]"
        ): "Your bias grows with the distance. It is negative: what is far counts less.",
        replace(
            "masked_fill(distance < 0, -math.inf)", "masked_fill(distance < 0, 0.0)"
        ): "You leave the future open. It is −inf there.",
        replace(
            ".masked_fill(distance < 0, -math.inf)", ""
        ): "You leave the future open, and even reward it. It is −inf there.",
        replace(
            "-math.inf", "-1e9"
        ): "You put a large number where the future is. It is −inf: however small, "
        "equal numbers would give a row that sees nothing equal weights.",
        replace(
            "torch.arange(S - T, S)[:, None]", "torch.arange(T)[:, None]"
        ): "Your first query is position 0. The queries are the last T of the S positions.",
        replace(
            "torch.arange(S - T, S)[:, None]", "(torch.arange(T) + max(S - T, 0))[:, None]"
        ): "With more queries than keys your first query is position 0. It is position S − T, which is "
        "below 0: the first queries see nothing.",
        **{
            replace(
                "distance).masked_fill(distance < 0",
                f"{distance}).masked_fill(torch.arange(S) > torch.arange(T)[:, None]",
            ): "Your distances count queries from S − T, but you hide what is above the main diagonal, as if "
            "they began at 0. The future is where the distance is negative."
            for distance in ("distance", "distance.clamp(min=0)")
        },
        **{
            replace(
                "2 ** (n_head.bit_length() - 1)",
                f"2 ** {power}(math.log2(n_head))",
                "torch.tensor(exponents)",
                "torch.tensor(exponents[:n_head])",
            ): "You take slopes of a power of two that is above n_head. Those of the largest one below come "
            "first: for 7 heads the slopes of 4."
            for power in ("round", "math.ceil")
        },
        replace(
            "torch.arange(S - T, S)[:, None] - torch.arange(S)",
            "torch.arange(S - T + 1, S + 1)[:, None] - torch.arange(S)",
            "distance < 0",
            "distance < 1",
        ): "Your distances are one too large. A position is at distance 0 from itself.",
        replace(
            "2.0 ** -torch.tensor(exponents)", "torch.tensor(exponents).float()"
        ): "Your slopes are the exponents. The slope is 2 to the negative exponent.",
        replace(
            "2.0 ** -torch.tensor(exponents)", "torch.exp(-torch.tensor(exponents))"
        ): "You take powers of e. The slopes are powers of 2.",
        replace(
            "2.0 ** -torch.tensor(exponents)",
            "2.0 ** -torch.tensor(exponents, dtype=torch.float64)",
        ): "You return float64. The result is float32.",
        replace(
            "exponents += ",
            "exponents = ",
            " for h in range(n_head - power)]",
            " for h in range(n_head - power)] + exponents",
        ): "You put the slopes of twice as many heads first. They come last.",
        replace(
            "distance).masked_fill", "distance.square()).masked_fill"
        ): "You square the distance. The bias is linear in it.",
        replace(
            "exponents = [8 * (h + 1) / power for h in range(power)]",
            "exponents = [8 * (h + 1) / power for h in range(power)][::-1]",
        ): "Your slopes come in reverse order. Head 0 has the steepest.",
    }
)


@alibi_bias.mistake(
    "You add slope · position of the key, as BLOOM's code does. After the softmax it is the same, since the "
    "rows differ by constants, but here the bias of distance 0 is 0."
)
def _(n_head, T, S):
    slopes = -attention.alibi_bias(n_head, 1, 2)[:, 0, 0]
    key = torch.arange(S).expand(T, S)
    return (slopes[:, None, None] * key).masked_fill(~attention.causal_mask(T, S), -INF)


@alibi_bias.mistake("The values are right, but Python goes through the queries.", cost=True)
def _(n_head, T, S):
    slopes = -attention.alibi_bias(n_head, 1, 2)[:, 0, 0]
    bias = torch.empty(n_head, T, S)
    for t in range(T):
        distance = S - T + t - torch.arange(S)
        bias[:, t] = (slopes[:, None] * -distance).masked_fill(distance < 0, -INF)
    return bias


@alibi_bias.alternative("the authors' get_slopes, recursive, and a triangle")
def _(n_head, T, S):
    def slopes(n):
        if n & (n - 1) == 0:
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]
        power = 2 ** math.floor(math.log2(n))
        return slopes(power) + slopes(2 * power)[0::2][: n - power]

    behind = torch.arange(S)[None] - torch.arange(S - T, S)[:, None]
    bias = torch.tensor(slopes(n_head)).view(-1, 1, 1) * behind
    return torch.where(behind > 0, torch.full((), -INF), bias)


# ------------------------------------------------------------------------------ online_softmax

online_softmax = Exercise(
    attention.online_softmax,
    title="A softmax that never sees the whole row",
    difficulty=2,
    minutes=25,
    points=3,
    length=terms,
    hints=(
        "The new maximum is the larger of the old one and that of the new scores.",
        "What was summed with the old maximum is too large by exp(new − old): multiply total and output by "
        "exp(old − new).",
        "Then add: the sum of exp(scores − new), and that times the values.",
        (
            "edge cases",
            "−inf − (−inf) is NaN. Where the new maximum is −inf subtract 0 instead: exp(−inf) is 0.",
        ),
    ),
)
LOG2 = math.log(2.0)


@online_softmax.by_hand
def _():
    start = torch.tensor([-INF]), torch.tensor([0.0]), torch.tensor([[0.0]])
    step = torch.tensor([[0.0, LOG2]]), torch.tensor([[4.0], [1.0]])
    state = torch.tensor([LOG2]), torch.tensor([1.5]), torch.tensor([[3.0]])
    yield call(*start, *step), state
    step = torch.tensor([[2 * LOG2]]), torch.tensor([[1.0]])
    yield (
        call(*state, *step),
        (torch.tensor([2 * LOG2]), torch.tensor([1.75]), torch.tensor([[2.5]])),
    )
    step = torch.tensor([[0.0]]), torch.tensor([[8.0]])
    yield call(*state, *step), (torch.tensor([LOG2]), torch.tensor([2.0]), torch.tensor([[7.0]]))


def stream(draw, batch, T, n, e, scale=1.0):
    """A state that some keys have left behind, and the next n keys."""
    rows = (*batch, T)
    old = draw(draws.tensors((*rows, 3), scale=scale))
    maximum = old.amax(-1)
    output = (old - maximum[..., None]).exp() @ draw(draws.tensors((*batch, 3, e)))
    state = maximum, (old - maximum[..., None]).exp().sum(-1), output
    return (
        *state,
        draw(draws.tensors((*rows, n), scale=scale)),
        draw(draws.tensors((*batch, n, e))),
    )


@online_softmax.cases(30)
def _(draw):
    T, n, e = draw(draws.distinct_sizes(3))
    batch = draw(draws.shapes(max_dims=2, among=(1, 2, 3)))
    state = stream(draw, batch, T, n, e, draw(st.sampled_from((1.0, 5.0))))
    scores = state[3].masked_fill(draw(draws.tensors(state[3].shape, torch.bool)), -INF)
    yield call(*state[:3], scores if draw(st.booleans()) else state[3], state[4])


@online_softmax.edge
def _():
    empty = torch.full((2,), -INF), torch.zeros(2), torch.zeros(2, 3)
    hidden, values = torch.full((2, 4), -INF), normal(4, 3)
    yield call(*empty, hidden, values), "nothing so far, and nothing now"
    half = hidden.clone()
    half[0] = normal(4)
    yield call(*empty, half, values), "one row begins, the other has still seen nothing"
    state = (
        torch.tensor([1.0, -INF]),
        torch.tensor([2.0, 0.0]),
        torch.tensor([[1.0, 2, 3], [0, 0, 0]]),
    )
    yield call(*state, hidden, values), "all new keys are masked out"
    yield call(*state, half, values), "a row that begins late"
    yield call(*state, normal(2, 4) + 200, values), "scores whose exponential overflows"
    yield call(*state, normal(2, 4) - 200, values), "scores far below the maximum"
    yield call(*(t.double() for t in (*state, half, values))), "float64"
    yield call(*state, normal(2, 1), values[:1]), "one key"
    batched = normal(2, 2), normal(2, 2).exp(), normal(2, 2, 3)
    layout = draws.scattered(normal(2, 2, 4)), draws.scattered(normal(2, 4, 3))
    yield call(*batched, *layout), "not contiguous"


online_softmax.contract(
    contracts.constant_kernels(
        [
            call(
                torch.zeros(B, T),
                torch.ones(B, T),
                normal(B, T, 4),
                normal(B, T, n),
                normal(B, n, 4),
            )
            for B, T, n in ((2, 3, 2), (6, 3, 2), (6, 12, 24))
        ],
        says="no Python loop over the rows or the keys",
    )
)
online_softmax.slips(
    {
        replace(
            "total * keep", "total"
        ): "You do not rescale the old total. It was summed with the old "
        "maximum: multiply by exp(old − new).",
        replace(
            "output * keep[..., None]", "output"
        ): "You do not rescale the old output. It was summed with "
        "the old maximum: multiply by exp(old − new).",
        replace(
            "(maximum - shift).exp()", "(shift - maximum).exp()"
        ): "Your factor is the wrong way round. "
        "The maximum can only grow, and old sums get smaller: exp(old − new).",
        **{
            replace(
                "torch.maximum(maximum, scores.amax(dim=-1))", new
            ): "Your maximum is that of the new keys alone. It is the largest of all keys so far."
            for new in (
                "scores.amax(dim=-1)",
                "torch.where((top := scores.amax(dim=-1)) == -math.inf, maximum, top)",
            )
        },
        replace(
            "new.masked_fill(new == -math.inf, 0.0)", "new"
        ): "A row that has seen nothing becomes NaN: −inf − (−inf). Subtract 0 there.",
        **{
            replace(
                "output * keep[..., None] + weights @ values",
                f"(output * {old}[..., None] + weights @ values) / total{guard}[..., None]",
                "total = total *",
                "before = total * keep\n    total = total *",
            ): "You divide by the total at each step. The output of a state is a plain sum; it is "
            "divided once, after the last key."
            for old in ("keep", "before")
            for guard in ("", ".masked_fill(total == 0, 1.0)")
        },
        replace(
            "scores.amax(dim=-1))",
            "scores.amax(dim=-1)).clamp_min(torch.finfo(scores.dtype).min)",
        ): "A row that has seen nothing has the maximum −inf. You return the smallest finite number.",
        replace(
            "(scores - shift[..., None])",
            "(scores - scores.amax(-1, True).clamp_min(torch.finfo(scores.dtype).min))",
        ): "You subtract from the new scores the maximum of their own part, also where an earlier one is "
        "larger. Subtract the maximum of all.",
        replace(
            "return new, total, output * keep[..., None] + weights @ values",
            "some = (scores > -math.inf).any(-1)\n"
            "    output = output * keep[..., None] + weights @ values\n"
            "    return new, total * some, output * some[..., None]",
        ): "You set a row to zero whose new keys are all masked out. It may have seen others before: then it "
        "keeps its sums.",
        replace(
            "new.masked_fill(new == -math.inf, 0.0)", "torch.zeros_like(new)"
        ): "You subtract no maximum, so large scores overflow, and the state is relative to 0.",
        replace(
            "scores - shift[..., None]", "scores - shift[..., None].minimum(maximum[..., None])"
        ): "You subtract the old maximum from the new scores. Subtract the new one.",
        replace(
            "(scores - shift[..., None]).exp()", "scores.softmax(dim=-1)"
        ): "You normalise the new keys by "
        "themselves. Their exponentials are added to those of the keys before.",
        replace(
            "return new, total", "return shift, total"
        ): "A row that has seen nothing has the maximum −inf. "
        "You return 0, and a later negative score would be below it.",
        replace(
            "return new, total", "return maximum, total"
        ): "You return the old maximum. The sums are relative to the new one.",
        replace(
            "return new, total, output * keep[..., None] + weights @ values",
            "return total, new, output * keep[..., None] + weights @ values",
        ): "Maximum and total are exchanged in your result.",
        **{
            replace(
                "total = total * keep + weights.sum(dim=-1)",
                "total = total.mul_(keep).add_(weights.sum(dim=-1))",
                *more,
            ): "You write into the old state. Return new tensors."
            for more in (
                (),
                (
                    "output * keep[..., None] + weights @ values",
                    "output.mul_(keep[..., None]).add_(weights @ values)",
                ),
            )
        },
        replace(
            "weights.sum(dim=-1)", "weights.mean(dim=-1)"
        ): "You add the mean of the new exponentials. Add their sum.",
        replace(
            "scores.amax(dim=-1)", "scores.amax()"
        ): "You take one maximum for all rows. Each row has its own: "
        "in a row far below it every exponential would vanish.",
        replace(
            "keep = (maximum - shift).exp()",
            "keep = (maximum - shift).exp().nan_to_num(1.0)",
            "new.masked_fill(new == -math.inf, 0.0)",
            "new",
            "weights = (scores - shift[..., None]).exp()",
            "weights = (scores - shift[..., None]).exp().nan_to_num(1.0)",
        ): "In a row of −inf alone each key counts as 1 in your "
        "sum: the difference from the maximum is no 0 there. Keys that are masked out add nothing.",
    }
)


@online_softmax.mistake(
    "The values are right, but Python goes through the keys. Take all n at once.", cost=True
)
def _(maximum, total, output, scores, values):
    for i in range(scores.size(-1)):
        maximum, total, output = attention.online_softmax(
            maximum, total, output, scores[..., i : i + 1], values[..., i : i + 1, :]
        )
    return maximum, total, output


@online_softmax.alternative("the old keys as one more key, in einsum")
def _(maximum, total, output, scores, values):
    top = torch.cat((maximum.unsqueeze(-1), scores), -1).max(-1).values
    safe = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    old, new = torch.exp(maximum - safe), torch.exp(scores - safe.unsqueeze(-1))
    added = torch.einsum("...tn,...ne->...te", new, values)
    return top, old * total + new.sum(-1), old.unsqueeze(-1) * output + added


# ------------------------------------------------------------------------------ flash_attention_forward

flash_attention_forward = Exercise(
    attention.flash_attention_forward,
    title="Flash attention, forward",
    limit_s=15.0,
    difficulty=3,
    minutes=45,
    points=5,
    length=terms,
    hints=(
        "Two loops: over tiles of queries outside, over tiles of keys inside. The inner one is your "
        "online_softmax, from an empty state.",
        "A tile's queries are positions S − T + i, …; hide what is later. The last key that the tile sees is "
        "that of its last query: stop there.",
        "After the last key: output / total, and maximum + log(total).",
        (
            "edge cases",
            "A row that sees nothing has total 0. Divide by 1 there; −inf + log 0 is −inf by itself.",
        ),
        (
            "contracts",
            "With T = S and n tiles on a side, causal computes n (n + 1) / 2 of the n² tiles.",
        ),
    ),
)


@flash_attention_forward.by_hand
def _():
    q, v = torch.zeros(2, 4), torch.tensor([[1.0], [5.0]])
    k = normal(2, 4)
    whole = torch.tensor([[3.0], [3.0]]), torch.tensor([LOG2, LOG2])
    yield call(q, k, v), whole
    yield call(q, k, v, block_q=1, block_k=1), whole
    causal = torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, LOG2])
    yield call(q, k, v, causal=True), causal
    yield call(q, k, v, causal=True, block_q=1, block_k=1), causal


@flash_attention_forward.cases(30)
def _(draw):
    T, S, d, e = draw(draws.distinct_sizes(4))
    batch = draw(draws.shapes(max_dims=2, among=(1, 2, 3)))
    q, k, v = (draw(draws.tensors((*batch, *size))) for size in ((T, d), (S, d), (S, e)))
    blocks = {"block_q": draw(st.integers(1, 5)), "block_k": draw(st.integers(1, 5))}
    yield call(q, k, v, causal=draw(st.booleans()), **blocks)


def in_tiles(made, case, large):
    """Cases with and without a causal mask, at sizes where tiles fit and where they do not.

    made: gives the tensors of these sizes. case: makes a case of them. large: multiplies them all.
    """
    for causal in (False, True):
        tiles = {"causal": causal, "block_q": 2, "block_k": 3}
        yield case(*made(2, 3, T=7, S=7), **tiles), "tiles that do not fit"
        yield case(*made(2, T=7, S=3), **tiles), "more queries than keys"
        yield case(*made(2, T=2, S=9), **tiles), "queries after a cache"
        yield case(*made(2, 3), causal=causal), "one tile"
        yield case(*made(2, T=1, S=6), **tiles), "one query"
        yield case(*(large * t for t in made(T=6, S=6)), **tiles), "large scores"
        scattered = (draws.scattered(t) for t in made(2, T=5, S=6))
        yield case(*scattered, **tiles), "not contiguous"
        for dtype in (torch.float64, torch.bfloat16):
            yield case(*made(2, T=5, S=5, dtype=dtype), **tiles), str(dtype)
    yield case(*made(0, T=3, S=3), block_q=2, block_k=2), "an empty batch"
    yield case(*made(2, T=0, S=3)), "no query"
    meta = [t.to("meta") for t in made(2, T=3, S=3)]
    yield case(*meta, causal=True), "on another device than the default one"
    first, *others = made(T=3, S=4, dtype=torch.float16)
    yield (
        case(300 * first.sign(), 300 * others[0].sign(), *others[1:]),
        "float16: products beyond it",
    )


@flash_attention_forward.edge
def _():
    yield from in_tiles(qkv, call, large=60)
    query, keys = [[16.0, 2, 0, 0]], [[37.5, 0, 0, 0], [37.5, 1, 0, 0]]
    close = (torch.tensor(rows).bfloat16() for rows in (query, keys, [[1.0], [-1.0]]))
    yield call(*close), "bfloat16, and scores of 300 and 301, which it cannot tell apart"


LONG = {"T": 32, "S": 32, "d": 16, "e": 16}
TILES = {"block_q": 8, "block_k": 8}
OUT = 2 * 32 * 16 * 4
PRODUCT = 2 * 2 * 8 * 8 * 16  # FLOPs of one product of a tile
flash_attention_forward.contract(
    contracts.largest_tensor(
        [call(*qkv(2, **LONG), causal=causal, **TILES) for causal in (False, True)],
        limit=OUT,
        says="for T = S, e = d and small tiles, nothing larger than the result (float32): no T × S tensor",
    )
)
flash_attention_forward.contract(
    contracts.peak(
        [call(*qkv(2, **LONG), **TILES)],
        limit=3 * OUT,
        says="for T = S and e = d, at most three times the bytes of the result are alive at once, itself counted",
    )
)
MORE_QUERIES = LONG | {"T": 64}  # the first 32 of which see nothing
flash_attention_forward.contract(
    contracts.flops(
        [call(*qkv(2, **sizes), causal=True, **TILES) for sizes in (LONG, MORE_QUERIES)],
        limit=10 * 2 * PRODUCT,
        says="with causal, no FLOPs for tiles that are masked out whole; two products for each other tile",
    )
)
SEEN = "min(i + block_q, T) + S - T if causal else S"
HIDDEN = "scores.masked_fill(key > position[:, None], -math.inf)"
SKIPS_FROM_0 = (
    "You skip tiles as if the first query were position 0. It is position S − T: with more keys than queries "
    "you leave out tiles that are seen."
)
ONE_TOO_FAR = (
    "The values are right, but a tile of keys that begins right after the last visible one is computed. The "
    "last visible key of a tile of queries is that of its last query."
)
flash_attention_forward.slips(
    {
        replace(
            "q_i.size(-2), device=q.device",
            "q_i.size(-2)",
            "k_j.size(-2), device=q.device",
            "k_j.size(-2)",
        ): DEVICE,
        replace("q.size(-1) ** -0.5", "v.size(-1) ** -0.5"): NO_SCALE_OF_V,
        replace(SEEN, "min(i + block_q, T, S) if causal else S"): SKIPS_FROM_0,
        **{
            replace(
                "= m + total.log()",
                f"= m.masked_fill(m == -math.inf, 0.0) + total.masked_fill(total == 0, {least}).log()",
            ): "You return a finite number as the logarithm of a row that sees nothing. Its sum is 0, and the "
            "logarithm of that −inf."
            for least in ("torch.finfo(wide).tiny", "1.0")
        },
        replace("* scale", ""): "The scale is missing: the scores are divided by √d.",
        replace(
            HIDDEN, "scores"
        ): "You skip tiles but hide nothing within one. A tile on the diagonal has "
        "keys that are later than some of its queries.",
        replace(
            "device=q.device) + S - T",
            "device=q.device)",
            SEEN,
            "min(i + block_q, T) if causal else S",
        ): "Your first query is position 0. The queries are the last T of the S positions.",
        replace(
            "key > position", "key >= position"
        ): "You hide the query's own position. It sees itself.",
        replace(
            " / total.masked_fill(total == 0, 1.0)[..., None]", ""
        ): "You do not divide by the total. The "
        "state's output is a sum of weighted values; their weights have to sum to one.",
        replace(
            "total.masked_fill(total == 0, 1.0)", "total"
        ): "A row that sees nothing is 0 / 0 in your code. Its result is zeros.",
        replace(
            "= m + total.log()", "= total.log()"
        ): "Your logarithm lacks the maximum: the total is a sum of "
        "exp(score − maximum), so add it.",
        replace(
            "= m + total.log()", "= m"
        ): "You return the maximum. The second result is the logarithm of the "
        "sum, maximum + log(total).",
        replace(
            "= m + total.log()", "= total"
        ): "You return the total. The second result is the logarithm of the "
        "sum, maximum + log(total).",
        replace(
            "= m + total.log()", "= m / scale + total.log()"
        ): "The maximum in your logarithm is that of q · k, without 1 / √d. It must be of the scores that are summed.",
        replace(
            "            m, total, o = online_softmax(m, total, o, scores, v_j)\n",
            "            new = scores.amax(dim=-1)\n"
            "            shift = new.masked_fill(new == -math.inf, 0.0)\n"
            "            weights, keep = (scores - shift[..., None]).exp(), (m - shift).exp()\n"
            "            total, o = total * keep + weights.sum(-1), o * keep[..., None] + weights @ v_j\n"
            "            m = new\n",
        ): "Your maximum is that of the last tile alone. It is the largest of all tiles so far.",
        replace("= m + total.log()", "= m + total.log2()"): "You take the logarithm to base 2.",
        replace(
            "range(0, T, block_q)", "range(0, T - T % block_q, block_q)"
        ): "You leave out the last queries where block_q does not divide T.",
        replace(
            "range(0, seen, block_k)", "range(0, seen - seen % block_k, block_k)"
        ): "You leave out the last keys where block_k does not divide their number.",
        replace(
            "range(0, seen, block_k)", "range(0, seen, block_q)"
        ): "You step through the keys by block_q. Their tiles have block_k.",
        replace(
            SEEN, "i + S - T if causal else S"
        ): "You skip the tile on the diagonal. Its earlier keys are seen.",
        replace(
            SEEN, "i + 1 + S - T if causal else S"
        ): "You stop at the tile's first query. Its last query sees further.",
        replace(
            "torch.promote_types(q.dtype, torch.float32)", "q.dtype"
        ): "You compute in the inputs' dtype. With "
        "bfloat16 the state is kept in float32, and so is the second result.",
        replace(
            "torch.promote_types(q.dtype, torch.float32)",
            "torch.float32 if q.dtype == torch.bfloat16 else q.dtype",
        ): "You compute in float16 where the inputs are. Its products overflow at 65504: use float32 there too.",
        replace(
            "-math.inf, dtype=wide)", "-math.inf)"
        ): "Your second result is rounded to q's dtype. It is float32 where q is bfloat16: backward "
        "takes all weights from it.",
        replace(
            "torch.promote_types(q.dtype, torch.float32)", "torch.float32"
        ): "You compute in float32, also "
        "where the inputs are float64: half of their digits are lost.",
        replace(
            "q.new_zeros(*q.shape[:-1], v.size(-1))",
            "q.new_zeros(*q.shape[:-1], v.size(-1), dtype=wide)",
        ): "Your result is float32 where q is bfloat16. It has q's dtype.",
    }
)
flash_attention_forward.mistake(
    "The values are right, but you compute tiles of which every score is masked out, nearly half of them. "
    "Stop at the last key that the tile's last query sees.",
    replace(SEEN, "S"),
    cost=True,
)
FROM_0 = (
    "The values are right, but with more queries than keys you count the first query as position 0, and compute tiles "
    "of which every score is masked out. It is position S − T, below 0."
)
flash_attention_forward.mistake(
    FROM_0,
    replace(SEEN, "min(S, min(i + block_q, T) + max(S - T, 0)) if causal else S"),
    cost=True,
)
flash_attention_forward.mistake(
    ONE_TOO_FAR,
    replace(SEEN, "min(S, min(i + block_q, T) + S - T + 1) if causal else S"),
    cost=True,
)


@flash_attention_forward.mistake(
    "The values are right, but you make all T × S scores at once. Keep to tiles of block_q × block_k.",
    cost=True,
)
def _(q, k, v, *, causal=False, block_q=64, block_k=64):
    wide = torch.promote_types(q.dtype, torch.float32)
    T, S = q.size(-2), k.size(-2)
    scores = q.to(wide) @ k.to(wide).mT * q.size(-1) ** -0.5
    if causal:
        scores = scores.masked_fill(~attention.causal_mask(T, S).to(q.device), -INF)
    weights = torch.nan_to_num(scores.softmax(-1))
    return (weights @ v.to(wide)).to(q.dtype), scores.logsumexp(-1)


@flash_attention_forward.alternative(
    "key tiles outside, all states kept, as the first FlashAttention has it"
)
def _(q, k, v, *, causal=False, block_q=64, block_k=64):
    wide = torch.promote_types(q.dtype, torch.float32)
    T, S = q.shape[-2], k.shape[-2]
    m = torch.full(q.shape[:-1], -INF, dtype=wide, device=q.device)
    total = torch.zeros_like(m)
    out = torch.zeros((*m.shape, v.shape[-1]), dtype=wide, device=q.device)
    for j in range(0, S, block_k):
        keys, values = k[..., j : j + block_k, :].to(wide), v[..., j : j + block_k, :].to(wide)
        for i in range(0, T, block_q):
            rows = slice(i, min(i + block_q, T))
            if causal and rows.stop - 1 + S - T < j:
                continue
            s = q[..., rows, :].to(wide) @ keys.mT / math.sqrt(q.shape[-1])
            if causal:
                t, u = (
                    torch.arange(i, rows.stop)[:, None] + S - T,
                    torch.arange(j, j + keys.size(-2)),
                )
                s = torch.where((u <= t).to(s.device), s, -INF)
            new = torch.maximum(m[..., rows], s.amax(-1))
            safe = torch.where(new == -INF, 0, new)
            p, keep = torch.exp(s - safe[..., None]), torch.exp(m[..., rows] - safe)
            out[..., rows, :] = out[..., rows, :] * keep[..., None] + p @ values
            total[..., rows] = total[..., rows] * keep + p.sum(-1)
            m[..., rows] = new
    out = out.div_(torch.where(total > 0, total, 1)[..., None])
    return out.to(q.dtype), m + total.log()


# ------------------------------------------------------------------------------ flash_attention_backward

flash_attention_backward = Exercise(
    attention.flash_attention_backward,
    title="Flash attention, backward",
    limit_s=15.0,
    difficulty=3,
    minutes=60,
    points=6,
    length=terms,
    hints=(
        "The weights of a tile come back without any softmax: p = exp(scores − logsumexp of the row).",
        "dv of a key is the sum of p · grad_out over the queries. dp = grad_out vᵀ is the gradient with "
        "respect to the weights.",
        "Softmax's backward needs for each row Σ p · dp over all keys, and that is Σ grad_out · out over the "
        "features: one number a row, before the loops.",
        "ds = p · (dp − row sum) · scale; dq adds ds k, dk adds dsᵀ q.",
        (
            "edge cases",
            "In a row that sees nothing −inf − (−inf) is NaN. Put zeros into p where the mask hides, after exp.",
        ),
        ("contracts", "Five products a tile: scores, dv, dp, dq, dk."),
    ),
)


def backward_case(q, k, v, grad_out, **kwargs):
    out, logsumexp = attention.flash_attention_forward(q, k, v, **kwargs)
    return call(grad_out, q, k, v, out, logsumexp, **kwargs)


@flash_attention_backward.by_hand
def _():
    q = torch.zeros(1, 4)
    k = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    v = torch.tensor([[1.0], [5.0]])
    dq = torch.tensor([[-1.0, 0, 0, 0]])  # weights 1/2; ds = 1/2 · (1 − 3, 5 − 3) / 2
    expected = dq, torch.zeros(2, 4), torch.tensor([[0.5], [0.5]])
    yield backward_case(q, k, v, torch.ones(1, 1)), expected
    yield backward_case(q, k, v, torch.ones(1, 1), block_k=1), expected
    q = torch.zeros(2, 4)
    expected = torch.cat((0 * dq, dq)), torch.zeros(2, 4), torch.tensor([[1.5], [0.5]])
    yield backward_case(q, k, v, torch.ones(2, 1), causal=True, block_q=1, block_k=1), expected


@flash_attention_backward.cases(30)
def _(draw):
    T, S, d, e = draw(draws.distinct_sizes(4))
    batch = draw(draws.shapes(max_dims=2, among=(1, 2, 3)))
    sizes = (T, d), (S, d), (S, e), (T, e)
    tensors = (draw(draws.tensors((*batch, *size))) for size in sizes)
    blocks = {"block_q": draw(st.integers(1, 5)), "block_k": draw(st.integers(1, 5))}
    yield backward_case(*tensors, causal=draw(st.booleans()), **blocks)


def given(*batch, e=2, **sizes):
    """Queries, keys, values, and a gradient of the result."""
    q, k, v = qkv(*batch, e=e, **sizes)
    return q, k, v, normal(*q.shape[:-1], e, dtype=q.dtype, seed=3)


@flash_attention_backward.edge
def _():
    yield from in_tiles(given, backward_case, large=6)
    ones, signs = torch.ones(1000, 1).bfloat16(), torch.ones(800, 1).bfloat16()
    signs[::2] = -1
    many = backward_case(ones, 0 * signs[:2], signs[:2], ones, block_q=1)
    yield many, "bfloat16, and keys seen from 1000 tiles: a sum that bfloat16 cannot hold"
    many = backward_case(0 * ones[:1], signs, signs, ones[:1], block_k=1)
    yield many, "bfloat16, and a query that sees 800 tiles: a sum that bfloat16 cannot hold"


flash_attention_backward.contract(
    contracts.largest_tensor(
        [backward_case(*given(2, **LONG), causal=causal, **TILES) for causal in (False, True)],
        limit=OUT,
        says="for T = S, e = d and small tiles, nothing larger than a gradient (float32): no T × S tensor",
    )
)
flash_attention_backward.contract(
    contracts.peak(
        [backward_case(*given(2, **LONG), **TILES)],
        limit=6 * OUT,
        says="for T = S and e = d, at most six times the bytes of q are alive at once, the three gradients counted",
    )
)
flash_attention_backward.contract(
    contracts.flops(
        [backward_case(*given(2, **sizes), causal=True, **TILES) for sizes in (LONG, MORE_QUERIES)],
        limit=10 * 5 * PRODUCT + 2 * 2 * 64 * 16,  # and the row sums, if they are made by a product
        says="with causal, no FLOPs for tiles that are masked out whole; five products for each other tile",
    )
)
DS = "p * (dp - row_sums[..., rows, :]) * scale"
flash_attention_backward.slips(
    {
        **{
            replace(
                *edit
            ): "You sum the tiles in the inputs' dtype. In bfloat16 256 + 1 is 256, so a sum over many tiles "
            "stands still: sum in float32 and round once."
            for edit in (
                ("torch.zeros_like(t, dtype=wide)", "torch.zeros_like(t)"),
                ("    row_sums =", "    dq = dq.to(q.dtype)\n    row_sums ="),
                ("    row_sums =", "    dk, dv = dk.to(k.dtype), dv.to(v.dtype)\n    row_sums ="),
            )
        },
        **{
            replace(
                product, f"{product} * scale"
            ): "The gradient of q or of k is multiplied by the scale twice. It is in ds already: multiply "
            "that with q and k as they came."
            for product in ("ds.transpose(-2, -1) @ q_i", "ds @ k_j")
        },
        replace("q.size(-1) ** -0.5", "v.size(-1) ** -0.5"): NO_SCALE_OF_V,
        replace(SEEN, "min(i + block_q, T, S) if causal else S"): SKIPS_FROM_0,
        replace(
            "keys = slice(",
            "if causal and i < j // block_q * block_q:\n                continue\n            keys = slice(",
        ): SKIPS_FROM_0,
        replace(
            "q_i.size(-2), device=q.device",
            "q_i.size(-2)",
            "k_j.size(-2), device=q.device",
            "k_j.size(-2)",
        ): DEVICE,
        replace(
            "k_j.transpose(-2, -1) * scale", "k_j.transpose(-2, -1)"
        ): "The scale is missing in the scores: the weights come out wrong.",
        replace(
            DS, "p * (dp - row_sums[..., rows, :])"
        ): "The scale is missing in the gradient of q and k. The "
        "scores are scale · q kᵀ, so ds is multiplied by it too.",
        **{
            replace(
                DS, "p * (dp - row_sums[..., rows, :])", other, f"{other} * scale"
            ): f"The scale is missing in the gradient of {name}. The scores are scale · q kᵀ, so both "
            "gradients are multiplied by it."
            for name, other in (("k", "ds @ k_j"), ("q", "ds.transpose(-2, -1) @ q_i"))
        },
        replace(
            DS, "p * (dp - (p * dp).sum(dim=-1, keepdim=True)) * scale"
        ): "Your row sum is over the keys of one tile. Σ p · dp is over all keys of the row, and that "
        "is Σ grad_out · out.",
        replace(
            DS, "p * dp * scale"
        ): "You leave out the row's sum. Raising one score lowers the other weights of "
        "the row, and that is the term Σ p · dp.",
        replace(
            DS, "(p * dp - row_sums[..., rows, :]) * scale"
        ): "The row's sum is multiplied by p as well: p · (dp − sum).",
        replace(DS, "p * (dp + row_sums[..., rows, :]) * scale"): "The row's sum is subtracted.",
        replace(
            "(grad_out.to(wide) * out.to(wide))", "(grad_out.to(wide) * grad_out.to(wide))"
        ): "Your row sums "
        "multiply grad_out with itself. It is Σ grad_out · out, over the features.",
        replace(
            "p.transpose(-2, -1) @ do_i",
            "ds_.transpose(-2, -1) @ do_i",
            "            dv[",
            "            ds_ = p * scale\n            dv[",
        ): "dv has no scale. The values are summed with the weights themselves.",
        replace(
            "dv[..., keys, :] +=", "dv[..., keys, :] ="
        ): "You overwrite dv. A key is seen by the queries of several tiles: add.",
        replace(
            "dk[..., keys, :] +=", "dk[..., keys, :] ="
        ): "You overwrite dk. A key is seen by the queries of several tiles: add.",
        replace(
            "dq[..., rows, :] +=", "dq[..., rows, :] ="
        ): "You overwrite dq. A query sees the keys of several tiles: add.",
        replace(
            "p.masked_fill(key > position[:, None], 0.0)", "p"
        ): "You hide nothing within a tile. A tile on "
        "the diagonal has keys that are later than some of its queries: their weights are 0.",
        replace(
            "p = (scores - logsumexp[..., rows, None]).exp()\n            if causal:",
            "if causal:",
            "p = p.masked_fill(key > position[:, None], 0.0)",
            "scores = scores.masked_fill(key > position[:, None], -math.inf)\n            p = (scores - logsumexp[..., rows, None]).exp()",
        ): "A row that sees nothing becomes NaN: "
        "−inf − (−inf). Put zeros into the weights, after exp.",
        replace(
            "device=q.device) + S - T",
            "device=q.device)",
            SEEN,
            "min(i + block_q, T) if causal else S",
        ): "Your first query is position 0. The queries are the last T of the S positions.",
        replace(
            "(scores - logsumexp[..., rows, None]).exp()", "scores.softmax(dim=-1)"
        ): "You take a softmax over "
        "the tile's keys. The weights are exp(score − logsumexp), over all keys.",
        replace(
            "range(0, T, block_q)", "range(0, T - T % block_q, block_q)"
        ): "You leave out the last queries where block_q does not divide T.",
        replace(
            "range(0, seen, block_k)", "range(0, seen - seen % block_k, block_k)"
        ): "You leave out the last keys where block_k does not divide their number.",
        replace(
            "torch.promote_types(q.dtype, torch.float32)",
            "torch.float32 if q.dtype == torch.bfloat16 else q.dtype",
        ): "You compute in float16 where the inputs are. Its products overflow at 65504: use float32 there too.",
        replace(
            "return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)", "return dq, dk, dv"
        ): "Your gradients are "
        "float32 where the inputs are bfloat16. A gradient has the dtype of its input.",
        replace(
            "torch.promote_types(q.dtype, torch.float32)", "torch.float32"
        ): "You compute in float32, also "
        "where the inputs are float64: half of their digits are lost.",
        replace(
            "return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)",
            "return dk.to(k.dtype), dq.to(q.dtype), dv.to(v.dtype)",
        ): "The gradients of q and k are exchanged.",
    }
)
flash_attention_backward.mistake(
    "The values are right, but you compute tiles of which every weight is 0. Stop at the last key that the "
    "tile's last query sees, as forward does.",
    replace(SEEN, "S"),
    cost=True,
)
flash_attention_backward.mistake(
    FROM_0,
    replace(SEEN, "min(S, min(i + block_q, T) + max(S - T, 0)) if causal else S"),
    cost=True,
)
flash_attention_backward.mistake(
    ONE_TOO_FAR,
    replace(SEEN, "min(S, min(i + block_q, T) + S - T + 1) if causal else S"),
    cost=True,
)


@flash_attention_backward.mistake(
    "The values are right, but you go over all tiles twice, first for the row sums Σ p · dp: seven products a "
    "tile. The same sums are Σ grad_out · out over the features, without any tile.",
    cost=True,
)
def _(grad_out, q, k, v, out, logsumexp, *, causal=False, block_q=64, block_k=64):
    T, S = q.size(-2), k.size(-2)
    for i in range(0, T, block_q):
        for j in range(0, min(i + block_q, T) + S - T if causal else S, block_k):
            for rows, columns in ((q, k), (grad_out, v)):
                rows[..., i : i + block_q, :] @ columns[..., j : j + block_k, :].mT
    tiles = {"causal": causal, "block_q": block_q, "block_k": block_k}
    return attention.flash_attention_backward(grad_out, q, k, v, out, logsumexp, **tiles)


@flash_attention_backward.mistake(
    "The values are right, but you make all T × S weights at once. Keep to tiles of block_q × block_k.",
    cost=True,
)
def _(grad_out, q, k, v, out, logsumexp, *, causal=False, block_q=64, block_k=64):
    return attention.flash_attention_backward(
        grad_out,
        q,
        k,
        v,
        out,
        logsumexp,
        causal=causal,
        block_q=max(q.size(-2), 1),
        block_k=k.size(-2),
    )


@flash_attention_backward.mistake(
    "The values are right, but you compute forward again to have autograd differentiate it: more products "
    "than five a tile. Forward's two results are enough.",
    cost=True,
)
def _(grad_out, q, k, v, out, logsumexp, *, causal=False, block_q=64, block_k=64):
    tiles = {"causal": causal, "block_q": block_q, "block_k": block_k}
    with torch.enable_grad():
        leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        again, _ = attention.flash_attention_forward(*leaves, **tiles)
        if again.requires_grad:
            torch.autograd.grad(again, leaves, grad_out, allow_unused=True)
    return attention.flash_attention_backward(grad_out, q, k, v, out, logsumexp, **tiles)


@flash_attention_backward.alternative(
    "key tiles outside, as the second FlashAttention has it, in einsum"
)
def _(grad_out, q, k, v, out, logsumexp, *, causal=False, block_q=64, block_k=64):
    wide = torch.promote_types(q.dtype, torch.float32)
    G, Q, K, V = (t.to(wide) for t in (grad_out, q, k, v))
    T, S, scale = q.shape[-2], k.shape[-2], 1 / math.sqrt(q.shape[-1])
    delta = torch.einsum("...e,...e->...", G, out.to(wide))
    dq, dks, dvs = torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V)
    for j in range(0, S, block_k):
        b = slice(j, min(j + block_k, S))
        for i in range(0, T, block_q):
            a = slice(i, min(i + block_q, T))
            if causal and a.stop - 1 + S - T < j:
                continue
            s = torch.einsum("...td,...sd->...ts", Q[..., a, :], K[..., b, :]) * scale
            lse = logsumexp[..., a].unsqueeze(-1)
            p = torch.where(
                torch.isneginf(lse), 0, torch.exp(s - torch.nan_to_num(lse, neginf=0.0))
            )
            if causal:
                t, u = torch.arange(a.start, a.stop) + S - T, torch.arange(b.start, b.stop)
                p = p * (u[None, :] <= t[:, None]).to(p.device)
            dvs[..., b, :] += torch.einsum("...ts,...te->...se", p, G[..., a, :])
            dp = torch.einsum("...te,...se->...ts", G[..., a, :], V[..., b, :])
            ds = p * (dp - delta[..., a].unsqueeze(-1)) * scale
            dq[..., a, :] += torch.einsum("...ts,...sd->...td", ds, K[..., b, :])
            dks[..., b, :] += torch.einsum("...ts,...td->...sd", ds, Q[..., a, :])
    return dq.to(q.dtype), dks.to(k.dtype), dvs.to(v.dtype)


# ------------------------------------------------------------------------------ mutants that compute the same

for name, other in (
    ("apply_rope", "x"),
    ("flash_attention_forward", "q"),
    ("flash_attention_backward", "q"),
):
    globals()[name].equivalent(
        f"{name}: `torch.promote_types({other}.dtype, torch.float32)` → "
        f"`torch.promote_types(torch.float32, {other}.dtype)`",
        because="the wider of two dtypes does not depend on their order",
    )
apply_rope.equivalent(
    "apply_rope: `x.size(-1) // 2` → `x.size(-1) / 2`",
    because="d is even, and arange(3.0) of a given dtype is arange(3)",
)
online_softmax.equivalent(
    "online_softmax: `new.masked_fill(new == -math.inf, 0.0)` → `new.masked_fill(new == -math.inf, 1.0)`",
    because="−inf minus any number is −inf, whose exponential is 0",
)
for mutant, because in {
    "`q.new_zeros(*q.shape[:-1], v.size(-1))` → `q.new_ones(*q.shape[:-1], v.size(-1))`": "every row of "
    "the result is written",
    "`-math.inf` → `math.inf` [#1]": "every element of the second result is written",
    "`q_i.shape[:-1]` → `q_i.shape[:0]`": "one number for all rows broadcasts, and the first tile of keys "
    "makes it one for each",
    "`torch.zeros_like(m)` → `torch.ones_like(m)`": "the first tile of keys multiplies the total by "
    "exp(−inf), which is 0; without any tile the output is 0, whatever divides it, and −inf stays −inf",
    "`total.masked_fill(total == 0, 1.0)` → `total.masked_fill(total == 0, 2.0)`": "where the total is 0 "
    "the output is 0, whatever divides it",
}.items():
    flash_attention_forward.equivalent(f"flash_attention_forward: {mutant}", because=because)
for factor in ("grad_out", "out"):
    flash_attention_backward.equivalent(
        f"flash_attention_backward: `{factor}.to(wide)` → `{factor}`",
        because="the other factor is wide, and torch computes a product in the wider dtype of the two",
    )
