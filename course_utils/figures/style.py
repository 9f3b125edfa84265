"""One look for all drawings: a white card with dark ink, so that it reads on light and dark pages.

`paper` and `plot` make a figure, `slot` and `slots` draw storage. Colours are those of Okabe and Ito (2008),
which people with the common kinds of colour blindness can tell apart; none carries meaning alone.
"""

from collections.abc import Iterable
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

INK = "#1f2328"
FAINT = "#6e7781"
PAPER = "#ffffff"
BLUE, ORANGE, GREEN, PINK, SKY, RED = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
)
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, RED)
_DPI = 192
_SQUARE = 0.4  # inches


class Drawing(Figure):
    """A figure that shows itself in a notebook, at twice the pixels for sharp screens."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=_DPI)
        width, height = self.get_size_inches()
        return buffer.getvalue(), {"width": round(width * 96), "height": round(height * 96)}

    def __repr__(self) -> str:
        return f"<drawing, {len(self.axes)} panel(s)>"


def plot(width: float = 6.4, height: float = 3.0) -> tuple[Drawing, Axes]:
    """A figure of this size (inches) with one pair of axes, for curves and bars."""
    figure = Drawing(figsize=(width, height), facecolor=PAPER, layout="constrained")
    ax = figure.subplots()
    ax.set_facecolor(PAPER)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=INK)
    return figure, ax


def paper(x: tuple[float, float], y: tuple[float, float]) -> tuple[Drawing, Axes]:
    """Bare paper from x[0] to x[1] and y[0] to y[1], in squares of one size in every drawing."""
    (left, right), (bottom, top) = x, y
    size = ((right - left) * _SQUARE, (top - bottom) * _SQUARE)
    figure = Drawing(figsize=size, facecolor=PAPER)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
    return figure, ax


def slot(
    ax: Axes, x: float, y: float, label: object = "", fill: str | None = None, strong: bool = False
) -> None:
    """One unit square with its lower left corner at (x, y); fill: a colour, or None for empty."""
    ax.add_patch(
        Rectangle(
            (x, y),
            1,
            1,
            facecolor=PAPER if fill is None else fill,
            alpha=None if fill is None else (0.85 if strong else 0.3),
            edgecolor="none",
        )
    )
    ax.add_patch(
        Rectangle((x, y), 1, 1, fill=False, edgecolor=INK, linewidth=2.2 if strong else 0.8)
    )
    ax.text(x + 0.5, y + 0.5, str(label), ha="center", va="center", color=INK, fontsize=10)


def slots(
    ax: Axes, labels: list[Any], fills: list[str | None] | None = None, x: float = 0, y: float = 0
) -> None:
    """A strip of storage: one square for each label, from left to right."""
    for i, label in enumerate(labels):
        slot(ax, x + i, y, label, fills[i] if fills else None)


def doublings(ax: Axes, x: Iterable[float]) -> None:
    """An x axis to base 2 whose ticks are the values themselves."""
    values = list(x)
    ax.set_xscale("log", base=2)
    ax.set_xticks(values, [f"{value:,}" for value in values])
    ax.xaxis.set_minor_locator(NullLocator())


def note(ax: Axes, x: float, y: float, text: str, **kwargs: Any) -> None:
    """A line of text in data units, vertically centred."""
    ax.text(x, y, text, **{"va": "center", "color": INK, "fontsize": 10, **kwargs})
