"""Proofs that an exercise grades what it says. Each raises AssertionError, naming what failed.

Each returns how many things it has checked. The suite runs them over every exercise of the book, and
keeps what they gave in the ledger; an instructor can run them over their own.
"""

import ast
import atexit
import inspect
import linecache
import pkgutil
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import course_utils
from course_utils.authoring.mutation.of_exercise import small_wrong_versions_die
from course_utils.grading import Exercise, chapters, exercises_of, grade
from course_utils.grading.comparing.observations import differs
from course_utils.grading.declaring.cells import cell, stub_of
from course_utils.grading.judging.judge import (
    BY_HAND,
    CONTRACTS,
    EDGE,
    RANDOM,
    broken,
    checks_of,
    judge,
)
from course_utils.grading.judging.outcomes import FAILED, NOT_ATTEMPTED, PASSED
from course_utils.grading.observing.observe import observe
from course_utils.grading.pytrees.tree import tensors
from course_utils.grading.remote.client import RemoteSubmission
from course_utils.needs import lacking
from course_utils.source.names import first_line, names_bound, names_used
from course_utils.source.stub import is_stub, stub_source
from course_utils.source.text import source_of

from .plain_process import PlainProcess

SEEDS = (0, 1, 2)
TO_LOAD_S = 60.0  # a library's optimizer loads much on first use
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


def expectations_are_meant(exercise: Exercise) -> int:
    """The reference raises only in an edge case that says why, and its floats have a float64 oracle.

    Else a slip in a case would make an exception, or nothing at all, what every answer is held to.
    """
    checks = checks_of(exercise)
    for check in checks:
        found, case = check.expected.observation, check.case
        meant = case.rung == EDGE and case.why
        assert not found.raised or meant, f"the reference raises: {found.raised} ({case.rung})"
        floats = any(leaf.is_floating_point() for leaf in tensors(found.seen or {}))
        assert not floats or check.expected.oracle is not None, (
            f"the reference cannot be computed in float64 ({case.rung}: {case})"
        )
    return len(checks)


def layouts_are_what_they_are_called(exercise: Exercise) -> int:
    """A case that is called "not contiguous" has a tensor that no `view` can flatten.

    Else an answer that needs a copy, and makes none, passes by luck.
    """
    called = [case for case in exercise.edge_cases() if "not contiguous" in case.why]
    for case in called:
        assert any(map(no_view_flattens, tensors(case.given))), (
            f"a view flattens every tensor of {case.why!r}: see draws.scattered"
        )
    return len(called)


def no_view_flattens(x: torch.Tensor) -> bool:
    """Are there two axes or more, of which no `view` can merge two neighbours?"""
    axes = [(n, stride) for n, stride in zip(x.shape, x.stride(), strict=True) if n > 1]
    merged = any(outer == n * inner for (_, outer), (n, inner) in pairwise(axes))
    return len(axes) > 1 and not merged


def has_cases_by_hand(exercise: Exercise) -> int:
    """At least one case has a result that a person worked out, not the reference."""
    number = sum(check.case.rung == BY_HAND for check in checks_of(exercise))
    assert number, "no case worked by hand"
    return number


def stub_is_rejected(exercise: Exercise) -> int:
    """The untouched stub is recognised as one, and fails if it is graded all the same."""
    objects = stub_objects(exercise)
    assert all(is_stub(obj) for obj in objects), "the stub is not recognised as not attempted"
    assert grade(exercise, *objects).outcome == FAILED, "the untouched stub passes"
    assert not any(is_stub(part) for part in exercise.parts), "the reference looks like a stub"
    return len(objects)


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


