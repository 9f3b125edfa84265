"""The float-format explorer of chapter 4: the formats in which every pattern is a number."""

import pytest
from test_float_formats import DECODE

from course_utils.figures.number_formats import format_explorer
from course_utils.reference.number_formats import FORMATS, decode_float, float_limits

FINITE = [form for form in FORMATS if form.specials == "finite"]


def as_data(form):
    return {"e": form.exponent_bits, "m": form.mantissa_bits, "fn": "all"}


@pytest.mark.parametrize("form", FINITE, ids=lambda form: form.name)
def test_every_pattern_is_the_books(open_page, form):
    page = open_page(format_explorer().html()).page
    got = page.evaluate(DECODE, as_data(form))
    split = form.exponent_bits, form.mantissa_bits, form.specials
    assert [x for x, _ in got] == [decode_float(bits, *split) for bits in range(2**form.bits)]
    assert all(same for _, same in got)
    limits = page.evaluate("(f) => StridesToShards.floats.limits(f)", as_data(form))
    wanted = float_limits(*split)
    assert (limits["max"], limits["normal"], limits["subnormal"], limits["eps"]) == wanted


def test_a_reader_rounds_to_fp4(open_page):
    visit = open_page(format_explorer(0.1, "BF16").html())
    page = visit.page
    page.get_by_role("button", name="FP4 E2M1", exact=True).click()
    assert page.locator(".value").text_content() == "0"
    page.get_by_role("button", name="5", exact=True).click()
    assert page.locator(".value").text_content() == "4"  # a tie between 4 and 6: to even
    page.get_by_label("A number to round").fill("inf")
    page.get_by_label("A number to round").press("Enter")
    assert page.locator(".value").text_content() == "6"
    visit.check()


def test_it_fits_a_phone(open_page):
    visit = open_page(format_explorer(0.1, "FP32").html(), width=390, height=800)
    visit.check()


def test_the_account_in_words_is_exact():
    text = str(format_explorer())
    assert "FP4 E2M1  1 + 2 +  1 bits: largest 6, smallest normal 1" in text
    with pytest.raises(ValueError, match="There is no format 'FP64'"):
        format_explorer(opens="FP64")
