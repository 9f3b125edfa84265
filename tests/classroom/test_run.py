"""A run: what is graded, what is kept, and that nothing is lost whoever is killed when."""

import json
import multiprocessing
import os
import random
import re
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import toy_class
from deadly import deadly
from graded_here import SECRET
from submissions import folder_of, notebook
from toy_class import ATTENTION, PLAN, ROWS, SOFTMAX, WRONG, cells
from typer.testing import CliRunner

import course_utils.files
from course_utils.authoring.counts import count
from course_utils.classroom.marks.marking import without_answer
from course_utils.classroom.marks.plan import Late
from course_utils.classroom.marks.record import DAMAGED, FAILED, Record
from course_utils.classroom.run import (
    grade_class,
    grader,
    journal,
    sandboxes,
    terminal,
    worker,
    workers,
)
from course_utils.classroom.run.grader import CannotGrade
from course_utils.classroom.run.journal import CannotRun
from course_utils.classroom.run.tasks import Graded, Job, Settings, Task
from course_utils.cli import app
from course_utils.sandbox import Broken, SandboxMissing

MODULES = ("toy_class",)
KILLS = int(os.environ.get("COURSE_KILLS", "10"))  # more of them by hand
SETTINGS = Settings(modules=MODULES)
pytestmark = pytest.mark.usefixtures("known_secret")


@pytest.fixture
def known_secret(monkeypatch):
    """Every run of these tests has the same secret: one grader serves them all."""
    monkeypatch.setattr(journal, "secrets", SimpleNamespace(token_hex=lambda n: SECRET.hex()))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    wrong = cells(row_softmax=WRONG[SOFTMAX])
    return folder_of(
        tmp_path / "hw",
        {
            "ada.ipynb": notebook(*cells()),
            "bob.ipynb": notebook(*wrong),
            "eve.ipynb": b"torn",
            "zoë/x y.ipynb": notebook(toy_class.SET_UP, toy_class.RIGHT[ATTENTION]),
        },
    )


def graded(place: Path, *, plan=PLAN, **settings: Any) -> grade_class.Summary:
    return grade_class.grade(place, plan, place.parent / "grades", replace(SETTINGS, **settings))


def marks(source: Path | tuple[Record, ...]) -> list[Any]:
    """What must be the same however a run went: all of the records but times."""
    if isinstance(source, Path):
        source = tuple(Record.from_line(line) for line in source.read_text().splitlines())
    return [
        replace(
            one,
            seconds=0,
            graded_at=None,
            results=tuple(replace(r, seconds=0) for r in one.results),
        )
        for one in source
    ]


# ------------------------------------------------------------------------------ a run and its folder


def test_a_run_from_folder_to_gradebook(place, inline):
    summary = graded(place)
    assert [(one.student, one.status, one.points) for one in summary.records] == [
        ("ada", "graded", 8),
        ("bob", "graded", 7.5),
        ("eve", DAMAGED, 0),
        ("zoë", "graded", 4),
    ]
    assert (summary.graded, summary.kept, summary.damaged) == (4, 0, 1)
    folder = summary.folder
    told = json.loads((folder / "run.json").read_text())
    assert told["plan"] == json.loads(PLAN.to_json())
    assert told["secret"] == "secret"
    assert SECRET.hex() not in (folder / "run.json").read_text()
    assert len(told["isolation"]) == 1
    assert set(told["versions"]) == {"course", "python", "torch"}
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    lines = (folder / "results.jsonl").read_text().splitlines()
    assert {Record.from_line(line).student for line in lines} == {"ada", "bob", "eve", "zoë"}
    ada = summary.records[0]
    assert ada.isolation == told["isolation"][0] == summary.isolation[0]
    assert ada.seed == grader.fingerprint(SECRET)
    assert ada.digest
    assert ada.graded_at
    assert "gradebook.csv" in {path.name for path in summary.files}
    assert "zoë" in (folder / "gradebook.csv").read_text(encoding="utf-8")


def test_a_second_run_keeps_everything_and_a_changed_submission_is_graded_again(place, inline):
    first = graded(place)
    again = graded(place)
    assert (again.graded, again.kept) == (0, 4)
    assert again.records == first.records
    (place / "bob.ipynb").write_bytes(notebook(*cells()))
    (place / "eve.ipynb").write_bytes(notebook(*cells()))
    (place / "new.ipynb").write_bytes(notebook(*cells()))
    third = graded(place)
    assert (third.graded, third.kept) == (3, 2)
    assert {one.student: one.points for one in third.records} == {
        "ada": 8,
        "bob": 8,
        "eve": 8,
        "new": 8,
        "zoë": 4,
    }
    kept = [one for one in third.records if one.student in ("ada", "zoë")]
    assert kept == [one for one in first.records if one.student in ("ada", "zoë")]


