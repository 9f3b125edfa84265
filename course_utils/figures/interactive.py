"""Interactive figures: one JavaScript file and some JSON each, with no kernel and no request.

A figure is shown through `_repr_mimebundle_`: HTML that carries everything it needs, for
JupyterLab and the static page, and a textual account for terminals and readers without scripts.
"""

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SCRIPTS = Path(__file__).parent / "js"

Operation = tuple[Any, ...]  # a name, then ints (or None, for what a slice leaves out)


@dataclass(frozen=True, repr=False)
class Interactive:
    """A figure that answers to mouse, touch and keyboard.

    script: name of the file in `figures/js`, without suffix; it calls `StridesToShards.define`.
    data: what the script is given, as JSON.
    alt: one sentence on what the figure shows.
    text: the account for those who see no figure; also what `print` shows.
    """

    script: str
    alt: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": self.text}

    def html(self) -> str:
        """The figure as a fragment of HTML: its host, its data, its scripts."""
        alt = html.escape(self.alt)
        return (
            f'<div data-s2s-figure="{self.script}" role="group" aria-label="{alt}">'
            f"<pre>{html.escape(self.text)}</pre>"
            f'<script type="application/json">{_json(self.data)}</script></div>\n'
            f"<script>{_source('base')}{_source(self.script)}</script>"
        )


def _json(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it stands in, nor open a comment there."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _source(name: str) -> str:
    path = SCRIPTS / f"{name}.js"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in SCRIPTS.glob("*.js")))
        raise FileNotFoundError(f"There is no figure script {name!r}. There are: {known}.")
    source = path.read_text(encoding="utf-8")
    for forbidden in ("</script", "<!--"):
        if forbidden in source.lower():
            raise ValueError(f"{path.name} may not contain {forbidden!r}: it is inlined in a page.")
    return source


# --- The stride explorer

_LARGEST_SIZE = 8
_MOST_AXES = 4
_MOST_SLOTS = 48
_MOST_ELEMENTS = 96


def stride_explorer(shape: Sequence[int] = (3, 4), ops: Sequence[Operation] = ()) -> Interactive:
    """Storage, strides and addresses of a small tensor and of the views one makes of it.

    shape: of the tensor to start from, 1 to 4 axes of size 1 to 8, at most 48 elements.
    ops: operations already applied when the figure opens, each one of `("transpose", a, b)`,
        `("slice", axis, start, stop, step)` (None where Python would leave a blank),
        `("select", axis, index)`, `("expand", axis, size)`, `("unsqueeze", axis)`,
        `("squeeze", axis)`.

    Raises ValueError where the shape is too large to draw, and what torch raises for an operation.
    """
    shape = tuple(shape)
    base = _base(shape)
    view, expression = base, "x"
    for op in ops:
        expression += _suffix(view, op)
        view = _apply(view, op)
    if view.dim() > _MOST_AXES or view.numel() > _MOST_ELEMENTS:
        raise ValueError(
            f"{expression} has shape {tuple(view.shape)}: the explorer draws views of at most "
            f"{_MOST_AXES} axes and {_MOST_ELEMENTS} elements."
        )
    return Interactive(
        script="stride_explorer",
        alt=(
            f"Stride explorer: the storage of a tensor of shape {shape} as numbered slots, the "
            "views you make of it, and the address of each element"
        ),
        text=_account(base, view, expression),
        data={
            "shape": shape,
            "ops": [list(op) for op in ops],
            "limits": {
                "size": _LARGEST_SIZE,
                "axes": _MOST_AXES,
                "slots": _MOST_SLOTS,
                "elements": _MOST_ELEMENTS,
            },
            "itemsize": base.element_size(),
        },
    )


def _base(shape: tuple[int, ...]) -> Tensor:
    fits = 1 <= len(shape) <= _MOST_AXES and all(1 <= size <= _LARGEST_SIZE for size in shape)
    if not fits or torch.Size(shape).numel() > _MOST_SLOTS:
        raise ValueError(
            f"Shape {shape} cannot be drawn: give 1 to {_MOST_AXES} axes of size 1 to "
            f"{_LARGEST_SIZE}, with at most {_MOST_SLOTS} elements in all."
        )
    return torch.arange(torch.Size(shape).numel(), device="cpu").reshape(shape)


def _apply(x: Tensor, op: Operation) -> Tensor:
    """The view that torch makes."""
    name, *arguments = op
    match name:
        case "transpose" | "select" | "unsqueeze" | "squeeze":
            return getattr(x, name)(*arguments)
        case "expand":
            axis, size = arguments
            return x.expand([size if i == axis % x.dim() else -1 for i in range(x.dim())])
        case "slice":
            axis, *bounds = arguments
            return x[(slice(None),) * (axis % x.dim()) + (slice(*bounds),)]
    raise ValueError(
        f"The stride explorer has no operation {name!r}. It has: transpose, slice, select, expand, "
        "unsqueeze, squeeze."
    )


def _suffix(x: Tensor, op: Operation) -> str:
    """The operation as one writes it behind the name of a tensor."""
    name, *arguments = op
    match name:
        case "expand":
            axis, size = arguments
            sizes = [size if i == axis % x.dim() else -1 for i in range(x.dim())]
            return f".expand({', '.join(map(str, sizes))})"
        case "select":
            axis, index = arguments
            return f"[{':, ' * (axis % x.dim())}{index}]"
        case "slice":
            axis, start, stop, step = arguments
            bounds = ":".join("" if bound is None else str(bound) for bound in (start, stop))
            step = "" if step in (None, 1) else f":{step}"
            return f"[{':, ' * (axis % x.dim())}{bounds}{step}]"
    return f".{name}({', '.join(map(str, arguments))})"


def _account(x: Tensor, y: Tensor, expression: str) -> str:
    """What the figure says, in words."""
    letters = "ijkl"[: y.dim()]
    address = " + ".join(
        [str(y.storage_offset()), *(f"{a}·{s}" for a, s in zip(letters, y.stride(), strict=True))]
    )
    slots = len(set(y.flatten().tolist()))
    kind = "contiguous" if y.is_contiguous() else "not contiguous"
    return "\n".join(
        [
            "Stride explorer (interactive in JupyterLab and on the page)",
            f"x = torch.arange({x.numel()}).reshape{tuple(x.shape)}",
            f"y = {expression}",
            f"shape {tuple(y.shape)}, stride {y.stride()}, offset {y.storage_offset()}: {kind}",
            f"{y.numel()} elements in {slots} of {x.numel()} slots of storage "
            f"({x.numel() * x.element_size()} bytes)",
            f"y[{', '.join(letters)}] is in slot {address}",
            str(y),
        ]
    )
