"""The names under which a probe says what it saw, beside its own: made and read here only.

Some of them are there only if something went wrong, and mean a complaint.
"""

from typing import Any

from course_utils.grading.pytrees.shown import in_words
from course_utils.grading.pytrees.text import cut

UNASKED_GRAD = "the result requires grad, though no argument does"
NO_GRAD = "the result requires grad"
ONLY_ONCE = "the gradient cannot be differentiated again"
SURROUNDINGS = "surroundings"
RAISES = "raises"
"""For a probe that goes on after an exception: the name of its class, or `NOTHING`, or None."""

ARGUMENTS = "the arguments afterwards"
"""For a report: (args, kwargs) as the call left them, which `read` compares with the case's."""

GIVEN = "arguments afterwards"
"""For a probe that calls several things: the arguments of one call, where it changed them."""

NOTHING = "nothing"
_BEFORE, _AFTER = "argument `", "` afterwards"


def changed_argument(name: str) -> str:
    """For an argument that is no longer what it was."""
    return f"{_BEFORE}{name}{_AFTER}"


def now_requires_grad(name: str) -> str:
    """For an argument of which nothing but `requires_grad` has changed."""
    return f"{_BEFORE}{name}` requires grad afterwards"


def on_rank(rank: int, label: str) -> str:
    """The label of what a rank saw."""
    return f"rank {rank}: {label}"


def lacking(label: str) -> str:
    """What it means that a label of the reference's did not come, as the end of a sentence."""
    what = label.rpartition(": ")[2]
    is_argument = what.startswith(_BEFORE) and what.endswith(_AFTER)
    return "is what it was before: your code did not change it" if is_argument else "is missing"


def complaint(label: str, value: Any) -> str:
    """What it means that a label came which the reference does not show, in a sentence."""
    where, colon, what = label.rpartition(": ")  # the rank, or the step of a probe
    if what == RAISES:
        return f"{where}{colon}your code raised {cut(str(value))}; no exception is expected here"
    if what == GIVEN:
        return f"{where}{colon}your code changed its arguments; it must leave them alone"
    if what.startswith(_BEFORE) and what.endswith(_AFTER):
        name = what.removeprefix(_BEFORE).removesuffix(_AFTER)
        return f"your code changed its argument `{name}`; it must leave it alone"
    if what.startswith(_BEFORE):
        name = what.removeprefix(_BEFORE).partition("`")[0]
        return f"your code changed whether its argument `{name}` requires grad; leave it as it came"
    if what == NO_GRAD:
        return "no gradient flows through your result: something detached it from the graph"
    if what == ONLY_ONCE:
        return "your gradient cannot be differentiated again: no graph leads from it back to the argument"
    if what == SURROUNDINGS:
        return f"your code {cut(value) if isinstance(value, str) else in_words(value)}"
    if what == UNASKED_GRAD:
        return "your result requires grad, though no argument does: return a plain tensor"
    said = repr(value) if isinstance(value, bool | int | float) else in_words(value)
    return f"{label}: {said}; nothing of this kind is expected"
