"""The notebooks' normal form, the percent form and back, the solved form, and the lint."""

from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from typer.testing import CliRunner

from course_utils import grading
from course_utils.authoring import notebooks
from course_utils.authoring.problems import problems
from course_utils.cli import app
from course_utils.recordings import cells as gpu_cells

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KEY = "strides.flat_index"

STUB = '@exercise("strides.flat_index")\ndef flat_index(index):\n    raise NotImplementedError("your turn")'
SOLUTION = '@exercise("strides.flat_index")\ndef flat_index(index):\n    return 0\n'

STAMP = {
    "gpu": "A made-up GPU",
    "driver": "1.2",
    "torch": "2",
    "cuda": "13",
    "date": "2026-01-02",
    "code": "DIGEST",
}

OPENING = """# 2 · Strides

A promise.

**Objectives.** You will see. **Prerequisites:** chapter 1. **Time:** 90 minutes."""


@pytest.fixture(autouse=True)
def one_exercise(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about notebooks, not about the book's exercises: there is one, known here."""

    def find(key: str) -> SimpleNamespace:
        if key != KEY:
            raise LookupError(key)
        return SimpleNamespace(difficulty=2, minutes=15)

    def cell(source: str):
        return lambda key: find(key) and source

    monkeypatch.setattr(grading, "find", find, raising=False)
    monkeypatch.setattr(grading, "stub_cell", cell(STUB), raising=False)
    monkeypatch.setattr(grading, "solution_cell", cell(SOLUTION), raising=False)


def sample() -> NotebookNode:
    """A chapter with every kind of cell, as an editor may have left it: outputs, stray metadata, blank lines."""
    return new_notebook(
        metadata={
            "kernelspec": {"name": "my-env", "display_name": "Mine"},
            "widgets": {"state": {}},
        },
        cells=[
            new_markdown_cell(OPENING),
            new_code_cell("import torch", execution_count=3, metadata={"collapsed": True}),
            new_markdown_cell("## When is a view free?\n\nA question, $x_{i}$ and `code`.\n"),
            new_code_cell("# alt: a picture\ndraw(1)", metadata={"tags": ["figure"]}),
            new_code_cell("!ls\n%timeit 1\n\n\ndef f():\n    return 'a # %% b'\n\n\nf()"),
            new_code_cell("", outputs=[]),
            new_markdown_cell("> **Exercise 2.1 (flat_index), ★★☆, 15 min.** Do it."),
            new_code_cell("def flat_index(x): return 1", metadata={"exercise": KEY}),
            new_code_cell(
                "# would show: a time\nif torch.cuda.is_available():\n    x.cuda()",
                execution_count=7,
                metadata={"tags": ["gpu"], "recorded": STAMP},
                outputs=[new_output("stream", text="12.5 ms\n")],
            ),
            new_markdown_cell("## In a real codebase\n\nThere."),
            new_code_cell('quiz("strides")'),
            new_markdown_cell("## Summary\n\n- one\n\n## Further reading\n\nA book."),
        ],
    )


@pytest.fixture
def normal() -> NotebookNode:
    return notebooks.normalise(sample())


def test_normalising_again_changes_nothing(normal) -> None:
    assert notebooks.text(notebooks.normalise(normal)) == notebooks.text(normal)
    again = nbformat.reads(notebooks.text(normal), as_version=4)
    assert notebooks.text(notebooks.normalise(again)) == notebooks.text(normal)


def test_the_normal_form_is_a_valid_notebook_with_a_final_newline(normal) -> None:
    nbformat.validate(normal)
    assert notebooks.text(normal).endswith("}\n")
    assert notebooks.text(normal).startswith('{\n "cells"')


def gpu_cell(notebook: NotebookNode) -> NotebookNode:
    (cell,) = [cell for cell in notebook.cells if "gpu" in notebooks.tags(cell)]
    return cell


def current() -> NotebookNode:
    """The sample with the digest of its gpu cell as it is."""
    notebook = sample()
    (digest,) = gpu_cells.digests(notebook.cells, grading.solution_cell).values()
    gpu_cell(notebook).metadata["recorded"] = STAMP | {"code": digest}
    return notebook


def said(cell: NotebookNode) -> str:
    assert cell.outputs[0].metadata == gpu_cells.LABEL
    return cell.outputs[0].data["text/plain"]


def test_a_current_recording_stays_beneath_its_label() -> None:
    normal = notebooks.normalise(current())
    cell = gpu_cell(normal)
    assert said(cell) == (
        "Recorded on A made-up GPU, driver 1.2, with torch 2 and CUDA 13, 2026-01-02."
    )
    assert [out.text for out in cell.outputs[1:]] == ["12.5 ms\n"]
    assert cell.execution_count is None
    assert notebooks.text(notebooks.normalise(normal)) == notebooks.text(normal)
    assert problems(normal) == []


def test_the_outputs_of_other_cells_go(normal) -> None:
    others = [c for c in normal.cells if c.cell_type == "code" and "gpu" not in notebooks.tags(c)]
    assert all(cell.execution_count is None and cell.outputs == [] for cell in others)


def test_an_outdated_recording_goes_and_stays_outdated() -> None:
    notebook = current()
    cell = gpu_cell(notebook)
    cell.source = cell.source.replace("x.cuda()", "y.cuda()")
    assert any("its outputs are outdated" in problem for problem in problems(notebook))
    normal = notebooks.normalise(notebook)
    cell = gpu_cell(normal)
    assert len(cell.outputs) == 1
    assert said(cell) == (
        "Recorded before this cell, or code that it uses, changed (on A made-up GPU with torch 2, "
        "2026-01-02); left out until it is recorded again. It would show a time."
    )
    assert problems(normal) == []
    cell.source = cell.source.replace("y.cuda()", "x.cuda()")  # its outputs are gone all the same
    assert "left out" in said(gpu_cell(notebooks.normalise(normal)))


@pytest.mark.parametrize("lost", [*STAMP, None])
def test_outputs_without_a_whole_stamp_go(lost: str | None) -> None:
    notebook = current()
    metadata = gpu_cell(notebook).metadata
    if lost is None:
        del metadata["recorded"]
    else:
        del metadata["recorded"][lost]
    assert any("without a stamp" in problem for problem in problems(notebook))
    cell = gpu_cell(notebooks.normalise(notebook))
    assert "recorded" not in cell.metadata
    assert len(cell.outputs) == 1
    assert said(cell) == "Not recorded on a GPU yet. It would show a time."


def test_a_recording_that_printed_nothing_says_so() -> None:
    notebook = current()
    gpu_cell(notebook).outputs = []
    assert said(gpu_cell(notebooks.normalise(notebook))).endswith("ran and printed nothing.")


def test_check_names_what_is_outdated_and_fails_only_while_it_is_shown(chapter: Path) -> None:
    notebook = current()
    nbformat.write(notebook, chapter)
    course("normalise")
    assert course("normalise", "--check").exit_code == 0
    changed = chapter.read_text().replace("x.cuda()", "y.cuda()")
    chapter.write_text(changed)
    result = course("normalise", "--check")
    assert result.exit_code == 1
    assert "its outputs are outdated" in result.stderr
    course("normalise")
    result = course("normalise", "--check")
    assert result.exit_code == 0
    assert "note: 02_strides.ipynb when-is-a-view-free-cell-4: outdated" in result.stderr


def test_editing_as_percent_keeps_what_is_current_and_marks_what_is_not(chapter: Path) -> None:
    nbformat.write(current(), chapter)
    course("normalise")
    course("percent", chapter, "-o", "edit.py")
    edit = Path("edit.py")
    before = chapter.read_bytes()
    edit.write_text(edit.read_text().replace("A question", "Another question"))
    course("normalise", edit, "-o", chapter)
    assert chapter.read_bytes() == before.replace(b"A question", b"Another question")
    edit.write_text(edit.read_text().replace("x.cuda()", "y.cuda()"))
    course("normalise", edit, "-o", chapter)
    assert "left out until" in said(gpu_cell(notebooks.read(chapter)))


def test_metadata_is_minimal(normal) -> None:
    assert normal.metadata == {
        "kernelspec": notebooks.KERNEL,
        "language_info": {"name": "python"},
    }
    assert normal.cells[2].metadata == {}


def test_ids_follow_from_the_content(normal) -> None:
    identities = [cell.id for cell in normal.cells]
    assert identities[:4] == ["2-strides", "setup", "2-strides-cell-1", "when-is-a-view-free"]
    assert "exercise-strides-flat_index" in identities
    assert len(set(identities)) == len(identities)


def test_inserting_a_cell_renames_only_its_neighbours(normal) -> None:
    before = {cell.id for cell in normal.cells}
    changed = sample()
    changed.cells.insert(3, new_code_cell("1"))
    after = {cell.id for cell in notebooks.normalise(changed).cells}
    assert before <= after
    assert len(after - before) == 1


def test_the_stub_comes_from_the_reference(normal) -> None:
    (cell,) = [cell for cell in normal.cells if "exercise" in cell.metadata]
    assert cell.source == STUB


def test_an_unknown_exercise_is_an_error() -> None:
    notebook = new_notebook(cells=[new_code_cell("1", metadata={"exercise": "strides.nothing"})])
    with pytest.raises(LookupError, match=r"strides\.nothing"):
        notebooks.normalise(notebook)


def test_the_percent_form_goes_there_and_back_byte_for_byte(normal) -> None:
    percent = notebooks.to_percent(normal)
    assert '# %% exercise="strides.flat_index"\n@exercise' in percent
    assert '# %% tags=["figure"]\n# alt: a picture' in percent
    back = notebooks.normalise(notebooks.from_percent(percent))
    back = notebooks.keep_recorded(back, normal)
    assert notebooks.text(back) == notebooks.text(normal)
    assert notebooks.to_percent(back) == percent


def test_a_percent_file_by_hand_becomes_a_notebook() -> None:
    source = '# %% [markdown]\n# # 2 · Strides\n\n# %%\nx = 1\n# %% exercise="strides.flat_index"\n'
    notebook = notebooks.normalise(notebooks.from_percent(source + "pass\n"))
    assert [cell.id for cell in notebook.cells] == [
        "2-strides",
        "setup",
        "2-strides-cell-1",
        "exercise-strides-flat_index",
    ]


def test_the_solved_form_is_strict(normal) -> None:
    (cell,) = [c for c in notebooks.solve(normal).cells if "exercise" in c.metadata]
    assert cell.source == SOLUTION.replace('index")', 'index", strict=True)').rstrip()
    assert cell.source.startswith('@exercise("strides.flat_index", strict=True)\n')


def test_a_solution_without_its_decorator_is_an_error() -> None:
    with pytest.raises(ValueError, match="no @exercise"):
        notebooks.strict("def flat_index(): ...")


# The set-up cell


def run_setup(folder: Path, source: str, installed: list[str] | None = None) -> dict:
    """Run the set-up cell as IPython would, in `folder`, on a Python without the package."""
    from IPython.core.inputtransformer2 import TransformerManager

    code = f"import os, sys; os.chdir({str(folder)!r}); sys.path[:] = [p for p in sys.path if p]\n"
    code += "sys.modules.pop('course_utils', None)\n"
    code += TransformerManager().transform_cell(source)
    shell = SimpleNamespace(
        run_line_magic=lambda name, line: (installed if installed is not None else []).append(
            f"{name} {line}"
        )
    )
    space: dict = {"get_ipython": lambda: shell}
    exec(compile(code, "setup", "exec"), space)
    return space


@pytest.fixture
def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util
    import os
    import sys

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "course_utils" else find_spec(name, *rest),
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    here = os.getcwd()
    monkeypatch.chdir(here)


@pytest.mark.usefixtures("without_the_package")
def test_set_up_finds_the_package_above_the_notebook(tmp_path: Path) -> None:
    import sys

    (tmp_path / "course_utils").mkdir()
    (tmp_path / "notebooks").mkdir()
    run_setup(tmp_path / "notebooks", notebooks.setup_source())
    assert sys.path[0] == str(tmp_path.resolve())


@pytest.mark.usefixtures("without_the_package")
def test_set_up_installs_from_the_repository_once_its_address_is_set(tmp_path: Path) -> None:
    installed: list[str] = []
    source = notebooks.SETUP.format(repository="https://example.org/course")
    run_setup(tmp_path, source, installed)
    assert installed == ["pip install -q git+{REPOSITORY}"]  # IPython fills in the name


@pytest.mark.usefixtures("without_the_package")
def test_set_up_says_what_to_do_where_there_is_neither(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="make lab"):
        run_setup(tmp_path, notebooks.SETUP.format(repository=""))


def test_installing_the_course_leaves_torch_alone() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not any(name.startswith("torch") for name in project["dependencies"])


# The lint


def test_a_good_chapter_has_no_problems(normal) -> None:
    assert problems(normal) == []


def change(notebook: NotebookNode, was: str, becomes: str) -> NotebookNode:
    found = [cell for cell in notebook.cells if was in cell.source]
    assert found, was
    found[0].source = found[0].source.replace(was, becomes)
    return notebook


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ("import torch", "\n".join(["x = 1"] * 41), "41 lines; 40 at most"),
        ("if torch.cuda.is_available():\n    x", "x", "so that Run All goes on"),
        ("# would show: a time\n", "", "a gpu cell says what it shows at its top"),
        ("# alt: a picture\n", "", "a figure's first line says what it shows"),
        ("import torch", "# alt: something\n1", "not tagged figure"),
        ("import torch", '@exercise("a.b")\ndef b(): ...', "names its exercise in its metadata"),
        ("> **Exercise 2.1", "> Exercise 2.1", "the cell before it says"),
        ("A question", "```{note}\nhello\n```", "a directive of MyST"),
        ("A question", ":::{note}\nhello\n:::", "a directive of MyST"),
        ("A question", "See {ref}`here`", "a role of MyST"),
        ("A question", "(label)=\n\nText", "a target of MyST"),
        ("A question", "{{ name }}", "a substitution of MyST"),
        ("# 2 · Strides", "# Strides", "the chapter's number and title"),
        ("Objectives.** You will see", "What.** One sees", "does not state the objectives"),
        ("Prerequisites", "Also", "does not state the prerequisites"),
        ("90 minutes", "long", "does not state the time"),
        ("## In a real codebase", "## Elsewhere", "'In a real codebase'"),
        ("## Summary", "## End", "'Summary'"),
        ("## Further reading", "## More", "'Further reading'"),
        ("quiz(", "print(", "no quiz"),
    ],
)
def test_a_problem_is_found(normal, was: str, becomes: str, says: str) -> None:
    found = problems(change(normal, was, becomes))
    assert any(says in problem for problem in found), found


