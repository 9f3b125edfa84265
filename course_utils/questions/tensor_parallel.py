"""Predictions and the quiz of chapter 19."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

messages = Prediction(
    "One MLP of GPT-2 on 4 ranks: c_fc cut by outputs, GELU, c_proj cut by inputs. D = 1,000, "
    "8,000 tokens in the batch.",
    setup="tokens, D, n = 8000, 1000, 4",
    code="# c_fc: D → 4 D; c_proj: 4 D → D",
    asks=[
        Ask(
            "all-reduces in the forward pass",
            truth="1",
            why="After c_proj. Between the two layers each rank goes on with its own features.",
        ),
        Ask(
            "all-reduces in the backward pass",
            truth="1",
            why="Of the gradient of the MLP's input: every rank used all of it.",
        ),
        Ask(
            "millions of elements in each of them",
            truth="tokens * D // 10**6",
            why="(tokens, D), however wide the layer between is.",
        ),
        Ask(
            "millions of elements of c_fc's weight on each rank",
            truth="4 * D * D // n // 10**6",
            why="A quarter of 4 D².",
        ),
    ],
)

qkv = Prediction(
    "Six heads of two features, D = 12, on two ranks. c_attn's weight has 36 rows: q of all heads, then k, then v.",
    setup=(
        "import torch\n"
        "from course_utils.reference.tensor_parallel import by_rank\n"
        "rows = by_rank(torch.arange(36), 2).chunk(2)[1].tolist()"
    ),
    code="# rank 1 has heads 3, 4 and 5",
    asks=[
        Ask("rows that rank 1 keeps", truth="len(rows)", why="Half of 36."),
        Ask(
            "the first of them, as numbered in the full weight",
            truth="rows[0]",
            why="Head 3's queries begin at row 3 · 2.",
        ),
        Ask(
            "the first row of keys among them (all numbers are those of the full weight)",
            truth="min(r for r in rows if r >= 12)",
            why="Keys begin at row 12; head 3's six rows later.",
        ),
        Ask(
            "heads whose values a plain slice of rows 18 to 35 has",
            truth="6",
            why="All six: rows 24 to 35 are all the values. It has no query at all, so no attention can be computed from it.",
        ),
    ],
)

norms = Prediction(
    "Two ranks, a block with sequence parallelism, 8 positions. Nobody sums the gradient of the LayerNorm's weight.",
    setup="positions, n = 8, 2",
    code="# every rank has the whole weight of the norm, and normalises its own positions",
    asks=[
        Ask(
            "positions that rank 0's gradient of the weight has seen",
            truth="positions // n",
            why="Its own. The other half of the gradient is on the other rank.",
        ),
        Ask(
            "are the two ranks' weights equal after a step of SGD?",
            truth="False",
            why="They began equal, and stepped by different gradients: from here on there are two models.",
        ),
        Ask(
            "does anything raise?",
            truth="False",
            why="All shapes are right. That is why a test should compare between ranks the parameters that are whole on each.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A model's layers fit on one GPU, but with batch size 1 a step is too slow. Which of these makes the single step of a single sequence faster?",
            choices=[
                Choice(
                    "DDP over more ranks, with a smaller part of the batch for each.",
                    why="One sequence cannot be shared out by rows: the other ranks would have nothing to do.",
                ),
                Choice(
                    "FSDP over more ranks, with a smaller part of the weights on each.",
                    why="Every rank still runs every layer whole, on its own rows. That saves memory, not time.",
                ),
                Choice(
                    "Tensor parallelism: the ranks share each matmul.",
                    right=True,
                    why="As long as the all-reduces take less time than the matmuls that are saved.",
                ),
            ],
        ),
        Question(
            "In backward, why does ReduceFromRanks (g) pass its gradient on as it is, where the derivative of an all-reduce would be an all-reduce?",
            choices=[
                Choice(
                    "Every rank computes the same loss from the same sum: its gradient is whole already.",
                    right=True,
                    why="There is one loss, computed n times. To add up the n equal gradients would count it n times.",
                ),
                Choice(
                    "The all-reduce is left to the optimizer, which sums the gradients of all ranks before its step.",
                    why="Nobody sums gradients of parameters that are cut: each rank has the whole gradient of its part.",
                ),
                Choice(
                    "A gradient summed over ranks would have to be divided by n afterwards, and this saves the division.",
                    why="It would; but there is nothing to average. The sum was never needed.",
                ),
            ],
        ),
        Question(
            "Somebody replaces c_fc by a row-parallel layer and c_proj by a column-parallel one. What happens?",
            choices=[
                Choice(
                    "The same results for the same messages, since a sum can be taken in any order.",
                    why="GELU stands between: it must see sums, so they have to be complete before it.",
                ),
                Choice(
                    "It can be right, with more messages: wide activations are summed before GELU.",
                    right=True,
                    why="An all-reduce of (tokens, 4 D), then an all-gather of the outputs. Columns first and rows second need neither.",
                ),
                Choice(
                    "It cannot be right: a layer that is cut by inputs has to be the last of a network.",
                    why="It can stand anywhere, if its input is cut and its result may be summed.",
                ),
            ],
        ),
        Question(
            "What does sequence parallelism save, compared with tensor parallelism alone?",
            choices=[
                Choice(
                    "Bytes over the wire: a reduce-scatter sends half of what an all-reduce does.",
                    why="It does, but an all-gather follows, which sends the other half.",
                ),
                Choice(
                    "Memory of the weights: norms and embeddings are cut by positions too.",
                    why="Norms are whole on every rank in both; their weights are small.",
                ),
                Choice(
                    "Memory of activations that were whole on every rank, as in norms.",
                    right=True,
                    why="They are cut by positions, an n-th on each rank, for about the same bytes over the wire.",
                ),
            ],
        ),
        Question(
            "A run with tensor parallelism clips gradients: each rank computes the norm of the gradients that it has. Which is true?",
            choices=[
                Choice(
                    "Ranks scale by different factors: parameters that are whole on every rank drift apart.",
                    right=True,
                    why="Norms and biases had equal gradients; scaled by different factors they differ, and so do the weights after a step. Sum the squares of the parts over ranks; count whole parameters once.",
                ),
                Choice(
                    "It is right if the ranks' norms are averaged before they are used.",
                    why="Squares add up, norms do not; and parameters that are whole on every rank would count n times.",
                ),
                Choice(
                    "It is right, since every rank has the whole gradient of its own parameters.",
                    why="It has. But the norm is that of all parameters, and one number for all.",
                ),
            ],
        ),
    ]
)
