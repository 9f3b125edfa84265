"""Which known mistake is named for an answer that is like none of them everywhere."""

import itertools

import pytest
import torch
import toy_collectives
import toy_references as ref
import toys
import toys_on_ranks

from course_utils.grading import Exercise, call, contracts, grade, probes, replace
from course_utils.grading.declaring.edits import NoSuchText
from course_utils.grading.judging import diagnosis

AXIS = "It normalises over the first axis."
TWICE = "The temperature is squared."
SIGN = "A negative temperature is let through."
CENTRE = "The mean is subtracted instead of the largest."


def exercise(*mistakes):
    """The toy softmax with rows of several sizes, and these mistakes."""
    made = Exercise(ref.temperature_softmax, "t", 1, 1, 1, key="toys.diagnosed")
    made._random = list(toys.softmax._random)
    made.by_hand(lambda: iter([(call(torch.zeros(2, 2)), torch.full((2, 2), 0.5))]))

    @made.edge
    def _():
        yield call(torch.tensor([[1e4, 0.0]])), "exp(10,000) overflows"
        for temperature in (0.0, -1.0, -0.5):
            yield call(torch.tensor([1.0, 2.0]), temperature=temperature), "no temperature"

    for says, subject in mistakes:
        made.mistake(says)(subject)
    return made


axis = (AXIS, replace("e.sum(-1, keepdim=True)", "e.sum(0, keepdim=True)"))
twice = (TWICE, replace("z = x / temperature", "z = x / temperature**2"))
sign = (SIGN, replace("if temperature <= 0:", "if temperature == 0:"))
centre = (CENTRE, replace("z.amax(-1, keepdim=True)", "z.mean(-1, keepdim=True)"))


def verdict(answer, *mistakes):
    return grade(exercise(*mistakes), answer)


def test_an_edit_is_the_reference_but_for_a_line():
    found = verdict(exercise(axis).mistakes[0].subject, axis, twice)
    assert (found.diagnosis, found.sure) == (AXIS, True)
    assert ref.temperature_softmax(torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]


def test_a_slip_beside_another_that_nobody_declared_is_likely():
    """The check is spelled so that zero divides: one of many failing cases is not explained."""

    def answer(x, temperature=1.0):
        if temperature < 0:
            raise ValueError("negative")
        if temperature == 0:
            return x
        e = (x / temperature - (x / temperature).amax(-1, keepdim=True)).exp()
        return e / e.sum(0, keepdim=True)

    found = verdict(answer, axis, twice)
    assert (found.diagnosis, found.sure) == (AXIS, False)
    assert f"Likely: {AXIS}" in str(found)


def test_two_slips_that_each_explain_a_part():
    """Squared where it is positive, let through where it is not: never both in one case."""

    def answer(x, temperature=1.0):
        if temperature == 0:
            raise ValueError("zero")
        if temperature < 0:
            return torch.softmax(x / temperature, -1)
        return torch.softmax(x / temperature**2, -1)

    found = verdict(answer, twice, sign, axis)
    assert TWICE in found.diagnosis
    assert SIGN in found.diagnosis


def both_at_once(x, temperature=1.0):
    """AXIS and TWICE: both change the same numbers, so neither explains a case alone."""
    if temperature <= 0:
        raise ValueError("temperature")
    z = x / temperature**2
    e = (z - z.amax(-1, keepdim=True)).exp()
    return e / e.sum(0, keepdim=True)


def test_two_slips_of_one_sentence_are_told_as_one():
    def answer(x, temperature=1.0):
        if temperature == 0:
            raise ValueError("zero")
        if temperature < 0:
            return torch.softmax(x / temperature, -1)
        return torch.softmax(x / temperature**2, -1)

    assert verdict(answer, twice, (TWICE, sign[1])).diagnosis == TWICE


def test_two_slips_in_the_same_line_of_thought():
    found = verdict(both_at_once, axis, twice, centre)
    assert found.sure
    assert AXIS in found.diagnosis
    assert TWICE in found.diagnosis
    assert CENTRE not in found.diagnosis


