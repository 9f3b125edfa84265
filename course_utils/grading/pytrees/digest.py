"""Digests of what a probe reported, by which a later change of it shows."""

from contextlib import suppress
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from .tree import is_plain_tensor, lacks_memory, tensors

_MOST_ELEMENTS = 100_000


def digest(seen: Any) -> str:
    """Of the numbers in a tree's tensors, the small ones; "" where they cannot be read.

    It is the same before and after the tree has crossed to another process.
    """
    found = blake2b(digest_size=16)
    with suppress(Exception):  # a list that holds itself, say
        for x in tensors(seen):
            if type(x) is Tensor and is_plain_tensor(x) and _is_here(x):
                numbers = x.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
                raw: Any = numbers.view(torch.uint8).numpy()
                found.update(raw)
        return found.hexdigest()
    return ""


def _is_here(x: Tensor) -> bool:
    return not (x.is_nested or x.is_meta or x.numel() > _MOST_ELEMENTS or lacks_memory(x))