def test_the_same_secret_gives_the_same_marks_again(place, inline, tmp_path):
    first = graded(place)
    other = grade_class.grade(place, PLAN, tmp_path / "elsewhere", SETTINGS)
    assert marks(first.records) == marks(other.records)


def test_only_some_are_graded_again_and_the_others_left_alone(place, inline):
    first = graded(place)
    again = graded(place, only=("bob",))
    assert (again.graded, again.kept) == (1, 3)
    assert [one for one in again.records if one.student != "bob"] == [
        one for one in first.records if one.student != "bob"
    ]
    assert marks(again.records) == marks(first.records)
    assert again.records[1].graded_at > first.records[1].graded_at


def test_one_exercise_is_graded_again_and_the_others_left_alone(place, inline, monkeypatch):
    first = graded(place)
    item = PLAN.item(SOFTMAX)

    def judged(self, item, submission, task):
        assert item.key == SOFTMAX
        return without_answer(item, FAILED, {}, "graded again")

    monkeypatch.setattr(grader.Grader, "judged", judged)
    again = graded(place, exercises=(SOFTMAX,))
    assert again.graded == 4
    for before, after in zip(first.records, again.records, strict=True):
        assert [one.key for one in after.results] == list(PLAN.keys)
        for key in (ROWS, ATTENTION):
            assert after.result(key) == before.result(key)
        if before.status != DAMAGED:
            assert after.result(SOFTMAX) == without_answer(item, FAILED, {}, "graded again")


def test_a_changed_submission_is_never_mixed_of_two_versions(place, inline):
    graded(place)
    (place / "ada.ipynb").write_bytes(notebook(*cells(attention=WRONG[ATTENTION])))
    again = graded(place, exercises=(ROWS,))
    assert again.records[0].points == 4, "not only the rows were graded: the notebook is another"
    assert graded(place).graded == 0


def test_an_exercise_alone_is_completed_by_the_next_run(place, inline):
    first = graded(place, exercises=(ROWS,))
    assert "4 students have exercises that were not graded yet" in first.notes
    assert [len(one.results) for one in first.records] == [1, 1, 1, 1]
    whole = graded(place)
    assert [one.points for one in whole.records] == [8, 7.5, 0, 4]


def test_who_is_gone_keeps_the_marks(place, inline):
    graded(place)
    (place / "ada.ipynb").unlink()
    again = graded(place)
    assert [one.student for one in again.records] == ["ada", "bob", "eve", "zoë"]
    (note,) = [one for one in again.notes if one.startswith("graded before")]
    assert note == (
        "graded before and not among the submissions now: ada. Their marks stay; --leave-out ada takes "
        "them out of every file"
    )


def test_who_is_left_out_is_in_no_file_and_can_come_back(place, inline):
    graded(place, also=("gradescope", "classroom"))
    grades = place.parent / "grades"
    own = [
        f"{folder}/ada.{kind}"
        for folder, kind in (("feedback", "html"), ("gradescope", "json"), ("classroom", "txt"))
    ]
    assert all((grades / name).exists() for name in own)
    left = graded(place, leave_out=(("ada", True),), similarity=True)
    assert [one.student for one in left.records] == ["bob", "eve", "zoë"]
    assert "left out of every file: ada" in left.notes
    assert not [name for name in own if (grades / name).exists()]
    for name in (
        "gradebook.csv",
        "gradebook.json",
        "canvas.csv",
        "moodle.csv",
        "report.html",
        "similarity.html",
    ):
        assert not re.search(r"\bada\b", (grades / name).read_text(encoding="utf-8")), name
    changed = notebook(*cells(row_softmax=WRONG[SOFTMAX]))
    (place / "ada.ipynb").write_bytes(changed)
    still = graded(place)
    assert (still.graded, [one.student for one in still.records]) == (0, ["bob", "eve", "zoë"])
    with pytest.raises(CannotRun, match=r"'ada' is left out; --leave-out ada= counts them again"):
        graded(place, only=("ada",))
    with pytest.raises(
        CannotRun, match=r"no submission and no marks of 'eva'; there are: ada, bob"
    ):
        graded(place, leave_out=(("eva", True),))
    back = graded(place, leave_out=(("ada", False),))
    assert (back.graded, [one.student for one in back.records]) == (1, ["ada", "bob", "eve", "zoë"])
    assert (grades / own[0]).exists()


