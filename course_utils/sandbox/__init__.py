"""Where students' code runs: a process forked from one that has torch loaded, with nothing to find.

    with Sandbox() as sandbox:
        print(sandbox.level)
        with sandbox.submission() as channel:
            channel.ask({"do": "read", "cells": [...]}, limit_s=5.0)

``limits``      what a submission may use
``levels``      which isolation this machine gives, and why no better one
``bubblewrap``  what can be seen inside
``zygote``      the process that forks; ``child``: what a submission loses before its first line
``namespaces``, ``seccomp``  the kernel's own means
``frames``      what crosses: bounded trees of arrays and JSON
``sandbox``     the grader's side of all this
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .handles import Broken
    from .levels import SandboxMissing, best_level
    from .limits import Limits
    from .sandbox import Sandbox, SubmissionChannel

_HOMES = {
    "SandboxMissing": "levels",
    "best_level": "levels",
    "Limits": "limits",
    "Broken": "handles",
    "Sandbox": "sandbox",
    "SubmissionChannel": "sandbox",
}
__all__ = ["Broken", "Limits", "Sandbox", "SandboxMissing", "SubmissionChannel", "best_level"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"{__name__} has no {name!r}; it has {', '.join(__all__)}")
