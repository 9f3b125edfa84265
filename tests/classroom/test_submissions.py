"""What is found among submissions, and what is read of them, however they come."""

import json
import os
import stat
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from submissions import code, folder_of, notebook, zip_of

from course_utils.classroom.submissions import folders_and_zips
from course_utils.classroom.submissions.cells import cells_of
from course_utils.classroom.submissions.folders_and_zips import NoSubmissions, Unreadable
from course_utils.classroom.submissions.handed_out import HandedOut
from course_utils.classroom.submissions.intake import find, read
from course_utils.source.cells import DECORATED, MAGIC

ONE = notebook("x = 1")


def students(place: Path) -> list[str]:
    return [one.student for one in find(place).submissions]


# ------------------------------------------------------------------------------ layouts


def test_a_folder_of_notebooks_and_of_student_folders(tmp_path):
    place = folder_of(
        tmp_path / "hw",
        {
            "zoe.ipynb": ONE,
            "Ada Lovelace/02_strides.ipynb": ONE,
            "Ada Lovelace/.ipynb_checkpoints/02_strides-checkpoint.ipynb": notebook("stale = 1"),
            "Ada Lovelace/__MACOSX/02_strides.ipynb": ONE,
            "Ada Lovelace/._02_strides.ipynb": b"\x00\x05",
            "roster.csv": "ada,zoe",
            "Юлия/дом.ipynb": ONE,
        },
    )
    found = find(place)
    assert [(one.student, one.files) for one in found.submissions] == [
        ("Ada Lovelace", ("Ada Lovelace/02_strides.ipynb",)),
        ("zoe", ("zoe.ipynb",)),
        ("Юлия", ("Юлия/дом.ipynb",)),
    ]
    assert found.left_out == ("roster.csv: names no student",)


def test_the_order_does_not_depend_on_the_disk(tmp_path):
    names = ["b", "Á", "a", "B", "ß", "10", "9"]
    place = folder_of(tmp_path / "hw", {f"{name}/x.ipynb": ONE for name in names})
    packed = zip_of(tmp_path / "hw.zip", {f"{name}/x.ipynb": ONE for name in reversed(names)})
    assert students(place) == students(packed) == ["10", "9", "a", "B", "b", "ß", "Á"]


def test_canvas(tmp_path):
    place = zip_of(
        tmp_path / "submissions.zip",
        {
            "lovelaceada_1234_567890_02_strides.ipynb": ONE,
            "hoppergrace_LATE_1235_567891_02_strides-1.ipynb": ONE,
            "noethere_1236_567892_essay.pdf": b"%PDF",
            "anon_7Bx9q_567893_02_strides.ipynb": ONE,
        },
    )
    ada, late, anonymous, none = (
        {one.student: one for one in find(place).submissions}[name]
        for name in ("lovelaceada_1234", "hoppergrace_1235", "anon_7Bx9q", "noethere_1236")
    )
    assert ada.notes == anonymous.notes == ()
    assert late.notes == ("Canvas marks it as late",)
    assert none.problem == "no notebook was handed in (there is: noethere_1236_567892_essay.pdf)"


@pytest.mark.parametrize("tail", ["_assignsubmission_file", "_assignsubmission_file_"])
def test_moodle_in_folders(tmp_path, tail):
    place = zip_of(
        tmp_path / "PT101-Strides-4711.zip",
        {
            f"Ada Lovelace_88{tail}/02_strides.ipynb": ONE,
            "Ada Lovelace_88_assignsubmission_onlinetext/onlinetext.html": "<p>hello</p>",
            f"Grace Hopper_89{tail}/deep/er/02_strides.ipynb": ONE,
        },
    )
    assert [(one.student, len(one.notebooks)) for one in find(place).submissions] == [
        ("Ada Lovelace_88", 1),
        ("Grace Hopper_89", 1),
    ]


def test_moodle_flat_and_a_class_of_one(tmp_path):
    flat = {"Ada Lovelace_88_assignsubmission_file_02_strides.ipynb": ONE}
    assert students(zip_of(tmp_path / "a.zip", flat)) == ["Ada Lovelace_88"]
    one = {"Ada Lovelace_88_assignsubmission_file_/02_strides.ipynb": ONE}
    assert students(zip_of(tmp_path / "b.zip", one)) == ["Ada Lovelace_88"]


