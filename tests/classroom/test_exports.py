"""What learning systems import: their columns, their students, and no mark given to the wrong one."""

import base64
import csv
import io
import json
from dataclasses import replace

import pytest

from course_utils.classroom.exports import canvas, github_classroom, gradescope, moodle
from course_utils.classroom.exports import roster as rosters
from course_utils.classroom.exports.roster import Roster, RosterError
from course_utils.classroom.marks.record import INSIDE
from course_utils.classroom.reports.write import write_all
from tests.classroom.synthetic_class import (
    HOSTILE,
    KEYS,
    WITNESS,
    damaged,
    drawn,
    failed,
    passed,
    plan_of,
    record_of,
)

PLAN = plan_of()

CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,Warm-up (41),Strides & views (77),Final Score
,,,,,Manual Posting,,
    Points Possible,,,,,10,7,(read only)
"Lovelace, Ada",1001,s-1,ada,Section 1,9,,90
"Hopper, Grace",1002,s-2,grace,Section 1,8,,80
"Twin, Pat",1003,s-3,pat1,Section 2,,,
"Twin, Pat",1004,s-4,pat2,Section 2,,,
"Student, Test",1005,,deadbeef,Section 1,,,
"""
MOODLE = """\
"First name","Last name","ID number","Email address","Course total (Real)"
Ada,Lovelace,,ada@example.org,50
Grace,Hopper,h-2,grace@example.org,60
王,小明,w-3,wang@example.org,70
"""
WORKSHEET = """\
Identifier,Full name,Email address,Status,Grade,Maximum grade,Last modified (submission),Last modified (grade)
Participant 501,Ada Lovelace,ada@example.org,Submitted,,7.00,"Friday, 20 November 2026, 4:00 PM",-
Participant 502,=Grace Hopper,grace@example.org,Submitted,,7.00,"Friday, 20 November 2026, 4:00 PM",-
"""


def rows_of(text):
    return list(csv.reader(io.StringIO(text)))


def canvas_accepts(text):
    """What Canvas's importer asks of a file: its header, its row of maxima, one line a student."""
    header, possible, *people = rows_of(text)
    assert "Student" in header[0] and "ID" in header[1]
    assert header[2:5] == ["SIS User ID", "SIS Login ID", "Section"] and len(header) == 6
    assert "Points Possible" in possible[0] and float(possible[5]) > 0
    assert not any("Points Possible" in row[0] for row in people)
    assert all(len(row) == 6 and float(row[5]) >= 0 for row in people)
    return header[5], {row[0]: row[1:] for row in people}


# ------------------------------------------------------------------------------ Canvas


def test_canvas_without_a_roster_has_its_columns_and_says_what_is_missing():
    one = canvas.canvas(PLAN, drawn(20))
    title, people = canvas_accepts(one.csv)
    assert title == "Strides & views" and len(people) == 20
    assert all(row[:4] == ["", "", "", ""] for row in people.values())
    assert any("ID, SIS User ID and SIS Login ID are empty" in note for note in one.notes)


def test_canvas_students_get_the_ids_of_the_roster_and_no_others():
    names = ["ada", "Grace Hopper", "s-3", "Pat Twin", "nobody"]
    records = [record_of(name, passed(KEYS[0], 1.0)) for name in names]
    one = canvas.canvas(PLAN, records, Roster.from_text(CANVAS))
    title, people = canvas_accepts(one.csv)
    assert title == "Strides & views (77)"
    assert people["Lovelace, Ada"] == ["1001", "s-1", "ada", "Section 1", "1"]
    assert people["Hopper, Grace"][0] == "1002"
    assert people["Twin, Pat"][0] == "1003"  # by its own number
    assert (
        len(people) == 3
    )  # Canvas gives the mark of a row without an ID to the first of that name
    said = " ".join(one.notes)
    assert (
        "1 submission: more than one person of the roster fits: “Pat Twin”" in said
        and "nobody in the roster fits: “nobody”" in said
    )
    assert "“Student, Test”" in said  # handed in nothing


def test_the_names_that_learning_systems_give_to_what_they_export():
    found = rosters.match(["lovelaceada_1001", "twinpat_1004"], Roster.from_text(CANVAS)).found
    assert [person["ID"] for person in found.values()] == ["1001", "1004"]
    roster = Roster.from_text(MOODLE)  # does not know Moodle's numbers of participants
    assert list(
        rosters.match(["Ada Lovelace_77", "Grace Hopper_ada@example.org"], roster).found
    ) == ["Ada Lovelace_77"]


def test_a_number_is_not_believed_without_the_name():
    """Hers would be the mark of whoever writes her number into a name."""
    for name in ("eve_1001", "1001_eve", "hoppergrace_1001"):
        assert not rosters.match([name], Roster.from_text(CANVAS)).found


