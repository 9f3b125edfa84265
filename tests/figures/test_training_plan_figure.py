"""The training plan: its numbers are plan_training's, and a reader can set everything by mouse and keys."""

import random

import pytest

from course_utils.figures.training_plan import CHOICES, DEFAULTS, training_plan
from course_utils.reference.accounting import GPUS, plan_training

ROOT = "document.querySelector('[data-s2s-figure]').shadowRoot"
RUN = "(all) => all.map((s) => StridesToShards.plan.planTraining(s))"


def drawn(rng):
    peak, _, size = rng.choice(list(GPUS.values()))
    chosen = {key: rng.choice(values) for key, values in CHOICES.items()}
    return DEFAULTS | chosen | {"peak_flops": peak, "gpu_bytes": size}


def test_its_numbers_are_those_of_plan_training(open_page):
    rng = random.Random(0)
    everything = [drawn(rng) for _ in range(500)]
    got = open_page(training_plan(plan_training).html()).page.evaluate(RUN, everything)
    without_room = 0
    for settings, seen in zip(everything, got, strict=True):
        if settings["activations"] >= settings["gpu_bytes"]:
            without_room += 1
            assert seen is None
            continue
        want = plan_training(**settings)
        assert (seen["gpus"], seen["bytes"]) == (want["gpus"], want["bytes"]), settings
        assert seen["days"] == pytest.approx(want["days"], rel=1e-12)
        assert seen["dollars"] == pytest.approx(want["dollars"], rel=1e-12)
    assert 0 < without_room < len(everything)


def test_the_account_is_the_functions():
    text = str(training_plan(plan_training, "A100 SXM 80 GB", mfu=0.5))
    peak, _, size = GPUS["A100 SXM 80 GB"]
    plan = plan_training(**DEFAULTS | {"mfu": 0.5}, peak_flops=peak, gpu_bytes=size)
    assert f"{plan['gpus']:,} GPUs, {plan['days']:.1f} days" in text
    with pytest.raises(ValueError, match="no 'TPU'"):
        training_plan(plan_training, "TPU")
    with pytest.raises(ValueError, match="unknown"):
        training_plan(plan_training, colour="red")


def test_a_slider_changes_the_plan(open_page):
    page = open_page(training_plan(plan_training).html()).page
    before = page.evaluate(f"{ROOT}.querySelector('.total').textContent")
    assert before == "3,072 GPUs"
    page.evaluate(
        f"(() => {{ const s = {ROOT}.querySelector('[aria-label=deadline]'); "
        "s.value = 0; s.dispatchEvent(new Event('input')); })()"
    )
    assert page.evaluate(f"{ROOT}.querySelector('.total').textContent") != before
