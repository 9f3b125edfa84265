"""The drawings of chapter 12: losses of a run, precision over recall, and what a threshold costs.

They draw what they are given, and compute nothing that the chapter's exercises compute.
"""

from collections.abc import Mapping, Sequence

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, RED, Drawing, plot


def draw_losses(train: Sequence[float], validation: Sequence[float], best_epoch: int) -> Drawing:
    """Both losses, epoch by epoch, and the epoch whose weights are kept."""
    figure, ax = plot(6.4, 3.0)
    epochs = range(len(train))
    ax.plot(epochs, train, color=BLUE, label="training, dropout on")
    ax.plot(epochs, validation, color=RED, label="validation, eval mode")
    ax.axvline(best_epoch, color=FAINT, linewidth=0.8, linestyle=":")
    ax.plot(best_epoch, validation[best_epoch], "o", color=ORANGE, markeredgecolor=INK)
    ax.annotate(
        f"best epoch {best_epoch}",
        (best_epoch, validation[best_epoch]),
        xytext=(6, 14),
        textcoords="offset points",
        color=INK,
        fontsize=9,
    )
    ax.set_xlabel("epoch")
    ax.set_ylabel("mean loss a row")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    return figure


def draw_precision_recall(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], share: float
) -> Drawing:
    """Precision over recall as steps, one line for each model.

    curves: by name, recalls and precisions from the highest threshold on. share: of the positive class,
    the precision of a ranking by chance.
    """
    figure, ax = plot(5.2, 3.2)
    for colour, (name, (recall, precision)) in zip(PALETTE, curves.items(), strict=False):
        ax.step([0.0, *recall], [precision[0], *precision], where="pre", color=colour, label=name)
    ax.axhline(share, color=FAINT, linewidth=0.8, linestyle=":", label="by chance")
    ax.set_xlabel("recall")
    ax.set_ylabel("precision")
    ax.set_xlim(0, 1.02)
    ax.set_ylim(0, 1.05)
    ax.legend(frameon=False, loc="lower left")
    return figure


def draw_costs(
    thresholds: Sequence[float], costs: Mapping[str, Sequence[float]], chosen: Mapping[str, float]
) -> Drawing:
    """What errors cost at each threshold, a line for each price of a miss; the cheapest is marked."""
    figure, ax = plot(6.4, 3.0)
    for colour, (name, line) in zip((BLUE, ORANGE, GREEN), costs.items(), strict=False):
        ax.step(thresholds, line, where="mid", color=colour, label=name)
        ax.axvline(chosen[name], color=colour, linewidth=0.8, linestyle=":")
    ax.set_xlabel("threshold on the logit")
    ax.set_ylabel("cost of all errors")
    ax.legend(frameon=False)
    return figure


def draw_checkpoint_moments(steps: Sequence[tuple[str, str, str]]) -> Drawing:
    """What lies in the folder after each step of a save, and what a kill then leaves.

    steps: (what was done, what is at the path, what lies beside it).
    """
    figure, ax = plot(6.8, 0.45 * len(steps) + 0.5)
    ax.set_axis_off()
    ax.set_xlim(0, 10)
    ax.set_ylim(len(steps) + 0.1, -0.9)
    for x, title in ((0, "a kill after"), (5.0, "finds at the path"), (7.6, "and beside it")):
        ax.text(x, -0.5, title, color=FAINT, fontsize=9)
    for row, (done, path, beside) in enumerate(steps):
        colour = {"old": BLUE, "new": GREEN}[path]
        ax.text(0, row + 0.3, done, color=INK, fontsize=9, family="monospace")
        ax.text(5.0, row + 0.3, f"{path}, whole", color=colour, fontsize=9, weight="bold")
        ax.text(7.6, row + 0.3, beside, color=INK, fontsize=9)
    return figure
