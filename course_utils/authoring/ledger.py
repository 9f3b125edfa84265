"""The ledger: what was proved of each exercise, by the digest of all that its proofs depend on.

A run of the suite proves what has no entry, or an entry under another digest or other versions, and
a sample of the rest; what is left stands by its entry. `make prove` proves everything and writes
the file anew. An entry that claims what a proof does not give fails the run that proves it.
"""

import json
import os
import platform
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from course_utils.authoring.dependencies import ROOT, closure, digest
from course_utils.files import write_whole

LEDGER, PROVE, SEED = "COURSE_LEDGER", "COURSE_PROVE", "COURSE_SEED"
"""Variables: another file; "all" or "stale" for what is to be proved and written; the sample's seed."""

SHARE = 0.02
"""Of the exercises that stand by the ledger, so many are proved all the same: one at least."""

PROOFS = ("course_utils.authoring.proofs",)
"""What every proof depends on begins here: see `dependencies`."""

LIBRARIES = ("torch", "numpy", "hypothesis")
NO_ENTRY, CHANGED, VERSIONS, POSSIBLE = "no entry", "changed", "other versions", "possible here"
ASKED, DRAWN = "asked for", "drawn"

Result = int | dict[str, int]


@dataclass(frozen=True)
class Entry:
    """What was proved of one exercise.

    digest: of the code. under: the system and the versions. proofs: by name, how many things each
    has checked (of mutants: made, killed, surviving). unproved: by name, why not on that machine.
    """

    digest: str
    under: str
    proofs: dict[str, Result]
    unproved: dict[str, str]

    def missing(self, names: Iterable[str]) -> list[str]:
        """Of these proofs, those that the entry says nothing about."""
        return [name for name in names if name not in self.proofs | self.unproved]


def file() -> Path:
    """Where the ledger lies: the variable LEDGER names, or tests/ledger.json."""
    return Path(os.environ.get(LEDGER) or ROOT / "tests" / "ledger.json")


def read(path: Path | None = None) -> dict[str, Entry]:
    """The entries by key; none where there is no file. Raises ValueError for one that is damaged."""
    path = path or file()
    if not path.exists():
        return {}
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {key: Entry(**row) for key, row in rows.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no ledger ({error}); `make prove` writes it anew") from error


def write(entries: Mapping[str, Entry], path: Path | None = None) -> None:
    """One line an exercise, sorted, so that a change of one is a change of one line."""
    path = path or file()
    lines = (
        f"{json.dumps(key)}: {json.dumps(asdict(entry), sort_keys=True, ensure_ascii=False)}"
        for key, entry in sorted(entries.items())
    )
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


# ------------------------------------------------------------------ what is due


@cache
def under() -> str:
    """The system and the versions that a verdict may depend on."""
    python = ".".join(platform.python_version_tuple()[:2])
    found = [f"{name} {version(name)}" for name in LIBRARIES]
    return ", ".join([f"{platform.system()} {platform.machine()}", f"Python {python}", *found])


@cache
def digest_of(chapter: str) -> str:
    """Of all code that the proofs of a chapter's exercises depend on, the proofs' own included."""
    return digest(closure([*PROOFS, f"course_utils.exercises.{chapter}"]))


def stale(entry: Entry | None, chapter: str, names: Iterable[str], possible: Iterable[str]) -> str:
    """Why an exercise must be proved; "" where its entry is current and whole.

    names: of the proofs that are due. possible: those of them that this machine can give.
    """
    if entry is None or entry.missing(names):
        return NO_ENTRY
    if entry.under != under():
        return VERSIONS
    if entry.digest != digest_of(chapter):
        return CHANGED
    return POSSIBLE if set(entry.unproved) & set(possible) else ""


def seed() -> int:
    """Of this run's sample. The pytest plugin sets it, once for all workers, and prints it."""
    return int(os.environ[SEED])


def sample(keys: Iterable[str], seed: int, share: float = SHARE) -> set[str]:
    """So many of the keys that one is among them, if there is any."""
    ordered = sorted(keys)
    drawn = min(len(ordered), max(1, round(share * len(ordered))))
    return set(random.Random(seed).sample(ordered, drawn))


def due(reasons: Mapping[str, str], seed: int, prove: str = "") -> dict[str, str]:
    """Of all exercises those to prove in this run, with the reason.

    reasons: by key, why its entry does not hold (see `stale`). prove: "all", "stale" (without a
    sample), or "" for what the suite does.
    """
    if prove not in ("", "all", "stale"):
        raise ValueError(f"{PROVE} is 'all', 'stale' or nothing; it is {prove!r}")
    current = [key for key, reason in reasons.items() if not reason]
    drawn = {"all": set(current), "stale": set()}.get(prove, sample(current, seed))
    chosen = dict.fromkeys(drawn, ASKED if prove == "all" else DRAWN)
    found = {key: reason or chosen.get(key, "") for key, reason in reasons.items()}
    return {key: reason for key, reason in found.items() if reason}


def disagreement(entry: Entry, name: str, found: Result) -> str:
    """In what a proof of now contradicts an entry under the same digest; "" if in nothing."""
    claimed = entry.proofs.get(name)
    if name in entry.unproved or claimed == found:
        return ""
    return f"the ledger says {claimed} of {name!r}, and the proof gives {found}"


# ------------------------------------------------------------------ what was proved

_proved: dict[str, dict[str, Any]] = {}


def begin(key: str, chapter: str, names: Iterable[str]) -> None:
    """Say that an exercise is being proved: until all these proofs are there it has no entry."""
    blank: dict[str, Any] = {"digest": digest_of(chapter), "under": under()}
    _proved.setdefault(key, blank | {"names": list(names), "proofs": {}, "unproved": {}})


def note(key: str, name: str, result: Result) -> None:
    """Keep what a proof of an exercise gave in this process."""
    _proved[key]["proofs"][name] = result


def note_unproved(key: str, name: str, why: str) -> None:
    """Keep that this machine cannot give a proof, and why."""
    _proved[key]["unproved"][name] = why


def proved() -> dict[str, dict[str, Any]]:
    """What this process has proved, as plain data for `merge`."""
    return _proved


def merge(total: dict[str, dict[str, Any]], more: Mapping[str, Mapping[str, Any]]) -> None:
    """Add what another process has proved: an exercise's proofs may come from several."""
    for key, found in more.items():
        one = total.setdefault(key, {**found, "proofs": {}, "unproved": {}})
        one["proofs"] |= found["proofs"]
        one["unproved"] |= found["unproved"]


def renewed(
    entries: Mapping[str, Entry], total: Mapping[str, Mapping[str, Any]]
) -> dict[str, Entry]:
    """The entries after a run: what was proved whole replaces its own, what was not has none."""
    result = {key: entry for key, entry in entries.items() if key not in total}
    for key, found in total.items():
        fields = ("digest", "under", "proofs", "unproved")
        entry = Entry(**{field: found[field] for field in fields})
        if not entry.missing(found["names"]):
            result[key] = entry
    return result