@pytest.mark.parametrize("innocent", ["`{ref}` in braces", "$a_{i}`b`$", "```python\n{{x}}\n```"])
def test_what_only_looks_like_myst_is_let_be(normal, innocent: str) -> None:
    assert problems(change(normal, "A question", f"{innocent}\n\nA question")) == []


def test_outputs_are_a_problem_before_they_are_removed() -> None:
    found = problems(sample())
    assert any("has outputs" in problem for problem in found)


ANNOUNCED = "> **Exercise 2.1 (flat_index), ★★☆, 15 min.** Do it."


@pytest.mark.parametrize(
    "said",
    [
        "> **Exercise 2.1 (flat_index), ★★★, 15 min.** Do it.",
        "> **Exercise 2.1 (flat_index), ★★☆, 20 min.** Do it.",
        "> **Exercise 3.7 (flat), ★★☆, 15 min.** Do it.",
        "> **Exercise (flat_index).** Do it.",
        "> **Exercise.** Do it.",
    ],
)
def test_the_line_of_an_exercise_is_written_from_its_declaration(normal, said: str) -> None:
    changed = change(normal, ANNOUNCED, said)
    assert said in notebooks.text(changed)
    assert notebooks.text(notebooks.normalise(changed)) == notebooks.text(
        notebooks.normalise(sample())
    )


