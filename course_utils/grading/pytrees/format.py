"""The form in which a tree crosses from one process to another, and its bounds."""

import re
from typing import Any

import torch

from .tree import opaque

LARGEST_HEADER = 16 * 2**20  # bytes of JSON in a frame
MOST_VALUES = 500_000
MOST_ARRAYS = 20_000
MOST_KEYS = 4_096  # of dicts, that are no text: their hashes can be made to collide
DEEPEST, MOST_AXES = 100, 64
MOST_ELEMENTS = 2**60
PLAIN_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|b?float(16|32|64)|float8_.*|complex(64|128)")
DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if type(d) is torch.dtype}


def key_of(key: Any) -> Any:
    """A dict's key; one that does not stay equal to itself in another process, as an `Opaque`."""
    if isinstance(key, tuple):
        return tuple(map(key_of, key))
    plain = key is None or isinstance(key, bool | int | float | str | torch.dtype | torch.device)
    return key if plain else opaque(key)
