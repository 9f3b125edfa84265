"""The drawings of chapter 19: a matmul cut in two ways, what travels in a block, and where the time goes."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, PAPER, RED, Drawing, note, paper, plot


def _matrix(
    ax: Axes,
    x: float,
    y: float,
    size: tuple[float, float],
    fills: Sequence[str | None],
    axis: int,
) -> None:
    """A rectangle of (width, height) with its lower left corner at (x, y), cut along an axis.

    fills: the colour of each part, None for one that is the same on every rank; axis: 0 cuts rows, 1
    columns.
    """
    width, height = size
    for k, fill in enumerate(fills):
        w = width / len(fills) if axis == 1 else width
        h = height / len(fills) if axis == 0 else height
        at = (x + k * w, y) if axis == 1 else (x, y + height - (k + 1) * h)
        colour, alpha = (FAINT, 0.18) if fill is None else (fill, 0.45)
        ax.add_patch(Rectangle(at, w, h, edgecolor="none", facecolor=colour, alpha=alpha))
        ax.add_patch(Rectangle(at, w, h, fill=False, edgecolor=INK, lw=1.0))


def draw_cuts(world_size: int = 2) -> Drawing:
    """Y = X Wᵀ on several ranks, once with Wᵀ cut by columns and once by rows; a colour is a rank."""
    colours = list(PALETTE[:world_size])
    figure, ax = paper((-0.5, 22.8), (-1.4, 9.6))
    for y, title in ((5.0, "cut by columns: outputs"), (-0.4, "cut by rows: inputs")):
        columns = y > 0
        note(ax, 0, y + 4.0, title, fontsize=11, fontweight="bold")
        _matrix(ax, 0, y, (3.2, 2.2), [None] if columns else colours, 1)
        note(ax, 3.6, y + 1.1, "·", fontsize=16)
        _matrix(ax, 4.2, y - 0.5, (4.0, 3.2), colours, 1 if columns else 0)
        note(ax, 8.7, y + 1.1, "=", fontsize=13)
        if columns:
            _matrix(ax, 9.6, y, (4.0, 2.2), colours, 1)
            note(ax, 14.2, y + 1.5, "each rank has some outputs,", fontsize=9)
            note(ax, 14.2, y + 0.7, "from all inputs: no message", fontsize=9)
        else:
            for k, colour in enumerate(colours):
                _matrix(ax, 9.6 + 4.9 * k, y, (4.0, 2.2), [colour], 1)
                if k:
                    note(ax, 9.6 + 4.9 * k - 0.65, y + 1.1, "+", fontsize=13)
            end = 9.6 + 4.9 * world_size - 0.6
            note(ax, end, y + 1.5, "terms of a sum:", fontsize=9)
            note(ax, end, y + 0.7, "all-reduce", fontsize=9)
        note(ax, 1.6, y + 2.7, "X (tokens, in)", ha="center", fontsize=10)
        note(ax, 6.2, y + 3.2, "Wᵀ (in, out)", ha="center", fontsize=10)
        for k in range(1 if columns else world_size):
            label = "Y (tokens, out)" if columns else f"rank {k}'s term of Y"
            note(ax, 11.6 + 4.9 * k, y + 2.7, label, ha="center", fontsize=10)
    return figure


_STEPS = (
    ("norm", 0),
    ("q k v", 1),
    ("attention", 1),
    ("c_proj", 1),
    ("+", 0),
    ("norm", 0),
    ("c_fc", 1),
    ("gelu", 1),
    ("c_proj", 1),
    ("+", 0),
)


def draw_block(world_size: int = 2) -> Drawing:
    """A block's steps, left to right: where activations are whole, cut by features or by positions."""
    figure, ax = paper((-4.4, 21.6), (-2.4, 6.2))
    for row, (y, title, forward) in enumerate(
        (
            (4.0, "tensor parallel", ("f (backward:\nall-reduce)", "g: all-reduce")),
            (0.2, "with sequence\nparallelism", ("all-gather", "reduce-scatter")),
        )
    ):
        note(ax, -4.3, y + 0.7, title)
        x = 0.0
        for k, (name, inside) in enumerate(_STEPS):
            if k in (1, 4, 6, 9):
                enters = k in (1, 6)
                arrow = FancyArrowPatch(
                    (x + 0.05, y + 0.7),
                    (x + 0.6, y + 0.7),
                    arrowstyle="-|>",
                    color=RED,
                    mutation_scale=11,
                )
                ax.add_patch(arrow)
                label = forward[0 if enters else 1]
                note(ax, x + 0.3, y - 0.55, label, ha="center", fontsize=8, color=RED)
                x += 0.7
            parts = world_size if inside or row else 1
            for rank in range(parts):
                height = 1.4 / parts
                fill = PALETTE[rank] if inside or row else FAINT
                at = (x, y + 1.4 - (rank + 1) * height)
                box = Rectangle(
                    at, 1.75, height, facecolor=fill, alpha=0.35 if inside or row else 0.18
                )
                ax.add_patch(box)
                hatch = "....." if row and not inside else ""
                ax.add_patch(
                    Rectangle(at, 1.75, height, fill=False, edgecolor=INK, lw=0.7, hatch=hatch)
                )
            ax.text(
                x + 0.875,
                y + 0.7,
                name,
                ha="center",
                va="center",
                fontsize=8.5,
                color=INK,
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.2, "alpha": 0.85},
            )
            x += 1.8
    handles = [
        Patch(facecolor=FAINT, alpha=0.3, edgecolor=INK, label="whole, the same on every rank"),
        Patch(facecolor=PALETTE[0], alpha=0.45, edgecolor=INK, label="a rank's features or heads"),
        Patch(
            facecolor=PALETTE[0],
            alpha=0.45,
            edgecolor=INK,
            hatch=".....",
            label="a rank's positions",
        ),
    ]
    ax.legend(handles=handles, frameon=False, fontsize=8.5, ncols=3, loc="lower center")
    return figure


