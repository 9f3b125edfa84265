"""How long grading takes: ours against nbgrader's autograde and `otter run`, on the same submissions.

Three small exercises of six checks each (tests/classroom/toy_class.py). The peers' checks are the
very cases of ours, with the values that are due, as `torch.testing.assert_close`; their notebooks
lack `@exercise`, so nothing of the course is loaded there. A pair is one batch, graded by ours and
by the peer, in alternating order. Ours is one worker, its start apart; one process of the peer's.
"""

import argparse
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import getloadavg
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "classroom"))
import toy_class as toys

from course_utils.classroom.run import worker
from course_utils.classroom.run.tasks import Job
from course_utils.classroom.run.todo import ToDo
from course_utils.classroom.submissions import intake
from course_utils.source.cells import read_cells
from tests.support import peers
from tests.support.pairs import Comparison, interval

BATCH = 10
FASTER = {"nbgrader autograde": 100, "otter run": 200}
NAMES = {toy.key: toy.names[0] for toy in toys.TOYS}
Marks = dict[str, dict[str, bool]]
"""Which exercises passed, by student and key."""


# ------------------------------------------------------------------------------ the same checks


def literal(value: Any) -> str:
    """A case's value as source: tensors with their strides."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    storage = value.as_strided((value.untyped_storage().nbytes() // value.element_size(),), (1,), 0)
    place = f"{tuple(value.shape)}, {value.stride()}, {value.storage_offset()}"
    return f"torch.tensor({storage.tolist()}, dtype={value.dtype}).as_strided({place})"


def checks(key: str) -> str:
    """Asserts for the six cases of an exercise, as an instructor would write them."""
    exercise = next(toy for toy in toys.TOYS if toy.key == key)
    cases = exercise.all_cases(0)
    assert len(cases) == 6, f"{key} has {len(cases)} cases"
    lines = ["import torch"]
    for case in cases:
        due = exercise.reference(*case.args)
        given = ", ".join(map(literal, case.args))
        lines.append(f"args = [{given}]")
        lines.append(f"got = {NAMES[key]}(*args)")
        lines.append(f"torch.testing.assert_close(got, {literal(due.contiguous())})")
        if key == toys.ROWS:  # a view: what is written to x is seen in the result
            lines.append("args[0].mul_(2)")
            lines.append(f"torch.testing.assert_close(got, {literal(2 * due.contiguous())})")
    return "\n".join(lines)


def plain(source: str) -> str:
    """A cell without what only our notebooks have."""
    kept = [line for line in source.splitlines() if not line.startswith("@exercise")]
    return "\n".join(kept).replace("\nfrom course_utils import exercise", "")


# ------------------------------------------------------------------------------ the graders


class Ours:
    """One worker of `course grade`: reads a notebook, grades it in the sandbox, writes its record."""

    name = "course grade"

    def __init__(self, folder: Path, students: Mapping[str, bytes]) -> None:
        self.folder = folder
        for student, data in students.items():
            written(folder / "submissions" / student / "toys.ipynb", data)
        began = time.perf_counter()
        self.job = Job(toys.PLAN, secrets.token_bytes(32))
        self.level = worker.ready(self.job)
        self.start_s = time.perf_counter() - began

    def grade(self, students: Sequence[str]) -> Marks:
        found: Marks = {}
        with (self.folder / "results.jsonl").open("a") as log:
            for student in students:
                (one,) = intake.find(self.folder / "submissions" / student).submissions
                task = ToDo(one, intake.read(one), toys.PLAN.keys).task(toys.PLAN)
                record = worker.grade_one(self.job, task).record
                log.write(record.to_line() + "\n")
                log.flush()
                found[student] = {r.key: r.outcome == "passed" for r in record.results}
        return found


class Nbgrader:
    """`nbgrader autograde` of a batch: one solution cell and one test cell an exercise."""

    name = "nbgrader autograde"

    def __init__(self, folder: Path, students: Mapping[str, dict[str, str]]) -> None:
        self.folder = folder
        written(
            folder / "nbgrader_config.py", b'get_config().CourseDirectory.course_id = "bench"\n'
        )
        solved = dict.fromkeys(NAMES, "### BEGIN SOLUTION\n0\n### END SOLUTION")
        write_notebook(folder / "source/toys/toys.ipynb", self.cells(solved))
        peers.run("nbgrader", "generate_assignment", "toys", cwd=folder)
        release = json.loads((folder / "release/toys/toys.ipynb").read_text())
        keys = {name: key for key, name in NAMES.items()}
        for student, answers in students.items():
            for cell in release["cells"]:
                about = cell["metadata"].get("nbgrader", {})
                if about.get("solution"):
                    cell["source"] = answers[keys[about["grade_id"]]]
            place = folder / "submitted" / student / "toys/toys.ipynb"
            written(place, json.dumps(release).encode())

    def cells(self, answers: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        yield code(plain(toys.SET_UP))
        for key, answer in answers.items():
            yield code(answer, role(NAMES[key], solution=True, locked=False))
            yield code(checks(key), role(f"{NAMES[key]}-checks", grade=True, points=1))

    def grade(self, students: Sequence[str]) -> Marks:
        """The students are those of one decade."""
        decade = students[0][:-1] + "?"
        peers.run("nbgrader", "autograde", "toys", f"--student={decade}", cwd=self.folder)
        return {student: self.marks(student) for student in students}

    def marks(self, student: str) -> dict[str, bool]:
        scores = peers.nbgrader_scores(self.folder / "gradebook.db", student)
        return {key: scores[f"{name}-checks"] == 1 for key, name in NAMES.items()}


class Otter:
    """`otter run`, once a submission: an exception test an exercise."""

    name = "otter run"

    def __init__(self, folder: Path, students: Mapping[str, dict[str, str]]) -> None:
        self.folder = folder
        for key, name in NAMES.items():
            body = "\n".join("    " + line for line in checks(key).splitlines())
            test = OTTER_TEST.format(name=name, body=body)
            written(folder / f"tests/{name}.py", test.encode())
        arguments = ("--no-config", "--no-requirements", "--no-environment")
        peers.run(
            "otter", "generate", "-t", "tests", "-o", "autograder.zip", *arguments, cwd=folder
        )
        for student, answers in students.items():
            cells = [code(plain(toys.SET_UP)), *map(code, answers.values())]
            write_notebook(folder / f"{student}.ipynb", cells)

    def grade(self, students: Sequence[str]) -> Marks:
        found = {}
        for student in students:
            output = self.folder / "out" / student
            output.mkdir(parents=True)
            arguments = ("-a", "autograder.zip", "-o", str(output), "--no-logo")
            peers.run("otter", "run", *arguments, f"{student}.ipynb", cwd=self.folder)
            tests = json.loads((output / "results.json").read_text())["tests"]
            score = {test["name"]: test.get("score", 0) for test in tests}
            found[student] = {key: score[name] == 1 for key, name in NAMES.items()}
        return found


OTTER_TEST = """\
from otter.test_files import test_case

