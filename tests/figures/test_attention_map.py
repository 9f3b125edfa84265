"""The attention map: its weights are torch's, with and without mask and scale, and keys work it."""

import math

import pytest
import torch

from course_utils.figures.attention_map import DIGITS, attention_map, causal_weights

TEXT = "def f(x):\n"
WIDTH = 16


def scores(seed=0, blocks=2, heads=4, size=4.0):
    generator = torch.Generator().manual_seed(seed)
    T = len(TEXT)
    return size * torch.randn(blocks, heads, T, T, generator=generator)


@pytest.fixture
def shown(open_page):
    return lambda **size: open_page(attention_map(scores(), TEXT, WIDTH).html(), **size)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_weights_and_figures_are_torchs(shown, scaled, causal):
    page = shown().page
    given = scores(1, 1, 1, size=30.0)[0, 0].double()
    got = page.evaluate(
        "([s, d, o]) => StridesToShards.attention.map(s, d, o)",
        [given.tolist(), WIDTH, {"scaled": scaled, "causal": causal}],
    )
    logits = given / math.sqrt(WIDTH) if scaled else given
    if causal:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -math.inf)
    want = logits.softmax(-1)
    torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), want, rtol=1e-12, atol=1e-15)
    if scaled and causal:
        torch.testing.assert_close(want, causal_weights(given, WIDTH))
    keys = torch.arange(len(TEXT))
    for query, row in enumerate(want):
        ask = "([r, q]) => { const A = StridesToShards.attention; return [A.entropy(r), A.reach(r, q), A.ahead(r, q)]; }"
        entropy, reach, ahead = page.evaluate(ask, [row.tolist(), query])
        assert entropy == pytest.approx(
            torch.special.entr(row).sum().item() / math.log(2), abs=1e-9
        )
        assert reach == pytest.approx((row * (query - keys)).sum().item(), abs=1e-9)
        assert ahead == pytest.approx(row[query + 1 :].sum().item(), abs=1e-12)


def test_what_is_shown_is_what_was_given(shown):
    page = shown().page
    data = page.evaluate(
        "() => JSON.parse(document.querySelector('[data-s2s-figure] script').textContent).scores"
    )
    assert (torch.tensor(data) - scores()).abs().max() <= 0.5001 * 10**-DIGITS


def test_a_reader_chooses_head_and_position(shown):
    visit = shown()
    page = visit.page
    weights = causal_weights(scores().double(), WIDTH)
    verdict, facts = page.locator(".verdict"), page.locator(".facts")
    assert "Nothing lies right of the diagonal" in verdict.text_content()
    page.get_by_role("button", name="Block 1, head 2").click()
    page.locator("[data-position='4']").click()
    top = weights[1, 2, 4].argmax().item()
    assert f" at {top}: {100 * weights[1, 2, 4, top]:.0f} %" in facts.text_content()
    page.keyboard.press("ArrowLeft")
    assert page.locator("[data-position='3']").get_attribute("aria-pressed") == "true"
    page.keyboard.press("Home")
    assert " at 0: 100 %" in facts.text_content()  # the first position has nothing but itself
    page.get_by_role("button", name="causal mask").click()
    raw = (scores().double() / math.sqrt(WIDTH)).softmax(-1)[1, 2, 0]
    later = raw[1:].sum().item()
    assert verdict.text_content().startswith(f"{100 * later:.0f} % of this row")
    page.get_by_role("button", name="causal mask").click()
    page.get_by_role("button", name="÷ √d").click()
    assert "√d times as large" in verdict.text_content()
    page.locator("canvas.large").click(position={"x": 5, "y": 5})
    assert page.locator("[data-position='0']").get_attribute("aria-pressed") == "true"
    visit.check()


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(shown, dark):
    shown(width=390, height=800, dark=dark).check()


def test_the_account_and_the_limits():
    text = str(attention_map(scores(), TEXT, WIDTH))
    assert text.count("block") == 8 and repr(TEXT) in text
    with pytest.raises(ValueError, match="as many of both"):
        attention_map(scores(), TEXT[:-1], WIDTH)
    with pytest.raises(ValueError, match="at most 40"):
        attention_map(torch.zeros(1, 1, 41, 41), "x" * 41, WIDTH)
