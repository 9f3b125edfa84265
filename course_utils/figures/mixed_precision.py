"""The drawings of chapter 13: gradients in FP16, scales, masters, FP8."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PINK, RED, Drawing, plot


def draw_gradients(grads: Tensor, scale: float) -> Drawing:
    """Exponents of the non-zero |gradients|, as they are and times `scale`, over what FP16 holds."""
    figure, ax = plot(7.0, 3.4)
    tiny, normal, top = -24, -14, 16
    sizes = grads.detach().flatten().double().abs()
    logs = sizes[sizes > 0].log2()
    shift = math.log2(scale)
    low, high = math.floor(float(logs.min())) - 1, 20
    low = max(low, -60)
    bins = list(range(low, high + 1))
    ax.axvspan(low, tiny, color=RED, alpha=0.13, lw=0)
    ax.axvspan(tiny, normal, color=ORANGE, alpha=0.16, lw=0)
    ax.axvspan(normal, top, color=GREEN, alpha=0.12, lw=0)
    ax.axvspan(top, high, color=RED, alpha=0.13, lw=0)
    clamped = logs.clamp(min=low + 0.5)
    ax.hist(clamped, bins=bins, color=FAINT, alpha=0.75, label="as they are")
    ax.hist(clamped + shift, bins=bins, color=BLUE, alpha=0.75, label=f"times 2^{shift:.0f}")
    ax.set_ylim(top=ax.get_ylim()[1] * 1.22)
    height = ax.get_ylim()[1] * 0.94
    for x, text in (
        ((low + tiny) / 2, "becomes 0"),
        ((tiny + normal) / 2, "subnormal"),
        ((normal + top) / 2, "normal in FP16"),
        ((top + high) / 2, "inf"),
    ):
        ax.text(x, height, text, ha="center", va="center", fontsize=8.5, color=INK)
    ax.set_xlabel("log2 |gradient|", color=INK)
    ax.set_ylabel("how many", color=INK)
    ax.set_xlim(low, high)
    ax.legend(frameon=False, fontsize=9, loc="center left")
    return figure


def draw_scales(scales: Sequence[float], skipped: Sequence[bool]) -> Drawing:
    """The loss scale step by step, on a log axis; skipped steps are marked."""
    figure, ax = plot(7.0, 2.8)
    steps = range(len(scales))
    ax.step(steps, scales, where="mid", color=BLUE, lw=2)
    bad = [i for i in steps if skipped[i]]
    ax.plot(bad, [scales[i] for i in bad], "x", color=RED, ms=8, mew=2.2, label="skipped")
    ax.set_yscale("log", base=2)
    ax.set_xlabel("step", color=INK)
    ax.set_ylabel("loss scale", color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure


def draw_paths(paths: Mapping[str, Sequence[float]]) -> Drawing:
    """One weight over many small steps, by the way in which it is kept."""
    figure, ax = plot(7.0, 3.2)
    styles = zip((INK, GREEN, ORANGE, PINK), ("-", "--", "-", ":"), strict=True)
    for (name, values), (colour, line) in zip(paths.items(), styles, strict=False):
        ax.plot(values, line, color=colour, lw=2, label=name)
    ax.set_xlabel("step", color=INK)
    ax.set_ylabel("weight", color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure


def draw_fp8_errors(sizes: Sequence[float], errors: Mapping[str, Sequence[float]]) -> Drawing:
    """Relative error of a product against the size of its factor, for several ways to cast."""
    figure, ax = plot(7.0, 3.2)
    styles = zip((RED, ORANGE, BLUE, GREEN), ("-", "--", "-", "--"), strict=True)
    for (name, values), (colour, line) in zip(errors.items(), styles, strict=False):
        ax.plot(sizes, values, line, marker="o", ms=3.5, color=colour, lw=1.8, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("typical |value| of one factor", color=INK)
    ax.set_ylabel("relative error of the product", color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure


def fp16_zeros(grads: Tensor, scale: float = 1.0) -> float:
    """Share of the non-zero numbers that become 0 in float16 once they are multiplied by `scale`."""
    alive = grads[grads != 0]
    return float((alive * scale).half().eq(0).double().mean()) if alive.numel() else 0.0
