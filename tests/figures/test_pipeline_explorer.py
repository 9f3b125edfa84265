"""The pipeline explorer: its numbers are those of the book's simulator, and a reader can set everything."""

import itertools

import pytest

from course_utils.figures.pipeline_and_3d import (
    CHOICES,
    DEFAULTS,
    NAMES,
    pipeline_explorer,
    plan_pipeline,
)

ROOT = "document.querySelector('[data-s2s-figure]').shadowRoot"
RUN = "(all) => all.map((s) => StridesToShards.pipeline.planPipeline(s))"


def test_its_numbers_are_those_of_the_simulator(open_page):
    everything = [
        {"layers": layers, "ranks": p, "microbatches": m, "hop": hop, "schedule": name}
        for layers, p, m, hop, name in itertools.product(
            (8, 30), CHOICES["ranks"], (1, 2, 3, 8, 12), (0.0, 0.25, 2.0), NAMES
        )
    ]
    got = open_page(pipeline_explorer().html()).page.evaluate(RUN, everything)
    without = 0
    for settings, seen in zip(everything, got, strict=True):
        want = plan_pipeline(**settings)
        if want is None:
            without += 1
            assert seen is None, settings
            continue
        assert seen["held"] == want["held"], settings
        assert seen["seconds"] == pytest.approx(want["seconds"]), settings
        assert seen["bubble"] == pytest.approx(want["bubble"], abs=1e-12), settings
    assert 0 < without < len(everything) / 2


def test_the_account_is_the_simulators():
    text = str(pipeline_explorer(microbatches=4))
    plan = plan_pipeline(**DEFAULTS | {"microbatches": 4})
    assert f"{plan['bubble']:.1%} waiting" in text
    assert "cannot be had" in str(pipeline_explorer(layers=8, ranks=8, schedule="interleaved"))
    with pytest.raises(ValueError, match="unknown"):
        pipeline_explorer(colour="red")


def test_a_pill_changes_the_plan(open_page):
    page = open_page(pipeline_explorer().html()).page
    before = page.evaluate(f"{ROOT}.querySelector('.total').textContent")
    assert before == f"{100 * plan_pipeline(**DEFAULTS)['bubble']:.1f} % waiting"
    page.evaluate(f"{ROOT}.querySelector('input[value=\"zero bubble\"]').click()")
    assert page.evaluate(f"{ROOT}.querySelector('.total').textContent") != before