def test_what_stands_around_the_line_is_left_alone(normal) -> None:
    text = "A sentence.\n\n> **Exercise.** Do *this*: **now.**\n> **Note.** Or later."
    again = notebooks.normalise(change(normal, ANNOUNCED, text))
    (cell,) = [cell for cell in again.cells if "A sentence." in cell.source]
    assert cell.source == text.replace("**Exercise.**", ANNOUNCED[2:].removesuffix(" Do it."))


def test_exercises_are_numbered_by_their_order_unless_they_are_a_part_of_a_chapter() -> None:
    def numbers(**options: bool) -> list[str]:
        cells = [new_markdown_cell(OPENING)]
        for said in ("Exercise 2.3 (flat_index)", "Exercise 2.7 (flat_index)"):
            cells += [
                new_markdown_cell(f"> **{said}.** Do it."),
                new_code_cell("", metadata={"exercise": KEY}),
            ]
        made = notebooks.normalise(new_notebook(cells=cells), **options)
        found = [notebooks.EXERCISE.search(cell.source) for cell in made.cells]
        return [match["number"] for match in found if match]

    assert numbers() == ["2.1", "2.2"]
    assert numbers(numbered=False) == ["2.3", "2.7"]


# The commands


@pytest.fixture
def chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "notebooks" / "02_strides.ipynb"
    path.parent.mkdir()
    nbformat.write(sample(), path)
    return path


