"""Records of a class that never was: drawn by seed, in the proportions that one says."""

import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from course_utils.classroom.marks.plan import Item, Late, Plan
from course_utils.classroom.marks.record import (
    DAMAGED,
    FAILED,
    GRADED,
    INSIDE,
    MISSING,
    NOT_ATTEMPTED,
    PASSED,
    Record,
    Result,
    Rung,
)

KEYS = (
    "strides.flat_index",
    "strides.contiguous_strides",
    "strides.is_contiguous",
    "strides.view_strides",
)
LADDER = {"signature and shape": 3, "worked by hand": 4, "random cases": 40, "edge cases": 4}
MISTAKES = {
    "strides.flat_index": "You left the offset out: a slice begins in the middle of its storage.",
    "strides.view_strides": "You count the stride in bytes: `stride` counts elements.",
}
ZONE = timezone(timedelta(hours=1), "CET")
DUE = datetime(2026, 11, 20, 18, 0, tzinfo=ZONE)
WITNESS = "secret-value-17"
"""Stands in every sentence and call of a check that a student may not see."""

HOSTILE = (
    '<script>alert("x")</script>',
    '"><img src=x onerror=alert(1)>',
    "&lt;already escaped&gt;",
    "../../etc/passwd",
    "evil\u202ecod.exe",
    "nul\x00bell\x07\x1b[31m",
    '=HYPERLINK("http://x.test")',
    "@SUM(1)",
    "half \ud800 of a pair",
    "Points Possible",
    "a" * 3000,
    "",
    " ",
    "CON",
    "ADA",
    "ada",
    "Ada ",
)
SCRIPTS = ("王小明", "Ольга Иванова", "عمر الخيام", "Zoë Brontë-Łuczak", "เมฆ", "🦊 fox")


def plan_of(*keys: str, **settings) -> Plan:
    items = tuple(Item(key, float(i % 3 + 1)) for i, key in enumerate(keys or KEYS))
    return Plan("Strides & views", items, **{"due": DUE, "late": Late(0.2, 0.6, 10)} | settings)


def passed(key: str, worth: float = 1.0, seconds: float = 0.01) -> Result:
    rungs = tuple(Rung(name, total, total) for name, total in LADDER.items())
    return Result(key, PASSED, worth, worth, rungs, seconds=seconds)


def failed(
    key: str,
    worth: float = 1.0,
    rung: str = "random cases",
    diagnosis: str | None = None,
    hand: bool = False,
    seconds: float = 0.02,
) -> Result:
    """A failure at this rung. Its sentence and call hold `WITNESS`."""
    names = list(LADDER)
    place = names.index(rung)
    rungs = tuple(
        Rung(name, total if i < place else total // 2 if i == place else 0, total)
        for i, (name, total) in enumerate(LADDER.items())
    )
    return Result(
        key,
        FAILED,
        round(worth * place / len(names), 4),
        worth,
        rungs,
        failed_rung=rung,
        sentence=f"expected 7; came {WITNESS}",
        called=f"f({WITNESS})",
        hand=hand,
        diagnosis=diagnosis,
        seconds=seconds,
        notes=(f"a note of {WITNESS}",),
    )


def record_of(student: str, *results: Result, **fields) -> Record:
    return Record(student, GRADED, results, **{"isolation": "bubblewrap", "seconds": 0.05} | fields)


def damaged(student: str, why: str = "the notebook's JSON ends in the middle") -> Record:
    return Record(student, DAMAGED, (), files=("answers.ipynb",), problem=why)


def perfect(plan: Plan, n: int) -> list[Record]:
    return [
        record_of(f"student{i:03d}", *(passed(item.key, item.points) for item in plan.items))
        for i in range(n)
    ]


def drawn(n: int, seed: int = 0, plan: Plan | None = None) -> list[Record]:
    """n submissions: most right, some failed, some not attempted, a few late, a few damaged."""
    plan = plan or plan_of()
    rng = random.Random(seed)
    records = []
    for i in range(n):
        name = SCRIPTS[i] if i < len(SCRIPTS) else f"student{i:03d}"
        if rng.random() < 0.03:
            records.append(damaged(name))
            continue
        skill = rng.random()
        results = tuple(result_of(rng, skill, item, i) for i, item in enumerate(plan.items))
        after = timedelta(hours=rng.choice([-30, -3, -1, 2, 30]) if rng.random() < 0.2 else -2)
        records.append(
            record_of(
                name,
                *results,
                files=("strides.ipynb",),
                digest=f"{rng.getrandbits(256):064x}",
                seconds=sum(r.seconds for r in results) + 0.01,
                submitted=DUE + after,
                penalty=plan.late.penalty(DUE, DUE + after),
            )
        )
    return records


def result_of(rng: random.Random, skill: float, item: Item, place: int) -> Result:
    """The later an exercise, the harder."""
    luck, seconds = rng.random(), rng.uniform(0.002, 0.03) * (place + 1)
    if luck < 0.35 + 0.6 * skill - 0.1 * place:
        result = passed(item.key, item.points, seconds)
    elif luck > 0.97:
        result = Result(item.key, rng.choice([NOT_ATTEMPTED, MISSING]), 0.0, item.points)
    else:
        rung = rng.choices(list(LADDER), [1, 3, 5, 3])[0]
        mistake = MISTAKES.get(item.key) if rng.random() < 0.6 else None
        hand = rung == "worked by hand"
        result = failed(item.key, item.points, rung, mistake, hand, seconds)
    return replace(result, guarantee=INSIDE) if item.key.endswith("view_strides") else result
