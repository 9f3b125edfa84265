"""What was answered and stored with 0.1 arrives in the edition of today.

`exercises_of_0_1.json` holds, by notebook, the exercises that 0.1 ever had, each with its definitions as
they were asked for first: names and parameters, without annotations and text.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_utils import grading, mine, progress, solution
from course_utils.authoring import notebooks as form
from course_utils.cli import app
from course_utils.grading.judging.outcomes import PASSED

ROOT = Path(__file__).parents[2]
OLD = json.loads(Path(__file__).with_name("exercises_of_0_1.json").read_text("utf-8"))
KEYS = [key for exercises in OLD.values() for key in exercises]


def cell(kind, source, name, **metadata):
    made = {"cell_type": kind, "id": name, "metadata": metadata, "source": source}
    return made | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def answer_to(key, definitions):
    parts = (d.replace(": ...", f": return {key!r}") for d in definitions)
    return "\n\n\n".join(f'@exercise("{key}")\n{part}' for part in parts)


def notebook_of(exercises, number):
    """As 0.1 handed it out, without a stamp, and a student worked in it."""
    cells = [
        cell("markdown", "A heading of 0.1.", "heading"),
        cell("code", "import nothing_of_today as gone", "heading-cell-1"),
        *(
            cell("code", answer_to(key, found), f"exercise-{key.replace('.', '-')}", exercise=key)
            for key, found in exercises.items()
        ),
        cell("code", f"my_own = {number}", f"{number:08x}"),
    ]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def test_every_answer_to_0_1_is_carried_and_fits_and_no_own_cell_is_lost(tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for number, (name, exercises) in enumerate(OLD.items()):
        (folder / name).write_text(json.dumps(notebook_of(exercises, number)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["update", "--from", str(ROOT)])
    assert done.exit_code == 0, done.output
    said = [key for key in KEYS if f"  {key}: your answer is carried over" not in done.output]
    assert not said, f"what 0.1's students answered to these has no place now: {said}"
    assert "kept as text" not in done.output
    assert "which answers pass" in done.output
    for number, (name, exercises) in enumerate(OLD.items()):
        path = folder / name
        made = form.read(path).cells
        by_key = {c.metadata["exercise"]: c.source for c in made if "exercise" in c.metadata}
        for key, definitions in exercises.items():
            assert by_key[key] == answer_to(key, definitions)
        assert f"my_own = {number}" in [c.source for c in made]
        assert {c.cell_type for c in made} == {"code", "markdown"}
        assert list(folder.glob(f"{path.stem}.before-*.ipynb"))


STORED = {
    "attempts": 3,
    "last": "passed",
    "rung": None,
    "hints": [0, 1],
    "passed_at": "2026-11-20T18:12:09",
    "answer": ["\ndef theirs(): ...\n"],
    "missing": [],
}
FLAT_INDEX = (
    'from dataclasses import dataclass\n\n@dataclass\nclass Walk:\n    by: "int"\n'
    "def flat_index(index, stride, offset=0):\n"
    "    return offset + sum(i * Walk(s).by for i, s in zip(index, stride))\n"
)


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """The progress file of a student who passed everything; one answer could not be kept."""
    entries = {key: {**STORED} for key in KEYS}
    entries["strides.flat_index"]["answer"] = [FLAT_INDEX]
    entries["lora.nf4_quantize"]["missing"] = ["NF4"]
    path = tmp_path / "progress.json"
    path.write_text(json.dumps({"version": 1, "exercises": entries}), encoding="utf-8")
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    return path


def test_what_0_1_stored_as_passed_is_passed(stored, capsys):
    before = stored.read_bytes()
    for chapter in {key.partition(".")[0] for key in KEYS}:
        ((_, marks, got, _),) = progress(chapter).rows
        passed = {name for name, outcome in marks if outcome == PASSED}
        old = {grading.find(key).names[0] for key in KEYS if key.startswith(f"{chapter}.")}
        assert old <= passed
        assert got > 0
    assert capsys.readouterr().out == ""
    assert stored.read_bytes() == before


def test_an_answer_that_0_1_stored_is_used_and_shown_and_a_gap_is_named(stored, capsys):
    assert mine("strides.flat_index")((1, 2), (4, 1)) == 6
    assert mine("strides.flat_index").__module__ == "answers.flat_index"
    assert capsys.readouterr().out == ""
    solution("strides.flat_index")
    assert FLAT_INDEX.strip() in capsys.readouterr().out
    assert mine("lora.nf4_quantize") is grading.find("lora.nf4_quantize").reference
    said = capsys.readouterr().out
    assert "Your answer to lora.nf4_quantize needs `NF4`, which could not be kept" in said
