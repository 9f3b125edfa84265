"""Predictions and the quiz of chapter 3."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

shapes = Prediction(
    "The shape of each result. Write the shapes below one another first.",
    code=(
        "a, b = torch.zeros(4, 1, 3), torch.zeros(5, 1)\n"
        "v, s = torch.zeros(3), torch.tensor(2.0)\n"
        "e = torch.zeros(0)"
    ),
    asks=[
        Ask(
            "(a + v).shape",
            truth="tuple((a + v).shape)",
            why="v counts as (1, 1, 3) and is repeated. a is not.",
        ),
        Ask(
            "(a + b).shape",
            truth="tuple((a + b).shape)",
            why="(4, 1, 3) and (1, 5, 1): on every axis one side is repeated.",
        ),
        Ask(
            "(b * s).shape",
            truth="tuple((b * s).shape)",
            why="A tensor without axes goes with every shape.",
        ),
        Ask(
            "(b + e).shape",
            truth="tuple((b + e).shape)",
            why="(5, 1) and (1, 0): the axis of size 1 is repeated no times. No error, and no element.",
        ),
    ],
)

cost = Prediction(
    "Bytes and strides. An element of float32 has 4 bytes.",
    setup="from course_utils import measure\n\ndef allocated(run):\n    with measure() as cost:\n        run()\n    return cost.bytes_allocated",
    code="x, y = torch.zeros(100, 1), torch.zeros(50)",
    asks=[
        Ask(
            "torch.broadcast_tensors(x, y)[0].stride()",
            truth="torch.broadcast_tensors(x, y)[0].stride()",
            why="x keeps its stride along the rows and repeats along the columns.",
        ),
        Ask(
            "Bytes allocated by torch.broadcast_tensors(x, y)",
            truth="allocated(lambda: torch.broadcast_tensors(x, y))",
            why="Both are views, with a stride of 0.",
        ),
        Ask(
            "Bytes allocated by x + y",
            truth="allocated(lambda: x + y)",
            why="Nothing for the operands, 100 · 50 · 4 bytes for the result.",
        ),
        Ask(
            "Bytes allocated by (x + y).sum()",
            truth="allocated(lambda: (x + y).sum())",
            why="The sum is one number of 4 bytes, but the table of 20,000 bytes is made before it is summed.",
        ),
    ],
)

loss = Prediction(
    "A model with one output a row, and targets from a file.",
    code="outputs, targets = torch.zeros(32, 1), torch.zeros(32)",
    asks=[
        Ask(
            "(outputs - targets).shape",
            truth="tuple((outputs - targets).shape)",
            why="targets is a row, (1, 32): every output meets every target.",
        ),
        Ask(
            "(outputs - targets).square().mean().ndim",
            truth="(outputs - targets).square().mean().ndim",
            why="A mean over everything is one number, whatever it was a mean of. That is why the bug is silent.",
        ),
        Ask(
            "(outputs[:, 0] - targets).shape",
            truth="tuple((outputs[:, 0] - targets).shape)",
            why="Both have one axis now: row by row, as meant.",
        ),
    ],
)

equations = Prediction(
    "The shape of each result. A letter that is missing after the arrow is summed over.",
    code="a, b = torch.zeros(2, 3, 4), torch.zeros(2, 4, 5)",
    asks=[
        Ask(
            'torch.einsum("bij,bjk->bik", a, b).shape',
            truth='tuple(torch.einsum("bij,bjk->bik", a, b).shape)',
            why="j is summed over; b stays: a matrix product for each entry of the batch.",
        ),
        Ask(
            'torch.einsum("bij,bjk->ik", a, b).shape',
            truth='tuple(torch.einsum("bij,bjk->ik", a, b).shape)',
            why="b is summed over as well.",
        ),
        Ask(
            'torch.einsum("bij->jb", a).shape',
            truth='tuple(torch.einsum("bij->jb", a).shape)',
            why="One operand: i is summed over, the other two change places.",
        ),
        Ask(
            'torch.einsum("bij,ckl->", a, b).shape',
            truth='tuple(torch.einsum("bij,ckl->", a, b).shape)',
            why="Every letter is summed over: one number.",
        ),
    ],
)

rearranged = Prediction(
    "Is the result a view of x?",
    setup=(
        "from einops import rearrange, repeat\n\n"
        "def shares(y):\n"
        "    return y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()"
    ),
    code="x = torch.zeros(2, 3, 8)  # (b, t, c)",
    asks=[
        Ask(
            'rearrange(x, "b t (g c) -> b g c t", g=2)',
            truth='shares(rearrange(x, "b t (g c) -> b g c t", g=2))',
            why="An axis is split and the axes change places: only shape and strides change.",
        ),
        Ask(
            'rearrange(x, "b t c -> (b t) c")',
            truth='shares(rearrange(x, "b t c -> (b t) c"))',
            why="b and t follow one another in memory: they merge.",
        ),
        Ask(
            'rearrange(x, "b t c -> b (c t)")',
            truth='shares(rearrange(x, "b t c -> b (c t)"))',
            why="Behind one another in this order, the elements are not one constant step apart: no stride describes it.",
        ),
        Ask(
            'repeat(x, "b t c -> b g t c", g=4)',
            truth='shares(repeat(x, "b t c -> b g t c", g=4))',
            why="A new axis of its own can have stride 0.",
        ),
        Ask(
            'repeat(x, "b t c -> (g b) t c", g=4)',
            truth='shares(repeat(x, "b t c -> (g b) t c", g=4))',
            why="Merged with another axis, the repetition has to be stored.",
        ),
    ],
)

rotary = Prediction(
    "q is one half of the queries' features, (B, T, H, D / 2); cos is a table (T, D / 2). Which of these lines give every position its own angles, whatever the sizes?",
    setup=(
        "def right(index):\n"
        "    table = torch.arange(4.0)[:, None].expand(4, 3)\n"
        "    q = torch.zeros(2, 4, 4, 3)\n"
        "    try:\n"
        "        found = q + table[index]\n"
        "    except RuntimeError:\n"
        "        return False\n"
        "    wanted = torch.arange(4.0)[None, :, None, None].expand(2, 4, 4, 3)\n"
        "    return torch.equal(found, wanted)"
    ),
    code="q, cos = torch.zeros(2, 4, 4, 3), torch.zeros(4, 3)",
    asks=[
        Ask(
            "q * cos",
            truth="right(...)",
            why="It runs, since T and H are both 4 here. But the table's T meets H, so each head gets the angles of one position.",
        ),
        Ask(
            "q * cos[:, None]",
            truth="right((slice(None), None))",
            why="(T, 1, D / 2): T meets T, and the heads are repeated.",
        ),
        Ask(
            "q * cos[None, :, None]",
            truth="right((None, slice(None), None))",
            why="(1, T, 1, D / 2): an axis of size 1 in front is what broadcasting adds anyway.",
        ),
        Ask(
            "q * cos[None]",
            truth="right((None,))",
            why="(1, T, D / 2) still aligns T with the heads.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "`x` is (B, T, C). Which line subtracts from every position the mean of its channels, for all sizes?",
            choices=[
                Choice(
                    "`x - x.mean(-1)`",
                    why="(B, T) is aligned at the last axis: T meets C. It raises, or, where the sizes happen to fit, subtracts something else.",
                ),
                Choice(
                    "`x - x.mean(-1, keepdim=True)`",
                    right=True,
                    why="(B, T, 1) keeps the place of the axis, and that axis is repeated.",
                ),
                Choice(
                    "`x - x.mean()`",
                    why="One mean over everything goes with every shape, and is another number.",
                ),
                Choice(
                    "`x - x.mean(-1)[None]`",
                    why="An axis in front changes nothing: (1, B, T) still aligns T with C.",
                ),
            ],
        ),
        Question(
            "A bias (C,) was added to activations (B, T, C). The gradient with respect to the result is (B, T, C). What is the bias's gradient?",
            choices=[
                Choice(
                    "Its mean over B and T.",
                    why="Each of the B · T copies contributes in full. A mean comes in only if the loss takes one.",
                ),
                Choice(
                    "Its sum over B and T.",
                    right=True,
                    why="The bias was used B · T times, and the gradients of all uses add up.",
                ),
                Choice(
                    "Its slice at the first position.",
                    why="That is one copy's share of it.",
                ),
            ],
        ),
        Question(
            'What does `torch.einsum("bthd,bshd->bts", q, k)` compute?',
            choices=[
                Choice(
                    "Attention scores, one matrix for each head.",
                    why="For that h would have to stand after the arrow.",
                ),
                Choice(
                    "The sum over all heads of their scores.",
                    right=True,
                    why="h and d are both missing after the arrow: both are summed over.",
                ),
                Choice(
                    "An error: h stands in both operands but not in the result.",
                    why="So does d. Such letters are summed over.",
                ),
            ],
        ),
        Question(
            'A function is annotated `x: Float[Tensor, "N"], y: Float[Tensor, "N"]`, without a decorator or an import hook. What does a call with shapes (4,) and (4, 1) do?',
            choices=[
                Choice(
                    "It raises TypeCheckError.",
                    why="Only a checker does: `@jaxtyped(typechecker=beartype)`, or the import hook.",
                ),
                Choice(
                    "It runs as if nothing were annotated.",
                    right=True,
                    why="Python does not look at annotations. They are documentation until something checks them.",
                ),
                Choice(
                    "It reshapes y to (4,).",
                    why="An annotation never changes a value.",
                ),
            ],
        ),
        Question(
            "Keys of shape (B, kv, S, D) are to meet queries of kv · G heads. Which line stores no key twice?",
            choices=[
                Choice(
                    "`q @ k.repeat_interleave(G, dim=1).mT`",
                    why="repeat_interleave stores each key G times.",
                ),
                Choice(
                    "`q.unflatten(1, (kv, G)) @ k[:, :, None].expand(-1, -1, G, -1, -1).mT`",
                    why="expand stores nothing, but matmul merges the batch axes (B, kv, G) before it multiplies. An axis of stride 0 does not merge with the others, so every key is stored G times after all.",
                ),
                Choice(
                    '`torch.einsum("bngtd,bnsd->bngts", q.unflatten(1, (kv, G)), k)`',
                    right=True,
                    why="k has no letter g. einsum merges g and t into the rows of one matrix for each key head.",
                ),
            ],
        ),
    ]
)
