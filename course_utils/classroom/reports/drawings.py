"""The drawings of the class report, as shapes with their places. `templates/parts.html` writes them as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from course_utils.classroom.marks.align import OUTCOMES
from course_utils.classroom.marks.text import number

from .tally import ClassFigures
from .wording import CLASSES, MARKS, span_of


@dataclass(frozen=True)
class Rectangle:
    """kind: its CSS class. round: the radius of its corners."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    round: int = 0
    shape = "bar"


@dataclass(frozen=True)
class Text:
    """kind: "muted", "on a bar" or "". anchor: which end of it is at x."""

    text: str
    x: float
    y: float
    size: int
    anchor: str = ""
    kind: str = ""
    shape = "text"


@dataclass(frozen=True)
class Axis:
    """A level line from x to `to`."""

    x: float
    y: float
    to: float
    shape = "line"


@dataclass(frozen=True)
class Drawing:
    """name: of its parts on the page. title, desc: what a screen reader says."""

    name: str
    title: str
    desc: str
    width: int
    height: int
    shapes: Sequence[Rectangle | Text | Axis]


def histogram_of(bins: Sequence[tuple[float, float, int]]) -> Drawing:
    """Submissions by points; every bar carries its number. bins: (from, to, how many)."""
    width, height, bottom, top = 480, 190, 40, 24
    highest = max(count for *_, count in bins) or 1
    step = width / len(bins)
    shapes: list[Rectangle | Text | Axis] = []
    for i, (low, _, count) in enumerate(bins):
        tall = (height - bottom - top) * count / highest
        x, y = i * step, height - bottom - tall
        if count:
            shapes.append(Rectangle("bar", x + 2, y, step - 4, tall, round=2))
            shapes.append(Text(str(count), x + step / 2, y - 6, 15, "middle"))
        shapes.append(_below(x, height - bottom, low, "start" if i == 0 else "middle"))
    shapes.append(_below(float(width), height - bottom, bins[-1][1], "end"))
    shapes.append(Text("points", width / 2, height - 3, 14, "middle", "muted"))
    shapes.append(Axis(0, height - bottom, width))
    said = "; ".join(f"{span_of(bins, i)}: {count}" for i, (*_, count) in enumerate(bins) if count)
    return Drawing(
        "points", "Submissions by points", said or "no submission", width, height, shapes
    )


def _below(x: float, axis: int, value: float, anchor: str) -> Text:
    return Text(number(value), x, axis + 20, 13, anchor, "muted")


def stacked_bars(found: ClassFigures) -> Drawing | None:
    """One bar an exercise, split by outcome; each part that has room carries its mark and number.

    None where no submission could be read.
    """
    if not found.read:
        return None
    width, row = 480, 34
    shapes: list[Rectangle | Text | Axis] = []
    said = []
    for i, one in enumerate(found.exercises):
        y, x = i * row * 1.35, 0.0
        shapes.append(Text(one.key, 0, y + 14, 14))
        for name in OUTCOMES:
            wide = width * (one.outcomes[name] / one.read)
            if one.outcomes[name]:
                shapes.append(Rectangle(f"part {CLASSES[name]}", x, y + 19, wide, 14))
                label = f"{MARKS[name]} {one.outcomes[name]}"
                if wide > 12 * len(label):
                    shapes.append(Text(label, x + 6, y + 30.5, 12, kind="on a bar"))
            x += wide
        counts = ", ".join(
            f"{one.outcomes[name]} {name}" for name in OUTCOMES if one.outcomes[name]
        )
        said.append(f"{one.key}: {counts}")
    height = round(len(found.exercises) * row * 1.35)
    return Drawing("outcomes", "Outcome by exercise", "; ".join(said), width, height, shapes)
