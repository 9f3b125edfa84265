"""The broadcast explorer: its rules are torch's, and what is typed is answered."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_utils.figures.broadcasting_and_named_axes import EXAMPLES, broadcast_explorer
from course_utils.grading import draws

SHAPES = st.lists(draws.shapes(max_dims=4, among=(0, 1, 2, 3)), min_size=2, max_size=3)


@pytest.fixture
def shown(open_page):
    return lambda *shapes, **size: open_page(broadcast_explorer(*shapes).html(), **size)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(several=st.lists(SHAPES, min_size=5, max_size=5))
def test_alignment_and_strides_are_torchs(open_page_once, several):
    for shapes in several:
        found = open_page_once.evaluate("s => StridesToShards.broadcast.align(s)", shapes)
        try:
            views = torch.broadcast_tensors(*map(torch.empty, shapes))
        except RuntimeError:
            assert not found["fits"]
            continue
        assert found["fits"] and tuple(found["result"]) == views[0].shape
        for view, strides in zip(views, found["steps"], strict=True):
            if view.numel():
                used = [n > 1 for n in view.shape]
                theirs = [s for s, u in zip(view.stride(), used, strict=True) if u]
                assert [s for s, u in zip(strides, used, strict=True) if u] == theirs


@pytest.fixture
def open_page_once(shown):
    return shown((2, 3), (3,)).page


def typed(page, name, text):
    page.locator(f'[data-shape="{name}"]').fill(text)
    return page.locator(".verdict").inner_text()


def test_what_is_typed_is_answered(shown):
    page = shown((4, 1, 3), (5, 1)).page
    assert "(4, 5, 3): 60 elements" in page.locator(".verdict").inner_text()
    assert "Axis -1: the sizes 3 and 2" in typed(page, "b", "2")
    assert page.locator("td.clash").count() == 3  # both sizes, and the result
    assert "up to 6 sizes" in typed(page, "b", "2, x")
    assert page.locator('[data-shape="b"]').get_attribute("aria-invalid") == "true"
    assert "(4, 1, 3): 12 elements" in typed(page, "b", "()")
    assert "(2, 4, 1, 3)" in typed(page, "c", "2, 1, 1, 1")


@pytest.mark.parametrize("label", EXAMPLES)
def test_examples(shown, label):
    page = shown((1,), (1,)).page
    page.get_by_role("button", name=label).click()
    try:
        result = str(tuple(torch.broadcast_shapes(*EXAMPLES[label])))
    except RuntimeError:
        result = "do not go together"
    assert result in page.locator(".verdict").inner_text()


def test_the_account_says_the_result():
    assert "→ (4, 5, 3)" in repr(broadcast_explorer((4, 1, 3), (5, 1)))
    assert "error: axis -1" in repr(broadcast_explorer((2, 3), (2,)))
    with pytest.raises(ValueError, match="two or three"):
        broadcast_explorer((1,))
