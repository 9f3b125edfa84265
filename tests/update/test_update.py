"""`course update`: answers and cells of the student's own arrive in the newer edition, and nothing is lost."""

import json
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from course_utils import update
from course_utils.authoring import notebooks as form
from course_utils.classroom import release
from course_utils.classroom.marks.plan import plan_of
from course_utils.cli import app, chapters
from course_utils.grading import solution_cell, stub_cell
from course_utils.source.answers import answers
from course_utils.source.cells import read_cells
from course_utils.update.folders import files_of
from course_utils.update.merge import Merge
from course_utils.update.notebook import parse
from course_utils.update.pieces import keys_in
from course_utils.update.stamp import stamp

ROOT = Path(__file__).parents[2]
DAY = date(2026, 11, 21)
AREA = '@exercise("shapes.area")\ndef area(w: int, h: int) -> int:\n    """w times h."""\n'
EDGE = '@exercise("shapes.edge")\ndef edge(w: int, h: int) -> int:\n    """All around."""\n'
CODES = (
    '@exercise("codes.pair")\ndef encode(x):\n    {}\n\n\n'
    '@exercise("codes.pair")\ndef decode(y):\n    {}'
)
TURN = '    raise NotImplementedError("your turn")'
PAIR = CODES.format(TURN.strip(), TURN.strip())


