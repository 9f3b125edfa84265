"""Chapter 1's predictions and its quiz."""

from . import Ask, Choice, Prediction, Question, Quiz

how_many_bytes = Prediction(
    "How large is it?",
    setup="import torch",
    code="hidden = torch.zeros(2, 5, 8)     # two sequences, five positions, eight features",
    asks=[
        Ask("hidden.numel()", "hidden.numel()", "2 · 5 · 8 elements."),
        Ask(
            "hidden.nbytes",
            "hidden.nbytes",
            "The default dtype is float32, four bytes an element: 80 · 4.",
        ),
        Ask(
            "hidden.bfloat16().nbytes",
            "hidden.bfloat16().nbytes",
            "Two bytes an element. Half the memory is the first reason to train in bfloat16.",
        ),
        Ask(
            "hidden.long().nbytes",
            "hidden.long().nbytes",
            "int64 has eight bytes an element: token ids in int64 are four times as large as in "
            "uint16.",
        ),
        Ask(
            "hidden[0].untyped_storage().nbytes()",
            "hidden[0].untyped_storage().nbytes()",
            "hidden[0] is a view of half the elements, and its storage is still the whole one.",
        ),
    ],
)

promotion = Prediction(
    "Which dtype comes out? Answer int64, float32 and so on",
    setup="import torch",
    code=(
        "ids = torch.tensor([3, 1, 2])                # int64\n"
        "keep = ids > 1                               # bool\n"
        "half = torch.ones(3, dtype=torch.bfloat16)"
    ),
    asks=[
        Ask(
            "(ids / 2).dtype",
            "(ids / 2).dtype",
            "True division of integers gives the default float.",
            accept=("f32",),
        ),
        Ask(
            "(ids // 2).dtype",
            "(ids // 2).dtype",
            "Floor division stays among the integers.",
            accept=("i64",),
        ),
        Ask(
            "keep.sum().dtype",
            "keep.sum().dtype",
            "Summing booleans counts them, in int64.",
            accept=("i64",),
        ),
        Ask(
            "(half * 2.5).dtype",
            "(half * 2.5).dtype",
            "A Python number has a category (float) but no size, so the tensor's dtype stays.",
            accept=("bf16",),
        ),
        Ask(
            "(half * torch.tensor(2.5)).dtype",
            "(half * torch.tensor(2.5)).dtype",
            "A tensor without axes counts like a Python number: of the same category, it gives way.",
            accept=("bf16",),
        ),
        Ask(
            "(half * torch.tensor([2.5])).dtype",
            "(half * torch.tensor([2.5])).dtype",
            "One axis, and it is a full participant: bfloat16 with float32 is float32. So a scale of "
            "shape (1,) silently doubles an activation's memory.",
            accept=("f32",),
        ),
    ],
)

shared_memory = Prediction(
    "Whose memory is it?",
    setup="import numpy as np\nimport torch",
    code="a = np.zeros(4)     # NumPy's default: float64\n# each line makes t anew; then a[0] = 7.0. Does t[0] become 7?",
    asks=[
        Ask(
            "`t = torch.from_numpy(a)`",
            "np.shares_memory(torch.from_numpy(a).numpy(), a)",
            "from_numpy wraps the array's memory; nothing is copied.",
        ),
        Ask(
            "`t = torch.tensor(a)`",
            "np.shares_memory(torch.tensor(a).numpy(), a)",
            "torch.tensor always copies.",
        ),
        Ask(
            "`t = torch.as_tensor(a)`",
            "np.shares_memory(torch.as_tensor(a).numpy(), a)",
            "No other dtype or device is asked for, so as_tensor wraps.",
        ),
        Ask(
            "`t = torch.from_numpy(a).float()`",
            "np.shares_memory(torch.from_numpy(a).float().numpy(), a)",
            "float64 to float32 needs new memory.",
        ),
        Ask(
            "`t = torch.from_numpy(a).double()`",
            "np.shares_memory(torch.from_numpy(a).double().numpy(), a)",
            "It already is float64, so .double() returns the very same tensor.",
        ),
    ],
)

index_shapes = Prediction(
    "Which shape comes out?",
    setup="import torch",
    code=(
        "hidden = torch.zeros(2, 5, 8)      # (B, T, D)\n"
        "keep = torch.tensor([[True] * 4 + [False], [True] * 3 + [False] * 2])\n"
        "last = torch.tensor([3, 2])"
    ),
    asks=[
        Ask("hidden[0].shape", "tuple(hidden[0].shape)", "An integer removes its axis."),
        Ask(
            "hidden[:, -1:].shape",
            "tuple(hidden[:, -1:].shape)",
            "A slice keeps its axis, even where it has one element.",
        ),
        Ask(
            "hidden[..., None].shape",
            "tuple(hidden[..., None].shape)",
            "The ellipsis stands for all axes, and None adds one.",
        ),
        Ask(
            "hidden[keep].shape",
            "tuple(hidden[keep].shape)",
            "The mask covers B and T: both become one axis, as long as it has True: 4 + 3.",
        ),
        Ask(
            "hidden[[0, 1], last].shape",
            "tuple(hidden[[0, 1], last].shape)",
            "Two index lists are walked in step: the pairs (0, 3) and (1, 2), two states.",
        ),
        Ask(
            "hidden[:, last].shape",
            "tuple(hidden[:, last].shape)",
            "All rows, and from each the same two positions, 3 and 2.",
        ),
    ],
)

