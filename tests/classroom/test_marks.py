"""What a verdict is worth, rung by rung; where seeds come from; what a plan's lateness costs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import toy_class
from hypothesis import given
from hypothesis import strategies as st

from course_utils.classroom.marks import marking
from course_utils.classroom.marks.marking import (
    DEFINITION,
    SERIES,
    points,
    result_of,
    seed_of,
    share,
)
from course_utils.classroom.marks.plan import Item, Late
from course_utils.classroom.marks.record import (
    DATA,
    FAILED,
    INSIDE,
    MISSING,
    NOT_ATTEMPTED,
    PASSED,
    Record,
    Rung,
)
from course_utils.grading import call, exercises_of, grade
from course_utils.grading.declaring.exercise import CONTRACTS
from course_utils.grading.driving.case import BY_HAND, EDGE, GRADIENTS, RANDOM
from course_utils.grading.judging.ladder import LADDER, SIGNATURE, TYPES
from course_utils.grading.judging.verdict import Failure, RungResult, Verdict

SIZES = {SIGNATURE: 3, TYPES: 2, BY_HAND: 2, RANDOM: 40, GRADIENTS: 6, EDGE: 5, CONTRACTS: 2}


def until(rung: str, passed: int = 0, sizes: dict[str, int] = SIZES) -> dict[str, int]:
    """Everything below `rung` passed, and so many checks of it."""
    names = list(sizes)
    return {name: sizes[name] for name in names[: names.index(rung)]} | {rung: passed}


@pytest.mark.parametrize(
    ("passed", "due"),
    [
        ({}, 0),
        (until(SIGNATURE, 2), 0),
        (until(TYPES, 1), 0),
        (until(BY_HAND), 0),
        (until(RANDOM), 0),
        (until(RANDOM, 20), 0),
        (until(RANDOM, 30), 6 / 12 * 0.5),
        (until(RANDOM, 39), 6 / 12 * 0.95),
        (until(GRADIENTS), 6 / 12),
        (until(GRADIENTS, 3), 6 / 12),
        (until(EDGE), 8 / 12),
        (until(EDGE, 4), 8 / 12 + 2 / 12 * 0.6),
        (until(CONTRACTS), 10 / 12),
        (until(CONTRACTS, 1), 11 / 12),
        (SIZES, 1),
    ],
)
def test_what_each_rung_earns(passed, due):
    assert share(SIZES, passed) == pytest.approx(due)


def test_shape_dtype_and_the_cases_that_a_student_sees_earn_nothing():
    assert share(SIZES, until(RANDOM)) == 0
    short = {SIGNATURE: 1, RANDOM: 4, EDGE: 2}
    assert share(short, until(RANDOM, 0, short)) == 0
    assert share(short, until(EDGE, 0, short)) == pytest.approx(6 / 8)


def test_where_there_is_nothing_but_cases_worked_by_hand_they_are_everything():
    sizes = {SIGNATURE: 2, BY_HAND: 4}
    assert share(sizes, until(BY_HAND, 0, sizes)) == 0
    assert share(sizes, until(BY_HAND, 3, sizes)) == pytest.approx(0.5)
    assert share(sizes, sizes) == 1


def test_a_promise_that_a_wrong_result_keeps_is_worth_nothing():
    passed = until(RANDOM, 10) | {CONTRACTS: 2, EDGE: 5, GRADIENTS: 6}
    assert share(SIZES, passed) == 0


rungs = st.fixed_dictionaries({}, optional={name: st.integers(1, 50) for name in LADDER})


@given(rungs.filter(bool), st.data())
def test_more_checks_never_earn_less_and_only_all_of_them_earn_all(some, data):
    sizes = {name: some[name] for name in LADDER if name in some}
    rung = data.draw(st.sampled_from(list(sizes)))
    fewer = data.draw(st.integers(0, sizes[rung] - 1))
    more = data.draw(st.integers(fewer, sizes[rung] - 1))
    less, earned = (share(sizes, until(rung, n, sizes)) for n in (fewer, more))
    assert 0 <= less <= earned <= 1
    item = Item("x.y", data.draw(st.sampled_from([0.01, 0.5, 1, 3, 10])))
    assert points(item, sizes, until(rung, more, sizes), all_passed=False) < item.points
    assert points(item, sizes, sizes, all_passed=True) == item.points


# ------------------------------------------------------------------------------ results


def verdict_of(rung: str, passed: int, failure: Failure, **more) -> Verdict:
    reached = [RungResult(n, p, SIZES[n]) for n, p in until(rung, passed).items()]
    settings = {"rungs": tuple(reached), "rung_names": tuple(SIZES), "total": sum(SIZES.values())}
    return Verdict("toys.row_softmax", "", "failed", failure=failure, **settings | more)


def test_a_result_knows_the_whole_ladder():
    failure = Failure(RANDOM, "1 of 6 elements differ", "f(x)", call(1), wrong_cases=3)
    verdict = verdict_of(RANDOM, 37, failure, diagnosis="The axis is wrong.", seconds=0.25)
    found = result_of(Item("toys.row_softmax", 4), toy_class.softmax, verdict, SIZES)
    assert found.outcome == FAILED
    assert found.points == 1.7  # 4 · 6/12 · (2 · 37/40 - 1)
    assert found.rungs == tuple(
        Rung(name, {SIGNATURE: 3, TYPES: 2, BY_HAND: 2, RANDOM: 37}.get(name, 0), size)
        for name, size in SIZES.items()
    )
    assert (found.failed_rung, found.diagnosis) == (RANDOM, "The axis is wrong.")
    assert (found.sentence, found.called, found.hand) == ("1 of 6 elements differ", "f(x)", False)
    assert found.guarantee == DATA


def test_what_was_worked_by_hand_may_be_shown():
    failure = Failure(BY_HAND, "differs", "f(1)", replace(call(1), rung=BY_HAND))
    found = result_of(Item("a.b", 1), toy_class.softmax, verdict_of(BY_HAND, 1, failure), SIZES)
    assert found.hand


def test_contracts_are_named_as_the_weaker_guarantee():
    flat, *_, view = exercises_of("strides").values()
    assert not flat.contracts
    assert view.contracts
    item = Item("strides.x", 1)
    for exercise, due in ((flat, DATA), (view, INSIDE)):
        assert result_of(item, exercise, grade(exercise, *exercise.parts), {}).guarantee == due


def test_an_answer_that_cannot_be_defined_fails_at_its_definition():
    verdict = Verdict("a.b", "", "failed", failure=Failure("", "your code raised NameError"))
    found = result_of(Item("a.b", 2), toy_class.softmax, verdict, SIZES)
    assert (found.outcome, found.points, found.failed_rung) == (FAILED, 0, DEFINITION)
    assert found.checks == sum(SIZES.values())


def test_an_interrupt_of_the_codes_own_is_a_failure():
    verdict = replace(verdict_of(RANDOM, 0, Failure(RANDOM, "x")), outcome="interrupted")
    assert result_of(Item("a.b", 2), toy_class.softmax, verdict, SIZES).outcome == FAILED


@pytest.mark.parametrize("outcome", [FAILED, NOT_ATTEMPTED, MISSING])
def test_without_an_answer_there_is_nothing_to_earn(outcome):
    found = marking.without_answer(Item("a.b", 3), outcome, SIZES, "why")
    assert (found.points, found.max_points, found.passed_checks) == (0, 3, 0)
    assert found.checks == sum(SIZES.values())


def test_no_answer_passes_without_a_check():
    with pytest.raises(ValueError, match="without a check"):
        marking.without_answer(Item("a.b", 3), PASSED, SIZES)


def test_a_ladder_of_a_real_exercise_adds_up(graded):
    toys = graded(*toy_class.cells(row_softmax=toy_class.WRONG[toy_class.SOFTMAX]))
    found = toys.result(toy_class.SOFTMAX)
    assert found.rungs == (
        Rung(SIGNATURE, 2, 2),
        Rung(TYPES, 1, 1),
        Rung(BY_HAND, 1, 1),
        Rung(RANDOM, 3, 3),
        Rung(EDGE, 1, 2),
    )
    assert (found.outcome, found.failed_rung, found.points) == (FAILED, EDGE, 1.5)
    assert toys.points == 2 + 1.5 + 4


# ------------------------------------------------------------------------------ seeds and lateness


def test_seeds_come_from_secret_student_and_exercise_alone():
    a, b = b"a" * 32, b"b" * 32
    assert seed_of(a, "ada", "x.y") == seed_of(a, "ada", "x.y")
    assert seed_of(a, "ada", "x.y") != seed_of(b, "ada", "x.y")
    assert seed_of(a, "ada", "x.y") != seed_of(a, "ada", "x.z")
    students = [f"student {n}" for n in range(200)]
    assert len({seed_of(a, name, "x.y") for name in students}) == SERIES
    assert seed_of(a, "ad", "ax.y") != seed_of(a, "ada", "x.y")
    assert 0 <= seed_of(a, "ada", "x.y") < 2**48


def test_lateness_takes_a_share_of_what_was_earned():
    due = datetime(2026, 12, 1, 18, tzinfo=UTC)
    late = Late(per_day=0.1, most=0.5, grace_minutes=10, closes_after_days=7)
    costs = {
        timedelta(minutes=10): 0.0,
        timedelta(minutes=11): 0.1,
        timedelta(days=2): 0.2,
        timedelta(days=6): 0.5,
        timedelta(days=8): 1.0,
    }
    for over, share_lost in costs.items():
        penalty = late.penalty(due, due + over)
        assert penalty == pytest.approx(share_lost)
        result = marking.without_answer(Item("a.b", 4), FAILED, {})
        record = Record("ada", "graded", (replace(result, points=3.0),), penalty=penalty)
        assert record.points == pytest.approx(3 * (1 - share_lost))
    assert late.penalty(due, None) == late.penalty(None, due) == 0
