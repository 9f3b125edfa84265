"""Chapter 1's exercises: what each is asked on, and the mistakes it knows."""

import math

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.reference import tensors

NAN, INF = float("nan"), float("inf")


def tokens(draw, B, T, pad_id, shortest=0):
    """(B, T) right-padded ids that repeat and include 0, and the lengths of their rows."""
    lengths = draw(draws.indices((B,), T + 1, shortest))
    ids = draw(draws.indices((B, T), 6))
    ids = torch.where(ids == pad_id, ids + 1, ids)
    return ids.masked_fill(torch.arange(T) >= lengths[:, None], pad_id), lengths


def normal(*shape, dtype=torch.float32, seed=0):
    """Fixed standard normal numbers for cases without draws."""
    drawn = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=drawn).to(dtype)


def integers(high, *shape, seed=0):
    """Fixed int64 numbers from 0 to high - 1."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def nbytes(*shape, size=4):
    """Bytes of a tensor of this shape, float32 unless `size` says otherwise."""
    return math.prod(shape) * size


# ------------------------------------------------------------------------------ sequence_lengths

sequence_lengths = Exercise(
    tensors.sequence_lengths,
    title="Lengths of padded rows",
    difficulty=1,
    minutes=2,
    points=1,
    hints=(
        "`ids != pad_id` is a tensor of the same shape, True at each real token.",
        "Summing booleans counts the True ones; `dim=1` sums along each row.",
    ),
)


@sequence_lengths.by_hand
def _():
    ids = torch.tensor([[5, 3, 8, 1], [7, 2, 9, 9]])
    yield call(ids, 9), torch.tensor([4, 2])


@sequence_lengths.cases
def _(draw):
    B, T = draw(draws.distinct_sizes(2))
    pad_id = draw(st.sampled_from([0, 3, 50256]))
    yield call(tokens(draw, B, T, pad_id)[0], pad_id)


@sequence_lengths.edge
def _():
    yield call(torch.full((2, 3), 9), 9), "nothing but padding"
    yield call(torch.tensor([[0, 0, 4]]), 9), "the id 0 is a real token here"
    yield call(torch.tensor([[9, 9, 4, 7]]), 9), "padding on the left: the count is the same"
    yield call(torch.empty(0, 3, dtype=torch.int64), 9), "an empty batch"
    yield call(torch.empty(2, 0, dtype=torch.int64), 9), "rows without a position"
    yield call(torch.tensor([[1, 2], [3, -1], [-1, -1]]).T.contiguous().T, -1), "not contiguous"
    yield call(torch.tensor([[4, 9, 9]], dtype=torch.int32), 9), "int32 ids"
    real = torch.arange(5000) < torch.tensor([255, 256, 327, 2049, 4099, 4999])[:, None]
    yield call(torch.where(real, 1, 9), 9), "more tokens than eight bits or float16 can count"


sequence_lengths.mistake(
    "You counted the padding. The real tokens are where ids != pad_id.", replace("!=", "==")
)
sequence_lengths.mistake(
    "You summed down the columns: dim is the axis that disappears, so dim=1 leaves one number a row.",
    replace("dim=1", "dim=0"),
)
sequence_lengths.mistake(
    "You counted ids other than 0. Padding is whatever pad_id says (GPT-2's is 50256), and 0 may "
    "be a token like any other.",
    replace("!= pad_id", "!= 0"),
)
sequence_lengths.mistake(
    "You counted the whole batch; each row has a length of its own: dim=1.", replace("dim=1", "")
)
sequence_lengths.mistake(
    "One axis too many: without keepdim=True the summed axis disappears.",
    replace("dim=1", "dim=1, keepdim=True"),
)


@sequence_lengths.alternative("a loop over the rows")
def _(ids, pad_id):
    return torch.tensor([sum(t != pad_id for t in row) for row in ids.tolist()], dtype=torch.int64)


@sequence_lengths.alternative("count_nonzero")
def _(ids, pad_id):
    return torch.count_nonzero(ids - pad_id, dim=1)


sequence_lengths.equivalent(
    "sequence_lengths: `(ids != pad_id).sum(dim=1)` → `(ids != pad_id).sum(dim=-1)`",
    because="ids has two axes, so 1 and -1 name the same one.",
)


# ------------------------------------------------------------------------------ last_token_states

last_token_states = Exercise(
    tensors.last_token_states,
    title="States of the last tokens",
    difficulty=1,
    minutes=5,
    points=2,
    gradients=("hidden",),
    hints=(
        "For one row b it is hidden[b, lengths[b] - 1]. Now give both indices as tensors.",
        "Two index tensors of the same shape are walked in step: x[rows, columns] picks "
        "x[rows[i], columns[i]]. Which `rows` go with the columns lengths - 1?",
        ("contracts", "torch.arange(B) is the rows: hidden[torch.arange(B), lengths - 1]."),
    ),
)


@last_token_states.by_hand
def _():
    hidden = torch.arange(12.0).view(2, 3, 2)
    yield call(hidden, torch.tensor([3, 1])), torch.tensor([[4.0, 5.0], [6.0, 7.0]])


@last_token_states.cases
def _(draw):
    B, T, D = draw(draws.distinct_sizes(3))
    hidden = draw(draws.tensors((B, T, D)))
    yield call(hidden, draw(draws.indices((B,), T + 1, 1)))


@last_token_states.edge
def _():
    ones = torch.tensor([1, 1])
    yield call(normal(1, 4, 3), torch.tensor([4])), "one sequence, no padding"
    yield call(normal(2, 1, 3), ones), "one position"
    yield call(normal(0, 4, 3), torch.empty(0, dtype=torch.int64)), "an empty batch"
    yield call(normal(4, 3, 2).transpose(0, 1), torch.tensor([4, 2, 1])), "not contiguous"
    yield call(normal(3, 4, 2, dtype=torch.bfloat16), torch.tensor([2, 4, 1])), "bfloat16"
    spoiled = normal(2, 4, 3)
    spoiled[0, 2:], spoiled[1, 1:] = NAN, INF
    yield call(spoiled, torch.tensor([2, 1])), "NaN and infinity in the padding"
    yield call(spoiled, torch.tensor([3, 4])), "NaN and infinity are the last states themselves"
    yield call(normal(3, 4, 2, dtype=torch.float64), torch.tensor([2, 4, 1])), "float64"


last_token_states.contract(
    contracts.constant_kernels(
        [
            call(normal(2, 8, 16), torch.tensor([3, 8])),
            call(normal(64, 8, 16), integers(8, 64) + 1),
            call(normal(64, 12, 24), integers(12, 64) + 1),
        ],
        says="no Python loop over the batch, the positions or the features",
    )
)
last_token_states.contract(
    contracts.largest_tensor(
        [call(normal(64, 8, 16), integers(8, 64) + 1)],
        limit=nbytes(64, 8, 16),
        says="nothing larger than `hidden` itself",
    )
)
last_token_states.mistake(
    "You took the last position of every row. In a short row that is padding: its last token is at "
    "lengths - 1.",
    replace("rows, lengths - 1", ":, -1"),
)
last_token_states.mistake(
    "You indexed with lengths itself: positions count from 0, so the last token is at lengths - 1.",
    replace("lengths - 1", "lengths"),
)
last_token_states.mistake(
    "`:` takes every row, then lengths - 1 picks columns for all of them: B × B states. To walk "
    "rows and columns in step, give the rows as an index tensor too.",
    replace("rows, lengths", ":, lengths"),
)
last_token_states.mistake(
    "You took the first token's state, not the last one's.", replace("rows, lengths - 1", ":, 0")
)
last_token_states.mistake(
    "You used the longest row's length for all rows; each has a last token of its own.",
    replace("lengths - 1", "lengths.max() - 1"),
)


@last_token_states.mistake(
    "The values are right, but Python goes through the batch, one sequence at a time (or takes the "
    "lengths out of torch). Integer indexing does the whole batch in one kernel.",
    cost=True,
)
def _(hidden, lengths):
    states = [hidden[b, n - 1] for b, n in enumerate(lengths)]
    return torch.stack(states) if states else hidden[:, 0]


@last_token_states.mistake(
    "The values are right, but hidden[:, lengths - 1] makes a (B, B, D) tensor of which you keep "
    "the diagonal. Give the rows as an index too, and only B states are read.",
    cost=True,
)
def _(hidden, lengths):
    return hidden[:, lengths - 1].diagonal(dim1=0, dim2=1).T


@last_token_states.alternative("gather with an expanded index")
def _(hidden, lengths):
    index = (lengths - 1)[:, None, None].expand(-1, 1, hidden.size(2))
    return hidden.gather(1, index)[:, 0]


@last_token_states.alternative("a boolean mask with one True a row")
def _(hidden, lengths):
    return hidden[torch.arange(hidden.size(1)) == lengths[:, None] - 1]


last_token_states.equivalent(
    "last_token_states: `torch.arange(hidden.size(0), device=hidden.device)` → `torch.arange(hidden.size(0))`",
    because="An index tensor may live on the CPU whatever the device of what it indexes; torch moves it.",
)


# ----------------------------------------------------------------------- padding_to_attention_mask

padding_to_attention_mask = Exercise(
    tensors.padding_to_attention_mask,
    title="From padding to an attention mask",
    difficulty=1,
    minutes=5,
    points=2,
    hints=(
        "Two things change: True must mean *may be attended to*, and two axes of size one appear.",
        "Broadcasting lines shapes up from the right. The scores are (B, heads, queries, keys), and "
        "padding is about keys, so T goes last.",
        "None in an index adds an axis of size one: x[:, None, None, :].",
    ),
)


@padding_to_attention_mask.by_hand
def _():
    padding = torch.tensor([[False, False, True]])
    yield call(padding), torch.tensor([[[[True, True, False]]]])


@padding_to_attention_mask.cases
def _(draw):
    B, T = draw(draws.distinct_sizes(2))
    yield call(torch.arange(T) >= draw(draws.indices((B,), T + 1))[:, None])


@padding_to_attention_mask.edge
def _():
    yield call(torch.tensor([[True]])), "one position, padded"
    yield call(torch.zeros(3, 3, dtype=torch.bool)), "no padding, B equal to T"
    yield call(torch.arange(3) >= torch.tensor([[2], [1], [3]])), "B equal to T, rows that differ"
    yield call(torch.ones(3, 2, dtype=torch.bool)), "nothing but padding"
    yield call(torch.zeros(0, 4, dtype=torch.bool)), "an empty batch"
    yield call(torch.tensor([[False, True], [True, True], [False, False]]).T), "not contiguous"


padding_to_attention_mask.mistake(
    "The mask is upside down: the argument is True at padding, the result must be True at the keys "
    "that may be attended to. This one attends to nothing but padding.",
    replace("~", ""),
)
padding_to_attention_mask.mistake(
    "T stands in the axis of the queries. Scores are (B, heads, queries, keys), and it is the keys "
    "that must be hidden: (B, 1, 1, T).",
    replace("None, None, :", "None, :, None"),
)
padding_to_attention_mask.mistake(
    "(B, 1, T) has three axes. Against (B, heads, queries, keys) it would line B up with the heads.",
    replace("None, None", "None"),
)
padding_to_attention_mask.mistake(
    "This is an additive mask (0 and minus infinity, to be added to the scores). Here a boolean one "
    "is asked for.",
    replace("~padding", "torch.zeros(padding.shape).masked_fill(padding, -math.inf)"),
)
padding_to_attention_mask.mistake(
    "You wrote the axis of the queries out in full. Size one is enough, since broadcasting repeats "
    "it: (B, 1, 1, T), not (B, 1, T, T).",
    replace(":]", ":].expand(-1, -1, padding.size(1), -1)"),
)


@padding_to_attention_mask.alternative("unsqueeze and a comparison")
def _(padding):
    return padding.unsqueeze(1).unsqueeze(2) == 0


# ---------------------------------------------------------------------------------- causal_mask

causal_mask = Exercise(
    tensors.causal_mask,
    title="The causal mask",
    difficulty=1,
    minutes=8,
    points=2,
    hints=(
        "With T = S it is the lower triangle, diagonal included: tril of a matrix of ones.",
        "Query i stands at position S - T + i, since the queries are the last T positions.",
        "tril(diagonal=k) keeps column j of row i where j - i ≤ k.",
    ),
)


@causal_mask.by_hand
def _():
    yield (
        call(3, 3),
        torch.tensor([[True, False, False], [True, True, False], [True, True, True]]),
    )
    yield call(2, 4), torch.tensor([[True, True, True, False], [True, True, True, True]])


@causal_mask.cases(20)
def _(draw):
    T = draw(draws.sizes(1, 6))
    yield call(T, T + draw(draws.sizes(0, 4)))


@causal_mask.edge
def _():
    yield call(1, 1), "one query, one key"
    yield call(1, 7), "one new token after six in the cache: it may see all"
    yield call(0, 3), "no query"


causal_mask.contract(
    contracts.constant_kernels([call(4, 6), call(64, 96)], says="no Python loop over the rows")
)
causal_mask.mistake(
    "Your triangle starts in the upper left corner. The queries are the last T positions, so when "
    "S > T the first of them may already see S - T earlier keys.",
    replace("diagonal=S - T", ""),
)
causal_mask.mistake(
    "A token may attend to itself: the diagonal belongs to the mask. Yours leaves the first token "
    "nothing to attend to, and its softmax would be NaN.",
    replace("S - T", "S - T - 1"),
)
causal_mask.mistake(
    "Upside down: this is True where attention is forbidden (the convention of masked_fill). Here "
    "True means allowed.",
    replace("tril(diagonal=S - T)", "triu(diagonal=S - T + 1)"),
)
causal_mask.mistake(
    "The right triangle in float32. A mask of this kind is torch.bool.",
    replace(", dtype=torch.bool", ""),
)
causal_mask.mistake(
    "The sign is reversed: diagonal = S - T moves the edge to the right.", replace("S - T", "T - S")
)


@causal_mask.mistake(
    "The values are right, but a Python loop fills the mask row by row. tril, or one comparison of "
    "two aranges, makes it at once.",
    cost=True,
)
def _(T, S):
    mask = torch.zeros(T, S, dtype=torch.bool)
    for i in range(T):
        mask[i, : S - T + i + 1] = True
    return mask


@causal_mask.mistake(
    "The values are right, but Python computes T × S of them one at a time, and torch only copies the "
    "list. For a context of 8,192 that is 67 million steps.",
    cost=True,
)
def _(T, S):
    rows = [[j <= i + S - T for j in range(S)] for i in range(T)]
    return torch.tensor(rows, dtype=torch.bool).reshape(T, S)


@causal_mask.alternative("compare positions, broadcast")
def _(T, S):
    return torch.arange(S) <= torch.arange(S - T, S)[:, None]


@causal_mask.alternative("the last rows of a square triangle, from triu")
def _(T, S):
    return ~torch.ones(S, S).triu(1).bool()[S - T :]


# ---------------------------------------------------------------------------------- masked_mean

masked_mean = Exercise(
    tensors.masked_mean,
    title="A mean that ignores padding",
    difficulty=2,
    minutes=12,
    points=3,
    gradients=("x",),
    hints=(
        "Sum over the kept positions, then divide by how many there are in each row.",
        "For the division to broadcast, the count must be (B, 1): keepdim=True.",
        (
            "edge cases",
            "0 · NaN is NaN. torch.where chooses instead of multiplying. And what should a row with "
            "a count of 0 be divided by?",
        ),
    ),
)


@masked_mean.by_hand
def _():
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]])
    yield call(x, torch.tensor([[True, True, False]])), torch.tensor([[2.0, 4.0]])


@masked_mean.cases
def _(draw):
    B, T, D = draw(draws.distinct_sizes(3))
    lengths = draw(draws.indices((B,), T + 1, 1))
    yield call(draw(draws.tensors((B, T, D))), torch.arange(T) < lengths[:, None])


@masked_mean.edge
def _():
    keep = torch.tensor([[True, True, False, False], [True, False, False, False]])
    spoiled = normal(2, 4, 3)
    spoiled[0, 3], spoiled[1, 1:] = NAN, INF
    yield call(spoiled, keep), "NaN and infinity in the padding"
    yield (
        call(normal(2, 3, 4), torch.tensor([[True, False, True], [False] * 3])),
        "a row without tokens",
    )
    yield call(normal(1, 1, 1), torch.tensor([[True]])), "one number"
    yield call(normal(0, 3, 2), torch.ones(0, 3, dtype=torch.bool)), "an empty batch"
    yield (
        call(normal(2, 5, 3, dtype=torch.bfloat16), torch.arange(5) < torch.tensor([[5], [3]])),
        "bfloat16",
    )
    yield (
        call(normal(3, 2, 4).transpose(0, 1), torch.arange(3) < torch.tensor([[1], [3]])),
        "not contiguous",
    )
    whole = torch.ones(2, 4, dtype=torch.bool)
    yield call(spoiled, whole), "NaN and infinity at positions that are kept"
    yield call(normal(2, 5, 3, dtype=torch.float64), whole[:, :1].expand(2, 5)), "float64"
    yield (
        call(normal(2, 300, 2), torch.arange(300) < torch.tensor([[299], [257]])),
        "more positions than eight bits can count",
    )
    gaps = torch.tensor([[False, True, False, True]])
    yield call(normal(1, 4, 2), gaps), "the kept positions are not the first ones"


masked_mean.mistake(
    "You multiplied by the mask. 0 · NaN is NaN and 0 · inf is NaN, so what stands in the padding "
    "leaks into the mean; torch.where or masked_fill chooses instead.",
    replace("torch.where(keep[:, :, None], x, 0.0)", "(x * keep[:, :, None])"),
)
masked_mean.mistake(
    "You divided by T: the padding counts as zeros and pulls the mean of short rows towards zero.",
    replace("total / count", "total / x.size(1)"),
)
masked_mean.mistake(
    "A row that keeps nothing is 0 / 0 = NaN. Its count must be raised to 1 before you divide.",
    replace(".clamp(min=1)", ""),
)
masked_mean.mistake(
    "You divided by the number of tokens in the whole batch. Each row has a count of its own.",
    replace("keep.sum(dim=1, keepdim=True)", "keep.sum()"),
)
masked_mean.mistake(
    "The mask is not used: this is the mean over all T positions, padding included.",
    replace("total / count", "x.mean(dim=1)"),
)
masked_mean.mistake(
    "Your result is float32 whatever came in. A mean has its argument's dtype: bfloat16 stays so.",
    replace("x, 0.0", "x.float(), 0.0"),
)


@masked_mean.alternative("masked_fill, float64 inside")
def _(x, keep):
    total = x.double().masked_fill(~keep.unsqueeze(-1), 0.0).sum(1)
    return (total / keep.sum(1).clamp(min=1).unsqueeze(-1)).to(x.dtype)


@masked_mean.alternative("a loop over the rows")
def _(x, keep):
    rows = [
        r[k].mean(0) if k.any() else 0.0 * r.nan_to_num(0.0, 0.0, 0.0).sum(0)
        for r, k in zip(x, keep, strict=True)
    ]
    return torch.stack(rows) if rows else x.sum(1)


masked_mean.equivalent(
    "masked_mean: `keep.sum(dim=1, keepdim=True)` → `keep.sum(dim=-1, keepdim=True)`",
    because="keep has two axes, so 1 and -1 name the same one.",
)


# ----------------------------------------------------------------------------- one_hot_by_scatter

one_hot_by_scatter = Exercise(
    tensors.one_hot_by_scatter,
    title="One-hot by scatter",
    difficulty=2,
    minutes=10,
    points=3,
    hints=(
        "Start from zeros of shape (B, T, vocab_size), and write a 1.0 at one place in each row.",
        "zeros.scatter_(dim, index, value) wants an index with as many axes as zeros has: (B, T, 1).",
        ("contracts", "An identity matrix is V × V, whatever B and T are. Start from the zeros."),
    ),
)


@one_hot_by_scatter.by_hand
def _():
    yield call(torch.tensor([[2, 0]]), 3), torch.tensor([[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]])


@one_hot_by_scatter.cases
def _(draw):
    B, T, V = draw(draws.distinct_sizes(3))
    yield call(draw(draws.indices((B, T), V)), V)


@one_hot_by_scatter.edge
def _():
    yield call(torch.tensor([[0]]), 1), "a vocabulary of one"
    yield call(torch.tensor([[1, 1], [1, 1]]), 4), "ids that repeat, and ids that never occur"
    yield call(torch.empty(0, 3, dtype=torch.int64), 4), "an empty batch"
    yield call(integers(5, 4, 2).T, 5), "not contiguous"


one_hot_by_scatter.contract(
    contracts.constant_kernels(
        [
            call(integers(50, 2, 3), 50),
            call(integers(50, 16, 24), 50),
            call(integers(50, 2, 3), 80),
        ],
        says="no Python loop over the tokens or the vocabulary",
    )
)
one_hot_by_scatter.contract(
    contracts.largest_tensor(
        [call(integers(1000, 2, 3), 1000)],
        limit=nbytes(2, 3, 1000),
        says="no tensor larger than the result",
    )
)
one_hot_by_scatter.contract(
    contracts.largest_tensor(
        [call(integers(1000, 2, 3), 1000)],
        limit=4 * nbytes(2, 3, 1000),
        says="no (V, V) tensor",
    )
)
one_hot_by_scatter.mistake(
    "int64, as torch.nn.functional.one_hot gives: eight bytes an element, and no matmul takes it "
    "beside float weights. Float32 is asked for.",
    replace("vocab_size, device", "vocab_size, dtype=torch.int64, device", "1.0", "1"),
)
one_hot_by_scatter.mistake(
    "One row for each sequence instead of one for each token: the T tokens share it, and their order "
    "is lost. The zeros must be (B, T, vocab_size).",
    replace("*ids.shape", "len(ids)", "ids[..., None]", "ids"),
)
one_hot_by_scatter.mistake(
    "You wrote the id itself at its place; one-hot means a 1 there.",
    replace("1.0", "ids[..., None].float()"),
)
one_hot_by_scatter.mistake(
    "Zeros and ones changed places: start from zeros and write ones.",
    replace("torch.zeros", "torch.ones", "1.0", "0.0"),
)
one_hot_by_scatter.mistake(
    "You marked the ids counted from 1. Ids count from 0, so id 0 belongs to the first column.",
    replace("ids[..., None]", "(ids[..., None] - 1) % vocab_size"),
)


@one_hot_by_scatter.mistake(
    "The values are right, but torch.eye(V) has V² elements: for a vocabulary of 50,257 that is 10 "
    "GB before the first token is looked at.",
    cost=True,
)
def _(ids, vocab_size):
    return torch.eye(vocab_size)[ids]


@one_hot_by_scatter.mistake(
    "The values are right, but on the way there is a tensor larger than the result: an int64 or float64 "
    "one has eight bytes an element, twice as many. Make the zeros float32 from the start.",
    cost=True,
)
def _(ids, vocab_size):
    return F.one_hot(ids, vocab_size).float()


@one_hot_by_scatter.mistake(
    "The values are right, but you write one token at a time in a Python loop; one scatter_ writes "
    "them all.",
    cost=True,
)
def _(ids, vocab_size):
    out = torch.zeros(*ids.shape, vocab_size)
    for b in range(ids.size(0)):
        for t in range(ids.size(1)):
            out[b, t, ids[b, t]] = 1.0
    return out


@one_hot_by_scatter.alternative("compare with every id of the vocabulary")
def _(ids, vocab_size):
    return (ids[..., None] == torch.arange(vocab_size)).float()


@one_hot_by_scatter.alternative("index_put on the flat result")
def _(ids, vocab_size):
    flat = torch.zeros(ids.numel(), vocab_size)
    flat[torch.arange(ids.numel()), ids.reshape(-1)] = 1.0
    return flat.view(*ids.shape, vocab_size)


one_hot_by_scatter.equivalent(
    "one_hot_by_scatter: `torch.zeros(*ids.shape, vocab_size, device=ids.device)` → `torch.zeros(*ids.shape, vocab_size)`",
    because="Cases live on the CPU, where new tensors go anyway; with ids on a GPU, scatter_ would raise.",
)


# ----------------------------------------------------------------------------- gather_log_probs

gather_log_probs = Exercise(
    tensors.gather_log_probs,
    title="Log-probabilities of the targets",
    difficulty=2,
    minutes=12,
    points=3,
    gradients=("logits",),
    hints=(
        "log_softmax over the vocabulary first, then pick one number at each position.",
        "gather(dim, index) wants an index with as many axes as its input: targets[..., None].",
        (
            "edge cases",
            "exp overflows beyond 88 and underflows to 0 below -104 in float32, and log(0) is -inf. "
            "log_softmax never leaves the log scale.",
        ),
    ),
)


@gather_log_probs.by_hand
def _():
    logits = torch.tensor([[[0.0, 0.0], [0.0, math.log(3.0)]]])
    want = torch.tensor([[-math.log(2.0), math.log(0.75)]])
    yield call(logits, torch.tensor([[0, 1]])), want


@gather_log_probs.cases
def _(draw):
    B, T, V = draw(draws.distinct_sizes(3))
    yield call(draw(draws.tensors((B, T, V))), draw(draws.indices((B, T), V)))


@gather_log_probs.edge
def _():
    large = torch.tensor([[[0.0, 300.0, -300.0], [1e4, -1e4, 0.0]]])
    yield call(large, torch.tensor([[2, 1]])), "logits so large that exp leaves float32"
    masked = torch.tensor([[[0.5, -INF, 1.5]]])
    yield call(masked, torch.tensor([[2]])), "a word ruled out by a logit of -inf"
    yield call(masked, torch.tensor([[1]])), "the target itself is ruled out: log 0"
    huge = torch.tensor([[[1e30, -1e30, 0.0]]])
    yield call(huge, torch.tensor([[1]])), "logits of any finite size"
    yield call(normal(2, 3, 4, dtype=torch.float64), integers(4, 2, 3)), "float64"
    yield call(normal(1, 1, 1), torch.tensor([[0]])), "a vocabulary of one"
    yield call(normal(0, 3, 4), torch.empty(0, 3, dtype=torch.int64)), "an empty batch"
    yield call(normal(4, 2, 3).permute(1, 2, 0), integers(4, 2, 3)), "not contiguous"
    yield call(normal(3, 3, 3), integers(3, 3, 3)), "B, T and V equal"


gather_log_probs.contract(
    contracts.constant_kernels(
        [
            call(normal(2, 3, 8), integers(8, 2, 3)),
            call(normal(16, 24, 8), integers(8, 16, 24)),
            call(normal(16, 24, 12), integers(12, 16, 24)),
        ],
        says="no Python loop over the tokens or the vocabulary",
    )
)
gather_log_probs.contract(
    contracts.largest_tensor(
        [call(normal(16, 24, 8), integers(8, 16, 24))],
        limit=2 * nbytes(16, 24, 8),
        says="no (B, T, B, T) tensor",
    )
)
gather_log_probs.mistake(
    "log(softmax(x)) leaves the log scale and comes back: a probability below 1e-45 rounds to 0, and "
    "its log is -inf. log_softmax subtracts instead of dividing.",
    replace("log_softmax(dim=-1)", "softmax(dim=-1).log()"),
)
gather_log_probs.mistake(
    "These are the targets' logits, not yet normalised: they are not log-probabilities until the "
    "log-sum-exp over the vocabulary is subtracted.",
    replace(".log_softmax(dim=-1)", ""),
)
gather_log_probs.mistake(
    "You normalised over the positions. The probabilities that sum to 1 are those of the words at "
    "one position: dim=-1.",
    replace("log_softmax(dim=-1)", "log_softmax(dim=1)"),
)
gather_log_probs.mistake(
    "These are probabilities; their logarithm is asked for.", replace("log_softmax", "softmax")
)
gather_log_probs.mistake(
    "The sign is the loss's: a log-probability is never above zero.",
    replace("return log_probs", "return -log_probs"),
)
gather_log_probs.mistake(
    "You kept the axis that gather left behind, of size one: squeeze it.",
    replace(".squeeze(-1)", ""),
)


@gather_log_probs.mistake(
    "The values are right, but a Python loop picks one token at a time. gather picks them all in one "
    "kernel.",
    cost=True,
)
def _(logits, targets):
    log_probs = logits.log_softmax(-1)
    out = torch.zeros(targets.shape, dtype=logits.dtype)
    for b in range(targets.size(0)):
        for t in range(targets.size(1)):
            out[b, t] = log_probs[b, t, targets[b, t]]
    return out


@gather_log_probs.mistake(
    "The values are right, but log_probs[..., targets] looks every target up at every position: "
    "(B, T, B, T), of which you keep a diagonal. gather walks both in step.",
    cost=True,
)
def _(logits, targets):
    V = logits.size(-1)
    flat = logits.log_softmax(-1).reshape(-1, V)[:, targets.reshape(-1)]
    return flat.diagonal().view(targets.shape)


@gather_log_probs.alternative("the logit minus the log-sum-exp")
def _(logits, targets):
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return picked - torch.logsumexp(logits, dim=-1)


@gather_log_probs.alternative("cross_entropy on flat rows, in float64")
def _(logits, targets):
    rows = logits.reshape(-1, logits.size(-1)).double()
    nll = F.cross_entropy(rows, targets.reshape(-1), reduction="none")
    return -nll.view(targets.shape).to(logits.dtype)


# -------------------------------------------------------------------------- pairwise_sq_distances

pairwise_sq_distances = Exercise(
    tensors.pairwise_sq_distances,
    title="All squared distances by one matmul",
    difficulty=3,
    minutes=20,
    points=4,
    probe=probes.never_negative,
    gradients=("x", "y"),
    hints=(
        "Write |x - y|² out: two squared norms and a dot product.",
        "All the dot products together are x @ y.T, (N, M). The norms of x vary down the rows, those "
        "of y along the columns: (N, 1) and (1, M).",
        (
            "edge cases",
            "Where x is y, rounding can leave -1e-6. What should a squared distance be at least?",
        ),
        ("contracts", "x[:, None] - y[None] is (N, M, D). The expanded square never needs it."),
    ),
)


@pairwise_sq_distances.by_hand
def _():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    y = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    yield call(x, y), torch.tensor([[0.0, 1.0, 9.0], [25.0, 20.0, 16.0]])


@pairwise_sq_distances.cases
def _(draw):
    N, M, D = draw(draws.distinct_sizes(3))
    yield call(draw(draws.tensors((N, D))), draw(draws.tensors((M, D))))


@pairwise_sq_distances.edge
def _():
    same = normal(64, 64)
    yield call(same, same), "every point at distance 0 from itself: no element may be negative"
    yield call(normal(1, 1), normal(1, 1, seed=1)), "one number each"
    yield call(normal(0, 3), normal(2, 3)), "no points"
    yield call(normal(3, 5).T, normal(4, 3)), "not contiguous"
    yield call(1e3 * normal(4, 3), 1e-3 * normal(2, 3)), "large beside small"
    yield call(normal(3, 4), normal(3, 4, seed=1)), "N equal to M"
    yield call(normal(3, 4, dtype=torch.float64), normal(2, 4, dtype=torch.float64)), "float64"


pairwise_sq_distances.contract(
    contracts.largest_tensor(
        [call(normal(128, 64), normal(96, 64, seed=1))],
        limit=2 * nbytes(128, 96),
        says="no (N, M, D) tensor",
    )
)
pairwise_sq_distances.contract(
    contracts.constant_kernels(
        [
            call(normal(32, 8), normal(48, 8, seed=1)),
            call(normal(64, 8), normal(96, 8, seed=1)),
            call(normal(64, 24), normal(96, 24, seed=1)),
        ],
        says="no Python loop over the points or their coordinates",
    )
)
pairwise_sq_distances.mistake(
    "Some of your squared distances are negative: |x|² + |y|² - 2 x·y rounds a little below zero "
    "where x is near y, and the square root of that is NaN. Raise them to zero.",
    replace(".clamp(min=0)", ""),
)
pairwise_sq_distances.mistake(
    "These are distances; their squares are asked for.",
    replace(".clamp(min=0)", ".clamp(min=0).sqrt()"),
)
pairwise_sq_distances.mistake(
    "The cross term counts twice: |x|² + |y|² - 2 x·y.", replace("2 * x", "x")
)
pairwise_sq_distances.mistake(
    "This is (M, N): rows belong to x, columns to y.", replace(".clamp(min=0)", ".clamp(min=0).T")
)
pairwise_sq_distances.mistake(
    "You took the mean over the D coordinates. A squared distance is their sum.",
    replace(".clamp(min=0)", ".clamp(min=0) / x.size(1)"),
)
pairwise_sq_distances.mistake(
    "The sign of the cross term: (x - y)² has minus 2 x·y. This is the distance from x to -y.",
    replace("- 2", "+ 2"),
)


@pairwise_sq_distances.mistake(
    "The values are right, but x[:, None] - y[None] is an (N, M, D) tensor: for 10,000 by 10,000 "
    "points of 768 numbers, 307 GB. The matmul needs N × M.",
    cost=True,
)
def _(x, y):
    return (x[:, None] - y[None]).square().sum(-1)


@pairwise_sq_distances.mistake(
    "The values are right, but a Python loop over the points launches kernels for each. One matmul "
    "has all the dot products.",
    cost=True,
)
def _(x, y):
    rows = [(row - y).square().sum(-1) for row in x]
    return torch.stack(rows) if rows else x.new_zeros(0, len(y))


@pairwise_sq_distances.alternative("centred first, einsum, relu")
def _(x, y):
    centre = x.mean(0) if len(x) else 0.0
    x, y = x - centre, y - centre
    norms = torch.einsum("nd,nd->n", x, x)[:, None] + torch.einsum("md,md->m", y, y)
    return torch.relu(norms - 2 * torch.einsum("nd,md->nm", x, y))


@pairwise_sq_distances.alternative("in float64 and cast back")
def _(x, y):
    a, b = x.double(), y.double()
    square = (a * a).sum(1, keepdim=True) + (b * b).sum(1) - 2 * torch.mm(a, b.t())
    return square.clamp_min(0).to(x.dtype)


pairwise_sq_distances.equivalent(
    "pairwise_sq_distances: `x.square().sum(dim=1)` → `x.square().sum(dim=-1)`",
    because="x has two axes, so 1 and -1 name the same one.",
)
pairwise_sq_distances.equivalent(
    "pairwise_sq_distances: `y.square().sum(dim=1)` → `y.square().sum(dim=-1)`",
    because="y has two axes, so 1 and -1 name the same one.",
)


# -------------------------------------------------------------------------------- xavier_uniform

xavier_uniform = Exercise(
    tensors.xavier_uniform,
    title="Glorot's uniform weight",
    difficulty=2,
    minutes=10,
    points=3,
    probe=probes.glorot_weight,
    hints=(
        "torch.rand gives numbers from 0 to 1. Stretch and shift them to run from -a to a.",
        "A uniform number on [-a, a] has variance a²/3; solve a²/3 = 2 / (fan_in + fan_out).",
        "Hand the generator on: torch.rand(fan_out, fan_in, generator=generator).",
    ),
)


@xavier_uniform.by_hand
def _():
    yield call(2, 3, gain=0.0, generator=5), torch.zeros(2, 3)  # the one draw without chance


@xavier_uniform.cases(12)
def _(draw):
    fan_out, fan_in = draw(st.permutations([100, 150, 200, 300, 400]))[:2]
    seed = draw(draws.sizes(1, 99))
    yield call(fan_out, fan_in, gain=draw(st.sampled_from([1.0, 0.5, 2.0])), generator=seed)


@xavier_uniform.edge
def _():
    yield call(300, 200, generator=5), "the gain left at its default"
    yield call(300, 200), "no generator: torch's own"
    yield call(20, 30, generator=5), "a small layer"
    yield call(1, 20000, generator=5), "one output feature"
    yield call(20000, 1, 1.5, generator=5), "one input feature"


xavier_uniform.mistake(
    "Your bound is the standard deviation sqrt(2 / (fan_in + fan_out)). A uniform number on [-a, a] "
    "has variance a²/3, so a is sqrt(3) times larger.",
    replace("6.0", "2.0"),
)
xavier_uniform.mistake(
    "Your numbers run from 0 to a: torch.rand was scaled but not shifted, so their mean is not zero.",
    replace("2.0 * torch", "torch", " - 1.0", ""),
)
xavier_uniform.mistake(
    "You used fan_in alone. That keeps the variance on the way forward (He, LeCun); Glorot's "
    "compromise with the way back is fan_in + fan_out.",
    replace("6.0 / (fan_in + fan_out)", "3.0 / fan_in"),
)
xavier_uniform.mistake(
    "A normal distribution with Glorot's variance (torch's xavier_normal_); a uniform one is asked for.",
    replace("6.0", "2.0", "2.0 * torch.rand(", "torch.randn(", " - 1.0", ""),
)
xavier_uniform.mistake(
    "The shape is (fan_in, fan_out). torch.nn.Linear keeps its weight as (out, in) and computes x @ W.T.",
    replace("rand(fan_out, fan_in", "rand(fan_in, fan_out"),
)
xavier_uniform.mistake(
    "You did not hand the generator on: the numbers come from torch's global one, and whoever seeded "
    "the generator does not get the same weights again.",
    replace(", generator=generator", ""),
)
xavier_uniform.mistake("The gain is not used. It multiplies the bound.", replace("gain * ", ""))


@xavier_uniform.alternative("torch's own, in place on an empty tensor")
def _(fan_out, fan_in, gain=1.0, generator=None):
    weight = torch.empty(fan_out, fan_in)
    return torch.nn.init.xavier_uniform_(weight, gain, generator=generator)


@xavier_uniform.alternative("uniform_, drawn transposed")
def _(fan_out, fan_in, gain=1.0, generator=None):
    bound = gain * (6 / (fan_in + fan_out)) ** 0.5
    return torch.empty(fan_in, fan_out).uniform_(-bound, bound, generator=generator).T
