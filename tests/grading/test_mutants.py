"""Small wrong versions of every reference must die by the checks, or be argued to be equivalent."""

import pytest
import toys

from course_utils.authoring import proofs
from course_utils.authoring.mutation.of_exercise import judge_survivors, survey
from tests.support.proving import DUE, prove


@pytest.mark.parametrize("key", [*DUE])
def test_mutants_die(key):
    found = prove(key, proofs.MUTANTS)
    assert found["made"] == found["killed"] + found["surviving"]


def test_a_survivor_without_an_argument_fails_the_suite():
    """The toy softmax without its edge cases no longer notices that the maximum is not subtracted."""
    weak = toys.softmax.__class__(
        toys.ref.temperature_softmax, "t", 1, 1, 1, key="toys.temperature_softmax"
    )
    weak._random = list(toys.softmax._random)
    living = survey(weak).living
    assert any("amax" in m for m in living)
    with pytest.raises(AssertionError, match="nobody says why"):
        judge_survivors(weak, living)


def test_an_argument_for_a_dead_mutant_fails_the_suite():
    exercise = toys.softmax.__class__(toys.ref.unit_norm, "t", 1, 1, 1, key="toys.unit_norm")
    exercise.equivalent("gone", because="it once was the same thing")
    with pytest.raises(AssertionError, match="do not survive"):
        judge_survivors(exercise, ())
