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
    yield call(torch.tensor([[4, 9, 7]]), 9), "padding between two tokens"
    yield call(torch.empty(0, 3, dtype=torch.int64), 9), "an empty batch"
    yield call(torch.empty(2, 0, dtype=torch.int64), 9), "rows without a position"
    yield call(draws.scattered(torch.tensor([[1, 3, -1], [2, -1, -1]])), -1), "not contiguous"
    yield call(torch.tensor([[4, 9, 9]], dtype=torch.int32), 9), "int32 ids"
    real = torch.arange(5000) < torch.tensor([255, 256, 327, 2049, 4099, 4999])[:, None]
    yield call(torch.where(real, 1, 9), 9), "more tokens than eight bits or float16 can count"


sequence_lengths.slips(
    {
        replace("!=", "=="): "You counted the padding. The real tokens are where ids != pad_id.",
        replace("dim=1", "dim=0"): "You summed down the columns: dim is the axis that disappears, "
        "so dim=1 leaves one number a row.",
        replace("!= pad_id", "!= 0"): "You counted ids other than 0. Padding is whatever pad_id "
        "says (GPT-2's is 50256), and 0 may be a token like any other.",
        replace("dim=1", ""): "You counted the whole batch; each row has a length of its own: "
        "dim=1.",
        replace("dim=1", "dim=1, keepdim=True"): "One axis too many: without keepdim=True the "
        "summed axis disappears.",
        replace("!=", ">"): "You counted only the ids above pad_id. Every id but pad_id itself is "
        "a token.",
        replace("!=", "<"): "You counted only the ids below pad_id. Every id but pad_id itself is "
        "a token.",
        replace(
            "(ids != pad_id).sum(dim=1)", "(ids == pad_id).int().argmax(dim=1)"
        ): "You looked for the first padding. A row without any has none, and argmax says 0 there. "
        "Count the tokens instead.",
        replace("(ids != pad_id)", "ids.where(ids != pad_id, 0)"): "You summed the ids "
        "themselves. Sum the comparison: each True counts as 1.",
        replace("(ids != pad_id)", "(ids != pad_id).float()"): "Your lengths are float32. A sum "
        "of booleans is int64 as it comes.",
        replace("dim=1)", "dim=1).tolist()"): "You return a Python list. Return the tensor itself.",
        replace(
            ".sum(dim=1)", ".cumsum(dim=1)[:, -1]"
        ): "You read the last column of a running count. Rows without a position have no last column: sum "
        "along dim=1.",
        replace(
            "dim=1", "dim=1, dtype=torch.int32"
        ): "Your lengths are int32. A sum of booleans is int64 as it comes, and that is asked for.",
        replace(
            "sum(dim=1)", "sum(dim=1).to(ids.dtype)"
        ): "Your lengths have the dtype of ids. They are int64, whatever the ids are.",
        replace(
            "(ids != pad_id)", "(ids != pad_id).cumprod(dim=1)"
        ): "You count the tokens before the "
        "first padding only. Padding may stand in front or between: sum the comparison over the whole "
        "row.",
        replace(
            "(ids != pad_id).sum(dim=1)",
            "torch.cat([ids == ids, ids != pad_id], 1).flip(1).int().argmax(1).neg() + ids.size(1)",
        ): "This is where the last token stands. Padding in front of it or between counts as tokens: sum "
        "the comparison over the whole row.",
        replace(
            "(ids != pad_id).sum(dim=1)",
            "torch.tensor([int((row != pad_id).sum()) for row in ids])",
        ): "torch.tensor makes float32 of an empty list, so the lengths of a batch of no rows are not "
        "int64. Sum along dim=1, or name the dtype.",
        replace(
            "(ids != pad_id).sum(dim=1)", "torch.stack([(row != pad_id).sum() for row in ids])"
        ): "torch.stack has nothing to stack where the batch is empty. A sum along dim=1 takes the whole "
        "batch at once.",
    }
)
sequence_lengths.alternative("a loop over the rows")(
    lambda ids, pad_id: torch.tensor(
        [sum(t != pad_id for t in row) for row in ids.tolist()], dtype=torch.int64
    )
)
sequence_lengths.alternative("count_nonzero")(
    lambda ids, pad_id: torch.count_nonzero(ids - pad_id, dim=1)
)
sequence_lengths.equivalent(
    "sequence_lengths: `(ids != pad_id).sum(dim=1)` → `(ids != pad_id).sum(dim=-1)`",
    because="ids has two axes, so 1 and -1 name the same one.",
)


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
    none = torch.empty(0, dtype=torch.int64)
    yield call(normal(0, 4, 3, dtype=torch.bfloat16), none), "an empty batch in bfloat16"
    yield call(draws.scattered(normal(3, 4, 2)), torch.tensor([4, 2, 1])), "not contiguous"
    yield call(normal(3, 4, 2, dtype=torch.bfloat16), torch.tensor([2, 4, 1])), "bfloat16"
    spoiled = normal(2, 4, 3)
    spoiled[0, 2:], spoiled[1, 1:] = NAN, INF
    yield call(spoiled, torch.tensor([2, 1])), "NaN and infinity in the padding"
    yield call(spoiled, torch.tensor([3, 4])), "NaN and infinity are the last states themselves"
    yield call(normal(3, 4, 2, dtype=torch.float64), torch.tensor([2, 4, 1])), "float64"


