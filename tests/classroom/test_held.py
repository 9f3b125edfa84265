"""Answers that reach for what checks them are held: no points, the line in every output, a decision."""

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_class
from submissions import folder_of, notebook

from course_utils.authoring.counts import count
from course_utils.classroom.exports.github_classroom import classroom
from course_utils.classroom.exports.gradescope import gradescope
from course_utils.classroom.marks.record import FAILED, HELD, PASSED, Record
from course_utils.classroom.reports.feedback import as_html
from course_utils.classroom.run import grade_class
from course_utils.classroom.run.journal import CannotRun
from course_utils.classroom.run.tasks import Settings
from course_utils.source.answers import answers
from course_utils.source.reaching import each

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap exists for Linux only")

KEY = "toys.row_softmax"
RIGHT = "return torch.softmax(x, -1)"
MEASURED = "from course_utils.grading.driving import contract, cost\n"

REACHING = {
    "costs, by Contract.run": MEASURED + "contract.Contract.run = lambda *a: None",
    "costs, by the class of a local name": MEASURED
    + "C = contract.Contract\nsetattr(C, 'run', lambda *a: None)",
    "torch.equal": "torch.equal = lambda *a, **k: True",
    "torch under another name": "import torch as t\nt.allclose = lambda *a, **k: True",
    "a name for a name": "t = torch\nt.Tensor.is_shared = lambda *a: True",
    "a method of Tensor": "from torch import Tensor\nTensor.is_shared = lambda x: None",
    "setattr": "setattr(torch, 'equal', lambda *a: True)",
    "vars": "vars(torch)['equal'] = lambda *a: True",
    "__dict__": "torch.nn.Module.__dict__",
    "an update of __dict__": "torch.__dict__.update(equal=lambda *a: True)",
    "del": "saved = torch.equal\ndel torch.equal\nsetattr(torch, 'equal', saved)",
    "a loop's target": "saved = torch.equal\nfor torch.equal in [saved]: pass",
    "the module in a list": "[m for m in [torch]][0].zebra = 1",
    "the module as an argument": "def put(m):\n    m.zebra = 1\nput(torch)",
    "sys.modules": "import sys\nsys.modules['torch'].zebra = 1",
    "sys.modules, imported": "from sys import modules\nmodules['torch'].zebra = 1",
    "getattr": "import sys\ngetattr(sys, 'modules')['torch'].zebra = 1",
    "frames": "import sys\nsys._getframe().f_back",
    "a traceback's frame": "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__",
    "a generator's frame": "(i for i in [1]).gi_frame",
    "gc": "import gc\ngc.get_objects()",
    "ctypes": "import ctypes",
    "globals of a function": "torch.softmax, (lambda: 0).__globals__",
    "code of a function": "def f(): pass\ndef g(): return 1\nf.__code__ = g.__code__",
    "a closure's cell": "(lambda: KEPT).__closure__",
    "subclasses": "object.__subclasses__()",
    "exec": "exec('import torch; torch.zebra = 1')",
    "eval": "eval('1')",
    "__import__": "__import__('sys').modules",
    "importlib": "import importlib\nimportlib.import_module('torch').zebra = 1",
    "a library for patching": "from unittest.mock import patch\nwith patch('torch.equal'): pass",
    "a function made of code": "import types\ntypes.FunctionType",
    "an operator that there is not": "import ctypes\ndef f(): torch.classes.no.such",
    "builtins": "import builtins\nbuiltins.zebra = 1",
    "torch._C": "torch._C._len_torch_dispatch_stack()",
    "a trace function": "import sys\nsys.settrace(None)",
    "unseen by a reader: a class handed to a function": (
        "def put(c, name):\n    setattr(c, name, lambda *a: KEPT)\nput(torch.Tensor, 'to' + 'list')"
    ),
    "unseen by a reader: a base of a class": (
        "setattr(type(torch.nn.ReLU()).__mro__[1], '__call' + '__', lambda self, x: x)"
    ),
}

FREE = {
    "settings of the backends": "torch.backends.cudnn.deterministic = True",
    "a seed": "torch.manual_seed(0)",
    "an attribute of one's own class": "class T: pass\nT.f = 1\nsetattr(T, 'g', 2)",
    "the state of a module": "m = torch.nn.Linear(2, 2)\nm.weight.data = torch.ones(2, 2)\n"
    "setattr(m, 'bias', None)\nm.__dict__['x'] = 1",
    "vars of an object": "m = torch.nn.Linear(2, 2)\nvars(m)['x'] = 1",
    "evaluation": "torch.nn.Linear(2, 2).eval()",
    "a part of a library that may be missing": "getattr(torch, 'no_such', None), hasattr(torch, 'mps')",
    "a part of a library by another name": "nn = torch.nn\nF = torch.nn.functional\nF.relu",
    "garbage": "import gc\ngc.collect()",
    "the signature of a function": "import inspect\ninspect.signature(lambda x: x)",
    "an argument of a library's name": "def f(math):\n    math.x = 1",
    "how large an object is": "import sys\nsys.getsizeof(1)",
}


def cells(before: str, body: str = RIGHT) -> list[str]:
    """A notebook whose answer needs what some statements bind."""
    indented = "\n".join(f"    {line}" for line in before.splitlines())
    return [
        f"import torch\nKEPT = 1\ndef first():\n{indented}\n    return 1\nFIRST = first()",
        f'@exercise("{KEY}")\ndef row_softmax(x):\n    FIRST\n    {body}\n',
    ]


