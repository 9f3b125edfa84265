"""Predictions and the quiz of chapter 2."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

addresses = Prediction(
    "Strides, an offset and a distance in bytes. An element of x has 8 bytes.",
    code="x = torch.arange(24).reshape(2, 3, 4)",
    asks=[
        Ask(
            "x.stride()",
            truth="x.stride()",
            why="One step along an axis skips all that is inside it: 3·4, 4, 1.",
        ),
        Ask(
            "x[1].storage_offset()",
            truth="x[1].storage_offset()",
            why="Index 1 on the first axis is one step of its stride, 12.",
        ),
        Ask(
            "x[:, ::2].stride()",
            truth="x[:, ::2].stride()",
            why="Every second row: the middle stride doubles, the others stay.",
        ),
        Ask(
            "x[1, 2, 3].data_ptr() - x.data_ptr()",
            truth="x[1, 2, 3].data_ptr() - x.data_ptr()",
            why="Position 1·12 + 2·4 + 3·1 = 23, times 8 bytes.",
        ),
    ],
)

views_or_copies = Prediction(
    "Which of these share the storage of x? Two pairs look almost the same.",
    code="x = torch.arange(12).reshape(3, 4)",
    setup=(
        "def shares(y):\n"
        "    return y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()"
    ),
    asks=[
        Ask("x[1:2]", truth="shares(x[1:2])", why="A slice: another offset, another size."),
        Ask(
            "x[[1]]",
            truth="shares(x[[1]])",
            why="The same row in the same shape. But a list may name any rows in any order, so torch copies without a look at what it names.",
        ),
        Ask(
            "x[:, 1:3].T",
            truth="shares(x[:, 1:3].T)",
            why="Two views, one after the other: another offset, and the strides swapped.",
        ),
        Ask(
            "x[:2].flatten()",
            truth="shares(x[:2].flatten())",
            why="`flatten` is a `reshape`. The first two rows follow one another in storage, so one stride walks both.",
        ),
        Ask(
            "x[:, :2].flatten()",
            truth="shares(x[:, :2].flatten())",
            why="The same call, but between one row's two elements and the next row's two others are left out. No single stride does that, so it copies.",
        ),
        Ask(
            "x.long()",
            truth="shares(x.long())",
            why="x is int64 already, so you get x itself.",
        ),
    ],
)

which_views = Prediction(
    "Which of these can be a view?",
    code="x = torch.arange(12).reshape(3, 4)  # strides (4, 1)\nt = x.T  # strides (1, 4)",
    asks=[
        Ask(
            "x.view(2, 6)",
            truth="can_view(lambda: x.view(2, 6))",
            why="The axes of x merge into one of 12, and that splits as you like.",
        ),
        Ask(
            "t.view(12)",
            truth="can_view(lambda: t.view(12))",
            why="To merge, t's outer stride would have to be 4 · 3 = 12; it is 1.",
        ),
        Ask(
            "t.view(2, 2, 3)",
            truth="can_view(lambda: t.view(2, 2, 3))",
            why="Nothing has to merge: 4 splits into 2 × 2, with strides 2 and 1.",
        ),
        Ask(
            "x[:, :2].view(6)",
            truth="can_view(lambda: x[:, :2].view(6))",
            why="From row to row it is 4, but a row of the slice is only 2 long.",
        ),
        Ask(
            "x[:, ::2].view(6)",
            truth="can_view(lambda: x[:, ::2].view(6))",
            why="Strides (4, 2), and 4 = 2 · 2: every second element, evenly, across the rows.",
        ),
        Ask(
            "x[:, ::2].view(3, 2, 1)",
            truth="can_view(lambda: x[:, ::2].view(3, 2, 1))",
            why="Only an axis of size one is new, and that is free.",
        ),
    ],
)

expanded_bytes = Prediction(
    "A bias for a batch of 1024, in float32: 4 bytes an element.",
    code="bias = torch.zeros(1024)\ne = bias.expand(1024, 1024)",
    asks=[
        Ask(
            "e.stride()", truth="e.stride()", why="Every step along the new axis stays where it is."
        ),
        Ask(
            "Bytes of e's storage",
            truth="e.untyped_storage().nbytes()",
            why="The storage is bias's own: 1024 elements of 4 bytes.",
        ),
        Ask(
            "Bytes of the storage of e.contiguous()",
            truth="e.contiguous().untyped_storage().nbytes()",
            why="A contiguous tensor holds all 1024 · 1024 elements: 4 MiB.",
        ),
    ],
)

channels_last = Prediction(
    "Shape and strides in the memory format `torch.channels_last`.",
    code="x = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)  # (N, C, H, W)",
    asks=[
        Ask(
            "tuple(x.shape)",
            truth="tuple(x.shape)",
            why="A memory format moves elements, never axes.",
        ),
        Ask(
            "x.stride()",
            truth="x.stride()",
            why="The channels lie side by side: 1. Then W: 3, H: 5·3 = 15, N: 4·15 = 60.",
        ),
        Ask(
            "x.is_contiguous()",
            truth="x.is_contiguous()",
            why="Without an argument, it asks for row-major order of N, C, H, W.",
        ),
        Ask(
            "x.relu().stride() == x.stride()",
            truth="x.relu().stride() == x.stride()",
            why="Elementwise operations keep the layout that they find.",
        ),
    ],
)

cache_lines = Prediction(
    "A cache line holds 64 bytes, that is 16 elements of x. How many lines hold these elements?",
    setup="from course_utils.reference.strides import cache_lines",
    code="x = torch.zeros(64, 64)  # float32",
    asks=[
        Ask("x[0], a row", truth="cache_lines(x[0])", why="64 neighbours, 16 a line."),
        Ask(
            "x[:, 0], a column",
            truth="cache_lines(x[:, 0])",
            why="Each element lies 256 bytes after the last: a line for each.",
        ),
        Ask(
            "x[:16, :16]",
            truth="cache_lines(x[:16, :16])",
            why="16 rows, and 16 elements of a row fill one line.",
        ),
    ],
)

kept_alive = Prediction(
    "How many bytes does each of these keep in memory once `w` itself is gone?",
    setup="def kept(y):\n    return y.untyped_storage().nbytes()",
    code="w = torch.zeros(1000, 1000)  # float32",
    asks=[
        Ask(
            "w[:1]",
            truth="kept(w[:1])",
            why="A view holds on to the whole storage: 1000 · 1000 · 4 bytes.",
        ),
        Ask(
            "w[:1].clone()",
            truth="kept(w[:1].clone())",
            why="A clone has a storage of its own: one row.",
        ),
        Ask(
            "w[:1].contiguous()",
            truth="kept(w[:1].contiguous())",
            why="The row is contiguous already, so nothing is copied, and all of w stays.",
        ),
        Ask(
            "w[:, :1].contiguous()",
            truth="kept(w[:, :1].contiguous())",
            why="The column is not contiguous, so this one is a copy of 1000 elements.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A function gets `y`, (B, T, h, d) in any layout, and wants it as (B, T, C). Which line is always right, and copies only where no view will do?",
            choices=[
                Choice(
                    "`y.contiguous().view(B, T, C)`",
                    why="The shape is right, but it copies whenever y is not contiguous, also where the axes would merge without a copy.",
                ),
                Choice(
                    "`y.clone().view(B, T, C)`",
                    why="`clone` always copies, and it keeps the order of y's strides: for a transpose the view raises all the same.",
                ),
                Choice(
                    "`y.reshape(B, T, C)`",
                    right=True,
                    why="`reshape` computes the strides first and copies only where there are none.",
                ),
                Choice(
                    "`y.as_strided((B, T, C), (T·C, C, 1))`",
                    why="It never copies: it states the strides of a contiguous y, and reads any other y in the wrong order.",
                ),
            ],
        ),
        Question(
            "Which is true of a tensor of shape (4, 1, 6) with strides (6, 100, 1)?",
            choices=[
                Choice(
                    "It is not contiguous: the middle stride should be 6.",
                    why="Nothing is ever multiplied by that stride except index 0.",
                ),
                Choice(
                    "It is contiguous.",
                    right=True,
                    why="The axis of size one is never stepped along; the others have the strides of a new tensor.",
                ),
                Choice(
                    "Its storage must hold at least 100 elements.",
                    why="The last element is at 3·6 + 0·100 + 5·1 = 23: 24 elements are enough.",
                ),
            ],
        ),
        Question(
            "`e = x.expand(8, -1)` for a vector x. What does `e += 1` do?",
            choices=[
                Choice(
                    "It adds 1 to x.",
                    why="That is what one row would do; torch refuses since eight do.",
                ),
                Choice(
                    "It adds 8 to x.",
                    why="It would if each row were written in turn; torch refuses since the order is not defined.",
                ),
                Choice(
                    "It makes a full copy and adds 1 to that.",
                    why="An in-place operation never moves a tensor to a new storage.",
                ),
                Choice(
                    "It raises RuntimeError.",
                    right=True,
                    why="Eight rows share the same slots. torch sees the stride 0 and refuses to write.",
                ),
            ],
        ),
        Question(
            "During generation you keep `hidden = h[:, -1]` of a large (B, T, C) tensor h in a list, and memory grows as if you kept every h. Why?",
            choices=[
                Choice(
                    "Each `hidden` is a view, and a view keeps its whole storage alive.",
                    right=True,
                    why="B·C elements are visible and B·T·C are held. `h[:, -1].clone()` lets h go.",
                ),
                Choice(
                    "Indexing with -1 copies the tensor.",
                    why="An integer index is a view: an offset and one axis less.",
                ),
                Choice(
                    "Without `.contiguous()`, torch may not free the part of it that nobody sees.",
                    why="`contiguous` lets h go only where it copies. For B = 1 the row is contiguous already, and you get the view itself.",
                ),
            ],
        ),
        Question(
            "`a.T.sum()` takes as long as `a.sum()`, but `out.copy_(a.T)` takes much longer than `out.copy_(a)`. Why?",
            choices=[
                Choice(
                    "`a.T` copies a first.",
                    why="`a.T` allocates nothing; it swaps two sizes and two strides.",
                ),
                Choice(
                    "A sum may visit the elements in any order; a copy between two layouts has to jump in one of them.",
                    right=True,
                    why="torch sorts the axes by stride before it loops. One order suits one layout, not two different ones.",
                ),
                Choice(
                    "A sum reads fewer elements.", why="Both read every element of a exactly once."
                ),
            ],
        ),
    ]
)
