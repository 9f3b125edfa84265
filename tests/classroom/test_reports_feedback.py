"""The student's page: all that the student should know, nothing of a hidden case, and no script."""

from dataclasses import replace
from datetime import timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe

from course_utils.authoring.counts import count
from course_utils.classroom.marks.marking import DEFINITION, WORTH
from course_utils.classroom.marks.plan import Late
from course_utils.classroom.marks.record import (
    DAMAGED,
    FAILED,
    INSIDE,
    NOT_ATTEMPTED,
    Record,
    Result,
    Rung,
)
from course_utils.classroom.marks.told import GENERAL
from course_utils.classroom.reports.feedback import as_html
from course_utils.classroom.reports.sections import sections_of
from course_utils.grading.judging.ladder import LADDER as RUNGS
from tests.browser import screenshot
from tests.classroom.html_read import harmless
from tests.classroom.synthetic_class import (
    DUE,
    HOSTILE,
    KEYS,
    LADDER,
    SCRIPTS,
    WITNESS,
    damaged,
    failed,
    passed,
    plan_of,
    record_of,
)

PLAN = plan_of()


def page_of(record, plan=PLAN, **options):
    return harmless(as_html(plan, record, **options))


# ------------------------------------------------------------------------------ what it says


def test_verdicts_points_and_reasons():
    page = page_of(record_of("ada", passed(KEYS[0], 1.0), failed(KEYS[1], 2.0)))
    assert "2 of 7 points" in page.text and "1 of 4 exercises passed" in page.text
    assert "✓ passed · 51 checks" in page.text
    assert "✗ failed at rung 3 of 4, random cases · 27 of 51 checks passed" in page.text
    assert "1 of 2 points, for what passed below the rung that failed, and on it." in page.text
    assert GENERAL["random cases"] in page.text
    assert page.text.count("There is no such cell") == 2
    assert page.table("Points of each exercise").column("points") == ["1", "1", "0", "0"]


def test_each_rung_of_the_ladder():
    page = page_of(record_of("ada", failed(KEYS[0], 1.0, "random cases")))
    ladder = page.table(f"The ladder of {KEYS[0]}")
    assert ladder.column("rung") == list(LADDER)
    assert ladder.column("result") == ["✓ passed", "✓ passed", "✗ failed", "○ not reached"]
    assert ladder.column("checks passed") == ["3", "4", "20", "–"]
    assert ladder.column("of") == ["3", "4", "40", "4"]


def test_every_rung_that_there_is_has_a_sentence():
    assert set(GENERAL) == set(RUNGS)
    assert len(set(GENERAL.values())) == len(GENERAL)


def test_the_diagnosis_and_the_section_of_the_book():
    record = record_of("ada", failed(KEYS[0], diagnosis="You left the `offset` out."))
    page = page_of(record, sections=sections_of(PLAN.keys))
    assert "What happened: You left the offset out." in page.text
    assert "Address of an element" in page.text
    assert "In the book: 2 · Strides, section “Where is an element?”." in page.text
    linked = sections_of(PLAN.keys, site="https://course.test/")
    assert '"https://course.test/notebooks/02_strides.html#exercise-strides.flat_index"' in as_html(
        PLAN, record, linked
    )


def test_a_late_submission_is_told_what_it_lost_and_why():
    late = record_of("ada", passed(KEYS[2], 3.0), penalty=0.2, submitted=DUE + timedelta(hours=2))
    said = page_of(late).text
    assert "2.4 of 7 points" in said
    assert "Handed in 2026-11-20 20:00 CET (late; due 2026-11-20 18:00 CET)" in said
    assert "you lost 20\u202f% of the 3 points" in said
    assert "20\u202f% for each day begun after 10 minutes of grace, 60\u202f% at most" in said
    in_time = page_of(replace(late, penalty=0.0, submitted=DUE)).text
    assert "(in time;" in in_time and "lost" not in in_time


def test_when_nothing_counts_any_more_is_said():
    closed = plan_of(late=Late(closes_after_days=3))
    late = record_of("ada", passed(KEYS[2], 3.0), penalty=1.0, submitted=DUE + timedelta(days=5))
    assert (
        "you lost 100\u202f% of the 3 points that your answers earned; after 3 days nothing counts"
        in (page_of(late, closed).text)
    )


def test_the_weaker_guarantee_is_named_where_it_holds_and_explained_once():
    results = [replace(passed(key), guarantee=INSIDE) for key in KEYS[:2]]
    said = page_of(record_of("ada", *results, passed(KEYS[2], 3.0))).text
    assert said.count("Contracts: the weaker guarantee") == 2
    assert said.count("counted by code beside your answer") == 1
    stub = Result(KEYS[0], NOT_ATTEMPTED, 0.0, 1.0, guarantee=INSIDE)
    assert "weaker guarantee" not in page_of(record_of("ada", stub, passed(KEYS[1], 2.0))).text


def test_the_ladder_of_what_passed_is_folded():
    page = page_of(record_of("ada", passed(KEYS[0]), failed(KEYS[1], 2.0)))
    assert page.tags.count("details") == 1 and "51 checks on 4 rungs" in page.text
    assert page.table(f"The ladder of {KEYS[0]}").column("result") == ["✓ passed"] * 4


