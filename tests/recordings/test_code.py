"""The digest of what a recording depends on: when it changes, and when it must not."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.recordings import code

TOP = "import torch\nfrom torch import nn"
HELPER = "def twice(x):\n    return 2 * x"
USES_HELPER = "if torch.cuda.is_available():\n    print(twice(torch.ones(3)))"
MODEL = "model = nn.Linear(2, 2)"
USES_MODEL = "if torch.cuda.is_available():\n    print(model.cuda())"


def digest(*sources: str) -> str:
    return code.digest_of_cells(sources)


def test_prose_in_code_does_not_count() -> None:
    before = digest(TOP, HELPER, USES_HELPER)
    documented = 'def twice(x):\n    """Doubled."""\n\n    # a comment\n    return 2*x'
    assert digest(TOP, documented, USES_HELPER) == before
    assert digest(TOP, HELPER, "# would show: it\n" + USES_HELPER.replace("'", '"')) == before


@pytest.mark.parametrize(
    "between",
    [
        "y = 3",
        "def unrelated():\n    return twice(1)",
        "assert twice(1) == 2",
        'predict("a.b")',
        "model = nn.Linear(2, 2)\nmodel.half()",
        "%matplotlib inline\n!ls",
        "%%ranks 4\nx = 1",
        "with torch.no_grad():\n    y = twice(1)",
        "with torch.cuda.use_mem_pool(p):\n    pass",
    ],
)
def test_of_functions_only_what_is_used_counts(between: str) -> None:
    before = digest(TOP, HELPER, "y = 2", USES_HELPER)
    assert digest(TOP, HELPER, "y = 2", between, USES_HELPER) == before


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (USES_HELPER, USES_HELPER.replace("3", "4")),
        (HELPER, HELPER.replace("2", "3")),
        (HELPER, "FACTOR = 2\ndef twice(x):\n    return FACTOR * x"),
        (HELPER, HELPER + "\ntwice = torch.compile(twice)"),
        (TOP, TOP + "\ntorch.manual_seed(0)"),
        (TOP, TOP + "\n_ = torch.manual_seed(0)"),
        (TOP, TOP + "\ntorch.backends.cudnn.benchmark = True"),
        (TOP, "import numpy as torch"),
    ],
)
def test_a_change_of_what_is_used_counts(was: str, becomes: str) -> None:
    cells = [TOP, HELPER, USES_HELPER]
    assert digest(*(becomes if cell == was else cell for cell in cells)) != digest(*cells)


def test_what_a_used_function_uses_counts() -> None:
    outer = "def outer(x, unused=None):\n    return [twice(y) for y in x] + [FACTOR]"
    uses = "if torch.cuda.is_available():\n    outer([1])"
    before = digest(TOP, "FACTOR = 2", HELPER, outer, uses)
    assert digest(TOP, "FACTOR = 3", HELPER, outer, uses) != before
    assert digest(TOP, "FACTOR = 2", HELPER.replace("2", "3"), outer, uses) != before
    assert digest(TOP, "FACTOR = 2\ny = 1\nx = 9", HELPER, outer, uses) == before


@pytest.mark.parametrize(
    "between",
    [
        "other = model\nother.half()",
        "optimizer.step()",
        "y = 3",
        "%%ranks 2 pull=model\nmodel = 1",
        "exec('model.half()')",
    ],
)
def test_where_a_value_is_used_everything_above_counts(between: str) -> None:
    before = digest(TOP, MODEL, USES_MODEL)
    assert digest(TOP, MODEL, between, USES_MODEL) != before
    assert digest(TOP, MODEL, "# a comment", "assert model is not None", USES_MODEL) == before


def test_a_name_from_nowhere_makes_everything_count() -> None:
    uses = "if torch.cuda.is_available():\n    print(pulled)"
    assert digest(TOP, "y = 1", uses) != digest(TOP, "y = 2", uses)


def test_names_that_the_cell_binds_itself_are_not_read_from_above() -> None:
    uses = (
        "if torch.cuda.is_available():\n"
        "    x = torch.ones(1)\n"
        "    for name, y in {'a': x}.items():\n"
        "        with open(name) as file:\n"
        "            z = [y for y in file if (w := y)]\n"
        "    print(x, z, lambda name, *rest: rest)"
    )
    assert code.free(code.parse(uses)) == {"torch", "open", "print", "z"}  # the loop may be empty
    assert digest(TOP, "x = 1\nname = 3", uses) == digest(TOP, uses)
    assert digest(TOP, "z = [2]", uses) != digest(TOP, uses)
    assert code.free(code.parse("x = x + 1\ny += 1")) == {"x", "y"}
    assert code.free(code.parse("if a:\n    b = 1\nprint(b)")) == {"a", "b", "print"}


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course with modules of its own."""
    files = {
        "__init__.py": "",
        "reference/__init__.py": "",
        "reference/a.py": (
            '"""Doc."""\nfrom .b import base\nfrom . import b as other\nimport math\n'
            "def f(x):\n    return base(x) + math.pi\n\n"
            "def unused(x):\n    return x\n\n"
            "TABLE = {'f': f}\n"
        ),
        "reference/b.py": "SCALE = 2\n\ndef base(x):\n    return SCALE * x\n\ndef spare():\n    pass\n",
        "grading/__init__.py": "def judge():\n    pass\n",
        "recordings/__init__.py": "def save(name, data):\n    pass\n",
    }
    room = tmp_path / "course_utils"
    for name, text in files.items():
        (room / name).parent.mkdir(parents=True, exist_ok=True)
        (room / name).write_text(text)
    monkeypatch.setattr(code, "ROOM", room)
    return room


