"""Predictions and the quiz of chapter 22."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

width = Prediction(
    "q and k are random vectors of d independent features with mean 0 and variance 1. What is the "
    "standard deviation of their dot product?",
    setup="""
import torch
def deviation(d, scale=1.0):
    return round((d ** 0.5) * scale, 6)
""",
    asks=[
        Ask(
            "d = 64", truth="deviation(64)", why="A sum of 64 products of variance 1: variance 64."
        ),
        Ask("d = 256", truth="deviation(256)", why="The deviation grows with the root of d."),
        Ask(
            "d = 256, divided by √d",
            truth="deviation(256, 256 ** -0.5)",
            why="That is what the scale is for: 1, whatever d is.",
        ),
    ],
)

cache = Prediction(
    "A model has 32 blocks and 32 query heads of 128 features, in bfloat16. How many bytes does one token "
    "take in the cache of keys and values?",
    setup="""
def bytes_a_token(kv_heads):
    return 2 * 32 * kv_heads * 128 * 2
""",
    asks=[
        Ask(
            "32 key heads (multi-head)",
            truth="bytes_a_token(32)",
            why="Keys and values, in 32 blocks: 2 · 32 · 32 · 128 elements of 2 bytes.",
        ),
        Ask(
            "8 key heads (grouped)",
            truth="bytes_a_token(8)",
            why="A quarter: four query heads read each key head.",
        ),
        Ask("1 key head (multi-query)", truth="bytes_a_token(1)", why="One thirty-second."),
    ],
)

tiles = Prediction(
    "Causal attention over 4,096 positions, in tiles of 128 × 128. How many tiles?",
    setup="n = 4096 // 128",
    asks=[
        Ask("in the whole square", truth="n * n", why="32 × 32."),
        Ask(
            "computed",
            truth="n * (n + 1) // 2",
            why="Row i of tiles computes the first i: 1 + 2 + … + 32.",
        ),
        Ask(
            "of these, with a mask inside",
            truth="n",
            why="Those on the diagonal. All others are seen whole.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "The scores are not divided by √d, and d is 1,024. What goes wrong when training begins?",
            choices=[
                Choice(
                    "The weights no longer sum to one, so the result's size depends on how many keys a query sees.",
                    why="A softmax sums to one whatever its input.",
                ),
                Choice(
                    "The weights are nearly one-hot: a few queries get large gradients, and most get almost none.",
                    right=True,
                    why="Scores with deviation 32 make the softmax pick one key, and p (1 − p) is near 0 unless the two best scores are nearly equal.",
                ),
                Choice(
                    "All weights become equal.",
                    why="That happens where scores are too small, not too large.",
                ),
            ],
        ),
        Question(
            "A query may attend to no key. By hand you fill its scores with −inf. What do you get?",
            choices=[
                Choice(
                    "The mean of all values, as if nothing were masked.",
                    why="That is what a large finite number filled in gives: equal scores.",
                ),
                Choice(
                    "Zeros.",
                    why="That is what F.scaled_dot_product_attention returns. The bare softmax does not.",
                ),
                Choice(
                    "NaN in its result, and in the gradient of all values.",
                    right=True,
                    why="That row of weights is NaN; the gradient of v is weightsᵀ · grad, and NaN · 0 is NaN in each of its rows.",
                ),
            ],
        ),
        Question(
            "Query and key at positions 7 and 4 are rotated with RoPE. Both move 100 positions further. Their score",
            choices=[
                Choice(
                    "stays the same up to rounding.",
                    right=True,
                    why="Two rotations by the same extra angle leave the angle between the vectors as it was. (The rounding of float32 grows with the position.)",
                ),
                Choice(
                    "falls by 100 times the slope.",
                    why="ALiBi has slopes, and there only the distance counts, which is 3 still.",
                ),
                Choice(
                    "changes, since both vectors changed.",
                    why="Both did, by the same rotation. The dot product does not see it.",
                ),
            ],
        ),
        Question(
            "What does flash attention keep of the T × S weights for its backward pass?",
            choices=[
                Choice(
                    "The weights of all tiles on the diagonal, in half precision.",
                    why="It keeps none of them, which is why its memory grows with T alone.",
                ),
                Choice(
                    "One number for each query: the logarithm of its sum.",
                    right=True,
                    why="exp(score − logsumexp) is the weight; the scores are computed again, tile by tile.",
                ),
                Choice("The mask.", why="The mask is known from the positions."),
            ],
        ),
        Question(
            "A head's map shows most of the weight of a token on the one before it. What follows?",
            choices=[
                Choice(
                    "The model needs the previous token for its prediction.",
                    why="Nothing follows about need: the head's output may be ignored.",
                ),
                Choice(
                    "The head computes a bigram table.",
                    why="It can only copy a mixture of values. What is made of it happens elsewhere.",
                ),
                Choice(
                    "The head reads from there. What it passes on, and whether anything uses it, the map does not show.",
                    right=True,
                    why="Values, the output projection and later layers decide that. To know, take the head away and look at the loss.",
                ),
            ],
        ),
    ]
)
