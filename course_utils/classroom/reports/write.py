"""All files of a run, made from its records; each appears whole or not at all."""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from course_utils.classroom.exports.canvas import canvas
from course_utils.classroom.exports.github_classroom import classroom_base64
from course_utils.classroom.exports.gradescope import gradescope
from course_utils.classroom.exports.imports import in_words, with_held
from course_utils.classroom.exports.moodle import moodle
from course_utils.classroom.exports.roster import Roster
from course_utils.classroom.marks.align import by_plan
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import Record
from course_utils.classroom.marks.text import file_name
from course_utils.files import write_whole

from . import feedback, gradebook, report, similarity, similarity_page
from .sections import NOTEBOOKS, sections_of

SERVICES = ("gradescope", "classroom")
OWN = {
    "feedback": "feedback/{}.html",
    "gradescope": "gradescope/{}.json",
    "classroom": "classroom/{}.txt",
}
"""A student's own files."""


def write_all(
    folder: Path,
    plan: Plan,
    records: Iterable[Record],
    *,
    roster: Path | None = None,
    sources: Mapping[str, Mapping[str, str]] | None = None,
    also: Collection[str] = (),
    site: str = "",
    notebooks: Path = NOTEBOOKS,
    wall_seconds: float | None = None,
    without: Collection[str] = (),
) -> list[Path]:
    """Write all that comes out of a run into `folder`; the paths, in the order of writing.

    roster: what Canvas or Moodle exports. sources: answers' texts by student and exercise, for a
    similarity report. also: "gradescope" and "classroom", a file for each submission. site: where
    the web book is published, for links. wall_seconds: how long the run took. without: students whose
    own files of an earlier call are deleted.
    Raises RosterError before anything is written. A file appears whole or not at all.
    """
    unknown = sorted(set(also) - set(SERVICES))
    if unknown:
        raise ValueError(f"also: expected {' or '.join(SERVICES)}; came {', '.join(unknown)}")
    people = Roster.read(roster) if roster else None
    aligned = by_plan(plan, records)
    sections = sections_of(plan.keys, notebooks, site)
    imports = {
        "canvas.csv": canvas(plan, aligned, people),
        "moodle.csv": moodle(plan, aligned, people),
    }
    imports = {name: with_held(one, aligned) for name, one in imports.items()}
    texts = {
        "gradebook.csv": "\ufeff" + gradebook.as_csv(plan, aligned),
        "gradebook.json": gradebook.as_json(plan, aligned),
        "FORMAT.md": gradebook.FORMAT,
        **{name: one.csv for name, one in imports.items() if one.csv},
        "import.md": in_words(imports),
        "report.html": report.as_html(plan, aligned, sections, wall_seconds=wall_seconds),
    }
    for record in aligned:
        name = file_name(record.student)
        texts[OWN["feedback"].format(name)] = feedback.as_html(plan, record, sections)
        if "gradescope" in also:
            results = gradescope(plan, record)
            texts[OWN["gradescope"].format(name)] = json.dumps(results, indent=1) + "\n"
        if "classroom" in also:
            texts[OWN["classroom"].format(name)] = classroom_base64(plan, record) + "\n"
    if sources is not None:
        counting = {
            student: {key: text for key, text in answers.items() if key in plan.keys}
            for student, answers in sources.items()
        }
        texts["similarity.html"] = similarity_page.as_html(similarity.similar(counting), plan.title)
    for student in without:
        for path in OWN.values():
            (folder / path.format(file_name(student))).unlink(missing_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text.encode("utf-8", "backslashreplace"))
    return [folder / name for name in texts]
