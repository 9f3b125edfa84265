"""What the digest of an exercise's proofs follows, and what changes it."""

import sys
from pathlib import Path

import pytest

from course_utils.authoring import ledger, proofs
from course_utils.authoring.dependencies import LISTS, ROOT, closure, digest, imported
from course_utils.grading import Exercise, every, exercises_of, grade

FILES = {
    "__init__.py": "",
    "engine/__init__.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from . import probes
            from .judge import grade
        __all__ = ["grade"]
        """,
    "engine/judge.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from .display import Panel
        from .probes import Probe
        def grade():
            "Says what it does."
            from .late import helper
            return helper()  # a comment
        """,
    "engine/display.py": "from .judge import grade\nclass Panel: pass",
    "engine/late.py": "import course_utils.meters as counting\ndef helper(): return counting.measure",
    "engine/probes/__init__.py": """
        from ..case import Case
        from .one import first
        from .two import second
        Probe = list[Case]
        __all__ = ["Probe", "first", "second"]
        """,
    "engine/probes/one.py": "def first(): pass",
    "engine/probes/two.py": "from . import one\ndef second(): return one.first",
    "engine/case.py": "class Case: pass",
    "meters/__init__.py": "from .meter import measure",
    "meters/meter.py": "def measure(): pass",
    "exercises/__init__.py": 'ORDER = ("a", "b")',
    "exercises/a.py": """
        from course_utils import exercises
        from course_utils.engine import grade, probes
        from course_utils.reference.a import f
        probe = probes.first
        """,
    "exercises/b.py": "from course_utils.engine import probes\nprobe = probes.second",
    "exercises/c.py": "from course_utils.engine import probes\nprobe = getattr(probes, 'fir' + 'st')",
    "exercises/d.py": "from course_utils.engine import lost",
    "reference/a.py": 'def f():\n    "What is due."\n    return 1  # why',
}
A = {
    "exercises.a": "the declaration",
    "reference.a": "the reference",
    "engine.judge": "passed on by its package",
    "engine.late": "imported in a function",
    "meters.meter": "used by attribute",
    "engine.probes": "the name Probe is its own",
    "engine.case": "what Probe is made of",
    "engine.probes.one": "used by attribute",
}


@pytest.fixture
def house(tmp_path):
    """A small package; each call gives a copy with some files changed (a process reads each once)."""

    def house(**changes: tuple[str, str]) -> Path:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in FILES.items():
            path = root / "course_utils" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            was, becomes = changes.get(name.removesuffix(".py"), ("", ""))
            assert was in text
            lines = [line.removeprefix("        ") for line in text.splitlines()]
            path.write_text("\n".join(lines).replace(was, becomes) if was else "\n".join(lines))
        return root

    return house


def digest_of(root: Path, chapter: str = "a") -> str:
    return digest(closure([f"course_utils.exercises.{chapter}"], root), root)


def test_a_name_leads_to_the_file_that_defines_it(house):
    found = closure(["course_utils.exercises.a"], house())
    assert {name.removeprefix("course_utils.") for name in found} == set(A)


def test_another_probe_is_another_dependency(house):
    used = imported("course_utils.exercises.b", house())
    assert used == {"course_utils.engine.probes.two"}


def test_a_package_that_is_handed_on_counts_whole(house):
    used = imported("course_utils.exercises.c", house())
    assert {"course_utils.engine.probes.one", "course_utils.engine.probes.two"} <= used


def test_what_cannot_be_followed_is_an_error(house):
    with pytest.raises(ImportError, match="from where its lost comes"):
        closure(["course_utils.exercises.d"], house())
    with pytest.raises(ModuleNotFoundError):
        closure(["course_utils.nowhere"], house())


@pytest.mark.parametrize(
    ("file", "was", "becomes"),
    [
        ("engine/late", "counting.measure", "counting.measure()"),
        ("engine/probes/one", "pass", "return 1"),
        ("meters/meter", "pass", "return 1"),
        ("reference/a", "return 1", "return 2"),
        ("reference/a", "What is due", "What is asked"),
        ("exercises/a", "probes.first", "probes.second"),
    ],
)
def test_a_change_of_what_is_used_changes_the_digest(house, file, was, becomes):
    assert digest_of(house()) != digest_of(house(**{file: (was, becomes)}))


@pytest.mark.parametrize(
    ("file", "was", "becomes"),
    [
        ("engine/judge", "  # a comment", ""),
        ("engine/judge", "Says what it does", "Grades"),
        ("engine/judge", "return helper()", "return (  helper() )"),
        ("engine/display", "pass", "x = 1"),
        ("engine/probes/two", "one.first", "one.first()"),
        ("engine/probes/__init__", "from .two import second", "from .two import second, third"),
        ("engine/probes/__init__", '"second"]', '"second", "third"]'),
        ("exercises/__init__", '"b")', '"b", "c")'),
        ("exercises/b", "probes.second", "probes.first"),
        ("reference/a", "  # why", ""),
    ],
)
def test_a_change_of_anything_else_does_not(house, file, was, becomes):
    assert digest_of(house()) == digest_of(house(**{file: (was, becomes)}))


def test_a_file_that_moves_changes_the_digest(house):
    """Its name is part of it: what imports it has changed as well."""
    root, moved = house(), house()
    (moved / "course_utils/reference/a.py").rename(moved / "course_utils/reference/b.py")
    a = moved / "course_utils/exercises/a.py"
    a.write_text(a.read_text().replace("reference.a", "reference.b"))
    assert digest_of(root) != digest_of(moved)


# ------------------------------------------------------------------ of the book itself


def test_what_is_not_followed_holds_no_code():
    for package in LISTS:
        text = (ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
        assert not any(word in text for word in ("def ", "class ", "import "))


@pytest.mark.parametrize("chapter", sorted({one.chapter for one in every().values()}))
def test_a_chapter_depends_on_its_own_files_and_not_on_another_chapter_exercises(chapter):
    found = closure([*ledger.PROOFS, f"course_utils.exercises.{chapter}"])
    others = {f"course_utils.exercises.{one.chapter}" for one in every().values()}
    assert found & others == {f"course_utils.exercises.{chapter}"}
    references = {module_of(part) for one in exercises_of(chapter).values() for part in one.parts}
    assert references <= found
    assert not [name for name in found if ".classroom" in name or ".questions" in name]


def module_of(part: object) -> str:
    return part.__module__


def code_run(exercise: Exercise) -> set[str]:
    """Modules of the course of which a function runs while the exercise is judged in this process."""
    found: set[str] = set()
    package = str(ROOT / "course_utils")

    def note(frame, event, argument):
        code = frame.f_code
        loading = code.co_name == "<module>"  # a package loads what it passes on
        if event == "call" and code.co_filename.startswith(package) and not loading:
            found.add(code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        grade(exercise, *exercise.parts, seed=7)
        grade(exercise, *proofs.objects_of(exercise, exercise.mistakes[0].subject), seed=7)
    finally:
        sys.setprofile(before)
    relative = (Path(name).relative_to(ROOT).with_suffix("") for name in found)
    return {".".join(path.parts).removesuffix(".__init__") for path in relative}


@pytest.mark.parametrize(
    "key", [next(iter(exercises_of(c))) for c in ("strides", "modules", "ddp")]
)
def test_all_code_that_runs_for_a_verdict_is_in_its_digest(key):
    """A module that comes by a string, past every import statement, would show here."""
    exercise = every()[key]
    ran = code_run(exercise)
    assert len(ran) > 10
    assert ran <= closure([*ledger.PROOFS, f"course_utils.exercises.{exercise.chapter}"])
