"""Cases on the meta device, for code that must see numbers.

The meta device stands in for a second device, so what code makes on the default one lies elsewhere. But
it holds no numbers, and a real device would: code that asks for them there (by NumPy, say) is right. It is
driven once more in the mirror, with zeros on the CPU while meta is the default device, and what it gives is
mirrored back.
"""

from typing import Any

import torch
from torch import Tensor

from course_utils.grading.pytrees.tree import Tree, is_plain_tensor, map_tree, tensors

from .case import Case
from .errors import Raised

_NO_NUMBERS = (
    "Cannot copy out of meta tensor",
    "can't convert meta device type tensor to numpy",
    "cannot be called on meta tensors",
)


def asks_for_numbers(raised: Raised | None, case: Case) -> bool:
    """Did code end because a tensor of the case has no numbers?"""
    return (
        raised is not None
        and any(text in raised.message for text in _NO_NUMBERS)
        and any(x.is_meta for x in tensors(case.given))
    )


def mirrored(tree: Tree) -> Tree:
    """The tree with zeros on the CPU for what is on meta, and with what is on the CPU on meta."""

    def mirror(leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and is_plain_tensor(leaf)):
            return leaf
        device = "cpu" if leaf.is_meta else "meta"
        made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
        return made.zero_().requires_grad_(leaf.requires_grad)

    return map_tree(mirror, tree)