def cell(kind, source, name, **metadata):
    made = {"cell_type": kind, "id": name, "metadata": metadata, "source": source}
    return made | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def notebook(*cells, stamped=True, **metadata):
    made = {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return stamp(made, "1") if stamped else made


def edition(area=AREA + TURN, edge=EDGE + TURN, prose="Areas.", example="x = 1", *more):
    return notebook(
        cell("markdown", "# 1 · Shapes", "shapes"),
        cell("code", "import torch", "setup", tags=["setup"]),
        cell("markdown", prose, "shapes-cell-1"),
        cell("code", example, "shapes-cell-2"),
        cell("code", area, "exercise-shapes-area", exercise="shapes.area"),
        cell("markdown", "Now the edge.", "shapes-cell-3"),
        cell("code", edge, "exercise-shapes-edge", exercise="shapes.edge"),
        cell("code", PAIR, "exercise-codes-pair", exercise="codes.pair"),
        *more,
    )


class Desk:
    """A student's folder and the folder of the newer edition."""

    def __init__(self, folder):
        self.mine, self.newer = folder / "mine", folder / "newer"
        for home in (self.mine, self.newer):
            (home / "notebooks").mkdir(parents=True)

    def put(self, mine, newer, name="01_shapes.ipynb"):
        self.student(mine, name)
        (self.newer / "notebooks" / name).write_text(json.dumps(newer), encoding="utf-8")

    def student(self, mine, name="01_shapes.ipynb"):
        (self.mine / "notebooks" / name).write_text(json.dumps(mine), encoding="utf-8")

    def update(self):
        mine = update.notebooks_in(self.mine)
        found = update.changes(mine, self.newer, add=self.mine / "notebooks")
        for change in found:
            update.apply(change, DAY)
        return {change.path.name: change for change in found}

    def cells(self, name="01_shapes.ipynb"):
        path = self.mine / "notebooks" / name
        return form.nbformat.reads(path.read_text("utf-8"), as_version=4).cells

    def sources(self, name="01_shapes.ipynb"):
        return [c.source for c in self.cells(name)]

    def files(self):
        return {p.name: p.read_bytes() for p in (self.mine / "notebooks").iterdir()}


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def answered(made, **sources):
    """The student's notebook: cells replaced by id (with _ for -)."""
    for c in made["cells"]:
        c["source"] = sources.pop(c["id"].replace("-", "_"), c["source"])
    assert not sources
    return made


def with_cells(made, after, *cells):
    place = 1 + next(i for i, c in enumerate(made["cells"]) if c["id"] == after)
    made["cells"][place:place] = cells
    return made


MY_AREA = AREA + "    return w * h"


# ------------------------------------------------------------------------------ answers


def test_an_answer_goes_into_the_new_notebook_and_the_old_file_is_kept(desk):
    mine = answered(edition(), exercise_shapes_area=MY_AREA)
    desk.put(mine, edition(prose="Areas, in other words."))
    before = desk.files()["01_shapes.ipynb"]
    change = desk.update()["01_shapes.ipynb"]
    assert MY_AREA in desk.sources()
    assert "Areas, in other words." in desk.sources()
    assert "Areas." not in desk.sources()
    assert desk.files()["01_shapes.before-2026-11-21.ipynb"] == before
    assert "shapes.area: your answer is carried over" in change.notes


def test_updating_again_changes_nothing(desk):
    mine = answered(edition(), exercise_shapes_area=MY_AREA)
    mine = with_cells(mine, "shapes-cell-3", cell("code", "mine = 1", "0a1b2c3d"))
    desk.put(mine, edition(prose="Other words.", edge="@exercise('shapes.edge')\nclass edge: ..."))
    desk.update()
    once = desk.files()
    assert all(change.text is None for change in desk.update().values())
    assert desk.files() == once


def test_what_was_not_attempted_becomes_the_new_stub(desk):
    desk.put(edition(), edition(area=AREA.replace("w times h", "the product") + TURN))
    assert desk.update()["01_shapes.ipynb"].notes == ()
    assert AREA.replace("w times h", "the product") + TURN in desk.sources()


def test_helpers_stay_before_the_answer_that_uses_them(desk):
    helper = cell("code", "def twice(x):\n    return 2 * x", "1f2e3d4c")
    mine = answered(edition(), exercise_shapes_edge=EDGE + "    return twice(w + h)")
    desk.put(with_cells(mine, "shapes-cell-3", helper), edition(prose="New."))
    notes = desk.update()["01_shapes.ipynb"].notes
    sources = desk.sources()
    assert sources.index(helper["source"]) < sources.index(EDGE + "    return twice(w + h)")
    assert any("def twice(x):" in note for note in notes)


def test_an_exercise_that_is_gone_is_kept_as_text_and_listed(desk):
    newer = edition()
    newer["cells"] = [c for c in newer["cells"] if c["id"] != "exercise-shapes-area"]
    desk.put(answered(edition(), exercise_shapes_area=MY_AREA), newer)
    notes = desk.update()["01_shapes.ipynb"].notes
    assert "kept as text: shapes.area: this exercise is no longer here" in notes
    (kept,) = [c for c in desk.cells() if c.cell_type == "raw"]
    assert MY_AREA in kept.source


def test_a_renamed_exercise_is_gone_under_its_old_name_and_a_stub_under_the_new(desk):
    newer = edition(area=AREA.replace("shapes.area", "shapes.extent") + TURN)
    desk.put(answered(edition(), exercise_shapes_area=MY_AREA), newer)
    desk.update()
    kinds = {c.source: c.cell_type for c in desk.cells()}
    assert kinds[AREA.replace("shapes.area", "shapes.extent") + TURN] == "code"
    assert [k for s, k in kinds.items() if MY_AREA in s] == ["raw"]


def test_an_answer_to_another_signature_is_kept_as_text_below_the_new_stub(desk):
    wider = AREA.replace("w: int, h: int", "w: int, h: int, unit: str") + TURN
    desk.put(answered(edition(), exercise_shapes_area=MY_AREA), edition(area=wider))
    notes = desk.update()["01_shapes.ipynb"].notes
    assert "kept as text: shapes.area: `area` takes (w, h, unit) now" in notes
    sources = desk.sources()
    place = sources.index(wider)
    assert MY_AREA in sources[place + 1]
    assert desk.cells()[place + 1].cell_type == "raw"


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ("class area:\n    def __init__(self, w):\n", "`area` is another kind of thing now"),
        ("def area(h, w):\n", "`area` takes (h, w) now"),
        ("def size(w, h):\n", "`size` is asked for now"),
    ],
)
def test_what_no_longer_fits_says_why(desk, now, says):
    body = "        " if now.startswith("class") else "    "
    stub = f'@exercise("shapes.area")\n{now}{body}raise NotImplementedError("your turn")'
    desk.put(answered(edition(), exercise_shapes_area=MY_AREA), edition(area=stub))
    assert f"kept as text: shapes.area: {says}" in desk.update()["01_shapes.ipynb"].notes


def test_defaults_and_catch_alls_of_the_students_own_fit(desk):
    for parameters in ("w, h, verbose=False", "*sizes", "w: int, h: int, *, log=None"):
        mine = f'@exercise("shapes.area")\ndef area({parameters}):\n    return 6'
        desk.put(answered(edition(), exercise_shapes_area=mine), edition(prose=parameters))
        desk.update()
        assert mine in desk.sources()