def test_what_is_late_loses_its_share(tmp_path, inline):
    due = datetime(2026, 2, 3, 12, tzinfo=UTC)
    plan = replace(PLAN, due=due, late=Late(per_day=0.25, most=0.5))
    place = folder_of(
        tmp_path / "submitted",
        {
            "ada/ps1/x.ipynb": notebook(*cells()),
            "ada/ps1/timestamp.txt": "2026-02-03 11:00:00 UTC",
            "bob/ps1/x.ipynb": notebook(*cells()),
            "bob/ps1/timestamp.txt": "2026-02-04 11:00:00 UTC",
            "zoe/ps1/x.ipynb": notebook(*cells()),
        },
    )
    summary = graded(place, plan=plan)
    assert [(one.penalty, one.points) for one in summary.records] == [(0, 8), (0.25, 6), (0, 8)]
    assert "when 1 of 3 were handed in is not known: nothing is taken off" in summary.notes[-1]
    (place / "bob/ps1/timestamp.txt").write_text("2026-02-09 11:00:00 UTC")
    assert graded(place, plan=plan).records[1].points == 4


def test_other_time_for_a_student_enters_the_record_and_grades_nothing(tmp_path, inline):
    due = datetime(2026, 2, 3, 12, tzinfo=UTC)
    plan = replace(PLAN, due=due, late=Late(per_day=0.25, most=0.5))
    late = {"timestamp.txt": "2026-02-05 11:00:00 UTC", "x.ipynb": notebook(*cells())}
    files = {f"{name}/ps1/{k}": v for name in ("ada", "bob") for k, v in late.items()}
    place = folder_of(tmp_path / "submitted", files)
    first = graded(place, plan=plan)
    assert [one.points for one in first.records] == [4, 4]
    until = due + timedelta(days=1)
    again = graded(place, plan=plan, due=(("ada", until),))
    assert (again.graded, again.kept) == (0, 2)
    ada, bob = again.records
    assert ada == replace(first.records[0], due=until, penalty=0.25)
    assert bob == first.records[1]
    assert "ada: due 2026-02-04 12:00 UTC, late costs 25%, before 50%" in again.notes
    lines = (place.parent / "grades" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["due"] for line in lines] == [None, None, until.isoformat()]
    book = json.loads((place.parent / "grades" / "gradebook.json").read_text())
    assert [one["due"] for one in book["students"]] == [until.isoformat(), None]
    page = (place.parent / "grades" / "feedback" / "ada.html").read_text()
    assert "due 2026-02-04 12:00 UTC" in page
    (place / "ada/ps1/x.ipynb").write_bytes(notebook(*cells(), "1"))
    changed = graded(place, plan=plan)
    assert changed.graded == 1
    assert (changed.records[0].due, changed.records[0].penalty) == (until, 0.25), "it stays"
    back = graded(place, plan=plan, due=(("ada", None),))
    assert (back.graded, back.records[0].due, back.records[0].penalty) == (0, None, 0.5)


def test_other_time_for_one_who_was_not_graded_yet(tmp_path, inline):
    due = datetime(2026, 2, 3, 12, tzinfo=UTC)
    plan = replace(PLAN, due=due, late=Late(per_day=0.25))
    late = {"timestamp.txt": "2026-02-05 11:00:00 UTC", "x.ipynb": notebook(*cells())}
    place = folder_of(tmp_path / "submitted", {f"ada/ps1/{k}": v for k, v in late.items()})
    (ada,) = graded(place, plan=plan, due=(("ada", due + timedelta(days=9)),)).records
    assert (ada.due, ada.penalty, ada.points) == (due + timedelta(days=9), 0, 8)
    with pytest.raises(CannotRun, match="no submission of 'adda'; there are: ada"):
        graded(place, plan=plan, due=(("adda", due),))


def test_choices_that_there_are_not_are_refused(place, inline):
    with pytest.raises(CannotRun, match="no submission of 'adda'; there are: ada, bob, eve, zoë"):
        graded(place, only=("adda",))
    with pytest.raises(CannotRun, match=r"'toys.nothing' is not in the plan; there are: toys"):
        graded(place, exercises=("toys.nothing",))


