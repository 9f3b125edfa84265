"""What is handed out and what counts: the exercises with their points, the due date, what late costs.

A plan is one JSON file, `plan.json`. `course release` writes it beside an edition; `course grade`
reads it, so that what is graded is what was handed out.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

from course_utils.grading import UnknownKey, chapters, exercises_of, find

VERSION = 1
DAY = timedelta(days=1)
NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
LONGEST_GRACE = 525_600
A_TIME = "2026-12-01T18:00+01:00"


@dataclass(frozen=True)
class Item:
    """One exercise that counts. key: of the exercise. points: at most."""

    key: str
    points: float

    def __post_init__(self) -> None:
        if isinstance(self.points, bool) or not 0 < self.points < inf:
            raise ValueError(
                f"{self.key}: an exercise is worth a number of points above 0; came {self.points}"
            )


@dataclass(frozen=True)
class Late:
    """What a late submission loses of its points.

    per_day: share for each day begun after the grace. most: the largest share that is lost.
    grace_minutes: what is not late yet. closes_after_days: later submissions earn nothing; None:
    there is no end.
    """

    per_day: float = 0.0
    most: float = 1.0
    grace_minutes: int = 0
    closes_after_days: int | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.per_day <= 1 and 0 <= self.most <= 1):
            raise ValueError("what a late day costs is a share from 0 to 1")
        if not 0 <= self.grace_minutes <= LONGEST_GRACE:
            raise ValueError(f"a grace has from 0 to {LONGEST_GRACE} minutes")
        if self.closes_after_days is not None and not self.closes_after_days >= 0:
            raise ValueError("submissions close some days after the due date, or never")

    def penalty(self, due: datetime | None, submitted: datetime | None) -> float:
        """The share of the points that is lost, from 0 to 1; 0 where a time is unknown."""
        if due is None or submitted is None:
            return 0.0
        over = submitted - due - timedelta(minutes=self.grace_minutes)
        if over <= timedelta(0):
            return 0.0
        days = -(-over // DAY)
        if self.closes_after_days is not None and days > self.closes_after_days:
            return 1.0
        return min(days * self.per_day, self.most)


@dataclass(frozen=True)
class Plan:
    """title: of the assignment. items: in order. due: with its time zone. hidden: are answers left out?

    names: of the notebooks that are handed out.
    """

    title: str
    items: tuple[Item, ...]
    due: datetime | None = None
    late: Late = field(default_factory=Late)
    hidden: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        keys = [item.key for item in self.items]
        if not keys:
            raise ValueError("a plan without an exercise grades nothing")
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"named twice: {', '.join(twice)}")
        if self.due is not None and self.due.tzinfo is None:
            raise ValueError(f"a due date needs its time zone: {A_TIME}")

    @property
    def points(self) -> float:
        return sum(item.points for item in self.items)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(item.key for item in self.items)

    def item(self, key: str) -> Item:
        return next(item for item in self.items if item.key == key)

    def to_json(self) -> str:
        data = asdict(self) | {"version": VERSION, "due": self.due and self.due.isoformat()}
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Raises ValueError, saying what is wrong, for a text that is no plan of this version."""
        try:
            data: dict[str, Any] = json.loads(text)
            version = data.pop("version")
            if version != VERSION:
                raise ValueError(f"a plan of version {version}; this course reads {VERSION}")
            due = data.pop("due", None)
            return cls(
                title=data["title"],
                items=tuple(Item(**item) for item in data["items"]),
                due=datetime.fromisoformat(due) if due else None,
                late=Late(**data.get("late", {})),
                hidden=data.get("hidden", False),
                names=tuple(data.get("names", ())),
            )
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"this is no plan: {type(error).__name__}: {error}") from error

    @classmethod
    def read(cls, path: Path) -> "Plan":
        return cls.from_json(path.read_text(encoding="utf-8"))


def time_of(text: str) -> datetime:
    """A due date as it is written on a command line. Raises ValueError, which says how."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"a due date is {A_TIME}; came {text!r}") from None
    if when.tzinfo is None:
        raise ValueError(f"a due date needs its time zone: {A_TIME}; came {text!r}")
    return when


def by_name(text: str) -> str:
    """The chapter's name in place of its number: "02" and "2" are "strides", as its notebook says.

    Raises UnknownKey for a number that no chapter with exercises has.
    """
    number = re.match(r"\d{1,3}(?![^.=])", text)
    if not number:
        return text
    numbered = {int(p.stem[:2]): p.stem[3:] for p in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")}
    there = {n: name for n, name in sorted(numbered.items()) if name in chapters()}
    if int(number[0]) not in there:
        listed = ", ".join(f"{n:02} {name}" for n, name in there.items())
        raise UnknownKey(f"no chapter {text!r}; there are: {listed}")
    return there[int(number[0])] + text[number.end() :]


def plan_of(names: Sequence[str], title: str = "", **settings: Any) -> Plan:
    """The plan of chapters ("strides") and exercises ("strides.flat_index", "strides.flat_index=5").

    A chapter may be given by its number ("02"). Points are the exercises' own unless said. Raises
    UnknownKey, which names the nearest ones.
    """
    names = [by_name(name) for name in names]
    points: dict[str, float] = {}
    for name in names:
        key, _, said = name.partition("=")
        if "." in key:
            points[key] = float(said) if said else find(key).points
        else:
            points |= {one.key: one.points for one in exercises_of(key).values()}
    items = tuple(Item(key, worth) for key, worth in points.items())
    return Plan(title or ", ".join(names), items, **settings)
