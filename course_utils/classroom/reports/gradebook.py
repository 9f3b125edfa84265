"""The gradebook: a table for people and spreadsheets, and the same as JSON for programs.

Both depend on the marks alone: how long grading took, and when, is in neither, so that a run that was
interrupted and resumed ends with the same two files, byte for byte. `FORMAT` documents every field.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from course_utils.classroom.marks.align import by_plan
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record, Result
from course_utils.classroom.marks.text import cell, file_name, number

VERSION = 1

COLUMNS = {
    "student": "the name that the submission's folder or file gives",
    "points": "what counts: after what late costs, in hundredths",
    "max_points": "what a perfect submission earns",
    "points_before_late": "the sum of the exercises' points",
    "penalty": "share of the points that was lost for being late, from 0 to 1",
    "status": "`graded`, or `damaged`: nothing of it could be read",
    "problem": "why it is damaged, or why it was read only in part",
    "held": "the exercises whose answers are held: they count 0 until you decide",
    "submitted": "when, ISO 8601 with its time zone; empty where nothing says",
    "feedback": "the student's page, below the gradebook's folder",
}
"""Columns of gradebook.csv before the exercises'; each exercise then has one, named by its key."""

BOOK = {
    "format": "always `strides-to-shards gradebook`",
    "version": f"of this format; {VERSION} now. A reader refuses a version that it does not know",
    "plan": "what counts, as in plan.json",
    "students": "one entry for each student, sorted by name",
}
STUDENT = {
    "student": COLUMNS["student"],
    "status": COLUMNS["status"],
    "problem": COLUMNS["problem"],
    "points": COLUMNS["points"],
    "raw_points": COLUMNS["points_before_late"],
    "max_points": COLUMNS["max_points"],
    "penalty": COLUMNS["penalty"],
    "submitted": "when, ISO 8601 with its time zone, or null",
    "due": "when, where this student had other time than the plan gives, or null",
    "files": "the notebooks, as they were found",
    "digest": "SHA-256 of what was graded",
    "isolation": "the level of isolation that was active",
    "seed": "which run's secret the random cases were drawn from, without telling it",
    "notes": "what an instructor should know of it, though nothing is wrong",
    "results": "one entry for each exercise of the plan, in its order",
}
RESULT = {
    "key": "of the exercise",
    "outcome": "`passed`, `failed`, `not attempted` (the stub as it was handed out), "
    "`missing`, or `held`: 0 points until somebody has looked at it",
    "points": "earned, before what late costs",
    "max_points": "what the exercise is worth",
    "rungs": "the ladder: `name`, `passed` and `total` checks of each rung, in order; a rung below a "
    "failed one was not climbed and has 0 passed",
    "failed_rung": "the first rung that failed; `definition` where the cell could not be run; or null",
    "sentence": "what the smallest failing check saw",
    "called": "the call of that check",
    "hand": "was that check worked by hand, so that the student may see its values?",
    "diagnosis": "the known mistake whose results these are on every case that ran, or null",
    "guarantee": "`compared by the grader`, or `measured inside the student's process` where a contract "
    "was counted by code in the process that ran the answer: the weaker guarantee",
    "notes": "what else there is to know of this result",
    "held": "why it is or was held: lines of the answer that reach for what checks it",
    "worth": "of a held answer, the points that its checks would have given",
    "decided": "when somebody decided what a held answer earns, ISO 8601; or empty",
}


def as_csv(plan: Plan, records: Iterable[Record]) -> str:
    """gradebook.csv: a header, then a row for each student.

    Write it with a byte-order mark ("utf-8-sig"): a spreadsheet otherwise takes names in other
    scripts for another encoding.
    """
    out = io.StringIO()
    write = csv.writer(out).writerow
    first = list(COLUMNS)
    write([*first[:-1], *plan.keys, first[-1]])
    for record in by_plan(plan, records):
        write(
            [
                cell(record.student),
                number(record.points),
                number(plan.points),
                number(record.raw_points),
                number(record.penalty),
                record.status,
                cell(record.problem),
                " ".join(result.key for result in record.held),
                record.submitted.isoformat() if record.submitted else "",
                *(number(result.points) for result in record.results),
                f"feedback/{file_name(record.student)}.html",
            ]
        )
    return out.getvalue()


