"""What pages say of chapters and exercises is what the notebooks and their authors declare."""

import re
import sys
from html import unescape
from pathlib import Path

import pytest
import site_links as links
from IPython.lib.lexers import IPython3Lexer
from playwright.sync_api import Browser
from pygments import highlight
from pygments.formatters import HtmlFormatter
from site_build import ROOT, code, markdown
from site_visit import visiting
from test_pages import NOTEBOOKS, PAGES, exercises_of

from course_utils.authoring.counts import count
from course_utils.grading import find

sys.path.append(str(ROOT / "book" / "_ext"))
from course_book import chapters, heads
from course_book.code import lines_of

PARTS = [page for page in PAGES if page.startswith("book/parts/")]
FIRST = """# 2 · Strides

A promise.

**You will be able to**

- do *this*;
- do that.

**You need** [chapter 1](01_tensors.ipynb), what chapter 6 says, chapters 16 and 17. **Time**: about \
three hours with all nine exercises, best in two sittings; no GPU."""


def made(*cells: dict) -> chapters.Chapter:
    found = chapters.chapter_of([markdown(FIRST), *cells], ROOT / "notebooks" / "02_strides.ipynb")
    assert found is not None
    return found


# What is read from a notebook


def test_a_first_cell_is_taken_apart() -> None:
    chapter = made()
    assert (chapter.title, chapter.number, chapter.promise) == ("2 · Strides", 2, "A promise.")
    assert chapter.objectives == "- do *this*;\n- do that."
    assert chapter.remarks == "Best in two sittings; no GPU."


def test_chapters_that_are_named_and_exist_are_linked() -> None:
    assert made().needs == (
        "[chapter 1](01_tensors.ipynb), what [chapter 6](06_autograd.ipynb) says, "
        "chapters [16](16_process_groups.ipynb) and [17](17_ddp.ipynb)."
    )
    elsewhere = chapters.linked("chapter 99 and 2 tensors", ROOT / "notebooks" / "x.ipynb")
    assert elsewhere == "chapter 99 and 2 tensors"


def test_another_first_cell_is_no_chapter() -> None:
    assert chapters.chapter_of([markdown("# Title\n\nText.")], Path("02_x.ipynb")) is None
    assert chapters.chapter_of([], Path("02_x.ipynb")) is None


def test_time_is_prose_and_cells_and_the_exercises_minutes() -> None:
    prose = markdown("word " * 1500)
    cells = [code("1")] * 40
    setup = code("2", tags=["setup"])
    stub = code("3", exercise="strides.flat_index")
    lead = markdown("> **Exercise 2.1 (flat_index), ★☆☆, 5 min.** Go.")
    chapter = made(prose, setup, *cells, lead, stub)
    assert chapter.reading == 40  # 1,500 words and the head's at 150 a minute; 40 cells at 45 s
    assert chapter.doing == find("strides.flat_index").minutes
    assert chapters.duration(chapter.minutes) == "45 min"
    assert [chapters.duration(n) for n in (0, 60, 135)] == ["0 min", "1 h", "2 h 15 min"]


def test_tags_and_magics_say_what_runs_where() -> None:
    chapter = made(code("%%ranks 4\nx"), code("%%ranks\nx"), code("print()", tags=["gpu"]))
    assert (chapter.ranks, chapter.ranks_cells, chapter.gpu, chapter.recorded) == (4, 2, 1, 0)


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_every_notebook_is_a_chapter(page: str) -> None:
    chapter = chapters.chapter_at(ROOT / f"{page}.ipynb")
    assert chapter is not None
    assert [task.key for task in chapter.tasks] == exercises_of(page)
    for task in chapter.tasks:
        assert (task.minutes, task.points) == (find(task.key).minutes, find(task.key).points)


def test_the_stamp_says_what_the_run_said() -> None:
    found = {"torch": "9.9", "python": "3.99", "gpu": "", "machine": "Linux x", "cores": 3}
    said = heads.sentence(found, {"mtime": 0.0, "runtime": 12.4})
    assert said.startswith("1970-01-01, from top to bottom in 12 s: torch 9.9 on CPU, 3 cores")
    assert "MADE-UP GPU" in heads.sentence(
        found | {"gpu": "MADE-UP GPU"}, {"mtime": 0, "runtime": 1}
    )


