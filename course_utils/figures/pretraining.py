"""The drawings of chapter 24: loss curves with their baselines, duplicates, budgets, and ablations."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, PAPER, Drawing, plot

Points = Sequence[tuple[float, float]]


def draw_losses(
    curves: Mapping[str, Points],
    levels: Mapping[str, float],
    labels: tuple[str, str] = ("steps", "loss"),
    log_x: bool = False,
) -> Drawing:
    """Losses over steps, and horizontal lines of what tables reach, named at their right end."""
    figure, ax = plot(6.4, 3.4)
    for (name, pairs), colour in zip(curves.items(), PALETTE, strict=False):
        x, y = zip(*pairs, strict=True)
        faint = len(pairs) > 100
        ax.plot(x, y, color=colour, label=name, linewidth=0.8 if faint else 1.8, alpha=0.7)
    for name, level in levels.items():
        ax.axhline(level, color=FAINT, linestyle="--", linewidth=1)
        ax.annotate(
            name, (1, level), (-2, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", color=INK, fontsize=8,
        )  # fmt: skip
    if log_x:
        ax.set_xscale("log")
    ax.set_xlabel(labels[0], color=INK)
    ax.set_ylabel(labels[1], color=INK)
    if len(curves) > 1:
        ax.legend(frameon=False, fontsize=8, loc="center right")
    return figure


def draw_log(
    training: Points, held_out: Points, norms: Points, lrs: Points, levels: Mapping[str, float]
) -> Drawing:
    """A run's log: losses in bits a byte above, the gradient's norm and the learning rate below."""
    figure = Drawing(figsize=(6.8, 5.0), facecolor=PAPER, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    top.plot(*zip(*training, strict=True), color=BLUE, linewidth=0.7, alpha=0.6, label="training")
    top.plot(*zip(*held_out, strict=True), color=ORANGE, linewidth=2, label="held out")
    for name, level in levels.items():
        top.axhline(level, color=FAINT, linestyle="--", linewidth=1)
        top.annotate(
            name, (1, level), (-2, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", color=INK, fontsize=8,
        )  # fmt: skip
    top.set_ylabel("bits a byte", color=INK)
    top.legend(frameon=False, fontsize=8, loc="upper center")
    bottom.plot(*zip(*norms, strict=True), color=GREEN, linewidth=0.8)
    bottom.set_ylabel("norm of the gradient", color=INK, fontsize=9)
    bottom.set_ylim(bottom=0)
    beside = bottom.twinx()
    beside.plot(*zip(*lrs, strict=True), color=INK, linestyle=":")
    beside.set_ylabel("learning rate (dotted)", color=INK, fontsize=9)
    bottom.set_xlabel("step", color=INK)
    for ax in (top, bottom, beside):
        ax.spines[["top", "right"] if ax is not beside else ["top"]].set_visible(False)
    return figure


def draw_minhash(
    scatter: Mapping[str, Points], curves: Mapping[str, Points], marks: Points = ()
) -> Drawing:
    """Left: estimates of a similarity against the truth. Right: the chance to become candidates."""
    figure = Drawing(figsize=(8.2, 3.4), facecolor=PAPER, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color=FAINT, linewidth=1)
    for (name, pairs), colour, size in zip(scatter.items(), PALETTE, (9, 14, 20), strict=False):
        left.scatter(*zip(*pairs, strict=True), s=size, color=colour, alpha=0.6, label=name)
    left.set_xlabel("Jaccard similarity", color=INK)
    left.set_ylabel("share of equal numbers", color=INK)
    for (name, pairs), colour in zip(curves.items(), PALETTE, strict=False):
        right.plot(*zip(*pairs, strict=True), color=colour, label=name)
    if marks:
        right.scatter(*zip(*marks, strict=True), s=12, color=INK, zorder=3, label="measured")
    right.set_xlabel("Jaccard similarity", color=INK)
    right.set_ylabel("chance to be candidates", color=INK)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=8)
    return figure


def draw_isoflop(
    runs: Mapping[float, Points],
    parabolas: Mapping[float, Points],
    minima: Mapping[float, tuple[float, float]],
    predicted: tuple[float, float] | None = None,
) -> Drawing:
    """Loss against size, a curve for each budget; beside it the best size against the budget."""
    figure = Drawing(figsize=(8.4, 3.6), facecolor=PAPER, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for (budget, points), colour, marker in zip(runs.items(), PALETTE, "os^", strict=False):
        name = f"{budget:.1e} FLOPs"
        left.scatter(*zip(*points, strict=True), color=colour, label=name, marker=marker, s=22)
        left.plot(*zip(*parabolas[budget], strict=True), color=colour, linewidth=1)
        best, low = minima[budget]
        left.scatter(best, low, color=colour, marker="*", s=130, edgecolor=INK, zorder=4)
        right.scatter(budget, best, color=colour, marker="*", s=130, edgecolor=INK)
    left.set_xscale("log")
    left.set_xlabel("N, FLOPs a byte / 6", color=INK)
    left.set_ylabel("held-out loss, nats a byte", color=INK)
    left.legend(frameon=False, fontsize=8)
    if predicted:
        a, b = predicted
        ends = [0.7 * min(runs), 1.5 * max(runs)]
        right.plot(ends, [a * C**b for C in ends], color=FAINT, label=f"∝ C^{b:.2f}")
        right.legend(frameon=False, fontsize=8)
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("C, FLOPs", color=INK)
    right.set_ylabel("best N", color=INK)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def draw_prediction(pairs: Mapping[str, Points]) -> Drawing:
    """Predicted losses against measured ones, with the diagonal."""
    figure, ax = plot(4.6, 3.6)
    every = [x for points in pairs.values() for pair in points for x in pair]
    ax.plot([min(every), max(every)], [min(every), max(every)], color=FAINT, linewidth=1)
    for (name, points), colour, marker in zip(pairs.items(), PALETTE, "os^", strict=False):
        x, y = zip(*points, strict=True)
        ax.scatter(x, y, color=colour, marker=marker, label=name, s=28)
    ax.set_xlabel("measured loss, nats a byte", color=INK)
    ax.set_ylabel("the law's loss, nats a byte", color=INK)
    ax.legend(frameon=False, fontsize=8)
    return figure


def draw_ablations(losses: Mapping[str, Sequence[float]], baseline: str) -> Drawing:
    """A row for each variant, a dot for each seed; the band is the baseline's range."""
    figure, ax = plot(6.4, 0.36 * len(losses) + 0.9)
    low, high = min(losses[baseline]), max(losses[baseline])
    ax.axvspan(low, high, color=BLUE, alpha=0.2, linewidth=0)
    for row, (name, found) in enumerate(reversed(list(losses.items()))):
        colour = BLUE if name == baseline else ORANGE
        ax.scatter(found, [row] * len(found), color=colour, s=24, zorder=3)
    _names(ax, list(losses)[::-1])
    ax.set_xlabel("held-out loss at the end, nats a byte", color=INK)
    return figure


def _names(ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), names, color=INK)
    ax.set_ylim(-0.6, len(names) - 0.4)


def draw_spikes(
    losses: Mapping[str, Points], norms: Mapping[str, Points], at: tuple[int, int]
) -> Drawing:
    """Held-out losses and gradient norms of the same run, handled in several ways; the bad steps are shaded."""
    figure = Drawing(figsize=(7.2, 4.6), facecolor=PAPER, layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    shown = (losses, "held-out loss"), (norms, "norm of the gradient")
    for ax, (curves, label) in zip(panels, shown, strict=True):
        ax.axvspan(*at, color=FAINT, alpha=0.25, linewidth=0)
        styles = zip(curves.items(), (INK, *PALETTE), (":", "-", "-", "-", "--", "-"), strict=False)
        for (name, pairs), colour, line in styles:
            width = 2.0 if line == ":" else 1.2
            ax.plot(*zip(*pairs, strict=True), line, color=colour, label=name, linewidth=width)
        ax.set_ylabel(label, color=INK)
        ax.spines[["top", "right"]].set_visible(False)
    panels[1].set_yscale("log")
    panels[1].set_xlabel("step", color=INK)
    panels[0].legend(frameon=False, fontsize=8, ncols=2)
    return figure
