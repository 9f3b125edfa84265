"""The names under which a probe says what it saw, beside its own: made and read here only.

Some of them are there only if something went wrong, and mean a complaint.
"""

from typing import Any

from course_utils.grading.pytrees.shown import in_words
from course_utils.grading.pytrees.text import cut

UNASKED_GRAD = "the result requires grad, though no argument does"
NO_GRAD = "the result requires grad"
SURROUNDINGS = "surroundings"
_BEFORE, _AFTER = "argument `", "` afterwards"


def changed_argument(name: str) -> str:
    """For an argument that is no longer what it was."""
    return f"{_BEFORE}{name}{_AFTER}"


def on_rank(rank: int, label: str) -> str:
    """The label of what a rank saw."""
    return f"rank {rank}: {label}"


def complaint(label: str, value: Any) -> str:
    """What it means that a label came which the reference does not show, in a sentence."""
    what = label.rpartition(": ")[2]  # after the rank, or the step of a probe that takes several
    if what.startswith(_BEFORE) and what.endswith(_AFTER):
        name = what.removeprefix(_BEFORE).removesuffix(_AFTER)
        return f"your code changed its argument `{name}`; it must leave it alone"
    if what == NO_GRAD:
        return "no gradient flows through your result: something detached it from the graph"
    if what == SURROUNDINGS:
        return f"your code {cut(value) if isinstance(value, str) else in_words(value)}"
    if what == UNASKED_GRAD:
        return "your result requires grad, though no argument does: return a plain tensor"
    return f"came {in_words(value)}, unexpected"