OK_FORMAT = False
name = "{name}"
points = 1


@test_case()
def test_{name}({name}):
{body}
"""


def role(name: str, **more: Any) -> dict[str, Any]:
    kinds = {"grade": False, "solution": False, "locked": True, "task": False}
    return {"schema_version": 3, "grade_id": name, **kinds, **more}


def code(source: str, nbgrader: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata = {"nbgrader": nbgrader} if nbgrader else {}
    cell = {"cell_type": "code", "metadata": metadata, "source": source}
    return cell | {"execution_count": None, "outputs": []}


def write_notebook(path: Path, cells: Iterable[dict[str, Any]]) -> None:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": list(cells), "metadata": {"kernelspec": kernel}}
    written(path, json.dumps(made | {"nbformat": 4, "nbformat_minor": 4}).encode())


def written(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


# ------------------------------------------------------------------------------ in pairs


def timed(grade: Callable[[Sequence[str]], Marks], batch: Sequence[str]) -> tuple[float, Marks]:
    begin = time.perf_counter()
    marks = grade(batch)
    return (time.perf_counter() - begin) / len(batch), marks


def compare(ours: Ours, peer: Nbgrader | Otter, batches: Sequence[Sequence[str]]) -> Comparison:
    """Seconds a submission, the peer's first. Raises RuntimeError where their marks are not ours."""
    times = []
    for number, batch in enumerate(batches):
        order = (ours, peer) if number % 2 else (peer, ours)
        found = {one.name: timed(one.grade, batch) for one in order}
        (theirs_s, theirs), (ours_s, mine) = found[peer.name], found[ours.name]
        if theirs != mine:
            odd = [student for student in batch if theirs[student] != mine[student]]
            raise RuntimeError(f"{peer.name} does not agree about {odd}: {theirs} {mine}")
        times.append((theirs_s, ours_s))
    return Comparison(tuple(times))


def answers_of(notebook: bytes, folder: Path) -> dict[str, str]:
    """The answers of a notebook of ours by key, as plain cells."""
    path = folder / "one.ipynb"
    written(path, notebook)
    _, *cells = read_cells(path)
    return dict(zip(NAMES, map(plain, cells), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--submissions", type=int, default=60, help="a multiple of 10")
    parser.add_argument("--otter", type=int, default=12, help="so many of them for otter")
    asked = parser.parse_args()
    if asked.submissions % BATCH:
        parser.error(f"--submissions is a multiple of {BATCH}")
    if not peers.present():
        sys.exit(peers.ADVICE)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        measure(Path(folder), asked.submissions, asked.otter)


def measure(folder: Path, n: int, for_otter: int) -> None:
    notebooks = {name.removesuffix(".ipynb"): data for name, data in toys.class_of(n).items()}
    students = list(notebooks)
    plain_answers = {name: answers_of(data, folder) for name, data in notebooks.items()}
    nbgrader = Nbgrader(folder / "nbgrader", plain_answers)
    otter = Otter(folder / "otter", plain_answers)
    ours = Ours(folder / "ours", notebooks)
    print(f"{n} submissions, three exercises of six checks; load {getloadavg()[0]:.1f}")
    print(f"ours: {ours.level}; ready after {ours.start_s:.2f} s")
    ours.grade(students[:BATCH])  # what is expected is worked out once a run
    print(f"{'a submission':<28}{'n':>4}{'theirs s':>10}{'ours ms':>9}{'ratio':>8}   95% interval")
    tens = [students[i : i + BATCH] for i in range(0, n, BATCH)]
    spread = students[:: max(1, n // for_otter)][:for_otter]
    behind = []
    for peer, batches in ((nbgrader, tens), (otter, [[student] for student in spread])):
        found = compare(ours, peer, batches)
        theirs_s, ours_s = found.seconds
        low, high = interval(found.ratios)
        row = f"{theirs_s:>10.2f}{1e3 * ours_s:>9.1f}{found.ratio:>8.0f}   [{low:.0f}, {high:.0f}]"
        print(f"{peer.name:<28}{sum(map(len, batches)):>4}{row}", flush=True)
        if found.ratio < FASTER[peer.name]:
            behind.append(f"less than {FASTER[peer.name]} times as fast as {peer.name}")
    worker.close()
    print("; ".join(behind) or "at least 100 times as fast as nbgrader, 200 times as otter")
    sys.exit(bool(behind))


if __name__ == "__main__":
    main()