def test_not_attempted_and_damaged():
    stub = Result(KEYS[0], NOT_ATTEMPTED, 0.0, 1.0)
    assert "the stub as it was handed out" in page_of(record_of("ada", stub)).text
    said = page_of(damaged("ada", "the JSON ends in the middle")).text
    assert "Your submission could not be read: the JSON ends in the middle." in said
    assert "What was found: answers.ipynb." in said and "no such cell" not in said
    assert "0 of 7 points" in said
    part = replace(record_of("ada", passed(KEYS[0])), problem="b.ipynb: no notebook.")
    assert "Your submission could be read only in part: b.ipynb: no notebook." in page_of(part).text


def test_an_answer_that_fails_before_any_check_says_why():
    rungs = tuple(Rung(name, 0, total) for name, total in LADDER.items())
    said = "code cell 3, line 2: invalid syntax"
    result = Result(KEYS[0], FAILED, 0.0, 1.0, rungs, DEFINITION, said)
    page = page_of(record_of("ada", result))
    assert said in page.text and "✗ failed at definition · 0 of 51 checks passed" in page.text


def test_a_complaint_about_parameters_is_shown_and_one_about_a_hidden_call_is_not():
    said = "`flat_index` takes (index, stride); yours takes (index)"
    result = replace(failed(KEYS[0], 1.0, "signature and shape"), sentence=said, notes=())
    assert "yours takes (index)" not in page_of(record_of("ada", result)).text
    assert (
        "yours takes (index)"
        in page_of(record_of("ada", replace(result, called="", hand=True))).text
    )


def test_the_rule_by_which_points_are_earned_is_told():
    said = page_of(record_of("ada")).text
    assert all(f"{name} {worth}" in said for name, worth in WORTH.items())


# ------------------------------------------------------------------------------ what it keeps


@pytest.mark.parametrize("rung", LADDER)
def test_a_hidden_failure_leaves_no_trace_of_its_values(rung):
    """The page of a failing check that is not worked by hand does not depend on what it saw."""
    result = failed(KEYS[0], 1.0, rung)
    other = replace(result, sentence="another", called="g(1, 2, 3)", notes=("a", "b"), seconds=4.0)
    page = as_html(PLAN, record_of("ada", result))
    assert page == as_html(PLAN, record_of("ada", other))
    assert WITNESS not in page
    count("hidden values kept from a page")


def test_a_check_worked_by_hand_shows_its_call_and_what_came():
    said = page_of(record_of("ada", failed(KEYS[0], 1.0, "worked by hand", hand=True))).text
    assert f"f({WITNESS})" in said and f"expected 7; came {WITNESS}" in said


def test_what_a_student_may_make_the_page_say_is_bounded():
    long = failed(KEYS[0], 1.0, "worked by hand", hand=True)
    long = replace(long, sentence="s" * 10**6, called="c" * 10**6)
    assert len(as_html(PLAN, record_of("n" * 10**6, long))) < 40_000


# ------------------------------------------------------------------------------ what it escapes


@pytest.mark.parametrize("text", [*HOSTILE, *SCRIPTS], ids=range(len(HOSTILE) + len(SCRIPTS)))
def test_students_text_never_becomes_markup(text):
    result = Result(
        KEYS[0],
        FAILED,
        0.0,
        1.0,
        (Rung("worked by hand", 0, 1),),
        failed_rung="worked by hand",
        sentence=text,
        called=text,
        hand=True,
        diagnosis=text,
        notes=(text,),
    )
    record = Record(
        text, DAMAGED, (result,), files=(text,), digest="0" * 64, problem=text, isolation=text
    )
    page = page_of(record, plan=replace(PLAN, title=text or "-"))
    plain = page_of(
        record_of("ada", replace(result, sentence="x", called="x", diagnosis="x", notes=("x",)))
    )
    assert set(page.tags) - set(plain.tags) <= {"code", "div", "p", "b", "bdi"}
    if "<" in text:
        assert text in page.text  # it is read as it was written
    count("hostile texts on a page, harmless")


def test_backticks_make_code_and_nothing_else():
    result = failed(KEYS[0], diagnosis="`<b>` is `a` lone `")
    page = page_of(record_of("ada", result))
    assert "<b> is a lone" in page.text or "`<b>` is `a` lone `" in page.text
    result = failed(KEYS[0], diagnosis="use `<b>` here")
    assert "<code>&lt;b&gt;</code>" in as_html(PLAN, record_of("ada", result))


# ------------------------------------------------------------------------------ in a browser


@pytest.mark.parametrize("look", ["narrow", "dark"])
def test_the_page_in_a_browser(open_page, look):
    inside = replace(failed(KEYS[0], 1.0, diagnosis="You left `offset` out."), guarantee=INSIDE)
    by_hand = replace(
        failed(KEYS[1], 2.0, "worked by hand", hand=True), called="f(" + "1, " * 80 + ")"
    )
    late = record_of(
        "<script>document.title='taken'</script>",
        *(inside, by_hand, passed(KEYS[2], 3.0)),
        penalty=0.2,
        submitted=DUE + timedelta(hours=2),
        files=("a" * 90 + ".ipynb",),
        problem="a second notebook was ignored",
        digest="ab" * 32,
    )
    html = as_html(PLAN, late, sections_of(PLAN.keys))
    visit = open_page(html, dark=look == "dark", width=390 if look == "narrow" else 1000)
    visit.page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    visit.check()
    assert visit.own == ["http://course.test/"]
    assert visit.page.title() == "Feedback: Strides & views"
    assert visit.page.get_by_text("document.title='taken'").count() == 1
    results = Axe().run(visit.page)
    assert not results.violations_count, results.generate_report()
    screenshot(visit.page, f"feedback-{look}")