def test_a_folder_is_of_one_plan_and_one_run_at_a_time(place, inline):
    graded(place)
    with pytest.raises(CannotRun, match=r"holds a run of another plan .* choose another folder"):
        graded(place, plan=replace(PLAN, title="Other"))
    folder = place.parent / "grades"
    with (
        journal.opened(folder, PLAN, place),
        pytest.raises(CannotRun, match="another `course grade` is at work"),
    ):
        graded(place)
    assert graded(place).kept == 4


def test_a_lost_or_broken_secret_is_not_replaced(place, inline):
    graded(place)
    secret = place.parent / "grades" / "secret"
    secret.write_text("short")
    with pytest.raises(CannotRun, match="holds no secret"):
        graded(place)
    secret.unlink()
    with pytest.raises(
        CannotRun, match=r"is gone: the cases of the marks .* cannot be drawn again"
    ):
        graded(place)


# ------------------------------------------------------------------------------ torn and killed


def test_a_torn_last_line_is_cut_off_and_that_submission_graded_again(place, inline):
    first = graded(place)
    results = place.parent / "grades" / "results.jsonl"
    whole = results.read_bytes()
    lines = whole.splitlines(keepends=True)
    draw = random.Random(3)
    for cut in [1, len(whole) - 1, len(whole) - 2, *(draw.randrange(len(whole)) for _ in range(4))]:
        results.write_bytes(whole[:cut])
        again = graded(place)
        assert again.kept == sum(len(b"".join(lines[: n + 1])) <= cut for n in range(4))
        assert marks(again.records) == marks(first.records)
        for line in results.read_text().splitlines():
            json.loads(line)


def test_a_line_that_cannot_be_read_is_said_and_graded_again(place, inline):
    first = graded(place)
    results = place.parent / "grades" / "results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join([lines[0], lines[1][:30] + "\n", *lines[2:]]))
    again = graded(place)
    assert again.graded == 1
    assert "1 lines of results.jsonl cannot be read; graded again" in again.notes
    assert marks(again.records) == marks(first.records)


def raised_to_full(line: str) -> str:
    data = json.loads(line)
    for result in data["results"]:
        result["points"] = result["max_points"]
    return json.dumps(data, ensure_ascii=False, sort_keys=True)


CHANGES_BY_HAND = {
    "points": lambda lines: [raised_to_full(lines[0]), *lines[1:]],
    "points, and the rest as it was written": lambda lines: [
        lines[0].replace('"points": 0.0', '"points": 4.0'),
        *lines[1:],
    ],
    "another's seal": lambda lines: [lines[0].replace(seal(lines[0]), seal(lines[1])), *lines[1:]],
    "no seal": lambda lines: [lines[0].replace(f', "seal": "{seal(lines[0])}"', ""), *lines[1:]],
    "an earlier line again": lambda lines: [*lines, lines[0]],
    "two lines in another order": lambda lines: [lines[1], lines[0], *lines[2:]],
}


def seal(line: str) -> str:
    return json.loads(line)["seal"]


@pytest.mark.parametrize("change", CHANGES_BY_HAND.values(), ids=CHANGES_BY_HAND)
def test_a_line_that_was_changed_by_hand_stops_the_run(place, inline, change):
    (place / "ada.ipynb").write_bytes(notebook(*cells(row_softmax=WRONG[SOFTMAX])))
    graded(place)
    results = place.parent / "grades" / "results.jsonl"
    lines = results.read_text().splitlines()
    changed = change(lines)
    assert changed != lines
    results.write_text("".join(f"{line}\n" for line in changed))
    with pytest.raises(CannotRun, match=r"line \d of .*results\.jsonl is not as the run wrote it"):
        graded(place)


def test_a_torn_run_is_named(place, inline):
    graded(place)
    run = place.parent / "grades" / "run.json"
    for text in (run.read_text()[:40], "[]", "{}"):
        run.write_text(text)
        with pytest.raises(CannotRun, match=r"run\.json cannot be read .*: put it back"):
            graded(place)


def test_a_run_folder_among_the_submissions_is_refused(place):
    with pytest.raises(CannotRun, match="lies among the submissions"):
        grade_class.grade(place, PLAN, place / "grades", SETTINGS)
    assert not (place / "grades").exists()


def quick(job: Job, task: Task) -> Graded:
    """Stands in for the sandbox where a run's own steps are looked at: marks that follow the cells."""
    results = tuple(
        replace(without_answer(job.plan.item(key), FAILED, {}), points=float(len(task.cells) % 2))
        for key in task.keys
    )
    record = Record(task.student, "graded", results, digest=task.digest, isolation="none: a test")
    return Graded(record)


