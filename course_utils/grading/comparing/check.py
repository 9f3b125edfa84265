"""A check: a case, and what is expected of it."""

from dataclasses import dataclass
from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.observing.observe import Observation


@dataclass(frozen=True)
class Expectation:
    """What the probe sees on the reference; oracle: the same in float64; length: see compare."""

    observation: Observation
    oracle: dict[str, Any] | None
    length: int


@dataclass(frozen=True)
class Check:
    """A case, and what the reference shows on it."""

    case: Case
    expected: Expectation
