"""Predictions and the quiz of chapter 20."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

bubble = Prediction(
    "A pipeline of 8 ranks with equal stages, GPipe or 1F1B; messages take no time.",
    setup="""
from course_utils.reference.pipeline_schedules import bubble_fraction
def least(share):
    return next(m for m in range(1, 1000) if bubble_fraction(8, m) <= share)
""",
    asks=[
        Ask(
            "percent of waiting with 1 micro-batch, to one decimal",
            truth="round(100 * bubble_fraction(8, 1), 1)",
            why="One rank of eight works: 7/8.",
        ),
        Ask(
            "percent of waiting with 21 micro-batches, to one decimal",
            truth="round(100 * bubble_fraction(8, 21), 1)",
            why="7 / (21 + 7).",
        ),
        Ask(
            "micro-batches, at least, for at most 10 % of waiting",
            truth="least(0.1)",
            why="7 / (m + 7) ≤ 0.1 means m ≥ 63: nine times p − 1.",
        ),
    ],
)

interleaved = Prediction(
    "4 ranks, 12 micro-batches, and the model cut into 12 stages: 3 chunks on each rank.",
    setup="from course_utils.reference.pipeline_schedules import bubble_fraction",
    asks=[
        Ask(
            "percent of waiting, to one decimal",
            truth="round(100 * bubble_fraction(4, 12, 3), 1)",
            why="3 / (3 · 12 + 3) = 1/13; without interleaving it would be 3/15.",
        ),
        Ask(
            "times that one micro-batch's activations go from rank to rank",
            truth="3 * 4 - 1",
            why="12 stages have 11 borders, and neighbouring stages are never on one rank.",
        ),
        Ask(
            "stages on rank 1",
            truth="[1, 5, 9]",
            why="Dealt out like cards: stage s is on rank s mod 4.",
        ),
    ],
)

held = Prediction(
    "4 ranks with equal stages, 16 micro-batches, a backward of twice a forward.",
    setup="""