which_views = Prediction(
    "Which of these are views of x?",
    setup=(
        "import torch\n"
        "def shares(a, b):\n"
        "    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()"
    ),
    code="x = torch.arange(12).reshape(3, 4)",
    asks=[
        Ask("x[:, ::2]", "shares(x[:, ::2], x)", "A slice is a new step through the same storage."),
        Ask(
            "x[:, [0, 2]]",
            "shares(x[:, [0, 2]], x)",
            "An index list may skip about, so it is copied.",
        ),
        Ask("x.T", "shares(x.T, x)", "Two strides change places; no element moves."),
        Ask("x.flatten()", "shares(x.flatten(), x)", "Already in order: nothing to copy."),
        Ask(
            "x.T.flatten()",
            "shares(x.T.flatten(), x)",
            "No single step visits the columns one after the other, so flatten copies, silently.",
        ),
        Ask("x.chunk(3)[1]", "shares(x.chunk(3)[1], x)", "split and chunk are slices."),
        Ask("x[x > 5]", "shares(x[x > 5], x)", "What a mask selects has no regular step."),
    ],
)

repeated_index = Prediction(
    "What is in counts?",
    setup="import torch",
    code=(
        "ids = torch.tensor([1, 1, 1, 3])\n"
        "counts = torch.zeros(5)\n"
        "counts[ids] += 1\n"
        "added = torch.zeros(5).index_add_(0, ids, torch.ones(4))  # adds each 1 at its id"
    ),
    asks=[
        Ask(
            "counts[1]",
            "counts[1].item()",
            "`counts[ids] += 1` reads counts[ids] once (four zeros), adds, and writes four ones back; "
            "three of them to the same place.",
        ),
        Ask("added[1]", "added[1].item()", "index_add_ accumulates: one for each occurrence."),
    ],
)

quiz = Quiz(
    [
        Question(
            "`h` is (B, T, D) and `n` holds B lengths. What is `h[:, n - 1]`?",
            [
                Choice(
                    "(B, D): the last state of each row",
                    "That is `h[torch.arange(B), n - 1]`: rows and columns must both be index tensors "
                    "to be walked in step.",
                ),
                Choice(
                    "(B, B, D): every row at every one of the B positions",
                    "`:` takes all rows, and the index list picks columns for all of them.",
                    right=True,
                ),
                Choice(
                    "(B, T, D), with the states behind each row's length removed",
                    "Indexing cannot make rows of unequal length.",
                ),
                Choice(
                    "An error, since n has no T elements",
                    "An index list may have any length; each of its elements only has to be a valid "
                    "position.",
                ),
            ],
        ),
        Question(
            "Padding positions may hold NaN. Which sum over T is safe? (`keep` is (B, T, 1), bool.)",
            [
                Choice("(x * keep).sum(1)", "NaN · 0 is NaN, and one NaN spoils the sum."),
                Choice(
                    "torch.where(keep, x, 0.0).sum(1)",
                    "`where` chooses; what it does not choose never enters the sum.",
                    right=True,
                ),
                Choice(
                    "(x + (~keep) * -torch.inf).sum(1)",
                    "Minus infinity hides scores from a softmax; in a sum it is the whole result. And "
                    "at the positions kept, 0 · inf is NaN.",
                ),
            ],
        ),
        Question(
            "You write `t = torch.from_numpy(tokens)`, then `t += 1`. What happens to the array?",
            [
                Choice(
                    "Its tokens grow by one too",
                    "The two share memory, and += works in place.",
                    right=True,
                ),
                Choice(
                    "Nothing: a tensor owns its data", "torch.tensor copies; from_numpy does not."
                ),
                Choice(
                    "Nothing: += makes a new tensor",
                    "`t = t + 1` would. `t += 1` is add_, in place.",
                ),
            ],
        ),
        Question(
            "`logits` is on the GPU; `temperature` is a tensor without axes on the CPU. What does "
            "`logits * temperature` do?",
            [
                Choice(
                    "The logits are moved to the CPU, where the product is computed",
                    "In arithmetic torch never moves a tensor with axes for you: a hidden copy would be too dear.",
                ),
                Choice(
                    "An error: two devices",
                    "That is what happens from one axis on, a shape of (1,) included.",
                ),
                Choice(
                    "It works: a 0-dim CPU tensor counts as a number",
                    "In arithmetic, CPU tensors without axes are the one exception to the rule of one device.",
                    right=True,
                ),
            ],
        ),
        Question(
            "fan_in and fan_out differ. What does Glorot's uniform weight keep exactly?",
            [
                Choice(
                    "The variance of the activations",
                    "That needs variance 1 / fan_in (LeCun; He's has another factor 2 for ReLU).",
                ),
                Choice(
                    "The variance of the gradients, on their way back",
                    "That needs variance 1 / fan_out.",
                ),
                Choice(
                    "Neither: it is the compromise between the two",
                    "Forward the variance changes by 2 · fan_in / (fan_in + fan_out), backward by "
                    "2 · fan_out / (fan_in + fan_out): factors that average to 1.",
                    right=True,
                ),
            ],
        ),
    ]
)