def stub_agrees_with_reference(exercise: Exercise) -> int:
    """Same name, signature, annotations and docstring (and the same methods, for a class).

    And the stub says what an answer may cost, a line for each contract.
    """
    number = 0
    told = stub_of(exercise, exercise.parts[0]).splitlines()
    for contract in exercise.contracts:
        assert f"- {contract.promise}" in map(str.strip, told), (
            f"graded, and not said in the stub: {contract.promise}"
        )
    for stub, part in zip(stub_objects(exercise), exercise.parts, strict=True):
        for have, want in zip(documented(stub), documented(part), strict=True):
            assert have == want, f"stub and reference disagree: {have} and {want}"
            number += 1
        assert inspect.getdoc(part), f"{part.__name__} has no docstring"
    return number


def documented(obj: Any) -> list[tuple[str, str, str | None]]:
    """Name, signature and docstring of an object and, for a class, of its public methods."""
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
        if verdict.failed_rung == RANDOM:
            assert _fails_on_other_seeds(exercise, mistake.subject), (
                f"seed 0 finds {mistake.says!r}, another does not: it wants a case of its own"
            )
    return len(exercise.mistakes)


def _fails_on_other_seeds(exercise: Exercise, subject: Any) -> bool:
    """A class is graded with other random cases than a notebook."""
    objects = objects_of(exercise, subject)
    return all(
        grade(exercise, *objects, seed=seed, explain=False).outcome == FAILED for seed in SEEDS[1:]
    )


def contracts_bind(exercise: Exercise) -> int:
    """Each contract is kept by the reference and broken by a mistake whose values are right."""
    for contract in exercise.contracts:
        own = broken(contract, exercise.reference_subject, exercise.limit_s)
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


def stand_in_fits(exercise: Exercise) -> int:
    """The library's version shows what the reference does, or a note says in what it does not.

    Its signature may be another. The number of cases in which the two are alike: half of them at
    least. A note where nothing differs is refused, too.
    """
    obj = pkgutil.resolve_name(exercise.stand_in or "")
    checks = checks_of(exercise)
    different = [
        check
        for check in checks
        if differs(observe(exercise.probe, exercise.subject(obj), check.case, TO_LOAD_S), check)
    ]
    assert len(different) <= len(checks) / 2, f"{exercise.stand_in} is something else"
    places = [f"{check.case.rung}: {check.case.why}" for check in different]
    assert bool(different) == bool(exercise.stand_in_note), (
        f"{exercise.stand_in} differs in {places or 'nothing'}; the note: {exercise.stand_in_note!r}"
    )
    return len(checks) - len(different)


def declaration_is_whole(exercise: Exercise) -> int:
    """Hints, minutes and points are there, and the key is the name that the student writes."""
    assert exercise.hints, "no hints"
    assert exercise.minutes > 0 and exercise.points > 0
    assert exercise.key.partition(".")[2] == exercise.names[0]
    return len(exercise.hints)


@cache
def elsewhere() -> PlainProcess:
    """A process whose copy of the package lacks `reference`, `exercises` and `questions`."""
    folder = tempfile.mkdtemp(prefix="course-elsewhere-")
    package = Path(folder) / "course_utils"
    left_out = shutil.ignore_patterns("reference", "exercises", "questions", "__pycache__")
    shutil.copytree(Path(course_utils.__file__).parent, package, ignore=left_out)
    (Path(folder) / "sitecustomize.py").write_text(NO_EDITABLE_INSTALLS, encoding="utf-8")
    process = PlainProcess({"PYTHONPATH": folder}, cwd=folder, patience=10.0)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(process.close)
    return process


def verdict_needs_nothing_else(exercise: Exercise) -> int:
    """The verdict is the same on code in a process that holds neither references nor expectations.

    Arrays and JSON cross, both ways; the student's code over there is the solution's source. Its
    stub is known as one there too.
    """
    imports, found = standalone(exercise)
    answer = RemoteSubmission(elsewhere().ask, [imports, found]).answer(exercise)
    verdict = judge(exercise, answer)
    assert answer.attempted and verdict.outcome == PASSED, f"in another process:\n{verdict}"
    assert verdict.ran == verdict.total, f"{verdict.ran} of {verdict.total} checks ran"
    stub = RemoteSubmission(elsewhere().ask, [imports, found, stub_cell_of(exercise)]).answer(
        exercise
    )
    assert judge(exercise, stub).outcome == NOT_ATTEMPTED, "the stub is not recognised over there"
    return verdict.ran


