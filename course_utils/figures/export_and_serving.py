"""The drawings of chapter 28: forms of a model, a graph, a cache with positions, differences, start-up."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import torch
from matplotlib.patches import Arc, FancyBboxPatch, Rectangle
from torch import Tensor

from .style import BLUE, FAINT, GREEN, INK, ORANGE, PALETTE, PAPER, PINK, Drawing, note, paper, plot

# ------------------------------------------------------------------------------ forms


def draw_forms() -> Drawing:
    """The forms that a trained model takes, what makes each, and what each needs to run."""
    figure, ax = paper((-0.3, 21.5), (-9.9, 1.3))
    boxes = {
        "module": (0, -4.3, 4.6, "nn.Module", "your class, and weights", INK),
        "weights": (7.1, 0, 5.3, "model.safetensors", "weights by name", PINK),
        "program": (7.1, -4.3, 5.3, "ExportedProgram, .pt2", "a graph, and weights", BLUE),
        "trace": (7.1, -8.6, 5.3, "TorchScript, .pt", "a trace, and weights", FAINT),
        "theirs": (
            15.6,
            0,
            5.7,
            "transformers, PEFT, vLLM, …",
            "their class for these names",
            PINK,
        ),
        "onnx": (15.6, -3.1, 5.7, ".onnx", "onnxruntime: no torch", GREEN),
        "compiled": (15.6, -5.5, 5.7, "AOTInductor, .pt2", "machine code: no Python", ORANGE),
        "libtorch": (15.6, -8.6, 5.7, "libtorch", "deprecated", FAINT),
    }
    for x, y, width, title, below, colour in boxes.values():
        ax.add_patch(
            FancyBboxPatch(
                (x, y - 0.85),
                width,
                1.7,
                boxstyle="round,pad=0,rounding_size=0.2",
                facecolor=PAPER,
                edgecolor=colour,
                lw=1.5,
            )
        )
        note(ax, x + width / 2, y + 0.28, title, ha="center", fontsize=9)
        note(ax, x + width / 2, y - 0.38, below, ha="center", fontsize=8, color=FAINT)
    arrows = [  # from, to, label, where it stands
        ((2.3, -3.45), (7.1, 0), "state_dict", (3.2, -1.6)),
        ((4.6, -4.3), (7.1, -4.3), "torch.export", (5.85, -3.9)),
        ((2.3, -5.15), (7.1, -8.6), "torch.jit.trace", (2.9, -7.2)),
        ((12.4, 0), (15.6, 0), "", (0, 0)),
        ((12.4, -4.1), (15.6, -3.1), "torch.onnx", (13.6, -3.2)),
        ((12.4, -4.5), (15.6, -5.5), "aoti_compile_…", (13.4, -5.5)),
        ((12.4, -8.6), (15.6, -8.6), "", (0, 0)),
    ]
    for start, end, label, place in arrows:
        ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": INK, "lw": 1})
        note(ax, *place, label, ha="center", fontsize=8)
    return figure


# ------------------------------------------------------------------------------ a graph


def _shape(node: Any) -> str:
    value = node.meta.get("val")
    return f"({', '.join(map(str, value.shape))})" if isinstance(value, Tensor) else ""


def _what(node: Any) -> str:
    """A node in a word: its operation, or its name for an argument."""
    if node.op != "call_function":
        return "output" if node.op == "output" else node.name
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target).removeprefix("aten.").removesuffix(".default")
    return node.target.__name__


def draw_graph(
    panels: Mapping[str, torch.export.ExportedProgram], names: Mapping[str, str]
) -> Drawing:
    """The nodes of small programs in their order, and arcs to those that use them.

    panels: title → program. names: what to write for a symbol of a size, "s23" → "B". Parameters are
    left out.
    """
    graphs = {}
    for title, program in panels.items():
        weights = program.graph_signature.inputs_to_parameters
        graphs[title] = [n for n in program.graph.nodes if n.name not in weights]
    longest = max(map(len, graphs.values()))
    width = 9.6
    figure, ax = paper((-0.2, width * len(graphs)), (-longest * 0.95 - 0.3, 1.1))
    for left, (title, nodes) in zip(count(0, width), graphs.items(), strict=False):
        note(ax, left + 2.5, 0.65, title, fontsize=10, weight="bold")
        row = {node: -0.95 * n - 0.4 for n, node in enumerate(nodes)}
        for node, y in row.items():
            colour = {"placeholder": BLUE, "output": ORANGE}.get(node.op, INK)
            ax.plot([left + 2.3], [y], "o", color=colour, ms=5)
            shape = _shape(node)
            for symbol, letter in names.items():
                shape = shape.replace(symbol, letter)
            note(ax, left + 2.6, y, _what(node), ha="left", fontsize=9, color=colour)
            note(ax, left + 7.2, y, shape, ha="left", fontsize=8, color=FAINT)
            for user in node.users:
                if user in row:
                    high = y - row[user]
                    middle = (left + 2.3, (y + row[user]) / 2)
                    ax.add_patch(
                        Arc(
                            middle,
                            min(0.55 * high, 4.2),
                            high,
                            theta1=90,
                            theta2=270,
                            color=FAINT,
                            lw=1,
                        )
                    )
    return figure


# ------------------------------------------------------------------------------ a cache with positions


def draw_static_cache(position: Sequence[int], T: int, capacity: int, visible: Tensor) -> Drawing:
    """The places of each row of a cache: filled, new or free; beside it, which of them each new token sees.

    visible: (B, 1, T, capacity), True where it may attend.
    """
    B, gap = len(position), 1.6
    width = capacity + gap + 2
    figure, ax = paper((-2.6, 2 * width), (-B * (T + 0.7) - 0.4, 1.3))
    note(ax, capacity / 2, 0.75, "places of the cache", ha="center", fontsize=9)
    note(ax, width + 1.2 + capacity / 2, 0.75, "what each new token sees", ha="center", fontsize=9)
    for row in range(B):
        top = -row * (T + 0.7)
        note(ax, -0.3, top - T / 2, f"row {row}", ha="right", fontsize=9)
        for place in range(capacity):
            new = position[row] <= place < position[row] + T
            filled = place < position[row]
            colour = ORANGE if new else BLUE if filled else PAPER
            box = (place + 0.04, top - T / 2 - 0.46), 0.92, 0.92
            ax.add_patch(Rectangle(*box, facecolor=colour, alpha=0.75, edgecolor=FAINT, lw=0.6))
            label = f"t{place - position[row]}" if new else ""
            note(ax, place + 0.5, top - T / 2, label, ha="center", fontsize=8)
        for t in range(T):
            y = top - t - 0.96
            note(ax, width + 0.9, y + 0.46, f"t{t}", ha="right", fontsize=8)
            for place in range(capacity):
                sees = bool(visible[row, 0, t, place])
                box = (width + 1.2 + place + 0.04, y), 0.92, 0.92
                ax.add_patch(
                    Rectangle(
                        *box,
                        facecolor=GREEN if sees else PAPER,
                        alpha=0.75,
                        edgecolor=FAINT,
                        lw=0.6,
                    )
                )
    return figure


# ------------------------------------------------------------------------------ measured


def draw_differences(
    found: Mapping[str, Sequence[float]], sizes: Sequence[tuple[int, int]]
) -> Drawing:
    """The largest difference of each form, on each size of input: name → one number a size."""
    figure, ax = plot(7.2, 3.1)
    for (name, values), colour, marker in zip(found.items(), PALETTE, "os^Dv", strict=False):
        ax.plot(
            range(len(values)), list(values), marker, color=colour, label=name, ms=6, alpha=0.85
        )
    ax.set_yscale("log")
    ax.set_xticks(range(len(sizes)), [f"{B} × {T}" for B, T in sizes], fontsize=8)
    ax.set_xlabel("rows × tokens")
    ax.set_ylabel("largest difference")
    ax.legend(frameon=False, fontsize=8)
    return figure


def draw_startup(found: Mapping[str, Mapping[str, float]]) -> Drawing:
    """CPU seconds from nothing to a first result, in bars of parts: form → part → seconds."""
    figure, ax = plot(7.2, 0.55 * len(found) + 1.0)
    parts = list(dict.fromkeys(part for one in found.values() for part in one))
    for row, one in enumerate(found.values()):
        begun = 0.0
        for part, colour in zip(parts, PALETTE, strict=False):
            ax.barh(
                row,
                one.get(part, 0.0),
                left=begun,
                color=colour,
                label=part if row == 0 else None,
                height=0.6,
            )
            begun += one.get(part, 0.0)
        note(ax, begun, row, f"  {begun:.2f} s", ha="left", fontsize=9)
    ax.set_yticks(range(len(found)), list(found))
    ax.invert_yaxis()
    ax.margins(x=0.15)
    ax.set_xlabel("CPU seconds")
    ax.legend(frameon=False, fontsize=8, ncols=len(parts), loc="lower right", bbox_to_anchor=(1, 1))
    return figure
