"""The gradebook: every student once, every point right, no formula, and every field documented."""

import csv
import io
import json
import random
from dataclasses import replace

import pytest

from course_utils.authoring.counts import count
from course_utils.classroom.marks.align import by_plan
from course_utils.classroom.marks.record import MISSING, Result
from course_utils.classroom.marks.text import FORMULA, cell, file_name, is_formula, visible
from course_utils.classroom.reports import gradebook
from course_utils.classroom.reports.write import write_all
from tests.classroom.synthetic_class import (
    HOSTILE,
    KEYS,
    SCRIPTS,
    damaged,
    drawn,
    failed,
    passed,
    plan_of,
    record_of,
)

PLAN = plan_of()


def rows_of(records, plan=PLAN):
    return list(csv.DictReader(io.StringIO(gradebook.as_csv(plan, records))))


def test_points_and_the_penalty_are_in_the_table():
    record = record_of("ada", passed(KEYS[0], 1.0), failed(KEYS[1], 2.0), penalty=0.25)
    (row,) = rows_of([record])
    assert row["points"] == "1.5"  # (1 + 2 · 2/4) · 0.75
    assert row["points_before_late"] == "2" and row["penalty"] == "0.25"
    assert row["max_points"] == "7"  # of the plan, not of what was found
    assert [row[key] for key in KEYS] == ["1", "1", "0", "0"]
    assert row["feedback"] == "feedback/ada.html"


def test_sums_of_tenths_are_tenths():
    record = record_of("ada", *(replace(passed(KEYS[0]), points=0.1),) * 3, penalty=0.1 + 0.2)
    (student,) = gradebook.read_json(gradebook.as_json(PLAN, [record]))["students"]
    assert student["penalty"] == 0.3


def test_what_the_plan_does_not_name_does_not_count():
    (row,) = rows_of([record_of("ada", passed("tensors.other", 50.0), passed(KEYS[0], 1.0))])
    assert row["points"] == "1" and "tensors.other" not in row


def test_the_latest_record_of_a_student_counts_exercise_by_exercise():
    first = record_of("ada", passed(KEYS[0], 1.0), failed(KEYS[1], 2.0))
    again = record_of("ada", passed(KEYS[1], 2.0))
    (row,) = rows_of([first, again])
    assert row["points"] == "3"


@pytest.mark.parametrize(
    "records", [[], [damaged("ada")], drawn(3)], ids=["none", "damaged", "three"]
)
def test_both_forms_hold_every_student_once(records):
    book = gradebook.read_json(gradebook.as_json(PLAN, records))
    assert [s["student"] for s in book["students"]] == [r.student for r in by_plan(PLAN, records)]
    assert len(rows_of(records)) == len(records)
    for student in book["students"]:
        assert [r["key"] for r in student["results"]] == list(KEYS)


def test_names_in_other_scripts_stay_as_they_are(tmp_path):
    records = [record_of(name, passed(KEYS[0])) for name in SCRIPTS]
    write_all(tmp_path, PLAN, records)
    text = (tmp_path / "gradebook.csv").read_bytes()
    assert text.startswith(b"\xef\xbb\xbf")  # or a spreadsheet would guess another encoding
    rows = csv.DictReader(io.StringIO(text.decode("utf-8-sig")))
    assert sorted(row["student"] for row in rows) == sorted(SCRIPTS)


@pytest.mark.parametrize("start", [*FORMULA, " =", "\t=", "\u00a0@"])
def test_no_cell_is_a_formula(start):
    name = f"{start}cmd|' /C calc'!A0"
    text = gradebook.as_csv(PLAN, [record_of(name), damaged("b", why=name)])
    for row in csv.reader(io.StringIO(text)):
        assert not any(is_formula(field) for field in row)
    count("formulas in a gradebook made harmless")


def test_a_name_cannot_add_a_row_or_act_on_a_terminal():
    names = ["a\nb,100", "a\rb", 'q"uote', "e\x1b[2J", "r\u202etl", "half\ud800"]
    rows = rows_of([record_of(name) for name in names])
    assert len(rows) == len(names)
    assert all(row["points"] == "0" for row in rows)
    shown = "".join(row["student"] for row in rows)
    assert "⟨U+202E⟩" in shown and "⟨U+001B⟩" in shown and "⟨U+D800⟩" in shown
    assert not set("\x1b\u202e\ud800") & set(shown)


