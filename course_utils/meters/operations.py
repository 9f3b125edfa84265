"""What each operation is (work, view, …) and how many FLOPs it takes, from torch's own tables."""

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils.flop_counter import (
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

aten = torch.ops.aten


class Kind(Enum):
    """What running an operation does."""

    WORK = "computes or moves data"
    FREE = "makes a view, or touches metadata only"
    EMPTY = "allocates and computes nothing"
    READ = "reads one number into Python"
    COMPOSITE = "is written in other operations"


_EMPTY = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
# These return no tensor and yet do work: they compare all elements.
_PREDICATES = {"equal", "allclose"}


@cache
def kind(op: OpOverload) -> Kind:
    """The kind of an operation, by its schema and tags.

    An operation of kind WORK may still turn out to return nothing but aliases of its arguments
    (`_unsafe_view`, `unsafe_split`): the schema does not say so, the storages do.
    """
    name = op._schema.name.split("::")[-1]
    if name == "_local_scalar_dense":
        return Kind.READ
    if name in _EMPTY:
        return Kind.EMPTY
    if op.namespace == "prim":
        return Kind.FREE
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return Kind.COMPOSITE
    if torch.Tag.inplace_view in op.tags:
        return Kind.FREE
    if writes(op):
        return Kind.WORK
    returned = op._schema.returns
    if any(value.alias_info is not None for value in returned):
        return Kind.FREE
    if not any("Tensor" in str(value.type) for value in returned) and name not in _PREDICATES:
        return Kind.FREE
    return Kind.WORK


@cache
def writes(op: OpOverload) -> bool:
    """Does the operation write to an argument (in place, or through out=)?"""
    return any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)


@cache
def flop_formula(op: OpOverload) -> Callable[..., int] | None:
    """FLOPs as a function of the arguments and `out_val`; None for an operation that has none."""
    packet = op.overloadpacket
    return flop_registry.get(packet) or _FORMULAS.get(packet)


def _dot(a: Any, b: Any, *_: Any, **__: Any) -> int:
    return 2 * a.numel()


def _mv(a: Any, x: Any, *_: Any, **__: Any) -> int:
    return 2 * a.numel()


def _addmv(bias: Any, a: Any, x: Any, *_: Any, **__: Any) -> int:
    return 2 * a.numel()


def _addmm_activation(bias: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    return 2 * a.shape[0] * a.shape[1] * b.shape[1]


def _euclidean_dist(a: Any, b: Any, *_: Any, out_val: Any, **__: Any) -> int:
    """One product with two columns appended, for the squared norms."""
    return 2 * out_val.numel() * (a.shape[-1] + 2)


def _attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(q.shape, k.shape, v.shape)


def _attention_backward(grad: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad.shape, q.shape, k.shape, v.shape)


# What torch's table leaves out: products with a vector, and kernels that only the CPU has.
_FORMULAS: dict[Any, Callable[..., int]] = {
    aten.dot: _dot,
    aten.vdot: _dot,
    aten.mv: _mv,
    aten.addmv: _addmv,
    aten.addmv_: _addmv,
    aten._addmm_activation: _addmm_activation,
    aten._euclidean_dist: _euclidean_dist,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
