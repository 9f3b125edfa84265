"""Predictions and the quiz of chapter 27."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

scales_cost = Prediction(
    "A weight of 4,096 × 4,096 is held in four bits. How many bits does a weight take, its scale counted?",
    setup="",
    asks=[
        Ask(
            "one float32 scale for the tensor, to two decimals",
            truth="4.0",
            why="32 bits shared by 16 million weights vanish in the second decimal.",
        ),
        Ask(
            "one bfloat16 scale for each group of 32",
            truth="4 + 16 / 32",
            why="16 bits shared by 32 weights: half a bit each.",
        ),
        Ask(
            "one bfloat16 scale and one 4-bit zero point for each group of 32",
            truth="4 + (16 + 4) / 32",
            why="20 bits shared by 32 weights.",
        ),
    ],
)

overflow = Prediction(
    "Two rows of int8, all of them 127, are multiplied and summed over n features. What comes out?",
    setup="import torch\nx = lambda n: torch.full((1, n), 127, dtype=torch.int8)",
    asks=[
        Ask(
            "n = 1, the product in int8",
            truth="int((x(1) * x(1)).item())",
            why="16,129 is 63 · 256 + 1, and int8 keeps the remainder.",
        ),
        Ask(
            "n = 1,000, summed in int32",
            truth="int(torch._int_mm(x(1000), x(1000).T).item())",
            why="1,000 · 16,129, far below 2³¹.",
        ),
        Ask(
            "does float32 hold the sum exactly for n = 1,001? (True or False)",
            truth="1001 * 127 * 127 <= 2**24",
            why="It does: 16,145,129 is still below 2²⁴ = 16,777,216, from which on float32 skips odd numbers.",
        ),
    ],
)

straight = Prediction(
    "The scale is 0.5, the integers go from −2 to 1, the zero point is 0. What is the gradient of "
    "fake_quantize(x) with respect to x?",
    setup="""
import torch
def gradient(x):
    level = torch.round(torch.tensor(x / 0.5))
    return float(-2 <= level <= 1)
""",
    asks=[
        Ask("at x = 0.4", truth="gradient(0.4)", why="0.8 rounds to 1, which is in the range."),
        Ask(
            "at x = 0.7", truth="gradient(0.7)", why="1.4 rounds to 1: not clamped, though x > 0.5."
        ),
        Ask("at x = 0.8", truth="gradient(0.8)", why="1.6 rounds to 2, and is clamped to 1."),
        Ask("at x = −1.2", truth="gradient(-1.2)", why="−2.4 rounds to −2, the end of the range."),
    ],
)

quiz = Quiz(
    [
        Question(
            "A model's linear weights go from 16 to 4 bits; activations stay in bfloat16. What becomes faster "
            "on a GPU with suitable kernels?",
            choices=[
                Choice(
                    "Decoding for one user: each token reads all weights, and there are fewer bytes to read.",
                    right=True,
                    why="The time of such a step is that of reading the weights, so it falls nearly with their bytes.",
                ),
                Choice(
                    "Prefill of long prompts: products of four-bit numbers need fewer FLOPs than others.",
                    why="The weights are turned back to bfloat16 before they are multiplied, so the FLOPs are the same.",
                ),
                Choice(
                    "Both alike: the number of bits of the weights decides how long every product takes.",
                    why="Prefill is limited by FLOPs, and these are not fewer; there it may even be slower.",
                ),
            ],
        ),
        Question(
            "Padding is 0. The range of a tensor is 1 to 5, and somebody maps 1 to the integer −128 and 5 to "
            "127. What happens to the padding?",
            choices=[
                Choice(
                    "It stays 0, as the zero point of an affine grid always stands for 0.",
                    why="Here the zero point would be −192, which is no int8; no integer stands for 0.",
                ),
                Choice(
                    "It raises an error, since 0 lies outside of the observed range of values.",
                    why="Nothing raises. Numbers outside of the range are clamped.",
                ),
                Choice(
                    "It becomes 1, the nearest end, and so adds to every sum that it enters.",
                    right=True,
                    why="That is why a range is extended to 0 before scale and zero point are computed.",
                ),
            ],
        ),
        Question(
            "One input feature of a layer is a hundred times larger than the others. Which change helps "
            "activations in int8, with one scale for each token?",
            choices=[
                Choice(
                    "One scale for each row of the weight: each output then has a scale of its own.",
                    why="The weights are not what is coarse. It is the other features of the same token.",
                ),
                Choice(
                    "Divide the feature by s, and multiply its column of the weight by s.",
                    right=True,
                    why="The product is the same, and the range moves to where there is a scale to spare.",
                ),
                Choice(
                    "More calibration text: then the largest value of the feature is known better.",
                    why="With one scale for each token nothing is calibrated; the feature is large all the same.",
                ),
            ],
        ),
        Question(
            "Why does GPTQ need the inputs of a layer, when it only rounds its weights?",
            choices=[
                Choice(
                    "To choose the scale of each group so that no input of the layer is clamped.",
                    why="The scales come from the weights. Inputs are not quantized here.",
                ),
                Choice(
                    "To train the integers by gradient descent on the loss of the whole model.",
                    why="It solves a least-squares problem layer by layer; no gradient of a loss is used.",
                ),
                Choice(
                    "To know which changes of the later columns make up for the error in the output.",
                    right=True,
                    why="Two features that move together can stand in for one another, and Xᵀ X says which do.",
                ),
            ],
        ),
        Question(
            "Fake quantization in training rounds the weights in forward. What does the optimizer update?",
            choices=[
                Choice(
                    "The integers: each step moves a weight by one step of the grid, up or down.",
                    why="Most updates are far smaller than a step, and would be lost.",
                ),
                Choice(
                    "The float weights; the gradient passes the rounding as if it were not there.",
                    right=True,
                    why="Small updates add up in the float weight, until it rounds to the next integer.",
                ),
                Choice(
                    "The scales alone, since the derivative of the rounded weights is zero.",
                    why="It is zero almost everywhere, and for that reason another one is put in its place.",
                ),
            ],
        ),
    ]
)
