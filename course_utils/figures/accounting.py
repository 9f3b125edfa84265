"""The drawings of chapter 5: where a step's FLOPs go, the roof of a machine, and what a deadline costs.

They draw what they are given, and compute nothing that the chapter's exercises compute.
"""

from collections.abc import Mapping

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, RED, Drawing, plot

_LEAST_LABELLED = 6  # per cent: a thinner slice has no room for its number


def draw_shares(steps: Mapping[int, Mapping[str, int]]) -> Drawing:
    """The share of each part in a training step's FLOPs, a bar for each length of context.

    steps: by context, the FLOPs of the parts.
    """
    figure, ax = plot(6.4, 3.2)
    below = [0.0] * len(steps)
    for colour, part in zip(PALETTE, next(iter(steps.values())), strict=False):
        shares = [100 * step[part] / sum(step.values()) for step in steps.values()]
        ax.bar(range(len(steps)), shares, bottom=below, color=colour, alpha=0.8, label=part)
        for x, (share, start) in enumerate(zip(shares, below, strict=True)):
            if share >= _LEAST_LABELLED:
                y = start + share / 2
                ax.text(x, y, f"{share:.0f}", ha="center", va="center", color=INK, fontsize=9)
        below = [start + share for start, share in zip(below, shares, strict=True)]
    ax.set_xticks(range(len(steps)), [f"{context:,}" for context in steps])
    ax.set_xlabel("context, tokens")
    ax.set_ylabel("share of FLOPs, %")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, reverse=True)
    return figure


def draw_roofline(
    peak_flops: float, bandwidth: float, points: Mapping[str, tuple[float, float]]
) -> Drawing:
    """The roof of a machine over arithmetic intensity, and operations beneath it.

    peak_flops: FLOP/s; bandwidth: bytes a second; points: by name, (FLOPs a byte, FLOP/s reached).
    """
    figure, ax = plot(6.4, 3.6)
    ridge = peak_flops / bandwidth
    intensities = [intensity for intensity, _ in points.values()]
    left, right = min([*intensities, ridge]) / 3, max([*intensities, ridge]) * 8
    ax.plot([left, ridge], [left * bandwidth / 1e9, peak_flops / 1e9], color=BLUE, linewidth=2)
    ax.plot([ridge, right], [peak_flops / 1e9] * 2, color=RED, linewidth=2)
    ax.axvline(ridge, color=FAINT, linewidth=0.8, linestyle=":")
    ax.text(ridge, peak_flops / 1e9, f" ridge {ridge:.1f}", va="bottom", ha="left", color=INK)
    for name, (intensity, rate) in points.items():
        ax.plot(intensity, rate / 1e9, "o", color=ORANGE, markeredgecolor=INK, markersize=7)
        ax.annotate(
            name,
            (intensity, rate / 1e9),
            xytext=(0, -8),
            textcoords="offset points",
            ha="center",
            va="top",
            color=INK,
            fontsize=8,
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("arithmetic intensity, FLOPs a byte")
    ax.set_ylabel("GFLOP/s")
    return figure


def draw_deadlines(gpus: Mapping[str, Mapping[int, int]]) -> Drawing:
    """How many GPUs each deadline takes: a curve for each run.

    gpus: by the run's name, the number of GPUs for each deadline in days.
    """
    figure, ax = plot(6.4, 3.4)
    for colour, marker, (name, curve) in zip(
        (BLUE, ORANGE, GREEN, RED), "osD^", gpus.items(), strict=False
    ):
        ax.plot(list(curve), list(curve.values()), color=colour, marker=marker, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    deadlines = list(next(iter(gpus.values())))
    ax.set_xticks(deadlines, [str(days) for days in deadlines])
    ax.minorticks_off()
    ax.set_xlabel("deadline, days")
    ax.set_ylabel("GPUs")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
