"""Answers that passed: kept by key, and built again in another notebook."""

import time
from typing import Any

from course_utils.grading.declaring.exercise import Exercise
from course_utils.grading.judging.outcomes import FAILED, PASSED
from course_utils.grading.judging.verdict import Verdict
from course_utils.source.capture import capture, rebuild

from .progress_file import store

_mine: dict[str, Any] = {}


def record(declared: Exercise, verdict: Verdict, objects: list[Any]) -> None:
    """Keep the verdict, and a passed answer's source, in the progress file."""
    if verdict.outcome not in (PASSED, FAILED):
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    changes: dict[str, Any] = {}
    if verdict.outcome == PASSED:
        sources, missing = [], []
        for name, obj in zip(declared.names, objects, strict=True):
            try:
                source, gaps = capture(obj)
                source += "" if obj.__name__ == name else f"{name} = {obj.__name__}\n"
            except Exception:  # a lambda, a partial, the body of an exec: no source to keep
                source, gaps = "", ["its source"]
            sources.append(source)
            missing += gaps
        changes = {"passed_at": now, "answer": sources, "missing": missing}
        for name in declared.names:
            _mine.pop(f"{declared.key}:{name}", None)

    def change(entries: dict[str, dict[str, Any]]) -> None:
        entry = entries.setdefault(declared.key, {})
        entry["attempts"] = entry.get("attempts", 0) + 1
        entry["last"] = verdict.outcome
        entry["rung"] = verdict.failed_rung
        entry.update(changes)

    store().edit(change)


def advice(declared: Exercise, verdict: Verdict) -> tuple[str, ...]:
    """The last line of a failing verdict: which hint is open."""
    if verdict.outcome != FAILED or not declared.hints:
        return ()
    entry = store().read().get(declared.key, {})
    shown = entry.get("hints", [])
    number = len(shown) + 1
    if number > len(declared.hints):
        return (f"every hint is open{shows_one_way(declared)}",)
    return (f'hint {number} of {len(declared.hints)} is open: hint("{declared.key}")',)


def shows_one_way(declared: Exercise) -> str:
    """The end of a sentence that names `solution`; empty where the edition holds no answer."""
    return f'; solution("{declared.key}") shows one way' if declared.has_answer else ""


def rebuilt(key: str, name: str, source: str) -> Any:
    """The object that stored source defines, built once until another answer passes."""
    tag = f"{key}:{name}"
    if tag not in _mine:
        _mine[tag] = rebuild(source, name)
    return _mine[tag]
