"""Trees of tensors and plain values: copied exactly, measured, and turned into bytes and back.

A *tree* is a tensor, a plain value (None, bool, int, float, str, dtype, device) or a tuple, list
or dict of trees. Everything that an exercise is given, and everything that a probe sees, is a
tree; so a case, or what a student's code made of it, can cross from one process to another as
arrays and JSON, with strides, offsets and shared storages intact.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .text import cut, short

Tree = Any
SUBCLASS, RESIZED = "subclass", "resized"  # why a tensor is no plain one; or else its layout


@dataclass(frozen=True)
class Opaque:
    """Something that is no tree: only its type's name and a short text of it survive the crossing.

    tensor: for a tensor that is none of the plain ones, why.
    """

    kind: str
    text: str
    tensor: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Later:
    """Values of which the judge of a report, not its maker, works something out: see `driving.later`."""

    what: str
    values: tuple[Tree, ...]


def is_plain_tensor(value: object) -> bool:
    """Is it a strided tensor that is not quantised?"""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized


def leaves(tree: Tree) -> Iterator[Any]:
    """Every tensor and plain value of the tree, from left to right."""
    if isinstance(tree, tuple | list):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from leaves(item)
    elif isinstance(tree, Later):
        yield from leaves(tree.values)
    else:
        yield tree


def tensors(tree: Tree) -> list[Tensor]:
    """Every tensor of the tree, from left to right."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def map_tree(fn: Callable[[Any], Any], tree: Tree) -> Tree:
    """The same tree with `fn` applied to every leaf."""
    if isinstance(tree, torch.Size):
        return tuple(fn(item) for item in tree)
    if isinstance(tree, tuple):
        items = [map_tree(fn, item) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, list):
        return [map_tree(fn, item) for item in tree]
    if isinstance(tree, dict):
        return {key: map_tree(fn, item) for key, item in tree.items()}
    if isinstance(tree, Later):
        return Later(tree.what, map_tree(fn, tree.values))
    return fn(tree)


def fresh(tree: Tree) -> Tree:
    """A deep copy in which every tensor keeps its sizes, strides, offset and dtype.

    Tensors that shared a storage share one again; nothing is shared with the original.
    """
    return map_tree(copier(), tree)


def copier() -> Callable[[Any], Any]:
    """What copies one leaf after the other as `fresh` does: those that shared a storage share one again."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(leaf: Any) -> Any:
        if not is_plain_tensor(leaf) or leaf.device.type == "meta":
            return leaf
        storage = leaf.untyped_storage()
        if storage.data_ptr() not in storages or storage.nbytes() == 0:
            storages[storage.data_ptr()] = storage.clone()
        with torch.no_grad():
            new = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
            new.set_(storages[storage.data_ptr()], leaf.storage_offset(), leaf.shape, leaf.stride())
        return new.requires_grad_() if leaf.requires_grad else new

    return copy


def upcast(tree: Tree) -> Tree:
    """The tree with every floating-point tensor in float64, strides kept: the oracle's input."""

    def up(leaf: Any) -> Any:
        if not (is_plain_tensor(leaf) and leaf.is_floating_point()):
            return leaf
        with torch.no_grad():
            flat = torch.empty(0, dtype=leaf.dtype, device=leaf.device).set_(leaf.untyped_storage())
            return flat.double().as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())

    return map_tree(up, tree)


def same(a: Tree, b: Tree) -> bool:
    """Bit-for-bit equality of two trees, NaN equal to NaN."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.is_meta or b.is_meta:  # no values to compare
            return a.is_meta and b.is_meta
        if a.is_floating_point() and a.element_size() == 1:  # FP8 and FP4 lack nan_to_num
            return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        if a.is_floating_point() or a.is_complex():
            return torch.equal(torch.nan_to_num(a, 1.25), torch.nan_to_num(b, 1.25)) and (
                torch.equal(a.isnan(), b.isnan())
            )
        return torch.equal(a, b)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and bool(a == b)


def untouched(before: Tree, after: Tree) -> bool:
    """Is `after` still what `before`, a copy made by `fresh`, says: sizes, strides, flags, storage?

    The whole storage counts, also the elements that the tensor itself does not show.
    """
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        if not (is_plain_tensor(before) and is_plain_tensor(after)) or after.is_meta:
            return same(before, after)
        before, after = (x.resolve_conj().resolve_neg() for x in (before, after))  # as they cross
        return outline(before) == outline(after) and torch.equal(slots(before), slots(after))
    if isinstance(before, tuple | list) and isinstance(after, tuple | list):
        both = zip(before, after, strict=False)
        return len(before) == len(after) and all(untouched(x, y) for x, y in both)
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(untouched(before[k], after[k]) for k in before)
    return same(before, after)


def outline(x: Tensor) -> tuple[Any, ...]:
    """What a change in place may not change: shape, strides, offset, dtype, requires_grad."""
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x.requires_grad


def slots(x: Tensor) -> Tensor:
    """Every byte of x's storage."""
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def weight(tree: Tree) -> int:
    """How big a tree looks to a reader: what 'the smallest failing case' is smallest in."""
    total = 0
    for leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            total += 4 + 2 * leaf.ndim + leaf.numel()
        elif isinstance(leaf, bool) or leaf is None:
            total += 1
        elif isinstance(leaf, int | float):
            total += 1 + len(str(leaf))
        elif isinstance(leaf, str):
            total += 1 + len(leaf)
        else:
            total += 1
    return total


def opaque(value: Any) -> Opaque:
    """What cannot cross as it is, by its kind and a short text."""
    if isinstance(value, Opaque):
        return value
    why = why_not_plain(value) if isinstance(value, Tensor) else ""
    return Opaque(cut(type(value).__name__), cut(short(value)), why)


def why_not_plain(value: Tensor) -> str:
    """Why a tensor cannot cross as one; nothing if it can."""
    if type(value) not in (Tensor, nn.Parameter):
        return SUBCLASS
    if not is_plain_tensor(value) or value.is_nested:
        return str(value.layout)
    return RESIZED if lacks_memory(value) else ""


def lacks_memory(x: Tensor) -> bool:
    """Would reading x read beyond its storage (after `untyped_storage().resize_`)?"""
    if x.device.type != "cpu" or x.numel() == 0:
        return False
    last = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return (last + 1) * x.element_size() > x.untyped_storage().nbytes()
