"""What the engine says today of every reference, mistake and alternative: to see whether a change of
the engine changes a verdict.

    python tests/support/golden_verdicts.py write FILE [--chapters strides,tensors]
    python tests/support/golden_verdicts.py compare FILE [--chapters strides,tensors]

`compare` prints every entry that differs, by its key, and exits 1.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from course_utils.grading import Exercise, Verdict, every, grade

Entries = dict[str, dict[str, Any]]
TIME_TAKEN = re.compile(r" in \d+ ms$", re.MULTILINE)  # at the end of a passed verdict's headline


def subjects(exercise: Exercise) -> Iterator[tuple[str, list[Any]]]:
    """The key of each entry of an exercise, and its objects, one for each name of the exercise."""
    yield f"{exercise.key} reference", list(exercise.parts)
    for kind, found in (("mistake", exercise.mistakes), ("alternative", exercise.alternatives)):
        for number, one in enumerate(found, 1):
            single = len(exercise.parts) == 1
            objects = [one.subject] if single else list(one.subject.values())
            yield f"{exercise.key} {kind} {number}", objects


def summary(verdict: Verdict) -> dict[str, Any]:
    """All that a verdict says but the time it took."""
    failure = verdict.failure
    return {
        "outcome": verdict.outcome,
        "failed_rung": verdict.failed_rung,
        "rungs": [[r.name, r.passed, r.total, r.not_compared] for r in verdict.rungs],
        "total": verdict.total,
        "diagnosis": verdict.diagnosis,
        "label": failure and failure.label,
        "sentence": failure and failure.sentence,
        "text": TIME_TAKEN.sub("", str(verdict)),
    }


def entry(exercise: Exercise, objects: list[Any]) -> dict[str, Any]:
    try:
        return summary(grade(exercise, *objects))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def verdicts(chapters: list[str]) -> Entries:
    """The entries of these chapters, or of all, by key."""
    found: Entries = {}
    for exercise in every().values():
        if chapters and exercise.chapter not in chapters:
            continue
        found |= {key: entry(exercise, objects) for key, objects in subjects(exercise)}
        print(f"{len(found):5} {exercise.key}", file=sys.stderr, flush=True)
    return found


def dumps(entries: Entries) -> str:
    """JSON, sorted, one line an entry."""
    lines = [
        f"{json.dumps(key)}: {json.dumps(entries[key], sort_keys=True, ensure_ascii=False)}"
        for key in sorted(entries)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def differences(before: Entries, after: Entries) -> Iterator[str]:
    """What is not as it was, a paragraph an entry."""
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            yield f"{key}: {'came' if old is None else 'is gone'}"
        elif old != new:
            fields = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
            said = [f"  {f}: {old.get(f)!r}\n    now: {new.get(f)!r}" for f in fields]
            yield "\n".join([f"{key}:", *said])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("verb", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--chapters", default="", help="some of them, with commas between")
    given = parser.parse_args()
    chapters = [name for name in given.chapters.split(",") if name]
    if unknown := set(chapters) - {exercise.chapter for exercise in every().values()}:
        parser.error(f"no chapter has the name {', '.join(sorted(unknown))}")
    found = verdicts(chapters)
    if given.verb == "write":
        given.file.write_text(dumps(found), encoding="utf-8")
        print(f"{len(found)} verdicts in {given.file}")
        return 0
    before: Entries = json.loads(given.file.read_text(encoding="utf-8"))
    if chapters:
        before = {k: v for k, v in before.items() if k.partition(".")[0] in chapters}
    differing = list(differences(before, found))
    print(*differing, f"{len(differing)} of {len(before | found)} verdicts differ", sep="\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
