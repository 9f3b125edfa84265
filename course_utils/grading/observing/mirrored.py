"""Cases on the meta device, for code that must see numbers.

The meta device stands in for a second device, so what code makes on the default one lies elsewhere. But
it holds no numbers, and a real device would: code that asks for them there (by NumPy, say) is right. It is
driven once more in the mirror, with zeros on the CPU while meta is the default device, and what it gives is
mirrored back.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from course_utils.grading.driving.case import Case
from course_utils.grading.pytrees.tree import Tree, is_plain_tensor, map_tree, tensors

from .errors import Raised

_NO_NUMBERS = re.compile(r"meta tensor|meta device type|register_meta", re.IGNORECASE)


def asks_for_numbers(raised: Raised | None, case: Case) -> bool:
    """Did code end because a tensor of the case has no numbers?"""
    return (
        raised is not None
        and _NO_NUMBERS.search(raised.message) is not None
        and any(x.is_meta for x in tensors(case.given))
    )


def mirrored(tree: Tree) -> Tree:
    """The tree with zeros on the CPU for what is on meta, and with what is on the CPU on meta."""
    return map_tree(lambda leaf: _moved(leaf, "cpu" if _is_meta(leaf) else "meta"), tree)


@contextmanager
def mirror() -> Iterator[None]:
    """Meta is the default device, and as good as the CPU: what reads its numbers gets zeros."""
    with torch.device("meta"), _Mirror():
        yield


class _Mirror(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.numpy, Tensor.__array__) and not args[0].is_meta:
            raise TypeError("NumPy reads the CPU only, and this tensor is on another device")
        if func in (Tensor.cpu, torch.from_numpy):
            return func(*args, **kwargs).to("meta")
        try:
            return func(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            if not _NO_NUMBERS.search(str(error)):
                raise
            return func(*map_tree(_with_numbers, args), **map_tree(_with_numbers, kwargs))


def _with_numbers(leaf: Any) -> Any:
    return _moved(leaf, "cpu") if _is_meta(leaf) else leaf


def _is_meta(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_meta


def _moved(leaf: Any, device: str) -> Any:
    """Zeros of the same outline on the device. What is no plain tensor stays."""
    if not (isinstance(leaf, Tensor) and is_plain_tensor(leaf)):
        return leaf
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
    return made.zero_().requires_grad_(leaf.requires_grad)