def test_two_submissions_of_one_person_are_both_left_unmatched():
    matches = rosters.match(["ada", "Ada Lovelace", "grace"], Roster.from_text(CANVAS))
    assert set(matches.found) == {"grace"}
    assert {student for student, _ in matches.lost} == {"ada", "Ada Lovelace"}


def test_another_maximum_in_canvas_is_said_and_nothing_is_rescaled():
    roster = Roster.from_text(CANVAS.replace(",10,7,", ",10,100,"))
    one = canvas.canvas(PLAN, [record_of("ada", passed(KEYS[0], 1.0))], roster)
    assert canvas_accepts(one.csv)[1]["Lovelace, Ada"][4] == "1"
    assert any("worth 100 points, here 7" in note for note in one.notes)


@pytest.mark.parametrize(
    "title, safe",
    [
        ("Final Score", "Final-Score"),  # Canvas drops such columns
        ("Homework (2)", "Homework [2]"),  # Canvas would take this for assignment number 2
        ("Section", "Assignment Section"),
        ("=1+1", "'=1+1"),
    ],
)
def test_a_title_that_means_something_else_to_canvas_is_changed_and_said(title, safe):
    plan = replace(PLAN, title=title)
    one = canvas.canvas(plan, [record_of("ada")])
    assert canvas_accepts(one.csv)[0] == safe
    assert any(f"“{safe}”" in note for note in one.notes)


def test_a_student_named_like_canvas_row_of_maxima_is_still_a_student():
    _, people = canvas_accepts(canvas.canvas(PLAN, [record_of("  Points Possible")]).csv)
    assert len(people) == 1


# ------------------------------------------------------------------------------ Moodle


def test_moodle_never_gets_a_row_without_a_user():
    """Moodle would give such a row's grade to the student of the row before."""
    names = ["Ada Lovelace", "grace@example.org", "小明 王", "nobody"]
    records = [record_of(name, passed(KEYS[0], 1.0)) for name in names]
    one = moodle.moodle(PLAN, records, Roster.from_text(MOODLE))
    header, *people = rows_of(one.csv)
    assert header == ["Email address", "Strides & views"]  # Ada has no ID number
    assert {row[0] for row in people} == {f"{n}@example.org" for n in ("ada", "grace", "wang")}
    assert all(all(row) for row in people)
    assert any("nobody in the roster fits: “nobody”" in note for note in one.notes)


def test_moodle_keeps_every_column_that_names_everyone():
    roster = Roster.from_text(MOODLE.replace("Lovelace,,", "Lovelace,l-1,"))
    header, *people = rows_of(moodle.moodle(PLAN, [record_of("Ada Lovelace")], roster).csv)
    assert header[:2] == ["ID number", "Email address"] and people == [
        ["l-1", "ada@example.org", "0"]
    ]


def test_who_has_no_user_in_moodles_only_column_is_left_out_and_named():
    text = "First name,Last name,ID number\nAda,Lovelace,\nGrace,Hopper,h-2\n"
    one = moodle.moodle(
        PLAN, [record_of("Ada Lovelace"), record_of("Grace Hopper")], Roster.from_text(text)
    )
    assert rows_of(one.csv)[1:] == [["h-2", "0"]]
    assert any("the roster has no usable ID number: “Ada Lovelace”" in note for note in one.notes)


def test_moodles_grading_worksheet_is_filled_in():
    records = [
        record_of("Ada Lovelace_501", passed(KEYS[2], 3.0)),
        record_of("grace@example.org"),
    ]
    one = moodle.moodle(PLAN, records, Roster.from_text(WORKSHEET))
    header, *people = rows_of(one.csv)
    assert header == rows_of(WORKSHEET)[0]
    by_id = {row[0]: dict(zip(header, row, strict=True)) for row in people}
    assert by_id["Participant 501"]["Grade"] == "3" and by_id["Participant 502"]["Grade"] == "0"
    assert by_id["Participant 501"]["Last modified (grade)"] == "-"
    assert by_id["Participant 502"]["Full name"] == "'=Grace Hopper"


def test_moodle_without_a_roster_says_what_the_names_must_be():
    one = moodle.moodle(PLAN, [record_of("ada"), record_of(""), record_of("=x")])
    assert rows_of(one.csv) == [["Student", "Strides & views"], ["ada", "0"]]
    assert any("Import it only if" in note for note in one.notes)
    assert any("2 submissions: no user's name in Moodle can be that" in note for note in one.notes)


def test_points_above_what_moodle_takes_are_said():
    plan = replace(PLAN, items=tuple(replace(item, points=60.0) for item in PLAN.items))
    assert any("above 100" in note for note in moodle.moodle(plan, []).notes)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "<html>"])
