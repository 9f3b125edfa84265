"""Bytes, perhaps forged, read as a tree: strictly, within bounds, in linear time."""

import json
import math
from typing import Any

import torch
from safetensors import deserialize
from torch import Tensor, nn

from .format import (
    DEEPEST,
    DTYPES,
    LARGEST_HEADER,
    MOST_ARRAYS,
    MOST_AXES,
    MOST_ELEMENTS,
    MOST_KEYS,
    MOST_VALUES,
    PLAIN_DTYPE,
    key_of,
)
from .text import LONGEST_TEXT, cut
from .tree import Later, Opaque, Tree


def unpacked(data: bytes) -> dict[str, Tensor]:
    """The arrays of bytes in a file; `frombuffer` takes no empty ones."""
    return {
        name: torch.frombuffer(one["data"], dtype=torch.uint8)
        if one["data"]
        else torch.empty(0, dtype=torch.uint8)
        for name, one in deserialize(data)
    }


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
        return _Reader(unpacked(data)).read(json.loads(header["__metadata__"]["tree"]), 0)
    except Exception as error:
        raise ValueError(f"this is no tree: {type(error).__name__}: {error}"[:300]) from error


class _Reader:
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
            case "later", [str(what), {"tuple": list(values)}]:
                return Later(cut(what), tuple(self.read(item, depth + 1) for item in values))
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
