"""What pages say of chapters and exercises is what the notebooks and their authors declare."""

import math
import re
import sys
from html import unescape
from pathlib import Path

import pytest
import site_links as links
from IPython.lib.lexers import IPython3Lexer
from playwright.sync_api import Browser, Locator
from pygments import highlight
from pygments.formatters import HtmlFormatter
from site_build import ROOT, code, markdown
from site_visit import visiting
from test_pages import NOTEBOOKS, PAGES, exercises_of

from course_utils.authoring import needs
from course_utils.authoring.counts import count
from course_utils.grading import every, find

sys.path.append(str(ROOT / "book" / "_ext"))
from course_book import chapters, engine, graph, heads
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
    linked = [link.partition("#exercise-")[2] for link in table if "#exercise-" in link]
    assert [*dict.fromkeys(linked)] == keys  # later rows also link to what they build on


def test_an_exercise_builds_on_earlier_ones_that_its_solution_uses() -> None:
    found = engine.built_on()
    assert [*found] == [*every()]
    assert found["ddp.DistributedDataParallel"] == (
        "ddp.broadcast_parameters",
        "ddp.GradientBuckets",
    )
    assert found["gpt2.Block"] == ("gpt2.MLP", "gpt2.CausalSelfAttention")
    assert found["strides.flat_index"] == ()


def test_the_table_says_what_an_exercise_builds_on(html: Path) -> None:
    text = (html / "book" / "exercises.html").read_text(encoding="utf-8")
    rows = {row.split("#exercise-", 1)[1].split('"')[0]: row for row in text.split("<tr")[2:]}
    assert len(rows) == sum(len(exercises_of(page)) for page in NOTEBOOKS)
    for key, row in rows.items():
        others = [other for other in engine.built_on()[key] if other in rows]
        assert ("builds on" in row) == bool(others), key
        assert all(f'#exercise-{other}"' in row for other in others), key


def test_the_filter_of_the_exercises(site: str, browser: Browser) -> None:
    keys = [key for page in NOTEBOOKS for key in exercises_of(page)]
    of_strides = exercises_of("notebooks/02_strides")
    with visiting(browser, site, "book/exercises.html") as visit:
        page = visit.page
        said, rows = page.locator(".course-filter output"), page.locator("tbody tr:visible")
        names = ("Chapter", "Difficulty", "Minutes", "Checked besides values")
        choose = {name: page.get_by_role("combobox", name=name) for name in names}
        words = page.get_by_role("searchbox", name="Name, chapter or check")

        def shown() -> int:
            number = rows.count()
            assert said.inner_text().startswith(f"{number} of {len(keys)}, ")
            return number

        assert shown() == len(keys)
        words.fill("strides")
        assert shown() == len(of_strides)
        choose["Difficulty"].select_option("3")
        assert shown() == sum(find(key).difficulty == 3 for key in of_strides)

        # The rest with the keyboard alone.
        page.get_by_role("button", name="Show all").press("Enter")
        page.wait_for_function("!document.querySelector('.course-exercises tr[hidden]')")
        assert shown() == len(keys) and words.input_value() == ""
        words.press("Tab")
        page.keyboard.press("ArrowDown")
        assert choose["Chapter"].input_value().startswith("1 · ")
        assert shown() == len(exercises_of(NOTEBOOKS[0]))
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowDown")
        assert choose["Minutes"].input_value() == "10"
        short = [key for key in keys if find(key).minutes <= 10]
        assert shown() == len(short)
        page.keyboard.press("Tab")
        for label in page.locator(".course-filter select").last.locator("option").all()[1:]:
            page.keyboard.press("ArrowDown")
            kind = label.get_attribute("value")
            assert shown() == sum(
                kind in (engine.declared(key)["kinds"] or ("nothing",)) for key in short
            )
        assert visit.errors == []
        count("browser checks", 13)


