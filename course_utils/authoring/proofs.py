"""Proofs that an exercise grades what it says. Each raises AssertionError, naming what failed.

The suite runs them over every exercise of the book; an instructor can run them over their own.
"""

import ast
import atexit
import inspect
import linecache
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import course_utils
from course_utils.grading import Exercise, chapters, exercises_of, grade
from course_utils.grading.grade import BY_HAND, CONTRACTS, broken, checks_of, differs
from course_utils.grading.remote import Remote
from course_utils.grading.stubs import (
    first_line,
    is_stub,
    names_bound,
    names_used,
    stub_source,
)
from course_utils.grading.verdict import FAILED, PASSED

SEEDS = (0, 1, 2)
NO_EDITABLE_INSTALLS = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]
"""


def objects_of(exercise: Exercise, subject: Any) -> list[Any]:
    """The objects of a mistake or alternative, one for each name of the exercise."""
    return [subject] if len(exercise.parts) == 1 else list(subject.values())


def reference_passes(exercise: Exercise) -> int:
    """On several seeds; the number of checks, which is never zero."""
    for seed in SEEDS:
        verdict = grade(exercise, *exercise.parts, seed=seed)
        assert verdict.outcome == PASSED, f"the reference does not pass:\n{verdict}"
        assert verdict.ran > 1, "the verdict rests on no check but the signature"
        assert all(rung.total and not rung.not_compared for rung in verdict.rungs)
    return verdict.ran


def has_cases_by_hand(exercise: Exercise) -> None:
    assert any(check.case.rung == BY_HAND for check in checks_of(exercise)), (
        "no case worked by hand"
    )


def stub_is_rejected(exercise: Exercise) -> None:
    """The untouched stub is recognised as one, and fails if it is graded all the same."""
    objects = stub_objects(exercise)
    assert all(is_stub(obj) for obj in objects), "the stub is not recognised as not attempted"
    assert grade(exercise, *objects).outcome == FAILED, "the untouched stub passes"
    assert not any(is_stub(part) for part in exercise.parts), "the reference looks like a stub"


def stub_objects(exercise: Exercise) -> list[Any]:
    """The stubs, run in the reference module's own names."""
    module = inspect.getmodule(inspect.unwrap(exercise.parts[0]))
    assert module is not None
    space = dict(vars(module))
    for part in exercise.parts:
        source, filename = stub_source(part), f"<stub of {exercise.key}: {part.__name__}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        exec(compile(source, filename, "exec"), space)
    return [space[part.__name__] for part in exercise.parts]


def stub_agrees_with_reference(exercise: Exercise) -> None:
    """Same name, signature, annotations and docstring (and the same methods, for a class)."""
    for stub, part in zip(stub_objects(exercise), exercise.parts, strict=True):
        for have, want in zip(documented(stub), documented(part), strict=True):
            assert have == want, f"stub and reference disagree: {have} and {want}"
        assert inspect.getdoc(part), f"{part.__name__} has no docstring"


def documented(obj: Any) -> list[tuple[str, str, str | None]]:
    found = [(obj.__name__, str(inspect.signature(obj)), inspect.getdoc(obj))]
    if inspect.isclass(obj):
        for name, method in vars(obj).items():
            public = not name.startswith("_") or name in ("__init__", "__call__")
            if inspect.isfunction(method) and public:
                found.append((name, str(inspect.signature(method)), inspect.getdoc(method)))
    return found


def mistakes_are_diagnosed(exercise: Exercise) -> int:
    """Each known mistake is rejected, and explained as itself; their number."""
    assert len(exercise.mistakes) >= 3, f"{len(exercise.mistakes)} mistakes; at least 3 are due"
    for mistake in exercise.mistakes:
        verdict = grade(exercise, *objects_of(exercise, mistake.subject))
        assert verdict.outcome == FAILED, f"this mistake passes: {mistake.says!r}"
        assert verdict.diagnosis == mistake.says, (
            f"the mistake {mistake.says!r} is explained as {verdict.diagnosis!r}:\n{verdict}"
        )
        at_cost = verdict.failed_rung == CONTRACTS
        assert at_cost == mistake.cost, f"{mistake.says!r} failed at {verdict.failed_rung}"
    return len(exercise.mistakes)


