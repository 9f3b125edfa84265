"""Editions without answers: nothing of them inside, and the same verdicts as beside them."""

import ast
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import torch

from course_utils.authoring.counts import count
from course_utils.authoring.proofs import objects_of, stub_objects
from course_utils.classroom import release
from course_utils.classroom.marks.plan import plan_of
from course_utils.classroom.release import (
    observations,
    pack,
    removal,
    run_notebooks,
    without_answers,
)
from course_utils.grading import Exercise, call, contracts, exercises_of, find, grade, solution_cell
from course_utils.grading.expecting.from_file import (
    FOLDER,
    SUFFIX,
    StoredExercise,
    with_pairs,
    without_pairs,
)
from course_utils.grading.judging.judge import CONTRACTS
from course_utils.grading.judging.outcomes import FAILED, PASSED
from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.strict import loads
from course_utils.source.text import source_of

ROOT = Path(__file__).parents[2]
CHAPTERS = ("strides", "modules")
KEYS = [key for chapter in CHAPTERS for key in exercises_of(chapter)]


@pytest.fixture(scope="module")
def edition():
    return release.make(plan_of(CHAPTERS, "Set", hidden=True), ROOT, only_exercises=True)


@pytest.fixture(scope="module")
def again(edition) -> dict[str, Exercise]:
    """The exercises out of the edition's files, with the stubs for references."""
    found = {}
    for path, data in edition.files.items():
        if f"/{FOLDER}/" in path and path.endswith(SUFFIX):
            exercise = StoredExercise.of(without_pairs(loads(data)))
            stubs = tuple(stub_objects(find(exercise.key)))
            exercise.reference = stubs if len(stubs) > 1 else stubs[0]
            found[exercise.key] = exercise
    return found


# ------------------------------------------------------------------------------ the same verdicts


@pytest.mark.parametrize("key", KEYS)
def test_verdicts_are_those_of_the_course(key, again):
    """Every known mistake is diagnosed as itself, every other right version passes."""
    full, exercise = find(key), again[key]
    for mistake in full.mistakes:
        verdict = grade(exercise, *objects_of(full, mistake.subject))
        assert verdict.outcome == FAILED
        assert verdict.diagnosis == mistake.says
        assert (verdict.failed_rung == CONTRACTS) == mistake.cost
        count("mistakes diagnosed without answers")
    for right in full.alternatives:
        verdict = grade(exercise, *objects_of(full, right.subject))
        assert verdict.outcome == PASSED, f"{right.style}:\n{verdict}"
    own = grade(exercise, *full.parts)
    assert own.outcome == PASSED
    assert own.ran == own.total > 1


@pytest.mark.parametrize("key", ["strides.toeplitz_view", "modules.Embedding"])
def test_verdicts_read_the_same(key, again):
    """The smallest failing call, both results, the diagnosis: word by word."""
    full = find(key)
    for mistake in full.mistakes:
        objects = objects_of(full, mistake.subject)
        there, here = grade(again[key], *objects), grade(full, *objects)
        assert str(there) == str(here)
        assert there.rungs == here.rungs


def test_the_declaration_comes_back(again):
    for key, exercise in again.items():
        full = find(key)
        same = ("title", "difficulty", "minutes", "points", "names", "staged_hints", "is_class")
        for name in (
            *same,
            "needs",
            "stand_in",
            "stand_in_note",
            "limit_s",
            "formats",
            "probe",
            "stars",
        ):
            assert getattr(exercise, name) == getattr(full, name), (key, name)
        assert [c.promise for c in exercise.contracts] == [c.promise for c in full.contracts]
        assert not exercise.has_answer
    assert list(again) == KEYS


def test_another_seed_is_refused(again):
    with pytest.raises(ValueError, match="holds the cases of seed 0 only"):
        grade(again["strides.flat_index"], lambda *a: 0, seed=1)


# ------------------------------------------------------------------------------ nothing inside