def test_pairs_are_tried_for_a_second_and_no_longer(monkeypatch):
    clock, tried = itertools.count(step=0.3), []
    monkeypatch.setattr(diagnosis, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(diagnosis.Evidence, "together", lambda _, *pair: tried.append(pair))
    assert verdict(both_at_once, axis, twice, centre, sign).diagnosis is None
    assert len(tried) == 3, "of six pairs those that begin at 0.3, 0.6 and 0.9 s"


def test_ways_to_make_one_mistake_explain_together():
    """Squared below 1 and cubed above: each way of it explains a part, and they say the same."""
    cubed = (TWICE, replace("z = x / temperature", "z = x / temperature**3"))

    def answer(x, temperature=1.0):
        power = 1 if temperature <= 0 else 2 if temperature < 1 else 3
        return ref.temperature_softmax(x, temperature**power)

    found = verdict(answer, axis, twice, cubed)
    assert (found.diagnosis, found.sure) == (TWICE, True)


def test_a_mistake_that_the_answer_does_not_make_elsewhere_is_not_named():
    """Right on every row, wrong on the edge: the axis is no explanation of anything."""

    def answer(x, temperature=1.0):
        if temperature <= 0:
            return ref.temperature_softmax(x, 1.0)
        return ref.temperature_softmax(x, temperature)

    assert verdict(answer, axis, twice, sign).diagnosis is None


def test_where_two_explain_as_much_none_is_named():
    same = ("Another name for the same.", axis[1])
    assert verdict(exercise(axis).mistakes[0].subject, axis, same).diagnosis is None


def test_something_else_altogether_is_not_explained():
    assert verdict(lambda x, temperature=1.0: x, axis, twice, sign).diagnosis is None


def test_a_cost_that_is_broken_by_nearly_as_much_is_likely():
    """In float64, as the known mistake does it, and with a small tensor more."""
    made = exercise()
    made.contract(contracts.allocates([call(torch.ones(64, 64))], 40_000))

    @made.mistake("It is computed in float64.", cost=True)
    def _(x, temperature=1.0):
        return torch.softmax(x.double() / temperature, -1).to(x.dtype)

    @made.mistake("Two copies are made.", cost=True)
    def _(x, temperature=1.0):
        return torch.softmax(x.clone().clone().clone() / temperature, -1)

    def answer(x, temperature=1.0):
        if not temperature > 0:
            raise ValueError("no temperature")
        row = torch.ones_like(x[..., :1])
        return torch.softmax(x.double() / temperature, -1).to(x.dtype) * row

    found = grade(made, answer)
    assert (found.diagnosis, found.sure) == ("It is computed in float64.", False), found

    def other(x, temperature=1.0):
        if not temperature > 0:
            raise ValueError("no temperature")
        return sum([torch.softmax(x / temperature, -1) for _ in range(20)]) / 20

    assert grade(made, other).diagnosis is None


@pytest.mark.parametrize(
    "edit",
    [
        replace("no such text", "x"),
        replace("temperature", "t"),
        replace("e.sum", "a", "e.sum", "b"),
    ],
)
def test_an_edit_whose_text_does_not_stand_there_once_raises(edit):
    with pytest.raises(NoSuchText, match="times in the code of temperature_softmax, not once"):
        edit.applied((ref.temperature_softmax,))


def test_a_docstring_is_no_code_to_edit():
    """The text stands in the docstring, too, and there it stays out of account."""

    def documented(x):
        """x + 1, and never x + 2."""
        return x + 1

    (edited,) = replace("x + 1", "x + 2").applied((documented,))
    assert edited(0) == 2
    assert documented(0) == 1


def test_an_odd_number_of_texts_raises():
    with pytest.raises(ValueError, match="pairs"):
        replace("a", "b", "c")


def test_a_class_and_a_pair_can_be_edited():
    (slow,) = replace("self.lr * self.velocity", "self.velocity").applied((ref.Momentum,))
    assert slow(torch.zeros(1))(torch.ones(1)).item() == -1.0
    there, back = replace("digits[::-1]", "digits").applied((ref.to_digits, ref.from_digits))
    assert there(12) == [2, 1]
    assert back([1, 2]) == 12


@pytest.mark.timeout(300)
def test_ranks_get_the_edited_code_and_not_the_reference():
    doubled = Exercise(
        toy_collectives.ring_sum, "t", 1, 1, 1, key="toys.edited_ring", probe=probes.on_ranks
    )
    doubled._by_hand = list(toys_on_ranks.ring._by_hand)
    wrong = replace("torch.cat(parts).view(x.shape)", "2 * torch.cat(parts).view(x.shape)")
    doubled.mistake("It is doubled.")(wrong)
    assert grade(doubled, toy_collectives.ring_sum).outcome == "passed"
    assert grade(doubled, doubled.mistakes[0].subject).outcome == "failed"
