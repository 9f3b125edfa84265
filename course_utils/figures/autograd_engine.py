"""The drawings of chapter 7: the engine's own graphs, its memory, and how it compares with torch."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from course_utils.reference.autograd_engine import Node

from .autograd import draw_graph
from .style import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, Drawing, doublings, plot


class _Shown:
    """A node of the engine with the names that torch gives the same things, for `draw_graph`."""

    def __init__(self, node: Node, known: dict[Node, "_Shown"]) -> None:
        known[node] = self
        self._node = node
        below = [known.get(x) or _Shown(x, known) for x in node.inputs if x is not None]
        self.next_functions = [(x, 0) for x in below]
        if not below and node.vjp is None:
            self.variable = node

    def name(self) -> str:
        return self._node.name

    @property
    def saved_names(self) -> list[str]:
        """The shapes of the arrays that the node holds."""
        saved = self._node.saved or ()
        return [str(x.shape) for x in saved if isinstance(x, np.ndarray)]


def draw_engine_graph(results: Mapping[str, Any], leaves: Mapping[str, Any]) -> Drawing:
    """The graph behind each result of the engine, as chapter 6 draws torch's; saved arrays by their shapes.

    results, leaves: the engine's tensors by name, which have a `node`, or nodes.
    """
    roots = {name: SimpleNamespace(grad_fn=_Shown(_node(y), {})) for name, y in results.items()}
    return draw_graph(roots, {name: _node(x) for name, x in leaves.items()})  # type: ignore[arg-type, misc]


def _node(x: Any) -> Node:
    found: Node = x if isinstance(x, Node) else x.node
    return found


def draw_memory(freed: Sequence[int], kept: Sequence[int], forward: int) -> Drawing:
    """Bytes that arrays hold after each operation of a forward and a backward pass.

    freed, kept: as measured, with nodes that drop what they saved, and with nodes that keep it.
    forward: how many of the operations belong to the forward pass.
    """
    figure, ax = plot(height=2.8)
    steps = range(1, len(freed) + 1)
    mib = 2**20
    ax.plot(
        steps, [b / mib for b in kept], color=ORANGE, lw=2, ls="--", label="saved arrays are kept"
    )
    ax.plot(
        steps, [b / mib for b in freed], color=BLUE, lw=2, label="a node drops them when it is done"
    )
    ax.axvline(forward + 0.5, color=FAINT, lw=0.8, ls=":")
    top = max(kept) / mib
    ax.annotate("forward", (forward, 1.12 * top), ha="right", color=INK)
    ax.annotate("  backward", (forward + 0.5, 1.12 * top), color=INK)
    ax.set_ylim(0, 1.25 * top)
    ax.set_xlabel("operation")
    ax.set_ylabel("MiB held by arrays")
    ax.legend(frameon=False, loc="lower right")
    return figure


def draw_agreement(
    ours: Sequence[float], theirs: Sequence[float], distance: Sequence[float]
) -> Drawing:
    """The losses of two runs step by step, and how far apart their weights are.

    distance: the largest difference of any weight after each step.
    """
    figure = Drawing(figsize=(7.0, 4.2), facecolor=PAPER, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps = range(1, len(ours) + 1)
    above.plot(steps, theirs, color=ORANGE, lw=4, alpha=0.6, label="torch")
    above.plot(steps, ours, color=BLUE, lw=1.2, label="engine")
    above.set_ylabel("loss")
    above.legend(frameon=False)
    below.semilogy(steps, [max(d, 1e-18) for d in distance], color=GREEN, lw=1.6)
    below.axhline(2.0**-53, color=FAINT, lw=0.8, ls=":")
    below.annotate(
        "half a unit in the last place of 1.0",
        (steps[-1], 2.0**-53),
        xytext=(0, -12),
        textcoords="offset points",
        ha="right",
        color=FAINT,
        fontsize=9,
    )
    below.set_ylim(1e-18, 1e-12)
    below.set_ylabel("largest difference\nof a weight")
    below.set_xlabel("step")
    for ax in (above, below):
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=INK)
    return figure


def draw_ratios(ratios: Mapping[int, Sequence[float]]) -> Drawing:
    """Time of the engine's step over torch's, pair by pair, for each width of the hidden layer."""
    figure, ax = plot(height=2.8)
    for width, found in ratios.items():
        ax.plot([width] * len(found), found, "o", color=FAINT, alpha=0.35, markersize=3)
    widths = list(ratios)
    middle = [float(np.median(found)) for found in ratios.values()]
    ax.plot(widths, middle, "o-", color=BLUE, lw=2, label="median of the pairs")
    ax.axhline(1.0, color=INK, lw=0.8, ls=":")
    doublings(ax, widths)
    ax.set_yscale("log")
    every = [r for found in ratios.values() for r in found]
    low, high = min(0.45, min(every) / 1.1), max(2.2, 1.1 * max(every))
    ticks = [t * 10.0**n for n in range(-3, 4) for t in (1, 2, 5) if low < t * 10.0**n < high]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.set_ylim(low, high)
    ax.set_xlabel("hidden units")
    ax.set_ylabel("engine's time / torch's")
    ax.legend(frameon=False)
    ax.set_facecolor(PAPER)
    return figure