GRADESCOPE = """\
submission_101:
  :submitters:
  - :name: Ada Lovelace
    :sid: '17'
    :email: ada@example.com
  :created_at: 2026-04-26 17:34:00.861687000 Z
  :score: 2.0
  :results:
    output: |-
      submission_999:
        :submitters:
submission_102:
  :submitters:
  - :name: Grace Hopper
    :email: grace@example.com
  - :name: Emmy Noether
    :sid: '19'
"""


def test_gradescope(tmp_path):
    root = "assignment_42_export"
    place = zip_of(
        tmp_path / "assignment_42_export.zip",
        {
            f"{root}/submission_metadata.yml": GRADESCOPE,
            f"{root}/submission_101/02_strides.ipynb": ONE,
            f"{root}/submission_102/02_strides.ipynb": ONE,
            f"{root}/submission_103/02_strides.ipynb": ONE,
        },
    )
    found = {one.student: one for one in find(place).submissions}
    assert list(found) == [
        "Ada Lovelace_17",
        "Emmy Noether_19",
        "Grace Hopper_grace@example.com",
        "submission_103",
    ]
    assert found["Ada Lovelace_17"].submitted == datetime(2026, 4, 26, 17, 34, 0, 861687, UTC)
    assert found["Emmy Noether_19"].submitted is None


def test_github_classroom_and_nbgrader(tmp_path):
    clones = folder_of(
        tmp_path / "clones",
        {
            "hw-1-submissions/hw-1-ada/02_strides.ipynb": ONE,
            "hw-1-submissions/hw-1-ada/.git/x.ipynb": ONE,
            "hw-1-submissions/hw-1-grace/notebooks/02_strides.ipynb": ONE,
        },
    )
    assert students(clones) == students(clones / "hw-1-submissions") == ["ada", "grace"]
    submitted = folder_of(
        tmp_path / "submitted",
        {"ada/ps1/ps1.ipynb": ONE, "ada/ps1/timestamp.txt": "2026-02-03 04:05:06.700000 UTC"},
    )
    (ada,) = find(submitted).submissions
    assert (ada.student, ada.submitted) == ("ada", datetime(2026, 2, 3, 4, 5, 6, 700000, UTC))


def test_a_folder_around_everything_is_seen_through(tmp_path):
    inner = {"ada/x.ipynb": ONE, "bob/x.ipynb": ONE}
    wrapped = {f"hw/class A/{name}": data for name, data in inner.items()}
    assert students(zip_of(tmp_path / "x.zip", wrapped)) == ["ada", "bob"]
    assert students(folder_of(tmp_path / "x", wrapped) / "hw") == ["ada", "bob"]
    flat = {"hw/ada.ipynb": ONE, "hw/bob.ipynb": ONE}
    assert students(zip_of(tmp_path / "y.zip", flat)) == ["ada", "bob"]
    alone = folder_of(tmp_path / "z", {"ada/hw1/x.ipynb": ONE})
    assert students(alone) == ["ada"], "a single student of a folder is no wrapper"


def test_a_zip_of_a_students_own_is_looked_into_once(tmp_path):
    inner = zip_of(tmp_path / "inner.zip", {"hw/a.ipynb": ONE, "../b.ipynb": ONE, "c.zip": b"PK"})
    place = folder_of(tmp_path / "hw", {"ada.zip": inner.read_bytes(), "bob.zip": b"no zip"})
    ada, bob = find(place).submissions
    assert ada.files == ("ada.zip/hw/a.ipynb",)
    assert ada.notes == ("../b.ipynb: its name leads out of the zip",)
    assert "no notebook was handed in; bob.zip: File is not a zip file" in bob.problem


@pytest.mark.parametrize("what", ["absent", "empty", "text", "names nobody"])
def test_nothing_to_grade_is_said(tmp_path, what):
    place = tmp_path / "place"
    if what == "empty":
        place.mkdir()
    elif what == "text":
        place.write_text("hello")
    elif what == "names nobody":
        folder_of(place, {"readme.txt": "hello"})
    with pytest.raises(NoSubmissions, match=str(place)):
        find(place)


