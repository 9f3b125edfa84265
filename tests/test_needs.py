"""What not every machine has: found, named, and asked for."""

from copy import copy

import pytest

from course_utils import needs
from course_utils.authoring.proofs import proofs_of, unprovable
from course_utils.grading import find, grade
from course_utils.grading.judging.outcomes import SKIPPED


def test_a_cells_tags_say_what_it_needs() -> None:
    assert needs.of_tags(["figure", "triton"]) is needs.TRITON
    assert needs.of_tags(["gpu"]) is needs.GPU
    assert needs.of_tags(["figure"]) is None


def test_what_is_here_is_not_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needs.lacking(None) is None
    monkeypatch.setattr(needs, "find_spec", lambda name: object())
    assert needs.lacking("triton") is None
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    assert needs.lacking("triton") is needs.TRITON
    with pytest.raises(KeyError):
        needs.lacking("jax")


def test_a_compiler_is_the_one_that_inductor_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert needs.cpp_compiler() is None
    assert needs.lacking("compiler") is needs.COMPILER
    monkeypatch.setenv("CXX", "sh")
    assert str(needs.cpp_compiler()).endswith("/sh")


def test_without_it_an_exercise_is_skipped_and_nothing_is_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    needy = copy(find("strides.flat_index"))
    needy.needs = "triton"
    verdict = grade(needy, *needy.parts)
    assert verdict.outcome == SKIPPED
    assert "it needs Triton: make lab WITH=triton" in str(verdict)
    assert verdict.ran == 0
    assert unprovable(needy) == dict.fromkeys(proofs_of(needy), "it needs Triton")