def test_a_method_that_the_new_edition_asks_for(desk):
    old = '@exercise("shapes.area")\nclass area:\n    def __init__(self, w):\n        '
    new = old + 'raise NotImplementedError("your turn")\n\n    def grow(self, by):\n        ...'
    desk.put(answered(edition(), exercise_shapes_area=old + "self.w = w"), edition(area=new))
    said = "kept as text: shapes.area: `area` has a method `grow` now"
    assert said in desk.update()["01_shapes.ipynb"].notes


@pytest.mark.parametrize(
    ("was", "uses", "says"),
    [
        ("from math import prod as times", "times((w, h))", "was `from math import prod as times`"),
        ("def times(w, h):\n    return w * h", "times(w, h)", "is in the copy"),
    ],
)
def test_what_an_answer_uses_and_the_newer_edition_does_not_define_is_named(desk, was, uses, says):
    mine = f"{AREA}    return {uses}"
    desk.put(answered(edition(example=was), exercise_shapes_area=mine), edition())
    notes = desk.update()["01_shapes.ipynb"].notes
    said = "this edition's notebook does not define it"
    assert f"shapes.area: your answer uses `times`, which {says}; {said}" in notes
    assert mine in desk.sources()
    assert all(change.text is None for change in desk.update().values())


def test_what_an_answer_that_moved_uses_is_named_too(desk):
    newer = edition()
    moved = [c for c in newer["cells"] if c["id"] == "exercise-shapes-area"]
    newer["cells"] = [c for c in newer["cells"] if c not in moved]
    mine = answered(edition(example="import math"), exercise_shapes_area=AREA + "    return math.e")
    desk.put(mine, newer)
    (desk.newer / "notebooks/02_more.ipynb").write_text(json.dumps(notebook(*moved)))
    notes = desk.update()["02_more.ipynb"].notes
    assert any("your answer uses `math`, which was `import math`" in note for note in notes)


@pytest.mark.parametrize("keeps", ["from math import *", "import math", "own"])
def test_what_is_still_defined_is_not_named(desk, keeps):
    mine = answered(edition(example="import math"), exercise_shapes_area=AREA + "    return math.e")
    if keeps == "own":
        mine = with_cells(mine, "shapes-cell-2", cell("code", "import math  # mine", "0a1b2c3d"))
    desk.put(mine, edition(prose="New.", example="x = 1" if keeps == "own" else keeps))
    assert not any("uses" in note for note in desk.update()["01_shapes.ipynb"].notes)


@pytest.mark.parametrize(("now", "changed"), [("Wider.", False), ("Wider, by 1 at least.", True)])
def test_a_methods_docstring_counts_as_description(desk, now, changed):
    stub = '@exercise("shapes.area")\nclass area:\n    """It."""\n\n    def grow(self):\n        """{}"""\n'
    mine = stub.format("Wider.") + "        return 1"
    newer = stub.format(now) + f"    {TURN}"
    desk.put(answered(edition(), exercise_shapes_area=mine), edition(area=newer))
    (note,) = desk.update()["01_shapes.ipynb"].notes
    assert ("its description has changed" in note) is changed


# ------------------------------------------------------------------------------ damage


def last_answer(path, key):
    found = answers(read_cells(path))[key]
    return [s.cell for s in found.statements], found


def test_a_duplicated_answer_still_ends_with_the_last_one(desk):
    other = AREA + "    return h * w"
    mine = answered(edition(), exercise_shapes_area=MY_AREA)
    mine = with_cells(mine, "exercise-shapes-area", cell("code", other, "aaaaaaaa"))
    desk.put(mine, edition(prose="New."))
    desk.update()
    sources = desk.sources()
    assert sources.index(MY_AREA) + 1 == sources.index(other)
    assert AREA + TURN not in sources


def test_a_copy_above_its_stub_counts(desk):
    mine = with_cells(edition(), "shapes-cell-2", cell("code", MY_AREA, "bbbbbbbb"))
    desk.put(mine, edition(prose="New."))
    desk.update()
    assert desk.sources().count(MY_AREA) == 1
    assert AREA + TURN not in desk.sources(), "the stub would count, being the last"


