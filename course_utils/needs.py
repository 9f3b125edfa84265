"""What a cell or an exercise may need that not every machine has: a GPU, Triton, a C++ compiler.

A cell says so by a tag, and is one `if` on that need's guard, so that Run All goes on without it. An
exercise says so by `needs=`. Where it is missing, both are skipped by name; where an environment
variable says that it must be there, that is a failure.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class Need:
    """tag: of the cells. name: in `Exercise(needs=…)`. what: in words. guard: the condition on which the
    cell stands. present: is it here? required_by: the variable that, set to 1, makes it an error if
    not. get: how to get it, "" where no command can.
    """

    tag: str
    name: str
    short: str
    what: str
    guard: str
    present: Callable[[], bool]
    required_by: str
    get: str = ""

    @property
    def required(self) -> bool:
        """Must this machine have it?"""
        return os.environ.get(self.required_by) == "1"


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _triton() -> bool:
    return find_spec("triton") is not None


def cpp_compiler() -> str | None:
    """The path of the C++ compiler that Inductor would call here; None where there is none."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX") or usual)


GPU = Need(
    "gpu", "cuda", "CUDA", "a CUDA GPU", "torch.cuda.is_available()", _cuda, "COURSE_REQUIRE_GPU"
)
TRITON = Need(
    "triton",
    "triton",
    "Triton",
    "Triton",
    "triton is not None",
    _triton,
    "COURSE_REQUIRE_TRITON",
    "make lab WITH=triton",
)
COMPILER = Need(
    "compiler",
    "compiler",
    "a C++ compiler",
    "a C++ compiler",
    "compiler is not None",
    lambda: cpp_compiler() is not None,
    "COURSE_REQUIRE_COMPILER",
)
NEEDS = (GPU, TRITON, COMPILER)


def of_tags(tags: Iterable[str]) -> Need | None:
    """The need that a cell with these tags has; None for none."""
    found = set(tags)
    return next((need for need in NEEDS if need.tag in found), None)


def lacking(name: str | None) -> Need | None:
    """The need of this name if it is missing here; None where nothing is needed, or it is here.

    Raises KeyError for a name that no need has.
    """
    if name is None:
        return None
    need = {one.name: one for one in NEEDS}[name]
    return None if need.present() else need