def killed_while_it_writes(place: Path, folder: Path, after: int) -> None:
    """In a forked process: a run that is killed when so many bytes were written to its files."""
    written = 0

    def write(fd: int, data: bytes) -> int:
        nonlocal written
        part = data[: after - written]
        written += real(fd, part)
        if written >= after:
            os.kill(os.getpid(), signal.SIGKILL)
        return len(data)

    real = os.write

    class Slow:
        """A file that writes byte by byte through `write`, as slowly as a disk may."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *given):
            self.file.close()

        def write(self, data: bytes) -> None:
            for start in range(0, len(data), 64):
                write(self.file.fileno(), data[start : start + 64])

        def flush(self) -> None: ...

        def fileno(self) -> int:
            return self.file.fileno()

    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        opened = Path.open
        course_utils.files.open = lambda path, mode, **named: Slow(FileIO(path, mode, **named))

        def path_open(self, mode="r", **named):
            return (
                Slow(opened(self, mode, buffering=0))
                if mode == "ab"
                else opened(self, mode, **named)
            )

        Path.open = path_open
        grade_class.grade(place, PLAN, folder, SETTINGS)
    finally:
        os._exit(0)


def test_killed_at_any_byte_it_goes_on_and_ends_with_the_same_gradebook(
    tmp_path, inline, monkeypatch
):
    monkeypatch.setattr(worker, "grade_one", quick)
    monkeypatch.setattr(worker, "ready", lambda job: "none: a test")
    files = {f"s{n}.ipynb": notebook(*["x = 1"] * (n % 3)) for n in range(6)}
    place = folder_of(tmp_path / "hw", files | {"torn.ipynb": b"{"})
    due = grade_class.grade(place, PLAN, tmp_path / "whole", SETTINGS)
    size = sum(
        (tmp_path / "whole" / name).stat().st_size
        for name in ("secret", "run.json", "results.jsonl")
    )
    points = random.Random(20261121).sample(range(1, size), KILLS)
    for number, after in enumerate(points):
        folder = tmp_path / f"killed{number}"
        killed_while_it_writes(place, folder, after)
        killed_while_it_writes(place, folder, points[number - 1])
        found = grade_class.grade(place, PLAN, folder, SETTINGS)
        assert marks(found.records) == marks(due.records), after
        book = (folder / "gradebook.csv").read_bytes()
        assert book == (tmp_path / "whole" / "gradebook.csv").read_bytes()
        count("runs killed and gone on with")


DRIVER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:2]
import toy_class
from course_utils.classroom.run import grade_class
from course_utils.classroom.run.tasks import Settings
if __name__ == "__main__":
    settings = Settings(workers=1, modules=("toy_class",))
    grade_class.grade(Path(sys.argv[2]), toy_class.PLAN, Path(sys.argv[3]), settings)
"""


def test_a_real_run_killed_with_its_workers_at_work(tmp_path, inline):
    """kill -9 of the whole program in the middle; its workers end by themselves."""
    place = folder_of(tmp_path / "hw", toy_class.class_of(16, seed=5))
    (tmp_path / "driver.py").write_text(DRIVER)
    folder = tmp_path / "grades"
    folder.mkdir()
    (folder / "secret").write_text(SECRET.hex())
    here = str(Path(__file__).parent)
    command = [sys.executable, str(tmp_path / "driver.py"), here, str(place), str(folder)]
    process = psutil.Popen(command)
    results = folder / "results.jsonl"
    deadline = time.monotonic() + 300
    while not (results.exists() and results.read_bytes().count(b"\n") >= 5):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = process.children(recursive=True)
    process.kill()
    process.wait()
    before = results.read_bytes().count(b"\n")
    assert 5 <= before < 16
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive, "a worker outlived its run"
    found = grade_class.grade(place, toy_class.PLAN, folder, SETTINGS)
    assert (found.kept, found.graded) == (before, 16 - before)
    whole = grade_class.grade(place, toy_class.PLAN, tmp_path / "whole", SETTINGS)
    assert marks(found.records) == marks(whole.records)
    count("runs killed and gone on with")


# ------------------------------------------------------------------------------ workers that die


