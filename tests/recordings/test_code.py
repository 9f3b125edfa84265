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


def digest(*sources: str) -> str:
    return code.digest_of_cells(sources)


def test_prose_in_code_does_not_count() -> None:
    before = digest(TOP, HELPER, USES_HELPER)
    documented = 'def twice(x):\n    """Doubled."""\n\n    # a comment\n    return 2*x'
    assert digest(TOP, documented, USES_HELPER) == before
    assert digest(TOP, HELPER, "# would show: it\n" + USES_HELPER.replace("'", '"')) == before


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (USES_HELPER, USES_HELPER.replace("3", "4")),
        (HELPER, HELPER.replace("2", "3")),
        (HELPER, HELPER + "\nx = 1"),
        (TOP, TOP + "\ntorch.manual_seed(0)"),
        (TOP, TOP + "\n%matplotlib inline"),
        (TOP, TOP + "\n!ls"),
        (TOP, "%%ranks 4\n" + TOP),
        (TOP, "import numpy as torch"),
    ],
)
def test_a_change_of_the_code_down_to_the_cell_counts(was: str, becomes: str) -> None:
    cells = [TOP, HELPER, USES_HELPER]
    assert digest(*(becomes if cell == was else cell for cell in cells)) != digest(*cells)


def test_how_the_code_above_is_cut_into_cells_does_not_count() -> None:
    assert digest("x = 1\ny = 2", "z") == digest("x = 1", "# a comment", "y = 2", "", "z")
    assert digest("x = 1", "y = 2", "z") != digest("x = 1", "y = 2\nz")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course with modules of its own."""
    files = {
        "__init__.py": "from .grading import judge",
        "reference/__init__.py": "",
        "reference/a.py": '"""Doc."""\nfrom .b import base\n\ndef f(x):\n    return base(x)\n',
        "reference/b.py": "SCALE = 2\n\ndef base(x):\n    return SCALE * x\n",
        "reference/c.py": "SPARE = 1\n",
        "figures/walk.py": "SCRIPT = 'walk.js'\nSIZES = 'sizes.toml'\n",
        "figures/js/walk.js": "let a = 1\n",
        "figures/sizes.toml": "a = 1\n",
        "grading/__init__.py": "from course_utils.reference import c\ndef judge():\n    pass\n",
        "questions/__init__.py": "A = 1\n",
        "recordings/__init__.py": "def save(name, data):\n    pass\n",
        "recordings/makers.py": "from course_utils import recordings\nfrom ..reference import a\n",
    }
    package = tmp_path / "course_utils"
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr(code, "PACKAGE", package)
    return package


def edit(file: Path, was: str, becomes: str) -> None:
    text = file.read_text()
    assert was in text
    file.write_text(text.replace(was, becomes))


@pytest.mark.parametrize(
    "imports",
    [
        "from course_utils.reference.a import f",
        "from course_utils.reference import a",
        "import course_utils.reference.a as a",
        'f = mine("a.f")',
        '@exercise("a.f")\ndef f(x):\n    return x',
    ],
)
def test_files_that_are_imported_count_and_no_others(course: Path, imports: str) -> None:
    def now() -> str:
        return digest(TOP, imports, "if torch.cuda.is_available():\n    print(1)")

    before = now()
    edit(course / "reference/a.py", '"""Doc."""', '"""Documentation."""  # and a comment')
    edit(course / "reference/c.py", "1", "2")
    edit(course / "figures/walk.py", "walk.js", "run.js")
    assert now() == before
    for name, was, becomes in (
        ("reference/b.py", "SCALE = 2", "SCALE = 3"),
        ("reference/a.py", "base(x)", "-base(x)"),
        ("__init__.py", "judge", "judge as judges"),
    ):
        edit(course / name, was, becomes)
        assert now() != before
        before = now()


def test_rooms_that_judge_ask_and_keep_do_not_count(course: Path) -> None:
    cell = "if torch.cuda.is_available():\n    recordings.save('a/b', 1)"

    def now() -> str:
        return digest("from course_utils import exercise, grading, questions, recordings", cell)

    before = now()
    edit(course / "grading/__init__.py", "pass", "return 1")
    edit(course / "questions/__init__.py", "1", "2")
    edit(course / "recordings/__init__.py", "pass", "return name")
    edit(course / "reference/c.py", "1", "2")  # only grading imports it
    assert now() == before


def test_of_data_the_bytes_count_and_scripts_do_not(course: Path) -> None:
    def now() -> str:
        return digest("from course_utils.figures import walk", "x")

    before = now()
    edit(course / "figures/js/walk.js", "1", "2")
    assert now() == before
    edit(course / "figures/sizes.toml", "1", "2")
    assert now() != before


def test_only_what_is_imported_down_to_the_cell_counts(course: Path) -> None:
    first, second = "x = 1", "from course_utils.reference import a"
    before = digest(first), digest(first, second)
    edit(course / "reference/b.py", "SCALE = 2", "SCALE = 3")
    assert digest(first) == before[0]
    assert digest(first, second) != before[1]


def test_a_recorder_depends_on_its_module_and_what_that_imports(course: Path) -> None:
    maker = course / "recordings" / "makers.py"
    before = code.digest_of_module(maker)
    edit(course / "reference/c.py", "1", "2")
    edit(course / "recordings/__init__.py", "pass", "return name")
    edit(maker, "from ..", "# a comment\nfrom ..")
    assert code.digest_of_module(maker) == before
    for file, was, becomes in (
        (course / "reference/b.py", "SCALE = 2", "SCALE = 3"),
        (maker, "import a", "import a, b"),
    ):
        edit(file, was, becomes)
        assert code.digest_of_module(maker) != before
        before = code.digest_of_module(maker)


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
KNOWN = "b875dfedf45a9503"


def test_the_digest_is_the_same_on_every_python() -> None:
    """Written down once, compared on each Python that runs the tests."""
    assert digest(ODD) == KNOWN, ast.dump(ast.parse(ODD))[:200]


def test_reading_a_recording_needs_no_torch() -> None:
    program = "import sys, course_utils.recordings.cells; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
