"""The drawings of chapter 26: a layer with its adapter, spectra, scales, sweeps, and sixteen levels."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import NullLocator
from torch import Tensor

from .style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PAPER,
    RED,
    Drawing,
    doublings,
    note,
    paper,
    plot,
)


def draw_adapter(d_in: int, d_out: int, r: int) -> Drawing:
    """A frozen W with A and B beside it, their areas in proportion to their numbers."""
    figure, ax = paper((0, 18), (-1.6, 11.9))
    unit = 6.0 / max(d_in, d_out)
    wide, high, rank = d_in * unit, d_out * unit, max(r * unit, 0.28)
    left, bottom = 1.2, 1.4
    _box(ax, left, bottom, wide, high, FAINT, f"W\n{d_out} × {d_in}\nfrozen")
    right = left + wide + 3.4
    _box(ax, right, bottom, wide, rank, BLUE)
    note(ax, right, bottom + rank + 0.4, f"A: {r} × {d_in}", ha="left")
    middle = right + wide / 2
    start = bottom + rank + 1.5
    _box(ax, middle - rank / 2, start, rank, high, ORANGE)
    note(
        ax,
        middle + rank + 0.2,
        start + high / 2,
        f"B: {d_out} × {r}\nzero at first",
        ha="left",
    )
    _arrow(ax, (middle, bottom + rank + 0.1), (middle, start - 0.1))
    note(ax, middle + 0.3, bottom + rank + 0.75, f"x Aᵀ: {r} numbers", ha="left")
    plus, top = (left + wide / 2 + middle) / 2, start + high
    for target, end in ((left + wide / 2, bottom + high), (middle, top)):
        _arrow(ax, (plus, -0.9), (target, bottom - 0.1))
        _arrow(ax, (target, end + 0.1), (plus + (0.3 if target > plus else -0.3), top + 0.7))
    note(ax, middle - 0.6, top + 0.8, "· α / r", ha="left")
    note(ax, plus, top + 0.8, "+", ha="center", fontsize=15)
    note(ax, plus, -1.25, "x", ha="center", style="italic")
    note(ax, plus, top + 1.9, "y = x Wᵀ + b + (α / r) · x Aᵀ Bᵀ", ha="center")
    return figure


def _box(
    ax: object, x: float, y: float, width: float, height: float, colour: str, text: str = ""
) -> None:
    ax.add_patch(  # type: ignore[attr-defined]
        Rectangle((x, y), width, height, facecolor=colour, alpha=0.35, edgecolor=INK, lw=1.2)
    )
    if text:
        note(ax, x + width / 2, y + height / 2, text, ha="center")  # type: ignore[arg-type]


def _arrow(ax: object, start: tuple[float, float], end: tuple[float, float]) -> None:
    shape = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=INK, lw=1)
    ax.add_patch(shape)  # type: ignore[attr-defined]


def draw_spectra(shares: Mapping[str, Tensor], ranks: Sequence[int]) -> Drawing:
    """How much of each matrix's squared norm its first k singular values hold, k from 1 on."""
    figure, ax = plot(6.8, 3.3)
    styles = ((BLUE, "-"), (BLUE, "--"), (ORANGE, "-"), (ORANGE, "--"), (INK, ":"))
    for (name, share), (colour, line) in zip(shares.items(), styles, strict=False):
        ax.plot(range(1, len(share) + 1), share, line, color=colour, lw=2, label=name)
    for r in ranks:
        ax.axvline(r, color=INK, lw=0.7, alpha=0.5)
        ax.text(r + 0.6, 0.03, f"r = {r}", color=INK, fontsize=8.5)
    ax.set_xlabel("k, the rank that is kept", color=INK)
    ax.set_ylabel("share of ‖ΔW‖²", color=INK)
    ax.set_ylim(0, 1.02)
    ax.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def draw_scales(ranks: Sequence[int], sizes: Mapping[str, Sequence[float]]) -> Drawing:
    """How far an answer moves in one step, against the rank, both on log axes."""
    figure, ax = plot(6.4, 3.1)
    styles = zip((BLUE, ORANGE, RED), ("-o", "--s", ":^"), strict=True)
    for (name, values), (colour, line) in zip(sizes.items(), styles, strict=False):
        ax.plot(ranks, values, line, color=colour, lw=1.8, ms=4.5, label=name)
    doublings(ax, ranks)
    ax.set_yscale("log")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("r", color=INK)
    ax.set_ylabel("change of y in one step", color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure


def draw_levels(books: Mapping[str, Tensor], scale: float) -> Drawing:
    """Levels of four bits under the density of what they stand for: normal, its block's largest ±1.

    scale: the block's largest magnitude in standard deviations.
    """
    figure, ax = plot(7.0, 3.2)
    x = torch.linspace(-1, 1, 401)
    ax.fill_between(x, torch.exp(-((x * scale) ** 2) / 2), color=FAINT, alpha=0.25, lw=0)
    colours = zip((BLUE, ORANGE, GREEN), range(1, 4), strict=True)
    for (name, levels), (colour, row) in zip(books.items(), colours, strict=False):
        height = -0.22 * row
        ax.plot(levels, [height] * len(levels), "|", color=colour, ms=15, mew=2.2)
        ax.text(-1.06, height, name, color=INK, fontsize=9, ha="right", va="center")
    ax.set_xlim(-1.32, 1.05)
    ax.set_ylim(-0.22 * len(books) - 0.2, 1.05)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("weight / its block's largest magnitude", color=INK)
    return figure


_WAYS = {
    "full": (BLUE, "-o"),
    "head": (ORANGE, "--s"),
    "bottleneck": (GREEN, "-.^"),
    "LoRA": (RED, "-D"),
}


def _by_rate(runs: Sequence[Mapping[str, Any]], method: str, what: str) -> dict[float, list[float]]:
    """What each seed came to, by learning rate."""
    found: dict[float, list[float]] = {}
    for run in runs:
        if run["method"] == method:
            found.setdefault(run["lr"], []).append(run[what])
    return dict(sorted(found.items()))


def draw_rates(runs: Sequence[Mapping[str, Any]], before: float, top: float = 4.2) -> Drawing:
    """Loss on the new text against the learning rate: a line a method through the means, a mark a seed.

    runs: with "method", "lr" and "documentation". before: the loss of the model that was adapted.
    What is above `top` is left out.
    """
    figure, ax = plot(6.8, 3.4)
    for method, (colour, style) in _WAYS.items():
        points = _by_rate(runs, method, "documentation")
        means = [sum(each) / len(each) for each in points.values()]
        ax.plot(list(points), means, style[:-1], color=colour, lw=1.8, label=method)
        for lr, each in points.items():
            ax.plot([lr] * len(each), each, style[-1], color=colour, ms=4.5)
    ax.axhline(before, color=FAINT, lw=1.2, ls=":", label="before")
    ax.set_xscale("log")
    ax.set_ylim(3.25, top)
    ax.set_xlabel(f"learning rate (losses above {top:g} not shown)", color=INK)
    ax.set_ylabel("loss on documentation, nats a token", color=INK, fontsize=9)
    ax.legend(frameon=False, fontsize=9)
    return figure


def draw_forgetting(
    runs: Sequence[Mapping[str, Any]], before: Mapping[str, float], most: float = 4.0
) -> Drawing:
    """Loss on the new text against that on the old: a point a learning rate, the mean of the seeds.

    before: both losses of the model that was adapted. What forgot beyond `most` is left out, and counted
    in the label of the axis.
    """
    left_out = 0
    figure, ax = plot(6.8, 3.6)
    for method, (colour, style) in _WAYS.items():
        new, old = (_by_rate(runs, method, what) for what in ("documentation", "python"))
        pairs = [
            (sum(old[lr]) / len(old[lr]), sum(new[lr]) / len(new[lr]))
            for lr in new
            if sum(old[lr]) / len(old[lr]) < most
        ]
        left_out += len(new) - len(pairs)
        path = [(before["python"], before["documentation"]), *pairs]
        ax.plot(*zip(*path, strict=True), style[:-1], color=colour, lw=1.2, alpha=0.7)
        ax.plot(*zip(*pairs, strict=True), style[-1], color=colour, ms=5, label=method)
    ax.plot(before["python"], before["documentation"], "*", color=INK, ms=11, label="before")
    ax.set_xlabel(
        f"loss on Python: to the right, more is forgotten ({left_out} points beyond {most:g} not shown)",
        color=INK,
    )
    ax.set_ylabel("loss on documentation", color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure


def draw_ranks(
    ranks: Mapping[str, Sequence[tuple[int, float]]], seeds: tuple[int, Sequence[float]]
) -> Drawing:
    """Loss against the rank, a line for each way to scale; seeds: a rank, and what its seeds came to."""
    figure, ax = plot(6.4, 3.0)
    for (name, points), (colour, line) in zip(
        ranks.items(), zip((BLUE, ORANGE), ("-o", "--s"), strict=True), strict=True
    ):
        ax.plot(*zip(*points, strict=True), line, color=colour, lw=1.8, ms=5, label=name)
    at, losses = seeds
    ax.plot([at] * len(losses), losses, "_-", color=INK, lw=1.2, ms=14, mew=1.5, label="two seeds")
    doublings(ax, [r for r, _ in next(iter(ranks.values()))])
    ax.set_xlabel("r", color=INK)
    ax.set_ylabel("loss on documentation", color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure


def draw_margins(
    margins: Mapping[str, Sequence[float]], answers: Mapping[str, Sequence[tuple[float, float]]]
) -> Drawing:
    """The mean margin of each step's pairs; beside it log p of held-out pairs' answers.

    answers: (chosen, rejected), as often as one likes, at equal distances from before the first step to the end.
    """
    figure = Drawing(figsize=(8.4, 3.1), facecolor=PAPER, layout="constrained")
    left, right = figure.subplots(1, 2)
    for ax in (left, right):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=INK)
        ax.set_xlabel("step", color=INK)
    for (name, values), colour, mark in zip(
        margins.items(), (GREEN, BLUE, ORANGE), "^os", strict=False
    ):
        left.plot(range(1, len(values) + 1), values, f"-{mark}", color=colour, ms=4, label=name)
        chosen, rejected = zip(*answers[name], strict=True)
        at = [i * len(values) / (len(chosen) - 1) for i in range(len(chosen))]
        right.plot(at, chosen, f"-{mark}", color=colour, ms=4)
        right.plot(at, rejected, f":{mark}", color=colour, ms=4, mfc=PAPER)
    left.set_ylabel("mean margin", color=INK)
    left.legend(frameon=False, fontsize=8.5)
    right.set_ylabel("mean log p of an answer", color=INK)
    right.set_title("held-out pairs: chosen full, rejected dotted", color=INK, fontsize=9)
    return figure


def draw_level_use(levels: Tensor, used: Mapping[str, Tensor]) -> Drawing:
    """How often each level is used, bars side by side; a line where all would be used equally."""
    figure, ax = plot(7.0, 2.9)
    width = 0.8 / len(used)
    for n, ((name, share), colour) in enumerate(zip(used.items(), (BLUE, ORANGE), strict=True)):
        left = [i - 0.4 + width * (n + 0.5) for i in range(len(levels))]
        ax.bar(left, (100 * share).tolist(), width, color=colour, label=name)
    ax.axhline(100 / len(levels), color=INK, lw=1, ls=":")
    ax.set_xticks(range(len(levels)), [f"{x:.2f}" for x in levels.tolist()], fontsize=7.5)
    ax.set_xlabel("level", color=INK)
    ax.set_ylabel("share of the weights, %", color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure
