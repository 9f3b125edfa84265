"""What a run of the suite counted: exercises, mistakes, notebooks, pages, ...

A test says ``count("mistakes")`` for each thing that it proved; the pytest plugin adds up what the
workers counted, prints the table before pytest's summary, and fails a complete run in which
something of `EXPECTED` was never counted: a check of nothing is no check.
"""

from collections import Counter

EXPECTED = (
    "exercises",
    "mistakes",
    "alternatives",
    "mutants killed",
    "exercises proved now",
    "notebooks as shipped",
    "notebooks solved",
    "pages",
    "browser checks",
)
"""What a complete run counts, in the order of the table."""

OPTIONAL = (
    "mutants that survive, with an argument",
    "exercises that stand by the ledger",
    "exercises that this machine cannot prove whole",
)
"""What may be zero in a complete run."""

_counted: Counter[str] = Counter()


def count(name: str, n: int = 1) -> None:
    """Add `n` to the number of `name` in this run (from any test, in any xdist worker)."""
    if n < 0:
        raise ValueError(f"count({name!r}, {n}): a count does not go down")
    _counted[name] += n


def counted() -> dict[str, int]:
    """What this process has counted so far."""
    return dict(_counted)


def table(totals: dict[str, int]) -> list[tuple[str, int]]:
    """Rows of the table: the known names in their order, then the others by name."""
    known = EXPECTED[:5] + OPTIONAL + EXPECTED[5:]
    others = sorted(set(totals) - set(known))
    return [(name, totals.get(name, 0)) for name in (*known, *others)]


def missing(totals: dict[str, int]) -> list[str]:
    """Names of `EXPECTED` that nothing was counted for."""
    return [name for name in EXPECTED if not totals.get(name)]
