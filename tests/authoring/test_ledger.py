"""The ledger: what must be proved anew, what stands, and that a forged entry is found."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from course_utils.authoring import ledger, proofs
from course_utils.authoring.dependencies import ROOT
from course_utils.grading import every

KEY = "strides.flat_index"
NAMES = ["a proof", proofs.MUTANTS]


def entry(chapter: str = "strides", **changes) -> ledger.Entry:
    """An entry that holds here and now."""
    counted = {"made": 5, "killed": 4, "surviving": 1}
    given = {"a proof": 3, proofs.MUTANTS: counted}
    return replace(ledger.Entry(ledger.digest_of(chapter), ledger.under(), given, {}), **changes)


def test_an_entry_holds_until_something_changes():
    def stale(one, names=NAMES, possible=NAMES):
        return ledger.stale(one, "strides", names, possible)

    assert stale(entry()) == ""
    assert stale(None) == ledger.NO_ENTRY
    assert stale(entry(), [*NAMES, "a new proof"]) == ledger.NO_ENTRY
    assert stale(entry("autograd")) == ledger.CHANGED
    assert stale(entry(under=ledger.under().replace("torch", "torch 1"))) == ledger.VERSIONS


def test_what_could_not_be_proved_elsewhere_is_proved_where_it_can_be():
    lacking = entry(proofs={"a proof": 3}, unproved={proofs.MUTANTS: "it needs a CUDA GPU"})
    assert ledger.stale(lacking, "strides", NAMES, ["a proof"]) == ""
    assert ledger.stale(lacking, "strides", NAMES, NAMES) == ledger.POSSIBLE


def test_the_versions_are_those_that_run():
    import hypothesis
    import numpy
    import torch

    words = ledger.under().split(", ")
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    libraries = {f"{one.__name__} {one.__version__}" for one in (torch, numpy, hypothesis)}
    assert {python, *libraries} < set(words)


def test_a_sample_is_drawn_by_its_seed_and_reaches_everything():
    keys = [f"chapter.{i}" for i in range(100)]
    assert len(ledger.sample(keys, 1)) == 2
    assert ledger.sample(keys, 1) == ledger.sample(reversed(keys), 1)
    assert ledger.sample(keys, 1) != ledger.sample(keys, 2)
    assert len(ledger.sample(keys[:3], 1)) == 1
    assert ledger.sample([], 1) == set()
    assert set().union(*(ledger.sample(keys, seed) for seed in range(1000))) == set(keys)


def test_what_a_run_proves():
    reasons = {"new": ledger.NO_ENTRY, "other": ledger.CHANGED} | dict.fromkeys("abcdefghijkl", "")
    plain = ledger.due(reasons, 3)
    (drawn,) = plain.keys() - {"new", "other"}
    assert plain == {"new": ledger.NO_ENTRY, "other": ledger.CHANGED, drawn: ledger.DRAWN}
    assert ledger.due(reasons, 3, "stale").keys() == {"new", "other"}
    assert ledger.due(reasons, 3, "all").keys() == reasons.keys()
    with pytest.raises(ValueError, match="it is 'everything'"):
        ledger.due(reasons, 3, "everything")


def test_the_file_has_one_line_an_exercise_and_comes_back_as_it_was(tmp_path):
    path = tmp_path / "ledger.json"
    assert ledger.read(path) == {}
    entries = {key: entry(unproved={"one": f"µ {key}"}) for key in ("b.y", "a.x", "a.b")}
    ledger.write(entries, path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.split('"')[1] for line in lines[1:-1]] == ["a.b", "a.x", "b.y"]
    assert ledger.read(path) == entries
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["", "[]", '{"a": 1}', '{"a": {"digest": "x"}}'])
def test_a_damaged_ledger_is_said_to_be_one(tmp_path, damage):
    path = tmp_path / "ledger.json"
    path.write_text(damage)
    with pytest.raises(ValueError, match="make prove"):
        ledger.read(path)


def test_proofs_of_several_processes_make_one_entry(monkeypatch):
    def process(*names):
        monkeypatch.setattr(ledger, "_proved", {})
        ledger.begin("strides.x", "strides", NAMES)
        for name in names:
            ledger.note("strides.x", name, 7)
        return json.loads(json.dumps(ledger.proved()))

    total: dict = {}
    ledger.merge(total, process("a proof"))
    before = {"strides.x": entry(), "strides.y": entry()}
    assert ledger.renewed(before, total).keys() == {"strides.y"}, "half of it is proved"
    ledger.merge(total, process(proofs.MUTANTS))
    after = ledger.renewed(before, total)
    assert after["strides.x"] == entry(proofs=dict.fromkeys(NAMES, 7))
    assert after["strides.y"] == before["strides.y"]


def test_a_proof_that_gives_something_else_contradicts_its_entry():
    assert ledger.disagreement(entry(), "a proof", 3) == ""
    assert "says 3 of 'a proof', and the proof gives 2" in ledger.disagreement(
        entry(), "a proof", 2
    )
    counted = {"made": 5, "killed": 3, "surviving": 2}
    assert "'killed': 4" in ledger.disagreement(entry(), proofs.MUTANTS, counted)


# ------------------------------------------------------------------ forged


def proving(path, seed: int, prove: str = "") -> subprocess.CompletedProcess[str]:
    """A run of the suite about one exercise with this ledger."""
    tests = [f"tests/grading/test_{name}.py" for name in ("proofs", "mutants")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", KEY, *tests],
        cwd=ROOT,
        env=os.environ
        | {ledger.LEDGER: str(path), ledger.SEED: str(seed), ledger.PROVE: prove}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def seed_that(draws: bool) -> int:
    seeds = (seed for seed in range(1000) if (KEY in ledger.sample(every(), seed)) is draws)
    return random.choice(list(seeds))


def test_a_forged_entry_is_found_by_the_sample_and_by_make_prove(tmp_path):
    """It claims one mutant more than there is. Undrawn it stands: that is what a ledger is for."""
    path = tmp_path / "ledger.json"
    exercises = every().values()
    given = {one.key: dict.fromkeys(proofs.proofs_of(one), 1) for one in exercises}
    for one in exercises:
        surviving = len(one.equivalents)
        given[one.key][proofs.MUTANTS] = {"made": surviving, "killed": 0, "surviving": surviving}
    whole = {one.key: entry(one.chapter, proofs=given[one.key]) for one in exercises}
    honest = proofs.proofs_of(every()[KEY])
    claims = {name: prove(every()[KEY]) for name, prove in honest.items()}
    forged = claims[proofs.MUTANTS] | {"made": claims[proofs.MUTANTS]["made"] + 1}
    forged["killed"] += 1
    said = f"the ledger says {dict(sorted(forged.items()))} of {proofs.MUTANTS!r}"
    ledger.write(whole | {KEY: entry(proofs=claims | {proofs.MUTANTS: forged})}, path)

    stands = proving(path, seed_that(draws=False))
    assert stands.returncode == 0, stands.stdout
    assert "1  exercises that stand by the ledger" in stands.stdout

    drawn = proving(path, seed_that(draws=True))
    assert drawn.returncode == 1
    assert said in drawn.stdout
    assert " 1 failed" in f" {drawn.stdout.splitlines()[-1]}", "the other proofs hold"

    prove = proving(path, 0, "all")
    assert prove.returncode == 1
    assert said in prove.stdout
    assert ledger.read(path)[KEY].proofs == claims, "what holds has been written"