def test_a_file_that_is_no_roster_is_refused_before_anything_is_written(tmp_path, text):
    path = tmp_path / "people.csv"
    path.write_text(text)
    with pytest.raises(RosterError, match=r"people\.csv: expected Canvas's columns Student and ID"):
        write_all(tmp_path / "out", PLAN, drawn(2), roster=path)
    assert not (tmp_path / "out").exists()


def test_a_roster_may_be_separated_by_semicolons(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("\ufeffStudent;ID;Section\nLovelace, Ada;1001;1\n", encoding="utf-8")
    assert Roster.read(path).people[0]["ID"] == "1001"


def test_import_md_says_all_of_it(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(MOODLE, encoding="utf-8")
    write_all(tmp_path, PLAN, [record_of("Ada Lovelace"), record_of("nobody")], roster=path)
    said = (tmp_path / "import.md").read_text(encoding="utf-8")
    assert "nobody in the roster fits: “nobody”" in said and "Without Canvas's own roster" in said


def test_no_file_is_written_for_moodle_if_nobody_was_matched(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(MOODLE, encoding="utf-8")
    write_all(tmp_path, PLAN, [record_of("nobody")], roster=path)
    assert not (tmp_path / "moodle.csv").exists()
    assert "The file was not written" in (tmp_path / "import.md").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------ Gradescope


def hidden_failure(**fields):
    return record_of("ada", failed(KEYS[0], 1.0), passed(KEYS[1], 2.0), **fields)


def test_gradescope_has_a_test_for_each_exercise():
    results = gradescope.gradescope(PLAN, hidden_failure(penalty=0.5))
    assert results["score"] == 1.25  # (0.5 + 2) / 2
    names = [test["name"] for test in results["tests"]]
    assert names == list(KEYS) and [t["status"] for t in results["tests"]][:2] == [
        "failed",
        "passed",
    ]
    assert sum(test["max_score"] for test in results["tests"]) == PLAN.points
    assert "50 % of 2.5 points" in results["output"]
    assert json.loads(json.dumps(results)) == results


@pytest.mark.parametrize(
    "record", [*drawn(30, seed=5), *map(damaged, HOSTILE[:3])], ids=lambda r: ""
)
def test_every_results_json_is_as_gradescope_specifies(record):
    assert not gradescope.gradescope_problems(gradescope.gradescope(PLAN, record))


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda r: r["tests"][0].update(visibility="secret"), "visibility cannot be 'secret'"),
        (lambda r: r["tests"][0].update(score=99.0), "a score of 99.0"),
        (lambda r: r["tests"][0].update(status="pass"), "status cannot be 'pass'"),
        (lambda r: r["tests"][0].update(points=1), "unknown field 'points'"),
        (lambda r: r["tests"][0].update(output=None), "output cannot be None"),
        (lambda r: r.update(score=float("nan")), "score cannot be nan"),
        (lambda r: r.pop("score") and r["tests"][0].pop("score"), "neither a total score"),
    ],
)
def test_the_check_of_a_results_json_can_fail(spoil, said):
    results = gradescope.gradescope(PLAN, hidden_failure())
    spoil(results)
    assert any(said in problem for problem in gradescope.gradescope_problems(results))


def test_no_value_of_a_hidden_case_is_in_what_the_services_show():
    record = hidden_failure()
    assert WITNESS not in json.dumps(gradescope.gradescope(PLAN, record))
    assert WITNESS not in json.dumps(github_classroom.classroom(PLAN, record))
    by_hand = record_of("ada", failed(KEYS[0], 1.0, "worked by hand", hand=True))
    assert WITNESS in json.dumps(gradescope.gradescope(PLAN, by_hand))


# ------------------------------------------------------------------------------ Classroom


def test_classrooms_reporter_adds_up_the_points_that_count():
    for record in [*drawn(40, seed=9), hidden_failure(penalty=0.3), damaged("x")]:
        text = base64.b64decode(github_classroom.classroom_base64(PLAN, record))
        result = json.loads(text)
        total = sum(test["score"] for test in result["tests"])
        assert total == pytest.approx(round(record.points, 2), abs=1e-9)
        assert result["max_score"] == PLAN.points and result["version"] == 1
        assert result["status"] in ("pass", "fail", "error")
        for test in result["tests"]:
            assert set(test) == {
                *("name", "status", "score", "message"),
                *("test_code", "filename", "line_no", "duration"),
            }


def test_classrooms_status():
    right = record_of("ada", *(passed(item.key, item.points) for item in PLAN.items))
    assert github_classroom.classroom(PLAN, right)["status"] == "pass"
    assert github_classroom.classroom(PLAN, replace(right, penalty=0.1))["status"] == "fail"
    assert github_classroom.classroom(PLAN, damaged("ada"))["status"] == "error"
    inside = replace(right, results=tuple(replace(r, guarantee=INSIDE) for r in right.results))
    assert github_classroom.classroom(PLAN, inside)["status"] == "pass"