def bodies(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each function of a Python text, and the lines of its body, its docstring aside."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            found = [line.strip() for s in body for line in lines[s.lineno - 1 : s.end_lineno]]
            yield f"{node.name}, line {node.lineno}", found


def answers(chapter: str, edited: bool = True) -> dict[str, list[str]]:
    """The bodies of a chapter's references, with their helpers, of its mistakes and alternatives; of a
    mistake that is an edit the whole as it is after it, which stands nowhere so, if it is asked for."""
    found = {}
    for module, stubs in removal.by_module(exercises_of(chapter).values()).items():
        text = inspect.getsource(sys.modules[module])
        gone = removal.reduced(text, stubs, ())
        kept = dict(bodies(gone.text))
        names = gone.graded | gone.helpers
        tree = [node for node in ast.parse(text).body if getattr(node, "name", "") in names]
        for node in tree:
            source = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
            found |= {f"{module}: {at}": body for at, body in bodies(textwrap.dedent(source))}
        assert kept, "a module of which nothing is left proves nothing"
    declared = inspect.getsource(sys.modules[f"course_utils.exercises.{chapter}"])
    tree = ast.parse(declared)
    for node in tree.body:
        calls = [
            d.func if isinstance(d, ast.Call) else d for d in getattr(node, "decorator_list", ())
        ]
        if any(getattr(call, "attr", "") in ("mistake", "alternative") for call in calls):
            source = "\n".join(declared.splitlines()[node.lineno - 1 : node.end_lineno])
            found |= {f"{chapter}, line {node.lineno}: {at}": b for at, b in bodies(source)}
    for one in exercises_of(chapter).values() if edited else ():
        for number, mistake in enumerate(one.mistakes):
            parts = mistake.edit.applied(one.parts) if mistake.edit else ()
            for source in map(source_of, parts):
                found |= {f"{one.key}, mistake {number}: {at}": b for at, b in bodies(source)}
    return found


def elsewhere(chapters) -> str:
    """All that the course says apart from those chapters' answers: hints may quote a line."""
    apart = {
        ROOT / f"course_utils/{room}/{c}.py"
        for room in ("reference", "exercises")
        for c in chapters
    }
    hints = [
        hint.text for c in chapters for e in exercises_of(c).values() for hint in e.staged_hints
    ]
    files = {*(ROOT / "course_utils").rglob("*.py"), *(ROOT / "notebooks").glob("*.ipynb")} - apart
    return "\n".join([*hints, *(file.read_text(encoding="utf-8") for file in files)])


def distinctive(answers: dict[str, list[str]], said: str) -> dict[str, set[str]]:
    """Those of each answer's lines that no other text of the course happens to hold."""
    enough = {line for lines in answers.values() for line in lines if len(line) >= 20}
    own = {line for line in enough if not line.startswith(("def ", "#")) and line not in said}
    return {where: own.intersection(lines) for where, lines in answers.items()}


def test_no_answer_is_in_the_zip(edition):
    data = pack.zipped(edition.files)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name in inside if name.endswith((".pyc", ".zip", ".gz"))]
    everything = b"\n".join(inside.values())
    found: dict[str, list[str]] = {}
    for chapter in CHAPTERS:
        of_one = answers(chapter)
        assert len(of_one) > 50
        found |= of_one
    own = distinctive(found, elsewhere(CHAPTERS))
    for line, where in {line: where for where, lines in own.items() for line in lines}.items():
        for spelled in {line, json.dumps(line)[1:-1]}:
            assert spelled.encode() not in everything, f"{where}: {line}"
    searched = sum(map(bool, own.values()))
    count("functions of answers searched for in an edition", searched)
    assert searched > 200


def test_the_search_would_find_an_answer(edition):
    """The same edition with answers holds the lines that are looked for."""
    plain = release.make(plan_of(["strides"], "Set"), ROOT, only_exercises=True)
    everything = b"\n".join(plain.files.values())
    own = distinctive(answers("strides", edited=False), elsewhere(CHAPTERS))
    for where, lines in own.items():
        assert all(line.encode() in everything for line in lines), where


