"""Trees as bytes and back: one safetensors file a tree, and nothing that runs code.

The bytes may come from a student's process. So they are read strictly: a bounded number of values,
no tensor outside of its storage, `ValueError` for everything else.
"""

import json
import math
import re
from typing import Any

import numpy as np
import torch
from safetensors import TensorSpec, deserialize, serialize
from torch import Tensor, nn

from .values import (
    LONGEST_TEXT,
    Opaque,
    Tree,
    cut,
    fresh,
    is_plain_tensor,
    map_tree,
    opaque,
    why_not_plain,
)

LARGEST_HEADER = 16 * 2**20  # bytes of JSON in a frame
MOST_VALUES = 500_000
MOST_ARRAYS = 20_000
MOST_KEYS = 4_096  # of dicts, that are no text: their hashes can be made to collide
DEEPEST, MOST_AXES = 100, 64
MOST_ELEMENTS = 2**60
PLAIN_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|b?float(16|32|64)|float8_.*|complex(64|128)")
DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if type(d) is torch.dtype}


def dumps(tree: Tree) -> bytes:
    """A tree as one safetensors file: the storages as byte arrays, the rest as JSON in its header.

    What is no tree crosses as an `Opaque`. Raises ValueError for a tree that `loads` would refuse:
    one that is too large, too deep, or holds itself.
    """
    writer = Writer()
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


def unpacked(data: bytes) -> dict[str, Tensor]:
    """The arrays of bytes in a file; `frombuffer` takes no empty ones."""
    return {
        name: torch.frombuffer(one["data"], dtype=torch.uint8)
        if one["data"]
        else torch.empty(0, dtype=torch.uint8)
        for name, one in deserialize(data)
    }


class Writer:
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


def key_of(key: Any) -> Any:
    """A dict's key; one that does not stay equal to itself in another process, as an `Opaque`."""
    if isinstance(key, tuple):
        return tuple(map(key_of, key))
    plain = key is None or isinstance(key, bool | int | float | str | torch.dtype | torch.device)
    return key if plain else opaque(key)


def loads(data: bytes) -> Tree:
    """The tree that `dumps` wrote. Raises ValueError, and nothing else, on any other bytes.

    They may be forged: no tensor reaches outside of its storage, none takes more memory than its
    bytes, and the time is linear in the length.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(data[8 : 8 + length])
        arrays = {name: one for name, one in header.items() if name != "__metadata__"}
        if len(arrays) > MOST_ARRAYS:
            raise ValueError(f"{len(arrays)} arrays")
        if any(one["dtype"] != "U8" or len(one["shape"]) != 1 for one in arrays.values()):
            raise ValueError("an array that holds no bytes")
        return Reader(unpacked(data)).read(json.loads(header["__metadata__"]["tree"]), 0)
    except Exception as error:
        raise ValueError(f"this is no tree: {type(error).__name__}: {error}"[:300]) from error


class Reader:
    def __init__(self, arrays: dict[str, Tensor]) -> None:
        self.arrays = arrays
        self.bools: dict[str, bool] = {}
        self.values = self.keys = 0

    def read(self, value: Any, depth: int) -> Tree:
        self.values += 1
        if self.values > MOST_VALUES or depth > DEEPEST:
            raise ValueError("it is too large or too deep")
        if type(value) is list:
            return [self.read(item, depth + 1) for item in value]
        if type(value) is not dict:
            if type(value) is float:
                raise ValueError("a float is written as text")
            return value
        ((tag, body),) = value.items()
        match tag, body:
            case "float", str() if len(body) < 40:
                return float(body)
            case "dtype", str():
                return DTYPES[body]
            case "device", str():
                return torch.device(body)
            case "tuple", list():
                return tuple(self.read(item, depth + 1) for item in body)
            case "dict", list():
                return {self.key(k, depth): self.read(item, depth + 1) for k, item in body}
            case "opaque", [str(kind), str(text), str(tensor)]:
                if max(map(len, (kind, text, tensor))) <= LONGEST_TEXT:
                    return Opaque(cut(kind), cut(text), cut(tensor))
            case "tensor", [str() | None, str(), list(), list(), int(), bool(), bool(), str()]:
                return self.tensor(*body)
        raise ValueError(f"no value is tagged {tag!r:.40} and holds this")

    def key(self, value: Any, depth: int) -> Any:
        key = self.read(value, depth + 1)
        if type(key) is not str:
            self.keys += 1
            if self.keys > MOST_KEYS:
                raise ValueError(f"more than {MOST_KEYS} keys that are no text")
        if key_of(key) is not key and not isinstance(key, tuple | Opaque):
            raise ValueError("a key that is no plain value")
        return key

    def tensor(
        self,
        number: str | None,
        dtype_name: str,
        shape: list[int],
        stride: list[int],
        offset: int,
        requires_grad: bool,
        parameter: bool,
        device: str,
    ) -> Tensor:
        if not PLAIN_DTYPE.fullmatch(dtype_name):
            raise ValueError(f"no plain dtype: {dtype_name:.40}")
        dtype = DTYPES[dtype_name]
        sizes = (*shape, *stride, offset)
        if not all(type(n) is int and 0 <= n < MOST_ELEMENTS for n in sizes):
            raise ValueError("a size that no tensor has")
        if len(shape) != len(stride) or len(shape) > MOST_AXES:
            raise ValueError(f"{len(shape)} sizes and {len(stride)} strides")
        if math.prod(max(n, 1) for n in shape) > MOST_ELEMENTS:
            raise ValueError("more elements than memory can hold")
        if number is None:
            return torch.empty(shape, dtype=dtype, device="meta")
        raw = self.arrays[number]
        last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        if 0 not in shape and (last + 1) * dtype.itemsize > raw.numel():
            raise ValueError("a tensor that reaches outside of its storage")
        if dtype == torch.bool and not self.holds_bools(number):
            raise ValueError("a bool that is neither 0 nor 1")
        new = torch.empty(0, dtype=dtype)
        new.set_(raw.untyped_storage(), offset, shape, stride)
        if not device.startswith("cpu"):
            new = new.to(device)
        if parameter:
            return nn.Parameter(new, requires_grad)
        return new.requires_grad_() if requires_grad else new

    def holds_bools(self, number: str) -> bool:
        if number not in self.bools:
            raw = self.arrays[number]
            self.bools[number] = not raw.numel() or int(raw.max()) <= 1
        return self.bools[number]


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
        if number + len(inside) > MOST_VALUES // 4 or depth > DEEPEST - 10:
            raise ValueError("more values than may cross, or one inside of the other without end")
        ahead += [(item, depth + 1) for item in inside]
    return size + sum(held.values())


def snapshot(tree: Tree) -> Tree:
    """The tree as it is now, for `dumps` to write later."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor) or why_not_plain(value):
            return opaque(value) if isinstance(value, Tensor) else value
        new = fresh(value.detach())
        if type(value) is nn.Parameter:
            return nn.Parameter(new, value.requires_grad)
        return new.requires_grad_() if value.requires_grad else new

    return map_tree(leaf, tree)
