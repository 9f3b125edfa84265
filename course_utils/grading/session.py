"""The student's verbs: @exercise and the few functions around it."""

import html
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from .capture import capture, rebuild
from .exercise import Exercise, exercises_of, find
from .exercise import chapters as all_chapters
from .extract import answers, build, read_cells
from .judging import NoChecks, grade
from .limits import time_limit
from .raised import raised_by
from .show import MARKS
from .store import Store
from .stubs import is_stub, source_of, stub_cell
from .surroundings import quiet
from .verdict import FAILED, INTERRUPTED, NOT_ATTEMPTED, PASSED, Failure, Verdict, VerdictError

T = TypeVar("T")
TO_DEFINE_S = 60.0  # for the definitions and imports of an answer; torch alone may take ten
YOURS, YOURS_WRONG, BOOK = "yours", "yours, not passed yet", "the book's"
NOBODY = "nobody's yet: this edition holds no answer"

_store: Store | None = None
_bound: dict[str, str] = {}
_parts: dict[str, dict[str, Any]] = {}
_mine: dict[str, Any] = {}


def store() -> Store:
    global _store
    wanted = Store()
    if _store is None or _store.path != wanted.path:
        _store = wanted
    return _store


def show(thing: Any) -> None:
    """Display it in Jupyter, print it elsewhere; then say what went wrong with the progress file."""
    if ipython():
        from IPython.display import display

        display(thing)
    else:
        print(thing)
    for warning in store().take_warnings():
        print(f"Note: {warning}.", file=sys.stdout)


def ipython() -> Any:
    """The running IPython shell, or None."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return None
    return get_ipython()


@dataclass(frozen=True)
class Panel:
    """A titled block of text or code, for hints, solutions and tables."""

    title: str
    text: str = ""
    columns: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        parts = [self.title] + ([self.text] if self.text else [])
        parts += [f"--- {head}\n{body}" for head, body in self.columns]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        out = f"<b>{html.escape(self.title)}</b>"
        if self.text:
            out += f'<div style="white-space:pre-wrap">{html.escape(self.text)}</div>'
        columns = "".join(
            f'<div style="flex:1 1 24em;min-width:0"><div><b>{html.escape(head)}</b></div>'
            '<pre style="white-space:pre-wrap;overflow-wrap:anywhere;background:none;color:inherit;'
            f'border:0;margin:0;padding:0;font-size:.9em">{html.escape(body)}</pre></div>'
            for head, body in self.columns
        )
        if columns:
            out += f'<div style="display:flex;flex-wrap:wrap;gap:1.5em">{columns}</div>'
        return (
            '<div style="border:1px solid rgba(128,128,128,.5);border-radius:6px;padding:.5em .9em;'
            "margin:.3em 0;max-width:70em;color:inherit;font-family:system-ui,sans-serif;"
            f'font-size:.95em;line-height:1.45">{out}</div>'
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}


# ------------------------------------------------------------------------------ @exercise


def exercise(key: str, *, strict: bool = False) -> Callable[[T], T]:
    """Check the decorated function or class against the exercise `key`, and bind the name.

    Not attempted: the name is bound to the book's version. Attempted: to yours, right or wrong.
    strict: raise VerdictError unless it passes (for the solved notebooks in CI).
    Raises UnknownKey for a key that no exercise has.
    """
    declared = find(key)

    def check(obj: T) -> T:
        objects = collect_parts(declared, obj)
        if objects is None:
            return obj
        verdict, bound = judge(declared, objects)
        record(declared, verdict, objects)
        verdict = replace(verdict, notes=verdict.notes + advice(declared, verdict))
        show(verdict)
        if strict and verdict.outcome not in (PASSED, "skipped"):
            raise VerdictError(str(verdict))
        return bind(declared, obj, bound)

    return check


def collect_parts(declared: Exercise, obj: Any) -> list[Any] | None:
    """The objects to judge; None while a pair still waits for its other half."""
    if len(declared.parts) == 1:
        return [obj]
    name = getattr(obj, "__name__", "")
    if name not in declared.names:
        print(f"{declared.key} asks for {' and '.join(declared.names)}; `{name}` is none of them.")
        return None
    have = _parts.setdefault(declared.key, {})
    have[name] = obj
    waiting = [n for n in declared.names if n not in have]
    if waiting:
        print(f"○ {name}: checked together with {' and '.join(waiting)}, once that is defined too.")
        return None
    del _parts[declared.key]
    return [have[n] for n in declared.names]


def judge(declared: Exercise, objects: list[Any]) -> tuple[Verdict, list[Any]]:
    """The verdict, and the objects that the names will be bound to."""
    if all(is_stub(obj) for obj in objects):
        meanwhile, whose, words = instead_of(declared, objects)
        _bound[declared.key] = whose
        reason = (
            "Nothing was checked: write your answer in place of the last line and run the cell. "
            + words
        )
        return Verdict(declared.key, declared.title, NOT_ATTEMPTED, reason), meanwhile
    with names_bound_to(declared, objects):
        try:
            verdict = grade(declared, *objects)
        except KeyboardInterrupt:
            verdict = Verdict(declared.key, declared.title, INTERRUPTED, "you interrupted it")
    _bound[declared.key] = YOURS if verdict.outcome == PASSED else YOURS_WRONG
    return verdict, objects


def instead_of(declared: Exercise, stubs: list[Any]) -> tuple[list[Any], str, str]:
    """What the names stand for while nothing is attempted: the objects, whose they are, a sentence.

    An edition without answers has the library's own version, where one is declared, or the stub.
    """
    if declared.has_answer:
        return list(declared.parts), BOOK, "Until then the name is bound to the book's version."
    if declared.stand_in:
        whose = f"the library's {declared.stand_in}"
        words = f"Until then the name is bound to {whose}. {declared.stand_in_note}".rstrip()
        return [library(declared)], whose, words
    words = "This edition holds no answer to it: until yours is there, calling it raises."
    return stubs, NOBODY, words


def library(declared: Exercise) -> Any:
    """The library's own version of an exercise that declares one."""
    assert declared.stand_in
    module, _, name = declared.stand_in.rpartition(".")
    return getattr(importlib.import_module(module), name)