SIZES = (2, 8, 16), (64, 8, 16), (64, 12, 24)
last_token_states.contract(
    contracts.constant_kernels(
        [call(normal(B, T, D), integers(T, B) + 1) for B, T, D in SIZES],
        says="all in torch, no Python loop over the batch, the positions or the features",
    )
)
last_token_states.contract(
    contracts.largest_tensor(
        [call(normal(*SIZES[1]), integers(8, 64) + 1)],
        limit=nbytes(*SIZES[1]),
        says="nothing larger than `hidden` itself",
    )
)
last_token_states.slips(
    {
        replace("rows, lengths - 1", ":, -1"): "You took the last position of every row. In a "
        "short row that is padding: its last token is at lengths - 1.",
        replace("lengths - 1", "lengths"): "You indexed with lengths itself: positions count from "
        "0, so the last token is at lengths - 1.",
        replace(
            "lengths - 1", "lengths.clamp(max=hidden.size(1) - 1)"
        ): "You index with lengths itself, held back to the last position: the state after the last "
        "token in every row but a full one. Positions count from 0, so the last token is at lengths - 1.",
        replace(
            "lengths - 1", "lengths % hidden.size(1)"
        ): "You index with lengths itself, and a full row begins again at 0. Positions count from 0, so "
        "the last token is at lengths - 1.",
        replace("rows, lengths", ":, lengths"): "`:` takes every row, then lengths - 1 picks "
        "columns for all of them: B × B states. To walk rows and columns in step, give the rows "
        "as an index tensor too.",
        replace("rows, lengths - 1", ":, 0"): "You took the first token's state, not the last "
        "one's.",
        replace(
            "lengths - 1", "max(lengths.tolist(), default=1) - 1"
        ): "You used the longest row's length for all rows; each has a last token of its own.",
        replace("rows, lengths - 1", "lengths - 1, rows"): "You swapped the indices: the first "
        "axis of hidden is the batch, the second the position.",
        replace(
            "hidden[rows, lengths - 1]", "hidden.flatten(0, 1)[lengths.cumsum(0) - 1]"
        ): "You add the lengths up, as if the sequences were packed one behind the other. Here every row is "
        "padded to T: its last token is at lengths - 1 of its own row.",
        replace(
            "hidden[rows, lengths - 1]",
            "(hidden * (torch.arange(hidden.size(1)) == lengths[:, None] - 1)[..., None]).sum(1)",
        ): "You multiply by a mask of zeros with a single one, and sum. NaN or infinity times 0 is NaN, so "
        "what stands in the padding comes through. Pick the state by its index.",
        replace(
            "    rows", "    lengths -= 1\n    rows", "lengths - 1", "lengths"
        ): "`lengths -= 1` changes the caller's own lengths, in place. `lengths - 1` makes a new tensor.",
        replace(
            "    rows =",
            "    if not len(hidden):\n        return hidden.float().sum(dim=1)\n    rows =",
        ): "For an empty batch your result is float32. Its dtype is that of `hidden` there, too.",
        replace("lengths - 1", "-lengths"): "You counted from the end of the row. Padding is on "
        "the right, so the last token is at lengths - 1 from the start.",
        replace(
            "hidden[rows, lengths - 1]", "torch.stack([h[n - 1] for h, n in zip(hidden, lengths)])"
        ): "torch.stack has nothing to stack where the batch is empty. Integer indexing takes the whole "
        "batch at once, without a loop.",
        replace(
            "hidden[rows, lengths - 1]",
            "hidden.view(-1, hidden.size(2))[rows * hidden.size(1) + lengths - 1]",
        ): "view raises where no strides can merge batch and positions. Index with two tensors instead.",
        replace(
            "lengths - 1]", "lengths - 1].squeeze()"
        ): "squeeze() without an axis also removes the "
        "axis of a batch of one. Name the axis of the positions, or take it off by indexing.",
        replace("lengths - 1]", "lengths - 1][:, None]"): "One axis too many: the axis of the "
        "positions is gone once a position is picked, (B, D).",
        replace(
            "hidden[rows, lengths - 1]", "hidden.gather(1, (lengths - 1)[:, None, None])[:, 0]"
        ): "gather picks as many numbers as its index has, so an index of shape (B, 1, 1) gives one "
        "feature a row. Expand it to (B, 1, D).",
    }
)


@last_token_states.mistake(
    "The values are right, but Python goes through the batch, one sequence at a time (or takes the "
    "lengths out of torch). Integer indexing does the whole batch in one kernel.",
    cost=True,
)
def _(hidden, lengths):
    states = [hidden[b, n - 1] for b, n in enumerate(lengths)]
    return torch.stack(states) if states else hidden[:, 0]


last_token_states.mistake(
    "The values are right, but hidden[:, lengths - 1] makes a (B, B, D) tensor of which you keep "
    "the diagonal. Give the rows as an index too, and only B states are read.",
    cost=True,
)(lambda hidden, lengths: hidden[:, lengths - 1].diagonal(dim1=0, dim2=1).T)


@last_token_states.alternative("gather with an expanded index")
def _(hidden, lengths):
    index = (lengths - 1)[:, None, None].expand(-1, 1, hidden.size(2))
    return hidden.gather(1, index)[:, 0]


last_token_states.alternative("a boolean mask with one True a row")(
    lambda hidden, lengths: hidden[torch.arange(hidden.size(1)) == lengths[:, None] - 1]
)
last_token_states.equivalent(
    "last_token_states: `torch.arange(hidden.size(0), device=hidden.device)` → `torch.arange(hidden.size(0))`",
    because="An index tensor may live on the CPU whatever the device of what it indexes; torch moves it.",
)


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
    scattered = draws.scattered(torch.tensor([[False, True, False], [True, True, False]]))
    yield call(scattered), "not contiguous"


