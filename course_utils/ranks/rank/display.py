"""What a rank shows: values in all their forms, sent to the notebook's kernel."""

import io
import sys
from collections.abc import Callable
from typing import Any

import torch

from course_utils.ranks.wire import plain_tensor

_DPI = 72
"""As the notebook's own inline figures."""

_RICH = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "application/json": "_repr_json_",
}


def bundle_of(value: Any) -> dict[str, Any]:
    """A value's forms, by mime type."""
    if isinstance(value, torch.Tensor):
        return {"text/plain": repr(_plain_text(value))}
    if _is_figure(value):
        return {"text/plain": repr(value), "image/png": _png(value)}
    found: dict[str, Any] = {}
    make = getattr(value, "_repr_mimebundle_", None)
    if callable(make) and not isinstance(value, type):
        made = make()
        found.update(made[0] if isinstance(made, tuple) else made or {})
    for mime, name in _RICH.items():
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            shown = method()
            if shown is not None:
                found[mime] = shown[0] if isinstance(shown, tuple) else shown
    found.setdefault("text/plain", repr(value))
    return found


def _plain_text(value: torch.Tensor) -> torch.Tensor:
    module = sys.modules.get("torch.distributed._functional_collectives")
    if module is not None and isinstance(value, module.AsyncCollectiveTensor):
        return plain_tensor(value)  # type: ignore[no-any-return]
    return value


def _is_figure(value: Any) -> bool:
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def _png(figure: Any) -> bytes:
    """The figure as the kernel would show it; the same bytes in every run."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


_show: Callable[[Any], None] = lambda value: print(repr(value))  # noqa: E731 - until this is a rank


def shows_by(show: Callable[[Any], None]) -> None:
    """What `display` does with a value from now on."""
    global _show
    _show = show


def display(*values: Any, **_: Any) -> None:
    """Show values in the notebook, from a rank."""
    for value in values:
        _show(value)
