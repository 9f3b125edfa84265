"""What the two sides of a check agree on: functions by name, the size of a frame."""

import importlib
from typing import Any

LARGEST_FRAME = 64 * 2**20


def name_of(function: Any) -> str:
    """The name by which another process finds a function. Raises ValueError if it has none."""
    name = f"{function.__module__}:{function.__qualname__}"
    try:
        if called(name) is function:
            return name
    except (ImportError, AttributeError):
        pass
    raise ValueError(f"{name} is not at the top level of a module: no other process can find it")


def called(name: str) -> Any:
    """The function of this name, `module:attribute`. Raises ImportError or AttributeError."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