def test_other_chapters_are_not_in_it(edition):
    names = {Path(p).name for p in edition.files if p.startswith("course_utils/reference/")}
    assert names == {"__init__.py", "strides.py", "modules.py"}
    assert not [p for p in edition.files if p.startswith("course_utils/questions/s")]
    assert "def flat_index" in edition.files["course_utils/reference/strides.py"].decode()
    assert edition.plan.hidden


# ------------------------------------------------------------------------------ removing


def test_helpers_that_only_answers_use_go_too():
    text = textwrap.dedent('''
        import math

        SIZE = 4
        """Of a block."""

        # how it is done
        def _inner(x):
            return x * SIZE

        def shared(x):
            return x + 1

        def asked(x, y=math.pi):
            """What is asked."""
            return _inner(shared(x))

        def shown(x):
            return shared(x)
    ''')
    stub = 'def asked(x, y=math.pi):\n    """What is asked."""\n    raise NotImplementedError("your turn")'
    found = removal.reduced(text, {"asked": stub}, ())
    assert found.helpers == {"_inner", "SIZE"}
    assert "SIZE" not in found.text
    assert "Of a block" not in found.text
    assert "how it is done" not in found.text
    assert stub in found.text
    assert "def shared" in found.text
    assert removal.reduced(text, {"asked": stub}, ["_inner"]).helpers == frozenset()
    assert "SIZE = 4" in removal.reduced(text, {"asked": stub}, ["SIZE"]).text
    with pytest.raises(KeyError):
        removal.reduced(text, {"absent": stub}, ())


# ------------------------------------------------------------------------------ what is no plain data


def restored(key: str) -> StoredExercise:
    """An exercise as an edition without answers has it, the stub in the reference's place."""
    exercise = find(key)
    again = StoredExercise.of(without_pairs(loads(observations.stored(exercise, hidden=True))))
    space = dict(vars(inspect.getmodule(exercise.parts[0])))
    exec(removal.stub_in_edition(exercise.parts[0]), space)
    again.reference = space[exercise.parts[0].__name__]
    return again


def test_a_mistake_that_gives_bytes_goes_without_its_sentence():
    exercise = find("tokenization.utf8_bytes")
    again = restored(exercise.key)
    assert len(again.mistakes) == len(exercise.mistakes) - 1
    assert grade(again, exercise.reference).outcome == PASSED
    for mistake in again.mistakes:
        assert mistake.says in {one.says for one in exercise.mistakes}


def test_the_stub_of_a_generator_function_lets_generator_functions_pass():
    exercise = find("tokenization.encode_stream")
    again = restored(exercise.key)
    assert inspect.isgeneratorfunction(again.reference)
    assert grade(again, *exercise.parts).outcome == PASSED
    assert grade(again, lambda chunks: []).outcome == FAILED


def test_dicts_whose_keys_are_no_text_come_back_from_a_file():
    tree = {"merges": {(i, i + 1): i for i in range(5_000)}, "rest": [({1: {}}, {}), {"a": None}]}
    with pytest.raises(ValueError, match="keys that are no text"):
        loads(dumps(tree))
    assert without_pairs(loads(dumps(with_pairs(tree)))) == tree


# ------------------------------------------------------------------------------ editions that break


@pytest.fixture
def nothing_stored(monkeypatch):
    """Reading an edition needs no observations, which take their time."""
    monkeypatch.setattr(without_answers, "stored_files", lambda *_: iter(()))


@pytest.fixture
def small(nothing_stored):
    plan = plan_of(["strides.flat_index"], hidden=True)
    return release.make(plan, ROOT, only_exercises=True)


def problems(*names):
    return without_answers.static_problems(release.make(plan_of(names, hidden=True), ROOT))


def test_a_chapter_that_draws_with_an_answer_says_so(nothing_stored):
    assert problems("strides") == [
        "02_strides.ipynb, cell 4 needs reference.strides.flat_index through "
        "reference.strides.addresses, which is removed",
        "course_utils/questions/strides.py needs reference.strides.flat_index through "
        "reference.strides.cache_lines, reference.strides.addresses, which is removed",
    ]
    assert problems("strides.transpose_view", "strides.toeplitz_view") == []