def test_every_contract_is_of_a_kind_that_the_filter_knows() -> None:
    script = (ROOT / "book" / "_static" / "exercises.js").read_text(encoding="utf-8")
    filters = set(re.findall(r'\["(\w+)", "[^"]+"\]', script)) - {"nothing"}
    declared = [engine.declared(key) for page in NOTEBOOKS for key in exercises_of(page)]
    assert {kind for one in declared for kind in one["kinds"]} == filters
    assert all(bool(one["kinds"]) == bool(one["besides"]) for one in declared)


def test_orders_for_those_in_a_hurry(html: Path) -> None:
    numbers = {int(page[10:12]): page for page in NOTEBOOKS}
    text = (html / "book" / "index.html").read_text(encoding="utf-8")
    table = text[text.index("course-orders") :].partition("</table>")[0]
    rows = table.partition("<tbody>")[2].split("</tr>")[:-1]
    source = (ROOT / "book" / "index.md").read_text(encoding="utf-8")
    lines = source.partition("{course-orders}\n")[2].partition("\n```")[0].split("\n")
    assert len(rows) == len(lines) > 3
    found = needs.read(ROOT / "notebooks", ROOT / "course_utils")
    for row, line in zip(rows, lines, strict=True):
        aim, _, goals = line.partition(": ")
        order = needs.all_before(found, map(int, goals.split(", ")))
        pages = re.findall(r'href="../(notebooks/\w+)\.html"', row)
        assert pages == [numbers[number] for number in order]
        hours = sum(chapters.chapter_at(ROOT / f"{page}.ipynb").minutes for page in pages) / 60
        assert f">{aim}<" in row and f">{round(hours)} h<" in row
        for at, number in enumerate(order):
            assert found[number].before <= set(order[:at])


def test_the_drawing_of_what_builds_on_what(html: Path) -> None:
    text = (html / "book" / "index.html").read_text(encoding="utf-8")
    drawing = text[text.index('class="course-needs"') :].partition("</svg>")[0]
    found = needs.read(ROOT / "notebooks", ROOT / "course_utils")
    direct = {number: needs.direct(found, number) for number in found}
    assert re.findall(r'href="../(notebooks/\w+)\.html"', drawing) == list(NOTEBOOKS)
    assert drawing.count("<path") == sum(map(len, direct.values())) > len(direct)
    for number, before in direct.items():
        assert not before or f"{number} builds on {', '.join(map(str, before))}" in drawing


def test_each_chapter_lies_right_of_what_it_builds_on_and_no_line_passes_another() -> None:
    found = needs.read(ROOT / "notebooks", ROOT / "course_utils")
    direct = {number: needs.direct(found, number) for number in sorted(found)}
    made = graph.layout(direct)
    assert len(set(made.places.values())) == len(direct)
    taken = set(made.places.values())
    assert made.arrows.keys() == {(one, n) for n, before in direct.items() for one in before}
    for (one, number), way in made.arrows.items():
        assert (way[0], way[-1]) == (made.places[one], made.places[number])
        assert [x for x, _ in way] == list(range(way[0][0], way[-1][0] + 1))
        assert not taken & set(way[1:-1])


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


def test_of_equally_good_pages_the_earlier_chapter_is_found_first(
    site: str, browser: Browser
) -> None:
    """A score is whole, less what only decides between equals (search_order.js)."""
    with visiting(browser, site, "search.html?q=contiguous") as visit:
        visit.page.get_by_text("Search finished").wait_for()
        found = [
            (-math.ceil(float(link.get_attribute("data-score") or "nan")), chapter_of(link))
            for link in visit.page.locator("#search-results li a[data-score]").all()
        ]
        assert len({chapter for _, chapter in found}) > 5
        assert found == sorted(found)
        count("browser checks")


def chapter_of(link: Locator) -> float:
    """Its number; of another page, more than all."""
    chapter = re.match(r"notebooks/(\d+)_", link.get_attribute("href") or "")
    return float(chapter[1]) if chapter else math.inf


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
