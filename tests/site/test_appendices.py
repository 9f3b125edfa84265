"""What the appendices say is so: letters, words, names and links."""

import ast
import dataclasses
import json
import mmap
import os
import pkgutil
import re
import subprocess
import sys
from functools import cache, lru_cache
from pathlib import Path

import pytest
import torch
from site_build import ROOT

from course_utils.authoring.counts import count

sys.path.append(str(ROOT / "book" / "_ext"))
from course_book import api, chapters

BOOK = ROOT / "book"
PACKAGE = ROOT / "course_utils"
NOTATION = (BOOK / "notation.md").read_text(encoding="utf-8")
ARRAYS = {"Bool", "Complex", "Float", "Inexact", "Int", "Integer", "Num", "Real", "Shaped", "UInt8"}
NOTEBOOK_LINK = re.compile(r"\]\(\.\./notebooks/(\w+)\.ipynb(#[\w.-]+)?\)")


# ------------------------------------------------------------------------------ notation


def axis_names(annotation: str) -> set[str]:
    """Names in the axes of a jaxtyping annotation, without its marks and sizes."""
    parts = (part.strip("#*?_{}") for part in annotation.split())
    return {part for part in parts if re.fullmatch(r"[A-Za-z]\w*", part)}


def axes_in_use() -> dict[str, str]:
    """Each axis name of the references' annotations, with a module that uses it."""
    found: dict[str, str] = {}
    for file in sorted((PACKAGE / "reference").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Subscript(
                    value=ast.Name(id=kind),
                    slice=ast.Tuple(elts=[_, ast.Constant(value=str(axes))]),
                ) if kind in ARRAYS:
                    found |= dict.fromkeys(axis_names(axes), file.name)
    return found


def axes_explained() -> set[str]:
    """Letters and names in the first columns of the notation page's tables of axes."""
    letters, _, _ = NOTATION.partition("## Reading a shape annotation")
    rows = [line.split("|")[1] for line in letters.splitlines() if line.startswith("|")]
    extra = re.findall(r"\$(\w)\$ for the keys", letters)
    return {name for row in rows for name in re.findall(r"[$`](\w+)[$`]", row)} | set(extra)


def test_every_axis_of_the_references_is_explained() -> None:
    used = axes_in_use()
    assert len(used) > 20
    explained = axes_explained()
    assert {name: where for name, where in used.items() if name not in explained} == {}


def test_no_axis_is_explained_that_nothing_uses() -> None:
    by_the_text = {"C", "H", "L", "W", "S"}  # letters of formulas and prose
    assert axes_explained() - set(axes_in_use()) - by_the_text == set()


# ------------------------------------------------------------------------------ glossary

GLOSSARY = re.findall(r"^:::\{glossary\}\n(.*?)^:::", NOTATION, re.M | re.S)
ENTRIES = re.findall(r"^(\S.*)\n  (.+)$", "\n".join(GLOSSARY), re.M)


@lru_cache
def text_of(notebook: str) -> str:
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text("utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells).lower()


def same_word(text: str) -> str:
    return re.sub(r"[\s_–-]+", "-", text.lower())


@pytest.mark.parametrize(("term", "definition"), ENTRIES, ids=[term for term, _ in ENTRIES])
def test_a_term_is_used_in_the_chapters_it_names(term: str, definition: str) -> None:
    chapters = NOTEBOOK_LINK.findall(definition)
    assert chapters
    for notebook, _ in chapters:
        used = same_word(term) in same_word(text_of(notebook))
        assert used, f"{term} is not in {notebook}"
    count("terms of the glossary")


def test_no_term_is_explained_twice() -> None:
    terms = [term.lower() for term, _ in ENTRIES]
    assert len(terms) > 60
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


# ------------------------------------------------------------------------------ pitfalls, opening


def test_every_pitfall_runs_and_names_its_chapter() -> None:
    page = (BOOK / "pitfalls.md").read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\*\*)", page)[1:]
    assert len(blocks) > 20
    for block in blocks:
        assert NOTEBOOK_LINK.search(block), f"no chapter: {block[:60]}"
        assert "```{code-cell}" in block, f"nothing runs: {block[:60]}"
    count("pitfalls shown", len(blocks))


def test_the_modules_of_the_opening_exist() -> None:
    page = (BOOK / "opening.md").read_text(encoding="utf-8")
    table = page.partition("## What is where")[2]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    names = {name for row in rows for cell in row for name in re.findall(r"`(torch[\w.]*)`", cell)}
    assert len(names) > 20
    for name in names:
        assert pkgutil.resolve_name(name)


# ------------------------------------------------------------------------------ API

API = re.findall(
    r"^:::\{course-api\} (\S+)\n(?::without: (.+)\n)?",
    "\n".join((BOOK / f"{page}.md").read_text("utf-8") for page in ("api", "api_reference")),
    re.M,
)


@pytest.mark.parametrize(("module", "without"), API)
def test_every_public_name_has_a_docstring(module: str, without: str) -> None:
    found = [one for one in api.public(module, PACKAGE) if one.name not in without.split()]
    assert found
    assert [one.name for one in found if not one.doc.strip()] == []
    count("names in the API", len(found))


def test_every_module_of_the_references_is_on_the_page() -> None:
    there = {path.stem for path in (PACKAGE / "reference").glob("*.py")} - {"__init__"}
    shown = {name.rpartition(".")[2] for name, _ in API if ".reference." in name}
    assert shown == there


SAMPLE = '''
"""A module."""
from dataclasses import dataclass, field


@dataclass
class Point:
    """A point. `x`: across; <y>: up."""

    x: float
    y: float = 0.0
    names: list = field(default_factory=list)
    _hidden: int = 0

    def moved(self, *by: float, scale: int = 2) -> "Point":
        """Somewhere else."""

    @property
    def norm(self) -> float:
        """Its length."""


def plain(x: Float[Tensor, "B T"], /, *, eps: float = 1e-6) -> Float[Tensor, " B"]:
    """Says what."""


def _private(): ...
'''


def test_signatures_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE)
    (tmp_path / "__init__.py").write_text(
        'from .sample import plain\n__all__ = ["plain", "sample"]\n'
    )
    point, plain = api.public("package.sample", tmp_path)
    assert (point.kind, point.signature) == (
        "class",
        "(x: float, y: float = 0.0, names: list = ...)",
    )
    assert [(m.kind, m.name, m.signature) for m in point.members] == [
        ("method", "moved", "(*by: float, scale: int=2) -> 'Point'"),
        ("property", "norm", ""),
    ]
    assert plain.signature == (
        "(x: Float[Tensor, 'B T'], /, *, eps: float=1e-06) -> Float[Tensor, ' B']"
    )
    assert [(one.name, one.kind) for one in api.public("package", tmp_path)] == [
        ("plain", "function"),
        ("sample", "module"),
    ]
    with pytest.raises(LookupError, match="no module"):
        api.public("package.absent", tmp_path)