def test_a_chapter_that_uses_an_answer_says_so(nothing_stored):
    found = problems("modules.tie_weights", "modules.LayerNorm")
    assert len(found) == 2
    assert all(
        "uses tie_weights, an answer to modules.tie_weights for which nothing" in x for x in found
    )
    assert problems("modules.LayerNorm") == [], "nn.LayerNorm stands in"
    assert any(
        "cell 28 needs reference.ddp.GradientBuckets, which is removed" in x
        for x in problems("ddp.GradientBuckets")
    )


def test_an_answer_to_another_exercise_stays(nothing_stored):
    """`checkpoint` is asked for beside the one that is graded, and serves nothing else."""
    made = release.make(plan_of(["cuda_memory.checkpoint_every_sqrt"], hidden=True), ROOT)
    text = made.files["course_utils/reference/cuda_memory.py"].decode()
    assert "\ndef checkpoint(" in text
    assert text.count("your turn") == 1
    alone = release.make(
        plan_of(["cuda_memory.checkpoint_every_sqrt"], hidden=True), ROOT, only_exercises=True
    )
    assert "\ndef checkpoint(" not in alone.files["course_utils/reference/cuda_memory.py"].decode()


def test_a_default_that_is_an_answer_says_so(nothing_stored):
    """GPT2's own signature has the book's attention in it: both cannot be left out."""
    plan = plan_of(["gpt2.CausalSelfAttention", "gpt2.GPT2"], hidden=True)
    found = without_answers.static_problems(release.make(plan, ROOT, only_exercises=True))
    assert found == [
        "23_gpt2.ipynb, cell 3 needs reference.gpt2.CausalSelfAttention through "
        "reference.gpt2.Parts, which is removed"
    ]


@pytest.mark.parametrize(
    "source, said",
    [
        ('f = mine("strides.flat_index")', 'an answer that is removed: mine("strides.flat_index")'),
        ('solution("strides.flat_index")', "an answer that is removed: solution"),
        (
            "import course_utils.reference.strides as s\ns.flat_index((0,), (1,))",
            "needs reference.strides.flat_index",
        ),
        (
            "from course_utils.reference import strides\nstrides.flat_index",
            "needs reference.strides.flat_index",
        ),
        (
            "from course_utils.reference.strides import *\nflat_index((0,), (1,))",
            "needs reference.strides.flat_index",
        ),
        ("%%ranks 2 push=flat_index\nprint(flat_index)", "uses flat_index, an answer"),
        (
            "run('from course_utils.reference.strides import flat_index')",
            "needs reference.strides.flat_index",
        ),
    ],
)
def test_every_way_to_an_answer_is_seen(source, said, small):
    ((path, data),) = small.notebooks.items()
    notebook = nbformat.reads(data.decode(), as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(source))
    broken = small.with_files(files={path: nbformat.writes(notebook).encode()})
    (problem, *_) = without_answers.static_problems(broken)
    assert said in problem
    assert problem.startswith("02_strides.ipynb, cell ")


def test_a_problem_set_needs_nothing_that_was_removed(small, edition):
    assert without_answers.static_problems(small) == []
    assert without_answers.static_problems(edition) == []


def test_what_is_no_data_is_said():
    toy = Exercise(lambda x: x, key="toy.f", title="", difficulty=1, minutes=1, points=1)
    keeping = observations.Keeping("toy.f")
    with pytest.raises(observations.NotStorable, match="a case holds a builtin_function"):
        keeping.case(call(len, print))
    with pytest.raises(observations.NotStorable, match="judge that is no data"):
        keeping.contract(contracts.Contract("cheap", (), lambda costs, cases: None))
    with pytest.raises(observations.NotStorable, match="not at the top level"):
        keeping.name(toy.reference)
    with pytest.raises(observations.NotStorable, match="is not in an edition"):
        keeping.name(find("modules.Linear").length)


