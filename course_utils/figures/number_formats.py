"""The drawings of chapter 4: the bits of a number, where numbers lie, and how sums drift."""

from collections.abc import Mapping, Sequence
from math import frexp

from course_utils.reference.number_formats import (
    FORMATS,
    Format,
    decode_float,
    float_fields,
    float_limits,
)

from .interactive import Interactive
from .style import BLUE, FAINT, GREEN, INK, ORANGE, PINK, RED, Drawing, note, paper, plot, slot

_SPECIALS = {"ieee": False, "fn": True, "finite": "all"}


def format_explorer(value: float = 0.1, opens: str = "FP8 E4M3") -> Interactive:
    """The chapter's formats but FP64, and any other split of bits: press a bit, or round a number.

    value: the number it opens with. opens: a format's name. Raises ValueError for another one.
    """
    shown = [form for form in FORMATS if form.name != "FP64"]
    names = [form.name for form in shown]
    if opens not in names:
        raise ValueError(f"There is no format {opens!r}. There are: {', '.join(names)}.")
    lines = ["Float formats (interactive in JupyterLab and on the page)"]
    for form in shown:
        largest, normal, subnormal, epsilon = float_limits(
            form.exponent_bits, form.mantissa_bits, form.specials
        )
        lines.append(
            f"{form.name:9} 1 + {form.exponent_bits} + {form.mantissa_bits:2} bits: largest "
            f"{largest:.6g}, smallest normal {normal:.6g}, smallest subnormal {subnormal:.6g}, "
            f"epsilon {epsilon:.6g}"
        )
    presets = [
        {"name": f.name, "e": f.exponent_bits, "m": f.mantissa_bits, "fn": _SPECIALS[f.specials]}
        for f in shown
    ]
    return Interactive(
        script="float_formats",
        alt=(
            "Float-format explorer: the bits of a number as buttons, sliders for the bits of exponent "
            "and mantissa, and the range of each format as a bar"
        ),
        text="\n".join(lines),
        data={
            "presets": presets,
            "opens": names.index(opens),
            "value": value,
            "tries": ["0.1", "1.0625", "5", "464", "65520", "1e-8"],
        },
    )


def draw_bits(bits: int, formats: Sequence[Format]) -> Drawing:
    """The leading bits of a 32-bit pattern in each format's own split: sign, exponent, mantissa.

    Every format must have FP32's exponent, so that its pattern begins with the same bits.
    """
    figure, ax = paper((-3.2, 32.5), (-1.9 * len(formats) - 0.6, 0.2))
    for row, form in enumerate(formats):
        y = -1.9 * (row + 1)
        kept = bits >> (32 - form.bits)
        note(ax, -0.4, y + 0.5, f"{form.name}", ha="right", fontweight="bold")
        for i in range(form.bits):
            field = ORANGE if i == 0 else GREEN if i <= form.exponent_bits else BLUE
            slot(ax, i, y, kept >> (form.bits - 1 - i) & 1, field)
        sign, exponent, mantissa = float_fields(kept, form.exponent_bits, form.mantissa_bits)
        words = f"sign {sign}, exponent field {exponent}, mantissa {mantissa}"
        note(ax, 0, y - 0.35, words, color=FAINT, fontsize=8)
    return figure


def draw_numbers(formats: Sequence[Format], top: float) -> Drawing:
    """All numbers of small formats from 0 to `top`, each a tick.

    Subnormal numbers and zero are short; powers of two from which on the step doubles are long.
    """
    figure, ax = plot(7.0, 0.75 * len(formats) + 0.8)
    for row, form in enumerate(formats):
        size = 2 ** (form.bits - 1)
        values = [
            decode_float(b, form.exponent_bits, form.mantissa_bits, form.specials)
            for b in range(size)
        ]
        smallest = float_limits(form.exponent_bits, form.mantissa_bits, form.specials)[1]
        shown = [v for v in values if v <= top]
        low = [v for v in shown if v < smallest]
        doubling = [v for v in shown if v > smallest and frexp(v)[0] == 0.5]
        rest = [v for v in shown if v >= smallest and v not in doubling]
        for ticks, half, colour, label in (
            (doubling, 0.32, ORANGE, "the step doubles here"),
            (rest, 0.2, BLUE, "other normal numbers"),
            (low, 0.1, GREEN, "zero and subnormal"),
        ):
            ax.vlines(ticks, -row - half, -row + half, color=colour, lw=1.2, label=label)
    ax.set_yticks([-row for row in range(len(formats))], [form.name for form in formats])
    ax.set_xlim(-0.02 * top, 1.02 * top)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    handles, labels = ax.get_legend_handles_labels()
    where = (0.5, 1.0)
    ax.legend(
        handles[:3], labels[:3], loc="lower center", bbox_to_anchor=where, ncols=3, frameon=False
    )
    return figure


def draw_sum_errors(lengths: Sequence[int], errors: Mapping[str, Sequence[float]]) -> Drawing:
    """The relative error of a sum against the number of its terms, one line for each method."""
    figure, ax = plot(7.0, 3.4)
    colours = (RED, ORANGE, BLUE, GREEN, PINK, INK)
    markers = ("o", "s", "^", "D", "v", "x")
    for (name, values), colour, marker in zip(errors.items(), colours, markers, strict=False):
        ax.plot(lengths, values, marker=marker, ms=4, color=colour, lw=1.8, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("number of terms", color=INK)
    ax.set_ylabel("relative error", color=INK)
    ax.legend(frameon=False, fontsize=9, ncols=2)
    return figure


def draw_block_errors(spread: Sequence[float], errors: Mapping[str, Sequence[float]]) -> Drawing:
    """The relative error of the other columns against the size of one outlying column, by format."""
    figure, ax = plot(7.0, 3.2)
    colours = (INK, RED, GREEN, BLUE, PINK)
    markers = ("x", "o", "D", "s", "^")
    for (name, values), colour, marker in zip(errors.items(), colours, markers, strict=False):
        ax.plot(spread, values, marker=marker, ms=4, color=colour, lw=1.8, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("one column is larger by", color=INK)
    ax.set_ylabel("relative error of the others", color=INK)
    ax.legend(frameon=False, fontsize=9, ncols=2)
    return figure