from course_utils.reference.pipeline_schedules import *
f, b, z = gpipe_schedule(4, 16), one_f_one_b_schedule(4, 16), zero_bubble_schedule(4, 16)
even = {"F": [1.0] * 4, "B": [2.0] * 4, "I": [1.0] * 4, "W": [1.0] * 4}
""",
    asks=[
        Ask(
            "micro-batches held by rank 0 under GPipe",
            truth="peak_microbatches(f)[0]",
            why="All: the first backward comes after the last forward.",
        ),
        Ask(
            "micro-batches held by rank 2 under 1F1B",
            truth="peak_microbatches(b)[2]",
            why="p − r = 4 − 2, however many there are.",
        ),
        Ask(
            "does 1F1B end sooner than GPipe?",
            truth="timeline(b, even)['B', 0, 15][1] < timeline(f, even)['B', 0, 15][1]",
            why="Both take (16 + 3) · 3. 1F1B is about memory.",
        ),
        Ask(
            "micro-batches held by rank 3 with the zero-bubble schedule",
            truth="peak_microbatches(z)[3]",
            why="Each W comes three I later, and only W frees: four, where 1F1B held one.",
        ),
    ],
)

mesh = Prediction(
    'A mesh of 32 ranks in nodes of eight: `init_device_mesh("cuda", (4, 2, 4), mesh_dim_names=("pp", "dp", "tp"))`.',
    setup="from course_utils.reference.device_mesh import mesh_coordinates, mesh_group\nsizes = (4, 2, 4)",
    code="sizes = (4, 2, 4)  # pp, dp, tp: the last axis changes fastest",
    asks=[
        Ask(
            "coordinates of rank 13",
            truth="mesh_coordinates(13, sizes)",
            why="13 = 1 · 8 + 1 · 4 + 1: a step along pp is 8 ranks, along dp 4, along tp 1.",
        ),
        Ask(
            "ranks of its dp group",
            truth="mesh_group(13, sizes, 1)",
            why="The same pp and tp coordinates: 9 and 13, which are 4 apart.",
        ),
        Ask(
            "nodes that its tp group is on",
            truth="len({r // 8 for r in mesh_group(13, sizes, 2)})",
            why="12 to 15, all on node 1: the innermost axis stays within a node.",
        ),
        Ask(
            "nodes that its pp group is on",
            truth="len({r // 8 for r in mesh_group(13, sizes, 0)})",
            why="5, 13, 21, 29: one rank on each of the four nodes.",
        ),
    ],
)

ring = Prediction(
    "Causal ring attention: 4 ranks, 64 tokens. Each rank has 16 of them, in one piece or in two chunks by zigzag.",
    setup=(
        "import torch\n"
        "from course_utils.reference.context_parallel import causal_pairs, zigzag_positions\n"
        "every = torch.arange(64)\n"
        "pieces = [causal_pairs(own, every) for own in every.chunk(4)]\n"
        "zigzag = [causal_pairs(zigzag_positions(r, 4, 64), every) for r in range(4)]"
    ),
    code="pairs = 64 * 65 // 2  # of a query and a key that it may see, on all ranks together",
    asks=[
        Ask(
            "pairs that rank 0 computes, one piece each",
            truth="pieces[0]",
            why="Its 16 queries see 1, 2, … 16 keys: 16 · 17 / 2.",
        ),
        Ask(
            "pairs that rank 3 computes, one piece each",
            truth="pieces[3]",
            why="Its queries see 49 to 64 keys. All others wait for it.",
        ),
        Ask(
            "pairs that each rank computes with zigzag",
            truth="zigzag[0]",
            why="A quarter of all 2,080: an early chunk and the late one that mirrors it.",
        ),
        Ask(
            "messages that each rank sends, keys and values as one",
            truth="4 - 1",
            why="The blocks of the other three ranks come by once each.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A job on GPipe runs out of memory when the number of micro-batches is doubled (their size stays). What helps most simply?",
            choices=[
                Choice(
                    "Fewer pipeline stages, each with more layers.",
                    why="Then each rank holds more weights, and the activations of more layers.",
                ),
                Choice(
                    "1F1B: at most p − r micro-batches are alive on rank r.",
                    right=True,
                    why="The bubble stays as it is, and the memory no longer depends on their number.",
                ),
                Choice(
                    "Interleaving with two chunks on each rank.",
                    why="It makes the bubble smaller. The first rank then holds rather more than under plain 1F1B.",
                ),
            ],
        ),
        Question(
            "A pipeline's stage is sharded by FSDP2 with `reshard_after_forward=False`. A step has 16 micro-batches, forward and backward in turn. How often does a rank gather each layer?",
            choices=[
                Choice(
                    "Once: the parameters stay after the first forward.",
                    why="The backward frees them. It takes `set_reshard_after_backward(False)` as well.",
                ),
                Choice(
                    "16 times: they stay until the backward, which frees them.",
                    right=True,
                    why="One gather for each micro-batch; without the option it is two.",
                ),
                Choice(
                    "32 times: once for each forward and each backward.",
                    why="That is what happens without the option.",
                ),
            ],
        ),
        Question(
            "A pipelined GPT-2 with tied embeddings is trained. Everything is right but the sum of the two copies' gradients. What do you see?",
            choices=[
                Choice(
                    "An error, since the two copies belong to one parameter.",
                    why="They are two parameters of two processes. Nobody compares them.",
                ),
                Choice(
                    "A loss of NaN after a few steps.",
                    why="Each copy gets a finite gradient of its own part.",
                ),
                Choice(
                    "A loss that falls, of a model that is no longer tied.",
                    right=True,
                    why="Embedding and head drift apart. Saved as one matrix, the model is another one than the one that was trained.",
                ),
            ],
        ),
        Question(
            "Ring attention on 8 ranks. The context is doubled, and so is the number of ranks. What happens to a rank, in each layer?",
            choices=[
                Choice(
                    "It holds as many keys and values as before, and sends about twice as many bytes.",
                    right=True,
                    why="A block is an n-th of the context: as large as before. n − 1 of them are sent: 15 in place of 7.",
                ),
                Choice(
                    "It holds twice as many keys and values, and sends as many bytes as before.",
                    why="It never holds more than its own block and two more, and a block has the same size.",
                ),
                Choice(
                    "Nothing: with twice the ranks each has the same tokens, memory and messages.",
                    why="The same tokens and memory. But there are twice as many blocks that must come by.",
                ),
            ],
        ),
        Question(
            "An expert is full: its capacity is reached. What happens to a token that is sent to it by a router that drops?",
            choices=[
                Choice(
                    "It goes to the expert with the next higher logit.",
                    why="Some routers do that. One that drops does not.",
                ),
                Choice(
                    "The step raises an error, because the buffers are of a fixed size.",
                    why="It would be better if it did. Nothing raises: the loss is only a little higher.",
                ),
                Choice(
                    "This expert adds nothing to it; the residual stream goes on.",
                    right=True,
                    why="So count what is dropped, and log it.",
                ),
            ],
        ),
    ]
)
