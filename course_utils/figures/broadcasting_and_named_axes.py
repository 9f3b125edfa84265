"""The drawings of chapter 3: shapes aligned, a loss over all pairs, and an image cut into tokens."""

from collections.abc import Sequence

from torch import Tensor

from course_utils.reference.broadcasting_and_named_axes import broadcast_shape

from .interactive import Interactive
from .style import BLUE, FAINT, GREEN, ORANGE, PALETTE, RED, Drawing, note, paper, slot


def draw_alignment(shapes: dict[str, tuple[int, ...]]) -> Drawing:
    """Shapes below one another, flush right, with what each axis does; the result, or the clash.

    shapes: by the name that is written beside each.
    """
    ndim = max(map(len, shapes.values()))
    aligned = {name: (1,) * (ndim - len(s)) + tuple(s) for name, s in shapes.items()}
    columns = list(zip(*aligned.values(), strict=True))
    figure, ax = paper((-5.5, ndim * 1.4 + 4.5), (-1.6 * len(shapes) - 2.0, 1.2))
    for axis in range(ndim):
        note(ax, axis * 1.4 + 0.5, 0.7, f"{axis - ndim}", ha="center", color=FAINT, fontsize=8)
    note(ax, -0.4, 0.7, "axis", ha="right", color=FAINT, fontsize=8)
    for row, (name, shape) in enumerate(shapes.items()):
        y = -1.6 * row - 1.0
        note(ax, -0.4, y + 0.5, f"{name}  {_written(shape)}", ha="right")
        for axis, size in enumerate(aligned[name]):
            absent = axis < ndim - len(shape)
            repeated = size == 1 and any(other != 1 for other in columns[axis])
            fill = ORANGE if repeated else None if absent else BLUE
            slot(ax, axis * 1.4, y, "(1)" if absent else size, fill)
    y = -1.6 * len(shapes) - 1.3
    sizes = [set(column) - {1} for column in columns]
    for axis, found in enumerate(sizes):
        clash = len(found) > 1
        label = "✗" if clash else max(found, default=1)
        slot(ax, axis * 1.4, y, label, RED if clash else GREEN, strong=True)
    fits = all(len(found) < 2 for found in sizes)
    result = _written(tuple(max(found, default=1) for found in sizes)) if fits else "error"
    note(ax, -0.4, y + 0.5, f"result  {result}", ha="right", fontweight="bold")
    legend = ["orange: repeated"]
    if any(len(shape) < ndim for shape in shapes.values()):
        legend.append("(1): no axis here, counts as 1")
    if not fits:
        legend.append("✗: two sizes other than 1")
    for line, text in enumerate(legend):
        note(ax, ndim * 1.4, y + 2.1 - 0.7 * line, text, color=FAINT, fontsize=8)
    return figure


def _written(shape: tuple[int, ...]) -> str:
    """A shape as Python writes it."""
    return str(tuple(shape))


def draw_pairs(outputs: Sequence[float], targets: Sequence[float]) -> Drawing:
    """The table that a column of outputs minus a row of targets makes; the diagonal was meant."""
    n, m = len(outputs), len(targets)
    figure, ax = paper((-3.6, m + 5.5), (-n - 0.6, 1.2))
    note(ax, -0.3, 0.5, "targets (N,)", ha="right", color=FAINT, fontsize=8)
    for j, target in enumerate(targets):
        note(ax, j + 0.5, 0.5, f"{target:g}", ha="center", fontweight="bold")
    for i, output in enumerate(outputs):
        note(ax, -0.3, -i - 0.5, f"{output:g}", ha="right", fontweight="bold")
        for j, target in enumerate(targets):
            meant = i == j
            slot(ax, j, -i - 1, f"{output - target:g}", BLUE if meant else ORANGE, strong=meant)
    note(ax, -1.2, -n / 2, "outputs (N, 1)", ha="center", rotation=90, color=FAINT, fontsize=8)
    note(ax, m + 0.4, -0.5, "blue: meant", fontsize=8)
    note(ax, m + 0.4, -1.3, "orange: averaged as well", fontsize=8)
    return figure


def draw_patches(image: Tensor, patches: Tensor, size: int) -> Drawing:
    """An image of one channel, coloured by patch, and beside it the tokens that it becomes.

    image: (height, width). patches: (number, size · size), as `patchify` gives them.
    """
    height, width = image.shape
    number, features = patches.shape
    rows = max(height, number)
    figure, ax = paper((-0.3, width + 3.4 + features), (-rows - 0.3, 1.2))
    note(ax, 0, 0.6, "image", fontweight="bold")
    for i in range(height):
        for j in range(width):
            patch = (i // size) * (width // size) + j // size
            slot(ax, j, -i - 1, int(image[i, j]), PALETTE[patch % len(PALETTE)])
    left = width + 3.0
    note(ax, left, 0.6, "tokens", fontweight="bold")
    for patch in range(number):
        note(ax, left - 0.3, -patch - 0.5, f"{patch}", ha="right", color=FAINT, fontsize=8)
        for feature in range(features):
            colour = PALETTE[patch % len(PALETTE)]
            slot(ax, left + feature, -patch - 1, int(patches[patch, feature]), colour)
    return figure


EXAMPLES = {
    "bias": ((2, 5, 8), (8,)),
    "mask": ((2, 4, 5, 5), (2, 1, 1, 5)),
    "all pairs": ((6, 1, 3), (4, 3)),
    "a silent bug": ((32, 1), (32,)),
    "an error": ((2, 3), (2,)),
}


def broadcast_explorer(*shapes: tuple[int, ...]) -> Interactive:
    """Two or three shapes to type in: how they align, the strides of each, the result or the clash.

    shapes: those that it begins with. Raises ValueError where they are not two or three.
    """
    if not 2 <= len(shapes) <= 3:
        raise ValueError(f"two or three shapes to begin with; came {len(shapes)}")
    try:
        result = str(broadcast_shape(*shapes))
    except ValueError as error:
        result = f"error: {error}"
    return Interactive(
        script="broadcast_explorer",
        alt="Broadcasting: shapes aligned at their last axes, what is repeated, and what comes out",
        text=(
            "Broadcasting (interactive in JupyterLab and on the page)\n"
            f"{' and '.join(map(str, shapes))} → {result}"
        ),
        data={
            "shapes": [list(shape) for shape in shapes],
            "examples": [
                {"label": label, "shapes": [list(shape) for shape in example]}
                for label, example in EXAMPLES.items()
            ],
        },
    )