def test_whose_worker_dies_is_handed_out_again_and_at_last_given_up(tmp_path):
    tasks = ["a", "kills 1", f"once {tmp_path / 'x'}", "b", "raises 1", "kills 2", "c", "d"]
    pool = workers.Processes(2)
    try:
        found = dict(workers.results(pool, deadly, partial(deadly, "ready"), tasks))
    finally:
        pool.close()
    assert set(found) == set(tasks)
    for task in tasks:
        if task.startswith("kills"):
            assert isinstance(found[task], workers.WorkerDied)
            assert str(found[task]) == "the grader died on it 2 times"
        elif task.startswith("raises"):
            assert isinstance(found[task], ValueError)
        else:
            assert found[task] == task.upper()


def test_pipes_that_close_while_a_worker_starts_are_a_pool_that_broke(monkeypatch):
    """Python's own pool says ValueError then (CPython, _posixsubprocess: "bad value(s) in fds_to_keep")."""
    pool = workers.Processes(1)
    submit, refused = pool.executor.submit, iter([True])

    def closed_at_first(*given):
        if next(refused, False):
            raise ValueError("bad value(s) in fds_to_keep")
        return submit(*given)

    monkeypatch.setattr(pool.executor, "submit", closed_at_first)
    try:
        found = dict(workers.results(pool, deadly, partial(deadly, "ready"), ["a", "b"]))
    finally:
        pool.close()
    assert found == {"a": "A", "b": "B"}


def test_where_no_worker_can_live_nobody_is_to_blame():
    pool = workers.Processes(1)
    with pytest.raises(BrokenProcessPool):
        try:
            list(workers.results(pool, deadly, partial(deadly, "kills"), ["kills 1"]))
        finally:
            pool.close()


def test_a_worker_that_was_just_starting_holds_nobody_up():
    """The executor ends those that it knows as it breaks; one more may have been started meanwhile."""
    pool = workers.Processes(1)
    assert pool.submit(deadly, "a").result() == "A"
    late = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(100_000,))
    late.start()
    end, asked = late.terminate, []
    late.terminate = lambda: asked.append("by the executor") if not asked else end()
    pool.executor._processes[late.pid] = late
    with pytest.raises(BrokenProcessPool):
        pool.submit(deadly, "kills 1").result()
    pool.renew()  # which would wait for it
    assert asked
    pool.close()


def test_a_grader_that_fails_costs_the_exercise_and_is_told(place, inline, monkeypatch):
    def judged(self, item, submission, task):
        if (task.student, item.key) == ("ada", ROWS):
            raise ZeroDivisionError("a defect of the grader")
        return without_answer(item, FAILED, {})

    monkeypatch.setattr(grader.Grader, "judged", judged)
    summary = graded(place)
    told = summary.records[0].result(ROWS)
    assert told.sentence.startswith("the grader itself failed on this answer (see errors.log")
    assert "a defect of the grader" in (summary.folder / "errors.log").read_text()


def test_a_grader_that_fails_on_a_submission_costs_that_one(place, inline, monkeypatch):
    def grade(self, task):
        if task.student == "ada":
            raise ZeroDivisionError("a defect of the grader")
        return real(self, task)

    real = grader.Grader.grade
    monkeypatch.setattr(grader.Grader, "grade", grade)
    summary = graded(place)
    assert [one.status for one in summary.records] == [DAMAGED, "graded", DAMAGED, "graded"]
    assert (
        summary.records[0].problem == "the grader failed on it: ZeroDivisionError (see errors.log)"
    )


def test_a_sandbox_that_breaks_is_started_again(place, inline, monkeypatch):
    broke = []

    def grade(self, task):
        if not broke:
            broke.append(task.student)
            raise Broken("gone")
        return real(self, task)

    real, closed = grader.Grader.grade, []
    monkeypatch.setattr(grader.Grader, "grade", grade)
    monkeypatch.setattr(worker, "close", lambda: closed.append(1))
    assert [one.points for one in graded(place).records] == [8, 7.5, 0, 4]
    assert (broke, closed) == (["ada"], [1])


# ------------------------------------------------------------------------------ what must be there


def test_a_required_sandbox_that_is_absent_stops_the_run(place, inline, monkeypatch):
    class Absent:
        kind, why = "process", "bwrap is not installed"

        def __init__(self, isolation):
            raise SandboxMissing("no bubblewrap: bwrap is not installed")

    monkeypatch.setattr(sandboxes, "_sandboxes", {})
    monkeypatch.setattr(worker, "_graders", {})
    monkeypatch.setattr(sandboxes, "Sandbox", Absent)
    with pytest.raises(CannotGrade, match="no sandbox: no bubblewrap: bwrap is not installed"):
        graded(place, require_sandbox=True)
    monkeypatch.setattr(Absent, "__init__", lambda self, isolation: None)
    monkeypatch.setattr(Absent, "close", lambda self: None, raising=False)
    with pytest.raises(CannotGrade, match="a sandbox is required, and this is none: process only"):
        graded(place, isolation="process", require_sandbox=True)
    results = place.parent / "grades" / "results.jsonl"
    assert {one.status for one in marks(results)} == {DAMAGED}, "no code was run"