def test_one_notebook_alone_is_a_class_of_one(tmp_path):
    (tmp_path / "ada.ipynb").write_bytes(ONE)
    assert students(tmp_path / "ada.ipynb") == ["ada"]


def test_folders_with_nothing_in_them_are_students_without_a_notebook(tmp_path):
    place = folder_of(tmp_path / "hw", {"ada/x.ipynb": ONE})
    (place / "bob").mkdir()
    (place / "eve" / ".ipynb_checkpoints").mkdir(parents=True)
    _, bob, eve = find(place).submissions
    assert bob.problem.startswith("no notebook was handed in; (nothing): the folder is empty")
    assert eve.problem.startswith("no notebook was handed in; (nothing): the folder is empty")
    packed = zip_of(tmp_path / "hw.zip", {"ada/x.ipynb": ONE, "bob/": b"", "eve/y.txt": b""})
    assert ["no notebook" in one.problem for one in find(packed).submissions] == [False, True, True]


# ------------------------------------------------------------------------------ hostile names


def test_links_are_not_followed(tmp_path):
    secret = folder_of(tmp_path / "secret", {"solution.ipynb": notebook("secret = 1")})
    place = folder_of(tmp_path / "hw", {"ada/x.ipynb": ONE})
    (place / "ada" / "y.ipynb").symlink_to(secret / "solution.ipynb")
    (place / "bob").symlink_to(secret)
    (place / "eve.ipynb").symlink_to(place / "ada" / "x.ipynb")
    found = find(place)
    by = {one.student: one for one in found.submissions}
    assert by["ada"].files == ("ada/x.ipynb",)
    assert by["ada"].notes == ("y.ipynb: a symbolic link, which is not followed",)
    assert "eve.ipynb: a symbolic link, which is not followed" in by["eve"].problem
    assert found.left_out == ("bob: a symbolic link, which is not followed",)
    assert not any("secret" in cell for one in found.submissions for cell in read(one).cells)


def test_zip_entries_that_climb_or_link_are_left_out(tmp_path):
    link = zipfile.ZipInfo("ada/y.ipynb")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    before = sorted(os.listdir(tmp_path))
    place = zip_of(
        tmp_path / "x.zip",
        [
            ("ada/x.ipynb", ONE),
            (link, "/etc/passwd"),
            ("../../evil.ipynb", ONE),
            ("/etc/evil.ipynb", ONE),
            ("C:/evil.ipynb", ONE),
            ("bob/..\\..\\evil.ipynb", ONE),
            ("bob/x.ipynb", ONE),
        ],
    )
    found = find(place)
    assert [one.student for one in found.submissions] == ["ada", "bob"]
    assert found.submissions[0].notes == ("y.ipynb: a symbolic link, which is not followed",)
    assert len(found.left_out) == 4
    assert all(text.endswith("its name leads out of the zip") for text in found.left_out)
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "x.zip"]), "nothing is unpacked"


def test_names_in_zips_without_the_mark_of_utf8(tmp_path):
    place = zip_of(tmp_path / "x.zip", {"AdaXX/x.ipynb": ONE, "b/x.ipynb": ONE})
    place.write_bytes(place.read_bytes().replace(b"AdaXX", b"Ad\xc3\xa4X"))
    assert students(place) == ["AdäX", "b"]