# ------------------------------------------------------------------------------ in a student's hands


def in_the_edition(folder: Path, *command: str) -> str:
    (folder.parent / "sitecustomize.py").write_text(run_notebooks.ITS_OWN_PACKAGE, encoding="utf-8")
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"PYTHONPATH": str(folder.parent), "COURSE_HOME": str(folder.parent / "home")}
    ran = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def handed_out(edition, tmp_path_factory):
    folder = tmp_path_factory.mktemp("my own") / "an edition"
    pack.write_files(edition.files, folder)
    return folder


def answered(folder: Path, name: str, answers: dict[str, str]) -> None:
    path = folder / "notebooks" / name
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = answers.get(cell["metadata"].get("exercise"), "".join(cell["source"]))
    path.write_text(json.dumps(notebook), encoding="utf-8")


def test_right_and_wrong_answers_get_their_verdicts_there(handed_out, tmp_path):
    folder = tmp_path / "with answers"
    shutil.copytree(handed_out, folder)
    wrong = (
        '@exercise("strides.flat_index")\n'
        "def flat_index(index, stride, offset=0):\n"
        "    return sum(i * s for i, s in zip(index, stride, strict=True))\n"
    )
    given = {key: solution_cell(key) for key in exercises_of("strides")}
    given["strides.contiguous_strides"] = "# removed"
    given["strides.flat_index"] = wrong
    answered(folder, "02_strides.ipynb", given)
    said = in_the_edition(folder, "-m", "course_utils.cli", "check", "notebooks/02_strides.ipynb")
    assert "8 passed" in said, said
    assert "1 failed" in said
    diagnosis = grade(
        find("strides.flat_index"),
        lambda index, stride, offset=0: sum(i * s for i, s in zip(index, stride, strict=True)),
    ).diagnosis
    assert diagnosis
    assert " ".join(diagnosis.split()) in " ".join(said.split())


VERBS = """
import torch
from course_utils import exercise, hint, mine, progress, provenance, solution, use_book
from course_utils.grading import find
from course_utils.grading.notebook.binding import NoAnswer
from course_utils.grading.declaring.cells import stub_cell

scope = {"exercise": exercise, "torch": torch, "nn": torch.nn, "Tensor": torch.Tensor}
import course_utils.reference.modules, course_utils.reference.strides
for key in ("modules.LayerNorm", "modules.RMSNorm", "strides.flat_index"):
    module = getattr(course_utils.reference, key.split(".")[0])
    exec(stub_cell(key), vars(module).copy() | scope, scope)
assert scope["LayerNorm"] is torch.nn.LayerNorm
try:
    scope["flat_index"]((0,), (1,))
except NotImplementedError:
    print("it raises")
for verb in (mine, solution, use_book):
    try:
        verb("strides.flat_index")
    except NoAnswer as error:
        print("NO ANSWER", error)
assert mine("modules.LayerNorm") is torch.nn.LayerNorm
hint("strides.flat_index")
provenance()
print(progress())
"""


def test_the_verbs_say_that_there_is_no_answer(handed_out):
    said = in_the_edition(handed_out, "-c", VERBS)
    assert "it raises" in said, said
    assert said.count("NO ANSWER this edition holds no answer to strides.flat_index") == 3
    assert "bound to the library's torch.nn.LayerNorm." in said
    assert "its eps is the dtype's epsilon" in " ".join(said.split())
    assert "modules.LayerNorm   the library's torch.nn.LayerNorm" in said
    assert "Hint 1 of" in said
    assert "\nstrides  ○ ○ ○ ○ ○ ○ ○ ○ ○ ○  0 of" in said
    assert "solution(" not in said


def test_figures_of_a_judge_come_back():
    """A stored contract judges as the declared one: limits case by case."""
    cases = [call(torch.ones(4)), call(torch.ones(8))]
    bound = contracts.allocates(cases, limit=lambda case: 4 * case.args[0].numel(), says="one copy")
    tree = observations.Keeping("toy.f").contract(bound)
    assert tree["judge"]["limits"] == [16, 32]