@pytest.mark.parametrize("name", REACHING)
def test_an_answer_that_reaches_for_the_grader_is_held(
    graded: Callable[..., Record], name: str
) -> None:
    result = graded(*cells(REACHING[name])).result(KEY)
    assert result and result.outcome == HELD, result
    assert (result.points, result.worth) == (0, 2)
    assert any("line" in why or "changed where it ran" in why for why in result.held)
    count("answers held")


@pytest.mark.parametrize("name", FREE)
def test_what_is_free_is_not_held(graded: Callable[..., Record], name: str) -> None:
    result = graded(*cells(FREE[name])).result(KEY)
    assert result and result.outcome == PASSED, result


def test_a_wrong_answer_is_not_held_but_fails(graded: Callable[..., Record]) -> None:
    result = graded(*cells(REACHING["torch.equal"], "return x")).result(KEY)
    assert result and result.outcome == FAILED and not result.held


def test_one_that_changed_its_process_is_believed_in_nothing_after(
    graded: Callable[..., Record],
) -> None:
    honest = '@exercise("toys.every_second_row")\ndef every_second_row(x):\n    return x[::2]\n'
    attack = cells(REACHING["unseen by a reader: a class handed to a function"])
    record = graded(*attack, "import torch", honest)
    before, after = record.result("toys.every_second_row"), record.result(KEY)
    assert before and before.outcome == PASSED  # it was through when the other one came
    assert after and after.outcome == HELD


def test_the_book_reaches_for_nothing() -> None:
    from course_utils.authoring import notebooks

    for path in sorted(Path("notebooks").glob("*.ipynb")):
        solved = notebooks.solve(notebooks.read(path))
        sources = [cell.source for cell in solved.cells if cell.cell_type == "code"]
        assert dict(each(answers(sources))) == {}, path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    students = {
        "ada/x.ipynb": notebook(*cells(REACHING["torch.equal"])),
        "bob/x.ipynb": notebook(*cells("pass")),
    }
    return folder_of(tmp_path / "class", students)


def graded_class(place: Path, *decide: tuple[str, str, float], only: tuple[str, ...] = ()) -> Any:
    settings = Settings(modules=("toy_class",), decide=decide, only=only)
    return grade_class.grade(place, toy_class.PLAN, place.parent / "run", settings)


def test_held_stands_in_every_output(inline: None, place: Path) -> None:
    summary = graded_class(place)
    folder = summary.folder
    ada, bob = summary.records
    assert (ada.points, bob.points, summary.held) == (0, 2, 1)
    note = next(note for note in summary.notes if note.startswith("held: ada"))
    assert "torch.equal" in note and f"--decide ada:{KEY}=POINTS" in note
    rows = list(csv.DictReader(io.StringIO((folder / "gradebook.csv").read_text("utf-8-sig"))))
    assert [(row["held"], row[KEY]) for row in rows] == [(KEY, "0"), ("", "2")]
    book = json.loads((folder / "gradebook.json").read_text("utf-8"))
    entry = next(one for one in book["students"][0]["results"] if one["key"] == KEY)
    assert entry["outcome"] == "held" and entry["worth"] == 2 and entry["held"]
    for page in ("report.html", "feedback/ada.html", "import.md"):
        assert "held" in (folder / page).read_text("utf-8").lower(), page
    assert "torch.equal" in (folder / "report.html").read_text("utf-8")
    assert "held" not in (folder / "feedback" / "bob.html").read_text("utf-8").lower()
    tests = gradescope(toy_class.PLAN, ada)["tests"]
    assert [t["score"] for t in tests if t["name"] == f"{KEY} (held)"] == [0]
    told = classroom(toy_class.PLAN, ada)["tests"]
    assert any(t["name"] == KEY and t["status"] == "fail" and "Held" in t["message"] for t in told)


def test_a_decision_enters_the_record(inline: None, place: Path) -> None:
    graded_class(place)
    summary = graded_class(place, ("ada", KEY, 1.0))
    ada = summary.records[0]
    result = ada.result(KEY)
    assert result and (result.outcome, result.points, ada.points) == (FAILED, 1.0, 1.0)
    assert result.decided and result.held and not summary.held
    assert "instructor has looked" in as_html(toy_class.PLAN, ada)
    again = graded_class(place).records[0].result(KEY)
    assert again == result  # it stays, when the run goes on
    full = graded_class(place, ("ada", KEY, 2.0)).records[0].result(KEY)
    assert full and (full.outcome, full.points) == (PASSED, 2.0)
    lines = (summary.folder / "results.jsonl").read_text("utf-8").splitlines()
    assert sum('"decided": "2' in line for line in lines) == 2
    anew = graded_class(place, only=("ada",))
    assert anew.held == 1
    undone = f"graded again: ada, {KEY}; what was decided of it (2 points) counts no longer"
    assert undone in anew.notes
    assert undone not in graded_class(place).notes


@pytest.mark.parametrize(
    ("decision", "says"),
    [
        (("bob", KEY, 1.0), "was not held"),
        (("ada", KEY, 3.0), "0 to 2 points"),
        (("ada", KEY, float("nan")), "0 to 2 points"),
        (("eve", KEY, 1.0), "no result of 'eve'"),
        (("ada", "toys.nothing", 1.0), "no result of 'ada'"),
    ],
)
def test_a_decision_about_nothing_is_refused(
    inline: None, place: Path, decision: tuple[str, str, float], says: str
) -> None:
    with pytest.raises(CannotRun, match=says):
        graded_class(place, decision)
