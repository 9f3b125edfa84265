"""Trees as bytes and back: one safetensors file a tree, and nothing that runs code.

The bytes may come from a student's process. So they are read strictly: a bounded number of values,
no tensor outside of its storage, `ValueError` for everything else.
"""

import json
from typing import Any

import numpy as np
import torch
from safetensors import TensorSpec, serialize
from torch import Tensor, nn

from .format import DEEPEST, LARGEST_HEADER, MOST_ARRAYS, MOST_VALUES, key_of
from .tree import Later, Tree, copier, is_plain_tensor, map_tree, opaque, why_not_plain


def dumps(tree: Tree) -> bytes:
    """A tree as one safetensors file: the storages as byte arrays, the rest as JSON in its header.

    What is no tree crosses as an `Opaque`. Raises ValueError for a tree that `loads` would refuse:
    one that is too large, too deep, or holds itself.
    """
    writer = _Writer()
    written = writer.write(tree, 0)
    header = json.dumps(written, allow_nan=False)
    if len(header) > LARGEST_HEADER // 2:
        raise ValueError(f"a tree of {len(header):,} bytes of text cannot cross")
    return packed(writer.arrays, header)


def packed(arrays: dict[str, Tensor], header: str) -> bytes:
    """What `safetensors.torch.save` writes of these arrays of bytes; it takes five times as long."""
    specs = {
        name: TensorSpec(
            dtype="uint8", shape=array.shape, data_ptr=array.data_ptr(), data_len=array.numel()
        )
        for name, array in arrays.items()
    }
    data: bytes = serialize(specs, metadata={"tree": header})
    return data


class _Writer:
    def __init__(self) -> None:
        self.arrays: dict[str, Tensor] = {}
        self.numbers: dict[tuple[str, int], str] = {}
        self.values = 0

    def write(self, value: Any, depth: int) -> Any:
        self.values += 1
        if self.values > MOST_VALUES or depth > DEEPEST or len(self.arrays) > MOST_ARRAYS:
            raise ValueError("a tree that is so large or deep cannot cross")
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is int:
            return value if value.bit_length() < 8192 else {"opaque": ["huge int", "", ""]}
        if type(value) is float:
            return {"float": repr(value)}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, tuple | list):
            items = [self.write(item, depth + 1) for item in value]
            return {"tuple": items} if isinstance(value, tuple) else items
        if isinstance(value, dict):
            pairs = [
                [self.write(key_of(k), depth + 1), self.write(value[k], depth + 1)] for k in value
            ]
            return {"dict": pairs}
        if isinstance(value, Later):
            return {"later": [value.what, self.write(value.values, depth + 1)]}
        if isinstance(value, Tensor) and not why_not_plain(value):
            return {"tensor": self.write_tensor(value)}
        found = opaque(value)
        return {"opaque": [found.kind, found.text, found.tensor]}

    def write_tensor(self, value: Tensor) -> list[Any]:
        number = None
        value = value.resolve_conj().resolve_neg()
        if not value.is_meta:
            storage = value.untyped_storage()
            key = (str(value.device), storage.data_ptr() if storage.nbytes() else -1)
            if key not in self.numbers:
                self.numbers[key] = str(len(self.numbers))
                raw = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
                self.arrays[self.numbers[key]] = raw.cpu()
            number = self.numbers[key]
        return [
            number,
            str(value.dtype).removeprefix("torch."),
            list(value.shape),
            list(value.stride()),
            value.storage_offset(),
            value.requires_grad,
            type(value) is nn.Parameter,
            str(value.device),
        ]


def extent(tree: Tree) -> int:
    """The bytes that an arbitrary tree takes: of storages, each counted once, of texts, and a few for
    each value. Raises ValueError for one that is larger or deeper than may cross."""
    held: dict[tuple[str, int], int] = {}
    ahead: list[tuple[Any, int]] = [(tree, 0)]
    size = number = 0
    while ahead:
        value, depth = ahead.pop()
        number += 1
        size += 8 + (len(value) if isinstance(value, str) else 0)
        if is_plain_tensor(value) and not value.is_meta:
            storage = value.untyped_storage()
            held[str(value.device), storage.data_ptr()] = storage.nbytes()
        inside: Any = value if isinstance(value, tuple | list) else ()
        if isinstance(value, dict):
            inside = (*value, *value.values())
        if isinstance(value, Later):
            inside = value.values
        if number + len(inside) > MOST_VALUES // 4 or depth > DEEPEST - 10:
            raise ValueError("more values than may cross, or one inside of the other without end")
        ahead += [(item, depth + 1) for item in inside]
    return size + sum(held.values())


def snapshot(tree: Tree) -> Tree:
    """The tree as it is now, for `dumps` to write later. What shared a storage shares one again."""
    copy = copier()

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor) or why_not_plain(value):
            return opaque(value) if isinstance(value, Tensor) else value
        new = copy(value.detach())
        if type(value) is nn.Parameter:
            return nn.Parameter(new, value.requires_grad)
        return new.requires_grad_() if value.requires_grad else new

    return map_tree(leaf, tree)