@pytest.mark.parametrize("isolation", ["process", "best"])
def test_no_students_code_runs_as_root_unless_that_is_asked_for(
    place, inline, monkeypatch, isolation
):
    class Plain:
        kind, why, own_user = "process", "", False

        def __init__(self, isolation):
            pass

        def close(self):
            closed.append(isolation)

    closed = []
    monkeypatch.setattr(sandboxes, "_sandboxes", {})
    monkeypatch.setattr(worker, "_graders", {})
    monkeypatch.setattr(sandboxes, "Sandbox", Plain)
    monkeypatch.setattr(sandboxes, "is_root", lambda: True)
    with pytest.raises(CannotGrade, match=r"would run as root, .* or give --as-root too"):
        graded(place, isolation=isolation)
    assert closed == [isolation]
    assert isinstance(sandboxes.sandbox_of(isolation, require=False, as_root=True), Plain)
    monkeypatch.setattr(Plain, "own_user", True)
    assert isinstance(sandboxes.sandbox_of(isolation, require=False, as_root=False), Plain)
    monkeypatch.setattr(sandboxes, "is_root", lambda: False)
    assert isinstance(sandboxes.sandbox_of(isolation, require=False, as_root=False), Plain)


def test_a_worker_of_another_version_is_refused(place):
    job = Job(PLAN, SECRET, versions=(("torch", "0.1"),))
    with pytest.raises(
        CannotGrade, match=r"this worker has torch .*, not 0\.1: marks could differ"
    ):
        grader.check_versions(job)


def test_an_exercise_that_needs_a_gpu_is_refused_without_one(monkeypatch):
    needy = copy(toy_class.rows)
    needy.needs = "cuda"
    monkeypatch.setattr("course_utils.grading.find", lambda key: needy)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(CannotGrade, match="needs a CUDA GPU"):
        grader.exercise("toys.every_second_row")


# ------------------------------------------------------------------------------ course grade


def course(*arguments: object):
    return CliRunner().invoke(app, ["grade", *map(str, arguments)])


def test_the_command_grades_and_says_what_came_of_it(place, inline, monkeypatch):
    monkeypatch.setattr("course_utils.classroom.run.grader.check_versions", lambda job: None)
    (place.parent / "plan.json").write_text(PLAN.to_json())
    done = course(place)
    assert done.exit_code == 0, done.output
    told = done.output
    assert "isolation: " in told
    assert "eve: damaged: its JSON is torn at line 1, column 1" in told
    assert "students   4 (4 graded now, 0 kept)" in told
    assert "mean       4.88 of 8 points" in told
    assert "damaged    1" in told
    assert "submissions a second" in told
    assert f"written to {place.parent / 'grades'}: gradebook.csv, gradebook.json" in told
    assert "feedback/ (4 files)" in told
    again = course(place, "-o", place.parent / "grades", "--only", "bob")
    assert "students   4 (1 graded now, 3 kept)" in again.output
    more = course(place, "--also", "gradescope", "--also", "classroom", "--similarity")
    assert "similarity.html" in more.output
    assert "gradescope/ (4 files), classroom/ (4 files)" in more.output


def test_the_command_says_what_is_wrong(place, tmp_path):
    done = course(place)
    assert done.exit_code == 1
    assert "which exercises count? Give --plan plan.json" in done.output
    assert "no chapter 'stridez'" in course(place, "--chapter", "stridez").output
    assert "there is no " in course(tmp_path / "absent", "--chapter", "strides").output
    both = course(place, "--chapter", "strides", "--plan", tmp_path / "plan.json")
    assert "a plan or chapters, not both" in both.output
    absent = course(place, "--chapter", "strides", "--roster", tmp_path / "roster.csv")
    assert absent.exit_code == 1
    assert "roster.csv" in absent.output
    for text, said in {
        "2026-12-01T18:00+01:00": "whose is it? --due ada=2026-12-01T18:00+01:00",
        "ada=tomorrow": "a due date is 2026-12-01T18:00+01:00; came 'tomorrow'",
        "ada=2026-12-01": "a due date needs its time zone",
    }.items():
        assert said in course(place, "--chapter", "strides", "--due", text).output
    none = course(place, "--chapter", "strides", "--due", "ada=2026-12-01T18:00+01:00")
    assert "the plan has no due date: there is none to replace" in none.output
    (tmp_path / "plan.json").write_text("[]")
    assert "this is no plan" in course(place, "--plan", tmp_path / "plan.json").output


