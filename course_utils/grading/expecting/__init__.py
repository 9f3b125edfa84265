"""Where expectations come from: the reference, or a file of an edition without answers."""

from course_utils.grading.comparing.check import Check
from course_utils.grading.declaring.exercise import Exercise, Expectations

from .from_reference import FromReference


def expectations_of(exercise: Exercise) -> Expectations:
    """Those that the exercise brings, or else those of its reference."""
    return exercise.expectations or FromReference(exercise)


def checks_of(exercise: Exercise, seed: int = 0) -> list[Check]:
    """Every case of the exercise with what is expected of it. Raises NoChecks if there is none."""
    return expectations_of(exercise).checks(seed)
