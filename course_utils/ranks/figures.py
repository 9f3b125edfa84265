"""matplotlib's backend in a rank: `plt.show()`, or a cell's end, turns the open figures into PNGs."""

import io
import sys
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg

FigureCanvas = FigureCanvasAgg
DPI = 72
"""As the notebook's own inline figures."""


def show(*args: Any, **kwargs: Any) -> None:
    """Display the open figures of this rank, and close them."""
    import matplotlib.pyplot as plt

    from .worker import display

    for number in plt.get_fignums():
        display(plt.figure(number))
    plt.close("all")


def flush() -> None:
    """At the end of a cell; nothing to do if it drew nothing."""
    if "matplotlib.pyplot" in sys.modules:
        show()


def png(figure: Any) -> bytes:
    """The figure as the kernel would show it; the same bytes in every run."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()