def test_a_pair_split_into_two_cells_keeps_both(desk):
    encode, decode = CODES.format("return x + 1", "return y - 1").split("\n\n\n")
    mine = answered(edition(), exercise_codes_pair=encode)
    mine = with_cells(mine, "exercise-codes-pair", cell("code", decode, "cccccccc"))
    desk.put(mine, edition(prose="New."))
    desk.update()
    sources = desk.sources()
    assert sources[sources.index(encode) + 1] == decode


def test_two_answers_merged_into_one_cell_go_to_their_places(desk):
    my_edge = EDGE + "    return 2 * (w + h)"
    both = answered(edition(), exercise_shapes_area=f"import math\n\n{MY_AREA}\n\n\n{my_edge}")
    both["cells"] = [c for c in both["cells"] if c["id"] != "exercise-shapes-edge"]
    desk.put(both, edition(prose="New."))
    desk.update()
    by_id = {c.id: c.source for c in desk.cells()}
    assert by_id["exercise-shapes-area"] == f"import math\n\n{MY_AREA}"
    assert by_id["exercise-shapes-edge"] == my_edge


def test_an_answer_with_a_syntax_error_is_carried_as_it_is(desk):
    broken = AREA + "    return w *"
    desk.put(answered(edition(), exercise_shapes_area=broken), edition(prose="New."))
    desk.update()
    assert broken in desk.sources()


def test_a_notebook_without_metadata_or_ids_keeps_its_answers(desk):
    mine = answered(edition(), exercise_shapes_area=MY_AREA)
    mine["metadata"] = {}
    mine["cells"] = [{k: c[k] for k in ("cell_type", "source")} for c in mine["cells"]]
    mine["cells"][3]["source"] = ["x = ", "2"]
    desk.put(mine, edition(prose="New."))
    desk.update()
    assert MY_AREA in desk.sources()
    assert "x = 2" in desk.sources(), "it may be the student's own"


@pytest.mark.parametrize("text", ['{"cells": [', "[]", '{"cells": [{"source": 3}]}', "\x00", ""])
def test_a_damaged_notebook_is_left_alone_and_the_others_go_on(desk, text):
    desk.put(edition(), edition(prose="New."))
    desk.put(edition(), edition(prose="New."), name="02_more.ipynb")
    (desk.mine / "notebooks/02_more.ipynb").write_text(text)
    found = desk.update()
    assert found["02_more.ipynb"].failed
    assert "left as it is" in found["02_more.ipynb"].notes[0]
    assert desk.files()["02_more.ipynb"] == text.encode()
    assert "New." in desk.sources()


# ------------------------------------------------------------------------------ other cells


def test_a_changed_cell_that_the_edition_left_alone_stays_changed(desk):
    desk.put(answered(edition(), shapes_cell_2="x = 3  # my guess"), edition(prose="New."))
    desk.update()
    assert "x = 3  # my guess" in desk.sources()
    assert "x = 1" not in desk.sources()


def test_a_cell_that_both_changed_is_the_editions_and_the_students_is_kept_as_text(desk):
    desk.put(answered(edition(), shapes_cell_2="x = 3"), edition(example="x = 2"))
    desk.update()
    kinds = {c.source: c.cell_type for c in desk.cells()}
    assert kinds["x = 2"] == "code"
    assert [k for s, k in kinds.items() if s.endswith("\nx = 3")] == ["raw"]


def test_without_a_stamp_own_cells_are_known_by_their_ids_and_the_rest_is_counted(desk):
    mine = with_cells(edition(), "shapes-cell-1", cell("code", "mine = 1", "0a1b2c3d"))
    mine["metadata"] = {}
    desk.put(answered(mine, shapes_cell_2="x = 3"), edition(prose="New."))
    notes = desk.update()["01_shapes.ipynb"].notes
    assert "mine = 1" in desk.sources()
    assert "x = 3" not in desk.sources()
    assert any(note.startswith("2 cells of the older edition") for note in notes)


def test_the_older_edition_serves_where_there_is_no_stamp(desk, tmp_path):
    older = tmp_path / "older"
    older.mkdir()
    (older / "01_shapes.ipynb").write_text(json.dumps(edition()))
    mine = edition()
    mine["metadata"] = {}
    desk.put(answered(mine, shapes_cell_2="x = 3"), edition(prose="New."))
    (change,) = update.changes(update.notebooks_in(desk.mine), desk.newer, older=older)
    assert "x = 3" in [c["source"] for c in parse(change.text).cells]