def stub_cell_of(exercise: Exercise) -> str:
    """The exercise's cell as a student gets it, of an exercise that need not be in the registry."""
    return cell(exercise, stub_source)


def standalone(exercise: Exercise) -> tuple[str, str]:
    """The solution as two cells of a notebook: every import of the modules that hold the chapter's
    references; and of their other definitions those that are needed, this answer's decorated."""
    wanted: dict[Any, set[str]] = {}
    for one in (*sibling_exercises(exercise), exercise):
        for part in one.parts:
            module = inspect.getmodule(inspect.unwrap(part))
            wanted.setdefault(module, set()).add(part.__name__)
    imports = [line for module in wanted for line in imports_of(module)]
    found = [text for module, names in wanted.items() for text in definitions(module, names)]
    for part in exercise.parts:
        source = source_of(part)
        found = [t.replace(source, f'@exercise("{exercise.key}")\n{source}') for t in found]
    return "\n".join(imports) + "\n", "\n\n".join(found) + "\n"


def imports_of(module: Any) -> list[str]:
    """The import statements of a module, as source."""
    tree = ast.parse(inspect.getsource(module))
    return [ast.unparse(n) for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]


def definitions(module: Any, names: set[str]) -> list[str]:
    """The statements of a module that bind these names, and those that bind what they use."""
    text = inspect.getsource(module)
    tree, lines, wanted = ast.parse(text), text.splitlines(), set(names)
    others = [n for n in tree.body if not isinstance(n, ast.Import | ast.ImportFrom)]
    declared = {name: node for node in others for name in names_bound(node)}
    needed: dict[int, ast.stmt] = {}
    while wanted:
        node = declared.get(wanted.pop())
        if node is not None and node.lineno not in needed:
            needed[node.lineno] = node
            wanted |= names_used(node)
    found = [needed[line] for line in sorted(needed)]
    return ["\n".join(lines[first_line(n) - 1 : n.end_lineno]) for n in found]


def sibling_exercises(exercise: Exercise) -> list[Exercise]:
    """The chapter's other exercises, whose references this one may call: earlier cells define them."""
    if exercise.chapter not in chapters():
        return []
    return [e for e in exercises_of(exercise.chapter).values() if e is not exercise]


Proof = Callable[[Exercise], int | dict[str, int]]

PROOFS: dict[str, Proof] = {
    "the reference passes": reference_passes,
    "what is expected is meant": expectations_are_meant,
    "layouts are what they are called": layouts_are_what_they_are_called,
    "cases are worked by hand": has_cases_by_hand,
    "the stub is not an answer": stub_is_rejected,
    "stub and reference agree": stub_agrees_with_reference,
    "mistakes are rejected and explained": mistakes_are_diagnosed,
    "contracts bind": contracts_bind,
    "right answers of other styles pass": alternatives_pass,
    "the declaration is whole": declaration_is_whole,
    "the verdict needs nothing else": verdict_needs_nothing_else,
}
STAND_IN = "the library's version fits"
MUTANTS = "small wrong versions die"


def proofs_of(exercise: Exercise) -> dict[str, Proof]:
    """All that is to be proved of an exercise, by name."""
    fits: dict[str, Proof] = {STAND_IN: stand_in_fits} if exercise.stand_in else {}
    return PROOFS | fits | {MUTANTS: small_wrong_versions_die}


def unprovable(exercise: Exercise) -> dict[str, str]:
    """Names of the proofs that this machine cannot give, with the reason."""
    if need := lacking(exercise.needs):
        return dict.fromkeys(proofs_of(exercise), f"it needs {need.what}")
    try:
        pkgutil.resolve_name(exercise.stand_in or "torch")
    except ModuleNotFoundError as error:
        return {STAND_IN: f"{error.name} is not installed"}
    return {}