padding_to_attention_mask.slips(
    {
        replace("~", ""): "The mask is upside down: the argument is True at padding, the result "
        "must be True at the keys that may be attended to. This one attends to nothing but "
        "padding.",
        replace("None, None, :", "None, :, None"): "T stands in the axis of the queries. Scores "
        "are (B, heads, queries, keys), and it is the keys that must be hidden: (B, 1, 1, T).",
        replace("None, None", "None"): "(B, 1, T) has three axes. Against (B, heads, queries, "
        "keys) it would line B up with the heads.",
        replace(
            "~padding", "torch.zeros(padding.shape).masked_fill(padding, -math.inf)"
        ): "This is an additive mask (0 and minus infinity, to be added to the scores). Here a "
        "boolean one is asked for.",
        replace(":]", ":].expand(-1, -1, padding.size(1), -1)"): "You wrote the axis of the "
        "queries out in full. Size one is enough, since broadcasting repeats it: (B, 1, 1, T), "
        "not (B, 1, T, T).",
        replace(
            "~padding[:, None, None, :]", "~padding[:, None, None, :] & ~padding[:, None, :, None]"
        ): "You mask pairs: a query that is padding has no key left, and its softmax is NaN. Keys alone "
        "are to be hidden, (B, 1, 1, T), whatever the query is.",
        replace("[:, None, None, :]", ""): "(B, T) would line B up with the queries. Two axes of "
        "size one are missing: (B, 1, 1, T).",
        replace(":, None, None, :", "None, None"): "The new axes stand in front: (1, 1, B, T) "
        "lines B up with the queries. They belong between B and T.",
        replace(
            "~padding[:, None, None, :]", "(~padding).reshape(len(padding), 1, 1, -1)"
        ): "The last size cannot be inferred (-1) where the batch is empty. It is T: say so, or add the axes "
        "with None.",
        replace("~padding[", "padding.logical_not_()["): "You turn the caller's own padding mask "
        "round, in place. ~padding makes a new tensor.",
        replace(
            "~padding[:, None, None, :]", "(~padding[:, None, None, :]).float()"
        ): "The mask is float32, and attention would add it to the scores. It is to be torch.bool.",
    }
)
padding_to_attention_mask.alternative("unsqueeze and a comparison")(
    lambda padding: padding.unsqueeze(1).unsqueeze(2) == 0
)


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
causal_mask.by_hand(
    lambda: [
        (
            call(3, 3),
            torch.tensor([[True, False, False], [True, True, False], [True, True, True]]),
        ),
        (call(2, 4), torch.tensor([[True, True, True, False], [True, True, True, True]])),
    ]
)


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
    contracts.constant_kernels(
        [call(4, 6), call(64, 96)], says="all in torch, no Python loop over the rows"
    )
)
KEYS_AS_ROWS = "This is (S, T): queries are the rows, keys the columns."
causal_mask.slips(
    {
        replace("diagonal=S - T", ""): "Your triangle starts in the upper left corner. The "
        "queries are the last T positions, so when S > T the first of them may already see S - T "
        "earlier keys.",
        replace("S - T", "S - T - 1"): "A token may attend to itself: the diagonal belongs to the "
        "mask. Yours leaves the first token nothing to attend to, and its softmax would be NaN.",
        replace("tril(diagonal=S - T)", "triu(diagonal=S - T + 1)"): "Upside down: this is True "
        "where attention is forbidden (the convention of masked_fill). Here True means allowed.",
        replace(", dtype=torch.bool", ""): "The right triangle in float32. A mask of this kind is "
        "torch.bool.",
        replace("S - T", "T - S"): "The sign is reversed: diagonal = S - T moves the edge to the "
        "right.",
        replace("tril", "triu"): "You kept the upper triangle: this allows a token itself and "
        "those after it, and hides the earlier ones.",
        replace("S - T", "S - T + 1"): "Each query sees one key too many, the one after its own "
        "position.",
        replace("T, S, dtype", "S, S, dtype", "diagonal=S - T)", ")[-T:]"): "[-T:] with T = 0 is "
        "[0:], the whole matrix. Take the rows from S - T on.",
        replace(
            "torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)",
            "torch.cat([torch.ones(T, T).tril(), torch.ones(T, S - T)], 1).bool()",
        ): "You put the keys of the cache behind the triangle. They are the earlier ones, and come first: the "
        "triangle is the last T columns.",
        replace("T, S, dtype", "S, T, dtype"): KEYS_AS_ROWS,
        replace("diagonal=S - T)", "diagonal=S - T).T"): KEYS_AS_ROWS,
        replace(
            "torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)",
            "torch.full((T, S), -math.inf).triu(diagonal=S - T + 1)",
        ): "This is an additive mask (0 and minus infinity, to be added to the scores). Here a "
        "boolean one is asked for.",
    }
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


causal_mask.alternative("compare positions, broadcast")(
    lambda T, S: torch.arange(S) <= torch.arange(S - T, S)[:, None]
)
causal_mask.alternative("the last rows of a square triangle, from triu")(
    lambda T, S: ~torch.ones(S, S).triu(1).bool()[S - T :]
)


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
    bare = torch.tensor([[True, False, True], [False] * 3])
    yield call(normal(2, 3, 4), bare), "a row without tokens"
    last = torch.tensor([[False] * 4, [False, False, False, True]])
    yield call(spoiled.flip(1), last), "a row that keeps nothing, with NaN in it"
    ones = torch.ones(1, 1000, 2, dtype=torch.bfloat16)
    yield call(ones, ones[..., 0] == 1), "bfloat16 cannot count beyond 256"
    yield call(normal(1, 1, 1), torch.tensor([[True]])), "one number"
    yield call(normal(0, 3, 2), torch.ones(0, 3, dtype=torch.bool)), "an empty batch"
    none = torch.ones(0, 3, dtype=torch.bool)
    yield call(normal(0, 3, 2, dtype=torch.bfloat16), none), "an empty batch in bfloat16"
    ends = torch.tensor([[5], [3]])
    yield call(normal(2, 5, 3, dtype=torch.bfloat16), torch.arange(5) < ends), "bfloat16"
    yield call(draws.scattered(normal(2, 5, 4)), torch.arange(5) < ends), "not contiguous"
    large = torch.full((1, 300, 2), 300.0, dtype=torch.float16)
    yield call(large, torch.ones(1, 300, dtype=torch.bool)), "float16 cannot hold the sum"
    whole = torch.ones(2, 4, dtype=torch.bool)
    yield call(spoiled, whole), "NaN and infinity at positions that are kept"
    yield call(normal(2, 5, 3, dtype=torch.float64), whole[:, :1].expand(2, 5)), "float64"
    many = torch.arange(300) < torch.tensor([[299], [257]])
    yield call(normal(2, 300, 2), many), "more positions than eight bits can count"
    gaps = torch.tensor([[False, True, False, True]])
    yield call(normal(1, 4, 2), gaps), "the kept positions are not the first ones"


RESULT_MENDED = (
    "You put a number wherever the result is NaN, also where a NaN at a kept position made it so. Raise a count of "
    "0 to 1 before you divide, and leave the result as it is."
)
masked_mean.slips(
    {
        replace(
            "torch.where(keep[:, :, None], x, 0.0)", "(x * keep[:, :, None])"
        ): "You multiplied by the mask. 0 · NaN is NaN and 0 · inf is NaN, so what stands in the "
        "padding leaks into the mean; torch.where or masked_fill chooses instead.",
        replace("total / count", "total / x.size(1)"): "You divided by T: the padding counts as "
        "zeros and pulls the mean of short rows towards zero.",
        replace(".clamp(min=1)", ""): "A row that keeps nothing is 0 / 0 = NaN. Its count must be "
        "raised to 1 before you divide.",
        replace("keep.sum(dim=1, keepdim=True)", "keep.sum()"): "You divided by the number of "
        "tokens in the whole batch. Each row has a count of its own.",
        replace(
            "torch.where(keep[:, :, None], x, 0.0)", "x", "total / count", "total / x.size(1)"
        ): "The mask is not used: this is the mean over all T positions, padding included.",
        replace("(total / count).to(x.dtype)", "total / count"): "Your result is float32 whatever "
        "came in. A mean has its argument's dtype: bfloat16 stays so.",
        replace(
            ", dtype=dtype", ""
        ): "The sum that you divide is in half precision: made so, or cast "
        "back too early. float16 ends at 65,504, so 300 times 300 is infinite. Sum and divide in "
        "float32, and return x's dtype.",
        replace(
            "torch.promote_types(x.dtype, torch.float32)", "torch.float32"
        ): "You sum in float32 also what came in float64, and lose half of its digits. Only half "
        "precision needs a wider sum.",
        replace(
            "torch.where(keep[:, :, None], x, 0.0).sum(dim=1, dtype=dtype)",
            "sum(torch.where(keep[:, :, None], x if x.dtype == torch.bfloat16 else x.to(dtype), 0.0).unbind(1))",
        ): "You add up bfloat16 in bfloat16, one position after the other. It has eight bits, so a sum of ones "
        "stops at 256. Sum half precision in float32, this one as well.",
        replace(
            "    dtype =", "    if not len(x):\n        return x.float().sum(dim=1)\n    dtype ="
        ): "For an empty batch your result is float32. It has x's dtype there, too.",
        replace(
            "return (total / count).to(x.dtype)",
            "return (total / count).to(x.dtype).where(keep.any(dim=1, keepdim=True), 0 * x[:, 0])",
        ): "A row that keeps nothing gets 0 times what stands in it, and for NaN or infinity that is NaN. Such a "
        "row is zeros, whatever it holds.",
        replace("keep.sum(dim=1, keepdim=True)", "keep.sum(dim=1)"): "The count is (B,), which "
        "lines up with the features. With keepdim=True it is (B, 1), and each row is divided by "
        "its own.",
        replace(
            "torch.where(keep[:, :, None], x, 0.0)", "x.masked_fill(keep[:, :, None], 0.0)"
        ): "masked_fill fills where its mask is True, so you erased what is to be kept. Pass it ~keep.",
        replace("(total / count).to(x.dtype)", "x[keep].mean(dim=0)"): "x[keep] puts the kept "
        "positions of all rows into one list, so this is one mean for the whole batch. Each row "
        "has a mean of its own.",
        replace(".clamp(min=1)", " + 1"): "You added 1 to every count. Only a count of 0 needs to "
        "become 1: clamp(min=1).",
        replace(
            ".clamp(min=1)", ".clamp(min=2)"
        ): "You count at least 2, which halves a row with one "
        "position. Only a count of 0 needs to become 1.",
        replace("total / count", "total"): "This is the sum over the kept positions, not yet "
        "divided by how many they are.",
        replace("x, 0.0).sum(dim=1", "x, 0.0).sum(dim=2"): "You averaged over the features. The "
        "mean runs over the positions, dim=1.",
        replace(
            "torch.where(keep[:, :, None], x, 0.0)",
            "(x * keep[:, :, None])",
            ".clamp(min=1)",
            "",
            ", dtype=dtype",
            "",
        ): "Three slips: 0 · NaN is NaN, so choose with torch.where; 0 / 0 is NaN, so raise a count of 0 to "
        "1; float16 ends at 65,504, so sum half precision in float32.",
        replace(
            "(total / count).to(x.dtype)",
            "x.masked_fill(~keep[:, :, None], torch.nan).nanmean(dim=1)",
        ): "nanmean leaves out every NaN, also those at positions that are kept, and a row that keeps "
        "nothing is 0 / 0.",
        replace(
            "(total / count).to(x.dtype)",
            "x.to(dtype).masked_fill(~keep[:, :, None], torch.nan).nanmean(dim=1)"
            ".where(keep.any(dim=1, keepdim=True), 0.0).to(x.dtype)",
        ): "A NaN at a position that is kept is left out, as if it were padding: nanmean cannot tell the "
        "two apart. Choose by the mask, and let it show in the mean.",
        replace(
            "torch.where(keep[:, :, None], x, 0.0)",
            "(x.nan_to_num(0.0, 0.0, 0.0) * keep[:, :, None])",
        ): "NaN and infinity vanish also at positions that are kept, where they belong to the mean. "
        "Choose by the mask, not by the values: torch.where or masked_fill.",
        replace(
            "torch.where(keep[:, :, None], x, 0.0)", "(x.nan_to_num() * keep[:, :, None])"
        ): "NaN vanishes also at positions that are kept, where it belongs to the mean. Choose by the "
        "mask, not by the values: torch.where or masked_fill, and then a plain sum.",
        replace(
            ".clamp(min=1)", "", "(total / count)", "(total / count).nan_to_num()"
        ): RESULT_MENDED,
        replace(
            *(".clamp(min=1)", ""),
            *("(total / count)", "(total / count).nan_to_num(0.0, torch.inf, -torch.inf)"),
        ): RESULT_MENDED,
        replace(
            "torch.where(keep[:, :, None], x, 0.0)", "x.masked_fill_(~keep[:, :, None], 0.0)"
        ): "You write zeros into the caller's own x. torch.where, or masked_fill without an underscore, "
        "makes a new tensor.",
    }
)


@masked_mean.mistake(
    "torch.stack has nothing to stack where the batch is empty. Sum over dim=1 takes the whole batch at "
    "once, without a loop."
)
def _(x, keep):
    rows = [
        r[k].mean(0) if k.any() else 0.0 * r.nan_to_num(0.0, 0.0, 0.0).sum(0)
        for r, k in zip(x, keep, strict=True)
    ]
    return torch.stack(rows)


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
one_hot_by_scatter.by_hand(
    lambda: [(call(torch.tensor([[2, 0]]), 3), torch.tensor([[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]))]
)


@one_hot_by_scatter.cases
def _(draw):
    B, T, V = draw(draws.distinct_sizes(3))
    yield call(draw(draws.indices((B, T), V)), V)


@one_hot_by_scatter.edge
def _():
    yield call(torch.tensor([[0]]), 1), "a vocabulary of one"
    yield call(torch.tensor([[1, 1], [1, 1]]), 4), "ids that repeat, and ids that never occur"
    yield call(torch.empty(0, 3, dtype=torch.int64), 4), "an empty batch"
    yield call(draws.scattered(integers(5, 2, 4)), 5), "not contiguous"
    yield (
        call(integers(5, 2, 4).to("meta"), 5),
        "ids on another device, one of shapes without values",
    )


one_hot_by_scatter.contract(
    contracts.constant_kernels(
        [call(integers(50, B, T), V) for B, T, V in ((2, 3, 50), (16, 24, 50), (2, 3, 80))],
        says="all in torch, no Python loop over the tokens or the vocabulary",
    )
)
for times, says in ((1, "no tensor larger than the result"), (4, "no (V, V) tensor")):
    one_hot_by_scatter.contract(
        contracts.largest_tensor(
            [call(integers(1000, 2, 3), 1000)], limit=times * nbytes(2, 3, 1000), says=says
        )
    )
one_hot_by_scatter.slips(
    {
        replace(
            "vocab_size, device", "vocab_size, dtype=torch.int64, device", "1.0", "1"
        ): "int64, as torch.nn.functional.one_hot gives: eight bytes an element, and no matmul takes "
        "it beside float weights. Float32 is asked for.",
        replace("*ids.shape", "len(ids)", "ids[..., None]", "ids"): "One row for each sequence "
        "instead of one for each token: the T tokens share it, and their order is lost. The zeros "
        "must be (B, T, vocab_size).",
        replace("1.0", "ids[..., None].float()"): "You wrote the id itself at its place; one-hot "
        "means a 1 there.",
        replace("torch.zeros", "torch.ones", "1.0", "0.0"): "Zeros and ones changed places: start "
        "from zeros and write ones.",
        replace("ids[..., None]", "(ids[..., None] - 1) % vocab_size"): "You marked the ids "
        "counted from 1. Ids count from 0, so id 0 belongs to the first column.",
        replace(", device=ids.device", ""): "Your zeros are on the default device. Where ids are "
        "on a GPU, the result is due there too: device=ids.device.",
        replace(
            "ids[..., None]", "ids.view(-1, 1).view(*ids.shape, 1)"
        ): "view raises where no strides can merge batch and positions. reshape copies there, and "
        "ids[..., None] need not merge them.",
        replace("ids[..., None]", "ids"): "The index of scatter_ must have as many axes as the "
        "tensor that it writes to. The zeros have three, so ids[..., None].",
        replace("zeros.scatter_(-1, ids[..., None], 1.0)", "zeros"): "Your result is all zeros. "
        "scatter without an underscore returns a new tensor; scatter_ writes into its own.",
        replace(
            "zeros.scatter_(-1, ids[..., None], 1.0)",
            "zeros.scatter_(-1, ids[..., None], 1.0).bool()",
        ): "The result is bool. Float32 is asked for, so that it can be multiplied with weights.",
        replace(
            "zeros.scatter_(-1, ids[..., None], 1.0)", "zeros.index_fill_(-1, ids.flatten(), 1.0)"
        ): "Every row carries the ids of all the tokens: `:` beside a tensor of ids takes all rows for "
        "each id. scatter_ walks rows and ids in step.",
        replace(
            "ids[..., None]", "ids[:, None, :].expand(-1, ids.size(1), -1)"
        ): "Every row carries all the ids of its sequence. Each token has one row and one id: "
        "ids[..., None].",
        replace(
            "return zeros",
            "zeros[:, torch.arange(ids.size(1), device=ids.device), ids] = 1.0\n    return zeros",
        ): "`:` for the batch takes every sequence for each id, so at a position all sequences carry the "
        "ids of all. Give the rows of the batch as an index too, or let scatter_ walk in step.",
        replace(
            *("*ids.shape, vocab_size", "vocab_size, ids.numel()"),
            *(
                "-1, ids[..., None], 1.0)",
                "0, ids.reshape(1, -1), 1.0).view(*ids.shape, vocab_size)",
            ),
        ): "Your ones are in a (V, B · T) matrix, and view to (B, T, V) leaves all elements in their order. "
        "Transpose it first, or scatter along the last axis.",
        replace(
            "*ids.shape, vocab_size",
            "ids.size(0), vocab_size, ids.size(1)",
            "-1, ids[..., None]",
            "1, ids[:, None]",
        ): "This is (B, V, T). The words are the last axis: (B, T, V).",
        replace(
            "zeros.scatter_(-1, ids[..., None], 1.0)",
            "(ids[..., None] == torch.arange(vocab_size)).float()",
        ): "Your code works on a CPU only. Make every tensor on ids.device, and leave the ids in torch: "
        "a Python loop would read them one at a time.",
    }
)
one_hot_by_scatter.mistake(
    "The values are right, but torch.eye(V) has V² elements: for a vocabulary of 50,257 that is 10 "
    "GB before the first token is looked at.",
    replace(
        "zeros.scatter_(-1, ids[..., None], 1.0)", "torch.eye(vocab_size, device=ids.device)[ids]"
    ),
    cost=True,
)
one_hot_by_scatter.mistake(
    "The values are right, but on the way there is a tensor larger than the result: an int64 or float64 "
    "one has eight bytes an element, twice as many. Make the zeros float32 from the start.",
    replace(
        "zeros.scatter_(-1, ids[..., None], 1.0)",
        "zeros.long().scatter_(-1, ids[..., None], 1).float()",
    ),
    cost=True,
)
one_hot_by_scatter.mistake(
    "The values are right, but a Python loop asks every id of the vocabulary in turn. One scatter_ "
    "writes them all.",
    replace(
        "zeros.scatter_(-1, ids[..., None], 1.0)",
        "torch.stack([(ids == v).float() for v in range(vocab_size)], -1)",
    ),
    cost=True,
)
one_hot_by_scatter.alternative("compare with every id of the vocabulary")(
    lambda ids, vocab_size: (ids[..., None] == torch.arange(vocab_size, device=ids.device)).float()
)


@one_hot_by_scatter.alternative("index_put on the flat result")
def _(ids, vocab_size):
    flat = torch.zeros(ids.numel(), vocab_size, device=ids.device)
    flat[torch.arange(ids.numel()), ids.reshape(-1)] = 1.0
    return flat.view(*ids.shape, vocab_size)


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
    yield call(large, torch.tensor([[1, 0]])), "the largest logits are the targets': log 1"
    yield call(normal(2, 2, 5) - 1000, torch.tensor([[3, 0], [1, 4]])), "logits far below zero"
    masked = torch.tensor([[[0.5, -INF, 1.5]]])
    yield call(masked, torch.tensor([[2]])), "a word ruled out by a logit of -inf"
    yield call(masked, torch.tensor([[1]])), "the target itself is ruled out: log 0"
    huge = torch.tensor([[[1e30, -1e30, 0.0]]])
    yield call(huge, torch.tensor([[1]])), "logits of any finite size"
    yield call(normal(2, 3, 4, dtype=torch.float64), integers(4, 2, 3)), "float64"
    yield call(normal(1, 1, 1), torch.tensor([[0]])), "a vocabulary of one"
    yield call(normal(3, 1, 4), torch.tensor([[2], [0], [3]])), "one position in each row"
    yield call(normal(0, 3, 4), torch.empty(0, 3, dtype=torch.int64)), "an empty batch"
    none = torch.empty(0, 3, dtype=torch.int64)
    yield call(normal(0, 3, 4, dtype=torch.float64), none), "an empty batch in float64"
    yield call(draws.scattered(normal(2, 3, 4)), integers(4, 2, 3)), "not contiguous"
    for half in (torch.bfloat16, torch.float16):
        logits = 4 * normal(2, 3, 500, dtype=half)
        yield call(logits, integers(500, 2, 3)), "half precision: count in float32, and return it"
    yield call(normal(3, 3, 3), integers(3, 3, 3)), "B, T and V equal"


TOKENS = (2, 3, 8), (16, 24, 8), (16, 24, 12)
gather_log_probs.contract(
    contracts.constant_kernels(
        [call(normal(B, T, V), integers(V, B, T)) for B, T, V in TOKENS],
        says="all in torch, no Python loop over the tokens or the vocabulary",
    )
)
gather_log_probs.contract(
    contracts.largest_tensor(
        [call(normal(*TOKENS[1]), integers(8, 16, 24))],
        limit=2 * nbytes(*TOKENS[1]),
        says="no (B, T, B, T) tensor",
    )
)
CONVERTED_LATE = (
    "You convert the result to float32 when it has been computed, and rounded, in half precision. Convert "
    "the logits, before anything is counted."
)
gather_log_probs.slips(
    {
        replace(
            "picked - log_sum_exp",
            "logits.softmax(-1).log().gather(-1, targets[..., None])[..., 0]",
        ): "log(softmax(x)) leaves the log scale and comes back: a probability below 1e-45 rounds to 0, "
        "and its log is -inf. log_softmax subtracts instead of dividing.",
        replace(
            " - log_sum_exp", ""
        ): "These are the targets' logits, not yet normalised: they are "
        "not log-probabilities until the log-sum-exp over the vocabulary is subtracted.",
        replace(
            "- log_sum_exp", "- logits.logsumexp(1).gather(-1, targets)"
        ): "You normalised over "
        "the positions. The probabilities that sum to 1 are those of the words at one position: dim=-1.",
        replace(
            "picked - log_sum_exp", "logits.log_softmax(0).gather(-1, targets[..., None])[..., 0]"
        ): "You normalised over the batch. The probabilities that sum to 1 are those of the words at one "
        "position: dim=-1.",
        replace("picked - log_sum_exp", "(picked - log_sum_exp).exp()"): "These are probabilities; "
        "their logarithm is asked for.",
        replace("picked - log_sum_exp", "log_sum_exp - picked"): "The sign is the loss's: a "
        "log-probability is never above zero.",
        replace(
            ".squeeze(-1)", "", "logsumexp(dim=-1", "logsumexp(dim=-1, keepdim=True"
        ): "You kept the axis that gather left behind, of size one: squeeze it.",
        replace("picked - log_sum_exp", "(picked - log_sum_exp).squeeze()"): "squeeze() without an "
        "axis also removes a batch of one, or a single position. Name the axis that gather left "
        "behind: squeeze(-1).",
        replace(
            ".squeeze(-1)", ".squeeze()"
        ): "squeeze() without an axis also removes the axis of a "
        "single position, and (B,) no longer lines up with (B, 1). Name the axis that gather left "
        "behind: squeeze(-1).",
        replace(
            "    log_sum_exp = logits.logsumexp(dim=-1)",
            "    logits = logits - logits.max()\n    log_sum_exp = logits.exp().sum(dim=-1).log()",
        ): "The maximum that you subtract is that of the whole tensor. In a row far below it every exp "
        "rounds to 0, whose log is -inf, and an empty batch has no maximum. Subtract each row's own, as "
        "logsumexp does.",
        replace(
            "    log_sum_exp = logits.logsumexp(dim=-1)",
            "    logits = logits - (logits.max() if logits.numel() else 0.0)\n"
            "    log_sum_exp = logits.exp().sum(dim=-1).log()",
        ): "The maximum that you subtract is not each row's own. In a row far below it every exp "
        "rounds to 0, whose log is -inf. Take it over the words alone, as logsumexp does.",
        replace("logsumexp(dim=-1)", "exp().sum(dim=-1).log()"): "exp of a logit beyond 88 is "
        "infinite in float32, so the log of the sum is infinite too. Subtract the largest logit "
        "first, as logsumexp and log_softmax do.",
        replace(
            "picked - log_sum_exp", "(picked.exp() / log_sum_exp.exp()).log()"
        ): "exp of a logit "
        "beyond 88 is infinite in float32, and infinity / infinity is NaN. Subtract the largest "
        "logit first, as softmax does.",
        replace("picked - log_sum_exp", "logits.log_softmax(-1)[..., targets]"): "log_probs[..., "
        "targets] looks every target up at every position, (B, T, B, T). gather walks both in step.",
        replace(
            "    logits =",
            "    if not logits.numel():\n        return logits.float().sum(dim=-1)\n    logits =",
        ): "For an empty batch your result is float32. float64 stays float64 there, too.",
        replace("picked - log_sum_exp", "(picked - log_sum_exp).mean()"): "This is one number, a "
        "mean. Each position has a log-probability of its own, (B, T).",
        replace(
            "picked - log_sum_exp", "(picked - log_sum_exp) / math.log(2)"
        ): "These are bits, by a logarithm to base 2. Nats take the natural logarithm.",
        replace(
            "    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))\n", ""
        ): "Half precision has two to four digits: a log-probability near "
        "-10 is off by hundredths. Convert the logits to float32 first, and return float32.",
        replace(
            "    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))\n",
            "",
            "picked - log_sum_exp",
            "logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]"
            ".to(torch.promote_types(logits.dtype, torch.float32))",
        ): CONVERTED_LATE,
        replace(
            "    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))\n",
            "",
            "picked - log_sum_exp",
            "(picked - log_sum_exp).to(torch.promote_types(logits.dtype, torch.float32))",
        ): CONVERTED_LATE,
        replace(
            "torch.promote_types(logits.dtype, torch.float32)", "torch.float32"
        ): "You count in "
        "float32 also what came in float64. Only half precision needs to be converted.",
        replace(
            "logits.gather(",
            "logits.view(-1, logits.size(-1)).gather(",
            "targets[..., None]).squeeze(-1)",
            "targets.reshape(-1, 1)).view(targets.shape)",
        ): "view raises where no strides can merge the first two axes. reshape copies there.",
    }
)
gather_log_probs.mistake(
    "The values are right, but log_probs[..., targets] looks every target up at every position: "
    "(B, T, B, T), of which you keep a diagonal. gather walks both in step.",
    replace(
        "logits.gather(-1, targets[..., None]).squeeze(-1)",
        "logits.flatten(0, 1)[:, targets.flatten()].diagonal().view(targets.shape)",
    ),
    cost=True,
)


@gather_log_probs.mistake(
    "The values are right, but a Python loop picks one token at a time. gather picks them all in one "
    "kernel.",
    cost=True,
)
def _(logits, targets):
    log_probs = logits.log_softmax(-1, torch.promote_types(logits.dtype, torch.float32))
    out = torch.zeros(targets.shape, dtype=log_probs.dtype)
    for b in range(targets.size(0)):
        for t in range(targets.size(1)):
            out[b, t] = log_probs[b, t, targets[b, t]]
    return out


@gather_log_probs.alternative("log_softmax in float32 at least, then gather")
def _(logits, targets):
    log_probs = (logits.float() if logits.itemsize == 2 else logits).log_softmax(-1)
    return log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


@gather_log_probs.alternative("cross_entropy on flat rows, in float64")
def _(logits, targets):
    rows = logits.reshape(-1, logits.size(-1)).double()
    nll = F.cross_entropy(rows, targets.reshape(-1), reduction="none")
    return -nll.view(targets.shape).to(torch.promote_types(logits.dtype, torch.float32))


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
    yield call(draws.scattered(normal(5, 3)), normal(4, 3)), "not contiguous"
    for a, b in ((1.3074229, 1.307423), (1.2436583, 1.24365854), (1.6340787, 1.6340791)):
        pair = torch.tensor([[a]]), torch.tensor([[b]])
        yield call(*pair), "rounding leaves less than zero, which is raised to zero"
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
            call(normal(N, D), normal(M, D, seed=1))
            for N, M, D in ((32, 48, 8), (64, 96, 8), (64, 96, 24))
        ],
        says="all in torch, no Python loop over the points or their coordinates",
    )
)
CLAMPED_EARLY = (
    "You raise to zero before both norms are added. One norm less 2 x·y may well be below zero; clamp the "
    "whole sum."
)
pairwise_sq_distances.slips(
    {
        replace("(x_sq + y_sq - 2 * x @ y.T)", "x_sq + (y_sq - 2 * x @ y.T)"): CLAMPED_EARLY,
        replace("(x_sq + y_sq - 2 * x @ y.T)", "y_sq + (x_sq - 2 * x @ y.T)"): CLAMPED_EARLY,
        replace(
            "- 2 * x @ y.T", "+ x @ y.mul_(-2).T"
        ): "You scale y in place, and the caller's y changes. `-2 * y`, or `2 * x`, makes a new tensor.",
        replace(".clamp(min=0)", ""): "Some of your squared distances are negative: |x|² + |y|² - "
        "2 x·y rounds a little below zero where x is near y, and the square root of that is NaN. "
        "Raise them to zero.",
        replace(".clamp(min=0)", ".clamp(min=0).sqrt()"): "These are distances; their squares are "
        "asked for.",
        replace("2 * x", "x"): "The cross term counts twice: |x|² + |y|² - 2 x·y.",
        replace(".clamp(min=0)", ".clamp(min=0).T"): "This is (M, N): rows belong to x, columns "
        "to y.",
        replace(".clamp(min=0)", ".clamp(min=0) / x.size(1)"): "You took the mean over the D "
        "coordinates. A squared distance is their sum.",
        replace("- 2", "+ 2"): "The sign of the cross term: (x - y)² has minus 2 x·y. This is the "
        "distance from x to -y.",
        replace("clamp(min=0)", "abs()"): "You turn what is below zero round: abs makes an error "
        "of it. Raise it to zero instead.",
        replace(
            "    x_sq = ", "    x, y = x - x.mean(dim=0), y - y.mean(dim=0)\n    x_sq = "
        ): "You move x and y each by its own mean, which moves them against each other. A shift leaves the "
        "distances alone only where it is the same for both.",
        replace(
            "    x_sq = ",
            "    x, y = (a / a.norm(dim=1, keepdim=True) for a in (x, y))\n    x_sq = ",
        ): "You bring every row to length 1 first. That is 2 - 2 · cosine; the distances of the rows as "
        "they are, are asked for.",
        replace("[:, None]", ""): "(N,) and (M,) do not broadcast to (N, M). The norms of x go "
        "down the rows: [:, None].",
        replace(
            "x.square().sum(dim=1)", "x.norm(dim=1)", "y.square().sum(dim=1)", "y.norm(dim=1)"
        ): "You add the norms, not their squares: |x|² + |y|² - 2 x·y.",
    }
)
pairwise_sq_distances.mistake(
    "The values are right, but x[:, None] - y[None] is an (N, M, D) tensor: for 10,000 by 10,000 "
    "points of 768 numbers, 307 GB. The matmul needs N × M.",
    cost=True,
)(lambda x, y: (x[:, None] - y[None]).square().sum(-1))