def draw_traffic(
    tokens: Sequence[int],
    sent: Mapping[str, Sequence[int]],
    crossing: float,
    n_embd: int,
    world_size: int,
) -> Drawing:
    """Bytes that each rank sends for one block in one step, against the tokens of the batch."""
    figure, ax = plot(6.6, 3.2)
    for (name, values), colour in zip(sent.items(), (BLUE, ORANGE), strict=False):
        ax.plot(tokens, [v / 2**20 for v in values], color=colour, lw=2, label=name)
    ax.axvline(crossing, color=FAINT, ls=":", lw=1.2)
    low = min(min(v) for v in sent.values()) / 2**20
    ax.text(crossing, low, f"  {crossing:,.0f} tokens", color=FAINT, fontsize=9, va="bottom")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda v, _: f"{v:,.0f}")
    ax.set_title(f"one block, D = {n_embd:,}, {world_size} ranks, BF16", fontsize=10)
    ax.set_xlabel("tokens in the batch of all ranks together")
    ax.set_ylabel("MiB sent by each rank")
    ax.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def draw_saved(kept: Mapping[int, tuple[int, int]], whole_on_every_rank: int) -> Drawing:
    """Bytes that a block saves for backward, by number of ranks: two bars each, without and with
    sequence parallelism.

    kept: number of ranks → bytes of both. whole_on_every_rank: of the first of them, those that do not
    become fewer.
    """
    figure, ax = plot(6.4, 3.2)
    ticks = []
    for k, (n, (tensor, sequence)) in enumerate(kept.items()):
        for x, bytes_, whole in ((3 * k, tensor, whole_on_every_rank), (3 * k + 1, sequence, 0)):
            cut = (bytes_ - whole) / 2**10
            ax.bar(x, cut, bottom=whole / 2**10, color=BLUE, alpha=0.55, width=0.85)
            ax.bar(x, whole / 2**10, color=ORANGE, alpha=0.7, width=0.85)
            ax.text(
                x, bytes_ / 2**10, f"{bytes_ / 2**10:,.0f}", ha="center", va="bottom", fontsize=9
            )
            ticks.append((x, f"{'tensor' if whole else '+ sequence'}\n{n} rank{'s' * (n > 1)}"))
    ax.set_xticks(*zip(*ticks, strict=True), fontsize=8)
    ax.set_ylabel("KiB saved by a block")
    handles = [
        Patch(facecolor=BLUE, alpha=0.55, label="cut: an n-th on each rank"),
        Patch(facecolor=ORANGE, alpha=0.7, label="whole on every rank"),
    ]
    ax.legend(handles=handles, frameon=False, fontsize=9, loc="upper right")
    return figure


def draw_shares(
    widths: Sequence[int], predicted: Sequence[float], measured: Sequence[Sequence[float]]
) -> Drawing:
    """The part of an MLP's time that goes into its all-reduce, against D, predicted and measured.

    measured: several of each width, of which median and range are drawn.
    """
    figure, ax = plot(6.4, 3.0)
    ax.plot(
        widths, [100 * v for v in predicted], color=RED, ls="--", lw=2, label="predicted by α-β"
    )
    for k, (width, found) in enumerate(zip(widths, measured, strict=True)):
        low, middle, high = (100 * sorted(found)[i] for i in (0, len(found) // 2, -1))
        label = "measured here: median and range" if k == 0 else None
        below_above = [[middle - low], [high - middle]]
        ax.errorbar(width, middle, below_above, color=BLUE, fmt="o", capsize=4, lw=1.5, label=label)
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(widths), [f"{w:,}" for w in widths])
    ax.set_ylim(0, 100)
    ax.set_xlabel("features D")
    ax.set_ylabel("% of the time in the all-reduce")
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    return figure


def draw_ratios(widths: Sequence[int], ratios: Mapping[str, Sequence[float]]) -> Drawing:
    """Seconds on the wire for a second of matmuls, against D, for two links."""
    figure, ax = plot(6.4, 3.2)
    for (name, values), colour in zip(ratios.items(), (GREEN, RED), strict=False):
        ax.plot(widths, values, color=colour, marker="o", lw=2, label=name)
    ax.axhline(1.0, color=FAINT, ls=":", lw=1.2)
    ax.text(widths[-1], 1.12, "as long as the matmuls", color=FAINT, fontsize=9, ha="right")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(list(widths), [f"{w:,}" for w in widths])
    ax.set_xlabel("features D")
    ax.set_ylabel("wire time / matmul time")
    ax.set_title("a block's forward pass, BF16, n = 8", fontsize=10)
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    return figure
