"""The ring figure: its steps are the book's, its bytes those of the reference, and keys work it."""

import pytest
import torch

from course_utils.figures.process_groups import ELEMENTS, ITEMSIZE, ring_all_reduce
from course_utils.reference.process_groups import ring_schedule

WORLDS = range(2, 9)


def partial_sums(n, done):
    """Who has whose chunk after so many steps, by running the schedule on sets."""
    has = [[{r} for _ in range(n)] for r in range(n)]
    for phase, sends in ring_schedule(n)[:done]:
        before = [list(row) for row in has]
        for r, c in enumerate(sends):
            kept = before[(r + 1) % n][c] if phase == "reduce-scatter" else set()
            has[(r + 1) % n][c] = kept | before[r][c]
    return [[sorted(cell) for cell in row] for row in has]


@pytest.fixture
def page(open_page):
    return open_page(ring_all_reduce(4).html()).page


def test_steps_and_partial_sums_are_those_of_the_reference(page):
    for n in WORLDS:
        got = page.evaluate("(n) => StridesToShards.ring.schedule(n)", n)
        assert [(step["phase"], step["sends"]) for step in got] == ring_schedule(n)
        for done in range(2 * (n - 1) + 1):
            has = page.evaluate("([n, k]) => StridesToShards.ring.state(n, k)", [n, done])
            assert has == partial_sums(n, done)
        assert all(cell == list(range(n)) for row in has for cell in row)


@pytest.mark.parametrize("elements", [0, 1, 5, 16, ELEMENTS])
def test_bytes_are_those_of_the_chunks(page, elements):
    for n in WORLDS:
        sizes = [len(chunk) for chunk in torch.zeros(elements).tensor_split(n)]
        assert (
            page.evaluate("([n, e]) => StridesToShards.ring.chunks(n, e)", [n, elements]) == sizes
        )
        for done in (0, n - 1, 2 * (n - 1)):
            want = [
                sum(ITEMSIZE * sizes[sends[r]] for _, sends in ring_schedule(n)[:done])
                for r in range(n)
            ]
            ask = "([n, k, e, i]) => StridesToShards.ring.sent(n, k, e, i)"
            assert page.evaluate(ask, [n, done, elements, ITEMSIZE]) == want
        if elements % n == 0:
            assert want == [2 * (n - 1) * elements * ITEMSIZE // n] * n


def test_a_reader_steps_by_button_and_by_key(open_page):
    visit = open_page(ring_all_reduce(4).html())
    page = visit.page
    where, bill = page.locator(".where"), page.locator(".bill")
    assert where.text_content() == "Start · step 0 of 2(n − 1) = 6"
    page.get_by_role("button", name="One step forward").click()
    assert where.text_content() == "reduce-scatter · step 1 of 2(n − 1) = 6"
    assert "840 B" in bill.text_content()
    board = page.get_by_role("group", name="The ring; arrow keys step")
    board.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert where.text_content() == "all-gather · step 4 of 2(n − 1) = 6"
    page.keyboard.press("ArrowLeft")
    assert "This is a reduce-scatter." in page.locator(".what").text_content()
    page.keyboard.press("End")
    assert page.locator("svg .full").count() == 16
    assert page.get_by_role("button", name="One step forward").is_disabled()
    page.keyboard.press("Home")
    assert page.locator("svg .full").count() == 0
    page.get_by_role("button", name="7 ranks").click()
    assert where.text_content() == "Start · step 0 of 2(n − 1) = 12"
    page.get_by_role("button", name="To the end").click()
    assert bill.text_content().count("5,760 B") == 2  # 2 · 6/7 of 3,360 bytes: sent, and the total
    visit.check()


def test_it_plays_and_pauses(open_page):
    visit = open_page(ring_all_reduce(2).html())
    page = visit.page
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "document.querySelector('[data-s2s-figure]').shadowRoot"
        ".querySelector('.where').textContent.includes('step 2 of')",
        timeout=60_000,
    )
    assert page.get_by_role("button", name="Play").is_visible()  # at the end it has stopped
    visit.check()


@pytest.mark.parametrize("n", [2, 8])
def test_it_fits_a_phone(open_page, n):
    open_page(ring_all_reduce(n).html(), width=390, height=800).check()


def test_the_account_in_words_is_exact():
    for n in WORLDS:
        lines = str(ring_all_reduce(n)).splitlines()
        for line, (phase, sends) in zip(lines[2:-1], ring_schedule(n), strict=True):
            assert f", {phase}: " in line
            assert all(f"rank {r} sends chunk {c}" in line for r, c in enumerate(sends))
    assert "Each rank sends 5,040 bytes: 2(n-1)/n of 3,360." in str(ring_all_reduce(4))
    for n in (1, 9):
        with pytest.raises(ValueError, match="2 to 8 ranks"):
            ring_all_reduce(n)
