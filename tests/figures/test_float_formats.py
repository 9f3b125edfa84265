"""The float-format explorer: its arithmetic is torch's, and a reader can work it by mouse and keys."""

import math

import pytest
import torch

from course_utils.figures.number_formats import format_explorer
from course_utils.reference.number_formats import FORMATS

DTYPES = {
    "FP32": torch.float32,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP8 E4M3": torch.float8_e4m3fn,
    "FP8 E5M2": torch.float8_e5m2,
}
ROUND = """
([format, values]) => values.map((text) => {
  const x = StridesToShards.floats.round(format, Number(text));
  return Number.isNaN(x) ? "nan" : Object.is(x, -0) ? "-0" : x === Infinity ? "inf" : x === -Infinity ? "-inf" : x.toPrecision(17);
})
"""
DECODE = """
(format) => {
  const { e, m } = format, seen = [];
  for (let sign = 0; sign < 2; sign++)
    for (let exponent = 0; exponent < 2 ** e; exponent++)
      for (let mantissa = 0; mantissa < 2 ** m; mantissa++) {
        const x = StridesToShards.floats.decode(format, sign, exponent, mantissa);
        const again = StridesToShards.floats.encode(format, x);
        const same = again.sign === sign && again.exponent === exponent && again.mantissa === mantissa;
        seen.push([Number.isNaN(x) ? "nan" : x === Infinity ? "inf" : x === -Infinity ? "-inf" : x, same]);
      }
  return seen;
}
"""


def preset(name):
    form = next(form for form in FORMATS if form.name == name)
    return {"e": form.exponent_bits, "m": form.mantissa_bits, "fn": form.specials == "fn"}


def grid():
    """float32 numbers of every size, ties and their neighbours among them."""
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (4000,), generator=g).to(torch.int32)
    near = torch.randn(2000, generator=g) * 2.0 ** torch.randint(-30, 20, (2000,), generator=g)
    few = torch.randint(0, 64, (2000,), generator=g) * 2.0 ** torch.randint(
        -28, 14, (2000,), generator=g
    )
    named = [
        0.0,
        -0.0,
        65504,
        65519,
        65520,
        448,
        464,
        465,
        1000,
        57344,
        61439,
        61440,
        1e-8,
        math.inf,
    ]
    x = torch.cat([bits.view(torch.float32), near, few, torch.tensor(named)])
    return torch.cat([x, -x])[~torch.cat([x, x]).isnan()]


@pytest.fixture(scope="module")
def values():
    return grid()


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_is_that_of_torch(open_page, values, name):
    dtype = DTYPES[name]
    x = values
    if name == "FP8 E4M3":  # how a cast overflows has changed between versions of torch
        want = x.clamp(-448, 448).to(dtype).float()
    else:
        want = x.to(dtype).float()
    page = open_page(format_explorer().html()).page
    got = page.evaluate(
        ROUND,
        [
            preset(name),
            [
                repr(v) if math.isfinite(v) else ("Infinity" if v > 0 else "-Infinity")
                for v in x.double().tolist()
            ],
        ],
    )
    numbers = torch.tensor([float(v) for v in got], dtype=torch.float64)
    assert torch.equal(numbers, want.double())
    assert torch.equal(numbers.signbit(), want.signbit())
    assert int(want.isfinite().sum()) > 1000 and int((want == 0).sum()) > 2


@pytest.mark.parametrize("name", ["FP16", "BF16", "FP8 E4M3", "FP8 E5M2"])
def test_every_bit_pattern_is_that_of_torch(open_page, name):
    dtype = DTYPES[name]
    size = 8 * torch.empty(0, dtype=dtype).element_size()
    kind = torch.uint8 if size == 8 else torch.int16
    patterns = torch.arange(2**size).to(torch.int32)
    want = patterns.to(kind).view(dtype).double()
    got = open_page(format_explorer().html()).page.evaluate(DECODE, preset(name))
    numbers = torch.tensor([float(v) for v, _ in got], dtype=torch.float64)
    assert torch.equal(numbers.nan_to_num(1.5), want.nan_to_num(1.5))
    assert torch.equal(numbers.isnan(), want.isnan())
    finite = want.isfinite().tolist()
    assert all(same for (_, same), ok in zip(got, finite, strict=True) if ok)


@pytest.mark.parametrize("name", DTYPES)
def test_limits_are_those_of_torch(open_page, name):
    info = torch.finfo(DTYPES[name])
    page = open_page(format_explorer().html()).page
    got = page.evaluate("(f) => StridesToShards.floats.limits(f)", preset(name))
    assert (got["max"], got["normal"], got["eps"]) == (info.max, info.smallest_normal, info.eps)
    assert got["bits"] == info.bits


def test_tf32_has_the_range_of_float32(open_page):
    page = open_page(format_explorer().html()).page
    got = page.evaluate("(f) => StridesToShards.floats.limits(f)", preset("TF32"))
    assert (got["bits"], got["eps"], got["normal"]) == (19, 2**-10, torch.finfo(torch.float32).tiny)
    assert got["max"] == 2.0**127 * (2 - 2**-10)


def test_a_reader_rounds_flips_and_slides(open_page):
    visit = open_page(format_explorer(0.1, "BF16").html())
    page = visit.page
    value = page.locator(".value")
    assert value.text_content() == "0.100097656"
    page.get_by_role("button", name="FP16", exact=True).click()
    page.get_by_label("A number to round").fill("65520")
    page.get_by_label("A number to round").press("Enter")
    assert value.text_content() == "inf"
    page.get_by_role("button", name="65520", exact=True).click()
    page.get_by_role("button", name="FP8 E4M3", exact=True).click()
    assert value.text_content() == "448"
    page.get_by_role(
        "button", name="exponent bit 3", exact=True
    ).click()  # takes 8 off the exponent
    assert value.text_content() == "1.75"
    assert (
        page.evaluate(
            "document.querySelector('[data-s2s-figure]').shadowRoot.activeElement.dataset.bit"
        )
        == "exponent3"
    )
    page.get_by_role("button", name="sign bit", exact=True).press("Enter")
    assert value.text_content() == "-1.75"
    page.get_by_label("Mantissa bits").fill("1")
    assert page.locator(".bit.mantissa").count() == 1
    assert value.text_content() == "-2"  # a tie between -1.5 and -2: to even
    page.get_by_label("A number to round").fill("three")
    page.get_by_label("A number to round").press("Enter")
    assert "is no number" in page.locator(".problem").text_content()
    visit.check()
    assert len(visit.own) == 1