def edit(file: Path, was: str, becomes: str) -> None:
    """Change a module, with a new time of modification."""
    text = file.read_text()
    assert was in text
    file.unlink()
    file.write_text(text.replace(was, becomes))
    code._statements.cache_clear()


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from course_utils.reference.a import f", "f(1)"),
        ("from course_utils.reference import a", "a.f(1)"),
        ("import course_utils.reference.a as a", "a.f(1)"),
        ("from course_utils.reference.a import TABLE", "TABLE['f'](1)"),
    ],
)
def test_of_the_courses_modules_what_is_used_counts(course: Path, imports: str, call: str) -> None:
    def now() -> str:
        return digest(TOP, imports, f"if torch.cuda.is_available():\n    print({call})")

    before = now()
    edit(course / "reference/a.py", '"""Doc."""', '"""Documentation."""  # and a comment')
    edit(course / "grading/__init__.py", "pass", "return 1")
    assert now() == before
    if imports.startswith("from course_utils.reference.a"):
        edit(course / "reference/a.py", "return x\n", "return -x\n")  # of a function not used
        edit(course / "reference/b.py", "pass", "return 1")
        assert now() == before
    edit(course / "reference/b.py", "SCALE = 2", "SCALE = 3")
    assert now() != before


def test_keeping_data_does_not_count(course: Path) -> None:
    cell = "if torch.cuda.is_available():\n    recordings.save('a/b', 1)"
    before = digest(TOP, "from course_utils import recordings", cell)
    edit(course / "recordings/__init__.py", "pass", "return name")
    assert digest(TOP, "from course_utils import recordings", cell) == before


def test_a_recorder_depends_on_what_it_calls(course: Path) -> None:
    before = code.digest_of_function("course_utils.reference.a", "f")
    edit(course / "reference/a.py", "return x\n", "return -x\n")
    assert code.digest_of_function("course_utils.reference.a", "f") == before
    edit(course / "reference/b.py", "SCALE = 2", "SCALE = 3")
    assert code.digest_of_function("course_utils.reference.a", "f") != before


ODD = '''
def f(a, /, b: int = 1, *, c="x", **d) -> "int":
    """Doc."""
    match a:
        case {"k": [1, *rest]}:
            return f"{a!r:>{b}} {'q'}" f"{c}" "tail"
    async def g(): pass
    class C(list, metaclass=type):
        x: int = ...
    return lambda *p, q=None: (yield) or {**d} if 1e3 else [z async for z in p][::2]
'''
KNOWN = "2fb5b1a5a2af2786"


def test_the_digest_is_the_same_on_every_python() -> None:
    """Written down once, compared on each Python that runs the tests."""
    assert digest(ODD) == KNOWN, ast.dump(ast.parse(ODD))[:200]


def test_reading_a_recording_needs_no_torch() -> None:
    program = "import sys, course_utils.recordings.cells; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