def test_outputs_of_cells_that_did_not_change_stay(desk):
    mine = answered(edition(), exercise_shapes_area=MY_AREA)
    out = {"output_type": "stream", "name": "stdout", "text": "passed"}
    for c in mine["cells"]:
        if c["cell_type"] == "code":
            c |= {"outputs": [out], "execution_count": 7}
    desk.put(mine, edition(edge=EDGE.replace("All", "Once") + TURN))
    desk.update()
    ran = {c.id: bool(c.outputs) for c in desk.cells() if c.cell_type == "code"}
    assert ran["shapes-cell-2"]
    assert ran["exercise-shapes-area"]
    assert not ran["exercise-shapes-edge"]


# ------------------------------------------------------------------------------ files


def test_a_new_chapter_is_added_and_a_notebook_of_ones_own_is_left_alone(desk):
    desk.put(edition(), edition())
    desk.student(notebook(cell("code", "1", "one"), stamped=False), "scratch.ipynb")
    (desk.newer / "notebooks/02_new.ipynb").write_text(json.dumps(edition()))
    before = desk.files()["scratch.ipynb"]
    found = desk.update()
    assert found["02_new.ipynb"].notes == ("new",)
    assert desk.files()["scratch.ipynb"] == before


def test_a_renamed_chapter_takes_the_answers_and_the_old_file_under_another_name(desk):
    mine = answered(edition(), exercise_shapes_area=MY_AREA)
    desk.student(mine, "01_shapes.ipynb")
    (desk.newer / "notebooks/03_shapes.ipynb").write_text(json.dumps(edition()))
    desk.update()
    assert MY_AREA in desk.sources("03_shapes.ipynb")
    assert set(desk.files()) == {"03_shapes.ipynb", "01_shapes.before-2026-11-21.ipynb"}


def test_an_exercise_that_moved_to_another_chapter_takes_its_answer_along(desk):
    newer = edition()
    moved = [c for c in newer["cells"] if c["id"] == "exercise-shapes-area"]
    newer["cells"] = [c for c in newer["cells"] if c not in moved]
    desk.put(answered(edition(), exercise_shapes_area=MY_AREA), newer)
    desk.put(notebook(cell("markdown", "# 2", "two")), notebook(*moved), name="02_more.ipynb")
    desk.update()
    assert MY_AREA in desk.sources("02_more.ipynb")
    assert not any(MY_AREA in source for source in desk.sources())


def test_an_exercise_that_moved_to_a_new_chapter_takes_its_answer_along(desk):
    newer = edition()
    moved = [c for c in newer["cells"] if c["id"] == "exercise-shapes-area"]
    newer["cells"] = [c for c in newer["cells"] if c not in moved]
    desk.put(answered(edition(), exercise_shapes_area=MY_AREA), newer)
    (desk.newer / "notebooks/02_more.ipynb").write_text(json.dumps(notebook(*moved)))
    desk.update()
    assert MY_AREA in desk.sources("02_more.ipynb")


def test_an_answer_stays_if_the_notebook_that_its_exercise_moved_to_is_not_updated(desk):
    newer = edition()
    moved = [c for c in newer["cells"] if c["id"] == "exercise-shapes-area"]
    newer["cells"] = [c for c in newer["cells"] if c not in moved]
    desk.put(answered(edition(), exercise_shapes_area=MY_AREA), newer)
    (desk.newer / "notebooks/02_more.ipynb").write_text(json.dumps(notebook(*moved)))
    (change,) = update.changes(update.notebooks_in(desk.mine), desk.newer)
    assert any(MY_AREA in c["source"] for c in parse(change.text).cells)


def test_an_answer_in_a_scratch_notebook_does_not_replace_a_stub(desk):
    desk.put(edition(), edition(prose="New."))
    desk.student(notebook(cell("code", MY_AREA, "one"), stamped=False), "scratch.ipynb")
    desk.update()
    assert AREA + TURN in desk.sources()
    assert desk.sources("scratch.ipynb") == [MY_AREA]


@pytest.mark.parametrize("begun", ["# first the width\n" + TURN, "    # w · h?\n" + TURN])
def test_a_stub_with_a_note_in_it_is_the_students(desk, begun):
    desk.put(answered(edition(), exercise_shapes_area=AREA + begun), edition(prose="New."))
    desk.update()
    assert AREA + begun in desk.sources()


