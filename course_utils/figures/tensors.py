"""The drawings of chapter 1: a storage and its tensors, promotion, indexing, masks, gather, variance."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PINK, SKY, Drawing, note, paper, plot, slot

_SHORT = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}
"""Types by the short names that fit into a square."""


def draw_tensors(**named: Tensor) -> Drawing:
    """The one storage behind several tensors, and for each its metadata and the slots it reaches.

    named: contiguous or strided tensors that share the storage of the first.
    """
    first = next(iter(named.values()))
    storage = torch.empty(0, dtype=first.dtype).set_(first.untyped_storage())
    n, top = storage.numel(), 2.0 * len(named)
    figure, ax = paper((-7.2, n + 0.4), (-1.6, top + 0.4))
    for row, (name, x) in enumerate(named.items()):
        y = top - 2.0 * row - 1.0
        note(ax, -7.0, y + 0.75, name, family="monospace", fontweight="bold")
        about = f"shape {tuple(x.shape)} · strides {x.stride()} · offset {x.storage_offset()}"
        note(ax, -7.0, y + 0.15, about, color=FAINT, fontsize=7.5)
        places = torch.arange(n).as_strided(x.shape, x.stride(), x.storage_offset())
        reached = set(places.flatten().tolist())
        for i in range(n):
            if i in reached:
                slot(ax, i, y, storage[i].item(), (BLUE, ORANGE, GREEN, PINK)[row % 4])
    note(ax, -7.0, -0.5, f"storage: {storage.nbytes} bytes", fontweight="bold")
    for i in range(n):
        slot(ax, i, -1, storage[i].item())
    return figure


def draw_promotion(dtypes: Sequence[torch.dtype] = tuple(_SHORT)) -> Drawing:
    """The dtype of a + b for tensors a and b of every two types, asked of torch.promote_types."""
    n = len(dtypes)
    figure, ax = paper((-1.6, n + 0.2), (-0.9, n + 1.4))
    for i, a in enumerate(dtypes):
        note(ax, -0.2, n - i - 0.5, _SHORT[a], ha="right", fontweight="bold")
        note(ax, i + 0.5, n + 0.4, _SHORT[a], ha="center", fontweight="bold")
        for j, b in enumerate(dtypes):
            both = torch.promote_types(a, b)
            slot(ax, j, n - i - 1, _SHORT[both], _colour_of(both), strong=both not in (a, b))
    note(ax, n / 2, -0.5, "thick: neither of the two", ha="center", color=FAINT, fontsize=9)
    return figure


def _colour_of(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return PINK
    return ORANGE if dtype.is_floating_point else SKY


def draw_indexing(x: Tensor, picks: Mapping[str, Tensor]) -> Drawing:
    """A small matrix for each index expression: the elements it picks, and whether as a view.

    x: a matrix whose elements are all different. picks: expression → what it gave.
    """
    rows, columns = x.shape
    wide, across = columns + 1.6, 3
    down = -(-len(picks) // across)
    high = rows + 2.2
    figure, ax = paper((-0.3, across * wide - 1.3), (-down * high + 2.9, 2.4))
    for k, (code, picked) in enumerate(picks.items()):
        left, bottom = (k % across) * wide, -(k // across) * high - rows + 1.0
        shared = picked.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        colour = BLUE if shared else ORANGE
        note(ax, left, bottom + rows + 0.9, code, family="monospace", fontsize=9)
        kind = f"{'view' if shared else 'copy'} {tuple(picked.shape)}"
        note(ax, left, bottom + rows + 0.35, kind, color=FAINT, fontsize=8.5)
        chosen = set(picked.flatten().tolist())
        for i in range(rows):
            for j in range(columns):
                value = x[i, j].item()
                fill = colour if value in chosen else None
                slot(ax, left + j, bottom + rows - 1 - i, value, fill)
    return figure


def draw_masks(masks: Mapping[str, Tensor], tokens: Sequence[str]) -> Drawing:
    """Attention masks side by side, queries down and keys across; filled where allowed."""
    n = len(tokens)
    wide = n + 2.6
    figure, ax = paper((-2.2, len(masks) * wide - 1.2), (-0.4, n + 2.1))
    for k, (title, mask) in enumerate(masks.items()):
        left = k * wide
        note(ax, left + n / 2, n + 1.6, title, ha="center", fontweight="bold")
        allowed = mask.expand(n, n)
        for i, token in enumerate(tokens):
            note(ax, left - 0.2, n - i - 0.5, token, ha="right", fontsize=8.5, color=FAINT)
            note(ax, left + i + 0.5, n + 0.7, token, ha="center", fontsize=8.5, color=FAINT)
            for j in range(n):
                yes = bool(allowed[i, j])
                slot(ax, left + j, n - 1 - i, "✓" if yes else "", GREEN if yes else None)
    return figure


def draw_gather(table: Tensor, index: Tensor, words: Sequence[str], title: str) -> Drawing:
    """The cells that gather(-1, index) picks from a (T, V) table, one in each row."""
    T, V = table.shape
    figure, ax = paper((-3.4, V + 5.0), (-0.4, T + 1.4))
    note(ax, -0.3, T + 0.6, title, ha="right", fontweight="bold")
    note(ax, V + 1.6, T + 0.6, "gathered", ha="left", fontweight="bold")
    for j, word in enumerate(words):
        note(ax, j + 0.5, T + 0.6, word, ha="center", fontsize=8.5, color=FAINT)
    for t in range(T):
        y = T - 1 - t
        picked = int(index[t])
        slot(ax, -1.5, y, picked, GREEN)
        for j in range(V):
            here = j == picked
            slot(ax, j, y, f"{table[t, j].item():.1f}", ORANGE if here else None, strong=here)
        _arrow(ax, (V + 0.2, y + 0.5), (V + 1.4, y + 0.5))
        slot(ax, V + 1.6, y, f"{table[t, picked].item():.1f}", ORANGE)
    return figure


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": INK})


def draw_variances(ratios: Mapping[str, tuple[float, float]]) -> Drawing:
    """For each initialiser, variance out over variance in, forward and backward."""
    figure, ax = plot(6.6, 2.9)
    for k, (forward, backward) in enumerate(ratios.values()):
        for shift, ratio, colour, hatch in (
            (-0.2, forward, BLUE, ""),
            (0.2, backward, ORANGE, "//"),
        ):
            ax.bar(k + shift, ratio, 0.36, color=colour, alpha=0.6, edgecolor=INK, hatch=hatch)
            ax.annotate(
                f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.2g}",
                (k + shift, ratio),
                ha="center",
                va="bottom",
                fontsize=8,
            )
    ax.axhline(1.0, color=INK, linewidth=1, linestyle="--")
    ax.set_yscale("log")
    ax.margins(y=0.1)
    ax.set_xticks(range(len(ratios)), list(ratios))
    ax.set_ylabel("variance out / variance in")
    ax.bar(0, 0, color=BLUE, alpha=0.6, edgecolor=INK, label="activations, forward")
    ax.bar(0, 0, color=ORANGE, alpha=0.6, edgecolor=INK, hatch="//", label="gradients, backward")
    ax.legend(frameon=False, fontsize=8, loc="upper right")
    return figure
