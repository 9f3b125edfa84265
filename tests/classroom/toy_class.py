"""Three small exercises of six cases each, and a class that has worked on them."""

import inspect
import random

import torch
import toy_answers as ref
from submissions import notebook

from course_utils.classroom.marks.plan import Item, Plan
from course_utils.grading import Exercise, call, draws, probes, register
from course_utils.grading.declaring.cells import stub_cell

rows = Exercise(
    ref.every_second_row,
    key="toys.every_second_row",
    title="Every second row",
    difficulty=1,
    minutes=3,
    points=2,
    probe=probes.view,
)
softmax = Exercise(
    ref.row_softmax,
    key="toys.row_softmax",
    title="Softmax",
    difficulty=1,
    minutes=3,
    points=2,
    limit_s=2.0,
)
attention = Exercise(
    ref.attention, key="toys.attention", title="Attention", difficulty=2, minutes=5, points=4
)
TOYS = tuple(map(register, (rows, softmax, attention)))
PLAN = Plan("Toys", tuple(Item(toy.key, toy.points) for toy in TOYS))


@rows.by_hand
def _():
    yield call(torch.arange(6.0).reshape(3, 2)), torch.tensor([[0.0, 1.0], [4.0, 5.0]])


@rows.cases(3)
def _(draw):
    yield call(draw(draws.tensors(draw(draws.distinct_sizes(2)))))


@rows.edge
def _():
    yield call(torch.zeros(1, 3)), "one row"
    yield call(torch.arange(12.0).reshape(3, 4).T), "a transpose"


@softmax.by_hand
def _():
    yield call(torch.zeros(2)), torch.tensor([0.5, 0.5])


@softmax.cases(3)
def _(draw):
    yield call(draw(draws.tensors(draw(draws.distinct_sizes(2)))))


@softmax.edge
def _():
    yield call(torch.tensor([1e4, 0.0])), "exp(10,000) overflows"
    yield call(torch.tensor([[3.0]])), "one element"


@attention.by_hand
def _():
    one = torch.ones(1, 2)
    yield call(one, one, 3 * one), 3 * one


@attention.cases(3)
def _(draw):
    shape = draw(draws.distinct_sizes(2))
    yield call(*(draw(draws.tensors(shape)) for _ in range(3)))


@attention.edge
def _():
    yield call(*(torch.eye(3) * 100 for _ in range(3))), "large scores"
    yield call(*(torch.zeros(4, 1) for _ in range(3))), "all alike"


# ------------------------------------------------------------------------------ answers

SET_UP = (
    "import math\n\nimport torch\nfrom torch import Tensor\n\nfrom course_utils import exercise"
)
RIGHT = {
    toy.key: f'@exercise("{toy.key}")\n{inspect.getsource(toy.reference).rstrip()}' for toy in TOYS
}
STUB = {toy.key: stub_cell(toy.key) for toy in TOYS}
ROWS, SOFTMAX, ATTENTION = (toy.key for toy in TOYS)
WRONG = {
    ROWS: RIGHT[ROWS].replace(
        "return x.as_strided", "return x[:n // 2] if n > 2 else x.as_strided"
    ),
    SOFTMAX: RIGHT[SOFTMAX].replace("x - x.amax(-1, keepdim=True)", "x"),  # fails on the edge
    ATTENTION: RIGHT[ATTENTION].replace("triu(1)", "triu(0)"),
}
COPIES = RIGHT[ROWS].replace("x.storage_offset())", "x.storage_offset()).clone()")  # no view


def cells(**changes: str) -> list[str]:
    """A notebook's cells: right answers, but for those that are given by the function's name."""
    return [SET_UP, *(changes.get(key.partition(".")[2], RIGHT[key]) for key in RIGHT)]


def class_of(n: int, seed: int = 0) -> dict[str, bytes]:
    """n notebooks by student: right, wrong and untouched answers, drawn by the seed."""
    draw = random.Random(seed)
    found = {}
    for number in range(n):
        kinds = [draw.choices((RIGHT, WRONG, STUB), (6, 3, 1))[0] for _ in TOYS]
        answers = [kind[toy.key] for kind, toy in zip(kinds, TOYS, strict=True)]
        found[f"student{number:03}.ipynb"] = notebook(SET_UP, *answers)
    return found
