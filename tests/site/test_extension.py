"""The Sphinx extension, piece by piece: no build."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from site_build import ROOT, code, markdown
from test_pages import NOTEBOOKS

from course_utils.recordings import cells as recording_cells

sys.path.append(str(ROOT / "book" / "_ext"))
from course_book import engine, notebooks, site
from course_book.markdown import to_myst

KEY = "strides.flat_index"


def no_defect(sentence: str) -> None:
    raise AssertionError(sentence)


def page_cells(*cells: nbformat.NotebookNode, solutions: bool = True) -> list[dict]:
    plain = json.loads(json.dumps(cells))
    return notebooks.page_cells(plain, solutions=solutions, warn=no_defect)


# Markdown


@pytest.mark.parametrize(
    ("lead", "kind"),
    [("Predict", "predict"), ("Note", "note"), ("Pitfall", "pitfall"), ("On a GPU", "gpu")],
)
def test_a_quotation_with_a_lead_in_becomes_an_admonition(lead: str, kind: str) -> None:
    made = to_myst(f"> **{lead}.** One\n> two.\n>\n> - three")
    assert made.strip() == (
        f":::{{admonition}} {lead}\n:class: course-{kind}\n\nOne\ntwo.\n\n- three\n:::"
    )


@pytest.mark.parametrize(
    "text",
    [
        "> A quotation of **Note.** somebody.\n> Two lines.",
        "Plain **Note.** text, `> **Note.** code`, $a > b$.",
        "```python\n> **Note.** output\n<details>\n[a](b.ipynb#C)\n```",
        "~~~\n```\n> **Note.** still code\n~~~",
        "| a | b |\n|---|---|\n| `x > y` | 2 |",
        "",
    ],
)
def test_other_text_is_left_alone(text: str) -> None:
    assert to_myst(text) == text


def test_an_exercise_carries_its_key_and_its_numbers() -> None:
    made = to_myst("> **Exercise 2.5 (merge, unmerge), ★★☆, 15 min.** Go *there*.", "strides.merge")
    assert made.strip().split("\n") == [
        ":::{course-exercise} merge, unmerge",
        ":number: 2.5",
        ":stars: ★★☆",
        ":minutes: 15",
        ":key: strides.merge",
        "",
        "Go *there*.",
        ":::",
    ]


def test_an_exercise_without_a_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="no exercise cell follows"):
        to_myst("> **Exercise 2.5 (f), ★★☆, 15 min.** Go.")


def test_folds_nest_within_longer_fences() -> None:
    made = to_myst(
        "<details><summary>Why <code>expand</code>?</summary>\n\n> **Note.** Zero.\n\n</details>"
    )
    assert made.strip().split("\n")[0] == "::::{dropdown} Why expand?"
    assert made.strip().endswith(":::\n::::")
    inner = "<details>\n<summary>In</summary>\n\nx\n\n</details>"
    assert "::::{dropdown} Out" in to_myst(
        f"<details>\n<summary>Out</summary>\n\n{inner}\n\n</details>"
    )
    with pytest.raises(ValueError, match="never closed"):
        to_myst("<details><summary>a</summary>\n\ntext")
    with pytest.raises(ValueError, match="goes on after"):
        to_myst("<details><summary>a</summary>text</details> more")


def test_a_fold_may_close_in_the_line_it_opens() -> None:
    made = to_myst("<details><summary>Why?</summary>Zero.</details>\n\nMore.")
    assert "</details>" not in made
    assert made.index("Zero.") < made.index(":::", made.index("Zero.")) < made.index("More.")


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[a](01_tensors.ipynb)", "[a](01_tensors.ipynb)"),
        ("[a](01_tensors.ipynb#When-is-a-view-free?)", "[a](01_tensors.ipynb#when-is-a-view-free)"),
        ("[a](#Two-Words)", "[a](#two-words)"),
        (f"[a](02_strides.ipynb#exercise-{KEY})", f"[a](#exercise-{KEY})"),
        ("[a](https://example.org/B#C)", "[a](https://example.org/B#C)"),
    ],
)
def test_anchors_of_jupyterlab_become_those_of_the_page(link: str, becomes: str) -> None:
    assert to_myst(f"See {link}.") == f"See {becomes}."


# Cells


def test_an_exercise_cell_becomes_stub_hints_and_solution() -> None:
    stub, hints, solution = page_cells(code("stub", exercise=KEY))
    assert stub["source"] == "stub"
    assert "skip-execution" in stub["metadata"]["tags"]
    assert hints["source"].count("{dropdown} Hint") >= 2
    assert solution["source"].startswith(f'@exercise("{KEY}")')
    assert "NotImplementedError" not in solution["source"]
    assert "hide-input" in solution["metadata"]["tags"]


def test_without_solutions_the_stub_is_executed_alone() -> None:
    (stub,) = page_cells(code("stub", exercise=KEY), solutions=False)
    assert stub["metadata"]["tags"] == ["exercise-stub"]


GPU = "# would show: a number\nif torch.cuda.is_available():\n    print(f())"
STAMP = {"gpu": "A", "driver": "1", "torch": "2", "cuda": "13", "date": "2026-01-02"}


def recorded(source: str = GPU, above: str = "def f():\n    return 1") -> list[dict]:
    """A made-up recording: a cell, and a gpu cell that uses it, with the digest of the two."""
    cells = [code(above), code(source, tags=["gpu"])]
    (digest,) = recording_cells.digests(cells, str).values()
    cells[1].metadata["recorded"] = STAMP | {"code": digest}
    cells[1].outputs = [
        nbformat.from_dict(recording_cells.label("a label for JupyterLab")),
        nbformat.v4.new_output("stream", text="41"),
    ]
    return cells


def shown(cells: list[dict]) -> tuple[dict, str]:
    *_, cell, says = page_cells(*cells)
    return cell, says["source"].removeprefix(":::{div} course-recorded\n").removesuffix("\n:::")


def test_a_gpu_cell_that_was_never_recorded_says_what_it_would_show() -> None:
    cell, says = shown([code(GPU, tags=["gpu"])])
    assert cell["metadata"]["tags"] == ["gpu", "skip-execution"]
    assert cell["outputs"] == []
    assert cell["source"].startswith("if torch")
    assert says == "Not recorded on a GPU yet. It would show a number."


def test_a_current_recording_is_shown_with_its_stamp() -> None:
    cell, says = shown(recorded())
    assert [out["text"] for out in cell["outputs"]] == ["41"]
    assert says == "Recorded on A, driver 1, with torch 2 and CUDA 13, 2026-01-02."
    again = recorded()
    again[1].outputs[1].text = "42"
    assert shown(again)[0]["metadata"] != cell["metadata"], "the cache would show the old recording"


@pytest.mark.parametrize(
    ("at", "source"),
    [(0, "def f():\n    return 2"), (1, GPU.replace("f()", "-f()"))],
    ids=["code that it uses", "its own code"],
)
def test_an_outdated_recording_is_not_shown(at: int, source: str) -> None:
    cells = recorded()
    cells[at].source = source
    cell, says = shown(cells)
    assert cell["outputs"] == []
    assert says.startswith("Recorded before this cell, or code that it uses, changed (on A with")
    assert says.endswith("left out until it is recorded again. It would show a number.")


@pytest.mark.parametrize("lost", [*STAMP, "code"])
def test_a_recording_without_its_whole_stamp_is_not_shown(lost: str) -> None:
    cells = recorded()
    del cells[1].metadata["recorded"][lost]
    cell, says = shown(cells)
    assert cell["outputs"] == []
    assert says.startswith("Its output came without a note of the GPU that made it, and is left")


def test_a_recorded_picture_has_an_alternative_text() -> None:
    cell, _ = shown(recorded("# alt: a curve\n#      that falls\n" + GPU))
    assert cell["metadata"]["mystnb"]["image"]["alt"] == "a curve that falls"
    assert cell["source"].startswith("if torch")
    assert shown(recorded())[0]["metadata"]["mystnb"]["image"]["alt"] == "a number"


def test_the_alt_line_describes_the_image_and_is_not_shown() -> None:
    (figure,) = page_cells(code("# alt: one\n#      two\n# a comment\ndraw()", tags=["figure"]))
    assert figure["metadata"]["mystnb"]["image"]["alt"] == "one two"
    assert figure["source"] == "# a comment\ndraw()"


def test_the_setup_cell_is_removed_but_executed() -> None:
    (setup,) = page_cells(code("import course_utils", tags=["setup"]))
    assert setup["metadata"]["tags"] == ["setup", "remove-cell"]


def test_other_cells_are_left_alone() -> None:
    cells = json.loads(json.dumps([markdown("# Title"), code("x = 1")]))
    assert page_cells(*cells) == cells


# What a notebook depends on


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a chain of imports, chapters, a script and something unrelated."""
    files = {
        "__init__.py": '_HOMES = {"pack.verbs": ("exercise",)}',
        "verbs.py": "from .engine import core",
        "engine/__init__.py": "",
        "engine/core.py": "def f():\n    from ..settings import x",
        "settings.py": 'x = "course.toml"',
        "course.toml": "",
        "unrelated.py": "",
        "figures/__init__.py": "",
        "figures/walk.py": 'NAME = "walk.js"',
        "figures/js/walk.js": "",
        "reference/__init__.py": "",
        "reference/a.py": "from . import b",
        "reference/b.py": "",
        "reference/c.py": "",
        "exercises/a.py": "",
        "exercises/c.py": "",
    }
    root = tmp_path / "pack"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def reached(package: Path, *sources: str) -> set[str]:
    return {file.relative_to(package).as_posix() for file in engine.closure(sources, "a", package)}


