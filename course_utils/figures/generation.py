"""The drawings of chapter 25: next-token distributions, what filters keep, windows, and estimates."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle
from torch import Tensor

from .style import BLUE, FAINT, INK, ORANGE, PALETTE, PAPER, Drawing, note, paper, plot


def draw_probs(
    panels: Mapping[str, tuple[Sequence[str], Mapping[str, Sequence[float]]]],
) -> Drawing:
    """Bars of probabilities of tokens, a panel with a scale of its own for each place in a text.

    panels: title → (the tokens, name of a curve → the probability of each).
    """
    figure = Drawing(figsize=(4.4 * len(panels), 3.2), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, (tokens, curves)) in zip(axes, panels.items(), strict=True):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right"]].set_visible(False)
        width = 0.8 / len(curves)
        for n, ((name, probs), colour) in enumerate(zip(curves.items(), PALETTE, strict=False)):
            left = [i - 0.4 + width * (n + 0.5) for i in range(len(tokens))]
            ax.bar(left, probs, width, color=colour, label=name)
        ax.set_xticks(range(len(tokens)), [repr(t)[1:-1] for t in tokens], rotation=60, fontsize=8)
        ax.set_title(title, color=INK, fontsize=10)
        top = max(max(probs) for probs in curves.values())
        ax.set_ylabel(f"probability, up to {top:.2g}", color=INK, fontsize=9)
        ax.legend(frameon=False, fontsize=8)
    return figure


def draw_kept(panels: Mapping[str, tuple[Tensor, Mapping[str, int]]], most: int = 2000) -> Drawing:
    """Probabilities by rank on logarithmic axes, and how many tokens each filter keeps.

    panels: title → (probabilities in descending order, name of a filter → tokens it keeps).
    """
    figure = Drawing(figsize=(4.4 * len(panels), 3.2), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for ax, (title, (probs, kept)) in zip(axes, panels.items(), strict=True):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right"]].set_visible(False)
        ranks = range(1, min(len(probs), most) + 1)
        ax.plot(ranks, probs[: len(ranks)].tolist(), color=INK)
        places = list(kept.values())
        for n, ((name, count), colour) in enumerate(zip(kept.items(), PALETTE, strict=False)):
            width = 2 + 5 * places[n + 1 :].count(count)  # wider than those that will lie over it
            ax.axvline(count, color=colour, lw=width, label=f"{name}: {count:,}")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(1e-6, 1.3)
        ax.set_title(title, color=INK, fontsize=10)
        ax.set_xlabel("rank of the token", color=INK, fontsize=9)
        ax.legend(frameon=False, fontsize=8, title="tokens kept", title_fontsize=8)
    axes[0].set_ylabel("probability", color=INK, fontsize=9)
    return figure


def draw_windows(N: int, context: int, stride: int) -> Drawing:
    """The windows in which a text of N tokens is read, one below the other.

    A frame goes round what a window reads; what it counts has the colour of what is counted.
    """
    windows = []
    done, step = 1, context
    while done < N:
        end = min(done + step, N)
        windows.append((max(end - 1 - context, 0), done, end))
        done, step = end, stride
    figure, ax = paper((-3.2, N + 1), (-len(windows) - 1.6, 1.6))
    for n, (start, first, end) in enumerate(windows):
        note(ax, -0.4, -n - 0.5, f"window {n + 1}", ha="right", color=FAINT, fontsize=8)
        for token in range(start, end):
            counted = token >= first
            colour = ORANGE if counted else BLUE
            box = (token, -n - 0.9), 0.9, 0.8
            ax.add_patch(Rectangle(*box, facecolor=colour, alpha=0.7 if counted else 0.35, lw=0))
        ax.add_patch(Rectangle((start - 0.1, -n - 1), end - 1 - start + 0.1, 1, fill=False, ec=INK))
    note(ax, 0, 1.0, f"{N} tokens, context {context}, stride {stride}", fontweight="bold")
    y = -len(windows) - 1.2
    for left, label, colour, alpha in (
        (0, "not counted", BLUE, 0.35),
        (5.5, "predicted and counted", ORANGE, 0.7),
    ):
        ax.add_patch(Rectangle((left, y), 0.9, 0.8, facecolor=colour, alpha=alpha, lw=0))
        note(ax, left + 1.2, y + 0.4, label, fontsize=8)
    ax.add_patch(Rectangle((13.5, y), 0.9, 0.8, fill=False, ec=INK))
    note(ax, 14.7, y + 0.4, "read by the window", fontsize=8)
    return figure


def draw_estimates(
    x: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    labels: tuple[str, str],
    points: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
) -> Drawing:
    """Curves over x, and points that were measured.

    labels: of x and of y. points: name → (x, y, standard error); the bars are two of these long
    on either side.
    """
    figure, ax = plot(6.0, 3.0)
    for (name, y), colour in zip(curves.items(), PALETTE, strict=False):
        ax.plot(x, y, color=colour, label=name)
    for (name, found), colour in zip((points or {}).items(), PALETTE[len(curves) :], strict=False):
        at, y, errors = zip(*found, strict=True)
        bars = [2 * error for error in errors]
        ax.errorbar(at, y, bars, color=colour, label=name, fmt="o", capsize=3, zorder=3)
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    ax.legend(frameon=False, fontsize=8)
    return figure