def as_json(plan: Plan, records: Iterable[Record]) -> str:
    """gradebook.json: see `FORMAT`. A half of a surrogate pair in a name stays, escaped."""
    book = {
        "format": "strides-to-shards gradebook",
        "version": VERSION,
        "plan": json.loads(plan.to_json()),
        "students": [_entry(plan, record) for record in by_plan(plan, records)],
    }
    text = json.dumps(book, indent=1, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()


def _entry(plan: Plan, record: Record) -> dict[str, Any]:
    data = {
        name: getattr(record, name) for name in STUDENT if name not in ("results", "max_points")
    }
    data |= {
        "raw_points": round(record.raw_points, 6),
        "penalty": round(record.penalty, 6),
        "max_points": plan.points,
        "submitted": record.submitted and record.submitted.isoformat(),
        "due": record.due and record.due.isoformat(),
        "results": [_result_entry(result) for result in record.results],
    }
    return {name: data[name] for name in STUDENT}


def _result_entry(result: Result) -> dict[str, Any]:
    data = asdict(result)
    return {name: data[name] for name in RESULT}


def read_json(text: str) -> dict[str, Any]:
    """A gradebook.json as a dict. Raises ValueError for another format or version."""
    book: dict[str, Any] = json.loads(text)
    if book.get("format") != "strides-to-shards gradebook" or book.get("version") != VERSION:
        raise ValueError(
            f"expected a gradebook of version {VERSION}; came format {book.get('format')!r}, "
            f"version {book.get('version')!r}. Make it again with `course grade`"
        )
    return book


def rows(fields: dict[str, str]) -> str:
    """Rows of a table in Markdown, one a field."""
    return "\n".join(f"| `{name}` | {meaning} |" for name, meaning in fields.items())


def table(fields: dict[str, str], head: Sequence[str] = ("field", "meaning")) -> str:
    """A table in Markdown of fields and what they mean."""
    return f"| {head[0]} | {head[1]} |\n|---|---|\n{rows(fields)}\n"


FORMAT = f"""\
# What is in this folder

Everything here was made from the records of one run and from its plan; make it again at any time.
The pages in `feedback/` are for the students; nothing else is. `gradebook.json` holds the calls and
sentences of failing checks that a student may not see, and `report.html` and `similarity.html` name
students. The run's own files (`run.json`, `results.jsonl`, `secret`) may lie beside these: whoever
has the secret can draw the same random cases.

| file | holds |
|---|---|
| `gradebook.csv` | one row for each student, for spreadsheets: UTF-8 with a byte-order mark, commas |
| `gradebook.json` | the same and more, for programs: UTF-8 |
| `canvas.csv`, `moodle.csv` | one column of points, for the two learning systems' own imports |
| `import.md` | how to import them, who is missing in them, and why |
| `feedback/` | one page for each student |
| `report.html` | the class: what went wrong, how often, what to teach again |
| `similarity.html` | answers that resemble one another; only if asked for |
| `gradescope/`, `classroom/` | each submission's result as Gradescope and GitHub Classroom read it; only if asked for |

## gradebook.csv

A text that a spreadsheet would take for a formula (it begins with =, +, - or @) begins with an
apostrophe here. Points have at most two decimals and a point before them.

{table(COLUMNS, ("column", "meaning"))}| *an exercise's key* | points earned in that exercise, before what late costs |

## gradebook.json

{table(BOOK)}
Each of `students`:

{table(STUDENT)}
Each of `results`:

{table(RESULT)}"""
"""FORMAT.md: what the files are and what each field means."""