def test_the_closure_follows_imports_strings_chapters_and_data(package: Path) -> None:
    always = {"__init__.py", "verbs.py", "engine/__init__.py", "engine/core.py", "settings.py"}
    always |= {"course.toml", "reference/__init__.py", "reference/a.py", "reference/b.py"}
    always |= {"exercises/a.py", "figures/__init__.py"}
    assert reached(package, "from pack import exercise") == always
    figures = {"figures/walk.py", "figures/js/walk.js"}
    assert reached(package, "%%time\nimport pack.figures.walk as w") == always | figures
    assert reached(package, 'f = mine("c.Layer")') == always | {"reference/c.py", "exercises/c.py"}
    assert reached(package, "this is no Python") == always


def add_a_line(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8") + "\n# changed", encoding="utf-8")


def test_the_digest_changes_exactly_when_it_must(package: Path) -> None:
    def now() -> str:
        return engine.digest(["from pack import exercise"], "a", package)

    before = now()
    for unrelated in ("unrelated.py", "reference/c.py", "figures/js/walk.js"):
        add_a_line(package / unrelated)
        assert now() == before
    for needed in ("engine/core.py", "reference/b.py", "course.toml"):
        add_a_line(package / needed)
        assert now() != before
        before = now()


EXECUTED = [*NOTEBOOKS, "book/index"]
LOADED = """
import importlib, json, os, sys
scripts = json.load(sys.stdin)
for library in ("torch", "einops", "hypothesis", "jaxtyping", "matplotlib.pyplot", "peft", "transformers"):
    importlib.import_module(library)  # once for all pages, each of which is a fork
assert not any(name.startswith("course_utils") for name in sys.modules)
for page, script in scripts.items():
    child = os.fork()
    if not child:
        exec(script, {"__name__": "__main__"})
        files = [getattr(m, "__file__", None) for n, m in sys.modules.items() if n.startswith("course_utils")]
        print(json.dumps([page, [file for file in files if file]]), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, page
"""


def sources_and_keys(page: str) -> tuple[list[str], list[str]]:
    """A page's code cells, and the exercises that it looks up."""
    if not (ROOT / f"{page}.ipynb").exists():
        text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
        return [found["source"] for found in notebooks.CODE_CELL.finditer(text)], [KEY]
    cells = json.loads((ROOT / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return sources, [key for cell in cells if (key := cell["metadata"].get("exercise"))]


def imports_of(page: str) -> str:
    """A script of the page's imports, which looks its exercises up; without the modules that the page
    writes into a folder of its own."""
    sources, keys = sources_and_keys(page)
    lines = [line for source in sources for line in source.split("\n")]
    imports = [
        line
        for line in lines
        if line.startswith(("import ", "from ")) and "import " in line[:80]
        if find_spec(line.split()[1].split(".")[0])
    ]
    look_up = f"from course_utils.grading import find\n[find(key) for key in {keys!r}]"
    return "\n".join([*(line for line in imports if not line.endswith("(")), look_up])


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[Path]]:
    """By page, the modules of the course that its imports load."""
    scripts = json.dumps({page: imports_of(page) for page in EXECUTED})
    command = [sys.executable, "-c", LOADED]
    ran = subprocess.run(
        command, cwd=ROOT, input=scripts, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('["')]
    return {page: set(map(Path, files)) for page, files in lines}


@pytest.mark.parametrize("page", EXECUTED)
def test_no_module_that_a_page_loads_is_missing_from_its_closure(
    page: str, loaded: dict[str, set[Path]]
) -> None:
    """Run the imports of the page, look its exercises up, and compare with what was loaded."""
    chapter = page.split("/")[-1].split("_", 1)[-1]
    assert loaded[page]
    sources, _ = sources_and_keys(page)
    assert loaded[page] - engine.closure(sources, chapter, engine.package()) == set()


def test_a_digest_in_the_metadata_changes_what_the_cache_looks_for(tmp_path: Path) -> None:
    from jupyter_cache import get_cache

    cache = get_cache(tmp_path / "cache")

    def looked_for(depends: str) -> str:
        cells = [code("x = 1", depends=depends)]
        return cache.create_hashed_notebook(nbformat.v4.new_notebook(cells=cells))[1]

    assert looked_for("a") == looked_for("a")
    assert looked_for("a") != looked_for("b")


def test_a_markdown_page_carries_the_digest_in_its_first_cell(package: Path) -> None:
    page = "# T\n\n```{code-cell} python\n:tags: [x]\nimport pack\n```\n\n```{code-cell}\n1\n```\n"
    made = notebooks.with_digest(page, "a", package)
    assert made.count(":depends: ") == 1
    assert "```{code-cell} python\n:depends: " in made
    assert notebooks.with_digest("# T\n", "a", package) == "# T\n"


# The site's settings


@pytest.mark.parametrize(
    ("repository", "colab"),
    [("https://github.com/o/r", True), ("https://gitlab.com/o/r.git", False)],
)
def test_buttons_appear_with_the_address(repository: str, colab: bool) -> None:
    options = site.repository_options(repository)
    assert options["repository_url"] == repository.removesuffix(".git")
    assert options["use_repository_button"]
    assert ("colab_url" in options["launch_buttons"]) == colab


@pytest.mark.parametrize("repository", ["", "https://github.com/o/r"])
def test_the_configuration_follows_the_address(
    repository: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from course_utils import settings

    chosen = SimpleNamespace(title="T", subtitle="", edition="1", repository=repository)
    monkeypatch.setattr(settings, "settings", chosen)
    tags: list[str] = []
    app = SimpleNamespace(srcdir=tmp_path, tags=SimpleNamespace(add=tags.append))
    config = SimpleNamespace(html_theme_options={}, nb_execution_cache_path="")
    site.configure(app, config)
    assert config.html_title == "T"
    assert ("repository_url" in config.html_theme_options) == bool(repository)
    assert ("launch_buttons" in config.html_theme_options) == bool(repository)
    assert tags == (["published"] if repository else [])


def test_mathjax_is_vendored_with_its_licence() -> None:
    folder = ROOT / "book" / "_static" / "mathjax"
    assert "Apache License" in (folder / "LICENSE").read_text(encoding="utf-8")
    assert (folder / "tex-chtml.js").stat().st_size > 1_000_000
    assert len(list(folder.rglob("*.woff"))) == 23