def test_a_helper_above_an_untouched_stub_stays_without_a_stamp_too(desk):
    helped = "import math\n\n" + AREA + TURN
    mine = answered(edition(), exercise_shapes_area=helped)
    mine["metadata"] = {}
    desk.put(mine, edition(prose="New."))
    desk.update()
    assert helped in desk.sources()


def test_a_second_copy_on_one_day_gets_another_name(desk):
    desk.put(edition(), edition(prose="New."))
    desk.update()
    desk.put(answered(edition(), exercise_shapes_area=MY_AREA), edition(prose="Newer."))
    desk.update()
    copies = [name for name in desk.files() if ".before-" in name]
    assert sorted(copies) == [
        "01_shapes.before-2026-11-21-2.ipynb",
        "01_shapes.before-2026-11-21.ipynb",
    ]


def test_a_write_that_fails_leaves_the_old_file(desk, monkeypatch):
    desk.put(edition(), edition(prose="New."))
    before = desk.files()["01_shapes.ipynb"]

    def full(*_):
        raise OSError("no space left on the device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        desk.update()
    assert desk.files()["01_shapes.ipynb"] == before


# ------------------------------------------------------------------------------ the whole of it


OWN = st.sampled_from(["a = 1", "b = 2\nprint(b)", "# a note", "def f(x):\n    return x", "x = 1"])


@given(
    own=st.lists(
        st.tuples(st.integers(0, 7), OWN, st.sampled_from(["code", "markdown"])), max_size=6
    ),
    answers=st.dictionaries(st.sampled_from(["area", "edge"]), st.integers(0, 9)),
    dropped=st.sets(st.integers(0, 7)),
    prose=st.sampled_from(["Areas.", "New."]),
    stamped=st.booleans(),
)
def test_no_answer_and_no_cell_of_ones_own_is_lost_and_twice_is_once(
    own, answers, dropped, prose, stamped
):
    mine, stubs = edition(), {"area": AREA, "edge": EDGE}
    bodies = {name: stubs[name] + f"    return {n}" for name, n in answers.items()}
    mine = answered(mine, **{f"exercise_shapes_{name}": body for name, body in bodies.items()})
    for number, (place, source, kind) in enumerate(own):
        mine["cells"].insert(place, cell(kind, source, f"{number:08x}"))
    newer = edition(prose=prose)
    newer["cells"] = [c for i, c in enumerate(newer["cells"]) if i not in dropped]
    newer = stamp(newer)
    if not stamped:
        mine["metadata"] = {}
    once, twice = merge(mine, newer), None
    text = "\n".join(c["source"] for c in once.cells)
    assert all(body in text for body in bodies.values())
    edition_holds = [c["source"] for c in edition()["cells"] + newer["cells"]]
    assert all(s in text for _, s, _ in own if s not in edition_holds)
    assert len({c["id"] for c in once.cells}) == len(once.cells)
    twice = merge(json.loads(once.text), newer)
    assert twice.text == once.text


def merge(mine, newer):
    mine, new = parse(json.dumps(mine)), parse(json.dumps(newer))
    gone = frozenset(set(keys_in(mine)) - set(keys_in(new)))
    return Merge(mine, new, {}, gone).run()


def test_a_chapter_of_the_book_with_every_answer_carried_by_the_command(tmp_path, monkeypatch):
    """Chapter 2, answered, with a heading reworded in the newer edition, through `course update`."""
    source = form.read(ROOT / "notebooks/02_strides.ipynb")
    mine, newer = tmp_path / "notebooks", tmp_path / "newer"
    mine.mkdir()
    newer.mkdir()
    handed_out = stamp(form.normalise(source))
    for c in handed_out.cells:
        if "exercise" in c.metadata:
            c.source = solution_cell(c.metadata["exercise"])
    (mine / "02_strides.ipynb").write_text(form.text(handed_out), encoding="utf-8")
    source.cells[-1].source += "\n\nA sentence of the newer edition."
    (newer / "02_strides.ipynb").write_text(form.text(stamp(form.normalise(source))))
    monkeypatch.chdir(tmp_path)
    checked = CliRunner().invoke(app, ["update", "--from", "newer", "--check"])
    assert checked.exit_code == 1
    assert len(list(mine.iterdir())) == 1
    done = CliRunner().invoke(app, ["update", "--from", "newer"])
    assert done.exit_code == 0, done.output
    made = {
        c.metadata.get("exercise"): c.source for c in form.read(mine / "02_strides.ipynb").cells
    }
    keys = [key for key in made if key]
    assert {made[key] for key in keys} == {solution_cell(key) for key in keys}
    assert done.output.count("your answer is carried over") == len(keys) == 10
    assert re.search(r"yours is kept as 02_strides\.before-\d{4}-\d\d-\d\d\.ipynb", done.output)
    again = CliRunner().invoke(app, ["update", "--from", "newer", "--check"])
    assert again.exit_code == 0
    assert "up to date" in again.output
    assert [path.name for path in chapters(None)] == ["02_strides.ipynb"], "the copy is none"
    assert stub_cell(keys[0]) not in made.values()


def put(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_package_of_an_edition_comes_along_and_the_earlier_one_is_kept(desk, monkeypatch):
    desk.put(edition(), edition(prose="New."))
    same = {"README": "one", "course_utils__a": "same"}
    put(desk.mine, **{".course-edition": "1", "course_utils__gone": "x", "notes": "mine", **same})
    put(desk.newer, **{".course-edition": "2", "course_utils__b": "new", **same, "README": "two"})
    monkeypatch.chdir(desk.mine)
    checked = CliRunner().invoke(app, ["update", "--from", "../newer", "--check"])
    assert "4 files differ" in checked.output
    assert (desk.mine / "README").read_text() == "one"
    CliRunner().invoke(app, ["update", "--from", "../newer"])
    (aside,) = desk.mine.glob("before-*")
    here = {str(p.relative_to(desk.mine)) for p in files_of(desk.mine)}
    assert here == {".course-edition", "README", "course_utils/a", "course_utils/b", "notes"}
    assert (desk.mine / "README").read_text() == "two"
    assert (aside / "README").read_text() == "one"
    assert (aside / "course_utils/gone").read_text() == "x"
    again = CliRunner().invoke(app, ["update", "--from", "../newer", "--check"])
    assert again.exit_code == 0, again.output


def test_a_folder_that_is_no_edition_keeps_its_package(desk):
    put(desk.mine, course_utils__a="1")
    put(desk.newer, **{".course-edition": "2", "course_utils__a": "2"})
    assert update.rest(desk.mine, desk.newer) == {}


def test_a_released_edition_goes_over_into_the_next_one_with_its_own_package(tmp_path):
    """Two editions as `course release` writes them; the older one's own `course update` is run."""
    key = "strides.flat_index"
    folders = []
    for week, names in enumerate(([key], [key, "strides.transpose_view"])):
        plan = plan_of(names, "Problem set")
        made = release.make(plan, ROOT, only_exercises=True)
        folders.append(release.write(made, tmp_path / str(week)).folder)
    mine, newer = folders
    path = mine / "notebooks/02_strides.ipynb"
    notebook = form.read(path)
    for c in notebook.cells:
        if c.metadata.get("exercise") == key:
            c.source = solution_cell(key)
    notebook.cells.append(form.nbformat.v4.new_code_cell("flat_index((1, 2), (4, 1))"))
    path.write_text(form.text(notebook), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "course_utils.cli", "update", "--from", newer],
        cwd=mine,
        env={**os.environ, "PYTHONPATH": str(mine)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"{key}: your answer is carried over" in done.stdout
    assert "your own cell 'flat_index((1, 2), (4, 1))' is kept" in done.stdout
    now = [c.source for c in form.read(path).cells]
    assert solution_cell(key) in now
    assert stub_cell("strides.transpose_view") in now
    assert now[0] == form.read(newer / "notebooks/02_strides.ipynb").cells[0].source
    assert not any("Kept:" in source for source in now)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "nowhere"], "no such folder: nowhere"),
        (["absent.ipynb", "--from", "."], "no such file: absent.ipynb"),
        (["--from", "empty"], "empty holds no notebooks"),
    ],
)
def test_the_command_says_what_is_missing(tmp_path, monkeypatch, arguments, says):
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.ipynb").write_text(json.dumps(edition()))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["update", *arguments])
    assert result.exit_code == 1
    assert says in result.output