# The pages


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_a_chapters_head(html: Path, page: str) -> None:
    text = (html / f"{page}.html").read_text(encoding="utf-8")
    head = text[text.index("course-head") :].partition("</dl>")[0]
    assert re.findall(r"<dt>([^<]+)", head) == [
        "You will be able to",
        "You need",
        "Time",
        "Runs on",
        "Last run",
    ]
    stamp = re.search(r"\d{4}-\d\d-\d\d, from top to bottom in \d+ s: torch (\S+) on ", head)
    assert stamp, head[-500:]
    assert "course-stamp" not in text.replace("course-stamp-said", "")


def test_every_chapter_is_on_its_part_and_every_exercise_on_the_list(html: Path) -> None:
    parts = [links.read(html / f"{page}.html") for page in PARTS]
    listed = {Path(link).stem for part in parts for link in part.links if "notebooks/" in link}
    assert {f"notebooks/{name}" for name in listed} >= set(NOTEBOOKS)
    keys = [key for page in NOTEBOOKS for key in exercises_of(page)]
    table = links.read(html / "book" / "exercises.html").links
    assert [link.partition("#exercise-")[2] for link in table if "#exercise-" in link] == keys


def test_the_filter_of_the_exercises(site: str, browser: Browser) -> None:
    total = sum(len(exercises_of(page)) for page in NOTEBOOKS)
    with visiting(browser, site, "book/exercises.html") as visit:
        page = visit.page
        said, shown = page.locator(".course-filter output"), page.locator("tbody tr:visible")
        assert said.inner_text().startswith(f"{total} of {total}")
        page.get_by_role("searchbox", name="Name, chapter or check").fill("strides")
        of_strides = exercises_of("notebooks/02_strides")
        assert shown.count() == len(of_strides)
        page.get_by_role("combobox", name="Difficulty").select_option("3")
        hard = [key for key in of_strides if find(key).difficulty == 3]
        assert shown.count() == len(hard)
        assert said.inner_text().startswith(f"{len(hard)} of {total}, ")
        assert visit.errors == []
        count("browser checks", 4)


@pytest.mark.parametrize("part", PARTS)
def test_previous_and_next_pass_through_the_part(html: Path, part: str) -> None:
    at = PAGES.index(part)
    found = (html / f"{part}.html").read_text(encoding="utf-8")
    buttons = re.findall(r'class="(left-prev|right-next)"\s+href="([^"]+)"', found)
    ways = {kind: Path(part).parent / address for kind, address in buttons}
    around = {"left-prev": PAGES[at - 1], "right-next": PAGES[at + 1]}
    resolved = {
        kind: (html / way).resolve().relative_to(html.resolve()) for kind, way in ways.items()
    }
    assert {kind: str(way) for kind, way in resolved.items()} == {
        kind: f"{page}.html" for kind, page in around.items()
    }


# Search


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("as_strided", "notebooks/02_strides"),
        ("flat_index", "notebooks/02_strides"),
        ("strides.flat_index", "notebooks/02_strides"),
        ("torch.nn.LayerNorm", "notebooks/08_modules"),
        ("ring_all_reduce", "notebooks/16_process_groups"),
        ("process_groups", "notebooks/16_process_groups"),
        ("LoRALinear", "notebooks/26_lora"),
    ],
)
def test_search_finds_symbols_first(site: str, browser: Browser, query: str, page: str) -> None:
    with visiting(browser, site, f"search.html?q={query}") as visit:
        results = visit.page.locator("#search-results li a")
        results.first.wait_for()
        visit.page.get_by_text("Search finished").wait_for()
        assert f"{page}.html" in (results.first.get_attribute("href") or "")
        assert visit.errors == []
        count("browser checks")


# Code


def test_the_body_of_a_ranks_cell_is_coloured() -> None:
    assert '<span class="k">def</span>' in lines_of("%%ranks 4\ndef f():\n    pass")
    plain = highlight("%%ranks 4\ndef f():\n    pass", IPython3Lexer(), HtmlFormatter())
    assert '<span class="k">def</span>' not in plain, "IPython's own lexer will do"


def test_a_stubs_lines_keep_their_source_and_their_indent() -> None:
    source = 'def f(x):\n    """One.\n\n    Two & three.\n    """\n    raise ValueError("x < 3")'
    shown = lines_of(source)
    assert re.findall(r"--indent:(\d+)ch", shown) == ["0", "4", "0", "4", "4", "4"]
    assert unescape(re.sub(r"<[^>]*>", "", shown)).rstrip("\n") == source
