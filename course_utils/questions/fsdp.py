"""Predictions and the quiz of chapter 18."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

ddp_memory = Prediction(
    "DDP with AdamW, everything in FP32. GB are 10⁹ bytes; activations aside.",
    code="params = 7_000_000_000  # elements",
    setup="params = 7_000_000_000",
    asks=[
        Ask(
            "GB on each of 2 ranks",
            truth="16 * params // 10**9",
            why="4 bytes of parameter, 4 of gradient, 8 of AdamW's two moments.",
        ),
        Ask(
            "GB on each of 64 ranks",
            truth="16 * params // 10**9",
            why="The same: DDP copies, it does not share out.",
        ),
        Ask(
            "of these, GB of optimizer state",
            truth="8 * params // 10**9",
            why="Half of all: that is what stage 1 shards, and why it comes first.",
        ),
    ],
)

zero_one = Prediction(
    "One step of ZeRO-1 on 4 ranks, for 1,000,000 parameters in FP32, with ring collectives.",
    setup=(
        "from course_utils.reference.fsdp import bytes_per_rank, bytes_sent_per_step\n"
        "held = bytes_per_rank([1_000_000], 4, 1)\n"
        "sent = bytes_sent_per_step([1_000_000], 4, 1)\n"
        "ddp = bytes_sent_per_step([1_000_000], 4, 0)"
    ),
    code="# AdamW keeps two moments of 4 bytes for each parameter it steps",
    asks=[
        Ask(
            "bytes of AdamW's moments on each rank",
            truth="held[2]",
            why="8 bytes for each of a quarter of the parameters.",
        ),
        Ask(
            "bytes of gradients on each rank, until the step",
            truth="held[1]",
            why="All of them: stage 1 leaves gradients whole.",
        ),
        Ask(
            "bytes sent by each rank",
            truth="sent",
            why="Reduce-scatter and all-gather send 3/4 of 4 MB each.",
        ),
        Ask(
            "is that more than DDP's all-reduce?",
            truth="sent > ddp",
            why="An all-reduce is a reduce-scatter and an all-gather. The same, only that the step falls between the two.",
        ),
    ],
)

units = Prediction(
    "A model of 24 equal blocks, each a unit, on 8 ranks, freed after the forward pass. One forward and backward pass. MB are 10⁶ bytes.",
    setup=("from course_utils.reference.fsdp import share\nblocks, n, size = 24, 8, 7_000_000"),
    code="# each block has 7,000,000 parameters of 4 bytes",
    asks=[
        Ask("all-gathers", truth="2 * blocks", why="One for each unit forward, one backward."),
        Ask("reduce-scatters", truth="blocks", why="One for each unit, in the backward pass."),
        Ask(
            "MB of whole parameters at a time, without prefetch",
            truth="4 * size // 10**6",
            why="One block: 7 million times 4 bytes.",
        ),
        Ask(
            "the same, if the whole model is one unit",
            truth="4 * size * blocks // 10**6",
            why="Everything is whole from the first layer's start to the last one's end: sharded only between the passes. Units decide what FSDP saves.",
        ),
        Ask(
            "MB of parameters kept between steps on each rank",
            truth="4 * share(size, n) * blocks // 10**6",
            why="An eighth of 672 MB, whatever the units.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A model trains with DDP, but is out of memory by a little: AdamW's state is the largest part. The network is slow. What do you try first?",
            choices=[
                Choice(
                    "ZeRO-3, since it saves most.",
                    why="It does, and sends 1.5 times the bytes over a network that is slow already.",
                ),
                Choice(
                    "ZeRO-1: it shards the optimizer's state and sends no more than DDP.",
                    right=True,
                    why="A reduce-scatter before the step and an all-gather after it, in place of an all-reduce.",
                ),
                Choice(
                    "More ranks under DDP, so that each has less of the optimizer's state.",
                    why="DDP's memory does not depend on the number of ranks.",
                ),
            ],
        ),
        Question(
            "You call fully_shard on the whole model only, not on its blocks. What happens?",
            choices=[
                Choice(
                    "Everything is gathered before the forward pass and, the root not being freed after it, stays whole until its gradients are ready.",
                    right=True,
                    why="One unit. Between steps things are sharded; at the peak all parameters are whole, and no communication overlaps.",
                ),
                Choice(
                    "Nothing is sharded until the first forward pass, since a root has no parent that could gather it, and then only what has a gradient is.",
                    why="Parameters, gradients and state are sharded between steps, as always.",
                ),
                Choice(
                    "fully_shard finds the blocks by itself.",
                    why="FSDP1 had a wrapping policy for that; with fully_shard you choose the units.",
                ),
            ],
        ),
        Question(
            "Each rank clips its shards of the gradient by the norm of its own shards. What is the effect?",
            choices=[
                Choice(
                    "An error: shards cannot be clipped.",
                    why="Nothing raises. Each rank multiplies its own tensors by a number.",
                ),
                Choice(
                    "The same as clipping by the global norm, up to a factor that is alike for all ranks.",
                    why="A local norm is smaller than the global one, and another on every rank.",
                ),
                Choice(
                    "Parts of one gradient are scaled by different factors, so its direction changes.",
                    right=True,
                    why="And a rank whose share is below the bound does not clip at all. The sum of squares must be all-reduced first.",
                ),
            ],
        ),
        Question(
            "Why does FSDP reduce-scatter gradients in FP32 when parameters are gathered in BF16?",
            choices=[
                Choice(
                    "A sum over many ranks loses low bits in BF16; the parameters are only copied.",
                    right=True,
                    why="Gathering rounds once. Adding rounds at every rank, with 8 bits of precision.",
                ),
                Choice(
                    "Reduce-scatter does not support BF16.",
                    why="It does, and it is the default when only param_dtype is set.",
                ),
                Choice(
                    "Gradients are always computed in FP32.",
                    why="They are computed in the dtype of the pass, here BF16, and cast before they are summed.",
                ),
            ],
        ),
        Question(
            "A run on 512 ranks saved a distributed checkpoint. You have 8. Can you load it?",
            choices=[
                Choice(
                    "Only after one machine has put the whole model together and cut it again.",
                    why="No machine needs to: a rank reads those chunks that overlap with what it keeps.",
                ),
                Choice(
                    "No: shards belong to the mesh that made them.",
                    why="The metadata has the whole shapes and each chunk's offset; the old mesh is not needed.",
                ),
                Choice(
                    "Yes, if 8 ranks have the memory for their eighths.",
                    right=True,
                    why="Resharding is the overlap of intervals. Memory is then the only question.",
                ),
            ],
        ),
    ]
)