class NoAnswer(LookupError):
    """This edition holds no answer to an exercise."""


def without_answer(key: str) -> NoAnswer:
    return NoAnswer(
        f"this edition holds no answer to {key}: write your own, or ask for hint({key!r})"
    )


class names_bound_to:
    """While checks run, each name means the student's object: recursion, classes naming themselves."""

    def __init__(self, declared: Exercise, objects: Sequence[Any]) -> None:
        self.new = dict(zip(declared.names, objects, strict=True))
        self.space = globals_of(objects[0])
        self.old: dict[str, Any] = {}

    def __enter__(self) -> None:
        self.old = {name: self.space[name] for name in self.new if name in self.space}
        self.space.update(self.new)

    def __exit__(self, *_: object) -> None:
        for name in self.new:
            if name in self.old:
                self.space[name] = self.old[name]
            else:
                self.space.pop(name, None)


def globals_of(obj: Any) -> dict[str, Any]:
    if hasattr(obj, "__globals__"):
        return obj.__globals__  # type: ignore[no-any-return]
    module = sys.modules.get(getattr(obj, "__module__", ""), None)
    return vars(module) if module else {}


def bind(declared: Exercise, obj: Any, bound: list[Any]) -> Any:
    """What the decorated name becomes; a pair's other names are bound in its namespace."""
    by_name = dict(zip(declared.names, bound, strict=True))
    if len(bound) > 1:
        globals_of(obj).update({k: v for k, v in by_name.items() if k != obj.__name__})
        return by_name[obj.__name__]
    return bound[0]


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
    return f'; solution("{declared.key}") shows one way' if declared.has_answer else ""


# ------------------------------------------------------------------------------ the other verbs


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


def solution(key: str) -> None:
    """Show the book's version, beside your own if you have passed with one.

    Raises NoAnswer in an edition that holds none.
    """
    declared = find(key)
    if not declared.has_answer:
        raise without_answer(key)
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
    declared = find(key)
    if not declared.has_answer:
        raise without_answer(key)
    space = inspect.stack()[1].frame.f_globals
    space.update(zip(declared.names, declared.parts, strict=True))
    _bound[key] = BOOK
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
        print(f"Your answer to {key} needs {gaps}, which could not be kept with it.")
    elif answer and all(answer):
        try:
            objects = [rebuilt(key, n, s) for n, s in zip(declared.names, answer, strict=True)]
            _bound[key] = YOURS
            return objects[0] if len(objects) == 1 else tuple(objects)
        except Exception as error:  # whatever the stored answer does when it is run again
            raised = raised_by(error)
            print(f"Your answer to {key} cannot be run here ({raised.kind}: {raised.message}).")
    else:
        print(f"You have no passed answer to {key} yet.")
    if declared.has_answer:
        print("The book's version stands in for it.")
        _bound[key] = BOOK
        return declared.reference
    if not declared.stand_in:
        raise without_answer(key)
    _bound[key] = f"the library's {declared.stand_in}"
    print(f"{declared.stand_in} stands in for it.")
    return library(declared)


def rebuilt(key: str, name: str, source: str) -> Any:
    tag = f"{key}:{name}"
    if tag not in _mine:
        _mine[tag] = rebuild(source, name)
    return _mine[tag]