def test_names_that_cannot_be_printed(tmp_path):
    folder = os.fsencode(tmp_path / "hw")
    os.makedirs(folder)
    for name in (b"bad\xff.ipynb", b"line\nbreak.ipynb", b" blank .ipynb"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(ONE)
    assert students(tmp_path / "hw") == ["bad?", "blank", "line�break"]
    assert all(read(one).readable for one in find(tmp_path / "hw").submissions)


def test_composed_and_decomposed_names_are_one_student(tmp_path):
    place = zip_of(tmp_path / "x.zip", {"Zoe\u0308/a.ipynb": ONE, "Zo\u00eb/b.ipynb": ONE})
    (zoe,) = find(place).submissions
    assert (zoe.student, len(zoe.notebooks)) == ("Zoë", 2)


# ------------------------------------------------------------------------------ sizes


def test_a_notebook_of_more_than_200_mb_is_refused(tmp_path):
    place = folder_of(tmp_path / "hw", {"ada.ipynb": ONE})
    with (place / "bob.ipynb").open("wb") as file:
        file.truncate(200 * 10**6 + 1)
    ada, bob = map(read, find(place).submissions)
    assert ada.readable
    assert not bob.readable
    assert "it has 200 MB or more; at most 200 MB are read (clear the outputs" in bob.problem


def test_a_large_notebook_whose_outputs_are_large_is_read(tmp_path):
    image = {"output_type": "display_data", "data": {"image/png": "A" * 30_000_000}, "metadata": {}}
    (tmp_path / "ada.ipynb").write_bytes(notebook(code("x = 1", outputs=[image])))
    assert read(find(tmp_path / "ada.ipynb").submissions[0]).cells == ("x = 1",)


def test_a_zip_that_lies_about_sizes_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(folders_and_zips, "LARGEST_NOTEBOOK", 10_000)
    bomb = notebook("x = 1", metadata={"pad": " " * 1_000_000})
    place = zip_of(tmp_path / "x.zip", {"ada/x.ipynb": bomb, "bob/x.ipynb": ONE})
    assert place.stat().st_size < 10_000
    ada, bob = map(read, find(place).submissions)
    assert "MB or more" in ada.problem
    assert bob.readable
    lie = place.read_bytes().replace(len(bomb).to_bytes(4, "little"), (9_000).to_bytes(4, "little"))
    place.write_bytes(lie)
    ada, bob = map(read, find(place).submissions)
    assert not ada.readable
    assert "the zip cannot give it back" in ada.problem
    assert bob.readable


def test_what_is_read_never_exceeds_the_bound_whatever_is_declared():
    data = b"x" * 5_000_000
    assert len(folders_and_zips.at_most(zipfile.io.BytesIO(data), 1_000_001)) == 1_000_001


def test_too_many_values_and_too_much_code(monkeypatch):
    with pytest.raises(Unreadable, match="more than 5,000,000 values"):
        cells_of(b"[" + b"[]," * 5_000_001 + b"[]]")
    with pytest.raises(Unreadable, match="more than 4 million characters"):
        cells_of(notebook("#" * 4_000_001))


# ------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (notebook("x = 1")[:-40], "its JSON is torn at line 1, column"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "its JSON is torn"),
        (b"[1, 2]", "its JSON is a list, not an object"),
        (b'"hello"', "its JSON is a text, not an object"),
        (b"null", "its JSON is null, not an object"),
        (b"7", "its JSON is a number, not an object"),
        (b'{"nbformat": 4}', "its `cells` are missing, not a list"),
        (b'{"cells": {"a": 1}}', "its `cells` are an object, not a list"),
        (b'{"cells": null}', "its `cells` are null, not a list"),
        (b'{"cells": "x = 1"}', "its `cells` are a text, not a list"),
        (b'{"worksheets": [{"cells": []}]}', "an old format"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"cells": ' + b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_notebook_is_said(data, says):
    with pytest.raises(Unreadable) as caught:
        cells_of(data)
    assert says in str(caught.value)


def test_wrong_types_inside_cost_that_cell(tmp_path):
    cells = [
        "a = 1",
        code({"b": 1}),
        None,
        ["c = 1"],
        code(["d = ", 1]),
        code(["e = 1\n", "f = 1"]),
        code(None),
        {"source": "g = 1"},
        {"cell_type": "code"},
        {"cell_type": ["code"], "source": "h = 1"},
        {"cell_type": "markdown", "source": "# text"},
    ]
    found = cells_of(notebook(*cells))
    assert found.cells == ["a = 1", "e = 1\nf = 1", "g = 1", "", "h = 1"]
    assert found.problems == [
        "cell 2 was left out: its source is an object",
        "cell 3 was left out: it is no cell",
        "cell 4 was left out: it is no cell",
        "cell 5 was left out: its source is a list",
        "cell 7 was left out: its source is null",
    ]


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
def test_encodings(encoding):
    text = notebook("name = 'Zoë 数'").decode()
    assert cells_of(text.encode(encoding)).cells == ["name = 'Zoë 数'"]


def test_what_is_not_unicode_is_read_as_windows_1252():
    found = cells_of(notebook("name = 'Zoë'").decode().encode("cp1252"))
    assert found.cells == ["name = 'Zoë'"]
    assert found.notes == ["it is not in UTF-8 and was read as Windows-1252"]


def test_texts_that_cannot_be_written_again_and_endless_numbers():
    data = b'{"cells": [{"cell_type": "code", "source": "x = \'\\ud800\'"}], "n": ' + b"9" * 50_000
    assert cells_of(data + b"}").cells == ["x = '?'"]
    assert cells_of(notebook("a = 1\r\nb = 2")).cells == ["a = 1\nb = 2"]
    assert cells_of(b'{"cells": [], "x": NaN, "cells": [{"source": "y"}]}').cells == ["y"]


ANSWER = '@exercise("toys.softmax")\ndef softmax(x):\n    return x\n'


def test_an_answer_in_a_cell_that_is_marked_as_text_is_read():
    lost = {"cell_type": "markdown", "source": ANSWER}
    found = cells_of(notebook("import torch", lost))
    assert found.cells == ["import torch", ANSWER]
    assert found.notes == ["cell 2 is marked as markdown and was read as code"]
    assert cells_of(notebook(lost, ANSWER)).cells == [ANSWER], "the code cell is the answer"
    shown = {"cell_type": "markdown", "source": f"```python\n{ANSWER}```"}
    assert cells_of(notebook(shown)).cells == []


def test_two_notebooks_are_read_in_order_of_name(tmp_path):
    place = folder_of(
        tmp_path / "hw",
        {"ada/b.ipynb": notebook("b = 1"), "ada/a.ipynb": notebook("a = 1"), "ada/c.ipynb": "torn"},
    )
    content = read(find(place).submissions[0])
    assert content.readable
    assert content.cells == ("a = 1", "b = 1")
    assert content.problem.startswith("c.ipynb: its JSON is torn at line 1, column 1")
    assert content.notes == (), "no exercise is answered twice"


def test_the_digest_tells_submissions_apart(tmp_path):
    place = folder_of(tmp_path / "hw", {"a/x.ipynb": ONE, "b/x.ipynb": ONE, "c/x.ipynb": "torn"})
    a, b, c = (read(one).digest for one in find(place).submissions)
    assert a == b != c
    (place / "a" / "x.ipynb").write_bytes(notebook("x = 2"))
    assert read(find(place).submissions[0]).digest != a


def test_an_unreadable_folder_or_file_costs_that_student(tmp_path, monkeypatch):
    place = folder_of(tmp_path / "hw", {"a/x.ipynb": ONE, "b/x.ipynb": ONE, "c/x.ipynb": ONE})

    def refused(method):
        def checked(self, *given, **named):
            if self in (place / "a", place / "b" / "x.ipynb"):
                raise PermissionError(13, "Permission denied")
            return method(self, *given, **named)

        return checked

    monkeypatch.setattr(Path, "iterdir", refused(Path.iterdir))
    monkeypatch.setattr(Path, "open", refused(Path.open))
    a, b, c = find(place).submissions
    assert "the folder cannot be read: Permission denied" in a.problem
    assert read(b).problem == "it cannot be read: Permission denied"
    assert read(c).readable


def test_json_with_deep_but_sane_nesting_is_read():
    deep = json.loads("[" * 200 + "]" * 200)
    assert cells_of(notebook("x = 1", metadata={"widgets": deep})).cells == ["x = 1"]


# ------------------------------------------------------------------------------ one student or two


def answer(text: str, key: str = "strides.flat_index") -> bytes:
    return notebook(f'@exercise("{key}")\ndef f():\n    return {text}')


DATES = {"2026_12_01_ada.ipynb": answer("1"), "2026_12_01_bob.ipynb": answer("2")}
SAME_WORDS = {"hw_2026_11_ada.ipynb": answer("1"), "hw_2026_12_bob.ipynb": answer("2")}
WRITTEN_OTHERWISE = {
    "a blank at the end": ("ada", "ada "),
    "a blank that does not break": ("ada", "ada\u00a0"),
    "a control character": ("a\x01da", "a\x02da"),
    "an accent as a character of its own": ("zo\u00eb", "zoe\u0308"),
}


def test_a_date_is_no_name_of_canvas(tmp_path):
    assert students(folder_of(tmp_path / "hw", DATES)) == ["2026_12_01_ada", "2026_12_01_bob"]


def test_names_like_those_of_canvas_with_different_answers_stop_the_run(tmp_path):
    with pytest.raises(NoSubmissions, match=r"both be hw_2026's, and their answers to .* differ"):
        find(folder_of(tmp_path / "hw", SAME_WORDS))


def test_two_chapters_of_one_student_of_canvas(tmp_path):
    files = {
        "lovelaceada_1234_567890_02_strides.ipynb": answer("1"),
        "lovelaceada_1234_567891_01_tensors.ipynb": answer("2", "tensors.masked_mean"),
    }
    (one,) = find(folder_of(tmp_path / "hw", files)).submissions
    assert len(one.notebooks) == 2
    assert read(one).notes == ()


def test_names_that_differ_in_capitals_alone_are_two_students_and_it_is_said(tmp_path):
    files = {f"{name}/a.ipynb": answer(str(n)) for n, name in enumerate(("Ada", "ada", "bob"))}
    big, small, other = find(zip_of(tmp_path / "a.zip", files)).submissions
    assert big.notes == ("ada is graded as another student",)
    assert small.notes == ("Ada is graded as another student",)
    assert other.notes == ()


@pytest.mark.parametrize("names", WRITTEN_OTHERWISE.values(), ids=WRITTEN_OTHERWISE)
def test_names_that_are_only_written_differently(tmp_path, names):
    """Kept both and said; stopped where it would change a mark."""
    agree = {f"{name}/{n}.ipynb": answer("1") for n, name in enumerate(names)}
    (one,) = find(zip_of(tmp_path / "a.zip", agree)).submissions
    assert len(one.notebooks) == 2
    assert any("2 names were taken for one: " in note for note in one.notes)
    differ = {f"{name}/x.ipynb": answer(str(n)) for n, name in enumerate(names)}
    with pytest.raises(NoSubmissions, match=r"their answers to strides\.flat_index differ"):
        find(zip_of(tmp_path / "b.zip", differ))


@pytest.mark.parametrize("old", ["02_strides_old", "02_strides-Copy1", "zz", "03_strides_x"])
def test_the_notebook_that_was_handed_out_counts(tmp_path, old):
    files = {f"ada/{old}.ipynb": answer("1"), "ada/02_strides.ipynb": answer("2")}
    handed_out = HandedOut.by(["02_strides.ipynb"], [])
    (one,) = find(folder_of(tmp_path / "hw", files), handed_out).submissions
    assert read(one).cells[-1].endswith("return 2")
    (note,) = read(one).notes
    assert note.startswith("strides.flat_index: in 2 notebooks (")


@pytest.mark.parametrize(
    "stem", ["02_strides", "02_strides-1", "02_strides (2)", "ada_12_345_02_strides", "problems-3"]
)
def test_names_of_what_was_handed_out(stem):
    handed_out = HandedOut.by(["problems.ipynb"], ["strides.flat_index"])
    assert handed_out.includes(stem)
    assert not handed_out.includes(f"{stem}_old")
    assert not HandedOut().includes(stem)


def test_a_time_that_the_student_wrote_does_not_replace_gradescopes(tmp_path):
    root = "assignment_42_export"
    files = {
        f"{root}/submission_metadata.yml": GRADESCOPE,
        f"{root}/submission_101/02_strides.ipynb": ONE,
        f"{root}/submission_101/timestamp.txt": "1999-01-01 00:00:00 UTC",
        f"{root}/submission_102/02_strides.ipynb": ONE,
    }
    found = find(zip_of(tmp_path / "assignment_42_export.zip", files)).submissions
    assert found[0].submitted == datetime(2026, 4, 26, 17, 34, 0, 861687, UTC)


# ------------------------------------------------------------------------------ what takes long


def test_names_of_accents_without_end_are_left_out(tmp_path):
    """Putting the accents of a name into order takes the square of their number."""
    accents = "\u0301\u0323" * 10_000
    place = zip_of(tmp_path / "x.zip", {"ada.ipynb": ONE, f"b{accents}/x.ipynb": ONE})
    found = find(place)
    assert [one.student for one in found.submissions] == ["ada"]
    (said,) = found.left_out
    assert said.endswith("its name is too long, or in too many folders")
    assert len(said) < 200


def test_a_name_below_a_thousand_folders_is_left_out(tmp_path):
    place = zip_of(tmp_path / "x.zip", {"ada.ipynb": ONE, "a/" * 1000 + "x.ipynb": ONE})
    found = find(place)
    assert [one.student for one in found.submissions] == ["ada"]
    assert len(found.left_out) == 1


def test_what_is_read_of_one_student_is_bounded_in_all(tmp_path, monkeypatch):
    """Twenty notebooks of nearly 200 MB each are 4 MB in a zip. What was handed out comes first."""
    monkeypatch.setattr(folders_and_zips, "LARGEST_NOTEBOOK", 100_000)
    large = notebook("x = 1", metadata={"pad": " " * 90_000})
    members = {f"{number}.ipynb": large for number in range(20)} | {"02_strides.ipynb": ONE}
    (tmp_path / "hw/ada").mkdir(parents=True)
    zip_of(tmp_path / "hw/ada/all.zip", members)
    read_of: list[int] = []

    def counted(stream, n):
        data = at_most(stream, n)
        read_of.append(len(data))
        return data

    at_most = folders_and_zips.at_most
    monkeypatch.setattr(folders_and_zips, "at_most", counted)
    handed_out = HandedOut.by(["02_strides.ipynb"], ["strides.flat_index"])
    content = read(find(tmp_path / "hw", handed_out).submissions[0])
    assert sum(read_of) < 2 * 100_000
    assert content.cells[-1] == "x = 1"
    assert "are read of one student's files together" in content.problem
    assert "and 9 more" in content.problem


def test_the_zips_of_one_student_are_bounded_together(tmp_path, monkeypatch):
    monkeypatch.setattr(folders_and_zips, "LARGEST_NOTEBOOK", 10_000)
    pad = zipfile.ZipInfo("pad")  # stored as it is
    for number in range(5):
        place = folder_of(tmp_path / "hw", {"ada/y.txt": ""}) / f"ada/{number}.zip"
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr(pad, bytes(4_000))
            archive.writestr("x.ipynb", ONE)
    (ada,) = find(tmp_path / "hw").submissions
    assert len(ada.notebooks) == 2
    assert len([note for note in ada.notes if "MB or more" in note]) == 3


def test_a_thousand_complaints_are_a_few(tmp_path):
    cells = [{"cell_type": "code", "source": 1}] * 10_000
    climbing = {f"../{number}.ipynb": ONE for number in range(1000)}
    place = folder_of(tmp_path / "hw", {"ada/x.ipynb": notebook(*cells)})
    zip_of(place / "ada/y.zip", climbing)
    content = read(find(place).submissions[0])
    assert content.problem.startswith("cell 1 was left out: its source is a number; cell 2 ")
    assert content.problem.endswith("and 9990 more")
    assert len(content.notes) == 11


def test_an_answer_with_a_name_without_end_is_a_short_note(tmp_path):
    named = notebook(f'@exercise("a.{"b" * 100_000}")\ndef f(): ...')
    place = folder_of(tmp_path / "hw", {"ada/x.ipynb": named, "ada/y.ipynb": named})
    content = read(find(place).submissions[0])
    assert max(map(len, content.notes)) <= 300


def test_lines_of_nothing_are_looked_through_once():
    """A search that begins again at each of a million empty lines would take a day."""
    for lines in ("\n" * 10**6, " \n" * 10**6, "@a(\n" * 10**6):
        assert not MAGIC.search(lines)
        assert not DECORATED.search(lines)
    assert MAGIC.sub(r"\1pass", "\n  %time\n\n!ls") == "\n  pass\n\npass"
