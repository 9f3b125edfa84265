"""The student's verbs beside @exercise: hint, solution, use_book, mine, reset, provenance, progress."""

import inspect
from typing import Any

from course_utils.grading.declaring.cells import stub_cell
from course_utils.grading.declaring.exercise import Exercise
from course_utils.grading.declaring.registry import chapters as all_chapters
from course_utils.grading.declaring.registry import exercises_of, find
from course_utils.grading.judging.judge import NoChecks
from course_utils.grading.judging.outcomes import FAILED, NOT_ATTEMPTED, PASSED
from course_utils.grading.observing.errors import raised_by
from course_utils.source.text import source_of

from .answers import rebuilt, shows_one_way
from .binding import BOOK, YOURS, library, stands_for, without_answer
from .checking import exercise
from .panels import Panel, Progress, ipython, show
from .progress_file import store


def hint(key: str) -> None:
    """Show the next hint of an exercise: first the one that fits the rung that failed last."""
    declared = find(key)
    hints = declared.staged_hints
    if not hints:
        show(Panel(f"{key} has no hints"))
        return

    def choose(entries: dict[str, dict[str, Any]]) -> int:
        entry = entries.setdefault(key, {})
        shown = entry.setdefault("hints", [])
        unseen = [i for i in range(len(hints)) if i not in shown]
        fitting = [i for i in unseen if hints[i].rung and hints[i].rung == entry.get("rung")]
        general = [i for i in unseen if hints[i].rung is None]
        chosen: int = (fitting + general + unseen + [len(hints) - 1])[0]
        if chosen not in shown:
            shown.append(chosen)
        return chosen

    number = store().edit(choose)
    shown = len(store().read().get(key, {}).get("hints", [])) or 1
    more = "" if shown < len(hints) else f" · the last one{shows_one_way(declared)}"
    show(Panel(f"Hint {shown} of {len(hints)} for {declared.names[0]}{more}", hints[number].text))


def _with_answer(key: str) -> Exercise:
    """The exercise, if this edition holds its answer. Raises NoAnswer if it does not."""
    declared = find(key)
    if not declared.has_answer:
        raise without_answer(key)
    return declared


def solution(key: str) -> None:
    """Show the book's version, beside your own if you have passed with one.

    Raises NoAnswer in an edition that holds none.
    """
    declared = _with_answer(key)
    book = "\n\n\n".join(source_of(part) for part in declared.parts)
    columns = [("The book's version", book)]
    answer = store().read().get(key, {}).get("answer")
    if answer:
        columns.insert(0, ("Yours", "\n".join(answer).strip()))
    show(Panel(f"{declared.title} ({key})", columns=tuple(columns)))


def use_book(key: str) -> Any:
    """Bind the exercise's name to the book's version in the calling notebook; also return it.

    Raises NoAnswer in an edition that holds none.
    """
    declared = _with_answer(key)
    space = inspect.stack()[1].frame.f_globals
    space.update(zip(declared.names, declared.parts, strict=True))
    stands_for[key] = BOOK
    print(f"{', '.join(declared.names)}: the book's version from here on.")
    return declared.reference


def mine(key: str) -> Any:
    """Your passed answer to an exercise of any chapter, or the book's version where there is none.

    For a pair, a tuple in the order of its names. `provenance()` says which it was. In an edition
    without answers the library's own version stands in, where one is declared; else NoAnswer is raised.
    """
    declared = find(key)
    entry = store().read().get(key, {})
    answer = entry.get("answer")
    if entry.get("missing"):
        gaps = ", ".join(f"`{gap}`" if gap.isidentifier() else gap for gap in entry["missing"])
        why = f"Your answer to {key} needs {gaps}, which could not be kept with it."
    elif answer and all(answer):
        try:
            objects = [rebuilt(key, n, s) for n, s in zip(declared.names, answer, strict=True)]
            stands_for[key] = YOURS
            if entry.get("last") == FAILED:
                print(
                    f"Your answer to {key} that passed is used; the last one you ran did not pass."
                )
            return objects[0] if len(objects) == 1 else tuple(objects)
        except Exception as error:  # whatever the stored answer does when it is run again
            raised = raised_by(error)
            why = f"Your answer to {key} cannot be run here ({raised.kind}: {raised.message})."
    else:
        why = f"You have no passed answer to {key} yet."
    if declared.has_answer:
        print(f"{why} The book's version stands in for it.")
        stands_for[key] = BOOK
        return declared.reference
    if not declared.stand_in:
        print(why)
        raise without_answer(key)
    stands_for[key] = f"the library's {declared.stand_in}"
    print(f"{why} {declared.stand_in} stands in for it.")
    return library(declared)


def reset(key: str) -> None:
    """Start an exercise again: a new cell with its stub, and its record set back (answer kept aside)."""
    declared = find(key)

    def change(entries: dict[str, dict[str, Any]]) -> None:
        entry = entries.pop(key, {})
        if entry.get("answer"):
            entries[key] = {"earlier": [*entry.get("earlier", []), entry["answer"]]}

    store().edit(change)
    stands_for.pop(key, None)
    stub = stub_cell(key)
    shell = ipython()
    if shell:
        shell.set_next_input(stub, replace=False)
        print(f"{declared.names[0]} starts again: its stub is in the cell below.")
    else:
        print(stub)


def provenance() -> None:
    """Say whose code each exercise's name stands for in this kernel."""
    if not stands_for:
        show(Panel("Whose code runs here", "No exercise has been run in this kernel yet."))
        return
    width = max(map(len, stands_for))
    rows = "\n".join(f"{key:<{width}}  {whose}" for key, whose in stands_for.items())
    show(Panel("Whose code runs here", columns=(("", rows),)))


def progress(chapter: str | None = None) -> Progress:
    """How far you are: one mark an exercise, points a chapter. Raises UnknownKey for no such chapter."""
    entries = store().read()
    rows = []
    for name in [chapter] if chapter else all_chapters():
        exercises = exercises_of(name).values()
        marks = tuple((e.names[0], _outcome_of(entries.get(e.key, {}))) for e in exercises)
        got = sum(e.points for e, (_, o) in zip(exercises, marks, strict=True) if o == PASSED)
        rows.append((name, marks, got, sum(e.points for e in exercises)))
    for warning in store().take_warnings():
        print(f"Note: {warning}.")
    return Progress(tuple(rows), store().path)


def _outcome_of(entry: dict[str, Any]) -> str:
    if entry.get("passed_at"):
        return PASSED
    return FAILED if entry.get("last") == FAILED else NOT_ATTEMPTED


__all__ = ["NoChecks", "exercise", "hint", "mine", "progress", "provenance", "reset", "solution"]