def reset(key: str) -> None:
    """Start an exercise again: a new cell with its stub, and its record set back (answer kept aside)."""
    declared = find(key)

    def change(entries: dict[str, dict[str, Any]]) -> None:
        entry = entries.pop(key, {})
        if entry.get("answer"):
            entries[key] = {"earlier": [*entry.get("earlier", []), entry["answer"]]}

    store().edit(change)
    _bound.pop(key, None)
    stub = stub_cell(key)
    shell = ipython()
    if shell:
        shell.set_next_input(stub, replace=False)
        print(f"{declared.names[0]} starts again: its stub is in the cell below.")
    else:
        print(stub)


def provenance() -> None:
    """Say whose code each exercise's name stands for in this kernel."""
    if not _bound:
        show(Panel("Whose code runs here", "No exercise has been run in this kernel yet."))
        return
    width = max(map(len, _bound))
    rows = "\n".join(f"{key:<{width}}  {whose}" for key, whose in _bound.items())
    show(Panel("Whose code runs here", columns=(("", rows),)))


@dataclass(frozen=True)
class Progress:
    """What is done of each chapter, drawn as one mark an exercise."""

    rows: tuple[tuple[str, tuple[tuple[str, str], ...], int, int], ...]
    path: Path

    def __str__(self) -> str:
        width = max((len(row[0]) for row in self.rows), default=0)
        lines = [
            f"{chapter:<{width}}  {' '.join(MARKS[o] for _, o in marks)}  {got} of {total} points"
            for chapter, marks, got, total in self.rows
        ]
        names = " ".join(f"{MARKS[o]} {o}" for o in (PASSED, FAILED, NOT_ATTEMPTED))
        return "\n".join([*lines, f"({names}; kept in {self.path})"])

    def _repr_html_(self) -> str:
        from .show import COLOURS

        rows = ""
        for chapter, marks, got, total in self.rows:
            dots = "".join(
                f'<span title="{html.escape(name)}: {outcome}" style="color:{COLOURS[outcome]};'
                f'padding:0 .15em">{MARKS[outcome]}</span>'
                for name, outcome in marks
            )
            rows += (
                f'<tr><th scope="row" style="text-align:left">{html.escape(chapter)}</th>'
                f'<td style="text-align:left">{dots}</td><td>{got} of {total} points</td></tr>'
            )
        return f'<table style="color:inherit">{rows}</table>'

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}


def progress(chapter: str | None = None) -> Progress:
    """How far you are: one mark an exercise, points a chapter. Raises UnknownKey for no such chapter."""
    entries = store().read()
    rows = []
    for name in [chapter] if chapter else all_chapters():
        exercises = exercises_of(name).values()
        marks = tuple((e.names[0], outcome_of(entries.get(e.key, {}))) for e in exercises)
        got = sum(e.points for e, (_, o) in zip(exercises, marks, strict=True) if o == PASSED)
        rows.append((name, marks, got, sum(e.points for e in exercises)))
    for warning in store().take_warnings():
        print(f"Note: {warning}.")
    return Progress(tuple(rows), store().path)


def outcome_of(entry: dict[str, Any]) -> str:
    if entry.get("passed_at"):
        return PASSED
    return FAILED if entry.get("last") == FAILED else NOT_ATTEMPTED


# ------------------------------------------------------------------------------ in a terminal


def check_notebook(path: str | Path, keys: Sequence[str] = ()) -> list[Verdict]:
    """The verdicts on a notebook's answers, without running the notebook.

    keys: only these exercises. Raises ValueError if the file is no notebook.
    """
    found = answers(read_cells(path))
    verdicts = []
    for key, answer in found.items():
        if keys and key not in keys:
            continue
        declared = find(key)
        if answer.problem:
            failure = Failure("", f"syntax error in {answer.problem}")
            verdicts.append(Verdict(key, declared.title, FAILED, failure=failure))
            continue
        try:
            with quiet(), time_limit(TO_DEFINE_S):
                objects = list(build(answer, Path(path).name, declared.names))
        except BaseException as error:  # anything a student's cell may do
            if isinstance(error, KeyboardInterrupt):
                raise
            raised = raised_by(error)
            line = f" (line {raised.lines[-1][1]})" if raised.lines else ""
            sentence = f"your code raised {raised.kind} as it was defined: {raised.message}{line}"
            verdicts.append(Verdict(key, declared.title, FAILED, failure=Failure("", sentence)))
            continue
        verdicts.append(judge(declared, objects)[0])
    return verdicts


__all__ = ["NoChecks", "exercise", "hint", "mine", "progress", "provenance", "reset", "solution"]
