"""One submission, graded where another system runs us: in Gradescope's container, in a GitHub action.

    python -m course_utils.classroom.alone gradescope
    python -m course_utils.classroom.alone classroom

Gradescope: everything is below `/autograder` ($AUTOGRADER): `source` holds the plan and the secret of
the random cases, `submission` what a student handed in; `results/results.json` is written.
Classroom: the working folder is the student's repository; the result goes to $GITHUB_OUTPUT as
`result=…`, base64 of the JSON that the reporter reads, and a summary to the log.
"""

import hashlib
import json
import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record
from course_utils.classroom.submissions import intake
from course_utils.classroom.submissions.folders_and_zips import listed
from course_utils.classroom.submissions.handed_out import HandedOut
from course_utils.files import write_whole
from course_utils.update.folders import BEFORE

from . import worker
from .tasks import Job, damaged
from .todo import ToDo

ISOLATION = "COURSE_ISOLATION"
"""An environment variable: "best" (the default), "bubblewrap" or "process"."""


def graded(
    folder: Path, plan: Plan, secret: bytes, student: str, submitted: datetime | None = None
) -> Record:
    """The record of the notebooks in a folder, which all belong to one student.

    secret: what the random cases are drawn from. Copies that `course update` keeps are passed over.
    Raises NoSubmissions if the folder cannot be read, and CannotGrade.
    """
    files, _ = listed(folder)
    files = [one for one in files if not BEFORE.search(one.path.stem)]
    handed_out = HandedOut.by(plan.names, plan.keys)
    one = intake.submission(student, files, submitted, late=False, handed_out=handed_out)
    content = intake.read(one)
    task = ToDo(one, content, plan.keys).task(plan)
    if not content.readable:
        return damaged(task, plan)
    isolation = os.environ.get(ISOLATION, "best")
    job = Job(plan, secret, isolation, as_root=True)  # as the service has it
    try:
        found = worker.grade_one(job, task)
    finally:
        worker.close()
    for trouble in found.troubles:
        print(trouble, file=sys.stderr)
    return found.record


# ------------------------------------------------------------------------------ Gradescope


def _gradescope() -> None:
    from course_utils.classroom.exports.gradescope import gradescope as results_of

    home = Path(os.environ.get("AUTOGRADER", "/autograder"))
    plan = Plan.read(home / "source/plan.json")
    secret = (home / "source/secret").read_bytes()
    _close(home / "submission_metadata.json")
    student, submitted = _whose(home / "submission_metadata.json")
    record = graded(home / "submission", plan, secret, student, submitted)
    target = home / "results/results.json"
    write_whole(target, json.dumps(results_of(plan, record), indent=1))
    print(f"isolation: {record.isolation or 'no code was run'}")


def _close(path: Path) -> None:
    """What is said of other submissions there is not for this one's code to read."""
    with suppress(OSError):
        path.chmod(0o600)


def _whose(metadata: Path) -> tuple[str, datetime | None]:
    """The submitters' e-mail addresses, and when they handed in; as much of it as there is."""
    try:
        data: dict[str, Any] = json.loads(metadata.read_text(encoding="utf-8"))
        names = [str(user.get("email") or user.get("name")) for user in data["users"]]
        return ", ".join(sorted(names)), datetime.fromisoformat(data["created_at"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "submission", None


# ------------------------------------------------------------------------------ GitHub Classroom


def _classroom() -> None:
    from course_utils.classroom.exports.github_classroom import classroom_base64

    text = Path("plan.json").read_text(encoding="utf-8")
    plan = Plan.from_json(text)
    secret = hashlib.sha256(text.encode()).digest()  # a student can work it out; see the README
    student = os.environ.get("GITHUB_ACTOR", "submission")
    record = graded(Path("notebooks"), plan, secret, student, datetime.now().astimezone())
    print(f"isolation: {record.isolation or 'no code was run'}")
    for result in record.results:
        sentence = f": {result.sentence}" if result.sentence else ""
        print(f"{result.points:g} of {result.max_points:g}  {result.key}{sentence}")
    with open(os.environ.get("GITHUB_OUTPUT", os.devnull), "a", encoding="utf-8") as file:
        file.write(f"result={classroom_base64(plan, record)}\n")


def main(system: str) -> None:
    """Grade where this system ("gradescope" or "classroom") runs us."""
    {"gradescope": _gradescope, "classroom": _classroom}[system]()