def test_an_interrupt_ends_the_command_and_the_next_goes_on(place, inline, monkeypatch):
    (place.parent / "plan.json").write_text(PLAN.to_json())
    real = worker.grade_one

    def grade_one(job, task):
        if task.student == "bob":
            raise KeyboardInterrupt
        return real(job, task)

    monkeypatch.setattr(worker, "grade_one", grade_one)
    done = course(place)
    assert done.exit_code == terminal.INTERRUPTED
    assert "stopped after 1 of 4; the same command goes on from there" in done.output
    results = place.parent / "grades" / "results.jsonl"
    assert f"the marks until then are in {results}" in done.output
    monkeypatch.setattr(worker, "grade_one", real)
    assert "students   4 (3 graded now, 1 kept)" in course(place).output


def test_time_left_is_said_where_there_is_no_terminal(monkeypatch):
    from rich.console import Console

    console = Console(force_terminal=False, width=80)
    bar = terminal.Bar(console)
    monkeypatch.setattr(terminal, "EVERY_S", 0.0)
    with console.capture() as told:
        bar.start(3)
        time.sleep(0.01)
        bar.step(Record("ada", "graded", ()))
        bar.step(Record("bob", "graded", ()))
        bar.step(Record("eve", "graded", ()))
    lines = told.get().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["graded 1 of 3", "graded 2 of 3"]
    assert all(line.endswith(" s left") for line in lines)


def test_a_bar_is_drawn_on_a_terminal():
    from rich.console import Console

    console = Console(force_terminal=True, width=80)
    bar = terminal.Bar(console)
    with console.capture() as told:
        bar.start(2)
        bar.step(Record("ada", "graded", ()))
        bar.step(Record("bob", DAMAGED, (), problem="torn"))
        bar.stop()
    assert "2/2" in told.get()
    assert "bob: damaged: torn" in told.get()


def test_time_left_does_not_count_what_it_took_to_start(monkeypatch):
    from rich.console import Console

    now = iter([0.0, 0.0, 100.0, 102.0])
    monkeypatch.setattr(terminal, "perf_counter", lambda: next(now))
    console = Console(force_terminal=False, width=80)
    bar = terminal.Bar(console)
    with console.capture() as told:
        bar.start(4)
        bar.ready()
        bar.step(Record("ada", "graded", ()))
    assert told.get() == ""
    monkeypatch.setattr(terminal, "EVERY_S", 1.0)
    now = iter([110.0])
    with console.capture() as told:
        bar.step(Record("bob", "graded", ()))
    assert told.get() == "graded 2 of 4, 10 s left\n"


WITHOUT_TORCH = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name == "torch": raise ImportError("not yet")
sys.meta_path.insert(0, Refused())
from course_utils.cli import app
app(["grade", "hw", "--chapter", "strides"])
"""


def test_what_is_being_done_is_said_before_it_takes_its_time(place, inline, monkeypatch):
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert said.stdout == "loading PyTorch and the course\n"
    assert "not yet" in said.stderr
    monkeypatch.setattr("course_utils.classroom.run.grader.check_versions", lambda job: None)
    (place.parent / "plan.json").write_text(PLAN.to_json())
    course(place, "--only", "bob")
    lines = course(place).output.splitlines()
    grades = place.parent / "grades"
    assert lines[:2] == ["loading PyTorch and the course", f"reading the submissions in {place}"]
    assert lines[2] == (
        "4 submissions: 3 to grade, 1 graded before; each mark goes to "
        f"{grades / 'results.jsonl'} at once"
    )
    at = lines.index("starting 1 worker, each with PyTorch and a sandbox")
    assert lines[at + 1].startswith("isolation: ")
    assert "writing gradebook and pages for 4 students" in lines[at:]


def test_there_are_no_more_workers_than_submissions():
    pool = grade_class.pool_of(Settings(workers=8), tasks=1)
    assert isinstance(pool, workers.Processes)
    assert pool.size == 1
    pool.close()
