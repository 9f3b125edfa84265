"""Values as a reader wants them: small tensors in full, large ones by outline."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .text import short
from .tree import Opaque

SMALL = 24
DIGITS = (4, 9, 17)
"""Of a float that is shown: few, all that float32 has, all that float64 has."""


Formats = Mapping[str, str]
"""How integers of a dtype are written: {"uint8": "#04x"} for bytes of two codes each. And what a tensor
is called: {"tensor": "array"} where an exercise is about NumPy's."""
_PLAIN: Formats = {}


def shown(value: Any, digits: int = DIGITS[0], formats: Formats = _PLAIN) -> str:
    """A value as a reader wants it: small tensors in full, large ones by outline.

    digits: of each number in a tensor.
    """
    try:
        return _drawn(value, digits, formats)
    except Exception as error:  # a tensor without memory, a class of the student's own
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _drawn(value: Any, digits: int, formats: Formats) -> str:
    if not isinstance(value, Tensor):
        if isinstance(value, tuple | list) and any(isinstance(x, Tensor) for x in value):
            inner = ", ".join(shown(item, digits, formats) for item in value)
            return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
        return str(value) if isinstance(value, Opaque) else short(value, 300)
    outline, noun = f"{dtype_name(value.dtype)}", formats.get("tensor", "tensor")
    if value.ndim == 0 and not value.is_meta:
        return f"{noun}({_one(value, digits, formats)}, {outline})"
    outline = f"shape {tuple(value.shape)}, {outline}"
    if not value.is_contiguous():
        outline += f", stride {value.stride()}"
    if value.device.type != "cpu":
        outline += f", {value.device}"
    if value.numel() > SMALL or value.numel() == 0 or value.is_meta:
        return f"{noun} of {outline}"
    return f"{noun}({nested(value.detach(), digits, formats)}; {outline})"


def nested(x: Tensor, digits: int = DIGITS[0], formats: Formats = _PLAIN) -> str:
    """A tensor's elements as a nested list."""
    if x.ndim == 0:
        return _one(x, digits, formats)
    return "[" + ", ".join(nested(row, digits, formats) for row in x) + "]"


def _one(x: Tensor, digits: int, formats: Formats) -> str:
    value = x.item()
    if spec := formats.get(dtype_name(x.dtype)):
        return format(value, spec)
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def told_apart(mine: Any, theirs: Any, formats: Formats = _PLAIN) -> tuple[str, str]:
    """Two values that differ, with as many digits as it takes to see it."""
    pair = "", ""
    for digits in DIGITS:
        pair = shown(mine, digits, formats), shown(theirs, digits, formats)
        if pair[0] != pair[1]:
            break
    return pair


def named(sentence: str, formats: Formats) -> str:
    """A sentence about a tensor, which calls it what the exercise does."""
    noun = formats.get("tensor")
    if noun is None:
        return sentence
    return re.sub(r"\ba ((?:plain )?)Tensor\b", rf"{article(noun)} {noun}", sentence)


def in_words(value: Any) -> str:
    """A value's kind and outline in words: 'a Tensor of shape (2, 3), float32'."""
    if isinstance(value, Opaque):
        return f"{article(value.kind)} {value.kind}"
    if isinstance(value, Tensor):
        return f"a Tensor of shape {tuple(value.shape)}, {dtype_name(value.dtype)}"
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    kind = type(value).__name__
    return f"{article(kind)} {kind}"


def article(noun: str) -> str:
    """The noun's indefinite article."""
    return "an" if noun[:1].lower() in "aeio" else "a"


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as a reader writes it: float32."""
    return str(dtype).removeprefix("torch.")
