"""Probes of classes with a state: built once, driven through several steps."""

from typing import Any

from torch import Tensor

from ..case import Case
from ..render import shown


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
    for name, value in sorted(vars(thing).items()):
        if not name.startswith("_"):
            seen[f"attribute `{name}` at the end"] = value
    return seen


def called_in_steps(name: str, case: Case) -> str:
    built = ", ".join(f"{key}={shown(value)}" for key, value in case.kwargs.items())
    calls = ", then ".join(f"({shown(argument)})" for argument in case.args)
    return f"{name}({built}), called with {calls}"


steps.called = called_in_steps  # type: ignore[attr-defined]
