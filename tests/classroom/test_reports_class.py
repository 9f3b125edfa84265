"""The class report: its figures counted a second time, its edge cases, and what a browser says."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe

from course_utils.classroom.marks.record import (
    DAMAGED,
    FAILED,
    NOT_ATTEMPTED,
    NOT_JUDGED,
    PASSED,
    Record,
    Result,
)
from course_utils.classroom.reports import similarity, similarity_page
from course_utils.classroom.reports.report import as_html
from course_utils.classroom.reports.sections import sections_of
from course_utils.classroom.reports.tally import histogram
from course_utils.classroom.reports.write import write_all
from tests.browser import screenshot
from tests.classroom.html_read import harmless
from tests.classroom.synthetic_class import (
    HOSTILE,
    KEYS,
    SCRIPTS,
    damaged,
    drawn,
    failed,
    passed,
    perfect,
    plan_of,
    record_of,
)

PLAN = plan_of()


def report_of(records, plan=PLAN, **options):
    return harmless(as_html(plan, records, sections_of(plan.keys), **options))


# ------------------------------------------------------------------------------ the figures


@pytest.fixture(scope="module")
def class_of_60():
    return drawn(60, seed=7)


@pytest.fixture(scope="module")
def page(class_of_60):
    return report_of(class_of_60, wall_seconds=12.34)


def results_of(records, key):
    """What happened in one exercise, counted from the records and nothing else."""
    return [r for record in records for r in record.results if r.key == key]


def test_outcomes_by_exercise(page, class_of_60):
    table = page.table("Outcome by exercise")
    for row, key in zip(table.rows, KEYS, strict=True):
        assert row[0].startswith(key)
        outcomes = Counter(result.outcome for result in results_of(class_of_60, key))
        assert [int(n) for n in row[1:6]] == [outcomes[head] for head in table.heads[1:6]]
        earned = [r.points / r.max_points for r in results_of(class_of_60, key)]
        assert row[6] == f"{100 * sum(earned) / len(earned):.0f}\u202f%"


def test_first_failing_rungs(page, class_of_60):
    table = page.table("Failed answers by the first rung")
    for row in table.rows:
        failures = [r for r in results_of(class_of_60, row[0]) if r.outcome == FAILED]
        for rung, n in zip(table.heads[1:-1], row[1:-1], strict=True):
            assert int(n) == sum(r.failed_rung == rung for r in failures)
        assert int(row[-1]) == len(failures) == sum(map(int, row[1:-1]))


def test_known_mistakes(page, class_of_60):
    named = Counter(
        (r.key, r.diagnosis.replace("`", ""))
        for record in class_of_60
        for r in record.results
        if r.diagnosis
    )
    (table,) = [t for t in page.tables if "exactly a known mistake's results" in t.caption]
    assert {(row[0], row[1]): int(row[2]) for row in table.rows} == named
    assert [int(row[2]) for row in table.rows] == sorted(named.values(), reverse=True)


def test_most_failed_and_slowest(page, class_of_60):
    shares = []
    for key in KEYS:
        tried = [r for r in results_of(class_of_60, key) if r.outcome in (PASSED, FAILED)]
        shares.append((-sum(r.outcome == FAILED for r in tried) / len(tried), key))
    assert page.table("Most failed").column("exercise") == [key for _, key in sorted(shares)]
    slowest = page.table("Slowest to check")
    assert slowest.column("exercise")[0] == KEYS[-1]  # drawn so


def test_the_distribution_holds_every_submission(page, class_of_60):
    table = page.table("Submissions by points")
    assert sum(int(n) for n in table.column("submissions")) == 60
    for (low, high, n), said in zip(
        histogram([r.points for r in class_of_60], PLAN.points), table.rows, strict=True
    ):
        last = high == PLAN.points
        inside = [low <= r.points < high or (last and r.points == high) for r in class_of_60]
        assert n == sum(inside) == int(said[1])


@pytest.mark.parametrize("most", [0.3, 1.0, 7.0, 10.0, 33.0])
def test_a_histogram_puts_each_edge_into_the_bin_above_it(most):
    edges = [most * i / 10 for i in range(11)]
    assert [n for *_, n in histogram(edges, most)] == [1] * 9 + [2]


def test_damaged_ones_with_reasons_isolation_and_seconds(page, class_of_60):
    broken = [r.student for r in class_of_60 if r.status == DAMAGED]
    assert broken and page.table(f"{len(broken)} submission").column("student") == broken
    assert "Isolation: bubblewrap" in page.text
    total = sum(record.seconds for record in class_of_60)
    assert f"Time: {total:.1f} s in all workers together" in page.text
    assert "the run took 12.3 s" in page.text
    assert (
        "Contracts of strides.view_strides were counted by code that ran in the same" in page.text
    )


def test_what_to_teach_again_is_ranked_by_what_was_lost(page, class_of_60):
    lost = {}
    for key in KEYS:
        found = results_of(class_of_60, key)
        lost[key] = 1 - sum(r.points / r.max_points for r in found) / len(found)
    text = page.text.partition("What to teach again")[2].partition("Points\n")[0]
    order = sorted(lost, key=lambda key: -lost[key])
    places = [text.index(f"{key}.") for key in order]
    assert places == sorted(places)
    assert f"{100 * lost[order[0]]:.0f}\u202f% of its points were lost" in text
    assert "2 · Strides, section “When is a view free?”" in text


def test_a_mistake_that_few_made_is_not_called_the_reason():
    rare = [failed(KEYS[0], diagnosis="Rare." if i == 0 else None) for i in range(10)]
    page = report_of([record_of(f"s{i}", result) for i, result in enumerate(rare)])
    text = page.text.partition("What to teach again")[2].partition("Points")[0]
    assert "Rare." not in text and "Most fail first at random cases (10 of 10)" in text


def test_links_go_to_the_exercise_on_the_web_if_there_is_a_web_book():
    sections = sections_of(PLAN.keys, site="https://course.test")
    html = as_html(PLAN, [record_of("ada", failed(KEYS[0]))], sections)
    assert (
        'href="https://course.test/notebooks/02_strides.html#exercise-strides.flat_index"' in html
    )
    harmless(html)


def test_every_link_to_a_feedback_page_leads_somewhere(tmp_path):
    records = [record_of(name) for name in (*HOSTILE, *SCRIPTS)]
    write_all(tmp_path, PLAN, records)
    page = harmless((tmp_path / "report.html").read_text(encoding="utf-8"))
    links = [value for _, name, value in page.attributes if name == "href" and "/" in value]
    assert len(links) == len(records)
    assert all((tmp_path / link).is_file() for link in links)


# ------------------------------------------------------------------------------ the edges


def test_no_submission():
    page = report_of([])
    assert "No submission was graded" in page.text
    assert not page.tables and "svg" not in page.tags


def test_one_submission():
    page = report_of([record_of("ada", passed(KEYS[0], 1.0), failed(KEYS[1], 2.0))])
    assert "1 submission, 4 exercises." in page.text and "1 student" in page.text
    assert page.figures["mean points"] == page.figures["median points"] == "2 of 7"
    assert "1 of 1 submission failed" in page.text
    assert page.table("Outcome by exercise, of 1 submission that").column("failed") == list("0100")


def test_everyone_perfect():
    page = report_of(perfect(PLAN, 30))
    assert page.figures["mean points"] == "7 of 7" and page.figures["passed everything"] == "30"
    assert "Nothing: the class lost less than 5 %" in page.text
    assert "No answer failed." in page.text
    assert re.search(r"Damaged submissions\s*None\.", page.text)
    assert page.table("Submissions by points").rows[-1][1] == "30"
    assert not [table for table in page.tables if table.caption.startswith("Most failed")]
    assert set(page.table("Outcome by exercise").column("points earned")) == {"100\u202f%"}


def test_all_damaged():
    page = report_of([damaged(name, why) for name, why in zip(SCRIPTS, HOSTILE, strict=False)])
    n = min(len(SCRIPTS), len(HOSTILE))
    assert f"{n} of them could not be read" in page.text
    assert page.figures["mean points"] == "0 of 7" and page.figures["damaged"] == str(n)
    assert "No submission could be read, so nothing is known" in page.text
    assert len(page.table(f"{n} submissions").rows) == n
    assert set(page.table("Outcome by exercise").column("points earned")) == {"–"}
    assert "not say which level" not in page.text  # nothing ran


def test_nobody_attempted_anything():
    stubs = [Result(item.key, NOT_ATTEMPTED, 0.0, item.points) for item in PLAN.items]
    page = report_of([record_of(f"s{i}", *stubs) for i in range(3)])
    assert "100\u202f% of its points were lost; 3 of 3 have no answer." in page.text
    assert "No answer failed." in page.text


def test_a_damaged_one_that_was_read_in_part_counts_as_read():
    part = Record("ada", DAMAGED, (passed(KEYS[0], 1.0),), problem="cell 7 is torn")
    page = report_of([part, damaged("bob")])
    assert "2 submissions; 1 of them could be read in part" in page.text
    assert page.table("Outcome by exercise, of 1 submission").column("passed") == list("1000")


def test_a_record_without_a_level_of_isolation_says_so():
    page = report_of([replace(record_of("ada"), isolation="")])
    assert "the records do not say which level was active" in page.text


def test_an_answer_that_the_grader_failed_on_is_named():
    result = Result(KEYS[0], FAILED, 0.0, 1.0, failed_rung="definition", sentence=f"{NOT_JUDGED} X")
    page = report_of([record_of("ada", result), record_of("bob", passed(KEYS[0]))])
    assert "The grader itself failed on 1 answer" in page.text and f"ada {KEYS[0]}." in page.text
    assert "The grader itself" not in report_of([record_of("bob")]).text


def test_a_cell_that_could_not_be_run_comes_before_the_ladder():
    result = Result(KEYS[0], FAILED, 0.0, 1.0, failed_rung="definition")
    table = report_of([record_of("a", result), record_of("b", failed(KEYS[0]))]).table(
        "Failed answers"
    )
    assert table.heads == ["exercise", "definition", "random cases", "failed"]
    assert table.rows == [[KEYS[0], "1", "1", "2"]]


def test_answers_that_could_not_be_run_have_no_time_and_are_named_so():
    broken = Result(KEYS[0], FAILED, 0.0, 1.0, failed_rung="definition")
    page = report_of([record_of(f"s{i}", broken) for i in range(3)])
    assert "Most could not be run at all (3 of 3)." in page.text
    assert not [table for table in page.tables if table.caption == "Slowest to check"]
    timed = report_of([record_of("a", broken), record_of("b", passed(KEYS[0], seconds=0.25))])
    assert timed.table("Slowest to check").rows == [[KEYS[0], "250 ms", "250 ms"]]


def test_notes_are_listed_for_the_instructor():
    page = report_of(
        [replace(record_of("ada"), notes=("cell 3 was read as code",)), record_of("bob")]
    )
    assert page.table("What was read otherwise").rows == [["ada", "cell 3 was read as code"]]


def test_students_text_never_becomes_markup():
    records = []
    for i, text in enumerate(HOSTILE):
        result = failed(KEYS[0], diagnosis=text or None)
        results = (
            replace(result, sentence=text, called=text, failed_rung=text),
            passed(KEYS[1], 2.0),
        )
        records.append(
            Record(
                text + str(i),
                DAMAGED,
                results,
                (text,),
                problem=text,
                isolation=text or "none",
                notes=(text,),
            )
        )
    report_of(records, plan=replace(PLAN, title=HOSTILE[0]))


# ------------------------------------------------------------------------------ in a browser


@pytest.mark.parametrize("look", ["narrow", "dark"])
def test_the_report_in_a_browser(open_page, look):
    html = as_html(PLAN, drawn(20, seed=4), sections_of(PLAN.keys), wall_seconds=12.34)
    visit = open_page(html, dark=look == "dark", width=390 if look == "narrow" else 1000)
    visit.page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    visit.check()
    assert visit.own == ["http://course.test/"]
    results = Axe().run(visit.page)
    assert not results.violations_count, results.generate_report()
    for drawing in visit.page.locator("svg").all():
        assert (
            drawing.get_attribute("role") == "img" and drawing.locator("title, desc").count() == 2
        )
    screenshot(visit.page, f"report-{look}")


def test_the_similarity_report_in_a_browser(open_page):
    line = "    total = total * {0} + max(index[{0}], {0})\n"
    text = "def flat_index(index):\n" + "".join(line.format(n) for n in range(30))
    sources = {name: {KEYS[0]: text} for name in ("ada", "<b>bob</b>")}
    visit = open_page(similarity_page.as_html(similarity.similar(sources), "Strides"), width=390)
    visit.check()
    assert visit.page.locator("pre").count() == 2
    results = Axe().run(visit.page)
    assert not results.violations_count, results.generate_report()
    screenshot(visit.page, "similarity")
