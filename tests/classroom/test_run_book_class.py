"""The book's own answers and mistakes, handed in as notebooks and graded from end to end."""

import random
from pathlib import Path

import pytest
from book_class import SET_UP, answers_to, book_class, plan_for
from graded_here import grade_notebooks
from submissions import notebook

from course_utils.authoring.counts import count
from course_utils.authoring.notebooks import read, solve, text
from course_utils.classroom.marks.plan import plan_of
from course_utils.classroom.marks.record import (
    FAILED,
    INSIDE,
    MISSING,
    NOT_ATTEMPTED,
    PASSED,
    Result,
)
from course_utils.grading import every, exercises_of
from course_utils.grading.declaring.exercise import CONTRACTS
from course_utils.grading.declaring.registry import in_book_order

CHAPTER = "strides"
EXERCISES = exercises_of(CHAPTER)
ANSWERS = {key: answers_to(one) for key, one in EXERCISES.items()}
PLAN = plan_of([CHAPTER])


def handed_in(number: int, kind: str) -> dict[str, Result]:
    """The results of a notebook with each exercise's answer of this number, where there is one."""
    cells = {key: getattr(one, kind) for key, one in ANSWERS.items()}
    chosen = [SET_UP, *(some[number] for some in cells.values() if number < len(some))]
    texts = [text if isinstance(text, str) else text[1] for text in chosen]
    record = grade_notebooks({"x.ipynb": notebook(*texts)}, PLAN)
    return {one.key: one for one in record.results if number < len(cells[one.key])}


@pytest.mark.parametrize("number", range(max(len(one.right) for one in ANSWERS.values())))
def test_right_answers_get_all_points(number):
    for key, result in handed_in(number, "right").items():
        assert (result.outcome, result.points) == (PASSED, EXERCISES[key].points), result
        assert (result.guarantee == INSIDE) == bool(EXERCISES[key].contracts)
        count("right answers through the sandbox")


@pytest.mark.parametrize("number", range(max(len(one.mistaken) for one in ANSWERS.values())))
def test_known_mistakes_lose_points_and_are_named(number):
    for key, result in handed_in(number, "mistaken").items():
        says = ANSWERS[key].mistaken[number][0]
        assert (result.outcome, result.diagnosis) == (FAILED, says), result
        assert result.points < EXERCISES[key].points
        if result.failed_rung == CONTRACTS:
            assert result.points > 0, "its values are right"
        count("mistakes through the sandbox")


def test_most_of_the_chapters_mistakes_can_be_handed_in():
    made = sum(len(one.mistaken) for one in ANSWERS.values())
    assert made >= 0.9 * sum(len(one.mistakes) for one in EXERCISES.values())


def test_a_class_is_the_same_for_the_same_seed():
    assert book_class(CHAPTER, 5, seed=1) == book_class(CHAPTER, 5, seed=1)
    assert book_class(CHAPTER, 5, seed=1) != book_class(CHAPTER, 5, seed=2)
    assert plan_for(CHAPTER).points == PLAN.points


ANSWER = '@exercise("strides.flat_index")\ndef flat_index(index, stride, offset=0):\n    '
BORROWED = {
    "imported": (
        "from course_utils.reference.strides import flat_index as book",
        f"{ANSWER}return book(index, stride, offset)",
    ),
    "imported inside": (
        f"{ANSWER}from course_utils.reference import strides\n"
        "    return strides.flat_index(index, stride, offset)",
    ),
    "found": (
        "from course_utils.grading import find",
        f'{ANSWER}return find("strides.flat_index").reference(index, stride, offset)',
    ),
    "mine, where there is none": (
        "from course_utils import mine",
        f'{ANSWER}return mine("strides.flat_index")(index, stride, offset)',
    ),
    "bound": ("from course_utils import use_book", 'flat_index = use_book("strides.flat_index")'),
    "the stub's own": (answers_to(EXERCISES["strides.flat_index"]).stub,),
}


@pytest.mark.parametrize("how", BORROWED)
def test_nothing_of_the_book_stands_in_for_an_answer(how):
    record = grade_notebooks({"x.ipynb": notebook(SET_UP, *BORROWED[how])}, PLAN)
    assert record.points == 0, record.result("strides.flat_index")
    assert {one.outcome for one in record.results} <= {FAILED, MISSING, NOT_ATTEMPTED}


def test_the_plans_order_does_not_matter():
    """Later answers are told earlier ones: those of chapter 23 import the book's, which is not there."""
    keys = ["gpt2.MLP", "gpt2.CausalSelfAttention", "gpt2.Block"]
    solved = solve(read(Path("notebooks/23_gpt2.ipynb")))
    record = grade_notebooks({"x.ipynb": text(solved).encode()}, plan_of(keys[::-1]))
    assert [(one.key, one.outcome) for one in record.results] == [(k, PASSED) for k in keys[::-1]]


def test_the_books_order_is_that_of_its_chapters_and_of_their_exercises():
    book = [*every()]
    shuffled = random.Random(0).sample(book, len(book))
    assert in_book_order(shuffled) == book
    assert in_book_order(["toys.softmax", book[0]])[0] == book[0]
