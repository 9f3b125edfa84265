"""The drawings of chapter 23: a block, where the parameters are, the stream by depth, a run."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, PINK, SKY, Drawing, note, paper, plot

_PARTS = {"wte": BLUE, "wpe": SKY, "attention": ORANGE, "mlp": GREEN, "layer_norm": PINK}


def draw_block() -> Drawing:
    """The stream of GPT-2, left to right: read by each branch through a norm, and only ever added to."""
    figure, ax = paper((-0.6, 21.6), (-0.9, 5.6))
    _arrow(ax, (0.0, 0.6), (20.2, 0.6), BLUE, 2.6)
    for x, label in ((0.2, "wte + wpe"), (17.0, "ln_f"), (19.2, "wteᵀ")):
        _box(ax, x, 0.1, 2.4 if "+" in label else 1.7, label)
    for left, norm, branch in ((4.0, "ln_1", "attn"), (10.6, "ln_2", "mlp")):
        _arrow(ax, (left, 0.6), (left, 2.3), INK)
        _box(ax, left - 0.9, 2.3, 1.8, norm)
        _arrow(ax, (left + 0.9, 2.8), (left + 1.7, 2.8), INK)
        _box(ax, left + 1.7, 2.3, 2.2, branch)
        _arrow(ax, (left + 3.9, 2.8), (left + 5.0, 2.8), INK)
        _arrow(ax, (left + 5.0, 2.8), (left + 5.0, 1.0), INK)
        ax.plot(left + 5.0, 0.6, marker="o", markersize=15, color=PAPER, mec=INK, zorder=4)
        note(ax, left + 5.0, 0.6, "+", ha="center", fontweight="bold", zorder=5)
    ax.plot([2.85, 16.4, 16.4, 2.85, 2.85], [-0.4, -0.4, 4.3, 4.3, -0.4], color=FAINT, ls="--")
    note(ax, 9.6, 4.9, "a block, L times", ha="center", color=FAINT)
    note(ax, 21.2, 1.7, "logits", ha="right", fontsize=9)
    note(ax, 0.2, 1.7, "ids", fontsize=9)
    return figure


def _box(ax: Axes, x: float, y: float, wide: float, label: str) -> None:
    """A rounded box of height 1 with its name in it."""
    shape = FancyBboxPatch(
        (x, y), wide, 1, "round,pad=0,rounding_size=0.2", fc=PAPER, ec=INK, zorder=3
    )
    ax.add_patch(shape)
    note(ax, x + wide / 2, y + 0.48, label, ha="center", family="monospace", fontsize=9, zorder=4)


def _arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, wide: float = 1.2
) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "lw": wide, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=style, zorder=2)


def draw_parameters(counts: Mapping[str, Mapping[str, int]]) -> Drawing:
    """For each model a bar of its parameters, by part: name → part → how many."""
    figure, ax = plot(7.2, 0.6 * len(counts) + 1.2)
    for row, count in enumerate(counts.values()):
        left, total = 0.0, sum(count[part] for part in _PARTS)
        for part, colour in _PARTS.items():
            share = count[part] / total
            ax.barh(
                row, share, left=left, color=colour, alpha=0.75, label=part if not row else None
            )
            if share > 0.06:
                label = f"{count[part] / 1e6:,.0f} M"
                note(ax, left + share / 2, row, label, ha="center", fontsize=8)
            left += share
        note(ax, 1.01, row, f"{total / 1e6:,.0f} M", fontsize=9)
    ax.set_yticks(range(len(counts)), list(counts))
    ax.invert_yaxis()
    ax.set_xlim(0, 1.12)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    ax.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.45, 1.0), frameon=False, fontsize=8)
    return figure


def draw_stream(panels: Mapping[str, Mapping[int, Sequence[float]]]) -> Drawing:
    """Variance of the residual stream after each block: title → number of blocks → variances."""
    figure = Drawing(figsize=(7.2, 3.0), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    marks = zip("os^D", (BLUE, ORANGE, GREEN, PINK), strict=True)
    looks = dict(zip(next(iter(panels.values())), marks, strict=False))
    for ax, (title, curves) in zip(axes, panels.items(), strict=True):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right"]].set_visible(False)
        for L, values in curves.items():
            mark, colour = looks[L]
            ax.plot(values, color=colour, marker=mark, markevery=max(1, L // 4), label=f"L = {L}")
        ax.set_title(title, color=INK, fontsize=10)
        ax.set_xlabel("blocks passed")
    axes[0].set_ylabel("variance of the stream")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


class LossCurve:
    """A loss curve that redraws itself in place while a model trains.

    levels: losses to compare with, by name. In a notebook one picture is updated every few seconds, so
    that a saved notebook and the page hold the last one; elsewhere nothing is shown.
    """

    def __init__(self, steps: int, levels: Mapping[str, float], every_s: float = 4.0) -> None:
        self.steps, self.levels, self.every_s = steps, levels, every_s
        self.losses: list[tuple[int, float]] = []
        self.validation: list[tuple[int, float]] = []
        self.begun = self.shown_at = time.perf_counter()
        self.handle: Any = None

    def __call__(self, step: int, loss: float, validation: float | None = None) -> None:
        """Take the losses after a step, and redraw if it is time, or the last step."""
        self.losses.append((step, loss))
        if validation is not None:
            self.validation.append((step, validation))
        now = time.perf_counter()
        if self.handle is None or now - self.shown_at > self.every_s or step >= self.steps:
            self.shown_at = now
            self.show()

    def show(self) -> None:
        if "IPython" not in sys.modules:
            return
        from IPython.display import display

        if self.handle is None:
            self.handle = display(self.figure(), display_id=True)
        else:
            self.handle.update(self.figure())

    def figure(self) -> Drawing:
        """The curve as far as it goes."""
        figure, ax = plot(7.2, 3.2)
        ax.plot(*zip(*self.losses, strict=True), color=BLUE, lw=1, alpha=0.6, label="training")
        if self.validation:
            points = list(zip(*self.validation, strict=True))
            ax.plot(*points, color=ORANGE, marker="o", label="validation")
        for name, level in self.levels.items():
            ax.axhline(level, color=FAINT, lw=0.8, linestyle=":")
            note(ax, self.steps, level, f"{name} {level:.2f}", ha="right", va="bottom", fontsize=8)
        ax.set_xlim(0, self.steps * 1.01)
        ax.set_xlabel("step")
        ax.set_ylabel("loss, nats a byte")
        ax.legend(frameon=False, fontsize=8, loc="lower left")
        step, loss = self.losses[-1]
        ax.set_title(f"step {step} of {self.steps}: loss {loss:.2f}", color=INK, fontsize=10)
        return figure


def draw_sweep(found: Mapping[str, Sequence[float]]) -> Drawing:
    """Validation losses of several seeds, a row for each model, with a stroke at their mean."""
    figure, ax = plot(7.2, 0.45 * len(found) + 1.0)
    for row, losses in enumerate(found.values()):
        ax.plot(losses, [row] * len(losses), "o", color=BLUE, alpha=0.6, label="a seed")
        mean = sum(losses) / len(losses)
        ax.plot([mean, mean], [row - 0.3, row + 0.3], color=ORANGE, lw=2, label="mean")
    ax.set_yticks(range(len(found)), list(found))
    ax.invert_yaxis()
    ax.set_xlabel("validation loss after 320 steps, nats a byte")
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[:2], labels[:2], frameon=False, fontsize=8, loc="lower right")
    return figure
