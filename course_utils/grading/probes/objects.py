"""Probes of classes with a state: built once, driven through several steps."""

from typing import Any

from torch import Tensor

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.shown import shown


@probe
def steps(subject: Any, case: Case) -> dict[str, Any]:
    """Build the class with the case's keyword arguments, then call it once for each positional one.

    Returns each step's result, and the object's public attributes (arrays and plain values) at
    the end.
    """
    thing = subject(**case.kwargs)
    seen: dict[str, Any] = {}
    for i, argument in enumerate(case.args):
        result = thing(argument)
        seen[f"result of step {i + 1}"] = result.clone() if isinstance(result, Tensor) else result
    for name in public_attributes(thing):
        seen[f"attribute `{name}` at the end"] = getattr(thing, name)
    return seen


def public_attributes(thing: Any) -> list[str]:
    """Names of what the object holds, in its `__dict__` or in `__slots__`."""
    slots = [vars(cls).get("__slots__", ()) for cls in type(thing).__mro__]
    slotted = {name for names in slots for name in ([names] if isinstance(names, str) else names)}
    held = {name for name in slotted if hasattr(thing, name)} | set(getattr(thing, "__dict__", {}))
    return sorted(name for name in held if not name.startswith("_"))


def _called_in_steps(name: str, case: Case) -> str:
    built = ", ".join(f"{key}={shown(value)}" for key, value in case.kwargs.items())
    calls = ", then ".join(f"({shown(argument)})" for argument in case.args)
    return f"{name}({built}), called with {calls}"


steps.called = _called_in_steps
