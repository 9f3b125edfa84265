"""The drawings of chapter 8: a module's tree, what norms average, who sees whom, variance by depth."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, PINK, RED, Drawing, note, paper, plot

_KINDS = {"module": ORANGE, "parameter": BLUE, "buffer": GREEN}


def draw_tree(module: nn.Module, name: str = "model") -> Drawing:
    """A module and all that is registered in it: a row for each submodule, parameter and buffer."""
    rows = list(_tree_rows(module, name, 0))
    height, wide = len(rows), 16.0
    figure, ax = paper((-0.4, wide), (-height - 1.4, 0.4))
    above: dict[int, float] = {}
    for i, (depth, kind, label, about) in enumerate(rows):
        x, y = 1.4 * depth, -i - 0.5
        if depth:
            start = above[depth - 1]
            ax.plot([x - 0.9, x - 0.9, x - 0.2], [start - 0.35, y, y], color=FAINT, lw=1)
        above[depth] = y
        _badge(ax, x - 0.1, y - 0.3, kind)
        note(ax, x + 0.8, y, label, family="monospace", fontweight="bold")
        note(ax, 10.6, y, about, color=INK, fontsize=9)
    x = 0.0
    for kind in _KINDS:
        _badge(ax, x, -height - 1.2, kind)
        note(ax, x + 0.9, -height - 0.9, "submodule" if kind == "module" else kind, fontsize=9)
        x += 5.0
    return figure


def _badge(ax: Axes, x: float, y: float, kind: str) -> None:
    """A small square in the colour of a kind, with its first letter."""
    ax.add_patch(Rectangle((x, y), 0.6, 0.6, color=_KINDS[kind], alpha=0.6, lw=0))
    note(ax, x + 0.3, y + 0.28, kind[0].upper(), ha="center", fontsize=7)


def _tree_rows(module: nn.Module, name: str, depth: int) -> list[tuple[int, str, str, str]]:
    """(depth, kind, name, what it is) of a module and all below it."""
    rows = [(depth, "module", name, type(module).__name__)]
    for label, parameter in module.named_parameters(recurse=False):
        rows.append((depth + 1, "parameter", label, f"{tuple(parameter.shape)}"))
    for label, buffer in module.named_buffers(recurse=False):
        rows.append((depth + 1, "buffer", label, f"{tuple(buffer.shape)}"))
    for label, child in module.named_children():
        rows += _tree_rows(child, label, depth + 1)
    return rows


def draw_norms(rows: int = 6, columns: int = 5) -> Drawing:
    """Which numbers of a (tokens, features) matrix share a mean and a variance in three norms."""
    panels = (
        ("BatchNorm", "one feature, all tokens", lambda i, j: j == 1, "μ, σ²"),
        ("LayerNorm", "one token, all features", lambda i, j: i == 2, "μ, σ²"),
        ("RMSNorm", "one token, all features", lambda i, j: i == 2, "mean of x²"),
    )
    wide = columns + 3.0
    figure, ax = paper((-1.6, len(panels) * wide - 1.2), (-1.8, rows + 2.0))
    for k, (title, over, chosen, what) in enumerate(panels):
        left = k * wide
        for i in range(rows):
            for j in range(columns):
                strong = chosen(i, j)
                fill = (BLUE, ORANGE, GREEN)[k] if strong else PAPER
                box = (left + j, rows - 1 - i)
                ax.add_patch(
                    Rectangle(box, 1, 1, facecolor=fill, alpha=0.75 if strong else 1, lw=0)
                )
                ax.add_patch(Rectangle(box, 1, 1, fill=False, edgecolor=INK, lw=0.8))
        note(ax, left + columns / 2, rows + 1.4, title, ha="center", fontweight="bold")
        note(ax, left + columns / 2, rows + 0.6, f"{what}: {over}", ha="center", fontsize=8)
        note(ax, left + columns / 2, -0.6, "features", ha="center", color=FAINT, fontsize=9)
        ax.text(left - 0.6, rows / 2, "tokens", rotation=90, ha="center", va="center", color=FAINT)
        count = rows if title == "BatchNorm" else columns
        note(ax, left + columns / 2, -1.3, f"{count} numbers at a time", ha="center", fontsize=9)
    return figure


def draw_dependence(grids: Mapping[str, Tensor]) -> Drawing:
    """For each name a (T, T) matrix of booleans: does output i change with input j?"""
    T = len(next(iter(grids.values())))
    wide = T + 3.2
    figure, ax = paper((-2.2, len(grids) * wide - 1.8), (-1.3, T + 1.6))
    for k, (name, sees) in enumerate(grids.items()):
        left = k * wide
        for i in range(T):
            for j in range(T):
                box, future = (left + j, T - 1 - i), j > i
                colour = RED if future else BLUE
                if sees[i, j]:
                    ax.add_patch(Rectangle(box, 1, 1, facecolor=colour, alpha=0.7, lw=0))
                    if future:
                        note(ax, left + j + 0.5, T - 0.5 - i, "!", ha="center", fontweight="bold")
                ax.add_patch(Rectangle(box, 1, 1, fill=False, edgecolor=INK, lw=0.8))
            note(ax, left - 0.2, T - 0.5 - i, f"{i}", ha="right", color=FAINT, fontsize=8)
            note(ax, left + i + 0.5, -0.4, f"{i}", ha="center", color=FAINT, fontsize=8)
        note(ax, left + T / 2, T + 0.8, name, ha="center", fontweight="bold")
        note(ax, left + T / 2, -1.0, "input position", ha="center", color=FAINT, fontsize=9)
        ax.text(
            left - 1.3, T / 2, "output position", rotation=90, ha="center", va="center", color=FAINT
        )
    return figure


_MARKS = (("o", BLUE), ("s", ORANGE), ("^", GREEN), ("D", PINK))


def draw_variance(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Drawing:
    """Variance of the activations by depth, a panel for each stack, a curve for each initialisation.

    panels: title → name of the initialisation → variance after each layer, the input first.
    """
    figure = Drawing(figsize=(7.4, 3.4), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (title, curves) in zip(axes, panels.items(), strict=True):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right"]].set_visible(False)
        for (mark, colour), (name, values) in zip(_MARKS, curves.items(), strict=False):
            ax.plot(range(len(values)), values, color=colour, marker=mark, markevery=4, label=name)
        ax.axhline(1, color=FAINT, lw=0.8, linestyle=":")
        ax.set_yscale("log")
        ax.set_title(title, color=INK, fontsize=10)
        ax.set_xlabel("layer")
    axes[0].set_ylabel("variance of the activations")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def draw_gelu() -> Drawing:
    """GELU and ReLU, and what the tanh form of GELU is off by."""
    x = torch.linspace(-4, 4, 401, dtype=torch.float64)
    figure, ax = plot(6.4, 2.8)
    gelu = nn.functional.gelu(x)
    ax.plot(x, x.relu(), color=FAINT, linestyle="--", label="ReLU")
    ax.plot(x, gelu, color=BLUE, label="GELU")
    off = 1000 * (nn.functional.gelu(x, approximate="tanh") - gelu)
    ax.plot(x, off, color=RED, linestyle=":", label="1000 × (tanh form − GELU)")
    ax.axhline(0, color=INK, lw=0.6)
    ax.set_xlabel("x")
    ax.legend(frameon=False, fontsize=9)
    return figure
