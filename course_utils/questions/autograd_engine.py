"""Predictions and the quiz of chapter 7."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

products = Prediction(
    "How many FLOPs do the matrix products of each line take?",
    setup="""
import numpy as np
from course_utils.meters.arrays import watch_arrays

def flops(run):
    with watch_arrays() as arrays:
        run(*(arrays.counted(np.ones(s)) for s in ((8, 4), (4, 16), (8, 16))))
    return arrays.flops
""",
    code="X, W, dY = np.ones((8, 4)), np.ones((4, 16)), np.ones((8, 16))",
    asks=[
        Ask(
            "X @ W",
            truth="flops(lambda X, W, dY: X @ W)",
            why="8 · 16 elements, each a sum of 4 products: 2 · 8 · 4 · 16.",
        ),
        Ask(
            "dY @ W.T",
            truth="flops(lambda X, W, dY: dY @ W.T)",
            why="8 · 4 elements, each a sum of 16 products: the same three sizes.",
        ),
        Ask(
            "both products of backward",
            truth="flops(lambda X, W, dY: (dY @ W.T, X.T @ dY))",
            why="Each of the two takes as many as forward.",
        ),
        Ask(
            "backward, if X needs no gradient",
            truth="flops(lambda X, W, dY: X.T @ dY)",
            why="Only dW = Xᵀ dY is left. So it is in the first layer of a network.",
        ),
    ],
)

orders = Prediction(
    "The nodes of the text: root uses square and shifted, shifted uses square, square uses x. May backward "
    "take them in this order?",
    setup="""
USES = {"root": ("square", "shifted"), "shifted": ("square",), "square": ("x",), "x": ()}

def may(*order):
    return set(order) == set(USES) and all(
        order.index(node) < order.index(below) for node in USES for below in USES[node]
    )
""",
    asks=[
        Ask(
            "root, shifted, square, x",
            truth="may('root', 'shifted', 'square', 'x')",
            why="Every node stands before its inputs.",
        ),
        Ask(
            "root, square, shifted, x",
            truth="may('root', 'square', 'shifted', 'x')",
            why="square would hand its gradient on before shifted has reported to it.",
        ),
        Ask(
            "x, square, shifted, root",
            truth="may('x', 'square', 'shifted', 'root')",
            why="That is the order of the forward pass. Backward takes it from the other end.",
        ),
        Ask(
            "root, shifted, x, square",
            truth="may('root', 'shifted', 'x', 'square')",
            why="x gets its gradient from square, which has not been there yet.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "y = x @ w + b, with x of shape (32, 64), w (64, 10) and b (10,). How is db made from dy?",
            choices=[
                Choice("db = dy", why="It has the shape (32, 10), and b has (10,)."),
                Choice(
                    "db = dy.sum(axis=0)",
                    right=True,
                    why="b was repeated over the rows. Each use of it adds a gradient.",
                ),
                Choice(
                    "db = dy.mean(axis=0)",
                    why="If the loss is a mean, the division is in dy already.",
                ),
                Choice(
                    "db = dy.sum(axis=1)", why="That has one element a row, and b one a column."
                ),
            ],
        ),
        Question(
            "Which of these operations can go backward without any value of its inputs or its result?",
            choices=[
                Choice("exp", why="Its derivative is its result."),
                Choice("a * b", why="The derivative with respect to one factor is the other."),
                Choice(
                    "a reshape",
                    right=True,
                    why="The gradient is reshaped back. The old shape is enough.",
                ),
                Choice("ReLU", why="It needs to know where the result is above 0."),
            ],
        ),
        Question(
            "A node hands its gradient on as soon as the first of its two users has reported. What happens?",
            choices=[
                Choice("Nothing, sums commute", why="The second part is never handed on."),
                Choice(
                    "The nodes that it depends on get an incomplete gradient",
                    right=True,
                    why="What arrives later has missed its turn. Hence the topological order.",
                ),
                Choice(
                    "It is called twice, and all is right",
                    why="It would be right if it handed on only what is new, but a graph of diamonds then takes "
                    "exponentially many calls.",
                ),
            ],
        ),
        Question(
            "A model has a million parameters and one loss. Forward mode and reverse mode each cost a small multiple "
            "of a forward pass. How many passes does the gradient take?",
            choices=[
                Choice(
                    "a million in forward mode, one in reverse mode",
                    right=True,
                    why="Forward mode gives the derivative in one direction, reverse mode that of one result.",
                ),
                Choice(
                    "one in each",
                    why="A direction is one combination of parameters, not all of them.",
                ),
                Choice(
                    "one in forward mode, a million in reverse mode",
                    why="That holds for a function of one number with a million results.",
                ),
            ],
        ),
        Question(
            "After backward only the loss and the leaves still have names. Which arrays are gone?",
            choices=[
                Choice(
                    "None, until the loss is deleted",
                    why="The nodes live on, but they have dropped what they saved.",
                ),
                Choice(
                    "Those that nodes had saved, and the gradients of nodes that are no leaves",
                    right=True,
                    why="A node's saved arrays go when its rule has run, and its gradient with them.",
                ),
                Choice(
                    "All, the leaves' gradients too", why="The leaves' are what backward is for."
                ),
            ],
        ),
    ]
)