def course(*arguments: str | Path):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_check_changes_nothing_and_fails(chapter: Path) -> None:
    before = chapter.read_bytes()
    result = course("normalise", "--check")
    assert result.exit_code == 1
    assert "not in its normal form; run `course normalise`" in result.stderr
    assert chapter.read_bytes() == before


def test_normalise_makes_check_pass(chapter: Path) -> None:
    assert course("normalise").exit_code == 0
    result = course("normalise", "--check")
    assert (result.exit_code, result.stdout) == (0, "")


def test_percent_and_normalise_are_inverse(chapter: Path) -> None:
    course("normalise")
    before = chapter.read_bytes()
    assert course("percent", chapter, "-o", "edit.py").exit_code == 0
    edit = Path("edit.py").read_bytes()
    assert course("normalise", "edit.py", "-o", chapter).exit_code == 0
    assert chapter.read_bytes() == before
    chapter.unlink()
    course("normalise", "edit.py", "-o", chapter)
    course("percent", chapter, "-o", "edit.py")
    assert Path("edit.py").read_bytes() == edit


def test_solve_writes_every_chapter_and_nothing_stale(chapter: Path) -> None:
    stale = Path("_build/solved/99_gone.ipynb")
    stale.parent.mkdir(parents=True)
    stale.write_text("{}")
    assert course("solve", "-o", "_build/solved").exit_code == 0
    assert [path.name for path in stale.parent.iterdir()] == [chapter.name]
    assert "strict=True" in (stale.parent / chapter.name).read_text()


def test_a_percent_file_needs_a_place_to_go(chapter: Path) -> None:
    Path("edit.py").write_text("# %%\n1\n")
    result = course("normalise", "edit.py")
    assert result.exit_code == 1
    assert "needs -o" in result.stderr


def test_there_are_chapters() -> None:
    assert CHAPTERS
