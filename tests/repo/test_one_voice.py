"""What all chapters and pages have alike: their last sections, their spelling, and whom they cite."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = [
    *sorted((ROOT / "book").glob("*.md")),
    *sorted((ROOT / "book" / "parts").glob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
CHAPTERS = 28
ENDING = re.compile(
    r"In a real codebase\nQuiz\nSummary\n(?:Pitfalls\n)?Further reading\Z", re.MULTILINE
)

CODE = re.compile(
    r"^(```+|:::+).*?^\1|`[^`\n]*`|\]\([^)]*\)|<[^>]*>|[“\"][^”\"\n]*[”\"]", re.M | re.S
)
TITLES = re.compile(r"\*[^*\n]+\*")
AMERICAN = re.compile(
    r"\b(?:colors?|colored|behaviors?|neighbor\w*|label(?:ed|ing)|model(?:ed|ing)|traveled|canceled|"
    r"centers?|centered|favor\w*|gray|catalogs?|toward|analyz\w+|"
    r"(?:recogn|organ|minim|maxim|summar|general|initial|normal|parallel|real|regular|"
    r"penal|material|random|util|special|vector|factor|linear|standard|equal|character)iz\w+)\b",
    re.I,
)
BRITISH = re.compile(r"\b(?:learnt|(?:quant|token|serial)is(?:e|es|ed|ing|er|ers|ation))\b", re.I)
"""Where the field's own word is spelled otherwise: quantize, tokenizer, serialize, learned."""
TERMS = (
    "FLOPs utilization",
    "same utilization",
    "The utilization",
    "is a utilization",
    "layer normalization",
    "J. Gray",
    "data-center",
    "changes the behavior of my function",
)
"""Names, and terms that are spelled as their papers spell them."""


def markdown_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def prose_of(page: Path) -> str:
    """A page's or a chapter's words, without code, addresses, quotations and titles."""
    notebook = page.suffix == ".ipynb"
    text = "\n\n".join(markdown_of(page)) if notebook else page.read_text(encoding="utf-8")
    text = TITLES.sub("", CODE.sub("", text))
    for term in TERMS:
        text = text.replace(term, "")
    return text


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_last_sections_are_alike(notebook: Path) -> None:
    headings = re.findall(r"^## (.+)$", "\n".join(markdown_of(notebook)), re.M)
    assert ENDING.search("\n".join(headings)), headings


@pytest.mark.parametrize("page", [*NOTEBOOKS, *PAGES], ids=lambda path: path.stem)
def test_spelling_is_british_but_for_the_fields_own_words(page: Path) -> None:
    text = prose_of(page)
    found = [*AMERICAN.finditer(text), *BRITISH.finditer(text)]
    assert [text[max(0, m.start() - 30) : m.end() + 20] for m in found] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Its behavior is", 1),
        ("colour of the neighbours, `color=`", 0),
        ("the learnt table", 1),
        ("a tokenizer quantizes what was learned", 0),
        ("[text](https://x.org/colors) of *Normalization*", 0),
        ("```\ncolor\n```\ninitialised", 0),
    ],
)
def test_what_the_spelling_looks_at(tmp_path: Path, text: str, found: int) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    said = prose_of(page)
    assert len([*AMERICAN.finditer(said), *BRITISH.finditer(said)]) == found


@pytest.mark.parametrize("page", [*NOTEBOOKS, *PAGES], ids=lambda path: path.stem)
def test_only_chapters_that_are_planned_are_cited(page: Path) -> None:
    example = page.name == "authors.md"  # which makes a chapter 29
    cited = {int(n) for n in re.findall(r"\bchapters? \[?(\d+)\b", prose_of(page), re.I)}
    assert {n for n in cited if not 1 <= n <= CHAPTERS + example} == set()
    text = "\n".join(markdown_of(page)) if page.suffix == ".ipynb" else page.read_text("utf-8")
    linked = set(re.findall(r"\]\((?:\.\./notebooks/)?(\d\d_\w+)\.ipynb", text))
    assert linked - {path.stem for path in NOTEBOOKS} <= ({"29_padding"} if example else set())