def contracts_bind(exercise: Exercise) -> int:
    """Each contract is kept by the reference and broken by a mistake whose values are right."""
    for contract in exercise.contracts:
        own = broken(contract, exercise.subject(*exercise.parts), exercise.limit_s)
        assert own is None, f"the reference breaks its own contract: {contract.promise}: {own}"
        breakers = [
            mistake
            for mistake in exercise.mistakes
            if mistake.cost and broken(contract, mistake.subject, exercise.limit_s)
        ]
        assert breakers, f"no mistake with right values breaks the contract {contract.promise!r}"
    return len(exercise.contracts)


def alternatives_pass(exercise: Exercise) -> int:
    """Each correct version in another style passes, on several seeds; their number."""
    assert exercise.alternatives, "no alternative is declared; at least one is due"
    for alternative in exercise.alternatives:
        for seed in SEEDS:
            verdict = grade(exercise, *objects_of(exercise, alternative.subject), seed=seed)
            assert verdict.outcome == PASSED, (
                f"a right answer is rejected ({alternative.style}):\n{verdict}"
            )
    return len(exercise.alternatives)


def declaration_is_whole(exercise: Exercise) -> None:
    assert exercise.hints, "no hints"
    assert exercise.minutes > 0 and exercise.points > 0
    assert exercise.key.partition(".")[2] == exercise.names[0]


@cache
def elsewhere() -> Remote:
    """A process whose copy of the package lacks `reference`, `exercises` and `questions`."""
    folder = tempfile.mkdtemp(prefix="course-elsewhere-")
    package = Path(folder) / "course_utils"
    left_out = shutil.ignore_patterns("reference", "exercises", "questions", "__pycache__")
    shutil.copytree(Path(course_utils.__file__).parent, package, ignore=left_out)
    (Path(folder) / "sitecustomize.py").write_text(NO_EDITABLE_INSTALLS, encoding="utf-8")
    remote = Remote(environment={"PYTHONPATH": folder}, cwd=folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(remote.close)
    return remote


def probe_needs_nothing_else(exercise: Exercise) -> int:
    """The probe sees the same in a process that holds neither references nor expectations.

    Arrays and JSON cross; the student's code over there is the solution's source.
    """
    checks = checks_of(exercise)
    cases = [check.case for check in checks]
    seen = elsewhere().observe(standalone(exercise), exercise.names, exercise.probe, cases)
    assert len(seen) == len(checks), f"{len(seen)} observations of {len(checks)} cases came back"
    for got, check in zip(seen, checks, strict=True):
        assert differs(got, check) is None, f"in another process: {differs(got, check)}"
    return len(checks)


def standalone(exercise: Exercise) -> str:
    """The solution as a file of its own: every import of the reference's module, and of its other
    definitions those that this one needs, or the chapter's other references, which it may call."""
    module = inspect.getmodule(inspect.unwrap(exercise.parts[0]))
    assert module is not None
    text = inspect.getsource(module)
    tree, lines = ast.parse(text), text.splitlines()
    declared = {name: node for node in tree.body for name in names_bound(node)}
    known = exercises_of(exercise.chapter) if exercise.chapter in chapters() else {}
    wanted = {part.__name__ for e in (exercise, *known.values()) for part in e.parts}
    needed: dict[int, ast.stmt] = {}
    while wanted:
        node = declared.get(wanted.pop())
        if node is not None and node.lineno not in needed:
            needed[node.lineno] = node
            wanted |= names_used(node)
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    needed |= {node.lineno: node for node in imports}
    found = [needed[line] for line in sorted(needed)]
    return "\n\n".join("\n".join(lines[first_line(n) - 1 : n.end_lineno]) for n in found) + "\n"


PROOFS = {
    "the reference passes": reference_passes,
    "cases are worked by hand": has_cases_by_hand,
    "the stub is not an answer": stub_is_rejected,
    "stub and reference agree": stub_agrees_with_reference,
    "mistakes are rejected and explained": mistakes_are_diagnosed,
    "contracts bind": contracts_bind,
    "right answers of other styles pass": alternatives_pass,
    "the declaration is whole": declaration_is_whole,
    "the probe needs nothing else": probe_needs_nothing_else,
}
