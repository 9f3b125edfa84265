"""Which files of a package some code depends on."""

from pathlib import Path

import pytest

from course_utils.source.closure import closure

FILES = {
    "__init__.py": "",
    "a.py": "from .deep import here\nimport json",
    "b.py": "def f():\n    import pack.deep.inner as x",
    "c.py": "from . import a as other",
    "names.py": "HOME = 'pack.a'\nABOUT = 'see pack.b for more'",
    "judge/__init__.py": "from ..b import f",
    "judge/deep.py": "",
    "judged.py": "",
    "deep/__init__.py": "from .inner import here",
    "deep/inner.py": "from ..settings import x\nhere = 'sizes.json'",
    "deep/sizes.json": "",
    "deep/others.json": "",
    "settings.py": "",
    "room/__init__.py": "",
    "room/one.py": "from pack import c",
    "room/two.py": "",
    "spare.py": "from pack import judge",
}
DEEP = {"deep/__init__.py", "deep/inner.py", "deep/sizes.json", "settings.py"}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "pack"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def reached(package: Path, *sources: str, **options) -> set[str]:
    """Besides the package's own `__init__`, which every import runs."""
    found = {f.relative_to(package).as_posix() for f in closure(sources, package, **options)}
    return found - {"__init__.py"}


@pytest.mark.parametrize(
    ("source", "files"),
    [
        ("import torch\nfrom packer import a\nx = 'a'", set()),
        ("import pack.a", {"a.py"} | DEEP),
        ("from pack import b as mine", {"b.py"} | DEEP),
        ("from pack.c import anything", {"c.py", "a.py"} | DEEP),
        ("from pack.names import HOME", {"names.py", "a.py"} | DEEP),
        (
            "def f():\n    from pack.judge import deep",
            {"judge/__init__.py", "judge/deep.py", "b.py"} | DEEP,
        ),
        ("from pack.room import *", {"room/__init__.py"}),
        ("import pack.nothing", set()),
        ("%%time\nimport pack.settings", {"settings.py"}),
        ("%load_ext pack.settings\n%matplotlib inline", {"settings.py"}),
        ("if x:\n    %load_ext pack.settings", {"settings.py"}),
        ("if x:\n    !{command}\n    %pwd\nimport pack.settings", {"settings.py"}),
        ("x = (\n    7\n    % 3\n)\nimport pack.settings", {"settings.py"}),
        ("this is no Python: import pack.a", set()),
    ],
)
def test_imports_of_imports_are_followed(package: Path, source: str, files: set[str]) -> None:
    assert reached(package, source) == files


def test_of_rooms_the_modules_of_chapters_count(package: Path) -> None:
    two = {"room/__init__.py", "room/two.py"}
    assert reached(package, "", rooms=["room"]) == set()
    assert reached(package, "", rooms=["room"], chapters=["two"]) == two
    assert reached(package, 'mine("two.Layer")', rooms=["room"]) == two
    assert reached(package, 'f("two")', rooms=["room"]) == set()
    one = {"room/__init__.py", "room/one.py", "c.py", "a.py"} | DEEP
    assert reached(package, 'mine("two.Layer")', rooms=["room"], chapters=["one"]) == one | two


def test_files_count_and_what_they_import(package: Path) -> None:
    start = [package / "judge" / "__init__.py"]
    found = {"judge/__init__.py", "b.py"} | DEEP
    assert reached(package, files=start) == reached(package, files=start, aside=["judge"]) == found


def test_what_is_left_aside_is_not_followed(package: Path) -> None:
    source = "from pack import judge, judged, spare"
    assert "judge/__init__.py" in reached(package, source)
    assert reached(package, source, aside=["judge"]) == {"judged.py", "spare.py"}
    assert reached(package, source, aside=["judge", "spare"]) == {"judged.py"}


def test_a_file_is_read_again_when_it_has_changed(package: Path) -> None:
    source = "import pack.judged"
    for text, more in (("", set()), ("import pack.b", {"b.py"} | DEEP), ("import pack ", set())):
        (package / "judged.py").write_text(text, encoding="utf-8")
        assert reached(package, source) == {"judged.py"} | more
