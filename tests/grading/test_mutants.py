"""Small wrong versions of every reference must die by the checks, or be argued to be equivalent."""

import pytest
import toys

from course_utils.authoring import proofs
from course_utils.authoring.mutation.of_exercise import judge_survivors, survey
from course_utils.grading import every
from tests.support.counts import count
from tests.support.proving import DUE, LEDGER, prove


@pytest.mark.parametrize("key", [*DUE])
def test_mutants_die(key):
    count_mutants(prove(key, proofs.MUTANTS))


@pytest.mark.parametrize("key", [key for key in every() if key not in DUE])
def test_mutants_of_the_ledger_are_counted(key):
    """An entry that holds is about the mutants of now, and the survivors that are argued for."""
    found = LEDGER[key].proofs.get(proofs.MUTANTS, {})
    assert found or proofs.MUTANTS in LEDGER[key].unproved
    if found:
        assert found["surviving"] == len(every()[key].equivalents)
        count_mutants(found)


def count_mutants(found):
    assert found["made"] == found["killed"] + found["surviving"]
    count("mutants killed", found["killed"])
    count("mutants that survive, with an argument", found["surviving"])


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
