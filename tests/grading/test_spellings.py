"""The bench that writes mistakes in another way: each rewrite changes the text and keeps the meaning."""

import linecache
import sys
from pathlib import Path

import pytest
import toys

from course_utils.exercises import strides
from course_utils.grading import grade

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import spellings


def mean_square(x, top=10):
    if top < 0:
        raise ValueError(f"top must not be negative: {top}")
    bound = top
    seen = 0
    total = 0
    for number in x:
        square = number * number
        total += min(square, bound)
        seen += 1
    ratio = total / seen
    return round(ratio, 9)


CHANGED = {
    "rename": "my_total / my_seen",
    "reorder": "seen = 0\n    bound = top",
    "extract": "def helper():",
    "inline": "return round(total / seen, 9)",
    "move_check": "ratio = total / seen\n    if top < 0:",
    "reword": "raise ValueError('no')",
}


@pytest.mark.parametrize("rewrite", spellings.REWRITES, ids=lambda rewrite: rewrite.__name__)
def test_a_rewrite_changes_the_text_and_not_the_values(rewrite):
    made = spellings.rewritten(mean_square, rewrite)
    assert CHANGED[rewrite.__name__] in "".join(linecache.getlines(made.__code__.co_filename))
    assert made([1, 2, 3]) == mean_square([1, 2, 3])
    assert made([1, 9], top=4) == mean_square([1, 9], top=4)
    with pytest.raises(ValueError):
        made([1], top=-1)


def closed_over(by):
    def scaled(x):
        return x * by

    return scaled


def test_what_needs_its_surroundings_is_not_rewritten():
    with pytest.raises(spellings.NoSource):
        spellings.rewritten(closed_over(2), spellings.rename)


KEEPS = [one for one in spellings.REWRITES if one is not spellings.move_check]
"""A check that comes later may come too late."""


@pytest.mark.parametrize("rewrite", KEEPS, ids=lambda rewrite: rewrite.__name__)
def test_a_reference_written_otherwise_is_right(rewrite):
    for exercise in (toys.softmax, strides.flat_index, strides.unflatten_index):
        objects = spellings.otherwise(exercise.subject(*exercise.parts), rewrite)
        if objects:
            assert grade(exercise, *objects).outcome == "passed"
