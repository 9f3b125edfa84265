"""The chapters as a drawing: an arrow from each to those that build directly on it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

COLUMN, ROW, RADIUS, MARGIN = 74, 52, 17, 24
"""Pixels: between columns and between rows, of a circle, around the drawing."""

SWEEPS = 12
"""How often the columns are put in order, each by its neighbours, from left to right and back."""

Place = tuple[int, float]


@dataclass(frozen=True)
class Layout:
    """Column and row of each chapter, and the places that each arrow passes. Columns are centred."""

    places: Mapping[int, Place]
    arrows: Mapping[tuple[int, int], tuple[Place, ...]]


def layout(direct: Mapping[int, Sequence[int]]) -> Layout:
    """By columns: each chapter lies right of all that it builds on, and an arrow passes no chapter.

    direct: for each chapter, in the book's order, those that it builds directly on.
    """
    column: dict[int, int] = {}
    for number, needs in direct.items():
        column[number] = max((column[one] + 1 for one in needs), default=0)
    ways = {
        (one, number): [
            one,
            *((one, number, at) for at in range(column[one] + 1, column[number])),
            number,
        ]
        for number, needs in direct.items()
        for one in needs
    }
    columns: list[list[object]] = [[] for _ in range(max(column.values()) + 1)]
    for number, at in column.items():
        columns[at].append(number)
    for (one, _), way in ways.items():
        for step, stop in enumerate(way[1:-1], start=1):
            columns[column[one] + step].append(stop)
    steps = [step for way in ways.values() for step in pairwise(way)]
    rows = _rows(columns, steps)
    tallest = max(map(len, columns))
    at = {
        stop: (x, rows[stop] + (tallest - len(stops)) / 2)
        for x, stops in enumerate(columns)
        for stop in stops
    }
    return Layout(
        {number: at[number] for number in direct},
        {arrow: tuple(at[stop] for stop in way) for arrow, way in ways.items()},
    )


def _rows(columns: list[list[object]], steps: Sequence[tuple[object, object]]) -> dict[object, int]:
    """A row for each stop, so that few arrows cross: again and again, each column in the order of the means
    of its neighbours' rows; the best of all orders seen is taken.
    """
    before: dict[object, list[object]] = {stop: [] for stops in columns for stop in stops}
    after: dict[object, list[object]] = {stop: [] for stop in before}
    for one, other in steps:
        after[one].append(other)
        before[other].append(one)
    best, fewest = _numbered(columns), _crossings(_numbered(columns), columns, steps)
    for sweep in range(SWEEPS):
        neighbours, order = (before, columns) if sweep % 2 == 0 else (after, columns[::-1])
        row = {stop: float(at) for stop, at in _numbered(columns).items()}
        for stops in order:
            mean = {
                stop: sum(row[n] for n in neighbours[stop]) / len(neighbours[stop])
                if neighbours[stop]
                else row[stop]
                for stop in stops
            }
            stops.sort(key=mean.__getitem__)
            row |= {stop: float(at) for at, stop in enumerate(stops)}
        found = _numbered(columns)
        if (crossings := _crossings(found, columns, steps)) < fewest:
            best, fewest = found, crossings
    return best


def _numbered(columns: Sequence[Sequence[object]]) -> dict[object, int]:
    return {stop: at for stops in columns for at, stop in enumerate(stops)}


def _crossings(
    row: Mapping[object, int],
    columns: Sequence[Sequence[object]],
    steps: Sequence[tuple[object, object]],
) -> int:
    """How many pairs of steps between the same two columns cross."""
    column = {stop: at for at, stops in enumerate(columns) for stop in stops}
    found = 0
    for at, (a, b) in enumerate(steps):
        for c, d in steps[at + 1 :]:
            if column[a] == column[c]:
                found += (row[a] - row[c]) * (row[b] - row[d]) < 0
    return found


def svg(
    direct: Mapping[int, Sequence[int]], title: Callable[[int], str], address: Callable[[int], str]
) -> str:
    """The drawing, a link for each chapter. title, address: of a chapter's page."""
    made = layout(direct)
    width = MARGIN * 2 + COLUMN * max(x for x, _ in made.places.values())
    tallest = max(y for way in made.arrows.values() for _, y in way)
    height = round(MARGIN * 2 + ROW * tallest)

    def point(place: Place) -> tuple[int, int]:
        return MARGIN + COLUMN * place[0], round(MARGIN + ROW * place[1])

    arrows = "".join(
        f'<path class="arrow" d="{_curve([point(place) for place in way])}"/>'
        for way in made.arrows.values()
    )
    circles = "".join(
        f'<a href="{escape(address(number), quote=True)}" aria-label="{escape(title(number), quote=True)}">'
        f"<title>{escape(title(number))}</title>"
        f'<circle cx="{x}" cy="{y}" r="{RADIUS}"/>'
        f'<text x="{x}" y="{y}" dy="0.35em">{number}</text></a>'
        for number, place in made.places.items()
        for x, y in [point(place)]
    )
    said = "; ".join(
        f"{number} builds on {', '.join(map(str, needs))}"
        for number, needs in direct.items()
        if needs
    )
    return (
        f'<div class="course-needs"><svg viewBox="0 0 {width} {height}" role="group" '
        f'aria-label="Chapters, and what each builds directly on: {said}." '
        f'style="max-width:{width}px">{arrows}{circles}</svg></div>'
    )


def _curve(points: Sequence[tuple[int, int]]) -> str:
    """A path through these points that leaves and reaches each of them horizontally."""
    x, y = points[0]
    parts = [f"M{x} {y}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        half = (x0 + x1) // 2
        parts.append(f"C{half} {y0} {half} {y1} {x1} {y1}")
    return "".join(parts)