def test_a_docstring_reads_the_same_in_markdown() -> None:
    shown = api.as_markdown("Costs 5$ a_b * c, `x_y * z`.\n\n    indented *code*\n\n>>> f(1)\n2")
    assert shown.split("\n\n") == [
        r"Costs 5\$ a\_b \* c, `x_y * z`.",
        "```text\nindented *code*\n```",
        "```text\n>>> f(1)\n2\n```",
    ]


def test_a_link_to_the_source_needs_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    from course_utils import settings as module

    (one, *_) = api.public("course_utils.meters", PACKAGE)
    assert api.source_link(one, PACKAGE) == ""
    published = dataclasses.replace(module.settings, repository="https://github.com/someone/book/")
    monkeypatch.setattr(module, "settings", published)
    link = api.source_link(one, PACKAGE)
    where = one.file.relative_to(ROOT).as_posix()
    assert where.startswith("course_utils/meters/")
    assert link.startswith(f"[{where}](https://github.com/someone/book/blob/main/{where}")
    assert link.endswith(f"#L{one.line})")


# ------------------------------------------------------------------------------ instructors


HOURS = {
    "three": 3,
    "three and a half": 3.5,
    "four": 4,
    "four and a half": 4.5,
    "five": 5,
    "six": 6,
    "six and a half": 6.5,
    "seven": 7,
    "eight": 8,
}


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_the_hours_that_a_head_says_are_those_of_its_cells(path: Path) -> None:
    """And so is the range on the page for instructors."""
    said = re.search(r"about (\w+(?: and a half)?) hours", text_of(path.stem)[:4000])
    assert said is not None
    found = chapters.chapter_at(path)
    assert found is not None
    assert abs(HOURS[said[1]] - found.minutes / 60) <= 0.5
    page = (BOOK / "instructors.md").read_text(encoding="utf-8")
    assert "three to seven hours in all" in page


# ------------------------------------------------------------------------------ distributed

TORCH = Path(torch.__file__).parent
DISTRIBUTED = (BOOK / "distributed.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def variables(title: str) -> set[str]:
    """Names in the first column of the section's table."""
    lines = section(DISTRIBUTED, title).splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}


def test_torchrun_sets_what_the_page_says(tmp_path: Path) -> None:
    script = tmp_path / "environment.py"
    said = "' '.join(['FOUND', *os.environ]) + '\\n'"  # in one write: two processes share the pipe
    script.write_text(f"import os\nos.write(1, ({said}).encode())\n")
    names = variables("What torchrun sets")
    clean = {k: v for k, v in os.environ.items() if k not in names}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            script,
        ],
        env=clean,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found = re.findall(r"FOUND (.*)", done.stdout)
    assert len(found) == 2
    for line in found:
        added = {name for name in line.split() if not name.startswith("_")}
        assert added - set(clean) - {"PWD", "LC_CTYPE"} == names


@cache
def in_torch() -> tuple[bytes | mmap.mmap, ...]:
    """Sources and headers as one text each, then the libraries, of which only pages are read."""
    python = b"\n".join(file.read_bytes() for file in TORCH.rglob("*.py"))
    headers = b"\n".join(file.read_bytes() for file in (TORCH / "include").rglob("*.h*"))
    names = ("c10", "torch_python", "torch_cpu")
    libraries = [path for name in names for path in (TORCH / "lib").glob(f"lib{name}.*")]
    return python, headers, *(mapped(path) for path in libraries)


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def found_in_torch(text: str) -> bool:
    return any(part.find(text.encode()) >= 0 for part in in_torch())


def test_torch_knows_the_variables_that_one_sets_for_it() -> None:
    names = variables("What you set for torch") | {"TORCH_NCCL_TRACE_BUFFER_SIZE"}
    assert len(names) > 10
    assert [name for name in names if not found_in_torch(name)] == []


def test_torch_has_the_messages_that_are_quoted() -> None:
    messages = re.findall(r"“(.+?)”", section(DISTRIBUTED, "Symptoms"))
    assert len(messages) >= 5
    assert [message for message in messages if not found_in_torch(message)] == []
