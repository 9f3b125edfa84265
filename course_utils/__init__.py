"""Strides to Shards: the package behind the notebooks.

A notebook needs these verbs: `exercise` and the helpers around it, `predict` and `quiz`, and
`measure`, which counts what a computation cost. They are loaded when first used.
"""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_utils.grading.notebook.checking import exercise
    from course_utils.grading.notebook.verbs import (
        hint,
        mine,
        progress,
        provenance,
        reset,
        solution,
        use_book,
    )

    from .meters import measure
    from .questions import predict, quiz

_HOMES = {
    "course_utils.grading.notebook.checking": ("exercise",),
    "course_utils.grading.notebook.verbs": (
        "hint",
        "mine",
        "progress",
        "provenance",
        "reset",
        "solution",
        "use_book",
    ),
    "course_utils.questions": ("predict", "quiz"),
    "course_utils.meters": ("measure",),
}

__all__ = [
    "exercise",
    "hint",
    "measure",
    "mine",
    "predict",
    "progress",
    "provenance",
    "quiz",
    "reset",
    "solution",
    "use_book",
]


# Without a GPU Triton runs kernels under its interpreter. It asks when it is first imported, which parts
# of torch do by themselves: so it is said here, before anything of the course or of torch loads them.
if find_spec("triton") and not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(home), name)
    raise AttributeError(f"course_utils has no {name!r}; it has {', '.join(__all__)}")
