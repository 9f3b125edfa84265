"""matplotlib's backend in a rank: `plt.show()`, or a cell's end, turns the open figures into PNGs."""

import sys
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg

from .display import display

FigureCanvas = FigureCanvasAgg


def show(*args: Any, **kwargs: Any) -> None:
    """Display the open figures of this rank, and close them."""
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        display(plt.figure(number))
    plt.close("all")


def flush() -> None:
    """At the end of a cell; nothing to do if it drew nothing."""
    if "matplotlib.pyplot" in sys.modules:
        show()
