"""Triton where it is installed: `triton`, and `tl` for triton.language. Elsewhere `triton` is None.

Without a GPU its kernels run under its interpreter, which takes CPU tensors. That must be settled before
Triton is first imported, by whomever.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch

triton: Any = None
tl: Any = SimpleNamespace(constexpr=object)  # so that kernels can be defined without Triton

if find_spec("triton") is not None:
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    triton, tl = import_module("triton"), import_module("triton.language")
