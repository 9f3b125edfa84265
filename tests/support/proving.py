"""What this run proves: what the ledger does not hold of, and a sample of the rest."""

import gc
import os

import pytest

from course_utils.authoring import ledger, proofs
from course_utils.authoring.counts import count
from course_utils.grading import every

EXERCISES = every()
LEDGER = ledger.read()


def reasons() -> dict[str, str]:
    """By key, why the ledger's entry does not hold; "" where it does."""
    found = {}
    for key, exercise in EXERCISES.items():
        names = proofs.proofs_of(exercise)
        possible = names.keys() - proofs.unprovable(exercise).keys()
        found[key] = ledger.stale(LEDGER.get(key), exercise.chapter, names, possible)
    return found


gc.disable()  # it would go over all of torch, again and again, while every file is parsed
DUE = ledger.due(reasons(), ledger.seed(), os.environ.get(ledger.PROVE, ""))
gc.enable()


def prove(key: str, name: str) -> ledger.Result:
    """Give a proof now. Fails where it does, and where an entry that should hold claims another.

    Skipped, by name, where this machine cannot give it.
    """
    exercise = EXERCISES[key]
    ledger.begin(key, exercise.chapter, proofs.proofs_of(exercise))
    why = proofs.unprovable(exercise).get(name)
    if why:
        ledger.note_unproved(key, name, why)
        pytest.skip(f"{key}, {name}: {why}")
    found = proofs.proofs_of(exercise)[name](exercise)
    ledger.note(key, name, found)
    if name == proofs.MUTANTS:
        count_mutants(found)
    if DUE[key] in (ledger.DRAWN, ledger.ASKED):
        disagreement = ledger.disagreement(LEDGER[key], name, found)
        assert not disagreement, f"{disagreement} of {key}; `make prove` writes what holds"
    return found


def stands(key: str) -> None:
    """Count what the ledger says of an exercise that is not proved in this run.

    Fails where an entry does not say all that is due, or speaks of other survivors than are argued for.
    """
    exercise, entry = EXERCISES[key], LEDGER[key]
    assert entry.missing(proofs.proofs_of(exercise)) == []
    count("exercises that stand by the ledger")
    count("exercises that this machine cannot prove whole", bool(entry.unproved))
    if proofs.MUTANTS in entry.proofs:
        found = entry.proofs[proofs.MUTANTS]
        assert found["surviving"] == len(exercise.equivalents)
        count_mutants(found)


def count_mutants(found: dict[str, int]) -> None:
    count("mutants killed", found["killed"])
    count("mutants that survive, with an argument", found["surviving"])
