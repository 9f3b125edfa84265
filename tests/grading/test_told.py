"""What a verdict says of dictionaries, of a step that raised or wrote; and code that must see numbers."""

import pytest
import torch

from course_utils.grading import Exercise, call
from course_utils.grading.comparing.trees import compare
from course_utils.grading.driving.labels import complaint
from course_utils.grading.judging.judge import grade
from course_utils.grading.judging.words import entry
from course_utils.grading.probes import one_of


def test_of_a_dictionary_the_entry_that_differs_is_shown():
    got = {"a": torch.zeros(2), "b": {"c": torch.ones(2), "d": 1}}
    want = {"a": torch.zeros(2), "b": {"c": torch.zeros(2), "d": 1}}
    path = compare(got, want).path
    assert entry(want, path) == (want["b"]["c"], "['b']['c']")
    assert entry(got, path)[0] is got["b"]["c"]
    assert entry({"a": 1}, "['z']") == ({"a": 1}, "")
    assert entry([1, 2], "[1]") == ([1, 2], "")
    assert entry({0: 1}, "[0]") == ({0: 1}, ""), "only names are taken for keys"


def test_a_step_that_raised_or_wrote_is_told_in_words():
    assert complaint("step 2 (observe): raises", "IndexError") == (
        "step 2 (observe): your code raised IndexError; no exception is expected here"
    )
    assert "changed its arguments" in complaint("arguments afterwards", [torch.zeros(2)])
    assert complaint("buffer `a` requires grad", True) == (
        "buffer `a` requires grad: True; nothing of this kind is expected"
    )


def doubled(x):
    """Twice x, on x's device."""
    return 2 * x


doubling = Exercise(doubled, key="told.doubled", title="Twice", difficulty=1, minutes=1, points=1)


@doubling.by_hand
def _():
    yield call(torch.ones(2)), 2 * torch.ones(2)


@doubling.edge
def _():
    yield call(torch.zeros(2, 3, device="meta")), "on another device than the default one"


def by_numpy(x):
    return torch.from_numpy(2 * x.cpu().numpy()).to(x.device)


def by_numbers(x):
    return torch.tensor([2 * v for v in x.flatten().tolist()], device=x.device).view(x.shape)


def asks(x):
    return 2 * x if bool((x == x).all()) else x


def on_the_default_device(x):
    return torch.zeros(x.shape).add_(2 * x)


def forgets(x):
    return torch.tensor([2 * v for v in x.flatten().tolist()]).view(x.shape)


@pytest.mark.parametrize("answer", [doubled, by_numpy, by_numbers, asks])
def test_code_that_needs_numbers_is_right_on_a_device_that_has_them(answer):
    assert grade(doubling, answer).outcome == "passed"


@pytest.mark.parametrize("answer", [on_the_default_device, forgets])
def test_a_forgotten_device_is_seen_all_the_same(answer):
    verdict = grade(doubling, answer)
    assert verdict.outcome == "failed" and "another device" in str(verdict)


def test_one_of_several_that_writes_over_its_argument():
    exercise = Exercise(
        (doubled, torch.abs),
        key="told.pair",
        title="",
        difficulty=1,
        minutes=1,
        points=1,
        probe=one_of,
    )

    @exercise.by_hand
    def _():
        yield call("doubled", torch.ones(2)), 2 * torch.ones(2)

    told = str(grade(exercise, lambda x: x.mul_(2), torch.abs))
    assert "your code changed its arguments; it must leave them alone" in told