@pairwise_sq_distances.mistake(
    "The values are right, but a Python loop over the points launches kernels for each. One matmul "
    "has all the dot products.",
    cost=True,
)
def _(x, y):
    rows = [(row - y).square().sum(-1) for row in x]
    return torch.stack(rows) if rows else x.new_zeros(0, len(y))


@pairwise_sq_distances.mistake(
    "The values are right, but a Python loop over the coordinates launches kernels for each. One matmul "
    "sums over all of them.",
    cost=True,
)
def _(x, y):
    total = x.new_zeros(len(x), len(y))
    for d in range(x.size(1)):
        total = total + (x[:, d, None] - y[:, d]) ** 2
    return total


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
xavier_uniform.by_hand(lambda: [(call(2, 3, gain=0.0, generator=5), torch.zeros(2, 3))])


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


xavier_uniform.slips(
    {
        replace("6.0", "2.0"): "Your bound is the standard deviation sqrt(2 / (fan_in + "
        "fan_out)). A uniform number on [-a, a] has variance a²/3, so a is sqrt(3) times larger.",
        replace("2.0 * torch", "torch", " - 1.0", ""): "Your numbers run from 0 to a: torch.rand "
        "was scaled but not shifted, so their mean is not zero.",
        replace("6.0 / (fan_in + fan_out)", "3.0 / fan_in"): "You used fan_in alone. That keeps "
        "the variance on the way forward (He, LeCun); Glorot's compromise with the way back is "
        "fan_in + fan_out.",
        replace(
            "6.0", "2.0", "2.0 * torch.rand(", "torch.randn(", " - 1.0", ""
        ): "A normal distribution with Glorot's variance (torch's xavier_normal_); a uniform one is "
        "asked for.",
        replace("rand(fan_out, fan_in", "rand(fan_in, fan_out"): "The shape is (fan_in, fan_out). "
        "torch.nn.Linear keeps its weight as (out, in) and computes x @ W.T.",
        replace(", generator=generator", ""): "You did not hand the generator on: the numbers "
        "come from torch's global one, and whoever seeded the generator does not get the same "
        "weights again.",
        replace(
            "    bound", "    torch.rand(fan_out)\n    bound"
        ): "A generator is handed over, and "
        "torch's global one is drawn from all the same: a layer such as torch.nn.Linear, made on the "
        "way, draws a weight of its own. Start from torch.empty or torch.rand.",
        replace(
            "    bound",
            "    if generator is None:\n        generator = torch.Generator().manual_seed(0)\n"
            "    bound",
        ): "Without a generator your weights are the same every time: you make one with a seed of its "
        "own. None means torch's global generator, and torch.rand takes None for it.",
        replace("gain * ", ""): "The gain is not used. It multiplies the bound.",
        replace("2.0 * torch", "torch", "- 1.0", "- 0.5"): "Your numbers run from -a/2 to a/2. "
        "torch.rand is 1 wide and the interval from -a to a is 2a wide, so stretch it by 2a.",
        replace(
            "math.sqrt(6.0 / (fan_in + fan_out))", "6.0 / (fan_in + fan_out)"
        ): "The square root is missing: a = gain · sqrt(6 / (fan_in + fan_out)).",
        replace("gain * math.sqrt(6.0", "math.sqrt(gain * 6.0"): "The gain stands under the "
        "square root. It multiplies the bound from outside.",
        replace("6.0 / (fan_in + fan_out)", "6.0 / fan_in"): "This is He's bound, sqrt(6 / "
        "fan_in). Glorot's has both fans: sqrt(6 / (fan_in + fan_out)).",
        replace(
            "    bound",
            "    if generator is not None:\n        generator.manual_seed(0)\n    bound",
        ): "You seeded the generator anew, so every call gives the same weights. Whoever hands a "
        "generator over has seeded it.",
        replace(
            "return bound * (", "return torch.nn.Parameter(bound * ", "- 1.0)", "- bound)"
        ): "The weight requires a gradient. Return a plain tensor; whoever makes a parameter of it "
        "decides that.",
    }
)


@xavier_uniform.alternative("torch's own, in place on an empty tensor")
def _(fan_out, fan_in, gain=1.0, generator=None):
    weight = torch.empty(fan_out, fan_in)
    return torch.nn.init.xavier_uniform_(weight, gain, generator=generator)


@xavier_uniform.alternative("uniform_, drawn transposed")
def _(fan_out, fan_in, gain=1.0, generator=None):
    bound = gain * (6 / (fan_in + fan_out)) ** 0.5
    return torch.empty(fan_in, fan_out).uniform_(-bound, bound, generator=generator).T


for exercise, x in ((masked_mean, "x"), (gather_log_probs, "logits")):
    exercise.equivalent(
        f"{exercise.names[0]}: `torch.promote_types({x}.dtype, torch.float32)` → "
        f"`torch.promote_types(torch.float32, {x}.dtype)`",
        because="the dtype that holds both does not depend on their order",
    )
