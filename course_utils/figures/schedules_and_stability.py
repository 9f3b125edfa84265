"""The drawings of chapter 11: schedules, losses of several runs, and what a spike leaves in Adam."""

from collections.abc import Mapping, Sequence

from .style import FAINT, INK, PALETTE, Drawing, plot


def draw_schedules(factors: Mapping[str, Sequence[float]]) -> Drawing:
    """The factor of the learning rate at each step, a curve for each schedule."""
    figure, ax = plot(6.4, 3.0)
    for colour, (name, values) in zip(PALETTE, factors.items(), strict=False):
        ax.plot(values, color=colour, linewidth=1.8, label=name)
    ax.set_xlabel("step")
    ax.set_ylabel("factor of the learning rate")
    ax.set_ylim(-0.03, 1.05)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def draw_losses(runs: Mapping[str, Sequence[float]], floor: tuple[str, float]) -> Drawing:
    """The loss at each step, a curve for each run. floor: the name and height of a line across."""
    figure, ax = plot(6.4, 3.0)
    for colour, (name, losses) in zip(PALETTE, runs.items(), strict=False):
        ax.plot(losses, color=colour, linewidth=1.5, label=name)
    name, height = floor
    ax.axhline(height, color=FAINT, linewidth=1, linestyle=":")
    ax.text(0, height, f" {name}", va="bottom", ha="left", color=INK, fontsize=9)
    ax.set_xlabel("step")
    ax.set_ylabel("loss, nats a token")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def draw_steps(sizes: Mapping[str, Sequence[float]], spike: int) -> Drawing:
    """The length of each update in units of the learning rate, and where the spike was."""
    figure, ax = plot(6.4, 3.0)
    for colour, (name, values) in zip(PALETTE, sizes.items(), strict=False):
        ax.semilogy(values, color=colour, linewidth=1.8, label=name)
    ax.axvline(spike, color=FAINT, linewidth=0.8, linestyle=":")
    ax.text(spike, ax.get_ylim()[1], " spike", va="top", ha="left", color=INK, fontsize=9)
    ax.set_xlabel("step")
    ax.set_ylabel("update / learning rate")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