def test_the_order_of_grading_and_its_speed_leave_no_trace():
    records = drawn(40, seed=3)
    slower = [replace(record, seconds=9.0) for record in records]
    random.Random(1).shuffle(slower)
    assert gradebook.as_csv(PLAN, records) == gradebook.as_csv(PLAN, slower)
    results = [tuple(replace(r, seconds=5.0) for r in record.results) for record in slower]
    slower = [replace(rec, results=res) for rec, res in zip(slower, results, strict=True)]
    assert gradebook.as_json(PLAN, records) == gradebook.as_json(PLAN, slower)


def test_every_field_is_documented_and_nothing_else_is():
    book = json.loads(gradebook.as_json(PLAN, drawn(5)))
    (student, *_) = [s for s in book["students"] if s["status"] == "graded"]
    assert list(book) == list(gradebook.BOOK)
    assert list(student) == list(gradebook.STUDENT)
    assert list(student["results"][0]) == list(gradebook.RESULT)
    header = gradebook.as_csv(PLAN, []).splitlines()[0].split(",")
    assert [name for name in header if name not in KEYS] == list(gradebook.COLUMNS)
    for fields in (gradebook.COLUMNS, gradebook.BOOK, gradebook.STUDENT, gradebook.RESULT):
        for name in fields:
            assert f"| `{name}` | {fields[name]} |" in gradebook.FORMAT


def test_another_version_is_refused():
    with pytest.raises(ValueError, match=r"expected a gradebook of version 1; came .* version 2"):
        gradebook.read_json('{"format": "strides-to-shards gradebook", "version": 2}')


def test_a_half_of_a_surrogate_pair_survives_the_json(tmp_path):
    write_all(tmp_path, PLAN, [record_of("half \ud800")])
    book = gradebook.read_json((tmp_path / "gradebook.json").read_text(encoding="utf-8"))
    assert book["students"][0]["student"] == "half \ud800"


def test_every_student_has_a_file_of_their_own_whatever_the_system():
    names = [
        *HOSTILE,
        *SCRIPTS,
        "a b",
        "a_b",
        "a  b",
        "ÀDA",
        "a" * 3000 + "b",
        "nul.txt",
        "-rf",
        "~",
    ]
    files = [file_name(name) for name in names]
    assert len({file.casefold() for file in files}) == len(set(names))
    for file in files:
        assert len(file.encode()) < 200 and file == file.strip(" .")
        assert not set(file) & set('/\\:*?"<>|\0\n') and not file.startswith((".", "-"))
        assert file.partition(".")[0] not in ("con", "nul", "aux", "prn")
    assert file_name("ada_l") == "ada_l"


def test_visible_cuts_and_marks():
    assert visible("a" * 10, 4) == "aaaa …"
    assert visible("a\u200bb") == "a⟨U+200B⟩b"
    assert visible("नि‍") == "नि‍"  # a joiner that a script needs stays
    assert cell("-1") == "'-1" and cell("1-1") == "1-1"


def test_write_all_writes_what_it_says_and_again_the_same(tmp_path):
    records = drawn(12)
    paths = write_all(tmp_path, PLAN, records, also=("gradescope", "classroom"), sources={})
    assert sorted(paths) == sorted(p for p in tmp_path.rglob("*") if p.is_file())
    names = {p.relative_to(tmp_path).parts[0] for p in paths}
    assert names == {
        *("gradebook.csv", "gradebook.json", "FORMAT.md", "canvas.csv", "moodle.csv", "import.md"),
        *("report.html", "feedback", "gradescope", "classroom", "similarity.html"),
    }
    for name in names - {"FORMAT.md"}:
        assert name in gradebook.FORMAT
    before = {path: path.read_bytes() for path in paths}
    assert write_all(tmp_path, PLAN, records, also=("gradescope", "classroom"), sources={}) == paths
    assert {path: path.read_bytes() for path in paths} == before
    for record in records:
        assert (tmp_path / "feedback" / f"{file_name(record.student)}.html").exists()


def test_write_all_refuses_an_unknown_service(tmp_path):
    with pytest.raises(ValueError, match="expected gradescope or classroom; came excel"):
        write_all(tmp_path, PLAN, [], also=("excel",))
    assert not list(tmp_path.iterdir())


def test_a_result_that_is_absent_is_missing_with_no_points():
    (record,) = by_plan(PLAN, [record_of("ada", passed(KEYS[1], 2.0))])
    assert record.results[0] == Result(KEYS[0], MISSING, 0.0, 1.0)
