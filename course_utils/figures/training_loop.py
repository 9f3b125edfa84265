"""The drawings of chapter 12: losses of a run, precision against recall, and what a threshold costs.

They draw what they are given, and compute nothing that the chapter's exercises compute.
"""

from collections.abc import Mapping, Sequence

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, PAPER, RED, Drawing, plot


def draw_losses(train: Sequence[float], validation: Sequence[float], best_epoch: int) -> Drawing:
    """Both losses, epoch by epoch, and the epoch whose weights are kept."""
    figure, ax = plot(6.4, 3.0)
    epochs = range(len(train))
    ax.plot(epochs, train, color=BLUE, label="training, dropout on")
    ax.plot(epochs, validation, color=RED, label="validation, eval mode")
    ax.axvline(best_epoch, color=FAINT, linewidth=0.8, linestyle=":")
    ax.plot(best_epoch, validation[best_epoch], "o", color=ORANGE, markeredgecolor=INK)
    top = ax.get_xaxis_transform()
    ax.text(best_epoch, 0.97, f" best epoch {best_epoch}", transform=top, va="top", fontsize=9)
    ax.set_xlabel("epoch")
    ax.set_ylabel("mean loss a row, log scale")
    ax.set_yscale("log")
    ax.set_yticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
    ax.yaxis.set_minor_formatter("")
    ax.legend(frameon=False)
    return figure


def draw_precision_recall(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], share: float
) -> Drawing:
    """Precision against recall as steps, one line for each model.

    curves: by name, recalls and precisions from the highest threshold on. share: of the positive class,
    the precision that a ranking by chance has on average at any number of alarms.
    """
    figure, ax = plot(5.2, 3.2)
    for colour, (name, (recall, precision)) in zip(PALETTE, curves.items(), strict=False):
        ax.step([0.0, *recall], [precision[0], *precision], where="pre", color=colour, label=name)
    ax.axhline(share, color=FAINT, linewidth=0.8, linestyle=":", label="by chance")
    ax.set_xlabel("recall")
    ax.set_ylabel("precision")
    ax.set_xlim(0, 1.02)
    ax.set_ylim(0, 1.05)
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.02, 0.25))
    return figure


def draw_costs(
    thresholds: Sequence[float], costs: Mapping[str, Sequence[float]], chosen: Mapping[str, float]
) -> Drawing:
    """What errors cost at each threshold, a panel for each price of a miss; a dot marks the cheapest."""
    figure = Drawing(figsize=(7.2, 2.4), facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, len(costs), squeeze=False)[0]
    for ax, colour, (name, line) in zip(axes, (BLUE, ORANGE, GREEN), costs.items(), strict=False):
        ax.set_facecolor(PAPER)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=INK)
        ax.set_title(name, fontsize=10, color=INK)
        ax.step(thresholds, line, where="mid", color=colour)
        ax.axvline(chosen[name], color=FAINT, linewidth=0.8, linestyle=":")
        ax.plot(chosen[name], min(line), "o", color=colour, markeredgecolor=INK)
        ax.set_ylim(bottom=0)
    figure.supxlabel("threshold on the logit", fontsize=10)
    figure.supylabel("cost of all errors", fontsize=10)
    return figure


def draw_checkpoint_moments(steps: Sequence[tuple[str, str, str]]) -> Drawing:
    """What lies in the folder after each step of a save, and what a kill then leaves.

    steps: (what was done, what is at the path: old, new or unreadable, what lies beside it).
    """
    figure, ax = plot(6.8, 0.3 * len(steps) + 0.5)
    ax.set_axis_off()
    ax.set_xlim(0, 10)
    ax.set_ylim(len(steps) + 0.1, -0.9)
    for x, title in ((0, "a kill after"), (4.2, "finds at the path"), (7.2, "and beside it")):
        ax.text(x, -0.5, title, color=FAINT, fontsize=9)
    for row, (done, path, beside) in enumerate(steps):
        colour = {"old": BLUE, "new": GREEN, "unreadable": RED}[path]
        text = path if path == "unreadable" else f"{path}, whole"
        ax.text(0, row + 0.3, done, color=INK, fontsize=9, family="monospace")
        ax.text(4.2, row + 0.3, text, color=colour, fontsize=9, weight="bold")
        ax.text(7.2, row + 0.3, beside, color=INK, fontsize=9)
    return figure
