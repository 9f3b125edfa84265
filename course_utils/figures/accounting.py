"""The drawings of chapter 5: where a step's FLOPs go, the roof of a machine, and what a deadline costs."""

from collections.abc import Mapping, Sequence

from course_utils.reference.accounting import plan_training, transformer_flops

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, RED, Drawing, plot


def draw_shares(contexts: Sequence[int], *, n_layer: int, n_embd: int, vocab: int) -> Drawing:
    """The share of each part in the FLOPs of a GPT-2's training step, at each length of context."""
    steps = [
        transformer_flops(n_layer=n_layer, n_embd=n_embd, vocab=vocab, context=T, batch=1)
        for T in contexts
    ]
    figure, ax = plot(6.4, 3.2)
    places, below = range(len(contexts)), [0.0] * len(contexts)
    for colour, part in zip(PALETTE, steps[0], strict=False):
        shares = [100 * step[part] / sum(step.values()) for step in steps]
        ax.bar(places, shares, bottom=below, color=colour, alpha=0.8, label=part, width=0.8)
        for x, share, start in zip(places, shares, below, strict=True):
            if share >= 6:
                middle = start + share / 2
                ax.text(x, middle, f"{share:.0f}", ha="center", va="center", color=INK, fontsize=9)
        below = [start + share for start, share in zip(below, shares, strict=True)]
    ax.set_xticks(places, [f"{T:,}" for T in contexts])
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
    left, right = min([*intensities, ridge]) / 3, max([*intensities, ridge]) * 6
    ax.plot([left, ridge], [left * bandwidth / 1e9, peak_flops / 1e9], color=BLUE, linewidth=2)
    ax.plot([ridge, right], [peak_flops / 1e9] * 2, color=RED, linewidth=2)
    ax.axvline(ridge, color=FAINT, linewidth=0.8, linestyle=":")
    ax.text(ridge, peak_flops / 1e9, f" ridge {ridge:.1f}", va="bottom", ha="left", color=INK)
    for name, (intensity, rate) in points.items():
        ax.plot(intensity, rate / 1e9, "o", color=ORANGE, markeredgecolor=INK, markersize=7)
        ax.annotate(
            name,
            (intensity, rate / 1e9),
            xytext=(6, -11),
            textcoords="offset points",
            color=INK,
            fontsize=8,
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("arithmetic intensity, FLOPs a byte")
    ax.set_ylabel("GFLOP/s")
    return figure


def draw_deadlines(
    models: Mapping[str, tuple[int, int]],
    deadlines: Sequence[float],
    *,
    peak_flops: float,
    gpu_bytes: int,
    mfu: float,
) -> Drawing:
    """The fewest GPUs for each deadline, by `plan_training`: one curve a model.

    models: by name, parameters and tokens. deadlines: days.
    """
    figure, ax = plot(6.4, 3.4)
    for colour, marker, (name, (n_parameters, n_tokens)) in zip(
        (BLUE, ORANGE, GREEN, RED), "osD^", models.items(), strict=False
    ):
        gpus = [
            plan_training(
                n_parameters, n_tokens, days, peak_flops=peak_flops, gpu_bytes=gpu_bytes, mfu=mfu
            )["gpus"]
            for days in deadlines
        ]
        ax.plot(deadlines, gpus, color=colour, marker=marker, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(deadlines, [f"{days:g}" for days in deadlines])
    ax.minorticks_off()
    ax.set_xlabel("deadline, days")
    ax.set_ylabel("GPUs")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
