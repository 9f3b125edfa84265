"""Is an observation as expected; if not, in what, in a sentence to the student."""

from typing import Any

from course_utils.grading.driving.labels import NOTHING, RAISES, SURROUNDINGS, complaint, lacking
from course_utils.grading.observing import errors as raising
from course_utils.grading.observing.errors import Raised
from course_utils.grading.observing.observe import Observation

from .check import Check
from .trees import EVERYTHING, KIND, Difference, compare


def differs(
    got: Observation, check: Check, aspects: frozenset[str] = EVERYTHING
) -> tuple[str, Difference] | None:
    """The first named thing in which an observation is not as expected, or None."""
    want = check.expected.observation
    if got.raised or want.raised:
        return _differs_in_exception(got, want)
    try:
        found = _differs_in_what_was_seen(got, check, aspects)
    except Exception as error:  # a result of the student's own making may do anything
        kind = type(error).__name__
        sentence = f"what came cannot be compared: looking at it raises {kind}"
        return "result", Difference(KIND, "", sentence)
    if found or aspects is not EVERYTHING:
        return found
    left = [what for what in got.left if what not in want.left]
    return (SURROUNDINGS, Difference(KIND, "", f"your code {left[0]}")) if left else None


def _differs_in_what_was_seen(
    got: Observation, check: Check, aspects: frozenset[str]
) -> tuple[str, Difference] | None:
    want = check.expected.observation
    assert got.seen is not None and want.seen is not None
    if of_raising := differs_in_what_it_raised(got.seen, want.seen):
        return of_raising
    extra = [label for label in got.seen if label not in want.seen]
    for label, value in want.seen.items():
        if label not in got.seen and extra:
            return extra[0], Difference(KIND, "", complaint(extra[0], got.seen[extra[0]]))
        if label not in got.seen:
            return label, Difference(KIND, "", lacking(label))
        oracle = (check.expected.oracle or {}).get(label)
        length = check.expected.length
        found = compare(got.seen[label], value, oracle, length=length, aspects=aspects)
        if found:
            return label, found
    if extra and aspects is EVERYTHING:
        return extra[0], Difference(KIND, "", complaint(extra[0], got.seen[extra[0]]))
    return None


def differs_in_what_it_raised(
    got: dict[str, Any], want: dict[str, Any]
) -> tuple[str, Difference] | None:
    """Of a probe that goes on after an exception, and says which it was."""

    def raised(seen: dict[str, Any]) -> Any:
        return None if seen.get(RAISES) == NOTHING else seen.get(RAISES)

    mine, theirs = raised(got), raised(want)
    if mine == theirs or not all(kind is None or isinstance(kind, str) for kind in (mine, theirs)):
        return None
    came = f"your code raised {mine}" if mine else "your code returned"
    due = f"{theirs} is expected here" if theirs else "no exception is expected here"
    return "exception", Difference(KIND, "", f"{due}; {came}")


def _differs_in_exception(got: Observation, want: Observation) -> tuple[str, Difference] | None:
    if got.raised and want.raised and want.raised.kind in got.raised.kinds:
        return None
    if want.raised:
        came = (
            f"your code raised {got.raised.kind}" if got.raised else "your code returned a result"
        )
        return "exception", Difference(KIND, "", f"{want.raised.kind} is expected here; {came}")
    assert got.raised
    return "exception", Difference(KIND, "", _exception_sentence(got))


def _exception_sentence(got: Observation) -> str:
    assert got.raised
    return raised_sentence(got.raised, got.seconds)


def raised_sentence(raised: Raised, seconds: float) -> str:
    """An exception as a sentence. seconds: the limit of one call, for one that ran into it."""
    if raised.told:
        return raised.message
    if raised.kind == raising.TIME_LIMIT:
        return f"your code was still running after {seconds:.0f} s: an endless loop?"
    if raised.kind == raising.INTERRUPTED:
        return "you interrupted it"
    return f"your code raised {raised.kind}{raised.where}: {raised.message}"


def compares_something(check: Check) -> bool:
    """Is there anything in the expected observation that could differ?"""
    want = check.expected.observation
    return want.raised is not None or bool(want.seen)
