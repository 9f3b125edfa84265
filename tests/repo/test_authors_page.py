"""The page for authors is followed literally: each block goes where its caption says, each command runs."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.authoring.counts import count

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "authors.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"^```\{code-block\} (?P<language>\w+)\n(?::caption: \"(?P<caption>[^\n]+)\"\n)?(?P<text>.*?)^```$",
    re.M | re.S,
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".pytest_cache")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what an author touches, with `course` and `pytest` on the path."""
    folder = tmp_path_factory.mktemp("author")
    for name in ("course_utils", "notebooks", "tests/grading", "tests/support"):
        shutil.copytree(ROOT / name, folder / name, ignore=LEFT_OUT)
    for name in ("pyproject.toml", "_toc.yml", "tests/conftest.py"):
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "bin").mkdir()
    for name, module in (("course", "course_utils.cli"), ("pytest", "pytest")):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return folder


def run(commands: str, project: Path) -> str:
    """What the commands print. Fails, with that, where one of them does."""
    path = f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", commands],
        cwd=project,
        env=os.environ
        | {"PATH": path, "PYTHONPATH": str(project), "COURSE_HOME": str(project / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout[-6000:]}"
    return done.stdout


def place(text: str, caption: str, project: Path) -> None:
    """Put a block where its caption says: new, at the end, before a line, in place of a line."""
    name, _, where = caption.partition(": ")
    file = project / name
    if where == "new":
        assert not file.exists(), f"{name} is not new"
        file.write_text(text, encoding="utf-8")
        return
    before = file.read_text(encoding="utf-8")
    if where == "at the end":
        file.write_text(f"{before}\n\n{text}", encoding="utf-8")
        return
    kind, line = re.fullmatch(r"(before|in place of) (.+)", where).groups()
    assert before.count(f"\n{line}\n") == 1, f"{name} has no one line {line!r}"
    after = text if kind == "in place of" else f"{text}{line}\n"
    file.write_text(before.replace(f"\n{line}\n", f"\n{after}"), encoding="utf-8")


def follow(project: Path, part: str) -> list[str]:
    """Do what one section of the page says; what each command printed."""
    printed = []
    section = PAGE.partition(f"\n## {part}\n")[2].partition("\n## ")[0]
    blocks = list(BLOCK.finditer(section))
    assert len(blocks) == section.count("```{code-block}")
    for block in blocks:
        if block["caption"]:
            place(block["text"], block["caption"], project)
        else:
            assert block["language"] == "sh", block[0]
            printed.append(run(block["text"], project))
        count("steps of the authors' page")
    return printed


def test_an_exercise(project: Path) -> None:
    proofs = follow(project, "An exercise, in four steps")[-1]
    passed = int(re.search(r"(\d+) passed", proofs)[1])
    assert passed >= 12
    assert re.search(r"[1-9]\d* +mutants killed", proofs), proofs
    notebook = (project / "notebooks/02_strides.ipynb").read_text(encoding="utf-8")
    assert '@exercise(\\"strides.storage_span\\")' in notebook


def test_a_chapter(project: Path) -> None:
    printed = follow(project, "A chapter")
    assert re.search(r"[1-9]\d* +mutants killed", printed[-1]), printed[-1]
    assert re.search(r"1 +notebooks as shipped", printed[-1]), printed[-1]
