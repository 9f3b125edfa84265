"""Predictions and the quiz of chapter 14."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

tenants = Prediction(
    "A model with a million float32 parameters is trained with AdamW. How many bytes does each tenant take at the end of backward, from the second step on?",
    setup=(
        "from torch import nn\n"
        "model = torch.nn.Linear(1000, 1000, bias=False)\n"
        "opt = torch.optim.AdamW(model.parameters())\n"
        "model(torch.ones(2, 1000)).sum().backward()\n"
        "opt.step()\n"
        "p = model.weight\n"
        "s = opt.state[p]"
    ),
    code="model = nn.Linear(1000, 1000, bias=False)\noptimizer = torch.optim.AdamW(model.parameters())",
    asks=[
        Ask("parameters", truth="p.nbytes", why="A million numbers of four bytes."),
        Ask("gradients", truth="p.grad.nbytes", why="One number for each parameter, in its dtype."),
        Ask(
            "optimizer state, the count of steps left out",
            truth="s['exp_avg'].nbytes + s['exp_avg_sq'].nbytes",
            why="Two averages for each parameter.",
        ),
        Ask(
            "do any of these three depend on the batch?",
            truth="False",
            why="Only activations and temporaries do. A smaller batch shrinks these, and cannot help where these three alone are too much.",
        ),
    ],
)

saved_by = Prediction(
    "What does autograd keep for backward, in bytes, beside the parameters?",
    setup=(
        "from course_utils import measure\n"
        "from torch import nn\n"
        "import torch.nn.functional as F\n"
        "lin = torch.nn.Linear(64, 256)\n"
        "def saved(f, grad=False):\n"
        "    x = torch.ones(32, 64, requires_grad=grad)\n"
        "    with measure(parameters=False) as cost:\n"
        "        f(x)\n"
        "    return cost.bytes_saved"
    ),
    code="x = torch.ones(32, 64)  # 8192 bytes\nlin = nn.Linear(64, 256)",
    asks=[
        Ask("lin(x)", truth="saved(lin)", why="Its input, for the weight's gradient."),
        Ask(
            "lin(x).relu()",
            truth="saved(lambda x: lin(x).relu())",
            why="Besides x, the ReLU's result, 32·256·4: where that is 0 the gradient is 0.",
        ),
        Ask(
            "F.gelu(lin(x))",
            truth="saved(lambda x: F.gelu(lin(x)))",
            why="As many bytes as with ReLU, but it is GELU's input: its result would not do.",
        ),
        Ask(
            "lin(x) + lin(x)",
            truth="saved(lambda x: lin(x) + lin(x))",
            why="The sum keeps nothing, and both layers keep the same x: one storage.",
        ),
        Ask(
            "lin(x) under torch.no_grad()",
            truth="saved(torch.no_grad()(lin))",
            why="No graph, nothing to keep.",
        ),
    ],
)

blocks = Prediction(
    "A fresh allocator on an empty GPU. In MiB: how much is allocated, and how much reserved?",
    setup=(
        "from course_utils.reference.caching_allocator import CudaAllocator\n"
        "def after(*sizes):\n"
        "    a = CudaAllocator(2**34)\n"
        "    for n in sizes:\n"
        "        a.malloc(n)\n"
        "    return a\n"
        "M = 2**20"
    ),
    code="MiB = 2**20\n# each line on a fresh allocator",
    asks=[
        Ask(
            "reserved after malloc(1)",
            truth="after(1).memory_reserved() // M",
            why="Allocated are 512 bytes, cut from a segment of 2 MiB.",
        ),
        Ask(
            "reserved after malloc(1 * MiB) and malloc(1 * MiB)",
            truth="after(M, M).memory_reserved() // M",
            why="Both are small requests and share one small segment.",
        ),
        Ask(
            "reserved after malloc(1 * MiB + 1)",
            truth="after(M + 1).memory_reserved() // M",
            why="One byte more, and it is a large request: segments of 20 MiB.",
        ),
        Ask(
            "reserved after malloc(11 * MiB)",
            truth="after(11 * M).memory_reserved() // M",
            why="From 10 MiB on a request gets a segment of its own, rounded up to a multiple of 2 MiB.",
        ),
        Ask(
            "allocated after malloc(11 * MiB)",
            truth="after(11 * M).memory_allocated() // M",
            why="The rest, 1 MiB, is not more than 1 MiB, so it is not split off: the whole block counts.",
        ),
    ],
)

recomputing = Prediction(
    "Sixteen layers; each takes and returns 1 MiB, and saves its result for backward. How many MiB do the kept inputs and the saved results take at the peak?",
    setup="def peak(n, k):\n    return n // k + k",
    code="# with checkpoints, the inputs of all segments are kept, and backward brings back\n# the results of one segment at a time",
    asks=[
        Ask("no checkpoints", truth="16", why="All sixteen, at the end of forward."),
        Ask(
            "segments of four layers",
            truth="peak(16, 4)",
            why="Four inputs of segments, and the four results of the segment that is being recomputed.",
        ),
        Ask(
            "segments of two layers",
            truth="peak(16, 2)",
            why="Eight inputs, and two.",
        ),
        Ask(
            "one segment of sixteen",
            truth="peak(16, 16)",
            why="One input is kept; then the recomputation brings all sixteen back at once.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "`nvidia-smi` shows 30 GiB in use by your process, `torch.cuda.memory_allocated()` 12 GiB. Where is the rest?",
            choices=[
                Choice(
                    "It leaks: something holds 18 GiB of tensors.",
                    why="Tensors that are held are allocated, and would be in the 12 GiB.",
                ),
                Choice(
                    "In the gradients, which are counted apart.",
                    why="Gradients are tensors like others; the allocator knows no tenants.",
                ),
                Choice(
                    "Most of it is in the allocator's cache.",
                    right=True,
                    why="`memory_reserved()` would show it: reserved, and free for the next tensors. The CUDA context and libraries take some more that PyTorch does not count.",
                ),
            ],
        ),
        Question(
            "Out of memory: 2 GiB were wanted, 5 GiB are reserved but unallocated. What is the likely trouble, and what do you try first?",
            choices=[
                Choice(
                    "Fragmentation. Try expandable segments.",
                    right=True,
                    why="There is more than enough in sum, and no piece is large enough. It costs one setting.",
                ),
                Choice(
                    "The model is too large. Shard it.",
                    why="5 GiB lie idle. Sharding is the last step, not the first.",
                ),
                Choice(
                    "The cache is full. Call empty_cache() in every step.",
                    why="The allocator has already done that before it gave up. In every step it only makes you wait for cudaFree and cudaMalloc.",
                ),
            ],
        ),
        Question(
            "You checkpoint every block, and the peak falls by a third only. What do you look at?",
            choices=[
                Choice(
                    "The random state that is kept for each block.",
                    why="A few kilobytes each.",
                ),
                Choice(
                    "What is alive at the new peak: the logits and their gradient, say.",
                    right=True,
                    why="A fix moves the peak elsewhere. The trace or a snapshot says where, and the next fix goes there.",
                ),
                Choice(
                    "Whether every block's backward ran twice, and kept its memory for it.",
                    why="The blocks' forward runs twice. That costs time, not memory.",
                ),
            ],
        ),
        Question(
            "`total_loss += loss` in a training loop. What does it keep alive?",
            choices=[
                Choice(
                    "All activations of all steps.",
                    why="In a loop that calls backward they are dropped there. In an evaluation loop without no_grad it would be so.",
                ),
                Choice("Nothing, it is one number.", why="It is a tensor with a graph behind it."),
                Choice(
                    "A little for each step after its backward; without backward, all activations.",
                    right=True,
                    why="Backward frees what was saved; the graph's nodes stay. `total_loss += loss.detach()`, or `.item()`, keeps one number.",
                ),
            ],
        ),
        Question(
            "Why may `x.to('cuda', non_blocking=True)` return late if x is in pageable memory?",
            choices=[
                Choice(
                    "CUDA first copies into a pinned buffer of its own, and the host takes part in that.",
                    right=True,
                    why="The copy engine needs memory that cannot be paged out. From pinned memory the call returns at once. Then the tensor must not be changed until the copy is done.",
                ),
                Choice(
                    "Pageable memory is slower RAM.",
                    why="It is the same RAM; the operating system may move it.",
                ),
                Choice(
                    "A non_blocking copy works on the default stream only, where nothing overlaps with it.",
                    why="It works on any stream, and is of most use on another one.",
                ),
            ],
        ),
    ]
)
